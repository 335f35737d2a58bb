/* Using a vocabulary: text to ids and back. See vocab.h and, for the inside, vocab_impl.h.
 *
 *     text --special tokens cut out--> fragments --bpe.c or spm.c--> ids
 *
 * Special tokens are found first (specials.c), at each place the longest; what lies between two of them is a fragment,
 * and nothing merges across its ends. User-defined tokens are always found, control and unknown ones only with
 * PF_TOK_PARSE_SPECIAL: text from a user cannot forge a control token without it. */
#include "text/vocab.h"

#include <string.h>

#include "base/pf_mem.h"
#include "text/vocab_impl.h"

void pf_vocab_set_cancel(pf_vocab *v, const struct pf_cancel *c)
{
    v->cancel = c;
}

int64_t pf_vocab_size(const pf_vocab *v)
{
    return v->n_tokens;
}

/* ---- Special tokens in text --------------------------------------------------------------------------------- */

static bool is_ascii_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* Whether white space after this special token is dropped: in Phi-3 after all but three. */
static bool strips(const struct pf_vocab *v, int32_t id)
{
    static const char *const exempt[] = { "<unk>", "<s>", "<|endoftext|>" };
    const struct pf_bytes *p = &v->pieces[id];
    for (size_t i = 0; i < 3; i++)
        if (strlen(exempt[i]) == p->n && memcmp(exempt[i], p->p, p->n) == 0)
            return false;
    return v->strip_after_special;
}

/* ---- Text to ids -------------------------------------------------------------------------------------------- */

void pf_tok_emit(struct pf_tok_job *j, int32_t id)
{
    if (j->n < j->cap)
        j->out[j->n] = id;
    j->n++;
}

void pf_tok_emit_bytes(struct pf_tok_job *j, const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        int32_t id = j->v->byte_ids[(unsigned char)p[i]];
        if (id >= 0)
            pf_tok_emit(j, id);
    }
}

static pf_status new_fragment(struct pf_tok_job *j, const char *text, size_t len)
{
    switch (j->v->kind) {
    case PF_VOCAB_BPE:   return pf_bpe_fragment(j, text, len);
    case PF_VOCAB_GEMMA: return pf_gemma_fragment(j, text, len);
    case PF_VOCAB_SPM:   break;
    }
    return pf_spm_fragment(j, text, len);
}

static pf_status fragment(struct pf_tok_job *j, const char *text, size_t len)
{
    size_t begin = j->n < j->cap ? j->n : j->cap, room = j->cap - begin, before = j->n, n_ids;
    struct pf_recent *recent = len >= PF_RECENT_LEAST ? j->v->recent : NULL;
    if (len == 0)
        return PF_OK;
    if (recent && pf_recent_find(recent, text, len, room ? j->out + begin : NULL, room, &n_ids)) {
        j->n += n_ids;
        return pf_tok_work(j, len / 64);
    }
    PF_TRY(new_fragment(j, text, len));
    if (recent && j->n <= j->cap)
        pf_recent_keep(recent, text, len, j->out + before, j->n - before);
    return PF_OK;
}

/* hits: from the last to the first; hits that an earlier token covers do not count. */
static pf_status tokenize(struct pf_tok_job *j, const char *text, size_t len, const struct pf_special_hit *hits,
                          size_t n_hits)
{
    size_t from = 0;                         /* start of the fragment that reaches up to the next special token */
    while (n_hits-- > 0) {
        size_t at = hits[n_hits].at;
        int32_t id = hits[n_hits].id;
        if (at < from)
            continue;
        PF_TRY(pf_tok_work(j, 1));
        PF_TRY(fragment(j, text + from, at - from));
        pf_tok_emit(j, id);
        from = at + j->v->pieces[id].n;
        while (strips(j->v, id) && from < len && is_ascii_space(text[from]))
            from++;
    }
    return fragment(j, text + from, len - from);
}

