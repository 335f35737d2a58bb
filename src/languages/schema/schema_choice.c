/* JSON Schema: alternatives, and whether two of them exclude each other. See schema.h. */
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

static bool constants_differ(const struct pf_schema *s, const struct pf_conjunction *a, const struct pf_conjunction *b)
{
    struct pf_jlist one, other;
    const struct pf_jlist *x = constants(s, a, &one), *y = constants(s, b, &other);
    if (!x || !y || x->n * y->n > 10000)
        return false;
    for (size_t i = 0; i < x->n; i++)
        for (size_t k = 0; k < y->n; k++)
            if (pf_json_equal(&x->v[i], &y->v[k]))
                return false;
    return true;
}

static bool is_required(const struct pf_schema *s, const struct pf_conjunction *c, const struct pf_jval *name)
{
    for (size_t i = 0; i < c->n; i++) {
        const struct pf_jval *list = pf_schema_get(s, c->v[i].schema, "required");
        for (size_t k = 0; list && list->kind == PF_JV_LIST && k < list->list->n; k++)
            if (pf_json_equal(&list->list->v[k], name))
                return true;
    }
    return false;
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
    *disjoint = a->never || b->never || !(types_a & types_b) || constants_differ(s, a, b);
    for (size_t i = 0; i < a->n && !*disjoint && !(types_a & types_b & ~PF_JSON_OBJECT); i++) {
        const struct pf_jval *all = pf_schema_get(s, a->v[i].schema, "properties");
        for (size_t k = 0; all && all->kind == PF_JV_DICT && k < all->dict->n && !*disjoint; k++) {
            struct pf_conjunction x, y;
            const struct pf_jval *name = &all->dict->v[k].key;
            if (!is_required(s, a, name) || !is_required(s, b, name))
                continue;
            PF_TRY(property(s, a, name, &x));
            PF_TRY(property(s, b, name, &y));
            PF_TRY(pf_schema_types(s, &x, false, &types_a));
            PF_TRY(pf_schema_types(s, &y, false, &types_b));
            *disjoint = !(types_a & types_b) || constants_differ(s, &x, &y);
            types_a = types_b = PF_JSON_OBJECT;
        }
    }
    return PF_OK;
}

static pf_status check_one_of(struct pf_schema *s, const struct pf_jval *schema, const struct pf_jlist *list)
{
    enum { MOST_ALTERNATIVES = 100 };
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

pf_status pf_schema_choice(struct pf_schema *s, const struct pf_conjunction *c, size_t at, const char *keyword,
                           uint32_t bit, int32_t from, int32_t to)
{
    const struct pf_jval *schema = c->v[at].schema, *list = pf_schema_get(s, schema, keyword);
    if (list->kind != PF_JV_LIST || list->list->n == 0)
        return pf_schema_fail(s, PF_EINVAL, schema, keyword, "is not an array of schemas");
    if (bit == 2)
        PF_TRY(check_one_of(s, schema, list->list));
    for (size_t i = 0; i < list->list->n; i++) {
        struct pf_conjunction one = { .never = c->never };
        int32_t rule;
        for (size_t k = 0; k < c->n; k++)
            PF_TRY(pf_schema_push(s, &one, c->v[k]));
        one.v[at].chosen |= bit;
        PF_TRY(pf_schema_add(s, &one, &list->list->v[i]));
        PF_TRY(pf_schema_rule(s, &one, &rule));
        pf_rules_call(s->r, from, rule, to);
    }
    return s->r->status;
}
