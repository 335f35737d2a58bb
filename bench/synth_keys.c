/* The header of a model of pfmoe-synth: keys, a tokenizer that is a stand-in, and the directory of tensors. See
 * synth_keys.h. */
#include "synth_keys.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "program/io/buf.h"

static void put(struct header *h, const void *data, size_t n)
{
    if (h->n + n > h->cap) {
        h->cap = 2 * h->cap + n + 4096;
        h->p = xrealloc(h->p, h->cap, 1);
    }
    memcpy(h->p + h->n, data, n);
    h->n += n;
}

static void put_u32(struct header *h, uint32_t v) { put(h, &v, 4); }
static void put_u64(struct header *h, uint64_t v) { put(h, &v, 8); }

static void put_str(struct header *h, const char *s)
{
    put_u64(h, strlen(s));
    put(h, s, strlen(s));
}

enum { T_U32 = 4, T_I32 = 5, T_F32 = 6, T_BOOL = 7, T_STRING = 8, T_ARRAY = 9, T_U64 = 10 };

/* A key that begins with a dot belongs to the architecture. */
static void put_key(struct header *h, const char *key, uint32_t type)
{
    char full[128];
    snprintf(full, sizeof full, "%s%s", key[0] == '.' ? h->arch : "", key);
    put_str(h, full);
    put_u32(h, type);
    h->n_kv++;
}

static void kv_u32(struct header *h, const char *key, int value)
{
    put_key(h, key, T_U32);
    put_u32(h, (uint32_t)value);
}

static void kv_f32(struct header *h, const char *key, float value)
{
    put_key(h, key, T_F32);
    put(h, &value, 4);
}

static void kv_true(struct header *h, const char *key)
{
    put_key(h, key, T_BOOL);
    put(h, "\1", 1);
}

static void kv_false(struct header *h, const char *key)
{
    put_key(h, key, T_BOOL);
    put(h, "\0", 1);
}

static void kv_str(struct header *h, const char *key, const char *value)
{
    put_key(h, key, T_STRING);
    put_str(h, value);
}

static void kv_array(struct header *h, const char *key, uint32_t type, uint64_t n)
{
    put_key(h, key, T_ARRAY);
    put_u32(h, type);
    put_u64(h, n);
}

/* The text of a byte in byte-level BPE: itself where it prints, else a character from U+0100 on. */
static void byte_text(int b, char out[4])
{
    int code = b, hidden = 0;
    for (int i = 0; i <= b; i++)
        if (i < 0x21 || (i > 0x7e && i < 0xa1) || i == 0xad) {
            if (i == b)
                code = 0x100 + hidden;
            hidden++;
        }
    if (code < 0x80)
        memcpy(out, (char[]){ (char)code, 0 }, 2);
    else
        memcpy(out, (char[]){ (char)(0xc0 | code >> 6), (char)(0x80 | (code & 63)), 0 }, 3);
}

static void put_tokenizer(struct header *h, int n_vocab)
{
    static const char *const named[] = { "th", "<|endoftext|>", "<|im_start|>", "<|im_end|>" };
    kv_str(h, "tokenizer.ggml.model", "gpt2");
    kv_str(h, "tokenizer.ggml.pre", "gpt-2");
    kv_array(h, "tokenizer.ggml.tokens", T_STRING, (uint64_t)n_vocab);
    for (int i = 0; i < n_vocab; i++) {
        char text[32];
        if (i < BYTES)
            byte_text(i, text);
        else
            snprintf(text, sizeof text, "[PAD%d]", i);
        put_str(h, i > BYTES && i < N_REAL ? named[i - BYTES - 1] : text);
    }
    kv_array(h, "tokenizer.ggml.token_type", T_I32, (uint64_t)n_vocab);
    for (int i = 0; i < n_vocab; i++)
        put_u32(h, i < BYTES || i == TOKEN_TH ? 1 : i > BYTES && i < N_REAL ? 3 : 5);
    kv_array(h, "tokenizer.ggml.merges", T_STRING, 1);
    put_str(h, "t h");
    kv_u32(h, "tokenizer.ggml.eos_token_id", TOKEN_IM_END);
    kv_u32(h, "tokenizer.ggml.bos_token_id", TOKEN_END);
    kv_str(h, "tokenizer.chat_template",
           "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
           "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}");
}

