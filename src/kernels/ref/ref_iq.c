/* IQ types: groups of 8 or 4 elements looked up in grids, or nibbles in a code book. See ref_block.h.
 *
 * The formats speak of d * (0.5 + scale) / 4 and the like; here the fraction is in dw and an odd integer 2 * scale + 1
 * in dw or sc. All these products are exact, so both ways of writing it give the same float. */
#include "kernels/ref/iq_tables.h"
#include "kernels/ref/ref_block.h"

/* code[0..count) = the bytes of a grid entry, negated where the bit of signs is set */
static void signed_group(int8_t *code, uint64_t magnitudes, unsigned signs, int count)
{
    for (int j = 0; j < count; j++) {
        int magnitude = (int)(magnitudes >> 8 * j & 255);
        code[j] = (int8_t)(signs >> j & 1 ? -magnitude : magnitude);
    }
}

/* code = magnitude with sign; dw = (d / 8) * (2 scale + 1) */
REF_INLINE void read_IQ2_XXS(const void *row, int b, struct ref_block *blk)
{
    const struct pf_block_iq2_xxs *w = (const struct pf_block_iq2_xxs *)row + b / 8;
    const uint8_t *index = w->sub[b % 8].index;
    uint32_t word = w->sub[b % 8].signs;
    blk->dw = (ref_half(w->d) * 0.125f) * (float)(2 * (word >> 28) + 1);
    for (int k = 0; k < 4; k++)
        signed_group(blk->code + 8 * k, pf_grid_iq2_xxs[index[k]], pf_signs_even(word >> 7 * k & 127), 8);
}
REF_TYPE(IQ2_XXS, ONE_TERM)

/* code = magnitude with sign; dw = d / 8, sc = 2 scale + 1 per 16 */
REF_INLINE void read_IQ2_XS(const void *row, int b, struct ref_block *blk)
{
    const struct pf_block_iq2_xs *w = (const struct pf_block_iq2_xs *)row + b / 8;
    int g = b % 8;
    blk->dw = ref_half(w->d) * 0.125f;
    for (int h = 0; h < 2; h++)
        blk->sc[h] = 2 * ref_nibble(w->scales[g], h) + 1;
    for (int k = 0; k < 4; k++) {
        unsigned v = w->qs[4 * g + k];
        signed_group(blk->code + 8 * k, pf_grid_iq2_xs[v & 511], pf_signs_even(v >> 9), 8);
    }
}
REF_TYPE(IQ2_XS, ONE_TERM)

/* code = magnitude with sign; dw = d / 8, sc = 2 scale + 1 per 16 */
REF_INLINE void read_IQ2_S(const void *row, int b, struct ref_block *blk)
{
    const struct pf_block_iq2_s *w = (const struct pf_block_iq2_s *)row + b / 8;
    int g = b % 8;
    blk->dw = ref_half(w->d) * 0.125f;
    for (int h = 0; h < 2; h++)
        blk->sc[h] = 2 * ref_nibble(w->scales[g], h) + 1;
    for (int k = 0; k < 4; k++) {
        int index = w->qs[4 * g + k] + 256 * (w->qh[g] >> 2 * k & 3);
        signed_group(blk->code + 8 * k, pf_grid_iq2_s[index], w->signs[4 * g + k], 8);
    }
}
REF_TYPE(IQ2_S, ONE_TERM)

/* code = magnitude with sign; dw = (d / 4) * (2 scale + 1) */
REF_INLINE void read_IQ3_XXS(const void *row, int b, struct ref_block *blk)
{
    const struct pf_block_iq3_xxs *w = (const struct pf_block_iq3_xxs *)row + b / 8;
    uint32_t word = w->signs[b % 8];
    blk->dw = (ref_half(w->d) * 0.25f) * (float)(2 * (word >> 28) + 1);
    for (int k = 0; k < 8; k++) {
        unsigned signs = pf_signs_even(word >> 7 * (k / 2) & 127) >> 4 * (k % 2);
        signed_group(blk->code + 4 * k, pf_grid_iq3_xxs[w->qs[8 * (b % 8) + k]], signs, 4);
    }
}
REF_TYPE(IQ3_XXS, ONE_TERM)

