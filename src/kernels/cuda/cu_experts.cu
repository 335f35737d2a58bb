/* Routed experts, pick by pick. The experts' addresses come from tables in device memory, so that a captured graph does
 * not know which expert lies where.
 *
 *     gate_up       a block takes 32 rows of gate and of up for one pick; its 32 results are a whole block of the next
 *                   product's input, so it gates and quantises them at once
 *     down          a block takes eight output elements of a row for all its picks and adds them up in the router's
 *                   order
 *     expert_rows   one matrix, pick by pick, where the two above do not do: gate and up of different types, adapters,
 *                   picks that not all are here
 *     combine       adds up what such picks, and those of a prompt, have put out */
#include "kernels/cuda/cu_dot.h"

enum { GATE_ROWS = 32, DOWN_ROWS = 8 };

CU_INLINE float scale_and_bias(const struct cu_expert_weight &w, int expert, int n_out, int r, float v)
{
    if (w.scale)
        v = v * w.scale[expert];
    if (w.bias)
        v = v + w.bias[(size_t)expert * n_out + r];
    return v;
}

/* blockIdx: 32 rows, pick. The groups of gate come first, then those of up. */
template <class D, int THREADS, int BLOCKS>
static __global__ void __launch_bounds__(THREADS, BLOCKS) gate_up(const __grid_constant__ struct cu_experts e,
                                                                  const __grid_constant__ struct cu_x out, int *fault)
{
    BLOCK_MEMORY(float, memory);
    enum { GROUPS = GATE_ROWS / D::ROWS };
    wait_turn();
    int pick = blockIdx.y, expert = e.picks[pick], lane = threadIdx.x, r = blockIdx.x * GATE_ROWS + lane,
        stride = D::n_sums(e.n);
    if (!e.w.data[expert])
        return;
    if (threadIdx.x < 2) {
        const struct cu_expert_weight &m = threadIdx.x ? e.w2 : e.w;
        fetch_ahead(m.data[expert] + (size_t)blockIdx.x * GATE_ROWS * m.row_bytes,
                    min((int)GATE_ROWS, e.n_out - (int)blockIdx.x * GATE_ROWS) * m.row_bytes);
    }
    const float *sums = run_tasks<D>(2 * GROUPS, e.n, e.tables, memory,
                                     [&](int g, struct row_set &w, int &r0, struct x_row &x) {
        const struct cu_expert_weight &m = g < GROUPS ? e.w : e.w2;
        w = { m.data[expert], m.row_bytes, e.n_out - 1 };
        r0 = blockIdx.x * GATE_ROWS + g % GROUPS * D::ROWS;
        x = x_row_of(e.x, e.n, pick / e.n_used);
    });
    if (lane >= GATE_ROWS)
        return;
    float a = 0;
    if (r < e.n_out) {
        float gate = scale_and_bias(e.w, expert, e.n_out, r, D::total(sums + lane * stride, e.n));
        float up = scale_and_bias(e.w2, expert, e.n_out, r, D::total(sums + (GATE_ROWS + lane) * stride, e.n));
        float m = e.weigh_input ? e.weights[pick] : 1.0f;
        a = e.weigh_input ? activation(e.act, gate * m, up * m) : activation(e.act, gate, up);
        ((float *)out.f)[(size_t)pick * e.n_out + r] = a;
    }
    if (out.q)
        quantise_block(a, &out, e.n_out, pick, blockIdx.x, fault);
}

