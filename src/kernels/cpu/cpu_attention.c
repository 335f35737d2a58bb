/* Attention in float: one task is up to Q_BLOCK queries of one KV head, walked over its chunks of keys and values in
 * order.
 *
 *     queries of KV head h: (row 0, head 0..g-1), (row 1, head 0..g-1), ...      g query heads share the KV head
 *     a task's queries:     [first, first + n)                                   folded over chunks 0, 1, 2, ...
 *
 * Where keys stand for blocks of positions beside those for positions, their chunks come after the others.
 *
 * Where a row sees chosen keys only, a task is up to Q_BLOCK heads of one row, and the keys and values it sees are
 * gathered, in rising order, into chunks as full as those of the cache: if all are chosen, the same bits.
 *
 * Every query folds the same absolute chunks in the same order whatever the batch, so a prompt evaluated whole, in
 * pieces or token by token gives the same bits. */
#include <math.h>
#include <string.h>

#include "base/pf_math.h"
#include "kernels/cpu/cpu.h"

_Static_assert((int)PF_KV_CHUNK == (int)PF_KV_CHUNK_POSITIONS, "kernels and backend agree on the chunk");

struct attention_job {
    struct cpu_backend *b;
    const struct pf_attention_op *a;
    int group;                   /* query heads per KV head */
    int tasks_per_head;
    int tasks_per_row;           /* of chosen keys, else 0 */
};

size_t pf_cpu_attention_floats(int max_head_dim, bool gathers)
{
    return (size_t)Q_BLOCK * (PF_KV_CHUNK + 3 * (size_t)max_head_dim + 2) +
           (gathers ? 2 * (size_t)PF_KV_CHUNK * (size_t)max_head_dim : 0);
}

/* The scratch of one task, carved from the thread's. */
struct task_state {
    float *q, *score, *acc, *ac, *m, *z;
    void  *gathered_k, *gathered_v;      /* a chunk of keys, of values */
    int    row[Q_BLOCK], head[Q_BLOCK];
    int    first[Q_BLOCK], end[Q_BLOCK], lo[Q_BLOCK], hi[Q_BLOCK];  /* keys a query sees, of all, of a chunk */
};