/* An entry for each layer: `here` in layers of this kind, `elsewhere` in the others. */
static void kv_by_kind(struct header *h, const char *key, const struct preset *p, char kind, int here, int elsewhere)
{
    kv_array(h, key, T_I32, (uint64_t)p->n_layer);
    for (int il = 0; il < p->n_layer; il++)
        put_u32(h, (uint32_t)(synth_kind_of(p, il) == kind ? here : elsewhere));
}

static void kv_per_layer(struct header *h, const char *key, const struct preset *p, float value)
{
    kv_array(h, key, T_F32, (uint64_t)p->n_layer);
    for (int il = 0; il < p->n_layer; il++)
        put(h, &value, 4);
}

static void put_yarn(struct header *h, float factor, int n_ctx_orig)
{
    kv_str(h, ".rope.scaling.type", "yarn");
    kv_f32(h, ".rope.scaling.factor", factor);
    kv_u32(h, ".rope.scaling.original_context_length", n_ctx_orig);
}

static void put_sections(struct header *h, const uint32_t sections[4])
{
    kv_array(h, ".rope.dimension_sections", T_I32, 4);
    put(h, sections, 4 * sizeof *sections);
}

/* How experts are picked: by sigmoid, weights normed and scaled. */
static void put_sigmoid_routing(struct header *h, float scale)
{
    kv_u32(h, ".expert_gating_func", 2);
    kv_true(h, ".expert_weights_norm");
    kv_f32(h, ".expert_weights_scale", scale);
}

static void put_index_keys(struct header *h, const struct preset *p)
{
    struct synth_index s = synth_index_of(p);
    if (s.n_head == 0)
        return;
    kv_u32(h, ".attention.indexer.head_count", s.n_head);
    kv_u32(h, ".attention.indexer.key_length", s.width);
    kv_u32(h, ".attention.indexer.top_k", s.n_chosen);
    if (p->family == GLM5) {
        kv_u32(h, ".attention.indexer.kpool", 4);
        kv_true(h, ".attention.indexer.kpool_select_tail");
    }
    if (p->family == MINIMAX3) {
        kv_u32(h, ".attention.indexer.block_size", 128);
        kv_u32(h, ".attention.indexer.local_blocks", 1);
    }
    if (p->family == QWEN4)
        kv_by_kind(h, ".attention.compress_ratios", p, 'a', 4, 0);
    if (p->family != GLM_DSA)
        return;
    kv_array(h, ".attention.indexer.types", T_I32, (uint64_t)p->n_layer);
    for (int il = 0; il < p->n_layer; il++)
        put_u32(h, synth_has_indexer(p, il));
}

static void put_latent_keys(struct header *h, const struct preset *p)
{
    struct synth_latent s = synth_latent_of(p);
    kv_u32(h, ".attention.kv_lora_rank", s.n_latent);
    if (s.q_latent)
        kv_u32(h, ".attention.q_lora_rank", s.q_latent);
    kv_u32(h, ".attention.key_length_mla", s.n_nope + s.n_rope);
    kv_u32(h, ".attention.value_length_mla", s.n_v);
    kv_u32(h, ".rope.dimension_count", s.n_rope);
}

