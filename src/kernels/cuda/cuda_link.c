/* What an exchange between cards takes: backend/meet.h. A graph over all cards, like a step of decoding, sends letters
 * from the first card to the others and back, again and again, in the way in which experts are exchanged, and rows
 * where cards do not reach each other; another one swaps rows by trays. */
#include "backend/meet.h"
#include "kernels/cuda/cu_among.h"
#include "kernels/cuda/cuda_backend.h"

enum { LETTER = 1 << 20, MANY = 16, RUNS = 3 };      /* words of a large letter; ways there and back of small ones */
enum { ROW = 4096, SWAPS = 64 };                     /* floats of a row that is swapped; how often */

struct probe {
    struct cuda_backend *cards[PF_MAX_GPUS];
    int         n;
    void       *tray[PF_MAX_GPUS];
    void       *at[PF_MAX_GPUS];                     /* room for a letter in each card's memory, */
    void       *host;                                /* and in the host's, by which cards that are apart exchange */
    cudaEvent_t begin, end;
};

static pf_status send(struct cuda_backend *b, const void *from, void *to, int words)
{
    const struct cu_letter l = { { { from, to, words } } };
    return pf_cuda_put(b, pf_cu_send(b->stream, &l), "measuring an exchange");
}

/* `to` goes on when it has the letter. */
static pf_status pass(const struct probe *p, int from, int to, int words)
{
    struct cuda_backend *a = p->cards[from], *b = p->cards[to];
    bool reaches = pf_cuda_reaches(b, a);
    if (!reaches)
        PF_TRY(send(a, p->at[from], p->host, words));
    PF_TRY(pf_cuda_after(b, a));
    return send(b, reaches ? p->at[from] : p->host, p->at[to], words);
}

static pf_status pass_all(const struct probe *p, int words, int times)
{
    for (int i = 0; i < times; i++) {
        for (int k = 1; k < p->n; k++)
            PF_TRY(pass(p, 0, k, words));
        for (int k = 1; k < p->n; k++)
            PF_TRY(pass(p, k, 0, words));
    }
    return PF_OK;
}

/* As a team of cards does it, whose first card records what all do. */
static pf_status swap_all(const struct probe *p, int words, int times)
{
    const struct cu_x none = { 0 };
    struct pf_swap_op s = { .n_cards = p->n, .rows = 1, .n = words };
    for (int k = 0; k < p->n; k++) {
        s.tray[k] = p->tray[k];
        s.first[k + 1] = (int)((int64_t)words * (k + 1) / p->n);
        PF_TRY(k > 0 ? pf_cuda_after(p->cards[k], p->cards[0]) : PF_OK);
    }
    for (int i = 0; i < times; i++)
        for (s.card = 0; s.card < p->n; s.card++) {
            struct cuda_backend *b = p->cards[s.card];
            s.y = p->at[s.card];
            s.mine = s.y + s.first[s.card];
            PF_TRY(pf_cuda_put(b, pf_cu_swap(b->stream, &s, &none, b->fault), "measuring an exchange"));
        }
    for (int k = 1; k < p->n; k++)
        PF_TRY(pf_cuda_after(p->cards[0], p->cards[k]));
    return PF_OK;
}

typedef pf_status exchange(const struct probe *p, int words, int times);

static pf_status record(const struct probe *p, exchange *all, int words, int times, cudaGraphExec_t *exec)
{
    struct cuda_backend *b = p->cards[0];
    cudaGraph_t graph = NULL;
    CU_TRY(cudaSetDevice(b->device), "choosing the GPU");
    CU_TRY(cudaStreamBeginCapture(b->stream, cudaStreamCaptureModeThreadLocal), "capturing an exchange");
    pf_status st = all(p, words, times);
    cudaSetDevice(b->device);
    cudaError_t e = cudaStreamEndCapture(b->stream, &graph);
    if (st == PF_OK && e == cudaSuccess)
        e = cudaGraphInstantiate(exec, graph, 0);
    if (graph)
        cudaGraphDestroy(graph);
    return st < 0 ? st : pf_cuda_check(e, "capturing an exchange");
}

/* Until all cards have done what they were asked for, whatever failed. */
static void finish(const struct probe *p)
{
    for (int k = 0; k < p->n; k++) {
        cudaSetDevice(p->cards[k]->device);
        cudaStreamSynchronize(p->cards[k]->stream);
    }
}

