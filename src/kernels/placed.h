/* Where weights of the host lie on a device: ranges of host addresses, sorted, never overlapping, each with its device
 * copy. Owned by a backend, used by its thread. */
#ifndef PF_PLACED_H
#define PF_PLACED_H

#include <stddef.h>

#include "base/pf_status.h"

struct pf_placed_range {
    const char *host;
    size_t      bytes;
    char       *dev;
};

struct pf_placed {
    struct pf_placed_range *ranges;
    size_t n, cap;
};

/* The copy of the byte at host, or NULL. */
void *pf_placed_find(const struct pf_placed *p, const void *host);

/* [host, host + bytes) now has a copy at dev; it must not have had one. */
pf_status pf_placed_add(struct pf_placed *p, const void *host, size_t bytes, void *dev);

/* Forgets the range that begins at host, if there is one. */
void pf_placed_remove(struct pf_placed *p, const void *host);

void pf_placed_free(struct pf_placed *p);

#endif
