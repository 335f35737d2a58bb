/* Running an automaton. See runner.h.
 *
 * A closure is everything that no byte leads to: from the items that a byte led to, by empty edges, by returns at the
 * end of rules, and by calls. Returns come before calls: a rule that is called takes a byte before it returns, so no
 * call of this closure returns in it. Calls are made in the automaton's order of rules, which has callers first; so
 * when a rule is entered all who enter it here are known, and it gets one stack that returns to all of them. */
#include "grammar/runner.h"

#include <stdlib.h>
#include <string.h>

#include "base/pf_mem.h"
#include "base/pf_status.h"
#include "grammar/tokens.h"

enum {
    SOFT_POSITIONS = 1 << 13, HARD_POSITIONS = 1 << 16, SOFT_ITEMS = 1 << 20, HARD_ITEMS = 1 << 23
};

static pf_status no_memory(void)
{
    PF_FAIL(PF_ENOMEM, "no memory for the positions of a grammar");
}

static pf_status too_ambiguous(void)
{
    PF_FAIL(PF_EUNSUPPORTED, "the grammar is too ambiguous, or too deep, for the output so far: telling what may "
            "follow takes too much work");
}

/* ---- Sets by content --------------------------------------------------------------------------------------------- */

static uint64_t hash_items(const struct pf_hash_key *key, const struct pf_item *v, size_t n)
{
    return pf_hash_text(key, (const char *)v, n * sizeof *v);
}

static bool rehash(struct pf_item_sets *s, const struct pf_hash_key *key, size_t n_slots)
{
    uint32_t *table = pf_alloc_array(PF_MEM_TEXT, n_slots, sizeof *table);
    if (!table)
        return false;
    for (size_t i = 0; i < s->n_sets; i++) {
        size_t h = hash_items(key, s->items + s->sets[i].first, s->sets[i].n) & (n_slots - 1);
        while (table[h])
            h = (h + 1) & (n_slots - 1);
        table[h] = (uint32_t)i + 1;
    }
    pf_free(s->table);
    s->table = table;
    s->mask = n_slots - 1;
    return true;
}

static pf_status append_set(struct pf_item_sets *s, const struct pf_item *v, size_t n)
{
    if (s->n_items + n > HARD_ITEMS || s->n_sets >= HARD_POSITIONS * 4)
        return too_ambiguous();
    while (s->n_items + n > s->item_cap)
        if (!pf_grow((void **)&s->items, &s->item_cap, s->item_cap, sizeof *s->items))
            return no_memory();
    if (!PF_GROW(s->sets, s->set_cap, s->n_sets))
        return no_memory();
    if (n)
        memcpy(s->items + s->n_items, v, n * sizeof *v);
    s->sets[s->n_sets++] = (struct pf_item_set){ .first = (uint32_t)s->n_items, .n = (uint32_t)n };
    s->n_items += n;
    return PF_OK;
}

/* The number of the set of n items at v, which are sorted; *is_new: it had none before. */
static pf_status set_of(struct pf_item_sets *s, const struct pf_hash_key *key, const struct pf_item *v, size_t n,
                        int32_t *number, bool *is_new)
{
    if (2 * (s->n_sets + 1) > s->mask && !rehash(s, key, s->mask ? 2 * (s->mask + 1) : 64))
        return no_memory();
    size_t h = hash_items(key, v, n) & s->mask;
    for (; s->table[h]; h = (h + 1) & s->mask) {
        const struct pf_item_set *set = &s->sets[s->table[h] - 1];
        if (set->n == n && (n == 0 || memcmp(s->items + set->first, v, n * sizeof *v) == 0)) {
            *number = (int32_t)s->table[h] - 1;
            *is_new = false;
            return PF_OK;
        }
    }
    PF_TRY(append_set(s, v, n));
    s->table[h] = (uint32_t)s->n_sets;
    *number = (int32_t)s->n_sets - 1;
    *is_new = true;
    return PF_OK;
}

