/* A saved session names its model: one that differs in any way that changes a result refuses it. Each difference is a
 * file of its own: one weight in the middle or at the end of any tensor's samples, a whole matrix moved a little as
 * training does, any number of the architecture's keys; and an adapter's alpha, scale and weights. What is saved is
 * whole: any flips of bits, also an even number of the highest of words, and a cut at any place between two parts of
 * the file are noticed.
 *
 * usage: foreign MODEL.gguf */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "gguf/gguf_build.h"
#include "memory_file.h"
#include "open_session.h"

enum { N = 40, N_CTX = 64, MOST_PARTS = 65536 };

static struct image {                        /* a model in memory */
    char  *data;
    size_t n;
} model;
static struct file saved;
static int32_t tokens[N];
static size_t part_ends[MOST_PARTS];
static int    n_parts;

static bool write_part(void *ctx, const void *data, size_t n)
{
    bool ok = write_file(ctx, data, n);
    if (n_parts < MOST_PARTS)
        part_ends[n_parts++] = saved.n;
    return ok;
}

static pf_model *open_model(const char *path, const struct pf_adapter *adapter)
{
    pf_model *m = NULL;
    struct pf_model_opts o;
    pf_model_opts_init(&o);
    o.n_threads = 1;
    o.device = -1;
    o.adapters = adapter;
    o.n_adapters = adapter ? 1 : 0;
    CHECK(pf_model_open(&m, path, &o) == PF_OK, "%s", pf_last_error());
    return m;
}

/* Whether a session of the model takes what was saved. */
static pf_status load(const char *path, const struct pf_adapter *adapter)
{
    pf_model *m = open_model(path, adapter);
    pf_session *s = m ? open_session(m, N_CTX) : NULL;
    saved.at = 0;
    pf_status st = s ? pf_session_load(s, read_file, &saved) : PF_EINVAL;
    pf_session_close(&s);
    pf_model_close(&m);
    return st;
}

static void save(const char *path, const struct pf_adapter *adapter)
{
    pf_model *m = open_model(path, adapter);
    pf_session *s = open_session(m, N_CTX);
    saved.n = saved.at = 0;
    n_parts = 0;
    CHECK(pf_session_eval(s, tokens, N, 0) == PF_OK, "%s", pf_last_error());
    CHECK(pf_session_save(s, write_part, &saved) == PF_OK, "%s", pf_last_error());
    pf_session_close(&s);
    pf_model_close(&m);
}

static void check_refused(const char *what)
{
    struct mem_file f = mem_file_new(model.data, model.n);
    pf_status st = load(f.path, NULL);
    CHECK(st == PF_EINVAL && strstr(pf_last_error(), f.path), "%s: status %d: %s", what, st, pf_last_error());
    mem_file_close(&f);
}

/* ---- Other weights, other keys ----------------------------------------------------------------------------------- */

static void test_weights(const pf_gguf *g)
{
    for (uint64_t i = 0; i < pf_gguf_n_tensors(g); i++) {
        const struct pf_tensor *t = pf_gguf_tensor_at(g, i);
        uint8_t *at = (uint8_t *)model.data + t->offset;
        size_t n = (size_t)t->n_bytes, step = n / 997 + 1;
        char what[96];
        if (t->type == PF_I32 || (i % 3 && n > 65536))       /* of large ones a part */
            continue;
        for (size_t b = 0; b < n; b += step) /* the lowest bit of a byte here and there, as after a little training */
            at[b] ^= 1;
        snprintf(what, sizeof what, "tensor %.*s", (int)t->name.n, t->name.p);
        check_refused(what);
        for (size_t b = 0; b < n; b += step)
            at[b] ^= 1;
    }
}

static void test_keys(const pf_gguf *g)
{
    static const char *const keys[] = { "rope.freq_base", "attention.layer_norm_rms_epsilon", "context_length",
                                        "expert_weights_scale", "expert_used_count" };
    struct pf_str arch;
    int n_tried = 0;
    CHECK(pf_gguf_str(g, "general.architecture", &arch) == PF_OK);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        char key[128];
        snprintf(key, sizeof key, "%.*s.%s", (int)arch.n, arch.p, keys[i]);
        const struct pf_gguf_kv *kv = pf_gguf_find(g, key);
        if (!kv)
            continue;
        char *low = model.data + kv->offset + 8 + kv->key.n + 4;
        *low ^= 1;
        check_refused(key);
        *low ^= 1;
        n_tried++;
    }
    CHECK(n_tried > 2);
}

/* ---- Damage ------------------------------------------------------------------------------------------------------ */

static void flip(char *word, int bit)
{
    word[bit / 8] ^= (char)(1 << bit % 8);
}

