/* The store: weights in RAM slots, read from files as they are wanted, evicted when others need their place.
 *
 * Knows bytes and keys. A slab is what is wanted at once (an expert: gate, up, down; or the matrices of a dense layer);
 * its parts are placed, read and evicted one by one. The store owns its files, the slots and one thread that reads.
 *
 *     pf_store_pin(slabs)  ->  ready: compute at once          hits first, so that misses cannot push them out
 *                              queued: is being read; pf_store_wait, then compute
 *                              busy: no slot now; unpin something and pin again
 *     pf_store_unpin(slabs)    exactly once per slab that was ready or queued
 *
 * Every function may be called from any thread. After open nothing is allocated. */
#ifndef PF_STORE_H
#define PF_STORE_H

#include "base/pf_spans.h"
#include "tiers/evict.h"
#include "tiers/io.h"

typedef struct pf_store pf_store;

enum { PF_STORE_READ_BYTES = 2 << 20, PF_STORE_DEPTH = 32 };     /* one request at most; requests in flight */

struct pf_part {
    int      file;
    uint64_t offset, bytes;
};

/* A slab has parts [first, first + n), in the order in which they should be read. */
struct pf_slab {
    int layer, expert;           /* expert -1: a dense layer */
    int first, n;
};

struct pf_store_setup {
    const char *const *paths;
    int                n_files;
    const struct pf_part *parts;     /* none of these tables is kept */
    int                n_parts;
    const struct pf_slab *slabs;     /* in order of rising layers */
    int                n_slabs, n_layers;
    uint64_t           budget_bytes; /* memory for slots */
    const struct pf_evict_ops *policy;
    pf_io_open_fn     *io;
    void              *io_ctx;
    uint64_t           stall_ns;     /* a drive that finishes nothing for so long has failed */
    pf_spans          *spans;        /* where to note when reads were under way, or NULL; kept */
};

/* Slot bytes for parts of these sizes if every part had one, and the least that works: as many slots of each size as
 * one slab needs. */
pf_status pf_store_bytes(const struct pf_store_setup *s, uint64_t *all, uint64_t *least);

pf_status pf_store_open(pf_store **out, const struct pf_store_setup *s);

/* Waits for reads in flight, drops those that are queued. No slab may be pinned (asserted). NULL-safe; clears *s. */
void pf_store_close(pf_store **s);

/* The step has come to this layer; layers rise within a step. */
void pf_store_enter(pf_store *s, int layer);

enum pf_pin { PF_PIN_READY, PF_PIN_QUEUED, PF_PIN_BUSY };

/* Pins what has or finds room; out[i] says how it went. Reads of all that is missing start together, in the order
 * given. If not even one slab finds room because all slots are being read into, waits for one. */
pf_status pf_store_pin(pf_store *s, const int *slabs, int n, enum pf_pin *out);

/* Waits until all parts of a pinned slab are there. On failure (PF_EIO, PF_ECHANGED) it is still pinned. */
pf_status pf_store_wait(pf_store *s, int slab);

/* Waits until at least one of n pinned slabs is there; moves the *n_ready slabs that are to the front of slabs. On
 * failure (PF_EIO, PF_ECHANGED) all are still pinned. */
pf_status pf_store_wait_any(pf_store *s, int *slabs, int n, int *n_ready);

void pf_store_unpin(pf_store *s, const int *slabs, int n);

/* Whether a queued slab has arrived. */
bool pf_store_is_ready(pf_store *s, int slab);

/* Bytes of a part of a ready, pinned slab; they stay there until it is unpinned. */
const uint8_t *pf_store_data(const pf_store *s, int part);

/* Whether every part has a slot: then a slab that was ready once is never evicted, and its bytes stay where they are
 * without a pin. */
bool pf_store_holds_all(const pf_store *s);

/* The memory of all slots, whole pages. */
void *pf_store_arena(const pf_store *s, size_t *bytes);

/* Starts reading the first `most` slabs that are not there yet and will surely be wanted soon; slabs that are being
 * read already count among them. May evict others to make room; never waits. */
void pf_store_prefetch(pf_store *s, const int *slabs, int n, int most);

/* Slabs that will probably be wanted next, likeliest first: read part by part while nothing is wanted and fewer than
 * depth reads are under way, until the next layer, which knows better. Replaces an earlier guess. Evicts for them.
 *
 * Nothing is read on a guess before guesses have been seen to pay. At first, guessed parts that are not in memory are
 * only compared with the parts that the next layer pins; when some 200 have been compared and 55% or more were right,
 * reading begins. Reading ends when fewer than half of the parts read on a guess are pinned before they are evicted
 * again. After that, or when too few were right, no guess is wanted for a thousand layers, and all begins anew. */
enum { PF_MAX_GUESSES = 512 };
bool pf_store_wants_guess(pf_store *s);
void pf_store_guess(pf_store *s, const int *slabs, int n, int depth);

/* Fills free slots with these slabs in the background, a little at a time while nothing else is wanted. Replaces an
 * earlier order. The table is borrowed until the store is closed. */
void pf_store_fill(pf_store *s, const int *slabs, int n);

struct pf_store_stats {
    uint64_t n_hits, n_misses;           /* pins of slabs */
    uint64_t bytes_read, n_reads;        /* from the drive */
    uint64_t wait_ns;                    /* threads waited for reads */
    uint64_t busy_ns;                    /* at least one read was in flight */
    uint64_t n_retries, n_evictions;
    uint64_t n_guessed, n_guessed_right; /* parts read on a guess; pinned afterwards */
    uint64_t slot_bytes, resident_bytes;
    const char *engine, *policy;
};
void pf_store_stats_get(pf_store *s, struct pf_store_stats *out);
void pf_store_stats_reset(pf_store *s);      /* resets counts, not slot_bytes and resident_bytes */

#endif
