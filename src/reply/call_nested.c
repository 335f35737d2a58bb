/* A value between tags that holds tags itself (MiniMax-M3): members of an object, or a list's elements. It is read when
 * it is whole, up to a depth; what lies deeper is a text as it stands. See reply_impl.h.
 *
 *     <a>1</a><b><item>x</item></b>      {"a": 1, "b": ["x"]}         each tag behind the family's token */
#define _GNU_SOURCE                  /* memmem */
#include "reply/reply_impl.h"

enum { MAX_DEPTH = 32 };

struct nested {
    struct pf_reply *r;
    const char *p, *end;             /* what was not read */
    int depth;
};

static bool begins(const struct nested *x, const char *at, const char *text)
{
    size_t n = strlen(text);
    return (size_t)(x->end - at) >= n && memcmp(at, text, n) == 0;
}

/* Whether an opening tag is next. What opens a tag is a part of what closes one. */
static bool at_tag(const struct nested *x, const char *at)
{
    return begins(x, at, x->r->f->key_open) && !begins(x, at, x->r->f->value_end);
}

static void skip_space(struct nested *x)
{
    while (x->p < x->end && pf_reply_is_space(*x->p))
        x->p++;
}

/* Past the end of the tag that x->p is in; the name in front of it. */
static struct pf_span tag_name(struct nested *x)
{
    const char *close = memchr(x->p, x->r->f->key_end[0], (size_t)(x->end - x->p));
    struct pf_span name = { x->p, (size_t)((close ? close : x->end) - x->p) };
    x->p = close ? close + 1 : x->end;
    return name;
}

/* Text up to the tag that closes it; tags in it are a part of it. */
static struct pf_span take_text(struct nested *x)
{
    struct pf_span text = { x->p, 0 };
    for (int n_open = 0; x->p < x->end; x->p++) {
        bool closes = begins(x, x->p, x->r->f->value_end);
        if (closes && n_open == 0)
            break;
        n_open += at_tag(x, x->p) - closes;
    }
    text.n = (size_t)(x->p - text.p);
    return text;
}

static void write_text(struct nested *x, struct pf_span schema)
{
    struct pf_reply *r = x->r;
    struct pf_span text = take_text(x);
    unsigned types = pf_tools_types_of(&r->tools, r->schema, schema);
    size_t space = 0;
    while (space < text.n && pf_reply_is_space(text.p[space]))
        space++;
    if (space == text.n && types & (PF_TYPE_ARRAY | PF_TYPE_OBJECT) && !(types & PF_TYPE_STRING))
        pf_run_puts(&r->out, types & PF_TYPE_ARRAY ? "[]" : "{}");
    else
        pf_call_write_value(r, text.p, text.n, types ? types : PF_TYPE_STRING);
}

static void write_value(struct nested *x, struct pf_span schema);

/* A key is written as JSON; the schema of what it names. No name: a list's element. */
static struct pf_span write_key(struct nested *x, const struct pf_span *name, struct pf_span schema)
{
    struct pf_reply *r = x->r;
    if (!name)
        return pf_tools_property(&r->tools, r->schema, schema, NULL, 0);
    pf_run_puts(&r->out, "\"");
    size_t at = r->out.n;
    pf_json_escape(&r->out, name->p, name->n);
    struct pf_span own = { NULL, 0 };
    if (!r->out.failed)
        own = pf_tools_property(&r->tools, r->schema, schema, r->out.p + at, r->out.n - at);
    pf_run_puts(&r->out, "\": ");
    return own;
}

static void write_members(struct nested *x, struct pf_span schema)
{
    static const char item[] = "item>";
    struct pf_reply *r = x->r;
    size_t n_open = strlen(r->f->key_open);
    unsigned types = pf_tools_types_of(&r->tools, r->schema, schema);
    bool list = begins(x, x->p + n_open, item) && (types & PF_TYPE_ARRAY || !(types & PF_TYPE_OBJECT));
    x->depth++;
    pf_run_puts(&r->out, list ? "[" : "{");
    for (bool first = true; at_tag(x, x->p); first = false) {
        x->p += n_open;
        struct pf_span name = tag_name(x);
        pf_run_puts(&r->out, first ? "" : ", ");
        write_value(x, write_key(x, list ? NULL : &name, schema));
        if (begins(x, x->p, r->f->value_end)) {
            x->p += strlen(r->f->value_end);
            (void)tag_name(x);
        }
        skip_space(x);
    }
    pf_run_puts(&r->out, list ? "]" : "}");
    (void)take_text(x);
    x->depth--;
}

static void write_value(struct nested *x, struct pf_span schema)
{
    const char *begin = x->p;
    skip_space(x);
    if (x->depth < MAX_DEPTH && at_tag(x, x->p)) {
        write_members(x, schema);
    } else {
        x->p = begin;
        write_text(x, schema);
    }
}

void pf_call_write_nested(struct pf_reply *r, struct pf_span own)
{
    struct nested x = { .r = r, .p = r->word.p, .end = r->word.p + r->word.n };
    if (!r->word.failed)
        write_value(&x, own);
}
