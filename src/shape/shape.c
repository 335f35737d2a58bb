/* See shape.h. */
#include "shape/shape.h"

#include <stdio.h>
#include <string.h>

#include "base/pf_status.h"
#include "grammar/tokens.h"
#include "languages/languages.h"
#include "shape/shape_impl.h"

enum { LONGEST_MARK = 64 };

/* ---- Texts ------------------------------------------------------------------------------------------------------- */

size_t pf_shape_mark(const pf_vocab *v, const char *text, size_t n)
{
    for (size_t len = n < LONGEST_MARK ? n : LONGEST_MARK; len > 1; len--) {
        int32_t id = pf_vocab_find(v, text, len);
        if (id >= 0 && !pf_vocab_is_text(v, id) && !pf_vocab_is_end(v, id))
            return len;
    }
    return 0;
}

static int32_t byte(struct pf_shape *s, int32_t from, uint8_t lo, uint8_t hi)
{
    int32_t to = pf_rules_state(s->r);
    pf_rules_bytes(s->r, from, lo, hi, to);
    return to;
}

/* A mark of n bytes, as the one token that it is. */
static int32_t mark(struct pf_shape *s, int32_t from, const char *text, size_t n)
{
    int32_t at = byte(s, from, PF_TOKEN_MARK, PF_TOKEN_MARK), to = pf_rules_state(s->r);
    pf_rules_text(s->r, at, text, n, to);
    return to;
}

int32_t pf_shape_text(struct pf_shape *s, int32_t from, const char *text, size_t n)
{
    for (size_t i = 0; i < n && s->r->status == PF_OK;) {
        size_t len = pf_shape_mark(s->v, text + i, n - i);
        from = len ? mark(s, from, text + i, len) : byte(s, from, (uint8_t)text[i], (uint8_t)text[i]);
        i += len ? len : 1;
    }
    return from;
}

/* How much of text is matched when byte c follows its first k bytes: the longest beginning that is an end of those. */
static size_t fall_back(const char *text, size_t n, size_t k, char c)
{
    for (size_t len = k + 1 < n ? k + 1 : n; len > 0; len--)
        if (text[len - 1] == c && memcmp(text, text + k + 1 - len, len - 1) == 0)
            return len;
    return 0;
}

/* The edges of a state at which k bytes of n are matched. */
static void search_edges(struct pf_shape *s, const char *text, size_t n, const int32_t *at, size_t k)
{
    for (unsigned b = 0, lo = 0; b <= 0xF8; b++) {
        size_t to = b < 0xF8 ? fall_back(text, n, k, (char)b) : 1;
        if (to == 0)
            continue;
        if (lo < b)
            pf_rules_bytes(s->r, at[k], (uint8_t)lo, (uint8_t)(b - 1), at[0]);
        if (b < 0xF8)
            pf_rules_bytes(s->r, at[k], (uint8_t)b, (uint8_t)b, at[to]);
        lo = b + 1;
    }
}

int32_t pf_shape_until(struct pf_shape *s, int32_t from, const char *close)
{
    int32_t at[LONGEST_MARK + 1];
    size_t n = 0, len = strlen(close);
    while (n < len && n < LONGEST_MARK && pf_shape_mark(s->v, close + n, len - n) == 0)
        n++;
    for (size_t k = 0; k <= n; k++)
        at[k] = pf_rules_state(s->r);
    pf_rules_empty(s->r, from, at[0]);
    for (size_t k = 0; k < n + (n < len); k++)           /* before a mark, its beginning may come again and again */
        search_edges(s, close, n, at, k);
    return pf_shape_text(s, at[n], close + n, len - n);
}

/* Up to `most` bytes of lo to hi, or of a second range. */
static int32_t few(struct pf_shape *s, int32_t from, const char *ranges, int least, int most)
{
    int32_t end = pf_rules_state(s->r);
    for (int i = 0; i < most; i++) {
        int32_t next = pf_rules_state(s->r);
        if (i >= least)
            pf_rules_empty(s->r, from, end);
        for (const char *c = ranges; *c; c += 2)
            pf_rules_bytes(s->r, from, (uint8_t)c[0], (uint8_t)c[1], next);
        from = next;
    }
    pf_rules_empty(s->r, from, end);
    return end;
}

int32_t pf_shape_space(struct pf_shape *s, int32_t from)
{
    return few(s, from, "  \n\n", 0, 4);
}

int32_t pf_shape_newline(struct pf_shape *s, int32_t from)
{
    return few(s, from, "\n\n", 0, 1);
}

