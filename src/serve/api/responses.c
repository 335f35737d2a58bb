/* OpenAI's responses: answers, as items or as events; responses_read.c reads the requests.
 *
 * An answer's items are a reasoning, a message and one for each call, in the order in which they come. In a stream an
 * item is opened by the first delta of its kind and closed by the first of another. */
#include "serve/api/responses.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "serve/api/messages.h"
#include "serve/server.h"

/* ---- Items ------------------------------------------------------------------------------------------------------- */

struct stream {
    int    sequence;                 /* number of the next event */
    int    index;                    /* of the open item, or of the next one */
    int    open;                     /* its enum delta_kind; -1: none is open */
    int    call;
    size_t from;                     /* where its text begins in the choice's */
};

/* The id of item i. */
static void put_id(struct buf *out, const struct job *j, int kind, int i)
{
    buf_printf(out, "\"%s_%s%d\"", kind == DELTA_CONTENT ? "msg" : kind == DELTA_REASONING ? "rs" : "fc", j->id, i);
}

/* An item with so much of its text as it has. */
static void put_item(struct buf *out, const struct job *j, int kind, int i, int call, struct json text,
                     const char *status)
{
    const struct call *c = kind == DELTA_CALL ? &j->choices[0].calls[call] : NULL;
    buf_puts(out, "{\"id\":");
    put_id(out, j, kind, i);
    if (kind == DELTA_REASONING) {
        buf_puts(out, ",\"type\":\"reasoning\",\"summary\":[],\"content\":[");
        if (text.n) {
            buf_puts(out, "{\"type\":\"reasoning_text\",\"text\":");
            json_quote(out, text.p, text.n, false);
            buf_puts(out, "}");
        }
        buf_printf(out, "],\"status\":\"%s\"}", status);
    } else if (kind == DELTA_CONTENT) {
        buf_printf(out, ",\"type\":\"message\",\"role\":\"assistant\",\"status\":\"%s\",\"content\":[", status);
        if (text.p) {
            buf_puts(out, "{\"type\":\"output_text\",\"annotations\":[],\"logprobs\":[],\"text\":");
            json_quote(out, text.p, text.n, false);
            buf_puts(out, "}");
        }
        buf_puts(out, "]}");
    } else {
        buf_printf(out, ",\"type\":\"function_call\",\"status\":\"%s\",\"call_id\":", status);
        quote(out, c->id);
        buf_puts(out, ",\"name\":");
        quote(out, buf_text(&c->name));
        buf_puts(out, ",\"arguments\":");
        json_quote(out, text.p ? text.p : "", text.n, false);
        buf_puts(out, "}");
    }
}

static struct json all_of(const struct buf *b)
{
    return (struct json){ buf_text(b), b->n };
}

static void put_items(struct buf *out, const struct job *j)
{
    const struct choice *c = &j->choices[0];
    int i = 0;
    if (c->reasoning.n)
        put_item(out, j, DELTA_REASONING, i++, 0, all_of(&c->reasoning), "completed");
    if (c->content.n || (!c->n_calls && !c->reasoning.n)) {
        buf_puts(out, i ? "," : "");
        put_item(out, j, DELTA_CONTENT, i++, 0, all_of(&c->content), "completed");
    }
    for (size_t k = 0; k < c->n_calls; k++) {
        buf_puts(out, i ? "," : "");
        put_item(out, j, DELTA_CALL, i++, (int)k, all_of(&c->calls[k].arguments), "completed");
    }
}

static void put_usage(struct buf *out, const struct usage *u)
{
    buf_printf(out, "{\"input_tokens\":%zu,\"input_tokens_details\":{\"cached_tokens\":%zu},\"output_tokens\":%zu,"
               "\"output_tokens_details\":{\"reasoning_tokens\":%zu},\"total_tokens\":%zu}", u->n_prompt, u->n_cached,
               u->n_answer, u->n_reasoning, u->n_prompt + u->n_answer);
}

static void put_or_null(struct buf *out, const char *key, int64_t value)
{
    buf_printf(out, value == UNSET ? ",\"%s\":null" : ",\"%s\":%lld", key, (long long)value);
}

/* Tools as they were given. Functions have all fields that the protocol names, null where nothing was said. */
static void put_tools(struct buf *out, const struct request *q)
{
    static const char *const fields[] = { "description", "parameters", "strict" };
    struct json all = json_value(q->tools_given, strlen(q->tools_given)), tool = { 0 };
    buf_puts(out, "[");
    for (bool first = true; (tool = json_next(all, tool)).p; first = false) {
        buf_puts(out, first ? "" : ",");
        buf_add(out, tool.p, tool.n - 1);
        for (size_t i = 0; i < sizeof fields / sizeof *fields && json_get(tool, "name").p; i++)
            if (!json_get(tool, fields[i]).p)
                buf_printf(out, ",\"%s\":null", fields[i]);
        buf_puts(out, "}");
    }
    buf_puts(out, "]");
}

