/* OpenAI's chat and text completions: requests. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/api/messages.h"
#include "serve/api/openai.h"

#define AT(member) offsetof(struct request, member)

/* ---- Requests: what both have ------------------------------------------------------------------------------------ */

/* A name that comes again in an object holds anew, as everywhere: what was read of it before goes. */
static bool read_stop(struct reader *r, struct json v, void *to)
{
    ((struct text_list *)to)->n = 0;
    if (json_is(v, '"'))
        return read_stop_string(r, v, to);
    if (!json_is(v, '['))
        return read_fail(r, "must be a string or an array of strings");
    return read_stop_list(r, v, to);
}

static bool read_one_bias(struct reader *r, struct json name, struct json v, struct request *q)
{
    struct buf text = { 0 };
    char *end;
    json_string(name, &text);
    long long id = strtoll(buf_text(&text), &end, 10);
    bool fine = text.n > 0 && *end == 0 && id >= 0 && id < INT32_MAX;
    buf_free(&text);
    double add;
    if (!fine)
        return read_fail(r, "the names of its members must be tokens' numbers");
    if (!read_real(v, &add) || add < -100 || add > 100)
        return read_fail(r, "must hold numbers from -100 to 100");
    q->bias[q->n_bias++] = (struct pf_logit_bias){ (int32_t)id, (float)add };
    return true;
}

static bool read_bias(struct reader *r, struct json v, void *to)
{
    enum { MOST = 1024 };
    struct request *q = to;
    struct json name, member = { 0 };
    if (!json_is(v, '{'))
        return read_fail(r, "must be an object");
    q->bias = q->bias ? q->bias : arena_take(r->arena, MOST, sizeof *q->bias);
    q->n_bias = 0;
    while ((member = json_next_member(v, member, &name)).p) {
        if (q->n_bias == MOST)
            return read_fail(r, "has more than %d members", MOST);
        if (!read_one_bias(r, name, member, q))
            return false;
    }
    return true;
}

static bool read_stream_options(struct reader *r, struct json v, void *to)
{
    static const struct field fields[] = { { "include_usage", FIELD_BOOL, AT(stream_usage), 0, 0, NULL }, { 0 } };
    return read_fields(r, v, fields, to);
}

#define COMMON_FIELDS \
    { "model", FIELD_TEXT, AT(model), 0, 256, NULL }, \
    { "stream", FIELD_BOOL, AT(stream), 0, 0, NULL }, \
    { "stream_options", FIELD_BY, 0, 0, 0, read_stream_options }, \
    { "max_tokens", FIELD_WHOLE, AT(max_tokens), 0, INT32_MAX, NULL }, \
    { "n", FIELD_WHOLE, AT(n), 1, MOST_N, NULL }, \
    { "seed", FIELD_WHOLE, AT(seed), -9e18, 9e18, NULL }, \
    { "stop", FIELD_BY, AT(stops), 0, 0, read_stop }, \
    { "temperature", FIELD_REAL, AT(temp), 0, 2, NULL }, \
    { "top_p", FIELD_REAL, AT(top_p), 0, 1, NULL }, \
    { "top_k", FIELD_WHOLE, AT(top_k), 0, INT32_MAX, NULL }, \
    { "min_p", FIELD_REAL, AT(min_p), 0, 1, NULL }, \
    { "repeat_penalty", FIELD_REAL, AT(repeat_penalty), 0.01, 100, NULL }, \
    { "presence_penalty", FIELD_REAL, AT(presence_penalty), -2, 2, NULL }, \
    { "frequency_penalty", FIELD_REAL, AT(frequency_penalty), -2, 2, NULL }, \
    { "grammar", FIELD_BY, 0, 0, 0, openai_read_grammar }, \
    { "logit_bias", FIELD_BY, 0, 0, 0, read_bias }, \
    { "ignore_eos", FIELD_BOOL, AT(ignore_eos), 0, 0, NULL }

/* ---- Requests: messages ------------------------------------------------------------------------------------------ */

struct part {
    const char *type, *text, *refusal;
};

