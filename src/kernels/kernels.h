/* The CPU kernel table: one entry per operation and, for products, per weight type.
 *
 * Who uses it: kernels/cpu/ only, which slices work over threads. Kernels know nothing of models, tiers or files: they
 * see pointers. They are pure functions of their arguments, never allocate, lock or fail, and may run on any thread.
 *
 * Every instruction set fills `const struct pf_kernels` tables; a NULL entry means "inherit from below".
 * pf_kernels_resolve copies scalar, AVX2, AVX2 with VNNI, AVX-512, AVX-512 with VNNI, that with VBMI, and AMX in that
 * order into the model's own table, so there is no global state and a test can ask for any level. The need of a table
 * is 0 (scalar), AVX2, AVX2 | AVXVNNI, AVX2 | AVX512, these two with VNNI, or these three with VBMI or AMX. What AVX2
 * with VNNI fills, AVX-512 fills too: a CPU that has both uses the wider vectors.
 *
 * THE CONTRACT: every level gives the same bits. The order of every float operation is fixed (docs/numerics.md); the
 * scalar C in ref/ and generic/ is its definition. Nothing is compiled with contraction or fast-math; a fused
 * multiply-add is written fmaf, or is the vector instruction for it.
 *
 * Alignment: weights any (a row may start at any byte); floats 4; int8 activations and their scales 64, padded so that
 * whole 64-byte loads past n are allowed. Outputs never alias inputs unless said. */
#ifndef PF_KERNELS_H
#define PF_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/pf_qtype.h"
#include "kernels/qblocks.h"

/* ---- Activations ------------------------------------------------------------------------------------------- */

/* One row of activations as the right-hand side of products. Float weights read f; quantised weights read q, d, s:
 *
 *     f [n]          float32
 *     q [n]          int8, blocks of 32: q = rint(x * (127 / amax)), never -128
 *     d [n / 32]     float32: amax / 127, or 0 for a block whose amax is below 2^-100
 *     s [n / 16]     int16: sum of q over each 16
 */
struct pf_xrow {
    const float   *f;
    const int8_t  *q;
    const float   *d;
    const int16_t *s;
};

/* ---- Products ---------------------------------------------------------------------------------------------- */

/* y[j * y_stride + r] = dot(weight row r, x[j]) for r < n_rows, j < n_x. Weight row r starts at w + r * row_bytes and
 * has n elements (n a multiple of the type's block length; any n > 0 for float types). y_stride counts floats. next:
 * what the thread reads after these rows, to be fetched from memory on the way through the last of them; NULL: nothing
 * that is known. */
typedef void pf_mul_fn(const void *w, size_t row_bytes, int n_rows, int n, const struct pf_xrow *x, int n_x, float *y,
                       size_t y_stride, const void *next);

/* out[i] = value of element i, n elements of one row, in float32 exactly as the type defines it
 * (no fused operations). */
typedef void pf_dequant_fn(const void *row, int n, float *out);

/* ---- Everything else, always float32 ------------------------------------------------------------------------- */

/* q, d, s of one row (see pf_xrow), n a multiple of 32. Returns 0, or -1 if some |x| is NaN or infinite (then the
 * outputs are unspecified). */
typedef int pf_quantise_fn(const float *x, int n, int8_t *q, float *d, int16_t *s);

/* y = x / sqrt(mean(x^2) + eps) * w; w NULL: without weights. The sum of squares uses 32 accumulators,
 * element i into i mod 32 by fmaf, folded 16, 8, 4, 2, 1; then mean = sum / n, r = 1 / sqrtf(mean + eps), y =
 * (x * r) * w. y may be x. */
typedef void pf_rms_norm_fn(const float *x, const float *w, float eps, int n, float *y);

/* y = x - mean, mean = sum / n, the sum in 32 accumulators as in pf_rms_norm_fn (plain additions). y may be x. */
typedef void pf_centre_fn(const float *x, int n, float *y);

/* a[i] = silu(g[i]) * u[i]; silu(z) = z * sigmoid(z). a may be g or u. */
typedef void pf_swiglu_fn(const float *g, const float *u, int n, float *a);
/* pf_swiglu_fn with min(g[i], limit) for g[i] and u[i] clamped to +-limit; capped: with min(silu(g[i]), limit) for
 * silu(g[i]), and u[i] as there. */
typedef void pf_swiglu_clamped_fn(const float *g, const float *u, float limit, int n, float *a);

