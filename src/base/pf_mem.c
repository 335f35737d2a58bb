/* Counted allocations. Each heap block has a 64-byte header in front of it:
 *
 *     | bytes, tag, padding (64) | the caller's bytes, aligned to 64 ... |
 *
 * so that freeing knows what to give back and vectors load aligned. See pf_mem.h for the rules. */
#define _GNU_SOURCE
#include "base/pf_mem.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { ALIGN = 64 };
struct header {
    size_t bytes;
    enum pf_mem_tag tag;
};
_Static_assert(sizeof(struct header) <= ALIGN, "the header fits in front of an aligned block");

static _Atomic uint64_t n_calls, n_live, bytes_live[PF_MEM_N_TAGS], page_bytes_live;
static _Atomic uint64_t fail_countdown;      /* 0: off; 1: the next allocation fails */

static bool must_fail(void)
{
    uint64_t left = atomic_load(&fail_countdown);
    while (left > 0)
        if (atomic_compare_exchange_weak(&fail_countdown, &left, left - 1))
            return left == 1;
    return false;
}

static struct header *header_of(void *p)
{
    return (struct header *)((char *)p - ALIGN);
}

static void *block_new(enum pf_mem_tag tag, size_t bytes)
{
    if (must_fail() || bytes > SIZE_MAX - 2 * ALIGN)
        return NULL;
    size_t total = (bytes + 2 * ALIGN - 1) / ALIGN * ALIGN;
    struct header *h = aligned_alloc(ALIGN, total);
    if (!h)
        return NULL;
    *h = (struct header){ .bytes = bytes, .tag = tag };
    atomic_fetch_add(&n_calls, 1);
    atomic_fetch_add(&n_live, 1);
    atomic_fetch_add(&bytes_live[tag], bytes);
    return (char *)h + ALIGN;
}

void *pf_alloc(enum pf_mem_tag tag, size_t bytes)
{
    void *p = block_new(tag, bytes);
    if (p)
        memset(p, 0, bytes);
    return p;
}

void *pf_realloc(enum pf_mem_tag tag, void *p, size_t bytes)
{
    void *q = block_new(tag, bytes);
    if (q && p) {
        size_t old = header_of(p)->bytes;
        memcpy(q, p, old < bytes ? old : bytes);
        pf_free(p);
    }
    return q;
}

char *pf_strndup(enum pf_mem_tag tag, const char *s, size_t n)
{
    if (n == SIZE_MAX)
        return NULL;
    char *p = block_new(tag, n + 1);
    if (p) {
        memcpy(p, s, n);
        p[n] = 0;
    }
    return p;
}

void *pf_alloc_array(enum pf_mem_tag tag, size_t n, size_t size)
{
    size_t bytes;
    return __builtin_mul_overflow(n, size, &bytes) ? NULL : pf_alloc(tag, bytes);
}

void pf_free(void *p)
{
    if (!p)
        return;
    struct header *h = header_of(p);
    atomic_fetch_sub(&bytes_live[h->tag], h->bytes);
    atomic_fetch_sub(&n_live, 1);
    free(h);
}

void *pf_pages_alloc(size_t bytes)
{
    if (must_fail())
        return NULL;
    void *p = mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    madvise(p, bytes, MADV_HUGEPAGE);        /* advice: a kernel without huge pages refuses, and that is fine */
    atomic_fetch_add(&n_calls, 1);
    atomic_fetch_add(&n_live, 1);
    atomic_fetch_add(&page_bytes_live, bytes);
    return p;
}

void pf_pages_free(void *p, size_t bytes)
{
    if (!p)
        return;
    munmap(p, bytes ? bytes : 1);
    atomic_fetch_sub(&page_bytes_live, bytes);
    atomic_fetch_sub(&n_live, 1);
}

void pf_mem_stats_get(struct pf_mem_stats *out)
{
    out->n_calls = n_calls;
    out->n_live = n_live;
    for (int i = 0; i < PF_MEM_N_TAGS; i++)
        out->bytes_live[i] = bytes_live[i];
    out->page_bytes_live = page_bytes_live;
}

void pf_mem_fail_nth(uint64_t n)
{
    atomic_store(&fail_countdown, n);
}
