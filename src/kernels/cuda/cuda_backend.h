/* Shared by the files of the CUDA backend's host side: memory, one stream, and which kernels an operation becomes.
 * Kernels are in cu_*.cu behind cu_api.h.
 *
 *     backend_cuda.c   open, close, the table of operations; which GPUs there are
 *     cuda_measure.c   how fast one reads, and copies to it arrive
 *     cuda_memory.c    budget, buffers, copies            cuda_weights.c   placed weights
 *     cuda_allow.c     shared memory of kernels
 *     cuda_scratch.c   scratch                            cuda_graph.c     steps: captured, replayed, waited for
 *     cuda_ops.c       operations on rows                 cuda_experts.c   routed experts
 *     cuda_between.c   norms and additions between blocks
 *     cuda_shared.c    a shared expert with the routed ones
 *     cuda_share.c     experts shared with the host       cuda_copies.c    copies beside the operations
 *     cuda_attention.c attention, of several sequences together; cuda_far.c the host's part of it
 *     cuda_among.c     experts that other cards have
 *     cuda_meet.c      rows that other cards have made in part
 *
 * Owner and thread as in backend.h: one thread at a time. All work goes to one stream, what is set up too: a plain
 * cudaMemcpy may return before its bytes have arrived, and nothing of this stream waits for it. Nothing waits for the
 * device but finish, and nothing is allocated after the first step but through buf_alloc, and for the host's part of
 * attention, between steps (cuda_far.c).
 *
 * Invariants:
 *  1. Weights are named by their host addresses. placed (kernels/placed.h) maps host ranges to device copies. A table
 *     of expert addresses is placed like a vector, under the address of the host's table.
 *  2. x_of: the rows at this address lie quantised in b->x. Whatever writes there forgets it (pf_cuda_wrote).
 *  3. Some operations are held when they are asked for, since the one that usually follows is done in the same kernel:
 *     a product waits for the addition of its output, or for its check and its download, experts wait for the addition
 *     of the shared expert first, an addition whose product is launched already waits for the norm that reads the sum,
 *     norms of a block's output wait for what is added and for the next block's norm, a norm and an activation wait for
 *     the product that reads them, a row's choice for its experts, a row's shared expert for the experts that are
 *     computed with it, copies of queries and gates, norms of heads and
 *     rotation for kv_store, kv_store for attention, and a sequence's attention for that of the others. Any other
 *     operation, and whatever ends a step or frees memory, first starts the held ones in the order they came
 *     (pf_cuda_settle). So of product, held, norm, acted, between, choice, shared, stored, heads and together only one
 *     has something at a time.
 *  4. graphs[] hold addresses of weights, scratch and a session's buffers, its logits on the host too: whatever frees
 *     one of those drops them (pf_cuda_drop_graphs). A step is run plainly when first met, captured the second time,
 *     replayed from then on, so that capturing never has to place a vector. Where there is no memory for a graph, none
 *     are made any more. A step with exchanges between processes (ranks) is captured and replayed by all of them or
 *     by none: one of them decides, and the others are told how (struct pf_repeat); a capture counts if all have made
 *     theirs.
 *  5. A thread's calls go to one of several cards, the one it has chosen: whatever launches or allocates chooses first
 *     (pf_cuda_put, pf_cuda_alloc, begin, end).
 *  6. A graph's last kernel counts the graphs that have ended, in memory of the host. Where a graph is the last thing
 *     on the stream (tells), finish waits for the count to be that of the graphs launched, and not for the stream:
 *     whatever is put on the stream outside of a capture says that it is not (pf_cuda_count, pf_cuda_follows). A graph
 *     that was launched counts even if no step waits for it, so that the two numbers stay together. A card that fails
 *     never counts: after some time finish waits for the stream, which says why.
 *  7. CUDA's errors become PF_EDEVICE or PF_ENOMEM where they appear (CU_TRY) and never travel. */
#ifndef PF_CUDA_BACKEND_H
#define PF_CUDA_BACKEND_H

#include "backend/among.h"
#include "backend/meet.h"
#include "backend/share.h"
#include "kernels/cuda/cu_choice.h"
#include "kernels/cuda/cu_given.h"
#include "kernels/cuda/cu_parts.h"
#include "kernels/placed.h"