/* The multipliers of the hash are those of Qwen3.8-Flash-Next. */
static void put_ngram_keys(struct header *h, const struct preset *p)
{
    static const uint64_t multipliers[NGRAM] = { 23703573157769, 20109073645365, 8052911324071 };
    uint64_t sizes[NGRAM_HEADS], at = 0;
    synth_ngram_sizes(sizes);
    if (p->n_layer <= NGRAM_LAYER)
        return;
    kv_array(h, ".ple.layers", T_I32, 1);
    put_u32(h, NGRAM_LAYER);
    kv_u32(h, ".ple.ngram_size", NGRAM);
    kv_u32(h, ".ple.heads_per_ngram", NGRAM_HEADS / (NGRAM - 1));
    kv_u32(h, ".ple.conv_kernel", NGRAM_TAPS);
    kv_u32(h, ".ple.eos_token_id", TOKEN_IM_END);
    kv_u32(h, ".embedding_length_per_layer_input", p->n_embd / NGRAM_HEADS);
    kv_array(h, ".ple.layer_multipliers", T_U64, NGRAM);
    put(h, multipliers, sizeof multipliers);
    kv_array(h, ".ple.head_offsets", T_U64, NGRAM_HEADS);
    for (int i = 0; i < NGRAM_HEADS; at += sizes[i++])
        put_u64(h, at);
    kv_array(h, ".ple.head_vocab_sizes", T_U64, NGRAM_HEADS);
    put(h, sizes, sizeof sizes);
}

/* Layers with a window and those without, which have heads and rotations of their own. */
static void put_window_keys(struct header *h, const struct preset *p, int window)
{
    kv_u32(h, ".attention.sliding_window", window);
    kv_by_kind(h, ".attention.sliding_window_pattern", p, 'w', 1, 0);
    kv_f32(h, ".rope.freq_base_swa", 10000);
}

static void put_gemma_keys(struct header *h, const struct preset *p)
{
    struct synth_gemma g = synth_gemma_of(p);
    put_window_keys(h, p, g.window);
    kv_u32(h, ".attention.key_length_swa", p->hd / 2);
    kv_u32(h, ".attention.value_length_swa", p->hd / 2);
    kv_u32(h, ".rope.dimension_count", p->hd);
    kv_u32(h, ".rope.dimension_count_swa", p->hd / 2);
    kv_u32(h, ".attention.shared_kv_layers", g.n_shared);
    kv_u32(h, ".embedding_length_per_layer_input", g.width);
    kv_f32(h, ".final_logit_softcapping", 30);
}

static void put_mistral_keys(struct header *h, const struct preset *p)
{
    put_yarn(h, p->family == MISTRAL3 ? 16 : 128, p->family == MISTRAL3 ? 16384 : 8192);
    kv_f32(h, ".attention.temperature_scale", 0.1f);
    if (p->family == MISTRAL3) {
        kv_u32(h, ".rope.dimension_count", p->hd);
        kv_f32(h, ".rope.scaling.yarn_log_multiplier", 1);
        return;
    }
    kv_f32(h, ".rope.scaling.yarn_log_multiplier", 0.1f);
    kv_u32(h, ".attention.temperature_length", 8192);
    kv_true(h, ".expert_weights_norm");
}

