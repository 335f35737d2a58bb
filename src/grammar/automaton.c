/* Rules to an automaton. See automaton.h for what holds afterwards.
 *
 *     which states reach the end of their rule, by some text and by none   reach()
 *     edges that lead nowhere go; beside calls that may match nothing come empty edges   prune()
 *     which rules call which before their first byte; circles of them   left_calls(), circles()
 *     circles become loops   unroll()
 *     what is left of states, in the order of their numbers   lay_out()
 *
 * Left recursion. Of a circle of rules (A calls B first, B calls A first) each rule becomes an automaton of its own
 * that holds a copy of every rule C of the circle. It begins with what any C may begin with other than a rule of the
 * circle; and where a copy of C ends, it goes on at each place of the copies that comes after C having been called
 * first. Where the copy of A itself ends, the rule may end as well. E = E "+" T | T becomes T ("+" T)*. */
#include "grammar/automaton.h"

#include <stdlib.h>
#include <string.h>

#include "base/pf_mem.h"
#include "base/pf_status.h"

/* Lists of edge numbers by some number of theirs: items[at[k]] .. items[at[k + 1] - 1]. */
struct index {
    uint32_t *at, *items;
};

struct maker {
    struct pf_rules *r;
    bool *some, *none;               /* [n_states] reaches the end of its rule by some text; by the empty one */
    struct index out, in, callers;   /* edges by from, by to, calls by rule */
    int32_t *component;              /* [n_rules] numbers of circles: a rule's is above those of what it calls first */
    struct index left;               /* rules that a rule calls before its first byte */
    int32_t *stack;                  /* scratch, [n_states + n_rules] */
    uint32_t *seen, stamp;           /* scratch, [n_states] */
};

static pf_status no_memory(const struct maker *m)
{
    PF_FAIL(PF_ENOMEM, "no memory for a grammar of %d states", (int)m->r->n_states);
}

static void index_free(struct index *x)
{
    pf_free(x->at);
    pf_free(x->items);
    *x = (struct index){ 0 };
}

enum key { BY_FROM, BY_TO, BY_RULE };

static int32_t key_of(const struct pf_edge *e, enum key key)
{
    return key == BY_FROM ? e->from : key == BY_TO ? e->to : e->kind == PF_EDGE_RULE ? e->rule : -1;
}

static bool index_edges(struct index *x, const struct pf_rules *r, enum key key, size_t n_keys)
{
    index_free(x);
    x->at = pf_alloc_array(PF_MEM_TEXT, n_keys + 2, sizeof *x->at);
    x->items = pf_alloc_array(PF_MEM_TEXT, r->n_edges + 1, sizeof *x->items);
    if (!x->at || !x->items)
        return false;
    for (size_t i = 0; i < r->n_edges; i++)
        x->at[key_of(&r->edges[i], key) + 2]++;          /* calls' rule -1 counts at [1], which is put right below */
    if (key == BY_RULE)
        x->at[1] = 0;
    for (size_t k = 1; k <= n_keys; k++)
        x->at[k + 1] += x->at[k];
    for (size_t i = 0; i < r->n_edges; i++)
        if (key_of(&r->edges[i], key) >= 0)
            x->items[x->at[key_of(&r->edges[i], key) + 1]++] = (uint32_t)i;
    return true;
}

/* ---- What reaches the end of a rule ------------------------------------------------------------------------------ */

