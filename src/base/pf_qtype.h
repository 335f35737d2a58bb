/* The tensor types of GGUF: ids, names and sizes, and nothing about their contents (kernels/qblocks.h has that).
 *
 * A row of n elements takes n / block_len blocks of block_bytes each; n must be a multiple of block_len. Source of
 * ids and sizes: the GGUF type table of ggml. Pure functions on constant data; any thread. */
#ifndef PF_QTYPE_H
#define PF_QTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum pf_qtype {
    PF_F32 = 0, PF_F16 = 1, PF_Q4_0 = 2, PF_Q4_1 = 3, PF_Q5_0 = 6, PF_Q5_1 = 7, PF_Q8_0 = 8, PF_Q8_1 = 9,
    PF_Q2_K = 10, PF_Q3_K = 11, PF_Q4_K = 12, PF_Q5_K = 13, PF_Q6_K = 14, PF_Q8_K = 15,
    PF_IQ2_XXS = 16, PF_IQ2_XS = 17, PF_IQ3_XXS = 18, PF_IQ1_S = 19, PF_IQ4_NL = 20, PF_IQ3_S = 21, PF_IQ2_S = 22,
    PF_IQ4_XS = 23, PF_I8 = 24, PF_I16 = 25, PF_I32 = 26, PF_I64 = 27, PF_F64 = 28, PF_IQ1_M = 29, PF_BF16 = 30,
    PF_TQ1_0 = 34, PF_TQ2_0 = 35, PF_MXFP4 = 39, PF_NVFP4 = 40, PF_Q1_0 = 41, PF_Q2_0 = 42,
    PF_N_QTYPES = 43
};

struct pf_qtype_info {
    const char *name;          /* NULL: no such type */
    uint16_t    block_len;     /* elements */
    uint16_t    block_bytes;
    bool        is_weight;     /* may stand in a matrix product (F32, F16, BF16 and the quantised weight types) */
    bool        is_float;      /* F32, F16, BF16: products take float activations; all others take int8 ones */
};

/* NULL for an id that is no type of the format. */
const struct pf_qtype_info *pf_qtype_info(uint32_t id);

/* "" for a known type; for any other id a reason to show a person: removed, of another project, or unknown. */
const char *pf_qtype_refusal(uint32_t id);

/* Bytes of a row of n elements; 0 when n is not a multiple of the block length, or on overflow. */
uint64_t pf_qtype_row_bytes(enum pf_qtype t, uint64_t n);

#endif
