/* Drawing one of all tokens of a vocabulary, or of many, by their weights. */
#ifndef PF_DRAW_H
#define PF_DRAW_H

#include "backend/backend.h"
#include "moe/session/best.h"

/* What may be drawn: the top_k best; of those, in order, as many as have the share top_p of the sum of their weights,
 * and none whose weight is below min_p. A weight is exp((logit - the best logit) / temp). */
struct pf_draw {
    float temp, top_p, min_p;
    int   top_k;                     /* n: all */
    float best;                      /* the largest logit, > -inf. A logit of -inf is never drawn */
};

/* Room for n: w the weights, c tokens whose weights are alike. */
struct pf_draw_room {
    float               *w;
    struct pf_candidate *c;
};

/* Draws by `unit`, 0 <= unit < 1; `cpu` has `weigh`. The same bits on every machine. Any thread. */
int32_t pf_draw_one(const struct pf_draw *o, const pf_backend *cpu, const float *logits, int n, double unit,
                    const struct pf_draw_room *room);

#endif
