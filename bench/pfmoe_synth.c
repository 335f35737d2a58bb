/* pfmoe-synth PRESET OUT.gguf: a model of a published model's exact shape with random valid weights, so that anyone can
 * see what a machine will do before downloading 60 GB. It talks nonsense at the real model's speed.
 *
 *     preset (sizes, types) -> list of tensors -> header: keys, tensor directory -> weights, block by block
 *
 * The tokenizer is a stand-in: one token a byte, and fillers up to the vocabulary's size. */
#define _GNU_SOURCE
#include <errno.h>
#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "program/io/buf.h"
#include "synth_fill.h"
#include "synth_shapes.h"

enum { BUFFER_BYTES = 16 << 20 };

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

/* An entry for each layer: `here` in layers of this kind, `elsewhere` in the others. */
static void kv_by_kind(struct header *h, const char *key, const struct preset *p, char kind, int here, int elsewhere)
{
    kv_array(h, key, T_I32, (uint64_t)p->n_layer);
    for (int il = 0; il < p->n_layer; il++)
        put_u32(h, (uint32_t)(synth_pattern_of(p)[il] == kind ? here : elsewhere));
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
    if (p->family == NEMOTRON || p->family == KIMI) {
        kv_u32(h, ".expert_gating_func", 2);
        kv_true(h, ".expert_weights_norm");
        kv_f32(h, ".expert_weights_scale", 2.5f);
    }
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
    if (p->family == KIMI) {
        kv_u32(h, ".ssm.conv_kernel", 4);
        kv_u32(h, ".kda.head_dim", 128);
    }
}

static void put_family_keys(struct header *h, const struct preset *p)
{
    if (p->family == GPTOSS) {
        kv_u32(h, ".attention.sliding_window", 128);
        kv_str(h, ".rope.scaling.type", "yarn");
        kv_f32(h, ".rope.scaling.factor", 32);
        kv_u32(h, ".rope.scaling.original_context_length", 4096);
    }
    if (p->family == QWEN3NEXT || p->family == QWEN35MOE || p->family == QWEN35) {
        kv_u32(h, ".rope.dimension_count", 64);
        if (p->n_expert)
            kv_u32(h, ".expert_shared_feed_forward_length", p->n_ff_expert);
        kv_u32(h, ".full_attention_interval", 4);
        kv_u32(h, ".ssm.conv_kernel", 4);
        kv_u32(h, ".ssm.state_size", 128);
        kv_u32(h, ".ssm.group_count", 16);
        kv_u32(h, ".ssm.time_step_rank", 32);
        kv_u32(h, ".ssm.inner_size", 4096);
    }
    if (p->family == QWEN35MOE || p->family == QWEN35) {
        static const uint32_t sections[] = { 11, 11, 10, 0 };
        kv_array(h, ".rope.dimension_sections", T_I32, 4);
        put(h, sections, sizeof sections);
    }
    if (p->family == DEEPSEEK2 || p->family == GLM_DSA || p->family == KIMI) {
        kv_u32(h, ".attention.kv_lora_rank", MLA_LATENT);
        kv_u32(h, ".attention.key_length_mla", MLA_NOPE + MLA_ROPE);
        kv_u32(h, ".attention.value_length_mla", MLA_V);
        kv_u32(h, ".rope.dimension_count", MLA_ROPE);
    }
    if (p->family == GLM_DSA) {
        kv_u32(h, ".attention.q_lora_rank", DSA_Q_LATENT);
        kv_u32(h, ".attention.indexer.head_count", DSA_HEADS);
        kv_u32(h, ".attention.indexer.key_length", DSA_KEY);
        kv_u32(h, ".attention.indexer.top_k", DSA_CHOSEN);
        kv_array(h, ".attention.indexer.types", T_I32, (uint64_t)p->n_layer);
        for (int il = 0; il < p->n_layer; il++)
            put_u32(h, il < DSA_FULL_LAYERS);
        kv_true(h, ".expert_weights_norm");
        kv_f32(h, ".expert_weights_scale", 2.5f);
    }
    if (p->family == DEEPSEEK2) {
        kv_str(h, ".rope.scaling.type", "yarn");
        kv_f32(h, ".rope.scaling.factor", 40);
        kv_u32(h, ".rope.scaling.original_context_length", 4096);
        kv_f32(h, ".rope.scaling.yarn_log_multiplier", 0.0707f);
        kv_u32(h, ".expert_gating_func", 1);
    }
    if (p->family == DEEPSEEK4) {
        const struct synth_compressed *c = synth_compressed_of(p);
        kv_u32(h, ".rope.dimension_count", c->n_rot);
        kv_f32(h, ".attention.compress_rope_freq_base", 160000);
        kv_str(h, ".rope.scaling.type", "yarn");
        kv_f32(h, ".rope.scaling.factor", 16);
        kv_u32(h, ".rope.scaling.original_context_length", p->n_ctx / 16);
        kv_u32(h, ".attention.q_lora_rank", c->q_latent);
        kv_u32(h, ".attention.output_group_count", c->n_group);
        kv_u32(h, ".attention.output_lora_rank", c->group_out);
        kv_u32(h, ".attention.sliding_window", c->window);
        kv_u32(h, ".attention.indexer.head_count", c->index_heads);
        kv_u32(h, ".attention.indexer.key_length", c->index_width);
        kv_u32(h, ".attention.indexer.top_k", c->n_chosen);
        kv_array(h, ".attention.compress_ratios", T_I32, (uint64_t)p->n_layer);
        for (int il = 0; il < p->n_layer; il++)
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
        kv_u32(h, ".expert_gating_func", 2);
        kv_true(h, ".expert_weights_norm");
        kv_f32(h, ".expert_weights_scale", 1);
    }
    if (p->family == LLAMA)
        kv_u32(h, ".rope.dimension_count", p->hd);
}

