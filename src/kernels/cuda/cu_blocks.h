/* How a block of 32 of every quantised type is read on the device: the same definition as kernels/ref/ref_block.h,
 * codes packed four to a word for dp4a. One reader per type; products, tiles and embeddings are made from it.
 *
 *     x[i] = dw * sc[h] * code[i] - mw * mn[h],  h = i / 16 */
#ifndef PF_CU_BLOCKS_H
#define PF_CU_BLOCKS_H

#define _Static_assert static_assert
#include "kernels/cuda/cu_device.h"
#include "kernels/qblocks.h"

enum cu_kind { ONE_TERM, MINIMUMS, TWO_SCALES };

struct cu_block {
    uint32_t code[8];          /* 32 signed bytes, the first lowest */
    float    dw, dw1, mw;      /* dw1: TWO_SCALES only; mw: MINIMUMS only */
    int      sc[2], mn[2];     /* 1 unless the type has integer scales per 16 */
};

CU_INLINE uint32_t pack4(int a, int b, int c, int d)
{
    return (uint32_t)(a & 255) | (uint32_t)(b & 255) << 8 | (uint32_t)(c & 255) << 16 | (uint32_t)d << 24;
}

CU_INLINE int nibble(uint8_t byte, int high)
{
    return high ? byte >> 4 : byte & 15;
}

/* Element i of 32 in split halves. */
CU_INLINE int split(const uint8_t *qs, int i)
{
    return nibble(qs[i % 16], i >= 16);
}

CU_INLINE uint32_t signs_even(uint32_t seven)
{
    return seven | (uint32_t)(__popc(seven) & 1) << 7;
}

/* Four bytes of a grid entry, each negated where its bit of signs is set. */
CU_INLINE uint32_t signed4(uint32_t magnitudes, uint32_t signs)
{
    uint32_t flip = (signs & 1 ? 0xffu : 0) | (signs & 2 ? 0xff00u : 0) | (signs & 4 ? 0xff0000u : 0) |
        (signs & 8 ? 0xff000000u : 0);
    return __vsub4(magnitudes ^ flip, flip);
}

CU_INLINE void signed8(uint32_t *code, uint64_t magnitudes, uint32_t signs)
{
    code[0] = signed4((uint32_t)magnitudes, signs);
    code[1] = signed4((uint32_t)(magnitudes >> 32), signs >> 4);
}

/* Fills code from f(i), the code of element i. */
template <class F>
CU_INLINE void each_code(struct cu_block &blk, F f)
{
#pragma unroll
    for (int i = 0; i < 8; i++)
        blk.code[i] = pack4(f(4 * i), f(4 * i + 1), f(4 * i + 2), f(4 * i + 3));
}

struct scale_min { int sc, mn; };

CU_INLINE uint4 load16(const void *p)
{
    return __ldg((const uint4 *)p);
}

/* N words from an address of any alignment, and so many bits further, up to 7; reads up to a word past them. A pointer
 * that goes through an integer is no longer known to be one to shared memory. */
template <int N>
CU_INLINE void load_words(const uint8_t *p, uint32_t (&w)[N], int bits = 0)
{
    uint32_t skip = (uint32_t)(uintptr_t)p & 3, shift = 8 * skip + bits;
    const uint32_t *a = (const uint32_t *)(p - skip);
    uint32_t low = *a;
#pragma unroll
    for (int i = 0; i < N; i++) {
        uint32_t high = a[i + 1];
        w[i] = __funnelshift_r(low, high, shift);
        low = high;
    }
}

/* The scale and minimum of block g from the twelve bytes of Q4_K and Q5_K, as words. */
CU_INLINE struct scale_min scale_min_words(uint32_t a, uint32_t b, uint32_t c, int g)
{
    int s = 8 * (g & 3);
    uint32_t lo = a >> s, mid = b >> s, hi = c >> s;
    if (g < 4)
        return { (int)(lo & 63), (int)(mid & 63) };
    return { (int)((hi & 15) | (lo >> 2 & 0x30)), (int)((hi >> 4 & 15) | (mid >> 2 & 0x30)) };
}

CU_INLINE struct scale_min scale_min_of(const uint8_t *s, int g)
{
    if (g < 4)
        return { s[g] & 63, s[g + 4] & 63 };
    return { (s[g + 4] & 15) + 16 * (s[g - 4] >> 6), (s[g + 4] >> 4) + 16 * (s[g] >> 6) };
}

