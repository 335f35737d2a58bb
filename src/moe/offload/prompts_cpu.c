/* The CPU's part of a prompt of few rows: some of the layer's experts that the device does not hold, while others cross
 * the bus. What it puts out the device takes from main memory, before it adds up the picks.
 *
 *     host      | picks | sends for copies | computes its experts     | waits |
 *     bus        ==|==== | ==== ==== ==== ====                         |
 *     device     .. held, ahead | as they arrive ..                    | takes the CPU's | adds up
 *
 * Only where RAM has all experts for good: what the drive brings is waited for expert by expert. */
#include "moe/offload/shared.h"

#include <stdlib.h>

#include "base/pf_mem.h"

static uint64_t expert_bytes(const struct pf_offload *f, int il)
{
    uint64_t bytes[3];
    pf_expert_bytes(f->base.m, il, bytes);
    return bytes[0] + bytes[1] + bytes[2];
}

bool pf_prompts_ask_cpu(struct pf_offload *f, int il, int rows)
{
    const struct pf_backend_ops *cpu = f->base.m->cpu->ops;
    int n = f->cpu.n_missed[il];
    f->cpu.n = 0;
    f->cpu.n_bus = -1;
    f->cpu.may = !f->among && rows <= f->cpu.max_rows && f->opts.cpu_limit != 0 && cpu->experts_halves &&
                 f->base.device->ops->experts_given && pf_residency_keeps_all(f->ram);
    return f->cpu.may && (n < 0 || pf_prompt_pays(&f->cpu.prices, rows, n, expert_bytes(f, il)));
}

/* Bytes that were sent for ahead and are not there yet. */
static uint64_t backlog(const struct pf_offload *f, int il)
{
    const struct pf_lane *l = &f->lanes[0];
    uint64_t n = 0;
    for (int s = 0; s < l->n_slots; s++)
        if (l->ahead[s].n > 0 && l->device->ops->share->fetch_state(l->device, pf_slot_ticket(s)) == PF_FETCH_IN_FLIGHT)
            n += (uint64_t)l->ahead[s].n * expert_bytes(f, il);
    return n;
}

static int fewer_picks(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Sorts the picked experts that f->skip does not name: those with few picks, which the CPU had better take, first. */
static int sort_missed(struct pf_offload *f, const struct pf_experts_op *e)
{
    uint64_t *missed = f->cpu.missed;
    int n = 0;
    for (int x = 0; x < e->n_expert; x++)
        missed[x] = (uint64_t)x;
    for (int p = 0; p < e->rows * e->n_used; p++)
        missed[e->picks[p]] += (uint64_t)1 << 32;
    for (int x = 0; x < e->n_expert; x++)
        if (missed[x] >> 32 && !f->skip[x])
            missed[n++] = missed[x];
    qsort(missed, (size_t)n, sizeof *missed, fewer_picks);
    return n;
}

void pf_prompts_choose_cpu(struct pf_offload *f, int il, const struct pf_experts_op *e, bool asks)
{
    int n = sort_missed(f, e);
    f->cpu.n_missed[il] = n;
    for (int s = 0; s < f->lanes[0].n_slots; s++)
        f->cpu.n_missed[il] += f->lanes[0].ahead[s].n;
    if (!asks)
        return;
    int k = pf_prompt_share(&f->cpu.prices, e->rows, n, expert_bytes(f, il), backlog(f, il));
    k = f->opts.cpu_limit >= 0 && f->opts.cpu_limit < k ? f->opts.cpu_limit : k;
    for (int x = 0; x < e->n_expert; x++)
        f->cpu.others[x] = true;
    for (int i = 0; i < k; i++) {
        int x = f->cpu.experts[i] = (int)(uint32_t)f->cpu.missed[i];
        f->skip[x] = true;
        f->cpu.others[x] = false;
    }
    f->cpu.n = k;
    f->cpu.n_bus = f->cpu.n_missed[il] - k;
}

/* Counts the time that computing takes: at first experts are read from the drive in between. */
static pf_status compute(void *ctx, const int *experts, int n)
{
    struct pf_offload *f = ctx;
    pf_backend *cpu = f->base.m->cpu;
    uint64_t begun_ns = pf_now_ns();
    pf_status st = cpu->ops->experts_halves(cpu, &(struct pf_halves){ .gate_up = experts, .down = experts,
                                                                      .n_gate_up = n, .n_down = n });
    f->cpu.ns += pf_now_ns() - begun_ns;
    return st;
}

pf_status pf_prompts_run_cpu(struct pf_offload *f, int il, const struct pf_experts_op *shown)
{
    pf_backend *cpu = f->base.m->cpu;
    struct pf_expert_weight w[3];
    struct pf_experts_op op = *shown;
    uint64_t begun_ns = pf_now_ns();
    pf_residency_tables(f->ram, &op, w);
    op.x = f->x;
    op.weights = f->weights;
    op.pick_y = f->cpu.pick_y;
    PF_TRY(cpu->ops->experts_begin(cpu, &op));
    f->cpu.ns = pf_now_ns() - begun_ns;
    PF_TRY(pf_residency_run(f->ram, il, shown, f->cpu.others, compute, f));
    pf_prompt_learn_cpu(&f->cpu.prices, shown->rows, f->cpu.n, f->cpu.ns);
    return PF_OK;
}

void pf_prompts_learn_bus(struct pf_offload *f)
{
    struct pf_lane *l = &f->lanes[0];
    for (int s = 0; s < l->n_slots; s++) {
        pf_prompt_learn_bus(&f->cpu.prices, l->sent[s], l->device->ops->share->fetch_ns(l->device, pf_slot_ticket(s)));
        l->sent[s] = 0;
    }
}

pf_status pf_prompts_open_cpu(struct pf_offload *f)
{
    size_t n = (size_t)f->base.m->n_expert, n_layer = (size_t)f->base.m->n_layer;
    f->cpu.n_missed = pf_alloc_array(PF_MEM_MODEL, n_layer, sizeof *f->cpu.n_missed);
    f->cpu.experts = pf_alloc_array(PF_MEM_MODEL, n, sizeof *f->cpu.experts);
    f->cpu.others = pf_alloc_array(PF_MEM_MODEL, n, sizeof *f->cpu.others);
    f->cpu.missed = pf_alloc_array(PF_MEM_MODEL, n, sizeof *f->cpu.missed);
    if (!f->cpu.n_missed || !f->cpu.experts || !f->cpu.others || !f->cpu.missed)
        PF_FAIL(PF_ENOMEM, "no memory for tables of %zu experts", n);
    for (size_t il = 0; il < n_layer; il++)
        f->cpu.n_missed[il] = -1;
    return PF_OK;
}

void pf_prompts_close_cpu(struct pf_offload *f)
{
    pf_free(f->cpu.n_missed);
    pf_free(f->cpu.experts);
    pf_free(f->cpu.others);
    pf_free(f->cpu.missed);
}
