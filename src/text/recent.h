/* Fragments of text that were tokenized lately, and their ids: the messages of a conversation come again with each
 * turn, and only the newest is new. A fragment is found by its bytes, all of which are compared.
 *
 *     slots [SLOTS]    by the keyed hash of the text: a fragment, or NULL; a new one takes the place of what is there
 *     bytes            of all fragments; beyond PF_RECENT_BYTES the slots behind `hand` are emptied, one after another
 *
 * Belongs to a vocabulary, which many threads use; the lock is held while ids are copied. */
#ifndef PF_RECENT_H
#define PF_RECENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/pf_hash.h"
#include "base/pf_status.h"

enum { PF_RECENT_LEAST = 256,                /* bytes of text: of less, looking takes as long as tokenizing */
       PF_RECENT_BYTES = 8 << 20 };          /* of texts and ids */

struct pf_recent;

/* NULL: there is no memory. */
struct pf_recent *pf_recent_open(void);
void pf_recent_close(struct pf_recent *r);

/* Whether the text's ids are known: n_ids of them, of which the first cap are written to ids. */
bool pf_recent_find(struct pf_recent *r, const char *text, size_t len, int32_t *ids, size_t cap, size_t *n_ids);
/* Keeps them, if there is memory. */
void pf_recent_keep(struct pf_recent *r, const char *text, size_t len, const int32_t *ids, size_t n_ids);

#endif
