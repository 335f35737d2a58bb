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

static pf_status offload_copied(struct pf_placement *p)
{
    return pf_prompts_copied(pf_offload_of(p));
}

static bool offload_attends(struct pf_placement *p, const struct pf_far_step *s, struct pf_far_range *out)
{
    struct pf_offload *f = pf_offload_of(p);
    const struct pf_share_ops *share = p->device->ops->share;
    size_t room = f->force_cpu ? 0 : share->attend_room(p->device) / s->floats;
    int n = s->end - s->first, most = room < (size_t)n ? (int)room : n,
        k = pf_far_deal(&f->far, s->rows, n, most, &f->far_deal[s->part]);
    f->far_range[s->part] = *out = (struct pf_far_range){ s->end - k, s->end };
    return k > 0;
}

/* The drive has the CPU's turns to read in; a guess would be one more. */
static enum pf_guess offload_guesses(const struct pf_placement *p, int il, int rows)
{
    (void)p;
    (void)il;
    (void)rows;
    return PF_GUESS_NOTHING;
}

/* From the step before. */
static void learn_attention(struct pf_offload *f)
{
    pf_backend *device = f->base.device;
    struct pf_attended took;
    int n[PF_BY_HOST_PARTS] = { 0 };
    for (int i = 0; i < PF_BY_HOST_PARTS; i++)
        for (int j = 0; j < PF_BY_HOST_PARTS; j++)
            n[i] += f->far_deal[j].n_host > 0 && f->far_deal[j].share == f->far_deal[i].share;
    for (int i = 0; i < PF_BY_HOST_PARTS; i++)
        if (f->far_deal[i].n_host > 0) {
            device->ops->share->attended(device, i, &took);
            pf_far_learn(&f->far_deal[i], &took, n[i]);
        }
}

static pf_status offload_between(struct pf_placement *p, int rows)
{
    struct pf_offload *f = pf_offload_of(p);
    learn_attention(f);
    pf_prompts_drop_ahead(f);                /* copies ahead that a failed step has left */
    f->lesson.n = 0;                         /* the last layer's: nobody knows when it was over */
    uint64_t now = f->gpu_since_ns = pf_now_ns();
    if (f->last_begin_ns && rows == 1)
        f->step_ns = now - f->last_begin_ns;
    f->last_begin_ns = rows == 1 ? now : 0;
    if (rows > PF_SHARE_ROWS || f->force_cpu)
        return PF_OK;
    double rate = f->solver.prices.pcie_bytes_s > 0 ? f->solver.prices.pcie_bytes_s : 10e9;
    double ns = f->step_ns && f->step_ns < 1000000000 ? (double)f->step_ns : 1e7;
    PF_FOR_LANES(f, k) {
        const struct pf_vcache_counts *n = &f->lanes[k].cached;
        double share = pf_counted(&n->n_held) < pf_counted(&n->n_slots) ? FIRST_FILL_SHARE : FILL_SHARE;
        PF_TRY(pf_vcache_between(f->lanes[k].cache, (uint64_t)(rate * share * ns * 1e-9) + 1));
    }
    return PF_OK;
}