/* Sets reached[s] of the states from which their rule's end is reached; with `bytes` by any text, without by none. */
static void reach(struct maker *m, bool *reached, bool bytes)
{
    const struct pf_rules *r = m->r;
    size_t n = 0;
    for (size_t i = 0; i < r->n_rules; i++) {
        reached[r->rules[i].final] = true;
        m->stack[n++] = r->rules[i].final;
    }
    /* Which rule a start belongs to is looked up by its state: seen[] holds the rule's number + 1. */
    memset(m->seen, 0, (size_t)r->n_states * sizeof *m->seen);
    for (size_t i = 0; i < r->n_rules; i++)
        m->seen[r->rules[i].start] = (uint32_t)i + 1;
    while (n > 0) {
        int32_t s = m->stack[--n];
        for (uint32_t k = m->in.at[s]; k < m->in.at[s + 1]; k++) {
            const struct pf_edge *e = &r->edges[m->in.items[k]];
            bool passes = e->kind == PF_EDGE_EMPTY || (e->kind == PF_EDGE_BYTES && bytes) ||
                          (e->kind == PF_EDGE_RULE && reached[r->rules[e->rule].start]);
            if (passes && !reached[e->from]) {
                reached[e->from] = true;
                m->stack[n++] = e->from;
            }
        }
        for (uint32_t rule = m->seen[s], k = rule ? m->callers.at[rule - 1] : 0; rule && k < m->callers.at[rule]; k++) {
            const struct pf_edge *e = &r->edges[m->callers.items[k]];
            if (reached[e->to] && !reached[e->from]) {
                reached[e->from] = true;
                m->stack[n++] = e->from;
            }
        }
    }
    memset(m->seen, 0, (size_t)r->n_states * sizeof *m->seen);
}

/* Removes edges after which the end cannot be reached, and puts an empty edge beside each call that may match nothing.
 * */
static void prune(struct maker *m)
{
    struct pf_rules *r = m->r;
    size_t kept = 0, n = r->n_edges;
    for (size_t i = 0; i < n; i++) {
        struct pf_edge e = r->edges[i];
        if (m->some[e.to] && (e.kind != PF_EDGE_RULE || m->some[r->rules[e.rule].start]))
            r->edges[kept++] = e;
    }
    r->n_edges = n = kept;
    for (size_t i = 0; i < n && r->status == PF_OK; i++)
        if (r->edges[i].kind == PF_EDGE_RULE && m->none[r->rules[r->edges[i].rule].start])
            pf_rules_empty(r, r->edges[i].from, r->edges[i].to);
}

/* ---- Calls before the first byte --------------------------------------------------------------------------------- */

/* The states that empty edges lead to from s, s among them: into m->stack, at most n_states; returns how many. */
static size_t closure(struct maker *m, int32_t s)
{
    size_t n = 0, done = 0;
    m->stamp++;
    m->seen[s] = m->stamp;
    m->stack[n++] = s;
    for (; done < n; done++)
        for (uint32_t k = m->out.at[m->stack[done]]; k < m->out.at[m->stack[done] + 1]; k++) {
            const struct pf_edge *e = &m->r->edges[m->out.items[k]];
            if (e->kind == PF_EDGE_EMPTY && m->seen[e->to] != m->stamp) {
                m->seen[e->to] = m->stamp;
                m->stack[n++] = e->to;
            }
        }
    return n;
}

enum { MAX_LEFT = 1 << 22 };             /* states looked at for calls before the first byte, of all rules together */

static pf_status left_calls(struct maker *m)
{
    struct pf_rules *r = m->r;
    size_t cap = 0, n_left = 0, work = 0;
    m->left.at = pf_alloc_array(PF_MEM_TEXT, r->n_rules + 1, sizeof *m->left.at);
    if (!m->left.at)
        return no_memory(m);
    for (size_t i = 0; i < r->n_rules; i++) {
        size_t n = closure(m, r->rules[i].start);
        work += n;
        for (size_t j = 0; j < n; j++)
            for (uint32_t k = m->out.at[m->stack[j]]; k < m->out.at[m->stack[j] + 1]; k++, work++) {
                const struct pf_edge *e = &r->edges[m->out.items[k]];
                if (e->kind != PF_EDGE_RULE)
                    continue;
                if (!PF_GROW(m->left.items, cap, n_left))
                    return no_memory(m);
                m->left.items[n_left++] = (uint32_t)e->rule;
            }
        if (work > MAX_LEFT)
            PF_FAIL(PF_EUNSUPPORTED, "the grammar's rules call one another too often without a character between");
        m->left.at[i + 1] = (uint32_t)n_left;
    }
    return PF_OK;
}

