/* Drafts that the caller's function gives. Chances are those of its guesses lately, whatever their place,
 * and low until some were right, which costs nothing to see. */
#include <string.h>

#include "base/pf_mem.h"
#include "base/pf_status.h"
#include "draft/drafter.h"

struct given {
    struct pf_drafter base;
    const int32_t    *tok;
    pf_draft_fn      *fn;
    void             *ctx;
    struct pf_odds    odds;
    int32_t           proposed[PF_MAX_DRAFT];
    int               n_proposed;            /* of what is still to be seen, as long as all before it was right */
    int64_t           from;                  /* position of proposed[0] */
};

static void see(struct pf_drafter *d, int32_t tok)
{
    struct given *g = (struct given *)d;
    int64_t i = d->n - g->from;
    if (i >= 0 && i < g->n_proposed) {
        pf_odds_add(&g->odds, g->proposed[i] == tok);
        if (g->proposed[i] != tok)
            g->n_proposed = 0;
    }
    d->n++;
}

static void cut(struct pf_drafter *d, int64_t pos)
{
    if (pos >= d->n)
        return;
    d->n = pos;
    ((struct given *)d)->n_proposed = 0;
}

static int expect(struct pf_drafter *d, float *chance, int most)
{
    struct given *g = (struct given *)d;
    size_t n = g->fn(g->ctx, g->tok, (size_t)d->n, g->proposed, (size_t)most);
    g->from = d->n;
    g->n_proposed = n < (size_t)most ? (int)n : most;
    for (int i = 0; i < g->n_proposed; i++)
        chance[i] = g->odds.hits / g->odds.tries;
    return g->n_proposed;
}

static int propose(struct pf_drafter *d, int32_t *out, int n)
{
    memcpy(out, ((struct given *)d)->proposed, (size_t)n * sizeof *out);
    return n;
}

static void close(struct pf_drafter *d)
{
    pf_free(d);
}

static const struct pf_drafter_ops ops = { see, cut, expect, propose, close, NULL, NULL };

pf_status pf_drafter_given(struct pf_drafter **out, const int32_t *tok, pf_draft_fn *fn, void *ctx)
{
    struct given *g = pf_alloc(PF_MEM_SESSION, sizeof *g);
    *out = NULL;
    if (!g)
        PF_FAIL(PF_ENOMEM, "no memory for drafts");
    *g = (struct given){ .base.ops = &ops, .tok = tok, .fn = fn, .ctx = ctx, .odds = { 2, 0.5f } };
    *out = &g->base;
    return PF_OK;
}
