/* Attention in whole numbers with VNNI of 256 or 512 bits: one chunk against up to 64 queries, a block of 64 positions
 * at a time, vectors as pf_i16.h lays them out or their halves. Include after a lanes header and after attn_by_8.h or
 * attn_by_16.h, which goes with it.
 *
 *     scores   tiles of QT queries times vectors of keys      -> C [query][64], keys in the order of their words
 *     weigh    each query: C to weights, in planes of bytes   -> W [query][plane][64], in the order of values' words
 *     values   tiles of QT queries times vectors of elements  -> acc
 *
 * dpbusd multiplies unsigned bytes by signed ones: keys get 128 added, which 128 times the sum of the query's bytes
 * takes back; weights are unsigned already. */
#ifndef PF_ATTN_VNNI_H
#define PF_ATTN_VNNI_H

#include "kernels/x86/attn_sums.h"

/* A tile of QT queries has NV vectors, one of a single query NV_MAX. A vector has SUMS: that of the products of upper
 * bytes, and of those of an upper and a lower byte. Of few vectors the latter are two sums, since a product waits for
 * the one that it is added to. All sums of a tile are in registers, of which AVX2 has half as many. */
enum {
    ATTN_VECTORS = PF_I16_BLOCK / LANES,     /* of a block's positions */
    ATTN_NV = LANES / 8, ATTN_NV_MAX = 2 * ATTN_NV, ATTN_SUMS = LANES == 8 ? 3 : 2
};

/* In the caller's scratch. */
struct attn_vnni {
    int32_t c[PF_ATTN_I16_QUERIES][PF_I16_BLOCK];
    uint8_t w[PF_ATTN_I16_QUERIES][2][PF_I16_BLOCK];
    struct attn_sums sums;
    int32_t less[PF_ATTN_I16_QUERIES][2];    /* 128 times the sum of the query's upper bytes; of both planes */
};
_Static_assert(sizeof(struct attn_vnni) <= PF_ATTN_I16_SCRATCH, "fits the scratch");

ATTN_INLINE vi attn_word(const void *p)
{
    int32_t w;
    memcpy(&w, p, sizeof w);
    return vi_set1(w);
}

/* The sums of a vector begin with what is in all of its lanes. */
ATTN_INLINE void attn_start(vi sum[ATTN_SUMS], int32_t upper, int32_t middle)
{
    sum[ATTN_SUMS - 1] = vi_zero();
    sum[0] = vi_set1(upper);
    sum[1] = vi_set1(middle);
}

/* Adds the products of upper and lower bytes, unsigned ones by signed ones. */
ATTN_INLINE void attn_multiply(vi sum[ATTN_SUMS], vi unsigned_h, vi unsigned_l, vi signed_h, vi signed_l)
{
    sum[0] = vi_dot4(sum[0], unsigned_h, signed_h);
    sum[1] = vi_dot4(sum[1], unsigned_l, signed_h);
    sum[ATTN_SUMS - 1] = vi_dot4(sum[ATTN_SUMS - 1], unsigned_h, signed_l);
    for (int i = 0; i < ATTN_SUMS; i++)
        sum[i] = attn_hold(sum[i]);
}

ATTN_INLINE vi attn_total(const vi sum[ATTN_SUMS])
{
    vi total = vi_add(vi_shl(sum[0], 8), sum[1]);
    return ATTN_SUMS > 2 ? vi_add(total, sum[ATTN_SUMS - 1]) : total;
}

/* ---- Scores ---------------------------------------------------------------------------------------------------- */

/* A vector of keys' bytes as unsigned ones. */
ATTN_INLINE vi attn_key(const int8_t *word)
{
    return vi_xor(vi_load(word), vi_set1((int32_t)0x80808080));
}

