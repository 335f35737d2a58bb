/* Products of quantised weights with a few rows of activations on the tensor cores, in the order of docs/numerics.md:
 * a weight is read and unpacked once for up to eight rows.
 *
 *     a task     16 weight rows, one segment of them (256 elements), by a warp
 *     mma        isum of 16 x 8 for one block of 32. Lane l, with g = l / 4 and t = l % 4, has of the weight rows g and
 *                g + 8 the elements 4 t .. 4 t + 3 and 16 + 4 t .. 16 + 4 t + 3, and the sums of columns 2 t and
 *                2 t + 1; a column is a row of activations. Where there are four columns at most, only the even ones
 *                stand for one: half of the float steps
 *     sums       of segments go to shared memory; at last a thread an output adds them up, left to right
 *
 * A warp copies the bytes of its next task while it computes with those of the present one. */
#ifndef PF_CU_FEW_H
#define PF_CU_FEW_H

#include <cuda_pipeline.h>

#include "kernels/cuda/cu_dot_types.h"
#include "kernels/cuda/cu_few_api.h"

enum { FEW_COLUMNS = 8, FEW_NARROW = 4, TASK_ROWS = 16, SEGMENT = 8, MOST_WARPS = 8 };

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

/* A block's memory. COLUMNS: 8, or 4 where columns are no more. side: of a column and a block of 32, its scale, and
 * what goes with the sum of its codes. */
struct few_room {
    uint8_t *x;                   /* [COLUMNS][n + 16] */
    float2  *side;                /* [n / 32][COLUMNS] */
    float   *sums;                /* [rows of the block][segments][COLUMNS] */
    float2  *scales;              /* this warp's: [SEGMENT][TASK_ROWS] */
    uint8_t *slots;               /* this warp's: [n_slots][TASK_ROWS][stride] */
};

template <bool WIDE>
CU_HOST_FN constexpr int few_columns_of(void)
{
    return WIDE ? (int)FEW_COLUMNS : (int)FEW_NARROW;
}

CU_HOST_FN int n_segments(int n)
{
    return (n + 255) / 256;
}

template <class T, bool WIDE>
CU_HOST_FN size_t few_bytes(int n, int n_rows, int n_warps, int n_slots)
{
    size_t columns = (size_t)n + 16 + n / 32 * sizeof(float2) + (size_t)n_rows * n_segments(n) * sizeof(float);
    size_t of_warp = SEGMENT * TASK_ROWS * sizeof(float2) + (size_t)n_slots * TASK_ROWS * few_stride<T>();
    return few_columns_of<WIDE>() * columns + n_warps * of_warp;
}

template <class T, bool WIDE>
CU_INLINE struct few_room few_room_at(void *memory, int n, int n_rows, int n_slots)
{
    constexpr int COLUMNS = few_columns_of<WIDE>();
    int warp = threadIdx.x / WARP, n_warps = blockDim.x / WARP;
    struct few_room m;
    m.x = (uint8_t *)memory;
    m.side = (float2 *)(m.x + COLUMNS * (n + 16));
    m.sums = (float *)(m.side + n / 32 * COLUMNS);
    float2 *scales = (float2 *)(m.sums + n_rows * n_segments(n) * COLUMNS);
    m.scales = scales + warp * SEGMENT * TASK_ROWS;
    m.slots = (uint8_t *)(scales + n_warps * SEGMENT * TASK_ROWS) + warp * n_slots * TASK_ROWS * few_stride<T>();
    return m;
}

/* Starts copying the columns' codes, and writes their sides: a warp a column. */
template <class T, bool WIDE>
CU_INLINE void few_columns(const struct few_room &m, const struct x_row &x, int n, int n_columns)
{
    int lane = threadIdx.x % WARP, n_blocks = n / 32;
#pragma unroll 1
    for (int c = threadIdx.x / WARP; c < n_columns; c += blockDim.x / WARP) {
        const int8_t *q = x.q + c * n;
        const float *d = x.d + c * n_blocks;
        const int *s = (const int *)x.s + c * n_blocks;
#pragma unroll 4
        for (int i = lane; i < n / 16; i += WARP)
            __pipeline_memcpy_async(m.x + c * (n + 16) + 16 * i, q + 16 * i, 16);
#pragma unroll 2
        for (int b = lane; b < n_blocks; b += WARP) {
            int sum = (int)(int16_t)s[b] + (s[b] >> 16);
            float other = T::minimums ? d[b] * (float)sum : pf_bits_float((uint32_t)(-T::MINUS * sum));
            m.side[b * few_columns_of<WIDE>() + c] = make_float2(d[b], other);
        }
    }
}

