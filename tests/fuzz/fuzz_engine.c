/* Any model file along the whole way that a program takes: inspected, opened, a conversation rendered, its text
 * tokenized, a session opened, a prompt and two tokens evaluated, saved, loaded.
 *
 * The input is a script, not a file: its bytes choose one of the models that PFMOE_FUZZ_MODELS lists (paths with colons
 * between them, GGUF files of a few MB at most) and then edits of its metadata, its tensor directory, its weights and
 * its saved session. So every input is nearly a model, and what lies behind the parser is reached as often as the
 * parser itself.
 *
 *     memory file     | header, keys, padding up to DATA_AT, directory | weights, as they are in the model |
 *     an input          rewrites this                                    changes a few values of these
 *
 * What must hold: no crash, a sentence without control bytes whenever something is refused, a saved session that loads
 * with the logits it had, a damaged one that does not, and no memory left over. */
#define _GNU_SOURCE
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../gguf/gguf_build.h"
#include "../memory_file.h"
#include "base/pf_mem.h"
#include "fuzz.h"
#include "pfmoe.h"

enum { MAX_MODELS = 128, MAX_KEYS = 128, MAX_TENSORS = 256, DATA_AT = 1 << 16, MAX_EDITS = 12, ROOM = 1 << 15 };
enum { N_CTX = 64 };
static const uint64_t MOST_BYTES = 256 << 20;       /* of a session that is worth opening here */

struct key {
    struct pf_str name;
    enum pf_gguf_type type, elem;
    uint64_t n;                              /* of elements that the file claims to have */
    const uint8_t *value;                    /* as it stands in a file, without type and count */
    size_t bytes;
};

struct directory {                           /* a file's metadata, which edits change */
    struct key keys[MAX_KEYS];
    struct pf_tensor tensors[MAX_TENSORS];   /* offset: in the weights */
    int n_keys, n_tensors;
};

struct base {
    struct directory d;
    pf_gguf *file;                           /* the strings above lie in it */
    uint8_t *data;                           /* the weights */
    size_t data_bytes;
    int fd;                                  /* of its memory file */
    bool changed;                            /* which does not hold these weights */
};

static struct base bases[MAX_MODELS];
static int n_bases;

/* ---- The script -------------------------------------------------------------------------------------------------- */

struct script {
    const uint8_t *p;
    size_t n;
};

static unsigned next(struct script *s)
{
    if (s->n == 0)
        return 0;
    s->n--;
    return *s->p++;
}

static unsigned below(struct script *s, unsigned n)
{
    unsigned v = next(s) << 8;
    return n ? (v | next(s)) % n : 0;
}

/* Values at which bounds lie, or any. */
static uint64_t integer(struct script *s)
{
    static const uint64_t edges[] = {
        0, 1, 2, 3, 5, 7, 8, 9, 16, 31, 32, 33, 48, 63, 64, 65, 96, 127, 128, 129, 255, 256, 257, 511, 512, 1023, 1024,
        1025, 1026, 2048, 4095, 4096, 4097, 32767, 32768, 65535, 65536, 1 << 20, 1 << 24, INT32_MAX, 1u << 31,
        UINT32_MAX, 1ull << 32, 1ull << 40, INT64_MAX, 1ull << 63, UINT64_MAX - 31, UINT64_MAX
    };
    unsigned i = below(s, sizeof edges / sizeof *edges + 4);
    return i < sizeof edges / sizeof *edges ? edges[i] : (uint64_t)next(s) | (uint64_t)next(s) << 8;
}

static double real(struct script *s)
{
    static const double edges[] = { 0, -0.0, 1, -1, 0.5, 2, 1e-6, 1e-30, 1e-40, 1e4, 1e6, 1e30, 3.4e38, 1e300, -1e30,
                                    INFINITY, -INFINITY, NAN };
    return edges[below(s, sizeof edges / sizeof *edges)];
}

