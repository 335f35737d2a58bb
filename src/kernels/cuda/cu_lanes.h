/* Weight rows times one or two rows of activations, a weight row a lane: for types whose blocks begin at multiples of
 * 16, in steps that are large enough to keep a GPU busy.
 *
 *     a task     32 weight rows, one segment of them (256 elements), by a warp that copies them to shared memory first
 *     lanes      each runs the chains of its own row, so that no term leaves its registers; activations are the same
 *                for all lanes
 *
 * A quarter to a third of the instructions of cu_dot.h, but little work for a warp to hide its waits behind. */
#ifndef PF_CU_LANES_H
#define PF_CU_LANES_H

#include <cuda_pipeline.h>

#include "kernels/cuda/cu_dot_types.h"
#include "kernels/cuda/cu_k6.h"

enum { SEGMENT = 8 };

/* The codes of a segment's activations, and what goes with each block of them: its scale, and that times its sum. */
struct x_segment {
    const int8_t *q;
    float         d[SEGMENT], g[SEGMENT];
};

CU_INLINE struct x_segment x_segment_of(const struct x_row &x, int segment)
{
    struct x_segment s = { x.q + segment * 256 };
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint4 d = fresh16(x.d + segment * SEGMENT + 4 * i), sum = fresh16(x.s + 2 * segment * SEGMENT + 8 * i);
        uint32_t of_d[4] = { d.x, d.y, d.z, d.w }, of_sum[4] = { sum.x, sum.y, sum.z, sum.w };
#pragma unroll
        for (int k = 0; k < 4; k++) {
            s.d[4 * i + k] = pf_bits_float(of_d[k]);
            s.g[4 * i + k] = s.d[4 * i + k] * (float)((int)(int16_t)of_sum[k] + ((int)of_sum[k] >> 16));
        }
    }
    return s;
}

/* Copies a segment of 32 rows, the last of which is `last`, to a warp's slot, four lanes a row: row r begins at
 * L::at(r) plus what it is past a multiple of 16. */
template <class L>
CU_INLINE void stage_segment(uint8_t *slot, const uint8_t *rows, uint32_t row_bytes, int last)
{
    constexpr int WHOLE = L::BYTES / 64 * 64;
    int lane = threadIdx.x % WARP, piece = lane % 4 * 16;
    uint8_t *to = slot + L::at(lane / 4) + piece;
#pragma unroll
    for (int i = 0; i < 4; i++, to += L::at(8)) {
        const uint8_t *row = rows + (uint32_t)min(lane / 4 + 8 * i, last) * row_bytes;
        int skip = L::STRIDE == L::BYTES ? 0 : (int)((uintptr_t)row & 15);
        row += piece - skip;
#pragma unroll
        for (int j = 0; j < WHOLE; j += 64)
            __pipeline_memcpy_async(to + j, row + j, 16);
        if (piece < skip + L::BYTES - WHOLE)
            __pipeline_memcpy_async(to + WHOLE, row + WHOLE, 16);
    }
}

/* What the lane's row is past a multiple of 16. */
template <class L>
CU_INLINE int skip_of(const uint8_t *rows, uint64_t row_bytes, int last)
{
    return (int)((uintptr_t)rows + (uint32_t)min((int)threadIdx.x % WARP, last) * (uint32_t)row_bytes & 15);
}

template <bool FIVE>
struct lanes_k45 {
    enum { BYTES = FIVE ? 176 : 144, STRIDE = BYTES, WARP_BYTES = WARP * STRIDE };

    static CU_READ_FN int at(int row) { return row * STRIDE; }

