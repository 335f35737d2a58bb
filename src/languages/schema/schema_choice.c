/* JSON Schema: alternatives, and whether two of them exclude each other. Those that are constants become one automaton,
 * all others a rule each. See schema.h. */
#include <stdio.h>

#include "base/pf_status.h"
#include "languages/schema/schema.h"

static const struct pf_jlist *constants(const struct pf_schema *s, const struct pf_conjunction *c,
                                        struct pf_jlist *single)
{
    for (size_t i = 0; i < c->n; i++) {
        const struct pf_jval *one = pf_schema_get(s, c->v[i].schema, "const");
        const struct pf_jval *many = pf_schema_get(s, c->v[i].schema, "enum");
        if (one) {
            *single = (struct pf_jlist){ .v = (struct pf_jval *)(uintptr_t)one, .n = 1 };
            return single;
        }
        if (many && many->kind == PF_JV_LIST)
            return many->list;
    }
    return NULL;
}

static pf_status constants_differ(struct pf_schema *s, const struct pf_conjunction *a, const struct pf_conjunction *b,
                                  bool *differ)
{
    struct pf_jlist one, other;
    const struct pf_jlist *x = constants(s, a, &one), *y = constants(s, b, &other);
    bool both = false, swap = x && y && x->n > y->n;
    const struct pf_jlist *few = swap ? y : x, *many = swap ? x : y;
    for (size_t i = 0; x && y && i < few->n && !both; i++)
        PF_TRY(pf_schema_has(s, many, &few->v[i], &both));
    *differ = x && y && !both;
    return PF_OK;
}

static pf_status is_required(struct pf_schema *s, const struct pf_conjunction *c, const struct pf_jval *name,
                             bool *required)
{
    *required = false;
    for (size_t i = 0; i < c->n && !*required; i++) {
        const struct pf_jval *list = pf_schema_get(s, c->v[i].schema, "required");
        if (list && list->kind == PF_JV_LIST)
            PF_TRY(pf_schema_has(s, list->list, name, required));
    }
    return PF_OK;
}

/* The conjunction of a property in all members; its allOf and $ref included. */
static pf_status property(struct pf_schema *s, const struct pf_conjunction *c, const struct pf_jval *name,
                          struct pf_conjunction *out)
{
    *out = (struct pf_conjunction){ 0 };
    for (size_t i = 0; i < c->n; i++) {
        const struct pf_jval *all = pf_schema_get(s, c->v[i].schema, "properties");
        const struct pf_jval *one = all && all->kind == PF_JV_DICT
                                  ? pf_jdict_str(all->dict, name->s, pf_jhash_str(&s->t, name->s)) : NULL;
        if (one)
            PF_TRY(pf_schema_add(s, out, one));
    }
    return PF_OK;
}

/* Whether no value can fulfil both: their types differ, or in both the same property must be there with constants that
 * differ, or both are constants that differ. Says no where it cannot tell. */
static pf_status are_disjoint(struct pf_schema *s, const struct pf_conjunction *a, const struct pf_conjunction *b,
                              bool *disjoint)
{
    unsigned types_a, types_b;
    PF_TRY(pf_schema_types(s, a, false, &types_a));
    PF_TRY(pf_schema_types(s, b, false, &types_b));
    PF_TRY(constants_differ(s, a, b, disjoint));
    *disjoint = *disjoint || a->never || b->never || !(types_a & types_b);
    for (size_t i = 0; i < a->n && !*disjoint && !(types_a & types_b & ~PF_JSON_OBJECT); i++) {
        const struct pf_jval *all = pf_schema_get(s, a->v[i].schema, "properties");
        for (size_t k = 0; all && all->kind == PF_JV_DICT && k < all->dict->n && !*disjoint; k++) {
            struct pf_conjunction x, y;
            const struct pf_jval *name = &all->dict->v[k].key;
            bool in_a, in_b;
            PF_TRY(is_required(s, a, name, &in_a));
            PF_TRY(is_required(s, b, name, &in_b));
            if (!in_a || !in_b)
                continue;
            PF_TRY(property(s, a, name, &x));
            PF_TRY(property(s, b, name, &y));
            PF_TRY(pf_schema_types(s, &x, false, &types_a));
            PF_TRY(pf_schema_types(s, &y, false, &types_b));
            PF_TRY(constants_differ(s, &x, &y, disjoint));
            *disjoint = *disjoint || !(types_a & types_b);
            types_a = types_b = PF_JSON_OBJECT;
        }
    }
    return PF_OK;
}

