/* One step through the model. Read it top to bottom:
 *
 *     x = embedding of the tokens
 *     every layer:   x += attention(norm(x))       or latent attention, or a delta net
 *                    x += experts(norm(x))         or one dense feed-forward
 *     logits = output * norm(x)
 *
 * x is [rows][n_embd]. The blocks are in attn.c, mla.c, deltanet.c and ffn.c. Matrices are named as in the papers: q,
 * k, v, gate, up, down. All work is done by the backend; these files decide only what follows what. */
#include <math.h>
#include <stdio.h>

#include "moe/blocks.h"
#include "moe/offload.h"
#include "moe/watch.h"

static pf_status run_layer(struct pf_session *s, int il, int rows)
{
    const struct pf_backend_ops *ops = ops_of(s);
    const struct pf_model *m = s->m;
    const struct pf_layer *layer = &m->layers[il];
    struct pf_buffers *b = &s->buf;
    int64_t n = (int64_t)rows * m->n_embd;

    pf_spans_enter(m->spans, layer->is_delta ? "delta net" : "attention", il);
    PF_TRY(ops->rms_norm(m->backend, b->x, layer->attn_norm, m->eps, m->n_embd, rows, b->h));
    PF_TRY(layer->is_delta ? pf_delta_block(s, il, rows)
           : m->arch->mla  ? pf_mla_block(s, il, rows)
                           : pf_attention_block(s, il, rows));
    PF_TRY(ops->add(m->backend, b->x, m->residual_scale, b->y, n));

    pf_spans_enter(m->spans, layer->is_moe ? "router" : "feed-forward", il);
    PF_TRY(ops->rms_norm(m->backend, b->x, layer->ffn_norm, m->eps, m->n_embd, rows, b->h));
    PF_TRY(layer->is_moe ? pf_moe_block(s, il, rows) : pf_dense_block(s, il, rows));
    return ops->add(m->backend, b->x, m->residual_scale, b->y, n);
}

/* Tokens, positions, and what depends on the positions only: made here, then handed to the backend. */
static pf_status put_inputs(struct pf_session *s, const struct pf_batch *batch)
{
    enum { TEMPER_EVERY = 8192 };
    struct pf_inputs in = pf_inputs_at(s->m, batch->rows, s->inputs);
    struct pf_inputs to = pf_inputs_at(s->m, batch->rows, s->buf.inputs);
    for (int r = 0; r < batch->rows; r++) {
        int64_t pos = s->computed + r;
        in.ids[r] = batch->tokens[r];
        in.pos[r] = (int32_t)pos;
        in.temper[r] = (float)(1 + 0.1 * log((double)((pos + 1) / TEMPER_EVERY + 1)));
    }
    pf_rope_table(&s->m->rope, in.pos, batch->rows, in.cs);
    if (s->m->injected.n_tokens)
        pf_watch_fill(s, &in, batch->rows);
    s->buf.injected = to.picks;
    s->buf.injected_weights = to.weights;
    s->buf.ids = to.ids;
    s->buf.pos = to.pos;
    s->buf.temper = to.temper;
    s->buf.cs = to.cs;
    return ops_of(s)->upload(s->m->backend, s->buf.inputs, s->inputs, in.bytes);
}

/* logits = output * norm(x) of n rows from the given one. */
static pf_status head(struct pf_session *s, int first, int n)
{
    const struct pf_model *m = s->m;
    const struct pf_buffers *b = &s->buf;
    pf_spans_enter(m->spans, "output", -1);
    PF_TRY(ops_of(s)->rms_norm(m->backend, b->x + (size_t)first * m->n_embd, m->output_norm, m->eps, m->n_embd, n, b->h));
    return pf_project(s, &(struct pf_linear){ &m->output, b->logits }, 1, b->h, n);
}

static pf_status get_logits(struct pf_session *s, float *to, int n)
{
    return ops_of(s)->download(s->m->backend, to, s->buf.logits, (size_t)n * (size_t)s->m->n_vocab * sizeof(float));
}

/* Everything up to the logits of the last row. */
static pf_status run_layers(struct pf_session *s, const struct pf_batch *batch)
{
    const struct pf_model *m = s->m;
    pf_spans_enter(m->spans, "embedding", -1);
    PF_TRY(pf_embed(s, batch->rows));
    for (int il = 0; il < m->n_layer; il++) {
        if (atomic_exchange(&s->cancel, false))
            PF_FAIL(PF_ECANCEL, "cancelled at layer %d of %d", il, m->n_layer);
        PF_TRY(pf_residency_enter(s->m, il));
        pf_status st = run_layer(s, il, batch->rows);
        pf_residency_leave(s->m, il);
        PF_TRY(st);
    }
    return batch->n_logits == 1 ? head(s, batch->rows - 1, 1) : PF_OK;
}

static pf_status run(struct pf_session *s, const struct pf_batch *batch)
{
    const struct pf_backend_ops *ops = ops_of(s);
    struct pf_repeat repeat = { pf_watch_inside(s->m), s->buf.base, s->computed > 0 ? s->state : NULL, batch->rows, batch->n_logits, s->computed + batch->rows,
                                pf_index_is_used(s, batch->rows) };
    bool replayed;
    pf_spans_enter(s->m->spans, "inputs", -1);
    PF_TRY(pf_offload_between(s->m, batch->rows));
    PF_TRY(pf_watch_begin(s, batch->rows));
    PF_TRY(put_inputs(s, batch));
    PF_TRY(ops->begin(s->m->backend, &repeat, &replayed));
    if (!replayed)
        PF_TRY(run_layers(s, batch));
    PF_TRY(ops->end(s->m->backend));
    PF_TRY(pf_watch_download(s, batch->rows));
    if (batch->n_logits == 1)
        return get_logits(s, batch->logits, 1);
    for (int i = 0; i < batch->n_logits; i += PF_LOGIT_ROWS) {
        int n = batch->n_logits - i < PF_LOGIT_ROWS ? batch->n_logits - i : PF_LOGIT_ROWS;
        PF_TRY(head(s, batch->rows - batch->n_logits + i, n));
        PF_TRY(get_logits(s, batch->logits + (size_t)i * s->m->n_vocab, n));
    }
    return PF_OK;
}

/* The first failure counts; but whatever happens, nothing is under way any more when this returns. */
pf_status pf_forward(struct pf_session *s, const struct pf_batch *batch)
{
    char why[256];
    pf_status st = run(s, batch);
    if (st < 0)
        snprintf(why, sizeof why, "%s", pf_last_error());
    pf_spans_enter(s->m->spans, "finish", -1);
    pf_status finished = ops_of(s)->finish(s->m->backend);
    pf_spans_enter(s->m->spans, NULL, -1);
    if (st < 0)
        PF_FAIL(st, "%s", why);
    PF_TRY(finished);
    return pf_watch_done(s, batch->rows);
}