static void free_sets(struct pf_item_sets *s)
{
    pf_free(s->items);
    pf_free(s->sets);
    pf_free(s->table);
    *s = (struct pf_item_sets){ 0 };
}

static int by_item(const void *x, const void *y)
{
    const struct pf_item *a = x, *b = y;
    return a->state != b->state ? (a->state > b->state) - (a->state < b->state)
                                : (a->stack > b->stack) - (a->stack < b->stack);
}

/* Sorts, and drops what occurs twice; returns how many are left. */
static size_t sort_items(struct pf_item *v, size_t n)
{
    size_t kept = 0;
    if (n > 1)
        qsort(v, n, sizeof *v, by_item);
    for (size_t i = 0; i < n; i++)
        if (i == 0 || by_item(&v[i], &v[kept - 1]) != 0)
            v[kept++] = v[i];
    return kept;
}

/* ---- Closures ---------------------------------------------------------------------------------------------------- */

static bool met_grow(struct pf_runner *r)
{
    struct pf_met *m = &r->met, old = *m;
    size_t n_slots = old.mask ? 2 * (old.mask + 1) : 256;
    struct pf_item *items = pf_alloc_array(PF_MEM_TEXT, n_slots, sizeof *items);
    uint32_t *stamps = pf_alloc_array(PF_MEM_TEXT, n_slots, sizeof *stamps);
    if (!items || !stamps) {
        pf_free(items);
        pf_free(stamps);
        return false;
    }
    *m = (struct pf_met){ .items = items, .stamps = stamps, .stamp = 1, .n = old.n, .mask = n_slots - 1 };
    for (size_t i = 0; old.mask && i <= old.mask; i++) {
        if (old.stamps[i] != old.stamp)
            continue;
        size_t h = pf_hash_word(&r->key, (uint64_t)(uint32_t)old.items[i].state << 32 | (uint32_t)old.items[i].stack);
        for (h &= m->mask; m->stamps[h];)
            h = (h + 1) & m->mask;
        m->items[h] = old.items[i];
        m->stamps[h] = 1;
    }
    pf_free(old.items);
    pf_free(old.stamps);
    return true;
}

/* Puts an item on the list of work, unless it was there before. */
static pf_status meet(struct pf_runner *r, int32_t state, int32_t stack)
{
    struct pf_met *m = &r->met;
    if (++r->effort > r->most_effort)
        return too_ambiguous();
    if (2 * (m->n + 1) > m->mask && !met_grow(r))
        return no_memory();
    size_t h = pf_hash_word(&r->key, (uint64_t)(uint32_t)state << 32 | (uint32_t)stack) & m->mask;
    for (; m->stamps[h] == m->stamp; h = (h + 1) & m->mask)
        if (m->items[h].state == state && m->items[h].stack == stack)
            return PF_OK;
    m->items[h] = (struct pf_item){ state, stack };
    m->stamps[h] = m->stamp;
    m->n++;
    if (!PF_GROW(r->work, r->work_cap, r->n_work))
        return no_memory();
    r->work[r->n_work++] = (struct pf_item){ state, stack };
    return PF_OK;
}

static void forget_met(struct pf_runner *r)
{
    struct pf_met *m = &r->met;
    m->n = 0;
    if (m->mask && ++m->stamp == 0) {
        memset(m->stamps, 0, (m->mask + 1) * sizeof *m->stamps);
        m->stamp = 1;
    }
}

static pf_status keep(struct pf_item **v, size_t *cap, size_t *n, struct pf_item item)
{
    if (!pf_grow((void **)v, cap, *n, sizeof **v))
        return no_memory();
    (*v)[(*n)++] = item;
    return PF_OK;
}

static pf_status enter_later(struct pf_runner *r, int32_t rule, struct pf_item item)
{
    if (!PF_GROW(r->pending, r->pending_cap, r->n_pending))
        return no_memory();
    r->pending[r->n_pending++] = (struct pf_pending){ .rule = rule, .item = item };
    return ++r->effort > r->most_effort ? too_ambiguous() : PF_OK;
}

