/* The scalar level: it runs everywhere and defines what all others must give. See ref_block.h. */
#include "kernels/ref/ref_block.h"

extern const struct pf_kernels pf_kernels_scalar;

const struct pf_kernels pf_kernels_scalar = {
    .name = "scalar",
    .need = 0,
#define X(TYPE) .dequant[PF_##TYPE] = pf_ref_dequant_##TYPE, .vec[PF_##TYPE] = pf_ref_mul_##TYPE, \
                .tile[PF_##TYPE] = pf_ref_mul_##TYPE,
    REF_TYPE_LIST(X)
#undef X
    .rotate = pf_ref_rotate, .to_i16 = pf_ref_to_i16, .attn_i16 = pf_ref_attn_i16, .attn_latent = pf_ref_attn_latent,
    .attn_fold = pf_ref_attn_fold,
};
