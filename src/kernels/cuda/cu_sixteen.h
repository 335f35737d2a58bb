/* Sixteen weight rows times one or two rows of activations on the tensor cores: a sum's chain stays with one lane.
 *
 *     a task     sixteen weight rows and a round of up to four segments (256 elements each), by a warp
 *     mma        one block of 32 of sixteen weight rows, and eight columns: column 2 s + j is segment s of activations
 *                j. In a product with a block of segment s all other columns are zeros, so that the products of four
 *                segments' blocks add up to the isum of each segment
 *     lanes      lane 4 g + t gets those of weight rows g and g + 8 in segment t, and runs their chains
 *
 * Weight rows lie in shared memory, where bulk copies have put them. Which lane multiplies which elements of a block is
 * free, if both operands agree. */
#ifndef PF_CU_SIXTEEN_H
#define PF_CU_SIXTEEN_H

#include "kernels/cuda/cu_lanes.h"

enum { SIXTEEN = 16, ROUND_SEGMENTS = 4 };

/* The lane's words of activations where `one` is 1, zeros where it is 0. Products of whole numbers have a pipe of their
 * own, which shifts and logic leave idle. */
CU_INLINE uint2 if_one(uint2 x, uint32_t one)
{
    return make_uint2(x.x * one, x.y * one);
}

/* Sends for `bytes` of sixteen rows; row r is copied to slot + r * pitch + r / 2 * more, and lies what it is past a
 * multiple of 16 behind that. A warp calls it, and awaits the box. */
CU_INLINE void send_for_sixteen(uint8_t *slot, int pitch, int more, const uint8_t *rows, uint64_t row_bytes, int last,
                                int bytes, uint64_t *box)
{
    int lane = threadIdx.x % WARP, r = lane % SIXTEEN;
    const uint8_t *row = rows + (uint32_t)min(r, last) * (uint32_t)row_bytes;
    int skip = (int)((uintptr_t)row & 15), n = (skip + bytes + 15) / 16 * 16, all = lane < SIXTEEN ? n : 0;
#pragma unroll
    for (int h = SIXTEEN / 2; h > 0; h /= 2)
        all += __shfl_xor_sync(ALL_LANES, all, h);
    if (lane == 0)
        expect_bytes(box, all);
    __syncwarp();
    if (lane < SIXTEEN)
        copy_to_box(slot + r * pitch + r / 2 * more, row - skip, n, box);
}

/* ---- Q4_K -------------------------------------------------------------------------------------------------------- */

/* Rows begin at multiples of 16. Those of four neighbours lie in different banks. */
enum { K4_BYTES = 144, K4_PITCH = ROUND_SEGMENTS * K4_BYTES, K4_MORE = 32, K4_SLOT = 8 * (2 * K4_PITCH + K4_MORE) };

/* What a lane knows of the head of a row's segment. */
struct k4_head {
    float    d, dmin;
    uint32_t sc[2], mn[2];
};

CU_INLINE struct k4_head k4_head_of(const uint8_t *segment)
{
    uint4 head = *(const uint4 *)segment;
    return { half_value((uint16_t)head.x), half_value((uint16_t)(head.x >> 16)),
             { head.y & 0x3f3f3f3f, (head.w & 0x0f0f0f0f) | (head.y >> 2 & 0x30303030) },
             { head.z & 0x3f3f3f3f, (head.w >> 4 & 0x0f0f0f0f) | (head.z >> 2 & 0x30303030) } };
}

/* Adds block k's terms of one row to the sums of R rows of activations. */
template <int R>
CU_INLINE void add_k4_terms(const struct k4_head &head, const struct x_segment (&x)[R], int k, const int *isum,
                            float (&sum)[R])
{
    float dw = head.d * (float)(int)(head.sc[k / 4] >> 8 * (k % 4) & 255),
          mw = -(head.dmin * (float)(int)(head.mn[k / 4] >> 8 * (k % 4) & 255));
#pragma unroll
    for (int j = 0; j < R; j++) {
        sum[j] = fmaf(dw * x[j].d[k], (float)isum[j], sum[j]);
        sum[j] = fmaf(mw, x[j].g[k], sum[j]);
    }
}

