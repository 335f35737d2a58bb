/* See engine.h. */
#define _GNU_SOURCE
#include "cli/engine.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "program/load.h"
#include "program/io/term.h"

double per_second(size_t n, double seconds)
{
    return seconds > 0 ? (double)n / seconds : 0;
}

/* ---- Setting up -------------------------------------------------------------------------------------------------- */

static uint64_t any_seed(void)
{
    uint32_t seed = 0;
    if (getrandom(&seed, sizeof seed, 0) != (ssize_t)sizeof seed)
        seed = (uint32_t)time(NULL);
    return seed;
}

/* The value of the option, else of the model's file, else the library's default. */
static float choose(double set, float recommended, float otherwise)
{
    return set != UNSET ? (float)set : recommended >= 0 ? recommended : otherwise;
}

void engine_sampling(struct engine *e, bool from_seed)
{
    const struct settings *s = e->s;
    const struct pf_model_info *info = pf_model_info(e->m);
    struct pf_sampler before = e->sampler;
    if (from_seed)
        e->seed = s->seed != UNSET ? (uint64_t)s->seed : any_seed();
    pf_sampler_init(&e->sampler, e->seed);
    if (!from_seed)
        memcpy(e->sampler.rng, before.rng, sizeof before.rng);
    e->sampler.temp = choose(s->temp, info->temp, e->sampler.temp);
    e->sampler.top_p = choose(s->top_p, info->top_p, e->sampler.top_p);
    e->sampler.min_p = choose(s->min_p, info->min_p, e->sampler.min_p);
    e->sampler.top_k = s->top_k != UNSET ? (int)s->top_k : info->top_k >= 0 ? info->top_k : e->sampler.top_k;
    e->sampler.repeat_penalty = (float)s->repeat_penalty;
    e->sampler.presence_penalty = (float)s->presence_penalty;
    e->sampler.frequency_penalty = (float)s->frequency_penalty;
    e->sampler.penalty_last_n = (int)s->penalty_last_n;
}

static void list_builtins(struct buf *out)
{
    for (int i = 0; pf_chat_builtin(i); i++)
        buf_printf(out, "%s%s", i ? ", " : "", pf_chat_builtin(i));
}

/* --template is a built-in one's name or else a file. */
static void choose_template(struct engine *e)
{
    const char *name = e->s->template;
    struct buf text = { 0 };
    if (!name)
        return;
    for (int i = 0; pf_chat_builtin(i); i++)
        if (strcmp(pf_chat_builtin(i), name) == 0) {
            e->template_name = name;
            return;
        }
    if (!buf_read_file(&text, name)) {
        int error = errno;
        struct buf names = { 0 };
        list_builtins(&names);
        die(EXIT_FAILED, "--template %s: neither a built-in template (%s) nor a file: %s", name, buf_text(&names),
            strerror(error));
    }
    if (text.n == 0 || memchr(text.p, 0, text.n))
        die(EXIT_FAILED, "--template %s: %s", name, text.n ? "there is a zero byte in it" : "the file is empty");
    e->template_text = text.p;
}

/* The flag and the file that say which form answers are held to; NULL: none do. */
static const char *form_path(const struct settings *s, const char **flag)
{
    *flag = s->grammar ? "--grammar" : "--json-schema";
    return s->grammar ? s->grammar : s->json_schema;
}

static void read_form(const struct engine *e, struct buf *text)
{
    const char *flag, *path = form_path(e->s, &flag);
    if (path && !buf_read_file(text, path))
        die(EXIT_FAILED, "%s %s: %s", flag, path, strerror(errno));
}

static void compile_form(struct engine *e, const struct buf *text)
{
    const char *flag, *path = form_path(e->s, &flag);
    if (!path)
        return;
    pf_status st = e->s->grammar ? pf_grammar_gbnf(&e->grammar, e->m, buf_text(text), text->n)
                                 : pf_grammar_json_schema(&e->grammar, e->m, buf_text(text), text->n);
    if (st < 0)
        die(EXIT_FAILED, "%s %s: %s", flag, path, pf_last_error());
}

