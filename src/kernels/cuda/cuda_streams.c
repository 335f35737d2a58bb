/* Operations on several residual streams, each one kernel. See cuda_backend.h. */
#include "kernels/cuda/cuda_backend.h"

pf_status pf_cuda_mix(pf_backend *backend, const struct pf_mix_op *m)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    struct pf_mix_op o = *m;
    PF_TRY(pf_cuda_settle(b));
    PF_TRY(pf_cuda_floats_at(b, m->base, (size_t)m->n_weights, &o.base));
    PF_TRY(pf_cuda_floats_at(b, m->scale, m->n_weights > m->n_streams ? 3 : 1, &o.scale));
    pf_cuda_wrote(b, m->weights, (int64_t)m->rows * m->n_weights);
    return pf_cuda_put(b, pf_cu_mix(b->stream, &o), "mixing streams");
}

pf_status pf_cuda_streams_read(pf_backend *backend, const struct pf_streams_op *s)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    PF_TRY(pf_cuda_settle(b));
    pf_cuda_wrote(b, s->y, (int64_t)s->rows * s->n);
    return pf_cuda_put(b, pf_cu_streams_read(b->stream, s), "reading streams");
}

pf_status pf_cuda_streams_write(pf_backend *backend, const struct pf_streams_op *s)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    PF_TRY(pf_cuda_settle(b));
    pf_cuda_wrote(b, s->x, (int64_t)s->rows * s->n_streams * s->n);
    return pf_cuda_put(b, pf_cu_streams_write(b->stream, s), "writing streams");
}

pf_status pf_cuda_gated_read(pf_backend *backend, const struct pf_gated_op *g)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    PF_TRY(pf_cuda_settle(b));
    pf_cuda_wrote(b, g->y, (int64_t)g->rows * g->n);
    return pf_cuda_put(b, pf_cu_gated_read(b->stream, g), "reading streams");
}

pf_status pf_cuda_gated_write(pf_backend *backend, const struct pf_gated_op *g)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    PF_TRY(pf_cuda_settle(b));
    pf_cuda_wrote(b, g->x, (int64_t)g->rows * g->n_streams * g->n);
    return pf_cuda_put(b, pf_cu_gated_write(b->stream, g), "writing streams");
}

pf_status pf_cuda_agree(pf_backend *backend, const struct pf_agree_op *a)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    PF_TRY(pf_cuda_settle(b));
    pf_cuda_wrote(b, a->out, (int64_t)a->rows * a->n_streams * a->n);
    return pf_cuda_put(b, pf_cu_agree(b->stream, a), "gating streams");
}

pf_status pf_cuda_spread(pf_backend *backend, const struct pf_spread_op *s)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    struct pf_spread_op o = *s;
    PF_TRY(pf_cuda_settle(b));
    PF_TRY(pf_cuda_floats_at(b, s->conv, (size_t)s->taps * (size_t)s->n, &o.conv));
    pf_cuda_wrote(b, s->x, (int64_t)s->rows * s->n);
    return pf_cuda_put(b, pf_cu_spread(b->stream, &o), "a convolution");
}
