/* Unquantised weights: F32, F16, BF16, against float activations (struct pf_xrow, field f).
 *
 * Element i goes to accumulator i mod 32 by acc = fmaf(w, x, acc), in rising order from 0; the 32 are then folded:
 * acc[i] += acc[i + 16] for i < 16, then 8, 4, 2, 1. Any n > 0: an accumulator no element reaches stays 0. */
#include "kernels/ref/ref_block.h"

REF_INLINE float load_F32(const uint8_t *row, int i)
{
    float f;
    memcpy(&f, row + (size_t)i * 4, 4);
    return f;
}

REF_INLINE float load_F16(const uint8_t *row, int i)
{
    uint16_t h;
    memcpy(&h, row + (size_t)i * 2, 2);
    return ref_half(h);
}

/* The upper half of a float32. */
REF_INLINE float load_BF16(const uint8_t *row, int i)
{
    uint16_t h;
    memcpy(&h, row + (size_t)i * 2, 2);
    uint32_t bits = (uint32_t)h << 16;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

typedef float load_fn(const uint8_t *row, int i);

REF_INLINE float dot_float(load_fn *load, const uint8_t *row, int n, const float *x)
{
    float acc[32] = { 0 };
    for (int i = 0; i < n; i++)
        acc[i % 32] = fmaf(load(row, i), x[i], acc[i % 32]);
    for (int fold = 16; fold > 0; fold /= 2)
        for (int i = 0; i < fold; i++)
            acc[i] += acc[i + fold];
    return acc[0];
}

#define FLOAT_TYPE(TYPE)                                                                                          \
    void pf_ref_dequant_##TYPE(const void *row, int n, float *out)                                                \
    {                                                                                                             \
        for (int i = 0; i < n; i++)                                                                               \
            out[i] = load_##TYPE(row, i);                                                                         \
    }                                                                                                             \
    void pf_ref_mul_##TYPE(const void *w, size_t row_bytes, int n_rows, int n, const struct pf_xrow *x, int n_x,  \
                           float *y, size_t y_stride, const void *next)                                           \
    {                                                                                                             \
        (void)next;                                                                                               \
        REF_ROWS(dot_float(load_##TYPE, row, n, x[j].f))                                                          \
    }

FLOAT_TYPE(F32)
FLOAT_TYPE(F16)
FLOAT_TYPE(BF16)
