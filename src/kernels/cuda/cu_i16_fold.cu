/* Few rows with many chunks: their partials enter the whole. */
#include "kernels/cuda/cu_i16_parts.h"

enum { THREADS = 128 };                  /* elements of a thread block, and partials at a time */

/* blockIdx: query head, THREADS elements of it, row. A warp finds the factors of 32 partials, four of them those of
 * THREADS; a thread sums an element, AHEAD loads ahead of it. */
template <int AHEAD>
static __global__ void __launch_bounds__(THREADS) fold(const __grid_constant__ struct i16_attention o)
{
    enum { N_WARPS = THREADS / WARP };
    __shared__ float old[THREADS], fresh[THREADS], z[THREADS], tops[N_WARPS];
    int warp = threadIdx.x / WARP, t = threadIdx.x, d = blockIdx.y * THREADS + t, hd = o.kv.hd_v;
    int pos = *(const volatile int32_t *)&o.a.pos[blockIdx.z], first = first_visible(o.a, pos), end = pos / CHUNK + 1;
    struct i16_row row = { (int)blockIdx.z, (int)blockIdx.x, first, pos, true };
    float acc = 0, m = -INFINITY, whole = 0;
    wait_turn();
#pragma unroll 1
    for (int c0 = first / CHUNK; c0 < end; c0 += THREADS) {
        int n = min((int)THREADS, end - c0);
        const float *part = o.s.part + part_of(o, row, c0) * hd + (d < hd ? d : 0);
        float ahead[AHEAD], mine = t < n ? __ldcg(maxima(o) + part_of(o, row, c0) + t) : -INFINITY;
        z[t] = t < n ? __ldcg(zs(o) + part_of(o, row, c0) + t) : 0.0f;
        auto load = [&](int from) {
#pragma unroll
            for (int i = 0; i < AHEAD; i++)
                ahead[i] = from + i < n ? __ldcg(part + (size_t)(from + i) * hd) : 0.0f;
        };
        load(0);
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
        old[t] = j.old;
        fresh[t] = j.fresh;
        __syncthreads();
#pragma unroll 1
        for (int c = 0; c < n; c += AHEAD) {
            float now[AHEAD];
#pragma unroll
            for (int i = 0; i < AHEAD; i++)
                now[i] = ahead[i];
            if (c + AHEAD < n)
                load(c + AHEAD);
#pragma unroll
            for (int i = 0; i < AHEAD; i++)
                if (c + i < n) {
                    acc = fmaf(now[i], fresh[c + i], acc * old[c + i]);
                    whole = fmaf(whole, old[c + i], z[c + i] * fresh[c + i]);
                }
        }
        __syncthreads();
    }
    if (d < hd)
        put_out(o, row, d, acc * i16_last_factor(o.a, row.head, m, whole));
}

extern "C" cudaError_t pf_cu_i16_fold(cudaStream_t st, const struct i16_attention *o)
{
    dim3 grid(o->a.n_head, ceil_div(o->kv.hd_v, THREADS), o->a.rows);
    return o->n_chunks <= 8 ? launch_early(fold<8>, grid, THREADS, 0, st, *o) :
                              launch_early(fold<32>, grid, THREADS, 0, st, *o);
}
