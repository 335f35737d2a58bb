/* OpenAI's chat and text completions: answers, chunks and errors. Timings are llama-server's, which llama-swap and
 * others read. */

#include "serve/api/messages.h"
#include "serve/api/openai.h"
#include "serve/server.h"

/* ---- Errors ------------------------------------------------------------------------------------------------------ */

void openai_error(struct buf *out, const struct trouble *t)
{
    buf_puts(out, "{\"error\":{\"message\":");
    struct buf why = { 0 };
    if (t->field)
        buf_printf(&why, "%s: ", t->field);
    buf_puts(&why, t->why);
    quote(out, buf_text(&why));
    buf_free(&why);
    buf_printf(out, ",\"type\":\"%s\",\"param\":", t->status == 401 ? "authentication_error"
                                                  : t->status >= 500 ? "server_error" : "invalid_request_error");
    if (t->field)
        quote(out, t->field);
    else
        buf_puts(out, "null");
    buf_puts(out, ",\"code\":");
    if (t->code)
        quote(out, t->code);
    else
        buf_puts(out, t->status == 401 ? "\"invalid_api_key\"" : "null");
    buf_puts(out, "}}\n");
}

/* ---- Answers: pieces --------------------------------------------------------------------------------------------- */

static const char *finish_word(enum finish f)
{
    return f == FINISH_LENGTH ? "length" : f == FINISH_CALLS ? "tool_calls" : "stop";
}

static double per_second(size_t n, double s)
{
    return s > 0 ? (double)n / s : 0;
}

void openai_put_timings(struct buf *out, const struct usage *u)
{
    size_t fresh = u->n_prompt - u->n_cached;
    buf_printf(out, "\"timings\":{\"cache_n\":%zu,\"prompt_n\":%zu,\"prompt_ms\":%.3f,\"prompt_per_token_ms\":%.4f,"
               "\"prompt_per_second\":%.3f,\"predicted_n\":%zu,\"predicted_ms\":%.3f,\"predicted_per_token_ms\":%.4f,"
               "\"predicted_per_second\":%.3f", u->n_cached, fresh, u->prompt_s * 1e3,
               fresh ? u->prompt_s * 1e3 / (double)fresh : 0, per_second(fresh, u->prompt_s), u->n_answer,
               u->answer_s * 1e3, u->n_answer ? u->answer_s * 1e3 / (double)u->n_answer : 0,
               per_second(u->n_answer, u->answer_s));
    if (u->n_drafted)
        buf_printf(out, ",\"draft_n\":%llu,\"draft_n_accepted\":%llu", (unsigned long long)u->n_drafted,
                   (unsigned long long)u->n_accepted);
    buf_puts(out, "}");
}

static void put_usage(struct buf *out, const struct usage *u)
{
    buf_printf(out, "\"usage\":{\"prompt_tokens\":%zu,\"completion_tokens\":%zu,\"total_tokens\":%zu,"
               "\"prompt_tokens_details\":{\"cached_tokens\":%zu},"
               "\"completion_tokens_details\":{\"reasoning_tokens\":%zu}}", u->n_prompt, u->n_answer,
               u->n_prompt + u->n_answer, u->n_cached, u->n_reasoning);
}

/* The members that every object of an answer begins with; the caller closes it. */
static void put_head(struct buf *out, const struct job *j, const char *object)
{
    buf_printf(out, "{\"id\":\"%s-%s\",\"object\":\"%s\",\"created\":%lld,\"model\":",
               j->req.chat ? "chatcmpl" : "cmpl", j->id, object, (long long)j->created);
    quote(out, j->req.model);
    buf_printf(out, ",\"system_fingerprint\":\"pfmoe-%s\"", pf_version());
}

static void put_event(struct job *j, struct buf *json)
{
    struct buf event = { 0 };
    buf_puts(&event, "data: ");
    buf_add(&event, json->p, json->n);
    buf_puts(&event, "\n\n");
    exchange_put(j->x, event.p, event.n);
    buf_free(&event);
    buf_free(json);
}

