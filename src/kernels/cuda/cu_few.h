/* Products of quantised weights with a few rows of activations on the tensor cores, in the order of docs/numerics.md:
 * a weight is read and unpacked once for up to sixteen rows.
 *
 *     a tile     sixteen weight rows; a team of warps has it, each every so many-th of its segments (256 elements)
 *     mma        isum of the 16 weight rows and 8 columns, which are rows of activations, for one block of 32. Lane l,
 *                with g = l / 4 and t = l % 4, has of weight rows g and g + 8 and of column g the elements
 *                4 t .. 4 t + 3 and 16 + 4 t .. 16 + 4 t + 3, and the sums of columns 2 t and 2 t + 1
 *     sums       of a round, a segment of each warp, go to shared memory, where a thread an output adds them up, left
 *                to right. A warp that has whole tiles adds them in its registers
 *
 * A warp has a ring of slots, to which the bytes of its next tasks, segments of tiles, are copied while it computes. */
#ifndef PF_CU_FEW_H
#define PF_CU_FEW_H

#include <cuda_pipeline.h>

#include "kernels/cuda/cu_dot_types.h"
#include "kernels/cuda/cu_few_api.h"

enum { TILE_ROWS = 16, SEGMENT = 8, MOST_WARPS = 15 };       /* a barrier for each team, and one for all */

/* ---- Types ------------------------------------------------------------------------------------------------------- */

/* BYTES: a segment of a row. SKIP: how far a row may begin past a multiple of 16. WHOLE: a row is whole segments.
 * scale: what block k's sum is multiplied by and, with `minimums`, the negative of the minimum; with `halves` the two
 * integer scales of 16 bits. codes: two words of a lane, which go with its two words of activations; MIXED: codes of
 * the block's halves alternate in them. MINUS: how much each code is too large. PACKED: scales take some unpacking,
 * which is done once for all lanes of a row.
 *
 * A column's side of a block of 32 is its scale, and what goes with the sum of its codes: their product where there are
 * minimums, else -MINUS times the sum, or, with `halves`, the sums of both as they are. */
struct few_type {
    static constexpr bool WHOLE = false, minimums = false, halves = false, MIXED = false, PACKED = false;
    enum { MINUS = 0, SKIP = 15 };
};

CU_INLINE uint32_t word_at(const uint8_t *p)
{
    uint32_t w[1];
    load_words(p, w);
    return w[0];
}

template <bool FIVE>
struct few_k45 : few_type {
    static constexpr bool WHOLE = true, minimums = true, PACKED = true;
    enum { BYTES = FIVE ? 176 : 144, SKIP = 0 };

    static CU_READ_FN float2 scale(const uint8_t *row, int k)
    {
        const uint32_t *head = (const uint32_t *)row;
        struct scale_min sm = scale_min_words(head[1], head[2], head[3], k);
        float d = half_value((uint16_t)head[0]), dmin = half_value((uint16_t)(head[0] >> 16));
        return make_float2(d * (float)sm.sc, -(dmin * (float)sm.mn));
    }

    static CU_READ_FN void codes(const uint8_t *row, int k, int t, uint32_t (&w)[2])
    {
        const uint32_t *q = (const uint32_t *)(row + (FIVE ? 48 : 16) + 32 * (k / 2)) + t,
                       *fifth = (const uint32_t *)(row + 16) + t;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            w[i] = q[4 * i] >> 4 * (k % 2) & 0x0f0f0f0f;
            if (FIVE)
                w[i] |= (fifth[4 * i] >> k & 0x01010101) << 4;
        }
    }
};

struct few_k6 : few_type {
    static constexpr bool WHOLE = true, halves = true, PACKED = true;
    enum { BYTES = 210, MINUS = 32 };

    static CU_READ_FN float2 scale(const uint8_t *row, int k)
    {
        const int8_t *sc = (const int8_t *)row + 192 + 2 * k;
        uint32_t both = (uint32_t)(sc[0] & 0xffff) | (uint32_t)sc[1] << 16;
        return make_float2(half_value(*(const uint16_t *)(row + 208)), pf_bits_float(both));
    }

