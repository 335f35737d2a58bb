/* The architectures pfmoe has, a table for each; struct pf_arch (model.h) says what a field means and what holds when a
 * table is silent. To add an architecture, add its table here and its row to models.md. */
#include <string.h>

#include "moe/model/model.h"

static const struct pf_arch archs[] = {
    /* `llama`: Llama 2 and 3, Mistral, Mixtral and their merges. With experts: softmax over all, the best
     * renormalised. */
    {
        .name = "llama",
        .rope_freqs = true,
        .rope_whole_head = true,
        .ffn_norm = "ffn_norm",
        .qkv_bias = PF_OPTIONAL,
        .out_bias = PF_OPTIONAL,
        .dense = PF_OPTIONAL,
        .dense_bias = PF_OPTIONAL,
        .attention_scale = true,
        .act = PF_ACT_SWIGLU,
        .gating = PF_GATE_SOFTMAX,
        .norm_weights = true,
        .expert_width = PF_WIDTH_FF,
    },
    /* `qwen2`: Qwen2 and Qwen2.5, QwQ, R1 distillations; dense. `qwen2moe`: Qwen1.5-MoE-A2.7B, Qwen2-57B-A14B: the
     * picked weights stay as the softmax over all experts left them, and a shared expert has a gate of its own. */
    {
        .name = "qwen2",
        .rope_neox = true,
        .qkv_bias = PF_REQUIRED,
        .ffn_norm = "ffn_norm",
        .dense = PF_REQUIRED,
        .act = PF_ACT_SWIGLU,
    },
    {
        .name = "qwen2moe",
        .rope_neox = true,
        .qkv_bias = PF_REQUIRED,
        .ffn_norm = "ffn_norm",
        .act = PF_ACT_SWIGLU,
        .gating = PF_GATE_SOFTMAX,
        .shared = PF_REQUIRED,
        .shared_gate = PF_REQUIRED,
        .expert_width = PF_WIDTH_FF_PER_PICK,
    },
    /* `qwen3`: dense Qwen3. `qwen3moe`: Qwen3-30B-A3B, Qwen3-235B-A22B, Qwen3-Coder. Queries and keys are normed per
     * head before rotation. */
    {
        .name = "qwen3",
        .rope_neox = true,
        .qk_norm = PF_REQUIRED,
        .ffn_norm = "ffn_norm",
        .dense = PF_REQUIRED,
        .act = PF_ACT_SWIGLU,
    },
    {
        .name = "qwen3moe",
        .rope_neox = true,
        .qk_norm = PF_REQUIRED,
        .ffn_norm = "ffn_norm",
        .act = PF_ACT_SWIGLU,
        .gating = PF_GATE_SOFTMAX,
        .norm_weights = true,
        .expert_width = PF_WIDTH_FF_PER_PICK,
    },
    /* `qwen3next`: Qwen3-Next-80B-A3B, Qwen3-Coder-Next. `qwen35moe`, `qwen35`: Qwen3.5 and 3.6. Three layers of four
     * are gated delta nets, the fourth is attention whose output is gated; the shared expert has a gate too. The norm
     * in front of the FFN has an unusual name. qwen35's value heads take turns with the key heads, qwen3next's
     * neighbours share. */
    {
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
    },
    {
        .name = "qwen35",
        .rope_neox = true,
        .rope_sections = PF_SECTIONS_INTERLEAVED,
        .qk_norm = PF_REQUIRED,
        .gated_attention = true,
        .delta = PF_DELTA_TILED,
        .ffn_norm = "post_attention_norm",
        .dense = PF_REQUIRED,
        .act = PF_ACT_SWIGLU,
    },
    {
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
    },
    /* `gpt-oss`: GPT-OSS 20B and 120B. Biases everywhere, attention sinks, a sliding window in every other layer,
     * clamped SwiGLU; the softmax is taken over the picked experts only. The norm in front of the FFN has an unusual
     * name. */
    {
        .name = "gpt-oss",
        .rope_neox = true,
        .ffn_norm = "post_attention_norm",
        .qkv_bias = PF_REQUIRED,
        .out_bias = PF_REQUIRED,
        .sinks = PF_REQUIRED,
        .router_bias = PF_REQUIRED,
        .expert_bias = PF_REQUIRED,
        .window = PF_WINDOW_SLIDING,
        .window_period = 2,
        .act = PF_ACT_SWIGLU_OAI,
        .gating = PF_GATE_SOFTMAX_SELECTED,
        .expert_width = PF_WIDTH_KEY,
    },
    /* `deepseek2`: DeepSeek V2, V3 and R1, Kimi-K2, Moonlight, GLM-4.7-Flash. Latent attention; the first layers are
     * dense; the choice of experts by softmax or by sigmoid plus a bias, perhaps limited to the best groups. */
    {
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
    },
    /* `deepseek4`: DeepSeek-V4-Flash and V4-Pro. Four residual streams; attention to a window of positions and to keys
     * of blocks of 4 or 128 of them; in the first layers experts are picked by the token, in the others by the square
     * root of softplus plus a bias. */
    {
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
    },
    /* `glm-dsa`: GLM-5, 5.1, 5.2. As deepseek2 with sigmoid routing, and attention looks only at the positions that an
     * indexer chooses; in GLM-5.2 some layers take the choice of the one before. */
    {
        .name = "glm-dsa",
        .mla = true,
        .indexer = true,
        .ffn_norm = "ffn_norm",
        .leading_dense = PF_OPTIONAL,
        .act = PF_ACT_SWIGLU,
        .gating = PF_GATE_SIGMOID,
        .router_keys = true,
        .select_bias = PF_OPTIONAL,
        .shared = PF_REQUIRED,
        .expert_width = PF_WIDTH_KEY,
    },
    /* `deepseek32`: DeepSeek-V3.2. As deepseek2 with sigmoid routing, and attention looks only at the positions that an
     * indexer chooses, one in every layer; its heads rotate other pairs than attention's. */
    {
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
    },
    /* `glm4moe`: GLM-4.5, 4.5-Air, 4.6, 4.7. The first layers are dense, half of each head rotates; experts are chosen
     * by sigmoid plus a bias. The norm in front of the FFN has an unusual name. */
    {
        .name = "glm4moe",
        .rope_neox = true,
        .rope_sections = PF_SECTIONS_BLOCKS,
        .qkv_bias = PF_OPTIONAL,
        .qk_norm = PF_OPTIONAL,
        .ffn_norm = "post_attention_norm",
        .leading_dense = PF_OPTIONAL,
        .act = PF_ACT_SWIGLU,
        .gating = PF_GATE_SIGMOID,
        .router_keys = true,
        .select_bias = PF_REQUIRED,
        .shared = PF_REQUIRED,
        .expert_width = PF_WIDTH_KEY,
    },
    /* `olmoe`: OLMoE-1B-7B. Queries and keys are normed over all heads at once; weights are not renormalised. */
    {
        .name = "olmoe",
        .rope_neox = true,
        .qk_norm = PF_REQUIRED,
        .norm_whole_row = true,
        .ffn_norm = "ffn_norm",
        .act = PF_ACT_SWIGLU,
        .gating = PF_GATE_SOFTMAX,
        .expert_width = PF_WIDTH_FF,
    },
    /* `granite`, `granitemoe`: IBM Granite 3 and 4. Multipliers on the embedding, on what blocks add, on attention's
     * logits and on the output; some files do not rotate; some have a shared expert. */
    {
        .name = "granite",
        .rope_freqs = true,
        .rope_switch = true,
        .qkv_bias = PF_OPTIONAL,
        .out_bias = PF_OPTIONAL,
        .attention_scale = true,
        .ffn_norm = "ffn_norm",
        .dense = PF_REQUIRED,
        .act = PF_ACT_SWIGLU,
        .multipliers = true,
    },
    {
        .name = "granitemoe",
        .rope_freqs = true,
        .rope_switch = true,
        .qkv_bias = PF_OPTIONAL,
        .out_bias = PF_OPTIONAL,
        .attention_scale = true,
        .ffn_norm = "ffn_norm",
        .act = PF_ACT_SWIGLU,
        .gating = PF_GATE_SOFTMAX,
        .norm_weights = true,
        .shared = PF_OPTIONAL,
        .expert_width = PF_WIDTH_FF,
        .multipliers = true,
    },
    /* `minimax-m2`: MiniMax-M2, M2.1, M2.5. Queries and keys are normed over all heads at once, half of each head
     * rotates; experts are chosen by sigmoid plus a bias. */
    {
        .name = "minimax-m2",
        .rope_neox = true,
        .qk_norm = PF_REQUIRED,
        .norm_whole_row = true,
        .ffn_norm = "ffn_norm",
        .act = PF_ACT_SWIGLU,
        .gating = PF_GATE_SIGMOID,
        .norm_weights = true,
        .router_keys = true,
        .select_bias = PF_REQUIRED,
        .expert_width = PF_WIDTH_KEY,
    },
    /* `bailingmoe2`: Ling and Ring 2.0. As dots1, with part of each head rotating and the choice limited to the best
     * groups of experts. */
    {
        .name = "bailingmoe2",
        .rope_neox = true,
        .qk_norm = PF_REQUIRED,
        .ffn_norm = "ffn_norm",
        .leading_dense = PF_OPTIONAL,
        .act = PF_ACT_SWIGLU,
        .gating = PF_GATE_SIGMOID,
        .router_keys = true,
        .select_bias = PF_OPTIONAL,
        .shared = PF_REQUIRED,
        .expert_width = PF_WIDTH_KEY,
    },
    /* `ernie4_5` (dense), `ernie4_5-moe`: ERNIE 4.5. Softmax routing with a selection bias; experts from some layer on,
     * perhaps not in each. */
    {
        .name = "ernie4_5",
        .qkv_bias = PF_OPTIONAL,
        .out_bias = PF_OPTIONAL,
        .ffn_norm = "ffn_norm",
        .dense = PF_REQUIRED,
        .act = PF_ACT_SWIGLU,
    },
    {
        .name = "ernie4_5-moe",
        .qkv_bias = PF_OPTIONAL,
        .out_bias = PF_OPTIONAL,
        .ffn_norm = "ffn_norm",
        .leading_dense = PF_REQUIRED,
        .interleave = PF_REQUIRED,
        .act = PF_ACT_SWIGLU,
        .gating = PF_GATE_SOFTMAX,
        .norm_weights = true,
        .select_bias = PF_OPTIONAL,
        .shared = PF_OPTIONAL,
        .expert_width = PF_WIDTH_KEY,
    },
    /* `hunyuan-moe`: Hunyuan-A13B. Queries and keys are normed per head after rotation. */
    {
        .name = "hunyuan-moe",
        .rope_neox = true,
        .rope_freqs = true,
        .qk_norm = PF_REQUIRED,
        .norm_after_rope = true,
        .ffn_norm = "ffn_norm",
        .act = PF_ACT_SWIGLU,
        .gating = PF_GATE_SOFTMAX,
        .norm_weights = true,
        .shared = PF_REQUIRED,
        .expert_width = PF_WIDTH_KEY,
    },
    /* `dots1`: dots.llm1. Attention as in qwen3; the first layers are dense; sigmoid routing with a selection bias. */
    {
        .name = "dots1",
        .rope_neox = true,
        .qk_norm = PF_REQUIRED,
        .ffn_norm = "ffn_norm",
        .leading_dense = PF_REQUIRED,
        .act = PF_ACT_SWIGLU,
        .gating = PF_GATE_SIGMOID,
        .router_keys = true,
        .select_bias = PF_OPTIONAL,
        .shared = PF_REQUIRED,
        .expert_width = PF_WIDTH_KEY,
    },
    /* `llama4`: Llama 4 Scout and Maverick. Three layers of four see pieces of the context and norm rotated queries and
     * keys; the fourth sees everything and does not rotate. The routing weight goes in front of the expert. */
    {
        .name = "llama4",
        .rope_freqs = true,
        .norm_after_rope = true,
        .window = PF_WINDOW_LLAMA4,
        .window_period = 4,
        .ffn_norm = "ffn_norm",
        .interleave = PF_REQUIRED,
        .act = PF_ACT_SWIGLU,
        .gating = PF_GATE_SIGMOID,
        .weigh_input = true,
        .shared = PF_REQUIRED,
        .expert_width = PF_WIDTH_KEY,
    },
};

const struct pf_arch *pf_arch_at(int i)
{
    return i >= 0 && (size_t)i < sizeof archs / sizeof *archs ? &archs[i] : NULL;
}

const struct pf_arch *pf_arch_find(struct pf_str name)
{
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++)
        if (strlen(archs[i].name) == name.n && memcmp(archs[i].name, name.p, name.n) == 0)
            return &archs[i];
    return NULL;
}
