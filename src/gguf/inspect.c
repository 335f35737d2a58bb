/* Fills a struct pf_file_info from whatever keys and tensor names a file has. See inspect.h.
 *
 * Nothing here fails for what a file lacks or says oddly: such a number is 0. n_layers is without the layers at the end
 * that only predict further tokens (nextn), since decoding does not run them; their tensors count as weights and
 * parameters, but not in bytes_per_token. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/pf_latent.h"
#include "gguf/gguf.h"
#include "gguf/inspect.h"

/* Hyper-parameters as the file states them, 0 where it does not. */
struct shape {
    const pf_gguf *g;
    const char *arch;
    int64_t n_blocks;                /* with the nextn ones */
    int64_t n_layers;                /* without */
};

/* ---- Reading keys without complaint ---- */

static const struct pf_gguf_kv *arch_key(const struct shape *s, const char *name)
{
    char key[160];
    snprintf(key, sizeof key, "%s.%s", s->arch, name);
    return pf_gguf_find(s->g, key);
}

/* The i-th entry of a per-layer key, or its value for all layers when it is a scalar; 0 when there is none, or it is no
 * number from 0 to INT32_MAX. */
static int64_t entry(const struct pf_gguf_kv *kv, uint64_t i)
{
    static const uint8_t sizes[] = {
        [PF_GGUF_U8] = 1, [PF_GGUF_I8] = 1, [PF_GGUF_U16] = 2, [PF_GGUF_I16] = 2, [PF_GGUF_U32] = 4, [PF_GGUF_I32] = 4,
        [PF_GGUF_BOOL] = 1, [PF_GGUF_U64] = 8, [PF_GGUF_I64] = 8, [PF_GGUF_F64] = 0,
    };
    uint64_t v = 0;
    if (!kv || (kv->type == PF_GGUF_ARRAY && i >= kv->n))
        return 0;
    size_t size = sizes[kv->elem];
    if (size == 0)
        return 0;
    if (kv->type != PF_GGUF_ARRAY)
        i = 0;
    memcpy(&v, (const uint8_t *)kv->data + i * size, size);
    /* A negative number is large here, but for the narrow types, whose sign bit is below bit 31. */
    bool is_negative = (kv->elem == PF_GGUF_I8 && v >> 7) || (kv->elem == PF_GGUF_I16 && v >> 15);
    return is_negative || v > INT32_MAX ? 0 : (int64_t)v;
}

static int64_t number(const struct shape *s, const char *name)
{
    const struct pf_gguf_kv *kv = arch_key(s, name);
    int64_t most = 0;
    for (uint64_t i = 0; kv && i < kv->n; i++)
        most = entry(kv, i) > most ? entry(kv, i) : most;
    return most;
}

static void copy_string(const pf_gguf *g, const char *key, char *out, size_t cap)
{
    const struct pf_gguf_kv *kv = pf_gguf_find(g, key);
    if (!kv || kv->type != PF_GGUF_STRING)
        return;
    size_t n = kv->strings[0].n < cap - 1 ? kv->strings[0].n : cap - 1;
    memcpy(out, kv->strings[0].p, n);
    out[n] = 0;
}

/* ---- Tensor names ---- */

/* The N of "blk.N.", or -1; *rest is what follows. */
static int64_t layer_of(struct pf_str name, struct pf_str *rest)
{
    int64_t layer = 0;
    size_t i = 4;
    if (name.n < 4 || memcmp(name.p, "blk.", 4) != 0)
        return -1;
    for (; i < name.n && name.p[i] >= '0' && name.p[i] <= '9' && i < 12; i++)
        layer = layer * 10 + (name.p[i] - '0');
    if (i == 4 || i >= name.n || name.p[i] != '.')
        return -1;
    *rest = (struct pf_str){ name.p + i + 1, name.n - i - 1 };
    return layer;
}

static bool ends_with(struct pf_str s, const char *tail)
{
    size_t n = strlen(tail);
    return s.n >= n && memcmp(s.p + s.n - n, tail, n) == 0;
}

/* ffn_gate_exps.weight, or .bias, with all experts in one tensor; or ffn_gate.7.weight, as files of 2023 have it. */
static bool is_expert(struct pf_str name)
{
    static const char *const old_names[] = { "ffn_gate.", "ffn_up.", "ffn_down." };
    struct pf_str rest;
    if (ends_with(name, "_exps.weight") || ends_with(name, "_exps.bias"))
        return true;
    if (layer_of(name, &rest) < 0 || !ends_with(rest, ".weight"))
        return false;
    for (size_t i = 0; i < sizeof old_names / sizeof old_names[0]; i++) {
        size_t n = strlen(old_names[i]);
        if (rest.n > n && memcmp(rest.p, old_names[i], n) == 0 && rest.p[n] >= '0' && rest.p[n] <= '9')
            return true;
    }
    return false;
}

