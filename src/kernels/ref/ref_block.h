/* The definition of products with quantised weights and of dequantisation; each type adds one function to it.
 *
 * A type is defined by how its block of 32 number b of a row is read into struct ref_block: 32 integer codes in two
 * halves of 16, their scales and minimums. In exact arithmetic element i of half h is
 *
 *     x[i] = dw * sc[h] * code[i] - mw * mn[h]
 *
 * Everything else follows here, once for all types.
 *
 * Dequantisation: x[i] = (dw * (float)sc[h]) * (float)code[i], then minus mw * (float)mn[h] for types with minimums;
 * each product and difference is rounded to float32, nothing is fused.
 *
 * Product with an activation row (kernels.h, struct pf_xrow), da = d[b] of the activations:
 *     isum = sum over both halves of sc[h] * (sum of code * q), exact in int32 (below 2^24 for every type)
 *     ONE_TERM      s = fmaf(dw * da, (float)isum, s)
 *     MINIMUMS      the same, then, with qsum = sum over both halves of mn[h] * (sum of q),
 *                   s = fmaf(-mw, da * (float)qsum, s)
 *     TWO_SCALES    float scales dw and dw1 per half: the term of the lower sixteen, then that of the upper sixteen
 * A segment is eight blocks, 256 elements; the last of a row may be shorter. s starts a segment at 0; at its end
 * total = total + s, total starts a row at 0. The product is total.
 *
 * Both halves of a type with one scale per 32 have sc = 1: that scale is in dw, an exact product of what is stored.
 * Compiled for the least x86-64: fmaf may be a library call, which rounds once all the same. Pure functions. */
#ifndef PF_REF_BLOCK_H
#define PF_REF_BLOCK_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernels/kernels.h"
#include "kernels/qblocks.h"

struct ref_block {
    int8_t  code[32];
    float   dw, dw1;           /* dw1: TWO_SCALES only */
    float   mw;                /* MINIMUMS only */
    int32_t sc[2], mn[2];
};

enum ref_kind { ONE_TERM, MINIMUMS, TWO_SCALES };

/* Reads block b of 32 of the row into blk. code and dw are always set; the rest comes in as sc = mn = {1, 1}. */
typedef void ref_read_fn(const void *row, int b, struct ref_block *blk);

#define REF_INLINE static inline __attribute__((always_inline))

