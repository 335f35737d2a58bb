/* See digest.h. digest_add.c and digest_add_isa.c have the rest; these three know xxhash. */
#include "moe/model/digest_state.h"

_Static_assert(sizeof(XXH3_state_t) <= sizeof(struct pf_digester) &&
               _Alignof(XXH3_state_t) <= _Alignof(struct pf_digester), "a state of xxhash fits");

void pf_digest_begin(struct pf_digester *h)
{
    XXH3_INITSTATE(state_of(h));
    XXH3_128bits_reset(state_of(h));
}

struct pf_digest pf_digest_of(const struct pf_digester *h)
{
    XXH128_hash_t d = XXH3_128bits_digest((const XXH3_state_t *)(const void *)h->state);
    return (struct pf_digest){ d.low64, d.high64 };
}
