/* Texts that several patterns and a length allow. See pattern.h.
 *
 * The patterns run side by side: a place is one state of each, and the number of characters so far. An edge of one
 * pattern that takes nothing moves that pattern alone; a character moves all of them, by one edge each, and is of all
 * these edges' sets. Places are made as they are met, so patterns that soon part cost little. */
#include "languages/pattern.h"

#include <stdlib.h>
#include <string.h>

#include "base/pf_hash.h"
#include "base/pf_mem.h"
#include "base/pf_status.h"
#include "text/utf8.h"

enum { MOST_WORK = 1 << 24 };

struct place {
    int32_t  at[PF_MAX_PATTERNS];
    uint32_t count;                      /* of characters; where none is too many, no more than the least number */
};

/* A character of lo to hi leads to a place. */
struct way {
    int32_t  place;
    uint32_t lo, hi;
};

struct walk {
    const struct pf_pattern *patterns;
    size_t    n;
    uint32_t  min, max;
    enum pf_pattern_form form;
    struct pf_rules *r;
    uint32_t *first[PF_MAX_PATTERNS], *edges[PF_MAX_PATTERNS];   /* edges by the state that they leave */
    struct place *places;
    int32_t  *states;                    /* of r, by place */
    uint32_t *table;                     /* number of a place + 1 */
    struct way *ways;                    /* out of the present place */
    size_t    n_places, place_cap, state_cap, mask, n_ways, way_cap;
    uint64_t  work;                      /* edges looked at */
    struct pf_hash_key key;
};

static pf_status no_memory(void)
{
    PF_FAIL(PF_ENOMEM, "no memory for the patterns of a string");
}

/* ---- Edges by state ---------------------------------------------------------------------------------------------- */

static bool index_edges(const struct pf_rules *r, uint32_t **first, uint32_t **edges)
{
    *first = pf_alloc_array(PF_MEM_TEXT, (size_t)r->n_states + 2, sizeof **first);
    *edges = pf_alloc_array(PF_MEM_TEXT, r->n_edges + 1, sizeof **edges);
    if (!*first || !*edges)
        return false;
    for (size_t i = 0; i < r->n_edges; i++)
        (*first)[r->edges[i].from + 2]++;
    for (int32_t s = 1; s <= r->n_states; s++)
        (*first)[s + 1] += (*first)[s];
    for (size_t i = 0; i < r->n_edges; i++)
        (*edges)[(*first)[r->edges[i].from + 1]++] = (uint32_t)i;
    return true;
}

/* ---- Places ------------------------------------------------------------------------------------------------------ */

static bool rehash(struct walk *w)
{
    size_t n_slots = w->mask ? 2 * (w->mask + 1) : 256;
    uint32_t *table = pf_alloc_array(PF_MEM_TEXT, n_slots, sizeof *table);
    if (!table)
        return false;
    for (size_t i = 0; i < w->n_places; i++) {
        size_t h = pf_hash_text(&w->key, (const char *)&w->places[i], sizeof *w->places) & (n_slots - 1);
        while (table[h])
            h = (h + 1) & (n_slots - 1);
        table[h] = (uint32_t)i + 1;
    }
    pf_free(w->table);
    w->table = table;
    w->mask = n_slots - 1;
    return true;
}

static pf_status place_of(struct walk *w, const struct place *p, int32_t *number)
{
    if (2 * (w->n_places + 1) > w->mask && !rehash(w))
        return no_memory();
    size_t h = pf_hash_text(&w->key, (const char *)p, sizeof *p) & w->mask;
    for (; w->table[h]; h = (h + 1) & w->mask)
        if (memcmp(&w->places[w->table[h] - 1], p, sizeof *p) == 0) {
            *number = (int32_t)w->table[h] - 1;
            return PF_OK;
        }
    if (!PF_GROW(w->places, w->place_cap, w->n_places) || !PF_GROW(w->states, w->state_cap, w->n_places))
        return no_memory();
    w->places[w->n_places] = *p;
    w->states[w->n_places] = pf_rules_state(w->r);
    *number = (int32_t)w->n_places++;
    w->table[h] = (uint32_t)w->n_places;
    return w->r->status;
}

/* ---- Ways out of a place ----------------------------------------------------------------------------------------- */

static const struct pf_edge *edge(const struct walk *w, size_t i, uint32_t k)
{
    return &w->patterns[i].r->edges[w->edges[i][k]];
}