static bool read_part(struct reader *r, struct json v, void *to)
{
    static const struct field fields[] = {
        { "type", FIELD_TEXT, offsetof(struct part, type), 0, 0, NULL },
        { "text", FIELD_TEXT, offsetof(struct part, text), 0, 0, NULL },
        { "refusal", FIELD_TEXT, offsetof(struct part, refusal), 0, 0, NULL }, { 0 } };
    struct part p = { 0 };
    if (!read_fields(r, v, fields, &p))
        return false;
    const char *text = p.type && strcmp(p.type, "refusal") == 0 ? p.refusal : p.text;
    if (p.type && strcmp(p.type, "text") != 0 && strcmp(p.type, "refusal") != 0)
        return read_wrong_kind(r, p.type);
    if (!text)
        return read_fail_at(r, "text", "is missing");
    message_text(to, text, strlen(text));
    return true;
}

static bool read_content(struct reader *r, struct json v, struct job *j)
{
    if (json_is(v, '[')) {
        return read_elements(r, v, MOST_PARTS, read_part, j);
    } else if (json_is(v, '"')) {
        size_t n;
        const char *text = read_text(r, v, &n);
        message_text(j, text, n);
        return true;
    }
    return read_fail(r, "must be a string or an array of parts");
}

struct function {
    const char *name, *arguments;
};
struct tool_call {
    const char *id;
    struct function function;
    bool has_function;
};

static bool read_function(struct reader *r, struct json v, void *to)
{
    static const struct field fields[] = {
        { "name", FIELD_TEXT, offsetof(struct function, name), 0, NAME_BYTES, NULL },
        { "arguments", FIELD_TEXT, offsetof(struct function, arguments), 0, 0, NULL }, { 0 } };
    struct tool_call *c = to;
    c->has_function = true;
    if (!read_fields(r, v, fields, &c->function))
        return false;
    return c->function.name || read_fail_at(r, "name", "is missing");
}

static bool read_call(struct reader *r, struct json v, void *to)
{
    static const struct field fields[] = {
        { "id", FIELD_TEXT, offsetof(struct tool_call, id), 0, ID_BYTES, NULL },
        { "function", FIELD_BY, 0, 0, 0, read_function }, { 0 } };
    struct tool_call c = { 0 };
    if (!read_fields(r, v, fields, &c))
        return false;
    if (!c.has_function)
        return read_fail_at(r, "function", "is missing");
    const char *arguments = c.function.arguments ? c.function.arguments : "";
    message_call(to, c.id, c.function.name, arguments, strlen(arguments));
    return true;
}

struct message {
    const char *role, *reasoning, *name, *tool_call_id;
    struct json content, tool_calls;
};

static bool known_role(const char *role)
{
    static const char *const roles[] = { "system", "developer", "user", "assistant", "tool", "function" };
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (strcmp(roles[i], role) == 0)
            return true;
    return false;
}

static bool read_in_member(struct reader *r, const char *member, struct json v, struct job *j, bool calls)
{
    size_t n = strlen(r->path);
    snprintf(r->path + n, sizeof r->path - n, ".%s", member);
    if (!(calls ? read_elements(r, v, MOST_CALLS, read_call, j) : read_content(r, v, j)))
        return false;
    r->path[n] = 0;
    return true;
}

static bool read_message(struct reader *r, struct json v, void *to)
{
    static const struct field fields[] = {
        { "role", FIELD_TEXT, offsetof(struct message, role), 0, 0, NULL },
        { "content", FIELD_RAW, offsetof(struct message, content), 0, 0, NULL },
        { "reasoning_content", FIELD_TEXT, offsetof(struct message, reasoning), 0, 0, NULL },
        { "reasoning", FIELD_TEXT, offsetof(struct message, reasoning), 0, 0, NULL },
        { "tool_calls", FIELD_RAW, offsetof(struct message, tool_calls), 0, 0, NULL },
        { "name", FIELD_TEXT, offsetof(struct message, name), 0, NAME_BYTES, NULL },
        { "tool_call_id", FIELD_TEXT, offsetof(struct message, tool_call_id), 0, ID_BYTES, NULL }, { 0 } };
    struct job *j = to;
    struct message in = { 0 };
    if (!read_fields(r, v, fields, &in))
        return false;
    if (!in.role)
        return read_fail_at(r, "role", "is missing");
    if (!known_role(in.role))
        return read_fail_at(r, "role", "must be system, developer, user, assistant or tool");
    bool assistant = strcmp(in.role, "assistant") == 0;
    struct pf_message *m = message_begin(j, strcmp(in.role, "function") == 0 ? "tool" : in.role);
    m->reasoning = assistant ? in.reasoning : NULL;
    m->tool_call_id = in.tool_call_id;
    m->name = in.name;
    if (in.content.p && !read_in_member(r, "content", in.content, j, false))
        return false;
    if (!in.content.p && !assistant)
        return read_fail_at(r, "content", "is missing");
    if (assistant && in.tool_calls.p && !read_in_member(r, "tool_calls", in.tool_calls, j, true))
        return false;
    message_end(j);
    return true;
}

