/* The simulated engine: real bytes of real files, with faults, delays and an order of completion of its own choosing.
 *
 * Reads are carried out when they are taken, so that a buffer's bytes change as late as the contract allows. A test
 * double: its times mean nothing. The lock guards everything but the reads that take has taken out. */
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/pf_mem.h"
#include "base/pf_time.h"
#include "tiers/io.h"

enum { SECTOR = 512 };

struct sim {
    pf_io    io;
    struct pf_io_setup s;
    struct pf_io_sim *plan;
    struct pf_io_read **flying;          /* [depth] */
    int      n_flying;
    uint64_t rng, *numbers;              /* [depth] which read it is, beside flying */
    pthread_mutex_t lock;
    pthread_cond_t  bell;
};

static struct sim *sim_of(pf_io *io)
{
    return (struct sim *)io;
}

static void sim_close(pf_io *io)
{
    struct sim *m = sim_of(io);
    pthread_cond_destroy(&m->bell);
    pthread_mutex_destroy(&m->lock);
    pf_free(m->flying);
    pf_free(m->numbers);
    pf_free(m);
}

static void sim_queue(pf_io *io, struct pf_io_read *r)
{
    struct sim *m = sim_of(io);
    pthread_mutex_lock(&m->lock);
    uint64_t number = ++m->plan->n_reads;
    uint64_t takes_ns = m->plan->latency_ns + m->plan->ns_per_kib * (r->bytes >> 10);
    assert(m->n_flying < m->s.depth);
    r->due = pf_now_ns() + (number == m->plan->late_at ? m->plan->late_ns : takes_ns);
    m->numbers[m->n_flying] = number;
    m->flying[m->n_flying++] = r;
    pthread_cond_broadcast(&m->bell);
    pthread_mutex_unlock(&m->lock);
}

static bool sim_commit(pf_io *io)
{
    (void)io;
    return true;
}

static void carry_out(struct sim *m, struct pf_io_read *r, uint64_t number)
{
    const struct pf_io_sim *p = m->plan;
    if (p->fail_at && number >= p->fail_at && number - p->fail_at < p->fail_n) {
        r->result = -p->fail_errno;
        return;
    }
    uint64_t bytes = r->bytes;
    if (p->short_every && number % p->short_every == 0)
        bytes = bytes / 2 / SECTOR * SECTOR;
    char *sector = (char *)r->buf + bytes / 2 / SECTOR * SECTOR, before[SECTOR];
    if (number == p->lost_at && bytes >= 2 * SECTOR)
        memcpy(before, sector, SECTOR);
    ssize_t n = pread(m->s.files[r->file].fd, r->buf, bytes, (off_t)r->offset);
    r->result = n < 0 ? -errno : n;
    if (number == p->lost_at && bytes >= 2 * SECTOR)
        memcpy(sector, before, SECTOR);
    if (number == p->corrupt_at && bytes >= 2 * SECTOR)
        memset(sector, 0x5a, SECTOR);
}

/* Which of the reads in flight comes back next; the late one only when it is alone. -1: none
 * yet, and *due says when. */
static int choose(struct sim *m, uint64_t now, uint64_t *due)
{
    int n = m->n_flying, start = 0;
    if (m->plan->seed && n > 0) {
        m->rng = m->rng * 6364136223846793005u + 1442695040888963407u;
        start = (int)((m->rng >> 33) % (uint64_t)n);
    }
    *due = UINT64_MAX;
    for (int i = 0; i < n; i++) {
        int at = (start + i) % n;
        if (m->numbers[at] == m->plan->late_at && n > 1)
            continue;
        if (m->flying[at]->due <= now)
            return at;
        *due = m->flying[at]->due < *due ? m->flying[at]->due : *due;
    }
    return -1;
}

static void sim_wait(pf_io *io, uint64_t until)
{
    struct sim *m = sim_of(io);
    pthread_mutex_lock(&m->lock);
    for (uint64_t now = pf_now_ns(), due; choose(m, now, &due) < 0 && now < until; now = pf_now_ns()) {
        due = due < until ? due : until;
        struct timespec t = { (time_t)(due / 1000000000u), (long)(due % 1000000000u) };
        pthread_cond_timedwait(&m->bell, &m->lock, &t);
    }
    pthread_mutex_unlock(&m->lock);
}

/* One read at a time. */
static int sim_take(pf_io *io, struct pf_io_read **done, int cap)
{
    struct sim *m = sim_of(io);
    uint64_t due, number = 0;
    pthread_mutex_lock(&m->lock);
    int at = cap > 0 ? choose(m, pf_now_ns(), &due) : -1;
    if (at >= 0) {
        done[0] = m->flying[at];
        number = m->numbers[at];
        m->n_flying--;
        m->flying[at] = m->flying[m->n_flying];
        m->numbers[at] = m->numbers[m->n_flying];
    }
    pthread_mutex_unlock(&m->lock);
    if (at < 0)
        return 0;
    carry_out(m, done[0], number);
    return 1;
}

static const struct pf_io_ops sim_ops = {
    .close = sim_close, .queue = sim_queue, .commit = sim_commit, .wait = sim_wait,
    .take = sim_take,
};

pf_status pf_io_sim_open(pf_io **out, const struct pf_io_setup *s, void *ctx)
{
    *out = NULL;
    struct sim *m = pf_alloc(PF_MEM_TIERS, sizeof *m);
    if (!m)
        PF_FAIL(PF_ENOMEM, "no memory for a queue of reads");
    m->io = (pf_io){ &sim_ops, "simulated" };
    m->s = *s;
    m->plan = ctx;
    m->rng = m->plan->seed;
    m->flying = pf_alloc_array(PF_MEM_TIERS, (size_t)s->depth, sizeof(struct pf_io_read *));
    m->numbers = pf_alloc_array(PF_MEM_TIERS, (size_t)s->depth, sizeof *m->numbers);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&m->bell, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&m->lock, NULL);
    if (!m->flying || !m->numbers) {
        sim_close(&m->io);
        PF_FAIL(PF_ENOMEM, "no memory for a queue of %d reads", s->depth);
    }
    *out = &m->io;
    return PF_OK;
}
