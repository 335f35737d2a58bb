/* Operations that carry a state from position to position: the gated delta rule and Mamba2, one head and one step, the
 * convolution in front of them, and the running softmax of compressed attention. Bodies, static, one copy per level.
 * kernels.h holds the contract of each.
 *
 * The matrix is gone over in strips of columns: 64 columns of a 128 x 128 matrix stay in the first cache between
 * the pass that reads them and the pass that writes them. */
#ifndef PF_GENERIC_DELTA_H
#define PF_GENERIC_DELTA_H

#include "kernels/generic/generic_ops.h"
#include "kernels/kernels.h"

enum { STRIP = 4 };                     /* vectors in a strip of columns */

/* Columns [j, j + n_vec * VEC). */
static inline __attribute__((always_inline)) void delta_strip(const struct pf_delta_args *a, int j, int n_vec)
{
    vec seen[STRIP] = {0}, change[STRIP], out[STRIP] = {0};
    size_t d = (size_t)a->d;
    for (size_t i = 0; i < d; i++)
        for (int v = 0; v < n_vec; v++)
            seen[v] = vec_fma(vec_load(a->before + i * d + j + v * VEC), vec_all(a->k[i]), seen[v]);
    for (int v = 0; v < n_vec; v++)
        change[v] = vec_fma(vec_all(-a->decay), seen[v], vec_load(a->v + j + v * VEC)) * a->beta;
    for (size_t i = 0; i < d; i++)
        for (int v = 0; v < n_vec; v++) {
            size_t at = i * d + (size_t)(j + v * VEC);
            vec s = vec_fma(vec_all(a->k[i]), change[v], vec_load(a->before + at) * a->decay);
            vec_store(a->after + at, s);
            out[v] = vec_fma(s, vec_all(a->q[i]), out[v]);
        }
    for (int v = 0; v < n_vec; v++)
        vec_store(a->out + j + v * VEC, out[v]);
}

static void delta_column(const struct pf_delta_args *a, int j)
{
    float seen = 0, out = 0;
    size_t d = (size_t)a->d;
    for (size_t i = 0; i < d; i++)
        seen = __builtin_fmaf(a->before[i * d + j], a->k[i], seen);
    float change = __builtin_fmaf(-a->decay, seen, a->v[j]) * a->beta;
    for (size_t i = 0; i < d; i++) {
        float s = __builtin_fmaf(a->k[i], change, a->before[i * d + j] * a->decay);
        a->after[i * d + j] = s;
        out = __builtin_fmaf(s, a->q[i], out);
    }
    a->out[j] = out;
}

static void op_delta_step(const struct pf_delta_args *a)
{
    int j = 0;
    for (; j + STRIP * VEC <= a->d; j += STRIP * VEC)
        delta_strip(a, j, STRIP);
    for (; j + VEC <= a->d; j += VEC)
        delta_strip(a, j, 1);
    for (; j < a->d; j++)
        delta_column(a, j);
}

static inline __attribute__((always_inline)) void keyed_strip(const struct pf_keyed_delta_args *a, int j, int n_vec)
{
    vec seen[STRIP] = {0}, change[STRIP], out[STRIP] = {0};
    size_t d = (size_t)a->d;
    for (size_t i = 0; i < d; i++)
        for (int v = 0; v < n_vec; v++)
            seen[v] = vec_fma(vec_load(a->before + i * d + j + v * VEC), vec_all(a->decayed_k[i]), seen[v]);
    for (int v = 0; v < n_vec; v++)
        change[v] = (vec_load(a->v + j + v * VEC) - seen[v]) * a->beta;
    for (size_t i = 0; i < d; i++)
        for (int v = 0; v < n_vec; v++) {
            size_t at = i * d + (size_t)(j + v * VEC);
            vec s = vec_fma(vec_all(a->k[i]), change[v], vec_load(a->before + at) * a->decay[i]);
            vec_store(a->after + at, s);
            out[v] = vec_fma(s, vec_all(a->q[i]), out[v]);
        }
    for (int v = 0; v < n_vec; v++)
        vec_store(a->out + j + v * VEC, out[v]);
}

