/* Tables: Qwen. See arch.h. */
#include "moe/archs/archs.h"

/* `qwen2`: Qwen2 and Qwen2.5, QwQ, R1 distillations; dense. `qwen2moe`: Qwen1.5-MoE-A2.7B, Qwen2-57B-A14B: the
 * picked weights stay as the softmax over all experts left them, and a shared expert has a gate of its own. */
const struct pf_arch pf_arch_qwen2 = {
    .name = "qwen2",
    .rope_neox = true,
    .qkv_bias = PF_REQUIRED,
    .ffn_norm = "ffn_norm",
    .dense = PF_REQUIRED,
    .act = PF_ACT_SWIGLU,
};

const struct pf_arch pf_arch_qwen2moe = {
    .name = "qwen2moe",
    .rope_neox = true,
    .qkv_bias = PF_REQUIRED,
    .ffn_norm = "ffn_norm",
    .act = PF_ACT_SWIGLU,
    .gating = PF_GATE_SOFTMAX,
    .shared = PF_REQUIRED,
    .shared_gate = PF_REQUIRED,
    .expert_width = PF_WIDTH_FF_PER_PICK,
};

/* `qwen3`: dense Qwen3. `qwen3moe`: Qwen3-30B-A3B, Qwen3-235B-A22B, Qwen3-Coder. Queries and keys are normed per
 * head before rotation. */
const struct pf_arch pf_arch_qwen3 = {
    .name = "qwen3",
    .rope_neox = true,
    .qk_norm = PF_REQUIRED,
    .ffn_norm = "ffn_norm",
    .dense = PF_REQUIRED,
    .act = PF_ACT_SWIGLU,
};

const struct pf_arch pf_arch_qwen3moe = {
    .name = "qwen3moe",
    .rope_neox = true,
    .qk_norm = PF_REQUIRED,
    .ffn_norm = "ffn_norm",
    .act = PF_ACT_SWIGLU,
    .gating = PF_GATE_SOFTMAX,
    .norm_weights = true,
    .expert_width = PF_WIDTH_FF_PER_PICK,
};

/* `qwen3vlmoe`: Qwen3-VL-30B-A3B, 235B-A22B. As qwen3moe; with the published sections two pairs do not rotate. */
const struct pf_arch pf_arch_qwen3vlmoe = {
    .name = "qwen3vlmoe",
    .rope_neox = true,
    .rope_sections = PF_SECTIONS_INTERLEAVED,
    .qk_norm = PF_REQUIRED,
    .ffn_norm = "ffn_norm",
    .act = PF_ACT_SWIGLU,
    .gating = PF_GATE_SOFTMAX,
    .norm_weights = true,
    .expert_width = PF_WIDTH_FF_PER_PICK,
};

/* `qwen3next`: Qwen3-Next-80B-A3B, Qwen3-Coder-Next. `qwen35moe`, `qwen35`: Qwen3.5 and 3.6. Three layers of four
 * are gated delta nets, the fourth is attention whose output is gated; the shared expert has a gate too. The norm in
 * front of the FFN has an unusual name. qwen35's value heads take turns with the key heads, qwen3next's neighbours
 * share. */
const struct pf_arch pf_arch_qwen3next = {
    .name = "qwen3next",
    .rope_neox = true,
    .qk_norm = PF_REQUIRED,
    .gated_attention = true,
    .delta = PF_DELTA_GROUPED,
    .ffn_norm = "post_attention_norm",
    .act = PF_ACT_SWIGLU,
    .gating = PF_GATE_SOFTMAX,
    .norm_weights = true,
    .shared = PF_REQUIRED,
    .shared_gate = PF_REQUIRED,
    .expert_width = PF_WIDTH_FF_PER_PICK,
    .nextn = true,
};

const struct pf_arch pf_arch_qwen35 = {
    .name = "qwen35",
    .rope_neox = true,
    .rope_sections = PF_SECTIONS_INTERLEAVED,
    .qk_norm = PF_REQUIRED,
    .gated_attention = true,
    .delta = PF_DELTA_TILED,
    .ffn_norm = "post_attention_norm",
    .dense = PF_REQUIRED,
    .act = PF_ACT_SWIGLU,
    .nextn = true,
};

const struct pf_arch pf_arch_qwen35moe = {
    .name = "qwen35moe",
    .rope_neox = true,
    .rope_sections = PF_SECTIONS_INTERLEAVED,
    .qk_norm = PF_REQUIRED,
    .gated_attention = true,
    .delta = PF_DELTA_TILED,
    .ffn_norm = "post_attention_norm",
    .act = PF_ACT_SWIGLU,
    .gating = PF_GATE_SOFTMAX,
    .norm_weights = true,
    .shared = PF_REQUIRED,
    .shared_gate = PF_REQUIRED,
    .expert_width = PF_WIDTH_FF_PER_PICK,
    .nextn = true,
};

/* `qwen4exp`: Qwen3.8-Flash-Next. As qwen35moe, with gated residual streams in the place of norms; full attention looks
 * at runs of positions that an indexer chooses, and an early layer has n-grams. */
const struct pf_arch pf_arch_qwen4exp = {
    .name = "qwen4exp",
    .rope_neox = true,
    .rope_sections = PF_SECTIONS_INTERLEAVED,
    .qk_norm = PF_REQUIRED,
    .gated_attention = true,
    .delta = PF_DELTA_TILED,
    .delta_sigmoid = true,
    .gated_streams = true,
    .index_means = true,
    .ngrams = true,
    .act = PF_ACT_SWIGLU,
    .gating = PF_GATE_SOFTMAX,
    .norm_weights = true,
    .shared = PF_REQUIRED,
    .shared_gate = PF_REQUIRED,
    .expert_width = PF_WIDTH_FF_PER_PICK,
};
