/* Routed experts of few rows of the batch, a segment a lane (cu_segments.h): of K types, whose rows are short enough
 * for a block to have all of its own in shared memory at once, so that all bytes are on their way before the first is
 * waited for.
 *
 *     gate_up    of one row, 32 rows of gate and of up for a pick, as gate_up in cu_experts.cu
 *     down       eight outputs of a row for all its picks, as down in cu_experts.cu; rows are copied before its turn
 *
 * Both may have the shared expert among their picks, if the batch has one row. */
#include "kernels/cuda/cu_dot.h"
#include "kernels/cuda/cu_picks.h"
#include "kernels/cuda/cu_segments.h"
#include "kernels/cuda/cu_segments_api.h"

/* ---- Gate and up ------------------------------------------------------------------------------------------------- */

/* Fours of rows, gate's and then up's, which are copied together; a warp sends for one of gate and one of up. */
enum { FOUR = 4, FOURS_OF_GATE = GATE_ROWS / FOUR, FOURS = 2 * FOURS_OF_GATE, GATE_THREADS = FOURS_OF_GATE * WARP,
       MOST_PLACED = 512 };

/* The first rows of the block's pick. */
struct pair {
    const uint8_t *gate, *up;
};

CU_INLINE const uint8_t *four_at(const struct pair &p, uint64_t row_bytes, int g)
{
    return (g < FOURS_OF_GATE ? p.gate : p.up) + g % FOURS_OF_GATE * FOUR * row_bytes;
}

/* The tables of gate and up, if no kernel writes to them; before the block's turn. */
CU_INLINE void bring_tables(const struct cu_experts &e, const uint8_t **tables)
{
#pragma unroll 1
    for (int i = threadIdx.x; i < e.n_placed; i += blockDim.x) {
        tables[i] = *(const uint8_t *const volatile *)&e.w.data[i];
        tables[e.n_placed + i] = *(const uint8_t *const volatile *)&e.w2.data[i];
    }
}

/* The tables are in shared memory: an address out of the device's memory would come behind all that other blocks have
 * sent for. */
CU_INLINE struct pair rows_of(const struct cu_experts &e, int expert, const uint8_t *const *tables)
{
    size_t first = blockIdx.y * GATE_ROWS;
    struct pair p = { e.with.gate, e.with.up };
    if (expert != SHARED && e.n_placed)
        p = { tables[expert], tables[e.n_placed + expert] };
    else if (expert != SHARED)
        p = { e.w.data[expert], e.w2.data[expert] };
    return p.gate ? (struct pair){ p.gate + first * e.w.row_bytes, p.up + first * e.w2.row_bytes } : p;
}

/* Sends for the warp's fours. One lane calls it. */
CU_INLINE void send_for_fours(const struct pair &p, uint64_t row_bytes, int slot, uint8_t *copies, uint64_t *boxes)
{
#pragma unroll 1
    for (int g = threadIdx.x / WARP; g < FOURS; g += blockDim.x / WARP) {
        const uint8_t *rows = four_at(p, row_bytes, g);
        int skip = (int)((uintptr_t)rows & 15), bytes = (skip + FOUR * (int)row_bytes + 15) / 16 * 16;
        expect_bytes(&boxes[g], bytes);
        copy_once_to_box(copies + g * slot, rows - skip, bytes, &boxes[g]);
    }
}

/* Activation r of the block's rows from gate's and up's sums. */
CU_INLINE void put_gated(const struct cu_experts &e, const struct chosen &chosen, float gate, float up,
                         const struct cu_x &out, int *fault)
{
    int pick = blockIdx.x, r = blockIdx.y * GATE_ROWS + threadIdx.x;
    float a = gated(e, chosen.expert, r, gate, up, chosen.weight);
    if (chosen.expert == SHARED) {
        e.with.of_gate[r] = gate;
        e.with.of_up[r] = up;
        e.with.act[r] = a;
    }
    ((float *)out.f)[(size_t)pick * e.n_out + r] = a;
    if (out.q)
        quantise_block(a, &out, e.n_out, pick, blockIdx.y, fault);
}

