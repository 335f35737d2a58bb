/* JSON Schema: reading it, references, conjunctions. See schema.h. */
#include "languages/schema/schema.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/pf_mem.h"
#include "base/pf_status.h"
#include "languages/languages.h"

enum { MOST_RULES = 8000, MOST_BYTES = 32 << 20 };

/* ---- Names and places -------------------------------------------------------------------------------------------- */

const struct pf_jval *pf_schema_get(const struct pf_schema *s, const struct pf_jval *schema, const char *keyword)
{
    struct pf_jstr key = { keyword, strlen(keyword) };
    pf_rules_work(s->r, 1);
    return schema->kind == PF_JV_DICT ? pf_jdict_str(schema->dict, key, pf_jhash_str(&s->t, key)) : NULL;
}

/* Appends /key to a pointer of n bytes, as RFC 6901 has it. */
static size_t add_key(char *path, size_t n, size_t cap, struct pf_jstr key)
{
    path[n++] = '/';
    for (size_t i = 0; i < key.n && n + 4 < cap; i++) {
        if (key.p[i] == '~' || key.p[i] == '/') {
            path[n++] = '~';
            path[n++] = key.p[i] == '~' ? '0' : '1';
        } else {
            path[n++] = key.p[i];
        }
    }
    return n;
}

/* The way from `at` to the value `wanted`; false: there is none. JSON is nested PF_JMAX_NEST deep at most. */
static bool find(const struct pf_jval *at, const struct pf_jval *wanted, char *path, size_t n, size_t cap)
{
    path[n] = 0;
    if (at == wanted)
        return true;
    if (n + 24 > cap)
        return false;
    for (size_t i = 0; at->kind == PF_JV_DICT && i < at->dict->n; i++)
        if (find(&at->dict->v[i].val, wanted, path, add_key(path, n, cap - 8, at->dict->v[i].key.s), cap))
            return true;
    for (size_t i = 0; at->kind == PF_JV_LIST && i < at->list->n; i++)
        if (find(&at->list->v[i], wanted, path, n + (size_t)sprintf(path + n, "/%zu", i), cap))
            return true;
    return false;
}

pf_status pf_schema_fail(const struct pf_schema *s, pf_status st, const struct pf_jval *schema, const char *keyword,
                         const char *why)
{
    char path[256];
    if (!find(&s->root, schema, path, 0, sizeof path))
        snprintf(path, sizeof path, "(a long way down)");
    PF_FAIL(st, "the schema at \"%s\": %.60s %s", path, keyword, why);
}

/* ---- Keywords ---------------------------------------------------------------------------------------------------- */

static bool is_one_of(struct pf_jstr key, const char *const *names)
{
    for (; *names; names++)
        if (pf_jstr_is(key, *names))
            return true;
    return false;
}

static pf_status check_keywords(struct pf_schema *s, const struct pf_jval *schema)
{
    static const char *const known[] = {
        "type", "enum", "const", "properties", "required", "additionalProperties", "patternProperties", "propertyNames",
        "minProperties", "maxProperties", "items", "prefixItems", "minItems", "maxItems", "anyOf", "oneOf", "allOf",
        "$ref", "minLength", "maxLength", "pattern", "format", "minimum", "maximum", "exclusiveMinimum",
        "exclusiveMaximum", "multipleOf", NULL };
    static const char *const notes[] = {
        "title", "description", "default", "example", "examples", "deprecated", "readOnly", "writeOnly", "$schema",
        "$id", "$comment", "$defs", "definitions", "$anchor", "$vocabulary", "contentMediaType", "contentEncoding",
        "contentSchema", "discriminator", "xml", "externalDocs", "strict", NULL };
    static const char *const may_be_false[] = { "uniqueItems", "nullable", NULL };
    bool before;
    PF_TRY(pf_schema_is_checked(s, schema, &before));
    if (before)
        return PF_OK;
    for (size_t i = 0; i < schema->dict->n; i++) {
        struct pf_jstr key = schema->dict->v[i].key.s;
        const struct pf_jval *v = &schema->dict->v[i].val;
        bool is_note = is_one_of(key, notes) || (key.n > 2 && memcmp(key.p, "x-", 2) == 0);
        bool is_false = is_one_of(key, may_be_false) && v->kind == PF_JV_BOOL && !v->b;
        char name[64];
        if (is_note || is_false || is_one_of(key, known))
            continue;
        snprintf(name, sizeof name, "%.*s", (int)(key.n < 60 ? key.n : 60), key.p);
        return pf_schema_fail(s, PF_EUNSUPPORTED, schema, name, "is not supported");
    }
    return PF_OK;
}

