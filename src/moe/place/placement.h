/* Where a model's weights are while it runs, and who computes with them: the one seam between placement and the rest.
 *
 *     the file is mapped                       mapped                       mapped.c
 *     memory is too small for it               streamed through the store   residency.c, slabs.c
 *     the device has room for everything       on the device                on_device.c
 *     ... for some layers of a dense model     cut by layers                cut.c        over mapped or streamed
 *     several devices have room together       cut by layers                cut.c        over mapped
 *     ... and are to compute at once           divided by experts           among.c      over mapped
 *     ...                                      divided by rows              rows.c       over mapped
 *     ... for all but the routed experts       shared with the device       ../offload/  over streamed
 *     several devices, for all but these       shared with each             ../offload/  over streamed
 *
 * A placement is a table of functions over what it keeps. A device's placement lies over one of the CPU's, which serves
 * what the device does not, and all of the model once the device is lost: functions that a table leaves out are those
 * of the placement under it. The run asks through the functions pf_place_* below and knows no placement by name.
 *
 * If one of several devices is lost, the placement stays, and the CPU has that card's place in it (p->lost). If all
 * are, or nobody can say which, the placement is left: m->place becomes the one under it, once at most, and the struct
 * stays until the model is closed. So calls marked "any thread" need no lock: they may still ask the one that was left.
 * All others belong to the thread that holds the model's step lock, or that opens or closes. */
#ifndef PF_PLACEMENT_H
#define PF_PLACEMENT_H

#include "moe/layout/layout.h"
#include "moe/place/visits.h"
#include "tiers/evict.h"
#include "tiers/io.h"

/* Devices that a model may be placed on; n 0: none. */
struct pf_cards {
    int         n;
    int         gpu[PF_MAX_GPUS];         /* their numbers */
    pf_backend *at[PF_MAX_GPUS];
    uint64_t    room[PF_MAX_GPUS];        /* bytes, before anything is placed */
    double      bytes_s[PF_MAX_GPUS];     /* of their memory; 0: nobody knows */
    struct pf_link link;                  /* between them; zeros: nobody knows */
    double      swap_seconds;             /* an exchange of few rows that all have columns of; 0: as link says */
};

/* The part of a model that its devices compute; the CPU computes the rest. Of several cards each has the layers from
 * its first one up to the next card's, and the last one the output matrix. */
struct pf_cut {
    int  n_layers;                        /* the first n_layers layers */
    bool output;                          /* and the product with the output matrix */
    bool whole;                           /* all layers, output and embedding */
    bool visits;                          /* the last card has room for visits of the CPU's layers */
    int  n_more;                          /* cards besides the first */
    int  first[PF_MAX_GPUS];              /* of each card, the first one's being 0 */
    bool apart;                           /* but for routed experts, which the cards share with the CPU */
    bool by_experts;                      /* each card has experts of all layers, the first has all else: */
    int  first_expert[PF_MAX_GPUS];       /* of each card, the first one's being 0 */
    bool by_rows;                         /* each card has rows of all matrices: */
    int  first_share[PF_MAX_GPUS];        /* of each card, of PF_TEAM_SHARES, the first one's being 0 */
};

/* The layers [*first, *end) of card k. */
static inline void pf_cut_card(const struct pf_cut *c, int k, int *first, int *end)
{
    int last = k < c->n_more ? c->first[k + 1] : c->n_layers;
    *end = last < c->n_layers ? last : c->n_layers;
    *first = c->first[k] < *end ? c->first[k] : *end;
}

static inline struct pf_cut pf_cut_all(const struct pf_model *m)
{
    return (struct pf_cut){ .n_layers = m->n_layer, .output = true, .whole = true };
}

/* How to guess which experts the next layer will want from the drive: not at all; those that its router picks for the
 * residual stream as it is; all. */
enum pf_guess { PF_GUESS_NOTHING, PF_GUESS_PICKS, PF_GUESS_ALL };
enum { PF_GUESS_EARLY = 4, PF_GUESS_LATE = 5 };      /* depths: while the layer before is read; when it was computed */

struct pf_placement {
    const struct pf_place_ops *ops;
    struct pf_model     *m;
    pf_backend          *device;          /* the first card that is not lost; the CPU, if there is none */
    pf_backend          *cards[PF_MAX_GPUS];         /* all, lost ones too: cut.n_more + 1, then n_among; none: it is
                                             one of the CPU */
    atomic_uint          lost;            /* bit k: card k was lost */
    struct pf_cut        cut;
    int                  n_among;         /* cards that have experts, and nothing that a session sees */
    bool                 by_rows;         /* the device is a team of cards, */
    bool                 has_ranks;       /* of which other processes have the others */
    bool                 experts_apart;   /* for routed experts it is decided pick by pick who computes */
    bool                 in_turns;        /* steps are on several cards at once, which the host sees to in turn */
    struct pf_visits    *visits;          /* of the CPU's layers to the last card, in prompts; NULL: there are none */
    struct pf_placement *under;           /* NULL: all other weights are mapped */
};

