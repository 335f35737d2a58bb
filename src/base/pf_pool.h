/* A pool of worker threads for fork-join work: the caller cuts a range into chunks, everybody takes the next chunk
 * until none is left, the caller included.
 *
 * There is one run at a time, begun and ended by one thread at a time (the model's step lock sees to that). A job
 * must not allocate, lock, log or fail; it leaves its results where the caller told it. Which thread runs a chunk is
 * chance, so a chunk's result must not depend on it; `thread` only selects scratch memory. */
#ifndef PF_POOL_H
#define PF_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/pf_spans.h"
#include "base/pf_status.h"
#include "pfmoe.h"

typedef struct pf_pool pf_pool;

enum { PF_POOL_JOBS = 2 };

/* Works on [begin, end) of the range. 0 <= thread < n_threads, different for jobs running at the same time. */
typedef void pf_job_fn(void *ctx, int64_t begin, int64_t end, int thread);

/* Work comes in bursts with gaps of a device's step: workers wait awake for longer than they would by themselves. */
void pf_pool_alert(pf_pool *p, bool on);

/* n_threads counts the caller: 1 makes no thread at all. */
pf_status pf_pool_open(pf_pool **out, int n_threads);
void      pf_pool_close(pf_pool **p);                /* NULL-safe; clears *p */
int       pf_pool_n_threads(const pf_pool *p);

/* From the next run on every thread's share of a run is noted in spans; NULL: no longer. */
void pf_pool_watch(pf_pool *p, pf_spans *spans);

/* Calls fn for [0, n) in chunks of grain (the last may be short) and returns when all are done. */
void pf_pool_run(pf_pool *p, pf_job_fn *fn, void *ctx, int64_t n, int64_t grain);

/* The first chunk of a thread's share of a run's or job's n. The share ends where the next thread's begins. */
int64_t pf_pool_first(const pf_pool *p, int64_t n, int thread);

/* Whether a thread that is at chunk i of a run's or job's n has i + 1 in its own share, so that it goes on there unless
 * another one is ahead of it. */
bool pf_pool_goes_on(const pf_pool *p, int64_t n, int thread, int64_t i);

struct pf_job {
    pf_job_fn *fn;
    int64_t    n, grain;
};

/* pf_pool_run in two calls: the pool's other threads begin at once, and between begin and end the caller may do
 * something else, though not with this pool; chunks may wait for that, looping in pf_pool_relax. A second job is begun
 * when all chunks of the first have been taken, not when they are done: a chunk of it may wait for what chunks of the
 * first do, too. */
void pf_pool_begin(pf_pool *p, void *ctx, const struct pf_job *jobs, int n_jobs);
void pf_pool_end(pf_pool *p);
void pf_pool_relax(unsigned *turns);                 /* *turns is 0 at first */

#endif
