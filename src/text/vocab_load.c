/* Building a vocabulary from a file's tokenizer.* keys. See vocab_impl.h for what is built.
 *
 * Order: the kind; token texts, types and scores; the table of texts; the kind's own data (pre-tokenizer, merges);
 * special ids and flags; special tokens in order; which tokens end a reply. A half-built vocabulary can be closed. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

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

/* Short texts, which most are, need no look at the text to be compared: their key is the text, with a top byte of 0
 * to 7. */
static uint64_t key_of(const struct pf_vocab *v, const char *p, size_t n)
{
    uint64_t key = 0;
    if (n >= 8)
        return pf_hash_text(&v->hash_key, p, n) | UINT64_C(1) << 63;
    memcpy(&key, p, n);
    return key | (uint64_t)n << 56;
}

static size_t home_of(const struct pf_vocab *v, uint64_t key)
{
    return pf_hash_word(&v->hash_key, key) & v->table_mask;
}

/* The slot of this text, or the free one where it belongs. */
static struct pf_text_slot *slot_of(const struct pf_vocab *v, uint64_t key, const char *p, size_t n)
{
    for (size_t i = home_of(v, key);; i = (i + 1) & v->table_mask) {
        struct pf_text_slot *s = &v->table[i];
        if (!s->id_plus_1)
            return s;
        if (s->key != key)
            continue;
        const struct pf_bytes *text = &v->texts[s->id_plus_1 - 1];
        if (n < 8 || (text->n == n && memcmp(text->p, p, n) == 0))
            return s;
    }
}

int32_t pf_text_find(const struct pf_vocab *v, const char *p, size_t n)
{
    return n ? (int32_t)slot_of(v, key_of(v, p, n), p, n)->id_plus_1 - 1 : -1;
}

void pf_text_prefetch(const struct pf_vocab *v, const char *p, size_t n)
{
    __builtin_prefetch(&v->table[home_of(v, key_of(v, p, n))]);
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
        size_t at = home_of(v, old[i].key);
        while (fresh[at].id_plus_1)
            at = (at + 1) & v->table_mask;
        if (old[i].id_plus_1)
            fresh[at] = old[i];
    }
    pf_free(old);
    return PF_OK;
}

/* Enters texts[id] in the table, unless it is empty or another symbol has the same text. */
static pf_status table_add(struct pf_vocab *v, int32_t id)
{
    struct pf_bytes text = v->texts[id];
    if (text.n == 0)
        return PF_OK;
    if (2 * (v->table_used + 1) > v->table_mask)
        PF_TRY(table_resize(v, 2 * (v->table_mask + 1)));
    uint64_t key = key_of(v, text.p, text.n);
    struct pf_text_slot *s = slot_of(v, key, text.p, text.n);
    if (s->id_plus_1)
        return PF_OK;
    *s = (struct pf_text_slot){ key, (uint32_t)id + 1 };
    v->table_used++;
    if (text.n > v->max_text)
        v->max_text = text.n;
    return PF_OK;
}

