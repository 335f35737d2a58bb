/* dot_rows.h for AVX-512 with VNNI, VBMI and GFNI: two rows at once, 64 indices looked up together in tables of bytes.
 *
 * An index of IQ2 and IQ1 stands for eight elements, two neighbouring ones of IQ3 do. Byte 4b + k of the lower half of
 * a vector belongs to the k-th eight elements of block b of one row, of the upper half to those of the other row:
 *
 *     index                  | row r: 32 bytes | row r + 1: 32 bytes |
 *     size[j], acts.q[j]     element j of each eight: its magnitude, its activation (which both rows share)
 *
 * so a lane of 32 bits is a block, and the sum over j of sums of four products in a lane is what is wanted. Signs go to
 * the activations, where VNNI has them; bytes that it takes without signs are magnitudes.
 *
 * Include after avx512_lanes.h. Pure functions; nothing past a row's segment is read. */
#ifndef PF_DOT_VBMI_H
#define PF_DOT_VBMI_H

#include <stddef.h>

#include "kernels/qblocks.h"
#include "kernels/x86/dot_rows.h"
#include "kernels/x86/grid_planes.h"

enum { SECOND_ROW = 0xff00 };    /* of sixteen words or lanes */

/* ---- Activations ------------------------------------------------------------------------------------------------- */

/* A segment of them. What a type does not use is not computed. */
struct acts {
    __m512i q[8], minus[8];      /* minus: -q */
    __m512  d, fraction;         /* of each block; what belongs to d of the type's blocks, a power of two */
    __m512i sum;                 /* of q of each block */
    __m512i half_sum;            /* of each half, words */
    __m512i half_diff;           /* of its first eight less that of its last eight */
};

#define EIGHT(from, step)  (from), (from) + (step), (from) + 2 * (step), (from) + 3 * (step), (from) + 4 * (step), \
                           (from) + 5 * (step), (from) + 6 * (step), (from) + 7 * (step)

/* Of 128 bytes: sixteen times every eighth, from byte 0 on, from 1 on, from 2 on and from 3 on; every second. */
_Alignas(64) static const uint8_t every_eighth[64] = {
    EIGHT(0, 8), EIGHT(64, 8), EIGHT(1, 8), EIGHT(65, 8), EIGHT(2, 8), EIGHT(66, 8), EIGHT(3, 8), EIGHT(67, 8),
};
_Alignas(64) static const uint8_t every_second[64] = {
    EIGHT(0, 2), EIGHT(16, 2), EIGHT(32, 2), EIGHT(48, 2), EIGHT(64, 2), EIGHT(80, 2), EIGHT(96, 2), EIGHT(112, 2),
};

LANE_FN __m512i order_from(const uint8_t order[64], int n)
{
    return _mm512_add_epi8(_mm512_loadu_si512(order), _mm512_set1_epi8((char)n));
}

/* Activations are turned into vectors of every eighth: 16 bytes come from each half of the segment, for both rows. */
LANE_FN void acts_q(struct acts *a, const int8_t *q)
{
    __m512i v[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        v[i] = _mm512_loadu_si512(q + 64 * i);
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        __m512i order = order_from(every_eighth, 4 * i);
        __m512i lo = _mm512_permutex2var_epi8(v[0], order, v[1]), hi = _mm512_permutex2var_epi8(v[2], order, v[3]);
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            const __m512i halves = _mm512_setr_epi64(2 * j, 2 * j + 1, 8 + 2 * j, 9 + 2 * j,
                                                     2 * j, 2 * j + 1, 8 + 2 * j, 9 + 2 * j);
            a->q[4 * i + j] = _mm512_permutex2var_epi64(lo, halves, hi);
            a->minus[4 * i + j] = _mm512_sub_epi8(_mm512_setzero_si512(), a->q[4 * i + j]);
        }
    }
}

LANE_FN struct acts acts_of(const struct pf_xrow *x, int at, float fraction)
{
    struct acts a;
    __m512i first = _mm512_setzero_si512();
    acts_q(&a, x->q + at);
    a.d = _mm512_broadcast_f32x8(_mm256_loadu_ps(x->d + at / 32));
    a.fraction = _mm512_set1_ps(fraction);
    a.half_sum = _mm512_broadcast_i64x4(_mm256_loadu_si256((const void *)(x->s + at / 16)));
    a.sum = _mm512_madd_epi16(a.half_sum, _mm512_set1_epi16(1));
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++)
        first = _mm512_add_epi16(first, _mm512_maddubs_epi16(_mm512_set1_epi16(1), a.q[j]));
    a.half_diff = _mm512_sub_epi16(_mm512_add_epi16(first, first), a.half_sum);
    return a;
}

