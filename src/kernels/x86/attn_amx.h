/* Attention in whole numbers with AMX: one chunk against up to 64 queries, a block of 64 positions at a time. Weights
 * are made as with VNNI (attn_vnni.h); products are of tiles, which lie in memory as pf_i16.h lays out vectors:
 *
 *     scores   [16 queries][64 elements] times [64 elements][16 keys]       a vector of 16 keys is a row of the second
 *     values   [16 queries][64 weights] times [64 positions][16 elements]   a vector of 16 elements is a row
 *
 * Heads of keys must be multiples of 64, the length of a row of bytes; others go with VNNI. Tiles are configured for a
 * chunk and released after it, so that a thread that is not here has none for the system to save. */
#ifndef PF_ATTN_AMX_H
#define PF_ATTN_AMX_H

#include "kernels/x86/attn_vnni.h"

enum {
    AMX_ROWS = 16, AMX_BYTES = 64,           /* of a tile: rows; bytes of a row */
    AMX_QUERIES = 8                          /* fewer take no longer with VNNI: tiles are whole products of 16 */
};

/* Behind what VNNI has in the scratch: sums of two tiles as they are stored. */
struct attn_amx {
    struct attn_vnni vnni;
    _Alignas(64) int32_t upper[2][AMX_ROWS][16], middle[2][AMX_ROWS][16];
};
_Static_assert(sizeof(struct attn_amx) <= PF_ATTN_I16_SCRATCH, "fits the scratch");

/* Tiles by number, which gcc wants to see as a literal: sums of two products, the left operand's planes, the right
 * one's. */
#define T_UPPER       0
#define T_MIDDLE      1
#define T_UPPER_NEXT  2
#define T_MIDDLE_NEXT 3
#define T_HIGH        4
#define T_LOW         5
#define T_ROWS_HIGH   6
#define T_ROWS_LOW    7

struct amx_config {
    uint8_t  palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t  rows[16];
};

/* What was written is in memory: gcc does not know that tiles are read from there. */
ATTN_INLINE void amx_written(void)
{
    __asm__ volatile("" ::: "memory");
}

static void amx_configure(int n_q)
{
    struct amx_config c = { .palette = 1 };
    for (int t = T_UPPER; t <= T_ROWS_LOW; t++) {
        c.row_bytes[t] = AMX_BYTES;
        c.rows[t] = (uint8_t)(t < T_ROWS_HIGH ? n_q : AMX_ROWS);
    }
    amx_written();
    _tile_loadconfig(&c);
}

/* ---- Scores ---------------------------------------------------------------------------------------------------- */

ATTN_INLINE void amx_zero(void)
{
    _tile_zero(T_UPPER);
    _tile_zero(T_MIDDLE);
    _tile_zero(T_UPPER_NEXT);
    _tile_zero(T_MIDDLE_NEXT);
}

ATTN_INLINE void amx_store(struct attn_amx *s)
{
    _tile_stored(T_UPPER, s->upper[0], AMX_BYTES);
    _tile_stored(T_MIDDLE, s->middle[0], AMX_BYTES);
    _tile_stored(T_UPPER_NEXT, s->upper[1], AMX_BYTES);
    _tile_stored(T_MIDDLE_NEXT, s->middle[1], AMX_BYTES);
}

/* 256 upper + middle of query j. */
ATTN_INLINE __m512i amx_sum(const struct attn_amx *s, int u, int j)
{
    return _mm512_add_epi32(_mm512_slli_epi32(_mm512_load_si512(s->upper[u][j]), 8),
                            _mm512_load_si512(s->middle[u][j]));
}

/* Fetches 32 lines. More at once would wait for each other, and the tiles behind them for all of them. */
ATTN_INLINE void amx_fetch(const int8_t **at)
{
    enum { LINES = 32 };
    if (!*at)
        return;
    for (int i = 0; i < LINES; i++)
        attn_fetch_walk(*at + i * 64);
    *at += LINES * 64;
}

static void amx_scores(const struct pf_attn_i16_args *a, struct attn_amx *s, const int8_t *k, const int8_t **ahead,
                       int i, int n)
{
    size_t hd = (size_t)a->hd_k, vector = hd / 4 * ATTN_VECTOR;
    for (int v = 0; v < 4; v += 2) {
        amx_zero();
        for (size_t e = 0; e < hd; e += AMX_BYTES) {
            const int8_t *q = a->q + (size_t)i * 2 * hd + e, *at = k + (size_t)v * vector + e / 4 * ATTN_VECTOR;
            _tile_loadd(T_HIGH, q, 2 * hd);
            _tile_loadd(T_LOW, q + hd, 2 * hd);
            _tile_loadd(T_ROWS_HIGH, at, ATTN_VECTOR);
            _tile_loadd(T_ROWS_LOW, at + PF_I16_PLANE, ATTN_VECTOR);
            _tile_dpbssd(T_UPPER, T_HIGH, T_ROWS_HIGH);
            _tile_dpbssd(T_MIDDLE, T_LOW, T_ROWS_HIGH);
            _tile_dpbssd(T_MIDDLE, T_HIGH, T_ROWS_LOW);
            amx_fetch(ahead);
            _tile_loadd(T_ROWS_HIGH, at + vector, ATTN_VECTOR);
            _tile_loadd(T_ROWS_LOW, at + vector + PF_I16_PLANE, ATTN_VECTOR);
            _tile_dpbssd(T_UPPER_NEXT, T_HIGH, T_ROWS_HIGH);
            _tile_dpbssd(T_MIDDLE_NEXT, T_LOW, T_ROWS_HIGH);
            _tile_dpbssd(T_MIDDLE_NEXT, T_HIGH, T_ROWS_LOW);
            amx_fetch(ahead);
        }
        amx_store(s);
        for (int u = 0; u < 2; u++)
            for (int j = 0; j < n; j++)
                _mm512_storeu_si512(s->vnni.c[i + j] + (v + u) * 16, amx_sum(s, u, j));
    }
}