/* The part that only an open model allows. */
static void begin_replies(struct engine *e, show_fn *show, void *ctx)
{
    struct pf_chat_opts o = { .template_name = e->template_name, .template_text = e->template_text };
    e->reply = (struct reply){ .m = e->m, .family = pf_reply_family(e->m, &o), .stops = &e->s->stops,
                               .to_terminal = term_out_is_tty(), .show = show, .show_ctx = ctx };
    engine_sampling(e, true);
}

void engine_open(struct engine *e, struct settings *s, show_fn *show, void *ctx)
{
    struct buf form = { 0 };
    *e = (struct engine){ .s = s };
    choose_template(e);
    read_form(e, &form);
    e->m = load_model(s, false);
    if (!pf_model_info(e->m)->has_tokenizer)
        die(EXIT_FAILED, "%s has no tokenizer; only --score can run it", load_path(s));
    e->has_template = s->template || pf_model_info(e->m)->has_chat_template;
    compile_form(e, &form);
    buf_free(&form);
    e->session = load_session(s, e->m, s->n_ctx);
    begin_replies(e, show, ctx);
}

const char *engine_change(struct engine *e, struct settings *s, show_fn *show, void *ctx)
{
    const char *why = NULL;
    *e = (struct engine){ .s = s };
    if (load_model_try(s, false, &e->m) < 0)
        return pf_last_error();
    const struct pf_model_info *info = pf_model_info(e->m);
    e->has_template = info->has_chat_template;
    if (!info->has_tokenizer)
        why = "it has no tokenizer";
    else if (!e->has_template)
        why = "it has no chat template that works";
    else if (load_session_try(s, e->m, s->n_ctx, &e->session) < 0 || load_weights_try(e->m) < 0)
        why = pf_last_error();
    if (!why) {
        begin_replies(e, show, ctx);
        return NULL;
    }
    pf_session_close(&e->session);
    pf_model_close(&e->m);
    return why;
}

/* What --stats says of the answers; the rest is the report's. */
static void print_answers(const struct engine *e)
{
    const struct outcome *o = &e->sum;
    size_t n_evaluated = o->n_prompt - o->n_reused;
    if (!e->s->report.stats || !e->n_answers)
        return;
    fprintf(stderr, "prompt              %zu tokens in %.3f s: %.2f tok/s; %zu more were known from before\n",
            n_evaluated, o->prompt_seconds, per_second(n_evaluated, o->prompt_seconds), o->n_reused);
    fprintf(stderr, "first token         after %.3f s%s\n", o->first_seconds / (double)e->n_answers,
            e->n_answers > 1 ? ", on average" : "");
    fprintf(stderr, "answer              %zu tokens in %.3f s: %.2f tok/s\n", o->n_answer, o->answer_seconds,
            per_second(o->n_answer, o->answer_seconds));
    fprintf(stderr, "seed                %" PRIu64 "\n", e->seed);
}

void engine_close(struct engine *e)
{
    reply_free(&e->reply);
    free(e->template_text);
    print_answers(e);
    load_report(e->s, e->m);
    pf_grammar_close(&e->grammar);
    pf_session_close(&e->session);
    pf_model_close(&e->m);
}

/* ---- Prompts ----------------------------------------------------------------------------------------------------- */

/* Tokens that the context cannot hold are of no use: they are counted and not kept. */
static pf_status tokenize(struct engine *e, const struct buf *text, unsigned flags, struct tokens *tok)
{
    if (!tok->p) {
        tok->cap = (size_t)pf_session_n_ctx(e->session);
        tok->p = xrealloc(NULL, tok->cap, sizeof *tok->p);
    }
    pf_status st = pf_tokenize(e->m, buf_text(text), text->n, flags, tok->p, tok->cap, &tok->n);
    return st == PF_ESPACE ? PF_OK : st;
}

pf_status engine_raw_prompt(struct engine *e, const struct buf *text, struct tokens *tok)
{
    return tokenize(e, text, PF_TOK_ADD_SPECIAL | PF_TOK_PARSE_SPECIAL, tok);
}

