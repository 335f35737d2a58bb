/* JSON Schema: constants and names, as JSON or in another notation. See schema.h. */
#include "base/pf_status.h"
#include "languages/schema/schema.h"

const struct pf_notation pf_json_notation = { .quote = "\"", .escapes = true, .null = "null", .no = "false",
                                              .yes = "true" };

static const struct pf_jjson_style json_style = { .comma = { ", ", 2 }, .colon = { ": ", 2 } };

pf_status pf_schema_specials(struct pf_schema *s)
{
    static const char identifier[] = "^[A-Za-z_][A-Za-z0-9_]{0,127}$";
    const char *quote = s->w->quote + ((uint8_t)s->w->quote[0] >= 0x80);         /* as text, without a token's mark */
    struct pf_strings *x = &s->special;
    PF_TRY(pf_pattern_without(&x->r[x->n++], quote, &x->rules[PF_WITHOUT_QUOTE]));
    return pf_strings_add(x, identifier, sizeof identifier - 1);
}

/* ---- Constants --------------------------------------------------------------------------------------------------- */

static bool is_identifier(struct pf_jstr s)
{
    for (size_t i = 0; i < s.n; i++) {
        bool letter = (s.p[i] >= 'a' && s.p[i] <= 'z') || (s.p[i] >= 'A' && s.p[i] <= 'Z') || s.p[i] == '_';
        if (!letter && (i == 0 || s.p[i] < '0' || s.p[i] > '9'))
            return false;
    }
    return s.n > 0;
}

static pf_status put_name(struct pf_schema *s, struct pf_jstr name, bool bare)
{
    struct pf_jval text = pf_jstring(name.p, name.n);
    return bare && is_identifier(name) ? pf_jput(&s->run, name.p, name.n)
                                       : pf_jjson_write(&s->run, &text, &json_style, 0);
}

/* A text that stands as it is. */
static pf_status put_plain(struct pf_schema *s, struct pf_jstr text)
{
    struct pf_pattern p = { &s->special.r[PF_WITHOUT_QUOTE], s->special.rules[PF_WITHOUT_QUOTE] };
    bool ok;
    PF_TRY(pf_pattern_matches(&p, 1, text.p, text.n, s->r, &ok));
    if (!ok)
        PF_FAIL(PF_EUNSUPPORTED, "a constant of the schema has what ends a string");
    PF_TRY(pf_jputs(&s->run, s->w->quote));
    PF_TRY(pf_jput(&s->run, text.p, text.n));
    return pf_jputs(&s->run, s->w->quote);
}

static pf_status put(struct pf_schema *s, const struct pf_jval *v);

static pf_status put_parts(struct pf_schema *s, const struct pf_jval *v)
{
    bool list = v->kind == PF_JV_LIST;
    size_t n = list ? v->list->n : v->dict->n;
    PF_TRY(pf_jputs(&s->run, list ? "[" : "{"));
    for (size_t i = 0; i < n; i++) {
        if (i > 0)
            PF_TRY(pf_jputs(&s->run, s->w->escapes ? ", " : ","));
        if (!list) {
            PF_TRY(put_name(s, v->dict->v[i].key.s, s->w->bare_names));
            PF_TRY(pf_jputs(&s->run, s->w->escapes ? ": " : ":"));
        }
        PF_TRY(put(s, list ? &v->list->v[i] : &v->dict->v[i].val));
    }
    return pf_jputs(&s->run, list ? "]" : "}");
}

/* A constant, nested as deep as a JSON reader lets it. */
static pf_status put(struct pf_schema *s, const struct pf_jval *v)
{
    switch (v->kind) {
    case PF_JV_NONE: return pf_jputs(&s->run, s->w->null);
    case PF_JV_BOOL: return pf_jputs(&s->run, v->b ? s->w->yes : s->w->no);
    case PF_JV_LIST:
    case PF_JV_DICT: return put_parts(s, v);
    case PF_JV_STR:
        if (!s->w->escapes)
            return put_plain(s, v->s);
        break;
    default:
        break;
    }
    return pf_jjson_write(&s->run, v, &json_style, 0);
}

pf_status pf_schema_literal(struct pf_schema *s, const struct pf_jval *v, struct pf_jstr *text)
{
    struct pf_jval taken;
    size_t mark = s->run.n_out;
    PF_TRY(put(s, v));
    PF_TRY(pf_jtake(&s->run, mark, &taken));
    *text = taken.s;
    return PF_OK;
}

pf_status pf_schema_name(struct pf_schema *s, struct pf_jstr name, bool bare, int32_t from, int32_t to)
{
    struct pf_jval text;
    size_t mark = s->run.n_out;
    PF_TRY(put_name(s, name, bare));
    PF_TRY(pf_jtake(&s->run, mark, &text));
    pf_rules_text(s->r, from, text.s.p, text.s.n, to);
    return s->r->status;
}
