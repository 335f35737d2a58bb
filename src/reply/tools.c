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
struct pf_span pf_tools_next(struct pf_tools *t, struct pf_span all, struct pf_span last)
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

bool pf_tools_next_member(struct pf_tools *t, struct pf_span object, struct pf_span *key, struct pf_span *value)
{
    *key = pf_tools_next(t, object, *value);
    if (!key->p)
        return false;
    value->p = key->p + key->n + 2;
    value->n = skip_value(t, value->p);
    return true;
}

/* The member named by n bytes that stand between quotes in JSON. */
static struct pf_span get(struct pf_tools *t, struct pf_span object, const char *name, size_t n)
{
    struct pf_span key, value = { NULL, 0 };
    while (is(object, '{') && pf_tools_next_member(t, object, &key, &value))
        if (key.n == n + 2 && memcmp(key.p + 1, name, n) == 0)
            return value;
    return (struct pf_span){ NULL, 0 };
}

struct pf_span pf_tools_get(struct pf_tools *t, struct pf_span object, const char *name)
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

struct pf_span pf_tools_next_tool(struct pf_tools *t, struct pf_span last, struct pf_span *name,
                                  struct pf_span *schema)
{
    struct pf_span all = { t->json.p, t->json.n }, tool = { NULL, 0 };
    if (all.p)
        tool = pf_tools_next(t, all, last);
    struct pf_span f = pf_tools_get(t, tool, "function");
    f = f.p ? f : tool;
    *name = pf_tools_get(t, f, "name");
    *schema = pf_tools_get(t, f, "parameters");
    return tool;
}

struct pf_span pf_tools_find(struct pf_tools *t, const char *name, size_t n, bool *offered)
{
    struct pf_span tool = { NULL, 0 }, own, schema;
    *offered = false;
    while ((tool = pf_tools_next_tool(t, tool, &own, &schema)).p)
        if (own.n == n + 2 && memcmp(own.p + 1, name, n) == 0) {
            *offered = true;
            return schema;
        }
    return tool;
}

bool pf_tools_requires(struct pf_tools *t, struct pf_span schema, struct pf_span property)
{
    struct pf_span all = pf_tools_get(t, schema, "required"), each = { NULL, 0 };
    while (is(all, '[') && (each = pf_tools_next(t, all, each)).p)
        if (each.n == property.n && memcmp(each.p, property.p, each.n) == 0)
            return true;
    return false;
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

struct pf_span pf_tools_follow(struct pf_tools *t, struct pf_span root, struct pf_span schema)
{
    struct pf_span ref;
    for (int i = 0; i < MAX_REFS && (ref = pf_tools_get(t, schema, "$ref")).p; i++)
        schema = resolve(t, root, ref);
    return schema;
}

static unsigned types_of(struct pf_tools *t, struct pf_span root, struct pf_span schema, int depth)
{
    static const char *const choices[] = { "anyOf", "oneOf", "allOf" };
    struct pf_span type = pf_tools_get(t, schema, "type"), each = { NULL, 0 };
    unsigned types = 0;
    if (!is(schema, '{') || depth == MAX_REFS)
        return 0;
    if (is(type, '['))
        while ((each = pf_tools_next(t, type, each)).p)
            types |= named_type(each);
    else if (type.p)
        types = named_type(type);
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++) {
        struct pf_span all = pf_tools_get(t, schema, choices[i]);
        while (is(all, '[') && (each = pf_tools_next(t, all, each)).p)
            types |= types_of(t, root, each, depth + 1);
    }
    struct pf_span ref = pf_tools_get(t, schema, "$ref"), values = pf_tools_get(t, schema, "enum"),
                   constant = pf_tools_get(t, schema, "const");
    if (ref.p)
        types |= types_of(t, root, resolve(t, root, ref), depth + 1);
    if (!types && constant.p)
        types = pf_type_of(constant.p);
    if (!types)
        while (is(values, '[') && (each = pf_tools_next(t, values, each)).p)
            types |= pf_type_of(each.p);
    return types | (types && is(pf_tools_get(t, schema, "nullable"), 't') ? PF_TYPE_NULL : 0);
}

unsigned pf_tools_types_of(struct pf_tools *t, struct pf_span root, struct pf_span schema)
{
    return schema.p ? types_of(t, root, schema, 0) : 0;
}

struct pf_span pf_tools_property(struct pf_tools *t, struct pf_span root, struct pf_span schema, const char *name,
                                 size_t n)
{
    schema = pf_tools_follow(t, root, schema);
    if (!name)
        return pf_tools_get(t, schema, "items");
    struct pf_span own = get(t, pf_tools_get(t, schema, "properties"), name, n);
    return own.p ? own : pf_tools_get(t, schema, "additionalProperties");
}

unsigned pf_tools_types(struct pf_tools *t, struct pf_span schema, const char *param, size_t n)
{
    struct pf_span own = pf_tools_property(t, schema, schema, param, n);
    unsigned types = pf_tools_types_of(t, schema, own);
    return types ? types : PF_TYPE_STRING;
}