/* Families of 2026. */
static void put_newer_keys(struct header *h, const struct preset *p)
{
    static const uint32_t sections_vl[] = { 24, 20, 20, 0 };
    if (p->family == QWEN4) {
        kv_u32(h, ".hyper_connection.count", N_STREAMS);
        kv_u32(h, ".hyper_connection.low_rank", LOW_RANK);
        put_ngram_keys(h, p);
    }
    if (p->family == GEMMA4)
        put_gemma_keys(h, p);
    if (p->family == GLM5) {
        put_sigmoid_routing(h, 2.5f);
        kv_u32(h, ".hyper_connection.count", 4);
        kv_u32(h, ".hyper_connection.sinkhorn_iterations", 20);
        kv_f32(h, ".hyper_connection.epsilon", 1e-6f);
        kv_f32(h, ".attention.layer_norm_epsilon", 1e-6f);
        kv_f32(h, ".kda.gate_lower_bound", -5);
        kv_per_layer(h, ".swiglu_clamp_exp", p, 10);
    }
    if (p->family == QWEN3VL)
        put_sections(h, sections_vl);
    if (p->family == MISTRAL3 || p->family == MISTRAL4)
        put_mistral_keys(h, p);
    if (p->family == SMOLLM3)
        kv_u32(h, ".rope.dimension_count", p->hd);
    if (p->family == DEEPSEEK32) {
        put_yarn(h, 40, 4096);
        kv_f32(h, ".rope.scaling.yarn_log_multiplier", 0.1f);
        put_sigmoid_routing(h, 2.5f);
        kv_u32(h, ".expert_group_count", 8);
        kv_u32(h, ".expert_group_used_count", 4);
    }
    if (p->family == STEP35) {
        put_window_keys(h, p, 512);
        kv_u32(h, ".rope.dimension_count", p->hd);
        kv_u32(h, ".expert_shared_feed_forward_length", p->n_ff_expert);
        put_sigmoid_routing(h, 3);
    }
    if (p->family == AFMOE) {
        kv_u32(h, ".attention.sliding_window", 2048);
        put_sigmoid_routing(h, 2.826f);
    }
    if (p->family == HY3)
        put_sigmoid_routing(h, 2.826f);
    if (p->family == COHERE2) {
        kv_u32(h, ".attention.sliding_window", 4096);
        kv_by_kind(h, ".attention.sliding_window_pattern", p, 'w', 1, 0);
        kv_f32(h, ".logit_scale", 0.0625f);
        put_sigmoid_routing(h, 1);
    }
    if (p->family == MIMO2) {
        put_window_keys(h, p, 128);
        kv_u32(h, ".rope.dimension_count", 64);
        kv_f32(h, ".attention.value_scale", 0.707f);
    }
    if (p->family == MINIMAX3) {
        kv_u32(h, ".rope.dimension_count", p->hd / 2);
        put_sigmoid_routing(h, 2);
    }
}

/* Families whose layers differ, but for delta nets. */
static void put_mixed_keys(struct header *h, const struct preset *p)
{
    if (p->family == NEMOTRON || p->family == GRANITE_H) {
        struct synth_mamba s = synth_mamba_of(p);
        kv_u32(h, ".ssm.conv_kernel", MAMBA_TAPS);
        kv_u32(h, ".ssm.state_size", MAMBA_STATE);
        kv_u32(h, ".ssm.group_count", s.n_group);
        kv_u32(h, ".ssm.time_step_rank", s.n_head);
        kv_u32(h, ".ssm.inner_size", s.n_inner);
    }
    if (p->family == NEMOTRON || p->family == KIMI)
        put_sigmoid_routing(h, 2.5f);
    if (p->family == GRANITE_H) {
        kv_false(h, ".rope.scaling.finetuned");
        kv_f32(h, ".embedding_scale", 12);
        kv_f32(h, ".residual_scale", 0.22f);
        kv_f32(h, ".logit_scale", 16);
        kv_f32(h, ".attention.scale", 1.0f / (float)p->hd);
    }
    if (p->family == LFM2) {
        kv_u32(h, ".shortconv.l_cache", SHORT_TAPS);
        kv_u32(h, ".expert_gating_func", 2);
    }
    if (p->family == PHI) {
        kv_str(h, ".rope.scaling.type", "longrope");
        kv_u32(h, ".rope.scaling.original_context_length", p->n_ctx / 32);
        kv_f32(h, ".rope.scaling.attn_factor", 1.19f);
    }
    if (p->family == KIMI || p->family == GLM5) {
        kv_u32(h, ".ssm.conv_kernel", 4);
        kv_u32(h, ".kda.head_dim", 128);
    }
}