static struct pf_str text(struct script *s)
{
    static const char *const words[] = {
        "", "llama", "gpt2", "bert", "none", "t5", "rwkv", "gpt-2", "llama-bpe", "qwen2", "deepseek-v3", "gpt-4o",
        "yarn", "linear", "longrope", "model", "adapter", "mmproj", "qwen3moe", "gpt-oss", "deepseek2", "glm4moe",
        "qwen3next", "deepseek4", "llama4", "granitemoe", "\033[2J\033]0;x\007red", "\x9b\x7f", "\xe2\x80\xae",
        "\xff\xfe", "tokenizer", "{{ messages[0].content }}", "{{ '\033[31m' }}{{ raise_exception('\033[2J\n') }}",
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}", "{{ 'ab' * 100000000 }}",
        "{% for i in range(1000000) %}{{ i }}{% endfor %}", "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
        "{{ messages | tojson }}{{ bos_token }}{{ x.y.z }}", "{{", "{% if %}", "{{ [[[[[[[[[[1]]]]]]]]]] | string }}",
        "{% set a = [1] %}{% for i in range(30) %}{% set a = a + a %}{% endfor %}{{ a }}", "a\0b", "long"
    };
    static char longest[4000];
    unsigned i = below(s, sizeof words / sizeof *words);
    if (strcmp(words[i], "long") == 0) {
        memset(longest, 'A' + (int)below(s, 64), sizeof longest);
        return (struct pf_str){ longest, sizeof longest };
    }
    return (struct pf_str){ words[i], strlen(words[i]) };
}

/* ---- Models that inputs begin with ------------------------------------------------------------------------------- */

static const size_t sizes[] = { 1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8 };       /* of value types */

static struct key *add_key(struct directory *d, struct pf_str name, enum pf_gguf_type type, enum pf_gguf_type elem,
                           uint64_t n, const uint8_t *value, size_t bytes)
{
    if (d->n_keys == MAX_KEYS)
        return NULL;
    struct key *k = &d->keys[d->n_keys++];
    *k = (struct key){ name, type, elem, n, value, bytes };
    return k;
}

static struct pf_str str(const char *s)
{
    return (struct pf_str){ s, strlen(s) };
}

static void take_key(struct directory *d, const struct pf_gguf_kv *kv)
{
    struct buf b = { 0 };
    for (uint64_t i = 0; kv->strings && i < kv->n; i++)
        put_bytes(&b, kv->strings[i].p, kv->strings[i].n);
    const uint8_t *value = kv->strings ? b.p : kv->data;
    add_key(d, kv->key, kv->type, kv->elem, kv->n, value, kv->strings ? b.n : (size_t)kv->n * sizes[kv->elem]);
}

/* Models for tests have no tokenizer: one of pieces, with a template. */
static void add_tokenizer(struct directory *d, int64_t n_vocab)
{
    static const char *const pieces[] = { "<unk>", "<s>", "</s>", "\xe2\x96\x81", "he", "ll", "lo", "\xe2\x96\x81w",
                                          "or", "ld", "<|user|>", "\n" };
    static const char tmpl[] = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}";
    struct buf tokens = { 0 }, scores = { 0 }, types = { 0 }, model = { 0 }, chat = { 0 };
    for (int64_t i = 0; i < n_vocab; i++) {
        char word[32];
        snprintf(word, sizeof word, i < 64 ? "%c" : "t%d", i < 64 ? 64 + (int)i : (int)i);
        put_string(&tokens, i < (int64_t)(sizeof pieces / sizeof *pieces) ? pieces[i] : word);
        put_u32(&scores, 0);
        put_u32(&types, i == 0 ? 2 : i < 3 || i == 10 ? 3 : 1);
    }
    put_string(&model, "llama");
    put_string(&chat, tmpl);
    for (int i = 0; i < d->n_keys; i++)
        if (d->keys[i].name.n == 20 && memcmp(d->keys[i].name.p, "tokenizer.ggml.model", 20) == 0) {
            free((void *)(uintptr_t)d->keys[i].value);
            d->keys[i] = (struct key){ d->keys[i].name, PF_GGUF_STRING, PF_GGUF_STRING, 1, model.p, model.n };
        }
    add_key(d, str("tokenizer.ggml.tokens"), PF_GGUF_ARRAY, PF_GGUF_STRING, (uint64_t)n_vocab, tokens.p, tokens.n);
    add_key(d, str("tokenizer.ggml.scores"), PF_GGUF_ARRAY, PF_GGUF_F32, (uint64_t)n_vocab, scores.p, scores.n);
    add_key(d, str("tokenizer.ggml.token_type"), PF_GGUF_ARRAY, PF_GGUF_I32, (uint64_t)n_vocab, types.p, types.n);
    add_key(d, str("tokenizer.chat_template"), PF_GGUF_STRING, PF_GGUF_STRING, 1, chat.p, chat.n);
}

