/* Attention in whole numbers (docs/numerics.md, base/pf_i16.h): what its kernels share.
 *
 *     cu_i16_rows.cu   rows of q, k, v become numbers: queries in scratch, keys and values in their chunks
 *     cu_i16_few.cu    attention of few rows: chunks over all of the GPU, cu_i16_fold.cu folds them
 *     cu_i16_eight.cu  the same of up to eight rows of a KV head, where few chunks are seen
 *     cu_i16_many.cu   attention of a prompt
 *     cu_i16_group.cu  the same by products of warpgroups, where a GPU has them
 *     cu_far.cu        of few rows: queries to the host, partials from there
 *
 * A row of these kernels is a token and a query head; those of one KV head are numbered token by token, head by head,
 * and 16 of them are a tile of mma m16n8k32. In it lane l, with g = l / 4 and t = l % 4, holds rows g and g + 8: of a
 * block's scores the positions 8 i + 2 t and the next for i = 0 .. 7, of sums of values the elements 32 j + 8 t .. + 7.
 *
 * Lines of 128 bytes in shared memory, which are a vector of both planes, lie there with their eight pieces of 16 bytes
 * swapped by twice the line's number for t (spread): so that the eight lanes which read together touch all banks. */
#ifndef PF_CU_I16_H
#define PF_CU_I16_H

#include <cuda_pipeline.h>

#include "kernels/cuda/cu_attention.h"

enum { BLOCK = PF_I16_BLOCK, LINE = 128, N_BLOCKS = CHUNK / BLOCK };

struct i16_attention {
    struct pf_attention_op a;
    struct pf_kv_view      kv;
    struct cu_i16          s;
    int                    n_chunks;
    struct cu_x            x;        /* where few rows go in int8 too, or q NULL */
    int                   *fault;
};

/* What a tile's lane knows of one of its rows. */
struct i16_row {
    int  token, head, first, pos;    /* it sees [first, pos] */
    bool there;
};

CU_INLINE struct i16_row i16_row_of(const struct i16_attention &o, int hk, int r)
{
    int group = o.a.n_head / o.kv.n_kv_head, token = r / group;
    if (token >= o.a.rows)
        return { 0, 0, INT32_MAX, -1, false };
    int pos = *(const volatile int32_t *)&o.a.pos[token];
    return { token, hk * group + r % group, first_visible(o.a, pos), pos, true };
}

/* Where the block of positions BLOCK * b .. lies among the keys, among the values; hd as in kv. */
CU_INLINE char *i16_keys(const struct pf_kv_view &kv, int hd, int b, int hk)
{
    return pf_kv_i16_keys(&kv, b * BLOCK, hk) + b % N_BLOCKS * BLOCK * pf_i16_key_bytes(hd);
}

CU_INLINE char *i16_values_of(const struct pf_kv_view &kv, int hd, int b, int hk)
{
    return pf_kv_i16_values(&kv, b * BLOCK, hk) + b % N_BLOCKS * BLOCK * pf_i16_value_bytes(hd);
}

/* A row of queries in scratch: for each 32 elements and each t 16 bytes, elements 4 t .. and 16 + 4 t .. of the upper
 * plane, then of the lower. Where words w = 4 elements go; the lower plane's is 2 words further. */
CU_INLINE int i16_query_word(int w)
{
    return (w / 8 * 4 + w % 4) * 4 + w / 4 % 2;
}

/* The queries of 32 elements as operands, from 16 bytes of each of the lane's rows. */
struct i16_queries {
    uint32_t upper[4], lower[4];
};

CU_INLINE struct i16_queries i16_pair(uint4 a, uint4 b)
{
    return { { a.x, b.x, a.y, b.y }, { a.z, b.z, a.w, b.w } };
}

/* The host's chunks, which the device's loops leave out. Where there are any, nothing is fetched before a kernel's
 * turn: the queries that the kernel ahead shows to the host might stand behind what is read from there. */
struct i16_host {
    int first, n;
};

