/* How the types whose codes come from grids are read, a segment of 256 elements of one row at a time: what expand.c,
 * which makes bytes of it, and dot_rows.c, which multiplies, share. ref/ref_iq.c says what the bits mean.
 *
 *     head_TYPE(p, h)        signs, scales, and indices of more than eight bits      once a segment
 *     size_TYPE(p, h, b)     32 magnitudes of block b                                IQ2, IQ3: signs are in the head
 *     steps_TYPE(p, h, b)    32 values of -1, 0 or 1                                 IQ1: codes are eight times that
 *     delta_TYPE(p, h, b)    32 values of -1 or 1                                    plus this
 *
 * AVX2; pure functions. */
#ifndef PF_GRIDS_H
#define PF_GRIDS_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "kernels/qblocks.h"
#include "kernels/ref/iq_tables.h"

#define GRID_FN static inline __attribute__((always_inline))

/* What a type does not have stays as it was. */
struct grid_head {
    uint32_t signs[8];           /* IQ2, IQ3: bit i of word b is the sign of element i of block b */
    float    dw[8];
    uint16_t odd[16];            /* types with two scales a block: both halves' of all blocks in turn */
    uint16_t index[64];          /* types whose indices are longer than a byte, in order */
};

GRID_FN float grid_half(uint16_t h)
{
    return _cvtsh_ss(h);
}

GRID_FN void fill_dw(float dw[8], float d)
{
    _mm256_storeu_ps(dw, _mm256_set1_ps(d));
}

/* All ones in byte i where bit i is set. */
GRID_FN __m256i byte_mask(uint32_t bits)
{
    const __m256i spread = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201);
    __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32((int)bits), spread);
    return _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit);
}

/* Bytes, negated where the bit of signs is set. */
GRID_FN __m256i with_signs(__m256i v, uint32_t signs)
{
    __m256i negative = byte_mask(signs);
    return _mm256_sub_epi8(_mm256_xor_si256(v, negative), negative);
}

GRID_FN __m256i grid8(const uint64_t *grid, unsigned i0, unsigned i1, unsigned i2, unsigned i3)
{
    return _mm256_setr_epi64x((long long)grid[i0], (long long)grid[i1], (long long)grid[i2], (long long)grid[i3]);
}

#define GRID4(grid, i)                                                                                           \
    _mm256_setr_epi32((int)(grid)[(i)[0]], (int)(grid)[(i)[1]], (int)(grid)[(i)[2]], (int)(grid)[(i)[3]],        \
                      (int)(grid)[(i)[4]], (int)(grid)[(i)[5]], (int)(grid)[(i)[6]], (int)(grid)[(i)[7]])

/* ---- Signs, scales and indices ----------------------------------------------------------------------------------- */

/* Eight times four times seven sign bits to bytes, each with the eighth that makes the number of set bits even. */
GRID_FN void signs_even(uint32_t signs[8], __m256i words)
{
    __m256i s = _mm256_and_si256(words, _mm256_set1_epi32(0x7f));
    s = _mm256_or_si256(s, _mm256_and_si256(_mm256_slli_epi32(words, 1), _mm256_set1_epi32(0x7f00)));
    s = _mm256_or_si256(s, _mm256_and_si256(_mm256_slli_epi32(words, 2), _mm256_set1_epi32(0x7f0000)));
    s = _mm256_or_si256(s, _mm256_and_si256(_mm256_slli_epi32(words, 3), _mm256_set1_epi32(0x7f000000)));
    __m256i parity = _mm256_xor_si256(s, _mm256_srli_epi32(s, 4));
    parity = _mm256_xor_si256(parity, _mm256_srli_epi32(parity, 2));
    parity = _mm256_xor_si256(parity, _mm256_srli_epi32(parity, 1));
    __m256i eighth = _mm256_slli_epi32(_mm256_and_si256(parity, _mm256_set1_epi32(0x01010101)), 7);
    _mm256_storeu_si256((void *)signs, _mm256_or_si256(s, eighth));
}

/* dw = d * odd */
GRID_FN void odd_dw(float dw[8], float d, __m256i odd)
{
    _mm256_storeu_ps(dw, _mm256_mul_ps(_mm256_set1_ps(d), _mm256_cvtepi32_ps(odd)));
}

