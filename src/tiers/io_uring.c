/* Reads through io_uring: the one door to liburing.
 *
 * Files are registered once. The arena is registered in regions of 64 MiB, each when a read first lands in it, so that
 * opening a model neither touches nor pins the whole of it; a read across two regions, or with registration refused
 * (the limit on locked memory), goes unregistered. Both cost only processor time when they are missing.
 *
 * When the kernel refuses to take reads at all (a seccomp filter that knows io_uring_setup alone), threads that call
 * pread get what it has not taken and everything that comes later; what it took still comes back through the ring.
 *
 * The ring in memory belongs to queue, commit and take, one thread at a time; wait asks the
 * kernel and leaves it alone. */
#define _GNU_SOURCE
#include <errno.h>
#include <liburing.h>
#include <poll.h>
#include <stdatomic.h>
#include <string.h>

#include "base/pf_mem.h"
#include "base/pf_time.h"
#include "tiers/io.h"

enum { REGION_BYTES = 64 << 20, MAX_REGIONS = 1 << 14, LOOK_NS = 20000000 };

struct uring {
    pf_io    io;
    struct pf_io_setup s;
    struct io_uring ring;
    bool     ring_open, files_registered;
    size_t   n_regions;          /* 0: the arena is not registered */
    bool    *registered;         /* [n_regions] */
    _Atomic(pf_io *) instead;    /* threads that call pread; NULL while the kernel takes reads */
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

/* The ring has an entry for each of `depth` reads, so there always is one. */
static void uring_queue(pf_io *io, struct pf_io_read *r)
{
    struct uring *u = uring_of(io);
    pf_io *instead = atomic_load(&u->instead);
    if (instead) {
        instead->ops->queue(instead, r);
        return;
    }
    struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);
    const struct pf_io_file *f = &u->s.files[r->file];
    int region = region_of(u, r), fd = u->files_registered ? r->file : f->fd;
    if (region >= 0)
        io_uring_prep_read_fixed(sqe, fd, r->buf, (unsigned)r->bytes, r->offset, region);
    else
        io_uring_prep_read(sqe, fd, r->buf, (unsigned)r->bytes, r->offset);
    sqe->flags |= u->files_registered ? IOSQE_FIXED_FILE : 0;
    sqe->flags |= f->direct ? 0 : IOSQE_ASYNC;       /* without it the kernel would copy from the
                                                        page cache before commit returns */
    io_uring_sqe_set_data(sqe, r);
}

/* Hands over what lies in the ring and was not taken. Without memory for that it stays there until the next commit. */
static bool leave_ring(struct uring *u)
{
    const struct io_uring_sq *sq = &u->ring.sq;
    pf_io *instead;
    if (pf_io_pread_open(&instead, &u->s, NULL) < 0)
        return false;
    for (unsigned i = sq->sqe_tail - io_uring_sq_ready(&u->ring); i != sq->sqe_tail; i++)
        instead->ops->queue(instead, (struct pf_io_read *)(uintptr_t)sq->sqes[i & sq->ring_mask].user_data);
    u->io.name = instead->name;
    atomic_store(&u->instead, instead);
    return instead->ops->commit(instead);
}

/* Reads that the kernel does not take now (EAGAIN, EBUSY, EINTR) stay in the ring and go with the next call. */
static bool uring_commit(pf_io *io)
{
    struct uring *u = uring_of(io);
    pf_io *instead = atomic_load(&u->instead);
    if (instead)
        return instead->ops->commit(instead);
    int n = io_uring_sq_ready(&u->ring) > 0 ? io_uring_submit(&u->ring) : 0;
    if (n < 0 && n != -EAGAIN && n != -EBUSY && n != -EINTR)
        return leave_ring(u);
    return io_uring_sq_ready(&u->ring) == 0;
}

/* Any number of threads may poll the ring; all of them wake up. None waits for long, as nothing wakes them
 * up when reads leave the ring, or come back through it when all others have left. */
static void uring_wait(pf_io *io, uint64_t until)
{
    struct uring *u = uring_of(io);
    pf_io *instead = atomic_load(&u->instead);
    struct pollfd ring = { .fd = u->ring.ring_fd, .events = POLLIN };
    uint64_t now = pf_now_ns(), left = until > now ? until - now : 0;
    left = left < LOOK_NS ? left : LOOK_NS;
    if (instead)
        instead->ops->wait(instead, now + left);
    else
        ppoll(&ring, 1, &(struct timespec){ 0, (long)left }, NULL);
}

static int uring_take(pf_io *io, struct pf_io_read **done, int cap)
{
    struct uring *u = uring_of(io);
    struct io_uring_cqe *cqe;
    int n = 0;
    while (n < cap && io_uring_peek_cqe(&u->ring, &cqe) == 0) {
        struct pf_io_read *r = io_uring_cqe_get_data(cqe);
        r->result = cqe->res;
        done[n++] = r;
        io_uring_cqe_seen(&u->ring, cqe);
    }
    pf_io *instead = atomic_load(&u->instead);
    return instead ? n + instead->ops->take(instead, done + n, cap - n) : n;
}

static void uring_close(pf_io *io)
{
    struct uring *u = uring_of(io);
    pf_io *instead = atomic_load(&u->instead);
    if (instead)
        instead->ops->close(instead);
    if (u->ring_open)
        io_uring_queue_exit(&u->ring);
    pf_free(u->registered);
    pf_free(u);
}

static const struct pf_io_ops uring_ops = {
    .close = uring_close, .queue = uring_queue, .commit = uring_commit, .wait = uring_wait, .take = uring_take,
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
    u->io = (pf_io){ &uring_ops, "io_uring" };
    u->s = *s;
    int err = io_uring_queue_init((unsigned)s->depth, &u->ring, 0);
    u->ring_open = err == 0;
    if (!u->ring_open) {
        uring_close(&u->io);
        PF_FAIL(PF_EIO, "io_uring is not to be had: %s", strerror(-err));
    }
    register_all(u);
    *out = &u->io;
    return PF_OK;
}
