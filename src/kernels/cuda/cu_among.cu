/* What crosses between cards that have whole experts each, or some columns of the same rows: plain copies by kernels,
 * whose addresses may be another card's memory or the host's. All begin in turn, since what they read was written on
 * another card: events order cards, and only work that waits for all ahead of it is ordered by them. */
#include "kernels/cuda/cu_device.h"

#include "kernels/cuda/cu_among.h"

enum { SEND_THREADS = 256, MOST_BLOCKS = 264 };

static __global__ void send_words(const __grid_constant__ struct cu_letter l)
{
    const struct cu_sheet *s = &l.sheet[blockIdx.y];
    const volatile uint32_t *from = (const volatile uint32_t *)s->from;
    uint32_t *to = (uint32_t *)s->to;
    for (int64_t i = blockIdx.x * (int64_t)SEND_THREADS + threadIdx.x; i < s->n; i += gridDim.x * (int64_t)SEND_THREADS)
        to[i] = from[i];
}

extern "C" cudaError_t pf_cu_send(cudaStream_t st, const struct cu_letter *l)
{
    int64_t most = 1;
    for (int i = 0; i < CU_SHEETS; i++)
        most = l->sheet[i].n > most ? l->sheet[i].n : most;
    int n = ceil_div(most, SEND_THREADS);
    return launch_in_turn(send_words, dim3(n < MOST_BLOCKS ? n : MOST_BLOCKS, CU_SHEETS), SEND_THREADS, 0, st, *l);
}

/* A block a pick. */
static __global__ void send_rows(const __grid_constant__ struct cu_some_rows r)
{
    size_t at = (size_t)blockIdx.x * r.n;
    bool takes = r.table ? (r.table[r.picks[blockIdx.x]] != NULL) == r.here : r.marked[blockIdx.x] != 0;
    if (!takes)
        return;
    for (int i = threadIdx.x; i < r.n; i += SEND_THREADS)
        r.to[at + i] = *(const volatile float *)&r.from[at + i];
}

extern "C" cudaError_t pf_cu_send_rows(cudaStream_t st, const struct cu_some_rows *r)
{
    return launch_in_turn(send_rows, dim3(r->n_picks), SEND_THREADS, 0, st, *r);
}

/* A row of blocks for each card's columns. */
static __global__ void gather_rows(const __grid_constant__ struct pf_gather_op g)
{
    int first = g.first[blockIdx.y], n = g.first[blockIdx.y + 1] - first;
    const volatile float *from = g.shown[blockIdx.y];
    int64_t all = (int64_t)g.rows * n;
    for (int64_t i = blockIdx.x * (int64_t)SEND_THREADS + threadIdx.x; i < all; i += gridDim.x * (int64_t)SEND_THREADS)
        g.y[i / n * g.n + first + i % n] = from[i];
}

extern "C" cudaError_t pf_cu_gather(cudaStream_t st, const struct pf_gather_op *g)
{
    int n = ceil_div((int64_t)g->rows * g->n, SEND_THREADS);
    return launch_in_turn(gather_rows, dim3(n < MOST_BLOCKS ? n : MOST_BLOCKS, g->n_cards), SEND_THREADS, 0, st, *g);
}