CU_INLINE int trit(uint8_t byte, int k)
{
    int pow3 = k == 0 ? 1 : k == 1 ? 3 : k == 2 ? 9 : k == 3 ? 27 : 81;
    return (uint8_t)(byte * pow3) * 3 >> 8;
}

CU_INLINE float half_ue4m3(uint8_t v)
{
    int exponent = v >> 3 & 15, mantissa = v & 7;
    if (v == 0x7f)
        return 0;
    return exponent == 0 ? (float)mantissa * 0x1p-10f : (float)((8 + mantissa) << exponent) * 0x1p-11f;
}

CU_INLINE float mx_scale(uint8_t e)
{
    return pf_bits_float(e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23);
}

#define READER(TYPE, kind_, body)                                                                                     \
    struct read_##TYPE {                                                                                              \
        static constexpr enum cu_kind kind = kind_;                                                                   \
        static CU_READ_FN void read(const uint8_t *row, int b, const struct cu_tables &t, struct cu_block &blk)       \
        body                                                                                                          \
    };
#define CU_READ_FN __device__ __forceinline__
#define BLOCK_OF(type, per) const struct type *w = (const struct type *)row + b / (per)

READER(Q4_0, ONE_TERM, {
    BLOCK_OF(pf_block_q4_0, 1);
    blk.dw = half_value(w->d);
    each_code(blk, [&](int i) { return split(w->qs, i) - 8; });
})

READER(Q4_1, MINIMUMS, {
    BLOCK_OF(pf_block_q4_1, 1);
    blk.dw = half_value(w->d);
    blk.mw = -half_value(w->m);
    each_code(blk, [&](int i) { return split(w->qs, i); });
})

READER(Q5_0, ONE_TERM, {
    BLOCK_OF(pf_block_q5_0, 1);
    uint32_t qh = w->qh;
    blk.dw = half_value(w->d);
    each_code(blk, [&](int i) { return split(w->qs, i) + (int)(qh >> i & 1) * 16 - 16; });
})

READER(Q5_1, MINIMUMS, {
    BLOCK_OF(pf_block_q5_1, 1);
    uint32_t qh = w->qh;
    blk.dw = half_value(w->d);
    blk.mw = -half_value(w->m);
    each_code(blk, [&](int i) { return split(w->qs, i) + (int)(qh >> i & 1) * 16; });
})

READER(Q8_0, ONE_TERM, {
    BLOCK_OF(pf_block_q8_0, 1);
    blk.dw = half_value(w->d);
    load_words((const uint8_t *)w->qs, blk.code);
})

READER(Q2_K, MINIMUMS, {
    BLOCK_OF(pf_block_q2_k, 8);
    int g = b % 8;
    int h = g / 4;
    int p = g % 4;
    blk.dw = half_value(w->d);
    blk.mw = half_value(w->dmin);
    for (int k = 0; k < 2; k++) {
        blk.sc[k] = w->scales[2 * g + k] & 15;
        blk.mn[k] = w->scales[2 * g + k] >> 4;
    }
    each_code(blk, [&](int l) { return w->qs[32 * h + l] >> 2 * p & 3; });
})

READER(Q3_K, ONE_TERM, {
    BLOCK_OF(pf_block_q3_k, 8);
    int g = b % 8;
    int h = g / 4;
    int p = g % 4;
    blk.dw = half_value(w->d);
    for (int k = 0; k < 2; k++) {
        int j = 2 * g + k;
        blk.sc[k] = nibble(w->scales[j % 8], j >= 8) + 16 * (w->scales[8 + j % 4] >> 2 * (j / 4) & 3) - 32;
    }
    each_code(blk, [&](int l) { return (w->qs[32 * h + l] >> 2 * p & 3) + 4 * (w->hmask[l] >> g & 1) - 4; });
})

