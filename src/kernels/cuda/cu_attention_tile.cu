/* Attention of a prompt: 32 rows at a time, a row being a token and a query head, those of one KV head together,
 * against keys and values in shared memory. The bits are those of cu_attention.cu.
 *
 *     per chunk of 256 positions, 64 at a time:  keys become float; a thread owns 4 x 4 dots
 *                                                weights [32][256]; then a warp a row: maximum, exp, sum
 *                                                values become float; a thread owns 4 rows x 4 NV elements
 *                                                and adds position after position; then the running sums
 *
 * While one piece of 64 is computed, the next is copied into shared memory as it lies in the cache.
 *
 * A dot has 32 accumulators (kernels.h), E elements of each. They are taken one at a time, in the order in which the
 * fold needs them, so that a thread holds six partial sums of a dot and not 32; a row lies in shared memory by
 * accumulator, the E elements of one side by side, zeros where the head is shorter. A zero adds nothing: at most the
 * sign of a zero, which exp does not see. */
#include <cuda_pipeline.h>
#include <limits.h>

#include "kernels/cuda/cu_attention.h"

enum { ROWS = 32, KEYS = 64, THREADS = 128, WEIGHTS = CHUNK + 4, NO_CHUNK = INT_MAX };

/* Row r is token r / n_heads and head r % n_heads of those that a block takes. */
struct shape {
    int n_heads, n_tokens, n_groups;     /* heads and tokens of a block; blocks that share the heads of a KV head */
    int raw_bytes;
};

struct tile {
    char  *raw;                          /* [KEYS] keys or values of the next piece, as in the cache */
    float *q, *kv;                       /* [ROWS], [KEYS] keys by accumulator; or [KEYS][hd_v] values */
    float *weight;                       /* [ROWS][WEIGHTS] */
    float *m, *z, *old, *fresh;          /* [ROWS] */
    int   *lo, *hi;                      /* [ROWS] positions of the chunk that the row sees; lo = hi: none */
};

CU_INLINE int lanes_min(int v)
{
    for (int h = 16; h > 0; h /= 2)
        v = min(v, __shfl_xor_sync(ALL_LANES, v, h));
    return v;
}

/* Floats of a row by accumulator; four more, so that neighbouring rows begin four banks apart. */
template <int E> struct width { enum { FLOATS = 32 * E + 4 }; };

template <int E>
CU_INLINE struct tile carve(char *shared, int raw_bytes, int hd_v)
{
    struct tile t;
    t.raw = shared;
    t.q = (float *)(shared + raw_bytes);
    t.kv = t.q + ROWS * width<E>::FLOATS;
    t.weight = t.kv + KEYS * max((int)width<E>::FLOATS, hd_v);
    t.m = t.weight + ROWS * WEIGHTS;
    t.z = t.m + ROWS, t.old = t.z + ROWS, t.fresh = t.old + ROWS;
    t.lo = (int *)(t.fresh + ROWS), t.hi = t.lo + ROWS;
    return t;
}

static int raw_bytes(const struct pf_kv_view *kv)
{
    return KEYS * (int)pf_kv_row_bytes(kv->type, max(kv->hd_k, kv->hd_v));
}

static size_t tile_bytes(int width, const struct pf_kv_view *kv)
{
    int hd_v = kv->hd_v;
    size_t floats = (size_t)(ROWS * width + KEYS * max(width, hd_v) + ROWS * WEIGHTS + 6 * ROWS);
    return (size_t)raw_bytes(kv) + sizeof(float) * floats;
}

/* The thread's rows are first_row() + 8 i, its keys first_key() + 16 i. Lanes with one row differ in bit 1, lanes with
 * one key in bit 0: so reads of 16 bytes are shared. */
CU_INLINE int first_row(void)
{
    return threadIdx.x / 64 * 4 + (threadIdx.x & 1) + (threadIdx.x >> 1 & 2);
}

