/* Private to src/tiers/store. Slots come from one arena of huge pages, in one class per distinct part size:
 *
 *     arena:   | class 0: slot slot slot ... | class 1: slot slot ... |
 *     slot:    | ...| part's bytes  |....|      starts on the drive's alignment; the part lies offset % alignment into
 *              ^ sectors that hold the part ^   it, so that a direct read of the enclosing sectors lands in place
 *
 *     part:    ABSENT --pin, prefetch, guess, fill--> QUEUED --> READING --> READY --evicted--> ABSENT
 *                 ^------------ last unpin ----------'             `-----> FAILED --last unpin--> ABSENT
 *
 * Invariants
 *  1. A part has a slot if and only if it is not ABSENT; a slot belongs to one part or lies in its class's free
 *     list. In a class with a slot for every part each has its own, so that neighbours in a slab lie together,
 *     and the list only counts.
 *  2. The policy's candidates are exactly the READY parts with no pin; nothing else is evicted.
 *  3. The only way from ABSENT is to QUEUED, under the lock: however many threads want a part, it is read once.
 *  4. A QUEUED part is in the list `wanted` or `ahead`; a part with chunks still to be asked for
 *     stays in it while READING.
 *  5. The bytes of a slot are written only by the engine, while its part is READING; a part is READY when the last of
 *     its chunks has come and nobody writes any more. A pin taken under the lock therefore sees bytes that stay as
 *     they are. Its file is then as it was at open, and was not touched since the part was asked for: what is READY
 *     is what it held at open.
 *  6. Each pin has exactly one unpin. At close there is none.
 *  7. Everything in pf_store is under `lock`, except: constants after open; a pinned part's slot; a READING part's
 *     bytes, which are the engine's, and then the thread's that looks at them; the engine's wait. Whoever wants
 *     parts sends the reads (pf_reads_send). What comes back is taken, and what had no room before sent, by one
 *     thread that waits for parts (attended), or by the reader while none does: to wake one after the other would
 *     take longer than to look.
 *  8. `wanted` is read before `ahead`, and ahead before guesses and the background order, which go to `ahead`
 *     one part at a time when few reads are under way: what nobody may want delays what somebody waits for by no
 *     more than so many reads.
 *  9. A part whose reads are all back is READING and in the list `came` until a thread looks at it, then one of
 *     n_looking. While there are such parts no thread begins to attend: so what it wants can only come from the engine.
 *
 *     store_open.c     opening and closing: slots by size, files, tables
 *     store_slots.c    queues, slots and pins
 *     store_reads.c    reads are sent and taken back
 *     store_looks.c    what came is looked at
 *     store.c          the rest of store.h, and the reader */
#ifndef PF_STORE_IMPL_H
#define PF_STORE_IMPL_H

#include <pthread.h>
#include <time.h>

#include "tiers/store/store.h"

enum { PF_NO_PART = -1 };

enum pf_part_state { PF_PART_ABSENT, PF_PART_QUEUED, PF_PART_READING, PF_PART_READY, PF_PART_FAILED };

/* A part, and what the store knows of it. */
struct pf_stored {
    struct pf_part at;
    uint8_t   *slot;
    int        slab, class, index;       /* index: the key of its class's policy */
    int        prev, next;               /* neighbours in the list `in`; PF_NO_PART at the ends */
    struct pf_store_queue *in;           /* wanted, ahead or came; NULL: in no list */
    enum pf_part_state state;
    int        pins, n_flying;
    int        n_chunks, n_asked;        /* reads it takes, reads begun */
    bool       broken, has_sum, again;   /* a chunk failed; sum is known; it is being read a second time over */
    bool       older;                    /* being read since before anybody pinned it */
    bool       guessed;                  /* read on a guess, and not pinned since */
    uint64_t   foreseen;                 /* n_entered for which it was guessed, and absent, when no guess was read */
    uint64_t   sum;
    struct timespec touched;             /* last change of its file when the first chunk was asked for */
};

/* A class: the slots of one size and the parts that go there. */
struct pf_slots {
    uint64_t  bytes, slot_bytes;
    int       n_parts, n_slots, least, n_free;
    uint8_t **free;                      /* stack [n_slots] */
    uint8_t  *slots;
    int      *part_of;                   /* [n_parts] by index */
    pf_evict *policy;
};

