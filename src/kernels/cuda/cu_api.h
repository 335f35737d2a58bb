/* The launchers of the CUDA kernels, one per operation, that the host's side (cuda_*.c) calls: C on both sides.
 *
 * Every pointer is an address of device memory unless the comment says otherwise. A launcher puts its work on the
 * stream and returns; it never waits, never allocates and may be captured into a graph. Results have the bits of the C
 * reference (kernels.h, docs/numerics.md). `fault` is a flag the host can read: a kernel that meets a value which must
 * be finite and is not writes an enum cu_fault there and goes on with whatever comes out. `shared_bytes` is what a
 * block of this GPU may have of shared memory besides static variables: 64 KB less a little on the smallest. */
#ifndef PF_CU_API_H
#define PF_CU_API_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/pf_qtype.h"
#include "backend/backend.h"
#include "backend/share.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Lets a kernel's blocks have so much shared memory besides static variables, from now on, on the card that this thread
 * has chosen; fails where a block of it may not. The kernel as CUDA's runtime names it. Any thread. */
cudaError_t pf_cu_allow_bytes(const void *kernel, size_t bytes);

enum cu_fault {
    CU_FINE, CU_ACTIVATION_NOT_FINITE, CU_ROUTER_NOT_FINITE, CU_LOGIT_NOT_FINITE, CU_HOST_LATE, CU_CARD_LATE
};
enum {
    CU_MAX_PARTS = 4,             /* products that share an input and a launch */
    CU_VECTOR_ROWS = 16,          /* steps of up to so many rows have kernels of their own, and are replayed; beyond,
                                     products go by tiles, */
    CU_LOOP_ROWS = 8,             /* and those that go row by row over the weights beyond so many */
    CU_LATENT_ROWS = 4,           /* rows that attend to a cached latent at once */
    CU_ROUTE_EXPERTS = 4096,      /* the most experts a router may have */
    CU_LATENT_SPARE = 32 * 1024,  /* elements behind the queries to a latent: a tile's, which may have no rows */
    CU_HEAD_DIM = 1024            /* the longest key or value */
};

/* Rows of activations as right-hand sides; see struct pf_xrow. */
struct cu_x {
    const float *f;               /* [rows][n] */
    int8_t      *q;               /* [rows][n] */
    float       *d;               /* [rows][n / 32] */
    int16_t     *s;               /* [rows][n / 16] */
};

/* The numbers that the IQ and FP4 types look up: kernels/ref/iq_tables.h, copied to the device. */
struct cu_tables {
    const uint64_t *iq2_xxs, *iq2_xs, *iq2_s, *iq1;
    const uint32_t *iq3_xxs, *iq3_s;
};

/* If add is not NULL, first x += a * add. Quantises y into q when q.q is not NULL (n a multiple of 32). */
struct cu_norm {
    float       *x;
    const float *add, *w;
    float        a, eps;
    int          n, rows, n_each;  /* n_each > 0: w has n floats for each of so many rows in turn */
    float       *y;
    struct cu_x  q;
    int         *fault;
};

/* What lies between two blocks of a layer, for rows of n floats each. In this order, each if it is there: y = norm(y);
 * y += b * plus; y = norm(y); x += a * y; y = x, and x += more * y; norm.y = norm(x). */
enum { CU_BETWEEN_MOST = 4096 };      /* floats of a row */
struct cu_between {
    int            n, rows;
    float         *y, *x;         /* x NULL: nothing is behind the norms of y */
    bool           norms[2];
    const float   *w[2];          /* or NULL */
    float          eps[2];
    const float   *plus;          /* or NULL */
    float          a, b, more;
    bool           copies, scales;
    struct cu_norm norm;          /* y NULL: none */
};

/* Additions at the end of an operation with output y: y += b * plus, or y += sigmoid(gate) * plus (unless plus is
 * NULL); then x += a * y. */
struct cu_residual {
    float       *x;               /* NULL: nothing */
    float        a;
    const float *plus, *gate;     /* [rows][n], [rows]; not NULL only for experts */
    float        b;
};

struct cu_part {
    const uint8_t *w;
    const float   *bias;          /* or NULL */
    float         *y;             /* [rows][n_out] */
    float          scale;
    int            n_out;
};