/* ---- Sums ---- */

static uint64_t elements(const struct pf_tensor *t)
{
    return (uint64_t)t->ne[0] * (uint64_t)t->ne[1] * (uint64_t)t->ne[2] * (uint64_t)t->ne[3];
}

static void count_type(struct pf_file_info *out, const struct pf_tensor *t)
{
    const char *name = pf_qtype_info(t->type)->name;
    int i = 0;
    while (i < out->n_types && strcmp(out->types[i].name, name) != 0)
        i++;
    if (i == out->n_types) {
        snprintf(out->types[i].name, sizeof out->types[i].name, "%s", name);
        out->n_types++;
    }
    out->types[i].n_tensors++;
    out->types[i].bytes += t->n_bytes;
}
_Static_assert((int)PF_N_QTYPES <= (int)PF_MAX_TYPES, "there is room for every type");

static int by_falling_bytes(const void *a, const void *b)
{
    const struct pf_file_type_use *x = a, *y = b;
    return x->bytes == y->bytes ? strcmp(x->name, y->name) : (x->bytes < y->bytes) - (x->bytes > y->bytes);
}

/* Every weight is read once a token, except: of the token embedding one row (all of it when it is the output matrix
 * too), of a table of parts of layers or of n-grams one (or a few, which are as good as nothing), of the experts the
 * used share, and nothing of the nextn layers. */
static void sum_tensors(const struct shape *s, struct pf_file_info *out)
{
    bool tied = !pf_gguf_tensor(s->g, "output.weight");
    const struct pf_tensor *embedding = pf_gguf_tensor(s->g, "token_embd.weight");
    const struct pf_tensor *table = pf_gguf_tensor(s->g, "per_layer_token_embd.weight");
    uint64_t experts_read = 0;
    for (uint64_t i = 0; i < pf_gguf_n_tensors(s->g); i++) {
        const struct pf_tensor *t = pf_gguf_tensor_at(s->g, i);
        struct pf_str rest;
        bool decodes = layer_of(t->name, &rest) < s->n_layers || s->n_blocks == 0;
        count_type(out, t);
        out->weight_bytes += t->n_bytes;
        out->n_params += elements(t);
        if (is_expert(t->name)) {
            out->expert_bytes += t->n_bytes;
            experts_read += decodes ? t->n_bytes : 0;
        } else if (decodes) {
            out->bytes_per_token += t == table || (t == embedding && !tied) ? t->row_bytes : t->n_bytes;
        }
    }
    if (out->n_experts_used > 0 && out->n_experts_used < out->n_experts)
        experts_read = (uint64_t)((unsigned __int128)experts_read * (uint64_t)out->n_experts_used /
                                  (uint64_t)out->n_experts);
    out->bytes_per_token += experts_read;
    qsort(out->types, (size_t)out->n_types, sizeof out->types[0], by_falling_bytes);
}

/* Hybrid models have layers that keep a state of fixed size in place of keys and values: a list of them, or every
 * layer that is not the last of its interval. Latent attention keeps one row for all heads, and a key for its
 * indexer, if it has one; compressed attention a key of each block, one more for an indexer of short blocks, and
 * of positions a window. */
static uint64_t compressed_bytes_per_token(const struct shape *s, const struct pf_gguf_kv *ratios)
{
    enum { F16_BYTES = 2, WITH_INDEXER = 4 };
    int64_t key = number(s, "attention.key_length"), index = number(s, "attention.indexer.key_length");
    double bytes = 0;
    for (int64_t i = 0; i < s->n_layers; i++) {
        int64_t ratio = entry(ratios, (uint64_t)i);
        if (ratio > 0)
            bytes += F16_BYTES * (double)(ratio == WITH_INDEXER ? key + index : key) / (double)ratio;
    }
    return (uint64_t)bytes;
}

/* Bytes of a latent and, where there is one, of its indexer's key: whole numbers where all positions are looked at. */
static uint64_t latent_bytes(int64_t latent, int64_t rope, int64_t index)
{
    enum { F16_BYTES = 2 };
    int64_t key = latent + rope;
    bool whole = index == 0 && key <= 2 * PF_I16_HEAD_MAX && pf_latent_takes((int)key, (int)latent);
    return whole ? pf_latent_bytes((int)key) : F16_BYTES * (uint64_t)(key + index);
}

/* Bytes of a key and a value of one head: whole numbers with their scales, or F16 where heads cannot be kept so. */
static uint64_t head_bytes(int64_t key, int64_t value)
{
    enum { F16_BYTES = 2 };
    bool whole = key <= PF_I16_HEAD_MAX && value <= PF_I16_HEAD_MAX && pf_i16_takes((int)key) &&
                 pf_i16_takes((int)value);
    return whole ? pf_i16_key_bytes((int)key) + pf_i16_value_bytes((int)value) : F16_BYTES * (uint64_t)(key + value);
}

