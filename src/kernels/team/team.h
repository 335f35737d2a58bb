/* Shared by the files of a team of cards (backend/team.h).
 *
 *     team.c           opens, closes; memory; a step begins, ends, is waited for
 *     team_experts.c   experts, of each of which every card has some rows
 *     team_divided.c   which rows are divided, and gathering them
 *     team_ops.c       operations
 *
 * Invariants:
 *  1. An address of the team's memory is translated for each card by pf_team_here; other addresses, of weights, stay.
 *  2. divided[] has the rows of which each card has its own columns only: on card k they lie at the same address,
 *     packed, [rows][first[k + 1] - first[k]], but those of a single row where they are in the whole row. Whatever else
 *     is at an address is whole on all cards. Entries do not overlap.
 *  3. A recorded step tells nobody what it left divided, so what is read after `end` is whole by then.
 *  4. What is shown lies in two halves in turn: a half is written again after all cards have passed another gathering,
 *     hence after they have read it. Between processes it lies in the card's own memory, one card's part behind the
 *     other's, and is written in the order of the card's stream; how many rows cross at once all know alike, so the
 *     room for them does not change.
 *  5. An activation of few rows that takes the place of its gate is held, until its rows are gathered, or until another
 *     operation on what is divided comes: then `acted` is settled first.
 *  6. Rows that trays have room for are exchanged by these, others are shown. When a step has failed, some card may not
 *     have been asked for an exchange: `apart` is set, and trays are cleared before the next. */
#ifndef PF_KERNELS_TEAM_H
#define PF_KERNELS_TEAM_H

#include "backend/meet.h"
#include "backend/team.h"

enum { TEAM_MAX_DIVIDED = 16 };

struct divided {
    const float *at;
    int          rows, n;                 /* n: columns of all cards */
    int          first[PF_MAX_GPUS + 1];
};

struct team_buffer {
    char  *at;
    size_t bytes;
    char  *on[PF_MAX_GPUS];
    size_t chunk_bytes;                   /* of a head's chunk, where heads are divided; 0: they are not */
    int    n_head, first[PF_MAX_GPUS + 1];
};

struct team_weight {
    const void *data;
    int         first[PF_MAX_GPUS + 1];
};

/* A matrix of a layer's experts: each card's rows of all of them. */
struct team_experts {
    const void     *data;                 /* the whole matrix's table */
    int             n_expert, first[PF_MAX_GPUS + 1];
    const uint8_t **rows[PF_MAX_GPUS];    /* {n_expert} */
    float          *bias[PF_MAX_GPUS];    /* {the card's rows, n_expert}, or NULL */
};

struct held_act {
    struct pf_act act;
    float        *y;                      /* where gate's rows are; NULL: none is held */
    const float  *up;
    int64_t       n;
};

struct team {
    struct pf_backend base;
    struct pf_backend_ops ops;            /* the table of base, with the cards' name */
    const struct pf_meet_ops *meet;
    struct pf_team_shape shape;
    pf_backend *card[PF_MAX_GPUS];        /* of this process: cards [from, end) of n */
    int         n, from, end;

    struct team_buffer *buffers;          /* sorted by address */
    size_t      n_buffers, cap_buffers;
    struct team_weight *weights;          /* sorted by address */
    size_t      n_weights, cap_weights;
    struct team_experts *experts;         /* sorted by address */
    size_t      n_experts, cap_experts;
    struct divided divided[TEAM_MAX_DIVIDED];
    int         n_divided;
    struct held_act acted;

    float      *shown[PF_MAX_GPUS];       /* two halves of shown_floats each */
    size_t      shown_floats;
    bool        all_reach;                /* otherwise shown[] is pinned memory */
    int         half;
    void       *tray[PF_MAX_GPUS];        /* NULL: not all_reach */
    bool        apart, in_step;
    void       *pick_act;                 /* activations of a step's picks: a buffer of the team, or NULL; */
    size_t      pick_act_bytes;
    void       *pick_whole;               /* of few picks, made whole here */
    size_t      pick_whole_bytes;
};

static inline struct team *pf_team_of(pf_backend *b)
{
    return (struct team *)b;
}

static inline int pf_team_columns(const int *first, int k)
{
    return first[k + 1] - first[k];
}

/* team.c */
const struct team_buffer *pf_team_buffer(const struct team *t, const void *p);    /* NULL: it is not the team's */
void *pf_team_here(const struct team *t, int k, const void *p);
const struct team_weight *pf_team_weight(const struct team *t, const void *data); /* NULL: every card has all of it */
/* Sorted lists of elements that begin with their address: the number of the first one behind p; room for one more. */
size_t pf_team_behind(const void *list, size_t n, size_t size, const void *p);
pf_status pf_team_grow(void **list, size_t n, size_t *cap, size_t size);

/* team_divided.c. The entry that has the float at p, or NULL; where card k has that float, which is its own. */
const struct divided *pf_team_divided(const struct team *t, const float *p);
float *pf_team_part(const struct team *t, int k, const struct divided *d, const float *p);
float *pf_team_at(const struct team *t, int k, const float *p);   /* of its part, if p is divided, else pf_team_here */
/* Before n floats at p are read by all cards: makes them whole. Before they are written: entries that lie within go,
 * those that do in part become whole. */
pf_status pf_team_whole(struct team *t, const void *p, int64_t n);
pf_status pf_team_wrote(struct team *t, const void *p, int64_t n);
/* Asks the cards for the activation that is held. */
pf_status pf_team_settle(struct team *t);
/* Whether trays have room for rows so divided; exchanges them: whole rows go to y of each card, which is d->at or no
 * part of d, or, with a, are added there, times a. d stays as it is. */
bool pf_team_swaps(const struct team *t, const struct divided *d);
pf_status pf_team_swap(struct team *t, const struct divided *d, float *y, const float *a, bool for_down);
/* No card waits for another one's columns any longer; the step fails. */
void pf_team_give_up(struct team *t);
/* Clears the trays if a step has failed. No card may be at work. */
pf_status pf_team_clear(struct team *t);
/* From now on rows are divided so, in place of what was at that address. */
pf_status pf_team_add(struct team *t, const struct divided *d);

/* Rows are written that are divided as d says. */
pf_status pf_team_write(struct team *t, const struct divided *d);

/* team_experts.c */
size_t pf_team_pick_bytes(const struct pf_backend_sizes *sizes);
pf_status pf_team_route(pf_backend *backend, const struct pf_route_op *r);
pf_status pf_team_run_experts(pf_backend *backend, const struct pf_experts_op *e);
void pf_team_free_experts(struct team *t);

extern const struct pf_backend_ops pf_team_ops;   /* team_ops.c: the operations; team.c adds the rest */

#endif
