/* Attention of one chunk: bodies, static, one copy per level. kernels.h holds the contract and the order.
 *
 * The chunk is walked in blocks of positions, converted to float once and used by every query:
 *
 *     scores  block of keys -> each query: dots into score[i][p]
 *     weights each query: score[i][0..256) becomes e_p (0 where it sees nothing), mc, zc
 *     values  block of values -> each query: ac[i] grows by e_p * v_p, p rising
 *     merge   each query: (m, z, acc) with (mc, zc, ac)
 *
 * A query's own arithmetic never depends on which other queries are there, nor on where blocks begin. */
#ifndef PF_GENERIC_ATTN_H
#define PF_GENERIC_ATTN_H

#include <assert.h>

#include "kernels/generic/generic_ops.h"
#include "kernels/kernels.h"

/* Positions per block; floats of one converted block (and so the largest head); queries per group; queries and keys of
 * one tile of scores, VEC together; vectors of one tile of values. */
enum { ROWS_MAX = 16, ROWS_FLOATS = 8192, GROUP_MAX = 64, TILE_K = 4, TILE_Q = VEC / TILE_K, TILE_V = 4 };

/* The positions lo <= p < hi. */
struct span {
    int lo, hi;
};

static inline struct span span_and(struct span a, struct span b)
{
    return (struct span){ max_int(a.lo, b.lo), min_int(a.hi, b.hi) };
}

static inline struct span query_span(const struct pf_attn_args *a, int i)
{
    return (struct span){ a->lo[i], a->hi[i] };
}

/* From the first to the last position that any query sees. */
static struct span attn_span(const struct pf_attn_args *a)
{
    struct span s = { PF_KV_CHUNK, 0 };
    for (int i = 0; i < a->n_q; i++)
        if (a->lo[i] < a->hi[i])
            s = (struct span){ min_int(s.lo, a->lo[i]), max_int(s.hi, a->hi[i]) };
    return s;
}

/* A block of rows as floats. */
struct rows {
    const float *f;
    struct span  at;
    int          hd;
    size_t       stride;
};

static inline const float *row_at(const struct rows *r, int p)
{
    return r->f + (size_t)(p - r->at.lo) * r->stride;
}

static inline void load_f16(float *restrict dst, const uint16_t *restrict src, size_t n)
{
    size_t i = 0;
    for (; i + VEC <= n; i += VEC)
        vec_store(dst + i, vec_load_f16(src + i));
    for (; i < n; i++)
        dst[i] = half_float(src[i]);
}

static inline void load_q8_0(float *restrict dst, const struct pf_block_q8_0 *restrict src, size_t n_blocks)
{
    for (size_t b = 0; b < n_blocks; b++) {
        float d = half_float(src[b].d);
        for (int i = 0; i < PF_LANES; i++)
            dst[b * PF_LANES + (size_t)i] = d * (float)src[b].qs[i];
    }
}

/* n elements from number `first` on, as floats. */
static inline void load_elements(float *dst, const void *base, size_t first, size_t n, enum pf_qtype type)
{
    if (type == PF_F16)
        load_f16(dst, (const uint16_t *)base + first, n);
    else
        load_q8_0(dst, (const struct pf_block_q8_0 *)base + first / PF_LANES, n / PF_LANES);
}

/* The block of a matrix that begins at position p: in place, or converted into buf, packed. */
static inline struct rows rows_load(const void *base, int hd, size_t stride, int p, struct span seen,
                                    enum pf_qtype type, float *buf)
{
    int n = min_int(max_int(1, min_int(ROWS_MAX, ROWS_FLOATS / hd)), seen.hi - p);
    size_t first = (size_t)p * stride;
    struct rows r = { .f = buf, .at = { p, p + n }, .hd = hd, .stride = (size_t)hd };
    if (type == PF_F32)
        r = (struct rows){ .f = (const float *)base + first, .at = r.at, .hd = hd, .stride = stride };
    else if (stride == (size_t)hd)
        load_elements(buf, base, first, (size_t)n * (size_t)hd, type);
    else
        for (int i = 0; i < n; i++)
            load_elements(buf + (size_t)i * (size_t)hd, base, first + (size_t)i * stride, (size_t)hd, type);
    return r;
}

/* ---- Scores ---------------------------------------------------------------------------------------------------- */

