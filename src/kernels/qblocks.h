/* The blocks of every quantised weight type, byte for byte as they lie in a file.
 *
 * A row is an array of blocks and may start at any address, so every struct is packed: reading a field through it is
 * always allowed, and no field may be pointed to by anything wider than a byte. fp16 fields are bit patterns
 * (uint16_t). Multi-byte fields are little-endian, like every machine this runs on. What the fields mean is written in
 * ref/, once per type. Three orders of elements recur:
 *
 *     split halves    byte j of 16 holds elements j (low nibble) and j + 16 (high nibble)
 *     nibble pairs    byte l of run c of 32 holds elements 64c + l (low) and 64c + 32 + l (high)
 *     planes          byte l of half h of 32 holds elements 128h + 32s + l in bits 2s and 2s + 1, s = 0..3 */
#ifndef PF_QBLOCKS_H
#define PF_QBLOCKS_H

#include <stdint.h>

#define PF_PACKED __attribute__((packed))
#define PF_BLOCK_BYTES(block, bytes) _Static_assert(sizeof(struct block) == (bytes), #block " is " #bytes " bytes")

/* ---- 32 elements ------------------------------------------------------------------------------------------------ */

/* x = (q - 8) d; split halves */
struct pf_block_q4_0 { uint16_t d; uint8_t qs[16]; } PF_PACKED;
PF_BLOCK_BYTES(pf_block_q4_0, 18);

/* x = q d + m; split halves */
struct pf_block_q4_1 { uint16_t d, m; uint8_t qs[16]; } PF_PACKED;
PF_BLOCK_BYTES(pf_block_q4_1, 20);

/* x = (q - 16) d; split halves, bit i of qh is the fifth bit of element i */
struct pf_block_q5_0 { uint16_t d; uint32_t qh; uint8_t qs[16]; } PF_PACKED;
PF_BLOCK_BYTES(pf_block_q5_0, 22);

/* x = q d + m; bits as Q5_0 */
struct pf_block_q5_1 { uint16_t d, m; uint32_t qh; uint8_t qs[16]; } PF_PACKED;
PF_BLOCK_BYTES(pf_block_q5_1, 24);

/* x = q d */
struct pf_block_q8_0 { uint16_t d; int8_t qs[32]; } PF_PACKED;
PF_BLOCK_BYTES(pf_block_q8_0, 34);

/* x = codebook[q] d; split halves */
struct pf_block_iq4_nl { uint16_t d; uint8_t qs[16]; } PF_PACKED;
PF_BLOCK_BYTES(pf_block_iq4_nl, 18);

/* x = E2M1[q] 2^(e - 127); split halves */
struct pf_block_mxfp4 { uint8_t e; uint8_t qs[16]; } PF_PACKED;
PF_BLOCK_BYTES(pf_block_mxfp4, 17);

/* ---- 64 and 128 elements ---------------------------------------------------------------------------------------- */

/* x = E2M1[q] UE4M3(d[i / 16]); split halves within each 16 */
struct pf_block_nvfp4 { uint8_t d[4]; uint8_t qs[32]; } PF_PACKED;
PF_BLOCK_BYTES(pf_block_nvfp4, 36);

/* x = (q - 1) d; four neighbours to a byte, lowest bits first */
struct pf_block_q2_0 { uint16_t d; uint8_t qs[16]; } PF_PACKED;
PF_BLOCK_BYTES(pf_block_q2_0, 18);

/* x = d where the bit is set, else -d; eight neighbours to a byte, lowest bit first */
struct pf_block_q1_0 { uint16_t d; uint8_t qs[16]; } PF_PACKED;
PF_BLOCK_BYTES(pf_block_q1_0, 18);

/* ---- 256 elements: K-quants ------------------------------------------------------------------------------------- */

/* x = (d scale) q - dmin min per 16; scale in the low, min in the high nibble of scales; planes */
struct pf_block_q2_k { uint8_t scales[16]; uint8_t qs[64]; uint16_t d, dmin; } PF_PACKED;
PF_BLOCK_BYTES(pf_block_q2_k, 84);

/* x = (d scale) (q - 4) per 16; bit 4h + s of hmask[l] is the third bit; planes; 6-bit scales */
struct pf_block_q3_k { uint8_t hmask[32]; uint8_t qs[64]; uint8_t scales[12]; uint16_t d; } PF_PACKED;
PF_BLOCK_BYTES(pf_block_q3_k, 110);

