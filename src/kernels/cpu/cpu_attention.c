/* Attention in float: up to Q_BLOCK queries of one KV head go through chunks of keys and values, in order.
 *
 *     queries of KV head h: (row 0, head 0..g-1), (row 1, head 0..g-1), ...      g query heads share the KV head
 *     a block's queries:    [first, first + n)                                   folded over chunks 0, 1, 2, ...
 *
 * Where keys stand for blocks of positions beside those for positions, their chunks come after the others.
 *
 * Where a row sees chosen keys only, a block is up to Q_BLOCK heads of one row, and the keys and values it sees are
 * gathered, in rising order, into chunks as full as those of the cache: if all are chosen, the same bits.
 *
 * Every query folds the same absolute chunks in the same order whatever the batch, so a prompt evaluated whole, in
 * pieces or token by token gives the same bits. A chunk's partial is what the kernel leaves of a query without
 * history: its maximum, sum of weights and weighted sum of values; to fold it in takes the steps that the kernel takes
 * with a history. So it is free how cpu_rounds.h deals out blocks and runs of chunks. */
#include <math.h>
#include <string.h>

#include "base/pf_math.h"
#include "kernels/cpu/cpu_rounds.h"

_Static_assert((int)PF_KV_CHUNK == (int)PF_KV_CHUNK_POSITIONS, "kernels and backend agree on the chunk");

struct attention_job {
    struct cpu_rounds rounds;
    struct cpu_backend *b;
    const struct pf_attention_op *a;
    int group, n_q;              /* query heads per KV head; queries per KV head: rows x group */
    int blocks_per_head;         /* of queries */
    int blocks_per_row;          /* of chosen keys, else 0 */
    int n_chunks;                /* of keys for positions; those for blocks of positions are numbered on */
};

size_t pf_cpu_attention_floats(int max_head_dim, bool gathers)
{
    return (size_t)Q_BLOCK * (PF_KV_CHUNK + 3 * (size_t)max_head_dim + 2) +
           (gathers ? 2 * (size_t)PF_KV_CHUNK * (size_t)max_head_dim : 0);
}

/* The scratch of one task, carved from the thread's. */
struct task_state {
    float *q, *score, *own, *ac, *m, *z;
    void  *gathered_k, *gathered_v;      /* a chunk of keys, of values */
    float *acc;                  /* sums of values: own [n][hd_v], or in the backend's partials */
    size_t acc_stride;
    int    n, kv_head, number;   /* number: of the first query, among those of its KV head */
    int    row[Q_BLOCK], head[Q_BLOCK];
    int    first[Q_BLOCK], end[Q_BLOCK], lo[Q_BLOCK], hi[Q_BLOCK];  /* keys a query sees, of all, of a chunk */
};

static void carve(struct task_state *s, float *scratch, const struct pf_kv_view *kv)
{
    s->score = scratch;
    s->q = s->score + Q_BLOCK * PF_KV_CHUNK;
    s->own = s->q + (size_t)Q_BLOCK * kv->hd_k;
    s->ac = s->own + (size_t)Q_BLOCK * kv->hd_v;
    s->m = s->ac + (size_t)Q_BLOCK * kv->hd_v;
    s->z = s->m + Q_BLOCK;
    s->gathered_k = s->z + Q_BLOCK;
    s->gathered_v = (float *)s->gathered_k + (size_t)PF_KV_CHUNK * kv->hd_k;
}

int pf_cpu_first_visible(const struct pf_attention_op *a, int row)
{
    if (a->window == 0)
        return 0;
    int first = a->chunked ? a->pos[row] - a->pos[row] % a->window : a->pos[row] - a->window + 1;
    return first > 0 ? first : 0;
}

int pf_cpu_first_chunk(const struct pf_attention_op *a)
{
    int first = pf_cpu_first_visible(a, 0);
    for (int r = 1; r < a->rows; r++)
        first = pf_cpu_first_visible(a, r) < first ? pf_cpu_first_visible(a, r) : first;
    return first / PF_KV_CHUNK;
}

int pf_cpu_end_chunk(const struct pf_attention_op *a)
{
    int last = a->pos[0];
    for (int r = 1; r < a->rows; r++)
        last = a->pos[r] > last ? a->pos[r] : last;
    return last / PF_KV_CHUNK + 1;
}

