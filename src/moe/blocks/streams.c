/* Several residual streams and what a block reads of them and writes to them: manifold-constrained hyper-connections
 * (Xie et al. 2025, "mHC"; DeepSeek-AI 2026, "DeepSeek-V4").
 *
 *     L  = fn * norm(all streams as one row)       24 numbers for 4 streams
 *     read, write, mix = of L: struct pf_mix_op
 *     x  = sum over streams of read * stream;  y = block(norm(x))
 *     stream'[to] = write[to] * y + sum over from of mix[from][to] * stream[from]
 *
 * Gated streams (Qwen 3.8) are normed one by one, in the place of the block's own norm, and read element by element:
 *
 *     n  = norm of each stream;  gate = up * silu(down * n / S);  x = 1 / S * sum over streams of sigmoid(gate) * n
 *     stream' = stream + 2 sigmoid(inject * n / S) * y
 *
 * At the start each stream is the embedding, at the end they are only read, or their mean is taken. */
#include "moe/blocks/blocks.h"

static struct pf_streams_op op_of(const struct pf_step *t, const struct pf_mix *mix, float *x, int rows,
                                  const float *weights, float *y)
{
    return (struct pf_streams_op){ .x = x, .y = y, .weights = weights, .n = t->m->n_embd, .n_streams = t->m->streams.n,
                                   .n_weights = mix->fn.n_out, .rows = rows };
}

static pf_status read_mixed(struct pf_step *t, const struct pf_mix *mix, float *x, int rows, float *weights, float *y)
{
    const struct pf_backend_ops *ops = ops_of(t);
    pf_backend *be = t->unit->backend;
    const struct pf_streams_sizes *z = &t->m->streams;
    struct pf_buffers *b = &t->unit->buf;
    struct pf_streams_op op = op_of(t, mix, x, rows, weights, y);
    PF_TRY(ops->rms_norm(be, x, NULL, t->m->eps, mix->fn.n_in, rows, b->flat));
    PF_TRY(pf_project(t, &(struct pf_linear){ &mix->fn, weights }, 1, b->flat, rows));
    PF_TRY(ops->mix(be, &(struct pf_mix_op){
        .logits = weights, .base = mix->base, .scale = mix->scale, .weights = weights, .n_streams = z->n,
        .n_weights = mix->fn.n_out, .rounds = z->rounds, .rows = rows, .eps = z->eps }));
    return ops->streams_read(be, &op);
}

static pf_status read_gated(struct pf_step *t, const struct pf_mix *mix, float *x, int rows, float *weights, float *y)
{
    const struct pf_backend_ops *ops = ops_of(t);
    pf_backend *be = t->unit->backend;
    int n = t->m->n_embd, n_streams = t->m->streams.n;
    struct pf_buffers *b = &t->unit->buf;
    const struct pf_linear of_all[] = { { &mix->down, b->gate_low }, { &mix->inject, weights } };
    PF_TRY(ops->norm_each(be, x, mix->norm, t->m->eps, n, n_streams, rows, b->flat));
    PF_TRY(pf_project(t, of_all, mix->inject.data ? 2 : 1, b->flat, rows));
    PF_TRY(ops->act(be, (struct pf_act){ .kind = PF_ACT_SIGMOID }, b->gate_low, b->gate_low,
                    (int64_t)rows * mix->down.n_out, b->gate_low));
    PF_TRY(pf_project(t, &(struct pf_linear){ &mix->up, b->gates }, 1, b->gate_low, rows));
    return ops->gated_read(be, &(struct pf_gated_op){ .x = b->flat, .y = y, .gates = b->gates, .n = n,
                                                      .n_streams = n_streams, .rows = rows });
}

pf_status pf_block_input(struct pf_step *t, const struct pf_mix *mix, const float *norm, const float *bias, float *x,
                         int rows, float *weights, float *h)
{
    const struct pf_model *m = t->m;
    float *y = t->unit->buf.y;
    if (m->arch->gated_streams)
        return read_gated(t, mix, x, rows, weights, h);
    if (m->streams.n > 1)
        PF_TRY(read_mixed(t, mix, x, rows, weights, y));
    else if (m->is_centred)
        PF_TRY(ops_of(t)->centre(t->unit->backend, x, m->n_embd, rows, y));
    else
        y = x;
    return pf_norm(t, y, norm, bias, m->eps, rows, h);
}

pf_status pf_streams_write(struct pf_step *t, const struct pf_mix *mix, float *x, int rows, float *weights, float *y)
{
    struct pf_streams_op op = op_of(t, mix, x, rows, weights, y);
    if (t->m->arch->gated_streams)
        return ops_of(t)->gated_write(t->unit->backend, &(struct pf_gated_op){
            .x = x, .y = y, .weights = weights, .n = op.n, .n_streams = op.n_streams, .rows = rows });
    return ops_of(t)->streams_write(t->unit->backend, &op);
}

pf_status pf_streams_begin(struct pf_step *t, const float *h, int rows, float *x)
{
    int n = t->m->n_embd;
    const struct pf_copy each = { h, x, n, t->m->streams.n, 0, n, n, (int64_t)t->m->streams.n * n };
    return ops_of(t)->copy(t->unit->backend, &each, 1, rows);
}

pf_status pf_streams_sum(struct pf_step *t, const float *x, int rows, float *y, float *scratch)
{
    const struct pf_backend_ops *ops = ops_of(t);
    int n = t->m->n_embd, n_streams = t->m->streams.n;
    for (int i = 0; i < n_streams; i++) {
        const struct pf_copy one = { x + i * n, i ? scratch : y, n, 1, 0, 0, (int64_t)n_streams * n, n };
        PF_TRY(ops->copy(t->unit->backend, &one, 1, rows));
        if (i)
            PF_TRY(ops->add(t->unit->backend, y, 1, scratch, (int64_t)rows * n));
    }
    return PF_OK;
}
