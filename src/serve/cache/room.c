/* See room.h. */
#define _GNU_SOURCE
#include "serve/cache/room.h"

#include <sys/mman.h>

/* What fits LEAST is as soon there without threads. Windows bound what is touched and then not needed. */
enum { PAGE = 4 << 10, LARGE_PAGE = 2 << 20, WINDOW = 64 << 20, LEAST = 16 << 20 };

/* All at once, and in large pages where there are such: to get memory 4 KB at a time, or to move what is there to
 * where there is more room, takes longer than all that is copied to it. */
void room_open(struct room *r, struct buf *b, uint64_t bytes)
{
    buf_reserve(b, bytes);
    uintptr_t begin = ((uintptr_t)b->p + LARGE_PAGE - 1) & -(uintptr_t)LARGE_PAGE, end = (uintptr_t)b->p + b->cap;
    if (begin < end)
        madvise((void *)begin, end - begin, MADV_HUGEPAGE);      /* advice: kernels without them refuse */
    *r = (struct room){ .b = b, .ready = b->n, .touched = b->n };
}

static void *touch(void *ctx)
{
    const struct room_piece *piece = ctx;
    for (size_t i = 0; i < piece->n; i += PAGE)
        *(volatile char *)(piece->p + i) = 0;
    return NULL;
}

/* Begins to touch the next window, if there is one. */
static void touch_next(struct room *r)
{
    enum { SHARE = ROOM_THREADS * LARGE_PAGE };
    size_t from = r->b->n > r->touched ? r->b->n : r->touched, left = r->b->cap - from,
           n = left < WINDOW ? left : WINDOW, each = (n + SHARE - 1) / SHARE * LARGE_PAGE;
    r->touched = from + n;
    for (size_t at = 0; at < n; at += each) {
        struct room_piece *piece = &r->pieces[r->n_threads];
        *piece = (struct room_piece){ r->b->p + from + at, n - at < each ? n - at : each };
        if (pthread_create(&r->threads[r->n_threads], NULL, touch, piece) == 0)
            r->n_threads++;                                      /* else it is touched when it is written */
    }
}

void room_close(struct room *r)
{
    while (r->n_threads > 0)
        pthread_join(r->threads[--r->n_threads], NULL);
    r->ready = r->touched;
}

/* Whether the buffer moves to where it has room for n more and the zero behind them. */
static bool moves(const struct room *r, size_t n)
{
    return n >= r->b->cap - r->b->n;
}

bool room_is_ready(const struct room *r, size_t n)
{
    bool rest = moves(r, n) || r->b->cap - r->b->n < LEAST;
    return r->b->n + n < r->ready || (rest && r->n_threads == 0);
}

void room_await(struct room *r, size_t n)
{
    room_close(r);
    while (!moves(r, n) && r->b->n + n >= r->ready) {
        touch_next(r);
        room_close(r);
    }
    if (!moves(r, n))
        touch_next(r);
}