/* 2 * v + 1 */
GRID_FN __m256i odd_of(__m256i v)
{
    return _mm256_add_epi32(_mm256_add_epi32(v, v), _mm256_set1_epi32(1));
}

/* odd = 2 * v + 1 */
GRID_FN void put_odd(uint16_t odd[16], __m256i v)
{
    _mm256_storeu_si256((void *)odd, _mm256_add_epi16(_mm256_add_epi16(v, v), _mm256_set1_epi16(1)));
}

GRID_FN void nibble_scales(uint16_t odd[16], const uint8_t scales[8])
{
    __m128i bytes = _mm_loadl_epi64((const void *)scales), low = _mm_set1_epi8(15);
    __m128i nibbles = _mm_unpacklo_epi8(_mm_and_si128(bytes, low), _mm_and_si128(_mm_srli_epi16(bytes, 4), low));
    put_odd(odd, _mm256_cvtepu8_epi16(nibbles));
}

/* The sixteen bytes of low, each with the bits of its word above it that mask names. */
GRID_FN void put_indices(uint16_t index[16], const uint8_t *low, __m256i high, int mask)
{
    __m256i bytes = _mm256_cvtepu8_epi16(_mm_loadu_si128((const void *)low));
    high = _mm256_and_si256(high, _mm256_set1_epi16((short)mask));
    _mm256_storeu_si256((void *)index, _mm256_or_si256(bytes, high));
}

/* Four bytes at p, and eight, again and again. */
GRID_FN __m256i load4(const uint8_t *p)
{
    int v;
    memcpy(&v, p, sizeof v);
    return _mm256_set1_epi32(v);
}

GRID_FN __m256i load8(const void *p)
{
    long long v;
    memcpy(&v, p, sizeof v);
    return _mm256_set1_epi64x(v);
}

/* Orders of a byte shuffle that make words: four of byte i, two of byte i and two of the next one, four of word i. */
#define BYTE_4_TIMES(i)  ((long long)0xff00ff00ff00ff00 + (i) * 0x0001000100010001)
#define BYTES_TWICE(i)   (BYTE_4_TIMES(i) + 0x0001000100000000)
#define WORD_4_TIMES(i)  (0x0100010001000100 + (i) * 0x0202020202020202)

/* ---- IQ2 --------------------------------------------------------------------------------------------------------- */

/* Words of signs with the scale in their top four bits. */
GRID_FN void word_head(struct grid_head *h, __m256i words, float d)
{
    odd_dw(h->dw, d, odd_of(_mm256_srli_epi32(words, 28)));
    signs_even(h->signs, words);
}

GRID_FN void head_iq2_xxs(const void *p, struct grid_head *h)
{
    const struct pf_block_iq2_xxs *w = p;
    const __m256i upper = _mm256_setr_epi32(1, 3, 5, 7, 1, 3, 5, 7);
    __m256i lo = _mm256_loadu_si256((const void *)&w->sub[0]), hi = _mm256_loadu_si256((const void *)&w->sub[4]);
    lo = _mm256_permutevar8x32_epi32(lo, upper);
    hi = _mm256_permutevar8x32_epi32(hi, upper);
    word_head(h, _mm256_blend_epi32(lo, hi, 0xf0), grid_half(w->d) * 0.125f);
}

GRID_FN __m256i size_iq2_xxs(const void *p, const struct grid_head *h, int b)
{
    const uint8_t *i = ((const struct pf_block_iq2_xxs *)p)->sub[b].index;
    (void)h;
    return grid8(pf_grid_iq2_xxs, i[0], i[1], i[2], i[3]);
}

/* Seven signs are the upper bits of each word, whose other nine are the index. */
GRID_FN void head_iq2_xs(const void *p, struct grid_head *h)
{
    const struct pf_block_iq2_xs *w = p;
    __m256i sevens[2];
    for (int i = 0; i < 2; i++) {
        __m256i words = _mm256_loadu_si256((const void *)(w->qs + 16 * i));
        _mm256_storeu_si256((void *)(h->index + 16 * i), _mm256_and_si256(words, _mm256_set1_epi16(511)));
        __m256i two = _mm256_madd_epi16(_mm256_srli_epi16(words, 9), _mm256_set1_epi32(128 << 16 | 1));
        sevens[i] = _mm256_or_si256(two, _mm256_srli_epi64(two, 32 - 14));       /* four in the lower half of 64 bits */
    }
    __m256 lower = _mm256_shuffle_ps(_mm256_castsi256_ps(sevens[0]), _mm256_castsi256_ps(sevens[1]), 0x88);
    signs_even(h->signs, _mm256_permute4x64_epi64(_mm256_castps_si256(lower), 0xd8));
    fill_dw(h->dw, grid_half(w->d) * 0.125f);
    nibble_scales(h->odd, w->scales);
}