/* ---- Two rows' fields side by side ------------------------------------------------------------------------------- */

LANE_FN __m128i both_8(const void *a, const void *b)
{
    return _mm_unpacklo_epi64(_mm_loadl_epi64(a), _mm_loadl_epi64(b));
}

LANE_FN __m256i both_16(const void *a, const void *b)
{
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(a)), _mm_loadu_si128(b), 1);
}

LANE_FN __m512i both_32(const void *a, const void *b)
{
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256(a)), _mm256_loadu_si256(b), 1);
}

/* Two F16 as floats, one in each half. */
LANE_FN __m512 both_d(uint16_t a, uint16_t b)
{
    return _mm512_cvtph_ps(_mm256_mask_set1_epi16(_mm256_set1_epi16((short)a), SECOND_ROW, (short)b));
}

/* Every second of the 64 bytes at a and of those at b: from the first on, or from the second. */
LANE_FN __m512i evens(const void *a, const void *b)
{
    return _mm512_permutex2var_epi8(_mm512_loadu_si512(a), order_from(every_second, 0), _mm512_loadu_si512(b));
}

LANE_FN __m512i odds(const void *a, const void *b)
{
    return _mm512_permutex2var_epi8(_mm512_loadu_si512(a), order_from(every_second, 1), _mm512_loadu_si512(b));
}

/* The eight bits of each 64 that begin at bit s0, those at s1 and so on, as bytes; behind bit 63 comes bit 0. */
#define FIELDS(v, s0, s1, s2, s3, s4, s5, s6, s7)                                                                  \
    _mm512_multishift_epi64_epi8(_mm512_set1_epi64((long long)((uint64_t)(s7) << 56 | (uint64_t)(s6) << 48 |       \
                                 (uint64_t)(s5) << 40 | (uint64_t)(s4) << 32 | (uint64_t)(s3) << 24 |              \
                                 (uint64_t)(s2) << 16 | (uint64_t)(s1) << 8 | (uint64_t)(s0))), v)

/* 2 * field + 1 where the bits of mask, of which bit 0 is none, have the field. */
LANE_FN __m512i odd_lanes(__m512i v, int mask)
{
    return _mm512_or_si512(_mm512_and_si512(v, _mm512_set1_epi32(mask)), _mm512_set1_epi32(1));
}

LANE_FN __m512i odd_words(__m512i v, int mask)
{
    return _mm512_or_si512(_mm512_and_si512(v, _mm512_set1_epi16((short)mask)), _mm512_set1_epi16(1));
}

/* The odd scales of both halves of each block, from nibbles; words. */
LANE_FN __m512i odd_nibbles(const uint8_t a[8], const uint8_t b[8])
{
    enum { NONE = 16 };                                   /* zeros behind a byte */
    __m512i v = _mm512_cvtepu8_epi32(both_8(a, b));
    return odd_words(FIELDS(v, 63, NONE, 3, NONE, 31, NONE, 35, NONE), 0x1e);
}

/* What lies above indices of two bits in eight, to the lowest bits of their bytes. */
LANE_FN __m512i bit_pairs_of(const uint8_t a[8], const uint8_t b[8])
{
    return FIELDS(_mm512_cvtepu16_epi64(both_8(a, b)), 0, 2, 4, 6, 8, 10, 12, 14);
}

LANE_FN __mmask64 has_bit(__m512i bytes, int bit)
{
    return _mm512_test_epi8_mask(bytes, _mm512_set1_epi8((char)(1 << bit)));
}

/* Bit i of a byte becomes the parity of those of its bits that row i has. */
#define BIT_MATRIX(r0, r1, r2, r3, r4, r5, r6, r7)                                                                 \
    _mm512_set1_epi64((long long)((uint64_t)(r0) << 56 | (uint64_t)(r1) << 48 | (uint64_t)(r2) << 40 |             \
                      (uint64_t)(r3) << 32 | (uint64_t)(r4) << 24 | (uint64_t)(r5) << 16 |                         \
                      (uint64_t)(r6) << 8 | (uint64_t)(r7)))

