/* A conversation as the JSON object that chat templates read, and the retries that real templates need.
 *
 * Keys as Hugging Face transformers passes them: messages, tools, documents, add_generation_prompt and the special
 * tokens' texts, plus the switches that reasoning models know (enable_thinking, thinking, reasoning_effort). Templates
 * that refuse a system message (they raise) are tried again with its text in front of the first user message.
 *
 * Templates end each message, the last one too. Where a reply goes on with that, its content has a mark at its end, and
 * the prompt is what the template prints in front of the mark: white space that it would strip stays so, too. */
#include <stdio.h>
#include <string.h>

#include "base/pf_mem.h"
#include "moe/model/model.h"
#include "reply/reply.h"

/* ---- A growing string -------------------------------------------------------------------------------------------- */

struct text {
    char  *p;
    size_t n, cap;
    bool   failed;           /* out of memory; sticky */
};

static void put(struct text *t, const char *s, size_t n)
{
    if (t->failed || n == 0)
        return;
    if (n > t->cap - t->n) {
        size_t cap = 2 * t->cap + n + 256;
        char *grown = pf_realloc(PF_MEM_TEXT, t->p, cap);
        if (!grown) {
            t->failed = true;
            return;
        }
        t->p = grown;
        t->cap = cap;
    }
    memcpy(t->p + t->n, s, n);
    t->n += n;
}

static void puts_text(struct text *t, const char *s)
{
    put(t, s, strlen(s));
}

static void put_json_string(struct text *t, const char *s, size_t n)
{
    puts_text(t, "\"");
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        char escape[8];
        if (c == '"' || c == '\\')
            put(t, (char[]){ '\\', (char)c }, 2);
        else if (c < 0x20)
            put(t, escape, (size_t)snprintf(escape, sizeof escape, "\\u%04x", c));
        else
            put(t, s + i, 1);
    }
    puts_text(t, "\"");
}

static void put_member(struct text *t, const char *key, const char *value)
{
    puts_text(t, ", ");
    put_json_string(t, key, strlen(key));
    puts_text(t, ": ");
    put_json_string(t, value, strlen(value));
}

/* ---- The context ------------------------------------------------------------------------------------------------- */

/* Nothing that a template strips or cuts at. */
static const char goes_on[] = "\x11goes on\x11";

static void put_message(struct text *t, const struct pf_message *m, const char *prefix, const char *behind)
{
    puts_text(t, "{\"role\": ");
    put_json_string(t, m->role, strlen(m->role));
    puts_text(t, ", \"content\": ");
    struct text content = { 0 };
    puts_text(&content, prefix);
    puts_text(&content, prefix[0] ? "\n\n" : "");
    puts_text(&content, m->content ? m->content : "");
    puts_text(&content, behind);
    put_json_string(t, content.p ? content.p : "", content.n);
    t->failed |= content.failed;
    pf_free(content.p);
    if (m->reasoning) {
        put_member(t, "reasoning_content", m->reasoning);
        put_member(t, "thinking", m->reasoning);
    }
    if (m->tool_calls_json) {
        puts_text(t, ", \"tool_calls\": ");
        puts_text(t, m->tool_calls_json);
    }
    if (m->tool_call_id)
        put_member(t, "tool_call_id", m->tool_call_id);
    if (m->name)
        put_member(t, "name", m->name);
    puts_text(t, "}");
}

static bool is_system(const struct pf_message *m)
{
    return strcmp(m->role, "system") == 0;
}

/* fold: leave the leading system message out and put its text in front of the first user message. marked: the last
 * one's content ends with the mark. */
static void put_messages(struct text *t, const struct pf_message *msgs, size_t n, bool fold, bool marked)
{
    const char *system = fold ? msgs[0].content : "";
    puts_text(t, "\"messages\": [");
    for (size_t i = fold; i < n; i++) {
        bool first_user = system[0] && strcmp(msgs[i].role, "user") == 0;
        puts_text(t, i > fold ? ", " : "");
        put_message(t, &msgs[i], first_user ? system : "", marked && i == n - 1 ? goes_on : "");
        if (first_user)
            system = "";
    }
    puts_text(t, "]");
}

static void put_special_tokens(struct text *t, const pf_vocab *v)
{
    static const struct { const char *key; enum pf_special which; } specials[] = {
        { "bos_token", PF_SPECIAL_BOS }, { "eos_token", PF_SPECIAL_EOS }, { "pad_token", PF_SPECIAL_PAD },
        { "unk_token", PF_SPECIAL_UNK },
    };
    for (size_t i = 0; v && i < sizeof specials / sizeof *specials; i++) {
        int32_t id = pf_vocab_special(v, specials[i].which);
        size_t len;
        const char *piece = id >= 0 ? pf_vocab_piece(v, id, true, &len) : NULL;
        if (!piece)
            continue;
        puts_text(t, ", \"");
        puts_text(t, specials[i].key);
        puts_text(t, "\": ");
        put_json_string(t, piece, len);
    }
}

static void put_context(struct text *t, const pf_model *m, const struct pf_message *msgs, size_t n,
                        const struct pf_chat_opts *o, bool fold)
{
    puts_text(t, "{");
    put_messages(t, msgs, n, fold, o->continue_last);
    puts_text(t, ", \"tools\": ");
    puts_text(t, o->tools_json ? o->tools_json : "null");
    puts_text(t, ", \"documents\": null, \"add_generation_prompt\": ");
    puts_text(t, o->add_generation_prompt && !o->continue_last ? "true" : "false");
    put_special_tokens(t, m->vocab);
    if (o->enable_thinking >= 0) {
        const char *value = o->enable_thinking ? "true" : "false";
        puts_text(t, ", \"enable_thinking\": ");
        puts_text(t, value);
        puts_text(t, ", \"thinking\": ");
        puts_text(t, value);
    }
    if (o->reasoning_effort)
        put_member(t, "reasoning_effort", o->reasoning_effort);
    puts_text(t, "}");
}

