/* The router's choice for a row by one warp, where experts are few: a lane takes every 32nd of them, up to N, and the
 * best score that is left is taken as often as there are picks. Where there is one expert a lane, kernels of experts
 * make the choice for themselves: it takes less than a kernel of its own. */
#ifndef PF_CU_ROUTE_H
#define PF_CU_ROUTE_H

#include "kernels/cuda/cu_device.h"
#include "kernels/cuda/cu_choice.h"

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

/* Every lane of a warp calls it. A row with a NaN fails the step, but its picks are valid indices all the same. */
template <int N>
CU_INLINE struct chosen choose_in_warp(const struct cu_choice &o, int row, bool weighs)
{
    int lane = threadIdx.x % WARP;
    float p[N];
    uint32_t key[N];
    struct chosen mine = { 0, 0.0f };
    scores_of(o, row, p, key);
#pragma unroll 1
    for (int k = 0; k < o.r.n_used; k++) {
        uint32_t best = key[0], least = 0;
#pragma unroll
        for (int i = 1; i < N; i++)
            best = max(best, key[i]);
        best = all_max(best);
#pragma unroll
        for (int i = N - 1; i >= 0; i--)
            least = key[i] == best ? ~(uint32_t)(lane + i * WARP) : least;
        int expert = (int)~all_max(least);
        float w = 0;
#pragma unroll
        for (int i = 0; i < N; i++) {
            w = lane + i * WARP == expert ? p[i] : w;
            key[i] = lane + i * WARP == expert ? 0 : key[i];
        }
        w = __shfl_sync(ALL_LANES, w, expert % WARP);
        if (k == lane)
            mine = { expert, w };
    }
    if (weighs)
        mine.weight = weigh(o.r, mine.weight);
    return mine;
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
