/* Calls whose arguments stand between tags, a tag a parameter. See reply_impl.h. */
#include "reply/reply_impl.h"

enum { CLOSER_SPACE = 64 };          /* white space looked through behind what may close a value */

/* ---- Arguments between tags -------------------------------------------------------------------------------------- */

/* Whether what opens a parameter's tag stands here. Where values nest it is a part of what ends one. */
static enum pf_match match_key(struct pf_reply *r, size_t *len)
{
    size_t len_end;
    enum pf_match m = pf_reply_match(r, r->at, r->f->key_open, len);
    if (m != PF_YES || !(r->f->form & PF_FORM_NESTED))
        return m;
    enum pf_match closes = pf_reply_match(r, r->at, r->f->value_end, &len_end);
    return closes == PF_YES ? PF_NO : closes == PF_PARTLY ? PF_PARTLY : PF_YES;
}

bool pf_call_step_tags(struct pf_reply *r)
{
    size_t len, len_key;
    if (!pf_reply_skip_space(r))
        return false;
    enum pf_match key = match_key(r, &len_key), end = pf_call_match_end(r, &len), next = pf_call_match_next(r);
    if (end == PF_YES || next == PF_YES) {       /* the next call may come without the end of this one */
        pf_reply_pass(r, end == PF_YES ? len : 0);
        if (r->has_arguments)
            pf_run_puts(&r->out, "}");
        return pf_call_end(r, PF_AT_BEHIND);
    }
    if (key == PF_PARTLY || end == PF_PARTLY || next == PF_PARTLY)
        return false;
    if (key == PF_YES) {
        pf_reply_pass(r, len_key);
        r->word.n = 0;
        r->state = PF_AT_KEY;
        return true;
    }
    pf_reply_pass(r, 1);                         /* nothing that belongs there */
    return true;
}

/* Attributes behind a quoted key: DeepSeek's say whether the value is a string. */
static unsigned types_by_attributes(const struct pf_reply *r, struct pf_span key, unsigned types)
{
    static const char sign[] = "string=\"";
    if (!(r->f->form & PF_FORM_QUOTED))
        return types;
    for (const char *p = key.p + key.n, *end = r->word.p + r->word.n; p + sizeof sign <= end; p++)
        if (memcmp(p, sign, sizeof sign - 1) == 0)
            return p[sizeof sign - 1] == 't' ? PF_TYPE_STRING : ~(unsigned)PF_TYPE_STRING;
    return types;
}

static void begin_parameter(struct pf_reply *r)
{
    struct pf_span key = pf_call_between_quotes(r);
    while (key.n && pf_reply_is_space(key.p[key.n - 1]))
        key.n--;
    struct pf_run escaped = { 0 };
    pf_json_escape(&escaped, key.p, key.n);
    r->types = pf_tools_types(&r->tools, r->schema, escaped.p ? escaped.p : "", escaped.n);
    r->types = types_by_attributes(r, key, r->types);
    if (r->f->form & PF_FORM_NESTED)
        r->own = pf_tools_property(&r->tools, r->schema, r->schema, escaped.p ? escaped.p : "", escaped.n);
    r->key.n = 0;
    pf_run_puts(&r->key, r->has_arguments ? ", \"" : "{\"");
    pf_run_add(&r->key, escaped.p, escaped.n);
    pf_run_puts(&r->key, "\": ");
    r->key.failed |= escaped.failed;
    pf_run_free(&escaped);
}

bool pf_call_step_key(struct pf_reply *r)
{
    size_t len;
    while (pf_reply_left(r) > 0) {
        enum pf_match m = pf_reply_match(r, r->at, r->f->key_end, &len);
        if (m == PF_PARTLY || r->word.failed)
            return false;
        if (m == PF_YES || r->word.n == PF_LITERAL_KEY) {
            begin_parameter(r);
            pf_reply_pass(r, m == PF_YES ? len : 0);
            r->state = PF_AT_VALUE_OPEN;
            return true;
        }
        pf_run_add(&r->word, pf_reply_here(r), 1);
        pf_reply_pass(r, 1);
    }
    return false;
}

static void write_key(struct pf_reply *r)
{
    pf_run_add(&r->out, r->key.p, r->key.n);
    r->out.failed |= r->key.failed;
    r->has_arguments = true;
}

static void begin_text_value(struct pf_reply *r)
{
    write_key(r);
    pf_run_puts(&r->out, "\"");
    r->state = PF_AT_TEXT_VALUE;
}

bool pf_call_step_value_open(struct pf_reply *r)
{
    size_t len = 0;
    enum pf_match nested = PF_NO;
    if (r->f->form & PF_FORM_NESTED) {
        nested = match_key(r, &len);
        len = 0;
        if (nested == PF_PARTLY)
            return false;
    } else if (r->f->value_open) {
        if (!pf_reply_skip_space(r))
            return false;
        enum pf_match m = pf_reply_match(r, r->at, r->f->value_open, &len);
        if (m == PF_PARTLY)
            return false;
        if (m == PF_NO) {                        /* a key without a value */
            r->state = PF_AT_TAGS;
            return true;
        }
    } else if (r->f->form & PF_FORM_NEWLINES) {
        if (pf_reply_left(r) == 0)
            return false;
        len = pf_reply_here(r)[0] == '\n';
    }
    pf_reply_pass(r, len);
    r->word.n = 0;
    r->n_open = 0;
    if (r->types == PF_TYPE_STRING && nested == PF_NO)
        begin_text_value(r);
    else
        r->state = PF_AT_TYPED_VALUE;
    return true;
}

