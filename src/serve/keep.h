/* What a slot loses is kept, and what is kept of a prompt is taken up: slots and saved conversations (cache/saved.h),
 * which know nothing of each other. The scheduler's thread, or work aside (cache/aside.h) with slots that are its own.
 */
#ifndef PF_SERVE_KEEP_H
#define PF_SERVE_KEEP_H

#include "serve/cache/saved.h"
#include "serve/slot.h"

enum { WORTH_TOKENS = 64 };              /* fewer are evaluated again rather than moved */

struct keeper {
    struct saved *saved;             /* NULL: nothing is kept */
    bool          cuts;              /* a sequence can be cut a few tokens short without evaluating others again */
    int64_t       most_tok;          /* of a sequence; a longer one is known never to be kept. -1: none ever is */
};

/* What a keeper has for such sessions, of n_ctx tokens; saved: NULL or a cache. */
struct keeper keep_open(struct saved *saved, const pf_model *m, const struct pf_session_opts *o, bool cuts);

/* Keeps the slot's sequence; is_shared: other prompts begin so. False, here and below: work aside was given up, and
 * what the slot has is not kept yet. */
bool keep_sequence(struct keeper *k, struct slot *s, bool is_shared);
/* Where the sequence cannot be cut: keeps as much as a later prompt will begin with, and cuts the session there. */
bool keep_beginning(struct keeper *k, struct slot *s);
/* Keeps what a slot loses for a prompt of which its sequence has `common` tokens; leaves: it loses all. */
bool keep_lost(struct keeper *k, struct slot *s, size_t common, bool leaves);
/* Whether keep_exchange would do anything. */
bool keep_would_exchange(const struct keeper *k, const struct slot *s, const struct prompt *q);
/* How much of a prompt a conversation begins with that is kept, and can be taken up there; and that is kept at all. */
size_t keep_spares(const struct keeper *k, const struct slot *s, const struct prompt *q);
size_t keep_common(const struct keeper *k, const struct prompt *q);
/* Whether the prompt goes on with the slot's conversation, rather than with another that begins like it. */
bool keep_goes_on(const struct slot *s, const struct prompt *q);
/* Keeps what a slot loses for a prompt, and takes up a saved conversation that has more of the prompt. */
void keep_exchange(struct keeper *k, struct slot *s, const struct prompt *q);

#endif