/* Seven signs in each byte, from bit 0 on or from bit 1 on, with the eighth that makes the number of set bits even. */
LANE_FN __m512i signs_of_low(__m512i v)
{
    return _mm512_gf2p8affine_epi64_epi8(v, BIT_MATRIX(1, 2, 4, 8, 16, 32, 64, 0x7f), 0);
}

LANE_FN __m512i signs_of_high(__m512i v)
{
    return _mm512_gf2p8affine_epi64_epi8(v, BIT_MATRIX(2, 4, 8, 16, 32, 64, 128, 0xfe), 0);
}

/* Words of four times seven signs, whose top four bits are the block's scale. */
LANE_FN __m512i signs_of_words(__m512i words)
{
    return signs_of_low(FIELDS(words, 0, 7, 14, 21, 32, 39, 46, 53));
}

LANE_FN __m512 odd_of_words(__m512i words)
{
    return _mm512_cvtepi32_ps(odd_lanes(_mm512_srli_epi32(words, 27), 0x1e));
}

/* ---- Lookups ----------------------------------------------------------------------------------------------------- */

/* Where indices lie: bits 7 and 8 say in which of up to four parts of 128, the next two in which 512. */
struct picks { __mmask64 part[4], bit9, bit10; };

LANE_FN struct picks picks_256(__m512i low)
{
    __mmask64 bit7 = _mm512_movepi8_mask(low);
    return (struct picks){ .part = { ~bit7, bit7 } };
}

LANE_FN struct picks picks_512(__m512i low, __mmask64 bit8)
{
    __mmask64 bit7 = _mm512_movepi8_mask(low);
    return (struct picks){ .part = { ~(bit7 | bit8), bit7 & ~bit8, bit8 & ~bit7, bit7 & bit8 } };
}

/* One part after the other replaces those bytes of v that are indices into it; others stay for the next ones. */
LANE_FN __m512i look_up_512(const uint8_t *table, int n, __m512i v, const struct picks *k)
{
    for (int i = 0; i < n / 128; i++, table += 128)
        v = _mm512_mask2_permutex2var_epi8(_mm512_loadu_si512(table), v, k->part[i], _mm512_loadu_si512(table + 64));
    return v;
}

/* The byte of table[n] for each index, whose low eight bits are in `low`. */
LANE_FN __m512i look_up(const uint8_t *table, int n, __m512i low, const struct picks *k)
{
    __m512i v[4];
    for (int i = 0; i < n; i += 512)
        v[i / 512] = look_up_512(table + i, n < 512 ? n : 512, low, k);
    if (n > 512)
        v[0] = _mm512_mask_blend_epi8(k->bit9, v[0], v[1]);
    if (n > 1024)
        v[0] = _mm512_mask_blend_epi8(k->bit10, v[0], _mm512_mask_blend_epi8(k->bit9, v[2], v[3]));
    return v[0];
}

/* The lookup of levels ignores a byte's two highest bits, so those of the last element are shifted to the third's. */
LANE_FN void sizes_iq2(__m512i size[8], const uint8_t *planes, int n, __m512i low, const struct picks *k)
{
#pragma GCC unroll 2
    for (int p = 0; p < 2; p++) {
        __m512i v = look_up(planes + p * n, n, low, k);
#pragma GCC unroll 3
        for (int i = 0; i < 3; i++)
            size[4 * p + i] = _mm512_permutexvar_epi8(v, _mm512_loadu_si512(pf_levels_iq2[i]));
        size[4 * p + 3] = _mm512_permutexvar_epi8(_mm512_srli_epi16(v, 2), _mm512_loadu_si512(pf_levels_iq2[2]));
    }
}

/* Of one of the two indices of each eight elements. */
LANE_FN void sizes_iq3(__m512i size[4], const uint8_t *planes, int n, const uint8_t levels[2][64], __m512i low,
                       const struct picks *k)
{
#pragma GCC unroll 2
    for (int p = 0; p < 2; p++) {
        __m512i v = look_up(planes + p * n, n, low, k);
#pragma GCC unroll 2
        for (int i = 0; i < 2; i++)
            size[2 * p + i] = _mm512_permutexvar_epi8(v, _mm512_loadu_si512(levels[i]));
    }
}

