/* Attention in whole numbers, sixteen positions at a time: what attn_vnni.h and attn_latent_vnni.h leave to the width
 * of vectors, of 512 bits here. Include after avx512_lanes.h; attn_by_8.h has the same names. AVX-512 F, BW, DQ, VL. */
#ifndef PF_ATTN_BY_16_H
#define PF_ATTN_BY_16_H

#include "kernels/x86/attn_sums.h"

/* ---- Weights --------------------------------------------------------------------------------------------------- */

ATTN_INLINE __m512 attn_exp2(__m512 x)
{
    const __m512 shift = _mm512_set1_ps(0x1.8p23f);
    x = _mm512_max_ps(x, _mm512_set1_ps(-125.0f));
    __m512 t = _mm512_add_ps(x, shift), r = _mm512_sub_ps(x, _mm512_sub_ps(t, shift));
    __m512 p = _mm512_set1_ps(0x1.5c08e6p-10f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0x1.3d0c52p-7f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0x1.c6b6e6p-5f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0x1.ebf918p-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0x1.62e428p-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    __m512i y = _mm512_add_epi32(_mm512_slli_epi32(_mm512_castps_si512(t), 23), _mm512_castps_si512(p));
    return _mm512_castsi512_ps(y);
}

/* Words of keys to positions: the scores of 32 positions, in two vectors. */
ATTN_INLINE void attn_in_order(__m512i x, __m512i y, __m512i out[2])
{
    const __m512i first = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);
    out[0] = _mm512_permutex2var_epi32(x, first, y);
    out[1] = _mm512_permutex2var_epi32(x, _mm512_add_epi32(first, _mm512_set1_epi32(2)), y);
}

/* 64 weights of 16 bits, in the order of positions, to planes in the order of the values' words. */
ATTN_INLINE void attn_planes(const __m512i w[4], uint8_t *uppers, uint8_t *lowers)
{
    const __m512i lanes = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i words = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15));
    __m512i x = _mm512_packus_epi32(w[0], w[1]), y = _mm512_packus_epi32(w[2], w[3]);
    __m512i upper = _mm512_packus_epi16(_mm512_srli_epi16(x, 8), _mm512_srli_epi16(y, 8));
    const __m512i low = _mm512_set1_epi16(255);
    __m512i lower = _mm512_packus_epi16(_mm512_and_si512(x, low), _mm512_and_si512(y, low));
    _mm512_storeu_si512(uppers, _mm512_shuffle_epi8(_mm512_permutexvar_epi32(lanes, upper), words));
    _mm512_storeu_si512(lowers, _mm512_shuffle_epi8(_mm512_permutexvar_epi32(lanes, lower), words));
}

/* The positions of a span, by bits. */
ATTN_INLINE uint64_t attn_bits(struct attn_span span)
{
    return ~(uint64_t)0 >> (PF_I16_BLOCK - (span.hi - span.lo)) << span.lo;
}

/* The largest of 64 positions' y, of which what is not seen becomes -inf. */
ATTN_INLINE float attn_top(__m512 y[4], uint64_t seen)
{
    __m512 top = _mm512_set1_ps(-INFINITY);
    for (int j = 0; j < 4; j++) {
        y[j] = _mm512_mask_mov_ps(_mm512_set1_ps(-INFINITY), (__mmask16)(seen >> 16 * j), y[j]);
        top = _mm512_max_ps(top, y[j]);
    }
    return _mm512_reduce_max_ps(top);
}

/* 64 weights of 16 bits, relative to mc, the largest y of what is seen; their sums. */
ATTN_INLINE __m256 attn_weights_below(float mc, const __m512 y[4], uint64_t seen, const float *rsv, __m512i w[4])
{
    __m256 z = _mm256_setzero_ps();
    for (int j = 0; j < 4; j++) {
        __mmask16 mask = (__mmask16)(seen >> 16 * j);
        __m512 e = _mm512_maskz_mov_ps(mask, attn_exp2(_mm512_sub_ps(y[j], _mm512_set1_ps(mc))));
        __m512 r = _mm512_maskz_loadu_ps(mask, rsv + 16 * j);
        z = _mm256_fmadd_ps(_mm512_castps512_ps256(e), _mm512_castps512_ps256(r), z);
        z = _mm256_fmadd_ps(_mm512_extractf32x8_ps(e, 1), _mm512_extractf32x8_ps(r, 1), z);
        w[j] = _mm512_castps_si512(_mm512_fmadd_ps(e, _mm512_set1_ps(PF_I16_WEIGHT), _mm512_set1_ps(0x1p23f)));
        w[j] = _mm512_and_si512(w[j], _mm512_set1_epi32(0xffff));
    }
    return z;
}

