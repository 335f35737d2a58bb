/* Conversations that lost their slot, or that shall outlive the server: sessions as pf_session_save writes them, with
 * the tokens they hold, in memory or in files of a folder.
 *
 *     FILE: "pfserve1" | key of the model | n | hash of tokens | tokens | what pf_session_save wrote (with its digest)
 *
 * A file is written behind, by a thread of its own, beside its name and then renamed; until that is done its bytes stay
 * in memory. The oldest make room for new ones. A file that is damaged, or another model's, is no entry; one whose load
 * fails is forgotten and removed. All functions are called by the scheduler's thread. */
#ifndef PF_SERVE_SAVED_H
#define PF_SERVE_SAVED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pfmoe.h"

struct saved;

/* folder NULL: memory. most: bytes of all entries. What the folder holds for a model of this key becomes entries. NULL:
 * the folder cannot be used, errno says why. */
struct saved *saved_open(const char *folder, uint64_t most, uint64_t key);
/* Waits for what is being written. */
void saved_close(struct saved *s);

/* The entry with the longest common prefix, of those that a context of n_ctx holds, and, with `whole`, of those that
 * the tokens begin with; *common is the prefix's length. -1: there is none. */
int  saved_find(const struct saved *s, const int32_t *tok, size_t n, int64_t n_ctx, bool whole, size_t *common);
/* Makes the session what entry i holds; false: it is empty now, and the entry is gone. */
bool saved_load(struct saved *s, int i, pf_session *session);
/* Keeps the session's sequence. Entries that are a beginning of it are gone then. False: it could not be kept. */
bool saved_put(struct saved *s, const pf_session *session);
/* Whether a file is being written: another one would have to wait in memory. */
bool saved_is_busy(struct saved *s);

#endif
