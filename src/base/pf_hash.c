/* Where the keys of hashes come from. See pf_hash.h. */
#include "base/pf_hash.h"

#include <sys/random.h>
#include <time.h>

/* Without the kernel's random numbers (a sandbox may forbid them) the clock and the stack's place are better than
 * nothing. */
void pf_hash_key_draw(struct pf_hash_key *k)
{
    if (getrandom(k, sizeof *k, GRND_NONBLOCK) != (ssize_t)sizeof *k) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        uint64_t seed = (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec + (uintptr_t)&t;
        uint64_t *words[] = { &k->point, &k->mul[0], &k->mul[1], &k->add };
        for (int i = 0; i < 4; i++)
            *words[i] = seed = (seed ^ seed >> 31) * UINT64_C(0xD6E8FEB86659FD93) + 1;
    }
    k->point = (k->point >> 3) % ((UINT64_C(1) << 61) - 3) + 1;
    k->mul[0] |= 1;
}
