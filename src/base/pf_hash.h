/* Hashes of what files and people bring, for tables in memory.
 *
 * A file that knew the hash could choose texts that all want one slot, and a table would take quadratic time. So every
 * hash has a key that is drawn when the object is made and never leaves the process. For any two different inputs that
 * do not depend on the key, the chance that they collide is bounded whatever they are: (n / 7 + 2) / 2^61 for texts of
 * up to n bytes, 2^-32 for words. Pure but for pf_hash_key_draw; any thread. */
#ifndef PF_HASH_H
#define PF_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct pf_hash_key {
    uint64_t point;                  /* where texts, taken as polynomials modulo 2^61 - 1, are evaluated */
    uint64_t mul[2], add;            /* a 128-bit factor and a summand, of words */
};

/* A key that nobody can foresee. Cannot fail. */
void pf_hash_key_draw(struct pf_hash_key *k);

/* The upper quarter of a 128-bit product with a random factor is a strongly universal hash; the shift, which loses
 * nothing, keeps rows of neighbouring numbers from staying rows. */
static inline uint32_t pf_hash_word(const struct pf_hash_key *k, uint64_t x)
{
    x ^= x >> 29;
    uint64_t high = (uint64_t)((unsigned __int128)k->mul[0] * x >> 64);
    return (uint32_t)((high + k->mul[1] * x + k->add) >> 32);
}

/* The number of a word that is a member of a set; the set's number is the sum of them. Sums of pf_hash_word will not
 * do: it gives so nearly multiples of the words that sets of as many words at equal distances, as addresses are, have
 * one sum. The bounds above are not proved for this one. */
static inline uint64_t pf_hash_member(const struct pf_hash_key *k, uint64_t x)
{
    x = (x + k->add) * (k->mul[0] | 1);
    x = (x ^ x >> 32) * (k->mul[1] | 1);
    x = (x ^ x >> 29) * (k->mul[0] | 1);
    return x ^ x >> 32;
}

/* sum * point modulo 2^61 - 1; sum and result are below 2^62, point is below 2^61 - 1. */
static inline uint64_t pf_hash_step(uint64_t sum, uint64_t point)
{
    const uint64_t prime = (UINT64_C(1) << 61) - 1;
    unsigned __int128 product = (unsigned __int128)sum * point;
    uint64_t folded = ((uint64_t)product & prime) + (uint64_t)(product >> 61);
    return (folded & prime) + (folded >> 61);
}

/* A number below 2^62. */
static inline uint64_t pf_hash_text(const struct pf_hash_key *k, const char *p, size_t n)
{
    const uint64_t seven_bytes = (UINT64_C(1) << 56) - 1;
    uint64_t h = pf_hash_step(n, k->point), digit;
    for (; n >= 8; n -= 7, p += 7) {
        memcpy(&digit, p, 8);
        h = pf_hash_step(h + (digit & seven_bytes), k->point);
    }
    digit = 0;
    if (n)
        memcpy(&digit, p, n);
    return pf_hash_step(h + digit, k->point);
}

#endif
