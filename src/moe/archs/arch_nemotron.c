/* Tables: NVIDIA Nemotron. See arch.h. */
#include "moe/archs/archs.h"

/* `nemotron_h_moe`: Nemotron 3. A layer is one block: Mamba2, attention without rotation, or experts without gates
 * whose activation is the square of relu; some of these work on a shorter vector. */
const struct pf_arch pf_arch_nemotron_h_moe = {
    .name = "nemotron_h_moe",
    .qkv_bias = PF_OPTIONAL,
    .out_bias = PF_OPTIONAL,
    .without_kv = PF_MIXER_MAMBA2,
    .split_layers = true,
    .no_rope = true,
    .ffn_norm = "attn_norm",
    .act = PF_ACT_RELU,
    .ungated = true,
    .latent_experts = true,
    .gating = PF_GATE_SIGMOID,
    .router_keys = true,
    .select_bias = PF_REQUIRED,
    .shared = PF_OPTIONAL,
    .expert_width = PF_WIDTH_FF_PER_PICK,
    .nextn = true,
    .nextn_centred = true,
};