/* ---- References -------------------------------------------------------------------------------------------------- */

/* One step of a JSON pointer, as it stands in a URI's fragment: %XX, then ~0 and ~1. Returns the bytes of `out`. */
static size_t decode_step(const char *p, const char *end, char *out, size_t cap)
{
    size_t n = 0;
    while (p < end && n < cap) {
        unsigned byte;
        if (*p == '%' && end - p >= 3 && sscanf(p + 1, "%2x", &byte) == 1) {
            out[n++] = (char)byte;
            p += 3;
        } else if (*p == '~' && end - p >= 2) {
            out[n++] = p[1] == '1' ? '/' : '~';
            p += 2;
        } else {
            out[n++] = *p++;
        }
    }
    return n;
}

static const struct pf_jval *step_into(const struct pf_schema *s, const struct pf_jval *at, const char *key, size_t n)
{
    struct pf_jstr name = { key, n };
    char *end;
    if (at->kind == PF_JV_DICT)
        return pf_jdict_str(at->dict, name, pf_jhash_str(&s->t, name));
    if (at->kind != PF_JV_LIST || n == 0 || n > 8 || key[0] < '0' || key[0] > '9')
        return NULL;
    char digits[16] = "";
    memcpy(digits, key, n);
    unsigned long i = strtoul(digits, &end, 10);
    return *end == 0 && i < at->list->n ? &at->list->v[i] : NULL;
}

static pf_status resolve(const struct pf_schema *s, const struct pf_jval *schema, const struct pf_jval *ref,
                         const struct pf_jval **out)
{
    if (ref->kind != PF_JV_STR)
        return pf_schema_fail(s, PF_EINVAL, schema, "$ref", "is not a string");
    const char *p = ref->s.p, *end = p + ref->s.n;
    PF_TRY(pf_rules_work(s->r, ref->s.n));
    if (p == end || *p != '#' || (end - p > 1 && p[1] != '/'))
        return pf_schema_fail(s, PF_EUNSUPPORTED, schema, "$ref", "is supported within the schema only, as #/a/b");
    const struct pf_jval *at = &s->root;
    for (p++; p < end && at;) {
        char key[256];
        const char *slash = memchr(p + 1, '/', (size_t)(end - p - 1));
        const char *stop = slash ? slash : end;
        at = step_into(s, at, key, decode_step(p + 1, stop, key, sizeof key));
        p = stop;
    }
    if (!at)
        return pf_schema_fail(s, PF_EINVAL, schema, "$ref", "leads nowhere");
    *out = at;
    return PF_OK;
}

/* ---- Conjunctions ------------------------------------------------------------------------------------------------ */

/* Puts a member at a place, unless it is there already. */
static pf_status insert(struct pf_schema *s, struct pf_conjunction *c, size_t at, struct pf_member member)
{
    PF_TRY(pf_rules_work(s->r, 1 + c->n / 16));
    for (size_t i = 0; i < c->n; i++)
        if (c->v[i].schema == member.schema)
            return PF_OK;
    if (c->n == PF_MOST_MEMBERS)
        return pf_schema_fail(s, PF_EUNSUPPORTED, member.schema, "allOf", "brings too many schemas together");
    if (c->n == c->cap) {
        void *v;
        size_t cap = c->cap ? 2 * c->cap : 4;
        PF_TRY(pf_jalloc(&s->run, cap * sizeof *c->v, &v));
        if (c->n)
            memcpy(v, c->v, c->n * sizeof *c->v);
        c->v = v;
        c->cap = cap;
    }
    memmove(c->v + at + 1, c->v + at, (c->n - at) * sizeof *c->v);
    c->v[at] = member;
    c->n++;
    return PF_OK;
}

pf_status pf_schema_push(struct pf_schema *s, struct pf_conjunction *c, struct pf_member member)
{
    return insert(s, c, c->n, member);
}

