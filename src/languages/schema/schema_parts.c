/* JSON Schema: arrays and objects. See schema.h.
 *
 *     [ space item , space item ... space ]        { space "name": space value , space "name": space value ... space }
 *
 * Properties come in the order in which the schema names them, those that are only required after them, then further
 * ones. The states of an object are rows, one for each property, by how many properties there are so far, as far as
 * somebody has to know that. */
#include "languages/schema/schema.h"

#include <stdio.h>

#include "base/pf_mem.h"
#include "base/pf_status.h"
#include "grammar/automaton.h"

/* ---- Arrays ------------------------------------------------------------------------------------------------------ */

static pf_status add_items(struct pf_schema *s, const struct pf_conjunction *c, uint32_t i, struct pf_conjunction *out)
{
    for (size_t k = 0; k < c->n; k++) {
        const struct pf_jval *prefix = pf_schema_get(s, c->v[k].schema, "prefixItems");
        const struct pf_jval *items = pf_schema_get(s, c->v[k].schema, "items");
        if (prefix && i < prefix->list->n)
            PF_TRY(pf_schema_add(s, out, &prefix->list->v[i]));
        else if (items)
            PF_TRY(pf_schema_add(s, out, items));
    }
    return PF_OK;
}

/* The rule of the item at i; false in *may: there can be none. */
static pf_status item_rule(struct pf_schema *s, const struct pf_conjunction *c, uint32_t i, bool *may, int32_t *rule)
{
    struct pf_conjunction item = { 0 };
    PF_TRY(add_items(s, c, i, &item));
    *may = !item.never;
    return pf_schema_rule(s, &item, rule);
}

/* Items that have a schema of their own, and whether others have one. */
static pf_status items_of(const struct pf_schema *s, const struct pf_conjunction *c, uint32_t *n_prefix, bool *others)
{
    *n_prefix = 0;
    *others = false;
    for (size_t k = 0; k < c->n; k++) {
        const struct pf_jval *prefix = pf_schema_get(s, c->v[k].schema, "prefixItems");
        if (prefix && prefix->kind != PF_JV_LIST)
            return pf_schema_fail(s, PF_EINVAL, c->v[k].schema, "prefixItems", "is not an array");
        if (prefix && prefix->list->n > *n_prefix)
            *n_prefix = (uint32_t)prefix->list->n;
        *others = *others || pf_schema_get(s, c->v[k].schema, "items");
    }
    return PF_OK;
}

pf_status pf_schema_array(struct pf_schema *s, const struct pf_conjunction *c, int32_t from, int32_t to)
{
    struct pf_rules *r = s->r;
    uint32_t min = 0, max = PF_EXPR_MANY, n_prefix;
    bool others, may = true;
    int32_t rule = 0, before = pf_rules_state(r), close = pf_rules_state(r), closed = pf_rules_state(r);
    PF_TRY(items_of(s, c, &n_prefix, &others));
    PF_TRY(pf_schema_count(s, c, "minItems", true, &min));
    PF_TRY(pf_schema_count(s, c, "maxItems", false, &max));
    if (n_prefix > 0 && !others && max > n_prefix)
        max = min > n_prefix ? min : n_prefix;       /* others would be anything: none come unless they must */
    pf_rules_text(r, from, "[", 1, before);
    pf_rules_call(r, close, s->space, closed);
    pf_rules_text(r, closed, "]", 1, to);
    if (min == 0)
        pf_rules_text(r, before, "]", 1, to);
    for (uint32_t i = 0; i < max && may && r->status == PF_OK; i++) {
        int32_t item = pf_rules_state(r), after = pf_rules_state(r);
        pf_rules_call(r, before, s->space, item);
        if (i <= n_prefix)
            PF_TRY(item_rule(s, c, i, &may, &rule));
        pf_rules_call(r, item, rule, after);
        if (i + 1 >= min)
            pf_rules_empty(r, after, close);
        before = pf_rules_state(r);
        pf_rules_text(r, after, ",", 1, before);
        if (i >= n_prefix && i + 1 >= min && max == PF_EXPR_MANY) {
            pf_rules_call(r, before, s->space, item);
            break;
        }
    }
    return r->status;
}

/* ---- Objects: which properties there are ------------------------------------------------------------------------- */

enum { MOST_PROPERTIES = 5000, MOST_CELLS = 200000 };

struct property {
    struct pf_jstr name;
    bool    required;
    int32_t rule;                        /* of "name": value */
};

/* A pattern of names: properties that match it fulfil its schema. */
struct names {
    size_t member;                       /* of the conjunction, that has the pattern */
    const struct pf_jval *schema;
};

