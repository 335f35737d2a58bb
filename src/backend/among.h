/* The seam of cards that have whole experts of a model each, all of them together or as many as there is room for.
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
 * Experts may be shared with the host besides (share.h). Then every card has held experts, copies, tables and flags of
 * its own, the first one makes the offer, and the host's answer says of each pick which card does it: another one
 * multiplies by what it holds, reads in place or was copied to it, and its outputs come back as above.
 *
 *     first card   .. offer | what it holds | take: waits | late experts | ........ waits | outputs of all, summed | ..
 *     others             `--> what each holds | take: waits | late experts --^
 *     host               `--> deal, copies to all cards, gate and up, down -- answer, to each card
 *
 * Every call belongs to the thread that runs the step, or that opens and closes. */
#ifndef PF_AMONG_H
#define PF_AMONG_H

#include "backend/backend.h"

struct pf_among_ops {
    /* Called once, after the weights were placed, or after share->open of all: of a layer's experts each card computes
     * those that it has. The others are n backends with this table, and must stay open as long as b runs steps. */
    pf_status (*open)(pf_backend *b, pf_backend *const *others, int n);
    /* The other card was lost: steps do without it. It may be closed. */
    void      (*leave)(pf_backend *b, pf_backend *other);

    /* b's own reserve is asked before. bytes: what reserve takes on the first card, or on one of the others. */
    pf_status (*reserve)(pf_backend *b, const struct pf_backend_sizes *sizes);
    uint64_t  (*bytes)(const pf_backend *b, const struct pf_backend_sizes *sizes, bool first);

    /* Shows the others a layer's picks, then computes the layer, with the same e; other operations may come between. */
    pf_status (*lend)(pf_backend *b, const struct pf_experts_op *e);
    pf_status (*experts)(pf_backend *b, const struct pf_experts_op *e);

    /* experts_begin and experts_end of all cards: in between each has its own experts_part, with matrices of its own
     * memory, and every picked expert is in one part of one card. */
    pf_status (*begin)(pf_backend *b, const struct pf_experts_op *e);
    pf_status (*end)(pf_backend *b);
};

/* The table of a GPU's backend; NULL: b is none. */
const struct pf_among_ops *pf_backend_cuda_among(const pf_backend *b);

#endif
