/* Products for AVX-512 (F, BW, DQ, VL): sixteen rows side by side; attention in whole numbers. See mul_quant.h,
 * mul_float.h, attn_pairs.h, attn_latent_pairs.h. */
#include "kernels/x86/avx512_lanes.h"

#include "kernels/x86/attn_latent_pairs.h"
#include "kernels/x86/mul_types.h"
#include "kernels/x86/mul_float.h"
#include "pfmoe.h"

extern const struct pf_kernels pf_kernels_avx512;

const struct pf_kernels pf_kernels_avx512 = {
    .name = "avx512",
    .need = PF_ISA_AVX2 | PF_ISA_AVX512,
    .vec = { FLOAT_ENTRIES(vec), QUANT_ENTRIES(vec) },
    .tile = { FLOAT_ENTRIES(tile), QUANT_ENTRIES(tile) },
    .attn_i16 = attn_i16_pairs,
    .attn_latent = attn_latent_pairs,
};
