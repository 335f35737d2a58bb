/* Attention in whole numbers with AMX: one chunk against up to 64 queries, a block of 64 positions and eight queries at
 * a time. Weights are made as with VNNI (attn_by_16.h). Right operands lie in memory as pf_i16.h lays out vectors:
 *
 *     scores   [queries][64 elements] times [64 elements][16 keys]       a vector of 16 keys is a row of the second
 *     values   [queries][64 weights] times [64 positions][16 elements]   a vector of 16 elements is a row
 *
 * Left operands are cut from 24 rows, the planes of eight queries' elements or weights behind eight rows of zeros, so
 * that two products add up all that a vector gives in one tile:
 *
 *     zeros  [8]  \ times the vector's lower bytes
 *     uppers [8]  /  \ times its upper bytes         rows 0..7 of the sums: upper ones, rows 8..15: middle ones
 *     lowers [8]     /
 *
 * Heads must be multiples of 64, the length of a row of bytes; others go with VNNI. Tiles are configured for a chunk
 * and released after it, so that a thread that is not here has none for the system to save. */
#ifndef PF_ATTN_AMX_H
#define PF_ATTN_AMX_H

#include "kernels/x86/attn_by_16.h"
#include "kernels/x86/attn_vnni.h"

enum {
    AMX_ROWS = 16, AMX_BYTES = 64,           /* of a tile: rows; bytes of a row */
    AMX_TOGETHER = 8,                        /* queries of a tile */
    AMX_LEAST = 6,                           /* of fewer queries VNNI waits less for memory */
    AMX_GROUPS = PF_ATTN_I16_QUERIES / AMX_TOGETHER, AMX_SLICES = PF_I16_HEAD_MAX / AMX_BYTES
};

/* Rows that left operands are cut from. */
struct amx_left {
    _Alignas(64) int8_t zeros[AMX_TOGETHER][AMX_BYTES];
    int8_t uppers[AMX_TOGETHER][AMX_BYTES], lowers[AMX_TOGETHER][AMX_BYTES];
};

/* In the caller's scratch. */
struct attn_amx {
    struct amx_left q[AMX_GROUPS][AMX_SLICES], w;
    _Alignas(64) int32_t c[4][AMX_ROWS][16];     /* sums of four vectors */
    _Alignas(64) float y[AMX_TOGETHER][PF_I16_BLOCK];    /* see attn_ys_of; of what is not seen -inf */
    float mc[AMX_TOGETHER], fresh[AMX_TOGETHER];         /* the largest y of the block; the factor of its sums. Of a
                                                            query that sees nothing of it anything */
    struct attn_sums sums;
};
_Static_assert(sizeof(struct attn_amx) <= PF_ATTN_I16_SCRATCH, "fits the scratch");

/* Tiles by number, which gcc wants to see as a literal: 0 to 3 are sums, 4 and 5 the left operands for a vector's upper
 * and lower bytes, 6 and 7 these bytes. */
#define T_LEFT_UPPER 4
#define T_LEFT_LOWER 5
#define T_UPPER      6
#define T_LOWER      7

struct amx_config {
    uint8_t  palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t  rows[16];
};

/* What was written is in memory: gcc does not know that tiles are read from there, and written. */
ATTN_INLINE void amx_written(void)
{
    __asm__ volatile("" ::: "memory");
}

static void amx_configure(void)
{
    struct amx_config c = { .palette = 1 };
    for (int t = 0; t <= T_LOWER; t++) {
        c.row_bytes[t] = AMX_BYTES;
        c.rows[t] = AMX_ROWS;
    }
    amx_written();
    _tile_loadconfig(&c);
}

