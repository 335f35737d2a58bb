/* Building blocks of every kernel: the fold of 32 accumulators over a warp, halves, int8 blocks, activations.
 *
 * A warp is the 32 accumulators of kernels.h: lane i is accumulator i, and the fold 16, 8, 4, 2, 1 is five shuffles.
 * Compiled with --fmad=false: a product and a sum are rounded apart unless fmaf is written. */
#ifndef PF_CU_DEVICE_H
#define PF_CU_DEVICE_H

#include <cuda_fp16.h>
#include <math.h>

#define CU_HOST_FN static __host__ __device__ __forceinline__
#define PF_MATH_FN CU_HOST_FN
#define PF_MATH_MAX(x, number) fmaxf(x, number)
#include "base/pf_math.h"
#define PF_UNIT_FN CU_HOST_FN
#include "kernels/cuda/cu_api.h"
#include "kernels/cuda/cu_machine.h"

/* The first fault of a step is the one that is told. */
CU_INLINE void check_logit(float v, int *fault)
{
    if ((pf_float_bits(v) & 0x7fffffffu) >= 0x7f800000u && *(volatile int *)fault == CU_FINE)
        *fault = CU_LOGIT_NOT_FINITE;
}

/* Lane 0 gets the fold. */
CU_INLINE float warp_fold(float v)
{
    for (int h = 16; h > 0; h /= 2)
        v = v + __shfl_down_sync(ALL_LANES, v, h);
    return v;
}

CU_INLINE float warp_fold_all(float v)
{
    return __shfl_sync(ALL_LANES, warp_fold(v), 0);
}

/* The factor by which an RMS norm multiplies row x, for every thread of a block: 32 accumulators, one warp. */
CU_INLINE float norm_factor(int n, float eps, const float *x)
{
    __shared__ float factor;
    if (threadIdx.x < WARP) {
        float sum = 0;
#pragma unroll 16
        for (int i = threadIdx.x; i < n; i += WARP)
            sum = fmaf(x[i], x[i], sum);
        sum = warp_fold(sum);
        if (threadIdx.x == 0)
            factor = 1.0f / sqrtf(sum / (float)n + eps);
    }
    __syncthreads();
    return factor;
}

CU_INLINE float warp_max(float v)
{
    for (int h = 16; h > 0; h /= 2) {
        float other = __shfl_xor_sync(ALL_LANES, v, h);
        v = other > v ? other : v;
    }
    return v;
}

CU_INLINE float half_value(uint16_t h)
{
    return __half2float(__ushort_as_half(h));
}

/* float32 to F16, ties to even; infinities stay, a NaN keeps its upper bits and becomes quiet. */
CU_INLINE uint16_t half_bits(float x)
{
    uint32_t u = pf_float_bits(x);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((u >> 16 & 0x8000u) | 0x7e00u | (u >> 13 & 0x3ffu));
    return __half_as_ushort(__float2half_rn(x));
}

/* PF_ACT_ as kernels.h has them, with the code of one sigmoid for all: code that a kernel runs once is waited for. */
CU_INLINE float activation(struct pf_act act, float g, float u)
{
    bool oai = act.kind == PF_ACT_SWIGLU_OAI, capped = act.kind == PF_ACT_SWIGLU_CAPPED,
         gates = act.kind != PF_ACT_SIGMOID, limited = gates && (oai || act.limit > 0);
    float top = oai ? 7.0f : act.limit, z = g, v = u;
    if (act.kind == PF_ACT_RELU)
        return (g < 0.0f ? 0.0f : g) * u;
    if (act.kind == PF_ACT_PRODUCT)
        return g * u;
    if (act.kind == PF_ACT_GELU)
        return pf_geluf(g) * u;
    if (limited) {
        z = !capped && g > top ? top : g;
        v = u > top ? top : u;
        v = v < -top ? -top : v;
        v = oai ? v + 1.0f : v;
    }
    float s = pf_sigmoidf(oai ? 1.702f * z : z);
    s = gates ? z * s : s;
    s = limited && capped && s > top ? top : s;
    return s * v;
}

/* A block of Q8_0 of keys or values. Unlike blocks of weights, it begins at an even address. */
struct cu_q8_0 {
    uint16_t d;
    int8_t   q[32];
};
static_assert(sizeof(struct cu_q8_0) == 34, "as pf_kv_row_bytes counts");

/* A block of 32 in int8, a value per lane: the lane's code, and the scale. */
struct lane_code {
    int   q;
    float d;
    bool  finite;
};

CU_INLINE struct lane_code code_of_lane(float x)
{
    uint32_t bits = warp_max(pf_float_bits(x) & 0x7fffffffu);
    float amax = pf_bits_float(bits);
    bool alive = amax >= 0x1p-100f;
    float t = x * (alive ? 127.0f / amax : 0.0f) + 0x1.8p23f;
    return { (int)(pf_float_bits(t) - 0x4b400000u), alive ? amax / 127.0f : 0.0f, bits < 0x7f800000u };
}

/* Quantises one block to block b of row `row` of an x of n columns. */
CU_INLINE void quantise_block(float x, const struct cu_x *to, int n, int row, int b, int *fault)
{
    int lane = threadIdx.x % WARP;
    struct lane_code v = code_of_lane(x);
    int sum = v.q;
    for (int h = 8; h > 0; h /= 2)
        sum += __shfl_xor_sync(ALL_LANES, sum, h);
    to->q[(size_t)row * n + b * 32 + lane] = (int8_t)v.q;
    if (lane % 16 == 0)
        to->s[(size_t)row * (n / 16) + b * 2 + lane / 16] = (int16_t)sum;
    if (lane == 0)
        to->d[(size_t)row * (n / 32) + b] = v.d;
    if (!v.finite && lane == 0)
        *fault = CU_ACTIVATION_NOT_FINITE;
}