/* Eight times (step + 1) of element j of four that a plane of IQ1 has in a byte. */
LANE_FN __m512i eight_steps(__m512i v, int j)
{
    return _mm512_gf2p8affine_epi64_epi8(v, BIT_MATRIX(0, 0, 0, 1 << 2 * j, 2 << 2 * j, 0, 0, 0), 0);
}

/* ---- Sums -------------------------------------------------------------------------------------------------------- */

/* Activations j with the signs of their elements. */
LANE_FN __m512i signed_q(const struct acts *x, __m512i signs, int j)
{
    return _mm512_mask_blend_epi8(has_bit(signs, j), x->q[j], x->minus[j]);
}

LANE_FN __m512i sum_blocks(const __m512i size[8], __m512i signs, const struct acts *x)
{
    __m512i sum = _mm512_setzero_si512();
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++)
        sum = _mm512_dpbusd_epi32(sum, size[j], signed_q(x, signs, j));
    return sum;
}

/* Sums of halves times their scales. Three sums of two products fit a word: 3 * 2 * 43 * 127 = 32766. */
LANE_FN __m512i sum_halves(const __m512i size[8], __m512i signs, const struct acts *x, __m512i odd)
{
    __m512i pairs[3] = { _mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512() };
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++)
        pairs[j / 3] = _mm512_add_epi16(pairs[j / 3], _mm512_maddubs_epi16(size[j], signed_q(x, signs, j)));
    __m512i sum = _mm512_madd_epi16(pairs[0], odd);
    return _mm512_dpwssd_epi32(_mm512_dpwssd_epi32(sum, pairs[1], odd), pairs[2], odd);
}

/* dw lacks the fraction. With it dw is exact, as activations' d may not be, which can be too small for that. */
LANE_FN void put_both(struct pf_dots *out, __m512i sums, __m512 dw, const struct acts *x)
{
    __m512 sum = _mm512_cvtepi32_ps(sums), scale = _mm512_mul_ps(_mm512_mul_ps(dw, x->fraction), x->d);
    _mm256_storeu_ps(out[0].sum, _mm512_castps512_ps256(sum));
    _mm256_storeu_ps(out[0].scale, _mm512_castps512_ps256(scale));
    _mm256_storeu_ps(out[1].sum, _mm512_extractf32x8_ps(sum, 1));
    _mm256_storeu_ps(out[1].scale, _mm512_extractf32x8_ps(scale, 1));
}

/* ---- Types ------------------------------------------------------------------------------------------------------- */

#define BOTH(type)  const struct pf_block_##type *a = p, *b = p1

/* Indices and words of signs take turns. */
LANE_FN void both_iq2_xxs(const void *p, const void *p1, const struct acts *x, struct pf_dots *out)
{
    BOTH(iq2_xxs);
    const __m512i first = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i second = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    __m512i size[8], v = _mm512_loadu_si512(a->sub), v1 = _mm512_loadu_si512(b->sub);
    __m512i low = _mm512_permutex2var_epi32(v, first, v1), words = _mm512_permutex2var_epi32(v, second, v1);
    struct picks k = picks_256(low);
    sizes_iq2(size, pf_planes_iq2_xxs[0], 256, low, &k);
    __m512i sums = sum_blocks(size, signs_of_words(words), x);
    put_both(out, sums, _mm512_mul_ps(both_d(a->d, b->d), odd_of_words(words)), x);
}

/* A word is nine bits of index and seven signs. */
LANE_FN void both_iq2_xs(const void *p, const void *p1, const struct acts *x, struct pf_dots *out)
{
    BOTH(iq2_xs);
    __m512i size[8], low = evens(a->qs, b->qs), high = odds(a->qs, b->qs);
    struct picks k = picks_512(low, has_bit(high, 0));
    sizes_iq2(size, pf_planes_iq2_xs[0], 512, low, &k);
    __m512i sums = sum_halves(size, signs_of_high(high), x, odd_nibbles(a->scales, b->scales));
    put_both(out, sums, both_d(a->d, b->d), x);
}

