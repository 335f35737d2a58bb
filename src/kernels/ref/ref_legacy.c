/* Blocks of 32 with one fp16 scale, some with an fp16 offset: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0. See ref_block.h.
 *
 * An offset is added in the format and subtracted in ref_block.h, so mw = -m: -(mw * da) is then m * da, exactly. */
#include "kernels/ref/ref_block.h"

static int fifth_bit(uint32_t qh, int i)
{
    return (int)(qh >> i & 1) << 4;
}

/* code = nibble - 8; dw = d */
REF_INLINE void read_Q4_0(const void *row, int b, struct ref_block *blk)
{
    const struct pf_block_q4_0 *w = (const struct pf_block_q4_0 *)row + b;
    blk->dw = ref_half(w->d);
    for (int i = 0; i < 32; i++)
        blk->code[i] = (int8_t)(ref_split(w->qs, i) - 8);
}
REF_TYPE(Q4_0, ONE_TERM)

/* code = nibble; dw = d, mw = -m */
REF_INLINE void read_Q4_1(const void *row, int b, struct ref_block *blk)
{
    const struct pf_block_q4_1 *w = (const struct pf_block_q4_1 *)row + b;
    blk->dw = ref_half(w->d);
    blk->mw = -ref_half(w->m);
    for (int i = 0; i < 32; i++)
        blk->code[i] = (int8_t)ref_split(w->qs, i);
}
REF_TYPE(Q4_1, MINIMUMS)

/* code = nibble + 16 * bit - 16; dw = d */
REF_INLINE void read_Q5_0(const void *row, int b, struct ref_block *blk)
{
    const struct pf_block_q5_0 *w = (const struct pf_block_q5_0 *)row + b;
    blk->dw = ref_half(w->d);
    for (int i = 0; i < 32; i++)
        blk->code[i] = (int8_t)(ref_split(w->qs, i) + fifth_bit(w->qh, i) - 16);
}
REF_TYPE(Q5_0, ONE_TERM)

/* code = nibble + 16 * bit; dw = d, mw = -m */
REF_INLINE void read_Q5_1(const void *row, int b, struct ref_block *blk)
{
    const struct pf_block_q5_1 *w = (const struct pf_block_q5_1 *)row + b;
    blk->dw = ref_half(w->d);
    blk->mw = -ref_half(w->m);
    for (int i = 0; i < 32; i++)
        blk->code[i] = (int8_t)(ref_split(w->qs, i) + fifth_bit(w->qh, i));
}
REF_TYPE(Q5_1, MINIMUMS)

/* code = the byte, -128 included; dw = d */
REF_INLINE void read_Q8_0(const void *row, int b, struct ref_block *blk)
{
    const struct pf_block_q8_0 *w = (const struct pf_block_q8_0 *)row + b;
    blk->dw = ref_half(w->d);
    memcpy(blk->code, w->qs, 32);
}
REF_TYPE(Q8_0, ONE_TERM)
