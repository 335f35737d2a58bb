/* `qwen3`: dense Qwen3. `qwen3moe`: Qwen3-30B-A3B, Qwen3-235B-A22B, Qwen3-Coder. Queries and keys are normed per head
 * before rotation. */
#include "moe/model.h"

const struct pf_arch pf_arch_qwen3 = {
    .name = "qwen3",
    .rope_neox = true,
    .qk_norm = PF_REQUIRED,
    .ffn_norm = "ffn_norm",
    .dense = PF_REQUIRED,
    .act = PF_ACT_SWIGLU,
};

const struct pf_arch pf_arch_qwen3moe = {
    .name = "qwen3moe",
    .rope_neox = true,
    .qk_norm = PF_REQUIRED,
    .ffn_norm = "ffn_norm",
    .act = PF_ACT_SWIGLU,
    .gating = PF_GATE_SOFTMAX,
    .norm_weights = true,
    .expert_width = PF_WIDTH_FF_PER_PICK,
};