enum { CUDA_MAX_GRAPHS = 16, CUDA_MAX_OWNED = 4096 };
enum { CUDA_ALIGN = 256, CUDA_OVERREAD = 64 };    /* of matrices on the device; bytes that may be read past their end */

struct held_add {
    float       *y;                      /* NULL: none */
    const float *x;
    float        a;
    int64_t      n;
};

struct held_act {
    struct pf_act act;
    const float  *gate, *up;
    int64_t       n;
    float        *y;                     /* NULL: none */
};

/* A row's experts that the device holds, of which gate and up have been started, and then those that the host hands it:
 * two turns (struct cu_turns), the take between them. */
struct held_turns {
    struct cu_experts first;             /* down */
    struct cu_take    take;
    struct cu_experts gate_up, down;
    struct cu_x       acts;              /* what gate_up puts out */
};

/* The last product, if it is of one row and puts out what may be added to the residual stream, or is of a few rows and
 * one part, which may be wanted by the host. */
struct held_product {
    enum { HELD_NOTHING, HELD_LINEAR, HELD_DOWN, HELD_TURNS, HELD_COMBINE } kind;
    union {
        struct cu_linear  linear;
        struct cu_experts down;
        struct held_turns turns;
        struct cu_combine combine;
    };
    struct cu_choice   choice;           /* of `down` */
    struct cu_residual residual;
    struct cu_given_rows given;          /* of `linear` */
    float *y;
    int    n;
};

/* A shared expert of one row, as far as it was asked for: its three operations, in their order. */
struct held_shared {
    int              n;                  /* of them; 0: none */
    struct pf_weight w[3];               /* gate, up, down; copies: the caller's may be gone when they are used */
    float           *y[3];
    const float     *x;
    struct pf_act    act;
    float           *acted;              /* what down multiplies */
};

struct held_heads {
    struct pf_copy    deal[2];
    struct cu_norm    norm[2];
    struct pf_rope_op rope[2];
    int               n_deals, n_norms, n_ropes, deal_rows, rows;
};

/* Attention of several sequences, as far as it was asked for. */
struct held_together {
    struct held_heads heads;             /* what comes first, for all rows */
    struct cu_heads   stored;            /* how kernels do that; rows: all that are to come, 0: nothing is held */
    struct cu_parts   parts;             /* those whose keys and values are stored */
    struct pf_attention_op op;           /* of the rows whose attention was asked for */
    int64_t           n_positions[CU_SEQUENCES];
    int               n_stored;          /* rows */
};

/* A kind of step, and, once it has been captured, what replays it. */
struct graph {
    struct pf_repeat step;               /* n_positions: the chunks that were launched for */
    cudaGraphExec_t  exec;
    uint64_t         weight_bytes, age;
    size_t           n_nodes;            /* kernels and copies */
};

struct cuda_backend {
    struct pf_backend base;
    int               device;
    cudaStream_t      stream;
    cudaEvent_t       so_far;            /* what this card had to do when another was to wait for it */
    char              describe[32];
    bool              has_tiles;         /* enough shared memory for matrix products by tiles */
    struct cu_tile_shape shape;          /* shape of the tiles, if has_tiles */
    size_t            shared_bytes;      /* shared memory of a block besides static variables */
    uint64_t          budget, used;      /* bytes of device memory: the most to take; taken */

    struct pf_placed  placed;
    char             *small;             /* block that vectors and tables are cut from */
    size_t            small_used;
    void             *owned[CUDA_MAX_OWNED];
    int               n_owned;
    struct cu_tables  tables;

    struct pf_backend_sizes sizes;
    char             *scratch;
    size_t            scratch_bytes;
    struct cu_x       x, a, h;           /* inputs of dense, gate and up products; of down; by head */
    struct cu_x       acts;              /* few rows of activations, on their way to the product that reads them */
    float            *up;                /* [max_picks][n_ff] */
    float            *pick_out;          /* [max_picks][n_out] */
    float            *low;               /* [max_picks][expert_rank] */
    float            *part;              /* attention's chunks */
    size_t            n_part;
    float            *latent_scores;     /* of attention to a cached latent; or NULL */
    float            *scores;            /* [CU_CHOOSE_ROWS][max_positions] */
    int              *count;             /* attention's blocks that have ended; zeros between kernels */
    uint8_t          *q16;               /* [max_rows][max_i16] queries in whole numbers */
    float            *cq;                /* [max_rows][max_heads] their factors; of a latent pairs */
    struct cu_groups *groups;            /* a prompt's picks by expert; groups->sorted, tile: b->sorted, b->tile */
    int32_t          *sorted;
    struct cu_tile   *tile;
    uint16_t         *halves;            /* of x or a, while tiles of warpgroups go over them */
    float            *block_scales;

