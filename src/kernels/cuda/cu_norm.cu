/* Norms of rows: a block takes a row, or a warp a short one. One warp adds up a row's squares, in the order of
 * kernels.h. */
#include "kernels/cuda/cu_device.h"

enum { THREADS = 256, NORM_THREADS = 1024 };

/* The weights of a row, where rows have some in turn. */
CU_INLINE const float *weights_of(const struct cu_norm &o, int row)
{
    return o.w + (o.n_each ? (size_t)(row % o.n_each) * o.n : 0);
}

/* A block takes a row. The row is staged in shared memory, so that y may be x and the 32 accumulators of the first warp
 * need not wait for device memory; so are the weights, before the row is there. */
static __global__ void __launch_bounds__(NORM_THREADS) norm_row(const __grid_constant__ struct cu_norm o)
{
    BLOCK_MEMORY(float, v);
    float *w = v + o.n, *x = o.x + (size_t)blockIdx.x * o.n;
    const float *add = o.add + (o.add ? (size_t)blockIdx.x * o.n : 0);
    int row = blockIdx.x;
#pragma unroll 4
    for (int i = threadIdx.x; i < o.n; i += blockDim.x)
        w[i] = o.w ? weights_of(o, blockIdx.x)[i] : 1.0f;
    wait_turn();
#pragma unroll 4
    for (int i = threadIdx.x; i < o.n; i += blockDim.x)
        v[i] = o.add ? fmaf(o.a, add[i], x[i]) : x[i];
    __syncthreads();
    float factor = norm_factor(o.n, o.eps, v);
#pragma unroll 4
    for (int i = threadIdx.x; i < o.n; i += blockDim.x) {
        float y = v[i] * factor * w[i];
        if (o.add)
            x[i] = v[i];
        o.y[(size_t)row * o.n + i] = y;
        if (o.q.q)
            quantise_block(y, &o.q, o.n, row, i / 32, o.fault);
    }
}

/* norm_row for rows too long for shared memory. y may be x. */
static __global__ void __launch_bounds__(NORM_THREADS) norm_long(const __grid_constant__ struct cu_norm o)
{
    size_t at = (size_t)blockIdx.x * o.n;
    float *x = o.x + at;
    wait_turn();
    for (int i = threadIdx.x; o.add && i < o.n; i += blockDim.x)
        x[i] = fmaf(o.a, o.add[at + i], x[i]);
    __syncthreads();
    float factor = norm_factor(o.n, o.eps, x);
#pragma unroll 4
    for (int i = threadIdx.x; i < o.n; i += blockDim.x) {
        float y = x[i] * factor * (o.w ? weights_of(o, blockIdx.x)[i] : 1.0f);
        o.y[at + i] = y;
        if (o.q.q)
            quantise_block(y, &o.q, o.n, blockIdx.x, i / 32, o.fault);
    }
}

/* A warp takes a row; for heads, which are many and short. */
static __global__ void norm_short(const __grid_constant__ struct cu_norm o)
{
    wait_turn();
    int row = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (row >= o.rows)
        return;
    const float *x = o.x + (size_t)row * o.n;
    float sum = 0;
    for (int i = lane; i < o.n; i += WARP)
        sum = fmaf(x[i], x[i], sum);
    float factor = 1.0f / sqrtf(warp_fold_all(sum) / (float)o.n + o.eps);
    for (int i = lane; i < o.n; i += WARP) {
        float y = x[i] * factor;
        o.y[(size_t)row * o.n + i] = o.w ? y * weights_of(o, row)[i] : y;
    }
}

