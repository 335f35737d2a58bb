/* Attention in whole numbers: keys and values (base/pf_i16.h) or a latent, which is both (base/pf_latent.h), into
 * chunks, and queries to chunks. docs/numerics.md has the order; how work is dealt out changes no bit of it.
 *
 *     queries of KV head h: (row 0, head 0..g-1), (row 1, head 0..g-1), ...      g query heads share the KV head
 *     a block of queries:   up to Q_BLOCK of them, which read keys and values together
 *
 * cpu_rounds.h deals blocks and runs of chunks to the threads. A latent is one KV head: its blocks are smaller where
 * the context has fewer chunks than there are threads. */
#include <math.h>
#include <string.h>

#include "base/pf_latent.h"
#include "kernels/cpu/cpu_rounds.h"

_Static_assert((int)PF_I16_CHUNK == (int)PF_KV_CHUNK_POSITIONS, "chunks are as long as attention's");
_Static_assert((int)Q_BLOCK <= (int)PF_ATTN_I16_QUERIES, "a kernel takes a block of queries");

/* ---- Storing ----------------------------------------------------------------------------------------------------- */

/* Planes [2][n] of a key into position p of a block. */
static void put_key(char *block, int n, int p, const int8_t *planes, float sk, float lsv)
{
    for (int e = 0; e < n; e += 4) {
        char *at = block + pf_i16_key_at(n, p, e);
        memcpy(at, planes + e, 4);
        memcpy(at + PF_I16_PLANE, planes + n + e, 4);
    }
    memcpy(block + pf_i16_sk(n) + (size_t)p * sizeof sk, &sk, sizeof sk);
    memcpy(block + pf_i16_lsv(n) + (size_t)p * sizeof lsv, &lsv, sizeof lsv);
}

static void put_value(char *block, int n, int p, const int8_t *planes, float rsv)
{
    for (int e = 0; e < n; e += 16) {
        char *at = block + pf_i16_value_at(n, p, e);
        for (int i = 0; i < 16; i++) {
            at[i * 4] = (char)planes[e + i];
            at[i * 4 + PF_I16_PLANE] = (char)planes[n + e + i];
        }
    }
    memcpy(block + pf_i16_rsv(n) + (size_t)p * sizeof rsv, &rsv, sizeof rsv);
}

/* Planes [2][n] of the elements [first, first + n) of a latent's row. */
static void put_latent(char *block, int hd_k, int p, int first, int n, const int8_t *planes)
{
    for (int e = 0; e < n; e += 4) {
        char *at = block + pf_latent_at(hd_k, p, first + e);
        memcpy(at, planes + e, 4);
        memcpy(at + PF_LATENT_PLANE, planes + n + e, 4);
    }
}

static void store_latent(const struct cpu_backend *b, const struct pf_kv_view *kv, int pos, const float *k)
{
    float row[2 * PF_I16_HEAD_MAX], scales[4] = { 1, 1, 0, NAN };        /* s, sp, lsv, rsv */
    int8_t planes[4 * PF_I16_HEAD_MAX];
    int n = kv->hd_v, n_pe = kv->hd_k - n, p = pos % PF_I16_CHUNK, at = p % PF_I16_BLOCK;
    memcpy(row, k, (size_t)kv->hd_k * sizeof *k);
    b->k.rotate(row, kv->hd_k, PF_LATENT_PIECE);
    float s = b->k.to_i16(row, n, planes), sp = n_pe ? b->k.to_i16(row + n, n_pe, planes + 2 * n) : 1;
    if (s > 0 && sp > 0) {
        scales[0] = s;
        scales[1] = sp;
        scales[2] = pf_log2f(s);
        scales[3] = 1.0f / s;
    } else {                                 /* out of range */
        memset(planes, 0, sizeof planes);
    }
    char *block = pf_kv_latent(kv, pos) + pf_latent_block(kv->hd_k, p);
    put_latent(block, kv->hd_k, at, 0, n, planes);
    put_latent(block, kv->hd_k, at, n, n_pe, planes + 2 * n);
    for (int i = 0; i < 4; i++)
        memcpy(block + pf_latent_scales(kv->hd_k, i) + (size_t)at * sizeof *scales, &scales[i], sizeof *scales);
}

