/* Finds an architecture's table. See arch.h. */
#include "moe/archs/archs.h"

#include <string.h>

#define ADDRESS(table) &pf_arch_##table,
static const struct pf_arch *const archs[] = { PF_ARCHS(ADDRESS) };

const struct pf_arch *pf_arch_at(int i)
{
    return i >= 0 && (size_t)i < sizeof archs / sizeof *archs ? archs[i] : NULL;
}

const struct pf_arch *pf_arch_find(const char *name, size_t n)
{
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++)
        if (strlen(archs[i]->name) == n && memcmp(archs[i]->name, name, n) == 0)
            return archs[i];
    return NULL;
}