static void take_tensors(struct base *b)
{
    uint64_t n = pf_gguf_n_tensors(b->file);
    for (uint64_t i = 0; i < n && i < MAX_TENSORS; i++) {
        struct pf_tensor *t = &b->d.tensors[b->d.n_tensors++];
        *t = *pf_gguf_tensor_at(b->file, i);
        t->offset = b->data_bytes;
        b->data_bytes += (t->n_bytes + 31) / 32 * 32;
    }
    b->data = calloc(b->data_bytes, 1);
    if (!b->data)
        abort();
    for (int i = 0; i < b->d.n_tensors; i++)
        memcpy(b->data + b->d.tensors[i].offset, b->d.tensors[i].data, b->d.tensors[i].n_bytes);
}

static void take_model(const char *path)
{
    struct base *b = &bases[n_bases];
    int64_t n_vocab = 0;
    if (n_bases == MAX_MODELS || pf_gguf_open(&b->file, path, 0) < 0 || pf_gguf_n_tensors(b->file) > MAX_TENSORS ||
        pf_gguf_n_kv(b->file) > MAX_KEYS - 8) {
        fprintf(stderr, "%s is left out: %s\n", path, pf_last_error());
        pf_gguf_close(&b->file);
        return;
    }
    for (uint64_t i = 0; i < pf_gguf_n_kv(b->file); i++)
        take_key(&b->d, pf_gguf_kv_at(b->file, i));
    for (uint64_t i = 0; i < pf_gguf_n_tensors(b->file); i++) {
        const struct pf_tensor *t = pf_gguf_tensor_at(b->file, i);
        if (t->name.n == 17 && memcmp(t->name.p, "token_embd.weight", 17) == 0)
            n_vocab = t->ne[1];
    }
    if (!pf_gguf_find(b->file, "tokenizer.ggml.tokens"))
        add_tokenizer(&b->d, n_vocab);
    take_tensors(b);
    b->fd = -1;
    b->changed = true;
    n_bases++;
}

static void take_models(void)
{
    char *list = strdup(getenv("PFMOE_FUZZ_MODELS") ? getenv("PFMOE_FUZZ_MODELS") : "");
    for (char *at = list, *path; (path = strsep(&at, ":"));)
        if (*path)
            take_model(path);
    free(list);
    if (n_bases == 0) {
        fprintf(stderr, "PFMOE_FUZZ_MODELS names no model\n");
        abort();
    }
}

/* ---- Edits ------------------------------------------------------------------------------------------------------- */

struct edits {
    struct directory d;
    uint8_t room[ROOM];                      /* for new values */
    size_t n_room;
    struct { size_t at; uint32_t value; } pokes[MAX_EDITS];
    struct { unsigned at; uint8_t value; } flips[MAX_EDITS];
    int n_pokes, n_flips;
    size_t cut;                              /* bytes that the file lacks at its end */
    bool damaged;                            /* a byte of the saved session is another */
    unsigned damage_at, damage;
};

static uint8_t *room_for(struct edits *e, size_t bytes)
{
    if (bytes > ROOM - e->n_room)
        return NULL;
    e->n_room += bytes;
    return e->room + e->n_room - bytes;
}

static void put_number(uint8_t *to, enum pf_gguf_type type, struct script *s)
{
    float f = (float)real(s);
    double d = real(s);
    uint64_t v = integer(s);
    if (type == PF_GGUF_F32)
        memcpy(to, &f, sizeof f);
    else if (type == PF_GGUF_F64)
        memcpy(to, &d, sizeof d);
    else
        memcpy(to, &v, sizes[type]);         /* little-endian, as the file */
}

/* The key becomes one value of the type. */
static void set_scalar(struct edits *e, struct key *k, enum pf_gguf_type type, struct script *s)
{
    if (type == PF_GGUF_ARRAY)
        return;
    if (type == PF_GGUF_STRING) {
        struct pf_str t = text(s);
        uint8_t *to = room_for(e, t.n + 8);
        uint64_t n = t.n;
        if (!to)
            return;
        memcpy(to, &n, 8);
        memcpy(to + 8, t.p, t.n);
        *k = (struct key){ k->name, type, type, 1, to, t.n + 8 };
        return;
    }
    uint8_t *to = room_for(e, sizes[type]);
    if (!to)
        return;
    put_number(to, type, s);
    *k = (struct key){ k->name, type, type, 1, to, sizes[type] };
}

