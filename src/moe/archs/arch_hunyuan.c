/* Tables: Hunyuan. See arch.h. */
#include "moe/archs/archs.h"

/* `hunyuan-moe`: Hunyuan-A13B. Queries and keys are normed per head after rotation. */
const struct pf_arch pf_arch_hunyuan_moe = {
    .name = "hunyuan-moe",
    .rope_neox = true,
    .rope_freqs = true,
    .qk_norm = PF_REQUIRED,
    .norm_after_rope = true,
    .ffn_norm = "ffn_norm",
    .act = PF_ACT_SWIGLU,
    .gating = PF_GATE_SOFTMAX,
    .norm_weights = true,
    .shared = PF_REQUIRED,
    .expert_width = PF_WIDTH_KEY,
};

/* `hy_v3`: Hy3, Hy-MT2-30B-A3B. As dots1; files need not say how many layers are dense. */
const struct pf_arch pf_arch_hy_v3 = {
    .name = "hy_v3",
    .rope_neox = true,
    .rope_whole_head = true,
    .qk_norm = PF_REQUIRED,
    .ffn_norm = "ffn_norm",
    .dense_by_tensor = true,
    .leading_dense = PF_OPTIONAL,
    .act = PF_ACT_SWIGLU,
    .gating = PF_GATE_SIGMOID,
    .router_keys = true,
    .select_bias = PF_OPTIONAL,
    .shared = PF_REQUIRED,
    .expert_width = PF_WIDTH_FF_PER_PICK,
    .nextn = true,
};
