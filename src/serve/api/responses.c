/* OpenAI's responses: items in, items and events out. Nothing is stored: previous_response_id is refused.
 *
 * An answer's items are a reasoning, a message and one for each call, in the order in which they come. In a stream an
 * item is opened by the first delta of its kind and closed by the first of another. */
#include "serve/api/responses.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "serve/api/messages.h"
#include "serve/api/openai.h"
#include "serve/server.h"

#define AT(member) offsetof(struct request, member)

/* ---- Requests: items --------------------------------------------------------------------------------------------- */

struct item {
    const char *type, *role, *call_id, *name, *arguments;
    struct json content, output, summary;
};

/* What an assistant said, thought and called comes in items of their own; templates want one message. */
struct items {
    struct job *j;
    bool        open;                /* the last message is an assistant's, and goes on */
    struct buf  reasoning;
};

static bool read_part(struct reader *r, struct json v, void *to)
{
    struct { const char *type, *text, *refusal; } p = { 0 };
    static const struct field fields[] = { { "type", FIELD_TEXT, 0, 0, 0, NULL },
                                           { "text", FIELD_TEXT, sizeof(char *), 0, 0, NULL },
                                           { "refusal", FIELD_TEXT, 2 * sizeof(char *), 0, 0, NULL }, { 0 } };
    static const char *const known[] = { "input_text", "output_text", "text", "summary_text", "reasoning_text",
                                         "refusal" };
    struct buf *out = to;
    bool is_known = !p.type;
    if (!read_fields(r, v, fields, &p))
        return false;
    for (size_t i = 0; p.type && i < sizeof known / sizeof *known; i++)
        is_known = i == 0 ? strcmp(known[i], p.type) == 0 : is_known || strcmp(known[i], p.type) == 0;
    if (!is_known)
        return read_fail_at(r, "type", "parts of the kind \"%.40s\" are not supported", p.type);
    const char *text = p.text ? p.text : p.refusal;
    if (!text)
        return read_fail_at(r, "text", "is missing");
    buf_puts(out, out->n ? "\n" : "");
    buf_puts(out, text);
    return true;
}

/* A string or an array of parts in a member of the item. */
static bool read_texts(struct reader *r, const char *member, struct json v, struct buf *out)
{
    size_t n = strlen(r->path);
    snprintf(r->path + n, sizeof r->path - n, ".%s", member);
    if (json_is(v, '"'))
        buf_puts(out, read_text(r, v, NULL));
    else if (!json_is(v, '['))
        return read_fail(r, v.p ? "must be a string or an array of parts" : "is missing");
    else if (!read_elements(r, v, MOST_PARTS, read_part, out))
        return false;
    r->path[n] = 0;
    return true;
}

static void close_assistant(struct items *t)
{
    struct request *q = &t->j->req;
    if (!t->open)
        return;
    if (t->reasoning.n)
        q->msgs[q->n_msgs - 1].reasoning = arena_text(&t->j->arena, t->reasoning.p, t->reasoning.n);
    buf_clear(&t->reasoning);
    message_end(t->j);
    t->open = false;
}

static void open_assistant(struct items *t)
{
    if (!t->open)
        message_begin(t->j, "assistant");
    t->open = true;
}

static bool read_said(struct reader *r, const struct item *in, struct items *t)
{
    static const char *const roles[] = { "user", "system", "developer" };
    struct buf text = { 0 };
    bool known = false;
    if (!in->role)
        return read_fail_at(r, "role", "is missing");
    bool assistant = strcmp(in->role, "assistant") == 0;
    for (size_t i = 0; i < 3; i++)
        known |= strcmp(roles[i], in->role) == 0;
    if (!known && !assistant)
        return read_fail_at(r, "role", "must be user, assistant, system or developer");
    bool ok = read_texts(r, "content", in->content, &text);
    if (ok && assistant && t->open && t->j->building.calls.n)
        close_assistant(t);              /* what is said after calls is another turn */
    if (ok && assistant) {
        open_assistant(t);
    } else if (ok) {
        close_assistant(t);
        message_begin(t->j, in->role);
    }
    if (ok)
        message_text(t->j, buf_text(&text), text.n);
    if (ok && !assistant)
        message_end(t->j);
    buf_free(&text);
    return ok;
}

