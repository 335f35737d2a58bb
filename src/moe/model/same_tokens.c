/* See same_tokens.h. */
#include "moe/model/same_tokens.h"

#include <string.h>

enum { MOST_UNUSED = 1024 };     /* tokens that one vocabulary may have behind the other's end */

static bool same_token(const pf_vocab *a, const pf_vocab *b, int32_t id)
{
    size_t n, m;
    const char *x = pf_vocab_piece(a, id, true, &n), *y = pf_vocab_piece(b, id, true, &m);
    return (!x && !y) || (x && y && n == m && memcmp(x, y, n) == 0);
}

pf_status pf_same_tokens(const struct pf_model *m, const struct pf_model *smaller)
{
    int n = m->n_vocab < smaller->n_vocab ? m->n_vocab : smaller->n_vocab;
    bool named = m->vocab && smaller->vocab;
    int more = m->n_vocab + smaller->n_vocab - 2 * n;
    if (more > (named ? MOST_UNUSED : 0))
        PF_FAIL(PF_EUNSUPPORTED, "a model that drafts must have the same tokens: %d, not %d, in %s", m->n_vocab,
                smaller->n_vocab, pf_gguf_path(smaller->file));
    for (int32_t id = 0; named && id < n; id++)
        if (!same_token(m->vocab, smaller->vocab, id))
            PF_FAIL(PF_EUNSUPPORTED, "a model that drafts must have the same tokens; token %d is another one in %s", id,
                    pf_gguf_path(smaller->file));
    return PF_OK;
}
