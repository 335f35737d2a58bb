/* See work.h. */
#include "serve/http/work.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "program/io/buf.h"

enum { N_SHORT = 3, N_WORKERS = N_SHORT + 1, MOST_WAITING = 1024, STACK_BYTES = 4 << 20, NICE = 5 };

struct piece {
    struct queued turn;                          /* first */
    void (*fn)(void *ctx);
    void (*refused)(void *ctx);
    void  *ctx;
};

struct queue {
    struct turns turns;
    int          n_free;                         /* threads */
};

static struct {
    pthread_t       threads[N_WORKERS];          /* the last one does long work */
    pthread_mutex_t lock;
    pthread_cond_t  more;
    struct queue    queues[2];                   /* of each kind */
    bool            ending;
} work = { .lock = PTHREAD_MUTEX_INITIALIZER, .more = PTHREAD_COND_INITIALIZER,
           .queues = { [WORK_SHORT] = { .n_free = N_SHORT }, [WORK_LONG] = { .n_free = N_WORKERS - N_SHORT } } };

static bool has_none(const void *ctx, const struct party *client)
{
    (void)ctx;
    return client->n_held == 0;
}

/* With the lock: the piece that a free thread is to do; NULL: none. */
static struct piece *next_piece(const struct queue *q)
{
    bool is_kept = q == &work.queues[WORK_SHORT] && q->n_free == 1 && !work.ending;
    return (struct piece *)turns_next(&q->turns, is_kept ? has_none : NULL, NULL);
}

static void *run(void *ctx)
{
    struct queue *q = ctx;
    if (q == &work.queues[WORK_LONG])
        setpriority(PRIO_PROCESS, 0, NICE);      /* of this thread alone; refused, it works as the others do */
    pthread_mutex_lock(&work.lock);
    for (struct piece *p; (p = next_piece(q)) || !work.ending;) {
        if (!p) {
            pthread_cond_wait(&work.more, &work.lock);
            continue;
        }
        struct party *client = turns_give(&q->turns, &p->turn);
        q->n_free--;
        pthread_mutex_unlock(&work.lock);
        p->fn(p->ctx);
        free(p);
        pthread_mutex_lock(&work.lock);
        turns_take_back(&q->turns, client);
        q->n_free++;
        pthread_cond_broadcast(&work.more);      /* somebody may have been kept waiting */
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

void work_add(enum work_kind kind, const struct client *who, void (*fn)(void *ctx), void (*refused)(void *ctx),
              void *ctx)
{
    struct queue *q = &work.queues[kind];
    struct piece *p = xrealloc(NULL, 1, sizeof *p), *last = NULL;
    *p = (struct piece){ .fn = fn, .refused = refused, .ctx = ctx };
    pthread_mutex_lock(&work.lock);
    turns_wait(&q->turns, &p->turn, who, false);
    if (work.ending || q->turns.n > MOST_WAITING) {
        last = work.ending ? p : (struct piece *)turns_last(&q->turns);
        turns_leave(&q->turns, &last->turn);
    }
    pthread_cond_broadcast(&work.more);          /* who waits is of either kind */
    pthread_mutex_unlock(&work.lock);
    if (last)
        last->refused(last->ctx);
    free(last);
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
