/* The tensors of each family of pfmoe-synth. See synth_shapes.h. */
#include "synth_shapes.h"

#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "program/io/buf.h"

/* A row that is no whole number of blocks takes a type of 32 instead, as llama.cpp's quantiser does. */
static const struct synth_type *fitting(const struct synth_type *t, uint64_t n)
{
    if (n % t->block_len == 0)
        return t;
    const char *fallback = t->id >= 14 ? "Q8_0" : "Q4_0";
    return n % 32 == 0 ? synth_type_find(fallback) : synth_type_find("F16");
}

static struct tensor *add(struct model *m, const struct synth_type *type, uint64_t n0, uint64_t n1, uint64_t n2,
                          const char *fmt, va_list args)
{
    if (m->n_tensors == m->cap) {
        m->cap = m->cap ? 2 * m->cap : 256;
        m->tensors = xrealloc(m->tensors, m->cap, sizeof *m->tensors);
    }
    if (m->n_mix > 0 && type != m->f32 && type != m->i32)
        type = m->mix[m->n_mixed++ % m->n_mix];
    struct tensor *t = &m->tensors[m->n_tensors++];
    *t = (struct tensor){ .type = fitting(type, n0), .ne = { n0, n1, n2 }, .n_dims = n2 > 1 ? 3 : n1 > 1 ? 2 : 1 };
    vsnprintf(t->name, sizeof t->name, fmt, args);
    t->rms = (float)(1 / sqrt((double)n0));
    t->n_bytes = n0 / t->type->block_len * t->type->block_bytes * n1 * n2;
    return t;
}

static void matrix(struct model *m, const struct synth_type *type, int n_in, int n_out, int n_stack, const char *fmt,
                   ...)
{
    va_list args;
    va_start(args, fmt);
    add(m, type, (uint64_t)n_in, (uint64_t)n_out, (uint64_t)n_stack, fmt, args);
    va_end(args);
}

static void vector(struct model *m, int n, int n_stack, float mean, float rms, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    struct tensor *t = add(m, m->f32, (uint64_t)n, (uint64_t)n_stack, 1, fmt, args);
    t->mean = mean;
    t->rms = rms;
    va_end(args);
}

/* An indexer of attention with keys of its own, whose heads are made of the same input. */
static void plain_indexer(struct model *m, int il)
{
    struct synth_index s = synth_index_of(&m->p);
    matrix(m, m->type, m->p.n_embd, s.n_head * s.width, 1, "blk.%d.indexer.q_proj.weight", il);
    matrix(m, m->type, m->p.n_embd, s.width, 1, "blk.%d.indexer.k_proj.weight", il);
    vector(m, s.width, 1, 1, 0.1f, "blk.%d.indexer.q_norm.weight", il);
    vector(m, s.width, 1, 1, 0.1f, "blk.%d.indexer.k_norm.weight", il);
}

static void head_norms(struct model *m, int il, int hd, bool has_keys)
{
    vector(m, hd, 1, 1, 0.1f, "blk.%d.attn_q_norm.weight", il);
    if (has_keys)
        vector(m, hd, 1, 1, 0.1f, "blk.%d.attn_k_norm.weight", il);
}

