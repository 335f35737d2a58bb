/* Attention in whole numbers with AVX2: one chunk against up to 64 queries, a block of 64 positions at a time. Tiles
 * and steps are those of attn_vnni.h; products are of pairs of int16 (pmaddwd), two for the three of planes:
 *
 *     scores   256 qh kh + qh kl + ql kh  =  q * kh + qh * kl            q, w, v: the number of 16 bits
 *     values   256 wh vh + wh vl + wl vh  =  wh * v + wl * vh
 *
 * Bytes become int16 once for all queries, or, for a single one, on the way:
 *
 *     keys     [8 eights of words][hd / 2 pairs of elements][kh, kl][8] pairs
 *     values   [hd / 8 eights of elements][32 pairs of positions][v, vh][8] pairs */
#ifndef PF_ATTN_AVX2_H
#define PF_ATTN_AVX2_H

#include "kernels/x86/attn_sums.h"

enum { ATTN_EIGHTS = PF_I16_BLOCK / 8, ATTN_PAIRS = PF_I16_BLOCK / 2 };

struct attn_avx2 {
    int16_t pairs[PF_I16_BLOCK * 2 * PF_I16_HEAD_MAX];               /* of keys, then of values */
    int32_t c[PF_ATTN_I16_QUERIES][PF_I16_BLOCK];
    int16_t w[PF_ATTN_I16_QUERIES][2][PF_I16_BLOCK];                 /* wh, wl, in the order of positions */
    struct attn_sums sums;
};
_Static_assert(sizeof(struct attn_avx2) <= PF_ATTN_I16_SCRATCH, "fits the scratch");

ATTN_INLINE __m256i attn_pair(const void *p)
{
    int32_t w;
    memcpy(&w, p, sizeof w);
    return _mm256_set1_epi32(w);
}

ATTN_INLINE __m256i attn_load(const void *p)
{
    return _mm256_loadu_si256(p);
}

/* Bytes 0 and 1 of each word, or 2 and 3, as the upper bytes of a pair of int16; as the lower ones. */
ATTN_INLINE __m256i attn_uppers(__m256i x, int pair)
{
    const __m128i first = _mm_setr_epi8(-1, 0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13);
    const __m128i second = _mm_setr_epi8(-1, 2, -1, 3, -1, 6, -1, 7, -1, 10, -1, 11, -1, 14, -1, 15);
    return _mm256_shuffle_epi8(x, _mm256_broadcastsi128_si256(pair ? second : first));
}

/* ---- Scores ---------------------------------------------------------------------------------------------------- */

/* Pairs of the eight words at `word`: kh, kl of elements e, e + 1, then of e + 2, e + 3. */
ATTN_INLINE void attn_key_pairs(const int8_t *word, __m256i out[4])
{
    __m256i h = attn_load(word), l = attn_load(word + PF_I16_PLANE);
    for (int pair = 0; pair < 2; pair++) {
        out[2 * pair] = _mm256_srai_epi16(attn_uppers(h, pair), 8);
        out[2 * pair + 1] = _mm256_srai_epi16(attn_uppers(l, pair), 8);
    }
}

/* Where eight number u of the words of element e begins. */
ATTN_INLINE const int8_t *attn_keys_at(const int8_t *k, int hd, int u, int e)
{
    return k + ((size_t)(u / 2) * (size_t)(hd / 4) + (size_t)(e / 4)) * ATTN_VECTOR + u % 2 * 32;
}

/* The line that the words at `at`, relative to their block, have in the block that comes next: of the upper plane for
 * the first eight of a vector, of the lower one for the others. */
ATTN_INLINE void attn_fetch_words(const int8_t *next, ptrdiff_t at)
{
    if (next)
        attn_fetch_line(next + at + at % PF_I16_PLANE);
}