/* n_q queries times TILE_K keys from position p: d[query][key] gets the 32 accumulators folded to VEC. A vector of them
 * takes every 32nd element from its own first; the loop over these vectors is unrolled, so that their sums
 * need not pass through memory. Keys past the block's end repeat its last one. */
static inline __attribute__((always_inline)) void tile_dots(const float *q, size_t q_stride, int n_q,
                                                            const struct rows *r, int p, vec d[][TILE_K])
{
    const float *k[TILE_K];
    vec part[PARTS][TILE_Q][TILE_K];
    for (int j = 0; j < TILE_K; j++)
        k[j] = row_at(r, min_int(p + j, r->at.hi - 1));
#pragma GCC unroll 8
    for (int v = 0; v < PARTS; v++) {
        vec s[TILE_Q][TILE_K] = {0};
        for (int e = v * VEC; e < r->hd; e += PF_LANES) {
            vec x[TILE_K];
            for (int j = 0; j < TILE_K; j++)
                x[j] = n_q > 1 ? vec_hold(vec_load(k[j] + e)) : vec_load(k[j] + e);
            for (int i = 0; i < n_q; i++) {
                vec y = vec_load(q + (size_t)i * q_stride + e);
                for (int j = 0; j < TILE_K; j++)
                    s[i][j] = vec_fma(y, x[j], s[i][j]);
            }
        }
        for (int i = 0; i < n_q; i++)
            for (int j = 0; j < TILE_K; j++)
                part[v][i][j] = s[i][j];
    }
    for (int h = PARTS / 2; h > 0; h /= 2)
        for (int v = 0; v < h; v++)
            for (int i = 0; i < n_q; i++)
                for (int j = 0; j < TILE_K; j++)
                    part[v][i][j] += part[v + h][i][j];
    for (int i = 0; i < n_q; i++)
        for (int j = 0; j < TILE_K; j++)
            d[i][j] = part[0][i][j];
}

/* The first min(n, max) of max floats. */
static inline void store_some(float *restrict dst, const float *restrict src, int n, int max)
{
    if (n >= max)
        memcpy(dst, src, (size_t)max * sizeof *dst);
    else
        for (int i = 0; i < n; i++)
            dst[i] = src[i];
}

/* TILE_Q queries against the block. */
static void scores_group(const struct pf_attn_args *a, int i, const struct rows *r)
{
    const float *q = a->q + (size_t)i * a->q_stride;
    for (int p = r->at.lo; p < r->at.hi; p += TILE_K) {
        vec d[TILE_Q][TILE_K];
        float out[TILE_Q][TILE_K];
        tile_dots(q, a->q_stride, TILE_Q, r, p, d);
        vec_store(out[0], vec_fold(d[0]) * a->scale);
        for (int j = 0; j < TILE_Q; j++)
            store_some(a->score + (i + j) * PF_KV_CHUNK + p, out[j], r->at.hi - p, TILE_K);
    }
}

/* One query against the block. */
static void scores_single(const struct pf_attn_args *a, int i, const struct rows *r)
{
    const float *q = a->q + (size_t)i * a->q_stride;
    for (int p = r->at.lo; p < r->at.hi; p += VEC) {
        vec d[TILE_Q][TILE_K] = {0};
        float out[VEC];
        for (int j = 0; j < TILE_Q && p + j * TILE_K < r->at.hi; j++)
            tile_dots(q, a->q_stride, 1, r, p + j * TILE_K, d + j);
        vec_store(out, vec_fold(d[0]) * a->scale);
        store_some(a->score + i * PF_KV_CHUNK + p, out, r->at.hi - p, VEC);
    }
}

/* A chunk's scores where heads are no multiple of VEC. */
static void scores_odd(const struct pf_attn_args *a, int i, const struct rows *r)
{
    const float *q = a->q + (size_t)i * a->q_stride;
    for (int p = r->at.lo; p < r->at.hi; p++) {
        const float *k = row_at(r, p);
        float s[PF_LANES] = {0};
        for (int e = 0; e < r->hd; e++)
            s[e % PF_LANES] = __builtin_fmaf(q[e], k[e], s[e % PF_LANES]);
        a->score[i * PF_KV_CHUNK + p] = fold32(s) * a->scale;
    }
}

/* Does any of n queries from i see something of the block? */
static int any_sees(const struct pf_attn_args *a, int i, int n, struct span at)
{
    int any = 0;
    for (int j = i; j < i + n; j++) {
        struct span s = span_and(query_span(a, j), at);
        any |= s.lo < s.hi;
    }
    return any;
}

