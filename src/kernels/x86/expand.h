/* Rows of the types whose codes are looked up in grids, or otherwise lie across bytes, made plain: one segment of
 * one row to a code a byte and a scale a float. mul_quant.h expands a segment of each of its rows into a buffer
 * and reads that as it reads the blocks of other types. Codes are unsigned, value = code - bias; see unpack.h.
 * AVX2; pure functions. */
#ifndef PF_EXPAND_H
#define PF_EXPAND_H

#include <stdint.h>

struct pf_expanded {
    uint8_t codes[256];
    float   dw[8];
    float   pair[16];            /* types with two scales a block */
};

/* Reads 256 elements from p on. */
typedef void pf_expand_fn(const uint8_t *restrict p, struct pf_expanded *restrict out);

/* Added to codes to make them unsigned: the largest magnitude in each type's grid. */
enum { PF_BIAS_IQ2 = 43, PF_BIAS_IQ3_XXS = 62, PF_BIAS_IQ3_S = 15, PF_BIAS_IQ1 = 9, PF_BIAS_TERNARY = 1 };

pf_expand_fn pf_expand_iq2_xxs, pf_expand_iq2_xs, pf_expand_iq2_s, pf_expand_iq3_xxs, pf_expand_iq3_s, pf_expand_iq1_s,
             pf_expand_iq1_m, pf_expand_tq1_0, pf_expand_q1_0, pf_expand_q2_0;

#endif