/* isum of blocks 2 pair and 2 pair + 1 of a round's segments, whose codes are the low and the high nibbles of the same
 * bytes: lane t has elements 8 t .. 8 t + 7. */
CU_INLINE void multiply_k4_pair(const uint8_t *const (&row)[2], const uint2 (&x)[2], const uint32_t (&one)[4], int pair,
                                int (&isum)[2][4])
{
    int t = threadIdx.x % 4;
#pragma unroll
    for (int s = 0; s < ROUND_SEGMENTS; s++) {
        uint2 a = *(const uint2 *)(row[0] + K4_BYTES * s + 16 + 32 * pair + 8 * t),
              b = *(const uint2 *)(row[1] + K4_BYTES * s + 16 + 32 * pair + 8 * t);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t w[4] = { a.x >> 4 * h & 0x0f0f0f0f, b.x >> 4 * h & 0x0f0f0f0f, a.y >> 4 * h & 0x0f0f0f0f,
                              b.y >> 4 * h & 0x0f0f0f0f };
            uint2 of = if_one(x[h], one[s]);
            if (s == 0)
                mma32(isum[h], w, of.x, of.y);
            else
                mma32_more(isum[h], w, of.x, of.y);
        }
    }
}

/* Sums of rows g and g + 8 in segment t of `round`. x: both the same if R is 1. */
template <int R>
CU_INLINE void sum_k4(const uint8_t *slot, const struct x_row *x, int round, int n, uint64_t *box, float (&sum)[2][R])
{
    int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4, first = round * ROUND_SEGMENTS, last = n / 256 - 1;
    const int8_t *q = x[g % 2].q + min(first + g / 2, last) * 256 + 8 * t;
    uint2 codes[SEGMENT];
    struct x_segment of[R];
    uint32_t one[ROUND_SEGMENTS];
#pragma unroll
    for (int k = 0; k < SEGMENT; k++)
        codes[k] = *(const uint2 *)(q + 32 * k);
#pragma unroll
    for (int j = 0; j < R; j++)
        of[j] = x_segment_of(x[j], min(first + t, last)), sum[0][j] = sum[1][j] = 0;
#pragma unroll
    for (int s = 0; s < ROUND_SEGMENTS; s++)
        one[s] = g / 2 == s;
    await_box(box, 0);
    const uint8_t *row[2];
    struct k4_head head[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        row[i] = slot + (g + 8 * i) * K4_PITCH + (g / 2 + 4 * i) * K4_MORE;
        head[i] = k4_head_of(row[i] + K4_BYTES * t);
    }
#pragma unroll
    for (int pair = 0; pair < SEGMENT / 2; pair++) {
        int isum[2][4];
        multiply_k4_pair(row, { codes[2 * pair], codes[2 * pair + 1] }, one, pair, isum);
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                add_k4_terms<R>(head[i], of, 2 * pair + h, isum[h] + 2 * i, sum[i]);
    }
}

/* ---- Q6_K -------------------------------------------------------------------------------------------------------- */

/* Rows of up to three segments, which begin at even addresses. Those of eight neighbours lie in different banks, but
 * for what they are past multiples of 16. */
enum { K6_BYTES = 210, K6_SEGMENTS = 3, K6_PITCH = 656, K6_SLOT = SIXTEEN * K6_PITCH };

/* Words of a row: the lane's from any even byte of a segment on. Segments begin at and two past multiples of four by
 * turns. */
struct k6_row {
    const uint8_t  *at;
    const uint32_t *even, *odd;
    uint32_t        shift;

    CU_READ_FN uint32_t word(int segment, int byte) const
    {
        const uint32_t *a = (segment % 2 ? odd + 52 : even) + 105 * (segment / 2) + byte / 4;
        return __funnelshift_r(a[0], a[1], segment % 2 ? 16 - shift : shift);
    }
};

CU_INLINE struct k6_row k6_row_at(const uint8_t *at)
{
    uint32_t two = (uint32_t)(uintptr_t)at & 2;
    int t = threadIdx.x % 4;
    return { at, (const uint32_t *)(at - two) + t, (const uint32_t *)(at + two) + t, 8 * two };
}

