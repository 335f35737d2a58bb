/* How types with blocks of 32 elements are read, several blocks at once so that loads are wide. See unpack.h. */
#ifndef PF_UNPACK_BLOCKS_H
#define PF_UNPACK_BLOCKS_H

#include "kernels/x86/unpack.h"

/* The F16 at byte `at`, which is even. */
LANE_FN vf raw_f16(const vi *raw, int at)
{
    return vf_from_low_f16(at % 4 ? vi_shr(raw[at / 4], 16) : raw[at / 4]);
}

LANE_FN void load_q8_0(vi *raw, const struct src *src, int b, int part)
{
    (void)part;
    rows_raw(raw, src, 34 * b, 68);
}

LANE_FN void codes_q8_0(vi *codes, struct scales *s, const vi *raw, int b, int i)
{
    s->dw[b + i] = raw_f16(raw, 34 * i);
#pragma GCC unroll 8
    for (int k = 0; k < 8; k++)
        codes[k] = vi_signed_codes(raw_at(raw, 34 * i + 2 + 4 * k));
}

LANE_FN void load_q4_0(vi *raw, const struct src *src, int b, int part)
{
    (void)part;
    rows_raw(raw, src, 18 * b, 72);
}

LANE_FN void codes_q4_0(vi *codes, struct scales *s, const vi *raw, int b, int i)
{
    s->dw[b + i] = raw_f16(raw, 18 * i);
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) {
        vi v = raw_at(raw, 18 * i + 2 + 4 * k);
        codes[k] = low_nibbles(v);
        codes[4 + k] = high_nibbles(v);
    }
}

LANE_FN void load_iq4_nl(vi *raw, const struct src *src, int b, int part)
{
    (void)part;
    rows_raw(raw, src, 18 * b, 72);
}

LANE_FN void codes_iq4_nl(vi *codes, struct scales *s, const vi *raw, int b, int i)
{
    s->dw[b + i] = raw_f16(raw, 18 * i);
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) {
        vi v = raw_at(raw, 18 * i + 2 + 4 * k);
        codes[k] = look_low(iq4_codes, v);
        codes[4 + k] = look_high(iq4_codes, v);
    }
}

/* d and an offset, which is a minimum with its sign turned, in one word. */
LANE_FN void scale_offset(struct scales *s, int b, vi word)
{
    s->dw[b] = vf_from_low_f16(word);
    s->mw[b] = vf_mul(vf_from_low_f16(vi_shr(word, 16)), vf_set1(-1));
}

LANE_FN void load_q4_1(vi *raw, const struct src *src, int b, int part)
{
    (void)part;
    rows_raw(raw, src, 20 * b, 80);
}

LANE_FN void codes_q4_1(vi *codes, struct scales *s, const vi *raw, int b, int i)
{
    scale_offset(s, b + i, raw[5 * i]);
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) {
        vi v = raw_at(raw, 20 * i + 4 + 4 * k);
        codes[k] = low_nibbles(v);
        codes[4 + k] = high_nibbles(v);
    }
}

/* Adds 16 to the codes of a block whose bit in qh is set: each byte of qh is spread over a lane, which leaves bit j of
 * its low nibble to code j of four, and that of its high nibble to those of the next four. */
LANE_FN void fifth_bits(vi codes[8], vi qh)
{
    static const uint8_t sixteen[16] = { [1] = 16, [2] = 16, [4] = 16, [8] = 16 };
    const vi diagonal = vi_set1(0x08040201);
#pragma GCC unroll 4
    for (int m = 0; m < 4; m++) {
        vi byte = vi_byte4(qh, m);
        codes[2 * m] = vi_or(codes[2 * m], vi_lookup(sixteen, vi_and(byte, diagonal)));
        codes[2 * m + 1] = vi_or(codes[2 * m + 1], vi_lookup(sixteen, vi_and(vi_shr(byte, 4), diagonal)));
    }
}

LANE_FN void load_q5_0(vi *raw, const struct src *src, int b, int part)
{
    (void)part;
    rows_raw(raw, src, 22 * b, 88);
}

LANE_FN void codes_q5_0(vi *codes, struct scales *s, const vi *raw, int b, int i)
{
    s->dw[b + i] = raw_f16(raw, 22 * i);
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) {
        vi v = raw_at(raw, 22 * i + 6 + 4 * k);
        codes[k] = low_nibbles(v);
        codes[4 + k] = high_nibbles(v);
    }
    fifth_bits(codes, raw_at(raw, 22 * i + 2));
}

LANE_FN void load_q5_1(vi *raw, const struct src *src, int b, int part)
{
    (void)part;
    rows_raw(raw, src, 24 * b, 96);
}

LANE_FN void codes_q5_1(vi *codes, struct scales *s, const vi *raw, int b, int i)
{
    scale_offset(s, b + i, raw[6 * i]);
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) {
        vi v = raw_at(raw, 24 * i + 8 + 4 * k);
        codes[k] = low_nibbles(v);
        codes[4 + k] = high_nibbles(v);
    }
    fifth_bits(codes, raw[6 * i + 1]);
}

/* 2^(e - 128) in each lane: an exponent field of e - 1, or a subnormal for e below 2. */
LANE_FN vf e8m0(vi e)
{
    vi normal = vi_shl(vi_add(e, vi_set1(-1)), 23);          /* negative for e = 0, zero for 1: never the greater */
    vi subnormal = vi_shlv(vi_set1(1 << 21), vi_min(e, vi_set1(1)));
    return vf_from_bits(vi_max(normal, subnormal));
}

enum { FP4_BIAS = 12 };
static const uint8_t fp4_codes[16] = {      /* twice the E2M1 value, plus FP4_BIAS */
    12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0,
};

LANE_FN void load_mxfp4(vi *raw, const struct src *src, int b, int part)
{
    (void)part;
    rows_raw(raw, src, 17 * b, 68);
}

LANE_FN void codes_mxfp4(vi *codes, struct scales *s, const vi *raw, int b, int i)
{
    s->dw[b + i] = e8m0(vi_and(vi_shr(raw[17 * i / 4], 17 * i % 4 * 8), vi_set1(0xFF)));
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) {
        vi v = raw_at(raw, 17 * i + 1 + 4 * k);
        codes[k] = look_low(fp4_codes, v);
        codes[4 + k] = look_high(fp4_codes, v);
    }
}

/* Half of an unsigned E4M3 value: its bits lie as a float's, with another exponent. Bit 7 is ignored, 0x7f is 0. */
LANE_FN vf half_ue4m3(vi v)
{
    vi bits = vi_unless_equal(vi_and(v, vi_set1(0x7F)), v, vi_set1(0x7F));
    return vf_mul(vf_from_bits(vi_shl(bits, 20)), vf_set1(0x1p119f));
}

/* Sixteens of a block of 64: the low nibbles of eight bytes, then their high nibbles. */
LANE_FN void load_nvfp4(vi *raw, const struct src *src, int b, int part)
{
    (void)part;
    rows_raw(raw, src, 18 * b, 36);
}

LANE_FN void codes_nvfp4(vi *codes, struct scales *s, const vi *raw, int b, int i)
{
    for (int h = 0; h < 2; h++) {
        s->pair[2 * (b + i) + h] = half_ue4m3(byte_at(raw[0], 2 * i + h));
        for (int k = 0; k < 2; k++) {
            vi v = raw[1 + 4 * i + 2 * h + k];
            codes[4 * h + k] = look_low(fp4_codes, v);
            codes[4 * h + 2 + k] = look_high(fp4_codes, v);
        }
    }
}

#endif
