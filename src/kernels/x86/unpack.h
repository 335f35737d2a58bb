/* How rows of quantised weights are read LANES at a time: what mul_quant.h shares with what knows the types.
 *
 * Include after a lanes header. A type's blocks of 32 elements are read a unit at a time, a few blocks whose bytes lie
 * together, of LANES rows, one row a lane:
 *
 *     load     raw[k], lane r      four bytes of row r
 *     codes    codes[k], lane r    codes 4k .. 4k+3 of one block of row r, made of raw
 *              dw[b], lane r       the scale of that block
 *
 * so that only the codes of a block have to be in registers beside a unit's bytes. A unit of four blocks with two
 * scales each may be read in two parts, blocks 0 and 2 and then 1 and 3. Codes are unsigned, value = code - bias,
 * except in FORM_SIGNED. A type says in struct quant_type how its blocks are read and what their terms are; the
 * integers and scales are those of the scalar kernel in ref/. */
#ifndef PF_UNPACK_H
#define PF_UNPACK_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/qblocks.h"
#include "kernels/x86/dot_rows.h"
#include "kernels/x86/expand.h"
#include "kernels/x86/lookups.h"

enum { SEG_LEN = 256, SEG_BLOCKS = 8, SEG_MAX_BYTES = 8 * sizeof(struct pf_block_q8_0) };

/* Scales of a segment, lane = row. */
struct scales {
    vf dw[SEG_BLOCKS];
    vf mw[SEG_BLOCKS];            /* types with minimums */
    vf pair[2 * SEG_BLOCKS];      /* types with two scales a block */
    vf mins[2 * SEG_BLOCKS];      /* types with two integer minimums a block */
};

/* A whole segment of LANES rows, row r at p + r * row_bytes. As many bytes from `ahead` on are brought into the second
 * cache while these are read, and others that lie `apart` bytes from them (fetch.h). */
struct src {
    const uint8_t *p, *ahead;
    ptrdiff_t      apart;
    size_t         row_bytes;
};

enum { RAW_WORDS = 24, MOST_UNIT = 4 };      /* of a unit at a time; blocks of a unit; at most */

/* load_bytes_fn reads part 0 or 1 of the unit that begins with block b, with part 0 still there for part 1. codes_fn
 * makes the codes of its i-th block, and takes the block's scales if they lie with the codes; scales_fn takes scales
 * that lie apart. */
typedef void load_bytes_fn(vi *raw, const struct src *src, int b, int part);
typedef void codes_fn(vi *codes, struct scales *s, const vi *raw, int b, int i);
typedef void scales_fn(struct scales *s, const struct src *src);

enum form {
    FORM_PLAIN,                   /* a term dw * d * sum */
    FORM_SIGNED,                  /* FORM_PLAIN with codes made by vi_signed_codes */
    FORM_MIN,                     /* a second term -mw * (d * sum of q) */
    FORM_PAIR,                    /* sum = pair[2b] * (first 16) + pair[2b+1] * (last 16) */
    FORM_PAIR_MIN,                /* FORM_PAIR and a second term -mw * (d * (sums of q by mins likewise)) */
    FORM_TWO,                     /* two terms pair * d * sum, of the first 16 and of the last 16 */
};

struct quant_type {
    pf_expand_fn *expand;         /* or NULL; if not, load and scales read struct pf_expanded */
    pf_dot_rows_fn *dot;          /* or NULL; if not, what multiplies one activation row */
    load_bytes_fn *load;
    codes_fn  *codes;
    scales_fn *scales;            /* or NULL */
    int        unit;              /* blocks of a unit */
    bool       two_parts;         /* a unit, of MOST_UNIT blocks, is read in two parts */
    enum form  form;
    int        bias;
    int        adds;              /* lane_dot: sums of two products that fit an int16 together */
    int        block_len, block_bytes;
};

/* Bytes at .. at+15 of each row, or at .. at+31, transposed: lane r of v[k] holds four bytes of row r. */
LANE_FN void rows16(vi v[4], const struct src *src, int at)
{
    vi_rows16(v, src->p + at, src->row_bytes);
}

LANE_FN void rows32(vi v[8], const struct src *src, int at)
{
    vi_rows32(v, src->p + at, src->row_bytes);
}

/* Bits 2p and 2p + 1 of every byte. */
LANE_FN vi bit_pairs(vi v, int p)
{
    return vi_and(vi_shr(v, 2 * p), vi_set1(0x03030303));
}

/* Byte i of each lane. */
LANE_FN vi byte_at(vi v, int i)
{
    return vi_and(vi_shr(v, 8 * i), vi_set1(0xFF));
}

/* dw[] of a type with one for all its blocks. */
LANE_FN void same_dw(struct scales *s, vf d)
{
    for (int b = 0; b < SEG_BLOCKS; b++)
        s->dw[b] = d;
}

/* The code book of IQ4_NL and IQ4_XS as vi_signed_codes leaves codes. */
#define IQ4_CODE(value) (uint8_t)((value) + LANES_S8_BIAS)
static const uint8_t iq4_codes[16] = {
    IQ4_CODE(-127), IQ4_CODE(-104), IQ4_CODE(-83), IQ4_CODE(-65), IQ4_CODE(-49), IQ4_CODE(-35),
    IQ4_CODE(-22),  IQ4_CODE(-10),  IQ4_CODE(1),   IQ4_CODE(13),  IQ4_CODE(25),  IQ4_CODE(38),
    IQ4_CODE(53),   IQ4_CODE(69),   IQ4_CODE(89),  IQ4_CODE(113),
};

/* n_bytes of each row from `from` on, 32 at least and a multiple of 4: raw[k] holds the k-th four. The last load ends
 * where they end, over some that are there already. */
LANE_FN void rows_raw(vi *raw, const struct src *src, int from, int n_bytes)
{
    int at = 0;
    for (; at + 32 <= n_bytes; at += 32)
        rows32(raw + at / 4, src, from + at);
    if (n_bytes - at > 16)
        vi_rows32(raw + n_bytes / 4 - 8, src->p + from + n_bytes - 32, src->row_bytes);
    else if (n_bytes > at)
        vi_rows16(raw + n_bytes / 4 - 4, src->p + from + n_bytes - 16, src->row_bytes);
}

/* Bytes at .. at+3 of each row. */
LANE_FN vi raw_at(const vi *raw, int at)
{
    int k = at / 4, bits = at % 4 * 8;
    return bits ? join_words(raw[k], raw[k + 1], bits) : raw[k];
}

#endif
