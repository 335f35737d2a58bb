/* The input of the layer that guesses ahead (multi-token prediction, DeepSeek-AI 2024, "DeepSeek-V3", section 2.2): at
 * position p the token that stands there, and what the whole model has put out at p - 1.
 *
 *     x = eh [norm(embedding of token p) | norm(hidden p - 1)]
 *
 * Where the model has several residual streams and hands them out as they are, each makes its stream of x with the same
 * eh and norms (DeepSeek-V4). The hidden rows are inputs of the step: the session's caller has them (struct
 * pf_given_rows). */
#include "moe/blocks/blocks.h"

/* Copies rows of n_embd numbers, which are so far apart. */
static pf_status copy(struct pf_step *t, const float *from, int64_t from_row, float *to, int64_t to_row, int rows)
{
    const struct pf_copy one = { from, to, t->m->n_embd, 1, 0, 0, from_row, to_row };
    return ops_of(t)->copy(t->unit->backend, &one, 1, rows);
}

/* One stream of x, of the same stream of what was put out; the token's half of the pairs is there. */
static pf_status join(struct pf_step *t, const float *hidden, int rows, float *x)
{
    const struct pf_nextn_entry *e = &t->m->entry;
    struct pf_buffers *b = &t->unit->buf;
    int n = t->m->n_embd;
    PF_TRY(pf_norm(t, hidden, e->hnorm, NULL, t->m->eps, rows, b->y));
    PF_TRY(copy(t, b->y, n, b->pair + n, 2 * (int64_t)n, rows));
    return pf_project(t, &(struct pf_linear){ &e->eh, x }, 1, b->pair, rows);
}

pf_status pf_nextn_begin(struct pf_step *t, int rows)
{
    struct pf_buffers *b = &t->unit->buf;
    int n = t->m->n_embd, n_streams = t->m->streams.n;
    PF_TRY(pf_norm(t, b->x, t->m->entry.enorm, NULL, t->m->eps, rows, b->h));
    PF_TRY(copy(t, b->h, n, b->pair, 2 * (int64_t)n, rows));
    if (n_streams == 1)
        return join(t, b->hidden, rows, b->x);
    for (int i = 0; i < n_streams; i++) {
        int64_t row = (int64_t)n_streams * n;
        PF_TRY(copy(t, b->hidden + i * n, row, b->y, n, rows));
        PF_TRY(join(t, b->y, rows, b->h));
        PF_TRY(copy(t, b->h, n, b->x + i * n, row, rows));
    }
    return PF_OK;
}
