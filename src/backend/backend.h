/* The seam between the model and what computes it. moe/ sees only this; a backend (kernels/cpu/, later CUDA) fills
 * pf_backend_ops.
 *
 * An operation takes a batch of rows (tokens). Activations are float32 matrices [rows][n] in the backend's own memory,
 * packed, first dimension contiguous; moe/ passes their addresses around and never looks inside. Weights are quantised
 * blocks exactly as they lie in the file, named by their host addresses; a backend that keeps copies of weights was
 * told the addresses through `place`. Operations run in the order they are called, perhaps later: results are readable
 * through `download` alone, and a failure may be known only after `finish`.
 *
 * A backend is used by one thread at a time. After open it allocates nothing except through buf_alloc. Every operation
 * may fail with PF_ENUMERIC (an activation in front of a quantised product is not finite) or PF_EDEVICE. */
#ifndef PF_BACKEND_H
#define PF_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/op_streams.h"
#include "base/pf_i16.h"
#include "base/pf_latent.h"
#include "base/pf_pool.h"
#include "base/pf_qtype.h"
#include "base/pf_spans.h"
#include "base/pf_status.h"
#include "pfmoe.h"

typedef struct pf_backend pf_backend;
struct pf_share_ops;

enum { PF_KV_CHUNK_POSITIONS = 256 };     /* keys and values lie, and attention is folded, in chunks of this many */

/* A weight matrix {n_in, n_out}: n_out rows of row_bytes. y = W x, then y *= scale (1: none), then y += bias. */
struct pf_weight {
    const void   *data;                   /* NULL: there is no such weight */
    enum pf_qtype type;
    int           n_in, n_out;
    uint64_t      row_bytes;
    float         scale;
    const float  *bias;                   /* {n_out} or NULL */
    const struct pf_lora *lora;           /* what adapters add: the model's business, backends do not look at it */
};

/* One kind of matrix (gate, up or down) of all experts of a layer. */
struct pf_expert_weight {
    const uint8_t *const *data;           /* {n_expert} start of each expert's rows; NULL: there is no such weight */
    enum pf_qtype type;
    int           n_in, n_out;
    uint64_t      row_bytes;
    const float  *scale;                  /* {n_expert} or NULL */
    const float  *bias;                   /* {n_out, n_expert} or NULL */
    const struct pf_expert_lora *lora;    /* NULL: nothing is added. No device gets a model that has this
                                             and weigh_input */
};

/* Bytes of a matrix; of one expert's matrix. */
static inline uint64_t pf_weight_bytes(const struct pf_weight *w)
{
    return w->row_bytes * (uint64_t)w->n_out;
}

static inline uint64_t pf_expert_weight_bytes(const struct pf_expert_weight *w)
{
    return w->row_bytes * (uint64_t)w->n_out;
}

/* A LoRA delta of an expert's y = W x: y += scale * the expert's scale * b (a x), for each adapter of the list in turn.
 * a and b have float types. */
struct pf_expert_lora {
    const struct pf_expert_lora *next;
    struct pf_expert_weight a, b;         /* {n_in, rank}, {rank, n_out} */
    float scale;
};

enum pf_act_kind {
    PF_ACT_SWIGLU, PF_ACT_SWIGLU_OAI,
    PF_ACT_SIGMOID,                       /* sigmoid(gate) * up */
    PF_ACT_RELU,                          /* max(gate, 0) * up */
    PF_ACT_PRODUCT,                       /* gate * up */
    PF_ACT_GELU,                          /* gelu(gate) * up: pf_geluf */
    PF_ACT_SWIGLU_CAPPED                  /* as SWIGLU, but the limit is one of silu(gate), not of gate */
};
struct pf_act {
    enum pf_act_kind kind;
    float            limit;               /* > 0: PF_ACT_SWIGLU of min(gate, limit) and of up within +-limit */
};

/* How router logits become picks; numbers are the steps of docs/architecture.md, "Routing". */
enum pf_gating { PF_GATE_SOFTMAX, PF_GATE_SIGMOID, PF_GATE_SOFTMAX_SELECTED, PF_GATE_SQRT_SOFTPLUS };
struct pf_routing {
    int            n_expert, n_used;
    int            n_group, n_group_used; /* n_group > 1: only the best groups of neighbours are picked from */
    enum pf_gating gating;
    bool           norm_weights;          /* divide the picked weights by their sum */
    float          weight_scale;          /* factor of the weights after that; 1: none */
};

/* The router's choice for every row: picks, weights [rows][n_used] from logits [rows][n_expert]. */
struct pf_route_op {
    const struct pf_routing *how;
    const float   *logits, *select_bias;  /* {n_expert} or NULL */
    const int32_t *table, *ids;           /* NULL, or {n_used} picks for each token: row r's are those
                                             of token ids[r] */
    int            rows;
    int32_t       *picks;
    float         *weights;
};

/* One product of a group that shares its input: y [rows][w->n_out]. */
struct pf_linear {
    const struct pf_weight *w;
    float                  *y;
};

/* Rotary embedding of n_head heads of hd values per row, the first 2 * n_pairs of each: cs [rows][2 * n_pairs] holds
 * the cosines and then the sines of each row's position. */
