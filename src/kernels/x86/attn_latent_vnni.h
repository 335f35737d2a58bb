/* Attention to a latent in whole numbers with VNNI: one chunk against up to 64 queries, a block of 64 positions at a
 * time (base/pf_latent.h). Steps and sums are those of attn_vnni.h; its vectors of values are made of the words first:
 *
 *     scores   tiles of QT queries times vectors of 16 positions, of both parts    -> c, cp [query][64]
 *     values   16 words, 4 x 4 lanes of 16 bytes and within each 4 x 4 bytes transposed, once for all queries
 *
 *         words of elements 4E ..      | E, positions 0..3 | E, 4..7 | E, 8..11 | E, 12..15 |   of E = 4m .. 4m + 3
 *         a vector of the values       | 4m, positions 4g.. | 4m + 1 | ..  | 4m + 3 |           of g = 0 .. 3
 *
 * Weights lie in the order of positions. */
#ifndef PF_ATTN_LATENT_VNNI_H
#define PF_ATTN_LATENT_VNNI_H

#include "base/pf_latent.h"
#include "kernels/x86/attn_vnni.h"

enum { LATENT_WORDS = 2 * PF_LATENT_PLANE };         /* bytes from an element's words to those four elements on */

/* In the caller's scratch. */
struct attn_latent {
    struct attn_vnni vnni;                           /* c, less: of the latent */
    int32_t cp[PF_ATTN_I16_QUERIES][PF_I16_BLOCK];
    int32_t less_p[PF_ATTN_I16_QUERIES][2];
    _Alignas(64) int8_t values[PF_I16_BLOCK * 2 * PF_I16_HEAD_MAX];
};
_Static_assert(sizeof(struct attn_latent) <= PF_ATTN_LATENT_SCRATCH, "fits the scratch");

/* ---- Scores ---------------------------------------------------------------------------------------------------- */

/* One of the two parts of queries and positions. */
struct latent_part {
    const int8_t *q, *words;     /* planes [2][n] of the first query; the words of the part's first elements */
    size_t        stride, run;   /* bytes from query to query; from the first 32 positions to the others */
    int           n;
    int32_t     (*less)[2], (*c)[PF_I16_BLOCK];
};

/* The block that comes next is fetched line after line, some at each step of the first four tiles of queries, the first
 * two or the first one. */
struct latent_ahead {
    const int8_t *at;            /* NULL: nothing is left to be fetched */
    int           lines;         /* for a vector of the present block */
};

ATTN_INLINE void latent_fetch(struct latent_ahead *f, int n_v)
{
    if (!f->at)
        return;
    for (int i = 0; i < f->lines * n_v; i++, f->at += 64)
        attn_fetch_line(f->at);
}

/* n_q queries from number i times n_v vectors of positions from number v. */
ATTN_INLINE void latent_scores_tile(const struct latent_part *t, struct latent_ahead *ahead, int i, const int n_q,
                                    int v, const int n_v)
{
    const __m512i bias = _mm512_set1_epi8(-128);
    const int8_t *q = t->q + (size_t)i * t->stride, *at[4];
    size_t n = (size_t)t->n;
    __m512i upper[ATTN_QT][4], middle[ATTN_QT][4];
    for (int u = 0; u < n_v; u++)
        at[u] = t->words + (size_t)((v + u) / 2) * t->run + (v + u) % 2 * 64;
    for (int j = 0; j < n_q; j++)
        for (int u = 0; u < n_v; u++) {
            upper[j][u] = _mm512_set1_epi32(-t->less[i + j][0]);
            middle[j][u] = _mm512_set1_epi32(-t->less[i + j][1]);
        }
    for (size_t e = 0; e < n; e += 4) {
        __m512i kh[4], kl[4];
        latent_fetch(ahead, n_v / 2);
        for (int u = 0; u < n_v; u++) {
            const int8_t *word = at[u] + e / 4 * LATENT_WORDS;
            kh[u] = _mm512_xor_si512(_mm512_loadu_si512(word), bias);
            kl[u] = _mm512_xor_si512(_mm512_loadu_si512(word + PF_LATENT_PLANE), bias);
        }
        for (int j = 0; j < n_q; j++) {
            __m512i qh = attn_word(q + (size_t)j * t->stride + e), ql = attn_word(q + (size_t)j * t->stride + n + e);
            for (int u = 0; u < n_v; u++) {
                upper[j][u] = _mm512_dpbusd_epi32(upper[j][u], kh[u], qh);
                middle[j][u] = _mm512_dpbusd_epi32(middle[j][u], kl[u], qh);
                middle[j][u] = _mm512_dpbusd_epi32(middle[j][u], kh[u], ql);
            }
        }
    }
    for (int j = 0; j < n_q; j++)
        for (int u = 0; u < n_v; u++)
            _mm512_storeu_si512(t->c[i + j] + (v + u) * 16,
                                _mm512_add_epi32(_mm512_slli_epi32(upper[j][u], 8), middle[j][u]));
}

