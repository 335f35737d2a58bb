/* The device's side of experts shared with the host: it shows what the router picked, waits, and takes what it is given.
 *
 *     offer    one block copies x, picks and weights to memory of the host, then raises a flag there
 *     take     a block a pick waits for the host's flag; reads around the caches, since the host has just written
 *
 * Both are part of captured graphs: they know addresses of flags and buffers, never where an expert lies. */
#include "kernels/cuda/cu_device.h"

enum { OFFER_THREADS = 1024, TAKE_THREADS = 256 };
static const __device__ unsigned long long PATIENCE_NS = 30000000000ull;

CU_INLINE unsigned long long device_ns()
{
    unsigned long long t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}

static __global__ void offer(const __grid_constant__ struct cu_offer o)
{
    wait_turn();
    for (int i = threadIdx.x; i < o.n_x; i += blockDim.x)
        o.host_x[i] = o.x[i];
    for (int i = threadIdx.x; i < o.n_picks; i += blockDim.x) {
        o.host_picks[i] = o.picks[i];
        o.host_weights[i] = o.weights[i];
    }
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x == 0) {
        *(volatile uint64_t *)&o.flag->ns = device_ns();
        __threadfence_system();
        *(volatile uint32_t *)&o.flag->up = CU_FLAG_UP;
    }
}

extern "C" cudaError_t pf_cu_offer(cudaStream_t st, const struct cu_offer *o)
{
    return launch_early(offer, dim3(1), OFFER_THREADS, 0, st, *o);
}

/* Whether the host has answered. */
CU_INLINE bool wait_for(const struct cu_flag *flag, int *fault)
{
    unsigned long long begin = device_ns();
    for (;;) {
        uint32_t f = *(const volatile uint32_t *)&flag->up;
        if (f == CU_FLAG_UP)
            return true;
        if (f == CU_FLAG_GIVEN_UP || device_ns() - begin > PATIENCE_NS) {
            *fault = CU_HOST_LATE;
            return false;
        }
    }
}

static __global__ void __launch_bounds__(TAKE_THREADS) take(const __grid_constant__ struct cu_take t)
{
    __shared__ struct pf_handed h;
    wait_turn();
    int pick = blockIdx.x, expert = t.picks[pick];
    if (threadIdx.x == 0) {
        h.by = PF_BY_DEVICE;
        h.gate = h.up = h.down = NULL;
        if (wait_for(t.flag, t.fault)) {
            __threadfence_system();
            if (pick == 0)
                *(volatile uint64_t *)&t.flag->ns = device_ns();
            const volatile struct pf_handed *from = &t.handed[pick];
            h.by = from->by;
            if (h.by == PF_BY_DOWN || h.by == PF_BY_COPY)
                h.down = from->down;
            if (h.by == PF_BY_COPY) {
                h.gate = from->gate;
                h.up = from->up;
            }
        }
        t.late[expert] = (const uint8_t *)h.gate;
        t.late[t.n_expert + expert] = (const uint8_t *)h.up;
        t.late[2 * t.n_expert + expert] = (const uint8_t *)h.down;
    }
    __syncthreads();
    if (h.by == PF_BY_HOST)
        for (int i = threadIdx.x; i < t.n_out; i += blockDim.x)
            t.y[(size_t)pick * t.n_out + i] = __ldcv(t.host_y + (size_t)pick * t.n_out + i);
    if (h.by != PF_BY_DOWN)
        return;
    for (int i = threadIdx.x; i < t.n_ff; i += blockDim.x) {     /* whole warps, if it is to be quantised: n_ff in blocks of 32 */
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
    set_table<<<1, TAKE_THREADS, 0, st>>>(table, *e);
    return cudaGetLastError();
}