void pf_cpu_store_i16(const struct cpu_backend *b, const struct pf_kv_view *kv, int pos, int head, const float *k,
                      const float *v)
{
    float row[PF_I16_HEAD_MAX];
    int8_t key[2 * PF_I16_HEAD_MAX], value[2 * PF_I16_HEAD_MAX];
    if (pf_kv_is_latent(kv)) {
        store_latent(b, kv, pos, k);
        return;
    }
    memcpy(row, k, (size_t)kv->hd_k * sizeof *k);
    b->k.rotate(row, kv->hd_k, pf_i16_piece(kv->hd_k));
    float sk = b->k.to_i16(row, kv->hd_k, key);
    float sv = b->k.to_i16(v, kv->hd_v, value), lsv = 0, rsv = NAN;
    if (sk > 0 && sv > 0) {
        lsv = pf_log2f(sv);
        rsv = 1.0f / sv;
    } else {                                 /* out of range */
        memset(key, 0, sizeof key);
        memset(value, 0, sizeof value);
        sk = 1;
    }
    int p = pos % PF_I16_CHUNK;
    put_key(pf_kv_i16_keys(kv, pos, head) + pf_i16_key_block(kv->hd_k, p), kv->hd_k, p % PF_I16_BLOCK, key, sk, lsv);
    put_value(pf_kv_i16_values(kv, pos, head) + pf_i16_value_block(kv->hd_v, p), kv->hd_v, p % PF_I16_BLOCK, value,
              rsv);
}

/* ---- A block of queries ------------------------------------------------------------------------------------------ */

struct i16_job {
    struct cpu_rounds rounds;
    struct cpu_backend *b;
    const struct pf_attention_op *a;
    uint64_t number;             /* of the operation: see struct cpu_held */
    int group, n_q;              /* query heads per KV head; queries per KV head: rows x group */
    int block, n_blocks;         /* queries of a block; blocks per KV head */
    bool latent;
};

/* A block of queries in a thread's scratch. */
struct i16_queries {
    void   *kernel;              /* scratch [PF_ATTN_I16_SCRATCH], [PF_ATTN_LATENT_SCRATCH] */
    float  *part, *total;        /* [Q_BLOCK][hd_v + 2] */
    int8_t *planes;              /* [Q_BLOCK][2][hd_k]; of a latent [Q_BLOCK] planes of the two parts */
    int     n, kv_head, number;  /* number: of the first, among the queries of its KV head */
    float   cq[Q_BLOCK], cqp[Q_BLOCK];
    bool    out_of_range[Q_BLOCK];
    int     row[Q_BLOCK], head[Q_BLOCK];
    int     first[Q_BLOCK], end[Q_BLOCK], lo[Q_BLOCK], hi[Q_BLOCK];      /* positions seen, of all, of a chunk */
};

enum { QUERIES_FLOATS = (sizeof(struct i16_queries) + sizeof(float) - 1) / sizeof(float) };

static size_t kernel_floats(bool latent)
{
    return (latent ? PF_ATTN_LATENT_SCRATCH : PF_ATTN_I16_SCRATCH) / sizeof(float);
}

size_t pf_cpu_attention_i16_floats(int max_head_dim, bool latent)
{
    size_t most = latent ? 2 * PF_I16_HEAD_MAX : PF_I16_HEAD_MAX, hd = (size_t)max_head_dim;
    hd = hd < most ? hd : most;
    return kernel_floats(latent) + QUERIES_FLOATS + Q_BLOCK * (2 * (hd + 2) + hd / 2 + 1);
}

