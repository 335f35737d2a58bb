/* One weight row times one row of activations, by a warp, in the order of docs/numerics.md.
 *
 *     lanes      0..7         8..15        16..23       24..31          a round: 32 blocks of 32, a block per lane
 *                segment      segment      segment      segment         s runs from lane to lane of its segment;
 *                                                                       then the four s are added to total in order
 *
 * A lane gets the terms of its block (struct term); who reads the block's bytes is the type's affair: lanes of a segment
 * may share loads and exchange partial integer sums, which are exact in any order. */
#ifndef PF_CU_DOT_H
#define PF_CU_DOT_H

#include "kernels/cuda/cu_blocks.h"

/* What a block adds: s = fmaf(p, f, s), then, for types with a second term, s = fmaf(m, g, s). */
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

CU_INLINE int sum_of_block(const struct x_row &x, int b)
{
    int two = __ldg((const int *)x.s + b);
    return (int)(int16_t)two + (two >> 16);
}

CU_INLINE uint4 load16(const void *p)
{
    return __ldg((const uint4 *)p);
}

CU_INLINE int dot16(uint4 w, uint4 x, int sum)
{
    sum = __dp4a((int)w.x, (int)x.x, sum);
    sum = __dp4a((int)w.y, (int)x.y, sum);
    sum = __dp4a((int)w.z, (int)x.z, sum);
    return __dp4a((int)w.w, (int)x.w, sum);
}

/* N words from an address of any alignment; reads up to a word past them. */
template <int N>
CU_INLINE void load_words(const uint8_t *p, uint32_t (&w)[N])
{
    const uint32_t *a = (const uint32_t *)((uintptr_t)p & ~(uintptr_t)3);
    uint32_t shift = ((uint32_t)(uintptr_t)p & 3) * 8, low = __ldg(a);
#pragma unroll
    for (int i = 0; i < N; i++) {
        uint32_t high = __ldg(a + i + 1);
        w[i] = __funnelshift_r(low, high, shift);
        low = high;
    }
}

/* ---- Types: load() fetches what a lane needs of block b, dot() makes the terms ---------------------------------------- */

/* Any type, through its reader. */
template <class R>
struct plain {
    static constexpr bool whole_segments = false, second = R::kind != ONE_TERM;
    typedef struct cu_block raw;

    static CU_READ_FN raw load(const uint8_t *row, int b, const struct cu_tables &t) { return read_block<R>(row, b, t); }

    static CU_READ_FN struct term dot(const raw &w, const struct x_row &x, int b)
    {
        uint4 x0 = load16(x.q + b * 32), x1 = load16(x.q + b * 32 + 16);
        int lower = w.sc[0] * dot16(make_uint4(w.code[0], w.code[1], w.code[2], w.code[3]), x0, 0);
        int upper = w.sc[1] * dot16(make_uint4(w.code[4], w.code[5], w.code[6], w.code[7]), x1, 0);
        float da = __ldg(x.d + b);
        if (R::kind == TWO_SCALES)
            return { w.dw * da, (float)lower, w.dw1 * da, (float)upper };
        struct term t = { w.dw * da, (float)(lower + upper), 0, 0 };
        if (R::kind == MINIMUMS) {
            int two = __ldg((const int *)x.s + b);
            t.m = -w.mw;
            t.g = da * (float)(w.mn[0] * (int16_t)two + w.mn[1] * (two >> 16));
        }
        return t;
    }
};

/* The scale and minimum of block g from the twelve bytes of Q4_K and Q5_K, as words. */
CU_INLINE struct scale_min scale_min_words(uint32_t a, uint32_t b, uint32_t c, int g)
{
    int s = 8 * (g & 3);
    uint32_t lo = a >> s, mid = b >> s, hi = c >> s;
    if (g < 4)
        return { (int)(lo & 63), (int)(mid & 63) };
    return { (int)((hi & 15) | (lo >> 2 & 0x30)), (int)((hi >> 4 & 15) | (mid >> 2 & 0x30)) };
}

/* A pair of lanes shares the 32 bytes of two blocks, low and high nibbles: each takes sixteen of them for both. */
template <bool FIVE>
struct k45 {
    static constexpr bool whole_segments = true, second = true;
    enum { BYTES = FIVE ? 176 : 144 };
    struct raw { uint4 head, w, fifth; };

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

