/* The router's choice, and what makes it for itself: experts of one row, and a row's offer to the host. C on both
 * sides, as cu_api.h. */
#ifndef PF_CU_CHOICE_H
#define PF_CU_CHOICE_H

#include "kernels/cuda/cu_api.h"

/* r is what op.how points to. */
struct cu_choice {
    struct pf_route_op op;               /* rows 0: no choice */
    struct pf_routing  r;
    int               *fault;
};

#ifdef __cplusplus
extern "C" {
#endif

/* Whether kernels of experts can make the choice. */
bool pf_cu_experts_choose(const struct cu_choice *c);

/* pf_cu_gate_up and pf_cu_down of one row by the choice's picks and weights, unless it has no rows. e->picks and
 * e->weights are where down stores them; neither reads them. */
cudaError_t pf_cu_gate_up_of(cudaStream_t st, const struct cu_experts *e, const struct cu_choice *c,
                             const struct cu_x *out, size_t shared_bytes, int *fault);
cudaError_t pf_cu_down_of(cudaStream_t st, const struct cu_experts *e, const struct cu_choice *c, float *y,
                          const struct cu_residual *residual);

/* pf_cu_offer of one row, whose picks and weights are made by the same kernel, if it can. */
bool pf_cu_offer_chooses(const struct cu_choice *c);
cudaError_t pf_cu_offer_of(cudaStream_t st, const struct cu_offer *o, const struct cu_choice *c);

#ifdef __cplusplus
}
#endif
#endif
