/* The best few of a vocabulary's logits. Pure functions; any thread. */
#ifndef PF_BEST_H
#define PF_BEST_H

#include "moe/layout/layout.h"

enum {
    PF_BEST_FEW = 256                /* as many as are found in one pass; for more, draw.h is faster */
};

/* n logits. tops [pf_n_tops(n)]: the largest of each PF_TOPS_OF neighbours, where no logit is NaN; NULL: not known. */
struct pf_scores {
    const float *logits;
    int          n;
    const float *tops;
};

/* The order of candidates: logit falling, id rising. It is total, so equal logits never depend on the algorithm. */
static inline bool pf_is_better(const struct pf_candidate *a, const struct pf_candidate *b)
{
    return a->logit > b->logit || (a->logit == b->logit && a->id < b->id);
}

/* Puts a candidate into its place among the `most` best so far, of which there are *kept, the worst first. */
void pf_best_offer(struct pf_candidate *best, int *kept, int most, struct pf_candidate c);

/* The `most` best, the worst first, or all if they are fewer: c[0 .. *kept), most <= PF_BEST_FEW. PF_ENUMERIC: a logit
 * is NaN. */
pf_status pf_best(const struct pf_scores *of, int most, struct pf_candidate *c, int *kept);

#endif