static void carve(struct task_state *s, float *scratch, const struct pf_kv_view *kv)
{
    s->score = scratch;
    s->q = s->score + Q_BLOCK * PF_KV_CHUNK;
    s->acc = s->q + (size_t)Q_BLOCK * kv->hd_k;
    s->ac = s->acc + (size_t)Q_BLOCK * kv->hd_v;
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

/* Gathers the queries; sets their state to "nothing seen". */
static void begin_task(const struct attention_job *job, struct task_state *s, int kv_head, int first, int n)
{
    const struct pf_attention_op *a = job->a;
    int hd_k = a->kv->hd_k;
    for (int i = 0; i < n; i++) {
        s->row[i] = (first + i) / job->group;
        s->head[i] = kv_head * job->group + (first + i) % job->group;
        float *q = s->q + (size_t)i * hd_k;
        memcpy(q, a->q + ((size_t)s->row[i] * a->n_head + s->head[i]) * hd_k, (size_t)hd_k * sizeof *q);
        if (a->row_scale)
            job->b->k.scale(q, a->row_scale[s->row[i]], hd_k);
        s->m[i] = -INFINITY;
        s->z[i] = 0;
    }
    memset(s->acc, 0, (size_t)n * a->kv->hd_v * sizeof(float));
}

/* What each query sees of chunk c; false if none sees anything. */
static bool visible(struct task_state *s, int c, int n)
{
    bool any = false;
    for (int i = 0; i < n; i++) {
        int lo = s->first[i] - c * PF_KV_CHUNK, hi = s->end[i] - c * PF_KV_CHUNK;
        s->lo[i] = lo < 0 ? 0 : lo > PF_KV_CHUNK ? PF_KV_CHUNK : lo;
        s->hi[i] = hi > PF_KV_CHUNK ? PF_KV_CHUNK : hi < s->lo[i] ? s->lo[i] : hi;
        any |= s->lo[i] < s->hi[i];
    }
    return any;
}

/* Adds the sink, which has a logit but no value, and divides by the sum of weights. */
static void end_task(const struct attention_job *job, struct task_state *s, int n)
{
    const struct pf_attention_op *a = job->a;
    int hd_v = a->kv->hd_v;
    for (int i = 0; i < n; i++) {
        float factor = 1.0f / s->z[i];
        if (a->sinks) {
            float sink = a->sinks[s->head[i]], top = s->m[i] > sink ? s->m[i] : sink;
            float shrink = pf_expf(s->m[i] - top);
            factor = shrink / fmaf(s->z[i], shrink, pf_expf(sink - top));
        }
        float *acc = s->acc + (size_t)i * hd_v;
        job->b->k.scale(acc, factor, hd_v);
        memcpy(a->out + ((size_t)s->row[i] * a->n_head + s->head[i]) * hd_v, acc, (size_t)hd_v * sizeof(float));
    }
}

static pf_attn_fn *kernel_of(const struct pf_kernels *k, enum pf_kv_type type)
{
    return type == PF_KV_F16 ? k->attn_f16 : type == PF_KV_F32 ? k->attn_f32 : k->attn_q8_0;
}

static void fold(const struct attention_job *job, struct task_state *s, int n, const void *k, const void *v)
{
    const struct pf_kv_view *kv = job->a->kv;
    struct pf_attn_args args = {
        .q = s->q, .q_stride = (size_t)kv->hd_k, .v_stride = kv->v ? (size_t)kv->hd_v : (size_t)kv->hd_k,
        .k = k, .v = v, .n_q = n, .hd_k = kv->hd_k, .hd_v = kv->hd_v, .lo = s->lo, .hi = s->hi,
        .scale = job->a->scale, .score = s->score, .m = s->m, .z = s->z, .acc = s->acc,
        .acc_stride = (size_t)kv->hd_v, .ac = s->ac,
    };
    kernel_of(&job->b->k, kv->type)(&args);
}

/* Copies the keys, and values if they are apart, numbered [first, first + n) among those that a row attends to. */
static void gather(const struct attention_job *job, struct task_state *s, const struct pf_kv_view *kv, int kv_head,
                   int first, int n)
{
    const int32_t *list = pf_chosen_list(job->a, s->row[0], kv_head);
    size_t k_bytes = pf_kv_row_bytes(kv->type, kv->hd_k), v_bytes = kv->v ? pf_kv_row_bytes(kv->type, kv->hd_v) : 0;
    for (int i = 0; i < n; i++) {
        size_t at = pf_kv_row(kv, pf_chosen_key(job->a, list, s->end[0], first + i), kv_head);
        memcpy((char *)s->gathered_k + (size_t)i * k_bytes, (const char *)kv->k + at * k_bytes, k_bytes);
        if (kv->v)
            memcpy((char *)s->gathered_v + (size_t)i * v_bytes, (const char *)kv->v + at * v_bytes, v_bytes);
    }
}

/* Of the keys that the queries see those that were chosen. All n are of one row. */
static void attend_chosen(const struct attention_job *job, struct task_state *s, const struct pf_kv_view *kv,
                          int kv_head, int n)
{
    int n_keys = pf_chosen_keys(job->a, s->end[0]);
    for (int first = 0; first < n_keys; first += PF_KV_CHUNK) {
        int n_here = n_keys - first < PF_KV_CHUNK ? n_keys - first : PF_KV_CHUNK;
        gather(job, s, kv, kv_head, first, n_here);
        for (int i = 0; i < n; i++) {
            s->lo[i] = 0;
            s->hi[i] = n_here;
        }
        fold(job, s, n, s->gathered_k, kv->v ? s->gathered_v : s->gathered_k);
    }
}

static void attend_all(const struct attention_job *job, struct task_state *s, const struct pf_kv_view *kv, int kv_head,
                       int n)
{
    int first = s->first[0], end = 0;
    for (int i = 0; i < n; i++) {
        first = s->first[i] < first ? s->first[i] : first;
        end = s->end[i] > end ? s->end[i] : end;
    }
    for (int c = first / PF_KV_CHUNK; c * PF_KV_CHUNK < end; c++) {
        if (!visible(s, c, n))
            continue;
        size_t row_at = pf_kv_row(kv, c * PF_KV_CHUNK, kv_head);
        const void *k = (const char *)kv->k + row_at * pf_kv_row_bytes(kv->type, kv->hd_k);
        fold(job, s, n, k, kv->v ? (const char *)kv->v + row_at * pf_kv_row_bytes(kv->type, kv->hd_v) : k);
    }
}

static void attend(const struct attention_job *job, struct task_state *s, int kv_head, int n)
{
    const struct pf_attention_op *a = job->a;
    for (int i = 0; i < n; i++) {
        s->first[i] = pf_cpu_first_visible(a, s->row[i]);
        s->end[i] = a->pos[s->row[i]] + 1;
    }
    (a->chosen && !a->blocks ? attend_chosen : attend_all)(job, s, a->kv, kv_head, n);
    for (int i = 0; a->blocks && i < n; i++) {
        s->first[i] = 0;
        s->end[i] = (a->pos[s->row[i]] + 1) / a->ratio;
    }
    if (a->blocks)
        (a->chosen ? attend_chosen : attend_all)(job, s, a->blocks, kv_head, n);
}

static void attention_tasks(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct attention_job *job = ctx;
    struct task_state s;
    carve(&s, cpu_thread_scratch(job->b, thread), job->a->kv);
    int n_queries = job->a->rows * job->group;
    for (int64_t t = begin; t < end; t++) {
        int kv_head = (int)(t / job->tasks_per_head), first = (int)(t % job->tasks_per_head) * Q_BLOCK;
        int end_query = n_queries;
        if (job->tasks_per_row) {
            int row = (int)(t % job->tasks_per_head) / job->tasks_per_row;
            first = row * job->group + (int)(t % job->tasks_per_head) % job->tasks_per_row * Q_BLOCK;
            end_query = (row + 1) * job->group;
        }
        int n = end_query - first < Q_BLOCK ? end_query - first : Q_BLOCK;
        begin_task(job, &s, kv_head, first, n);
        attend(job, &s, kv_head, n);
        end_task(job, &s, n);
    }
}

pf_status pf_cpu_attention(pf_backend *backend, const struct pf_attention_op *a)
{
    struct attention_job job = { .b = cpu_of(backend), .a = a, .group = a->n_head / a->kv->n_kv_head };
    if (a->kv->type == PF_KV_I16)
        return pf_cpu_attention_i16(job.b, a);
    job.tasks_per_row = a->chosen ? (job.group + Q_BLOCK - 1) / Q_BLOCK : 0;
    job.tasks_per_head = a->chosen ? a->rows * job.tasks_per_row : (a->rows * job.group + Q_BLOCK - 1) / Q_BLOCK;
    pf_pool_run(job.b->pool, attention_tasks, &job, (int64_t)job.tasks_per_head * a->kv->n_kv_head, 1);
    return PF_OK;
}