LANE_FN void both_iq2_s(const void *p, const void *p1, const struct acts *x, struct pf_dots *out)
{
    BOTH(iq2_s);
    __m512i size[8], low = both_32(a->qs, b->qs), high = bit_pairs_of(a->qh, b->qh);
    struct picks k = picks_512(low, has_bit(high, 0));
    k.bit9 = has_bit(high, 1);
    sizes_iq2(size, pf_planes_iq2_s[0], 1024, low, &k);
    __m512i sums = sum_halves(size, both_32(a->signs, b->signs), x, odd_nibbles(a->scales, b->scales));
    put_both(out, sums, both_d(a->d, b->d), x);
}

LANE_FN void both_iq3_xxs(const void *p, const void *p1, const struct acts *x, struct pf_dots *out)
{
    BOTH(iq3_xxs);
    __m512i size[8], words = both_32(a->signs, b->signs), low = evens(a->qs, b->qs), low1 = odds(a->qs, b->qs);
    struct picks k = picks_256(low), k1 = picks_256(low1);
    sizes_iq3(size, pf_planes_iq3_xxs[0], 256, pf_levels_iq3_xxs, low, &k);
    sizes_iq3(size + 4, pf_planes_iq3_xxs[0], 256, pf_levels_iq3_xxs, low1, &k1);
    __m512i sums = sum_blocks(size, signs_of_words(words), x);
    put_both(out, sums, _mm512_mul_ps(both_d(a->d, b->d), odd_of_words(words)), x);
}

/* The ninth bits of two neighbouring indices are neighbours. Scales are nibbles, turned to one bit above the lowest. */
LANE_FN void both_iq3_s(const void *p, const void *p1, const struct acts *x, struct pf_dots *out)
{
    BOTH(iq3_s);
    const __m512i turns = _mm512_setr_epi32(31, 3, 7, 11, 15, 19, 23, 27, 31, 3, 7, 11, 15, 19, 23, 27);
    __m512i size[8], high = bit_pairs_of(a->qh, b->qh), low = evens(a->qs, b->qs), low1 = odds(a->qs, b->qs);
    struct picks k = picks_512(low, has_bit(high, 0)), k1 = picks_512(low1, has_bit(high, 1));
    sizes_iq3(size, pf_planes_iq3_s[0], 512, pf_levels_iq3_s, low, &k);
    sizes_iq3(size + 4, pf_planes_iq3_s[0], 512, pf_levels_iq3_s, low1, &k1);
    __m512i sums = sum_blocks(size, both_32(a->signs, b->signs), x);
    int32_t scales, scales1;
    memcpy(&scales, a->scales, sizeof scales);
    memcpy(&scales1, b->scales, sizeof scales1);
    __m512i nibbles = _mm512_rorv_epi32(_mm512_mask_set1_epi32(_mm512_set1_epi32(scales), SECOND_ROW, scales1), turns);
    __m512 odd = _mm512_cvtepi32_ps(odd_lanes(nibbles, 0x1e));
    put_both(out, sums, _mm512_mul_ps(both_d(a->d, b->d), odd), x);
}

/* The bytes of both planes of IQ1. high: the upper three bits of each index, lowest in its byte. */
LANE_FN void steps_iq1_both(__m512i planes[2], __m512i low, __m512i high)
{
    struct picks k = picks_512(low, has_bit(high, 0));
    k.bit9 = has_bit(high, 1);
    k.bit10 = has_bit(high, 2);
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++)
        planes[i] = look_up(pf_planes_iq1[i], 2048, low, &k);
}

/* Codes are 8 * step + delta = 8 * (step + 1) + delta - 8, and delta is the block's. */
LANE_FN void both_iq1_s(const void *p, const void *p1, const struct acts *x, struct pf_dots *out)
{
    BOTH(iq1_s);
    const __m512i minus_7 = _mm512_set1_epi32(-7), minus_9 = _mm512_set1_epi32(-9);
    __m512i planes[2];
    __m256i qh = both_16(a->qh, b->qh);
    __m512i high = FIELDS(_mm512_cvtepu32_epi64(qh), 0, 3, 6, 9, 16, 19, 22, 25);
    steps_iq1_both(planes, both_32(a->qs, b->qs), high);
    __m512i sums = _mm512_mask_blend_epi32(_mm256_movepi16_mask(qh), _mm512_mullo_epi32(x->sum, minus_7),
                                           _mm512_mullo_epi32(x->sum, minus_9));
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++)
        sums = _mm512_dpbusd_epi32(sums, eight_steps(planes[j / 4], j % 4), x->q[j]);
    __m512i odd = odd_lanes(_mm512_srli_epi32(_mm512_cvtepu16_epi32(qh), 11), 0xe);
    put_both(out, sums, _mm512_mul_ps(both_d(a->d, b->d), _mm512_cvtepi32_ps(odd)), x);
}

