/* Fork-join with a share of the chunks for every thread, and stealing.
 *
 *     thread 0            thread 1            thread 2
 *     [0 ..... 9]         [10 .... 19]        [20 .... 29]        chunks; each share is one atomic word:
 *      ^ next    ^ end                                                | end (32) | next (32) |
 *
 * A thread walks its own share upwards, so that it reads memory in order and what it fetches ahead is its own. It takes
 * a quarter of what is left at a time: few swaps, and towards the end single chunks, so that all threads end together.
 * When its share is empty it takes single chunks off the end of the fullest other share. Both moves are one
 * compare-and-swap on the share's word. A second job has words of its own, which a thread looks at when those of the
 * first are empty. Only after taking a chunk does a thread read the jobs' fields, and the run cannot end before that
 * chunk is counted in `done`, so the fields cannot change under it. Chunks take down to a microsecond, and a word that
 * all threads write to changes hands about ten times in one: so a thread counts the chunks that it has run of one run
 * together, when it finds no more. A worker that sleeps through a whole run harms nobody: its shares are stolen.
 *
 * Invariants
 *  1. jobs, ctx, n_chunks are written only by the caller of pf_pool_begin, while every share is empty and
 *     done == n_chunks.
 *  2. Shares are stored with release after them; a successful swap acquires them.
 *  3. done is raised with release after chunks' work; the caller acquires it before it returns.
 *  4. A worker looks at the shares once for each value of `bell`, read before, job after job until none has a chunk
 *     left or the bell rings; then it waits for another value, awake or asleep. The caller rings after storing the
 *     shares.
 *  5. Chunks of the first job wait for nobody, but for what the caller does before pf_pool_end, and the caller takes
 *     what is left of them before any of the second: so what a chunk waits for is done, or being run by somebody.
 *
 * With spans, each thread joins the chunks that it takes of one run to one span. It keeps that in its `span` until it
 * takes a chunk of another run or goes to sleep. A chunk's part is added before the chunk is counted in `done`, while
 * what pf_spans_at says cannot change.
 *
 * Between the fork-joins of one step the gap is microseconds, so workers spin for a while before they sleep. */
#define _GNU_SOURCE
#include "base/pf_pool.h"

#include <assert.h>
#include <immintrin.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/pf_fp.h"
#include "base/pf_mem.h"
#include "base/pf_thread.h"

enum { SPINS_BEFORE_SLEEP = 4000, SPINS_WHEN_ALERT = 40000 };     /* some 50 us; some 500 */
enum { SPINS_BEFORE_YIELD = 1000 };

struct worker {
    struct pf_pool *pool;
    pthread_t       thread;
    int             index;              /* 1 .. n_threads - 1; the caller is 0 */
};

struct share {
    _Alignas(64) _Atomic uint64_t left[PF_POOL_JOBS];
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