/* A list of parts, linked by prev and next. */
struct pf_store_queue {
    int head, tail;
};

struct pf_store_read {
    struct pf_io_read io;
    int      part, tries;
    uint64_t need_end;                   /* file offset up to which bytes matter */
    struct pf_store_read *next;
};

/* Slabs to read, one after the other, while nothing else is wanted. */
struct pf_store_order {
    const int *slabs;
    int        n, at;
};

struct pf_store {
    pthread_mutex_t lock;
    pthread_cond_t  changed;             /* a part became READY, FAILED or ABSENT; several came */
    pthread_cond_t  has_work;            /* wakes the reader: nobody attends to reads under way, or parts came */
    pthread_t       reader;
    bool            has_lock, has_reader, closing;
    struct pf_stored *parts;
    struct pf_slab *slabs;
    struct pf_slots *classes;
    int             n_parts, n_slabs, n_classes, n_files;
    struct pf_io_file *files;
    char          **paths;
    uint32_t        align;
    char           *arena;
    size_t          arena_bytes;
    uint64_t        stall_ns;
    pf_io          *io;

    struct pf_store_queue wanted, ahead; /* parts to read: for someone who waits; for later */
    struct pf_store_queue came;          /* parts to look at */
    int             n_looking;           /* parts that are looked at */
    bool            attended;            /* a thread that waits for parts waits for the engine */
    bool            guesses_pay;         /* guessed parts are read; false: only compared with the next layer's pins */
    int             guess_depth;         /* no guess is read when so many reads are under way */
    struct pf_store_order guess, fill;   /* guess evicts and is forgotten at the next layer; fill takes what is
                                            free */
    int             guesses[PF_MAX_GUESSES];
    uint32_t        n_tried, n_right;    /* parts lately guessed, whether read or not; how many were then pinned */
    uint32_t        n_foreseen;          /* parts marked as guessed for the next layer */
    uint32_t        n_rest;              /* layers until guesses are listened to again */
    uint64_t        n_entered;           /* layers that steps came to */
    struct pf_store_read reads[PF_STORE_DEPTH];
    struct pf_store_read *idle;          /* reads not in use */
    bool            unsent;              /* the engine could not send all of what it was given */
    int             n_flying;            /* reads with the engine */
    uint64_t        flying_since;
    pf_spans       *spans;
    uint64_t        n_progress;          /* reads that came back, for the stall watch */

    pf_status       fail_status;         /* status of the last part that failed */
    char            fail_text[512];
    struct pf_store_stats stats;
};

/* All of these are called with the lock held. */

/* store_slots.c. load finds a slot, evicting if it may, and puts the part into q; false: there is none. pin_present
 * pins the parts of a slab that have a slot, so that no other slab takes it; pin_absent finds slots for the others, or
 * gives all of the slab's pins back. */
void pf_queue_put(pf_store *s, struct pf_store_queue *q, int p);
void pf_queue_remove(pf_store *s, int p);            /* from the list that it is in, if any */
void pf_part_absent(pf_store *s, struct pf_stored *part);
bool pf_part_load(pf_store *s, int p, struct pf_store_queue *q, bool evict);
void pf_part_unpin(pf_store *s, int p);
bool pf_slab_ready(const pf_store *s, const struct pf_slab *slab);
void pf_slab_pin_present(pf_store *s, const struct pf_slab *slab);
bool pf_slab_pin_absent(pf_store *s, const struct pf_slab *slab);

/* store_reads.c. send begins as many reads as there is room for; wait gives the lock up meanwhile. */
void pf_reads_send(pf_store *s);
void pf_reads_take(pf_store *s);
void pf_reads_wait(pf_store *s, uint64_t until);

/* store_looks.c. look takes the first of the parts that came, and gives the lock up while it looks. */
void pf_part_mark(const pf_store *s, struct pf_stored *part);
void pf_part_fail(pf_store *s, struct pf_stored *part, pf_status st, const char *text);
void pf_part_look(pf_store *s);

/* store.c: the reader's thread. */
void *pf_store_reader(void *store);

#endif
