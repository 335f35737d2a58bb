/* Fork-join over one atomic word.
 *
 *     word:  | n_chunks (32) | next (32) |
 *
 * A thread takes a chunk by moving `next` forward with a compare-and-swap; next == n_chunks means nothing to do. Only
 * after taking a chunk does it read the job's fields, and the job cannot end before that chunk is counted in `done`, so
 * the fields cannot change under it. A worker that sleeps through a whole job harms nobody.
 *
 * Invariants
 *  1. fn, ctx, n, grain are written only by the caller of pf_pool_run, while next == n_chunks and done == n_chunks.
 *  2. word is stored with release after them; a successful swap acquires them.
 *  3. done is raised with release after a chunk's work; the caller acquires it before it returns.
 *  4. A worker sleeps only on `bell`, read before it last looked at `word`; the caller rings after storing `word`.
 *
 * Between the fork-joins of one step the gap is microseconds, so workers spin for a while before they sleep. */
#define _GNU_SOURCE
#include "base/pf_pool.h"

#include <immintrin.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/pf_fp.h"
#include "base/pf_mem.h"

enum { SPINS_BEFORE_SLEEP = 4000 };     /* some 50 us */

struct worker {
    struct pf_pool *pool;
    pthread_t       thread;
    int             index;              /* 1 .. n_threads - 1; the caller is 0 */
};

struct pf_pool {
    _Alignas(64) _Atomic uint64_t word;
    _Alignas(64) _Atomic uint32_t done;
    _Alignas(64) _Atomic uint32_t bell;
    _Atomic uint32_t n_asleep;
    _Atomic bool     closing;

    _Alignas(64) pf_job_fn *fn;
    void   *ctx;
    int64_t n, grain;

    int           n_threads;
    int           n_started;
    struct worker workers[];
};

static void futex_wait(_Atomic uint32_t *at, uint32_t seen)
{
    syscall(SYS_futex, at, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake_all(_Atomic uint32_t *at)
{
    syscall(SYS_futex, at, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

/* Takes and runs one chunk; false when there is none. */
static bool run_one(struct pf_pool *p, int thread)
{
    uint64_t word = atomic_load_explicit(&p->word, memory_order_acquire);
    uint32_t next;
    do {
        next = (uint32_t)word;
        if (next >= (uint32_t)(word >> 32))
            return false;
    } while (!atomic_compare_exchange_weak_explicit(&p->word, &word, word + 1, memory_order_acquire, memory_order_acquire));

    int64_t begin = (int64_t)next * p->grain;
    int64_t end = begin + p->grain < p->n ? begin + p->grain : p->n;
    p->fn(p->ctx, begin, end, thread);
    atomic_fetch_add_explicit(&p->done, 1, memory_order_release);
    return true;
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct pf_pool *p = w->pool;
    pf_fp_begin();
    for (;;) {
        uint32_t bell = atomic_load(&p->bell);
        int spins = 0;
        while (!run_one(p, w->index)) {
            if (atomic_load_explicit(&p->closing, memory_order_relaxed))
                return NULL;
            if (++spins > SPINS_BEFORE_SLEEP)
                break;
            _mm_pause();
        }
        if (spins <= SPINS_BEFORE_SLEEP)
            continue;
        /* Nothing for a while. If the bell rang since we read it, a job may have come: look again. */
        atomic_fetch_add(&p->n_asleep, 1);
        futex_wait(&p->bell, bell);
        atomic_fetch_sub(&p->n_asleep, 1);
    }
}

static void ring(struct pf_pool *p)
{
    atomic_fetch_add(&p->bell, 1);
    if (atomic_load(&p->n_asleep) > 0)
        futex_wake_all(&p->bell);
}

void pf_pool_run(pf_pool *p, pf_job_fn *fn, void *ctx, int64_t n, int64_t grain)
{
    if (n <= 0)
        return;
    if (p->n_threads == 1 || n <= grain) {
        fn(ctx, 0, n, 0);
        return;
    }
    uint32_t n_chunks = (uint32_t)((n + grain - 1) / grain);
    p->fn = fn;
    p->ctx = ctx;
    p->n = n;
    p->grain = grain;
    atomic_store_explicit(&p->done, 0, memory_order_relaxed);
    atomic_store(&p->word, (uint64_t)n_chunks << 32);
    ring(p);
    while (run_one(p, 0))
        ;
    while (atomic_load_explicit(&p->done, memory_order_acquire) < n_chunks)
        _mm_pause();
}

pf_status pf_pool_open(pf_pool **out, int n_threads)
{
    *out = NULL;
    if (n_threads < 1 || n_threads > PF_MAX_THREADS)
        PF_FAIL(PF_EINVAL, "n_threads is %d; 1 to %d are possible", n_threads, PF_MAX_THREADS);
    pf_pool *p = pf_alloc(PF_MEM_BASE, sizeof *p + (size_t)n_threads * sizeof p->workers[0]);
    if (!p)
        PF_FAIL(PF_ENOMEM, "no memory for a pool of %d threads", n_threads);
    p->n_threads = n_threads;
    p->n_started = 1;
    while (p->n_started < n_threads) {
        struct worker *w = &p->workers[p->n_started];
        *w = (struct worker){ .pool = p, .index = p->n_started };
        int err = pthread_create(&w->thread, NULL, worker_main, w);
        if (err) {
            int n = p->n_started;
            pf_pool_close(&p);
            PF_FAIL(PF_ENOMEM, "the system gave %d of %d threads: %s", n, n_threads, strerror(err));
        }
        p->n_started++;
    }
    *out = p;
    return PF_OK;
}

void pf_pool_close(pf_pool **pp)
{
    pf_pool *p = *pp;
    if (!p)
        return;
    atomic_store(&p->closing, true);
    ring(p);
    for (int i = 1; i < p->n_started; i++)
        pthread_join(p->workers[i].thread, NULL);
    pf_free(p);
    *pp = NULL;
}

int pf_pool_n_threads(const pf_pool *p)
{
    return p->n_threads;
}