/* blockIdx: pick, 32 rows. x, a block of which a thread takes, is asked for before the rows: behind them it would come
 * as late as they do. */
template <class T, bool CHOOSES>
static __global__ void __launch_bounds__(GATE_THREADS, 4)
gate_up(const __grid_constant__ struct cu_experts e, const __grid_constant__ struct cu_choice choice,
        const __grid_constant__ struct cu_x out, int *fault)
{
    BLOCK_MEMORY(uint4, sixteens);
    __shared__ uint64_t boxes[FOURS];
    int t = threadIdx.x, n_segments = e.n / 256, slot = staged_bytes(FOUR, e.w.row_bytes);
    uint8_t *copies = (uint8_t *)sixteens, *behind = copies + FOURS * slot;
    struct x_here x = x_here_at(behind, n_segments);
    float *sums = (float *)(behind + x_here_bytes(n_segments));
    const uint8_t **tables = (const uint8_t **)(sums + 2 * GATE_ROWS * n_segments);
    if (ends_with_turn(e.turns))
        return;
    if (t < FOURS)
        open_box(&boxes[t]);
    bring_tables(e, tables);
    __syncthreads();
    struct chosen chosen = await_pick<CHOOSES>(e, choice, blockIdx.x);
    struct x_block taken = {};
    if (t < e.n / 32)
        taken = take_block(x_row_of(e.x, e.n, 0), t);
    struct pair p = rows_of(e, chosen.expert, tables);
    if (!p.gate)
        return;
    if (t % WARP == 0)
        send_for_fours(p, e.w.row_bytes, slot, copies, boxes);
    if (t < e.n / 32)
        put_block<T>(x, t, taken);
    __syncthreads();
#pragma unroll 1
    for (int i = t; i < 2 * GATE_ROWS * n_segments; i += GATE_THREADS) {
        int row = quotient(i, n_segments), g = row / FOUR, segment = i - row * n_segments;
        const uint8_t *rows = copies + g * slot + ((uintptr_t)four_at(p, e.w.row_bytes, g) & 15);
        await_box(&boxes[g], 0);
        sums[i] = T::sum(rows + row % FOUR * (int)e.w.row_bytes + segment * T::BYTES, segment_of(x, segment));
    }
    __syncthreads();
    if (t < GATE_ROWS)
        put_gated(e, chosen, sum_of_row(sums + t * n_segments, n_segments),
                  sum_of_row(sums + (GATE_ROWS + t) * n_segments, n_segments), out, fault);
}

CU_HOST_FN size_t gate_up_bytes(const struct cu_experts &e)
{
    int n_segments = e.n / 256;
    return FOURS * staged_bytes(FOUR, e.w.row_bytes) + x_here_bytes(n_segments) +
        2 * (GATE_ROWS * n_segments * sizeof(float) + e.n_placed * sizeof(uint8_t *));
}

/* Two blocks have to fit a multiprocessor: with one there is nothing to compute while it waits. */
template <class T, bool CHOOSES>
static cudaError_t launch_gate_up(cudaStream_t st, struct cu_experts e, const struct cu_choice *c,
                                  const struct cu_x *out, size_t shared_bytes, int *fault, bool *takes)
{
    enum { SYSTEM_BYTES = 1 << 10 };
    int all;
    bool early;
    cudaError_t err = is_of_90(gate_up<T, CHOOSES>, &early);
    if (err == cudaSuccess)
        err = ask_device(cudaDevAttrMaxSharedMemoryPerMultiprocessor, &all);
    if (err != cudaSuccess)
        return err;
    if (e.n_placed > MOST_PLACED)
        e.n_placed = 0;
    size_t bytes = gate_up_bytes(e), statics = FOURS * sizeof(uint64_t) + WARP * sizeof(struct candidate) + 64;
    *takes = early && e.n / 32 <= GATE_THREADS && bytes <= shared_bytes &&
        2 * (bytes + statics + SYSTEM_BYTES) <= (size_t)all;
    if (!*takes)
        return cudaSuccess;
    err = allow_bytes(gate_up<T, CHOOSES>, bytes);
    return err != cudaSuccess ? err :
        launch_early(gate_up<T, CHOOSES>, dim3(all_picks(e), e.n_out / GATE_ROWS), GATE_THREADS, bytes, st, e, *c, *out,
                     fault);
}

