/* One step through the model. Read it top to bottom:
 *
 *     x = embedding of the tokens
 *     every layer:   x += attention(norm(x))       or of another kind, or a delta net, Mamba2, a convolution
 *                    x += experts(norm(x))         or one dense feed-forward
 *     logits = output * norm(x)
 *
 * Where the two blocks of a layer are parallel, both read norm(x) as it was in front of them.
 * x is [rows][n_embd]; where there are several residual streams, [rows][streams][n_embd], blocks read and write a
 * mixture of them (streams.c). The blocks are in moe/blocks. Matrices are named as in the papers: q, k, v, gate, up,
 * down. All work is done by backends; these files decide only what follows what. One unit does it all, or several take
 * turns, and x is handed over (place/cut.h); t->unit is the one at work. What the layers read besides x is put together
 * in inputs.c; layers of the CPU may visit a card (visit.c). */
#include <stdio.h>
#include <string.h>

#include "moe/blocks/blocks.h"
#include "moe/place/placement.h"
#include "moe/run/batch.h"
#include "moe/run/forward.h"
#include "moe/session/crew.h"
#include "moe/session/watch.h"

/* h = norm(x) */
static pf_status begin_block(struct pf_step *t, const struct pf_mix *mix, const float *norm, const float *bias,
                             int rows)
{
    struct pf_buffers *b = &t->unit->buf;
    return pf_block_input(t, mix, norm, bias, b->x, rows, b->mix, b->h);
}

/* x += y, or norm(y) */
static pf_status end_block(struct pf_step *t, const struct pf_mix *mix, const float *norm, int rows)
{
    const struct pf_model *m = t->m;
    struct pf_buffers *b = &t->unit->buf;
    if (norm)
        PF_TRY(pf_norm(t, b->y, norm, NULL, m->eps, rows, b->y));
    if (m->streams.n > 1)
        return pf_streams_write(t, mix, b->x, rows, b->mix, b->y);
    return ops_of(t)->add(t->unit->backend, b->x, m->residual_scale, b->y, (int64_t)rows * m->n_embd);
}

/* x *= a */
static pf_status scale_stream(struct pf_step *t, float a, int rows)
{
    struct pf_buffers *b = &t->unit->buf;
    int n = t->m->n_embd;
    const struct pf_copy copy = { b->x, b->y, n, 1, 0, 0, n, n };
    PF_TRY(ops_of(t)->copy(t->unit->backend, &copy, 1, rows));
    return ops_of(t)->add(t->unit->backend, b->x, a - 1, b->y, (int64_t)rows * n);
}

static pf_status mix_positions(struct pf_step *t, int il, int rows)
{
    const struct pf_layer *layer = &t->m->layers[il];
    PF_TRY(begin_block(t, &layer->attn_mix, layer->attn_norm, layer->attn_norm_bias, rows));
    PF_TRY(layer->mixer == PF_MIXER_DELTA        ? pf_delta_block(t, il, rows)
           : layer->mixer == PF_MIXER_MAMBA2     ? pf_mamba_block(t, il, rows)
           : layer->mixer == PF_MIXER_SHORT_CONV ? pf_short_conv_block(t, il, rows)
           : layer->mixer == PF_MIXER_LATENT     ? pf_mla_block(t, il, rows)
           : layer->mixer == PF_MIXER_COMPRESSED ? pf_compressed_block(t, il, rows)
                                                 : pf_attention_block(t, il, rows));
    return end_block(t, &layer->attn_mix, layer->attn_post, rows);
}

pf_status pf_run_mixer(struct pf_step *t, int il, int rows)
{
    static const char *const mixers[] = { [PF_MIXER_DELTA] = "delta net", [PF_MIXER_MAMBA2] = "mamba",
                                         [PF_MIXER_SHORT_CONV] = "convolution" };
    const struct pf_model *m = t->m;
    const struct pf_layer *layer = &m->layers[il];
    size_t named = sizeof mixers / sizeof *mixers, mixer = (size_t)layer->mixer;

    if (il == m->ngrams.layer)
        PF_TRY(pf_ngram_block(t, il, rows));
    if (layer->mixer != PF_MIXER_NONE) {
        pf_spans_enter(m->spans, mixer < named && mixers[mixer] ? mixers[mixer] : "attention", il);
        PF_TRY(mix_positions(t, il, rows));
    }
    return PF_OK;
}