/* ---- A task ------------------------------------------------------------------------------------------------------ */

/* Weight rows of a task: the first one's segment, and the number of the last row that is there; rows past it are read
 * as it. n_blocks: of the segment. */
struct few_rows {
    const uint8_t *base;
    uint32_t       row_bytes;
    int            last, n_blocks;
};

/* A lane's two rows of a task: where they begin in device memory, and how far that is past a multiple of 16. */
struct few_pair {
    const uint8_t *from[2];
    int            skip[2], n_blocks;
};

CU_INLINE struct few_pair few_pair_of(const struct few_rows &w)
{
    struct few_pair p;
    p.n_blocks = w.n_blocks;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        p.from[i] = w.base + (size_t)min((int)(threadIdx.x % WARP / 4) + 8 * i, w.last) * w.row_bytes;
        p.skip[i] = (int)((uintptr_t)p.from[i] & 15);
    }
    return p;
}

/* Starts copying the task's rows to a slot: four lanes a row. */
template <class T>
CU_INLINE void few_stage(const struct few_pair &p, uint8_t *slot)
{
    constexpr int PIECES = (T::BYTES + T::SKIP + 15) / 16;
    int lane = threadIdx.x % WARP, bytes = T::WHOLE ? (int)T::BYTES : (int)T::BYTES / SEGMENT * p.n_blocks;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint8_t *from = p.from[i] - p.skip[i] + lane % 4 * 16;
        uint8_t *to = slot + (lane / 4 + 8 * i) * few_stride<T>() + lane % 4 * 16;
        int left = p.skip[i] + bytes - lane % 4 * 16;
#pragma unroll
        for (int j = 0; j < (PIECES + 3) / 4; j++)
            if (64 * j < left)
                __pipeline_memcpy_async(to + 64 * j, from + 64 * j, 16);
    }
}

/* A lane's rows in a slot. */
template <class T>
CU_INLINE const uint8_t *few_staged(const struct few_pair &p, int i, const uint8_t *slot)
{
    return slot + (threadIdx.x % WARP / 4 + 8 * i) * few_stride<T>() + p.skip[i];
}

/* The scales of a slot's blocks, each by one lane. */
template <class T>
CU_INLINE void few_scales(const uint8_t *const (&rows)[2], int n_blocks, float2 *scales)
{
    int g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int k = t; k < SEGMENT; k += 4)
            if (T::WHOLE || k < n_blocks)
                scales[k * TASK_ROWS + g + 8 * i] = T::scale(rows[i], k);
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

/* Block k of the segment, for two weight rows and one or two columns; x: the lane's codes of the block. */
template <class T, bool WIDE>
CU_INLINE void few_block(const uint8_t *const (&rows)[2], int k, const uint8_t *x, const float2 (&w)[2],
                         const float2 (&side)[2], float (&s)[4])
{
    uint32_t low[2], high[2], b[2] = { *(const uint32_t *)x, *(const uint32_t *)(x + 16) };
    int lower[4] = {}, upper[4] = {};
    T::codes(rows[0], k, threadIdx.x % 4, low);
    T::codes(rows[1], k, threadIdx.x % 4, high);
    uint32_t a[4] = { low[0], high[0], low[1], high[1] };
    if (T::MIXED) {
        uint32_t first = permute(b[0], b[1], 0x5140);
        b[1] = permute(b[0], b[1], 0x7362);
        b[0] = first;
    }
    if (T::halves) {
        mma16(lower, a, b[0]);
        mma16(upper, a + 2, b[1]);
    } else if (T::MINUS) {
        lower[0] = lower[2] = (int)pf_float_bits(side[0].y);
        lower[1] = lower[3] = (int)pf_float_bits(side[1].y);
        mma32_add<true>(lower, a, b[0], b[1]);
    } else {
        mma32(lower, a, b[0], b[1]);
    }
#pragma unroll
    for (int i = 0; i < 4; i += WIDE ? 1 : 2)
        s[i] = few_step<T>(w[i / 2], side[i % 2], lower[i], upper[i], s[i]);
}