/* norm_row by fours, for many rows: blocks are small, so that others compute while the first warp of one adds up. */
static __global__ void __launch_bounds__(THREADS) norm_fours(const __grid_constant__ struct cu_norm o)
{
    BLOCK_MEMORY(float, memory);
    float4 *v = (float4 *)memory;
    int n4 = o.n / 4, lane = threadIdx.x % WARP;
    size_t first = (size_t)blockIdx.x * n4;
    float4 *x = (float4 *)o.x + first;
    const float4 *add = (const float4 *)o.add + first, *w = o.w ? (const float4 *)weights_of(o, blockIdx.x) : NULL;
    wait_turn();
#pragma unroll 4
    for (int u = threadIdx.x; u < n4; u += THREADS) {
        float4 a = x[u];
        if (o.add) {
            float4 more = add[u];
            a = make_float4(fmaf(o.a, more.x, a.x), fmaf(o.a, more.y, a.y), fmaf(o.a, more.z, a.z),
                            fmaf(o.a, more.w, a.w));
            x[u] = a;
        }
        v[u] = a;
    }
    __syncthreads();
    float factor = norm_factor(o.n, o.eps, memory);
#pragma unroll 1
    for (int u = threadIdx.x; u - lane < n4; u += THREADS) {
        float4 y = u < n4 ? times(v[u], factor, w ? w[u] : make_float4(1, 1, 1, 1)) : make_float4(0, 0, 0, 0);
        if (u < n4)
            ((float4 *)o.y)[first + u] = y;
        if (!o.q.q)
            continue;
        struct codes c = codes_of(y);
        if (u < n4)
            put_codes(c, first + u, o.q);
        if (!c.finite)
            *o.fault = CU_ACTIVATION_NOT_FINITE;
    }
}

static bool norms_by_fours(const struct cu_norm *o)
{
    return o->rows > CU_VECTOR_ROWS && by_fours(o->x, o->n) && by_fours(o->y, o->n) && by_fours(o->w, o->n) &&
           by_fours(o->add, o->n) && (!o->q.q || o->n % 32 == 0);
}

extern "C" cudaError_t pf_cu_norm(cudaStream_t st, const struct cu_norm *o)
{
    enum { SHORT = 512, LONG_BYTES = 64 << 10 };
    size_t bytes = 2 * (size_t)o->n * sizeof(float);
    if (o->n <= SHORT && !o->add && !o->q.q)
        return launch_early(norm_short, ceil_div(o->rows, THREADS / WARP), THREADS, 0, st, *o);
    if (bytes <= LONG_BYTES && norms_by_fours(o) && allow_bytes(norm_fours, bytes / 2) == cudaSuccess)
        return launch_early(norm_fours, o->rows, THREADS, bytes / 2, st, *o);
    /* LONG_BYTES is all the shared memory that a block of the smallest GPUs may have. */
    if (bytes > LONG_BYTES || allow_bytes(norm_row, bytes) != cudaSuccess) {
        cudaGetLastError();
        return launch_early(norm_long, o->rows, NORM_THREADS, 0, st, *o);
    }
    int threads = o->n >= NORM_THREADS ? NORM_THREADS : (o->n + WARP - 1) / WARP * WARP;
    return launch_early(norm_row, o->rows, threads, bytes, st, *o);
}

enum { EACH = CU_BETWEEN_MOST / NORM_THREADS };
struct elements {                /* of a row, a thread's */
    float at[EACH];
};

CU_INLINE struct elements take_elements(const float *from, int n, float otherwise)
{
    struct elements e;
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        int i = threadIdx.x + k * blockDim.x;
        e.at[k] = from && i < n ? from[i] : otherwise;
    }
    return e;
}

CU_INLINE void put_elements(const struct elements &e, int n, float *to)
{
#pragma unroll
    for (int k = 0; k < EACH; k++)
        if ((int)(threadIdx.x + k * blockDim.x) < n)
            to[threadIdx.x + k * blockDim.x] = e.at[k];
}

/* A row's norm, by the whole block; v: room for the row, of which nobody reads any more. */
CU_INLINE struct elements normed(struct elements e, const struct elements &w, int n, float eps, float *v)
{
    put_elements(e, n, v);
    __syncthreads();
    float factor = norm_factor(n, eps, v);
#pragma unroll
    for (int k = 0; k < EACH; k++)
        e.at[k] = e.at[k] * factor * w.at[k];
    return e;
}

CU_INLINE struct elements added(struct elements e, float a, const struct elements &more)
{
#pragma unroll
    for (int k = 0; k < EACH; k++)
        e.at[k] = fmaf(a, more.at[k], e.at[k]);
    return e;
}

