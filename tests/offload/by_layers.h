/* A model that simulated devices hold by layers, in full or as far as they share it with the CPU. */
#ifndef TEST_BY_LAYERS_H
#define TEST_BY_LAYERS_H

#include "check.h"
#include "kernels/sim/sim.h"
#include "moe/place/placement.h"

enum { MOST_DEVICES = 2 };

struct devices {
    struct pf_sim sim[MOST_DEVICES];
    int           n_opened;
};

static pf_status open_device(pf_backend **out, void *ctx)
{
    struct devices *d = ctx;
    return pf_backend_sim_open(out, &d->sim[d->n_opened++]);
}

/* streaming: as if the weights had no room in memory. name: of the case, for what fails. */
static pf_model *open_by_layers(struct devices *d, int n_gpus, bool streaming, const char *path, const char *name)
{
    struct pf_residency_setup setup = { .device = open_device, .device_ctx = d };
    struct pf_model_opts o;
    pf_model *m = NULL;
    pf_model_opts_init(&o);
    o.n_threads = 2;
    o.streaming = streaming;
    o.n_gpus = n_gpus > 1 ? n_gpus : 0;
    o.layout = PF_LAYOUT_LAYERS;
    for (int i = 0; i < n_gpus; i++)
        o.gpus[i] = i;
    CHECK(pf_model_open_with(&m, path, &o, &setup) == PF_OK, "%s: %s", name, pf_last_error());
    return m;
}

#endif
