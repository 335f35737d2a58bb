/* One step through the model. Read it top to bottom:
 *
 *     x = embedding of the tokens
 *     every layer:   x += attention(norm(x))       or latent or compressed attention, or a delta net
 *                    x += experts(norm(x))         or one dense feed-forward
 *     logits = output * norm(x)
 *
 * x is [rows][n_embd]; where there are several residual streams, [rows][streams][n_embd], blocks read and write a
 * mixture of them (streams.c). The blocks are in attn.c, mla.c, compressed.c, deltanet.c and ffn.c. Matrices are named
 * as in the papers: q, k, v, gate, up, down. All work is done by backends; these files decide only what follows what.
 * One unit does it all, or two take turns, and x is handed over (place/cut.h); s->unit is the one at work. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "moe/run/blocks.h"
#include "moe/place/placement.h"
#include "moe/run/watch.h"

/* h = norm(x) */
static pf_status begin_block(struct pf_session *s, const struct pf_mix *mix, const float *norm, int rows)
{
    const struct pf_model *m = s->m;
    struct pf_buffers *b = &s->unit->buf;
    const float *x = b->x;
    if (m->streams.n > 1) {
        PF_TRY(pf_streams_read(s, mix, b->x, rows, b->mix, b->y));
        x = b->y;
    }
    return ops_of(s)->rms_norm(s->unit->backend, x, norm, m->eps, m->n_embd, rows, b->h);
}

/* x += y */
static pf_status end_block(struct pf_session *s, const struct pf_mix *mix, int rows)
{
    const struct pf_model *m = s->m;
    struct pf_buffers *b = &s->unit->buf;
    if (m->streams.n > 1)
        return pf_streams_write(s, mix, b->x, rows, b->mix, b->y);
    return ops_of(s)->add(s->unit->backend, b->x, m->residual_scale, b->y, (int64_t)rows * m->n_embd);
}

static pf_status run_layer(struct pf_session *s, int il, int rows)
{
    const struct pf_model *m = s->m;
    const struct pf_layer *layer = &m->layers[il];

    pf_spans_enter(m->spans, layer->is_delta ? "delta net" : "attention", il);
    PF_TRY(begin_block(s, &layer->attn_mix, layer->attn_norm, rows));
    PF_TRY(layer->is_delta       ? pf_delta_block(s, il, rows)
           : m->arch->mla        ? pf_mla_block(s, il, rows)
           : m->arch->compressed ? pf_compressed_block(s, il, rows)
                                 : pf_attention_block(s, il, rows));
    PF_TRY(end_block(s, &layer->attn_mix, rows));

    pf_spans_enter(m->spans, layer->is_moe ? "router" : "feed-forward", il);
    PF_TRY(begin_block(s, &layer->ffn_mix, layer->ffn_norm, rows));
    PF_TRY(layer->is_moe ? pf_moe_block(s, il, rows) : pf_dense_block(s, il, rows));
    PF_TRY(end_block(s, &layer->ffn_mix, rows));
    return pf_moe_guess(s, il + 1, rows, PF_GUESS_LATE);
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
    u->buf.blocks = to.blocks;
    return u->backend->ops->upload(u->backend, u->buf.inputs, inputs, to.bytes);
}

static void fill_block_inputs(const struct pf_session *s, const struct pf_inputs *in, int rows)
{
    const struct pf_model *m = s->m;
    const struct pf_block_inputs *to = &in->blocks;
    pf_rope_back(&m->rope, in->cs, rows, to->back);
    pf_rope_table(&m->far_rope, in->pos, 1, rows, to->far);
    pf_rope_back(&m->far_rope, to->far, rows, to->far_back);
    for (int i = 0; i < PF_MAX_RATIOS; i++) {
        int ratio = m->compressed.ratio[i], n = ratio ? pf_block_rows(ratio, rows) : 0;
        for (int j = 0; j < n; j++)
            to->number[i][j] = (int32_t)(s->computed / ratio) + j;
        pf_rope_table(&m->far_rope, to->number[i], ratio, n, to->cs[i]);
    }
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
    pf_rope_table(&s->m->rope, in.pos, 1, batch->rows, in.cs);
    if (s->m->arch->compressed)
        fill_block_inputs(s, &in, batch->rows);
    if (s->m->injected.n_tokens)
        pf_watch_fill(s, &in, batch->rows);
    for (struct pf_unit *u = s->units; u < s->units + 2; u++)
        if (u->backend)
            PF_TRY(upload_inputs(u, s->m, batch->rows, s->inputs));
    return PF_OK;
}

static pf_status embed(struct pf_session *s, int rows)
{
    struct pf_buffers *b = &s->unit->buf;
    pf_spans_enter(s->m->spans, "embedding", -1);
    if (s->m->streams.n == 1)
        return pf_embed(s, rows, b->x);
    PF_TRY(pf_embed(s, rows, b->h));
    return pf_streams_begin(s, b->h, rows, b->x);
}

