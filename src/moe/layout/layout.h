/* The parts of a session's memory, and how large each is: pure functions of a bound model and the options of a
 * session. They say what will be allocated, for a plan as for the session itself; who allocates is session/session.c.
 *
 *     keys and values     a layer's chunks of 256 positions; of layers with a window a ring of them; keys of blocks and
 *                         of indexers besides                                                       kv_layout.c
 *     recurrent state     two copies, and checkpoints                                               kv_layout.c
 *     buffers             activations of one batch, cut out of one piece of memory                  buffers.c
 *     scratch             what the backend itself needs for batches of that size                    buffers.c */
#ifndef PF_LAYOUT_H
#define PF_LAYOUT_H

#include "moe/model/model.h"

/* Rows of a session's steps where nobody says how many: on the CPU, and on a GPU, where a step of more rows takes less
 * for each, above all if experts have to cross to it. Room is planned for the first. */
enum { PF_DEFAULT_BATCH = 512, PF_DEVICE_BATCH = 2048 };

struct pf_kv_layer {
    struct pf_kv_view view;
    size_t            k_bytes, v_bytes;      /* bytes of view.k and view.v */
    size_t            k_far, v_far;          /* bytes of places that lie in memory shared with the host, */
    void             *far;                   /* which has k_far, then v_far; NULL: there are none */
};

/* Inputs of compressed attention that follow from positions: rotary tables, shaped as cs of struct pf_buffers, and the
 * numbers of the blocks that a batch's rows may touch. */
struct pf_block_inputs {
    float   *back;                           /* table for rotating back */
    float   *far, *far_back;                 /* rotating and rotating back in layers with keys of blocks */
    int32_t *number[PF_MAX_RATIOS];          /* for each ratio, the numbers of blocks: of a sequence whose rows begin
                                                at row r, pf_block_rows numbers from r on */
    float   *cs[PF_MAX_RATIOS];              /* for each ratio, the far table at the first positions of these blocks */
};

/* Activations of a batch, in the memory of a unit; [rows][...] each. */
struct pf_buffers {
    void  *base;
    size_t bytes;
    float *x;                /* residual streams {streams.n * n_embd} */
    float *pair;             /* what the layer that guesses ahead makes its input of {2 * n_embd} */
    float *flat, *mix;       /* of several streams: norm of x {streams.n * n_embd}; weights by which the block at work
                                mixes them {n_weights} */
    float *gates, *gate_low; /* of gated streams: {streams.n * n_embd}, and what they are made of {low_rank} */
    float *per_layer;        /* what layers add of the token {n_layer * per_layer.width} */
    float *entering;         /* what n-grams add to the streams {streams.n * n_embd} */
    float *guess_mix;        /* as mix, of the next layer's FFN, for guessing its picks */
    float *h;                /* the block's input: norm of x, or of the mixed streams {n_embd} */
    float *q, *k, *v;        /* {n_head * hd} ... of the widest layer */
    float *attn;             /* output of the heads {n_head * hd_v}, of a delta net {V}, of Mamba2 {n_inner} */
    float *packed;           /* projections that have to be dealt out: {2 * n_head * hd}; q, k, v and, if packed, z of
                                a delta net {2 K + 2 V}; latent attention's queries and then values by head; Mamba2's u
                                {n_conv} */
    float *gate_out;         /* gate of attn, z of Mamba2, of a delta net if not packed: as attn; latent attention's
                                {n_latent + n_rope} */
    float *q_latent;         /* {n_q_latent} of latent and of compressed attention; the latter's u, gate and new keys of
                                blocks are in packed, gate_out and v */
    float *index_q, *index_k;        /* an indexer's queries {index.n_head * index.width} and keys {index.width} */
    float *index_w;          /* an indexer's weights of heads {index.n_head} */
    int32_t *chosen;         /* the keys that an indexer chose {max_chosen} */
    float *mixed, *ba;       /* of a delta net: q, k, v after the convolution {2 K + V}; beta, alpha {2 n_v_head}, or
                                beta and inputs of alpha and of z {n_v_head + 2 d}; of Mamba2: u after the convolution
                                {n_conv}; dt {n_head}; of a short convolution: its input {n_embd}, the gates being in
                                packed and gate_out */
    float *latent, *latent_y;        /* input and sum of picked experts, where it is no row of h {n_expert_in} */
    float *gate, *up;        /* dense or shared FFN {n_ff} */
    float *low, *added;      /* of adapters: A x {lora_rank}, B A x {lora_out} */
    float *y, *y_shared;     /* outputs of a block and of its shared expert {n_embd} */
    float *shared_gate;      /* {1} */
    float *router;           /* {n_expert} */
    float *logits;           /* PF_LOGIT_ROWS rows {n_vocab} */
    float   *pick_weights;   /* weights of picks, all layers with experts: [n_moe][rows][n_used] */
    int32_t *picks;          /* [n_moe][rows][n_used]; see pf_picks_at */
    int32_t *guess;          /* guessed picks of the next layer {n_used}, PF_GUESS_ROWS rows at most */
    float   *guess_weights;  /* their weights {n_used} */
    void    *inputs;         /* the host's inputs of a step, cut into the following fields anew for each step */
    int32_t *ids, *pos;      /* {1} */
    float   *temper;         /* factor of the queries {1} */
    struct pf_far_range *far_range;      /* pf_step.far_by_host, [PF_BY_HOST_PARTS] */
    float   *cs;             /* rotary table {2 * n_pairs} */
    float   *near_cs;        /* of layers with a window, if theirs is another */
    struct pf_block_inputs blocks;
    float   *gathered;       /* rows that m->gather has for the token {per_token * table.n_in} */
    float   *hidden;         /* what the whole model put out at the position before, for the layer that guesses ahead
                                {pf_hidden_width} */
    int32_t *injected;       /* picks in place of the router's, and their weights, shaped as picks; only if
                                m->injected has any */
    float   *injected_weights;
};