    static CU_READ_FN struct term dot(const raw &r, const struct x_row &x, int b)
    {
        int g = b % 8, odd = g & 1;
        const int8_t *q = x.q + (b - odd) * 32 + 16 * odd;
        uint4 lo = make_uint4(r.w.x & 0x0f0f0f0f, r.w.y & 0x0f0f0f0f, r.w.z & 0x0f0f0f0f, r.w.w & 0x0f0f0f0f);
        uint4 hi = make_uint4(r.w.x >> 4 & 0x0f0f0f0f, r.w.y >> 4 & 0x0f0f0f0f, r.w.z >> 4 & 0x0f0f0f0f, r.w.w >> 4 & 0x0f0f0f0f);
        if (FIVE) {
            int c = g - odd;
            lo.x |= (r.fifth.x >> c & 0x01010101) << 4, hi.x |= (r.fifth.x >> (c + 1) & 0x01010101) << 4;
            lo.y |= (r.fifth.y >> c & 0x01010101) << 4, hi.y |= (r.fifth.y >> (c + 1) & 0x01010101) << 4;
            lo.z |= (r.fifth.z >> c & 0x01010101) << 4, hi.z |= (r.fifth.z >> (c + 1) & 0x01010101) << 4;
            lo.w |= (r.fifth.w >> c & 0x01010101) << 4, hi.w |= (r.fifth.w >> (c + 1) & 0x01010101) << 4;
        }
        int even_sum = dot16(lo, load16(q), 0), odd_sum = dot16(hi, load16(q + 32), 0);
        int sum = (odd ? odd_sum : even_sum) + __shfl_xor_sync(ALL_LANES, odd ? even_sum : odd_sum, 1);
        struct scale_min sm = scale_min_words(r.head.y, r.head.z, r.head.w, g);
        float d = half_value((uint16_t)r.head.x), dmin = half_value((uint16_t)(r.head.x >> 16)), da = __ldg(x.d + b);
        return { d * (float)sm.sc * da, (float)sum, -(dmin * (float)sm.mn), da * (float)sum_of_block(x, b) };
    }
};

/* Four lanes share half a super-block: each takes eight positions of its four planes. */
struct k6 {
    static constexpr bool whole_segments = true, second = false;
    struct raw { uint32_t a[2], b[2], high[2], sc[2]; float d; };

    static CU_READ_FN raw load(const uint8_t *row, int b, const struct cu_tables &)
    {
        const uint8_t *p = row + (size_t)(b / 8) * 210;
        int h = b % 8 / 4, t = b % 4;
        raw r;
        load_words(p + 64 * h + 8 * t, r.a);
        load_words(p + 64 * h + 32 + 8 * t, r.b);
        load_words(p + 128 + 32 * h + 8 * t, r.high);
        load_words(p + 192 + 8 * h, r.sc);
        r.d = half_value(__ldg((const unsigned short *)(p + 208)));
        return r;
    }

    static CU_READ_FN int scale(const raw &r, int i)
    {
        return (int8_t)((i < 4 ? r.sc[0] : r.sc[1]) >> 8 * (i & 3));
    }

    static CU_READ_FN struct term dot(const raw &r, const struct x_row &x, int b)
    {
        int t = b % 4, plane[4];
        const int8_t *q = x.q + (b - t) * 32 + 8 * t;
#pragma unroll
        for (int p = 0; p < 4; p++) {
            const uint32_t *low = p % 2 ? r.b : r.a;
            uint2 v = __ldg((const uint2 *)(q + 32 * p));
            uint32_t w0 = (low[0] >> (p / 2 * 4) & 0x0f0f0f0f) | (r.high[0] >> 2 * p & 0x03030303) << 4;
            uint32_t w1 = (low[1] >> (p / 2 * 4) & 0x0f0f0f0f) | (r.high[1] >> 2 * p & 0x03030303) << 4;
            plane[p] = scale(r, 2 * p + t / 2) * __dp4a((int)w1, (int)v.y, __dp4a((int)w0, (int)v.x, 0));
        }
        int keep0 = t < 2 ? plane[0] : plane[2], keep1 = t < 2 ? plane[1] : plane[3];
        keep0 += __shfl_xor_sync(ALL_LANES, t < 2 ? plane[2] : plane[0], 2);
        keep1 += __shfl_xor_sync(ALL_LANES, t < 2 ? plane[3] : plane[1], 2);
        int sum = (t & 1 ? keep1 : keep0) + __shfl_xor_sync(ALL_LANES, t & 1 ? keep0 : keep1, 1);
        int two = __ldg((const int *)x.s + b);
        sum -= 32 * (scale(r, 2 * t) * (int16_t)two + scale(r, 2 * t + 1) * (two >> 16));
        return { r.d * __ldg(x.d + b), (float)sum, 0, 0 };
    }
};