    int              *fault;             /* enum cu_fault, in host memory that the device writes to */
    const float      *x_of;
    int64_t           x_floats;
    const float      *a_of;              /* activations of picks that are quantised in `a` for experts_down, or NULL */
    struct held_product product;
    struct held_add   held;
    struct cu_norm    norm;              /* y NULL: none is held */
    struct held_act   acted;
    struct cu_between between;           /* rows 0: none is held */
    struct cu_choice  choice;            /* op.rows 0: none is held */
    struct cu_choice  chosen;            /* what the experts that are started choose by; op.rows 0: they have picks */
    struct held_shared shared;
    struct cu_shared  with;              /* what the experts that are started take along; NULLs: nothing */
    struct cu_heads   stored;            /* rows 0: none is held */
    struct held_heads heads;
    struct held_together together;

    struct pf_experts_op parts;          /* the op between experts_begin and experts_end */
    const uint8_t   **part_table;        /* [3][n_expert] addresses of the experts of the present experts_part */
    const uint8_t   **done_table;        /* [3][n_expert] of all since experts_begin, */
    bool              shares_parts;      /* if other cards have parts, too */
    struct cuda_share *share;            /* NULL: nothing is shared with the host */
    struct cuda_far   *far;              /* NULL: nobody has asked for room for the host's part of attention */
    struct cuda_copies *copies;          /* NULL: nobody copies beside the operations */
    struct cuda_among *among;            /* NULL: no other card has experts for this one */
    struct pf_ranks   *ranks;            /* NULL: steps have no exchanges with cards of other processes */

    struct graph      graphs[CUDA_MAX_GRAPHS];
    struct graph     *capturing;
    bool              no_graphs;
    int               launched;          /* graph of this step, or -1 */
    uint32_t          n_launched;        /* graphs since open */
    uint32_t         *ended, *told;      /* how many have ended: a word of the device, and one of the host */
    bool              tells;             /* a graph is the last thing on the stream */
    uint64_t          n_begun, weight_bytes_before;
};

static inline struct cuda_backend *pf_cuda_of(pf_backend *b)
{
    return (struct cuda_backend *)b;
}

static inline bool pf_cuda_is_quantised(enum pf_qtype type)
{
    return !pf_qtype_info(type)->is_float;
}

static inline int pf_cuda_n_chunks(int64_t n_ctx)
{
    return (int)((n_ctx + PF_KV_CHUNK_POSITIONS - 1) / PF_KV_CHUNK_POSITIONS);
}

/* Turns CUDA's answer into ours; clears its sticky error. */
pf_status pf_cuda_check(cudaError_t e, const char *what);

#define CU_TRY(call, what) PF_TRY(pf_cuda_check((call), (what)))

/* In the middle of a step, want of memory on the GPU is a failure of the GPU: the CPU can go on. */
static inline pf_status pf_cuda_in_step(pf_status st)
{
    return st == PF_ENOMEM ? PF_EDEVICE : st;
}

/* The backend's stream, for work that comes after what is on it. */
static inline cudaStream_t pf_cuda_follows(struct cuda_backend *b)
{
    b->tells = false;
    return b->stream;
}

/* pf_cuda_check for work put on a stream within a step; counts it as a launch, unless it is only being captured. */
static inline pf_status pf_cuda_count(struct cuda_backend *b, cudaError_t e, const char *what)
{
    b->tells = false;
    b->base.n_launches += !b->capturing;
    return pf_cuda_in_step(pf_cuda_check(e, what));
}

/* Puts work on a stream of the backend's card: `call` is evaluated when the card is chosen. */
#define pf_cuda_put(b, call, what) (cudaSetDevice((b)->device), pf_cuda_count((b), (call), (what)))

#define CU_PUT(b, call, what) PF_TRY(pf_cuda_put((b), (call), (what)))

