/* A session: one mutable timeline of tokens, its keys and values, and the work buffers of a step.
 *
 *     tokens [0 .. pos)            what has been evaluated; the only thing that rewind changes
 *     kv[layer]                    chunks of 256 positions; whatever lies at or past pos is garbage
 *     buffers                      activations of one batch of at most n_batch rows
 *
 * A step writes keys and values past pos and commits by moving pos; a step that fails leaves no trace. One thread at a
 * time per session; sessions of one model take turns on the model's step lock. */
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
    float *attn;             /* {n_head * hd_v} */
    float *gate, *up;        /* dense or shared FFN {n_ff} */
    float *y, *y_shared;     /* what a block, and what its shared expert adds {n_embd} */
    float *shared_gate;      /* {1} */
    float *router;           /* {n_expert} */
    float *cs;               /* rotary table {2 * n_pairs} */
    float *temper;           /* factor of the queries {1} */
    float *logits;           /* one row {n_vocab} */
    float   *pick_weights;   /* {n_used} */
    int32_t *picks;          /* {n_used} */
    int32_t *ids, *pos;      /* {1} */
};

struct pf_candidate {        /* sampler.c */
    float   logit;
    int32_t id;
};

struct pf_session {
    struct pf_model      *m;
    struct pf_session_opts opts;
    int64_t               pos;
    int32_t              *tokens;            /* [n_ctx] */
    struct pf_kv_layer   *kv;                /* [n_layer] */
    struct pf_buffers     buf;
    float                *all_logits;        /* [n_all][n_vocab] of an eval with PF_LOGITS_ALL, else NULL */
    size_t                n_all;
    bool                  has_logits;        /* buf.logits belongs to position pos - 1 */
    struct pf_candidate  *candidates;        /* [n_vocab] the sampler's scratch */
    int32_t              *seen;              /* [n_vocab] the sampler's counts, all zero between calls */
    atomic_bool           cancel;
};

/* One batch: rows tokens at positions s->pos ... Puts the logits of the last n_logits rows into logits. */
struct pf_batch {
    const int32_t *tokens;
    int            rows, n_logits;
    float         *logits;                   /* [n_logits][n_vocab] */
};

/* forward.c: evaluates a batch. Reads and writes s->kv and s->buf, leaves s->pos and s->tokens alone. */
pf_status pf_forward(struct pf_session *s, const struct pf_batch *batch);

#endif
