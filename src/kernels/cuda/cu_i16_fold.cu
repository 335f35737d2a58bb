/* Few rows with many chunks: their partials enter the whole. All partials of a thread block are on their way at once,
 * and while they come their factors are found; then a single warp has a chain of two operations a chunk. */
#include "kernels/cuda/cu_i16_parts.h"

enum { THREADS = 256, ELEMENTS = WARP };  /* partials at a time, and elements of a thread block: a block of int8 */

/* How a partial enters: what is there by `old`, its sums by `fresh`, its z is multiplied already. */
struct entry {
    float old, fresh, z, none;
};

static_assert(sizeof(struct entry) == 16, "read by a single load");

/* blockIdx: query head, ELEMENTS of it, row. */
static __global__ void __launch_bounds__(THREADS) fold(const __grid_constant__ struct i16_attention o)
{
    enum { N_WARPS = THREADS / WARP, FOURS = ELEMENTS / 4 };
    BLOCK_MEMORY(float4, parts);          /* [partials at a time][FOURS] */
    __shared__ __align__(16) struct entry entries[THREADS];
    __shared__ float tops[N_WARPS];
    int warp = threadIdx.x / WARP, t = threadIdx.x, d = blockIdx.y * ELEMENTS, hd = o.kv.hd_v;
    int pos = *(const volatile int32_t *)&o.a.pos[blockIdx.z], first = first_visible(o.a, pos), end = pos / CHUNK + 1;
    struct i16_row row = { (int)blockIdx.z, (int)blockIdx.x, first, pos, true };
    float acc = 0, m = -INFINITY, whole = 0;
    wait_turn();
#pragma unroll 1
    for (int c0 = first / CHUNK; c0 < end; c0 += THREADS) {
        int n = min((int)THREADS, end - c0);
        size_t at = part_of(o, row, c0);
        float mine = t < n ? __ldcg(maxima(o) + at + t) : -INFINITY, z = t < n ? __ldcg(zs(o) + at + t) : 0.0f;
        const float *from = o.s.part + (at + t / FOURS) * hd + d + t % FOURS * 4;
#pragma unroll 4
        for (int i = t; i < n * FOURS; i += THREADS, from += (size_t)(THREADS / FOURS) * hd)
            __pipeline_memcpy_async(parts + i, from, 16);
        __pipeline_commit();
        float top = warp_max(mine), before = m;
        if (t % WARP == 0)
            tops[warp] = top;
        __syncthreads();
#pragma unroll
        for (int k = 0; k < N_WARPS; k++) {
            before = k < warp && tops[k] > before ? tops[k] : before;
            m = tops[k] > m ? tops[k] : m;
        }
        struct i16_join j = join_partials(mine, before);
        entries[t] = { j.old, j.fresh, z * j.fresh, 0 };
        __pipeline_wait_prior(0);
        __syncthreads();
        if (warp == 0)
#pragma unroll 8
            for (int c = 0; c < n; c++) {
                struct entry by = entries[c];
                acc = fmaf(((const float *)parts)[c * ELEMENTS + t], by.fresh, acc * by.old);
                whole = fmaf(whole, by.old, by.z);
            }
        __syncthreads();
    }
    if (warp == 0)
        put_out(o, row, d + t, acc * i16_last_factor(o.a, row.head, m, whole));
}

extern "C" cudaError_t pf_cu_i16_fold(cudaStream_t st, const struct i16_attention *o)
{
    dim3 grid(o->a.n_head, o->kv.hd_v / ELEMENTS, o->a.rows);
    size_t bytes = (size_t)min(o->n_chunks, (int)THREADS) * ELEMENTS * sizeof(float);
    return launch_early(fold, grid, THREADS, bytes, st, *o);
}
