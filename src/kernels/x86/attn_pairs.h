/* Attention in whole numbers by products of pairs of int16 (pmaddwd), for AVX2 and for AVX-512 without VNNI: one chunk
 * against up to 64 queries, a block of 64 positions at a time. Include after a lanes header. Steps are those of
 * attn_vnni.h; two products stand for the three of planes:
 *
 *     scores   256 qh kh + qh kl + ql kh  =  q * kh + qh * kl            q, w, v: the number of 16 bits
 *     values   256 wh vh + wh vl + wl vh  =  wh * v + wl * vh
 *
 * A word of four bytes is two pairs: its bytes 0 and 2, its bytes 1 and 3. So queries and weights lie in that order, in
 * `q` and `w`. Bytes of keys and values become int16 once for all queries, or, for a single one, on the way:
 *
 *     keys     [64 / LANES groups of words][hd / 2 pairs of elements][kh, kl][LANES] pairs
 *     values   [hd / LANES groups of elements][32 pairs of positions][v, vh][LANES] pairs */
#ifndef PF_ATTN_PAIRS_H
#define PF_ATTN_PAIRS_H

#include "kernels/x86/attn_by_8.h"

enum { ATTN_PAIRS = PF_I16_BLOCK / 2, ATTN_GROUPS = PF_I16_BLOCK / LANES };

struct attn_pairs {
    int16_t pairs[PF_I16_BLOCK * 2 * PF_I16_HEAD_MAX];               /* of keys, then of values */
    int16_t q[PF_ATTN_I16_QUERIES * 2 * PF_I16_HEAD_MAX];            /* [query][number, qh][hd_k] */
    int32_t c[PF_ATTN_I16_QUERIES][PF_I16_BLOCK];
    int16_t w[PF_ATTN_I16_QUERIES][2][PF_I16_BLOCK];                 /* wh, wl */
    struct attn_sums sums;
};
_Static_assert(sizeof(struct attn_pairs) <= PF_ATTN_I16_SCRATCH, "fits the scratch");

ATTN_INLINE vi attn_pair(const int16_t *p)
{
    int32_t w;
    memcpy(&w, p, sizeof w);
    return vi_set1(w);
}

ATTN_INLINE void attn_add(vi *sum, vi x, vi y)
{
    *sum = vi_add(*sum, vi_madd16(x, y));
}

/* Bytes 0 and 2 of each word as int16. */
ATTN_INLINE vi attn_even(vi x)
{
    return vi_sar16(vi_shl16(x, 8), 8);
}

/* Bytes 1 and 3. */
ATTN_INLINE vi attn_odd(vi x)
{
    return vi_sar16(x, 8);
}

/* The line that the words at `at`, relative to their block, have in the block that comes next: of the upper plane for
 * the first half of a vector, of the lower one for the other; both lines, if a vector is whole. */
ATTN_INLINE void attn_fetch_words(const int8_t *next, ptrdiff_t at)
{
    if (!next)
        return;
    attn_fetch_line(next + at + at % PF_I16_PLANE);
    if (LANES == 16)
        attn_fetch_line(next + at + PF_I16_PLANE);
}

/* Sums of a tile of n_q queries, in two groups: x and y of the first query lie at q and q + other, of the next one
 * `stride` further on; what they multiply lies at `at` and at + group. */
ATTN_INLINE void attn_tile(const int16_t *at, size_t group, int n_pairs, const int16_t *q, size_t stride, size_t other,
                           const int n_q, vi sum[ATTN_QT][2])
{
    for (int j = 0; j < n_q; j++)
        sum[j][0] = sum[j][1] = vi_zero();
    for (int pair = 0; pair < n_pairs; pair++, at += 4 * LANES, q += 2) {
        vi first[2] = { attn_hold(vi_load(at)), attn_hold(vi_load(at + group)) };
        vi second[2] = { attn_hold(vi_load(at + 2 * LANES)), attn_hold(vi_load(at + group + 2 * LANES)) };
        for (int j = 0; j < n_q; j++) {
            vi x = attn_pair(q + (size_t)j * stride), y = attn_pair(q + (size_t)j * stride + other);
            for (int v = 0; v < 2; v++) {
                attn_add(&sum[j][v], first[v], x);
                attn_add(&sum[j][v], second[v], y);
                sum[j][v] = attn_hold(sum[j][v]);
            }
        }
    }
}

/* ---- Scores ---------------------------------------------------------------------------------------------------- */

/* Pairs of the words of both planes: kh, kl of elements e, e + 2, then of e + 1, e + 3. */
ATTN_INLINE void attn_key_pairs(vi h, vi l, vi out[4])
{
    out[0] = attn_even(h);
    out[1] = attn_even(l);
    out[2] = attn_odd(h);
    out[3] = attn_odd(l);
}

