/* Attention in whole numbers, eight positions at a time: the weights of a query in a block, for attn_pairs.h too, whose
 * products may be of wider vectors; and what else attn_vnni.h and attn_latent_vnni.h leave to the width of vectors, of
 * 256 bits here. Include after a lanes header. AVX2 and FMA. */
#ifndef PF_ATTN_BY_8_H
#define PF_ATTN_BY_8_H

#include "kernels/x86/attn_sums.h"

enum { ATTN_EIGHTS = PF_I16_BLOCK / 8 };

/* ---- Weights --------------------------------------------------------------------------------------------------- */

ATTN_INLINE __m256 attn_exp2(__m256 x)
{
    const __m256 shift = _mm256_set1_ps(0x1.8p23f);
    x = _mm256_max_ps(x, _mm256_set1_ps(-125.0f));
    __m256 t = _mm256_add_ps(x, shift), r = _mm256_sub_ps(x, _mm256_sub_ps(t, shift));
    __m256 p = _mm256_set1_ps(0x1.5c08e6p-10f);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.3d0c52p-7f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.c6b6e6p-5f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.ebf918p-3f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.62e428p-1f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    __m256i y = _mm256_add_epi32(_mm256_slli_epi32(_mm256_castps_si256(t), 23), _mm256_castps_si256(p));
    return _mm256_castsi256_ps(y);
}

ATTN_INLINE float attn_max(__m256 x)
{
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

/* Words of keys to positions: the scores of 32 positions. Word 4 a + i of vector h is position 8 i + 4 h + a. */
ATTN_INLINE void attn_in_order(const int32_t *c, __m256i out[4])
{
    __m256i x[4];
    for (int a = 0; a < 4; a++)
        x[a] = _mm256_inserti128_si256(
            _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)(c + 4 * a))),
            _mm_loadu_si128((const __m128i *)(const void *)(c + 16 + 4 * a)), 1);
    __m256i p = _mm256_unpacklo_epi32(x[0], x[1]), q = _mm256_unpacklo_epi32(x[2], x[3]);
    __m256i r = _mm256_unpackhi_epi32(x[0], x[1]), s = _mm256_unpackhi_epi32(x[2], x[3]);
    out[0] = _mm256_unpacklo_epi64(p, q);
    out[1] = _mm256_unpackhi_epi64(p, q);
    out[2] = _mm256_unpacklo_epi64(r, s);
    out[3] = _mm256_unpackhi_epi64(r, s);
}

/* All ones for the positions of `seen` among eight from p on. */
ATTN_INLINE __m256 attn_mask(struct attn_span seen, int p)
{
    __m256i at = _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(p));
    __m256i from = _mm256_cmpgt_epi32(at, _mm256_set1_epi32(seen.lo - 1));
    return _mm256_castsi256_ps(_mm256_and_si256(from, _mm256_cmpgt_epi32(_mm256_set1_epi32(seen.hi), at)));
}

/* fmaf((float)c * scale, factor, y) for 8 positions. */
ATTN_INLINE __m256 attn_y(__m256i c, const float *scale, float factor, __m256 y)
{
    return _mm256_fmadd_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(c), _mm256_loadu_ps(scale)), _mm256_set1_ps(factor), y);
}

/* The y of all positions, whose power of two is a weight, from query i's scores in the order of keys' words. */
ATTN_INLINE void attn_ys(const struct pf_attn_i16_args *a, const int8_t *k, int i, const int32_t *c,
                         __m256 y[ATTN_EIGHTS])
{
    const float *sk = (const float *)(const void *)(k + pf_i16_sk(a->hd_k)), *lsv = sk + PF_I16_BLOCK;
    __m256i x[ATTN_EIGHTS];
    attn_in_order(c, x);
    attn_in_order(c + 32, x + 4);
    for (int j = 0; j < ATTN_EIGHTS; j++)
        y[j] = attn_y(x[j], sk + 8 * j, a->cq[i], _mm256_loadu_ps(lsv + 8 * j));
}

