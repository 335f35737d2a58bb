/* Gated DeltaNet: the causal convolution, a task per piece of its channels, and the delta rule, a task per value head.
 * Both go over the batch's rows in order, so that a batch, its pieces and single steps are the same arithmetic.
 * Source: Yang, Kautz, Hatamizadeh 2024, "Gated Delta Networks", equation 10. */
#include <math.h>
#include <string.h>

#include "base/pf_math.h"
#include "kernels/cpu/cpu.h"

enum { MAX_TAPS = 16, CHANNELS = 512 };

struct conv_job {
    struct cpu_backend *b;
    const struct pf_conv_op *op;
};

/* Row r of the batch, or, r negative, one from before it; zeros if there was none. */
static const float *row_of(const struct pf_conv_op *op, int r, const float *zeros)
{
    if (r >= 0)
        return op->x + (size_t)r * op->n;
    return op->before ? op->before + (size_t)(op->taps - 1 + r) * op->n : zeros;
}

static void conv_tasks(void *ctx, int64_t begin, int64_t end, int thread)
{
    static const float zeros[CHANNELS];
    const struct conv_job *job = ctx;
    const struct pf_conv_op *op = job->op;
    (void)thread;
    for (int64_t t = begin; t < end; t++) {
        int c = (int)t * CHANNELS, n = op->n - c < CHANNELS ? op->n - c : CHANNELS;
        for (int r = 0; r < op->rows; r++) {
            const float *x[MAX_TAPS];
            for (int i = 0; i < op->taps; i++) {
                const float *row = row_of(op, r - (op->taps - 1) + i, NULL);
                x[i] = row ? row + c : zeros;
            }
            job->b->k.conv_silu(x, op->w + c, (size_t)op->n, op->taps, n, op->y + (size_t)r * op->n + c);
        }
        for (int i = 0; i < op->taps - 1; i++) {
            const float *row = row_of(op, op->rows - (op->taps - 1) + i, NULL);
            memcpy(op->after + (size_t)i * op->n + c, row ? row + c : zeros, (size_t)n * sizeof *row);
        }
    }
}

pf_status pf_cpu_conv(pf_backend *backend, const struct pf_conv_op *op)
{
    struct conv_job job = { cpu_of(backend), op };
    if (op->taps < 1 || op->taps > MAX_TAPS)
        PF_FAIL(PF_EUNSUPPORTED, "a convolution has %d taps; at most %d are supported", op->taps, MAX_TAPS);
    pf_pool_run(job.b->pool, conv_tasks, &job, (op->n + CHANNELS - 1) / CHANNELS, 1);
    return PF_OK;
}

struct delta_job {
    struct cpu_backend *b;
    const struct pf_delta_op *op;
};

size_t pf_cpu_delta_floats(int d)
{
    return 2 * (size_t)d;                    /* one query and one key */
}

static void delta_head(const struct delta_job *job, int hv, float *q, float *k)
{
    const struct pf_delta_op *op = job->op;
    const struct pf_kernels *kernels = &job->b->k;
    size_t d = (size_t)op->d, n_k = (size_t)op->n_k_head * d, n_v = (size_t)op->n_v_head * d;
    size_t hk = (size_t)(op->tiled ? hv % op->n_k_head : hv / (op->n_v_head / op->n_k_head));
    float *after = op->after + (size_t)hv * d * d;
    const float *before = op->before ? op->before + (size_t)hv * d * d : after;
    if (!op->before)
        memset(after, 0, d * d * sizeof *after);
    for (int r = 0; r < op->rows; r++) {
        const float *u = op->u + (size_t)r * (2 * n_k + n_v);
        size_t at = (size_t)r * (size_t)op->n_v_head + (size_t)hv;
        kernels->l2_norm(u + hk * d, op->eps, 1.0f / sqrtf((float)d), (int)d, q);
        kernels->l2_norm(u + n_k + hk * d, op->eps, 1.0f, (int)d, k);
        kernels->delta_step(&(struct pf_delta_args){
            .before = before, .after = after, .d = (int)d, .q = q, .k = k, .v = u + 2 * n_k + (size_t)hv * d,
            .decay = pf_expf(op->a[hv] * pf_softplusf(op->alpha[at] + op->dt[hv])), .beta = pf_sigmoidf(op->beta[at]),
            .out = op->out + (size_t)r * n_v + (size_t)hv * d });
        before = after;
    }
}

static void delta_tasks(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct delta_job *job = ctx;
    float *q = cpu_thread_scratch(job->b, thread);
    for (int64_t hv = begin; hv < end; hv++)
        delta_head(job, (int)hv, q, q + job->op->d);
}

pf_status pf_cpu_delta(pf_backend *backend, const struct pf_delta_op *op)
{
    struct delta_job job = { cpu_of(backend), op };
    pf_pool_run(job.b->pool, delta_tasks, &job, op->n_v_head, 1);
    return PF_OK;
}
