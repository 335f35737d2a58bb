/* The router's choice, a block a row, or a warp (cu_route.h); the steps are numbered in kernels/cpu/cpu_route.c. A
 * thread of a block takes an expert, or every blockDim.x-th; sums, whose order counts, are taken by the first warp.
 *
 * The k best are found without taking them one after the other. The experts are in up to 32 groups, by the threads that
 * have them. The k-th best of the groups' best scores is a bound that k scores reach at least; those that do are
 * candidates, little more than k of them; and the place of a candidate is the number of those that come before it. */
#include "kernels/cuda/cu_route.h"

enum { MOST_THREADS = 512 };

struct candidates {
    uint32_t *key;
    uint16_t *i;
};

/* The block's memory. */
struct room {
    float   *p, *score;           /* [n_expert] */
    float   *group, *w;           /* [n_group], [n_used] */
    int32_t *picks;               /* [n_used], or of groups */
    struct candidates candidates; /* [n_expert] */
};

/* 64 KB, of which static variables have some, are all that a block may have on the smallest GPUs: enough for the most
 * experts, in up to 512 groups, of which a row picks as many. */
static constexpr size_t room_bytes(size_t n_expert, size_t n_group, size_t n_used)
{
    return 14 * n_expert + 4 * (n_group + n_used + (n_used > n_group ? n_used : n_group));
}
static_assert(room_bytes(CU_ROUTE_EXPERTS, 512, 512) <= (64 << 10) - 256, "on every GPU");

CU_INLINE struct room room_at(float *memory, const struct pf_routing &r)
{
    int n = r.n_expert;
    float *group = memory + 2 * n, *w = group + r.n_group, *picks = w + r.n_used,
          *key = picks + max(r.n_used, r.n_group);
    return { memory, memory + n, group, w, (int32_t *)picks, { (uint32_t *)key, (uint16_t *)(key + n) } };
}

/* The largest keys of the groups that n scores are in, one a lane, 0 past the last. */
CU_INLINE uint32_t best_of_groups(const float *score, int n)
{
    __shared__ uint32_t best[WARP];
    int width = 1, lane = threadIdx.x % WARP;            /* threads of a group: a power of two, at most half a warp */
    uint32_t mine = 0;
    while (width * WARP < (int)blockDim.x)
        width *= 2;
#pragma unroll 1
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        mine = max(mine, key_of(score[i]));
#pragma unroll 1
    for (int h = width / 2; h > 0; h /= 2)
        mine = max(mine, __shfl_xor_sync(ALL_LANES, mine, h));
    if (threadIdx.x % width == 0)
        best[threadIdx.x / width] = mine;
    __syncthreads();
    return lane * width < (int)blockDim.x ? best[lane] : 0;
}

/* p = softmax(p), n elements. */
static __device__ __noinline__ void softmax(float *p, int n)
{
    __shared__ float sum;
    float top = score_of(all_max(best_of_groups(p, n)));
#pragma unroll 1
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        p[i] = pf_expf(p[i] - top);
    __syncthreads();
    if (threadIdx.x < WARP) {
        float part = 0;
#pragma unroll 8
        for (int i = threadIdx.x; i < n; i += WARP)
            part = part + p[i];
        part = warp_fold(part);
        if (threadIdx.x == 0)
            sum = part;
    }
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        p[i] = p[i] / sum;
    __syncthreads();
}

/* How many keys of a warp's lanes come before this lane's. */
CU_INLINE int place_in_warp(uint32_t key)
{
    int lane = threadIdx.x % WARP, before = 0;
#pragma unroll 8
    for (int i = 0; i < WARP; i++) {
        uint32_t other = __shfl_sync(ALL_LANES, key, i);
        before += other > key || (other == key && i < lane);
    }
    return before;
}

/* The k best of n scores, best first, the lower index of equals. A row with a NaN fails the step, but its picks are
 * valid indices all the same. */
static __device__ __noinline__ void top_k(const float *score, int n, int k, struct candidates at, int32_t *picks)
{
    __shared__ uint32_t bound;                           /* stays 0 where there are fewer groups than picks */
    __shared__ int n_candidates;
    if (threadIdx.x == 0)
        bound = n_candidates = 0;
    uint32_t best = best_of_groups(score, n);
    if (threadIdx.x < WARP && place_in_warp(best) == k - 1)
        bound = best;
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        uint32_t key = key_of(score[i]);
        if (key < bound)
            continue;
        int c = atomicAdd(&n_candidates, 1);
        at.key[c] = key;
        at.i[c] = (uint16_t)i;
    }
    __syncthreads();
#pragma unroll 1
    for (int c = threadIdx.x; c < n_candidates; c += blockDim.x) {
        uint32_t key = at.key[c];
        int i = at.i[c], before = 0;
#pragma unroll 4
        for (int o = 0; o < n_candidates; o++) {
            uint32_t other = at.key[o];
            int other_i = at.i[o];
            before += other > key || (other == key && other_i < i);
        }
        if (before < k)
            picks[before] = i;
    }
    __syncthreads();
}