/* Gemma's last layers use keys and values of earlier ones; without an attn_v values are made of the projected keys. */
static void attention(struct model *m, int il)
{
    const struct preset *p = &m->p;
    bool gated = synth_is_hybrid(p), bias = p->family == GPTOSS || p->family == GLM4MOE || p->family == PHI;
    bool near = synth_kind_of(p, il) == 'w', gemma = p->family == GEMMA4;
    bool has_keys = !gemma || il < p->n_layer - synth_gemma_of(p).n_shared;
    struct synth_heads h = synth_heads_of(p, il);
    int q = h.n_head * h.hd_k, k = h.n_kv * h.hd_k, v = h.n_kv * h.hd_v;
    matrix(m, m->type, p->n_embd, gated ? 2 * q : q, 1, "blk.%d.attn_q.weight", il);
    if (has_keys)
        matrix(m, m->type, p->n_embd, k, 1, "blk.%d.attn_k.weight", il);
    if (has_keys && (!gemma || near || synth_gemma_of(p).width))
        matrix(m, m->type, p->n_embd, v, 1, "blk.%d.attn_v.weight", il);
    matrix(m, m->type, h.n_head * h.hd_v, p->n_embd, 1, "blk.%d.attn_output.weight", il);
    if (bias) {
        vector(m, q, 1, 0, 0.1f, "blk.%d.attn_q.bias", il);
        vector(m, k, 1, 0, 0.1f, "blk.%d.attn_k.bias", il);
        vector(m, v, 1, 0, 0.1f, "blk.%d.attn_v.bias", il);
    }
    if (p->family == GPTOSS || p->family == PHI)
        vector(m, p->n_embd, 1, 0, 0.1f, "blk.%d.attn_output.bias", il);
    if (p->family == GPTOSS || (p->family == MIMO2 && near))
        vector(m, p->n_head, 1, 0, 0.5f, "blk.%d.attn_sinks.weight", il);
    if (p->family == QWEN3MOE || p->family == QWEN3VL || p->family == LFM2 || p->family == STEP35 ||
        p->family == MINIMAX3 || p->family == AFMOE || p->family == HY3 || gemma || gated)
        head_norms(m, il, h.hd_k, has_keys);
    if (p->family == STEP35 || p->family == AFMOE)
        matrix(m, m->type, p->n_embd, p->family == AFMOE ? q : h.n_head, 1, "blk.%d.attn_gate.weight", il);
    if (synth_has_indexer(p, il))
        plain_indexer(m, il);
}

static void indexer(struct model *m, int il)
{
    enum { POOL = 4 };
    struct synth_index s = synth_index_of(&m->p);
    matrix(m, m->type, synth_latent_of(&m->p).q_latent, s.n_head * s.width, 1, "blk.%d.indexer.attn_q_b.weight", il);
    matrix(m, m->type, m->p.n_embd, s.width, 1, "blk.%d.indexer.attn_k.weight", il);
    matrix(m, m->f32, m->p.n_embd, s.n_head, 1, "blk.%d.indexer.proj.weight", il);
    vector(m, s.width, 1, 1, 0.1f, "blk.%d.indexer.k_norm.weight", il);
    vector(m, s.width, 1, 0, 0.1f, "blk.%d.indexer.k_norm.bias", il);
    if (m->p.family != GLM5)
        return;
    matrix(m, m->type, m->p.n_embd, s.width, 1, "blk.%d.indexer_compressor_gate.weight", il);
    vector(m, s.width, POOL, 0, 0.5f, "blk.%d.indexer_compressor_ape.weight", il);
}

/* The rows of attn_k_b are too short for K-quants; published files keep it in Q8_0. */
static void latent_attention(struct model *m, int il)
{
    struct synth_latent s = synth_latent_of(&m->p);
    int n_head = m->p.n_head, n_embd = m->p.n_embd, n_q = n_head * (s.n_nope + s.n_rope);
    if (s.q_latent) {
        matrix(m, m->type, n_embd, s.q_latent, 1, "blk.%d.attn_q_a.weight", il);
        vector(m, s.q_latent, 1, 1, 0.1f, "blk.%d.attn_q_a_norm.weight", il);
        matrix(m, m->type, s.q_latent, n_q, 1, "blk.%d.attn_q_b.weight", il);
    } else {
        matrix(m, m->type, n_embd, n_q, 1, "blk.%d.attn_q.weight", il);
    }
    if (synth_has_indexer(&m->p, il))
        indexer(m, il);
    matrix(m, m->type, n_embd, s.n_latent + s.n_rope, 1, "blk.%d.attn_kv_a_mqa.weight", il);
    vector(m, s.n_latent, 1, 1, 0.1f, "blk.%d.attn_kv_a_norm.weight", il);
    matrix(m, synth_type_find("Q8_0"), s.n_nope, s.n_latent, n_head, "blk.%d.attn_k_b.weight", il);
    matrix(m, m->type, s.n_latent, s.n_v, n_head, "blk.%d.attn_v_b.weight", il);
    matrix(m, m->type, n_head * s.n_v, n_embd, 1, "blk.%d.attn_output.weight", il);
}

