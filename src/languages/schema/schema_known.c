/* JSON Schema: what was found out about parts of a schema, once for all conjunctions that have them; values that are
 * equal, and lists in which one is looked for by its hash. See schema.h. */
#include "base/pf_status.h"
#include "languages/schema/schema.h"

/* ---- Parts by their addresses ------------------------------------------------------------------------------------ */

static size_t slot_of(const struct pf_schema *s, const void *of)
{
    size_t h = pf_hash_word(&s->t.hash_key, (uint64_t)(uintptr_t)of) & s->known_mask;
    while (s->known[h].of && s->known[h].of != of)
        h = (h + 1) & s->known_mask;
    return h;
}

static pf_status known_grow(struct pf_schema *s)
{
    void *v;
    struct pf_known *old = s->known;
    size_t n_old = old ? s->known_mask + 1 : 0, n_slots = old ? 2 * n_old : 64;
    PF_TRY(pf_jalloc(&s->run, n_slots * sizeof *old, &v));
    s->known = v;
    s->known_mask = n_slots - 1;
    for (size_t i = 0; i < n_old; i++)
        if (old[i].of)
            s->known[slot_of(s, old[i].of)] = old[i];
    return PF_OK;
}

/* Borrowed until the next call. */
static pf_status known(struct pf_schema *s, const void *of, struct pf_known **out)
{
    if (!s->known || 2 * (s->n_known + 1) > s->known_mask)
        PF_TRY(known_grow(s));
    *out = &s->known[slot_of(s, of)];
    s->n_known += !(*out)->of;
    (*out)->of = of;
    return PF_OK;
}

pf_status pf_schema_is_checked(struct pf_schema *s, const void *part, bool *before)
{
    struct pf_known *k;
    PF_TRY(known(s, part, &k));
    *before = k->checked;
    k->checked = true;
    return PF_OK;
}

/* ---- Values ------------------------------------------------------------------------------------------------------ */

bool pf_json_equal(const struct pf_schema *s, const struct pf_jval *a, const struct pf_jval *b)
{
    bool numbers = pf_jis_num(a) && a->kind != PF_JV_BOOL && pf_jis_num(b) && b->kind != PF_JV_BOOL;
    bool same = numbers || a->kind == b->kind;
    pf_rules_work(s->r, 1);
    if (!same)
        return false;
    switch (a->kind) {
    case PF_JV_NONE: return true;
    case PF_JV_BOOL: return a->b == b->b;
    case PF_JV_STR:  return a->s.n == b->s.n && memcmp(a->s.p, b->s.p, a->s.n) == 0;
    case PF_JV_LIST:
        for (size_t i = 0; i < a->list->n && same; i++)
            same = i < b->list->n && pf_json_equal(s, &a->list->v[i], &b->list->v[i]);
        return same && a->list->n == b->list->n;
    case PF_JV_DICT:
        for (size_t i = 0; i < a->dict->n && same; i++) {
            const struct pf_jentry *e = &a->dict->v[i];
            const struct pf_jval *other = pf_jdict_str(b->dict, e->key.s, e->hash);
            same = other && pf_json_equal(s, &e->val, other);
        }
        return same && a->dict->n == b->dict->n;
    default:
        return a->kind == PF_JV_INT && b->kind == PF_JV_INT ? a->i == b->i : pf_jdouble(a) == pf_jdouble(b);
    }
}

/* Equal values have the same: numbers that of their double, objects one that their members' order does not change. */
static uint32_t hash_value(const struct pf_schema *s, const struct pf_jval *v)
{
    const struct pf_hash_key *key = &s->t.hash_key;
    uint64_t h = (uint64_t)v->kind;
    double d;
    pf_rules_work(s->r, 1);
    switch (v->kind) {
    case PF_JV_NONE: break;
    case PF_JV_BOOL: h += v->b ? 1000 : 2000; break;
    case PF_JV_STR:  h = pf_hash_text(key, v->s.p, v->s.n); break;
    case PF_JV_LIST:
        for (size_t i = 0; i < v->list->n; i++)
            h = (uint64_t)pf_hash_word(key, h) << 32 | hash_value(s, &v->list->v[i]);
        break;
    case PF_JV_DICT:
        for (size_t i = 0; i < v->dict->n; i++)
            h += pf_hash_member(key, (uint64_t)v->dict->v[i].hash << 32 | hash_value(s, &v->dict->v[i].val));
        break;
    default:
        d = pf_jdouble(v) + 0.0;         /* -0 is 0 */
        memcpy(&h, &d, sizeof h);
    }
    return pf_hash_word(key, h);
}

/* ---- Lists ------------------------------------------------------------------------------------------------------- */

/* The place of the value in the list's table, or the free one where it belongs. */
static size_t place(const struct pf_schema *s, const struct pf_jlist *list, const uint32_t *table, size_t mask,
                    const struct pf_jval *v)
{
    size_t h = hash_value(s, v) & mask;
    while (table[h] && !pf_json_equal(s, &list->v[table[h] - 1], v) && s->r->status == PF_OK)
        h = (h + 1) & mask;
    return h;
}

static pf_status make_table(struct pf_schema *s, const struct pf_jlist *list, uint32_t **table, size_t *mask)
{
    void *v;
    size_t n_slots = 16;
    while (n_slots < 2 * list->n)
        n_slots *= 2;
    PF_TRY(pf_jalloc(&s->run, n_slots * sizeof **table, &v));
    *table = v;
    *mask = n_slots - 1;
    for (size_t i = 0; i < list->n && s->r->status == PF_OK; i++) {
        size_t h = place(s, list, *table, *mask, &list->v[i]);
        (*table)[h] = (*table)[h] ? (*table)[h] : (uint32_t)i + 1;
    }
    return s->r->status;
}

pf_status pf_schema_differ(struct pf_schema *s, const struct pf_jlist *list, bool *differ)
{
    uint32_t *table;
    size_t mask;
    PF_TRY(make_table(s, list, &table, &mask));
    *differ = true;
    for (size_t i = 0; i < list->n && *differ && s->r->status == PF_OK; i++)
        *differ = table[place(s, list, table, mask, &list->v[i])] == i + 1;
    return s->r->status;
}

pf_status pf_schema_has(struct pf_schema *s, const struct pf_jlist *list, const struct pf_jval *v, bool *has)
{
    enum { FEW = 4 };
    struct pf_known *k;
    *has = false;
    for (size_t i = 0; i < list->n && list->n <= FEW && !*has; i++)
        *has = pf_json_equal(s, &list->v[i], v);
    if (list->n <= FEW)
        return s->r->status;
    PF_TRY(known(s, list->v, &k));
    if (!k->table)
        PF_TRY(make_table(s, list, &k->table, &k->mask));
    *has = k->table[place(s, list, k->table, k->mask, v)] != 0;
    return s->r->status;
}
