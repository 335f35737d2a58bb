/* Gated DeltaNet: the causal convolution, a thread a channel, and the delta rule, a thread a column of a head's matrix. */
#include "kernels/cuda/cu_device.h"

enum { MAX_TAPS = 16, THREADS = 128 };

CU_INLINE float input_at(const struct pf_conv_op &o, int r, int c)
{
    if (r >= 0)
        return o.x[(size_t)r * o.n + c];
    return o.before ? o.before[(size_t)(o.taps - 1 + r) * o.n + c] : 0.0f;
}

static __global__ void conv(const __grid_constant__ struct pf_conv_op o)
{
    wait_turn();
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= o.n)
        return;
    for (int r = 0; r < o.rows; r++) {
        float z = input_at(o, r - (o.taps - 1), c) * o.w[c];
        for (int t = 1; t < o.taps; t++)
            z = fmaf(input_at(o, r - (o.taps - 1) + t, c), o.w[(size_t)t * o.n + c], z);
        o.y[(size_t)r * o.n + c] = z * pf_sigmoidf(z);
    }
    float last[MAX_TAPS];
    for (int i = 0; i < o.taps - 1; i++)
        last[i] = input_at(o, o.rows - (o.taps - 1) + i, c);
    for (int i = 0; i < o.taps - 1; i++)
        o.after[(size_t)i * o.n + c] = last[i];
}

extern "C" cudaError_t pf_cu_conv(cudaStream_t st, const struct pf_conv_op *o)
{
    if (o->taps > MAX_TAPS)
        return cudaErrorInvalidValue;
    return launch_early(conv, ceil_div(o->n, THREADS), THREADS, 0, st, *o);
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

extern "C" cudaError_t pf_cu_delta(cudaStream_t st, const struct pf_delta_op *o)
{
    return launch_early(delta, dim3(o->n_v_head, ceil_div(o->d, 64)), 64, 2 * (size_t)o->d * sizeof(float), st, *o);
}
