/* Gated DeltaNet: the causal convolution, a thread a channel, and the delta rule, a thread a column of a head's matrix.
 *
 * Heads of 128 have their columns in registers, so that a row costs two chains of 128 sums and no memory: two warps go over
 * columns, two others meanwhile over what the next row needs for all of them. */
#include "kernels/cuda/cu_device.h"

enum { MAX_TAPS = 16, THREADS = 128, CONV_ROWS = 8 };

CU_INLINE float input_at(const struct pf_conv_op &o, int r, int c)
{
    if (r >= 0)
        return o.x[(size_t)r * o.n + c];
    return o.before ? o.before[(size_t)(o.taps - 1 + r) * o.n + c] : 0.0f;
}

/* What the next step will see of this one's rows; after may be before. */
CU_INLINE void keep_last(const struct pf_conv_op &o, int c)
{
    float last[MAX_TAPS];
    for (int i = 0; i < o.taps - 1; i++)
        last[i] = input_at(o, o.rows - (o.taps - 1) + i, c);
    for (int i = 0; i < o.taps - 1; i++)
        o.after[(size_t)i * o.n + c] = last[i];
}

/* blockIdx.y: CONV_ROWS rows. A block that has them all keeps the last ones. */
static __global__ void conv(const __grid_constant__ struct pf_conv_op o)
{
    wait_turn();
    int c = blockIdx.x * blockDim.x + threadIdx.x, first = blockIdx.y * CONV_ROWS;
    if (c >= o.n)
        return;
    for (int r = first; r < min(first + (int)CONV_ROWS, o.rows); r++) {
        float z = input_at(o, r - (o.taps - 1), c) * o.w[c];
        for (int t = 1; t < o.taps; t++)
            z = fmaf(input_at(o, r - (o.taps - 1) + t, c), o.w[(size_t)t * o.n + c], z);
        o.y[(size_t)r * o.n + c] = z * pf_sigmoidf(z);
    }
    if (gridDim.y == 1)
        keep_last(o, c);
}

static __global__ void conv_last(const __grid_constant__ struct pf_conv_op o)
{
    wait_turn();
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c < o.n)
        keep_last(o, c);
}

extern "C" cudaError_t pf_cu_conv(cudaStream_t st, const struct pf_conv_op *o)
{
    if (o->taps > MAX_TAPS)
        return cudaErrorInvalidValue;
    dim3 grid(ceil_div(o->n, THREADS), ceil_div(o->rows, CONV_ROWS));
    cudaError_t e = launch_early(conv, grid, THREADS, 0, st, *o);
    return e != cudaSuccess || grid.y == 1 ? e : launch_early(conv_last, grid.x, THREADS, 0, st, *o);
}

/* to = x * a / max(length of x, eps), by one warp. */
CU_INLINE void l2_norm(const float *x, float eps, float a, int n, float *to)
{
    float sum = 0;
    for (int i = threadIdx.x % WARP; i < n; i += WARP)
        sum = fmaf(x[i], x[i], sum);
    float root = sqrtf(warp_fold_all(sum)), r = a / (root > eps ? root : eps);
    for (int i = threadIdx.x % WARP; i < n; i += WARP)
        to[i] = x[i] * r;
}

/* blockIdx.x: value head; blockIdx.y: its columns, blockDim.x at a time. */
static __global__ void delta(const __grid_constant__ struct pf_delta_op o)
{
    wait_turn();
    extern __shared__ float shared[];
    size_t d = o.d, n_k = (size_t)o.n_k_head * d, n_v = (size_t)o.n_v_head * d;
    int hv = blockIdx.x, hk = o.tiled ? hv % o.n_k_head : hv / (o.n_v_head / o.n_k_head), warp = threadIdx.x / WARP;
    int j = blockIdx.y * blockDim.x + threadIdx.x;
    float *q = shared, *k = q + d, *after = o.after + hv * d * d;
    const float *before = o.before ? o.before + hv * d * d : NULL;
    for (int r = 0; r < o.rows; r++) {
        const float *u = o.u + r * (2 * n_k + n_v);
        size_t at = (size_t)r * o.n_v_head + hv;
        __syncthreads();
        if (warp < 2)
            l2_norm(u + warp * n_k + hk * d, o.eps, warp ? 1.0f : 1.0f / sqrtf((float)d), o.d, warp ? k : q);
        __syncthreads();
        if (j < o.d) {
            float decay = pf_expf(o.a[hv] * pf_softplusf(o.alpha[at] + o.dt[hv])), beta = pf_sigmoidf(o.beta[at]);
            float seen = 0, out = 0;
            for (size_t i = 0; before && i < d; i++)
                seen = fmaf(before[i * d + j], k[i], seen);
            float change = fmaf(-decay, seen, u[2 * n_k + hv * d + j]) * beta;
            for (size_t i = 0; i < d; i++) {
                float s = fmaf(k[i], change, (before ? before[i * d + j] : 0.0f) * decay);
                after[i * d + j] = s;
                out = fmaf(s, q[i], out);
            }
            o.out[r * n_v + hv * d + j] = out;
        }
        before = after;
    }
}

