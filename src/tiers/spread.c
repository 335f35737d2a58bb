/* See spread.h. mbind is called directly, as numa_interleave_memory prints what goes wrong.
 *
 * libnuma ends the process when one of its own small allocations fails. So memory for all of them is asked for first:
 * where there is none, nothing is spread. */
#include "tiers/spread.h"

#include <numa.h>
#include <numaif.h>

#include "base/pf_mem.h"

enum { LIBNUMA_BYTES = 64 << 10 };       /* as a block of the heap, which stays with the process when it is freed */

void pf_numa_spread(void *p, size_t bytes)
{
    void *room = pf_alloc(PF_MEM_TIERS, LIBNUMA_BYTES);
    pf_free(room);
    if (!room || numa_available() < 0)
        return;
    struct bitmask *nodes = numa_get_run_node_mask();
    if (nodes && numa_bitmask_weight(nodes) > 1)
        mbind(p, bytes, MPOL_INTERLEAVE, nodes->maskp, nodes->size + 1, 0);
    if (nodes)
        numa_bitmask_free(nodes);
}
