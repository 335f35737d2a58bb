/* Tables: Llama, and what took its form. See arch.h. */
#include "moe/archs/archs.h"

/* `llama`: Llama 2 and 3, Mistral, Mixtral and their merges. With experts: softmax over all, the best renormalised. */
const struct pf_arch pf_arch_llama = {
    .name = "llama",
    .rope_freqs = true,
    .rope_whole_head = true,
    .ffn_norm = "ffn_norm",
    .qkv_bias = PF_OPTIONAL,
    .out_bias = PF_OPTIONAL,
    .dense = PF_OPTIONAL,
    .dense_bias = PF_OPTIONAL,
    .attention_scale = true,
    .act = PF_ACT_SWIGLU,
    .gating = PF_GATE_SOFTMAX,
    .norm_weights = true,
    .expert_width = PF_WIDTH_FF,
};

/* `llama4`: Llama 4 Scout and Maverick. Three layers of four see pieces of the context and norm rotated queries and
 * keys; the fourth sees everything and does not rotate. The routing weight goes in front of the expert. */
const struct pf_arch pf_arch_llama4 = {
    .name = "llama4",
    .rope_freqs = true,
    .norm_after_rope = true,
    .window = PF_WINDOW_LLAMA4,
    .window_period = 4,
    .ffn_norm = "ffn_norm",
    .interleave = PF_REQUIRED,
    .act = PF_ACT_SWIGLU,
    .gating = PF_GATE_SIGMOID,
    .weigh_input = true,
    .shared = PF_REQUIRED,
    .expert_width = PF_WIDTH_KEY,
};

/* `smollm3`: SmolLM3-3B. As llama, and every fourth layer does not rotate. */
const struct pf_arch pf_arch_smollm3 = {
    .name = "smollm3",
    .rope_whole_head = true,
    .still_period = 4,
    .ffn_norm = "ffn_norm",
    .dense = PF_REQUIRED,
    .act = PF_ACT_SWIGLU,
};
