/* Byte pair encoding: byte-level (`gpt2`), and over characters (`gemma4`). See vocab.h and merge.c.
 *
 * Files write byte-level texts with one character for each byte: printable ones stand for themselves, the other 68 for
 * U+0100 and up. Here texts are raw bytes from loading on. A merge pairs two texts; both, and what they join to, are
 * symbols: usually tokens, else texts without an id that only lead on to others. */
#include <string.h>

#include "base/pf_mem.h"
#include "text/norm.h"
#include "text/utf8.h"
#include "text/vocab_impl.h"

/* ---- The byte map ------------------------------------------------------------------------------------------- */

/* The byte a character stands for, -1 for one outside the map. */
static int byte_of(uint32_t cp)
{
    if ((cp >= 0x21 && cp <= 0x7E) || (cp >= 0xA1 && cp <= 0xFF && cp != 0xAD))
        return (int)cp;
    if (cp < 0x100 || cp > 0x143)
        return -1;
    uint32_t nth = cp - 0x100;               /* number in the list 00-20, 7F-A0, AD */
    return nth <= 0x20 ? (int)nth : nth < 67 ? (int)(0x7F + nth - 33) : 0xAD;
}

size_t pf_bpe_raw_text(char *out, const char *p, size_t n)
{
    size_t to = 0;
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t cp;
        len = pf_utf8_next(p + i, n - i, &cp);
        int byte = byte_of(cp);
        if (byte >= 0) {
            out[to++] = (char)byte;
        } else {
            memcpy(out + to, p + i, len);
            to += len;
        }
    }
    return to;
}

/* ---- Merges ------------------------------------------------------------------------------------------------- */

static size_t raw_text(const struct pf_vocab *v, char *out, const char *p, size_t n)
{
    return v->kind == PF_VOCAB_BPE ? pf_bpe_raw_text(out, p, n) : pf_spm_raw_text(out, p, n);
}

/* Merge lists have hundreds of thousands of entries and each takes a few random reads from tables larger than a
 * cache. So the loop runs over them in three stages, AHEAD entries apart, each asking for the memory that the next
 * one needs:
 *
 *     request: texts' slots <-- find: left, right, joined; the pair's slot <-- add_pair */
enum { AHEAD = 8 };

struct merges {
    struct pf_vocab *v;
    const pf_gguf *g;
    const struct pf_str *list;
    char *buf;                               /* room for the longest entry */
    struct pf_pair_slot found[AHEAD];        /* between find and add_pair */
};

/* An entry "left right" as raw bytes: buf[0, n_left) and buf[n_left, n). */
struct parts {
    size_t n_left, n;
};

/* The first space that is not the first character divides the two. n == 0: there is none. */
static struct parts split_merge(const struct merges *m, uint64_t rank)
{
    struct pf_str e = m->list[rank];
    const char *space = e.n > 1 ? memchr(e.p + 1, ' ', e.n - 1) : NULL;
    if (!space)
        return (struct parts){ 0, 0 };
    size_t n_left = raw_text(m->v, m->buf, e.p, (size_t)(space - e.p));
    size_t n_right = raw_text(m->v, m->buf + n_left, space + 1, (size_t)(e.p + e.n - space - 1));
    return (struct parts){ n_left, n_left + n_right };
}

static void request(const struct merges *m, uint64_t rank)
{
    struct parts p = split_merge(m, rank);
    pf_text_prefetch(m->v, m->buf, p.n_left);
    pf_text_prefetch(m->v, m->buf + p.n_left, p.n - p.n_left);
    pf_text_prefetch(m->v, m->buf, p.n);
}

static pf_status find(struct merges *m, uint64_t rank)
{
    struct parts p = split_merge(m, rank);
    if (p.n == 0)
        PF_FAIL(PF_EFORMAT, "%s: tokenizer.ggml.merges[%llu] has no space between a left and a right part",
                pf_gguf_path(m->g), (unsigned long long)rank);
    int32_t left, right, joined;
    PF_TRY(pf_text_intern(m->v, m->buf, p.n_left, &left));
    PF_TRY(pf_text_intern(m->v, m->buf + p.n_left, p.n - p.n_left, &right));
    PF_TRY(pf_text_intern(m->v, m->buf, p.n, &joined));
    m->found[rank % AHEAD] = (struct pf_pair_slot){ left, right, (uint32_t)rank, (uint32_t)joined + 1 };
    __builtin_prefetch(&m->v->pairs[pf_pair_home(m->v, left, right)]);
    return PF_OK;
}

/* The first mention of a pair counts. */
static void add_pair(struct pf_vocab *v, struct pf_pair_slot pair)
{
    struct pf_pair_slot *s;
    for (size_t i = pf_pair_home(v, pair.left, pair.right);; i = (i + 1) & v->pair_mask) {
        s = &v->pairs[i];
        if (!s->joined_plus_1)
            break;
        if (s->left == pair.left && s->right == pair.right)
            return;
    }
    *s = pair;
}

