/* See messages.h. */
#include "serve/api/messages.h"

#include <stdio.h>
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

/* ---- Tools ------------------------------------------------------------------------------------------------------- */

struct tool {
    const struct dialect *d;
    struct job *j;
    const char *type, *name, *description;
    struct json schema;
    bool        has_members;             /* name and the rest were read */
};

/* In the form that templates read. */
static void tool_add(const struct tool *t)
{
    struct buf *b = &t->j->building.tools;
    buf_puts(b, b->n ? ", " : "[");
    buf_puts(b, "{\"type\": \"function\", \"function\": {\"name\": ");
    quote(b, t->name);
    if (t->description) {
        buf_puts(b, ", \"description\": ");
        quote(b, t->description);
    }
    buf_puts(b, ", \"parameters\": ");
    if (t->schema.p)
        buf_add(b, t->schema.p, t->schema.n);
    else
        buf_puts(b, "{\"type\": \"object\", \"properties\": {}}");
    buf_puts(b, "}}");
}

static bool read_tool_members(struct reader *r, struct json v, void *to)
{
    struct tool *t = to;
    const struct field fields[] = {
        { "name", FIELD_TEXT, offsetof(struct tool, name), 0, NAME_BYTES, NULL },
        { "description", FIELD_TEXT, offsetof(struct tool, description), 0, 0, NULL },
        { t->d->schema, FIELD_RAW, offsetof(struct tool, schema), 0, 0, NULL }, { 0 } };
    t->has_members = true;
    if (!read_fields(r, v, fields, t))
        return false;
    if (!t->name || !*t->name)
        return read_fail_at(r, "name", "is missing");
    if (t->schema.p && !json_is(t->schema, '{'))
        return read_fail_at(r, t->d->schema, "must be an object");
    return true;
}

static bool read_tool(struct reader *r, struct json v, void *to)
{
    struct tool t = *(const struct tool *)to;
    const struct dialect *d = t.d;
    const struct field fields[] = {
        { "type", FIELD_TEXT, offsetof(struct tool, type), 0, 0, NULL },
        { d->function, FIELD_BY, 0, 0, 0, read_tool_members }, { 0 } };
    if (!read_fields(r, v, fields, &t))
        return false;
    if (!t.type && !d->type_may_miss)
        return read_fail_at(r, "type", "is missing");
    if (t.type && strcmp(t.type, d->tool_type) != 0)
        return d->skips_tools || read_fail_at(r, "type", "must be \"%s\"", d->tool_type);
    if (!d->function && !read_tool_members(r, v, &t))
        return false;
    if (!t.has_members)
        return read_fail_at(r, d->function, "is missing");
    tool_add(&t);
    return true;
}

static bool ends_in_text(const struct request *q)
{
    const struct pf_message *last = &q->msgs[q->n_msgs - 1];
    return strcmp(last->role, "assistant") == 0 && last->content[0] && !last->tool_calls_json;
}

bool read_conversation(struct reader *r, const struct dialect *d, struct json messages, struct json tools,
                       struct job *j)
{
    enum { MOST_TOOLS = 1024 };
    struct tool t = { .d = d, .j = j };
    size_t before = j->req.n_msgs;
    if (!messages.p)
        return read_fail_at(r, d->messages, "is missing");
    snprintf(r->path, sizeof r->path, "%s", d->messages);
    if (!d->read(r, messages, j))
        return false;
    if (j->req.n_msgs == before)
        return read_fail(r, "is empty");
    j->req.goes_on = d->goes_on && ends_in_text(&j->req);
    snprintf(r->path, sizeof r->path, "tools");
    if (tools.p && !read_elements(r, tools, MOST_TOOLS, read_tool, &t))
        return false;
    j->req.tools_json = take(j, &j->building.tools, "]");
    r->path[0] = 0;
    return true;
}

/* ---- Stop strings ------------------------------------------------------------------------------------------------ */

bool read_stop_string(struct reader *r, struct json v, void *to)
{
    enum { MOST_BYTES = 1024 };
    struct text_list *stops = to;
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
    ((struct text_list *)to)->n = 0;
    return read_elements(r, v, MAX_TEXTS, read_stop_string, to);
}