/* Runs the layers of the unit at work. */
static pf_status run_layers(struct pf_session *s, int rows)
{
    for (int il = s->unit->first; il < s->unit->end; il++) {
        if (atomic_exchange(&s->cancel, false))
            PF_FAIL(PF_ECANCEL, "cancelled at layer %d of %d", il, s->m->n_layer);
        PF_TRY(pf_place_enter(s->m->place, il));
        pf_status st = run_layer(s, il, rows);
        pf_place_leave(s->m->place, il);
        if (st == PF_ENUMERIC)
            PF_FAIL(st, "%s, in layer %d", pf_last_error(), il);
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
    float *x = b->x + (size_t)first * (size_t)m->streams.n * (size_t)m->n_embd;
    pf_spans_enter(m->spans, "output", -1);
    if (m->streams.n > 1) {
        PF_TRY(pf_streams_read(s, &m->output_mix, x, n, b->mix, b->y));
        x = b->y;
    }
    PF_TRY(ops_of(s)->rms_norm(be, x, m->output_norm, m->eps, m->n_embd, n, b->h));
    PF_TRY(pf_project(s, &(struct pf_linear){ &m->output, b->logits }, 1, b->h, n));
    return ops_of(s)->check_finite ? ops_of(s)->check_finite(be, b->logits, (int64_t)n * m->n_vocab) : PF_OK;
}

static pf_status get_logits(struct pf_session *s, float *to, int n)
{
    return ops_of(s)->download(s->unit->backend, to, s->unit->buf.logits,
                               (size_t)n * (size_t)s->m->n_vocab * sizeof(float));
}

/* Everything up to the logits of the last row, by one unit: as a repetition, if it can. */
static pf_status run_whole(struct pf_session *s, const struct pf_batch *batch)
{
    struct pf_unit *u = s->unit = &s->units[0];
    struct pf_repeat repeat = { pf_watch_inside(s->m) || pf_state_cut(s, batch->rows) > 0, u->buf.base,
                                s->computed > 0 ? u->state : NULL, batch->rows, batch->n_logits,
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
    float *of_device = device->buf.x + (size_t)first * s->m->n_embd,
          *of_cpu = cpu->buf.x + (size_t)first * s->m->n_embd;
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
    struct pf_repeat repeat = { pf_state_cut(s, rows) > 0, u->buf.base, s->computed > 0 ? u->state : NULL, rows, 0,
                                s->computed + rows, pf_index_is_used(s, rows) };
    for (bool again = true; again;) {
        bool replayed;
        PF_TRY(ops_of(s)->begin(u->backend, &repeat, &replayed));
        PF_TRY(replayed ? PF_OK : run_layers(s, rows));
        PF_TRY(ops_of(s)->end(u->backend, &again));
    }
    return PF_OK;
}

/* A batch on two units: the CPU embeds, the device computes the first layers, the CPU the others, and the unit that has
 * the output matrix the logits. */
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
    if (s->output_unit == &s->units[0] && n > 0)
        PF_TRY(hand_over(s, rows - n, n));
    return n == 1 ? head(s, rows - 1, 1) : PF_OK;
}

static pf_status run(struct pf_session *s, const struct pf_batch *batch)
{
    pf_spans_enter(s->m->spans, "inputs", -1);
    PF_TRY(pf_place_between(s->m->place, batch->rows));
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

/* Finishes both units; returns the first failure. */
static pf_status finish(struct pf_session *s)
{
    pf_status st = PF_OK;
    for (struct pf_unit *u = s->units; u < s->units + 2; u++) {
        pf_status finished = u->backend ? u->backend->ops->finish(u->backend) : PF_OK;
        st = st < 0 ? st : finished;
    }
    return st;
}

static bool all_finite(const float *x, int n)
{
    enum { EXPONENT = 0x7f800000 };
    uint32_t bits, found = 0;
    for (int i = 0; i < n; i++) {
        memcpy(&bits, x + i, sizeof bits);
        found |= (bits & EXPONENT) == EXPONENT;
    }
    return !found;
}

/* Output matrices of float types multiply whatever they get, and may hold anything. Where the unit that computed the
 * logits looks at them itself, as a GPU does, the host need not go over a vocabulary that is in nobody's cache. */
static pf_status check_logits(const struct pf_session *s, const struct pf_batch *batch)
{
    int n = s->m->n_vocab;
    for (int r = 0; r < batch->n_logits && !s->output_unit->backend->ops->check_finite; r++) {
        const float *row = batch->logits + (size_t)r * (size_t)n;
        int64_t pos = s->computed + batch->rows - batch->n_logits + r;
        for (int t = 0; !all_finite(row, n) && t < n; t++)
            if (!all_finite(row + t, 1))
                PF_FAIL(PF_ENUMERIC, "the logit of token %d after position %lld is not finite, in %s", t,
                        (long long)pos, pf_gguf_path(s->m->file));
    }
    return PF_OK;
}

/* A batch of several rows does not say which row it was. */
static pf_status not_finite(const struct pf_session *s, const struct pf_batch *batch, const char *why)
{
    long long first = s->computed, last = first + batch->rows - 1;
    const char *path = pf_gguf_path(s->m->file);
    if (first == last)
        PF_FAIL(PF_ENUMERIC, "%s, at position %lld, in %s", why, first, path);
    PF_FAIL(PF_ENUMERIC, "%s, at one of the positions %lld to %lld, in %s", why, first, last, path);
}

/* The first failure counts; but whatever happens, nothing is under way any more when this returns. */
pf_status pf_forward(struct pf_session *s, const struct pf_batch *batch)
{
    char why[1024];
    pf_status st = run(s, batch);
    if (st < 0)
        snprintf(why, sizeof why, "%s", pf_last_error());
    pf_spans_enter(s->m->spans, "finish", -1);
    pf_status finished = finish(s);
    pf_spans_enter(s->m->spans, NULL, -1);
    if (st == PF_OK && finished == PF_ENUMERIC)
        return not_finite(s, batch, pf_last_error());
    if (st == PF_ENUMERIC)
        return not_finite(s, batch, why);
    if (st < 0)
        PF_FAIL(st, "%s", why);
    PF_TRY(finished);
    PF_TRY(check_logits(s, batch));
    return pf_watch_done(s, batch->rows);
}
