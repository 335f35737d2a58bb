/* Several residual streams (op_streams.h): their weights, a warp a row, a lane a number; reading and writing, a thread
 * a column; what enters all of them, a block a stream of a row or a thread a column. */
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

/* blockIdx: columns, row. */
static __global__ void read_gated(const __grid_constant__ struct pf_gated_op o)
{
    wait_turn();
    int c = blockIdx.x * THREADS + threadIdx.x;
    if (c >= o.n)
        return;
    size_t at = (size_t)blockIdx.y * o.n_streams * o.n + c;
    float y = 0;
    for (int i = 0; i < o.n_streams; i++)
        y = fmaf(pf_sigmoidf(o.gates[at + (size_t)i * o.n]), o.x[at + (size_t)i * o.n], y);
    o.y[(size_t)blockIdx.y * o.n + c] = y * (1.0f / (float)o.n_streams);
}

/* blockIdx: columns, stream of a row. */
static __global__ void write_gated(const __grid_constant__ struct pf_gated_op o)
{
    wait_turn();
    int c = blockIdx.x * THREADS + threadIdx.x;
    if (c >= o.n)
        return;
    float *x = o.x + (size_t)blockIdx.y * o.n + c;
    *x = fmaf(2 * pf_sigmoidf(o.weights[blockIdx.y]), o.y[(size_t)(blockIdx.y / o.n_streams) * o.n + c], *x);
}

extern "C" cudaError_t pf_cu_gated_read(cudaStream_t st, const struct pf_gated_op *o)
{
    return launch_early(read_gated, dim3(ceil_div(o->n, THREADS), o->rows), THREADS, 0, st, *o);
}

extern "C" cudaError_t pf_cu_gated_write(cudaStream_t st, const struct pf_gated_op *o)
{
    return launch_early(write_gated, dim3(ceil_div(o->n, THREADS), o->rows * o->n_streams), THREADS, 0, st, *o);
}

/* blockIdx: stream of a row. Its warps add up alike. */
static __global__ void agree(const __grid_constant__ struct pf_agree_op o)
{
    wait_turn();
    size_t at = (size_t)blockIdx.x * o.n;
    const float *value = o.value + (size_t)(blockIdx.x / o.n_streams) * o.n;
    float sum = 0;
    for (int i = threadIdx.x % WARP; i < o.n; i += WARP)
        sum = fmaf(o.key[at + i], o.query[at + i], sum);
    float s = warp_fold_all(sum) * (1.0f / sqrtf((float)o.n)), size = s < 0 ? -s : s;
    float root = sqrtf(size > 1e-6f ? size : 1e-6f), gate = pf_sigmoidf(s > 0 ? root : s < 0 ? -root : 0.0f);
    for (int i = threadIdx.x; i < o.n; i += THREADS)
        o.out[at + i] = gate * value[i];
}

extern "C" cudaError_t pf_cu_agree(cudaStream_t st, const struct pf_agree_op *o)
{
    return launch_early(agree, o->rows * o->n_streams, THREADS, 0, st, *o);
}

/* Column c of row r of the batch or, r negative, of one before it. */
CU_INLINE float spread_at(const struct pf_spread_op &o, int r, int c)
{
    if (r >= 0)
        return o.u[(size_t)r * o.n + c];
    return o.before ? o.before[(size_t)(pf_spread_rows(&o) + r) * o.n + c] : 0.0f;
}

static __global__ void spread(const __grid_constant__ struct pf_spread_op o)
{
    wait_turn();
    int c = blockIdx.x * THREADS + threadIdx.x, kept = pf_spread_rows(&o);
    if (c >= o.n)
        return;
    for (int r = 0; r < o.rows; r++) {
        size_t at = (size_t)r * o.n + c;
        float y = spread_at(o, r - kept, c) * o.conv[c];
        for (int t = 1; t < o.taps; t++)
            y = fmaf(spread_at(o, r - kept + t * o.step, c), o.conv[(size_t)t * o.n + c], y);
        y = y * pf_sigmoidf(y);
        o.x[at] = o.x[at] + (o.v[at] + y);
    }
    for (int i = 0; i < kept; i++)
        o.after[(size_t)i * o.n + c] = spread_at(o, o.rows - kept + i, c);
}

extern "C" cudaError_t pf_cu_spread(cudaStream_t st, const struct pf_spread_op *o)
{
    return launch_early(spread, ceil_div(o->n, THREADS), THREADS, 0, st, *o);
}
