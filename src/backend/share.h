/* The seam of a device that shares the experts of a layer with the host.
 *
 *     device   .. router | offer | shared expert | experts it holds | .. waits .. | what the host handed over, sum | ..
 *     host                   `--> serve(): deal, start copies, compute, look at the copies --------^
 *     copies                         |== down of A ==||== gate, up, down of B ==|
 *
 * The device backend calls `serve` once for each shared layer of a step, in the order of the layers, on the thread
 * that runs the step: within `experts`, or, when the step is a replayed graph, within `end`. The host answers each pick
 * in one of five ways (enum pf_pick_by). The device adds up the picks of a row in the router's order whoever
 * computed them, so the sum has the same bits.
 *
 * Attention to far keys and values is shared, too, if it says so (pf_attention_op.by_host): the device shows its
 * queries, the host makes the partials of some chunks where they lie in its memory, and the device, which makes those
 * of all others, folds them in their order. So no bit changes.
 *
 *     chunks   | near: the device's | far: the device's | far: the host's [first, end) | written to: the device's |
 *
 *     device   .. queries, keys, values | shows queries | partials of its chunks | .. waits .. | fold | ..
 *     host       attend(): fetches ahead, waits `--> partials --------------------^
 *
 * A ticket names a copy of host memory to device memory:
 *
 *     fetch --> IN_FLIGHT --> READY      host: fetch_state, fetch_wait    device: use (later operations see the bytes)
 *                        `--> FAILED     release: later operations do not need the bytes; the next fetch may begin
 *
 * Every call belongs to the thread that runs the step, or that opens and closes. */
#ifndef PF_SHARE_H
#define PF_SHARE_H

#include "backend/backend.h"

enum {
    PF_SHARE_TICKETS = 32,                /* copies under way at once */
    PF_SHARE_BACKGROUND = 24,             /* the first ticket of low priority: copies with lower numbers go first */
    PF_SHARE_STAGE = 23,                  /* the ticket of far keys and values on their way to the stage */
    PF_SHARE_ROWS = 16                    /* rows of a shared step at most */
};

enum pf_pick_by {
    PF_BY_HOST,                           /* y of the pick holds the expert's output, before its weight */
    PF_BY_DEVICE,                         /* a device held the expert when the step began, and has computed it */
    PF_BY_DOWN,                           /* act of the pick holds the activation; the device does the down product */
    PF_BY_COPY,                           /* the device does all three products */
    PF_BY_PLACE                           /* the device does all three products with matrices in the host's memory;
                                             the host says so before it calls dealt */
};

struct pf_handed {
    enum pf_pick_by by;
    int         card;                     /* which one does it, of several cards (among.h); 0: the one that offers.
                                             Nothing for BY_HOST */
    const void *gate, *up, *down;         /* device addresses of the matrices: all three for BY_COPY and BY_PLACE, down
                                             for BY_DOWN */
};

/* The router's picks of layer il: e with picks, weights and x in memory of the host. The host must not look at e's
 * matrices' data and at e->y. Where the device holds all that was picked it does not wait for the answer, and weights
 * and x may be a later layer's already. */
struct pf_offer {
    int il;
    const struct pf_experts_op *e;
    bool in_place;                        /* the host may answer PF_BY_PLACE */
};

/* The host's answer for the picks of an offer: memory of the backend that serve() fills. */
struct pf_answer {
    struct pf_handed *pick;               /* [rows * n_used] */
    float *act;                           /* [rows * n_used][n_ff] */
    float *y;                             /* [rows * n_used][n_out] */
};

typedef pf_status pf_serve_fn(void *ctx, const struct pf_offer *offer, const struct pf_answer *answer);

/* Called when the device has the answer of a layer, before the next one's serve: for work of the host that can wait. */
typedef void pf_served_fn(void *ctx);

/* The host's partials of layer il and a sequence of the step: p as the device has it, but for first and end, which are
 * the host's own copy of the sequence's range. Called as serve is, sequence by sequence, before the layer's experts,
 * but maybe before the device has shown its queries, which p->await waits for. A failure fails the step. */
typedef pf_status pf_attend_fn(void *ctx, int il, int part, const struct pf_partials_op *p);

