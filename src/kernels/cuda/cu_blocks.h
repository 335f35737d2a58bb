/* How a block of 32 of every quantised type is read on the device: the same definition as kernels/ref/ref_block.h,
 * codes packed four to a word for dp4a. One reader per type; products, tiles and embeddings are made from it.
 *
 *     x[i] = dw * sc[h] * code[i] - mw * mn[h],  h = i / 16
 *
 * Most readers come in two parts, so that lanes can share a block: its scales, and its codes two words at a time, in
 * the order in which the tensor cores take them. Rows begin at multiples of four bytes, if blocks have whole words,
 * else at even addresses; only MXFP4 begins anywhere. */
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

CU_INLINE uint32_t signs_even(uint32_t seven)
{
    return seven | (uint32_t)(__popc(seven) & 1) << 7;
}

/* The lowest four bits as bytes of 0 and 1: the product moves bit i to bit 8 i, and no two of its bits meet. */
CU_INLINE uint32_t spread4(uint32_t bits)
{
    return (bits & 15) * 0x00204081 & 0x01010101;
}

/* Four bytes of a grid entry, each negated where its bit of the lowest four is set. None is 0, so no byte's sum goes
 * over into the next. */
CU_INLINE uint32_t signed4(uint32_t magnitudes, uint32_t signs)
{
    uint32_t one = spread4(signs);
    return (magnitudes ^ one * 255) + one;
}

/* Bytes that are small and not negative, less a small number each: no byte borrows from the next. */
CU_INLINE uint32_t minus4(uint32_t bytes, uint32_t less)
{
    return ((bytes | 0x80808080) - less) ^ 0x80808080;
}

/* The j-th word from an even address on. Reads up to a word past it. */
CU_INLINE uint32_t even_word_at(const void *p, int j)
{
    uint32_t skip = (uint32_t)(uintptr_t)p & 2;
    const uint32_t *a = (const uint32_t *)((const uint8_t *)p - skip) + j;
    return __funnelshift_r(a[0], a[1], 8 * skip);
}

/* A half at an even address. */
CU_INLINE float half_at(const void *p)
{
    return half_value(*(const uint16_t *)p);
}

/* The j-th word from an address on that is a multiple of four. */
CU_INLINE uint32_t word_at(const void *p, int j)
{
    return ((const uint32_t *)p)[j];
}

/* Word j % 2 of a grid entry. */
CU_INLINE uint32_t half_of(uint64_t entry, int j)
{
    return (uint32_t)(j & 1 ? entry >> 32 : entry);
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

#define CU_READ_FN __device__ __forceinline__
#define READER(TYPE, kind_, body)                                                                                     \
    struct read_##TYPE {                                                                                              \
        static constexpr enum cu_kind kind = kind_;                                                                   \
        static CU_READ_FN void read(const uint8_t *row, int b, const struct cu_tables &t, struct cu_block &blk)       \
        body                                                                                                          \
    };
#define BLOCK_OF(type, per) const struct type *w = (const struct type *)row + b / (per)

/* A reader in two parts. B has PER blocks of 32; R has, of block g of these,
 *
 *     head     all but the codes
 *     words    words j and j + 4 of the codes, j < 4: elements 4 j .. 4 j + 3 and as many from 16 + 4 j on
 *
 * HALVES: sc, and maybe mn, are not 1, and dw and mw are the same for all of B's blocks. */
template <class R, class B, int PER, enum cu_kind KIND, bool HALVES = false>
struct by_words {
    static constexpr enum cu_kind kind = KIND;
    static constexpr bool halves = HALVES;
    static constexpr int per = PER;
    typedef B blocks;

    static CU_READ_FN void read(const uint8_t *row, int b, const struct cu_tables &t, struct cu_block &blk)
    {
        const B *w = (const B *)row + b / PER;
        R::head(w, b % PER, blk);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t two[2];
            R::words(w, b % PER, j, t, two);
            blk.code[j] = two[0], blk.code[j + 4] = two[1];
        }
    }
};

