/* Tables: GPT-OSS. See arch.h. */
#include "moe/archs/archs.h"

/* `gpt-oss`: GPT-OSS 20B and 120B. Biases everywhere, attention sinks, a sliding window in every other layer,
 * clamped SwiGLU; the softmax is taken over the picked experts only. The norm in front of the FFN has an unusual
 * name. */
const struct pf_arch pf_arch_gpt_oss = {
    .name = "gpt-oss",
    .rope_neox = true,
    .ffn_norm = "post_attention_norm",
    .qkv_bias = PF_REQUIRED,
    .out_bias = PF_REQUIRED,
    .sinks = PF_REQUIRED,
    .router_bias = PF_REQUIRED,
    .expert_bias = PF_REQUIRED,
    .window = PF_WINDOW_SLIDING,
    .window_period = 2,
    .act = PF_ACT_SWIGLU_OAI,
    .gating = PF_GATE_SOFTMAX_SELECTED,
    .expert_width = PF_WIDTH_KEY,
};