/* ---- Requests: the rest of a chat ---------------------------------------------------------------------- */

static bool read_named(struct reader *r, struct json v, void *to)
{
    static const struct field fields[] = { { "name", FIELD_TEXT, 0, 0, NAME_BYTES, NULL }, { 0 } };
    return read_fields(r, v, fields, to);
}

bool openai_read_tool_choice(struct reader *r, struct json v, void *to)
{
    static const struct field fields[] = { { "type", FIELD_TEXT, 0, 0, 0, NULL },
                                           { "name", FIELD_TEXT, sizeof(char *), 0, NAME_BYTES, NULL },
                                           { "function", FIELD_BY, sizeof(char *), 0, 0, read_named }, { 0 } };
    static const char *const words[] = { [TOOLS_AUTO] = "auto", [TOOLS_NONE] = "none", [TOOLS_REQUIRED] = "required" };
    struct request *q = to;
    struct { const char *type, *name; } c = { 0 };
    if (json_is(v, '"')) {
        const char *word = read_text(r, v, NULL);
        for (int i = 0; i <= TOOLS_REQUIRED; i++)
            if (strcmp(words[i], word) == 0) {
                q->tool_choice = (enum tool_choice)i;
                return true;
            }
        return read_fail(r, "must be auto, none, required or a function");
    }
    if (!json_is(v, '{'))
        return read_fail(r, "must be auto, none, required or a function");
    if (!read_fields(r, v, fields, &c))
        return false;
    if (!c.type || strcmp(c.type, "function") != 0)
        return read_fail_at(r, "type", "must be \"function\"");
    q->tool_choice = TOOLS_NAMED;
    q->tool_name = c.name;
    return c.name || read_fail_at(r, "function.name", "is missing");
}

bool openai_read_parallel(struct reader *r, struct json v, void *to)
{
    struct request *q = to;
    if (!json_is(v, 't') && !json_is(v, 'f'))
        return read_fail(r, "must be true or false");
    q->one_call = !json_true(v);
    return true;
}

bool openai_read_effort(struct reader *r, struct json v, void *to)
{
    struct request *q = to;
    if (!json_is(v, '"'))
        return read_fail(r, "must be a string");
    const char *level = read_text(r, v, NULL);
    static const char *const levels[] = { "none", "minimal", "low", "medium", "high", "xhigh", "max" };
    static const char *const told[] = { NULL, "low", "low", "medium", "high", "high", "high" };
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++)
        if (strcmp(levels[i], level) == 0) {
            q->reasoning_effort = told[i];
            q->enable_thinking = i == 0 ? 0 : q->enable_thinking;
            return true;
        }
    return read_fail(r, "must be none, minimal, low, medium, high, xhigh or max");
}

static bool read_template_kwargs(struct reader *r, struct json v, void *to)
{
    static const struct field fields[] = { { "enable_thinking", FIELD_BOOL, 0, 0, 0, NULL }, { 0 } };
    struct request *q = to;
    bool think = q->enable_thinking != 0;
    if (!read_fields(r, v, fields, &think))
        return false;
    struct json given = json_get(v, "enable_thinking");
    if (json_is(given, 't') || json_is(given, 'f'))
        q->enable_thinking = think;
    return true;
}

struct format {
    const char *type;
    struct json schema;
    bool        has_schema;
};

static bool read_named_schema(struct reader *r, struct json v, void *to)
{
    static const struct field fields[] = { { "schema", FIELD_RAW, offsetof(struct format, schema), 0, 0, NULL },
                                           { 0 } };
    struct format *f = to;
    f->has_schema = true;
    if (!read_fields(r, v, fields, f))
        return false;
    return f->schema.p || read_fail_at(r, "schema", "is missing");
}