#define BY_WORDS(TYPE, blocks, ...) \
    struct read_##TYPE : by_words<read_##TYPE, struct blocks, __VA_ARGS__>
#define HEAD(blocks) static CU_READ_FN void head(const struct blocks *w, int g, struct cu_block &blk)
#define CODES(blocks)                                                                                         \
    static CU_READ_FN void words(const struct blocks *w, int g, int j, const struct cu_tables &t, uint32_t (&two)[2])

/* The low and high nibbles of a word. */
CU_INLINE void nibbles4(uint32_t both, uint32_t (&two)[2])
{
    two[0] = both & 0x0f0f0f0f;
    two[1] = both >> 4 & 0x0f0f0f0f;
}

BY_WORDS(Q4_0, pf_block_q4_0, 1, ONE_TERM) {
    HEAD(pf_block_q4_0) { blk.dw = half_at(&w->d); }
    CODES(pf_block_q4_0)
    {
        nibbles4(even_word_at(w->qs, j), two);
        for (int i = 0; i < 2; i++)
            two[i] = minus4(two[i], 0x08080808);
    }
};

BY_WORDS(Q4_1, pf_block_q4_1, 1, MINIMUMS) {
    HEAD(pf_block_q4_1)
    {
        blk.dw = half_at(&w->d);
        blk.mw = -half_at(&w->m);
    }
    CODES(pf_block_q4_1) { nibbles4(word_at(w->qs, j), two); }
};

/* Word j and j + 4 of the fifth bits. */
CU_INLINE void add_fifth(uint32_t qh, int j, uint32_t (&two)[2])
{
    for (int i = 0; i < 2; i++)
        two[i] |= spread4(qh >> (16 * i + 4 * j)) << 4;
}

BY_WORDS(Q5_0, pf_block_q5_0, 1, ONE_TERM) {
    HEAD(pf_block_q5_0) { blk.dw = half_at(&w->d); }
    CODES(pf_block_q5_0)
    {
        nibbles4(even_word_at(w->qs, j), two);
        add_fifth(even_word_at(&w->qh, 0), j, two);
        for (int i = 0; i < 2; i++)
            two[i] = minus4(two[i], 0x10101010);
    }
};

BY_WORDS(Q5_1, pf_block_q5_1, 1, MINIMUMS) {
    HEAD(pf_block_q5_1)
    {
        blk.dw = half_at(&w->d);
        blk.mw = -half_at(&w->m);
    }
    CODES(pf_block_q5_1)
    {
        nibbles4(word_at(w->qs, j), two);
        add_fifth(word_at(&w->qh, 0), j, two);
    }
};

READER(Q8_0, ONE_TERM, {
    BLOCK_OF(pf_block_q8_0, 1);
    blk.dw = half_at(&w->d);
    load_words((const uint8_t *)w->qs, blk.code);
})

BY_WORDS(Q2_K, pf_block_q2_k, 8, MINIMUMS, true) {
    HEAD(pf_block_q2_k)
    {
        uint32_t two = ((const uint16_t *)w->scales)[g];
        blk.dw = half_at(&w->d);
        blk.mw = half_at(&w->dmin);
        for (int k = 0; k < 2; k++) {
            blk.sc[k] = two >> 8 * k & 15;
            blk.mn[k] = two >> (8 * k + 4) & 15;
        }
    }
    CODES(pf_block_q2_k)
    {
        for (int i = 0; i < 2; i++)
            two[i] = word_at(w->qs + 32 * (g / 4), j + 4 * i) >> 2 * (g % 4) & 0x03030303;
    }
};

