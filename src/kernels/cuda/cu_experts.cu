/* Routed experts, pick by pick. The experts' addresses come from tables in device memory, so that a captured graph does
 * not know which expert lies where.
 *
 *     gate_up       a block takes 32 rows of gate and of up for one pick; its 32 results are a whole block of the next
 *                   product's input, so it gates and quantises them at once
 *     down          a block takes eight output elements of a row for all its picks and adds them up in the router's
 *                   order; what experts have put out that are not here is added up with them
 *     long_down     the same of MXFP4, one row, where multiprocessors have much shared memory
 *     expert_rows   one matrix, pick by pick, where the two above do not do: gate and up of different types, adapters,
 *                   picks that not all are here
 *     combine       adds up what such picks, and those of a prompt, have put out
 *
 * gate_up and down of one row may have the shared expert among their picks. */
#include <type_traits>

#include "kernels/cuda/cu_dot.h"
#include "kernels/cuda/cu_picks.h"
#include "kernels/cuda/cu_segments_api.h"

/* blockIdx: pick, of which a batch may have more than a grid's y has room for; 32 rows. The groups of gate come first,
 * then those of up. Rows are not fetched ahead: all blocks would ask for all of theirs at once, and each warp's first
 * loads would stand in line behind the rest. */
template <class D, int THREADS, int BLOCKS, bool CHOOSES>
static __global__ void __launch_bounds__(THREADS, BLOCKS) gate_up(const __grid_constant__ struct cu_experts e,
                                                                  const __grid_constant__ struct cu_choice choice,
                                                                  const __grid_constant__ struct cu_x out, int *fault)
{
    BLOCK_MEMORY(float, memory);
    enum { GROUPS = GATE_ROWS / D::ROWS };
    if (ends_with_turn(e.turns))
        return;
    struct chosen chosen = await_pick<CHOOSES>(e, choice, blockIdx.x);
    int pick = blockIdx.x, expert = chosen.expert, lane = threadIdx.x, r = blockIdx.y * GATE_ROWS + lane,
        stride = D::n_sums(e.n);
    const uint8_t *gate = expert == SHARED ? e.with.gate : e.w.data[expert],
                  *up = expert == SHARED ? e.with.up : e.w2.data[expert];
    if (!gate)
        return;
    const float *sums = run_tasks<D>(2 * GROUPS, e.n, e.tables, memory,
                                     [&](int g, struct row_set &w, int &r0, struct x_row &x) {
        w = { g < GROUPS ? gate : up, g < GROUPS ? e.w.row_bytes : e.w2.row_bytes, e.n_out - 1 };
        r0 = blockIdx.y * GATE_ROWS + g % GROUPS * D::ROWS;
        x = x_row_of(e.x, e.n, expert == SHARED ? 0 : pick / e.n_used);
        return true;
    });
    if (lane >= GATE_ROWS)
        return;
    float a = 0;
    if (r < e.n_out) {
        float g = D::total(sums + lane * stride, e.n), u = D::total(sums + (GATE_ROWS + lane) * stride, e.n);
        a = gated(e, expert, r, g, u, chosen.weight);
        if (expert == SHARED) {
            e.with.of_gate[r] = g;
            e.with.of_up[r] = u;
            e.with.act[r] = a;
        }
        ((float *)out.f)[(size_t)pick * e.n_out + r] = a;
    }
    if (out.q)
        quantise_block(a, &out, e.n_out, pick, blockIdx.y, fault);
}

/* blockIdx: pick, eight rows. */
template <class D>
static __global__ void __launch_bounds__(MOST_THREADS, 3) expert_rows(const __grid_constant__ struct cu_experts e,
                                                                      float *y)
{
    BLOCK_MEMORY(float, memory);
    wait_turn();
    int pick = blockIdx.x, expert = e.picks[pick], r = blockIdx.y * DOWN_ROWS + threadIdx.x;
    if (!e.w.data[expert] || (e.only && !e.only[expert]))
        return;
    const float *sums = run_tasks<D>(DOWN_ROWS / D::ROWS, e.n, e.tables, memory,
                                     [&](int g, struct row_set &w, int &r0, struct x_row &x) {
        w = { e.w.data[expert], e.w.row_bytes, e.n_out - 1 };
        r0 = blockIdx.y * DOWN_ROWS + g * D::ROWS;
        x = x_row_of(e.x, e.n, pick / e.n_used);
        return true;
    });
    if (threadIdx.x >= DOWN_ROWS || r >= e.n_out)
        return;
    float v = scale_and_bias(e.w, expert, e.n_out, r, D::total(sums + threadIdx.x * D::n_sums(e.n), e.n));
    float *out = y + (size_t)pick * e.n_out + r;
    if (e.adds)
        v = fmaf(e.add_scale ? e.add * e.add_scale[expert] : e.add, v, *out);
    *out = e.weigh_input ? v * e.weights[pick] : v;
}

