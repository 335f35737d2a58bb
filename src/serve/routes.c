/* The server's paths, and the handlers of all that is no generation. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "page.h"
#include "serve/api/anthropic.h"
#include "serve/api/messages.h"
#include "serve/api/openai.h"
#include "serve/api/responses.h"
#include "serve/journal.h"
#include "serve/metrics.h"
#include "serve/server.h"

/* ---- Generations ------------------------------------------------------------------------------------------------- */

/* What is asked of the model, or of its tokens, and not answered has a line: who wonders why a client fails sees it. */
static void refuse(struct exchange *x, const struct trouble *t)
{
    journal_failed(x, t);
    exchange_error(x, t);
}

void answer_wrong_field(struct exchange *x, const struct reader *r)
{
    refuse(x, &(struct trouble){ 400, *r->path ? r->path : NULL, NULL, r->why });
}

bool json_body(struct exchange *x, struct json *body)
{
    const struct buf *text = exchange_body(x);
    size_t where;
    char why[80];
    if (exchange_gone(x))                /* while it waited for a worker */
        return false;
    if (!json_valid(buf_text(text), text->n, &where)) {
        snprintf(why, sizeof why, "the body is not JSON (offset %zu)", where);
        refuse(x, &(struct trouble){ .status = 400, .why = why });
        return false;
    }
    *body = json_value(text->p, text->n);
    return true;
}

void generate(struct exchange *x, const struct protocol *p)
{
    const struct server *server = exchange_ctx(x);
    struct json body;
    struct trouble t;
    if (exchange_gone(x)) {              /* while it waited for a worker */
        atomic_fetch_add(&metrics.requests, 1);
        atomic_fetch_add(&metrics.cancelled, 1);
        return;
    }
    if (!json_body(x, &body))
        return;
    struct job *j = job_new(x, p);
    struct reader r = { .arena = &j->arena };
    j->req = server->defaults;
    if (!p->read(j, &r, body)) {
        answer_wrong_field(x, &r);
    } else if (!prompt_make(j, &server->prompt, &t)) {
        refuse(x, &t);
    } else {
        sched_add(server->sched, j);
        return;
    }
    job_free(j);
}

static void chat_completions(struct exchange *x)
{
    generate(x, &openai_chat);
}

static void responses(struct exchange *x)
{
    generate(x, &openai_responses);
}

static void messages(struct exchange *x)
{
    generate(x, &anthropic_messages);
}

/* Counts the tokens of a request: it is read, and its prompt made, as for an answer. */
static void count_tokens(struct exchange *x, const struct protocol *p, const char *form)
{
    const struct server *server = exchange_ctx(x);
    struct json body;
    struct trouble t;
    if (!json_body(x, &body))
        return;
    struct job *j = job_new(x, p);
    struct reader r = { .arena = &j->arena };
    struct prompt_opts any_length = server->prompt;
    any_length.n_ctx = INT32_MAX;
    j->req = server->defaults;
    if (!p->read(j, &r, body)) {
        answer_wrong_field(x, &r);
    } else if (!prompt_make(j, &any_length, &t)) {
        refuse(x, &t);
    } else {
        struct buf out = { 0 };
        buf_printf(&out, "{%s\"input_tokens\":%zu}\n", form, j->req.prompts->n_tok);
        exchange_answer(x, 200, "application/json", out.p, out.n);
        buf_free(&out);
    }
    job_free(j);
}

static void count_of_messages(struct exchange *x)
{
    count_tokens(x, &anthropic_count, "");
}

static void count_of_response(struct exchange *x)
{
    count_tokens(x, &openai_responses_count, "\"object\":\"response.input_tokens\",");
}

/* What a language model has inside says little about a text as a whole unless it was trained to. */
static void embeddings(struct exchange *x)
{
    exchange_error(x, &(struct trouble){ .status = 404, .why = "there are no embeddings here: the models served are "
                                                               "trained to go on with texts alone" });
}

static void completions(struct exchange *x)
{
    generate(x, &openai_text);
}

/* ---- About the server -------------------------------------------------------------------------------------------- */

static void send_json(struct exchange *x, struct buf *out)
{
    exchange_answer(x, 200, "application/json", buf_text(out), out->n);
    buf_free(out);
}

static void page(struct exchange *x)
{
    exchange_answer(x, 200, "text/html; charset=utf-8", (const char *)page_html, sizeof page_html);
}

static void health(struct exchange *x)
{
    const struct server *server = exchange_ctx(x);
    struct buf why = { 0 };
    if (sched_ill(server->sched, &why))
        exchange_error(x, &(struct trouble){ .status = 503, .why = buf_text(&why) });
    else
        exchange_answer(x, 200, "application/json", "{\"status\":\"ok\"}\n", 16);
    buf_free(&why);
}

