/* Reads through io_uring: the one door to liburing.
 *
 * Files are registered once. The arena is registered in regions of 64 MiB, each when a read first lands in it, so that
 * opening a model neither touches nor pins the whole of it; a read across two regions, or with registration refused (the
 * limit on locked memory), goes unregistered. Both cost only processor time when they are missing.
 *
 * A waiting owner is woken through an eventfd that a read of the ring's own always waits on: user_data NULL is that read. */
#define _GNU_SOURCE
#include <errno.h>
#include <liburing.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/pf_mem.h"
#include "tiers/io.h"

enum { REGION_BYTES = 64 << 20, MAX_REGIONS = 1 << 14 };

struct uring {
    pf_io    io;
    struct pf_io_setup s;
    struct io_uring ring;
    bool     ring_open, files_registered, bell_armed;
    int      n_flying;
    int      bell;               /* eventfd, or -1 */
    uint64_t bell_count;         /* where its read lands */
    size_t   n_regions;          /* 0: the arena is not registered */
    bool    *registered;         /* [n_regions] */
};

static struct uring *uring_of(pf_io *io)
{
    return (struct uring *)io;
}

/* The region a read lies in, registered by now; -1 when the read must go without. */
static int region_of(struct uring *u, const struct pf_io_read *r)
{
    size_t at = (size_t)((char *)r->buf - u->s.arena), region = at / REGION_BYTES;
    if (u->n_regions == 0 || at >= u->s.arena_bytes || (at + r->bytes - 1) / REGION_BYTES != region)
        return -1;
    if (u->registered[region])
        return (int)region;
    size_t begin = region * REGION_BYTES, left = u->s.arena_bytes - begin;
    struct iovec iov = { u->s.arena + begin, left < REGION_BYTES ? left : REGION_BYTES };
    if (io_uring_register_buffers_update_tag(&u->ring, (unsigned)region, &iov, NULL, 1) != 1) {
        u->n_regions = 0;            /* refused once, refused always */
        return -1;
    }
    u->registered[region] = true;
    return (int)region;
}

static void arm_bell(struct uring *u)
{
    struct io_uring_sqe *sqe = u->bell_armed ? NULL : io_uring_get_sqe(&u->ring);
    if (!sqe)
        return;
    io_uring_prep_read(sqe, u->bell, &u->bell_count, sizeof u->bell_count, 0);
    io_uring_sqe_set_data(sqe, NULL);
    u->bell_armed = true;
}

static enum pf_io_state uring_queue(pf_io *io, struct pf_io_read *r)
{
    struct uring *u = uring_of(io);
    struct io_uring_sqe *sqe = u->n_flying < u->s.depth ? io_uring_get_sqe(&u->ring) : NULL;
    if (!sqe)
        return PF_IO_BUSY;
    int region = region_of(u, r), fd = u->files_registered ? r->file : u->s.files[r->file].fd;
    if (region >= 0)
        io_uring_prep_read_fixed(sqe, fd, r->buf, (unsigned)r->bytes, r->offset, region);
    else
        io_uring_prep_read(sqe, fd, r->buf, (unsigned)r->bytes, r->offset);
    if (u->files_registered)
        sqe->flags |= IOSQE_FIXED_FILE;
    io_uring_sqe_set_data(sqe, r);
    u->n_flying++;
    return PF_IO_QUEUED;
}

/* What the kernel does not take now (EAGAIN, EBUSY) stays in the ring and goes with the next call. */
static void uring_commit(pf_io *io)
{
    struct uring *u = uring_of(io);
    arm_bell(u);
    io_uring_submit(&u->ring);
}

static int uring_reap(pf_io *io, struct pf_io_read **done, int cap, bool wait)
{
    struct uring *u = uring_of(io);
    int n = 0;
    bool woken = false;
    while (n == 0) {
        struct io_uring_cqe *cqe;
        while (n < cap && io_uring_peek_cqe(&u->ring, &cqe) == 0) {
            struct pf_io_read *r = io_uring_cqe_get_data(cqe);
            if (r) {
                r->result = cqe->res;
                done[n++] = r;
                u->n_flying--;
            } else {
                u->bell_armed = false;
                woken = true;
            }
            io_uring_cqe_seen(&u->ring, cqe);
        }
        if (n > 0 || woken || !wait)
            break;
        arm_bell(u);
        io_uring_submit_and_wait(&u->ring, 1);       /* EINTR and the like: look again */
    }
    return n;
}

static void uring_wake(pf_io *io)
{
    ssize_t n = write(uring_of(io)->bell, &(uint64_t){ 1 }, sizeof(uint64_t));
    (void)n;                         /* only a counter at its limit refuses, and then the bell is ringing already */
}

/* The bell's read is answered before its memory goes. */
static void disarm_bell(struct uring *u)
{
    struct pf_io_read *none[1];
    uring_wake(&u->io);
    while (u->bell_armed)
        uring_reap(&u->io, none, 1, true);
}

static void uring_close(pf_io *io)
{
    struct uring *u = uring_of(io);
    if (u->ring_open) {
        if (u->bell_armed)
            disarm_bell(u);
        io_uring_queue_exit(&u->ring);
    }
    if (u->bell >= 0)
        close(u->bell);
    pf_free(u->registered);
    pf_free(u);
}

static const struct pf_io_ops uring_ops = {
    .name = "io_uring", .close = uring_close, .queue = uring_queue, .commit = uring_commit, .reap = uring_reap,
    .wake = uring_wake,
};

static void register_all(struct uring *u)
{
    int fds[64];
    size_t n = (u->s.arena_bytes + REGION_BYTES - 1) / REGION_BYTES;
    if (u->s.n_files <= (int)(sizeof fds / sizeof *fds)) {
        for (int i = 0; i < u->s.n_files; i++)
            fds[i] = u->s.files[i].fd;
        u->files_registered = io_uring_register_files(&u->ring, fds, (unsigned)u->s.n_files) == 0;
    }
    if (n == 0 || n > MAX_REGIONS || io_uring_register_buffers_sparse(&u->ring, (unsigned)n) != 0)
        return;
    u->registered = pf_alloc_array(PF_MEM_TIERS, n, sizeof *u->registered);
    u->n_regions = u->registered ? n : 0;
}

pf_status pf_io_uring_open(pf_io **out, const struct pf_io_setup *s, void *ctx)
{
    (void)ctx;
    *out = NULL;
    struct uring *u = pf_alloc(PF_MEM_TIERS, sizeof *u);
    if (!u)
        PF_FAIL(PF_ENOMEM, "no memory for a queue of reads");
    u->io.ops = &uring_ops;
    u->s = *s;
    u->bell = eventfd(0, EFD_CLOEXEC);
    int err = u->bell < 0 ? -errno : io_uring_queue_init((unsigned)s->depth + 1, &u->ring, IORING_SETUP_CLAMP);
    u->ring_open = u->bell >= 0 && err == 0;
    if (!u->ring_open) {
        uring_close(&u->io);
        PF_FAIL(PF_EIO, "io_uring is not to be had: %s", strerror(-err));
    }
    register_all(u);
    *out = &u->io;
    return PF_OK;
}
