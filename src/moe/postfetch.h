/* Post-fetch: parts of experts cross to the GPU while the CPU computes, and are looked at just before they are needed.
 *
 *     CPU_ONLY --start--> COPY_IN_FLIGHT --settle: arrived, or waited for--> GPU_READY
 *        ^                      `--settle: late and not worth waiting, or failed--> CPU_ONLY
 *        `-- no room on the scratchpad, too many under way, copy refused
 *
 * One layer at a time: begin drops what the last layer left; start follows routing, before the CPU computes; settle comes after
 * the CPU's gate and up, once for each transfer. Transfers lie one behind the other on the scratchpad (experts need not be of one
 * size), each with its own ticket. A transfer that is given up goes on on the bus, to memory that the next layer's copies are
 * queued behind. Nothing here is speculative: only what the router has picked is ever sent.
 *
 * The GPU having failed for good is not decided here: a copy that cannot be begun makes its expert the CPU's, no more. */
#ifndef PF_POSTFETCH_H
#define PF_POSTFETCH_H

#include "kernels/share.h"
#include "moe/solver.h"

enum { PF_MAX_TRANSFERS = 16 };          /* of the tickets; background copies and prompts have the others */

struct pf_transfer {
    int       expert;
    bool      whole;                     /* gate, up and down; else down alone */
    enum { PF_CPU_ONLY, PF_COPY_IN_FLIGHT, PF_GPU_READY } state;
    const void *gate, *up, *down;        /* on the scratchpad */
    uint64_t  bytes, begun_ns, expected_ns;          /* when it began; when it should be over */
};

struct pf_postfetch {
    pf_backend *device;
    struct pf_postfetch_opts opts;
    char    *scratchpad;
    uint64_t scratchpad_bytes, used;
    struct pf_transfer transfers[PF_MAX_TRANSFERS];
    int      n;
    struct pf_prices *prices;            /* corrected by what copies take */
    pf_spans *spans;                     /* where they are noted; NULL: nowhere */
    uint64_t  over_ns;                   /* of pf_spans_add_queued */
    int       layer;

    uint64_t n_transfers, transfer_bytes, transfer_ns, hidden_ns, n_fallbacks;
};

/* Host addresses and sizes of an expert's parts. */
struct pf_expert_parts {
    const uint8_t *at[3];                /* gate, up, down */
    uint64_t       bytes[3];
};

/* What an expert of these sizes takes on the device. */
uint64_t pf_expert_room(const uint64_t bytes[3]);

void pf_postfetch_begin(struct pf_postfetch *p, int layer);

/* NULL: the expert stays with the CPU. */
struct pf_transfer *pf_postfetch_start(struct pf_postfetch *p, int expert, bool whole, const struct pf_expert_parts *parts);

/* Makes t GPU_READY or CPU_ONLY. cpu_ns: what the CPU would need for the work instead. */
void pf_postfetch_settle(struct pf_postfetch *p, struct pf_transfer *t, double cpu_ns);

#endif