    static CU_READ_FN void codes(const uint8_t *row, int k, int t, uint32_t (&w)[2])
    {
        const uint8_t *low = row + 64 * (k / 4) + 32 * (k % 2) + 4 * t, *high = row + 128 + 32 * (k / 4) + 4 * t;
        int p = k % 4;                       /* words are loaded once for all blocks that share them */
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t four = word_at(low + 16 * i), two = word_at(high + 16 * i);
            two = p < 2 ? two << (4 - 2 * p) : two >> (2 * p - 4);
            w[i] = (four >> p / 2 * 4 & 0x0f0f0f0f) | (two & 0x30303030);
        }
    }
};

struct few_q8 : few_type {
    enum { BYTES = 8 * 34 };

    static CU_READ_FN float2 scale(const uint8_t *row, int k)
    {
        return make_float2(half_value(*(const uint16_t *)(row + 34 * k)), 0);
    }

    static CU_READ_FN void codes(const uint8_t *row, int k, int t, uint32_t (&w)[2])
    {
        w[0] = word_at(row + 34 * k + 2 + 4 * t);
        w[1] = word_at(row + 34 * k + 18 + 4 * t);
    }
};

struct few_q4 : few_type {
    enum { BYTES = 8 * 18, MINUS = 8 };

    static CU_READ_FN float2 scale(const uint8_t *row, int k)
    {
        return make_float2(half_value(*(const uint16_t *)(row + 18 * k)), 0);
    }

    static CU_READ_FN void codes(const uint8_t *row, int k, int t, uint32_t (&w)[2])
    {
        uint32_t both = word_at(row + 18 * k + 2 + 4 * t);
        w[0] = both & 0x0f0f0f0f;
        w[1] = both >> 4 & 0x0f0f0f0f;
    }
};

struct few_mx4 : few_type {
    static constexpr bool MIXED = true;
    enum { BYTES = 8 * 17, MINUS = 12 };

    static CU_READ_FN float2 scale(const uint8_t *row, int k)
    {
        return make_float2(mx_scale(row[17 * k]), 0);
    }

    static CU_READ_FN void codes(const uint8_t *row, int k, int t, uint32_t (&w)[2])
    {
        uint32_t c = word_at(row + 17 * k + 1 + 4 * t), v = c ^ 0x88888888;
        w[0] = e2m1_plus_12(c, v);
        w[1] = e2m1_plus_12(c >> 16, v >> 16);
    }
};

#define CU_FEW_LIST(X) \
    X(Q4_K, few_k45<false>) X(Q5_K, few_k45<true>) X(Q6_K, few_k6) X(Q8_0, few_q8) X(Q4_0, few_q4) X(MXFP4, few_mx4)

/* ---- Shared memory ----------------------------------------------------------------------------------------------- */

/* Bytes from one row of a task to the next, beginning wherever the row does: rows lie in different banks. */
template <class T>
CU_HOST_FN constexpr int few_stride(void)
{
    return (T::BYTES + T::SKIP + 15) / 32 * 32 + 16;
}

/* Columns that a block has room for: 16, or 8 where they are no more. */
template <bool WIDE>
CU_HOST_FN constexpr int few_columns_of(void)
{
    return WIDE ? 16 : 8;
}

CU_HOST_FN int n_segments(int n)
{
    return (n + 255) / 256;
}

/* How a block's warps and memory are dealt out. alone: a warp has whole tiles, so many next to each other; 0: teams. */
struct few_shape {
    int n_teams, team_warps, n_slots, alone;
};