static void keyed_column(const struct pf_keyed_delta_args *a, int j)
{
    float seen = 0, out = 0;
    size_t d = (size_t)a->d;
    for (size_t i = 0; i < d; i++)
        seen = __builtin_fmaf(a->before[i * d + j], a->decayed_k[i], seen);
    float change = (a->v[j] - seen) * a->beta;
    for (size_t i = 0; i < d; i++) {
        float s = __builtin_fmaf(a->k[i], change, a->before[i * d + j] * a->decay[i]);
        a->after[i * d + j] = s;
        out = __builtin_fmaf(s, a->q[i], out);
    }
    a->out[j] = out;
}

static void op_keyed_delta_step(const struct pf_keyed_delta_args *a)
{
    int j = 0;
    for (; j + STRIP * VEC <= a->d; j += STRIP * VEC)
        keyed_strip(a, j, STRIP);
    for (; j + VEC <= a->d; j += VEC)
        keyed_strip(a, j, 1);
    for (; j < a->d; j++)
        keyed_column(a, j);
}

/* Columns [j, j + n_vec * VEC). */
static inline __attribute__((always_inline)) void ssm_strip(const struct pf_ssm_args *a, int j, int n_vec)
{
    vec in[STRIP], out[STRIP] = {0};
    size_t p = (size_t)a->p;
    for (int v = 0; v < n_vec; v++)
        in[v] = vec_load(a->x + j + v * VEC) * a->t;
    for (size_t i = 0; i < (size_t)a->d; i++)
        for (int v = 0; v < n_vec; v++) {
            size_t at = i * p + (size_t)(j + v * VEC);
            vec s = vec_fma(vec_all(a->b[i]), in[v], vec_load(a->before + at) * a->decay);
            vec_store(a->after + at, s);
            out[v] = vec_fma(s, vec_all(a->c[i]), out[v]);
        }
    for (int v = 0; v < n_vec; v++)
        vec_store(a->out + j + v * VEC, vec_fma(vec_all(a->skip), vec_load(a->x + j + v * VEC), out[v]));
}

static void ssm_column(const struct pf_ssm_args *a, int j)
{
    float in = a->t * a->x[j], out = 0;
    size_t p = (size_t)a->p;
    for (size_t i = 0; i < (size_t)a->d; i++) {
        float s = __builtin_fmaf(a->b[i], in, a->before[i * p + j] * a->decay);
        a->after[i * p + j] = s;
        out = __builtin_fmaf(s, a->c[i], out);
    }
    a->out[j] = __builtin_fmaf(a->skip, a->x[j], out);
}

static void op_ssm_step(const struct pf_ssm_args *a)
{
    int j = 0;
    for (; j + STRIP * VEC <= a->p; j += STRIP * VEC)
        ssm_strip(a, j, STRIP);
    for (; j + VEC <= a->p; j += VEC)
        ssm_strip(a, j, 1);
    for (; j < a->p; j++)
        ssm_column(a, j);
}

static void op_conv(const float *const *x, const float *w, size_t w_stride, int taps, int n, const float *bias,
                    bool silu, float *restrict y)
{
    for (int i = 0; i < n; i++)
        y[i] = x[0][i] * w[i];
    for (int t = 1; t < taps; t++) {
        const float *restrict xt = x[t], *restrict wt = w + (size_t)t * w_stride;
        for (int i = 0; i < n; i++)
            y[i] = __builtin_fmaf(xt[i], wt[i], y[i]);
    }
    for (int i = 0; bias && i < n; i++)
        y[i] = y[i] + bias[i];
    for (int i = 0; silu && i < n; i++)
        y[i] = y[i] * pf_sigmoidf(y[i]);
}

static void op_compress(float *restrict m, float *restrict z, float *restrict a, const float *restrict u,
                        const float *restrict gate, const float *restrict ape, int n)
{
    for (int i = 0; i < n; i++) {
        float t = gate[i] + ape[i], top = m[i] > t ? m[i] : t;
        float old = pf_expf(m[i] - top), fresh = pf_expf(t - top);
        z[i] = __builtin_fmaf(z[i], old, fresh);
        a[i] = __builtin_fmaf(a[i], old, fresh * u[i]);
        m[i] = top;
    }
}

static void op_l2_norm(const float *x, float eps, float a, int n, float *y)
{
    float root = __builtin_sqrtf(sum_of_squares(x, n)), r = a / (root > eps ? root : eps);
    for_blocks(block_scale, x, x, n, 0.0f, &r, y);
}

#endif