/* Device memory within the budget; `what` is for the message. */
pf_status pf_cuda_alloc(struct cuda_backend *b, size_t bytes, const char *what, void **out);
void pf_cuda_free(struct cuda_backend *b, void *p, size_t bytes);

/* Device memory, and a device copy, that live as long as the backend. */
pf_status pf_cuda_own(struct cuda_backend *b, size_t bytes, void **out);
pf_status pf_cuda_copy_in(struct cuda_backend *b, const void *host, size_t bytes, void **dev);
/* The device address of a matrix, which was placed. */
pf_status pf_cuda_matrix_at(const struct cuda_backend *b, const void *host, const uint8_t **out);
/* The device address of n floats, copied now if they were not; NULL stays NULL. */
pf_status pf_cuda_floats_at(struct cuda_backend *b, const float *host, size_t n, const float **out);
/* The table of the experts' device addresses. */
pf_status pf_cuda_table_at(struct cuda_backend *b, const uint8_t *const *host, int n, const uint8_t *const **out);

/* What b is asked for from now on comes after all that `other`, another card, was asked for so far. */
pf_status pf_cuda_after(struct cuda_backend *b, struct cuda_backend *other);
/* Whether kernels of b read and write the memory of the other card themselves. */
bool pf_cuda_reaches(const struct cuda_backend *b, const struct cuda_backend *other);

/* Pieces of a step's experts: cuda_experts.c. table: [3][n_expert] addresses of gate, up, down;
 * NULL: all were placed. */
pf_status pf_cuda_gate_up(struct cuda_backend *b, const struct pf_experts_op *e, const uint8_t **table);
pf_status pf_cuda_down_rows(struct cuda_backend *b, const struct pf_experts_op *e, const uint8_t **table);
pf_status pf_cuda_down(struct cuda_backend *b, const struct pf_experts_op *e, const uint8_t **table);
/* A choice that is held for these experts, which is held no longer; or one of no rows. */
struct cu_choice pf_cuda_choice_for(struct cuda_backend *b, const struct pf_experts_op *e);
/* gate_up and down of one row for the experts in `now`, and for those in `late` after a take, which is held with what
 * comes behind it. has_turns: whether the kernels can. */
bool pf_cuda_has_turns(const struct pf_experts_op *e);
pf_status pf_cuda_in_turns(struct cuda_backend *b, const struct pf_experts_op *e, const uint8_t **now,
                           const uint8_t **late, const struct cu_take *take);
/* pick_out of the picks whose experts are in the table; y = the sums of pick_out. */
pf_status pf_cuda_some_experts(struct cuda_backend *b, const struct pf_experts_op *e, const uint8_t **table);
pf_status pf_cuda_combine(struct cuda_backend *b, const struct pf_experts_op *e);

/* Experts divided between cards: cuda_among.c. finish: waits for the others; fault: the first of theirs. */
pf_status pf_cuda_among_finish(struct cuda_backend *b, int *fault);
void pf_cuda_among_close(struct cuda_backend *b);
int  pf_cuda_n_among(const struct cuda_backend *b);                          /* other cards, those that left counted */
struct cuda_backend *pf_cuda_among_at(const struct cuda_backend *b, int i);  /* NULL: it has left */
/* Of experts that are shared with the host, too. lend_shared: the others do what they hold or read in place, after the
 * offer; late: what was copied to them, after the host was served, or is to be; gather_shared: their outputs, of the
 * picks that are marked, go to pick_out. */
pf_status pf_cuda_among_lend_shared(struct cuda_backend *b, int il, const struct pf_experts_op *e);
pf_status pf_cuda_among_late(struct cuda_backend *b, int il, const struct pf_experts_op *e);
pf_status pf_cuda_among_gather_shared(struct cuda_backend *b, const struct pf_experts_op *e, const int32_t *theirs);
extern const struct pf_among_ops pf_cuda_among_ops;

extern const struct pf_meet_ops pf_cuda_meet_ops;   /* cuda_meet.c */

/* Sharing: cuda_share.c. begin: a step is about to be run plainly (-1) or captured. reset: a graph is about to be
 * launched. serve: the host's part of it. */
