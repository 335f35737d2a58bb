/* Rows that several cards make together: backend/meet.h. Order is that of pf_cuda_after. */
#include "backend/meet.h"
#include "base/pf_time.h"
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

/* Where rows are quantised as they come, for the product that reads them: nowhere if they are added to others, or if
 * the cards' columns are no whole blocks. */
static struct cu_x codes_of(const struct cuda_backend *b, const struct pf_swap_op *s)
{
    const struct cu_x none = { 0 };
    int most_rows = s->for_down ? b->sizes.max_picks : b->sizes.max_rows;
    int most = s->for_down ? b->sizes.n_ff : b->sizes.max_n_in;
    bool whole = !s->adds && s->rows <= most_rows && s->n <= most;
    for (int k = 1; k <= s->n_cards; k++)
        whole &= s->first[k] % 32 == 0;
    return !whole ? none : s->for_down ? b->a : b->x;
}

static pf_status meet_swap(pf_backend *backend, const struct pf_swap_op *s)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    PF_TRY(pf_cuda_settle(b));
    struct cu_x codes = codes_of(b, s);
    pf_cuda_wrote(b, s->y, (int64_t)s->rows * s->n);
    CU_PUT(b, pf_cu_swap(b->stream, s, &codes, b->fault), "exchanging rows with other GPUs");
    if (codes.q && s->for_down) {
        b->a_of = s->y;
    } else if (codes.q) {
        b->x_of = s->y;
        b->x_floats = (int64_t)s->rows * s->n;
    }
    return PF_OK;
}

static void meet_give_up(pf_backend *backend)
{
    __atomic_store_n(pf_cuda_of(backend)->fault, CU_CARD_LATE, __ATOMIC_RELEASE);
}

static cudaError_t state_of(struct cuda_backend *b)
{
    cudaError_t e = cudaSetDevice(b->device);
    e = e == cudaSuccess ? cudaStreamQuery(b->stream) : e;
    cudaGetLastError();
    return e;
}

static bool meet_has_ended(pf_backend *backend, uint64_t ns)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    uint64_t begin = pf_now_ns();
    if (pf_cuda_listen(b, ns))
        return true;
    do
        if (state_of(b) != cudaErrorNotReady)
            return true;
    while (pf_now_ns() - begin < ns);
    return false;
}

static bool meet_has_failed(pf_backend *backend)
{
    cudaError_t e = state_of(pf_cuda_of(backend));
    return e != cudaSuccess && e != cudaErrorNotReady;
}

static pf_status meet_clear(pf_backend *backend, void *tray, size_t bytes)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    PF_TRY(pf_cuda_put(b, cudaMemsetAsync(tray, 0, bytes, b->stream), "clearing what GPUs exchange"));
    return pf_cuda_check(cudaStreamSynchronize(b->stream), "clearing what GPUs exchange");
}

static void meet_forget(pf_backend *backend)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    cudaSetDevice(b->device);
    cudaStreamSynchronize(b->stream);
    pf_cuda_drop_graphs(b);
}

const struct pf_meet_ops pf_cuda_meet_ops = {
    .reaches = meet_reaches, .after = meet_after, .show = meet_show, .gather = meet_gather,
    .swap = meet_swap, .give_up = meet_give_up, .has_ended = meet_has_ended, .has_failed = meet_has_failed,
    .clear = meet_clear, .forget = meet_forget,
};
