/* `qwen2`: Qwen2 and Qwen2.5, QwQ, R1 distillations; dense. `qwen2moe`: Qwen1.5-MoE-A2.7B, Qwen2-57B-A14B: the picked
 * weights stay as the softmax over all experts left them, and a shared expert has a gate of its own. */
#include "moe/model.h"

const struct pf_arch pf_arch_qwen2 = {
    .name = "qwen2",
    .rope_neox = true,
    .qkv_bias = PF_REQUIRED,
    .ffn_norm = "ffn_norm",
    .dense = PF_REQUIRED,
    .act = PF_ACT_SWIGLU,
};

const struct pf_arch pf_arch_qwen2moe = {
    .name = "qwen2moe",
    .rope_neox = true,
    .qkv_bias = PF_REQUIRED,
    .ffn_norm = "ffn_norm",
    .act = PF_ACT_SWIGLU,
    .gating = PF_GATE_SOFTMAX,
    .shared = PF_REQUIRED,
    .shared_gate = PF_REQUIRED,
    .expert_width = PF_WIDTH_FF_PER_PICK,
};
