/* Down of routed experts in a step of several rows, in one of two ways:
 *
 *     down       a block takes eight output elements of all rows of the step, for all picks, two picks of an expert at
 *                once
 *     lane_down  a block takes 32 output elements of one row for all its picks, a weight row a lane; rows of the step
 *                meet at the same weights in the cache
 *
 * Then it adds up each row's picks in the router's order. */
#include "kernels/cuda/cu_combine.h"
#include "kernels/cuda/cu_lanes.h"
#include "kernels/cuda/cu_several.h"

enum { DOWN_ROWS = 8, THREADS = 8 * WARP };

/* ---- Pairs of picks ---------------------------------------------------------------------------------------------- */

/* A pick: the block's rows of its expert's down matrix, NULL if the expert is not on the device. Of the step's picks
 * the outputs of pick i are at v[i * DOWN_ROWS]. A unit is a pair of picks of one expert, or a pick twice. */
struct pick {
    const uint8_t *rows;
    float          weight;
    int            expert;
};
struct unit {
    int x, y;
};
struct step_picks {
    struct pick *at;              /* [n] */
    float       *v;               /* [n][DOWN_ROWS] */
    struct unit *unit;           /* [n_units] */
    float       *rest;
    int          n;
};

CU_HOST_FN size_t picks_bytes(int n)
{
    return n * (sizeof(struct pick) + DOWN_ROWS * sizeof(float) + sizeof(struct unit)) / 16 * 16 + 16;
}

CU_INLINE struct step_picks picks_at(float4 *memory, int n)
{
    struct pick *at = (struct pick *)memory;
    float *v = (float *)(at + n);
    return { at, v, (struct unit *)(v + n * DOWN_ROWS), (float *)((uint8_t *)memory + picks_bytes(n)), n };
}

/* Fills p before the block's turn: picks, their weights, tables and e.done were written before the kernel ahead. */
CU_INLINE void look_up(const struct cu_experts &e, const struct step_picks &p, int &n_units)
{
    int first = blockIdx.x * DOWN_ROWS;
    if (threadIdx.x == 0)
        n_units = 0;
#pragma unroll 1
    for (int t = threadIdx.x; t < DOWN_ROWS * p.n; t += blockDim.x) {
        int k = t / DOWN_ROWS, r = first + t % DOWN_ROWS;
        int expert = *(const volatile int32_t *)&e.picks[k];
        const uint8_t *w = *(const uint8_t *const volatile *)&e.w.data[expert];
        if (t % DOWN_ROWS == 0)
            p.at[k] = { w ? w + first * e.w.row_bytes : NULL,
                        e.weigh_input ? 1.0f : *(const volatile float *)&e.weights[k], expert };
        if (!w && r < e.n_out)
            p.v[t] = *(const volatile float *)&e.done[(size_t)k * e.n_out + r];
    }
    __syncthreads();
#pragma unroll 1
    for (int k = threadIdx.x / WARP; k < p.n; k += blockDim.x / WARP) {
        int place = 0, next = k, lane = threadIdx.x % WARP;
#pragma unroll 1
        for (int i = 0; i < p.n; i += WARP) {
            uint32_t same = __ballot_sync(ALL_LANES, i + lane < p.n && p.at[min(i + lane, p.n - 1)].expert ==
                                          p.at[k].expert);
            for (; same; same &= same - 1) {
                int other = i + __ffs((int)same) - 1;
                place += other < k;
                if (other > k && next == k)
                    next = other;
            }
        }
        if (lane == 0 && place % SHARED_BY == 0 && p.at[k].rows)
            p.unit[atomicAdd(&n_units, 1)] = { k, next };
    }
    __syncthreads();
}

