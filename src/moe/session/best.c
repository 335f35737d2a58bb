/* See best.h. Blocks without any logit that is good enough are passed over. Where tops are known, the `most` best lie
 * in the `most` pieces whose tops come first in the order of candidates: an equal logit of another piece has a higher
 * id. So of 150,000 logits a few thousand are looked at. */
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

/* What is not at least so large is none of the best. */
static float bound_of(float least, const struct pf_candidate *c, int kept, int most)
{
    return kept == most && c[0].logit > least ? c[0].logit : least;
}

/* Offers those of x[begin .. end) that are at least so large. */
static pf_status offer_range(const float *x, int begin, int end, float least, int most, struct pf_candidate *c,
                             int *kept)
{
    for (int i = begin; i < end; i++) {
        float bound = bound_of(least, c, *kept, most);
        if (i % BLOCK == 0 && i + BLOCK <= end && !has_any(x + i, bound)) {
            i += BLOCK - 1;
            continue;
        }
        if (isnan(x[i]))
            PF_FAIL(PF_ENUMERIC, "the logit of token %d is not a number", i);
        if (x[i] >= bound)
            pf_best_offer(c, kept, most, (struct pf_candidate){ .logit = x[i], .id = i });
    }
    return PF_OK;
}

pf_status pf_best(const struct pf_scores *of, int most, struct pf_candidate *c, int *kept)
{
    struct pf_candidate piece[PF_BEST_FEW];
    int n_tops = pf_n_tops(of->n), n_pieces = 0;
    *kept = 0;
    if (!of->tops || n_tops <= most)
        return offer_range(of->logits, 0, of->n, -INFINITY, most, c, kept);
    PF_TRY(offer_range(of->tops, 0, n_tops, -INFINITY, most, piece, &n_pieces));
    float least = piece[0].logit;            /* of the pieces that count: as many logits are at least so large */
    for (int i = n_pieces - 1; i >= 0; i--) {
        int begin = piece[i].id * PF_TOPS_OF, end = begin + PF_TOPS_OF < of->n ? begin + PF_TOPS_OF : of->n;
        PF_TRY(offer_range(of->logits, begin, end, least, most, c, kept));
    }
    return PF_OK;
}