/* Every choice of one edge for each of the patterns from i on, whose sets have lo to hi in common so far. */
static pf_status choose(struct walk *w, const struct place *from, struct place *to, size_t i, uint32_t lo, uint32_t hi)
{
    if (++w->work > MOST_WORK)
        PF_FAIL(PF_EUNSUPPORTED, "the patterns of a string take too much work together");
    if (i == w->n) {
        int32_t number;
        PF_TRY(place_of(w, to, &number));
        if (!PF_GROW(w->ways, w->way_cap, w->n_ways))
            return no_memory();
        w->ways[w->n_ways++] = (struct way){ number, lo, hi };
        return PF_OK;
    }
    for (uint32_t k = w->first[i][from->at[i]]; k < w->first[i][from->at[i] + 1]; k++) {
        const struct pf_edge *e = edge(w, i, k);
        uint32_t a = e->lo > lo ? e->lo : lo, b = e->hi < hi ? e->hi : hi;
        if (e->kind != PF_EDGE_BYTES || a > b)
            continue;
        to->at[i] = e->to;
        PF_TRY(choose(w, from, to, i + 1, a, b));
    }
    return PF_OK;
}

static int by_place(const void *x, const void *y)
{
    const struct way *a = x, *b = y;
    return a->place != b->place ? (a->place > b->place) - (a->place < b->place) : (a->lo > b->lo) - (a->lo < b->lo);
}

static pf_status characters(struct walk *w, const struct place *from, int32_t state)
{
    struct place to = { .count = from->count + 1 };
    struct pf_chars set[64];
    w->n_ways = 0;
    if (w->max != PF_EXPR_MANY && to.count > w->max)
        return PF_OK;
    if (w->max == PF_EXPR_MANY && to.count > w->min)
        to.count = w->min;
    PF_TRY(choose(w, from, &to, 0, 0, PF_MAX_CODE_POINT));
    if (w->n_ways > 1)
        qsort(w->ways, w->n_ways, sizeof *w->ways, by_place);
    for (size_t i = 0, n = 0; i < w->n_ways; i++) {
        set[n++] = (struct pf_chars){ w->ways[i].lo, w->ways[i].hi };
        if (n < 64 && i + 1 < w->n_ways && w->ways[i + 1].place == w->ways[i].place)
            continue;
        (w->form == PF_PATTERN_ESCAPED ? pf_rules_json_chars : pf_rules_chars)(w->r, state, set, n,
                                                                               w->states[w->ways[i].place]);
        n = 0;
    }
    return w->r->status;
}

static pf_status nothings(struct walk *w, const struct place *from, int32_t state)
{
    for (size_t i = 0; i < w->n; i++)
        for (uint32_t k = w->first[i][from->at[i]]; k < w->first[i][from->at[i] + 1]; k++) {
            struct place to = *from;
            int32_t number;
            if (edge(w, i, k)->kind != PF_EDGE_EMPTY)
                continue;
            to.at[i] = edge(w, i, k)->to;
            PF_TRY(place_of(w, &to, &number));
            pf_rules_empty(w->r, state, w->states[number]);
        }
    return w->r->status;
}

static pf_status walk(struct walk *w, int32_t from, int32_t to)
{
    struct place start = { 0 };
    int32_t number;
    for (size_t i = 0; i < w->n; i++) {
        start.at[i] = w->patterns[i].r->rules[w->patterns[i].rule].start;
        if (!index_edges(w->patterns[i].r, &w->first[i], &w->edges[i]))
            return no_memory();
    }
    PF_TRY(place_of(w, &start, &number));
    pf_rules_empty(w->r, from, w->states[number]);
    for (size_t done = 0; done < w->n_places; done++) {
        struct place p = w->places[done];
        bool ends = p.count >= w->min;
        for (size_t i = 0; i < w->n; i++)
            ends = ends && p.at[i] == w->patterns[i].r->rules[w->patterns[i].rule].final;
        if (ends)
            pf_rules_empty(w->r, w->states[done], to);
        PF_TRY(nothings(w, &p, w->states[done]));
        PF_TRY(characters(w, &p, w->states[done]));
    }
    return w->r->status;
}