static bool read_thought(struct reader *r, const struct item *in, struct items *t)
{
    struct buf text = { 0 };
    bool content = in->content.p && !json_is(in->content, 'n');
    bool ok = content ? read_texts(r, "content", in->content, &text)
                      : !in->summary.p || read_texts(r, "summary", in->summary, &text);
    if (ok) {
        if (t->open && (t->j->building.calls.n || t->j->building.text.n))
            close_assistant(t);
        open_assistant(t);
        buf_add(&t->reasoning, buf_text(&text), text.n);
    }
    buf_free(&text);
    return ok;
}

static bool read_output(struct reader *r, const struct item *in, struct items *t)
{
    struct buf text = { 0 };
    if (!in->call_id)
        return read_fail_at(r, "call_id", "is missing");
    bool ok = read_texts(r, "output", in->output, &text);
    if (ok) {
        close_assistant(t);
        message_begin(t->j, "tool")->tool_call_id = in->call_id;
        message_text(t->j, buf_text(&text), text.n);
        message_end(t->j);
    }
    buf_free(&text);
    return ok;
}

static bool read_item(struct reader *r, struct json v, void *to)
{
    static const struct field fields[] = {
        { "type", FIELD_TEXT, offsetof(struct item, type), 0, 0, NULL },
        { "role", FIELD_TEXT, offsetof(struct item, role), 0, 0, NULL },
        { "call_id", FIELD_TEXT, offsetof(struct item, call_id), 0, ID_BYTES, NULL },
        { "name", FIELD_TEXT, offsetof(struct item, name), 0, NAME_BYTES, NULL },
        { "arguments", FIELD_TEXT, offsetof(struct item, arguments), 0, 0, NULL },
        { "content", FIELD_RAW, offsetof(struct item, content), 0, 0, NULL },
        { "output", FIELD_RAW, offsetof(struct item, output), 0, 0, NULL },
        { "summary", FIELD_RAW, offsetof(struct item, summary), 0, 0, NULL }, { 0 } };
    struct item in = { 0 };
    struct items *t = to;
    if (!read_fields(r, v, fields, &in))
        return false;
    if (!in.type || strcmp(in.type, "message") == 0)
        return read_said(r, &in, t);
    if (strcmp(in.type, "reasoning") == 0)
        return read_thought(r, &in, t);
    if (strcmp(in.type, "function_call_output") == 0)
        return read_output(r, &in, t);
    if (strcmp(in.type, "function_call") != 0)
        return read_fail_at(r, "type", "an item \"%.40s\" is not supported", in.type);
    if (!in.call_id || !in.name)
        return read_fail_at(r, in.call_id ? "name" : "call_id", "is missing");
    open_assistant(t);
    message_call(t->j, in.call_id, in.name, in.arguments ? in.arguments : "", in.arguments ? strlen(in.arguments) : 0);
    return true;
}

static bool read_input(struct reader *r, struct json v, struct job *j)
{
    struct items t = { .j = j };
    if (json_is(v, '"')) {
        size_t n;
        const char *text = read_text(r, v, &n);
        message_begin(j, "user");
        message_text(j, text, n);
        message_end(j);
        return true;
    }
    if (!json_is(v, '['))
        return read_fail(r, "must be a string or an array of items");
    bool ok = read_elements(r, v, MOST_MESSAGES, read_item, &t);
    if (ok)
        close_assistant(&t);
    buf_free(&t.reasoning);
    return ok;
}

/* ---- Requests: the rest ------------------------------------------------------------------------------------------ */