GRID_FN __m256i size_iq2_xs(const void *p, const struct grid_head *h, int b)
{
    const uint16_t *i = h->index + 4 * b;
    (void)p;
    return grid8(pf_grid_iq2_xs, i[0], i[1], i[2], i[3]);
}

/* Bits 2k and 2k + 1 of a block's byte lie above the k-th of its four indices. */
GRID_FN void head_iq2_s(const void *p, struct grid_head *h)
{
    const struct pf_block_iq2_s *w = p;
    const __m256i order = _mm256_setr_epi64x(BYTE_4_TIMES(0), BYTE_4_TIMES(1), BYTE_4_TIMES(2), BYTE_4_TIMES(3));
    const __m256i shift = _mm256_set1_epi64x(0x0004001000400100);
    for (int i = 0; i < 2; i++) {
        __m256i high = _mm256_shuffle_epi8(load4(w->qh + 4 * i), order);
        put_indices(h->index + 16 * i, w->qs + 16 * i, _mm256_mullo_epi16(high, shift), 0x300);
    }
    memcpy(h->signs, w->signs, sizeof h->signs);
    fill_dw(h->dw, grid_half(w->d) * 0.125f);
    nibble_scales(h->odd, w->scales);
}

GRID_FN __m256i size_iq2_s(const void *p, const struct grid_head *h, int b)
{
    const uint16_t *i = h->index + 4 * b;
    (void)p;
    return grid8(pf_grid_iq2_s, i[0], i[1], i[2], i[3]);
}

/* ---- IQ3 --------------------------------------------------------------------------------------------------------- */

GRID_FN void head_iq3_xxs(const void *p, struct grid_head *h)
{
    const struct pf_block_iq3_xxs *w = p;
    word_head(h, _mm256_loadu_si256((const void *)w->signs), grid_half(w->d) * 0.25f);
}

GRID_FN __m256i size_iq3_xxs(const void *p, const struct grid_head *h, int b)
{
    const uint8_t *i = ((const struct pf_block_iq3_xxs *)p)->qs + 8 * b;
    (void)h;
    return GRID4(pf_grid_iq3_xxs, i);
}

/* Bit k of a block's byte lies above the k-th of its eight indices. */
GRID_FN void head_iq3_s(const void *p, struct grid_head *h)
{
    const struct pf_block_iq3_s *w = p;
    const __m256i order = _mm256_setr_epi64x(BYTE_4_TIMES(0), BYTE_4_TIMES(0), BYTE_4_TIMES(1), BYTE_4_TIMES(1));
    const __m256i shift = _mm256_broadcastsi128_si256(_mm_setr_epi16(256, 128, 64, 32, 16, 8, 4, 2));
    const __m256i nibble = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
    for (int i = 0; i < 4; i++) {
        __m256i high = _mm256_shuffle_epi8(_mm256_srli_epi64(load8(w->qh), 16 * i), order);
        put_indices(h->index + 16 * i, w->qs + 16 * i, _mm256_mullo_epi16(high, shift), 0x100);
    }
    memcpy(h->signs, w->signs, sizeof h->signs);
    __m256i scales = _mm256_and_si256(_mm256_srlv_epi32(load4(w->scales), nibble), _mm256_set1_epi32(15));
    odd_dw(h->dw, grid_half(w->d), odd_of(scales));
}

GRID_FN __m256i size_iq3_s(const void *p, const struct grid_head *h, int b)
{
    const uint16_t *i = h->index + 8 * b;
    (void)p;
    return GRID4(pf_grid_iq3_s, i);
}

/* ---- IQ1 --------------------------------------------------------------------------------------------------------- */