static void attn_expand_keys(struct attn_pairs *s, const int8_t *k, const int8_t *next, int hd)
{
    for (int u = 0; u < ATTN_GROUPS; u++)
        for (int e = 0; e < hd; e += 4) {
            vi pairs[4];
            int16_t *to = s->pairs + ((size_t)u * (size_t)hd + (size_t)e) * 2 * LANES;
            const int8_t *word = attn_keys_at(k, hd, u, e);
            attn_fetch_words(next, word - k);
            attn_key_pairs(vi_load(word), vi_load(word + PF_I16_PLANE), pairs);
            for (int i = 0; i < 4; i++)
                vi_store(to + 2 * LANES * i, pairs[i]);
        }
}

ATTN_INLINE void attn_put_query(int16_t *to, __m256i x)
{
    _mm256_storeu_si256((__m256i *)(void *)to, _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(x, 0xd8), 0xd8));
}

/* Numbers and upper bytes of a query's planes [2][n], as int16 [2][n]. */
ATTN_INLINE void attn_expand_query(const int8_t *q, size_t n, int16_t *to)
{
    for (size_t e = 0; e < n; e += 16) {
        __m256i h = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)(q + e)));
        __m256i l = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)(q + n + e)));
        attn_put_query(to + e, _mm256_add_epi16(_mm256_slli_epi16(h, 8), l));
        attn_put_query(to + n + e, h);
    }
}

static void attn_scores_four(const struct pf_attn_i16_args *a, struct attn_pairs *s, int i)
{
    size_t hd = (size_t)a->hd_k, group = hd * 2 * LANES;
    for (size_t u = 0; u < ATTN_GROUPS; u += 2) {
        vi sum[ATTN_QT][2];
        attn_tile(s->pairs + u * group, group, a->hd_k / 2, s->q + (size_t)i * 2 * hd, 2 * hd, hd, ATTN_QT, sum);
        for (int j = 0; j < ATTN_QT; j++)
            for (size_t v = 0; v < 2; v++)
                vi_store(s->c[i + j] + (u + v) * LANES, sum[j][v]);
    }
}

static void attn_scores_one(const struct pf_attn_i16_args *a, struct attn_pairs *s, const int8_t *k,
                            const int8_t *next, int i)
{
    const int16_t *number = s->q + (size_t)i * 2 * (size_t)a->hd_k, *upper = number + a->hd_k;
    for (int u = 0; u < ATTN_GROUPS; u++) {
        vi sum[4] = { vi_zero(), vi_zero(), vi_zero(), vi_zero() };
        for (int e = 0; e < a->hd_k; e += 4) {
            vi x[4];
            const int8_t *word = attn_keys_at(k, a->hd_k, u, e);
            attn_fetch_words(next, word - k);
            attn_key_pairs(vi_load(word), vi_load(word + PF_I16_PLANE), x);
            attn_add(&sum[0], x[0], attn_pair(number + e));
            attn_add(&sum[1], x[1], attn_pair(upper + e));
            attn_add(&sum[2], x[2], attn_pair(number + e + 2));
            attn_add(&sum[3], x[3], attn_pair(upper + e + 2));
        }
        vi_store(s->c[i] + u * LANES, vi_add(vi_add(sum[0], sum[1]), vi_add(sum[2], sum[3])));
    }
}

/* ---- Weights --------------------------------------------------------------------------------------------------- */

/* Sixteen weights, positions 0 to 7 and 8 to 15, to pairs of wh and of wl. */
ATTN_INLINE void attn_put_weights(__m256i a, __m256i b, int16_t *wh, int16_t *wl)
{
    __m256i w = _mm256_or_si256(a, _mm256_slli_epi32(b, 16));
    _mm256_storeu_si256((__m256i *)(void *)wh, _mm256_srli_epi16(w, 8));
    _mm256_storeu_si256((__m256i *)(void *)wl, _mm256_and_si256(w, _mm256_set1_epi16(255)));
}

/* The weights of query i, which sees the positions of `seen`. */
static void attn_weigh(const struct pf_attn_i16_args *a, struct attn_pairs *s, const int8_t *k, const int8_t *v, int i,
                       struct attn_span seen)
{
    __m256 y[ATTN_EIGHTS];
    __m256i w[ATTN_EIGHTS];
    attn_ys(a, k, i, s->c[i], y);
    attn_weights(&s->sums, i, y, seen, (const float *)(const void *)(v + pf_i16_rsv(a->hd_v)), w);
    for (int j = 0; j < ATTN_EIGHTS; j += 2)
        attn_put_weights(w[j], w[j + 1], s->w[i][0] + 8 * j, s->w[i][1] + 8 * j);
}

/* ---- Values ---------------------------------------------------------------------------------------------------- */

/* Pairs of the words of both planes: v, vh of bytes 0 and 2, then of 1 and 3; these are positions p and p + 8, then
 * p + 1 and p + 9. */
ATTN_INLINE void attn_value_pairs(vi h, vi l, vi out[4])
{
    vi even = vi_shl16(h, 8), odd = vi_and(h, vi_set1((int32_t)0xff00ff00));
    out[0] = vi_add16(even, attn_even(l));
    out[1] = vi_sar16(even, 8);
    out[2] = vi_add16(odd, attn_odd(l));
    out[3] = attn_odd(h);
}