/* x = (d scale) q - dmin min per 32; 6-bit scales and mins share 12 bytes; nibble pairs */
struct pf_block_q4_k { uint16_t d, dmin; uint8_t scales[12]; uint8_t qs[128]; } PF_PACKED;
PF_BLOCK_BYTES(pf_block_q4_k, 144);

/* as Q4_K; bit g of qh[l] is the fifth bit of element 32g + l */
struct pf_block_q5_k { uint16_t d, dmin; uint8_t scales[12]; uint8_t qh[32]; uint8_t qs[128]; } PF_PACKED;
PF_BLOCK_BYTES(pf_block_q5_k, 176);

/* x = (d scale) (q - 32) per 16; low nibbles in runs of 64 per half, high bit pairs in planes */
struct pf_block_q6_k { uint8_t ql[128]; uint8_t qh[64]; int8_t scales[16]; uint16_t d; } PF_PACKED;
PF_BLOCK_BYTES(pf_block_q6_k, 210);

/* ---- 256 elements: IQ ------------------------------------------------------------------------------------------- */

/* per 32: 4 grid indices of 8 elements, then a word of 4 x 7 sign bits and a 4-bit scale on top */
struct pf_block_iq2_xxs { uint16_t d; struct { uint8_t index[4]; uint32_t signs; } PF_PACKED sub[8]; } PF_PACKED;
PF_BLOCK_BYTES(pf_block_iq2_xxs, 66);

/* per 8: 9 bits of grid index, 7 of signs; a scale nibble per 16 */
struct pf_block_iq2_xs { uint16_t d; uint16_t qs[32]; uint8_t scales[8]; } PF_PACKED;
PF_BLOCK_BYTES(pf_block_iq2_xs, 74);

/* per 8: 8 + 2 bits of grid index, 8 sign bits; a scale nibble per 16 */
struct pf_block_iq2_s { uint16_t d; uint8_t qs[32]; uint8_t signs[32]; uint8_t qh[8]; uint8_t scales[8]; } PF_PACKED;
PF_BLOCK_BYTES(pf_block_iq2_s, 82);

/* per 4: a grid index; per 32: a word of 4 x 7 sign bits and a 4-bit scale on top */
struct pf_block_iq3_xxs { uint16_t d; uint8_t qs[64]; uint32_t signs[8]; } PF_PACKED;
PF_BLOCK_BYTES(pf_block_iq3_xxs, 98);

/* per 4: 8 + 1 bits of grid index; a sign byte per 8; a scale nibble per 32 */
struct pf_block_iq3_s { uint16_t d; uint8_t qs[64]; uint8_t qh[8]; uint8_t signs[32]; uint8_t scales[4]; } PF_PACKED;
PF_BLOCK_BYTES(pf_block_iq3_s, 110);

/* per 8: 8 + 3 bits of grid index; qh per 32: 4 x 3 index bits, 3 of scale, the sign of delta */
struct pf_block_iq1_s { uint16_t d; uint8_t qs[32]; uint16_t qh[8]; } PF_PACKED;
PF_BLOCK_BYTES(pf_block_iq1_s, 50);

/* per 8: 8 + 3 bits of grid index and the sign of delta; 3 bits of scale per 16; d in the top nibbles of scales */
struct pf_block_iq1_m { uint8_t qs[32]; uint8_t qh[16]; uint16_t scales[4]; } PF_PACKED;
PF_BLOCK_BYTES(pf_block_iq1_m, 56);

/* x = (d (scale - 32)) codebook[q] per 32; split halves within each 32 */
struct pf_block_iq4_xs { uint16_t d; uint16_t scales_h; uint8_t scales_l[4]; uint8_t qs[128]; } PF_PACKED;
PF_BLOCK_BYTES(pf_block_iq4_xs, 136);

/* ---- 256 elements: ternary -------------------------------------------------------------------------------------- */

/* x = (trit - 1) d; 5 trits to a byte in qs, 4 in qh */
struct pf_block_tq1_0 { uint8_t qs[48]; uint8_t qh[4]; uint16_t d; } PF_PACKED;
PF_BLOCK_BYTES(pf_block_tq1_0, 54);

/* x = (q - 1) d; planes */
struct pf_block_tq2_0 { uint8_t qs[64]; uint16_t d; } PF_PACKED;
PF_BLOCK_BYTES(pf_block_tq2_0, 66);

#endif
