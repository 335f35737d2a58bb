/* See offload.h: the table of functions, opening, what happens between steps, statistics. */
#include "moe/offload/shared.h"

#include "base/pf_mem.h"
#include "moe/place/cut.h"

/* Shares of PCIe's rate for fills of the cache: for replacing experts, and while there are free slots. */
static const double FILL_SHARE = 0.05, FIRST_FILL_SHARE = 0.25;

/* Since the last time it was heard of, the GPU has been at this. */
void pf_offload_note(struct pf_offload *f, const char *what, int il)
{
    if (!f->base.m->spans)
        return;
    uint64_t now = pf_now_ns();
    pf_spans_add(f->base.m->spans, &(struct pf_span){ what, PF_TRACK_GPU, il, -1, f->gpu_since_ns, now });
    f->gpu_since_ns = now;
}

/* ---- A step ------------------------------------------------------------------------------------------------------ */

static pf_status offload_want(struct pf_placement *p, int il, const struct pf_experts_op *e)
{
    return e->rows <= PF_SHARE_ROWS ? p->device->ops->share->offer(p->device, il, e) : PF_OK;
}

static pf_status offload_experts(struct pf_placement *p, pf_backend *b, int il, const struct pf_experts_op *e)
{
    if (b != p->device)
        return pf_place_experts(p->under, b, il, e);
    if (e->rows <= PF_SHARE_ROWS)
        return b->ops->share->experts(b, il, e);
    return pf_prompts_experts(pf_offload_of(p), il, e);
}

/* The drive has the CPU's turns to read in; a guess would be one more. */
static enum pf_guess offload_guesses(const struct pf_placement *p, int il, int rows)
{
    (void)p;
    (void)il;
    (void)rows;
    return PF_GUESS_NOTHING;
}

static pf_status offload_between(struct pf_placement *p, int rows)
{
    struct pf_offload *f = pf_offload_of(p);
    pf_prompts_drop_ahead(f);                /* copies ahead that a failed step has left */
    f->lesson.n = 0;                         /* the last layer's: nobody knows when it was over */
    uint64_t now = f->gpu_since_ns = pf_now_ns();
    if (f->last_begin_ns && rows == 1)
        f->step_ns = now - f->last_begin_ns;
    f->last_begin_ns = rows == 1 ? now : 0;
    if (rows > PF_SHARE_ROWS || f->force_cpu)
        return PF_OK;
    double rate = f->solver.prices.pcie_bytes_s > 0 ? f->solver.prices.pcie_bytes_s : 10e9;
    double share = pf_counted(&f->cached.n_held) < pf_counted(&f->cached.n_slots) ? FIRST_FILL_SHARE : FILL_SHARE;
    double ns = f->step_ns && f->step_ns < 1000000000 ? (double)f->step_ns : 1e7;
    return pf_vcache_between(f->cache, (uint64_t)(rate * share * ns * 1e-9) + 1);
}

