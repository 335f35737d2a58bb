/* Attention in whole numbers: the definition, one query and one element at a time. docs/numerics.md has it in words,
 * base/pf_i16.h and base/pf_latent.h the layouts of keys and values, kernels.h the contracts. */
#include "base/pf_latent.h"
#include "kernels/ref/ref_block.h"

enum {
    SUMS = 8,                    /* sums of weights of a block, position p in sum p mod SUMS */
    VECTOR = 16                  /* elements whose values are neighbouring words */
};

/* ---- Rows ------------------------------------------------------------------------------------------------------- */

void pf_ref_rotate(float *x, int n, int piece)
{
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

float pf_ref_to_i16(const float *x, int n, int8_t *planes)
{
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

/* Positions lo <= p < hi of a block. */
struct span {
    int lo, hi;
};

static struct span seen_of(int lo, int hi, int at)
{
    return (struct span){ lo > at ? lo - at : 0, hi - at < PF_I16_BLOCK ? hi - at : PF_I16_BLOCK };
}

/* The weights of the positions that are seen, from their y. */
static void weigh(struct weights *s, const float *y, const float *rsv, struct span seen)
{
    *s = (struct weights){ .m = -INFINITY };
    for (int p = seen.lo; p < seen.hi; p++)
        s->m = y[p] > s->m ? y[p] : s->m;
    for (int p = seen.lo; p < seen.hi; p++) {
        float e = pf_exp2_neg(y[p] - s->m);
        s->z[p % SUMS] = fmaf(e, rsv[p], s->z[p % SUMS]);
        s->w[p] = pf_i16_weight(e);
    }
}

static void begin(struct running *r, float *part, int hd)
{
    *r = (struct running){ .m = -INFINITY, .acc = part };
    memset(part, 0, (size_t)hd * sizeof *part);
}

/* sums: of weights times values, in whole numbers. */
static void enter(struct running *r, const struct weights *s, const int *sums, int hd)
{
    float m = r->m > s->m ? r->m : s->m, old = pf_exp2_neg(r->m - m), fresh = pf_exp2_neg(s->m - m);
    for (int j = 0; j < SUMS; j++)
        r->z[j] = fmaf(r->z[j], old, s->z[j] * fresh);
    for (int e = 0; e < hd; e++)
        r->acc[e] = fmaf((float)sums[e], PF_I16_GAIN * fresh, r->acc[e] * old);
    r->m = m;
}

static void end(struct running *r, int hd)
{
    for (int h = SUMS / 2; h > 0; h /= 2)
        for (int j = 0; j < h; j++)
            r->z[j] += r->z[j + h];
    r->acc[hd] = r->m;
    r->acc[hd + 1] = r->z[0];
}

/* ---- Keys and values apart -------------------------------------------------------------------------------------- */

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

static void scores(const struct pf_attn_i16_args *a, int i, const int8_t *k, struct span seen, float *y)
{
    const float *sk = (const float *)(const void *)(k + pf_i16_sk(a->hd_k));
    const float *lsv = (const float *)(const void *)(k + pf_i16_lsv(a->hd_k));
    for (int p = seen.lo; p < seen.hi; p++) {
        float c = (float)score(a->q + (size_t)i * 2 * (size_t)a->hd_k, k, a->hd_k, p);
        y[p] = fmaf(c * sk[p], a->cq[i], lsv[p]);
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

static void chunk(const struct pf_attn_i16_args *a, int i, float *part)
{
    struct running r;
    begin(&r, part, a->hd_v);
    for (int at = 0; at < PF_I16_CHUNK; at += PF_I16_BLOCK) {
        struct span seen = seen_of(a->lo[i], a->hi[i], at);
        const int8_t *k = (const int8_t *)a->k + pf_i16_key_block(a->hd_k, at);
        const int8_t *v = (const int8_t *)a->v + pf_i16_value_block(a->hd_v, at);
        float y[PF_I16_BLOCK];
        int sums[PF_I16_HEAD_MAX];
        struct weights s;
        if (seen.lo >= seen.hi)
            continue;
        scores(a, i, k, seen, y);
        weigh(&s, y, (const float *)(const void *)(v + pf_i16_rsv(a->hd_v)), seen);
        for (int e = 0; e < a->hd_v; e += VECTOR)
            weighted(&s, v, a->hd_v, e, sums + e);
        enter(&r, &s, sums, a->hd_v);
    }
    end(&r, a->hd_v);
}

void pf_ref_attn_i16(const struct pf_attn_i16_args *a)
{
    for (int i = 0; i < a->n_q; i++)
        chunk(a, i, a->part + (size_t)i * a->part_stride);
}

/* ---- A latent, key and value at once ---------------------------------------------------------------------------- */

/* The sum over the elements [first, first + n) of position p, whose planes of the query are q. */
static int latent_score(const int8_t *q, const int8_t *block, int hd_k, int p, int first, int n)
{
    int upper = 0, middle = 0;
    for (int e = 0; e < n; e++) {
        const int8_t *at = block + pf_latent_at(hd_k, p, first + e);
        int qh = q[e], ql = q[n + e], kh = at[0], kl = at[PF_LATENT_PLANE];
        upper += qh * kh;
        middle += qh * kl + ql * kh;
    }
    return 256 * upper + middle;
}

static const float *latent_scale(const int8_t *block, int hd_k, int which)
{
    return (const float *)(const void *)(block + pf_latent_scales(hd_k, which));
}

static void latent_scores(const struct pf_attn_latent_args *a, int i, const int8_t *block, struct span seen, float *y)
{
    const float *s = latent_scale(block, a->hd_k, 0), *sp = latent_scale(block, a->hd_k, 1);
    const float *lsv = latent_scale(block, a->hd_k, 2);
    const int8_t *q = a->q + (size_t)i * 2 * (size_t)a->hd_k, *qp = q + 2 * a->hd_v;
    int n_pe = a->hd_k - a->hd_v;
    for (int p = seen.lo; p < seen.hi; p++) {
        y[p] = lsv[p];
        if (n_pe)
            y[p] = fmaf((float)latent_score(qp, block, a->hd_k, p, a->hd_v, n_pe) * sp[p], a->cqp[i], y[p]);
        y[p] = fmaf((float)latent_score(q, block, a->hd_k, p, 0, a->hd_v) * s[p], a->cq[i], y[p]);
    }
}

static int latent_weighted(const struct weights *s, const int8_t *block, int hd_k, int e)
{
    int upper = 0, middle = 0;
    for (int p = 0; p < PF_I16_BLOCK; p++) {
        const int8_t *at = block + pf_latent_at(hd_k, p, e);
        int wh = (int)(s->w[p] >> 8), wl = (int)(s->w[p] & 255), vh = at[0], vl = at[PF_LATENT_PLANE];
        upper += wh * vh;
        middle += wh * vl + wl * vh;
    }
    return 256 * upper + middle;
}

static void latent_chunk(const struct pf_attn_latent_args *a, int i, float *part)
{
    struct running r;
    begin(&r, part, a->hd_v);
    for (int at = 0; at < PF_I16_CHUNK; at += PF_I16_BLOCK) {
        struct span seen = seen_of(a->lo[i], a->hi[i], at);
        const int8_t *block = (const int8_t *)a->chunk + pf_latent_block(a->hd_k, at);
        float y[PF_I16_BLOCK];
        int sums[PF_I16_HEAD_MAX];
        struct weights s;
        if (seen.lo >= seen.hi)
            continue;
        latent_scores(a, i, block, seen, y);
        weigh(&s, y, latent_scale(block, a->hd_k, 3), seen);
        for (int e = 0; e < a->hd_v; e++)
            sums[e] = latent_weighted(&s, block, a->hd_k, e);
        enter(&r, &s, sums, a->hd_v);
    }
    end(&r, a->hd_v);
}

void pf_ref_attn_latent(const struct pf_attn_latent_args *a)
{
    for (int i = 0; i < a->n_q; i++)
        latent_chunk(a, i, a->part + (size_t)i * a->part_stride);
}

/* ---- The whole -------------------------------------------------------------------------------------------------- */

void pf_ref_attn_fold(float *total, const float *part, int hd)
{
    float m = total[hd] > part[hd] ? total[hd] : part[hd];
    float old = pf_exp2_neg(total[hd] - m), fresh = pf_exp2_neg(part[hd] - m);
    for (int e = 0; e < hd; e++)
        total[e] = fmaf(part[e], fresh, total[e] * old);
    total[hd + 1] = fmaf(total[hd + 1], old, part[hd + 1] * fresh);
    total[hd] = m;
}
