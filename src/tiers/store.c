/* The store. Slots come from one arena of huge pages, in one class per distinct part size:
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
 *     parts sends the reads (send_reads). What comes back is taken, and what had no room before sent, by one
 *     thread that waits for parts (attended), or by the reader while none does: to wake one after the other would
 *     take longer than to look.
 *  8. `wanted` is read before `ahead`, and ahead before guesses and the background order, which go to `ahead`
 *     one part at a time when few reads are under way: what nobody may want delays what somebody waits for by no
 *     more than so many reads.
 *  9. A part whose reads are all back is READING and in the list `came` until a thread looks at it, then one of
 *     n_looking. While there are such parts no thread begins to attend: so what it wants can only come from the engine.
 *
 * A read that comes back short is continued from the last whole sector, one that was interrupted is asked for again;
 * all else fails the part and everyone who waits for it with one sentence, and the next pin starts afresh.
 *
 * GGUF has no checksums, so what a drive returns cannot be proved right; what drives, cables and file systems do in
 * practice is leave sectors out or return empty ones. Before a part's first read every sector of its slot is marked. A
 * mark that is still there, or a sector of one repeated byte, makes the part be read once more; then a mark is an
 * error, and a sector that is still empty is what the file holds. The first read leaves a checksum of eight bytes a
 * sector: a later one that differs is repeated once, and then an error. Single bits that flip on the first read, or a
 * sector taken for another one, are not noticed: that would take reading everything twice. */
#define _GNU_SOURCE
#include "tiers/store.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/pf_mem.h"
#include "base/pf_thread.h"
#include "base/pf_time.h"
#include "tiers/spread.h"

enum { MAX_TRIES = 16, FILL_DEPTH = 4, SECTOR = 512, HUGE_BYTES = 2 << 20, NONE = -1 };
enum { SOON_NS = 100000, LATER_NS = 20000000 };

enum state { ABSENT, QUEUED, READING, READY, FAILED };

struct part {
    struct pf_part at;
    uint8_t   *slot;
    int        slab, class, index;       /* index: the key of its class's policy */
    int        prev, next;               /* neighbours in the list `in`; NONE at the ends */
    struct queue *in;                    /* wanted, ahead or came; NULL: in no list */
    enum state state;
    int        pins, n_flying;
    int        n_chunks, n_asked;        /* reads it takes, reads begun */
    bool       broken, has_sum, again;   /* a chunk failed; sum is known; it is being read a second time over */
    bool       guessed;                  /* read on a guess, and not pinned since */
    uint64_t   foreseen;                 /* n_entered for which it was guessed, and absent, when no guess was read */
    uint64_t   sum;
    struct timespec touched;             /* last change of its file when the first chunk was asked for */
};

struct class {
    uint64_t  bytes, slot_bytes;
    int       n_parts, n_slots, least, n_free;
    uint8_t **free;                      /* stack [n_slots] */
    uint8_t  *slots;
    int      *part_of;                   /* [n_parts] by index */
    pf_evict *policy;
};

struct queue {
    int head, tail;
};

struct read {
    struct pf_io_read io;
    int      part, tries;
    uint64_t need_end;                   /* file offset up to which bytes matter */
    struct read *next;
};

/* Slabs to read, one after the other, while nothing else is wanted. */
struct order {
    const int *slabs;
    int        n, at;
};

struct pf_store {
    pthread_mutex_t lock;
    pthread_cond_t  changed;             /* a part became READY, FAILED or ABSENT; several came */
    pthread_cond_t  has_work;            /* wakes the reader: nobody attends to reads under way, or parts came */
    pthread_t       reader;
    bool            has_lock, has_reader, closing;
    struct part    *parts;
    struct pf_slab *slabs;
    struct class   *classes;
    int             n_parts, n_slabs, n_classes, n_files;
    struct pf_io_file *files;
    char          **paths;
    uint32_t        align;
    char           *arena;
    size_t          arena_bytes;
    uint64_t        stall_ns;
    pf_io          *io;

    struct queue    wanted, ahead;       /* parts to read: for someone who waits; for later */
    struct queue    came;                /* parts to look at */
    int             n_looking;           /* parts that are looked at */
    bool            attended;            /* a thread that waits for parts waits for the engine */
    bool            guesses_pay;         /* guessed parts are read; false: only compared with the next layer's pins */
    int             guess_depth;         /* no guess is read when so many reads are under way */
    struct order    guess, fill;         /* guess evicts and is forgotten at the next layer; fill takes what is free */
    int             guesses[PF_MAX_GUESSES];
    uint32_t        n_tried, n_right;    /* parts lately guessed, whether read or not; how many were then pinned */
    uint32_t        n_foreseen;          /* parts marked as guessed for the next layer */
    uint32_t        n_rest;              /* layers until guesses are listened to again */
    uint64_t        n_entered;           /* layers that steps came to */
    struct read     reads[PF_STORE_DEPTH];
    struct read    *idle;                /* reads not in use */
    bool            unsent;              /* the engine could not send all of what it was given */
    int             n_flying;            /* reads with the engine */
    uint64_t        flying_since;
    pf_spans       *spans;
    uint64_t        n_progress;          /* reads that came back, for the stall watch */

    pf_status       fail_status;         /* status of the last part that failed */
    char            fail_text[512];
    struct pf_store_stats stats;
};

/* ---- Sizes ------------------------------------------------------------------------------------------------------ */

static uint64_t slot_bytes_of(uint64_t bytes, uint32_t align)
{
    return (bytes + 2 * (uint64_t)align - 2) / align * align;        /* wherever in a sector it begins */
}