/* Tarjan's algorithm (1972) without recursion. component[] rises from what is called to its callers. */
struct search {
    struct frame { int32_t rule; uint32_t next; } *frames;   /* rules under way, and the next of their calls */
    int32_t *found, *low;            /* [n_rules] when each was found, from 1 on; the first found that it leads to */
    size_t   depth, top;             /* of frames; of m->stack, which has rules without a component yet */
    int32_t  n_found, n_components;
};

static void enter_rule(struct maker *m, struct search *s, int32_t rule)
{
    s->frames[s->depth++] = (struct frame){ rule, m->left.at[rule] };
    s->found[rule] = s->low[rule] = ++s->n_found;
    m->stack[s->top++] = rule;
}

/* All calls of the last rule under way have been followed. */
static void leave_rule(struct maker *m, struct search *s)
{
    int32_t v = s->frames[--s->depth].rule, w;
    if (s->low[v] == s->found[v]) {
        do {
            w = m->stack[--s->top];
            m->component[w] = s->n_components;
        } while (w != v);
        s->n_components++;
    } else if (s->depth > 0 && s->low[v] < s->low[s->frames[s->depth - 1].rule]) {
        s->low[s->frames[s->depth - 1].rule] = s->low[v];
    }
}

static void search_from(struct maker *m, struct search *s, int32_t root)
{
    enter_rule(m, s, root);
    while (s->depth > 0) {
        struct frame *f = &s->frames[s->depth - 1];
        if (f->next == m->left.at[f->rule + 1]) {
            leave_rule(m, s);
            continue;
        }
        int32_t v = f->rule, w = (int32_t)m->left.items[f->next++];
        if (!s->found[w])
            enter_rule(m, s, w);
        else if (m->component[w] < 0 && s->found[w] < s->low[v])
            s->low[v] = s->found[w];
    }
}

static pf_status circles(struct maker *m)
{
    size_t n = m->r->n_rules;
    struct search s = { .frames = pf_alloc_array(PF_MEM_TEXT, n + 1, sizeof *s.frames),
                        .found = pf_alloc_array(PF_MEM_TEXT, n + 1, sizeof *s.found),
                        .low = pf_alloc_array(PF_MEM_TEXT, n + 1, sizeof *s.low) };
    m->component = pf_alloc_array(PF_MEM_TEXT, n + 1, sizeof *m->component);
    bool ok = s.frames && s.found && s.low && m->component;
    for (size_t i = 0; ok && i < n; i++)
        m->component[i] = -1;
    for (size_t root = 0; ok && root < n; root++)
        if (!s.found[root])
            search_from(m, &s, (int32_t)root);
    pf_free(s.frames);
    pf_free(s.found);
    pf_free(s.low);
    return ok ? PF_OK : no_memory(m);
}

/* ---- Left recursion ---------------------------------------------------------------------------------------------- */

struct circle {
    const int32_t *rules;
    size_t n;
    const struct pf_rule *old;           /* [n_rules] starts and ends before anything was unrolled */
    int32_t *copy;                       /* [old n_states] the copy of a state, -1: none */
    int32_t *states;                     /* those that have one */
    size_t n_states;
};

/* Copies all states that are reached from s, and the edges between them. */
static void copy_from(struct maker *m, struct circle *c, int32_t s)
{
    struct pf_rules *r = m->r;
    size_t done = c->n_states;
    if (c->copy[s] < 0) {
        c->copy[s] = pf_rules_state(r);
        c->states[c->n_states++] = s;
    }
    for (; done < c->n_states && r->status == PF_OK; done++) {
        int32_t from = c->states[done];
        for (uint32_t k = m->out.at[from]; k < m->out.at[from + 1] && r->status == PF_OK; k++) {
            struct pf_edge e = r->edges[m->out.items[k]];
            if (c->copy[e.to] < 0) {
                c->copy[e.to] = pf_rules_state(r);
                c->states[c->n_states++] = e.to;
            }
            e.from = c->copy[from];
            e.to = c->copy[e.to];
            if (e.kind == PF_EDGE_BYTES)
                pf_rules_bytes(r, e.from, (uint8_t)e.lo, (uint8_t)e.hi, e.to);
            else if (e.kind == PF_EDGE_RULE)
                pf_rules_call(r, e.from, e.rule, e.to);
            else
                pf_rules_empty(r, e.from, e.to);
        }
    }
}