static void latent_scores(const struct latent_part *t, struct latent_ahead *ahead, int i, int n)
{
    for (int v = 0; n == ATTN_QT && v < 4; v += 2)
        latent_scores_tile(t, ahead, i, ATTN_QT, v, 2);
    if (n == 1)
        latent_scores_tile(t, ahead, i, 1, 0, 4);
}

/* ---- Weights --------------------------------------------------------------------------------------------------- */

/* The weights of query i, which sees some positions, those of `span`. */
static void latent_weigh(const struct pf_attn_latent_args *a, struct attn_latent *s, const int8_t *block, int i,
                         struct attn_span span)
{
    const float *scale = (const float *)(const void *)(block + pf_latent_scales(a->hd_k, 0));
    const float *sp = scale + PF_I16_BLOCK, *lsv = sp + PF_I16_BLOCK, *rsv = lsv + PF_I16_BLOCK;
    __m512 y[4];
    __m512i w[4];
    for (int j = 0; j < 4; j++) {
        y[j] = _mm512_loadu_ps(lsv + 16 * j);
        if (a->hd_k > a->hd_v)
            y[j] = attn_y(_mm512_loadu_si512(s->cp[i] + 16 * j), sp + 16 * j, a->cqp[i], y[j]);
        y[j] = attn_y(_mm512_loadu_si512(s->vnni.c[i] + 16 * j), scale + 16 * j, a->cq[i], y[j]);
    }
    attn_weights(&s->vnni.sums, i, y, attn_bits(span), rsv, w);
    for (int j = 0; j < 4; j++) {
        __m128i upper = _mm512_cvtepi32_epi8(_mm512_srli_epi32(w[j], 8)), lower = _mm512_cvtepi32_epi8(w[j]);
        _mm_storeu_si128((__m128i *)(void *)(s->vnni.w[i][0] + 16 * j), upper);
        _mm_storeu_si128((__m128i *)(void *)(s->vnni.w[i][1] + 16 * j), lower);
    }
}

/* ---- Values ---------------------------------------------------------------------------------------------------- */

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

/* The block's values as attn_values_tile reads them: [16 groups of 4 positions][hd_v / 16][plane][16][4]. */
static void latent_values(const struct pf_attn_latent_args *a, struct attn_latent *s, const int8_t *block)
{
    size_t step = (size_t)a->hd_v / 16 * ATTN_VECTOR;
    for (int m = 0; m < a->hd_v / 16; m++)
        for (int p = 0; p < PF_I16_BLOCK; p += 16) {
            const int8_t *from = block + pf_latent_at(a->hd_k, p, 16 * m);
            int8_t *to = s->values + (size_t)(p / 4) * step + (size_t)m * ATTN_VECTOR;
            latent_transpose(from, to, step);
            latent_transpose(from + PF_LATENT_PLANE, to + PF_I16_PLANE, step);
        }
}

/* ---- A chunk --------------------------------------------------------------------------------------------------- */

/* What comes after the block at position `at`: the last query sees the most. Scales are fetched at once. */
ATTN_INLINE struct latent_ahead latent_ahead(const struct pf_attn_latent_args *a, int at)
{
    int lines = a->n_q >= 4 * ATTN_QT ? 1 : a->n_q >= 2 * ATTN_QT ? 2 : 4;
    const int8_t *next = a->next;
    if (at + PF_I16_BLOCK < a->hi[a->n_q - 1])
        next = (const int8_t *)a->chunk + pf_latent_block(a->hd_k, at + PF_I16_BLOCK);
    for (size_t i = 0; next && i < 4 * PF_I16_BLOCK * sizeof(float); i += 64)
        attn_fetch_line(next + pf_latent_scales(a->hd_k, 0) + i);
    return (struct latent_ahead){ next, lines };
}

