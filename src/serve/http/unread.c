/* See unread.h. */
#include "serve/http/unread.h"

#include <pthread.h>
#include <string.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>

#include "program/io/buf.h"

struct unread_list {
    struct unread_limits limits;
    pthread_t       thread;
    pthread_mutex_t lock;            /* of all that follows, and of every struct unread */
    pthread_cond_t  more;
    struct unread  *first, *last;
    size_t          bytes;
    bool            closing;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- The list, with the lock ------------------------------------------------------------------------------------- */

static void append(struct unread_list *l, struct unread *u)
{
    u->next = NULL;
    u->before = l->last;
    *(l->last ? &l->last->next : &l->first) = u;
    l->last = u;
    pthread_cond_signal(&l->more);
}

static void take(struct unread_list *l, struct unread *u, size_t n)
{
    l->bytes -= n;
    u->bytes -= n;
    if (n == 0 || u->bytes > 0)
        return;
    *(u->before ? &u->before->next : &l->first) = u->next;
    *(u->next ? &u->next->before : &l->last) = u->before;
}

static void end(struct unread_list *l, struct unread *u)
{
    take(l, u, u->bytes);
    u->ended = true;
    shutdown(u->fd, SHUT_RDWR);
}

/* ---- The time ---------------------------------------------------------------------------------------------------- */

/* Ends who is late. */
static void *watch(void *ctx)
{
    struct unread_list *l = ctx;
    pthread_mutex_lock(&l->lock);
    while (!l->closing) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec++;
        if (l->first)
            pthread_cond_timedwait(&l->more, &l->lock, &until);
        else
            pthread_cond_wait(&l->more, &l->lock);
        double t = now();
        for (struct unread *u = l->first, *next; u; u = next) {
            next = u->next;
            if (u->until > 0 && u->until < t)
                end(l, u);
        }
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

/* ---- From outside ------------------------------------------------------------------------------------------------ */

bool unread_add(struct unread_list *l, struct unread *u, size_t n)
{
    pthread_mutex_lock(&l->lock);
    if (!u->ended && n > 0) {
        if (u->bytes == 0)
            append(l, u);
        if (u->bytes > 0 && u->bytes + n > l->limits.one_bytes)
            end(l, u);
    }
    if (!u->ended) {
        u->bytes += n;
        l->bytes += n;
    }
    while (l->bytes > l->limits.all_bytes && l->first != l->last)
        end(l, l->first);                /* who reads least, in all likelihood */
    bool fine = !u->ended;
    pthread_mutex_unlock(&l->lock);
    return fine;
}

void unread_take(struct unread_list *l, struct unread *u, size_t n)
{
    pthread_mutex_lock(&l->lock);
    if (!u->ended)
        take(l, u, n);
    pthread_mutex_unlock(&l->lock);
}

void unread_whole(struct unread_list *l, struct unread *u)
{
    pthread_mutex_lock(&l->lock);
    u->until = now() + l->limits.seconds + (double)u->bytes / l->limits.bytes_per_second;
    pthread_mutex_unlock(&l->lock);
}

void unread_forget(struct unread_list *l, struct unread *u)
{
    pthread_mutex_lock(&l->lock);
    take(l, u, u->bytes);
    u->ended = true;
    pthread_mutex_unlock(&l->lock);
}

struct unread_list *unread_open(const struct unread_limits *limits)
{
    struct unread_list *l = xrealloc(NULL, 1, sizeof *l);
    pthread_condattr_t attr;
    *l = (struct unread_list){ .limits = *limits };
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&l->more, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&l->lock, NULL);
    int error = pthread_create(&l->thread, NULL, watch, l);
    if (error)
        die(EXIT_FAILED, "cannot start a thread: %s", strerror(error));
    return l;
}

void unread_close(struct unread_list *l)
{
    if (!l)
        return;
    pthread_mutex_lock(&l->lock);
    l->closing = true;
    pthread_cond_signal(&l->more);
    pthread_mutex_unlock(&l->lock);
    pthread_join(l->thread, NULL);
    pthread_mutex_destroy(&l->lock);
    pthread_cond_destroy(&l->more);
    free(l);
}