BY_WORDS(Q3_K, pf_block_q3_k, 8, ONE_TERM, true) {
    HEAD(pf_block_q3_k)
    {
        uint32_t low = ((const uint16_t *)w->scales)[g % 4] >> g / 4 * 4,
                 high = ((const uint16_t *)w->scales)[4 + g % 2] >> g / 2 * 2;
        blk.dw = half_at(&w->d);
        for (int k = 0; k < 2; k++)
            blk.sc[k] = (int)((low >> 8 * k & 15) | (high >> 8 * k & 3) << 4) - 32;
    }
    CODES(pf_block_q3_k)
    {
        for (int i = 0; i < 2; i++) {
            uint32_t low = even_word_at(w->qs + 32 * (g / 4), j + 4 * i), high = even_word_at(w->hmask, j + 4 * i);
            two[i] = minus4((low >> 2 * (g % 4) & 0x03030303) | (high >> g & 0x01010101) << 2, 0x04040404);
        }
    }
};

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

/* Which of a grid's entries eight elements are, and a bit for each that is negative. */
struct entry { uint32_t number, signs; };

/* Words j and j + 4 of a block whose k-th eight elements are entry(k) of the grid. */
template <class F>
CU_INLINE void by_eights(const uint64_t *grid, int j, uint32_t (&two)[2], F entry)
{
    for (int i = 0; i < 2; i++) {
        struct entry e = entry(j / 2 + 2 * i);
        two[i] = signed4(half_of(grid[e.number], j), e.signs >> 4 * (j & 1));
    }
}

BY_WORDS(IQ2_XXS, pf_block_iq2_xxs, 8, ONE_TERM) {
    HEAD(pf_block_iq2_xxs)
    {
        blk.dw = (half_at(&w->d) * 0.125f) * (float)(int)(2 * (even_word_at(&w->sub[g].signs, 0) >> 28) + 1);
    }
    CODES(pf_block_iq2_xxs)
    {
        uint32_t word = even_word_at(&w->sub[g].signs, 0);
        by_eights(t.iq2_xxs, j, two, [&](int k) {
            return (struct entry){ w->sub[g].index[k], signs_even(word >> 7 * k & 127) };
        });
    }
};

/* Scales of types with a nibble for each 16 elements. */
CU_INLINE void scales_of_nibbles(uint8_t both, struct cu_block &blk)
{
    blk.sc[0] = 2 * (both & 15) + 1;
    blk.sc[1] = 2 * (both >> 4) + 1;
}

BY_WORDS(IQ2_XS, pf_block_iq2_xs, 8, ONE_TERM, true) {
    HEAD(pf_block_iq2_xs)
    {
        blk.dw = half_at(&w->d) * 0.125f;
        scales_of_nibbles(w->scales[g], blk);
    }
    CODES(pf_block_iq2_xs)
    {
        by_eights(t.iq2_xs, j, two, [&](int k) {
            uint32_t v = ((const uint16_t *)w)[1 + 4 * g + k];
            return (struct entry){ v & 511, signs_even(v >> 9) };
        });
    }
};

BY_WORDS(IQ2_S, pf_block_iq2_s, 8, ONE_TERM, true) {
    HEAD(pf_block_iq2_s)
    {
        blk.dw = half_at(&w->d) * 0.125f;
        scales_of_nibbles(w->scales[g], blk);
    }
    CODES(pf_block_iq2_s)
    {
        uint32_t high = w->qh[g];
        by_eights(t.iq2_s, j, two, [&](int k) {
            return (struct entry){ w->qs[4 * g + k] | (high >> 2 * k & 3) << 8, w->signs[4 * g + k] };
        });
    }
};

BY_WORDS(IQ3_XXS, pf_block_iq3_xxs, 8, ONE_TERM) {
    HEAD(pf_block_iq3_xxs)
    {
        blk.dw = (half_at(&w->d) * 0.25f) * (float)(int)(2 * (even_word_at(w->signs, g) >> 28) + 1);
    }
    CODES(pf_block_iq3_xxs)
    {
        uint32_t word = even_word_at(w->signs, g);
        for (int i = 0; i < 2; i++)
            two[i] = signed4(t.iq3_xxs[w->qs[8 * g + 4 * i + j]],
                             signs_even(word >> 7 * (2 * i + j / 2) & 127) >> 4 * (j & 1));
    }
};

