/* See tools.h. The JSON is rewritten once by a literal, so it is well-formed, its strings have one spelling, and a
 * value is found by skipping its neighbours: no tree. */
#include "reply/tools.h"

#include "reply/literal.h"

enum { MAX_REFS = 16 };              /* schemas in schemas, by anyOf or $ref */

/* ---- Walking ----------------------------------------------------------------------------------------------------- */

static size_t skip_string(const char *s)
{
    size_t i = 1;
    while (s[i] != '"')
        i += s[i] == '\\' ? 2 : 1;
    return i + 1;
}

/* Length of the value at s. */
static size_t skip_value(struct pf_tools *t, const char *s)
{
    size_t i = 0;
    int depth = 0;
    if (s[0] == '{' || s[0] == '[') {
        do {
            depth += s[i] == '{' || s[i] == '[';
            depth -= s[i] == '}' || s[i] == ']';
            i += s[i] == '"' ? skip_string(s + i) : 1;
        } while (depth > 0);
    } else {
        i = s[0] == '"' ? skip_string(s) : strcspn(s, ",]}");
    }
    t->budget -= t->budget < i ? t->budget : i;
    return i;
}

/* Walks a list or an object: the element or key behind `last` (p NULL to begin with); p NULL at the end. */
static struct pf_span next(struct pf_tools *t, struct pf_span all, struct pf_span last)
{
    struct pf_span none = { NULL, 0 };
    const char *p = last.p ? last.p + last.n : all.p + 1;
    if (t->budget == 0)
        return none;
    if (last.p && *p == ',')
        p += 2;
    if (*p == ']' || *p == '}')
        return none;
    return (struct pf_span){ p, skip_value(t, p) };
}

static bool is(struct pf_span s, char kind)
{
    return s.p && s.p[0] == kind;
}

/* The member named by n bytes that stand between quotes in JSON. */
static struct pf_span get(struct pf_tools *t, struct pf_span object, const char *name, size_t n)
{
    struct pf_span key = { NULL, 0 }, value = key;
    while (is(object, '{') && (key = next(t, object, value)).p) {
        value.p = key.p + key.n + 2;
        value.n = skip_value(t, value.p);
        if (key.n == n + 2 && memcmp(key.p + 1, name, n) == 0)
            return value;
    }
    return (struct pf_span){ NULL, 0 };
}

static struct pf_span get_named(struct pf_tools *t, struct pf_span object, const char *name)
{
    return get(t, object, name, strlen(name));
}

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

pf_status pf_tools_read(struct pf_tools *t, const char *json, size_t n)
{
    struct pf_literal l = { 0 };
    size_t used = 0;
    pf_literal_init(&l, &t->json, false);
    bool whole = pf_literal_feed(&l, json, n, &used) == PF_LITERAL_DONE;
    while (whole && used < n && strchr(" \t\r\n", json[used]) && json[used])
        used++;
    bool failed = t->json.failed || l.key.failed;
    pf_literal_free(&l);
    pf_run_add(&t->json, "", 1);
    t->budget = 64 * (uint64_t)t->json.n + (64 << 20);
    if (failed || t->json.failed)
        PF_FAIL(PF_ENOMEM, "no memory for %zu bytes of tools", n);
    if (!whole || used != n || t->json.p[0] != '[')
        PF_FAIL(PF_EINVAL, "the tools are no JSON array: byte %zu of %zu", used, n);
    return PF_OK;
}

void pf_tools_free(struct pf_tools *t)
{
    pf_run_free(&t->json);
}

struct pf_span pf_tools_find(struct pf_tools *t, const char *name, size_t n, bool *offered)
{
    struct pf_span all = { t->json.p, t->json.n }, tool = { NULL, 0 };
    *offered = false;
    while (all.p && (tool = next(t, all, tool)).p) {
        struct pf_span f = get_named(t, tool, "function");
        f = f.p ? f : tool;
        struct pf_span own = get_named(t, f, "name");
        if (own.n == n + 2 && memcmp(own.p + 1, name, n) == 0) {
            *offered = true;
            return get_named(t, f, "parameters");
        }
    }
    return tool;
}

/* ---- Types ------------------------------------------------------------------------------------------------------- */

unsigned pf_type_of(const char *json)
{
    switch (json[0]) {
    case '"': return PF_TYPE_STRING;
    case '{': return PF_TYPE_OBJECT;
    case '[': return PF_TYPE_ARRAY;
    case 't': case 'f': return PF_TYPE_BOOLEAN;
    case 'n': return PF_TYPE_NULL;
    default:  return PF_TYPE_NUMBER;
    }
}

static unsigned named_type(struct pf_span s)
{
    static const struct { const char *name; unsigned type; } names[] = {
        { "\"string\"", PF_TYPE_STRING },   { "\"integer\"", PF_TYPE_NUMBER }, { "\"number\"", PF_TYPE_NUMBER },
        { "\"boolean\"", PF_TYPE_BOOLEAN }, { "\"null\"", PF_TYPE_NULL },      { "\"object\"", PF_TYPE_OBJECT },
        { "\"array\"", PF_TYPE_ARRAY },
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (s.n == strlen(names[i].name) && memcmp(s.p, names[i].name, s.n) == 0)
            return names[i].type;
    return 0;
}

/* What a "$ref" of the form "#/a/b" points to in root. */
static struct pf_span resolve(struct pf_tools *t, struct pf_span root, struct pf_span ref)
{
    if (!is(ref, '"') || ref.n < 3 || ref.p[1] != '#')
        return (struct pf_span){ NULL, 0 };
    const char *p = ref.p + 2, *end = ref.p + ref.n - 1;
    while (p < end && *p == '/') {
        const char *part = ++p;
        while (p < end && *p != '/')
            p++;
        root = get(t, root, part, (size_t)(p - part));
    }
    return root;
}

static unsigned types_of(struct pf_tools *t, struct pf_span root, struct pf_span schema, int depth)
{
    static const char *const choices[] = { "anyOf", "oneOf", "allOf" };
    struct pf_span type = get_named(t, schema, "type"), each = { NULL, 0 };
    unsigned types = 0;
    if (!is(schema, '{') || depth == MAX_REFS)
        return 0;
    if (is(type, '['))
        while ((each = next(t, type, each)).p)
            types |= named_type(each);
    else if (type.p)
        types = named_type(type);
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++) {
        struct pf_span all = get_named(t, schema, choices[i]);
        while (is(all, '[') && (each = next(t, all, each)).p)
            types |= types_of(t, root, each, depth + 1);
    }
    struct pf_span ref = get_named(t, schema, "$ref"), values = get_named(t, schema, "enum"),
                   constant = get_named(t, schema, "const");
    if (ref.p)
        types |= types_of(t, root, resolve(t, root, ref), depth + 1);
    if (!types && constant.p)
        types = pf_type_of(constant.p);
    if (!types)
        while (is(values, '[') && (each = next(t, values, each)).p)
            types |= pf_type_of(each.p);
    return types | (types && is(get_named(t, schema, "nullable"), 't') ? PF_TYPE_NULL : 0);
}

unsigned pf_tools_types(struct pf_tools *t, struct pf_span schema, const char *param, size_t n)
{
    struct pf_span own = get(t, get_named(t, schema, "properties"), param, n);
    if (!own.p)
        own = get_named(t, schema, "additionalProperties");
    unsigned types = own.p ? types_of(t, schema, own, 0) : 0;
    return types ? types : PF_TYPE_STRING;
}
