/* Ranks by NCCL: backend/ranks.h, cuda_ranks.h.
 *
 *     bytes of the host <-> room on the GPU <-> NCCL, piece by piece, on a stream of their own
 *     floats of a card: a communicator whose operations are on the card's own stream
 *
 * NCCL's calls do not wait; who waits looks at the communicator's state and at the stream in turn, so that a failure is
 * seen even where a kernel waits for a rank that will never send. Communicators are ended when one has failed, which
 * ends such kernels, and never used again. A stream takes about a thousand launches and then makes the host wait, where
 * it would see no failure: so no more than RANKS_AHEAD exchanges of a card are under way, with what lies between
 * them. */
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "base/pf_mem.h"
#include "base/pf_time.h"
#include "kernels/cuda/cuda_ranks.h"

enum { PIECE_BYTES = 8 << 20 };
static const uint64_t SECOND_NS = 1000000000, SPIN_NS = 20000000, NAP_NS = 50000;

/* ---- Waiting ----------------------------------------------------------------------------------------------------- */

pf_status pf_line_check(const struct line *l, int result)
{
    if (result == NCCL_SUCCESS || result == NCCL_IN_PROGRESS)
        return PF_OK;
    const char *more = l->comm ? l->nccl->last_error(l->comm) : NULL;
    PF_FAIL(PF_EIO, "NCCL says: %s%s%.200s", l->nccl->error_text(result), more && *more ? ": " : "", more ? more : "");
}

static pf_status check_lost(struct pf_ranks *r)
{
    if (atomic_load(&r->is_lost))
        PF_FAIL(PF_EIO, "%s", r->lost_why);
    return PF_OK;
}

pf_status pf_line_enter(struct pf_ranks *r, struct line *l)
{
    pthread_mutex_lock(&l->lock);
    if (!atomic_load(&l->has_ended) && l->comm)
        return PF_OK;
    pthread_mutex_unlock(&l->lock);
    PF_TRY(check_lost(r));
    PF_FAIL(PF_EIO, "nothing is exchanged with other ranks any more");
}

void pf_line_leave(struct line *l)
{
    pthread_mutex_unlock(&l->lock);
}

/* What is waited for besides the communicator: nothing, all of its stream or of the card, or the exchange of floats
 * whose event is the next one's. */
typedef cudaError_t ended_fn(const struct pf_ranks *r, const struct line *l);

static cudaError_t nothing(const struct pf_ranks *r, const struct line *l)
{
    (void)r, (void)l;
    return cudaSuccess;
}

static cudaError_t all_of_stream(const struct pf_ranks *r, const struct line *l)
{
    (void)r;
    return cudaStreamQuery(l->stream);
}

/* A step that was replayed says so itself, sooner than the driver does. */
static cudaError_t all_of_card(const struct pf_ranks *r, const struct line *l)
{
    enum { LISTEN_NS = 50000 };
    return pf_cuda_listen(r->card, LISTEN_NS) ? cudaSuccess : cudaStreamQuery(l->stream);
}

static cudaError_t oldest_of_floats(const struct pf_ranks *r, const struct line *l)
{
    (void)l;
    return cudaEventQuery(r->ended[r->n_floats % RANKS_AHEAD]);
}

static pf_status look(struct pf_ranks *r, struct line *l, ended_fn *ended, bool *done)
{
    int state = NCCL_SUCCESS;
    *done = false;
    PF_TRY(pf_line_enter(r, l));
    int result = r->nccl.comm_state(l->comm, &state);
    pf_status st = pf_line_check(l, result != NCCL_SUCCESS ? result : state);
    pf_line_leave(l);
    if (st < 0 || state == NCCL_IN_PROGRESS)
        return st;
    cudaError_t e = ended(r, l);
    *done = e == cudaSuccess;
    return e == cudaErrorNotReady ? PF_OK : pf_cuda_check(e, "an exchange with other ranks");
}

pf_status pf_line_look(struct pf_ranks *r, struct line *l, bool *done)
{
    return look(r, l, all_of_stream, done);
}

/* Between two looks: at first without a pause, since a step's exchanges come every few microseconds. */
static void pause_between(uint64_t since_ns)
{
    if (pf_now_ns() - since_ns < SPIN_NS)
        sched_yield();
    else
        nanosleep(&(struct timespec){ 0, (long)NAP_NS }, NULL);
}

void pf_ranks_expect(pf_ranks *r, int wait_s, const char *what)
{
    r->limit_ns = (uint64_t)wait_s * SECOND_NS;
    snprintf(r->expected, sizeof r->expected, "%s", what ? what : "");
}

