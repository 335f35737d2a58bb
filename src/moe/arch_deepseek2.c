/* `deepseek2`: DeepSeek V2, V3 and R1, Kimi-K2, Moonlight, GLM-4.7-Flash. Latent attention; the first layers are dense;
 * the choice of experts by softmax or by sigmoid plus a bias, perhaps limited to the best groups. */
#include "moe/model.h"

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
};
