/* Anthropic's messages: answers, events and errors; anthropic_read.c reads the requests.
 *
 * An answer is a list of blocks: thinking, text, one a call. In a stream a block is opened by the first delta of its
 * kind and closed by the first of another. */
#include "serve/api/anthropic.h"

#include "serve/api/messages.h"
#include "serve/server.h"

/* ---- Errors ------------------------------------------------------------------------------------------------------ */

static const char *error_type(int status)
{
    switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 503: return "overloaded_error";
    default:  return status >= 500 ? "api_error" : "invalid_request_error";
    }
}

/* The member "error". */
static void put_error(struct buf *out, const struct trouble *t)
{
    struct buf why = { 0 };
    if (t->field)
        buf_printf(&why, "%s: ", t->field);
    buf_puts(&why, t->why);
    buf_printf(out, ",\"error\":{\"type\":\"%s\",\"message\":", error_type(t->status));
    quote(out, buf_text(&why));
    buf_puts(out, "}");
    buf_free(&why);
}

void anthropic_error(struct buf *out, const struct trouble *t)
{
    buf_puts(out, "{\"type\":\"error\"");
    put_error(out, t);
    buf_puts(out, "}\n");
}

/* ---- Events ------------------------------------------------------------------------------------------------------ */

struct blocks {
    int index;                       /* of the open block, or of the next one */
    int open;                        /* its enum delta_kind; -1: none is open */
    int call;                        /* of a block of a call */
};

static void put_event(struct job *j, const char *name, struct buf *data)
{
    struct buf event = { 0 };
    buf_printf(&event, "event: %s\ndata: {\"type\":\"%s\"", name, name);
    buf_add(&event, buf_text(data), data->n);
    buf_puts(&event, "}\n\n");
    exchange_put(j->x, event.p, event.n);
    buf_free(&event);
    buf_free(data);
}

static void put_usage(struct buf *out, const struct usage *u)
{
    buf_printf(out, "\"usage\":{\"input_tokens\":%zu,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":%zu,"
               "\"output_tokens\":%zu,\"cache_creation\":null,\"inference_geo\":null,\"output_tokens_details\":null,"
               "\"server_tool_use\":null,\"service_tier\":null}", u->n_prompt - u->n_cached, u->n_cached, u->n_answer);
}

static void put_head(struct buf *out, const struct job *j)
{
    buf_printf(out, "\"id\":\"msg_%s\",\"type\":\"message\",\"role\":\"assistant\",\"model\":", j->id);
    quote(out, j->req.model);
}

static void begin(struct job *j)
{
    struct buf data = { 0 };
    struct blocks *b = arena_take(&j->arena, 1, sizeof *b);
    b->open = -1;
    j->state = b;
    buf_puts(&data, ",\"message\":{");
    put_head(&data, j);
    buf_puts(&data, ",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,");
    put_usage(&data, &j->usage);
    buf_puts(&data, "}");
    put_event(j, "message_start", &data);
    put_event(j, "ping", &data);
}

static void close_block(struct job *j)
{
    struct blocks *b = j->state;
    struct buf data = { 0 };
    if (b->open < 0)
        return;
    if (b->open == DELTA_REASONING) {
        buf_printf(&data, ",\"index\":%d,\"delta\":{\"type\":\"signature_delta\",\"signature\":\"\"}", b->index);
        put_event(j, "content_block_delta", &data);
    }
    buf_printf(&data, ",\"index\":%d", b->index++);
    put_event(j, "content_block_stop", &data);
    b->open = -1;
}

static void open_block(struct job *j, int kind, int call)
{
    struct blocks *b = j->state;
    struct buf data = { 0 };
    if (b->open == kind && b->call == call)
        return;
    close_block(j);
    b->open = kind;
    b->call = call;
    buf_printf(&data, ",\"index\":%d,\"content_block\":{", b->index);
    if (kind == DELTA_CONTENT) {
        buf_puts(&data, "\"type\":\"text\",\"citations\":null,\"text\":\"\"}");
    } else if (kind == DELTA_REASONING) {
        buf_puts(&data, "\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}");
    } else {
        const struct call *c = &j->choices[0].calls[call];
        buf_puts(&data, "\"type\":\"tool_use\",\"id\":");
        quote(&data, c->id);
        buf_puts(&data, ",\"name\":");
        quote(&data, buf_text(&c->name));
        buf_puts(&data, ",\"caller\":{\"type\":\"direct\"},\"input\":{}}");
    }
    put_event(j, "content_block_start", &data);
}

