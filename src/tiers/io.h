/* Reading from the drive: a queue of reads behind a vtable.
 *
 *     queue(read) x n  ->  commit        whoever wants bytes  |
 *     take(done)                         whoever handles them | one thread at a time (under the store's lock)
 *     wait                               any thread, at any time
 *
 * So a thread that needs weights sets the drive to work itself, however busy the processors are, and when it has
 * nothing else to do waits for the drive itself; another handles what comes back meanwhile. Engines: io_uring.c where
 * the kernel allows it, io_pread.c (a pool of threads) elsewhere, io_sim.c for tests. An engine reports what the kernel
 * said and judges nothing: short reads and errors are the caller's business (the store retries). A read belongs to the
 * engine from queue until take hands it back; its buffer too. */
#ifndef PF_IO_H
#define PF_IO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "base/pf_status.h"

typedef struct pf_io pf_io;

enum {
    PF_IO_ALIGN_UNKNOWN = 4096,      /* what every drive takes */
    PF_IO_ALIGN_MAX = 65536
};

struct pf_io_file {
    int      fd;
    bool     direct;     /* past the page cache: offsets, lengths and addresses must be multiples of align */
    uint32_t align;      /* a power of two */
    uint64_t bytes;      /* at open */
    struct timespec written;     /* when it was last written to, at open */
};

struct pf_io_read {
    int      file;               /* index of the set-up's files */
    uint64_t offset, bytes;
    void    *buf;
    int64_t  result;             /* bytes read, fewer than asked for at the file's end or at the drive's
                                    whim; or -errno */
    struct pf_io_read *next;     /* the engine's while the read is its own */
    uint64_t due;                /* the simulated engine's */
};

struct pf_io {
    const struct pf_io_ops *ops;
    const char *name;            /* "io_uring"; changes within commit alone */
};

struct pf_io_ops {
    void (*close)(pf_io *io);                                     /* no read may be in flight */
    void (*queue)(pf_io *io, struct pf_io_read *r);               /* no more than `depth` at a time */
    /* Everything queued is on its way after this; or false: the system refuses for now, call again a little later. */
    bool (*commit)(pf_io *io);
    /* Blocks until there is a finished read to take, or pf_now_ns() is `until`. May come back sooner, and finds nothing
     * new when another thread takes what there was. */
    void (*wait)(pf_io *io, uint64_t until);
    int  (*take)(pf_io *io, struct pf_io_read **done, int cap);   /* hands back finished reads, cap at most; how many */
};

/* All of it must outlive the engine. The arena is where buffers lie; engines may register it with the kernel. */
struct pf_io_setup {
    const struct pf_io_file *files;
    int    n_files;
    int    depth;                /* reads in flight at most */
    char  *arena;
    size_t arena_bytes;
};

typedef pf_status pf_io_open_fn(pf_io **out, const struct pf_io_setup *s, void *ctx);

pf_status pf_io_uring_open(pf_io **out, const struct pf_io_setup *s, void *ctx);     /* ctx unused */
pf_status pf_io_pread_open(pf_io **out, const struct pf_io_setup *s, void *ctx);     /* ctx unused */
pf_status pf_io_sim_open(pf_io **out, const struct pf_io_setup *s, void *ctx);       /* ctx: struct pf_io_sim * */
pf_status pf_io_best_open(pf_io **out, const struct pf_io_setup *s, void *ctx);      /* io_uring, or else preads */

/* Opens path for reading past the page cache, or through it where the file system has no other way. */
pf_status pf_io_file_open(struct pf_io_file *out, const char *path);
void      pf_io_file_close(struct pf_io_file *f);         /* *f may be all zeros */

/* Whether the file has the size and the time of writing that it had when it was opened. *touched: when anything about
 * it changed last, which nobody can set back, as they can the time of writing; zero if the system does not say. */
bool      pf_io_file_unchanged(const struct pf_io_file *f, struct timespec *touched);

/* Faults of the simulated engine. Reads are counted from 1; a number that is 0: never. */
struct pf_io_sim {
    uint64_t fail_at, fail_n;        /* reads fail_at .. fail_at + fail_n - 1 fail with -fail_errno */
    int      fail_errno;
    uint64_t short_every;            /* each such read ends early, at a multiple of 512 bytes */
    uint64_t late_at;                /* this read comes back after everything else, and no sooner than late_ns */
    uint64_t late_ns;
    uint64_t corrupt_at;             /* one sector of this read returns other bytes */
    uint64_t lost_at;                /* one sector of this read is not written */
    uint64_t latency_ns, ns_per_kib; /* duration of each read */
    uint64_t seed;                   /* seed of the order in which reads come back; 0: in order */
    uint64_t n_reads;                /* how many there were; read it after close */
};

#endif
