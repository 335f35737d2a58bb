/* Grammars for a model (pf_grammar_json_schema and its kind): they share one trie of the model's tokens, which the
 * first grammar makes. Where two threads make one at once, one of the two is kept. */
#include <stdatomic.h>

#include "base/pf_status.h"
#include "grammar/grammar.h"
#include "languages/languages.h"
#include "moe/model/model.h"
#include "shape/shape.h"

static pf_status tokens_of(const pf_model *m, const struct pf_tokens **out)
{
    struct pf_model *shared = (struct pf_model *)(uintptr_t)m;       /* of which only this field changes */
    struct pf_tokens *made = NULL, *known = atomic_load(&shared->tokens);
    if (!m->vocab)
        PF_FAIL(PF_EUNSUPPORTED, "%s has no tokenizer", pf_gguf_path(m->file));
    if (!known) {
        PF_TRY(pf_tokens_open(&made, m->vocab));
        if (atomic_compare_exchange_strong(&shared->tokens, &known, made))
            known = made;
        else
            pf_tokens_close(&made);
    }
    *out = known;
    return PF_OK;
}

static pf_status compile(pf_grammar **out, const pf_model *m, pf_language_fn *language, const char *text, size_t n)
{
    const struct pf_tokens *t = NULL;
    *out = NULL;
    PF_TRY(tokens_of(m, &t));
    return pf_grammar_compile(out, t, language, text, n);
}

pf_status pf_grammar_gbnf(pf_grammar **out, const pf_model *m, const char *text, size_t n)
{
    return compile(out, m, pf_gbnf_rules, text, n);
}

pf_status pf_grammar_regex(pf_grammar **out, const pf_model *m, const char *text, size_t n)
{
    return compile(out, m, pf_regex_rules, text, n);
}

pf_status pf_grammar_json_schema(pf_grammar **out, const pf_model *m, const char *schema, size_t n)
{
    return compile(out, m, pf_schema_rules, schema, n);
}

pf_status pf_grammar_reply(pf_grammar **out, const pf_model *m, const struct pf_reply_shape *o)
{
    const struct pf_tokens *t = NULL;
    struct pf_rules r = { 0 };
    int32_t root = 0;
    *out = NULL;
    PF_TRY(tokens_of(m, &t));
    pf_status st = pf_shape_rules(&r, m->vocab, o, &root);
    if (st == PF_OK)
        st = pf_grammar_make(out, t, &r, root);
    pf_rules_free(&r);
    return st;
}
