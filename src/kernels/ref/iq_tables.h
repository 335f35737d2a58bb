/* The numbers that the IQ and FP4 types look up. Fixed by the formats; byte j of a grid entry belongs to element j of
 * its group, counted from the lowest bits. Every instruction set and tests read these; nobody else. */
#ifndef PF_IQ_TABLES_H
#define PF_IQ_TABLES_H

#include <stdint.h>

extern const uint64_t pf_grid_iq2_xxs[256];      /* 8 magnitudes of 8, 25, 43 */
extern const uint64_t pf_grid_iq2_xs[512];
extern const uint64_t pf_grid_iq2_s[1024];
extern const uint32_t pf_grid_iq3_xxs[256];      /* 4 magnitudes of 4, 12, 20, 28, 36, 44, 52, 62 */
extern const uint32_t pf_grid_iq3_s[512];        /* 4 odd magnitudes, 1 to 15 */
extern const uint64_t pf_grid_iq1[2048];         /* 8 signed bytes of -1, 0, 1 */
extern const int8_t   pf_codebook_iq4[16];       /* IQ4_NL, IQ4_XS: steps that widen away from 0 */
extern const int8_t   pf_codebook_e2m1[16];      /* MXFP4, NVFP4: twice the value */

/* Seven stored sign bits to eight: the eighth makes the number of set bits even. */
static inline uint8_t pf_signs_even(unsigned seven)
{
    return (uint8_t)(seven | (unsigned)__builtin_parity(seven) << 7);
}

#endif