/* The least time of all. */
static pf_status time_all(const struct probe *p, exchange *all, int words, int times, double *seconds)
{
    cudaStream_t stream = p->cards[0]->stream;
    cudaGraphExec_t exec = NULL;
    pf_status st = record(p, all, words, times, &exec);
    *seconds = 0;
    for (int i = 0; st == PF_OK && i < RUNS; i++) {
        float ms = 0;
        cudaEventRecord(p->begin, stream);
        cudaError_t e = cudaGraphLaunch(exec, stream);
        cudaEventRecord(p->end, stream);
        e = e == cudaSuccess ? cudaEventSynchronize(p->end) : e;
        st = pf_cuda_check(e == cudaSuccess ? cudaEventElapsedTime(&ms, p->begin, p->end) : e, "timing an exchange");
        *seconds = i == 0 || ms * 1e-3 < *seconds ? ms * 1e-3 : *seconds;
    }
    finish(p);
    if (exec)
        cudaGraphExecDestroy(exec);
    return st;
}

/* Trays, where all cards reach each other. */
static pf_status measure_swap(struct probe *p, double *seconds)
{
    for (int k = 0; k < p->n; k++)
        for (int i = 0; i < p->n; i++)
            if (i != k && !pf_cuda_reaches(p->cards[k], p->cards[i]))
                return PF_OK;
    for (int k = 0; k < p->n; k++) {
        struct cuda_backend *b = p->cards[k];
        PF_TRY(pf_cuda_alloc(b, pf_tray_bytes(p->n), "measuring an exchange", &p->tray[k]));
        PF_TRY(pf_cuda_put(b, cudaMemsetAsync(p->tray[k], 0, pf_tray_bytes(p->n), b->stream), "measuring an exchange"));
        CU_TRY(cudaStreamSynchronize(b->stream), "measuring an exchange");
    }
    PF_TRY(time_all(p, swap_all, ROW, SWAPS, seconds));
    *seconds /= SWAPS;
    return PF_OK;
}

static pf_status measure(struct probe *p, struct pf_link *link)
{
    double large;
    for (int k = 0; k < p->n; k++)
        PF_TRY(pf_cuda_alloc(p->cards[k], LETTER * sizeof(float), "measuring an exchange", &p->at[k]));
    CU_TRY(cudaSetDevice(p->cards[0]->device), "choosing the GPU");
    CU_TRY(cudaHostAlloc(&p->host, LETTER * sizeof(float), cudaHostAllocMapped), "allocating pinned memory");
    CU_TRY(cudaEventCreate(&p->begin), "timing an exchange");
    CU_TRY(cudaEventCreate(&p->end), "timing an exchange");
    PF_TRY(time_all(p, pass_all, 1, MANY, &link->seconds));
    PF_TRY(time_all(p, pass_all, LETTER, 1, &large));
    link->seconds /= 2 * MANY;                       /* of one way */
    large /= 2;
    if (link->seconds <= 0 || large <= link->seconds)
        PF_FAIL(PF_EDEVICE, "the time of an exchange between GPUs cannot be");
    link->bytes_s = LETTER * sizeof(float) / (large - link->seconds);
    return PF_OK;
}

static void close_probe(struct probe *p)
{
    for (int k = 0; k < p->n; k++) {
        cudaSetDevice(p->cards[k]->device);
        pf_cuda_free(p->cards[k], p->at[k], LETTER * sizeof(float));
        pf_cuda_free(p->cards[k], p->tray[k], pf_tray_bytes(p->n));
    }
    cudaSetDevice(p->cards[0]->device);
    if (p->begin)
        cudaEventDestroy(p->begin);
    if (p->end)
        cudaEventDestroy(p->end);
    cudaFreeHost(p->host);
    cudaGetLastError();
}

struct pf_link pf_backend_cuda_link(pf_backend *const *cards, int n, double *swap_seconds)
{
    struct probe p = { .n = n };
    struct pf_link link = { 0, 0 };
    *swap_seconds = 0;
    for (int k = 0; k < n; k++)
        p.cards[k] = pf_cuda_of(cards[k]);
    if (measure(&p, &link) < 0)
        link = (struct pf_link){ 0, 0 };
    if (link.seconds > 0 && measure_swap(&p, swap_seconds) < 0)
        *swap_seconds = 0;
    close_probe(&p);
    return link;
}
