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

/* `minimax-m3`: MiniMax-M3. Queries and keys are normed per head, part of each rotates; after the first layers each
 * head of keys and values looks only at runs of positions that its indexer chooses; clamped SwiGLU everywhere; sigmoid
 * routing with a selection bias. */
const struct pf_arch pf_arch_minimax_m3 = {
    .name = "minimax-m3",
    .rope_neox = true,
    .qk_norm = PF_REQUIRED,
    .index_runs = true,
    .ffn_norm = "ffn_norm",
    .leading_dense = PF_OPTIONAL,
    .act = PF_ACT_SWIGLU_OAI,
    .gating = PF_GATE_SIGMOID,
    .router_keys = true,
    .select_bias = PF_OPTIONAL,
    .shared = PF_REQUIRED,
    .expert_width = PF_WIDTH_KEY,
};