/* Several matrices of one type and one input length against the same rows. n_heads not 0: one part of as many
 * matrices, head h's from row h * head_rows on; it reads x and writes y of (row r, head h) at (r * n_heads +
 * h) times the stride. */
struct cu_linear {
    struct cu_part   part[CU_MAX_PARTS];
    int              n_parts, n, rows;
    enum pf_qtype    type;
    uint64_t         row_bytes;
    struct cu_x      x;
    struct cu_tables tables;
    int              n_heads, head_rows, x_stride, y_stride;     /* strides in floats, of x.f */
    struct cu_norm     norm;      /* y not NULL: x is the output of this norm of one row. Every block computes the norm
                                     itself, one stores it to norm.y: that saves a kernel and a wait */
    struct cu_residual residual;  /* only if n_parts is 1 */
};

struct cu_expert_weight {
    const uint8_t *const *data;   /* {n_expert}; picks of an expert that is NULL are left out */
    enum pf_qtype type;
    uint64_t      row_bytes;
    const float  *scale, *bias;   /* {n_expert}, {n_out, n_expert}, or NULL */
};

/* An expert that every row has, with matrices like those of the ones that are picked, but no scales or biases. */
struct cu_shared {
    const uint8_t *gate, *up, *down;     /* NULL: there is none */
    float         *of_gate, *of_up, *y;  /* what they put out */
    float         *act;                  /* what down multiplies; it may be where of_gate is */
};

/* The picks of one row in two turns, each of them gate_up and down: first those whose experts are there, then those
 * that come late. If none comes late, the first down makes the sum, and the second turn does nothing. */
struct cu_turns {
    const uint32_t *told;         /* memory of the device: CU_NOTHING_MISSED, or another number: some come late; written
                                     before the kernel ahead. NULL: there is one turn */
    float          *done;         /* first down: where its outputs go if some come late; NULL: it is the second turn */
};

/* Routed experts. Pick p belongs to row p / n_used. with: of one row, the shared expert is one pick more for gate and
 * up, and for down, whose sum it is no part of: a residual whose plus is with.y adds it. */
struct cu_experts {
    struct cu_expert_weight w, w2;
    struct pf_act    act;
    bool             weigh_input;
    int              n, n_out, n_used, rows, n_placed;   /* n_placed: experts in the tables of gate and up, if no
                                                            kernel writes to these; or 0 */
    const int32_t   *picks;       /* [rows][n_used] */
    const float     *weights;
    struct cu_x      x;
    struct cu_tables tables;
    struct cu_shared with;
    /* for adapters' products; only expert_rows looks at these: */
    const uint8_t *const *only;   /* {n_expert} or NULL: experts without an address here are left out, too */
    bool         adds;            /* y += add * (w x); add_scale {n_expert} or NULL: add times that */
    float        add;
    const float *add_scale;
    const float *done;            /* down only: {rows * n_used, n_out}, outputs of picks whose experts w has no address
                                     for; written before the kernel ahead of down */
    struct cu_turns turns;
};

/* Does nothing; fails where the GPU cannot run these kernels. */
cudaError_t pf_cu_probe(cudaStream_t st);

/* Compute capability, times ten, that the kernels for this GPU were compiled for: its own or an older one. */
cudaError_t pf_cu_code(int *capability);

/* Reads n bytes (a multiple of 16) and does nothing with them. out: a word to write to, which never happens. */
cudaError_t pf_cu_read(cudaStream_t st, const void *p, size_t n, uint32_t *out);

cudaError_t pf_cu_embed(cudaStream_t st, enum pf_qtype type, const uint8_t *w, uint64_t row_bytes, int n, float scale,
                        const int32_t *ids, int rows, float *x, const struct cu_tables *t);
cudaError_t pf_cu_linear(cudaStream_t st, const struct cu_linear *l);
/* Whether the product could begin with its norm: few enough blocks would do it, and their memory holds it. */
bool pf_cu_linear_norms(const struct cu_linear *l, size_t shared_bytes);
/* out[pick] = act(w x, w2 x), x [rows][n]; w and w2 of one type. Quantises out where out->q is not NULL. */
cudaError_t pf_cu_gate_up(cudaStream_t st, const struct cu_experts *e, const struct cu_x *out, size_t shared_bytes,
                          int *fault);
