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

#include "moe/run/session.h"

struct pf_lora {                             /* one adapter's addition to one dense matrix */
    const struct pf_lora *next;
    struct pf_weight      a, b;
    float                 scale;
};

/* Opens the files and checks that they are for this architecture; before the weights are bound. */
pf_status pf_lora_open(struct pf_model *m, const struct pf_adapter *adapters, int n);
void      pf_lora_close(struct pf_model *m);

/* What the adapters add to the tensor `name` {n_in, n_out}, or to {n_in, n_out} for each expert; NULL: nothing. Rows
 * [first, first + n) of an addition. What they return lives as long as the model. */
pf_status pf_lora_bind(struct pf_model *m, const char *name, int64_t n_in, int64_t n_out, const struct pf_lora **out);
pf_status pf_lora_bind_experts(struct pf_model *m, const char *name, int64_t n_in, int64_t n_out,
                               const struct pf_expert_lora **out);
pf_status pf_lora_rows(struct pf_model *m, const struct pf_lora *of, int first, int n, const struct pf_lora **out);
pf_status pf_lora_expert_rows(struct pf_model *m, const struct pf_expert_lora *of, int first, int n,
                              const struct pf_expert_lora **out);
/* Of the embedding {n_embd, n_vocab}, whose A is kept by rows: a lookup, then B. flipped: the same for
 * its use as the output. */
pf_status pf_lora_bind_embedding(struct pf_model *m, const char *name, int64_t n_embd, int64_t n_vocab,
                                 const struct pf_lora **out, const struct pf_lora **flipped);
const pf_gguf *pf_lora_file(const struct pf_model *m, int i);        /* of the i-th adapter; NULL past the last */
float     pf_lora_scale(const struct pf_model *m, int i);
pf_status pf_lora_all_used(const struct pf_model *m);

uint64_t  pf_lora_bytes(const struct pf_model *m);           /* of all tensors of the adapters */
pf_status pf_lora_place(struct pf_model *m);                 /* makes them known to the backend */
pf_status pf_lora_unchanged(const struct pf_model *m);

/* l's products and what adapters add to them; the same for rows of the embedding. */
pf_status pf_project(struct pf_session *s, const struct pf_linear *l, int n_l, const float *x, int rows);
pf_status pf_embed(struct pf_session *s, int rows, float *x);

#endif
