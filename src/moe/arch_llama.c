/* `llama`: Llama 2 and 3, Mistral, Mixtral and their merges. With experts: softmax over all, the best renormalised. */
#include "moe/model.h"

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
