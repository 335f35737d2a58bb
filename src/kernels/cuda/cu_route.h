/* The router's choice for a row by one warp, where experts are few: a lane takes every 32nd of them, up to N. The k-th
 * best of the lanes' best scores is a bound that k scores reach at least; the experts that do, little more than k, get
 * a lane each, and the place of one is the number of those that come before it. Where there is one expert a lane,
 * kernels of experts make the choice for themselves: it takes less than a kernel of its own. */
#ifndef PF_CU_ROUTE_H
#define PF_CU_ROUTE_H

#include "kernels/cuda/cu_device.h"
#include "kernels/cuda/cu_choice.h"

enum { LANE_EXPERTS = 4 };        /* that a lane has at most, where a kernel is for the choice */

/* Numbers that rise as scores do, whose zeros are equal. */
CU_INLINE uint32_t key_of(float score)
{
    uint32_t bits = pf_float_bits(score + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

CU_INLINE float score_of(uint32_t key)
{
    return pf_bits_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

/* What a lane knows of the pick that has its number. */
struct chosen {
    int   expert;
    float weight;
};

/* p = softmax(p) over the warp, n elements, lane's i-th is number lane + 32 i. */
template <int N>
CU_INLINE void warp_softmax(float (&p)[N], int n)
{
    int lane = threadIdx.x % WARP;
    uint32_t best = 0;
    float part = 0;
#pragma unroll
    for (int i = 0; i < N; i++)
        best = lane + i * WARP < n ? max(best, key_of(p[i])) : best;
    float top = score_of(all_max(best));
#pragma unroll
    for (int i = 0; i < N; i++) {
        p[i] = pf_expf(p[i] - top);
        part = lane + i * WARP < n ? part + p[i] : part;
    }
    float sum = warp_fold_all(part);
#pragma unroll
    for (int i = 0; i < N; i++)
        p[i] = p[i] / sum;
}

/* A lane's scores, by which experts are chosen. */
template <int N>
CU_INLINE void scores_of(const struct cu_choice &o, int row, float (&p)[N], uint32_t (&key)[N])
{
    const struct pf_routing &r = o.r;
    const float *logits = o.op.logits + (size_t)row * r.n_expert;
    int lane = threadIdx.x % WARP;
    bool finite = true;
#pragma unroll
    for (int i = 0; i < N; i++)
        p[i] = lane + i * WARP < r.n_expert ? __ldcg(logits + lane + i * WARP) : 0.0f;
#pragma unroll
    for (int i = 0; i < N; i++)
        finite &= (pf_float_bits(p[i]) & 0x7fffffffu) < 0x7f800000u;
    if (!finite)
        *o.fault = CU_ROUTER_NOT_FINITE;
    if (r.gating == PF_GATE_SOFTMAX)
        warp_softmax(p, r.n_expert);
#pragma unroll
    for (int i = 0; i < N; i++) {
        int at = lane + i * WARP;
        if (r.gating == PF_GATE_SIGMOID)
            p[i] = pf_sigmoidf(p[i]);
        key[i] = at < r.n_expert ? key_of(o.op.select_bias ? p[i] + o.op.select_bias[at] : p[i]) : 0;
    }
}

/* The weight of a lane's pick from the first step's number for its expert. */
CU_INLINE float weigh(const struct pf_routing &r, float w)
{
    int k = r.n_used;
    float one[1] = { w }, sum = 0;
    if (r.gating == PF_GATE_SOFTMAX_SELECTED)
        warp_softmax(one, k);
    w = one[0];
    if (r.norm_weights) {
#pragma unroll 4
        for (int i = 0; i < k; i++)
            sum = sum + __shfl_sync(ALL_LANES, w, i);
        w = w / fmaxf(sum, 0x1p-14f);
    }
    return r.weight_scale != 1.0f ? w * r.weight_scale : w;
}

/* A lane's experts. */
template <int N> struct scored {
    float    p[N];
    uint32_t key[N];
};

/* The k-th largest key of a warp's lanes. */
CU_INLINE uint32_t kth_of_lanes(uint32_t key, int k)
{
    int before = 0;
#pragma unroll
    for (int i = 0; i < WARP; i++)
        before += __shfl_sync(ALL_LANES, key, i) > key;
    return ~all_max(before < k ? ~key : 0);
}

struct candidate {
    uint32_t key;                        /* 0: none */
    int      expert;
    float    p;
};

/* Deals the experts whose keys reach the bound to the lanes, those of equal keys in their order; returns how many there
 * are, of which no more than 32 have a lane. room: [32]. */
template <int N>
CU_INLINE int deal_candidates(const struct scored<N> &of, int n_expert, uint32_t bound, struct candidate *room,
                              struct candidate &mine)
{
    int lane = threadIdx.x % WARP, n = 0;
#pragma unroll
    for (int i = 0; i < N; i++) {
        bool is_one = of.key[i] >= bound && lane + i * WARP < n_expert;
        uint32_t all = __ballot_sync(ALL_LANES, is_one);
        int at = n + __popc(all & ((1u << lane) - 1));
        if (is_one && at < WARP)
            room[at] = { of.key[i], lane + i * WARP, of.p[i] };
        n += __popc(all);
    }
    __syncwarp();
    mine = lane < n ? room[lane] : candidate{ 0, 0, 0.0f };
    return n;
}

/* How many of n candidates come before this lane's. */
CU_INLINE int place_of(const struct candidate &mine, const struct candidate *room, int n)
{
    int before = 0;
#pragma unroll 8
    for (int i = 0; i < n; i++) {
        uint32_t other = room[i].key;
        before += other > mine.key || (other == mine.key && i < (int)threadIdx.x % WARP);
    }
    return before;
}

/* The choice where more experts reach the bound than a warp has lanes: the best that is left, as often as there are
 * picks. */
template <int N>
static __device__ __noinline__ struct chosen choose_one_by_one(struct scored<N> of, int n_used)
{
    int lane = threadIdx.x % WARP;
    struct chosen mine = { 0, 0.0f };
#pragma unroll 1
    for (int k = 0; k < n_used; k++) {
        uint32_t best = 0, least = 0;
        float w = 0;
        for (int i = 0; i < N; i++)
            best = max(best, of.key[i]);
        best = all_max(best);
        for (int i = N - 1; i >= 0; i--)
            least = of.key[i] == best ? ~(uint32_t)(lane + i * WARP) : least;
        int expert = (int)~all_max(least);
        for (int i = 0; i < N; i++) {
            w = lane + i * WARP == expert ? of.p[i] : w;
            of.key[i] = lane + i * WARP == expert ? 0 : of.key[i];
        }
        w = __shfl_sync(ALL_LANES, w, expert % WARP);
        if (k == lane)
            mine = { expert, w };
    }
    return mine;
}

/* The first warp of a block calls it, every lane. A row with a NaN fails the step, but its picks are valid indices all
 * the same. */
template <int N>
CU_INLINE struct chosen choose_in_warp(const struct cu_choice &o, int row, bool weighs)
{
    __shared__ struct candidate room[WARP];
    int lane = threadIdx.x % WARP, n_used = o.r.n_used;
    struct scored<N> of;
    struct candidate mine;
    struct chosen chosen = { 0, 0.0f };
    uint32_t best = 0;
    scores_of(o, row, of.p, of.key);
#pragma unroll
    for (int i = 0; i < N; i++)
        best = max(best, of.key[i]);
    int n = deal_candidates(of, o.r.n_expert, kth_of_lanes(best, n_used), room, mine);
    if (n > WARP) {
        chosen = choose_one_by_one<N>(of, n_used);
    } else {
        int place = place_of(mine, room, n);
        __syncwarp();
        if (place < n_used)
            room[place] = mine;
        __syncwarp();
        if (lane < n_used)
            chosen = { room[lane].expert, room[lane].p };
    }
    if (weighs)
        chosen.weight = weigh(o.r, chosen.weight);
    return chosen;
}

CU_INLINE void put_choice(const struct cu_choice &o, int row, struct chosen mine)
{
    size_t at = (size_t)row * o.r.n_used + threadIdx.x;
    if ((int)threadIdx.x >= o.r.n_used)
        return;
    o.op.weights[at] = mine.weight;
    o.op.picks[at] = mine.expert;
}

/* Whether a warp can make the choice, n experts a lane. */
CU_HOST_FN bool warp_chooses(const struct cu_choice &o, int n)
{
    const struct pf_routing &r = o.r;
    return r.n_expert <= n * WARP && r.n_used <= WARP && r.n_group <= 1 && !o.op.table &&
           r.gating != PF_GATE_SQRT_SOFTPLUS;
}

#endif
