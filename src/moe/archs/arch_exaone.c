/* Tables: LG's EXAONE. See arch.h. */
#include "moe/archs/archs.h"

/* `exaone-moe`: K-EXAONE 236B-A23B. As dots1, with windows in three layers of four; only these rotate. */
const struct pf_arch pf_arch_exaone_moe = {
    .name = "exaone-moe",
    .rope_neox = true,
    .rope_freqs = true,
    .rope_whole_head = true,
    .qk_norm = PF_REQUIRED,
    .window = PF_WINDOW_BY_LAYER,
    .still_far = true,
    .ffn_norm = "ffn_norm",
    .leading_dense = PF_OPTIONAL,
    .act = PF_ACT_SWIGLU,
    .gating = PF_GATE_SIGMOID,
    .router_keys = true,
    .select_bias = PF_OPTIONAL,
    .shared = PF_REQUIRED,
    .expert_width = PF_WIDTH_KEY,
};