/* Block k of the segment: scales, sides and codes from shared memory. */
template <class T, bool WIDE>
CU_INLINE void few_block_at(const uint8_t *const (&rows)[2], int k, const uint8_t *x, const float2 *scales,
                            const float2 *side, float (&s)[4])
{
    constexpr int COLUMNS = few_columns_of<WIDE>();
    float2 of_w[2] = { scales[k * TASK_ROWS], scales[k * TASK_ROWS + 8] },
           of_x[2] = { side[k * COLUMNS], make_float2(0, 0) };
    if (WIDE) {
        float4 both = *(const float4 *)&side[k * COLUMNS];
        of_x[0] = make_float2(both.x, both.y);
        of_x[1] = make_float2(both.z, both.w);
    }
    few_block<T, WIDE>(rows, k, x + 32 * k, of_w, of_x, s);
}

/* The segment's sums go to `sums`, those of the task's first row; the next row's are `next_row` floats on. */
template <class T, bool WIDE>
CU_INLINE void few_segment(const struct few_room &m, const struct few_pair &p, int n, int segment,
                           const uint8_t *slot, float *sums, int next_row)
{
    int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4, column = WIDE ? g : g / 2;
    const uint8_t *const rows[2] = { few_staged<T>(p, 0, slot), few_staged<T>(p, 1, slot) },
                  *x = m.x + column * (n + 16) + segment * 256 + 4 * t;
    const float2 *side = m.side + segment * SEGMENT * few_columns_of<WIDE>() + (WIDE ? 2 * t : t);
    float s[4] = {};
    few_scales<T>(rows, p.n_blocks, m.scales);
    if (T::WHOLE || p.n_blocks == SEGMENT) {
#pragma unroll
        for (int k = 0; k < SEGMENT; k++)
            few_block_at<T, WIDE>(rows, k, x, m.scales + g, side, s);
    } else {
#pragma unroll 1
        for (int k = 0; k < p.n_blocks; k++)
            few_block_at<T, WIDE>(rows, k, x, m.scales + g, side, s);
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float *to = sums + (g + 8 * i) * next_row;
        if (WIDE)
            *(float2 *)(to + 2 * t) = make_float2(s[2 * i], s[2 * i + 1]);
        else
            to[t] = s[2 * i];
    }
}

/* A warp's way through the tasks of its block, segments of a tile first. */
struct few_way {
    int tile, segment;
};

CU_INLINE struct few_way few_begin(int segments)
{
    int task = threadIdx.x / WARP;
    return { task / segments, task % segments };
}

CU_INLINE struct few_way few_next(struct few_way w, int segments)
{
    w.segment += blockDim.x / WARP;
    while (w.segment >= segments) {
        w.segment -= segments;
        w.tile++;
    }
    return w;
}

/* All tasks of a block; place(tile, segment) says which rows they have. now: the first one's, whose bytes have arrived
 * in the first slot. */
template <class T, bool WIDE, class F>
CU_INLINE void few_tasks(const struct few_room &m, int n, int n_tiles, int n_slots, struct few_pair now, F place)
{
    constexpr int COLUMNS = few_columns_of<WIDE>();
    int segments = n_segments(n), next_row = segments * COLUMNS, slot_bytes = TASK_ROWS * few_stride<T>(), used = 0;
#pragma unroll 1
    for (struct few_way at = few_begin(segments); at.tile < n_tiles;) {
        struct few_way later = few_next(at, segments);
        bool more = later.tile < n_tiles;
        struct few_pair next = more ? few_pair_of(place(later.tile, later.segment)) : now;
        int other = n_slots > 1 ? used ^ 1 : 0;
        if (more && n_slots > 1)
            few_stage<T>(next, m.slots + other * slot_bytes);
        few_segment<T, WIDE>(m, now, n, at.segment, m.slots + used * slot_bytes,
                             m.sums + at.tile * TASK_ROWS * next_row + at.segment * COLUMNS, next_row);
        __syncwarp();
        if (more && n_slots == 1)
            few_stage<T>(next, m.slots);
        __pipeline_commit();
        __pipeline_wait_prior(0);
        __syncwarp();
        now = next;
        used = other;
        at = later;
    }
    __syncthreads();
}

/* The product of a row of the block with a column. */
template <bool WIDE>
CU_INLINE float few_total(const struct few_room &m, int n, int row, int column)
{
    constexpr int COLUMNS = few_columns_of<WIDE>();
    int segments = n_segments(n);
    const float *sums = m.sums + row * segments * COLUMNS + column;
    float total = 0;
#pragma unroll 4
    for (int i = 0; i < segments; i++)
        total = total + sums[i * COLUMNS];
    return total;
}

#endif