static void put_text(struct buf *out, const char *key, const struct buf *text)
{
    buf_printf(out, "\"%s\":", key);
    json_quote(out, buf_text(text), text->n, false);
}

/* ---- Answers: log-probabilities ---------------------------------------------------------------------------------- */

static void piece_of(const struct job *j, int32_t tok, struct buf *out)
{
    const struct server *server = exchange_ctx(j->x);
    char piece[512];
    size_t n = 0;
    if (pf_detokenize(server->m, &tok, 1, PF_DETOK_CONTINUE | PF_DETOK_SPECIAL, piece, sizeof piece, &n) == PF_OK)
        buf_add(out, piece, n);
}

static void put_token(const struct job *j, struct buf *out, const struct token_logprob *t)
{
    struct buf piece = { 0 };
    piece_of(j, t->tok, &piece);
    buf_puts(out, "{");
    put_text(out, "token", &piece);
    buf_printf(out, ",\"logprob\":%.6f,\"bytes\":[", t->logprob < -9999 ? -9999 : t->logprob);
    for (size_t i = 0; i < piece.n; i++)
        buf_printf(out, "%s%d", i ? "," : "", (unsigned char)piece.p[i]);
    buf_puts(out, "]");
    buf_free(&piece);
}

static void chat_logprob(struct job *j, int choice, const struct token_logprob *chosen, const struct token_logprob *top,
                         int n_top)
{
    struct buf *out = &j->choices[choice].logprobs;
    buf_puts(out, out->n ? "," : "");
    put_token(j, out, chosen);
    buf_puts(out, ",\"top_logprobs\":[");
    for (int i = 0; i < n_top; i++) {
        buf_puts(out, i ? "," : "");
        put_token(j, out, &top[i]);
        buf_puts(out, "}");
    }
    buf_puts(out, "]}");
}

/* The log-probabilities that were not sent yet. */
static void put_chat_logprobs(struct buf *out, const struct job *j, struct choice *c)
{
    if (!j->req.logprobs) {
        buf_puts(out, ",\"logprobs\":null");
        return;
    }
    size_t from = c->n_logprobs_sent + (c->n_logprobs_sent > 0 && c->logprobs.n > c->n_logprobs_sent);
    buf_puts(out, ",\"logprobs\":{\"content\":[");
    buf_add(out, buf_text(&c->logprobs) + from, c->logprobs.n - from);
    buf_puts(out, "]}");
    c->n_logprobs_sent = c->logprobs.n;
}

/* ---- Answers: chat ----------------------------------------------------------------------------------------------- */

/* A chunk with `delta`, JSON text, of one choice. */
static void put_chunk(struct job *j, int choice, const char *delta, const char *finish)
{
    struct buf out = { 0 };
    struct choice *c = &j->choices[choice];
    put_head(&out, j, "chat.completion.chunk");
    buf_printf(&out, ",\"choices\":[{\"index\":%d,\"delta\":%s", choice, delta);
    put_chat_logprobs(&out, j, c);
    buf_printf(&out, finish ? ",\"finish_reason\":\"%s\"}]" : ",\"finish_reason\":null}]", finish);
    if (j->req.stream_usage) {
        buf_puts(&out, ",\"usage\":null");
    } else if (finish && j->n_ended == j->n_choices) {
        buf_puts(&out, ",");
        openai_put_timings(&out, &j->usage);
    }
    buf_puts(&out, "}");
    put_event(j, &out);
}

static void chat_begin(struct job *j)
{
    for (int i = 0; i < j->n_choices; i++)
        put_chunk(j, i, "{\"role\":\"assistant\",\"content\":\"\"}", NULL);
}