static struct i16_queries *carve(const struct i16_job *job, int thread)
{
    size_t stride = (size_t)job->a->kv->hd_v + 2;
    float *kernel = cpu_thread_scratch(job->b, thread);
    struct i16_queries *s = (struct i16_queries *)(void *)(kernel + kernel_floats(job->latent));
    s->kernel = kernel;
    s->part = (float *)(void *)s + QUERIES_FLOATS;
    s->total = s->part + (size_t)Q_BLOCK * stride;
    s->planes = (int8_t *)(s->total + (size_t)Q_BLOCK * stride);
    return s;
}

/* A part of a query as planes, and the factor of its scores; false: it is out of range. */
static bool part_to_planes(const struct i16_job *job, const float *x, int n, int8_t *planes, float *cq)
{
    float scale = job->b->k.to_i16(x, n, planes);
    *cq = scale * (job->a->scale * PF_LOG2_E * 256);
    return scale > 0 && fabsf(*cq) < PF_I16_MOST_CQ;
}

/* Query i of the task: its number, what it sees, its planes. A latent's queries have a part with positions behind. */
static void begin_query(const struct i16_job *job, struct i16_queries *s, int i)
{
    const struct pf_attention_op *a = job->a;
    int hd = a->kv->hd_k, n = job->latent ? a->kv->hd_v : hd, row = (s->number + i) / job->group;
    int head = s->kv_head * job->group + (s->number + i) % job->group;
    float x[2 * PF_I16_HEAD_MAX];
    memcpy(x, a->q + ((size_t)row * (size_t)a->n_head + (size_t)head) * (size_t)hd, (size_t)hd * sizeof *x);
    if (a->row_scale)
        job->b->k.scale(x, a->row_scale[row], hd);
    job->b->k.rotate(x, hd, job->latent ? PF_LATENT_PIECE : pf_i16_piece(hd));
    int8_t *planes = s->planes + (size_t)i * 2 * (size_t)hd;
    bool in_range = part_to_planes(job, x, n, planes, &s->cq[i]);
    if (n < hd)
        in_range &= part_to_planes(job, x + n, hd - n, planes + 2 * n, &s->cqp[i]);
    s->out_of_range[i] = !in_range;
    if (!in_range) {
        memset(planes, 0, 2 * (size_t)hd);
        s->cq[i] = s->cqp[i] = 0;
    }
    s->row[i] = row;
    s->head[i] = head;
    s->first[i] = pf_cpu_first_visible(a, row);
    s->end[i] = a->pos[row] + 1;
}

static void begin_queries(const struct i16_job *job, struct i16_queries *s, int kv_head, int block)
{
    s->kv_head = kv_head;
    s->number = block * job->block;
    s->n = job->n_q - s->number < job->block ? job->n_q - s->number : job->block;
    for (int i = 0; i < s->n; i++)
        begin_query(job, s, i);
}

/* A chunk of a KV head. */
struct place {
    int chunk, kv_head;
};

static const char *keys_at(const struct pf_kv_view *kv, struct place at)
{
    return pf_kv_i16_keys(kv, at.chunk * PF_I16_CHUNK, at.kv_head);
}

static const char *values_at(const struct pf_kv_view *kv, struct place at)
{
    return pf_kv_i16_values(kv, at.chunk * PF_I16_CHUNK, at.kv_head);
}

static const char *latent_at(const struct pf_kv_view *kv, struct place at)
{
    return pf_kv_latent(kv, at.chunk * PF_I16_CHUNK);
}

static void call_kernel(const struct i16_job *job, const struct i16_queries *s, struct place at, struct place next,
                        float *part)
{
    const struct pf_kv_view *kv = job->a->kv;
    size_t stride = (size_t)kv->hd_v + 2;
    if (job->latent)
        job->b->k.attn_latent(&(struct pf_attn_latent_args){
            .q = s->planes, .cq = s->cq, .cqp = s->cqp, .chunk = latent_at(kv, at), .next = latent_at(kv, next),
            .n_q = s->n, .hd_k = kv->hd_k, .hd_v = kv->hd_v, .lo = s->lo, .hi = s->hi, .part = part,
            .part_stride = stride, .scratch = s->kernel });
    else
        job->b->k.attn_i16(&(struct pf_attn_i16_args){
            .q = s->planes, .cq = s->cq, .k = keys_at(kv, at), .v = values_at(kv, at), .next_k = keys_at(kv, next),
            .next_v = values_at(kv, next), .n_q = s->n, .hd_k = kv->hd_k, .hd_v = kv->hd_v, .lo = s->lo, .hi = s->hi,
            .part = part, .part_stride = stride, .scratch = s->kernel });
}