static void compressor(struct model *m, int il, const char *prefix, int width, int ratio)
{
    int n = ratio == 4 ? 2 * width : width;
    matrix(m, m->type, m->p.n_embd, n, 1, "blk.%d.%s_kv.weight", il, prefix);
    matrix(m, m->type, m->p.n_embd, n, 1, "blk.%d.%s_gate.weight", il, prefix);
    vector(m, n, ratio, 0, 0.5f, "blk.%d.%s_ape.weight", il, prefix);
    vector(m, width, 1, 1, 0.1f, "blk.%d.%s_norm.weight", il, prefix);
}

static void compressed_attention(struct model *m, int il)
{
    const struct preset *p = &m->p;
    const struct synth_compressed *c = synth_compressed_of(p);
    int n_q = p->n_head * p->hd, n_out = c->n_group * c->group_out, ratio = synth_ratio_of(p, il);
    matrix(m, m->type, p->n_embd, c->q_latent, 1, "blk.%d.attn_q_a.weight", il);
    vector(m, c->q_latent, 1, 1, 0.1f, "blk.%d.attn_q_a_norm.weight", il);
    matrix(m, m->type, c->q_latent, n_q, 1, "blk.%d.attn_q_b.weight", il);
    matrix(m, m->type, p->n_embd, p->hd, 1, "blk.%d.attn_kv.weight", il);
    vector(m, p->hd, 1, 1, 0.1f, "blk.%d.attn_kv_a_norm.weight", il);
    vector(m, p->n_head, 1, 0, 0.5f, "blk.%d.attn_sinks.weight", il);
    matrix(m, m->type, n_q / c->n_group, n_out, 1, "blk.%d.attn_output_a.weight", il);
    matrix(m, m->type, n_out, p->n_embd, 1, "blk.%d.attn_output_b.weight", il);
    if (ratio)
        compressor(m, il, "attn_compressor", p->hd, ratio);
    if (ratio == 4) {
        matrix(m, m->type, c->q_latent, c->index_heads * c->index_width, 1, "blk.%d.indexer.attn_q_b.weight", il);
        matrix(m, m->f32, p->n_embd, c->index_heads, 1, "blk.%d.indexer.proj.weight", il);
        compressor(m, il, "indexer_compressor", c->index_width, ratio);
    }
}

/* How a block, or the output, mixes the four residual streams. */
static void mix(struct model *m, const char *prefix, int n_weights, int n_parts)
{
    matrix(m, m->f32, 4 * m->p.n_embd, n_weights, 1, "%s_fn.weight", prefix);
    vector(m, n_weights, 1, 0, 0.5f, "%s_base.weight", prefix);
    vector(m, n_parts, 1, 1, 0.1f, "%s_scale.weight", prefix);
}

static void layer_mixes(struct model *m, int il)
{
    char prefix[32];
    snprintf(prefix, sizeof prefix, "blk.%d.hc_attn", il);
    mix(m, prefix, 24, 3);
    snprintf(prefix, sizeof prefix, "blk.%d.hc_ffn", il);
    mix(m, prefix, 24, 3);
}

/* Gated residual streams: what a block, or the output, reads of them; a block also puts something back. */
static void gated_streams(struct model *m, const char *prefix, bool writes)
{
    int n = N_STREAMS * m->p.n_embd;
    vector(m, n, 1, 1, 0.1f, "%s_norm.weight", prefix);
    matrix(m, m->type, n, LOW_RANK, 1, "%s_down.weight", prefix);
    matrix(m, m->type, LOW_RANK, n, 1, "%s_up.weight", prefix);
    if (writes)
        matrix(m, m->f32, n, N_STREAMS, 1, "%s_inject.weight", prefix);
}

static void layer_gates(struct model *m, int il)
{
    char prefix[32];
    snprintf(prefix, sizeof prefix, "blk.%d.hc_attn", il);
    gated_streams(m, prefix, true);
    snprintf(prefix, sizeof prefix, "blk.%d.hc_ffn", il);
    gated_streams(m, prefix, true);
}

