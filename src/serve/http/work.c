/* See work.h. */
#include "serve/http/work.h"

#include <pthread.h>
#include <string.h>
#include <sys/resource.h>

#include "program/io/buf.h"

enum { N_SHORT = 2, N_WORKERS = N_SHORT + 1, MOST_WAITING = 1024, STACK_BYTES = 4 << 20, NICE = 5 };

struct queue {
    struct { void (*fn)(void *ctx); void *ctx; } waiting[MOST_WAITING];      /* a ring */
    unsigned first, n;
};

static struct {
    pthread_t       threads[N_WORKERS];          /* the last one does long work */
    pthread_mutex_t lock;
    pthread_cond_t  more;
    struct queue    queues[2];                   /* of each kind */
    bool            ending;
} work = { .lock = PTHREAD_MUTEX_INITIALIZER, .more = PTHREAD_COND_INITIALIZER };

static void *run(void *ctx)
{
    struct queue *q = ctx;
    if (q == &work.queues[WORK_LONG])
        setpriority(PRIO_PROCESS, 0, NICE);      /* of this thread alone; refused, it works as the others do */
    pthread_mutex_lock(&work.lock);
    for (;;) {
        while (q->n == 0 && !work.ending)
            pthread_cond_wait(&work.more, &work.lock);
        if (q->n == 0)
            break;
        unsigned i = q->first;
        q->first = (i + 1) % MOST_WAITING;
        q->n--;
        void (*fn)(void *) = q->waiting[i].fn;
        void *fn_ctx = q->waiting[i].ctx;
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
        struct queue *q = &work.queues[i < N_SHORT ? WORK_SHORT : WORK_LONG];
        int error = pthread_create(&work.threads[i], &attr, run, q);
        if (error)
            die(EXIT_FAILED, "cannot start a thread: %s", strerror(error));
    }
    pthread_attr_destroy(&attr);
}

bool work_add(enum work_kind kind, void (*fn)(void *ctx), void *ctx)
{
    struct queue *q = &work.queues[kind];
    pthread_mutex_lock(&work.lock);
    bool room = q->n < MOST_WAITING && !work.ending;
    if (room) {
        unsigned i = (q->first + q->n++) % MOST_WAITING;
        q->waiting[i].fn = fn;
        q->waiting[i].ctx = ctx;
        pthread_cond_broadcast(&work.more);      /* who waits is of either kind */
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
