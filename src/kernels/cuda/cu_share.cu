/* The device's side of experts shared with the host: it shows what the router picked, waits, and takes what it is given.
 *
 *     offer    one block copies x, picks and weights to memory of the host, then raises a flag there
 *     take     a block a pick waits for the host's flag; reads around the caches, since the host has just written
 *
 * Of all threads one asks for the host's flag, and tells the others through the device's memory. Reads of one line of
 * the host's memory stand in line, 5 to 6 us each on an H200, and whatever else crosses stands behind them: copies,
 * events, other reads.
 *
 * Both are part of captured graphs: they know addresses of flags and buffers, never where an expert lies. */
#include "kernels/cuda/cu_device.h"

enum { OFFER_THREADS = 1024, TAKE_THREADS = 1024, TAKE_AHEAD = 3, TABLE_THREADS = 256 };
static const __device__ unsigned long long PATIENCE_NS = 30000000000ull;

static __global__ void offer(const __grid_constant__ struct cu_offer o)
{
    wait_turn();
    for (int i = threadIdx.x; i < o.n_x; i += blockDim.x)
        o.host_x[i] = o.x[i];
    for (int i = threadIdx.x; i < o.n_picks; i += blockDim.x) {
        o.host_picks[i] = o.picks[i];
        o.host_weights[i] = o.weights[i];
    }
    if (threadIdx.x == 0) {
        *o.told = CU_FLAG_DOWN;
        *(volatile uint64_t *)&o.flag->ns = device_ns();
    }
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x == 0)
        *(volatile uint32_t *)&o.flag->up = CU_FLAG_UP;
}

extern "C" cudaError_t pf_cu_offer(cudaStream_t st, const struct cu_offer *o)
{
    return launch_early(offer, dim3(1), OFFER_THREADS, 0, st, *o);
}

/* The host's answer: CU_FLAG_UP, or CU_FLAG_GIVEN_UP if none will come. */
CU_INLINE uint32_t ask_host(const struct cu_take &t)
{
    unsigned long long begin = device_ns();
    uint32_t f;
    do
        f = *(const volatile uint32_t *)&t.flag->up;
    while (f == CU_FLAG_DOWN && device_ns() - begin <= PATIENCE_NS);
    if (f == CU_FLAG_UP) {
        *(volatile uint64_t *)&t.flag->ns = device_ns();
        return f;
    }
    *t.fault = CU_HOST_LATE;
    return CU_FLAG_GIVEN_UP;
}

/* Whether the host has answered; by one thread of each block. Blocks begin in order, so the first is there for the others. */
CU_INLINE bool wait_for_host(const struct cu_take &t)
{
    uint32_t f;
    if (blockIdx.x == 0) {
        f = ask_host(t);
        __threadfence_system();
        *(volatile uint32_t *)t.told = f;
    } else {
        while ((f = *(const volatile uint32_t *)t.told) == CU_FLAG_DOWN)
            ;
        __threadfence_system();
    }
    return f == CU_FLAG_UP;
}

static __global__ void __launch_bounds__(TAKE_THREADS) take(const __grid_constant__ struct cu_take t)
{
    __shared__ __align__(16) struct pf_handed h;
    __shared__ bool answered;
    static_assert(sizeof h == 2 * sizeof(uint4), "read as two");
    wait_turn();
    int pick = blockIdx.x, expert = t.picks[pick], me = threadIdx.x;
    const float *host_y = t.host_y + (size_t)pick * t.n_out;
    if (me == 0)
        answered = wait_for_host(t);
    __syncthreads();
    float y[TAKE_AHEAD];                     /* with the handed, in one crossing; it may turn out to be nobody's */
    for (int k = 0; k < TAKE_AHEAD; k++)
        y[k] = me + k * TAKE_THREADS < t.n_out ? __ldcv(host_y + me + k * TAKE_THREADS) : 0.0f;
    if (me < 2)
        ((uint4 *)&h)[me] = __ldcv((const uint4 *)&t.handed[pick] + me);
    __syncthreads();
    enum pf_pick_by by = answered ? h.by : PF_BY_DEVICE;
    if (me == 0) {
        t.late[expert] = by == PF_BY_COPY ? (const uint8_t *)h.gate : NULL;
        t.late[t.n_expert + expert] = by == PF_BY_COPY ? (const uint8_t *)h.up : NULL;
        t.late[2 * t.n_expert + expert] = by == PF_BY_COPY || by == PF_BY_DOWN ? (const uint8_t *)h.down : NULL;
    }
    if (by == PF_BY_HOST) {
        float *to = t.y + (size_t)pick * t.n_out;
        for (int k = 0; k < TAKE_AHEAD; k++)
            if (me + k * TAKE_THREADS < t.n_out)
                to[me + k * TAKE_THREADS] = y[k];
        for (int i = me + TAKE_AHEAD * TAKE_THREADS; i < t.n_out; i += TAKE_THREADS)
            to[i] = __ldcv(host_y + i);
    }
    if (by != PF_BY_DOWN)
        return;
    for (int i = me; i < t.n_ff; i += TAKE_THREADS) {        /* whole warps, if it is to be quantised: n_ff in blocks of 32 */
        float a = __ldcv(t.act + (size_t)pick * t.n_ff + i);
        ((float *)t.a.f)[(size_t)pick * t.n_ff + i] = a;
        if (t.a.q)
            quantise_block(a, &t.a, t.n_ff, pick, i / 32, t.fault);
    }
}

extern "C" cudaError_t pf_cu_take(cudaStream_t st, const struct cu_take *t)
{
    return launch_early(take, dim3(t->n_picks), TAKE_THREADS, 0, st, *t);
}

static __global__ void set_table(const uint8_t **table, const __grid_constant__ struct cu_entries e)
{
    for (int i = threadIdx.x; i < 3 * e.n_clear; i += blockDim.x)
        table[i / e.n_clear * e.stride + i % e.n_clear] = NULL;
    __syncthreads();
    for (int i = threadIdx.x; i < 3 * e.n; i += blockDim.x)
        table[i / e.n * e.stride + e.expert[i % e.n]] = e.at[i / e.n][i % e.n];
}

extern "C" cudaError_t pf_cu_set_table(cudaStream_t st, const uint8_t **table, const struct cu_entries *e)
{
    return launch_in_turn(set_table, 1, TABLE_THREADS, 0, st, table, *e);
}
