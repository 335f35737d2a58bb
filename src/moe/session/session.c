/* Sessions: opening and closing. See session.h for the invariants; evaluating tokens is in evaluate.c. */
#include "moe/session/session.h"

#include <string.h>

#include "base/pf_cpu.h"
#include "base/pf_mem.h"
#include "moe/place/placement.h"
#include "moe/session/crew.h"
#include "moe/session/work.h"

static void close_unit(struct pf_session *s, struct pf_unit *u)
{
    pf_backend *b = u->backend;
    if (!b)
        return;
    for (int il = u->first; il < u->end; il++) {
        b->ops->buf_free(b, s->kv[il].view.k, s->kv[il].k_bytes, false);
        b->ops->buf_free(b, s->kv[il].view.v, s->kv[il].v_bytes, false);
        b->ops->buf_free(b, s->kv[il].far, s->kv[il].k_far + s->kv[il].v_far, true);
        b->ops->buf_free(b, s->block_kv[il].view.k, s->block_kv[il].k_bytes, false);
        b->ops->buf_free(b, s->index_kv[il].view.k, s->index_kv[il].k_bytes, false);
        s->kv[il] = s->block_kv[il] = s->index_kv[il] = (struct pf_kv_layer){ .k_bytes = 0 };
    }
    b->ops->buf_free(b, u->state, u->state_bytes, false);
    b->ops->buf_free(b, u->next, u->state_bytes, false);
    b->ops->buf_free(b, u->inputs, u->inputs_bytes, false);
    for (int i = 0; i < PF_MAX_CHECKPOINTS; i++)
        b->ops->buf_free(b, u->kept[i], u->kept_bytes, false);
    *u = (struct pf_unit){ .backend = NULL };
}

static size_t logits_bytes(const struct pf_session *s)
{
    return (size_t)pf_logit_rows(&s->opts) * (size_t)s->m->n_vocab * sizeof *s->logits;
}

static size_t tops_bytes(const struct pf_session *s)
{
    return (size_t)pf_logit_rows(&s->opts) * (size_t)pf_n_tops(s->m->n_vocab) * sizeof *s->tops;
}

static size_t hidden_bytes(const struct pf_session *s)
{
    size_t row = pf_hidden_width(s->m) * sizeof *s->hidden;
    return pf_session_keeps_hidden(s->m, &s->opts) ? (size_t)s->opts.n_batch * row : 0;
}

/* Frees everything in the memory of the units. */
static void close_buffers(struct pf_session *s)
{
    pf_backend *b = s->owner;
    if (b)
        b->ops->buf_free(b, s->logits, logits_bytes(s), true);
    if (b)
        b->ops->buf_free(b, s->hidden, hidden_bytes(s), true);
    if (s->tops)
        s->output_unit->backend->ops->buf_free(s->output_unit->backend, s->tops, tops_bytes(s), true);
    s->logits = s->hidden = s->tops = NULL;
    s->has_tops = false;
    while (s->n_units > 0)
        close_unit(s, &s->units[--s->n_units]);
    s->owner = NULL;
    memset(s->checkpoints, 0, sizeof s->checkpoints);
    s->n_checkpoints = 0;
}

void pf_session_close(pf_session **sp)
{
    struct pf_session *s = *sp;
    if (!s)
        return;
    struct pf_model *m = s->m;
    pf_lock_take(&m->step_lock);       /* another session's step may run */
    pf_crew_tell_close(s);
    close_buffers(s);
    if (atomic_fetch_sub(&m->n_sessions, 1) == 1)
        pf_work_close(m);
    pf_lock_give(&m->step_lock);
    for (int i = 0; i < s->n_sources; i++)
        pf_drafter_close(s->sources[i].drafter);
    pf_free(s->kv);
    pf_free(s->block_kv);
    pf_free(s->index_kv);
    pf_pages_free(s->tokens, (size_t)s->opts.n_ctx * sizeof *s->tokens);
    pf_free(s->all_logits);
    pf_free(s->candidates);
    pf_free(s->weights);
    pf_free(s->seen);
    pf_free(s);
    *sp = NULL;
}

