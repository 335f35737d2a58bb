/* One step through the model. Read it top to bottom:
 *
 *     x = embedding of the tokens
 *     every layer:   x += attention(norm(x))       or latent attention, or a delta net
 *                    x += experts(norm(x))         or one dense feed-forward
 *     logits = output * norm(x)
 *
 * x is [rows][n_embd]. The blocks are in attn.c, mla.c, deltanet.c and ffn.c. Matrices are named as in the papers: q,
 * k, v, gate, up, down. All work is done by backends; these files decide only what follows what. One unit does it all, or
 * two take turns, and x is handed over (split.h); s->unit is the one at work. */
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
    struct pf_buffers *b = &s->unit->buf;
    pf_backend *be = s->unit->backend;
    int64_t n = (int64_t)rows * m->n_embd;

    pf_spans_enter(m->spans, layer->is_delta ? "delta net" : "attention", il);
    PF_TRY(ops->rms_norm(be, b->x, layer->attn_norm, m->eps, m->n_embd, rows, b->h));
    PF_TRY(layer->is_delta ? pf_delta_block(s, il, rows)
           : m->arch->mla  ? pf_mla_block(s, il, rows)
                           : pf_attention_block(s, il, rows));
    PF_TRY(ops->add(be, b->x, m->residual_scale, b->y, n));

    pf_spans_enter(m->spans, layer->is_moe ? "router" : "feed-forward", il);
    PF_TRY(ops->rms_norm(be, b->x, layer->ffn_norm, m->eps, m->n_embd, rows, b->h));
    PF_TRY(layer->is_moe ? pf_moe_block(s, il, rows) : pf_dense_block(s, il, rows));
    return ops->add(be, b->x, m->residual_scale, b->y, n);
}

static pf_status upload_inputs(struct pf_unit *u, const struct pf_model *m, int rows, const void *inputs)
{
    struct pf_inputs to = pf_inputs_at(m, rows, u->buf.inputs);
    u->buf.injected = to.picks;
    u->buf.injected_weights = to.weights;
    u->buf.ids = to.ids;
    u->buf.pos = to.pos;
    u->buf.temper = to.temper;
    u->buf.cs = to.cs;
    return u->backend->ops->upload(u->backend, u->buf.inputs, inputs, to.bytes);
}

/* Tokens, positions, and what depends on the positions only: made here, then given to the units. */
static pf_status put_inputs(struct pf_session *s, const struct pf_batch *batch)
{
    enum { TEMPER_EVERY = 8192 };
    struct pf_inputs in = pf_inputs_at(s->m, batch->rows, s->inputs);
    for (int r = 0; r < batch->rows; r++) {
        int64_t pos = s->computed + r;
        in.ids[r] = batch->tokens[r];
        in.pos[r] = (int32_t)pos;
        in.temper[r] = (float)(1 + 0.1 * log((double)((pos + 1) / TEMPER_EVERY + 1)));
    }
    pf_rope_table(&s->m->rope, in.pos, batch->rows, in.cs);
    if (s->m->injected.n_tokens)
        pf_watch_fill(s, &in, batch->rows);
    for (struct pf_unit *u = s->units; u < s->units + 2; u++)
        if (u->backend)
            PF_TRY(upload_inputs(u, s->m, batch->rows, s->inputs));
    return PF_OK;
}

static pf_status embed(struct pf_session *s, int rows)
{
    pf_spans_enter(s->m->spans, "embedding", -1);
    return pf_embed(s, rows);
}

/* Those that are the unit's. */
static pf_status run_layers(struct pf_session *s, int rows)
{
    for (int il = s->unit->first; il < s->unit->end; il++) {
        if (atomic_exchange(&s->cancel, false))
            PF_FAIL(PF_ECANCEL, "cancelled at layer %d of %d", il, s->m->n_layer);
        PF_TRY(pf_residency_enter(s->m, il));
        pf_status st = run_layer(s, il, rows);
        pf_residency_leave(s->m, il);
        PF_TRY(st);
    }
    return PF_OK;
}

/* logits = output * norm(x) of n rows from the given one. */
static pf_status head(struct pf_session *s, int first, int n)
{
    const struct pf_model *m = s->m;
    const struct pf_buffers *b = &s->unit->buf;
    pf_backend *be = s->unit->backend;
    pf_spans_enter(m->spans, "output", -1);
    PF_TRY(ops_of(s)->rms_norm(be, b->x + (size_t)first * m->n_embd, m->output_norm, m->eps, m->n_embd, n, b->h));
    return pf_project(s, &(struct pf_linear){ &m->output, b->logits }, 1, b->h, n);
}

static pf_status get_logits(struct pf_session *s, float *to, int n)
{
    return ops_of(s)->download(s->unit->backend, to, s->unit->buf.logits, (size_t)n * (size_t)s->m->n_vocab * sizeof(float));
}

