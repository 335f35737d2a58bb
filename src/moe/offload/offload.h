/* A GPU that holds what every token needs (attention, norms, shared experts, output) and as many routed experts as fit,
 * and a CPU that computes the others beside it.
 *
 *     VRAM      dense weights | keys, values, state | workspace | scratchpad of post-fetch | expert cache
 *     RAM       the store's slots, pinned: all experts, or those that fit, the drive behind them
 *
 *     a step of PF_SHARE_ROWS    each picked expert is done by the GPU that holds it, or that reads it in RAM,
 *     rows at most               by the CPU, or by the GPU, or both, after a copy (solver.h deals, postfetch.h copies)
 *     a prompt                   a layer's experts pass through slots of VRAM in groups: some are copied while the GPU
 *                                multiplies with the other
 *
 * Several cards share the experts of their own layers each (spread.c), or those of all layers together. Then the first
 * one has everything else and makes the offers; every one has a lane: a cache, a scratchpad, slots, copies.
 *
 * Which way an expert goes never shows in the results. decode.c does the former, prompts.c the latter. */
#ifndef PF_OFFLOAD_H
#define PF_OFFLOAD_H

#include "moe/place/planning.h"

/* Opens the store, places the dense part on the cards that what->cut names (without any, on the first), which can
 * share, and shares the experts with them. PF_ENOMEM: not even the dense part fits. */
pf_status pf_offload_open(struct pf_placement **out, struct pf_model *m, const struct pf_cards *cards,
                          const struct pf_placing *what, const struct pf_model_opts *o,
                          const struct pf_residency_setup *setup);

#endif
