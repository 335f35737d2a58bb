/* Attention in whole numbers with VNNI: one chunk against up to 64 queries, a block of 64 positions at a time, vectors
 * as pf_i16.h lays them out.
 *
 *     scores   tiles of QT queries times vectors of 16 keys      -> C [query][64], keys in the order of their words
 *     weigh    each query: C to weights, in planes of bytes      -> W [query][plane][64], in the order of values' words
 *     values   tiles of QT queries times vectors of 16 elements  -> acc
 *
 * dpbusd multiplies unsigned bytes by signed ones: keys get 128 added, which 128 times the sum of the query's bytes
 * takes back; weights are unsigned already. */
#ifndef PF_ATTN_VNNI_H
#define PF_ATTN_VNNI_H

#include "kernels/x86/attn_sums.h"

/* In the caller's scratch. */
struct attn_vnni {
    int32_t c[PF_ATTN_I16_QUERIES][PF_I16_BLOCK];
    uint8_t w[PF_ATTN_I16_QUERIES][2][PF_I16_BLOCK];
    struct attn_sums sums;
    int32_t less[PF_ATTN_I16_QUERIES][2];    /* 128 times the sum of the query's upper bytes; of both planes */
};
_Static_assert(sizeof(struct attn_vnni) <= PF_ATTN_I16_SCRATCH, "fits the scratch");

ATTN_INLINE __m512i attn_word(const void *p)
{
    int32_t w;
    memcpy(&w, p, sizeof w);
    return _mm512_set1_epi32(w);
}

/* ---- Scores ---------------------------------------------------------------------------------------------------- */

/* n_q queries from number i times n_v vectors of keys from number v. */
ATTN_INLINE void attn_scores_tile(const struct pf_attn_i16_args *a, struct attn_vnni *s, const int8_t *k,
                                  struct attn_ahead *ahead, int i, const int n_q, int v, const int n_v)
{
    const __m512i bias = _mm512_set1_epi8(-128);
    size_t hd = (size_t)a->hd_k;
    const int8_t *q = a->q + (size_t)i * 2 * hd, *at = k + (size_t)v * (hd / 4) * ATTN_VECTOR;
    __m512i upper[ATTN_QT][4], middle[ATTN_QT][4];
    for (int j = 0; j < n_q; j++)
        for (int u = 0; u < n_v; u++) {
            upper[j][u] = _mm512_set1_epi32(-s->less[i + j][0]);
            middle[j][u] = _mm512_set1_epi32(-s->less[i + j][1]);
        }
    const int8_t *fetch = ahead->k;
    for (size_t e = 0; e < hd; e += 4) {
        __m512i kh[4], kl[4];
        for (int u = 0; u < n_v; u++) {
            const int8_t *word = at + ((size_t)u * (hd / 4) + e / 4) * ATTN_VECTOR;
            attn_fetch(&fetch, ahead->step);
            kh[u] = _mm512_xor_si512(_mm512_loadu_si512(word), bias);
            kl[u] = _mm512_xor_si512(_mm512_loadu_si512(word + PF_I16_PLANE), bias);
        }
        for (int j = 0; j < n_q; j++) {
            __m512i qh = attn_word(q + (size_t)j * 2 * hd + e), ql = attn_word(q + (size_t)j * 2 * hd + hd + e);
            for (int u = 0; u < n_v; u++) {
                upper[j][u] = _mm512_dpbusd_epi32(upper[j][u], kh[u], qh);
                middle[j][u] = _mm512_dpbusd_epi32(middle[j][u], kl[u], qh);
                middle[j][u] = _mm512_dpbusd_epi32(middle[j][u], kh[u], ql);
            }
        }
    }
    for (int j = 0; j < n_q; j++)
        for (int u = 0; u < n_v; u++)
            _mm512_storeu_si512(s->c[i + j] + (v + u) * 16,
                                _mm512_add_epi32(_mm512_slli_epi32(upper[j][u], 8), middle[j][u]));
    ahead->k = fetch;
}

