/* Attention of few rows to a cached latent. The bits are those of cu_attention.cu.
 *
 *     scores     a block per (GROUP heads, PIECE positions, row): a warp has queries of HEADS heads in registers
 *     values     a block per (GROUP heads, COLUMNS elements of the values, chunk, row): softmax of the chunk's scores,
 *                which each such block repeats, then its elements' weighted sums
 *     fold       a warp per 32 elements of a head: the chunks in their order
 *
 * The first two read each row of the latent once for GROUP heads, and there are enough of them, long before a context
 * is long, for all multiprocessors. Rows go ROWS at a time. Keys that are chosen are taken as if they lay one after
 * another. */
#include <limits.h>

#include "kernels/cuda/cu_latent.h"

enum { ROWS = CU_LATENT_ROWS, PIECE = 32, COLUMNS = 128, THREADS = 128, N_WARPS = THREADS / WARP };

/* What a row sees: keys of positions [first, end), or so many of a list. */
struct seen {
    int            first, end, n_seen;
    const int32_t *list;
};

CU_INLINE struct seen seen_of(const struct attention &o, int row)
{
    int n = *(const volatile int32_t *)&o.a.pos[row] + 1;
    if (o.a.chosen)
        return { 0, pf_chosen_keys(&o.a, n), n, pf_chosen_list(&o.a, row, 0) };
    return { first_visible(o.a, n - 1), n, n, NULL };
}

CU_INLINE struct span span_of(const struct seen &s, int p0, int most)
{
    int hi = max(min(s.end - p0, most), 0);
    return { min(max(s.first - p0, 0), hi), hi };
}

/* Where the keys of positions [span.lo, span.hi) of those from p0 on begin. */
CU_INLINE void find_keys(const struct attention &o, const struct seen &s, int p0, const struct span &span, int *rows)
{
    for (int i = span.lo + threadIdx.x; i < span.hi; i += THREADS)
        rows[i] = (int)pf_kv_row(&o.kv, s.list ? pf_chosen_key(&o.a, s.list, s.n_seen, p0 + i) : p0 + i, 0);
    __syncthreads();
}

/* Keys of positions before this one are of older steps. */
CU_INLINE int first_new(const struct attention &o)
{
    int first = INT_MAX;
    for (int r = 0; r < o.a.rows; r++)
        first = min(first, *(const volatile int32_t *)&o.a.pos[r]);
    return first;
}

/* Scores of a row and a group begin here: [n_chunks * CHUNK][GROUP]. */
CU_INLINE float *scores_of(const struct attention &o, int row, int group, int n_groups)
{
    return o.scores + ((size_t)row * n_groups + group) * o.n_chunks * CHUNK * GROUP;
}

/* blockIdx: group of heads, piece, row. Keys of older steps are copied before the kernel's turn, unless they are chosen
 * in this one. */
template <class P, int E>
static __global__ void __launch_bounds__(THREADS, 2) scores(const __grid_constant__ struct attention o)
{
    BLOCK_MEMORY(float4, shared);
    __shared__ int rows[PIECE];
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, row = blockIdx.z, p0 = blockIdx.y * PIECE;
    int half = warp % 2 * HEADS, first = warp / 2 * (PIECE / 2);
    struct seen seen = seen_of(o, row);
    struct span span = span_of(seen, p0, PIECE);
    if (o.a.chosen || span.lo >= span.hi)
        wait_turn();
    if (span.lo >= span.hi)
        return;
    find_keys(o, seen, p0, span, rows);
    auto key = [&](int i) { return byte_at(element_at<P>(o.kv.k, (size_t)rows[i] * (E * WARP))); };
    int old = o.a.chosen ? span.lo : min(max(first_new(o) - p0, span.lo), span.hi);
    float q[HEADS][E];
    fetch_rows((char *)shared, key, bytes_of<P>(E * WARP), span.lo, old);
    if (!o.a.chosen)
        wait_turn();
    fetch_rows((char *)shared, key, bytes_of<P>(E * WARP), old, span.hi);
    load_queries(o, row, blockIdx.x * GROUP + half, q);
    __pipeline_wait_prior(0);
    __syncthreads();
    float *to = scores_of(o, row, blockIdx.x, gridDim.x) + half + lane % HEADS;
#pragma unroll 1
    for (int p = first; p < first + PIECE / 2; p += POSITIONS)
        if (p < span.hi && p + POSITIONS > span.lo)
            to[(size_t)(p0 + p + lane / HEADS) * GROUP] = dots(q, element_at<P>(shared, p * (E * WARP))) * o.a.scale;
}

/* The four heads of a warp: a lane reads their scores of a position at once. */
enum { OF_WARP = GROUP / N_WARPS };
static_assert(OF_WARP == 4, "16 bytes");