static pf_status run_merges(struct merges *m, uint64_t n)
{
    for (uint64_t i = 0; i < AHEAD && i < n; i++)
        request(m, i);
    for (uint64_t i = 0; i < n + AHEAD; i++) {
        if (i >= AHEAD)
            add_pair(m->v, m->found[i % AHEAD]);
        if (i + AHEAD < n)
            request(m, i + AHEAD);
        if (i < n)
            PF_TRY(find(m, i));
    }
    return PF_OK;
}

static pf_status load_merges(struct pf_vocab *v, const pf_gguf *g, const struct pf_gguf_kv *kv)
{
    size_t n_slots = 64, longest = 0;
    while (n_slots < 2 * kv->n)
        n_slots *= 2;
    v->pairs = pf_alloc_array(PF_MEM_TEXT, n_slots, sizeof *v->pairs);
    v->pair_mask = n_slots - 1;
    for (uint64_t i = 0; i < kv->n; i++)
        longest = kv->strings[i].n > longest ? kv->strings[i].n : longest;
    struct merges m = { .v = v, .g = g, .list = kv->strings, .buf = pf_alloc(PF_MEM_TEXT, longest) };
    pf_status st = PF_OK;
    if (!v->pairs || !m.buf)
        st = pf_fail(PF_ENOMEM, "no memory for %llu merges", (unsigned long long)kv->n);
    else
        st = run_merges(&m, kv->n);
    pf_free(m.buf);
    return st;
}

pf_status pf_bpe_load(struct pf_vocab *v, const pf_gguf *g)
{
    for (int b = 0; b < 256 && v->kind == PF_VOCAB_BPE; b++) {
        char c = (char)b;
        PF_TRY(pf_text_intern(v, &c, 1, &v->byte_symbols[b]));
        v->byte_ids[b] = v->byte_symbols[b] < v->n_tokens ? v->byte_symbols[b] : -1;
    }
    const struct pf_gguf_kv *kv = pf_gguf_find(g, "tokenizer.ggml.merges");
    if (!kv && v->kind == PF_VOCAB_BPE && v->pretok->rank_by_id)
        return PF_OK;
    if (!kv)
        PF_FAIL(PF_EFORMAT, "%s: tokenizer.ggml.merges is missing", pf_gguf_path(g));
    if (kv->n > PF_MAX_MERGES)
        PF_FAIL(PF_EFORMAT, "%s: tokenizer.ggml.merges at byte %llu has more than %d entries", pf_gguf_path(g),
                (unsigned long long)kv->offset, PF_MAX_MERGES);
    if (kv->type != PF_GGUF_ARRAY || kv->elem != PF_GGUF_STRING)
        PF_FAIL(PF_EFORMAT, "%s: tokenizer.ggml.merges at byte %llu is not an array of strings", pf_gguf_path(g),
                (unsigned long long)kv->offset);
    return load_merges(v, g, kv);
}

/* ---- Tokenising --------------------------------------------------------------------------------------------- */

static pf_status bpe_chunk(void *ctx, size_t from, size_t to)
{
    struct pf_tok_job *j = ctx;
    const char *p = j->fragment + from;
    size_t n = to - from;
    PF_TRY(pf_tok_work(j, n));
    if (j->v->pretok->ignore_merges && n <= j->v->max_text) {
        int32_t id = pf_text_find(j->v, p, n);
        if (id >= 0 && id < j->v->n_tokens) {
            pf_tok_emit(j, id);
            return PF_OK;
        }
    }
    pf_merge_begin(j, p);
    for (size_t i = 0; i < n; i++)
        PF_TRY(pf_merge_add(j, i, 1, j->v->byte_symbols[(unsigned char)p[i]]));
    return pf_merge_end(j);
}

pf_status pf_bpe_fragment(struct pf_tok_job *j, const char *text, size_t len)
{
    char *better;
    size_t n = len;
    PF_TRY(pf_normalise(text, len, j->v->pretok->nfc, &better, &n));
    j->fragment = better ? better : text;
    pf_status st = pf_pretok_run(j->v->pretok, j->fragment, n, bpe_chunk, j);
    pf_free(better);
    return st;
}

/* One run of newlines, or of anything else. */
static pf_status gemma_chunk(struct pf_tok_job *j, const char *p, size_t n)
{
    PF_TRY(pf_tok_work(j, n));
    int32_t whole = p[0] == '\n' && n <= j->v->max_text ? pf_text_find(j->v, p, n) : -1;
    if (whole >= 0 && whole < j->v->n_tokens) {
        pf_tok_emit(j, whole);
        return PF_OK;
    }
    return pf_merge_characters(j, p, n);
}

pf_status pf_gemma_fragment(struct pf_tok_job *j, const char *text, size_t len)
{
    char *raw = pf_alloc(PF_MEM_TEXT, len);
    if (!raw)
        PF_FAIL(PF_ENOMEM, "no memory for a copy of %zu bytes of text", len);
    size_t n = pf_spm_raw_text(raw, text, len);
    pf_status st = PF_OK;
    for (size_t from = 0, to; from < n && st == PF_OK; from = to) {
        bool newlines = raw[from] == '\n';
        for (to = from + 1; to < n && (raw[to] == '\n') == newlines;)
            to++;
        st = gemma_chunk(j, raw + from, to - from);
    }
    pf_free(raw);
    return st;
}