/* Gathers a block's queries. */
static void begin_block(const struct attention_job *job, struct task_state *s, int64_t block)
{
    const struct pf_attention_op *a = job->a;
    int hd_k = a->kv->hd_k, at = (int)(block % job->blocks_per_head), end = job->n_q;
    s->kv_head = (int)(block / job->blocks_per_head);
    s->number = at * Q_BLOCK;
    if (job->blocks_per_row) {
        s->number = at / job->blocks_per_row * job->group + at % job->blocks_per_row * Q_BLOCK;
        end = (at / job->blocks_per_row + 1) * job->group;
    }
    s->n = end - s->number < Q_BLOCK ? end - s->number : Q_BLOCK;
    for (int i = 0; i < s->n; i++) {
        s->row[i] = (s->number + i) / job->group;
        s->head[i] = s->kv_head * job->group + (s->number + i) % job->group;
        float *q = s->q + (size_t)i * hd_k;
        memcpy(q, a->q + ((size_t)s->row[i] * a->n_head + s->head[i]) * hd_k, (size_t)hd_k * sizeof *q);
        if (a->row_scale)
            job->b->k.scale(q, a->row_scale[s->row[i]], hd_k);
    }
}

/* Queries without history, whose sums of values go to acc. */
static void begin_sums(struct task_state *s, float *acc, size_t stride, int hd_v)
{
    s->acc = acc;
    s->acc_stride = stride;
    for (int i = 0; i < s->n; i++) {
        s->m[i] = -INFINITY;
        s->z[i] = 0;
        memset(acc + (size_t)i * stride, 0, (size_t)hd_v * sizeof *acc);
    }
}

/* ---- A chunk ----------------------------------------------------------------------------------------------------- */

/* What each query sees of the chunk that begins with key number `begin`; false if none sees anything. */
static bool visible(struct task_state *s, int begin)
{
    bool any = false;
    for (int i = 0; i < s->n; i++) {
        int lo = s->first[i] - begin, hi = s->end[i] - begin;
        s->lo[i] = lo < 0 ? 0 : lo > PF_KV_CHUNK ? PF_KV_CHUNK : lo;
        s->hi[i] = hi > PF_KV_CHUNK ? PF_KV_CHUNK : hi < s->lo[i] ? s->lo[i] : hi;
        any |= s->lo[i] < s->hi[i];
    }
    return any;
}

static pf_attn_fn *kernel_of(const struct pf_kernels *k, enum pf_kv_type type)
{
    return type == PF_KV_F16 ? k->attn_f16 : type == PF_KV_F32 ? k->attn_f32 : k->attn_q8_0;
}

static void add_chunk(const struct attention_job *job, struct task_state *s, const void *k, const void *v)
{
    const struct pf_kv_view *kv = job->a->kv;
    struct pf_attn_args args = {
        .q = s->q, .q_stride = (size_t)kv->hd_k, .v_stride = kv->v ? (size_t)kv->hd_v : (size_t)kv->hd_k,
        .k = k, .v = v, .n_q = s->n, .hd_k = kv->hd_k, .hd_v = kv->hd_v, .lo = s->lo, .hi = s->hi,
        .scale = job->a->scale, .score = s->score, .m = s->m, .z = s->z, .acc = s->acc, .acc_stride = s->acc_stride,
        .ac = s->ac,
    };
    kernel_of(&job->b->k, kv->type)(&args);
}

/* Copies the keys, and values if they are apart, numbered [first, first + n) among those that a row attends to, which
 * sees n_seen. */
static void gather(const struct attention_job *job, struct task_state *s, const struct pf_kv_view *kv, int n_seen,
                   int first, int n)
{
    const int32_t *list = pf_chosen_list(job->a, s->row[0], s->kv_head);
    size_t k_bytes = pf_kv_row_bytes(kv->type, kv->hd_k), v_bytes = kv->v ? pf_kv_row_bytes(kv->type, kv->hd_v) : 0;
    for (int i = 0; i < n; i++) {
        size_t at = pf_kv_row(kv, pf_chosen_key(job->a, list, n_seen, first + i), s->kv_head);
        memcpy((char *)s->gathered_k + (size_t)i * k_bytes, (const char *)kv->k + at * k_bytes, k_bytes);
        if (kv->v)
            memcpy((char *)s->gathered_v + (size_t)i * v_bytes, (const char *)kv->v + at * v_bytes, v_bytes);
    }
}

