/* Partials of whole chunks for a device that has everything else of an attention (backend/share.h): what
 * cpu_attention_i16.c makes of a chunk before it folds, where the device reads it.
 *
 *     tasks    | block 0: chunk first, .., end - 1 | block 1: chunk first, .. | ..       neighbours share their queries
 *
 * A block is up to Q_BLOCK queries of a KV head. Which keys and values a thread begins with is known before the queries
 * are: while the caller waits for these, the other threads fetch them into their second caches. */
#include <math.h>
#include <stdatomic.h>

#include "kernels/cpu/cpu.h"

struct partials_job {
    struct cpu_backend          *b;
    const struct pf_partials_op *p;
    int     per_head, n_chunks;  /* blocks of a KV head */
    int64_t n_tasks;
    _Atomic enum { AWAITED, THERE, MISSING } queries;
};

/* A task's queries, numbered from the KV head's first one, and its chunk. */
struct partials_task {
    int kv_head, first, n, chunk;
};

static struct partials_task task_of(const struct partials_job *job, int64_t t)
{
    const struct pf_partials_op *p = job->p;
    int block = (int)(t / job->n_chunks), first = block % job->per_head * Q_BLOCK;
    return (struct partials_task){ block / job->per_head, first, p->n_q - first < Q_BLOCK ? p->n_q - first : Q_BLOCK,
                                   p->first + (int)(t % job->n_chunks) };
}

static void make_partials(const struct partials_job *job, struct partials_task at, struct partials_task next,
                          int thread)
{
    const struct pf_partials_op *p = job->p;
    const struct pf_kv_view *kv = p->kv;
    size_t query = (size_t)at.kv_head * (size_t)p->n_q + (size_t)at.first, stride = pf_partial_floats(kv->hd_v);
    size_t n_queries = (size_t)kv->n_kv_head * (size_t)p->n_q;
    float *part = p->part + ((size_t)(at.chunk - p->first) * n_queries + query) * stride, cq[Q_BLOCK];
    int lo[Q_BLOCK], hi[Q_BLOCK];
    for (int i = 0; i < at.n; i++) {
        float c = p->cq[query + (size_t)i];
        cq[i] = isnan(c) ? 0 : c;
        lo[i] = 0;
        hi[i] = PF_KV_CHUNK_POSITIONS;
    }
    job->b->k.attn_i16(&(struct pf_attn_i16_args){
        .q = p->q + query * 2 * (size_t)kv->hd_k, .cq = cq,
        .k = pf_kv_i16_keys(kv, at.chunk * PF_KV_CHUNK_POSITIONS, at.kv_head),
        .v = pf_kv_i16_values(kv, at.chunk * PF_KV_CHUNK_POSITIONS, at.kv_head),
        .next_k = pf_kv_i16_keys(kv, next.chunk * PF_KV_CHUNK_POSITIONS, next.kv_head),
        .next_v = pf_kv_i16_values(kv, next.chunk * PF_KV_CHUNK_POSITIONS, next.kv_head),
        .n_q = at.n, .hd_k = kv->hd_k, .hd_v = kv->hd_v, .lo = lo, .hi = hi, .part = part, .part_stride = stride,
        .scratch = cpu_thread_scratch(job->b, thread) });
    for (int i = 0; i < at.n; i++)
        if (isnan(p->cq[query + (size_t)i]))
            part[(size_t)i * stride + (size_t)kv->hd_v + 1] = NAN;
}

/* Lines of a piece of memory to be fetched, a few at a time. */
struct fetching {
    const char *at, *end;
};

static void fetch_some(struct fetching *f)
{
    enum { LINE = 64, AT_ONCE = 16 };
    for (int i = 0; i < AT_ONCE && f->at < f->end; i++, f->at += LINE)
        __builtin_prefetch(f->at, 0, 2);
}

/* Keys and values of a task. */
static void pieces_of(const struct partials_job *job, int64_t t, struct fetching out[2])
{
    const struct pf_kv_view *kv = job->p->kv;
    struct partials_task at = task_of(job, t);
    const char *k = pf_kv_i16_keys(kv, at.chunk * PF_KV_CHUNK_POSITIONS, at.kv_head),
               *v = pf_kv_i16_values(kv, at.chunk * PF_KV_CHUNK_POSITIONS, at.kv_head);
    out[0] = (struct fetching){ k, k + PF_KV_CHUNK_POSITIONS * pf_i16_key_bytes(kv->hd_k) };
    out[1] = (struct fetching){ v, v + PF_KV_CHUNK_POSITIONS * pf_i16_value_bytes(kv->hd_v) };
}

static bool is_awaited(const struct partials_job *job)
{
    return atomic_load_explicit(&job->queries, memory_order_acquire) == AWAITED;
}

/* Until the queries are there. Meanwhile the first tasks from t on of a thread's share are fetched. */
static void await_queries(const struct partials_job *job, int64_t t, int thread)
{
    enum { MOST_BYTES = 256 << 10 };     /* half of a small second cache */
    int64_t end = pf_pool_first(job->b->pool, job->n_tasks, thread + 1);
    struct fetching pieces[2];
    unsigned turns = 0;
    for (ptrdiff_t bytes = 0; t < end && bytes < MOST_BYTES && is_awaited(job); t++) {
        pieces_of(job, t, pieces);
        for (int i = 0; i < 2; i++) {
            bytes += pieces[i].end - pieces[i].at;
            while (pieces[i].at < pieces[i].end && is_awaited(job))
                fetch_some(&pieces[i]);
        }
    }
    while (is_awaited(job))
        pf_pool_relax(&turns);
}

/* What a thread fetches from memory meanwhile is the task behind its own, which mostly is its next one. */
static void partials_tasks(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct partials_job *job = ctx;
    if (is_awaited(job))
        await_queries(job, begin, thread);
    if (atomic_load_explicit(&job->queries, memory_order_relaxed) == MISSING)
        return;
    for (int64_t t = begin; t < end; t++)
        make_partials(job, task_of(job, t), task_of(job, t + 1 < job->n_tasks ? t + 1 : t), thread);
}

pf_status pf_cpu_partials(pf_backend *backend, const struct pf_partials_op *p)
{
    enum { TASKS_PER_THREAD = 8 };       /* what a thread that ends first takes from another one is a small part */
    struct cpu_backend *b = cpu_of(backend);
    struct partials_job job = { .b = b, .p = p, .per_head = (p->n_q + Q_BLOCK - 1) / Q_BLOCK,
                                .n_chunks = p->end - p->first };
    job.n_tasks = (int64_t)job.n_chunks * job.per_head * p->kv->n_kv_head;
    int64_t grain = job.n_tasks / (TASKS_PER_THREAD * pf_pool_n_threads(b->pool));
    pf_pool_begin(b->pool, &job, &(struct pf_job){ partials_tasks, job.n_tasks, grain > 1 ? grain : 1 }, 1);
    pf_status st = p->await ? p->await(p->ctx) : PF_OK;
    atomic_store_explicit(&job.queries, st < 0 ? MISSING : THERE, memory_order_release);
    pf_pool_end(b->pool);
    return st;
}
