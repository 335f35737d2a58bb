/* Quantisation, norms, activations, elementwise operations, rotation, softmax: the bodies, static, one copy per level.
 * kernels.h holds the contract of each. */
#ifndef PF_GENERIC_OPS_H
#define PF_GENERIC_OPS_H

#include "kernels/generic/generic_vec.h"
#include "kernels/qblocks.h"

/* A function of 32 elements of x and y (y unused where there is only x). out may be x or y: all is read before anything
 * is written. ctx holds its constants. */
typedef void block_fn(const float *x, const float *y, const float *ctx, float *out);

/* f over n elements; the last few go through buffers padded with pad, whose surplus is dropped. */
static inline __attribute__((always_inline)) void for_blocks(block_fn *f, const float *x, const float *y, int n,
                                                             float pad, const float *ctx, float *out)
{
    int i = 0;
    for (; i + PF_LANES <= n; i += PF_LANES)
        f(x + i, y + i, ctx, out + i);
    if (i == n)
        return;
    float a[PF_LANES], b[PF_LANES], c[PF_LANES];
    for (int j = 0; j < PF_LANES; j++)
        a[j] = b[j] = pad;
    memcpy(a, x + i, (size_t)(n - i) * sizeof *a);
    memcpy(b, y + i, (size_t)(n - i) * sizeof *b);
    f(a, b, ctx, c);
    memcpy(out + i, c, (size_t)(n - i) * sizeof *c);
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

/* |x * id| <= 127, so that adding 1.5 * 2^23 rounds it to an integer, ties to even, in the low bits. r gets the
 * integers as floats. */
static inline void quantise_block(const float *restrict x, float id, int8_t *restrict q, float *restrict r)
{
    float t[PF_LANES];
    for (int i = 0; i < PF_LANES; i++)
        t[i] = x[i] * id + 0x1.8p23f;
    for (int i = 0; i < PF_LANES; i++)
        q[i] = (int8_t)(pf_float_bits(t[i]) - 0x4b400000u);
    for (int i = 0; i < PF_LANES; i++)
        r[i] = t[i] - 0x1.8p23f;
}

/* The sums of n times 16 integers, n <= VEC: exact in float, so that their order does not matter. */
static inline void sums_of_16(const float *restrict r, int n, int16_t *restrict s)
{
    vec d[VEC];
    float sum[VEC];
    for (int j = 0; j < VEC; j++) {
        d[j] = vec_load(r + 16 * j);
        for (int i = VEC; i < 16; i += VEC)
            d[j] += vec_load(r + 16 * j + i);
    }
    vec_store(sum, vec_fold(d));
    for (int j = 0; j < n; j++)
        s[j] = (int16_t)(pf_float_bits(sum[j] + 0x1.8p23f) - 0x4b400000u);
}

static int op_quantise(const float *restrict x, int n, int8_t *restrict q, float *restrict d, int16_t *restrict s)
{
    float r[16 * VEC] __attribute__((aligned(64))) = {0};
    uint32_t top = 0;
    for (int i = 0; i < n; i += 16 * VEC) {
        int end = min_int(i + 16 * VEC, n);
        for (int b = i; b < end; b += PF_LANES) {
            uint32_t bits = amax_bits(x + b);
            float amax = pf_bits_float(bits);
            int alive = amax >= 0x1p-100f;
            top = bits > top ? bits : top;
            d[b / PF_LANES] = alive ? amax / 127.0f : 0.0f;
            quantise_block(x + b, alive ? 127.0f / amax : 0.0f, q + b, r + (b - i));
        }
        if (end - i == 16 * VEC)
            sums_of_16(r, VEC, s + i / 16);
        else
            sums_of_16(r, (end - i) / 16, s + i / 16);
    }
    return top >= 0x7f800000u ? -1 : 0;
}

/* ---- Sums: norm and softmax ----------------------------------------------------------------------------------- */

/* The 32 accumulators. */
struct sums {
    vec v[PARTS];
};

static inline float sums_fold(const struct sums *s)
{
    float f[PF_LANES];
    memcpy(f, s->v, sizeof f);
    return fold32(f);
}

static float sum_of_squares(const float *restrict x, int n)
{
    struct sums s = {0};
    int i = 0;
    for (; i + PF_LANES <= n; i += PF_LANES)
        for (int v = 0; v < PARTS; v++) {
            vec a = vec_load(x + i + v * VEC);
            s.v[v] = vec_fma(a, a, s.v[v]);
        }
    float f[PF_LANES];
    memcpy(f, s.v, sizeof f);
    for (int j = 0; i + j < n; j++)
        f[j] = __builtin_fmaf(x[i + j], x[i + j], f[j]);
    return fold32(f);
}

static inline void block_scale(const float *x, const float *w, const float *r, float *y)
{
    float t[PF_LANES];
    (void)w;
    for (int j = 0; j < PF_LANES; j++)
        t[j] = x[j] * *r;
    memcpy(y, t, sizeof t);
}

static inline void block_scale_weigh(const float *x, const float *w, const float *r, float *y)
{
    float t[PF_LANES];
    for (int j = 0; j < PF_LANES; j++)
        t[j] = x[j] * *r * w[j];
    memcpy(y, t, sizeof t);
}

static void op_rms_norm(const float *x, const float *w, float eps, int n, float *y)
{
    float mean = sum_of_squares(x, n) / (float)n;
    float r = 1.0f / __builtin_sqrtf(mean + eps);
    if (w)
        for_blocks(block_scale_weigh, x, w, n, 0.0f, &r, y);
    else
        for_blocks(block_scale, x, x, n, 0.0f, &r, y);
}

static float sum_of(const float *restrict x, int n)
{
    struct sums s = {0};
    int i = 0;
    for (; i + PF_LANES <= n; i += PF_LANES)
        for (int v = 0; v < PARTS; v++)
            s.v[v] += vec_load(x + i + v * VEC);
    float f[PF_LANES];
    memcpy(f, s.v, sizeof f);
    for (int j = 0; i + j < n; j++)
        f[j] += x[i + j];
    return fold32(f);
}

static inline void block_less(const float *x, const float *w, const float *m, float *y)
{
    float t[PF_LANES];
    (void)w;
    for (int j = 0; j < PF_LANES; j++)
        t[j] = x[j] - *m;
    memcpy(y, t, sizeof t);
}

static void op_centre(const float *x, int n, float *y)
{
    float mean = sum_of(x, n) / (float)n;
    for_blocks(block_less, x, x, n, 0.0f, &mean, y);
}

/* The largest value; NaN is passed over. */
static inline float max_of(const float *restrict x, int n)
{
    float s[PF_LANES];
    for (int j = 0; j < PF_LANES; j++)
        s[j] = -__builtin_inff();
    int i = 0;
    for (; i + PF_LANES <= n; i += PF_LANES)
        for (int j = 0; j < PF_LANES; j++)
            s[j] = x[i + j] > s[j] ? x[i + j] : s[j];
    for (; i < n; i++)
        s[0] = x[i] > s[0] ? x[i] : s[0];
    for (int h = PF_LANES / 2; h > 0; h /= 2)
        for (int j = 0; j < h; j++)
            s[j] = s[j + h] > s[j] ? s[j + h] : s[j];
    return s[0];
}

static inline void exp_block(const float *x, float max, float *y, struct sums *s)
{
    float t[PF_LANES];
    for (int j = 0; j < PF_LANES; j++)
        t[j] = pf_expf(x[j] - max);
    for (int v = 0; v < PARTS; v++)
        s->v[v] += vec_load(t + v * VEC);
    memcpy(y, t, sizeof t);
}

/* y = exp(x - max); returns the sum. y may be x. The padding of the last block adds 0 to the sum. */
static inline float exp_sum(const float *x, int n, float max, float *y)
{
    struct sums s = {0};
    int i = 0;
    for (; i + PF_LANES <= n; i += PF_LANES)
        exp_block(x + i, max, y + i, &s);
    if (i < n) {
        float t[PF_LANES];
        for (int j = 0; j < PF_LANES; j++)
            t[j] = -__builtin_inff();
        memcpy(t, x + i, (size_t)(n - i) * sizeof *t);
        exp_block(t, max, t, &s);
        memcpy(y + i, t, (size_t)(n - i) * sizeof *t);
    }
    return sums_fold(&s);
}

static void op_softmax(const float *x, int n, float *p)
{
    float sum = exp_sum(x, n, max_of(x, n), p);
    for (int i = 0; i < n; i++)
        p[i] = p[i] / sum;
}

static inline void block_weigh(const float *x, const float *none, const float *how, float *w)
{
    float t[PF_LANES], top = how[0], temp = how[1];
    (void)none;
    for (int j = 0; j < PF_LANES; j++)
        t[j] = pf_expf((x[j] - top) / temp);
    memcpy(w, t, sizeof t);
}

static void op_weigh(const float *x, float top, float temp, int n, float *w)
{
    const float how[] = { top, temp };
    for_blocks(block_weigh, x, x, n, 0.0f, how, w);
}

/* ---- Elementwise ---------------------------------------------------------------------------------------------- */

static inline void block_swiglu(const float *g, const float *u, const float *none, float *a)
{
    float t[PF_LANES];
    (void)none;
    for (int j = 0; j < PF_LANES; j++)
        t[j] = g[j] * pf_sigmoidf(g[j]) * u[j];
    memcpy(a, t, sizeof t);
}

static void op_swiglu(const float *g, const float *u, int n, float *a)
{
    for_blocks(block_swiglu, g, u, n, 0.0f, NULL, a);
}

static inline void block_swiglu_clamped(const float *g, const float *u, const float *limit, float *a)
{
    float t[PF_LANES], top = *limit;
    for (int j = 0; j < PF_LANES; j++) {
        float z = g[j] > top ? top : g[j];
        float v = u[j] > top ? top : u[j];
        v = v < -top ? -top : v;
        t[j] = z * pf_sigmoidf(z) * v;
    }
    memcpy(a, t, sizeof t);
}

static void op_swiglu_clamped(const float *g, const float *u, float limit, int n, float *a)
{
    for_blocks(block_swiglu_clamped, g, u, n, 0.0f, &limit, a);
}

static inline void block_swiglu_capped(const float *g, const float *u, const float *limit, float *a)
{
    float t[PF_LANES], top = *limit;
    for (int j = 0; j < PF_LANES; j++) {
        float z = g[j] * pf_sigmoidf(g[j]);
        z = z > top ? top : z;
        float v = u[j] > top ? top : u[j];
        v = v < -top ? -top : v;
        t[j] = z * v;
    }
    memcpy(a, t, sizeof t);
}

static void op_swiglu_capped(const float *g, const float *u, float limit, int n, float *a)
{
    for_blocks(block_swiglu_capped, g, u, n, 0.0f, &limit, a);
}

static inline void block_swiglu_oai(const float *g, const float *u, const float *none, float *a)
{
    float t[PF_LANES];
    (void)none;
    for (int j = 0; j < PF_LANES; j++) {
        float z = g[j] > 7.0f ? 7.0f : g[j];
        float v = u[j] > 7.0f ? 7.0f : u[j];
        v = v < -7.0f ? -7.0f : v;
        t[j] = z * pf_sigmoidf(1.702f * z) * (v + 1.0f);
    }
    memcpy(a, t, sizeof t);
}

static void op_swiglu_oai(const float *g, const float *u, int n, float *a)
{
    for_blocks(block_swiglu_oai, g, u, n, 0.0f, NULL, a);
}

static inline void block_sigmoid_mul(const float *g, const float *u, const float *none, float *a)
{
    float t[PF_LANES];
    (void)none;
    for (int j = 0; j < PF_LANES; j++)
        t[j] = pf_sigmoidf(g[j]) * u[j];
    memcpy(a, t, sizeof t);
}

static void op_sigmoid_mul(const float *g, const float *u, int n, float *a)
{
    for_blocks(block_sigmoid_mul, g, u, n, 0.0f, NULL, a);
}

static inline void block_relu_mul(const float *g, const float *u, const float *none, float *a)
{
    float t[PF_LANES];
    (void)none;
    for (int j = 0; j < PF_LANES; j++)
        t[j] = (g[j] < 0.0f ? 0.0f : g[j]) * u[j];
    memcpy(a, t, sizeof t);
}

static inline void block_gelu_mul(const float *g, const float *u, const float *none, float *a)
{
    float t[PF_LANES];
    (void)none;
    for (int j = 0; j < PF_LANES; j++)
        t[j] = pf_geluf(g[j]) * u[j];
    memcpy(a, t, sizeof t);
}

static void op_gelu_mul(const float *g, const float *u, int n, float *a)
{
    for_blocks(block_gelu_mul, g, u, n, 0.0f, NULL, a);
}

static void op_relu_mul(const float *g, const float *u, int n, float *a)
{
    for_blocks(block_relu_mul, g, u, n, 0.0f, NULL, a);
}

static void op_mul(const float *g, const float *u, int n, float *a)
{
    for (int i = 0; i < n; i++)
        a[i] = g[i] * u[i];
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

static void op_to_q8_0(const float *restrict x, int n, struct pf_block_q8_0 *restrict y)
{
    enum { HALF_NAN = 0x7e00 };
    for (int b = 0; b < n / PF_LANES; b++) {
        float r[PF_LANES], amax = pf_bits_float(amax_bits(x + b * PF_LANES));
        int alive = amax >= 0x1p-100f, finite = amax - amax == 0;
        y[b].d = finite ? float_half(alive ? amax / 127.0f : 0.0f) : HALF_NAN;
        quantise_block(x + b * PF_LANES, alive ? 127.0f / amax : 0.0f, y[b].qs, r);
        if (!finite)
            memset(y[b].qs, 0, sizeof y[b].qs);
    }
}

#endif
