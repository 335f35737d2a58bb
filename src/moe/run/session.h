/* A session: one mutable timeline of tokens, its keys and values, and the work buffers of a step.
 *
 *     tokens [0 .. pos)            the timeline; at or past pos is garbage
 *     computed <= pos              what keys, values and state hold; below pos only after going back to a checkpoint,
 *                                  or when they were lost with their device
 *     kv[layer]                    chunks of 256 positions; whatever lies at or past computed is garbage
 *     held_from                    layers with a window hold the positions from here on (ring.c). A row at computed
 *                                  sees none before it: held_from is 0, or computed - window at most
 *     block_kv[layer]              keys of blocks; garbage from the first block on that is not full at computed
 *     state of a unit              of its layers after position computed - 1; at computed 0 it is not looked at
 *     units                        who computes which layers, and the memory of each. One: the model's backend computes
 *                                  all of them. Two: it computes the first ones, and the CPU the others (split.h)
 *     buffers of a unit            activations of one batch of at most n_batch rows
 *
 * A step writes keys and values past computed and the second copy of the state, and commits by moving computed and
 * swapping the copies; a step that fails leaves no trace. One thread at a time per session; sessions of one model take
 * turns on the model's step lock. */
#ifndef PF_SESSION_H
#define PF_SESSION_H

#include "moe/model/model.h"

struct pf_kv_layer {
    struct pf_kv_view view;
    size_t            k_bytes, v_bytes;      /* of the buffers */
};

/* What compressed attention wants to know of positions: rotary tables as cs, and of the blocks that a batch's rows may
 * touch. */
struct pf_block_inputs {
    float   *back;                           /* cs for turning back, */
    float   *far, *far_back;                 /* both for layers with keys of blocks, */
    int32_t *number[PF_MAX_RATIOS];          /* for each ratio the blocks, pf_block_rows of them, */
    float   *cs[PF_MAX_RATIOS];              /* and the far table of where they begin */
};

/* Activations of a batch, in the memory of a unit; [rows][...] each. */
struct pf_buffers {
    void  *base;
    size_t bytes;
    float *x;                /* residual streams {streams.n * n_embd} */
    float *flat, *mix;       /* of several: their norm {the same}, and how the block at work mixes them {n_weights} */
    float *guess_mix;        /* and how the next one would */
    float *h;                /* its norm {n_embd} */
    float *q, *k, *v;        /* {n_head * hd} ... of the widest layer */
    float *attn;             /* what heads put out {n_head * hd_v}, {V} */
    float *packed;           /* projections that have to be dealt out: {2 * n_head * hd}; q, k, v and, if packed, z of
                                a delta net {2 K + 2 V}; latent attention's queries and then values by head */
    float *gate_out;         /* gate of attn, z of a delta net if not packed: as attn; latent attention's
                                {n_latent + n_rope} */
    float *q_latent;         /* {n_q_latent} of latent and of compressed attention; the latter's u, gate and new keys of
                                blocks are in packed, gate_out and v */
    float *index_q, *index_k;        /* of an indexer {index.n_head * index.width}, {index.width}, */
    float *index_w;          /* {index.n_head} */
    int32_t *chosen;         /* the keys of its choice {max_chosen} */
    float *mixed, *ba;       /* of a delta net: q, k, v after its convolution {2 K + V}, beta and alpha {2 n_v_head} */
    float *gate, *up;        /* dense or shared FFN {n_ff} */
    float *low, *added;      /* of adapters: A x {lora_rank}, B of that {lora_out} */
    float *y, *y_shared;     /* what a block, and what its shared expert adds {n_embd} */
    float *shared_gate;      /* {1} */
    float *router;           /* {n_expert} */
    float *logits;           /* PF_LOGIT_ROWS rows {n_vocab} */
    float   *pick_weights;   /* of all layers with experts: [n_moe][rows][n_used] */
    int32_t *picks;          /* the same; pf_picks_at */
    int32_t *guess;          /* what the next layer might pick {n_used}, */
    float   *guess_weights;  /* with what weights: PF_GUESS_ROWS rows at most */
    void    *inputs;         /* what the host writes for a step, cut up anew for each: */
    int32_t *ids, *pos;      /* {1} */
    float   *temper;         /* factor of the queries {1} */
    float   *cs;             /* rotary table {2 * n_pairs} */
    struct pf_block_inputs blocks;
    int32_t *injected;       /* picks that take the place of the router's, as picks; only if m->injected has any, */
    float   *injected_weights;
};

