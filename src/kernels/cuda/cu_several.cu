/* Gate and up of routed experts in a step of several rows: what cu_experts.cu does pick by pick is done for up to
 * SHARED_BY picks of an expert at once. A block takes 32 rows of gate and of up for a pick and the next one of the same
 * expert, if there is one. Nothing is sorted: each block looks through the step's picks. */
#include "kernels/cuda/cu_combine.h"
#include "kernels/cuda/cu_lanes.h"
#include "kernels/cuda/cu_several.h"

enum { GATE_ROWS = 32, THREADS = 8 * WARP };

/* How a block's 32 rows of gate and of up are multiplied: sums are [activations][2 GATE_ROWS][segments], gate's first.
 * By quads, any type: */
template <class T>
struct by_quads {
    enum { WARP_BYTES = several_bytes<T>() };

    template <int R>
    static CU_READ_FN void sum(const struct cu_experts &e, int expert, const struct x_row (&x)[SHARED_BY],
                               uint8_t *memory, float *sums)
    {
        enum { QUADS = GATE_ROWS / TASK_ROWS };
        int n_all = 2 * QUADS * quantised<T>::n_rounds(e.n), warp = threadIdx.x / WARP, n_warps = blockDim.x / WARP,
            task = n_all * warp / n_warps, end = n_all * (warp + 1) / n_warps, first = blockIdx.y * GATE_ROWS;
        const uint8_t *gate = e.w.data[expert], *up = e.w2.data[expert];
        float2 *terms = (float2 *)(memory + warp * WARP_BYTES);
        auto place = [&](int quad, struct sent<T> &s) {
            s.w = { quad < QUADS ? gate : up, e.w.row_bytes, e.n_out - 1 };
            s.r0 = first + quad % QUADS * TASK_ROWS;
        };
        struct sent<T> s;
        s.round = task / (2 * QUADS);
        if (task >= end)
            return;
        place(task - s.round * 2 * QUADS, s);
        send_for<T>(s, e.n, e.tables, terms);
        run_quads<T, R>(s, task, end, 2 * QUADS, e.n, x, e.tables, terms, sums,
                        2 * GATE_ROWS * quantised<T>::n_sums(e.n), place, [](struct sent<T> &) { return false; });
    }
};

/* A row a lane: */
template <class L>
struct by_lanes {
    enum { WARP_BYTES = L::WARP_BYTES };

    template <int R>
    static CU_READ_FN void sum(const struct cu_experts &e, int expert, const struct x_row (&x)[SHARED_BY],
                               uint8_t *memory, float *sums)
    {
        int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, first = blockIdx.y * GATE_ROWS,
            last = e.n_out - 1 - first, n_segments = e.n / 256;
        uint8_t *slot = memory + warp * WARP_BYTES;
#pragma unroll 1
        for (int task = warp; task < 2 * n_segments; task += blockDim.x / WARP) {
            bool is_up = task >= n_segments;
            int segment = is_up ? task - n_segments : task;
            const uint8_t *rows = (is_up ? e.w2.data : e.w.data)[expert] + first * e.w.row_bytes;
            float s[R];
            __syncwarp();
            rows += segment * L::BYTES;
            stage_segment<L>(slot, rows, (uint32_t)e.w.row_bytes, last);
            __pipeline_commit();
            __pipeline_wait_prior(0);
            __syncwarp();
            L::template sum<R>(slot, skip_of<L>(rows, e.w.row_bytes, last), x, segment, s);
#pragma unroll
            for (int j = 0; j < R; j++)
                sums[((2 * j + is_up) * GATE_ROWS + lane) * n_segments + segment] = s[j];
        }
    }
};

template <class T>
struct way_of : by_quads<T> {};
template <bool FIVE>
struct way_of<k45<FIVE>> : by_lanes<lanes_k45<FIVE>> {};
template <>
struct way_of<k6> : by_lanes<lanes_k6> {};