/* What was asked for, as far as it was understood. */
static void put_asked(struct buf *out, const struct request *q)
{
    static const char *const choices[] = { [TOOLS_AUTO] = "\"auto\"", [TOOLS_NONE] = "\"none\"",
                                           [TOOLS_REQUIRED] = "\"required\"" };
    static const char *const formats[] = { [SHAPE_FREE] = "text", [SHAPE_JSON] = "json_object", [SHAPE_GBNF] = "text" };
    buf_puts(out, ",\"instructions\":");
    if (q->instructions)
        quote(out, q->instructions);
    else
        buf_puts(out, "null");
    buf_puts(out, ",\"tools\":");
    if (q->tools_given)
        put_tools(out, q);
    else
        buf_puts(out, "[]");
    buf_puts(out, ",\"tool_choice\":");
    if (q->tool_choice == TOOLS_NAMED) {
        buf_puts(out, "{\"type\":\"function\",\"name\":");
        quote(out, q->tool_name);
        buf_puts(out, "}");
    } else {
        buf_puts(out, choices[q->tool_choice]);
    }
    put_or_null(out, "max_output_tokens", q->max_tokens);
    buf_printf(out, ",\"parallel_tool_calls\":%s,\"temperature\":%.6g,\"top_p\":%.6g,\"presence_penalty\":%.6g,"
               "\"frequency_penalty\":%.6g,\"text\":{\"format\":{\"type\":\"%s\"}},\"reasoning\":",
               q->one_call ? "false" : "true", q->temp, q->top_p, q->presence_penalty, q->frequency_penalty,
               formats[q->shape]);
    if (q->reasoning_effort)
        buf_printf(out, "{\"effort\":\"%s\",\"summary\":null}", q->reasoning_effort);
    else
        buf_puts(out, "null");
}

/* The response object: on its way, without items, or what it came to. */
static void put_response(struct buf *out, const struct job *j, bool done)
{
    bool cut = done && j->choices[0].finish == FINISH_LENGTH;
    buf_printf(out, "{\"id\":\"resp_%s\",\"object\":\"response\",\"created_at\":%lld,\"status\":\"%s\",\"error\":null,"
               "\"incomplete_details\":%s,\"model\":", j->id, (long long)j->created,
               cut ? "incomplete" : done ? "completed" : "in_progress",
               cut ? "{\"reason\":\"max_output_tokens\"}" : "null");
    quote(out, j->req.model);
    put_or_null(out, "completed_at", done && !cut ? (int64_t)time(NULL) : UNSET);
    put_asked(out, &j->req);
    buf_puts(out, ",\"previous_response_id\":null,\"store\":false,\"background\":false,\"truncation\":\"disabled\","
             "\"service_tier\":\"default\",\"metadata\":{},\"max_tool_calls\":null,\"top_logprobs\":0,"
             "\"safety_identifier\":null,\"prompt_cache_key\":null,\"output\":[");
    if (done)
        put_items(out, j);
    buf_puts(out, "],\"usage\":");
    if (done)
        put_usage(out, &j->usage);
    else
        buf_puts(out, "null");
    buf_puts(out, "}");
}

/* ---- Events ------------------------------------------------------------------------------------------------------ */

static void put_event(struct job *j, const char *name, struct buf *data)
{
    struct stream *s = j->state;
    struct buf event = { 0 };
    buf_printf(&event, "event: %s\ndata: {\"type\":\"%s\",\"sequence_number\":%d", name, name, s->sequence++);
    buf_add(&event, buf_text(data), data->n);
    buf_puts(&event, "}\n\n");
    exchange_put(j->x, event.p, event.n);
    buf_free(&event);
    buf_free(data);
}

/* The members that say which item, and which part of it, an event is about. */
static void put_place(struct buf *out, const struct job *j, bool part)
{
    const struct stream *s = j->state;
    buf_puts(out, ",\"item_id\":");
    put_id(out, j, s->open, s->index);
    buf_printf(out, ",\"output_index\":%d%s", s->index, part ? ",\"content_index\":0" : "");
}

static void tell_response(struct job *j, const char *name, bool done)
{
    struct buf data = { 0 };
    buf_puts(&data, ",\"response\":");
    put_response(&data, j, done);
    put_event(j, name, &data);
}

static void begin(struct job *j)
{
    struct stream *s = arena_take(&j->arena, 1, sizeof *s);
    s->open = -1;
    j->state = s;
    tell_response(j, "response.created", false);
    tell_response(j, "response.in_progress", false);
}

