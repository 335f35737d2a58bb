/* The one place where a level uses its own instructions by name: 32 halves to floats. All variants give the same bits. */
#ifndef PF_GENERIC_HALF_H
#define PF_GENERIC_HALF_H

#include "kernels/generic/generic_math.h"

#if defined(__AVX512F__)
#include <immintrin.h>
static inline void load_f16x32(float *restrict dst, const uint16_t *restrict src)
{
    for (int i = 0; i < PF_LANES; i += 16)
        _mm512_storeu_ps(dst + i, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(src + i))));
}
#elif defined(__F16C__)
#include <immintrin.h>
static inline void load_f16x32(float *restrict dst, const uint16_t *restrict src)
{
    for (int i = 0; i < PF_LANES; i += 8)
        _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(src + i))));
}
#else
static inline void load_f16x32(float *restrict dst, const uint16_t *restrict src)
{
    for (int i = 0; i < PF_LANES; i++)
        dst[i] = half_float(src[i]);
}
#endif

static inline void load_f16(float *restrict dst, const uint16_t *restrict src, size_t n)
{
    size_t i = 0;
    for (; i + PF_LANES <= n; i += PF_LANES)
        load_f16x32(dst + i, src + i);
    for (; i < n; i++)
        dst[i] = half_float(src[i]);
}

#endif