    _Alignas(64) struct pf_job jobs[PF_POOL_JOBS];
    void     *ctx;
    uint32_t  n_chunks;                 /* the sum over all jobs */
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

/* Takes some of the first chunks of a share, or its last one; how many: 0 when it is empty. */
static uint32_t take(_Atomic uint64_t *share, bool first, uint32_t *chunk)
{
    enum { PART = 4 };
    uint64_t word = atomic_load_explicit(share, memory_order_acquire), taken;
    uint32_t n;
    do {
        uint32_t left = left_in(word);
        if (left == 0)
            return 0;
        n = first && left > PART ? left / PART : 1;
        *chunk = first ? (uint32_t)word : (uint32_t)(word >> 32) - 1;
        taken = first ? word + n : word - ((uint64_t)1 << 32);
    } while (!atomic_compare_exchange_weak_explicit(share, &word, taken, memory_order_acquire, memory_order_acquire));
    return n;
}

/* NULL: all are empty. */
static _Atomic uint64_t *fullest(struct pf_pool *p, int job)
{
    _Atomic uint64_t *best = NULL;
    uint32_t most = 0;
    for (int i = 0; i < p->n_threads; i++) {
        uint32_t left = left_in(atomic_load_explicit(&p->shares[i].left[job], memory_order_relaxed));
        if (left > most) {
            most = left;
            best = &p->shares[i].left[job];
        }
    }
    return best;
}

/* Takes chunks of a job from wherever there are any; how many. */
static uint32_t take_any(struct pf_pool *p, int job, int thread, uint32_t *chunk)
{
    _Atomic uint64_t *other;
    uint32_t n = take(&p->shares[thread].left[job], true, chunk);
    while (n == 0 && (other = fullest(p, job)))
        n = take(other, false, chunk);
    return n;
}

static void flush_span(struct share *own)
{
    if (own->span.name)
        pf_spans_add(own->spans, &own->span);
    own->span.name = NULL;
}

/* Runs [begin, end) of a job, and notes it. */
static void run_range(struct pf_pool *p, const struct pf_job *job, int64_t begin, int64_t end, int thread)
{
    struct share *own = &p->shares[thread];
    if (!p->spans) {
        job->fn(p->ctx, begin, end, thread);
        return;
    }
    uint64_t begin_ns = pf_now_ns();
    job->fn(p->ctx, begin, end, thread);
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

/* Takes and runs some chunks of *first or a later job; how many, 0: there are none. *first becomes the job that they
 * were of: what has no chunks left gets none in this run, and to look at all shares once more would take their words
 * out of the caches of those who work on them. */
static uint32_t run_some(struct pf_pool *p, int thread, int *first)
{
    for (; *first < PF_POOL_JOBS; ++*first) {
        uint32_t chunk, n = take_any(p, *first, thread, &chunk);
        if (n == 0)
            continue;
        const struct pf_job *job = &p->jobs[*first];
        for (uint32_t i = chunk; i < chunk + n; i++) {
            int64_t begin = i * job->grain, end = begin + job->grain;
            run_range(p, job, begin, end < job->n ? end : job->n, thread);
        }
        return n;
    }
    return 0;
}

/* Runs what there is to run until the bell rings again, and counts it. */
static void run_all(struct pf_pool *p, int thread, uint32_t bell)
{
    uint32_t n, n_run = 0;
    int job = 0;
    do {
        n = run_some(p, thread, &job);
        n_run += n;
    } while (n > 0 && atomic_load_explicit(&p->bell, memory_order_acquire) == bell);
    if (n_run > 0)
        atomic_fetch_add_explicit(&p->done, n_run, memory_order_release);
}

/* Whether the bell rings again while one is awake. */
static bool stay_awake(const struct pf_pool *p, uint32_t bell)
{
    int patience = atomic_load_explicit(&p->patience, memory_order_relaxed);
    for (int spins = 0; spins < patience; spins++) {
        if (atomic_load_explicit(&p->bell, memory_order_acquire) != bell)
            return true;
        _mm_pause();
    }
    return false;
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct pf_pool *p = w->pool;
    pf_fp_begin();
    for (;;) {
        uint32_t bell = atomic_load(&p->bell);
        if (atomic_load_explicit(&p->closing, memory_order_relaxed))
            return NULL;
        run_all(p, w->index, bell);
        if (stay_awake(p, bell))
            continue;
        flush_span(&p->shares[w->index]);
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

void pf_pool_relax(unsigned *turns)
{
    if (++*turns < SPINS_BEFORE_YIELD)
        _mm_pause();
    else
        sched_yield();                  /* there are more threads than processors: let the others get on */
}

static uint32_t chunks_of(const struct pf_job *job)
{
    return job->n > 0 ? (uint32_t)((job->n + job->grain - 1) / job->grain) : 0;
}

int64_t pf_pool_first(const pf_pool *p, int64_t n, int thread)
{
    return n * thread / p->n_threads;
}

void pf_pool_begin(pf_pool *p, void *ctx, const struct pf_job *jobs, int n_jobs)
{
    assert(n_jobs <= PF_POOL_JOBS && atomic_load_explicit(&p->done, memory_order_relaxed) == p->n_chunks);
    p->ctx = ctx;
    p->n_runs++;
    p->n_chunks = 0;
    for (int j = 0; j < n_jobs; j++) {
        p->jobs[j] = jobs[j];
        p->n_chunks += chunks_of(&jobs[j]);
    }
    atomic_store_explicit(&p->done, 0, memory_order_relaxed);
    for (int i = 0; i < p->n_threads; i++)
        for (int j = 0; j < n_jobs; j++) {
            int64_t n = chunks_of(&jobs[j]);
            uint64_t first = (uint64_t)pf_pool_first(p, n, i), last = (uint64_t)pf_pool_first(p, n, i + 1);
            atomic_store_explicit(&p->shares[i].left[j], last << 32 | first, memory_order_release);
        }
    if (p->n_threads > 1 && p->n_chunks > 1)
        ring(p);
}

bool pf_pool_goes_on(const pf_pool *p, int64_t n, int thread, int64_t i)
{
    return i >= pf_pool_first(p, n, thread) && i + 1 < pf_pool_first(p, n, thread + 1);
}

void pf_pool_end(pf_pool *p)
{
    unsigned turns = 0;
    run_all(p, 0, atomic_load_explicit(&p->bell, memory_order_relaxed));
    while (atomic_load_explicit(&p->done, memory_order_acquire) < p->n_chunks)
        pf_pool_relax(&turns);
}

void pf_pool_run(pf_pool *p, pf_job_fn *fn, void *ctx, int64_t n, int64_t grain)
{
    const struct pf_job job = { fn, n, grain };
    if (n > 0 && (p->n_threads == 1 || n <= grain)) {
        p->ctx = ctx;
        p->n_runs++;
        run_range(p, &job, 0, n, 0);
    } else if (n > 0) {
        pf_pool_begin(p, ctx, &job, 1);
        pf_pool_end(p);
    }
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
        int err = pf_thread_start(&w->thread, worker_main, w);
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
