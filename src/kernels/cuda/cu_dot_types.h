/* Which lane reads which bytes of a quantised block, and what it makes of them: the terms of docs/numerics.md that a
 * block of 32 weights gives with a block of activations. Tasks are made of them in cu_dot.h. */
#ifndef PF_CU_DOT_TYPES_H
#define PF_CU_DOT_TYPES_H

#include "kernels/cuda/cu_blocks.h"

/* The terms of one block: s = fmaf(p, f, s), then, for types with a second term, s = fmaf(m, g, s). */
struct term {
    float p, f, m, g;
};

struct x_row {
    const float   *f;
    const int8_t  *q;
    const float   *d;
    const int16_t *s;
};

CU_INLINE struct x_row x_row_of(const struct cu_x &x, int n, int64_t row)
{
    return { x.f + row * n, x.q + row * n, x.d + row * (n / 32), x.s + row * (n / 16) };
}

/* Sixteen bytes of an activation. Not through the read-only cache: a kernel that began early may
 * have met older ones. */
CU_INLINE uint4 fresh16(const void *p)
{
    return *(const uint4 *)p;
}

CU_INLINE int sum_of_block(const struct x_row &x, int b)
{
    int two = ((const int *)x.s)[b];
    return (int)(int16_t)two + (two >> 16);
}

CU_INLINE int dot16(uint4 w, uint4 x, int sum)
{
    sum = __dp4a((int)w.x, (int)x.x, sum);
    sum = __dp4a((int)w.y, (int)x.y, sum);
    sum = __dp4a((int)w.z, (int)x.z, sum);
    return __dp4a((int)w.w, (int)x.w, sum);
}

/* Types. load() fetches what a lane needs of block b of a round, load_x() of the activations, dot() makes the terms.
 * ROUND: bytes of a whole round, or 0: whoever wants them divides. LOOKS_UP: dot() looks codes up in side.lower.
 * Types whose lanes would read the same words many times are STAGED: a round of them, at most so many bytes, is first
 * copied to shared memory, and its rows are multiplied in a loop. */

/* Any type, through its reader. */
template <class R>
struct plain {
    static constexpr bool whole_segments = false, second = R::kind != ONE_TERM, LOOKS_UP = false;
    enum { STAGED = 32 * 24, ROUND = 0 };
    typedef struct cu_block raw;
    struct side { uint4 x0, x1; float d; int s0, s1; };

    static CU_READ_FN raw load(const uint8_t *row, int b, const struct cu_tables &t)
    {
        return read_block<R>(row, b, t);
    }

    static CU_READ_FN side load_x(const struct x_row &x, int b)
    {
        int two = ((const int *)x.s)[b];
        return { fresh16(x.q + b * 32), fresh16(x.q + b * 32 + 16), x.d[b], (int16_t)two, two >> 16 };
    }

    static CU_READ_FN struct term dot(const raw &w, const side &x, int)
    {
        int lower = w.sc[0] * dot16(make_uint4(w.code[0], w.code[1], w.code[2], w.code[3]), x.x0, 0);
        int upper = w.sc[1] * dot16(make_uint4(w.code[4], w.code[5], w.code[6], w.code[7]), x.x1, 0);
        if (R::kind == TWO_SCALES)
            return { w.dw * x.d, (float)lower, w.dw1 * x.d, (float)upper };
        return { w.dw * x.d, (float)(lower + upper), -w.mw, x.d * (float)(w.mn[0] * x.s0 + w.mn[1] * x.s1) };
    }
};

/* A pair of lanes shares the 32 bytes of two blocks, low and high nibbles: each takes sixteen of them for both. */
template <bool FIVE>
struct k45 {
    static constexpr bool whole_segments = true, second = true, LOOKS_UP = false;
    enum { BYTES = FIVE ? 176 : 144, STAGED = 0, ROUND = 4 * BYTES };
    struct raw { uint4 head, w, fifth; };
    struct side { uint4 even, odd; float d, g; };

