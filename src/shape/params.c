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
    bool any = false;
    if (!all.p || all.p[0] != '[')
        return false;
    while ((each = pf_tools_next(&s->tools, all, each)).p)
        if (!plain(each, &text))
            return false;
    while ((each = pf_tools_next(&s->tools, all, each)).p) {
        plain(each, &text);
        int32_t at = pf_shape_text(s, from, text.p, text.n);
        pf_rules_empty(s->r, pf_shape_text(s, at, close, strlen(close)), to);
        any = true;
    }
    return any;
}

static pf_status value(struct pf_shape *s, struct pf_span schema, bool is_text, int32_t *at)
{
    const char *close = s->form->value_end;
    int32_t end = pf_rules_state(s->r);
    if (is_text) {
        if (!listed(s, schema, close, *at, end))
            pf_rules_empty(s->r, pf_shape_until(s, *at, close), end);
    } else {
        PF_TRY(pf_shape_json(s, schema, false, at));
        pf_rules_empty(s->r, pf_shape_text(s, *at, close, strlen(close)), end);
    }
    *at = end;
    return PF_OK;
}

static pf_status param(struct pf_shape *s, struct pf_span name, struct pf_span schema, unsigned types, int32_t *at)
{
    for (const char *p = s->form->param; *p; p++) {
        bool is_text = types & PF_TYPE_STRING;
        if (*p == PF_HOLE_NAME) {
            *at = pf_shape_text(s, *at, name.p, name.n);
        } else if (*p == PF_HOLE_IS_TEXT) {
            *at = pf_shape_text(s, *at, is_text ? "true" : "false", is_text ? 4 : 5);
        } else if (*p == PF_HOLE_ARGUMENTS) {
            return value(s, schema, is_text, at);                /* with its end */
        } else {
            size_t n = strcspn(p, "\1\2\3");
            *at = pf_shape_text(s, *at, p, n);
            p += n - 1;
        }
    }
    return PF_OK;
}

pf_status pf_shape_params(struct pf_shape *s, struct pf_span schema, int32_t *from)
{
    struct pf_span all = pf_tools_get(&s->tools, schema, "properties"), key, own = { NULL, 0 }, name;
    while (all.p && all.p[0] == '{' && pf_tools_next_member(&s->tools, all, &key, &own)) {
        if (!plain(key, &name))
            continue;                    /* a name that JSON escapes could not stand in a tag */
        int32_t at = *from, next = pf_rules_state(s->r);
        PF_TRY(param(s, name, own, pf_tools_types(&s->tools, schema, name.p, name.n), &at));
        pf_rules_empty(s->r, at, next);
        if (!pf_tools_requires(&s->tools, schema, key))
            pf_rules_empty(s->r, *from, next);
        *from = next;
    }
    return s->r->status;
}
