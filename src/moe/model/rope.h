/* Rotary position embedding: per pair of dimensions an angular frequency, fixed at load; per position a cosine and a
 * sine.
 *
 *     angle(p, i) = p * freq[i]          freq[i] = base^(-2i / n_rot) / divisor[i], then linear or YaRN scaling
 *     table row of a position: mag * cos(angle) for every pair, then mag * sin(angle)
 *
 * Everything is computed in double and rounded once, so that every backend rotates by the same numbers.
 * Sources: Su et al. 2021 (RoPE); Peng et al. 2023 (YaRN), equations 23-25 for the ramp. Pure functions; any thread. */
#ifndef PF_ROPE_H
#define PF_ROPE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/pf_status.h"

enum { PF_ROPE_MAX_PAIRS = 512 };

struct pf_rope {
    int    n_pairs;                       /* n_rot / 2 */
    double freq[PF_ROPE_MAX_PAIRS];
    double mag;
};

struct pf_rope_params {
    int          n_rot;
    float        base;
    const float *divisors;                /* {n_rot / 2} or NULL */
    float        factor;                  /* context extension; 0 or 1: none */
    bool         yarn;                    /* YaRN scaling; false: linear */
    int64_t      n_ctx_orig;              /* YaRN: context before extension */
    float        beta_fast, beta_slow;    /* YaRN: turns in that context at which its ramp begins and ends */
    bool         still[PF_ROPE_MAX_PAIRS];           /* pairs that do not rotate */
    float        attn_factor;             /* multiplies mag; 1 normally */
    bool         plain_mag;               /* YaRN's own magnitude goes into attention's scale instead */
};
void pf_rope_init(struct pf_rope *r, const struct pf_rope_params *p);

/* cs [rows][2 * n_pairs] for the given positions times step; and that of the opposite angles, from it. */
void pf_rope_table(const struct pf_rope *r, const int32_t *pos, int step, int rows, float *cs);
void pf_rope_back(const struct pf_rope *r, const float *cs, int rows, float *back);

#endif
