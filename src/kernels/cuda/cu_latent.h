/* What the kernels of attention to a cached latent share: dots of queries in registers with keys in shared memory, and
 * weighted sums of values there. All query heads see the same keys, which begin with the values. */
#ifndef PF_CU_LATENT_H
#define PF_CU_LATENT_H

#include <cuda_pipeline.h>

#include "kernels/cuda/cu_attention.h"

enum {
    GROUP = 16, HEADS = 8,               /* heads that share a block; of a warp's dots, and of a thread's sums */
    POSITIONS = WARP / HEADS,            /* of a warp's dots */
    WEIGHTS = CHUNK + 4                  /* floats from one row's weights to the next one's */
};

/* Positions [lo, hi) of those from p0 on, `most` of them, that a row sees; lo = hi: none. */
struct span {
    int lo, hi;
};

CU_INLINE struct span span_of(const struct attention &o, int row, int p0, int most)
{
    int pos = *(const volatile int32_t *)&o.a.pos[row];
    struct span s = { max(first_visible(o.a, pos) - p0, 0), min(pos + 1 - p0, most) };
    return { min(s.lo, max(s.hi, 0)), max(s.hi, 0) };
}

template <int H>
CU_INLINE void fold_dots(float (&s)[WARP])
{
#pragma unroll
    for (int j = 0; j < H; j++)
        s[j] = s[j] + __shfl_xor_sync(ALL_LANES, s[j + H], H);
}

/* The dots of POSITIONS keys of 32 E elements with HEADS queries. Lane l is accumulator l of each, and in the end has
 * dot l: of position l / HEADS and head l % HEADS. Before the fold, sum number j of a lane belongs to dot j ^ l. So at
 * each step of the fold, over lanes that differ in one bit, a lane sends the upper half of its sums and adds what comes
 * to the lower half, whichever half of the lanes it is in. q[j]: of head j ^ l % HEADS. */
template <int E, class P>
CU_INLINE float dots(const float (&q)[HEADS][E], P keys)
{
    int lane = threadIdx.x % WARP;
    float s[WARP];
#pragma unroll
    for (int j = 0; j < POSITIONS; j++) {
        P key = keys + (size_t)((j ^ lane / HEADS) * (E * WARP) + lane);
#pragma unroll
        for (int h = 0; h < HEADS; h++)
            s[j * HEADS + h] = 0;
#pragma unroll
        for (int e = 0; e < E; e++) {
            float x = value_of(loaded(key + e * WARP));
#pragma unroll
            for (int h = 0; h < HEADS; h++)
                s[j * HEADS + h] = fmaf(q[h][e], x, s[j * HEADS + h]);
        }
    }
    fold_dots<16>(s);
    fold_dots<8>(s);
    fold_dots<4>(s);
    fold_dots<2>(s);
    fold_dots<1>(s);
    return s[0];
}

/* Queries of a warp's HEADS heads from `head` on, as dots takes them; zeros where there is none. */
template <int E>
CU_INLINE void load_queries(const struct attention &o, int row, int head, float (&q)[HEADS][E])
{
    int lane = threadIdx.x % WARP;
    bool there = row < o.a.rows;
    float factor = there && o.a.row_scale ? o.a.row_scale[row] : 1.0f;
#pragma unroll
    for (int j = 0; j < HEADS; j++) {
        int h = head + (j ^ lane % HEADS);
        const float *from = o.a.q + ((size_t)row * o.a.n_head + h) * (E * WARP) + lane;
#pragma unroll
        for (int e = 0; e < E; e++)
            q[j][e] = there && h < o.a.n_head ? from[e * WARP] * factor : 0.0f;
    }
}

/* A row's scores in a chunk, lane l's those of positions i * WARP + l, become its weights; their maximum and sum. */
struct weighed {
    float top, sum;
};

CU_INLINE struct weighed weigh(float (&x)[CHUNK / WARP], float *weights)
{
    struct weighed w = { -INFINITY, 0 };
#pragma unroll
    for (int i = 0; i < CHUNK / WARP; i++)
        w.top = x[i] > w.top ? x[i] : w.top;
    w.top = warp_max(w.top);
#pragma unroll
    for (int i = 0; i < CHUNK / WARP; i++) {
        float e = pf_expf(x[i] - w.top);
        weights[i * WARP + threadIdx.x % WARP] = e;
        w.sum = w.sum + e;
    }
    w.sum = warp_fold(w.sum);
    return w;
}

/* N neighbouring elements, aligned as such. */
template <int N>
CU_INLINE void load_values(const uint16_t *p, float (&v)[N])
{
    uint32_t w[N / 2];
    if (N == 8)
        *(uint4 *)w = *(const uint4 *)p;
    else if (N == 4)
        *(uint2 *)w = *(const uint2 *)p;
    else
        w[0] = *(const uint32_t *)p;
#pragma unroll
    for (int i = 0; i < N; i++)
        v[i] = half_value((uint16_t)(w[i / 2] >> i % 2 * 16));
}

template <int N>
CU_INLINE void load_values(const float *p, float (&v)[N])
{
#pragma unroll
    for (int i = 0; i < N; i += 2) {
        float2 two = *(const float2 *)(p + i);
        v[i] = two.x, v[i + 1] = two.y;
    }
}

/* Adds positions p .. p + 3 of the chunk, one after another, of which the row sees those in [lo, hi), to the weighted
 * sums of HEADS heads and N elements. v: those of position p. */
template <int N, class P>
CU_INLINE void add_four(const float *weights, P v, int stride, int p, const struct span &seen, float (&ac)[HEADS][N])
{
    float w[HEADS][4];
    bool all = p >= seen.lo && p + 4 <= seen.hi;
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        float4 of = *(const float4 *)(weights + h * WEIGHTS + p);
        w[h][0] = of.x, w[h][1] = of.y, w[h][2] = of.z, w[h][3] = of.w;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float x[N];
        load_values(v + (size_t)(i * stride), x);
        if (all || (p + i >= seen.lo && p + i < seen.hi))
#pragma unroll
            for (int h = 0; h < HEADS; h++)
#pragma unroll
                for (int e = 0; e < N; e++)
                    ac[h][e] = fmaf(w[h][i], x[e], ac[h][e]);
    }
}

/* Starts copying n bytes, a multiple of 16, of each of the rows [from, to), of which row(i) is where number i lies, to
 * shared memory, where they lie one after another. */
template <class R>
CU_INLINE void fetch_rows(char *shared, R row, int n, int from, int to)
{
    int per = n / 16;
#pragma unroll 4
    for (int i = from * per + threadIdx.x; i < to * per; i += blockDim.x)
        __pipeline_memcpy_async(shared + i * 16, row(i / per) + i % per * 16, 16);
    __pipeline_commit();
}

#endif