pf_status pf_pattern_emit(const struct pf_pattern *patterns, size_t n, uint32_t min, uint32_t max,
                          enum pf_pattern_form form, struct pf_rules *r, int32_t from, int32_t to)
{
    struct walk w = { .patterns = patterns, .n = n, .min = min, .max = max, .form = form, .r = r };
    pf_hash_key_draw(&w.key);
    pf_status st = walk(&w, from, to);
    st = st == PF_OK ? pf_rules_work(r, w.work / 4) : st;
    for (size_t i = 0; i < n; i++) {
        pf_free(w.first[i]);
        pf_free(w.edges[i]);
    }
    pf_free(w.places);
    pf_free(w.states);
    pf_free(w.table);
    pf_free(w.ways);
    return st;
}

/* ---- Texts ------------------------------------------------------------------------------------------------------- */

/* Marks what empty edges lead to, from the states marked. Returns the edges looked at. */
static uint64_t spread(const struct pf_rules *r, bool *at)
{
    uint64_t work = 0;
    for (bool more = true; more; work += r->n_edges) {
        more = false;
        for (size_t i = 0; i < r->n_edges; i++)
            if (r->edges[i].kind == PF_EDGE_EMPTY && at[r->edges[i].from] && !at[r->edges[i].to])
                more = at[r->edges[i].to] = true;
    }
    return work;
}

static void go_on(const struct pf_rules *r, const bool *at, uint32_t c, bool *next)
{
    memset(next, 0, (size_t)r->n_states * sizeof *next);
    for (size_t k = 0; k < r->n_edges; k++) {
        const struct pf_edge *e = &r->edges[k];
        if (e->kind == PF_EDGE_BYTES && at[e->from] && e->lo <= c && c <= e->hi)
            next[e->to] = true;
    }
}

static pf_status matches_one(const struct pf_pattern *p, const char *text, size_t len, struct pf_rules *counts,
                             bool *matches)
{
    enum { EDGES = 16 };                 /* that take as long as a piece of work */
    size_t n = (size_t)p->r->n_states;
    bool *at = pf_alloc_array(PF_MEM_TEXT, n, 2 * sizeof *at), *next = at + n;
    if (!at)
        return no_memory();
    at[p->r->rules[p->rule].start] = true;
    pf_status st = pf_rules_work(counts, 1 + spread(p->r, at) / EDGES);
    for (size_t i = 0; i < len && st == PF_OK;) {
        uint32_t c;
        i += pf_utf8_next(text + i, len - i, &c);
        go_on(p->r, at, c, next);
        st = pf_rules_work(counts, 1 + spread(p->r, next) / EDGES);
        memcpy(at, next, n * sizeof *at);
    }
    *matches = at[p->r->rules[p->rule].final];
    pf_free(at);
    return st;
}

pf_status pf_pattern_matches(const struct pf_pattern *patterns, size_t n, const char *text, size_t len,
                             struct pf_rules *r, bool *matches)
{
    *matches = true;
    for (size_t i = 0; i < n && *matches; i++)
        PF_TRY(matches_one(&patterns[i], text, len, r, matches));
    return PF_OK;
}

/* ---- All texts without one --------------------------------------------------------------------------------------- */

/* The state after character c, where the first k bytes of the text were read: at[0] where c belongs to none of it. */
static int32_t after(const char *text, const int32_t *at, size_t k, char c)
{
    size_t len = k + 1;
    while (len > 0 && (text[len - 1] != c || memcmp(text, text + k + 1 - len, len - 1) != 0))
        len--;
    return at[len];
}

pf_status pf_pattern_without(struct pf_rules *r, const char *text, int32_t *rule)
{
    int32_t at[33];                      /* at[k]: the first k bytes of the text were read */
    size_t n = strlen(text);
    r->whole_chars = true;
    *rule = pf_rules_rule(r);
    PF_TRY(r->status);
    for (size_t k = 0; k <= n; k++)
        at[k] = pf_rules_state(r);       /* out of at[n] no way leads */
    pf_rules_empty(r, r->rules[*rule].start, at[0]);
    for (size_t k = 0; k < n; k++) {
        pf_rules_empty(r, at[k], r->rules[*rule].final);
        for (uint32_t c = 0, lo = 0; c < 0x80; c++) {
            int32_t to = after(text, at, k, (char)c);
            if (c < 0x7F && after(text, at, k, (char)(c + 1)) == to)
                continue;
            pf_rules_chars(r, at[k], &(struct pf_chars){ lo, c }, 1, to);
            lo = c + 1;
        }
        pf_rules_chars(r, at[k], &(struct pf_chars){ 0x80, PF_MAX_CODE_POINT }, 1, at[0]);
    }
    return r->status;
}