static void put_keys(struct header *h, const struct preset *p)
{
    bool mla = p->family == DEEPSEEK2 || p->family == GLM_DSA || p->family == KIMI;
    const char *pattern = synth_pattern_of(p);
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
    if (p->family == NEMOTRON)
        kv_by_kind(h, ".feed_forward_length", p, 'e', p->n_ff, 0);
    else if (p->n_ff)
        kv_u32(h, ".feed_forward_length", p->n_ff);
    kv_u32(h, ".attention.head_count", p->n_head);
    if (pattern)
        kv_by_kind(h, ".attention.head_count_kv", p, 'a', p->n_kv, 0);
    else
        kv_u32(h, ".attention.head_count_kv", p->n_kv);
    kv_u32(h, ".attention.key_length", mla ? MLA_LATENT + MLA_ROPE : p->hd);    /* of the cached key */
    kv_u32(h, ".attention.value_length", mla ? MLA_LATENT : p->hd);
    kv_f32(h, ".attention.layer_norm_rms_epsilon", p->eps);
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
    put_tokenizer(h, p->n_vocab);
}

static void build_header(struct header *h, const struct model *m)
{
    static const char *const archs[] = { "llama", "qwen3moe", "gpt-oss", "qwen3next", "qwen35moe", "deepseek2",
                                         "glm4moe", "glm-dsa", "qwen35", "deepseek4", "nemotron_h_moe", "lfm2moe",
                                         "granitehybrid", "phimoe", "kimi-linear" };
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
    while (h->n % SYNTH_ALIGN)
        put(h, "", 1);
}

/* ---- Writing ---------------------------------------------------------------------------------------------------- */

static void write_all(FILE *f, const char *path, const void *p, size_t n)
{
    if (fwrite(p, 1, n, f) != n)
        die(EXIT_FAILED, "writing %s failed: %s", path, strerror(errno));
}

/* One line on a terminal's standard error, redrawn when the percentage changes and taken back at the end. */
static void show_progress(uint64_t done, uint64_t total)
{
    static int last = -1;
    int percent = (int)(100.0 * (double)done / (double)total);
    if (percent == last || !isatty(STDERR_FILENO))
        return;
    last = percent;
    fprintf(stderr, "\rwriting %3d%% of %.1f GB", percent, (double)total * 1e-9);
    if (done == total)
        fputs("\r\033[K", stderr);
    fflush(stderr);
}

/* Entries first .. of a table: of each row distinct numbers. */
static void fill_ids(const struct tensor *t, uint64_t first, size_t n, int32_t *out)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t row = (first + i) / t->ne[0], column = (first + i) % t->ne[0];
        out[i] = (int32_t)((row * 7 + column * (1 + row % 3)) % (uint64_t)t->n_ids);
    }
}

/* Of all tensors, from the first one's first byte to the last one's last. */
static uint64_t weight_bytes(const struct model *m)
{
    const struct tensor *last = &m->tensors[m->n_tensors - 1];
    return last->offset + last->n_bytes;
}

static void write_tensor(FILE *f, const char *path, const struct model *m, const struct tensor *t,
                         struct synth_rng *rng, char *buffer)
{
    size_t chunk = BUFFER_BYTES / t->type->block_bytes * t->type->block_bytes;
    for (uint64_t done = 0; done < t->n_bytes;) {
        size_t n = t->n_bytes - done < chunk ? (size_t)(t->n_bytes - done) : chunk;
        if (t->n_ids)
            fill_ids(t, done / 4, n / 4, (int32_t *)(void *)buffer);
        else if (t->type == m->f32)
            synth_fill_floats(rng, t->mean, t->rms, (float *)(void *)buffer, n / 4);
        else
            synth_fill(rng, t->type, t->rms, buffer, n);
        write_all(f, path, buffer, n);
        done += n;
        show_progress(t->offset + done, weight_bytes(m));
    }
    static const char zeros[SYNTH_ALIGN];
    write_all(f, path, zeros, (SYNTH_ALIGN - t->n_bytes % SYNTH_ALIGN) % SYNTH_ALIGN);
}

/* Weights of zeros that take no room: the file is as long as it should be. */
static void leave_out(FILE *f, const char *path, const struct model *m, size_t header_bytes)
{
    if (ftruncate(fileno(f), (off_t)(header_bytes + weight_bytes(m))) != 0)
        die(EXIT_FAILED, "writing %s failed: %s", path, strerror(errno));
}

