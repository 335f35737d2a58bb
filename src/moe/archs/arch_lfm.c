/* Tables: Liquid LFM2. See arch.h. */
#include "moe/archs/archs.h"

/* `lfm2moe`: LFM2-8B-A1B, 24B-A2B. Most layers are gated short convolutions, the others attention as in qwen3; the
 * first layers are dense. The last norm has an unusual name. */
const struct pf_arch pf_arch_lfm2moe = {
    .name = "lfm2moe",
    .rope_neox = true,
    .qk_norm = PF_REQUIRED,
    .without_kv = PF_MIXER_SHORT_CONV,
    .ffn_norm = "ffn_norm",
    .output_norm = "token_embd_norm",
    .leading_dense = PF_REQUIRED,
    .act = PF_ACT_SWIGLU,
    .gating = PF_GATE_SIGMOID,
    .norm_weights = true,
    .select_bias = PF_REQUIRED,
    .expert_width = PF_WIDTH_KEY,
};