/* What the circle's rules begin with, from `entry`; and where copies go on when one has ended. */
static void enter(struct maker *m, struct circle *c, int32_t entry, int32_t rule)
{
    struct pf_rules *r = m->r;
    size_t n = closure(m, c->old[rule].start);
    for (size_t j = 0; j < n; j++)
        for (uint32_t k = m->out.at[m->stack[j]]; k < m->out.at[m->stack[j] + 1] && r->status == PF_OK; k++) {
            struct pf_edge e = r->edges[m->out.items[k]];
            if (e.kind == PF_EDGE_BYTES)
                pf_rules_bytes(r, entry, (uint8_t)e.lo, (uint8_t)e.hi, c->copy[e.to]);
            else if (e.kind == PF_EDGE_RULE && m->component[e.rule] != m->component[rule])
                pf_rules_call(r, entry, e.rule, c->copy[e.to]);
            else if (e.kind == PF_EDGE_RULE)
                pf_rules_empty(r, c->copy[c->old[e.rule].final], c->copy[e.to]);
        }
}

static void unroll_rule(struct maker *m, struct circle *c, int32_t rule)
{
    struct pf_rules *r = m->r;
    int32_t entry = pf_rules_state(r), final = pf_rules_state(r);
    c->n_states = 0;
    for (size_t i = 0; i < c->n; i++) {
        copy_from(m, c, c->old[c->rules[i]].start);
        copy_from(m, c, c->old[c->rules[i]].final);
    }
    for (size_t i = 0; i < c->n && r->status == PF_OK; i++)
        enter(m, c, entry, c->rules[i]);
    pf_rules_empty(r, c->copy[c->old[rule].final], final);
    r->rules[rule] = (struct pf_rule){ entry, final };
    for (size_t i = 0; i < c->n_states; i++)
        c->copy[c->states[i]] = -1;
}

static bool calls_itself(const struct maker *m, int32_t rule)
{
    for (uint32_t k = m->left.at[rule]; k < m->left.at[rule + 1]; k++)
        if ((int32_t)m->left.items[k] == rule)
            return true;
    return false;
}

static int by_component(const void *a, const void *b)
{
    const int32_t *x = a, *y = b;
    return x[0] != y[0] ? (x[0] > y[0]) - (x[0] < y[0]) : (x[1] > y[1]) - (x[1] < y[1]);
}

/* Rules sorted by their circle: pairs of circle and rule, then the rules alone in the same memory. */
static int32_t *rules_by_circle(const struct maker *m)
{
    size_t n = m->r->n_rules;
    int32_t *pairs = pf_alloc_array(PF_MEM_TEXT, 2 * n + 1, sizeof *pairs);
    for (size_t i = 0; pairs && i < n; i++) {
        pairs[2 * i] = m->component[i];
        pairs[2 * i + 1] = (int32_t)i;
    }
    if (pairs)
        qsort(pairs, n, 2 * sizeof *pairs, by_component);
    for (size_t i = 0; pairs && i < n; i++)
        pairs[i] = pairs[2 * i + 1];
    return pairs;
}

static pf_status unroll(struct maker *m)
{
    struct pf_rules *r = m->r;
    size_t n = r->n_rules, n_states = (size_t)r->n_states;
    int32_t *sorted = rules_by_circle(m);
    struct pf_rule *old = pf_alloc_array(PF_MEM_TEXT, n + 1, sizeof *old);
    struct circle c = { .old = old, .copy = pf_alloc_array(PF_MEM_TEXT, n_states + 1, sizeof *c.copy),
                        .states = pf_alloc_array(PF_MEM_TEXT, n_states + 1, sizeof *c.states) };
    bool ok = sorted && old && c.copy && c.states;
    for (size_t i = 0; ok && i < n_states; i++)
        c.copy[i] = -1;
    if (ok)
        memcpy(old, r->rules, n * sizeof *old);
    for (size_t i = 0; ok && i < n; i += c.n) {
        c.rules = sorted + i;
        for (c.n = 1; i + c.n < n && m->component[sorted[i + c.n]] == m->component[sorted[i]];)
            c.n++;
        if (c.n > 1 || calls_itself(m, sorted[i]))
            for (size_t k = 0; k < c.n && r->status == PF_OK; k++)
                unroll_rule(m, &c, c.rules[k]);
    }
    pf_free(sorted);
    pf_free(old);
    pf_free(c.copy);
    pf_free(c.states);
    return ok ? r->status : no_memory(m);
}