static pf_status alloc_floats(pf_backend *b, size_t bytes, bool shared, float **out)
{
    void *p = NULL;
    PF_TRY(b->ops->buf_alloc(b, bytes, shared, &p));
    *out = p;
    return PF_OK;
}

static pf_status open_state(struct pf_session *s, struct pf_unit *u)
{
    u->state_bytes = pf_state_bytes(s->m, u->first, u->end);
    u->kept_bytes = pf_kept_bytes(s->m, &s->opts, u->first, u->end);
    if (u->state_bytes) {
        PF_TRY(alloc_floats(u->backend, u->state_bytes, false, &u->state));
        PF_TRY(alloc_floats(u->backend, u->state_bytes, false, &u->next));
    }
    u->inputs_bytes = pf_inputs_kept_bytes(s->m, u->first, u->end, &s->opts);
    if (u->inputs_bytes)
        PF_TRY(alloc_floats(u->backend, u->inputs_bytes, false, &u->inputs));
    for (int i = 0; u->kept_bytes && i < pf_n_checkpoints(s->m, &s->opts); i++)
        PF_TRY(u->backend->ops->buf_alloc(u->backend, u->kept_bytes, false, &u->kept[i]));
    return PF_OK;
}

/* Places that have no room in the device's memory. */
static pf_status open_far(const struct pf_unit *u, struct pf_kv_layer *kv)
{
    if (kv->k_far + kv->v_far == 0)
        return PF_OK;
    PF_TRY(u->backend->ops->buf_alloc(u->backend, kv->k_far + kv->v_far, true, &kv->far));
    kv->view.k_far = (int64_t)((intptr_t)kv->far - ((intptr_t)kv->view.k + (intptr_t)kv->k_bytes));
    kv->view.v_far = (int64_t)((intptr_t)kv->far + (intptr_t)kv->k_far -
                               ((intptr_t)kv->view.v + (intptr_t)kv->v_bytes));
    return PF_OK;
}

/* Keys or values of a layer, `bytes` of the unit's own memory. */
static pf_status alloc_heads(pf_backend *b, const struct pf_kv_view *kv, size_t bytes, void **out)
{
    size_t chunk = bytes / (size_t)kv->n_near / (size_t)kv->n_kv_head;
    return b->ops->heads_alloc ? b->ops->heads_alloc(b, bytes, chunk, kv->n_kv_head, out)
                               : b->ops->buf_alloc(b, bytes, false, out);
}

static pf_status open_kv(struct pf_session *s, const struct pf_unit *u, int il)
{
    const struct pf_backend_ops *ops = u->backend->ops;
    struct pf_kv_layer kv = pf_kv_layer_of(s->m, il, &s->opts);
    if (kv.k_bytes == 0)                     /* a delta net */
        return PF_OK;
    PF_TRY(alloc_heads(u->backend, &kv.view, kv.k_bytes, &kv.view.k));
    s->kv[il] = kv;
    if (kv.v_bytes)
        PF_TRY(alloc_heads(u->backend, &kv.view, kv.v_bytes, &s->kv[il].view.v));
    PF_TRY(open_far(u, &s->kv[il]));
    s->block_kv[il] = pf_block_kv_layer_of(s->m, il, &s->opts);
    if (s->block_kv[il].k_bytes)
        PF_TRY(ops->buf_alloc(u->backend, s->block_kv[il].k_bytes, false, &s->block_kv[il].view.k));
    s->index_kv[il] = pf_index_kv_layer_of(s->m, il, &s->opts);
    if (s->index_kv[il].k_bytes)
        PF_TRY(ops->buf_alloc(u->backend, s->index_kv[il].k_bytes, false, &s->index_kv[il].view.k));
    return PF_OK;
}

static pf_status open_unit(struct pf_session *s, pf_backend *b, const struct pf_backend_sizes *sizes, int first,
                           int end)
{
    struct pf_unit *u = &s->units[s->n_units++];
    *u = (struct pf_unit){ .backend = b };
    PF_TRY(b->ops->reserve(b, sizes));
    u->first = first;
    u->end = end;
    for (int il = first; il < end; il++)
        PF_TRY(open_kv(s, u, il));
    return open_state(s, u);
}

