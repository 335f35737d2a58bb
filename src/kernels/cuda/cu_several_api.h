/* The launchers of experts in a step of several rows, to the same rules as those of cu_api.h. */
#ifndef PF_CU_SEVERAL_API_H
#define PF_CU_SEVERAL_API_H

#include "kernels/cuda/cu_api.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Up to how many rows of a step these kernels are sooner done than a prompt's tiles, with weights of a type; 0: they do
 * not have it. */
int pf_cu_several_most(enum pf_qtype type);

/* pf_cu_gate_up and pf_cu_down, where `takes` says so. */
bool pf_cu_several_takes(const struct cu_experts *e, size_t shared_bytes);
cudaError_t pf_cu_several(cudaStream_t st, const struct cu_experts *e, const struct cu_x *out, int *fault);
bool pf_cu_several_takes_down(const struct cu_experts *e, size_t shared_bytes);
cudaError_t pf_cu_several_down(cudaStream_t st, const struct cu_experts *e, float *y,
                               const struct cu_residual *residual);

/* pf_cu_down by a kernel that stays (cu_down_stream.cu), where `takes` says so: of K types, with so many rows of the
 * step or more. It is asked before pf_cu_several_takes_down. */
enum { CU_DOWN_STREAM = 3 };
bool pf_cu_down_stream_takes(const struct cu_experts *e);
cudaError_t pf_cu_down_stream(cudaStream_t st, const struct cu_experts *e, float *y,
                              const struct cu_residual *residual);

/* Gate and up of steps of several rows by a kernel that takes sixteen weight rows a warp (cu_sixteen.cu), where `takes`
 * says so: of Q4_K with rows of 1,280 to 2,048 elements, from so many rows of the step on. Where pf_cu_several takes
 * the product, too, this is asked first. */
enum { CU_SIXTEEN = 2 };
bool pf_cu_sixteen_takes(const struct cu_experts *e);
cudaError_t pf_cu_sixteen(cudaStream_t st, const struct cu_experts *e, const struct cu_x *out, int *fault);

#ifdef __cplusplus
}
#endif
#endif
