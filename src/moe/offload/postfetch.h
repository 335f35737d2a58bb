/* Post-fetch: parts of experts cross to the GPU while the CPU computes, and are looked at just before they are needed.
 *
 *     plan --> CPU_ONLY --start--> COPY_IN_FLIGHT --settle: arrived, or waited for--> GPU_READY
 *       `-- no room on    `-- copy    `--settle: late and not worth waiting, or failed--> CPU_ONLY
 *           the scratchpad,   refused
 *           too many
 *
 * One layer at a time: begin drops what the last layer left; plan follows routing and says at once what the CPU need
 * not do; start, which takes its time, may run beside the CPU's threads; settle comes after the CPU's gate and up, once
 * for each transfer; account, when nobody waits any more. Transfers lie one behind the other on the scratchpad (experts
 * need not be of one size), each with its own ticket. A transfer that is given up goes on on the bus, to memory that
 * the next layer's copies are queued behind. Nothing here is speculative: only what the router has picked is ever sent.
 *
 * The GPU having failed for good is not decided here: a copy that cannot be begun makes its
 * expert the CPU's, no more. */
#ifndef PF_POSTFETCH_H
#define PF_POSTFETCH_H

#include "backend/share.h"
#include "base/pf_count.h"
#include "moe/offload/solver.h"

enum { PF_MAX_TRANSFERS = 16 };          /* tickets 0 .. 15; prompts and background copies have the others */

struct pf_transfer {
    int       expert;
    bool      whole;                     /* gate, up and down; else down alone */
    enum { PF_CPU_ONLY, PF_COPY_IN_FLIGHT, PF_GPU_READY } state;
    const void *gate, *up, *down;        /* on the scratchpad */
    struct pf_piece pieces[3];
    int       n_pieces;
    uint64_t  bytes, begun_ns, expected_ns;          /* when it began (0: it did not); when it should be over */
    uint64_t  asked_ns, settled_ns;      /* when the first transfer of its start was looked at; when this one was */
};

struct pf_postfetch {
    pf_backend *device;
    struct pf_postfetch_opts opts;
    char    *scratchpad;
    uint64_t scratchpad_bytes, used;
    struct pf_transfer transfers[PF_MAX_TRANSFERS];
    int      n;
    uint64_t asked_ns;                   /* since the last start the first was looked at; 0: none was */
    struct pf_prices *prices;            /* corrected by what copies take */
    pf_spans *spans;                     /* where they are noted; NULL: nowhere */
    uint64_t  over_ns;                   /* see pf_spans_add_queued */
    int       layer;

    pf_counter n_transfers, transfer_bytes, transfer_ns, hidden_ns, n_fallbacks;     /* read by any thread */
};

/* Host addresses and sizes of an expert's parts. */
struct pf_expert_parts {
    const uint8_t *at[3];                /* gate, up, down */
    uint64_t       bytes[3];
};

void pf_postfetch_begin(struct pf_postfetch *p, int layer);

/* NULL: the expert stays with the CPU. */
struct pf_transfer *pf_postfetch_plan(struct pf_postfetch *p, int expert, bool whole,
                                      const struct pf_expert_parts *parts);

/* false: the copy was refused. In the order of plan. */
bool pf_postfetch_start(struct pf_postfetch *p, struct pf_transfer *t);

/* Makes t GPU_READY or CPU_ONLY. cpu_ns: what the CPU would need for the work instead. Best the last one first: they
 * arrive in the order of start, so those before it need not be asked for. */
void pf_postfetch_settle(struct pf_postfetch *p, struct pf_transfer *t, double cpu_ns);

/* Counts what became of the layer's transfers, learns the price and notes the spans. */
void pf_postfetch_account(struct pf_postfetch *p);

#endif
