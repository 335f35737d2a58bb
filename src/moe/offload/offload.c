/* See offload.h. */
#include "moe/offload/offload.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/pf_mem.h"
#include "base/pf_time.h"
#include "backend/share.h"
#include "moe/offload/postfetch.h"
#include "moe/place/residency.h"
#include "moe/offload/vcache.h"

enum { BATCH = 64, PROMPT_TICKET = PF_MAX_TRANSFERS, MOST_SLOTS = 4, ALL_TOUCHED = 4 };
/* Of a prompt's groups: one expert at least; half a layer, so many bytes, or such a part of the
 * device's memory at most. */
static const uint64_t SLOT_BYTES = 64 << 20, SLOT_SHARE = 64;
/* Of the bus: for replacing experts; while there are free slots. */
static const double FILL_SHARE = 0.05, FIRST_FILL_SHARE = 0.25;

struct pf_offload {
    struct pf_model    *m;
    struct pf_solver    solver;
    struct pf_postfetch post;
    struct pf_vcache   *cache;
    bool                force_cpu;
    void               *pinned;          /* the store's slots, for copies; NULL: not yet */
    const char         *seen;            /* where the device sees them; NULL: nowhere */
    uint64_t            last_begin_ns, step_ns;      /* of decoding steps */
    uint64_t            gpu_since_ns;    /* up to when the timeline tells what the GPU did */

    /* the layer that is being served */
    const struct pf_offer  *offer;
    const struct pf_answer *answer;
    bool                    is_dealt;    /* the device was told what it may begin with */
    int                     served_il, n_served;
    int32_t                *served;      /* [PF_SHARE_ROWS * n_used] picks of it, for when the GPU has its answer */
    struct lesson {                      /* what its deal teaches, and that of the layer before, which is over: this
                                            one's picks have come */
        int      n, n_late;              /* n 0: nothing */
        struct pf_deal deal;
        uint64_t expert_bytes, begin_ns, end_ns;
    } lesson, earlier;
    int                     n_batches;   /* of its experts, up to here */

    /* prompts */
    char           *slots[MOST_SLOTS];
    uint64_t        memory, slot_bytes;              /* of the device, before anything was placed; of one slot */
    int             n_slots, turn;
    const uint8_t **on_device[3];        /* [n_expert] */
    int            *held;                /* [n_expert] */
    bool           *skip;                /* [n_expert] */
    struct ahead {                       /* what a slot already holds for a layer that comes: pinned in the store */
        int  n, il;                      /* n 0: nothing */
        int  experts[BATCH];
        const uint8_t *at[BATCH][3];     /* on the device */
        uint64_t begun_ns;
    } ahead[MOST_SLOTS];
    int             max_rows;
    size_t          host_bytes;
    uint64_t        stream_bytes;        /* that went through the slots */
    uint64_t        n_in_place, in_place_bytes;
    bool            measures;            /* deals are tried out; the cache takes no notice of picks */
    uint64_t        n_looks;
    float          *x, *y, *weights;     /* [max_rows][..] of the host, for transfers */
    int32_t        *picks;
};

/* ---- The timeline: what the host learns of the GPU --------------------------------------------------------------- */

/* Since the last time it was heard of, the GPU has been at this. */
static void note_gpu(struct pf_offload *f, const char *what, int il)
{
    if (!f->m->spans)
        return;
    uint64_t now = pf_now_ns();
    pf_spans_add(f->m->spans, &(struct pf_span){ what, PF_TRACK_GPU, il, -1, f->gpu_since_ns, now });
    f->gpu_since_ns = now;
}

/* Copies of several experts, queued then, are over. */
static void note_copies(struct pf_offload *f, const char *what, int il, uint64_t begun_ns)
{
    struct pf_span span = { what, PF_TRACK_COPIES, il, -1, begun_ns, pf_now_ns() };
    pf_spans_add_queued(f->m->spans, &span, 0, &f->post.over_ns);
}

/* ---- A step of a few rows: who does what ------------------------------------------------------------------------- */

/* The device reads an expert once for each of its picks, where it lies for good. */
static bool may_place(const struct pf_offload *f)
{
    return f->offer->in_place && f->seen && !f->force_cpu && f->offer->e->rows == 1 && pf_residency_keeps_all(f->m);
}

static struct pf_deal deal_out(struct pf_offload *f, int n, const uint64_t bytes[3])
{
    struct pf_solver_rules rules = { .post_fetch = f->post.opts.enable && !f->force_cpu, .whole = !f->force_cpu,
                                     .in_place = !f->is_dealt, .measures = f->measures,
                                     .max_transfers = f->post.opts.max_transfers, .cpu_limit = f->post.opts.cpu_limit };
    if (!f->measures)
        return pf_solver_deal(&f->solver, &rules, n, bytes[0] + bytes[1], bytes[2]);
    bool known;
    struct pf_deal deal = pf_solver_look(&f->solver, &rules, n, bytes[0] + bytes[1], bytes[2], &known);
    f->n_looks += !known;
    return deal;
}

