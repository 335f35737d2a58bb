/* Fork-join with a share of the chunks for every thread, and stealing.
 *
 *     thread 0            thread 1            thread 2
 *     [0 ..... 9]         [10 .... 19]        [20 .... 29]        chunks; each share is one atomic word:
 *      ^ next    ^ end                                                | end (32) | next (32) |
 *
 * A thread walks its own share upwards, so that it reads memory in order and what it fetches ahead is its own; when its
 * share is empty it takes single chunks off the end of the fullest other share. Both moves are one compare-and-swap on the
 * share's word. Only after taking a chunk does a thread read the job's fields, and the job cannot end before that chunk is
 * counted in `done`, so the fields cannot change under it. A worker that sleeps through a whole job harms nobody: its share
 * is stolen.
 *
 * Invariants
 *  1. fn, ctx, n, grain are written only by the caller of pf_pool_run, while every share is empty and done == n_chunks.
 *  2. Shares are stored with release after them; a successful swap acquires them.
 *  3. done is raised with release after a chunk's work; the caller acquires it before it returns.
 *  4. A worker sleeps only on `bell`, read before it last looked at the shares; the caller rings after storing them.
 *
 * With spans, each thread joins the chunks that it takes of one run to one span. It keeps that in its `span` until it takes
 * a chunk of another run or goes to sleep. A chunk's part is added before the chunk is counted in `done`, while what
 * pf_spans_at says cannot change.
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

enum { SPINS_BEFORE_SLEEP = 4000, SPINS_WHEN_ALERT = 40000 };     /* some 50 us; some 500 */

struct worker {
    struct pf_pool *pool;
    pthread_t       thread;
    int             index;              /* 1 .. n_threads - 1; the caller is 0 */
};

struct share {
    _Alignas(64) _Atomic uint64_t word;
    pf_spans      *spans;               /* these three are of its thread alone */
    struct pf_span span;                /* name NULL: none */
    uint64_t       span_run;
};

struct pf_pool {
    _Alignas(64) _Atomic uint32_t done;
    _Alignas(64) _Atomic uint32_t bell;
    _Atomic uint32_t n_asleep;
    _Atomic bool     closing;
    _Atomic int      patience;          /* spins before sleep */

    _Alignas(64) pf_job_fn *fn;
    void   *ctx;
    int64_t n, grain;
    pf_spans *spans;
    uint64_t n_runs;

    int           n_threads;
    int           n_started;
    struct share *shares;               /* [n_threads] */
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

static uint32_t left_in(uint64_t word)
{
    uint32_t next = (uint32_t)word, end = (uint32_t)(word >> 32);
    return next < end ? end - next : 0;
}

/* Takes the first chunk of a share, or its last one; false when it is empty. */
static bool take(struct share *share, bool first, uint32_t *chunk)
{
    uint64_t word = atomic_load_explicit(&share->word, memory_order_acquire), taken;
    do {
        if (left_in(word) == 0)
            return false;
        *chunk = first ? (uint32_t)word : (uint32_t)(word >> 32) - 1;
        taken = first ? word + 1 : word - ((uint64_t)1 << 32);
    } while (!atomic_compare_exchange_weak_explicit(&share->word, &word, taken, memory_order_acquire, memory_order_acquire));
    return true;
}

static struct share *fullest(struct pf_pool *p)
{
    struct share *best = &p->shares[0];
    uint32_t most = 0;
    for (int i = 0; i < p->n_threads; i++) {
        uint32_t left = left_in(atomic_load_explicit(&p->shares[i].word, memory_order_relaxed));
        if (left > most) {
            most = left;
            best = &p->shares[i];
        }
    }
    return best;
}

static void flush_span(struct share *own)
{
    if (own->span.name)
        pf_spans_add(own->spans, &own->span);
    own->span.name = NULL;
}

/* Runs [begin, end) of the present run, and notes it. */
static void run_chunk(struct pf_pool *p, int64_t begin, int64_t end, int thread)
{
    struct share *own = &p->shares[thread];
    if (!p->spans) {
        p->fn(p->ctx, begin, end, thread);
        return;
    }
    uint64_t begin_ns = pf_now_ns();
    p->fn(p->ctx, begin, end, thread);
    if (!own->span.name || own->span_run != p->n_runs) {
        flush_span(own);
        own->spans = p->spans;
        own->span = pf_spans_at(p->spans);
        own->span.track = PF_TRACK_CPU + thread;
        own->span.begin_ns = begin_ns;
        own->span_run = p->n_runs;
    }
    own->span.end_ns = pf_now_ns();
}

/* Takes and runs one chunk; false when there is none. */
static bool run_one(struct pf_pool *p, int thread)
{
    uint32_t chunk;
    if (!take(&p->shares[thread], true, &chunk) && !take(fullest(p), false, &chunk))
        return false;
    int64_t begin = (int64_t)chunk * p->grain;
    run_chunk(p, begin, begin + p->grain < p->n ? begin + p->grain : p->n, thread);
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
        int spins = 0, patience = atomic_load_explicit(&p->patience, memory_order_relaxed);
        while (!run_one(p, w->index)) {
            if (atomic_load_explicit(&p->closing, memory_order_relaxed))
                return NULL;
            if (++spins > patience)
                break;
            _mm_pause();
        }
        if (spins <= patience)
            continue;
        flush_span(&p->shares[w->index]);
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
    p->fn = fn;
    p->ctx = ctx;
    p->n = n;
    p->grain = grain;
    p->n_runs++;
    if (p->n_threads == 1 || n <= grain) {
        run_chunk(p, 0, n, 0);
        return;
    }
    uint32_t n_chunks = (uint32_t)((n + grain - 1) / grain);
    atomic_store_explicit(&p->done, 0, memory_order_relaxed);
    for (uint32_t i = 0, t = (uint32_t)p->n_threads; i < t; i++) {
        uint64_t first = (uint64_t)n_chunks * i / t, last = (uint64_t)n_chunks * (i + 1) / t;
        atomic_store_explicit(&p->shares[i].word, last << 32 | first, memory_order_release);
    }
    ring(p);
    while (run_one(p, 0))
        ;
    while (atomic_load_explicit(&p->done, memory_order_acquire) < n_chunks)
        _mm_pause();
}

void pf_pool_watch(pf_pool *p, pf_spans *spans)
{
    p->spans = spans;
}

pf_status pf_pool_open(pf_pool **out, int n_threads)
{
    *out = NULL;
    if (n_threads < 1 || n_threads > PF_MAX_THREADS)
        PF_FAIL(PF_EINVAL, "n_threads is %d; 1 to %d are possible", n_threads, PF_MAX_THREADS);
    pf_pool *p = pf_alloc(PF_MEM_BASE, sizeof *p + (size_t)n_threads * sizeof p->workers[0]);
    struct share *shares = pf_alloc_array(PF_MEM_BASE, (size_t)n_threads, sizeof *shares);
    if (!p || !shares) {
        pf_free(p);
        pf_free(shares);
        PF_FAIL(PF_ENOMEM, "no memory for a pool of %d threads", n_threads);
    }
    p->shares = shares;
    p->n_threads = n_threads;
    p->patience = SPINS_BEFORE_SLEEP;
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
    pf_free(p->shares);
    pf_free(p);
    *pp = NULL;
}

void pf_pool_alert(pf_pool *p, bool on)
{
    atomic_store_explicit(&p->patience, on ? SPINS_WHEN_ALERT : SPINS_BEFORE_SLEEP, memory_order_relaxed);
}

int pf_pool_n_threads(const pf_pool *p)
{
    return p->n_threads;
}