/* Tools that a service would run itself (web_search and the like) are not there: the model is not told of them. */
static const struct dialect dialect = { .messages = "input", .read = read_input, .tool_type = "function",
                                        .skips_tools = true, .schema = "parameters" };

static bool read_reasoning(struct reader *r, struct json v, void *to)
{
    static const struct field fields[] = { { "effort", FIELD_BY, 0, 0, 0, openai_read_effort }, { 0 } };
    return read_fields(r, v, fields, to);
}

static bool read_text_settings(struct reader *r, struct json v, void *to)
{
    static const struct field fields[] = { { "format", FIELD_BY, 0, 0, 0, openai_read_format }, { 0 } };
    return read_fields(r, v, fields, to);
}

static bool read_previous(struct reader *r, struct json v, void *to)
{
    (void)v, (void)to;
    return read_fail(r, "nothing is stored here: send the whole input");
}

static bool read_request(struct job *j, struct reader *r, struct json body)
{
    struct { struct request q; struct json input, tools; const char *instructions; } in = { .q = j->req };
    in.q.model = NULL;
    enum { INPUT = sizeof(struct request), TOOLS = INPUT + sizeof(struct json),
           INSTRUCTIONS = TOOLS + sizeof(struct json) };
    static const struct field fields[] = {
        { "model", FIELD_TEXT, AT(model), 0, 256, NULL }, { "stream", FIELD_BOOL, AT(stream), 0, 0, NULL },
        { "input", FIELD_RAW, INPUT, 0, 0, NULL }, { "tools", FIELD_RAW, TOOLS, 0, 0, NULL },
        { "instructions", FIELD_TEXT, INSTRUCTIONS, 0, 0, NULL },
        { "max_output_tokens", FIELD_WHOLE, AT(max_tokens), 1, INT32_MAX, NULL },
        { "temperature", FIELD_REAL, AT(temp), 0, 2, NULL }, { "top_p", FIELD_REAL, AT(top_p), 0, 1, NULL },
        { "seed", FIELD_WHOLE, AT(seed), -9e18, 9e18, NULL },
        { "tool_choice", FIELD_BY, 0, 0, 0, openai_read_tool_choice },
        { "parallel_tool_calls", FIELD_BY, 0, 0, 0, openai_read_parallel },
        { "reasoning", FIELD_BY, 0, 0, 0, read_reasoning }, { "text", FIELD_BY, 0, 0, 0, read_text_settings },
        { "grammar", FIELD_BY, 0, 0, 0, openai_read_grammar },
        { "previous_response_id", FIELD_BY, 0, 0, 0, read_previous }, { 0 } };
    if (!read_fields(r, body, fields, &in))
        return false;
    j->req = in.q;
    j->req.chat = true;
    j->req.instructions = in.instructions;
    j->req.tools_given = in.tools.p ? arena_text(&j->arena, in.tools.p, in.tools.n) : NULL;
    if (!in.q.model)
        return read_fail_at(r, "model", "is missing");
    if (in.instructions && *in.instructions) {
        message_begin(j, "system");
        message_text(j, in.instructions, strlen(in.instructions));
        message_end(j);
    }
    return read_conversation(r, &dialect, in.input, in.tools, j);
}

/* ---- Answers: items ---------------------------------------------------------------------------------------------- */

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
    buf_printf(out, ",\"tools\":%s,\"tool_choice\":", q->tools_given ? q->tools_given : "[]");
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

/* ---- Answers: events --------------------------------------------------------------------------------------------- */

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

static void broken(struct job *j, const char *why)
{
    struct buf data = { 0 };
    buf_puts(&data, ",\"code\":\"server_error\",\"param\":null,\"message\":");
    quote(&data, why);
    put_event(j, "error", &data);
}

const struct protocol openai_responses = { "call_", read_request, begin, delta, choice_end, end, broken, NULL };
