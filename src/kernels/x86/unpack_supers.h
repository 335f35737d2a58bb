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
    const vi six = vi_set1(0x3F3F3F3F), two = vi_set1(0x30303030);
    vi head[4];
    rows16(head, src, 0);
    vi scales[2] = { vi_and(head[1], six), vi_or(low_nibbles(head[3]), vi_and(vi_shr(head[1], 2), two)) };
    vi mins[2] = { vi_and(head[2], six), vi_or(high_nibbles(head[3]), vi_and(vi_shr(head[2], 2), two)) };
    vf d = vf_from_low_f16(head[0]), dmin = vf_from_low_f16(vi_shr(head[0], 16));
    for (int b = 0; b < SEG_BLOCKS; b++) {
        s->dw[b] = vf_mul(d, vf_from_int(byte_at(scales[b / 4], b % 4)));
        s->mw[b] = vf_mul(dmin, vf_from_int(byte_at(mins[b / 4], b % 4)));
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
    same_dw(s, vf_from_low_f16(vi_shr(v[3], 16)));
}

/* Half a super-block: blocks 0 and 2 in the nibbles of the first 32 bytes, 1 and 3 in the next,
 * bit pairs above them. */
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

/* Half a super-block, its four planes; 16 scales and minimums in front, d and dmin behind. */
LANE_FN void scales_q2_k(struct scales *s, const struct src *src)
{
    vi v[4], tail[4];
    rows16(v, src, 0);
    vi_rows16(tail, src->p + 68, src->row_bytes);
    same_dw(s, vf_from_low_f16(tail[3]));
    for (int b = 0; b < SEG_BLOCKS; b++)
        s->mw[b] = vf_from_low_f16(vi_shr(tail[3], 16));
    for (int i = 0; i < 2 * SEG_BLOCKS; i++) {
        s->pair[i] = vf_from_int(byte_at(low_nibbles(v[i / 4]), i % 4));
        s->mins[i] = vf_from_int(byte_at(high_nibbles(v[i / 4]), i % 4));
    }
}

LANE_FN void unpack_q2_k(vi (*codes)[8], struct scales *s, const struct src *src, int b)
{
    (void)s;
    vi v[8];
    rows32(v, src, 16 + 8 * b);
    fetch_ahead(src, 80, b ? 4 : 0);
    for (int p = 0; p < 4; p++)
        for (int k = 0; k < 8; k++)
            codes[p][k] = bit_pairs(v[k], p);
}

/* Sixteen scales of six bits: nibbles in eight bytes, the bits above them in four, all less 32. */
LANE_FN void scales_q3_k(struct scales *s, const struct src *src)
{
    vi v[4], tail[4];
    vi_rows16(v, src->p + 92, src->row_bytes);
    vi_rows16(tail, src->p + 94, src->row_bytes);                       /* its last two bytes are d */
    same_dw(s, vf_from_low_f16(vi_shr(tail[3], 16)));
    for (int p = 0; p < 4; p++) {
        vi low = p < 2 ? low_nibbles(v[1 + p]) : high_nibbles(v[p - 1]);
        vi scales = vi_or(low, vi_shl(bit_pairs(v[3], p), 4));
        for (int i = 0; i < 4; i++)
            s->pair[4 * p + i] = vf_from_int(vi_add(byte_at(scales, i), vi_set1(-32)));
    }
}

/* Bit g of every byte, as bit 2. */
LANE_FN vi third_bit(vi v, int g)
{
    return vi_and(g < 2 ? vi_shl(v, 2 - g) : vi_shr(v, g - 2), vi_set1(0x04040404));
}

LANE_FN void unpack_q3_k(vi (*codes)[8], struct scales *s, const struct src *src, int b)
{
    (void)s;
    vi v[8], third[8];
    if (b == 0)
        fetch_ahead(src, 0, 32);
    vi_rows32(third, src->p, src->row_bytes);
    rows32(v, src, 32 + 8 * b);
    fetch_ahead(src, 96, b ? 14 : 0);
    for (int p = 0; p < 4; p++)
        for (int k = 0; k < 8; k++)
            codes[p][k] = vi_or(bit_pairs(v[k], p), third_bit(third[k], b + p));
}

LANE_FN void scales_iq4_xs(struct scales *s, const struct src *src)
{
    vi head[4];
    fetch_ahead(src, 0, 8);
    vi_rows16(head, src->p, src->row_bytes);
    vf d = vf_from_low_f16(head[0]);
    for (int b = 0; b < SEG_BLOCKS; b++) {
        vi low = vi_and(vi_shr(head[1], 4 * b), vi_set1(15));
        vi high = vi_shl(vi_and(vi_shr(head[0], 16 + 2 * b), vi_set1(3)), 4);
        s->dw[b] = vf_mul(d, vf_from_int(vi_add(vi_or(low, high), vi_set1(-32))));
    }
}

LANE_FN void unpack_iq4_xs(vi (*codes)[8], struct scales *s, const struct src *src, int b)
{
    (void)s;
    vi v[8];
    rows32(v, src, 8 + 16 * b);
    for (int k = 0; k < 8; k++) {
        codes[k / 4][k % 4] = vi_lookup(iq4_codes, low_nibbles(v[k]));
        codes[k / 4][4 + k % 4] = vi_lookup(iq4_codes, high_nibbles(v[k]));
    }
}

LANE_FN void scales_tq2_0(struct scales *s, const struct src *src)
{
    vi v[4];
    vi_rows16(v, src->p + 50, src->row_bytes);                          /* its last two bytes are d */
    same_dw(s, vf_from_low_f16(vi_shr(v[3], 16)));
}

LANE_FN void unpack_tq2_0(vi (*codes)[8], struct scales *s, const struct src *src, int b)
{
    (void)s;
    vi v[8];
    rows32(v, src, 8 * b);
    fetch_ahead(src, 64, b ? 2 : 0);
    for (int p = 0; p < 4; p++)
        for (int k = 0; k < 8; k++)
            codes[p][k] = bit_pairs(v[k], p);
}

/* ---- Expanded rows, which are like a super-block ---------------------------------------------------------------- */

LANE_FN void unpack_expanded(vi (*codes)[8], struct scales *s, const struct src *src, int b)
{
    (void)s;
    rows32(codes[0], src, 32 * b);
}

LANE_FN void scales_expanded(struct scales *s, const struct src *src)
{
    vi dw[SEG_BLOCKS];
    rows32(dw, src, offsetof(struct pf_expanded, dw));
    for (int b = 0; b < SEG_BLOCKS; b++)
        s->dw[b] = vf_from_bits(dw[b]);
}

LANE_FN void scales_expanded_pair(struct scales *s, const struct src *src)
{
    vi pair[2 * SEG_BLOCKS];
    scales_expanded(s, src);
    rows_raw(pair, src, offsetof(struct pf_expanded, pair), sizeof(float[16]));
    for (int i = 0; i < 2 * SEG_BLOCKS; i++)
        s->pair[i] = vf_from_bits(pair[i]);
}

#endif
