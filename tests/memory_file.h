/* A file in memory, for saving sessions and loading them: { 0 } is an empty one; the test frees its data. A write
 * beyond the limit fails, unless that is 0. */
#ifndef TEST_MEMORY_FILE_H
#define TEST_MEMORY_FILE_H

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct file {
    char  *data;
    size_t n, at, room, limit;
};

static bool write_file(void *ctx, const void *data, size_t n)
{
    struct file *f = ctx;
    if (f->limit && f->n + n > f->limit)
        return false;
    if (f->n + n > f->room) {
        f->room = 2 * (f->n + n);
        f->data = realloc(f->data, f->room);
    }
    memcpy(f->data + f->n, data, n);
    f->n += n;
    return true;
}

static bool read_file(void *ctx, void *data, size_t n)
{
    struct file *f = ctx;
    if (f->at + n > f->n)
        return false;
    memcpy(data, f->data + f->at, n);
    f->at += n;
    return true;
}

#endif
