/* Routed experts: picks are sorted by expert, so that each expert's weights are gone over once for all its tokens.
 *
 *     picks by row          sorted by expert                 per expert
 *     row 0: 5, 2    ->     expert 2: row 0, row 1    ->     gate, up [2 picks], activation, down, into pick_out
 *     row 1: 2, 7           expert 5: row 0
 *                           expert 7: row 1                  last: y[row] = sum over its picks, in the router's order
 *
 * The order of sorting (expert, then row) and which thread does what never reach the result: an output element of a
 * pick is one dot product, and a row's picks are summed in the order the router gave.
 *
 * All of it is one run of the pool with two jobs, tasks of weight rows of gate and up, and tasks of rows of down:
 *
 *     threads  | gate, up of 2 | .. of 5 | .. of 7 || down of 2 | .. of 5 | .. of 7 |
 *
 * Down tasks of an expert wait for its own gate and up alone (struct expert_wait): the thread that does the last task
 * of these also makes down's inputs, and only then lowers `left` to 0, with release; a down task acquires it. */
#include <string.h>

#include "kernels/cpu/cpu.h"

enum { FF_GRAIN = 64 };          /* weight rows of gate and of up in one task at most */

struct half {                    /* gate and up, or down */
    const int *experts;
    int n_rows, grain;           /* rows of an expert's matrix; rows that a task takes */
    int per_expert;              /* tasks */
};

struct experts_job {
    struct cpu_backend *b;
    const struct pf_experts_op *e;
    struct half gate_up, down;
    int64_t n_gate_up, n_down;   /* tasks */
};

struct task {
    int expert, r0, r1;          /* weight rows */
};

static struct task task_of(const struct half *h, int64_t t)
{
    int r0 = (int)(t % h->per_expert) * h->grain;
    return (struct task){ h->experts[t / h->per_expert], r0, r0 + h->grain < h->n_rows ? r0 + h->grain : h->n_rows };
}

size_t pf_cpu_experts_floats(void)
{
    return 3 * (size_t)X_BLOCK * FF_GRAIN;           /* gate, up and the adapters' deltas of one task */
}

/* Counting sort of the picks by expert; b->groups says where each expert's lie. */
static void sort_picks(struct cpu_backend *b, const struct pf_experts_op *e)
{
    int n_picks = e->rows * e->n_used, first = 0;
    for (int x = 0; x < e->n_expert; x++)
        b->groups[x] = (struct expert_group){ 0 };
    for (int p = 0; p < n_picks; p++)
        b->groups[e->picks[p]].n++;
    for (int x = 0; x < e->n_expert; x++) {
        b->groups[x].first = first;
        first += b->groups[x].n;
        b->groups[x].n = 0;
    }
    for (int p = 0; p < n_picks; p++) {
        struct expert_group *group = &b->groups[e->picks[p]];
        int at = group->first + group->n++;
        b->sorted[at] = p;
        b->place[p] = at;
    }
}

static const uint8_t *row_of(const struct pf_expert_weight *w, int expert, int r)
{
    return w->data[expert] + (size_t)r * w->row_bytes;
}

/* next: what the thread reads then, or NULL. */
static void mul_part(const struct cpu_backend *b, const struct pf_expert_weight *w, const struct task *t,
                     const struct pf_xrow *x, int n_x, float *y, size_t y_stride, const uint8_t *next)
{
    int expert = t->expert, r0 = t->r0, r1 = t->r1;
    pf_cpu_mul(b, w->type, w->data[expert], w->row_bytes, r0, r1, w->n_in, x, n_x, y, y_stride, next);
    for (int j = 0; j < n_x; j++) {
        float *out = y + (size_t)j * y_stride + r0;
        if (w->scale)
            b->k.scale(out, w->scale[expert], r1 - r0);
        if (w->bias)
            b->k.add(out, w->bias + (size_t)expert * w->n_out + r0, r1 - r0);
    }
}

/* Columns r0..r1 of the sorted picks from `first` on, as they lie in a task's scratch. */
static void show_gate_up(const struct cpu_backend *b, int first, int n, const float *gate, const float *up, int r0,
                         int r1)
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
        pf_cpu_mul(b, l->a.type, l->a.data[expert], l->a.row_bytes, 0, l->a.n_out, l->a.n_in, x, n,
                   low_of(b, first) + at, stride, NULL);
}

/* Adds to rows [r0, r1) of the n outputs y, of sorted picks from `first` on. y as in mul_part; room
 * for n * stride floats. */
