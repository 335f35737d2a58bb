/* See spread.h: without libnuma. */
#include "tiers/spread.h"

void pf_numa_spread(void *p, size_t bytes)
{
    (void)p;
    (void)bytes;
}