/* y[pick] = w x, x [rows][n]; times the pick's weight if weigh_input. */
cudaError_t pf_cu_expert_rows(cudaStream_t st, const struct cu_experts *e, float *y);
/* y[row] = sum over the row's picks, in order, of weight * (w x), x [rows * n_used][n]. */
cudaError_t pf_cu_down(cudaStream_t st, const struct cu_experts *e, float *y, const struct cu_residual *residual);

/* Picks sorted by expert, and cut into tiles of columns. sorted and tile lie behind the struct, see pf_cu_max_tiles. */
struct cu_tile {
    int expert, first, n;         /* columns are sorted[first .. first + n) */
};
struct cu_groups {
    int             n_tiles;
    int32_t        *sorted;       /* [n_picks] */
    struct cu_tile *tile;
};
int pf_cu_max_tiles(int n_picks, int n_expert, int width);
/* only: a table of experts; experts without an address in it get no tiles. NULL: all experts get tiles. */
cudaError_t pf_cu_group(cudaStream_t st, const int32_t *picks, int n_picks, int n_expert, int width,
                        const uint8_t *const *only, struct cu_groups *g);

/* How products of many rows are cut for a GPU: columns of a tile, stages in shared memory, blocks that run at once;
 * whether warpgroups do those of some types, to which cu_tiles.halves and scales then give room. */
struct cu_tile_shape {
    int width, n_stages, n_blocks;
    bool groups;
};
/* For a GPU of n_units multiprocessors whose blocks may have so much shared memory; false: too little. */
bool pf_cu_tile_shape(size_t shared_bytes, int n_units, struct cu_tile_shape *out);

/* One matrix, or one of each expert. */
struct cu_tile_part {
    const uint8_t        *w;                   /* dense */
    const uint8_t *const *table;               /* experts */
    float                 scale;
    const float          *scales, *bias;       /* {n_expert}; {n_out} or {n_out, n_expert}; or NULL */
    float                *y;                   /* [n_columns][n_out] */
    int                   n_out;
};

/* Quantised matrices of one type and input length times many rows. */
struct cu_tiles {
    struct cu_tile_part part[CU_MAX_PARTS];
    enum pf_qtype    type;
    uint64_t         row_bytes;
    int              n_parts, n, n_columns;    /* n_columns: rows, or picks */
    struct cu_x      x;
    struct cu_tables tables;
    const struct cu_groups *groups;            /* experts; NULL: dense */
    const float     *weights;                  /* per pick: multiplies what comes out; or NULL */
    int              n_expert, x_divisor;      /* pick p reads row p / x_divisor of x */
    uint16_t        *halves;                   /* see cu_tile_shape: room for [rows of x][n], and for so many floats: */
    float           *scales;                   /* [rows of x][n / 32, rounded up to fours] */
};
cudaError_t pf_cu_tiles(cudaStream_t st, const struct cu_tiles *t, const struct cu_tile_shape *shape);

/* y[row] = sum over its picks, in order, of weight * v[pick]; weights NULL: 1. */
struct cu_combine {
    const float *v, *weights;
    int          n, n_used, rows;
    float       *y;
};
cudaError_t pf_cu_combine(cudaStream_t st, const struct cu_combine *c, const struct cu_residual *residual);

/* Rows of `to` from the same rows of y, main memory, for picks of experts with an address in the table. [n_picks][n] */
struct cu_given_picks {
    const uint8_t *const *table;         /* [n_expert] */
    const int32_t *picks;
    const float   *y;
    float         *to;
    int            n_picks, n;
};
cudaError_t pf_cu_take_given(cudaStream_t st, const struct cu_given_picks *g);

/* x.q, x.d, x.s from x.f, whose rows begin every `stride` floats. */
cudaError_t pf_cu_quantise(cudaStream_t st, const struct cu_x *x, int n, int stride, int rows, int *fault);
cudaError_t pf_cu_norm(cudaStream_t st, const struct cu_norm *n);
cudaError_t pf_cu_between(cudaStream_t st, const struct cu_between *o);
cudaError_t pf_cu_centre(cudaStream_t st, const float *x, int n, int rows, float *y);
cudaError_t pf_cu_layer_norm(cudaStream_t st, const float *x, const float *w, const float *bias, float eps, int n,
                             int rows, float *y);
