/* The seam of a device that shares the experts of a layer with the host.
 *
 *     device   .. router | offer | shared expert | experts it holds | .. waits .. | what the host handed over, sum | ..
 *     host                   `--> serve(): deal, start copies, compute, look at the copies --------^
 *     copies                         |== down of A ==||== gate, up, down of B ==|
 *
 * The device backend calls `serve` once for each shared layer of a step, in the order of the layers, on the thread
 * that runs the step: within `experts`, or, when the step is a replayed graph, within `end`. What the host answers for
 * a pick is one of five things (enum pf_pick_by). The device adds up the picks of a row in the router's order whoever
 * computed them, so the sum has the same bits.
 *
 * A ticket names a copy of host memory to device memory:
 *
 *     fetch --> IN_FLIGHT --> READY      host: fetch_state, fetch_wait    device: use (what comes after sees the bytes)
 *                        `--> FAILED     release: what comes after does not need the bytes; the next fetch may begin
 *
 * Every call belongs to the thread that runs the step, or that opens and closes. */
#ifndef PF_SHARE_H
#define PF_SHARE_H

#include "backend/backend.h"

enum {
    PF_SHARE_TICKETS = 32,                /* copies under way; */
    PF_SHARE_BACKGROUND = 24,             /* those from this one on give way to the others */
    PF_SHARE_ROWS = 8                     /* rows of a shared step at most */
};

enum pf_pick_by {
    PF_BY_HOST,                           /* y of the pick holds what the expert puts out, before its weight */
    PF_BY_DEVICE,                         /* the device held the expert when the step began: it has computed it */
    PF_BY_DOWN,                           /* act of the pick holds the activation; the device does the down product */
    PF_BY_COPY,                           /* the device does all three products */
    PF_BY_PLACE                           /* the same, where the matrices lie in the host's memory: said before dealt */
};

struct pf_handed {
    enum pf_pick_by by;
    const void *gate, *up, *down;         /* as the device sees them, for BY_COPY and BY_PLACE; down also for BY_DOWN */
};

/* What the router of layer il picked: e with picks, weights and x in memory of the host. Its matrices' data and its y
 * are not to be looked at. */
struct pf_offer {
    int il;
    const struct pf_experts_op *e;
    bool in_place;                        /* picks by PLACE are possible */
};

/* Memory of the backend, for the host to fill. */
struct pf_answer {
    struct pf_handed *pick;               /* [rows * n_used] */
    float *act;                           /* [rows * n_used][n_ff] */
    float *y;                             /* [rows * n_used][n_out] */
};

typedef pf_status pf_serve_fn(void *ctx, const struct pf_offer *offer, const struct pf_answer *answer);

/* Called when the device has been told of that answer: for what can wait. */
typedef void pf_served_fn(void *ctx);

struct pf_share_sizes {
    int  n_layer, n_expert, n_used, n_embd, n_ff;
    bool one_stream;                      /* copies take turns with computing */
};

struct pf_piece {
    void       *to;                       /* device memory */
    const void *from;
    size_t      bytes;
};

/* What a matrix takes in device memory: it begins on a multiple of 256, and kernels may read 64 bytes past it. */
static inline uint64_t pf_share_room(uint64_t bytes)
{
    return (bytes + 64 + 255) / 256 * 256;
}

enum pf_fetch_state { PF_FETCH_READY, PF_FETCH_IN_FLIGHT, PF_FETCH_FAILED };

/* Of the shared layers since the last reset: from the picks on the device to the host, and from its answer back,
 * without what the host did in between, where the device had nothing else to do; and how long it waited for the host in
 * all. */
struct pf_handoff_stats {
    uint64_t n, p50_ns, p95_ns, waited_ns;
};

struct pf_share_ops {
    /* Before the first shared layer. */
    pf_status (*open)(pf_backend *b, const struct pf_share_sizes *sizes, pf_serve_fn *serve, pf_served_fn *served,
                      void *ctx);

    /* The experts of a layer for at most PF_SHARE_ROWS rows. offer shows the host what was picked; other operations may
     * come between it and experts, which is called with the same e. What serve returns on failure fails the step. */
    pf_status (*offer)(pf_backend *b, int il, const struct pf_experts_op *e);
    pf_status (*experts)(pf_backend *b, int il, const struct pf_experts_op *e);

    /* The device holds an expert from the next step on: its matrices in device memory; all NULL: it does not. Between
     * steps. */
    pf_status (*hold)(pf_backend *b, int il, int expert, const void *gate, const void *up, const void *down);

    /* Called by serve, once at most: what answer->pick says of picks by DEVICE and by PLACE holds, and the device
     * begins with them. If serve returns without it, that says so. */
    void      (*dealt)(pf_backend *b, int il);

    /* Memory of the host that fetches will copy from, whole pages of it. Returns where the device sees it, for picks by
     * PLACE; NULL: nowhere; a backend that cannot pin it copies more slowly, too. Unpinned by close or by unpin. */
    const void *(*pin)(pf_backend *b, void *host, size_t bytes);
    void        (*unpin)(pf_backend *b, void *host);

    /* Copies n pieces one after the other. The host's side must stay as it is until the copy is no longer IN_FLIGHT. */
    pf_status           (*fetch)(pf_backend *b, int ticket, const struct pf_piece *pieces, int n);
    enum pf_fetch_state (*fetch_state)(pf_backend *b, int ticket);
    enum pf_fetch_state (*fetch_wait)(pf_backend *b, int ticket);        /* never IN_FLIGHT */
    uint64_t            (*fetch_ns)(pf_backend *b, int ticket);          /* what a READY copy took; 0: nobody knows */
    pf_status           (*use)(pf_backend *b, int ticket);
    pf_status           (*release)(pf_backend *b, int ticket);

    void (*handoffs)(pf_backend *b, struct pf_handoff_stats *out);
    void (*handoffs_reset)(pf_backend *b);
};

#endif
