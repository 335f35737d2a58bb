/* Conversations that lost their slot, or that shall outlive the server, in memory or in files of a folder.
 *
 *     [ 0 .. 9000 ) <-+- [ 9000 .. 12000 ) <--- [ 12000 .. 13000 )        a conversation of 13,000 tokens
 *                     `- [ 8800 .. 9700 )                                 another one: its first 8,800 are the same
 *
 * What is kept is parts (part.h), each of which continues another, from its end on or from where they begin to differ:
 * an answer that was made anew, or that comes back without its reasoning. So saving a conversation again writes what is
 * new. What a part shares of the one that it continues is at least twice as long as the part, or else both are written
 * anew as one: so a conversation of n tokens has about log2 n parts, and a token is written about as often. It is four
 * times as long as what of that one is not shared, which stays as long as the part does. Models whose sequences cannot
 * be cut have parts that continue ends alone.
 *
 * A part goes when none continues it: the one that was used longest ago where room is wanted, and what a longer one
 * replaces. Files are written behind (behind.h); what a part replaces is removed afterwards, when something else is
 * saved, and a part that could not be written is forgotten, with nothing replaced. A file whose head names another
 * model is no part; one whose head is damaged is removed when a server starts, and one that turns out to be either when
 * it is loaded with what continues it. One that could not be read may be whole: it stays, is tried again after a second
 * at first and then ever later, and what is saved meanwhile does not continue it; if that is the same tokens, and none
 * continues them, it takes its place. Servers may share a folder: what one writes just then stays, and what one that
 * was killed had begun to write is removed when another one starts. All functions are called by the scheduler's thread,
 * or by work aside (aside.h), between whose slices that thread looks for parts and does nothing else here. */
#ifndef PF_SERVE_SAVED_H
#define PF_SERVE_SAVED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pfmoe.h"

struct saved;
struct part;
struct aside;

/* folder NULL: memory. most: bytes of all parts. What the folder holds for a model of this key is taken up. NULL: the
 * folder cannot be used, errno says why. */
struct saved *saved_open(const char *folder, uint64_t most, uint64_t key);
/* Where saving and loading pause, and where they leave while a drive is waited for. NULL: nowhere. */
void saved_set_aside(struct saved *s, struct aside *a);
/* Whose sessions these are, which says where parts can be cut; and about how many bytes a token of a conversation
 * takes: room for all of it is made at once. Before, all can be cut, and nothing is known of bytes. */
void saved_expect(struct saved *s, const pf_model *m, uint64_t token_bytes);
uint64_t saved_most(const struct saved *s);
/* Whether there is room for what is not kept of the session's sequence, without anything else going. */
bool saved_has_room(struct saved *s, const pf_session *session);
/* Waits for what is being written. */
void saved_close(struct saved *s);

/* The part up to which a conversation has the longest common prefix, and least is loaded, of those that a context of
 * n_ctx holds, and, with `whole`, of those that the tokens begin with; *common is the prefix's length. What cannot be
 * cut there, or could not be read just now, is not among them. NULL: there is none. Valid until a conversation is saved
 * or loaded. */
struct part *saved_find(struct saved *s, const int32_t *tok, size_t n, int64_t n_ctx, bool whole, size_t *common);
/* The longest common prefix with any of them, of use or not. */
size_t saved_common(struct saved *s, const int32_t *tok, size_t n);
/* Makes the session what is kept up to the part, or up to the last of those before it that can be loaded. False:
 * nothing can, and it is empty now; or it was given up, and the session is as it was, has one of those before it, or is
 * empty. */
bool saved_load(struct saved *s, struct part *p, pf_session *session);

/* Keeps the session's sequence; is_shared: also once a longer one is kept, since others begin so. Otherwise no more is
 * kept than before: there is no room even for it alone; no session of the model can be saved; it failed for a reason
 * that may pass (both: pf_last_error's); or it was given up. */
enum put { PUT_DONE, PUT_NO_ROOM, PUT_NEVER, PUT_FAILED, PUT_GIVEN_UP };
enum put saved_put(struct saved *s, const pf_session *session, bool is_shared);
/* Whether a file is being written: another one would have to wait. */
bool saved_is_busy(struct saved *s);

#endif