/* blockIdx: eight rows, pick. */
template <class D>
static __global__ void __launch_bounds__(MOST_THREADS, 3) expert_rows(const __grid_constant__ struct cu_experts e,
                                                                      float *y)
{
    BLOCK_MEMORY(float, memory);
    wait_turn();
    int pick = blockIdx.y, expert = e.picks[pick], r = blockIdx.x * DOWN_ROWS + threadIdx.x;
    if (!e.w.data[expert] || (e.only && !e.only[expert]))
        return;
    const float *sums = run_tasks<D>(DOWN_ROWS / D::ROWS, e.n, e.tables, memory,
                                     [&](int g, struct row_set &w, int &r0, struct x_row &x) {
        w = { e.w.data[expert], e.w.row_bytes, e.n_out - 1 };
        r0 = blockIdx.x * DOWN_ROWS + g * D::ROWS;
        x = x_row_of(e.x, e.n, pick / e.n_used);
    });
    if (threadIdx.x >= DOWN_ROWS || r >= e.n_out)
        return;
    float v = scale_and_bias(e.w, expert, e.n_out, r, D::total(sums + threadIdx.x * D::n_sums(e.n), e.n));
    float *out = y + (size_t)pick * e.n_out + r;
    if (e.adds)
        v = fmaf(e.add_scale ? e.add * e.add_scale[expert] : e.add, v, *out);
    *out = e.weigh_input ? v * e.weights[pick] : v;
}

/* What becomes of v, element `at` of what the experts of a row put out. */
CU_INLINE void put_out(const struct cu_residual &r, float v, int row, size_t at, float *y)
{
    if (r.plus)
        v = fmaf(r.gate ? pf_sigmoidf(r.gate[row]) : r.b, r.plus[at], v);
    y[at] = v;
    if (r.x)
        r.x[at] = fmaf(r.a, v, r.x[at]);
}

/* blockIdx: eight rows, row of the batch. Groups go pick by pick. */
template <class D>
static __global__ void __launch_bounds__(MOST_THREADS, 3) down(const __grid_constant__ struct cu_experts e, float *y,
                                                               struct cu_residual residual)
{
    BLOCK_MEMORY(float, memory);
    enum { GROUPS = DOWN_ROWS / D::ROWS };
    int row = blockIdx.y, first = row * e.n_used, r = blockIdx.x * DOWN_ROWS + threadIdx.x, stride = D::n_sums(e.n);
    int n_rows = min((int)DOWN_ROWS, e.n_out - (int)blockIdx.x * DOWN_ROWS);
    if (threadIdx.x < e.n_used) {                /* the picks are older than the kernel ahead */
        int expert = *(const volatile int32_t *)&e.picks[first + threadIdx.x];
        fetch_ahead(e.w.data[expert] + (size_t)blockIdx.x * DOWN_ROWS * e.w.row_bytes, n_rows * e.w.row_bytes);
    }
    wait_turn();
    const float *sums = run_tasks<D>(e.n_used * GROUPS, e.n, e.tables, memory,
                                     [&](int g, struct row_set &w, int &r0, struct x_row &x) {
        w = { e.w.data[e.picks[first + g / GROUPS]], e.w.row_bytes, e.n_out - 1 };
        r0 = blockIdx.x * DOWN_ROWS + g % GROUPS * D::ROWS;
        x = x_row_of(e.x, e.n, first + g / GROUPS);
    });
    if (threadIdx.x >= DOWN_ROWS || r >= e.n_out)
        return;
    float sum = 0;
#pragma unroll 1
    for (int i = 0; i < e.n_used; i++) {
        float v = D::total(sums + (i * DOWN_ROWS + threadIdx.x) * stride, e.n);
        v = scale_and_bias(e.w, e.picks[first + i], e.n_out, r, v);
        sum = fmaf(e.weigh_input ? 1.0f : e.weights[first + i], v, sum);
    }
    put_out(residual, sum, row, (size_t)row * e.n_out + r, y);
}

template <class D, int THREADS, int BLOCKS>
static cudaError_t launch_gate_up_of(cudaStream_t st, const struct cu_experts *e, const struct cu_x *out, int *fault)
{
    struct block_shape shape = shape_of<D, THREADS / WARP>(2 * GATE_ROWS / D::ROWS, e->n);
    cudaError_t err = allow_bytes(gate_up<D, THREADS, BLOCKS>, shape.bytes);
    if (err != cudaSuccess)
        return err;
    return launch_early(gate_up<D, THREADS, BLOCKS>, dim3(ceil_div(e->n_out, GATE_ROWS), e->rows * e->n_used),
                        shape.threads, shape.bytes, st, *e, *out, fault);
}