CU_INLINE int first_key(void)
{
    return threadIdx.x / 32 % 2 * 8 + (threadIdx.x >> 1 & 1) + (threadIdx.x >> 2 & 6);
}

CU_INLINE void load_n(const float *p, float (&v)[2])
{
    float2 a = *(const float2 *)p;
    v[0] = a.x, v[1] = a.y;
}

template <int E>
CU_INLINE void load_n(const float *p, float (&v)[E])
{
#pragma unroll
    for (int i = 0; i < E; i += 4) {
        float4 a = *(const float4 *)(p + i);
        v[i] = a.x, v[i + 1] = a.y, v[i + 2] = a.z, v[i + 3] = a.w;
    }
}

/* The fold of accumulators I, I + H, I + 2 H ... of 4 x 4 dots. */
template <int E, int H, int I>
struct fold {
    static __device__ __forceinline__ void of(const float *q, const float *k, float (&s)[4][4])
    {
        float other[4][4];
        fold<E, 2 * H, I>::of(q, k, s);
        fold<E, 2 * H, I + H>::of(q, k, other);
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                s[i][j] = s[i][j] + other[i][j];
    }
};

template <int E, int I>
struct fold<E, 32, I> {
    static __device__ __forceinline__ void of(const float *q, const float *k, float (&s)[4][4])
    {
        float a[4][E], b[4][E];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            load_n(q + 8 * i * width<E>::FLOATS + I * E, a[i]);
            load_n(k + 16 * i * width<E>::FLOATS + I * E, b[i]);
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                s[i][j] = 0;
#pragma unroll
                for (int e = 0; e < E; e++)
                    s[i][j] = fmaf(a[i][e], b[j][e], s[i][j]);
            }
    }
};

/* Queries, by accumulator. Rows that are not there are zeros. */
template <int E>
CU_INLINE void load_queries(const struct attention &o, const struct shape &s, int token0, int head0, int n_heads,
                            const struct tile &t)
{
    for (int i = threadIdx.x; i < ROWS * 32 * E; i += THREADS) {
        int r = i / (32 * E), e = i % (32 * E), token = token0 + r / s.n_heads, h = r % s.n_heads;
        float v = 0;
        if (r < s.n_heads * s.n_tokens && token < o.a.rows && h < n_heads && e < o.kv.hd_k) {
            v = o.a.q[((size_t)token * o.a.n_head + head0 + h) * o.kv.hd_k + e];
            v = o.a.row_scale ? v * o.a.row_scale[token] : v;
        }
        t.q[r * width<E>::FLOATS + e % 32 * E + e / 32] = v;
    }
}

/* KEYS keys, by accumulator: a thread moves eight accumulators of a key, all their elements. Eight lanes move eight
 * keys. */
template <int E, class P>
CU_INLINE void load_keys(P k, int hd, float *to)
{
#pragma unroll
    for (int i = threadIdx.x; i < KEYS * 4; i += THREADS) {
        int key = i / 32 * 8 + i % 8, first = i / 8 % 4 * 8;
        float v[E][8];
#pragma unroll
        for (int e = 0; e < E; e++) {
#pragma unroll
            for (int j = 0; j < 8; j++)
                v[e][j] = 0;
            if (32 * e + first < hd)
                load8(k + (key * hd + 32 * e + first), v[e]);
        }
        float *at = to + key * width<E>::FLOATS + first * E;
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int e = 0; e < E; e += 2)
                *(float2 *)(at + j * E + e) = make_float2(v[e][j], v[e + 1][j]);
    }
}

/* Starts copying the KEYS rows that begin at p; of any type that is a multiple of 16 bytes. */
template <class P>
CU_INLINE void copy_ahead(P p, int hd, char *raw)
{
    for (int i = threadIdx.x * 16; i < bytes_of<P>(KEYS * hd); i += THREADS * 16)
        __pipeline_memcpy_async(raw + i, byte_at(p) + i, 16);
    __pipeline_commit();
}

