/* The float kernels of one level. This file is compiled once per level with PF_LEVEL = scalar, avx2 or avx512 and that
 * level's instruction set; the bodies are the same plain C, and the same bits come out (kernels.h). */
#include "kernels/generic/generic_attn.h"
#include "kernels/generic/generic_delta.h"
#include "kernels/generic/generic_i16.h"
#include "kernels/generic/generic_ops.h"
#include "kernels/kernels.h"
#include "pfmoe.h"

enum { need_scalar = 0, need_avx2 = PF_ISA_AVX2, need_avx512 = PF_ISA_AVX2 | PF_ISA_AVX512 };

#define PASTE_(a, b) a##b
#define PASTE(a, b) PASTE_(a, b)
#define QUOTE_(a) #a
#define QUOTE(a) QUOTE_(a)
#define TABLE PASTE(pf_kernels_float_, PF_LEVEL)

extern const struct pf_kernels TABLE;
const struct pf_kernels TABLE = {
    .name = "float-" QUOTE(PF_LEVEL),
    .need = PASTE(need_, PF_LEVEL),
    .quantise = op_quantise,
    .rms_norm = op_rms_norm,
    .centre = op_centre,
    .swiglu = op_swiglu,
    .swiglu_oai = op_swiglu_oai,
    .swiglu_clamped = op_swiglu_clamped,
    .swiglu_capped = op_swiglu_capped,
    .sigmoid_mul = op_sigmoid_mul,
    .relu_mul = op_relu_mul,
    .gelu_mul = op_gelu_mul,
    .mul = op_mul,
    .add = op_add,
    .scale = op_scale,
    .axpy = op_axpy,
    .rope_norm = op_rope_norm,
    .rope_neox = op_rope_neox,
    .softmax = op_softmax,
    .weigh = op_weigh,
    .to_f16 = op_to_f16,
    .to_q8_0 = op_to_q8_0,
    .l2_norm = op_l2_norm,
    .conv = op_conv,
    .delta_step = op_delta_step,
    .keyed_delta_step = op_keyed_delta_step,
    .ssm_step = op_ssm_step,
    .compress = op_compress,
    .attn_f16 = op_attn_f16,
    .attn_f32 = op_attn_f32,
    .attn_q8_0 = op_attn_q8_0,
    .rotate = op_rotate,
    .to_i16 = op_to_i16,
    .attn_fold = op_attn_fold,
};
