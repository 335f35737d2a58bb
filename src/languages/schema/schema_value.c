/* JSON Schema: types, constants, strings. See schema.h. */
#include "languages/schema/schema.h"

#include <stdio.h>

#include "base/pf_mem.h"
#include "base/pf_status.h"

/* ---- Types ------------------------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    unsigned types;
} type_names[] = {
    { "null", PF_JSON_NULL }, { "boolean", PF_JSON_BOOL }, { "integer", PF_JSON_INTEGER }, { "number", PF_JSON_NUMBER },
    { "string", PF_JSON_STRING }, { "array", PF_JSON_ARRAY }, { "object", PF_JSON_OBJECT },
};

static pf_status types_of(const struct pf_schema *s, const struct pf_jval *schema, const struct pf_jval *v,
                          unsigned *types)
{
    size_t n = v->kind == PF_JV_LIST ? v->list->n : 1;
    *types = 0;
    PF_TRY(pf_rules_work(s->r, n));
    for (size_t i = 0; i < n; i++) {
        const struct pf_jval *one = v->kind == PF_JV_LIST ? &v->list->v[i] : v;
        unsigned found = 0;
        for (size_t k = 0; k < sizeof type_names / sizeof *type_names && one->kind == PF_JV_STR; k++)
            if (pf_jstr_is(one->s, type_names[k].name))
                found = type_names[k].types;
        if (!found)
            return pf_schema_fail(s, PF_EINVAL, schema, "type", "is none of JSON's types");
        *types |= found;
    }
    return PF_OK;
}

pf_status pf_schema_types(const struct pf_schema *s, const struct pf_conjunction *c, bool guess, unsigned *types)
{
    static const struct {
        const char *keyword;
        unsigned types;
    } about[] = {
        { "properties", PF_JSON_OBJECT }, { "required", PF_JSON_OBJECT }, { "additionalProperties", PF_JSON_OBJECT },
        { "patternProperties", PF_JSON_OBJECT }, { "propertyNames", PF_JSON_OBJECT },
        { "minProperties", PF_JSON_OBJECT }, { "maxProperties", PF_JSON_OBJECT }, { "items", PF_JSON_ARRAY },
        { "prefixItems", PF_JSON_ARRAY },
        { "minItems", PF_JSON_ARRAY }, { "maxItems", PF_JSON_ARRAY }, { "minLength", PF_JSON_STRING },
        { "maxLength", PF_JSON_STRING }, { "pattern", PF_JSON_STRING }, { "format", PF_JSON_STRING },
        { "minimum", PF_JSON_NUMBER }, { "maximum", PF_JSON_NUMBER }, { "exclusiveMinimum", PF_JSON_NUMBER },
        { "exclusiveMaximum", PF_JSON_NUMBER }, { "multipleOf", PF_JSON_NUMBER },
    };
    unsigned guessed = 0, one;
    bool typed = false;
    *types = PF_JSON_ANY;
    for (size_t i = 0; i < c->n; i++) {
        const struct pf_jval *schema = c->v[i].schema, *v = pf_schema_get(s, schema, "type");
        if (v) {
            PF_TRY(types_of(s, schema, v, &one));
            *types &= one;
            typed = true;
        }
        for (size_t k = 0; k < sizeof about / sizeof *about; k++)
            if (pf_schema_get(s, schema, about[k].keyword))
                guessed |= about[k].types;
    }
    if (!typed && guess && guessed)
        *types = guessed;
    return PF_OK;
}

static unsigned type_of(const struct pf_jval *v)
{
    switch (v->kind) {
    case PF_JV_NONE:  return PF_JSON_NULL;
    case PF_JV_BOOL:  return PF_JSON_BOOL;
    case PF_JV_INT:
    case PF_JV_BIG:   return PF_JSON_INTEGER;
    case PF_JV_FLOAT: return v->f > -1e15 && v->f < 1e15 && v->f == (double)(int64_t)v->f ? PF_JSON_INTEGER
                                                                                          : PF_JSON_FRACTION;
    case PF_JV_STR:   return PF_JSON_STRING;
    case PF_JV_LIST:  return PF_JSON_ARRAY;
    default:          return PF_JSON_OBJECT;
    }
}

/* ---- Constants --------------------------------------------------------------------------------------------------- */

/* What consts and enums of the members allow, each as a list; the shortest comes first. */
struct constants {
    struct pf_jlist v[2 * PF_MOST_MEMBERS];
    size_t n;
};

static void add_list(struct constants *all, struct pf_jlist list)
{
    all->v[all->n] = list;
    if (list.n < all->v[0].n) {
        all->v[all->n] = all->v[0];
        all->v[0] = list;
    }
    all->n++;
}

