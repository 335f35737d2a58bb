/* Making the trie of a vocabulary. See tokens.h. Texts are sorted; a token's nodes are those of its text past what it
 * has in common with the text before. */
#define _GNU_SOURCE                      /* qsort_r */
#include "grammar/tokens.h"

#include <stdlib.h>
#include <string.h>

#include "base/pf_mem.h"
#include "base/pf_status.h"
#include "text/utf8.h"

static const char *mark_of(const struct pf_tokens *t, int32_t id, size_t *n)
{
    size_t lo = 0, hi = t->n_marks;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (t->marks[mid].id < id)
            lo = mid + 1;
        else
            hi = mid;
    }
    bool is_mark = lo < t->n_marks && t->marks[lo].id == id;
    *n = is_mark ? t->marks[lo].n : 0;
    return is_mark ? t->spellings + t->marks[lo].at : "";
}

const char *pf_tokens_text(const struct pf_tokens *t, int32_t id, size_t *n)
{
    if (!pf_vocab_is_text(t->vocab, id))
        return mark_of(t, id, n);
    const char *text = pf_vocab_piece(t->vocab, id, false, n);
    if (*n > PF_TOKEN_MAX_BYTES || memchr(text, PF_TOKEN_MARK, *n))      /* text has no such byte */
        *n = 0;
    return text;
}

static int by_text(const void *a, const void *b, void *ctx)
{
    size_t n, k;
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    const char *p = pf_tokens_text(ctx, x, &n), *q = pf_tokens_text(ctx, y, &k);
    int order = memcmp(p, q, n < k ? n : k);
    return order ? order : n != k ? (n > k) - (n < k) : (x > y) - (x < y);
}

/* The bytes of a mark's spelling; 0: the token is none. */
static size_t spelling(const struct pf_tokens *t, int32_t id, const char **text)
{
    size_t n;
    *text = pf_vocab_piece(t->vocab, id, true, &n);
    bool is_mark = !pf_vocab_is_text(t->vocab, id) && !pf_vocab_is_end(t->vocab, id);
    return is_mark && n < PF_TOKEN_MAX_BYTES ? n : 0;
}

static bool collect_marks(struct pf_tokens *t)
{
    size_t n_marks = 0, bytes = 0;
    const char *text;
    for (size_t i = 0; i < t->n_vocab; i++) {
        size_t n = spelling(t, (int32_t)i, &text);
        n_marks += n > 0;
        bytes += n ? n + 1 : 0;
    }
    t->marks = pf_alloc_array(PF_MEM_TEXT, n_marks + 1, sizeof *t->marks);
    t->spellings = bytes < UINT32_MAX ? pf_alloc_array(PF_MEM_TEXT, bytes + 1, 1) : NULL;
    if (!t->marks || !t->spellings)
        return false;
    char *to = t->spellings;
    for (size_t i = 0; i < t->n_vocab; i++) {
        size_t n = spelling(t, (int32_t)i, &text);
        if (n == 0)
            continue;
        t->marks[t->n_marks++] = (struct pf_token_mark){ (int32_t)i, (uint32_t)(to - t->spellings), (uint32_t)n + 1 };
        *to++ = (char)PF_TOKEN_MARK;
        memcpy(to, text, n);
        to += n;
    }
    return true;
}

/* Collects the tokens, sorted. */
static bool collect(struct pf_tokens *t)
{
    t->ids = pf_alloc_array(PF_MEM_TEXT, t->n_vocab + 1, sizeof *t->ids);
    t->ends = pf_alloc_array(PF_MEM_TEXT, t->n_vocab + 1, sizeof *t->ends);
    if (!t->ids || !t->ends)
        return false;
    for (size_t i = 0; i < t->n_vocab; i++) {
        size_t n;
        pf_tokens_text(t, (int32_t)i, &n);
        if (pf_vocab_is_end(t->vocab, (int32_t)i))
            t->ends[t->n_ends++] = (int32_t)i;
        else if (n > 0)
            t->ids[t->n_ids++] = (int32_t)i;
    }
    qsort_r(t->ids, t->n_ids, sizeof *t->ids, by_text, t);
    return true;
}

