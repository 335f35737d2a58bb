/* Anthropic's messages: requests. */
#include <stdio.h>
#include <string.h>

#include "serve/api/anthropic.h"
#include "serve/api/messages.h"
#include "serve/api/openai.h"

#define AT(member) offsetof(struct request, member)

/* ---- The system's text ------------------------------------------------------------------------------------------- */

/* One agent begins its system text with a line that says who pays; its hash changes with every request, which would
 * make every prompt a new one. It says nothing to a model, and is left out. */
static const char *without_billing(const char *text)
{
    static const char billing[] = "x-anthropic-billing-header:";
    if (strncmp(text, billing, sizeof billing - 1) != 0)
        return text;
    const char *end = strchr(text, '\n');
    return end ? end + 1 : "";
}

static bool read_system_block(struct reader *r, struct json v, void *to)
{
    struct { const char *type, *text; } b = { 0 };
    static const struct field fields[] = { { "type", FIELD_TEXT, 0, 0, 0, NULL },
                                           { "text", FIELD_TEXT, sizeof(char *), 0, 0, NULL }, { 0 } };
    if (!read_fields(r, v, fields, &b))
        return false;
    if (!b.type)
        return read_fail_at(r, "type", "is missing");
    if (strcmp(b.type, "text") != 0)
        return read_wrong_kind(r, b.type);
    if (!b.text)
        return read_fail_at(r, "text", "is missing");
    const char *text = without_billing(b.text);
    if (*text)
        message_text(to, text, strlen(text));
    return true;
}

static bool read_system(struct reader *r, struct json v, struct job *j)
{
    message_begin(j, "system");
    if (json_is(v, '"')) {
        const char *text = without_billing(read_text(r, v, NULL));
        message_text(j, text, strlen(text));
    } else if (!json_is(v, '[')) {
        return read_fail(r, "must be a string or an array of blocks");
    } else if (!read_elements(r, v, MOST_PARTS, read_system_block, j)) {
        return false;
    }
    if (j->building.text.n)
        message_end(j);
    else
        j->req.n_msgs--;
    return true;
}

/* ---- Messages ---------------------------------------------------------------------------------------------------- */

struct block {
    const char *type, *text, *thinking, *id, *name, *tool_use_id;
    struct json input, content;
};

/* Where a message's blocks go. A user's message becomes several: results of tools are messages of their own. */
struct turn {
    struct job *j;
    bool        assistant;
    bool        open;                /* a message is being built */
    struct buf  thinking;
};

static void open_message(struct turn *t)
{
    if (!t->open)
        message_begin(t->j, t->assistant ? "assistant" : "user");
    t->open = true;
}

static void close_message(struct turn *t)
{
    if (!t->open)
        return;
    if (t->thinking.n)
        t->j->req.msgs[t->j->req.n_msgs - 1].reasoning = arena_text(&t->j->arena, t->thinking.p, t->thinking.n);
    message_end(t->j);
    t->open = false;
}

static bool read_result_part(struct reader *r, struct json v, void *to)
{
    return read_system_block(r, v, to);
}

static bool read_result(struct reader *r, const struct block *b, struct turn *t)
{
    if (!b->tool_use_id)
        return read_fail_at(r, "tool_use_id", "is missing");
    close_message(t);
    message_begin(t->j, "tool")->tool_call_id = b->tool_use_id;
    size_t n = strlen(r->path);
    snprintf(r->path + n, sizeof r->path - n, ".content");
    if (json_is(b->content, '"')) {
        size_t len;
        const char *text = read_text(r, b->content, &len);
        message_text(t->j, text, len);
    } else if (b->content.p && !read_elements(r, b->content, MOST_PARTS, read_result_part, t->j)) {
        return false;
    }
    r->path[n] = 0;
    message_end(t->j);
    return true;
}

static bool is(const struct block *b, const char *type)
{
    return strcmp(b->type, type) == 0;
}