static void edit_array(struct edits *e, struct key *k, struct script *s)
{
    size_t size = sizes[k->elem];
    if (below(s, 3) == 0 || size == 0) {     /* another count than there are elements */
        k->n = integer(s);
        return;
    }
    uint64_t n = below(s, 2) ? below(s, 1025) : k->n;
    uint8_t *to = n * size <= ROOM ? room_for(e, (size_t)n * size) : NULL;
    if (!to || k->bytes == 0 || n == 0)
        return;
    for (uint64_t i = 0; i < n * size; i++)
        to[i] = k->value[i % k->bytes];
    put_number(to + size * below(s, (unsigned)n), k->elem, s);
    *k = (struct key){ k->name, k->type, k->elem, n, to, (size_t)n * size };
}

static void edit_key(struct edits *e, struct script *s)
{
    struct directory *d = &e->d;
    int i = (int)below(s, (unsigned)d->n_keys);
    struct key *k = &d->keys[i];
    if (d->n_keys == 0)
        return;
    switch (below(s, 8)) {
    case 0:                                  /* left out: a default stands in */
        *k = d->keys[--d->n_keys];
        break;
    case 1:
        set_scalar(e, k, (enum pf_gguf_type)below(s, 13), s);
        break;
    case 2:
        add_key(d, k->name, k->type, k->elem, k->n, k->value, k->bytes);
        break;
    case 3:
        k->name = text(s);
        break;
    default:
        if (k->type == PF_GGUF_ARRAY)
            edit_array(e, k, s);
        else
            set_scalar(e, k, k->type, s);
    }
}

static void edit_tensor(struct edits *e, struct script *s)
{
    struct directory *d = &e->d;
    if (d->n_tensors == 0)
        return;
    struct pf_tensor *t = &d->tensors[below(s, (unsigned)d->n_tensors)];
    switch (below(s, 7)) {
    case 0:
        t->ne[below(s, 4)] = (int64_t)integer(s);
        break;
    case 1:
        t->type = (enum pf_qtype)below(s, 45);
        break;
    case 2:
        t->offset = integer(s);
        break;
    case 3:
        t->name = text(s);
        break;
    case 4:
        *t = d->tensors[--d->n_tensors];
        break;
    case 5:
        t->n_dims = (int)below(s, 6);
        break;
    default:
        t->name = d->tensors[below(s, (unsigned)d->n_tensors)].name;
    }
}

static void edit(struct edits *e, const struct base *b, struct script *s)
{
    switch (below(s, 16)) {
    case 0:
        e->cut = 1 + below(s, 4096);
        break;
    case 1:
        e->flips[e->n_flips].at = below(s, 1 << 16);
        e->flips[e->n_flips++].value = (uint8_t)(1 + below(s, 255));
        break;
    case 2:
    case 3: {
        float f = (float)real(s);
        e->pokes[e->n_pokes].at = ((size_t)below(s, 1 << 16) << 8 | next(s)) % (b->data_bytes - 4);
        memcpy(&e->pokes[e->n_pokes++].value, &f, 4);
        break;
    }
    case 4:
        e->damaged = true;
        e->damage_at = (unsigned)(below(s, 1 << 16) << 8 | next(s));
        e->damage = 1 + below(s, 255);
        break;
    case 5:
    case 6:
    case 7:
        edit_tensor(e, s);
        break;
    default:
        edit_key(e, s);
    }
}

/* ---- The file ---------------------------------------------------------------------------------------------------- */

static void put_key_value(struct buf *b, const struct key *k)
{
    put_bytes(b, k->name.p, k->name.n);
    put_u32(b, (uint32_t)k->type);
    if (k->type == PF_GGUF_ARRAY) {
        put_u32(b, (uint32_t)k->elem);
        put_u64(b, k->n);
    }
    put(b, k->value, k->bytes);
}

static void put_directory(struct buf *b, const struct directory *d)
{
    for (int i = 0; i < d->n_tensors; i++) {
        const struct pf_tensor *t = &d->tensors[i];
        put_bytes(b, t->name.p, t->name.n);
        put_u32(b, (uint32_t)t->n_dims);
        for (int j = 0; j < t->n_dims && j < 4; j++)
            put_u64(b, (uint64_t)t->ne[j]);
        put_u32(b, (uint32_t)t->type);
        put_u64(b, t->offset);
    }
}