static void test_damage(const char *path)
{
    size_t first = 64 + N * sizeof *tokens, n_words = (saved.n - first) / 8;
    pf_model *m = open_model(path, NULL);
    pf_session *s = open_session(m, N_CTX);
    for (int round = 0; round < 20; round++) {           /* 200 flips of bit 63, and then of any other */
        int bit = round == 0 ? 63 : round * 3;
        for (size_t i = 0; i < 200; i++)
            flip(saved.data + first + (i * 2654435761u + (size_t)round) % n_words * 8, bit);
        saved.at = 0;
        pf_status st = pf_session_load(s, read_file, &saved);        /* PF_EIO: a length is among what was flipped */
        CHECK((st == PF_EFORMAT || st == PF_EIO) && pf_session_pos(s) == 0, "200 flips of bit %d: %s", bit,
              pf_last_error());
        for (size_t i = 0; i < 200; i++)
            flip(saved.data + first + (i * 2654435761u + (size_t)round) % n_words * 8, bit);
    }
    CHECK(n_parts > 4 && n_parts < MOST_PARTS);
    for (int i = 0; i < n_parts; i++)
        for (size_t n = part_ends[i] - 1; n <= part_ends[i] + 1 && n < saved.n; n++) {
            struct file cut = { saved.data, n, 0, saved.room, 0 };
            CHECK(pf_session_load(s, read_file, &cut) == PF_EIO && pf_session_pos(s) == 0, "cut to %zu bytes", n);
        }
    saved.data[8] = 5;                       /* the version before */
    saved.at = 0;
    CHECK(pf_session_load(s, read_file, &saved) == PF_EUNSUPPORTED && strstr(pf_last_error(), "version 5"));
    saved.data[8] = 6;
    saved.at = 0;
    CHECK(pf_session_load(s, read_file, &saved) == PF_OK && pf_session_pos(s) == N, "%s", pf_last_error());
    pf_session_close(&s);
    pf_model_close(&m);
}

/* ---- Adapters ---------------------------------------------------------------------------------------------------- */

/* One that changes the output of the first layer's attention, by A of so much. */
static struct mem_file make_adapter(const pf_gguf *g, float alpha, float a)
{
    enum { RANK = 4 };
    static const char name[] = "blk.0.attn_output.weight";
    struct buf b = { 0 };
    struct pf_str arch;
    char text[128];
    const float value_b = 0.001f;
    const struct pf_tensor *t = pf_gguf_tensor(g, name);
    CHECK(pf_gguf_str(g, "general.architecture", &arch) == PF_OK && t, "a tensor %s", name);
    uint64_t n_in = (uint64_t)t->ne[0], n_out = (uint64_t)t->ne[1];
    put_header(&b, 3, 2, 4);
    snprintf(text, sizeof text, "%.*s", (int)arch.n, arch.p);
    put_kv_string(&b, "general.architecture", text);
    put_kv_string(&b, "general.type", "adapter");
    put_kv_string(&b, "adapter.type", "lora");
    put_key(&b, "adapter.lora.alpha", PF_GGUF_F32);
    put(&b, &alpha, sizeof alpha);
    snprintf(text, sizeof text, "%s.lora_a", name);
    put_tensor(&b, text, PF_F32, n_in, RANK, 0);
    snprintf(text, sizeof text, "%s.lora_b", name);
    put_tensor(&b, text, PF_F32, RANK, n_out, (n_in * RANK * sizeof a + 31) / 32 * 32);
    pad_to(&b, 32);
    for (uint64_t i = 0; i < n_in * RANK; i++)
        put(&b, &a, sizeof a);
    pad_to(&b, 32);
    for (uint64_t i = 0; i < n_out * RANK; i++)
        put(&b, &value_b, sizeof value_b);
    pad_to(&b, 32);
    struct mem_file f = mem_file_new(b.p, b.n);
    free(b.p);
    return f;
}

static void test_adapters(const pf_gguf *g, const char *path)
{
    struct mem_file files[] = { make_adapter(g, 8, 0.01f), make_adapter(g, 16, 0.01f), make_adapter(g, 8, 0.02f) };
    const struct { int file; float scale; bool same; } cases[] = {
        { 0, 1, true }, { 1, 1, false }, { 2, 1, false }, { 0, 0.5f, false },
    };
    save(path, &(struct pf_adapter){ files[0].path, 1 });
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        pf_status st = load(path, &(struct pf_adapter){ files[cases[i].file].path, cases[i].scale });
        CHECK(st == (cases[i].same ? PF_OK : PF_EINVAL), "adapter %d: status %d: %s", (int)i, st, pf_last_error());
    }
    CHECK(load(path, NULL) == PF_EINVAL, "without the adapter");
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        mem_file_close(&files[i]);
}

int main(int argc, char **argv)
{
    pf_gguf *g;
    if (argc != 2)
        return 2;
    FILE *f = fopen(argv[1], "rb");
    CHECK(f && fseek(f, 0, SEEK_END) == 0);
    model.n = (size_t)ftell(f);
    model.data = malloc(model.n);
    rewind(f);
    CHECK(fread(model.data, 1, model.n, f) == model.n);
    fclose(f);
    for (int i = 0; i < N; i++)
        tokens[i] = i;
    CHECK(pf_gguf_open(&g, argv[1], 0) == PF_OK, "%s", pf_last_error());
    save(argv[1], NULL);
    test_damage(argv[1]);
    test_weights(g);
    test_keys(g);
    test_adapters(g, argv[1]);
    pf_gguf_close(&g);
    free(saved.data);
    free(model.data);
    return check_status();
}
