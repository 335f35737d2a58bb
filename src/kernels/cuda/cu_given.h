/* What kernels write to memory of the host that the device has mapped: outputs of a product of one row as they are
 * made, the largest of them, and how many graphs have ended. The launchers, for the host's side (cuda_*.c). */
#ifndef PF_CU_GIVEN_H
#define PF_CU_GIVEN_H

#include "kernels/cuda/cu_api.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Where a product of one row and one part puts its outputs, too: memory of the host. */
struct cu_given {
    float *to;                    /* NULL: nowhere */
    int   *fault;                 /* not NULL: outputs that are not finite are CU_LOGIT_NOT_FINITE */
};

/* Where a product of a few rows and one part puts its outputs, too: memory of the host, for each row its own. */
struct cu_given_rows {
    float *to[CU_VECTOR_ROWS];    /* NULL: that row goes nowhere else */
    int   *fault;                 /* as cu_given's */
};

cudaError_t pf_cu_linear_given(cudaStream_t st, const struct cu_linear *l, const struct cu_given *given);
/* pf_cu_few (cu_few_api.h) of a product of one part, whose rows go to the host as `given` says. */
cudaError_t pf_cu_few_given(cudaStream_t st, const struct cu_linear *l, const struct cu_given_rows *given,
                            size_t shared_bytes);

/* Row by row the largest of each PF_TOPS_OF neighbours of x [rows][n], to to[row], memory of the host. */
struct cu_tops {
    float *to[CU_VECTOR_ROWS];
};
cudaError_t pf_cu_tops(cudaStream_t st, const struct cu_tops *t, const float *x, int n, int rows);

/* Counts: when all work ahead in the stream has ended, and the host can see what it wrote, *count, a word of device
 * memory, becomes one more than it was, and then *told, memory of the host, becomes the same. */
cudaError_t pf_cu_tell(cudaStream_t st, uint32_t *count, uint32_t *told);

#ifdef __cplusplus
}
#endif

#endif