static void attn_expand_keys(struct attn_avx2 *s, const int8_t *k, const int8_t *next, int hd)
{
    for (int u = 0; u < ATTN_EIGHTS; u++)
        for (int e = 0; e < hd; e += 4) {
            __m256i pairs[4];
            attn_fetch_words(next, attn_keys_at(k, hd, u, e) - k);
            int16_t *to = s->pairs + ((size_t)u * (size_t)hd + (size_t)e) * 16;
            attn_key_pairs(attn_keys_at(k, hd, u, e), pairs);
            for (int i = 0; i < 4; i++)
                _mm256_storeu_si256((__m256i *)(void *)(to + 16 * i), pairs[i]);
        }
}

/* Numbers and upper bytes of a query, as int16. */
static void attn_expand_query(const int8_t *q, int hd, int16_t *number, int16_t *upper)
{
    for (int e = 0; e < hd; e += 16) {
        __m256i h = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)(q + e)));
        __m256i l = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)(q + hd + e)));
        _mm256_storeu_si256((__m256i *)(void *)(upper + e), h);
        _mm256_storeu_si256((__m256i *)(void *)(number + e), _mm256_add_epi16(_mm256_slli_epi16(h, 8), l));
    }
}

#define ATTN_ADD(sum, x, y) ((sum) = _mm256_add_epi32(sum, _mm256_madd_epi16(x, y)))

/* A tile of queries from number i, and two eights of words. */
ATTN_INLINE void attn_scores_tile(struct attn_avx2 *s, int16_t q[ATTN_QT][2][PF_I16_HEAD_MAX], int hd, int i, int u)
{
    const int16_t *at = s->pairs + (size_t)u * (size_t)hd * 16;
    __m256i sum[ATTN_QT][2];
    for (int j = 0; j < ATTN_QT; j++)
        sum[j][0] = sum[j][1] = _mm256_setzero_si256();
    for (int e = 0; e < hd; e += 2, at += 32) {
        __m256i kh[2] = { attn_load(at), attn_load(at + (size_t)hd * 16) };
        __m256i kl[2] = { attn_load(at + 16), attn_load(at + (size_t)hd * 16 + 16) };
        for (int j = 0; j < ATTN_QT; j++) {
            __m256i number = attn_pair(q[j][0] + e), upper = attn_pair(q[j][1] + e);
            for (int v = 0; v < 2; v++) {
                ATTN_ADD(sum[j][v], kh[v], number);
                ATTN_ADD(sum[j][v], kl[v], upper);
            }
        }
    }
    for (int j = 0; j < ATTN_QT; j++)
        for (int v = 0; v < 2; v++)
            _mm256_storeu_si256((__m256i *)(void *)(s->c[i + j] + (u + v) * 8), sum[j][v]);
}

static void attn_scores_four(const struct pf_attn_i16_args *a, struct attn_avx2 *s, int i)
{
    int16_t q[ATTN_QT][2][PF_I16_HEAD_MAX];
    for (int j = 0; j < ATTN_QT; j++)
        attn_expand_query(a->q + (size_t)(i + j) * 2 * (size_t)a->hd_k, a->hd_k, q[j][0], q[j][1]);
    for (int u = 0; u < ATTN_EIGHTS; u += 2)
        attn_scores_tile(s, q, a->hd_k, i, u);
}

static void attn_scores_one(const struct pf_attn_i16_args *a, struct attn_avx2 *s, const int8_t *k,
                            const int8_t *next, int i)
{
    int16_t number[PF_I16_HEAD_MAX], upper[PF_I16_HEAD_MAX];
    attn_expand_query(a->q + (size_t)i * 2 * (size_t)a->hd_k, a->hd_k, number, upper);
    for (int u = 0; u < ATTN_EIGHTS; u++) {
        __m256i sum[4];
        for (int j = 0; j < 4; j++)
            sum[j] = _mm256_setzero_si256();
        for (int e = 0; e < a->hd_k; e += 4) {
            __m256i x[4];
            attn_fetch_words(next, attn_keys_at(k, a->hd_k, u, e) - k);
            attn_key_pairs(attn_keys_at(k, a->hd_k, u, e), x);
            ATTN_ADD(sum[0], x[0], attn_pair(number + e));
            ATTN_ADD(sum[1], x[1], attn_pair(upper + e));
            ATTN_ADD(sum[2], x[2], attn_pair(number + e + 2));
            ATTN_ADD(sum[3], x[3], attn_pair(upper + e + 2));
        }
        sum[0] = _mm256_add_epi32(_mm256_add_epi32(sum[0], sum[1]), _mm256_add_epi32(sum[2], sum[3]));
        _mm256_storeu_si256((__m256i *)(void *)(s->c[i] + u * 8), sum[0]);
    }
}

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

