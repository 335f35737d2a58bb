/* A digester's state as xxhash has it, for what calls xxhash: digest.c, and digest_add.c or digest_add_isa.c. */
#ifndef PF_DIGEST_STATE_H
#define PF_DIGEST_STATE_H

#include "moe/model/digest.h"

#define XXH_STATIC_LINKING_ONLY              /* for the size of a state, which then needs no allocation */
#include <xxhash.h>

static inline XXH3_state_t *state_of(struct pf_digester *h)
{
    return (XXH3_state_t *)(void *)h->state;
}

#endif
