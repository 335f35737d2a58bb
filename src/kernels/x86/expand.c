/* One segment of one row to bytes and floats. See expand.h; ref/ref_iq.c and ref_ternary.c say what the bits mean. */
#include "kernels/x86/expand.h"

#include <immintrin.h>
#include <string.h>

#include "kernels/qblocks.h"
#include "kernels/ref/iq_tables.h"

static float half(uint16_t h)
{
    return _cvtsh_ss(h);
}

static void same_dw(struct pf_expanded *out, float d)
{
    _mm256_storeu_ps(out->dw, _mm256_set1_ps(d));
}

/* All ones in byte i where bit i is set. */
static __m256i byte_mask(uint32_t bits)
{
    const __m256i spread = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201);
    __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32((int)bits), spread);
    return _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit);
}

/* Magnitudes, negated where the bit of signs is set, plus the bias, as block b. */
static void put_signed(struct pf_expanded *out, int b, __m256i magnitude, uint32_t signs, int bias)
{
    __m256i negative = byte_mask(signs);
    __m256i code = _mm256_sub_epi8(_mm256_xor_si256(magnitude, negative), negative);
    _mm256_storeu_si256((void *)(out->codes + 32 * b), _mm256_add_epi8(code, _mm256_set1_epi8((char)bias)));
}

/* Four times seven sign bits to bytes, each with the eighth that makes the number of set bits even. */
static uint32_t signs_even(uint32_t word)
{
    uint32_t s = (word & 0x7f) | (word & 0x3f80) << 1 | (word & 0x1fc000) << 2 | (word & 0xfe00000) << 3;
    uint32_t parity = s ^ s >> 4;
    parity ^= parity >> 2;
    parity ^= parity >> 1;
    return s | (parity & 0x01010101) << 7;
}

static __m256i grid8(const uint64_t *grid, int i0, int i1, int i2, int i3)
{
    return _mm256_setr_epi64x((long long)grid[i0], (long long)grid[i1], (long long)grid[i2], (long long)grid[i3]);
}

static __m256i grid4(const uint32_t *grid, const uint8_t *qs, unsigned high)
{
    int v[8];
    for (int k = 0; k < 8; k++)
        v[k] = (int)grid[qs[k] + (high << (8 - k) & 256)];
    return _mm256_setr_epi32(v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7]);
}

/* pair = 2 * nibble + 1 */
static void nibble_scales(struct pf_expanded *out, const uint8_t scales[8])
{
    __m128i bytes = _mm_loadl_epi64((const void *)scales), low = _mm_set1_epi8(15);
    __m128i nibbles = _mm_unpacklo_epi8(_mm_and_si128(bytes, low), _mm_and_si128(_mm_srli_epi16(bytes, 4), low));
    __m128i odd = _mm_add_epi8(_mm_add_epi8(nibbles, nibbles), _mm_set1_epi8(1));
    _mm256_storeu_ps(out->pair, _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(odd)));
    _mm256_storeu_ps(out->pair + 8, _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(odd, 8))));
}

/* The words of signs have 2 * (their top four bits) + 1 as the scale. */
static void word_signs(struct pf_expanded *out, float d, const uint32_t word[8], uint32_t signs[8])
{
    for (int b = 0; b < 8; b++) {
        out->dw[b] = d * (float)(int)(2 * (word[b] >> 28) + 1);
        signs[b] = signs_even(word[b]);
    }
}

void pf_expand_iq2_xxs(const uint8_t *restrict p, struct pf_expanded *restrict out)
{
    const struct pf_block_iq2_xxs *w = (const void *)p;
    uint32_t word[8], signs[8];
    for (int b = 0; b < 8; b++)
        word[b] = w->sub[b].signs;
    word_signs(out, half(w->d) * 0.125f, word, signs);
    for (int b = 0; b < 8; b++) {
        const uint8_t *i = w->sub[b].index;
        put_signed(out, b, grid8(pf_grid_iq2_xxs, i[0], i[1], i[2], i[3]), signs[b], PF_BIAS_IQ2);
    }
}

