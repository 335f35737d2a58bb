/* Special tokens in text: at each place the longest that begins there. See vocab_impl.h.
 *
 * Looking from every place for as long as a token may go on takes time that a file chooses: text length times the
 * longest token. So the text is read once, from its end: a trie of the tokens' texts turned round, with a link from
 * each node to the node of its longest proper suffix (Aho and Corasick), is at each place in the state of the
 * longest beginning of a token that is there, and knows the longest whole one. Linear in the text, whatever the
 * tokens are.
 *
 *     node 0: nothing read;  children of a node are neighbours, by rising byte;  nodes of less depth come first
 *
 * Tokens with equal texts share a node, which names the lowest id: of all, and of those that are user-defined. */
#define _GNU_SOURCE                  /* qsort_r */
#include <stdlib.h>

#include "base/pf_mem.h"
#include "text/vocab_impl.h"

enum { MAX_NODES = 1 << 22 };        /* some bytes for each token of a vocabulary in which all are special */

struct pf_special_trie {
    uint32_t n_nodes;
    uint32_t *children;              /* by node, and one more: the first of its children */
    uint32_t *suffix;                /* by node */
    int32_t  *longest[2];            /* by node: the longest token that the text read ends in, -1: none; user-defined
                                        ones, all */
    uint8_t  *bytes;                 /* by node: the last byte read */
    uint32_t  of_root[256];          /* 0: none */
};

/* A node while the trie grows: its tokens are order[lo, hi). */
struct growing {
    uint32_t lo, hi, depth;
};

static unsigned char byte_from_end(struct pf_bytes s, size_t i)
{
    return (unsigned char)s.p[s.n - 1 - i];
}

static size_t common(struct pf_bytes a, struct pf_bytes b)
{
    size_t n = a.n < b.n ? a.n : b.n, i = 0;
    while (i < n && byte_from_end(a, i) == byte_from_end(b, i))
        i++;
    return i;
}

static int compare_reversed(const void *x, const void *y, void *vocab)
{
    const struct pf_vocab *v = vocab;
    int32_t a = *(const int32_t *)x, b = *(const int32_t *)y;
    struct pf_bytes s = v->pieces[a], t = v->pieces[b];
    size_t i = common(s, t);
    if (i < s.n && i < t.n)
        return byte_from_end(s, i) < byte_from_end(t, i) ? -1 : 1;
    return s.n != t.n ? (s.n > t.n) - (s.n < t.n) : (a > b) - (a < b);
}

/* 0: there is none. */
static uint32_t child(const struct pf_special_trie *t, uint32_t node, uint8_t byte)
{
    if (node == 0)
        return t->of_root[byte];
    uint32_t lo = t->children[node], hi = t->children[node + 1];
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (t->bytes[mid] == byte)
            return mid;
        if (t->bytes[mid] < byte)
            lo = mid + 1;
        else
            hi = mid;
    }
    return 0;
}

static uint32_t step(const struct pf_special_trie *t, uint32_t node, uint8_t byte)
{
    uint32_t next;
    while (!(next = child(t, node, byte)) && node)
        node = t->suffix[node];
    return next;
}

/* ---- Building ----------------------------------------------------------------------------------------------- */

static void add_child(struct pf_special_trie *t, struct growing *g, uint32_t node, uint8_t byte, uint32_t lo,
                      uint32_t hi)
{
    uint32_t fresh = t->n_nodes++;
    t->bytes[fresh] = byte;
    t->suffix[fresh] = node ? step(t, t->suffix[node], byte) : 0;
    g[fresh] = (struct growing){ lo, hi, g[node].depth + 1 };
    if (node == 0)
        t->of_root[byte] = fresh;
}

/* The tokens that end at the node come first among its own; the others go to its children. */
static void expand(struct pf_special_trie *t, struct growing *g, const struct pf_vocab *v, const int32_t *order,
                   uint32_t node)
{
    uint32_t i = g[node].lo, depth = g[node].depth;
    int32_t own[2] = { -1, -1 };
    for (; i < g[node].hi && v->pieces[order[i]].n == depth; i++) {
        own[1] = own[1] < 0 ? order[i] : own[1];
        own[0] = own[0] < 0 && v->types[order[i]] == TOKEN_USER_DEFINED ? order[i] : own[0];
    }
    for (int k = 0; k < 2; k++)
        t->longest[k][node] = own[k] >= 0 || node == 0 ? own[k] : t->longest[k][t->suffix[node]];
    t->children[node] = t->n_nodes;
    for (uint32_t end; i < g[node].hi; i = end) {
        uint8_t byte = byte_from_end(v->pieces[order[i]], depth);
        for (end = i + 1; end < g[node].hi && byte_from_end(v->pieces[order[end]], depth) == byte;)
            end++;
        add_child(t, g, node, byte, i, end);
    }
}