struct pf_rope_op {
    float       *x;
    const float *cs;
    int          n_head, hd, n_pairs;
    bool         neox;
};

/* Keys and values of one layer: a ring of n_chunks chunks of PF_KV_CHUNK_POSITIONS positions, in which chunk c takes
 * place c % n_chunks. A ring as long as the context never comes round. In each place, head after head: rows of hd_k,
 * hd_v elements per position; for PF_KV_I16, a chunk as pf_i16.h lays it out. v NULL: a position's value is the first
 * hd_v elements of its key; for PF_KV_I16 these are then a cached latent, of one KV head, in chunks as pf_latent.h lays
 * them out, all of which are near.
 *
 * Places of PF_KV_I16 from n_near on lie k_far, v_far bytes from where they would otherwise be: there the memory is
 * shared with the host (buf_alloc), and a device reads it in place, more slowly than its own. 0 and 0: they do not. */
struct pf_kv_view {
    void           *k, *v;
    enum pf_kv_type type;
    int             n_kv_head, hd_k, hd_v;
    int             n_chunks, n_near;
    int64_t         k_far, v_far;
};

/* Number of the row that holds position pos of a KV head; the following positions of its chunk are the next rows. Row
 * numbers times pf_kv_key_bytes, pf_kv_value_bytes, or pf_kv_latent_bytes, are where rows lie, for PF_KV_I16 where
 * chunks and blocks do. */
PF_UNIT_FN size_t pf_kv_row(const struct pf_kv_view *kv, int pos, int head)
{
    int place = pos / PF_KV_CHUNK_POSITIONS % kv->n_chunks;
    return ((size_t)place * (size_t)kv->n_kv_head + (size_t)head) * PF_KV_CHUNK_POSITIONS +
           (size_t)(pos % PF_KV_CHUNK_POSITIONS);
}

/* Bytes of a row of n elements, not of PF_KV_I16. For Q8_0, n must be a multiple of 32. */
PF_UNIT_FN size_t pf_kv_row_bytes(enum pf_kv_type type, int n)
{
    return type == PF_KV_Q8_0 ? (size_t)n / 32 * 34 : (size_t)n * (type == PF_KV_F16 ? 2 : 4);
}

/* Bytes that a position takes of the keys, of the values of a head of n elements, where values are apart. */
PF_UNIT_FN size_t pf_kv_key_bytes(enum pf_kv_type type, int n)
{
    return type == PF_KV_I16 ? pf_i16_key_bytes(n) : pf_kv_row_bytes(type, n);
}

PF_UNIT_FN size_t pf_kv_value_bytes(enum pf_kv_type type, int n)
{
    return type == PF_KV_I16 ? pf_i16_value_bytes(n) : pf_kv_row_bytes(type, n);
}

/* Bytes that a position takes where values are the beginnings of keys, of n elements. */
PF_UNIT_FN size_t pf_kv_latent_bytes(enum pf_kv_type type, int n)
{
    return type == PF_KV_I16 ? pf_latent_bytes(n) : pf_kv_row_bytes(type, n);
}

/* Whether keys and values are a latent in whole numbers. */
PF_UNIT_FN bool pf_kv_is_latent(const struct pf_kv_view *kv)
{
    return kv->type == PF_KV_I16 && !kv->v;
}

/* Where the chunk of position pos begins, of such a latent. */
PF_UNIT_FN char *pf_kv_latent(const struct pf_kv_view *kv, int pos)
{
    int place = pos / PF_KV_CHUNK_POSITIONS % kv->n_chunks;
    return (char *)kv->k + (size_t)place * PF_KV_CHUNK_POSITIONS * pf_latent_bytes(kv->hd_k);
}

/* Where the chunk of position pos of a KV head begins, of PF_KV_I16 with values apart. */
PF_UNIT_FN char *pf_kv_i16_keys(const struct pf_kv_view *kv, int pos, int head)
{
    int place = pos / PF_KV_CHUNK_POSITIONS % kv->n_chunks;
    size_t chunk = (size_t)place * (size_t)kv->n_kv_head + (size_t)head;
    return (char *)kv->k + chunk * PF_KV_CHUNK_POSITIONS * pf_i16_key_bytes(kv->hd_k) +
           (place >= kv->n_near ? kv->k_far : 0);
}

PF_UNIT_FN char *pf_kv_i16_values(const struct pf_kv_view *kv, int pos, int head)
{
    int place = pos / PF_KV_CHUNK_POSITIONS % kv->n_chunks;
    size_t chunk = (size_t)place * (size_t)kv->n_kv_head + (size_t)head;
    return (char *)kv->v + chunk * PF_KV_CHUNK_POSITIONS * pf_i16_value_bytes(kv->hd_v) +
           (place >= kv->n_near ? kv->v_far : 0);
}

/* Bytes of a chunk of all KV heads, with values apart. */
PF_UNIT_FN size_t pf_kv_chunk_bytes(const struct pf_kv_view *kv)
{
    return (size_t)kv->n_kv_head * PF_KV_CHUNK_POSITIONS *
           (pf_kv_key_bytes(kv->type, kv->hd_k) + pf_kv_value_bytes(kv->type, kv->hd_v));
}