/* Sixteen weights as floats of 2^23 and more to wh and wl. */
ATTN_INLINE void attn_put_weights(__m256 a, __m256 b, int16_t *wh, int16_t *wl)
{
    const __m256i number = _mm256_set1_epi32(0xffff), low = _mm256_set1_epi16(255);
    __m256i w = _mm256_packus_epi32(_mm256_and_si256(_mm256_castps_si256(a), number),
                                    _mm256_and_si256(_mm256_castps_si256(b), number));
    w = _mm256_permute4x64_epi64(w, 0xd8);
    _mm256_storeu_si256((__m256i *)(void *)wh, _mm256_srli_epi16(w, 8));
    _mm256_storeu_si256((__m256i *)(void *)wl, _mm256_and_si256(w, low));
}

/* The weights of query i, which sees the positions of `seen`. */
static void attn_weigh(const struct pf_attn_i16_args *a, struct attn_avx2 *s, const int8_t *k, const int8_t *v, int i,
                       struct attn_span seen)
{
    const float *sk = (const float *)(const void *)(k + pf_i16_sk(a->hd_k)), *lsv = sk + PF_I16_BLOCK;
    const float *rsv = (const float *)(const void *)(v + pf_i16_rsv(a->hd_v));
    __m256i c[ATTN_EIGHTS];
    __m256 y[ATTN_EIGHTS], top = _mm256_set1_ps(-INFINITY), zc = _mm256_setzero_ps();
    attn_in_order(s->c[i], c);
    attn_in_order(s->c[i] + 32, c + 4);
    for (int j = 0; j < ATTN_EIGHTS; j++) {
        __m256 x = _mm256_mul_ps(_mm256_cvtepi32_ps(c[j]), _mm256_loadu_ps(sk + 8 * j));
        x = _mm256_fmadd_ps(x, _mm256_set1_ps(a->cq[i]), _mm256_loadu_ps(lsv + 8 * j));
        y[j] = _mm256_blendv_ps(_mm256_set1_ps(-INFINITY), x, attn_mask(seen, 8 * j));
        top = _mm256_max_ps(top, y[j]);
    }
    float mc = attn_max(top);
    for (int j = 0; j < ATTN_EIGHTS; j++) {
        __m256 mask = attn_mask(seen, 8 * j);
        y[j] = _mm256_and_ps(attn_exp2(_mm256_sub_ps(y[j], _mm256_set1_ps(mc))), mask);
        zc = _mm256_fmadd_ps(y[j], _mm256_and_ps(_mm256_loadu_ps(rsv + 8 * j), mask), zc);
        y[j] = _mm256_fmadd_ps(y[j], _mm256_set1_ps(PF_I16_WEIGHT), _mm256_set1_ps(0x1p23f));
    }
    for (int j = 0; j < ATTN_EIGHTS; j += 2)
        attn_put_weights(y[j], y[j + 1], s->w[i][0] + 8 * j, s->w[i][1] + 8 * j);
    attn_enter(&s->sums, i, mc, zc);
}

/* ---- Values ---------------------------------------------------------------------------------------------------- */