CU_INLINE void weigh_heads(const float *scores, const struct span &seen, float *weights, struct weighed (&w)[OF_WARP])
{
    int lane = threadIdx.x % WARP, head = threadIdx.x / WARP * OF_WARP;
    float x[OF_WARP][CHUNK / WARP];
#pragma unroll
    for (int i = 0; i < CHUNK / WARP; i++) {
        int p = i * WARP + lane;
        bool there = p >= seen.lo && p < seen.hi;
        float4 v = there ? __ldcg((const float4 *)(scores + (size_t)p * GROUP + head)) :
                           make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
        x[0][i] = v.x, x[1][i] = v.y, x[2][i] = v.z, x[3][i] = v.w;
    }
#pragma unroll
    for (int h = 0; h < OF_WARP; h++)
        w[h] = weigh(x[h], weights + (head + h) * WEIGHTS);
}

/* blockIdx: group of heads and columns, chunk, row. All keys are there before the kernel's turn: what is ahead of
 * scores has ended when scores begins. So is what was chosen, but not for the first cache. */
template <class P>
static __global__ void __launch_bounds__(THREADS, 2) values(const __grid_constant__ struct attention o, int n_groups)
{
    BLOCK_MEMORY(float4, shared);
    float *weights = (float *)shared;
    char *columns = (char *)(weights + GROUP * WEIGHTS);
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, group = blockIdx.x % n_groups, row = blockIdx.z,
        c = blockIdx.y, first = blockIdx.x / n_groups * COLUMNS, hd_v = o.kv.hd_v;
    __shared__ int rows[CHUNK];
    struct seen all = seen_of(o, row);
    struct span seen = span_of(all, c * CHUNK, CHUNK);
    if (o.a.chosen || seen.lo >= seen.hi)
        wait_turn();
    if (seen.lo >= seen.hi)
        return;
    find_keys(o, all, c * CHUNK, seen, rows);
    fetch_rows(columns, [&](int i) { return byte_at(element_at<P>(o.kv.k, (size_t)rows[i] * o.kv.hd_k + first)); },
               bytes_of<P>(COLUMNS), seen.lo, seen.hi);
    if (!o.a.chosen)
        wait_turn();
    struct weighed w[OF_WARP];
    float ac[HEADS][2] = {};
    weigh_heads(scores_of(o, row, group, n_groups) + (size_t)c * CHUNK * GROUP, seen, weights, w);
    __pipeline_wait_prior(0);
    __syncthreads();
    int half = warp % 2 * HEADS, d = (warp / 2 * WARP + lane) * 2, n_heads = o.a.n_head - group * GROUP;
#pragma unroll 2
    for (int p = seen.lo & ~3; p < seen.hi; p += 4)
        add_four(weights + half * WEIGHTS, element_at<P>(columns, p * COLUMNS + d), COLUMNS, p, seen, ac);
    auto part = [&](int head) {
        return o.part + (((size_t)row * o.a.n_head + group * GROUP + head) * o.n_chunks + c) * (hd_v + 2);
    };
#pragma unroll
    for (int h = 0; h < HEADS; h++)
        if (half + h < n_heads)
            *(float2 *)(part(half + h) + first + d) = make_float2(ac[h][0], ac[h][1]);
#pragma unroll
    for (int h = 0; h < OF_WARP; h++)
        if (first == 0 && lane == 0 && warp * OF_WARP + h < n_heads)
            *(float2 *)(part(warp * OF_WARP + h) + hd_v) = make_float2(w[h].top, w[h].sum);
}

/* blockIdx: head, THREADS elements, row, which is number row0 + blockIdx.z of those that x has. A lane has the factors
 * of one of WARP chunks, and its element of each. */
static __global__ void __launch_bounds__(THREADS) fold(const __grid_constant__ struct attention o, int row0)
{
    int lane = threadIdx.x % WARP, d = blockIdx.y * THREADS + threadIdx.x, head = blockIdx.x, row = blockIdx.z,
        stride = o.kv.hd_v + 2;
    struct seen seen = seen_of(o, row);
    int begin = seen.first / CHUNK, end = (seen.end - 1) / CHUNK + 1;
    const float *part = o.part + ((size_t)row * o.a.n_head + head) * o.n_chunks * stride;
    float m = -INFINITY, z = 0, acc = 0;
    wait_turn();
#pragma unroll 1
    for (int c0 = begin; c0 < end; c0 += WARP) {
        int n = min((int)WARP, end - c0);
        const float *mine = part + (size_t)(c0 + min(lane, n - 1)) * stride + o.kv.hd_v;
        float mc = lane < n ? __ldcg(mine) : -INFINITY, zc = __ldcg(mine + 1), top = mc;
#pragma unroll
        for (int h = 1; h < WARP; h *= 2) {
            float other = __shfl_up_sync(ALL_LANES, top, h);
            top = lane >= h && other > top ? other : top;
        }
        top = m > top ? m : top;
        float before = __shfl_up_sync(ALL_LANES, top, 1), old = pf_expf((lane ? before : m) - top),
              fresh = pf_expf(mc - top);
        m = __shfl_sync(ALL_LANES, top, WARP - 1);
#pragma unroll 16
        for (int i = 0; i < n; i++) {
            float a = __shfl_sync(ALL_LANES, old, i), b = __shfl_sync(ALL_LANES, fresh, i);
            z = fmaf(z, a, __shfl_sync(ALL_LANES, zc, i) * b);
            acc = fmaf(acc, a, __ldcg(part + (size_t)(c0 + i) * stride + d) * b);
        }
    }
    float y = acc * last_factor(o.a, head, m, z);
    o.a.out[((size_t)row * o.a.n_head + head) * o.kv.hd_v + d] = y;
    if (o.x.q)
        quantise_block(y, &o.x, o.a.n_head * o.kv.hd_v, row0 + row, (head * o.kv.hd_v + d) / 32, o.fault);
}