static size_t shared(const struct pf_tokens *t, size_t i)
{
    size_t n, k, same = 0;
    if (i == 0)
        return 0;
    const char *p = pf_tokens_text(t, t->ids[i - 1], &n), *q = pf_tokens_text(t, t->ids[i], &k);
    while (same < n && same < k && p[same] == q[same])
        same++;
    return same;
}

/* Ends the nodes of open[depth ..), which the next node does not lie below. */
static void end_nodes(struct pf_tokens *t, const uint32_t *open, size_t n_open, size_t depth)
{
    for (size_t d = n_open; d-- > depth;) {
        struct pf_token_node *node = &t->nodes[open[d]];
        node->skip = (uint32_t)t->n_nodes;
        if (d > 0) {
            struct pf_token_node *up = &t->nodes[open[d - 1]];
            up->kinds |= node->kinds;
            up->height = up->height > node->height || node->height == UINT8_MAX ? up->height : node->height + 1;
        }
    }
}

/* Bytes of the character that begins with b, in well-formed text. */
static size_t length_of(uint8_t b)
{
    return b < 0x80 ? 1 : b < 0xE0 ? 2 : b < 0xF0 ? 3 : 4;
}

static bool build(struct pf_tokens *t)
{
    uint32_t open[PF_TOKEN_MAX_BYTES];
    size_t n_open = 0, total = 1;
    for (size_t i = 0; i < t->n_ids; i++) {
        size_t n;
        pf_tokens_text(t, t->ids[i], &n);
        total += n - shared(t, i);
    }
    t->nodes = total < UINT32_MAX ? pf_alloc_array(PF_MEM_TEXT, total, sizeof *t->nodes) : NULL;
    if (!t->nodes)
        return false;
    for (size_t i = 0; i < t->n_ids; i++) {
        size_t n, same = shared(t, i);
        const char *text = pf_tokens_text(t, t->ids[i], &n);
        if (same == n)
            continue;                    /* the text of the token before */
        end_nodes(t, open, n_open, same);
        size_t broken = pf_utf8_valid(text, pf_utf8_complete(text, n)), char_end = 0;
        broken = broken < pf_utf8_complete(text, n) ? broken : n;        /* the text is well-formed up to here */
        for (size_t d = 0; d < n; d++) {
            uint8_t b = (uint8_t)text[d];
            bool starts = d == char_end;
            if (starts)
                char_end += d < broken ? length_of(b) : 1;
            if (d < same)
                continue;
            /* A node on the way has no tokens of its own: its first is that of the node below. */
            unsigned kind = d < broken ? pf_byte_kind(b) : PF_KIND_BROKEN;
            t->nodes[t->n_nodes] = (struct pf_token_node){ .kinds = UINT64_C(1) << kind, .byte = b, .starts = starts,
                                                           .id = (uint32_t)i, .depth = (uint16_t)(d + 1), .height = 1 };
            open[d] = (uint32_t)t->n_nodes++;
        }
        n_open = n;
    }
    end_nodes(t, open, n_open, 0);
    t->nodes[t->n_nodes] = (struct pf_token_node){ .id = (uint32_t)t->n_ids, .skip = (uint32_t)t->n_nodes };
    return true;
}

pf_status pf_tokens_open(struct pf_tokens **out, const pf_vocab *v)
{
    *out = NULL;
    struct pf_tokens *t = pf_alloc(PF_MEM_TEXT, sizeof *t);
    if (t) {
        t->vocab = v;
        t->n_vocab = (size_t)pf_vocab_size(v);
    }
    if (!t || !collect_marks(t) || !collect(t) || !build(t)) {
        pf_tokens_close(&t);
        PF_FAIL(PF_ENOMEM, "no memory for the trie of a vocabulary");
    }
    *out = t;
    return PF_OK;
}

void pf_tokens_close(struct pf_tokens **t)
{
    if (!*t)
        return;
    pf_free((*t)->nodes);
    pf_free((*t)->ids);
    pf_free((*t)->ends);
    pf_free((*t)->marks);
    pf_free((*t)->spellings);
    pf_free(*t);
    *t = NULL;
}