static void add_low(const struct cpu_backend *b, const struct pf_expert_weight *w, int expert, int r0, int r1,
                    int first, int n, int at, float *room, float *y, size_t y_stride)
{
    enum { STRIDE = 2 * FF_GRAIN };
    struct pf_xrow x[X_BLOCK / 2];
    for (const struct pf_expert_lora *l = w->lora; l; at += l->a.n_out, l = l->next)
        for (int j = 0; j < n; j += X_BLOCK / 2) {
            int n_block = n - j < X_BLOCK / 2 ? n - j : X_BLOCK / 2;
            for (int i = 0; i < n_block; i++)
                x[i] = (struct pf_xrow){ .f = low_of(b, first + j + i) + at };
            pf_cpu_mul(b, l->b.type, l->b.data[expert], l->b.row_bytes, r0, r1, l->b.n_in, x, n_block, room - r0,
                       STRIDE, NULL);
            for (int i = 0; i < n_block; i++)
                b->k.axpy(y + (size_t)(j + i) * y_stride + r0, w->scale ? l->scale * w->scale[expert] : l->scale,
                          room + i * STRIDE, r1 - r0);
        }
}

/* A task is one of the experts. */
static void low_of_gate_up(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct experts_job *job = ctx;
    const struct pf_experts_op *e = job->e;
    struct cpu_backend *b = job->b;
    (void)thread;
    for (int64_t t = begin; t < end; t++) {
        int expert = job->gate_up.experts[t];
        const struct expert_group *g = &b->groups[expert];
        for (int j = 0; j < g->n; j += X_BLOCK) {
            int n_block = g->n - j < X_BLOCK ? g->n - j : X_BLOCK, first = g->first + j;
            struct pf_xrow x[X_BLOCK];
            for (int i = 0; i < n_block; i++)
                x[i] = b->x.rows[b->sorted[first + i] / e->n_used];
            make_low(b, e->gate->lora, expert, first, n_block, x, 0);
            make_low(b, e->up->lora, expert, first, n_block, x, b->sizes.expert_rank);
        }
    }
}

/* ---- Gate and up, down ------------------------------------------------------------------------------------------- */

/* Columns r0..r1 of an expert's rows of n, in sorted order, go to where the caller wants those of its picks. */
static void hand_over(const struct cpu_backend *b, const struct expert_group *g, const float *rows, int n, int r0,
                      int r1, float *to)
{
    for (int i = g->first; i < g->first + g->n; i++)
        memcpy(to + (size_t)b->sorted[i] * n + r0, rows + (size_t)i * n + r0, (size_t)(r1 - r0) * sizeof *to);
}

static bool is_quantised(const struct pf_expert_weight *w)
{
    return !pf_qtype_info(w->type)->is_float;
}

/* Experts without gates have one matrix as both gate and up. */
static bool is_gated(const struct pf_experts_op *e, int expert)
{
    return e->gate->data[expert] != e->up->data[expert];
}

/* One task of gate and up is done; after the last one down's inputs are made. */
static void count_task(const struct experts_job *job, int expert)
{
    struct cpu_backend *b = job->b;
    const struct pf_expert_weight *down = job->e->down;
    const struct expert_group *g = &b->groups[expert];
    _Atomic int *left = &b->waits[expert].left;
    if (atomic_fetch_sub_explicit(left, 1, memory_order_acq_rel) > 2)
        return;
    pf_cpu_prepare_rows(b, &b->a, b->act, down->n_in, down->n_in, g->first, g->first + g->n, is_quantised(down));
    make_low(b, down->lora, expert, g->first, g->n, b->a.rows + g->first, 0);
    atomic_store_explicit(left, 0, memory_order_release);
}

/* What a thread reads after a task of gate and up: the next one's, or its first rows of down. */
static const uint8_t *after_gate_up(const struct experts_job *job, int64_t i, int thread)
{
    const struct pf_experts_op *e = job->e;
    const pf_pool *pool = job->b->pool;
    if (pf_pool_goes_on(pool, job->n_gate_up, thread, i)) {
        struct task t = task_of(&job->gate_up, i + 1);
        return row_of(e->gate, t.expert, t.r0);
    }
    int64_t first = pf_pool_first(pool, job->n_down, thread);
    if (first >= job->n_down)
        return NULL;
    struct task t = task_of(&job->down, first);
    return row_of(e->down, t.expert, t.r0);
}

static const uint8_t *after_down(const struct experts_job *job, int64_t i, int thread)
{
    if (!pf_pool_goes_on(job->b->pool, job->n_down, thread, i))
        return NULL;
    struct task t = task_of(&job->down, i + 1);
    return row_of(job->e->down, t.expert, t.r0);
}

