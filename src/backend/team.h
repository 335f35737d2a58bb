/* Several cards as one backend: all run every step, each with its share of the rows of matrices and of the heads.
 *
 * A product with a divided matrix leaves some columns of its output on each card. Operations that take element by
 * element, or head by head, go on with these; all others get whole rows, which are gathered first (backend/meet.h).
 * What is not divided every card computes for itself. So of a layer's attention the heads' outputs and the block's are
 * gathered, of its feed-forward the activation and the block's output. Experts are divided like a feed-forward, each
 * of them between all cards: every card has the router and makes its choice, the picks' activations are gathered, and a
 * column of their outputs is added up, in the router's order, on the card that has it.
 *
 *     one address           the first card's memory; of keys and values whose heads are divided it is an address only
 *     the other cards       have memory of the same size for each, and, of keys and values, for their own heads
 *
 * The cards may be those of several processes (backend/ranks.h), one each. Then all processes ask their teams for the
 * same operations in the same order, and each team asks its own card; what is gathered crosses by the ranks.
 *
 * A team's table has the operations of models with attention, dense feed-forward and experts; the others are NULL.
 * Owner and threads are those of any backend. */
#ifndef PF_TEAM_H
#define PF_TEAM_H

#include "backend/backend.h"
#include "backend/ranks.h"

enum { PF_TEAM_SHARES = 1024 };           /* a card's share of the rows is so many of these */

/* How n_units are divided: card k has [bounds[k], bounds[k + 1]). first: of the shares, the first of each card.
 * False: a card would have none, so that every card has them all. */
bool pf_team_bounds(const int *first, int n_cards, int n_units, int *bounds);

/* Who has which shares. */
struct pf_team_shape {
    int       n;                          /* cards of all */
    int       first[PF_MAX_GPUS];         /* of the shares, the first of each card */
    bool      by_heads;                   /* keys and values are divided, as are the matrices that make them and the
                                             queries */
    int       widest;                     /* columns of the widest rows that are gathered */
    pf_ranks *ranks;                      /* NULL: all cards are this process's */
    int       rank;                       /* of the cards, the one that is this process's */
};

/* Bytes that a team takes of each card's memory, beside what the card itself reserves. */
uint64_t pf_team_bytes(const struct pf_backend_sizes *sizes, const struct pf_team_shape *shape);

/* cards: those of this process, of one kind, which pf_backend_cuda_meet knows. Closing the team closes them. */
pf_status pf_team_open(pf_backend **out, pf_backend *const *cards, const struct pf_team_shape *shape);

/* Places each card's rows of w: whole units of `unit` rows, on the last card also what is left. Where a card would have
 * no unit, nothing is done: such a matrix is to be placed whole. */
pf_status pf_team_divide(pf_backend *team, const struct pf_weight *w, int unit);

/* Places each card's rows of one kind of matrix (gate, up or down) of a layer's experts, of each expert the same rows,
 * by whole units as pf_team_divide does. */
pf_status pf_team_divide_experts(pf_backend *team, const struct pf_expert_weight *w, int n_expert, int unit);

/* Frees the team, and leaves its cards open. NULL-safe. */
void pf_team_dissolve(pf_backend *team);

#endif
