/* Routed experts: picks are sorted by expert, so that each expert's weights are gone over once for all its tokens.
 *
 *     picks by row          sorted by expert                 per expert
 *     row 0: 5, 2    ->     expert 2: row 0, row 1    ->     gate, up [2 picks], activation, down, into pick_out
 *     row 1: 2, 7           expert 5: row 0
 *                           expert 7: row 1                  last: y[row] = sum over its picks, in the router's order
 *
 * The order of sorting (expert, then row) and which thread does what never reach the result: an output element of a
 * pick is one dot product, and a row's picks are summed in the order the router gave. */
#include <string.h>

#include "kernels/cpu/cpu.h"

enum { FF_GRAIN = 64 };          /* weight rows of gate and of up in one task */

struct experts_job {
    struct cpu_backend *b;
    const struct pf_experts_op *e;
    int n_active;
    int grain;                   /* weight rows a task takes */
    int tasks_per_expert;
};

size_t pf_cpu_experts_floats(void)
{
    return 3 * (size_t)X_BLOCK * FF_GRAIN;           /* gate, up, and what is added to them, of one task */
}

/* Counting sort of the picks by expert; b->groups says where each expert's lie. */
static void sort_picks(struct cpu_backend *b, const struct pf_experts_op *e)
{
    int n_picks = e->rows * e->n_used, first = 0;
    for (int x = 0; x < e->n_expert; x++)
        b->groups[x] = (struct active_expert){ .expert = x };
    for (int p = 0; p < n_picks; p++)
        b->groups[e->picks[p]].n++;
    for (int x = 0; x < e->n_expert; x++) {
        b->groups[x].first = first;
        first += b->groups[x].n;
        b->groups[x].n = 0;
    }
    for (int p = 0; p < n_picks; p++) {
        struct active_expert *group = &b->groups[e->picks[p]];
        int at = group->first + group->n++;
        b->sorted[at] = p;
        b->place[p] = at;
    }
}

static void mul_part(const struct cpu_backend *b, const struct pf_expert_weight *w, int expert, int r0, int r1,
                     const struct pf_xrow *x, int n_x, float *y, size_t y_stride)
{
    pf_cpu_mul(b, w->type, w->data[expert], w->row_bytes, r0, r1, w->n_in, x, n_x, y, y_stride);
    for (int j = 0; j < n_x; j++) {
        float *out = y + (size_t)j * y_stride + r0;
        if (w->scale)
            b->k.scale(out, w->scale[expert], r1 - r0);
        if (w->bias)
            b->k.add(out, w->bias + (size_t)expert * w->n_out + r0, r1 - r0);
    }
}

/* Columns r0..r1 of the sorted picks from `first` on, as they lie in a task's scratch. */
static void show_gate_up(const struct cpu_backend *b, int first, int n, const float *gate, const float *up, int r0, int r1)
{
    const struct pf_tap *tap = b->base.tap;
    size_t n_ff = (size_t)b->experts.gate->n_out, bytes = (size_t)(r1 - r0) * sizeof *gate;
    for (int i = 0; i < n; i++) {
        size_t at = (size_t)b->sorted[first + i] * n_ff + (size_t)r0;
        if (tap->gate)
            memcpy(tap->gate + at, gate + i * FF_GRAIN, bytes);
        if (tap->up)
            memcpy(tap->up + at, up + i * FF_GRAIN, bytes);
    }
}

/* ---- Adapters: y += scale * b (a x). a x of all picks comes first, since every task of b needs all of it. -------- */

static float *low_of(const struct cpu_backend *b, int at)
{
    return b->low + (size_t)at * 2 * (size_t)b->sizes.expert_rank;
}

/* a x of the sorted picks [first, first + n) with inputs x; from column `at` of b->low. */
static void make_low(const struct cpu_backend *b, const struct pf_expert_lora *l, int expert, int first, int n,
                     const struct pf_xrow *x, int at)
{
    size_t stride = 2 * (size_t)b->sizes.expert_rank;
    for (; l; at += l->a.n_out, l = l->next)
        pf_cpu_mul(b, l->a.type, l->a.data[expert], l->a.row_bytes, 0, l->a.n_out, l->a.n_in, x, n, low_of(b, first) + at, stride);
}

