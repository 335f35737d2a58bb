/* Attention of a prompt to a cached latent. The bits are those of cu_attention.cu. A block has ROWS rows, TOKENS tokens
 * of GROUP heads, and goes over the chunks, a piece of the keys after another in shared memory:
 *
 *     per chunk    keys: a warp has queries of HEADS rows in registers and takes half of a piece
 *                  weights [ROWS][256]: a warp a row
 *                  values: a warp has HEADS rows and half of the elements
 *
 * While one piece is computed with, the next is copied. Running sums are in shared memory, as registers hold queries
 * and sums of values in turn. */
#include <limits.h>

#include "kernels/cuda/cu_latent.h"

enum { TOKENS = 2, ROWS = TOKENS * GROUP, THREADS = 256, N_WARPS = THREADS / WARP, PARTS = N_WARPS * HEADS / ROWS,
       PIECE_BYTES = 64 };               /* of each element of a piece's positions */

/* Positions of a piece. */
template <class P>
CU_HOST_FN int piece_of(void)
{
    return PIECE_BYTES / (int)sizeof *(P)NULL;
}

struct tile {
    char  *pieces;                       /* two */
    float *weights;                      /* [ROWS][WEIGHTS] */
    float *acc;                          /* [ROWS][hd_v] */
    float *m, *z, *old, *fresh;          /* [ROWS] */
};

static size_t tile_bytes(int hd_k, int hd_v)
{
    return 2 * PIECE_BYTES * (size_t)hd_k + sizeof(float) * ROWS * (size_t)(WEIGHTS + hd_v + 4);
}

CU_INLINE struct tile carve(char *shared, int hd_k, int hd_v)
{
    struct tile t = { shared };
    t.weights = (float *)(shared + 2 * PIECE_BYTES * hd_k);
    t.acc = t.weights + ROWS * WEIGHTS;
    t.m = t.acc + ROWS * hd_v;
    t.z = t.m + ROWS, t.old = t.z + ROWS, t.fresh = t.old + ROWS;
    return t;
}

/* What the block's tokens see of chunk c, and what any of them does: never nothing, so that there is a piece. */
struct view {
    struct span of[TOKENS], any;
};

CU_INLINE struct view view_of(const struct attention &o, int token0, int c)
{
    struct view v = { {}, { CHUNK, 0 } };
#pragma unroll
    for (int i = 0; i < TOKENS; i++)
        if (token0 + i < o.a.rows) {
            v.of[i] = span_of(o, token0 + i, c * CHUNK, CHUNK);
            if (v.of[i].lo < v.of[i].hi)
                v.any = { min(v.any.lo, v.of[i].lo), max(v.any.hi, v.of[i].hi) };
        }
    if (v.any.lo >= v.any.hi)
        v.any = { 0, 1 };
    return v;
}

/* Weights of a row, and what becomes of its running maximum and sum. */
CU_INLINE void enter(const struct tile &t, int r, const struct span &seen)
{
    int lane = threadIdx.x % WARP;
    float x[CHUNK / WARP];
#pragma unroll
    for (int i = 0; i < CHUNK / WARP; i++) {
        int p = i * WARP + lane;
        x[i] = p >= seen.lo && p < seen.hi ? t.weights[r * WEIGHTS + p] : -INFINITY;
    }
    struct weighed w = weigh(x, t.weights + r * WEIGHTS);
    if (lane == 0) {
        float m = t.m[r], both = m > w.top ? m : w.top, old = pf_expf(m - both), fresh = pf_expf(w.top - both);
        t.z[r] = fmaf(t.z[r], old, w.sum * fresh);
        t.m[r] = both;
        t.old[r] = old;
        t.fresh[r] = fresh;
    }
}

/* Scores of a piece's part, positions [p, p + n), of which `keys` has those from p on. */
template <int E, class P>
CU_INLINE void score_part(const float (&q)[HEADS][E], P keys, int p, int n, float scale, const struct span &seen,
                          float *weights)
{
    int lane = threadIdx.x % WARP;
#pragma unroll 1
    for (int i = 0; i < n; i += POSITIONS)
        if (p + i < seen.hi && p + i + POSITIONS > seen.lo)
            weights[lane % HEADS * WEIGHTS + p + i + lane / HEADS] = dots(q, keys + i * (E * WARP)) * scale;
}

