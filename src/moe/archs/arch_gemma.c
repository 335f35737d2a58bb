/* Tables: Gemma. See arch.h. */
#include "moe/archs/archs.h"

/* `gemma4`: Gemma 4 26B-A4B, 31B, E2B, E4B. Windows in most layers, whose heads are smaller; norms around every block;
 * experts beside a dense feed-forward; in the E models a layer adds something of its own for the token, and the last
 * ones use the keys and values of earlier ones. */
const struct pf_arch pf_arch_gemma4 = {
    .name = "gemma4",
    .rope_neox = true,
    .rope_freqs = true,
    .qk_norm = PF_REQUIRED,
    .value_norm = true,
    .near_heads = true,
    .unscaled = true,
    .post_norms = true,
    .layer_parts = true,
    .embed_root = true,
    .softcap = true,
    .window = PF_WINDOW_BY_LAYER,
    .ffn_norm = "ffn_norm",
    .dense = PF_OPTIONAL,
    .dense_by_tensor = true,
    .dense_beside = true,
    .act = PF_ACT_GELU,
    .gating = PF_GATE_SOFTMAX,
    .norm_weights = true,
    .expert_width = PF_WIDTH_KEY,
};