BY_WORDS(IQ3_S, pf_block_iq3_s, 8, ONE_TERM) {
    HEAD(pf_block_iq3_s)
    {
        blk.dw = half_at(&w->d) * (float)(int)(2 * (w->scales[g / 2] >> 4 * (g & 1) & 15) + 1);
    }
    CODES(pf_block_iq3_s)
    {
        uint32_t high = w->qh[g];
        for (int i = 0; i < 2; i++)
            two[i] = signed4(t.iq3_s[w->qs[8 * g + 4 * i + j] | (high >> (4 * i + j) & 1) << 8],
                             w->signs[4 * g + 2 * i + j / 2] >> 4 * (j & 1));
    }
};

/* 8 v + 1, or - 1 for a negative delta, of four trits. */
CU_INLINE uint32_t ternary4(uint32_t trits, bool is_negative)
{
    uint32_t delta = is_negative ? 0u - 0x01010101u : 0x01010101u;
    return (((trits & 0x1f1f1f1fu) << 3 ^ 0x80808080u) + delta) ^ 0x80808080u;
}

CU_INLINE int high_of(const struct pf_block_iq1_s *w, int g)
{
    return ((const uint16_t *)w)[17 + g];
}

BY_WORDS(IQ1_S, pf_block_iq1_s, 8, ONE_TERM) {
    HEAD(pf_block_iq1_s)
    {
        blk.dw = (half_at(&w->d) * 0.125f) * (float)(2 * (high_of(w, g) >> 12 & 7) + 1);
    }
    CODES(pf_block_iq1_s)
    {
        int high = high_of(w, g);
        for (int i = 0; i < 2; i++) {
            int k = j / 2 + 2 * i;
            two[i] = ternary4(half_of(t.iq1[w->qs[4 * g + k] | (high >> 3 * k & 7) << 8], j), high >> 15);
        }
    }
};

BY_WORDS(IQ1_M, pf_block_iq1_m, 8, ONE_TERM, true) {
    HEAD(pf_block_iq1_m)
    {
        const uint16_t *scales = (const uint16_t *)w + 24;
        uint32_t d = 0;
        for (int k = 0; k < 4; k++)
            d |= (uint32_t)(scales[k] >> 12) << 4 * k;
        blk.dw = half_value((uint16_t)d) * 0.125f;
        for (int h = 0; h < 2; h++)
            blk.sc[h] = 2 * (scales[g / 2] >> 3 * (2 * (g % 2) + h) & 7) + 1;
    }
    CODES(pf_block_iq1_m)
    {
        for (int i = 0; i < 2; i++) {
            int k = j / 2 + 2 * i;
            uint32_t bits = w->qh[2 * g + i] >> 4 * (j / 2);
            two[i] = ternary4(half_of(t.iq1[w->qs[4 * g + k] | (bits & 7) << 8], j), bits & 8);
        }
    }
};

/* The bytes of a codebook of sixteen for the low and the high nibbles of a word: both of its halves looked up, of which
 * each nibble's bit 3 chooses one. The codebook is IQ4_NL's (pf_codebook_iq4). */
CU_INLINE void look_up_iq4(uint32_t both, uint32_t (&two)[2])
{
    uint32_t index = both & 0x77777777, choice = (both >> 1 & 0x44444444) | 0x32103210, of[2];
    for (int i = 0; i < 2; i++) {
        uint32_t lower = permute(0xbfad9881, 0xf6eaddcf, index >> 16 * i),
                 upper = permute(0x26190d01, 0x71594535, index >> 16 * i);
        of[i] = permute(lower, upper, choice >> 16 * i);
    }
    two[0] = permute(of[0], of[1], 0x6420);
    two[1] = permute(of[0], of[1], 0x7531);
}