/* The sum of the two largest, by a warp. */
CU_INLINE float two_largest(const float *score, int n)
{
    float a = -INFINITY, b = -INFINITY;
#pragma unroll 1
    for (int i = threadIdx.x % WARP; i < n; i += WARP) {
        b = score[i] > a ? a : score[i] > b ? score[i] : b;
        a = score[i] > a ? score[i] : a;
    }
#pragma unroll 1
    for (int h = 16; h > 0; h /= 2) {
        float c = __shfl_xor_sync(ALL_LANES, a, h), d = __shfl_xor_sync(ALL_LANES, b, h);
        b = c > a ? (a > d ? a : d) : (b > c ? b : c);
        a = c > a ? c : a;
    }
    return n > 1 ? a + b : a;
}

/* Scores outside the best groups become -infinity. */
CU_INLINE void keep_best_groups(const struct pf_routing &r, const struct room &at)
{
    int n = r.n_expert / r.n_group;
#pragma unroll 1
    for (int g = threadIdx.x / WARP; g < r.n_group; g += blockDim.x / WARP) {
        float sum = two_largest(at.score + g * n, n);
        if (threadIdx.x % WARP == 0)
            at.group[g] = sum;
    }
    __syncthreads();
    top_k(at.group, r.n_group, r.n_group_used, at.candidates, at.picks);
#pragma unroll 1
    for (int i = threadIdx.x; i < r.n_group * n; i += blockDim.x) {
        bool kept = false;
#pragma unroll 1
        for (int j = 0; j < r.n_group_used; j++)
            kept |= at.picks[j] == i / n;
        if (!kept)
            at.score[i] = -INFINITY;
    }
    __syncthreads();
}

/* Steps 1 and 2. */
CU_INLINE void score_experts(const struct cu_choice &o, const struct room &at)
{
    const struct pf_routing &r = o.r;
    const float *logits = o.op.logits + (size_t)blockIdx.x * r.n_expert;
    bool finite = true;
#pragma unroll 1
    for (int i = threadIdx.x; i < r.n_expert; i += blockDim.x) {
        at.p[i] = logits[i];
        finite &= (pf_float_bits(at.p[i]) & 0x7fffffffu) < 0x7f800000u;
    }
    if (!finite)
        *o.fault = CU_ROUTER_NOT_FINITE;
    if (r.gating == PF_GATE_SOFTMAX)
        softmax(at.p, r.n_expert);
#pragma unroll 1
    for (int i = threadIdx.x; i < r.n_expert; i += blockDim.x) {
        if (r.gating == PF_GATE_SIGMOID)
            at.p[i] = pf_sigmoidf(at.p[i]);
        else if (r.gating == PF_GATE_SQRT_SOFTPLUS)
            at.p[i] = sqrtf(pf_softplusf(at.p[i]));
        at.score[i] = o.op.select_bias ? at.p[i] + o.op.select_bias[i] : at.p[i];
    }
    __syncthreads();
}

static __global__ void __launch_bounds__(MOST_THREADS) route_row(const __grid_constant__ struct cu_choice o)
{
    BLOCK_MEMORY(float, memory);
    wait_turn();
    const struct pf_routing &r = o.r;
    struct room at = room_at(memory, r);
    int k = r.n_used, t = threadIdx.x;
    score_experts(o, at);
    if (r.n_group > 1)
        keep_best_groups(r, at);
    if (!o.op.table)
        top_k(at.score, r.n_expert, k, at.candidates, at.picks);
#pragma unroll 1
    for (int i = t; i < k; i += blockDim.x) {
        if (o.op.table)
            at.picks[i] = o.op.table[(size_t)o.op.ids[blockIdx.x] * k + i];
        at.w[i] = at.p[at.picks[i]];
    }
    __syncthreads();
    if (r.gating == PF_GATE_SOFTMAX_SELECTED)
        softmax(at.w, k);
    if (t >= WARP)
        return;
    float sum = 0;
#pragma unroll 4
    for (int i = 0; i < k; i++)
        sum = sum + at.w[i];
#pragma unroll 1
    for (int i = t; i < k; i += WARP) {
        float v = at.w[i];
        if (r.norm_weights)
            v = v / fmaxf(sum, 0x1p-14f);
        if (r.weight_scale != 1.0f)
            v = v * r.weight_scale;
        o.op.weights[(size_t)blockIdx.x * k + i] = v;
        o.op.picks[(size_t)blockIdx.x * k + i] = at.picks[i];
    }
}

/* route_row by a warp. */
static __global__ void __launch_bounds__(WARP) route_few(const __grid_constant__ struct cu_choice o)
{
    wait_turn();
    struct chosen mine = choose_in_warp<LANE_EXPERTS>(o, blockIdx.x, true);
    put_choice(o, blockIdx.x, mine);
}

extern "C" cudaError_t pf_cu_route(cudaStream_t st, const struct pf_route_op *op, int *fault)
{
    const struct pf_routing *r = op->how;
    size_t bytes = room_bytes(r->n_expert, r->n_group, r->n_used);
    if (r->n_expert > CU_ROUTE_EXPERTS)
        return cudaErrorInvalidValue;
    struct cu_choice o = { *op, *r, fault };
    if (warp_chooses(o, LANE_EXPERTS))
        return launch_early(route_few, op->rows, WARP, 0, st, o);
    int threads = r->n_expert >= MOST_THREADS ? MOST_THREADS : ceil_div(r->n_expert, WARP) * WARP;
    cudaError_t e = allow_bytes(route_row, bytes);
    return e != cudaSuccess ? e : launch_early(route_row, op->rows, threads, bytes, st, o);
}