static size_t keys_bytes(const struct attention &o)
{
    return PIECE * pf_kv_row_bytes(o.kv.type, o.kv.hd_k);
}

static size_t values_bytes(const struct attention &o)
{
    return GROUP * WEIGHTS * sizeof(float) + CHUNK * pf_kv_row_bytes(o.kv.type, COLUMNS);
}

template <class P, int E>
static cudaError_t launch(cudaStream_t st, const struct attention &all)
{
    struct attention o = all;
    if (o.a.chosen)                              /* the last run may be another one, seen without being chosen */
        o.n_chunks = min(o.n_chunks, ceil_div((int64_t)(o.a.max_chosen + 1) * o.a.run, CHUNK));
    int n_groups = ceil_div(o.a.n_head, GROUP), n_columns = o.kv.hd_v / COLUMNS;
    cudaError_t e = allow_bytes(scores<P, E>, keys_bytes(o));
    e = e != cudaSuccess ? e : allow_bytes(values<P>, values_bytes(o));
    for (int r = 0; r < all.a.rows && e == cudaSuccess; r += ROWS) {
        o.a.rows = min((int)ROWS, all.a.rows - r);
        o.a.q = all.a.q + (size_t)r * o.a.n_head * o.kv.hd_k;
        o.a.out = all.a.out + (size_t)r * o.a.n_head * o.kv.hd_v;
        o.a.pos = all.a.pos + r;
        o.a.row_scale = all.a.row_scale ? all.a.row_scale + r : NULL;
        o.a.chosen = all.a.chosen ? pf_chosen_list(&all.a, r, 0) : NULL;
        dim3 pieces(n_groups, o.n_chunks * (CHUNK / PIECE), o.a.rows),
            columns(n_groups * n_columns, o.n_chunks, o.a.rows), elements(o.a.n_head, o.kv.hd_v / THREADS, o.a.rows);
        e = launch_early(scores<P, E>, pieces, THREADS, keys_bytes(o), st, o);
        e = e != cudaSuccess ? e : launch_early(values<P>, columns, THREADS, values_bytes(o), st, o, n_groups);
        e = e != cudaSuccess ? e : launch_early(fold, elements, THREADS, 0, st, o, r);
    }
    return e;
}

template <int E>
static cudaError_t launch(cudaStream_t st, const struct attention &o)
{
    return o.kv.type == PF_KV_F16 ? launch<const uint16_t *, E>(st, o) : launch<const float *, E>(st, o);
}

extern "C" size_t pf_cu_latent_floats(int rows, int n_head, int n_chunks)
{
    return (size_t)min(rows, (int)ROWS) * ceil_div(n_head, GROUP) * GROUP * n_chunks * CHUNK;
}

/* Prompts of fewer rows than this would leave multiprocessors without a block of their own kernel. */
enum { PROMPT = 128 };

extern "C" bool pf_cu_latent_takes(const struct attention *o, size_t shared_bytes)
{
    return o->scores && o->kv.v == o->kv.k && o->kv.n_kv_head == 1 && !o->a.blocks &&
           (o->kv.type == PF_KV_F16 || o->kv.type == PF_KV_F32) && (o->kv.hd_k == 576 || o->kv.hd_k == 320) &&
           o->kv.hd_v % COLUMNS == 0 && values_bytes(*o) <= shared_bytes &&
           keys_bytes(*o) <= shared_bytes;
}

extern "C" cudaError_t pf_cu_latent(cudaStream_t st, const struct attention *o, size_t shared_bytes)
{
    if (o->a.rows >= PROMPT && !o->a.chosen && pf_cu_latent_prompt_takes(o, shared_bytes))
        return pf_cu_latent_prompt(st, o);
    return o->kv.hd_k == 576 ? launch<18>(st, *o) : launch<10>(st, *o);
}
