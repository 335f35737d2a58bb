/* One segment of one row to bytes and floats. See expand.h. */
#include "kernels/x86/expand.h"

#include <stdbool.h>

#include "kernels/x86/grids.h"

static void put(struct pf_expanded *out, int b, __m256i codes)
{
    _mm256_storeu_si256((void *)(out->codes + 32 * b), codes);
}

/* Magnitudes, negated where the bit of signs is set, plus the bias, as block b. */
static void put_signed(struct pf_expanded *out, int b, __m256i magnitude, uint32_t signs, int bias)
{
    put(out, b, _mm256_add_epi8(with_signs(magnitude, signs), _mm256_set1_epi8((char)bias)));
}

static void put_scales(struct pf_expanded *out, const struct grid_head *h, bool by_halves)
{
    memcpy(out->dw, h->dw, sizeof out->dw);
    for (int i = 0; by_halves && i < 16; i++)
        out->pair[i] = (float)h->odd[i];
}

#define EXPAND_SIGNED(name, bias, by_halves)                                                       \
    void pf_expand_##name(const uint8_t *restrict p, struct pf_expanded *restrict out)             \
    {                                                                                              \
        struct grid_head h;                                                                        \
        head_##name(p, &h);                                                                        \
        put_scales(out, &h, by_halves);                                                            \
        for (int b = 0; b < 8; b++)                                                                \
            put_signed(out, b, size_##name(p, &h, b), h.signs[b], bias);                           \
    }

EXPAND_SIGNED(iq2_xxs, PF_BIAS_IQ2, false)
EXPAND_SIGNED(iq2_xs, PF_BIAS_IQ2, true)
EXPAND_SIGNED(iq2_s, PF_BIAS_IQ2, true)
EXPAND_SIGNED(iq3_xxs, PF_BIAS_IQ3_XXS, false)
EXPAND_SIGNED(iq3_s, PF_BIAS_IQ3_S, false)

#define EXPAND_STEPS(name, by_halves)                                                              \
    void pf_expand_##name(const uint8_t *restrict p, struct pf_expanded *restrict out)             \
    {                                                                                              \
        struct grid_head h;                                                                        \
        head_##name(p, &h);                                                                        \
        put_scales(out, &h, by_halves);                                                            \
        for (int b = 0; b < 8; b++) {                                                              \
            __m256i code = with_delta(steps_iq1(p, &h, b), delta_##name(p, b));                    \
            put(out, b, _mm256_add_epi8(code, _mm256_set1_epi8(PF_BIAS_IQ1)));                     \
        }                                                                                          \
    }

EXPAND_STEPS(iq1_s, false)
EXPAND_STEPS(iq1_m, true)

/* ---- Types without grids ----------------------------------------------------------------------------------------- */

/* The first digit of 32 bytes, each a fraction of 256 in base 3, and what is left of them. The digit is the code, as
 * the bias is 1. */
static __m256i first_trits(__m256i *bytes)
{
    __m256i v = *bytes;
    __m256i one = _mm256_cmpeq_epi8(_mm256_max_epu8(v, _mm256_set1_epi8(86)), v);            /* 3 * 86 > 256 */
    __m256i two = _mm256_cmpeq_epi8(_mm256_max_epu8(v, _mm256_set1_epi8((char)171)), v);     /* 3 * 171 > 512 */
    *bytes = _mm256_add_epi8(_mm256_add_epi8(v, v), v);
    return _mm256_sub_epi8(_mm256_setzero_si256(), _mm256_add_epi8(one, two));
}

/* 32 bytes of five digits, then 16 of five, then four of four. */
void pf_expand_tq1_0(const uint8_t *restrict p, struct pf_expanded *restrict out)
{
    const struct pf_block_tq1_0 *w = (const void *)p;
    uint32_t four;
    memcpy(&four, w->qh, sizeof four);
    __m256i first = _mm256_loadu_si256((const void *)w->qs), last = _mm256_set1_epi32((int)four);
    __m256i middle = _mm256_castsi128_si256(_mm_loadu_si128((const void *)(w->qs + 32)));
    fill_dw(out->dw, grid_half(w->d));
    for (int k = 0; k < 5; k++) {
        put(out, k, first_trits(&first));
        _mm_storeu_si128((void *)(out->codes + 160 + 16 * k), _mm256_castsi256_si128(first_trits(&middle)));
    }
    for (int k = 0; k < 4; k++) {
        four = (uint32_t)_mm256_cvtsi256_si32(first_trits(&last));
        memcpy(out->codes + 240 + 4 * k, &four, sizeof four);
    }
}

/* 1 or -1, so 2 or 0 with the bias. */
void pf_expand_q1_0(const uint8_t *restrict p, struct pf_expanded *restrict out)
{
    const struct pf_block_q1_0 *w = (const void *)p;
    for (int b = 0; b < 8; b++) {
        uint32_t bits;
        memcpy(&bits, w[b / 4].qs + 4 * (b % 4), sizeof bits);
        out->dw[b] = grid_half(w[b / 4].d);
        put(out, b, _mm256_and_si256(byte_mask(bits), _mm256_set1_epi8(2)));
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
        put(out, b, _mm256_and_si256(v, _mm256_set1_epi8(3)));
        out->dw[b] = grid_half(w[b / 2].d);
    }
}
