/* The public face of the template interpreter: parse, render, and the templates that pfmoe brings along for models
 * without one. See chat_tmpl.h for the contract and jinja.h for the inside. */
#include "text/chat_tmpl.h"

#include "base/pf_mem.h"
#include "text/jinja.h"

pf_status pf_tmpl_parse(pf_tmpl **out, const char *text, size_t len)
{
    *out = NULL;
    pf_tmpl *t = pf_alloc(PF_MEM_TEXT, sizeof *t);
    if (!t)
        PF_FAIL(PF_ENOMEM, "no memory for a chat template of %zu bytes", len);
    pf_hash_key_draw(&t->hash_key);
    t->arena.limit = PF_JMAX_ARENA;
    pf_status st = pf_jparse(t, text, len);
    if (st < 0)
        pf_tmpl_close(&t);
    *out = t;
    return st;
}

void pf_tmpl_close(pf_tmpl **t)
{
    if (!*t)
        return;
    pf_jarena_free(&(*t)->arena);
    pf_free(*t);
    *t = NULL;
}

/* The top-level variables: what the context says, then the global functions. */
static pf_status set_root(struct pf_jrun *r, const char *context, size_t len)
{
    struct pf_jval v;
    void *root;
    r->line = 0;
    PF_TRY(pf_jjson_read(r, context, len, &v));
    if (v.kind != PF_JV_DICT)
        return pf_jfail(r, "%s, not a JSON object", pf_jtype(&v));
    PF_TRY(pf_jalloc(r, r->t->n_names * sizeof *r->root, &root));
    r->root = root;
    for (size_t i = 0; i < r->t->n_names; i++) {
        const struct pf_jname *name = &r->t->names[i];
        const struct pf_jval *given = pf_jdict_str(v.dict, name->s, name->hash);
        if (given)
            r->root[i] = *given;
        else if (name->fn[PF_JT_GLOBAL])
            r->root[i] = (struct pf_jval){ .kind = PF_JV_FUNC, .fn = name->fn[PF_JT_GLOBAL] };
    }
    return PF_OK;
}

pf_status pf_tmpl_render(const pf_tmpl *t, const char *context, size_t context_len, int64_t now, size_t max_bytes,
                         const struct pf_cancel *cancel, char **out, size_t *len)
{
    struct pf_jrun r = { .t = t, .arena = { .limit = PF_JMAX_ARENA }, .now = now,
                         .max_printed = max_bytes ? max_bytes : PF_JMAX_OUTPUT,
                         .cancel = cancel };
    pf_status st;
    *out = NULL;
    *len = 0;
    PF_TRY_GOTO(st, set_root(&r, context, context_len));
    PF_TRY_GOTO(st, pf_jrun_body(&r));
    PF_TRY_GOTO(st, pf_jput(&r, "", 0));
    *out = r.out;
    *len = r.n_out;
    r.out = NULL;
fail:
    pf_free(r.out);
    pf_jarena_free(&r.arena);
    return st;
}

pf_status pf_template_render(const char *tmpl, size_t tmpl_len, const char *context_json, size_t context_len,
                             int64_t now, char *out, size_t cap, size_t *need)
{
    pf_tmpl *t;
    char *text;
    size_t n;
    *need = 0;
    PF_TRY(pf_tmpl_parse(&t, tmpl, tmpl_len));
    pf_status st = pf_tmpl_render(t, context_json, context_len, now, 0, NULL, &text, &n);
    pf_tmpl_close(&t);
    PF_TRY(st);
    *need = n;
    if (n <= cap && n)
        memcpy(out, text, n);
    pf_free(text);
    if (n > cap)
        PF_FAIL(PF_ESPACE, "the rendered template has %zu bytes, the buffer %zu", n, cap);
    return PF_OK;
}

/* ---- Built-in templates ---- */

/* Formats where each message is a header, the content, and an end. */
static const char chatml[] =
    "{% for m in messages %}"
    "{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

static const char llama3[] =
    "{{ bos_token }}"
    "{% for m in messages %}"
    "{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + m.content | trim + '<|eot_id|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}";

static const char phi3[] =
    "{% for m in messages %}"
    "{{ '<|' + m.role + '|>\\n' + m.content + '<|end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}";

/* Formats without a system role: a system message goes in front of the next user message. */
static const char llama2[] =
    "{% set ns = namespace(system='') %}"
    "{% for m in messages %}"
    "{% if m.role == 'system' %}"
    "{% set ns.system = '<<SYS>>\\n' + m.content + '\\n<</SYS>>\\n\\n' %}"
    "{% elif m.role == 'assistant' %}"
    "{{ ' ' + m.content | trim + ' ' + eos_token }}"
    "{% else %}"
    "{{ bos_token + '[INST] ' + ns.system + m.content | trim + ' [/INST]' }}{% set ns.system = '' %}"
    "{% endif %}"
    "{% endfor %}";

static const char mistral[] =
    "{% set ns = namespace(system='') %}"
    "{{ bos_token }}"
    "{% for m in messages %}"
    "{% if m.role == 'system' %}"
    "{% set ns.system = m.content + '\\n\\n' %}"
    "{% elif m.role == 'assistant' %}"
    "{{ ' ' + m.content | trim + eos_token }}"
    "{% else %}"
    "{{ '[INST] ' + ns.system + m.content + ' [/INST]' }}{% set ns.system = '' %}"
    "{% endif %}"
    "{% endfor %}";

static const char gemma[] =
    "{% set ns = namespace(system='') %}"
    "{{ bos_token }}"
    "{% for m in messages %}"
    "{% if m.role == 'system' %}"
    "{% set ns.system = m.content | trim + '\\n\\n' %}"
    "{% else %}"
    "{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' }}"
    "{{ (ns.system if m.role == 'user' else '') + m.content | trim + '<end_of_turn>\\n' }}"
    "{% if m.role == 'user' %}{% set ns.system = '' %}{% endif %}"
    "{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}";

static const char deepseek[] =
    "{{ bos_token }}"
    "{% for m in messages %}"
    "{% if m.role == 'assistant' %}"
    "{{ '<｜Assistant｜>' + m.content + '<｜end▁of▁sentence｜>' }}"
    "{% else %}"
    "{{ ('<｜User｜>' if m.role == 'user' else '') + m.content }}"
    "{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<｜Assistant｜>' }}{% endif %}";

static const char zephyr[] =
    "{% for m in messages %}"
    "{{ '<|' + m.role + '|>\\n' + m.content + eos_token + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}";

/* For base models: names and text. */
static const char plain[] =
    "{% for m in messages %}"
    "{{ m.role | capitalize + ': ' + m.content + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}";

static const struct {
    const char *name, *text;
} builtins[] = {
    { "chatml", chatml }, { "llama2", llama2 }, { "llama3", llama3 },     { "mistral", mistral }, { "gemma", gemma },
    { "phi3", phi3 },     { "zephyr", zephyr }, { "deepseek", deepseek }, { "plain", plain },
};
enum { N_BUILTINS = sizeof builtins / sizeof *builtins };

const char *pf_tmpl_builtin(const char *name, size_t *len)
{
    for (int i = 0; i < N_BUILTINS; i++)
        if (strcmp(builtins[i].name, name) == 0) {
            *len = strlen(builtins[i].text);
            return builtins[i].text;
        }
    return NULL;
}

const char *pf_chat_builtin(int i)
{
    return i >= 0 && i < N_BUILTINS ? builtins[i].name : NULL;
}