ATTN_INLINE void amx_zero(void)
{
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

ATTN_INLINE void amx_store(struct attn_amx *s)
{
    _tile_stored(0, s->c[0], AMX_BYTES);
    _tile_stored(1, s->c[1], AMX_BYTES);
    _tile_stored(2, s->c[2], AMX_BYTES);
    _tile_stored(3, s->c[3], AMX_BYTES);
    amx_written();
}

ATTN_INLINE void amx_load_left(const struct amx_left *l)
{
    amx_written();
    _tile_loadd(T_LEFT_UPPER, l->uppers, AMX_BYTES);
    _tile_loadd(T_LEFT_LOWER, l->zeros, AMX_BYTES);
}

/* 256 upper + middle of query j, of vector u. */
ATTN_INLINE __m512i amx_sum(const struct attn_amx *s, int u, int j)
{
    return _mm512_add_epi32(_mm512_slli_epi32(_mm512_load_si512(s->c[u][j]), 8),
                            _mm512_load_si512(s->c[u][AMX_TOGETHER + j]));
}

/* ---- What comes next ------------------------------------------------------------------------------------------- */

/* The block that comes next, on its way from memory: its keys, then its values. Lines are fetched a few at a time on
 * all the way through a block, weights included, since a burst of them holds up the tiles behind it and a gap leaves
 * memory idle. */
struct amx_ahead {
    const int8_t *at, *end;      /* the next line; NULL: nothing is left */
    const int8_t *then, *then_end;
};

static struct amx_ahead amx_ahead(const struct pf_attn_i16_args *a, int at)
{
    struct attn_ahead next = attn_ahead(a, at);
    if (!next.k)
        return (struct amx_ahead){ 0 };
    return (struct amx_ahead){ next.k, next.k + pf_i16_sk(a->hd_k), next.v, next.v + pf_i16_rsv(a->hd_v) };
}

/* Six lines, as attn_fetch_walk has them. */
ATTN_INLINE void amx_fetch(struct amx_ahead *ahead)
{
    if (!ahead->at)
        return;
    for (int i = 0; i < 2; i++) {
        for (int j = 0; j < ATTN_EVERY; j++)
            attn_fetch_line(ahead->at + j * ATTN_LINE);
        attn_fetch_line(ahead->at + ATTN_PAGE);
        ahead->at += ATTN_EVERY * ATTN_LINE;
    }
    if (ahead->at >= ahead->end) {
        ahead->at = ahead->then;
        ahead->end = ahead->then_end;
        ahead->then = NULL;
    }
}

/* Adds a vector to sums t; `multiply`: of signed bytes or of unsigned ones by signed ones. */
#define AMX_ADD(t, multiply, vector, stride, ahead)                      \
    do {                                                                 \
        amx_fetch(ahead);                                                \
        _tile_loadd(T_UPPER, vector, stride);                            \
        amx_fetch(ahead);                                                \
        _tile_loadd(T_LOWER, (vector) + PF_I16_PLANE, stride);           \
        amx_fetch(ahead);                                                \
        multiply(t, T_LEFT_UPPER, T_UPPER);                              \
        amx_fetch(ahead);                                                \
        multiply(t, T_LEFT_LOWER, T_LOWER);                              \
    } while (0)

/* ---- Scores ---------------------------------------------------------------------------------------------------- */

/* The planes of queries, [n_q][2][hd_k], to left operands. */
static void amx_take_queries(const struct pf_attn_i16_args *a, struct attn_amx *s)
{
    int n_slices = a->hd_k / AMX_BYTES, n_groups = (a->n_q + AMX_TOGETHER - 1) / AMX_TOGETHER;
    for (int g = 0; g < n_groups; g++)
        for (int e = 0; e < n_slices; e++)
            memset(&s->q[g][e], 0, sizeof s->q[g][e]);
    for (int i = 0; i < a->n_q; i++)
        for (int e = 0; e < n_slices; e++) {
            struct amx_left *l = &s->q[i / AMX_TOGETHER][e];
            const int8_t *q = a->q + (size_t)i * 2 * (size_t)a->hd_k + (size_t)e * AMX_BYTES;
            memcpy(l->uppers[i % AMX_TOGETHER], q, AMX_BYTES);
            memcpy(l->lowers[i % AMX_TOGETHER], q + a->hd_k, AMX_BYTES);
        }
}

static void amx_scores(const struct pf_attn_i16_args *a, struct attn_amx *s, const int8_t *k, struct amx_ahead *ahead,
                       int group)
{
    size_t vector = (size_t)a->hd_k / 4 * ATTN_VECTOR;
    amx_zero();
    for (int e = 0; e < a->hd_k / AMX_BYTES; e++) {
        const int8_t *at = k + (size_t)e * (AMX_BYTES / 4) * ATTN_VECTOR;
        amx_load_left(&s->q[group][e]);
        AMX_ADD(0, _tile_dpbssd, at, ATTN_VECTOR, ahead);
        AMX_ADD(1, _tile_dpbssd, at + vector, ATTN_VECTOR, ahead);
        AMX_ADD(2, _tile_dpbssd, at + 2 * vector, ATTN_VECTOR, ahead);
        AMX_ADD(3, _tile_dpbssd, at + 3 * vector, ATTN_VECTOR, ahead);
    }
    amx_store(s);
}

/* ---- Weights --------------------------------------------------------------------------------------------------- */

/* Queries are weighed in three passes, the largest y of each, factors, weights, since the steps of one wait for each
 * other and those of eight do not. */

static void amx_tops(const struct pf_attn_i16_args *a, struct attn_amx *s, const int8_t *k, struct amx_ahead *ahead,
                     int i, int n, const struct attn_span *seen)
{
    for (int j = 0; j < n; j++) {
        __m512i c[4];
        __m512 y[4];
        amx_fetch(ahead);
        if (seen[j].lo >= seen[j].hi)
            continue;
        for (int u = 0; u < 4; u++)
            c[u] = amx_sum(s, u, j);
        attn_ys_of(a, k, i + j, c, y);
        s->mc[j] = attn_top(y, attn_bits(seen[j]));
        for (int u = 0; u < 4; u++)
            _mm512_store_ps(s->y[j] + 16 * u, y[u]);
    }
}

/* attn_enter, or attn_skip for what is not seen, of eight queries from number i on, but for the sums of weights. */
static void amx_maxima(struct attn_amx *s, int i, __mmask16 seen)
{
    const __mmask16 all = (1 << AMX_TOGETHER) - 1;
    __m512 before = _mm512_maskz_loadu_ps(all, s->sums.m + i), mc = _mm512_maskz_loadu_ps(all, s->mc);
    __m512 m = _mm512_max_ps(before, mc);
    __m512 old = attn_exp2(_mm512_sub_ps(before, m)), fresh = attn_exp2(_mm512_sub_ps(mc, m));
    __m512 gain = _mm512_mul_ps(_mm512_set1_ps(PF_I16_GAIN), fresh);
    _mm512_mask_storeu_ps(s->sums.m + i, seen, m);
    _mm512_mask_storeu_ps(s->sums.old + i, all, _mm512_mask_mov_ps(_mm512_set1_ps(1), seen, old));
    _mm512_mask_storeu_ps(s->sums.gain + i, all, _mm512_maskz_mov_ps(seen, gain));
    _mm512_mask_storeu_ps(s->fresh, all, fresh);
}

static void amx_weigh(const struct pf_attn_i16_args *a, struct attn_amx *s, const int8_t *v, struct amx_ahead *ahead,
                      int i, int n, const struct attn_span *seen)
{
    const float *rsv = (const float *)(const void *)(v + pf_i16_rsv(a->hd_v));
    for (int j = 0; j < n; j++) {
        uint8_t *uppers = (uint8_t *)s->w.uppers[j], *lowers = (uint8_t *)s->w.lowers[j];
        amx_fetch(ahead);
        if (seen[j].lo >= seen[j].hi) {
            memset(uppers, 0, PF_I16_BLOCK);
            memset(lowers, 0, PF_I16_BLOCK);
            continue;
        }
        __m512 y[4];
        __m512i w[4];
        for (int u = 0; u < 4; u++)
            y[u] = _mm512_load_ps(s->y[j] + 16 * u);
        __m256 zc = attn_weights_below(s->mc[j], y, attn_bits(seen[j]), rsv, w);
        attn_add_z(s->sums.z[i + j], s->sums.old[i + j], zc, s->fresh[j]);
        attn_planes(w, uppers, lowers);
    }
}

/* ---- Values ---------------------------------------------------------------------------------------------------- */

/* 64 elements from element e on, of query i, the group's number j. */
ATTN_INLINE void amx_enter(const struct pf_attn_i16_args *a, const struct attn_amx *s, int i, int j, int e)
{
    float *acc = a->part + (size_t)i * a->part_stride + e;
    __m512 old = _mm512_set1_ps(s->sums.old[i]), gain = _mm512_set1_ps(s->sums.gain[i]);
    for (int u = 0; u < 4; u++) {
        __m512 before = _mm512_mul_ps(_mm512_loadu_ps(acc + 16 * u), old);
        _mm512_storeu_ps(acc + 16 * u, _mm512_fmadd_ps(_mm512_cvtepi32_ps(amx_sum(s, u, j)), gain, before));
    }
}

static void amx_values(const struct pf_attn_i16_args *a, struct attn_amx *s, const int8_t *v, struct amx_ahead *ahead,
                       int i, int n)
{
    size_t row = (size_t)a->hd_v / 16 * ATTN_VECTOR;
    amx_load_left(&s->w);
    for (int e = 0; e < a->hd_v; e += 4 * 16) {
        const int8_t *at = v + (size_t)e / 16 * ATTN_VECTOR;
        amx_zero();
        AMX_ADD(0, _tile_dpbusd, at, row, ahead);
        AMX_ADD(1, _tile_dpbusd, at + ATTN_VECTOR, row, ahead);
        AMX_ADD(2, _tile_dpbusd, at + 2 * ATTN_VECTOR, row, ahead);
        AMX_ADD(3, _tile_dpbusd, at + 3 * ATTN_VECTOR, row, ahead);
        amx_store(s);
        for (int j = 0; j < n; j++) {
            amx_fetch(ahead);
            amx_enter(a, s, i + j, j, e);
        }
    }
}

/* ---- A chunk --------------------------------------------------------------------------------------------------- */

/* n queries from number i on. False: none of them sees any of the block at `at`, and nothing was done. */
static bool amx_block(const struct pf_attn_i16_args *a, struct attn_amx *s, int at, struct amx_ahead *ahead, int i,
                      int n)
{
    const int8_t *k = (const int8_t *)a->k + pf_i16_key_block(a->hd_k, at);
    const int8_t *v = (const int8_t *)a->v + pf_i16_value_block(a->hd_v, at);
    struct attn_span seen[AMX_TOGETHER];
    __mmask16 some = 0;
    for (int j = 0; j < n; j++) {
        seen[j] = attn_seen(a, i + j, at);
        some |= (__mmask16)((seen[j].lo < seen[j].hi) << j);
    }
    if (!some)
        return false;
    amx_scores(a, s, k, ahead, i / AMX_TOGETHER);
    amx_tops(a, s, k, ahead, i, n, seen);
    amx_maxima(s, i, some);
    amx_weigh(a, s, v, ahead, i, n, seen);
    amx_values(a, s, v, ahead, i, n);
    return true;
}

static void attn_i16_amx(const struct pf_attn_i16_args *a)
{
    struct attn_amx *s = a->scratch;
    if (a->hd_k % AMX_BYTES || a->hd_v % AMX_BYTES || a->n_q < AMX_LEAST) {
        attn_i16_vnni(a);
        return;
    }
    amx_configure();
    amx_take_queries(a, s);
    memset(&s->w, 0, sizeof s->w);
    for (int i = 0; i < a->n_q; i++)
        attn_begin(a, &s->sums, i);
    for (int at = 0; at < PF_I16_CHUNK; at += PF_I16_BLOCK) {
        struct amx_ahead ahead = amx_ahead(a, at);
        for (int i = 0; i < a->n_q; i += AMX_TOGETHER) {
            int n = a->n_q - i < AMX_TOGETHER ? a->n_q - i : AMX_TOGETHER;
            if (amx_block(a, s, at, &ahead, i, n))
                ahead = (struct amx_ahead){ 0 };
        }
    }
    _tile_release();
    for (int i = 0; i < a->n_q; i++)
        attn_end(a, &s->sums, i);
}

#endif