/* What all columns of a head need of a row. */
template <int D>
struct delta_row {
    float q[D], k[D], decay, beta;
};

/* By two warps, `which` of them 0 or 1. */
template <int D>
CU_INLINE void prepare_row(const struct pf_delta_op &o, int hv, int hk, int r, int which, struct delta_row<D> &to)
{
    size_t n_k = (size_t)o.n_k_head * D, n_v = (size_t)o.n_v_head * D, at = (size_t)r * o.n_v_head + hv;
    const float *u = o.u + r * (2 * n_k + n_v);
    l2_norm(u + which * n_k + hk * D, o.eps, which ? 1.0f : 1.0f / sqrtf((float)D), D, which ? to.k : to.q);
    if (which == 0 && threadIdx.x % WARP == 0) {
        to.decay = pf_expf(o.a[hv] * pf_softplusf(o.alpha[at] + o.dt[hv]));
        to.beta = pf_sigmoidf(o.beta[at]);
    }
}

/* blockIdx.x: value head; blockIdx.y: 64 of its columns. The matrix is older than the kernel ahead. */
template <int D>
static __global__ void __launch_bounds__(4 * WARP) delta_columns(const __grid_constant__ struct pf_delta_op o)
{
    __shared__ __align__(16) struct delta_row<D> rows[2];
    int hv = blockIdx.x, hk = o.tiled ? hv % o.n_k_head : hv / (o.n_v_head / o.n_k_head), warp = threadIdx.x / WARP;
    int j = blockIdx.y * 2 * WARP + threadIdx.x % (2 * WARP);
    size_t n_k = (size_t)o.n_k_head * D, n_v = (size_t)o.n_v_head * D;
    const float *value = o.u + 2 * n_k + hv * D + j;
    float s[D], v = 0;
#pragma unroll
    for (int i = 0; i < D; i++)
        s[i] = warp < 2 && o.before ? __ldcg(o.before + (size_t)hv * D * D + i * D + j) : 0.0f;
    wait_turn();
    if (warp >= 2)
        prepare_row<D>(o, hv, hk, 0, warp - 2, rows[0]);
    else
        v = value[0];
    for (int r = 0; r < o.rows; r++) {
        __syncthreads();
        if (warp >= 2) {
            if (r + 1 < o.rows)
                prepare_row<D>(o, hv, hk, r + 1, warp - 2, rows[(r + 1) % 2]);
            continue;
        }
        const struct delta_row<D> &row = rows[r % 2];
        float next = r + 1 < o.rows ? value[(r + 1) * (2 * n_k + n_v)] : 0.0f, decay = row.decay, seen = 0, out = 0;
        if (o.before || r > 0)
#pragma unroll
            for (int i = 0; i < D; i++)
                seen = fmaf(s[i], row.k[i], seen);
        float change = fmaf(-decay, seen, v) * row.beta;
        __syncwarp();                        /* keys are read again: there are no registers to keep them in */
#pragma unroll
        for (int i = 0; i < D; i++) {
            s[i] = fmaf(row.k[i], change, s[i] * decay);
            out = fmaf(s[i], row.q[i], out);
        }
        o.out[r * n_v + hv * D + j] = out;
        v = next;
    }
    if (warp < 2)
#pragma unroll
        for (int i = 0; i < D; i++)
            o.after[(size_t)hv * D * D + i * D + j] = s[i];
}

extern "C" cudaError_t pf_cu_delta(cudaStream_t st, const struct pf_delta_op *o)
{
    if (o->d == 128)
        return launch_early(delta_columns<128>, dim3(o->n_v_head, 2), 4 * WARP, 0, st, *o);
    return launch_early(delta, dim3(o->n_v_head, ceil_div(o->d, 64)), 64, 2 * (size_t)o->d * sizeof(float), st, *o);
}