/* Adds up a row's picks in their order: a thread an output. */
CU_INLINE void add_picks(const struct cu_experts &e, const struct cu_residual &residual, const struct step_picks &p,
                         float *y)
{
#pragma unroll 1
    for (int t = threadIdx.x; t < DOWN_ROWS * e.rows; t += blockDim.x) {
        int row = t / DOWN_ROWS, r = blockIdx.x * DOWN_ROWS + t % DOWN_ROWS;
        size_t at = (size_t)row * e.n_out + r;
        if (r >= e.n_out)
            continue;
        struct met met = met_at(residual, row, at);
        float sum = 0;
#pragma unroll 4
        for (int i = row * e.n_used; i < (row + 1) * e.n_used; i++)
            sum = fmaf(p.at[i].weight, p.v[i * DOWN_ROWS + t % DOWN_ROWS], sum);
        put_out(residual, met, sum, at, y);
    }
}

/* Where the block's tasks lie: units first, of each some quads and their rounds. */
template <class T>
struct way {
    enum { QUADS = DOWN_ROWS / TASK_ROWS };
    int of_unit, last;            /* tasks; the block's last row */

    CU_READ_FN void place(const struct step_picks &p, const struct cu_experts &e, int task, struct sent<T> &s) const
    {
        int unit = task / of_unit, rest = task - unit * of_unit;
        s.w = { p.at[p.unit[unit].x].rows, e.w.row_bytes, last };
        s.round = rest / QUADS;
        s.r0 = rest % QUADS * TASK_ROWS;
    }
};

/* A warp's tasks of a unit, up to `stop` of those up to `end`. sums: [n picks][DOWN_ROWS][segments]. */
template <class T, int R>
CU_INLINE void sum_down(const struct cu_experts &e, const struct step_picks &p, const struct way<T> &way,
                        struct sent<T> &s, int unit, int task, int stop, int end, float2 *terms, float *sums)
{
    struct unit of = p.unit[unit];
    int before = unit * way.of_unit, of_pick = DOWN_ROWS * quantised<T>::n_sums(e.n);
    const struct x_row x[SHARED_BY] = { x_row_of(e.x, e.n, of.x), x_row_of(e.x, e.n, of.y) };
    run_quads<T, R>(s, task - before, stop - before, way.QUADS, e.n, x, e.tables, terms, sums + of.x * of_pick,
                    (of.y - of.x) * of_pick,
                    [&](int quad, struct sent<T> &to) { to.r0 = quad * TASK_ROWS; },
                    [&](struct sent<T> &to) {
        if (stop < end)
            way.place(p, e, stop, to);
        return stop < end;
    });
}

/* blockIdx: eight rows. */
template <class T>
static __global__ void __launch_bounds__(THREADS, 3) down(const __grid_constant__ struct cu_experts e, float *y,
                                                          struct cu_residual residual)
{
    typedef quantised<T> D;
    BLOCK_MEMORY(float4, memory);
    __shared__ int n_units;
    struct step_picks p = picks_at(memory, e.rows * e.n_used);
    look_up(e, p, n_units);
    const struct way<T> way = { DOWN_ROWS / TASK_ROWS * D::n_rounds(e.n),
                                min((int)DOWN_ROWS, e.n_out - (int)blockIdx.x * DOWN_ROWS) - 1 };
    int warp = threadIdx.x / WARP, n_warps = blockDim.x / WARP, n_all = n_units * way.of_unit,
        task = n_all * warp / n_warps, end = n_all * (warp + 1) / n_warps;
    float2 *terms = (float2 *)((uint8_t *)p.rest + warp * several_bytes<T>());
    float *sums = (float *)((uint8_t *)p.rest + n_warps * several_bytes<T>());
    struct sent<T> s;
    if (task < end) {
        way.place(p, e, task, s);
        send_for<T>(s, e.n, e.tables, terms);
    }
    wait_turn();
#pragma unroll 1
    for (int unit = task / way.of_unit; task < end; unit++) {
        int stop = min((unit + 1) * way.of_unit, end);
        if (p.unit[unit].x == p.unit[unit].y)
            sum_down<T, 1>(e, p, way, s, unit, task, stop, end, terms, sums);
        else
            sum_down<T, 2>(e, p, way, s, unit, task, stop, end, terms, sums);
        task = stop;
    }
    __syncthreads();
#pragma unroll 1
    for (int t = threadIdx.x; t < DOWN_ROWS * p.n; t += blockDim.x) {
        const struct pick &from = p.at[t / DOWN_ROWS];
        int r = blockIdx.x * DOWN_ROWS + t % DOWN_ROWS;
        if (from.rows && r < e.n_out)
            p.v[t] = scale_and_bias(e.w, from.expert, e.n_out, r, D::total(sums + t * D::n_sums(e.n), e.n));
    }
    __syncthreads();
    add_picks(e, residual, p, y);
}