/* The same cut of the host's copy. */
struct pf_inputs {
    int32_t *ids, *pos;
    float   *temper, *cs;
    struct pf_block_inputs blocks;
    int32_t *picks;
    float   *weights;
    size_t   bytes;
};

/* Picks and weights [rows][n_used] of a layer, in the backend's memory. */
struct pf_picks {
    int32_t *picks;
    float   *weights;
};

/* How many blocks so many rows may touch. It depends on nothing else, so that steps of as many rows are alike. */
static inline int pf_block_rows(int ratio, int rows)
{
    return (rows + ratio - 2) / ratio + 1;
}

enum { PF_LOGIT_ROWS = 16 };         /* rows that go through the output matrix at once */

struct pf_candidate {        /* sampler.c */
    float   logit;
    int32_t id;
};

enum { PF_MAX_CHECKPOINTS = 8 };
struct pf_checkpoint {       /* state.c; what it consists of, units have kept under the same number */
    int64_t  pos;            /* state and windows are those after position pos - 1; 0: none */
    uint64_t age;
};

/* What computes layers [first, end) of a session: a backend, and the session's memory there. */
struct pf_unit {
    pf_backend       *backend;               /* NULL: there is no such unit, and nothing below */
    int               first, end;
    struct pf_buffers buf;
    size_t            state_bytes;           /* of the layers; 0: none of them has any */
    float            *state, *next;          /* [state_bytes] each */
    size_t            kept_bytes;            /* of a checkpoint: the state, then windows */
    void             *kept[PF_MAX_CHECKPOINTS];
};

struct pf_session {
    struct pf_model      *m;
    struct pf_session_opts opts;
    int64_t               pos, computed, held_from;
    int                   window;            /* the widest of the layers; 0: there is none */
    int64_t               ring_positions;    /* of layers with a window; 0: they hold the whole context */
    int32_t              *tokens;            /* [n_ctx] */
    struct pf_unit        units[2];          /* of the model's backend, or of one that was lost; of the CPU if that
                                                takes part */
    struct pf_unit       *unit;              /* the one at work in a step */
    struct pf_kv_layer   *kv;                /* [n_layer] each in the memory of its unit */
    struct pf_kv_layer   *block_kv;          /* [n_layer] keys of blocks */
    struct pf_kv_layer   *index_kv;          /* [n_layer] keys of the indexers, of positions or blocks */
    struct pf_checkpoint  checkpoints[PF_MAX_CHECKPOINTS];
    int                   n_checkpoints;
    uint64_t              n_kept;            /* checkpoints ever made */
    struct pf_checkpoint *planned;           /* one that the next steps make on their way, or NULL; */
    int64_t               planned_pos;       /* of the first so many positions */
    struct pf_backend_sizes sizes;           /* of its batches */
    void                 *inputs;            /* the host's copy of buf.inputs */
    float                *handed;            /* [n_batch][n_embd] buf.x of the second unit: what the first can copy from
                                                and to */
    float                *logits;            /* [n_vocab] of the last position, readable */
    float                *all_logits;        /* [n_all][n_vocab] of an eval with PF_LOGITS_ALL, else NULL */
    size_t                n_all;
    bool                  has_logits;        /* logits belongs to position pos - 1 */
    struct pf_candidate  *candidates;        /* [n_vocab] the sampler's scratch */
    int32_t              *seen;              /* [n_vocab] the sampler's counts, all zero between calls */
    bool                  unwatched;         /* its steps are nobody's: see measure.c */
    atomic_bool           cancel;
};

