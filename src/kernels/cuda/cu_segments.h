/* Segments of weight rows, a segment a lane: 256 weights, whose chain (docs/numerics.md) the lane runs in registers.
 * Weights and activations lie in shared memory.
 *
 *     rows       one after the other, as in the matrix
 *     lanes      row 0: segments 0 1 2 ..; row 1: segments 0 1 2 ..
 *
 * A third of the instructions of cu_dot.h, since no term leaves its lane and scales are unpacked once; but lanes read
 * far from each other, so that whole rows have to be copied first. Segments of 144 and 176 bytes are read without
 * conflicts of banks, of 210 with few. */
#ifndef PF_CU_SEGMENTS_H
#define PF_CU_SEGMENTS_H

#include "kernels/cuda/cu_dot_types.h"
#include "kernels/cuda/cu_k6.h"

enum { SEGMENT_BLOCKS = 8 };

/* Activations in shared memory. Segment s has its codes at q + s * X_WIDTH, which spreads segments over the banks; d
 * and more have a word for each block. What is in `more` is up to the weights' type. */
enum { X_WIDTH = 256 + 16 };
struct x_here {
    int8_t *q;
    float  *d;
    int    *more;
};

CU_HOST_FN size_t x_here_bytes(int n_segments)
{
    return n_segments * (X_WIDTH + 2 * SEGMENT_BLOCKS * sizeof(float));
}

CU_INLINE struct x_here x_here_at(uint8_t *memory, int n_segments)
{
    float *d = (float *)(memory + n_segments * X_WIDTH);
    return { (int8_t *)memory, d, (int *)(d + n_segments * SEGMENT_BLOCKS) };
}

CU_INLINE struct x_here segment_of(const struct x_here &x, int segment)
{
    return { x.q + segment * X_WIDTH, x.d + segment * SEGMENT_BLOCKS, x.more + segment * SEGMENT_BLOCKS };
}

/* Block b of x as it was in memory, on its way. */
struct x_block {
    uint4 low, high;
    float d;
    int   sums;
};

CU_INLINE struct x_block take_block(const struct x_row &x, int b)
{
    return { fetch16((const char *)(x.q + 32 * b)), fetch16((const char *)(x.q + 32 * b + 16)),
             fetch4((const char *)(x.d + b)), (int)pf_float_bits(fetch4((const char *)(x.s + 2 * b))) };
}

template <class T>
CU_INLINE void put_block(const struct x_here &to, int b, const struct x_block &v)
{
    struct x_here segment = segment_of(to, b / SEGMENT_BLOCKS);
    uint4 *q = (uint4 *)segment.q + 2 * (b % SEGMENT_BLOCKS);
    q[0] = v.low, q[1] = v.high;
    segment.d[b % SEGMENT_BLOCKS] = v.d;
    segment.more[b % SEGMENT_BLOCKS] = T::more(v.d, v.sums);
}

/* The block copies so many blocks of x; whoever reads them meets the others first. */
template <class T>
CU_INLINE void bring_x(const struct x_here &to, const struct x_row &x, int n_blocks)
{
#pragma unroll 1
    for (int b = threadIdx.x; b < n_blocks; b += blockDim.x)
        put_block<T>(to, b, take_block(x, b));
}

/* Types. BYTES: of a segment. sum(): of the segment at p. more(): a block's word of x_here from its scale and its two
 * sums of sixteen codes, one above the other. */
template <bool FIVE>
struct segment_k45 {
    enum { BYTES = FIVE ? 176 : 144 };

    static CU_READ_FN int more(float d, int sums)
    {
        return (int)pf_float_bits(d * (float)((int)(int16_t)sums + (sums >> 16)));
    }

    /* Sixteen codes of block b of those whose low bits are in v, and the fifth ones in f, times x's. */
    static CU_READ_FN int dot(uint4 v, uint4 f, int b, uint4 x, int sum)
    {
        int shift = 4 * (b % 2);
        uint4 w = make_uint4(v.x >> shift & 0x0f0f0f0f, v.y >> shift & 0x0f0f0f0f, v.z >> shift & 0x0f0f0f0f,
                             v.w >> shift & 0x0f0f0f0f);
        if (FIVE) {
            w.x |= (f.x >> b & 0x01010101) << 4, w.y |= (f.y >> b & 0x01010101) << 4;
            w.z |= (f.z >> b & 0x01010101) << 4, w.w |= (f.w >> b & 0x01010101) << 4;
        }
        return dot16(w, x, sum);
    }

    static CU_READ_FN float sum(const uint8_t *p, const struct x_here &x)
    {
        const uint4 *w = (const uint4 *)p, *q = (const uint4 *)x.q;
        uint4 head = w[0], fifth[2] = { w[FIVE ? 1 : 0], w[FIVE ? 2 : 0] };
        float d = half_value((uint16_t)head.x), dmin = half_value((uint16_t)(head.x >> 16)), s = 0;
        uint32_t sc[2] = { head.y & 0x3f3f3f3f, (head.w & 0x0f0f0f0f) | (head.y >> 2 & 0x30303030) },
                 mn[2] = { head.z & 0x3f3f3f3f, (head.w >> 4 & 0x0f0f0f0f) | (head.z >> 2 & 0x30303030) };
#pragma unroll
        for (int b = 0; b < SEGMENT_BLOCKS; b++) {
            const uint4 *codes = w + (FIVE ? 3 : 1) + b / 2 * 2;
            int isum = dot(codes[1], fifth[1], b, q[2 * b + 1], dot(codes[0], fifth[0], b, q[2 * b], 0)),
                at = 8 * (b % 4);
            s = fmaf(d * (float)(int)(sc[b / 4] >> at & 255) * x.d[b], (float)isum, s);
            s = fmaf(-(dmin * (float)(int)(mn[b / 4] >> at & 255)), pf_bits_float((uint32_t)x.more[b]), s);
        }
        return s;
    }
};

/* Segments begin at even addresses. */
struct segment_k6 {
    enum { BYTES = 210 };

    static CU_READ_FN int more(float, int sums) { return sums; }

    static CU_READ_FN float sum(const uint8_t *p, const struct x_here &x)
    {
        float d = half_value(*(const uint16_t *)(p + 208)), s = 0;
        const uint4 *q = (const uint4 *)x.q;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            struct k6_half of = k6_half_of(p, half);
#pragma unroll
            for (int k = 0; k < 4; k++) {
                uint32_t w[8];
                k6_codes(of, k, w);
                int sc0 = k6_scale(of, k, 0), sc1 = k6_scale(of, k, 1), b = 4 * half + k, sums = x.more[b],
                    lower = dot16(make_uint4(w[0], w[1], w[2], w[3]), q[2 * b], -32 * (int)(int16_t)sums),
                    upper = dot16(make_uint4(w[4], w[5], w[6], w[7]), q[2 * b + 1], -32 * (sums >> 16));
                s = fmaf(d * x.d[b], (float)(sc0 * lower + sc1 * upper), s);
            }
        }
        return s;
    }
};

/* A row's sum from those of its segments. */
CU_INLINE float sum_of_row(const float *sums, int n_segments)
{
    float total = 0;
#pragma unroll 4
    for (int i = 0; i < n_segments; i++)
        total = total + sums[i];
    return total;
}

#endif