CU_INLINE float4 times(float4 v, float f, float4 w)
{
    return make_float4(v.x * f * w.x, v.y * f * w.y, v.z * f * w.z, v.w * f * w.w);
}

/* Four neighbours of a block of 32, quantised as by quantise_block; eight neighbouring lanes have the block. */
struct codes {
    uint32_t q;
    int      sum;                 /* sum of the codes of sixteen elements */
    float    d;
    bool     finite;
};

CU_INLINE struct codes codes_of(float4 y)
{
    float v[4] = { y.x, y.y, y.z, y.w };
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < 4; i++)
        bits = max(bits, pf_float_bits(v[i]) & 0x7fffffffu);
#pragma unroll
    for (int h = 4; h > 0; h /= 2)
        bits = max(bits, __shfl_xor_sync(ALL_LANES, bits, h));
    float amax = pf_bits_float(bits), inverse = amax >= 0x1p-100f ? 127.0f / amax : 0.0f;
    struct codes c = { 0, 0, amax >= 0x1p-100f ? amax / 127.0f : 0.0f, bits < 0x7f800000u };
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int q = (int)(pf_float_bits(v[i] * inverse + 0x1.8p23f) - 0x4b400000u);
        c.q |= (uint32_t)(q & 255) << 8 * i;
        c.sum += q;
    }
    c.sum += __shfl_xor_sync(ALL_LANES, c.sum, 1);
    c.sum += __shfl_xor_sync(ALL_LANES, c.sum, 2);
    return c;
}

/* As the u-th four of the row, or of all rows. */
CU_INLINE void put_codes(const struct codes &c, size_t u, const struct cu_x &to)
{
    ((uint32_t *)to.q)[u] = c.q;
    if (u % 4 == 0)
        to.s[u / 4] = (int16_t)c.sum;
    if (u % 8 == 0)
        to.d[u / 8] = c.d;
}

/* Whether rows of n floats can be read by fours, where p begins. */
static inline bool by_fours(const void *p, int n)
{
    return (uintptr_t)p % 16 == 0 && n % 4 == 0;
}

/* Whether a kernel's code is of a GPU that has what begins with compute capability 9.0. */
template <class... P>
static cudaError_t is_of_90(void (*kernel)(P...), bool *out)
{
    cudaFuncAttributes of;
    cudaError_t e = cudaFuncGetAttributes(&of, kernel);
    *out = e == cudaSuccess && of.ptxVersion >= 90;
    return e;
}

/* A number of the card that the thread has chosen. */
static inline cudaError_t ask_device(enum cudaDeviceAttr what, int *number)
{
    int device;
    cudaError_t e = cudaGetDevice(&device);
    return e == cudaSuccess ? cudaDeviceGetAttribute(number, what, device) : e;
}

/* Launches a kernel that begins with wait_turn(), in clusters of so many blocks: one, unless its code is_of_90. Where
 * it is, its blocks come before those of the kernel ahead have ended, so that launching costs nothing. */
template <class... P, class... A>
static cudaError_t launch_in_clusters(int n_blocks, void (*kernel)(P...), dim3 grid, int threads, size_t bytes,
                                      cudaStream_t st, A... args)
{
    bool early;
    cudaLaunchAttribute attributes[2] = {};
    cudaLaunchConfig_t config = {};
    cudaError_t e = is_of_90(kernel, &early);
    if (e != cudaSuccess)
        return e;
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = n_blocks;
    attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
    config.gridDim = grid;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = bytes;
    config.stream = st;
    config.attrs = attributes;
    config.numAttrs = !early ? 0 : n_blocks > 1 ? 2 : 1;
    return cudaLaunchKernelEx(&config, kernel, P(args)...);
}

/* Whether the card takes a cluster of so many blocks of a kernel: small ones may lack multiprocessors side by side. */
template <class... P>
static cudaError_t takes_cluster(int n_blocks, void (*kernel)(P...), int threads, bool *out)
{
    cudaLaunchAttribute cluster = {};
    cudaLaunchConfig_t config = {};
    int n = 0;
    cudaError_t e = is_of_90(kernel, out);
    if (e != cudaSuccess || !*out)
        return e;
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = n_blocks;
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    config.gridDim = dim3(n_blocks);
    config.blockDim = dim3(threads);
    config.attrs = &cluster;
    config.numAttrs = 1;
    e = cudaOccupancyMaxActiveClusters(&n, kernel, &config);
    *out = e == cudaSuccess && n > 0;
    return e;
}

template <class... P, class... A>
static cudaError_t launch_early(void (*kernel)(P...), dim3 grid, int threads, size_t bytes, cudaStream_t st, A... args)
{
    return launch_in_clusters(1, kernel, grid, threads, bytes, st, args...);
}

/* Launches a kernel that begins when all work ahead of it in the stream has ended. */
template <class... P, class... A>
static cudaError_t launch_in_turn(void (*kernel)(P...), dim3 grid, int threads, size_t bytes, cudaStream_t st,
                                  A... args)
{
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = bytes;
    config.stream = st;
    return cudaLaunchKernelEx(&config, kernel, P(args)...);
}

/* Lets a kernel have that much shared memory besides its static variables; fails where a block of this GPU may not. */
template <class... P>
static cudaError_t allow_bytes(void (*kernel)(P...), size_t bytes)
{
    enum { ALWAYS = 47 << 10 };              /* 48 KB need no asking, less what static variables take */
    return bytes <= ALWAYS ? cudaSuccess : pf_cu_allow_bytes((const void *)kernel, bytes);
}

static inline int ceil_div(int64_t a, int64_t b)
{
    return (int)((a + b - 1) / b);
}

#endif