bool      pf_cuda_share_allows_graph(const struct cuda_backend *b, int rows);
void      pf_cuda_share_begin(struct cuda_backend *b, int graph);
void      pf_cuda_share_reset(struct cuda_backend *b);
pf_status pf_cuda_share_serve(struct cuda_backend *b, int graph);
int       pf_cuda_share_layers(const struct cuda_backend *b);
void      pf_cuda_share_close(struct cuda_backend *b);
/* attends: whether the host makes partials; then *far is what kernels are to know. attend, behind the kernels of the
 * device's partials: what the host does is done or listed. */
bool      pf_cuda_share_attends(struct cuda_backend *b, const struct pf_attention_op *a, struct cu_far *far);
pf_status pf_cuda_share_attend(struct cuda_backend *b, const struct pf_attention_op *a);

/* The host's part of attention: cuda_far.c. lower: layer il's flags are down again, and its times forgotten; returns ns
 * that the device waited. partials: what the host makes for a, but for the chunks. made: they are there; the host saw
 * the queries at seen_ns. */
size_t    pf_cuda_attend_room(pf_backend *backend);
void      pf_cuda_attended(pf_backend *backend, int part, struct pf_attended *out);
uint64_t  pf_cuda_far_lower(struct cuda_backend *b, const struct pf_by_host *by_host);
uint64_t  pf_cuda_far_lower_all(struct cuda_backend *b);
void      pf_cuda_far_give_up(struct cuda_backend *b);
struct cu_far pf_cuda_far_of(const struct cuda_backend *b, const struct pf_by_host *by_host);
struct pf_partials_op pf_cuda_far_partials(const struct cuda_backend *b, const struct pf_attention_op *a);
struct cu_flag *pf_cuda_far_shown(const struct cuda_backend *b, const struct pf_by_host *by_host);
void      pf_cuda_far_made(struct cuda_backend *b, const struct pf_by_host *by_host, uint64_t seen_ns, bool replayed);
void      pf_cuda_far_close(struct cuda_backend *b);
/* Of another card than the one that offers, which names it by a number. told: whether that one waits for the host, a
 * word that is lent with the picks. table: the experts whose rows pick_out has now. */
void      pf_cuda_share_join(struct cuda_backend *b, struct cuda_backend *first, int card);
uint32_t *pf_cuda_share_told(const struct cuda_backend *b);
pf_status pf_cuda_share_run_held(struct cuda_backend *b, int il, const struct pf_experts_op *e,
                                 const uint8_t ***table);
pf_status pf_cuda_share_run_late(struct cuda_backend *b, int il, const struct pf_experts_op *e,
                                 const uint8_t ***table);
extern const struct pf_share_ops pf_cuda_share_ops;

/* Copies beside the operations: cuda_copies.c. one_stream: not beside, but in turn with them. The rest is as in
 * backend/share.h. */
pf_status           pf_cuda_open_copies(pf_backend *backend);
pf_status           pf_cuda_copies_open(struct cuda_backend *b, bool one_stream);
void                pf_cuda_copies_close(struct cuda_backend *b);
const void         *pf_cuda_pin(pf_backend *backend, void *host, size_t bytes);
void                pf_cuda_unpin(pf_backend *backend, void *host);
pf_status           pf_cuda_fetch(pf_backend *backend, int ticket, const struct pf_piece *pieces, int n);
enum pf_fetch_state pf_cuda_fetch_state(pf_backend *backend, int ticket);
enum pf_fetch_state pf_cuda_fetch_wait(pf_backend *backend, int ticket);
uint64_t            pf_cuda_fetch_ns(pf_backend *backend, int ticket);
pf_status           pf_cuda_use(pf_backend *backend, int ticket);
pf_status           pf_cuda_release(pf_backend *backend, int ticket);

void pf_cuda_drop_graphs(struct cuda_backend *b);
/* Whether a graph that is the last thing on the stream is heard to end within so many nanoseconds. That takes the host
 * less time than waiting for the stream. */
bool pf_cuda_listen(const struct cuda_backend *b, uint64_t ns);
/* Chunks to launch for: a power of two, so that few graphs serve all lengths. */
int pf_cuda_chunks(const struct cuda_backend *b, int64_t n_positions);