static void write_model(const struct model *m, const char *path, uint64_t seed, bool sparse)
{
    struct header h = { 0 };
    struct synth_rng rng;
    char *buffer = xrealloc(NULL, BUFFER_BYTES, 1);
    FILE *f = fopen(path, "wb");
    if (!f)
        die(EXIT_FAILED, "cannot create %s: %s", path, strerror(errno));
    setvbuf(f, NULL, _IONBF, 0);
    build_header(&h, m);
    write_all(f, path, h.p, h.n);
    synth_seed(&rng, seed);
    for (size_t i = 0; !sparse && i < m->n_tensors; i++)
        write_tensor(f, path, m, &m->tensors[i], &rng, buffer);
    if (sparse)
        leave_out(f, path, m, h.n);
    if (fclose(f) != 0)
        die(EXIT_FAILED, "writing %s failed: %s", path, strerror(errno));
    free(buffer);
    free(h.p);
}

/* ---- Command line ----------------------------------------------------------------------------------------------- */

static void usage(void)
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
          "  --mix T,T,...     types that the matrices take in turn, instead of all these\n"
          "  --seed N          of the random weights (default 1)\n"
          "  --sparse          weights of zeros that take no room on the disk: to plan for a model, not to run it\n"
          "types:", stdout);
    for (size_t i = 0; synth_type_name(i); i++)
        printf(" %s", synth_type_name(i));
    fputs("\n\npresets:\n", stdout);
    for (size_t i = 0; i < synth_n_presets; i++)
        printf("  %-16s %s\n", synth_presets[i].name, synth_presets[i].about);
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

static void choose_mix(struct model *m, const char *list)
{
    char name[16];
    for (int n; list && *list; list += list[n] ? n + 1 : n) {
        if (sscanf(list, "%15[^,]%n", name, &n) != 1 || m->n_mix == SYNTH_MAX_MIX)
            die(EXIT_USAGE, "--mix: expected up to %d types with commas between them", SYNTH_MAX_MIX);
        m->mix[m->n_mix++] = type_or_die(name);
    }
}

static void choose_types(struct model *m)
{
    const struct preset *p = &m->p;
    static const struct synth_type i32 = { .name = "I32", .id = 26, .block_len = 1, .block_bytes = 4 };
    m->f32 = synth_type_find("F32");
    m->i32 = &i32;
    m->type = type_or_die(p->type);
    m->expert_type = p->expert_type ? type_or_die(p->expert_type) : m->type;
    m->down_type = p->down_type ? type_or_die(p->down_type) : m->expert_type;
    m->output_type = p->output_type ? type_or_die(p->output_type) : m->type;
}

int main(int argc, char **argv)
{
    enum { LAYERS = 256, EXPERTS, VOCAB, TYPE, EXPERT_TYPE, DOWN_TYPE, OUTPUT_TYPE, MIX, SEED, SPARSE };
    static const struct option options[] = {
        { "layers", required_argument, 0, LAYERS },           { "experts", required_argument, 0, EXPERTS },
        { "vocab", required_argument, 0, VOCAB },             { "type", required_argument, 0, TYPE },
        { "expert-type", required_argument, 0, EXPERT_TYPE }, { "down-type", required_argument, 0, DOWN_TYPE },
        { "output-type", required_argument, 0, OUTPUT_TYPE }, { "mix", required_argument, 0, MIX },
        { "seed", required_argument, 0, SEED },               { "sparse", no_argument, 0, SPARSE },
        { "help", no_argument, 0, 'h' },
        { 0, 0, 0, 0 },
    };
    struct preset o = { 0 };              /* values that the command line gives in place of the preset's */
    const char *mix = NULL;
    uint64_t seed = 1;
    bool sparse = false;
    opterr = 0;
    for (int c; (c = getopt_long(argc, argv, ":h", options, NULL)) != -1;)
        switch (c) {
        case LAYERS:      o.n_layer = number("layers", optarg, 1); break;
        case EXPERTS:     o.n_expert = number("experts", optarg, 1); break;
        case VOCAB:       o.n_vocab = number("vocab", optarg, N_REAL); break;
        case TYPE:        o.type = optarg; break;
        case EXPERT_TYPE: o.expert_type = optarg; break;
        case DOWN_TYPE:   o.down_type = optarg; break;
        case OUTPUT_TYPE: o.output_type = optarg; break;
        case MIX:         mix = optarg; break;
        case SPARSE:      sparse = true; break;
        case SEED:        seed = (uint64_t)number("seed", optarg, 0); break;
        case 'h':         usage(); return EXIT_DONE;
        default:          die_of_option(c, argv);
        }
    if (argc - optind != 2)
        die(EXIT_USAGE, "two words are needed, a preset and a file (see --help)");
    struct model m = { 0 };
    for (size_t i = 0; i < synth_n_presets; i++)
        if (strcmp(synth_presets[i].name, argv[optind]) == 0)
            m.p = synth_presets[i];
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
    choose_mix(&m, mix);
    synth_list_tensors(&m);
    write_model(&m, argv[optind + 1], seed, sparse);
    free(m.tensors);
    return 0;
}