/* blockIdx: eight rows, row of the batch. Groups go pick by pick. */
template <class D, bool CHOOSES>
static __global__ void __launch_bounds__(MOST_THREADS, 3) down(const __grid_constant__ struct cu_experts e,
                                                               const __grid_constant__ struct cu_choice choice,
                                                               float *y, struct cu_residual residual)
{
    BLOCK_MEMORY(float, memory);
    enum { GROUPS = DOWN_ROWS / D::ROWS };
    int row = blockIdx.y, n_rows = min((int)DOWN_ROWS, e.n_out - (int)blockIdx.x * DOWN_ROWS), n = n_picks(e);
    struct picks p = picks_at(memory, n);
    if (ends_with_turn(e.turns))
        return;
    bool keeps = e.turns.done && some_come_late(e.turns);
    look_up<CHOOSES>(e, choice, row, p);
    if (threadIdx.x < n && p.at[threadIdx.x].rows)
        fetch_ahead(p.at[threadIdx.x].rows, n_rows * e.w.row_bytes);
    wait_turn();
    struct met met = met_here(e, residual, row);
    const float *sums = run_tasks<D>(n * GROUPS, e.n, e.tables, p.rest,
                                     [&](int g, struct row_set &w, int &r0, struct x_row &x) {
        w = { p.at[g / GROUPS].rows, e.w.row_bytes, n_rows - 1 };
        r0 = g % GROUPS * D::ROWS;
        x = x_row_of(e.x, e.n, row * e.n_used + g / GROUPS);
        return w.base != NULL;
    });
#pragma unroll 1
    for (int t = threadIdx.x; t < DOWN_ROWS * n; t += blockDim.x) {
        const struct pick &from = p.at[t / DOWN_ROWS];
        int r = blockIdx.x * DOWN_ROWS + t % DOWN_ROWS;
        if (from.rows && r < e.n_out)
            p.v[t] = scale_and_bias(e.w, from.expert, e.n_out, r, D::total(sums + t * D::n_sums(e.n), e.n));
    }
    if (keeps)
        keep_picks(e, row, p);
    else
        add_picks(e, residual, met, row, p, y);
}

/* ---- Long rows --------------------------------------------------------------------------------------------------- */

/* MXFP4 in shared memory. */
struct mx4_here : mx4 {
    static CU_READ_FN raw load(const uint8_t *row, int b, const struct cu_tables &)
    {
        const uint8_t *p = row + (uint32_t)b * 17;
        raw r;
        r.at = (uint32_t)(uintptr_t)p & 3;
        const uint32_t *a = (const uint32_t *)(p - r.at);
#pragma unroll
        for (int i = 0; i < 5; i++)
            r.a[i] = a[i];
        return r;
    }
};

enum { FOURS = DOWN_ROWS / TASK_ROWS };

/* The g-th four of a block's rows, and what is copied of them: from a multiple of 16 to one. */
CU_INLINE const uint8_t *four_at(const struct cu_experts &e, const struct picks &p, int g)
{
    return p.at[g / FOURS].rows + g % FOURS * TASK_ROWS * e.w.row_bytes;
}

CU_INLINE int to_copy(const struct cu_experts &e, const uint8_t *rows)
{
    return ((int)((uintptr_t)rows & 15) + TASK_ROWS * (int)e.w.row_bytes + 15) / 16 * 16;
}

