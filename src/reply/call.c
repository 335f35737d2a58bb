/* Calls: what follows a marker of calls, in the forms that families.h names. See reply_impl.h. */
#include "reply/reply_impl.h"

enum {
    TRIED_BYTES = 4 << 20,           /* looked at for calls that were none, in a reply */
    KEPT_BYTES = 1 << 20,            /* kept while a call's name is not certain, or a value's type */
    FIELD_BYTES = 2 * PF_REPLY_MAX_NAME,
    CLOSER_SPACE = 64                /* white space looked through behind what may close a value */
};

static size_t left(const struct pf_reply *r)
{
    return r->in.n - r->at;
}

static const char *here(const struct pf_reply *r)
{
    return r->in.p + r->at;
}

/* Leaves n bytes behind; what belongs to a committed call is not wanted any more. */
static void pass(struct pf_reply *r, size_t n)
{
    r->at += n;
    if (r->committed || r->state == PF_AT_BEHIND)
        r->from = r->at;
}

static bool skip_space(struct pf_reply *r)
{
    size_t n = 0;
    while (n < left(r) && pf_reply_is_space(here(r)[n]))
        n++;
    pass(r, n);
    return left(r) > 0;
}

/* Whether one of n texts stands here, *len bytes long: the first that does, or may yet. */
static enum pf_match match_any(const struct pf_reply *r, const char *const *texts, int n, size_t *len)
{
    enum pf_match m = PF_NO;
    for (int i = 0; i < n && texts[i] && m == PF_NO; i++)
        m = pf_reply_match(r, r->at, texts[i], len);
    return m;
}

static enum pf_match match_end(const struct pf_reply *r, size_t *len)
{
    return match_any(r, r->f->ends, sizeof r->f->ends / sizeof *r->f->ends, len);
}

/* ---- Beginning and ending ---------------------------------------------------------------------------------------- */

static void forget_call(struct pf_reply *r)
{
    r->committed = r->has_arguments = r->has_name = false;
    r->n_name = r->n_id = r->inside = 0;
    r->out.n = r->word.n = 0;
}

void pf_call_try(struct pf_reply *r, size_t n, enum pf_reply_state state, bool only_offered)
{
    forget_call(r);
    r->marker = n;
    r->at = r->from + n;
    r->state = state;
    r->field = r->f->first;
    r->only_offered = only_offered;
    r->in_list = r->bare = false;
    r->place = PF_IN_KEYS;
}

/* It was no call: the marker is text, and what follows is looked at again. */
static bool give_up(struct pf_reply *r)
{
    r->tried += r->at - r->from;
    r->at = r->from;
    r->state = PF_AT_TEXT;
    forget_call(r);
    return true;
}

bool pf_call_take(const char *s, size_t n, char *to, size_t *n_to)
{
    while (n && pf_reply_is_space(s[0]))
        s++, n--;
    while (n && pf_reply_is_space(s[n - 1]))
        n--;
    if (n == 0 || n > PF_REPLY_MAX_NAME)
        return false;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)s[i] <= ' ' || strchr("<>{}[]()\"'\\,;=", s[i]))
            return false;
    memcpy(to, s, n);
    *n_to = n;
    return true;
}

bool pf_call_commit(struct pf_reply *r)
{
    bool offered;
    r->schema = pf_tools_find(&r->tools, r->name, r->n_name, &offered);
    if (r->only_offered && !offered)
        return false;
    r->committed = true;
    r->from = r->at;
    r->channel = PF_REPLY_CONTENT;
    for (int i = 0; i < 2; i++) {
        r->channels[i].space.n = 0;
        r->channels[i].gap = true;
    }
    pf_reply_tell(r, PF_REPLY_CALL, r->name, r->n_name);
    return true;
}

static void tell_arguments(struct pf_reply *r)
{
    if (r->committed && r->out.n && !r->out.failed) {
        pf_reply_tell(r, PF_REPLY_ARGUMENTS, r->out.p, r->out.n);
        r->out.n = 0;
    }
}

static bool end_call(struct pf_reply *r, enum pf_reply_state next)
{
    if (!r->has_arguments)
        pf_run_puts(&r->out, "{}");
    tell_arguments(r);
    pf_reply_tell(r, PF_REPLY_CALL_END, NULL, 0);
    r->n_calls++;
    forget_call(r);
    r->state = next;
    r->from = r->at;
    r->marker = 0;
    if (r->f->form & PF_FORM_HARMONY)
        r->channel = PF_NOWHERE;
    return true;
}

