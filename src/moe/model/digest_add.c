/* See digest.h. With an xxhash that has its sums for one instruction set alone. */
#include "moe/model/digest_state.h"

void pf_digest_add(struct pf_digester *h, const void *p, size_t n)
{
    if (n > 0)
        XXH3_128bits_update(state_of(h), p, n);
}