static pf_status call(struct pf_runner *r, const struct pf_step *step, int32_t stack)
{
    if (!step->tail)
        return enter_later(r, step->rule, (struct pf_item){ step->to, stack });
    const struct pf_item_set set = r->stacks.sets[stack];
    for (uint32_t i = 0; i < set.n; i++)
        PF_TRY(enter_later(r, step->rule, r->stacks.items[set.first + i]));
    return PF_OK;
}

/* Works the list off. base: items are from before any call of this closure, so ends of rules return. */
static pf_status work_off(struct pf_runner *r, bool base)
{
    const struct pf_automaton *a = r->a;
    while (r->n_work > 0) {
        struct pf_item item = r->work[--r->n_work];
        int32_t s = item.state;
        bool is_real = s >= 0;
        if (!is_real || a->bytes[s] < a->first[s + 1])
            PF_TRY(keep(&r->kept, &r->kept_cap, &r->n_kept, item));
        if (base && (!is_real || a->calls[s] < a->first[s + 1]))
            PF_TRY(keep(&r->base, &r->base_cap, &r->n_base, item));
        if (!is_real)
            continue;
        for (uint32_t k = a->first[s]; k < a->calls[s]; k++)
            PF_TRY(meet(r, a->steps[k].to, item.stack));
        for (uint32_t k = a->calls[s]; k < a->bytes[s]; k++)
            PF_TRY(call(r, &a->steps[k], item.stack));
        if (base && a->final[s])
            for (uint32_t i = 0; i < r->stacks.sets[item.stack].n; i++) {
                const struct pf_item *back = &r->stacks.items[r->stacks.sets[item.stack].first + i];
                PF_TRY(meet(r, back->state, back->stack));
            }
    }
    return PF_OK;
}

/* Takes the pending elements of the rule that comes first in the order, as a stack. */
static pf_status next_call(struct pf_runner *r, int32_t *rule, int32_t *stack)
{
    struct pf_item few[64], *v = few, *many = NULL;
    size_t n = 0, left = 0;
    bool is_new;
    *rule = r->pending[0].rule;
    for (size_t i = 1; i < r->n_pending; i++)
        if (r->a->order[r->pending[i].rule] < r->a->order[*rule])
            *rule = r->pending[i].rule;
    r->effort += r->n_pending;
    if (r->n_pending > sizeof few / sizeof *few)
        v = many = pf_alloc_array(PF_MEM_TEXT, r->n_pending, sizeof *v);
    if (!v)
        return no_memory();
    for (size_t i = 0; i < r->n_pending; i++) {
        if (r->pending[i].rule == *rule)
            v[n++] = r->pending[i].item;
        else
            r->pending[left++] = r->pending[i];
    }
    r->n_pending = left;
    pf_status st = set_of(&r->stacks, &r->key, v, sort_items(v, n), stack, &is_new);
    pf_free(many);
    return st < 0 ? st : r->effort > r->most_effort ? too_ambiguous() : PF_OK;
}

static void closure_begin(struct pf_runner *r)
{
    forget_met(r);
    r->n_work = r->n_kept = r->n_base = r->n_pending = 0;
}

