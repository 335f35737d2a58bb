/* Gated DeltaNet: the causal convolution, a task per head of queries, keys or values, and then everything else, a task
 * per value head. Each task goes over the batch's rows in order, so that a batch, its pieces and single steps are the
 * same arithmetic. Source: Yang, Kautz, Hatamizadeh 2024, "Gated Delta Networks", equation 10. */
#include <math.h>
#include <string.h>

#include "base/pf_math.h"
#include "kernels/cpu/cpu.h"

enum { MAX_TAPS = 16, MAX_D = 1024, CONV_CHANNELS = 512 };

struct delta_job {
    struct cpu_backend *b;
    const struct pf_delta_op *op;
};

/* Vector i of q, k and v in row r of the batch, or, r negative, in one from before it; zeros if there was none. */
static const float *input_at(const struct pf_delta_op *op, int r, int i)
{
    static const float zeros[MAX_D];
    size_t at = (size_t)(op->taps - 1 + r) * (size_t)pf_delta_channels(op) + (size_t)i * (size_t)op->d;
    if (r < 0)
        return op->before ? op->before + at : zeros;
    const struct pf_vectors *from = pf_delta_input(op, &i);
    return pf_vector_at(from, r, i);
}

static void conv_tasks(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct delta_job *job = ctx;
    const struct pf_delta_op *op = job->op;
    size_t n = (size_t)pf_delta_channels(op), d = (size_t)op->d;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        size_t c = (size_t)i * d;
        for (int r = 0; r < op->rows; r++) {
            const float *x[MAX_TAPS];
            for (int t = 0; t < op->taps; t++)
                x[t] = input_at(op, r - (op->taps - 1) + t, (int)i);
            job->b->k.conv(x, op->conv + c, n, op->taps, op->d, NULL, true, op->mixed + (size_t)r * n + c);
        }
        for (int t = 0, r = op->rows - (op->taps - 1); t < op->taps - 1; t++)
            memcpy(op->after + (size_t)t * n + c, input_at(op, r + t, (int)i), d * sizeof(float));
    }
}

size_t pf_cpu_delta_floats(int d)
{
    return 4 * (size_t)d;                    /* one query, one key, its decays, their product */
}

/* How far the part of the state fades that is written to by one number of the key, or by all of them. */
static float decay_of(const struct pf_delta_op *op, int hv, float alpha, float dt)
{
    float f = alpha + dt;
    return pf_expf(op->least != 0 ? op->least * pf_sigmoidf(-op->a[hv] * f) : op->a[hv] * pf_softplusf(f));
}

/* The query, the key and, if each of its numbers has one, decays that value head hv uses in a row; {d} each. */
struct head_row {
    float *q, *k, *decay, *decayed_k;
};

static void step_matrix(const struct delta_job *job, int hv, int r, const struct head_row *row, const float *v,
                        const float *before, float *after, float *out)
{
    const struct pf_delta_op *op = job->op;
    const float *alpha = pf_vector_at(&op->alpha, r, hv);
    float beta = pf_sigmoidf(*pf_vector_at(&op->beta, r, hv));
    if (!op->by_key) {
        job->b->k.delta_step(&(struct pf_delta_args){
            .before = before, .after = after, .d = op->d, .q = row->q, .k = row->k, .v = v,
            .decay = decay_of(op, hv, *alpha, op->dt[hv]), .beta = beta, .out = out });
        return;
    }
    for (int i = 0; i < op->d; i++) {
        row->decay[i] = decay_of(op, hv, alpha[i], op->dt[(size_t)hv * (size_t)op->d + (size_t)i]);
        row->decayed_k[i] = row->k[i] * row->decay[i];
    }
    job->b->k.keyed_delta_step(&(struct pf_keyed_delta_args){
        .before = before, .after = after, .d = op->d, .q = row->q, .k = row->k, .decayed_k = row->decayed_k, .v = v,
        .decay = row->decay, .beta = beta, .out = out });
}

static void delta_head(const struct delta_job *job, int hv, const struct head_row *row)
{
    const struct pf_delta_op *op = job->op;
    const struct pf_kernels *kernels = &job->b->k;
    size_t d = (size_t)op->d, n_k = (size_t)op->n_k_head * d, n_v = (size_t)op->n_v_head * d;
    size_t at = pf_delta_state_rows(op) + (size_t)hv * d * d;
    size_t hk = (size_t)(op->tiled ? hv % op->n_k_head : hv / (op->n_v_head / op->n_k_head));
    float *after = op->after + at;
    const float *before = op->before ? op->before + at : after;
    if (!op->before)
        memset(after, 0, d * d * sizeof *after);
    for (int r = 0; r < op->rows; r++) {
        const float *u = op->mixed + (size_t)r * (2 * n_k + n_v);
        float *out = op->out + (size_t)r * n_v + (size_t)hv * d;
        kernels->l2_norm(u + hk * d, op->eps, 1.0f / sqrtf((float)d), (int)d, row->q);
        kernels->l2_norm(u + n_k + hk * d, op->eps, 1.0f, (int)d, row->k);
        step_matrix(job, hv, r, row, u + 2 * n_k + (size_t)hv * d, before, after, out);
        kernels->rms_norm(out, op->norm, op->eps, (int)d, out);
        (op->sigmoid_gate ? kernels->sigmoid_mul : kernels->swiglu)(pf_vector_at(&op->z, r, hv), out, (int)d, out);
        before = after;
    }
}

static void delta_tasks(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct delta_job *job = ctx;
    float *scratch = cpu_thread_scratch(job->b, thread);
    size_t d = (size_t)job->op->d;
    const struct head_row row = { scratch, scratch + d, scratch + 2 * d, scratch + 3 * d };
    for (int64_t hv = begin; hv < end; hv++)
        delta_head(job, (int)hv, &row);
}

pf_status pf_cpu_delta(pf_backend *backend, const struct pf_delta_op *op)
{
    struct delta_job job = { cpu_of(backend), op };
    if (op->taps < 1 || op->taps > MAX_TAPS || op->d > MAX_D)
        PF_FAIL(PF_EUNSUPPORTED, "a delta net has %d taps and heads of %d; at most %d and %d are supported", op->taps,
                op->d, (int)MAX_TAPS, (int)MAX_D);
    pf_pool_run(job.b->pool, conv_tasks, &job, 2 * op->n_k_head + op->n_v_head, 1 + (CONV_CHANNELS - 1) / op->d);
    pf_pool_run(job.b->pool, delta_tasks, &job, op->n_v_head, 1);
    return PF_OK;
}
