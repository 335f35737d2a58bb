/* See prompt.h. Any thread. */
#include "serve/prompt.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "serve/fill.h"

pf_status prompt_tokenize(const pf_model *m, const char *text, size_t n, unsigned flags, int32_t **tok, size_t *n_tok)
{
    size_t cap = n / 2 + 16;
    *tok = xrealloc(NULL, cap, sizeof **tok);
    pf_status st = pf_tokenize(m, text, n, flags, *tok, cap, n_tok);
    if (st == PF_ESPACE) {
        cap = *n_tok;
        *tok = xrealloc(*tok, cap, sizeof **tok);
        st = pf_tokenize(m, text, n, flags, *tok, cap, n_tok);
    }
    return st;
}

/* What a rendered prompt most often fits into, so that it is rendered once. */
static size_t likely_bytes(const struct request *q)
{
    size_t n = (1 << 16) + 64 * q->n_msgs + (q->tools_json ? 2 * strlen(q->tools_json) : 0);
    for (size_t i = 0; i < q->n_msgs; i++)
        n += q->msgs[i].content ? strlen(q->msgs[i].content) : 0;
    return n;
}

static pf_status render_once(const struct request *q, const struct prompt_opts *o, struct buf *out)
{
    struct pf_chat_opts c;
    size_t need = 0;
    pf_chat_opts_init(&c);
    c.enable_thinking = q->enable_thinking;
    c.reasoning_effort = q->reasoning_effort;
    c.tools_json = q->tool_choice == TOOLS_NONE ? NULL : q->tools_json;
    c.template_name = o->template_name;
    c.template_text = o->template_text;
    c.n_ctx = o->n_ctx;
    c.continue_last = q->goes_on;
    buf_clear(out);
    buf_reserve(out, likely_bytes(q));
    pf_status st = pf_chat_render(o->m, q->msgs, q->n_msgs, &c, out->p, out->cap - 1, &need);
    if (st == PF_ESPACE) {
        buf_reserve(out, need + 1);
        st = pf_chat_render(o->m, q->msgs, q->n_msgs, &c, out->p, out->cap - 1, &need);
    }
    if (st == PF_OK) {
        out->n = need;
        out->p[need] = 0;
    }
    return st;
}

/* Templates that raise at what they do not expect are asked again, with calls' arguments as strings and developers'
 * messages as the system's. The first failure is the one that is told. */
static pf_status render(struct request *q, const struct prompt_opts *o, struct buf *out)
{
    char first[512];
    bool changed = false;
    pf_status st = render_once(q, o, out);
    if (st != PF_ETEMPLATE)
        return st;
    snprintf(first, sizeof first, "%s", pf_last_error());
    for (size_t i = 0; i < q->n_msgs; i++) {
        struct pf_message *m = &q->msgs[i];
        if (strcmp(m->role, "developer") == 0) {
            m->role = "system";
            changed = true;
        }
    }
    if (changed && (st = render_once(q, o, out)) != PF_ETEMPLATE)
        return st;
    for (size_t i = 0; i < q->n_msgs; i++)
        if (q->calls_as_text && q->calls_as_text[i]) {
            q->msgs[i].tool_calls_json = q->calls_as_text[i];
            changed = true;
        }
    return changed ? render_once(q, o, out) : st;
}

/* Clients that make room and ask again know this error by Anthropic's words or by OpenAI's; both are here. */
static bool too_long(struct arena *a, size_t n, int64_t n_ctx, const char *field, struct trouble *t)
{
    char why[160];
    int len = snprintf(why, sizeof why, "the prompt is too long: %zu tokens > %lld maximum (this model's maximum "
                       "context length is %lld tokens)", n, (long long)n_ctx, (long long)n_ctx);
    *t = (struct trouble){ 400, field, "context_length_exceeded", arena_text(a, why, (size_t)len) };
    return false;
}

/* Tokens of a text that cannot fit are not even counted, which takes long for 32 MB. A rendered one has its bound in
 * pf_chat_opts. */
static bool too_many_bytes(struct arena *a, size_t n, int64_t n_ctx, const char *field, struct trouble *t)
{
    enum { TOKEN_BYTES = 256 };
    char why[200];
    if (n / TOKEN_BYTES < (size_t)n_ctx)
        return false;
    int len = snprintf(why, sizeof why, "the prompt is too long: %zu bytes, more than %d for each of the context's "
                       "positions (this model's maximum context length is %lld tokens)", n, TOKEN_BYTES,
                       (long long)n_ctx);
    *t = (struct trouble){ 400, field, "context_length_exceeded", arena_text(a, why, (size_t)len) };
    return true;
}

static bool failed(pf_status st, const char *field, struct trouble *t)
{
    bool client = st == PF_ETEMPLATE || st == PF_ECONTEXT || st == PF_EINVAL;
    *t = (struct trouble){ client ? 400 : 500, field, st == PF_ECONTEXT ? "context_length_exceeded" : NULL,
                           pf_last_error() };
    return false;
}

/* ---- What the reply is held to ----------------------------------------------------------------------------------- */

