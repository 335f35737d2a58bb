/* Arguments between tags: the schema's properties in its order, those that are not required perhaps left out. A value
 * that may be a string is text up to its end, or one of the strings that an enum lists; any other is JSON by its own
 * schema. See shape_impl.h. */
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
    bool is_text;
};

/* The value, and what ends it. */
static pf_status value(struct pf_shape *s, struct pf_span schema, const struct param *p, int32_t *at)
{
    const char *close = s->form->value_end;
    int32_t end = pf_rules_state(s->r);
    if (p->is_text) {
        if (!listed(s, pf_tools_follow(&s->tools, schema, p->own), close, *at, end))
            pf_rules_empty(s->r, pf_shape_until(s, *at, close), end);
    } else {
        PF_TRY(pf_shape_property(s, schema, p->name, at));
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