pf_status pf_run_rest(struct pf_step *t, int il, int rows)
{
    const struct pf_model *m = t->m;
    const struct pf_layer *layer = &m->layers[il];
    if (layer->has_ffn) {
        pf_spans_enter(m->spans, layer->is_moe ? "router" : "feed-forward", il);
        if (!m->arch->parallel)
            PF_TRY(begin_block(t, &layer->ffn_mix, layer->ffn_norm, layer->ffn_norm_bias, rows));
        PF_TRY(layer->is_moe ? pf_moe_block(t, il, rows) : pf_dense_block(t, il, rows));
        PF_TRY(end_block(t, &layer->ffn_mix, layer->ffn_post, rows));
    }
    if (layer->own.gate.data)
        PF_TRY(pf_own_part_block(t, il, rows));
    if (layer->scale != 1)
        PF_TRY(scale_stream(t, layer->scale, rows));
    return pf_moe_guess(t, il + 1, rows, PF_GUESS_LATE);
}

pf_status pf_run_layer(struct pf_step *t, int il, int rows)
{
    PF_TRY(pf_run_mixer(t, il, rows));
    return pf_run_rest(t, il, rows);
}

static pf_status embed(struct pf_step *t, int rows)
{
    struct pf_buffers *b = &t->unit->buf;
    pf_spans_enter(t->m->spans, "embedding", -1);
    bool single = t->m->streams.n == 1;
    PF_TRY(pf_embed(t, rows, single || t->m->is_nextn ? b->x : b->h));
    return t->m->is_nextn ? pf_nextn_begin(t, rows)
           : single       ? pf_per_layer_begin(t, rows)
                          : pf_streams_begin(t, b->h, rows, b->x);
}

/* Whether any of the step's sessions was cancelled. Who that was is asked again, so it stays cancelled. A step that
 * other processes make, too, goes on. */
static bool is_cancelled(const struct pf_step *t)
{
    bool cancelled = false;
    for (int i = 0; !t->is_told && i < t->n_parts; i++)
        cancelled |= atomic_load(&t->parts[i].s->cancel);
    return cancelled;
}

pf_status pf_run_layers(struct pf_step *t, const struct pf_unit *u, int rows, pf_layer_fn *layer)
{
    for (int il = u->first; il < u->end; il++) {
        if (is_cancelled(t))
            PF_FAIL(PF_ECANCEL, "cancelled at layer %d of %d", il, t->m->n_layer);
        PF_TRY(pf_place_enter(t->m->place, il));
        pf_status st = layer(t, il, rows);
        pf_place_leave(t->m->place, il);
        if (st == PF_ENUMERIC)
            PF_FAIL(st, "%s, in layer %d", pf_last_error(), il);
        PF_TRY(st);
    }
    return PF_OK;
}

/* Runs the layers of the unit at work. */
static pf_status run_layers(struct pf_step *t, int rows)
{
    pf_status st = pf_run_layers(t, pf_step_unit(t, (int)(t->unit - t->m->work->units)), rows, pf_run_layer);
    pf_far_drop(t);
    return st;
}

/* A row that has logits, whose it is, and where they go. */
struct wanted {
    const struct pf_part *part;
    int    row;
    float *logits;
};

/* Number k of the rows that have logits. */
static struct wanted wanted_at(const struct pf_step *t, int k)
{
    const struct pf_part *p = t->parts;
    for (; k >= p->n_logits; p++)
        k -= p->n_logits;
    float *logits = p->logits ? p->logits + (size_t)k * (size_t)t->m->n_vocab : NULL;
    return (struct wanted){ p, p->first + p->rows - p->n_logits + k, logits };
}

