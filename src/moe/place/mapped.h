/* A model that fits memory is used where the file is mapped. The page cache reads it as it is touched; this placement
 * sees to that being no more than what is touched, and in time: the kernel guesses 8 MB or so around each fault, which
 * for an expert is mostly other experts, and one fault at a time is not what drives are fast at.
 *
 *     experts      no guessing; the picks of a layer are asked for together, each expert once in the model's life
 *     the rest     layer il + 1 is asked for while layer il computes, once
 *
 * Reads that are asked for go on and nobody waits for them. With a warm cache all this is a look at a table. */
#ifndef PF_MAPPED_H
#define PF_MAPPED_H

#include "moe/place/placement.h"

/* Layers from `first` on are the CPU's; those before it are a device's as long as that is there. */
pf_status pf_mapped_open(struct pf_placement **out, struct pf_model *m, int first);

#endif