/* ---- A row a lane ------------------------------------------------------------------------------------------------ */

enum { LANE_ROWS = WARP };

struct lane_picks {
    struct pick *at;              /* [n_used] */
    float       *v, *sums;        /* [n_used][LANE_ROWS], and that [n segments] */
    uint8_t     *slots;
};

CU_HOST_FN size_t lane_bytes(int n_used, int n)
{
    return (n_used * (sizeof(struct pick) + LANE_ROWS * (1 + n / 256) * sizeof(float)) + 15) / 16 * 16;
}

CU_INLINE struct lane_picks lane_picks_at(float4 *memory, int n_used, int n)
{
    struct pick *at = (struct pick *)memory;
    float *v = (float *)(at + n_used);
    return { at, v, v + n_used * LANE_ROWS, (uint8_t *)memory + lane_bytes(n_used, n) };
}

/* Before the block's turn, as look_up. */
CU_INLINE void look_up_row(const struct cu_experts &e, int row, const struct lane_picks &p)
{
    int first = blockIdx.y * LANE_ROWS;
#pragma unroll 1
    for (int t = threadIdx.x; t < LANE_ROWS * e.n_used; t += blockDim.x) {
        int i = t / LANE_ROWS, r = first + t % LANE_ROWS, k = row * e.n_used + i;
        int expert = *(const volatile int32_t *)&e.picks[k];
        const uint8_t *w = *(const uint8_t *const volatile *)&e.w.data[expert];
        if (t % LANE_ROWS == 0)
            p.at[i] = { w ? w + first * e.w.row_bytes : NULL,
                        e.weigh_input ? 1.0f : *(const volatile float *)&e.weights[k], expert };
        if (!w && r < e.n_out)
            p.v[t] = *(const volatile float *)&e.done[(size_t)k * e.n_out + r];
    }
    __syncthreads();
}

/* blockIdx: row of the step, 32 rows. Rows of the step meet at the same weights. */
template <class L>
static __global__ void __launch_bounds__(THREADS, 3) lane_down(const __grid_constant__ struct cu_experts e, float *y,
                                                                struct cu_residual residual)
{
    BLOCK_MEMORY(float4, memory);
    int row = blockIdx.x, first = blockIdx.y * LANE_ROWS, last = e.n_out - 1 - first, lane = threadIdx.x % WARP,
        warp = threadIdx.x / WARP, n_warps = blockDim.x / WARP, n_segments = e.n / 256, n_tasks = e.n_used * n_segments;
    struct lane_picks p = lane_picks_at(memory, e.n_used, e.n);
    uint8_t *slot = p.slots + warp * L::WARP_BYTES;
    look_up_row(e, row, p);
    auto begin = [&](int task) {
        int i = task / n_segments;
        if (task < n_tasks && p.at[i].rows)
            stage_segment<L>(slot, p.at[i].rows + (task - i * n_segments) * L::BYTES, (uint32_t)e.w.row_bytes, last);
        __pipeline_commit();
    };
    begin(warp);
    wait_turn();
#pragma unroll 1
    for (int task = warp; task < n_tasks; task += n_warps) {
        int i = task / n_segments, segment = task - i * n_segments;
        float s[1] = {};
        __pipeline_wait_prior(0);
        __syncwarp();
        if (p.at[i].rows) {
            const struct x_row x = x_row_of(e.x, e.n, row * e.n_used + i);
            int skip = skip_of<L>(p.at[i].rows + segment * L::BYTES, e.w.row_bytes, last);
            L::template sum<1>(slot, skip, &x, segment, s);
        }
        p.sums[(i * LANE_ROWS + lane) * n_segments + segment] = s[0];
        __syncwarp();
        begin(task + n_warps);
    }
    __syncthreads();
#pragma unroll 1
    for (int t = threadIdx.x; t < LANE_ROWS * e.n_used; t += blockDim.x) {
        const struct pick &from = p.at[t / LANE_ROWS];
        int r = first + t % LANE_ROWS;
        float total = 0;
#pragma unroll 2
        for (int i = 0; i < n_segments; i++)
            total = total + p.sums[t * n_segments + i];
        if (from.rows && r < e.n_out)
            p.v[t] = scale_and_bias(e.w, from.expert, e.n_out, r, total);
    }
    __syncthreads();
    if (warp > 0 || lane > last)
        return;
    size_t at = (size_t)row * e.n_out + first + lane;
    struct met met = met_at(residual, row, at);
    float sum = 0;
#pragma unroll 4
    for (int i = 0; i < e.n_used; i++)
        sum = fmaf(p.at[i].weight, p.v[i * LANE_ROWS + lane], sum);
    put_out(residual, met, sum, at, y);
}

