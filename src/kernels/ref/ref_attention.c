/* Attention in whole numbers: the definition, one query and one element at a time. docs/numerics.md has it in words,
 * base/pf_i16.h the layout of keys and values, kernels.h the contracts. */
#include "base/pf_i16.h"
#include "kernels/ref/ref_block.h"

enum {
    SUMS = 8,                    /* sums of weights of a block, position p in sum p mod SUMS */
    VECTOR = 16                  /* elements whose values are neighbouring words */
};

/* ---- Rows ------------------------------------------------------------------------------------------------------- */

static void rotate(float *x, int n)
{
    int piece = pf_i16_piece(n);
    float norm = pf_i16_norm(piece);
    for (int h = 1; h < piece; h *= 2)
        for (int i = 0; i < n; i++)
            if (!(i & h)) {
                float a = x[i], b = x[i + h];
                x[i] = a + b;
                x[i + h] = a - b;
            }
    for (int i = 0; i < n; i++)
        x[i] *= norm;
}

/* The bits of the largest |x|: those of what is not a number are above all others. */
static uint32_t largest(const float *x, int n)
{
    uint32_t most = 0;
    for (int i = 0; i < n; i++) {
        uint32_t bits = pf_float_bits(x[i]) & 0x7fffffff;
        most = bits > most ? bits : most;
    }
    return most;
}

float pf_ref_to_i16(float *x, int n, bool rotated, int8_t *planes)
{
    if (rotated)
        rotate(x, n);
    uint32_t most = largest(x, n);
    memset(planes, 0, 2 * (size_t)n);
    if (most > pf_float_bits(PF_I16_MOST))
        return 0;
    float amax = pf_bits_float(most), a = amax > PF_I16_LEAST ? amax : PF_I16_LEAST;
    float inv = (float)PF_I16_TOP / a;
    for (int i = 0; i < n; i++) {
        int number = pf_i16_number(x[i], inv);
        planes[i] = (int8_t)pf_i16_upper(number);
        planes[n + i] = (int8_t)pf_i16_lower(number);
    }
    return a / (float)PF_I16_TOP;
}

/* ---- A block ---------------------------------------------------------------------------------------------------- */

/* A query's running sums over the blocks of a chunk. */
struct running {
    float m, z[SUMS], *acc;
};

/* Weights of a block; of what the query does not see they are 0, and keys and scales there may be anything. */
struct weights {
    unsigned w[PF_I16_BLOCK];
    float    m, z[SUMS];
};

static int score(const int8_t *q, const int8_t *k, int hd, int p)
{
    int upper = 0, middle = 0;
    for (int word = 0; word < hd; word += 4) {
        const int8_t *at = k + pf_i16_key_at(hd, p, word);
        for (int i = 0; i < 4; i++) {
            int qh = q[word + i], ql = q[hd + word + i], kh = at[i], kl = at[PF_I16_PLANE + i];
            upper += qh * kh;
            middle += qh * kl + ql * kh;
        }
    }
    return 256 * upper + middle;
}

static void weigh(struct weights *s, const struct pf_attn_i16_args *a, int i, const int8_t *k, const int8_t *v, int lo,
                  int hi)
{
    const float *sk = (const float *)(const void *)(k + pf_i16_sk(a->hd_k));
    const float *lsv = (const float *)(const void *)(k + pf_i16_lsv(a->hd_k));
    const float *rsv = (const float *)(const void *)(v + pf_i16_rsv(a->hd_v));
    float y[PF_I16_BLOCK];
    *s = (struct weights){ .m = -INFINITY };
    for (int p = lo; p < hi; p++) {
        float c = (float)score(a->q + (size_t)i * 2 * (size_t)a->hd_k, k, a->hd_k, p);
        y[p] = fmaf(c * sk[p], a->cq[i], lsv[p]);
        s->m = y[p] > s->m ? y[p] : s->m;
    }
    for (int p = lo; p < hi; p++) {
        float e = pf_exp2_neg(y[p] - s->m);
        s->z[p % SUMS] = fmaf(e, rsv[p], s->z[p % SUMS]);
        s->w[p] = pf_i16_weight(e);
    }
}

/* Of the elements [first, first + VECTOR). */
static void weighted(const struct weights *s, const int8_t *v, int hd, int first, int *sums)
{
    int upper[VECTOR] = { 0 }, middle[VECTOR] = { 0 };
    for (int p = 0; p < PF_I16_BLOCK; p++) {
        const int8_t *at = v + pf_i16_value_at(hd, p, first);
        int wh = (int)(s->w[p] >> 8), wl = (int)(s->w[p] & 255);
        for (int i = 0; i < VECTOR; i++) {
            int vh = at[4 * i], vl = at[4 * i + PF_I16_PLANE];
            upper[i] += wh * vh;
            middle[i] += wh * vl + wl * vh;
        }
    }
    for (int i = 0; i < VECTOR; i++)
        sums[i] = 256 * upper[i] + middle[i];
}

static void enter(struct running *r, const struct weights *s, const int8_t *v, int hd)
{
    float m = r->m > s->m ? r->m : s->m, old = pf_exp2_neg(r->m - m), fresh = pf_exp2_neg(s->m - m);
    for (int j = 0; j < SUMS; j++)
        r->z[j] = fmaf(r->z[j], old, s->z[j] * fresh);
    for (int e = 0; e < hd; e += VECTOR) {
        int sums[VECTOR];
        weighted(s, v, hd, e, sums);
        for (int i = 0; i < VECTOR; i++)
            r->acc[e + i] = fmaf((float)sums[i], PF_I16_GAIN * fresh, r->acc[e + i] * old);
    }
    r->m = m;
}

/* ---- A chunk, and the whole ------------------------------------------------------------------------------------- */

static void chunk(const struct pf_attn_i16_args *a, int i, float *part)
{
    struct running r = { .m = -INFINITY, .acc = part };
    memset(part, 0, (size_t)a->hd_v * sizeof *part);
    for (int at = 0; at < PF_I16_CHUNK; at += PF_I16_BLOCK) {
        int lo = a->lo[i] > at ? a->lo[i] - at : 0, end = a->hi[i] - at;
        int hi = end < PF_I16_BLOCK ? end : PF_I16_BLOCK;
        const int8_t *k = (const int8_t *)a->k + pf_i16_key_block(a->hd_k, at);
        const int8_t *v = (const int8_t *)a->v + pf_i16_value_block(a->hd_v, at);
        struct weights s;
        if (lo >= hi)
            continue;
        weigh(&s, a, i, k, v, lo, hi);
        enter(&r, &s, v, a->hd_v);
    }
    for (int h = SUMS / 2; h > 0; h /= 2)
        for (int j = 0; j < h; j++)
            r.z[j] += r.z[j + h];
    part[a->hd_v] = r.m;
    part[a->hd_v + 1] = r.z[0];
}

void pf_ref_attn_i16(const struct pf_attn_i16_args *a)
{
    for (int i = 0; i < a->n_q; i++)
        chunk(a, i, a->part + (size_t)i * a->part_stride);
}

void pf_ref_attn_fold(float *total, const float *part, int hd)
{
    float m = total[hd] > part[hd] ? total[hd] : part[hd];
    float old = pf_exp2_neg(total[hd] - m), fresh = pf_exp2_neg(part[hd] - m);
    for (int e = 0; e < hd; e++)
        total[e] = fmaf(part[e], fresh, total[e] * old);
    total[hd + 1] = fmaf(total[hd + 1], old, part[hd + 1] * fresh);
    total[hd] = m;
}