template <class T>
static cudaError_t launch_gate_up(cudaStream_t st, const struct cu_experts *e, const struct cu_choice *c,
                                  const struct cu_x *out, size_t shared_bytes, int *fault, bool *takes)
{
    return c->op.rows ? launch_gate_up<T, true>(st, *e, c, out, shared_bytes, fault, takes) :
                        launch_gate_up<T, false>(st, *e, c, out, shared_bytes, fault, takes);
}

extern "C" cudaError_t pf_cu_segments_gate_up(cudaStream_t st, const struct cu_experts *e, const struct cu_choice *c,
                                              const struct cu_x *out, size_t shared_bytes, int *fault, bool *takes)
{
    *takes = false;
    if (e->rows != 1 || e->n_out % GATE_ROWS != 0)
        return cudaSuccess;
    switch (e->w.type) {
    case PF_Q4_K: return launch_gate_up<segment_k45<false>>(st, e, c, out, shared_bytes, fault, takes);
    case PF_Q5_K: return launch_gate_up<segment_k45<true>>(st, e, c, out, shared_bytes, fault, takes);
    case PF_Q6_K: return launch_gate_up<segment_k6>(st, e, c, out, shared_bytes, fault, takes);
    default: return cudaSuccess;
    }
}

/* ---- Down -------------------------------------------------------------------------------------------------------- */

enum { DOWN_THREADS = 12 * WARP, MOST_SEGMENTS = 4 };

/* blockIdx: eight rows, row of the batch. */
template <class T, bool CHOOSES>
static __global__ void __launch_bounds__(DOWN_THREADS, 2)
down(const __grid_constant__ struct cu_experts e, const __grid_constant__ struct cu_choice choice, float *y,
     const __grid_constant__ struct cu_residual residual)
{
    BLOCK_MEMORY(float, memory);
    int t = threadIdx.x, row = blockIdx.y, n = n_picks(e), n_segments = e.n / 256, per_pick = DOWN_ROWS * n_segments,
        n_rows = min((int)DOWN_ROWS, e.n_out - (int)blockIdx.x * DOWN_ROWS),
        slot = staged_bytes(DOWN_ROWS, e.w.row_bytes);
    struct picks p = picks_at(memory, n);
    uint8_t *copies = (uint8_t *)p.rest, *behind = copies + n * slot;
    struct x_here x = x_here_at(behind, n * n_segments);
    float *sums = (float *)(behind + x_here_bytes(n * n_segments));
    if (ends_with_turn(e.turns))
        return;
    bool keeps = e.turns.done && some_come_late(e.turns);
    look_up<CHOOSES>(e, choice, row, p);
#pragma unroll 1
    for (int i = t / WARP; i < n; i += blockDim.x / WARP)
        if (p.at[i].rows)
            stage(copies + i * slot, p.at[i].rows, n_rows * (int)e.w.row_bytes);
    __pipeline_commit();
    wait_turn();
    struct met met = met_here(e, residual, row);
    bring_x<T>(x, x_row_of(e.x, e.n, row * e.n_used), n * n_segments * SEGMENT_BLOCKS);
    __pipeline_wait_prior(0);
    __syncthreads();
#pragma unroll 1
    for (int i = t; i < n * per_pick; i += blockDim.x) {
        int pick = quotient(i, per_pick), in_pick = i - pick * per_pick, r = quotient(in_pick, n_segments);
        const uint8_t *rows = copies + pick * slot + ((uintptr_t)p.at[pick].rows & 15);
        if (p.at[pick].rows && r < n_rows)
            sums[i] = T::sum(rows + in_pick * T::BYTES, segment_of(x, pick * n_segments + in_pick - r * n_segments));
    }
    __syncthreads();
#pragma unroll 1
    for (int i = t; i < n * DOWN_ROWS; i += blockDim.x) {
        const struct pick &from = p.at[i / DOWN_ROWS];
        int r = blockIdx.x * DOWN_ROWS + i % DOWN_ROWS;
        if (from.rows && r < e.n_out)
            p.v[i] = scale_and_bias(e.w, from.expert, e.n_out, r, sum_of_row(sums + i * n_segments, n_segments));
    }
    if (keeps)
        keep_picks(e, row, p);
    else
        add_picks(e, residual, met, row, p, y);
}

