/* See watch.h. */
#include "moe/session/watch.h"

#include <string.h>

#include "base/pf_mem.h"
#include "moe/place/placement.h"
#include "moe/session/crew.h"

enum {
    AFTER = 1u << PF_STAGE_PICKS | 1u << PF_STAGE_WEIGHTS,       /* stages that the session's buffers keep */
    MAX_ROWS = 8192                                              /* rows of a step at most */
};

/* ---- Setting up -------------------------------------------------------------------------------------------------- */

static void free_buffers(struct pf_model *m)
{
    struct pf_watch *t = &m->watch;
    size_t picks_bytes = (size_t)m->n_moe * (size_t)t->max_rows * (size_t)m->n_used * sizeof *t->picks;
    if (t->owner) {
        t->owner->ops->buf_free(t->owner, t->picks, picks_bytes, true);
        t->owner->ops->buf_free(t->owner, t->weights, picks_bytes, true);
    }
    float **floats[] = { &t->x, &t->y, &t->logits, &t->tap.probs, &t->tap.scores, &t->tap.gate, &t->tap.up, &t->tap.act,
                         &t->tap.down };
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++) {
        pf_free(*floats[i]);
        *floats[i] = NULL;
    }
    t->picks = NULL;
    t->weights = NULL;
    t->owner = NULL;
    t->max_rows = 0;
}

static pf_status alloc_picks(struct pf_model *m, int rows)
{
    struct pf_watch *t = &m->watch;
    size_t bytes = (size_t)m->n_moe * (size_t)rows * (size_t)m->n_used * sizeof *t->picks;
    void *picks = NULL, *weights = NULL;
    pf_status st = m->backend->ops->buf_alloc(m->backend, bytes, true, &picks);
    if (st == PF_OK)
        st = m->backend->ops->buf_alloc(m->backend, bytes, true, &weights);
    if (st < 0) {
        m->backend->ops->buf_free(m->backend, picks, bytes, true);
        return st;
    }
    t->picks = picks;
    t->weights = weights;
    t->owner = m->backend;
    t->max_rows = rows;
    return PF_OK;
}

/* Allocates the buffers that the wanted stages are copied to. */
static pf_status alloc_stages(struct pf_model *m, int rows)
{
    struct pf_watch *t = &m->watch;
    size_t n_expert = (size_t)m->n_expert, n_in = (size_t)m->n_expert_in,
           used_ff = (size_t)m->n_used * (size_t)m->n_ff_expert;
    const struct { float **at; bool wanted; size_t n; } parts[] = {
        { &t->x, true, n_in },
        { &t->y, true, n_in },
        { &t->logits, true, n_expert },
        { &t->tap.probs, t->opts.stages & 1u << PF_STAGE_PROBABILITIES, n_expert },
        { &t->tap.scores, t->opts.stages & 1u << PF_STAGE_SCORES, n_expert },
        { &t->tap.gate, t->opts.stages & 1u << PF_STAGE_GATE, used_ff },
        { &t->tap.up, t->opts.stages & 1u << PF_STAGE_UP, used_ff },
        { &t->tap.act, t->opts.stages & 1u << PF_STAGE_ACTIVATION, used_ff },
        { &t->tap.down, t->opts.stages & 1u << PF_STAGE_DOWN, (size_t)m->n_used * n_in },
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (!parts[i].wanted)
            continue;
        *parts[i].at = pf_alloc_array(PF_MEM_MODEL, (size_t)rows * parts[i].n, sizeof(float));
        if (!*parts[i].at)
            PF_FAIL(PF_ENOMEM, "no memory to watch a step of %d rows", rows);
    }
    return PF_OK;
}

bool pf_watch_any(const struct pf_model *m)
{
    return m->watch.opts.stages || m->watch.opts.counts || m->watch.writer;
}

static bool is_watched(const struct pf_step *t)
{
    return !t->parts->s->unwatched && pf_watch_any(t->m);
}

bool pf_watch_inside(const struct pf_model *m)
{
    return m->watch.opts.stages & ~(unsigned)AFTER;
}

pf_status pf_watch_begin(struct pf_step *t)
{
    struct pf_model *m = t->m;
    const struct pf_backend_sizes *sizes = &m->work->sizes;
    if (!is_watched(t) || (t->rows <= m->watch.max_rows && m->watch.owner == m->backend))
        return PF_OK;
    free_buffers(m);
    pf_status st = alloc_picks(m, sizes->max_rows);
    if (st == PF_OK && pf_watch_inside(m))
        st = alloc_stages(m, sizes->max_rows);
    if (st == PF_OK && m->backend != m->cpu)
        st = m->cpu->ops->reserve(m->cpu, sizes);
    if (st < 0)
        free_buffers(m);
    return st;
}

