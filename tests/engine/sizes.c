/* Whatever number a file has for a key, or has not: each key of a model's architecture is set to values that no
 * table of a fixed size holds, one at a time, and left out. Every such file is refused with a sentence, or runs a
 * step. It is the sanitizers' business to see more.
 *
 * usage: sizes MODEL.gguf */
#define _GNU_SOURCE
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "gguf/gguf.h"
#include "pfmoe.h"

enum { HEADER_BYTES = 24, PIECE_BYTES = 256, SKIP = 77, MOST_MIB = 2048, MOST_SECONDS = 10 };

/* Keys that models may leave out, and so perhaps this one does. */
static const char *const optional[] = {
    "attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length",
    "attention.key_length_mla", "attention.value_length_mla", "attention.kv_lora_rank", "attention.q_lora_rank",
    "attention.scale", "attention.sliding_window", "attention.sliding_window_pattern", "attention.temperature_length",
    "attention.indexer.head_count", "attention.indexer.key_length", "attention.indexer.top_k",
    "attention.indexer.types", "attention.output_group_count", "attention.output_lora_rank",
    "attention.compress_ratios", "attention.compress_rope_freq_base", "block_count", "nextn_predict_layers",
    "context_length", "embedding_length", "embedding_scale", "expert_count", "expert_used_count",
    "expert_feed_forward_length", "expert_gating_func", "expert_group_count", "expert_group_used_count",
    "expert_weights_norm", "expert_weights_scale", "feed_forward_length", "hash_layer_count",
    "hyper_connection.count", "hyper_connection.sinkhorn_iterations", "hyper_connection.epsilon",
    "interleave_moe_layer_step", "leading_dense_block_count", "logit_scale", "residual_scale",
    "rope.dimension_count", "rope.dimension_sections", "rope.freq_base", "rope.scale_linear", "rope.scaling.factor",
    "rope.scaling.attn_factor", "rope.scaling.finetuned", "rope.scaling.original_context_length",
    "rope.scaling.yarn_log_multiplier", "ssm.conv_kernel", "ssm.group_count", "ssm.inner_size", "ssm.state_size",
    "ssm.time_step_rank", "swiglu_clamp_exp", "swiglu_clamp_shexp", "vocab_size",
};

/* Keys for which the size of heads, and then of the embedding, stands in. */
static const char *const stood_in_for[] = { "rope.dimension_count", "attention.key_length", "attention.value_length" };

static const double values[] = { 4096, 1 << 24, 0, 1, 3, 1026, 1 << 15, INT32_MAX, -1 };
enum { N_VALUES = sizeof values / sizeof *values };

static struct {
    char  *data;
    size_t n;
    int    fd;                           /* of a file in memory, with a copy */
    char   path[64];
} file;
static int n_ran, n_refused, n_values = N_VALUES;

static void put(size_t at, const void *bytes, size_t n)
{
    CHECK(pwrite(file.fd, bytes, n, (off_t)at) == (ssize_t)n);
}

/* Two tokens, one by one, in a session as it is by default. */
static pf_status run(void)
{
    pf_model *m = NULL;
    pf_session *s = NULL;
    struct pf_model_opts o;
    pf_model_opts_init(&o);
    o.n_threads = 1;
    o.device = -1;
    pf_status st = pf_model_open(&m, file.path, &o);
    if (st == PF_OK)
        st = pf_session_open(&s, m, NULL);
    for (int32_t t = 0; st == PF_OK && t < 2; t++)
        st = pf_session_eval(s, &t, 1, 0);
    pf_session_close(&s);
    pf_model_close(&m);
    return st;
}