struct batch {                           /* experts in RAM, and what becomes of each */
    struct pf_offload  *f;
    const int          *experts;
    int                 n;
    int                 n_placed;        /* so many first ones are read in place */
    struct pf_transfer *transfer[BATCH]; /* of the others; NULL: whole on the CPU */
    uint64_t            bytes[3];
    struct pf_deal      deal;
    bool                as_dealt;        /* no transfer was refused */
};

/* What the CPU takes for so many bytes, ns. */
static double cpu_ns(const struct pf_offload *f, uint64_t bytes)
{
    return f->solver.prices.cpu_bytes_s > 0 ? (double)bytes / f->solver.prices.cpu_bytes_s * 1e9 : 1e6;
}

/* Where the device sees what lies in the store's slots. */
static const void *seen_at(const struct pf_offload *f, const uint8_t *p)
{
    return f->seen + (p - (const uint8_t *)f->pinned);
}

static void set_picks(struct pf_offload *f, int expert, struct pf_handed h)
{
    const struct pf_experts_op *e = f->offer->e;
    for (int p = 0; p < e->rows * e->n_used; p++)
        if (e->picks[p] == expert)
            f->answer->pick[p] = h;
}

/* The device may begin with what it has itself. */
static void say_dealt(struct pf_offload *f)
{
    if (!f->is_dealt)
        f->m->backend->ops->share->dealt(f->m->backend, f->offer->il);
    f->is_dealt = true;
}

static void plan_transfers(struct pf_offload *f, struct batch *b)
{
    struct pf_deal deal = b->deal = deal_out(f, b->n, b->bytes);
    struct pf_expert_weight w[3];
    struct pf_experts_op op = *f->offer->e;
    pf_residency_tables(f->m, &op, w);
    b->n_placed = deal.in_place ? deal.n_whole : 0;
    for (int i = 0; i < b->n; i++) {
        struct pf_expert_parts parts;
        b->transfer[i] = NULL;
        if (i >= deal.n_whole + deal.n_down)
            continue;
        for (int p = 0; p < 3; p++) {
            parts.at[p] = w[p].data[b->experts[i]];
            parts.bytes[p] = b->bytes[p];
        }
        if (i < b->n_placed) {
            const void *at[3] = { seen_at(f, parts.at[0]), seen_at(f, parts.at[1]), seen_at(f, parts.at[2]) };
            set_picks(f, b->experts[i], (struct pf_handed){ PF_BY_PLACE, at[0], at[1], at[2] });
            continue;
        }
        b->transfer[i] = pf_postfetch_plan(&f->post, b->experts[i], i < deal.n_whole, &parts);
        b->as_dealt &= b->transfer[i] != NULL;
    }
    say_dealt(f);
    f->n_in_place += (uint64_t)b->n_placed;
    f->in_place_bytes += (uint64_t)b->n_placed * (b->bytes[0] + b->bytes[1] + b->bytes[2]);
}

/* While the CPU's threads have begun. */
static void start_transfers(void *ctx)
{
    struct batch *b = ctx;
    for (int i = 0; i < b->n; i++)
        if (b->transfer[i])
            b->as_dealt &= pf_postfetch_start(&b->f->post, b->transfer[i]);
}

/* Gate and up of all that are not copied whole, and down of those that are not copied at all. */
static pf_status compute_meanwhile(struct pf_offload *f, struct batch *b)
{
    pf_backend *cpu = f->m->cpu;
    int gate_up[BATCH], down[BATCH], n_gate_up = 0, n_down = 0;
    for (int i = b->n_placed; i < b->n; i++) {
        if (!b->transfer[i] || !b->transfer[i]->whole)
            gate_up[n_gate_up++] = b->experts[i];
        if (!b->transfer[i])
            down[n_down++] = b->experts[i];
    }
    uint64_t begin = pf_now_ns();
    PF_TRY(cpu->ops->experts_halves(cpu, &(struct pf_halves){ gate_up, down, n_gate_up, n_down, start_transfers, b }));
    double ns = (double)(pf_now_ns() - begin);
    double bytes = n_gate_up * (double)(b->bytes[0] + b->bytes[1]) + n_down * (double)b->bytes[2];
    bool alone = b->n_placed == 0;
    for (int i = 0; i < b->n; i++)
        alone &= !b->transfer[i];
    if (bytes > 0 && (alone || f->solver.prices.cpu_bytes_s <= 0))
        pf_price_learn(&f->solver.prices.cpu_bytes_s, bytes, ns);
    return PF_OK;
}

