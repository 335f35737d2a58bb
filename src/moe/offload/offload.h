/* A GPU that holds what every token needs (attention, norms, shared experts, output) and as many routed experts as fit,
 * and a CPU that computes the others beside it.
 *
 *     VRAM      dense weights | keys, values, state | workspace | scratchpad of post-fetch | expert cache
 *     RAM       the store's slots, pinned: all experts, or those that fit, the drive behind them
 *
 *     a step of up to 8 rows     serve(): each picked expert is done by the GPU that holds it, or that reads it in RAM,
 *                                by the CPU, or by the GPU, or both, after a copy (solver.h deals, postfetch.h copies)
 *     a prompt                   a layer's experts pass through slots of VRAM in groups: some are copied while the GPU
 *                                multiplies with the other
 *
 * Which way an expert goes never shows in the results. Belongs to the model; the thread that holds the step lock uses
 * it. */
#ifndef PF_OFFLOAD_H
#define PF_OFFLOAD_H

#include "moe/model/model.h"
#include "moe/place/residency.h"

/* Opens the store, places the dense part on the model's backend, a device that can share, and sets m->offload. On
 * failure (PF_ENOMEM: not even the dense part fits) m->offload is NULL and the store may be open. */
pf_status pf_offload_open(struct pf_model *m, const struct pf_model_opts *o, const struct pf_residency_setup *setup);
void      pf_offload_close(struct pf_model *m);      /* before the store and the backend are closed */

/* Around the opening of a session. Each does nothing where nothing is offloaded. make_room: the cache gives back until
 * the device has room for bytes. use_room: it takes what is left. */
pf_status pf_offload_reserve(struct pf_model *m, const struct pf_backend_sizes *sizes);
void      pf_offload_make_room(struct pf_model *m, uint64_t bytes);
void      pf_offload_use_room(struct pf_model *m);

/* Fills the cache, in the order of the layers. */
pf_status pf_offload_preload(struct pf_model *m);

/* In front of a step of so many rows: what the GPU holds changes here. */
pf_status pf_offload_between(struct pf_model *m, int rows);

/* Behind a step, which went well or failed. */
void pf_offload_ended(struct pf_model *m, bool well);

/* The experts of a layer, with everything but the weights in the device's memory. offer, as soon as they are picked:
 * what else is asked of the device before experts, with the same e, is done while the CPU is at its part. */
pf_status pf_offload_offer(struct pf_model *m, int il, const struct pf_experts_op *e);
pf_status pf_offload_experts(struct pf_model *m, int il, const struct pf_experts_op *e);

/* From now on deals are tried out (pf_solver_look), or no longer; returns how many trials there were since the last
 * call. */
uint64_t  pf_offload_measure(struct pf_model *m, bool on);
bool      pf_offload_has_learned(const struct pf_model *m);

/* pf_learned_get and _set. */
void pf_offload_tell(const struct pf_model *m, struct pf_learned *out);
void pf_offload_recall(struct pf_model *m, const struct pf_learned *l);

void pf_offload_stats(const struct pf_model *m, struct pf_stats *out);
void pf_offload_stats_reset(struct pf_model *m);

#endif
