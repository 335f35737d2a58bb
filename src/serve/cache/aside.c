/* See aside.h. Whoever finds `granted` is the one that works: the owner takes it back when the thread has paused, left
 * or ended. */
#define _GNU_SOURCE
#include "serve/cache/aside.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "program/io/buf.h"

enum { STACK_BYTES = 4 << 20 };

struct aside {
    pthread_t       thread;
    pthread_mutex_t lock;
    pthread_cond_t  changed;
    void          (*fn)(void *ctx);  /* NULL: nothing is under way */
    void           *ctx;
    bool            granted;         /* the slice is the thread's */
    bool            is_away;         /* the thread has left */
    bool            is_given_up;     /* what is under way; the owner's to change, as `until` is */
    bool            ending;
    struct timespec until;           /* the slice's end; the owner's to change while the thread does not work */
};

static bool is_past(const struct timespec *t)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec != t->tv_sec ? now.tv_sec > t->tv_sec : now.tv_nsec >= t->tv_nsec;
}

/* ---- The thread -------------------------------------------------------------------------------------------------- */

static bool works_here(const struct aside *a)
{
    return a && pthread_equal(pthread_self(), a->thread);
}

/* With the lock. */
static void wait_for_slice(struct aside *a)
{
    while (!a->granted)
        pthread_cond_wait(&a->changed, &a->lock);
}

bool aside_pause(struct aside *a)
{
    if (!works_here(a))
        return true;
    if (a->is_given_up || !is_past(&a->until))
        return !a->is_given_up;
    pthread_mutex_lock(&a->lock);
    a->granted = false;
    pthread_cond_broadcast(&a->changed);
    wait_for_slice(a);
    pthread_mutex_unlock(&a->lock);
    return !a->is_given_up;
}

void aside_leave(struct aside *a)
{
    if (!works_here(a))
        return;
    pthread_mutex_lock(&a->lock);
    a->is_away = true;
    if (is_past(&a->until))              /* else the owner looks when it is */
        pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
}

bool aside_return(struct aside *a)
{
    if (!works_here(a))
        return true;
    pthread_mutex_lock(&a->lock);
    a->is_away = false;
    wait_for_slice(a);
    pthread_mutex_unlock(&a->lock);
    return !a->is_given_up;
}

bool aside_goes_on(struct aside *a)
{
    if (!works_here(a))
        return true;
    pthread_mutex_lock(&a->lock);
    bool goes_on = !a->is_given_up;
    pthread_mutex_unlock(&a->lock);
    return goes_on;
}

static void *run(void *ctx)
{
    struct aside *a = ctx;
    pthread_mutex_lock(&a->lock);
    while (!a->ending) {
        if (!a->granted) {
            pthread_cond_wait(&a->changed, &a->lock);
            continue;
        }
        pthread_mutex_unlock(&a->lock);
        a->fn(a->ctx);
        pthread_mutex_lock(&a->lock);
        a->fn = NULL;
        a->granted = false;
        pthread_cond_broadcast(&a->changed);
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

/* ---- The owner --------------------------------------------------------------------------------------------------- */

void aside_begin(struct aside *a, void (*fn)(void *ctx), void *ctx)
{
    pthread_mutex_lock(&a->lock);
    a->fn = fn;
    a->ctx = ctx;
    a->is_given_up = false;
    pthread_mutex_unlock(&a->lock);
}

void aside_give_up(struct aside *a)
{
    pthread_mutex_lock(&a->lock);
    a->is_given_up = true;
    pthread_mutex_unlock(&a->lock);
}

bool aside_is_away(struct aside *a)
{
    pthread_mutex_lock(&a->lock);
    bool is = a->is_away;
    pthread_mutex_unlock(&a->lock);
    return is;
}

bool aside_go_on(struct aside *a, double seconds, bool alone)
{
    struct timespec end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    long long ns = end.tv_nsec + (long long)(seconds * 1e9);
    end.tv_sec += (time_t)(ns / 1000000000);
    end.tv_nsec = (long)(ns % 1000000000);
    pthread_mutex_lock(&a->lock);
    a->until = end;
    a->granted = a->fn && (alone || !a->is_away);
    pthread_cond_broadcast(&a->changed);
    while (a->granted && !(a->is_away && is_past(&end))) {
        if (is_past(&end))
            pthread_cond_wait(&a->changed, &a->lock);
        else
            pthread_cond_timedwait(&a->changed, &a->lock, &end);
    }
    a->granted = false;
    bool done = !a->fn;
    pthread_mutex_unlock(&a->lock);
    return done;
}

struct aside *aside_open(void)
{
    struct aside *a = xrealloc(NULL, 1, sizeof *a);
    *a = (struct aside){ .fn = NULL };
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->changed, &clock);
    pthread_condattr_destroy(&clock);
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    int error = pthread_create(&a->thread, &attr, run, a);
    pthread_attr_destroy(&attr);
    if (error)
        die(EXIT_FAILED, "cannot start a thread: %s", strerror(error));
    return a;
}

void aside_close(struct aside *a)
{
    pthread_mutex_lock(&a->lock);
    a->ending = true;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
    pthread_join(a->thread, NULL);
    pthread_mutex_destroy(&a->lock);
    pthread_cond_destroy(&a->changed);
    free(a);
}
