/* What is done with an expert's output when its sum is complete. */
#ifndef PF_CU_COMBINE_H
#define PF_CU_COMBINE_H

#include "kernels/cuda/cu_device.h"

/* expert below 0: the shared one. */
CU_INLINE float scale_and_bias(const struct cu_expert_weight &w, int expert, int n_out, int r, float v)
{
    if (expert < 0)
        return v;
    if (w.scale)
        v = v * w.scale[expert];
    if (w.bias)
        v = v + w.bias[(size_t)expert * n_out + r];
    return v;
}

/* Gate and up of a pick, as they are summed up, make an element of what its down matrix is multiplied with. m: what
 * multiplies them before, where the pick's weight does. */
CU_INLINE float gated(const struct cu_experts &e, int expert, int r, float gate, float up, float m)
{
    gate = scale_and_bias(e.w, expert, e.n_out, r, gate);
    up = scale_and_bias(e.w2, expert, e.n_out, r, up);
    return e.weigh_input ? activation(e.act, gate * m, up * m) : activation(e.act, gate, up);
}

/* The operands that cu_residual adds to element `at` of the experts' output; loaded before that output is known. */
struct met {
    float plus, b, x;
};

CU_INLINE struct met met_at(const struct cu_residual &r, int row, size_t at)
{
    return { r.plus ? r.plus[at] : 0.0f, r.gate ? pf_sigmoidf(r.gate[row]) : r.b, r.x ? r.x[at] : 0.0f };
}

/* Adds them to v, element `at` of the experts' output, and stores the result. */
CU_INLINE void put_out(const struct cu_residual &r, const struct met &met, float v, size_t at, float *y)
{
    if (r.plus)
        v = fmaf(met.b, met.plus, v);
    y[at] = v;
    if (r.x)
        r.x[at] = fmaf(r.a, v, met.x);
}

#endif
