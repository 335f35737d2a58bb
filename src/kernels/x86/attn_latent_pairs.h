/* Attention to a latent in whole numbers by products of pairs of int16, for AVX2 and for AVX-512 without VNNI: one
 * chunk against up to 64 queries, a block of 64 positions at a time (base/pf_latent.h). Steps, pairs and sums are those
 * of attn_pairs.h. Words become pairs three times for all queries: as keys of the latent, as keys of the other part, as
 * values. For these, the 4 x 4 bytes of a word of four positions are transposed, positions 4g, 4g + 2, 4g + 1, 4g + 3
 * in a row, so that pairs and with them the weights lie in the order of positions. */
#ifndef PF_ATTN_LATENT_PAIRS_H
#define PF_ATTN_LATENT_PAIRS_H

#include "kernels/x86/attn_pairs.h"

/* In the caller's scratch. */
struct attn_latent {
    struct attn_pairs pairs;                         /* q, c: of the latent */
    int16_t qp[PF_ATTN_I16_QUERIES * 2 * PF_I16_HEAD_MAX];
    int32_t cp[PF_ATTN_I16_QUERIES][PF_I16_BLOCK];
};
_Static_assert(sizeof(struct attn_latent) <= PF_ATTN_LATENT_SCRATCH, "fits the scratch");

/* ---- Scores ---------------------------------------------------------------------------------------------------- */

/* The line that the words at `at`, relative to their block, have in the block that comes next: see attn_fetch_words. */
ATTN_INLINE void latent_fetch(const int8_t *next, ptrdiff_t at)
{
    if (!next)
        return;
    attn_fetch_line(next + at + at % 64 / 32 * PF_LATENT_PLANE);
    if (LANES == 16)
        attn_fetch_line(next + at + PF_LATENT_PLANE);
}

/* Keys of the elements [first, first + n). */
static void latent_expand_keys(struct attn_pairs *s, const int8_t *block, const int8_t *next, int hd_k, int first,
                               int n)
{
    for (int u = 0; u < ATTN_GROUPS; u++)
        for (int e = 0; e < n; e += 4) {
            vi pairs[4];
            int16_t *to = s->pairs + ((size_t)u * (size_t)n + (size_t)e) * 2 * LANES;
            const int8_t *word = block + pf_latent_at(hd_k, u * LANES, first + e);
            latent_fetch(next, word - block);
            attn_key_pairs(vi_load(word), vi_load(word + PF_LATENT_PLANE), pairs);
            for (int i = 0; i < 4; i++)
                vi_store(to + 2 * LANES * i, pairs[i]);
        }
}

/* Sums of n_q queries q [2][n] over n elements. */
ATTN_INLINE void latent_scores_tile(const int16_t *pairs, const int16_t *q, int n, const int n_q,
                                    int32_t (*c)[PF_I16_BLOCK])
{
    size_t other = (size_t)n, group = other * 2 * LANES;
    for (size_t u = 0; u < ATTN_GROUPS; u += 2) {
        vi sum[ATTN_QT][2];
        attn_tile(pairs + u * group, group, n / 2, q, 2 * other, other, n_q, sum);
        for (int j = 0; j < n_q; j++)
            for (size_t v = 0; v < 2; v++)
                vi_store(c[j] + (u + v) * LANES, sum[j][v]);
    }
}

static void latent_scores(const int16_t *pairs, const int16_t *q, int n, int n_q, int32_t (*c)[PF_I16_BLOCK])
{
    if (n_q == ATTN_QT)
        latent_scores_tile(pairs, q, n, ATTN_QT, c);
    else
        latent_scores_tile(pairs, q, n, 1, c);
}

/* ---- Weights --------------------------------------------------------------------------------------------------- */

/* Sixteen weights, positions 0 to 7 and 8 to 15, to wh and wl. */
ATTN_INLINE void latent_put_weights(__m256i a, __m256i b, int16_t *wh, int16_t *wl)
{
    __m256i w = _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xd8);
    _mm256_storeu_si256((__m256i *)(void *)wh, _mm256_srli_epi16(w, 8));
    _mm256_storeu_si256((__m256i *)(void *)wl, _mm256_and_si256(w, _mm256_set1_epi16(255)));
}

/* The weights of query i, which sees the positions of `seen`. */
static void latent_weigh(const struct pf_attn_latent_args *a, struct attn_latent *s, const int8_t *block, int i,
                         struct attn_span seen)
{
    const float *scale = (const float *)(const void *)(block + pf_latent_scales(a->hd_k, 0));
    const float *sp = scale + PF_I16_BLOCK, *lsv = sp + PF_I16_BLOCK, *rsv = lsv + PF_I16_BLOCK;
    __m256 y[ATTN_EIGHTS];
    __m256i w[ATTN_EIGHTS];
    for (int j = 0; j < ATTN_EIGHTS; j++) {
        const void *c = s->pairs.c[i] + 8 * j, *cp = s->cp[i] + 8 * j;
        y[j] = _mm256_loadu_ps(lsv + 8 * j);
        if (a->hd_k > a->hd_v)
            y[j] = attn_y(_mm256_loadu_si256(cp), sp + 8 * j, a->cqp[i], y[j]);
        y[j] = attn_y(_mm256_loadu_si256(c), scale + 8 * j, a->cq[i], y[j]);
    }
    attn_weights(&s->pairs.sums, i, y, seen, rsv, w);
    for (int j = 0; j < ATTN_EIGHTS; j += 2)
        latent_put_weights(w[j], w[j + 1], s->pairs.w[i][0] + 8 * j, s->pairs.w[i][1] + 8 * j);
}