/* Few blocks have more warps each, if their memory holds them: two of them fit a multiprocessor instead of three. */
template <class D>
static cudaError_t launch_gate_up(cudaStream_t st, const struct cu_experts *e, const struct cu_x *out,
                                  size_t shared_bytes, int *fault)
{
    enum { MORE_THREADS = 12 * WARP, FEW = 256 };
    bool few = ceil_div(e->n_out, GATE_ROWS) * e->rows * e->n_used <= FEW;
    if (few && shape_of<D, MORE_THREADS / WARP>(2 * GATE_ROWS / D::ROWS, e->n).bytes <= shared_bytes)
        return launch_gate_up_of<D, MORE_THREADS, 2>(st, e, out, fault);
    return launch_gate_up_of<D, MOST_THREADS, 3>(st, e, out, fault);
}

template <class D>
static cudaError_t launch_expert_rows(cudaStream_t st, const struct cu_experts *e, float *y)
{
    struct block_shape shape = shape_of<D>(DOWN_ROWS / D::ROWS, e->n);
    cudaError_t err = allow_bytes(expert_rows<D>, shape.bytes);
    if (err != cudaSuccess)
        return err;
    return launch_early(expert_rows<D>, dim3(ceil_div(e->n_out, DOWN_ROWS), e->rows * e->n_used), shape.threads,
                        shape.bytes, st, *e, y);
}

template <class D>
static cudaError_t launch_down(cudaStream_t st, const struct cu_experts *e, float *y,
                               const struct cu_residual *residual)
{
    struct block_shape shape = shape_of<D>(e->n_used * (DOWN_ROWS / D::ROWS), e->n);
    cudaError_t err = allow_bytes(down<D>, shape.bytes);
    if (err != cudaSuccess)
        return err;
    return launch_early(down<D>, dim3(ceil_div(e->n_out, DOWN_ROWS), e->rows), shape.threads, shape.bytes, st, *e, y,
                        *residual);
}

extern "C" cudaError_t pf_cu_gate_up(cudaStream_t st, const struct cu_experts *e, const struct cu_x *out,
                                     size_t shared_bytes, int *fault)
{
    switch (e->w.type) {
#define X(TYPE) case PF_##TYPE: return launch_gate_up<dot_##TYPE>(st, e, out, shared_bytes, fault);
    CU_TYPE_LIST(X)
#undef X
    default: return cudaErrorInvalidValue;
    }
}

extern "C" cudaError_t pf_cu_expert_rows(cudaStream_t st, const struct cu_experts *e, float *y)
{
    switch (e->w.type) {
#define X(TYPE) case PF_##TYPE: return launch_expert_rows<dot_##TYPE>(st, e, y);
    CU_TYPE_LIST(X)
#undef X
    default: return cudaErrorInvalidValue;
    }
}

extern "C" cudaError_t pf_cu_down(cudaStream_t st, const struct cu_experts *e, float *y,
                                  const struct cu_residual *residual)
{
    switch (e->w.type) {
#define X(TYPE) case PF_##TYPE: return launch_down<dot_##TYPE>(st, e, y, residual);
    CU_TYPE_LIST(X)
#undef X
    default: return cudaErrorInvalidValue;
    }
}

/* As many elements as threads, row of the batch. */
static __global__ void combine(const __grid_constant__ struct cu_combine c, struct cu_residual residual)
{
    wait_turn();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0;
    if (i >= c.n)
        return;
    for (int k = 0; k < c.n_used; k++) {
        size_t p = (size_t)blockIdx.y * c.n_used + k;
        sum = fmaf(c.weights ? c.weights[p] : 1.0f, c.v[p * c.n + i], sum);
    }
    put_out(residual, sum, blockIdx.y, (size_t)blockIdx.y * c.n + i, c.y);
}

extern "C" cudaError_t pf_cu_combine(cudaStream_t st, const struct cu_combine *c, const struct cu_residual *residual)
{
    return launch_early(combine, dim3(ceil_div(c->n, MOST_THREADS), c->rows), MOST_THREADS, 0, st, *c, *residual);
}
