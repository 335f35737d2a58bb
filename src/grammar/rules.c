/* Building rules. See rules.h. Characters become bytes here: a range of code points is cut at the borders of UTF-8's
 * lengths, and then into rectangles, sequences of ranges of bytes. */
#include "grammar/rules.h"

#include <stdio.h>
#include <string.h>

#include "base/pf_mem.h"
#include "base/pf_status.h"
#include "text/utf8.h"

bool pf_grow(void **p, size_t *cap, size_t n, size_t size)
{
    if (n < *cap)
        return true;
    size_t more = *cap ? 2 * *cap : 64;
    void *grown = more > SIZE_MAX / 2 / size ? NULL : pf_realloc(PF_MEM_TEXT, *p, more * size);
    if (!grown)
        return false;
    *p = grown;
    *cap = more;
    return true;
}

void pf_rules_free(struct pf_rules *r)
{
    pf_free(r->edges);
    pf_free(r->rules);
    *r = (struct pf_rules){ 0 };
}

void pf_rules_fail(struct pf_rules *r, pf_status st)
{
    if (r->status == PF_OK)
        r->status = st;
}

static void no_memory(struct pf_rules *r)
{
    pf_rules_fail(r, pf_fail(PF_ENOMEM, "no memory for a grammar of %d states", (int)r->n_states));
}

pf_status pf_rules_work(struct pf_rules *r, uint64_t n)
{
    r->work += n;
    if (r->work > PF_GRAMMAR_MAX_WORK && r->status == PF_OK)
        pf_rules_fail(r, pf_fail(PF_EUNSUPPORTED, "the grammar takes too much work to read: its parts meet in too many "
                                 "ways"));
    return r->status;
}

/* ---- States and edges -------------------------------------------------------------------------------------------- */

int32_t pf_rules_state(struct pf_rules *r)
{
    if (r->status < 0)
        return 0;
    if (r->n_states >= PF_GRAMMAR_MAX_STATES) {
        pf_rules_fail(r, pf_fail(PF_EUNSUPPORTED, "the grammar takes more than %d states: repetitions and lengths "
                                 "count as often as they say", PF_GRAMMAR_MAX_STATES));
        return 0;
    }
    return r->n_states++;
}

int32_t pf_rules_rule(struct pf_rules *r)
{
    int32_t start = pf_rules_state(r), final = pf_rules_state(r);
    if (r->status < 0)
        return 0;
    if (!PF_GROW(r->rules, r->rule_cap, r->n_rules)) {
        no_memory(r);
        return 0;
    }
    r->rules[r->n_rules] = (struct pf_rule){ start, final };
    return (int32_t)r->n_rules++;
}

static void add_edge(struct pf_rules *r, struct pf_edge e)
{
    if (r->status < 0)
        return;
    if (r->n_edges >= PF_GRAMMAR_MAX_EDGES) {
        pf_rules_fail(r, pf_fail(PF_EUNSUPPORTED, "the grammar takes more than %d edges", PF_GRAMMAR_MAX_EDGES));
        return;
    }
    if (!PF_GROW(r->edges, r->edge_cap, r->n_edges)) {
        no_memory(r);
        return;
    }
    r->edges[r->n_edges++] = e;
}

void pf_rules_empty(struct pf_rules *r, int32_t from, int32_t to)
{
    add_edge(r, (struct pf_edge){ .from = from, .to = to, .kind = PF_EDGE_EMPTY });
}

void pf_rules_call(struct pf_rules *r, int32_t from, int32_t rule, int32_t to)
{
    add_edge(r, (struct pf_edge){ .from = from, .to = to, .rule = rule, .kind = PF_EDGE_RULE });
}

void pf_rules_bytes(struct pf_rules *r, int32_t from, uint8_t lo, uint8_t hi, int32_t to)
{
    add_edge(r, (struct pf_edge){ .from = from, .to = to, .kind = PF_EDGE_BYTES, .lo = lo, .hi = hi });
}

void pf_rules_text(struct pf_rules *r, int32_t from, const char *text, size_t n, int32_t to)
{
    for (size_t i = 0; i < n && r->status == PF_OK; i++) {
        int32_t next = i + 1 < n ? pf_rules_state(r) : to;
        pf_rules_bytes(r, from, (uint8_t)text[i], (uint8_t)text[i], next);
        from = next;
    }
    if (n == 0)
        pf_rules_empty(r, from, to);
}

/* ---- Characters -------------------------------------------------------------------------------------------------- */

/* States that lead to one state by 1 to 3 continuation bytes, made once for a set. */
struct tails {
    int32_t at[4];                   /* -1: not made yet; at[0]: where the character ends */
};