/* ---- In front of a call ------------------------------------------------------------------------------------------ */

static bool step_item(struct pf_reply *r)
{
    unsigned form = r->f->form;
    size_t len;
    if (!skip_space(r))
        return false;
    char c = here(r)[0];
    if (c == '{' && form & PF_FORM_OBJECTS) {
        pass(r, 1);
        r->place = PF_IN_KEYS;
        r->state = PF_AT_OBJECT;
        return true;
    }
    if (c == '[' && form & (PF_FORM_OBJECTS | PF_FORM_PYTHON) && !r->in_list) {
        pass(r, 1);
        return r->in_list = true;
    }
    bool naked = r->in_list ? (form & PF_FORM_PYTHON) != 0 : (form & PF_FORM_NAKED) && !r->bare;
    enum pf_match m = r->f->head && !r->in_list ? pf_reply_match(r, r->at, r->f->head, &len) : naked ? PF_YES : PF_NO;
    if (m == PF_PARTLY)
        return false;
    if (m == PF_NO)
        return give_up(r);
    pass(r, r->f->head && !r->in_list ? len : 0);
    r->field = r->f->first;
    r->word.n = 0;
    r->state = PF_AT_FIELD;
    return true;
}

/* The id "functions.NAME:0": the name stands between the first dot and the last colon. */
static void split_id(struct pf_reply *r)
{
    size_t begin = 0, end = r->n_name;
    memcpy(r->id, r->name, r->n_name);
    r->n_id = r->n_name;
    const char *dot = memchr(r->name, '.', r->n_name);
    for (size_t i = r->n_name; i-- > 0 && end == r->n_name;)
        end = r->name[i] == ':' ? i : end;
    if (dot && (size_t)(dot - r->name) < end)
        begin = (size_t)(dot - r->name) + 1;
    memmove(r->name, r->name + begin, end - begin);
    r->n_name = end - begin;
}

/* With quotes the field is what stands between the first two. */
static struct pf_span between_quotes(const struct pf_reply *r)
{
    struct pf_span s = { r->word.p, r->word.n };
    const char *open = r->word.n ? memchr(r->word.p, '"', r->word.n) : NULL;
    if (!(r->f->form & PF_FORM_QUOTED) || !open)
        return s;
    s.p = open + 1;
    s.n = r->word.n - (size_t)(s.p - r->word.p);
    const char *close = memchr(s.p, '"', s.n);
    s.n = close ? (size_t)(close - s.p) : s.n;
    return s;
}

static bool take_field(struct pf_reply *r)
{
    struct pf_span s = between_quotes(r);
    if (r->field == PF_FIELD_TYPE)
        return true;
    if (r->field == PF_FIELD_ID)
        return pf_call_take(s.p, s.n, r->id, &r->n_id);
    if (!pf_call_take(s.p, s.n, r->name, &r->n_name))
        return false;
    if (r->f->form & PF_FORM_ID_NAMES)
        split_id(r);
    return r->n_name > 0;
}

static bool end_field(struct pf_reply *r, const struct pf_field_end *e, size_t len)
{
    if (!take_field(r))
        return give_up(r);
    r->word.n = 0;
    pass(r, e->stays ? 0 : len);
    if (e->next != PF_FIELD_ARGUMENTS) {
        r->field = e->next;
        return true;
    }
    if (!pf_call_commit(r))
        return give_up(r);
    pf_call_arguments(r, r->f->arguments);
    return true;
}

static bool step_field(struct pf_reply *r)
{
    enum { N = sizeof r->f->fields / sizeof *r->f->fields };
    while (left(r) > 0) {
        bool perhaps = false;
        for (int i = 0; i < N && r->f->fields[i].text; i++) {
            const struct pf_field_end *e = &r->f->fields[i];
            size_t len;
            enum pf_match m = e->in == r->field ? pf_reply_match(r, r->at, e->text, &len) : PF_NO;
            if (m == PF_YES)
                return end_field(r, e, len);
            perhaps |= m == PF_PARTLY;
        }
        if (perhaps)
            return false;
        if (r->word.n == FIELD_BYTES)
            return give_up(r);
        pf_run_add(&r->word, here(r), 1);
        pass(r, 1);
        if (r->word.failed)
            return false;
    }
    return false;
}