/* Parts of one size: how many a slab has at most, and how many the slab at hand has. */
struct size {
    uint64_t bytes;
    int      least, here;
};

static struct size *size_for(struct size *sizes, int *n, uint64_t bytes)
{
    for (int i = 0; i < *n; i++)
        if (sizes[i].bytes == bytes)
            return &sizes[i];
    sizes[*n] = (struct size){ .bytes = bytes };
    return &sizes[(*n)++];
}

pf_status pf_store_bytes(const struct pf_store_setup *s, uint64_t *all, uint64_t *least)
{
    int n = 0;
    *all = *least = 0;
    if (s->n_parts == 0)
        return PF_OK;
    struct size *sizes = pf_alloc_array(PF_MEM_TIERS, (size_t)s->n_parts, sizeof *sizes);
    if (!sizes)
        PF_FAIL(PF_ENOMEM, "no memory for the sizes of %d parts", s->n_parts);
    for (int i = 0; i < s->n_slabs; i++) {
        const struct pf_part *parts = s->parts + s->slabs[i].first;
        for (int p = 0; p < s->slabs[i].n; p++) {
            struct size *size = size_for(sizes, &n, parts[p].bytes);
            size->here++;
            size->least = size->here > size->least ? size->here : size->least;
            *all += slot_bytes_of(parts[p].bytes, PF_IO_ALIGN_UNKNOWN);
        }
        for (int p = 0; p < s->slabs[i].n; p++)
            size_for(sizes, &n, parts[p].bytes)->here = 0;
    }
    for (int i = 0; i < n; i++)
        *least += (uint64_t)sizes[i].least * slot_bytes_of(sizes[i].bytes, PF_IO_ALIGN_UNKNOWN);
    pf_free(sizes);
    return PF_OK;
}

/* ---- Opening ---------------------------------------------------------------------------------------------------- */

static int class_for(struct pf_store *s, uint64_t bytes)
{
    for (int c = 0; c < s->n_classes; c++)
        if (s->classes[c].bytes == bytes)
            return c;
    s->classes[s->n_classes] = (struct class){ .bytes = bytes, .slot_bytes = slot_bytes_of(bytes, s->align) };
    return s->n_classes++;
}

static int chunks_of(const struct pf_store *s, const struct pf_part *p)
{
    uint64_t begin = p->offset / s->align * s->align;
    return (int)((p->offset + p->bytes - begin + PF_STORE_READ_BYTES - 1) / PF_STORE_READ_BYTES);
}

/* Sorts the parts into classes and finds how many slots a class needs so that every slab fits by itself. */
static pf_status make_classes(struct pf_store *s, const struct pf_store_setup *setup)
{
    for (int i = 0; i < s->n_slabs; i++) {
        for (int p = s->slabs[i].first; p < s->slabs[i].first + s->slabs[i].n; p++) {
            struct part *part = &s->parts[p];
            const struct pf_part *at = &setup->parts[p];
            const struct pf_io_file *f = &s->files[at->file];
            if (at->bytes == 0 || at->offset > f->bytes || at->bytes > f->bytes - at->offset)
                PF_FAIL(PF_ECHANGED, "%s: the file ends at byte %" PRIu64 "; a tensor should be at %" PRIu64,
                        s->paths[at->file], f->bytes, at->offset);
            *part = (struct part){ .at = *at, .slab = i, .prev = NONE, .next = NONE, .n_chunks = chunks_of(s, at) };
            part->class = class_for(s, at->bytes);
            part->index = s->classes[part->class].n_parts++;
        }
        for (int c = 0; c < s->n_classes; c++) {
            int n = 0;
            for (int p = 0; p < s->slabs[i].n; p++)
                n += s->parts[s->slabs[i].first + p].class == c;
            s->classes[c].least = n > s->classes[c].least ? n : s->classes[c].least;
        }
    }
    return PF_OK;
}

/* Every class gets the slots it needs, and then one share of the slots it would like, equal for all classes. */
static pf_status share_out(struct pf_store *s, uint64_t budget)
{
    uint64_t least = 0, more = 0;
    for (int c = 0; c < s->n_classes; c++) {
        least += (uint64_t)s->classes[c].least * s->classes[c].slot_bytes;
        more += (uint64_t)(s->classes[c].n_parts - s->classes[c].least) * s->classes[c].slot_bytes;
    }
    if (budget < least)
        PF_FAIL(PF_ENOMEM,
                "%" PRIu64 " bytes of memory are left for weights that are read as they are wanted; at least %" PRIu64
                " are needed",
                budget, least);
    double share = more == 0 ? 0 : (double)(budget - least) / (double)more;
    share = share > 1 ? 1 : share;
    for (int c = 0; c < s->n_classes; c++) {
        struct class *k = &s->classes[c];
        k->n_slots = k->least + (int)(share * (k->n_parts - k->least));
        s->arena_bytes += (size_t)k->n_slots * k->slot_bytes;
    }
    s->stats.slot_bytes = s->arena_bytes;
    s->arena_bytes += HUGE_BYTES;                /* so that the arena can begin on a huge page, which is
                                                    as aligned as any drive wants */
    return PF_OK;
}

