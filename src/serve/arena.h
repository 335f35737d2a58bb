/* Memory that lives as long as a request: taken in pieces, given back at once. One thread at a time. */
#ifndef PF_SERVE_ARENA_H
#define PF_SERVE_ARENA_H

#include <stddef.h>

struct arena {
    void **pieces;
    size_t n, cap;
};

/* n elements of `size` bytes, all zero. */
void *arena_take(struct arena *a, size_t n, size_t size);
/* A copy with a 0 byte at its end. */
char *arena_text(struct arena *a, const char *text, size_t n);
void  arena_free(struct arena *a);

#endif
