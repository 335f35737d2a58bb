/* The launchers of experts a segment a lane, to the same rules as those of cu_choice.h. */
#ifndef PF_CU_SEGMENTS_API_H
#define PF_CU_SEGMENTS_API_H

#include "kernels/cuda/cu_choice.h"

#ifdef __cplusplus
extern "C" {
#endif

/* pf_cu_gate_up_of and pf_cu_down_of, where *takes then says so; otherwise they do nothing. */
cudaError_t pf_cu_segments_gate_up(cudaStream_t st, const struct cu_experts *e, const struct cu_choice *c,
                                   const struct cu_x *out, size_t shared_bytes, int *fault, bool *takes);
cudaError_t pf_cu_segments_down(cudaStream_t st, const struct cu_experts *e, const struct cu_choice *c, float *y,
                                const struct cu_residual *residual, bool *takes);

#ifdef __cplusplus
}
#endif
#endif