/* y[i] = y[i] + x[i] */
typedef void pf_add_fn(float *y, const float *x, int n);
/* y[i] = y[i] * a */
typedef void pf_scale_fn(float *y, float a, int n);
/* y[i] = fmaf(a, x[i], y[i]) */
typedef void pf_axpy_fn(float *y, float a, const float *x, int n);

/* Rotates pairs of x in place: (a, b) -> (a*c - b*s, a*s + b*c), each as fmaf(a, c, -(b*s)) and fmaf(a, s, b*c).
 * cs holds c[0..n_pairs) then s[0..n_pairs). norm pairs x[2i], x[2i+1]; neox pairs x[i], x[i + n_pairs]. */
typedef void pf_rope_fn(float *x, const float *cs, int n_pairs);

/* y = x * r, r = a / max(sqrtf(sum of x^2), eps), the sum as in pf_rms_norm_fn. y may be x. */
typedef void pf_l2_norm_fn(const float *x, float eps, float a, int n, float *y);

/* y[i] = silu(z), or z, with z = x[0][i] * w[i], then fmaf(x[t][i], w[t * w_stride + i], z) for t = 1 .. taps - 1, then
 * z + bias[i] unless bias is NULL. */
typedef void pf_conv_fn(const float *const *x, const float *w, size_t w_stride, int taps, int n, const float *bias,
                        bool silu, float *y);

/* One step of the gated delta rule: matrices [d][d], row i belongs to q[i] and k[i], column j to
 * v[j] and out[j]. Per column
 *     seen = 0, then fmaf(before[i][j], k[i], seen);   change = fmaf(-decay, seen, v[j]) * beta
 *     after[i][j] = fmaf(k[i], change, before[i][j] * decay);   out[j] = 0, then fmaf(after[i][j], q[i], out[j])
 * with i rising. after may be before. */
struct pf_delta_args {
    const float *before, *q, *k, *v;
    float        decay, beta;
    int          d;
    float       *after, *out;
};
typedef void pf_delta_fn(const struct pf_delta_args *a);

/* One step of the delta rule in which row i of the matrix has a decay of its own; decayed_k[i] = k[i] * decay[i]. Per
 * column
 *     seen = 0, then fmaf(before[i][j], decayed_k[i], seen);   change = (v[j] - seen) * beta
 *     after[i][j] = fmaf(k[i], change, before[i][j] * decay[i]);   out[j] = 0, then fmaf(after[i][j], q[i], out[j])
 * with i rising. after may be before. */
struct pf_keyed_delta_args {
    const float *before, *q, *k, *decayed_k, *v, *decay;
    float        beta;
    int          d;
    float       *after, *out;
};
typedef void pf_keyed_delta_fn(const struct pf_keyed_delta_args *a);

/* One step of a head of Mamba2: matrices [d][p], row i belongs to b[i] and c[i], column j to x[j] and out[j]; what is
 * computed is in struct pf_ssm_op (backend.h), up to y. after may be before. */
struct pf_ssm_args {
    const float *before, *b, *c, *x;
    float        decay, t, skip;
    int          d, p;
    float       *after, *out;
};
typedef void pf_ssm_fn(const struct pf_ssm_args *a);

/* One position of a running softmax, per channel: m, z, a as struct pf_compress_op in backend.h has
 * them, t = gate + ape. */
typedef void pf_compress_fn(float *m, float *z, float *a, const float *u, const float *gate, const float *ape, int n);

/* p[i] = exp(x[i] - max x) / sum, the sum in 32 accumulators as in pf_rms_norm_fn (plain additions). p may be x. */
typedef void pf_softmax_fn(const float *x, int n, float *p);

/* w[i] = exp((x[i] - top) / temp), temp > 0. */
typedef void pf_weigh_fn(const float *x, float top, float temp, int n, float *w);

/* float32 to F16 (round to nearest even) and back. */
typedef void pf_to_f16_fn(const float *x, int n, uint16_t *y);

/* float32 to blocks of Q8_0, n a multiple of 32: q as pf_quantise_fn makes it, d rounded to F16. A block in which
 * something is not finite becomes one of NaNs: d NaN, q 0. */
typedef void pf_to_q8_0_fn(const float *x, int n, struct pf_block_q8_0 *y);

/* ---- Attention ----------------------------------------------------------------------------------------------- */

enum { PF_KV_CHUNK = 256 };      /* positions per chunk of keys and values: the unit of folding */