struct object {
    struct pf_schema *s;
    const struct pf_conjunction *c;
    bool as_call;
    struct property  *v;
    size_t n, cap, n_required;
    struct pf_jdict  *known;             /* name to number in v */
    struct pf_strings patterns;          /* of patternProperties */
    struct names      names[PF_MAX_PATTERNS];
    struct pf_conjunction name_schema;   /* propertyNames */
    struct pf_strings name_strings;
    int32_t extra[PF_MAX_PATTERNS];      /* rules of further properties */
    size_t  n_extra;
};

static pf_status collect_patterns(struct object *o)
{
    for (size_t k = 0; k < o->c->n; k++) {
        const struct pf_jval *schema = o->c->v[k].schema, *all = pf_schema_get(o->s, schema, "patternProperties");
        if (all && all->kind != PF_JV_DICT)
            return pf_schema_fail(o->s, PF_EINVAL, schema, "patternProperties", "is not an object");
        for (size_t i = 0; all && i < all->dict->n; i++) {
            struct pf_jstr regex = all->dict->v[i].key.s;
            size_t at = o->patterns.n;
            PF_TRY(pf_strings_add_from(o->s, schema, "patternProperties", regex, &o->patterns));
            o->names[at] = (struct names){ k, &all->dict->v[i].val };
        }
    }
    return PF_OK;
}

static pf_status pattern_matches(const struct object *o, size_t i, struct pf_jstr name, bool *yes)
{
    struct pf_pattern p = { &o->patterns.r[i], o->patterns.rules[i] };
    return pf_pattern_matches(&p, 1, name.p, name.n, o->s->r, yes);
}

/* What a property of this name must fulfil. */
static pf_status schemas_of(struct object *o, struct pf_jstr name, struct pf_conjunction *out)
{
    for (size_t k = 0; k < o->c->n; k++) {
        const struct pf_jval *schema = o->c->v[k].schema, *all = pf_schema_get(o->s, schema, "properties");
        const struct pf_jval *one = all ? pf_jdict_str(all->dict, name, pf_jhash_str(&o->s->t, name)) : NULL;
        const struct pf_jval *further = pf_schema_get(o->s, schema, "additionalProperties");
        bool named = one != NULL, matches;
        if (one)
            PF_TRY(pf_schema_add(o->s, out, one));
        for (size_t i = 0; i < o->patterns.n; i++) {
            if (o->names[i].member != k)
                continue;
            PF_TRY(pattern_matches(o, i, name, &matches));
            if (matches)
                PF_TRY(pf_schema_add(o->s, out, o->names[i].schema));
            named = named || matches;
        }
        if (!named && further)
            PF_TRY(pf_schema_add(o->s, out, further));
    }
    return PF_OK;
}

/* The constants that propertyNames allows, or NULL. */
static const struct pf_jlist *name_constants(const struct object *o)
{
    for (size_t i = 0; i < o->name_schema.n; i++) {
        const struct pf_jval *list = pf_schema_get(o->s, o->name_schema.v[i].schema, "enum");
        if (list && list->kind == PF_JV_LIST)
            return list->list;
    }
    return NULL;
}

static pf_status name_fits(const struct object *o, struct pf_jstr name, bool *fits)
{
    const struct pf_jlist *list = name_constants(o);
    *fits = !o->name_schema.never;
    if (*fits)
        PF_TRY(pf_strings_match(o->s, &o->name_strings, name, fits));
    if (*fits && list)
        PF_TRY(pf_schema_has(o->s, list, &(struct pf_jval){ .kind = PF_JV_STR, .s = name }, fits));
    return PF_OK;
}

/* The rule of "name": value, the value being of a conjunction. */
static pf_status pair_rule(const struct object *o, const struct pf_jstr *name, const struct pf_strings *key,
                           const struct pf_conjunction *c, int32_t *rule)
{
    struct pf_schema *s = o->s;
    struct pf_rules *r = s->r;
    bool bare = s->w->bare_names || o->as_call;
    int32_t value = 0;
    *rule = pf_rules_rule(r);
    PF_TRY(r->status);
    PF_TRY(pf_schema_rule(s, c, &value));
    int32_t from = r->rules[*rule].start, to = r->rules[*rule].final;
    int32_t named = pf_rules_state(r), colon = pf_rules_state(r), spaced = pf_rules_state(r);
    PF_TRY(name ? pf_schema_name(s, *name, bare, from, named)
                : bare ? pf_strings_emit_bare(s, key, from, named) : pf_strings_emit(s, key, false, from, named));
    pf_rules_text(r, named, o->as_call ? "=" : ":", 1, colon);
    pf_rules_call(r, colon, s->space, spaced);
    pf_rules_call(r, spaced, value, to);
    return r->status;
}

