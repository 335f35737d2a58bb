/* The one place where a level names its own instructions: a vector of VEC floats, fused multiply-add on it, halves to
 * floats, the shuffles of a fold and of a rotation (vec_swap: lane i gets lane i ^ h), and vec_hold, which keeps a
 * loaded vector in a register: where it is used twice, the compiler would rather load it twice. Loads, stores and sums
 * are the compiler's vector extension. All variants do the same float operations on the same elements.
 *
 * The fold of VEC sums at once. d[0..VEC) are vectors of VEC partial sums each; lane j of the result is d[j] folded by
 * halves:
 *
 *     vec_quarters   d[j], d[j+4], ... -> [d[j] | d[j+4] | ...], each folded down to 4 lanes
 *     vec_pairs      [a a a a|..] [b b b b|..] -> [a a b b|..]
 *     vec_singles    [a a b b|..] [c c d d|..] -> [a b c d|..]
 */
#ifndef PF_GENERIC_VEC_H
#define PF_GENERIC_VEC_H

#include "kernels/generic/generic_math.h"

#if defined(__AVX512F__)
#include <immintrin.h>
enum { VEC = 16 };
typedef __m512 vec;

static inline vec vec_fma(vec a, vec b, vec c)
{
    return _mm512_fmadd_ps(a, b, c);
}

static inline vec vec_load_f16(const uint16_t *x)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)x));
}

static inline vec vec_hold(vec v)
{
    __asm__("" : "+v"(v));
    return v;
}

static inline vec vec_swap(vec v, int h)
{
    return h == 1 ? _mm512_permute_ps(v, 0xb1) : h == 2 ? _mm512_permute_ps(v, 0x4e) :
           h == 4 ? _mm512_shuffle_f32x4(v, v, 0xb1) : _mm512_shuffle_f32x4(v, v, 0x4e);
}

static inline vec vec_halves(vec a, vec b)
{
    return _mm512_shuffle_f32x4(a, b, 0x44) + _mm512_shuffle_f32x4(a, b, 0xee);
}

static inline vec vec_quarters(const vec *d)
{
    vec a = vec_halves(d[0], d[4]), b = vec_halves(d[8], d[12]);
    return _mm512_shuffle_f32x4(a, b, 0x88) + _mm512_shuffle_f32x4(a, b, 0xdd);
}

static inline vec vec_pairs(vec a, vec b)
{
    return _mm512_shuffle_ps(a, b, 0x44) + _mm512_shuffle_ps(a, b, 0xee);
}

static inline vec vec_singles(vec a, vec b)
{
    return _mm512_shuffle_ps(a, b, 0x88) + _mm512_shuffle_ps(a, b, 0xdd);
}
#elif defined(__FMA__) && defined(__F16C__)
#include <immintrin.h>
enum { VEC = 8 };
typedef __m256 vec;

static inline vec vec_fma(vec a, vec b, vec c)
{
    return _mm256_fmadd_ps(a, b, c);
}

static inline vec vec_load_f16(const uint16_t *x)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)x));
}

static inline vec vec_hold(vec v)
{
    __asm__("" : "+v"(v));
    return v;
}

static inline vec vec_swap(vec v, int h)
{
    return h == 1 ? _mm256_permute_ps(v, 0xb1) : h == 2 ? _mm256_permute_ps(v, 0x4e) :
                    _mm256_permute2f128_ps(v, v, 1);
}

static inline vec vec_quarters(const vec *d)
{
    return _mm256_permute2f128_ps(d[0], d[4], 0x20) + _mm256_permute2f128_ps(d[0], d[4], 0x31);
}

static inline vec vec_pairs(vec a, vec b)
{
    return _mm256_shuffle_ps(a, b, 0x44) + _mm256_shuffle_ps(a, b, 0xee);
}

static inline vec vec_singles(vec a, vec b)
{
    return _mm256_shuffle_ps(a, b, 0x88) + _mm256_shuffle_ps(a, b, 0xdd);
}
#else
enum { VEC = 4 };
typedef float vec __attribute__((vector_size(16)));

static inline vec vec_fma(vec a, vec b, vec c)
{
    for (int i = 0; i < VEC; i++)
        c[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return c;
}

static inline vec vec_load_f16(const uint16_t *x)
{
    return (vec){ half_float(x[0]), half_float(x[1]), half_float(x[2]), half_float(x[3]) };
}

static inline vec vec_hold(vec v)
{
    return v;
}

static inline vec vec_swap(vec v, int h)
{
    return h == 1 ? (vec){ v[1], v[0], v[3], v[2] } : (vec){ v[2], v[3], v[0], v[1] };
}

static inline vec vec_quarters(const vec *d)
{
    return d[0];
}

static inline vec vec_pairs(vec a, vec b)
{
    return (vec){ a[0], a[1], b[0], b[1] } + (vec){ a[2], a[3], b[2], b[3] };
}

static inline vec vec_singles(vec a, vec b)
{
    return (vec){ a[0], a[2], b[0], b[2] } + (vec){ a[1], a[3], b[1], b[3] };
}
#endif

enum { PARTS = PF_LANES / VEC };        /* vectors that hold the 32 accumulators */

static inline vec vec_load(const float *x)
{
    vec v;
    memcpy(&v, x, sizeof v);
    return v;
}

static inline void vec_store(float *x, vec v)
{
    memcpy(x, &v, sizeof v);
}

static inline vec vec_all(float x)
{
    return x - (vec){0};
}

/* VEC sums from VEC vectors of partial sums. */
static inline vec vec_fold(const vec *d)
{
    vec a = vec_pairs(vec_quarters(d), vec_quarters(d + 1)), b = vec_pairs(vec_quarters(d + 2), vec_quarters(d + 3));
    return vec_singles(a, b);
}

#endif