static void attn_scores_four(const struct pf_attn_i16_args *a, struct attn_vnni *s, const int8_t *k,
                             struct attn_ahead *ahead, int i)
{
    for (int v = 0; v < 4; v += 2)
        attn_scores_tile(a, s, k, ahead, i, ATTN_QT, v, 2);
}

static void attn_scores_one(const struct pf_attn_i16_args *a, struct attn_vnni *s, const int8_t *k,
                            struct attn_ahead *ahead, int i)
{
    attn_scores_tile(a, s, k, ahead, i, 1, 0, 4);
}

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
ATTN_INLINE void attn_weights(struct attn_sums *s, int i, __m512 y[4], uint64_t seen, const float *rsv, __m512i w[4])
{
    float mc = attn_top(y, seen);
    attn_enter(s, i, mc, attn_weights_below(mc, y, seen, rsv, w));
}

/* fmaf((float)c * scale, factor, y) for 16 positions. */
ATTN_INLINE __m512 attn_y(__m512i c, const float *scale, float factor, __m512 y)
{
    return _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(c), _mm512_loadu_ps(scale)), _mm512_set1_ps(factor), y);
}

/* The y of all positions, whose power of two is a weight, from query i's scores in the order of keys' words. */
ATTN_INLINE void attn_ys(const struct pf_attn_i16_args *a, const int8_t *k, int i, const __m512i c[4], __m512 y[4])
{
    const float *sk = (const float *)(const void *)(k + pf_i16_sk(a->hd_k)), *lsv = sk + PF_I16_BLOCK;
    __m512i x[4];
    attn_in_order(c[0], c[1], x);
    attn_in_order(c[2], c[3], x + 2);
    for (int j = 0; j < 4; j++)
        y[j] = attn_y(x[j], sk + 16 * j, a->cq[i], _mm512_loadu_ps(lsv + 16 * j));
}

/* The weights of query i, which sees some positions, those of `span`. */
static void attn_weigh(const struct pf_attn_i16_args *a, struct attn_vnni *s, const int8_t *k, const int8_t *v, int i,
                       struct attn_span span)
{
    __m512 y[4];
    __m512i c[4], w[4];
    for (int u = 0; u < 4; u++)
        c[u] = _mm512_loadu_si512(s->c[i] + 16 * u);
    attn_ys(a, k, i, c, y);
    attn_weights(&s->sums, i, y, attn_bits(span), (const float *)(const void *)(v + pf_i16_rsv(a->hd_v)), w);
    attn_planes(w, s->w[i][0], s->w[i][1]);
}

/* ---- Values ---------------------------------------------------------------------------------------------------- */

/* n_v vectors of 16 elements from element e on, for n_q queries from number i. */
ATTN_INLINE void attn_values_tile(const struct pf_attn_i16_args *a, const struct attn_vnni *s, const int8_t *v,
                                  struct attn_ahead *ahead, int i, const int n_q, int e, const int n_v)
{
    size_t hd = (size_t)a->hd_v;
    __m512i upper[ATTN_QT][4], middle[ATTN_QT][4];
    for (int j = 0; j < n_q; j++)
        for (int u = 0; u < n_v; u++)
            upper[j][u] = middle[j][u] = _mm512_setzero_si512();
    const int8_t *fetch = ahead->v;
    for (size_t p = 0; p < PF_I16_BLOCK; p += 4) {
        const int8_t *at = v + (p / 4 * (hd / 16) + (size_t)e / 16) * ATTN_VECTOR;
        __m512i vh[4], vl[4];
        for (int u = 0; u < n_v; u++) {
            attn_fetch(&fetch, ahead->step);
            vh[u] = _mm512_loadu_si512(at + u * ATTN_VECTOR);
            vl[u] = _mm512_loadu_si512(at + u * ATTN_VECTOR + PF_I16_PLANE);
        }
        for (int j = 0; j < n_q; j++) {
            __m512i wh = attn_word(s->w[i + j][0] + p), wl = attn_word(s->w[i + j][1] + p);
            for (int u = 0; u < n_v; u++) {
                upper[j][u] = _mm512_dpbusd_epi32(upper[j][u], wh, vh[u]);
                middle[j][u] = _mm512_dpbusd_epi32(middle[j][u], wh, vl[u]);
                middle[j][u] = _mm512_dpbusd_epi32(middle[j][u], wl, vh[u]);
            }
        }
    }
    for (int j = 0; j < n_q; j++)
        for (int u = 0; u < n_v; u++) {
            float *acc = a->part + (size_t)(i + j) * a->part_stride + e + 16 * u;
            __m512i sum = _mm512_add_epi32(_mm512_slli_epi32(upper[j][u], 8), middle[j][u]);
            __m512 before = _mm512_mul_ps(_mm512_loadu_ps(acc), _mm512_set1_ps(s->sums.old[i + j]));
            __m512 gain = _mm512_set1_ps(s->sums.gain[i + j]);
            _mm512_storeu_ps(acc, _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), gain, before));
        }
    ahead->v = fetch;
}

