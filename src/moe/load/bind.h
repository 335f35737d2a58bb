/* Private to model.c and bind.c: a model in the making. */
#ifndef PF_BIND_H
#define PF_BIND_H

#include "moe/model/model.h"

struct pf_loader {
    struct pf_model *m;
    const pf_gguf   *g;
    bool            *seen;                /* [n_tensors] */
    struct pf_rope_params rope;           /* its divisors are a tensor */
    struct pf_rope_params near_rope;      /* of layers with a window, where they differ */
    float            far_base;            /* instead of its base, in layers with keys of blocks */
    float            embedding_scale, logit_scale, value_scale;
    int              n_block;             /* layers in the file, including layers that do not run */
};

/* Binds every tensor of the layers that run. The hyper-parameters, and m->layers with the sizes of attention, are
 * there. */
pf_status pf_bind_tensors(const struct pf_loader *l);

#endif
