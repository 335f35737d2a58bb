/* Tables: StepFun's and Xiaomi's, whose layers with and without a window rotate differently. See arch.h. */
#include "moe/archs/archs.h"

/* `step35`: Step-3.5-Flash and 3.7. Some layers see a window, with heads and a rotation of their own; what each head
 * puts out is gated by one number; sigmoid routing, limits for silu(gate) and up. */
const struct pf_arch pf_arch_step35 = {
    .name = "step35",
    .rope_neox = true,
    .rope_freqs = true,
    .half_rope = true,
    .qk_norm = PF_OPTIONAL,
    .head_gate = PF_OPTIONAL,
    .window = PF_WINDOW_BY_LAYER,
    .ffn_norm = "ffn_norm",
    .dense_by_tensor = true,
    .leading_dense = PF_OPTIONAL,
    .act = PF_ACT_SWIGLU_CAPPED,
    .limits = true,
    .gating = PF_GATE_SIGMOID,
    .router_keys = true,
    .select_bias = PF_OPTIONAL,
    .shared = PF_REQUIRED,
    .expert_width = PF_WIDTH_KEY,
    .nextn = true,
    .nextn_plain = true,
};

/* `mimo2`: MiMo-V2-Flash. Values are narrower than keys; layers with a window have other heads, sinks and a rotation of
 * their own; sigmoid routing without any keys. */
const struct pf_arch pf_arch_mimo2 = {
    .name = "mimo2",
    .rope_neox = true,
    .sinks = PF_OPTIONAL,
    .value_scale = true,
    .window = PF_WINDOW_BY_LAYER,
    .ffn_norm = "ffn_norm",
    .dense_by_tensor = true,
    .act = PF_ACT_SWIGLU,
    .gating = PF_GATE_SIGMOID,
    .norm_weights = true,
    .select_bias = PF_OPTIONAL,
    .expert_width = PF_WIDTH_KEY,
    .nextn = true,
    .nextn_plain = true,
};