/* ---- The automaton ----------------------------------------------------------------------------------------------- */

/* Numbers the states that the root reaches; the others get -1. Returns how many there are. */
static int32_t number_states(struct maker *m, const struct pf_automaton *a, int32_t *number)
{
    const struct pf_rules *r = m->r;
    int32_t n = 0, done = 0;
    for (int32_t s = 0; s < r->n_states; s++)
        number[s] = -1;
    number[r->rules[a->root].start] = n;
    m->stack[n++] = r->rules[a->root].start;
    for (; done < n; done++)
        for (uint32_t k = m->out.at[m->stack[done]]; k < m->out.at[m->stack[done] + 1]; k++) {
            const struct pf_edge *e = &r->edges[m->out.items[k]];
            int32_t next[] = { e->to, e->kind == PF_EDGE_RULE ? r->rules[e->rule].start : e->to };
            for (int i = 0; i < 2; i++)
                if (number[next[i]] < 0) {
                    number[next[i]] = n;
                    m->stack[n++] = next[i];
                }
        }
    return n;
}

/* Whether nothing but the end of the rule comes after s. */
static bool only_ends(const struct pf_automaton *a, int32_t s)
{
    for (int hops = 0; hops < 64; hops++) {
        uint32_t n = a->first[s + 1] - a->first[s];
        if (a->final[s])
            return n == 0;
        if (n != 1 || a->calls[s] == a->first[s])
            return false;
        s = a->steps[a->first[s]].to;
    }
    return false;
}

static pf_status lay_out(struct maker *m, struct pf_automaton *a)
{
    const struct pf_rules *r = m->r;
    int32_t *number = pf_alloc_array(PF_MEM_TEXT, (size_t)r->n_states + 1, sizeof *number);
    if (!number)
        return no_memory(m);
    a->n_states = number_states(m, a, number);
    a->n_rules = (int32_t)r->n_rules;
    size_t n = (size_t)a->n_states;
    a->first = pf_alloc_array(PF_MEM_TEXT, n + 1, sizeof *a->first);
    a->calls = pf_alloc_array(PF_MEM_TEXT, n + 1, sizeof *a->calls);
    a->bytes = pf_alloc_array(PF_MEM_TEXT, n + 1, sizeof *a->bytes);
    a->final = pf_alloc_array(PF_MEM_TEXT, n + 1, sizeof *a->final);
    a->steps = pf_alloc_array(PF_MEM_TEXT, r->n_edges + 1, sizeof *a->steps);
    a->starts = pf_alloc_array(PF_MEM_TEXT, r->n_rules + 1, sizeof *a->starts);
    a->order = pf_alloc_array(PF_MEM_TEXT, r->n_rules + 1, sizeof *a->order);
    if (!a->first || !a->calls || !a->bytes || !a->final || !a->steps || !a->starts || !a->order) {
        pf_free(number);
        return no_memory(m);
    }
    uint32_t at = 0;
    for (size_t i = 0; i < n; i++) {
        int32_t s = m->stack[i];                     /* as number_states left it */
        uint32_t *begins[] = { &a->first[i], &a->calls[i], &a->bytes[i] };
        for (int kind = PF_EDGE_EMPTY; kind <= PF_EDGE_BYTES; kind++) {
            *begins[kind] = at;
            for (uint32_t k = m->out.at[s]; k < m->out.at[s + 1]; k++) {
                const struct pf_edge *e = &r->edges[m->out.items[k]];
                if (e->kind == kind)
                    a->steps[at++] = (struct pf_step){ .to = number[e->to], .rule = e->rule, .lo = (uint8_t)e->lo,
                                                        .hi = (uint8_t)e->hi };
            }
        }
    }
    a->first[n] = a->calls[n] = a->bytes[n] = at;
    for (size_t i = 0; i < r->n_rules; i++) {
        a->starts[i] = number[r->rules[i].start];
        a->order[i] = -m->component[i];
        if (number[r->rules[i].final] >= 0)
            a->final[number[r->rules[i].final]] = true;
    }
    for (size_t i = 0; i < n; i++)
        for (uint32_t k = a->calls[i]; k < a->bytes[i]; k++)
            a->steps[k].tail = only_ends(a, a->steps[k].to);
    pf_free(number);
    return PF_OK;
}