static void chat_delta(struct job *j, const struct delta *d)
{
    struct buf out = { 0 };
    const struct call *c = d->kind >= DELTA_CALL ? &j->choices[d->choice].calls[d->call] : NULL;
    switch (d->kind) {
    case DELTA_CONTENT:
    case DELTA_REASONING:
        buf_puts(&out, d->kind == DELTA_CONTENT ? "{\"content\":" : "{\"reasoning_content\":");
        json_quote(&out, d->text, d->n, false);
        buf_puts(&out, "}");
        break;
    case DELTA_CALL:
        buf_printf(&out, "{\"tool_calls\":[{\"index\":%d,\"id\":", d->call);
        quote(&out, c->id);
        buf_puts(&out, ",\"type\":\"function\",\"function\":{");
        put_text(&out, "name", &c->name);
        buf_puts(&out, ",\"arguments\":\"\"}}]}");
        break;
    case DELTA_ARGUMENTS:
        buf_printf(&out, "{\"tool_calls\":[{\"index\":%d,\"function\":{\"arguments\":", d->call);
        json_quote(&out, d->text, d->n, false);
        buf_puts(&out, "}}]}");
        break;
    case DELTA_CALL_END:
        return;
    }
    put_chunk(j, d->choice, out.p, NULL);
    buf_free(&out);
}

static void chat_choice_end(struct job *j, int choice)
{
    put_chunk(j, choice, "{}", finish_word(j->choices[choice].finish));
}

static void put_calls(struct buf *out, const struct choice *c)
{
    buf_puts(out, ",\"tool_calls\":[");
    for (size_t i = 0; i < c->n_calls; i++) {
        buf_puts(out, i ? ",{\"id\":" : "{\"id\":");
        quote(out, c->calls[i].id);
        buf_puts(out, ",\"type\":\"function\",\"function\":{");
        put_text(out, "name", &c->calls[i].name);
        buf_puts(out, ",");
        put_text(out, "arguments", &c->calls[i].arguments);
        buf_puts(out, "}}");
    }
    buf_puts(out, "]");
}

static void put_choice(struct buf *out, struct job *j, int i)
{
    struct choice *c = &j->choices[i];
    buf_printf(out, "%s{\"index\":%d,\"message\":{\"role\":\"assistant\",", i ? "," : "", i);
    if (c->content.n == 0 && c->n_calls)
        buf_puts(out, "\"content\":null");
    else
        put_text(out, "content", &c->content);
    buf_puts(out, ",\"refusal\":null,\"annotations\":[]");
    if (c->reasoning.n) {
        buf_puts(out, ",");
        put_text(out, "reasoning_content", &c->reasoning);
    }
    if (c->n_calls)
        put_calls(out, c);
    buf_puts(out, "}");
    put_chat_logprobs(out, j, c);
    buf_printf(out, ",\"finish_reason\":\"%s\"}", finish_word(c->finish));
}

/* The last chunk of a stream, if it was asked for: usage without a choice. */
static void end_stream(struct job *j, const char *object)
{
    if (j->req.stream_usage) {
        struct buf out = { 0 };
        put_head(&out, j, object);
        buf_puts(&out, ",\"choices\":[],");
        put_usage(&out, &j->usage);
        buf_puts(&out, ",");
        openai_put_timings(&out, &j->usage);
        buf_puts(&out, "}");
        put_event(j, &out);
    }
    exchange_put(j->x, "data: [DONE]\n\n", 14);
}

static void answer_whole(struct job *j, const char *object, void (*put_one)(struct buf *, struct job *, int))
{
    struct buf out = { 0 };
    put_head(&out, j, object);
    buf_puts(&out, ",\"choices\":[");
    for (int i = 0; i < j->n_choices; i++)
        put_one(&out, j, i);
    buf_puts(&out, "],");
    put_usage(&out, &j->usage);
    buf_puts(&out, ",");
    openai_put_timings(&out, &j->usage);
    buf_puts(&out, "}\n");
    exchange_answer(j->x, 200, "application/json", out.p, out.n);
    buf_free(&out);
}

static void chat_end(struct job *j)
{
    if (j->req.stream)
        end_stream(j, "chat.completion.chunk");
    else
        answer_whole(j, "chat.completion", put_choice);
}

static void broken(struct job *j, const struct trouble *t)
{
    struct buf out = { 0 };
    openai_error(&out, t);
    out.n--;                             /* without the newline */
    put_event(j, &out);
}

const struct protocol openai_chat = { "call_", openai_read_chat, chat_begin, chat_delta, chat_choice_end, chat_end,
                                      broken, chat_logprob };