static inline void attn_scores(const struct pf_attn_args *a, struct span seen, enum pf_qtype type, float *buf)
{
    int n_grouped = a->hd_k % VEC == 0 ? a->n_q / TILE_Q * TILE_Q : 0;
    struct rows r;
    for (int p = seen.lo; p < seen.hi; p = r.at.hi) {
        r = rows_load(a->k, a->hd_k, (size_t)a->hd_k, p, seen, type, buf);
        for (int i = 0; i < n_grouped; i += TILE_Q)
            if (any_sees(a, i, TILE_Q, r.at))
                scores_group(a, i, &r);
        for (int i = n_grouped; i < a->n_q; i++)
            if (any_sees(a, i, 1, r.at))
                (a->hd_k % VEC == 0 ? scores_single : scores_odd)(a, i, &r);
    }
}

/* ---- Values ---------------------------------------------------------------------------------------------------- */

/* n_v vectors of the sums of n_q queries, from element e on: plus weight times value for the positions of s. */
static inline __attribute__((always_inline)) void tile_values(const struct pf_attn_args *a, int i, int n_q, int e,
                                                              int n_v, const struct rows *r, struct span s)
{
    float *ac = a->ac + (size_t)i * (size_t)r->hd + e;
    const float *w = a->score + (size_t)i * PF_KV_CHUNK;
    vec sum[TILE_Q][TILE_V];
    for (int j = 0; j < n_q; j++)
        for (int v = 0; v < n_v; v++)
            sum[j][v] = vec_load(ac + (size_t)j * (size_t)r->hd + v * VEC);
    for (int p = s.lo; p < s.hi; p++) {
        const float *row = row_at(r, p) + e;
        vec x[TILE_V];
        for (int v = 0; v < n_v; v++)
            x[v] = n_q > 1 ? vec_hold(vec_load(row + v * VEC)) : vec_load(row + v * VEC);
        for (int j = 0; j < n_q; j++) {
            vec y = vec_all(w[j * PF_KV_CHUNK + p]);
            for (int v = 0; v < n_v; v++)
                sum[j][v] = vec_fma(y, x[v], sum[j][v]);
        }
    }
    for (int j = 0; j < n_q; j++)
        for (int v = 0; v < n_v; v++)
            vec_store(ac + (size_t)j * (size_t)r->hd + v * VEC, sum[j][v]);
}

static inline __attribute__((always_inline)) void values_of(const struct pf_attn_args *a, int i, int n_q,
                                                            const struct rows *r, struct span s)
{
    int e = 0;
    for (; e + TILE_V * VEC <= r->hd; e += TILE_V * VEC)
        tile_values(a, i, n_q, e, TILE_V, r, s);
    for (; e + VEC <= r->hd; e += VEC)
        tile_values(a, i, n_q, e, 1, r, s);
    for (; e < r->hd; e++)
        for (int j = i; j < i + n_q; j++)
            for (int p = s.lo; p < s.hi; p++) {
                float *ac = a->ac + (size_t)j * (size_t)r->hd + e;
                *ac = __builtin_fmaf(a->score[j * PF_KV_CHUNK + p], row_at(r, p)[e], *ac);
            }
}

static void values_group(const struct pf_attn_args *a, int i, const struct rows *r, struct span s)
{
    values_of(a, i, TILE_Q, r, s);
}

static void values_single(const struct pf_attn_args *a, int i, const struct rows *r, struct span s)
{
    values_of(a, i, 1, r, s);
}

/* Do the TILE_Q queries from i see the same positions of the block? */
static int see_alike(const struct pf_attn_args *a, int i, struct span at)
{
    struct span s = span_and(query_span(a, i), at);
    int alike = 1;
    for (int j = i + 1; j < i + TILE_Q; j++) {
        struct span t = span_and(query_span(a, j), at);
        alike &= s.lo == t.lo && s.hi == t.hi;
    }
    return alike;
}

