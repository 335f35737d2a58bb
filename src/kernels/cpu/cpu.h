/* Private to kernels/cpu/: the CPU backend's state and the pieces its files share.
 *
 * backend_cpu.c opens, closes and does everything that goes row by row; cpu_linear.c multiplies dense matrices;
 * cpu_experts.c runs experts; cpu_attention.c and cpu_attention_i16.c attend, cpu_rounds.c deals out their work,
 * cpu_partials.c attends in part, for a device; cpu_choose.c chooses to what; cpu_delta.c steps delta nets, cpu_ssm.c
 * convolutions and Mamba2; cpu_compress.c makes rows of blocks; cpu_streams.c mixes residual streams; cpu_route.c picks
 * experts. All slice their work over the pool in such a way that a value never depends on the slicing. */
#ifndef PF_CPU_BACKEND_H
#define PF_CPU_BACKEND_H

#include <stdatomic.h>

#include "base/pf_pool.h"
#include "backend/backend.h"
#include "kernels/kernels.h"

enum {
    X_BLOCK = 64,            /* activation rows a tile kernel gets at once: their int8 values stay in the L2 cache */
    Q_BLOCK = 64,            /* queries of one KV head an attention kernel gets at once */
    CHOOSE_ROWS = 16,        /* rows whose scores of all positions are in memory at once */
    ROW_GROUP = 16           /* weight rows are handed out in multiples of this, as the kernels like them */
};

/* Rows of activations as right-hand sides: int8 values, scales and sums behind `rows`. */
struct xmatrix {
    struct pf_xrow *rows;    /* [max_rows] */
    int8_t         *q;       /* [max_rows][q_stride] */
    float          *d;       /* [max_rows][d_stride] */
    int16_t        *s;       /* [max_rows][s_stride] */
    size_t          q_stride, d_stride, s_stride;
};

/* One expert of the present batch: its picks lie at [first, first + n) of the sorted picks. */
struct expert_group {
    int first, n;
};

/* In a line of its own: threads change it while others read. */
struct expert_wait {
    _Alignas(64) _Atomic int left;       /* tasks of gate and up that are not done, and one more; 0: down's
                                            inputs are there */
};

/* Whose queries a thread's scratch holds as planes: those of a block in one operation of attention, which is counted
 * from 1. A line of memory each, since every thread writes its own. */
struct cpu_held {
    _Alignas(64) uint64_t attention;
    int64_t block;
};

struct cpu_backend {
    struct pf_backend        base;
    struct pf_kernels        k;
    pf_pool                 *pool;
    bool                     borrows;        /* the pool is another backend's */
    struct pf_backend_sizes  sizes;

    void    *arena;          /* everything below lies in it */
    size_t   arena_bytes;
    struct xmatrix x, a, h;  /* inputs of dense and gate/up products; of down products; of products by head */
    float   *act;            /* [max_picks][n_ff] gated activations, picks sorted by expert */
    float   *pick_out;       /* [max_picks][n_out] what each pick's down product gave */
    float   *low;            /* [max_picks][2 * expert_rank] A x of adapters for gate and up, or for down */
    int     *sorted;         /* [max_picks] sorted position -> row * n_used + slot */
    int     *place;          /* [max_picks] row * n_used + slot -> sorted position */
    struct expert_group *groups;     /* [n_expert] where each expert's picks lie among the sorted */
    struct expert_wait  *waits;      /* [n_expert] 0 between runs */
    int     *gate_up, *down;         /* [n_expert] experts of the present part that need gate and up; that need down */
    struct pf_experts_op  experts;   /* the op between experts_begin and experts_end */
    float   *scores;                 /* [CHOOSE_ROWS][max_positions] */
    float   *parts;                  /* attention's totals and partials: cpu_rounds.h */
    uint64_t n_attentions;           /* operations of attention in whole numbers so far */
    struct cpu_held *held;           /* [n_threads] */
    float   *thread_scratch;         /* [n_threads][thread_floats] */
    size_t   thread_floats;

    _Atomic bool not_finite;         /* a quantiser met a NaN or an infinity */
};

static inline struct cpu_backend *cpu_of(pf_backend *b)
{
    return (struct cpu_backend *)b;
}

static inline float *cpu_thread_scratch(struct cpu_backend *b, int thread)
{
    return b->thread_scratch + (size_t)thread * b->thread_floats;
}

/* Makes rows [0, n_rows) of xm from rows of n floats, stride apart; quantises them if the weights want int8. */
pf_status pf_cpu_prepare(struct cpu_backend *b, struct xmatrix *xm, const float *x, int n, int stride, int n_rows,
                         bool quantised);