/* Room for the states that unrolling has added since. */
static bool make_scratch(struct maker *m)
{
    size_t n = (size_t)m->r->n_states + m->r->n_rules + 1;
    pf_free(m->stack);
    pf_free(m->seen);
    m->stack = pf_alloc_array(PF_MEM_TEXT, n, sizeof *m->stack);
    m->seen = pf_alloc_array(PF_MEM_TEXT, n, sizeof *m->seen);
    m->stamp = 0;
    return m->stack && m->seen;
}

static pf_status make(struct maker *m, struct pf_automaton *a)
{
    struct pf_rules *r = m->r;
    size_t n = (size_t)r->n_states;
    m->some = pf_alloc_array(PF_MEM_TEXT, n + 1, sizeof *m->some);
    m->none = pf_alloc_array(PF_MEM_TEXT, n + 1, sizeof *m->none);
    if (!m->some || !m->none || !make_scratch(m) || !index_edges(&m->in, r, BY_TO, n) ||
        !index_edges(&m->callers, r, BY_RULE, r->n_rules))
        return no_memory(m);
    reach(m, m->some, true);
    reach(m, m->none, false);
    if (!m->some[r->rules[a->root].start])
        PF_FAIL(PF_EINVAL, "the grammar matches no text at all");
    prune(m);
    PF_TRY(r->status);
    if (!index_edges(&m->out, r, BY_FROM, n))
        return no_memory(m);
    PF_TRY(left_calls(m));
    PF_TRY(circles(m));
    PF_TRY(unroll(m));
    if (!make_scratch(m) || !index_edges(&m->out, r, BY_FROM, (size_t)r->n_states))
        return no_memory(m);
    return lay_out(m, a);
}

pf_status pf_automaton_make(struct pf_automaton *a, struct pf_rules *r, int32_t root)
{
    struct maker m = { .r = r };
    *a = (struct pf_automaton){ .root = pf_rules_rule(r) };      /* calls the root: so that may match nothing, too */
    PF_TRY(r->status);
    pf_rules_call(r, r->rules[a->root].start, root, r->rules[a->root].final);
    PF_TRY(r->status);
    pf_status st = make(&m, a);
    index_free(&m.out);
    index_free(&m.in);
    index_free(&m.callers);
    index_free(&m.left);
    pf_free(m.some);
    pf_free(m.none);
    pf_free(m.component);
    pf_free(m.stack);
    pf_free(m.seen);
    return st;
}

size_t pf_automaton_bytes(const struct pf_automaton *a)
{
    size_t n = (size_t)a->n_states, n_rules = (size_t)a->n_rules;
    return (n + 1) * (sizeof *a->first + sizeof *a->calls + sizeof *a->bytes) + a->first[n] * sizeof *a->steps +
           n * sizeof *a->final + n_rules * (sizeof *a->starts + sizeof *a->order);
}

void pf_automaton_free(struct pf_automaton *a)
{
    pf_free(a->first);
    pf_free(a->calls);
    pf_free(a->bytes);
    pf_free(a->steps);
    pf_free(a->final);
    pf_free(a->starts);
    pf_free(a->order);
    *a = (struct pf_automaton){ 0 };
}
