/* Causal convolutions, a task per piece of the channels, and Mamba2, a task per head and then one per group of heads
 * and row. Tasks that carry a state go over the batch's rows in order, so that a batch, its pieces and single steps are
 * the same arithmetic. struct pf_conv_op and struct pf_ssm_op (backend.h) define both. */
#include <string.h>

#include "base/pf_math.h"
#include "kernels/cpu/cpu.h"

enum { MAX_TAPS = 16, CHANNELS = 256 };

/* ---- Convolutions ------------------------------------------------------------------------------------------------ */

struct conv_job {
    struct cpu_backend *b;
    const struct pf_conv_op *op;
};

/* Row r of the batch from channel c on, or, r negative, one from before it; zeros if there was none. */
static const float *row_at(const struct pf_conv_op *op, int r, int c)
{
    static const float zeros[CHANNELS];
    if (r >= 0)
        return op->x + (size_t)r * (size_t)op->n + c;
    return op->before ? op->before + (size_t)(op->taps - 1 + r) * (size_t)op->n + c : zeros;
}

static void conv_piece(const struct conv_job *job, int c, int n)
{
    const struct pf_conv_op *op = job->op;
    int kept = op->taps - 1;
    for (int r = 0; r < op->rows; r++) {
        const float *x[MAX_TAPS];
        for (int t = 0; t < op->taps; t++)
            x[t] = row_at(op, r - kept + t, c);
        job->b->k.conv(x, op->w + c, (size_t)op->n, op->taps, n, op->bias ? op->bias + c : NULL, op->silu,
                       op->y + (size_t)r * (size_t)op->n + c);
    }
    for (int t = 0; t < kept; t++)
        memcpy(op->after + (size_t)t * (size_t)op->n + c, row_at(op, op->rows - kept + t, c),
               (size_t)n * sizeof(float));
}

static void conv_tasks(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct conv_job *job = ctx;
    (void)thread;
    for (int64_t t = begin; t < end; t++) {
        int c = (int)t * CHANNELS, left = job->op->n - c;
        conv_piece(job, c, left < CHANNELS ? left : CHANNELS);
    }
}

pf_status pf_cpu_conv(pf_backend *backend, const struct pf_conv_op *op)
{
    struct conv_job job = { cpu_of(backend), op };
    if (op->taps < 1 || op->taps > MAX_TAPS)
        PF_FAIL(PF_EUNSUPPORTED, "a convolution has %d taps; at most %d are supported", op->taps, (int)MAX_TAPS);
    pf_pool_run(job.b->pool, conv_tasks, &job, (op->n + CHANNELS - 1) / CHANNELS, 1);
    return PF_OK;
}

/* ---- Mamba2 ------------------------------------------------------------------------------------------------------ */

struct ssm_job {
    struct cpu_backend *b;
    const struct pf_ssm_op *op;
};

static void run_head(const struct ssm_job *job, int h)
{
    const struct pf_ssm_op *op = job->op;
    size_t d = (size_t)op->d, p = (size_t)op->p, n_out = (size_t)op->n_head * p, at = (size_t)h * d * p;
    size_t group = (size_t)(h / (op->n_head / op->n_group)), n_b = (size_t)op->n_group * d;
    float *after = op->after + at;
    const float *before = op->before ? op->before + at : after;
    if (!op->before)
        memset(after, 0, d * p * sizeof *after);
    for (int r = 0; r < op->rows; r++) {
        const float *u = op->u + (size_t)r * (n_out + 2 * n_b), *b = u + n_out + group * d;
        float t = pf_softplusf(op->dt[(size_t)r * (size_t)op->n_head + (size_t)h] + op->dt_bias[h]);
        job->b->k.ssm_step(&(struct pf_ssm_args){
            .before = before, .after = after, .b = b, .c = b + n_b, .x = u + (size_t)h * p, .t = t,
            .decay = pf_expf(t * op->a[h]), .skip = op->skip[h], .d = op->d, .p = op->p,
            .out = op->out + (size_t)r * n_out + (size_t)h * p });
        before = after;
    }
}

static void head_tasks(void *ctx, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    for (int64_t h = begin; h < end; h++)
        run_head(ctx, (int)h);
}

/* A task is a group of heads in a row. */
static void gate_tasks(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct ssm_job *job = ctx;
    const struct pf_ssm_op *op = job->op;
    int n = op->n_head / op->n_group * op->p;
    (void)thread;
    for (int64_t t = begin; t < end; t++) {
        float *y = op->out + t * n;
        job->b->k.swiglu(op->z + t * n, y, n, y);
        job->b->k.rms_norm(y, op->norm + t % op->n_group * n, op->eps, n, y);
    }
}

pf_status pf_cpu_ssm(pf_backend *backend, const struct pf_ssm_op *op)
{
    struct ssm_job job = { cpu_of(backend), op };
    pf_pool_run(job.b->pool, head_tasks, &job, op->n_head, 1);
    pf_pool_run(job.b->pool, gate_tasks, &job, (int64_t)op->rows * op->n_group, 1);
    return PF_OK;
}