/* The host's copy of a step's inputs, cut like pf_buffers.inputs. */
struct pf_inputs {
    int32_t *ids, *pos;
    float   *temper, *cs, *near_cs;
    struct pf_far_range *far_range;      /* [PF_BY_HOST_PARTS] */
    struct pf_block_inputs blocks;
    int32_t *gather_ids;         /* {m->gather.per_token} */
    float   *gathered;
    float   *hidden;             /* {pf_hidden_width} of a model that is_nextn */
    int32_t *picks;
    float   *weights;
    size_t   bytes;
};

/* How many blocks `rows` rows may touch at most. A function of the number of rows alone, so that steps of as many rows
 * call the same operations. */
static inline int pf_block_rows(int ratio, int rows)
{
    return (rows + ratio - 2) / ratio + 1;
}

enum { PF_GUESS_ROWS = 8 };         /* rows for which a router is tried early, at most */

struct pf_candidate {        /* best.h */
    float   logit;
    int32_t id;
};

enum { PF_MAX_CHECKPOINTS = 8 };

/* The context of sessions that do not say how long theirs is: the model's own as far as `bytes` hold o->n_sessions such
 * sessions on backend b, and the least one at least, which is the model's own up to 8,192. */
int64_t pf_least_context(const struct pf_model *m);
int64_t pf_context_within(const struct pf_model *m, const struct pf_session_opts *o, const pf_backend *b,
                          uint64_t bytes);

/* What a session with steps of PF_DEVICE_BATCH rows takes more than one of PF_DEFAULT_BATCH. */
uint64_t pf_more_rows_bytes(const struct pf_model *m, const pf_backend *b);

/* Options with every default filled in, and checked against the model. */
pf_status pf_session_opts_resolve(const struct pf_model *m, const struct pf_session_opts *in,
                                  struct pf_session_opts *out);

/* Whether the session hands out what the output matrix reads, of all rows. */
bool pf_session_keeps_hidden(const struct pf_model *m, const struct pf_session_opts *o);
/* The model that drafts for a session with options o by following it, and the options of its own session; NULL: none.
 */
const struct pf_model *pf_session_follower(const struct pf_model *m, const struct pf_session_opts *o,
                                           struct pf_session_opts *own);

/* Functions from here on take resolved options (pf_session_opts_resolve) in o. */

/* Shape and bytes of a layer's keys and values, of its keys of blocks and of its indexer's keys, with NULL for buffers;
 * 0 bytes: the layer has none. */
