/* Routed experts, pick by pick. The experts' addresses come from tables in device memory, so that a captured graph does not
 * know which expert lies where.
 *
 *     gate_up   a block takes 32 rows of gate and of up for one pick; its 32 results are a whole block of the next
 *               product's input, so it gates and quantises them at once
 *     down      a warp takes an output element for all picks of a row and adds them up in the router's order */
#include "kernels/cuda/cu_dot.h"

enum { GATE_WARPS = 16, DOWN_WARPS = 8, SIDE = 4 };      /* SIDE: picks whose products run side by side */

CU_INLINE float scale_and_bias(const struct cu_expert_weight &w, int expert, int n_out, int r, float v)
{
    if (w.scale)
        v = v * w.scale[expert];
    if (w.bias)
        v = v + w.bias[(size_t)expert * n_out + r];
    return v;
}

template <class D>
static __global__ void __launch_bounds__(GATE_WARPS * WARP)
gate_up(const __grid_constant__ struct cu_experts e, const __grid_constant__ struct cu_x out, int *fault)
{
    __shared__ float gate[32], up[32];
    int pick = blockIdx.y, expert = e.picks[pick], warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const uint8_t *w = e.w.data[expert], *w2 = e.w2.data[expert];
    struct x_row x = x_row_of(e.x, e.n, pick / e.n_used);
    for (int i = warp; i < 32; i += GATE_WARPS) {
        int r = blockIdx.x * 32 + i;
        if (r >= e.n_out)
            break;
        const uint8_t *const rows[2] = { w + (size_t)r * e.w.row_bytes, w2 + (size_t)r * e.w2.row_bytes };
        const struct x_row both[2] = { x, x };
        float total[2];
        D::template pairs<2>(rows, both, e.n, e.tables, total);
        if (lane == 0) {
            gate[i] = scale_and_bias(e.w, expert, e.n_out, r, total[0]);
            up[i] = scale_and_bias(e.w2, expert, e.n_out, r, total[1]);
        }
    }
    __syncthreads();
    int r = blockIdx.x * 32 + lane;
    if (warp > 0)
        return;
    float a = 0;
    if (r < e.n_out) {
        float m = e.weigh_input ? e.weights[pick] : 1.0f;
        a = e.weigh_input ? activation(e.act, gate[lane] * m, up[lane] * m) : activation(e.act, gate[lane], up[lane]);
        ((float *)out.f)[(size_t)pick * e.n_out + r] = a;
    }
    if (out.q)
        quantise_block(a, &out, e.n_out, pick, blockIdx.x, fault);
}

template <class D>
static __global__ void __launch_bounds__(DOWN_WARPS * WARP) expert_rows(const __grid_constant__ struct cu_experts e, float *y)
{
    int pick = blockIdx.y, expert = e.picks[pick], r = blockIdx.x * DOWN_WARPS + threadIdx.x / WARP;
    if (r >= e.n_out)
        return;
    const uint8_t *const rows[1] = { e.w.data[expert] + (size_t)r * e.w.row_bytes };
    const struct x_row x[1] = { x_row_of(e.x, e.n, pick / e.n_used) };
    float total[1];
    D::template pairs<1>(rows, x, e.n, e.tables, total);
    float v = scale_and_bias(e.w, expert, e.n_out, r, total[0]);
    if (threadIdx.x % WARP == 0)
        y[(size_t)pick * e.n_out + r] = e.weigh_input ? v * e.weights[pick] : v;
}

/* Picks [p, p + N) of a row. */
template <class D, int N>
CU_INLINE void add_picks(const struct cu_experts &e, int p, int r, float &sum)
{
    const uint8_t *rows[N];
    struct x_row x[N];
    float total[N];
    int expert[N];
#pragma unroll
    for (int i = 0; i < N; i++) {
        expert[i] = e.picks[p + i];
        rows[i] = e.w.data[expert[i]] + (size_t)r * e.w.row_bytes;
        x[i] = x_row_of(e.x, e.n, p + i);
    }
    D::template pairs<N>(rows, x, e.n, e.tables, total);
#pragma unroll
    for (int i = 0; i < N; i++) {
        float v = scale_and_bias(e.w, expert[i], e.n_out, r, total[i]);
        sum = fmaf(e.weigh_input ? 1.0f : e.weights[p + i], v, sum);
    }
}

template <class D>
static __global__ void __launch_bounds__(DOWN_WARPS * WARP) down(const __grid_constant__ struct cu_experts e, float *y)
{
    int row = blockIdx.y, r = blockIdx.x * DOWN_WARPS + threadIdx.x / WARP, i = 0;
    float sum = 0;
    if (r >= e.n_out)
        return;
    for (; i + SIDE <= e.n_used; i += SIDE)
        add_picks<D, SIDE>(e, row * e.n_used + i, r, sum);
    for (; i < e.n_used; i++)
        add_picks<D, 1>(e, row * e.n_used + i, r, sum);
    if (threadIdx.x % WARP == 0)
        y[(size_t)row * e.n_out + r] = sum;
}

extern "C" cudaError_t pf_cu_gate_up(cudaStream_t st, const struct cu_experts *e, const struct cu_x *out, int *fault)
{
    dim3 grid(ceil_div(e->n_out, 32), e->rows * e->n_used);
    switch (e->w.type) {
#define X(TYPE) case PF_##TYPE: gate_up<dot_##TYPE><<<grid, GATE_WARPS * WARP, 0, st>>>(*e, *out, fault); break;
    CU_TYPE_LIST(X)
#undef X
    default: return cudaErrorInvalidValue;
    }
    return cudaGetLastError();
}

extern "C" cudaError_t pf_cu_expert_rows(cudaStream_t st, const struct cu_experts *e, float *y)
{
    dim3 grid(ceil_div(e->n_out, DOWN_WARPS), e->rows * e->n_used);
    switch (e->w.type) {
#define X(TYPE) case PF_##TYPE: expert_rows<dot_##TYPE><<<grid, DOWN_WARPS * WARP, 0, st>>>(*e, y); break;
    CU_TYPE_LIST(X)
#undef X
    default: return cudaErrorInvalidValue;
    }
    return cudaGetLastError();
}

extern "C" cudaError_t pf_cu_down(cudaStream_t st, const struct cu_experts *e, float *y)
{
    dim3 grid(ceil_div(e->n_out, DOWN_WARPS), e->rows);
    switch (e->w.type) {
#define X(TYPE) case PF_##TYPE: down<dot_##TYPE><<<grid, DOWN_WARPS * WARP, 0, st>>>(*e, y); break;
    CU_TYPE_LIST(X)
#undef X
    default: return cudaErrorInvalidValue;
    }
    return cudaGetLastError();
}