static void gate_up_task(const struct experts_job *job, const struct task *t, float *scratch, const uint8_t *next)
{
    const struct pf_experts_op *e = job->e;
    struct cpu_backend *b = job->b;
    const struct expert_group *g = &b->groups[t->expert];
    float *gate = scratch, *up = gate + X_BLOCK * FF_GRAIN, *room = up + X_BLOCK * FF_GRAIN;
    int r0 = t->r0, r1 = t->r1;
    bool gated = is_gated(e, t->expert);
    for (int j = 0; j < g->n; j += X_BLOCK) {
        int n_block = g->n - j < X_BLOCK ? g->n - j : X_BLOCK, first = g->first + j;
        struct pf_xrow x[X_BLOCK];
        for (int i = 0; i < n_block; i++)
            x[i] = b->x.rows[b->sorted[first + i] / e->n_used];
        /* The scratch holds columns r0..r1 only; a base shifted by r0 lets products address them by row number. */
        mul_part(b, e->gate, t, x, n_block, gate - r0, FF_GRAIN, gated ? row_of(e->up, t->expert, r0) : next);
        if (gated)
            mul_part(b, e->up, t, x, n_block, up - r0, FF_GRAIN, next);
        add_low(b, e->gate, t->expert, r0, r1, first, n_block, 0, room, gate - r0, FF_GRAIN);
        if (gated)
            add_low(b, e->up, t->expert, r0, r1, first, n_block, b->sizes.expert_rank, room, up - r0, FF_GRAIN);
        else
            memcpy(up, gate, (size_t)n_block * FF_GRAIN * sizeof *up);
        for (int i = 0; e->weigh_input && i < n_block; i++) {
            b->k.scale(gate + i * FF_GRAIN, e->weights[b->sorted[first + i]], r1 - r0);
            b->k.scale(up + i * FF_GRAIN, e->weights[b->sorted[first + i]], r1 - r0);
        }
        if (b->base.tap)
            show_gate_up(b, first, n_block, gate, up, r0, r1);
        for (int i = 0; i < n_block; i++)
            pf_cpu_activate(b, e->act, gate + i * FF_GRAIN, up + i * FF_GRAIN, r1 - r0,
                            b->act + (size_t)(first + i) * e->gate->n_out + r0);
    }
    if (e->pick_act)
        hand_over(b, g, b->act, e->gate->n_out, r0, r1, e->pick_act);
}

static void gate_up_tasks(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct experts_job *job = ctx;
    for (int64_t i = begin; i < end; i++) {
        struct task t = task_of(&job->gate_up, i);
        gate_up_task(job, &t, cpu_thread_scratch(job->b, thread), after_gate_up(job, i, thread));
        count_task(job, t.expert);
    }
}

/* Until down's inputs of the task's expert are there. Memory would have nothing to do while the last threads end gate
 * and up, so the rows that come are fetched: the task's, and behind them, mostly, those of its thread's next ones. */
static void await_inputs(const struct experts_job *job, const struct task *t)
{
    enum { LINE = 64, AT_ONCE = 16 * LINE, MOST_BYTES = 64 << 10 };
    const struct pf_expert_weight *down = job->e->down;
    const uint8_t *rows = row_of(down, t->expert, t->r0);
    size_t left = (size_t)(down->n_out - t->r0) * down->row_bytes, n = left < MOST_BYTES ? left : MOST_BYTES, at = 0;
    unsigned turns = 0;
    while (atomic_load_explicit(&job->b->waits[t->expert].left, memory_order_acquire) > 0) {
        for (size_t end = at + AT_ONCE; at < n && at < end; at += LINE)
            __builtin_prefetch(rows + at, 0, 2);
        if (at >= n)
            pf_pool_relax(&turns);
    }
}