static pf_status open_class(struct pf_store *s, struct class *k, const struct pf_store_setup *setup, uint8_t *at)
{
    int *layers = pf_alloc_array(PF_MEM_TIERS, (size_t)k->n_parts, sizeof *layers), n = 0;
    k->free = pf_alloc_array(PF_MEM_TIERS, (size_t)k->n_slots, sizeof *k->free);
    k->part_of = pf_alloc_array(PF_MEM_TIERS, (size_t)k->n_parts, sizeof *k->part_of);
    if (!layers || !k->free || !k->part_of) {
        pf_free(layers);
        PF_FAIL(PF_ENOMEM, "no memory for the tables of %d parts", k->n_parts);
    }
    for (int p = 0; p < s->n_parts; p++)
        if (&s->classes[s->parts[p].class] == k) {
            k->part_of[n] = p;
            layers[n++] = s->slabs[s->parts[p].slab].layer;
        }
    k->slots = at;
    for (k->n_free = 0; k->n_free < k->n_slots; k->n_free++)                     /* the first comes off first */
        k->free[k->n_free] = at + (uint64_t)(k->n_slots - 1 - k->n_free) * k->slot_bytes;
    pf_status st = setup->policy->open(&k->policy, &(struct pf_evict_shape){ k->n_parts, setup->n_layers, layers });
    pf_free(layers);
    return st;
}

static pf_status open_files(struct pf_store *s, const struct pf_store_setup *setup)
{
    s->files = pf_alloc_array(PF_MEM_TIERS, (size_t)setup->n_files, sizeof *s->files);
    s->paths = pf_alloc_array(PF_MEM_TIERS, (size_t)setup->n_files, sizeof *s->paths);
    if (!s->files || !s->paths)
        PF_FAIL(PF_ENOMEM, "no memory for a table of %d files", setup->n_files);
    s->align = PF_IO_ALIGN_UNKNOWN;
    for (; s->n_files < setup->n_files; s->n_files++) {
        const char *path = setup->paths[s->n_files];
        s->paths[s->n_files] = pf_strndup(PF_MEM_TIERS, path, strlen(path));
        if (!s->paths[s->n_files])
            PF_FAIL(PF_ENOMEM, "no memory for the name of %s", path);
        pf_status st = pf_io_file_open(&s->files[s->n_files], path);
        if (st < 0) {
            pf_free(s->paths[s->n_files]);
            return st;
        }
        s->align = s->files[s->n_files].align > s->align ? s->files[s->n_files].align : s->align;
    }
    return PF_OK;
}

static pf_status open_tables(struct pf_store *s, const struct pf_store_setup *setup)
{
    s->n_parts = setup->n_parts;
    s->n_slabs = setup->n_slabs;
    s->parts = pf_alloc_array(PF_MEM_TIERS, (size_t)s->n_parts, sizeof *s->parts);
    s->slabs = pf_alloc_array(PF_MEM_TIERS, (size_t)s->n_slabs, sizeof *s->slabs);
    s->classes = pf_alloc_array(PF_MEM_TIERS, (size_t)s->n_parts, sizeof *s->classes);
    if (!s->parts || !s->slabs || !s->classes)
        PF_FAIL(PF_ENOMEM, "no memory for the tables of %d parts", s->n_parts);
    memcpy(s->slabs, setup->slabs, (size_t)s->n_slabs * sizeof *s->slabs);
    PF_TRY(make_classes(s, setup));
    PF_TRY(share_out(s, setup->budget_bytes));
    s->arena = pf_pages_alloc(s->arena_bytes);
    if (!s->arena)
        PF_FAIL(PF_ENOMEM, "no memory for %zu bytes of weights", s->arena_bytes);
    pf_numa_spread(s->arena, s->arena_bytes);
    uint8_t *at = (uint8_t *)(((uintptr_t)s->arena + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES);
    for (int c = 0; c < s->n_classes; c++) {
        PF_TRY(open_class(s, &s->classes[c], setup, at));
        at += (uint64_t)s->classes[c].n_slots * s->classes[c].slot_bytes;
    }
    return PF_OK;
}

static void *reader_main(void *arg);

static pf_status open_reader(struct pf_store *s, const struct pf_store_setup *setup)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, &attr);
    pthread_cond_init(&s->has_work, NULL);
    pthread_condattr_destroy(&attr);
    s->has_lock = true;
    s->wanted = s->ahead = s->came = (struct queue){ NONE, NONE };
    for (int i = 0; i < PF_STORE_DEPTH; i++) {
        s->reads[i].next = s->idle;
        s->idle = &s->reads[i];
    }
    struct pf_io_setup io = { .files = s->files, .n_files = s->n_files, .depth = PF_STORE_DEPTH, .arena = s->arena,
                              .arena_bytes = s->arena_bytes };
    PF_TRY(setup->io(&s->io, &io, setup->io_ctx));
    s->stats.policy = setup->policy->name;
    int err = pf_thread_start(&s->reader, reader_main, s);
    if (err)
        PF_FAIL(PF_ENOMEM, "no thread to read weights with: %s", strerror(err));
    s->has_reader = true;
    return PF_OK;
}

pf_status pf_store_open(pf_store **out, const struct pf_store_setup *setup)
{
    pf_status st;
    *out = NULL;
    pf_store *s = pf_alloc(PF_MEM_TIERS, sizeof *s);
    if (!s)
        PF_FAIL(PF_ENOMEM, "no memory for a store of weights");
    s->n_entered = 1;                          /* 0 is no layer */
    s->stall_ns = setup->stall_ns;
    s->spans = setup->spans;
    PF_TRY_GOTO(st, open_files(s, setup));
    PF_TRY_GOTO(st, open_tables(s, setup));
    PF_TRY_GOTO(st, open_reader(s, setup));
    *out = s;
    return PF_OK;
fail:
    pf_store_close(&s);
    return st;
}

