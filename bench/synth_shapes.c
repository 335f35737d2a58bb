/* The presets of pfmoe-synth and their tensors, family by family. See synth_shapes.h. */
#include "synth_shapes.h"

#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "program/io/buf.h"

const struct preset synth_presets[] = {
    { "gpt-oss-20b",   GPTOSS,    24, 2880, 64, 8, 64,  2880, 32,  4,  2880, 201088, 131072, 150000, 1e-5f, "Q8_0", 0, "MXFP4", 0, "GPT-OSS-20B", 0, 0 },
    { "gpt-oss-120b",  GPTOSS,    36, 2880, 64, 8, 64,  2880, 128, 4,  2880, 201088, 131072, 150000, 1e-5f, "Q8_0", 0, "MXFP4", 0, "GPT-OSS-120B", 0, 0 },
    { "qwen3-30b-a3b", QWEN3MOE,  48, 2048, 32, 4, 128, 6144, 128, 8,  768,  151936, 40960,  1e6f,   1e-6f, "Q4_K", "Q6_K", 0, "Q6_K", "Qwen3-30B-A3B", 0, 0 },
    { "qwen3-next-80b", QWEN3NEXT, 48, 2048, 16, 2, 256, 5120, 512, 10, 512, 151936, 262144, 1e7f,   1e-6f, "Q4_K", "Q6_K", 0, "Q6_K", "Qwen3-Next-80B-A3B", 0, 1 },
    { "qwen3.6-35b-a3b", QWEN35MOE, 40, 2048, 16, 2, 256, 0, 256, 8, 512,    248320, 262144, 1e7f,   1e-6f, "Q4_K", "Q6_K", 0, "Q6_K", "Qwen3.6-35B-A3B", 0, 1 },
    { "deepseek-v2-lite", DEEPSEEK2, 27, 2048, 16, 1, 192, 10944, 64, 6, 1408, 102400, 163840, 1e4f, 1e-6f, "Q4_K", "Q6_K", 0, "Q6_K", "DeepSeek-V2-Lite", 1, 2 },
    { "deepseek-v4-flash", DEEPSEEK4, 43, 4096, 64, 1, 512, 0, 256, 6, 2048, 129280, 1048576, 1e4f, 1e-6f, "Q8_0", 0, "MXFP4", 0, "DeepSeek-V4-Flash, without the layer that guesses ahead", 0, 1 },
    { "glm-4.5-air",   GLM4MOE,   46, 4096, 96, 8, 128, 10944, 128, 8, 1408, 151552, 131072, 1e6f,   1e-5f, "Q4_K", "Q6_K", 0, "Q6_K", "GLM-4.5-Air, without the block that guesses ahead", 1, 1 },
    { "nemotron-3-nano", NEMOTRON, 52, 2688, 32, 2, 128, 1856, 128, 6, 1856, 131072, 262144, 1e4f,   1e-5f, "Q4_K", "Q6_K", 0, "Q6_K", "Nemotron-3-Nano-30B-A3B", 0, 2 },
    { "lfm2-8b-a1b",   LFM2,      24, 2048, 32, 8, 64,  7168, 32,  4,  1792, 65536,  128000, 1e6f,   1e-5f, "Q4_K", "Q6_K", 0, "Q6_K", "LFM2-8B-A1B", 2, 0 },
    { "granite-4.0-h-small", GRANITE_H, 40, 4096, 32, 8, 128, 768, 72, 10, 0, 100352, 131072, 1e4f,  1e-5f, "Q4_K", "Q6_K", 0, "Q6_K", "Granite-4.0-H-Small", 0, 2 },
    { "phi-3.5-moe",   PHI,       32, 4096, 32, 8, 128, 6400, 16,  2,  0,    32064,  131072, 1e4f,   1e-5f, "Q4_K", "Q6_K", 0, "Q6_K", "Phi-3.5-MoE", 0, 0 },
    { "kimi-linear-48b-a3b", KIMI, 27, 2304, 32, 1, 192, 9216, 256, 8, 1024, 163840, 1048576, 1e4f,  1e-5f, "Q4_K", "Q6_K", 0, "Q6_K", "Kimi-Linear-48B-A3B", 1, 1 },
    { "mixtral-8x7b",  LLAMA,     32, 4096, 32, 8, 128, 14336, 8,  2,  0,    32000,  32768,  1e6f,   1e-5f, "Q4_K", "Q6_K", 0, "Q6_K", "Mixtral-8x7B", 0, 0 },
    { "llama-8b",      LLAMA,     32, 4096, 32, 8, 128, 14336, 0,  0,  0,    128256, 131072, 5e5f,   1e-5f, "Q4_K", "Q6_K", 0, "Q6_K", "Llama-3.1-8B", 0, 0 },
    { "llama-70b",     LLAMA,     80, 8192, 64, 8, 128, 28672, 0,  0,  0,    128256, 131072, 5e5f,   1e-5f, "Q4_K", "Q6_K", 0, "Q6_K", "Llama-3.x-70B", 0, 0 },
    { "moe-2g",        QWEN3MOE,  12, 2048, 32, 4, 128, 6144, 64,  8,  768,  32000,  32768,  1e6f,   1e-6f, "Q4_K", "Q6_K", 0, "Q6_K", "12 layers of 64 experts, 2.4 GiB: for benchmarks on small machines", 0, 0 },
    { "moe-tiny",      QWEN3MOE,  2,  256,  8,  2, 32,  512,  16,  4,  256,  512,    2048,   1e4f,   1e-6f, "Q8_0", 0, 0, 0, "a few MB: for tests", 0, 0 },
    { "gpt-oss-tiny",  GPTOSS,    4,  288,  8,  2, 32,  288,  8,   4,  288,  512,    2048,   150000, 1e-5f, "Q8_0", 0, "MXFP4", 0, "a few MB: for tests", 0, 0 },
    { "qwen3-next-tiny", QWEN3NEXT, 4, 256, 4, 2, 64, 512,  16,  4,  128,  512,    2048,   1e4f,   1e-6f, "Q8_0", 0, 0, 0, "15 MB: for tests", 0, 1 },
    { "qwen35moe-tiny", QWEN35MOE, 4, 256, 4, 2, 64,  0,    16,  4,  128,  512,    2048,   1e4f,   1e-6f, "Q8_0", 0, 0, 0, "15 MB: for tests", 0, 1 },
    { "deepseek2-tiny", DEEPSEEK2, 3, 256, 4, 1, 192, 512,  16,  4,  128,  512,    2048,   1e4f,   1e-6f, "Q8_0", 0, 0, 0, "a few MB: for tests", 1, 2 },
    { "glm-dsa-tiny",  GLM_DSA,   3,  256, 4,  1, 192, 512,  16,  4,  128,  512,    2048,   1e4f,   1e-5f, "Q8_0", 0, 0, 0, "a few MB: for tests", 1, 1 },
    { "deepseek4-tiny", DEEPSEEK4, 4, 256, 4,  1, 64,  0,   16,  4,  128,  512,    2048,   1e4f,   1e-6f, "Q8_0", 0, 0, 0, "a few MB: for tests", 0, 1 },
    { "glm4moe-tiny",  GLM4MOE,   3,  256, 8,  2, 32,  512,  16,  4,  128,  512,    2048,   1e4f,   1e-5f, "Q8_0", 0, 0, 0, "a few MB: for tests", 1, 1 },
    { "nemotron-tiny", NEMOTRON,  6,  256,  4,  2, 64,  128, 16,  4,  128,  512,    2048,   1e4f,   1e-5f, "Q8_0", 0, 0, 0, "a few MB: for tests", 0, 2 },
    { "lfm2-tiny",     LFM2,      4,  256,  4,  2, 64,  512,  16,  4,  128,  512,    2048,   1e4f,   1e-5f, "Q8_0", 0, 0, 0, "a few MB: for tests", 1, 0 },
    { "granite-h-tiny", GRANITE_H, 4, 256,  4,  2, 64,  128,  16,  4,  0,    512,    2048,   1e4f,   1e-5f, "Q8_0", 0, 0, 0, "a few MB: for tests", 0, 2 },
    { "phi-tiny",      PHI,       2,  256,  4,  2, 64,  128,  16,  2,  0,    512,    2048,   1e4f,   1e-5f, "Q8_0", 0, 0, 0, "a few MB: for tests", 0, 0 },
    { "kimi-linear-tiny", KIMI,   4,  256,  4,  1, 192, 512,  16,  4,  128,  512,    2048,   1e4f,   1e-5f, "Q8_0", 0, 0, 0, "a few MB: for tests", 1, 1 },
    { "llama-tiny",    LLAMA,     2,  256,  8,  2, 32,  512,  0,   0,  0,    512,    2048,   1e4f,   1e-5f, "Q4_K", 0, 0, "Q6_K", "a few MB: for tests", 0, 0 },
    { "llama-thin",    LLAMA,     6,  256,  8,  2, 32,  512,  0,   0,  0,    8192,   2048,   1e4f,   1e-5f, "Q4_K", 0, 0, "Q6_K", "a few MB in 6 layers: for tests", 0, 0 },
    { "qwen35-tiny",   QWEN35,    5,  256,  4,  2, 64,  512,  0,   0,  0,    512,    2048,   1e4f,   1e-6f, "Q8_0", 0, 0, 0, "15 MB: for tests", 0, 0 },
};

