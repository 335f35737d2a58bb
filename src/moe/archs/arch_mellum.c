/* Tables: JetBrains' Mellum. See arch.h. */
#include "moe/archs/archs.h"

/* `mellum`: Mellum 2 (12B-A2.5B). As qwen3moe, with windows, whose layers rotate as if the context were not
 * extended. */
const struct pf_arch pf_arch_mellum = {
    .name = "mellum",
    .rope_neox = true,
    .rope_whole_head = true,
    .yarn_betas = true,
    .qk_norm = PF_REQUIRED,
    .window = PF_WINDOW_BY_LAYER,
    .near_plain = true,
    .ffn_norm = "ffn_norm",
    .act = PF_ACT_SWIGLU,
    .gating = PF_GATE_SOFTMAX,
    .norm_weights = true,
    .expert_width = PF_WIDTH_FF_PER_PICK,
};