/* Pairs of the eight words at `word`: v, vh of the word's first two positions, then of the others. */
ATTN_INLINE void attn_value_pairs(const int8_t *word, __m256i out[4])
{
    __m256i h = attn_load(word), l = attn_load(word + PF_I16_PLANE);
    for (int pair = 0; pair < 2; pair++) {
        __m256i uppers = attn_uppers(h, pair);
        out[2 * pair] = _mm256_add_epi16(uppers, _mm256_srai_epi16(attn_uppers(l, pair), 8));
        out[2 * pair + 1] = _mm256_srai_epi16(uppers, 8);
    }
}

/* Eight number u of the elements, word s of the positions; the position of the word's first byte. */
ATTN_INLINE const int8_t *attn_values_at(const int8_t *v, int hd, int u, int word)
{
    return v + ((size_t)word * (size_t)(hd / 16) + (size_t)(u / 2)) * ATTN_VECTOR + u % 2 * 32;
}

ATTN_INLINE int attn_position(int word)
{
    return word / 4 * 16 + word % 4 * 2;
}

static void attn_expand_values(struct attn_avx2 *s, const int8_t *v, const int8_t *next, int hd)
{
    for (int word = 0; word < PF_I16_BLOCK / 4; word++)
        for (int u = 0; u < hd / 8; u++) {
            __m256i pairs[4];
            int16_t *to = s->pairs + ((size_t)u * ATTN_PAIRS + (size_t)word * 2) * 32;
            attn_fetch_words(next, attn_values_at(v, hd, u, word) - v);
            attn_value_pairs(attn_values_at(v, hd, u, word), pairs);
            for (int i = 0; i < 4; i++)
                _mm256_storeu_si256((__m256i *)(void *)(to + 16 * i), pairs[i]);
        }
}

ATTN_INLINE void attn_add_values(const struct pf_attn_i16_args *a, const struct attn_avx2 *s, int i, int u, __m256i sum)
{
    float *acc = a->part + (size_t)i * a->part_stride + u * 8;
    __m256 before = _mm256_mul_ps(_mm256_loadu_ps(acc), _mm256_set1_ps(s->sums.old[i]));
    _mm256_storeu_ps(acc, _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_set1_ps(s->sums.gain[i]), before));
}

/* A tile of queries from number i, and two eights of elements. */
static void attn_values_tile(const struct pf_attn_i16_args *a, struct attn_avx2 *s, int i, int u)
{
    const int16_t *at = s->pairs + (size_t)u * ATTN_PAIRS * 32;
    __m256i sum[ATTN_QT][2];
    for (int j = 0; j < ATTN_QT; j++)
        sum[j][0] = sum[j][1] = _mm256_setzero_si256();
    for (int pair = 0; pair < ATTN_PAIRS; pair++, at += 32) {
        int p = attn_position(pair / 2) + pair % 2 * 8;
        __m256i x[2] = { attn_load(at), attn_load(at + ATTN_PAIRS * 32) };
        __m256i h[2] = { attn_load(at + 16), attn_load(at + ATTN_PAIRS * 32 + 16) };
        for (int j = 0; j < ATTN_QT; j++) {
            __m256i wh = attn_pair(s->w[i + j][0] + p), wl = attn_pair(s->w[i + j][1] + p);
            for (int v = 0; v < 2; v++) {
                ATTN_ADD(sum[j][v], x[v], wh);
                ATTN_ADD(sum[j][v], h[v], wl);
            }
        }
    }
    for (int j = 0; j < ATTN_QT; j++)
        for (int v = 0; v < 2; v++)
            attn_add_values(a, s, i + j, u + v, sum[j][v]);
}