/* What a layer adds for the last tokens; the table that it takes rows of is the model's. */
static void ngrams(struct model *m, int il)
{
    int n = N_STREAMS * m->p.n_embd;
    matrix(m, m->type, m->p.n_embd, n, 1, "blk.%d.ple_key.weight", il);
    matrix(m, m->type, m->p.n_embd, m->p.n_embd, 1, "blk.%d.ple_value.weight", il);
    vector(m, n, 1, 1, 0.1f, "blk.%d.ple_norm_key.weight", il);
    vector(m, n, 1, 1, 0.1f, "blk.%d.ple_norm_query.weight", il);
    vector(m, n, 1, 1, 0.1f, "blk.%d.ple_norm_conv.weight", il);
    matrix(m, m->f32, NGRAM_TAPS, n, 1, "blk.%d.ple_conv1d.weight", il);
}

/* Gated DeltaNet of Qwen's models: heads of 128, two or three of values for one of keys; a convolution of 4. */
static void linear_attention(struct model *m, int il)
{
    enum { D = 128, CONV = 4 };
    int n_v = synth_value_heads(&m->p), n_conv = 2 * D * synth_key_heads(&m->p) + D * n_v;
    matrix(m, m->type, m->p.n_embd, n_conv, 1, "blk.%d.attn_qkv.weight", il);
    matrix(m, m->type, m->p.n_embd, D * n_v, 1, "blk.%d.attn_gate.weight", il);
    if (m->p.family == QWEN3NEXT) {
        matrix(m, m->type, m->p.n_embd, 2 * n_v, 1, "blk.%d.ssm_ba.weight", il);
    } else {
        matrix(m, m->type, m->p.n_embd, n_v, 1, "blk.%d.ssm_beta.weight", il);
        matrix(m, m->type, m->p.n_embd, n_v, 1, "blk.%d.ssm_alpha.weight", il);
    }
    matrix(m, m->f32, CONV, n_conv, 1, "blk.%d.ssm_conv1d.weight", il);
    vector(m, n_v, 1, 0, 1, "blk.%d.ssm_dt.bias", il);
    vector(m, n_v, 1, -1, 0.5f, "blk.%d.ssm_a", il);
    vector(m, D, 1, 1, 0.1f, "blk.%d.ssm_norm.weight", il);
    matrix(m, m->type, D * n_v, m->p.n_embd, 1, "blk.%d.ssm_out.weight", il);
}

static void mamba(struct model *m, int il)
{
    struct synth_mamba s = synth_mamba_of(&m->p);
    int n_conv = s.n_inner + 2 * s.n_group * MAMBA_STATE;
    matrix(m, m->type, m->p.n_embd, s.n_inner + n_conv + s.n_head, 1, "blk.%d.ssm_in.weight", il);
    matrix(m, m->f32, MAMBA_TAPS, n_conv, 1, "blk.%d.ssm_conv1d.weight", il);
    vector(m, n_conv, 1, 0, 0.1f, "blk.%d.ssm_conv1d.bias", il);
    vector(m, s.n_head, 1, -2, 1, "blk.%d.ssm_dt.bias", il);
    vector(m, 1, s.n_head, -1, 0.5f, "blk.%d.ssm_a", il);
    vector(m, 1, s.n_head, 1, 0.1f, "blk.%d.ssm_d", il);
    vector(m, s.n_inner / s.n_group, s.n_group, 1, 0.1f, "blk.%d.ssm_norm.weight", il);
    matrix(m, m->type, s.n_inner, m->p.n_embd, 1, "blk.%d.ssm_out.weight", il);
}

static void short_convolution(struct model *m, int il)
{
    int n = m->p.n_embd;
    matrix(m, m->type, n, 3 * n, 1, "blk.%d.shortconv.in_proj.weight", il);
    matrix(m, m->f32, SHORT_TAPS, n, 1, "blk.%d.shortconv.conv.weight", il);
    matrix(m, m->type, n, n, 1, "blk.%d.shortconv.out_proj.weight", il);
}

