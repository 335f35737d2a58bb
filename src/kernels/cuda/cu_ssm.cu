/* Causal convolutions and Mamba2 (struct pf_conv_op, struct pf_ssm_op in backend.h).
 *
 *     conv           a thread a channel
 *     ssm_columns    a thread a column of a head's state, in registers, for states of the usual number of rows
 *     ssm            the same with the state in memory, for any number
 *     gate_groups    after either of the two: a warp takes a group of heads in a row */
#include "kernels/cuda/cu_device.h"

enum { MAX_TAPS = 16, THREADS = 128, CONV_ROWS = 8, COLUMNS = 64 };

/* ---- Convolutions ------------------------------------------------------------------------------------------------ */

/* Channel c in row r of the batch, or, r negative, in one from before it. */
CU_INLINE float input_at(const struct pf_conv_op &o, int r, int c)
{
    if (r >= 0)
        return o.x[(size_t)r * o.n + c];
    return o.before ? o.before[(size_t)(o.taps - 1 + r) * o.n + c] : 0.0f;
}

/* blockIdx.y: CONV_ROWS rows. The first block keeps the last ones, which the next step will see. */
static __global__ void conv(const __grid_constant__ struct pf_conv_op o)
{
    wait_turn();
    int c = blockIdx.x * blockDim.x + threadIdx.x, kept = o.taps - 1;
    int first = blockIdx.y * CONV_ROWS, end = min(first + (int)CONV_ROWS, o.rows);
    if (c >= o.n)
        return;
    for (int r = first; r < end; r++) {
        float z = input_at(o, r - kept, c) * o.w[c];
        for (int t = 1; t < o.taps; t++)
            z = fmaf(input_at(o, r - kept + t, c), o.w[(size_t)t * o.n + c], z);
        if (o.bias)
            z = z + o.bias[c];
        o.y[(size_t)r * o.n + c] = o.silu ? z * pf_sigmoidf(z) : z;
    }
    for (int t = 0; blockIdx.y == 0 && t < kept; t++)
        o.after[(size_t)t * o.n + c] = input_at(o, o.rows - kept + t, c);
}

extern "C" cudaError_t pf_cu_conv(cudaStream_t st, const struct pf_conv_op *o)
{
    if (o->taps < 1 || o->taps > MAX_TAPS)
        return cudaErrorInvalidValue;
    return launch_early(conv, dim3(ceil_div(o->n, THREADS), ceil_div(o->rows, CONV_ROWS)), THREADS, 0, st, *o);
}

/* ---- Mamba2 ------------------------------------------------------------------------------------------------------ */

/* What all columns of a head need of a row: where its x, B and C begin, and how fast it goes. */
struct head_row {
    const float *x, *b, *c;
    float        t, decay;
};

CU_INLINE struct head_row row_of(const struct pf_ssm_op &o, int h, int r)
{
    int n_b = o.n_group * o.d, group = h / (o.n_head / o.n_group);
    const float *u = o.u + (size_t)r * (o.n_head * o.p + 2 * n_b), *b = u + o.n_head * o.p + group * o.d;
    float t = pf_softplusf(o.dt[(size_t)r * o.n_head + h] + o.dt_bias[h]);
    return { u + h * o.p, b, b + n_b, t, pf_expf(t * o.a[h]) };
}

CU_INLINE float *out_at(const struct pf_ssm_op &o, int h, int r, int j)
{
    return o.out + ((size_t)r * o.n_head + h) * o.p + j;
}

/* blockIdx.x: head; blockIdx.y: COLUMNS of its columns. */
static __global__ void ssm(const __grid_constant__ struct pf_ssm_op o)
{
    wait_turn();
    int h = blockIdx.x, j = blockIdx.y * COLUMNS + threadIdx.x;
    size_t at = (size_t)h * o.d * o.p + j;
    if (j >= o.p)
        return;
    const float *before = o.before ? o.before + at : NULL;
    for (int r = 0; r < o.rows; r++) {
        struct head_row row = row_of(o, h, r);
        float in = row.t * row.x[j], out = 0;
        for (int i = 0; i < o.d; i++) {
            float s = fmaf(row.b[i], in, (before ? before[(size_t)i * o.p] : 0.0f) * row.decay);
            o.after[at + (size_t)i * o.p] = s;
            out = fmaf(s, row.c[i], out);
        }
        *out_at(o, h, r, j) = fmaf(o.skip[h], row.x[j], out);
        before = o.after + at;
    }
}

/* As ssm; B and C of a row pass through shared memory, of which two rows have room: before a third is written, all have
 * left the first. */
template <int D>
static __global__ void __launch_bounds__(COLUMNS) ssm_columns(const __grid_constant__ struct pf_ssm_op o)
{
    BLOCK_MEMORY(float, shared);
    wait_turn();
    int h = blockIdx.x, j = blockIdx.y * COLUMNS + threadIdx.x, mine = min(j, o.p - 1);
    size_t at = (size_t)h * D * o.p + mine;
    float s[D];
#pragma unroll
    for (int i = 0; i < D; i++)
        s[i] = o.before ? o.before[at + (size_t)i * o.p] : 0.0f;
    for (int r = 0; r < o.rows; r++) {
        struct head_row row = row_of(o, h, r);
        float *b = shared + r % 2 * 2 * D, *c = b + D, in = row.t * row.x[mine], out = 0;
        for (int i = threadIdx.x; i < D; i += COLUMNS) {
            b[i] = row.b[i];
            c[i] = row.c[i];
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < D; i++) {
            s[i] = fmaf(b[i], in, s[i] * row.decay);
            out = fmaf(s[i], c[i], out);
        }
        if (j < o.p)
            *out_at(o, h, r, j) = fmaf(o.skip[h], row.x[j], out);
    }
#pragma unroll
    for (int i = 0; i < D; i++)
        if (j < o.p)
            o.after[at + (size_t)i * o.p] = s[i];
}

/* out = norm(silu(z) * out) of a group of heads; blockIdx.y: row. */
static __global__ void gate_groups(const __grid_constant__ struct pf_ssm_op o)
{
    wait_turn();
    int g = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    int n = o.n_head / o.n_group * o.p;
    if (g >= o.n_group)
        return;
    size_t at = ((size_t)blockIdx.y * o.n_group + g) * n;
    const float *z = o.z + at, *w = o.norm + (size_t)g * n;
    float *y = o.out + at, sum = 0;
    for (int j = lane; j < n; j += WARP) {
        float v = z[j] * pf_sigmoidf(z[j]) * y[j];
        y[j] = v;
        sum = fmaf(v, v, sum);
    }
    float factor = 1.0f / sqrtf(warp_fold_all(sum) / (float)n + o.eps);
    for (int j = lane; j < n; j += WARP)
        y[j] = y[j] * factor * w[j];
}

extern "C" cudaError_t pf_cu_ssm(cudaStream_t st, const struct pf_ssm_op *o)
{
    enum { D = 128 };
    dim3 columns(o->n_head, ceil_div(o->p, COLUMNS)), groups(ceil_div(o->n_group, THREADS / WARP), o->rows);
    cudaError_t e = o->d == D ? launch_early(ssm_columns<D>, columns, COLUMNS, 4 * D * sizeof(float), st, *o)
                              : launch_early(ssm, columns, COLUMNS, 0, st, *o);
    return e != cudaSuccess ? e : launch_early(gate_groups, groups, THREADS, 0, st, *o);
}