static void put_family_keys(struct header *h, const struct preset *p)
{
    if (p->family == GPTOSS) {
        kv_u32(h, ".attention.sliding_window", 128);
        put_yarn(h, 32, 4096);
    }
    if (synth_is_hybrid(p)) {
        kv_u32(h, ".rope.dimension_count", 64);
        if (p->n_expert)
            kv_u32(h, ".expert_shared_feed_forward_length", p->n_ff_expert);
        kv_u32(h, ".full_attention_interval", 4);
        kv_u32(h, ".ssm.conv_kernel", 4);
        kv_u32(h, ".ssm.state_size", 128);
        kv_u32(h, ".ssm.group_count", synth_key_heads(p));
        kv_u32(h, ".ssm.time_step_rank", synth_value_heads(p));
        kv_u32(h, ".ssm.inner_size", 128 * synth_value_heads(p));
    }
    if (synth_is_hybrid(p) && p->family != QWEN3NEXT)
        put_sections(h, (const uint32_t[]){ 11, 11, 10, 0 });
    if (synth_is_latent(p))
        put_latent_keys(h, p);
    put_index_keys(h, p);
    if (p->family == GLM_DSA) {
        kv_true(h, ".expert_weights_norm");
        kv_f32(h, ".expert_weights_scale", 2.5f);
    }
    if (p->family == DEEPSEEK2) {
        put_yarn(h, 40, 4096);
        kv_f32(h, ".rope.scaling.yarn_log_multiplier", 0.0707f);
        kv_u32(h, ".expert_gating_func", 1);
    }
    if (p->family == DEEPSEEK4) {
        const struct synth_compressed *c = synth_compressed_of(p);
        kv_u32(h, ".rope.dimension_count", c->n_rot);
        kv_f32(h, ".attention.compress_rope_freq_base", 160000);
        put_yarn(h, 16, p->n_ctx / 16);
        kv_u32(h, ".attention.q_lora_rank", c->q_latent);
        kv_u32(h, ".attention.output_group_count", c->n_group);
        kv_u32(h, ".attention.output_lora_rank", c->group_out);
        kv_u32(h, ".attention.sliding_window", c->window);
        kv_u32(h, ".attention.indexer.head_count", c->index_heads);
        kv_u32(h, ".attention.indexer.key_length", c->index_width);
        kv_u32(h, ".attention.indexer.top_k", c->n_chosen);
        if (synth_n_nextn(p))
            kv_u32(h, ".nextn_predict_layers", synth_n_nextn(p));
        kv_array(h, ".attention.compress_ratios", T_I32, (uint64_t)(p->n_layer + synth_n_nextn(p)));
        for (int il = 0; il < p->n_layer + synth_n_nextn(p); il++)
            put_u32(h, (uint32_t)synth_ratio_of(p, il));
        kv_u32(h, ".hyper_connection.count", 4);
        kv_u32(h, ".hyper_connection.sinkhorn_iterations", 20);
        kv_f32(h, ".hyper_connection.epsilon", 1e-6f);
        kv_u32(h, ".hash_layer_count", c->n_hash);
        kv_f32(h, ".swiglu_clamp_exp", p->n_embd < 4096 ? 0.5f : 10);
        kv_u32(h, ".expert_gating_func", 4);
        kv_true(h, ".expert_weights_norm");
        kv_f32(h, ".expert_weights_scale", 1.5f);
    }
    if (p->family == GLM4MOE) {
        kv_u32(h, ".rope.dimension_count", p->hd / 2);
        put_sigmoid_routing(h, 1);
    }
    if (p->family == LLAMA)
        kv_u32(h, ".rope.dimension_count", p->hd);
}

/* Heads of keys and values: one number, or one for each layer. */
static void put_kv_heads(struct header *h, const struct preset *p)
{
    bool latent = synth_is_latent(p);
    struct synth_latent s = synth_latent_of(p);
    if (synth_has_states(p)) {
        kv_by_kind(h, ".attention.head_count_kv", p, 'a', p->n_kv, 0);
    } else if (p->family == GEMMA4 || p->family == MIMO2) {
        kv_array(h, ".attention.head_count_kv", T_I32, (uint64_t)p->n_layer);
        for (int il = 0; il < p->n_layer; il++)
            put_u32(h, (uint32_t)synth_heads_of(p, il).n_kv);
    } else {
        kv_u32(h, ".attention.head_count_kv", p->n_kv);
    }
    kv_u32(h, ".attention.key_length", latent ? s.n_latent + s.n_rope : p->hd);    /* of the cached key */
    kv_u32(h, ".attention.value_length", latent ? s.n_latent : p->family == MIMO2 ? synth_heads_of(p, 0).hd_v : p->hd);
}