static pf_status open_cards(struct pf_session *s, const struct pf_backend_sizes *sizes, const struct pf_cut *cut)
{
    struct pf_model *m = s->m;
    for (int k = 0; k <= cut->n_more; k++) {
        int first, end;
        pf_cut_card(cut, k, &first, &end);
        pf_backend *b = pf_place_unit(m->place, k);
        if (b != m->cpu)
            PF_TRY(pf_work_stage(m, k, (size_t)pf_kv_stage_bytes(m, &s->opts, first, end)));
        PF_TRY(open_unit(s, b, sizes, first, end));
    }
    return PF_OK;
}

static pf_status open_cpu(struct pf_session *s, const struct pf_backend_sizes *sizes, int first)
{
    PF_TRY(pf_work_fit(s->m, &s->opts, true));
    return open_unit(s, s->m->cpu, sizes, first, s->m->n_layer);
}

/* Room on the last card for keys and values of layers that visit it, as far as there is any; behind what it holds the
 * CPU computes its layers. */
static pf_status open_stage(const struct pf_session *s, const struct pf_cut *cut)
{
    struct pf_model *m = s->m;
    const pf_backend *card = pf_place_unit(m->place, cut->n_more);
    uint64_t bytes = pf_visits_stage_bytes(m, &s->opts, cut->n_layers);
    if (!m->place->visits || card == m->cpu || card->ops->room(card) <= PF_NEAR_SPARE_BYTES)
        return PF_OK;
    uint64_t room = card->ops->room(card) - PF_NEAR_SPARE_BYTES;
    pf_status st = pf_work_stage(m, cut->n_more, bytes < room ? bytes : room);
    return st == PF_ENOMEM ? PF_OK : st;
}

static pf_status open_buffers(struct pf_session *s)
{
    struct pf_model *m = s->m;
    pf_backend *b = m->backend;
    if (b == m->cpu || (m->place && m->place->by_rows))
        s->opts.n_near = 0;                  /* its memory is the host's; or there are no far places */
    struct pf_backend_sizes sizes = pf_backend_sizes_of(m, &s->opts);
    PF_TRY(pf_work_fit(m, &s->opts, false));
    PF_TRY(b->ops->reserve(b, &sizes));
    s->owner = b;                            /* which frees the logits, whatever comes */
    s->n_losses = m->n_losses;
    PF_TRY(alloc_floats(b, logits_bytes(s), true, &s->logits));
    if (hidden_bytes(s))
        PF_TRY(alloc_floats(b, hidden_bytes(s), true, &s->hidden));
    struct pf_cut cut = pf_place_cut_for(m->place, &s->opts);
    s->output_unit = &s->units[cut.output ? cut.n_more : cut.n_more + 1];
    PF_TRY(open_cards(s, &sizes, &cut));
    if (!cut.whole) {
        PF_TRY(open_cpu(s, &sizes, cut.n_layers));
        PF_TRY(open_stage(s, &cut));
    }
    if (s->output_unit->backend->ops->tops)
        PF_TRY(alloc_floats(s->output_unit->backend, tops_bytes(s), true, &s->tops));
    s->n_checkpoints = pf_n_checkpoints(m, &s->opts);
    return pf_place_reserve(m->place, &sizes);
}

static pf_status open_source(struct pf_session *s, enum pf_draft kind)
{
    struct pf_drafter **out = &s->sources[s->n_sources].drafter;
    bool follows = kind == PF_DRAFT_MTP || kind == PF_DRAFT_MODEL;
    PF_TRY(kind == PF_DRAFT_GIVEN ? pf_drafter_given(out, s->tokens, s->opts.draft_fn, s->opts.draft_ctx)
           : follows              ? pf_drafter_follower(out, s)
                                  : pf_drafter_lookup(out, s->tokens, s->opts.n_ctx));
    s->n_sources++;
    return PF_OK;
}

static pf_status open_sources(struct pf_session *s)
{
    if (s->opts.draft == PF_DRAFT_OFF)
        return PF_OK;
    PF_TRY(open_source(s, s->opts.draft));
    return s->opts.draft == PF_DRAFT_AUTO && s->m->nextn ? open_source(s, PF_DRAFT_MTP) : PF_OK;
}