struct q8 {
    static constexpr bool whole_segments = false, second = false;
    struct raw { uint32_t a[9]; uint32_t half; };

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

    static CU_READ_FN struct term dot(const raw &r, const struct x_row &x, int b)
    {
        uint4 x0 = load16(x.q + b * 32), x1 = load16(x.q + b * 32 + 16);
        uint32_t w[8], shift = 16 + 8 * r.half;                  /* 32 where the codes begin at a word */
#pragma unroll
        for (int i = 0; i < 8; i++)
            w[i] = __funnelshift_rc(r.a[i], r.a[i + 1], shift);
        int sum = dot16(make_uint4(w[0], w[1], w[2], w[3]), x0, 0);
        sum = dot16(make_uint4(w[4], w[5], w[6], w[7]), x1, sum);
        float d = half_value((uint16_t)(r.a[0] >> 8 * r.half));
        return { d * __ldg(x.d + b), (float)sum, 0, 0 };
    }
};

struct q4 {
    static constexpr bool whole_segments = false, second = false;
    struct raw { uint32_t a[5]; uint32_t half; };

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

    static CU_READ_FN struct term dot(const raw &r, const struct x_row &x, int b)
    {
        uint4 x0 = load16(x.q + b * 32), x1 = load16(x.q + b * 32 + 16);
        uint32_t w[4], shift = 16 + 8 * r.half;
#pragma unroll
        for (int i = 0; i < 4; i++)
            w[i] = __funnelshift_rc(r.a[i], r.a[i + 1], shift);
        uint4 lo = make_uint4(w[0] & 0x0f0f0f0f, w[1] & 0x0f0f0f0f, w[2] & 0x0f0f0f0f, w[3] & 0x0f0f0f0f);
        uint4 hi = make_uint4(w[0] >> 4 & 0x0f0f0f0f, w[1] >> 4 & 0x0f0f0f0f, w[2] >> 4 & 0x0f0f0f0f, w[3] >> 4 & 0x0f0f0f0f);
        int sum = dot16(hi, x1, dot16(lo, x0, 0)) - 8 * sum_of_block(x, b);
        float d = half_value((uint16_t)(r.a[0] >> 8 * r.half));
        return { d * __ldg(x.d + b), (float)sum, 0, 0 };
    }
};

/* Four bytes out of eight, by four nibbles; one whose bit 3 is set gives the sign of its byte instead. */
CU_INLINE uint32_t permute(uint32_t low, uint32_t high, uint32_t nibbles)
{
    uint32_t r;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(low), "r"(high), "r"(nibbles));
    return r;
}

/* Twice E2M1 of eight nibbles: the magnitudes of the positive ones in plus, of the negative ones in minus, 0 elsewhere, since
 * no byte of the table has a sign. */
CU_INLINE void e2m1_words(uint32_t w, uint32_t &plus_lo, uint32_t &plus_hi, uint32_t &minus_lo, uint32_t &minus_hi)
{
    const uint32_t t0 = 0x03020100, t1 = 0x0c080604;
    uint32_t v = w ^ 0x88888888;
    uint32_t a = permute(t0, t1, w), b = permute(t0, t1, w >> 16);
    uint32_t c = permute(t0, t1, v), d = permute(t0, t1, v >> 16);
    plus_lo = __byte_perm(a, b, 0x6420), plus_hi = __byte_perm(a, b, 0x7531);
    minus_lo = __byte_perm(c, d, 0x6420), minus_hi = __byte_perm(c, d, 0x7531);
}