/* Cards among which the layers are divided; if there are none, the CPU counts as one. */
static inline int pf_place_n_cards(const struct pf_placement *p)
{
    return 1 + p->cut.n_more;
}

static inline bool pf_place_has_lost(const struct pf_placement *p, int k)
{
    return atomic_load(&p->lost) >> k & 1;
}

/* Who computes the layers of card k: the card, or the CPU in its place. */
static inline pf_backend *pf_place_unit(const struct pf_placement *p, int k)
{
    return p->cards[k] && !pf_place_has_lost(p, k) ? p->cards[k] : p->m->cpu;
}

/* Few rows of a session, the step's part `part`: the far chunks [first, end) of its keys and values that they do not
 * write to; floats of the partials that they have of a chunk in one layer, at most. */
struct pf_far_step {
    int    part, rows, first, end;
    size_t floats;
};

/* A function that is NULL is that of the placement under this one, or does nothing. */
struct pf_place_ops {
    /* between: before a step of so many rows. ended: after a step that began at begun_ns and went well or failed. */
    pf_status (*between)(struct pf_placement *p, int rows);
    void      (*ended)(struct pf_placement *p, uint64_t begun_ns, bool well);

    /* After between: whether the CPU makes the partials of some chunks in the step's layers with far keys and values,
     * and of which. */
    bool      (*attends)(struct pf_placement *p, const struct pf_far_step *s, struct pf_far_range *out);

    /* Between enter and leave the weights of a layer but its routed experts can be used. leave follows every enter that
     * succeeded. */
    pf_status (*enter)(struct pf_placement *p, int il);
    void      (*leave)(struct pf_placement *p, int il);

    /* The routed experts of a layer: want as soon as they are picked, if there is something else to compute first;
     * experts computes them on b. A b that is not the placement's device wants its answer at once, from the host's
     * memory. Where p->in_turns of the model's placement says so, experts may leave copies to a card under way, until
     * that card's next layer, or copied, which fails if one of them has. */
    pf_status (*want)(struct pf_placement *p, int il, const struct pf_experts_op *e);
    pf_status (*experts)(struct pf_placement *p, pf_backend *b, int il, const struct pf_experts_op *e);
    pf_status (*copied)(struct pf_placement *p);

    /* Reading ahead while the drive would have nothing to do: guesses says, after want, whether to guess what layer il
     * will want, and how; guess takes the picks [rows][n_used], likeliest first (NULL: all experts in order), and while
     * fewer than depth reads are under way, more are begun. A wrong guess costs time, never a bit. */
    enum pf_guess (*guesses)(const struct pf_placement *p, int il, int rows);
    void          (*guess)(struct pf_placement *p, int il, const int32_t *picks, int rows, int depth);

    /* Around the opening of a session: the cut for it, when its buffers for any layers are there; room for its batches
     * besides the device's own; memory of the device that placement gives back until so much is free, and takes
     * again. */
    struct pf_cut (*cut_for)(const struct pf_placement *p, const struct pf_session_opts *o);
    pf_status     (*reserve)(struct pf_placement *p, const struct pf_backend_sizes *sizes);
    void          (*make_room)(struct pf_placement *p, uint64_t bytes);
    void          (*use_room)(struct pf_placement *p);

    /* Fills the device's memory with what it has room for and is in RAM. */
    pf_status (*fill)(struct pf_placement *p);

    /* Any thread. maps: the CPU may read the tensor, and does so where the file is mapped; none where cards
     * have all tensors. bytes, load, holds: bytes of a layer, or (-1) of all that the plan places in RAM, that are not
     * mapped; loading them; whether they are there. */
    bool      (*maps)(const struct pf_placement *p, const struct pf_tensor *t);
    uint64_t  (*bytes)(const struct pf_placement *p, int layer);
    pf_status (*load)(struct pf_placement *p, int layer, pf_progress_fn *progress, void *ctx, uint64_t done,
                      uint64_t total);
    bool      (*holds)(const struct pf_placement *p, int layer);

    /* Learned deals (pf_learned_get and _set). measure: from now on deals are tried out (on), or no longer; returns the
     * number of trials since the last call. */
    uint64_t  (*measure)(struct pf_placement *p, bool on);
    bool      (*knows)(const struct pf_placement *p);    /* whether it has learned anything */
    void      (*tell)(const struct pf_placement *p, struct pf_learned *out);
    void      (*recall)(struct pf_placement *p, const struct pf_learned *l);

    /* Any thread. stats adds the placement's part to *out; stats_reset sets its counts to 0. */
    void      (*stats)(const struct pf_placement *p, struct pf_stats *out);
    void      (*stats_reset)(struct pf_placement *p);

    /* Some cards, but not all, are lost now, which p->lost does not say yet: gives back their memory. From now on the
     * placement computes without them. False: it cannot. NULL: there is nothing to do. */
    bool      (*lose)(struct pf_placement *p, unsigned lost);

    /* Gives back memory of the device, which may be lost. Functions for any thread must still work. Called once, before
     * close. */
    void      (*leave_device)(struct pf_placement *p);
    void      (*close)(struct pf_placement *p);          /* not the placement under it */
};