int32_t pf_shape_loose(struct pf_shape *s, int32_t from, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const char *line = memchr(text + i, '\n', n - i);
        size_t len = line ? (size_t)(line - text) - i : n - i;
        from = pf_shape_text(s, from, text + i, len);
        from = line ? pf_shape_space(s, from) : from;
        i += len;
    }
    return from;
}

/* ---- Arguments --------------------------------------------------------------------------------------------------- */

static int32_t put(struct pf_shape *s, int32_t from, int32_t rule)
{
    int32_t to = pf_rules_state(s->r);
    pf_rules_call(s->r, from, rule, to);
    return to;
}

/* A value that the schema allows. */
static pf_status compile(struct pf_shape *s, const char *text, size_t n, const struct pf_notation *w, int32_t *from)
{
    int32_t rule;
    PF_TRY(w ? pf_schema_notation_rules(s->r, text, n, w, &rule) : pf_schema_rules(s->r, text, n, &rule));
    *from = put(s, *from, rule);
    return s->r->status;
}

/* The arguments' schema, which need not say that they are an object. */
static pf_status compile_object(struct pf_shape *s, struct pf_span schema, const struct pf_notation *w, int32_t *from)
{
    static const char object[] = "{\"type\": \"object\", ";
    struct pf_run text = { 0 };
    if (!schema.p || schema.p[0] != '{')
        PF_FAIL(PF_EUNSUPPORTED, "a tool has no schema of its arguments");
    if (pf_tools_get(&s->tools, schema, "type").p)
        return compile(s, schema.p, schema.n, w, from);
    bool empty = schema.p[1] == '}';
    pf_run_add(&text, object, sizeof object - 1 - 2 * empty);
    pf_run_add(&text, schema.p + 1, schema.n - 1);
    pf_status st = text.failed ? pf_fail(PF_ENOMEM, "no memory for a tool's schema")
                               : compile(s, text.p, text.n, w, from);
    pf_run_free(&text);
    return st;
}

/* How the family writes arguments; NULL: as JSON, or between tags. */
static const struct pf_notation *own_notation(const struct pf_shape *s)
{
    static const char quote[] = "\xFF<|\"|>";
    static const struct pf_notation
        python = { .quote = "\"", .escapes = true, .as_call = true, .null = "None", .no = "False", .yes = "True" },
        gemma = { .quote = quote, .bare_names = true, .null = "null", .no = "false", .yes = "true" },
        spelled = { .quote = quote + 1, .bare_names = true, .null = "null", .no = "false", .yes = "true" };
    switch (s->family->arguments) {
    case PF_ARGUMENTS_PYTHON: return &python;
    case PF_ARGUMENTS_GEMMA:  return pf_shape_mark(s->v, quote + 1, sizeof quote - 2) ? &gemma : &spelled;
    default:                  return NULL;
    }
}

/* After compiling a schema came to st: where it was one that cannot be kept to, `instead`. */
static pf_status or_else(struct pf_shape *s, pf_status st, const char *instead, const struct pf_notation *w,
                         int32_t *from)
{
    bool cannot = (st == PF_EUNSUPPORTED || st == PF_EINVAL) && s->r->status == PF_OK;
    return cannot ? compile(s, instead, strlen(instead), w, from) : st;
}

pf_status pf_shape_object(struct pf_shape *s, struct pf_span schema, bool own, int32_t *from)
{
    const struct pf_notation *w = own ? own_notation(s) : NULL;
    return or_else(s, compile_object(s, schema, w, from), "{\"type\": \"object\"}", w, from);
}

pf_status pf_shape_value(struct pf_shape *s, struct pf_span schema, int32_t *from)
{
    return or_else(s, compile(s, schema.p, schema.n, NULL, from), "{}", NULL, from);
}