/* The position whose first items are on the list of work. */
static pf_status closure_end(struct pf_runner *r, int32_t *position)
{
    bool is_new;
    PF_TRY(work_off(r, true));
    r->n_base = sort_items(r->base, r->n_base);
    if (r->roots.n_sets >= HARD_POSITIONS)
        return too_ambiguous();
    if (r->roots.n_sets >= r->row_cap && !PF_GROW(r->rows, r->row_cap, r->row_cap))
        return no_memory();
    PF_TRY(set_of(&r->roots, &r->key, r->base, r->n_base, position, &is_new));
    if (!is_new)
        return PF_OK;
    pf_status st = PF_OK;
    while (st == PF_OK && r->n_pending > 0) {
        int32_t rule, stack;
        st = next_call(r, &rule, &stack);
        if (st == PF_OK)
            st = meet(r, r->a->starts[rule], stack);
        if (st == PF_OK)
            st = work_off(r, false);
    }
    if (st == PF_OK)
        st = append_set(&r->live, r->kept, sort_items(r->kept, r->n_kept));
    if (st < 0) {                        /* the newest position goes again: it is the last in its table's chain */
        struct pf_item_set *last = &r->roots.sets[--r->roots.n_sets];
        r->roots.n_items -= last->n;
        size_t h = hash_items(&r->key, r->roots.items + last->first, last->n) & r->roots.mask;
        while (r->roots.table[h] != (uint32_t)r->roots.n_sets + 1)
            h = (h + 1) & r->roots.mask;
        r->roots.table[h] = 0;
        return st;
    }
    r->rows[*position] = NULL;
    struct pf_item_set *made = &r->live.sets[*position];
    for (uint32_t i = 0; i < made->n && r->live.items[made->first + i].state < PF_ENDED; i++)
        made->holes |= 1u << (r->live.items[made->first + i].state - PF_HOLE);
    return PF_OK;
}

/* The items that a byte leads to, on the list of work. */
static pf_status step(struct pf_runner *r, int32_t position, uint8_t byte)
{
    const struct pf_automaton *a = r->a;
    const struct pf_item_set set = r->live.sets[position];
    closure_begin(r);
    r->effort += set.n;
    for (uint32_t i = 0; i < set.n; i++) {
        struct pf_item item = r->live.items[set.first + i];
        if (item.state < 0)
            continue;
        for (uint32_t k = a->bytes[item.state]; k < a->first[item.state + 1]; k++)
            if (a->steps[k].lo <= byte && byte <= a->steps[k].hi)
                PF_TRY(meet(r, a->steps[k].to, item.stack));
    }
    return PF_OK;
}

/* A byte that no edge takes leads to the dead position. */
static void fill_dead(struct pf_runner *r, int32_t position, struct pf_row *row)
{
    const struct pf_automaton *a = r->a;
    const struct pf_item_set set = r->live.sets[position];
    int n_dead = 256;
    r->effort += set.n;
    for (uint32_t i = 0; i < set.n && n_dead > 0; i++) {
        int32_t s = r->live.items[set.first + i].state;
        for (uint32_t k = s < 0 ? 0 : a->bytes[s]; s >= 0 && k < a->first[s + 1]; k++)
            for (unsigned b = a->steps[k].lo; b <= a->steps[k].hi; b++) {
                n_dead -= row->next[b] == 0;
                row->next[b] = -1;
            }
    }
    for (unsigned b = 0; b < 128; b++)
        row->n_alive += row->next[b] < 0;
}

static pf_status row_of(struct pf_runner *r, int32_t position, struct pf_row **row)
{
    if (!r->rows[position]) {
        r->rows[position] = pf_alloc(PF_MEM_TEXT, sizeof **r->rows);
        if (!r->rows[position])
            return no_memory();
        fill_dead(r, position, r->rows[position]);
    }
    *row = r->rows[position];
    return PF_OK;
}

pf_status pf_runner_is_narrow(struct pf_runner *r, int32_t position, bool *narrow)
{
    struct pf_row *row = NULL;
    PF_TRY(row_of(r, position, &row));
    *narrow = row->n_alive < 64;
    return PF_OK;
}

pf_status pf_runner_compute(struct pf_runner *r, int32_t position, uint8_t byte, int32_t *next)
{
    struct pf_row *row = NULL;
    PF_TRY(row_of(r, position, &row));
    PF_TRY(step(r, position, byte));
    PF_TRY(closure_end(r, next));
    row->next[byte] = *next;
    return PF_OK;
}

