/* A prompt: the picks of a layer come to the host, and the experts that they touch pass through slots of the device's
 * memory in groups. Some are copied while the device multiplies with the others; the next layer's first ones while
 * attention has it. */
#include "moe/offload/shared.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { ALL_TOUCHED = 4 };

/* Copies of several experts, queued then, are over. */
static void note_copies(struct pf_offload *f, struct pf_lane *l, const char *what, int il, uint64_t begun_ns)
{
    struct pf_span span = { what, PF_TRACK_COPIES, il, -1, begun_ns, pf_now_ns() };
    pf_spans_add_queued(f->base.m->spans, &span, 0, &l->post.over_ns);
}

/* Every copy costs something however short it is, so what lies together in RAM crosses in one piece, with what little
 * is in between: the rest of a part's last sectors.
 *
 *     RAM     | gate of 7 |..| up of 7 |..| gate of 8 |..| up of 8 |                | down of 7 |..| down of 8 |
 *     slot    ^ one piece, laid out as it was                      ^ 256 ^ another
 *
 * A part keeps its address modulo 256 but for the first, whose piece begins as its source does. */
struct part {
    const uint8_t  *from;
    uint64_t        bytes;
    const uint8_t **at;                  /* where it will lie */
};

static int by_address(const void *a, const void *b)
{
    const struct part *x = a, *y = b;
    return (x->from > y->from) - (x->from < y->from);
}

/* The pieces that so many parts make, in a slot from `to` on. */
static int join_parts(struct part *part, int n, char *to, struct pf_piece *pieces)
{
    struct pf_piece *last = NULL;
    qsort(part, (size_t)n, sizeof *part, by_address);
    for (int i = 0; i < n; i++) {
        const uint8_t *end = last ? (const uint8_t *)last->from + last->bytes : NULL;
        if (last && part[i].from >= end && (uint64_t)(part[i].from - end) <= pf_transit_between(part[i].bytes)) {
            last->bytes = (size_t)(part[i].from + part[i].bytes - (const uint8_t *)last->from);
        } else {
            to = last ? to + pf_share_room(last->bytes + (uintptr_t)last->from % 256) : to;
            last = last ? last + 1 : pieces;
            *last = (struct pf_piece){ to + (uintptr_t)part[i].from % 256, part[i].from, (size_t)part[i].bytes };
        }
        *part[i].at = (const uint8_t *)last->to + (part[i].from - (const uint8_t *)last->from);
    }
    return last ? (int)(last - pieces) + 1 : 0;
}

/* Begins to copy n experts into a slot; where their parts will lie goes to at. */
static pf_status fill_slot(struct pf_offload *f, struct pf_lane *l, int slot, int n, const uint8_t *(*parts)[3],
                           const uint64_t bytes[3], const uint8_t *(*at)[3])
{
    pf_backend *device = l->device;
    struct pf_piece pieces[3 * PF_RESIDENCY_BATCH];
    struct part part[3 * PF_RESIDENCY_BATCH];
    for (int i = 0; i < 3 * n; i++) {
        part[i] = (struct part){ parts[i / 3][i % 3], bytes[i % 3], &at[i / 3][i % 3] };
        pf_count(&f->stream_bytes, bytes[i % 3]);
    }
    int n_pieces = join_parts(part, 3 * n, l->slots[slot], pieces);
    l->sent[slot] = 0;
    PF_TRY(device->ops->share->fetch(device, pf_slot_ticket(slot), pieces, n_pieces));
    l->sent[slot] = (uint64_t)n * (bytes[0] + bytes[1] + bytes[2]);
    return PF_OK;
}

static void name_experts(struct pf_offload *f, const int *experts, int n, const uint8_t *(*at)[3])
{
    for (int i = 0; i < n; i++)
        for (int p = 0; p < 3; p++)
            f->on_device[p][experts[i]] = at[i][p];
}

static int per_slot_of(const struct pf_lane *l, const uint64_t bytes[3])
{
    int n = (int)(l->slot_bytes / pf_transit_room(bytes));
    return n < PF_RESIDENCY_BATCH ? n : PF_RESIDENCY_BATCH;
}

static pf_status run_slot(struct pf_lane *l, int slot, const int *experts, int n)
{
    pf_backend *device = l->device;
    PF_TRY(device->ops->share->use(device, pf_slot_ticket(slot)));
    PF_TRY(device->ops->experts_part(device, experts, n));
    return device->ops->share->release(device, pf_slot_ticket(slot));
}