/* Metadata of DATA_AT bytes: the last key is as long as it takes. */
static void build(struct buf *b, const struct edits *e)
{
    static const char padding[] = "fuzz.padding";
    struct buf rest = { 0 };
    put_directory(&rest, &e->d);
    put_header(b, 3, (uint64_t)e->d.n_tensors, (uint64_t)e->d.n_keys + 1);
    for (int i = 0; i < e->d.n_keys; i++)
        put_key_value(b, &e->d.keys[i]);
    put_key(b, padding, PF_GGUF_STRING);
    size_t used = b->n + 8 + rest.n, pad = used < DATA_AT ? DATA_AT - used : 0;
    put_u64(b, pad);
    put_zeros(b, pad);
    put(b, rest.p, rest.n);
    free(rest.p);
    for (int i = 0; i < e->n_flips; i++)
        b->p[e->flips[i].at % b->n] ^= e->flips[i].value;
}

static void write_at(int fd, const void *p, size_t n, size_t at)
{
    if (pwrite(fd, p, n, (off_t)at) != (ssize_t)n)
        abort();
}

/* The model's memory file with the edits in it: the weights are written anew only where the last input changed them. */
static int write_file_of(struct base *b, const struct edits *e)
{
    struct buf head = { 0 };
    build(&head, e);
    if (b->fd < 0)
        b->fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (b->changed) {
        if (b->fd < 0 || ftruncate(b->fd, 0) != 0)
            abort();
        write_at(b->fd, b->data, b->data_bytes, DATA_AT);
    }
    b->changed = head.n != DATA_AT || e->cut > 0 || e->n_pokes > 0;
    write_at(b->fd, head.p, head.n, 0);
    for (int i = 0; i < e->n_pokes; i++)
        write_at(b->fd, &e->pokes[i].value, 4, DATA_AT + e->pokes[i].at);
    if (e->cut && ftruncate(b->fd, (off_t)(DATA_AT + b->data_bytes - e->cut % b->data_bytes)) != 0)
        abort();
    free(head.p);
    return b->fd;
}

/* ---- What a program does with it --------------------------------------------------------------------------------- */

static void is_clean(const char *sentence)
{
    size_t n = strlen(sentence);
    bool clean = n < 1000;
    for (size_t i = 0; i < n; i++)
        clean &= (unsigned char)sentence[i] >= ' ' && sentence[i] != 0x7f;
    if (!clean)
        fprintf(stderr, "not a sentence for a terminal: %.400s\n", sentence);
    assert(clean);
}

/* A sentence has more than a word, but for the text that a template raises, which is passed on as it is. */
static bool went_well(pf_status st)
{
    if (st < 0)
        is_clean(pf_last_error());
    assert(st == PF_OK || st == PF_ETEMPLATE || strlen(pf_last_error()) > 8);
    return st == PF_OK;
}

static void log_line(void *ctx, enum pf_log_level level, const char *line)
{
    (void)ctx, (void)level;
    is_clean(line);
}

/* A conversation through the model's template and tokenizer; at least one token, whatever they say. */
static size_t prompt(const pf_model *m, int32_t *tokens, size_t cap)
{
    static const struct pf_message messages[] = { { .role = "system", .content = "hello" },
                                                  { .role = "user", .content = "hello world" } };
    static char rendered[4096];
    size_t n = 0, need = 0;
    const struct pf_model_info *info = pf_model_info(m);
    bool ok = went_well(pf_chat_render(m, messages, 2, NULL, rendered, sizeof rendered, &need));
    if (!ok || need > sizeof rendered)
        need = (size_t)snprintf(rendered, sizeof rendered, "hello world\n");
    if (!info->has_tokenizer || !went_well(pf_tokenize(m, rendered, need, PF_TOK_PARSE_SPECIAL, tokens, cap, &n)))
        n = 0;
    n = n < cap ? n : cap;
    for (size_t i = 0; i < n; i++)
        tokens[i] = (int32_t)(tokens[i] % info->n_vocab);
    if (n == 0)
        tokens[n++] = 0;
    return n;
}

