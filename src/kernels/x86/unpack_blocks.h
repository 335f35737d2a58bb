/* Unpackers of the types with blocks of 32 elements, several blocks at once so that loads are wide. See unpack.h. */
#ifndef PF_UNPACK_BLOCKS_H
#define PF_UNPACK_BLOCKS_H

#include "kernels/x86/unpack.h"

LANE_FN void unpack_q8_0(vi (*codes)[8], struct scales *s, const struct src *src, int b)
{
    vi raw[17];
    rows_raw(raw, src, 34 * b, 68);
    for (int i = 0; i < 2; i++) {
        s->dw[b + i] = vf_from_low_f16(i ? vi_shr(raw[8], 16) : raw[0]);
#pragma GCC unroll 8
        for (int k = 0; k < 8; k++)
            codes[i][k] = vi_signed_codes(raw_at(raw, 34 * i + 2 + 4 * k));
    }
}

LANE_FN void unpack_q4_0(vi (*codes)[8], struct scales *s, const struct src *src, int b)
{
    vi raw[18];
    rows_raw(raw, src, 18 * b, 72);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        s->dw[b + i] = vf_from_low_f16(i % 2 ? vi_shr(raw[18 * i / 4], 16) : raw[18 * i / 4]);
        for (int k = 0; k < 4; k++) {
            vi v = raw_at(raw, 18 * i + 2 + 4 * k);
            codes[i][k] = low_nibbles(v);
            codes[i][4 + k] = high_nibbles(v);
        }
    }
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

LANE_FN void unpack_mxfp4(vi (*codes)[8], struct scales *s, const struct src *src, int b)
{
    vi raw[17];
    rows_raw(raw, src, 17 * b, 68);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        s->dw[b + i] = e8m0(vi_and(vi_shr(raw[17 * i / 4], 17 * i % 4 * 8), vi_set1(0xFF)));
        for (int k = 0; k < 4; k++) {
            vi v = raw_at(raw, 17 * i + 1 + 4 * k);
            codes[i][k] = vi_lookup(fp4_codes, low_nibbles(v));
            codes[i][4 + k] = vi_lookup(fp4_codes, high_nibbles(v));
        }
    }
}

#endif
