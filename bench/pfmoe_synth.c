/* pfmoe-synth PRESET OUT.gguf: a model of a published model's exact shape with random valid weights, so that anyone can see
 * what a machine will do before downloading 60 GB. It talks nonsense at the real model's speed.
 *
 *     preset (sizes, types) -> list of tensors -> header: keys, tensor directory -> weights, block by block
 *
 * The tokenizer is a stand-in: one token a byte, and fillers up to the vocabulary's size. */
#define _GNU_SOURCE
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "synth_fill.h"

enum { EXIT_USAGE = 2, ALIGN = 32, BUFFER_BYTES = 16 << 20 };

enum family { LLAMA, QWEN3MOE, GPTOSS, QWEN3NEXT };

struct preset {
    const char *name;
    enum family family;
    int n_layer, n_embd, n_head, n_kv, hd, n_ff, n_expert, n_used, n_ff_expert, n_vocab, n_ctx;
    float rope_base, eps;
    const char *type, *down_type, *expert_type, *output_type;   /* NULL: as type (down_type: as expert_type) */
    const char *about;
};

static const struct preset presets[] = {
    { "gpt-oss-20b",   GPTOSS,    24, 2880, 64, 8, 64,  2880, 32,  4,  2880, 201088, 131072, 150000, 1e-5f, "Q8_0", 0, "MXFP4", 0, "GPT-OSS-20B" },
    { "gpt-oss-120b",  GPTOSS,    36, 2880, 64, 8, 64,  2880, 128, 4,  2880, 201088, 131072, 150000, 1e-5f, "Q8_0", 0, "MXFP4", 0, "GPT-OSS-120B" },
    { "qwen3-30b-a3b", QWEN3MOE,  48, 2048, 32, 4, 128, 6144, 128, 8,  768,  151936, 40960,  1e6f,   1e-6f, "Q4_K", "Q6_K", 0, "Q6_K", "Qwen3-30B-A3B" },
    { "qwen3-next-80b", QWEN3NEXT, 48, 2048, 16, 2, 256, 5120, 512, 10, 512, 151936, 262144, 1e7f,   1e-6f, "Q4_K", "Q6_K", 0, "Q6_K", "Qwen3-Next-80B-A3B" },
    { "mixtral-8x7b",  LLAMA,     32, 4096, 32, 8, 128, 14336, 8,  2,  0,    32000,  32768,  1e6f,   1e-5f, "Q4_K", "Q6_K", 0, "Q6_K", "Mixtral-8x7B" },
    { "llama-8b",      LLAMA,     32, 4096, 32, 8, 128, 14336, 0,  0,  0,    128256, 131072, 5e5f,   1e-5f, "Q4_K", "Q6_K", 0, "Q6_K", "Llama-3.1-8B" },
    { "llama-70b",     LLAMA,     80, 8192, 64, 8, 128, 28672, 0,  0,  0,    128256, 131072, 5e5f,   1e-5f, "Q4_K", "Q6_K", 0, "Q6_K", "Llama-3.x-70B" },
    { "moe-2g",        QWEN3MOE,  12, 2048, 32, 4, 128, 6144, 64,  8,  768,  32000,  32768,  1e6f,   1e-6f, "Q4_K", "Q6_K", 0, "Q6_K", "12 layers of 64 experts, 2.4 GiB: for benchmarks on small machines" },
    { "moe-tiny",      QWEN3MOE,  2,  256,  8,  2, 32,  512,  16,  4,  256,  512,    2048,   1e4f,   1e-6f, "Q8_0", 0, 0, 0, "a few MB: for tests" },
    { "gpt-oss-tiny",  GPTOSS,    4,  288,  8,  2, 32,  288,  8,   4,  288,  512,    2048,   150000, 1e-5f, "Q8_0", 0, "MXFP4", 0, "a few MB: for tests" },
    { "qwen3-next-tiny", QWEN3NEXT, 4, 256, 4, 2, 64, 512,  16,  4,  128,  512,    2048,   1e4f,   1e-6f, "Q8_0", 0, 0, 0, "15 MB: for tests" },
    { "llama-tiny",    LLAMA,     2,  256,  8,  2, 32,  512,  0,   0,  0,    512,    2048,   1e4f,   1e-5f, "Q4_K", 0, 0, "Q6_K", "a few MB: for tests" },
};

/* ---- What a model is made of ------------------------------------------------------------------------------------ */

struct tensor {
    char     name[64];
    const struct synth_type *type;
    int      n_dims;
    uint64_t ne[3];
    float    mean, rms;            /* of its values */
    uint64_t offset, n_bytes;
};

