/* Halves, as far as kernels use them: bits, to float32 and from it. */
#ifndef PF_EMULATED_CUDA_FP16_H
#define PF_EMULATED_CUDA_FP16_H

#include <immintrin.h>
#include <stdint.h>

struct __half {
    uint16_t bits;
};

static inline __half __ushort_as_half(uint16_t bits) { return { bits }; }
static inline uint16_t __half_as_ushort(__half h) { return h.bits; }
static inline float __half2float(__half h) { return _cvtsh_ss(h.bits); }
static inline __half __float2half_rn(float x) { return { _cvtss_sh(x, 0) }; }

#endif