static pf_status constants_of(const struct pf_schema *s, const struct pf_conjunction *c, struct constants *all)
{
    all->n = 0;
    for (size_t i = 0; i < c->n; i++) {
        const struct pf_jval *one = pf_schema_get(s, c->v[i].schema, "const");
        const struct pf_jval *many = pf_schema_get(s, c->v[i].schema, "enum");
        if (many && many->kind != PF_JV_LIST)
            return pf_schema_fail(s, PF_EINVAL, c->v[i].schema, "enum", "is not an array");
        if (one)
            add_list(all, (struct pf_jlist){ .v = (struct pf_jval *)(uintptr_t)one, .n = 1 });
        if (many)
            add_list(all, *many->list);
    }
    return PF_OK;
}

/* Whether a value of the shortest list fulfils what else the members say. */
static pf_status fits(struct pf_schema *s, const struct pf_conjunction *c, const struct constants *all, unsigned types,
                      const struct pf_strings *strings, const struct pf_jval *v, bool *yes)
{
    unsigned type = type_of(v);
    *yes = (types & type) != 0;
    for (size_t i = 1; i < all->n && *yes; i++)
        PF_TRY(pf_schema_has(s, &all->v[i], v, yes));
    if (*yes && type == PF_JSON_STRING)
        PF_TRY(pf_strings_match(s, strings, v->s, yes));
    if (*yes && (type & PF_JSON_NUMBER))
        PF_TRY(pf_schema_number_fits(s, c, v, yes));
    return PF_OK;
}

/* Keywords about what is inside of arrays and objects are not looked at for constants. */
static pf_status refuse_parts(const struct pf_schema *s, const struct pf_conjunction *c)
{
    static const char *const parts[] = { "properties", "required", "additionalProperties", "patternProperties",
        "propertyNames", "minProperties", "maxProperties", "items", "prefixItems", "minItems", "maxItems" };
    for (size_t i = 0; i < c->n; i++)
        for (size_t k = 0; k < sizeof parts / sizeof *parts; k++)
            if (pf_schema_get(s, c->v[i].schema, parts[k]))
                return pf_schema_fail(s, PF_EUNSUPPORTED, c->v[i].schema, parts[k],
                                      "is not supported beside constants that are arrays or objects");
    return PF_OK;
}

static pf_status texts_of(struct pf_schema *s, const struct pf_conjunction *c, const struct constants *all,
                          struct pf_texts *texts)
{
    struct pf_strings strings;
    const struct pf_jlist *list = &all->v[0];
    unsigned types;
    PF_TRY(pf_schema_types(s, c, false, &types));
    pf_status st = pf_strings_of(s, c, &strings);
    for (size_t i = 0; i < list->n && st == PF_OK; i++) {
        const struct pf_jval *v = &list->v[i];
        bool yes = false;
        st = pf_rules_work(s->r, 1);
        if (st == PF_OK)
            st = fits(s, c, all, types, &strings, v, &yes);
        if (st == PF_OK && yes && (type_of(v) & (PF_JSON_ARRAY | PF_JSON_OBJECT)))
            st = refuse_parts(s, c);
        struct pf_jstr text;
        if (st == PF_OK && yes)
            st = pf_schema_literal(s, v, &text);
        if (st == PF_OK && yes)
            st = pf_texts_add(s, texts, text);
    }
    pf_strings_free(&strings);
    return st;
}

pf_status pf_schema_constants(struct pf_schema *s, const struct pf_conjunction *c, struct pf_texts *texts, bool *are)
{
    struct constants all;
    PF_TRY(constants_of(s, c, &all));
    *are = all.n > 0;
    return *are ? texts_of(s, c, &all, texts) : PF_OK;
}

/* ---- Strings ----------------------------------------------------------------------------------------------------- */

#define H16 "[0-9a-f]{1,4}"
#define DATE                                                                                    \
    "[0-9]{3}[1-9]-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)" \
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))"
#define TIME "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
#define CLOCK "T(?:[0-9]{1,2}H(?:[0-9]{1,2}M(?:[0-9]{1,2}S)?)?|[0-9]{1,2}M(?:[0-9]{1,2}S)?|[0-9]{1,2}S)"
#define LABEL "[A-Za-z0-9]{1,20}(?:-[A-Za-z0-9]{1,20}){0,2}"
#define HOST LABEL "(?:\\." LABEL "){0,3}"
#define BYTE "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"

