/* Memory on machines with several nodes: the one door to libnuma. spread_none.c stands in where
 * pfmoe is built without it. */
#ifndef PF_SPREAD_H
#define PF_SPREAD_H

#include <stddef.h>

/* Pages of [p, p + bytes) that nobody has touched yet will lie in turn on all nodes that this process may run on:
 * threads on every node read all weights, so none should be nearer than the others. Does nothing on one node, or when
 * the system refuses. p is page aligned. */
void pf_numa_spread(void *p, size_t bytes);

#endif