void pf_expand_iq2_xs(const uint8_t *restrict p, struct pf_expanded *restrict out)
{
    const struct pf_block_iq2_xs *w = (const void *)p;
    uint32_t signs[8];
    same_dw(out, half(w->d) * 0.125f);
    nibble_scales(out, w->scales);
    for (int b = 0; b < 8; b++)
        signs[b] = signs_even((uint32_t)w->qs[4 * b] >> 9 | (uint32_t)w->qs[4 * b + 1] >> 9 << 7 |
                              (uint32_t)w->qs[4 * b + 2] >> 9 << 14 | (uint32_t)w->qs[4 * b + 3] >> 9 << 21);
    for (int b = 0; b < 8; b++) {
        int i[4];
        for (int k = 0; k < 4; k++)
            i[k] = w->qs[4 * b + k] & 511;
        put_signed(out, b, grid8(pf_grid_iq2_xs, i[0], i[1], i[2], i[3]), signs[b], PF_BIAS_IQ2);
    }
}

void pf_expand_iq2_s(const uint8_t *restrict p, struct pf_expanded *restrict out)
{
    const struct pf_block_iq2_s *w = (const void *)p;
    uint32_t signs[8];
    memcpy(signs, w->signs, sizeof signs);
    same_dw(out, half(w->d) * 0.125f);
    nibble_scales(out, w->scales);
    for (int b = 0; b < 8; b++) {
        int i[4];
        for (int k = 0; k < 4; k++)
            i[k] = w->qs[4 * b + k] + 256 * (w->qh[b] >> 2 * k & 3);
        put_signed(out, b, grid8(pf_grid_iq2_s, i[0], i[1], i[2], i[3]), signs[b], PF_BIAS_IQ2);
    }
}

void pf_expand_iq3_xxs(const uint8_t *restrict p, struct pf_expanded *restrict out)
{
    const struct pf_block_iq3_xxs *w = (const void *)p;
    uint32_t word[8], signs[8];
    memcpy(word, w->signs, sizeof word);
    word_signs(out, half(w->d) * 0.25f, word, signs);
    for (int b = 0; b < 8; b++)
        put_signed(out, b, grid4(pf_grid_iq3_xxs, w->qs + 8 * b, 0), signs[b], PF_BIAS_IQ3_XXS);
}

void pf_expand_iq3_s(const uint8_t *restrict p, struct pf_expanded *restrict out)
{
    const struct pf_block_iq3_s *w = (const void *)p;
    uint32_t signs[8];
    memcpy(signs, w->signs, sizeof signs);
    for (int b = 0; b < 8; b++) {
        out->dw[b] = half(w->d) * (float)(2 * (w->scales[b / 2] >> 4 * (b % 2) & 15) + 1);
        put_signed(out, b, grid4(pf_grid_iq3_s, w->qs + 8 * b, w->qh[b]), signs[b], PF_BIAS_IQ3_S);
    }
}

/* Eight times -1, 0 or 1, plus the bytes of delta, which include the bias. Bits that the shift brings in from a byte's
 * neighbour are masked out. */
static void put_ternary(struct pf_expanded *out, int b, __m256i v, __m256i delta)
{
    __m256i eight = _mm256_and_si256(_mm256_slli_epi16(v, 3), _mm256_set1_epi8((char)0xf8));
    _mm256_storeu_si256((void *)(out->codes + 32 * b), _mm256_add_epi8(eight, delta));
}

static long long delta8(int negative)
{
    return negative ? (PF_BIAS_IQ1 - 1) * 0x0101010101010101 : (PF_BIAS_IQ1 + 1) * 0x0101010101010101;
}