static void try(const char *key, const char *what)
{
    struct timespec from, to;
    struct rusage used;
    clock_gettime(CLOCK_MONOTONIC, &from);
    pf_status st = run();
    clock_gettime(CLOCK_MONOTONIC, &to);
    getrusage(RUSAGE_SELF, &used);
    n_ran += st == PF_OK;
    n_refused += st < 0;
    CHECK(st == PF_OK || st == PF_EFORMAT || st == PF_EUNSUPPORTED || st == PF_ENUMERIC || st == PF_ECONTEXT ||
          st == PF_ENOMEM, "%s %s: status %d: %s", key, what, st, pf_last_error());
    CHECK(st >= 0 || st == PF_ENUMERIC || st == PF_ECONTEXT || strstr(pf_last_error(), file.path),
          "%s %s: which file? %s", key, what, pf_last_error());
    CHECK(used.ru_maxrss / 1024 < MOST_MIB, "%s %s: %ld MiB of memory", key, what, used.ru_maxrss / 1024);
    CHECK(to.tv_sec - from.tv_sec <= MOST_SECONDS, "%s %s: %ld s", key, what, (long)(to.tv_sec - from.tv_sec));
}

/* v as a value of that type, if it is one of numbers: its size. */
static size_t encode(enum pf_gguf_type type, double v, char out[8])
{
    int64_t i = (int64_t)v;
    float f = (float)v;
    switch (type) {
    case PF_GGUF_U8: case PF_GGUF_I8: case PF_GGUF_BOOL:
        memcpy(out, &i, 1);
        return 1;
    case PF_GGUF_U16: case PF_GGUF_I16:
        memcpy(out, &i, 2);
        return 2;
    case PF_GGUF_U32: case PF_GGUF_I32:
        memcpy(out, &i, 4);
        return 4;
    case PF_GGUF_U64: case PF_GGUF_I64:
        memcpy(out, &i, 8);
        return 8;
    case PF_GGUF_F32:
        memcpy(out, &f, sizeof f);
        return sizeof f;
    case PF_GGUF_F64:
        memcpy(out, &v, sizeof v);
        return sizeof v;
    default:
        return 0;
    }
}

/* One entry; returns its end. */
static char *entry(char *to, const char *key, size_t n_key, enum pf_gguf_type type, double v)
{
    uint64_t n = n_key;
    uint32_t kind = type;
    memcpy(to, &n, 8);
    memcpy(to + 8, key, n_key);
    memcpy(to + 8 + n_key, &kind, 4);
    return to + 12 + n_key + encode(type, v, to + 12 + n_key);
}

/* Two entries, of which the second means nothing: of a size that leaves tensors aligned. */
static void fill_piece(char piece[PIECE_BYTES], const char *key, enum pf_gguf_type type, double v)
{
    char filler[PIECE_BYTES];
    memset(filler, '_', sizeof filler);
    char *end = entry(piece, key, strlen(key), type, v);
    entry(end, filler, (size_t)(piece + PIECE_BYTES - end) - 16, PF_GGUF_U32, 0);
}

/* A key that is there, overwritten where it lies, all of it if it is a list; then given another name. */
static void change(const char *key, const struct pf_gguf_kv *kv)
{
    bool list = kv->type == PF_GGUF_ARRAY;
    size_t at = (size_t)kv->offset + 8 + kv->key.n + 4 + (list ? 12 : 0);
    char bytes[8], what[32];
    for (int v = 0; v < n_values && encode(kv->elem, 0, bytes); v++) {
        size_t n = encode(kv->elem, values[v], bytes);
        for (uint64_t i = 0; i < kv->n; i++)
            put(at + i * n, bytes, n);
        snprintf(what, sizeof what, "= %.0f", values[v]);
        try(key, what);
        put(at, file.data + at, n * kv->n);
    }
    put((size_t)kv->offset + 8, "_", 1);
    try(key, "left out");
    put((size_t)kv->offset + 8, file.data + kv->offset + 8, 1);
}

/* A key that is not there, in place of one that means nothing. */
static void add(const char *key, enum pf_gguf_type type)
{
    char piece[PIECE_BYTES], what[32];
    for (int v = 0; v < n_values; v++) {
        fill_piece(piece, key, type, values[v]);
        put(HEADER_BYTES, piece, sizeof piece);
        snprintf(what, sizeof what, "added, %.0f", values[v]);
        try(key, what);
    }
    put(HEADER_BYTES, file.data + HEADER_BYTES, PIECE_BYTES);
}