/* Whether all alternatives are constants, each another one. */
static pf_status are_other_constants(struct pf_schema *s, const struct pf_jlist *list, bool *are)
{
    struct pf_jlist *all;
    PF_TRY(pf_jlist_new(&s->run, list->n, &all));
    *are = true;
    for (size_t i = 0; i < list->n && *are; i++) {
        const struct pf_jval *v = pf_schema_get(s, &list->v[i], "const");
        *are = v != NULL;
        if (v)
            PF_TRY(pf_jlist_push(&s->run, all, *v));
    }
    return *are ? pf_schema_differ(s, all, are) : PF_OK;
}

static pf_status check_one_of(struct pf_schema *s, const struct pf_jval *schema, const struct pf_jlist *list)
{
    enum { MOST_ALTERNATIVES = 100 };
    bool before;
    PF_TRY(pf_schema_is_checked(s, list, &before));
    if (before)
        return PF_OK;
    PF_TRY(are_other_constants(s, list, &before));
    if (before)
        return PF_OK;
    if (list->n > MOST_ALTERNATIVES)
        return pf_schema_fail(s, PF_EUNSUPPORTED, schema, "oneOf", "has more than 100 alternatives");
    for (size_t i = 0; i < list->n; i++)
        for (size_t k = 0; k < i; k++) {
            struct pf_conjunction a = { 0 }, b = { 0 };
            bool disjoint;
            PF_TRY(pf_schema_add(s, &a, &list->v[k]));
            PF_TRY(pf_schema_add(s, &b, &list->v[i]));
            PF_TRY(are_disjoint(s, &a, &b, &disjoint));
            if (!disjoint) {
                char why[120];
                snprintf(why, sizeof why, "cannot be kept to: alternatives %zu and %zu may both hold (anyOf "
                         "allows that)", k, i);
                return pf_schema_fail(s, PF_EUNSUPPORTED, schema, "oneOf", why);
            }
        }
    return PF_OK;
}

/* Whether something of it is still to be chosen, or nothing is left. */
static bool has_choice(const struct pf_schema *s, const struct pf_conjunction *c)
{
    bool has = c->never;
    for (size_t i = 0; i < c->n && !has; i++)
        has = (!(c->v[i].chosen & 1) && pf_schema_get(s, c->v[i].schema, "anyOf")) ||
              (!(c->v[i].chosen & 2) && pf_schema_get(s, c->v[i].schema, "oneOf"));
    return has;
}

pf_status pf_schema_choice(struct pf_schema *s, const struct pf_conjunction *c, size_t at, const char *keyword,
                           uint32_t bit, int32_t from, int32_t to)
{
    const struct pf_jval *schema = c->v[at].schema, *list = pf_schema_get(s, schema, keyword);
    if (list->kind != PF_JV_LIST || list->list->n == 0)
        return pf_schema_fail(s, PF_EINVAL, schema, keyword, "is not an array of schemas");
    struct pf_texts texts = { .n = 0 };
    if (bit == 2)
        PF_TRY(check_one_of(s, schema, list->list));
    for (size_t i = 0; i < list->list->n; i++) {
        struct pf_conjunction one = { .never = c->never };
        int32_t rule;
        for (size_t k = 0; k < c->n; k++)
            PF_TRY(pf_schema_push(s, &one, c->v[k]));
        one.v[at].chosen |= bit;
        PF_TRY(pf_schema_add(s, &one, &list->list->v[i]));
        bool are_texts = false;
        if (!has_choice(s, &one))
            PF_TRY(pf_schema_constants(s, &one, &texts, &are_texts));
        if (are_texts)
            continue;
        PF_TRY(pf_schema_rule(s, &one, &rule));
        pf_rules_call(s->r, from, rule, to);
    }
    return pf_texts_emit(s, &texts, from, to);
}