BY_WORDS(IQ4_NL, pf_block_iq4_nl, 1, ONE_TERM) {
    HEAD(pf_block_iq4_nl) { blk.dw = half_at(&w->d); }
    CODES(pf_block_iq4_nl) { look_up_iq4(even_word_at(w->qs, j), two); }
};

BY_WORDS(IQ4_XS, pf_block_iq4_xs, 8, ONE_TERM) {
    HEAD(pf_block_iq4_xs)
    {
        uint32_t first = word_at(w, 0), scale = (word_at(w, 1) >> 4 * g & 15) | (first >> (16 + 2 * g) & 3) << 4;
        blk.dw = half_value((uint16_t)first) * (float)((int)scale - 32);
    }
    CODES(pf_block_iq4_xs) { look_up_iq4(word_at(w->qs + 16 * g, j), two); }
};

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

BY_WORDS(TQ2_0, pf_block_tq2_0, 8, ONE_TERM) {
    HEAD(pf_block_tq2_0) { blk.dw = half_at(&w->d); }
    CODES(pf_block_tq2_0)
    {
        for (int i = 0; i < 2; i++)
            two[i] = minus4(even_word_at(w->qs + 32 * (g / 4), j + 4 * i) >> 2 * (g % 4) & 0x03030303, 0x01010101);
    }
};

/* Twice E2M1 lies in -12..12; looked up as that plus 12. v is w with bit 3 of every nibble flipped: a nibble of the
 * first kind (positive) finds its byte in the first table and, its bit 3 flipped, a sign of 0 in the second; one of the
 * second kind the other way round. The codes of eight nibbles take two calls, the second with both shifted by 16. */
CU_INLINE uint32_t e2m1_plus_12(uint32_t w, uint32_t v)
{
    return permute(0x0f0e0d0c, 0x18141210, w) | permute(0x090a0b0c, 0x00040608, v);
}

/* Twice what the low and the high nibbles of a word mean. */
CU_INLINE void e2m1_codes(uint32_t both, uint32_t (&two)[2])
{
    uint32_t v = both ^ 0x88888888, a = e2m1_plus_12(both, v), c = e2m1_plus_12(both >> 16, v >> 16);
    two[0] = minus4(permute(a, c, 0x6420), 0x0c0c0c0c);
    two[1] = minus4(permute(a, c, 0x7531), 0x0c0c0c0c);
}

READER(MXFP4, ONE_TERM, {
    BLOCK_OF(pf_block_mxfp4, 1);
    uint32_t q[4];
    load_words(w->qs, q);
    blk.dw = mx_scale(w->e);
    for (int i = 0; i < 4; i++) {
        uint32_t two[2];
        e2m1_codes(q[i], two);
        blk.code[i] = two[0];
        blk.code[i + 4] = two[1];
    }
})

READER(NVFP4, TWO_SCALES, {
    BLOCK_OF(pf_block_nvfp4, 2);
    int sub = b % 2 * 2;
    blk.dw = half_ue4m3(w->d[sub]);
    blk.dw1 = half_ue4m3(w->d[sub + 1]);
    for (int i = 0; i < 4; i++) {
        uint32_t two[2];
        e2m1_codes(word_at(w->qs + 8 * sub, i), two);
        blk.code[i / 2 * 4 + i % 2] = two[0];
        blk.code[i / 2 * 4 + i % 2 + 2] = two[1];
    }
})

BY_WORDS(Q1_0, pf_block_q1_0, 4, ONE_TERM) {
    HEAD(pf_block_q1_0) { blk.dw = half_at(&w->d); }
    CODES(pf_block_q1_0)
    {
        for (int i = 0; i < 2; i++)
            two[i] = minus4(spread4(w->qs[4 * g + 2 * i + j / 2] >> 4 * (j & 1)) << 1, 0x01010101);
    }
};

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