/* Codes and scales of Q4_K and Q5_K, whose blocks begin at multiples of 16 bytes. */
CU_INLINE void read_k45(const uint8_t *p, const uint8_t *qs, int g, struct cu_block &blk)
{
    uint4 head = load16(p);
    struct scale_min s = scale_min_words(head.y, head.z, head.w, g);
    blk.dw = half_value((uint16_t)head.x) * (float)s.sc;
    blk.mw = half_value((uint16_t)(head.x >> 16)) * (float)s.mn;
    for (int i = 0; i < 2; i++) {
        uint4 w = load16(qs + 32 * (g / 2) + 16 * i);
        int shift = 4 * (g & 1);
        blk.code[4 * i] = w.x >> shift & 0x0f0f0f0f;
        blk.code[4 * i + 1] = w.y >> shift & 0x0f0f0f0f;
        blk.code[4 * i + 2] = w.z >> shift & 0x0f0f0f0f;
        blk.code[4 * i + 3] = w.w >> shift & 0x0f0f0f0f;
    }
}

READER(Q4_K, MINIMUMS, {
    BLOCK_OF(pf_block_q4_k, 8);
    read_k45((const uint8_t *)w, w->qs, b % 8, blk);
})

READER(Q5_K, MINIMUMS, {
    BLOCK_OF(pf_block_q5_k, 8);
    const uint32_t *qh = (const uint32_t *)w->qh;
    read_k45((const uint8_t *)w, w->qs, b % 8, blk);
    for (int i = 0; i < 8; i++)
        blk.code[i] |= (__ldg(qh + i) >> b % 8 & 0x01010101) << 4;
})

/* Bytes that are small and not negative, less a small number each: no byte borrows from the next. */
CU_INLINE uint32_t minus4(uint32_t bytes, uint32_t less)
{
    return ((bytes | 0x80808080) - less) ^ 0x80808080;
}

READER(Q6_K, ONE_TERM, {
    BLOCK_OF(pf_block_q6_k, 8);
    int g = b % 8;
    int h = g / 4;
    int p = g % 4;
    uint32_t low[8];
    uint32_t high[8];
    load_words(w->ql + 64 * h + 32 * (p % 2), low);
    load_words(w->qh + 32 * h, high);
    blk.dw = half_value(w->d);
    blk.sc[0] = w->scales[2 * g];
    blk.sc[1] = w->scales[2 * g + 1];
    for (int i = 0; i < 8; i++)
        blk.code[i] = minus4((low[i] >> p / 2 * 4 & 0x0f0f0f0f) | (high[i] >> 2 * p & 0x03030303) << 4, 0x20202020);
})

READER(IQ2_XXS, ONE_TERM, {
    BLOCK_OF(pf_block_iq2_xxs, 8);
    const uint8_t *index = w->sub[b % 8].index;
    uint32_t word = w->sub[b % 8].signs;
    blk.dw = (half_value(w->d) * 0.125f) * (float)(2 * (word >> 28) + 1);
    for (int k = 0; k < 4; k++)
        signed8(blk.code + 2 * k, t.iq2_xxs[index[k]], signs_even(word >> 7 * k & 127));
})

READER(IQ2_XS, ONE_TERM, {
    BLOCK_OF(pf_block_iq2_xs, 8);
    int g = b % 8;
    blk.dw = half_value(w->d) * 0.125f;
    for (int h = 0; h < 2; h++)
        blk.sc[h] = 2 * nibble(w->scales[g], h) + 1;
    for (int k = 0; k < 4; k++) {
        uint32_t v = w->qs[4 * g + k];
        signed8(blk.code + 2 * k, t.iq2_xs[v & 511], signs_even(v >> 9));
    }
})

READER(IQ2_S, ONE_TERM, {
    BLOCK_OF(pf_block_iq2_s, 8);
    int g = b % 8;
    blk.dw = half_value(w->d) * 0.125f;
    for (int h = 0; h < 2; h++)
        blk.sc[h] = 2 * nibble(w->scales[g], h) + 1;
    for (int k = 0; k < 4; k++)
        signed8(blk.code + 2 * k, t.iq2_s[w->qs[4 * g + k] + 256 * (w->qh[g] >> 2 * k & 3)], w->signs[4 * g + k]);
})

READER(IQ3_XXS, ONE_TERM, {
    BLOCK_OF(pf_block_iq3_xxs, 8);
    uint32_t word = w->signs[b % 8];
    blk.dw = (half_value(w->d) * 0.25f) * (float)(2 * (word >> 28) + 1);
    for (int k = 0; k < 8; k++)
        blk.code[k] = signed4(t.iq3_xxs[w->qs[8 * (b % 8) + k]], signs_even(word >> 7 * (k / 2) & 127) >> 4 * (k % 2));
})