static bool refused(const struct grammar_ref *g, const char *field, struct trouble *t)
{
    const char *why;
    pf_status st = grammar_status(g, &why);
    if (st == PF_OK)
        return false;
    bool client = st == PF_EINVAL || st == PF_EUNSUPPORTED;
    *t = (struct trouble){ client ? 400 : 500, field, NULL, why };
    return true;
}

static bool has_tool(const struct request *q, const char *wanted)
{
    struct json tools = json_value(q->tools_json, strlen(q->tools_json)), each = { 0 };
    bool has = false;
    while (!has && (each = json_next(tools, each)).p) {
        struct buf name = { 0 };
        json_string(json_get(json_get(each, "function"), "name"), &name);
        has = strcmp(buf_text(&name), wanted) == 0;
        buf_free(&name);
    }
    return has;
}

static bool wrong_choice(const struct request *q, struct trouble *t)
{
    bool forced = q->tool_choice >= TOOLS_REQUIRED;
    const char *why = !forced ? NULL : !q->tools_json ? "there are no tools to choose from"
                    : q->tool_name && !has_tool(q, q->tool_name) ? "there is no tool of this name" : NULL;
    *t = (struct trouble){ 400, "tool_choice", NULL, why };
    return why != NULL;
}

/* Whether the reply is held from its first token on, but begins in the middle of its text. */
static bool begun_already(const struct request *q, struct trouble *t)
{
    bool must_call = q->tool_choice >= TOOLS_REQUIRED;
    *t = (struct trouble){ 400, must_call ? "tool_choice" : q->shape_field, NULL,
                           "does not go with a last message of the assistant, with which the answer goes on" };
    return q->goes_on;
}

/* A reply that must be a call, or whose content a schema holds: calls may come beside it, and reasoning before. */
static bool hold_reply(struct request *q, const struct prompt_opts *o, struct trouble *t)
{
    bool must_call = q->tool_choice >= TOOLS_REQUIRED, may_call = q->tools_json && q->tool_choice != TOOLS_NONE;
    bool open = pf_reply_is_open(o->family, buf_text(&q->prompts->text), q->prompts->text.n);
    bool one = q->one_call || q->tool_choice == TOOLS_NAMED;
    struct pf_reply_shape shape = {
        .family = o->family, .schema = must_call ? NULL : q->shape_text, .schema_len = must_call ? 0 : q->n_shape,
        .tools_json = may_call ? q->tools_json : NULL, .tools_len = may_call ? strlen(q->tools_json) : 0,
        .tool = q->tool_name, .flags = (open ? PF_SHAPE_IN_REASONING : 0) | (one ? PF_SHAPE_ONE_CALL : 0) |
                                       (q->enable_thinking != 0 ? PF_SHAPE_MAY_REASON : 0) };
    q->grammar = grammars_reply(o->m, &shape);
    q->grammar_is_reply = true;
    return !refused(q->grammar, must_call ? "tool_choice" : q->shape_field, t);
}

/* The grammar of one tool's arguments in a family that does not write them as JSON. It is compiled from the tool's own
 * text alone, so that other requests with that tool share it. */
static struct grammar_ref *in_own_form(const struct prompt_opts *o, struct json tool)
{
    struct buf list = { 0 }, name = { 0 };
    buf_puts(&list, "[");
    buf_add(&list, tool.p, tool.n);
    buf_puts(&list, "]");
    json_string(json_get(json_get(tool, "function"), "name"), &name);
    struct pf_reply_shape shape = { .family = o->family, .tools_json = list.p, .tools_len = list.n,
                                    .tool = buf_text(&name), .flags = PF_SHAPE_ARGUMENTS };
    struct grammar_ref *g = grammars_reply(o->m, &shape);
    buf_free(&list);
    buf_free(&name);
    return g;
}

static double thread_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* A schema that cannot be held leaves its tool's arguments free: the parser makes JSON of them all the same. Each takes
 * some tenths of a second at most, and a thousand of them would keep a worker for minutes; real ones take a
 * thousandth of that. */
static bool hold_arguments(struct job *j, const struct prompt_opts *o, struct trouble *t)
{
    enum { MOST_SECONDS = 3 };
    struct request *q = &j->req;
    double begin = thread_seconds();
    struct json tools = json_value(q->tools_json, strlen(q->tools_json)), each = { 0 };
    size_t n = 0;
    while ((each = json_next(tools, each)).p)
        n++;
    q->tool_grammars = arena_take(&j->arena, n, sizeof *q->tool_grammars);
    q->own_grammars = arena_take(&j->arena, n, sizeof *q->own_grammars);
    while ((each = json_next(tools, each)).p) {
        struct json schema = json_get(json_get(each, "function"), "parameters");
        q->tool_grammars[q->n_tools] = grammars_schema(o->m, schema.p, schema.n);
        q->own_grammars[q->n_tools++] = in_own_form(o, each);
        if (thread_seconds() - begin > MOST_SECONDS) {
            *t = (struct trouble){ 400, "tools", NULL, "the tools' schemas take too long to read" };
            return false;
        }
    }
    return true;
}