/* Adds a property, once. */
static pf_status add_property(struct object *o, struct pf_jval name, bool required)
{
    struct pf_conjunction own = { 0 };
    struct pf_jval *number = pf_jdict_str(o->known, name.s, pf_jhash_str(&o->s->t, name.s));
    bool fits;
    if (number) {
        o->n_required += required && !o->v[number->i].required;
        o->v[number->i].required |= required;
        return PF_OK;
    }
    if (o->n == MOST_PROPERTIES)
        PF_FAIL(PF_EUNSUPPORTED, "an object of the schema has more than %d properties", (int)MOST_PROPERTIES);
    if (o->n == o->cap) {
        void *v;
        o->cap = o->cap ? 2 * o->cap : 16;
        PF_TRY(pf_jalloc(&o->s->run, o->cap * sizeof *o->v, &v));
        if (o->n)
            memcpy(v, o->v, o->n * sizeof *o->v);
        o->v = v;
    }
    PF_TRY(schemas_of(o, name.s, &own));
    PF_TRY(name_fits(o, name.s, &fits));
    own.never = own.never || !fits;
    PF_TRY(pf_jdict_set(&o->s->run, o->known, name, pf_jint((int64_t)o->n)));
    struct property *p = &o->v[o->n++];
    *p = (struct property){ .name = name.s, .required = required };
    o->n_required += required;
    return pair_rule(o, &name.s, NULL, &own, &p->rule);
}

static pf_status collect_properties(struct object *o)
{
    for (size_t k = 0; k < o->c->n; k++) {
        const struct pf_jval *schema = o->c->v[k].schema, *all = pf_schema_get(o->s, schema, "properties");
        if (all && all->kind != PF_JV_DICT)
            return pf_schema_fail(o->s, PF_EINVAL, schema, "properties", "is not an object");
    }
    for (size_t k = 0; k < o->c->n; k++) {
        const struct pf_jval *all = pf_schema_get(o->s, o->c->v[k].schema, "properties");
        PF_TRY(pf_rules_work(o->s->r, all ? all->dict->n : 0));
        for (size_t i = 0; all && i < all->dict->n; i++)
            PF_TRY(add_property(o, all->dict->v[i].key, false));
    }
    for (size_t k = 0; k < o->c->n; k++) {
        const struct pf_jval *schema = o->c->v[k].schema, *list = pf_schema_get(o->s, schema, "required");
        if (list && list->kind != PF_JV_LIST)
            return pf_schema_fail(o->s, PF_EINVAL, schema, "required", "is not an array");
        PF_TRY(pf_rules_work(o->s->r, list ? list->list->n : 0));
        for (size_t i = 0; list && i < list->list->n; i++) {
            if (list->list->v[i].kind != PF_JV_STR)
                return pf_schema_fail(o->s, PF_EINVAL, schema, "required",
                                      "names a property by something else than a string");
            PF_TRY(add_property(o, list->list->v[i], true));
        }
    }
    return PF_OK;
}

/* ---- Objects: further properties --------------------------------------------------------------------------------- */

/* The rule of a further property; pattern: number of the pattern that its name matches, or -1. */
static pf_status add_extra(struct object *o, int pattern, const struct pf_conjunction *c)
{
    struct pf_strings key = { .min = o->name_strings.min, .max = o->name_strings.max };
    struct pf_text *texts = NULL;
    void *room;
    /* Patterns are borrowed: all but the last, of other names than those there are, belong to others. */
    for (size_t i = 0; i < o->name_strings.n && key.n < PF_MAX_PATTERNS; i++, key.n++) {
        key.r[key.n] = o->name_strings.r[i];
        key.rules[key.n] = o->name_strings.rules[i];
    }
    if (key.n + 2 > PF_MAX_PATTERNS)
        PF_FAIL(PF_EUNSUPPORTED, "too many patterns meet in the names of an object's properties");
    if (pattern >= 0) {
        key.r[key.n] = o->patterns.r[pattern];
        key.rules[key.n++] = o->patterns.rules[pattern];
    }
    size_t own = key.n;
    pf_status st = PF_OK;
    if (o->n > 0) {
        PF_TRY(pf_jalloc(&o->s->run, o->n * sizeof *texts, &room));
        texts = room;
        for (size_t i = 0; i < o->n; i++)
            texts[i] = (struct pf_text){ o->v[i].name.p, o->v[i].name.n };
        key.n++;
        st = pf_pattern_other(&key.r[own], texts, o->n, &key.rules[own]);
    }
    if (st == PF_OK && key.n > own)
        st = pf_rules_work(o->s->r, key.r[own].n_edges);
    if (st == PF_OK)
        st = pair_rule(o, NULL, &key, c, &o->extra[o->n_extra]);
    o->n_extra++;
    if (key.n > own)
        pf_rules_free(&key.r[own]);
    return st;
}