/* n_q queries from number i times n_v vectors of keys from number v. */
ATTN_INLINE void attn_scores_tile(const struct pf_attn_i16_args *a, struct attn_vnni *s, const int8_t *k,
                                  struct attn_ahead *ahead, int i, const int n_q, int v, const int n_v)
{
    size_t hd = (size_t)a->hd_k;
    const int8_t *q = a->q + (size_t)i * 2 * hd, *at[ATTN_NV_MAX], *fetch = ahead->k;
    vi sum[ATTN_QT][ATTN_NV_MAX][ATTN_SUMS];
    for (int u = 0; u < n_v; u++)
        at[u] = attn_keys_at(k, a->hd_k, v + u, 0);
    for (int j = 0; j < n_q; j++)
        for (int u = 0; u < n_v; u++)
            attn_start(sum[j][u], -s->less[i + j][0], -s->less[i + j][1]);
    for (size_t e = 0; e < hd; e += 4) {
        vi kh[ATTN_NV_MAX], kl[ATTN_NV_MAX];
        for (int u = 0; u < n_v; u++) {
            const int8_t *word = at[u] + e / 4 * ATTN_VECTOR;
            attn_fetch_whole(&fetch, ahead->step, v + u);
            kh[u] = attn_key(word);
            kl[u] = attn_key(word + PF_I16_PLANE);
        }
        for (int j = 0; j < n_q; j++) {
            vi qh = attn_word(q + (size_t)j * 2 * hd + e), ql = attn_word(q + (size_t)j * 2 * hd + hd + e);
            for (int u = 0; u < n_v; u++)
                attn_multiply(sum[j][u], kh[u], kl[u], qh, ql);
        }
    }
    for (int j = 0; j < n_q; j++)
        for (int u = 0; u < n_v; u++)
            vi_store(s->c[i + j] + (v + u) * LANES, attn_total(sum[j][u]));
    ahead->k = fetch;
}

static void attn_scores_four(const struct pf_attn_i16_args *a, struct attn_vnni *s, const int8_t *k,
                             struct attn_ahead *ahead, int i)
{
    for (int v = 0; v < ATTN_VECTORS; v += ATTN_NV)
        attn_scores_tile(a, s, k, ahead, i, ATTN_QT, v, ATTN_NV);
}

static void attn_scores_one(const struct pf_attn_i16_args *a, struct attn_vnni *s, const int8_t *k,
                            struct attn_ahead *ahead, int i)
{
    for (int v = 0; v < ATTN_VECTORS; v += ATTN_NV_MAX)
        attn_scores_tile(a, s, k, ahead, i, 1, v, ATTN_NV_MAX);
}

/* ---- Weights --------------------------------------------------------------------------------------------------- */

/* The weights of query i, which sees some positions, those of `span`. */
static void attn_weigh(const struct pf_attn_i16_args *a, struct attn_vnni *s, const int8_t *k, const int8_t *v, int i,
                       struct attn_span span)
{
    vf y[ATTN_VECTORS];
    vi w[ATTN_VECTORS];
    attn_ys(a, k, i, s->c[i], y);
    attn_weights(&s->sums, i, y, span, (const float *)(const void *)(v + pf_i16_rsv(a->hd_v)), w);
    attn_planes(w, s->w[i][0], s->w[i][1]);
}

/* ---- Values ---------------------------------------------------------------------------------------------------- */

/* n_v vectors of elements from number e on, for n_q queries from number i. */
ATTN_INLINE void attn_values_tile(const struct pf_attn_i16_args *a, const struct attn_vnni *s, const int8_t *v,
                                  struct attn_ahead *ahead, int i, const int n_q, int e, const int n_v)
{
    vi sum[ATTN_QT][ATTN_NV_MAX][ATTN_SUMS];
    for (int j = 0; j < n_q; j++)
        for (int u = 0; u < n_v; u++)
            attn_start(sum[j][u], 0, 0);
    const int8_t *fetch = ahead->v;
    for (int word = 0; word < PF_I16_BLOCK / 4; word++) {
        vi vh[ATTN_NV_MAX], vl[ATTN_NV_MAX];
        for (int u = 0; u < n_v; u++) {
            const int8_t *at = attn_values_at(v, a->hd_v, e + u, word);
            attn_fetch_whole(&fetch, ahead->step, e + u);
            vh[u] = vi_load(at);
            vl[u] = vi_load(at + PF_I16_PLANE);
        }
        for (int j = 0; j < n_q; j++) {
            vi wh = attn_word(s->w[i + j][0] + 4 * word), wl = attn_word(s->w[i + j][1] + 4 * word);
            for (int u = 0; u < n_v; u++)
                attn_multiply(sum[j][u], wh, wl, vh[u], vl[u]);
        }
    }
    for (int j = 0; j < n_q; j++)
        for (int u = 0; u < n_v; u++) {
            float *acc = a->part + (size_t)(i + j) * a->part_stride + (e + u) * LANES;
            vf before = vf_mul(vf_load(acc), vf_set1(s->sums.old[i + j]));
            vf_store(acc, vf_fma(vf_from_int(attn_total(sum[j][u])), vf_set1(s->sums.gain[i + j]), before));
        }
    ahead->v = fetch;
}

