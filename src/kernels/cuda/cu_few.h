/* Products of quantised weights with a few rows of activations on the tensor cores, in the order of docs/numerics.md:
 * a weight is read and unpacked once for up to sixteen rows.
 *
 *     a tile     eight weight rows; a team of warps has it, each every so many-th of its segments (256 elements)
 *     mma        isum of 16 columns, which are rows of activations, and the 8 weight rows for one block of 32. Lane l,
 *                with g = l / 4 and t = l % 4, has of columns g and g + 8 and of weight row g the elements
 *                4 t .. 4 t + 3 and 16 + 4 t .. 16 + 4 t + 3, and the sums of weight rows 2 t and 2 t + 1
 *     sums       of segments go to shared memory; at last a thread of the team an output adds them up, left to right
 *
 * A warp has a ring of slots, to which the bytes of its next tasks, segments of tiles, are copied while it computes. */
#ifndef PF_CU_FEW_H
#define PF_CU_FEW_H

#include <cuda_pipeline.h>

#include "kernels/cuda/cu_dot_types.h"
#include "kernels/cuda/cu_few_api.h"

enum { TILE_ROWS = 8, SEGMENT = 8, MOST_WARPS = 15 };        /* a barrier for each team, and one for all */

/* ---- Types ------------------------------------------------------------------------------------------------------- */

/* BYTES: a segment of a row. SKIP: how far a row may begin past a multiple of 16. WHOLE: a row is whole segments.
 * scale: what block k's sum is multiplied by and, with `minimums`, the negative of the minimum; with `halves` the two
 * integer scales of 16 bits. codes: two words of a lane, which go with its two words of activations; MIXED: codes of
 * the block's halves alternate in them. MINUS: how much each code is too large. */
struct few_type {
    static constexpr bool WHOLE = false, minimums = false, halves = false, MIXED = false;
    enum { MINUS = 0, SKIP = 15 };
};

CU_INLINE uint32_t word_at(const uint8_t *p, int bits = 0)
{
    uint32_t w[1];
    load_words(p, w, bits);
    return w[0];
}

template <bool FIVE>
struct few_k45 : few_type {
    static constexpr bool WHOLE = true, minimums = true;
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
    static constexpr bool WHOLE = true, halves = true;
    enum { BYTES = 210 };

    static CU_READ_FN float2 scale(const uint8_t *row, int k)
    {
        const int8_t *sc = (const int8_t *)row + 192 + 2 * k;
        uint32_t both = (uint32_t)(sc[0] & 0xffff) | (uint32_t)sc[1] << 16;
        return make_float2(half_value(*(const uint16_t *)(row + 208)), pf_bits_float(both));
    }