struct mx4 {
    static constexpr bool whole_segments = false, second = false;
    struct raw { uint32_t a[5]; uint32_t at; };

    static CU_READ_FN raw load(const uint8_t *row, int b, const struct cu_tables &)
    {
        uintptr_t p = (uintptr_t)(row + (size_t)b * 17);
        const uint32_t *a = (const uint32_t *)(p & ~(uintptr_t)3);
        raw r;
        r.at = p & 3;
#pragma unroll
        for (int i = 0; i < 5; i++)
            r.a[i] = __ldg(a + i);
        return r;
    }

    static CU_READ_FN struct term dot(const raw &r, const struct x_row &x, int b)
    {
        uint4 x0 = load16(x.q + b * 32), x1 = load16(x.q + b * 32 + 16);
        uint4 pl, ph, ml, mh;
        uint32_t shift = 8 * r.at + 8;
        e2m1_words(__funnelshift_rc(r.a[0], r.a[1], shift), pl.x, ph.x, ml.x, mh.x);
        e2m1_words(__funnelshift_rc(r.a[1], r.a[2], shift), pl.y, ph.y, ml.y, mh.y);
        e2m1_words(__funnelshift_rc(r.a[2], r.a[3], shift), pl.z, ph.z, ml.z, mh.z);
        e2m1_words(__funnelshift_rc(r.a[3], r.a[4], shift), pl.w, ph.w, ml.w, mh.w);
        int sum = dot16(ph, x1, dot16(pl, x0, 0)) - dot16(mh, x1, dot16(ml, x0, 0));
        float dw = mx_scale((uint8_t)(r.a[0] >> 8 * r.at));
        return { dw * __ldg(x.d + b), (float)sum, 0, 0 };
    }
};

/* ---- The chain --------------------------------------------------------------------------------------------------------- */

/* s of the segment, valid in its last lane. After step i the lanes up to i of each segment hold their final s. */
template <bool SECOND>
CU_INLINE float chain(struct term t)
{
    bool first = threadIdx.x % 8 == 0;
    float s = fmaf(t.p, t.f, 0.0f);
    if (SECOND)
        s = fmaf(t.m, t.g, s);
#pragma unroll
    for (int i = 1; i < 8; i++) {
        float before = __shfl_up_sync(ALL_LANES, s, 1);
        float next = fmaf(t.p, t.f, first ? 0.0f : before);
        s = SECOND ? fmaf(t.m, t.g, next) : next;
    }
    return s;
}

/* total, plus the four segments of this round in order. Lanes past the row have added zeros, which change nothing: total
 * is never -0. */
CU_INLINE float add_segments(float total, float s)
{
#pragma unroll
    for (int g = 0; g < 4; g++)
        total = total + __shfl_sync(ALL_LANES, s, 8 * g + 7);
    return total;
}

template <class T>
CU_INLINE int my_block(int b0, int n_blocks)
{
    int b = b0 + (int)(threadIdx.x % WARP);
    if (b < n_blocks)
        return b;
    return T::whole_segments ? n_blocks - 8 + b % 8 : n_blocks - 1;
}

template <class T>
CU_INLINE struct term my_term(const typename T::raw &raw, const struct x_row &x, int b, bool live)
{
    struct term t = T::dot(raw, x, b);
    if (!live)
        t.f = t.g = 0;
    return t;
}

/* Quantised type T. N pairs of weight and activation rows: their chains run side by side. */
template <class T>
struct quantised {
    template <int N>
    static CU_READ_FN void pairs(const uint8_t *const (&row)[N], const struct x_row (&x)[N], int n, const struct cu_tables &t,
                                 float (&total)[N])
    {
        int n_blocks = n / 32, b = my_block<T>(0, n_blocks);
        typename T::raw raw[N];
#pragma unroll
        for (int i = 0; i < N; i++) {
            total[i] = 0;
            raw[i] = T::load(row[i], b, t);
        }
        for (int b0 = 0; b0 < n_blocks; b0 += WARP) {
            bool live = b0 + (int)(threadIdx.x % WARP) < n_blocks;
            float s[N];
            int now = b;
            struct term terms[N];
            b = my_block<T>(b0 + WARP, n_blocks);
#pragma unroll
            for (int i = 0; i < N; i++) {
                typename T::raw held = raw[i];
                raw[i] = T::load(row[i], b, t);
                terms[i] = my_term<T>(held, x[i], now, live);
            }
#pragma unroll
            for (int i = 0; i < N; i++)
                s[i] = chain<T::second>(terms[i]);
#pragma unroll
            for (int i = 0; i < N; i++)
                total[i] = add_segments(total[i], s[i]);
        }
    }

