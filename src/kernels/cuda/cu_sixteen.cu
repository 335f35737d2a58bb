/* Routed experts in a step of several rows, where multiprocessors have bulk copies and much shared memory: gate and up
 * of Q4_K, sixteen weight rows a warp. */
#include "kernels/cuda/cu_combine.h"
#include "kernels/cuda/cu_several.h"
#include "kernels/cuda/cu_sixteen.h"

enum { WARPS = 8, THREADS = WARPS * WARP };

/* Of each of 32 rows of gate and of up there are two rounds of segments: a warp has one of sixteen of the rows. */
enum { GATE_ROWS = 32, ROUNDS = 2, GATE_BYTES = WARPS * K4_SLOT };

/* Leaves the sums of a warp's task at the beginning of its slot: [activations][row][segment]. */
template <int R>
CU_INLINE void put_sums(uint8_t *slot, const struct x_row (&x)[SHARED_BY], int round, int n, uint64_t *box)
{
    int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    float sum[2][R], *to = (float *)slot;
    sum_k4<R>(slot, x, round, n, box, sum);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 2 * R; i++)
        to[(i % R * SIXTEEN + g + i / R * 8) * ROUND_SEGMENTS + t] = sum[i / R][i % R];
}

/* The lane's row of gate or of up. */
CU_INLINE float total_of(const uint8_t *slots, int is_up, int j, int n_segments)
{
    int lane = threadIdx.x % WARP, r = lane % SIXTEEN;
    float total = 0;
#pragma unroll
    for (int round = 0; round < ROUNDS; round++) {
        const uint8_t *slot = slots + ((2 * is_up + lane / SIXTEEN) * ROUNDS + round) * K4_SLOT;
        float4 v = ((const float4 *)slot)[j * SIXTEEN + r];
        float of[ROUND_SEGMENTS] = { v.x, v.y, v.z, v.w };
#pragma unroll
        for (int s = 0; s < ROUND_SEGMENTS; s++)
            total = ROUND_SEGMENTS * round + s < n_segments ? total + of[s] : total;
    }
    return total;
}

/* blockIdx: pick, 32 rows. A task that begins past the last row has the last row instead, and its sums are left. */
static __global__ void __launch_bounds__(THREADS, 3) gate_up(const __grid_constant__ struct cu_experts e,
                                                             const __grid_constant__ struct cu_x out, int *fault)
{
    BLOCK_MEMORY(float4, memory);
    __shared__ uint64_t boxes[WARPS];
    wait_turn();
    int pick = blockIdx.x, expert = e.picks[pick], lane = threadIdx.x % WARP, warp = uniform(threadIdx.x / WARP),
        round = warp % ROUNDS, first = blockIdx.y * GATE_ROWS, r = first + lane,
        task_first = min(first + warp / ROUNDS % 2 * SIXTEEN, e.n_out - 1);
    const uint8_t *rows = uniform((warp < WARPS / 2 ? e.w : e.w2).data[expert]);
    struct mates m = mates_of(e.picks, e.rows * e.n_used, pick, expert);         /* while the address comes */
    if (!rows || m.place % SHARED_BY)
        return;
    uint8_t *slots = (uint8_t *)memory, *slot = slots + warp * K4_SLOT;
    if (lane == 0)
        open_box(&boxes[warp]);
    __syncwarp();
    send_for_sixteen(slot, rows + task_first * e.w.row_bytes + round * K4_PITCH, e.w.row_bytes,
                     e.n_out - 1 - task_first, min((int)ROUND_SEGMENTS, e.n / 256 - round * ROUND_SEGMENTS) * K4_BYTES,
                     &boxes[warp]);
    const struct x_row x[SHARED_BY] = { x_row_of(e.x, e.n, pick / e.n_used), x_row_of(e.x, e.n, m.next / e.n_used) };
    if (m.next == pick)
        put_sums<1>(slot, x, round, e.n, &boxes[warp]);
    else
        put_sums<2>(slot, x, round, e.n, &boxes[warp]);
    __syncthreads();
    if (warp >= SHARED_BY || (warp > 0 && m.next == pick))
        return;
    pick = warp ? m.next : pick;
    float a = 0;
    if (r < e.n_out) {
        a = gated(e, expert, r, total_of(slots, 0, warp, e.n / 256), total_of(slots, 1, warp, e.n / 256),
                  e.weigh_input ? e.weights[pick] : 1.0f);
        ((float *)out.f)[(size_t)pick * e.n_out + r] = a;
    }
    if (out.q)
        quantise_block(a, &out, e.n_out, pick, blockIdx.y, fault);
}

/* Whether the kernel's code is of 9.0, and so many blocks of it fit a multiprocessor at once. */
template <class... P>
static bool fits(void (*kernel)(P...), size_t bytes, int n_blocks)
{
    int most = 0;
    bool of_90;
    return is_of_90(kernel, &of_90) == cudaSuccess && of_90 &&
        ask_device(cudaDevAttrMaxSharedMemoryPerBlockOptin, &most) == cudaSuccess &&
        n_blocks * (bytes + 64 + (1 << 10)) <= (size_t)most;
}

extern "C" bool pf_cu_sixteen_takes(const struct cu_experts *e)
{
    return e->w.type == PF_Q4_K && e->rows >= CU_SIXTEEN && e->n > 1024 && e->n <= 2048 && fits(gate_up, GATE_BYTES, 3);
}

extern "C" cudaError_t pf_cu_sixteen(cudaStream_t st, const struct cu_experts *e, const struct cu_x *out, int *fault)
{
    cudaError_t err = allow_bytes(gate_up, GATE_BYTES);
    return err != cudaSuccess ? err :
                                launch_early(gate_up, dim3(e->rows * e->n_used, ceil_div(e->n_out, GATE_ROWS)), THREADS,
                                             GATE_BYTES, st, *e, *out, fault);
}