/* Waits for copies into all slots, as the store may take the experts' places back only then. False: one failed. */
static bool wait_for_slots(struct pf_offload *f, int il, uint64_t begun_ns)
{
    bool failed = false;
    PF_FOR_LANES(f, k) {
        struct pf_lane *l = &f->lanes[k];
        for (int s = 0; s < l->n_slots; s++)
            failed |= l->device->ops->share->fetch_wait(l->device, pf_slot_ticket(s)) == PF_FETCH_FAILED;
        note_copies(f, l, "experts", il, begun_ns);
    }
    return !failed;
}

/* Ends what has fared as st says: with the failure of a copy, if that is the first. */
static pf_status wait_for_copies(struct pf_offload *f, int il, uint64_t begun_ns, pf_status st)
{
    if (!wait_for_slots(f, il, begun_ns) && st == PF_OK)
        PF_FAIL(PF_EDEVICE, "a copy of experts to the GPU failed in layer %d", il);
    return st;
}

/* Experts that stay where they are in RAM may be on their way while the host sees to another card. */
static bool leaves_copies(const struct pf_offload *f)
{
    return f->base.m->place->in_turns && pf_residency_keeps_all(f->ram);
}

pf_status pf_prompts_copied(struct pf_offload *f)
{
    uint64_t begun_ns = f->left_ns;
    f->left_ns = 0;
    return begun_ns ? wait_for_copies(f, f->left_il, begun_ns, PF_OK) : PF_OK;
}

/* Experts of a batch go to the lanes in turn, a slot full at a time, or less if all lanes are to have some. Where the
 * CPU computes others meanwhile, their copies are waited for later: experts stay where they are in RAM then. */
static pf_status stream_batch(void *ctx, const int *experts, int n)
{
    struct pf_offload *f = ctx;
    struct pf_expert_weight w[3];
    struct pf_experts_op op = *f->offer->e;
    uint64_t bytes[3];
    pf_status st = PF_OK;
    uint64_t begun_ns = pf_now_ns();
    pf_expert_bytes(f->base.m, f->offer->il, bytes);
    pf_residency_tables(f->ram, &op, w);
    for (int i = 0, k; st == PF_OK && i < n; i += k) {
        struct pf_lane *l = &f->lanes[pf_next_lane(f)];
        int slot = l->turn++ % l->n_slots, per_slot = per_slot_of(l, bytes), share = (n + f->n_lanes - 1) / f->n_lanes;
        const uint8_t *parts[PF_RESIDENCY_BATCH][3], *at[PF_RESIDENCY_BATCH][3];
        per_slot = per_slot < share ? per_slot : share;
        k = n - i < per_slot ? n - i : per_slot;
        for (int j = 0; j < k; j++)
            for (int p = 0; p < 3; p++)
                parts[j][p] = w[p].data[experts[i + j]];
        st = fill_slot(f, l, slot, k, parts, bytes, at);
        name_experts(f, experts + i, k, at);
        if (st == PF_OK)
            st = run_slot(l, slot, experts + i, k);
    }
    if (st == PF_OK && f->cpu.n > 0)
        return PF_OK;
    if (st == PF_OK && leaves_copies(f)) {
        f->left_ns = begun_ns;
        f->left_il = f->offer->il;
        return PF_OK;
    }
    return wait_for_copies(f, f->offer->il, begun_ns, st);
}

/* Fills a slot with experts of a layer from number x on, at most *most, which it lowers; returns the number after the
 * last. */
static int fill_slot_ahead(struct pf_offload *f, struct pf_lane *l, int il, int x, int *most)
{
    struct pf_model *m = f->base.m;
    uint64_t bytes[3];
    pf_expert_bytes(m, il, bytes);
    int slot = l->turn++ % l->n_slots, per_slot = per_slot_of(l, bytes) < *most ? per_slot_of(l, bytes) : *most;
    struct pf_ahead *a = &l->ahead[slot];
    const uint8_t *parts[PF_RESIDENCY_BATCH][3];
    a->il = il;
    a->begun_ns = pf_now_ns();
    for (; x < m->n_expert && a->n < per_slot; x++)
        if (!f->is_held[x] && pf_residency_take(f->ram, il, x, parts[a->n]))
            a->experts[a->n++] = x;
    if (a->n > 0 && fill_slot(f, l, slot, a->n, parts, bytes, a->at) < 0) {
        for (int i = 0; i < a->n; i++)
            pf_residency_drop(f->ram, il, a->experts[i]);
        a->n = 0;
    }
    *most -= a->n;
    return x;
}

/* The next layer's first experts are copied while attention has the device: a prompt touches all of them. The CPU is
 * left as many as it computed of this one. */