static bool take_block(struct reader *r, const struct block *b, struct turn *t)
{
    if (is(b, "text")) {
        if (!b->text)
            return read_fail_at(r, "text", "is missing");
        open_message(t);
        message_text(t->j, b->text, strlen(b->text));
    } else if (is(b, "tool_result") && !t->assistant) {
        return read_result(r, b, t);
    } else if (is(b, "tool_use") && t->assistant) {
        if (!b->id || !b->name)
            return read_fail_at(r, b->id ? "name" : "id", "is missing");
        if (b->input.p && !json_is(b->input, '{'))
            return read_fail_at(r, "input", "must be an object");
        open_message(t);
        message_call(t->j, b->id, b->name, b->input.p, b->input.n);
    } else if (is(b, "thinking") && t->assistant) {
        open_message(t);
        buf_puts(&t->thinking, b->thinking ? b->thinking : "");
    } else if (is(b, "redacted_thinking") && t->assistant) {
        open_message(t);
    } else if (is(b, "image") || is(b, "document")) {
        return read_wrong_kind(r, b->type);
    } else {
        return read_fail_at(r, "type", "a block \"%.40s\" is not supported here", b->type);
    }
    return true;
}

static bool read_block(struct reader *r, struct json v, void *to)
{
    static const struct field fields[] = {
        { "type", FIELD_TEXT, offsetof(struct block, type), 0, 0, NULL },
        { "text", FIELD_TEXT, offsetof(struct block, text), 0, 0, NULL },
        { "thinking", FIELD_TEXT, offsetof(struct block, thinking), 0, 0, NULL },
        { "id", FIELD_TEXT, offsetof(struct block, id), 0, ID_BYTES, NULL },
        { "name", FIELD_TEXT, offsetof(struct block, name), 0, NAME_BYTES, NULL },
        { "tool_use_id", FIELD_TEXT, offsetof(struct block, tool_use_id), 0, ID_BYTES, NULL },
        { "input", FIELD_RAW, offsetof(struct block, input), 0, 0, NULL },
        { "content", FIELD_RAW, offsetof(struct block, content), 0, 0, NULL }, { 0 } };
    struct block b = { 0 };
    if (!read_fields(r, v, fields, &b))
        return false;
    if (!b.type)
        return read_fail_at(r, "type", "is missing");
    return take_block(r, &b, to);
}

static bool read_turn(struct reader *r, struct json content, struct turn *t)
{
    size_t n = strlen(r->path);
    snprintf(r->path + n, sizeof r->path - n, ".content");
    if (json_is(content, '"')) {
        size_t len;
        const char *text = read_text(r, content, &len);
        open_message(t);
        message_text(t->j, text, len);
    } else if (!json_is(content, '[')) {
        return read_fail(r, content.p ? "must be a string or an array of blocks" : "is missing");
    } else if (!read_elements(r, content, MOST_PARTS, read_block, t)) {
        return false;
    }
    r->path[n] = 0;
    close_message(t);
    return true;
}

static bool read_message(struct reader *r, struct json v, void *to)
{
    struct { const char *role; struct json content; } m = { 0 };
    static const struct field fields[] = { { "role", FIELD_TEXT, 0, 0, 0, NULL },
                                           { "content", FIELD_RAW, sizeof(char *), 0, 0, NULL }, { 0 } };
    struct turn t = { .j = to };
    if (!read_fields(r, v, fields, &m))
        return false;
    if (!m.role || (strcmp(m.role, "user") != 0 && strcmp(m.role, "assistant") != 0))
        return read_fail_at(r, "role", "must be user or assistant");
    t.assistant = strcmp(m.role, "assistant") == 0;
    bool ok = read_turn(r, m.content, &t);
    buf_free(&t.thinking);
    return ok;
}

/* ---- The rest ---------------------------------------------------------------------------------------------------- */

static bool read_messages(struct reader *r, struct json v, struct job *j)
{
    return read_elements(r, v, MOST_MESSAGES, read_message, j);
}

static const struct dialect dialect = { .messages = "messages", .read = read_messages, .tool_type = "custom",
                                        .type_may_miss = true, .goes_on = true, .schema = "input_schema" };