/* Adds to rows [r0, r1) of the n outputs y, of sorted picks from `first` on. y as in mul_part; room for n * stride floats. */
static void add_low(const struct cpu_backend *b, const struct pf_expert_weight *w, int expert, int r0, int r1, int first, int n,
                    int at, float *room, float *y, size_t y_stride)
{
    enum { STRIDE = 2 * FF_GRAIN };
    struct pf_xrow x[X_BLOCK / 2];
    for (const struct pf_expert_lora *l = w->lora; l; at += l->a.n_out, l = l->next)
        for (int j = 0; j < n; j += X_BLOCK / 2) {
            int n_block = n - j < X_BLOCK / 2 ? n - j : X_BLOCK / 2;
            for (int i = 0; i < n_block; i++)
                x[i] = (struct pf_xrow){ .f = low_of(b, first + j + i) + at };
            pf_cpu_mul(b, l->b.type, l->b.data[expert], l->b.row_bytes, r0, r1, l->b.n_in, x, n_block, room - r0, STRIDE);
            for (int i = 0; i < n_block; i++)
                b->k.axpy(y + (size_t)(j + i) * y_stride + r0, w->scale ? l->scale * w->scale[expert] : l->scale, room + i * STRIDE,
                          r1 - r0);
        }
}

/* A task is a block of picks of one of the active experts. */
static void low_tasks(const struct experts_job *job, int64_t begin, int64_t end, bool of_down)
{
    const struct pf_experts_op *e = job->e;
    struct cpu_backend *b = job->b;
    for (int64_t t = begin; t < end; t++) {
        const struct active_expert *a = &b->active[t];
        for (int j = 0; j < a->n; j += X_BLOCK) {
            int n_block = a->n - j < X_BLOCK ? a->n - j : X_BLOCK, first = a->first + j;
            struct pf_xrow x[X_BLOCK];
            for (int i = 0; i < n_block; i++)
                x[i] = of_down ? b->a.rows[first + i] : b->x.rows[b->sorted[first + i] / e->n_used];
            if (of_down)
                make_low(b, e->down->lora, a->expert, first, n_block, x, 0);
            else
                make_low(b, e->gate->lora, a->expert, first, n_block, x, 0);
            if (!of_down)
                make_low(b, e->up->lora, a->expert, first, n_block, x, b->sizes.expert_rank);
        }
    }
}

static void low_of_gate_up(void *ctx, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    low_tasks(ctx, begin, end, false);
}

static void low_of_down(void *ctx, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    low_tasks(ctx, begin, end, true);
}

static void gate_up_tasks(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct experts_job *job = ctx;
    const struct pf_experts_op *e = job->e;
    struct cpu_backend *b = job->b;
    float *gate = cpu_thread_scratch(b, thread), *up = gate + X_BLOCK * FF_GRAIN, *room = up + X_BLOCK * FF_GRAIN;
    int n_ff = e->gate->n_out;
    for (int64_t t = begin; t < end; t++) {
        const struct active_expert *a = &b->active[t / job->tasks_per_expert];
        int r0 = (int)(t % job->tasks_per_expert) * job->grain, r1 = r0 + job->grain < n_ff ? r0 + job->grain : n_ff;
        for (int j = 0; j < a->n; j += X_BLOCK) {
            int n_block = a->n - j < X_BLOCK ? a->n - j : X_BLOCK;
            struct pf_xrow x[X_BLOCK];
            for (int i = 0; i < n_block; i++)
                x[i] = b->x.rows[b->sorted[a->first + j + i] / e->n_used];
            /* The scratch holds columns r0..r1 only; a base shifted by r0 lets products address them by row number. */
            mul_part(b, e->gate, a->expert, r0, r1, x, n_block, gate - r0, FF_GRAIN);
            mul_part(b, e->up, a->expert, r0, r1, x, n_block, up - r0, FF_GRAIN);
            add_low(b, e->gate, a->expert, r0, r1, a->first + j, n_block, 0, room, gate - r0, FF_GRAIN);
            add_low(b, e->up, a->expert, r0, r1, a->first + j, n_block, b->sizes.expert_rank, room, up - r0, FF_GRAIN);
            for (int i = 0; e->weigh_input && i < n_block; i++) {
                b->k.scale(gate + i * FF_GRAIN, e->weights[b->sorted[a->first + j + i]], r1 - r0);
                b->k.scale(up + i * FF_GRAIN, e->weights[b->sorted[a->first + j + i]], r1 - r0);
            }
            if (b->base.tap)
                show_gate_up(b, a->first + j, n_block, gate, up, r0, r1);
            for (int i = 0; i < n_block; i++)
                pf_cpu_activate(b, e->act, gate + i * FF_GRAIN, up + i * FF_GRAIN, r1 - r0,
                                b->act + (size_t)(a->first + j + i) * n_ff + r0);
        }
    }
}