/* Positions that lie together and are copied as one: bytes of one of them are between those of the others. */
PF_UNIT_FN int pf_kv_block(enum pf_kv_type type)
{
    return type == PF_KV_I16 ? PF_I16_BLOCK : 1;
}

/* Of the far chunks of a layer's keys and values of one sequence, those whose partials the host makes in this step
 * (share.h), while a device makes the partials of all others. The range, [first, end), is an input of the step: where a
 * step is replayed, it is that step's. */
struct pf_far_range {
    int32_t first, end;
};

enum {
    PF_BY_HOST_ROWS = 8,                  /* of a sequence, at most */
    PF_BY_HOST_PARTS = 8                  /* sequences of a step, at most */
};

struct pf_by_host {
    int                        il, part;  /* part: which sequence of the step */
    const struct pf_far_range *range;     /* in the backend's memory; never empty when the step runs */
};

/* Row r stands at position pos[r] and sees positions p <= pos[r] with pos[r] - p < window (0: all), or, if chunked,
 * those of its own window: p >= pos[r] - pos[r] % window. Query head h reads KV head h / (n_head / n_kv_head). sinks
 * {n_head} or NULL: a logit per head that takes part in the softmax without a value. row_scale [rows] or NULL:
 * multiplies the queries of each row. q [rows][n_head * hd_k], out [rows][n_head * hd_v]. by_host or NULL: only with
 * values apart of PF_KV_I16 and no window, and for PF_BY_HOST_ROWS rows at most, which see the host's chunks whole. */
struct pf_attention_op {
    const float             *q;
    float                   *out;
    const struct pf_kv_view *kv;
    const int32_t           *pos;
    int64_t                  n_positions;     /* one more than the largest of pos */
    int                      rows, n_head, window;
    bool                     chunked;
    float                    scale;
    const float             *sinks, *row_scale;
    const struct pf_kv_view *blocks;      /* NULL, or a key for each block of `ratio` positions, seen and folded
                                             after the keys of kv: row r sees the (pos[r] + 1) / ratio blocks that
                                             end at or before pos[r]. Shaped as kv; v is NULL in kv and blocks */
    int                      ratio;
    const int32_t           *chosen;      /* NULL, or [rows][n_lists][max_chosen], rising: of the keys of blocks (of kv
                                             where blocks is NULL) those that row r attends to, as pf_chosen_keys and
                                             pf_chosen_key say. The window does not apply to them. Not for PF_KV_I16 */
    int                      max_chosen;
    int                      n_lists;     /* 1, or as many as kv has heads: each has a choice of its own */
    int                      run;         /* keys that an entry of chosen stands for: run * entry and those behind it */
    bool                     open_run;    /* the last run of a row may be chosen before it is full; otherwise
                                             its keys are seen without being chosen */
    const struct pf_by_host *by_host;     /* NULL: the backend makes all partials */
};

/* Partials (docs/numerics.md, "Attention in whole numbers") of the chunks [first, end) of PF_KV_I16 with values apart,
 * which every query sees whole. Queries are numbered KV head by KV head, n_q of each: row by row, and of a row the
 * query heads that share the KV head. */
struct pf_partials_op {
    const struct pf_kv_view *kv;
    const int8_t *q;                      /* [n_kv_head * n_q][2][hd_k] upper and lower planes of rotated queries */
    const float  *cq;                     /* [n_kv_head * n_q] factors of their scores; NAN: out of range */
    int           n_q, first, end;
    float        *part;                   /* [end - first][n_kv_head * n_q][pf_partial_floats]: sums of hd_v values, the
                                             maximum, the sum of weights; the latter is NAN of what is out of range */
    pf_status   (*await)(void *ctx);      /* NULL, or called once, by the caller's thread: when it returns, q and cq are
                                             there. Its failure is the operation's */
    void         *ctx;
};

/* Floats from one partial to the next. */
PF_UNIT_FN size_t pf_partial_floats(int hd_v)
{
    return (size_t)hd_v + 4;
}

/* A row that sees n_seen keys may choose among so many runs of them. */
PF_UNIT_FN int pf_chosen_runs(const struct pf_attention_op *a, int n_seen)
{
    return (n_seen + (a->open_run ? a->run - 1 : 0)) / a->run;
}

/* How many keys it attends to: those of the first runs that are listed, max_chosen at most, and what is behind the last
 * run; an open run, which a list has to have, lacks some. */
PF_UNIT_FN int pf_chosen_keys(const struct pf_attention_op *a, int n_seen)
{
    int n = pf_chosen_runs(a, n_seen), listed = n < a->max_chosen ? n : a->max_chosen;
    return listed * a->run + n_seen - n * a->run;
}

/* Number i of these keys. list {max_chosen} */
PF_UNIT_FN int pf_chosen_key(const struct pf_attention_op *a, const int32_t *list, int n_seen, int i)
{
    int n = pf_chosen_runs(a, n_seen), listed = n < a->max_chosen ? n : a->max_chosen;
    return i < listed * a->run ? list[i / a->run] * a->run + i % a->run : n * a->run + i - listed * a->run;
}

PF_UNIT_FN const int32_t *pf_chosen_list(const struct pf_attention_op *a, int row, int kv_head)
{
    return a->chosen + ((size_t)row * a->n_lists + (a->n_lists > 1 ? kv_head : 0)) * a->max_chosen;
}

