/* Copies of the host's memory to the GPU's by tickets, beside the stream of operations: fetch to release of
 * backend/share.h.
 *
 *     soon           tickets below PF_SHARE_BACKGROUND: what a step needs now
 *     background     the others: what some step may need
 */
#include "base/pf_mem.h"
#include "kernels/cuda/cuda_backend.h"

struct ticket {
    cudaEvent_t begun, ended, released;
    bool        in_flight, was_released;
    uint64_t    number;                  /* copies of `soon`, numbered as they end; background copies: 0 */
};

struct cuda_copies {
    cudaStream_t  soon, background;      /* soon may be the backend's own stream */
    struct ticket tickets[PF_SHARE_TICKETS];
    uint64_t      n_copies, n_ended;     /* copies of `soon` begun; the first n_ended are known to have ended well */
};

/* ---- Opening and closing ----------------------------------------------------------------------------------------- */

static pf_status open_tickets(struct cuda_copies *c)
{
    for (int i = 0; i < PF_SHARE_TICKETS; i++) {
        CU_TRY(cudaEventCreate(&c->tickets[i].begun), "making an event");
        CU_TRY(cudaEventCreate(&c->tickets[i].ended), "making an event");
        CU_TRY(cudaEventCreateWithFlags(&c->tickets[i].released, cudaEventDisableTiming), "making an event");
    }
    return PF_OK;
}

pf_status pf_cuda_copies_open(struct cuda_backend *b, bool one_stream)
{
    struct cuda_copies *c = pf_alloc(PF_MEM_KERNELS, sizeof *c);
    if (!c)
        PF_FAIL(PF_ENOMEM, "no memory for copies to the GPU");
    b->copies = c;
    CU_TRY(cudaSetDevice(b->device), "choosing the GPU");
    PF_TRY(open_tickets(c));
    c->soon = b->stream;
    if (!one_stream)
        CU_TRY(cudaStreamCreateWithFlags(&c->soon, cudaStreamNonBlocking), "opening a stream");
    return pf_cuda_check(cudaStreamCreateWithFlags(&c->background, cudaStreamNonBlocking), "opening a stream");
}

pf_status pf_cuda_open_copies(pf_backend *backend)
{
    return pf_cuda_copies_open(pf_cuda_of(backend), false);
}

void pf_cuda_copies_close(struct cuda_backend *b)
{
    struct cuda_copies *c = b->copies;
    if (!c)
        return;
    if (c->soon && c->soon != b->stream)
        cudaStreamDestroy(c->soon);
    if (c->background)
        cudaStreamDestroy(c->background);
    for (int i = 0; i < PF_SHARE_TICKETS; i++) {
        cudaEvent_t events[] = { c->tickets[i].begun, c->tickets[i].ended, c->tickets[i].released };
        for (int k = 0; k < 3; k++)
            if (events[k])
                cudaEventDestroy(events[k]);
    }
    pf_free(c);
    b->copies = NULL;
}

/* ---- Copies ------------------------------------------------------------------------------------------------------ */

const void *pf_cuda_pin(pf_backend *backend, void *host, size_t bytes)
{
    void *seen = NULL;
    cudaSetDevice(pf_cuda_of(backend)->device);
    cudaError_t e = cudaHostRegister(host, bytes, cudaHostRegisterPortable);
    if (e == cudaErrorInvalidValue)      /* the host may only read it, as a mapped file */
        e = cudaHostRegister(host, bytes, cudaHostRegisterPortable | cudaHostRegisterReadOnly);
    if (e != cudaSuccess)
        cudaGetLastError();              /* another card has pinned it; or copies will be slower, and measured so */
    if (e != cudaSuccess && e != cudaErrorHostMemoryAlreadyRegistered)
        return NULL;
    if (cudaHostGetDevicePointer(&seen, host, 0) != cudaSuccess)
        cudaGetLastError();
    return seen;
}