static void tell_item(struct job *j, const char *name, struct json text, const char *status)
{
    const struct stream *s = j->state;
    struct buf data = { 0 };
    buf_printf(&data, ",\"output_index\":%d,\"item\":", s->index);
    put_item(&data, j, s->open, s->index, s->call, text, status);
    put_event(j, name, &data);
}

static void tell_part(struct job *j, const char *name, struct json text)
{
    struct buf data = { 0 };
    put_place(&data, j, true);
    buf_puts(&data, ",\"part\":{\"type\":\"output_text\",\"annotations\":[],\"logprobs\":[],\"text\":");
    json_quote(&data, text.p, text.n, false);
    buf_puts(&data, "}");
    put_event(j, name, &data);
}

static void tell_text(struct job *j, const char *name, const char *member, const char *text, size_t n)
{
    struct buf data = { 0 };
    const struct stream *s = j->state;
    put_place(&data, j, s->open != DELTA_CALL);
    if (s->open == DELTA_CONTENT)
        buf_puts(&data, ",\"logprobs\":[]");
    buf_printf(&data, ",\"%s\":", member);
    json_quote(&data, text, n, false);
    put_event(j, name, &data);
}

static void close_item(struct job *j)
{
    struct stream *s = j->state;
    const struct choice *c = &j->choices[0];
    if (s->open < 0)
        return;
    const struct buf *all = s->open == DELTA_CONTENT ? &c->content : s->open == DELTA_REASONING ? &c->reasoning
                                                                   : &c->calls[s->call].arguments;
    struct json text = { buf_text(all) + s->from, all->n - s->from };
    if (s->open == DELTA_CALL) {
        tell_text(j, "response.function_call_arguments.done", "arguments", text.p, text.n);
    } else if (s->open == DELTA_REASONING) {
        tell_text(j, "response.reasoning_text.done", "text", text.p, text.n);
    } else {
        tell_text(j, "response.output_text.done", "text", text.p, text.n);
        tell_part(j, "response.content_part.done", text);
    }
    tell_item(j, "response.output_item.done", text, "completed");
    s->index++;
    s->open = -1;
}

/* before: how much of the kind's text was there before the delta that opens the item. */
static void open_item(struct job *j, int kind, int call, size_t before)
{
    struct stream *s = j->state;
    if (s->open == kind && s->call == call)
        return;
    close_item(j);
    s->open = kind;
    s->call = call;
    s->from = before;
    tell_item(j, "response.output_item.added", (struct json){ 0 }, "in_progress");
    if (kind == DELTA_CONTENT)
        tell_part(j, "response.content_part.added", (struct json){ "", 0 });
}

static void delta(struct job *j, const struct delta *d)
{
    const struct choice *c = &j->choices[0];
    switch (d->kind) {
    case DELTA_CONTENT:
        open_item(j, DELTA_CONTENT, 0, c->content.n - d->n);
        tell_text(j, "response.output_text.delta", "delta", d->text, d->n);
        break;
    case DELTA_REASONING:
        open_item(j, DELTA_REASONING, 0, c->reasoning.n - d->n);
        tell_text(j, "response.reasoning_text.delta", "delta", d->text, d->n);
        break;
    case DELTA_CALL:
        open_item(j, DELTA_CALL, d->call, 0);
        break;
    case DELTA_ARGUMENTS:
        open_item(j, DELTA_CALL, d->call, 0);
        tell_text(j, "response.function_call_arguments.delta", "delta", d->text, d->n);
        break;
    case DELTA_CALL_END:
        break;
    }
}

static void choice_end(struct job *j, int choice)
{
    (void)choice;
    close_item(j);
}

static void end(struct job *j)
{
    if (j->req.stream) {
        bool whole = j->choices[0].finish != FINISH_LENGTH;
        tell_response(j, whole ? "response.completed" : "response.incomplete", true);
        return;
    }
    struct buf out = { 0 };
    put_response(&out, j, true);
    buf_puts(&out, "\n");
    exchange_answer(j->x, 200, "application/json", out.p, out.n);
    buf_free(&out);
}

static void broken(struct job *j, const struct trouble *t)
{
    struct buf data = { 0 };
    buf_printf(&data, ",\"code\":\"%s\",\"param\":", t->status < 500 ? "invalid_request_error" : "server_error");
    if (t->field)
        quote(&data, t->field);
    else
        buf_puts(&data, "null");
    buf_puts(&data, ",\"message\":");
    quote(&data, t->why);
    put_event(j, "error", &data);
}

const struct protocol openai_responses = { "call_", responses_read, begin, delta, choice_end, end, broken, NULL };

const struct protocol openai_responses_count = { .read = responses_read_count };
