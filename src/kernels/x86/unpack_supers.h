/* How types with super-blocks of 256 elements, one segment each, are read. See unpack.h. */
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

LANE_FN void load_q4_k(vi *raw, const struct src *src, int b, int part)
{
    (void)part;
    rows32(raw, src, 16 + 16 * b);
}

LANE_FN void codes_q4_k(vi *codes, struct scales *s, const vi *raw, int b, int i)
{
    (void)s;
    (void)b;
    for (int k = 0; k < 8; k++)
        codes[k] = i ? high_nibbles(raw[k]) : low_nibbles(raw[k]);
}

/* Bit g of every byte, as bit 4. */
LANE_FN vi fifth_bit(vi v, int g)
{
    return vi_and(g < 4 ? vi_shl(v, 4 - g) : vi_shr(v, g - 4), vi_set1(0x10101010));
}

/* Sixteen words: the fifth bits of all blocks, then a pair's nibbles. */
LANE_FN void load_q5_k(vi *raw, const struct src *src, int b, int part)
{
    (void)part;
    rows32(raw, src, 16);
    rows32(raw + 8, src, 48 + 16 * b);
}

LANE_FN void codes_q5_k(vi *codes, struct scales *s, const vi *raw, int b, int i)
{
    (void)s;
    for (int k = 0; k < 8; k++)
        codes[k] = vi_or(i ? high_nibbles(raw[8 + k]) : low_nibbles(raw[8 + k]), fifth_bit(raw[k], b + i));
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

/* Half a super-block has blocks 0 and 2 in the nibbles of its first 32 bytes, part 0, and 1 and 3 in those of the next,
 * part 1; the bit pairs above them lie elsewhere, and stay for part 1. */
LANE_FN void load_q6_k(vi *raw, const struct src *src, int b, int part)
{
    rows32(raw, src, 16 * b + 32 * part);
    if (part == 0)
        rows32(raw + 8, src, 128 + 8 * b);
}

LANE_FN void codes_q6_k(vi *codes, struct scales *s, const vi *raw, int b, int i)
{
    (void)s;
    (void)b;
    const vi pair = vi_set1(0x30303030), *high = raw + 8;
    for (int k = 0; k < 8; k++) {
        vi above = i < 2 ? vi_shl(high[k], 4 - 2 * i) : i == 2 ? high[k] : vi_shr(high[k], 2);
        codes[k] = vi_or(i < 2 ? low_nibbles(raw[k]) : high_nibbles(raw[k]), vi_and(above, pair));
    }
}

/* Half a super-block has four planes; 16 scales and minimums in front, d and dmin behind. */
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

LANE_FN void load_q2_k(vi *raw, const struct src *src, int b, int part)
{
    (void)part;
    rows32(raw, src, 16 + 8 * b);
}

LANE_FN void codes_q2_k(vi *codes, struct scales *s, const vi *raw, int b, int i)
{
    (void)s;
    (void)b;
    for (int k = 0; k < 8; k++)
        codes[k] = bit_pairs(raw[k], i);
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

/* Eight words of third bits, of all blocks, and eight of bit pairs. */
LANE_FN void load_q3_k(vi *raw, const struct src *src, int b, int part)
{
    (void)part;
    rows32(raw, src, 0);
    rows32(raw + 8, src, 32 + 8 * b);
}

LANE_FN void codes_q3_k(vi *codes, struct scales *s, const vi *raw, int b, int i)
{
    (void)s;
    for (int k = 0; k < 8; k++)
        codes[k] = vi_or(bit_pairs(raw[8 + k], i), third_bit(raw[k], b + i));
}

LANE_FN void scales_iq4_xs(struct scales *s, const struct src *src)
{
    vi head[4];
    vi_rows16(head, src->p, src->row_bytes);
    vf d = vf_from_low_f16(head[0]);
    for (int b = 0; b < SEG_BLOCKS; b++) {
        vi low = vi_and(vi_shr(head[1], 4 * b), vi_set1(15));
        vi high = vi_shl(vi_and(vi_shr(head[0], 16 + 2 * b), vi_set1(3)), 4);
        s->dw[b] = vf_mul(d, vf_from_int(vi_add(vi_or(low, high), vi_set1(-32))));
    }
}

LANE_FN void load_iq4_xs(vi *raw, const struct src *src, int b, int part)
{
    (void)part;
    rows32(raw, src, 8 + 16 * b);
}

LANE_FN void codes_iq4_xs(vi *codes, struct scales *s, const vi *raw, int b, int i)
{
    (void)s;
    (void)b;
    for (int k = 0; k < 4; k++) {
        codes[k] = look_low(iq4_codes, raw[4 * i + k]);
        codes[4 + k] = look_high(iq4_codes, raw[4 * i + k]);
    }
}

LANE_FN void scales_tq2_0(struct scales *s, const struct src *src)
{
    vi v[4];
    vi_rows16(v, src->p + 50, src->row_bytes);                          /* its last two bytes are d */
    same_dw(s, vf_from_low_f16(vi_shr(v[3], 16)));
}

LANE_FN void load_tq2_0(vi *raw, const struct src *src, int b, int part)
{
    (void)part;
    rows32(raw, src, 8 * b);
}

LANE_FN void codes_tq2_0(vi *codes, struct scales *s, const vi *raw, int b, int i)
{
    (void)s;
    (void)b;
    for (int k = 0; k < 8; k++)
        codes[k] = bit_pairs(raw[k], i);
}

/* ---- Expanded rows, which are like a super-block ---------------------------------------------------------------- */

LANE_FN void load_expanded(vi *raw, const struct src *src, int b, int part)
{
    (void)part;
    rows32(raw, src, 32 * b);
}

LANE_FN void codes_expanded(vi *codes, struct scales *s, const vi *raw, int b, int i)
{
    (void)s;
    (void)b;
    (void)i;
    for (int k = 0; k < 8; k++)
        codes[k] = raw[k];
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
