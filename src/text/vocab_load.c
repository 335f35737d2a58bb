/* Building a vocabulary from a file's tokenizer.* keys. See vocab_impl.h for what is built.
 *
 * Order: the kind; token texts, types and scores; the table of texts; the kind's own data (pre-tokenizer, merges); special
 * ids and flags; special tokens in order; which tokens end a reply. A half-built vocabulary can be closed. */
#include <stdlib.h>
#include <string.h>

#include "base/pf_mem.h"
#include "text/vocab_impl.h"

/* ---- Texts and the table ------------------------------------------------------------------------------------ */

enum { BLOCK_BYTES = 1 << 18 };
struct pf_text_block {
    struct pf_text_block *next;
    size_t used, cap;
    char bytes[];
};

const char *pf_text_keep(struct pf_vocab *v, const char *p, size_t n)
{
    struct pf_text_block *b = v->blocks;
    if (!b || b->cap - b->used < n) {
        size_t cap = n > BLOCK_BYTES ? n : BLOCK_BYTES;
        b = pf_alloc(PF_MEM_TEXT, sizeof *b + cap);
        if (!b)
            return NULL;
        b->cap = cap;
        b->next = v->blocks;
        v->blocks = b;
    }
    char *copy = b->bytes + b->used;
    b->used += n;
    if (n)
        memcpy(copy, p, n);
    return copy;
}

static uint32_t hash_of(const char *p, size_t n)
{
    uint64_t h = n * UINT64_C(0x9E3779B97F4A7C15) + 1;
    for (; n > 0;) {
        uint64_t word = 0;
        size_t k = n < 8 ? n : 8;
        memcpy(&word, p, k);
        h = (h ^ word) * UINT64_C(0xD6E8FEB86659FD93);
        h ^= h >> 32;
        p += k;
        n -= k;
    }
    h *= UINT64_C(0xD6E8FEB86659FD93);
    return (uint32_t)(h >> 32);
}

/* The slot of this text, or the free one where it belongs. */
static struct pf_text_slot *slot_of(const struct pf_vocab *v, uint32_t hash, const char *p, size_t n)
{
    for (size_t i = hash & v->table_mask;; i = (i + 1) & v->table_mask) {
        struct pf_text_slot *s = &v->table[i];
        if (!s->id_plus_1)
            return s;
        const struct pf_bytes *text = &v->texts[s->id_plus_1 - 1];
        if (s->hash == hash && text->n == n && memcmp(text->p, p, n) == 0)
            return s;
    }
}

int32_t pf_text_find(const struct pf_vocab *v, const char *p, size_t n)
{
    return n ? (int32_t)slot_of(v, hash_of(p, n), p, n)->id_plus_1 - 1 : -1;
}

static pf_status table_resize(struct pf_vocab *v, size_t n_slots)
{
    struct pf_text_slot *old = v->table, *fresh = pf_alloc_array(PF_MEM_TEXT, n_slots, sizeof *fresh);
    if (!fresh)
        PF_FAIL(PF_ENOMEM, "no memory for a table of %zu token texts", n_slots);
    size_t n_old = old ? v->table_mask + 1 : 0;
    v->table = fresh;
    v->table_mask = n_slots - 1;
    for (size_t i = 0; i < n_old; i++) {
        size_t at = old[i].hash & v->table_mask;
        while (fresh[at].id_plus_1)
            at = (at + 1) & v->table_mask;
        if (old[i].id_plus_1)
            fresh[at] = old[i];
    }
    pf_free(old);
    return PF_OK;
}

/* Enters texts[id], unless it is empty or another symbol has the same. */
static pf_status table_add(struct pf_vocab *v, int32_t id)
{
    struct pf_bytes text = v->texts[id];
    if (text.n == 0)
        return PF_OK;
    if (2 * (v->table_used + 1) > v->table_mask)
        PF_TRY(table_resize(v, 2 * (v->table_mask + 1)));
    uint32_t hash = hash_of(text.p, text.n);
    struct pf_text_slot *s = slot_of(v, hash, text.p, text.n);
    if (s->id_plus_1)
        return PF_OK;
    *s = (struct pf_text_slot){ hash, (uint32_t)id + 1 };
    v->table_used++;
    if (text.n > v->max_text)
        v->max_text = text.n;
    return PF_OK;
}

static pf_status symbols_grow(struct pf_vocab *v)
{
    if (v->symbol_cap > INT32_MAX / 2)
        PF_FAIL(PF_EUNSUPPORTED, "a vocabulary with more than %d texts in its merges", v->symbol_cap);
    struct pf_bytes *texts = pf_realloc(PF_MEM_TEXT, v->texts, 2 * (size_t)v->symbol_cap * sizeof *texts);
    if (!texts)
        PF_FAIL(PF_ENOMEM, "no memory for %d token texts", 2 * v->symbol_cap);
    v->texts = texts;
    v->symbol_cap *= 2;
    return PF_OK;
}

pf_status pf_text_intern(struct pf_vocab *v, const char *p, size_t n, int32_t *symbol)
{
    *symbol = pf_text_find(v, p, n);
    if (*symbol >= 0)
        return PF_OK;
    if (v->n_symbols == v->symbol_cap)
        PF_TRY(symbols_grow(v));
    struct pf_bytes text = { pf_text_keep(v, p, n), n };
    if (!text.p)
        PF_FAIL(PF_ENOMEM, "no memory for a token text of %zu bytes", n);
    v->texts[v->n_symbols] = text;
    *symbol = v->n_symbols++;
    return table_add(v, *symbol);
}

