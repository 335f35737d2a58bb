/* One and two bits, and ternary digits, under one fp16 scale: TQ1_0, TQ2_0, Q1_0, Q2_0. See ref_block.h. */
#include "kernels/ref/ref_block.h"

/* Digit k of a byte that holds trits as a fraction of 256 in base 3, the first digit on top. */
static int trit(uint8_t byte, int k)
{
    static const uint8_t pow3[5] = { 1, 3, 9, 27, 81 };
    return (uint8_t)(byte * pow3[k]) * 3 >> 8;
}

/* Element i of 256: bytes 0..31 of qs give five planes of 32, bytes 32..47 five of 16, qh four of 4. */
static int tq1_0_trit(const struct pf_block_tq1_0 *w, int i)
{
    if (i < 160)
        return trit(w->qs[i % 32], i / 32);
    if (i < 240)
        return trit(w->qs[32 + (i - 160) % 16], (i - 160) / 16);
    return trit(w->qh[(i - 240) % 4], (i - 240) / 4);
}

/* code = trit - 1; dw = d */
REF_INLINE void read_TQ1_0(const void *row, int b, struct ref_block *blk)
{
    const struct pf_block_tq1_0 *w = (const struct pf_block_tq1_0 *)row + b / 8;
    blk->dw = ref_half(w->d);
    for (int i = 0; i < 32; i++)
        blk->code[i] = (int8_t)(tq1_0_trit(w, b % 8 * 32 + i) - 1);
}
REF_TYPE(TQ1_0, ONE_TERM)

/* code = 2 bits - 1; dw = d */
REF_INLINE void read_TQ2_0(const void *row, int b, struct ref_block *blk)
{
    const struct pf_block_tq2_0 *w = (const struct pf_block_tq2_0 *)row + b / 8;
    int h = b % 8 / 4, p = b % 4;
    blk->dw = ref_half(w->d);
    for (int l = 0; l < 32; l++)
        blk->code[l] = (int8_t)((w->qs[32 * h + l] >> 2 * p & 3) - 1);
}
REF_TYPE(TQ2_0, ONE_TERM)

/* code = +1 where the bit is set, else -1; dw = d */
REF_INLINE void read_Q1_0(const void *row, int b, struct ref_block *blk)
{
    const struct pf_block_q1_0 *w = (const struct pf_block_q1_0 *)row + b / 4;
    blk->dw = ref_half(w->d);
    for (int i = 0; i < 32; i++)
        blk->code[i] = w->qs[b % 4 * 4 + i / 8] >> i % 8 & 1 ? 1 : -1;
}
REF_TYPE(Q1_0, ONE_TERM)

/* code = 2 bits - 1; dw = d */
REF_INLINE void read_Q2_0(const void *row, int b, struct ref_block *blk)
{
    const struct pf_block_q2_0 *w = (const struct pf_block_q2_0 *)row + b / 2;
    blk->dw = ref_half(w->d);
    for (int i = 0; i < 32; i++)
        blk->code[i] = (int8_t)((w->qs[b % 2 * 8 + i / 4] >> 2 * (i % 4) & 3) - 1);
}
REF_TYPE(Q2_0, ONE_TERM)