/* A position that a query does not see is never multiplied in: its value may be anything. */
static inline void attn_values(const struct pf_attn_args *a, struct span seen, enum pf_qtype type, float *buf)
{
    struct rows r;
    size_t stride = a->v_stride ? a->v_stride : (size_t)a->hd_v;
    memset(a->ac, 0, (size_t)a->n_q * (size_t)a->hd_v * sizeof *a->ac);
    for (int p = seen.lo; p < seen.hi; p = r.at.hi) {
        r = rows_load(a->v, a->hd_v, stride, p, seen, type, buf);
        for (int i = 0, n; i < a->n_q; i += n) {
            struct span s = span_and(query_span(a, i), r.at);
            n = i + TILE_Q <= a->n_q && see_alike(a, i, r.at) ? TILE_Q : 1;
            if (s.lo < s.hi)
                (n == 1 ? values_single : values_group)(a, i, &r, s);
        }
    }
}

/* ---- Weights and the running sums -------------------------------------------------------------------------------- */

/* Scores to weights, in place. The sum is over whole blocks of 32 positions; what is not visible there weighs 0. */
static inline float weigh(float *restrict score, int lo, int hi, float *restrict zc)
{
    int lo32 = lo & -PF_LANES, hi32 = (hi + PF_LANES - 1) & -PF_LANES;
    for (int p = lo32; p < lo; p++)
        score[p] = -__builtin_inff();
    for (int p = hi; p < hi32; p++)
        score[p] = -__builtin_inff();
    float mc = max_of(score + lo32, hi32 - lo32);
    *zc = exp_sum(score + lo32, hi32 - lo32, mc, score + lo32);
    return mc;
}

/* How a query's history and this chunk enter its new sums. */
struct mix {
    float old, new;
};

/* Weights of all queries; m and z move on at once, acc waits for the values. */
static inline void attn_weights(const struct pf_attn_args *a, struct mix *restrict mix)
{
    for (int i = 0; i < a->n_q; i++) {
        if (a->lo[i] >= a->hi[i])
            continue;
        float zc, mc = weigh(a->score + (size_t)i * PF_KV_CHUNK, a->lo[i], a->hi[i], &zc);
        float m = a->m[i] > mc ? a->m[i] : mc;
        mix[i] = (struct mix){ .old = pf_expf(a->m[i] - m), .new = pf_expf(mc - m) };
        a->z[i] = __builtin_fmaf(a->z[i], mix[i].old, zc * mix[i].new);
        a->m[i] = m;
    }
}

static inline void attn_merge(const struct pf_attn_args *a, const struct mix *restrict mix)
{
    for (int i = 0; i < a->n_q; i++) {
        if (a->lo[i] >= a->hi[i])
            continue;
        float *restrict acc = a->acc + (size_t)i * a->acc_stride;
        const float *restrict ac = a->ac + (size_t)i * (size_t)a->hd_v;
        for (int d = 0; d < a->hd_v; d++)
            acc[d] = __builtin_fmaf(acc[d], mix[i].old, ac[d] * mix[i].new);
    }
}

static inline void attn_group(const struct pf_attn_args *a, enum pf_qtype type)
{
    float buf[ROWS_FLOATS] __attribute__((aligned(64)));
    struct mix mix[GROUP_MAX];
    struct span s = attn_span(a);
    attn_scores(a, s, type, buf);
    attn_weights(a, mix);
    attn_values(a, s, type, buf);
    attn_merge(a, mix);
}

/* Queries in groups, whose vectors, scores and sums stay in cache together. */
static inline void attn_chunk(const struct pf_attn_args *args, enum pf_qtype type)
{
    assert(args->hd_k <= ROWS_FLOATS && args->hd_v <= ROWS_FLOATS);
    struct pf_attn_args a = *args;
    for (int left = args->n_q; left > 0; left -= GROUP_MAX) {
        a.n_q = min_int(left, GROUP_MAX);
        attn_group(&a, type);
        a.q += GROUP_MAX * a.q_stride;
        a.acc += GROUP_MAX * a.acc_stride;
        a.score += GROUP_MAX * PF_KV_CHUNK;
        a.ac += (size_t)GROUP_MAX * (size_t)a.hd_v;
        a.lo += GROUP_MAX;
        a.hi += GROUP_MAX;
        a.m += GROUP_MAX;
        a.z += GROUP_MAX;
    }
}

static void op_attn_f16(const struct pf_attn_args *a)
{
    attn_chunk(a, PF_F16);
}

static void op_attn_f32(const struct pf_attn_args *a)
{
    attn_chunk(a, PF_F32);
}

static void op_attn_q8_0(const struct pf_attn_args *a)
{
    attn_chunk(a, PF_Q8_0);
}

#endif