struct model {
    struct preset p;
    const struct synth_type *type, *expert_type, *down_type, *output_type, *f32;
    struct tensor *tensors;
    size_t n_tensors, cap;
};

static void die(int status, const char *fmt, ...) __attribute__((format(printf, 2, 3), noreturn));

static void die(int status, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    fputs("pfmoe-synth: ", stderr);
    vfprintf(stderr, fmt, args);
    fputc('\n', stderr);
    va_end(args);
    exit(status);
}

static void *grow(void *p, size_t bytes)
{
    void *q = realloc(p, bytes);
    if (!q)
        die(1, "out of memory");
    return q;
}

/* A row that is no whole number of blocks takes a type of 32 instead, as llama.cpp's quantiser does. */
static const struct synth_type *fitting(const struct synth_type *t, uint64_t n)
{
    if (n % t->block_len == 0)
        return t;
    const char *fallback = t->id >= 14 ? "Q8_0" : "Q4_0";
    return n % 32 == 0 ? synth_type_find(fallback) : synth_type_find("F16");
}

static struct tensor *add(struct model *m, const struct synth_type *type, uint64_t n0, uint64_t n1, uint64_t n2, const char *fmt, va_list args)
{
    if (m->n_tensors == m->cap) {
        m->cap = m->cap ? 2 * m->cap : 256;
        m->tensors = grow(m->tensors, m->cap * sizeof *m->tensors);
    }
    struct tensor *t = &m->tensors[m->n_tensors++];
    *t = (struct tensor){ .type = fitting(type, n0), .ne = { n0, n1, n2 }, .n_dims = n2 > 1 ? 3 : n1 > 1 ? 2 : 1 };
    vsnprintf(t->name, sizeof t->name, fmt, args);
    t->rms = (float)(1 / sqrt((double)n0));
    t->n_bytes = n0 / t->type->block_len * t->type->block_bytes * n1 * n2;
    return t;
}

static void matrix(struct model *m, const struct synth_type *type, int n_in, int n_out, int n_stack, const char *fmt, ...)
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

static void attention(struct model *m, int il)
{
    const struct preset *p = &m->p;
    bool gated = p->family == QWEN3NEXT, bias = p->family == GPTOSS;
    int q = p->n_head * p->hd, kv = p->n_kv * p->hd;
    matrix(m, m->type, p->n_embd, gated ? 2 * q : q, 1, "blk.%d.attn_q.weight", il);
    matrix(m, m->type, p->n_embd, kv, 1, "blk.%d.attn_k.weight", il);
    matrix(m, m->type, p->n_embd, kv, 1, "blk.%d.attn_v.weight", il);
    matrix(m, m->type, q, p->n_embd, 1, "blk.%d.attn_output.weight", il);
    if (bias) {
        vector(m, q, 1, 0, 0.1f, "blk.%d.attn_q.bias", il);
        vector(m, kv, 1, 0, 0.1f, "blk.%d.attn_k.bias", il);
        vector(m, kv, 1, 0, 0.1f, "blk.%d.attn_v.bias", il);
        vector(m, p->n_embd, 1, 0, 0.1f, "blk.%d.attn_output.bias", il);
        vector(m, p->n_head, 1, 0, 0.5f, "blk.%d.attn_sinks.weight", il);
    }
    if (p->family == QWEN3MOE || gated) {
        vector(m, p->hd, 1, 1, 0.1f, "blk.%d.attn_q_norm.weight", il);
        vector(m, p->hd, 1, 1, 0.1f, "blk.%d.attn_k_norm.weight", il);
    }
}

/* Gated DeltaNet of Qwen3-Next: 16 key heads and 32 value heads of 128, a convolution of 4. */
static void linear_attention(struct model *m, int il)
{
    enum { D = 128, H_K = 16, H_V = 32, CONV = 4, CHANNELS = 2 * D * H_K + D * H_V };
    matrix(m, m->type, m->p.n_embd, CHANNELS, 1, "blk.%d.attn_qkv.weight", il);
    matrix(m, m->type, m->p.n_embd, D * H_V, 1, "blk.%d.attn_gate.weight", il);
    matrix(m, m->type, m->p.n_embd, 2 * H_V, 1, "blk.%d.ssm_ba.weight", il);
    matrix(m, m->f32, CONV, CHANNELS, 1, "blk.%d.ssm_conv1d.weight", il);
    vector(m, H_V, 1, 0, 1, "blk.%d.ssm_dt.bias", il);
    vector(m, H_V, 1, -1, 0.5f, "blk.%d.ssm_a", il);
    vector(m, D, 1, 1, 0.1f, "blk.%d.ssm_norm.weight", il);
    matrix(m, m->type, D * H_V, m->p.n_embd, 1, "blk.%d.ssm_out.weight", il);
}

