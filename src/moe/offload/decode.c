/* A step of a few rows: each picked expert is done by the device that holds it, or that reads it in RAM, by the CPU, or
 * by the device, or both, after a copy. The device shows a layer's picks (serve), and waits for the answer:
 *
 *     serve --> serve_picks --> pf_residency_run --> serve_batch, for experts as they are in RAM
 *                                                      plan_transfers      solver.c deals, postfetch.c has room
 *                                                      compute_meanwhile   copies begin while the CPU's threads compute
 *                                                      settle              copies that are late fall to the CPU
 *                                                      answer_of           what the device is told of each pick */
#include "moe/offload/shared.h"

/* The device reads an expert once for each of its picks, where it lies for good. */
static bool may_place(const struct pf_offload *f)
{
    bool seen = true;
    PF_FOR_LANES(f, k)
        seen &= f->lanes[k].seen != NULL;
    return f->offer->in_place && seen && !f->force_cpu && f->offer->e->rows == 1 && pf_residency_keeps_all(f->ram);
}

static struct pf_deal deal_out(struct pf_offload *f, int n, const uint64_t bytes[3])
{
    struct pf_solver_rules rules = { .post_fetch = f->opts.enable && !f->force_cpu, .whole = !f->force_cpu,
                                     .in_place = !f->is_dealt, .measures = f->measures,
                                     .max_transfers = f->opts.max_transfers, .cpu_limit = f->opts.cpu_limit };
    if (!f->measures)
        return pf_solver_deal(&f->solver, &rules, n, bytes[0] + bytes[1], bytes[2]);
    bool known;
    struct pf_deal deal = pf_solver_look(&f->solver, &rules, n, bytes[0] + bytes[1], bytes[2], &known);
    f->n_looks += !known;
    return deal;
}

struct batch {                           /* experts in RAM, and how each is computed */
    struct pf_offload  *f;
    const int          *experts;
    int                 n;
    int                 n_placed;        /* the first n_placed are read in place */
    struct pf_transfer *transfer[PF_RESIDENCY_BATCH]; /* transfers of the others; NULL: whole on the CPU */
    int                 lane[PF_RESIDENCY_BATCH];    /* by which each crosses */
    uint64_t            bytes[3];
    struct pf_deal      deal;
    bool                as_dealt;        /* no transfer was refused */
};

/* ns that the CPU takes for so many bytes of weights. */
static double cpu_ns(const struct pf_offload *f, uint64_t bytes)
{
    return f->solver.prices.cpu_bytes_s > 0 ? (double)bytes / f->solver.prices.cpu_bytes_s * 1e9 : 1e6;
}

/* Where the device sees what lies in the store's slots. */
static const void *seen_at(const struct pf_offload *f, int lane, const uint8_t *p)
{
    return f->lanes[lane].seen + (p - f->arena);
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
        f->base.device->ops->share->dealt(f->base.device, f->offer->il);
    f->is_dealt = true;
}

static void plan_transfers(struct pf_offload *f, struct batch *b)
{
    struct pf_deal deal = b->deal = deal_out(f, b->n, b->bytes);
    struct pf_expert_weight w[3];
    struct pf_experts_op op = *f->offer->e;
    pf_residency_tables(f->ram, &op, w);
    b->n_placed = deal.in_place ? deal.n_whole : 0;
    for (int i = 0; i < b->n; i++) {
        struct pf_expert_parts parts;
        b->transfer[i] = NULL;
        if (i >= deal.n_whole + deal.n_down)
            continue;
        int lane = b->lane[i] = pf_next_lane(f);
        for (int p = 0; p < 3; p++) {
            parts.at[p] = w[p].data[b->experts[i]];
            parts.bytes[p] = b->bytes[p];
        }
        if (i < b->n_placed) {
            set_picks(f, b->experts[i], (struct pf_handed){ PF_BY_PLACE, lane, seen_at(f, lane, parts.at[0]),
                                                            seen_at(f, lane, parts.at[1]),
                                                            seen_at(f, lane, parts.at[2]) });
            continue;
        }
        b->transfer[i] = pf_postfetch_plan(&f->lanes[lane].post, b->experts[i], i < deal.n_whole, &parts);
        b->as_dealt &= b->transfer[i] != NULL;
    }
    say_dealt(f);
    pf_count(&f->n_in_place, (uint64_t)b->n_placed);
    pf_count(&f->in_place_bytes, (uint64_t)b->n_placed * (b->bytes[0] + b->bytes[1] + b->bytes[2]));
}

