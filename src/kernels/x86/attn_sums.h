/* Attention in whole numbers: what a query carries from block to block of a chunk, and how a block enters it
 * (docs/numerics.md); where vectors of LANES words lie. For the kernels of attn_pairs.h and attn_vnni.h, after a lanes
 * header; AVX2 and FMA. */
#ifndef PF_ATTN_SUMS_H
#define PF_ATTN_SUMS_H

#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "base/pf_latent.h"
#include "kernels/kernels.h"

#define ATTN_INLINE static inline __attribute__((always_inline))

enum { ATTN_QT = 4, ATTN_VECTOR = 2 * PF_I16_PLANE };    /* queries of a tile; bytes of a vector of both planes */
enum { LATENT_WORDS = 2 * PF_LATENT_PLANE };         /* of a latent: bytes from an element's words to those four on */

/* Keeps x in a register: the compiler would rather read an operand again for each query, and spill sums for it. */
ATTN_INLINE vi attn_hold(vi x)
{
    __asm__("" : "+v"(x));
    return x;
}

/* Where vector number u of the keys' words of element e begins. */
ATTN_INLINE const int8_t *attn_keys_at(const int8_t *k, int hd, int u, int e)
{
    return k + ((size_t)(u * LANES / 16) * (size_t)(hd / 4) + (size_t)(e / 4)) * ATTN_VECTOR + u * LANES % 16 * 4;
}

/* Vector number u of the elements, word number `word` of the positions. */
ATTN_INLINE const int8_t *attn_values_at(const int8_t *v, int hd, int u, int word)
{
    return v + ((size_t)word * (size_t)(hd / 16) + (size_t)(u * LANES / 16)) * ATTN_VECTOR + u * LANES % 16 * 4;
}

/* old and gain: the factors of acc and of the present block's sums. */
struct attn_sums {
    float z[PF_ATTN_I16_QUERIES][8];
    float m[PF_ATTN_I16_QUERIES], old[PF_ATTN_I16_QUERIES], gain[PF_ATTN_I16_QUERIES];
};

/* Positions lo <= p < hi of a block. */
struct attn_span {
    int lo, hi;
};

ATTN_INLINE struct attn_span attn_seen(const struct pf_attn_i16_args *a, int i, int at)
{
    int lo = a->lo[i] - at, hi = a->hi[i] - at;
    return (struct attn_span){ lo < 0 ? 0 : lo, hi > PF_I16_BLOCK ? PF_I16_BLOCK : hi };
}

/* The block that comes next, fetched from memory on the way through the present one: line after line, which is the
 * order that the cache's own fetching follows, some at each step of a tile, by the first two tiles of queries or by the
 * one that there is. */
struct attn_ahead {
    const int8_t *k, *v;         /* the next lines. NULL: nothing is left to be fetched */
    int           step;          /* bytes for a vector of the present block */
};

/* Fetches into the second cache: the first one is full of the present block. */
ATTN_INLINE void attn_fetch_line(const int8_t *p)
{
    _mm_prefetch((const char *)p, _MM_HINT_T1);
}

/* Bytes of a line and of a page; with every third line on the way through memory comes the one a page further on, since
 * what a core fetches by itself ends with a page (fetch.h). */
enum { ATTN_LINE = 64, ATTN_PAGE = 4096, ATTN_EVERY = 3 };

ATTN_INLINE void attn_fetch_walk(const int8_t *p)
{
    attn_fetch_line(p);
    if ((uintptr_t)p / ATTN_LINE % ATTN_EVERY == 0)
        attn_fetch_line(p + ATTN_PAGE);
}

ATTN_INLINE void attn_fetch(const int8_t **at, int step)
{
    if (!*at)
        return;
    attn_fetch_walk(*at);
    if (step == ATTN_VECTOR)
        attn_fetch_walk(*at + 64);
    *at += step;
}

/* attn_fetch on the way through vector number u: with the first half of a vector for the other one, too. */
ATTN_INLINE void attn_fetch_whole(const int8_t **at, int step, int u)
{
    if (u * LANES % 16 == 0)
        attn_fetch(at, step);
}

/* What comes after the block at position `at`: the last query sees the most. Scales are fetched at once. */
ATTN_INLINE struct attn_ahead attn_ahead(const struct pf_attn_i16_args *a, int at)
{
    bool alone = a->n_q == 1 || a->n_q == ATTN_QT;
    struct attn_ahead next = { a->next_k, a->next_v, alone ? ATTN_VECTOR : ATTN_VECTOR / 2 };
    if (at + PF_I16_BLOCK < a->hi[a->n_q - 1]) {
        next.k = (const int8_t *)a->k + pf_i16_key_block(a->hd_k, at + PF_I16_BLOCK);
        next.v = (const int8_t *)a->v + pf_i16_value_block(a->hd_v, at + PF_I16_BLOCK);
    }
    if (!next.k)
        return (struct attn_ahead){ 0 };
    for (size_t i = 0; i < PF_I16_BLOCK * sizeof(float); i += 64) {
        attn_fetch_line(next.k + pf_i16_sk(a->hd_k) + i);
        attn_fetch_line(next.k + pf_i16_lsv(a->hd_k) + i);
        attn_fetch_line(next.v + pf_i16_rsv(a->hd_v) + i);
    }
    return next;
}

/* The tile of queries from number i has fetched its part. */
ATTN_INLINE void attn_fetched(struct attn_ahead *ahead, int i)
{
    if (i > 0 || ahead->step == ATTN_VECTOR)
        *ahead = (struct attn_ahead){ 0 };
}

ATTN_INLINE void attn_begin(const struct pf_attn_i16_args *a, struct attn_sums *s, int i)
{
    s->m[i] = -INFINITY;
    memset(s->z[i], 0, sizeof s->z[i]);
    memset(a->part + (size_t)i * a->part_stride, 0, (size_t)a->hd_v * sizeof *a->part);
}

ATTN_INLINE void attn_end(const struct pf_attn_i16_args *a, struct attn_sums *s, int i)
{
    float *z = s->z[i], *part = a->part + (size_t)i * a->part_stride;
    for (int h = 4; h > 0; h /= 2)
        for (int j = 0; j < h; j++)
            z[j] += z[j + h];
    part[a->hd_v] = s->m[i];
    part[a->hd_v + 1] = z[0];
}

/* The sums of weights of a block: `old` and `fresh` are the factors of those before and of these. */
ATTN_INLINE void attn_add_z(float z[8], float old, __m256 zc, float fresh)
{
    zc = _mm256_mul_ps(zc, _mm256_set1_ps(fresh));
    _mm256_storeu_ps(z, _mm256_fmadd_ps(_mm256_loadu_ps(z), _mm256_set1_ps(old), zc));
}

/* The maximum and the sums of weights of a block. */
ATTN_INLINE void attn_enter(struct attn_sums *s, int i, float mc, __m256 zc)
{
    float m = s->m[i] > mc ? s->m[i] : mc, old = pf_exp2_neg(s->m[i] - m), fresh = pf_exp2_neg(mc - m);
    attn_add_z(s->z[i], old, zc, fresh);
    s->old[i] = old;
    s->gain[i] = PF_I16_GAIN * fresh;
    s->m[i] = m;
}

/* A block of which the query sees nothing, while others of its tile do: with weights of 0 its sums stay. */
ATTN_INLINE void attn_skip(struct attn_sums *s, int i)
{
    s->old[i] = 1;
    s->gain[i] = 0;
}

#endif
