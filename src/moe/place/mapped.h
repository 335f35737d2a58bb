/* A model that fits memory is used where the file is mapped. The page cache reads it as it is touched; mapped.c sees to
 * that being no more than what is touched, and in time: the kernel guesses 8 MB or so around each fault, which for an
 * expert is mostly other experts, and one fault at a time is not what drives are fast at.
 *
 *     experts      no guessing; the picks of a layer are asked for together, each expert once in the model's life
 *     the rest     layer il + 1 is asked for while layer il computes, once
 *
 * What is asked for is on its way, nothing waits. In a warm cache all this costs a look at a table. The calls of a step
 * belong to the thread that holds the model's step lock. */
#ifndef PF_MAPPED_H
#define PF_MAPPED_H

#include "moe/model/model.h"

struct pf_mapped;

pf_status pf_mapped_open(struct pf_model *m);        /* sets m->mapped */
void      pf_mapped_close(struct pf_model *m);

void pf_mapped_enter(struct pf_model *m, int il);
void pf_mapped_experts(struct pf_model *m, int il, const struct pf_experts_op *e);

#endif