/* Where newlines frame a value, what looks like its end is one only if the next tag follows: a value may hold it. */
static enum pf_match match_follower(struct pf_reply *r, size_t at)
{
    size_t was = r->at, space = 0, len;
    while (at + space < r->in.n && space < CLOSER_SPACE && pf_reply_is_space(r->in.p[at + space]))
        space++;
    r->at = at + space;
    enum pf_match key = pf_reply_match(r, r->at, r->f->key_open, &len), end = pf_call_match_end(r, &len),
                  next = pf_call_match_next(r), m = key > end ? key : end;
    m = m > next ? m : next;
    if (r->at == r->in.n)
        m = r->ended ? PF_YES : PF_PARTLY;
    r->at = was;
    return m;
}

/* Whether the value ends here; *len: how long its end is. */
static enum pf_match match_closer(struct pf_reply *r, size_t *len)
{
    bool framed = r->f->form & PF_FORM_NEWLINES;
    size_t line = framed && pf_reply_here(r)[0] == '\n';
    if (line && pf_reply_left(r) == 1) {
        *len = 1;
        return PF_PARTLY;
    }
    enum pf_match m = pf_reply_match(r, r->at + line, r->f->value_end, len);
    *len += line;
    return m == PF_YES && framed ? match_follower(r, r->at + *len) : m;
}

static bool may_close(const struct pf_reply *r, char c)
{
    return c == r->f->value_end[0] || (c == '\n' && r->f->form & PF_FORM_NEWLINES);
}

void pf_call_write_value(struct pf_reply *r, const char *s, size_t n_all, unsigned types)
{
    struct pf_run json = { 0 };
    struct pf_literal l = { 0 };
    size_t begin = 0, n = n_all, used = 0;
    while (begin < n && pf_reply_is_space(s[begin]))
        begin++;
    while (n > begin && pf_reply_is_space(s[n - 1]))
        n--;
    pf_literal_init(&l, &json, true);
    bool whole = n > begin && pf_literal_feed(&l, s + begin, n - begin, &used) != PF_LITERAL_BAD &&
                 pf_literal_finish(&l) && used == n - begin && !json.failed;
    if (whole && pf_type_of(json.p) & types) {
        pf_run_add(&r->out, json.p, json.n);
    } else {
        pf_run_puts(&r->out, "\"");
        pf_json_escape(&r->out, s, n_all);
        pf_run_puts(&r->out, "\"");
    }
    r->out.failed |= json.failed | l.key.failed;
    pf_literal_free(&l);
    pf_run_free(&json);
}

/* A value that may be something else than a string. */
static void write_typed(struct pf_reply *r)
{
    write_key(r);
    if (r->f->form & PF_FORM_NESTED)
        pf_call_write_nested(r, r->own);
    else
        pf_call_write_value(r, r->word.p, r->word.n, r->types);
    r->out.failed |= r->word.failed;
}

/* The next n bytes are the value's. */
static void take_value(struct pf_reply *r, size_t n)
{
    if (r->state == PF_AT_TEXT_VALUE)
        pf_json_escape(&r->out, pf_reply_here(r), n);
    else
        pf_run_add(&r->word, pf_reply_here(r), n);
    pf_reply_pass(r, n);
}

/* A value up to its end: a text is told as it comes, another one when it is whole. */
bool pf_call_step_value(struct pf_reply *r)
{
    bool text = r->state == PF_AT_TEXT_VALUE;
    size_t n = 0, len;
    while (n < pf_reply_left(r) && !may_close(r, pf_reply_here(r)[n]))
        n++;
    take_value(r, n);
    if (text) {
        pf_call_tell(r);
    } else if (r->word.n > PF_REPLY_KEPT) {         /* nothing but a string is so long */
        begin_text_value(r);
        pf_json_escape(&r->out, r->word.p, r->word.n);
        return true;
    }
    enum pf_match m = pf_reply_left(r) == 0 ? PF_PARTLY : match_closer(r, &len);
    if (m == PF_PARTLY)
        return false;
    bool inner = !text && m == PF_YES && r->n_open > 0;
    if (m == PF_NO || inner) {
        r->n_open += !text && m == PF_NO && match_key(r, &len) == PF_YES && r->f->form & PF_FORM_NESTED;
        r->n_open -= inner;
        take_value(r, 1);
        return true;
    }
    if (text) {
        pf_run_puts(&r->out, "\"");
    } else {
        write_typed(r);
        pf_call_tell(r);
    }
    r->state = PF_AT_TAGS;
    pf_reply_pass(r, len);
    return true;
}