static bool is_real(const char *suffix)
{
    static const char *const reals[] = { "scale", "base", "epsilon", "factor", "multiplier", "clamp_exp", "clamp_shexp",
                                         "scale_linear" };
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++) {
        size_t n = strlen(reals[i]), all = strlen(suffix);
        if (all >= n && strcmp(suffix + all - n, reals[i]) == 0)
            return true;
    }
    return false;
}

/* With such a piece in front of the other entries. */
static void open_copy(const char *path)
{
    uint64_t n_kv;
    FILE *f = fopen(path, "rb");
    CHECK(f && fseek(f, 0, SEEK_END) == 0, "%s", path);
    size_t n = (size_t)ftell(f) - HEADER_BYTES;
    rewind(f);
    file.n = HEADER_BYTES + PIECE_BYTES + n;
    file.data = malloc(file.n);
    CHECK(file.data && fread(file.data, 1, HEADER_BYTES, f) == HEADER_BYTES &&
          fread(file.data + HEADER_BYTES + PIECE_BYTES, 1, n, f) == n);
    fclose(f);
    memcpy(&n_kv, file.data + 16, 8);
    n_kv += 2;
    memcpy(file.data + 16, &n_kv, 8);
    fill_piece(file.data + HEADER_BYTES, "_", PF_GGUF_U32, 0);
    file.fd = memfd_create("model", 0);
    snprintf(file.path, sizeof file.path, "/proc/self/fd/%d", file.fd);
    put(0, file.data, file.n);
}

/* Every key of the architecture. */
static void change_all(const pf_gguf *g, struct pf_str arch)
{
    for (uint64_t i = 0; i < pf_gguf_n_kv(g); i++) {
        const struct pf_gguf_kv *kv = pf_gguf_kv_at(g, i);
        char key[128];
        snprintf(key, sizeof key, "%.*s", (int)kv->key.n, kv->key.p);
        if (kv->key.n > arch.n && memcmp(key, arch.p, arch.n) == 0 && kv->elem != PF_GGUF_STRING)
            change(key, kv);
    }
    for (size_t i = 0; i < sizeof optional / sizeof *optional; i++) {
        char key[128];
        snprintf(key, sizeof key, "%.*s.%s", (int)arch.n, arch.p, optional[i]);
        if (!pf_gguf_find(g, key))
            add(key, is_real(optional[i]) ? PF_GGUF_F32 : PF_GGUF_I32);
    }
}

/* For good, in all that follows. */
static void leave_out(const pf_gguf *g, struct pf_str arch, const char *suffix)
{
    char key[128];
    snprintf(key, sizeof key, "%.*s.%s", (int)arch.n, arch.p, suffix);
    const struct pf_gguf_kv *kv = pf_gguf_find(g, key);
    if (kv) {
        file.data[kv->offset + 8] = '_';
        put((size_t)kv->offset + 8, "_", 1);
    }
}

int main(int argc, char **argv)
{
    pf_gguf *g;
    struct pf_str arch;
    if (argc != 2)
        return 2;
    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);   /* most of the time would go to clearing huge pages of tiny models */
    open_copy(argv[1]);
    if (pf_gguf_open(&g, file.path, 0) < 0 || run() == PF_EUNSUPPORTED) {
        printf("skipped: %s\n", pf_last_error());
        return SKIP;
    }
    CHECK(pf_gguf_str(g, "general.architecture", &arch) == PF_OK);
    change_all(g, arch);
    CHECK(run() == PF_OK, "the file as it was: %s", pf_last_error());
    n_values = 2;
    for (size_t i = 0; i < sizeof stood_in_for / sizeof *stood_in_for; i++) {
        leave_out(g, arch, stood_in_for[i]);
        change_all(g, arch);
    }
    pf_gguf_close(&g);
    printf("%d ran, %d were refused\n", n_ran, n_refused);
    free(file.data);
    close(file.fd);
    return check_status();
}
