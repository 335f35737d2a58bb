/* Arguments between tags: the schema's properties in its order, those that are not required perhaps left out. A value
 * that may be a string is text up to its end, or one of the strings that an enum lists; any other is JSON by its own
 * schema, or tags again where the family nests them. See shape_impl.h. */
#define _GNU_SOURCE                  /* memmem */
#include <string.h>

#include "base/pf_status.h"
#include "shape/shape_impl.h"

/* What stands between a string's quotes, if that is the string. */
static bool plain(struct pf_span string, struct pf_span *out)
{
    *out = (struct pf_span){ string.p + 1, string.n - 2 };
    return string.p[0] == '"' && !memchr(string.p, '\\', string.n);
}

/* One of the texts that the schema lists, then the value's end. False: it lists none, or others than plain strings. */
static bool listed(struct pf_shape *s, struct pf_span schema, const char *close, int32_t from, int32_t to)
{
    struct pf_span all = pf_tools_get(&s->tools, schema, "enum"), each = { NULL, 0 }, text;
    bool any = false, framed = s->family->form & PF_FORM_NEWLINES;
    if (!all.p || all.p[0] != '[')
        return false;
    while ((each = pf_tools_next(&s->tools, all, each)).p)
        if (!plain(each, &text))
            return false;
    while ((each = pf_tools_next(&s->tools, all, each)).p) {
        plain(each, &text);
        int32_t at = pf_shape_text(s, from, text.p, text.n);
        at = framed ? pf_shape_newline(s, at) : at;
        pf_rules_empty(s->r, pf_shape_text(s, at, close, strlen(close)), to);
        any = true;
    }
    return any;
}

/* A property of the arguments' schema. */
struct param {
    struct pf_span name, own;            /* `own`: its schema, perhaps a reference */
    bool is_text, alone;                 /* alone: nothing in `own` refers to anything */
};

static pf_status param(struct pf_shape *s, struct pf_span schema, const struct param *p, int32_t *at);

static bool is_alone(struct pf_span schema)
{
    static const char reference[] = "\"$ref\"";
    return !memmem(schema.p, schema.n, reference, sizeof reference - 1);
}

/* Whether a schema says nothing but what tags can say: of an object its properties, of a list its elements. */
static bool is_plain(struct pf_shape *s, struct pf_span schema, bool list)
{
    static const char *const known[] = { "type", "title", "description", "default", "examples", "items", "properties",
                                         "required", "additionalProperties" };
    enum { N_BOTH = 5, N_LIST = 6, N_OBJECT = 9 };
    struct pf_span key, value = { NULL, 0 };
    while (pf_tools_next_member(&s->tools, schema, &key, &value)) {
        int i = 0, n = list ? N_LIST : N_OBJECT;
        while (i < n && (key.n != strlen(known[i]) + 2 || memcmp(key.p + 1, known[i], key.n - 2) != 0))
            i += i + 1 == N_BOTH && !list ? 2 : 1;
        if (i >= n)
            return false;
    }
    return true;
}

/* Any number of elements, each between tags of the name that lists have. */
static pf_status elements(struct pf_shape *s, struct pf_span items, int32_t *at)
{
    unsigned types = pf_tools_types_of(&s->tools, items, items);
    const struct param p = { .name = { "item", 4 }, .own = items, .is_text = !types || types & PF_TYPE_STRING,
                             .alone = true };
    int32_t again = pf_rules_state(s->r), end = again;
    pf_rules_empty(s->r, *at, again);
    PF_TRY(param(s, items, &p, &end));
    pf_rules_empty(s->r, end, again);
    *at = again;
    return s->r->status;
}