/* chosen [rows][max_chosen]: of the n = (pos[r] + 1) / ratio keys that row r sees the max_chosen with the largest
 * score, in rising order; equal scores: the lower key; all of them, if there are no more. score(k) = sum over
 * heads, by fmaf from 0, of w(r, head) * max(dot(q(r, head), k), 0). q [rows][n_head * hd_k], w [rows][n_head] or NULL:
 * ones; kv has one head and no v.
 *
 * run > 0: each head chooses for itself, and runs of so many keys, the last of which may be open: chosen
 * [rows][n_head][max_chosen], the score of a run the largest dot(q(r, head), k) of its keys that the row sees; of the
 * last n_local runs that of plus infinity. run divides PF_KV_CHUNK_POSITIONS and is no less than n_head; ratio is 1, w
 * NULL. */
struct pf_choose_op {
    const float             *q, *w;
    const struct pf_kv_view *kv;
    const int32_t           *pos;
    int                      rows, n_head, max_chosen;
    int                      ratio;       /* positions a key stands for; 1: each has its own */
    int                      run, n_local;
    int32_t                 *chosen;
};

/* Keys, or runs of them, that a row at pos chooses from. */
PF_UNIT_FN int pf_choose_seen(const struct pf_choose_op *c, int pos)
{
    return c->run ? pos / c->run + 1 : (pos + 1) / c->ratio;
}

/* A matrix of its own for every head: y (row, head) = W_head x (row, head). Head h's n_out rows of w begin at row
 * h * head_rows; x, y (row r, head h) begin at (r * n_head + h) times the stride. */
struct pf_heads_op {
    const struct pf_weight *w;            /* without bias; w->n_out counts the rows of all heads */
    int          n_head, n_out, head_rows, rows;
    const float *x;
    float       *y;
    int          x_stride, y_stride;
};

/* Rearranges every row: blocks of n floats, block i of row r from + r * from_row + i * from_block. */
struct pf_copy {
    const float *from;
    float       *to;
    int          n, n_blocks, from_block, to_block;
    int64_t      from_row, to_row;
};

/* From one place of the backend's memory to another: `rows` times as many bytes, at strides that are no less. */
struct pf_buf_copy {
    void       *to;
    const void *from;
    size_t      bytes, to_stride, from_stride;
    int         rows;
};

/* Positions become blocks of `ratio` neighbours, a row of n channels each (DeepSeek-V4): per channel a softmax over the
 * block's positions weighs their u,
 *     out[b] = sum over the positions p of block b of softmax(t)(p) * u(p),        t(p) = gate(p) + ape[p % ratio]
 * overlaps: u, gate and ape have 2 n channels; the first n of a position belong to the row of the block after its own,
 * the others to its own. The softmax runs: state [3][n] for the block that is not full yet and, if they overlap, [3][n]
 * for the one after it, holds m, z, a: the maximum of t so far, the sum of weights, the weighted sum of u; before NULL:
 * nothing yet. Per position and channel
 *     M = max(m, t);  A = exp(m - M);  B = exp(t - M);  z = fmaf(z, A, B);  a = fmaf(a, A, B * u);  m = M
 * and a full block's out is a / z. out [n_out][n]: blocks pos[0] / ratio and those after it, zeros where they are not
 * full; n_out is at least the number of blocks that the rows touch. The rows' positions follow one another. */
struct pf_compress_op {
    const float   *u, *gate, *ape;        /* u and gate [rows][n or 2 n], ape {n or 2 n, ratio}; gate and ape NULL:
                                             zeros, so that out is the mean */
    const int32_t *pos;
    const float   *before;
    float         *after, *out;
    int            n, ratio, rows, n_out;
    bool           overlaps;
};

/* Vectors of n floats in every row, `per` neighbours in each group: see pf_vector_at. */
struct pf_vectors {
    const float *at;
    int64_t      row;                     /* floats from one row to the next */
    int          n, per, group;           /* group: floats from one group to the next */
};

PF_UNIT_FN const float *pf_vector_at(const struct pf_vectors *v, int row, int i)
{
    return v->at + row * v->row + (int64_t)(i / v->per) * v->group + i % v->per * v->n;
}

/* A Gated DeltaNet between its products. q, k are vectors of d floats for n_k_head heads, v, z for n_v_head heads;
 * alpha, beta are a number for each of these. Value head h uses key head h / (n_v_head / n_k_head), or, if tiled,
 * h % n_k_head. Per row, with the matrix S {d, d} per value head:
 *     q, k, v = silu(their convolution over time)         u[r] = silu(sum over t of conv[t] * x[r - (taps - 1) + t])
 *     q, k = normed to length 1 (q to 1 / sqrt(d)) by the largest of their length and eps
 *     S *= decay = exp(a * softplus(alpha + dt));  S += k (x) sigmoid(beta) * (v - S'k)
 *     out = silu(z) * rms_norm(S'q)
 * conv [taps][n], n = (2 n_k_head + n_v_head) d channels, those of q, k, v; a, dt {n_v_head}; norm {d};
 * out [rows][n_v_head][d]. A state is the last rows before the convolution, [taps - 1][n], and the matrices behind
 * them, [n_v_head][d][d]. before NULL: zeros; it is not after. follows: the operation ahead leaves it; otherwise it is
 * older. mixed [rows][n]: room for what the convolution gives.
 *
 * by_key (Kimi Delta Attention): alpha is a vector of d numbers for each value head, dt {n_v_head, d}, and row i of S,
 * which belongs to k[i], has a decay of its own:
 *     f = alpha[i] + dt[i];  decay[i] = exp(a * softplus(f)), or exp(least * sigmoid(-a * f)) if least is not 0
 *     seen = sum over rows, by fmaf from 0, of S[i] * (k[i] * decay[i]);  e = (v - seen) * sigmoid(beta)
 *     S[i] = fmaf(k[i], e, S[i] * decay[i])
 * sigmoid_gate: out = sigmoid(z) * rms_norm(S'q). */
