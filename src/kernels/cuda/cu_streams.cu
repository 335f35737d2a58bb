/* Several residual streams (struct pf_mix_op and pf_streams_op in backend.h): their weights, a warp a row, a lane a
 * number; reading and writing, a thread a column. */
#include "kernels/cuda/cu_device.h"

enum { THREADS = 256 };

/* The sum of what n lanes hold, from lane `first` on, `step` apart. Every lane asks. */
CU_INLINE float sum_of(float v, int first, int step, int n)
{
    float sum = __shfl_sync(ALL_LANES, v, first);
    for (int i = 1; i < n; i++)
        sum = sum + __shfl_sync(ALL_LANES, v, first + i * step);
    return sum;
}

CU_INLINE float max_of(float v, int first, int n)
{
    float top = __shfl_sync(ALL_LANES, v, first);
    for (int i = 1; i < n; i++) {
        float other = __shfl_sync(ALL_LANES, v, first + i);
        top = other > top ? other : top;
    }
    return top;
}

static __global__ void mix_row(const __grid_constant__ struct pf_mix_op o)
{
    wait_turn();
    int n = o.n_streams, lane = threadIdx.x, part = lane < 2 * n ? lane / n : 2;
    int element = lane >= 2 * n && lane < o.n_weights ? lane - 2 * n : 0;
    int from = 2 * n + element / n * n, to = 2 * n + element % n;        /* first lanes of its row and of its column */
    size_t at = (size_t)blockIdx.x * o.n_weights + lane;
    bool whole = o.n_weights > n;
    float w = lane < o.n_weights ? fmaf(o.logits[at], o.scale[part], o.base[lane]) : 0;
    if (whole) {                             /* lanes without an element repeat the work of lane 0 */
        float e = pf_expf(w - max_of(w, from, n)), p = e / sum_of(e, from, 1, n) + o.eps;
        for (int i = 0; i < o.rounds; i++) {
            if (i > 0)
                p = p / (sum_of(p, from, 1, n) + o.eps);
            p = p / (sum_of(p, to, n, n) + o.eps);
        }
        w = part == 2 ? p : w;
    }
    if (part == 0)
        w = pf_sigmoidf(w) + o.eps;
    if (part == 1)
        w = 2 * pf_sigmoidf(w);
    if (lane < o.n_weights)
        o.weights[at] = w;
}

extern "C" cudaError_t pf_cu_mix(cudaStream_t st, const struct pf_mix_op *o)
{
    if (o->n_weights > WARP)
        return cudaErrorInvalidValue;
    return launch_early(mix_row, o->rows, WARP, 0, st, *o);
}

/* blockIdx: columns, row. */
static __global__ void read_row(const __grid_constant__ struct pf_streams_op o)
{
    wait_turn();
    int c = blockIdx.x * THREADS + threadIdx.x;
    if (c >= o.n)
        return;
    const float *w = o.weights + (size_t)blockIdx.y * o.n_weights;
    const float *x = o.x + (size_t)blockIdx.y * o.n_streams * o.n + c;
    float y = 0;
    for (int i = 0; i < o.n_streams; i++)
        y = fmaf(w[i], x[(size_t)i * o.n], y);
    o.y[(size_t)blockIdx.y * o.n + c] = y;
}

static __global__ void write_row(const __grid_constant__ struct pf_streams_op o)
{
    wait_turn();
    int c = blockIdx.x * THREADS + threadIdx.x, n = o.n_streams;
    if (c >= o.n)
        return;
    const float *w = o.weights + (size_t)blockIdx.y * o.n_weights;
    float *x = o.x + (size_t)blockIdx.y * n * o.n + c, old[PF_MAX_STREAMS];
    float y = o.y[(size_t)blockIdx.y * o.n + c];
#pragma unroll
    for (int i = 0; i < PF_MAX_STREAMS; i++)
        old[i] = i < n ? x[(size_t)i * o.n] : 0;
    for (int to = 0; to < n; to++) {
        float sum = fmaf(w[n + to], y, 0.0f);
#pragma unroll
        for (int from = 0; from < PF_MAX_STREAMS; from++)
            if (from < n)
                sum = fmaf(w[2 * n + from * n + to], old[from], sum);
        x[(size_t)to * o.n] = sum;
    }
}

extern "C" cudaError_t pf_cu_streams_read(cudaStream_t st, const struct pf_streams_op *o)
{
    return launch_early(read_row, dim3(ceil_div(o->n, THREADS), o->rows), THREADS, 0, st, *o);
}

extern "C" cudaError_t pf_cu_streams_write(cudaStream_t st, const struct pf_streams_op *o)
{
    return launch_early(write_row, dim3(ceil_div(o->n, THREADS), o->rows), THREADS, 0, st, *o);
}