/* Chats put the schema into a member of its own, the other protocols beside the type; either is taken from all.
 * member: where the protocol has it. */
static bool read_format(struct reader *r, struct json v, struct request *q, const char *member)
{
    static const struct field fields[] = {
        { "type", FIELD_TEXT, offsetof(struct format, type), 0, 0, NULL },
        { "json_schema", FIELD_BY, 0, 0, 0, read_named_schema },
        { "schema", FIELD_RAW, offsetof(struct format, schema), 0, 0, NULL }, { 0 } };
    struct format f = { 0 };
    if (!read_fields(r, v, fields, &f))
        return false;
    if (!f.type)
        return read_fail_at(r, "type", "is missing");
    if (strcmp(f.type, "text") == 0)
        return true;
    bool schema = strcmp(f.type, "json_schema") == 0;
    if (!schema && strcmp(f.type, "json_object") != 0)
        return read_fail_at(r, "type", "must be text, json_object or json_schema");
    if (schema && !f.schema.p)
        return read_fail_at(r, member, "is missing");
    if (f.schema.p && !json_is(f.schema, '{') && !json_is(f.schema, 't') && !json_is(f.schema, 'f'))
        return read_fail_at(r, f.has_schema ? "json_schema.schema" : "schema", "must be an object");
    static const char object[] = "{\"type\":\"object\"}";
    q->shape = SHAPE_JSON;
    q->shape_text = f.schema.p ? arena_text(r->arena, f.schema.p, f.schema.n) : object;
    q->n_shape = f.schema.p ? f.schema.n : sizeof object - 1;
    q->shape_field = arena_text(r->arena, r->path, strlen(r->path));
    return true;
}

bool openai_read_format(struct reader *r, struct json v, void *to)
{
    return read_format(r, v, to, "schema");
}

static bool read_chat_format(struct reader *r, struct json v, void *to)
{
    return read_format(r, v, to, "json_schema");
}

bool openai_read_grammar(struct reader *r, struct json v, void *to)
{
    struct request *q = to;
    if (!json_is(v, '"'))
        return read_fail(r, "must be a string");
    q->shape_text = read_text(r, v, &q->n_shape);
    q->shape = SHAPE_GBNF;
    q->shape_field = "grammar";
    return true;
}

static bool read_messages(struct reader *r, struct json v, struct job *j)
{
    return read_elements(r, v, MOST_MESSAGES, read_message, j);
}

static const struct dialect dialect = { .messages = "messages", .read = read_messages, .tool_type = "function",
                                        .type_may_miss = true, .goes_on = true, .function = "function",
                                        .schema = "parameters" };

bool openai_read_chat(struct job *j, struct reader *r, struct json body)
{
    struct { struct request q; struct json messages, tools; } in = { .q = j->req };
    in.q.model = NULL;
    static const struct field fields[] = {
        COMMON_FIELDS,
        { "max_completion_tokens", FIELD_WHOLE, AT(max_tokens), 0, INT32_MAX, NULL },
        { "messages", FIELD_RAW, sizeof(struct request), 0, 0, NULL },
        { "tools", FIELD_RAW, sizeof(struct request) + sizeof(struct json), 0, 0, NULL },
        { "logprobs", FIELD_BOOL, AT(logprobs), 0, 0, NULL },
        { "top_logprobs", FIELD_WHOLE, AT(top_logprobs), 0, MOST_TOP_LOGPROBS, NULL },
        { "reasoning_effort", FIELD_BY, 0, 0, 0, openai_read_effort },
        { "tool_choice", FIELD_BY, 0, 0, 0, openai_read_tool_choice },
        { "parallel_tool_calls", FIELD_BY, 0, 0, 0, openai_read_parallel },
        { "chat_template_kwargs", FIELD_BY, 0, 0, 0, read_template_kwargs },
        { "response_format", FIELD_BY, 0, 0, 0, read_chat_format },
        { 0 } };
    if (!read_fields(r, body, fields, &in))
        return false;
    j->req = in.q;
    j->req.chat = true;
    if (!in.q.model)
        return read_fail_at(r, "model", "is missing");
    return read_conversation(r, &dialect, in.messages, in.tools, j);
}

/* ---- Requests: text ---------------------------------------------------------------------------------------------- */

struct ids {
    struct prompt *p;
    size_t  cap;
};

