/* Products of quantised weights for AVX2 with AVX-VNNI; everything else is inherited. See mul_quant.h. */
#include "kernels/x86/avx2_lanes.h"

#include "kernels/x86/mul_types.h"
#include "pfmoe.h"

extern const struct pf_kernels pf_kernels_avxvnni;

const struct pf_kernels pf_kernels_avxvnni = {
    .name = "avx2-vnni",
    .need = PF_ISA_AVX2 | PF_ISA_AVXVNNI,
    .vec = { QUANT_ENTRIES(vec) },
    .tile = { QUANT_ENTRIES(tile) },
};