/* May be cancelled if `may_cancel`, and where there is a limit, as long as ranks are not together yet. */
static pf_status wait_for(struct pf_ranks *r, struct line *l, ended_fn *ended, bool may_cancel)
{
    uint64_t begin = pf_now_ns();
    for (bool done = false;;) {
        PF_TRY(look(r, l, ended, &done));
        PF_TRY(check_lost(r));
        if (done)
            return PF_OK;
        if (r->limit_ns && pf_now_ns() - begin > r->limit_ns)
            PF_FAIL(PF_EIO, "rank %d has waited %d seconds for %s", r->rank, (int)(r->limit_ns / SECOND_NS),
                    r->expected);
        if ((may_cancel || r->limit_ns) && pf_now_ns() - begin > SPIN_NS)
            PF_TRY(pf_cancel_check(r->cancel));
        pause_between(begin);
    }
}

pf_status pf_line_settle(struct pf_ranks *r, struct line *l)
{
    return wait_for(r, l, all_of_stream, false);
}

/* After a failed exchange: nothing can be exchanged any more. peer: the rank that was waited for, or -1. */
static pf_status give_up(struct pf_ranks *r, pf_status st, int peer)
{
    char whom[40] = "";
    if (peer >= 0)
        snprintf(whom, sizeof whom, " while this one waited for rank %d", peer);
    if (st != PF_ECANCEL)
        st = PF_EIO;
    snprintf(r->why, sizeof r->why, "one of the processes that run the model is lost%s: %s", whom, pf_last_error());
    r->is_broken = true;
    pf_ranks_end(r);                         /* those who do not see it by the transport miss a heartbeat */
    PF_FAIL(st, "%s", r->why);
}

pf_status pf_ranks_abandon(pf_ranks *r, pf_status st)
{
    if (r->is_broken)
        PF_FAIL(PF_EIO, "%s", r->why);
    return give_up(r, st, -1);
}

/* By all ranks: makes the line's communicator. */
static pf_status split_line(struct pf_ranks *r, struct line *l, bool small)
{
    struct nccl_config config = pf_nccl_config(small);
    pf_status st = PF_OK;
    PF_TRY(pf_line_enter(r, &r->talk));
    pthread_mutex_lock(&l->lock);            /* whoever ends the line waits until it is known */
    if (!atomic_load(&r->is_ending))
        st = pf_line_check(&r->talk, r->nccl.comm_split(r->talk.comm, 0, r->rank, &l->comm, &config));
    pthread_mutex_unlock(&l->lock);
    pf_line_leave(&r->talk);
    PF_TRY(st);
    PF_TRY(wait_for(r, &r->talk, nothing, false));
    return wait_for(r, l, nothing, false);
}

pf_status pf_ranks_watch(pf_ranks *r)
{
    PF_TRY(r->is_broken ? pf_fail(PF_EIO, "%s", r->why) : PF_OK);
    cudaSetDevice(r->gpu);
    pf_status st = r->card ? split_line(r, &r->floats, false) : PF_OK;
    if (st == PF_OK)
        st = split_line(r, &r->beat, true);
    if (st == PF_OK)
        st = pf_ranks_start_heart(r);
    return st < 0 ? give_up(r, st, -1) : PF_OK;
}

/* ---- Opening and closing ----------------------------------------------------------------------------------------- */

/* Its communicator has ended. */
static void close_line(struct line *l)
{
    if (l->stream)
        cudaStreamDestroy(l->stream);
    cudaFree(l->room);
    pthread_mutex_destroy(&l->lock);
}

void pf_ranks_close(pf_ranks *r)
{
    if (!r)
        return;
    cudaSetDevice(r->gpu);
    pf_ranks_stop(r);
    for (int i = 0; i < RANKS_AHEAD; i++)
        if (r->ended[i])
            cudaEventDestroy(r->ended[i]);
    close_line(&r->floats);
    close_line(&r->beat);
    close_line(&r->talk);
    pf_free(r);
}

static void prepare_line(const struct pf_ranks *r, struct line *l)
{
    l->nccl = &r->nccl;
    pthread_mutex_init(&l->lock, NULL);
}

static pf_status open_line(struct line *l, size_t bytes)
{
    void *room;
    CU_TRY(cudaStreamCreateWithFlags(&l->stream, cudaStreamNonBlocking), "creating a stream for ranks");
    CU_TRY(cudaMalloc(&room, bytes), "allocating room for ranks");
    l->room = room;
    CU_TRY(cudaMemsetAsync(room, 0, bytes, l->stream), "clearing room for ranks");
    return PF_OK;
}

