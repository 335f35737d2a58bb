/* The input of the layer that guesses ahead (multi-token prediction, DeepSeek-AI 2024, "DeepSeek-V3", section 2.2): at
 * position p the token that stands there, and what the whole model has put out at p - 1.
 *
 *     x = eh [norm(embedding of token p) | norm(hidden p - 1)]
 *
 * The hidden rows are inputs of the step: the session's caller has them (struct pf_given_rows). */
#include "moe/blocks/blocks.h"

pf_status pf_nextn_begin(struct pf_step *t, int rows)
{
    const struct pf_backend_ops *ops = ops_of(t);
    pf_backend *be = t->unit->backend;
    const struct pf_nextn_entry *e = &t->m->entry;
    struct pf_buffers *b = &t->unit->buf;
    int n = t->m->n_embd;
    const struct pf_copy pair[] = {
        { b->h, b->pair, n, 1, 0, 0, n, 2 * (int64_t)n },
        { b->y, b->pair + n, n, 1, 0, 0, n, 2 * (int64_t)n },
    };
    PF_TRY(pf_norm(t, b->x, e->enorm, NULL, t->m->eps, rows, b->h));
    PF_TRY(pf_norm(t, b->hidden, e->hnorm, NULL, t->m->eps, rows, b->y));
    PF_TRY(ops->copy(be, pair, 2, rows));
    return pf_project(t, &(struct pf_linear){ &e->eh, b->x }, 1, b->pair, rows);
}
