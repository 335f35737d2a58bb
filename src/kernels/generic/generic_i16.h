/* Attention in whole numbers, its float parts: rows to numbers, and partials into the whole. kernels.h holds the
 * contracts, ref/ref_attention.c the definition. */
#ifndef PF_GENERIC_I16_H
#define PF_GENERIC_I16_H

#include "base/pf_i16.h"
#include "kernels/generic/generic_ops.h"

/* One step of a rotation inside a vector: lanes with bit h get their neighbour less themselves, the others the sum. */
static inline __attribute__((always_inline)) vec turn(vec v, int h)
{
    typedef uint32_t words __attribute__((vector_size(sizeof(vec))));
    words sign;
    for (int i = 0; i < VEC; i++)
        sign[i] = i & h ? 0x80000000u : 0;
    return vec_swap(v, h) + (vec)((words)v ^ sign);
}

/* Pieces are whole blocks of PF_LANES, so of vectors, too. */
static void op_rotate(float *restrict x, int n, int piece)
{
    vec norm = vec_all(pf_i16_norm(piece));
    for (int i = 0; i < n; i += VEC) {
        vec v = vec_load(x + i);
#pragma GCC unroll 4
        for (int h = 1; h < VEC; h *= 2)
            v = turn(v, h);
        vec_store(x + i, v);
    }
    for (int h = VEC; h < piece; h *= 2)
        for (int i = 0; i < n; i += 2 * h)
            for (int j = i; j < i + h; j += VEC) {
                vec a = vec_load(x + j), b = vec_load(x + j + h);
                vec_store(x + j, a + b);
                vec_store(x + j + h, a - b);
            }
    for (int i = 0; i < n; i += VEC)
        vec_store(x + i, vec_load(x + i) * norm);
}

/* Largest |x| as bits: see amax_bits. */
static inline uint32_t row_amax_bits(const float *restrict x, int n)
{
    int32_t m[PF_LANES] = { 0 }, top = 0;
    for (int i = 0; i < n; i += PF_LANES)
        for (int j = 0; j < PF_LANES; j++) {
            int32_t bits = (int32_t)(pf_float_bits(x[i + j]) & 0x7fffffffu);
            m[j] = bits > m[j] ? bits : m[j];
        }
    for (int j = 0; j < PF_LANES; j++)
        top = m[j] > top ? m[j] : top;
    return (uint32_t)top;
}

static float op_to_i16(const float *restrict x, int n, int8_t *restrict planes)
{
    uint32_t most = row_amax_bits(x, n);
    if (most > pf_float_bits(PF_I16_MOST)) {
        memset(planes, 0, 2 * (size_t)n);
        return 0;
    }
    float amax = pf_bits_float(most), a = amax > PF_I16_LEAST ? amax : PF_I16_LEAST, inv = (float)PF_I16_TOP / a;
    for (int i = 0; i < n; i += PF_LANES) {
        int number[PF_LANES];
        for (int j = 0; j < PF_LANES; j++)
            number[j] = pf_i16_number(x[i + j], inv);
        for (int j = 0; j < PF_LANES; j++)
            planes[i + j] = (int8_t)pf_i16_upper(number[j]);
        for (int j = 0; j < PF_LANES; j++)
            planes[n + i + j] = (int8_t)pf_i16_lower(number[j]);
    }
    return a / (float)PF_I16_TOP;
}

static void op_attn_fold(float *restrict total, const float *restrict part, int hd)
{
    float m = total[hd] > part[hd] ? total[hd] : part[hd];
    float old = pf_exp2_neg(total[hd] - m), fresh = pf_exp2_neg(part[hd] - m);
    for (int e = 0; e < hd; e++)
        total[e] = __builtin_fmaf(part[e], fresh, total[e] * old);
    total[hd + 1] = __builtin_fmaf(total[hd + 1], old, part[hd + 1] * fresh);
    total[hd] = m;
}

#endif