pf_status pf_schema_add(struct pf_schema *s, struct pf_conjunction *c, const struct pf_jval *schema)
{
    size_t done = c->n;
    if (schema->kind == PF_JV_BOOL) {
        c->never = c->never || !schema->b;
        return PF_OK;
    }
    if (schema->kind != PF_JV_DICT)
        return pf_schema_fail(s, PF_EINVAL, schema, "this", "is no schema: an object, true or false");
    PF_TRY(pf_schema_push(s, c, (struct pf_member){ schema, 0 }));
    for (; done < c->n; done++) {
        const struct pf_jval *at = c->v[done].schema, *target = NULL;
        const struct pf_jval *ref = pf_schema_get(s, at, "$ref"), *all = pf_schema_get(s, at, "allOf");
        PF_TRY(check_keywords(s, at));
        if (all && all->kind != PF_JV_LIST)
            return pf_schema_fail(s, PF_EINVAL, at, "allOf", "is not an array");
        if (ref)
            PF_TRY(resolve(s, at, ref, &target));
        /* What a schema refers to comes right after it, so that properties come in the order of reading. */
        size_t n_all = all ? all->list->n : 0, before = c->n;
        for (size_t i = 0; i < n_all + (target != NULL); i++) {
            const struct pf_jval *more = i < n_all ? &all->list->v[i] : target;
            if (more->kind == PF_JV_BOOL)
                c->never = c->never || !more->b;
            else if (more->kind != PF_JV_DICT)
                return pf_schema_fail(s, PF_EINVAL, more, "this", "is no schema: an object, true or false");
            else
                PF_TRY(insert(s, c, done + 1 + (c->n - before), (struct pf_member){ more, 0 }));
        }
    }
    return PF_OK;
}

static uint64_t hash_members(const struct pf_schema *s, const struct pf_conjunction *c)
{
    uint64_t h = 0;                      /* of a set: the order does not matter */
    for (size_t i = 0; i < c->n; i++)
        h += pf_hash_member(&s->t.hash_key, (uint64_t)(uintptr_t)c->v[i].schema + c->v[i].chosen);
    return h;
}

static bool same_members(const struct pf_conjunction *a, const struct pf_conjunction *b)
{
    if (a->n != b->n || a->never != b->never)
        return false;
    for (size_t i = 0; i < a->n; i++) {
        size_t k = 0;
        while (k < b->n && !(a->v[i].schema == b->v[k].schema && a->v[i].chosen == b->v[k].chosen))
            k++;
        if (k == b->n)
            return false;
    }
    return true;
}

static pf_status table_grow(struct pf_schema *s)
{
    void *table;
    size_t n_slots = s->mask ? 2 * (s->mask + 1) : 64;
    PF_TRY(pf_jalloc(&s->run, n_slots * sizeof *s->table, &table));
    s->table = table;
    s->mask = n_slots - 1;
    for (size_t i = 0; i < s->n_waiting; i++) {
        size_t h = hash_members(s, &s->waiting[i].c) & s->mask;
        while (s->table[h])
            h = (h + 1) & s->mask;
        s->table[h] = (uint32_t)i + 1;
    }
    return PF_OK;
}

pf_status pf_schema_rule(struct pf_schema *s, const struct pf_conjunction *c, int32_t *rule)
{
    if (2 * (s->n_waiting + 1) > s->mask)
        PF_TRY(table_grow(s));
    size_t h = hash_members(s, c) & s->mask;
    PF_TRY(pf_rules_work(s->r, c->n));
    for (; s->table[h]; h = (h + 1) & s->mask)
        if (same_members(&s->waiting[s->table[h] - 1].c, c)) {
            *rule = s->waiting[s->table[h] - 1].rule;
            return PF_OK;
        }
    if (s->n_waiting == MOST_RULES)
        PF_FAIL(PF_EUNSUPPORTED, "the schema comes to more than %d combinations of its parts", (int)MOST_RULES);
    if (s->n_waiting == s->waiting_cap) {
        void *v;
        size_t cap = s->waiting_cap ? 2 * s->waiting_cap : 64;
        PF_TRY(pf_jalloc(&s->run, cap * sizeof *s->waiting, &v));
        if (s->n_waiting)
            memcpy(v, s->waiting, s->n_waiting * sizeof *s->waiting);
        s->waiting = v;
        s->waiting_cap = cap;
    }
    struct pf_waiting *w = &s->waiting[s->n_waiting];
    *w = (struct pf_waiting){ .c = { .never = c->never }, .rule = pf_rules_rule(s->r) };
    PF_TRY(s->r->status);
    for (size_t i = 0; i < c->n; i++)
        PF_TRY(pf_schema_push(s, &w->c, c->v[i]));
    *rule = w->rule;
    s->table[h] = (uint32_t)++s->n_waiting;
    return PF_OK;
}