void pf_store_close(pf_store **sp)
{
    pf_store *s = *sp;
    if (!s)
        return;
    if (s->has_reader) {
        pthread_mutex_lock(&s->lock);
        s->closing = true;
        pthread_cond_signal(&s->has_work);
        pthread_mutex_unlock(&s->lock);
        pthread_join(s->reader, NULL);
    }
    for (int p = 0; s->parts && p < s->n_parts; p++)
        assert(s->parts[p].pins == 0 && "every pin has its unpin");
    if (s->io)
        s->io->ops->close(s->io);
    for (int c = 0; c < s->n_classes; c++) {
        if (s->classes[c].policy)
            s->classes[c].policy->ops->close(s->classes[c].policy);
        pf_free(s->classes[c].free);
        pf_free(s->classes[c].part_of);
    }
    for (int f = 0; f < s->n_files; f++) {
        pf_io_file_close(&s->files[f]);
        pf_free(s->paths[f]);
    }
    if (s->has_lock) {
        pthread_cond_destroy(&s->changed);
        pthread_cond_destroy(&s->has_work);
        pthread_mutex_destroy(&s->lock);
    }
    pf_pages_free(s->arena, s->arena_bytes);
    pf_free(s->classes);
    pf_free(s->parts);
    pf_free(s->slabs);
    pf_free(s->files);
    pf_free(s->paths);
    pf_free(s);
    *sp = NULL;
}

/* ---- Queues, slots and pins; the lock is held -------------------------------------------------------------------- */

static void queue_put(struct pf_store *s, struct queue *q, int p)
{
    struct part *part = &s->parts[p];
    part->in = q;
    part->next = NONE;
    part->prev = q->tail;
    *(q->tail == NONE ? &q->head : &s->parts[q->tail].next) = p;
    q->tail = p;
}

static void queue_remove(struct pf_store *s, int p)
{
    struct part *part = &s->parts[p];
    struct queue *q = part->in;
    if (!q)
        return;
    *(part->prev == NONE ? &q->head : &s->parts[part->prev].next) = part->next;
    *(part->next == NONE ? &q->tail : &s->parts[part->next].prev) = part->prev;
    part->in = NULL;
}

/* Invariant 1: the slot goes back. */
static void make_absent(struct pf_store *s, struct part *part)
{
    struct class *k = &s->classes[part->class];
    if (part->state == READY)
        s->stats.resident_bytes -= part->at.bytes;
    k->free[k->n_free++] = part->slot;
    part->slot = NULL;
    part->state = ABSENT;
    part->guessed = false;
}

static bool take_slot(struct pf_store *s, struct part *part, bool evict)
{
    struct class *k = &s->classes[part->class];
    if (k->n_free == 0 && evict) {
        int key = k->policy->ops->victim(k->policy);
        if (key >= 0) {
            make_absent(s, &s->parts[k->part_of[key]]);
            s->stats.n_evictions++;
        }
    }
    if (k->n_free == 0)
        return false;
    part->slot = k->free[--k->n_free];
    if (k->n_slots == k->n_parts)
        part->slot = k->slots + (uint64_t)part->index * k->slot_bytes;
    return true;
}

static bool start_load(struct pf_store *s, int p, struct queue *q, bool evict)
{
    struct part *part = &s->parts[p];
    if (!take_slot(s, part, evict))
        return false;
    part->state = QUEUED;
    part->n_asked = 0;
    part->broken = part->again = false;
    queue_put(s, q, p);
    return true;
}

static void pin_part(struct pf_store *s, int p)
{
    struct part *part = &s->parts[p];
    struct class *k = &s->classes[part->class];
    part->pins++;
    s->n_right += s->guesses_pay ? part->guessed : part->foreseen == s->n_entered;
    s->stats.n_guessed_right += part->guessed;
    part->guessed = false;
    part->foreseen = 0;
    k->policy->ops->use(k->policy, part->index);
    if (part->in == &s->ahead) {             /* now somebody waits for it */
        queue_remove(s, p);
        queue_put(s, &s->wanted, p);
    }
}

static void unpin_part(struct pf_store *s, int p)
{
    struct part *part = &s->parts[p];
    struct class *k = &s->classes[part->class];
    assert(part->pins > 0 && "one unpin per pin");
    if (--part->pins > 0)
        return;
    if (part->state == READY) {
        k->policy->ops->release(k->policy, part->index);
    } else if (part->state == FAILED) {
        make_absent(s, part);
    } else if (part->state == QUEUED) {      /* nobody wants it any more, and the drive does not know of it */
        queue_remove(s, p);
        make_absent(s, part);
    }
}

static bool all_ready(const struct pf_store *s, const struct pf_slab *slab)
{
    for (int p = slab->first; p < slab->first + slab->n; p++)
        if (s->parts[p].state != READY)
            return false;
    return true;
}

/* Pins the parts of the slab that hold a slot already, so that no other slab can take it. */
static void pin_present(struct pf_store *s, const struct pf_slab *slab)
{
    for (int p = slab->first; p < slab->first + slab->n; p++)
        if (s->parts[p].state != ABSENT)
            pin_part(s, p);
}

/* Finds slots for the parts that pin_present left out; or, if there are too few, gives all of the slab's pins back. */
static bool pin_absent(struct pf_store *s, const struct pf_slab *slab)
{
    int end = slab->first + slab->n;
    for (int p = slab->first; p < end; p++) {
        if (s->parts[p].state != ABSENT)
            continue;
        if (start_load(s, p, &s->wanted, true)) {
            pin_part(s, p);
            continue;
        }
        for (int j = slab->first; j < end; j++)
            if (s->parts[j].state != ABSENT)
                unpin_part(s, j);
        return false;
    }
    return true;
}

/* ---- Sending reads; the lock is held ----------------------------------------------------------------------------- */

