/* Several residual streams instead of one (op_streams.h): the weights with which a block reads and writes them, row by
 * row, the reading and writing, by pieces of rows, and what enters all of them. */
#include <math.h>
#include <string.h>

#include "base/pf_math.h"
#include "kernels/cpu/cpu.h"
#include "kernels/generic/generic_math.h"

enum { COLUMNS = 512 };

/* ---- Weights ----------------------------------------------------------------------------------------------------- */

struct mix_job {
    const struct pf_mix_op *op;
};

/* p = softmax(y) + eps, n elements. */
static void softmax(const float *y, int n, float eps, float *p)
{
    float top = y[0], sum = 0;
    for (int i = 1; i < n; i++)
        top = y[i] > top ? y[i] : top;
    for (int i = 0; i < n; i++) {
        p[i] = pf_expf(y[i] - top);
        sum += p[i];
    }
    for (int i = 0; i < n; i++)
        p[i] = p[i] / sum + eps;
}

/* Divides each of the n lines of a matrix by its sum + eps; elements of a line lie `step` apart, lines `line`. */
static void divide(float *matrix, int n, int line, int step, float eps)
{
    for (int i = 0; i < n; i++) {
        float *p = matrix + i * line, sum = p[0];
        for (int j = 1; j < n; j++)
            sum += p[j * step];
        for (int j = 0; j < n; j++)
            p[j * step] = p[j * step] / (sum + eps);
    }
}

/* Alternately, until rows and columns of the matrix sum to 1 (Sinkhorn and Knopp 1967). */
static void balance(float *matrix, int n, int rounds, float eps)
{
    divide(matrix, n, 1, n, eps);
    for (int i = 1; i < rounds; i++) {
        divide(matrix, n, n, 1, eps);
        divide(matrix, n, 1, n, eps);
    }
}

static void mix_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct pf_mix_op *op = ((const struct mix_job *)ctx)->op;
    int n = op->n_streams;
    (void)thread;
    for (int64_t r = begin; r < end; r++) {
        float *w = op->weights + r * op->n_weights, *mix = w + 2 * n;
        for (int i = 0; i < op->n_weights; i++) {
            int part = i < 2 * n ? i / n : 2;
            w[i] = fmaf(op->logits[r * op->n_weights + i], op->scale[part], op->base[i]);
        }
        for (int i = 0; i < n; i++)
            w[i] = pf_sigmoidf(w[i]) + op->eps;
        if (op->n_weights == n)
            continue;
        for (int i = n; i < 2 * n; i++)
            w[i] = 2 * pf_sigmoidf(w[i]);
        for (int i = 0; i < n; i++)
            softmax(mix + i * n, n, op->eps, mix + i * n);
        balance(mix, n, op->rounds, op->eps);
    }
}

pf_status pf_cpu_mix(pf_backend *backend, const struct pf_mix_op *op)
{
    struct mix_job job = { op };
    pf_pool_run(cpu_of(backend)->pool, mix_rows, &job, op->rows, 4);
    return PF_OK;
}

/* ---- Reading and writing ----------------------------------------------------------------------------------------- */

struct streams_job {
    struct cpu_backend *b;
    const struct pf_streams_op *op;
};

static void read_piece(const struct cpu_backend *b, const struct pf_streams_op *op, size_t row, int c, int n)
{
    const float *w = op->weights + row * (size_t)op->n_weights;
    const float *x = op->x + row * (size_t)op->n_streams * (size_t)op->n + c;
    float *y = op->y + row * (size_t)op->n + c;
    memset(y, 0, (size_t)n * sizeof *y);
    for (int i = 0; i < op->n_streams; i++)
        b->k.axpy(y, w[i], x + (size_t)i * (size_t)op->n, n);
}

static void write_piece(const struct cpu_backend *b, const struct pf_streams_op *op, size_t row, int c, int n)
{
    float mixed[PF_MAX_STREAMS][COLUMNS] = { { 0 } };
    int n_s = op->n_streams;
    const float *w = op->weights + row * (size_t)op->n_weights, *y = op->y + row * (size_t)op->n + c;
    float *x = op->x + row * (size_t)n_s * (size_t)op->n + c;
    for (int to = 0; to < n_s; to++) {
        b->k.axpy(mixed[to], w[n_s + to], y, n);
        for (int from = 0; from < n_s; from++)
            b->k.axpy(mixed[to], w[2 * n_s + from * n_s + to], x + (size_t)from * (size_t)op->n, n);
    }
    for (int to = 0; to < n_s; to++)
        memcpy(x + (size_t)to * (size_t)op->n, mixed[to], (size_t)n * sizeof *x);
}

static void streams_tasks(void *ctx, int64_t begin, int64_t end, bool writing)
{
    const struct streams_job *job = ctx;
    int n_pieces = (job->op->n + COLUMNS - 1) / COLUMNS;
    for (int64_t t = begin; t < end; t++) {
        int c = (int)(t % n_pieces) * COLUMNS, left = job->op->n - c;
        (writing ? write_piece : read_piece)(job->b, job->op, (size_t)(t / n_pieces), c,
                                             left < COLUMNS ? left : COLUMNS);
    }
}

static void read_tasks(void *ctx, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    streams_tasks(ctx, begin, end, false);
}

static void write_tasks(void *ctx, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    streams_tasks(ctx, begin, end, true);
}

static pf_status run(pf_backend *backend, const struct pf_streams_op *op, pf_job_fn *fn)
{
    struct streams_job job = { cpu_of(backend), op };
    pf_pool_run(job.b->pool, fn, &job, (int64_t)op->rows * ((op->n + COLUMNS - 1) / COLUMNS), 8);
    return PF_OK;
}