static pf_status grow(struct pf_special_trie *t, const struct pf_vocab *v, const int32_t *order, uint32_t n)
{
    size_t n_nodes = 1;
    for (uint32_t i = 0; i < n; i++) {
        struct pf_bytes s = v->pieces[order[i]];
        n_nodes += s.n - (i ? common(v->pieces[order[i - 1]], s) : 0);
    }
    if (n_nodes > MAX_NODES)
        PF_FAIL(PF_EUNSUPPORTED, "the texts of the vocabulary's %u special tokens are %zu bytes where %d can be "
                "looked for", n, n_nodes - 1, MAX_NODES - 1);
    struct growing *g = pf_alloc_array(PF_MEM_TEXT, n_nodes, sizeof *g);
    t->children = pf_alloc_array(PF_MEM_TEXT, n_nodes + 1, sizeof *t->children);
    t->suffix = pf_alloc_array(PF_MEM_TEXT, n_nodes, sizeof *t->suffix);
    t->longest[0] = pf_alloc_array(PF_MEM_TEXT, n_nodes, sizeof *t->longest[0]);
    t->longest[1] = pf_alloc_array(PF_MEM_TEXT, n_nodes, sizeof *t->longest[1]);
    t->bytes = pf_alloc(PF_MEM_TEXT, n_nodes);
    if (!g || !t->children || !t->suffix || !t->longest[0] || !t->longest[1] || !t->bytes) {
        pf_free(g);
        PF_FAIL(PF_ENOMEM, "no memory to look for %u special tokens", n);
    }
    t->n_nodes = 1;
    g[0] = (struct growing){ .hi = n };
    for (uint32_t node = 0; node < t->n_nodes; node++)
        expand(t, g, v, order, node);
    t->children[t->n_nodes] = t->n_nodes;
    pf_free(g);
    return PF_OK;
}

pf_status pf_special_trie_build(struct pf_vocab *v)
{
    uint32_t n = (uint32_t)v->special_first[256];
    if (n == 0)
        return PF_OK;
    int32_t *order = pf_alloc_array(PF_MEM_TEXT, n, sizeof *order);
    v->trie = pf_alloc(PF_MEM_TEXT, sizeof *v->trie);
    pf_status st;
    if (!order || !v->trie) {
        st = pf_fail(PF_ENOMEM, "no memory to look for %u special tokens", n);
    } else {
        memcpy(order, v->specials, n * sizeof *order);
        qsort_r(order, n, sizeof *order, compare_reversed, v);
        st = grow(v->trie, v, order, n);
    }
    pf_free(order);
    return st;
}

void pf_special_trie_free(struct pf_special_trie *t)
{
    if (!t)
        return;
    pf_free(t->children);
    pf_free(t->suffix);
    pf_free(t->longest[0]);
    pf_free(t->longest[1]);
    pf_free(t->bytes);
    pf_free(t);
}

/* ---- Looking ------------------------------------------------------------------------------------------------ */

static pf_status add_hit(struct pf_special_hit **hits, size_t *n, size_t *cap, struct pf_special_hit hit)
{
    if (*n == *cap) {
        size_t more = *cap ? 2 * *cap : 64;
        struct pf_special_hit *grown = pf_realloc(PF_MEM_TEXT, *hits, more * sizeof *grown);
        if (!grown)
            PF_FAIL(PF_ENOMEM, "no memory for %zu special tokens in a text", more);
        *hits = grown;
        *cap = more;
    }
    (*hits)[(*n)++] = hit;
    return PF_OK;
}

pf_status pf_special_find(const struct pf_vocab *v, const char *text, size_t len, bool parse_special,
                          struct pf_special_hit **hits, size_t *n)
{
    enum { ASK_EVERY = 1 << 20 };
    const struct pf_special_trie *t = v->trie;
    size_t cap = 0;
    uint32_t node = 0;
    pf_status st = PF_OK;
    *hits = NULL;
    *n = 0;
    for (size_t p = t ? len : 0; p-- > 0 && st == PF_OK;) {
        node = step(t, node, (uint8_t)text[p]);
        int32_t id = t->longest[parse_special][node];
        if (p % ASK_EVERY == 0)
            st = pf_cancel_check(v->cancel);
        if (id >= 0 && st == PF_OK)
            st = add_hit(hits, n, &cap, (struct pf_special_hit){ (uint32_t)p, id });
    }
    if (st < 0) {
        pf_free(*hits);
        *hits = NULL;
    }
    return st;
}