void pf_cuda_unpin(pf_backend *backend, void *host)
{
    cudaSetDevice(pf_cuda_of(backend)->device);
    if (cudaHostUnregister(host) != cudaSuccess)
        cudaGetLastError();
}

static pf_status begin_copies(struct cuda_backend *b, struct ticket *t, const struct pf_piece *pieces, int n,
                              cudaStream_t stream)
{
    if (t->was_released)
        CU_TRY(cudaStreamWaitEvent(stream, t->released, 0), "beginning a copy");
    t->was_released = false;
    CU_TRY(cudaEventRecord(t->begun, stream), "beginning a copy");
    for (int i = 0; i < n; i++)
        CU_PUT(b, cudaMemcpyAsync(pieces[i].to, pieces[i].from, pieces[i].bytes, cudaMemcpyHostToDevice, stream),
               "copying weights");
    return pf_cuda_check(cudaEventRecord(t->ended, stream), "copying weights");
}

pf_status pf_cuda_fetch(pf_backend *backend, int ticket, const struct pf_piece *pieces, int n)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    struct ticket *t = &b->copies->tickets[ticket];
    cudaStream_t stream = ticket < PF_SHARE_BACKGROUND ? b->copies->soon : b->copies->background;
    pf_status st = begin_copies(b, t, pieces, n, stream);
    if (st < 0) {
        cudaStreamSynchronize(stream);       /* nothing of it is under way when the caller takes the memory back */
        return st;
    }
    t->in_flight = true;
    t->number = ticket < PF_SHARE_BACKGROUND ? ++b->copies->n_copies : 0;
    return PF_OK;
}

static enum pf_fetch_state state_of(cudaError_t e)
{
    if (e == cudaSuccess)
        return PF_FETCH_READY;
    cudaGetLastError();
    return e == cudaErrorNotReady ? PF_FETCH_IN_FLIGHT : PF_FETCH_FAILED;
}

/* The state of a copy. Its event is asked only if no later copy is known to have ended, as the GPU waits meanwhile. */
static enum pf_fetch_state state_by(struct cuda_copies *c, const struct ticket *t, cudaError_t (*ask)(cudaEvent_t))
{
    if (!t->in_flight || (t->number > 0 && t->number <= c->n_ended))
        return PF_FETCH_READY;
    enum pf_fetch_state state = state_of(ask(t->ended));
    if (state == PF_FETCH_READY && t->number > 0)
        c->n_ended = t->number;
    return state;
}

enum pf_fetch_state pf_cuda_fetch_state(pf_backend *backend, int ticket)
{
    struct cuda_copies *c = pf_cuda_of(backend)->copies;
    return state_by(c, &c->tickets[ticket], cudaEventQuery);
}

enum pf_fetch_state pf_cuda_fetch_wait(pf_backend *backend, int ticket)
{
    struct cuda_copies *c = pf_cuda_of(backend)->copies;
    return state_by(c, &c->tickets[ticket], cudaEventSynchronize);
}

uint64_t pf_cuda_fetch_ns(pf_backend *backend, int ticket)
{
    struct ticket *t = &pf_cuda_of(backend)->copies->tickets[ticket];
    float ms = 0;
    if (cudaEventElapsedTime(&ms, t->begun, t->ended) != cudaSuccess) {
        cudaGetLastError();
        return 0;
    }
    return ms > 0 ? (uint64_t)((double)ms * 1e6) : 0;        /* below 0: the copy could not begin */
}

pf_status pf_cuda_use(pf_backend *backend, int ticket)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    cudaEvent_t ended = b->copies->tickets[ticket].ended;
    return pf_cuda_check(cudaStreamWaitEvent(pf_cuda_follows(b), ended, 0), "waiting for a copy");
}

pf_status pf_cuda_release(pf_backend *backend, int ticket)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    struct ticket *t = &b->copies->tickets[ticket];
    t->was_released = true;
    return pf_cuda_check(cudaEventRecord(t->released, pf_cuda_follows(b)), "releasing a copy");
}
