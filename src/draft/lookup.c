/* Drafts from the sequence itself: edits, quotations and code repeat what stood before.
 *
 *     tok   ... a b c d e f ........ a b c          tok[at - length .. at) is tok[n - length .. n),
 *                     ^ at               ^ n        so the guess is d e f ...
 *
 * Two tables have, for the hash of the newest few tokens, the position behind their latest occurrence: six tokens,
 * which rarely mislead, and two, which find things sooner. A match goes on while it holds, so that a token costs two
 * look-ups and a bounded comparison, whatever the text. An entry is believed only when the tokens are compared. What
 * each token put out of the tables is kept, so that going back puts it there again. Longer matches are likelier to go
 * on: chances are kept by length. */

#include "base/pf_mem.h"
#include "base/pf_status.h"
#include "draft/drafter.h"

enum { N_TABLES = 2, LONGEST = 64, N_ODDS = 7, MOST_BITS = 20 };
static const int widths[N_TABLES] = { 6, 2 };

struct lookup {
    struct pf_drafter base;
    const int32_t    *tok;
    int64_t           at;                    /* 0: no match */
    int               length, bits;
    int32_t          *tables[N_TABLES];      /* [1 << bits] 0: nothing */
    int32_t          *before[N_TABLES];      /* [n_ctx + 1] the entry whose place the one of that position took */
    struct pf_odds    odds[N_ODDS];
};

static struct lookup *lookup_of(struct pf_drafter *d)
{
    return (struct lookup *)d;
}

/* 2, 3, 4 and 5, up to 8, 16, 32, and more. */
static int kind_of(int length)
{
    static const int most[N_ODDS - 1] = { 2, 3, 5, 8, 16, 32 };
    int kind = 0;
    while (kind < N_ODDS - 1 && length > most[kind])
        kind++;
    return kind;
}

/* The place of the tokens in front of position `end` in their table. */
static size_t slot_of(const struct lookup *l, int64_t end, int width)
{
    uint64_t h = 0;
    for (int i = 1; i <= width; i++)
        h = (h + (uint32_t)l->tok[end - i] + 1) * 0x9e3779b97f4a7c15u;
    return (size_t)(h >> (64 - l->bits));
}

/* How many tokens in front of position `at` are those at the end, LONGEST at most. */
static int length_at(const struct lookup *l, int64_t at)
{
    int n = 0;
    while (n < LONGEST && n < at && l->tok[at - 1 - n] == l->tok[l->base.n - 1 - n])
        n++;
    return n;
}

/* Puts the end into the tables, and takes up what they had there if it is the longer match. */
static void look(struct lookup *l)
{
    for (int i = 0; i < N_TABLES && l->base.n >= widths[i]; i++) {
        int32_t *entry = &l->tables[i][slot_of(l, l->base.n, widths[i])];
        int64_t at = l->before[i][l->base.n] = *entry;
        *entry = (int32_t)l->base.n;
        int length = l->length < LONGEST && at > 0 ? length_at(l, at) : 0;
        if (length >= widths[N_TABLES - 1] && length > l->length) {
            l->at = at;
            l->length = length;
        }
    }
}

static void see(struct pf_drafter *d, int32_t tok)
{
    struct lookup *l = lookup_of(d);
    bool holds = l->at > 0 && l->tok[l->at] == tok;
    if (l->at > 0)
        pf_odds_add(&l->odds[kind_of(l->length)], holds);
    l->length = holds ? l->length + (l->length < LONGEST) : 0;
    l->at = holds ? l->at + 1 : 0;
    d->n++;
    look(l);
}

static void cut(struct pf_drafter *d, int64_t pos)
{
    struct lookup *l = lookup_of(d);
    if (pos >= d->n)
        return;
    for (int i = 0; i < N_TABLES; i++)
        for (int64_t end = d->n; end > pos && end >= widths[i]; end--)
            l->tables[i][slot_of(l, end, widths[i])] = l->before[i][end];
    d->n = pos;
    l->at = 0;
    l->length = 0;
}

static int expect(struct pf_drafter *d, float *chance, int most)
{
    struct lookup *l = lookup_of(d);
    for (int i = 0; l->at > 0 && i < most; i++) {
        const struct pf_odds *o = &l->odds[kind_of(l->length + i)];
        chance[i] = o->hits / o->tries;
    }
    return l->at > 0 ? most : 0;
}

/* A match that overlaps the end goes on with its own guesses. */
static int propose(struct pf_drafter *d, int32_t *out, int n)
{
    struct lookup *l = lookup_of(d);
    for (int i = 0; i < n; i++)
        out[i] = l->at + i < d->n ? l->tok[l->at + i] : out[l->at + i - d->n];
    return n;
}

static void close(struct pf_drafter *d)
{
    struct lookup *l = lookup_of(d);
    for (int i = 0; i < N_TABLES; i++) {
        pf_free(l->tables[i]);
        pf_free(l->before[i]);
    }
    pf_free(l);
}

static const struct pf_drafter_ops ops = { see, cut, expect, propose, close, NULL, NULL };

static int bits_for(int64_t n_ctx)
{
    int bits = 8;
    while (bits < MOST_BITS && (int64_t)1 << bits < n_ctx)
        bits++;
    return bits;
}

size_t pf_drafter_lookup_bytes(int64_t n_ctx)
{
    return sizeof(struct lookup) + N_TABLES * sizeof(int32_t) * (((size_t)1 << bits_for(n_ctx)) + (size_t)n_ctx + 1);
}

pf_status pf_drafter_lookup(struct pf_drafter **out, const int32_t *tok, int64_t n_ctx)
{
    static const float assumed[N_ODDS] = { 0.2f, 0.3f, 0.4f, 0.6f, 0.8f, 0.9f, 0.95f };
    struct lookup *l = pf_alloc(PF_MEM_SESSION, sizeof *l);
    *out = NULL;
    if (!l)
        PF_FAIL(PF_ENOMEM, "no memory for drafts");
    *l = (struct lookup){ .base.ops = &ops, .tok = tok, .bits = bits_for(n_ctx) };
    for (int i = 0; i < N_ODDS; i++)
        l->odds[i] = (struct pf_odds){ 2, 2 * assumed[i] };
    bool whole = true;
    for (int i = 0; i < N_TABLES; i++) {
        l->tables[i] = pf_alloc_array(PF_MEM_SESSION, (size_t)1 << l->bits, sizeof *l->tables[i]);
        l->before[i] = pf_alloc_array(PF_MEM_SESSION, (size_t)n_ctx + 1, sizeof *l->before[i]);
        whole &= l->tables[i] && l->before[i];
    }
    if (!whole) {
        close(&l->base);
        PF_FAIL(PF_ENOMEM, "no memory for drafts of %lld positions", (long long)n_ctx);
    }
    *out = &l->base;
    return PF_OK;
}
