/* Attention to a latent in whole numbers with VNNI: one chunk against up to 64 queries, a block of 64 positions at a
 * time (base/pf_latent.h). Steps and sums are those of attn_vnni.h; its vectors of values are made of the words first:
 *
 *     scores   tiles of QT queries times vectors of positions, of both parts       -> c, cp [query][64]
 *     values   16 words, 4 x 4 lanes of 16 bytes and within each 4 x 4 bytes transposed, once for all queries
 *
 *         words of elements 4E ..      | E, positions 0..3 | E, 4..7 | E, 8..11 | E, 12..15 |   of E = 4m .. 4m + 3
 *         a vector of the values       | 4m, positions 4g.. | 4m + 1 | ..  | 4m + 3 |           of g = 0 .. 3
 *
 * Weights lie in the order of positions. */
#ifndef PF_ATTN_LATENT_VNNI_H
#define PF_ATTN_LATENT_VNNI_H

#include "kernels/x86/attn_vnni.h"

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

/* On the way through n_v vectors from number v: once for each 32 positions, as their first ones are read. */
ATTN_INLINE void latent_fetch(struct latent_ahead *f, int v, int n_v)
{
    int n = n_v * LANES > PF_LATENT_RUN ? 2 : 1;
    if (!f->at || v * LANES % PF_LATENT_RUN != 0)
        return;
    for (int i = 0; i < f->lines * n; i++, f->at += 64)
        attn_fetch_line(f->at);
}

/* n_q queries from number i times n_v vectors of positions from number v. */
ATTN_INLINE void latent_scores_tile(const struct latent_part *t, struct latent_ahead *ahead, int i, const int n_q,
                                    int v, const int n_v)
{
    const int8_t *q = t->q + (size_t)i * t->stride, *at[ATTN_NV_MAX];
    size_t n = (size_t)t->n;
    vi sum[ATTN_QT][ATTN_NV_MAX][ATTN_SUMS];
    for (int u = 0, p = v * LANES; u < n_v; u++, p += LANES)
        at[u] = t->words + (size_t)(p / PF_LATENT_RUN) * t->run + p % PF_LATENT_RUN * 4;
    for (int j = 0; j < n_q; j++)
        for (int u = 0; u < n_v; u++)
            attn_start(sum[j][u], -t->less[i + j][0], -t->less[i + j][1]);
    for (size_t e = 0; e < n; e += 4) {
        vi kh[ATTN_NV_MAX], kl[ATTN_NV_MAX];
        latent_fetch(ahead, v, n_v);
        for (int u = 0; u < n_v; u++) {
            const int8_t *word = at[u] + e / 4 * LATENT_WORDS;
            kh[u] = attn_key(word);
            kl[u] = attn_key(word + PF_LATENT_PLANE);
        }
        for (int j = 0; j < n_q; j++) {
            vi qh = attn_word(q + (size_t)j * t->stride + e), ql = attn_word(q + (size_t)j * t->stride + n + e);
            for (int u = 0; u < n_v; u++)
                attn_multiply(sum[j][u], kh[u], kl[u], qh, ql);
        }
    }
    for (int j = 0; j < n_q; j++)
        for (int u = 0; u < n_v; u++)
            vi_store(t->c[i + j] + (v + u) * LANES, attn_total(sum[j][u]));
}

static void latent_scores(const struct latent_part *t, struct latent_ahead *ahead, int i, int n)
{
    for (int v = 0; n == ATTN_QT && v < ATTN_VECTORS; v += ATTN_NV)
        latent_scores_tile(t, ahead, i, ATTN_QT, v, ATTN_NV);
    for (int v = 0; n == 1 && v < ATTN_VECTORS; v += ATTN_NV_MAX)
        latent_scores_tile(t, ahead, i, 1, v, ATTN_NV_MAX);
}

/* ---- Weights --------------------------------------------------------------------------------------------------- */

/* The weights of query i, which sees some positions, those of `span`. */
static void latent_weigh(const struct pf_attn_latent_args *a, struct attn_latent *s, const int8_t *block, int i,
                         struct attn_span span)
{
    const float *scale = (const float *)(const void *)(block + pf_latent_scales(a->hd_k, 0));
    const float *sp = scale + PF_I16_BLOCK, *lsv = sp + PF_I16_BLOCK, *rsv = lsv + PF_I16_BLOCK;
    vf y[ATTN_VECTORS];
    vi w[ATTN_VECTORS];
    for (int j = 0; j < ATTN_VECTORS; j++) {
        y[j] = vf_load(lsv + LANES * j);
        if (a->hd_k > a->hd_v)
            y[j] = attn_y(vi_load(s->cp[i] + LANES * j), sp + LANES * j, a->cqp[i], y[j]);
        y[j] = attn_y(vi_load(s->vnni.c[i] + LANES * j), scale + LANES * j, a->cq[i], y[j]);
    }
    attn_weights(&s->vnni.sums, i, y, span, rsv, w);
    latent_planes(w, s->vnni.w[i][0], s->vnni.w[i][1]);
}

/* ---- Values ---------------------------------------------------------------------------------------------------- */

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