/* Adds the products of blocks 4 half .. 4 half + 3 of a segment to isum[block][half block]. */
CU_INLINE void multiply_k6(const struct k6_row (&row)[2], int segment, int half, const uint2 (&x)[SEGMENT],
                           uint32_t one, int (&isum)[4][2][4])
{
    uint32_t low[2][2][2], high[2][2];
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int u = 0; u < 2; u++) {
            low[i][0][u] = row[i].word(segment, 64 * half + 16 * u);
            low[i][1][u] = row[i].word(segment, 64 * half + 16 * u + 32);
            high[i][u] = row[i].word(segment, 128 + 32 * half + 16 * u);
        }
#pragma unroll
    for (int p = 0; p < 4; p++) {
        uint2 of = if_one(x[4 * half + p], one);
#pragma unroll
        for (int u = 0; u < 2; u++) {
            uint32_t w[2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                uint32_t bits = p < 2 ? high[i][u] << (4 - 2 * p) : high[i][u] >> (2 * p - 4);
                w[i] = (low[i][p % 2][u] >> p / 2 * 4 & 0x0f0f0f0f) | (bits & 0x30303030);
            }
            mma16_add<true>(isum[p][u], w[0], w[1], u ? of.y : of.x);
        }
    }
}

/* What a lane knows of its own segment of the activations: scales, and sums of half blocks. */
struct k6_side {
    float d[SEGMENT];
    int   sums[SEGMENT];
};

CU_INLINE struct k6_side k6_side_of(const struct x_row &x, int segment)
{
    struct k6_side s;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint4 d = fresh16(x.d + segment * SEGMENT + 4 * i), sum = fresh16(x.s + 2 * segment * SEGMENT + 8 * i);
        uint32_t of_d[4] = { d.x, d.y, d.z, d.w }, of_sum[4] = { sum.x, sum.y, sum.z, sum.w };
#pragma unroll
        for (int k = 0; k < 4; k++)
            s.d[4 * i + k] = pf_bits_float(of_d[k]), s.sums[4 * i + k] = (int)of_sum[k];
    }
    return s;
}

/* Sums of rows g and g + 8, which begin at at[0] and at[1], in segment t. */
CU_INLINE void sum_k6(const uint8_t *const (&at)[2], const struct x_row &x, int n, uint64_t *box, int turn,
                      float (&sum)[2])
{
    int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4, last = n / 256 - 1, mine = min(t, last);
    const int8_t *q = x.q + min(g / 2, last) * 256 + 4 * t;
    uint2 codes[SEGMENT];
#pragma unroll
    for (int k = 0; k < SEGMENT; k++)
        codes[k] = make_uint2(*(const uint32_t *)(q + 32 * k), *(const uint32_t *)(q + 32 * k + 16));
    struct k6_side side = k6_side_of(x, mine);
    struct k6_row row[2] = { k6_row_at(at[0]), k6_row_at(at[1]) };
    await_box(box, turn);
    float d[2];
#pragma unroll
    for (int i = 0; i < 2; i++)
        d[i] = half_value(*(const uint16_t *)(at[i] + K6_BYTES * mine + 208)), sum[i] = 0;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int isum[4][2][4];
#pragma unroll
        for (int p = 0; p < 4; p++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int both = side.sums[4 * half + p];
                isum[p][0][i] = -32 * (int)(int16_t)both, isum[p][1][i] = -32 * (both >> 16);
            }
#pragma unroll
        for (int s = 0; s < K6_SEGMENTS; s++)
            multiply_k6(row, s, half, codes, g / 2 == s, isum);
#pragma unroll
        for (int p = 0; p < 4; p++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int k = 4 * half + p, sc = *(const uint16_t *)(at[i] + K6_BYTES * mine + 192 + 2 * k),
                    both = (int8_t)sc * isum[p][0][2 * i] + (int8_t)(sc >> 8) * isum[p][1][2 * i];
                sum[i] = fmaf(d[i] * side.d[k], (float)both, sum[i]);
            }
    }
}

#endif