struct pf_delta_op {
    struct pf_vectors q, k, v, z, alpha, beta;
    const float *conv, *a, *dt, *norm, *before;
    float       *after, *mixed, *out;
    int          d, n_k_head, n_v_head, taps, rows;
    bool         tiled, follows, by_key, sigmoid_gate;
    float        eps, least;
};

PF_UNIT_FN int pf_delta_channels(const struct pf_delta_op *o)
{
    return (2 * o->n_k_head + o->n_v_head) * o->d;
}

/* Floats of a state in front of its matrices. */
PF_UNIT_FN size_t pf_delta_state_rows(const struct pf_delta_op *o)
{
    return (size_t)(o->taps - 1) * (size_t)pf_delta_channels(o);
}

/* The vectors (q, k or v) that hold vector number *i of q, k and v laid end to end; *i becomes its number in them. */
PF_UNIT_FN const struct pf_vectors *pf_delta_input(const struct pf_delta_op *o, int *i)
{
    if (*i < o->n_k_head)
        return &o->q;
    *i -= o->n_k_head;
    if (*i < o->n_k_head)
        return &o->k;
    *i -= o->n_k_head;
    return &o->v;
}

/* A causal convolution over time, each of n channels by itself: y[r] = x[r - (taps - 1)] * w[0], then by fmaf
 * x[r - (taps - 1) + t] and w[t] with t rising, then + bias unless that is NULL, then silu if so asked. Rows ahead of
 * the first are in before [taps - 1][n] (NULL: zeros), those that the next step sees go to after, of the same shape;
 * before is not after. w [taps][n]; x and y [rows][n], not the same. */
struct pf_conv_op {
    const float *x, *w, *bias, *before;
    float       *after, *y;
    int          n, taps, rows;
    bool         silu;
};

/* Mamba2 between its convolution and its last product (Dao, Gu 2024, "Transformers are SSMs"). A row of u is x of all
 * heads, p channels each, then B of all groups, then C of all groups, d numbers each. Head h, of group
 * h / (n_head / n_group), has a state S {d, p}; per row
 *     t = softplus(dt + dt_bias);  decay = exp(t * a)
 *     S[i][j] = fmaf(B[i], t * x[j], S[i][j] * decay)
 *     y[j] = 0, then fmaf(S[i][j], C[i], y[j]) with i rising, then fmaf(skip, x[j], y[j])
 *     out = the rms_norm of every group's heads as one, of silu(z) * y
 * dt [rows][n_head]; dt_bias, a, skip {n_head}; z, out [rows][n_head * p]; norm {n_head * p}. before, after
 * [n_head][d][p]; before NULL: zeros; it is not after. */
struct pf_ssm_op {
    const float *u, *dt, *z, *dt_bias, *a, *skip, *norm, *before;
    float       *after, *out;
    int          d, p, n_head, n_group, rows;
    float        eps;
};

/* Floats of a row of u. */
PF_UNIT_FN int pf_ssm_channels(const struct pf_ssm_op *o)
{
    return o->n_head * o->p + 2 * o->n_group * o->d;
}

/* y [rows][down->n_out] = sum over the picks of a row of weight * down(act(gate x) * up x), the picks of a row in their
 * order, by fmaf from 0. weigh_input: the weight multiplies gate x and up x instead. picks, weights [rows][n_used]. */
struct pf_experts_op {
    const struct pf_expert_weight *gate, *up, *down;
    struct pf_act  act;
    bool           weigh_input;
    int            n_expert, n_used, rows;
    const int32_t *picks;
    const float   *weights;
    const float   *x;                     /* [rows][gate->n_in] */
    float         *y;
    float         *pick_act, *pick_y;     /* [rows * n_used][n_ff], [rows * n_used][n_out]: where experts_halves puts
                                             each pick's activation and down product, experts_up the activation */
};

/* Work on some experts: gate, up and activation of those in gate_up, down products of those in down, whose gate and up
 * are part of this work or were done before. `meanwhile`, if not NULL, is called once by the calling thread while other
 * threads begin. */
struct pf_halves {
    const int *gate_up, *down;
    int        n_gate_up, n_down;
    void     (*meanwhile)(void *ctx);
    void      *ctx;
};

