/* Products with the types whose words are joined or looked up, and of one row of activations with those whose codes
 * come from grids, for AVX-512 with VNNI, VBMI, VBMI2 and GFNI; everything else is inherited. See lookups.h,
 * dot_vbmi.h, mul_quant.h. */
#include "kernels/x86/avx512_lanes.h"

#include "kernels/x86/dot_vbmi.h"
#include "kernels/x86/mul_looked_up.h"
#include "pfmoe.h"

extern const struct pf_kernels pf_kernels_vbmi;

MUL_VEC(iq2_xxs, .dot = dot_iq2_xxs, .unit = 1, SUPER_BLOCK(66))
MUL_VEC(iq2_xs, .dot = dot_iq2_xs, .unit = 1, SUPER_BLOCK(74))
MUL_VEC(iq2_s, .dot = dot_iq2_s, .unit = 1, SUPER_BLOCK(82))
MUL_VEC(iq3_xxs, .dot = dot_iq3_xxs, .unit = 1, SUPER_BLOCK(98))
MUL_VEC(iq3_s, .dot = dot_iq3_s, .unit = 1, SUPER_BLOCK(110))
MUL_VEC(iq1_s, .dot = dot_iq1_s, .unit = 1, SUPER_BLOCK(50))
MUL_VEC(iq1_m, .dot = dot_iq1_m, .unit = 1, SUPER_BLOCK(56))

const struct pf_kernels pf_kernels_vbmi = {
    .name = "avx512-vbmi",
    .need = PF_ISA_AVX2 | PF_ISA_AVX512 | PF_ISA_VNNI | PF_ISA_VBMI,
    .vec = { LOOKED_UP_ENTRIES(vec), GRID_ENTRIES(vec) },
    .tile = { LOOKED_UP_ENTRIES(tile) },
};
