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

uint64_t pf_qtype_row_bytes(enum pf_qtype t, uint64_t n)
{
    const struct pf_qtype_info *info = pf_qtype_info(t);
    uint64_t bytes;
    if (!info || n % info->block_len || __builtin_mul_overflow(n / info->block_len, info->block_bytes, &bytes))
        return 0;
    return bytes;
}