static void feed_forward(struct model *m, int il)
{
    const struct preset *p = &m->p;
    int n_ff = p->n_ff_expert ? p->n_ff_expert : p->n_ff;
    if (!p->n_expert) {
        matrix(m, m->type, p->n_embd, p->n_ff, 1, "blk.%d.ffn_gate.weight", il);
        matrix(m, m->type, p->n_embd, p->n_ff, 1, "blk.%d.ffn_up.weight", il);
        matrix(m, m->down_type, p->n_ff, p->n_embd, 1, "blk.%d.ffn_down.weight", il);
        return;
    }
    matrix(m, m->f32, p->n_embd, p->n_expert, 1, "blk.%d.ffn_gate_inp.weight", il);
    matrix(m, m->expert_type, p->n_embd, n_ff, p->n_expert, "blk.%d.ffn_gate_exps.weight", il);
    matrix(m, m->expert_type, p->n_embd, n_ff, p->n_expert, "blk.%d.ffn_up_exps.weight", il);
    matrix(m, m->down_type, n_ff, p->n_embd, p->n_expert, "blk.%d.ffn_down_exps.weight", il);
    if (p->family == GPTOSS) {
        vector(m, p->n_expert, 1, 0, 0.1f, "blk.%d.ffn_gate_inp.bias", il);
        vector(m, n_ff, p->n_expert, 0, 0.1f, "blk.%d.ffn_gate_exps.bias", il);
        vector(m, n_ff, p->n_expert, 0, 0.1f, "blk.%d.ffn_up_exps.bias", il);
        vector(m, p->n_embd, p->n_expert, 0, 0.1f, "blk.%d.ffn_down_exps.bias", il);
    }
    if (p->family == QWEN3NEXT) {
        vector(m, p->n_embd, 1, 0, 0.02f, "blk.%d.ffn_gate_inp_shexp.weight", il);
        matrix(m, m->type, p->n_embd, n_ff, 1, "blk.%d.ffn_gate_shexp.weight", il);
        matrix(m, m->type, p->n_embd, n_ff, 1, "blk.%d.ffn_up_shexp.weight", il);
        matrix(m, m->down_type, n_ff, p->n_embd, 1, "blk.%d.ffn_down_shexp.weight", il);
    }
}

static void list_tensors(struct model *m)
{
    const struct preset *p = &m->p;
    const char *ffn_norm = p->family == GPTOSS || p->family == QWEN3NEXT ? "post_attention_norm" : "ffn_norm";
    matrix(m, m->type, p->n_embd, p->n_vocab, 1, "token_embd.weight");
    m->tensors[0].rms = 1;
    for (int il = 0; il < p->n_layer; il++) {
        vector(m, p->n_embd, 1, 1, 0.1f, "blk.%d.attn_norm.weight", il);
        if (p->family == QWEN3NEXT && (il + 1) % 4 != 0)
            linear_attention(m, il);
        else
            attention(m, il);
        vector(m, p->n_embd, 1, 1, 0.1f, "blk.%d.%s.weight", il, ffn_norm);
        feed_forward(m, il);
    }
    vector(m, p->n_embd, 1, 1, 0.1f, "output_norm.weight");
    matrix(m, m->output_type, p->n_embd, p->n_vocab, 1, "output.weight");

    uint64_t at = 0;
    for (size_t i = 0; i < m->n_tensors; i++) {
        m->tensors[i].offset = at;
        at += (m->tensors[i].n_bytes + ALIGN - 1) / ALIGN * ALIGN;
    }
}

/* ---- The header ------------------------------------------------------------------------------------------------- */

struct header {
    char    *p;
    size_t   n, cap;
    uint64_t n_kv;
    const char *arch;
};

