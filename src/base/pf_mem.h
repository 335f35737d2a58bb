/* Memory: the one door to the heap and to anonymous mappings.
 *
 * Small, cold allocations carry a tag and are counted by tag, so that a test can assert that decoding allocates
 * nothing and that closing gives everything back. Large buffers (KV, scratch) come as pages that cost nothing until
 * they are touched. A hook lets a test fail the N-th allocation. Every function is thread-safe.
 *
 * All sizes are bytes. pf_alloc of 0 bytes gives a valid pointer. Nothing here aborts: NULL means out of memory,
 * and the caller turns it into PF_FAIL(PF_ENOMEM, ...) naming what it wanted the memory for. */
#ifndef PF_MEM_H
#define PF_MEM_H

#include <stddef.h>
#include <stdint.h>

enum pf_mem_tag {
    PF_MEM_GGUF, PF_MEM_TEXT, PF_MEM_MODEL, PF_MEM_SESSION, PF_MEM_KERNELS, PF_MEM_TIERS, PF_MEM_BASE, PF_MEM_N_TAGS
};

void *pf_alloc(enum pf_mem_tag tag, size_t bytes);                     /* zeroed, aligned to 64 bytes */
void *pf_realloc(enum pf_mem_tag tag, void *p, size_t bytes);   /* grown part not zeroed; NULL leaves p alive */
char *pf_strndup(enum pf_mem_tag tag, const char *s, size_t n);        /* n bytes and a terminator */
void  pf_free(void *p);                                                /* NULL-safe */

/* n * size with the multiplication checked: NULL when it wraps. */
void *pf_alloc_array(enum pf_mem_tag tag, size_t n, size_t size);

/* Zero pages from the kernel, aligned to 4096, huge where the kernel likes; unmapped with pf_pages_free. */
void *pf_pages_alloc(size_t bytes);
void  pf_pages_free(void *p, size_t bytes);

struct pf_mem_stats {
    uint64_t n_calls;                        /* allocations ever made, pages included */
    uint64_t n_live;                         /* allocations not yet freed */
    uint64_t bytes_live[PF_MEM_N_TAGS];      /* heap bytes by tag */
    uint64_t page_bytes_live;
};
void pf_mem_stats_get(struct pf_mem_stats *out);

/* For tests: the n-th allocation from now on fails, counted from 1; 0 switches the hook off. */
void pf_mem_fail_nth(uint64_t n);

#endif