/* A block's memory. */
struct few_room {
    uint8_t *x;                   /* [COLUMNS][n + 16] */
    float2  *side;                /* [n / 32][COLUMNS] */
    float   *sums;                /* this team's: [2][team_warps][TILE_ROWS][COLUMNS + 1], by turns of rounds; of a warp
                                     alone its outputs, [COLUMNS][WARP] */
    float   *totals;              /* this team's: [COLUMNS][TILE_ROWS] */
    float2  *scales;              /* this warp's: [SEGMENT][TILE_ROWS], if they are packed in T's rows */
    uint8_t *slots;               /* this warp's: [n_slots][TILE_ROWS][stride] */
};

template <bool WIDE>
CU_HOST_FN constexpr int few_round(void)
{
    return TILE_ROWS * (few_columns_of<WIDE>() + 1);
}

template <class T>
CU_HOST_FN constexpr int few_scale_count(void)
{
    return T::PACKED ? SEGMENT * TILE_ROWS : 0;
}

template <class T, bool WIDE>
CU_HOST_FN size_t few_bytes(int n, struct few_shape s)
{
    size_t of_column = (size_t)n + 16 + n / 32 * sizeof(float2) + s.n_teams * TILE_ROWS * sizeof(float),
           of_warp = 2 * few_round<WIDE>() * sizeof(float) + few_scale_count<T>() * sizeof(float2) +
                     (size_t)s.n_slots * TILE_ROWS * few_stride<T>();
    return few_columns_of<WIDE>() * of_column + s.n_teams * s.team_warps * of_warp;
}

template <class T, bool WIDE>
CU_INLINE struct few_room few_room_at(void *memory, int n, struct few_shape s)
{
    constexpr int COLUMNS = few_columns_of<WIDE>(), ROUND = few_round<WIDE>();
    int warp = threadIdx.x / WARP, team = warp / s.team_warps, n_warps = s.n_teams * s.team_warps;
    struct few_room m;
    m.x = (uint8_t *)memory;
    m.side = (float2 *)(m.x + COLUMNS * (n + 16));
    m.sums = (float *)(m.side + n / 32 * COLUMNS);
    m.totals = m.sums + n_warps * 2 * ROUND;
    float2 *scales = (float2 *)(m.totals + s.n_teams * COLUMNS * TILE_ROWS);
    m.sums += team * s.team_warps * 2 * ROUND;
    m.totals += team * COLUMNS * TILE_ROWS;
    m.scales = scales + warp * few_scale_count<T>();
    m.slots = (uint8_t *)(scales + n_warps * few_scale_count<T>()) + warp * s.n_slots * TILE_ROWS * few_stride<T>();
    return m;
}

/* What goes with the sum of a block's codes. */
template <class T>
CU_INLINE float few_more(float d, int two)
{
    int sum = (int)(int16_t)two + (two >> 16);
    if (T::halves)
        return pf_bits_float((uint32_t)two);
    return T::minimums ? d * (float)sum : pf_bits_float((uint32_t)(-T::MINUS * sum));
}

/* The columns' codes and their sides, by all threads. */
template <class T, bool WIDE>
CU_INLINE void few_columns(const struct few_room &m, const struct x_row &x, int n, int n_columns)
{
    enum { AT_ONCE = 4 };
    int n_blocks = n / 32, n_pieces = n_columns * (n / 16);
#pragma unroll 1
    for (int i = threadIdx.x; i < n_pieces; i += AT_ONCE * blockDim.x) {
        uint4 v[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++)
            v[k] = fresh16(x.q + 16 * (size_t)min(i + k * (int)blockDim.x, n_pieces - 1));
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            int at = i + k * blockDim.x;
            if (at < n_pieces)
                *(uint4 *)(m.x + 16 * (at + at / (n / 16))) = v[k];
        }
    }
#pragma unroll 2
    for (int i = threadIdx.x; i < n_columns * n_blocks; i += blockDim.x) {
        int c = i / n_blocks, b = i - c * n_blocks;
        m.side[b * few_columns_of<WIDE>() + c] = make_float2(x.d[i], few_more<T>(x.d[i], ((const int *)x.s)[i]));
    }
}

/* ---- A task ------------------------------------------------------------------------------------------------------ */

