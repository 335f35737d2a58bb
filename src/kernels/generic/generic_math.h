/* Building blocks of every float kernel: the fold of the 32 accumulators, and F16 in plain C.
 *
 * The fixed order of a sum (kernels.h): element i goes to accumulator i mod 32, then the 32 are folded 16, 8, 4, 2, 1.
 * Loops over PF_LANES floats have a constant length and no branches, so that compilers turn them into vectors without
 * being allowed to reorder anything. */
#ifndef PF_GENERIC_MATH_H
#define PF_GENERIC_MATH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/pf_math.h"

enum { PF_LANES = 32 };

static inline float fold32(float s[PF_LANES])
{
    for (int i = 0; i < 16; i++)
        s[i] += s[i + 16];
    for (int i = 0; i < 8; i++)
        s[i] += s[i + 8];
    for (int i = 0; i < 4; i++)
        s[i] += s[i + 4];
    return (s[0] + s[2]) + (s[1] + s[3]);
}

static inline int min_int(int a, int b)
{
    return a < b ? a : b;
}

static inline int max_int(int a, int b)
{
    return a > b ? a : b;
}

/* The value of a half, exactly; a signalling NaN becomes quiet, as the hardware conversion makes it. A denormal half is
 * its bits laid under the exponent of 2^-14, less 2^-14. */
static inline float half_float(uint16_t h)
{
    uint32_t u = (uint32_t)(h & 0x7fff) << 13;
    uint32_t tiny = pf_float_bits(pf_bits_float(u + (113u << 23)) - 0x1p-14f);
    uint32_t normal = u + (112u << 23);
    uint32_t special = (u > 0x0f800000u ? 0x7fc00000u : 0x7f800000u) | u;
    uint32_t v = u < 0x00800000u ? tiny : normal;
    v = u >= 0x0f800000u ? special : v;
    return pf_bits_float(v | (uint32_t)(h & 0x8000) << 16);
}

/* Round to nearest even; overflow gives infinity; a NaN keeps its upper bits and becomes quiet. Below 2^-14 adding 0.5,
 * whose last bit is worth 2^-24, does the rounding. */
static inline uint16_t float_half(float x)
{
    uint32_t u = pf_float_bits(x), a = u & 0x7fffffffu;
    uint32_t tiny = pf_float_bits(pf_bits_float(a) + 0.5f) - 0x3f000000u;
    uint32_t normal = (a - (112u << 23) + 0xfffu + (a >> 13 & 1)) >> 13;
    uint32_t special = a > 0x7f800000u ? 0x7e00u | (a >> 13 & 0x3ffu) : 0x7c00u;
    uint32_t v = a < 0x38800000u ? tiny : normal;
    v = a >= 0x47800000u ? special : v;
    return (uint16_t)(v | (u >> 16 & 0x8000u));
}

#endif