struct pf_session *pf_session_drafting(const struct pf_session *s)
{
    for (int i = 0; i < s->n_sources; i++) {
        const struct pf_drafter *d = s->sources[i].drafter;
        if (d->ops->own)
            return d->ops->own(d);
    }
    return NULL;
}

static pf_status open_parts(struct pf_session *s)
{
    struct pf_model *m = s->m;
    s->tokens = pf_pages_alloc((size_t)s->opts.n_ctx * sizeof *s->tokens);
    s->kv = pf_alloc_array(PF_MEM_SESSION, (size_t)m->n_layer, sizeof *s->kv);
    s->block_kv = pf_alloc_array(PF_MEM_SESSION, (size_t)m->n_layer, sizeof *s->block_kv);
    s->index_kv = pf_alloc_array(PF_MEM_SESSION, (size_t)m->n_layer, sizeof *s->index_kv);
    s->candidates = pf_alloc_array(PF_MEM_SESSION, (size_t)m->n_vocab, sizeof *s->candidates);
    s->weights = pf_alloc_array(PF_MEM_SESSION, 2 * (size_t)m->n_vocab, sizeof *s->weights);
    s->changed = s->weights ? s->weights + m->n_vocab : NULL;
    s->seen = pf_alloc_array(PF_MEM_SESSION, (size_t)m->n_vocab, sizeof *s->seen);
    if (!s->tokens || !s->kv || !s->block_kv || !s->index_kv || !s->candidates || !s->weights || !s->seen)
        PF_FAIL(PF_ENOMEM, "no memory for a session of %lld positions", (long long)s->opts.n_ctx);
    PF_TRY(open_sources(s));
    return open_buffers(s);
}

pf_status pf_session_follow(struct pf_session *s)
{
    if (pf_session_is_here(s))
        return PF_OK;
    close_buffers(s);
    s->computed = s->held_from = s->next_holds = s->state_holds = 0;
    s->n_ahead = 0;
    pf_status st = open_buffers(s);
    if (st < 0)
        close_buffers(s);
    return st;
}

/* Steps of many rows must not take the place of layers. */
static pf_status check_layers(const struct pf_session *s)
{
    const struct pf_placement *p = s->m->place;
    int n = p ? s->units[pf_place_n_cards(p) - 1].end : 0;
    if (p && s->m->backend != s->m->cpu && n < p->cut.n_layers && s->opts.n_batch > PF_DEFAULT_BATCH)
        PF_FAIL(PF_ENOMEM, "beside steps of %d tokens the GPU has room for keys and values of %d of its %d layers",
                s->opts.n_batch, n, p->cut.n_layers);
    return PF_OK;
}

/* A GPU's expert cache gives way to the session, then takes what is left. */
static pf_status open_with_room(struct pf_session *s)
{
    struct pf_there there[PF_MAX_GPUS];
    for (int k = 0; k < PF_MAX_GPUS; k++)
        there[k] = pf_work_there(s->m, &s->opts, k);
    PF_TRY(pf_place_make_room(s->m, &s->opts));
    if (s->opts.n_near == 0)
        s->opts.n_near = pf_place_near(s->m->place, &s->opts, there);
    if (s->m->backend != s->m->cpu && pf_kv_far_bytes(s->m, &s->opts, 0, s->m->n_layer) > 0)
        pf_model_logf(s->m, PF_LOG_INFO, "keys and values of positions from %lld on lie in main memory",
                      (long long)s->opts.n_near);
    pf_status st = open_parts(s);
    pf_place_use_room(s->m->place);
    return st < 0 ? st : check_layers(s);
}

/* A session that has no room on its cards has what visits take of the last one. */
static bool give_way(pf_model *m, pf_status st)
{
    pf_lock_take(&m->step_lock);
    struct pf_placement *p = m->place;
    bool gave = st == PF_ENOMEM && p && p->visits && pf_visits_give_way(p->visits);
    pf_lock_give(&m->step_lock);
    return gave;
}