    static CU_READ_FN raw load(const uint8_t *row, int b, const struct cu_tables &)
    {
        const uint8_t *p = row + (size_t)(b / 8) * BYTES;
        int g = b % 8;
        raw r;
        r.head = load16(p);
        r.w = load16(p + (FIVE ? 48 : 16) + 16 * g);
        if (FIVE)
            r.fifth = load16(p + 16 + 16 * (g & 1));
        return r;
    }

    static CU_READ_FN side load_x(const struct x_row &x, int b)
    {
        const int8_t *q = x.q + (b & ~1) * 32 + 16 * (b & 1);
        float d = x.d[b];
        return { fresh16(q), fresh16(q + 32), d, d * (float)sum_of_block(x, b) };
    }

    static CU_READ_FN struct term dot(const raw &r, const side &x, int b)
    {
        int g = b % 8, odd = g & 1;
        uint4 lo = make_uint4(r.w.x & 0x0f0f0f0f, r.w.y & 0x0f0f0f0f, r.w.z & 0x0f0f0f0f, r.w.w & 0x0f0f0f0f);
        uint4 hi = make_uint4(r.w.x >> 4 & 0x0f0f0f0f, r.w.y >> 4 & 0x0f0f0f0f, r.w.z >> 4 & 0x0f0f0f0f,
                              r.w.w >> 4 & 0x0f0f0f0f);
        if (FIVE) {
            int c = g - odd;
            lo.x |= (r.fifth.x >> c & 0x01010101) << 4, hi.x |= (r.fifth.x >> (c + 1) & 0x01010101) << 4;
            lo.y |= (r.fifth.y >> c & 0x01010101) << 4, hi.y |= (r.fifth.y >> (c + 1) & 0x01010101) << 4;
            lo.z |= (r.fifth.z >> c & 0x01010101) << 4, hi.z |= (r.fifth.z >> (c + 1) & 0x01010101) << 4;
            lo.w |= (r.fifth.w >> c & 0x01010101) << 4, hi.w |= (r.fifth.w >> (c + 1) & 0x01010101) << 4;
        }
        int even_sum = dot16(lo, x.even, 0), odd_sum = dot16(hi, x.odd, 0);
        int sum = (odd ? odd_sum : even_sum) + __shfl_xor_sync(ALL_LANES, odd ? even_sum : odd_sum, 1);
        struct scale_min sm = scale_min_words(r.head.y, r.head.z, r.head.w, g);
        float d = half_value((uint16_t)r.head.x), dmin = half_value((uint16_t)(r.head.x >> 16));
        return { d * (float)sm.sc * x.d, (float)sum, -(dmin * (float)sm.mn), x.g };
    }
};

/* Lanes t and t + 2 of the four that have half a super-block share the bytes of their two planes: each takes sixteen of
 * them, and of the upper bits, for both. */
struct k6 {
    static constexpr bool whole_segments = true, second = false, LOOKS_UP = false;
    enum { ROUND = 4 * 210, STAGED = ROUND };
    struct raw { uint32_t low[4], high[4]; int sc0, sc1; uint16_t d; };
    struct side { uint4 x0, x1; float d; int minus0, minus1; };

    static CU_READ_FN raw load(const uint8_t *row, int b, const struct cu_tables &)
    {
        const uint8_t *p = row + (b >> 3) * 210;
        int h = b >> 2 & 1, upper = b >> 1 & 1, odd = b & 1;
        const int8_t *sc = (const int8_t *)(p + 192 + 8 * h + 2 * odd + upper);
        raw r;
        load_words(p + 64 * h + 32 * odd + 16 * upper, r.low);
        load_words(p + 128 + 32 * h + 16 * upper, r.high, 2 * odd);
        r.sc0 = sc[0];
        r.sc1 = sc[4];
        r.d = *(const uint16_t *)(p + 208);
        return r;
    }

