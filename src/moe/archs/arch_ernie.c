/* Tables: ERNIE. See arch.h. */
#include "moe/archs/archs.h"

/* `ernie4_5` (dense), `ernie4_5-moe`: ERNIE 4.5. Softmax routing with a selection bias; experts from some layer on,
 * perhaps not in each. */
const struct pf_arch pf_arch_ernie4_5 = {
    .name = "ernie4_5",
    .qkv_bias = PF_OPTIONAL,
    .out_bias = PF_OPTIONAL,
    .ffn_norm = "ffn_norm",
    .dense = PF_REQUIRED,
    .act = PF_ACT_SWIGLU,
};

const struct pf_arch pf_arch_ernie4_5_moe = {
    .name = "ernie4_5-moe",
    .qkv_bias = PF_OPTIONAL,
    .out_bias = PF_OPTIONAL,
    .ffn_norm = "ffn_norm",
    .leading_dense = PF_REQUIRED,
    .interleave = PF_REQUIRED,
    .act = PF_ACT_SWIGLU,
    .gating = PF_GATE_SOFTMAX,
    .norm_weights = true,
    .select_bias = PF_OPTIONAL,
    .shared = PF_OPTIONAL,
    .expert_width = PF_WIDTH_KEY,
};
