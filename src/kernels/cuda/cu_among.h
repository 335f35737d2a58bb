/* Launchers of cu_among.cu: what crosses between cards that have whole experts each, or some columns of the same rows.
 * Returns and streams as in cu_api.h. */
#ifndef PF_CU_AMONG_H
#define PF_CU_AMONG_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#include "backend/meet.h"
#include "kernels/cuda/cu_api.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Copies n words of each sheet. Memory may be another card's, or the host's. */
enum { CU_SHEETS = 4 };
struct cu_sheet {
    const void *from;
    void       *to;
    int64_t     n;
};
struct cu_letter {
    struct cu_sheet sheet[CU_SHEETS];
};
cudaError_t pf_cu_send(cudaStream_t st, const struct cu_letter *l);

/* Copies row p [n] for each pick p whose expert has (here) or has not an address in table [n_expert], or, table NULL,
 * that is marked. */
struct cu_some_rows {
    const int32_t        *picks;
    int                   n_picks, n;
    const uint8_t *const *table;
    bool                  here;
    const int32_t        *marked;          /* [n_picks] */
    const float          *from;
    float                *to;
};
cudaError_t pf_cu_send_rows(cudaStream_t st, const struct cu_some_rows *r);

cudaError_t pf_cu_gather(cudaStream_t st, const struct pf_gather_op *g);

/* codes: whole rows become right-hand sides there, too, if codes->q is not NULL; all cards' columns are then multiples
 * of 32. */
cudaError_t pf_cu_swap(cudaStream_t st, const struct pf_swap_op *s, const struct cu_x *codes, int *fault);

#ifdef __cplusplus
}
#endif
#endif