static pf_status stop(struct pf_model *m)
{
    struct pf_watch *t = &m->watch;
    free_buffers(m);
    pf_free(t->counts);
    t->counts = NULL;
    t->opts = (struct pf_trace_opts){ 0 };
    return pf_trace_writer_close(&t->writer);
}

static pf_status start(struct pf_model *m, const struct pf_trace_opts *o)
{
    struct pf_watch *t = &m->watch;
    struct pf_trace_shape shape = { m->n_moe, m->n_expert, m->n_used, MAX_ROWS };
    if (o->counts) {
        t->counts = pf_alloc_array(PF_MEM_MODEL, (size_t)m->n_moe * (size_t)m->n_expert, sizeof *t->counts);
        if (!t->counts)
            PF_FAIL(PF_ENOMEM, "no memory to count what experts are used");
    }
    if (o->record)
        PF_TRY(pf_trace_writer_open(&t->writer, o->record, &shape));
    t->opts = *o;
    t->n_tokens = 0;
    return PF_OK;
}

pf_status pf_trace_set(pf_model *m, const struct pf_trace_opts *o)
{
    static const struct pf_trace_opts none = { 0 };
    o = o ? o : &none;
    PF_TRY(o->record || o->fn || o->counts ? pf_crew_refuse(m, "experts cannot be watched") : PF_OK);
    if (!m->backend || m->n_moe == 0)
        PF_FAIL(PF_EINVAL, "%s has no experts to watch", m->name[0] ? m->name : "the model");
    if (m->uneven && o->record)
        PF_FAIL(PF_EUNSUPPORTED, "layers of %s differ in how many experts they use, and traces cannot say so",
                m->name[0] ? m->name : "the model");
    if (o->stages >> PF_N_STAGES || (o->stages && !o->fn))
        PF_FAIL(PF_EINVAL, "stages is 0x%x: %s", o->stages,
                o->fn ? "there are no such stages" : "there is no function to show them to");
    pf_lock_take(&m->step_lock);
    pf_status st = stop(m), started = start(m, o);
    if (started < 0)
        pf_trace_writer_close(&m->watch.writer);
    pf_lock_give(&m->step_lock);
    return started < 0 ? started : st;
}

pf_status pf_trace_counts(pf_model *m, int layer, uint64_t *counts, int cap, int *n, uint64_t *n_tokens)
{
    *n = 0;
    if (layer < 0 || layer >= m->n_layer)
        PF_FAIL(PF_EINVAL, "there is no layer %d; the model has 0 to %d", layer, m->n_layer - 1);
    pf_lock_take(&m->step_lock);
    const struct pf_watch *t = &m->watch;
    if (m->layers[layer].is_moe && t->counts)
        *n = m->n_expert;
    for (int x = 0; x < *n && x < cap; x++)
        counts[x] = t->counts[(size_t)m->layers[layer].moe.ordinal * (size_t)m->n_expert + (size_t)x];
    if (n_tokens)
        *n_tokens = t->n_tokens;
    pf_lock_give(&m->step_lock);
    if (*n > cap)
        PF_FAIL(PF_ESPACE, "there are %d experts, and room for %d counts", *n, cap);
    return PF_OK;
}

void pf_watch_close(struct pf_model *m)
{
    stop(m);
    pf_trace_free(&m->injected);
}

/* ---- Picks from a trace ------------------------------------------------------------------------------------------ */

static bool distinct(const uint16_t *picks, int n)
{
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++)
            if (picks[i] == picks[j])
                return false;
    return true;
}

pf_status pf_watch_inject(struct pf_model *m, const char *path)
{
    struct pf_trace *t = &m->injected;
    if (m->uneven)
        PF_FAIL(PF_EUNSUPPORTED, "%s: layers of the model differ in how many experts they use", path);
    PF_TRY(pf_trace_read(t, path));
    if (t->n_layers != m->n_moe || t->n_expert != m->n_expert || t->n_used != m->n_used || t->n_tokens < 1)
        PF_FAIL(PF_EFORMAT,
                "%s: a trace of %lld tokens, %d layers, %d of %d experts, for a model of %d layers with %d of %d", path,
                (long long)t->n_tokens, t->n_layers, t->n_used, t->n_expert, m->n_moe, m->n_used, m->n_expert);
    for (int64_t visit = 0; visit < t->n_tokens * t->n_layers; visit++)
        if (!distinct(t->experts + visit * t->n_used, t->n_used))
            PF_FAIL(PF_EFORMAT, "%s: token %lld picks an expert twice in its layer %lld", path,
                    (long long)(visit / t->n_layers), (long long)(visit % t->n_layers));
    return PF_OK;
}