static pf_status symbols_grow(struct pf_vocab *v)
{
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
    PF_FAIL(PF_EFORMAT, "%s: %s at byte %llu %s", pf_gguf_path(g), pf_gguf_quote(kv->key).s,
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
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The byte that "<0xNN>" names, or -1. */
static int named_byte(struct pf_bytes s)
{
    if (s.n != 6 || memcmp(s.p, "<0x", 3) != 0 || s.p[5] != '>')
        return -1;
    int hi = hex_digit(s.p[3]), lo = hex_digit(s.p[4]);
    return hi < 0 || lo < 0 ? -1 : 16 * hi + lo;
}

/* Text and piece of one token: which of them a type has, and in which form. buf holds s.n + 1 bytes. */
static pf_status load_token(struct pf_vocab *v, int32_t id, struct pf_str s, char *buf)
{
    char empty[32], empty_raw[32];
    if (s.n == 0) {
        s.n = (size_t)snprintf(empty, sizeof empty, "[EMPTY_%d]", id);
        s.p = empty;
        buf = empty_raw;
    }
    bool bpe = v->kind == PF_VOCAB_BPE, special = is_special(v, id);
    struct pf_bytes piece = { s.p, s.n };
    if (special && !(piece.p = pf_text_keep(v, s.p, s.n)))
        PF_FAIL(PF_ENOMEM, "no memory for token %d", id);
    if (!special || !bpe) {
        struct pf_bytes raw = { NULL, bpe ? pf_bpe_raw_text(buf, s.p, s.n) : pf_spm_raw_text(buf, s.p, s.n) };
        raw.p = pf_text_keep(v, buf, raw.n);
        if (!raw.p)
            PF_FAIL(PF_ENOMEM, "no memory for token %d", id);
        v->texts[id] = raw;
        piece = special ? piece : raw;
    }
    int byte = v->types[id] == TOKEN_BYTE ? named_byte((struct pf_bytes){ s.p, s.n }) : -1;
    if (byte >= 0) {
        buf[0] = (char)byte;
        piece = (struct pf_bytes){ pf_text_keep(v, buf, 1), 1 };
        if (!piece.p)
            PF_FAIL(PF_ENOMEM, "no memory for token %d", id);
    }
    if (v->types[id] == TOKEN_UNUSED || v->types[id] == 0)
        piece = (struct pf_bytes){ "", 0 };
    v->pieces[id] = piece;
    return PF_OK;
}

static pf_status load_token_texts(struct pf_vocab *v, const struct pf_gguf_kv *kv)
{
    size_t longest = 0, n_slots = 1024;
    while (n_slots < 2 * ((size_t)v->n_tokens + 512))
        n_slots *= 2;
    PF_TRY(table_resize(v, n_slots));
    for (uint64_t i = 0; i < kv->n; i++)
        longest = kv->strings[i].n > longest ? kv->strings[i].n : longest;
    char *buf = pf_alloc(PF_MEM_TEXT, longest + 1);
    pf_status st = buf ? PF_OK : pf_fail(PF_ENOMEM, "no memory for a token text of %zu bytes", longest);
    for (int32_t id = 0; id < v->n_tokens && st == PF_OK; id++) {
        st = load_token(v, id, kv->strings[id], buf);
        if (st == PF_OK)
            st = table_add(v, id);
    }
    pf_free(buf);
    return st;
}

static pf_status load_tokens(struct pf_vocab *v, const pf_gguf *g)
{
    const struct pf_gguf_kv *kv = pf_gguf_find(g, "tokenizer.ggml.tokens");
    if (!kv)
        PF_FAIL(PF_EFORMAT, "%s: tokenizer.ggml.tokens is missing", pf_gguf_path(g));
    if (!is_array(kv, PF_GGUF_STRING, PF_GGUF_STRING))
        return refuse(g, kv, "is not an array of strings");
    if (kv->n == 0)
        return refuse(g, kv, "is empty");
    if (kv->n > PF_MAX_TOKENS)
        return refuse(g, kv, "has more than 2097152 entries");
    size_t n = kv->n;
    v->n_tokens = v->n_symbols = (int32_t)n;
    v->symbol_cap = (int32_t)n + 512;
    v->texts = pf_alloc_array(PF_MEM_TEXT, (size_t)v->symbol_cap, sizeof *v->texts);
    v->pieces = pf_alloc_array(PF_MEM_TEXT, n, sizeof *v->pieces);
    v->types = pf_alloc(PF_MEM_TEXT, n);
    v->is_end = pf_alloc(PF_MEM_TEXT, n * sizeof *v->is_end);
    if (!v->texts || !v->pieces || !v->types || !v->is_end)
        PF_FAIL(PF_ENOMEM, "no memory for %zu tokens", n);
    PF_TRY(load_types(v, g));
    PF_TRY(load_scores(v, g));
    return load_token_texts(v, kv);
}

/* ---- Special tokens ----------------------------------------------------------------------------------------- */

static int compare_bytes(struct pf_bytes a, struct pf_bytes b)
{
    int order = memcmp(a.p, b.p, a.n < b.n ? a.n : b.n);
    return order ? order : (a.n > b.n) - (a.n < b.n);
}

static int compare_specials(const void *a, const void *b, void *vocab)
{
    const struct pf_vocab *v = vocab;
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    int order = compare_bytes(v->pieces[x], v->pieces[y]);
    return order ? order : (x > y) - (x < y);
}

static pf_status sort_specials(struct pf_vocab *v)
{
    int32_t n = 0;
    for (int32_t id = 0; id < v->n_tokens; id++)
        n += is_special(v, id);
    v->specials = pf_alloc_array(PF_MEM_TEXT, (size_t)n, sizeof *v->specials);
    if (!v->specials)
        PF_FAIL(PF_ENOMEM, "no memory for %d special tokens", n);
    n = 0;
    for (int32_t id = 0; id < v->n_tokens; id++)
        if (is_special(v, id)) {
            v->specials[n++] = id;
            v->special_first[(unsigned char)v->pieces[id].p[0] + 1]++;
        }
    qsort_r(v->specials, (size_t)n, sizeof *v->specials, compare_specials, v);
    for (int b = 0; b < 256; b++)
        v->special_first[b + 1] += v->special_first[b];
    return PF_OK;
}

/* The value of an id key, -1 when it is absent or no token has that id. */
static pf_status load_id(const struct pf_vocab *v, const pf_gguf *g, const char *key, int32_t fallback, int32_t *id)
{
    int64_t value = fallback;
    PF_TRY(pf_gguf_int_opt(g, key, INT64_MIN, INT64_MAX, &value));
    *id = value >= 0 && value < v->n_tokens ? (int32_t)value : -1;
    return PF_OK;
}

static pf_status load_ids(struct pf_vocab *v, const pf_gguf *g)
{
    /* SentencePiece's own defaults. Byte-level files without the keys have no such tokens. */
    bool spm = v->kind == PF_VOCAB_SPM;
    PF_TRY(load_id(v, g, "tokenizer.ggml.bos_token_id", spm ? 1 : -1, &v->bos));
    PF_TRY(load_id(v, g, "tokenizer.ggml.eos_token_id", spm ? 2 : -1, &v->eos));
    PF_TRY(load_id(v, g, "tokenizer.ggml.unknown_token_id", spm ? 0 : -1, &v->unk));
    PF_TRY(load_id(v, g, "tokenizer.ggml.padding_token_id", -1, &v->pad));
    v->add_bos = spm || (v->pretok && v->pretok->add_bos);
    v->add_space_prefix = spm;
    PF_TRY(pf_gguf_bool_opt(g, "tokenizer.ggml.add_bos_token", &v->add_bos));
    PF_TRY(pf_gguf_bool_opt(g, "tokenizer.ggml.add_eos_token", &v->add_eos));
    PF_TRY(pf_gguf_bool_opt(g, "tokenizer.ggml.add_space_prefix", &v->add_space_prefix));
    v->add_bos = (v->add_bos || v->kind == PF_VOCAB_GEMMA) && v->bos >= 0;
    v->add_eos = v->add_eos && v->eos >= 0;
    v->add_space_prefix = v->add_space_prefix && spm;
    /* Files do not say so, but Phi-3's special tokens take the white space after them along. */
    struct pf_str name = { "", 0 };
    PF_TRY(pf_gguf_str_opt(g, "general.name", &name));
    for (size_t i = 0; i + 4 <= name.n; i++)
        if (strncasecmp(name.p + i, "phi", 3) == 0 &&
            (name.p[i + 3] == '3' || (i + 5 <= name.n && memcmp(name.p + i + 3, "-3", 2) == 0)))
            v->strip_after_special = true;
    return PF_OK;
}

/* ---- The end of a reply ------------------------------------------------------------------------------------- */

static bool has_text(const struct pf_vocab *v, int32_t id, const char *text)
{
    size_t n = strlen(text);
    return v->pieces[id].n == n && memcmp(v->pieces[id].p, text, n) == 0;
}

/* The control or user-defined token with this text, or -1. An ordinary token that spells it does not count. */
static int32_t find_marker(const struct pf_vocab *v, const char *text)
{
    unsigned char first = (unsigned char)text[0];
    for (int32_t i = v->special_first[first]; i < v->special_first[first + 1]; i++)
        if (has_text(v, v->specials[i], text) && v->types[v->specials[i]] != TOKEN_UNKNOWN)
            return v->specials[i];
    return -1;
}

/* find_marker, and what it finds is a control token from now on, whatever the file says: text must not forge it. */
static int32_t take_marker(struct pf_vocab *v, const char *text)
{
    int32_t id = find_marker(v, text);
    if (id >= 0 && v->types[id] == TOKEN_USER_DEFINED)
        v->types[id] = TOKEN_CONTROL;
    return id;
}

static void set_end(struct pf_vocab *v, int32_t id, bool end)
{
    if (id >= 0)
        v->is_end[id] = end;
}

/* The id under key, else the first of the texts (one NUL after each, two at the end) that is a marker. */
static pf_status end_by_key(struct pf_vocab *v, const pf_gguf *g, const char *key, const char *texts)
{
    int32_t id;
    PF_TRY(load_id(v, g, key, -1, &id));
    for (const char *t = texts; id < 0 && *t; t += strlen(t) + 1)
        id = take_marker(v, t);
    set_end(v, id, true);
    return PF_OK;
}

static pf_status end_by_list(struct pf_vocab *v, const pf_gguf *g)
{
    const struct pf_gguf_kv *kv = pf_gguf_find(g, "tokenizer.ggml.eos_token_ids");
    if (kv && !is_array(kv, PF_GGUF_I32, PF_GGUF_U32))
        return refuse(g, kv, "is not an array of 32-bit integers");
    for (uint64_t i = 0; kv && i < kv->n; i++) {
        int32_t id;
        memcpy(&id, (const char *)kv->data + 4 * i, 4);
        set_end(v, id < v->n_tokens ? id : -1, true);
    }
    return PF_OK;
}

/* GPT-OSS writes its reasoning and its answer into named channels of one reply; a reader needs the marks between
 * them. */
static void show_channels(struct pf_vocab *v)
{
    static const char *const texts[] = { "<|start|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|end|>" };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        int32_t id = find_marker(v, texts[i]);
        if (id >= 0)
            v->types[id] = TOKEN_CONTROL_SHOWN;
    }
}

/* Fill-in-the-middle marks do not end a reply, but are control tokens as much. */
static void take_fim_marks(struct pf_vocab *v)
{
    static const char *const texts[] = {
        "<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>", "<|code_prefix|>",
        "<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>", "<|code_suffix|>",
        "<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>", "<|code_middle|>",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        take_marker(v, texts[i]);
}

static pf_status load_ends(struct pf_vocab *v, const pf_gguf *g)
{
    static const char *const texts[] = {
        "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>",
        "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>",
        "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>", "<｜end▁of▁sentence｜>", "[e~[",
    };
    take_fim_marks(v);
    set_end(v, v->eos, true);
    PF_TRY(end_by_list(v, g));
    PF_TRY(end_by_key(v, g, "tokenizer.ggml.eot_token_id", ""));
    PF_TRY(end_by_key(v, g, "tokenizer.ggml.eom_token_id", ""));
    PF_TRY(end_by_key(v, g, "tokenizer.ggml.fim_pad_token_id", "<|fim_pad|>\0<fim-pad>\0<fim_pad>\0<PAD>\0"));
    PF_TRY(end_by_key(v, g, "tokenizer.ggml.fim_rep_token_id",
                      "<|fim_repo|>\0<|repo_name|>\0<fim-repo>\0<REPO>\0<reponame>\0"));
    PF_TRY(end_by_key(v, g, "tokenizer.ggml.fim_sep_token_id", "<|file_sep|>\0"));
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        set_end(v, take_marker(v, texts[i]), true);
    /* In these families the token ends a message or a turn's part, and the reply goes on. */
    bool returns = find_marker(v, "<|return|>") >= 0 && find_marker(v, "<|call|>") >= 0;
    bool flushes = find_marker(v, "<|flush|>") >= 0 && find_marker(v, "<|calls|>") >= 0;
    if (returns)
        show_channels(v);
    if (returns || flushes)
        set_end(v, find_marker(v, "<|end|>"), false);
    if (find_marker(v, "<|tool_response>") >= 0)
        set_end(v, find_marker(v, "</s>"), false);
    /* Qwen has an ordinary token spelled like another family's end mark. This token neither ends a reply nor is
     * matched in text, but other engines leave it out of plain text, and so do the recorded pieces. */
    v->unshown = pf_text_find(v, "</s>", 4);
    return PF_OK;
}

/* ---- The whole ---------------------------------------------------------------------------------------------- */

static void load_byte_ids(struct pf_vocab *v)
{
    for (int b = 0; b < 256; b++) {
        char name[8], byte = (char)b;
        snprintf(name, sizeof name, "<0x%02X>", b);
        int32_t id = pf_text_find(v, name, 6);
        id = id >= 0 ? id : pf_text_find(v, &byte, 1);
        v->byte_ids[b] = id >= 0 ? id : v->unk;
    }
}

static bool words_begin_with_space(const struct pf_vocab *v)
{
    for (int32_t id = 0; id < v->n_tokens; id++)
        for (size_t i = 1; i < v->texts[id].n; i++)
            if (v->texts[id].p[i] == ' ' && v->texts[id].p[i - 1] != ' ')
                return false;
    return true;
}

static pf_status load_kind(struct pf_vocab *v, const pf_gguf *g, struct pf_str model)
{
    static const struct { const char *name; enum pf_vocab_kind kind; } kinds[] = {
        { "gpt2", PF_VOCAB_BPE }, { "llama", PF_VOCAB_SPM }, { "gemma4", PF_VOCAB_GEMMA },
    };
    size_t i = 0;
    while (i < 3 && !(strlen(kinds[i].name) == model.n && memcmp(kinds[i].name, model.p, model.n) == 0))
        i++;
    if (i == 3)
        PF_FAIL(PF_EUNSUPPORTED, "%s: tokenizer.ggml.model is \"%s\"; pfmoe has gpt2, llama and gemma4",
                pf_gguf_path(g), pf_gguf_quote(model).s);
    v->kind = kinds[i].kind;
    if (v->kind != PF_VOCAB_BPE)
        return PF_OK;
    struct pf_str pre = { "default", 7 };
    PF_TRY(pf_gguf_str_opt(g, "tokenizer.ggml.pre", &pre));
    v->pretok = pf_pretok_find(pre.p, pre.n);
    if (!v->pretok)
        PF_FAIL(PF_EUNSUPPORTED, "%s: tokenizer.ggml.pre is \"%s\", which pfmoe does not have", pf_gguf_path(g),
                pf_gguf_quote(pre).s);
    return PF_OK;
}

static pf_status load(struct pf_vocab *v, const pf_gguf *g, struct pf_str model)
{
    PF_TRY(load_kind(v, g, model));
    PF_TRY(load_tokens(v, g));
    PF_TRY(load_ids(v, g));
    if (v->kind == PF_VOCAB_SPM)
        v->words_begin_with_space = words_begin_with_space(v);
    if (v->kind != PF_VOCAB_BPE)
        load_byte_ids(v);
    if (v->kind != PF_VOCAB_SPM)
        PF_TRY(pf_bpe_load(v, g));
    PF_TRY(sort_specials(v));
    PF_TRY(load_ends(v, g));
    return pf_special_trie_build(v);
}

static bool is_none(struct pf_str model)
{
    return (model.n == 4 && memcmp(model.p, "none", 4) == 0) || (model.n == 8 && memcmp(model.p, "no_vocab", 8) == 0);
}

pf_status pf_vocab_open(pf_vocab **out, const pf_gguf *g)
{
    *out = NULL;
    struct pf_str model = { "none", 4 };
    PF_TRY(pf_gguf_str_opt(g, "tokenizer.ggml.model", &model));
    if (is_none(model))
        return PF_OK;
    struct pf_vocab *v = pf_alloc(PF_MEM_TEXT, sizeof *v);
    if (!v)
        PF_FAIL(PF_ENOMEM, "no memory for a vocabulary");
    pf_hash_key_draw(&v->hash_key);
    pf_status st = load(v, g, model);
    if (st == PF_OK && !(v->recent = pf_recent_open()))
        st = pf_fail(PF_ENOMEM, "no memory for what is tokenized lately");
    if (st < 0)
        pf_vocab_close(&v);
    *out = v;
    return st;
}

void pf_vocab_close(pf_vocab **vocab)
{
    struct pf_vocab *v = *vocab;
    *vocab = NULL;
    if (!v)
        return;
    for (struct pf_text_block *b = v->blocks, *next; b; b = next) {
        next = b->next;
        pf_free(b);
    }
    pf_free(v->texts);
    pf_free(v->pieces);
    pf_free(v->types);
    pf_free(v->is_end);
    pf_free(v->score_keys);
    pf_free(v->table);
    pf_free(v->pairs);
    pf_free(v->specials);
    pf_special_trie_free(v->trie);
    pf_recent_close(v->recent);
    pf_free(v);
}
