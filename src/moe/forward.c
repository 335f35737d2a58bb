/* One step through the model. Read it top to bottom:
 *
 *     x = embedding of the tokens
 *     every layer:   x += attention(norm(x))
 *                    x += experts(norm(x))         or one dense feed-forward
 *     logits = output * norm(x)
 *
 * x is [rows][n_embd]. Matrices are named as in the papers: q, k, v, gate, up, down. All work is done by the backend; this
 * file decides only what follows what. */
#include "moe/session.h"

static const struct pf_backend_ops *ops_of(const struct pf_session *s)
{
    return s->m->backend->ops;
}

/* y = out * attention(rope(norm(q h)), rope(norm(k h)), v h) */
static pf_status attention(struct pf_session *s, const struct pf_layer *layer, const struct pf_kv_view *kv, int rows)
{
    const struct pf_backend_ops *ops = ops_of(s);
    pf_backend *be = s->m->backend;
    const struct pf_attention *a = &layer->attn;
    struct pf_buffers *b = &s->buf;

    const struct pf_linear qkv[] = { { &a->q, b->q }, { &a->k, b->k }, { &a->v, b->v } };
    PF_TRY(ops->linear(be, qkv, 3, b->h, rows));
    if (a->q_norm)
        PF_TRY(ops->rms_norm(be, b->q, a->q_norm, s->m->eps, a->hd_k, rows * a->n_head, b->q));
    if (a->k_norm)
        PF_TRY(ops->rms_norm(be, b->k, a->k_norm, s->m->eps, a->hd_k, rows * a->n_kv_head, b->k));
    const struct pf_rope_op ropes[] = {
        { b->q, b->cs, a->n_head, a->hd_k, s->m->rope.n_pairs, s->m->arch->rope_neox },
        { b->k, b->cs, a->n_kv_head, a->hd_k, s->m->rope.n_pairs, s->m->arch->rope_neox },
    };
    PF_TRY(ops->rope(be, ropes, 2, rows));
    PF_TRY(ops->kv_store(be, kv, b->k, b->v, b->pos, rows));
    PF_TRY(ops->attention(be, &(struct pf_attention_op){ .q = b->q, .out = b->attn, .kv = kv, .pos = b->pos, .rows = rows,
                                                         .n_head = a->n_head, .window = a->window, .scale = a->scale,
                                                         .sinks = a->sinks }));
    return ops->linear(be, &(struct pf_linear){ &a->out, b->y }, 1, b->attn, rows);
}

/* y = down * (act(gate h) * up h) */
static pf_status dense_ffn(struct pf_session *s, const struct pf_dense_ffn *f, int rows)
{
    const struct pf_backend_ops *ops = ops_of(s);
    struct pf_buffers *b = &s->buf;
    const struct pf_linear gate_up[] = { { &f->gate, b->gate }, { &f->up, b->up } };
    PF_TRY(ops->linear(s->m->backend, gate_up, 2, b->h, rows));
    PF_TRY(ops->act(s->m->backend, s->m->arch->act, b->gate, b->up, (int64_t)rows * f->gate.n_out, b->gate));
    return ops->linear(s->m->backend, &(struct pf_linear){ &f->down, b->y }, 1, b->gate, rows);
}

/* y = sum over the experts that the router picks of weight * expert(h) */
static pf_status experts(struct pf_session *s, const struct pf_moe *moe, int rows)
{
    const struct pf_backend_ops *ops = ops_of(s);
    struct pf_buffers *b = &s->buf;
    PF_TRY(ops->linear(s->m->backend, &(struct pf_linear){ &moe->router, b->router }, 1, b->h, rows));
    PF_TRY(ops->route(s->m->backend, &moe->routing, b->router, moe->select_bias, rows, b->picks, b->pick_weights));
    return ops->experts(s->m->backend, &(struct pf_experts_op){ .gate = &moe->gate, .up = &moe->up, .down = &moe->down,
                                                                .act = s->m->arch->act, .n_expert = moe->routing.n_expert,
                                                                .n_used = moe->routing.n_used, .rows = rows, .picks = b->picks,
                                                                .weights = b->pick_weights, .x = b->h, .y = b->y });
}

static pf_status run_layer(struct pf_session *s, int il, int rows)
{
    const struct pf_backend_ops *ops = ops_of(s);
    pf_backend *be = s->m->backend;
    const struct pf_layer *layer = &s->m->layers[il];
    struct pf_buffers *b = &s->buf;
    int n_embd = s->m->n_embd;

    PF_TRY(ops->rms_norm(be, b->x, layer->attn_norm, s->m->eps, n_embd, rows, b->h));
    PF_TRY(attention(s, layer, &s->kv[il].view, rows));
    PF_TRY(ops->add(be, b->x, b->y, (int64_t)rows * n_embd));

    PF_TRY(ops->rms_norm(be, b->x, layer->ffn_norm, s->m->eps, n_embd, rows, b->h));
    PF_TRY(layer->is_moe ? experts(s, &layer->moe, rows) : dense_ffn(s, &layer->dense, rows));
    return ops->add(be, b->x, b->y, (int64_t)rows * n_embd);
}

pf_status pf_forward(struct pf_session *s, const struct pf_batch *batch)
{
    const struct pf_model *m = s->m;
    const struct pf_backend_ops *ops = ops_of(s);
    struct pf_buffers *b = &s->buf;
    int rows = batch->rows;

    for (int r = 0; r < rows; r++) {
        b->ids[r] = batch->tokens[r];
        b->pos[r] = (int32_t)(s->pos + r);
    }
    pf_rope_table(&m->rope, b->pos, rows, b->cs);
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