/* The most that a batch may hold of each thing; scratch is sized from it. */
struct pf_backend_sizes {
    int max_rows;
    int max_n_in;                         /* longest input row of any dense product */
    int max_head_rows, max_head_n_in;     /* products by head: max_rows * n_head; longest input */
    int max_head_dim;                     /* longest head of keys, values and delta nets */
    int max_latent_heads;                 /* heads that attend to one cached latent; 0: none */
    int max_i16;                          /* elements of a row's queries where keys are PF_KV_I16, latents, too; 0: none
                                             are */
    int max_positions, n_choose_head;     /* choose: positions, heads; 0: never called */
    int max_picks;                        /* max_rows * n_used */
    int expert_rank;                      /* summed rank of the adapters of one expert matrix; 0: no adapters */
    int n_expert, n_ff, n_out;            /* experts, their width, length of their output (all 0: no experts) */
    int max_heads;                        /* query heads */
    int64_t n_ctx;                        /* positions */
};

/* Steps with equal pf_repeat call the same operations with the same arguments between begin and end; only the contents
 * of memory and the number of positions differ. A backend may record one such step and replay it. */
enum { PF_REPEAT_PARTS = 16 };

enum {
    PF_LOGIT_ROWS = 16,              /* rows that go through the output matrix at once, at most */
    PF_TOPS_OF = 128                 /* logits of which only the largest one is looked at first */
};

static inline int pf_n_tops(int n)
{
    return (n + PF_TOPS_OF - 1) / PF_TOPS_OF;
}
enum pf_repeat_how {
    PF_REPEAT_ANY,                        /* as the backend likes */
    PF_REPEAT_PLAIN, PF_REPEAT_RECORD, PF_REPEAT_REPLAY
};
struct pf_repeat {
    enum pf_repeat_how how;               /* no part of what is equal */
    bool once;                            /* no other step is like this one, and finish may be called within it */
    int  rows, n_logits, n_parts;
    bool hands_out;                       /* the logits are downloaded, to where every step of a sequence has its own */
    struct pf_repeat_part {               /* the rows of one sequence, as neighbours in the step */
        const void *sequence, *state;     /* which keys and values; which recurrent state */
        int64_t     n_positions;
        int         rows, n_logits;       /* n_logits: of these rows, the last ones */
        bool        chooses;              /* attention sees chosen positions */
        bool        by_host;              /* attention has `by_host` in layers with far keys and values */
    } part[PF_REPEAT_PARTS];
};

/* Where route and the experts leave copies of intermediate values, rows and picks in the order they were given; NULL
 * for values that nobody wants. gate and up are the activation's inputs, down is what a pick's weight multiplies. */
struct pf_tap {
    float *probs, *scores;                /* [rows][n_expert] */
    float *gate, *up, *act;               /* [rows * n_used][n_ff] */
    float *down;                          /* [rows * n_used][n_out] */
};

/* The first member of every backend. */
struct pf_backend {
    const struct pf_backend_ops *ops;
    uint64_t weight_bytes_read;           /* bytes of weights that products went over since open */
    uint64_t n_launches;                  /* kernels and copies given to a device since open: of a replayed graph each
                                             one, outside of graphs one for each operation */
    const struct pf_tap *tap;             /* NULL: nobody watches. Only the CPU backend looks at it */
};

struct pf_backend_ops {
    const char *name;                                     /* "cpu" */
    void        (*close)(pf_backend *b);
    const char *(*describe)(const pf_backend *b);         /* kernels in use: "avx512-vnni" */

    /* From now on the backend notes in spans, which must outlive it, when its threads were busy. NULL in a backend
     * without threads of its own: the caller notes what it learns of such a device. */
    void        (*watch)(pf_backend *b, pf_spans *spans);

    /* Bytes of the backend's own memory that may still be taken; NULL: it computes on the weights in host memory. */
    uint64_t    (*room)(const pf_backend *b);

    /* Makes [host, host + bytes) known to a backend that computes on copies of weights; NULL: the backend reads weights
     * in host memory. Small vectors that were never placed are copied when an operation first names them. */
    pf_status (*place)(pf_backend *b, const void *host, size_t bytes);
    /* Makes n pieces of so many bytes each, which lie apart in host memory, known to such a backend, as `place` does
     * one. NULL where `place` is. */
    pf_status (*place_pieces)(pf_backend *b, const uint8_t *const *host, int n, size_t bytes);

    /* Zeroed memory for activations and KV, page aligned, touched as it is used. shared: memory that the caller can
     * read and write, for upload and download, and for the far places of keys and values. */
    pf_status (*buf_alloc)(pf_backend *b, size_t bytes, bool shared, void **out);
    void      (*buf_free)(pf_backend *b, void *p, size_t bytes, bool shared);
    /* Memory of the device, to be freed by buf_free, for the keys or the values of a layer: n_head heads, of each of
     * which a chunk takes chunk_bytes. A team of cards may keep each head on one of them. NULL: buf_alloc serves. */
    pf_status (*heads_alloc)(pf_backend *b, size_t bytes, size_t chunk_bytes, int n_head, void **out);
    void      (*buf_copy)(pf_backend *b, const struct pf_buf_copy *c);

    /* Copies bytes of b's memory to that of another card's backend with this table: after the operations of both so
     * far, and before those of the other that come later. NULL: there are no other cards. */
    pf_status (*pass)(pf_backend *b, pf_backend *to, void *x_to, const void *x, size_t bytes);

