/* Unpackers of the types with super-blocks of 256 elements, one segment each. See unpack.h. */
#ifndef PF_UNPACK_SUPERS_H
#define PF_UNPACK_SUPERS_H

#include "kernels/x86/unpack.h"

/* d, dmin and the eight 6-bit scales and minimums of Q4_K and Q5_K, from the sixteen bytes they share:
 *
 *     head[0] d, dmin    head[1] scales 0..3, low six bits; above them two bits of scales 4..7
 *                        head[2] minimums likewise    head[3] four low bits of scales and of minimums 4..7 */
LANE_FN void scales_k(struct scales *s, const struct src *src)
{
    const vi six = vi_set1(0x3F3F3F3F), two = vi_set1(0x30303030), byte = vi_set1(0xFF);
    vi head[4];
    rows16(head, src, 0);
    vi scales[2] = { vi_and(head[1], six), vi_or(low_nibbles(head[3]), vi_and(vi_shr(head[1], 2), two)) };
    vi mins[2] = { vi_and(head[2], six), vi_or(high_nibbles(head[3]), vi_and(vi_shr(head[2], 2), two)) };
    vf d = vf_from_low_f16(head[0]), dmin = vf_from_low_f16(vi_shr(head[0], 16));
    for (int b = 0; b < SEG_BLOCKS; b++) {
        s->dw[b] = vf_mul(d, vf_from_int(vi_and(vi_shr(scales[b / 4], 8 * (b % 4)), byte)));
        s->mw[b] = vf_mul(dmin, vf_from_int(vi_and(vi_shr(mins[b / 4], 8 * (b % 4)), byte)));
    }
}

LANE_FN void unpack_q4_k(vi (*codes)[8], struct scales *s, const struct src *src, int b)
{
    (void)s;
    vi v[8];
    rows32(v, src, 16 + 16 * b);
    for (int k = 0; k < 8; k++) {
        codes[0][k] = low_nibbles(v[k]);
        codes[1][k] = high_nibbles(v[k]);
    }
}

/* Bit g of every byte, as bit 4. */
LANE_FN vi fifth_bit(vi v, int g)
{
    return vi_and(g < 4 ? vi_shl(v, 4 - g) : vi_shr(v, g - 4), vi_set1(0x10101010));
}

LANE_FN void unpack_q5_k(vi (*codes)[8], struct scales *s, const struct src *src, int b)
{
    (void)s;
    vi v[8], fifth[8];
    if (b == 0)
        fetch_ahead(src, 16, 32);
    vi_rows32(fifth, src->p + 16, src->row_bytes);
    rows32(v, src, 48 + 16 * b);
    for (int k = 0; k < 8; k++) {
        codes[0][k] = vi_or(low_nibbles(v[k]), fifth_bit(fifth[k], b));
        codes[1][k] = vi_or(high_nibbles(v[k]), fifth_bit(fifth[k], b + 1));
    }
}

LANE_FN void scales_q6_k(struct scales *s, const struct src *src)
{
    vi v[4];
    vi_rows16(v, src->p + 192, src->row_bytes);
    for (int i = 0; i < 2 * SEG_BLOCKS; i++)
        s->pair[i] = vf_from_int(vi_sar(vi_shl(v[i / 4], 24 - 8 * (i % 4)), 24));
    vi_rows16(v, src->p + 194, src->row_bytes);                         /* its last two bytes are d */
    for (int b = 0; b < SEG_BLOCKS; b++)
        s->dw[b] = vf_from_low_f16(vi_shr(v[3], 16));
}

/* Half a super-block: blocks 0 and 2 in the nibbles of the first 32 bytes, 1 and 3 in the next, bit pairs above them. */
LANE_FN void unpack_q6_k(vi (*codes)[8], struct scales *s, const struct src *src, int b)
{
    (void)s;
    const vi pair = vi_set1(0x30303030);
    vi even[8], odd[8], high[8];
    fetch_ahead(src, 24 * b, 32);                            /* in the order of addresses, not in that of these loads */
    vi_rows32(even, src->p + 16 * b, src->row_bytes);
    fetch_ahead(src, 24 * b + 32, 32);
    vi_rows32(odd, src->p + 16 * b + 32, src->row_bytes);
    fetch_ahead(src, 24 * b + 64, 32);
    fetch_ahead(src, 24 * b + 96, b ? 18 : 0);             /* scales and d, at the end */
    vi_rows32(high, src->p + 128 + 8 * b, src->row_bytes);
    for (int k = 0; k < 8; k++) {
        codes[0][k] = vi_or(low_nibbles(even[k]), vi_and(vi_shl(high[k], 4), pair));
        codes[1][k] = vi_or(low_nibbles(odd[k]), vi_and(vi_shl(high[k], 2), pair));
        codes[2][k] = vi_or(high_nibbles(even[k]), vi_and(high[k], pair));
        codes[3][k] = vi_or(high_nibbles(odd[k]), vi_and(vi_shr(high[k], 2), pair));
    }
}

#endif