/* Work on queries, keys and values between their products and attention: norms per head, rotation, and keys and values
 * into their chunks. rope[0] is q, rope[1] k, heads up to CU_HEAD_DIM long. Where the attention kernel does this work,
 * q and k stay as they were in memory: nobody reads them later. */
struct cu_heads {
    struct pf_rope_op rope[2];
    struct pf_copy deal[2];       /* copies done first: q out of its product's rows, and the gates that lie beside it;
                                     n 0: nothing */
    bool         norm[2];
    const float *weight[2];       /* or NULL */
    float        eps;
    struct pf_kv_view kv;
    const float   *v;
    const int32_t *pos;
    int            rows;
};
cudaError_t pf_cu_heads(cudaStream_t st, const struct cu_heads *h);

struct cu_far;

/* Attention in whole numbers (docs/numerics.md), for keys and values of type I16. store: keys and values of rows.
 * attention: rows of queries go to s->q first, where heads, if not NULL, says what happens to them before, and that
 * keys and values are stored, too. n_chunks: no less than the positions take. x: as pf_cu_attention has it. */
struct cu_i16 {
    uint8_t *q;                   /* [rows][n_head][2 hd_k]; of a latent in tiles, CU_LATENT_SPARE more */
    float   *cq;                  /* [rows][n_head]; of a latent pairs */
    float   *part;                /* chunks of few rows: as many floats as pf_cu_attention_floats says */
    size_t   n_part;              /* how many there are */
    const struct pf_far_range *by_host;    /* device memory: chunks whose partials come from the host; or NULL */
};
cudaError_t pf_cu_i16_store(cudaStream_t st, const struct pf_kv_view *kv, const float *k, const float *v,
                            const int32_t *pos, int rows);
cudaError_t pf_cu_i16_queries(cudaStream_t st, const struct pf_attention_op *a, const struct cu_i16 *to,
                              const struct cu_heads *heads);
/* far: where the host has its part of s->by_host, whose partials pf_cu_far_take folds with the others; or NULL, like
 * that. */
cudaError_t pf_cu_i16_attention(cudaStream_t st, const struct pf_attention_op *a, int n_chunks, const struct cu_i16 *s,
                                const struct cu_far *far, const struct cu_x *x, const struct cu_heads *heads,
                                size_t shared_bytes, int *fault);

/* Attention to a latent in whole numbers, by launchers like those of pf_cu_i16_ of the same names. heads: only that
 * rope[1].x, of heads->rows at heads->pos, is stored by the kernel of the queries; its v is NULL. */
cudaError_t pf_cu_latent_store(cudaStream_t st, const struct pf_kv_view *kv, const float *k, const int32_t *pos,
                               int rows);
cudaError_t pf_cu_latent_queries(cudaStream_t st, const struct pf_attention_op *a, const struct cu_i16 *to,
                                 const struct cu_heads *heads);
cudaError_t pf_cu_latent_attention(cudaStream_t st, const struct pf_attention_op *a, int n_chunks,
                                   const struct cu_i16 *s, const struct cu_x *x, const struct cu_heads *heads,
                                   size_t shared_bytes, int *fault);

cudaError_t pf_cu_act(cudaStream_t st, struct pf_act act, const float *gate, const float *up, int64_t n, float *y);
/* x.f, and x.q, x.d, x.s, of act(gate, up), rows of n each; what is NULL of f and q is left out. x->f may be gate. If
 * `only` is not NULL, of the rows whose pick it has an address for. */
cudaError_t pf_cu_act_picks(cudaStream_t st, struct pf_act act, const float *gate, const float *up,
                            const struct cu_x *x, int n, int rows, const int32_t *picks, const uint8_t *const *only,
                            int *fault);
