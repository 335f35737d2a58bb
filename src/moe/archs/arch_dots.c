/* Tables: dots.llm1. See arch.h. */
#include "moe/archs/archs.h"

/* `dots1`: dots.llm1. Attention as in qwen3; the first layers are dense; sigmoid routing with a selection bias. */
const struct pf_arch pf_arch_dots1 = {
    .name = "dots1",
    .rope_neox = true,
    .qk_norm = PF_REQUIRED,
    .ffn_norm = "ffn_norm",
    .leading_dense = PF_REQUIRED,
    .act = PF_ACT_SWIGLU,
    .gating = PF_GATE_SIGMOID,
    .router_keys = true,
    .select_bias = PF_OPTIONAL,
    .shared = PF_REQUIRED,
    .expert_width = PF_WIDTH_KEY,
};
