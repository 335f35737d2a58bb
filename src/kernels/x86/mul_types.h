/* Every quantised type with both its entries, for mul_quant.h. Include after a lanes header. */
#ifndef PF_MUL_TYPES_H
#define PF_MUL_TYPES_H

#include "kernels/x86/mul_looked_up.h"

MUL_QUANT(q4_1, READ(q4_1), .unit = 4, .form = FORM_MIN, .adds = 8, BLOCK_32(20))
MUL_QUANT(q5_1, READ(q5_1), .unit = 4, .form = FORM_MIN, .adds = 4, BLOCK_32(24))

MUL_QUANT(q2_k, READ_SCALES(q2_k), .unit = 4, .form = FORM_PAIR_MIN, .adds = 4, SUPER_BLOCK(84))
MUL_QUANT(q3_k, READ_SCALES(q3_k), .unit = 4, .form = FORM_PAIR, .bias = 4, .adds = 4, SUPER_BLOCK(110))
MUL_QUANT(q4_k, READ(q4_k), .scales = scales_k, .unit = 2, .form = FORM_MIN, .adds = 8, SUPER_BLOCK(144))
MUL_QUANT(q5_k, READ(q5_k), .scales = scales_k, .unit = 2, .form = FORM_MIN, .adds = 4, SUPER_BLOCK(176))
MUL_QUANT(q6_k, READ_SCALES(q6_k), .unit = 4, .two_parts = true, .form = FORM_PAIR, .bias = 32, .adds = 2,
          SUPER_BLOCK(210))
MUL_QUANT(tq2_0, READ_SCALES(tq2_0), .unit = 4, .form = FORM_PLAIN, .bias = 1, .adds = 8, SUPER_BLOCK(66))

#define EXPAND(name)       .expand = pf_expand_##name, READ_SCALES(expanded), .unit = 1, .form = FORM_PLAIN
#define EXPAND_PAIR(name)  .expand = pf_expand_##name, READ(expanded), .scales = scales_expanded_pair, \
                           .unit = 1, .form = FORM_PAIR
#define DOT(name)          .dot = pf_dot_##name
MUL_QUANT(iq2_xxs, EXPAND(iq2_xxs), DOT(iq2_xxs), .bias = PF_BIAS_IQ2, .adds = 1, SUPER_BLOCK(66))
MUL_QUANT(iq2_xs, EXPAND_PAIR(iq2_xs), DOT(iq2_xs), .bias = PF_BIAS_IQ2, .adds = 1, SUPER_BLOCK(74))
MUL_QUANT(iq2_s, EXPAND_PAIR(iq2_s), DOT(iq2_s), .bias = PF_BIAS_IQ2, .adds = 1, SUPER_BLOCK(82))
MUL_QUANT(iq3_xxs, EXPAND(iq3_xxs), DOT(iq3_xxs), .bias = PF_BIAS_IQ3_XXS, .adds = 1, SUPER_BLOCK(98))
MUL_QUANT(iq3_s, EXPAND(iq3_s), DOT(iq3_s), .bias = PF_BIAS_IQ3_S, .adds = 4, SUPER_BLOCK(110))
MUL_QUANT(iq1_s, EXPAND(iq1_s), DOT(iq1_s), .bias = PF_BIAS_IQ1, .adds = 4, SUPER_BLOCK(50))
MUL_QUANT(iq1_m, EXPAND_PAIR(iq1_m), DOT(iq1_m), .bias = PF_BIAS_IQ1, .adds = 4, SUPER_BLOCK(56))
MUL_QUANT(tq1_0, EXPAND(tq1_0), .bias = PF_BIAS_TERNARY, .adds = 8, SUPER_BLOCK(54))
MUL_QUANT(q1_0, EXPAND(q1_0), .bias = PF_BIAS_TERNARY, .adds = 8, .block_len = 128, .block_bytes = 18)
MUL_QUANT(q2_0, EXPAND(q2_0), .bias = PF_BIAS_TERNARY, .adds = 8, .block_len = 64, .block_bytes = 18)

/* Every quantised type. */
#define QUANT_ENTRIES(kind) \
    LOOKED_UP_ENTRIES(kind), [PF_Q4_1] = kind##_q4_1, [PF_Q5_1] = kind##_q5_1, [PF_Q2_K] = kind##_q2_k, \
    [PF_Q3_K] = kind##_q3_k, [PF_Q4_K] = kind##_q4_k, [PF_Q5_K] = kind##_q5_k, [PF_Q6_K] = kind##_q6_k, \
    [PF_TQ1_0] = kind##_tq1_0, [PF_TQ2_0] = kind##_tq2_0, [PF_Q1_0] = kind##_q1_0, [PF_Q2_0] = kind##_q2_0, \
    GRID_ENTRIES(kind)

#endif