/* Waits for what was copied ahead; shared memory may then be written anew. */
CU_INLINE void wait_copied(void)
{
    __pipeline_wait_prior(0);
    __syncthreads();
}

template <class P>
CU_INLINE void load_values(P v, int hd, float *to)
{
#pragma unroll 4
    for (int i = threadIdx.x; i < KEYS * hd / 8; i += THREADS) {
        float x[8];
        load8(v + (8 * i), x);
        *(float4 *)(to + 8 * i) = make_float4(x[0], x[1], x[2], x[3]);
        *(float4 *)(to + 8 * i + 4) = make_float4(x[4], x[5], x[6], x[7]);
    }
}

/* Scores of the rows with the keys of positions p0 on. */
template <int E>
CU_INLINE void scores(const struct tile &t, float scale, int p0)
{
    int row = first_row(), key = first_key();
    const float *q = t.q + row * width<E>::FLOATS, *k = t.kv + key * width<E>::FLOATS;
    float even[4][4], s[4][4];
#pragma unroll 1
    for (int half = 0; half < 2; half++) {
        fold<E, 2, 0>::of(q + half * E, k + half * E, s);
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                even[i][j] = half ? even[i][j] + s[i][j] : s[i][j];
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int r = row + 8 * i, lo = t.lo[r], hi = t.hi[r];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int p = p0 + key + 16 * j;
            t.weight[r * WEIGHTS + p] = p >= lo && p < hi ? even[i][j] * scale : -INFINITY;
        }
    }
}

/* Weights, maximum and sum of a row in the chunk, and what becomes of its running ones. A warp a row. */
CU_INLINE void weigh(const struct tile &t, int r, int lo, int hi)
{
    int lane = threadIdx.x % WARP;
    float *w = t.weight + r * WEIGHTS, top = -INFINITY, sum = 0;
    for (int i = (lo & ~31) + lane; i < hi; i += WARP)
        top = w[i] > top ? w[i] : top;
    top = warp_max(top);
    for (int i = (lo & ~31) + lane; i < hi; i += WARP) {
        float e = pf_expf(w[i] - top);
        w[i] = e;
        sum = sum + e;
    }
    sum = warp_fold(sum);
    if (lane == 0) {
        float m = t.m[r], both = m > top ? m : top, old = pf_expf(m - both), fresh = pf_expf(top - both);
        t.z[r] = fmaf(t.z[r], old, sum * fresh);
        t.m[r] = both;
        t.old[r] = old;
        t.fresh[r] = fresh;
    }
}

/* What a thread sums of the values: rows first_row() + 8 i, elements 4 (column + 16 j) and the next three. */
template <int NV> struct sums { float v[4][NV][4]; };

/* Adds positions p .. p + 3, which lie at `at` of the values; a row takes only what it sees if they do not all see
 * it. */