/* h = norm(x) of n neighbouring rows. */
static pf_status norm_rows(struct pf_step *t, int first, int n, float *h)
{
    const struct pf_model *m = t->m;
    const struct pf_buffers *b = &t->unit->buf;
    float *x = b->x + (size_t)first * (size_t)m->streams.n * (size_t)m->n_embd;
    if (m->centred_eps > 0)
        return ops_of(t)->layer_norm(t->unit->backend, x, m->output_norm, NULL, m->centred_eps, m->n_embd, n, h);
    if (!m->arch->streams_mean)
        return pf_block_input(t, &m->output_mix, m->output_norm, m->output_norm_bias, x, n, b->mix, h);
    PF_TRY(pf_streams_sum(t, x, n, b->y, h));
    float eps = m->eps * (float)(m->streams.n * m->streams.n);       /* norm of the mean: that of the sum with this */
    return pf_norm(t, b->y, m->output_norm, m->output_norm_bias, eps, n, h);
}

/* logits = output * norm(x) of n of the rows that have logits, from number k on. */
static pf_status head(struct pf_step *t, int k, int n)
{
    const struct pf_model *m = t->m;
    const struct pf_buffers *b = &t->unit->buf;
    pf_spans_enter(m->spans, "output", -1);
    for (int i = 0, n_run; i < n; i += n_run) {
        int first = wanted_at(t, k + i).row;
        for (n_run = 1; i + n_run < n && wanted_at(t, k + i + n_run).row == first + n_run;)
            n_run++;
        PF_TRY(norm_rows(t, first, n_run, b->h + (size_t)i * (size_t)m->n_embd));
    }
    PF_TRY(pf_project(t, &(struct pf_linear){ &m->output, b->logits }, 1, b->h, n));
    if (m->softcap > 0)
        PF_TRY(ops_of(t)->softcap(t->unit->backend, b->logits, m->softcap, (int64_t)n * m->n_vocab));
    return ops_of(t)->check_finite ? ops_of(t)->check_finite(t->unit->backend, b->logits, (int64_t)n * m->n_vocab)
                                   : PF_OK;
}

/* Hands out what the layers made, normed or as it is, to the sessions that want it. b->x is still theirs. Where other
 * processes make the step, too, all norm it: a norm gathers the rows, which nobody can do alone. */
static pf_status get_hidden(struct pf_step *t)
{
    size_t n = pf_hidden_width(t->m);
    for (const struct pf_part *p = t->parts; p < t->parts + t->n_parts; p++) {
        if (!p->hidden)
            continue;
        const float *rows = t->m->arch->nextn_plain ? t->unit->buf.x + (size_t)p->first * n : t->unit->buf.h;
        if (!t->m->arch->nextn_plain || t->is_told)
            PF_TRY(norm_rows(t, p->first, p->rows, t->unit->buf.h));
        if (pf_crew_follows(t->m))
            continue;
        PF_TRY(ops_of(t)->download(t->unit->backend, p->s->hidden, rows, (size_t)p->rows * n * sizeof *p->s->hidden));
    }
    return PF_OK;
}

/* Whether the logits are part of what may be repeated. */
static bool has_head(const struct pf_step *t)
{
    return t->n_logits > 0 && t->n_logits <= PF_LOGIT_ROWS;
}

/* Whether all logits go where the sessions keep theirs. */
static bool fills_sessions(const struct pf_step *t)
{
    bool all = t->n_logits > 0;
    for (const struct pf_part *p = t->parts; p < t->parts + t->n_parts; p++)
        all &= p->n_logits == 0 || p->logits == p->s->logits;
    return all;
}

/* Whether the sampler is told where the largest logits are. */
static bool has_tops(const struct pf_step *t)
{
    return fills_sessions(t) && t->parts->s->tops && !pf_crew_follows(t->m);
}

/* Of sessions whose logits the step made; also where it was replayed. */
static void note_tops(const struct pf_step *t)
{
    for (const struct pf_part *p = t->parts; p < t->parts + t->n_parts; p++)
        p->s->has_tops = has_tops(t);
}