pf_status pf_cpu_streams_read(pf_backend *backend, const struct pf_streams_op *op)
{
    return run(backend, op, read_tasks);
}

pf_status pf_cpu_streams_write(pf_backend *backend, const struct pf_streams_op *op)
{
    return run(backend, op, write_tasks);
}

/* ---- Gated streams ----------------------------------------------------------------------------------------------- */

struct gated_job {
    const struct pf_gated_op *op;
};

static void gated_read_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct pf_gated_op *op = ((const struct gated_job *)ctx)->op;
    float share = 1.0f / (float)op->n_streams;
    (void)thread;
    for (int64_t r = begin; r < end; r++) {
        size_t at = (size_t)r * (size_t)op->n_streams * (size_t)op->n, n = (size_t)op->n;
        for (size_t c = 0; c < n; c++) {
            float y = 0;
            for (size_t i = at + c; i < at + c + (size_t)op->n_streams * n; i += n)
                y = fmaf(pf_sigmoidf(op->gates[i]), op->x[i], y);
            op->y[(size_t)r * n + c] = y * share;
        }
    }
}

pf_status pf_cpu_gated_read(pf_backend *backend, const struct pf_gated_op *op)
{
    struct gated_job job = { op };
    pf_pool_run(cpu_of(backend)->pool, gated_read_rows, &job, op->rows, 1);
    return PF_OK;
}

struct gated_write_job {
    struct cpu_backend *b;
    const struct pf_gated_op *op;
};

/* A task is a stream of a row. */
static void gated_write_streams(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct gated_write_job *job = ctx;
    const struct pf_gated_op *op = job->op;
    (void)thread;
    for (int64_t t = begin; t < end; t++)
        job->b->k.axpy(op->x + t * op->n, 2 * pf_sigmoidf(op->weights[t]), op->y + t / op->n_streams * op->n, op->n);
}

pf_status pf_cpu_gated_write(pf_backend *backend, const struct pf_gated_op *op)
{
    struct gated_write_job job = { cpu_of(backend), op };
    pf_pool_run(job.b->pool, gated_write_streams, &job, (int64_t)op->rows * op->n_streams, 8);
    return PF_OK;
}

/* ---- What enters all streams ------------------------------------------------------------------------------------- */

static float agreement(const float *a, const float *b, int n)
{
    float sum[PF_LANES] = { 0 };
    for (int i = 0; i < n; i++)
        sum[i % PF_LANES] = fmaf(a[i], b[i], sum[i % PF_LANES]);
    float s = fold32(sum) * (1.0f / sqrtf((float)n)), size = s < 0 ? -s : s;
    float root = sqrtf(size > 1e-6f ? size : 1e-6f);
    return pf_sigmoidf(s > 0 ? root : s < 0 ? -root : 0);
}

struct agree_job {
    const struct pf_agree_op *op;
};

/* A task is a stream of a row. */
static void agree_streams(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct pf_agree_op *op = ((const struct agree_job *)ctx)->op;
    (void)thread;
    for (int64_t t = begin; t < end; t++) {
        int64_t at = t * op->n;
        const float *value = op->value + t / op->n_streams * op->n;
        float gate = agreement(op->key + at, op->query + at, op->n);
        for (int i = 0; i < op->n; i++)
            op->out[at + i] = gate * value[i];
    }
}

pf_status pf_cpu_agree(pf_backend *backend, const struct pf_agree_op *op)
{
    struct agree_job job = { op };
    pf_pool_run(cpu_of(backend)->pool, agree_streams, &job, (int64_t)op->rows * op->n_streams, 1);
    return PF_OK;
}

struct spread_job {
    struct cpu_backend *b;
    const struct pf_spread_op *op;
};

/* Columns [c, ..) of row r of the batch or, r negative, of one before it. */
static const float *spread_row(const struct pf_spread_op *op, int r, int c)
{
    static const float zeros[COLUMNS];
    if (r >= 0)
        return op->u + (size_t)r * (size_t)op->n + c;
    return op->before ? op->before + (size_t)(pf_spread_rows(op) + r) * (size_t)op->n + c : zeros;
}

static void spread_piece(const struct spread_job *job, int c, int n)
{
    const struct pf_spread_op *op = job->op;
    size_t width = (size_t)op->n;
    float y[COLUMNS];
    for (int r = 0; r < op->rows; r++) {
        const float *u[PF_MAX_SPREAD_TAPS], *v = op->v + (size_t)r * width + c;
        float *x = op->x + (size_t)r * width + c;
        for (int t = 0; t < op->taps; t++)
            u[t] = spread_row(op, r - (op->taps - 1 - t) * op->step, c);
        job->b->k.conv(u, op->conv + c, width, op->taps, n, NULL, true, y);
        for (int i = 0; i < n; i++)
            x[i] = x[i] + (v[i] + y[i]);
    }
    for (int i = 0, kept = pf_spread_rows(op); i < kept; i++)
        memcpy(op->after + (size_t)i * width + c, spread_row(op, op->rows - kept + i, c), (size_t)n * sizeof *y);
}

static void spread_tasks(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct spread_job *job = ctx;
    (void)thread;
    for (int64_t t = begin; t < end; t++) {
        int c = (int)t * COLUMNS, left = job->op->n - c;
        spread_piece(job, c, left < COLUMNS ? left : COLUMNS);
    }
}

pf_status pf_cpu_spread(pf_backend *backend, const struct pf_spread_op *op)
{
    struct spread_job job = { cpu_of(backend), op };
    pf_pool_run(job.b->pool, spread_tasks, &job, (op->n + COLUMNS - 1) / COLUMNS, 1);
    return PF_OK;
}
