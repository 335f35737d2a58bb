/* See prompt.h. Any thread. */
#include "serve/prompt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    buf_clear(out);
    buf_reserve(out, 1 << 16);
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

static bool too_long(struct arena *a, size_t n, int64_t n_ctx, const char *field, struct trouble *t)
{
    char why[160];
    int len = snprintf(why, sizeof why, "the prompt has %zu tokens, the context holds %lld", n, (long long)n_ctx);
    *t = (struct trouble){ 400, field, "context_length_exceeded", arena_text(a, why, (size_t)len) };
    return false;
}

static bool failed(pf_status st, const char *field, struct trouble *t)
{
    bool client = st == PF_ETEMPLATE || st == PF_ECONTEXT || st == PF_EINVAL;
    *t = (struct trouble){ client ? 400 : 500, field, st == PF_ECONTEXT ? "context_length_exceeded" : NULL,
                           pf_last_error() };
    return false;
}

/* Grammars are compiled here, on a worker: that may take a while. */
static bool compile_shape(struct request *q, const pf_model *m, struct trouble *t)
{
    pf_status st = PF_OK;
    if (q->shape == SHAPE_JSON)
        st = pf_grammar_json_schema(&q->grammar, m, q->shape_text, q->n_shape);
    else if (q->shape == SHAPE_GBNF)
        st = pf_grammar_gbnf(&q->grammar, m, q->shape_text, q->n_shape);
    if (st == PF_OK)
        return true;
    bool client = st == PF_EINVAL || st == PF_EUNSUPPORTED;
    *t = (struct trouble){ client ? 400 : 500, q->shape_field, NULL, pf_last_error() };
    return false;
}

bool prompt_make(struct job *j, const struct prompt_opts *o, struct trouble *t)
{
    struct request *q = &j->req;
    const char *field = q->chat ? "messages" : "prompt";
    pf_status st = PF_OK;
    if (q->chat)
        st = render(q, o, &q->prompt);
    else if (!q->tok)
        buf_add(&q->prompt, q->text, q->n_text);
    if (st == PF_OK && !q->tok)
        st = prompt_tokenize(o->m, buf_text(&q->prompt), q->prompt.n,
                             q->chat ? PF_TOK_PARSE_SPECIAL : PF_TOK_PARSE_SPECIAL | PF_TOK_ADD_SPECIAL, &q->tok,
                             &q->n_tok);
    if (st < 0)
        return failed(st, field, t);
    if (q->n_tok == 0) {
        *t = (struct trouble){ 400, field, NULL, "the prompt is empty" };
        return false;
    }
    if (q->n_tok > (size_t)o->n_ctx)
        return too_long(&j->arena, q->n_tok, o->n_ctx, field, t);
    return compile_shape(q, o->m, t);
}
