/* Drafters: what may come next in a sequence of tokens, guessed cheaply, and how sure each guess is. A drafter follows
 * one sequence; whoever has the tokens tells it of each in order, of going back, and asks when a guess is wanted.
 *
 *     see(tok) see(tok) ... expect -> for each token that could be proposed the chance that it is right if those
 *                                     before it are; propose -> so many of them
 *
 * A proposal is compared with what is seen next, whether it was evaluated or not, so that chances are learned for
 * nothing. Used by one thread at a time. No answer depends on a drafter: a wrong guess costs time. */
#ifndef PF_DRAFT_DRAFTER_H
#define PF_DRAFT_DRAFTER_H

#include "pfmoe.h"

struct pf_drafter;

struct pf_drafter_ops {
    void (*see)(struct pf_drafter *d, int32_t tok);
    void (*cut)(struct pf_drafter *d, int64_t pos);          /* the sequence is its first pos tokens at most;
                                                                    the others are still there to be looked at */
    int  (*expect)(struct pf_drafter *d, float *chance, int most);       /* how many it could propose */
    int  (*propose)(struct pf_drafter *d, int32_t *out, int n);      /* how many of the n that it could */
    void (*close)(struct pf_drafter *d);
    /* A step evaluated so many rows from position `from` on, of which the first `certain` are no drafts. NULL: it need
     * not be told. */
    void (*went)(struct pf_drafter *d, int64_t from, int rows, int certain);
    /* The session that it drafts with, to be saved and loaded, whose sequence is a beginning of the one it follows;
     * NULL: it has none at the moment. The function itself NULL: it never has. */
    pf_session *(*own)(const struct pf_drafter *d);
};

/* The first member of every drafter. */
struct pf_drafter {
    const struct pf_drafter_ops *ops;
    int64_t                      n;          /* tokens seen */
    double                       draft_ns;   /* what proposing a token takes; 0: nothing, or it is not known */
};

/* How often guesses of a kind were right lately. */
struct pf_odds {
    float tries, hits;
};

static inline void pf_odds_add(struct pf_odds *o, bool hit)
{
    const float KEEP = 0.95f;
    o->tries = KEEP * o->tries + 1;
    o->hits = KEEP * o->hits + (float)hit;
}

/* lookup.c: what followed where the newest tokens stood before. tok: the sequence, borrowed; n_ctx: its most tokens. */
pf_status pf_drafter_lookup(struct pf_drafter **out, const int32_t *tok, int64_t n_ctx);
size_t    pf_drafter_lookup_bytes(int64_t n_ctx);

/* given.c: what the caller's function says; tok as above. */
pf_status pf_drafter_given(struct pf_drafter **out, const int32_t *tok, pf_draft_fn *fn, void *ctx);

static inline void pf_drafter_close(struct pf_drafter *d)
{
    if (d)
        d->ops->close(d);
}

#endif