/* Whether some name matches both patterns. */
static pf_status overlap(const struct object *o, size_t a, size_t b, bool *yes)
{
    struct pf_pattern both[] = { { &o->patterns.r[a], o->patterns.rules[a] },
                                 { &o->patterns.r[b], o->patterns.rules[b] } };
    struct pf_rules r = { 0 };
    struct pf_automaton automaton = { 0 };
    int32_t rule = pf_rules_rule(&r);
    pf_status st = r.status;
    if (st == PF_OK)
        st = pf_pattern_emit(both, 2, 0, PF_EXPR_MANY, PF_PATTERN_ESCAPED, &r, r.rules[rule].start,
                             r.rules[rule].final);
    if (st == PF_OK)
        st = pf_rules_work(o->s->r, r.work + r.n_edges);
    if (st == PF_OK)
        st = pf_automaton_make(&automaton, &r, rule);
    *yes = st == PF_OK;
    pf_automaton_free(&automaton);
    pf_rules_free(&r);
    return st == PF_EINVAL ? PF_OK : st;             /* there is no such text */
}

static pf_status add_by_patterns(struct object *o)
{
    for (size_t i = 0; i < o->patterns.n; i++) {
        const struct pf_jval *owner = o->c->v[o->names[i].member].schema;
        struct pf_conjunction c = { 0 };
        PF_TRY(pf_schema_add(o->s, &c, o->names[i].schema));
        for (size_t k = 0; k < i; k++) {
            bool both;
            PF_TRY(overlap(o, i, k, &both));
            if (both)
                return pf_schema_fail(o->s, PF_EUNSUPPORTED, owner, "patternProperties",
                                      "has patterns that may match the same name");
        }
        for (size_t k = 0; k < o->c->n; k++) {
            const struct pf_jval *further = pf_schema_get(o->s, o->c->v[k].schema, "additionalProperties");
            if (further && k != o->names[i].member)
                PF_TRY(pf_schema_add(o->s, &c, further));
        }
        if (!c.never && !o->name_schema.never)
            PF_TRY(add_extra(o, (int)i, &c));
    }
    return PF_OK;
}

/* Further properties come where a schema speaks of them, or says nothing of properties at all. */
static pf_status collect_extras(struct object *o)
{
    struct pf_conjunction c = { 0 };
    bool named = false, spoken = false;
    for (size_t k = 0; k < o->c->n; k++) {
        const struct pf_jval *further = pf_schema_get(o->s, o->c->v[k].schema, "additionalProperties");
        named = named || pf_schema_get(o->s, o->c->v[k].schema, "properties");
        spoken = spoken || further;
        if (further)
            PF_TRY(pf_schema_add(o->s, &c, further));
    }
    const struct pf_jlist *list = name_constants(o);
    if (o->patterns.n > 0)
        return add_by_patterns(o);
    if (c.never || o->name_schema.never || (named && !spoken))
        return PF_OK;
    for (size_t i = 0; list && i < list->n; i++)
        if (list->v[i].kind == PF_JV_STR)
            PF_TRY(add_property(o, list->v[i], false));
    return list ? PF_OK : add_extra(o, -1, &c);
}

static pf_status collect_names(struct object *o)
{
    for (size_t k = 0; k < o->c->n; k++) {
        const struct pf_jval *names = pf_schema_get(o->s, o->c->v[k].schema, "propertyNames");
        if (names)
            PF_TRY(pf_schema_add(o->s, &o->name_schema, names));
    }
    for (size_t i = 0; i < o->name_schema.n; i++)
        for (size_t k = 0; k < 3; k++) {
            static const char *const not_here[] = { "anyOf", "oneOf", "const" };
            if (pf_schema_get(o->s, o->name_schema.v[i].schema, not_here[k]))
                return pf_schema_fail(o->s, PF_EUNSUPPORTED, o->name_schema.v[i].schema, not_here[k],
                                      "is not supported in propertyNames");
        }
    return pf_strings_of(o->s, &o->name_schema, &o->name_strings);
}

/* ---- Objects: rules ---------------------------------------------------------------------------------------------- */

/* A row of states: by the number of properties so far, which stops at top where nobody counts any further. */
struct row {
    int32_t *v;
    uint32_t top;
    bool     limited;                    /* no more than top */
};

