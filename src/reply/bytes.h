/* A growing run of bytes. Running out of memory is sticky: later calls do nothing, and the owner looks at `failed` once
 * a step instead of after each byte. All zero is empty. */
#ifndef PF_REPLY_BYTES_H
#define PF_REPLY_BYTES_H

#include <stdbool.h>
#include <string.h>

#include "base/pf_mem.h"

struct pf_run {
    char  *p;
    size_t n, cap;
    bool   failed;
};

static inline void pf_run_add(struct pf_run *b, const char *s, size_t n)
{
    if (b->failed || n == 0)
        return;
    if (n > b->cap - b->n) {
        size_t cap = 2 * b->cap + n + 64;
        char *grown = pf_realloc(PF_MEM_TEXT, b->p, cap);
        if (!grown) {
            b->failed = true;
            return;
        }
        b->p = grown;
        b->cap = cap;
    }
    memcpy(b->p + b->n, s, n);
    b->n += n;
}

static inline void pf_run_puts(struct pf_run *b, const char *s)
{
    pf_run_add(b, s, strlen(s));
}

/* Removes the first n bytes. */
static inline void pf_run_drop(struct pf_run *b, size_t n)
{
    if (n == 0)
        return;
    memmove(b->p, b->p + n, b->n - n);
    b->n -= n;
}

static inline void pf_run_free(struct pf_run *b)
{
    pf_free(b->p);
    *b = (struct pf_run){ 0 };
}

#endif
