/* A session: one mutable timeline of tokens, its keys and values, and the work buffers of a step.
 *
 *     tokens [0 .. pos)            the timeline; at or past pos is garbage
 *     computed <= pos              what keys, values and state hold; below pos only after a rewind of a recurrent model, or
 *                                  when they were lost with their device
 *     kv[layer]                    chunks of 256 positions; whatever lies at or past computed is garbage
 *     state                        of the delta nets after position computed - 1; at computed 0 it is not looked at
 *     buffers                      activations of one batch of at most n_batch rows
 *
 * A step writes keys and values past computed and the second copy of the state, and commits by moving computed and
 * swapping the copies; a step that fails leaves no trace. One thread at a time per session; sessions of one model take
 * turns on the model's step lock. */
#ifndef PF_SESSION_H
#define PF_SESSION_H

#include "moe/model.h"

struct pf_kv_layer {
    struct pf_kv_view view;
    size_t            k_bytes, v_bytes;      /* of the buffers */
};

/* Activations of a batch, in the backend's memory; [rows][...] each. */
struct pf_buffers {
    void  *base;
    size_t bytes;
    float *x;                /* residual stream {n_embd} */
    float *h;                /* its norm {n_embd} */
    float *q, *k, *v;        /* {n_head * hd} ... of the widest layer */
    float *attn;             /* what heads put out {n_head * hd_v}, {V} */
    float *packed;           /* projections that have to be dealt out: {2 * n_head * hd}, {2 K + 2 V}, {2 * n_v_head};
                                latent attention's queries and then values by head */
    float *gate_out;         /* gate of attn, z of a delta net: as attn; latent attention's {n_latent + n_rope} */
    float *q_latent;         /* {n_q_latent} */
    float *index_q, *index_k, *index_w;      /* of an indexer {n_index_head * n_index}, {n_index}, {n_index_head} */
    int32_t *chosen;         /* the positions of its choice {max_chosen} */
    float *qkv, *mixed;      /* of a delta net, before and after its convolution {2 K + V} */
    float *beta, *alpha;     /* {n_v_head} */
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
    int32_t *injected;       /* picks that take the place of the router's, as picks; only if m->injected has any, */
    float   *injected_weights;
};

/* The same cut of the host's copy. */
struct pf_inputs {
    int32_t *ids, *pos;
    float   *temper, *cs;
    int32_t *picks;
    float   *weights;
    size_t   bytes;
};

/* Picks and weights [rows][n_used] of a layer, in the backend's memory. */
struct pf_picks {
    int32_t *picks;
    float   *weights;
};

enum { PF_LOGIT_ROWS = 16 };         /* rows that go through the output matrix at once */

struct pf_candidate {        /* sampler.c */
    float   logit;
    int32_t id;
};

enum { PF_MAX_CHECKPOINTS = 8 };
struct pf_checkpoint {       /* state.c */
    int64_t  pos;            /* the state is that after position pos - 1; 0: none */
    uint64_t age;
    float   *state;
};

struct pf_session {
    struct pf_model      *m;
    pf_backend           *backend;           /* whose memory the buffers lie in: the model's, or one that was lost */
    struct pf_session_opts opts;
    int64_t               pos, computed;
    int32_t              *tokens;            /* [n_ctx] */
    struct pf_kv_layer   *kv;                /* [n_layer] */
    struct pf_kv_layer   *index_kv;          /* [n_layer] keys of the indexers */
    float                *state, *next;      /* [state_bytes] each; NULL where the model has no delta nets */
    size_t                state_bytes;
    struct pf_checkpoint  checkpoints[PF_MAX_CHECKPOINTS];
    int                   n_checkpoints;
    uint64_t              n_kept;            /* checkpoints ever made */
    struct pf_backend_sizes sizes;           /* of its batches */
    struct pf_buffers     buf;
    void                 *inputs;            /* the host's copy of buf.inputs */
    float                *logits;            /* [n_vocab] of the last position, readable */
    float                *all_logits;        /* [n_all][n_vocab] of an eval with PF_LOGITS_ALL, else NULL */
    size_t                n_all;
    bool                  has_logits;        /* logits belongs to position pos - 1 */
    struct pf_candidate  *candidates;        /* [n_vocab] the sampler's scratch */
    int32_t              *seen;              /* [n_vocab] the sampler's counts, all zero between calls */
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

/* Where those of the ordinal-th layer with experts are in a step of `rows` rows: the ones that are used, and the router's. */
struct pf_picks pf_picks_at(const struct pf_session *s, int ordinal, int rows);
struct pf_picks pf_routed_at(const struct pf_session *s, int ordinal, int rows);

/* forward.c: evaluates a batch. Reads and writes s->kv, s->next and s->buf; commits nothing. */
pf_status pf_forward(struct pf_session *s, const struct pf_batch *batch);

/* Moves the session to the model's backend if that has changed; everything is to be computed again. With the step lock held. On
 * failure the session has no buffers, and the next call tries again. */
pf_status pf_session_follow(struct pf_session *s);

/* state.c */
size_t pf_state_bytes(const struct pf_model *m);             /* of one copy; 0: the model has no recurrent state */
int    pf_state_n_checkpoints(const struct pf_model *m);
struct pf_state_view {
    float *rows;             /* [taps - 1][2 K + V] what went into the convolution last */
    float *matrices;         /* [n_v_head][d][d] */
};
struct pf_state_view pf_state_before(const struct pf_session *s, const struct pf_delta_net *net);   /* NULLs: zeros */
struct pf_state_view pf_state_after(const struct pf_session *s, const struct pf_delta_net *net);
void pf_state_commit(struct pf_session *s, int rows);        /* of a step that succeeded */
void pf_state_keep(struct pf_session *s);                    /* makes a checkpoint of what is computed */
void pf_state_rewind(struct pf_session *s, int64_t pos);     /* makes computed <= pos */

#endif
