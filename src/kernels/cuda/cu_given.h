/* Products of one row whose outputs go to the host as they are made: the launcher, for the host's side (cuda_*.c). */
#ifndef PF_CU_GIVEN_H
#define PF_CU_GIVEN_H

#include "kernels/cuda/cu_api.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Where a product of one row and one part puts its outputs, too: memory of the host that the device has mapped. */
struct cu_given {
    float *to;                    /* NULL: nowhere */
    int   *fault;                 /* not NULL: outputs that are not finite are CU_LOGIT_NOT_FINITE */
};

cudaError_t pf_cu_linear_given(cudaStream_t st, const struct cu_linear *l, const struct cu_given *given);

#ifdef __cplusplus
}
#endif

#endif