cudaError_t pf_cu_add(cudaStream_t st, float *y, float a, const float *x, int64_t n);
cudaError_t pf_cu_check_finite(cudaStream_t st, const float *x, int64_t n, int *fault);
cudaError_t pf_cu_add_bias(cudaStream_t st, float *y, const float *bias, int n, int rows);
cudaError_t pf_cu_add_gated(cudaStream_t st, float *y, const float *gate, const float *x, int n, int rows);
cudaError_t pf_cu_softcap(cudaStream_t st, float *x, float cap, int64_t n);
cudaError_t pf_cu_gate(cudaStream_t st, float *x, const float *gate, int n, int rows);
cudaError_t pf_cu_rope(cudaStream_t st, const struct pf_rope_op *ropes, int n_ropes, int rows);
cudaError_t pf_cu_kv_store(cudaStream_t st, const struct pf_kv_view *kv, const float *k, const float *v,
                           const int32_t *pos, int rows);
cudaError_t pf_cu_copy(cudaStream_t st, const struct pf_copy *copies, int n_copies, int rows);
/* Copies from memory of the host that the device has mapped; all multiples of 16. */
cudaError_t pf_cu_bring(cudaStream_t st, void *to, const void *from, size_t bytes);
cudaError_t pf_cu_route(cudaStream_t st, const struct pf_route_op *r, int *fault);

/* n_chunks: as many as the longest row may see. count: CU_VECTOR_ROWS * n_head zeros, which it leaves behind
 * again. part: scratch of pf_cu_attention_floats floats. scores: of pf_cu_latent_floats, for few rows of attention to a
 * cached latent; or NULL. Up to CU_VECTOR_ROWS rows are quantised into x as well,
 * unless x->q is NULL; heads must then be multiples of 32. heads: what is done first, in the same kernel if that
 * is possible; or NULL. */
size_t pf_cu_attention_floats(int rows, int n_head, int n_chunks, int hd_v);
size_t pf_cu_latent_floats(int rows, int n_head, int n_chunks);
cudaError_t pf_cu_attention(cudaStream_t st, const struct pf_attention_op *a, int n_chunks, int *count, float *part,
                            float *scores, const struct cu_x *x, const struct cu_heads *heads, size_t shared_bytes,
                            int *fault);

/* scores: [CU_CHOOSE_ROWS][max_positions]. */
enum { CU_CHOOSE_ROWS = 16 };
cudaError_t pf_cu_choose(cudaStream_t st, const struct pf_choose_op *c, float *scores, int max_positions);

/* Quantises out into x, too, unless x->q is NULL; d must then be a multiple of 32. */
cudaError_t pf_cu_delta(cudaStream_t st, const struct pf_delta_op *d, const struct cu_x *x, int *fault);
cudaError_t pf_cu_conv(cudaStream_t st, const struct pf_conv_op *c);
cudaError_t pf_cu_ssm(cudaStream_t st, const struct pf_ssm_op *s);
cudaError_t pf_cu_compress(cudaStream_t st, const struct pf_compress_op *c);
cudaError_t pf_cu_mix(cudaStream_t st, const struct pf_mix_op *m);
cudaError_t pf_cu_streams_read(cudaStream_t st, const struct pf_streams_op *s);
cudaError_t pf_cu_streams_write(cudaStream_t st, const struct pf_streams_op *s);
cudaError_t pf_cu_gated_read(cudaStream_t st, const struct pf_gated_op *g);
cudaError_t pf_cu_gated_write(cudaStream_t st, const struct pf_gated_op *g);
cudaError_t pf_cu_agree(cudaStream_t st, const struct pf_agree_op *a);
cudaError_t pf_cu_spread(cudaStream_t st, const struct pf_spread_op *s);

/* ---- Experts shared with the host: cu_share.cu ------------------------------------------------------------------- */

/* A flag between device and host for one layer, in memory of the host that the device has mapped. */
enum { CU_FLAG_DOWN, CU_FLAG_UP, CU_FLAG_GIVEN_UP };
enum { CU_NOTHING_MISSED = 64 };          /* a value of cu_offer.told, no CU_FLAG_: nothing waits for the host */
struct cu_flag {
    uint32_t up;                  /* a CU_FLAG_; read and written atomically by the host, as volatile by the device */
    uint32_t was_up;              /* the device found the flag up at its first look: nobody has waited for the host */
    uint64_t began_ns;            /* when the device began to wait for the flag, by the device's clock */
    uint64_t ns;                  /* when the device raised the flag or saw it raised, by the device's clock */
    char     line[40];            /* flags do not share cache lines */
};
/* The offer: x, weights and picks go to the host, and `flag` is raised. Then `now` gets the addresses of the picked
 * experts that the device holds or, by the host's deal, reads in place, and NULL for the others. The kernel waits for
 * the host to raise `deal`, unless deal is NULL or the device holds all picked experts. */