/* What most bytes lead to: candidates are counted up and down (Boyer and Moore's vote), which is enough for a guess. */
static void find_onward(struct pf_row *row)
{
    int votes = 0;
    for (unsigned b = 0; b < 128; b++) {
        if (votes == 0)
            row->onward = row->next[b];
        votes += row->next[b] == row->onward ? 1 : -1;
    }
    row->kinds = ~(UINT64_C(1) << PF_KIND_BROKEN);       /* bytes that break UTF-8 are looked at one by one */
    for (unsigned b = 0; b < 256; b++)
        if (row->next[b] != row->onward)
            row->kinds &= ~(UINT64_C(1) << pf_byte_kind((uint8_t)b));
}

pf_status pf_runner_row(struct pf_runner *r, int32_t position, const struct pf_row **out)
{
    struct pf_item few[16];
    const size_t most = sizeof few / sizeof *few, unknown = SIZE_MAX;
    size_t n_few = unknown;                  /* items that the byte before led to, if they are few */
    struct pf_row *row = NULL;
    PF_TRY(row_of(r, position, &row));
    *out = row;
    for (unsigned b = 0; b < 256 && !row->is_whole; b++) {
        if (b == 0 || row->next[b] < 0) {
            PF_TRY(step(r, position, (uint8_t)b));
            bool same = b > 0 && r->n_work == n_few && (n_few == 0 || memcmp(few, r->work, n_few * sizeof *few) == 0);
            n_few = r->n_work <= most ? r->n_work : unknown;
            if (n_few && n_few <= most)
                memcpy(few, r->work, n_few * sizeof *few);
            if (same)
                row->next[b] = row->next[b - 1];
            else
                PF_TRY(closure_end(r, &row->next[b]));
        } else {
            n_few = unknown;
        }
    }
    if (!row->is_whole)
        find_onward(row);
    row->is_whole = true;
    return PF_OK;
}

/* Whether lo .. hi and n - 1 more continuation bytes all lead to the target. */
static pf_status all_lead_to(struct pf_runner *r, int32_t position, int lo, int hi, int n, int32_t target, bool *yes)
{
    int32_t first = 0, next;
    for (int b = lo; b <= hi && *yes; b++) {
        PF_TRY(pf_runner_next(r, position, (uint8_t)b, &next));
        first = b == lo ? next : first;
        *yes = next == first && next != 0 && (n > 1 ? pf_runner_holes(r, next) == 0 : next == target);
    }
    return *yes && n > 1 ? all_lead_to(r, first, 0x80, 0xBF, n - 1, target, yes) : PF_OK;
}

/* Lead bytes of UTF-8 and what may come second; then continuation bytes alone. */
static const struct {
    uint8_t lo, hi, second_lo, second_hi, n;
} leads[] = { { 0xC2, 0xDF, 0x80, 0xBF, 2 }, { 0xE0, 0xE0, 0xA0, 0xBF, 3 }, { 0xE1, 0xEC, 0x80, 0xBF, 3 },
              { 0xED, 0xED, 0x80, 0x9F, 3 }, { 0xEE, 0xEF, 0x80, 0xBF, 3 }, { 0xF0, 0xF0, 0x90, 0xBF, 4 },
              { 0xF1, 0xF3, 0x80, 0xBF, 4 }, { 0xF4, 0xF4, 0x80, 0x8F, 4 } };

pf_status pf_runner_is_wide(struct pf_runner *r, int32_t position, bool *wide)
{
    const struct pf_row *row = NULL;
    PF_TRY(pf_runner_row(r, position, &row));
    *wide = row->wide != PF_NOT_WIDE && row->onward != 0 && pf_runner_holes(r, row->onward) == 0;
    if (row->wide != PF_WIDE_UNKNOWN)
        return PF_OK;
    for (size_t i = 0; i < sizeof leads / sizeof *leads; i++) {
        int32_t after = 0, next;
        for (int b = leads[i].lo; b <= leads[i].hi && *wide; b++) {
            PF_TRY(pf_runner_next(r, position, (uint8_t)b, &next));
            after = b == leads[i].lo ? next : after;
            *wide = next == after && next != 0 && pf_runner_holes(r, next) == 0;
        }
        if (*wide)
            PF_TRY(all_lead_to(r, after, leads[i].second_lo, leads[i].second_hi, leads[i].n - 1, row->onward, wide));
    }
    r->rows[position]->wide = *wide ? PF_WIDE : PF_NOT_WIDE;
    return PF_OK;
}