/* The block; no threads: rows are too long, or too many. Two blocks fit a multiprocessor with 128 KB, one fits one with
 * 64. */
static struct block_shape down_shape(const struct cu_experts *e)
{
    enum { MOST_BYTES = 60 << 10 };
    int n = n_picks(*e), n_segments = e->n / 256, n_items = n * DOWN_ROWS * n_segments,
        rounds = ceil_div(n_items, DOWN_THREADS), n_warps = ceil_div(ceil_div(n_items, rounds), WARP);
    size_t bytes = picks_bytes(n) + n * staged_bytes(DOWN_ROWS, e->w.row_bytes) + x_here_bytes(n * n_segments) +
        n_items * sizeof(float);
    return { n_segments <= MOST_SEGMENTS && bytes <= MOST_BYTES ? n_warps * WARP : 0, bytes };
}

/* Memory with which no more than two blocks fit a multiprocessor, if the kernel's blocks come early: they would gather,
 * three or four to one, on the multiprocessors that the kernel ahead leaves first, and others would have none. */
template <class... P>
static cudaError_t two_at_most(void (*kernel)(P...), size_t *bytes)
{
    int all;
    bool early;
    cudaError_t err = is_of_90(kernel, &early);
    if (err == cudaSuccess)
        err = ask_device(cudaDevAttrMaxSharedMemoryPerMultiprocessor, &all);
    if (err == cudaSuccess && early && *bytes < (size_t)all / 3)
        *bytes = (size_t)all / 3;
    return err;
}

template <class T, bool CHOOSES>
static cudaError_t launch_down(cudaStream_t st, const struct cu_experts *e, const struct cu_choice *c,
                               struct block_shape shape, float *y, const struct cu_residual *residual)
{
    cudaError_t err = e->rows == 1 ? two_at_most(down<T, CHOOSES>, &shape.bytes) : cudaSuccess;
    if (err == cudaSuccess)
        err = allow_bytes(down<T, CHOOSES>, shape.bytes);
    return err != cudaSuccess ? err :
        launch_early(down<T, CHOOSES>, dim3(ceil_div(e->n_out, DOWN_ROWS), e->rows), shape.threads, shape.bytes, st, *e,
                     *c, y, *residual);
}

template <class T>
static cudaError_t launch_down(cudaStream_t st, const struct cu_experts *e, const struct cu_choice *c,
                               const struct block_shape *shape, float *y, const struct cu_residual *residual)
{
    return c->op.rows ? launch_down<T, true>(st, e, c, *shape, y, residual) :
                        launch_down<T, false>(st, e, c, *shape, y, residual);
}

extern "C" cudaError_t pf_cu_segments_down(cudaStream_t st, const struct cu_experts *e, const struct cu_choice *c,
                                           float *y, const struct cu_residual *residual, bool *takes)
{
    bool is_k = e->w.type == PF_Q4_K || e->w.type == PF_Q5_K || e->w.type == PF_Q6_K;
    struct block_shape shape = is_k ? down_shape(e) : (struct block_shape){ 0, 0 };
    *takes = shape.threads;
    if (!*takes)
        return cudaSuccess;
    switch (e->w.type) {
    case PF_Q4_K: return launch_down<segment_k45<false>>(st, e, c, &shape, y, residual);
    case PF_Q5_K: return launch_down<segment_k45<true>>(st, e, c, &shape, y, residual);
    default: return launch_down<segment_k6>(st, e, c, &shape, y, residual);
    }
}