/* Sends for the warp's fours. One lane calls it. */
CU_INLINE void send_for_fours(const struct cu_experts &e, const struct picks &p, uint8_t *copies, uint64_t *box)
{
    int warp = threadIdx.x / WARP, n_warps = blockDim.x / WARP, bytes = 0;
#pragma unroll 1
    for (int g = warp; g < FOURS * e.n_used; g += n_warps)
        bytes += to_copy(e, four_at(e, p, g));
    expect_bytes(box, bytes);
#pragma unroll 1
    for (int g = warp; g < FOURS * e.n_used; g += n_warps) {
        const uint8_t *rows = four_at(e, p, g);
        copy_to_box(copies + g * staged_bytes(TASK_ROWS, e.w.row_bytes), rows - ((uintptr_t)rows & 15),
                    to_copy(e, rows), box);
    }
}

/* Sums of four rows that lie in shared memory; by a warp. */
template <class T>
CU_INLINE void multiply_four(const uint8_t *rows, int row_bytes, int n, const struct x_row &from,
                             const struct cu_tables &t, float2 *terms, float *sums)
{
    typedef quantised<T> D;
#pragma unroll 1
    for (int round = 0; round < D::n_rounds(n); round++) {
        int n_blocks = D::n_blocks_of(n, round), b = D::my_block(n_blocks);
        typename T::side x = T::load_x(from, round * WARP + b);
        const uint8_t *row = rows + round * T::ROUND;
#pragma unroll
        for (int i = 0; i < TASK_ROWS; i++, row += row_bytes)
            D::put(T::dot(T::load(row, b, t), x, b), i, (int)threadIdx.x % WARP < n_blocks, terms);
        __syncwarp();
        D::run_chains(terms, n, round, sums);
        __syncwarp();
    }
}

/* The last operands of a product, and of its row: fetched before there is something to add them to. */
struct last {
    float scale, bias;
};

CU_INLINE struct last last_of(const struct cu_experts &e, const struct picks &p, int t)
{
    if (t >= DOWN_ROWS * e.n_used)
        return {};
    int expert = p.at[t / DOWN_ROWS].expert, r = blockIdx.x * DOWN_ROWS + t % DOWN_ROWS;
    return { e.w.scale ? e.w.scale[expert] : 1.0f, e.w.bias ? e.w.bias[(size_t)expert * e.n_out + r] : 0.0f };
}

/* blockIdx: eight rows. A warp takes four rows of a pick, and maybe more; they are copied before its turn. The block
 * makes the choice, so that all picks are on the device. */
template <class T>
static __global__ void __launch_bounds__(MOST_THREADS, 3)
long_down(const __grid_constant__ struct cu_experts e, const __grid_constant__ struct cu_choice choice, float *y,
          struct cu_residual residual)
{
    typedef quantised<T> D;
    BLOCK_MEMORY(float4, fours);
    __shared__ uint64_t boxes[MOST_THREADS / WARP];
    int t = threadIdx.x, warp = t / WARP, n_warps = blockDim.x / WARP, bytes = staged_bytes(TASK_ROWS, e.w.row_bytes),
        stride = D::n_sums(e.n);
    size_t at = blockIdx.x * DOWN_ROWS + t;
    uint8_t *copies = (uint8_t *)fours;
    struct picks p = picks_at((float *)(copies + FOURS * e.n_used * bytes), e.n_used);
    float *terms = p.rest + warp * D::TERM_FLOATS, *sums = p.rest + n_warps * D::TERM_FLOATS, sum = 0;
    struct met met = {};
    if (t % WARP == 0)
        open_box(&boxes[warp]);
    look_up<true>(e, choice, 0, p);
    if (t % WARP == 0)
        send_for_fours(e, p, copies, &boxes[warp]);
    __syncwarp();
    struct last by = last_of(e, p, t);
    wait_turn();
    if (t < DOWN_ROWS)
        met = met_at(residual, 0, at);
    await_box(&boxes[warp], 0);
#pragma unroll 1
    for (int g = warp; g < FOURS * e.n_used; g += n_warps)
        multiply_four<T>(copies + g * bytes + (uint32_t)((uintptr_t)four_at(e, p, g) & 15), (int)e.w.row_bytes, e.n,
                         x_row_of(e.x, e.n, g / FOURS), e.tables, (float2 *)terms, sums + g * TASK_ROWS * stride);
    __syncthreads();
    if (t < DOWN_ROWS * e.n_used) {
        float v = D::total(sums + t * stride, e.n);
        v = e.w.scale ? v * by.scale : v;
        p.v[t] = e.w.bias ? v + by.bias : v;
    }
    __syncthreads();
    if (t >= DOWN_ROWS)
        return;
#pragma unroll 4
    for (int i = 0; i < e.n_used; i++)
        sum = fmaf(p.at[i].weight, p.v[i * DOWN_ROWS + t], sum);
    put_out(residual, met, sum, at, y);
}