    /* The sums of the lane's row in the segment. */
    template <int R>
    static CU_READ_FN void sum(const uint8_t *slot, int, const struct x_row *x, int segment, float (&s)[R])
    {
        const uint4 *row = (const uint4 *)(slot + at(threadIdx.x % WARP));
        uint4 head = row[0], fifth[2] = { row[FIVE ? 1 : 0], row[FIVE ? 2 : 0] };
        float d = half_value((uint16_t)head.x), dmin = half_value((uint16_t)(head.x >> 16));
        uint32_t sc[2] = { head.y & 0x3f3f3f3f, (head.w & 0x0f0f0f0f) | (head.y >> 2 & 0x30303030) },
                 mn[2] = { head.z & 0x3f3f3f3f, (head.w >> 4 & 0x0f0f0f0f) | (head.z >> 2 & 0x30303030) };
        struct x_segment of[R];
#pragma unroll
        for (int j = 0; j < R; j++)
            of[j] = x_segment_of(x[j], segment), s[j] = 0;
#pragma unroll
        for (int k = 0; k < SEGMENT; k++) {
            uint4 w[2];
#pragma unroll
            for (int h = 0; h < 2; h++) {
                uint4 v = row[(FIVE ? 3 : 1) + k / 2 * 2 + h], f = fifth[h];
                int shift = 4 * (k % 2);
                w[h] = make_uint4(v.x >> shift & 0x0f0f0f0f, v.y >> shift & 0x0f0f0f0f, v.z >> shift & 0x0f0f0f0f,
                                  v.w >> shift & 0x0f0f0f0f);
                if (FIVE) {
                    w[h].x |= (f.x >> k & 0x01010101) << 4, w[h].y |= (f.y >> k & 0x01010101) << 4;
                    w[h].z |= (f.z >> k & 0x01010101) << 4, w[h].w |= (f.w >> k & 0x01010101) << 4;
                }
            }
            float dw = d * (float)(int)(sc[k / 4] >> 8 * (k % 4) & 255),
                  mw = -(dmin * (float)(int)(mn[k / 4] >> 8 * (k % 4) & 255));
#pragma unroll
            for (int j = 0; j < R; j++) {
                int isum = dot16(w[1], fresh16(of[j].q + 32 * k + 16), dot16(w[0], fresh16(of[j].q + 32 * k), 0));
                s[j] = fmaf(dw * of[j].d[k], (float)isum, s[j]);
                s[j] = fmaf(mw, of[j].g[k], s[j]);
            }
        }
    }
};

/* Rows begin at even addresses. The words that 32 lanes read at once lie in different banks for most lengths of rows,
 * since rows begin at different places past a multiple of 16, and every eighth is further on. */
struct lanes_k6 {
    enum { BYTES = 210, STRIDE = 240, WARP_BYTES = WARP * STRIDE + 3 * 32 };

    static CU_READ_FN int at(int row) { return row * STRIDE + row / 8 * 32; }

    template <int R>
    static CU_READ_FN void sum(const uint8_t *slot, int skip, const struct x_row *x, int segment, float (&s)[R])
    {
        const uint8_t *row = slot + at(threadIdx.x % WARP) + skip;
        float d = half_value(*(const uint16_t *)(row + 208));
#pragma unroll
        for (int j = 0; j < R; j++)
            s[j] = 0;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            struct k6_half of = k6_half_of(row, half);
#pragma unroll
            for (int k = 0; k < 4; k++) {
                uint32_t w[8];
                k6_codes(of, k, w);
                int sc0 = k6_scale(of, k, 0), sc1 = k6_scale(of, k, 1), b = segment * SEGMENT + 4 * half + k;
#pragma unroll
                for (int j = 0; j < R; j++) {
                    int sums = ((const int *)x[j].s)[b],
                        lower = dot16(make_uint4(w[0], w[1], w[2], w[3]), fresh16(x[j].q + 32 * b),
                                      -32 * (int)(int16_t)sums),
                        upper = dot16(make_uint4(w[4], w[5], w[6], w[7]), fresh16(x[j].q + 32 * b + 16),
                                      -32 * (sums >> 16));
                    s[j] = fmaf(d * x[j].d[b], (float)(sc0 * lower + sc1 * upper), s[j]);
                }
            }
        }
    }
};

#endif