pf_status pf_schema_count(const struct pf_schema *s, const struct pf_conjunction *c, const char *keyword, bool largest,
                          uint32_t *count)
{
    for (size_t i = 0; i < c->n; i++) {
        const struct pf_jval *v = pf_schema_get(s, c->v[i].schema, keyword);
        if (!v)
            continue;
        double d = v->kind == PF_JV_INT ? (double)v->i : v->kind == PF_JV_FLOAT ? v->f : -1;
        if (!(d >= 0) || d != (double)(int64_t)(d < 1e15 ? d : 0.5))
            return pf_schema_fail(s, PF_EINVAL, c->v[i].schema, keyword, "is not a whole number of 0 or more");
        uint32_t n = d < (double)PF_EXPR_MANY - 1 ? (uint32_t)d : PF_EXPR_MANY - 1;
        *count = largest == (n > *count) ? n : *count;
    }
    return PF_OK;
}

/* ---- Compiling --------------------------------------------------------------------------------------------------- */

static pf_status write_rule(struct pf_schema *s, const struct pf_conjunction *c, int32_t from, int32_t to)
{
    if (c->never)
        return PF_OK;                    /* no way leads through the rule */
    for (size_t i = 0; i < c->n; i++) {
        if (!(c->v[i].chosen & 1) && pf_schema_get(s, c->v[i].schema, "anyOf"))
            return pf_schema_choice(s, c, i, "anyOf", 1, from, to);
        if (!(c->v[i].chosen & 2) && pf_schema_get(s, c->v[i].schema, "oneOf"))
            return pf_schema_choice(s, c, i, "oneOf", 2, from, to);
    }
    return pf_schema_value(s, c, from, to);
}

static pf_status shared_rule(struct pf_schema *s, const char *regex, int32_t *rule)
{
    return pf_regex_rules(s->r, regex, strlen(regex), rule);
}

#define CHARACTER(solidus)                                                                                            \
    "[^\"\\\\\\x00-\\x1f]|\\\\[\"\\\\" solidus "bfnrt]|\\\\u[0-9A-CE-Fa-ce-f][0-9A-Fa-f]{3}"                           \
    "|\\\\u[dD][0-7][0-9A-Fa-f]{2}|\\\\u[dD][89ABab][0-9A-Fa-f]{2}\\\\u[dD][C-Fc-f][0-9A-Fa-f]{2}"

static pf_status shared_rules(struct pf_schema *s)
{
    static const struct pf_jval anything = { .kind = PF_JV_BOOL, .b = true };
    struct pf_conjunction c = { 0 };
    PF_TRY(shared_rule(s, "(?: |\\n[ \\t]{0,60})?", &s->space));
    if (s->w == &pf_json_notation) {
        PF_TRY(shared_rule(s, CHARACTER("/"), &s->character));
        PF_TRY(shared_rule(s, "\"(?:" CHARACTER("/") ")*\"", &s->string));
    } else {
        const struct pf_strings any = { .max = PF_EXPR_MANY };
        PF_TRY(pf_schema_specials(s));
        PF_TRY(shared_rule(s, CHARACTER(""), &s->character));
        s->string = pf_rules_rule(s->r);
        PF_TRY(s->r->status);
        PF_TRY(pf_strings_emit(s, &any, true, s->r->rules[s->string].start, s->r->rules[s->string].final));
    }
    PF_TRY(shared_rule(s, "-?(?:0|[1-9][0-9]{0,19})", &s->integer));
    PF_TRY(shared_rule(s, "-?(?:0|[1-9][0-9]{0,19})(?:\\.[0-9]{1,20})?(?:[eE][+-]?[0-9]{1,2})?", &s->number));
    PF_TRY(pf_schema_add(s, &c, &anything));
    return pf_schema_rule(s, &c, &s->any);
}

/* The schema itself, or that of a property, if `property` is not NULL. */
static pf_status choose(const struct pf_schema *s, struct pf_jstr property, const struct pf_jval **out)
{
    const struct pf_jval *all = property.p ? step_into(s, &s->root, "properties", strlen("properties")) : NULL;
    *out = property.p ? all ? step_into(s, all, property.p, property.n) : NULL : &s->root;
    if (!*out)
        PF_FAIL(PF_EINVAL, "the schema has no property \"%.*s\"", (int)(property.n < 80 ? property.n : 80), property.p);
    return PF_OK;
}

