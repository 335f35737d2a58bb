/* The router's choice, a block a row; the steps are numbered in kernels/cpu/cpu_route.c. Sums are
 * taken by the first warp. */
#include "kernels/cuda/cu_device.h"

enum { MOST_THREADS = 512 };

struct route {
    struct pf_route_op op;
    struct pf_routing  r;
    int               *fault;
};

/* p = softmax(x), n elements; p may be x. */
CU_INLINE void softmax(const float *x, int n, float *p)
{
    int lane = threadIdx.x % WARP;
    float top = -INFINITY, sum = 0;
#pragma unroll 4
    for (int i = lane; i < n; i += WARP)
        top = x[i] > top ? x[i] : top;
    top = warp_max(top);
#pragma unroll 4
    for (int i = lane; i < n; i += WARP) {
        p[i] = pf_expf(x[i] - top);
        sum = sum + p[i];
    }
    sum = warp_fold_all(sum);
#pragma unroll 4
    for (int i = lane; i < n; i += WARP)
        p[i] = p[i] / sum;
    __syncwarp();
}

/* The largest, and the smallest, over the warp. */
CU_INLINE uint32_t all_max(uint32_t v)
{
#if __CUDA_ARCH__ >= 800
    return __reduce_max_sync(ALL_LANES, v);
#else
    return warp_max(v);
#endif
}

CU_INLINE uint32_t all_min(uint32_t v)
{
    return ~all_max(~v);
}

/* The k best of n scores, best first, the lower index of equals; by the first warp, which leaves numbers in place of
 * the scores that rise as they do. What holds a NaN fails the step, but its picks must be indices all the same. */
CU_INLINE void top_k(float *score, int n, int k, int32_t *picks)
{
    uint32_t *key = (uint32_t *)score;
    int lane = threadIdx.x;
#pragma unroll 4
    for (int i = lane; i < n; i += WARP) {
        uint32_t bits = pf_float_bits(score[i] + 0.0f);
        key[i] = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    }
    uint32_t best = 0;
    int at = lane;
    bool fresh = true;                       /* lane's best is to be found again */
#pragma unroll 1
    for (int p = 0; p < k; p++) {
        if (fresh) {
            best = 0;
#pragma unroll 4
            for (int i = lane; i < n; i += WARP)
                if (key[i] > best) {
                    best = key[i];
                    at = i;
                }
        }
        uint32_t top = all_max(best), first = all_min(best == top ? (uint32_t)at : ~0u);
        fresh = best == top && (uint32_t)at == first;
        if (lane == 0)
            picks[p] = min((int)first, n - 1);
        if (fresh)
            key[at] = 0;
    }
    __syncwarp();
}

CU_INLINE float two_largest(const float *score, int n)
{
    float a = score[0], b = -INFINITY;
#pragma unroll 1
    for (int i = 1; i < n; i++) {
        b = score[i] > a ? a : score[i] > b ? score[i] : b;
        a = score[i] > a ? score[i] : a;
    }
    return n > 1 ? a + b : a;
}

/* Scores outside the best groups become -infinity. */
CU_INLINE void keep_best_groups(const struct pf_routing &r, float *score, float *group_score, int32_t *best)
{
    int n = r.n_expert / r.n_group;
#pragma unroll 1
    for (int g = threadIdx.x; g < r.n_group; g += blockDim.x)
        group_score[g] = two_largest(score + g * n, n);
    __syncthreads();
    if (threadIdx.x < WARP)
        top_k(group_score, r.n_group, r.n_group_used, best);
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x; i < r.n_group * n; i += blockDim.x) {
        bool kept = false;
#pragma unroll 1
        for (int j = 0; j < r.n_group_used; j++)
            kept |= best[j] == i / n;
        if (!kept)
            score[i] = -INFINITY;
    }
    __syncthreads();
}

static __global__ void __launch_bounds__(MOST_THREADS) route_row(const __grid_constant__ struct route o)
{
    wait_turn();
    extern __shared__ float shared[];
    const struct pf_routing &r = o.r;
    int n = r.n_expert, k = r.n_used, t = threadIdx.x;
    float *p = shared, *score = p + n, *group_score = score + n, *w = group_score + n;
    int32_t *picks = (int32_t *)(w + (k > r.n_group ? k : r.n_group));
    const float *logits = o.op.logits + (size_t)blockIdx.x * n;

    bool finite = true;
#pragma unroll 1
    for (int i = t; i < n; i += blockDim.x) {
        p[i] = logits[i];
        finite &= (pf_float_bits(p[i]) & 0x7fffffffu) < 0x7f800000u;
    }
    if (!finite)
        *o.fault = CU_ROUTER_NOT_FINITE;
    __syncthreads();
    if (r.gating == PF_GATE_SOFTMAX && t < WARP)
        softmax(p, n, p);
    __syncthreads();
#pragma unroll 1
    for (int i = t; i < n; i += blockDim.x) {
        if (r.gating == PF_GATE_SIGMOID)
            p[i] = pf_sigmoidf(p[i]);
        else if (r.gating == PF_GATE_SQRT_SOFTPLUS)
            p[i] = sqrtf(pf_softplusf(p[i]));
        score[i] = o.op.select_bias ? p[i] + o.op.select_bias[i] : p[i];
    }
    __syncthreads();
    if (r.n_group > 1)
        keep_best_groups(r, score, group_score, picks);
    if (t >= WARP)
        return;
    top_k(score, n, k, picks);
#pragma unroll 1
    for (int i = t; o.op.table && i < k; i += WARP)
        picks[i] = o.op.table[(size_t)o.op.ids[blockIdx.x] * k + i];
    __syncwarp();

#pragma unroll 1
    for (int i = t; i < k; i += WARP)
        w[i] = p[picks[i]];
    __syncwarp();
    if (r.gating == PF_GATE_SOFTMAX_SELECTED)
        softmax(w, k, w);
    float sum = 0;
#pragma unroll 4
    for (int i = 0; i < k; i++)
        sum = sum + w[i];
#pragma unroll 1
    for (int i = t; i < k; i += WARP) {
        float v = w[i];
        if (r.norm_weights)
            v = v / fmaxf(sum, 0x1p-14f);
        if (r.weight_scale != 1.0f)
            v = v * r.weight_scale;
        o.op.weights[(size_t)blockIdx.x * k + i] = v;
        o.op.picks[(size_t)blockIdx.x * k + i] = picks[i];
    }
}

extern "C" cudaError_t pf_cu_route(cudaStream_t st, const struct pf_route_op *op, int *fault)
{
    const struct pf_routing *r = op->how;
    size_t bytes = ((size_t)3 * r->n_expert + 2 * (size_t)max(r->n_used, r->n_group)) * sizeof(float);
    if (r->n_expert > CU_ROUTE_EXPERTS)
        return cudaErrorInvalidValue;
    int threads = r->n_expert >= MOST_THREADS ? MOST_THREADS : ceil_div(r->n_expert, WARP) * WARP;
    cudaError_t e = allow_bytes(route_row, bytes);
    struct route o = { *op, *r, fault };
    return e != cudaSuccess ? e : launch_early(route_row, op->rows, threads, bytes, st, o);
}