static void fill_ahead(struct pf_offload *f, int il, int rows)
{
    struct pf_model *m = f->base.m;
    if (il >= f->end || !m->layers[il].is_moe || rows * m->n_used < ALL_TOUCHED * m->n_expert)
        return;
    pf_offload_find_held(f, il);
    for (int s = 0, x = 0, most = f->cpu.n_bus >= 0 ? f->cpu.n_bus : m->n_expert; s < PF_TRANSIT_SLOTS; s++)
        PF_FOR_LANES(f, k)
            if (s < f->lanes[k].n_slots && most > 0)
                x = fill_slot_ahead(f, &f->lanes[k], il, x, &most);
}

/* Waits for what was copied ahead into a slot and lets go of its pins. */
static void drop_ahead(struct pf_offload *f, struct pf_lane *l, int slot)
{
    struct pf_ahead *a = &l->ahead[slot];
    if (a->n > 0) {
        l->device->ops->share->fetch_wait(l->device, pf_slot_ticket(slot));
        note_copies(f, l, "experts ahead", a->il, a->begun_ns);
    }
    for (int i = 0; i < a->n; i++)
        pf_residency_drop(f->ram, a->il, a->experts[i]);
    a->n = 0;
}

void pf_prompts_drop_ahead(struct pf_offload *f)
{
    PF_FOR_LANES(f, k)
        for (int s = 0; s < f->lanes[k].n_slots; s++)
            drop_ahead(f, &f->lanes[k], s);
}

/* Multiplies with the experts that were copied ahead for this layer, when they are there, and sets f->skip for them. */
static pf_status run_ahead(struct pf_offload *f, struct pf_lane *l, int il)
{
    for (int s = 0; s < l->n_slots; s++) {
        int slot = l->turn++ % l->n_slots;
        struct pf_ahead *a = &l->ahead[slot];
        assert(a->n == 0 || a->il == il);    /* a layer is always followed by the one that it was filled for */
        name_experts(f, a->experts, a->n, a->at);
        for (int i = 0; i < a->n; i++)
            f->skip[a->experts[i]] = true;
        if (a->n > 0)
            PF_TRY(run_slot(l, slot, a->experts, a->n));
    }
    return PF_OK;
}

/* The picked experts that the lane's device holds anyway. */
static pf_status run_held(struct pf_offload *f, struct pf_lane *l, int il, const struct pf_experts_op *e)
{
    const bool *held = pf_vcache_held(l->cache, il);
    int n = 0;
    for (int p = 0; p < e->rows * e->n_used; p++) {
        int x = e->picks[p];
        if (!held[x] || f->on_device[0][x])
            continue;
        const uint8_t *at[3];
        pf_vcache_at(l->cache, il, x, at);
        for (int i = 0; i < 3; i++)
            f->on_device[i][x] = at[i];
        f->held[n++] = x;
    }
    return n > 0 ? l->device->ops->experts_part(l->device, f->held, n) : PF_OK;
}

/* What is missed is on its way, or the CPU computes it. */
static pf_status run_with_cpu(struct pf_offload *f, int il, const struct pf_experts_op *shown)
{
    uint64_t begun_ns = pf_now_ns();
    PF_TRY(pf_residency_run(f->ram, il, shown, f->skip, stream_batch, f));
    pf_status st = pf_prompts_run_cpu(f, il, shown);
    PF_TRY(wait_for_copies(f, il, begun_ns, st));
    pf_prompts_learn_bus(f);
    pf_prompts_drop_ahead(f);
    return f->base.device->ops->experts_given(f->base.device, f->cpu.experts, f->cpu.n, f->cpu.pick_y);
}

/* Between begin and end of the op: all lanes multiply by what they hold, what was copied ahead, and what is missed. The
 * host waits for copies when all lanes have been asked for what they do with them. */
static pf_status run_lanes(struct pf_offload *f, int il, const struct pf_experts_op *shown, bool asks_cpu)
{
    pf_offload_find_held(f, il);
    memcpy(f->skip, f->is_held, (size_t)shown->n_expert * sizeof *f->skip);
    PF_FOR_LANES(f, k)
        PF_TRY(run_held(f, &f->lanes[k], il, shown));
    PF_FOR_LANES(f, k)
        PF_TRY(run_ahead(f, &f->lanes[k], il));
    if (f->cpu.may)
        pf_prompts_choose_cpu(f, il, shown, asks_cpu);
    if (f->cpu.n > 0)
        return run_with_cpu(f, il, shown);
    pf_prompts_drop_ahead(f);
    return pf_residency_run(f->ram, il, shown, f->skip, stream_batch, f);
}