/* Looks at every transfer, the last one first; the CPU takes those that did not arrive. */
static pf_status settle(struct pf_offload *f, const struct batch *b)
{
    pf_backend *cpu = f->m->cpu;
    int gate_up[BATCH], down[BATCH], n_gate_up = 0, n_down = 0;
    for (int i = b->n; i-- > 0;) {
        struct pf_transfer *t = b->transfer[i];
        if (!t)
            continue;
        pf_postfetch_settle(&f->post, t, cpu_ns(f, b->bytes[2] + (t->whole ? b->bytes[0] + b->bytes[1] : 0)));
        if (f->post.opts.debug)
            pf_model_logf(f->m, PF_LOG_DEBUG, "layer %d expert %d: %s, %llu bytes, %s", f->offer->il, t->expert,
                          t->whole ? "whole" : "down", (unsigned long long)t->bytes,
                          t->state == PF_GPU_READY ? "on the GPU" : "late: on the CPU");
        if (t->state == PF_GPU_READY)
            continue;
        if (t->whole)
            gate_up[n_gate_up++] = b->experts[i];
        down[n_down++] = b->experts[i];
    }
    if (n_down == 0)
        return PF_OK;
    return cpu->ops->experts_halves(cpu, &(struct pf_halves){ .gate_up = gate_up, .down = down, .n_gate_up = n_gate_up,
                                                              .n_down = n_down });
}

/* What the device is told about a pick of the i-th expert of the batch; its numbers lie in the answer already. */
static struct pf_handed answer_of(const struct batch *b, int i)
{
    const struct pf_transfer *t = b->transfer[i];
    if (!t || t->state != PF_GPU_READY)
        return (struct pf_handed){ .by = PF_BY_HOST };
    return (struct pf_handed){ t->whole ? PF_BY_COPY : PF_BY_DOWN, t->gate, t->up, t->down };
}

static int count_late(const struct batch *b)
{
    int n = 0;
    for (int i = 0; i < b->n; i++)
        n += b->transfer[i] && b->transfer[i]->state != PF_GPU_READY;
    return n;
}

static void end_lesson(struct pf_offload *f)
{
    f->earlier = f->lesson;
    f->earlier.end_ns = pf_now_ns();
    f->lesson.n = 0;
}

static void learn(struct pf_offload *f)
{
    struct lesson *l = &f->earlier;
    if (l->n > 0)
        pf_solver_learn(&f->solver, l->n, l->deal, l->expert_bytes, (double)(l->end_ns - l->begin_ns), l->n_late);
    l->n = 0;
}

static pf_status serve_batch(void *ctx, const int *experts, int n)
{
    struct pf_offload *f = ctx;
    struct batch b = { .f = f, .experts = experts, .n = n, .as_dealt = true };
    uint64_t begin = pf_now_ns();
    pf_expert_bytes(f->m, f->offer->il, b.bytes);
    plan_transfers(f, &b);
    PF_TRY(compute_meanwhile(f, &b));
    PF_TRY(settle(f, &b));
    f->lesson = (struct lesson){ n, count_late(&b), b.deal, b.bytes[0] + b.bytes[1] + b.bytes[2], begin, 0 };
    if (f->n_batches++ > 0 || !b.as_dealt)   /* nobody knows what each of several took */
        f->lesson.n = 0;
    for (int i = b.n_placed; i < n; i++)
        set_picks(f, experts[i], answer_of(&b, i));
    return PF_OK;
}

static pf_status serve_picks(struct pf_offload *f, const struct pf_offer *offer, const struct pf_answer *answer)
{
    const struct pf_experts_op *e = offer->e;
    const bool *held = pf_vcache_held(f->cache, offer->il);
    struct pf_expert_weight w[3];
    struct pf_experts_op op = *e;
    int n_missed = 0;
    f->offer = offer;
    f->answer = answer;
    f->is_dealt = false;
    f->served_il = offer->il;
    f->n_served = e->rows * e->n_used;
    f->n_batches = 0;
    for (int p = 0; p < e->rows * e->n_used; p++) {
        f->served[p] = e->picks[p];
        answer->pick[p].by = held[e->picks[p]] ? PF_BY_DEVICE : PF_BY_HOST;
        n_missed += !held[e->picks[p]];
    }
    if (n_missed == 0 || !may_place(f))
        say_dealt(f);
    if (n_missed == 0)
        return PF_OK;
    pf_postfetch_begin(&f->post, offer->il);
    pf_residency_tables(f->m, &op, w);
    op.pick_act = answer->act;               /* the threads put numbers where the device reads them */
    op.pick_y = answer->y;
    PF_TRY(f->m->cpu->ops->experts_begin(f->m->cpu, &op));
    return pf_residency_run(f->m, offer->il, e, held, serve_batch, f);
}