static int32_t state_at(struct pf_rules *r, struct row *row, uint32_t count)
{
    if (row->v[count] < 0)
        row->v[count] = pf_rules_state(r);
    return row->v[count];
}

/* One more property, of a pair's rule, from a row to a row. */
static void take(struct pf_schema *s, struct row *from, struct row *to, uint32_t count, int32_t pair)
{
    struct pf_rules *r = s->r;
    int32_t spaced, begun = from->v[count];
    if (begun < 0 || (from->limited && count == from->top))
        return;
    if (count > 0) {
        begun = pf_rules_state(r);
        pf_rules_text(r, from->v[count], ",", 1, begun);
    }
    spaced = pf_rules_state(r);
    pf_rules_call(r, begun, s->space, spaced);
    pf_rules_call(r, spaced, pair, state_at(r, to, count < to->top ? count + 1 : to->top));
}

static pf_status write_object(struct object *o, uint32_t min, uint32_t max, int32_t from, int32_t to)
{
    struct pf_rules *r = o->s->r;
    void *room;
    bool limited = max != PF_EXPR_MANY && (o->n_extra || max < o->n);
    uint32_t top = limited ? max : min > 1 ? min : 1;
    if (min > max || (min > o->n && !o->n_extra))
        return PF_OK;
    if ((uint64_t)(top + 1) * (o->n + 1) > MOST_CELLS)
        PF_FAIL(PF_EUNSUPPORTED, "minProperties or maxProperties of %u is too many for %zu properties", top, o->n);
    PF_TRY(pf_rules_work(r, (uint64_t)(top + 1) * (o->n + 1) / 4));
    PF_TRY(pf_jalloc(&o->s->run, 2 * (top + 1) * sizeof(int32_t), &room));
    struct row now = { room, top, limited }, next = { now.v + top + 1, top, limited };
    memset(room, 0xFF, 2 * (top + 1) * sizeof(int32_t));
    pf_rules_text(r, from, "{", !o->as_call, state_at(r, &now, 0));
    for (size_t i = 0; i < o->n && r->status == PF_OK; i++) {
        for (uint32_t count = 0; count <= top; count++) {
            if (now.v[count] >= 0 && !o->v[i].required)
                pf_rules_empty(r, now.v[count], state_at(r, &next, count));
            take(o->s, &now, &next, count, o->v[i].rule);
        }
        struct row old = now;
        now = next;
        next = old;
        memset(next.v, 0xFF, (top + 1) * sizeof(int32_t));
    }
    for (uint32_t count = 0; count <= top && r->status == PF_OK; count++)
        for (size_t i = 0; i < o->n_extra; i++)
            take(o->s, &now, &now, count, o->extra[i]);
    int32_t close = pf_rules_state(r), closed = pf_rules_state(r);
    pf_rules_call(r, close, o->s->space, closed);
    pf_rules_text(r, closed, o->as_call ? ")" : "}", 1, to);
    for (uint32_t count = min; count <= top && r->status == PF_OK; count++)
        if (now.v[count] >= 0)
            pf_rules_empty(r, now.v[count], count ? close : closed);
    return r->status;
}

static pf_status object(struct object *o, int32_t from, int32_t to)
{
    uint32_t min = 0, max = PF_EXPR_MANY;
    PF_TRY(pf_jdict_new(&o->s->run, &o->known));
    PF_TRY(collect_names(o));
    PF_TRY(collect_patterns(o));
    PF_TRY(collect_properties(o));
    PF_TRY(collect_extras(o));
    PF_TRY(pf_schema_count(o->s, o->c, "minProperties", true, &min));
    PF_TRY(pf_schema_count(o->s, o->c, "maxProperties", false, &max));
    if (o->n_extra && min > o->n_required + 1)
        PF_FAIL(PF_EUNSUPPORTED, "minProperties of %u is not supported where only %zu properties are required: further "
                "ones might have the same name", min, o->n_required);
    return write_object(o, min, max, from, to);
}

pf_status pf_schema_object(struct pf_schema *s, const struct pf_conjunction *c, bool as_call, int32_t from, int32_t to)
{
    struct object *o = pf_alloc(PF_MEM_TEXT, sizeof *o);
    if (!o)
        PF_FAIL(PF_ENOMEM, "no memory for an object of the schema");
    o->s = s;
    o->c = c;
    o->as_call = as_call;
    pf_status st = object(o, from, to);
    pf_strings_free(&o->patterns);
    pf_strings_free(&o->name_strings);
    pf_free(o);
    return st;
}