/* The next part of the order that is wanted and finds a slot goes to `ahead`. */
static void queue_next(struct pf_store *s, struct order *o)
{
    bool guess = o == &s->guess;
    for (; o->at < o->n; o->at++) {
        const struct pf_slab *k = &s->slabs[o->slabs[o->at]];
        for (int p = k->first; p < k->first + k->n; p++)
            if (s->parts[p].state == ABSENT && start_load(s, p, &s->ahead, guess)) {
                s->parts[p].guessed = guess;
                s->n_tried += guess;
                s->stats.n_guessed += guess;
                return;
            }
    }
}

static int next_part(struct pf_store *s)
{
    if (s->closing)
        return NONE;
    if (s->wanted.head != NONE)
        return s->wanted.head;
    if (s->ahead.head == NONE && s->n_flying < s->guess_depth)
        queue_next(s, &s->guess);
    if (s->ahead.head == NONE && s->n_flying < FILL_DEPTH)
        queue_next(s, &s->fill);
    return s->ahead.head;
}

static uint64_t mark_of(const uint8_t *sector)
{
    return ((uint64_t)(uintptr_t)sector ^ 0x70666d6f65u) * 0x9e3779b97f4a7c15u;
}

static uint64_t word_at(const uint8_t *p)
{
    uint64_t word;
    memcpy(&word, p, sizeof word);
    return word;
}

/* The end of the sectors that hold the part, in its slot. */
static uint8_t *sectors_end(const struct pf_store *s, const struct part *part)
{
    return part->slot + (part->at.offset % s->align + part->at.bytes + SECTOR - 1) / SECTOR * SECTOR;
}

static void mark_sectors(const struct pf_store *s, struct part *part)
{
    for (uint8_t *at = part->slot; at < sectors_end(s, part); at += SECTOR) {
        uint64_t mark = mark_of(at);
        memcpy(at, &mark, sizeof mark);
    }
}

/* The next chunk of a part: a share of the sectors that hold it, in whole multiples of the alignment. */
static void ask_chunk(struct pf_store *s, int p)
{
    struct part *part = &s->parts[p];
    uint64_t begin = part->at.offset / s->align * s->align, end = part->at.offset + part->at.bytes;
    uint64_t sectors = (end - begin + s->align - 1) / s->align, n = (uint64_t)part->n_chunks,
             i = (uint64_t)part->n_asked++;
    uint64_t from = begin + sectors * i / n * s->align, to = begin + sectors * (i + 1) / n * s->align;
    struct read *r = s->idle;
    if (i == 0)
        pf_io_file_unchanged(&s->files[part->at.file], &part->touched);
    if (i == 0 && !part->has_sum)
        mark_sectors(s, part);
    s->idle = r->next;
    *r = (struct read){ .io = { .file = part->at.file, .offset = from, .bytes = to - from,
                                .buf = part->slot + (from - begin) },
                        .part = p, .need_end = to < end ? to : end };
    s->io->ops->queue(s->io, &r->io);
    part->state = READING;
    part->n_flying++;
    if (s->n_flying++ == 0)
        s->flying_since = pf_now_ns();
    if (part->n_asked == part->n_chunks)
        queue_remove(s, p);
}

/* Begins as many reads as there is room for. */
static void send_reads(struct pf_store *s)
{
    bool idle = s->n_flying == 0;
    for (int p; s->idle && (p = next_part(s)) != NONE;) {
        ask_chunk(s, p);
        if (idle && s->n_flying == 1)
            s->io->ops->commit(s->io);       /* the drive begins while the others are made ready */
    }
    s->unsent = !s->io->ops->commit(s->io);
    if (idle && s->n_flying > 0)
        pthread_cond_signal(&s->has_work);
}

/* ---- Taking reads back; the lock is held ------------------------------------------------------------------------- */

static void fail_part(struct pf_store *s, struct part *part, pf_status st, const char *text)
{
    part->broken = true;
    s->fail_status = st;
    snprintf(s->fail_text, sizeof s->fail_text, "%s", text);
}

/* Says in one sentence why a read failed for good. */
static void fail_read(struct pf_store *s, const struct read *r)
{
    const char *path = s->paths[r->io.file];
    const struct pf_slab *k = &s->slabs[s->parts[r->part].slab];
    struct stat st;
    char text[512], what[64];
    if (k->expert >= 0)
        snprintf(what, sizeof what, "expert %d of layer %d", k->expert, k->layer);
    else
        snprintf(what, sizeof what, "layer %d", k->layer);
    if (r->io.result >= 0 && fstat(s->files[r->io.file].fd, &st) == 0 && (uint64_t)st.st_size < r->need_end) {
        snprintf(text, sizeof text, "%s: the file now ends at byte %lld; %s should go on to byte %" PRIu64, path,
                 (long long)st.st_size, what, r->need_end);
        fail_part(s, &s->parts[r->part], PF_ECHANGED, text);
        return;
    }
    snprintf(text, sizeof text, "%s: reading %s at byte %" PRIu64 " failed: %s", path, what, r->io.offset,
             r->io.result < 0 ? strerror((int)-r->io.result) : "the drive returns less than was asked for");
    fail_part(s, &s->parts[r->part], PF_EIO, text);
}

/* Whether the read must go to the engine again, for the bytes that are missing. */
static bool must_repeat(struct pf_store *s, struct read *r)
{
    int64_t n = r->io.result;
    if (n >= 0 && r->io.offset + (uint64_t)n >= r->need_end)
        return false;
    if ((n < 0 && n != -EINTR && n != -EAGAIN && n != -ECANCELED) || s->closing || ++r->tries > MAX_TRIES) {
        fail_read(s, r);
        return false;
    }
    uint64_t whole = n > 0 ? (uint64_t)n / s->align * s->align : 0;
    r->io.offset += whole;
    r->io.bytes -= whole;
    r->io.buf = (char *)r->io.buf + whole;
    s->stats.n_retries++;
    return true;
}