static bool hold(struct job *j, const struct prompt_opts *o, struct trouble *t)
{
    struct request *q = &j->req;
    if (wrong_choice(q, t))
        return false;
    if (q->shape == SHAPE_GBNF || (q->shape == SHAPE_JSON && !q->chat)) {
        q->grammar = q->shape == SHAPE_GBNF ? grammars_gbnf(o->m, q->shape_text, q->n_shape)
                                            : grammars_schema(o->m, q->shape_text, q->n_shape);
        return !refused(q->grammar, q->shape_field, t);
    }
    if (q->shape == SHAPE_JSON || q->tool_choice >= TOOLS_REQUIRED)
        return !begun_already(q, t) && hold_reply(q, o, t);
    if (q->tools_json && q->tool_choice != TOOLS_NONE)
        return hold_arguments(j, o, t);
    return true;
}

/* ---- The prompts ------------------------------------------------------------------------------------------------- */

/* A batch with a token that is none would be refused whole, with everybody's part. */
static bool wrong_token(const struct prompt *p, int64_t n_vocab, struct arena *a, const char *field, struct trouble *t)
{
    char at[64], why[80];
    size_t i = 0;
    while (i < p->n_tok && p->tok[i] < n_vocab)
        i++;
    if (i == p->n_tok)
        return false;
    int n = snprintf(at, sizeof at, "%s[%zu]", field, i);
    int n_why = snprintf(why, sizeof why, "must be a token's number, 0 to %lld", (long long)n_vocab - 1);
    *t = (struct trouble){ 400, arena_text(a, at, (size_t)n), NULL, arena_text(a, why, (size_t)n_why) };
    return true;
}

/* The tokens of a text, unless they were given. */
static bool make_tokens(struct prompt *p, const struct prompt_opts *o, unsigned flags, const char *field,
                        struct arena *a, struct trouble *t)
{
    if (!p->tok && too_many_bytes(a, p->text.n, o->n_ctx, field, t))
        return false;
    pf_status st = p->tok ? PF_OK : prompt_tokenize(o->m, buf_text(&p->text), p->text.n, flags, &p->tok, &p->n_tok);
    if (st < 0)
        return failed(st, field, t);
    if (p->n_tok == 0) {
        *t = (struct trouble){ 400, field, NULL, "the prompt is empty" };
        return false;
    }
    if (p->n_tok > (size_t)o->n_ctx)
        return too_long(a, p->n_tok, o->n_ctx, field, t);
    return !wrong_token(p, pf_model_info(o->m)->n_vocab, a, field, t);
}

/* The prompt of a text that a suffix follows. A suffix alone may be all that there is. */
static bool make_between(struct prompt *p, const struct prompt_opts *o, const char *suffix, const char *field,
                         struct trouble *t)
{
    if (p->tok)
        *t = (struct trouble){ 400, field, NULL, "must be a text where a suffix follows" };
    else if (fill_between(o->m, suffix, &p->text))
        return true;
    else
        *t = (struct trouble){ 400, "suffix", NULL, "this model knows no marks for a text that is filled in" };
    return false;
}

/* The text of tokens that were given, for an answer that begins with it. */
static pf_status make_text(struct prompt *p, const pf_model *m)
{
    size_t n = 0;
    pf_status st = pf_detokenize(m, p->tok, p->n_tok, PF_DETOK_SPECIAL, NULL, 0, &n);
    if (st < 0 && st != PF_ESPACE)
        return st;
    buf_reserve(&p->text, n + 1);
    return pf_detokenize(m, p->tok, p->n_tok, PF_DETOK_SPECIAL, p->text.p, n, &p->text.n);
}

bool prompt_make(struct job *j, const struct prompt_opts *o, struct trouble *t)
{
    struct request *q = &j->req;
    unsigned flags = q->chat ? PF_TOK_PARSE_SPECIAL : PF_TOK_PARSE_SPECIAL | PF_TOK_ADD_SPECIAL;
    const char *field = q->chat ? "messages" : "prompt";
    if (q->chat) {
        q->prompts = arena_take(&j->arena, 1, sizeof *q->prompts);
        q->n_prompts = 1;
        pf_status st = render(q, o, &q->prompts->text);
        if (st < 0)
            return failed(st, field, t);
    }
    for (size_t i = 0; i < q->n_prompts; i++) {
        char one[32];
        int n = snprintf(one, sizeof one, "%s[%zu]", field, i);
        const char *at = q->n_prompts > 1 ? arena_text(&j->arena, one, (size_t)n) : field;
        struct prompt *p = &q->prompts[i];
        bool given = p->tok != NULL;
        if (q->suffix && !make_between(p, o, q->suffix, at, t))
            return false;
        if (!make_tokens(p, o, flags, at, &j->arena, t))
            return false;
        pf_status st = given && q->echo ? make_text(p, o->m) : PF_OK;
        if (st < 0)
            return failed(st, at, t);
    }
    j->n_choices = (int)q->n * (int)q->n_prompts;
    j->choices = arena_take(&j->arena, (size_t)j->n_choices, sizeof *j->choices);
    return hold(j, o, t);
}
