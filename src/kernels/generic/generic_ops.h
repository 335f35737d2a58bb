/* Quantisation, norms, activations, elementwise operations, rotation, softmax: the bodies, static, one copy per level.
 * kernels.h holds the contract of each. */
#ifndef PF_GENERIC_OPS_H
#define PF_GENERIC_OPS_H

#include "kernels/generic/generic_math.h"

/* Element i of f(x) for a function of up to two inputs: whole blocks through a local array (so that the output may be an
 * input), the tail padded with zeros in one more block, whose surplus is not stored. */
#define FOR_BLOCKS(n, i, m) for (int i = 0, m; i < (n) && ((m) = min_int((n) - i, PF_LANES)) > 0; i += PF_LANES)

static inline void block_load(float *restrict b, const float *x, int m)
{
    if (m == PF_LANES) {
        memcpy(b, x, PF_LANES * sizeof *b);
        return;
    }
    memset(b, 0, PF_LANES * sizeof *b);
    memcpy(b, x, (size_t)m * sizeof *b);
}

static inline void block_store(float *y, const float *restrict b, int m)
{
    if (m == PF_LANES)
        memcpy(y, b, PF_LANES * sizeof *b);
    else
        memcpy(y, b, (size_t)m * sizeof *b);
}

/* ---- Quantisation -------------------------------------------------------------------------------------------- */

/* Largest |x| as bits: they order as the values do, infinities above all finite values and NaN above infinity. */
static inline uint32_t amax_bits(const float *restrict x)
{
    int32_t m[PF_LANES], top = 0;
    for (int i = 0; i < PF_LANES; i++)
        m[i] = (int32_t)(pf_float_bits(x[i]) & 0x7fffffffu);
    for (int i = 0; i < PF_LANES; i++)
        top = m[i] > top ? m[i] : top;
    return (uint32_t)top;
}

/* |x * id| <= 127, so that adding 1.5 * 2^23 rounds it to an integer, ties to even, in the low bits. */
static inline void quantise_block(const float *restrict x, float id, int8_t *restrict q, int16_t *restrict s)
{
    int32_t v[PF_LANES];
    for (int i = 0; i < PF_LANES; i++)
        v[i] = (int32_t)(pf_float_bits(x[i] * id + 0x1.8p23f) - 0x4b400000u);
    for (int i = 0; i < PF_LANES; i++)
        q[i] = (int8_t)v[i];
    for (int h = 0; h < 2; h++) {
        int32_t sum = 0;
        for (int i = 0; i < 16; i++)
            sum += v[16 * h + i];
        s[h] = (int16_t)sum;
    }
}

static int op_quantise(const float *restrict x, int n, int8_t *restrict q, float *restrict d, int16_t *restrict s)
{
    uint32_t top = 0;
    for (int i = 0; i < n; i += PF_LANES) {
        uint32_t bits = amax_bits(x + i);
        float amax = pf_bits_float(bits);
        int alive = amax >= 0x1p-100f;
        top = bits > top ? bits : top;
        d[i / PF_LANES] = alive ? amax / 127.0f : 0.0f;
        quantise_block(x + i, alive ? 127.0f / amax : 0.0f, q + i, s + i / 16);
    }
    return top >= 0x7f800000u ? -1 : 0;
}

/* ---- Sums: norm and softmax ----------------------------------------------------------------------------------- */

static float sum_of_squares(const float *restrict x, int n)
{
    float s[PF_LANES] = {0}, b[PF_LANES];
    FOR_BLOCKS(n, i, m) {
        block_load(b, x + i, m);
        for (int j = 0; j < PF_LANES; j++)
            s[j] = __builtin_fmaf(b[j], b[j], s[j]);
    }
    return fold32(s);
}

static void op_rms_norm(const float *x, const float *w, float eps, int n, float *y)
{
    float mean = sum_of_squares(x, n) / (float)n;
    float r = 1.0f / __builtin_sqrtf(mean + eps);
    float b[PF_LANES], c[PF_LANES];
    FOR_BLOCKS(n, i, m) {
        block_load(b, x + i, m);
        for (int j = 0; j < PF_LANES; j++)
            b[j] *= r;
        if (w) {
            block_load(c, w + i, m);
            for (int j = 0; j < PF_LANES; j++)
                b[j] *= c[j];
        }
        block_store(y + i, b, m);
    }
}