static void offload_ended(struct pf_placement *p, uint64_t begun_ns, bool well)
{
    (void)begun_ns;
    pf_offload_note(pf_offload_of(p), "output", -1);
    if (well && p->m->n_moe == 1)            /* no other layer's picks would end the lesson */
        pf_decode_ended(pf_offload_of(p));
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

int pf_offload_holder(const struct pf_offload *f, int il, int expert)
{
    PF_FOR_LANES(f, k)
        if (pf_vcache_held(f->lanes[k].cache, il)[expert])
            return k;
    return -1;
}

void pf_offload_find_held(struct pf_offload *f, int il)
{
    int n = f->base.m->n_expert;
    memset(f->is_held, 0, (size_t)n * sizeof *f->is_held);
    PF_FOR_LANES(f, k) {
        const bool *held = pf_vcache_held(f->lanes[k].cache, il);
        for (int x = 0; x < n; x++)
            f->is_held[x] |= held[x];
    }
}

/* Caches give back what the cards need to work together. */
static pf_status reserve_among(struct pf_offload *f, const struct pf_backend_sizes *sizes)
{
    if (!f->among || sizes->max_rows <= f->shared_rows)
        return PF_OK;
    PF_FOR_LANES(f, k)
        pf_vcache_make_room(f->lanes[k].cache, f->among->bytes(f->base.device, sizes, k == 0) + PF_CUT_SPARE_BYTES);
    PF_TRY(f->among->reserve(f->base.device, sizes));
    f->shared_rows = sizes->max_rows;
    return PF_OK;
}

static pf_status offload_reserve(struct pf_placement *p, const struct pf_backend_sizes *sizes)
{
    PF_TRY(p->m->cpu->ops->reserve(p->m->cpu, sizes));
    PF_TRY(reserve_among(pf_offload_of(p), sizes));
    return pf_prompts_reserve(pf_offload_of(p), sizes);
}

static void offload_make_room(struct pf_placement *p, uint64_t bytes)
{
    pf_vcache_make_room(pf_offload_of(p)->lanes[0].cache, bytes);
}

static void offload_use_room(struct pf_placement *p)
{
    struct pf_offload *f = pf_offload_of(p);
    if (!f->force_cpu)
        PF_FOR_LANES(f, k)
            pf_vcache_grow(f->lanes[k].cache);
}

static pf_status offload_fill(struct pf_placement *p)
{
    struct pf_offload *f = pf_offload_of(p);
    PF_FOR_LANES(f, k)
        PF_TRY(pf_vcache_fill(f->lanes[k].cache));
    return PF_OK;
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

static void lane_stats(const struct pf_lane *l, bool copies, struct pf_stats *out)
{
    out->vram_slots += pf_counted(&l->cached.n_slots);
    out->vram_slot_bytes += pf_counted(&l->cached.bytes);
    out->vram_transit_bytes += copies ? l->post.scratchpad_bytes + (uint64_t)l->n_slots * l->slot_bytes : 0;
    out->vram_hits += pf_counted(&l->cached.n_hits);
    out->n_transfers += pf_counted(&l->post.n_transfers);
    out->transfer_bytes += pf_counted(&l->post.transfer_bytes);
    out->transfer_ns += pf_counted(&l->post.transfer_ns);
    out->transfer_hidden_ns += pf_counted(&l->post.hidden_ns);
    out->n_fallbacks += pf_counted(&l->post.n_fallbacks);
}

static void offload_stats(const struct pf_placement *p, struct pf_stats *out)
{
    const struct pf_offload *f = (const struct pf_offload *)p;
    struct pf_handoff_stats h;
    for (int k = 0; k < f->n_lanes; k++)
        lane_stats(&f->lanes[k], !f->force_cpu, out);
    out->n_in_place = pf_counted(&f->n_in_place);
    out->in_place_bytes = pf_counted(&f->in_place_bytes);
    out->stream_bytes = pf_counted(&f->stream_bytes);
    out->far_cpu_bytes = pf_counted(&f->far_bytes);
    p->device->ops->share->handoffs(p->device, &h);
    out->handoff_p50_ns = h.p50_ns;
    out->handoff_p95_ns = h.p95_ns;
    out->gpu_busy_ns = p->m->step_ns > h.waited_ns ? p->m->step_ns - h.waited_ns : 0;
}

static void count_anew(pf_counter **counters, size_t n)
{
    for (size_t i = 0; i < n; i++)
        pf_count_anew(counters[i]);
}

static void offload_stats_reset(struct pf_placement *p)
{
    struct pf_offload *f = pf_offload_of(p);
    count_anew((pf_counter *[]){ &f->stream_bytes, &f->n_in_place, &f->in_place_bytes, &f->far_bytes }, 4);
    for (int k = 0; k < f->n_lanes; k++) {
        struct pf_lane *l = &f->lanes[k];
        count_anew((pf_counter *[]){ &l->post.n_transfers, &l->post.transfer_bytes, &l->post.transfer_ns,
                                     &l->post.hidden_ns, &l->post.n_fallbacks, &l->cached.n_hits,
                                     &l->cached.n_fills }, 7);
    }
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

static pf_status alloc_device(pf_backend *device, uint64_t bytes, char **out)
{
    void *p;
    PF_TRY(device->ops->buf_alloc(device, (size_t)bytes, false, &p));
    *out = p;
    return PF_OK;
}

static pf_status open_memory(struct pf_offload *f, struct pf_lane *l, uint64_t room)
{
    struct pf_transit t = pf_transit_of(f->base.m, &f->opts, room);
    l->post.scratchpad_bytes = t.scratchpad_bytes;
    l->slot_bytes = t.slot_bytes;
    l->n_slots = t.n_slots;
    if (f->force_cpu)
        return PF_OK;
    PF_TRY(alloc_device(l->device, l->post.scratchpad_bytes, &l->post.scratchpad));
    for (int i = 0; i < l->n_slots; i++)
        PF_TRY(alloc_device(l->device, l->slot_bytes, &l->slots[i]));
    return PF_OK;
}

static pf_status open_tables(struct pf_offload *f)
{
    size_t n = (size_t)f->base.m->n_expert;
    f->served = pf_alloc_array(PF_MEM_MODEL, (size_t)PF_SHARE_ROWS * (size_t)f->base.m->n_used, sizeof *f->served);
    f->held = pf_alloc_array(PF_MEM_MODEL, n, sizeof *f->held);
    f->skip = pf_alloc_array(PF_MEM_MODEL, n, sizeof *f->skip);
    f->is_held = pf_alloc_array(PF_MEM_MODEL, n, sizeof *f->is_held);
    f->home = f->n_lanes > 1 ? pf_alloc_array(PF_MEM_MODEL, n, sizeof *f->home) : NULL;
    for (int i = 0; i < 3; i++) {
        f->on_device[i] = pf_alloc_array(PF_MEM_MODEL, n, sizeof *f->on_device[i]);
        if (!f->on_device[i] || !f->served || !f->held || !f->skip || !f->is_held || (f->n_lanes > 1 && !f->home))
            PF_FAIL(PF_ENOMEM, "no memory for tables of %zu experts", n);
    }
    return pf_prompts_open_cpu(f);
}

/* Deals experts to the cards that are there, of each run of neighbours to each its part of all the room. */
static void find_homes(struct pf_offload *f)
{
    double all = 0, dealt[PF_MAX_GPUS] = { 0 };
    if (!f->home)
        return;
    PF_FOR_LANES(f, k)
        all += (double)f->lanes[k].device->ops->room(f->lanes[k].device) + 1;
    for (int x = 0; x < f->base.m->n_expert; x++) {
        double most = -1;
        PF_FOR_LANES(f, k) {
            double room = (double)f->lanes[k].device->ops->room(f->lanes[k].device) + 1;
            double lacks = room / all * (x + 1) - dealt[k];
            f->home[x] = lacks > most ? k : f->home[x];
            most = lacks > most ? lacks : most;
        }
        dealt[f->home[x]]++;
    }
}

static pf_status open_lane(struct pf_offload *f, int k, uint64_t room)
{
    struct pf_model *m = f->base.m;
    struct pf_lane *l = &f->lanes[k];
    const struct pf_share_ops *share = l->device->ops->share;
    struct pf_share_sizes sizes = { .n_layer = m->n_layer, .n_expert = m->n_expert, .n_used = m->n_used,
                                    .n_embd = m->n_expert_in, .n_ff = m->n_ff_expert,
                                    .one_stream = !f->opts.dedicated_streams };
    l->post.device = l->device;
    l->post.opts = f->opts;
    l->post.prices = &f->solver.prices;
    l->post.spans = m->spans;
    PF_TRY(k > 0 ? pf_model_place_extra(m, l->device) : PF_OK);
    const struct pf_share_host host = { pf_decode_serve, pf_decode_served, pf_decode_attend, f };
    PF_TRY(share->open(l->device, &sizes, &host));
    return open_memory(f, l, room);
}

/* Caches are as large as what the cards have left is then: homes come first. */
static pf_status open_caches(struct pf_offload *f)
{
    size_t bytes;
    void *slots = pf_residency_arena(f->ram, &bytes);
    find_homes(f);
    f->arena = slots;
    PF_FOR_LANES(f, k) {
        struct pf_lane *l = &f->lanes[k];
        const struct pf_vcache_setup setup = { .m = f->base.m, .device = l->device, .first = f->first, .end = f->end,
                                               .ram = f->ram, .home = f->home, .card = k };
        PF_TRY(pf_vcache_open(&l->cache, &setup, &l->cached));
        l->seen = l->device->ops->share->pin(l->device, slots, bytes);
    }
    return PF_OK;
}

static pf_status open_parts(struct pf_offload *f, const struct pf_cut *cut, int k)
{
    struct pf_model *m = f->base.m;
    uint64_t room[PF_MAX_GPUS];
    for (int i = 0; i < f->n_lanes; i++)
        room[i] = f->lanes[i].device->ops->room(f->lanes[i].device);
    f->unpins = k == 0;
    PF_TRY(place_dense(f, cut, k));
    PF_TRY(open_tables(f));
    for (int i = 0; i < f->n_lanes; i++)
        PF_TRY(open_lane(f, i, room[i]));
    PF_TRY(open_caches(f));
    if (f->among) {
        pf_backend *others[PF_MAX_GPUS];
        for (int i = 1; i < f->n_lanes; i++)
            others[i - 1] = f->lanes[i].device;
        PF_TRY(f->among->open(f->base.device, others, f->n_lanes - 1));
    }
    m->cpu->ops->alert(m->cpu, true);
    return PF_OK;
}

static void leave_lane(struct pf_offload *f, int k)
{
    struct pf_lane *l = &f->lanes[k];
    const struct pf_backend_ops *ops = l->device->ops;
    for (int t = 0; l->cache && t < PF_SHARE_TICKETS; t++)
        ops->share->fetch_wait(l->device, t);            /* a copy that was too late may still be under way */
    pf_vcache_close(&l->cache);
    if (f->arena && f->unpins && k == 0)
        ops->share->unpin(l->device, (void *)(uintptr_t)f->arena);
    ops->buf_free(l->device, l->post.scratchpad, l->post.scratchpad_bytes, false);
    for (int i = 0; i < l->n_slots; i++)
        ops->buf_free(l->device, l->slots[i], l->slot_bytes, false);
}

/* Another card than the first: the others and the CPU go on with its experts, which are in RAM, too. */
static bool offload_lose(struct pf_placement *p, unsigned lost)
{
    struct pf_offload *f = pf_offload_of(p);
    if (lost & 1)
        return false;
    pf_prompts_drop_ahead(f);
    for (int k = 1; k < f->n_lanes; k++) {
        if (!(lost >> k & 1) || !f->lanes[k].device)
            continue;
        pf_vcache_make_room(f->lanes[k].cache, UINT64_MAX);      /* the first card is told that it holds nothing */
        leave_lane(f, k);
        f->among->leave(f->base.device, f->lanes[k].device);
        f->lanes[k].device = NULL;
        f->solver.prices.n_buses--;
    }
    for (int x = 0; x < p->m->n_expert; x++)
        f->home[x] = f->lanes[f->home[x]].device ? f->home[x] : pf_next_lane(f);
    return true;
}

/* Frees everything but the counts that statistics read. */
static void offload_leave_device(struct pf_placement *p)
{
    struct pf_offload *f = pf_offload_of(p);
    f->is_left = true;
    p->m->cpu->ops->alert(p->m->cpu, false);
    pf_prompts_drop_ahead(f);
    for (int k = f->n_lanes - 1; k >= 0; k--)
        if (f->lanes[k].device)
            leave_lane(f, k);
    p->device->ops->buf_free(p->device, f->x, f->host_bytes, true);
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
    pf_free(f->is_held);
    pf_free(f->home);
    pf_prompts_close_cpu(f);
    pf_free(f);
}

static const struct pf_place_ops ops = {
    .between = offload_between, .attends = offload_attends, .ended = offload_ended, .want = offload_want,
    .experts = offload_experts, .copied = offload_copied, .guesses = offload_guesses, .reserve = offload_reserve,
    .make_room = offload_make_room, .use_room = offload_use_room, .fill = offload_fill, .measure = offload_measure,
    .knows = offload_knows, .tell = offload_tell, .recall = offload_recall, .stats = offload_stats,
    .stats_reset = offload_stats_reset, .lose = offload_lose, .leave_device = offload_leave_device,
    .close = offload_close,
};

/* Over n cards from number k on, the first of which has the cut's layers of card k. */
static pf_status open_over(struct pf_placement **out, struct pf_placement *under, const struct pf_cards *cards,
                           const struct pf_cut *cut, int k, int n, const struct pf_model_opts *o)
{
    struct pf_offload *f = pf_alloc(PF_MEM_MODEL, sizeof *f);
    struct pf_model *m = under->m;
    *out = NULL;
    if (!f)
        PF_FAIL(PF_ENOMEM, "no memory for sharing experts with the GPU");
    f->base = (struct pf_placement){ .ops = &ops, .m = m, .device = cards->at[k], .cut = pf_cut_all(m),
                                     .n_among = n - 1, .experts_apart = true, .under = under };
    pf_cut_card(cut, k, &f->first, &f->end);
    f->ram = pf_residency_of(under);
    f->force_cpu = o->postfetch.force_cpu;
    f->opts = o->postfetch;
    f->n_lanes = f->solver.prices.n_buses = n;
    f->among = n > 1 ? pf_backend_cuda_among(cards->at[k]) : NULL;
    for (int i = 0; i < n; i++)
        f->base.cards[i] = f->lanes[i].device = cards->at[k + i];
    pf_status st = open_parts(f, cut, k);
    if (st < 0) {
        offload_close(&f->base);
        return st;
    }
    *out = &f->base;
    return PF_OK;
}

pf_status pf_offload_open_card(struct pf_placement **out, struct pf_placement *under, const struct pf_cards *cards,
                               const struct pf_cut *cut, int k, const struct pf_model_opts *o)
{
    return open_over(out, under, cards, cut, k, 1, o);
}

pf_status pf_offload_open(struct pf_placement **out, struct pf_model *m, const struct pf_cards *cards,
                          const struct pf_placing *what, const struct pf_model_opts *o,
                          const struct pf_residency_setup *setup)
{
    const struct pf_cut all = pf_cut_all(m);
    struct pf_placement *under;
    bool by_layers = what->cut.n_more > 0 && !what->cut.by_experts;
    *out = NULL;
    PF_TRY(pf_cpu_place_open(&under, m, what, setup));
    pf_status st = by_layers ? pf_spread_open(out, under, cards, &what->cut, o)
                             : open_over(out, under, cards, &all, 0, 1 + what->cut.n_more, o);
    if (st < 0)
        pf_place_close(under);
    return st;
}
