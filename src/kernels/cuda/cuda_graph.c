/* Steps: begun, captured, replayed, waited for: invariant 4 of cuda_backend.h. Where layers are shared with the host, a
 * launched graph waits for it in each of them: pf_cuda_end does the host's part. */
#include <immintrin.h>

#include "backend/ranks.h"
#include "base/pf_time.h"
#include "kernels/cuda/cuda_backend.h"

enum { GRAPH_ROWS = CU_VECTOR_ROWS };

static void forget(struct graph *g)
{
    if (g->exec)
        cudaGraphExecDestroy(g->exec);
    g->exec = NULL;
}

void pf_cuda_drop_graphs(struct cuda_backend *b)
{
    for (int i = 0; i < CUDA_MAX_GRAPHS; i++) {
        forget(&b->graphs[i]);
        b->graphs[i] = (struct graph){ .exec = NULL };
    }
}

int pf_cuda_chunks(const struct cuda_backend *b, int64_t n_positions)
{
    int n = 1, most = pf_cuda_n_chunks(b->sizes.n_ctx);
    while (n < pf_cuda_n_chunks(n_positions))
        n *= 2;
    return n < most ? n : most;
}

static bool alike(const struct pf_repeat *a, const struct pf_repeat *b)
{
    bool same = a->rows == b->rows && a->n_logits == b->n_logits && a->n_parts == b->n_parts &&
                a->hands_out == b->hands_out;
    for (int i = 0; same && i < a->n_parts; i++) {
        const struct pf_repeat_part *p = &a->part[i], *q = &b->part[i];
        same = p->sequence == q->sequence && p->state == q->state && p->n_positions == q->n_positions &&
               p->rows == q->rows && p->n_logits == q->n_logits && p->chooses == q->chooses && p->by_host == q->by_host;
    }
    return same;
}

/* The step as its graph has it. */
static struct pf_repeat in_chunks(const struct cuda_backend *b, const struct pf_repeat *r)
{
    struct pf_repeat step = *r;
    for (int i = 0; i < r->n_parts; i++)
        step.part[i].n_positions = pf_cuda_chunks(b, r->part[i].n_positions);
    return step;
}

/* The number of the graph of such a step, or -1: it was never met, or is forgotten. */
static int number_of(const struct cuda_backend *b, const struct pf_repeat *step)
{
    int i = CUDA_MAX_GRAPHS - 1;
    while (i >= 0 && !alike(&b->graphs[i].step, step))
        i--;
    return i;
}

/* The graph of such a step, or the one to forget for it. */
static struct graph *graph_of(struct cuda_backend *b, const struct pf_repeat *step)
{
    struct graph *oldest = &b->graphs[0];
    int number = number_of(b, step);
    if (number >= 0)
        return &b->graphs[number];
    for (int i = 0; i < CUDA_MAX_GRAPHS; i++)
        if (b->graphs[i].age < oldest->age)
            oldest = &b->graphs[i];
    forget(oldest);
    *oldest = (struct graph){ .step = *step };
    return oldest;
}

static pf_status launch(struct cuda_backend *b, const struct graph *g)
{
    pf_cuda_share_reset(b);
    PF_TRY(pf_cuda_in_step(pf_cuda_check(cudaGraphLaunch(g->exec, b->stream), "replaying a step")));
    b->launched = (int)(g - b->graphs);
    b->base.n_launches += g->n_nodes;
    b->n_launched++;
    b->tells = true;
    return PF_OK;
}

static bool may_repeat(const struct cuda_backend *b, const struct pf_repeat *r)
{
    return !r->once && !b->no_graphs && r->rows <= GRAPH_ROWS && r->n_logits <= GRAPH_ROWS &&
           pf_cuda_share_allows_graph(b, r->rows);
}

enum pf_repeat_how pf_cuda_repeats(const pf_backend *backend, const struct pf_repeat *r)
{
    const struct cuda_backend *b = (const struct cuda_backend *)backend;
    if (!may_repeat(b, r))
        return PF_REPEAT_PLAIN;
    const struct pf_repeat step = in_chunks(b, r);
    int number = number_of(b, &step);
    return number < 0 ? PF_REPEAT_PLAIN : b->graphs[number].exec ? PF_REPEAT_REPLAY : PF_REPEAT_RECORD;
}

static pf_status begin_capture(struct cuda_backend *b, struct graph *g)
{
    forget(g);
    CU_TRY(cudaStreamBeginCapture(b->stream, cudaStreamCaptureModeThreadLocal), "capturing a step");
    b->capturing = g;
    pf_cuda_share_begin(b, (int)(g - b->graphs));
    b->weight_bytes_before = b->base.weight_bytes_read;
    return PF_OK;
}

pf_status pf_cuda_begin(pf_backend *backend, const struct pf_repeat *r, bool *replayed)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    enum pf_repeat_how how = r->how == PF_REPEAT_ANY ? pf_cuda_repeats(backend, r) : r->how;
    *replayed = false;
    b->launched = -1;
    CU_TRY(cudaSetDevice(b->device), "choosing the GPU");
    PF_TRY(pf_cuda_settle(b));
    b->x_of = NULL;
    pf_cuda_share_begin(b, -1);
    if (how == PF_REPEAT_PLAIN && !may_repeat(b, r))
        return PF_OK;
    const struct pf_repeat step = in_chunks(b, r);
    struct graph *g = graph_of(b, &step);
    g->age = ++b->n_begun;
    if (how != PF_REPEAT_REPLAY)
        return how == PF_REPEAT_RECORD ? begin_capture(b, g) : PF_OK;
    if (!g->exec)
        PF_FAIL(PF_EDEVICE, "a step is to be replayed that was not recorded");
    *replayed = true;
    b->base.weight_bytes_read += g->weight_bytes;
    return launch(b, g);
}

