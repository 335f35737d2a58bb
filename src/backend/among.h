/* The seam of cards that have whole experts of a model each.
 *
 *     first card   .. router | lend | shared expert | its own experts | .. waits .. | outputs of all, summed | ..
 *     others                   `--> the picks that they have ---------------^
 *
 * The first card has all else of the model and runs the step. Outputs of picks are gathered on it and added up in the
 * router's order, so it does not matter to a bit which card has an expert. The exchange between two cards is memory
 * that both reach: the first card's own, where the others read and write it themselves, otherwise pinned memory of the
 * host. What is asked of the others is part of the first card's step: it may be repeated with it, and finish waits for
 * it and reports its failures.
 *
 * Every call belongs to the thread that runs the step, or that opens and closes. */
#ifndef PF_AMONG_H
#define PF_AMONG_H

#include "backend/backend.h"

struct pf_among_ops {
    /* Called once, after the weights were placed: of a layer's experts each card computes those that it has. The others
     * are n backends with this table, and must stay open as long as b runs steps. */
    pf_status (*open)(pf_backend *b, pf_backend *const *others, int n);

    /* b's own reserve is asked before. bytes: what reserve takes on the first card, or on one of the others. */
    pf_status (*reserve)(pf_backend *b, const struct pf_backend_sizes *sizes);
    uint64_t  (*bytes)(const pf_backend *b, const struct pf_backend_sizes *sizes, bool first);

    /* Shows the others a layer's picks, then computes the layer, with the same e; other operations may come between. */
    pf_status (*lend)(pf_backend *b, const struct pf_experts_op *e);
    pf_status (*experts)(pf_backend *b, const struct pf_experts_op *e);
};

/* The table of a GPU's backend; NULL: b is none. */
const struct pf_among_ops *pf_backend_cuda_among(const pf_backend *b);

#endif