/* ---- Values ---------------------------------------------------------------------------------------------------- */

/* Words of the elements from `from` on, four positions of each: LANES elements, a lane of 16 bytes for each four. */
ATTN_INLINE vi latent_word(const int8_t *from)
{
    static const uint8_t order[16] = { 0, 8, 4, 12, 1, 9, 5, 13, 2, 10, 6, 14, 3, 11, 7, 15 };
    return vi_shuffle(lane_quad((const uint8_t *)from, LATENT_WORDS / 4), order);
}

static void latent_expand_values(struct attn_pairs *s, const int8_t *block, int hd_k, int hd_v)
{
    for (int u = 0; u < hd_v / LANES; u++)
        for (int p = 0; p < PF_I16_BLOCK; p += 4) {
            vi pairs[4];
            int16_t *to = s->pairs + ((size_t)u * ATTN_PAIRS + (size_t)p / 2) * 4 * LANES;
            const int8_t *word = block + pf_latent_at(hd_k, p, u * LANES);
            attn_value_pairs(latent_word(word), latent_word(word + PF_LATENT_PLANE), pairs);
            for (int i = 0; i < 4; i++)
                vi_store(to + 2 * LANES * i, pairs[i]);
        }
}

static void latent_values(const struct pf_attn_i16_args *like, struct attn_pairs *s, int i, int n)
{
    if (n == ATTN_QT)
        attn_values_tile(like, s, i, ATTN_QT);
    else
        attn_values_tile(like, s, i, 1);
}

/* ---- A chunk --------------------------------------------------------------------------------------------------- */

/* Queries go by tiles, and those that are left one by one. */
ATTN_INLINE int latent_tile(int n_q, int i)
{
    return n_q - i >= ATTN_QT ? ATTN_QT : 1;
}

/* Scores with one part, for all queries that see something. */
static void latent_scores_all(const struct pf_attn_i16_args *like, const struct attn_latent *s, int at, int n,
                              const int16_t *q, int32_t (*c)[PF_I16_BLOCK])
{
    for (int i = 0, m; i < like->n_q; i += m) {
        m = latent_tile(like->n_q, i);
        if (attn_any_sees(like, at, i, m))
            latent_scores(s->pairs.pairs, q + (size_t)i * 2 * (size_t)n, n, m, c + i);
    }
}

static void latent_weigh_all(const struct pf_attn_latent_args *a, const struct pf_attn_i16_args *like,
                             struct attn_latent *s, const int8_t *block, int at)
{
    for (int i = 0; i < a->n_q; i++) {
        struct attn_span seen = attn_seen(like, i, at);
        if (seen.lo < seen.hi) {
            latent_weigh(a, s, block, i, seen);
        } else {
            memset(s->pairs.w[i], 0, sizeof s->pairs.w[i]);
            attn_skip(&s->pairs.sums, i);
        }
    }
}

static void latent_block(const struct pf_attn_latent_args *a, const struct pf_attn_i16_args *like,
                         struct attn_latent *s, int at)
{
    const int8_t *block = (const int8_t *)a->chunk + pf_latent_block(a->hd_k, at), *next = a->next;
    int n_pe = a->hd_k - a->hd_v;
    if (!attn_any_sees(like, at, 0, a->n_q))
        return;
    if (at + PF_I16_BLOCK < a->hi[a->n_q - 1])
        next = (const int8_t *)a->chunk + pf_latent_block(a->hd_k, at + PF_I16_BLOCK);
    latent_expand_keys(&s->pairs, block, next, a->hd_k, 0, a->hd_v);
    latent_scores_all(like, s, at, a->hd_v, s->pairs.q, s->pairs.c);
    if (n_pe) {
        latent_expand_keys(&s->pairs, block, next, a->hd_k, a->hd_v, n_pe);
        latent_scores_all(like, s, at, n_pe, s->qp, s->cp);
    }
    latent_weigh_all(a, like, s, block, at);
    latent_expand_values(&s->pairs, block, a->hd_k, a->hd_v);
    for (int i = 0, m; i < a->n_q; i += m) {
        m = latent_tile(a->n_q, i);
        if (attn_any_sees(like, at, i, m))
            latent_values(like, &s->pairs, i, m);
    }
}

static void attn_latent_pairs(const struct pf_attn_latent_args *a)
{
    struct attn_latent *s = a->scratch;
    struct pf_attn_i16_args like = { .n_q = a->n_q, .hd_v = a->hd_v, .lo = a->lo, .hi = a->hi, .part = a->part,
                                     .part_stride = a->part_stride };
    size_t n = (size_t)a->hd_v, n_pe = (size_t)a->hd_k - n;
    for (int i = 0; i < a->n_q; i++) {
        const int8_t *q = a->q + (size_t)i * 2 * (size_t)a->hd_k;
        attn_begin(&like, &s->pairs.sums, i);
        attn_expand_query(q, n, s->pairs.q + (size_t)i * 2 * n);
        attn_expand_query(q + 2 * n, n_pe, s->qp + (size_t)i * 2 * n_pe);
    }
    for (int at = 0; at < PF_I16_CHUNK; at += PF_I16_BLOCK)
        latent_block(a, &like, s, at);
    for (int i = 0; i < a->n_q; i++)
        attn_end(&like, &s->pairs.sums, i);
}

#endif