/* The rows of a tile: the first one in device memory, and how many there are. */
struct few_rows {
    const uint8_t *base;
    int            n;
};

/* A lane's two rows of a task: where their segment begins, and how far that is past a multiple of 16. What is not there
 * is not copied; what comes of it, nobody wants. */
struct few_row {
    const uint8_t *from[2];
    int            skip[2], n_blocks, n;
};

template <class T>
CU_INLINE struct few_row few_row_of(const struct few_rows &w, uint32_t row_bytes, int n, int segment)
{
    struct few_row r;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        r.from[h] = w.base + (size_t)(threadIdx.x % WARP / 4 + 8 * h) * row_bytes + segment * T::BYTES;
        r.skip[h] = (int)((uintptr_t)r.from[h] & 15);
    }
    r.n_blocks = min(n / 32 - segment * SEGMENT, (int)SEGMENT);
    r.n = w.n;
    return r;
}

/* Starts copying the task's rows to a slot: four lanes a row. */
template <class T>
CU_INLINE void few_stage(const struct few_row &r, uint8_t *slot)
{
    constexpr int PIECES = (T::BYTES + T::SKIP + 15) / 16;
    int lane = threadIdx.x % WARP, bytes = T::WHOLE ? (int)T::BYTES : (int)T::BYTES / SEGMENT * r.n_blocks;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int left = r.skip[h] + bytes - lane % 4 * 16;
        const uint8_t *from = r.from[h] - r.skip[h] + lane % 4 * 16;
        uint8_t *to = slot + (lane / 4 + 8 * h) * few_stride<T>() + lane % 4 * 16;
#pragma unroll
        for (int j = 0; j < (PIECES + 3) / 4; j++)
            if (64 * j < left && lane / 4 + 8 * h < r.n)
                __pipeline_memcpy_async(to + 64 * j, from + 64 * j, 16);
    }
}

/* What a lane multiplies of a task: its rows in a slot, its column's codes, and what goes with rows and columns. */
struct few_lane {
    const uint8_t *row[2], *x[2];
    const float2  *scales, *side;
};

/* The scales of a whole segment's blocks, each by one lane. */
template <class T>
CU_INLINE void few_scales(const struct few_lane &l, float2 *scales)
{
    int g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int k = t; k < SEGMENT; k += 4)
#pragma unroll
        for (int h = 0; h < 2; h++)
            scales[k * TILE_ROWS + g + 8 * h] = T::scale(l.row[h], k);
    __syncwarp();
}

template <class T>
CU_INLINE float few_step(float2 w, float2 side, int lower, int upper, float s)
{
    int isum = lower;
    if (T::halves) {
        int sc = (int)pf_float_bits(w.y);
        isum = (int)(int16_t)sc * lower + (sc >> 16) * upper;
    }
    s = fmaf(w.x * side.x, (float)isum, s);
    return T::minimums ? fmaf(w.y, side.y, s) : s;
}

/* Products of a block's rows with eight columns: of upper halves apart if they have scales of their own. */
template <class T>
CU_INLINE void few_products(const uint32_t (&w)[2][2], uint32_t x0, uint32_t x1, const float2 (&side)[2],
                            int (&lower)[4], int (&upper)[4])
{
    const uint32_t a[4] = { w[0][0], w[1][0], w[0][1], w[1][1] };
    if constexpr (T::halves) {
#pragma unroll
        for (int c = 0; c < 4; c++) {
            int two = (int)pf_float_bits(side[c % 2].y);
            lower[c] = -T::MINUS * (int)(int16_t)two;
            upper[c] = -T::MINUS * (two >> 16);
        }
        mma16_add<true>(lower, a[0], a[1], x0);
        mma16_add<true>(upper, a[2], a[3], x1);
    } else if (T::MINUS) {
#pragma unroll
        for (int c = 0; c < 4; c++)
            lower[c] = (int)pf_float_bits(side[c % 2].y);
        mma32_add<true>(lower, a, x0, x1);
    } else {
        mma32(lower, a, x0, x1);
    }
}

