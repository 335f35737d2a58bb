/* Weights that pass through the store, since memory is too small for all of them: the routed experts, or the matrices
 * of a model without experts, pinned in front of the computation that needs them and unpinned after it. All other
 * weights stay mapped. The store's slots hold the file's bytes, so results are the same bits.
 *
 *     want     pins the experts that a layer picked, and sends the reads of missing ones
 *     run      hands over experts that are there, then the others as they arrive; unpins
 *     leave    unpins experts that were wanted and never run */
#ifndef PF_RESIDENCY_H
#define PF_RESIDENCY_H

#include "moe/place/placement.h"
#include "moe/place/slabs.h"

struct pf_residency;

/* How weights stream: bytes for slots; the first n_planned slabs of t->order have a place there; the CPU computes
 * layers from `first` on. */
struct pf_streaming {
    uint64_t slot_bytes;
    int      n_planned, first;
};

/* Owns *t from now on, also when it fails. */
pf_status pf_residency_open(struct pf_placement **out, struct pf_model *m, struct pf_slabs *t,
                            const struct pf_streaming *how, const struct pf_residency_setup *setup);

/* For a placement over this one, whose device computes experts, too. pf_residency_of: NULL if p is no residency. tables
 * makes op, by way of w, look at the addresses that run sets: run calls fn until each picked expert that skip (NULL:
 * none) does not name has been among `experts` once; their addresses hold while fn runs. take pins an expert that is in
 * memory, until drop, and never waits. */
struct pf_residency *pf_residency_of(struct pf_placement *p);
enum { PF_RESIDENCY_BATCH = 64 };        /* experts that fn gets at once at most */
typedef pf_status pf_residency_fn(void *ctx, const int *experts, int n);
pf_status pf_residency_run(struct pf_residency *r, int il, const struct pf_experts_op *e, const bool *skip,
                           pf_residency_fn *fn, void *ctx);
void      pf_residency_tables(const struct pf_residency *r, struct pf_experts_op *op, struct pf_expert_weight w[3]);
bool      pf_residency_take(struct pf_residency *r, int il, int expert, const uint8_t *parts[3]);
void      pf_residency_drop(struct pf_residency *r, int il, int expert);

/* Whether slabs that were in memory once stay there, at the same address. */
bool      pf_residency_keeps_all(const struct pf_residency *r);

uint64_t  pf_residency_slot_bytes(const struct pf_residency *r);

/* Whether there are slabs that have no place in memory. */
bool      pf_residency_is_short(const struct pf_residency *r);

/* The slots' memory, whole pages; it stays where it is until the placement is closed. */
void     *pf_residency_arena(const struct pf_residency *r, size_t *bytes);

#endif
