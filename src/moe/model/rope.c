/* Frequencies and tables of rotary embedding. See rope.h. */
#include "moe/model/rope.h"

#include <assert.h>
#include <math.h>

/* YaRN: the pair index at which a full context turns beta times. */
static double yarn_pair(const struct pf_rope_params *p, double beta)
{
    return p->n_rot * log((double)p->n_ctx_orig / (beta * 2 * M_PI)) / (2 * log(p->base));
}

/* 1 for pairs that turn often and keep their frequency, 0 for those that are stretched, a ramp between. */
static double yarn_keep(double low, double high, int i)
{
    double t = (i - low) / fmax(0.001, high - low);
    return 1 - fmin(1, fmax(0, t));
}

void pf_rope_init(struct pf_rope *r, const struct pf_rope_params *p)
{
    double stretch = p->factor > 0 ? 1.0 / p->factor : 1.0, low = 0, high = 0;
    if (p->yarn) {
        low = fmax(0, floor(yarn_pair(p, p->beta_fast)));
        high = fmin(p->n_rot - 1, ceil(yarn_pair(p, p->beta_slow)));
    }
    r->n_pairs = p->n_rot / 2;
    assert(r->n_pairs <= PF_ROPE_MAX_PAIRS && "whoever read n_rot has a bound for it");
    for (int i = 0; i < r->n_pairs; i++) {
        double freq = pow(p->base, -2.0 * i / p->n_rot);
        if (p->divisors)
            freq /= p->divisors[i];
        double keep = p->yarn ? yarn_keep(low, high, i) : 0;
        r->freq[i] = p->still[i] ? 0 : freq * (stretch * (1 - keep) + keep);
    }
    r->mag = p->attn_factor;
    if (p->yarn && stretch < 1 && !p->plain_mag)
        r->mag *= 1 + 0.1 * log(1 / stretch);
}

void pf_rope_table(const struct pf_rope *r, const int32_t *pos, int step, int rows, float *cs)
{
    for (int row = 0; row < rows; row++) {
        float *c = cs + (size_t)row * 2 * r->n_pairs, *s = c + r->n_pairs;
        for (int i = 0; i < r->n_pairs; i++) {
            double angle = (double)((int64_t)pos[row] * step) * r->freq[i];
            c[i] = (float)(r->mag * cos(angle));
            s[i] = (float)(r->mag * sin(angle));
        }
    }
}

void pf_rope_back(const struct pf_rope *r, const float *cs, int rows, float *back)
{
    for (int64_t i = 0; i < (int64_t)rows * 2 * r->n_pairs; i++)
        back[i] = i / r->n_pairs % 2 ? -cs[i] : cs[i];
}