/* Starts what was held back; or holds a product. */
pf_status pf_cuda_settle(struct cuda_backend *b);
/* All that was held back but operations on heads, or only those, or attention of several sequences. */
pf_status pf_cuda_settle_rows(struct cuda_backend *b);
pf_status pf_cuda_put_heads(struct cuda_backend *b, const struct held_heads *h);
pf_status pf_cuda_part_ways(struct cuda_backend *b);
/* What lies between two blocks: cuda_between.c. Whether an operation is part of it, and is held with it: a norm of y in
 * place, an addition, a copy; or, of a norm of x, whether it ends it and is started with it. */
bool pf_cuda_between_norms(struct cuda_backend *b, const struct cu_norm *o);
bool pf_cuda_between_adds(struct cuda_backend *b, float *y, float a, const float *x, int64_t n);
bool pf_cuda_between_copies(struct cuda_backend *b, const struct pf_copy *c, int rows);
bool pf_cuda_between_ends(const struct cuda_backend *b, const struct cu_norm *o);
/* A row's shared expert: cuda_shared.c. Whether an operation is one of the three that make it, and is held. start: what
 * is held of one. joins: leaves one that is held to the experts, in b->with, if their kernels can take it along. */
pf_status pf_cuda_shared_multiplies(struct cuda_backend *b, const struct pf_linear *l, int n_l, const float *x,
                                    int rows, bool *held);
bool pf_cuda_shared_acts(struct cuda_backend *b, struct pf_act act, const float *gate, const float *up, int64_t n,
                         float *y);
pf_status pf_cuda_shared_start(struct cuda_backend *b);
void pf_cuda_shared_joins(struct cuda_backend *b, const struct pf_experts_op *e);
/* The operations of these names, of which nothing is held for a shared expert. */
pf_status pf_cuda_multiply(struct cuda_backend *b, const struct pf_linear *l, int n_l, const float *x, int rows);
pf_status pf_cuda_activate(struct cuda_backend *b, struct pf_act act, const float *gate, const float *up, int64_t n,
                           float *y);
pf_status pf_cuda_hold(struct cuda_backend *b, const struct held_product *p);
/* Rows of n_out floats among those that the held product makes. */
struct held_rows {
    int first, n, n_out;
};
/* Whether the held product makes these n floats, and they are whole rows; where it puts them besides is for the caller
 * to say in b->product.given. */
bool pf_cuda_gives(const struct cuda_backend *b, const float *y, int64_t n, struct held_rows *out);
/* n floats at p change. */
void pf_cuda_wrote(struct cuda_backend *b, const float *p, int64_t n);
/* Makes sure that b->x holds the rows x. */
pf_status pf_cuda_quantise_x(struct cuda_backend *b, const float *x, int n, int rows, bool quantised, struct cu_x *out);

/* The operations of backend.h. */
pf_status pf_cuda_place(pf_backend *backend, const void *host, size_t bytes);
pf_status pf_cuda_place_pieces(pf_backend *backend, const uint8_t *const *host, int n, size_t bytes);
pf_status pf_cuda_lend(pf_backend *backend, const void *host, size_t bytes, void *dev);
pf_status pf_cuda_buf_alloc(pf_backend *backend, size_t bytes, bool shared, void **out);
void pf_cuda_buf_free(pf_backend *backend, void *p, size_t bytes, bool shared);
void pf_cuda_buf_copy(pf_backend *backend, const struct pf_buf_copy *c);
pf_status pf_cuda_pass(pf_backend *backend, pf_backend *to, void *x_to, const void *x, size_t bytes);
pf_status pf_cuda_upload(pf_backend *backend, void *to, const void *from, size_t bytes);
void     *pf_cuda_seen_by_kernels(void *p);          /* where kernels find the host's memory at p; NULL: they do not */
pf_status pf_cuda_bring(pf_backend *backend, void *to, const void *from, size_t bytes);
pf_status pf_cuda_download(pf_backend *backend, void *to, const void *from, size_t bytes);
uint64_t pf_cuda_scratch_bytes(const pf_backend *backend, const struct pf_backend_sizes *sizes);
uint64_t pf_cuda_scratch_more(const pf_backend *backend, const struct pf_backend_sizes *sizes);
pf_status pf_cuda_reserve(pf_backend *backend, const struct pf_backend_sizes *sizes);
pf_status pf_cuda_begin(pf_backend *backend, const struct pf_repeat *r, bool *replayed);
enum pf_repeat_how pf_cuda_repeats(const pf_backend *backend, const struct pf_repeat *r);
pf_status pf_cuda_end(pf_backend *backend, bool *again);
pf_status pf_cuda_finish(pf_backend *backend);
bool pf_cuda_is_lost(pf_backend *backend);
pf_status pf_cuda_embed(pf_backend *backend, const struct pf_weight *w, const int32_t *ids, int rows, float *x);
pf_status pf_cuda_rms_norm(pf_backend *backend, const float *x, const float *w, float eps, int n, int rows, float *y);
pf_status pf_cuda_linear(pf_backend *backend, const struct pf_linear *l, int n_l, const float *x, int rows);
pf_status pf_cuda_act(pf_backend *backend, struct pf_act act, const float *gate, const float *up, int64_t n, float *y);
pf_status pf_cuda_add(pf_backend *backend, float *y, float a, const float *x, int64_t n);
pf_status pf_cuda_check_finite(pf_backend *backend, const float *x, int64_t n);
pf_status pf_cuda_tops(pf_backend *backend, const float *x, int n, int rows, float *const *to);
pf_status pf_cuda_add_bias(pf_backend *backend, float *y, const float *bias, int n, int rows);
pf_status pf_cuda_add_gated(pf_backend *backend, float *y, const float *gate, const float *x, int n, int rows);
pf_status pf_cuda_softcap(pf_backend *backend, float *x, float cap, int64_t n);
pf_status pf_cuda_gate(pf_backend *backend, float *x, const float *gate, int n, int rows);
pf_status pf_cuda_rope(pf_backend *backend, const struct pf_rope_op *ropes, int n_ropes, int rows);
pf_status pf_cuda_kv_store(pf_backend *backend, const struct pf_kv_view *kv, const float *k, const float *v,
                           const int32_t *pos, int rows);
