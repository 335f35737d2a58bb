/* See messages.h. */
#include "serve/api/messages.h"

#include <string.h>

void quote(struct buf *out, const char *text)
{
    json_quote(out, text, strlen(text), false);
}

/* Grows both arrays of messages to twice their size when n, a power of two, is reached. */
static void make_room(struct job *j)
{
    struct request *q = &j->req;
    size_t n = q->n_msgs;
    if (n & (n - 1))
        return;
    struct pf_message *msgs = arena_take(&j->arena, 2 * n + 1, sizeof *msgs);
    const char **texts = arena_take(&j->arena, 2 * n + 1, sizeof *texts);
    if (n) {
        memcpy(msgs, q->msgs, n * sizeof *msgs);
        memcpy(texts, q->calls_as_text, n * sizeof *texts);
    }
    q->msgs = msgs;
    q->calls_as_text = texts;
}

struct pf_message *message_begin(struct job *j, const char *role)
{
    struct request *q = &j->req;
    make_room(j);
    struct pf_message *m = &q->msgs[q->n_msgs++];
    m->role = role;
    m->content = "";
    return m;
}

void message_text(struct job *j, const char *text, size_t n)
{
    struct buf *b = &j->building.text;
    if (b->n)
        buf_puts(b, "\n");
    buf_add(b, text, n);
}

static void put_call(struct buf *out, const char *id, const char *name)
{
    buf_puts(out, out->n ? ", " : "[");
    buf_puts(out, "{\"id\": ");
    quote(out, id ? id : "");
    buf_puts(out, ", \"type\": \"function\", \"function\": {\"name\": ");
    quote(out, name);
    buf_puts(out, ", \"arguments\": ");
}

void message_call(struct job *j, const char *id, const char *name, const char *arguments, size_t n)
{
    struct buf *object = &j->building.calls, *text = &j->building.calls_as_text;
    size_t where;
    if (n == 0) {
        arguments = "{}";
        n = 2;
    }
    put_call(text, id, name);
    json_quote(text, arguments, n, false);
    put_call(object, id, name);
    if (json_valid(arguments, n, &where))
        buf_add(object, arguments, n);
    else
        json_quote(object, arguments, n, false);
    buf_puts(object, "}}");
    buf_puts(text, "}}");
}

/* What was built, closed and kept; NULL where nothing was. */
static const char *take(struct job *j, struct buf *b, const char *closing)
{
    if (b->n == 0)
        return NULL;
    buf_puts(b, closing);
    const char *text = arena_text(&j->arena, b->p, b->n);
    buf_clear(b);
    return text;
}

void message_end(struct job *j)
{
    size_t last = j->req.n_msgs - 1;
    const char *text = take(j, &j->building.text, "");
    j->req.msgs[last].content = text ? text : "";
    j->req.msgs[last].tool_calls_json = take(j, &j->building.calls, "]");
    j->req.calls_as_text[last] = take(j, &j->building.calls_as_text, "]");
}

void tool_add(struct job *j, const char *name, const char *description, struct json parameters)
{
    struct buf *b = &j->building.tools;
    buf_puts(b, b->n ? ", " : "[");
    buf_puts(b, "{\"type\": \"function\", \"function\": {\"name\": ");
    quote(b, name);
    if (description) {
        buf_puts(b, ", \"description\": ");
        quote(b, description);
    }
    buf_puts(b, ", \"parameters\": ");
    if (parameters.p)
        buf_add(b, parameters.p, parameters.n);
    else
        buf_puts(b, "{\"type\": \"object\", \"properties\": {}}");
    buf_puts(b, "}}");
}

void tools_end(struct job *j)
{
    j->req.tools_json = take(j, &j->building.tools, "]");
}

/* ---- Stop strings ------------------------------------------------------------------------------------------------ */

bool read_stop_string(struct reader *r, struct json v, void *to)
{
    enum { MOST_BYTES = 1024 };
    struct stop_list *stops = to;
    size_t n;
    if (!json_is(v, '"'))
        return read_fail(r, "must be a string");
    const char *text = read_text(r, v, &n);
    if (n == 0 || n > MOST_BYTES)
        return read_fail(r, "must be 1 to %d bytes long", MOST_BYTES);
    stops->v[stops->n++] = text;
    return true;
}

bool read_stop_list(struct reader *r, struct json v, void *to)
{
    ((struct stop_list *)to)->n = 0;
    return read_elements(r, v, MAX_STOPS, read_stop_string, to);
}
