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