/* pf_cpu_prepare for rows [r0, r1), on the calling thread. pf_cpu_finite fails if a row prepared since its last call
 * was not finite. */
void pf_cpu_prepare_rows(struct cpu_backend *b, struct xmatrix *xm, const float *x, int n, int stride, int r0, int r1,
                         bool quantised);
pf_status pf_cpu_finite(struct cpu_backend *b);

/* y[j][r0..r1) of weight rows [r0, r1) for x rows [0, n_x): vec for one row, tiles for more, in blocks of X_BLOCK.
 * next: as for pf_mul_fn. */
void pf_cpu_mul(const struct cpu_backend *b, enum pf_qtype type, const uint8_t *w, uint64_t row_bytes, int r0, int r1,
                int n, const struct pf_xrow *x, int n_x, float *y, size_t y_stride, const void *next);

void pf_cpu_activate(const struct cpu_backend *b, struct pf_act act, const float *gate, const float *up, int n,
                     float *y);

/* How many weight rows one task takes, when n_rows of them are to make so many tasks a thread, none too large. */
int pf_cpu_grain(const struct cpu_backend *b, int64_t n_rows, int per_thread, int most);

pf_status pf_cpu_linear(pf_backend *b, const struct pf_linear *l, int n_l, const float *x, int rows);
pf_status pf_cpu_heads(pf_backend *b, const struct pf_heads_op *h);
pf_status pf_cpu_experts(pf_backend *b, const struct pf_experts_op *e);
pf_status pf_cpu_experts_begin(pf_backend *b, const struct pf_experts_op *e);
pf_status pf_cpu_experts_part(pf_backend *b, const int *experts, int n);
pf_status pf_cpu_experts_halves(pf_backend *b, const struct pf_halves *h);
pf_status pf_cpu_experts_given(pf_backend *b, const int *experts, int n, const float *y);
pf_status pf_cpu_experts_end(pf_backend *b);
pf_status pf_cpu_attention(pf_backend *b, const struct pf_attention_op *a);
pf_status pf_cpu_attention_i16(struct cpu_backend *b, const struct pf_attention_op *a);
pf_status pf_cpu_partials(pf_backend *b, const struct pf_partials_op *p);
int pf_cpu_first_visible(const struct pf_attention_op *a, int row);  /* the first position that a row sees */
int pf_cpu_first_chunk(const struct pf_attention_op *a);             /* chunks of positions that some row sees */
int pf_cpu_end_chunk(const struct pf_attention_op *a);
/* The keys and values of one KV head at one position, of type PF_KV_I16; v is not read where kv has none. */
void pf_cpu_store_i16(const struct cpu_backend *b, const struct pf_kv_view *kv, int pos, int head, const float *k,
                      const float *v);
pf_status pf_cpu_choose(pf_backend *b, const struct pf_choose_op *c);
pf_status pf_cpu_delta(pf_backend *b, const struct pf_delta_op *d);
pf_status pf_cpu_conv(pf_backend *b, const struct pf_conv_op *c);
pf_status pf_cpu_ssm(pf_backend *b, const struct pf_ssm_op *s);
pf_status pf_cpu_compress(pf_backend *b, const struct pf_compress_op *c);
pf_status pf_cpu_mix(pf_backend *b, const struct pf_mix_op *m);
pf_status pf_cpu_streams_read(pf_backend *b, const struct pf_streams_op *s);
pf_status pf_cpu_streams_write(pf_backend *b, const struct pf_streams_op *s);
pf_status pf_cpu_gated_read(pf_backend *b, const struct pf_gated_op *g);
pf_status pf_cpu_gated_write(pf_backend *b, const struct pf_gated_op *g);
pf_status pf_cpu_agree(pf_backend *b, const struct pf_agree_op *a);
pf_status pf_cpu_spread(pf_backend *b, const struct pf_spread_op *s);
pf_status pf_cpu_route(pf_backend *b, const struct pf_route_op *r);
size_t pf_cpu_attention_floats(int max_head_dim, bool gathers);      /* scratch per thread */
size_t pf_cpu_attention_i16_floats(int max_head_dim, bool latent);
size_t pf_cpu_parts_floats(const struct pf_backend_sizes *s);                /* of cpu_backend.parts */
size_t pf_cpu_choose_floats(int n_head);
size_t pf_cpu_experts_floats(void);
size_t pf_cpu_delta_floats(int d);
size_t pf_cpu_route_floats(int n_expert);

#endif