/* 64 weights of 16 bits of query i, which sees some positions, those of `seen`, from all positions' y. */
ATTN_INLINE void attn_weights(struct attn_sums *s, int i, __m256 y[ATTN_EIGHTS], struct attn_span seen,
                              const float *rsv, __m256i w[ATTN_EIGHTS])
{
    __m256 top = _mm256_set1_ps(-INFINITY), zc = _mm256_setzero_ps();
    for (int j = 0; j < ATTN_EIGHTS; j++) {
        y[j] = _mm256_blendv_ps(_mm256_set1_ps(-INFINITY), y[j], attn_mask(seen, 8 * j));
        top = _mm256_max_ps(top, y[j]);
    }
    float mc = attn_max(top);
    for (int j = 0; j < ATTN_EIGHTS; j++) {
        __m256 mask = attn_mask(seen, 8 * j);
        __m256 e = _mm256_and_ps(attn_exp2(_mm256_sub_ps(y[j], _mm256_set1_ps(mc))), mask);
        zc = _mm256_fmadd_ps(e, _mm256_and_ps(_mm256_loadu_ps(rsv + 8 * j), mask), zc);
        w[j] = _mm256_castps_si256(_mm256_fmadd_ps(e, _mm256_set1_ps(PF_I16_WEIGHT), _mm256_set1_ps(0x1p23f)));
        w[j] = _mm256_and_si256(w[j], _mm256_set1_epi32(0xffff));
    }
    attn_enter(s, i, mc, zc);
}

/* ---- Bytes ----------------------------------------------------------------------------------------------------- */

/* 16 weights as int16: the first half has those of positions 0 to 3 and 8 to 11, the other one the rest. */
ATTN_INLINE __m256i attn_sixteen(const __m256i w[2])
{
    return _mm256_packus_epi32(w[0], w[1]);
}

/* Upper and lower bytes of two vectors of int16, 8 bytes of each in turn. */
ATTN_INLINE void attn_split(__m256i x, __m256i y, __m256i *upper, __m256i *lower)
{
    const __m256i low = _mm256_set1_epi16(255);
    *upper = _mm256_packus_epi16(_mm256_srli_epi16(x, 8), _mm256_srli_epi16(y, 8));
    *lower = _mm256_packus_epi16(_mm256_and_si256(x, low), _mm256_and_si256(y, low));
}

ATTN_INLINE void attn_put(uint8_t *to, __m256i bytes)
{
    _mm256_storeu_si256((__m256i *)(void *)to, bytes);
}

/* 64 weights, in the order of positions, to planes in the order of the values' words: 0, 1, 8, 9 and so on. */
ATTN_INLINE void attn_planes(const __m256i w[ATTN_EIGHTS], uint8_t *uppers, uint8_t *lowers)
{
    for (int p = 0; p < PF_I16_BLOCK; p += 32) {
        __m256i upper, lower, x = attn_sixteen(w + p / 8), y = attn_sixteen(w + p / 8 + 2);
        attn_split(_mm256_shuffle_epi32(x, 0xd8), _mm256_shuffle_epi32(y, 0xd8), &upper, &lower);
        attn_put(uppers + p, _mm256_permute4x64_epi64(upper, 0xd8));
        attn_put(lowers + p, _mm256_permute4x64_epi64(lower, 0xd8));
    }
}

/* ---- A latent -------------------------------------------------------------------------------------------------- */

/* attn_planes in the order of positions. */
ATTN_INLINE void latent_planes(const __m256i w[ATTN_EIGHTS], uint8_t *uppers, uint8_t *lowers)
{
    const __m256i fours = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    for (int p = 0; p < PF_I16_BLOCK; p += 32) {
        __m256i upper, lower;
        attn_split(attn_sixteen(w + p / 8), attn_sixteen(w + p / 8 + 2), &upper, &lower);
        attn_put(uppers + p, _mm256_permutevar8x32_epi32(upper, fours));
        attn_put(lowers + p, _mm256_permutevar8x32_epi32(lower, fours));
    }
}

/* 16 positions of 16 elements, one plane: words at `from` become four vectors of 64 bytes, `step` bytes apart. */
ATTN_INLINE void latent_transpose(const int8_t *from, int8_t *to, size_t step)
{
    const __m256i bytes =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    for (int g = 0; g < 4; g++)
        for (int h = 0; h < 2; h++) {
            const int8_t *word = from + 2 * h * LATENT_WORDS + 16 * g;
            __m128i x = _mm_loadu_si128((const __m128i *)(const void *)word);
            __m128i y = _mm_loadu_si128((const __m128i *)(const void *)(word + LATENT_WORDS));
            attn_put((uint8_t *)to + (size_t)g * step + 32 * h, _mm256_shuffle_epi8(_mm256_set_m128i(y, x), bytes));
        }
}

#endif
