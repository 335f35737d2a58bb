/* `glm-dsa`: GLM-5, 5.1, 5.2. As deepseek2 with sigmoid routing, and attention looks only at the positions that an
 * indexer chooses; in GLM-5.2 some layers take the choice of the one before. */
#include "moe/model.h"

const struct pf_arch pf_arch_glm_dsa = {
    .name = "glm-dsa",
    .mla = true,
    .indexer = true,
    .ffn_norm = "ffn_norm",
    .leading_dense = PF_OPTIONAL,
    .act = PF_ACT_SWIGLU,
    .gating = PF_GATE_SIGMOID,
    .router_keys = true,
    .select_bias = PF_OPTIONAL,
    .shared = PF_REQUIRED,
    .expert_width = PF_WIDTH_KEY,
};
