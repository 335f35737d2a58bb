/* Empty levels for this branch alone: each gives way to the table of the same name once that is linked. */
#include "kernels/kernels.h"

#include "pfmoe.h"

#define LEVEL(symbol, label, isa)                                                                   \
    extern const struct pf_kernels symbol;                                                          \
    const struct pf_kernels symbol __attribute__((weak)) = { .name = label, .need = isa };

LEVEL(pf_kernels_avx2, "avx2", PF_ISA_AVX2)
LEVEL(pf_kernels_avx512, "avx512", PF_ISA_AVX2 | PF_ISA_AVX512)
LEVEL(pf_kernels_vnni, "avx512-vnni", PF_ISA_AVX2 | PF_ISA_AVX512 | PF_ISA_VNNI)
