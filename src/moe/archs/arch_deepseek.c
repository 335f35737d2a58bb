/* Tables: DeepSeek. See arch.h. */
#include "moe/archs/archs.h"

/* `deepseek2`: DeepSeek V2, V3 and R1, Kimi-K2, Moonlight, GLM-4.7-Flash. Latent attention; the first layers are
 * dense; the choice of experts by softmax or by sigmoid plus a bias, perhaps limited to the best groups. */
const struct pf_arch pf_arch_deepseek2 = {
    .name = "deepseek2",
    .mla = true,
    .ffn_norm = "ffn_norm",
    .leading_dense = PF_REQUIRED,
    .act = PF_ACT_SWIGLU,
    .gating = PF_GATE_SOFTMAX,
    .router_keys = true,
    .select_bias = PF_OPTIONAL,
    .shared = PF_REQUIRED,
    .expert_width = PF_WIDTH_KEY,
    .nextn = true,
};

/* `deepseek4`: DeepSeek-V4-Flash and V4-Pro. Four residual streams; attention to a window of positions and to keys
 * of blocks of 4 or 128 of them; in the first layers experts are picked by the token, in the others by the square
 * root of softplus plus a bias. */
const struct pf_arch pf_arch_deepseek4 = {
    .name = "deepseek4",
    .compressed = true,
    .streams = true,
    .sinks = PF_REQUIRED,
    .ffn_norm = "ffn_norm",
    .act = PF_ACT_SWIGLU,
    .limits = true,
    .gating = PF_GATE_SQRT_SOFTPLUS,
    .norm_weights = true,
    .router_keys = true,
    .select_bias = PF_REQUIRED,
    .hash_layers = true,
    .shared = PF_REQUIRED,
    .expert_width = PF_WIDTH_KEY,
    .nextn = true,
    .nextn_plain = true,
};

/* `deepseek32`: DeepSeek-V3.2. As deepseek2 with sigmoid routing, and attention looks only at the positions that an
 * indexer chooses, one in every layer; its heads rotate other pairs than attention's. */
const struct pf_arch pf_arch_deepseek32 = {
    .name = "deepseek32",
    .mla = true,
    .indexer = true,
    .index_neox = true,
    .yarn_ratio = true,
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