CU_INLINE struct i16_host i16_host_of(const struct i16_attention &o)
{
    struct i16_host h = { INT32_MAX, 0 };
    if (o.s.by_host) {
        const volatile struct pf_far_range *r = o.s.by_host;
        h.first = r->first;
        h.n = r->end - h.first;
    }
    return h;
}

/* The chunk that is `step` of the device's chunks behind c, which is one of them or -1. */
CU_INLINE int i16_chunk(const struct i16_host &h, int c, int step)
{
    int next = c + step;
    return c < h.first && next >= h.first ? next + h.n : next;
}

CU_INLINE void i16_load(const char *p, uint32_t (&v)[4])
{
    uint4 a = *(const uint4 *)p;
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
}

/* The piece of a line that lane l reads first for the upper plane; 64 bytes from it, up or down, is the lower one's. */
CU_INLINE int i16_spread(int lane)
{
    return ((lane / 4 % 4) ^ (2 * (lane % 4))) * 16;
}

/* Exact sums of four tiles of 8 columns. */
struct i16_sums {
    int upper[4][4], middle[4][4];
};

/* Adds products of 32 in depth. a: of the rows; b: at `at` the lane's pieces of the first 16, `step` bytes on those of
 * the other 16. */
template <bool SIGNED>
CU_INLINE void i16_add(struct i16_sums &s, const uint32_t (&upper)[4], const uint32_t (&lower)[4], const char *at,
                       int spread, int step)
{
    uint32_t h0[4], h1[4], l0[4], l1[4];
    i16_load(at + spread, h0);
    i16_load(at + step + spread, h1);
    i16_load(at + (spread ^ 64), l0);
    i16_load(at + step + (spread ^ 64), l1);
#pragma unroll
    for (int i = 0; i < 4; i++)
        mma32_add<SIGNED>(s.upper[i], upper, h0[i], h1[i]);
#pragma unroll
    for (int i = 0; i < 4; i++)
        mma32_add<SIGNED>(s.middle[i], lower, h0[i], h1[i]);
#pragma unroll
    for (int i = 0; i < 4; i++)
        mma32_add<SIGNED>(s.middle[i], upper, l0[i], l1[i]);
}

CU_INLINE float i16_sum(const struct i16_sums &s, int i, int c)
{
    return (float)(256 * s.upper[i][c] + s.middle[i][c]);
}

/* What follows is done for EIGHTS of a lane's two rows: with 1, the tile's upper eight are none.
 *
 * y of four tiles, whose 32 positions sk and lsv are of. */
template <int EIGHTS = 2>
CU_INLINE void i16_scores(const struct i16_sums &s, const float *sk, const float *lsv, const float (&cq)[2],
                          float (*y)[4])
{
    int at = threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float2 k = *(const float2 *)(sk + 8 * i + at), v = *(const float2 *)(lsv + 8 * i + at);
#pragma unroll
        for (int c = 0; c < 2 * EIGHTS; c++)
            y[i][c] = fmaf(i16_sum(s, i, c) * (c & 1 ? k.y : k.x), cq[c >> 1], c & 1 ? v.y : v.x);
    }
}

/* Weights of a block as operands, by 32 positions; and what the block gives each of the lane's rows: maximum, sums. */
struct i16_weights {
    uint32_t upper[2][4], lower[2][4];
    float    m[2], z[2][2];          /* z: sums 2 t and 2 t + 1 */
};

/* Positions that a row does not see, of a block that begins at position p0. */
template <int EIGHTS = 2>
CU_INLINE void i16_mask(float (&y)[8][4], const struct i16_row (&row)[2], int p0)
{
    int at = p0 + threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
        for (int c = 0; c < 2 * EIGHTS; c++) {
            int p = at + 8 * i + (c & 1);
            if (p < row[c >> 1].first || p > row[c >> 1].pos)
                y[i][c] = -INFINITY;
        }
}

