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

/* Rows begin at multiples of 16. Those of four neighbours lie in different banks. */
enum { K4_BYTES = 144, K4_PITCH = ROUND_SEGMENTS * K4_BYTES, K4_MORE = 32, K4_SLOT = 8 * (2 * K4_PITCH + K4_MORE) };

/* Sends for `bytes` of each of sixteen rows, of which those past `last` are the last one again. A warp calls it, with
 * the same for all lanes, and a box that all of them know to be open. */
CU_INLINE void send_for_sixteen(uint8_t *slot, const uint8_t *rows, uint64_t row_bytes, int last, int bytes,
                                uint64_t *box)
{
    if (!one_of_warp())
        return;
    expect_bytes(box, SIXTEEN * bytes);
#pragma unroll 4
    for (int r = 0; r < SIXTEEN; r++)
        copy_to_box(slot + r * K4_PITCH + r / 2 * K4_MORE, rows + (uint32_t)min(r, last) * (uint32_t)row_bytes, bytes,
                    box);
}

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
                mma32_more<true>(isum[h], w, of.x, of.y);
        }
    }
}

/* Sums of rows g and g + 8 in segment t of `round`. x: both the same if R is 1. */
template <int R>
CU_INLINE void sum_k4(const uint8_t *slot, const struct x_row *x, int round, int n, uint64_t *box, float (&sum)[2][R])
{
    int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4, first = round * ROUND_SEGMENTS, last = n / 256 - 1;
    const int8_t *q = (g % 2 ? x[1].q : x[0].q) + min(first + g / 2, last) * 256 + 8 * t;
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

#endif