    /* Copies between the caller's memory and the backend's, in order with the operations. The caller's side must stay
     * as it is until `finish`, which waits for all copies and operations and reports failures since the last one. */
    pf_status (*upload)(pf_backend *b, void *to, const void *from, size_t bytes);
    pf_status (*download)(pf_backend *b, void *to, const void *from, size_t bytes);
    /* upload of what lies in shared memory of buf_alloc, by the device's kernels: not behind copies that are under way
     * beside the operations. NULL: upload serves. */
    pf_status (*bring)(pf_backend *b, void *to, const void *from, size_t bytes);
    pf_status (*finish)(pf_backend *b);

    /* After a failure, when nothing is under way: whether the device answers no more. NULL: it is no device. */
    bool      (*is_lost)(pf_backend *b);

    /* scratch_bytes: size of the scratch for batches of such sizes. reserve: makes the scratch that large, between two
     * steps; a scratch that is too small need not fit beside it. A failure leaves the old one. scratch_more: by how
     * much reserve would make it larger; NULL: as if there were none yet. */
    uint64_t  (*scratch_bytes)(const pf_backend *b, const struct pf_backend_sizes *sizes);
    uint64_t  (*scratch_more)(const pf_backend *b, const struct pf_backend_sizes *sizes);
    pf_status (*reserve)(pf_backend *b, const struct pf_backend_sizes *sizes);

    /* Around the operations of a step. When begin sets *replayed, the step's operations were replayed and must not be
     * called. When end sets *again, they were only recorded and no memory was left to keep the record: the caller must
     * begin the step once more. */
    pf_status (*begin)(pf_backend *b, const struct pf_repeat *r, bool *replayed);
    pf_status (*end)(pf_backend *b, bool *again);
    /* How begin would make the step; NULL: always plainly. Where several processes make a step together, one asks, and
     * all begin it with r->how as it was answered; REPLAY fails where no step like it is recorded. */
    enum pf_repeat_how (*repeats)(const pf_backend *b, const struct pf_repeat *r);

