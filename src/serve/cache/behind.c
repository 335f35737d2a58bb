/* See behind.h. `job` is guarded by the lock; while its path is there, its bytes are the thread's. */
#define _GNU_SOURCE
#include "serve/cache/behind.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MOMENT_NS = 20000000, MOST_TRIES = 16 };

struct behind {
    pthread_t       thread;
    pthread_mutex_t lock;
    pthread_cond_t  changed;
    struct { char *path; struct buf data; } job;     /* path NULL: nothing is to be written */
    bool            failed;          /* the last one */
    bool            ending;
};

/* ---- The thread -------------------------------------------------------------------------------------------------- */

static bool write_all(int fd, const char *p, size_t n)
{
    while (n > 0) {
        ssize_t done = write(fd, p, n);
        if (done < 0 && errno != EINTR)
            return false;
        p += done > 0 ? done : 0;
        n -= done > 0 ? (size_t)done : 0;
    }
    return true;
}

static bool is_at(int fd, const char *path)
{
    struct stat is, named;
    return fstat(fd, &is) == 0 && lstat(path, &named) == 0 && is.st_dev == named.st_dev && is.st_ino == named.st_ino;
}

/* A locked file at the path, empty. Who had the lock before may have renamed or removed the file by then. Where there
 * are no locks nobody else has one, either, and nothing is removed. */
static int open_beside(const char *path)
{
    for (int i = 0; i < MOST_TRIES; i++) {
        int fd = open(path, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (fd < 0)
            return -1;
        (void)flock(fd, LOCK_EX);
        if (is_at(fd, path) && ftruncate(fd, 0) == 0)
            return fd;
        close(fd);
    }
    errno = EBUSY;
    return -1;
}

static bool write_file(const char *path, const struct buf *b)
{
    struct buf beside = { 0 };
    buf_printf(&beside, "%s" BEHIND_BESIDE, path);
    int fd = open_beside(beside.p);
    bool ok = fd >= 0 && write_all(fd, b->p, b->n) && fdatasync(fd) == 0 && rename(beside.p, path) == 0;
    if (!ok)
        complain("cannot write %s: %s", path, strerror(errno));
    if (!ok && fd >= 0)
        unlink(beside.p);
    if (fd >= 0)
        close(fd);
    buf_free(&beside);
    return ok;
}

static void *run(void *ctx)
{
    struct behind *w = ctx;
    pthread_mutex_lock(&w->lock);
    while (w->job.path || !w->ending) {
        if (!w->job.path) {
            pthread_cond_wait(&w->changed, &w->lock);
            continue;
        }
        pthread_mutex_unlock(&w->lock);
        bool ok = write_file(w->job.path, &w->job.data);
        buf_free(&w->job.data);
        pthread_mutex_lock(&w->lock);
        w->failed = !ok;
        free(w->job.path);
        w->job.path = NULL;
        pthread_cond_broadcast(&w->changed);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

/* ---- The others -------------------------------------------------------------------------------------------------- */

bool behind_is_busy(struct behind *w)
{
    pthread_mutex_lock(&w->lock);
    bool busy = w->job.path != NULL;
    pthread_mutex_unlock(&w->lock);
    return busy;
}

static bool is_written(const struct behind *w, const char *path)
{
    return w->job.path && (!path || strcmp(w->job.path, path) == 0);
}

bool behind_wait(struct behind *w, const char *path)
{
    struct timespec end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_nsec += MOMENT_NS;
    end.tv_sec += end.tv_nsec / 1000000000;
    end.tv_nsec %= 1000000000;
    pthread_mutex_lock(&w->lock);
    for (int error = 0; is_written(w, path) && !error;)
        error = pthread_cond_timedwait(&w->changed, &w->lock, &end);
    bool is = is_written(w, path);
    pthread_mutex_unlock(&w->lock);
    return !is;
}

bool behind_failed(struct behind *w)
{
    pthread_mutex_lock(&w->lock);
    bool failed = w->failed;
    pthread_mutex_unlock(&w->lock);
    return failed;
}

void behind_write(struct behind *w, const char *path, struct buf *data)
{
    pthread_mutex_lock(&w->lock);
    w->job.path = xstrdup(path);
    w->job.data = *data;
    w->failed = false;
    *data = (struct buf){ 0 };
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

void behind_remove_left(const char *beside)
{
    int fd = open(beside, O_RDWR | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
    struct stat st;
    if (fd < 0)
        return;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && flock(fd, LOCK_EX | LOCK_NB) == 0 && is_at(fd, beside))
        unlink(beside);
    close(fd);
}

struct behind *behind_open(void)
{
    struct behind *w = xrealloc(NULL, 1, sizeof *w);
    *w = (struct behind){ .ending = false };
    pthread_mutex_init(&w->lock, NULL);
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&w->changed, &clock);
    pthread_condattr_destroy(&clock);
    int error = pthread_create(&w->thread, NULL, run, w);
    if (error)
        die(EXIT_FAILED, "cannot start a thread: %s", strerror(error));
    return w;
}

void behind_close(struct behind *w)
{
    pthread_mutex_lock(&w->lock);
    w->ending = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->changed);
    free(w);
}