pf_status pf_vocab_tokenize(const pf_vocab *v, const char *text, size_t len, unsigned flags, int32_t *out, size_t cap,
                            size_t *n)
{
    *n = 0;
    if (len > INT32_MAX / 4)
        PF_FAIL(PF_EINVAL, "a text of %zu bytes is longer than can be tokenized at once", len);
    struct pf_tok_job j = { .v = v, .out = out, .cap = cap };
    if ((flags & PF_TOK_ADD_SPECIAL) && v->add_bos)
        pf_tok_emit(&j, v->bos);
    struct pf_special_hit *hits;
    size_t n_hits;
    pf_status st = pf_special_find(v, text, len, flags & PF_TOK_PARSE_SPECIAL, &hits, &n_hits);
    if (st == PF_OK)
        st = tokenize(&j, text, len, hits, n_hits);
    if ((flags & PF_TOK_ADD_SPECIAL) && v->add_eos)
        pf_tok_emit(&j, v->eos);
    pf_free(hits);
    pf_merge_free(&j);
    if (st < 0)
        return st;
    *n = j.n;
    if (j.n > cap)
        PF_FAIL(PF_ESPACE, "the text has %zu tokens, the buffer holds %zu", j.n, cap);
    return PF_OK;
}

/* ---- Ids to text -------------------------------------------------------------------------------------------- */

const char *pf_vocab_piece(const pf_vocab *v, int32_t id, bool special, size_t *len)
{
    *len = 0;
    if (id < 0 || id >= v->n_tokens)
        return "";
    if (!special && (v->types[id] == TOKEN_CONTROL || v->types[id] == TOKEN_UNKNOWN || id == v->unshown))
        return "";
    *len = v->pieces[id].n;
    return v->pieces[id].p;
}

pf_status pf_vocab_detokenize(const pf_vocab *v, const int32_t *ids, size_t n, unsigned flags, char *out, size_t cap,
                              size_t *need)
{
    size_t total = 0;
    /* the space that tokenising put there is still to come */
    bool at_start = v->add_space_prefix && !(flags & PF_DETOK_CONTINUE);
    *need = 0;
    for (size_t i = 0; i < n; i++) {
        size_t len;
        if (ids[i] < 0 || ids[i] >= v->n_tokens)
            PF_FAIL(PF_EINVAL, "token %zu has the id %d; the vocabulary has %d", i, ids[i], v->n_tokens);
        const char *piece = pf_vocab_piece(v, ids[i], flags & PF_DETOK_SPECIAL, &len);
        if (at_start && len) {
            at_start = false;
            len -= piece[0] == ' ';
            piece += piece[0] == ' ';
        }
        if (total < cap)
            memcpy(out + total, piece, len < cap - total ? len : cap - total);
        total += len;
    }
    *need = total;
    if (total > cap)
        PF_FAIL(PF_ESPACE, "the text has %zu bytes, the buffer holds %zu", total, cap);
    return PF_OK;
}

/* ---- Questions ---------------------------------------------------------------------------------------------- */

int32_t pf_vocab_find(const pf_vocab *v, const char *text, size_t len)
{
    if (len == 0)
        return -1;
    unsigned char first = (unsigned char)text[0];
    for (int32_t lo = v->special_first[first], hi = v->special_first[first + 1]; lo < hi;) {
        int32_t mid = lo + (hi - lo) / 2;
        const struct pf_bytes *p = &v->pieces[v->specials[mid]];
        int order = memcmp(p->p, text, p->n < len ? p->n : len);
        order = order ? order : (p->n > len) - (p->n < len);
        if (order == 0)
            return v->specials[mid];
        if (order < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    int32_t id = pf_text_find(v, text, len);
    return id < v->n_tokens ? id : -1;
}

bool pf_vocab_is_end(const pf_vocab *v, int32_t id)
{
    return id >= 0 && id < v->n_tokens && v->is_end[id];
}

bool pf_vocab_is_text(const pf_vocab *v, int32_t id)
{
    if (id < 0 || id >= v->n_tokens || id == v->unshown)
        return false;
    const struct pf_bytes *p = &v->pieces[id];
    if (v->types[id] != TOKEN_USER_DEFINED)
        return v->types[id] == TOKEN_NORMAL || v->types[id] == TOKEN_BYTE;
    size_t n = 0;
    while (n < p->n && is_ascii_space(p->p[n]))
        n++;
    return n == p->n;
}

int32_t pf_vocab_special(const pf_vocab *v, enum pf_special which)
{
    switch (which) {
    case PF_SPECIAL_BOS: return v->bos;
    case PF_SPECIAL_EOS: return v->eos;
    case PF_SPECIAL_PAD: return v->pad;
    case PF_SPECIAL_UNK: return v->unk;
    }
    return -1;
}