/* The block; no threads: not a product for this, or three blocks do not fit a multiprocessor. */
template <class T>
static cudaError_t long_shape(const struct cu_experts *e, const struct cu_choice *c, struct block_shape *shape)
{
    int n = e->n_used * FOURS, n_warps = min(n, MOST_THREADS / WARP), most = 0;
    size_t bytes = n * staged_bytes(TASK_ROWS, e->w.row_bytes) + picks_bytes(e->n_used) +
        (n_warps * quantised<T>::TERM_FLOATS + n * TASK_ROWS * quantised<T>::n_sums(e->n)) * sizeof(float);
    bool early, takes = c->op.rows == 1 && e->n_out % DOWN_ROWS == 0 && !e->with.down;
    cudaError_t err = is_of_90(long_down<T>, &early);
    if (err == cudaSuccess)
        err = ask_device(cudaDevAttrMaxSharedMemoryPerBlockOptin, &most);
    *shape = { takes && early && 3 * (bytes + (2 << 10)) <= (size_t)most ? n_warps * WARP : 0, bytes };
    return err;
}

template <class T>
static cudaError_t launch_long_down(cudaStream_t st, const struct cu_experts *e, const struct cu_choice *c,
                                    const struct block_shape *shape, float *y, const struct cu_residual *residual)
{
    cudaError_t err = allow_bytes(long_down<T>, shape->bytes);
    if (err != cudaSuccess)
        return err;
    return launch_early(long_down<T>, e->n_out / DOWN_ROWS, shape->threads, shape->bytes, st, *e, *c, y, *residual);
}

template <class D, int THREADS, int BLOCKS>
static cudaError_t launch_gate_up_of(cudaStream_t st, const struct cu_experts *e, const struct cu_choice *c,
                                     const struct cu_x *out, int *fault)
{
    struct block_shape shape = shape_of<D, THREADS / WARP>(2 * GATE_ROWS / D::ROWS, e->n);
    auto kernel = c->op.rows ? gate_up<D, THREADS, BLOCKS, true> : gate_up<D, THREADS, BLOCKS, false>;
    cudaError_t err = allow_bytes(kernel, shape.bytes);
    if (err != cudaSuccess)
        return err;
    return launch_early(kernel, dim3(all_picks(*e), ceil_div(e->n_out, GATE_ROWS)), shape.threads,
                        shape.bytes, st, *e, *c, *out, fault);
}

/* Few blocks have twice the warps, if their memory holds them: two of them fit a multiprocessor, and a warp has fewer
 * tasks to do one after the other. */
template <class D>
static cudaError_t launch_gate_up(cudaStream_t st, const struct cu_experts *e, const struct cu_choice *c,
                                  const struct cu_x *out, size_t shared_bytes, int *fault)
{
    enum { MORE_THREADS = 2 * MOST_THREADS, FEW = 256 };
    bool few = ceil_div(e->n_out, GATE_ROWS) * all_picks(*e) <= FEW;
    if (few && shape_of<D, MORE_THREADS / WARP>(2 * GATE_ROWS / D::ROWS, e->n).bytes <= shared_bytes)
        return launch_gate_up_of<D, MORE_THREADS, 2>(st, e, c, out, fault);
    return launch_gate_up_of<D, MOST_THREADS, 3>(st, e, c, out, fault);
}

template <class D>
static cudaError_t launch_expert_rows(cudaStream_t st, const struct cu_experts *e, float *y)
{
    struct block_shape shape = shape_of<D>(DOWN_ROWS / D::ROWS, e->n);
    cudaError_t err = allow_bytes(expert_rows<D>, shape.bytes);
    if (err != cudaSuccess)
        return err;
    return launch_early(expert_rows<D>, dim3(e->rows * e->n_used, ceil_div(e->n_out, DOWN_ROWS)), shape.threads,
                        shape.bytes, st, *e, y);
}

