/* How fast this machine reads memory, measured the way the engine uses it: n threads, each going once over its share of
 * a buffer far larger than the caches. */
#ifndef MEMBW_H
#define MEMBW_H

#include <stdbool.h>
#include <stddef.h>

struct membw;
struct membw *membw_open(size_t most);      /* bytes; NULL: out of memory */
void membw_close(struct membw *b);
void *membw_memory(struct membw *b, size_t *bytes);         /* the memory that membw_read reads; owned by b */

/* The best of three passes with n_threads threads; GB/s (1e9 bytes a second). */
double membw_read(struct membw *b, int n_threads);

#endif