const size_t synth_n_presets = sizeof synth_presets / sizeof *synth_presets;

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

const char *synth_pattern_of(const struct preset *p)
{
    static const struct { enum family family; int n_layer; const char *pattern; } patterns[] = {
        { NEMOTRON, 52, "mememaemememaemememaemememaemememaememememaememememe" },
        { NEMOTRON, 6, "memame" },
        { LFM2, 24, "ccacccacccacccacccaccacc" },
        { LFM2, 4, "ccac" },
        { GRANITE_H, 40, "mmmmmammmmmmmmmammmmmmmmmammmmmmmmmammmm" },
        { GRANITE_H, 4, "mmam" },
        { KIMI, 27, "kkkakkkakkkakkkakkkakkkakka" },
        { KIMI, 4, "kkka" },
    };
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++)
        if (patterns[i].family == p->family && patterns[i].n_layer == p->n_layer)
            return patterns[i].pattern;
    return NULL;
}

struct synth_mamba synth_mamba_of(const struct preset *p)
{
    if (p->family == NEMOTRON)
        return p->n_embd < 2048 ? (struct synth_mamba){ 256, 4, 2 } : (struct synth_mamba){ 4096, 64, 8 };
    return (struct synth_mamba){ 2 * p->n_embd, 2 * p->n_embd / 64, 1 };
}

