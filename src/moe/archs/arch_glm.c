/* Tables: GLM. See arch.h. */
#include "moe/archs/archs.h"

/* `glm-dsa`: GLM-5, 5.1, 5.2. As deepseek2 with sigmoid routing, and attention looks only at the positions that an
 * indexer chooses; in GLM-5.2 some layers take the choice of the one before. */
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
    .nextn = true,
};

/* `glm4moe`: GLM-4.5, 4.5-Air, 4.6, 4.7. The first layers are dense, half of each head rotates; experts are chosen
 * by sigmoid plus a bias. The norm in front of the FFN has an unusual name. */
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
    .nextn = true,
};

/* `glm5-next`: GLM-5.3-Flash. Most layers are Kimi's delta nets, the others latent attention without any rotation,
 * which looks only at runs of positions that an indexer chooses; four residual streams, of which the end takes their
 * mean; sigmoid routing and limits for gate and up. */
const struct pf_arch pf_arch_glm5_next = {
    .name = "glm5-next",
    .no_rope = true,
    .without_kv = PF_MIXER_DELTA,
    .delta = PF_DELTA_KDA,
    .mla = true,
    .indexer = true,
    .index_pools = true,
    .streams = true,
    .streams_mean = true,
    .ffn_norm = "ffn_norm",
    .leading_dense = PF_OPTIONAL,
    .act = PF_ACT_SWIGLU,
    .limits = true,
    .gating = PF_GATE_SIGMOID,
    .router_keys = true,
    .select_bias = PF_OPTIONAL,
    .shared = PF_REQUIRED,
    .expert_width = PF_WIDTH_KEY,
};
