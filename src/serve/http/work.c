/* See work.h. */
#include "serve/http/work.h"

#include <pthread.h>
#include <string.h>

#include "program/io/buf.h"

enum { N_WORKERS = 2, MOST_WAITING = 1024, STACK_BYTES = 4 << 20 };

static struct {
    pthread_t       threads[N_WORKERS];
    pthread_mutex_t lock;
    pthread_cond_t  more;
    struct { void (*fn)(void *ctx); void *ctx; } waiting[MOST_WAITING];      /* a ring */
    unsigned        first, n;
    bool            ending;
} work = { .lock = PTHREAD_MUTEX_INITIALIZER, .more = PTHREAD_COND_INITIALIZER };

static void *run(void *ctx)
{
    (void)ctx;
    pthread_mutex_lock(&work.lock);
    for (;;) {
        while (work.n == 0 && !work.ending)
            pthread_cond_wait(&work.more, &work.lock);
        if (work.n == 0)
            break;
        unsigned i = work.first;
        work.first = (i + 1) % MOST_WAITING;
        work.n--;
        void (*fn)(void *) = work.waiting[i].fn;
        void *fn_ctx = work.waiting[i].ctx;
        pthread_mutex_unlock(&work.lock);
        fn(fn_ctx);
        pthread_mutex_lock(&work.lock);
    }
    pthread_mutex_unlock(&work.lock);
    return NULL;
}

void work_open(void)
{
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    for (int i = 0; i < N_WORKERS; i++) {
        int error = pthread_create(&work.threads[i], &attr, run, NULL);
        if (error)
            die(EXIT_FAILED, "cannot start a thread: %s", strerror(error));
    }
    pthread_attr_destroy(&attr);
}

bool work_add(void (*fn)(void *ctx), void *ctx)
{
    pthread_mutex_lock(&work.lock);
    bool room = work.n < MOST_WAITING && !work.ending;
    if (room) {
        unsigned i = (work.first + work.n++) % MOST_WAITING;
        work.waiting[i].fn = fn;
        work.waiting[i].ctx = ctx;
        pthread_cond_signal(&work.more);
    }
    pthread_mutex_unlock(&work.lock);
    return room;
}

void work_close(void)
{
    pthread_mutex_lock(&work.lock);
    work.ending = true;
    pthread_cond_broadcast(&work.more);
    pthread_mutex_unlock(&work.lock);
    for (int i = 0; i < N_WORKERS; i++)
        pthread_join(work.threads[i], NULL);
}