pf_status engine_chat_prompt(struct engine *e, const struct pf_message *msgs, size_t n, struct buf *text,
                             struct tokens *tok)
{
    struct pf_chat_opts o;
    size_t need = 0;
    pf_chat_opts_init(&o);
    o.enable_thinking = opts_thinking(e->s);
    o.reasoning_effort = e->s->reasoning_effort;
    o.template_name = e->template_name;
    o.template_text = e->template_text;
    o.n_ctx = pf_session_n_ctx(e->session);
    buf_clear(text);
    buf_reserve(text, 1 << 16);
    pf_status st = pf_chat_render(e->m, msgs, n, &o, text->p, text->cap - 1, &need);
    if (st == PF_ESPACE) {
        buf_reserve(text, need);
        st = pf_chat_render(e->m, msgs, n, &o, text->p, text->cap - 1, &need);
    }
    if (st < 0)
        return st;
    text->n = need;
    text->p[need] = 0;
    return tokenize(e, text, PF_TOK_PARSE_SPECIAL, tok);
}

/* ---- Answers ----------------------------------------------------------------------------------------------------- */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* A Ctrl-C that came when nothing ran cancels the next call, which nobody meant: then it is made again. */
static pf_status sync_prompt(struct engine *e, const struct tokens *tok, size_t *reused)
{
    pf_status st = pf_session_sync(e->session, tok->p, tok->n, reused);
    if (st == PF_ECANCEL && !interrupted())
        st = pf_session_sync(e->session, tok->p, tok->n, reused);
    return st;
}

static bool is_end(const struct engine *e, int32_t tok)
{
    return !e->s->ignore_eos && pf_token_is_end(e->m, tok);
}

/* The next token; of a held answer (mt is not NULL) one that may follow. */
static pf_status next_token(struct engine *e, pf_matcher *mt, int32_t *tok)
{
    if (!mt || !reply_in_answer(&e->reply))
        return pf_sample(&e->sampler, e->session, tok);
    pf_status st = pf_sample_matching(&e->sampler, e->session, mt, tok);
    return st < 0 ? st : pf_matcher_take(mt, *tok);
}

static pf_status decode(struct engine *e, pf_matcher *mt, double begin, struct outcome *o)
{
    int64_t limit = e->s->n_predict;
    int32_t tok;
    for (;;) {
        if (interrupted())
            return PF_ECANCEL;
        o->ending = END_LENGTH;
        if (limit != UNSET && (int64_t)o->n_answer >= limit)
            return PF_OK;
        pf_status st = next_token(e, mt, &tok);
        if (st < 0)
            return st;
        if (o->n_answer == 0)
            o->first_seconds = now() - begin;
        o->ending = END_OF_ANSWER;
        if (is_end(e, tok) || (mt && pf_token_is_end(e->m, tok)))
            return PF_OK;
        o->n_answer++;
        st = reply_token(&e->reply, tok);
        if (st < 0)
            return st;
        o->ending = END_STOP_STRING;
        if (e->reply.stopped)
            return PF_OK;
        o->ending = END_OF_ANSWER;
        if (mt && pf_matcher_must_end(mt))
            return PF_OK;
        o->ending = END_CONTEXT;
        if (pf_session_pos(e->session) >= pf_session_n_ctx(e->session))
            return PF_OK;
        st = pf_session_eval(e->session, &tok, 1, 0);
        if (st < 0)
            return st;
    }
}

static void add_up(struct engine *e, const struct outcome *o)
{
    struct outcome *sum = &e->sum;
    e->n_answers++;
    sum->n_prompt += o->n_prompt;
    sum->n_reused += o->n_reused;
    sum->n_answer += o->n_answer;
    sum->prompt_seconds += o->prompt_seconds;
    sum->first_seconds += o->first_seconds;
    sum->answer_seconds += o->answer_seconds;
}

pf_status engine_answer(struct engine *e, const struct buf *text, const struct tokens *tok, struct outcome *o)
{
    *o = (struct outcome){ .n_prompt = tok->n };
    reply_begin(&e->reply, text);
    double begin = now();
    pf_status st = sync_prompt(e, tok, &o->n_reused);
    double middle = now();
    pf_matcher *mt = NULL;
    if (st == PF_OK && e->grammar)
        st = pf_matcher_open(&mt, e->grammar);
    if (st == PF_OK)
        st = decode(e, mt, begin, o);
    pf_matcher_close(&mt);
    o->prompt_seconds = middle - begin;
    o->answer_seconds = now() - middle;
    reply_end(&e->reply);
    add_up(e, o);
    if (st == PF_ECANCEL && interrupted()) {
        o->ending = END_INTERRUPTED;
        return PF_OK;
    }
    return st;
}
