/* `glm4moe`: GLM-4.5, 4.5-Air, 4.6, 4.7. The first layers are dense, half of each head rotates; experts are chosen by
 * sigmoid plus a bias. The norm in front of the FFN has an unusual name. */
#include "moe/model.h"

const struct pf_arch pf_arch_glm4moe = {
    .name = "glm4moe",
    .rope_neox = true,
    .rope_sections = PF_SECTIONS_BLOCKS,
    .qkv_bias = PF_OPTIONAL,
    .qk_norm = PF_OPTIONAL,
    .ffn_norm = "post_attention_norm",
    .leading_dense = PF_OPTIONAL,
    .act = PF_ACT_SWIGLU,
    .gating = PF_GATE_SIGMOID,
    .router_keys = true,
    .select_bias = PF_REQUIRED,
    .shared = PF_REQUIRED,
    .expert_width = PF_WIDTH_KEY,
};