static uint64_t kv_bytes_per_token(const struct shape *s, const struct pf_file_info *info)
{
    const struct pf_gguf_kv *recurrent = arch_key(s, "attention.recurrent_layers");
    int64_t interval = number(s, "full_attention_interval");
    const struct pf_gguf_kv *heads = arch_key(s, "attention.head_count_kv");
    int64_t width = info->n_heads > 0 ? info->n_embd / info->n_heads : 0;
    int64_t key = number(s, "attention.key_length"), value = number(s, "attention.value_length");
    int64_t latent = number(s, "attention.kv_lora_rank");
    const struct pf_gguf_kv *ratios = arch_key(s, "attention.compress_ratios");
    uint64_t n_heads = 0;
    if (ratios)
        return compressed_bytes_per_token(s, ratios);
    if (latent > 0)
        return (uint64_t)s->n_layers *
               latent_bytes(latent, number(s, "rope.dimension_count"), number(s, "attention.indexer.key_length"));
    if (!heads)
        heads = arch_key(s, "attention.head_count");
    for (int64_t i = 0; i < s->n_layers; i++) {
        bool keeps_state = recurrent ? entry(recurrent, (uint64_t)i) != 0 : interval > 1 && (i + 1) % interval != 0;
        if (!keeps_state)
            n_heads += (uint64_t)entry(heads, (uint64_t)i);
    }
    return n_heads * head_bytes(key ? key : width, value ? value : width);
}

static int64_t vocabulary_size(const struct shape *s)
{
    const struct pf_gguf_kv *tokens = pf_gguf_find(s->g, "tokenizer.ggml.tokens");
    const struct pf_tensor *embedding = pf_gguf_tensor(s->g, "token_embd.weight");
    int64_t n = number(s, "vocab_size");
    if (n == 0 && embedding)
        n = embedding->ne[1];
    if (n == 0 && tokens && tokens->type == PF_GGUF_ARRAY)
        n = (int64_t)tokens->n;
    return n;
}

static void fill_shape(struct shape *s, struct pf_file_info *out)
{
    int64_t nextn = number(s, "nextn_predict_layers");
    enum { MAX_LAYERS = 65536 };     /* kv_bytes_per_token loops over them */
    s->n_blocks = number(s, "block_count");
    if (s->n_blocks > MAX_LAYERS)
        s->n_blocks = 0;
    s->n_layers = nextn < s->n_blocks ? s->n_blocks - nextn : s->n_blocks;
    out->n_layers = s->n_layers;
    out->n_ctx_train = number(s, "context_length");
    out->n_embd = number(s, "embedding_length");
    out->n_heads = number(s, "attention.head_count");
    out->n_kv_heads = number(s, "attention.head_count_kv");
    if (!arch_key(s, "attention.head_count_kv"))
        out->n_kv_heads = out->n_heads;
    out->n_ff = number(s, "feed_forward_length");
    out->n_vocab = vocabulary_size(s);
    out->n_experts = number(s, "expert_count");
    out->n_experts_used = number(s, "expert_used_count");
    out->n_ff_expert = number(s, "expert_feed_forward_length");
}

static void fill(const pf_gguf *g, struct pf_file_info *out)
{
    struct shape s = { .g = g, .arch = out->architecture };
    copy_string(g, "general.architecture", out->architecture, sizeof out->architecture);
    copy_string(g, "general.name", out->name, sizeof out->name);
    copy_string(g, "general.type", out->kind, sizeof out->kind);
    if (!out->kind[0])
        snprintf(out->kind, sizeof out->kind, "model");
    out->version = pf_gguf_version(g);
    out->n_shards = pf_gguf_n_shards(g);
    out->n_kv = pf_gguf_n_kv(g);
    out->n_tensors = pf_gguf_n_tensors(g);
    out->file_bytes = pf_gguf_file_bytes(g);
    fill_shape(&s, out);
    sum_tensors(&s, out);
    out->kv_bytes_per_token = kv_bytes_per_token(&s, out);
    for (const char *w; (w = pf_gguf_warning(g, out->n_warnings)); out->n_warnings++)
        snprintf(out->warnings[out->n_warnings], sizeof out->warnings[0], "%s", w);
}

pf_status pf_gguf_inspect(const char *path, unsigned flags, struct pf_file_info *out)
{
    pf_gguf *g;
    memset(out, 0, sizeof *out);
    PF_TRY(pf_gguf_open(&g, path, PF_GGUF_EMPTY_OK));
    pf_status st = flags & PF_FILE_VERIFY ? pf_gguf_verify(g) : PF_OK;
    if (st == PF_OK)
        fill(g, out);
    pf_gguf_close(&g);
    return st;
}