/* Hands out the tops of what head(t, k, n) made. */
static pf_status get_tops(struct pf_step *t, int k, int n)
{
    ptrdiff_t n_vocab = t->m->n_vocab, n_tops = pf_n_tops(t->m->n_vocab);
    float *to[PF_LOGIT_ROWS];
    for (int i = 0; i < n; i++) {
        struct wanted w = wanted_at(t, k + i);
        to[i] = w.part->s->tops + (w.logits - w.part->s->logits) / n_vocab * n_tops;
    }
    return ops_of(t)->tops(t->unit->backend, t->unit->buf.logits, t->m->n_vocab, n, to);
}

/* Hands out what head(t, k, n) made, a part's rows at once: memory of two sessions may lie side by side, but a device
 * that has pinned each of them apart refuses to copy to both in one call. Processes that follow have nobody to hand
 * logits to. */
static pf_status get_logits(struct pf_step *t, int k, int n)
{
    size_t n_vocab = (size_t)t->m->n_vocab;
    for (int i = 0, n_run; i < n && !pf_crew_follows(t->m); i += n_run) {
        struct wanted w = wanted_at(t, k + i);
        for (n_run = 1; i + n_run < n && wanted_at(t, k + i + n_run).part == w.part;)
            n_run++;
        PF_TRY(ops_of(t)->download(t->unit->backend, w.logits, t->unit->buf.logits + (size_t)i * n_vocab,
                                   (size_t)n_run * n_vocab * sizeof *w.logits));
    }
    return has_tops(t) ? get_tops(t, k, n) : PF_OK;
}

/* A step of few sequences may be a repetition of one of the same sequences in the same order. A process that follows
 * has nobody to hand logits to, and takes over whether rank 0 does, so that steps are alike here if they are there. */
static struct pf_repeat repeat_of(const struct pf_step *t, int n_logits)
{
    int unit = (int)(t->unit - t->m->work->units);
    bool hands_out = pf_crew_follows(t->m) ? t->hands_out : n_logits > 0 && has_head(t) && fills_sessions(t);
    struct pf_repeat r = { .how = t->how, .once = t->n_parts > PF_REPEAT_PARTS || pf_watch_inside(t->m),
                           .rows = t->rows, .n_logits = n_logits, .n_parts = t->n_parts, .hands_out = hands_out };
    for (int i = 0; !r.once && i < t->n_parts; i++) {
        const struct pf_part *p = &t->parts[i];
        r.once = pf_state_cut(p->s, p->rows) > 0;
        r.part[i] = (struct pf_repeat_part){
            .sequence = p->s, .state = p->from > 0 ? p->s->units[unit].state : NULL, .n_positions = pf_part_end(p),
            .rows = p->rows, .n_logits = n_logits ? p->n_logits : 0, .chooses = pf_index_is_used(p),
            .by_host = pf_far_is_shared(t, p) };
    }
    return r;
}

/* The layers of the card at work, as a repetition, if it can; in front of them the embedding, behind them the logits,
 * unless they are many. A repetition asks nobody between its layers. */
static pf_status run_card(struct pf_step *t, bool embeds, bool heads)
{
    struct pf_work_unit *u = t->unit;
    if (is_cancelled(t))
        PF_FAIL(PF_ECANCEL, "cancelled in front of a step");
    struct pf_repeat repeat = repeat_of(t, heads ? t->n_logits : 0);
    for (bool again = true; again;) {
        bool replayed;
        PF_TRY(ops_of(t)->begin(u->backend, &repeat, &replayed));
        if (!replayed) {
            PF_TRY(embeds ? embed(t, t->rows) : PF_OK);
            PF_TRY(run_layers(t, t->rows));
            PF_TRY(heads && has_head(t) ? head(t, 0, t->n_logits) : PF_OK);
            PF_TRY(repeat.hands_out ? get_logits(t, 0, t->n_logits) : PF_OK);
        }
        PF_TRY(ops_of(t)->end(u->backend, &again));
        repeat.how = PF_REPEAT_PLAIN;
    }
    t->handed_out = repeat.hands_out;
    return PF_OK;
}