/* Keys and values are F32, F16 or blocks of Q8_0 that do not reach over rows (hd and v_stride are multiples of 32
 * then). Each is a float32 exactly: a product of a half and a code has 18 bits. So all types share one arithmetic.
 *
 * One chunk of keys and values of one KV head against n_q queries that share this KV head (heads of a group, and rows
 * of a batch). Query i sees positions lo[i] <= p < hi[i] of the chunk, 0 <= lo <= hi <= PF_KV_CHUNK; lo == hi: none.
 *
 *     q     [n_q][hd_k] at stride q_stride floats           k  [PF_KV_CHUNK][hd_k], packed
 *     v     [PF_KV_CHUNK][hd_v] at stride v_stride elements (0: packed); it may lie within k
 *     score [n_q][PF_KV_CHUNK] scratch
 *     m, z, acc: the running maximum, sum of weights and weighted sum of values per query, acc [n_q][hd_v] at stride
 *     acc_stride; for a query without history m = -inf, z = 0, acc = 0.
 *
 * Per query, whatever n_q:
 *     s_p  = scale * dot(q, k_p)       dot: element i into accumulator i mod 32 by fmaf, folded 16, 8, 4, 2, 1
 *     mc   = max over visible p;  e_p = exp(s_p - mc);  zc = sum of e_p, position p into accumulator p mod 32, folded
 *     ac   = 0, then ac[d] = fmaf(e_p, v_p[d], ac[d]) for visible p in rising order
 *     M    = max(m, mc); a = exp(m - M); b = exp(mc - M)
 *     z    = fmaf(z, a, zc * b); acc[d] = fmaf(acc[d], a, ac[d] * b); m = M */
struct pf_attn_args {
    const float *q;
    size_t       q_stride;
    const void  *k, *v;
    size_t       v_stride;
    int          n_q, hd_k, hd_v;
    const int   *lo, *hi;
    float        scale;
    float       *score;
    float       *m, *z, *acc;
    size_t       acc_stride;
    float       *ac;             /* scratch [n_q][hd_v] */
};
typedef void pf_attn_fn(const struct pf_attn_args *a);

/* ---- Attention in whole numbers (docs/numerics.md; base/pf_i16.h) -------------------------------------------- */

/* Rotates each piece of x, a power of two from 32 on which n is a multiple of. To rotate again gives x back, but for
 * roundings. */
typedef void pf_rotate_fn(float *x, int n, int piece);

/* A row of q, k or v, or one part of a row of a latent, n = a head that pf_i16_takes, as planes [2][n] of its upper and
 * lower bytes; returns its scale, or 0 if it is out of range: then the planes are zeros. */
typedef float pf_to_i16_fn(const float *x, int n, int8_t *planes);

enum { PF_ATTN_I16_QUERIES = 64 };
#define PF_ATTN_I16_SCRATCH ((size_t)304 << 10)

/* One chunk of keys and values of one KV head against n_q <= PF_ATTN_I16_QUERIES queries that share it, rotated. Query
 * i sees positions lo[i] <= p < hi[i] of the chunk, 0 <= lo <= hi <= PF_KV_CHUNK.
 *
 *     q     [n_q][2][hd_k] planes       cq   [n_q] the factor of query i's scores
 *     k, v  the chunk, in 4-byte alignment; of positions that no query sees, the bytes may be anything
 *     next_k, next_v  the chunk that follows, to fetch from memory meanwhile; NULL: none
 *     part  [n_q] partials, part_stride floats apart: acc[hd_v], m, z; for a query that sees nothing 0s, -inf, 0
 *
 * A query's partial does not depend on which other queries are there. */
struct pf_attn_i16_args {
    const int8_t *q;
    const float  *cq;
    const void   *k, *v, *next_k, *next_v;
    int           n_q, hd_k, hd_v;
    const int    *lo, *hi;
    float        *part;
    size_t        part_stride;
    void         *scratch;       /* [PF_ATTN_I16_SCRATCH] in 64-byte alignment */
};
typedef void pf_attn_i16_fn(const struct pf_attn_i16_args *a);

#define PF_ATTN_LATENT_SCRATCH ((size_t)440 << 10)