static int32_t tail(struct pf_rules *r, struct tails *t, size_t n)
{
    for (size_t i = 1; i <= n; i++)
        if (t->at[i] < 0) {
            t->at[i] = pf_rules_state(r);
            pf_rules_bytes(r, t->at[i], 0x80, 0xBF, t->at[i - 1]);
        }
    return t->at[n];
}

/* Sequences of n bytes from lo to hi, in the order of bytes. */
static void sequences(struct pf_rules *r, int32_t from, const uint8_t *lo, const uint8_t *hi, size_t n, struct tails *t)
{
    static const uint8_t lowest[] = { 0x80, 0x80, 0x80 }, highest[] = { 0xBF, 0xBF, 0xBF };
    bool low = memcmp(lo + 1, lowest, n - 1) == 0, high = memcmp(hi + 1, highest, n - 1) == 0;
    if (low && high) {
        pf_rules_bytes(r, from, lo[0], hi[0], tail(r, t, n - 1));
        return;
    }
    if (lo[0] == hi[0]) {
        int32_t next = pf_rules_state(r);
        pf_rules_bytes(r, from, lo[0], lo[0], next);
        sequences(r, next, lo + 1, hi + 1, n - 1, t);
        return;
    }
    if (!low) {                          /* the rest of the first byte's block */
        int32_t next = pf_rules_state(r);
        pf_rules_bytes(r, from, lo[0], lo[0], next);
        sequences(r, next, lo + 1, highest, n - 1, t);
    }
    uint8_t first = (uint8_t)(lo[0] + !low), last = (uint8_t)(hi[0] - !high);
    if (first <= last)
        pf_rules_bytes(r, from, first, last, tail(r, t, n - 1));
    if (!high) {
        int32_t next = pf_rules_state(r);
        pf_rules_bytes(r, from, hi[0], hi[0], next);
        sequences(r, next, lowest, hi + 1, n - 1, t);
    }
}

static void chars(struct pf_rules *r, int32_t from, uint32_t lo, uint32_t hi, struct tails *t)
{
    static const struct pf_chars lengths[] = { { 0, 0x7F }, { 0x80, 0x7FF }, { 0x800, 0xD7FF }, { 0xE000, 0xFFFF },
                                               { 0x10000, PF_MAX_CODE_POINT } };
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        uint32_t a = lo > lengths[i].lo ? lo : lengths[i].lo, b = hi < lengths[i].hi ? hi : lengths[i].hi;
        char first[4], last[4];
        if (a <= b && r->status == PF_OK) {
            size_t n = pf_utf8_put(first, a);
            pf_utf8_put(last, b);
            sequences(r, from, (const uint8_t *)first, (const uint8_t *)last, n, t);
        }
    }
}

void pf_rules_chars(struct pf_rules *r, int32_t from, const struct pf_chars *set, size_t n, int32_t to)
{
    struct tails t = { { to, -1, -1, -1 } };
    for (size_t i = 0; i < n && r->status == PF_OK; i++) {
        if (r->whole_chars)
            add_edge(r, (struct pf_edge){ .from = from, .to = to, .kind = PF_EDGE_BYTES, .lo = set[i].lo,
                                          .hi = set[i].hi });
        else
            chars(r, from, set[i].lo, set[i].hi, &t);
    }
}

static void escaped(struct pf_rules *r, int32_t from, uint32_t c, int32_t to)
{
    static const char shorts[] = "\bb\tt\nn\ff\rr\"\"\\\\";
    char text[8];
    int n = snprintf(text, sizeof text, "\\u%04x", c);
    for (size_t i = 0; shorts[i]; i += 2)
        if ((uint32_t)shorts[i] == c)
            n = snprintf(text, sizeof text, "\\%c", shorts[i + 1]);
    pf_rules_text(r, from, text, (size_t)n, to);
}

void pf_rules_json_chars(struct pf_rules *r, int32_t from, const struct pf_chars *set, size_t n, int32_t to)
{
    static const struct pf_chars plain[] = { { 0x20, 0x21 }, { 0x23, 0x5B }, { 0x5D, PF_MAX_CODE_POINT } };
    struct tails t = { { to, -1, -1, -1 } };
    for (size_t i = 0; i < n && r->status == PF_OK; i++) {
        for (size_t k = 0; k < 3; k++) {
            uint32_t lo = set[i].lo > plain[k].lo ? set[i].lo : plain[k].lo;
            uint32_t hi = set[i].hi < plain[k].hi ? set[i].hi : plain[k].hi;
            if (lo <= hi)
                chars(r, from, lo, hi, &t);
        }
        for (uint32_t c = set[i].lo; c < 0x20 && c <= set[i].hi; c++)
            escaped(r, from, c, to);
        for (const char *c = "\"\\"; *c; c++)
            if (set[i].lo <= (uint32_t)*c && (uint32_t)*c <= set[i].hi)
                escaped(r, from, (uint32_t)*c, to);
    }
}