/* Steps of fewer rows, down to those that a GPU keeps room for unasked, may fit where longer ones do not. */
static bool take_fewer_rows(const pf_model *m, pf_status st, struct pf_session_opts *o)
{
    int asked = o->n_batch;
    if (st != PF_ENOMEM || m->backend == m->cpu || asked <= PF_DEFAULT_BATCH)
        return false;
    o->n_batch = asked / 2 > PF_DEFAULT_BATCH ? asked / 2 : PF_DEFAULT_BATCH;
    pf_model_logf(m, PF_LOG_INFO, "the GPU has no room for steps of %d tokens: they have %d", asked, o->n_batch);
    return true;
}

/* Whether the CPU goes on: a device that is lost is so for all sessions; one that has no room for a model's only
 * session is of no use to it. */
static bool leave_device(pf_model *m, pf_status st, bool only)
{
    if (st != PF_EDEVICE && !(st == PF_ENOMEM && only))
        return false;
    pf_lock_take(&m->step_lock);
    bool left = pf_model_leave_device(m);
    pf_lock_give(&m->step_lock);
    return left;
}

/* Keys and values take memory as the context fills; the rest a step may touch at once, so all of it has to exist. */
static pf_status check_work(const struct pf_model *m, const struct pf_session_opts *o)
{
    uint64_t kv, work, memory = pf_cpu_memory_bytes();
    PF_TRY(pf_session_bytes(m, o, &kv, &work));
    if (m->backend == m->cpu && work > memory)
        PF_FAIL(PF_ENOMEM, "a session for batches of %d takes %llu MB besides keys and values, this machine has %llu, "
                "for %s", o->n_batch, (unsigned long long)(work / 1000000), (unsigned long long)(memory / 1000000),
                pf_gguf_path(m->file));
    return PF_OK;
}

pf_status pf_session_open_so(struct pf_session **out, struct pf_model *m, const struct pf_session_opts *o)
{
    *out = NULL;
    PF_TRY(check_work(m, o));
    struct pf_session *s = pf_alloc(PF_MEM_SESSION, sizeof *s);
    if (!s)
        PF_FAIL(PF_ENOMEM, "no memory for a session");
    s->m = m;
    s->opts = *o;
    s->window = pf_widest_window(m);
    s->ring_positions = pf_ring_positions(m, o);
    atomic_fetch_add(&m->n_sessions, 1);
    pf_lock_take(&m->step_lock);
    pf_status st = open_with_room(s);
    st = st == PF_OK ? pf_crew_fit(m) : st;
    st = st == PF_OK ? pf_crew_tell_open(s) : st;
    pf_lock_give(&m->step_lock);
    if (st < 0)
        pf_session_close(&s);
    else
        atomic_store(&m->last_n_ctx, o->n_ctx);
    *out = s;
    return st;
}

/* A context whose length nobody has said is as long as the unit's own memory allows after all. */
pf_status pf_session_open(pf_session **out, pf_model *m, const struct pf_session_opts *opts)
{
    struct pf_session_opts o;
    *out = NULL;
    if (pf_crew_follows(m))
        PF_FAIL(PF_EINVAL, "of several processes the first alone opens sessions");
    PF_TRY(pf_session_opts_resolve(m, opts, &o));
    int64_t least = opts && opts->n_ctx > 0 ? o.n_ctx : pf_least_context(m), n_near = o.n_near;
    o.n_near = o.n_ctx > least ? o.n_ctx : n_near;
    int n_batch = o.n_batch;
    pf_status st = pf_session_open_so(out, m, &o);
    while (take_fewer_rows(m, st, &o))
        st = pf_session_open_so(out, m, &o);
    while (st == PF_ENOMEM && o.n_ctx > least) {
        o.n_ctx = o.n_ctx / 2 > least ? o.n_ctx / 2 : least;
        o.n_near = o.n_ctx > least ? o.n_ctx : n_near;
        st = pf_session_open_so(out, m, &o);
    }
    bool only = atomic_load(&m->n_sessions) == 0;
    while (st < 0 && (give_way(m, st) || leave_device(m, st, only))) {
        o.n_batch = m->backend == m->cpu ? n_batch : o.n_batch;
        st = pf_session_open_so(out, m, &o);
    }
    return st;
}