template <class D>
static cudaError_t launch_down(cudaStream_t st, const struct cu_experts *e, const struct cu_choice *c, float *y,
                               const struct cu_residual *residual)
{
    if constexpr (std::is_same<D, dot_MXFP4>::value) {
        struct block_shape shape;
        cudaError_t err = long_shape<mx4_here>(e, c, &shape);
        if (err != cudaSuccess || shape.threads)
            return err != cudaSuccess ? err : launch_long_down<mx4_here>(st, e, c, &shape, y, residual);
    }
    struct block_shape shape = shape_of<D>(n_picks(*e) * (DOWN_ROWS / D::ROWS), e->n);
    shape.bytes += picks_bytes(n_picks(*e));
    auto kernel = c->op.rows ? down<D, true> : down<D, false>;
    cudaError_t err = allow_bytes(kernel, shape.bytes);
    if (err != cudaSuccess)
        return err;
    return launch_early(kernel, dim3(ceil_div(e->n_out, DOWN_ROWS), e->rows), shape.threads, shape.bytes, st, *e, *c,
                        y, *residual);
}

extern "C" bool pf_cu_experts_choose(const struct cu_choice *c)
{
    return c->op.rows == 1 && warp_chooses(*c, 1);
}

extern "C" cudaError_t pf_cu_gate_up_of(cudaStream_t st, const struct cu_experts *e, const struct cu_choice *c,
                                        const struct cu_x *out, size_t shared_bytes, int *fault)
{
    bool taken;
    cudaError_t err = pf_cu_segments_gate_up(st, e, c, out, shared_bytes, fault, &taken);
    if (err != cudaSuccess || taken)
        return err;
    switch (e->w.type) {
#define X(TYPE) case PF_##TYPE: return launch_gate_up<dot_##TYPE>(st, e, c, out, shared_bytes, fault);
    CU_TYPE_LIST(X)
#undef X
    default: return cudaErrorInvalidValue;
    }
}

extern "C" cudaError_t pf_cu_gate_up(cudaStream_t st, const struct cu_experts *e, const struct cu_x *out,
                                     size_t shared_bytes, int *fault)
{
    struct cu_choice none = {};
    return pf_cu_gate_up_of(st, e, &none, out, shared_bytes, fault);
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

extern "C" cudaError_t pf_cu_down_of(cudaStream_t st, const struct cu_experts *e, const struct cu_choice *c, float *y,
                                     const struct cu_residual *residual)
{
    bool taken;
    cudaError_t err = pf_cu_segments_down(st, e, c, y, residual, &taken);
    if (err != cudaSuccess || taken)
        return err;
    switch (e->w.type) {
#define X(TYPE) case PF_##TYPE: return launch_down<dot_##TYPE>(st, e, c, y, residual);
    CU_TYPE_LIST(X)
#undef X
    default: return cudaErrorInvalidValue;
    }
}

extern "C" cudaError_t pf_cu_down(cudaStream_t st, const struct cu_experts *e, float *y,
                                  const struct cu_residual *residual)
{
    struct cu_choice none = {};
    return pf_cu_down_of(st, e, &none, y, residual);
}

/* As many elements as threads, row of the batch. */
static __global__ void combine(const __grid_constant__ struct cu_combine c, struct cu_residual residual)
{
    wait_turn();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    size_t at = (size_t)blockIdx.y * c.n + i;
    float sum = 0;
    if (i >= c.n)
        return;
    struct met met = met_at(residual, blockIdx.y, at);
    for (int k = 0; k < c.n_used; k++) {
        size_t p = (size_t)blockIdx.y * c.n_used + k;
        sum = fmaf(c.weights ? c.weights[p] : 1.0f, c.v[p * c.n + i], sum);
    }
    put_out(residual, met, sum, at, c.y);
}

extern "C" cudaError_t pf_cu_combine(cudaStream_t st, const struct cu_combine *c, const struct cu_residual *residual)
{
    return launch_early(combine, dim3(ceil_div(c->n, MOST_THREADS), c->rows), MOST_THREADS, 0, st, *c, *residual);
}