/* ---- Arguments as one value -------------------------------------------------------------------------------------- */

void pf_call_arguments(struct pf_reply *r, enum pf_arguments kind)
{
    r->inside = 0;
    if (kind == PF_ARGUMENTS_TAGS) {
        r->state = PF_AT_TAGS;
    } else if (kind == PF_ARGUMENTS_PYTHON) {
        pf_literal_init_call(&r->literal, &r->out);
        r->has_arguments = true;
        r->state = PF_AT_LITERAL;
    } else {
        r->state = PF_AT_OPENING;
    }
}

/* What follows makes no sense: the arguments end here. */
static bool fault(struct pf_reply *r)
{
    if (r->has_arguments)
        pf_literal_close(&r->literal);
    return end_call(r, r->f->ends[0] ? PF_AT_FAULT : PF_AT_BEHIND);
}

static bool step_opening(struct pf_reply *r)
{
    size_t before = r->at, len;
    bool more = skip_space(r);
    r->inside += r->at - before;
    if (!more)
        return false;
    enum pf_match m = match_any(r, r->f->fences, 2, &len);
    if (m == PF_PARTLY)
        return false;
    if (m == PF_YES) {
        pass(r, len);
        r->inside = 0;
        return true;
    }
    if (here(r)[0] != '{')
        return fault(r);
    pf_literal_init(&r->literal, &r->out, false);
    r->has_arguments = true;
    r->state = PF_AT_LITERAL;
    return true;
}

static enum pf_literal_result read_literal(struct pf_reply *r)
{
    size_t used = 0;
    enum pf_literal_result result = pf_literal_feed(&r->literal, here(r), left(r), &used);
    pass(r, used);
    r->inside += used;
    tell_arguments(r);
    return result;
}

static bool step_literal(struct pf_reply *r)
{
    switch (read_literal(r)) {
    case PF_LITERAL_MORE: return false;
    case PF_LITERAL_BAD:  return fault(r);
    default:              return end_call(r, PF_AT_BEHIND);
    }
}

/* ---- Calls as objects -------------------------------------------------------------------------------------------- */

static bool word_is(const struct pf_reply *r, const char *text)
{
    size_t n = strlen(text);
    return r->word.n == n + 2 && memcmp(r->word.p + 1, text, n) == 0;
}

bool pf_call_wants_arguments(const struct pf_reply *r)
{
    return word_is(r, "arguments") || word_is(r, "parameters");
}

static void begin_literal(struct pf_reply *r, enum pf_reply_place place, struct pf_run *to)
{
    to->n = 0;
    pf_literal_init(&r->literal, to, false);
    r->place = place;
}

/* The value of which key it is decides where it goes; r->word holds the key, in quotes. */
static bool begin_member(struct pf_reply *r)
{
    char c = here(r)[0];
    bool arguments = pf_call_wants_arguments(r);
    if (arguments && c == '{' && !r->has_arguments) {
        if (r->has_name && !pf_call_commit(r))
            return give_up(r);
        begin_literal(r, PF_IN_ARGUMENTS, &r->out);
        r->has_arguments = true;
    } else if (arguments && c == '"' && !r->has_arguments) {
        begin_literal(r, PF_IN_STRING, &r->word);
    } else if (word_is(r, "name") && c == '"' && !r->has_name) {
        begin_literal(r, PF_IN_NAME, &r->word);
    } else {
        begin_literal(r, word_is(r, "id") && c == '"' ? PF_IN_ID : PF_IN_OTHER, &r->word);
    }
    return true;
}

/* Arguments that came as a string which holds an object; {} if it holds something else. */
static void unwrap_arguments(struct pf_reply *r)
{
    struct pf_run text = { 0 };
    size_t used = 0;
    pf_json_unescape(&text, r->word.p, r->word.n);
    pf_literal_init(&r->literal, &r->out, false);
    r->out.n = 0;
    if (text.n && pf_literal_feed(&r->literal, text.p, text.n, &used) != PF_LITERAL_DONE)
        pf_literal_close(&r->literal);
    r->has_arguments = r->out.n > 0 && r->out.p[0] == '{';
    if (!r->has_arguments)
        r->out.n = 0;
    r->out.failed |= text.failed;
    pf_run_free(&text);
}