pf_status pf_cuda_attention(pf_backend *backend, const struct pf_attention_op *a);
pf_status pf_cuda_route(pf_backend *backend, const struct pf_route_op *r);
pf_status pf_cuda_norm_each(pf_backend *backend, const float *x, const float *w, float eps, int n, int n_each,
                            int rows, float *y);
pf_status pf_cuda_centre(pf_backend *backend, const float *x, int n, int rows, float *y);
pf_status pf_cuda_layer_norm(pf_backend *backend, const float *x, const float *w, const float *bias, float eps, int n,
                             int rows, float *y);
pf_status pf_cuda_heads(pf_backend *backend, const struct pf_heads_op *h);
pf_status pf_cuda_choose(pf_backend *backend, const struct pf_choose_op *c);
pf_status pf_cuda_copy(pf_backend *backend, const struct pf_copy *copies, int n_copies, int rows);
pf_status pf_cuda_delta(pf_backend *backend, const struct pf_delta_op *d);
pf_status pf_cuda_conv(pf_backend *backend, const struct pf_conv_op *c);
pf_status pf_cuda_ssm(pf_backend *backend, const struct pf_ssm_op *s);
pf_status pf_cuda_compress(pf_backend *backend, const struct pf_compress_op *c);
pf_status pf_cuda_mix(pf_backend *backend, const struct pf_mix_op *m);
pf_status pf_cuda_streams_read(pf_backend *backend, const struct pf_streams_op *s);
pf_status pf_cuda_streams_write(pf_backend *backend, const struct pf_streams_op *s);
pf_status pf_cuda_gated_read(pf_backend *backend, const struct pf_gated_op *g);
pf_status pf_cuda_gated_write(pf_backend *backend, const struct pf_gated_op *g);
pf_status pf_cuda_agree(pf_backend *backend, const struct pf_agree_op *a);
pf_status pf_cuda_spread(pf_backend *backend, const struct pf_spread_op *s);
pf_status pf_cuda_experts(pf_backend *backend, const struct pf_experts_op *e);
pf_status pf_cuda_experts_begin(pf_backend *backend, const struct pf_experts_op *e);
pf_status pf_cuda_experts_part(pf_backend *backend, const int *experts, int n);
pf_status pf_cuda_experts_given(pf_backend *backend, const int *experts, int n, const float *y);
pf_status pf_cuda_experts_end(pf_backend *backend);
pf_status pf_cuda_experts_up(pf_backend *backend, const struct pf_experts_op *e);
pf_status pf_cuda_experts_down(pf_backend *backend, const struct pf_experts_op *e);

#endif