static void attn_values_one(const struct pf_attn_i16_args *a, struct attn_avx2 *s, const int8_t *v,
                            const int8_t *next, int i)
{
    for (int u = 0; u < a->hd_v / 8; u += 2) {
        __m256i sum[2][2];
        for (int j = 0; j < 2; j++)
            sum[j][0] = sum[j][1] = _mm256_setzero_si256();
        for (int word = 0; word < PF_I16_BLOCK / 4; word++) {
            const int16_t *wh = s->w[i][0] + attn_position(word), *wl = s->w[i][1] + attn_position(word);
            for (int j = 0; j < 2; j++) {
                __m256i x[4];
                attn_fetch_words(next, attn_values_at(v, a->hd_v, u + j, word) - v);
                attn_value_pairs(attn_values_at(v, a->hd_v, u + j, word), x);
                ATTN_ADD(sum[j][0], x[0], attn_pair(wh));
                ATTN_ADD(sum[j][1], x[1], attn_pair(wl));
                ATTN_ADD(sum[j][0], x[2], attn_pair(wh + 8));
                ATTN_ADD(sum[j][1], x[3], attn_pair(wl + 8));
            }
        }
        for (int j = 0; j < 2; j++)
            attn_add_values(a, s, i, u + j, _mm256_add_epi32(sum[j][0], sum[j][1]));
    }
}

/* ---- A chunk --------------------------------------------------------------------------------------------------- */

/* The weights of n queries from number i. */
static void attn_weigh_all(const struct pf_attn_i16_args *a, struct attn_avx2 *s, const int8_t *k, const int8_t *v,
                           int at, int i, int n)
{
    for (int j = i; j < i + n; j++) {
        struct attn_span seen = attn_seen(a, j, at);
        if (seen.lo < seen.hi) {
            attn_weigh(a, s, k, v, j, seen);
        } else {
            memset(s->w[j], 0, sizeof s->w[j]);
            attn_skip(&s->sums, j);
        }
    }
}

static bool attn_any_sees(const struct pf_attn_i16_args *a, int at, int i, int n)
{
    bool any = false;
    for (int j = i; j < i + n; j++)
        any |= attn_seen(a, j, at).lo < attn_seen(a, j, at).hi;
    return any;
}

static void attn_block(const struct pf_attn_i16_args *a, struct attn_avx2 *s, int at)
{
    const int8_t *k = (const int8_t *)a->k + pf_i16_key_block(a->hd_k, at);
    const int8_t *v = (const int8_t *)a->v + pf_i16_value_block(a->hd_v, at);
    int n_tiled = a->n_q / ATTN_QT * ATTN_QT;
    bool tiled = attn_any_sees(a, at, 0, n_tiled);
    struct attn_ahead ahead = attn_ahead(a, at);
    if (tiled)
        attn_expand_keys(s, k, ahead.k, a->hd_k);
    for (int i = 0; tiled && i < n_tiled; i += ATTN_QT)
        if (attn_any_sees(a, at, i, ATTN_QT)) {
            attn_scores_four(a, s, i);
            attn_weigh_all(a, s, k, v, at, i, ATTN_QT);
        }
    if (tiled)
        attn_expand_values(s, v, ahead.v, a->hd_v);
    for (int i = 0; tiled && i < n_tiled; i += ATTN_QT)
        if (attn_any_sees(a, at, i, ATTN_QT))
            for (int u = 0; u < a->hd_v / 8; u += 2)
                attn_values_tile(a, s, i, u);
    for (int i = n_tiled; i < a->n_q; i++)
        if (attn_any_sees(a, at, i, 1)) {
            bool first = !tiled && i == n_tiled;
            attn_scores_one(a, s, k, first ? ahead.k : NULL, i);
            attn_weigh_all(a, s, k, v, at, i, 1);
            attn_values_one(a, s, v, first ? ahead.v : NULL, i);
        }
}

static void attn_i16_avx2(const struct pf_attn_i16_args *a)
{
    struct attn_avx2 *s = a->scratch;
    for (int i = 0; i < a->n_q; i++)
        attn_begin(a, &s->sums, i);
    for (int at = 0; at < PF_I16_CHUNK; at += PF_I16_BLOCK)
        attn_block(a, s, at);
    for (int i = 0; i < a->n_q; i++)
        attn_end(a, &s->sums, i);
}

#endif