static pf_status meet(struct pf_ranks *r)
{
    struct nccl_id id;
    struct nccl_config config = pf_nccl_config(false);
    CU_TRY(cudaSetDevice(r->gpu), "choosing the GPU for ranks");
    PF_TRY(open_line(&r->talk, PIECE_BYTES));
    PF_TRY(open_line(&r->beat, 1 + (size_t)r->n));
    int result = r->nccl.unique_id(&id);
    if (result == NCCL_SUCCESS)
        result = r->nccl.comm_init(&r->talk.comm, r->n, id, r->rank, &config);
    PF_TRY(pf_line_check(&r->talk, result));
    PF_TRY(pf_line_settle(r, &r->talk));
    pf_ranks_expect(r, 0, NULL);
    return pf_ranks_start_guard(r);
}

pf_status pf_ranks_open(pf_ranks **out, int gpu, int rank, int n, int wait_s, const struct pf_cancel *cancel)
{
    pf_ranks *r = pf_alloc(PF_MEM_KERNELS, sizeof *r);
    char what[sizeof r->expected];
    *out = NULL;
    if (!r)
        PF_FAIL(PF_ENOMEM, "no memory for ranks");
    r->gpu = gpu;
    r->rank = rank;
    r->n = n;
    r->cancel = cancel;
    prepare_line(r, &r->talk);
    prepare_line(r, &r->beat);
    prepare_line(r, &r->floats);
    for (int k = 0; k < PF_MAX_GPUS; k++)
        atomic_init(&r->process[k], -1);
    snprintf(what, sizeof what, "the other ranks: all %d have to be started in that time and to reach rank 0's address",
             n);
    pf_ranks_expect(r, wait_s, what);
    pf_status st = pf_nccl_find(&r->nccl);
    st = st == PF_OK ? meet(r) : st;
    if (st < 0) {
        pf_ranks_close(r);
        return st;
    }
    *out = r;
    return PF_OK;
}

/* ---- Exchanges --------------------------------------------------------------------------------------------------- */

enum direction { SEND, RECEIVE, BROADCAST };

static int ask(const struct pf_ranks *r, enum direction d, int peer, size_t n)
{
    const struct line *l = &r->talk;
    switch (d) {
    case SEND:      return r->nccl.send(l->room, n, NCCL_CHAR, peer, l->comm, l->stream);
    case RECEIVE:   return r->nccl.receive(l->room, n, NCCL_CHAR, peer, l->comm, l->stream);
    case BROADCAST: break;
    }
    return r->nccl.broadcast(l->room, l->room, n, NCCL_CHAR, peer, l->comm, l->stream);
}

/* give NULL: the bytes come from a rank, to take. */
static pf_status exchange_piece(struct pf_ranks *r, enum direction d, int peer, const char *give, char *take, size_t n)
{
    struct line *l = &r->talk;
    if (give)
        CU_TRY(cudaMemcpyAsync(l->room, give, n, cudaMemcpyHostToDevice, l->stream), "a copy for another rank");
    PF_TRY(pf_line_enter(r, l));
    pf_status st = pf_line_check(l, ask(r, d, peer, n));
    pf_line_leave(l);
    PF_TRY(st);
    PF_TRY(wait_for(r, l, all_of_stream, d == BROADCAST && !give));
    if (give)
        return PF_OK;
    CU_TRY(cudaMemcpyAsync(take, l->room, n, cudaMemcpyDeviceToHost, l->stream), "a copy from another rank");
    return pf_cuda_check(cudaStreamSynchronize(l->stream), "a copy from another rank");
}

static pf_status exchange(struct pf_ranks *r, enum direction d, int peer, const char *give, char *take, size_t n)
{
    if (r->is_broken)
        PF_FAIL(PF_EIO, "%s", r->why);
    cudaSetDevice(r->gpu);
    for (size_t done = 0, piece; done < n; done += piece) {
        piece = n - done < PIECE_BYTES ? n - done : PIECE_BYTES;
        pf_status st = exchange_piece(r, d, peer, give ? give + done : NULL, give ? NULL : take + done, piece);
        if (st < 0)
            return give_up(r, st, r->rank == peer ? -1 : peer);
    }
    return PF_OK;
}

pf_status pf_ranks_broadcast(pf_ranks *r, void *bytes, size_t n)
{
    return exchange(r, BROADCAST, 0, r->rank == 0 ? bytes : NULL, bytes, n);
}

pf_status pf_ranks_send(pf_ranks *r, int to, const void *bytes, size_t n)
{
    return exchange(r, SEND, to, bytes, NULL, n);
}