CU_INLINE void put_normed(const struct elements &e, const struct cu_norm &o)
{
    put_elements(e, o.n, o.y + (size_t)blockIdx.x * o.n);
#pragma unroll
    for (int k = 0; o.q.q && k < EACH; k++) {
        int i = threadIdx.x + k * blockDim.x;
        if (i < o.n)
            quantise_block(e.at[k], &o.q, o.n, blockIdx.x, i / 32, o.fault);
    }
}

/* A block takes a row, and a thread keeps its elements from one step to the next. */
static __global__ void __launch_bounds__(NORM_THREADS) between(const __grid_constant__ struct cu_between o)
{
    BLOCK_MEMORY(float, v);
    size_t first = (size_t)blockIdx.x * o.n;
    struct elements w0 = take_elements(o.w[0], o.n, 1.0f), w1 = take_elements(o.w[1], o.n, 1.0f),
                    w2 = take_elements(o.norm.w, o.n, 1.0f);
    wait_turn();
    struct elements y = take_elements(o.y + first, o.n, 0.0f),
                    plus = take_elements(o.plus ? o.plus + first : NULL, o.n, 0.0f),
                    x = take_elements(o.x ? o.x + first : NULL, o.n, 0.0f);
    if (o.norms[0])
        y = normed(y, w0, o.n, o.eps[0], v);
    if (o.plus)
        y = added(y, o.b, plus);
    if (o.norms[1])
        y = normed(y, w1, o.n, o.eps[1], v);
    x = added(x, o.a, y);
    put_elements(o.copies ? x : y, o.n, o.y + first);
    if (o.scales)
        x = added(x, o.more, x);
    if (o.x)
        put_elements(x, o.n, o.x + first);
    if (o.norm.y)
        put_normed(normed(x, w2, o.n, o.norm.eps, v), o.norm);
}

extern "C" cudaError_t pf_cu_between(cudaStream_t st, const struct cu_between *o)
{
    int threads = o->n >= NORM_THREADS ? NORM_THREADS : (o->n + WARP - 1) / WARP * WARP;
    return launch_early(between, o->rows, threads, o->n * sizeof(float), st, *o);
}

/* A block takes a row; its first warp adds up. y may be x. */
static __global__ void __launch_bounds__(THREADS) centre(const float *x, int n, float *y)
{
    __shared__ float mean;
    size_t first = (size_t)blockIdx.x * n;
    wait_turn();
    if (threadIdx.x < WARP) {
        float sum = 0;
#pragma unroll 16
        for (int i = threadIdx.x; i < n; i += WARP)
            sum += x[first + i];
        sum = warp_fold(sum);
        if (threadIdx.x == 0)
            mean = sum / (float)n;
    }
    __syncthreads();
#pragma unroll 4
    for (int i = threadIdx.x; i < n; i += THREADS)
        y[first + i] = x[first + i] - mean;
}

extern "C" cudaError_t pf_cu_centre(cudaStream_t st, const float *x, int n, int rows, float *y)
{
    return launch_early(centre, rows, THREADS, 0, st, x, n, y);
}

/* A block takes a row; its first thread adds up. */
static __global__ void layer_norm(const float *x, const float *w, const float *bias, float eps, int n, float *y)
{
    BLOCK_MEMORY(float, v);
    __shared__ double mean, factor;
    wait_turn();
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        v[i] = x[(size_t)blockIdx.x * n + i];
    __syncthreads();
    if (threadIdx.x == 0) {
        double sum = 0, squares = 0;
        for (int i = 0; i < n; i++)
            sum += v[i];
        mean = sum / n;
        for (int i = 0; i < n; i++)
            squares += (v[i] - mean) * (v[i] - mean);
        factor = 1 / sqrt(squares / n + (double)eps);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        y[(size_t)blockIdx.x * n + i] = (float)((v[i] - mean) * factor) * w[i] + (bias ? bias[i] : 0);
}

extern "C" cudaError_t pf_cu_layer_norm(cudaStream_t st, const float *x, const float *w, const float *bias, float eps,
                                        int n, int rows, float *y)
{
    return launch_early(layer_norm, rows, 128, (size_t)n * sizeof(float), st, x, w, bias, eps, n, y);
}