/* How rows of a type are read a row a lane. */
template <class T>
struct lanes_of {
    static constexpr bool are_read = false;
};
template <class L>
struct read_lanes {
    typedef L type;
    static constexpr bool are_read = true;
};
template <> struct lanes_of<k45<false>> : read_lanes<lanes_k45<false>> {};
template <> struct lanes_of<k45<true>> : read_lanes<lanes_k45<true>> {};
template <> struct lanes_of<k6> : read_lanes<lanes_k6> {};

/* ---- Launches ---------------------------------------------------------------------------------------------------- */

template <class T>
static size_t bytes_of(const struct cu_experts *e)
{
    size_t n_picks = (size_t)e->rows * e->n_used;
    if constexpr (lanes_of<T>::are_read)
        return lane_bytes(e->n_used, e->n) + THREADS / WARP * (size_t)lanes_of<T>::type::WARP_BYTES;
    else
        return picks_bytes((int)n_picks) + THREADS / WARP * several_bytes<T>() +
            n_picks * DOWN_ROWS * quantised<T>::n_sums(e->n) * sizeof(float);
}

static cudaError_t launch_as(void (*kernel)(const struct cu_experts, float *, struct cu_residual), dim3 grid,
                             size_t bytes, cudaStream_t st, const struct cu_experts *e, float *y,
                             const struct cu_residual *residual)
{
    cudaError_t err = allow_bytes(kernel, bytes);
    return err != cudaSuccess ? err : launch_early(kernel, grid, THREADS, bytes, st, *e, y, *residual);
}

template <class T>
static cudaError_t launch(cudaStream_t st, const struct cu_experts *e, float *y, const struct cu_residual *residual)
{
    if constexpr (lanes_of<T>::are_read)
        return launch_as(lane_down<typename lanes_of<T>::type>, dim3(e->rows, ceil_div(e->n_out, LANE_ROWS)),
                         bytes_of<T>(e), st, e, y, residual);
    else
        return launch_as(down<T>, ceil_div(e->n_out, DOWN_ROWS), bytes_of<T>(e), st, e, y, residual);
}

/* Rows of Q6_K of up to so many elements are sooner done pick by pick. */
enum { SHORT_K6 = 768 };

extern "C" bool pf_cu_several_takes_down(const struct cu_experts *e, size_t shared_bytes)
{
    if (e->w.type == PF_Q6_K && e->n <= SHORT_K6)
        return false;
    return several_takes(e, shared_bytes, [&](auto t) { return bytes_of<typename decltype(t)::type>(e); });
}

extern "C" cudaError_t pf_cu_several_down(cudaStream_t st, const struct cu_experts *e, float *y,
                                          const struct cu_residual *residual)
{
    switch (e->w.type) {
#define X(TYPE, FROM, MOST, ...) case PF_##TYPE: return launch<__VA_ARGS__>(st, e, y, residual);
    CU_SEVERAL_LIST(X)
#undef X
    default: return cudaErrorInvalidValue;
    }
}