pf_status pf_ranks_receive(pf_ranks *r, int from, void *bytes, size_t n)
{
    return exchange(r, RECEIVE, from, NULL, bytes, n);
}

/* Few bytes, once in a while: all go to rank 0, which hands them out. */
pf_status pf_ranks_gather(pf_ranks *r, const void *mine, void *all, size_t n)
{
    char *to = all;
    memcpy(to + (size_t)r->rank * n, mine, n);
    if (r->rank > 0)
        PF_TRY(pf_ranks_send(r, 0, mine, n));
    for (int k = 1; r->rank == 0 && k < r->n; k++)
        PF_TRY(pf_ranks_receive(r, k, to + (size_t)k * n, n));
    return pf_ranks_broadcast(r, all, n * (size_t)r->n);
}

pf_status pf_ranks_all(pf_ranks *r, bool yes, bool *all)
{
    char mine = yes, of[PF_MAX_GPUS];
    PF_TRY(pf_ranks_gather(r, &mine, of, sizeof mine));
    *all = memchr(of, 0, (size_t)r->n) == NULL;
    return PF_OK;
}

/* ---- Floats of a card -------------------------------------------------------------------------------------------- */

void pf_ranks_use(pf_ranks *r, pf_backend *card)
{
    if (r->card)
        r->card->ranks = NULL;
    r->card = pf_cuda_of(card);
    r->floats.stream = card ? r->card->stream : NULL;
    if (card)
        r->card->ranks = r;
}

/* Waits if many exchanges are under way. */
static pf_status keep_few_ahead(struct pf_ranks *r)
{
    cudaEvent_t *ended = &r->ended[r->n_floats % RANKS_AHEAD];
    if (*ended)
        return wait_for(r, &r->floats, oldest_of_floats, false);
    return pf_cuda_check(cudaEventCreateWithFlags(ended, cudaEventDisableTiming), "making an event");
}

/* PF_OK: the caller is in the line, which end_floats leaves. What is only being captured is not under way. */
static pf_status begin_floats(struct pf_ranks *r, float *x, int64_t n)
{
    PF_TRY(pf_cuda_settle(r->card));
    pf_cuda_wrote(r->card, x, n);
    CU_TRY(cudaSetDevice(r->gpu), "choosing the GPU for ranks");
    PF_TRY(r->card->capturing ? PF_OK : keep_few_ahead(r));
    return pf_line_enter(r, &r->floats);
}

/* A call of NCCL may have put nothing on the stream yet when it returns. */
static pf_status end_floats(struct pf_ranks *r, int result)
{
    pf_status st = pf_line_check(&r->floats, result);
    pf_line_leave(&r->floats);
    PF_TRY(st);
    PF_TRY(wait_for(r, &r->floats, nothing, false));
    if (r->card->capturing)
        return PF_OK;
    return pf_cuda_put(r->card, cudaEventRecord(r->ended[r->n_floats++ % RANKS_AHEAD], r->card->stream),
                       "an exchange with other ranks");
}

pf_status pf_ranks_share(pf_ranks *r, float *all, int64_t n)
{
    size_t bytes = (size_t)n * sizeof *all;
    if (r->is_broken)
        PF_FAIL(PF_EIO, "%s", r->why);
    pf_status st = begin_floats(r, all, n * r->n);
    if (st == PF_OK)
        st = end_floats(r, r->nccl.all_gather(all + n * r->rank, all, bytes, NCCL_CHAR, r->floats.comm,
                                              r->floats.stream));
    return st < 0 ? give_up(r, st, -1) : PF_OK;
}

pf_status pf_ranks_spread(pf_ranks *r, float *x, int64_t n, int from)
{
    size_t bytes = (size_t)n * sizeof *x;
    if (r->is_broken)
        PF_FAIL(PF_EIO, "%s", r->why);
    pf_status st = begin_floats(r, x, n);
    if (st == PF_OK)
        st = end_floats(r, r->nccl.broadcast(x, x, bytes, NCCL_CHAR, from, r->floats.comm, r->floats.stream));
    return st < 0 ? give_up(r, st, r->rank == from ? -1 : from) : PF_OK;
}

pf_status pf_ranks_settle(pf_ranks *r)
{
    if (r->is_broken)
        PF_FAIL(PF_EIO, "%s", r->why);
    if (!r->floats.comm || r->card->capturing)       /* nothing is under way */
        return PF_OK;
    cudaSetDevice(r->gpu);
    pf_status st = pf_cuda_settle(r->card);
    if (st == PF_OK)
        st = wait_for(r, &r->floats, all_of_card, false);
    return st < 0 ? give_up(r, st, -1) : PF_OK;
}