/* 0: no limit but the interpreter's. */
static size_t max_bytes(const struct pf_chat_opts *o)
{
    return o->n_ctx > 0 && o->n_ctx < (int64_t)1 << 40 ? (size_t)o->n_ctx * PF_CHAT_TOKEN_BYTES : 0;
}

/* The text as far as the last mark in it. */
static pf_status cut_at_mark(char *text, size_t *len)
{
    const size_t n_mark = sizeof goes_on - 1;
    for (size_t i = *len; i >= n_mark; i--)
        if (memcmp(text + i - n_mark, goes_on, n_mark) == 0) {
            *len = i - n_mark;
            return PF_OK;
        }
    PF_FAIL(PF_ETEMPLATE, "the chat template does not print the last message as it is, so no reply goes on with it");
}

static pf_status render_once(const pf_model *m, const pf_tmpl *tmpl, const struct pf_message *msgs, size_t n,
                             const struct pf_chat_opts *o, bool fold, char **out, size_t *len)
{
    struct text context = { 0 };
    put_context(&context, m, msgs, n, o, fold);
    pf_status st = context.failed ? pf_fail(PF_ENOMEM, "no memory to render %zu messages", n)
                                  : pf_tmpl_render(tmpl, context.p, context.n, -1, max_bytes(o), &m->cancel, out, len);
    pf_free(context.p);
    if (st == PF_OK && o->continue_last && (st = cut_at_mark(*out, len)) < 0)
        pf_free(*out);
    if (st == PF_ECONTEXT)
        PF_FAIL(PF_ECONTEXT, "the prompt is too long: the chat template prints more than %zu bytes, %d for each of the "
                "context's %lld positions", max_bytes(o), PF_CHAT_TOKEN_BYTES, (long long)o->n_ctx);
    return st;
}

/* ---- Which template ---------------------------------------------------------------------------------------------- */

/* *owned: parsed for this call, to be closed by the caller. */
static pf_status choose_template(const pf_model *m, const struct pf_chat_opts *o, const pf_tmpl **out, pf_tmpl **owned)
{
    const char *text = o->template_text;
    size_t len = text ? strlen(text) : 0;
    *owned = NULL;
    if (!text && o->template_name) {
        text = pf_tmpl_builtin(o->template_name, &len);
        if (!text)
            PF_FAIL(PF_EINVAL, "there is no built-in chat template \"%s\"", o->template_name);
    }
    if (text) {
        PF_TRY(pf_tmpl_parse(owned, text, len));
        *out = *owned;
        return PF_OK;
    }
    if (!m->tmpl)
        PF_FAIL(PF_ETEMPLATE, "%s; choose a built-in one",
                m->tmpl_error ? m->tmpl_error : "the model has no chat template");
    *out = m->tmpl;
    return PF_OK;
}

void pf_chat_opts_init(struct pf_chat_opts *o)
{
    *o = (struct pf_chat_opts){ .add_generation_prompt = true, .enable_thinking = -1 };
}

static bool can_go_on(const struct pf_message *msgs, size_t n)
{
    const struct pf_message *last = n > 0 ? &msgs[n - 1] : NULL;
    return last && strcmp(last->role, "assistant") == 0 && last->content && last->content[0] && !last->tool_calls_json;
}

pf_status pf_chat_render(const pf_model *m, const struct pf_message *msgs, size_t n, const struct pf_chat_opts *opts,
                         char *out, size_t cap, size_t *need)
{
    struct pf_chat_opts o;
    const pf_tmpl *tmpl = NULL;
    pf_tmpl *owned;
    char *text = NULL;
    size_t len = 0;
    pf_chat_opts_init(&o);
    if (opts)
        o = *opts;
    if (o.continue_last && !can_go_on(msgs, n))
        PF_FAIL(PF_EINVAL, "no reply goes on with a last message that is not an assistant's, is empty, or has calls");
    PF_TRY(choose_template(m, &o, &tmpl, &owned));
    pf_status st = render_once(m, tmpl, msgs, n, &o, false, &text, &len);
    if (st == PF_ETEMPLATE && n > 0 && is_system(&msgs[0]) && msgs[0].content) {
        char first_error[512];
        snprintf(first_error, sizeof first_error, "%s", pf_last_error());
        st = render_once(m, tmpl, msgs, n, &o, true, &text, &len);
        if (st < 0)
            st = pf_fail(PF_ETEMPLATE, "%s", first_error);
    }
    pf_tmpl_close(&owned);
    if (st < 0)
        return st;
    *need = len;
    if (len > 0 && len <= cap)
        memcpy(out, text, len);
    pf_free(text);
    if (len > cap)
        PF_FAIL(PF_ESPACE, "the prompt takes %zu bytes, the buffer has %zu", len, cap);
    return PF_OK;
}

/* ---- The family of its replies ----------------------------------------------------------------------------------- */

const char *pf_reply_family(const pf_model *m, const struct pf_chat_opts *o)
{
    struct pf_str text = { 0 };
    if (o && o->template_text)
        text = (struct pf_str){ o->template_text, strlen(o->template_text) };
    else if (o && o->template_name)
        text.p = pf_tmpl_builtin(o->template_name, &text.n);
    else if (!m || pf_gguf_str_opt(m->file, "tokenizer.chat_template", &text) < 0)
        text.p = NULL;
    return pf_reply_family_of(text.p ? text.p : "", text.p ? text.n : 0);
}
