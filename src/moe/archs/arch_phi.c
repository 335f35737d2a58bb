/* Tables: Microsoft Phi. See arch.h. */
#include "moe/archs/archs.h"

/* `phimoe`: Phi-3.5-MoE, Phi-mini-MoE. Biases everywhere, of norms and of the output matrix too; divisors of the rotary
 * frequencies for long contexts and for short ones. */
const struct pf_arch pf_arch_phimoe = {
    .name = "phimoe",
    .rope_neox = true,
    .long_rope = true,
    .qkv_bias = PF_REQUIRED,
    .out_bias = PF_REQUIRED,
    .norm_bias = PF_REQUIRED,
    .ffn_norm = "ffn_norm",
    .act = PF_ACT_SWIGLU,
    .gating = PF_GATE_SOFTMAX,
    .norm_weights = true,
    .expert_width = PF_WIDTH_FF,
};
