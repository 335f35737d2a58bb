/* Products of F32, F16 and BF16 weights with float activations, written once for any number of lanes.
 *
 * Include after a lanes header. Element i of a row belongs to accumulator i mod 32, so an output is 32 / LANES vectors
 * of running sums, folded at the end. A block of a few weight rows by a few activation rows shares its loads; in a
 * block that sticks out, the last row stands in for those missing and its extra results are dropped. */
#ifndef PF_MUL_FLOAT_H
#define PF_MUL_FLOAT_H

#include "kernels/kernels.h"

enum { ACCS = 32, ACC_VECS = ACCS / LANES };

/* LANES elements at p, which may have any alignment. */
typedef vf load_fn(const uint8_t *p);

struct float_type {
    load_fn *load;
    int      bytes;
};

LANE_FN vf load_f32(const uint8_t *p)
{
    return vf_from_bits(vi_load(p));
}

LANE_FN vf load_f16(const uint8_t *p)
{
    return vf_from_f16((const void *)p);
}

LANE_FN vf load_bf16(const uint8_t *p)
{
    return vf_from_bits(vi_shl(vi_from_u16((const void *)p), 16));
}

/* The last n_left < 32 elements: accumulators that get no element stay as they are, sign of zero included. */
LANE_FN void tail_fma(vf *acc, const struct float_type *t, const uint8_t *w, const float *x, int n_left)
{
    uint8_t wt[ACCS * 4] = { 0 };
    float xt[ACCS] = { 0 };
    memcpy(wt, w, (size_t)(n_left * t->bytes));
    memcpy(xt, x, (size_t)n_left * 4);
    for (int v = 0; v < ACC_VECS; v++)
        acc[v] = vf_fma_n(t->load(wt + v * LANES * t->bytes), vf_load(xt + v * LANES), acc[v], n_left - v * LANES);
}

/* 16, then 8, ... 1. */
LANE_FN float accs_fold(vf *acc)
{
    for (int half = ACC_VECS / 2; half; half /= 2)
        for (int v = 0; v < half; v++)
            acc[v] = vf_add(acc[v], acc[v + half]);
    return vf_fold(acc[0]);
}

/* With one activation row the weights come from memory: the rows after these are fetched meanwhile, in the order of
 * addresses and with a lead. Past the last row that fetches what is not needed, which is allowed anywhere. */
enum { FLOAT_AHEAD_BYTES = 4096 };

LANE_FN void fetch_lines(uintptr_t p, int n_bytes)
{
    for (int i = 0; i < n_bytes; i += 64)
        _mm_prefetch((const char *)(p + (uintptr_t)i), _MM_HINT_T1);
}

/* out[r][a] = dot(w[r], x[a]) */
LANE_FN void float_block(const struct float_type *t, const uint8_t *const *w, int n_r, const float *const *x, int n_a,
                         int n, float (*out)[LANES_FLOAT_X])
{
    vf acc[4][LANES_FLOAT_X][ACC_VECS];
    for (int r = 0; r < n_r; r++)
        for (int a = 0; a < n_a; a++)
            for (int v = 0; v < ACC_VECS; v++)
                acc[r][a][v] = vf_zero();
    int i = 0;
    for (; i + ACCS <= n; i += ACCS) {
        if (n_a == 1)
            fetch_lines((uintptr_t)w[0] + (size_t)n_r * (size_t)(n + i) * (size_t)t->bytes + FLOAT_AHEAD_BYTES,
                        n_r * ACCS * t->bytes);
        for (int v = 0; v < ACC_VECS; v++) {
            vf wv[4];
            for (int r = 0; r < n_r; r++)
                wv[r] = t->load(w[r] + (size_t)(i + v * LANES) * (size_t)t->bytes);
            for (int a = 0; a < n_a; a++) {
                vf xv = vf_load(x[a] + i + v * LANES);
                for (int r = 0; r < n_r; r++)
                    acc[r][a][v] = vf_fma(wv[r], xv, acc[r][a][v]);
            }
        }
    }
    for (int r = 0; r < n_r; r++)
        for (int a = 0; a < n_a; a++) {
            if (i < n)
                tail_fma(acc[r][a], t, w[r] + (size_t)i * (size_t)t->bytes, x[a] + i, n - i);
            out[r][a] = accs_fold(acc[r][a]);
        }
}

/* n_r and n_a are constants: the shape of the block. */
LANE_FN void float_rows_mul(const struct float_type *t, int n_r, int n_a, const uint8_t *w, size_t row_bytes,
                            int n_rows, int n, const struct pf_xrow *x, int n_x, float *y, size_t y_stride)
{
    for (int r0 = 0; r0 < n_rows; r0 += n_r)
        for (int j = 0; j < n_x; j += n_a) {
            const uint8_t *wp[4];
            const float *xp[LANES_FLOAT_X];
            float out[4][LANES_FLOAT_X];
            for (int r = 0; r < n_r; r++)
                wp[r] = w + (size_t)(r0 + r < n_rows ? r0 + r : n_rows - 1) * row_bytes;
            for (int a = 0; a < n_a; a++)
                xp[a] = x[j + a < n_x ? j + a : n_x - 1].f;
            float_block(t, wp, n_r, xp, n_a, n, out);
            for (int a = 0; a < n_a && j + a < n_x; a++)
                for (int r = 0; r < n_r && r0 + r < n_rows; r++)
                    y[(size_t)(j + a) * y_stride + (size_t)(r0 + r)] = out[r][a];
        }
}

#define MUL_FLOAT(name, type_bytes)                                                                                  \
    static const struct float_type type_##name = { load_##name, type_bytes };                                       \
    static void vec_##name(const void *w, size_t row_bytes, int n_rows, int n, const struct pf_xrow *x, int n_x,    \
                           float *y, size_t y_stride, const void *next)                                             \
    {                                                                                                               \
        (void)next;                                                                                                 \
        float_rows_mul(&type_##name, LANES_VEC_ROWS, 1, w, row_bytes, n_rows, n, x, n_x, y, y_stride);              \
    }                                                                                                               \
    static void tile_##name(const void *w, size_t row_bytes, int n_rows, int n, const struct pf_xrow *x, int n_x,   \
                            float *y, size_t y_stride, const void *next)                                            \
    {                                                                                                               \
        (void)next;                                                                                                 \
        float_rows_mul(&type_##name, LANES_FLOAT_ROWS, LANES_FLOAT_X, w, row_bytes, n_rows, n, x, n_x, y, y_stride);\
    }

MUL_FLOAT(f32, 4)
MUL_FLOAT(f16, 2)
MUL_FLOAT(bf16, 2)

#define FLOAT_ENTRIES(kind) [PF_F32] = kind##_f32, [PF_F16] = kind##_f16, [PF_BF16] = kind##_bf16

#endif