pf_status pf_hand_over(struct pf_step *t, struct pf_work_unit *to, int first, int rows)
{
    struct pf_work_unit *from = t->unit;
    pf_backend *be = from->backend, *next = to->backend;
    size_t row = (size_t)t->m->streams.n * (size_t)t->m->n_embd, bytes = (size_t)rows * row * sizeof(float);
    float *x = from->buf.x + (size_t)first * row, *x_to = to->buf.x + (size_t)first * row;
    if (to == from)
        return PF_OK;
    pf_spans_enter(t->m->spans, "hand-over", -1);
    t->unit = to;
    PF_TRY(pf_inputs_hand(t, from, to));
    if (be == t->m->cpu)
        return next->ops->upload(next, x_to, x, bytes);
    if (next != t->m->cpu)
        return be->ops->pass(be, next, x_to, x, bytes);
    PF_TRY(be->ops->download(be, x_to, x, bytes));
    return be->ops->finish(be);
}

static bool wants_hidden(const struct pf_step *t)
{
    bool wants = false;
    for (int i = 0; i < t->n_parts; i++)
        wants |= t->parts[i].hidden;
    return wants;
}

/* Whether the cards compute all of the session's layers, and where the step begins then, or else. */
static bool is_whole(const struct pf_step *t)
{
    return t->parts->s->n_units == t->m->work->n_cards;
}

static struct pf_work_unit *first_unit(const struct pf_step *t)
{
    return &t->m->work->units[is_whole(t) ? 0 : t->m->work->n_cards];
}

static struct pf_work_unit *output_unit(const struct pf_step *t)
{
    const struct pf_session *s = t->parts->s;
    return is_whole(t) ? &t->m->work->units[t->m->work->n_cards - 1] : &t->m->work->units[s->output_unit - s->units];
}

/* The first row whose x is still wanted behind the layers: for logits, or because somebody wants all rows. */
static int first_wanted(const struct pf_step *t)
{
    return wants_hidden(t) ? 0 : t->n_logits > 0 ? wanted_at(t, 0).row : t->rows;
}

/* All layers, from the unit at work to the one that has the last layer. Where the cards compute all of them, the first
 * one embeds, and the last one makes the logits; otherwise the cards compute the first layers, the CPU the others. */
static pf_status run_layers_of_units(struct pf_step *t, bool embeds, bool heads)
{
    const struct pf_session *s = t->parts->s;
    struct pf_work_unit *units = t->m->work->units;
    int n_cards = t->m->work->n_cards, rows = t->rows;
    bool whole = is_whole(t);
    for (int k = 0; k < n_cards; k++) {
        if (!whole && s->units[k].first == s->units[k].end)
            continue;
        PF_TRY(pf_hand_over(t, &units[k], 0, rows));
        PF_TRY(run_card(t, embeds && whole && k == 0, heads && whole && k == n_cards - 1));
    }
    if (whole)
        return PF_OK;
    PF_TRY(pf_hand_over(t, &units[n_cards], 0, rows));
    return pf_run_cpu(t, rows);
}

/* Where the cards do not compute all layers the CPU embeds, and the unit with the output matrix makes the logits. */
static pf_status run_units(struct pf_step *t)
{
    bool whole = is_whole(t);
    t->unit = first_unit(t);
    PF_TRY(whole ? PF_OK : embed(t, t->rows));
    PF_TRY(run_layers_of_units(t, true, true));
    if (whole)
        return PF_OK;
    if (t->n_logits > 0)
        PF_TRY(pf_hand_over(t, output_unit(t), first_wanted(t), t->rows - first_wanted(t)));
    return has_head(t) ? head(t, 0, t->n_logits) : PF_OK;
}

/* ---- One of several processes (session/crew.h) ------------------------------------------------------------------- */

static pf_status lead_layers(struct pf_step *t)
{
    t->unit = first_unit(t);
    PF_TRY(is_whole(t) ? PF_OK : embed(t, t->rows));
    return run_layers_of_units(t, true, false);
}

/* The first one's part of the step: its layers, and what comes behind those of the others. A step that fails here the
 * others do not hear of. One that another step follows leaves its answer owed. */
