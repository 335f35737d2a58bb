/* Rows of blocks from rows of positions (struct pf_compress_op in backend.h): a task per piece of the channels, which
 * goes over the batch's rows in order, so that a batch, its pieces and single steps are the same arithmetic. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"

enum { CHANNELS = 256 };

struct compress_job {
    struct cpu_backend *b;
    const struct pf_compress_op *op;
};

/* Channels [c, c + n) of m, z and a. */
struct sums {
    float *m, *z, *a;
};

static struct sums sums_at(const struct pf_compress_op *op, int block, int c)
{
    float *m = op->after + (size_t)block * 3 * (size_t)op->n + c;
    return (struct sums){ m, m + op->n, m + 2 * (size_t)op->n };
}

static void clear(struct sums s, int n)
{
    for (int i = 0; i < n; i++) {
        s.m[i] = -INFINITY;
        s.z[i] = s.a[i] = 0;
    }
}

static void copy(struct sums to, struct sums from, int n)
{
    memcpy(to.m, from.m, (size_t)n * sizeof *to.m);
    memcpy(to.z, from.z, (size_t)n * sizeof *to.z);
    memcpy(to.a, from.a, (size_t)n * sizeof *to.a);
}

static void begin(const struct pf_compress_op *op, int c, int n)
{
    int n_blocks = 1 + op->overlaps;
    for (int i = 0; !op->before && i < n_blocks; i++)
        clear(sums_at(op, i, c), n);
    for (int i = 0; op->before && i < 3 * n_blocks; i++)
        memcpy(op->after + (size_t)i * (size_t)op->n + c, op->before + (size_t)i * (size_t)op->n + c,
               (size_t)n * sizeof *op->after);
}

/* Ends a full block: writes its row and the state for the following blocks. */
static void end_block(const struct pf_compress_op *op, int c, int n, float *out)
{
    struct sums own = sums_at(op, 0, c), next = sums_at(op, op->overlaps, c);
    for (int i = 0; i < n; i++)
        out[i] = own.a[i] / own.z[i];
    if (op->overlaps)
        copy(own, next, n);
    clear(next, n);
}

static void compress_piece(const struct compress_job *job, int c, int n)
{
    static const float zeros[CHANNELS];
    const struct pf_compress_op *op = job->op;
    size_t width = (size_t)op->n * (1 + op->overlaps), own = width - (size_t)op->n + (size_t)c;
    struct sums sums = sums_at(op, 0, c), next = sums_at(op, 1, c);
    int n_full = 0;
    begin(op, c, n);
    for (int r = 0; r < op->rows; r++) {
        size_t in = (size_t)r * width, of_place = (size_t)(op->pos[r] % op->ratio) * width;
        const float *u = op->u + in;
        job->b->k.compress(sums.m, sums.z, sums.a, u + own, op->gate ? op->gate + in + own : zeros,
                           op->gate ? op->ape + of_place + own : zeros, n);
        if (op->overlaps)
            job->b->k.compress(next.m, next.z, next.a, u + c, op->gate + in + c, op->ape + of_place + c, n);
        if ((op->pos[r] + 1) % op->ratio == 0)
            end_block(op, c, n, op->out + (size_t)n_full++ * (size_t)op->n + c);
    }
    for (; n_full < op->n_out; n_full++)
        memset(op->out + (size_t)n_full * (size_t)op->n + c, 0, (size_t)n * sizeof *op->out);
}

static void compress_tasks(void *ctx, int64_t begin_task, int64_t end_task, int thread)
{
    const struct compress_job *job = ctx;
    (void)thread;
    for (int64_t t = begin_task; t < end_task; t++) {
        int c = (int)t * CHANNELS, left = job->op->n - c;
        compress_piece(job, c, left < CHANNELS ? left : CHANNELS);
    }
}

pf_status pf_cpu_compress(pf_backend *backend, const struct pf_compress_op *op)
{
    struct compress_job job = { cpu_of(backend), op };
    pf_pool_run(job.b->pool, compress_tasks, &job, (op->n + CHANNELS - 1) / CHANNELS, 1);
    return PF_OK;
}