/* Heads of 128, as many of keys and values as of queries. */
static void kimi_delta_net(struct model *m, int il)
{
    static const char *const parts[] = { "q", "k", "v" };
    enum { D = 128, CONV = 4 };
    int n_embd = m->p.n_embd, n_head = m->p.n_head, n = n_head * D;
    for (int i = 0; i < 3; i++) {
        matrix(m, m->type, n_embd, n, 1, "blk.%d.attn_%s.weight", il, parts[i]);
        matrix(m, m->f32, CONV, n, 1, "blk.%d.ssm_conv1d_%s.weight", il, parts[i]);
    }
    matrix(m, m->type, n_embd, D, 1, "blk.%d.ssm_f_a.weight", il);
    matrix(m, m->type, D, n, 1, "blk.%d.ssm_f_b.weight", il);
    matrix(m, m->type, n_embd, D, 1, "blk.%d.ssm_g_a.weight", il);
    matrix(m, m->type, D, n, 1, "blk.%d.ssm_g_b.weight", il);
    matrix(m, m->type, n_embd, n_head, 1, "blk.%d.ssm_beta.weight", il);
    vector(m, n_head, 1, -1, 0.5f, "blk.%d.ssm_a", il);
    vector(m, n, 1, 0, 1, "blk.%d.ssm_dt.bias", il);
    vector(m, D, 1, 1, 0.1f, "blk.%d.ssm_norm.weight", il);
    matrix(m, m->type, n, n_embd, 1, "blk.%d.attn_output.weight", il);
}

static void dense_feed_forward(struct model *m, int il, int n_ff, const char *suffix)
{
    if (m->p.family != NEMOTRON)
        matrix(m, m->type, m->p.n_embd, n_ff, 1, "blk.%d.ffn_gate%s.weight", il, suffix);
    matrix(m, m->type, m->p.n_embd, n_ff, 1, "blk.%d.ffn_up%s.weight", il, suffix);
    matrix(m, m->down_type, n_ff, m->p.n_embd, 1, "blk.%d.ffn_down%s.weight", il, suffix);
}

static void experts(struct model *m, int il)
{
    const struct preset *p = &m->p;
    int n_ff = p->n_ff_expert ? p->n_ff_expert : p->n_ff;
    matrix(m, m->f32, p->n_embd, p->n_expert, 1, "blk.%d.ffn_gate_inp.weight", il);
    bool merged = p->family == GEMMA4 || p->family == MISTRAL4;
    if (merged)
        matrix(m, m->expert_type, p->n_embd, 2 * n_ff, p->n_expert, "blk.%d.ffn_gate_up_exps.weight", il);
    if (!merged && p->family != NEMOTRON)
        matrix(m, m->expert_type, p->n_embd, n_ff, p->n_expert, "blk.%d.ffn_gate_exps.weight", il);
    if (!merged)
        matrix(m, m->expert_type, p->n_embd, n_ff, p->n_expert, "blk.%d.ffn_up_exps.weight", il);
    matrix(m, m->down_type, n_ff, p->n_embd, p->n_expert, "blk.%d.ffn_down_exps.weight", il);
    if (p->family == GPTOSS) {
        vector(m, p->n_expert, 1, 0, 0.1f, "blk.%d.ffn_gate_inp.bias", il);
        vector(m, n_ff, p->n_expert, 0, 0.1f, "blk.%d.ffn_gate_exps.bias", il);
        vector(m, n_ff, p->n_expert, 0, 0.1f, "blk.%d.ffn_up_exps.bias", il);
        vector(m, p->n_embd, p->n_expert, 0, 0.1f, "blk.%d.ffn_down_exps.bias", il);
    }
    bool by_token = p->family == DEEPSEEK4 && il < synth_compressed_of(p)->n_hash;
    if (by_token) {
        matrix(m, m->i32, p->n_used, p->n_vocab, 1, "blk.%d.ffn_gate_tid2eid.weight", il);
        m->tensors[m->n_tensors - 1].n_ids = p->n_expert;
    }
    bool biased = p->family == GLM4MOE || p->family == GLM_DSA || p->family == NEMOTRON || p->family == LFM2 ||
                  p->family == KIMI || p->family == GLM5 || p->family == DEEPSEEK32 || p->family == STEP35 ||
                  p->family == MIMO2 || p->family == MINIMAX3 || p->family == AFMOE || p->family == HY3;
    if (biased || (p->family == DEEPSEEK4 && !by_token))
        vector(m, p->n_expert, 1, 0, 0.1f, "blk.%d.exp_probs_b.bias", il);
    if (synth_is_hybrid(p))
        vector(m, p->n_embd, 1, 0, 0.02f, "blk.%d.ffn_gate_inp_shexp.weight", il);
    if (p->n_shared)
        dense_feed_forward(m, il, p->n_shared * n_ff, "_shexp");
}

