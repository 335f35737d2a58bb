/* Reads through a pool of threads that call pread, where io_uring is refused (containers, old kernels).
 *
 *     queue -> [held]  commit -> [todo]  thread: pread -> [done]  take
 *
 * held belongs to the thread that queues; todo, done and the flags are under the lock. If the system gives no thread at
 * all, take reads by itself. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <unistd.h>

#include "base/pf_mem.h"
#include "base/pf_thread.h"
#include "tiers/io.h"

enum { MAX_THREADS = 16 };

struct list {
    struct pf_io_read *head, **tail;
};

struct preads {
    pf_io    io;
    struct pf_io_setup s;
    struct list held, todo, done;
    bool     closing;
    pthread_mutex_t lock;
    pthread_cond_t  has_todo, has_done;
    pthread_t threads[MAX_THREADS];
    int       n_threads;
};

static struct preads *preads_of(pf_io *io)
{
    return (struct preads *)io;
}

static void list_clear(struct list *l)
{
    l->head = NULL;
    l->tail = &l->head;
}

static void list_put(struct list *l, struct pf_io_read *r)
{
    r->next = NULL;
    *l->tail = r;
    l->tail = &r->next;
}

static struct pf_io_read *list_take(struct list *l)
{
    struct pf_io_read *r = l->head;
    if (r && !(l->head = r->next))
        l->tail = &l->head;
    return r;
}

static void carry_out(const struct preads *p, struct pf_io_read *r)
{
    ssize_t n = pread(p->s.files[r->file].fd, r->buf, r->bytes, (off_t)r->offset);
    r->result = n < 0 ? -errno : n;
}

static void *reader_main(void *arg)
{
    struct preads *p = arg;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        while (!p->todo.head && !p->closing)
            pthread_cond_wait(&p->has_todo, &p->lock);
        struct pf_io_read *r = list_take(&p->todo);
        if (!r)
            break;
        pthread_mutex_unlock(&p->lock);
        carry_out(p, r);
        pthread_mutex_lock(&p->lock);
        list_put(&p->done, r);
        pthread_cond_broadcast(&p->has_done);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static void preads_close(pf_io *io)
{
    struct preads *p = preads_of(io);
    pthread_mutex_lock(&p->lock);
    p->closing = true;
    pthread_cond_broadcast(&p->has_todo);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->n_threads; i++)
        pthread_join(p->threads[i], NULL);
    pthread_cond_destroy(&p->has_todo);
    pthread_cond_destroy(&p->has_done);
    pthread_mutex_destroy(&p->lock);
    pf_free(p);
}

static void preads_queue(pf_io *io, struct pf_io_read *r)
{
    list_put(&preads_of(io)->held, r);
}

static bool preads_commit(pf_io *io)
{
    struct preads *p = preads_of(io);
    pthread_mutex_lock(&p->lock);
    for (struct pf_io_read *r; (r = list_take(&p->held)) != NULL;) {
        list_put(&p->todo, r);
        pthread_cond_signal(&p->has_todo);
    }
    pthread_mutex_unlock(&p->lock);
    return true;
}

static void preads_wait(pf_io *io, uint64_t until)
{
    struct preads *p = preads_of(io);
    struct timespec t = { (time_t)(until / 1000000000u), (long)(until % 1000000000u) };
    pthread_mutex_lock(&p->lock);
    while (!p->done.head && !(p->n_threads == 0 && p->todo.head))
        if (pthread_cond_timedwait(&p->has_done, &p->lock, &t) != 0)
            break;
    pthread_mutex_unlock(&p->lock);
}

static int preads_take(pf_io *io, struct pf_io_read **done, int cap)
{
    struct preads *p = preads_of(io);
    int n = 0;
    pthread_mutex_lock(&p->lock);
    if (p->n_threads == 0 && p->todo.head) {
        struct pf_io_read *r = list_take(&p->todo);
        carry_out(p, r);
        list_put(&p->done, r);
    }
    while (n < cap && p->done.head)
        done[n++] = list_take(&p->done);
    pthread_mutex_unlock(&p->lock);
    return n;
}

static const struct pf_io_ops preads_ops = {
    .close = preads_close, .queue = preads_queue, .commit = preads_commit, .wait = preads_wait,
    .take = preads_take,
};

pf_status pf_io_pread_open(pf_io **out, const struct pf_io_setup *s, void *ctx)
{
    (void)ctx;
    *out = NULL;
    struct preads *p = pf_alloc(PF_MEM_TIERS, sizeof *p);
    if (!p)
        PF_FAIL(PF_ENOMEM, "no memory for a queue of reads");
    p->io = (pf_io){ &preads_ops, "pread" };
    p->s = *s;
    list_clear(&p->held);
    list_clear(&p->todo);
    list_clear(&p->done);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->has_todo, NULL);
    pthread_cond_init(&p->has_done, &attr);
    pthread_condattr_destroy(&attr);
    int n = s->depth < MAX_THREADS ? s->depth : MAX_THREADS;
    while (p->n_threads < n && pf_thread_start(&p->threads[p->n_threads], reader_main, p) == 0)
        p->n_threads++;
    *out = &p->io;
    return PF_OK;
}