/* ---- Values ---------------------------------------------------------------------------------------------------- */

ATTN_INLINE void amx_enter(const struct pf_attn_i16_args *a, const struct attn_amx *s, int u, int i, int j, int e)
{
    float *acc = a->part + (size_t)(i + j) * a->part_stride + e;
    __m512 before = _mm512_mul_ps(_mm512_loadu_ps(acc), _mm512_set1_ps(s->vnni.sums.old[i + j]));
    __m512 gain = _mm512_set1_ps(s->vnni.sums.gain[i + j]);
    _mm512_storeu_ps(acc, _mm512_fmadd_ps(_mm512_cvtepi32_ps(amx_sum(s, u, j)), gain, before));
}

static void amx_values(const struct pf_attn_i16_args *a, struct attn_amx *s, const int8_t *v, const int8_t **ahead,
                       int i, int n)
{
    size_t row = (size_t)a->hd_v / 16 * ATTN_VECTOR;
    amx_written();
    _tile_loadd(T_HIGH, s->vnni.w[i][0], 2 * PF_I16_BLOCK);
    _tile_loadd(T_LOW, s->vnni.w[i][1], 2 * PF_I16_BLOCK);
    for (int e = 0; e < a->hd_v; e += 32) {
        const int8_t *at = v + (size_t)e / 16 * ATTN_VECTOR;
        amx_zero();
        _tile_loadd(T_ROWS_HIGH, at, row);
        _tile_loadd(T_ROWS_LOW, at + PF_I16_PLANE, row);
        _tile_dpbusd(T_UPPER, T_HIGH, T_ROWS_HIGH);
        _tile_dpbusd(T_MIDDLE, T_LOW, T_ROWS_HIGH);
        _tile_dpbusd(T_MIDDLE, T_HIGH, T_ROWS_LOW);
        amx_fetch(ahead);
        _tile_loadd(T_ROWS_HIGH, at + ATTN_VECTOR, row);
        _tile_loadd(T_ROWS_LOW, at + ATTN_VECTOR + PF_I16_PLANE, row);
        _tile_dpbusd(T_UPPER_NEXT, T_HIGH, T_ROWS_HIGH);
        _tile_dpbusd(T_MIDDLE_NEXT, T_LOW, T_ROWS_HIGH);
        _tile_dpbusd(T_MIDDLE_NEXT, T_HIGH, T_ROWS_LOW);
        amx_fetch(ahead);
        amx_store(s);
        for (int u = 0; u < 2; u++)
            for (int j = 0; j < n; j++)
                amx_enter(a, s, u, i, j, e + 16 * u);
    }
}

/* ---- A chunk --------------------------------------------------------------------------------------------------- */

/* n queries from number i on, of which at least one sees some of the block at `at`. */
static void amx_block(const struct pf_attn_i16_args *a, struct attn_amx *s, int at, struct attn_ahead *ahead, int i,
                      int n)
{
    const int8_t *k = (const int8_t *)a->k + pf_i16_key_block(a->hd_k, at);
    const int8_t *v = (const int8_t *)a->v + pf_i16_value_block(a->hd_v, at);
    amx_scores(a, s, k, &ahead->k, i, n);
    for (int j = 0; j < n; j++) {
        struct attn_span seen = attn_seen(a, i + j, at);
        if (seen.lo < seen.hi) {
            attn_weigh(a, &s->vnni, k, v, i + j, seen);
        } else {
            memset(s->vnni.w[i + j], 0, sizeof s->vnni.w[i + j]);
            attn_skip(&s->vnni.sums, i + j);
        }
    }
    amx_values(a, s, v, &ahead->v, i, n);
}

static bool amx_any(const struct pf_attn_i16_args *a, int at, int i, int n)
{
    for (int j = 0; j < n; j++) {
        struct attn_span seen = attn_seen(a, i + j, at);
        if (seen.lo < seen.hi)
            return true;
    }
    return false;
}

static void attn_i16_amx(const struct pf_attn_i16_args *a)
{
    struct attn_amx *s = a->scratch;
    if (a->hd_k % AMX_BYTES || a->n_q < AMX_QUERIES) {
        attn_i16_vnni(a);
        return;
    }
    int configured = 0;
    for (int i = 0; i < a->n_q; i++)
        attn_begin(a, &s->vnni.sums, i);
    for (int at = 0; at < PF_I16_CHUNK; at += PF_I16_BLOCK) {
        struct attn_ahead ahead = attn_ahead(a, at);
        for (int i = 0; i < a->n_q; i += AMX_ROWS) {
            int n = a->n_q - i < AMX_ROWS ? a->n_q - i : AMX_ROWS;
            if (!amx_any(a, at, i, n))
                continue;
            if (n != configured)
                amx_configure(n);
            configured = n;
            amx_block(a, s, at, &ahead, i, n);
            ahead = (struct attn_ahead){ 0 };
        }
    }
    _tile_release();
    for (int i = 0; i < a->n_q; i++)
        attn_end(a, &s->vnni.sums, i);
}

#endif
