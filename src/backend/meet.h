/* The seam of cards that compute parts of the same rows: order between them, and gathering what each has made.
 *
 *     card 0   .. its columns | show ---.--> gather: whole rows | ..
 *     card 1   .. its columns | show ---'--> gather: whole rows | ..
 *
 * What a card shows lies in memory that all of them read: its own, or pinned memory of the host. Nothing is added up,
 * so the bits are those of one card. Showing, waiting and gathering are work of the cards' own streams: they may be
 * repeated with a step of the first card, whose `begin` and `end` the others' work lies between.
 *
 * Every call of this table belongs to the thread that runs the step, or that opens and closes. */
#ifndef PF_MEET_H
#define PF_MEET_H

#include "backend/backend.h"

/* y [rows][n]: columns [first[i], first[i + 1]) come from shown[i], whose rows are as long as that. */
struct pf_gather_op {
    float       *y;
    const float *shown[PF_MAX_GPUS];
    int          first[PF_MAX_GPUS + 1];
    int          n_cards, rows, n;
};

struct pf_meet_ops {
    /* Whether kernels of b read the memory of the other card. */
    bool      (*reaches)(const pf_backend *b, const pf_backend *other);

    /* What b is asked for from now on comes after all that the other was asked for so far. */
    pf_status (*after)(pf_backend *b, pf_backend *other);

    /* Copies n floats of b's memory to where the others read them; makes whole rows of what all have shown. */
    pf_status (*show)(pf_backend *b, const float *from, float *to, int64_t n);
    pf_status (*gather)(pf_backend *b, const struct pf_gather_op *g);

    /* Forgets recorded steps: they name memory of other cards, which is about to go. */
    void      (*forget)(pf_backend *b);
};

/* The table of a GPU's backend; NULL: b is none. */
const struct pf_meet_ops *pf_backend_cuda_meet(const pf_backend *b);

/* What an exchange between the cards takes, measured as a step of decoding makes it. Zeros: it could not be. */
struct pf_link pf_backend_cuda_link(pf_backend *const *cards, int n);

#endif