/* rsv(i): that of the lane's two positions of tile i. Where nothing was masked, no y is -inf. */
template <bool MASKED, int EIGHTS = 2, class R>
CU_INLINE void i16_weigh(const float (&y)[8][4], R rsv, struct i16_weights &w)
{
    w = { {}, {}, { -INFINITY, -INFINITY }, {} };
#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
        for (int c = 0; c < 2 * EIGHTS; c++)
            w.m[c >> 1] = fmaxf(y[i][c], w.m[c >> 1]);   /* a NaN is left out */
#pragma unroll
    for (int r = 0; r < EIGHTS; r++)
        for (int h = 1; h < 4; h *= 2) {
            float other = __shfl_xor_sync(ALL_LANES, w.m[r], h);
            w.m[r] = fmaxf(other, w.m[r]);
        }
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
        uint32_t bits[2][4];
#pragma unroll
        for (int u = 0; u < 2; u++) {
            float2 s = rsv(i + u);
#pragma unroll
            for (int c = 0; c < 2 * EIGHTS; c++) {
                float v = y[i + u][c], e = pf_exp2_neg(v - w.m[c >> 1]), scale = c & 1 ? s.y : s.x;
                if (MASKED && v == -INFINITY)
                    e = scale = 0;
                w.z[c >> 1][c & 1] = fmaf(e, scale, w.z[c >> 1][c & 1]);
                bits[u][c] = pf_float_bits(fmaf(e, PF_I16_WEIGHT, 0x1p23f));    /* lower, upper, two bytes more */
            }
        }
#pragma unroll
        for (int r = 0; r < EIGHTS; r++) {
            uint32_t first = permute(bits[0][2 * r], bits[0][2 * r + 1], 0x5140),
                     second = permute(bits[1][2 * r], bits[1][2 * r + 1], 0x5140);
            w.lower[i / 4][i / 2 % 2 * 2 + r] = permute(first, second, 0x5410);
            w.upper[i / 4][i / 2 % 2 * 2 + r] = permute(first, second, 0x7632);
        }
    }
}

/* Weighted sums of 32 elements of the values; at: the lane's line of positions 2 t .. of the block, `step` bytes before
 * that of 16 positions on. */
CU_INLINE void i16_values(struct i16_sums &s, const struct i16_weights &w, const char *at, int spread, int step)
{
    s = {};
#pragma unroll
    for (int i = 0; i < 2; i++)
        i16_add<false>(s, w.upper[i], w.lower[i], at + 2 * i * step, spread, step);
}

/* How much what is there and what is new weigh when they join: the factor of nothing new is a negative zero, so that
 * what is there keeps its bits. */
struct i16_join {
    float old, fresh;
};

CU_INLINE struct i16_join i16_joined(float &m, float fresh)
{
    float top = m > fresh ? m : fresh;
    struct i16_join j = { pf_exp2_neg(m - top), pf_exp2_neg(fresh - top) };
    m = top;
    if (fresh == -INFINITY)
        j = { 1.0f, -0.0f };
    return j;
}

/* Factor that turns the weighted sum into the result. */
CU_INLINE float i16_last_factor(const struct pf_attention_op &a, int head, float m, float z)
{
    if (!a.sinks)
        return 1.0f / z;
    float sink = a.sinks[head] * PF_LOG2_E, top = m > sink ? m : sink, shrink = pf_exp2_neg(m - top);
    return shrink / fmaf(z, shrink, pf_exp2_neg(sink - top));
}

CU_INLINE int lanes_least(int v)
{
    for (int h = 16; h > 0; h /= 2)
        v = min(v, __shfl_xor_sync(ALL_LANES, v, h));
    return v;
}

/* Attention of many rows by products of warpgroups, cu_i16_group.cu: whether this GPU has them, for such heads. */
extern "C" bool pf_cu_i16_takes_groups(const struct i16_attention *o, size_t shared_bytes);
extern "C" cudaError_t pf_cu_i16_groups(cudaStream_t st, const struct i16_attention *o);

/* Attention of many rows, cu_i16_many.cu: whether it takes such heads on this GPU. */
extern "C" bool pf_cu_i16_takes_many(const struct i16_attention *o, size_t shared_bytes);
extern "C" cudaError_t pf_cu_i16_many(cudaStream_t st, const struct i16_attention *o, size_t shared_bytes);

#endif