READER(IQ3_S, ONE_TERM, {
    BLOCK_OF(pf_block_iq3_s, 8);
    int g = b % 8;
    blk.dw = half_value(w->d) * (float)(2 * nibble(w->scales[g / 2], g % 2) + 1);
    for (int k = 0; k < 8; k++)
        blk.code[k] = signed4(t.iq3_s[w->qs[8 * g + k] + 256 * (w->qh[g] >> k & 1)],
                              w->signs[4 * g + k / 2] >> 4 * (k % 2));
})

/* 8 v + 1, or - 1 for a negative delta, of eight trits. */
CU_INLINE void ternary8(uint32_t *code, uint64_t grid, int negative)
{
    uint32_t one = negative ? 0xffffffffu : 0x01010101u;
    for (int i = 0; i < 2; i++) {
        uint32_t v = (uint32_t)(grid >> 32 * i);
        v = (v & 0x1f1f1f1fu) << 3;
        code[i] = __vadd4(v, one);
    }
}

READER(IQ1_S, ONE_TERM, {
    BLOCK_OF(pf_block_iq1_s, 8);
    int g = b % 8;
    int qh = w->qh[g];
    blk.dw = (half_value(w->d) * 0.125f) * (float)(2 * (qh >> 12 & 7) + 1);
    for (int k = 0; k < 4; k++)
        ternary8(blk.code + 2 * k, t.iq1[w->qs[4 * g + k] + 256 * (qh >> 3 * k & 7)], qh >> 15);
})

READER(IQ1_M, ONE_TERM, {
    BLOCK_OF(pf_block_iq1_m, 8);
    int g = b % 8;
    uint32_t d = 0;
    for (int k = 0; k < 4; k++)
        d |= (uint32_t)(w->scales[k] >> 12) << 4 * k;
    blk.dw = half_value((uint16_t)d) * 0.125f;
    for (int h = 0; h < 2; h++)
        blk.sc[h] = 2 * (w->scales[g / 2] >> 3 * (2 * (g % 2) + h) & 7) + 1;
    for (int k = 0; k < 4; k++) {
        int bits = nibble(w->qh[2 * g + k / 2], k % 2);
        ternary8(blk.code + 2 * k, t.iq1[w->qs[4 * g + k] + 256 * (bits & 7)], bits & 8);
    }
})

READER(IQ4_NL, ONE_TERM, {
    BLOCK_OF(pf_block_iq4_nl, 1);
    blk.dw = half_value(w->d);
    each_code(blk, [&](int i) { return t.iq4[split(w->qs, i)]; });
})

READER(IQ4_XS, ONE_TERM, {
    BLOCK_OF(pf_block_iq4_xs, 8);
    int g = b % 8;
    int scale = nibble(w->scales_l[g / 2], g % 2) + 16 * (w->scales_h >> 2 * g & 3);
    blk.dw = half_value(w->d) * (float)(scale - 32);
    each_code(blk, [&](int i) { return t.iq4[split(w->qs + 16 * g, i)]; });
})

CU_INLINE int tq1_0_trit(const struct pf_block_tq1_0 *w, int i)
{
    if (i < 160)
        return trit(w->qs[i % 32], i / 32);
    if (i < 240)
        return trit(w->qs[32 + (i - 160) % 16], (i - 160) / 16);
    return trit(w->qh[(i - 240) % 4], (i - 240) / 4);
}

READER(TQ1_0, ONE_TERM, {
    BLOCK_OF(pf_block_tq1_0, 8);
    blk.dw = half_value(w->d);
    each_code(blk, [&](int i) { return tq1_0_trit(w, b % 8 * 32 + i) - 1; });
})

READER(TQ2_0, ONE_TERM, {
    BLOCK_OF(pf_block_tq2_0, 8);
    int h = b % 8 / 4;
    int p = b % 4;
    blk.dw = half_value(w->d);
    each_code(blk, [&](int l) { return (w->qs[32 * h + l] >> 2 * p & 3) - 1; });
})

/* Twice E2M1 lies in -12..12; looked up as that plus 12. v is w with bit 3 of every nibble flipped: a nibble of the
 * first kind (positive) finds its byte in the first table and, its bit 3 flipped, a sign of 0 in the second; one of the
 * second kind the other way round. The codes of eight nibbles take two calls, the second with both shifted by 16. */