/* ---- All texts but some ------------------------------------------------------------------------------------------ */

static int by_text(const void *a, const void *b)
{
    const struct pf_text *x = a, *y = b;
    int order = memcmp(x->p, y->p, x->n < y->n ? x->n : y->n);
    return order ? order : (x->n > y->n) - (x->n < y->n);
}

/* Any character but those that the texts v[0 .. n) go on with after `depth` bytes; these lead to states of their own:
 * onward[i] is the state after the next character of v[i]. */
static void part(struct pf_rules *r, int32_t state, int32_t other, const struct pf_text *v, size_t n, size_t depth,
                 int32_t *onward)
{
    uint32_t lo = 0, before = UINT32_MAX, c;
    for (size_t i = 0; i < n && r->status == PF_OK; i++) {
        if (v[i].n == depth)
            continue;
        pf_utf8_next(v[i].p + depth, v[i].n - depth, &c);
        if (c == before) {
            onward[i] = onward[i - 1];
            continue;
        }
        onward[i] = pf_rules_state(r);
        pf_rules_chars(r, state, &(struct pf_chars){ c, c }, 1, onward[i]);
        if (lo < c)
            pf_rules_chars(r, state, &(struct pf_chars){ lo, c - 1 }, 1, other);
        lo = c + 1;
        before = c;
    }
    pf_rules_chars(r, state, &(struct pf_chars){ lo, PF_MAX_CODE_POINT }, 1, other);
}

/* Texts that v[0 .. n) share their first `depth` bytes; sorted, so those that go on alike are neighbours. */
static void but_for(struct pf_rules *r, const struct pf_rule *rule, int32_t state, int32_t other,
                    const struct pf_text *v, size_t n, size_t depth, int32_t *onward)
{
    bool is_one = n > 0 && v[0].n == depth;
    if (r->status < 0)
        return;
    if (!is_one)
        pf_rules_empty(r, state, rule->final);
    part(r, state, other, v, n, depth, onward);
    for (size_t i = is_one, end; i < n && r->status == PF_OK; i = end) {
        uint32_t c;
        size_t length = pf_utf8_next(v[i].p + depth, v[i].n - depth, &c);
        int32_t next = onward[i];
        for (end = i + 1; end < n && onward[end] == next;)
            end++;
        but_for(r, rule, next, other, v + i, end - i, depth + length, onward + i);
    }
}

pf_status pf_pattern_other(struct pf_rules *r, const struct pf_text *texts, size_t n, int32_t *rule)
{
    enum { LONGEST = 256 };                  /* bytes of a text: the walk recurses once a character */
    struct pf_text *v = pf_alloc_array(PF_MEM_TEXT, n + 1, sizeof *v);
    int32_t *onward = pf_alloc_array(PF_MEM_TEXT, n + 1, sizeof *onward);
    size_t kept = 0;
    pf_status st = v && onward ? PF_OK : no_memory();
    for (size_t i = 0; i < n && st == PF_OK; i++)
        v[i] = texts[i];
    if (st == PF_OK)
        qsort(v, n, sizeof *v, by_text);
    for (size_t i = 0; i < n && st == PF_OK; i++) {
        if (v[i].n > LONGEST)
            st = pf_fail(PF_EUNSUPPORTED, "a property's name of %zu bytes is too long beside other properties", v[i].n);
        if (kept == 0 || by_text(&v[i], &v[kept - 1]) != 0)
            v[kept++] = v[i];
    }
    if (st == PF_OK) {
        r->whole_chars = true;
        *rule = pf_rules_rule(r);
        int32_t other = pf_rules_state(r);
        struct pf_rule ends = r->status == PF_OK ? r->rules[*rule] : (struct pf_rule){ 0 };
        pf_rules_chars(r, other, &(struct pf_chars){ 0, PF_MAX_CODE_POINT }, 1, other);
        pf_rules_empty(r, other, ends.final);
        but_for(r, &ends, ends.start, other, v, kept, 0, onward);
        st = r->status;
    }
    pf_free(v);
    pf_free(onward);
    return st;
}