static bool read_tool_choice(struct reader *r, struct json v, void *to)
{
    struct { const char *type, *name; bool one; } c = { 0 };
    static const struct field fields[] = { { "type", FIELD_TEXT, 0, 0, 0, NULL },
                                           { "name", FIELD_TEXT, sizeof(char *), 0, NAME_BYTES, NULL },
                                           { "disable_parallel_tool_use", FIELD_BOOL, 2 * sizeof(char *), 0, 0, NULL },
                                           { 0 } };
    static const char *const types[] = { [TOOLS_AUTO] = "auto", [TOOLS_NONE] = "none", [TOOLS_REQUIRED] = "any",
                                         [TOOLS_NAMED] = "tool" };
    struct request *q = to;
    if (!read_fields(r, v, fields, &c))
        return false;
    q->one_call = c.one;
    for (int i = 0; c.type && i <= TOOLS_NAMED; i++)
        if (strcmp(types[i], c.type) == 0) {
            q->tool_choice = (enum tool_choice)i;
            q->tool_name = c.name;
            return i != TOOLS_NAMED || c.name || read_fail_at(r, "name", "is missing");
        }
    return read_fail_at(r, "type", "must be auto, any, tool or none");
}

static bool read_thinking(struct reader *r, struct json v, void *to)
{
    static const struct field fields[] = { { "type", FIELD_TEXT, 0, 0, 0, NULL }, { 0 } };
    const char *type = NULL;
    struct request *q = to;
    if (!read_fields(r, v, fields, &type))
        return false;
    if (!type || (strcmp(type, "enabled") != 0 && strcmp(type, "disabled") != 0 && strcmp(type, "adaptive") != 0))
        return read_fail_at(r, "type", "must be enabled, disabled or adaptive");
    q->enable_thinking = strcmp(type, "enabled") == 0 ? 1 : strcmp(type, "disabled") == 0 ? 0 : q->enable_thinking;
    return true;
}

static bool read_output_config(struct reader *r, struct json v, void *to)
{
    static const struct field fields[] = { { "effort", FIELD_BY, 0, 0, 0, openai_read_effort },
                                           { "format", FIELD_BY, 0, 0, 0, openai_read_format }, { 0 } };
    return read_fields(r, v, fields, to);
}

static bool read_any(struct job *j, struct reader *r, struct json body, bool counts)
{
    struct { struct request q; struct json messages, system, tools; } in = { .q = j->req };
    enum { MESSAGES = sizeof(struct request), SYSTEM = MESSAGES + sizeof(struct json),
           TOOLS = SYSTEM + sizeof(struct json) };
    static const struct field fields[] = {
        { "model", FIELD_TEXT, AT(model), 0, 256, NULL },
        { "max_tokens", FIELD_WHOLE, AT(max_tokens), 1, INT32_MAX, NULL },
        { "messages", FIELD_RAW, MESSAGES, 0, 0, NULL }, { "system", FIELD_RAW, SYSTEM, 0, 0, NULL },
        { "tools", FIELD_RAW, TOOLS, 0, 0, NULL }, { "tool_choice", FIELD_BY, 0, 0, 0, read_tool_choice },
        { "stream", FIELD_BOOL, AT(stream), 0, 0, NULL },
        { "stop_sequences", FIELD_BY, AT(stops), 0, 0, read_stop_list },
        { "temperature", FIELD_REAL, AT(temp), 0, 1, NULL }, { "top_p", FIELD_REAL, AT(top_p), 0, 1, NULL },
        { "top_k", FIELD_WHOLE, AT(top_k), 0, INT32_MAX, NULL }, { "thinking", FIELD_BY, 0, 0, 0, read_thinking },
        { "output_config", FIELD_BY, 0, 0, 0, read_output_config },
        { "output_format", FIELD_BY, 0, 0, 0, openai_read_format },      /* the name it had at first */
        { "grammar", FIELD_BY, 0, 0, 0, openai_read_grammar },
        { 0 } };
    in.q.max_tokens = UNSET;
    if (!read_fields(r, body, fields, &in))
        return false;
    j->req = in.q;
    j->req.chat = true;
    if (in.q.max_tokens == UNSET && !counts)
        return read_fail_at(r, "max_tokens", "is missing");
    strcpy(r->path, "system");
    if (in.system.p && !read_system(r, in.system, j))
        return false;
    r->path[0] = 0;
    return read_conversation(r, &dialect, in.messages, in.tools, j);
}

bool anthropic_read(struct job *j, struct reader *r, struct json body)
{
    return read_any(j, r, body, false);
}

bool anthropic_read_count(struct job *j, struct reader *r, struct json body)
{
    return read_any(j, r, body, true);
}