struct pf_share_host {
    pf_serve_fn  *serve;
    pf_served_fn *served;
    pf_attend_fn *attend;
    void         *ctx;
};

struct pf_share_sizes {
    int  n_layer, n_expert, n_used, n_embd, n_ff;
    bool one_stream;                      /* copies take turns with computing */
};

struct pf_piece {
    void       *to;                       /* device memory */
    const void *from;
    size_t      bytes;
};

/* Bytes that a matrix takes in device memory: it begins on a multiple of 256, and kernels may read 64 bytes past it. */
static inline uint64_t pf_share_room(uint64_t bytes)
{
    return (bytes + 64 + 255) / 256 * 256;
}

enum pf_fetch_state { PF_FETCH_READY, PF_FETCH_IN_FLIGHT, PF_FETCH_FAILED };

/* Hand-offs of the n shared layers since the last reset in which the device had nothing else to do: median and 95th
 * percentile of the time from the picks on the device to the host and from the host's answer back, without the host's
 * work in between. waited_ns: how long the device waited for the host in all. */
struct pf_handoff_stats {
    uint64_t n, p50_ns, p95_ns, waited_ns;
};

/* From the queries shown to all partials there, on the host and on the device, all layers together. */
struct pf_attended {
    uint64_t host_ns, device_ns;
};

struct pf_share_ops {
    /* Called once, before the first shared layer. */
    pf_status (*open)(pf_backend *b, const struct pf_share_sizes *sizes, const struct pf_share_host *host);

    /* Between steps, once memory is reserved: floats of partials that the host may make for a layer; 0: there is no
     * memory for any. */
    size_t    (*attend_room)(pf_backend *b);
    /* Between steps: how long the layers of the last step took that had `by_host` for the sequence, if that has not
     * been asked yet; else zeros. */
    void      (*attended)(pf_backend *b, int part, struct pf_attended *out);

    /* The experts of a layer for at most PF_SHARE_ROWS rows. offer shows the host what was picked; other operations may
     * come between offer and experts, which is called with the same e. A failure of serve fails the step. */
    pf_status (*offer)(pf_backend *b, int il, const struct pf_experts_op *e);
    pf_status (*experts)(pf_backend *b, int il, const struct pf_experts_op *e);

    /* From the next step on the device holds an expert, whose matrices are at these device addresses; all NULL: it no
     * longer holds the expert. Called between steps. */
    pf_status (*hold)(pf_backend *b, int il, int expert, const void *gate, const void *up, const void *down);

    /* Called by serve, once at most: picks that answer->pick gives to DEVICE and to PLACE are final, and the device
     * begins with them. serve's return says the same where it was not called. */
    void      (*dealt)(pf_backend *b, int il);

    /* Called once, before the first fetch, where copies alone are wanted and nothing is shared. */
    pf_status (*open_copies)(pf_backend *b);
    /* From now on operations find the weights [host, host + bytes), which were not placed, at `dev`, where a copy has
     * put them; dev NULL: no longer. */
    pf_status (*lend)(pf_backend *b, const void *host, size_t bytes, void *dev);

    /* Pins memory of the host that fetches will copy from, whole pages, which may be a mapped file's; of several cards
     * each does, and one unpins. Returns the address at which the device reads it for PF_BY_PLACE; NULL: it cannot, and
     * if pinning failed copies are slower. close unpins, too. */
    const void *(*pin)(pf_backend *b, void *host, size_t bytes);
    void        (*unpin)(pf_backend *b, void *host);

    /* Copies n pieces one after the other. The host's side must stay as it is until the copy is no longer IN_FLIGHT. */
    pf_status           (*fetch)(pf_backend *b, int ticket, const struct pf_piece *pieces, int n);
    enum pf_fetch_state (*fetch_state)(pf_backend *b, int ticket);
    enum pf_fetch_state (*fetch_wait)(pf_backend *b, int ticket);        /* never IN_FLIGHT */
    uint64_t            (*fetch_ns)(pf_backend *b, int ticket);          /* duration of a READY copy; 0: not known */
    pf_status           (*use)(pf_backend *b, int ticket);
    pf_status           (*release)(pf_backend *b, int ticket);

    void (*handoffs)(pf_backend *b, struct pf_handoff_stats *out);
    void (*handoffs_reset)(pf_backend *b);
};

#endif