/* The arguments of a call: an object that has no alternatives, since each of those would be a value of its own. */
static pf_status call_rule(struct pf_schema *s, const struct pf_conjunction *c, int32_t *rule)
{
    static const char *const not_here[] = { "anyOf", "oneOf", "enum", "const" };
    unsigned types;
    for (size_t i = 0; i < c->n; i++)
        for (size_t k = 0; k < sizeof not_here / sizeof *not_here; k++)
            if (pf_schema_get(s, c->v[i].schema, not_here[k]))
                return pf_schema_fail(s, PF_EUNSUPPORTED, c->v[i].schema, not_here[k],
                                      "is not supported where arguments are written as a call has them");
    PF_TRY(pf_schema_types(s, c, true, &types));
    *rule = pf_rules_rule(s->r);
    PF_TRY(s->r->status);
    if (c->never || !(types & PF_JSON_OBJECT))
        PF_FAIL(PF_EUNSUPPORTED, "the arguments of a call are an object, which the schema does not allow");
    return pf_schema_object(s, c, true, s->r->rules[*rule].start, s->r->rules[*rule].final);
}

static pf_status compile(struct pf_schema *s, const char *text, size_t n, struct pf_jstr property, int32_t *root)
{
    struct pf_conjunction c = { 0 };
    const struct pf_jval *chosen;
    if (n > PF_GRAMMAR_MAX_TEXT)
        PF_FAIL(PF_EINVAL, "a schema of %zu bytes is too long; the limit is %d", n, PF_GRAMMAR_MAX_TEXT);
    size_t valid = pf_utf8_valid(text, n);
    if (valid < n)
        PF_FAIL(PF_EINVAL, "the schema is not UTF-8 at offset %zu", valid);
    s->root = pf_jbool(true);
    if (n > 0)
        PF_TRY(pf_jjson_read(&s->run, text, n, &s->root));
    PF_TRY(shared_rules(s));
    PF_TRY(choose(s, property, &chosen));
    PF_TRY(pf_schema_add(s, &c, chosen));
    PF_TRY(s->w->as_call ? call_rule(s, &c, root) : pf_schema_rule(s, &c, root));
    for (; s->done < s->n_waiting; s->done++) {
        struct pf_waiting w = s->waiting[s->done];       /* the list may move */
        PF_TRY(write_rule(s, &w.c, s->r->rules[w.rule].start, s->r->rules[w.rule].final));
        PF_TRY(s->r->status);
    }
    return PF_OK;
}

static pf_status rules(struct pf_rules *r, const char *text, size_t n, const struct pf_notation *w,
                       struct pf_jstr property, int32_t *root)
{
    struct pf_schema s = { .r = r, .w = w, .run = { .arena = { .limit = MOST_BYTES } } };
    pf_hash_key_draw(&s.t.hash_key);
    s.run.t = &s.t;
    pf_status st = compile(&s, text, n, property, root);
    pf_strings_free(&s.special);
    pf_jarena_free(&s.run.arena);
    pf_free(s.run.out);
    if (st == PF_ETEMPLATE) {            /* from the JSON reader */
        char why[256];
        const char *colon = strstr(pf_last_error(), ": ");
        snprintf(why, sizeof why, "%s", colon ? colon + 2 : pf_last_error());
        PF_FAIL(PF_EINVAL, "the schema: %s", why);
    }
    return st;
}

pf_status pf_schema_rules(struct pf_rules *r, const char *text, size_t n, int32_t *root)
{
    return rules(r, text, n, &pf_json_notation, (struct pf_jstr){ NULL, 0 }, root);
}

pf_status pf_schema_notation_rules(struct pf_rules *r, const char *text, size_t n, const struct pf_notation *w,
                                   int32_t *root)
{
    return rules(r, text, n, w, (struct pf_jstr){ NULL, 0 }, root);
}

pf_status pf_schema_property_rules(struct pf_rules *r, const char *text, size_t n, const char *property,
                                   size_t n_property, int32_t *root)
{
    return rules(r, text, n, &pf_json_notation, (struct pf_jstr){ property, n_property }, root);
}