/* ---- Answers: text ----------------------------------------------------------------------------------------------- */

/* Elements are [token, logprob, {top}] until they are printed as the interface's four lists. */
static void text_logprob(struct job *j, int choice, const struct token_logprob *chosen, const struct token_logprob *top,
                         int n_top)
{
    struct buf *out = &j->choices[choice].logprobs, piece = { 0 };
    piece_of(j, chosen->tok, &piece);
    buf_puts(out, out->n ? ",[" : "[");
    json_quote(out, buf_text(&piece), piece.n, false);
    buf_printf(out, ",%.6f,{", chosen->logprob);
    for (int i = 0; i < n_top; i++) {
        buf_clear(&piece);
        piece_of(j, top[i].tok, &piece);
        buf_puts(out, i ? "," : "");
        json_quote(out, buf_text(&piece), piece.n, false);
        buf_printf(out, ":%.6f", top[i].logprob);
    }
    buf_puts(out, "}]");
    buf_free(&piece);
}

static void put_list(struct buf *out, const char *key, struct json elements, int which)
{
    struct json e = { 0 };
    bool first = true;
    buf_printf(out, "\"%s\":[", key);
    while ((e = json_next(elements, e)).p) {
        struct json v = { 0 };
        for (int i = 0; i <= which; i++)
            v = json_next(e, v);
        buf_puts(out, first ? "" : ",");
        buf_add(out, v.p, v.n);
        first = false;
    }
    buf_puts(out, "]");
}

static void put_text_logprobs(struct buf *out, const struct job *j, struct choice *c)
{
    struct buf all = { 0 };
    if (!j->req.logprobs) {
        buf_puts(out, ",\"logprobs\":null");
        return;
    }
    size_t from = c->n_logprobs_sent + (c->n_logprobs_sent > 0 && c->logprobs.n > c->n_logprobs_sent);
    buf_puts(&all, "[");
    buf_add(&all, buf_text(&c->logprobs) + from, c->logprobs.n - from);
    buf_puts(&all, "]");
    c->n_logprobs_sent = c->logprobs.n;
    struct json elements = { all.p, all.n };
    buf_puts(out, ",\"logprobs\":{");
    put_list(out, "tokens", elements, 0);
    buf_puts(out, ",");
    put_list(out, "token_logprobs", elements, 1);
    buf_puts(out, ",");
    put_list(out, "top_logprobs", elements, 2);
    buf_puts(out, "}");
    buf_free(&all);
}

static void put_text_chunk(struct job *j, int choice, const char *text, size_t n, const char *finish)
{
    struct buf out = { 0 };
    put_head(&out, j, "text_completion");
    buf_printf(&out, ",\"choices\":[{\"index\":%d,\"text\":", choice);
    json_quote(&out, text, n, false);
    put_text_logprobs(&out, j, &j->choices[choice]);
    buf_printf(&out, finish ? ",\"finish_reason\":\"%s\"}]}" : ",\"finish_reason\":null}]}", finish);
    put_event(j, &out);
}

static void text_begin(struct job *j)
{
    (void)j;
}

static void text_delta(struct job *j, const struct delta *d)
{
    if (d->kind == DELTA_CONTENT)
        put_text_chunk(j, d->choice, d->text, d->n, NULL);
}

static void text_choice_end(struct job *j, int choice)
{
    put_text_chunk(j, choice, "", 0, finish_word(j->choices[choice].finish));
}

static void put_text_choice(struct buf *out, struct job *j, int i)
{
    struct choice *c = &j->choices[i];
    buf_printf(out, "%s{\"index\":%d,", i ? "," : "", i);
    put_text(out, "text", &c->content);
    put_text_logprobs(out, j, c);
    buf_printf(out, ",\"finish_reason\":\"%s\"}", finish_word(c->finish));
}

static void text_end(struct job *j)
{
    if (j->req.stream)
        end_stream(j, "text_completion");
    else
        answer_whole(j, "text_completion", put_text_choice);
}

const struct protocol openai_text = { "call_", openai_read_text, text_begin, text_delta, text_choice_end, text_end,
                                      broken, text_logprob };
