/* Tables: MiniMax. See arch.h. */
#include "moe/archs/archs.h"

/* `minimax-m2`: MiniMax-M2, M2.1, M2.5. Queries and keys are normed over all heads at once, half of each head
 * rotates; experts are chosen by sigmoid plus a bias. */
const struct pf_arch pf_arch_minimax_m2 = {
    .name = "minimax-m2",
    .rope_neox = true,
    .qk_norm = PF_REQUIRED,
    .norm_whole_row = true,
    .ffn_norm = "ffn_norm",
    .act = PF_ACT_SWIGLU,
    .gating = PF_GATE_SIGMOID,
    .norm_weights = true,
    .router_keys = true,
    .select_bias = PF_REQUIRED,
    .expert_width = PF_WIDTH_KEY,
};