/* Gemma's: norms behind each block, experts beside the dense feed-forward, in the E models something of the token. */
static void gemma_feed_forward(struct model *m, int il)
{
    const struct preset *p = &m->p;
    struct synth_gemma g = synth_gemma_of(p);
    vector(m, p->n_embd, 1, 1, 0.1f, "blk.%d.post_attention_norm.weight", il);
    dense_feed_forward(m, il, il < p->n_layer - g.n_shared ? p->n_ff : g.n_ff_shared, "");
    vector(m, p->n_embd, 1, 1, 0.1f, "blk.%d.post_ffw_norm.weight", il);
    if (p->n_expert) {
        vector(m, p->n_embd, 1, 1, 0.1f, "blk.%d.ffn_gate_inp.scale", il);
        vector(m, p->n_embd, 1, 1, 0.1f, "blk.%d.pre_ffw_norm_2.weight", il);
        vector(m, p->n_embd, 1, 1, 0.1f, "blk.%d.post_ffw_norm_1.weight", il);
        vector(m, p->n_embd, 1, 1, 0.1f, "blk.%d.post_ffw_norm_2.weight", il);
        experts(m, il);
        vector(m, p->n_expert, 1, 1, 0.1f, "blk.%d.ffn_down_exps.scale", il);
    }
    if (g.width) {
        matrix(m, m->type, p->n_embd, g.width, 1, "blk.%d.inp_gate.weight", il);
        matrix(m, m->type, g.width, p->n_embd, 1, "blk.%d.proj.weight", il);
        vector(m, p->n_embd, 1, 1, 0.1f, "blk.%d.post_norm.weight", il);
    }
    vector(m, 1, 1, 1, 0.1f, "blk.%d.layer_output_scale.weight", il);
}

static void mixer(struct model *m, int il)
{
    switch (synth_kind_of(&m->p, il)) {
    case 'd': linear_attention(m, il); break;
    case 'm': mamba(m, il); break;
    case 'c': short_convolution(m, il); break;
    case 'k': kimi_delta_net(m, il); break;
    case 'e': break;
    default:
        if (synth_is_latent(&m->p))
            latent_attention(m, il);
        else if (m->p.family == DEEPSEEK4)
            compressed_attention(m, il);
        else
            attention(m, il);
    }
}

static void feed_forward(struct model *m, int il)
{
    const struct preset *p = &m->p;
    bool is_post = p->family == GPTOSS || p->family == GLM4MOE || synth_is_hybrid(p);
    if (p->family != NEMOTRON && p->family != QWEN4 && p->family != COHERE2)
        vector(m, p->n_embd, 1, 1, 0.1f, "blk.%d.%s.weight", il, is_post ? "post_attention_norm" : "ffn_norm");
    if (p->family == PHI)
        vector(m, p->n_embd, 1, 0, 0.1f, "blk.%d.ffn_norm.bias", il);
    if (p->family == NEMOTRON && synth_kind_of(p, il) != 'e')
        return;
    if (p->family == AFMOE) {
        vector(m, p->n_embd, 1, 1, 0.1f, "blk.%d.post_attention_norm.weight", il);
        vector(m, p->n_embd, 1, 1, 0.1f, "blk.%d.post_ffw_norm.weight", il);
    }
    if (p->family == GEMMA4)
        gemma_feed_forward(m, il);
    else if (il < p->n_dense || !p->n_expert)
        dense_feed_forward(m, il, p->n_ff, "");
    else
        experts(m, il);
}

