/* Far keys and values of which the host makes some partials (backend/share.h), between the kernels of an attention of
 * few rows:
 *
 *     q, k, v -> numbers | show: queries to the host | partials of the device's chunks | take: the host's | fold
 *
 * Both are part of captured graphs: they read the step's range of chunks when they run. */
#include "kernels/cuda/cu_flag.h"
#include "kernels/cuda/cu_i16_parts.h"

enum { SHOW_THREADS = 1024, TAKE_THREADS = 256, TAKE_BLOCKS = 128 };

struct far_rows {
    struct i16_attention o;
    struct cu_far        far;
};

/* The row of a step that is query i of all, as the host numbers them. */
CU_INLINE struct i16_row row_of(const struct i16_attention &o, int i)
{
    int n_q = o.a.rows * (o.a.n_head / o.kv.n_kv_head);
    return i16_row_of(o, i / n_q, i % n_q);
}

/* A single block: what it writes is some kilobytes. */
static __global__ void __launch_bounds__(SHOW_THREADS) show(const __grid_constant__ struct far_rows f)
{
    const struct i16_attention &o = f.o;
    int n_queries = o.a.rows * o.a.n_head, n_words = o.kv.hd_k / 4;
    wait_turn();
    for (int i = threadIdx.x; i < n_queries * n_words; i += SHOW_THREADS) {
        struct i16_row row = row_of(o, i / n_words);
        int w = i % n_words;
        const uint32_t *q = (const uint32_t *)(o.s.q + ((size_t)row.token * o.a.n_head + row.head) * 2 * o.kv.hd_k);
        uint32_t *to = (uint32_t *)f.far.q + (size_t)(i / n_words) * 2 * n_words + w;
        to[0] = q[i16_query_word(w)];
        to[n_words] = q[i16_query_word(w) + 2];
    }
    for (int i = threadIdx.x; i < n_queries; i += SHOW_THREADS) {
        struct i16_row row = row_of(o, i);
        f.far.cq[i] = o.s.cq[row.token * o.a.n_head + row.head];
    }
    if (threadIdx.x == 0)
        *f.far.told = CU_FLAG_DOWN;
    raise_for_host(f.far.shown);
}

/* What the host says, a CU_FLAG_; by a thread of each block. The first block begins before the others. */
CU_INLINE uint32_t hear(const struct far_rows &f)
{
    uint32_t said;
    if (blockIdx.x == 0) {
        said = ask_host(f.far.made, f.o.fault);
        __threadfence_system();
        *(volatile uint32_t *)f.far.told = said;
        return said;
    }
    while ((said = *(const volatile uint32_t *)f.far.told) == CU_FLAG_DOWN)
        ;
    __threadfence_system();
    return said;
}

/* A warp a partial. */
CU_INLINE void take_partial(const struct i16_attention &o, const struct i16_row &row, int c, const float *from)
{
    size_t at = part_of(o, row, c);
    int lane = threadIdx.x % WARP;
    for (int d = 4 * lane; d < o.kv.hd_v; d += 4 * WARP)
        *(float4 *)(o.s.part + at * o.kv.hd_v + d) = __ldcv((const float4 *)(from + d));
    if (lane == 0) {
        maxima(o)[at] = __ldcv(from + o.kv.hd_v);
        zs(o)[at] = __ldcv(from + o.kv.hd_v + 1);
    }
}

/* In place of a partial that the host has not made, for which the step fails: numbers, so that what follows does not
 * find another fault in memory that nobody has written. */
CU_INLINE void lack_partial(const struct i16_attention &o, const struct i16_row &row, int c)
{
    size_t at = part_of(o, row, c);
    int lane = threadIdx.x % WARP;
    for (int d = lane; d < o.kv.hd_v; d += WARP)
        o.s.part[at * o.kv.hd_v + d] = 0;
    if (lane == 0) {
        maxima(o)[at] = 0;
        zs(o)[at] = 1;
    }
}

static __global__ void __launch_bounds__(TAKE_THREADS) take(const __grid_constant__ struct far_rows f)
{
    enum { N_WARPS = TAKE_BLOCKS * (TAKE_THREADS / WARP) };
    __shared__ uint32_t said;
    const struct i16_attention &o = f.o;
    int n_queries = o.a.rows * o.a.n_head, warp = blockIdx.x * (TAKE_THREADS / WARP) + threadIdx.x / WARP;
    wait_turn();
    struct i16_host host = i16_host_of(o);
    if (threadIdx.x == 0)
        said = hear(f);
    __syncthreads();
    for (int i = warp; i < host.n * n_queries; i += N_WARPS) {
        struct i16_row row = row_of(o, i % n_queries);
        int c = host.first + i / n_queries;
        if (said == CU_FLAG_UP)
            take_partial(o, row, c, f.far.part + (size_t)i * pf_partial_floats(o.kv.hd_v));
        else
            lack_partial(o, row, c);
    }
}

extern "C" cudaError_t pf_cu_far_show(cudaStream_t st, const struct pf_attention_op *a, const struct cu_i16 *s,
                                      const struct cu_far *far)
{
    struct far_rows f = { { *a, *a->kv, *s, 0, {}, NULL }, *far };
    return launch_early(show, dim3(1), SHOW_THREADS, 0, st, f);
}

extern "C" cudaError_t pf_cu_far_take(cudaStream_t st, const struct pf_attention_op *a, int n_chunks,
                                      const struct cu_i16 *s, const struct cu_far *far, const struct cu_x *x,
                                      int *fault)
{
    struct far_rows f = { { *a, *a->kv, *s, n_chunks, *x, fault }, *far };
    cudaError_t e = launch_early(take, dim3(TAKE_BLOCKS), TAKE_THREADS, 0, st, f);
    return e == cudaSuccess ? pf_cu_i16_fold(st, &f.o) : e;
}