static void down_tasks(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct experts_job *job = ctx;
    const struct pf_expert_weight *down = job->e->down;
    struct cpu_backend *b = job->b;
    for (int64_t t = begin; t < end; t++) {
        const struct active_expert *a = &b->active[t / job->tasks_per_expert];
        int r0 = (int)(t % job->tasks_per_expert) * job->grain;
        int r1 = r0 + job->grain < down->n_out ? r0 + job->grain : down->n_out;
        mul_part(b, down, a->expert, r0, r1, b->a.rows + a->first, a->n, b->pick_out + (size_t)a->first * down->n_out,
                 (size_t)down->n_out);
        add_low(b, down, a->expert, r0, r1, a->first, a->n, 0, cpu_thread_scratch(b, thread),
                b->pick_out + (size_t)a->first * down->n_out, (size_t)down->n_out);
    }
}

static void show_pick(const struct cpu_backend *b, int64_t p)
{
    const struct pf_tap *tap = b->base.tap;
    const struct pf_experts_op *e = &b->experts;
    size_t n_ff = (size_t)e->gate->n_out, n_out = (size_t)e->down->n_out, at = (size_t)b->place[p];
    if (tap->act)
        memcpy(tap->act + (size_t)p * n_ff, b->act + at * n_ff, n_ff * sizeof *b->act);
    if (tap->down)
        memcpy(tap->down + (size_t)p * n_out, b->pick_out + at * n_out, n_out * sizeof *b->pick_out);
}

static void sum_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct experts_job *job = ctx;
    const struct pf_experts_op *e = job->e;
    struct cpu_backend *b = job->b;
    int n_out = e->down->n_out;
    (void)thread;
    for (int64_t row = begin; row < end; row++) {
        float *y = e->y + row * n_out;
        memset(y, 0, (size_t)n_out * sizeof *y);
        for (int slot = 0; slot < e->n_used; slot++) {
            int64_t p = row * e->n_used + slot;
            if (b->base.tap)
                show_pick(b, p);
            b->k.axpy(y, e->weigh_input ? 1.0f : e->weights[p], b->pick_out + (size_t)b->place[p] * n_out, n_out);
        }
    }
}

static void deal(struct experts_job *job, pf_job_fn *fn, int n_rows, int max_grain)
{
    int grain = pf_cpu_grain(job->b, (int64_t)n_rows * job->n_active);
    job->grain = grain < max_grain ? grain : max_grain;
    job->tasks_per_expert = (n_rows + job->grain - 1) / job->grain;
    pf_pool_run(job->b->pool, fn, job, (int64_t)job->n_active * job->tasks_per_expert, 1);
}

static bool is_quantised(const struct pf_expert_weight *w)
{
    return !pf_qtype_info(w->type)->is_float;
}

/* The down products' inputs, of each run of neighbours among the active experts. */
static pf_status prepare_down(struct cpu_backend *b, const struct experts_job *job)
{
    int n_ff = job->e->gate->n_out;
    for (int i = 0; i < job->n_active;) {
        int first = b->active[i].first, end = first;
        while (i < job->n_active && b->active[i].first == end)
            end += b->active[i++].n;
        struct xmatrix part = b->a;
        part.rows += first;
        part.q += (size_t)first * part.q_stride;
        part.d += (size_t)first * part.d_stride;
        part.s += (size_t)first * part.s_stride;
        PF_TRY(pf_cpu_prepare(b, &part, b->act + (size_t)first * n_ff, n_ff, n_ff, end - first,
                              is_quantised(job->e->down)));
    }
    return PF_OK;
}

