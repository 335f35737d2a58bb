/* Tables: Moonshot Kimi. See arch.h. */
#include "moe/archs/archs.h"

/* `kimi-linear`: Kimi-Linear-48B-A3B. Most layers are Kimi's delta nets, the others latent attention of which nothing
 * rotates; the first layer is dense; sigmoid routing with a selection bias. Kimi-K2 is a `deepseek2`. */
const struct pf_arch pf_arch_kimi_linear = {
    .name = "kimi-linear",
    .no_rope = true,
    .without_kv = PF_MIXER_DELTA,
    .delta = PF_DELTA_KDA,
    .mla = true,
    .ffn_norm = "ffn_norm",
    .leading_dense = PF_OPTIONAL,
    .act = PF_ACT_SWIGLU,
    .gating = PF_GATE_SIGMOID,
    .norm_weights = true,
    .router_keys = true,
    .select_bias = PF_OPTIONAL,
    .shared = PF_REQUIRED,
    .expert_width = PF_WIDTH_KEY,
};
