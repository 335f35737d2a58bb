/* Rows of several sequences whose attention is computed together: neighbours, some of each sequence. */
#ifndef PF_CU_PARTS_H
#define PF_CU_PARTS_H

#include "kernels/cuda/cu_api.h"

enum { CU_SEQUENCES = CU_VECTOR_ROWS };

struct cu_parts {
    int               n;
    struct pf_kv_view kv[CU_SEQUENCES];              /* alike but for where they lie and how long they are */
    int               first[CU_SEQUENCES + 1];       /* rows first[i] .. first[i + 1] - 1 are sequence i's */
};

#ifdef __cplusplus
extern "C" {
#endif

/* pf_cu_i16_attention of CU_VECTOR_ROWS rows at most. a->kv is the first sequence's; heads is not NULL. */
cudaError_t pf_cu_i16_together(cudaStream_t st, const struct pf_attention_op *a, const struct cu_parts *parts,
                               int n_chunks, const struct cu_i16 *s, const struct cu_x *x, const struct cu_heads *heads,
                               size_t shared_bytes, int *fault);

#ifdef __cplusplus
}
#endif
#endif