/* Ends a capture; *graph is NULL if it came to nothing. */
static cudaError_t end_capture(struct cuda_backend *b, cudaGraph_t *graph)
{
    *graph = NULL;
    b->capturing = NULL;
    cudaError_t e = cudaStreamEndCapture(b->stream, graph);
    if (e != cudaSuccess)
        cudaGetLastError();
    return e;
}

/* Makes what replays the step from what was captured; *all false: there was no memory for it, here or in another
 * process that has a part in the step. */
static pf_status make_graph(struct cuda_backend *b, struct graph *g, cudaGraph_t graph, bool *all)
{
    cudaError_t e = cudaGraphGetNodes(graph, NULL, &g->n_nodes);
    if (e == cudaSuccess)
        e = cudaGraphInstantiate(&g->exec, graph, 0);
    cudaGraphDestroy(graph);
    *all = e != cudaErrorMemoryAllocation;
    if (e != cudaSuccess)
        g->exec = NULL;
    if (*all)
        CU_TRY(e, "making a graph of a step");
    cudaGetLastError();
    return b->ranks ? pf_ranks_all(b->ranks, *all, all) : PF_OK;
}

pf_status pf_cuda_end(pf_backend *backend, bool *again)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    struct graph *g = b->capturing;
    cudaGraph_t graph;
    bool all;
    *again = false;
    PF_TRY(pf_cuda_settle(b));
    CU_TRY(cudaSetDevice(b->device), "choosing the GPU");
    b->x_of = NULL;
    if (!g)
        return b->launched >= 0 ? pf_cuda_share_serve(b, b->launched) : PF_OK;
    CU_PUT(b, pf_cu_tell(b->stream, b->ended, b->told), "a step's end");
    CU_TRY(end_capture(b, &graph), "capturing a step");
    PF_TRY(make_graph(b, g, graph, &all));
    if (!all) {
        forget(g);
        b->base.weight_bytes_read = b->weight_bytes_before;
        b->no_graphs = *again = true;
        return PF_OK;
    }
    g->weight_bytes = b->base.weight_bytes_read - b->weight_bytes_before;
    PF_TRY(launch(b, g));
    return pf_cuda_share_serve(b, b->launched);
}

/* An error that stays with a device's context comes back from everything that is asked of it. */
bool pf_cuda_is_lost(pf_backend *backend)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    bool lost = cudaSetDevice(b->device) != cudaSuccess || pf_cu_probe(b->stream) != cudaSuccess ||
                cudaStreamSynchronize(b->stream) != cudaSuccess;
    cudaGetLastError();
    return lost;
}

bool pf_cuda_listen(const struct cuda_backend *b, uint64_t ns)
{
    enum { LOOKS = 64 };
    bool told = false;
    uint64_t begin = b->tells ? pf_now_ns() : 0;
    while (b->tells && !told && pf_now_ns() - begin < ns)
        for (int i = 0; !told && i < LOOKS; i++) {
            _mm_pause();
            told = __atomic_load_n(b->told, __ATOMIC_ACQUIRE) == b->n_launched;
        }
    return told;
}

static pf_status wait_for_stream(struct cuda_backend *b)
{
    enum { LISTEN_NS = 10000000 };
    return pf_cuda_listen(b, LISTEN_NS) ? PF_OK : pf_cuda_check(cudaStreamSynchronize(b->stream), "a step");
}

pf_status pf_cuda_finish(pf_backend *backend)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    pf_status st = pf_cuda_settle(b);
    cudaGraph_t unfinished;
    if (b->capturing && end_capture(b, &unfinished) == cudaSuccess)
        cudaGraphDestroy(unfinished);
    b->x_of = NULL;
    int others;
    pf_status ended = pf_cuda_among_finish(b, &others);
    PF_TRY(wait_for_stream(b));
    int fault = *b->fault != CU_FINE ? *b->fault : others;
    *b->fault = CU_FINE;                 /* the next step's are its own, whatever became of this one */
    PF_TRY(st);
    PF_TRY(ended);
    if (fault == CU_ACTIVATION_NOT_FINITE)
        PF_FAIL(PF_ENUMERIC, "an activation in front of a quantised product is not finite");
    if (fault == CU_ROUTER_NOT_FINITE)
        PF_FAIL(PF_ENUMERIC, "a router logit is not finite");
    if (fault == CU_LOGIT_NOT_FINITE)
        PF_FAIL(PF_ENUMERIC, "a logit is not finite");
    if (fault == CU_HOST_LATE)
        PF_FAIL(PF_EDEVICE, "the GPU waited in vain for what the CPU computes");
    if (fault == CU_CARD_LATE)
        PF_FAIL(PF_EDEVICE, "a GPU waited in vain for what another GPU computes");
    return PF_OK;
}