    static CU_READ_FN side load_x(const struct x_row &x, int b)
    {
        int at = 2 * (b & ~3) + 2 * (b & 1) + (b >> 1 & 1);                       /* nibble number, of 16 */
        return { fresh16(x.q + 16 * at), fresh16(x.q + 16 * at + 64), x.d[b], -32 * x.s[at], -32 * x.s[at + 4] };
    }

    static CU_READ_FN struct term dot(const raw &r, const side &x, int b)
    {
        uint32_t lo[4], hi[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            lo[i] = (r.low[i] & 0x0f0f0f0f) | (r.high[i] << 4 & 0x30303030);
            hi[i] = (r.low[i] >> 4 & 0x0f0f0f0f) | (r.high[i] & 0x30303030);
        }
        int lower = r.sc0 * dot16(make_uint4(lo[0], lo[1], lo[2], lo[3]), x.x0, x.minus0);
        int upper = r.sc1 * dot16(make_uint4(hi[0], hi[1], hi[2], hi[3]), x.x1, x.minus1);
        int sum = (b & 2 ? upper : lower) + __shfl_xor_sync(ALL_LANES, b & 2 ? lower : upper, 2);
        return { half_value(r.d) * x.d, (float)sum, 0, 0 };
    }
};

/* Blocks begin at even addresses: words are read as they are aligned, and put together. */
struct q8 {
    static constexpr bool whole_segments = false, second = false, LOOKS_UP = false;
    enum { STAGED = 0, ROUND = 32 * 34 };
    struct raw { uint32_t a[9]; uint32_t half; };
    struct side { uint4 x0, x1; float d; };

    static CU_READ_FN raw load(const uint8_t *row, int b, const struct cu_tables &)
    {
        uintptr_t p = (uintptr_t)(row + (size_t)b * 34);
        const uint32_t *a = (const uint32_t *)(p & ~(uintptr_t)3);
        raw r;
        r.half = p & 2;
#pragma unroll
        for (int i = 0; i < 9; i++)
            r.a[i] = __ldg(a + i);
        return r;
    }

    static CU_READ_FN side load_x(const struct x_row &x, int b)
    {
        return { fresh16(x.q + b * 32), fresh16(x.q + b * 32 + 16), x.d[b] };
    }

    static CU_READ_FN struct term dot(const raw &r, const side &x, int)
    {
        uint32_t w[8], shift = 16 + 8 * r.half;                  /* 32 where the codes begin at a word */
#pragma unroll
        for (int i = 0; i < 8; i++)
            w[i] = __funnelshift_rc(r.a[i], r.a[i + 1], shift);
        int sum = dot16(make_uint4(w[0], w[1], w[2], w[3]), x.x0, 0);
        sum = dot16(make_uint4(w[4], w[5], w[6], w[7]), x.x1, sum);
        return { half_value((uint16_t)(r.a[0] >> 8 * r.half)) * x.d, (float)sum, 0, 0 };
    }
};

struct q4 {
    static constexpr bool whole_segments = false, second = false, LOOKS_UP = false;
    enum { STAGED = 0, ROUND = 32 * 18 };
    struct raw { uint32_t a[5]; uint32_t half; };
    struct side { uint4 x0, x1; float d; int minus; };

    static CU_READ_FN raw load(const uint8_t *row, int b, const struct cu_tables &)
    {
        uintptr_t p = (uintptr_t)(row + (size_t)b * 18);
        const uint32_t *a = (const uint32_t *)(p & ~(uintptr_t)3);
        raw r;
        r.half = p & 2;
#pragma unroll
        for (int i = 0; i < 5; i++)
            r.a[i] = __ldg(a + i);
        return r;
    }

    static CU_READ_FN side load_x(const struct x_row &x, int b)
    {
        return { fresh16(x.q + b * 32), fresh16(x.q + b * 32 + 16), x.d[b], -8 * sum_of_block(x, b) };
    }