static void layer(struct model *m, int il)
{
    const struct preset *p = &m->p;
    if (p->family != QWEN4)
        vector(m, p->n_embd, 1, 1, 0.1f, "blk.%d.attn_norm.weight", il);
    if (p->family == PHI)
        vector(m, p->n_embd, 1, 0, 0.1f, "blk.%d.attn_norm.bias", il);
    if (p->family == DEEPSEEK4 || p->family == GLM5)
        layer_mixes(m, il);
    if (p->family == QWEN4)
        layer_gates(m, il);
    if (p->family == QWEN4 && il == NGRAM_LAYER)
        ngrams(m, il);
    mixer(m, il);
    feed_forward(m, il);
}

/* What the layer that guesses ahead has besides. */
static void guessing(struct model *m, int il)
{
    int n = m->p.n_embd;
    char prefix[32];
    matrix(m, m->type, 2 * n, n, 1, "blk.%d.nextn.eh_proj.weight", il);
    vector(m, n, 1, 1, 0.1f, "blk.%d.nextn.enorm.weight", il);
    vector(m, n, 1, 1, 0.1f, "blk.%d.nextn.hnorm.weight", il);
    vector(m, n, 1, 1, 0.1f, "blk.%d.nextn.shared_head_norm.weight", il);
    snprintf(prefix, sizeof prefix, "blk.%d.nextn.hc_head", il);
    mix(m, prefix, 4, 1);
}

/* Tables of rows for each token, or for the last few, and what they pass through. */
static void token_tables(struct model *m)
{
    const struct preset *p = &m->p;
    uint64_t sizes[NGRAM_HEADS];
    int width = p->family == GEMMA4 ? synth_gemma_of(p).width : 0;
    if (p->family == QWEN4 && p->n_layer > NGRAM_LAYER)
        matrix(m, m->type, p->n_embd / NGRAM_HEADS, (int)synth_ngram_sizes(sizes), 1, "per_layer_token_embd.weight");
    if (width == 0)
        return;
    matrix(m, m->type, width * p->n_layer, p->n_vocab, 1, "per_layer_token_embd.weight");
    matrix(m, m->type, p->n_embd, width * p->n_layer, 1, "per_layer_model_proj.weight");
    vector(m, width, 1, 1, 0.1f, "per_layer_proj_norm.weight");
}

/* The last norm, or what stands in its place, and the output. */
static void head(struct model *m)
{
    const struct preset *p = &m->p;
    if (p->family == DEEPSEEK4)
        mix(m, "output_hc", 4, 1);
    if (p->family == QWEN4)
        gated_streams(m, "output_hc", false);
    else
        vector(m, p->n_embd, 1, 1, 0.1f, p->family == LFM2 ? "token_embd_norm.weight" : "output_norm.weight");
    if (p->family == GEMMA4)
        vector(m, p->hd / 2, 1, 1, 0, "rope_freqs.weight");
    if (p->family == PHI) {
        vector(m, p->n_embd, 1, 0, 0.1f, "output_norm.bias");
        vector(m, p->n_vocab, 1, 0, 0.1f, "output.bias");
        vector(m, p->hd / 2, 1, 1, 0.1f, "rope_factors_short.weight");
        vector(m, p->hd / 2, 1, 8, 2, "rope_factors_long.weight");
    }
    if (!synth_is_tied(p))
        matrix(m, m->output_type, p->n_embd, p->n_vocab, 1, "output.weight");
}

void synth_list_tensors(struct model *m)
{
    uint64_t at = 0;
    matrix(m, m->type, m->p.n_embd, m->p.n_vocab, 1, "token_embd.weight");
    m->tensors[0].rms = 1;
    token_tables(m);
    for (int il = 0; il < m->p.n_layer + synth_n_nextn(&m->p); il++) {
        layer(m, il);
        if (il >= m->p.n_layer)
            guessing(m, il);
    }
    head(m);
    for (size_t i = 0; i < m->n_tensors; i++) {
        m->tensors[i].offset = at;
        at += (m->tensors[i].n_bytes + SYNTH_ALIGN - 1) / SYNTH_ALIGN * SYNTH_ALIGN;
    }
}