/* Three layers of four are delta nets, the fourth is gated attention. */
static bool is_hybrid(const struct preset *p)
{
    return p->family == QWEN3NEXT || p->family == QWEN35MOE || p->family == QWEN35;
}

static void attention(struct model *m, int il)
{
    const struct preset *p = &m->p;
    bool gated = is_hybrid(p), bias = p->family == GPTOSS || p->family == GLM4MOE || p->family == PHI;
    int q = p->n_head * p->hd, kv = p->n_kv * p->hd;
    matrix(m, m->type, p->n_embd, gated ? 2 * q : q, 1, "blk.%d.attn_q.weight", il);
    matrix(m, m->type, p->n_embd, kv, 1, "blk.%d.attn_k.weight", il);
    matrix(m, m->type, p->n_embd, kv, 1, "blk.%d.attn_v.weight", il);
    matrix(m, m->type, q, p->n_embd, 1, "blk.%d.attn_output.weight", il);
    if (bias) {
        vector(m, q, 1, 0, 0.1f, "blk.%d.attn_q.bias", il);
        vector(m, kv, 1, 0, 0.1f, "blk.%d.attn_k.bias", il);
        vector(m, kv, 1, 0, 0.1f, "blk.%d.attn_v.bias", il);
    }
    if (p->family == GPTOSS || p->family == PHI)
        vector(m, p->n_embd, 1, 0, 0.1f, "blk.%d.attn_output.bias", il);
    if (p->family == GPTOSS) {
        vector(m, p->n_head, 1, 0, 0.5f, "blk.%d.attn_sinks.weight", il);
    }
    if (p->family == QWEN3MOE || p->family == LFM2 || gated) {
        vector(m, p->hd, 1, 1, 0.1f, "blk.%d.attn_q_norm.weight", il);
        vector(m, p->hd, 1, 1, 0.1f, "blk.%d.attn_k_norm.weight", il);
    }
}

