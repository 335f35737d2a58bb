/* Tables: Mistral's own (Mistral, Mixtral and their merges are `llama`). See arch.h. */
#include "moe/archs/archs.h"

/* `mistral3`: Ministral 3. As llama, with YaRN whose ramp the file sets, and queries that grow with their position. */
const struct pf_arch pf_arch_mistral3 = {
    .name = "mistral3",
    .rope_freqs = true,
    .rope_whole_head = true,
    .yarn_betas = true,
    .yarn_ratio = true,
    .temper = true,
    .out_bias = PF_OPTIONAL,
    .ffn_norm = "ffn_norm",
    .dense = PF_OPTIONAL,
    .dense_bias = PF_OPTIONAL,
    .act = PF_ACT_SWIGLU,
    .gating = PF_GATE_SOFTMAX,
    .norm_weights = true,
    .expert_width = PF_WIDTH_FF,
};

/* `mistral4`: Mistral Small 4. As deepseek2, with queries that grow with their position. */
const struct pf_arch pf_arch_mistral4 = {
    .name = "mistral4",
    .mla = true,
    .yarn_ratio = true,
    .ffn_norm = "ffn_norm",
    .leading_dense = PF_OPTIONAL,
    .act = PF_ACT_SWIGLU,
    .gating = PF_GATE_SOFTMAX,
    .router_keys = true,
    .select_bias = PF_OPTIONAL,
    .shared = PF_REQUIRED,
    .expert_width = PF_WIDTH_KEY,
};
