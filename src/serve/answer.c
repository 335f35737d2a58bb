/* See answer.h. */
#include "serve/answer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "program/piece.h"

static struct choice *choice_of(const struct answer *a)
{
    return &a->job->choices[a->choice];
}

static void tell(struct answer *a, enum delta_kind kind, int call, const char *text, size_t n)
{
    if (a->job->req.stream)
        a->job->protocol->delta(a->job, &(struct delta){ kind, a->choice, call, text, n });
}

/* ---- Content ----------------------------------------------------------------------------------------------------- */

static void give_content(struct answer *a, const char *text, size_t n)
{
    if (n == 0)
        return;
    buf_add(&choice_of(a)->content, text, n);
    tell(a, DELTA_CONTENT, 0, text, n);
}

static void take_content(struct answer *a, const char *text, size_t n)
{
    const struct text_list *stops = &a->job->req.stops;
    if (a->stopped)
        return;
    if (stops->n == 0) {
        give_content(a, text, n);
        return;
    }
    buf_add(&a->held, text, n);
    const char *stop = stop_find(stops, a->held.p, a->held.n, &choice_of(a)->stop_string);
    a->stopped = stop != NULL;
    size_t ready = stop ? (size_t)(stop - a->held.p)
                        : pf_utf8_complete(a->held.p, a->held.n - stop_overlap(stops, a->held.p, a->held.n));
    give_content(a, a->held.p, ready);
    buf_drop(&a->held, ready);
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

static void begin_call(struct answer *a, const struct pf_reply_event *e)
{
    struct choice *c = choice_of(a);
    c->calls = xrealloc(c->calls, c->n_calls + 1, sizeof *c->calls);
    struct call *call = &c->calls[c->n_calls++];
    *call = (struct call){ .ended = false };
    if (e->id && e->n_id < sizeof call->id) {
        memcpy(call->id, e->id, e->n_id);
    } else {
        size_t n = (size_t)snprintf(call->id, sizeof call->id, "%s", a->job->protocol->call_prefix);
        random_id(call->id + n, 25);
    }
    buf_add(&call->name, e->text, e->n);
    tell(a, DELTA_CALL, e->call, NULL, 0);
}

static void take_event(void *ctx, const struct pf_reply_event *e)
{
    struct answer *a = ctx;
    struct choice *c = choice_of(a);
    if (a->stopped)
        return;
    switch (e->kind) {
    case PF_REPLY_CONTENT:
        take_content(a, e->text, e->n);
        break;
    case PF_REPLY_REASONING:
        buf_add(&c->reasoning, e->text, e->n);
        tell(a, DELTA_REASONING, 0, e->text, e->n);
        break;
    case PF_REPLY_CALL:
        begin_call(a, e);
        break;
    case PF_REPLY_ARGUMENTS:
        buf_add(&c->calls[e->call].arguments, e->text, e->n);
        tell(a, DELTA_ARGUMENTS, e->call, e->text, e->n);
        break;
    case PF_REPLY_CALL_END:
        c->calls[e->call].ended = true;
        tell(a, DELTA_CALL_END, e->call, NULL, 0);
        a->stopped = a->job->req.one_call;
        break;
    }
}

/* ---- Log-probabilities ------------------------------------------------------------------------------------------- */

/* Puts a token into its place among the n best so far; returns how many there are now. */
static int insert(struct token_logprob *top, int n, int most, int32_t tok, double logit)
{
    int at = n;
    if (n == most && (most == 0 || logit <= top[most - 1].logprob))
        return n;
    at = n < most ? n : most - 1;
    for (; at > 0 && top[at - 1].logprob < logit; at--)
        top[at] = top[at - 1];
    top[at] = (struct token_logprob){ tok, logit };
    return n < most ? n + 1 : n;
}

/* One pass over the vocabulary: what was summed is rescaled where a larger logit comes. */
static void tell_logprobs(struct answer *a, const pf_session *s, int32_t tok)
{
    struct job *j = a->job;
    struct token_logprob top[MOST_TOP_LOGPROBS], chosen = { tok, 0 };
    const float *logits = pf_session_logits(s);
    int64_t n = pf_model_info(a->m)->n_vocab;
    int n_top = 0;
    double sum = 0;
    float best = logits[0];
    for (int64_t i = 0; i < n; i++) {
        if (logits[i] > best) {
            sum *= exp((double)best - (double)logits[i]);
            best = logits[i];
        }
        sum += (double)expf(logits[i] - best);
        n_top = insert(top, n_top, (int)j->req.top_logprobs, (int32_t)i, (double)logits[i]);
    }
    double whole = (double)best + log(sum);
    for (int i = 0; i < n_top; i++)
        top[i].logprob -= whole;
    chosen.logprob = (double)logits[tok] - whole;
    j->protocol->logprob(j, a->choice, &chosen, top, n_top);
}

/* ---- What holds the next token ----------------------------------------------------------------------------------- */

static pf_status hold_content(struct answer *a)
{
    const struct request *q = &a->job->req;
    if (!q->grammar || a->shape || (a->reply && !q->grammar_is_reply && !pf_reply_in_content(a->reply)))
        return PF_OK;
    return pf_matcher_open(&a->shape, grammar_of(q->grammar));
}

/* What holds such arguments; NULL: nothing. */
static const pf_grammar *arguments_of(const struct request *q, const struct pf_reply_arguments *in)
{
    struct json tools = json_value(q->tools_json, strlen(q->tools_json)), t = { 0 };
    for (size_t i = 0; i < q->n_tools && (t = json_next(tools, t)).p; i++) {
        struct buf text = { 0 };
        json_string(json_get(json_get(t, "function"), "name"), &text);
        bool same = text.n == in->n_name && memcmp(buf_text(&text), in->name, text.n) == 0;
        buf_free(&text);
        if (same)
            return grammar_of(in->own_form ? q->own_grammars[i] : q->tool_grammars[i]);
    }
    return NULL;
}

/* The bytes that are arguments already, the last of which token tok brought. A mark is taken as the token that it is.
 * White space in front of a JSON object is none of the schema's. */
static pf_status take_begun(struct answer *a, const struct pf_reply_arguments *in, int32_t tok)
{
    size_t n = in->n_inside;
    if (n > a->recent.n)
        return PF_EINVAL;
    const char *p = a->recent.p + a->recent.n - n;
    while (!in->own_form && n > 0 && strchr(" \t\r\n", *p)) {
        p++;
        n--;
    }
    if (in->own_form && n == a->piece.n && pf_matcher_take(a->arguments, tok) == PF_OK)
        return PF_OK;
    return pf_matcher_take_text(a->arguments, p, n);
}

/* Arguments are held to their tool's schema from their first byte on. */
static void hold_arguments(struct answer *a, int32_t tok)
{
    struct pf_reply_arguments in;
    if (!a->reply || a->shape || !pf_reply_in_arguments(a->reply, &in)) {
        pf_matcher_close(&a->arguments);
        a->arguments_done = false;
        return;
    }
    if (a->arguments && pf_matcher_must_end(a->arguments))
        pf_matcher_close(&a->arguments);
    if (a->arguments || a->arguments_done)
        return;
    const pf_grammar *g = arguments_of(&a->job->req, &in);
    a->arguments_done = true;
    if (!g || pf_matcher_open(&a->arguments, g) < 0 || take_begun(a, &in, tok) < 0)
        pf_matcher_close(&a->arguments);
}

pf_matcher *answer_matcher(const struct answer *a)
{
    return a->arguments ? a->arguments : a->shape;
}

const char *answer_held_by(const struct answer *a)
{
    const struct request *q = &a->job->req;
    return a->arguments ? "tools" : q->tool_choice >= TOOLS_REQUIRED ? "tool_choice" : q->shape_field;
}

/* ---- Tokens ------------------------------------------------------------------------------------------------------ */

pf_status answer_begin(struct answer *a, const pf_model *m, const char *family, struct job *j, int choice)
{
    const struct request *q = &j->req;
    const struct prompt *prompt = job_prompt(j, choice);
    const char *tools = q->tool_choice == TOOLS_NONE ? NULL : q->tools_json;
    answer_free(a);
    *a = (struct answer){ .m = m, .job = j, .choice = choice };
    if (q->echo)
        give_content(a, buf_text(&prompt->text), prompt->text.n);
    if (!q->chat)
        return hold_content(a);
    bool in_reasoning = pf_reply_is_open(family, buf_text(&prompt->text), prompt->text.n);
    struct pf_reply_opts o = { .family = family, .tools_json = tools, .tools_len = tools ? strlen(tools) : 0,
                               .in_reasoning = in_reasoning, .in_content = q->goes_on && !in_reasoning,
                               .forced = q->tool_choice >= TOOLS_REQUIRED };
    pf_status st = pf_reply_open(&a->reply, &o);
    return st < 0 ? st : hold_content(a);
}

/* A text's bytes may be anything: what is no UTF-8 becomes U+FFFD. */
static void take_text(struct answer *a, size_t ready)
{
    struct buf whole = { 0 };
    buf_add_utf8(&whole, buf_text(&a->piece), ready);
    take_content(a, buf_text(&whole), whole.n);
    buf_drop(&a->piece, ready);
    buf_free(&whole);
}

static void keep_recent(struct answer *a)
{
    enum { KEPT = 128 };
    buf_add(&a->recent, a->piece.p, a->piece.n);
    if (a->recent.n > 2 * KEPT)
        buf_drop(&a->recent, a->recent.n - KEPT);
}

pf_status answer_token(struct answer *a, const pf_session *s, int32_t tok)
{
    size_t reasoning = choice_of(a)->reasoning.n;
    if (a->job->req.logprobs && a->job->protocol->logprob)
        tell_logprobs(a, s, tok);
    pf_matcher *mt = answer_matcher(a);
    pf_status st = mt ? pf_matcher_take(mt, tok) : PF_OK;
    if (st == PF_OK)
        st = a->reply ? piece_add_reply(&a->piece, a->m, a->reply, tok)
                      : piece_add(&a->piece, a->m, tok, PF_DETOK_CONTINUE);
    if (st < 0)
        return st;
    if (a->reply) {
        st = pf_reply_feed(a->reply, a->piece.p, a->piece.n, take_event, a);
        keep_recent(a);
        hold_arguments(a, tok);
        buf_clear(&a->piece);
    } else {
        take_text(a, pf_utf8_complete(a->piece.p, a->piece.n));
    }
    if (st == PF_OK)
        st = hold_content(a);
    a->job->usage.n_reasoning += choice_of(a)->reasoning.n > reasoning;
    return st;
}

bool answer_stopped(const struct answer *a, enum finish *why)
{
    bool whole = a->shape && pf_matcher_must_end(a->shape);
    if (a->stopped)
        *why = choice_of(a)->stop_string ? FINISH_STOP_STRING : FINISH_CALLS;
    else if (whole)
        *why = FINISH_STOP;
    return a->stopped || whole;
}

pf_status answer_end(struct answer *a, enum finish why)
{
    struct choice *c = choice_of(a);
    pf_status st = a->reply ? pf_reply_end(a->reply, take_event, a) : PF_OK;
    if (st < 0)
        return st;
    if (a->piece.n)
        take_text(a, a->piece.n);
    if (!a->stopped)
        give_content(a, buf_text(&a->held), a->held.n);
    if (a->stopped)
        answer_stopped(a, &why);
    c->finish = why == FINISH_STOP && c->n_calls ? FINISH_CALLS : why;
    if (a->job->req.stream)
        a->job->protocol->choice_end(a->job, a->choice);
    return PF_OK;
}

void answer_free(struct answer *a)
{
    pf_reply_close(&a->reply);
    pf_matcher_close(&a->shape);
    pf_matcher_close(&a->arguments);
    buf_free(&a->piece);
    buf_free(&a->held);
    buf_free(&a->recent);
}
