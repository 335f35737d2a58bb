/* Tables: Arcee's Trinity. See arch.h. */
#include "moe/archs/archs.h"

/* `afmoe`: Trinity Nano, Mini and Large. As exaone-moe, with norms behind the blocks too and attention whose output is
 * gated element by element by a matrix of its own. */
const struct pf_arch pf_arch_afmoe = {
    .name = "afmoe",
    .rope_neox = true,
    .still_period = 4,
    .qk_norm = PF_REQUIRED,
    .head_gate = PF_REQUIRED,
    .gate_elements = true,
    .post_norms = true,
    .embed_root = true,
    .window = PF_WINDOW_SLIDING,
    .window_period = 4,
    .ffn_norm = "ffn_norm",
    .leading_dense = PF_OPTIONAL,
    .act = PF_ACT_SWIGLU,
    .gating = PF_GATE_SIGMOID,
    .router_keys = true,
    .select_bias = PF_REQUIRED,
    .shared = PF_OPTIONAL,
    .expert_width = PF_WIDTH_KEY,
};
