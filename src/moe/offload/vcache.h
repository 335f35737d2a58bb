/* Which routed experts lie in the GPU's memory: the expert cache.
 *
 *     chunks of slots     | slot slot slot | slot slot | ...       a slot takes any expert of its class: gate, up, down
 *     index[layer, expert] -> slot or none                         slot -> layer, expert or none
 *     heat[layer, expert]     uses, old ones counting less
 *
 *     FREE --fill--> FILLING --copy has ended, between two steps--> HELD --replaced--> FREE
 *
 * Layers whose experts are nearly of one size are a class; every class has slots for the same share of its experts, as
 * nearly as chunks allow. (With one size of slot for all, a file with Q6_K for half of its down matrices and Q4_K for
 * the others would leave 7% of the memory unused.)
 *
 * While a slot is free, experts that are missed fill it; when there is none, one that is hotter than the coldest held
 * takes its place. Copies run in the background, a few bytes a step and in pieces, one when a step begins and one after
 * each layer's answer, so that they stand in nobody's way; what the GPU holds changes only between steps.
 * Below three times top-k slots a layer nothing is replaced, and for some thousand steps when replacing brought fewer
 * hits than it cost copies (held experts stay and serve). Prompts do not touch it. Memory comes in chunks, so that it
 * can be given back when a session needs it.
 *
 * Used by the thread that holds the model's step lock. */
#ifndef PF_VCACHE_H
#define PF_VCACHE_H

#include "base/pf_count.h"
#include "moe/place/residency.h"

struct pf_vcache;

/* Read by any thread; the memory is another's and outlives the cache. */
struct pf_vcache_counts {
    pf_counter n_slots, n_held, bytes, n_hits, n_fills;
};

/* What a cache is for: experts of the layers [first, end), which come from ram. home not NULL: of these the experts x
 * with home[x] == card, whatever home says at the time. */
struct pf_vcache_setup {
    const struct pf_model *m;
    pf_backend            *device;
    int                    first, end;
    struct pf_residency   *ram;
    const int             *home;         /* {n_expert} */
    int                    card;
};

/* Empty, without memory. */
pf_status pf_vcache_open(struct pf_vcache **out, const struct pf_vcache_setup *setup, struct pf_vcache_counts *counts);
void      pf_vcache_close(struct pf_vcache **c);

/* grow: takes all room that the device has. make_room: gives chunks back until the device has room for bytes, if it
 * can. No step may be running. */
void pf_vcache_grow(struct pf_vcache *c);
void pf_vcache_make_room(struct pf_vcache *c, uint64_t bytes);

/* [n_expert] whether the GPU holds an expert of layer il in this step. */
const bool *pf_vcache_held(const struct pf_vcache *c, int il);

/* Matrices of a held expert, on the device. */
void pf_vcache_at(const struct pf_vcache *c, int il, int expert, const uint8_t *parts[3]);

/* A step wanted the expert. */
void pf_vcache_use(struct pf_vcache *c, int il, int expert);

/* Within a step, when the device has its answer to a layer: sends the next piece of a fill. PCIe and main memory have
 * little else to do until the next layer's picks come. */
void pf_vcache_go_on(struct pf_vcache *c);

/* Between two steps: takes up what has been copied, begins copies of about `bytes`. Looks at every slot once at most,
 * and once more for each that it empties; of what the step wanted, pins in RAM only what gets a slot. */
pf_status pf_vcache_between(struct pf_vcache *c, uint64_t bytes);

/* Warms an expert as a use of it does, and no more. */
void pf_vcache_warm(struct pf_vcache *c, int il, int expert);

/* Fills free slots with experts that are in RAM, the hottest first, replaces those that are colder than others, and
 * waits for the copies. Between two steps. */
pf_status pf_vcache_fill(struct pf_vcache *c);

#endif