/* When it is called, the GPU has come to the layer's picks; when it returns, it is waiting, or still at the experts it
 * holds. In a replayed step nobody else says which layer this is. */
static pf_status serve(void *ctx, const struct pf_offer *offer, const struct pf_answer *answer)
{
    struct pf_offload *f = ctx;
    end_lesson(f);
    note_gpu(f, "layer", offer->il);
    pf_spans_enter(f->m->spans, "experts", offer->il);
    PF_TRY(serve_picks(f, offer, answer));
    note_gpu(f, "held experts, waiting", offer->il);
    pf_spans_enter(f->m->spans, "waiting for the GPU", offer->il);
    return PF_OK;
}

static void served(void *ctx)
{
    struct pf_offload *f = ctx;
    for (int p = 0; p < f->n_served && !f->measures; p++)
        pf_vcache_use(f->cache, f->served_il, f->served[p]);
    learn(f);
    pf_postfetch_account(&f->post);
    pf_solver_prepare(&f->solver);
}

/* ---- Prompts: a layer's experts pass through VRAM in groups ------------------------------------------------------ */

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

static uint64_t most_between(uint64_t bytes)
{
    return bytes / 64;
}

/* Room that a part may need in a slot. */
static uint64_t part_room(uint64_t bytes)
{
    return pf_share_room(bytes + most_between(bytes)) + 256;
}

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
        if (last && part[i].from >= end && (uint64_t)(part[i].from - end) <= most_between(part[i].bytes)) {
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
static pf_status fill_slot(struct pf_offload *f, int slot, int n, const uint8_t *(*parts)[3], const uint64_t bytes[3],
                           const uint8_t *(*at)[3])
{
    pf_backend *device = f->m->backend;
    struct pf_piece pieces[3 * BATCH];
    struct part part[3 * BATCH];
    for (int i = 0; i < 3 * n; i++) {
        part[i] = (struct part){ parts[i / 3][i % 3], bytes[i % 3], &at[i / 3][i % 3] };
        f->stream_bytes += bytes[i % 3];
    }
    int n_pieces = join_parts(part, 3 * n, f->slots[slot], pieces);
    return device->ops->share->fetch(device, PROMPT_TICKET + slot, pieces, n_pieces);
}

static void name_experts(struct pf_offload *f, const int *experts, int n, const uint8_t *(*at)[3])
{
    for (int i = 0; i < n; i++)
        for (int p = 0; p < 3; p++)
            f->on_device[p][experts[i]] = at[i][p];
}

static uint64_t slot_room(const uint64_t bytes[3])
{
    return part_room(bytes[0]) + part_room(bytes[1]) + part_room(bytes[2]);
}

static int per_slot_of(const struct pf_offload *f, const uint64_t bytes[3])
{
    int n = (int)(f->slot_bytes / slot_room(bytes));
    return n < BATCH ? n : BATCH;
}

static pf_status run_slot(struct pf_offload *f, int slot, const int *experts, int n)
{
    pf_backend *device = f->m->backend;
    PF_TRY(device->ops->share->use(device, PROMPT_TICKET + slot));
    PF_TRY(device->ops->experts_part(device, experts, n));
    return device->ops->share->release(device, PROMPT_TICKET + slot);
}

static pf_status stream_batch(void *ctx, const int *experts, int n)
{
    struct pf_offload *f = ctx;
    pf_backend *device = f->m->backend;
    struct pf_expert_weight w[3];
    struct pf_experts_op op = *f->offer->e;
    uint64_t bytes[3];
    pf_status st = PF_OK;
    uint64_t begun_ns = pf_now_ns();
    pf_expert_bytes(f->m, f->offer->il, bytes);
    pf_residency_tables(f->m, &op, w);
    int per_slot = per_slot_of(f, bytes);
    for (int i = 0, k; st == PF_OK && i < n; i += k) {
        int slot = f->turn++ % f->n_slots;
        const uint8_t *parts[BATCH][3], *at[BATCH][3];
        k = n - i < per_slot ? n - i : per_slot;
        for (int j = 0; j < k; j++)
            for (int p = 0; p < 3; p++)
                parts[j][p] = w[p].data[experts[i + j]];
        st = fill_slot(f, slot, k, parts, bytes, at);
        name_experts(f, experts + i, k, at);
        if (st == PF_OK)
            st = run_slot(f, slot, experts + i, k);
    }
    for (int s = 0; s < f->n_slots; s++)        /* the store may take the experts' places back only now */
        if (device->ops->share->fetch_wait(device, PROMPT_TICKET + s) == PF_FETCH_FAILED && st == PF_OK)
            PF_FAIL(PF_EDEVICE, "a copy of experts to the GPU failed in layer %d", f->offer->il);
    note_copies(f, "experts", f->offer->il, begun_ns);
    return st;
}

/* The next layer's first experts are copied while attention has the device: a prompt touches all of them. */
static void fill_ahead(struct pf_offload *f, int il, int rows)
{
    struct pf_model *m = f->m;
    uint64_t bytes[3];
    if (il >= m->n_layer || !m->layers[il].is_moe || rows * m->n_used < ALL_TOUCHED * m->n_expert)
        return;
    const bool *held = pf_vcache_held(f->cache, il);
    pf_expert_bytes(m, il, bytes);
    for (int s = 0, x = 0; s < f->n_slots; s++) {
        int slot = f->turn++ % f->n_slots, per_slot = per_slot_of(f, bytes);
        struct ahead *a = &f->ahead[slot];
        const uint8_t *parts[BATCH][3];
        a->il = il;
        a->begun_ns = pf_now_ns();
        for (; x < m->n_expert && a->n < per_slot; x++)
            if (!held[x] && pf_residency_take(m, il, x, parts[a->n]))
                a->experts[a->n++] = x;
        if (a->n > 0 && fill_slot(f, slot, a->n, parts, bytes, a->at) < 0) {
            for (int i = 0; i < a->n; i++)
                pf_residency_drop(m, il, a->experts[i]);
            a->n = 0;
        }
    }
}

/* Waits for what was copied ahead into a slot and lets go of its pins. */
static void drop_ahead(struct pf_offload *f, int slot)
{
    struct ahead *a = &f->ahead[slot];
    if (a->n > 0) {
        f->m->backend->ops->share->fetch_wait(f->m->backend, PROMPT_TICKET + slot);
        note_copies(f, "experts ahead", a->il, a->begun_ns);
    }
    for (int i = 0; i < a->n; i++)
        pf_residency_drop(f->m, a->il, a->experts[i]);
    a->n = 0;
}

/* Multiplies with what was copied ahead for this layer; f->skip learns of it. */
static pf_status run_ahead(struct pf_offload *f, int il)
{
    for (int s = 0; s < f->n_slots; s++) {
        int slot = f->turn++ % f->n_slots;
        struct ahead *a = &f->ahead[slot];
        pf_status st = PF_OK;
        assert(a->n == 0 || a->il == il);    /* a layer is always followed by the one that it was filled for */
        name_experts(f, a->experts, a->n, a->at);
        for (int i = 0; i < a->n; i++)
            f->skip[a->experts[i]] = true;
        if (a->n > 0)
            st = run_slot(f, slot, a->experts, a->n);
        drop_ahead(f, slot);
        PF_TRY(st);
    }
    return PF_OK;
}

/* The picked experts that the device holds anyway. */
static pf_status run_held(struct pf_offload *f, int il, const struct pf_experts_op *e, const bool *held)
{
    int n = 0;
    for (int p = 0; p < e->rows * e->n_used; p++) {
        int x = e->picks[p];
        if (!held[x] || f->on_device[0][x])
            continue;
        const uint8_t *at[3];
        pf_vcache_at(f->cache, il, x, at);
        for (int i = 0; i < 3; i++)
            f->on_device[i][x] = at[i];
        f->held[n++] = x;
    }
    return n > 0 ? f->m->backend->ops->experts_part(f->m->backend, f->held, n) : PF_OK;
}

static pf_status prompt_on_device(struct pf_offload *f, int il, const struct pf_experts_op *e)
{
    pf_backend *device = f->m->backend;
    struct pf_expert_weight gate = *e->gate, up = *e->up, down = *e->down;
    struct pf_experts_op op = *e, shown = *e;
    const bool *held = pf_vcache_held(f->cache, il);
    PF_TRY(device->ops->download(device, f->picks, e->picks, (size_t)e->rows * (size_t)e->n_used * sizeof *f->picks));
    PF_TRY(device->ops->finish(device));
    note_gpu(f, "layer", il);
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
    PF_TRY(device->ops->experts_begin(device, &op));
    memcpy(f->skip, held, (size_t)e->n_expert * sizeof *held);
    PF_TRY(run_held(f, il, &shown, held));
    PF_TRY(run_ahead(f, il));
    PF_TRY(pf_residency_run(f->m, il, &shown, f->skip, stream_batch, f));
    PF_TRY(device->ops->experts_end(device));
    fill_ahead(f, il + 1, e->rows);
    return PF_OK;
}

static pf_status prompt_on_cpu(struct pf_offload *f, int il, const struct pf_experts_op *e)
{
    pf_backend *device = f->m->backend;
    size_t rows = (size_t)e->rows, n_picks = rows * (size_t)e->n_used,
        y_bytes = rows * (size_t)e->down->n_out * sizeof(float);
    struct pf_experts_op op = *e;
    PF_TRY(device->ops->download(device, f->picks, e->picks, n_picks * sizeof *f->picks));
    PF_TRY(device->ops->download(device, f->weights, e->weights, n_picks * sizeof *f->weights));
    PF_TRY(device->ops->download(device, f->x, e->x, rows * (size_t)e->gate->n_in * sizeof *f->x));
    PF_TRY(device->ops->finish(device));
    note_gpu(f, "layer", il);
    op.picks = f->picks;
    op.weights = f->weights;
    op.x = f->x;
    op.y = f->y;
    PF_TRY(pf_residency_experts(f->m, f->m->cpu, il, &op));
    return device->ops->upload(device, e->y, f->y, y_bytes);
}

pf_status pf_offload_offer(struct pf_model *m, int il, const struct pf_experts_op *e)
{
    return e->rows <= PF_SHARE_ROWS ? m->backend->ops->share->offer(m->backend, il, e) : PF_OK;
}

pf_status pf_offload_experts(struct pf_model *m, int il, const struct pf_experts_op *e)
{
    struct pf_offload *f = m->offload;
    if (e->rows <= PF_SHARE_ROWS)
        return m->backend->ops->share->experts(m->backend, il, e);
    if (f->force_cpu)
        return prompt_on_cpu(f, il, e);
    pf_status st = prompt_on_device(f, il, e);
    if (st != PF_EDEVICE)
        return st;
    f->post.n_fallbacks++;
    for (int s = 0; s < f->n_slots; s++)        /* what else was copied for this layer is not for the next */
        drop_ahead(f, s);
    return prompt_on_cpu(f, il, e);          /* a copy failed; if it was more, this fails too */
}

/* ---- Between steps ----------------------------------------------------------------------------------------------- */

pf_status pf_offload_between(struct pf_model *m, int rows)
{
    struct pf_offload *f = m->offload;
    struct pf_vcache_stats cache;
    if (!f)
        return PF_OK;
    for (int s = 0; s < f->n_slots; s++)        /* of a step that failed */
        drop_ahead(f, s);
    f->lesson.n = 0;                         /* the last layer's: nobody knows when it was over */
    uint64_t now = f->gpu_since_ns = pf_now_ns();
    if (f->last_begin_ns && rows == 1)
        f->step_ns = now - f->last_begin_ns;
    f->last_begin_ns = rows == 1 ? now : 0;
    if (rows > PF_SHARE_ROWS || f->force_cpu)
        return PF_OK;
    pf_vcache_stats(f->cache, &cache);
    double rate = f->solver.prices.pcie_bytes_s > 0 ? f->solver.prices.pcie_bytes_s : 10e9;
    double share = cache.n_held < cache.n_slots ? FIRST_FILL_SHARE : FILL_SHARE;
    double ns = f->step_ns && f->step_ns < 1000000000 ? (double)f->step_ns : 1e7;
    return pf_vcache_between(f->cache, (uint64_t)(rate * share * ns * 1e-9) + 1);
}

void pf_offload_ended(struct pf_model *m, bool well)
{
    struct pf_offload *f = m->offload;
    if (!f)
        return;
    note_gpu(f, "output", -1);
    if (well && m->n_moe == 1) {             /* there is no other layer whose picks would end its lesson */
        end_lesson(f);
        learn(f);
    }
}

/* ---- Opening and closing ----------------------------------------------------------------------------------------- */

static pf_status place_dense(struct pf_model *m)
{
    for (uint64_t i = 0; i < pf_gguf_n_tensors(m->file); i++) {
        const struct pf_tensor *t = pf_gguf_tensor_at(m->file, i);
        if (!pf_residency_streams(m, t))
            PF_TRY(m->backend->ops->place(m->backend, t->data, t->n_bytes));
    }
    return pf_model_place_extra(m);
}

/* The largest expert of any layer. */
static void largest_parts(const struct pf_model *m, uint64_t bytes[3])
{
    bytes[0] = bytes[1] = bytes[2] = 0;
    for (int il = 0; il < m->n_layer; il++) {
        uint64_t here[3];
        if (!m->layers[il].is_moe)
            continue;
        pf_expert_bytes(m, il, here);
        for (int i = 0; i < 3; i++)
            bytes[i] = here[i] > bytes[i] ? here[i] : bytes[i];
    }
}

static pf_status alloc_device(struct pf_model *m, uint64_t bytes, char **out)
{
    void *p;
    PF_TRY(m->backend->ops->buf_alloc(m->backend, (size_t)bytes, false, &p));
    *out = p;
    return PF_OK;
}

static pf_status open_memory(struct pf_offload *f)
{
    struct pf_model *m = f->m;
    uint64_t bytes[3];
    largest_parts(m, bytes);
    uint64_t one = pf_expert_room(bytes);
    int most = f->post.opts.max_transfers < m->n_used ? f->post.opts.max_transfers : m->n_used;
    uint64_t asked = (uint64_t)f->post.opts.scratchpad_mb * 1000000;
    f->post.scratchpad_bytes = asked ? asked : one * (uint64_t)most;
    uint64_t in_slot = slot_room(bytes), half_layer = in_slot * (uint64_t)((m->n_expert + 1) / 2);
    uint64_t limit = f->memory / SLOT_SHARE < SLOT_BYTES ? f->memory / SLOT_SHARE : SLOT_BYTES;
    f->slot_bytes = half_layer < limit ? half_layer : in_slot > limit ? in_slot : limit;
    /* One is multiplied with while the other is filled; more keep the bus busy. */
    f->n_slots = in_slot > limit ? 2 : MOST_SLOTS;
    if (f->force_cpu)
        return PF_OK;
    PF_TRY(alloc_device(m, f->post.scratchpad_bytes, &f->post.scratchpad));
    for (int i = 0; i < f->n_slots; i++)
        PF_TRY(alloc_device(m, f->slot_bytes, &f->slots[i]));
    return PF_OK;
}

static pf_status open_tables(struct pf_offload *f)
{
    size_t n = (size_t)f->m->n_expert;
    f->served = pf_alloc_array(PF_MEM_MODEL, (size_t)PF_SHARE_ROWS * (size_t)f->m->n_used, sizeof *f->served);
    f->held = pf_alloc_array(PF_MEM_MODEL, n, sizeof *f->held);
    f->skip = pf_alloc_array(PF_MEM_MODEL, n, sizeof *f->skip);
    for (int i = 0; i < 3; i++) {
        f->on_device[i] = pf_alloc_array(PF_MEM_MODEL, n, sizeof *f->on_device[i]);
        if (!f->on_device[i] || !f->served || !f->held || !f->skip)
            PF_FAIL(PF_ENOMEM, "no memory for tables of %zu experts", n);
    }
    return pf_vcache_open(&f->cache, f->m);
}

static pf_status open_parts(struct pf_offload *f, const struct pf_model_opts *o, const struct pf_residency_setup *setup)
{
    struct pf_model *m = f->m;
    const struct pf_share_ops *share = m->backend->ops->share;
    struct pf_share_sizes sizes = { .n_layer = m->n_layer, .n_expert = m->n_expert, .n_used = m->n_used,
                                    .n_embd = m->n_embd, .n_ff = m->n_ff_expert,
                                    .one_stream = !o->postfetch.dedicated_streams };
    f->memory = m->backend->ops->room(m->backend);
    PF_TRY(pf_residency_open(m, o, setup));
    PF_TRY(place_dense(m));
    PF_TRY(share->open(m->backend, &sizes, serve, served, f));
    PF_TRY(open_tables(f));
    PF_TRY(open_memory(f));
    size_t bytes;
    f->pinned = pf_residency_arena(m, &bytes);
    f->seen = share->pin(m->backend, f->pinned, bytes);
    m->cpu->ops->alert(m->cpu, true);
    return PF_OK;
}

pf_status pf_offload_open(struct pf_model *m, const struct pf_model_opts *o, const struct pf_residency_setup *setup)
{
    struct pf_offload *f = pf_alloc(PF_MEM_MODEL, sizeof *f);
    if (!f)
        PF_FAIL(PF_ENOMEM, "no memory for sharing experts with the GPU");
    m->offload = f;
    f->m = m;
    f->force_cpu = o->postfetch.force_cpu;
    f->post.device = m->backend;
    f->post.opts = o->postfetch;
    f->post.prices = &f->solver.prices;
    f->post.spans = m->spans;
    pf_status st = open_parts(f, o, setup);
    if (st < 0)
        pf_offload_close(m);
    return st;
}

void pf_offload_close(struct pf_model *m)
{
    struct pf_offload *f = m->offload;
    if (!f)
        return;
    const struct pf_backend_ops *ops = m->backend->ops;
    m->cpu->ops->alert(m->cpu, false);
    for (int t = 0; f->cache && t < PF_SHARE_TICKETS; t++)
        ops->share->fetch_wait(m->backend, t);       /* what came too late for its layer may be under way even now */
    for (int s = 0; s < f->n_slots; s++)
        drop_ahead(f, s);
    pf_vcache_close(&f->cache);
    if (f->pinned)
        ops->share->unpin(m->backend, f->pinned);
    ops->buf_free(m->backend, f->post.scratchpad, f->post.scratchpad_bytes, false);
    for (int i = 0; i < f->n_slots; i++)
        ops->buf_free(m->backend, f->slots[i], f->slot_bytes, false);
    ops->buf_free(m->backend, f->x, f->host_bytes, true);
    for (int i = 0; i < 3; i++)
        pf_free(f->on_device[i]);
    pf_free(f->served);
    pf_free(f->held);
    pf_free(f->skip);
    pf_free(f);
    m->offload = NULL;
}

pf_status pf_offload_reserve(struct pf_model *m, const struct pf_backend_sizes *sizes)
{
    struct pf_offload *f = m->offload;
    size_t rows = (size_t)sizes->max_rows, picks = (size_t)sizes->max_picks;
    void *p;
    PF_TRY(m->cpu->ops->reserve(m->cpu, sizes));
    if (sizes->max_rows <= f->max_rows)
        return PF_OK;
    size_t bytes = (2 * rows * (size_t)m->n_embd + 2 * picks) * sizeof(float);
    PF_TRY(m->backend->ops->buf_alloc(m->backend, bytes, true, &p));
    m->backend->ops->buf_free(m->backend, f->x, f->host_bytes, true);
    f->host_bytes = bytes;
    f->max_rows = sizes->max_rows;
    f->x = p;
    f->y = f->x + rows * (size_t)m->n_embd;
    f->weights = f->y + rows * (size_t)m->n_embd;
    f->picks = (int32_t *)(void *)(f->weights + picks);
    return PF_OK;
}

void pf_offload_make_room(struct pf_model *m, uint64_t bytes)
{
    if (m->offload)
        pf_vcache_make_room(m->offload->cache, bytes);
}

void pf_offload_use_room(struct pf_model *m)
{
    struct pf_offload *f = m->offload;
    if (f && !f->force_cpu)
        pf_vcache_grow(f->cache);
}

pf_status pf_offload_preload(struct pf_model *m)
{
    return m->offload ? pf_vcache_fill(m->offload->cache) : PF_OK;
}

/* ---- What was learned -------------------------------------------------------------------------------------------- */

uint64_t pf_offload_measure(struct pf_model *m, bool on)
{
    struct pf_offload *f = m->offload;
    uint64_t n = f ? f->n_looks : 0;
    if (f) {
        f->measures = on;
        f->n_looks = 0;
    }
    return n;
}

bool pf_offload_has_learned(const struct pf_model *m)
{
    return m->offload && m->offload->solver.prices.cpu_bytes_s > 0;
}

void pf_offload_tell(const struct pf_model *m, struct pf_learned *out)
{
    *out = (struct pf_learned){ 0 };
    if (m->offload)
        pf_solver_tell(&m->offload->solver, out);
}

void pf_offload_recall(struct pf_model *m, const struct pf_learned *l)
{
    if (m->offload)
        pf_solver_recall(&m->offload->solver, l);
}

/* ---- Statistics -------------------------------------------------------------------------------------------------- */

void pf_offload_stats(const struct pf_model *m, struct pf_stats *out)
{
    const struct pf_offload *f = m->offload;
    struct pf_vcache_stats s;
    if (!f)
        return;
    pf_vcache_stats(f->cache, &s);
    out->vram_slots = s.n_slots;
    out->vram_slot_bytes = s.bytes;
    out->vram_transit_bytes = f->force_cpu ? 0 : f->post.scratchpad_bytes + f->n_slots * f->slot_bytes;
    out->vram_hits = s.n_hits;
    out->n_transfers = f->post.n_transfers;
    out->transfer_bytes = f->post.transfer_bytes;
    out->transfer_ns = f->post.transfer_ns;
    out->transfer_hidden_ns = f->post.hidden_ns;
    out->n_in_place = f->n_in_place;
    out->in_place_bytes = f->in_place_bytes;
    out->n_fallbacks = f->post.n_fallbacks;
    out->stream_bytes = f->stream_bytes;
    struct pf_handoff_stats h;
    m->backend->ops->share->handoffs(m->backend, &h);
    out->handoff_p50_ns = h.p50_ns;
    out->handoff_p95_ns = h.p95_ns;
    out->gpu_busy_ns = m->step_ns > h.waited_ns ? m->step_ns - h.waited_ns : 0;
}

void pf_offload_stats_reset(struct pf_model *m)
{
    struct pf_offload *f = m->offload;
    if (!f)
        return;
    f->stream_bytes = f->n_in_place = f->in_place_bytes = 0;
    f->post.n_transfers = f->post.transfer_bytes = f->post.transfer_ns = f->post.hidden_ns = f->post.n_fallbacks = 0;
    pf_vcache_stats_reset(f->cache);
    m->backend->ops->share->handoffs_reset(m->backend);
}
