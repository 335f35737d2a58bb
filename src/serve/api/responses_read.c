/* OpenAI's responses: requests. A conversation is a list of items; nothing is stored, and previous_response_id is
 * refused. */
#include <stdio.h>
#include <string.h>

#include "serve/api/messages.h"
#include "serve/api/openai.h"
#include "serve/api/responses.h"

#define AT(member) offsetof(struct request, member)

/* ---- Items ------------------------------------------------------------------------------------------------------- */

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
        return read_wrong_kind(r, p.type);
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

/* ---- The rest ---------------------------------------------------------------------------------------------------- */

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

static bool read_any(struct job *j, struct reader *r, struct json body, bool counts)
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
    if (!in.q.model && !counts)
        return read_fail_at(r, "model", "is missing");
    if (in.instructions && *in.instructions) {
        message_begin(j, "system");
        message_text(j, in.instructions, strlen(in.instructions));
        message_end(j);
    }
    return read_conversation(r, &dialect, in.input, in.tools, j);
}

bool responses_read(struct job *j, struct reader *r, struct json body)
{
    return read_any(j, r, body, false);
}

bool responses_read_count(struct job *j, struct reader *r, struct json body)
{
    return read_any(j, r, body, true);
}