/* With the fields of OpenAI's list and those of Anthropic's. */
static void put_model(struct buf *out, const struct server *server, const char *name)
{
    const struct pf_model_info *info = pf_model_info(server->m);
    char created[32];
    struct tm tm;
    strftime(created, sizeof created, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&(time_t){ (time_t)server->started }, &tm));
    buf_puts(out, "{\"id\":");
    quote(out, name);
    buf_puts(out, ",\"display_name\":");
    quote(out, server->model_name);
    buf_printf(out, ",\"type\":\"model\",\"created_at\":\"%s\"", created);
    buf_printf(out, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"pfmoe\",\"context_length\":%lld,"
               "\"meta\":{\"n_vocab\":%lld,\"n_ctx\":%lld,\"n_ctx_train\":%lld,\"n_embd\":%lld,\"size\":%llu}}",
               (long long)server->started, (long long)server->prompt.n_ctx, (long long)info->n_vocab,
               (long long)server->prompt.n_ctx, (long long)info->n_ctx_train, (long long)info->n_embd,
               (unsigned long long)info->weight_bytes);
}

static void models(struct exchange *x)
{
    const struct server *server = exchange_ctx(x);
    struct buf out = { 0 };
    buf_puts(&out, "{\"object\":\"list\",\"data\":[");
    put_model(&out, server, "default");
    buf_puts(&out, ",");
    put_model(&out, server, server->model_name);
    buf_puts(&out, "],\"has_more\":false,\"first_id\":\"default\",\"last_id\":");
    quote(&out, server->model_name);
    buf_puts(&out, "}\n");
    send_json(x, &out);
}

static void one_model(struct exchange *x)
{
    const struct server *server = exchange_ctx(x);
    const char *name = exchange_rest(x);
    struct buf out = { 0 };
    if (strcmp(name, "default") != 0 && strcmp(name, server->model_name) != 0) {
        exchange_error(x, &(struct trouble){ 404, NULL, "model_not_found", "no model has this name" });
        return;
    }
    put_model(&out, server, name);
    buf_puts(&out, "\n");
    send_json(x, &out);
}

static void props(struct exchange *x)
{
    const struct server *server = exchange_ctx(x);
    const struct pf_model_info *info = pf_model_info(server->m);
    struct buf out = { 0 };
    buf_printf(&out, "{\"version\":\"%s\",\"model\":", pf_version());
    quote(&out, server->model_name);
    buf_puts(&out, ",\"architecture\":");
    quote(&out, info->architecture);
    buf_printf(&out, ",\"backend\":\"%s\",\"isa\":\"%s\",\"n_threads\":%d,\"total_slots\":%lld,\"n_ctx\":%lld,"
               "\"n_ctx_train\":%lld,\"has_chat_template\":%s,\"default_generation_settings\":{\"n_ctx\":%lld,"
               "\"temperature\":%.6g,\"top_k\":%lld,\"top_p\":%.6g,\"min_p\":%.6g}}\n", info->backend, info->isa,
               info->n_threads, (long long)server->s->n_slots, (long long)server->prompt.n_ctx,
               (long long)info->n_ctx_train, info->has_chat_template ? "true" : "false",
               (long long)server->prompt.n_ctx, server->defaults.temp, (long long)server->defaults.top_k,
               server->defaults.top_p, server->defaults.min_p);
    send_json(x, &out);
}

static void show_metrics(struct exchange *x)
{
    const struct server *server = exchange_ctx(x);
    struct buf out = { 0 };
    metrics_print(server->m, &out);
    exchange_answer(x, 200, "text/plain; version=0.0.4; charset=utf-8", out.p, out.n);
    buf_free(&out);
}

/* ---- Tokens ------------------------------------------------------------------------------------------------------ */

struct tokenize_request {
    const char *content;
    bool add_special, parse_special, with_pieces;
};

/* Millions of them go out at once. */
static void put_whole(struct buf *out, uint32_t n)
{
    char text[16], *p = text + sizeof text;
    do
        *--p = (char)('0' + n % 10);
    while (n /= 10);
    buf_add(out, p, (size_t)(text + sizeof text - p));
}

static void put_pieces(struct buf *out, const pf_model *m, const int32_t *tok, size_t n, bool with_pieces)
{
    buf_puts(out, "{\"tokens\":[");
    buf_reserve(out, n * (with_pieces ? 24 : 6));
    for (size_t i = 0; i < n; i++) {
        char piece[512];
        size_t len = 0;
        if (i)
            buf_add(out, ",", 1);
        if (with_pieces)
            buf_puts(out, "{\"id\":");
        put_whole(out, (uint32_t)tok[i]);
        if (!with_pieces)
            continue;
        if (pf_detokenize(m, &tok[i], 1, PF_DETOK_CONTINUE | PF_DETOK_SPECIAL, piece, sizeof piece, &len) != PF_OK)
            len = 0;
        buf_puts(out, ",\"piece\":");
        json_quote(out, piece, len, false);
        buf_puts(out, "}");
    }
    buf_puts(out, "]}\n");
}

static void answer_failed(struct exchange *x)
{
    refuse(x, &(struct trouble){ .status = 500, .why = pf_last_error() });
}

