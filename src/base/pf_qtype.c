/* The type table. See pf_qtype.h. */
#include "base/pf_qtype.h"

#define WEIGHT(n, len, bytes)  { .name = n, .block_len = len, .block_bytes = bytes, .is_weight = true }
#define FLOAT(n, bytes)        { .name = n, .block_len = 1, .block_bytes = bytes, .is_weight = true, .is_float = true }
#define OTHER(n, len, bytes)   { .name = n, .block_len = len, .block_bytes = bytes }

static const struct pf_qtype_info types[PF_N_QTYPES] = {
    [PF_F32]     = FLOAT("F32", 4),
    [PF_F16]     = FLOAT("F16", 2),
    [PF_BF16]    = FLOAT("BF16", 2),
    [PF_Q4_0]    = WEIGHT("Q4_0", 32, 18),
    [PF_Q4_1]    = WEIGHT("Q4_1", 32, 20),
    [PF_Q5_0]    = WEIGHT("Q5_0", 32, 22),
    [PF_Q5_1]    = WEIGHT("Q5_1", 32, 24),
    [PF_Q8_0]    = WEIGHT("Q8_0", 32, 34),
    [PF_Q2_K]    = WEIGHT("Q2_K", 256, 84),
    [PF_Q3_K]    = WEIGHT("Q3_K", 256, 110),
    [PF_Q4_K]    = WEIGHT("Q4_K", 256, 144),
    [PF_Q5_K]    = WEIGHT("Q5_K", 256, 176),
    [PF_Q6_K]    = WEIGHT("Q6_K", 256, 210),
    [PF_IQ2_XXS] = WEIGHT("IQ2_XXS", 256, 66),
    [PF_IQ2_XS]  = WEIGHT("IQ2_XS", 256, 74),
    [PF_IQ3_XXS] = WEIGHT("IQ3_XXS", 256, 98),
    [PF_IQ1_S]   = WEIGHT("IQ1_S", 256, 50),
    [PF_IQ4_NL]  = WEIGHT("IQ4_NL", 32, 18),
    [PF_IQ3_S]   = WEIGHT("IQ3_S", 256, 110),
    [PF_IQ2_S]   = WEIGHT("IQ2_S", 256, 82),
    [PF_IQ4_XS]  = WEIGHT("IQ4_XS", 256, 136),
    [PF_IQ1_M]   = WEIGHT("IQ1_M", 256, 56),
    [PF_TQ1_0]   = WEIGHT("TQ1_0", 256, 54),
    [PF_TQ2_0]   = WEIGHT("TQ2_0", 256, 66),
    [PF_MXFP4]   = WEIGHT("MXFP4", 32, 17),
    [PF_NVFP4]   = WEIGHT("NVFP4", 64, 36),
    [PF_Q1_0]    = WEIGHT("Q1_0", 128, 18),
    [PF_Q2_0]    = WEIGHT("Q2_0", 64, 18),
    [PF_Q8_1]    = OTHER("Q8_1", 32, 36),
    [PF_Q8_K]    = OTHER("Q8_K", 256, 292),
    [PF_I8]      = OTHER("I8", 1, 1),
    [PF_I16]     = OTHER("I16", 1, 2),
    [PF_I32]     = OTHER("I32", 1, 4),
    [PF_I64]     = OTHER("I64", 1, 8),
    [PF_F64]     = OTHER("F64", 1, 8),
};

const struct pf_qtype_info *pf_qtype_info(uint32_t id)
{
    return id < PF_N_QTYPES && types[id].name ? &types[id] : 0;
}

/* Ids that ik_llama.cpp writes and nobody else. */
static const char *ik_refusal(uint32_t id)
{
#define IK(id, name) case id: return "ik_llama.cpp type " name ", which pfmoe does not have"
    switch (id) {
    IK(133, "Q6_0");
    IK(134, "IQ1_BN");
    IK(135, "IQ2_BN");
    IK(137, "IQ2_K");
    IK(138, "IQ3_K");
    IK(139, "IQ4_K");
    IK(140, "IQ5_K");
    IK(141, "IQ6_K");
    IK(144, "IQ4_KS");
    IK(145, "IQ2_KS");
    IK(146, "IQ4_KSS");
    IK(151, "Q8_KV");
    IK(152, "IQ5_KS");
    IK(153, "IQ2_KT");
    IK(154, "IQ3_KT");
    IK(155, "IQ4_KT");
    IK(156, "IQ3_KS");
    IK(157, "IQ2_KL");
    IK(158, "IQ1_KT");
    case 97: case 98: case 99: case 136: case 147: case 148: case 149: case 150:
        return "ik_llama.cpp type for activations, which has no place in a file";
    default:
        return NULL;
    }
#undef IK
}

const char *pf_qtype_refusal(uint32_t id)
{
    if (pf_qtype_info(id))
        return "";
    switch (id) {
    case 4:
        return "removed type Q4_2, or ollama's own MXFP4: get a file whose MXFP4 tensors have type 39";
    case 5:
        return "removed type Q4_3";
    case 31: case 32: case 33:
        return "removed row-interleaved type Q4_0_4_4, Q4_0_4_8 or Q4_0_8_8: get a Q4_0 file";
    case 36: case 37: case 38:
        return "removed row-interleaved IQ4_NL type (or ik_llama.cpp's I2_S): get an IQ4_NL file";
    }
    if (id >= 200 && id < 400)
        return "row-interleaved ik_llama.cpp type: quantise again without repacking";
    const char *ik = ik_refusal(id);
    return ik ? ik : "unknown type";
}

uint64_t pf_qtype_row_bytes(enum pf_qtype t, uint64_t n)
{
    const struct pf_qtype_info *info = pf_qtype_info(t);
    uint64_t bytes;
    if (!info || n % info->block_len || __builtin_mul_overflow(n / info->block_len, info->block_bytes, &bytes))
        return 0;
    return bytes;
}