/* ---- Positions --------------------------------------------------------------------------------------------------- */

void pf_runner_begin(struct pf_runner *r, uint64_t most)
{
    r->effort = 0;
    r->most_effort = most;
}

/* The stack of one element. */
static pf_status stack_of(struct pf_runner *r, int32_t state, int32_t *stack)
{
    bool is_new;
    struct pf_item item = { state, 0 };
    return set_of(&r->stacks, &r->key, &item, 1, stack, &is_new);
}

pf_status pf_runner_start(struct pf_runner *r, int32_t *position)
{
    int32_t ended;
    closure_begin(r);
    PF_TRY(stack_of(r, PF_ENDED, &ended));
    PF_TRY(meet(r, r->a->starts[r->a->root], ended));
    return closure_end(r, position);
}

static bool has_state(const struct pf_runner *r, int32_t position, int32_t state)
{
    const struct pf_item_set *set = &r->live.sets[position];
    for (uint32_t i = 0; i < set->n && r->live.items[set->first + i].state <= state; i++)
        if (r->live.items[set->first + i].state == state)
            return true;
    return false;
}

bool pf_runner_may_end(const struct pf_runner *r, int32_t position)
{
    return has_state(r, position, PF_ENDED);
}

bool pf_runner_must_end(const struct pf_runner *r, int32_t position)
{
    return pf_runner_may_end(r, position) && r->live.sets[position].n == 1;
}

pf_status pf_runner_shape(struct pf_runner *r, int32_t position, int32_t *shape, int32_t holes[PF_MAX_HOLES],
                          int *n_holes)
{
    const struct pf_item_set set = r->roots.sets[position];
    closure_begin(r);
    *n_holes = 0;
    for (uint32_t i = 0; i < set.n; i++) {
        struct pf_item item = r->roots.items[set.first + i];
        int32_t hole, k = 0;
        if (item.state < 0) {
            PF_TRY(meet(r, item.state, item.stack));
            continue;
        }
        while (k < *n_holes && holes[k] != item.stack)
            k++;
        if (k == PF_MAX_HOLES) {
            *n_holes = -1;
            *shape = position;
            return PF_OK;
        }
        if (k == *n_holes)
            holes[(*n_holes)++] = item.stack;
        PF_TRY(stack_of(r, PF_HOLE + k, &hole));
        PF_TRY(meet(r, item.state, hole));
    }
    return closure_end(r, shape);
}

pf_status pf_runner_return(struct pf_runner *r, int32_t stack, int32_t *position)
{
    const struct pf_item_set set = r->stacks.sets[stack];
    closure_begin(r);
    for (uint32_t i = 0; i < set.n; i++) {
        struct pf_item item = r->stacks.items[set.first + i];
        PF_TRY(meet(r, item.state, item.stack));
    }
    return closure_end(r, position);
}

/* ---- Opening and shrinking --------------------------------------------------------------------------------------- */

pf_status pf_runner_open(struct pf_runner *r, const struct pf_automaton *a)
{
    int32_t dead;
    *r = (struct pf_runner){ .a = a };
    pf_hash_key_draw(&r->key);
    pf_runner_begin(r, PF_MOST_EFFORT);
    closure_begin(r);
    return closure_end(r, &dead);
}

void pf_runner_close(struct pf_runner *r)
{
    for (size_t i = 0; i < r->roots.n_sets; i++)
        pf_free(r->rows[i]);
    free_sets(&r->stacks);
    free_sets(&r->roots);
    free_sets(&r->live);
    pf_free(r->rows);
    pf_free(r->met.items);
    pf_free(r->met.stamps);
    pf_free(r->work);
    pf_free(r->kept);
    pf_free(r->base);
    pf_free(r->pending);
    *r = (struct pf_runner){ 0 };
}

