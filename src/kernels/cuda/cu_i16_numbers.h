/* Elements of a row as whole numbers of 16 bits (docs/numerics.md, "Rows"): its scale, and words of four elements. */
#ifndef PF_CU_I16_NUMBERS_H
#define PF_CU_I16_NUMBERS_H

#include "kernels/cuda/cu_device.h"

/* The scale of a row, and by what its elements are multiplied; scale 0: it is out of range. */
struct scales {
    float s, inv;
};

/* bits: of the largest |x|. */
CU_INLINE struct scales scales_of_bits(uint32_t bits)
{
    if (bits > pf_float_bits(PF_I16_MOST))
        return { 0, 0 };
    float amax = pf_bits_float(bits), a = amax > PF_I16_LEAST ? amax : PF_I16_LEAST;
    return { a / (float)PF_I16_TOP, (float)PF_I16_TOP / a };
}

/* Words of four elements. */
struct words {
    uint32_t upper, lower;
};

CU_INLINE struct words words_of(const float *x, struct scales s)
{
    struct words w = { 0, 0 };
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int n = s.s > 0 ? pf_i16_number(x[i], s.inv) : 0;
        w.upper |= (uint32_t)(pf_i16_upper(n) & 255) << 8 * i;
        w.lower |= (uint32_t)(pf_i16_lower(n) & 255) << 8 * i;
    }
    return w;
}

#endif