struct pf_kv_layer pf_kv_layer_of(const struct pf_model *m, int il, const struct pf_session_opts *o);
struct pf_kv_layer pf_block_kv_layer_of(const struct pf_model *m, int il, const struct pf_session_opts *o);
struct pf_kv_layer pf_index_kv_layer_of(const struct pf_model *m, int il, const struct pf_session_opts *o);
uint64_t           pf_kv_bytes_of(const struct pf_model *m, int il, const struct pf_session_opts *o);   /* all near */

/* Bytes of the layers [first, end) in memory shared with the host; and of room in the device's for those of one layer,
 * by which prompts read them (0: nothing is far, or that would be more than what is near: they are read in place). */
uint64_t pf_kv_far_bytes(const struct pf_model *m, const struct pf_session_opts *o, int first, int end);
uint64_t pf_kv_stage_bytes(const struct pf_model *m, const struct pf_session_opts *o, int first, int end);
/* The part of them that a row at position pos goes over. */
uint64_t           pf_kv_read_bytes_of(const struct pf_model *m, int il, const struct pf_session_opts *o, int64_t pos);

/* Layers with a window: the widest one; the positions that their rings hold (0: there are no rings), both of all layers
 * of the file, whichever process computes them, so that all keep and go back alike; the chunks of layer il, in a ring
 * or not; bytes of one window of the layers [first, end) that a checkpoint keeps. */
int     pf_widest_window(const struct pf_model *m);
int64_t pf_ring_positions(const struct pf_model *m, const struct pf_session_opts *o);
int     pf_ring_chunks(const struct pf_model *m, int il, const struct pf_session_opts *o);
int     pf_window_span(enum pf_kv_type type, int window);    /* positions that whole blocks around a window hold */
size_t  pf_ring_kept_bytes(const struct pf_model *m, const struct pf_session_opts *o, int first, int end);

/* Layers [first, end): bytes of one copy of their recurrent state, and of a checkpoint; the state, its second copy and
 * all checkpoints together. How many checkpoints a session has. */
size_t   pf_state_bytes(const struct pf_model *m, int first, int end);

/* Inputs of recurrent layers that a session with drafts keeps of its last step (run/settle.c): floats of a row of layer
 * il, 0 if it has no state, or one of a kind that cannot go back, so that there are no drafts; bytes of the layers
 * [first, end) for as many rows as a step with drafts has. */
enum { PF_INPUT_POS = 4 };       /* floats that a row's position takes */
size_t   pf_input_floats(const struct pf_model *m, int il);
size_t   pf_inputs_kept_bytes(const struct pf_model *m, int first, int end, const struct pf_session_opts *o);
/* Whether every layer's state can go back to a row of the last step. */
bool     pf_can_draft(const struct pf_model *m);
/* Rows of logits that a session has room for. */
int      pf_logit_rows(const struct pf_session_opts *o);
size_t   pf_kept_bytes(const struct pf_model *m, const struct pf_session_opts *o, int first, int end);
uint64_t pf_states_bytes(const struct pf_model *m, int first, int end, const struct pf_session_opts *o);
int      pf_n_checkpoints(const struct pf_model *m, const struct pf_session_opts *o);

/* How large a session's batches are for a backend. */
struct pf_backend_sizes pf_backend_sizes_of(const struct pf_model *m, const struct pf_session_opts *o);

/* Cuts the inputs of a step of `rows` rows out of base. */
struct pf_inputs pf_inputs_at(const struct pf_model *m, int rows, void *base);

/* Cuts the buffers of batches of n_batch rows out of base; with base NULL only measures. Returns the bytes. */
size_t pf_buffers_cut(const struct pf_model *m, int n_batch, char *base, struct pf_buffers *b);

/* Bytes of the memory of backend b that a session takes if b computes its layers [first, end): keys and values, and
 * everything else. opts need not be resolved. */
pf_status pf_session_part_bytes(const struct pf_model *m, const struct pf_session_opts *opts, const pf_backend *b,
                                int first, int end, uint64_t *kv_bytes, uint64_t *work_bytes);

/* Bytes of host memory that a session takes besides: its tokens, and the sampler's tables. */
uint64_t pf_session_host_bytes(const struct pf_model *m, const struct pf_session_opts *o);

#endif