static void attn_values_four(const struct pf_attn_i16_args *a, const struct attn_vnni *s, const int8_t *v,
                             struct attn_ahead *ahead, int i)
{
    for (int e = 0; e < a->hd_v; e += 32)
        attn_values_tile(a, s, v, ahead, i, ATTN_QT, e, 2);
}

static void attn_values_one(const struct pf_attn_i16_args *a, const struct attn_vnni *s, const int8_t *v,
                            struct attn_ahead *ahead, int i)
{
    int e = 0;
    for (; e + 64 <= a->hd_v; e += 64)
        attn_values_tile(a, s, v, ahead, i, 1, e, 4);
    for (; e < a->hd_v; e += 32)
        attn_values_tile(a, s, v, ahead, i, 1, e, 2);
}

/* ---- A chunk --------------------------------------------------------------------------------------------------- */

/* What 128 too much in every key adds to the sums, of planes [2][n] of a query. */
ATTN_INLINE void attn_sum_query(const int8_t *q, int n, int32_t less[2])
{
    int upper = 0, lower = 0;
    for (int e = 0; e < n; e++) {
        upper += q[e];
        lower += q[n + e];
    }
    less[0] = 128 * upper;
    less[1] = 128 * (upper + lower);
}

static void attn_block(const struct pf_attn_i16_args *a, struct attn_vnni *s, int at)
{
    const int8_t *k = (const int8_t *)a->k + pf_i16_key_block(a->hd_k, at);
    const int8_t *v = (const int8_t *)a->v + pf_i16_value_block(a->hd_v, at);
    struct attn_ahead ahead = attn_ahead(a, at);
    for (int i = 0, n; i < a->n_q; i += n) {
        struct attn_span seen[ATTN_QT];
        bool any = false;
        n = a->n_q - i >= ATTN_QT ? ATTN_QT : 1;
        for (int j = 0; j < n; j++) {
            seen[j] = attn_seen(a, i + j, at);
            any |= seen[j].lo < seen[j].hi;
        }
        if (!any)
            continue;
        (n == 1 ? attn_scores_one : attn_scores_four)(a, s, k, &ahead, i);
        for (int j = 0; j < n; j++)
            if (seen[j].lo < seen[j].hi) {
                attn_weigh(a, s, k, v, i + j, seen[j]);
            } else {
                memset(s->w[i + j], 0, sizeof s->w[i + j]);
                attn_skip(&s->sums, i + j);
            }
        (n == 1 ? attn_values_one : attn_values_four)(a, s, v, &ahead, i);
        attn_fetched(&ahead, i);
    }
}

static void attn_i16_vnni(const struct pf_attn_i16_args *a)
{
    struct attn_vnni *s = a->scratch;
    for (int i = 0; i < a->n_q; i++) {
        attn_begin(a, &s->sums, i);
        attn_sum_query(a->q + (size_t)i * 2 * (size_t)a->hd_k, a->hd_k, s->less[i]);
    }
    for (int at = 0; at < PF_I16_CHUNK; at += PF_I16_BLOCK)
        attn_block(a, s, at);
    for (int i = 0; i < a->n_q; i++)
        attn_end(a, &s->sums, i);
}

#endif
