/* Tables: Ling and Ring. See arch.h. */
#include "moe/archs/archs.h"

/* `bailingmoe`: Ling 1 (Lite, Plus). As mixtral, with a shared expert; all layers have experts. */
const struct pf_arch pf_arch_bailingmoe = {
    .name = "bailingmoe",
    .rope_freqs = true,
    .qkv_bias = PF_OPTIONAL,
    .out_bias = PF_OPTIONAL,
    .ffn_norm = "ffn_norm",
    .act = PF_ACT_SWIGLU,
    .gating = PF_GATE_SOFTMAX,
    .router_keys = true,
    .shared = PF_REQUIRED,
    .expert_width = PF_WIDTH_KEY,
};

/* `bailingmoe2`: Ling and Ring 2.0. As dots1, with part of each head rotating and the choice limited to the best
 * groups of experts. */
const struct pf_arch pf_arch_bailingmoe2 = {
    .name = "bailingmoe2",
    .rope_neox = true,
    .qk_norm = PF_REQUIRED,
    .ffn_norm = "ffn_norm",
    .leading_dense = PF_OPTIONAL,
    .act = PF_ACT_SWIGLU,
    .gating = PF_GATE_SIGMOID,
    .router_keys = true,
    .select_bias = PF_OPTIONAL,
    .shared = PF_REQUIRED,
    .expert_width = PF_WIDTH_KEY,
};