/* A value that is no text, by a schema that is alone: tags, or JSON. */
static pf_status nested(struct pf_shape *s, struct pf_span own, int32_t *at)
{
    unsigned types = pf_tools_types_of(&s->tools, own, own);
    struct pf_span items = pf_tools_get(&s->tools, own, "items");
    if (types == PF_TYPE_OBJECT && is_plain(s, own, false) && pf_shape_params_suit(s, own))
        return pf_shape_params(s, own, at);
    if (types == PF_TYPE_ARRAY && is_plain(s, own, true) && items.p && items.p[0] == '{')
        return elements(s, items, at);
    return pf_shape_value(s, own, at);
}

/* The value, and what ends it. */
static pf_status value(struct pf_shape *s, struct pf_span schema, const struct param *p, int32_t *at)
{
    const char *close = s->form->value_end;
    int32_t end = pf_rules_state(s->r);
    if (p->is_text) {
        if (!listed(s, pf_tools_follow(&s->tools, schema, p->own), close, *at, end))
            pf_rules_empty(s->r, pf_shape_until(s, *at, close), end);
    } else {
        PF_TRY(p->alone ? nested(s, p->own, at) : pf_shape_property(s, schema, p->name, at));
        *at = pf_shape_space(s, *at);
        pf_rules_empty(s->r, pf_shape_text(s, *at, close, strlen(close)), end);
    }
    *at = end;
    return PF_OK;
}

/* The text of a parameter. A line's end right in front of a text belongs to the markup once, not more often. */
static pf_status param(struct pf_shape *s, struct pf_span schema, const struct param *p, int32_t *at)
{
    for (const char *c = s->form->param; *c; c++) {
        if (*c == PF_HOLE_NAME) {
            *at = pf_shape_text(s, *at, p->name.p, p->name.n);
        } else if (*c == PF_HOLE_IS_TEXT) {
            *at = pf_shape_text(s, *at, p->is_text ? "true" : "false", p->is_text ? 4 : 5);
        } else if (*c == PF_HOLE_ARGUMENTS) {
            PF_TRY(value(s, schema, p, at));
            c = strstr(c, s->form->value_end) + strlen(s->form->value_end) - 1;
        } else if (*c == '\n' && c[1] == PF_HOLE_ARGUMENTS && p->is_text) {
            *at = pf_shape_newline(s, *at);
        } else {
            size_t n = strcspn(c, "\1\2\3");
            n -= n > 1 && c[n] == PF_HOLE_ARGUMENTS && c[n - 1] == '\n';
            *at = pf_shape_loose(s, *at, c, n);
            c += n - 1;
        }
    }
    return PF_OK;
}

pf_status pf_shape_params(struct pf_shape *s, struct pf_span schema, int32_t *from)
{
    struct pf_span all = pf_tools_get(&s->tools, schema, "properties"), key, own = { NULL, 0 };
    while (all.p && all.p[0] == '{' && pf_tools_next_member(&s->tools, all, &key, &own)) {
        struct param p = { .own = own };
        if (!plain(key, &p.name))
            continue;                    /* a name that JSON escapes could not stand in a tag */
        p.is_text = pf_tools_types(&s->tools, schema, p.name.p, p.name.n) & PF_TYPE_STRING;
        p.alone = s->family->form & PF_FORM_NESTED && is_alone(own);
        int32_t at = *from, next = pf_rules_state(s->r);
        PF_TRY(param(s, schema, &p, &at));
        pf_rules_empty(s->r, at, next);
        if (!pf_tools_requires(&s->tools, schema, key))
            pf_rules_empty(s->r, *from, next);
        *from = next;
    }
    return s->r->status;
}

bool pf_shape_params_suit(struct pf_shape *s, struct pf_span schema)
{
    struct pf_span all = pf_tools_get(&s->tools, schema, "properties"), key, own = { NULL, 0 }, name,
                   others = pf_tools_get(&s->tools, schema, "additionalProperties");
    bool suits = all.p && all.p[0] == '{' && all.p[1] != '}' && (!others.p || others.p[0] == 'f');
    while (suits && pf_tools_next_member(&s->tools, all, &key, &own))
        suits = plain(key, &name);
    return suits;
}