/* IEEE binary16 to binary32, exact: subnormals keep their value, infinities and NaNs stay what they are. */
REF_INLINE float ref_half(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, magnitude = h & 0x7fff;
    if (magnitude < 0x0400) {
        float f = (float)magnitude * 0x1p-24f;
        return sign ? -f : f;
    }
    uint32_t bits = sign | ((magnitude << 13) + (magnitude >= 0x7c00 ? 0x70000000 : 0x38000000));
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

REF_INLINE int ref_nibble(uint8_t byte, int high)
{
    return high ? byte >> 4 : byte & 15;
}

/* Element i of 32 in split halves. */
REF_INLINE int ref_split(const uint8_t qs[16], int i)
{
    return ref_nibble(qs[i % 16], i >= 16);
}

REF_INLINE struct ref_block ref_get(ref_read_fn *read, const void *row, int b)
{
    struct ref_block blk = { .sc = { 1, 1 }, .mn = { 1, 1 } };
    read(row, b, &blk);
    return blk;
}

REF_INLINE void ref_dequant(ref_read_fn *read, enum ref_kind kind, const void *row, int n, float *out)
{
    for (int b = 0; b < n / 32; b++) {
        struct ref_block blk = ref_get(read, row, b);
        for (int i = 0; i < 32; i++) {
            int h = i / 16;
            float d = kind == TWO_SCALES && h ? blk.dw1 : blk.dw;
            float x = (d * (float)blk.sc[h]) * (float)blk.code[i];
            out[b * 32 + i] = kind == MINIMUMS ? x - blk.mw * (float)blk.mn[h] : x;
        }
    }
}

REF_INLINE int32_t ref_isum16(const int8_t *code, const int8_t *q)
{
    int32_t sum = 0;
    for (int i = 0; i < 16; i++)
        sum += code[i] * q[i];
    return sum;
}

/* The chain: one block of 32 added to the segment's s. */
REF_INLINE float ref_add_block(const struct ref_block *blk, enum ref_kind kind, const struct pf_xrow *x, int b, float s)
{
    int32_t lower = blk->sc[0] * ref_isum16(blk->code, x->q + b * 32);
    int32_t upper = blk->sc[1] * ref_isum16(blk->code + 16, x->q + b * 32 + 16);
    float da = x->d[b];
    if (kind == TWO_SCALES) {
        s = fmaf(blk->dw * da, (float)lower, s);
        return fmaf(blk->dw1 * da, (float)upper, s);
    }
    s = fmaf(blk->dw * da, (float)(lower + upper), s);
    if (kind == MINIMUMS) {
        int32_t qsum = blk->mn[0] * x->s[b * 2] + blk->mn[1] * x->s[b * 2 + 1];
        s = fmaf(-blk->mw, da * (float)qsum, s);
    }
    return s;
}

REF_INLINE float ref_dot(ref_read_fn *read, enum ref_kind kind, const void *row, int n, const struct pf_xrow *x)
{
    enum { SEGMENT = 8 };
    float total = 0;
    for (int b0 = 0; b0 < n / 32; b0 += SEGMENT) {
        float s = 0;
        for (int b = b0; b < b0 + SEGMENT && b < n / 32; b++) {
            struct ref_block blk = ref_get(read, row, b);
            s = ref_add_block(&blk, kind, x, b, s);
        }
        total += s;
    }
    return total;
}

#define REF_ROWS(dot_expression)                                        \
    for (int r = 0; r < n_rows; r++)                                    \
        for (int j = 0; j < n_x; j++) {                                 \
            const void *row = (const uint8_t *)w + (size_t)r * row_bytes; \
            y[(size_t)j * y_stride + (size_t)r] = dot_expression;       \
        }

/* The two table entries of a type whose blocks read_TYPE reads. */
#define REF_TYPE(TYPE, kind)                                                                                       \
    void pf_ref_dequant_##TYPE(const void *row, int n, float *out)                                                 \
    {                                                                                                              \
        ref_dequant(read_##TYPE, kind, row, n, out);                                                               \
    }                                                                                                              \
    void pf_ref_mul_##TYPE(const void *w, size_t row_bytes, int n_rows, int n, const struct pf_xrow *x, int n_x,   \
                           float *y, size_t y_stride, const void *next)                                            \
    {                                                                                                              \
        (void)next;                                                                                                \
        REF_ROWS(ref_dot(read_##TYPE, kind, row, n, &x[j]))                                                        \
    }

/* Every weight type: id without PF_. */
#define REF_TYPE_LIST(X)                                                                               \
    X(F32) X(F16) X(BF16) X(Q4_0) X(Q4_1) X(Q5_0) X(Q5_1) X(Q8_0) X(Q2_K) X(Q3_K) X(Q4_K) X(Q5_K)      \
    X(Q6_K) X(IQ2_XXS) X(IQ2_XS) X(IQ2_S) X(IQ3_XXS) X(IQ3_S) X(IQ1_S) X(IQ1_M) X(IQ4_NL) X(IQ4_XS)    \
    X(TQ1_0) X(TQ2_0) X(MXFP4) X(NVFP4) X(Q1_0) X(Q2_0)

#define X(TYPE) pf_dequant_fn pf_ref_dequant_##TYPE; pf_mul_fn pf_ref_mul_##TYPE;
REF_TYPE_LIST(X)
#undef X

pf_rotate_fn pf_ref_rotate;
pf_to_i16_fn pf_ref_to_i16;
pf_attn_i16_fn pf_ref_attn_i16;
pf_attn_latent_fn pf_ref_attn_latent;
pf_attn_fold_fn pf_ref_attn_fold;

#endif