static pf_status lead(struct pf_step *t)
{
    t->back = first_wanted(t);
    PF_TRY(lead_layers(t));
    PF_TRY(pf_crew_take_owed(t->m));
    PF_TRY(pf_crew_tell_step(t));
    PF_TRY(pf_crew_hand_on(t, PF_OK));
    t->m->crew->owes = t->follows;
    if (t->follows)
        return PF_OK;
    t->unit = output_unit(t);
    PF_TRY(pf_crew_take(t));
    return has_head(t) ? head(t, 0, t->n_logits) : PF_OK;
}

static pf_status prepare(struct pf_step *t)
{
    pf_spans_enter(t->m->spans, "inputs", -1);
    PF_TRY(pf_place_between(t->m->place, t->rows));
    pf_far_begin(t);
    PF_TRY(pf_watch_begin(t));
    return pf_inputs_put(t);
}

pf_status pf_step_enter(struct pf_step *t)
{
    const struct pf_repeat once = { .once = true, .rows = t->rows };
    bool unused;
    PF_TRY(prepare(t));
    t->unit = first_unit(t);
    PF_TRY(ops_of(t)->begin(t->unit->backend, &once, &unused));
    PF_TRY(embed(t, t->rows));
    return ops_of(t)->end(t->unit->backend, &unused);
}

pf_status pf_step_leave(struct pf_step *t)
{
    const struct pf_repeat once = { .once = true, .rows = t->rows };
    bool unused;
    if (t->n_logits == 0)
        return PF_OK;
    PF_TRY(ops_of(t)->begin(t->unit->backend, &once, &unused));
    PF_TRY(head(t, 0, t->n_logits));
    PF_TRY(get_logits(t, 0, t->n_logits));
    note_tops(t);
    return ops_of(t)->end(t->unit->backend, &unused);
}

static pf_status follow_layers(struct pf_step *t)
{
    PF_TRY(run_layers_of_units(t, false, false));
    return pf_gguf_unchanged(t->m->file);
}

/* The part of any other process. */
static pf_status follow(struct pf_step *t)
{
    char why[512];
    pf_status st = prepare(t);
    snprintf(why, sizeof why, "%s", st < 0 ? pf_last_error() : "");
    t->unit = first_unit(t);
    pf_status taken = pf_crew_take(t);
    if (taken < 0)
        return pf_crew_hand_on(t, taken);
    return pf_crew_hand_on(t, st < 0 ? pf_fail(st, "%s", why) : follow_layers(t));
}

/* By rows: from here on the step is made to its end, or the processes part. All make it in the same way. */
static pf_status begin_together(struct pf_step *t)
{
    if (t->is_told)                          /* by rank 0 */
        return PF_OK;
    if (is_cancelled(t))
        PF_FAIL(PF_ECANCEL, "cancelled in front of a step");
    t->is_told = true;
    t->unit = first_unit(t);
    const struct pf_repeat repeat = repeat_of(t, t->n_logits);
    t->how = ops_of(t)->repeats ? ops_of(t)->repeats(t->unit->backend, &repeat) : PF_REPEAT_PLAIN;
    t->hands_out = repeat.hands_out;
    return pf_crew_tell_step(t);
}

static pf_status run(struct pf_step *t)
{
    bool by_rows = pf_crew_by_rows(t->m);
    if (pf_crew_follows(t->m) && !by_rows)
        return follow(t);
    PF_TRY(prepare(t));
    PF_TRY(by_rows ? begin_together(t) : PF_OK);
    PF_TRY(t->m->crew && !by_rows ? lead(t) : run_units(t));
    PF_TRY(pf_watch_download(t));
    if (has_head(t) && !t->handed_out)
        PF_TRY(get_logits(t, 0, t->n_logits));
    for (int k = 0; !has_head(t) && k < t->n_logits; k += PF_LOGIT_ROWS) {
        int n = t->n_logits - k < PF_LOGIT_ROWS ? t->n_logits - k : PF_LOGIT_ROWS;
        PF_TRY(head(t, k, n));
        PF_TRY(get_logits(t, k, n));
    }
    note_tops(t);
    return get_hidden(t);
}