template <int NV>
CU_INLINE void add_four(const struct tile &t, int p, int at, int hd_v, bool all, const int (&lo)[4], const int (&hi)[4],
                        struct sums<NV> &s)
{
    int row = first_row(), column = first_key();
    float w[4][4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        load_n(t.weight + (row + 8 * i) * WEIGHTS + p, w[i]);
#pragma unroll
    for (int k = 0; k < 4; k++) {
        float v[NV][4];
#pragma unroll
        for (int j = 0; j < NV; j++)
            load_n(t.kv + (at + k) * hd_v + min(4 * (column + 16 * j), hd_v - 4), v[j]);
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (all || (p + k >= lo[i] && p + k < hi[i]))
#pragma unroll
                for (int j = 0; j < NV; j++)
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        s.v[i][j][e] = fmaf(w[i][k], v[j][e], s.v[i][j][e]);
    }
}

/* blockIdx: heads, tokens; the last tokens, which see most, first. */
template <int E, int NV, class P>
static __global__ void __launch_bounds__(THREADS, 2) tiles(const __grid_constant__ struct attention o,
                                                            const __grid_constant__ struct shape s)
{
    BLOCK_MEMORY(float4, shared);
    struct tile t = carve<E>((char *)shared, s.raw_bytes, o.kv.hd_v);
    int hk = blockIdx.x / s.n_groups, group = o.a.n_head / o.kv.n_kv_head,
        first_head = blockIdx.x % s.n_groups * s.n_heads;
    int head0 = hk * group + first_head, n_heads = min(s.n_heads, group - first_head);
    int token0 = (gridDim.y - 1 - blockIdx.y) * s.n_tokens, lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int token = token0 + lane / s.n_heads;
    bool there = lane < s.n_heads * s.n_tokens && token < o.a.rows && lane % s.n_heads < n_heads;
    int pos = there ? o.a.pos[token] : 0, first = there ? first_visible(o.a, pos) : 0;
    int begin = lanes_min(there ? first / CHUNK : NO_CHUNK), next_c;
    float acc[4][NV][4] = {};

    load_queries<E>(o, s, token0, head0, n_heads, t);
    if (warp == 0) {
        t.m[lane] = -INFINITY;
        t.z[lane] = 0;
    }
    for (int c = begin; c != NO_CHUNK; c = next_c) {
        /* lane r knows what row r sees; then the range that any row sees, and the one that all do that see something */
        int lo = max(first - c * CHUNK, 0), hi = min(pos + 1 - c * CHUNK, (int)CHUNK);
        bool sees = there && lo < hi;
        int least = lanes_min(sees ? lo : CHUNK), most = -lanes_min(sees ? -hi : 0);
        int all_from = -lanes_min(sees ? -lo : 0), all_to = lanes_min(sees ? hi : CHUNK);
        size_t at = pf_kv_row(&o.kv, c * CHUNK, hk);
        P k = element_at<P>(o.kv.k, at * o.kv.hd_k), v = element_at<P>(o.kv.v, at * o.kv.hd_v);
        int first_piece = least / KEYS * KEYS,
            my_next = there && pos / CHUNK > c ? max(first / CHUNK, c + 1) : NO_CHUNK;
        next_c = lanes_min(my_next);
        int next_least = lanes_min(my_next == next_c && next_c != NO_CHUNK ? max(first - next_c * CHUNK, 0) : CHUNK);
        if (c == begin)
            copy_ahead(k + first_piece * o.kv.hd_k, o.kv.hd_k, t.raw);
        __syncthreads();
        if (warp == 0) {
            t.lo[lane] = sees ? lo : 0;
            t.hi[lane] = sees ? hi : 0;
        }
        for (int p0 = first_piece; p0 < most; p0 += KEYS) {
            wait_copied();
            load_keys<E>(element_at<P>(t.raw, 0), o.kv.hd_k, t.kv);
            __syncthreads();
            if (p0 + KEYS < most)
                copy_ahead(k + (p0 + KEYS) * o.kv.hd_k, o.kv.hd_k, t.raw);
            else
                copy_ahead(v + first_piece * o.kv.hd_v, o.kv.hd_v, t.raw);
            scores<E>(t, o.a.scale, p0);
        }
        __syncthreads();
        for (int r = warp; r < ROWS; r += THREADS / WARP)
            if (t.lo[r] < t.hi[r])
                weigh(t, r, t.lo[r], t.hi[r]);

        struct sums<NV> sum = {};
        int row_lo[4], row_hi[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            row_lo[i] = t.lo[first_row() + 8 * i], row_hi[i] = t.hi[first_row() + 8 * i];
        for (int p0 = first_piece; p0 < most; p0 += KEYS) {
            wait_copied();
            load_values(element_at<P>(t.raw, 0), o.kv.hd_v, t.kv);
            __syncthreads();
            if (p0 + KEYS < most)
                copy_ahead(v + (p0 + KEYS) * o.kv.hd_v, o.kv.hd_v, t.raw);
            else if (next_c != NO_CHUNK)
                copy_ahead(element_at<P>(o.kv.k, pf_kv_row(&o.kv, next_c * CHUNK + next_least / KEYS * KEYS, hk) *
                                                     o.kv.hd_k), o.kv.hd_k, t.raw);
            int from = max(least & ~3, p0), to = min(most, p0 + (int)KEYS);
#pragma unroll 1
            for (int p = from; p < to; p += 4)
                if (p >= all_from && p + 4 <= all_to)
                    add_four<NV>(t, p, p - p0, o.kv.hd_v, true, row_lo, row_hi, sum);
                else
                    add_four<NV>(t, p, p - p0, o.kv.hd_v, false, row_lo, row_hi, sum);
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (row_lo[i] < row_hi[i])
#pragma unroll
                for (int j = 0; j < NV; j++)
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        acc[i][j][e] = fmaf(acc[i][j][e], t.old[first_row() + 8 * i],
                                            sum.v[i][j][e] * t.fresh[first_row() + 8 * i]);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int r = first_row() + 8 * i, head = head0 + r % s.n_heads;
        if (r >= s.n_heads * s.n_tokens || token0 + r / s.n_heads >= o.a.rows || r % s.n_heads >= n_heads)
            continue;
        float *out = o.a.out + ((size_t)(token0 + r / s.n_heads) * o.a.n_head + head) * o.kv.hd_v,
              f = last_factor(o.a, head, t.m[r], t.z[r]);
#pragma unroll
        for (int j = 0; j < NV; j++) {
            int d = 4 * (first_key() + 16 * j);
            if (d < o.kv.hd_v)
                *(float4 *)(out + d) = make_float4(acc[i][j][0] * f, acc[i][j][1] * f, acc[i][j][2] * f,
                                                   acc[i][j][3] * f);
        }
    }
}

template <int E, int NV, class P>
static cudaError_t launch(cudaStream_t st, const struct attention &o)
{
    int group = o.a.n_head / o.kv.n_kv_head;
    struct shape s = { .n_heads = min(group, (int)ROWS) };
    size_t bytes = tile_bytes(width<E>::FLOATS, &o.kv);
    s.raw_bytes = raw_bytes(&o.kv);
    s.n_tokens = ROWS / s.n_heads;
    s.n_groups = ceil_div(group, s.n_heads);
    cudaError_t e = allow_bytes(tiles<E, NV, P>, bytes);
    if (e != cudaSuccess)
        return e;
    dim3 grid(o.kv.n_kv_head * s.n_groups, ceil_div(o.a.rows, s.n_tokens));
    return launch_in_turn(tiles<E, NV, P>, grid, THREADS, bytes, st, o, s);
}

template <int E, int NV>
static cudaError_t launch(cudaStream_t st, const struct attention &o)
{
    return o.kv.type == PF_KV_F16 ? launch<E, NV, const uint16_t *>(st, o) :
           o.kv.type == PF_KV_F32 ? launch<E, NV, const float *>(st, o) :
                                    launch<E, NV, struct q8_at>(st, o);
}

/* E of the tile for such heads. */
static int elements_of(const struct attention *o)
{
    int most = max(o->kv.hd_k, o->kv.hd_v);
    return most <= 64 ? 2 : most <= 128 ? 4 : 8;
}

extern "C" bool pf_cu_attention_tiled(const struct attention *o)
{
    int bytes;
    if (o->kv.v == o->kv.k || o->a.chosen || max(o->kv.hd_k, o->kv.hd_v) > 256 || o->kv.hd_k % 8 != 0 ||
        o->kv.hd_v % 8 != 0 || ask_device(cudaDevAttrMaxSharedMemoryPerBlockOptin, &bytes) != cudaSuccess)
        return false;
    return tile_bytes(32 * elements_of(o) + 4, &o->kv) <= (size_t)bytes;
}

extern "C" cudaError_t pf_cu_attention_tiles(cudaStream_t st, const struct attention *o)
{
    int e = elements_of(o);
    return e == 2 ? launch<2, 1>(st, *o) : e == 4 ? launch<4, 2>(st, *o) : launch<8, 4>(st, *o);
}