bool pf_runner_is_full(const struct pf_runner *r)
{
    return r->roots.n_sets > SOFT_POSITIONS || r->stacks.n_items + r->roots.n_items + r->live.n_items > SOFT_ITEMS;
}

/* Copies the stacks that are marked in number[] into another runner, those below first: they have lower numbers. */
static pf_status copy_stacks(const struct pf_runner *r, struct pf_runner *fresh, int32_t *number)
{
    for (size_t i = r->stacks.n_sets; i-- > 0;) {
        const struct pf_item_set *set = &r->stacks.sets[i];
        for (uint32_t k = 0; number[i] && k < set->n; k++)
            if (r->stacks.items[set->first + k].state >= 0)
                number[r->stacks.items[set->first + k].stack] = 1;
    }
    for (size_t i = 0; i < r->stacks.n_sets; i++) {
        const struct pf_item_set *set = &r->stacks.sets[i];
        bool is_new;
        if (!number[i])
            continue;
        fresh->n_base = 0;
        for (uint32_t k = 0; k < set->n; k++) {
            struct pf_item item = r->stacks.items[set->first + k];
            item.stack = item.state >= 0 ? number[item.stack] : 0;
            PF_TRY(keep(&fresh->base, &fresh->base_cap, &fresh->n_base, item));
        }
        fresh->n_base = sort_items(fresh->base, fresh->n_base);
        PF_TRY(set_of(&fresh->stacks, &fresh->key, fresh->base, fresh->n_base, &number[i], &is_new));
    }
    return PF_OK;
}

static void mark_stacks(const struct pf_runner *r, int32_t *number, int32_t position)
{
    const struct pf_item_set set = r->roots.sets[position];
    for (uint32_t i = 0; i < set.n; i++)
        if (r->roots.items[set.first + i].state >= 0)
            number[r->roots.items[set.first + i].stack] = 1;
}

/* *position is made in the other runner, which has its stacks. */
static pf_status copy_position(const struct pf_runner *r, struct pf_runner *fresh, const int32_t *number,
                               int32_t *position)
{
    const struct pf_item_set set = r->roots.sets[*position];
    closure_begin(fresh);
    for (uint32_t i = 0; i < set.n; i++) {
        struct pf_item item = r->roots.items[set.first + i];
        PF_TRY(meet(fresh, item.state, item.state >= 0 ? number[item.stack] : item.stack));
    }
    return closure_end(fresh, position);
}

static pf_status copy_positions(const struct pf_runner *r, struct pf_runner *fresh, int32_t *number,
                                int32_t *positions, int n)
{
    for (int i = 0; i < n; i++)
        mark_stacks(r, number, positions[i]);
    PF_TRY(copy_stacks(r, fresh, number));
    for (int i = 0; i < n; i++)
        PF_TRY(copy_position(r, fresh, number, &positions[i]));
    return PF_OK;
}

pf_status pf_runner_shrink(struct pf_runner *r, int32_t *positions, int n)
{
    struct pf_runner fresh;
    int32_t moved[PF_MOST_KEPT];
    int32_t *number = pf_alloc_array(PF_MEM_TEXT, r->stacks.n_sets + 1, sizeof *number);
    pf_status st = pf_runner_open(&fresh, r->a);
    if (!number)
        st = no_memory();
    memcpy(moved, positions, (size_t)n * sizeof *moved);
    if (st == PF_OK)
        st = copy_positions(r, &fresh, number, moved, n);
    pf_free(number);
    if (st < 0) {
        pf_runner_close(&fresh);
        return st;
    }
    fresh.effort += r->effort + r->stacks.n_items;
    fresh.most_effort = r->most_effort;
    pf_runner_close(r);
    *r = fresh;
    memcpy(positions, moved, (size_t)n * sizeof *moved);
    return PF_OK;
}
