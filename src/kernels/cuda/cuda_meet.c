/* Rows that several cards make together: backend/meet.h. Order is that of pf_cuda_after. */
#include "backend/meet.h"
#include "kernels/cuda/cu_among.h"
#include "kernels/cuda/cuda_backend.h"

static bool meet_reaches(const pf_backend *b, const pf_backend *other)
{
    return pf_cuda_reaches((const struct cuda_backend *)b, (const struct cuda_backend *)other);
}

static pf_status meet_after(pf_backend *b, pf_backend *other)
{
    return pf_cuda_after(pf_cuda_of(b), pf_cuda_of(other));
}

static pf_status meet_show(pf_backend *backend, const float *from, float *to, int64_t n)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    const struct cu_letter l = { { { from, to, n } } };
    PF_TRY(pf_cuda_settle(b));
    return pf_cuda_put(b, pf_cu_send(b->stream, &l), "showing rows to other GPUs");
}

static pf_status meet_gather(pf_backend *backend, const struct pf_gather_op *g)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    PF_TRY(pf_cuda_settle(b));
    pf_cuda_wrote(b, g->y, (int64_t)g->rows * g->n);
    return pf_cuda_put(b, pf_cu_gather(b->stream, g), "gathering rows of several GPUs");
}

static void meet_forget(pf_backend *backend)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    cudaSetDevice(b->device);
    cudaStreamSynchronize(b->stream);
    pf_cuda_drop_graphs(b);
}

const struct pf_meet_ops pf_cuda_meet_ops = {
    .reaches = meet_reaches, .after = meet_after, .show = meet_show, .gather = meet_gather, .forget = meet_forget,
};
