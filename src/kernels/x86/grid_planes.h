/* The grids of the IQ types as tables of bytes, which fit registers: what dot_vbmi.h looks 64 indices up in at once.
 * make_planes.c writes them from the grids when pfmoe is built, so they cannot differ from these.
 *
 * Instead of an element its place among the levels of its type is kept, the steps -1, 0, 1 of IQ1 included:
 *
 *     IQ2, IQ1   eight elements to an index     plane p: elements 4p .. 4p + 3, two bits each     low bits first
 *     IQ3        four elements to an index      plane p: elements 2p, 2p + 1, three bits each
 *
 * pf_levels_TYPE[i][v]: the magnitude of the i-th element in v, the low six bits of a plane's byte. */
#ifndef PF_GRID_PLANES_H
#define PF_GRID_PLANES_H

#include <stdint.h>

#define PF_PLANE extern const uint8_t __attribute__((aligned(64)))

PF_PLANE pf_planes_iq2_xxs[2][256], pf_planes_iq2_xs[2][512], pf_planes_iq2_s[2][1024];
PF_PLANE pf_planes_iq3_xxs[2][256], pf_planes_iq3_s[2][512];
PF_PLANE pf_planes_iq1[2][2048];
PF_PLANE pf_levels_iq2[3][64], pf_levels_iq3_xxs[2][64], pf_levels_iq3_s[2][64];

#endif
