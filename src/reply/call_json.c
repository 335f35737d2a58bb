/* Calls whose arguments are one value, and calls that are one object with name and arguments. See reply_impl.h. */
#include "reply/reply_impl.h"

/* ---- Arguments as one value -------------------------------------------------------------------------------------- */

bool pf_call_step_opening(struct pf_reply *r)
{
    size_t before = r->at, len;
    bool more = pf_reply_skip_space(r);
    r->inside += r->at - before;
    if (!more)
        return false;
    enum pf_match m = pf_call_match(r, r->f->fences, 2, &len);
    if (m == PF_PARTLY)
        return false;
    if (m == PF_YES) {
        pf_reply_pass(r, len);
        r->inside = 0;
        return true;
    }
    if (pf_reply_here(r)[0] != '{')
        return pf_call_fault(r);
    pf_literal_init(&r->literal, &r->out, false);
    r->has_arguments = true;
    r->state = PF_AT_LITERAL;
    return true;
}

static enum pf_literal_result read_literal(struct pf_reply *r)
{
    size_t used = 0;
    enum pf_literal_result result = pf_literal_feed(&r->literal, pf_reply_here(r), pf_reply_left(r), &used);
    pf_reply_pass(r, used);
    r->inside += used;
    pf_call_tell(r);
    return result;
}

bool pf_call_step_literal(struct pf_reply *r)
{
    switch (read_literal(r)) {
    case PF_LITERAL_MORE: return false;
    case PF_LITERAL_BAD:  return pf_call_fault(r);
    default:              return pf_call_end(r, PF_AT_BEHIND);
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
    char c = pf_reply_here(r)[0];
    bool arguments = pf_call_wants_arguments(r), quoted = c == '"' || c == '\'';
    if (arguments && c == '{' && !r->has_arguments) {
        if (r->has_name && !pf_call_commit(r))
            return pf_call_give_up(r);
        begin_literal(r, PF_IN_ARGUMENTS, &r->out);
        r->has_arguments = true;
    } else if (arguments && quoted && !r->has_arguments) {
        begin_literal(r, PF_IN_STRING, &r->word);
    } else if (word_is(r, "name") && quoted && !r->has_name) {
        begin_literal(r, PF_IN_NAME, &r->word);
    } else {
        begin_literal(r, word_is(r, "id") && quoted ? PF_IN_ID : PF_IN_OTHER, &r->word);
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
            return r->committed ? pf_call_fault(r) : pf_call_give_up(r);
        if (r->has_arguments && !pf_call_commit(r))
            return pf_call_give_up(r);
    } else if (was == PF_IN_ID) {
        pf_call_take(r->word.p + 1, r->word.n - 2, r->id, &r->n_id);
    } else if (was == PF_IN_STRING) {
        unwrap_arguments(r);
        if (r->has_arguments && r->has_name && !pf_call_commit(r))
            return pf_call_give_up(r);
    }
    pf_call_tell(r);
    return true;
}

static bool step_member(struct pf_reply *r)
{
    enum pf_literal_result result = read_literal(r);
    if (r->place == PF_IN_OTHER)
        r->word.n = 0;
    if (result == PF_LITERAL_MORE && r->word.n <= PF_REPLY_KEPT)
        return false;
    if (result != PF_LITERAL_DONE)
        return r->committed ? pf_call_fault(r) : pf_call_give_up(r);
    return end_member(r);
}

/* Behind the closing brace. Without a marker in front only what has a tool's name and arguments is a call. */
static bool end_object(struct pf_reply *r)
{
    if (!r->committed && (!r->has_name || (r->bare && !r->has_arguments) || !pf_call_commit(r)))
        return pf_call_give_up(r);
    return pf_call_end(r, PF_AT_BEHIND);
}

bool pf_call_step_object(struct pf_reply *r)
{
    if (r->place != PF_IN_KEYS && r->place != PF_IN_COLON && r->place != PF_IN_VALUE && r->place != PF_IN_NEXT)
        return step_member(r);
    size_t before = r->at;
    bool more = pf_reply_skip_space(r);
    r->inside += r->at - before;
    if (!more)
        return false;
    char c = pf_reply_here(r)[0];
    if (r->place == PF_IN_VALUE)
        return begin_member(r);
    if (r->place == PF_IN_KEYS && (c == '"' || c == '\'')) {
        begin_literal(r, PF_IN_KEY, &r->word);
        return true;
    }
    bool closes = c == '}' && r->place != PF_IN_COLON;
    if (!closes && c != (r->place == PF_IN_COLON ? ':' : r->place == PF_IN_NEXT ? ',' : 0))
        return r->committed ? pf_call_fault(r) : pf_call_give_up(r);
    pf_reply_pass(r, 1);
    if (closes)
        return end_object(r);
    r->place = r->place == PF_IN_COLON ? PF_IN_VALUE : PF_IN_KEYS;
    r->inside = 0;
    return true;
}
