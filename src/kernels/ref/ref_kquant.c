/* K-quants: super-blocks of 256, that is eight blocks of 32 with integer scales under fp16 ones. See ref_block.h.
 *
 * Block g of a super-block: h = g / 4 its half, p = g % 4 its plane. */
#include "kernels/ref/ref_block.h"

/* The 6-bit scales and minimums of Q4_K and Q5_K: blocks 0..3 keep theirs whole, blocks 4..7 in nibbles of bytes 8..11
 * with the top two bits of bytes 0..7. */
struct scale_min { int sc, mn; };

static struct scale_min scale_min(const uint8_t s[12], int g)
{
    if (g < 4)
        return (struct scale_min){ s[g] & 63, s[g + 4] & 63 };
    return (struct scale_min){ (s[g + 4] & 15) + 16 * (s[g - 4] >> 6), (s[g + 4] >> 4) + 16 * (s[g] >> 6) };
}

/* code = 2 bits; dw = d, sc = low nibbles; mw = dmin, mn = high nibbles: scales and minimums per 16 go into the sums */
REF_INLINE void read_Q2_K(const void *row, int b, struct ref_block *blk)
{
    const struct pf_block_q2_k *w = (const struct pf_block_q2_k *)row + b / 8;
    int g = b % 8, h = g / 4, p = g % 4;
    blk->dw = ref_half(w->d);
    blk->mw = ref_half(w->dmin);
    for (int k = 0; k < 2; k++) {
        blk->sc[k] = w->scales[2 * g + k] & 15;
        blk->mn[k] = w->scales[2 * g + k] >> 4;
    }
    for (int l = 0; l < 32; l++)
        blk->code[l] = w->qs[32 * h + l] >> 2 * p & 3;
}
REF_TYPE(Q2_K, MINIMUMS)

/* code = 2 bits + 4 * (bit of hmask) - 4; dw = d, sc = 6-bit scale - 32 per 16 */
REF_INLINE void read_Q3_K(const void *row, int b, struct ref_block *blk)
{
    const struct pf_block_q3_k *w = (const struct pf_block_q3_k *)row + b / 8;
    int g = b % 8, h = g / 4, p = g % 4;
    blk->dw = ref_half(w->d);
    for (int k = 0; k < 2; k++) {
        int j = 2 * g + k;
        blk->sc[k] = ref_nibble(w->scales[j % 8], j >= 8) + 16 * (w->scales[8 + j % 4] >> 2 * (j / 4) & 3) - 32;
    }
    for (int l = 0; l < 32; l++)
        blk->code[l] = (int8_t)((w->qs[32 * h + l] >> 2 * p & 3) + 4 * (w->hmask[l] >> g & 1) - 4);
}
REF_TYPE(Q3_K, ONE_TERM)

/* code = nibble; dw = d * sc, mw = dmin * mn, both exact */
REF_INLINE void read_Q4_K(const void *row, int b, struct ref_block *blk)
{
    const struct pf_block_q4_k *w = (const struct pf_block_q4_k *)row + b / 8;
    int g = b % 8;
    struct scale_min s = scale_min(w->scales, g);
    blk->dw = ref_half(w->d) * (float)s.sc;
    blk->mw = ref_half(w->dmin) * (float)s.mn;
    for (int l = 0; l < 32; l++)
        blk->code[l] = (int8_t)ref_nibble(w->qs[32 * (g / 2) + l], g % 2);
}
REF_TYPE(Q4_K, MINIMUMS)

/* code = nibble + 16 * bit; dw = d * sc, mw = dmin * mn, both exact */
REF_INLINE void read_Q5_K(const void *row, int b, struct ref_block *blk)
{
    const struct pf_block_q5_k *w = (const struct pf_block_q5_k *)row + b / 8;
    int g = b % 8;
    struct scale_min s = scale_min(w->scales, g);
    blk->dw = ref_half(w->d) * (float)s.sc;
    blk->mw = ref_half(w->dmin) * (float)s.mn;
    for (int l = 0; l < 32; l++)
        blk->code[l] = (int8_t)(ref_nibble(w->qs[32 * (g / 2) + l], g % 2) + 16 * (w->qh[l] >> g & 1));
}
REF_TYPE(Q5_K, MINIMUMS)

/* code = nibble + 16 * (2 bits) - 32; dw = d, sc = signed byte per 16 */
REF_INLINE void read_Q6_K(const void *row, int b, struct ref_block *blk)
{
    const struct pf_block_q6_k *w = (const struct pf_block_q6_k *)row + b / 8;
    int g = b % 8, h = g / 4, p = g % 4;
    blk->dw = ref_half(w->d);
    blk->sc[0] = w->scales[2 * g];
    blk->sc[1] = w->scales[2 * g + 1];
    for (int l = 0; l < 32; l++) {
        int low = ref_nibble(w->ql[64 * h + 32 * (p % 2) + l], p >= 2);
        blk->code[l] = (int8_t)(low + 16 * (w->qh[32 * h + l] >> 2 * p & 3) - 32);
    }
}
REF_TYPE(Q6_K, ONE_TERM)