    static CU_READ_FN struct term dot(const raw &r, const side &x, int)
    {
        uint32_t w[4], shift = 16 + 8 * r.half;
#pragma unroll
        for (int i = 0; i < 4; i++)
            w[i] = __funnelshift_rc(r.a[i], r.a[i + 1], shift);
        uint4 lo = make_uint4(w[0] & 0x0f0f0f0f, w[1] & 0x0f0f0f0f, w[2] & 0x0f0f0f0f, w[3] & 0x0f0f0f0f);
        uint4 hi = make_uint4(w[0] >> 4 & 0x0f0f0f0f, w[1] >> 4 & 0x0f0f0f0f, w[2] >> 4 & 0x0f0f0f0f,
                              w[3] >> 4 & 0x0f0f0f0f);
        int sum = dot16(hi, x.x1, dot16(lo, x.x0, x.minus));
        return { half_value((uint16_t)(r.a[0] >> 8 * r.half)) * x.d, (float)sum, 0, 0 };
    }
};

/* Codes stay in the order of their nibbles, element 0, 16, 1, 17 ...: the activations are put in that order instead.
 * Twice E2M1 lies in -12..12. Its magnitudes are looked up twice: for nibbles without a sign (bit 3), others getting 0,
 * and for those with one, whose sum is subtracted. */
struct mx4 {
    static constexpr bool whole_segments = false, second = false, LOOKS_UP = true;
    enum { STAGED = 0, ROUND = 32 * 17 };
    struct raw { uint32_t a[5]; uint32_t at; };
    struct side { uint4 x0, x1; float d; uint32_t lower; };

    static CU_READ_FN raw load(const uint8_t *row, int b, const struct cu_tables &)
    {
        uintptr_t p = (uintptr_t)(row + (uint32_t)b * 17);
        const uint32_t *a = (const uint32_t *)(p & ~(uintptr_t)3);
        raw r;
        r.at = p & 3;
#pragma unroll
        for (int i = 0; i < 5; i++)
            r.a[i] = __ldg(a + i);
        return r;
    }

    /* lower: magnitudes 0 .. 3. A scale has no sign: without that term, which the compiler cannot know to be 0, it
     * would make the number anew for each use. */
    static CU_READ_FN side load_x(const struct x_row &x, int b)
    {
        uint4 l = fresh16(x.q + b * 32), h = fresh16(x.q + b * 32 + 16);
        float d = x.d[b];
        return { make_uint4(permute(l.x, h.x, 0x5140), permute(l.x, h.x, 0x7362), permute(l.y, h.y, 0x5140),
                            permute(l.y, h.y, 0x7362)),
                 make_uint4(permute(l.z, h.z, 0x5140), permute(l.z, h.z, 0x7362), permute(l.w, h.w, 0x5140),
                            permute(l.w, h.w, 0x7362)),
                 d, 0x03020100 + (pf_float_bits(d) >> 31) };
    }

    static CU_READ_FN struct term dot(const raw &r, const side &x, int)
    {
        enum { UPPER = 0x0c080604 };                             /* magnitudes 4, 6, 8, 12 */
        uint32_t shift = 8 * r.at + 8, w[8], minus[8];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t c = __funnelshift_rc(r.a[i], r.a[i + 1], shift), v = c ^ 0x88888888;
            w[2 * i] = permute(x.lower, UPPER, c);
            w[2 * i + 1] = permute(x.lower, UPPER, c >> 16);
            minus[2 * i] = permute(x.lower, UPPER, v);
            minus[2 * i + 1] = permute(x.lower, UPPER, v >> 16);
        }
        int sum = dot16(make_uint4(w[0], w[1], w[2], w[3]), x.x0, 0);
        int less = dot16(make_uint4(minus[0], minus[1], minus[2], minus[3]), x.x0, 0);
        sum = dot16(make_uint4(w[4], w[5], w[6], w[7]), x.x1, sum);
        less = dot16(make_uint4(minus[4], minus[5], minus[6], minus[7]), x.x1, less);
        return { mx_scale((uint8_t)(r.a[0] >> 8 * r.at)) * x.d, (float)(sum - less), 0, 0 };
    }
};

#endif