/* A member's value, or a key, is whole. */
static bool end_member(struct pf_reply *r)
{
    enum pf_reply_place was = r->place;
    r->place = was == PF_IN_KEY ? PF_IN_COLON : PF_IN_NEXT;
    if (r->word.failed || r->out.failed)
        return false;
    if (was == PF_IN_NAME) {
        r->has_name = pf_call_take(r->word.p + 1, r->word.n - 2, r->name, &r->n_name);
        if (!r->has_name)
            return r->committed ? fault(r) : give_up(r);
        if (r->has_arguments && !pf_call_commit(r))
            return give_up(r);
    } else if (was == PF_IN_ID) {
        pf_call_take(r->word.p + 1, r->word.n - 2, r->id, &r->n_id);
    } else if (was == PF_IN_STRING) {
        unwrap_arguments(r);
        if (r->has_arguments && r->has_name && !pf_call_commit(r))
            return give_up(r);
    }
    tell_arguments(r);
    return true;
}

static bool step_member(struct pf_reply *r)
{
    enum pf_literal_result result = read_literal(r);
    if (r->place == PF_IN_OTHER)
        r->word.n = 0;
    if (result == PF_LITERAL_MORE)
        return false;
    if (result == PF_LITERAL_BAD)
        return r->committed ? fault(r) : give_up(r);
    return end_member(r);
}

/* Behind the closing brace. Without a marker in front only what has a tool's name and arguments is a call. */
static bool end_object(struct pf_reply *r)
{
    if (!r->committed && (!r->has_name || (r->bare && !r->has_arguments) || !pf_call_commit(r)))
        return give_up(r);
    return end_call(r, PF_AT_BEHIND);
}

static bool step_object(struct pf_reply *r)
{
    if (!r->committed && r->at - r->from > KEPT_BYTES)
        return give_up(r);
    if (r->place != PF_IN_KEYS && r->place != PF_IN_COLON && r->place != PF_IN_VALUE && r->place != PF_IN_NEXT)
        return step_member(r);
    size_t before = r->at;
    bool more = skip_space(r);
    r->inside += r->at - before;
    if (!more)
        return false;
    char c = here(r)[0];
    if (r->place == PF_IN_VALUE)
        return begin_member(r);
    if (r->place == PF_IN_KEYS && (c == '"' || c == '\'')) {
        begin_literal(r, PF_IN_KEY, &r->word);
        return true;
    }
    bool closes = c == '}' && r->place != PF_IN_COLON;
    if (!closes && c != (r->place == PF_IN_COLON ? ':' : r->place == PF_IN_NEXT ? ',' : 0))
        return r->committed ? fault(r) : give_up(r);
    pass(r, 1);
    if (closes)
        return end_object(r);
    r->place = r->place == PF_IN_COLON ? PF_IN_VALUE : PF_IN_KEYS;
    r->inside = 0;
    return true;
}

/* ---- Arguments between tags -------------------------------------------------------------------------------------- */

static bool step_tags(struct pf_reply *r)
{
    size_t len;
    if (!skip_space(r))
        return false;
    enum pf_match key = pf_reply_match(r, r->at, r->f->key_open, &len);
    if (key == PF_YES) {
        pass(r, len);
        r->word.n = 0;
        r->state = PF_AT_KEY;
        return true;
    }
    enum pf_match end = match_end(r, &len);
    if (end == PF_YES) {
        pass(r, len);
        if (r->has_arguments)
            pf_run_puts(&r->out, "}");
        return end_call(r, PF_AT_BEHIND);
    }
    if (key == PF_PARTLY || end == PF_PARTLY)
        return false;
    pass(r, 1);                                  /* nothing that belongs there */
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
    struct pf_span key = between_quotes(r);
    while (key.n && pf_reply_is_space(key.p[key.n - 1]))
        key.n--;
    struct pf_run escaped = { 0 };
    pf_json_escape(&escaped, key.p, key.n);
    r->types = pf_tools_types(&r->tools, r->schema, escaped.p ? escaped.p : "", escaped.n);
    r->types = types_by_attributes(r, key, r->types);
    r->key.n = 0;
    pf_run_puts(&r->key, r->has_arguments ? ", \"" : "{\"");
    pf_run_add(&r->key, escaped.p, escaped.n);
    pf_run_puts(&r->key, "\": ");
    r->key.failed |= escaped.failed;
    pf_run_free(&escaped);
}

