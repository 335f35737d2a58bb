/* exp, exp2, log2, sigmoid and softplus with the same bits on every unit.
 *
 * Only fmaf, additions, multiplications, divisions, comparisons and integer shifts, each rounded where it stands: the
 * same source in C (any instruction set) and CUDA gives the same float. Branch-free, so that loops over it vectorise.
 * Pure functions; any thread; the rounding mode must be to nearest. exp makes and needs no denormal. */
#ifndef PF_MATH_H
#define PF_MATH_H

#include <stdint.h>

/* How the functions are declared: a compiler for another unit defines this first. */
#ifndef PF_MATH_FN
#define PF_MATH_FN static inline
#endif

/* The larger of x and a number; that number if x is NaN. A unit that has an instruction for it defines this first. */
#ifndef PF_MATH_MAX
#define PF_MATH_MAX(x, number) ((x) > (number) ? (x) : (number))
#endif

PF_MATH_FN uint32_t pf_float_bits(float x)
{
    union { float f; uint32_t u; } v = { .f = x };
    return v.u;
}

PF_MATH_FN float pf_bits_float(uint32_t u)
{
    union { uint32_t u; float f; } v = { .u = u };
    return v.f;
}

/* e^x, relative error below 1 ulp (tests/kernels/check_float.c sweeps it). -inf and every x whose result would lie
 * below 2^-126 give 0; +inf and every x whose result would exceed FLT_MAX give +inf; NaN stays NaN; exp(0) is 1.
 *
 * x = n ln2 + r with n an integer and |r| <= ln2/2: n comes from adding 1.5 * 2^23, whose low bits then hold n; n times
 * the upper part of ln2 is exact, and so is its difference from x. e^r = 1 + (r + r^2 q(r)), q the minimax polynomial
 * for the relative error of e^r (0.07 ulp). n is added to the exponent of e^r: within the bounds nothing overflows. */
PF_MATH_FN float pf_expf(float x)
{
    const float shift = 0x1.8p23f;
    float t = __builtin_fmaf(x, 0x1.715476p0f, shift);
    float n = t - shift;
    float r = __builtin_fmaf(n, -0x1.62e4p-1f, x);
    r = __builtin_fmaf(n, -0x1.7f7d1cp-20f, r);

    float q = 0x1.6a2352p-10f;
    q = __builtin_fmaf(q, r, 0x1.123a6cp-7f);
    q = __builtin_fmaf(q, r, 0x1.5558f4p-5f);
    q = __builtin_fmaf(q, r, 0x1.555490p-3f);
    q = __builtin_fmaf(q, r, 0x1.fffffcp-2f);
    float p = __builtin_fmaf(q, r * r, r) + 1.0f;

    float y = pf_bits_float(pf_float_bits(p) + (pf_float_bits(t) << 23));
    y = x < -0x1.5d589ep6f ? 0.0f : y;                   /* ln 2^-126 */
    y = x > 0x1.62e42ep6f ? __builtin_inff() : y;        /* ln FLT_MAX */
    return x == x ? y : x;
}

/* 2^max(x, -125) for x <= 0, relative error 2.5e-7; NaN counts as -125; pf_exp2_neg(0) is 1. x = n + r, n an integer
 * and |r| <= 1/2; the polynomial is minimax for the relative error of 2^r among those that begin with 1. */
PF_MATH_FN float pf_exp2_neg(float x)
{
    const float shift = 0x1.8p23f;
    x = PF_MATH_MAX(x, -125.0f);
    float t = x + shift;
    float r = x - (t - shift);
    float p = 0x1.5c08e6p-10f;
    p = __builtin_fmaf(p, r, 0x1.3d0c52p-7f);
    p = __builtin_fmaf(p, r, 0x1.c6b6e6p-5f);
    p = __builtin_fmaf(p, r, 0x1.ebf918p-3f);
    p = __builtin_fmaf(p, r, 0x1.62e428p-1f);
    p = __builtin_fmaf(p, r, 1.0f);
    return pf_bits_float(pf_float_bits(p) + (pf_float_bits(t) << 23));
}

/* log2 x of a normal x > 0, absolute error 1e-7 and half an ulp of the result. x = 2^e m with m within sqrt(1/2) and
 * sqrt(2); log2 m = s p(s^2), s = (m - 1) / (m + 1). */
PF_MATH_FN float pf_log2f(float x)
{
    uint32_t u = pf_float_bits(x), e = (u - 0x3f3504f3u) & 0xff800000u;
    float m = pf_bits_float(u - e);
    float s = (m - 1.0f) / (m + 1.0f), q = s * s;
    float p = 0x1.a61762p-2f;
    p = __builtin_fmaf(p, q, 0x1.2776c6p-1f);
    p = __builtin_fmaf(p, q, 0x1.ec709ep-1f);
    p = __builtin_fmaf(p, q, 0x1.715476p1f);
    return __builtin_fmaf(s, p, (float)((int32_t)e / (1 << 23)));
}

PF_MATH_FN float pf_sigmoidf(float z)
{
    return 1.0f / (1.0f + pf_expf(-z));
}

/* The tanh form of GELU: z * (1 + tanh(t)) / 2 = z * sigmoid(2 t), t = sqrt(2 / pi) * (z + 0.044715 z^3). */
PF_MATH_FN float pf_geluf(float z)
{
    float t = __builtin_fmaf(z * z * z, 0.044715f, z);
    return z * pf_sigmoidf(1.5957691216f * t);
}

/* log(1 + e^z) = max(z, 0) + log(1 + u), u = e^-|z|: no overflow, and nothing is lost where u is small. With
 * s = u / (2 + u) the logarithm is 2 atanh(s) = 2 s + s^3 p(s^2), p a minimax polynomial (0.1 ulp). */
PF_MATH_FN float pf_softplusf(float z)
{
    float u = pf_expf(z > 0.0f ? -z : z);
    float s = u / (2.0f + u), s2 = s * s;
    float p = 0x1.1ed82ep-2f;
    p = __builtin_fmaf(p, s2, 0x1.1ebcf8p-2f);
    p = __builtin_fmaf(p, s2, 0x1.99d20ap-2f);
    p = __builtin_fmaf(p, s2, 0x1.555502p-1f);
    return (z > 0.0f ? z : 0.0f) + __builtin_fmaf(s * s2, p, s + s);
}

#endif
