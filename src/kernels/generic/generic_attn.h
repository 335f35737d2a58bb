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

#include "kernels/generic/generic_half.h"
#include "kernels/generic/generic_ops.h"
#include "kernels/kernels.h"

/* Positions per block; floats of one converted block (and so the largest head); queries per group. */
enum { ROWS_MAX = 16, ROWS_FLOATS = 8192, GROUP_MAX = 64 };

/* Rows p0 .. p0 + n of a packed matrix as floats: in place, or converted into buf. */
static inline const float *rows_f32(const void *base, int p0, int n, int hd, int is_f16, float *buf)
{
    if (!is_f16)
        return (const float *)base + (size_t)p0 * (size_t)hd;
    load_f16(buf, (const uint16_t *)base + (size_t)p0 * (size_t)hd, (size_t)n * (size_t)hd);
    return buf;
}

static inline float dot_f32(const float *restrict x, const float *restrict y, int n)
{
    float s[PF_LANES] = {0};
    int i = 0;
    for (; i + PF_LANES <= n; i += PF_LANES)
        for (int j = 0; j < PF_LANES; j++)
            s[j] = __builtin_fmaf(x[i + j], y[i + j], s[j]);
    for (int j = 0; i + j < n; j++)
        s[j] = __builtin_fmaf(x[i + j], y[i + j], s[j]);
    return fold32(s);
}

/* The positions that any query sees, and how many rows fit a block. */
struct span {
    int lo, hi;
};

static struct span attn_span(const struct pf_attn_args *a)
{
    struct span s = { PF_KV_CHUNK, 0 };
    for (int i = 0; i < a->n_q; i++)
        if (a->lo[i] < a->hi[i]) {
            s.lo = min_int(s.lo, a->lo[i]);
            s.hi = max_int(s.hi, a->hi[i]);
        }
    return s;
}

static int block_rows(int hd)
{
    return max_int(1, min_int(ROWS_MAX, ROWS_FLOATS / hd));
}

static inline void attn_scores(const struct pf_attn_args *a, struct span s, int is_f16, float *buf)
{
    int step = block_rows(a->hd_k);
    for (int p0 = s.lo; p0 < s.hi; p0 += step) {
        int p1 = min_int(p0 + step, s.hi);
        const float *rows = rows_f32(a->k, p0, p1 - p0, a->hd_k, is_f16, buf);
        for (int i = 0; i < a->n_q; i++) {
            const float *q = a->q + (size_t)i * a->q_stride;
            for (int p = max_int(p0, a->lo[i]); p < min_int(p1, a->hi[i]); p++)
                a->score[i * PF_KV_CHUNK + p] = a->scale * dot_f32(q, rows + (size_t)(p - p0) * (size_t)a->hd_k, a->hd_k);
        }
    }
}

static inline void attn_values(const struct pf_attn_args *a, struct span s, int is_f16, float *buf)
{
    int step = block_rows(a->hd_v);
    memset(a->ac, 0, (size_t)a->n_q * (size_t)a->hd_v * sizeof *a->ac);
    for (int p0 = s.lo; p0 < s.hi; p0 += step) {
        int p1 = min_int(p0 + step, s.hi);
        const float *rows = rows_f32(a->v, p0, p1 - p0, a->hd_v, is_f16, buf);
        for (int i = 0; i < a->n_q; i++)
            for (int p = max_int(p0, a->lo[i]); p < min_int(p1, a->hi[i]); p++)
                op_axpy(a->ac + (size_t)i * (size_t)a->hd_v, a->score[i * PF_KV_CHUNK + p],
                        rows + (size_t)(p - p0) * (size_t)a->hd_v, a->hd_v);
    }
}

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

static inline void attn_group(const struct pf_attn_args *a, int is_f16)
{
    float buf[ROWS_FLOATS] __attribute__((aligned(64)));
    struct mix mix[GROUP_MAX];
    struct span s = attn_span(a);
    attn_scores(a, s, is_f16, buf);
    attn_weights(a, mix);
    attn_values(a, s, is_f16, buf);
    attn_merge(a, mix);
}

/* Queries in groups, whose vectors, scores and sums stay in cache together. */
static inline void attn_chunk(const struct pf_attn_args *args, int is_f16)
{
    assert(args->hd_k <= ROWS_FLOATS && args->hd_v <= ROWS_FLOATS);
    struct pf_attn_args a = *args;
    for (int left = args->n_q; left > 0; left -= GROUP_MAX) {
        a.n_q = min_int(left, GROUP_MAX);
        attn_group(&a, is_f16);
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
    attn_chunk(a, 1);
}

static void op_attn_f32(const struct pf_attn_args *a)
{
    attn_chunk(a, 0);
}

#endif
