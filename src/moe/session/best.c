/* See best.h. Blocks without any logit that is good enough are passed over. */
#include "moe/session/best.h"

#include <math.h>

void pf_best_offer(struct pf_candidate *best, int *kept, int most, struct pf_candidate c)
{
    int i = *kept;
    if (i < most) {
        for (; i > 0 && pf_is_better(&best[i - 1], &c); i--)
            best[i] = best[i - 1];
        best[i] = c;
        ++*kept;
    } else if (pf_is_better(&c, &best[0])) {
        for (i = 0; i + 1 < most && pf_is_better(&c, &best[i + 1]); i++)
            best[i] = best[i + 1];
        best[i] = c;
    }
}

enum { BLOCK = 32 };

/* Whether any of a block's logits is at least so large, or no number. */
static bool has_any(const float *x, float least)
{
    int found = 0;
    for (int i = 0; i < BLOCK; i++)
        found |= !(x[i] < least);
    return found;
}

/* Offers x[begin .. end). */
static pf_status offer_range(const float *x, int begin, int end, int most, struct pf_candidate *c, int *kept)
{
    for (int i = begin; i < end; i++) {
        bool whole = *kept == most && i % BLOCK == 0 && i + BLOCK <= end;
        if (whole && !has_any(x + i, c[0].logit)) {
            i += BLOCK - 1;
            continue;
        }
        if (isnan(x[i]))
            PF_FAIL(PF_ENUMERIC, "the logit of token %d is not a number", i);
        pf_best_offer(c, kept, most, (struct pf_candidate){ .logit = x[i], .id = i });
    }
    return PF_OK;
}

pf_status pf_best(const struct pf_scores *of, int most, struct pf_candidate *c, int *kept)
{
    *kept = 0;
    return offer_range(of->logits, 0, of->n, most, c, kept);
}