/* Takes a read back from the engine, or gives it to it again. Returns its part if that was the part's
 * last read, else NONE. */
static int take_back(struct pf_store *s, struct read *r)
{
    struct part *part = &s->parts[r->part];
    s->n_progress++;
    s->stats.n_reads++;
    s->stats.bytes_read += r->io.result > 0 ? (uint64_t)r->io.result : 0;
    if (must_repeat(s, r)) {
        s->io->ops->queue(s->io, &r->io);
        return NONE;
    }
    int p = r->part;
    r->next = s->idle;
    s->idle = r;
    if (--s->n_flying == 0) {
        uint64_t now = pf_now_ns();
        s->stats.busy_ns += now - s->flying_since;
        pf_spans_add(s->spans, &(struct pf_span){ "reads", PF_TRACK_DRIVE, -1, -1, s->flying_since, now });
    }
    if (part->broken)
        queue_remove(s, p);              /* the part's other chunks are not asked for any more */
    return --part->n_flying == 0 && (part->broken || part->n_asked == part->n_chunks) ? p : NONE;
}

/* Takes what is back. The drive gets new reads before anybody looks at what came, as that takes a while. */
static void take_reads(struct pf_store *s)
{
    struct pf_io_read *done[PF_STORE_DEPTH];
    int n = s->io->ops->take(s->io, done, PF_STORE_DEPTH);
    for (int i = 0; i < n; i++) {
        int p = take_back(s, (struct read *)((char *)done[i] - offsetof(struct read, io)));
        if (p != NONE)
            queue_put(s, &s->came, p);
    }
    send_reads(s);
}

/* The lock is given up meanwhile. When the engine could not send everything it is asked again a little later. */
static void wait_engine(struct pf_store *s, uint64_t until)
{
    if (s->unsent)
        until = pf_now_ns() + SOON_NS;
    pthread_mutex_unlock(&s->lock);
    s->io->ops->wait(s->io, until);
    pthread_mutex_lock(&s->lock);
}

/* ---- Looking at what came: the lock is not held, as the part is READING and all its reads are back --------------- */

static uint64_t add_word(uint64_t sum, const uint8_t *p)
{
    return (sum << 7 | sum >> 57) * 0x9e3779b97f4a7c15u + word_at(p);
}

/* Eight bytes of every sector that has as many of the part, and the part's last eight. */
static uint64_t checksum(const struct pf_store *s, const struct part *part)
{
    const uint8_t *data = part->slot + part->at.offset % s->align, *end = data + part->at.bytes;
    uint64_t sum = part->at.bytes;
    if (part->at.bytes < 8)
        return sum;
    for (const uint8_t *at = data; at + 8 <= end; at += SECTOR - (at - part->slot) % SECTOR)
        sum = add_word(sum, at);
    return add_word(sum, end - 8);
}

static bool is_one_byte(const uint8_t *sector)
{
    return word_at(sector) == word_at(sector + SECTOR - 8) && memcmp(sector, sector + 1, SECTOR - 1) == 0;
}

/* Looks over the sectors of a part's first read. */
enum look { FINE, EMPTY, LEFT_OUT };
static enum look look_at(const struct pf_store *s, const struct part *part)
{
    enum look found = FINE;
    const uint8_t *first = part->slot + part->at.offset % s->align / SECTOR * SECTOR;
    for (const uint8_t *at = first; at < sectors_end(s, part); at += SECTOR) {
        if (word_at(at) == mark_of(at))
            return LEFT_OUT;
        if (is_one_byte(at))
            found = EMPTY;
    }
    return found;
}

static void fail_bytes(struct pf_store *s, struct part *part, const char *how)
{
    char text[512];
    snprintf(text, sizeof text, "%s: byte %" PRIu64 " and on %s; the drive or the file is bad", s->paths[part->at.file],
             part->at.offset, how);
    fail_part(s, part, PF_EIO, text);
}

static void fail_changed(struct pf_store *s, struct part *part)
{
    char text[512];
    snprintf(text, sizeof text, "%s: the file changed since it was opened", s->paths[part->at.file]);
    fail_part(s, part, PF_ECHANGED, text);
}

/* Whether the bytes of a part have to be read again; if they are wrong a second time, or of a file that has
 * changed, the part is broken. */
static bool must_read_again(struct pf_store *s, struct part *part)
{
    pthread_mutex_unlock(&s->lock);
    uint64_t sum = checksum(s, part);
    enum look look = part->has_sum ? FINE : look_at(s, part);
    struct timespec now;
    bool unchanged = pf_io_file_unchanged(&s->files[part->at.file], &now);
    pthread_mutex_lock(&s->lock);
    bool touched = now.tv_sec != part->touched.tv_sec || now.tv_nsec != part->touched.tv_nsec;
    if (!unchanged || (touched && part->again)) {
        fail_changed(s, part);
        return false;
    }
    bool differs = part->has_sum && sum != part->sum;
    if ((touched || differs || look != FINE) && !part->again)
        return true;
    if (differs)
        fail_bytes(s, part, "are read differently than before");
    if (look == LEFT_OUT)
        fail_bytes(s, part, "were not read, though the drive says so");
    if (!part->broken && !part->has_sum) {
        part->has_sum = true;
        part->sum = sum;
    }
    return false;
}

