/* JSON Schema: the texts of many constants as one automaton. See schema.h.
 *
 *     "car" "cart" "bar" "bart"       from -b-> . -a-> . -r-> . -----> to
 *                                      `---c----^              `-t----^
 *
 * Beginnings that are the same are read once, since texts are sorted, and so are endings, since a state is made after
 * those that it leads to and one that has the same edges is taken in its place: the smallest deterministic automaton.
 * So after any bytes of an output there is one state, however many constants there are. */
#include <stdlib.h>

#include "base/pf_status.h"
#include "languages/schema/schema.h"

/* An edge of a state that is known, by a byte, or, byte -1, the end of a text. */
struct way {
    int32_t byte, to;
};

struct known_state {
    int32_t  state;
    uint32_t first, n;                   /* of ways */
};

struct builder {
    struct pf_schema *s;
    const struct pf_jstr *texts;         /* sorted, none twice */
    int32_t  to;
    struct way *ways, *open;             /* of known states; of those that are being made, the innermost last */
    size_t   n_ways, way_cap, n_open, open_cap;
    struct known_state *states;
    size_t   n_states, state_cap;
    uint32_t *table;                     /* number in states + 1, by ways */
    size_t   mask;
};

static int by_text(const void *a, const void *b)
{
    const struct pf_jstr *x = a, *y = b;
    int order = memcmp(x->p, y->p, x->n < y->n ? x->n : y->n);
    return order ? order : (x->n > y->n) - (x->n < y->n);
}

static pf_status grow(struct pf_schema *s, void *array, size_t *cap, size_t n, size_t size)
{
    void **at = array, *more;
    if (n < *cap)
        return PF_OK;
    size_t wanted = *cap ? 2 * *cap : 64;
    PF_TRY(pf_jalloc(&s->run, wanted * size, &more));
    if (n)
        memcpy(more, *at, n * size);
    *at = more;
    *cap = wanted;
    return PF_OK;
}

pf_status pf_texts_add(struct pf_schema *s, struct pf_texts *t, struct pf_jstr text)
{
    PF_TRY(grow(s, &t->v, &t->cap, t->n, sizeof *t->v));
    t->v[t->n++] = text;
    return PF_OK;
}

/* ---- States ------------------------------------------------------------------------------------------------------ */

static pf_status put_way(struct builder *b, int32_t byte, int32_t to)
{
    PF_TRY(pf_rules_work(b->s->r, 1));
    PF_TRY(grow(b->s, &b->open, &b->open_cap, b->n_open, sizeof *b->open));
    b->open[b->n_open++] = (struct way){ byte, to };
    return PF_OK;
}

static size_t hash_of(const struct builder *b, const struct way *v, size_t n)
{
    return (size_t)pf_hash_text(&b->s->t.hash_key, (const char *)v, n * sizeof *v);
}

static pf_status table_grow(struct builder *b)
{
    void *table;
    size_t n_slots = b->mask ? 2 * (b->mask + 1) : 256;
    PF_TRY(pf_jalloc(&b->s->run, n_slots * sizeof *b->table, &table));
    b->table = table;
    b->mask = n_slots - 1;
    for (size_t i = 0; i < b->n_states; i++) {
        size_t h = hash_of(b, b->ways + b->states[i].first, b->states[i].n) & b->mask;
        while (b->table[h])
            h = (h + 1) & b->mask;
        b->table[h] = (uint32_t)i + 1;
    }
    return PF_OK;
}

static pf_status new_state(struct builder *b, const struct way *v, size_t n, int32_t *state)
{
    *state = pf_rules_state(b->s->r);
    PF_TRY(grow(b->s, &b->states, &b->state_cap, b->n_states, sizeof *b->states));
    b->states[b->n_states++] = (struct known_state){ *state, (uint32_t)b->n_ways, (uint32_t)n };
    for (size_t i = 0; i < n; i++) {
        PF_TRY(grow(b->s, &b->ways, &b->way_cap, b->n_ways, sizeof *b->ways));
        b->ways[b->n_ways++] = v[i];
        if (v[i].byte < 0)
            pf_rules_empty(b->s->r, *state, v[i].to);
        else
            pf_rules_bytes(b->s->r, *state, (uint8_t)v[i].byte, (uint8_t)v[i].byte, v[i].to);
    }
    return b->s->r->status;
}

/* The state that has the open ways from `first` on, which are closed: one that there is, or a new one. */
static pf_status close_ways(struct builder *b, size_t first, int32_t *state)
{
    const struct way *v = b->open + first;
    size_t n = b->n_open - first;
    b->n_open = first;
    if (2 * (b->n_states + 1) > b->mask)
        PF_TRY(table_grow(b));
    size_t h = hash_of(b, v, n) & b->mask;
    for (; b->table[h]; h = (h + 1) & b->mask) {
        const struct known_state *k = &b->states[b->table[h] - 1];
        if (k->n == n && memcmp(b->ways + k->first, v, n * sizeof *v) == 0) {
            *state = k->state;
            return PF_OK;
        }
    }
    PF_TRY(new_state(b, v, n, state));
    b->table[h] = (uint32_t)b->n_states;
    return PF_OK;
}

/* ---- Texts ------------------------------------------------------------------------------------------------------- */

/* The state from which what texts lo to hi - 1, which begin with the same `depth` bytes, have behind these leads to the
 * end. As deep as texts branch on the way of one of them: of a megabyte some thousand times. */
static pf_status state_of(struct builder *b, size_t lo, size_t hi, size_t depth, int32_t *state)
{
    const struct pf_jstr *v = b->texts, *first = &v[lo], *last = &v[hi - 1];
    size_t same = depth, open = b->n_open;
    while (same < first->n && same < last->n && first->p[same] == last->p[same])
        same++;
    *state = b->to;
    if (hi - lo > 1) {
        if (first->n == same) {
            PF_TRY(put_way(b, -1, b->to));
            lo++;
        }
        for (size_t end; lo < hi; lo = end) {
            int32_t next;
            for (end = lo + 1; end < hi && v[end].p[same] == v[lo].p[same];)
                end++;
            PF_TRY(pf_rules_work(b->s->r, end - lo));
            PF_TRY(state_of(b, lo, end, same + 1, &next));
            PF_TRY(put_way(b, (uint8_t)v[lo].p[same], next));
        }
        PF_TRY(close_ways(b, open, state));
    }
    for (size_t i = same; i-- > depth;) {
        PF_TRY(put_way(b, (uint8_t)first->p[i], *state));
        PF_TRY(close_ways(b, open, state));
    }
    return PF_OK;
}

pf_status pf_texts_emit(struct pf_schema *s, struct pf_texts *t, int32_t from, int32_t to)
{
    struct builder b = { .s = s, .texts = t->v, .to = to };
    size_t n = 0;
    int32_t state;
    if (t->n == 0)
        return s->r->status;
    qsort(t->v, t->n, sizeof *t->v, by_text);
    for (size_t i = 0; i < t->n; i++)
        if (i == 0 || by_text(&t->v[i], &t->v[n - 1]) != 0)
            t->v[n++] = t->v[i];
    t->n = n;
    PF_TRY(state_of(&b, 0, n, 0, &state));
    pf_rules_empty(s->r, from, state);
    return s->r->status;
}
