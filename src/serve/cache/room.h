/* Memory for what is saved, which may be gigabytes.
 *
 * A system clears a page when it is first touched. On an H200's host one thread that copies fills 2.8 GB/s of new
 * memory so, less than keys and values come from the GPU with, and four threads that only touch it get 11 GB/s. So
 * threads of a room's own touch its memory a window ahead of who writes it:
 *
 *     window     |  written   |  ready, being written  |  being touched  |  not touched yet
 *
 * A room is one thread's at a time; what its threads touch is nobody else's meanwhile. */
#ifndef PF_SERVE_ROOM_H
#define PF_SERVE_ROOM_H

#include <pthread.h>
#include <stdint.h>

#include "program/io/buf.h"

enum { ROOM_THREADS = 4 };

struct room_piece {
    char  *p;
    size_t n;
};

struct room {
    struct buf *b;
    size_t      ready, touched;      /* ends of windows: of the last that is whole, of the one that is being touched */
    pthread_t   threads[ROOM_THREADS];
    struct room_piece pieces[ROOM_THREADS];
    int         n_threads;
};

/* Reserves so many bytes behind what b has. Until the room is closed, b only grows. */
void room_open(struct room *r, struct buf *b, uint64_t bytes);
/* Whether n more bytes can be added to b; else room_await is called first, which may take some milliseconds. */
bool room_is_ready(const struct room *r, size_t n);
void room_await(struct room *r, size_t n);
void room_close(struct room *r);

#endif