/* Formats and the texts that are made for them: not all that the format allows. */
static const struct {
    const char *name, *regex;            /* NULL: any string */
} formats[] = {
    { "date", DATE }, { "time", TIME }, { "date-time", DATE "T" TIME },
    { "duration",
      "P(?:[0-9]{1,4}W|(?:[0-9]{1,4}Y(?:[0-9]{1,2}M(?:[0-9]{1,2}D)?)?|[0-9]{1,2}M(?:[0-9]{1,2}D)?|[0-9]{1,4}D)"
      "(?:" CLOCK ")?|" CLOCK ")" },
    { "uuid", "[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}" },
    { "email", "[A-Za-z0-9_+-]{1,30}(?:\\.[A-Za-z0-9_+-]{1,15}){0,2}@" HOST "\\.[A-Za-z]{2,10}" },
    { "hostname", HOST },
    { "ipv4", "(?:" BYTE "\\.){3}" BYTE },
    { "ipv6",
      "(?:" H16 ":){7}" H16 "|(?:" H16 ":){1,6}:" H16 "|(?:" H16 ":){1,5}(?::" H16 "){1,2}|(?:" H16 ":){1,4}(?::"
              H16 "){1,3}|(?:" H16 ":){1,3}(?::" H16 "){1,4}|(?:" H16 ":){1,2}(?::" H16 "){1,5}|" H16 ":(?::" H16
              "){1,6}|::(?:" H16 "(?::" H16 "){0,6})?" },
    { "uri", "[a-z][a-z0-9+.-]{1,20}://" HOST "(?::[0-9]{1,4})?(?:/[A-Za-z0-9._~!$&'()*+,;=:@-]*)*"
             "(?:\\?[A-Za-z0-9._~!$&'()*+,;=:@/?-]*)?(?:#[A-Za-z0-9._~!$&'()*+,;=:@/?-]*)?" },
    { "int32", NULL }, { "int64", NULL }, { "float", NULL }, { "double", NULL }, { "password", NULL },
    { "binary", NULL }, { "byte", NULL },
};

static pf_status add_format(const struct pf_schema *s, const struct pf_jval *schema, const struct pf_jval *v,
                            struct pf_strings *out)
{
    for (size_t i = 0; v->kind == PF_JV_STR && i < sizeof formats / sizeof *formats; i++) {
        const char *regex = formats[i].regex;
        char whole[1200];
        if (!pf_jstr_is(v->s, formats[i].name))
            continue;
        if (!regex)
            return PF_OK;
        int n = snprintf(whole, sizeof whole, "^(?:%s)$", regex);
        return pf_strings_add(out, whole, (size_t)n);
    }
    return pf_schema_fail(s, PF_EUNSUPPORTED, schema, "format", "is not one that is supported");
}

pf_status pf_strings_add(struct pf_strings *x, const char *regex, size_t n)
{
    if (x->n == PF_MAX_PATTERNS)
        PF_FAIL(PF_EUNSUPPORTED, "more than %d patterns and formats meet in a string of the schema", PF_MAX_PATTERNS);
    size_t i = x->n++;
    return pf_regex_read(&x->r[i], regex, n, true, &x->rules[i]);
}

pf_status pf_strings_of(const struct pf_schema *s, const struct pf_conjunction *c, struct pf_strings *out)
{
    *out = (struct pf_strings){ .max = PF_EXPR_MANY };
    PF_TRY(pf_schema_count(s, c, "minLength", true, &out->min));
    PF_TRY(pf_schema_count(s, c, "maxLength", false, &out->max));
    for (size_t i = 0; i < c->n; i++) {
        const struct pf_jval *schema = c->v[i].schema, *format = pf_schema_get(s, schema, "format");
        const struct pf_jval *pattern = pf_schema_get(s, schema, "pattern");
        if (pattern && pattern->kind != PF_JV_STR)
            return pf_schema_fail(s, PF_EINVAL, schema, "pattern", "is not a string");
        if (pattern)
            PF_TRY(pf_strings_add_from(s, schema, "pattern", pattern->s, out));
        if (format)
            PF_TRY(add_format(s, schema, format, out));
    }
    for (size_t i = 0; i < out->n; i++)
        PF_TRY(pf_rules_work(s->r, out->r[i].n_edges));
    return PF_OK;
}

pf_status pf_strings_add_from(const struct pf_schema *s, const struct pf_jval *schema, const char *keyword,
                              struct pf_jstr regex, struct pf_strings *x)
{
    pf_status st = pf_strings_add(x, regex.p, regex.n);
    char why[200];
    if (st == PF_OK || st == PF_ENOMEM)
        return st;
    snprintf(why, sizeof why, "does not do: %s", pf_last_error());
    return pf_schema_fail(s, st, schema, keyword, why);
}

void pf_strings_free(struct pf_strings *x)
{
    for (size_t i = 0; i < x->n; i++)
        pf_rules_free(&x->r[i]);
    x->n = 0;
}

static size_t patterns_of(const struct pf_strings *x, struct pf_pattern out[PF_MAX_PATTERNS])
{
    for (size_t i = 0; i < x->n; i++)
        out[i] = (struct pf_pattern){ &x->r[i], x->rules[i] };
    return x->n;
}

