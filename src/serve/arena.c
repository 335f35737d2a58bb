/* See arena.h. */
#include "serve/arena.h"

#include <stdlib.h>
#include <string.h>

#include "program/io/buf.h"

void *arena_take(struct arena *a, size_t n, size_t size)
{
    if (a->n == a->cap) {
        a->cap = 2 * a->cap + 16;
        a->pieces = xrealloc(a->pieces, a->cap, sizeof *a->pieces);
    }
    void *p = xrealloc(NULL, n, size);
    memset(p, 0, (n ? n : 1) * size);
    return a->pieces[a->n++] = p;
}

char *arena_text(struct arena *a, const char *text, size_t n)
{
    char *copy = arena_take(a, n + 1, 1);
    if (n)
        memcpy(copy, text, n);
    return copy;
}

void arena_free(struct arena *a)
{
    while (a->n)
        free(a->pieces[--a->n]);
    free(a->pieces);
    *a = (struct arena){ 0 };
}