/* The parts of a block. */
static void latent_parts(const struct pf_attn_latent_args *a, struct attn_latent *s, const int8_t *block,
                         struct latent_part part[2])
{
    size_t stride = 2 * (size_t)a->hd_k, run = (size_t)a->hd_k / 4 * LATENT_WORDS, n = (size_t)a->hd_v;
    part[0] = (struct latent_part){ a->q, block, stride, run, a->hd_v, s->vnni.less, s->vnni.c };
    part[1] = (struct latent_part){ a->q + 2 * n, block + n / 4 * LATENT_WORDS, stride, run, a->hd_k - a->hd_v,
                                    s->less_p, s->cp };
}

/* Scores and weights of n queries from number i, which are ATTN_QT or one; false: none of them sees anything. */
static bool latent_tile(const struct pf_attn_latent_args *a, const struct pf_attn_i16_args *like, struct attn_latent *s,
                        struct latent_ahead *ahead, int at, int i, int n)
{
    const int8_t *block = (const int8_t *)a->chunk + pf_latent_block(a->hd_k, at);
    struct latent_part part[2];
    struct attn_span seen[ATTN_QT];
    bool any = false;
    for (int j = 0; j < n; j++) {
        seen[j] = attn_seen(like, i + j, at);
        any |= seen[j].lo < seen[j].hi;
    }
    if (!any)
        return false;
    latent_parts(a, s, block, part);
    latent_scores(&part[0], ahead, i, n);
    if (part[1].n)
        latent_scores(&part[1], ahead, i, n);
    for (int j = 0; j < n; j++)
        if (seen[j].lo < seen[j].hi) {
            latent_weigh(a, s, block, i + j, seen[j]);
        } else {
            memset(s->vnni.w[i + j], 0, sizeof s->vnni.w[i + j]);
            attn_skip(&s->vnni.sums, i + j);
        }
    return true;
}

static void latent_block(const struct pf_attn_latent_args *a, const struct pf_attn_i16_args *like,
                         struct attn_latent *s, int at)
{
    const int8_t *block = (const int8_t *)a->chunk + pf_latent_block(a->hd_k, at);
    struct latent_ahead ahead = latent_ahead(a, at);
    struct attn_ahead nothing = { 0 };
    bool made = false;
    for (int i = 0, n; i < a->n_q; i += n) {
        n = a->n_q - i >= ATTN_QT ? ATTN_QT : 1;
        if (!latent_tile(a, like, s, &ahead, at, i, n))
            continue;
        if (!made)
            latent_values(a, s, block);
        made = true;
        (n == 1 ? attn_values_one : attn_values_four)(like, &s->vnni, s->values, &nothing, i);
        if ((i / ATTN_QT + 1) * ahead.lines >= 4)
            ahead.at = NULL;
    }
}

static void attn_latent_vnni(const struct pf_attn_latent_args *a)
{
    struct attn_latent *s = a->scratch;
    struct pf_attn_i16_args like = { .n_q = a->n_q, .hd_v = a->hd_v, .lo = a->lo, .hi = a->hi, .part = a->part,
                                     .part_stride = a->part_stride };
    int n_pe = a->hd_k - a->hd_v;
    for (int i = 0; i < a->n_q; i++) {
        const int8_t *q = a->q + (size_t)i * 2 * (size_t)a->hd_k;
        attn_begin(&like, &s->vnni.sums, i);
        attn_sum_query(q, a->hd_v, s->vnni.less[i]);
        attn_sum_query(q + 2 * a->hd_v, n_pe, s->less_p[i]);
    }
    for (int at = 0; at < PF_I16_CHUNK; at += PF_I16_BLOCK)
        latent_block(a, &like, s, at);
    for (int i = 0; i < a->n_q; i++)
        attn_end(&like, &s->vnni.sums, i);
}

#endif
