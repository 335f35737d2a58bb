/* Read bandwidth. Threads meet at a barrier and read their shares; the time from the first one's start to the last
 * one's end is what counts. Each takes its own times: a clock in another thread would start late where all cores are
 * reading. The memory is many times the last cache, which on servers holds hundreds of megabytes, and so much that a
 * thread that comes a little late does not count; but no more than the caller can spare. */
#define _GNU_SOURCE
#include "membw.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

struct membw {
    size_t    bytes;
    uint64_t *data;
};

struct reader {
    pthread_t          thread;
    pthread_barrier_t *barrier;
    const uint64_t    *data;
    size_t             n;
    uint64_t           sum;      /* keeps the reads alive */
    double             begin, end;
};

struct membw *membw_open(size_t most)
{
    const size_t LEAST = (size_t)512 << 20, CACHES = 8;
    struct membw *b = malloc(sizeof *b);
    long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    if (!b)
        return NULL;
    size_t bytes = cache > 0 ? CACHES * (size_t)cache : 0;
    bytes = bytes > LEAST ? bytes : LEAST;
    b->bytes = bytes = bytes < most ? bytes : most;
    b->data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (b->data == MAP_FAILED) {
        free(b);
        return NULL;
    }
    madvise(b->data, bytes, MADV_HUGEPAGE);
    memset(b->data, 1, bytes);           /* fresh pages would all be the kernel's one page of zeros */
    return b;
}

void membw_close(struct membw *b)
{
    if (!b)
        return;
    munmap(b->data, b->bytes);
    free(b);
}

void *membw_memory(struct membw *b, size_t *bytes)
{
    *bytes = b->bytes;
    return b->data;
}

/* Lines are asked for ahead, a page into the second cache and less into the first: what a core fetches by itself ends
 * with a page, and threads that read plainly may get three quarters of what memory gives. */
__attribute__((target_clones("default", "avx2", "avx512f")))
static uint64_t sum_of(const uint64_t *p, size_t n)
{
    enum { AT_ONCE = 32, LINE = 8, NEAR = 128, PAGE = 512 };      /* words */
    uint64_t s[AT_ONCE] = { 0 };
    for (size_t i = 0; i + AT_ONCE <= n; i += AT_ONCE) {
        for (int j = 0; j < AT_ONCE; j += LINE) {
            __builtin_prefetch(p + i + j + NEAR, 0, 3);
            __builtin_prefetch(p + i + j + PAGE, 0, 2);
        }
        for (int j = 0; j < AT_ONCE; j++)
            s[j] += p[i + (size_t)j];
    }
    uint64_t sum = 0;
    for (int j = 0; j < AT_ONCE; j++)
        sum += s[j];
    return sum;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void *read_share(void *arg)
{
    struct reader *r = arg;
    pthread_barrier_wait(r->barrier);
    r->begin = now();
    r->sum = sum_of(r->data, r->n);
    r->end = now();
    return NULL;
}

static double one_pass(struct membw *b, int n_threads)
{
    struct reader *readers = calloc((size_t)n_threads, sizeof *readers);
    pthread_barrier_t barrier;
    size_t share = b->bytes / sizeof *b->data / (size_t)n_threads;
    if (!readers)
        return 0;
    pthread_barrier_init(&barrier, NULL, (unsigned)n_threads);
    for (int i = 0; i < n_threads; i++) {
        readers[i] = (struct reader){ .barrier = &barrier, .data = b->data + share * (size_t)i, .n = share };
        if (i > 0 && pthread_create(&readers[i].thread, NULL, read_share, &readers[i]) != 0)
            abort();                     /* a benchmark without its threads has nothing to say */
    }
    read_share(&readers[0]);
    double begin = readers[0].begin, end = readers[0].end;
    for (int i = 1; i < n_threads; i++) {
        pthread_join(readers[i].thread, NULL);
        begin = readers[i].begin < begin ? readers[i].begin : begin;
        end = readers[i].end > end ? readers[i].end : end;
    }
    pthread_barrier_destroy(&barrier);
    free(readers);
    return (double)(share * sizeof *b->data * (size_t)n_threads) / (end - begin) / 1e9;
}

double membw_read(struct membw *b, int n_threads)
{
    enum { PASSES = 3 };                 /* in one pass the system may have put two threads on one core */
    double best = 0;
    for (int i = 0; i < PASSES; i++) {
        double rate = one_pass(b, n_threads);
        best = rate > best ? rate : best;
    }
    return best;
}
