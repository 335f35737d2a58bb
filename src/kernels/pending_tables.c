/* Empty product tables, so that the float kernels link before ref/ and x86/ are there. */
#include "kernels/kernels.h"

extern const struct pf_kernels pf_kernels_scalar, pf_kernels_avx2, pf_kernels_avx512, pf_kernels_vnni;
__attribute__((weak)) const struct pf_kernels pf_kernels_scalar = { .name = "pending", .need = 1u << 31 };
__attribute__((weak)) const struct pf_kernels pf_kernels_avx2 = { .name = "pending", .need = 1u << 31 };
__attribute__((weak)) const struct pf_kernels pf_kernels_avx512 = { .name = "pending", .need = 1u << 31 };
__attribute__((weak)) const struct pf_kernels pf_kernels_vnni = { .name = "pending", .need = 1u << 31 };