/* blockIdx: group of heads, tokens; the last tokens, which see most, first. */
template <class P, int E, int HD>
static __global__ void __launch_bounds__(THREADS, 1) prompt(const __grid_constant__ struct attention o)
{
    BLOCK_MEMORY(float4, shared);
    enum { N = HD / PARTS / WARP };      /* elements of a lane */
    const int n = piece_of<P>(), key_bytes = bytes_of<P>(E * WARP);
    struct tile t = carve((char *)shared, E * WARP, HD);
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, token0 = (gridDim.y - 1 - blockIdx.y) * TOKENS;
    int row = warp % (ROWS / HEADS) * HEADS, token = row / GROUP, part = warp / (ROWS / HEADS);
    int head = blockIdx.x * GROUP + row % GROUP, d = part * (HD / PARTS) + lane * N, turn = 0;
    int last = min(token0 + (int)TOKENS, o.a.rows) - 1, begin = INT_MAX, end = 0;
    for (int i = token0; i <= last; i++) {
        begin = min(begin, first_visible(o.a, o.a.pos[i]) / CHUNK);
        end = max(end, o.a.pos[i] / CHUNK + 1);
    }
    for (int i = threadIdx.x; i < ROWS * HD; i += THREADS)
        t.acc[i] = 0;
    if (threadIdx.x < ROWS) {
        t.m[threadIdx.x] = -INFINITY;
        t.z[threadIdx.x] = 0;
    }
    auto fetch = [&](int c, int p, bool keys) {
        const char *from = byte_at(element_at<P>(o.kv.k, pf_kv_row(&o.kv, c * CHUNK + p, 0) * (E * WARP)));
        fetch_rows(t.pieces + turn * PIECE_BYTES * E * WARP, [&](int i) { return from + i * key_bytes; },
                   keys ? key_bytes : bytes_of<P>(HD), 0, n);
    };
    auto next = [&]() {                          /* what was fetched is there, and may be fetched over after the next */
        __pipeline_wait_prior(0);
        __syncthreads();
        turn ^= 1;
        return element_at<P>(t.pieces + (turn ^ 1) * PIECE_BYTES * E * WARP, 0);
    };
    struct view v = view_of(o, token0, begin);
    fetch(begin, v.any.lo / n * n, true);
#pragma unroll 1
    for (int c = begin; c < end; c++) {
        int first = v.any.lo / n * n, to = v.any.hi;
        struct span seen = token ? v.of[1] : v.of[0];
        {
            float q[HEADS][E];
            load_queries(o, token0 + token, head, q);
#pragma unroll 1
            for (int p = first; p < to; p += n) {
                P keys = next();
                p + n < to ? fetch(c, p + n, true) : fetch(c, first, false);
                int mine = p + part * (n / PARTS);
                score_part(q, keys + part * (n / PARTS) * (E * WARP), mine, n / PARTS, o.a.scale, seen,
                           t.weights + row * WEIGHTS);
            }
        }
        __syncthreads();
#pragma unroll 1
        for (int r = warp; r < ROWS; r += N_WARPS) {
            struct span of = r / GROUP ? v.of[1] : v.of[0];
            if (of.lo < of.hi)
                enter(t, r, of);
        }
        float ac[HEADS][N] = {};
        struct view ahead = c + 1 < end ? view_of(o, token0, c + 1) : v;
#pragma unroll 1
        for (int p0 = first; p0 < to; p0 += n) {
            P values = next();
            if (p0 + n < to)
                fetch(c, p0 + n, false);
            else if (c + 1 < end)
                fetch(c + 1, ahead.any.lo / n * n, true);
            int from = max(seen.lo & ~3, p0), until = min(seen.hi, p0 + n);
#pragma unroll 1
            for (int p = from; p < until; p += 4)
                add_four(t.weights + row * WEIGHTS, values + (size_t)((p - p0) * HD + d), HD, p, seen, ac);
        }
        if (seen.lo < seen.hi)
#pragma unroll
            for (int h = 0; h < HEADS; h++)
#pragma unroll
                for (int e = 0; e < N; e++) {
                    float *acc = &t.acc[(row + h) * HD + d + e];
                    *acc = fmaf(*acc, t.old[row + h], ac[h][e] * t.fresh[row + h]);
                }
        v = ahead;
    }
#pragma unroll
    for (int h = 0; h < HEADS; h++)
        if (token0 + token < o.a.rows && head + h < o.a.n_head) {
            float *out = o.a.out + ((size_t)(token0 + token) * o.a.n_head + head + h) * HD + d,
                  f = last_factor(o.a, head + h, t.m[row + h], t.z[row + h]);
#pragma unroll
            for (int e = 0; e < N; e++)
                out[e] = t.acc[(row + h) * HD + d + e] * f;
        }
}

template <class P, int E, int HD>
static cudaError_t launch(cudaStream_t st, const struct attention &o)
{
    size_t bytes = tile_bytes(E * WARP, HD);
    cudaError_t e = allow_bytes(prompt<P, E, HD>, bytes);
    dim3 grid(ceil_div(o.a.n_head, GROUP), ceil_div(o.a.rows, TOKENS));
    return e != cudaSuccess ? e : launch_in_turn(prompt<P, E, HD>, grid, THREADS, bytes, st, o);
}

template <class P>
static cudaError_t launch(cudaStream_t st, const struct attention &o)
{
    return o.kv.hd_k == 576 ? launch<P, 18, 512>(st, o) : launch<P, 10, 256>(st, o);
}

extern "C" bool pf_cu_latent_prompt_takes(const struct attention *o, size_t shared_bytes)
{
    return ((o->kv.hd_k == 576 && o->kv.hd_v == 512) || (o->kv.hd_k == 320 && o->kv.hd_v == 256)) &&
           tile_bytes(o->kv.hd_k, o->kv.hd_v) <= shared_bytes;
}

extern "C" cudaError_t pf_cu_latent_prompt(cudaStream_t st, const struct attention *o)
{
    return o->kv.type == PF_KV_F16 ? launch<const uint16_t *>(st, *o) : launch<const float *>(st, *o);
}
