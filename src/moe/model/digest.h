/* A digest of bytes, 128 bits: XXH3 of xxhash, which mixes every bit of the input into all of it. Equal bytes have
 * equal digests however they were cut into pieces; different ones have different digests but for chance. It is no
 * protection against somebody who looks for two inputs of one digest.
 *
 * Allocates nothing. One thread at a time per struct pf_digester. */
#ifndef PF_DIGEST_H
#define PF_DIGEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pf_digester {
    _Alignas(64) unsigned char state[640];
};

struct pf_digest {
    uint64_t low, high;
};

void             pf_digest_begin(struct pf_digester *h);
void             pf_digest_add(struct pf_digester *h, const void *p, size_t n);
struct pf_digest pf_digest_of(const struct pf_digester *h);    /* digest of all bytes added so far */

static inline bool pf_digest_equal(struct pf_digest a, struct pf_digest b)
{
    return a.low == b.low && a.high == b.high;
}

#endif