/* 64 weights of 16 bits of query i, which sees some positions, from all positions' y. */
ATTN_INLINE void attn_weights(struct attn_sums *s, int i, __m512 y[4], struct attn_span seen, const float *rsv,
                              __m512i w[4])
{
    float mc = attn_top(y, attn_bits(seen));
    attn_enter(s, i, mc, attn_weights_below(mc, y, attn_bits(seen), rsv, w));
}

/* fmaf((float)c * scale, factor, y) for 16 positions. */
ATTN_INLINE __m512 attn_y(__m512i c, const float *scale, float factor, __m512 y)
{
    return _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(c), _mm512_loadu_ps(scale)), _mm512_set1_ps(factor), y);
}

/* The y of all positions, whose power of two is a weight, from query i's scores in the order of keys' words. */
ATTN_INLINE void attn_ys_of(const struct pf_attn_i16_args *a, const int8_t *k, int i, const __m512i c[4], __m512 y[4])
{
    const float *sk = (const float *)(const void *)(k + pf_i16_sk(a->hd_k)), *lsv = sk + PF_I16_BLOCK;
    __m512i x[4];
    attn_in_order(c[0], c[1], x);
    attn_in_order(c[2], c[3], x + 2);
    for (int j = 0; j < 4; j++)
        y[j] = attn_y(x[j], sk + 16 * j, a->cq[i], _mm512_loadu_ps(lsv + 16 * j));
}

ATTN_INLINE void attn_ys(const struct pf_attn_i16_args *a, const int8_t *k, int i, const int32_t *scores, __m512 y[4])
{
    __m512i c[4];
    for (int u = 0; u < 4; u++)
        c[u] = _mm512_loadu_si512(scores + 16 * u);
    attn_ys_of(a, k, i, c, y);
}

/* ---- A latent -------------------------------------------------------------------------------------------------- */

/* attn_planes in the order of positions. */
ATTN_INLINE void latent_planes(const __m512i w[4], uint8_t *uppers, uint8_t *lowers)
{
    for (int j = 0; j < 4; j++) {
        __m128i upper = _mm512_cvtepi32_epi8(_mm512_srli_epi32(w[j], 8)), lower = _mm512_cvtepi32_epi8(w[j]);
        _mm_storeu_si128((__m128i *)(void *)(uppers + 16 * j), upper);
        _mm_storeu_si128((__m128i *)(void *)(lowers + 16 * j), lower);
    }
}

/* 16 positions of 16 elements, one plane: words at `from` become four vectors, `step` bytes apart. */
ATTN_INLINE void latent_transpose(const int8_t *from, int8_t *to, size_t step)
{
    const __m512i bytes = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    __m512i x[4], out[4];
    for (int i = 0; i < 4; i++)
        x[i] = _mm512_loadu_si512(from + i * LATENT_WORDS);
    __m512i a = _mm512_shuffle_i32x4(x[0], x[1], 0x44), b = _mm512_shuffle_i32x4(x[0], x[1], 0xee);
    __m512i c = _mm512_shuffle_i32x4(x[2], x[3], 0x44), d = _mm512_shuffle_i32x4(x[2], x[3], 0xee);
    out[0] = _mm512_shuffle_i32x4(a, c, 0x88);
    out[1] = _mm512_shuffle_i32x4(a, c, 0xdd);
    out[2] = _mm512_shuffle_i32x4(b, d, 0x88);
    out[3] = _mm512_shuffle_i32x4(b, d, 0xdd);
    for (size_t g = 0; g < 4; g++)
        _mm512_store_si512(to + g * step, _mm512_shuffle_epi8(out[g], bytes));
}

#endif