static void delta(struct job *j, const struct delta *d)
{
    static const char *const names[] = {
        [DELTA_CONTENT] = "\"text_delta\",\"text\":", [DELTA_REASONING] = "\"thinking_delta\",\"thinking\":",
        [DELTA_ARGUMENTS] = "\"input_json_delta\",\"partial_json\":" };
    bool of_call = d->kind >= DELTA_CALL;
    if (d->kind == DELTA_CALL_END)
        return;
    open_block(j, of_call ? DELTA_CALL : (int)d->kind, of_call ? d->call : 0);
    if (d->kind == DELTA_CALL)
        return;
    struct buf data = { 0 };
    buf_printf(&data, ",\"index\":%d,\"delta\":{\"type\":%s", ((struct blocks *)j->state)->index, names[d->kind]);
    json_quote(&data, d->text, d->n, false);
    buf_puts(&data, "}");
    put_event(j, "content_block_delta", &data);
}

static void put_ending(struct buf *out, const struct choice *c)
{
    static const char *const words[] = { [FINISH_STOP] = "end_turn", [FINISH_STOP_STRING] = "stop_sequence",
                                         [FINISH_LENGTH] = "max_tokens", [FINISH_CALLS] = "tool_use" };
    buf_printf(out, "\"stop_details\":null,\"stop_reason\":\"%s\",\"stop_sequence\":", words[c->finish]);
    if (c->finish == FINISH_STOP_STRING && c->stop_string)
        quote(out, c->stop_string);
    else
        buf_puts(out, "null");
}

static void choice_end(struct job *j, int choice)
{
    (void)choice;
    close_block(j);
}

static void put_blocks(struct buf *out, const struct choice *c)
{
    const char *comma = "";
    if (c->reasoning.n) {
        buf_puts(out, "{\"type\":\"thinking\",\"thinking\":");
        json_quote(out, c->reasoning.p, c->reasoning.n, false);
        buf_puts(out, ",\"signature\":\"\"}");
        comma = ",";
    }
    if (c->content.n || (!c->n_calls && !c->reasoning.n)) {
        buf_printf(out, "%s{\"type\":\"text\",\"citations\":null,\"text\":", comma);
        json_quote(out, buf_text(&c->content), c->content.n, false);
        buf_puts(out, "}");
        comma = ",";
    }
    for (size_t i = 0; i < c->n_calls; i++) {
        buf_printf(out, "%s{\"type\":\"tool_use\",\"id\":", comma);
        quote(out, c->calls[i].id);
        buf_puts(out, ",\"name\":");
        quote(out, buf_text(&c->calls[i].name));
        buf_printf(out, ",\"caller\":{\"type\":\"direct\"},\"input\":%s}",
                   c->calls[i].arguments.n ? c->calls[i].arguments.p : "{}");
        comma = ",";
    }
}

static void end(struct job *j)
{
    struct buf out = { 0 };
    if (j->req.stream) {
        buf_puts(&out, ",\"delta\":{");
        put_ending(&out, &j->choices[0]);
        buf_puts(&out, "},");
        put_usage(&out, &j->usage);
        put_event(j, "message_delta", &out);
        put_event(j, "message_stop", &out);
        return;
    }
    buf_puts(&out, "{");
    put_head(&out, j);
    buf_puts(&out, ",\"container\":null,\"content\":[");
    put_blocks(&out, &j->choices[0]);
    buf_puts(&out, "],");
    put_ending(&out, &j->choices[0]);
    buf_puts(&out, ",");
    put_usage(&out, &j->usage);
    buf_puts(&out, "}\n");
    exchange_answer(j->x, 200, "application/json", out.p, out.n);
    buf_free(&out);
}

static void broken(struct job *j, const struct trouble *t)
{
    struct buf data = { 0 };
    put_error(&data, t);
    put_event(j, "error", &data);
}

const struct protocol anthropic_messages = { "toolu_", anthropic_read, begin, delta, choice_end, end, broken, NULL };

const struct protocol anthropic_count = { .read = anthropic_read_count };