/* ---- The token arrays --------------------------------------------------------------------------------------- */

static bool is_array(const struct pf_gguf_kv *kv, enum pf_gguf_type a, enum pf_gguf_type b)
{
    return kv->type == PF_GGUF_ARRAY && (kv->elem == a || kv->elem == b);
}

static pf_status refuse(const pf_gguf *g, const struct pf_gguf_kv *kv, const char *why)
{
    PF_FAIL(PF_EFORMAT, "%s: %.*s at byte %llu %s", pf_gguf_path(g), (int)kv->key.n, kv->key.p,
            (unsigned long long)kv->offset, why);
}

static pf_status load_types(struct pf_vocab *v, const pf_gguf *g)
{
    const struct pf_gguf_kv *kv = pf_gguf_find(g, "tokenizer.ggml.token_type");
    if (kv && !is_array(kv, PF_GGUF_I32, PF_GGUF_U32))
        return refuse(g, kv, "is not an array of 32-bit integers");
    if (kv && kv->n < (uint64_t)v->n_tokens)
        return refuse(g, kv, "has fewer entries than there are tokens");
    for (int32_t id = 0; id < v->n_tokens; id++) {
        int32_t type = TOKEN_NORMAL;
        if (kv)
            memcpy(&type, (const char *)kv->data + 4 * (size_t)id, 4);
        v->types[id] = type >= TOKEN_NORMAL && type <= TOKEN_BYTE ? (uint8_t)type : 0;
    }
    return PF_OK;
}

/* Turns a float around so that a higher one gives a lower unsigned number, below PF_NO_PAIR. */
static uint32_t score_key(float score)
{
    uint32_t bits;
    score = score != score ? -__builtin_inff() : score + 0.0f;     /* no NaN, and -0 is 0 */
    memcpy(&bits, &score, 4);
    return bits & 0x80000000u ? bits : ~bits & 0x7FFFFFFFu;
}

static pf_status load_scores(struct pf_vocab *v, const pf_gguf *g)
{
    const struct pf_gguf_kv *kv = pf_gguf_find(g, "tokenizer.ggml.scores");
    if (kv && !is_array(kv, PF_GGUF_F32, PF_GGUF_I32))
        return refuse(g, kv, "is not an array of 32-bit floats");
    if (kv && kv->n < (uint64_t)v->n_tokens)
        return refuse(g, kv, "has fewer entries than there are tokens");
    if (v->kind != PF_VOCAB_SPM)
        return PF_OK;
    v->score_keys = pf_alloc_array(PF_MEM_TEXT, (size_t)v->n_tokens, sizeof *v->score_keys);
    if (!v->score_keys)
        PF_FAIL(PF_ENOMEM, "no memory for %d token scores", v->n_tokens);
    for (int32_t id = 0; id < v->n_tokens; id++) {
        float score = 0;
        int32_t whole;
        if (kv && kv->elem == PF_GGUF_F32)
            memcpy(&score, (const char *)kv->data + 4 * (size_t)id, 4);
        if (kv && kv->elem == PF_GGUF_I32) {
            memcpy(&whole, (const char *)kv->data + 4 * (size_t)id, 4);
            score = (float)whole;
        }
        v->score_keys[id] = score_key(score);
    }
    return PF_OK;
}

static bool is_special(const struct pf_vocab *v, int32_t id)
{
    uint8_t type = v->types[id];
    return type == TOKEN_CONTROL || type == TOKEN_UNKNOWN || type == TOKEN_USER_DEFINED;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The byte that "<0xNN>" names, or -1. */
static int named_byte(struct pf_bytes s)
{
    if (s.n != 6 || memcmp(s.p, "<0x", 3) != 0 || s.p[5] != '>')
        return -1;
    int hi = hex_digit(s.p[3]), lo = hex_digit(s.p[4]);
    return hi < 0 || lo < 0 ? -1 : 16 * hi + lo;
}

/* Text and piece of one token. buf holds s.n bytes. */
static pf_status load_token(struct pf_vocab *v, int32_t id, struct pf_str s, char *buf)
{
    static const char bytes[] =
        "\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0A\x0B\x0C\x0D\x0E\x0F";
    (void)bytes;
    char empty[32];
    if (s.n == 0) {
        s.n = (size_t)snprintf(empty, sizeof empty, "[EMPTY_%d]", id);
        s.p = buf = empty;
    }
    bool bpe = v->kind == PF_VOCAB_BPE;
    struct pf_bytes as_is = { NULL, s.n }, raw = { NULL, 0 };
    if (is_special(v, id)) {
        as_is.p = pf_text_keep(v, s.p, s.n);
        v->pieces[id] = as_is;
        if (!as_is.p)
            PF_FAIL(PF_ENOMEM, "no memory for token %d", id);
        if (bpe)
            return PF_OK;
    }
    raw.n = bpe ? pf_bpe_raw_text(buf, s.p, s.n) : pf_spm_raw_text(buf, s.p, s.n);
    raw.p = pf_text_keep(v, buf, raw.n);
    if (!raw.p)
        PF_FAIL(PF_ENOMEM, "no memory for token %d", id);
    v->texts[id] = raw;
    return PF_OK;
}