/* Finishes all units, or the first one alone; returns the first failure. */
static pf_status finish(struct pf_step *t, bool all)
{
    pf_status st = PF_OK;
    for (int i = 0; i < (all ? t->parts->s->n_units : 1); i++) {
        pf_backend *b = pf_step_unit(t, i)->backend;
        pf_status finished = b->ops->finish(b);
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
static pf_status check_logits(const struct pf_model *m, const struct pf_part *p)
{
    int n = m->n_vocab;
    for (int r = 0; r < p->n_logits && !p->s->output_unit->backend->ops->check_finite; r++) {
        const float *row = p->logits + (size_t)r * (size_t)n;
        int id = 0;
        if (all_finite(row, n))
            continue;
        while (all_finite(row + id, 1))
            id++;
        PF_FAIL(PF_ENUMERIC, "the logit of token %d after position %lld is not finite, in %s", id,
                (long long)(pf_part_end(p) - p->n_logits + r), pf_gguf_path(m->file));
    }
    return PF_OK;
}

pf_status pf_step_check(const struct pf_step *t)
{
    for (int i = 0; i < t->n_parts; i++)
        PF_TRY(check_logits(t->m, &t->parts[i]));
    return PF_OK;
}

/* A step of several rows does not say which row it was. */
static pf_status not_finite(const struct pf_step *t, const char *why)
{
    long long first = t->parts->from, last = pf_part_end(t->parts) - 1;
    const char *path = pf_gguf_path(t->m->file);
    if (t->n_parts > 1)
        PF_FAIL(PF_ENUMERIC, "%s, in one of %d sequences, in %s", why, t->n_parts, path);
    if (first == last)
        PF_FAIL(PF_ENUMERIC, "%s, at position %lld, in %s", why, first, path);
    PF_FAIL(PF_ENUMERIC, "%s, at one of the positions %lld to %lld, in %s", why, first, last, path);
}

/* The first failure counts; but whatever happens, nothing is under way any more when this returns. */
static pf_status run_to_end(struct pf_step *t)
{
    char why[1024];
    pf_status st = run(t);
    if (st < 0 && t->is_told)
        st = pf_crew_leave_step(t->m, st);           /* so that nothing waits for other processes */
    if (st < 0)
        snprintf(why, sizeof why, "%s", pf_last_error());
    pf_spans_enter(t->m->spans, "finish", -1);
    bool was_open = t->m->work->is_open;
    pf_status finished = finish(t, !t->follows || st < 0 || t->m->crew);
    t->m->work->is_open = t->follows && st == PF_OK && finished == PF_OK;
    if (was_open && (finished < 0 || (st < 0 && st != PF_ECANCEL)))
        pf_state_rewind(t->parts->s, 0);     /* what failed may have been a step that is committed */
    pf_spans_enter(t->m->spans, NULL, -1);
    if (st == PF_OK && finished == PF_ENUMERIC)
        return not_finite(t, pf_last_error());
    if (st == PF_ENUMERIC)
        return not_finite(t, why);
    if (st < 0)
        PF_FAIL(st, "%s", why);
    PF_TRY(finished);
    PF_TRY(pf_step_check(t));
    return pf_watch_done(t);
}

bool pf_forward_is_open(const struct pf_model *m)
{
    return m->work && m->work->is_open;
}

/* Of processes an answer may be owed although no card is at work. */
pf_status pf_forward_close(struct pf_session *s, pf_status st)
{
    struct pf_model *m = s->m;
    char why[1024];
    bool is_bad = false;
    snprintf(why, sizeof why, "%s", pf_last_error());
    for (const struct pf_unit *u = s->units; pf_forward_is_open(m) && u < s->units + s->n_units; u++)
        is_bad |= u->backend->ops->finish(u->backend) < 0;
    if (m->work)
        m->work->is_open = false;
    if (m->crew)
        is_bad |= pf_crew_take_owed(m) < 0;
    if (is_bad)
        pf_state_rewind(s, 0);
    return pf_fail(st, "%s", why);
}

pf_status pf_forward(struct pf_step *t)
{
    pf_status st = run_to_end(t);
    if (!t->is_told)
        return st;
    if (st == PF_OK && pf_crew_follows(t->m))
        st = pf_gguf_unchanged(t->m->file);
    return pf_crew_end_step(t->m, st);
}