/* Attention to the chosen ones of the keys that the queries see, from number `begin` on. All queries are of one row. */
static void attend_chosen(const struct attention_job *job, struct task_state *s, const struct pf_kv_view *kv, int begin)
{
    int n_seen = s->end[0];
    for (int i = 0; i < s->n; i++) {
        s->first[i] = 0;
        s->end[i] = pf_chosen_keys(job->a, n_seen);
    }
    if (!visible(s, begin))
        return;
    gather(job, s, kv, n_seen, begin, s->hi[0]);
    add_chunk(job, s, s->gathered_k, kv->v ? s->gathered_v : s->gathered_k);
}

static void attend_all(const struct attention_job *job, struct task_state *s, const struct pf_kv_view *kv, int begin)
{
    if (!visible(s, begin))
        return;
    size_t row_at = pf_kv_row(kv, begin, s->kv_head);
    const void *k = (const char *)kv->k + row_at * pf_kv_row_bytes(kv->type, kv->hd_k);
    add_chunk(job, s, k, kv->v ? (const char *)kv->v + row_at * pf_kv_row_bytes(kv->type, kv->hd_v) : k);
}

static void attend_chunk(const struct attention_job *job, struct task_state *s, int c)
{
    const struct pf_attention_op *a = job->a;
    bool blocks = c >= job->n_chunks;
    for (int i = 0; i < s->n; i++) {
        s->first[i] = blocks ? 0 : pf_cpu_first_visible(a, s->row[i]);
        s->end[i] = blocks ? (a->pos[s->row[i]] + 1) / a->ratio : a->pos[s->row[i]] + 1;
    }
    (a->chosen && blocks == (a->blocks != NULL) ? attend_chosen : attend_all)(
        job, s, blocks ? a->blocks : a->kv, (blocks ? c - job->n_chunks : c) * PF_KV_CHUNK);
}

/* ---- Tasks ------------------------------------------------------------------------------------------------------- */

/* Adds the sink, which has a logit but no value, and divides by the sum of weights. */
static void end_query(const struct attention_job *job, float *acc, float m, float z, int row, int head)
{
    const struct pf_attention_op *a = job->a;
    int hd_v = a->kv->hd_v;
    float factor = 1.0f / z;
    if (a->sinks) {
        float sink = a->sinks[head], top = m > sink ? m : sink;
        float shrink = pf_expf(m - top);
        factor = shrink / fmaf(z, shrink, pf_expf(sink - top));
    }
    job->b->k.scale(acc, factor, hd_v);
    memcpy(a->out + ((size_t)row * a->n_head + head) * hd_v, acc, (size_t)hd_v * sizeof(float));
}

/* Blocks of queries through all chunks. */
static void whole_tasks(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct attention_job *job = ctx;
    int hd_v = job->a->kv->hd_v;
    struct task_state s;
    carve(&s, cpu_thread_scratch(job->b, thread), job->a->kv);
    for (int64_t t = begin; t < end; t++) {
        struct cpu_run run = pf_cpu_run_of(&job->rounds, t);
        begin_block(job, &s, run.block);
        begin_sums(&s, s.own, (size_t)hd_v, hd_v);
        for (int c = run.first; c < run.end; c++)
            attend_chunk(job, &s, c);
        for (int i = 0; i < s.n; i++)
            end_query(job, s.acc + (size_t)i * (size_t)hd_v, s.m[i], s.z[i], s.row[i], s.head[i]);
    }
}

