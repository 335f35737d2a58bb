/* Adapters: low-rank additions to a model's matrices, from GGUF files of their own.
 *
 *     y = W x  +  sum over adapters of  scale * B (A x)        A {n_in, rank}, B {rank, n_out}
 *
 * W stays as and where it is; A and B stay mapped. Both products are ordinary ones, on whatever computes W x, so
 * nothing about placement, threads or batches changes a bit. Experts' additions are the work of the backend that
 * computes the expert (backend.h). An adapter's tensor for which the model has no matrix is an error.
 *
 * The adapters belong to the model and are immutable after binding. */
#ifndef PF_LORA_H
#define PF_LORA_H

#include "moe/model/model.h"

struct pf_lora {                             /* one adapter's addition to one dense matrix */
    const struct pf_lora *next;
    struct pf_weight      a, b;
    float                 scale;
};

/* Opens the files and checks that they are for this architecture; before the weights are bound. */
pf_status pf_lora_open(struct pf_model *m, const struct pf_adapter *adapters, int n);
void      pf_lora_close(struct pf_model *m);

/* The adapters' deltas of the tensor `name` {n_in, n_out}, or of {n_in, n_out} for each expert; NULL: no adapter has
 * the tensor. _rows: rows [first, first + n) of a delta. Results live as long as the model. */
pf_status pf_lora_bind(struct pf_model *m, const char *name, int64_t n_in, int64_t n_out, const struct pf_lora **out);
pf_status pf_lora_bind_experts(struct pf_model *m, const char *name, int64_t n_in, int64_t n_out,
                               const struct pf_expert_lora **out);
pf_status pf_lora_rows(struct pf_model *m, const struct pf_lora *of, int first, int n, const struct pf_lora **out);
pf_status pf_lora_expert_rows(struct pf_model *m, const struct pf_expert_lora *of, int first, int n,
                              const struct pf_expert_lora **out);
/* The deltas of the embedding {n_embd, n_vocab}, whose A is kept by rows: a lookup, then B. flipped: the deltas of the
 * same tensor used as the output matrix. */
pf_status pf_lora_bind_embedding(struct pf_model *m, const char *name, int64_t n_embd, int64_t n_vocab,
                                 const struct pf_lora **out, const struct pf_lora **flipped);
const pf_gguf *pf_lora_file(const struct pf_model *m, int i);        /* file of the i-th adapter; NULL past the last */
float     pf_lora_scale(const struct pf_model *m, int i);
pf_status pf_lora_all_used(const struct pf_model *m);

uint64_t  pf_lora_bytes(const struct pf_model *m);           /* bytes of all tensors of the adapters */
pf_status pf_lora_place(const struct pf_model *m, pf_backend *device);       /* puts them on it */
pf_status pf_lora_unchanged(const struct pf_model *m);

#endif
