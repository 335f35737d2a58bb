/* Which table a model computes with: levels copied over each other from the lowest up. See kernels.h. */
#include "kernels/kernels.h"

#include <string.h>

#include "base/pf_cpu.h"

/* float_*: generic/, the same C compiled for each level. The others: ref/ (the definition) and x86/ (by hand). */
extern const struct pf_kernels pf_kernels_float_scalar, pf_kernels_float_avx2, pf_kernels_float_avx512;
extern const struct pf_kernels pf_kernels_scalar, pf_kernels_avx2, pf_kernels_avxvnni, pf_kernels_avx512,
                               pf_kernels_vnni, pf_kernels_vbmi, pf_kernels_amx;

static const struct pf_kernels *const levels[] = {
    &pf_kernels_float_scalar, &pf_kernels_scalar,
    &pf_kernels_float_avx2,   &pf_kernels_avx2,
    &pf_kernels_avxvnni,
    &pf_kernels_float_avx512, &pf_kernels_avx512,
    &pf_kernels_vnni,
    &pf_kernels_vbmi,
    &pf_kernels_amx,
};
enum { N_LEVELS = sizeof levels / sizeof *levels };

/* An entry that is not in PF_KERNEL_LIST would be neither resolved, tested nor timed: it does not compile. */
#define X(entry, type) +1
_Static_assert(sizeof(struct pf_kernels) == 2 * sizeof(void *) + (3 * PF_N_QTYPES + PF_KERNEL_LIST(X)) * sizeof(void *),
               "every kernel is listed in PF_KERNEL_LIST");
#undef X

const struct pf_kernels *pf_kernels_level(int i)
{
    return i >= 0 && i < N_LEVELS ? levels[i] : NULL;
}

static void overlay(struct pf_kernels *out, const struct pf_kernels *level)
{
    out->name = level->name;
    out->need = level->need;
    for (int t = 0; t < PF_N_QTYPES; t++) {
        if (level->dequant[t])
            out->dequant[t] = level->dequant[t];
        if (level->vec[t])
            out->vec[t] = level->vec[t];
        if (level->tile[t])
            out->tile[t] = level->tile[t];
    }
#define X(entry, type) if (level->entry) out->entry = level->entry;
    PF_KERNEL_LIST(X)
#undef X
}

void pf_kernels_resolve(struct pf_kernels *out, uint32_t isa_mask)
{
    uint32_t isa = pf_cpu_isa() & isa_mask;
    memset(out, 0, sizeof *out);
    for (int i = 0; i < N_LEVELS; i++)
        if ((levels[i]->need & ~isa) == 0)
            overlay(out, levels[i]);
}