    /* One weight row, the first n_x of N activation rows n apart. */
    template <int N>
    static CU_READ_FN void rows(const uint8_t *row, const struct cu_x &x, int x0, int n_x, int n, const struct cu_tables &t,
                                float (&total)[N])
    {
        int n_blocks = n / 32;
#pragma unroll
        for (int j = 0; j < N; j++)
            total[j] = 0;
        for (int b0 = 0; b0 < n_blocks; b0 += WARP) {
            int b = my_block<T>(b0, n_blocks);
            bool live = b0 + (int)(threadIdx.x % WARP) < n_blocks;
            typename T::raw raw = T::load(row, b, t);
#pragma unroll
            for (int j = 0; j < N; j++)
                if (j < n_x)
                    total[j] = add_segments(total[j], chain<T::second>(my_term<T>(raw, x_row_of(x, n, x0 + j), b, live)));
        }
    }
};

/* Float type L: lane i is accumulator i. */
template <class L>
struct floats {
    template <int N>
    static CU_READ_FN void pairs(const uint8_t *const (&row)[N], const struct x_row (&x)[N], int n, const struct cu_tables &,
                                 float (&total)[N])
    {
#pragma unroll
        for (int i = 0; i < N; i++)
            total[i] = 0;
#pragma unroll 8
        for (int e = threadIdx.x % WARP; e < n; e += WARP)
#pragma unroll
            for (int i = 0; i < N; i++)
                total[i] = fmaf(L::at(row[i], e), __ldg(x[i].f + e), total[i]);
#pragma unroll
        for (int i = 0; i < N; i++)
            total[i] = warp_fold_all(total[i]);
    }

    template <int N>
    static CU_READ_FN void rows(const uint8_t *row, const struct cu_x &x, int x0, int n_x, int n, const struct cu_tables &,
                                float (&total)[N])
    {
#pragma unroll
        for (int j = 0; j < N; j++)
            total[j] = 0;
#pragma unroll 4
        for (int e = threadIdx.x % WARP; e < n; e += WARP) {
            float w = L::at(row, e);
#pragma unroll
            for (int j = 0; j < N; j++)
                if (j < n_x)
                    total[j] = fmaf(w, __ldg(x.f + (size_t)(x0 + j) * n + e), total[j]);
        }
#pragma unroll
        for (int j = 0; j < N; j++)
            total[j] = warp_fold_all(total[j]);
    }
};

/* How each type is multiplied: types by hand, the rest through their readers. */
typedef floats<load_F32> dot_F32;
typedef floats<load_F16> dot_F16;
typedef floats<load_BF16> dot_BF16;
typedef quantised<q8> dot_Q8_0;
typedef quantised<q4> dot_Q4_0;
typedef quantised<k45<false>> dot_Q4_K;
typedef quantised<k45<true>> dot_Q5_K;
typedef quantised<k6> dot_Q6_K;
typedef quantised<mx4> dot_MXFP4;
#define PLAIN_LIST(X)                                                                                  \
    X(Q4_1) X(Q5_0) X(Q5_1) X(Q2_K) X(Q3_K) X(IQ2_XXS) X(IQ2_XS) X(IQ2_S) X(IQ3_XXS) X(IQ3_S) X(IQ1_S)  \
    X(IQ1_M) X(IQ4_NL) X(IQ4_XS) X(TQ1_0) X(TQ2_0) X(NVFP4) X(Q1_0) X(Q2_0)
#define X(TYPE) typedef quantised<plain<read_##TYPE>> dot_##TYPE;
PLAIN_LIST(X)
#undef X

#define CU_TYPE_LIST(X) X(F32) X(F16) X(BF16) CU_QUANTISED_LIST(X)

#endif