/* Gate, up and the activation, and the down product's inputs, for the experts in b->active. */
static pf_status run_gate_up(struct cpu_backend *b, int n_active)
{
    const struct pf_experts_op *e = &b->experts;
    struct experts_job job = { .b = b, .e = e, .n_active = n_active };
    b->base.weight_bytes_read += (uint64_t)n_active * (pf_expert_weight_bytes(e->gate) + pf_expert_weight_bytes(e->up));
    if (e->gate->lora || e->up->lora)
        pf_pool_run(b->pool, low_of_gate_up, &job, n_active, 1);
    deal(&job, gate_up_tasks, e->gate->n_out, FF_GRAIN);
    return prepare_down(b, &job);
}

static void run_down(struct cpu_backend *b, int n_active)
{
    struct experts_job job = { .b = b, .e = &b->experts, .n_active = n_active };
    b->base.weight_bytes_read += (uint64_t)n_active * pf_expert_weight_bytes(job.e->down);
    if (job.e->down->lora)
        pf_pool_run(b->pool, low_of_down, &job, n_active, 1);
    deal(&job, down_tasks, job.e->down->n_out, 2 * FF_GRAIN);
}

/* Puts those of the experts that have picks into b->active, and says how many. */
static int activate(struct cpu_backend *b, const int *experts, int n)
{
    int n_active = 0;
    for (int i = 0; i < n; i++)
        if (b->groups[experts[i]].n > 0)
            b->active[n_active++] = b->groups[experts[i]];
    return n_active;
}

pf_status pf_cpu_experts_begin(pf_backend *backend, const struct pf_experts_op *e)
{
    struct cpu_backend *b = cpu_of(backend);
    b->experts = *e;
    sort_picks(b, e);
    return pf_cpu_prepare(b, &b->x, e->x, e->gate->n_in, e->gate->n_in, e->rows,
                          is_quantised(e->gate) || is_quantised(e->up));
}

pf_status pf_cpu_experts_gate_up(pf_backend *backend, const int *experts, int n)
{
    struct cpu_backend *b = cpu_of(backend);
    int n_active = activate(b, experts, n);
    return n_active > 0 ? run_gate_up(b, n_active) : PF_OK;
}

pf_status pf_cpu_experts_down(pf_backend *backend, const int *experts, int n)
{
    struct cpu_backend *b = cpu_of(backend);
    int n_active = activate(b, experts, n);
    if (n_active > 0)
        run_down(b, n_active);
    return PF_OK;
}

pf_status pf_cpu_experts_part(pf_backend *backend, const int *experts, int n)
{
    PF_TRY(pf_cpu_experts_gate_up(backend, experts, n));
    return pf_cpu_experts_down(backend, experts, n);
}

void pf_cpu_experts_pick(const pf_backend *backend, int pick, const float **act, const float **y)
{
    const struct cpu_backend *b = (const struct cpu_backend *)backend;
    size_t at = (size_t)b->place[pick];
    *act = b->act + at * (size_t)b->experts.gate->n_out;
    *y = b->pick_out + at * (size_t)b->experts.down->n_out;
}

pf_status pf_cpu_experts_end(pf_backend *backend)
{
    struct cpu_backend *b = cpu_of(backend);
    struct experts_job job = { .b = b, .e = &b->experts };
    pf_pool_run(b->pool, sum_rows, &job, b->experts.rows, 4);
    return PF_OK;
}

pf_status pf_cpu_experts(pf_backend *backend, const struct pf_experts_op *e)
{
    struct cpu_backend *b = cpu_of(backend);
    int n_active = 0;
    PF_TRY(pf_cpu_experts_begin(backend, e));
    for (int x = 0; x < e->n_expert; x++)
        if (b->groups[x].n > 0)
            b->active[n_active++] = b->groups[x];
    PF_TRY(run_gate_up(b, n_active));
    run_down(b, n_active);
    return pf_cpu_experts_end(backend);
}