/* The queries' partials of chunk c; `next` is what the thread turns to after it. A query that is out of range gives a
 * sum of weights that is none. */
static void attend_chunk(const struct i16_job *job, struct i16_queries *s, int c, struct place next, float *part)
{
    size_t hd = (size_t)job->a->kv->hd_v, stride = hd + 2;
    bool any = false;
    for (int i = 0; i < s->n; i++) {
        int lo = s->first[i] - c * PF_I16_CHUNK, hi = s->end[i] - c * PF_I16_CHUNK;
        s->lo[i] = lo < 0 ? 0 : lo > PF_I16_CHUNK ? PF_I16_CHUNK : lo;
        s->hi[i] = hi > PF_I16_CHUNK ? PF_I16_CHUNK : hi < s->lo[i] ? s->lo[i] : hi;
        any |= s->lo[i] < s->hi[i];
    }
    if (any)
        call_kernel(job, s, (struct place){ c, s->kv_head }, next, part);
    for (int i = 0; i < s->n; i++)
        if (!any)
            part[(size_t)i * stride + hd] = -INFINITY;
        else if (s->out_of_range[i])
            part[(size_t)i * stride + hd + 1] = NAN;
}

static void begin_total(float *total, int hd)
{
    memset(total, 0, ((size_t)hd + 2) * sizeof *total);
    total[hd] = -INFINITY;
}

static void fold(const struct i16_job *job, float *total, const float *part, int hd)
{
    if (part[hd] != -INFINITY)
        job->b->k.attn_fold(total, part, hd);
}

/* Adds the sink, which has a logit but no value, and divides by the sum of weights. A latent's values are rotated: what
 * they give is rotated back. */
static void end_query(const struct i16_job *job, float *total, int row, int head)
{
    const struct pf_attention_op *a = job->a;
    int hd = a->kv->hd_v;
    float m = total[hd], z = total[hd + 1], factor = 1.0f / z;
    if (a->sinks) {
        float sink = a->sinks[head] * PF_LOG2_E, top = m > sink ? m : sink, shrink = pf_exp2_neg(m - top);
        factor = shrink / fmaf(z, shrink, pf_exp2_neg(sink - top));
    }
    job->b->k.scale(total, factor, hd);
    if (job->latent)
        job->b->k.rotate(total, hd, PF_LATENT_PIECE);
    memcpy(a->out + ((size_t)row * (size_t)a->n_head + (size_t)head) * (size_t)hd, total, (size_t)hd * sizeof *total);
}

/* ---- Tasks ------------------------------------------------------------------------------------------------------- */

static void begin_block(const struct i16_job *job, struct i16_queries *s, int64_t block)
{
    begin_queries(job, s, (int)(block / job->n_blocks), (int)(block % job->n_blocks));
}

/* The block's queries, which the thread has from its last task if that was of the same block. */
static struct i16_queries *hold_block(const struct i16_job *job, int64_t block, int thread)
{
    struct cpu_held *held = &job->b->held[thread];
    struct i16_queries *s = carve(job, thread);
    if (held->attention != job->number || held->block != block)
        begin_block(job, s, block);
    *held = (struct cpu_held){ job->number, block };
    return s;
}

/* Where a thread goes after chunk c of task t: most often to the next task. A guess that decides what is fetched. */
static struct place after(const struct i16_job *job, int64_t t, int c)
{
    struct cpu_run run = pf_cpu_run_of(&job->rounds, t);
    if (c + 1 < run.end)
        return (struct place){ c + 1, (int)(run.block / job->n_blocks) };
    if (t + 1 < job->rounds.n_tasks)
        run = pf_cpu_run_of(&job->rounds, t + 1);
    return (struct place){ run.first, (int)(run.block / job->n_blocks) };
}