/* blockIdx: pick, 32 rows. */
template <class T>
static __global__ void __launch_bounds__(THREADS, 3) gate_up(const __grid_constant__ struct cu_experts e,
                                                             const __grid_constant__ struct cu_x out, int *fault)
{
    typedef quantised<T> D;
    BLOCK_MEMORY(float4, memory);
    wait_turn();
    int pick = blockIdx.x, expert = e.picks[pick], lane = threadIdx.x % WARP, warp = threadIdx.x / WARP,
        r = blockIdx.y * GATE_ROWS + lane, stride = D::n_sums(e.n);
    if (!e.w.data[expert])
        return;
    struct mates m = mates_of(e.picks, e.rows * e.n_used, pick, expert);
    if (m.place % SHARED_BY)
        return;
    if (threadIdx.x < 2) {
        const struct cu_expert_weight &of = threadIdx.x ? e.w2 : e.w;
        fetch_ahead(of.data[expert] + (size_t)blockIdx.y * GATE_ROWS * of.row_bytes,
                    min((int)GATE_ROWS, e.n_out - (int)blockIdx.y * GATE_ROWS) * of.row_bytes);
    }
    float *sums = (float *)((uint8_t *)memory + blockDim.x / WARP * way_of<T>::WARP_BYTES);
    const struct x_row x[SHARED_BY] = { x_row_of(e.x, e.n, pick / e.n_used), x_row_of(e.x, e.n, m.next / e.n_used) };
    if (m.next == pick)
        way_of<T>::template sum<1>(e, expert, x, (uint8_t *)memory, sums);
    else
        way_of<T>::template sum<2>(e, expert, x, (uint8_t *)memory, sums);
    __syncthreads();
    if (warp >= SHARED_BY || (warp > 0 && m.next == pick))
        return;
    pick = warp ? m.next : pick;
    sums += warp * 2 * GATE_ROWS * stride + lane * stride;
    float a = 0;
    if (r < e.n_out) {
        a = gated(e, expert, r, D::total(sums, e.n), D::total(sums + GATE_ROWS * stride, e.n),
                  e.weigh_input ? e.weights[pick] : 1.0f);
        ((float *)out.f)[(size_t)pick * e.n_out + r] = a;
    }
    if (out.q)
        quantise_block(a, &out, e.n_out, pick, blockIdx.y, fault);
}

template <class T>
static size_t bytes_of(const struct cu_experts *e)
{
    return THREADS / WARP * way_of<T>::WARP_BYTES +
        (size_t)SHARED_BY * 2 * GATE_ROWS * quantised<T>::n_sums(e->n) * sizeof(float);
}

template <class T>
static cudaError_t launch(cudaStream_t st, const struct cu_experts *e, const struct cu_x *out, int *fault)
{
    size_t bytes = bytes_of<T>(e);
    cudaError_t err = allow_bytes(gate_up<T>, bytes);
    if (err != cudaSuccess)
        return err;
    return launch_early(gate_up<T>, dim3(e->rows * e->n_used, ceil_div(e->n_out, GATE_ROWS)), THREADS, bytes, st, *e,
                        *out, fault);
}

extern "C" int pf_cu_several_most(enum pf_qtype type)
{
    switch (type) {
#define X(TYPE, FROM, MOST, ...) case PF_##TYPE: return MOST;
    CU_SEVERAL_LIST(X)
#undef X
    default: return 0;
    }
}

extern "C" bool pf_cu_several_takes(const struct cu_experts *e, size_t shared_bytes)
{
    return several_takes(e, shared_bytes, [&](auto t) { return bytes_of<typename decltype(t)::type>(e); });
}

extern "C" cudaError_t pf_cu_several(cudaStream_t st, const struct cu_experts *e, const struct cu_x *out, int *fault)
{
    switch (e->w.type) {
#define X(TYPE, FROM, MOST, ...) case PF_##TYPE: return launch<__VA_ARGS__>(st, e, out, fault);
    CU_SEVERAL_LIST(X)
#undef X
    default: return cudaErrorInvalidValue;
    }
}
