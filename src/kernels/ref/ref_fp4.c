/* Four-bit floats (E2M1) under small float scales: MXFP4, NVFP4. See ref_block.h.
 *
 * E2M1 is kept as twice its value, an integer; the scales are halved instead. Both are exact. */
#include "kernels/ref/ref_block.h"
#include "kernels/ref/iq_tables.h"

/* code = twice E2M1; dw = 2^(e - 128), subnormal for e < 2; e = 255, a NaN in the specification, is 2^127 */
REF_INLINE void read_MXFP4(const void *row, int b, struct ref_block *blk)
{
    const struct pf_block_mxfp4 *w = (const struct pf_block_mxfp4 *)row + b;
    uint32_t bits = w->e < 2 ? 0x00200000u << w->e : (uint32_t)(w->e - 1) << 23;
    memcpy(&blk->dw, &bits, sizeof bits);
    for (int i = 0; i < 32; i++)
        blk->code[i] = pf_codebook_e2m1[ref_split(w->qs, i)];
}
REF_TYPE(MXFP4, ONE_TERM)

/* Half of an unsigned E4M3 value: M 2^-10 or (1 + M/8) 2^(E-8). Bit 7 is ignored; 0x7f, a NaN, counts as 0. */
static float half_ue4m3(uint8_t v)
{
    int exponent = v >> 3 & 15, mantissa = v & 7;
    if (v == 0x7f)
        return 0;
    return exponent == 0 ? (float)mantissa * 0x1p-10f : (float)((8 + mantissa) << exponent) * 0x1p-11f;
}

/* code = twice E2M1; dw and dw1 = half the UE4M3 scales of the lower and upper sixteen: two terms, lower first */
REF_INLINE void read_NVFP4(const void *row, int b, struct ref_block *blk)
{
    const struct pf_block_nvfp4 *w = (const struct pf_block_nvfp4 *)row + b / 2;
    int sub = b % 2 * 2;
    blk->dw = half_ue4m3(w->d[sub]);
    blk->dw1 = half_ue4m3(w->d[sub + 1]);
    for (int i = 0; i < 32; i++) {
        int nibble = ref_nibble(w->qs[8 * (sub + i / 16) + i % 8], i % 16 >= 8);
        blk->code[i] = pf_codebook_e2m1[nibble];
    }
}
REF_TYPE(NVFP4, TWO_SCALES)