    static CU_READ_FN void codes(const uint8_t *row, int k, int t, uint32_t (&w)[2])
    {
        const uint8_t *low = row + 64 * (k / 4) + 32 * (k % 2) + 4 * t, *high = row + 128 + 32 * (k / 4) + 4 * t;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t four = word_at(low + 16 * i, k % 4 / 2 * 4), two = word_at(high + 16 * i, 2 * (k % 4));
            w[i] = minus4((four & 0x0f0f0f0f) | (two & 0x03030303) << 4, 0x20202020);
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

/* How a block's warps and memory are dealt out. */
struct few_shape {
    int n_teams, team_warps, n_slots;
};

/* A block's memory. side: of a column and a block of 32, its scale, and what goes with the sum of its codes. */
struct few_room {
    uint8_t *x;                   /* [COLUMNS][n + 16] */
    float2  *side;                /* [n / 32][COLUMNS] */
    float   *sums;                /* this team's: [segments][COLUMNS][TILE_ROWS] */
    float2  *scales;              /* this warp's: [SEGMENT][TILE_ROWS] */
    uint8_t *slots;               /* this warp's: [n_slots][TILE_ROWS][stride] */
};

template <class T, bool WIDE>
CU_HOST_FN size_t few_bytes(int n, struct few_shape s)
{
    size_t of_column = (size_t)n + 16 + n / 32 * sizeof(float2) +
                       (size_t)s.n_teams * n_segments(n) * TILE_ROWS * sizeof(float);
    size_t of_warp = TILE_ROWS * (SEGMENT * sizeof(float2) + (size_t)s.n_slots * few_stride<T>());
    return few_columns_of<WIDE>() * of_column + s.n_teams * s.team_warps * of_warp;
}

template <class T, bool WIDE>
CU_INLINE struct few_room few_room_at(void *memory, int n, struct few_shape s)
{
    constexpr int COLUMNS = few_columns_of<WIDE>();
    int warp = threadIdx.x / WARP, team = warp / s.team_warps, of_team = n_segments(n) * COLUMNS * TILE_ROWS;
    struct few_room m;
    m.x = (uint8_t *)memory;
    m.side = (float2 *)(m.x + COLUMNS * (n + 16));
    m.sums = (float *)(m.side + n / 32 * COLUMNS);
    float2 *scales = (float2 *)(m.sums + s.n_teams * of_team);
    m.sums += team * of_team;
    m.scales = scales + warp * SEGMENT * TILE_ROWS;
    m.slots = (uint8_t *)(scales + s.n_teams * s.team_warps * SEGMENT * TILE_ROWS) +
              warp * s.n_slots * TILE_ROWS * few_stride<T>();
    return m;
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
        int c = i / n_blocks, b = i - c * n_blocks, sum = sum_of_block(x, i);
        float other = T::minimums ? x.d[i] * (float)sum : pf_bits_float((uint32_t)(-T::MINUS * sum));
        m.side[b * few_columns_of<WIDE>() + c] = make_float2(x.d[i], other);
    }
}

/* ---- A task ------------------------------------------------------------------------------------------------------ */

/* The rows of a tile: the first one in device memory, and the number of the last one that is there; rows past it are
 * read as it. */
struct few_rows {
    const uint8_t *base;
    int            last;
};

/* A lane's row of a task: where its segment begins, and how far that is past a multiple of 16. */
struct few_row {
    const uint8_t *from;
    int            skip, n_blocks;
};

template <class T>
CU_INLINE struct few_row few_row_of(const struct few_rows &w, uint32_t row_bytes, int n, int segment)
{
    const uint8_t *from = w.base + (size_t)min((int)(threadIdx.x % WARP / 4), w.last) * row_bytes + segment * T::BYTES;
    return { from, (int)((uintptr_t)from & 15), min(n / 32 - segment * SEGMENT, (int)SEGMENT) };
}

/* Starts copying the task's rows to a slot: four lanes a row. */
template <class T>
CU_INLINE void few_stage(const struct few_row &r, uint8_t *slot)
{
    constexpr int PIECES = (T::BYTES + T::SKIP + 15) / 16;
    int lane = threadIdx.x % WARP, bytes = T::WHOLE ? (int)T::BYTES : (int)T::BYTES / SEGMENT * r.n_blocks,
        left = r.skip + bytes - lane % 4 * 16;
    const uint8_t *from = r.from - r.skip + lane % 4 * 16;
    uint8_t *to = slot + lane / 4 * few_stride<T>() + lane % 4 * 16;
#pragma unroll
    for (int j = 0; j < (PIECES + 3) / 4; j++)
        if (64 * j < left)
            __pipeline_memcpy_async(to + 64 * j, from + 64 * j, 16);
}

/* The scales of the task's blocks, each by one lane; row: the lane's, in a slot. */
template <class T>
CU_INLINE void few_scales(const uint8_t *row, int n_blocks, float2 *scales)
{
    int g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int k = t; k < SEGMENT; k += 4)
        if (T::WHOLE || k < n_blocks)
            scales[k * TILE_ROWS + g] = T::scale(row, k);
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

/* What a lane multiplies of a task: its row in a slot, its columns' codes, and what goes with them. */
struct few_lane {
    const uint8_t *row, *x[2];
    const float2  *scales, *side[2];
};

/* Block k of the segment, for two weight rows and one or two columns. */
template <class T, bool WIDE>
CU_INLINE void few_block(const struct few_lane &l, int k, float (&s)[4])
{
    constexpr int COLUMNS = few_columns_of<WIDE>();
    uint32_t a[4] = {}, b[2];
    int lower[4] = {}, upper[4] = {};
    float4 w = *(const float4 *)&l.scales[k * TILE_ROWS];
    float2 side[2] = {};
    T::codes(l.row, k, threadIdx.x % 4, b);
#pragma unroll
    for (int i = 0; i < (WIDE ? 2 : 1); i++) {
        const uint32_t *x = (const uint32_t *)(l.x[i] + 32 * k);
        a[i] = x[0], a[2 + i] = x[4];
        side[i] = l.side[i][k * COLUMNS];
        if (T::MIXED) {
            uint32_t first = permute(a[i], a[2 + i], 0x5140);
            a[2 + i] = permute(a[i], a[2 + i], 0x7362);
            a[i] = first;
        }
    }
    if (T::halves) {
        mma16(lower, a, b[0]);
        mma16(upper, a + 2, b[1]);
    } else if (T::MINUS) {
        lower[0] = lower[1] = (int)pf_float_bits(side[0].y);
        lower[2] = lower[3] = (int)pf_float_bits(side[1].y);
        mma32_add<true>(lower, a, b[0], b[1]);
    } else {
        mma32(lower, a, b[0], b[1]);
    }
#pragma unroll
    for (int i = 0; i < (WIDE ? 4 : 2); i++)
        s[i] = few_step<T>(i % 2 ? make_float2(w.z, w.w) : make_float2(w.x, w.y), side[i / 2], lower[i], upper[i],
                           s[i]);
}

/* The sums of a segment, whose rows have arrived in a slot, go to the team's. */
template <class T, bool WIDE>
CU_INLINE void few_segment(const struct few_room &m, const struct few_row &r, int n, int segment, const uint8_t *slot)
{
    constexpr int COLUMNS = few_columns_of<WIDE>();
    int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const uint8_t *x = m.x + g * (n + 16) + segment * 256 + 4 * t;
    const float2 *side = m.side + segment * SEGMENT * COLUMNS + g;
    const struct few_lane l = { slot + g * few_stride<T>() + r.skip, { x, x + 8 * (n + 16) }, m.scales + 2 * t,
                                { side, side + 8 } };
    float s[4] = {};
    few_scales<T>(l.row, r.n_blocks, m.scales);
    if (T::WHOLE || r.n_blocks == SEGMENT) {
#pragma unroll
        for (int k = 0; k < SEGMENT; k++)
            few_block<T, WIDE>(l, k, s);
    } else {
#pragma unroll 1
        for (int k = 0; k < r.n_blocks; k++)
            few_block<T, WIDE>(l, k, s);
    }
    float *to = m.sums + (segment * COLUMNS + g) * TILE_ROWS + 2 * t;
#pragma unroll
    for (int i = 0; i < (WIDE ? 2 : 1); i++)
        *(float2 *)(to + 8 * i * TILE_ROWS) = make_float2(s[2 * i], s[2 * i + 1]);
}

/* A warp's way through its tasks, segments of a tile first. */
struct few_way {
    int tile, segment;
};

CU_INLINE struct few_way few_next(struct few_way w, struct few_shape s, int segments)
{
    w.segment += s.team_warps;
    if (w.segment >= segments) {
        w.segment = threadIdx.x / WARP % s.team_warps;
        w.tile += gridDim.x * s.n_teams;
    }
    return w;
}

/* Output `at` of a tile, [column][row]. */
template <bool WIDE>
CU_INLINE float few_total(const struct few_room &m, int segments, int at)
{
    float total = 0;
#pragma unroll 4
    for (int i = 0; i < segments; i++)
        total = total + m.sums[i * few_columns_of<WIDE>() * TILE_ROWS + at];
    return total;
}

#endif
