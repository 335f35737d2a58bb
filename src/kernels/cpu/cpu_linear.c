/* Dense products: several weights that share their input, their rows cut into tasks and dealt to the pool.
 *
 *     weights of the group        tasks                       each task
 *     | q: 4096 rows   |   ->   | 0..127 | 128..255 | ... |   its weight rows times every row of x
 *     | k:  512 rows   |        | 0..127 | ...            |
 *     | v:  512 rows   |        | 0..127 | ...            |
 */
#include "kernels/cpu/cpu.h"

struct prepare_job {
    struct cpu_backend *b;
    struct xmatrix *xm;
    const float *x;
    int n, stride;
    bool quantised;
};

void pf_cpu_prepare_rows(struct cpu_backend *b, struct xmatrix *xm, const float *x, int n, int stride, int r0, int r1,
                         bool quantised)
{
    for (int r = r0; r < r1; r++) {
        const float *f = x + (size_t)r * stride;
        int8_t *q = xm->q + r * xm->q_stride;
        float *d = xm->d + r * xm->d_stride;
        int16_t *s = xm->s + r * xm->s_stride;
        xm->rows[r] = (struct pf_xrow){ .f = f, .q = q, .d = d, .s = s };
        if (quantised && b->k.quantise(f, n, q, d, s) != 0)
            atomic_store_explicit(&b->not_finite, true, memory_order_relaxed);
    }
}

pf_status pf_cpu_finite(struct cpu_backend *b)
{
    if (atomic_exchange_explicit(&b->not_finite, false, memory_order_relaxed))
        PF_FAIL(PF_ENUMERIC, "an activation in front of a quantised product is not finite");
    return PF_OK;
}

static void prepare_tasks(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct prepare_job *job = ctx;
    (void)thread;
    pf_cpu_prepare_rows(job->b, job->xm, job->x, job->n, job->stride, (int)begin, (int)end, job->quantised);
}

pf_status pf_cpu_prepare(struct cpu_backend *b, struct xmatrix *xm, const float *x, int n, int stride, int n_rows,
                         bool quantised)
{
    enum { SERIAL_ELEMENTS = 32768 };        /* below this a fork costs more than it saves */
    struct prepare_job job = { b, xm, x, n, stride, quantised };
    int64_t grain = !quantised || (int64_t)n_rows * n <= SERIAL_ELEMENTS ? n_rows : 1 + SERIAL_ELEMENTS / 4 / n;
    pf_pool_run(b->pool, prepare_tasks, &job, n_rows, grain);
    return pf_cpu_finite(b);
}

void pf_cpu_mul(const struct cpu_backend *b, enum pf_qtype type, const uint8_t *w, uint64_t row_bytes, int r0, int r1,
                int n, const struct pf_xrow *x, int n_x, float *y, size_t y_stride, const void *next)
{
    const uint8_t *rows = w + (size_t)r0 * row_bytes;
    if (n_x == 1) {
        b->k.vec[type](rows, row_bytes, r1 - r0, n, x, 1, y + r0, y_stride, next);
        return;
    }
    for (int j = 0; j < n_x; j += X_BLOCK) {
        int n_block = n_x - j < X_BLOCK ? n_x - j : X_BLOCK;
        b->k.tile[type](rows, row_bytes, r1 - r0, n, x + j, n_block, y + (size_t)j * y_stride + r0, y_stride,
                        j + n_block < n_x ? NULL : next);
    }
}

int pf_cpu_grain(const struct cpu_backend *b, int64_t n_rows, int per_thread, int most)
{
    int64_t grain = n_rows / ((int64_t)pf_pool_n_threads(b->pool) * per_thread) / ROW_GROUP * ROW_GROUP;
    return (int)(grain < ROW_GROUP ? ROW_GROUP : grain > most ? most : grain);
}

struct linear_job {
    struct cpu_backend *b;
    const struct pf_linear *l;
    int n_l, rows, grain;
    int64_t n_tasks;
};

struct linear_task {
    const struct pf_linear *l;
    int r0, r1;                              /* weight rows */
};

static int tasks_of(const struct pf_weight *w, int grain)
{
    return (w->n_out + grain - 1) / grain;
}

static void scale_and_bias(const struct cpu_backend *b, const struct pf_weight *w, float *y, int rows, int r0, int r1)
{
    for (int j = 0; j < rows; j++) {
        float *out = y + (size_t)j * w->n_out + r0;
        if (w->scale != 1.0f)
            b->k.scale(out, w->scale, r1 - r0);
        if (w->bias)
            b->k.add(out, w->bias + r0, r1 - r0);
    }
}

