/* Products of quantised weights and attention in whole numbers for AVX2 with AVX-VNNI; floats are inherited. See
 * mul_quant.h, attn_vnni.h, attn_latent_vnni.h. */
#include "kernels/x86/avx2_lanes.h"

#include "kernels/x86/attn_by_8.h"
#include "kernels/x86/attn_latent_vnni.h"
#include "kernels/x86/mul_types.h"
#include "pfmoe.h"

extern const struct pf_kernels pf_kernels_avxvnni;

const struct pf_kernels pf_kernels_avxvnni = {
    .name = "avx2-vnni",
    .need = PF_ISA_AVX2 | PF_ISA_AVXVNNI,
    .vec = { QUANT_ENTRIES(vec) },
    .tile = { QUANT_ENTRIES(tile) },
    .attn_i16 = attn_i16_vnni,
    .attn_latent = attn_latent_vnni,
};