pf_status pf_strings_match(const struct pf_schema *s, const struct pf_strings *x, struct pf_jstr text, bool *matches)
{
    struct pf_pattern patterns[PF_MAX_PATTERNS];
    size_t length = pf_ju8_count(text);
    *matches = length >= x->min && length <= x->max;
    return *matches ? pf_pattern_matches(patterns, patterns_of(x, patterns), text.p, text.n, s->r, matches) : PF_OK;
}

/* Between min and max characters, without a pattern. */
static void characters(struct pf_schema *s, uint32_t min, uint32_t max, int32_t from, int32_t to)
{
    for (uint32_t i = 0; i < (max == PF_EXPR_MANY ? min : max) && s->r->status == PF_OK; i++) {
        int32_t next = pf_rules_state(s->r);
        if (i >= min)
            pf_rules_empty(s->r, from, to);
        pf_rules_call(s->r, from, s->character, next);
        from = next;
    }
    if (max == PF_EXPR_MANY) {
        int32_t loop = pf_rules_state(s->r);
        pf_rules_empty(s->r, from, loop);
        pf_rules_call(s->r, loop, s->character, loop);
        from = loop;
    }
    if (min <= max)
        pf_rules_empty(s->r, from, to);
}

/* As they are, and of one of the notation's patterns. */
static pf_status plain(struct pf_schema *s, const struct pf_strings *x, enum pf_special special, int32_t from,
                       int32_t to)
{
    struct pf_pattern patterns[PF_MAX_PATTERNS];
    if (x->n == PF_MAX_PATTERNS)
        PF_FAIL(PF_EUNSUPPORTED, "more than %d patterns and formats meet in a string of the schema",
                PF_MAX_PATTERNS - 1);
    size_t n = patterns_of(x, patterns);
    patterns[n] = (struct pf_pattern){ &s->special.r[special], s->special.rules[special] };
    return pf_pattern_emit(patterns, n + 1, x->min, x->max, PF_PATTERN_PLAIN, s->r, from, to);
}

pf_status pf_strings_emit_bare(struct pf_schema *s, const struct pf_strings *x, int32_t from, int32_t to)
{
    return plain(s, x, PF_IDENTIFIER, from, to);
}

pf_status pf_strings_emit(struct pf_schema *s, const struct pf_strings *x, bool anew, int32_t from, int32_t to)
{
    struct pf_pattern patterns[PF_MAX_PATTERNS];
    if (!anew && x->n == 0 && x->min == 0 && x->max == PF_EXPR_MANY) {
        pf_rules_call(s->r, from, s->string, to);
        return s->r->status;
    }
    int32_t begin = pf_rules_state(s->r), end = pf_rules_state(s->r);
    pf_rules_text(s->r, from, s->w->quote, strlen(s->w->quote), begin);
    pf_rules_text(s->r, end, s->w->quote, strlen(s->w->quote), to);
    if (!s->w->escapes)
        return plain(s, x, PF_WITHOUT_QUOTE, begin, end);
    if (x->n == 0)
        characters(s, x->min, x->max, begin, end);
    else
        PF_TRY(pf_pattern_emit(patterns, patterns_of(x, patterns), x->min, x->max, PF_PATTERN_ESCAPED, s->r, begin,
                               end));
    return s->r->status;
}

static pf_status string(struct pf_schema *s, const struct pf_conjunction *c, int32_t from, int32_t to)
{
    struct pf_strings x;
    pf_status st = pf_strings_of(s, c, &x);
    if (st == PF_OK)
        st = pf_strings_emit(s, &x, false, from, to);
    pf_strings_free(&x);
    return st;
}

/* ---- Values ------------------------------------------------------------------------------------------------------ */

pf_status pf_schema_value(struct pf_schema *s, const struct pf_conjunction *c, int32_t from, int32_t to)
{
    struct pf_texts texts = { .n = 0 };
    unsigned types;
    bool are_constants;
    PF_TRY(pf_schema_constants(s, c, &texts, &are_constants));
    if (are_constants)
        return pf_texts_emit(s, &texts, from, to);
    PF_TRY(pf_schema_types(s, c, true, &types));
    if (types & PF_JSON_NULL)
        pf_rules_text(s->r, from, s->w->null, strlen(s->w->null), to);
    if (types & PF_JSON_BOOL) {
        pf_rules_text(s->r, from, s->w->yes, strlen(s->w->yes), to);
        pf_rules_text(s->r, from, s->w->no, strlen(s->w->no), to);
    }
    if (types & PF_JSON_NUMBER)
        PF_TRY(pf_schema_number(s, c, !(types & PF_JSON_FRACTION), from, to));
    if (types & PF_JSON_STRING)
        PF_TRY(string(s, c, from, to));
    if (types & PF_JSON_ARRAY)
        PF_TRY(pf_schema_array(s, c, from, to));
    if (types & PF_JSON_OBJECT)
        PF_TRY(pf_schema_object(s, c, false, from, to));
    return s->r->status;
}