/* While the CPU's threads have begun. */
static void start_transfers(void *ctx)
{
    struct batch *b = ctx;
    for (int i = 0; i < b->n; i++)
        if (b->transfer[i])
            b->as_dealt &= pf_postfetch_start(&b->f->lanes[b->lane[i]].post, b->transfer[i]);
}

/* Computes gate and up of all experts that are not copied whole, and down of experts that are not copied at all. */
static pf_status compute_meanwhile(struct pf_offload *f, struct batch *b)
{
    pf_backend *cpu = f->base.m->cpu;
    int gate_up[PF_RESIDENCY_BATCH], down[PF_RESIDENCY_BATCH], n_gate_up = 0, n_down = 0;
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

/* Looks at every transfer, the last one first; the CPU computes experts whose transfer did not arrive. */
static pf_status settle(struct pf_offload *f, const struct batch *b)
{
    pf_backend *cpu = f->base.m->cpu;
    int gate_up[PF_RESIDENCY_BATCH], down[PF_RESIDENCY_BATCH], n_gate_up = 0, n_down = 0;
    for (int i = b->n; i-- > 0;) {
        struct pf_transfer *t = b->transfer[i];
        if (!t)
            continue;
        pf_postfetch_settle(&f->lanes[b->lane[i]].post, t,
                            cpu_ns(f, b->bytes[2] + (t->whole ? b->bytes[0] + b->bytes[1] : 0)));
        if (f->opts.debug)
            pf_model_logf(f->base.m, PF_LOG_DEBUG, "layer %d expert %d: %s, %llu bytes, %s", f->offer->il, t->expert,
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

/* The answer to a pick of the i-th expert of the batch; outputs and activations are in answer->y and act already. */
static struct pf_handed answer_of(const struct batch *b, int i)
{
    const struct pf_transfer *t = b->transfer[i];
    if (!t || t->state != PF_GPU_READY)
        return (struct pf_handed){ .by = PF_BY_HOST };
    return (struct pf_handed){ t->whole ? PF_BY_COPY : PF_BY_DOWN, b->lane[i], t->gate, t->up, t->down };
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
    struct pf_lesson *l = &f->earlier;
    if (l->n > 0)
        pf_solver_learn(&f->solver, l->n, l->deal, l->expert_bytes, (double)(l->end_ns - l->begin_ns), l->n_late);
    l->n = 0;
}

static pf_status serve_batch(void *ctx, const int *experts, int n)
{
    struct pf_offload *f = ctx;
    struct batch b = { .f = f, .experts = experts, .n = n, .as_dealt = true };
    uint64_t begin = pf_now_ns();
    pf_expert_bytes(f->base.m, f->offer->il, b.bytes);
    plan_transfers(f, &b);
    PF_TRY(compute_meanwhile(f, &b));
    PF_TRY(settle(f, &b));
    f->lesson = (struct pf_lesson){ n, count_late(&b), b.deal, b.bytes[0] + b.bytes[1] + b.bytes[2], begin, 0 };
    if (f->n_batches++ > 0 || !b.as_dealt)   /* nobody knows what each of several took */
        f->lesson.n = 0;
    for (int i = b.n_placed; i < n; i++)
        set_picks(f, experts[i], answer_of(&b, i));
    return PF_OK;
}

static pf_status serve_picks(struct pf_offload *f, const struct pf_offer *offer, const struct pf_answer *answer)
{
    const struct pf_experts_op *e = offer->e;
    struct pf_expert_weight w[3];
    struct pf_experts_op op = *e;
    int n_missed = 0;
    f->offer = offer;
    f->answer = answer;
    f->is_dealt = false;
    f->served_il = offer->il;
    f->n_served = e->rows * e->n_used;
    f->n_batches = 0;
    pf_offload_find_held(f, offer->il);
    for (int p = 0; p < e->rows * e->n_used; p++) {
        int holder = pf_offload_holder(f, offer->il, e->picks[p]);
        f->served[p] = e->picks[p];
        answer->pick[p].by = holder >= 0 ? PF_BY_DEVICE : PF_BY_HOST;
        answer->pick[p].card = holder >= 0 ? holder : 0;
        n_missed += holder < 0;
    }
    if (n_missed == 0 || !may_place(f))
        say_dealt(f);
    if (n_missed == 0)
        return PF_OK;
    PF_FOR_LANES(f, k)
        pf_postfetch_begin(&f->lanes[k].post, offer->il);
    pf_residency_tables(f->ram, &op, w);
    op.pick_act = answer->act;               /* the threads put numbers where the device reads them */
    op.pick_y = answer->y;
    PF_TRY(f->base.m->cpu->ops->experts_begin(f->base.m->cpu, &op));
    return pf_residency_run(f->ram, offer->il, e, f->is_held, serve_batch, f);
}

struct attending {
    struct pf_offload           *f;
    int                          il;
    const struct pf_partials_op *asked;
};

/* Far keys and values are no part of what the experts of the layer before took, but the wait for their queries is. */
static pf_status await_queries(void *ctx)
{
    const struct attending *a = ctx;
    struct pf_offload *f = a->f;
    if (a->asked->await)
        PF_TRY(a->asked->await(a->asked->ctx));
    if (f->lesson.n > 0)
        end_lesson(f);
    pf_offload_note(f, "layer", a->il);
    pf_spans_enter(f->base.m->spans, "far keys and values", a->il);
    return PF_OK;
}

pf_status pf_decode_attend(void *ctx, int il, int part, const struct pf_partials_op *p)
{
    struct pf_offload *f = ctx;
    pf_backend *cpu = f->base.m->cpu;
    struct attending a = { f, il, p };
    struct pf_partials_op mine = *p;
    mine.first = f->far_range[part].first;
    mine.end = f->far_range[part].end;
    mine.await = await_queries;
    mine.ctx = &a;
    PF_TRY(cpu->ops->partials(cpu, &mine));
    pf_count(&f->far_bytes, (uint64_t)(mine.end - mine.first) * pf_kv_chunk_bytes(p->kv));
    pf_offload_note(f, "attention, waiting", il);
    pf_spans_enter(f->base.m->spans, "waiting for the GPU", il);
    return PF_OK;
}

/* When it is called, the GPU has come to the layer's picks; when it returns, it is waiting, or still at the experts it
 * holds. In a replayed step nobody else says which layer this is. */
pf_status pf_decode_serve(void *ctx, const struct pf_offer *offer, const struct pf_answer *answer)
{
    struct pf_offload *f = ctx;
    if (f->lesson.n > 0)                     /* attention has not ended it */
        end_lesson(f);
    pf_offload_note(f, "layer", offer->il);
    pf_spans_enter(f->base.m->spans, "experts", offer->il);
    PF_TRY(serve_picks(f, offer, answer));
    pf_offload_note(f, "held experts, waiting", offer->il);
    pf_spans_enter(f->base.m->spans, "waiting for the GPU", offer->il);
    return PF_OK;
}

void pf_decode_served(void *ctx)
{
    struct pf_offload *f = ctx;
    PF_FOR_LANES(f, k)
        pf_vcache_go_on(f->lanes[k].cache);
    for (int p = 0; p < f->n_served; p++) {
        struct pf_vcache *cache = f->lanes[f->home ? f->home[f->served[p]] : 0].cache;
        (f->measures ? pf_vcache_warm : pf_vcache_use)(cache, f->served_il, f->served[p]);
    }
    learn(f);
    PF_FOR_LANES(f, k)
        pf_postfetch_account(&f->lanes[k].post);
    pf_solver_prepare(&f->solver);
}

void pf_decode_ended(struct pf_offload *f)
{
    end_lesson(f);
    learn(f);
}