/* One chunk of a cached latent (base/pf_latent.h) against n_q <= PF_ATTN_I16_QUERIES queries, rotated as its rows are.
 * Query i sees positions lo[i] <= p < hi[i] of the chunk, 0 <= lo <= hi <= PF_KV_CHUNK.
 *
 *     q        [n_q] planes of the part that meets the latent, [2][hd_v], then of the other one, [2][hd_k - hd_v]
 *     cq, cqp  [n_q] the factors of query i's scores with the two parts; cqp may be anything where hd_k = hd_v
 *     chunk    in 4-byte alignment; of positions that no query sees, the bytes may be anything
 *     next     the chunk that follows, to fetch from memory meanwhile; NULL: none
 *     part     as for pf_attn_i16_fn */
struct pf_attn_latent_args {
    const int8_t *q;
    const float  *cq, *cqp;
    const void   *chunk, *next;
    int           n_q, hd_k, hd_v;
    const int    *lo, *hi;
    float        *part;
    size_t        part_stride;
    void         *scratch;       /* [PF_ATTN_LATENT_SCRATCH] in 64-byte alignment */
};
typedef void pf_attn_latent_fn(const struct pf_attn_latent_args *a);

/* A chunk's partial of a query that sees something enters the whole, which begins as 0s, -inf, 0. */
typedef void pf_attn_fold_fn(float *total, const float *part, int hd_v);

/* ---- The table ----------------------------------------------------------------------------------------------- */

/* name, type of the entry */
#define PF_KERNEL_LIST(X)            \
    X(quantise,   pf_quantise_fn)    \
    X(rms_norm,   pf_rms_norm_fn)    \
    X(centre,     pf_centre_fn)      \
    X(swiglu,     pf_swiglu_fn)      \
    X(swiglu_oai, pf_swiglu_fn)      \
    X(swiglu_clamped, pf_swiglu_clamped_fn) \
    X(swiglu_capped, pf_swiglu_clamped_fn) \
    X(sigmoid_mul, pf_swiglu_fn)     \
    X(relu_mul,   pf_swiglu_fn)      \
    X(gelu_mul,   pf_swiglu_fn)      \
    X(mul,        pf_swiglu_fn)      \
    X(add,        pf_add_fn)         \
    X(scale,      pf_scale_fn)       \
    X(axpy,       pf_axpy_fn)        \
    X(rope_norm,  pf_rope_fn)        \
    X(rope_neox,  pf_rope_fn)        \
    X(softmax,    pf_softmax_fn)     \
    X(weigh,      pf_weigh_fn)       \
    X(to_f16,     pf_to_f16_fn)      \
    X(to_q8_0,    pf_to_q8_0_fn)     \
    X(l2_norm,    pf_l2_norm_fn)     \
    X(conv,       pf_conv_fn)        \
    X(delta_step, pf_delta_fn)       \
    X(keyed_delta_step, pf_keyed_delta_fn) \
    X(ssm_step,   pf_ssm_fn)         \
    X(compress,   pf_compress_fn)    \
    X(attn_f16,   pf_attn_fn)        \
    X(attn_f32,   pf_attn_fn)        \
    X(attn_q8_0,  pf_attn_fn)        \
    X(rotate,     pf_rotate_fn)      \
    X(to_i16,     pf_to_i16_fn)      \
    X(attn_i16,   pf_attn_i16_fn)    \
    X(attn_latent, pf_attn_latent_fn) \
    X(attn_fold,  pf_attn_fold_fn)
/* sigmoid_mul: a = sigmoid(g) * u;  relu_mul: a = max(g, 0) * u;  gelu_mul: PF_ACT_GELU;  mul: a = g * u
 * swiglu_oai: g' = min(g, 7), u' = clamp(u, -7, 7), a = (g' * sigmoid(1.702 * g')) * (u' + 1) */

struct pf_kernels {
    const char *name;                        /* "avx512-vnni" */
    uint32_t    need;                        /* PF_ISA_ bits without which this level cannot run */

    pf_dequant_fn *dequant[PF_N_QTYPES];
    pf_mul_fn     *vec[PF_N_QTYPES];         /* n_x == 1: one token */
    pf_mul_fn     *tile[PF_N_QTYPES];        /* any n_x: a prompt */

#define X(entry, type) type *entry;
    PF_KERNEL_LIST(X)
#undef X
};

/* Fills out with the best kernels that isa_mask and this CPU allow. Never fails: scalar is always there. */
void pf_kernels_resolve(struct pf_kernels *out, uint32_t isa_mask);

/* The i-th partial table, lowest first; NULL past the last. Its entries may be NULL (inherited).
 * For tests and benches. */
const struct pf_kernels *pf_kernels_level(int i);

#endif
