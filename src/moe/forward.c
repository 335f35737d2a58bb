/* One step through the model. Read it top to bottom:
 *
 *     x = embedding of the tokens
 *     every layer:   x += attention(norm(x))       or a delta net
 *                    x += experts(norm(x))         or one dense feed-forward
 *     logits = output * norm(x)
 *
 * x is [rows][n_embd]. The blocks are in attn.c, deltanet.c and ffn.c. Matrices are named as in the papers: q, k, v, gate, up, down.
 * All work is done by the backend; these files decide only what follows what. */
#include <math.h>

#include "moe/blocks.h"

static pf_status run_layer(struct pf_session *s, int il, int rows)
{
    const struct pf_backend_ops *ops = ops_of(s);
    const struct pf_model *m = s->m;
    const struct pf_layer *layer = &m->layers[il];
    struct pf_buffers *b = &s->buf;
    int64_t n = (int64_t)rows * m->n_embd;

    PF_TRY(ops->rms_norm(m->backend, b->x, layer->attn_norm, m->eps, m->n_embd, rows, b->h));
    PF_TRY(layer->is_delta ? pf_delta_block(s, il, rows) : pf_attention_block(s, il, rows));
    PF_TRY(ops->add(m->backend, b->x, m->residual_scale, b->y, n));

    PF_TRY(ops->rms_norm(m->backend, b->x, layer->ffn_norm, m->eps, m->n_embd, rows, b->h));
    PF_TRY(layer->is_moe ? pf_moe_block(s, il, rows) : pf_dense_block(s, il, rows));
    return ops->add(m->backend, b->x, m->residual_scale, b->y, n);
}

/* What depends on the positions only. */
static void set_positions(struct pf_session *s, const struct pf_batch *batch)
{
    enum { TEMPER_EVERY = 8192 };
    struct pf_buffers *b = &s->buf;
    for (int r = 0; r < batch->rows; r++) {
        int64_t pos = s->computed + r;
        b->ids[r] = batch->tokens[r];
        b->pos[r] = (int32_t)pos;
        b->temper[r] = (float)(1 + 0.1 * log((double)((pos + 1) / TEMPER_EVERY + 1)));
    }
    pf_rope_table(&s->m->rope, b->pos, batch->rows, b->cs);
}

pf_status pf_forward(struct pf_session *s, const struct pf_batch *batch)
{
    const struct pf_model *m = s->m;
    const struct pf_backend_ops *ops = ops_of(s);
    struct pf_buffers *b = &s->buf;
    int rows = batch->rows;

    set_positions(s, batch);
    PF_TRY(ops->embed(m->backend, &m->embed, b->ids, rows, b->x));

    for (int il = 0; il < m->n_layer; il++) {
        if (atomic_exchange(&s->cancel, false))
            PF_FAIL(PF_ECANCEL, "cancelled at layer %d of %d", il, m->n_layer);
        PF_TRY(run_layer(s, il, rows));
    }

    if (batch->n_logits == 0)
        return PF_OK;
    const float *last = b->x + (size_t)(rows - batch->n_logits) * m->n_embd;
    PF_TRY(ops->rms_norm(m->backend, last, m->output_norm, m->eps, m->n_embd, batch->n_logits, b->h));
    return ops->linear(m->backend, &(struct pf_linear){ &m->output, batch->logits }, 1, b->h, batch->n_logits);
}