static bool read_id(struct reader *r, struct json v, void *to)
{
    struct ids *ids = to;
    int64_t id;
    if (!json_is(v, '0') || !json_int(v, &id))
        return read_fail(r, "must be a token's number");
    if (id < 0 || id >= INT32_MAX)
        return read_fail(r, "is no token's number");
    if (ids->p->n_tok == ids->cap) {
        ids->cap = 2 * ids->cap + 256;
        ids->p->tok = xrealloc(ids->p->tok, ids->cap, sizeof *ids->p->tok);
    }
    ids->p->tok[ids->p->n_tok++] = (int32_t)id;
    return true;
}

static bool read_text_prompt(struct reader *r, struct json v, struct prompt *p)
{
    size_t n;
    const char *text = read_text(r, v, &n);
    buf_add(&p->text, text, n);
    return true;
}

/* One of several: a text, or an array of tokens. */
static bool read_one_prompt(struct reader *r, struct json v, void *to)
{
    struct request *q = to;
    struct prompt *p = &q->prompts[q->n_prompts++];
    if (json_is(v, '"'))
        return read_text_prompt(r, v, p);
    if (!json_is(v, '['))
        return read_fail(r, "must be a text or an array of tokens");
    return read_elements(r, v, INT32_MAX, read_id, &(struct ids){ .p = p });
}

static bool read_prompts(struct reader *r, struct json v, struct request *q)
{
    struct json first = json_next(v, (struct json){ 0 });
    bool several = json_is(first, '"') || json_is(first, '[');
    q->prompts = arena_take(r->arena, several ? MOST_CHOICES : 1, sizeof *q->prompts);
    if (!json_is(v, '"') && !json_is(v, '['))
        return read_fail(r, "must be a text, an array of texts, or one or several arrays of tokens");
    if (!several)
        return read_one_prompt(r, v, q);
    if (!read_elements(r, v, MOST_CHOICES, read_one_prompt, q))
        return false;
    return (int64_t)q->n_prompts * q->n <= MOST_CHOICES ||
           read_fail(r, "%zu prompts with n of %lld make more than %d choices", q->n_prompts, (long long)q->n,
                     MOST_CHOICES);
}

struct text_request {
    struct request q;
    struct json    prompt;
    int64_t        logprobs, best_of;
};

/* What the interface has and the server does not do is refused, but for values that ask for nothing. */
static bool refuse_unserved(struct reader *r, const struct text_request *in)
{
    if (in->q.suffix && *in->q.suffix && in->q.echo)
        return read_fail_at(r, "echo", "does not go with a suffix");
    if (in->best_of != UNSET && in->best_of != in->q.n)
        return read_fail_at(r, "best_of", "must be n, which is %lld: every answer that is made is given, none is "
                            "chosen among others", (long long)in->q.n);
    return true;
}

bool openai_read_text(struct job *j, struct reader *r, struct json body)
{
    struct text_request in = { .q = j->req, .logprobs = UNSET, .best_of = UNSET };
    static const struct field fields[] = {
        COMMON_FIELDS,
        { "prompt", FIELD_RAW, offsetof(struct text_request, prompt), 0, 0, NULL },
        { "suffix", FIELD_TEXT, AT(suffix), 0, 0, NULL },
        { "logprobs", FIELD_WHOLE, offsetof(struct text_request, logprobs), 0, 5, NULL },
        { "best_of", FIELD_WHOLE, offsetof(struct text_request, best_of), 1, INT32_MAX, NULL },
        { "echo", FIELD_BOOL, AT(echo), 0, 0, NULL }, { 0 } };
    in.q.max_tokens = 16;                /* as the interface has it */
    if (!read_fields(r, body, fields, &in) || !refuse_unserved(r, &in))
        return false;
    j->req = in.q;
    j->req.chat = false;
    j->req.suffix = in.q.suffix && *in.q.suffix ? in.q.suffix : NULL;
    j->req.logprobs = in.logprobs != UNSET;
    j->req.top_logprobs = in.logprobs > 0 ? in.logprobs : 0;
    if (!in.prompt.p)
        return read_fail_at(r, "prompt", "is missing");
    strcpy(r->path, "prompt");
    if (!read_prompts(r, in.prompt, &j->req))
        return false;
    r->path[0] = 0;
    return true;
}
