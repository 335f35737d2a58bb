/* Counters that one thread moves and any thread may read. Moving one is a plain load and a plain store: threads that
 * move the same one must take turns, by a lock that they hold anyway. */
#ifndef PF_COUNT_H
#define PF_COUNT_H

#include <stdatomic.h>
#include <stdint.h>

typedef _Atomic uint64_t pf_counter;

static inline uint64_t pf_counted(const pf_counter *c)
{
    return atomic_load_explicit(c, memory_order_relaxed);
}

static inline void pf_count(pf_counter *c, uint64_t n)
{
    atomic_store_explicit(c, pf_counted(c) + n, memory_order_relaxed);
}

static inline void pf_count_anew(pf_counter *c)
{
    atomic_store_explicit(c, 0, memory_order_relaxed);
}

#endif