/* Everything up to the logits of the last row, by one unit: as a repetition, if it can. */
static pf_status run_whole(struct pf_session *s, const struct pf_batch *batch)
{
    struct pf_unit *u = s->unit = &s->units[0];
    struct pf_repeat repeat = { pf_watch_inside(s->m), u->buf.base, s->computed > 0 ? u->state : NULL, batch->rows, batch->n_logits,
                                s->computed + batch->rows, pf_index_is_used(s, batch->rows) };
    for (bool again = true; again;) {
        bool replayed;
        PF_TRY(ops_of(s)->begin(u->backend, &repeat, &replayed));
        if (!replayed) {
            PF_TRY(embed(s, batch->rows));
            PF_TRY(run_layers(s, batch->rows));
            PF_TRY(batch->n_logits == 1 ? head(s, batch->rows - 1, 1) : PF_OK);
        }
        PF_TRY(ops_of(s)->end(u->backend, &again));
    }
    return PF_OK;
}

/* Rows of x from the unit at work, which is one of the two, to the other, which is at work from now on. */
static pf_status hand_over(struct pf_session *s, int first, int rows)
{
    struct pf_unit *device = &s->units[0], *cpu = &s->units[1];
    pf_backend *be = device->backend;
    float *of_device = device->buf.x + (size_t)first * s->m->n_embd, *of_cpu = cpu->buf.x + (size_t)first * s->m->n_embd;
    size_t bytes = (size_t)rows * s->m->n_embd * sizeof(float);
    bool to_device = s->unit == cpu;
    pf_spans_enter(s->m->spans, "hand-over", -1);
    s->unit = to_device ? device : cpu;
    if (to_device)
        return be->ops->upload(be, of_device, of_cpu, bytes);
    PF_TRY(be->ops->download(be, of_cpu, of_device, bytes));
    return be->ops->finish(be);
}

static pf_status run_on_device(struct pf_session *s, int rows)
{
    struct pf_unit *u = s->unit;
    struct pf_repeat repeat = { false, u->buf.base, s->computed > 0 ? u->state : NULL, rows, 0,
                                s->computed + rows, pf_index_is_used(s, rows) };
    for (bool again = true; again;) {
        bool replayed;
        PF_TRY(ops_of(s)->begin(u->backend, &repeat, &replayed));
        PF_TRY(replayed ? PF_OK : run_layers(s, rows));
        PF_TRY(ops_of(s)->end(u->backend, &again));
    }
    return PF_OK;
}

/* The same by two: the CPU begins, the device does the first layers, the CPU the others, and the output whoever has its matrix. */
static pf_status run_split(struct pf_session *s, const struct pf_batch *batch)
{
    int rows = batch->rows, n = batch->n_logits;
    s->unit = &s->units[1];
    PF_TRY(embed(s, rows));
    if (s->units[0].end > 0) {
        PF_TRY(hand_over(s, 0, rows));
        PF_TRY(run_on_device(s, rows));
        PF_TRY(hand_over(s, 0, rows));
    }
    PF_TRY(run_layers(s, rows));
    if (s->m->cut.output && n > 0)
        PF_TRY(hand_over(s, rows - n, n));
    return n == 1 ? head(s, rows - 1, 1) : PF_OK;
}

static pf_status run(struct pf_session *s, const struct pf_batch *batch)
{
    pf_spans_enter(s->m->spans, "inputs", -1);
    PF_TRY(pf_offload_between(s->m, batch->rows));
    PF_TRY(pf_watch_begin(s, batch->rows));
    PF_TRY(put_inputs(s, batch));
    PF_TRY(s->units[1].backend ? run_split(s, batch) : run_whole(s, batch));
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

/* Of both units; the first failure counts. */
static pf_status finish(struct pf_session *s)
{
    pf_status st = PF_OK;
    for (struct pf_unit *u = s->units; u < s->units + 2; u++) {
        pf_status finished = u->backend ? u->backend->ops->finish(u->backend) : PF_OK;
        st = st < 0 ? st : finished;
    }
    return st;
}

/* The first failure counts; but whatever happens, nothing is under way any more when this returns. */
pf_status pf_forward(struct pf_session *s, const struct pf_batch *batch)
{
    char why[256];
    pf_status st = run(s, batch);
    if (st < 0)
        snprintf(why, sizeof why, "%s", pf_last_error());
    pf_spans_enter(s->m->spans, "finish", -1);
    pf_status finished = finish(s);
    pf_spans_enter(s->m->spans, NULL, -1);
    if (st < 0)
        PF_FAIL(st, "%s", why);
    PF_TRY(finished);
    return pf_watch_done(s, batch->rows);
}