/* Its bytes are there. */
static void finish_part(struct pf_store *s, int p)
{
    struct part *part = &s->parts[p];
    struct class *k = &s->classes[part->class];
    if (!part->broken && must_read_again(s, part)) {
        part->again = true;
        part->n_asked = 0;
        s->stats.n_retries++;
        queue_put(s, &s->wanted, p);
        send_reads(s);
        return;
    }
    part->state = part->broken ? FAILED : READY;
    if (!part->broken)
        s->stats.resident_bytes += part->at.bytes;
    if (part->pins == 0 && part->broken)
        make_absent(s, part);
    else if (part->pins == 0)
        k->policy->ops->release(k->policy, part->index);
}

static void look_at_first(struct pf_store *s)
{
    int p = s->came.head;
    queue_remove(s, p);
    s->n_looking++;
    finish_part(s, p);
    s->n_looking--;
    pthread_cond_broadcast(&s->changed);
}

/* ---- For everybody ---------------------------------------------------------------------------------------------- */

void pf_store_enter(pf_store *s, int layer)
{
    pthread_mutex_lock(&s->lock);
    s->n_entered++;
    s->guess.n = 0;
    s->n_tried += s->n_foreseen;
    s->n_foreseen = 0;
    s->n_rest -= s->n_rest > 0;
    for (int c = 0; c < s->n_classes; c++)
        s->classes[c].policy->ops->enter(s->classes[c].policy, layer);
    pthread_mutex_unlock(&s->lock);
}

/* A thread that waited goes its way: what came or is still to come is the reader's. */
static void leave_rest(struct pf_store *s)
{
    if (s->n_flying > 0 || s->came.head != NONE)
        pthread_cond_signal(&s->has_work);
}

/* Waits for reads and takes them; then everybody who has nothing else to do looks at what came. */
static void attend(struct pf_store *s, uint64_t until)
{
    s->attended = true;
    wait_engine(s, until);
    take_reads(s);
    s->attended = false;
    if (s->came.head != s->came.tail) {
        pthread_cond_signal(&s->has_work);
        pthread_cond_broadcast(&s->changed);
    }
}

/* Waits for a change, or brings it about. Fails when the drive has finished nothing for stall_ns; *seen and *since
 * are the caller's memory. */
static pf_status wait_change(struct pf_store *s, uint64_t *seen, uint64_t *since)
{
    uint64_t begin = pf_now_ns();
    if (*since == 0 || *seen != s->n_progress) {
        *seen = s->n_progress;
        *since = begin;
    } else if (begin - *since >= s->stall_ns) {
        PF_FAIL(PF_EIO, "%s: the drive has not answered for %" PRIu64 " ms", s->paths[0], (begin - *since) / 1000000);
    }
    uint64_t until = *since + s->stall_ns;
    struct timespec t = { (time_t)(until / 1000000000u), (long)(until % 1000000000u) };
    if (s->came.head != NONE)
        look_at_first(s);
    else if (s->n_flying > 0 && s->n_looking == 0 && !s->attended)
        attend(s, until);
    else
        pthread_cond_timedwait(&s->changed, &s->lock, &t);
    s->stats.wait_ns += pf_now_ns() - begin;
    return PF_OK;
}

pf_status pf_store_pin(pf_store *s, const int *slabs, int n, enum pf_pin *out)
{
    uint64_t seen = 0, since = 0;
    pf_status st = PF_OK;
    int n_pinned = 0;
    pthread_mutex_lock(&s->lock);
    while (st == PF_OK && n_pinned == 0 && n > 0) {
        for (int i = 0; i < n; i++)
            pin_present(s, &s->slabs[slabs[i]]);
        for (int i = 0; i < n; i++) {
            const struct pf_slab *slab = &s->slabs[slabs[i]];
            out[i] = all_ready(s, slab) ? PF_PIN_READY : pin_absent(s, slab) ? PF_PIN_QUEUED : PF_PIN_BUSY;
            n_pinned += out[i] != PF_PIN_BUSY;
            s->stats.n_hits += out[i] == PF_PIN_READY;
            s->stats.n_misses += out[i] == PF_PIN_QUEUED;
        }
        send_reads(s);
        if (n_pinned == 0)
            st = wait_change(s, &seen, &since);
    }
    leave_rest(s);
    pthread_mutex_unlock(&s->lock);
    return st;
}

/* Moves the slabs that are ready to the front; both kinds keep their order. PF_EIO and the like when
 * a part of one failed. */
static pf_status sort_ready(struct pf_store *s, int *slabs, int n, int *n_ready)
{
    *n_ready = 0;
    for (int i = 0; i < n; i++) {
        const struct pf_slab *k = &s->slabs[slabs[i]];
        for (int p = k->first; p < k->first + k->n; p++)
            if (s->parts[p].state == FAILED)
                PF_FAIL(s->fail_status, "%s", s->fail_text);
        if (!all_ready(s, k))
            continue;
        int slab = slabs[i];
        memmove(&slabs[*n_ready + 1], &slabs[*n_ready], (size_t)(i - *n_ready) * sizeof *slabs);
        slabs[(*n_ready)++] = slab;
    }
    return PF_OK;
}

pf_status pf_store_wait_any(pf_store *s, int *slabs, int n, int *n_ready)
{
    uint64_t seen = 0, since = 0;
    pthread_mutex_lock(&s->lock);
    pf_status st = sort_ready(s, slabs, n, n_ready);
    while (st == PF_OK && *n_ready == 0) {
        st = wait_change(s, &seen, &since);
        if (st == PF_OK)
            st = sort_ready(s, slabs, n, n_ready);
    }
    leave_rest(s);
    pthread_mutex_unlock(&s->lock);
    return st;
}