static struct linear_task linear_task(const struct linear_job *job, int64_t t)
{
    const struct pf_linear *l = job->l;
    while (t >= tasks_of(l->w, job->grain))
        t -= tasks_of(l++->w, job->grain);
    int r0 = (int)t * job->grain, r1 = r0 + job->grain < l->w->n_out ? r0 + job->grain : l->w->n_out;
    return (struct linear_task){ l, r0, r1 };
}

/* What a thread reads after task t. */
static const uint8_t *after(const struct linear_job *job, int64_t t, int thread)
{
    if (!pf_pool_goes_on(job->b->pool, job->n_tasks, thread, t))
        return NULL;
    struct linear_task next = linear_task(job, t + 1);
    return (const uint8_t *)next.l->w->data + (uint64_t)next.r0 * next.l->w->row_bytes;
}

static void linear_tasks(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct linear_job *job = ctx;
    for (int64_t i = begin; i < end; i++) {
        struct linear_task t = linear_task(job, i);
        const struct pf_weight *w = t.l->w;
        pf_cpu_mul(job->b, w->type, w->data, w->row_bytes, t.r0, t.r1, w->n_in, job->b->x.rows, job->rows, t.l->y,
                   (size_t)w->n_out, after(job, i, thread));
        scale_and_bias(job->b, w, t.l->y, job->rows, t.r0, t.r1);
    }
}

pf_status pf_cpu_linear(pf_backend *backend, const struct pf_linear *l, int n_l, const float *x, int rows)
{
    struct cpu_backend *b = cpu_of(backend);
    enum { TASKS_PER_THREAD = 8, MAX_GRAIN = 128 };
    bool quantised = false;
    int64_t n_rows = 0;
    for (int i = 0; i < n_l; i++) {
        quantised |= !pf_qtype_info(l[i].w->type)->is_float;
        n_rows += l[i].w->n_out;
        b->base.weight_bytes_read += pf_weight_bytes(l[i].w);
    }
    PF_TRY(pf_cpu_prepare(b, &b->x, x, l[0].w->n_in, l[0].w->n_in, rows, quantised));
    struct linear_job job = { b, l, n_l, rows, pf_cpu_grain(b, n_rows, TASKS_PER_THREAD, MAX_GRAIN), 0 };
    for (int i = 0; i < n_l; i++)
        job.n_tasks += tasks_of(l[i].w, job.grain);
    pf_pool_run(b->pool, linear_tasks, &job, job.n_tasks, 1);
    return PF_OK;
}

/* ---- By head ----------------------------------------------------------------------------------------------------- */

struct heads_job {
    struct cpu_backend *b;
    const struct pf_heads_op *op;
};

static void heads_tasks(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct heads_job *job = ctx;
    const struct pf_heads_op *op = job->op;
    const struct pf_weight *w = op->w;
    struct cpu_backend *b = job->b;
    uint64_t head_bytes = (uint64_t)op->head_rows * w->row_bytes;
    for (int64_t h = begin; h < end; h++) {
        const uint8_t *head = (const uint8_t *)w->data + (uint64_t)h * head_bytes;
        bool goes_on = pf_pool_goes_on(b->pool, op->n_head, thread, h);
        size_t y_row = (size_t)op->n_head * (size_t)op->y_stride;
        for (int r = 0; r < op->rows; r += X_BLOCK) {
            int n = op->rows - r < X_BLOCK ? op->rows - r : X_BLOCK;
            float *y = op->y + (size_t)r * y_row + (size_t)h * (size_t)op->y_stride;
            struct pf_xrow x[X_BLOCK];
            for (int i = 0; i < n; i++)
                x[i] = b->h.rows[(size_t)(r + i) * (size_t)op->n_head + (size_t)h];
            pf_cpu_mul(b, w->type, head, w->row_bytes, 0, op->n_out, w->n_in, x, n, y, y_row,
                       goes_on && r + n == op->rows ? head + head_bytes : NULL);
            for (int i = 0; w->scale != 1.0f && i < n; i++)
                b->k.scale(y + (size_t)i * y_row, w->scale, op->n_out);
        }
    }
}

pf_status pf_cpu_heads(pf_backend *backend, const struct pf_heads_op *op)
{
    struct heads_job job = { cpu_of(backend), op };
    bool quantised = !pf_qtype_info(op->w->type)->is_float;
    job.b->base.weight_bytes_read += op->w->row_bytes * (uint64_t)op->n_out * (uint64_t)op->n_head;
    PF_TRY(pf_cpu_prepare(job.b, &job.b->h, op->x, op->w->n_in, op->x_stride, op->rows * op->n_head, quantised));
    pf_pool_run(job.b->pool, heads_tasks, &job, op->n_head, 1);
    return PF_OK;
}
