/* Calls: what follows a marker of calls, in the forms that families.h names. See reply_impl.h. */
#include "reply/reply_impl.h"

enum {
    TRIED_BYTES = 4 << 20,           /* looked at for calls that were none, in a reply */
    FIELD_BYTES = 2 * PF_REPLY_MAX_NAME
};

enum pf_match pf_call_match(const struct pf_reply *r, const char *const *texts, int n, size_t *len)
{
    enum pf_match m = PF_NO;
    for (int i = 0; i < n && texts[i] && m == PF_NO; i++)
        m = pf_reply_match(r, r->at, texts[i], len);
    return m;
}

enum pf_match pf_call_match_end(const struct pf_reply *r, size_t *len)
{
    return pf_call_match(r, r->f->ends, sizeof r->f->ends / sizeof *r->f->ends, len);
}

enum pf_match pf_call_match_next(const struct pf_reply *r)
{
    size_t len;
    enum pf_match best = r->f->head ? pf_reply_match(r, r->at, r->f->head, &len) : PF_NO;
    for (const struct pf_mark *m = r->f->marks; m->text; m++) {
        bool begins = m->kind == PF_MARK_BLOCK || m->kind == PF_MARK_HEAD || m->kind == PF_MARK_HEADER;
        enum pf_match match = begins ? pf_reply_match(r, r->at, m->text, &len) : PF_NO;
        best = match > best ? match : best;
    }
    return best;
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

/* A marker that turned out to begin no call is text, and what follows it is looked at again. */
bool pf_call_give_up(struct pf_reply *r)
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

void pf_call_tell(struct pf_reply *r)
{
    if (r->committed && r->out.n && !r->out.failed) {
        pf_reply_tell(r, PF_REPLY_ARGUMENTS, r->out.p, r->out.n);
        r->out.n = 0;
    }
}

bool pf_call_end(struct pf_reply *r, enum pf_reply_state next)
{
    if (!r->has_arguments)
        pf_run_puts(&r->out, "{}");
    pf_call_tell(r);
    pf_reply_tell(r, PF_REPLY_CALL_END, NULL, 0);
    r->n_calls++;
    r->among_calls = true;
    forget_call(r);
    r->state = next;
    r->from = r->at;
    r->marker = 0;
    if (r->f->form & PF_FORM_HARMONY)
        r->channel = PF_NOWHERE;
    return true;
}

/* What follows makes no sense: the arguments end here. */
bool pf_call_fault(struct pf_reply *r)
{
    if (r->has_arguments)
        pf_literal_close(&r->literal);
    return pf_call_end(r, r->f->ends[0] ? PF_AT_FAULT : PF_AT_BEHIND);
}

/* ---- In front of a call ------------------------------------------------------------------------------------------ */

static bool step_item(struct pf_reply *r)
{
    unsigned form = r->f->form;
    size_t len;
    if (!pf_reply_skip_space(r))
        return false;
    char c = pf_reply_here(r)[0];
    if (c == '{' && form & PF_FORM_OBJECTS) {
        pf_reply_pass(r, 1);
        r->place = PF_IN_KEYS;
        r->state = PF_AT_OBJECT;
        return true;
    }
    if (c == '[' && form & (PF_FORM_OBJECTS | PF_FORM_PYTHON) && !r->in_list) {
        pf_reply_pass(r, 1);
        return r->in_list = true;
    }
    bool naked = r->in_list ? (form & PF_FORM_PYTHON) != 0 : (form & PF_FORM_NAKED) && !r->bare;
    enum pf_match m = r->f->head && !r->in_list ? pf_reply_match(r, r->at, r->f->head, &len) : naked ? PF_YES : PF_NO;
    if (m == PF_PARTLY)
        return false;
    if (m == PF_NO)
        return pf_call_give_up(r);
    pf_reply_pass(r, r->f->head && !r->in_list ? len : 0);
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
struct pf_span pf_call_between_quotes(const struct pf_reply *r)
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
    struct pf_span s = pf_call_between_quotes(r);
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
        return pf_call_give_up(r);
    r->word.n = 0;
    pf_reply_pass(r, e->stays ? 0 : len);
    if (e->next != PF_FIELD_ARGUMENTS) {
        r->field = e->next;
        return true;
    }
    if (!pf_call_commit(r))
        return pf_call_give_up(r);
    pf_call_arguments(r, r->f->arguments);
    return true;
}

static bool step_field(struct pf_reply *r)
{
    enum { N = sizeof r->f->fields / sizeof *r->f->fields };
    while (pf_reply_left(r) > 0) {
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
            return pf_call_give_up(r);
        pf_run_add(&r->word, pf_reply_here(r), 1);
        pf_reply_pass(r, 1);
        if (r->word.failed)
            return false;
    }
    return false;
}

void pf_call_arguments(struct pf_reply *r, enum pf_arguments kind)
{
    r->inside = 0;
    r->begun_at = r->dropped + r->at;
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

/* ---- Behind a call ----------------------------------------------------------------------------------------------- */

static bool step_fault(struct pf_reply *r)
{
    size_t len;
    if (pf_reply_left(r) == 0)
        return false;
    enum pf_match end = pf_call_match_end(r, &len), next = pf_call_match_next(r);
    if (end != PF_YES && next != PF_YES && (end == PF_PARTLY || next == PF_PARTLY))
        return false;
    if (end == PF_YES || next == PF_YES)
        r->state = PF_AT_BEHIND;
    r->from = r->at += end == PF_YES ? len : next == PF_NO;
    return true;
}

/* Whether another call of a list, or of a row of objects, comes. */
static bool another_item(struct pf_reply *r, char c)
{
    bool separated = r->in_list ? c == ',' : r->bare && c == ';';
    if (!separated && (!r->bare || r->in_list || c != '{'))
        return false;
    pf_reply_pass(r, separated);
    r->state = PF_AT_ITEM;
    r->place = PF_IN_KEYS;
    return true;
}

/* Another call, what ends calls, or text. White space waits: it is text's if text comes. */
static bool step_behind(struct pf_reply *r)
{
    struct pf_run *space = &r->channels[PF_REPLY_CONTENT].space;
    size_t len;
    if (pf_reply_left(r) == 0)
        return false;
    char c = pf_reply_here(r)[0];
    bool is_space = pf_reply_is_space(c), list_ends = r->in_list && c == ']';
    if (is_space && space->n < PF_REPLY_KEPT)
        pf_run_add(space, &c, 1);
    if (list_ends)
        r->in_list = false;
    if (is_space || list_ends) {
        pf_reply_pass(r, 1);
        return true;
    }
    if (another_item(r, c))
        return true;
    enum pf_match end = pf_call_match_end(r, &len);
    if (end == PF_YES) {
        pf_reply_pass(r, len);
        return true;
    }
    enum pf_match head = r->f->head ? pf_reply_match(r, r->at, r->f->head, &len) : PF_NO;
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
    bool tries = !r->committed && r->state != PF_AT_BEHIND && r->state != PF_AT_FAULT;
    if (tries && (r->tried > TRIED_BYTES || r->at - r->from > PF_REPLY_KEPT))
        return pf_call_give_up(r);
    switch (r->state) {
    case PF_AT_ITEM:        return step_item(r);
    case PF_AT_FIELD:       return step_field(r);
    case PF_AT_OBJECT:      return pf_call_step_object(r);
    case PF_AT_OPENING:     return pf_call_step_opening(r);
    case PF_AT_LITERAL:     return pf_call_step_literal(r);
    case PF_AT_TAGS:        return pf_call_step_tags(r);
    case PF_AT_KEY:         return pf_call_step_key(r);
    case PF_AT_VALUE_OPEN:  return pf_call_step_value_open(r);
    case PF_AT_TEXT_VALUE:  return pf_call_step_value(r);
    case PF_AT_TYPED_VALUE: return pf_call_step_value(r);
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
    return pf_call_end(r, PF_AT_BEHIND);
}

/* A call that is tried is one if its name is whole, or nobody's if it can have been nothing else; else it is text. */
static bool cut_tried(struct pf_reply *r)
{
    bool due = r->forced || r->among_calls, named = r->state == PF_AT_OBJECT && r->has_name && (due || !r->bare);
    bool is_call = named && r->place != PF_IN_ARGUMENTS && pf_call_commit(r);
    if (!is_call && !due)
        return pf_call_give_up(r);
    r->from = r->at = r->in.n;
    r->marker = 0;
    r->state = PF_AT_TEXT;
    return !is_call || pf_call_end(r, PF_AT_BEHIND);
}

bool pf_call_cut(struct pf_reply *r)
{
    r->at = r->committed ? r->in.n : r->at;
    r->from = r->committed ? r->at : r->from;
    switch (r->state) {
    case PF_AT_TEXT: case PF_AT_BEGIN: case PF_AT_HEADER: case PF_AT_BEHIND: case PF_AT_FAULT: return false;
    default: break;
    }
    return r->committed ? cut_arguments(r) : cut_tried(r);
}