/* The largest value; NaN is passed over. */
static inline float max_of(const float *restrict x, int n)
{
    float s[PF_LANES], b[PF_LANES];
    for (int j = 0; j < PF_LANES; j++)
        s[j] = -__builtin_inff();
    int i = 0;
    for (; i + PF_LANES <= n; i += PF_LANES) {
        memcpy(b, x + i, sizeof b);
        for (int j = 0; j < PF_LANES; j++)
            s[j] = b[j] > s[j] ? b[j] : s[j];
    }
    for (; i < n; i++)
        s[0] = x[i] > s[0] ? x[i] : s[0];
    for (int h = PF_LANES / 2; h > 0; h /= 2)
        for (int j = 0; j < h; j++)
            s[j] = s[j + h] > s[j] ? s[j + h] : s[j];
    return s[0];
}

/* y = exp(x - max), returns the sum in 32 accumulators. y may be x. */
static inline float exp_sum(const float *x, int n, float max, float *y)
{
    float s[PF_LANES] = {0}, b[PF_LANES];
    FOR_BLOCKS(n, i, m) {
        block_load(b, x + i, m);
        for (int j = 0; j < PF_LANES; j++)
            b[j] = pf_expf(b[j] - max);
        block_store(y + i, b, m);
        for (int j = 0; j < PF_LANES; j++)
            s[j] += j < m ? b[j] : 0.0f;
    }
    return fold32(s);
}

static void op_softmax(const float *x, int n, float *p)
{
    float sum = exp_sum(x, n, max_of(x, n), p);
    for (int i = 0; i < n; i++)
        p[i] = p[i] / sum;
}

/* ---- Elementwise ---------------------------------------------------------------------------------------------- */

static void op_swiglu(const float *g, const float *u, int n, float *a)
{
    float b[PF_LANES], c[PF_LANES];
    FOR_BLOCKS(n, i, m) {
        block_load(b, g + i, m);
        block_load(c, u + i, m);
        for (int j = 0; j < PF_LANES; j++)
            b[j] = b[j] * pf_sigmoidf(b[j]) * c[j];
        block_store(a + i, b, m);
    }
}

static void op_swiglu_oai(const float *g, const float *u, int n, float *a)
{
    float b[PF_LANES], c[PF_LANES];
    FOR_BLOCKS(n, i, m) {
        block_load(b, g + i, m);
        block_load(c, u + i, m);
        for (int j = 0; j < PF_LANES; j++) {
            float z = b[j] > 7.0f ? 7.0f : b[j];
            float v = c[j] > 7.0f ? 7.0f : c[j];
            v = v < -7.0f ? -7.0f : v;
            b[j] = z * pf_sigmoidf(1.702f * z) * (v + 1.0f);
        }
        block_store(a + i, b, m);
    }
}

static void op_add(float *restrict y, const float *restrict x, int n)
{
    for (int i = 0; i < n; i++)
        y[i] = y[i] + x[i];
}

static void op_scale(float *restrict y, float a, int n)
{
    for (int i = 0; i < n; i++)
        y[i] = y[i] * a;
}

static void op_axpy(float *restrict y, float a, const float *restrict x, int n)
{
    for (int i = 0; i < n; i++)
        y[i] = __builtin_fmaf(a, x[i], y[i]);
}

static void op_rope_norm(float *restrict x, const float *restrict cs, int n_pairs)
{
    const float *restrict sn = cs + n_pairs;
    for (int i = 0; i < n_pairs; i++) {
        float a = x[2 * i], b = x[2 * i + 1];
        x[2 * i] = __builtin_fmaf(a, cs[i], -(b * sn[i]));
        x[2 * i + 1] = __builtin_fmaf(a, sn[i], b * cs[i]);
    }
}

static inline void rope_halves(float *restrict x, float *restrict y, const float *restrict c, const float *restrict s,
                               int n)
{
    for (int i = 0; i < n; i++) {
        float a = x[i], b = y[i];
        x[i] = __builtin_fmaf(a, c[i], -(b * s[i]));
        y[i] = __builtin_fmaf(a, s[i], b * c[i]);
    }
}

static void op_rope_neox(float *restrict x, const float *restrict cs, int n_pairs)
{
    rope_halves(x, x + n_pairs, cs, cs + n_pairs, n_pairs);
}

static void op_to_f16(const float *restrict x, int n, uint16_t *restrict y)
{
    for (int i = 0; i < n; i++)
        y[i] = float_half(x[i]);
}

#endif