pf_status pf_shape_property(struct pf_shape *s, struct pf_span schema, struct pf_span name, int32_t *from)
{
    int32_t rule;
    pf_status st = pf_schema_property_rules(s->r, schema.p, schema.n, name.p, name.n, &rule);
    if (st == PF_OK)
        *from = put(s, *from, rule);
    return or_else(s, st, "{}", NULL, from);
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

static const char *or_nothing(const char *text)
{
    return text ? text : "";
}

/* A part of a call's text: with holes, of which the name's has been left out. Around tags, behind the name, white space
 * is free. */
static pf_status part(struct pf_shape *s, const char *text, size_t n, struct pf_span schema, int32_t *at)
{
    bool loose = s->form->param && schema.p;
    for (size_t i = 0; i < n; i++) {
        if (text[i] == PF_HOLE_ARGUMENTS && s->form->param) {
            PF_TRY(pf_shape_params(s, schema, at));
        } else if (text[i] == PF_HOLE_ARGUMENTS) {
            PF_TRY(pf_shape_object(s, schema, false, at));
        } else if (text[i] == PF_HOLE_OWN) {
            PF_TRY(pf_shape_object(s, schema, true, at));
        } else if (text[i] == PF_HOLE_COUNT) {
            *at = few(s, *at, "09", 1, 3);
        } else if (text[i] == PF_HOLE_ID) {
            *at = few(s, *at, "az09", 10, 10);
        } else {
            size_t len = strcspn(text + i, "\1\2\3\4\5\6");
            len = len < n - i ? len : n - i;
            *at = loose ? pf_shape_loose(s, *at, text + i, len) : pf_shape_text(s, *at, text + i, len);
            i += len - 1;
        }
    }
    return s->r->status;
}

static bool is_named(struct pf_span name, const char *wanted)
{
    return !wanted || (name.n == strlen(wanted) + 2 && memcmp(name.p + 1, wanted, name.n - 2) == 0);
}

/* One call of any tool that may be called. */
static pf_status call(struct pf_shape *s, int32_t from, int32_t to)
{
    const char *text = s->form->call, *hole = strchr(text, PF_HOLE_NAME);
    struct pf_span tool = { NULL, 0 }, name, schema;
    bool any = false;
    PF_TRY(part(s, text, (size_t)(hole - text), tool, &from));
    while ((tool = pf_tools_next_tool(&s->tools, tool, &name, &schema)).p) {
        if (!name.p || name.p[0] != '"' || !is_named(name, s->o->tool))
            continue;
        int32_t at = pf_shape_text(s, from, name.p + 1, name.n - 2);
        PF_TRY(part(s, hole + 1, strlen(hole + 1), schema, &at));
        pf_rules_empty(s->r, at, to);
        any = true;
    }
    if (!any)
        PF_FAIL(PF_EINVAL, s->o->tool ? "there is no tool \"%.80s\"" : "there are no tools%.0s",
                or_nothing(s->o->tool));
    return s->r->status;
}

/* What a call's text has behind the name and what ends the name. */
static const char *behind_name(const struct pf_shape *s)
{
    const char *tail = strchr(s->form->call, PF_HOLE_NAME) + 1, *end;
    for (size_t i = 0; i < sizeof s->family->fields / sizeof *s->family->fields; i++) {
        const struct pf_field_end *e = &s->family->fields[i];
        if (e->in == PF_FIELD_NAME && e->text && !e->stays && (end = strstr(tail, e->text)))
            return end + strlen(e->text);
    }
    return tail;
}

/* The rest of a call from its arguments on. */
static pf_status arguments(struct pf_shape *s, int32_t from, int32_t to)
{
    bool offered = false;
    struct pf_span schema = { NULL, 0 };
    if (s->o->tool)
        schema = pf_tools_find(&s->tools, s->o->tool, strlen(s->o->tool), &offered);
    if (!offered)
        PF_FAIL(PF_EINVAL, "there is no tool \"%.80s\"", or_nothing(s->o->tool));
    const struct pf_notation *own = own_notation(s);
    if (own) {
        PF_TRY(compile_object(s, schema, own, &from));
        pf_rules_empty(s->r, from, to);
        return s->r->status;
    }
    if (!s->form->param || !pf_shape_params_suit(s, schema))
        PF_FAIL(PF_EUNSUPPORTED, "arguments of %.80s are not held in this family's form", s->o->tool);
    const char *tail = behind_name(s);
    PF_TRY(part(s, tail, strlen(tail), schema, &from));
    pf_rules_empty(s->r, from, to);
    return s->r->status;
}

static pf_status calls(struct pf_shape *s, int32_t from, int32_t to)
{
    const struct pf_form *f = s->form;
    int32_t one = pf_rules_rule(s->r), behind = pf_rules_state(s->r);
    PF_TRY(s->r->status);
    PF_TRY(call(s, s->r->rules[one].start, s->r->rules[one].final));
    from = pf_shape_text(s, from, or_nothing(f->begin), strlen(or_nothing(f->begin)));
    pf_rules_call(s->r, from, one, behind);
    if (f->between && !(s->o->flags & PF_SHAPE_ONE_CALL))
        pf_rules_call(s->r, pf_shape_text(s, behind, f->between, strlen(f->between)), one, behind);
    pf_rules_empty(s->r, pf_shape_text(s, behind, or_nothing(f->end), strlen(or_nothing(f->end))), to);
    return s->r->status;
}

/* ---- Reasoning --------------------------------------------------------------------------------------------------- */

/* Reasoning of harmony's is a message of its own. */
static void harmony_reasoning(struct pf_shape *s, int32_t from, int32_t to)
{
    static const char open[] = "<|channel|>analysis<|message|>";
    bool is_open = s->o->flags & PF_SHAPE_IN_REASONING;
    int32_t at = is_open ? from : pf_shape_text(s, from, open, sizeof open - 1);
    pf_rules_empty(s->r, pf_shape_until(s, at, "<|end|><|start|>assistant"), to);
}

/* From where reasoning begins, or from within it, to behind it. A mark that the vocabulary spells is one that the model
 * was hardly taught: only what is open is closed by it. */
static void reasoning(struct pf_shape *s, int32_t from, int32_t to)
{
    bool open = s->o->flags & PF_SHAPE_IN_REASONING;
    for (const struct pf_mark *m = s->family->marks; m->text && m[1].text; m++) {
        size_t n = strlen(m->text);
        if (m->kind != PF_MARK_THINK || m[1].kind != PF_MARK_ANSWER)
            continue;
        bool token = pf_shape_mark(s->v, m->text, n) > 0;
        if (!open && !token)
            continue;
        int32_t at = open ? from : pf_shape_text(s, from, m->text, n);
        pf_rules_empty(s->r, pf_shape_space(s, pf_shape_until(s, at, m[1].text)), to);
        if (open && token)
            return;                      /* the family's first pair that is of tokens is the one that is open */
    }
}

/* ---- The whole --------------------------------------------------------------------------------------------------- */

static pf_status content(struct pf_shape *s, int32_t from, int32_t to)
{
    static const char header[] = "<|channel|>final", message[] = "<|message|>", constrain[] = " <|constrain|>json";
    if (s->family->form & PF_FORM_HARMONY) {
        int32_t plain_header = pf_shape_text(s, from, header, sizeof header - 1);
        int32_t with_type = pf_shape_text(s, plain_header, constrain, sizeof constrain - 1);
        pf_rules_empty(s->r, plain_header, with_type);
        from = pf_shape_text(s, with_type, message, sizeof message - 1);
    }
    PF_TRY(compile(s, s->o->schema, s->o->schema_len, NULL, &from));
    pf_rules_empty(s->r, from, to);
    return s->r->status;
}

static pf_status reply(struct pf_shape *s, int32_t from, int32_t to)
{
    int32_t behind = pf_rules_state(s->r);
    unsigned flags = s->o->flags;
    if (flags & PF_SHAPE_ARGUMENTS)
        return arguments(s, from, to);
    bool reasons = flags & (PF_SHAPE_IN_REASONING | PF_SHAPE_MAY_REASON);
    if (reasons && s->family->form & PF_FORM_HARMONY)
        harmony_reasoning(s, from, behind);
    else if (reasons)
        reasoning(s, from, behind);
    if (!(flags & PF_SHAPE_IN_REASONING))
        pf_rules_empty(s->r, from, behind);
    if (s->o->schema)
        PF_TRY(content(s, behind, to));
    return s->o->tools_json ? calls(s, behind, to) : s->r->status;
}

pf_status pf_shape_rules(struct pf_rules *r, const pf_vocab *v, const struct pf_reply_shape *o, int32_t *root)
{
    struct pf_shape s = { .r = r, .v = v, .o = o, .family = pf_family_find(o->family ? o->family : "generic") };
    if (!s.family)
        PF_FAIL(PF_EINVAL, "there is no family of replies \"%.80s\"", o->family);
    if (!o->schema && !o->tools_json)
        PF_FAIL(PF_EINVAL, "neither a schema nor tools say what a reply is held to");
    s.form = pf_form_of(s.family, v);
    pf_status st = o->tools_json ? pf_tools_read(&s.tools, o->tools_json, o->tools_len) : PF_OK;
    *root = pf_rules_rule(r);
    if (st == PF_OK)
        st = r->status;
    if (st == PF_OK)
        st = reply(&s, r->rules[*root].start, r->rules[*root].final);
    pf_tools_free(&s.tools);
    return st;
}