static void down_tasks(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct experts_job *job = ctx;
    const struct pf_expert_weight *down = job->e->down;
    struct cpu_backend *b = job->b;
    for (int64_t i = begin; i < end; i++) {
        struct task t = task_of(&job->down, i);
        const struct expert_group *g = &b->groups[t.expert];
        float *y = b->pick_out + (size_t)g->first * down->n_out;
        await_inputs(job, &t);
        mul_part(b, down, &t, b->a.rows + g->first, g->n, y, (size_t)down->n_out, after_down(job, i, thread));
        add_low(b, down, t.expert, t.r0, t.r1, g->first, g->n, 0, cpu_thread_scratch(b, thread), y,
                (size_t)down->n_out);
        if (job->e->pick_y)
            hand_over(b, g, b->pick_out, down->n_out, t.r0, t.r1, job->e->pick_y);
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

/* ---- Runs -------------------------------------------------------------------------------------------------------- */

static void cut(struct half *h, const struct cpu_backend *b, const int *experts, int n_experts, int n_rows, int most)
{
    enum { TASKS_PER_THREAD = 32 };          /* a thread may have to wait for the last task of another */
    h->experts = experts;
    h->n_rows = n_rows;
    h->grain = pf_cpu_grain(b, (int64_t)n_rows * n_experts, TASKS_PER_THREAD, most);
    h->per_expert = (n_rows + h->grain - 1) / h->grain;
}

/* Computes gate and up of the experts in b->gate_up and down products of the experts in b->down. */
static pf_status run(struct cpu_backend *b, int n_gate_up, int n_down, const struct pf_halves *asked)
{
    const struct pf_experts_op *e = &b->experts;
    struct experts_job job = { .b = b, .e = e };
    cut(&job.gate_up, b, b->gate_up, n_gate_up, e->gate->n_out, FF_GRAIN);
    cut(&job.down, b, b->down, n_down, e->down->n_out, 2 * FF_GRAIN);
    job.n_gate_up = (int64_t)n_gate_up * job.gate_up.per_expert;
    job.n_down = (int64_t)n_down * job.down.per_expert;
    b->base.weight_bytes_read += (uint64_t)n_down * pf_expert_weight_bytes(e->down);
    for (int i = 0; i < n_gate_up; i++)
        b->base.weight_bytes_read += pf_expert_weight_bytes(e->gate) +
                                     (is_gated(e, b->gate_up[i]) ? pf_expert_weight_bytes(e->up) : 0);
    for (int i = 0; i < n_gate_up; i++)
        b->waits[b->gate_up[i]].left = job.gate_up.per_expert + 1;
    if (e->gate->lora || e->up->lora)
        pf_pool_run(b->pool, low_of_gate_up, &job, n_gate_up, 1);
    const struct pf_job jobs[] = { { gate_up_tasks, job.n_gate_up, 1 }, { down_tasks, job.n_down, 1 } };
    pf_pool_begin(b->pool, &job, jobs, 2);
    if (asked && asked->meanwhile)
        asked->meanwhile(asked->ctx);
    pf_pool_end(b->pool);
    return pf_cpu_finite(b);
}

/* Lists the experts among `experts` that have picks; returns how many. */
static int with_picks(const struct cpu_backend *b, const int *experts, int n, int *list)
{
    int n_list = 0;
    for (int i = 0; i < n; i++)
        if (b->groups[experts[i]].n > 0)
            list[n_list++] = experts[i];
    return n_list;
}

pf_status pf_cpu_experts_begin(pf_backend *backend, const struct pf_experts_op *e)
{
    struct cpu_backend *b = cpu_of(backend);
    b->experts = *e;
    sort_picks(b, e);
    return pf_cpu_prepare(b, &b->x, e->x, e->gate->n_in, e->gate->n_in, e->rows,
                          is_quantised(e->gate) || is_quantised(e->up));
}

pf_status pf_cpu_experts_halves(pf_backend *backend, const struct pf_halves *h)
{
    struct cpu_backend *b = cpu_of(backend);
    int n_gate_up = with_picks(b, h->gate_up, h->n_gate_up, b->gate_up),
        n_down = with_picks(b, h->down, h->n_down, b->down);
    return run(b, n_gate_up, n_down, h);
}

pf_status pf_cpu_experts_part(pf_backend *backend, const int *experts, int n)
{
    return pf_cpu_experts_halves(backend, &(struct pf_halves){ .gate_up = experts, .down = experts, .n_gate_up = n,
                                                               .n_down = n });
}

pf_status pf_cpu_experts_given(pf_backend *backend, const int *experts, int n, const float *y)
{
    const struct cpu_backend *b = cpu_of(backend);
    size_t n_out = (size_t)b->experts.down->n_out;
    for (int i = 0; i < n; i++) {
        const struct expert_group *g = &b->groups[experts[i]];
        for (int at = g->first; at < g->first + g->n; at++)
            memcpy(b->pick_out + (size_t)at * n_out, y + (size_t)b->sorted[at] * n_out, n_out * sizeof *y);
    }
    return PF_OK;
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
    int n = 0;
    PF_TRY(pf_cpu_experts_begin(backend, e));
    for (int x = 0; x < e->n_expert; x++)
        if (b->groups[x].n > 0) {
            b->gate_up[n] = x;
            b->down[n++] = x;
        }
    PF_TRY(run(b, n, n, NULL));
    return pf_cpu_experts_end(backend);
}
