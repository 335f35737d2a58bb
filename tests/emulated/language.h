/* CUDA C++ for a host compiler: the words and functions that pfmoe's kernels use, for the thread that blocks.c runs.
 * Included before every kernel source. The CUDA C++ Programming Guide says what each function does; a collective one
 * that is called by fewer than all lanes of a warp ends the program. */
#ifndef PF_EMULATED_LANGUAGE_H
#define PF_EMULATED_LANGUAGE_H

#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "emulated.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ static __thread

/* ---- Vectors ----------------------------------------------------------------------------------------------------- */

struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };

static inline float2 make_float2(float x, float y) { return { x, y }; }
static inline float4 make_float4(float x, float y, float z, float w) { return { x, y, z, w }; }
static inline uint2 make_uint2(unsigned x, unsigned y) { return { x, y }; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return { x, y, z, w }; }

/* ---- Numbers ----------------------------------------------------------------------------------------------------- */

static inline int min(int a, int b) { return a < b ? a : b; }
static inline int max(int a, int b) { return a > b ? a : b; }
static inline uint32_t max(uint32_t a, uint32_t b) { return a > b ? a : b; }
static inline int64_t max(int64_t a, int64_t b) { return a > b ? a : b; }
static inline float __fdividef(float a, float b) { return a * (1.0f / b); }
static inline int __popc(unsigned v) { return __builtin_popcount(v); }
static inline int __ffs(int v) { return __builtin_ffs(v); }

static inline uint32_t __funnelshift_r(uint32_t low, uint32_t high, uint32_t shift)
{
    return (uint32_t)(((uint64_t)high << 32 | low) >> (shift & 31));
}

static inline uint32_t __funnelshift_rc(uint32_t low, uint32_t high, uint32_t shift)
{
    return (uint32_t)(((uint64_t)high << 32 | low) >> (shift < 32 ? shift : 32));
}

static inline int __dp4a(int a, int b, int c)
{
    __m128i halves = _mm_madd_epi16(_mm_cvtepi8_epi16(_mm_cvtsi32_si128(a)), _mm_cvtepi8_epi16(_mm_cvtsi32_si128(b)));
    int64_t both = _mm_cvtsi128_si64(halves);
    return (int)((uint32_t)c + (uint32_t)both + (uint32_t)(both >> 32));
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

template <class T> static inline T __ldg(const T *p) { return *p; }
template <class T> static inline T __ldcg(const T *p) { return *p; }
template <class T> static inline T __ldcs(const T *p) { return *p; }
template <class T> static inline T __ldcv(const T *p) { return *p; }
static inline void __threadfence(void) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __threadfence_system(void) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline int atomicAdd(int *p, int v) { return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST); }

/* ---- Threads ----------------------------------------------------------------------------------------------------- */

EMU_INLINE void __syncthreads(void) { emu_barrier_any(0, 0, false); }
EMU_INLINE int __syncthreads_or(int yes) { return emu_barrier_any(0, 0, yes); }
EMU_INLINE void __syncwarp(void) { emu_exchange(0); }

template <class T> EMU_INLINE T emu_from_lane(T v, unsigned lane)
{
    uint64_t mine = 0;
    static_assert(sizeof v <= sizeof mine, "given as one word");
    memcpy(&mine, &v, sizeof v);
    const uint64_t *all = emu_exchange(mine);
    memcpy(&v, &all[lane], sizeof v);
    return v;
}

static inline unsigned emu_lane(void) { return threadIdx.x % EMU_WARP; }

template <class T> EMU_INLINE T __shfl_sync(unsigned, T v, int lane)
{
    return emu_from_lane(v, (unsigned)lane % EMU_WARP);
}

template <class T> EMU_INLINE T __shfl_xor_sync(unsigned, T v, int mask)
{
    return emu_from_lane(v, emu_lane() ^ (unsigned)mask);
}

template <class T> EMU_INLINE T __shfl_down_sync(unsigned, T v, unsigned by)
{
    return emu_from_lane(v, emu_lane() + by < EMU_WARP ? emu_lane() + by : emu_lane());
}

template <class T> EMU_INLINE T __shfl_up_sync(unsigned, T v, unsigned by)
{
    return emu_from_lane(v, emu_lane() >= by ? emu_lane() - by : emu_lane());
}

EMU_INLINE unsigned __ballot_sync(unsigned, bool yes)
{
    const uint64_t *all = emu_exchange(yes);
    unsigned votes = 0;
    for (int i = 0; i < EMU_WARP; i++)
        votes |= (unsigned)all[i] << i;
    return votes;
}

/* ---- Launches ---------------------------------------------------------------------------------------------------- */

template <class... P> static cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *of, void (*kernel)(P...))
{
    return cudaFuncGetAttributes(of, (const void *)kernel);
}

template <class... P>
static cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n, void (*)(P...), int, size_t)
{
    *n = 2;
    return cudaSuccess;
}

/* A cluster's blocks are alone on their multiprocessors. */
template <class... P>
static cudaError_t cudaOccupancyMaxActiveClusters(int *n, void (*)(P...), const cudaLaunchConfig_t *c)
{
    *n = emu_card()->n_units / (int)c->attrs[0].val.clusterDim.x;
    return cudaSuccess;
}

template <class F> static void emu_call(const void *f) { (*(const F *)f)(); }
template <class F> static void emu_drop(void *f) { delete (F *)f; }

template <class F> static struct emu_kernel emu_kernel_of(F f)
{
    struct emu_kernel k = {};
    k.call = emu_call<F>;
    k.drop = emu_drop<F>;
    k.args = new F(f);
    return k;
}

template <class... P>
static cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config, void (*kernel)(P...), P... args)
{
    return emu_launch(config, (const void *)kernel, emu_kernel_of([=] { kernel(args...); }));
}

#endif
