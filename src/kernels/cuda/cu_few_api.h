/* The launchers of dense products of a few rows, to the same rules as those of cu_api.h. */
#ifndef PF_CU_FEW_API_H
#define PF_CU_FEW_API_H

#include "kernels/cuda/cu_api.h"

#ifdef __cplusplus
extern "C" {
#endif

/* pf_cu_linear of up to CU_VECTOR_ROWS rows, without a norm or a residual, where `takes` says so: of quantised weights
 * on the tensor cores, of a small matrix of floats each row by warps of its own. */
bool pf_cu_few_takes(const struct cu_linear *l, size_t shared_bytes);
cudaError_t pf_cu_few(cudaStream_t st, const struct cu_linear *l, size_t shared_bytes);
bool pf_cu_few_floats_takes(const struct cu_linear *l);
cudaError_t pf_cu_few_floats(cudaStream_t st, const struct cu_linear *l);

#ifdef __cplusplus
}
#endif
#endif
