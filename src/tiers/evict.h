/* Which part of the weights leaves memory when another needs its place: replacement policies behind a vtable.
 *
 * A policy orders keys 0 .. n_keys - 1. Its user (the store; the replayer) tells it of every use, and which keys are
 * candidates: in memory and not pinned. Only a candidate can be a victim, and the user evicts what it was given.
 *
 *     use(key)       it is wanted now, whether or not it is in memory; it is no candidate until
 *     release(key)   its last pin has gone: a candidate again
 *     victim()       the candidate to evict, which is a candidate no longer; -1 if there is none
 *     enter(layer)   the step has come to this layer; layers come in rising order, step after step
 *
 * Everything a policy does follows from these calls alone, so a trace replays exactly. Allocates only in open. One
 * thread at a time (the store's lock sees to that). */
#ifndef PF_EVICT_H
#define PF_EVICT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/pf_status.h"

typedef struct pf_evict pf_evict;

struct pf_evict_shape {
    int        n_keys, n_layers;
    const int *layer_of;             /* [n_keys]; not kept */
};

struct pf_evict {
    const struct pf_evict_ops *ops;
};

struct pf_evict_ops {
    const char *name;                                                        /* "lru" */
    pf_status (*open)(pf_evict **out, const struct pf_evict_shape *shape);
    void      (*close)(pf_evict *p);
    void      (*enter)(pf_evict *p, int layer);
    void      (*use)(pf_evict *p, int key);
    void      (*release)(pf_evict *p, int key);
    int       (*victim)(pf_evict *p);
};

extern const struct pf_evict_ops pf_evict_lru;          /* the one released longest ago */
extern const struct pf_evict_ops pf_evict_lfu;          /* the one used most rarely, old uses counting less and less */
extern const struct pf_evict_ops pf_evict_nextuse;      /* the one whose next use is likely to be farthest away */

/* The i-th policy, NULL past the last. */
const struct pf_evict_ops *pf_evict_at(int i);

#endif
