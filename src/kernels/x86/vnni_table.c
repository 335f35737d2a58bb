/* Products of quantised weights and attention in whole numbers for AVX-512 with VNNI; floats are inherited. See
 * mul_quant.h, mul_float.h, attn_vnni.h. */
#include "kernels/x86/avx512_lanes.h"

#include "kernels/x86/attn_by_16.h"
#include "kernels/x86/attn_latent_vnni.h"
#include "kernels/x86/mul_types.h"
#include "pfmoe.h"

extern const struct pf_kernels pf_kernels_vnni;

const struct pf_kernels pf_kernels_vnni = {
    .name = "avx512-vnni",
    .need = PF_ISA_AVX2 | PF_ISA_AVX512 | PF_ISA_VNNI,
    .vec = { QUANT_ENTRIES(vec) },
    .tile = { QUANT_ENTRIES(tile) },
    .attn_i16 = attn_i16_vnni,
    .attn_latent = attn_latent_vnni,
};