/* Position p takes the picks of token p of the trace, which begins anew at its end. */
void pf_watch_fill(const struct pf_step *t, const struct pf_inputs *in)
{
    const struct pf_trace *trace = &t->m->injected;
    size_t k = (size_t)trace->n_used;
    for (int layer = 0; layer < trace->n_layers; layer++)
        for (int r = 0; r < t->rows; r++) {
            size_t from = ((size_t)(in->pos[r] % trace->n_tokens) * (size_t)trace->n_layers + (size_t)layer) * k;
            size_t to = ((size_t)layer * (size_t)t->rows + (size_t)r) * k;
            for (size_t i = 0; i < k; i++)
                in->picks[to + i] = trace->experts[from + i];
            memcpy(in->weights + to, trace->weights + from, k * sizeof *in->weights);
        }
}

/* ---- A step ------------------------------------------------------------------------------------------------------ */

/* A row's position in its session. */
static int64_t position(const struct pf_step *t, int row)
{
    return pf_inputs_at(t->m, t->rows, t->m->work->inputs).pos[row];
}

static void show(const struct pf_step *t, const struct pf_stage_data *d)
{
    const struct pf_trace_opts *o = &t->m->watch.opts;
    if (o->stages & 1u << d->stage)
        o->fn(o->ctx, d);
}

static void show_values(const struct pf_step *t, enum pf_stage stage, int il, int row, const float *values, int n)
{
    if (values)
        show(t, &(struct pf_stage_data){ .stage = stage, .layer = il, .pos = position(t, row), .pick = -1,
                                         .expert = -1, .values = values + (size_t)row * (size_t)n, .n = n });
}

static void show_picks(const struct pf_step *t, int il, int row, const int32_t *picks, const float *weights)
{
    int n = t->m->layers[il].moe.routing.n_used;
    show(t, &(struct pf_stage_data){ .stage = PF_STAGE_PICKS, .layer = il, .pos = position(t, row), .pick = -1,
                                     .expert = -1, .picks = picks + (size_t)row * (size_t)n, .n = n });
    show_values(t, PF_STAGE_WEIGHTS, il, row, weights, n);
}

static void show_expert(const struct pf_step *t, int il, int row, int pick, int expert)
{
    const struct pf_tap *tap = &t->m->watch.tap;
    const struct pf_moe *moe = &t->m->layers[il].moe;
    const struct { enum pf_stage stage; const float *values; int n; } parts[] = {
        { PF_STAGE_GATE, tap->gate, moe->n_ff },      { PF_STAGE_UP, tap->up, moe->n_ff },
        { PF_STAGE_ACTIVATION, tap->act, moe->n_ff }, { PF_STAGE_DOWN, tap->down, t->m->n_expert_in },
    };
    size_t at = (size_t)row * (size_t)moe->routing.n_used + (size_t)pick;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (parts[i].values)
            show(t, &(struct pf_stage_data){ .stage = parts[i].stage, .layer = il, .pos = position(t, row),
                                             .pick = pick, .expert = expert, .n = parts[i].n,
                                             .values = parts[i].values + at * (size_t)parts[i].n });
}

static void show_layer(const struct pf_step *t, int il, const int32_t *picks, const float *weights)
{
    const struct pf_watch *w = &t->m->watch;
    int n_used = t->m->layers[il].moe.routing.n_used;
    for (int r = 0; r < t->rows; r++) {
        show_values(t, PF_STAGE_LOGITS, il, r, w->logits, t->m->n_expert);
        show_values(t, PF_STAGE_PROBABILITIES, il, r, w->tap.probs, t->m->n_expert);
        show_values(t, PF_STAGE_SCORES, il, r, w->tap.scores, t->m->n_expert);
        show_picks(t, il, r, picks, weights);
        for (int i = 0; i < n_used; i++)
            show_expert(t, il, r, i, picks[r * n_used + i]);
        show_values(t, PF_STAGE_SUM, il, r, w->y, t->m->n_expert_in);
    }
}

/* Route and experts of a layer on copies of their inputs. */
static pf_status compute(struct pf_step *t, int il, struct pf_experts_op *e)
{
    struct pf_model *m = t->m;
    const struct pf_moe *moe = &m->layers[il].moe;
    struct pf_watch *w = &m->watch;
    size_t at = (size_t)moe->ordinal * (size_t)e->rows * (size_t)m->n_used;
    e->picks = w->picks + at;
    e->weights = w->weights + at;
    e->x = w->x;
    e->y = w->y;
    struct pf_inputs in = pf_inputs_at(m, e->rows, m->work->inputs);
    PF_TRY(m->cpu->ops->route(m->cpu, &(struct pf_route_op){
        .how = &moe->routing, .logits = w->logits, .select_bias = moe->select_bias, .table = moe->table, .ids = in.ids,
        .rows = e->rows, .picks = w->picks + at, .weights = w->weights + at }));
    if (m->injected.n_tokens) {
        e->picks = in.picks + at;
        e->weights = in.weights + at;
    }
    return pf_place_experts(m->place, m->cpu, il, e);
}

