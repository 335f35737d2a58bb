/* A model in the making, private to the files of this room: model.c makes it, the readers of keys (read.h) and the
 * binders of tensors (bind.h) fill it and its model in turn, on one thread. */
#ifndef PF_LOADER_H
#define PF_LOADER_H

#include "moe/model/model.h"

struct pf_loader {
    struct pf_model *m;
    const pf_gguf   *g;
    bool            *seen;                /* [n_tensors] which becomes m->used */
    struct pf_rope_params rope;           /* its divisors are a tensor */
    struct pf_rope_params near_rope;      /* of layers with a window, where they differ */
    float            far_base;            /* instead of its base, in layers with keys of blocks */
    float            embedding_scale, logit_scale, value_scale;
    int              n_block;             /* layers in the file, including layers that do not run */
};

#endif
