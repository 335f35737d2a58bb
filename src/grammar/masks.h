/* Which tokens may follow, as a set of bits: bit id % 64 of word id / 64.
 *
 *     position --stacks made holes--> shape      the mask of a shape is made once, by one walk over the vocabulary's
 * trie,
 *                                                with the nodes at which it returns through a hole (resumes)
 *     mask = the shape's mask, and what the walks accept that go on at its resumes with the stack that is there
 *
 * Inside of a JSON string, where nearly every token may follow, only tokens with a quote in them have such nodes: what
 * is below the string matters to them alone. Both masks are kept, of shapes and of positions, in tables in which a new
 * one replaces the one in its place. One thread at a time. */
#ifndef PF_MASKS_H
#define PF_MASKS_H

#include "grammar/runner.h"
#include "grammar/tokens.h"

enum { PF_N_SHAPES = 128, PF_N_MASKS = 32 };

struct pf_resume {
    uint32_t node, holes;                /* of the trie; bit k: through hole k */
};

struct pf_mask {
    uint64_t *bits;                      /* NULL: there is none */
    int32_t   position;
    struct pf_resume *resumes;           /* of shapes */
    size_t    n_resumes, resume_cap;
};

struct pf_masks {
    const struct pf_tokens *t;
    struct pf_mask shapes[PF_N_SHAPES], masks[PF_N_MASKS];
    int32_t at[PF_TOKEN_MAX_BYTES + 1];  /* of the present walk: the position after so many bytes */
};

/* The tokens that may follow at a position, end tokens left out; [n_vocab / 64, rounded up] words, borrowed until the
 * next call. */
pf_status pf_masks_get(struct pf_masks *m, struct pf_runner *r, int32_t position, const uint64_t **bits);
void      pf_masks_forget(struct pf_masks *m);       /* when positions have changed their numbers, and at the end */

#endif