CU_INLINE uint32_t e2m1_plus_12(uint32_t w, uint32_t v)
{
    return permute(0x0f0e0d0c, 0x18141210, w) | permute(0x090a0b0c, 0x00040608, v);
}

READER(MXFP4, ONE_TERM, {
    BLOCK_OF(pf_block_mxfp4, 1);
    uint32_t q[4];
    load_words(w->qs, q);
    blk.dw = mx_scale(w->e);
    for (int i = 0; i < 4; i++) {
        uint32_t v = q[i] ^ 0x88888888;
        uint32_t a = e2m1_plus_12(q[i], v);
        uint32_t c = e2m1_plus_12(q[i] >> 16, v >> 16);
        blk.code[i] = minus4(permute(a, c, 0x6420), 0x0c0c0c0c);
        blk.code[i + 4] = minus4(permute(a, c, 0x7531), 0x0c0c0c0c);
    }
})

READER(NVFP4, TWO_SCALES, {
    BLOCK_OF(pf_block_nvfp4, 2);
    int sub = b % 2 * 2;
    blk.dw = half_ue4m3(w->d[sub]);
    blk.dw1 = half_ue4m3(w->d[sub + 1]);
    each_code(blk, [&](int i) { return t.e2m1[nibble(w->qs[8 * (sub + i / 16) + i % 8], i % 16 >= 8)]; });
})

READER(Q1_0, ONE_TERM, {
    BLOCK_OF(pf_block_q1_0, 4);
    blk.dw = half_value(w->d);
    each_code(blk, [&](int i) { return w->qs[b % 4 * 4 + i / 8] >> i % 8 & 1 ? 1 : -1; });
})

READER(Q2_0, ONE_TERM, {
    BLOCK_OF(pf_block_q2_0, 2);
    blk.dw = half_value(w->d);
    each_code(blk, [&](int i) { return (w->qs[b % 2 * 8 + i / 4] >> 2 * (i % 4) & 3) - 1; });
})

#define CU_QUANTISED_LIST(X)                                                                        \
    X(Q4_0) X(Q4_1) X(Q5_0) X(Q5_1) X(Q8_0) X(Q2_K) X(Q3_K) X(Q4_K) X(Q5_K) X(Q6_K) X(IQ2_XXS)      \
    X(IQ2_XS) X(IQ2_S) X(IQ3_XXS) X(IQ3_S) X(IQ1_S) X(IQ1_M) X(IQ4_NL) X(IQ4_XS) X(TQ1_0) X(TQ2_0)  \
    X(MXFP4) X(NVFP4) X(Q1_0) X(Q2_0)

template <class R>
CU_INLINE struct cu_block read_block(const uint8_t *row, int b, const struct cu_tables &t)
{
    struct cu_block blk = { .sc = { 1, 1 }, .mn = { 1, 1 } };
    R::read(row, b, t, blk);
    return blk;
}

/* Value of element i of a block, as kernels/ref/ref_block.h dequantises. */
template <class R>
CU_INLINE float block_value(const struct cu_block &blk, int i)
{
    int h = i / 16, code = (int8_t)(blk.code[i / 4] >> 8 * (i % 4));
    float d = R::kind == TWO_SCALES && h ? blk.dw1 : blk.dw;
    float x = (d * (float)blk.sc[h]) * (float)code;
    return R::kind == MINIMUMS ? x - blk.mw * (float)blk.mn[h] : x;
}

/* Float types: element i of a row, and of one in shared memory. */
struct load_F32 {
    static CU_READ_FN float at(const uint8_t *row, int i) { return __ldg((const float *)row + i); }
    static CU_READ_FN float shared(const uint8_t *row, int i) { return ((const float *)row)[i]; }
};
struct load_F16 {
    static CU_READ_FN float at(const uint8_t *row, int i) { return half_value(__ldg((const unsigned short *)row + i)); }
    static CU_READ_FN float shared(const uint8_t *row, int i) { return half_value(((const unsigned short *)row)[i]); }
};
struct load_BF16 {
    static CU_READ_FN float at(const uint8_t *row, int i)
    {
        return pf_bits_float((uint32_t)__ldg((const unsigned short *)row + i) << 16);
    }
    static CU_READ_FN float shared(const uint8_t *row, int i)
    {
        return pf_bits_float((uint32_t)((const unsigned short *)row)[i] << 16);
    }
};

#endif
