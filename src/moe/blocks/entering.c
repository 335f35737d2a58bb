/* Embeddings of n-grams (Qwen 3.8), which enter all residual streams in front of one layer. E are the rows that a table
 * has for the last tokens (ngrams.h); the CPU looked them up when the step began.
 *
 *     key = norm(ple_key E), query = norm(x)         stream by stream
 *     g   = sigmoid(agreement of key and query) * (ple_value E)              struct pf_agree_op
 *     x  += g + silu(conv(norm(g)))                  over time, taps n positions apart: struct pf_spread_op
 *
 * The last rows of norm(g) are recurrent state, behind what else the layer has. */
#include "moe/blocks/blocks.h"

/* One part's rows, from its session's state to the next. u: norm of what enters. */
static pf_status convolve(struct pf_step *t, int il, const struct pf_part *p)
{
    const struct pf_model *m = t->m;
    const struct pf_layer *layer = &m->layers[il];
    struct pf_buffers *b = &t->unit->buf;
    int n = m->streams.n * m->n_embd;
    size_t first = (size_t)p->first * (size_t)n;
    struct pf_spread_op op = { .u = b->flat + first, .v = b->entering + first, .conv = layer->ngrams.conv,
                               .x = b->x + first, .n = n, .taps = m->ngrams.taps, .step = m->ngrams.n,
                               .rows = p->rows };
    size_t at = layer->n_state - (size_t)pf_spread_rows(&op) * (size_t)n;
    const float *before = pf_state_before(p->s, il);
    op.before = before ? before + at : NULL;
    op.after = pf_state_after(p->s, il) + at;
    return ops_of(t)->spread(t->unit->backend, &op);
}

pf_status pf_ngram_block(struct pf_step *t, int il, int rows)
{
    const struct pf_backend_ops *ops = ops_of(t);
    pf_backend *be = t->unit->backend;
    const struct pf_model *m = t->m;
    const struct pf_ngram_weights *g = &m->layers[il].ngrams;
    struct pf_buffers *b = &t->unit->buf;
    int n = m->n_embd, n_streams = m->streams.n;
    const struct pf_linear of_rows[] = { { &g->key, b->gates }, { &g->value, b->y } };
    pf_spans_enter(m->spans, "n-grams", il);
    PF_TRY(pf_project(t, of_rows, 2, b->gathered, rows));
    PF_TRY(ops->norm_each(be, b->gates, g->key_norm, m->eps, n, n_streams, rows, b->gates));
    PF_TRY(ops->norm_each(be, b->x, g->query_norm, m->eps, n, n_streams, rows, b->flat));
    PF_TRY(ops->agree(be, &(struct pf_agree_op){ .key = b->gates, .query = b->flat, .value = b->y, .out = b->entering,
                                                 .n = n, .n_streams = n_streams, .rows = rows }));
    PF_TRY(ops->norm_each(be, b->entering, g->conv_norm, m->eps, n, n_streams, rows, b->flat));
    for (int i = 0; i < t->n_parts; i++)
        PF_TRY(convolve(t, il, &t->parts[i]));
    return PF_OK;
}