pf_status pf_store_wait(pf_store *s, int slab)
{
    int n_ready;
    return pf_store_wait_any(s, &slab, 1, &n_ready);
}

bool pf_store_is_ready(pf_store *s, int slab)
{
    pthread_mutex_lock(&s->lock);
    bool ready = all_ready(s, &s->slabs[slab]);
    pthread_mutex_unlock(&s->lock);
    return ready;
}

void pf_store_unpin(pf_store *s, const int *slabs, int n)
{
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < n; i++) {
        const struct pf_slab *k = &s->slabs[slabs[i]];
        for (int p = k->first; p < k->first + k->n; p++)
            unpin_part(s, p);
    }
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

bool pf_store_holds_all(const pf_store *s)
{
    for (int c = 0; c < s->n_classes; c++)
        if (s->classes[c].n_slots < s->classes[c].n_parts)
            return false;
    return true;
}

void *pf_store_arena(const pf_store *s, size_t *bytes)
{
    *bytes = s->arena_bytes;
    return s->arena;
}

const uint8_t *pf_store_data(const pf_store *s, int part)
{
    return s->parts[part].slot + s->parts[part].at.offset % s->align;
}

void pf_store_prefetch(pf_store *s, const int *slabs, int n, int most)
{
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < n && most > 0; i++) {
        const struct pf_slab *k = &s->slabs[slabs[i]];
        most -= !all_ready(s, k);
        for (int p = k->first; p < k->first + k->n; p++)
            if (s->parts[p].state == ABSENT)
                start_load(s, p, &s->ahead, true);
    }
    send_reads(s);
    pthread_mutex_unlock(&s->lock);
}

/* Guesses are read as long as half of them are right, once a little more than half of those that were only listened to
 * were. If it is less, they are not even asked for until steps have come to some more layers. */
static void judge_guesses(struct pf_store *s)
{
    enum { HEARD = 192, READ = 96, FORGET = 1024, REST = 1000 };
    if (s->n_tried < (s->guesses_pay ? READ : HEARD))
        return;
    bool pay = 100 * s->n_right >= (s->guesses_pay ? 50 : 55) * s->n_tried;
    if (pay && s->guesses_pay) {
        if (s->n_tried >= FORGET)
            s->n_tried /= 2, s->n_right /= 2;
        return;
    }
    s->guesses_pay = pay;
    s->n_rest = pay ? 0 : REST;
    s->n_tried = s->n_right = 0;
}

/* Marks the parts that a guess would read: the next layer's pins will tell whether it would have been right. */
static void foresee(struct pf_store *s, const int *slabs, int n)
{
    for (int i = 0; i < n; i++) {
        const struct pf_slab *k = &s->slabs[slabs[i]];
        for (int p = k->first; p < k->first + k->n; p++)
            if (s->parts[p].state == ABSENT && s->parts[p].foreseen != s->n_entered + 1) {
                s->parts[p].foreseen = s->n_entered + 1;
                s->n_foreseen++;
            }
    }
}

bool pf_store_wants_guess(pf_store *s)
{
    pthread_mutex_lock(&s->lock);
    bool wants = s->n_rest == 0;
    pthread_mutex_unlock(&s->lock);
    return wants;
}

void pf_store_guess(pf_store *s, const int *slabs, int n, int depth)
{
    assert(n <= PF_MAX_GUESSES);
    pthread_mutex_lock(&s->lock);
    judge_guesses(s);
    if (s->guesses_pay) {
        memcpy(s->guesses, slabs, (size_t)n * sizeof *slabs);
        s->guess = (struct order){ s->guesses, n, 0 };
        s->guess_depth = depth;
        send_reads(s);
    } else if (s->n_rest == 0) {
        foresee(s, slabs, n);
    }
    pthread_mutex_unlock(&s->lock);
}

void pf_store_fill(pf_store *s, const int *slabs, int n)
{
    pthread_mutex_lock(&s->lock);
    s->fill = (struct order){ slabs, n, 0 };
    send_reads(s);
    pthread_mutex_unlock(&s->lock);
}

void pf_store_stats_get(pf_store *s, struct pf_store_stats *out)
{
    pthread_mutex_lock(&s->lock);
    *out = s->stats;
    out->engine = s->io->name;
    if (s->n_flying > 0)
        out->busy_ns += pf_now_ns() - s->flying_since;
    pthread_mutex_unlock(&s->lock);
}

void pf_store_stats_reset(pf_store *s)
{
    pthread_mutex_lock(&s->lock);
    struct pf_store_stats old = s->stats;
    s->stats = (struct pf_store_stats){ .slot_bytes = old.slot_bytes, .resident_bytes = old.resident_bytes,
                                        .policy = old.policy };
    s->flying_since = pf_now_ns();
    pthread_mutex_unlock(&s->lock);
}

/* ---- The reader ------------------------------------------------------------------------------------------------- */

/* The reader: looks at parts that came, and takes reads back while no waiting thread does. Its wait for the engine ends
 * from time to time, since another thread may have taken the last read that it waits for. */
static void *reader_main(void *arg)
{
    struct pf_store *s = arg;
    pthread_mutex_lock(&s->lock);
    while (!s->closing || s->n_flying > 0 || s->came.head != NONE) {
        if (s->came.head != NONE) {
            look_at_first(s);
        } else if (s->n_flying == 0 || s->attended) {
            pthread_cond_wait(&s->has_work, &s->lock);
        } else {
            wait_engine(s, pf_now_ns() + LATER_NS);
            if (!s->attended)
                take_reads(s);
        }
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}