static void put(struct header *h, const void *data, size_t n)
{
    if (h->n + n > h->cap) {
        h->cap = 2 * h->cap + n + 4096;
        h->p = grow(h->p, h->cap);
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

enum { T_U32 = 4, T_F32 = 6, T_BOOL = 7, T_STRING = 8, T_ARRAY = 9, T_I32 = 5 };

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

enum { BYTES = 256, TOKEN_TH, TOKEN_END, TOKEN_IM_START, TOKEN_IM_END, N_REAL };

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

static void put_family_keys(struct header *h, const struct preset *p)
{
    if (p->family == GPTOSS) {
        kv_u32(h, ".attention.sliding_window", 128);
        kv_str(h, ".rope.scaling.type", "yarn");
        kv_f32(h, ".rope.scaling.factor", 32);
        kv_u32(h, ".rope.scaling.original_context_length", 4096);
    }
    if (p->family == QWEN3NEXT) {
        kv_u32(h, ".rope.dimension_count", 64);
        kv_u32(h, ".expert_shared_feed_forward_length", p->n_ff_expert);
        kv_u32(h, ".full_attention_interval", 4);
        kv_u32(h, ".ssm.conv_kernel", 4);
        kv_u32(h, ".ssm.state_size", 128);
        kv_u32(h, ".ssm.group_count", 16);
        kv_u32(h, ".ssm.time_step_rank", 32);
        kv_u32(h, ".ssm.inner_size", 4096);
    }
    if (p->family == LLAMA)
        kv_u32(h, ".rope.dimension_count", p->hd);
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
    kv_u32(h, ".block_count", p->n_layer);
    kv_u32(h, ".feed_forward_length", p->n_ff);
    kv_u32(h, ".attention.head_count", p->n_head);
    kv_u32(h, ".attention.head_count_kv", p->n_kv);
    kv_u32(h, ".attention.key_length", p->hd);
    kv_u32(h, ".attention.value_length", p->hd);
    kv_f32(h, ".attention.layer_norm_rms_epsilon", p->eps);
    kv_f32(h, ".rope.freq_base", p->rope_base);
    if (p->n_expert) {
        kv_u32(h, ".expert_count", p->n_expert);
        kv_u32(h, ".expert_used_count", p->n_used);
        if (p->n_ff_expert)
            kv_u32(h, ".expert_feed_forward_length", p->n_ff_expert);
    }
    put_family_keys(h, p);
    put_tokenizer(h, p->n_vocab);
}

static void build_header(struct header *h, const struct model *m)
{
    static const char *const archs[] = { "llama", "qwen3moe", "gpt-oss", "qwen3next" };
    struct header keys = { .arch = archs[m->p.family] };
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
    while (h->n % ALIGN)
        put(h, "", 1);
}

/* ---- Writing ---------------------------------------------------------------------------------------------------- */

static void write_all(FILE *f, const char *path, const void *p, size_t n)
{
    if (fwrite(p, 1, n, f) != n)
        die(1, "writing %s failed: %s", path, strerror(errno));
}

static void write_tensor(FILE *f, const char *path, const struct model *m, const struct tensor *t, struct synth_rng *rng, char *buffer)
{
    size_t chunk = BUFFER_BYTES / t->type->block_bytes * t->type->block_bytes;
    for (uint64_t done = 0; done < t->n_bytes;) {
        size_t n = t->n_bytes - done < chunk ? (size_t)(t->n_bytes - done) : chunk;
        if (t->type == m->f32)
            synth_fill_floats(rng, t->mean, t->rms, (float *)(void *)buffer, n / 4);
        else
            synth_fill(rng, t->type, t->rms, buffer, n);
        write_all(f, path, buffer, n);
        done += n;
    }
    static const char zeros[ALIGN];
    write_all(f, path, zeros, (ALIGN - t->n_bytes % ALIGN) % ALIGN);
}

static void write_model(const struct model *m, const char *path, uint64_t seed)
{
    struct header h = { 0 };
    struct synth_rng rng;
    char *buffer = grow(NULL, BUFFER_BYTES);
    FILE *f = fopen(path, "wb");
    if (!f)
        die(1, "cannot create %s: %s", path, strerror(errno));
    setvbuf(f, NULL, _IONBF, 0);
    build_header(&h, m);
    write_all(f, path, h.p, h.n);
    synth_seed(&rng, seed);
    for (size_t i = 0; i < m->n_tensors; i++)
        write_tensor(f, path, m, &m->tensors[i], &rng, buffer);
    if (fclose(f) != 0)
        die(1, "writing %s failed: %s", path, strerror(errno));
    free(buffer);
    free(h.p);
}

/* ---- Command line ----------------------------------------------------------------------------------------------- */

static void usage(FILE *out)
{
    fputs("usage: pfmoe-synth PRESET OUT.gguf [options]\n"
          "Writes a model of a published model's shape with random weights.\n\n"
          "  --layers N        instead of the preset's\n"
          "  --experts N       experts a layer\n"
          "  --vocab N         vocabulary size\n"
          "  --type T          type of dense weights (and of experts, where the preset has one type for both)\n"
          "  --expert-type T   type of gate and up\n"
          "  --down-type T     type of down\n"
          "  --output-type T   type of the output head\n"
          "  --seed N          of the random weights (default 1)\n"
          "types: F32 F16 BF16 Q4_0 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_XS MXFP4\n\npresets:\n", out);
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++)
        fprintf(out, "  %-16s %s\n", presets[i].name, presets[i].about);
}

static int number(const char *option, const char *text, int min)
{
    char *end;
    long v = strtol(text, &end, 10);
    if (*end || end == text || v < min || v > 1 << 24)
        die(EXIT_USAGE, "--%s %s: expected a number from %d on", option, text, min);
    return (int)v;
}

static const struct synth_type *type_or_die(const char *name)
{
    const struct synth_type *t = synth_type_find(name);
    if (!t)
        die(EXIT_USAGE, "type %s is unknown (see --help)", name);
    return t;
}

static void choose_types(struct model *m)
{
    const struct preset *p = &m->p;
    m->f32 = synth_type_find("F32");
    m->type = type_or_die(p->type);
    m->expert_type = p->expert_type ? type_or_die(p->expert_type) : m->type;
    m->down_type = p->down_type ? type_or_die(p->down_type) : m->expert_type;
    m->output_type = p->output_type ? type_or_die(p->output_type) : m->type;
}

int main(int argc, char **argv)
{
    enum { LAYERS = 256, EXPERTS, VOCAB, TYPE, EXPERT_TYPE, DOWN_TYPE, OUTPUT_TYPE, SEED };
    static const struct option options[] = {
        { "layers", required_argument, 0, LAYERS },           { "experts", required_argument, 0, EXPERTS },
        { "vocab", required_argument, 0, VOCAB },             { "type", required_argument, 0, TYPE },
        { "expert-type", required_argument, 0, EXPERT_TYPE }, { "down-type", required_argument, 0, DOWN_TYPE },
        { "output-type", required_argument, 0, OUTPUT_TYPE }, { "seed", required_argument, 0, SEED },
        { "help", no_argument, 0, 'h' },                      { 0, 0, 0, 0 },
    };
    struct preset o = { 0 };              /* what the command line says instead of the preset */
    uint64_t seed = 1;
    for (int c; (c = getopt_long(argc, argv, "h", options, NULL)) != -1;)
        switch (c) {
        case LAYERS:      o.n_layer = number("layers", optarg, 1); break;
        case EXPERTS:     o.n_expert = number("experts", optarg, 1); break;
        case VOCAB:       o.n_vocab = number("vocab", optarg, N_REAL); break;
        case TYPE:        o.type = optarg; break;
        case EXPERT_TYPE: o.expert_type = optarg; break;
        case DOWN_TYPE:   o.down_type = optarg; break;
        case OUTPUT_TYPE: o.output_type = optarg; break;
        case SEED:        seed = (uint64_t)number("seed", optarg, 0); break;
        case 'h':         usage(stdout); return 0;
        default:          usage(stderr); return EXIT_USAGE;
        }
    if (argc - optind != 2) {
        usage(stderr);
        return EXIT_USAGE;
    }
    struct model m = { 0 };
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++)
        if (strcmp(presets[i].name, argv[optind]) == 0)
            m.p = presets[i];
    if (!m.p.name)
        die(EXIT_USAGE, "there is no preset %s (see --help)", argv[optind]);
    m.p.n_layer = o.n_layer ? o.n_layer : m.p.n_layer;
    m.p.n_vocab = o.n_vocab ? o.n_vocab : m.p.n_vocab;
    if (o.n_expert && !m.p.n_expert)
        die(EXIT_USAGE, "preset %s has no experts", m.p.name);
    m.p.n_expert = o.n_expert ? o.n_expert : m.p.n_expert;
    if (m.p.n_expert && m.p.n_expert < m.p.n_used)
        die(EXIT_USAGE, "--experts %d: preset %s uses %d a token", m.p.n_expert, m.p.name, m.p.n_used);
    m.p.type = o.type ? o.type : m.p.type;
    m.p.expert_type = o.expert_type ? o.expert_type : m.p.expert_type;
    m.p.down_type = o.down_type ? o.down_type : m.p.down_type;
    m.p.output_type = o.output_type ? o.output_type : m.p.output_type;
    choose_types(&m);
    list_tensors(&m);
    write_model(&m, argv[optind + 1], seed);
    free(m.tensors);
    return 0;
}