/* Three bits of a block's word lie above each of its four indices: those of the last one are shifted right. */
GRID_FN void head_iq1_s(const void *p, struct grid_head *h)
{
    const struct pf_block_iq1_s *w = p;
    const __m256i order = _mm256_setr_epi64x(WORD_4_TIMES(0), WORD_4_TIMES(1), WORD_4_TIMES(2), WORD_4_TIMES(3));
    const __m256i shift = _mm256_set1_epi64x(0x0000000400200100);
    for (int i = 0; i < 2; i++) {
        __m256i words = _mm256_shuffle_epi8(load8(w->qh + 4 * i), order);
        __m256i high = _mm256_blend_epi16(_mm256_mullo_epi16(words, shift), _mm256_srli_epi16(words, 1), 0x88);
        put_indices(h->index + 16 * i, w->qs + 16 * i, high, 0x700);
    }
    __m256i qh = _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)w->qh));
    __m256i scales = _mm256_and_si256(_mm256_srli_epi32(qh, 12), _mm256_set1_epi32(7));
    odd_dw(h->dw, grid_half(w->d) * 0.125f, odd_of(scales));
}

GRID_FN __m256i steps_iq1(const void *p, const struct grid_head *h, int b)
{
    const uint16_t *i = h->index + 4 * b;
    (void)p;
    return grid8(pf_grid_iq1, i[0], i[1], i[2], i[3]);
}

/* One sign for the block. */
GRID_FN __m256i delta_iq1_s(const void *p, int b)
{
    int negative = ((const struct pf_block_iq1_s *)p)->qh[b] >> 15;
    return _mm256_set1_epi8((char)(1 - 2 * negative));
}

/* A nibble for each index, three bits of which lie above it. A word has four scales of three bits, a quarter of d. */
GRID_FN void head_iq1_m(const void *p, struct grid_head *h)
{
    const struct pf_block_iq1_m *w = p;
    const __m256i order = _mm256_setr_epi64x(BYTES_TWICE(0), BYTES_TWICE(2), BYTES_TWICE(4), BYTES_TWICE(6));
    for (int i = 0; i < 2; i++) {
        __m256i high = _mm256_shuffle_epi8(load8(w->qh + 8 * i), order);
        high = _mm256_mullo_epi16(high, _mm256_set1_epi32(0x00100100));
        put_indices(h->index + 16 * i, w->qs + 16 * i, high, 0x700);
    }
    const __m256i four_times = _mm256_setr_epi64x(WORD_4_TIMES(0), WORD_4_TIMES(1), WORD_4_TIMES(2), WORD_4_TIMES(3));
    __m256i top = _mm256_shuffle_epi8(load8(w->scales), four_times);
    top = _mm256_mullo_epi16(top, _mm256_set1_epi64x(0x0001000800400200));       /* to bits 9 to 11 */
    put_odd(h->odd, _mm256_and_si256(_mm256_srli_epi16(top, 9), _mm256_set1_epi16(7)));
    unsigned d = 0;
    for (int k = 0; k < 4; k++)
        d |= (unsigned)(w->scales[k] >> 12) << 4 * k;
    fill_dw(h->dw, grid_half((uint16_t)d) * 0.125f);
}

/* The fourth bits of the nibbles are signs of eight elements. */
GRID_FN __m256i delta_iq1_m(const void *p, int b)
{
    const uint8_t *qh = ((const struct pf_block_iq1_m *)p)->qh + 2 * b;
    const __m256i order = _mm256_setr_epi64x(0, 0, 0x0101010101010101, 0x0101010101010101);
    const __m256i bit = _mm256_setr_epi64x(0x0808080808080808, (long long)0x8080808080808080, 0x0808080808080808,
                                           (long long)0x8080808080808080);
    int16_t two;
    memcpy(&two, qh, sizeof two);
    __m256i negative = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi16(two), order), bit);
    return _mm256_or_si256(_mm256_cmpeq_epi8(negative, bit), _mm256_set1_epi8(1));
}

/* 8 * step + delta. Bits that the shift brings in from a byte's neighbour are masked out. */
GRID_FN __m256i with_delta(__m256i steps, __m256i delta)
{
    __m256i eight = _mm256_and_si256(_mm256_slli_epi16(steps, 3), _mm256_set1_epi8((char)0xf8));
    return _mm256_add_epi8(eight, delta);
}

#endif
