/* See placed.h. */
#include "kernels/placed.h"

#include <string.h>

#include "base/pf_mem.h"

/* The first range that begins past host. */
static size_t past(const struct pf_placed *p, const void *host)
{
    size_t low = 0, high = p->n;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (p->ranges[mid].host <= (const char *)host)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

void *pf_placed_find(const struct pf_placed *p, const void *host)
{
    size_t i = past(p, host);
    if (i == 0)
        return NULL;
    const struct pf_placed_range *r = &p->ranges[i - 1];
    size_t at = (size_t)((const char *)host - r->host);
    return at < r->bytes ? r->dev + at : NULL;
}

pf_status pf_placed_add(struct pf_placed *p, const void *host, size_t bytes, void *dev)
{
    if (p->n == p->cap) {
        size_t cap = p->cap ? 2 * p->cap : 256;
        struct pf_placed_range *grown = pf_realloc(PF_MEM_KERNELS, p->ranges, cap * sizeof *grown);
        if (!grown)
            PF_FAIL(PF_ENOMEM, "no memory for the list of weights on the device");
        p->ranges = grown;
        p->cap = cap;
    }
    size_t i = past(p, host);
    memmove(&p->ranges[i + 1], &p->ranges[i], (p->n - i) * sizeof *p->ranges);
    p->ranges[i] = (struct pf_placed_range){ .host = host, .bytes = bytes, .dev = dev };
    p->n++;
    return PF_OK;
}

void pf_placed_remove(struct pf_placed *p, const void *host)
{
    size_t i = past(p, host);
    if (i == 0 || p->ranges[i - 1].host != host)
        return;
    memmove(&p->ranges[i - 1], &p->ranges[i], (p->n - i) * sizeof *p->ranges);
    p->n--;
}

void pf_placed_free(struct pf_placed *p)
{
    pf_free(p->ranges);
    *p = (struct pf_placed){ NULL, 0, 0 };
}
