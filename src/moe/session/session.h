/* A session: one mutable sequence of tokens, its keys and values, and the work buffers of a step.
 *
 *     tokens [0 .. pos)            the sequence; at or past pos is garbage
 *     computed <= pos              what keys, values and state hold; below pos only after going back to a checkpoint,
 *                                  or when they were lost with their device
 *     kv[layer]                    chunks of 256 positions; whatever lies at or past computed is garbage
 *     held_from                    layers with a window hold the positions from here on (ring.c). A row at computed
 *                                  sees none before it: held_from is 0, or computed - window at most
 *     block_kv[layer]              keys of blocks; garbage from the first block on that is not full at computed
 *     state of a unit              of its layers after position state_holds - 1; at 0 it is not looked at. Mostly
 *                                  state_holds is computed. It is more after a step with drafts of which not all were
 *                                  right, until the next step: `inputs` has what leads from `next` to any row of it
 *     drafts                       [ahead_from, ahead_from + n_ahead) are positions of which s->logits has the logits,
 *                                  keys and values are there, and tokens has what they were evaluated for: drafts, from
 *                                  pos on
 *     units                        who computes which layers, and the memory of each: one for each card of the model's
 *                                  placement, or the CPU in the place of a lost one, and one of the CPU if the cards
 *                                  were not to compute all layers (place/cut.h)
 *     m->work                      inputs and activations of a step, shared by all sessions of the model (work.h)
 *
 * A step writes keys and values past computed and the second copy of the state, and commits by moving computed and
 * swapping the copies; a step that fails leaves no trace. One thread at a time per session; sessions of one model take
 * turns on the model's step lock. */
#ifndef PF_SESSION_H
#define PF_SESSION_H

#include "draft/drafter.h"
#include "moe/layout/layout.h"

enum { PF_MAX_SOURCES = 2 };

struct pf_checkpoint {       /* state.c; its data are in kept[] of each unit, under the same number */
    int64_t pos;             /* holds state and windows after position pos - 1; 0: unused */
};

enum { PF_MAX_UNITS = PF_MAX_GPUS + 1 };

/* A unit computes layers [first, end) of a session: a backend, and the session's memory there. Its buffers are those of
 * the unit of the same number in m->work. */
struct pf_unit {
    pf_backend       *backend;               /* NULL: there is no such unit, and all other fields are unused */
    int               first, end;
    size_t            state_bytes;           /* recurrent state of the unit's layers; 0: they have none */
    float            *state, *next;          /* [state_bytes] each */
    size_t            inputs_bytes;
    float            *inputs;                /* inputs of the recurrent layers in the last step, if it had 2 rows to
                                                draft_max + 1: layer by layer, [draft_max + 1][pf_input_floats] */
    size_t            kept_bytes;            /* size of a checkpoint: the state, then windows */
    void             *kept[PF_MAX_CHECKPOINTS];
};

/* What the whole model put out at positions [first, first + n), for a session of the layer that guesses ahead: read by
 * its steps, which begin a position later. */
struct pf_given_rows {
    const float *rows;       /* [n][pf_hidden_width] */
    int64_t      first;
    int          n;
};

struct pf_session {
    struct pf_model      *m;
    struct pf_session_opts opts;
    int                   number;            /* by which other processes know it (crew.h); 0: there are none */
    int64_t               pos, computed, held_from;
    int64_t               next_holds;        /* `next` of the units is the state after so many positions, as it was
                                                before the last step; 0: it is garbage */
    int64_t               state_holds;
    bool                  inputs_kept;       /* `inputs` of the units are those of [next_holds, state_holds) */
    int                   window;            /* the widest window of the layers; 0: none has a window */
    int64_t               ring_positions;    /* positions in rings; 0: layers with a window hold the whole context */
    int32_t              *tokens;            /* [n_ctx] */
    pf_backend           *owner;             /* of logits and hidden: the model's backend, or one that was lost; NULL:
                                                the session has no buffers */
    int                   n_losses;           /* m->n_losses when its buffers were opened */
    struct pf_unit        units[PF_MAX_UNITS];
    int                   n_units;           /* in the order of their layers: the cards, then the CPU, if it computes
                                                some layers */
    struct pf_unit       *output_unit;       /* the one that has the output matrix */
    struct pf_kv_layer   *kv;                /* [n_layer] each in the memory of its unit */
    struct pf_kv_layer   *block_kv;          /* [n_layer] keys of blocks */
    struct pf_kv_layer   *index_kv;          /* [n_layer] keys of the indexers, of positions or blocks */
    struct pf_checkpoint  checkpoints[PF_MAX_CHECKPOINTS];
    int                   n_checkpoints;
    struct pf_checkpoint *planned;           /* a checkpoint that the next steps make on their way, or NULL */
    int64_t               planned_pos;       /* how many positions `planned` is to cover */
    float                *logits;            /* [pf_logit_rows][n_vocab] of the last position, or of those of a step
                                                with drafts, readable */
    float                *tops;              /* [pf_logit_rows][pf_n_tops] the largest of each PF_TOPS_OF of them, in
                                                memory that the output unit shares; NULL: it does not look for them */
    bool                  has_tops;          /* and they are those of `logits` */
    float                *hidden;            /* [n_batch][pf_hidden_width] of the rows of the last step, readable: what
                                                the layer that guesses ahead reads; NULL: nobody wants it */
    int                   n_hidden;          /* rows of the last step, of which `hidden` is */
    struct pf_given_rows  given;
    int64_t               ahead_from;
    int                   n_ahead;           /* 0: no drafts are there */
    struct pf_source {
        struct pf_drafter      *drafter;
        struct pf_draft_account account;
    } sources[PF_MAX_SOURCES];               /* whom drafts come from: the first of which the gate wants some */
    int                   n_sources;         /* 0: no drafts are wanted */
    int                   source;            /* whose the drafts that are there are */
    uint64_t              n_drafted, n_accepted;     /* since it was opened */
    float                *all_logits;        /* [n_all][n_vocab] of an eval with PF_LOGITS_ALL, else NULL */
    size_t                n_all;
    bool                  has_logits;        /* logits belongs to position pos - 1 */
    struct pf_candidate  *candidates;        /* [n_vocab] the sampler's scratch, as are these two */
    float                *weights, *changed; /* [n_vocab] */
    int32_t              *seen;              /* [n_vocab] the sampler's counts, all zero between calls */
    uint64_t              step_ns;           /* time of the last step that it had a part in */
    bool                  unwatched;         /* its steps are not watched: see measure.c */
    atomic_bool           cancel;
    char                  why[512];          /* why its part of a batch failed */
};