static pf_status prompt_on_device(struct pf_offload *f, int il, const struct pf_experts_op *e)
{
    pf_backend *device = f->base.device;
    struct pf_expert_weight gate = *e->gate, up = *e->up, down = *e->down;
    struct pf_experts_op op = *e, shown = *e;
    size_t rows = (size_t)e->rows, n_picks = rows * (size_t)e->n_used;
    bool asks_cpu = pf_prompts_ask_cpu(f, il, e->rows);
    PF_TRY(device->ops->download(device, f->picks, e->picks, n_picks * sizeof *f->picks));
    if (asks_cpu) {
        PF_TRY(device->ops->download(device, f->weights, e->weights, n_picks * sizeof *f->weights));
        PF_TRY(device->ops->download(device, f->x, e->x, rows * (size_t)e->gate->n_in * sizeof *f->x));
    }
    PF_TRY(device->ops->finish(device));
    pf_offload_note(f, "layer", il);
    for (int i = 0; i < 3; i++)
        memset(f->on_device[i], 0, (size_t)e->n_expert * sizeof *f->on_device[i]);
    gate.data = f->on_device[0];
    up.data = f->on_device[1];
    down.data = f->on_device[2];
    op.gate = &gate;
    op.up = &up;
    op.down = &down;
    shown.picks = f->picks;
    struct pf_offer offer = { il, &shown, false };
    f->offer = &offer;
    PF_TRY(f->among ? f->among->begin(device, &op) : device->ops->experts_begin(device, &op));
    PF_TRY(run_lanes(f, il, &shown, asks_cpu));
    PF_TRY(f->among ? f->among->end(device) : device->ops->experts_end(device));
    fill_ahead(f, il + 1, e->rows);
    return PF_OK;
}

static pf_status prompt_on_cpu(struct pf_offload *f, int il, const struct pf_experts_op *e)
{
    pf_backend *device = f->base.device;
    size_t rows = (size_t)e->rows, n_picks = rows * (size_t)e->n_used,
        y_bytes = rows * (size_t)e->down->n_out * sizeof(float);
    struct pf_experts_op op = *e;
    PF_TRY(device->ops->download(device, f->picks, e->picks, n_picks * sizeof *f->picks));
    PF_TRY(device->ops->download(device, f->weights, e->weights, n_picks * sizeof *f->weights));
    PF_TRY(device->ops->download(device, f->x, e->x, rows * (size_t)e->gate->n_in * sizeof *f->x));
    PF_TRY(device->ops->finish(device));
    pf_offload_note(f, "layer", il);
    op.picks = f->picks;
    op.weights = f->weights;
    op.x = f->x;
    op.y = f->y;
    PF_TRY(pf_place_experts(f->base.under, f->base.m->cpu, il, &op));
    return device->ops->upload(device, e->y, f->y, y_bytes);
}

pf_status pf_prompts_experts(struct pf_offload *f, int il, const struct pf_experts_op *e)
{
    PF_TRY(pf_prompts_copied(f));            /* of an earlier layer, which cannot be computed anew */
    if (f->force_cpu)
        return prompt_on_cpu(f, il, e);
    pf_status st = prompt_on_device(f, il, e);
    if (st != PF_EDEVICE)
        return st;
    pf_count(&f->lanes[0].post.n_fallbacks, 1);
    pf_prompts_drop_ahead(f);                /* other copies made ahead for this layer are of no more use */
    return prompt_on_cpu(f, il, e);          /* a copy failed; if it was more, this fails too */
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

static const size_t MOST_PUT_OUT = 64 << 20;        /* bytes of what the CPU puts out of a step's picks */

pf_status pf_prompts_reserve(struct pf_offload *f, const struct pf_backend_sizes *sizes)
{
    const struct pf_model *m = f->base.m;
    size_t rows = (size_t)sizes->max_rows, picks = (size_t)sizes->max_picks, row = (size_t)m->n_expert_in,
        put_out = (size_t)m->n_used * row, cpu_rows = MOST_PUT_OUT / (put_out * sizeof(float));
    void *p;
    if (sizes->max_rows <= f->max_rows)
        return PF_OK;
    cpu_rows = cpu_rows < rows ? cpu_rows : rows;
    size_t least = (2 * rows * row + 2 * picks) * sizeof(float), bytes = least + cpu_rows * put_out * sizeof(float);
    if (f->base.device->ops->buf_alloc(f->base.device, bytes, true, &p) < 0) {
        cpu_rows = 0;
        bytes = least;
        PF_TRY(f->base.device->ops->buf_alloc(f->base.device, bytes, true, &p));
    }
    f->base.device->ops->buf_free(f->base.device, f->x, f->host_bytes, true);
    f->host_bytes = bytes;
    f->max_rows = sizes->max_rows;
    f->x = p;
    f->y = f->x + rows * row;
    f->weights = f->y + rows * row;
    f->picks = (int32_t *)(void *)(f->weights + picks);
    f->cpu.pick_y = f->weights + 2 * picks;
    f->cpu.max_rows = (int)cpu_rows;
    return PF_OK;
}