static void offload_ended(struct pf_placement *p, uint64_t begun_ns, bool well)
{
    (void)begun_ns;
    pf_offload_note(pf_offload_of(p), "output", -1);
    if (well && p->m->n_moe == 1)            /* no other layer's picks would end the lesson */
        pf_decode_ended(pf_offload_of(p));
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

static pf_status offload_reserve(struct pf_placement *p, const struct pf_backend_sizes *sizes)
{
    PF_TRY(p->m->cpu->ops->reserve(p->m->cpu, sizes));
    return pf_prompts_reserve(pf_offload_of(p), sizes);
}

static void offload_make_room(struct pf_placement *p, uint64_t bytes)
{
    pf_vcache_make_room(pf_offload_of(p)->cache, bytes);
}

static void offload_use_room(struct pf_placement *p)
{
    if (!pf_offload_of(p)->force_cpu)
        pf_vcache_grow(pf_offload_of(p)->cache);
}

static pf_status offload_fill(struct pf_placement *p)
{
    return pf_vcache_fill(pf_offload_of(p)->cache);
}

/* ---- What was learned -------------------------------------------------------------------------------------------- */

static uint64_t offload_measure(struct pf_placement *p, bool on)
{
    struct pf_offload *f = pf_offload_of(p);
    uint64_t n = f->n_looks;
    f->measures = on;
    f->n_looks = 0;
    return n;
}

static bool offload_knows(const struct pf_placement *p)
{
    return ((const struct pf_offload *)p)->solver.prices.cpu_bytes_s > 0;
}

static void offload_tell(const struct pf_placement *p, struct pf_learned *out)
{
    pf_solver_tell(&((const struct pf_offload *)p)->solver, out);
}

static void offload_recall(struct pf_placement *p, const struct pf_learned *l)
{
    pf_solver_recall(&pf_offload_of(p)->solver, l);
}

/* ---- Statistics -------------------------------------------------------------------------------------------------- */

static void offload_stats(const struct pf_placement *p, struct pf_stats *out)
{
    const struct pf_offload *f = (const struct pf_offload *)p;
    struct pf_handoff_stats h;
    out->vram_slots = pf_counted(&f->cached.n_slots);
    out->vram_slot_bytes = pf_counted(&f->cached.bytes);
    out->vram_transit_bytes = f->force_cpu ? 0 : f->post.scratchpad_bytes + (uint64_t)f->n_slots * f->slot_bytes;
    out->vram_hits = pf_counted(&f->cached.n_hits);
    out->n_transfers = pf_counted(&f->post.n_transfers);
    out->transfer_bytes = pf_counted(&f->post.transfer_bytes);
    out->transfer_ns = pf_counted(&f->post.transfer_ns);
    out->transfer_hidden_ns = pf_counted(&f->post.hidden_ns);
    out->n_in_place = pf_counted(&f->n_in_place);
    out->in_place_bytes = pf_counted(&f->in_place_bytes);
    out->n_fallbacks = pf_counted(&f->post.n_fallbacks);
    out->stream_bytes = pf_counted(&f->stream_bytes);
    p->device->ops->share->handoffs(p->device, &h);
    out->handoff_p50_ns = h.p50_ns;
    out->handoff_p95_ns = h.p95_ns;
    out->gpu_busy_ns = p->m->step_ns > h.waited_ns ? p->m->step_ns - h.waited_ns : 0;
}

static void offload_stats_reset(struct pf_placement *p)
{
    struct pf_offload *f = pf_offload_of(p);
    pf_counter *all[] = { &f->stream_bytes, &f->n_in_place, &f->in_place_bytes, &f->post.n_transfers,
                          &f->post.transfer_bytes, &f->post.transfer_ns, &f->post.hidden_ns, &f->post.n_fallbacks,
                          &f->cached.n_hits, &f->cached.n_fills };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        pf_count_anew(all[i]);
    p->device->ops->share->handoffs_reset(p->device);
}

/* ---- Opening and closing ----------------------------------------------------------------------------------------- */

static pf_status place_dense(struct pf_offload *f, const struct pf_cut *cut, int k)
{
    const struct pf_model *m = f->base.m;
    for (uint64_t i = 0; i < pf_gguf_n_tensors(m->file); i++) {
        const struct pf_tensor *t = pf_gguf_tensor_at(m->file, i);
        if (pf_cut_has(m, cut, k, t) && pf_place_maps(f->base.under, t) && !pf_model_gathers(m, t))
            PF_TRY(f->base.device->ops->place(f->base.device, t->data, t->n_bytes));
    }
    return pf_model_place_extra(m, f->base.device);
}

static pf_status alloc_device(struct pf_offload *f, uint64_t bytes, char **out)
{
    void *p;
    PF_TRY(f->base.device->ops->buf_alloc(f->base.device, (size_t)bytes, false, &p));
    *out = p;
    return PF_OK;
}

static pf_status open_memory(struct pf_offload *f, uint64_t room)
{
    struct pf_transit t = pf_transit_of(f->base.m, &f->post.opts, room);
    f->post.scratchpad_bytes = t.scratchpad_bytes;
    f->slot_bytes = t.slot_bytes;
    f->n_slots = t.n_slots;
    if (f->force_cpu)
        return PF_OK;
    PF_TRY(alloc_device(f, f->post.scratchpad_bytes, &f->post.scratchpad));
    for (int i = 0; i < f->n_slots; i++)
        PF_TRY(alloc_device(f, f->slot_bytes, &f->slots[i]));
    return PF_OK;
}

static pf_status open_tables(struct pf_offload *f)
{
    size_t n = (size_t)f->base.m->n_expert;
    f->served = pf_alloc_array(PF_MEM_MODEL, (size_t)PF_SHARE_ROWS * (size_t)f->base.m->n_used, sizeof *f->served);
    f->held = pf_alloc_array(PF_MEM_MODEL, n, sizeof *f->held);
    f->skip = pf_alloc_array(PF_MEM_MODEL, n, sizeof *f->skip);
    for (int i = 0; i < 3; i++) {
        f->on_device[i] = pf_alloc_array(PF_MEM_MODEL, n, sizeof *f->on_device[i]);
        if (!f->on_device[i] || !f->served || !f->held || !f->skip)
            PF_FAIL(PF_ENOMEM, "no memory for tables of %zu experts", n);
    }
    return pf_vcache_open(&f->cache, f->base.m, f->base.device, f->first, f->end, f->ram, &f->cached);
}

static pf_status open_parts(struct pf_offload *f, const struct pf_cut *cut, int k, const struct pf_model_opts *o)
{
    struct pf_model *m = f->base.m;
    pf_backend *device = f->base.device;
    const struct pf_share_ops *share = device->ops->share;
    struct pf_share_sizes sizes = { .n_layer = m->n_layer, .n_expert = m->n_expert, .n_used = m->n_used,
                                    .n_embd = m->n_expert_in, .n_ff = m->n_ff_expert,
                                    .one_stream = !o->postfetch.dedicated_streams };
    uint64_t room = device->ops->room(device);
    PF_TRY(place_dense(f, cut, k));
    PF_TRY(share->open(device, &sizes, pf_decode_serve, pf_decode_served, f));
    PF_TRY(open_tables(f));
    PF_TRY(open_memory(f, room));
    size_t bytes;
    void *slots = pf_residency_arena(f->ram, &bytes);
    f->arena = slots;
    f->unpins = k == 0;
    f->seen = share->pin(device, slots, bytes);
    m->cpu->ops->alert(m->cpu, true);
    return PF_OK;
}

/* Frees everything but the counts that statistics read. */
static void offload_leave_device(struct pf_placement *p)
{
    struct pf_offload *f = pf_offload_of(p);
    const struct pf_backend_ops *ops = p->device->ops;
    f->is_left = true;
    p->m->cpu->ops->alert(p->m->cpu, false);
    for (int t = 0; f->cache && t < PF_SHARE_TICKETS; t++)
        ops->share->fetch_wait(p->device, t);        /* a copy that was too late may still be under way */
    pf_prompts_drop_ahead(f);
    pf_vcache_close(&f->cache);
    if (f->arena && f->unpins)
        ops->share->unpin(p->device, (void *)(uintptr_t)f->arena);
    ops->buf_free(p->device, f->post.scratchpad, f->post.scratchpad_bytes, false);
    for (int i = 0; i < f->n_slots; i++)
        ops->buf_free(p->device, f->slots[i], f->slot_bytes, false);
    ops->buf_free(p->device, f->x, f->host_bytes, true);
}

static void offload_close(struct pf_placement *p)
{
    struct pf_offload *f = pf_offload_of(p);
    if (!f->is_left)
        offload_leave_device(p);
    for (int i = 0; i < 3; i++)
        pf_free(f->on_device[i]);
    pf_free(f->served);
    pf_free(f->held);
    pf_free(f->skip);
    pf_free(f);
}

static const struct pf_place_ops ops = {
    .between = offload_between, .ended = offload_ended, .want = offload_want,
    .experts = offload_experts, .guesses = offload_guesses, .reserve = offload_reserve,
    .make_room = offload_make_room, .use_room = offload_use_room, .fill = offload_fill, .measure = offload_measure,
    .knows = offload_knows, .tell = offload_tell, .recall = offload_recall, .stats = offload_stats,
    .stats_reset = offload_stats_reset, .leave_device = offload_leave_device, .close = offload_close,
};

pf_status pf_offload_open_card(struct pf_placement **out, struct pf_placement *under, const struct pf_cards *cards,
                               const struct pf_cut *cut, int k, const struct pf_model_opts *o)
{
    struct pf_offload *f = pf_alloc(PF_MEM_MODEL, sizeof *f);
    struct pf_model *m = under->m;
    *out = NULL;
    if (!f)
        PF_FAIL(PF_ENOMEM, "no memory for sharing experts with the GPU");
    f->base = (struct pf_placement){ .ops = &ops, .m = m, .device = cards->at[k], .cards = { cards->at[k] },
                                     .cut = pf_cut_all(m), .experts_apart = true, .under = under };
    pf_cut_card(cut, k, &f->first, &f->end);
    f->ram = pf_residency_of(under);
    f->force_cpu = o->postfetch.force_cpu;
    f->post.device = cards->at[k];
    f->post.opts = o->postfetch;
    f->post.prices = &f->solver.prices;
    f->post.spans = m->spans;
    pf_status st = open_parts(f, cut, k, o);
    if (st < 0) {
        offload_close(&f->base);
        return st;
    }
    *out = &f->base;
    return PF_OK;
}

pf_status pf_offload_open(struct pf_placement **out, struct pf_model *m, const struct pf_cards *cards,
                          const struct pf_placing *what, const struct pf_model_opts *o,
                          const struct pf_residency_setup *setup)
{
    const struct pf_cut all = pf_cut_all(m);
    struct pf_placement *under;
    *out = NULL;
    PF_TRY(pf_cpu_place_open(&under, m, what, setup));
    pf_status st = what->cut.n_more > 0 ? pf_spread_open(out, under, cards, &what->cut, o)
                                        : pf_offload_open_card(out, under, cards, &all, 0, o);
    if (st < 0)
        pf_place_close(under);
    return st;
}
