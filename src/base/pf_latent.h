/* A cached latent as whole numbers of 16 bits: how a chunk of 256 positions lies in memory. The CPU, the GPU and saved
 * sessions share this layout; docs/numerics.md, "A latent in whole numbers", says what the numbers are. Pure functions.
 *
 * A position has hd_k elements, of which the first hd_v are the latent, key and value at once, and the others the part
 * of the key that carries the position. Each of the two has a scale of its own: s and sp (1 where there is no second
 * part); lsv = log2(s), rsv = 1 / s. A chunk is four blocks of 64 positions, each whole in itself:
 *
 *     [2][hd_k / 4][plane: hi, lo][32][4] int8    float s[64]   float sp[64]   float lsv[64]   float rsv[64]
 *
 *     64 * (2 hd_k + 16) bytes; positions in order: p / 32 chooses [2], p % 32 the word of four neighbouring elements
 *
 * A row is stored once. As a key it is read by words: four elements of one position. As a value it wants four positions
 * of one element, which is 16 bytes, four words in a row, transposed: one shuffle of bytes in each 128-bit lane on the
 * CPU. The tensor core (mma m16n8k32) numbers columns of scores so that thread j of four has positions 8j .. 8j + 7 of
 * 32, in four tiles: column c of tile t is position 4c + t. These are its operand of weights, too. */
#ifndef PF_LATENT_H
#define PF_LATENT_H

#include "base/pf_i16.h"

enum {
    PF_LATENT_RUN = 32,                          /* positions whose words lie in a row */
    PF_LATENT_PLANE = PF_LATENT_RUN * 4,         /* bytes from an element's upper byte to its lower one */
    PF_LATENT_PIECE = 32                         /* elements that are rotated together */
};

/* Can a latent of hd_v elements within keys of hd_k be kept so? */
PF_UNIT_FN bool pf_latent_takes(int hd_k, int hd_v)
{
    return pf_i16_takes(hd_v) && (hd_k == hd_v || pf_i16_takes(hd_k - hd_v));
}

/* Bytes that a position takes. */
PF_UNIT_FN size_t pf_latent_bytes(int hd_k)
{
    return 2 * (size_t)hd_k + 4 * sizeof(float);
}

/* Where the block of position p < PF_I16_CHUNK begins in its chunk. */
PF_UNIT_FN size_t pf_latent_block(int hd_k, int p)
{
    return (size_t)(p / PF_I16_BLOCK) * PF_I16_BLOCK * pf_latent_bytes(hd_k);
}

/* Where the upper byte of element e of position p lies in a block, p < PF_I16_BLOCK. */
PF_UNIT_FN size_t pf_latent_at(int hd_k, int p, int e)
{
    size_t vector = ((size_t)(p / PF_LATENT_RUN) * (size_t)(hd_k / 4) + (size_t)(e / 4)) * 2;
    return vector * PF_LATENT_PLANE + (size_t)(p % PF_LATENT_RUN * 4 + e % 4);
}

/* Where s[0], sp[0], lsv[0] and rsv[0] lie in a block: which = 0 .. 3. */
PF_UNIT_FN size_t pf_latent_scales(int hd_k, int which)
{
    return (size_t)PF_I16_BLOCK * (2 * (size_t)hd_k + (size_t)which * sizeof(float));
}

/* Copies what block `from` has of position p to the same place of block `to`. */
static inline void pf_latent_copy_position(char *to, const char *from, int hd_k, int p)
{
    for (int e = 0; e < hd_k; e += 4) {
        size_t at = pf_latent_at(hd_k, p, e);
        memcpy(to + at, from + at, 4);
        memcpy(to + at + PF_LATENT_PLANE, from + at + PF_LATENT_PLANE, 4);
    }
    for (int i = 0; i < 4; i++) {
        size_t at = pf_latent_scales(hd_k, i) + (size_t)p * sizeof(float);
        memcpy(to + at, from + at, sizeof(float));
    }
}

#endif
