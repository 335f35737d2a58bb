/* See digest.h. With an xxhash that has its sums for several instruction sets, and takes the machine's: digests are the
 * same. */
#include "moe/model/digest_state.h"

#include <xxh_x86dispatch.h>

void pf_digest_add(struct pf_digester *h, const void *p, size_t n)
{
    if (n > 0)
        XXH3_128bits_update_dispatch(state_of(h), p, n);
}