/* Block k of the segment, for two weight rows and two columns, or two and two. */
template <class T, bool WIDE>
CU_INLINE void few_block(const struct few_lane &l, int k, float (&s)[WIDE ? 8 : 4])
{
    uint32_t w[2][2];
    float2 scale[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        scale[h] = T::PACKED ? l.scales[k * TILE_ROWS + 8 * h] : T::scale(l.row[h], k);
        T::codes(l.row[h], k, threadIdx.x % 4, w[h]);
    }
#pragma unroll
    for (int i = 0; i < (WIDE ? 2 : 1); i++) {
        const uint32_t *x = (const uint32_t *)(l.x[i] + 32 * k);
        const float2 *of = l.side + k * few_columns_of<WIDE>() + 8 * i, side[2] = { of[0], of[1] };
        uint32_t x0 = T::MIXED ? permute(x[0], x[4], 0x5140) : x[0], x1 = T::MIXED ? permute(x[0], x[4], 0x7362) : x[4];
        int lower[4] = {}, upper[4] = {};
        few_products<T>(w, x0, x1, side, lower, upper);
#pragma unroll
        for (int c = 0; c < 4; c++)
            s[4 * i + c] = few_step<T>(scale[c / 2], side[c % 2], lower[c], upper[c], s[4 * i + c]);
    }
}

/* The sums of a segment, whose rows have arrived in a slot: s[4 i + c] is of weight row g + 8 (c / 2) and of column
 * 8 i + 2 t + c % 2. */
template <class T, bool WIDE>
CU_INLINE void few_segment(const struct few_room &m, const struct few_row &r, int n, int segment,
                           const uint8_t *slot, float (&s)[WIDE ? 8 : 4])
{
    constexpr int COLUMNS = few_columns_of<WIDE>();
    int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const uint8_t *x = m.x + g * (n + 16) + segment * 256 + 4 * t, *row = slot + g * few_stride<T>();
    const struct few_lane l = { { row + r.skip[0], row + 8 * few_stride<T>() + r.skip[1] }, { x, x + 8 * (n + 16) },
                                   m.scales + g, m.side + segment * SEGMENT * COLUMNS + 2 * t };
    if (T::PACKED)
        few_scales<T>(l, m.scales);
    if (T::WHOLE || r.n_blocks == SEGMENT) {
#pragma unroll
        for (int k = 0; k < SEGMENT; k++)
            few_block<T, WIDE>(l, k, s);
    } else {
#pragma unroll 1
        for (int k = 0; k < r.n_blocks; k++)
            few_block<T, WIDE>(l, k, s);
    }
}

/* A segment's sums of a tile go to the place that its warp has among a team's. */
template <bool WIDE>
CU_INLINE void few_put_sums(float *to, const float (&s)[WIDE ? 8 : 4])
{
    int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int i = 0; i < (WIDE ? 8 : 4); i++)
        to[(g + i % 4 / 2 * 8) * (few_columns_of<WIDE>() + 1) + i / 4 * 8 + 2 * t + i % 2] = s[i];
}

/* A warp's way through its tasks of a block's tiles, segments of a tile first. */
struct few_way {
    int tile, segment, step, end;
};

CU_INLINE struct few_way few_begin(struct few_shape s, int n_tiles)
{
    int warp = threadIdx.x / WARP;
    if (s.alone)
        return { warp * s.alone, 0, 1, min((warp + 1) * s.alone, n_tiles) };
    return { warp / s.team_warps, warp % s.team_warps, s.n_teams, n_tiles };
}

CU_INLINE struct few_way few_next(struct few_way w, struct few_shape s, int segments)
{
    w.segment += s.team_warps;
    if (w.segment >= segments) {
        w.segment = threadIdx.x / WARP % s.team_warps;
        w.tile += w.step;
    }
    return w;
}

#endif
