/* The types whose words are joined or looked up (lookups.h), with both their entries. Include after a lanes header. */
#ifndef PF_MUL_LOOKED_UP_H
#define PF_MUL_LOOKED_UP_H

#include "kernels/x86/mul_quant.h"
#include "kernels/x86/unpack_blocks.h"
#include "kernels/x86/unpack_supers.h"

#define READ(name)         .load = load_##name, .codes = codes_##name
#define READ_SCALES(name)  READ(name), .scales = scales_##name

MUL_QUANT(q8_0, READ(q8_0), .unit = 2, .form = FORM_SIGNED, .bias = LANES_S8_BIAS, BLOCK_32(34))
MUL_QUANT(q4_0, READ(q4_0), .unit = 4, .form = FORM_PLAIN, .bias = 8, .adds = 8, BLOCK_32(18))
MUL_QUANT(q5_0, READ(q5_0), .unit = 4, .form = FORM_PLAIN, .bias = 16, .adds = 4, BLOCK_32(22))
MUL_QUANT(iq4_nl, READ(iq4_nl), .unit = 4, .form = FORM_SIGNED, .bias = LANES_S8_BIAS, BLOCK_32(18))
MUL_QUANT(mxfp4, READ(mxfp4), .unit = 4, .form = FORM_PLAIN, .bias = FP4_BIAS, .adds = 4, BLOCK_32(17))
MUL_QUANT(nvfp4, READ(nvfp4), .unit = 2, .form = FORM_TWO, .bias = FP4_BIAS, .adds = 4, .block_len = 64,
          .block_bytes = 36)
MUL_QUANT(iq4_xs, READ_SCALES(iq4_xs), .unit = 2, .form = FORM_SIGNED, .bias = LANES_S8_BIAS, SUPER_BLOCK(136))

#define LOOKED_UP_ENTRIES(kind) \
    [PF_Q8_0] = kind##_q8_0, [PF_Q4_0] = kind##_q4_0, [PF_Q5_0] = kind##_q5_0, [PF_IQ4_NL] = kind##_iq4_nl, \
    [PF_MXFP4] = kind##_mxfp4, [PF_NVFP4] = kind##_nvfp4, [PF_IQ4_XS] = kind##_iq4_xs

#endif