static void attn_values_four(const struct pf_attn_i16_args *a, const struct attn_vnni *s, const int8_t *v,
                             struct attn_ahead *ahead, int i)
{
    for (int e = 0; e < a->hd_v / LANES; e += ATTN_NV)
        attn_values_tile(a, s, v, ahead, i, ATTN_QT, e, ATTN_NV);
}

static void attn_values_one(const struct pf_attn_i16_args *a, const struct attn_vnni *s, const int8_t *v,
                            struct attn_ahead *ahead, int i)
{
    int e = 0, n = a->hd_v / LANES;
    for (; e + ATTN_NV_MAX <= n; e += ATTN_NV_MAX)
        attn_values_tile(a, s, v, ahead, i, 1, e, ATTN_NV_MAX);
    for (; e < n; e += ATTN_NV)
        attn_values_tile(a, s, v, ahead, i, 1, e, ATTN_NV);
}

/* ---- A chunk --------------------------------------------------------------------------------------------------- */

/* What 128 too much in every key adds to the sums, of planes [2][n] of a query. */
ATTN_INLINE void attn_sum_query(const int8_t *q, int n, int32_t less[2])
{
    int upper = 0, lower = 0;
    for (int e = 0; e < n; e++) {
        upper += q[e];
        lower += q[n + e];
    }
    less[0] = 128 * upper;
    less[1] = 128 * (upper + lower);
}

static void attn_block(const struct pf_attn_i16_args *a, struct attn_vnni *s, int at)
{
    const int8_t *k = (const int8_t *)a->k + pf_i16_key_block(a->hd_k, at);
    const int8_t *v = (const int8_t *)a->v + pf_i16_value_block(a->hd_v, at);
    struct attn_ahead ahead = attn_ahead(a, at);
    for (int i = 0, n; i < a->n_q; i += n) {
        struct attn_span seen[ATTN_QT];
        bool any = false;
        n = a->n_q - i >= ATTN_QT ? ATTN_QT : 1;
        for (int j = 0; j < n; j++) {
            seen[j] = attn_seen(a, i + j, at);
            any |= seen[j].lo < seen[j].hi;
        }
        if (!any)
            continue;
        (n == 1 ? attn_scores_one : attn_scores_four)(a, s, k, &ahead, i);
        for (int j = 0; j < n; j++)
            if (seen[j].lo < seen[j].hi) {
                attn_weigh(a, s, k, v, i + j, seen[j]);
            } else {
                memset(s->w[i + j], 0, sizeof s->w[i + j]);
                attn_skip(&s->sums, i + j);
            }
        (n == 1 ? attn_values_one : attn_values_four)(a, s, v, &ahead, i);
        attn_fetched(&ahead, i);
    }
}

static void attn_i16_vnni(const struct pf_attn_i16_args *a)
{
    struct attn_vnni *s = a->scratch;
    for (int i = 0; i < a->n_q; i++) {
        attn_begin(a, &s->sums, i);
        attn_sum_query(a->q + (size_t)i * 2 * (size_t)a->hd_k, a->hd_k, s->less[i]);
    }
    for (int at = 0; at < PF_I16_CHUNK; at += PF_I16_BLOCK)
        attn_block(a, s, at);
    for (int i = 0; i < a->n_q; i++)
        attn_end(a, &s->sums, i);
}

#endif
