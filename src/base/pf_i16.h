/* Keys and values as whole numbers of 16 bits: how a chunk of 256 positions of one KV head lies in memory. The CPU,
 * the GPU, rings and saved sessions share this layout; docs/numerics.md, "Attention in whole numbers", says what the
 * numbers are. Pure functions.
 *
 * A chunk is four blocks of 64 positions, each whole in itself: keys and values of a block, hd elements a head, are
 *
 *     keys    [2][2][hd / 4][plane: hi, lo][16][4] int8     float sk[64]   float lsv[64]        64 * (2 hd + 8) bytes
 *     values  [4][4][hd / 16][plane: hi, lo][16][4] int8    float rsv[64]                       64 * (2 hd + 4) bytes
 *
 * Scales are in the order of positions. Bytes come in words of four, the operand of a product of bytes: four
 * neighbouring elements of a key, four positions of one element of the values. Sixteen words of each plane are a vector
 * of the CPU.
 *
 *     keys    position p of the block: bits 5, 2 choose [2][2], then word 4 * (p % 4) + p / 8 % 4 of 16
 *     values  bits 5, 4 and then 2, 1 of p choose [4][4], bits 3, 0 the byte of the word
 *
 *         bit of p   5  4  3  2  1  0
 *         keys       B  w  w  B  W  W     B: place   W, w: word, W the upper bits
 *         values     B  B  c  b  b  c     B, b: place   c: byte of the word
 *
 * That order is the tensor core's (mma m16n8k32). Four words in a row, 16 bytes, are for keys positions c, c + 8,
 * c + 16, c + 24: column c of four tiles of 8 positions. A thread then has the scores of columns 2j, 2j + 1 of the four
 * tiles, which are the positions of words j of two groups of 16 values: the weights need not move between threads. */
#ifndef PF_I16_H
#define PF_I16_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/pf_math.h"

/* How functions are declared that CPU and GPU code both call: the GPU's compiler defines PF_UNIT_FN first. */
#ifndef PF_UNIT_FN
#define PF_UNIT_FN static inline
#endif

enum {
    PF_I16_CHUNK = 256, PF_I16_BLOCK = 64,       /* positions */
    PF_I16_HEAD_STEP = 32, PF_I16_HEAD_MAX = 512,
    PF_I16_TOP = 32639,                          /* the largest number: both planes of it fit int8 */
    PF_I16_PLANE = 64                            /* bytes from an element's upper byte to its lower one */
};

/* amax of a row: no less counts; more is out of range. */
#define PF_I16_LEAST 0x1p-60f
#define PF_I16_MOST  0x1p40f
/* |cq| from here on is out of range. */
#define PF_I16_MOST_CQ 0x1p60f

#define PF_LOG2_E 0x1.715476p0f
#define PF_I16_WEIGHT 65535.0f                   /* weight 1 */
#define PF_I16_GAIN 0x1.0001p-8f                 /* 256 / 65535 */

/* Can heads of that size be kept so? */
PF_UNIT_FN bool pf_i16_takes(int hd)
{
    return hd > 0 && hd <= PF_I16_HEAD_MAX && hd % PF_I16_HEAD_STEP == 0;
}

/* Bytes that a position takes among the keys, among the values. */
PF_UNIT_FN size_t pf_i16_key_bytes(int hd)
{
    return 2 * (size_t)hd + 8;
}

PF_UNIT_FN size_t pf_i16_value_bytes(int hd)
{
    return 2 * (size_t)hd + 4;
}

/* Where the block of position p < PF_I16_CHUNK begins in its chunk. */
PF_UNIT_FN size_t pf_i16_key_block(int hd, int p)
{
    return (size_t)(p / PF_I16_BLOCK) * PF_I16_BLOCK * pf_i16_key_bytes(hd);
}

PF_UNIT_FN size_t pf_i16_value_block(int hd, int p)
{
    return (size_t)(p / PF_I16_BLOCK) * PF_I16_BLOCK * pf_i16_value_bytes(hd);
}

/* Where the upper byte of element e of position p lies in a block, p < PF_I16_BLOCK. */
PF_UNIT_FN size_t pf_i16_key_at(int hd, int p, int e)
{
    int vector = ((p / 32 * 2 + p / 4 % 2) * (hd / 4) + e / 4) * 2, word = p % 4 * 4 + p / 8 % 4;
    return (size_t)vector * PF_I16_PLANE + (size_t)(word * 4 + e % 4);
}

PF_UNIT_FN size_t pf_i16_value_at(int hd, int p, int e)
{
    int vector = ((p / 16 * 4 + p / 2 % 4) * (hd / 16) + e / 16) * 2, byte = p / 8 % 2 * 2 + p % 2;
    return (size_t)vector * PF_I16_PLANE + (size_t)(e % 16 * 4 + byte);
}

/* Where sk[0] and lsv[0] lie in a block of keys, and rsv[0] in one of values. */
PF_UNIT_FN size_t pf_i16_sk(int hd)
{
    return (size_t)PF_I16_BLOCK * 2 * (size_t)hd;
}

PF_UNIT_FN size_t pf_i16_lsv(int hd)
{
    return pf_i16_sk(hd) + PF_I16_BLOCK * sizeof(float);
}

PF_UNIT_FN size_t pf_i16_rsv(int hd)
{
    return pf_i16_sk(hd);
}

/* Copies what block `from` of keys, or of values, has of position p to the same place of block `to`. */
static inline void pf_i16_copy_position(char *to, const char *from, int hd, int p, bool keys)
{
    for (int e = 0; e < hd; e++) {
        size_t at = keys ? pf_i16_key_at(hd, p, e) : pf_i16_value_at(hd, p, e);
        to[at] = from[at];
        to[at + PF_I16_PLANE] = from[at + PF_I16_PLANE];
    }
    for (int i = 0; i < (keys ? 2 : 1); i++) {
        size_t at = pf_i16_sk(hd) + (size_t)(i * PF_I16_BLOCK + p) * sizeof(float);
        memcpy(to + at, from + at, sizeof(float));
    }
}

/* The length of the pieces that a row of n elements is rotated in. */
PF_UNIT_FN int pf_i16_piece(int n)
{
    return n & -n;
}

/* 1 / sqrt(piece). */
PF_UNIT_FN float pf_i16_norm(int piece)
{
    float f = 1.0f;
    for (; piece >= 4; piece /= 4)
        f *= 0.5f;
    return piece == 2 ? f * 0x1.6a09e6p-1f : f;
}

/* An element as a whole number; inv = PF_I16_TOP / A. */
PF_MATH_FN int pf_i16_number(float x, float inv)
{
    const float shift = 0x1.8p23f;
    return (int)(pf_float_bits(x * inv + shift) - pf_float_bits(shift));
}

PF_UNIT_FN int pf_i16_upper(int n)
{
    return (n + 128) >> 8;
}

PF_UNIT_FN int pf_i16_lower(int n)
{
    return n - 256 * pf_i16_upper(n);
}

/* e * 65535 to the nearest whole number, 0 <= e <= 1. */
PF_MATH_FN unsigned pf_i16_weight(float e)
{
    return pf_float_bits(__builtin_fmaf(e, PF_I16_WEIGHT, 0x1p23f)) & 0xffff;
}

#endif