    /* x[r] = row ids[r] of w, times its scale. */
    pf_status (*embed)(pf_backend *b, const struct pf_weight *w, const int32_t *ids, int rows, float *x);
    /* w NULL: without weights. y may be x. */
    pf_status (*rms_norm)(pf_backend *b, const float *x, const float *w, float eps, int n, int rows, float *y);
    /* rms_norm of rows of n_each vectors of n each: vector i of a row has its own weights w + i * n. */
    pf_status (*norm_each)(pf_backend *b, const float *x, const float *w, float eps, int n, int n_each, int rows,
                           float *y);
    /* y = x - the mean of x's row, of rows of n. y may be x. */
    pf_status (*centre)(pf_backend *b, const float *x, int n, int rows, float *y);
    /* y = (x - mean) / sqrt(variance + eps) * w + bias, the sums in double. y may be x, bias NULL: none. */
    pf_status (*layer_norm)(pf_backend *b, const float *x, const float *w, const float *bias, float eps, int n,
                            int rows, float *y);
    pf_status (*linear)(pf_backend *b, const struct pf_linear *l, int n_l, const float *x, int rows);
    pf_status (*heads)(pf_backend *b, const struct pf_heads_op *h);
    pf_status (*act)(pf_backend *b, struct pf_act act, const float *gate, const float *up, int64_t n, float *y);
    /* y = fmaf(a, x, y). */
    pf_status (*add)(pf_backend *b, float *y, float a, const float *x, int64_t n);
    /* x = cap * (2 sigmoid(2 / cap * x) - 1), which is cap * tanh(x / cap). */
    pf_status (*softcap)(pf_backend *b, float *x, float cap, int64_t n);
    /* Row by row y = fmaf(sigmoid(gate[row]), x, y); x, y [rows][n]. */
    pf_status (*add_gated)(pf_backend *b, float *y, const float *gate, const float *x, int n, int rows);
    /* Every row of y [rows][n] += bias {n}. */
    pf_status (*add_bias)(pf_backend *b, float *y, const float *bias, int n, int rows);
    /* Row by row x = x * sigmoid(gate[row]); x [rows][n]. */
    pf_status (*gate)(pf_backend *b, float *x, const float *gate, int n, int rows);
    /* A value of x [n] that is not finite makes finish fail with PF_ENUMERIC. NULL: the host looks at what it gets. */
    pf_status (*check_finite)(pf_backend *b, const float *x, int64_t n);
    /* Of each row of x [rows][n], PF_LOGIT_ROWS at most, the largest of each PF_TOPS_OF neighbours: to[row]
     * [pf_n_tops(n)], in memory that buf_alloc shares with the host, who may read it behind finish. NULL: not built. */
    pf_status (*tops)(pf_backend *b, const float *x, int n, int rows, float *const *to);
    /* w = exp((x - top) / temp) of n floats in the host's memory, temp > 0: the CPU's alone, on any thread, at any
     * time. */
    void      (*weigh)(const pf_backend *b, const float *x, float top, float temp, int n, float *w);
    pf_status (*rope)(pf_backend *b, const struct pf_rope_op *ropes, int n_ropes, int rows);
    pf_status (*kv_store)(pf_backend *b, const struct pf_kv_view *kv, const float *k, const float *v,
                          const int32_t *pos, int rows);
    pf_status (*attention)(pf_backend *b, const struct pf_attention_op *a);
    pf_status (*partials)(pf_backend *b, const struct pf_partials_op *p);        /* NULL: not built */
    pf_status (*choose)(pf_backend *b, const struct pf_choose_op *c);    /* NULL: attention has no `chosen` either */
    pf_status (*route)(pf_backend *b, const struct pf_route_op *r);
    pf_status (*copy)(pf_backend *b, const struct pf_copy *copies, int n_copies, int rows);
    pf_status (*delta)(pf_backend *b, const struct pf_delta_op *d);
    pf_status (*conv)(pf_backend *b, const struct pf_conv_op *c);
    pf_status (*ssm)(pf_backend *b, const struct pf_ssm_op *s);                /* NULL: no layer is a Mamba2 */
    pf_status (*compress)(pf_backend *b, const struct pf_compress_op *c);      /* NULL: attention has no `blocks` */
    pf_status (*mix)(pf_backend *b, const struct pf_mix_op *m);                /* NULL: one residual stream only */
    pf_status (*streams_read)(pf_backend *b, const struct pf_streams_op *s);
    pf_status (*streams_write)(pf_backend *b, const struct pf_streams_op *s);
    pf_status (*gated_read)(pf_backend *b, const struct pf_gated_op *g);
    pf_status (*gated_write)(pf_backend *b, const struct pf_gated_op *g);
    pf_status (*agree)(pf_backend *b, const struct pf_agree_op *a);
    pf_status (*spread)(pf_backend *b, const struct pf_spread_op *s);
    pf_status (*experts)(pf_backend *b, const struct pf_experts_op *e);
    /* `experts` in pieces, for weights that arrive expert by expert: begin, then each picked expert in exactly
     * one part, in any order, then end; no other call in between but closing. What e points to must stay until end; an
     * expert's entries in e->gate->data, e->up->data and e->down->data are read only in its own part. The result does
     * not depend on how experts are grouped into parts. After a failure in between, end must not be called. */
    pf_status (*experts_begin)(pf_backend *b, const struct pf_experts_op *e);
    pf_status (*experts_part)(pf_backend *b, const int *experts, int n);
    pf_status (*experts_end)(pf_backend *b);
    /* experts_part whose work is done already: the down products of the experts' picks are in y [rows * n_used][n_out],
     * as experts_halves puts them. y is memory shared with the host, and stays as it is until `finish`. NULL: the
     * backend cannot do so. */
    pf_status (*experts_given)(pf_backend *b, const int *experts, int n, const float *y);
    /* experts_part with gate and up apart from down; each picked expert has each of the two once. When it returns, the
     * op's pick_act and pick_y hold the activations and down products of this work. NULL: the backend cannot do so. */
    pf_status (*experts_halves)(pf_backend *b, const struct pf_halves *h);
    /* `experts` in two operations, of matrices without adapters: each pick's activation, to pick_act, then y from
     * pick_act. A card that has some rows of the matrices makes as many columns of the one, [rows * n_used]
     * [gate->n_out], and of the other, y [rows][down->n_out]; it reads whole activations, [rows * n_used][down->n_in].
     * pick_act must stay as it is until another operation was asked for. NULL: not built. */
    pf_status (*experts_up)(pf_backend *b, const struct pf_experts_op *e);
    pf_status (*experts_down)(pf_backend *b, const struct pf_experts_op *e);

    /* on: experts will be asked for every few microseconds, so threads should not go to sleep. NULL: no threads. */
    void      (*alert)(pf_backend *b, bool on);

    const struct pf_share_ops *share;     /* NULL: this backend does not share a layer's experts with
                                             another (share.h) */
};

/* The CPU backend on n_threads threads, with the best kernels that isa_mask (PF_ISA_) and the CPU allow. */
pf_status pf_backend_cpu_open(pf_backend **out, int n_threads, uint32_t isa_mask);
/* One that works with the threads of `owner`, which is a CPU's, too, and is closed later. The two never work at the
 * same time. */
pf_status pf_backend_cpu_beside(pf_backend **out, pf_backend *owner, uint32_t isa_mask);

/* A backend on GPU number `device`, which may take up to vram_bytes of its memory (0: what is free). PF_EDEVICE: there
 * is no such GPU, or no driver, or pfmoe was built without CUDA. */
pf_status pf_backend_cuda_open(pf_backend **out, int device, uint64_t vram_bytes);

/* Describes GPU number i; false past the last. */
bool pf_backend_cuda_device(int i, struct pf_device *out);

/* Bytes a second at which a kernel on GPU number i reads its memory now; 0 if no kernel could run. */
double pf_backend_cuda_bandwidth(int i);

/* Bytes a second of GPU number i's memory by its clock and width; 0: nobody says. */
double pf_backend_cuda_rate(int i);

/* Bytes a second of copies to GPU number i: see pf_gpu_copy_bandwidth. */
double pf_backend_cuda_copy_bandwidth(int i, void *host, size_t bytes, void (*meanwhile)(void *ctx), void *ctx);

#endif