static void indexer(struct model *m, int il)
{
    matrix(m, m->type, DSA_Q_LATENT, DSA_HEADS * DSA_KEY, 1, "blk.%d.indexer.attn_q_b.weight", il);
    matrix(m, m->type, m->p.n_embd, DSA_KEY, 1, "blk.%d.indexer.attn_k.weight", il);
    matrix(m, m->f32, m->p.n_embd, DSA_HEADS, 1, "blk.%d.indexer.proj.weight", il);
    vector(m, DSA_KEY, 1, 1, 0.1f, "blk.%d.indexer.k_norm.weight", il);
    vector(m, DSA_KEY, 1, 0, 0.1f, "blk.%d.indexer.k_norm.bias", il);
}

/* The rows of attn_k_b are too short for K-quants; published files keep it in Q8_0. */
static void latent_attention(struct model *m, int il)
{
    int n_head = m->p.n_head, n_embd = m->p.n_embd;
    int n_q = n_head * (MLA_NOPE + MLA_ROPE);
    if (m->p.family == GLM_DSA) {
        matrix(m, m->type, n_embd, DSA_Q_LATENT, 1, "blk.%d.attn_q_a.weight", il);
        vector(m, DSA_Q_LATENT, 1, 1, 0.1f, "blk.%d.attn_q_a_norm.weight", il);
        matrix(m, m->type, DSA_Q_LATENT, n_q, 1, "blk.%d.attn_q_b.weight", il);
        if (il < DSA_FULL_LAYERS)
            indexer(m, il);
    } else {
        matrix(m, m->type, n_embd, n_q, 1, "blk.%d.attn_q.weight", il);
    }
    matrix(m, m->type, n_embd, MLA_LATENT + MLA_ROPE, 1, "blk.%d.attn_kv_a_mqa.weight", il);
    vector(m, MLA_LATENT, 1, 1, 0.1f, "blk.%d.attn_kv_a_norm.weight", il);
    matrix(m, synth_type_find("Q8_0"), MLA_NOPE, MLA_LATENT, n_head, "blk.%d.attn_k_b.weight", il);
    matrix(m, m->type, MLA_LATENT, MLA_V, n_head, "blk.%d.attn_v_b.weight", il);
    matrix(m, m->type, n_head * MLA_V, n_embd, 1, "blk.%d.attn_output.weight", il);
}

const struct synth_compressed *synth_compressed_of(const struct preset *p)
{
    static const struct synth_compressed flash = { 64, 1024, 8, 1024, 64, 128, 512, 128, 3, 2 };
    static const struct synth_compressed tiny = { 16, 64, 2, 32, 4, 32, 8, 40, 1, 1 };
    return p->n_embd < 4096 ? &tiny : &flash;
}