/* The part of a half's sum that is (delta - 8) * q, by the deltas of its two eights. nibbles: bit 3 is set for -1. */
LANE_FN __m512i deltas_iq1_m(__m512i nibbles, const struct acts *x)
{
    __mmask32 first = _mm512_test_epi16_mask(nibbles, _mm512_set1_epi16(0x0008));
    __mmask32 last = _mm512_test_epi16_mask(nibbles, _mm512_set1_epi16(0x0800));
    __m512i eight = _mm512_slli_epi16(x->half_sum, 3), minus = _mm512_sub_epi16(_mm512_setzero_si512(), eight);
    __m512i same = _mm512_mask_blend_epi16(first, _mm512_add_epi16(minus, x->half_sum),
                                           _mm512_sub_epi16(minus, x->half_sum));
    __m512i differ = _mm512_mask_blend_epi16(first, _mm512_add_epi16(minus, x->half_diff),
                                             _mm512_sub_epi16(minus, x->half_diff));
    return _mm512_mask_blend_epi16(first ^ last, same, differ);
}

/* As IQ1_S, but delta is an eight's and scales are a half's. A half's sum fits a word, 16 * 9 * 127 at most, so it does
 * not matter what parts of it do there. d lies in the top nibbles of the words of scales. */
LANE_FN void both_iq1_m(const void *p, const void *p1, const struct acts *x, struct pf_dots *out)
{
    enum { NONE = 16 };                                   /* zeros behind a word */
    const uint64_t top = 0xf000f000f000f000;
    BOTH(iq1_m);
    __m512i planes[2];
    __m512i nibbles = FIELDS(_mm512_cvtepu32_epi64(both_16(a->qh, b->qh)), 0, 4, 8, 12, 16, 20, 24, 28);
    steps_iq1_both(planes, both_32(a->qs, b->qs), nibbles);
    __m512i halves = deltas_iq1_m(nibbles, x);
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++)
        halves = _mm512_add_epi16(halves, _mm512_maddubs_epi16(eight_steps(planes[j / 4], j % 4), x->q[j]));
    __m512i scales = _mm512_cvtepu16_epi64(both_8(a->scales, b->scales));
    __m512i odd = odd_words(FIELDS(scales, 63, NONE, 2, NONE, 5, NONE, 8, NONE), 0xe);
    uint64_t words, words1;
    memcpy(&words, a->scales, sizeof words);
    memcpy(&words1, b->scales, sizeof words1);
    __m512 d = both_d((uint16_t)_pext_u64(words, top), (uint16_t)_pext_u64(words1, top));
    put_both(out, _mm512_madd_epi16(halves, odd), d, x);
}

/* n_rows is even. */
#define DOT_BOTH(name, fraction)                                                                                   \
    LANE_FN void dot_##name(const uint8_t *p, size_t row_bytes, int n_rows, const struct pf_xrow *x, int at,      \
                            const uint8_t *ahead, struct pf_dots *out)                                            \
    {                                                                                                             \
        const size_t bytes = sizeof(struct pf_block_##name);                                                      \
        struct acts acts = acts_of(x, at, fraction);                                                              \
        for (int r = 0; r < n_rows; r += 2, p += 2 * row_bytes) {                                                 \
            for (size_t i = 0; ahead && i < 2 * bytes; i += 64)                                                   \
                _mm_prefetch((const char *)ahead + (size_t)r * bytes + i, _MM_HINT_T1);                           \
            both_##name(p, p + row_bytes, &acts, out + r);                                                        \
        }                                                                                                         \
    }

DOT_BOTH(iq2_xxs, 0.125f)
DOT_BOTH(iq2_xs, 0.125f)
DOT_BOTH(iq2_s, 0.125f)
DOT_BOTH(iq3_xxs, 0.25f)
DOT_BOTH(iq3_s, 1)
DOT_BOTH(iq1_s, 0.125f)
DOT_BOTH(iq1_m, 0.125f)

#endif