/* Blocks of queries through runs of the round's chunks. A partial is acc[hd_v], m, z. */
static void run_tasks(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct attention_job *job = ctx;
    const struct cpu_rounds *r = &job->rounds;
    int hd_v = job->a->kv->hd_v;
    struct task_state s;
    carve(&s, cpu_thread_scratch(job->b, thread), job->a->kv);
    for (int64_t t = begin; t < end; t++) {
        struct cpu_run run = pf_cpu_run_of(r, t);
        begin_block(job, &s, run.block);
        for (int c = run.first; c < run.end; c++) {
            float *part = pf_cpu_part_of(r, c, (int64_t)s.kv_head * job->n_q + s.number);
            begin_sums(&s, part, r->stride, hd_v);
            attend_chunk(job, &s, c);
            for (int i = 0; i < s.n; i++) {
                part[(size_t)i * r->stride + (size_t)hd_v] = s.m[i];
                part[(size_t)i * r->stride + (size_t)hd_v + 1] = s.z[i];
            }
        }
    }
}

/* A total and the partial that follows it become one, in the partial's place. */
static void fold(const struct attention_job *job, const float *total, float *part, int hd)
{
    float m = total[hd] > part[hd] ? total[hd] : part[hd], old = pf_expf(total[hd] - m), fresh = pf_expf(part[hd] - m);
    job->b->k.scale(part, fresh, hd);
    job->b->k.axpy(part, old, total, hd);
    part[hd + 1] = fmaf(total[hd + 1], old, part[hd + 1] * fresh);
    part[hd] = m;
}

/* Queries, numbered KV head by KV head, fold their partials of the round. */
static void fold_tasks(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct attention_job *job = ctx;
    const struct cpu_rounds *r = &job->rounds;
    int hd = job->a->kv->hd_v;
    (void)thread;
    for (int64_t t = begin; t < end; t++) {
        float *total = pf_cpu_total_of(r, t), *at = total;
        if (r->round_first == r->first) {
            memset(total, 0, r->stride * sizeof *total);
            total[hd] = -INFINITY;
        }
        for (int c = r->round_first; c < r->round_end; c++) {
            float *part = pf_cpu_part_of(r, c, t);
            if (part[hd] == -INFINITY)
                continue;                    /* the query sees nothing of the chunk */
            fold(job, at, part, hd);
            at = part;
        }
        if (at != total)
            memcpy(total, at, r->stride * sizeof *total);
        if (r->round_end == r->end) {
            int query = (int)(t % job->n_q);
            end_query(job, total, total[hd], total[hd + 1], query / job->group,
                      (int)(t / job->n_q) * job->group + query % job->group);
        }
    }
}

/* Chunks of the keys that rows see, all of them or those that were chosen; ratio: positions that a key stands for. */
static int chunks_of(const struct pf_attention_op *a, int ratio, bool chosen)
{
    int n = 0;
    for (int r = 0; r < a->rows; r++) {
        int n_seen = (a->pos[r] + 1) / ratio, n_keys = chosen ? pf_chosen_keys(a, n_seen) : n_seen;
        n = n_keys > n ? n_keys : n;
    }
    return (n + PF_KV_CHUNK - 1) / PF_KV_CHUNK;
}

pf_status pf_cpu_attention(pf_backend *backend, const struct pf_attention_op *a)
{
    struct attention_job job = { .b = cpu_of(backend), .a = a, .group = a->n_head / a->kv->n_kv_head };
    if (a->kv->type == PF_KV_I16)
        return pf_cpu_attention_i16(job.b, a);
    int n_kv_head = a->kv->n_kv_head;
    bool chosen = a->chosen && !a->blocks;
    job.n_q = a->rows * job.group;
    job.blocks_per_row = a->chosen ? (job.group + Q_BLOCK - 1) / Q_BLOCK : 0;
    job.blocks_per_head = a->chosen ? a->rows * job.blocks_per_row : (job.n_q + Q_BLOCK - 1) / Q_BLOCK;
    job.n_chunks = chunks_of(a, 1, chosen);
    job.rounds = (struct cpu_rounds){
        .b = job.b, .n_blocks = (int64_t)job.blocks_per_head * n_kv_head, .n_queries = (int64_t)job.n_q * n_kv_head,
        .stride = (size_t)a->kv->hd_v + 2, .first = chosen ? 0 : pf_cpu_first_chunk(a),
        .end = job.n_chunks + (a->blocks ? chunks_of(a, a->ratio, a->chosen != NULL) : 0),
    };
    pf_cpu_rounds_run(&job.rounds, whole_tasks, run_tasks, fold_tasks, &job);
    return PF_OK;
}