/* Loads a first part and its continuation, which begins at `more`. */
static bool load_both(pf_session *s, struct file *saved, size_t more)
{
    saved->at = 0;
    if (!went_well(pf_session_load(s, read_file, saved)))
        return false;
    assert(saved->at == more);
    return went_well(pf_session_load_more(s, read_file, saved));
}

/* A session is saved, goes on by a token if it can, and what is new is saved; then it is loaded again, with damage
 * first. */
static void save_and_load(pf_session *s, const struct edits *e, int64_t n_vocab)
{
    struct file saved = { 0 };
    struct pf_saved since = { 0 };
    size_t bytes = (size_t)n_vocab * sizeof(float);
    int32_t again = 0;
    float *before = malloc(bytes);
    if (!before || !went_well(pf_session_save_more(s, &since, write_file, &saved)))
        goto end;
    size_t more = saved.n;
    went_well(pf_session_eval(s, &again, 1, 0));
    int64_t pos = pf_session_pos(s);
    bool written = went_well(pf_session_save_more(s, &since, write_file, &saved));
    assert(written);
    bool known = went_well(pf_session_eval(s, &again, 1, 0));
    if (known)
        memcpy(before, pf_session_logits(s), bytes);
    if (e->damaged) {
        saved.data[e->damage_at % saved.n] ^= (char)e->damage;
        assert(!load_both(s, &saved, more) && pf_session_pos(s) == 0);
        saved.data[e->damage_at % saved.n] ^= (char)e->damage;
    }
    bool loaded = load_both(s, &saved, more);
    assert(loaded && pf_session_pos(s) == pos);
    if (went_well(pf_session_eval(s, &again, 1, 0)))
        assert(known && memcmp(before, pf_session_logits(s), bytes) == 0);
    else
        assert(!known);
end:
    free(before);
    free(saved.data);
}

static void use_session(pf_model *m, pf_session *s, const struct edits *e)
{
    int32_t tokens[12], tok;
    struct pf_sampler sampler;
    pf_sampler_init(&sampler, 1);
    if (!went_well(pf_session_sync(s, tokens, prompt(m, tokens, 12), NULL)))
        return;
    for (int i = 0; i < 2; i++) {
        if (!went_well(pf_sample(&sampler, s, &tok)))
            return;
        assert(tok >= 0 && tok < pf_model_info(m)->n_vocab);
        if (!went_well(pf_session_eval(s, &tok, 1, 0)))
            return;
    }
    save_and_load(s, e, pf_model_info(m)->n_vocab);
}

static void use_model(pf_model *m, const struct edits *e, struct script *s)
{
    struct pf_session_opts so;
    pf_session *session = NULL;
    uint64_t kv = 0, work = 0;
    pf_session_opts_init(&so);
    so.n_ctx = N_CTX;
    so.n_batch = 8;
    so.kv_type = (enum pf_kv_type)below(s, 3);
    if (!went_well(pf_session_bytes(m, &so, &kv, &work)) || kv + work > MOST_BYTES)
        return;
    if (went_well(pf_session_open(&session, m, &so)))
        use_session(m, session, e);
    pf_session_close(&session);
}

static void run(int fd, const struct edits *e, struct script *s)
{
    struct pf_model_opts o;
    struct pf_file_info info;
    pf_model *m;
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    went_well(pf_file_inspect(path, 0, &info));
    pf_model_opts_init(&o);
    o.n_threads = 1;
    o.device = -1;
    o.ram_bytes = 1 << 30;
    o.log = log_line;
    if (went_well(pf_model_open(&m, path, &o)))
        use_model(m, e, s);
    pf_model_close(&m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct edits e;
    struct script s = { data, size };
    struct pf_mem_stats before, after;
    if (n_bases == 0)
        take_models();
    struct base *b = &bases[below(&s, (unsigned)n_bases)];
    e.d = b->d;
    e.n_room = 0;
    e.n_pokes = e.n_flips = 0;
    e.cut = 0;
    e.damaged = false;
    int n = 1 + (int)below(&s, below(&s, 4) ? 2 : MAX_EDITS);
    for (int i = 0; i < n; i++)
        edit(&e, b, &s);
    pf_mem_stats_get(&before);
    run(write_file_of(b, &e), &e, &s);
    pf_mem_stats_get(&after);
    assert(after.n_live == before.n_live);
    return 0;
}