/* The unit that computes layer il. */
static inline const struct pf_unit *pf_unit_of(const struct pf_session *s, int il)
{
    const struct pf_unit *u = s->units;
    while (il >= u->end)
        u++;
    return u;
}

/* By what its keys and queries rotate. */
static inline const struct pf_rope *pf_session_rope(const struct pf_session *s)
{
    bool is_long = s->m->long_from > 0 && s->opts.n_ctx >= s->m->long_from;
    return is_long ? &s->m->long_rope : &s->m->rope;
}

/* Whether its keys, values and state are where the model computes now; otherwise some went with a device, and all are
 * lost. */
static inline bool pf_session_is_here(const struct pf_session *s)
{
    return s->owner && s->n_losses == atomic_load(&s->m->n_losses);
}

/* Moves the session to where the model computes if that has changed; everything is to be computed again. With the step
 * lock held. On failure the session has no buffers, and the next call tries again. */
pf_status pf_session_follow(struct pf_session *s);

/* Opens a session with resolved options, and nothing less. */
pf_status pf_session_open_so(struct pf_session **out, struct pf_model *m, const struct pf_session_opts *o);

/* state.c. State of a layer, before and after the step; NULL: no state came before. */
float *pf_state_before(const struct pf_session *s, int il);
float *pf_state_after(const struct pf_session *s, int il);
void pf_state_begin(struct pf_session *s, int rows);         /* before a step of so many rows, come what may */
void pf_state_commit(struct pf_session *s, int rows);        /* after a step that succeeded */
void pf_state_keep(struct pf_session *s, int64_t pos);       /* makes a checkpoint at pos, if its state is at hand; with
                                                                the step lock held */
/* Steps that come to position pos, or go past it, are to make a checkpoint of what is before it: a step's first
 * pf_state_cut rows (0: all of them, as it does not go past) leave a layer's state in pf_state_between, and the others
 * go on from there. Another checkpoint gives way at once. Only of models of which pf_state_can_cut is true. 0: none
 * is wanted any more. */
bool pf_state_can_cut(const struct pf_model *m);
void pf_state_plan(struct pf_session *s, int64_t pos);
int  pf_state_cut(const struct pf_session *s, int rows);
float *pf_state_between(const struct pf_session *s, int il);
const struct pf_checkpoint *pf_state_checkpoint(const struct pf_session *s, int64_t pos);    /* the last one at or
                                                                before pos; NULL: there is none */
int64_t pf_state_reach(const struct pf_session *s, int64_t pos);     /* what pf_state_rewind makes computed */
void pf_state_rewind(struct pf_session *s, int64_t pos);     /* makes computed <= pos; takes the step lock if pos > 0 */
/* Steps up to position `end` may have written rows that are not committed: where they took the place of something that
 * the next step sees, computed becomes less. Not of recurrent models. With the step lock held. */
void pf_state_abandon(struct pf_session *s, int64_t end);
/* What commits and rewinding do with memory: `next` becomes the state, and the state `next`; checkpoint number i is
 * made of pos positions, or taken back, with the state or windows alone. With the step lock held. */
void pf_state_swap(struct pf_session *s);
void pf_state_copy_kept(const struct pf_session *s, int i, int64_t pos, bool state, bool keep);
/* Whether a step of so many rows leaves the inputs of recurrent layers in `inputs`; where those of layer il are. */
bool   pf_state_keeps_inputs(const struct pf_session *s, int rows);
float *pf_state_inputs(const struct pf_session *s, int il);
/* 0, or the state is ahead of computed: it will be what it should be once the layers have gone over the inputs of so
 * many rows, from the state before them (pf_state_earlier) to pf_state_now; then pf_state_settled says so. */
int    pf_state_behind(const struct pf_session *s);
float *pf_state_earlier(const struct pf_session *s, int il);
float *pf_state_now(const struct pf_session *s, int il);
void   pf_state_settled(struct pf_session *s);

/* The session that drafts are made with; NULL: none is. */
struct pf_session *pf_session_drafting(const struct pf_session *s);

/* run/follow.c: drafts of a model that follows the session (pf_session_follower). Opens a session of it. */
pf_status pf_drafter_follower(struct pf_drafter **out, struct pf_session *s);

/* ring.c */
bool    pf_ring_holds(const struct pf_session *s, int64_t pos);      /* all that a row at pos sees */
void    pf_ring_advance(struct pf_session *s, int rows);             /* a step of so many rows may write */
/* The windows of the unit's layers in front of pos, to `kept` or from there. */
void    pf_ring_copy(const struct pf_session *s, const struct pf_unit *u, int64_t pos, void *kept, bool keep);

#endif
