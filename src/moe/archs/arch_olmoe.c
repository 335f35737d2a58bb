/* Tables: OLMoE. See arch.h. */
#include "moe/archs/archs.h"

/* `olmoe`: OLMoE-1B-7B. Queries and keys are normed over all heads at once; weights are not renormalised. */
const struct pf_arch pf_arch_olmoe = {
    .name = "olmoe",
    .rope_neox = true,
    .qk_norm = PF_REQUIRED,
    .norm_whole_row = true,
    .ffn_norm = "ffn_norm",
    .act = PF_ACT_SWIGLU,
    .gating = PF_GATE_SOFTMAX,
    .expert_width = PF_WIDTH_FF,
};
