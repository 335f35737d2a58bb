/* The pool: every element of a job is done once, whatever the threads, sizes and chunks; chunks of a second job may
 * wait for those of the first; the caller may do something else between begin and end. */
#include <stdatomic.h>
#include <string.h>

#include "base/pf_pool.h"
#include "check.h"
#include "pfmoe.h"

enum { MOST = 700, MOST_THREADS = 9, ROUNDS = 300, GROUPS = 5 };

struct work {
    _Atomic int times[PF_POOL_JOBS][MOST];
    _Atomic int busy[MOST_THREADS];          /* whether a thread's number is in use */
    _Atomic int left[GROUPS];                /* elements of the first job that are not done, by group */
    int64_t     n[PF_POOL_JOBS];
    _Atomic int twice;
    int         scratch[MOST_THREADS];
};

static int group_of(const struct work *w, int job, int64_t i)
{
    return (int)(i * GROUPS / w->n[job]);
}

static void enter(struct work *w, int thread)
{
    w->twice += atomic_exchange(&w->busy[thread], 1);
    w->scratch[thread]++;                    /* for the thread sanitizer */
}

static void leave(struct work *w, int thread)
{
    atomic_store(&w->busy[thread], 0);
}

static void first(void *ctx, int64_t begin, int64_t end, int thread)
{
    struct work *w = ctx;
    enter(w, thread);
    for (int64_t i = begin; i < end; i++) {
        atomic_fetch_add(&w->times[0][i], 1);
        atomic_fetch_sub_explicit(&w->left[group_of(w, 0, i)], 1, memory_order_release);
    }
    leave(w, thread);
}

static void second(void *ctx, int64_t begin, int64_t end, int thread)
{
    struct work *w = ctx;
    enter(w, thread);
    for (int64_t i = begin; i < end; i++) {
        unsigned turns = 0;
        while (atomic_load_explicit(&w->left[group_of(w, 1, i)], memory_order_acquire) > 0)
            pf_pool_relax(&turns);
        atomic_fetch_add(&w->times[1][i], 1);
    }
    leave(w, thread);
}

static void prepare(struct work *w, int64_t n_first, int64_t n_second)
{
    memset(w, 0, sizeof *w);
    w->n[0] = n_first;
    w->n[1] = n_second;
    for (int64_t i = 0; i < n_first; i++)
        w->left[group_of(w, 0, i)]++;
}

static void check(const struct work *w, const char *what, int n_threads)
{
    int bad = 0;
    for (int j = 0; j < PF_POOL_JOBS; j++)
        for (int64_t i = 0; i < MOST; i++)
            bad += w->times[j][i] != (i < w->n[j]);
    CHECK(bad == 0, "%s, %d threads, %d and %d: %d elements were not done once", what, n_threads, (int)w->n[0],
          (int)w->n[1], bad);
    CHECK(w->twice == 0, "%s: a thread's number was given twice", what);
}

/* Each chunk but the last of a thread's share is followed by one of the same thread. */
static void check_shares(const pf_pool *p, int64_t n, int n_threads)
{
    int64_t followed = 0, n_shares = 0;
    for (int t = 0; t < n_threads; t++) {
        n_shares += n * (t + 1) / n_threads > n * t / n_threads;
        for (int64_t i = 0; i < n; i++)
            followed += pf_pool_goes_on(p, n, t, i);
    }
    CHECK(followed == n - n_shares, "%d chunks, %d threads: %d are followed by one of their thread", (int)n, n_threads,
          (int)followed);
}

static void test_threads(int n_threads)
{
    static struct work w;
    uint32_t seed = 1;
    pf_pool *p;
    CHECK(pf_pool_open(&p, n_threads) == PF_OK, "%s", pf_last_error());
    for (int round = 0; p && round < ROUNDS; round++) {
        seed = seed * 1664525u + 1013904223u;
        int64_t n = seed >> 8 & 511, m = seed >> 17 & 511, grain = 1 + (seed >> 26 & 7);
        prepare(&w, n, 0);
        pf_pool_run(p, first, &w, n, grain);
        check(&w, "one job", n_threads);
        prepare(&w, n, m);
        const struct pf_job jobs[] = { { first, n, grain }, { second, m, 1 } };
        pf_pool_begin(p, &w, jobs, 2);
        if (round % 3 == 0)
            for (unsigned turns = 0; turns < 500;)
                pf_pool_relax(&turns);
        pf_pool_end(p);
        check(&w, "two jobs", n_threads);
        check_shares(p, n, n_threads);
    }
    pf_pool_close(&p);
}

int main(void)
{
    for (int n = 1; n <= MOST_THREADS; n++)
        test_threads(n);
    return check_status();
}
