/* One step: rows of one or several sessions of a model go through all layers together.
 *
 *     rows     | part 0: positions of session a | part 1: of b | part 2: of c | ..
 *               `-- first, rows --'                           `- the last n_logits rows of a part have logits
 *
 * Each session has one part at most. Activations are [rows][...] in m->work; keys, values, state and rings of a part's
 * rows are its own session's. One unit computes all layers, or several take turns (place/cut.h); all sessions of a step
 * are cut alike. */
#ifndef PF_STEP_H
#define PF_STEP_H

#include "moe/session/session.h"
#include "moe/session/work.h"

/* Rows [first, first + rows) of a step: the tokens at positions from ... of s. */
struct pf_part {
    struct pf_session *s;
    int64_t            from;
    int                first, rows, n_logits;
    int                n_drafts;             /* of the rows, the last ones */
    bool               hidden;               /* the session is handed what the layers make of its rows */
    float             *logits;               /* [n_logits][n_vocab] where those of the last n_logits rows go */
};

struct pf_step {
    struct pf_model      *m;
    const struct pf_part *parts;
    int                   n_parts, rows, n_logits;   /* rows, n_logits: sums over the parts */
    struct pf_work_unit  *unit;              /* the one of m->work that is at work */
    bool                  visits;            /* the layers at work are the CPU's, on a card (place/visits.h): their
                                                keys and values are the host's */
    struct pf_far_range   far_by_host[PF_BY_HOST_PARTS];     /* of each part, far chunks that the CPU attends to while
                                                the device does to all others; end 0: it does not */
    int                   far_ahead;         /* the layer whose far keys and values are on their way; 0: none's are */
    int                   back;              /* with several processes: rows from here on come back to the first one */
    bool                  is_told;           /* other processes make the step at the same time */
    enum pf_repeat_how    how;               /* if so: how rank 0 makes it, */
    bool                  hands_out;         /* and whether it downloads the logits with the layers */
    bool                  handed_out;        /* the logits were downloaded with the layers that they come from */
    bool                  follows;           /* another step of its one session follows at once, without giving the step
                                                lock, and begins on the first card while the others are still at work on
                                                this one */
};

/* One more than the last position of the part. */
static inline int64_t pf_part_end(const struct pf_part *p)
{
    return p->from + p->rows;
}

/* Picks and weights [rows][n_used] of a layer, in the backend's memory. */
struct pf_picks {
    int32_t *picks;
    float   *weights;
};

/* The router's own picks and weights of the ordinal-th layer with experts. */
static inline struct pf_picks pf_routed_at(const struct pf_step *t, int ordinal)
{
    size_t at = (size_t)ordinal * (size_t)t->rows * (size_t)t->m->n_used;
    return (struct pf_picks){ t->unit->buf.picks + at, t->unit->buf.pick_weights + at };
}

/* Picks and weights that the ordinal-th layer with experts computes with: the router's, or injected ones. */
static inline struct pf_picks pf_picks_at(const struct pf_step *t, int ordinal)
{
    size_t at = (size_t)ordinal * (size_t)t->rows * (size_t)t->m->n_used;
    if (t->m->injected.n_tokens == 0)
        return pf_routed_at(t, ordinal);
    return (struct pf_picks){ t->unit->buf.injected + at, t->unit->buf.injected_weights + at };
}

#endif
