/* See spread.h. mbind is called directly, as numa_interleave_memory prints what goes wrong. */
#include "tiers/spread.h"

#include <numa.h>
#include <numaif.h>

void pf_numa_spread(void *p, size_t bytes)
{
    if (numa_available() < 0)
        return;
    struct bitmask *nodes = numa_get_run_node_mask();
    if (nodes && numa_bitmask_weight(nodes) > 1)
        mbind(p, bytes, MPOL_INTERLEAVE, nodes->maskp, nodes->size + 1, 0);
    if (nodes)
        numa_bitmask_free(nodes);
}