static bool step_key(struct pf_reply *r)
{
    size_t len;
    while (left(r) > 0) {
        enum pf_match m = pf_reply_match(r, r->at, r->f->key_end, &len);
        if (m == PF_PARTLY || r->word.failed)
            return false;
        if (m == PF_YES || r->word.n == PF_LITERAL_KEY) {
            begin_parameter(r);
            pass(r, m == PF_YES ? len : 0);
            r->state = PF_AT_VALUE_OPEN;
            return true;
        }
        pf_run_add(&r->word, here(r), 1);
        pass(r, 1);
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

static bool step_value_open(struct pf_reply *r)
{
    size_t len = 0;
    if (r->f->value_open) {
        if (!skip_space(r))
            return false;
        enum pf_match m = pf_reply_match(r, r->at, r->f->value_open, &len);
        if (m == PF_PARTLY)
            return false;
        if (m == PF_NO) {                        /* a key without a value */
            r->state = PF_AT_TAGS;
            return true;
        }
    } else if (r->f->form & PF_FORM_NEWLINES) {
        if (left(r) == 0)
            return false;
        len = here(r)[0] == '\n';
    }
    pass(r, len);
    r->word.n = 0;
    if (r->types == PF_TYPE_STRING)
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
    enum pf_match key = pf_reply_match(r, r->at, r->f->key_open, &len), end = match_end(r, &len), m;
    m = key > end ? key : end;
    if (r->at == r->in.n)
        m = r->ended ? PF_YES : PF_PARTLY;
    r->at = was;
    return m;
}

/* Whether the value ends here; *len: how long its end is. */
static enum pf_match match_closer(struct pf_reply *r, size_t *len)
{
    bool framed = r->f->form & PF_FORM_NEWLINES;
    size_t line = framed && here(r)[0] == '\n';
    if (line && left(r) == 1) {
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

static bool step_text_value(struct pf_reply *r)
{
    size_t n = 0, len;
    while (n < left(r) && !may_close(r, here(r)[n]))
        n++;
    pf_json_escape(&r->out, here(r), n);
    pass(r, n);
    tell_arguments(r);
    if (left(r) == 0)
        return false;
    enum pf_match m = match_closer(r, &len);
    if (m == PF_PARTLY)
        return false;
    if (m == PF_YES) {
        pf_run_puts(&r->out, "\"");
        r->state = PF_AT_TAGS;
    } else {
        pf_json_escape(&r->out, here(r), 1);
        len = 1;
    }
    pass(r, len);
    return true;
}

/* A value that may be something else than a string: it is that if all of it reads as a type that the schema allows. */
static void write_typed(struct pf_reply *r)
{
    struct pf_run json = { 0 };
    struct pf_literal l = { 0 };
    size_t begin = 0, n = r->word.n, used = 0;
    while (begin < n && pf_reply_is_space(r->word.p[begin]))
        begin++;
    while (n > begin && pf_reply_is_space(r->word.p[n - 1]))
        n--;
    pf_literal_init(&l, &json, true);
    bool whole = n > begin && pf_literal_feed(&l, r->word.p + begin, n - begin, &used) != PF_LITERAL_BAD &&
                 pf_literal_finish(&l) && used == n - begin && !json.failed;
    write_key(r);
    if (whole && pf_type_of(json.p) & r->types) {
        pf_run_add(&r->out, json.p, json.n);
    } else {
        pf_run_puts(&r->out, "\"");
        pf_json_escape(&r->out, r->word.p, r->word.n);
        pf_run_puts(&r->out, "\"");
    }
    r->out.failed |= json.failed | l.key.failed | r->word.failed;
    pf_literal_free(&l);
    pf_run_free(&json);
}

static bool step_typed_value(struct pf_reply *r)
{
    size_t n = 0, len;
    while (n < left(r) && !may_close(r, here(r)[n]))
        n++;
    pf_run_add(&r->word, here(r), n);
    pass(r, n);
    if (r->word.n > KEPT_BYTES) {                /* nothing but a string is so long */
        begin_text_value(r);
        pf_json_escape(&r->out, r->word.p, r->word.n);
        return true;
    }
    if (left(r) == 0)
        return false;
    enum pf_match m = match_closer(r, &len);
    if (m == PF_PARTLY)
        return false;
    if (m == PF_YES) {
        write_typed(r);
        tell_arguments(r);
        r->state = PF_AT_TAGS;
    } else {
        pf_run_add(&r->word, here(r), 1);
        len = 1;
    }
    pass(r, len);
    return true;
}

/* ---- Behind a call ----------------------------------------------------------------------------------------------- */

static bool step_fault(struct pf_reply *r)
{
    size_t len;
    if (left(r) == 0)
        return false;
    enum pf_match m = match_end(r, &len);
    if (m == PF_PARTLY)
        return false;
    if (m == PF_YES)
        r->state = PF_AT_BEHIND;
    r->from = r->at += m == PF_YES ? len : 1;
    return true;
}

/* Another call, what ends calls, or text. White space waits: it is text's if text comes. */
static bool step_behind(struct pf_reply *r)
{
    struct pf_run *space = &r->channels[PF_REPLY_CONTENT].space;
    size_t len;
    if (left(r) == 0)
        return false;
    char c = here(r)[0];
    if (pf_reply_is_space(c)) {
        if (space->n < KEPT_BYTES)
            pf_run_add(space, &c, 1);
        pass(r, 1);
        return true;
    }
    bool another = r->in_list ? c == ',' : r->bare && c == ';';
    if (another || (r->bare && !r->in_list && c == '{')) {
        pass(r, another);
        r->state = PF_AT_ITEM;
        r->place = PF_IN_KEYS;
        return true;
    }
    if (r->in_list && c == ']') {
        r->in_list = false;
        pass(r, 1);
        return true;
    }
    enum pf_match end = match_end(r, &len), head = PF_NO;
    if (end == PF_YES) {
        pass(r, len);
        return true;
    }
    if (r->f->head)
        head = pf_reply_match(r, r->at, r->f->head, &len);
    if (head == PF_YES) {
        pf_call_try(r, len, PF_AT_FIELD, false);
        return true;
    }
    if (end == PF_PARTLY || head == PF_PARTLY)
        return false;
    r->state = PF_AT_TEXT;
    return true;
}

/* ---- The machine ------------------------------------------------------------------------------------------------- */

bool pf_call_step(struct pf_reply *r)
{
    if (r->in.failed || r->out.failed || r->word.failed || r->key.failed || r->literal.key.failed)
        return false;
    if (r->tried > TRIED_BYTES && !r->committed && r->state != PF_AT_BEHIND && r->state != PF_AT_FAULT)
        return give_up(r);
    switch (r->state) {
    case PF_AT_ITEM:        return step_item(r);
    case PF_AT_FIELD:       return step_field(r);
    case PF_AT_OBJECT:      return step_object(r);
    case PF_AT_OPENING:     return step_opening(r);
    case PF_AT_LITERAL:     return step_literal(r);
    case PF_AT_TAGS:        return step_tags(r);
    case PF_AT_KEY:         return step_key(r);
    case PF_AT_VALUE_OPEN:  return step_value_open(r);
    case PF_AT_TEXT_VALUE:  return step_text_value(r);
    case PF_AT_TYPED_VALUE: return step_typed_value(r);
    case PF_AT_FAULT:       return step_fault(r);
    case PF_AT_BEHIND:      return step_behind(r);
    default:                return false;
    }
}

/* Closes what is open, in the state where the bytes ended. */
static bool cut_arguments(struct pf_reply *r)
{
    bool by_tags = r->f->arguments == PF_ARGUMENTS_TAGS && r->state != PF_AT_OBJECT && r->state != PF_AT_LITERAL;
    if (by_tags && r->has_arguments)
        pf_run_puts(&r->out, r->state == PF_AT_TEXT_VALUE ? "\"}" : "}");
    else if (r->has_arguments)
        pf_literal_close(&r->literal);
    return end_call(r, PF_AT_BEHIND);
}

bool pf_call_cut(struct pf_reply *r)
{
    r->at = r->committed ? r->in.n : r->at;
    r->from = r->committed ? r->at : r->from;
    switch (r->state) {
    case PF_AT_TEXT: case PF_AT_HEADER: case PF_AT_END: case PF_AT_BEHIND: case PF_AT_FAULT: return false;
    default: break;
    }
    if (r->committed)
        return cut_arguments(r);
    if (r->state == PF_AT_OBJECT && r->has_name && !r->bare && r->place != PF_IN_ARGUMENTS && pf_call_commit(r)) {
        r->from = r->at = r->in.n;
        return end_call(r, PF_AT_BEHIND);
    }
    return give_up(r);
}
