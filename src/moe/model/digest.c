/* See digest.h. The only file that knows xxhash. */
#include "moe/model/digest.h"

#define XXH_STATIC_LINKING_ONLY              /* for the size of a state, which then needs no allocation */
#include <xxhash.h>

_Static_assert(sizeof(XXH3_state_t) <= sizeof(struct pf_digester) &&
               _Alignof(XXH3_state_t) <= _Alignof(struct pf_digester), "a state of xxhash fits");

static XXH3_state_t *state_of(struct pf_digester *h)
{
    return (XXH3_state_t *)(void *)h->state;
}

void pf_digest_begin(struct pf_digester *h)
{
    XXH3_INITSTATE(state_of(h));
    XXH3_128bits_reset(state_of(h));
}

void pf_digest_add(struct pf_digester *h, const void *p, size_t n)
{
    if (n > 0)
        XXH3_128bits_update(state_of(h), p, n);
}

struct pf_digest pf_digest_of(const struct pf_digester *h)
{
    XXH128_hash_t d = XXH3_128bits_digest((const XXH3_state_t *)(const void *)h->state);
    return (struct pf_digest){ d.low64, d.high64 };
}
