/* `deepseek4`: DeepSeek-V4-Flash and V4-Pro. Four residual streams; attention to a window of positions and to keys of
 * blocks of 4 or 128 of them; in the first layers experts are picked by the token, in the others by the square root of
 * softplus plus a bias. */
#include "moe/model.h"

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
};