/* ---- For the run; p NULL: everything is mapped, and nothing is known of it --------------------------------------- */

pf_status pf_place_between(struct pf_placement *p, int rows);
void      pf_place_ended(struct pf_placement *p, uint64_t begun_ns, bool well);
bool      pf_place_attends(struct pf_placement *p, const struct pf_far_step *s, struct pf_far_range *out);
pf_status pf_place_enter(struct pf_placement *p, int il);
void      pf_place_leave(struct pf_placement *p, int il);
pf_status pf_place_want(struct pf_placement *p, int il, const struct pf_experts_op *e);
pf_status pf_place_experts(struct pf_placement *p, pf_backend *b, int il, const struct pf_experts_op *e);
pf_status pf_place_copied(struct pf_placement *p);
enum pf_guess pf_place_guesses(const struct pf_placement *p, int il, int rows);
void      pf_place_guess(struct pf_placement *p, int il, const int32_t *picks, int rows, int depth);
struct pf_cut pf_place_cut_for(const struct pf_placement *p, const struct pf_session_opts *o);
pf_status pf_place_reserve(struct pf_placement *p, const struct pf_backend_sizes *sizes);
/* What a GPU's cards hold beside sessions, such as cached experts, gives way to one with these options. */
pf_status pf_place_make_room(struct pf_model *m, const struct pf_session_opts *o);
void      pf_place_use_room(struct pf_placement *p);
pf_status pf_place_fill(struct pf_placement *p);
bool      pf_place_maps(const struct pf_placement *p, const struct pf_tensor *t);
uint64_t  pf_place_bytes(const struct pf_placement *p, int layer);
pf_status pf_place_load(struct pf_placement *p, int layer, pf_progress_fn *progress, void *ctx, uint64_t done,
                        uint64_t total);
bool      pf_place_holds(const struct pf_placement *p, int layer);
bool      pf_place_can_measure(const struct pf_placement *p);  /* it can learn, and has learned nothing yet */
uint64_t  pf_place_measure(struct pf_placement *p, bool on);
void      pf_place_tell(const struct pf_placement *p, struct pf_learned *out);
void      pf_place_recall(struct pf_placement *p, const struct pf_learned *l);
void      pf_place_stats(const struct pf_placement *p, struct pf_stats *out);
void      pf_place_stats_reset(struct pf_placement *p);

/* ---- The model's placement --------------------------------------------------------------------------------------- */

/* Makes p the placement of its model and the device its backend. */
void pf_place_set(struct pf_placement *p);

/* After a failure of devices: from now on the model runs without those that are lost, and if nobody can say which they
 * are, or no other is left, on the CPU alone. False: it ran on the CPU already, or it cannot run without them. */
bool pf_model_leave_device(struct pf_model *m);

/* Layers that devices compute, and the bytes of weights that they read for every token, whatever is picked. */
void pf_place_share(const struct pf_placement *p, int *n_layers, uint64_t *token_bytes);

/* Bytes of a session where devices compute the part that the cut says, and the CPU the rest. device: the first card,
 * as which all others are taken. */
pf_status pf_place_session_bytes(const struct pf_model *m, const struct pf_cut *cut, const pf_backend *device,
                                 const struct pf_session_opts *opts, uint64_t *kv_bytes, uint64_t *work_bytes);

/* Bytes of a device that keys and values leave free if not all of them fit: allocations take whole pages, and small
 * vectors are copied when they are first used. */
enum { PF_NEAR_SPARE_BYTES = 2 << 20 };

/* What a session leaves free of a card for the keys and values of layers that visit it. */
uint64_t pf_place_visits_stage(const struct pf_placement *p, int card, const struct pf_session_opts *o);

/* Bytes that a card has already of what all sessions share: a step's buffers, as large as the session wants them, and
 * the stage of far keys and values. */
struct pf_there {
    uint64_t buffers, stage;
};

/* Positions of a session whose keys and values there is room for in the device's memory as it is now, o->n_near being
 * 0, beside those of o->n_sessions that are to come. there: of each card. 0: all of them, or it is no device's, or even
 * the least would not fit. */
int64_t pf_place_near(const struct pf_placement *p, const struct pf_session_opts *o, const struct pf_there *there);

/* Closes p and all that is under it, then their devices. NULL-safe. */
void pf_place_close(struct pf_placement *p);

/* For tests: engine and policy of the store (io NULL: the usual ones), and a device. */
struct pf_residency_setup {
    pf_io_open_fn *io;
    void          *io_ctx;
    const struct pf_evict_ops *policy;
    uint64_t       stall_ns;
    pf_status    (*device)(pf_backend **out, void *ctx);     /* NULL: no device; else opens the one to use, or the next
                                                                of several */
    void          *device_ctx;
};
/* pf_model_open with such a setup. */
pf_status pf_model_open_with(pf_model **out, const char *path, const struct pf_model_opts *o,
                             const struct pf_residency_setup *setup);

#endif
