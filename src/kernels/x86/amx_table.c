/* Attention in whole numbers for AMX; everything else is inherited. See attn_amx.h. */
#include "kernels/x86/avx512_lanes.h"

#include "kernels/x86/attn_amx.h"
#include "pfmoe.h"

extern const struct pf_kernels pf_kernels_amx;

const struct pf_kernels pf_kernels_amx = {
    .name = "avx512-amx",
    .need = PF_ISA_AVX2 | PF_ISA_AVX512 | PF_ISA_VNNI | PF_ISA_AMX,
    .attn_i16 = attn_i16_amx,
};