static void tokenize(struct exchange *x)
{
    static const struct field fields[] = {
        { "content", FIELD_TEXT, offsetof(struct tokenize_request, content), 0, 0, NULL },
        { "prompt", FIELD_TEXT, offsetof(struct tokenize_request, content), 0, 0, NULL },
        { "add_special", FIELD_BOOL, offsetof(struct tokenize_request, add_special), 0, 0, NULL },
        { "parse_special", FIELD_BOOL, offsetof(struct tokenize_request, parse_special), 0, 0, NULL },
        { "with_pieces", FIELD_BOOL, offsetof(struct tokenize_request, with_pieces), 0, 0, NULL }, { 0 } };
    const struct server *server = exchange_ctx(x);
    struct arena arena = { 0 };
    struct reader r = { .arena = &arena };
    struct tokenize_request q = { .parse_special = true };
    struct json body;
    if (!json_body(x, &body))
        return;
    int32_t *tok = NULL;
    size_t n = 0;
    if (!read_fields(&r, body, fields, &q) || (!q.content && !read_fail_at(&r, "content", "is missing"))) {
        answer_wrong_field(x, &r);
    } else if (prompt_tokenize(server->m, q.content, strlen(q.content), (q.add_special ? PF_TOK_ADD_SPECIAL : 0) |
                               (q.parse_special ? PF_TOK_PARSE_SPECIAL : 0), &tok, &n) < 0) {
        answer_failed(x);
    } else {
        struct buf out = { 0 };
        put_pieces(&out, server->m, tok, n, q.with_pieces);
        send_json(x, &out);
    }
    free(tok);
    arena_free(&arena);
}

struct id_list {
    int32_t *tok;
    size_t   n, cap;
    int64_t  n_vocab;
};

static bool read_token(struct reader *r, struct json v, void *to)
{
    struct id_list *ids = to;
    int64_t id;
    if (!json_is(v, '0') || !json_int(v, &id) || id < 0 || id >= ids->n_vocab)
        return read_fail(r, "must be a token's number, 0 to %lld", (long long)ids->n_vocab - 1);
    if (ids->n == ids->cap) {
        ids->cap = 2 * ids->cap + 64;
        ids->tok = xrealloc(ids->tok, ids->cap, sizeof *ids->tok);
    }
    ids->tok[ids->n++] = (int32_t)id;
    return true;
}

static bool read_tokens(struct reader *r, struct json v, void *to)
{
    return read_elements(r, v, INT32_MAX, read_token, to);
}

static void detokenize(struct exchange *x)
{
    static const struct field fields[] = { { "tokens", FIELD_BY, 0, 0, 0, read_tokens }, { 0 } };
    const struct server *server = exchange_ctx(x);
    struct arena arena = { 0 };
    struct reader r = { .arena = &arena };
    struct id_list ids = { .n_vocab = pf_model_info(server->m)->n_vocab };
    struct buf text = { 0 }, out = { 0 };
    struct json body;
    size_t need = 0;
    if (!json_body(x, &body))
        return;
    if (!read_fields(&r, body, fields, &ids) ||
        (!json_get(body, "tokens").p && !read_fail_at(&r, "tokens", "is missing"))) {
        answer_wrong_field(x, &r);
    } else if (pf_detokenize(server->m, ids.tok, ids.n, PF_DETOK_SPECIAL, NULL, 0, &need) < 0 && need == 0) {
        answer_failed(x);
    } else {
        buf_reserve(&text, need + 1);
        pf_detokenize(server->m, ids.tok, ids.n, PF_DETOK_SPECIAL, text.p, need, &need);
        buf_puts(&out, "{\"content\":");
        json_quote(&out, text.p, need, false);
        buf_puts(&out, "}\n");
        send_json(x, &out);
    }
    buf_free(&text);
    free(ids.tok);
    arena_free(&arena);
}

const struct route routes[] = {
    { "GET", "/", ROUTE_AT_ONCE | ROUTE_OPEN, page, openai_error },
    { "GET", "/health", ROUTE_AT_ONCE | ROUTE_OPEN, health, openai_error },
    { "GET", "/v1/models", ROUTE_AT_ONCE, models, openai_error },
    { "GET", "/v1/models/", ROUTE_AT_ONCE, one_model, openai_error },
    { "GET", "/models", ROUTE_AT_ONCE, models, openai_error },
    { "GET", "/props", ROUTE_AT_ONCE, props, openai_error },
    { "GET", "/metrics", 0, show_metrics, openai_error },
    { "POST", "/v1/chat/completions", 0, chat_completions, openai_error },
    { "POST", "/chat/completions", 0, chat_completions, openai_error },
    { "POST", "/v1/completions", 0, completions, openai_error },
    { "POST", "/v1/responses", 0, responses, openai_error },
    { "POST", "/v1/messages", 0, messages, anthropic_error },
    { "POST", "/v1/responses/input_tokens", 0, count_of_response, openai_error },
    { "POST", "/v1/messages/count_tokens", 0, count_of_messages, anthropic_error },
    { "POST", "/v1/embeddings", ROUTE_AT_ONCE, embeddings, openai_error },
    { "POST", "/tokenize", 0, tokenize, openai_error },
    { "POST", "/detokenize", 0, detokenize, openai_error },
    { 0 },
};