struct cu_offer {
    const float   *x, *weights;   /* [rows][n], [rows][n_used] */
    const int32_t *picks;
    int            n_x, n_picks;  /* floats of x, picks */
    float         *host_x, *host_weights;
    int32_t       *host_picks;
    struct cu_flag *flag, *deal;
    uint32_t      *told;          /* device memory: lowered for the layer's take, or CU_NOTHING_MISSED */
    const struct pf_handed *handed;        /* [n_picks], memory of the host */
    int                     n_expert;
    const uint8_t *const   *held;          /* [3][n_expert] */
    const uint8_t *const   *elsewhere;     /* {n_expert}, not NULL of those that other cards hold; or NULL */
    int                     card;          /* what the host deals to this card is done here */
    const uint8_t         **now;           /* [3][n_expert]; entries of picked experts are written */
    int                    *fault;
};
cudaError_t pf_cu_offer(cudaStream_t st, const struct cu_offer *o);
/* The part of another card, after the first one's offer: only `now` is written. told: what the first one's was then;
 * deal not NULL: the host may have dealt. */
cudaError_t pf_cu_find(cudaStream_t st, const struct cu_offer *o);

/* The take: waits until the flag is up; then, pick by pick, the host's outputs go to y, its activations to a (quantised
 * if a.q is not NULL), and the addresses of matrices that it copied to the device into the tables `late`. A flag that
 * stays down for too long, or says that the host has given up, is a fault. */
struct cu_take {
    struct cu_flag         *flag;
    const struct pf_handed *handed;        /* [n_picks], memory of the host */
    const float            *act, *host_y;  /* [n_picks][n_ff], [n_picks][n_out], memory of the host */
    const int32_t          *picks;
    int                     n_picks, n_ff, n_out, n_expert;
    float                  *y;
    struct cu_x             a;
    const uint8_t *const   *held;          /* {n_expert}, not NULL of those that the device holds, whose picks
                                              take nothing of the host; or NULL */
    const uint8_t         **late;          /* [3][n_expert] */
    uint32_t               *told;          /* device memory: the flag's value, for blocks that do not ask for it */
    int                     card;          /* see cu_offer; others than 0 take no outputs of the host */
    const uint8_t *const   *elsewhere;     /* as cu_offer has it; or NULL, and theirs too */
    int32_t                *theirs;        /* [n_picks] out: whether another card does it */
    int                    *fault;
};
cudaError_t pf_cu_take(cudaStream_t st, const struct cu_take *t);

/* ---- Far keys and values of which the host makes some partials: cu_far.cu ---------------------------------------- */

/* Memory of the host but `told`. show, behind the kernel of the queries: planes and factors go to the host, and `shown`
 * is raised. take, behind the partials of the device: waits until `made` is up, copies the host's partials to where the
 * others are (cu_i16.part), and folds them all. */
struct cu_far {
    int8_t         *q;
    float          *cq;
    const float    *part;         /* these three as in pf_partials_op */
    struct cu_flag *shown, *made;
    uint32_t       *told;         /* device memory: what `made` says, for blocks that do not ask */
};
cudaError_t pf_cu_far_show(cudaStream_t st, const struct pf_attention_op *a, const struct cu_i16 *s,
                           const struct cu_far *far);
cudaError_t pf_cu_far_take(cudaStream_t st, const struct pf_attention_op *a, int n_chunks, const struct cu_i16 *s,
                           const struct cu_far *far, const struct cu_x *x, int *fault);

/* table[part * stride + expert[i]] = at[part][i]. First n_clear entries of each part become NULL. */
enum { CU_TABLE_ENTRIES = 64 };
struct cu_entries {
    int            n, stride, n_clear;
    int            expert[CU_TABLE_ENTRIES];
    const uint8_t *at[3][CU_TABLE_ENTRIES];
};
cudaError_t pf_cu_set_table(cudaStream_t st, const uint8_t **table, const struct cu_entries *e);

#ifdef __cplusplus
}
#endif
#endif