/* code = magnitude with sign; dw = d * (2 scale + 1) */
REF_INLINE void read_IQ3_S(const void *row, int b, struct ref_block *blk)
{
    const struct pf_block_iq3_s *w = (const struct pf_block_iq3_s *)row + b / 8;
    int g = b % 8;
    blk->dw = ref_half(w->d) * (float)(2 * ref_nibble(w->scales[g / 2], g % 2) + 1);
    for (int k = 0; k < 8; k++) {
        int index = w->qs[8 * g + k] + 256 * (w->qh[g] >> k & 1);
        signed_group(blk->code + 4 * k, pf_grid_iq3_s[index], w->signs[4 * g + k / 2] >> 4 * (k % 2), 4);
    }
}
REF_TYPE(IQ3_S, ONE_TERM)

/* code = 8 v + 1, or - 1 for a negative delta: eight times v +- 1/8 */
static void ternary_group(int8_t *code, int index, int negative)
{
    for (int j = 0; j < 8; j++) {
        int v = (int8_t)(pf_grid_iq1[index] >> 8 * j);
        code[j] = (int8_t)(8 * v + (negative ? -1 : 1));
    }
}

/* code = 8 v +- 1, one sign per 32, so isum = 8 * sum(v q) +- sum(q); dw = (d / 8) * (2 scale + 1) */
REF_INLINE void read_IQ1_S(const void *row, int b, struct ref_block *blk)
{
    const struct pf_block_iq1_s *w = (const struct pf_block_iq1_s *)row + b / 8;
    int g = b % 8, qh = w->qh[g];
    blk->dw = (ref_half(w->d) * 0.125f) * (float)(2 * (qh >> 12 & 7) + 1);
    for (int k = 0; k < 4; k++)
        ternary_group(blk->code + 8 * k, w->qs[4 * g + k] + 256 * (qh >> 3 * k & 7), qh >> 15);
}
REF_TYPE(IQ1_S, ONE_TERM)

/* code = 8 v +- 1, one sign per 8; dw = d / 8, sc = 2 scale + 1 per 16 */
REF_INLINE void read_IQ1_M(const void *row, int b, struct ref_block *blk)
{
    const struct pf_block_iq1_m *w = (const struct pf_block_iq1_m *)row + b / 8;
    int g = b % 8;
    unsigned d = 0;
    for (int k = 0; k < 4; k++)
        d |= (unsigned)(w->scales[k] >> 12) << 4 * k;
    blk->dw = ref_half((uint16_t)d) * 0.125f;
    for (int h = 0; h < 2; h++)
        blk->sc[h] = 2 * (w->scales[g / 2] >> 3 * (2 * (g % 2) + h) & 7) + 1;
    for (int k = 0; k < 4; k++) {
        int bits = ref_nibble(w->qh[2 * g + k / 2], k % 2);
        ternary_group(blk->code + 8 * k, w->qs[4 * g + k] + 256 * (bits & 7), bits & 8);
    }
}
REF_TYPE(IQ1_M, ONE_TERM)

/* code = code book; dw = d */
REF_INLINE void read_IQ4_NL(const void *row, int b, struct ref_block *blk)
{
    const struct pf_block_iq4_nl *w = (const struct pf_block_iq4_nl *)row + b;
    blk->dw = ref_half(w->d);
    for (int i = 0; i < 32; i++)
        blk->code[i] = pf_codebook_iq4[ref_split(w->qs, i)];
}
REF_TYPE(IQ4_NL, ONE_TERM)

/* code = code book; dw = d * (6-bit scale - 32) */
REF_INLINE void read_IQ4_XS(const void *row, int b, struct ref_block *blk)
{
    const struct pf_block_iq4_xs *w = (const struct pf_block_iq4_xs *)row + b / 8;
    int g = b % 8;
    int scale = ref_nibble(w->scales_l[g / 2], g % 2) + 16 * (w->scales_h >> 2 * g & 3);
    blk->dw = ref_half(w->d) * (float)(scale - 32);
    for (int i = 0; i < 32; i++)
        blk->code[i] = pf_codebook_iq4[ref_split(w->qs + 16 * g, i)];
}
REF_TYPE(IQ4_XS, ONE_TERM)