/* Blocks of queries through all chunks. */
static void whole_tasks(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct i16_job *job = ctx;
    int hd = job->a->kv->hd_v;
    size_t stride = (size_t)hd + 2;
    for (int64_t t = begin; t < end; t++) {
        struct cpu_run run = pf_cpu_run_of(&job->rounds, t);
        struct i16_queries *s = hold_block(job, run.block, thread);
        for (int i = 0; i < s->n; i++)
            begin_total(s->total + (size_t)i * stride, hd);
        for (int c = run.first; c < run.end; c++) {
            attend_chunk(job, s, c, after(job, t, c), s->part);
            for (int i = 0; i < s->n; i++)
                fold(job, s->total + (size_t)i * stride, s->part + (size_t)i * stride, hd);
        }
        for (int i = 0; i < s->n; i++)
            end_query(job, s->total + (size_t)i * stride, s->row[i], s->head[i]);
    }
}

/* Blocks of queries through runs of the round's chunks. */
static void run_tasks(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct i16_job *job = ctx;
    for (int64_t t = begin; t < end; t++) {
        struct cpu_run run = pf_cpu_run_of(&job->rounds, t);
        struct i16_queries *s = hold_block(job, run.block, thread);
        for (int c = run.first; c < run.end; c++)
            attend_chunk(job, s, c, after(job, t, c),
                         pf_cpu_part_of(&job->rounds, c, (int64_t)s->kv_head * job->n_q + s->number));
    }
}

/* Queries, numbered KV head by KV head, fold their partials of the round. */
static void fold_tasks(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct i16_job *job = ctx;
    const struct cpu_rounds *r = &job->rounds;
    int hd = job->a->kv->hd_v;
    (void)thread;
    for (int64_t t = begin; t < end; t++) {
        float *total = pf_cpu_total_of(r, t);
        if (r->round_first == r->first)
            begin_total(total, hd);
        for (int c = r->round_first; c < r->round_end; c++)
            fold(job, total, pf_cpu_part_of(r, c, t), hd);
        if (r->round_end == r->end) {
            int query = (int)(t % job->n_q);
            end_query(job, total, query / job->group, (int)(t / job->n_q) * job->group + query % job->group);
        }
    }
}

/* Queries of a block of a latent: fewer, where threads would have no chunk otherwise. */
static int latent_block(const struct i16_job *job, int64_t n_chunks)
{
    enum { LEAST = 4 };                      /* a tile of the kernels */
    int n_threads = pf_pool_n_threads(job->b->pool), block = Q_BLOCK;
    while (block > LEAST && (job->n_q + block - 1) / block * n_chunks < n_threads)
        block /= 2;
    return block;
}

pf_status pf_cpu_attention_i16(struct cpu_backend *b, const struct pf_attention_op *a)
{
    struct i16_job job = { .b = b, .a = a, .number = ++b->n_attentions, .group = a->n_head / a->kv->n_kv_head,
                           .latent = pf_kv_is_latent(a->kv) };
    int first = pf_cpu_first_chunk(a), end = pf_cpu_end_chunk(a);
    job.n_q = a->rows * job.group;
    job.block = job.latent ? latent_block(&job, end - first) : Q_BLOCK;
    job.n_blocks = (job.n_q + job.block - 1) / job.block;
    job.rounds = (struct cpu_rounds){
        .b = b, .n_blocks = (int64_t)job.n_blocks * a->kv->n_kv_head, .n_queries = (int64_t)job.n_q * a->kv->n_kv_head,
        .stride = (size_t)a->kv->hd_v + 2, .first = first, .end = end,
    };
    pf_cpu_rounds_run(&job.rounds, whole_tasks, run_tasks, fold_tasks, &job);
    return PF_OK;
}