pf_status pf_watch_experts(struct pf_step *t, int il, const struct pf_experts_op *e)
{
    struct pf_model *m = t->m;
    struct pf_watch *w = &m->watch;
    pf_backend *be = t->unit->backend;
    const struct pf_backend_ops *ops = be->ops;
    const struct pf_buffers *b = &t->unit->buf;
    struct pf_experts_op op = *e;
    size_t bytes = (size_t)e->rows * (size_t)m->n_expert_in * sizeof *w->x,
           row_bytes = (size_t)e->rows * sizeof *w->logits;
    size_t at = (size_t)m->layers[il].moe.ordinal * (size_t)e->rows * (size_t)m->n_used;
    PF_TRY(ops->download(be, w->x, e->x, bytes));
    PF_TRY(ops->download(be, w->logits, b->router, row_bytes * (size_t)m->n_expert));
    PF_TRY(ops->finish(be));
    m->cpu->tap = &w->tap;
    pf_status st = compute(t, il, &op);
    m->cpu->tap = NULL;
    PF_TRY(st);
    PF_TRY(ops->upload(be, e->y, w->y, bytes));
    PF_TRY(ops->upload(be, b->picks + at, w->picks + at, row_bytes * (size_t)e->n_used));
    PF_TRY(ops->upload(be, b->pick_weights + at, w->weights + at, row_bytes * (size_t)e->n_used));
    PF_TRY(ops->finish(be));
    show_layer(t, il, op.picks, op.weights);
    return PF_OK;
}

/* Layers with experts are counted through the model: *n of the layers [first, end) have some, the first of them being
 * number *at. */
static void ordinals(const struct pf_model *m, int first, int end, size_t *at, size_t *n)
{
    *at = *n = 0;
    for (int il = end - 1; il >= first; il--)
        if (m->layers[il].is_moe) {
            *at = (size_t)m->layers[il].moe.ordinal;
            ++*n;
        }
}

/* Each unit has the picks of its own layers. */
pf_status pf_watch_download(struct pf_step *t)
{
    struct pf_model *m = t->m;
    struct pf_watch *w = &m->watch;
    const struct pf_session *s = t->parts->s;
    size_t row = (size_t)t->rows * (size_t)m->n_used, at, n;
    if (!is_watched(t))
        return PF_OK;
    for (int i = 0; i < s->n_units; i++) {
        struct pf_step mine = *t;
        pf_backend *be = s->units[i].backend;
        mine.unit = &m->work->units[i];
        ordinals(m, s->units[i].first, s->units[i].end, &at, &n);
        struct pf_picks p = pf_picks_at(&mine, (int)at);
        if (n == 0)
            continue;
        PF_TRY(be->ops->download(be, w->picks + at * row, p.picks, n * row * sizeof *w->picks));
        PF_TRY(be->ops->download(be, w->weights + at * row, p.weights, n * row * sizeof *w->weights));
    }
    return PF_OK;
}

static void count(struct pf_model *m, int ordinal, int n_picks, const int32_t *picks)
{
    uint64_t *counts = m->watch.counts + (size_t)ordinal * (size_t)m->n_expert;
    for (int i = 0; i < n_picks; i++)
        counts[picks[i]]++;
}

/* A trace that cannot be written fails the step. */
static pf_status record(const struct pf_watch *t, int n_moe, int rows, int n_used)
{
    size_t per_layer = (size_t)rows * (size_t)n_used;
    for (int i = 0; t->writer && i < n_moe; i++)
        pf_trace_writer_put(t->writer, i, rows, t->picks + (size_t)i * per_layer, t->weights + (size_t)i * per_layer);
    return t->writer ? pf_trace_writer_append(t->writer, rows) : PF_OK;
}

pf_status pf_watch_done(struct pf_step *t)
{
    struct pf_model *m = t->m;
    struct pf_watch *w = &m->watch;
    if (!is_watched(t))
        return PF_OK;
    PF_TRY(record(w, m->n_moe, t->rows, m->n_used));
    for (int il = 0; il < m->n_layer; il++) {
        size_t at = (size_t)m->layers[il].moe.ordinal * (size_t)t->rows * (size_t)m->n_used;
        if (!m->layers[il].is_moe)
            continue;
        if (w->counts)
            count(m, m->layers[il].moe.ordinal, t->rows * m->layers[il].moe.routing.n_used, w->picks + at);
        for (int r = 0; !pf_watch_inside(m) && r < t->rows; r++)
            show_picks(t, il, r, w->picks + at, w->weights + at);
    }
    w->n_tokens += (uint64_t)t->rows;
    return PF_OK;
}