static void put_heads(struct header *h, const struct preset *p)
{
    if (p->family == STEP35)
        kv_by_kind(h, ".attention.head_count", p, 'w', synth_heads_of(p, 1).n_head, p->n_head);
    else
        kv_u32(h, ".attention.head_count", p->n_head);
    put_kv_heads(h, p);
}

static void put_widths(struct header *h, const struct preset *p)
{
    struct synth_gemma g = synth_gemma_of(p);
    if (p->family == NEMOTRON) {
        kv_by_kind(h, ".feed_forward_length", p, 'e', p->n_ff, 0);
    } else if (p->family == GEMMA4 && g.n_ff_shared != p->n_ff) {
        kv_array(h, ".feed_forward_length", T_I32, (uint64_t)p->n_layer);
        for (int il = 0; il < p->n_layer; il++)
            put_u32(h, (uint32_t)(il < p->n_layer - g.n_shared ? p->n_ff : g.n_ff_shared));
    } else if (p->n_ff) {
        kv_u32(h, ".feed_forward_length", p->n_ff);
    }
}

static void put_keys(struct header *h, const struct preset *p)
{
    char name[128];
    snprintf(name, sizeof name, "synthetic %s", p->name);
    kv_str(h, "general.architecture", h->arch);
    kv_str(h, "general.name", name);
    kv_str(h, "general.description", "random weights in the shape of a real model, made by pfmoe-synth");
    kv_u32(h, "general.quantization_version", 2);
    kv_u32(h, ".vocab_size", p->n_vocab);
    kv_u32(h, ".context_length", p->n_ctx);
    kv_u32(h, ".embedding_length", p->n_embd);
    kv_u32(h, ".block_count", p->n_layer + synth_n_nextn(p));
    put_widths(h, p);
    put_heads(h, p);
    kv_f32(h, p->family == COHERE2 ? ".attention.layer_norm_epsilon" : ".attention.layer_norm_rms_epsilon", p->eps);
    kv_f32(h, ".rope.freq_base", p->rope_base);
    if (p->n_expert) {
        kv_u32(h, ".expert_count", p->n_expert);
        kv_u32(h, ".expert_used_count", p->n_used);
        if (p->n_ff_expert)
            kv_u32(h, ".expert_feed_forward_length", p->n_ff_expert);
    }
    if (p->n_dense)
        kv_u32(h, ".leading_dense_block_count", p->n_dense);
    if (p->n_expert && p->n_shared)
        kv_u32(h, ".expert_shared_count", p->n_shared);
    put_family_keys(h, p);
    put_mixed_keys(h, p);
    put_newer_keys(h, p);
    put_tokenizer(h, p->n_vocab);
}

void synth_build_header(struct header *h, const struct model *m)
{
    struct header keys = { .arch = synth_arch_of(&m->p) };
    put_keys(&keys, &m->p);
    put(h, "GGUF", 4);
    put_u32(h, 3);
    put_u64(h, m->n_tensors);
    put_u64(h, keys.n_kv);
    put(h, keys.p, keys.n);
    free(keys.p);
    for (size_t i = 0; i < m->n_tensors; i++) {
        const struct tensor *t = &m->tensors[i];
        put_str(h, t->name);
        put_u32(h, (uint32_t)t->n_dims);
        for (int d = 0; d < t->n_dims; d++)
            put_u64(h, t->ne[d]);
        put_u32(h, t->type->id);
        put_u64(h, t->offset);
    }
    while (h->n % SYNTH_ALIGN)
        put(h, "", 1);
}