int synth_ratio_of(const struct preset *p, int il)
{
    int n_plain = synth_compressed_of(p)->n_plain;
    return il < n_plain ? 0 : (il - n_plain) % 2 ? 128 : 4;
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

/* Gated DeltaNet of Qwen3-Next and Qwen3.5: 16 key heads and 32 value heads of 128, a convolution of 4. */
static void linear_attention(struct model *m, int il)
{
    enum { D = 128, H_K = 16, H_V = 32, CONV = 4, CHANNELS = 2 * D * H_K + D * H_V };
    matrix(m, m->type, m->p.n_embd, CHANNELS, 1, "blk.%d.attn_qkv.weight", il);
    matrix(m, m->type, m->p.n_embd, D * H_V, 1, "blk.%d.attn_gate.weight", il);
    if (m->p.family == QWEN3NEXT) {
        matrix(m, m->type, m->p.n_embd, 2 * H_V, 1, "blk.%d.ssm_ba.weight", il);
    } else {
        matrix(m, m->type, m->p.n_embd, H_V, 1, "blk.%d.ssm_beta.weight", il);
        matrix(m, m->type, m->p.n_embd, H_V, 1, "blk.%d.ssm_alpha.weight", il);
    }
    matrix(m, m->f32, CONV, CHANNELS, 1, "blk.%d.ssm_conv1d.weight", il);
    vector(m, H_V, 1, 0, 1, "blk.%d.ssm_dt.bias", il);
    vector(m, H_V, 1, -1, 0.5f, "blk.%d.ssm_a", il);
    vector(m, D, 1, 1, 0.1f, "blk.%d.ssm_norm.weight", il);
    matrix(m, m->type, D * H_V, m->p.n_embd, 1, "blk.%d.ssm_out.weight", il);
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
    if (p->family != NEMOTRON)
        matrix(m, m->expert_type, p->n_embd, n_ff, p->n_expert, "blk.%d.ffn_gate_exps.weight", il);
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
                  p->family == KIMI;
    if (biased || (p->family == DEEPSEEK4 && !by_token))
        vector(m, p->n_expert, 1, 0, 0.1f, "blk.%d.exp_probs_b.bias", il);
    if (is_hybrid(p))
        vector(m, p->n_embd, 1, 0, 0.02f, "blk.%d.ffn_gate_inp_shexp.weight", il);
    if (p->n_shared)
        dense_feed_forward(m, il, p->n_shared * n_ff, "_shexp");
}

void synth_list_tensors(struct model *m)
{
    const struct preset *p = &m->p;
    bool is_post = p->family == GPTOSS || p->family == GLM4MOE || is_hybrid(p);
    const char *pattern = synth_pattern_of(p), *ffn_norm = is_post ? "post_attention_norm" : "ffn_norm";
    matrix(m, m->type, p->n_embd, p->n_vocab, 1, "token_embd.weight");
    m->tensors[0].rms = 1;
    for (int il = 0; il < p->n_layer; il++) {
        char kind = pattern ? pattern[il] : 'a';
        vector(m, p->n_embd, 1, 1, 0.1f, "blk.%d.attn_norm.weight", il);
        if (p->family == PHI)
            vector(m, p->n_embd, 1, 0, 0.1f, "blk.%d.attn_norm.bias", il);
        if (p->family == DEEPSEEK4)
            layer_mixes(m, il);
        if (is_hybrid(p) && (il + 1) % 4 != 0)
            linear_attention(m, il);
        else if (kind == 'm')
            mamba(m, il);
        else if (kind == 'c')
            short_convolution(m, il);
        else if (kind == 'k')
            kimi_delta_net(m, il);
        else if (p->family == DEEPSEEK2 || p->family == GLM_DSA || p->family == KIMI)
            latent_attention(m, il);
        else if (p->family == DEEPSEEK4)
            compressed_attention(m, il);
        else if (kind == 'a')
            attention(m, il);
        if (p->family != NEMOTRON)
            vector(m, p->n_embd, 1, 1, 0.1f, "blk.%d.%s.weight", il, ffn_norm);
        if (p->family == PHI)
            vector(m, p->n_embd, 1, 0, 0.1f, "blk.%d.ffn_norm.bias", il);
        if (p->family == NEMOTRON && kind != 'e')
            continue;
        if (il < p->n_dense || !p->n_expert)
            dense_feed_forward(m, il, p->n_ff, "");
        else
            experts(m, il);
    }
    if (p->family == DEEPSEEK4)
        mix(m, "output_hc", 4, 1);
    vector(m, p->n_embd, 1, 1, 0.1f, p->family == LFM2 ? "token_embd_norm.weight" : "output_norm.weight");
    if (p->family == PHI) {
        vector(m, p->n_embd, 1, 0, 0.1f, "output_norm.bias");
        vector(m, p->n_vocab, 1, 0, 0.1f, "output.bias");
        vector(m, p->hd / 2, 1, 1, 0.1f, "rope_factors_short.weight");
        vector(m, p->hd / 2, 1, 8, 2, "rope_factors_long.weight");
    }
    matrix(m, m->output_type, p->n_embd, p->n_vocab, 1, "output.weight");

    uint64_t at = 0;
    for (size_t i = 0; i < m->n_tensors; i++) {
        m->tensors[i].offset = at;
        at += (m->tensors[i].n_bytes + SYNTH_ALIGN - 1) / SYNTH_ALIGN * SYNTH_ALIGN;
    }
}