static void attn_expand_values(struct attn_pairs *s, const int8_t *v, const int8_t *next, int hd)
{
    for (int word = 0; word < PF_I16_BLOCK / 4; word++)
        for (int u = 0; u < hd / LANES; u++) {
            vi pairs[4];
            int16_t *to = s->pairs + ((size_t)u * ATTN_PAIRS + (size_t)word * 2) * 4 * LANES;
            const int8_t *at = attn_values_at(v, hd, u, word);
            attn_fetch_words(next, at - v);
            attn_value_pairs(vi_load(at), vi_load(at + PF_I16_PLANE), pairs);
            for (int i = 0; i < 4; i++)
                vi_store(to + 2 * LANES * i, pairs[i]);
        }
}

ATTN_INLINE void attn_add_values(const struct pf_attn_i16_args *a, const struct attn_pairs *s, int i, int u, vi sum)
{
    float *acc = a->part + (size_t)i * a->part_stride + u * LANES;
    vf before = vf_mul(vf_load(acc), vf_set1(s->sums.old[i]));
    vf_store(acc, vf_fma(vf_from_int(sum), vf_set1(s->sums.gain[i]), before));
}

/* n_q queries from number i. */
ATTN_INLINE void attn_values_tile(const struct pf_attn_i16_args *a, struct attn_pairs *s, int i, const int n_q)
{
    const size_t group = (size_t)ATTN_PAIRS * 4 * LANES;
    for (int u = 0; u < a->hd_v / LANES; u += 2) {
        vi sum[ATTN_QT][2];
        attn_tile(s->pairs + (size_t)u * group, group, ATTN_PAIRS, s->w[i][0], 2 * PF_I16_BLOCK, PF_I16_BLOCK, n_q,
                  sum);
        for (int j = 0; j < n_q; j++)
            for (int v = 0; v < 2; v++)
                attn_add_values(a, s, i + j, u + v, sum[j][v]);
    }
}

static void attn_values_four(const struct pf_attn_i16_args *a, struct attn_pairs *s, int i)
{
    attn_values_tile(a, s, i, ATTN_QT);
}

static void attn_values_one(const struct pf_attn_i16_args *a, struct attn_pairs *s, const int8_t *v,
                            const int8_t *next, int i)
{
    for (int u = 0; u < a->hd_v / LANES; u += 2) {
        vi sum[2][2];
        for (int j = 0; j < 2; j++)
            sum[j][0] = sum[j][1] = vi_zero();
        for (int word = 0; word < PF_I16_BLOCK / 4; word++) {
            const int16_t *wh = s->w[i][0] + 4 * word, *wl = s->w[i][1] + 4 * word;
            for (int j = 0; j < 2; j++) {
                vi x[4];
                const int8_t *at = attn_values_at(v, a->hd_v, u + j, word);
                attn_fetch_words(next, at - v);
                attn_value_pairs(vi_load(at), vi_load(at + PF_I16_PLANE), x);
                attn_add(&sum[j][0], x[0], attn_pair(wh));
                attn_add(&sum[j][1], x[1], attn_pair(wl));
                attn_add(&sum[j][0], x[2], attn_pair(wh + 2));
                attn_add(&sum[j][1], x[3], attn_pair(wl + 2));
            }
        }
        for (int j = 0; j < 2; j++)
            attn_add_values(a, s, i, u + j, vi_add(sum[j][0], sum[j][1]));
    }
}

/* ---- A chunk --------------------------------------------------------------------------------------------------- */

/* The weights of n queries from number i. */
static void attn_weigh_all(const struct pf_attn_i16_args *a, struct attn_pairs *s, const int8_t *k, const int8_t *v,
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

static void attn_block(const struct pf_attn_i16_args *a, struct attn_pairs *s, int at)
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
            attn_values_four(a, s, i);
    for (int i = n_tiled; i < a->n_q; i++)
        if (attn_any_sees(a, at, i, 1)) {
            bool first = !tiled && i == n_tiled;
            attn_scores_one(a, s, k, first ? ahead.k : NULL, i);
            attn_weigh_all(a, s, k, v, at, i, 1);
            attn_values_one(a, s, v, first ? ahead.v : NULL, i);
        }
}

static void attn_i16_pairs(const struct pf_attn_i16_args *a)
{
    struct attn_pairs *s = a->scratch;
    size_t hd = (size_t)a->hd_k;
    for (int i = 0; i < a->n_q; i++) {
        attn_begin(a, &s->sums, i);
        attn_expand_query(a->q + (size_t)i * 2 * hd, hd, s->q + (size_t)i * 2 * hd);
    }
    for (int at = 0; at < PF_I16_CHUNK; at += PF_I16_BLOCK)
        attn_block(a, s, at);
    for (int i = 0; i < a->n_q; i++)
        attn_end(a, &s->sums, i);
}

#endif