/* One batch: rows tokens at positions s->computed ... Puts the logits of the last n_logits rows into logits. */
struct pf_batch {
    const int32_t *tokens;
    int            rows, n_logits;
    float         *logits;                   /* [n_logits][n_vocab] */
};

/* Cuts the inputs of a step of `rows` rows out of base. */
struct pf_inputs pf_inputs_at(const struct pf_model *m, int rows, void *base);

/* Where those of the ordinal-th layer with experts are in a step of `rows` rows: the ones that are used, and the
 * router's. */
struct pf_picks pf_picks_at(const struct pf_session *s, int ordinal, int rows);
struct pf_picks pf_routed_at(const struct pf_session *s, int ordinal, int rows);

/* forward.c: evaluates a batch. Reads and writes s->kv, and next and buf of the units; commits nothing. */
pf_status pf_forward(struct pf_session *s, const struct pf_batch *batch);

/* What a session takes of the memory of backend b if that computes layers [first, end) of it: their keys and values,
 * and the rest. */
pf_status pf_session_part_bytes(const struct pf_model *m, const struct pf_session_opts *opts, const pf_backend *b,
                                int first, int end, uint64_t *kv_bytes, uint64_t *work_bytes);

/* Moves the session to the model's backend if that has changed; everything is to be computed again. With the step lock
 * held. On failure the session has no buffers, and the next call tries again. */
pf_status pf_session_follow(struct pf_session *s);

/* state.c. Bytes of one copy for those layers, 0 without recurrent state; bytes of a checkpoint. */
size_t pf_state_bytes(const struct pf_model *m, int first, int end);
size_t pf_kept_bytes(const struct pf_model *m, const struct pf_session_opts *o, int first, int end);
int    pf_n_checkpoints(size_t bytes);                       /* how many of so many bytes a session has */
/* A layer's, of the unit at work; NULL: nothing came before. */
float *pf_state_before(const struct pf_session *s, int il);
float *pf_state_after(const struct pf_session *s, int il);
void pf_state_commit(struct pf_session *s, int rows);        /* of a step that succeeded */
void pf_state_keep(struct pf_session *s, int64_t pos);       /* a checkpoint of the first pos, if they are at hand */
/* Steps that come to position pos, or go past it, are to make a checkpoint of what is before it: a step's first
 * pf_state_cut rows (0: all of them, as it does not go past) leave a layer's state in pf_state_between, and the others
 * go on from there. The oldest checkpoint gives way at once. Only of models of which pf_state_can_cut is true. 0: none
 * is wanted any more. */
bool pf_state_can_cut(const struct pf_model *m);
void pf_state_plan(struct pf_session *s, int64_t pos);
int  pf_state_cut(const struct pf_session *s, int rows);
float *pf_state_between(const struct pf_session *s, int il);
void pf_state_rewind(struct pf_session *s, int64_t pos);     /* makes computed <= pos */

/* ring.c; o with every default resolved */
int     pf_widest_window(const struct pf_model *m);          /* 0: no layer has one */
int64_t pf_ring_positions(const struct pf_model *m, const struct pf_session_opts *o);        /* 0: no ring */
int     pf_ring_chunks(const struct pf_model *m, int il, const struct pf_session_opts *o);   /* ring or not */
/* Of a checkpoint. */
size_t  pf_ring_kept_bytes(const struct pf_model *m, const struct pf_session_opts *o, int first, int end);
bool    pf_ring_holds(const struct pf_session *s, int64_t pos);      /* what a row at pos sees */
void    pf_ring_advance(struct pf_session *s, int rows);             /* before a step of so many rows, come what may */
/* The windows of the unit's layers in front of pos, to `kept` or from there. */
void    pf_ring_copy(const struct pf_session *s, const struct pf_unit *u, int64_t pos, void *kept, bool keep);

#endif