void pf_expand_iq1_s(const uint8_t *restrict p, struct pf_expanded *restrict out)
{
    const struct pf_block_iq1_s *w = (const void *)p;
    for (int b = 0; b < 8; b++) {
        int i[4], qh = w->qh[b];
        out->dw[b] = (half(w->d) * 0.125f) * (float)(2 * (qh >> 12 & 7) + 1);
        for (int k = 0; k < 4; k++)
            i[k] = w->qs[4 * b + k] + 256 * (qh >> 3 * k & 7);
        put_ternary(out, b, grid8(pf_grid_iq1, i[0], i[1], i[2], i[3]), _mm256_set1_epi64x(delta8(qh >> 15)));
    }
}

void pf_expand_iq1_m(const uint8_t *restrict p, struct pf_expanded *restrict out)
{
    const struct pf_block_iq1_m *w = (const void *)p;
    unsigned d = 0;
    for (int k = 0; k < 4; k++)
        d |= (unsigned)(w->scales[k] >> 12) << 4 * k;
    same_dw(out, half((uint16_t)d) * 0.125f);
    for (int i = 0; i < 16; i++)
        out->pair[i] = (float)(2 * (w->scales[i / 4] >> 3 * (i % 4) & 7) + 1);
    for (int b = 0; b < 8; b++) {
        int i[4], qh = w->qh[2 * b] | w->qh[2 * b + 1] << 8;
        for (int k = 0; k < 4; k++)
            i[k] = w->qs[4 * b + k] + 256 * (qh >> 4 * k & 7);
        put_ternary(out, b, grid8(pf_grid_iq1, i[0], i[1], i[2], i[3]),
                    _mm256_setr_epi64x(delta8(qh & 0x8), delta8(qh & 0x80), delta8(qh & 0x800), delta8(qh & 0x8000)));
    }
}

/* Digit k of n bytes, each a fraction of 256 in base 3; the digit itself is the code, as the bias is 1. */
static void put_trits(uint8_t *codes, const uint8_t *bytes, int n, int n_digits)
{
    static const uint8_t pow3[5] = { 1, 3, 9, 27, 81 };
    for (int k = 0; k < n_digits; k++)
        for (int j = 0; j < n; j++)
            codes[k * n + j] = (uint8_t)((uint8_t)(bytes[j] * pow3[k]) * 3 >> 8);
}

void pf_expand_tq1_0(const uint8_t *restrict p, struct pf_expanded *restrict out)
{
    const struct pf_block_tq1_0 *w = (const void *)p;
    same_dw(out, half(w->d));
    put_trits(out->codes, w->qs, 32, 5);
    put_trits(out->codes + 160, w->qs + 32, 16, 5);
    put_trits(out->codes + 240, w->qh, 4, 4);
}

/* 1 or -1, so 2 or 0 with the bias. */
void pf_expand_q1_0(const uint8_t *restrict p, struct pf_expanded *restrict out)
{
    const struct pf_block_q1_0 *w = (const void *)p;
    for (int b = 0; b < 8; b++) {
        uint32_t bits;
        memcpy(&bits, w[b / 4].qs + 4 * (b % 4), sizeof bits);
        out->dw[b] = half(w[b / 4].d);
        _mm256_storeu_si256((void *)(out->codes + 32 * b), _mm256_and_si256(byte_mask(bits), _mm256_set1_epi8(2)));
    }
}

/* Four neighbours of two bits in a byte. */
void pf_expand_q2_0(const uint8_t *restrict p, struct pf_expanded *restrict out)
{
    const struct pf_block_q2_0 *w = (const void *)p;
    for (int b = 0; b < 8; b++) {
        __m256i v = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)(w[b / 2].qs + b % 2 * 8)));
        v = _mm256_or_si256(v, _mm256_slli_epi32(v, 6));
        v = _mm256_or_si256(v, _mm256_slli_epi32(v, 12));
        _mm256_storeu_si256((void *)(out->codes + 32 * b), _mm256_and_si256(v, _mm256_set1_epi8(3)));
        out->dw[b] = half(w[b / 2].d);
    }
}
