/* Tables: IBM Granite. See arch.h. */
#include "moe/archs/archs.h"

/* `granite`, `granitemoe`: IBM Granite 3 and 4. Multipliers on the embedding, on what blocks add, on attention's
 * logits and on the output; some files do not rotate; some have a shared expert. */
const struct pf_arch pf_arch_granite = {
    .name = "granite",
    .rope_freqs = true,
    .rope_switch = true,
    .qkv_bias = PF_OPTIONAL,
    .out_bias = PF_OPTIONAL,
    .attention_scale = true,
    .ffn_norm = "ffn_norm",
    .dense = PF_REQUIRED,
    .act = PF_ACT_SWIGLU,
    .multipliers = true,
};

const struct pf_arch pf_arch_granitemoe = {
    .name = "granitemoe",
    .rope_freqs = true,
    .rope_switch = true,
    .qkv_bias = PF_OPTIONAL,
    .out_bias = PF_OPTIONAL,
    .attention_scale = true,
    .ffn_norm = "ffn_norm",
    .act = PF_ACT_SWIGLU,
    .gating = PF_GATE_SOFTMAX,
    .norm_weights = true,
    .shared = PF_OPTIONAL,
    .expert_width = PF_WIDTH_FF,
    .multipliers = true,
};

/* `granitehybrid`: Granite 4.0 H, Bamba. As granitemoe, with Mamba2 in most layers; without experts, or with them. Most
 * files do not rotate. */
const struct pf_arch pf_arch_granitehybrid = {
    .name = "granitehybrid",
    .rope_freqs = true,
    .rope_switch = true,
    .qkv_bias = PF_OPTIONAL,
    .out_bias = PF_OPTIONAL,
    .attention_scale = true,
    .without_kv = PF_MIXER_MAMBA2,
    .ffn_norm = "ffn_norm",
    .dense = PF_OPTIONAL,
    .act = PF_ACT_SWIGLU,
    .gating = PF_GATE_SOFTMAX,
    .norm_weights = true,
    .shared = PF_OPTIONAL,
    .expert_width = PF_WIDTH_FF,
    .multipliers = true,
};
