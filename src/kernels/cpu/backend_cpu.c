/* The CPU backend: opening, scratch memory, and the operations that go row by row. See cpu.h for its other files. */
#include <stdio.h>
#include <math.h>
#include <string.h>

#include "base/pf_math.h"
#include "base/pf_mem.h"
#include "kernels/cpu/cpu.h"

enum { ALIGN = 64, PAD = 64 };       /* kernels may load 64 whole bytes past the end of int8 rows and scales */

static void cpu_close(pf_backend *backend)
{
    struct cpu_backend *b = cpu_of(backend);
    if (!b)
        return;
    if (!b->borrows)
        pf_pool_close(&b->pool);
    pf_pages_free(b->arena, b->arena_bytes);
    pf_free(b);
}

static const char *cpu_describe(const pf_backend *backend)
{
    return ((const struct cpu_backend *)backend)->k.name;
}

static pf_status cpu_buf_alloc(pf_backend *b, size_t bytes, bool shared, void **out)
{
    (void)b, (void)shared;
    *out = pf_pages_alloc(bytes);
    if (!*out)
        PF_FAIL(PF_ENOMEM, "no memory for a buffer of %zu bytes", bytes);
    return PF_OK;
}

static void cpu_buf_free(pf_backend *b, void *p, size_t bytes, bool shared)
{
    (void)b, (void)shared;
    pf_pages_free(p, bytes);
}

static void cpu_buf_copy(pf_backend *b, const struct pf_buf_copy *c)
{
    (void)b;
    for (size_t r = 0; r < (size_t)c->rows; r++)
        memcpy((char *)c->to + r * c->to_stride, (const char *)c->from + r * c->from_stride, c->bytes);
}

static pf_status cpu_transfer(pf_backend *b, void *to, const void *from, size_t bytes)
{
    (void)b;
    memcpy(to, from, bytes);
    return PF_OK;
}

static void cpu_watch(pf_backend *b, pf_spans *spans)
{
    pf_pool_watch(cpu_of(b)->pool, spans);
}

static pf_status cpu_begin(pf_backend *b, const struct pf_repeat *r, bool *replayed)
{
    (void)b, (void)r;
    *replayed = false;
    return PF_OK;
}

static pf_status cpu_finish(pf_backend *b)
{
    (void)b;
    return PF_OK;
}

static pf_status cpu_end(pf_backend *b, bool *again)
{
    (void)b;
    *again = false;
    return PF_OK;
}

/* ---- Scratch: one arena, carved twice by the same code, first to measure it and then for real ------------------- */

struct carver {
    char  *base;             /* NULL: only measure */
    size_t used;
};

static void *take(struct carver *c, size_t n, size_t size)
{
    void *p = c->base ? c->base + c->used : NULL;
    c->used += (n * size + PAD + ALIGN - 1) / ALIGN * ALIGN;
    return p;
}

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

static void carve_xmatrix(struct carver *c, struct xmatrix *xm, int n_rows, int n)
{
    xm->q_stride = round_up((size_t)n, ALIGN) + PAD;
    xm->d_stride = round_up((size_t)n / 32 + 1, ALIGN / sizeof(float)) + PAD / sizeof(float);
    xm->s_stride = round_up((size_t)n / 16 + 2, ALIGN / sizeof(int16_t)) + PAD / sizeof(int16_t);
    xm->rows = take(c, (size_t)n_rows, sizeof *xm->rows);
    xm->q = take(c, (size_t)n_rows * xm->q_stride, sizeof *xm->q);
    xm->d = take(c, (size_t)n_rows * xm->d_stride, sizeof *xm->d);
    xm->s = take(c, (size_t)n_rows * xm->s_stride, sizeof *xm->s);
}

static size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

static size_t carve(struct cpu_backend *b, const struct pf_backend_sizes *s, char *base)
{
    struct carver c = { .base = base };
    size_t n_picks = (size_t)s->max_picks;
    carve_xmatrix(&c, &b->x, s->max_rows, s->max_n_in);
    carve_xmatrix(&c, &b->a, s->max_picks, s->n_ff);
    carve_xmatrix(&c, &b->h, s->max_head_rows, s->max_head_n_in);
    b->act = take(&c, n_picks * (size_t)s->n_ff, sizeof *b->act);
    b->pick_out = take(&c, n_picks * (size_t)s->n_out, sizeof *b->pick_out);
    b->low = take(&c, n_picks * 2 * (size_t)s->expert_rank, sizeof *b->low);
    b->sorted = take(&c, n_picks, sizeof *b->sorted);
    b->place = take(&c, n_picks, sizeof *b->place);
    b->groups = take(&c, (size_t)s->n_expert, sizeof *b->groups);
    b->waits = take(&c, (size_t)s->n_expert, sizeof *b->waits);
    b->gate_up = take(&c, (size_t)s->n_expert, sizeof *b->gate_up);
    b->down = take(&c, (size_t)s->n_expert, sizeof *b->down);
    b->thread_floats =
        round_up(max_size(max_size(max_size(pf_cpu_attention_floats(s->max_head_dim, s->n_choose_head > 0),
                                            pf_cpu_choose_floats(s->n_choose_head)), pf_cpu_experts_floats()),
                          max_size(pf_cpu_delta_floats(s->max_head_dim), pf_cpu_route_floats(s->n_expert))),
                 ALIGN);
    size_t i16_floats = pf_cpu_attention_i16_floats(s->max_head_dim, s->max_latent_heads > 0);
    b->thread_floats = round_up(max_size(b->thread_floats, i16_floats), ALIGN);
    b->parts = take(&c, pf_cpu_parts_floats(s), sizeof *b->parts);
    b->held = take(&c, (size_t)pf_pool_n_threads(b->pool), sizeof *b->held);
    b->scores = take(&c, s->n_choose_head ? (size_t)CHOOSE_ROWS * (size_t)s->max_positions : 0, sizeof *b->scores);
    b->thread_scratch = take(&c, (size_t)pf_pool_n_threads(b->pool) * b->thread_floats, sizeof *b->thread_scratch);
    return c.used;
}

/* From any thread, also while a step runs: so nothing is read but the pool, which never changes. */
static uint64_t cpu_scratch_bytes(const pf_backend *backend, const struct pf_backend_sizes *sizes)
{
    struct cpu_backend measure = { .pool = ((const struct cpu_backend *)backend)->pool };
    return carve(&measure, sizes, NULL);
}

static void grow(int *to, int at_least)
{
    if (*to < at_least)
        *to = at_least;
}

static pf_status cpu_reserve(pf_backend *backend, const struct pf_backend_sizes *sizes)
{
    struct cpu_backend *b = cpu_of(backend);
    struct pf_backend_sizes s = b->sizes;
    grow(&s.max_rows, sizes->max_rows);
    grow(&s.max_n_in, sizes->max_n_in);
    grow(&s.max_head_rows, sizes->max_head_rows);
    grow(&s.max_head_n_in, sizes->max_head_n_in);
    grow(&s.max_head_dim, sizes->max_head_dim);
    grow(&s.max_latent_heads, sizes->max_latent_heads);
    grow(&s.max_heads, sizes->max_heads);
    s.n_ctx = sizes->n_ctx > s.n_ctx ? sizes->n_ctx : s.n_ctx;
    grow(&s.max_positions, sizes->max_positions);
    grow(&s.n_choose_head, sizes->n_choose_head);
    grow(&s.max_picks, sizes->max_picks);
    grow(&s.expert_rank, sizes->expert_rank);
    grow(&s.n_expert, sizes->n_expert);
    grow(&s.n_ff, sizes->n_ff);
    grow(&s.n_out, sizes->n_out);
    if (b->arena && memcmp(&s, &b->sizes, sizeof s) == 0)
        return PF_OK;
    size_t bytes = (size_t)cpu_scratch_bytes(backend, &s);
    void *arena = pf_pages_alloc(bytes);
    if (!arena)
        PF_FAIL(PF_ENOMEM, "no memory for %zu bytes of scratch for batches of %d rows", bytes, s.max_rows);
    pf_pages_free(b->arena, b->arena_bytes);
    b->arena = arena;
    b->arena_bytes = bytes;
    b->sizes = s;
    carve(b, &s, arena);
    return PF_OK;
}

/* ---- Row by row -------------------------------------------------------------------------------------------------- */

struct row_job {
    struct cpu_backend *b;
    union {
        struct { const struct pf_weight *w; const int32_t *ids; float *x; } embed;
        struct { const float *x, *w; const float *bias; float eps; int n; float *y; int n_each; } norm;
        struct { struct pf_act act; const float *gate, *up; float *y; } act;
        struct { float *y, a; const float *gate, *x; int n; } add;
        struct { const struct pf_rope_op *ropes; int n_ropes; } rope;
        struct { const struct pf_copy *copies; int n_copies; } copy;
        struct { const struct pf_kv_view *kv; const float *k, *v; const int32_t *pos; } store;
    };
};

static void embed_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct row_job *job = ctx;
    const struct pf_weight *w = job->embed.w;
    (void)thread;
    for (int64_t r = begin; r < end; r++) {
        float *x = job->embed.x + r * w->n_in;
        job->b->k.dequant[w->type]((const char *)w->data + (uint64_t)job->embed.ids[r] * w->row_bytes, w->n_in, x);
        if (w->scale != 1.0f)
            job->b->k.scale(x, w->scale, w->n_in);
    }
}

static pf_status cpu_embed(pf_backend *backend, const struct pf_weight *w, const int32_t *ids, int rows, float *x)
{
    struct row_job job = { .b = cpu_of(backend), .embed = { w, ids, x } };
    pf_pool_run(job.b->pool, embed_rows, &job, rows, 16);
    return PF_OK;
}

static void norm_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct row_job *job = ctx;
    (void)thread;
    for (int64_t r = begin; r < end; r++)
        job->b->k.rms_norm(job->norm.x + r * job->norm.n, job->norm.w, job->norm.eps, job->norm.n,
                           job->norm.y + r * job->norm.n);
}

/* Rows per task such that a task has about this many elements. */
static int64_t grain_of(int64_t row_elements)
{
    enum { TASK_ELEMENTS = 16384 };
    return 1 + TASK_ELEMENTS / row_elements;
}

static pf_status cpu_rms_norm(pf_backend *backend, const float *x, const float *w, float eps, int n, int rows, float *y)
{
    struct row_job job = { .b = cpu_of(backend), .norm = { x, w, NULL, eps, n, y, 1 } };
    pf_pool_run(job.b->pool, norm_rows, &job, rows, grain_of(n));
    return PF_OK;
}

static void norm_each_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct row_job *job = ctx;
    int n = job->norm.n;
    (void)thread;
    for (int64_t r = begin; r < end; r++)
        job->b->k.rms_norm(job->norm.x + r * n, job->norm.w + r % job->norm.n_each * n, job->norm.eps, n,
                           job->norm.y + r * n);
}

static pf_status cpu_norm_each(pf_backend *backend, const float *x, const float *w, float eps, int n, int n_each,
                               int rows, float *y)
{
    struct row_job job = { .b = cpu_of(backend), .norm = { x, w, NULL, eps, n, y, n_each } };
    pf_pool_run(job.b->pool, norm_each_rows, &job, (int64_t)rows * n_each, grain_of(n));
    return PF_OK;
}

static void centre_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct row_job *job = ctx;
    int n = job->norm.n;
    (void)thread;
    for (int64_t r = begin; r < end; r++)
        job->b->k.centre(job->norm.x + r * n, n, job->norm.y + r * n);
}

static pf_status cpu_centre(pf_backend *backend, const float *x, int n, int rows, float *y)
{
    struct row_job job = { .b = cpu_of(backend), .norm = { .x = x, .n = n, .y = y } };
    pf_pool_run(job.b->pool, centre_rows, &job, rows, grain_of(n));
    return PF_OK;
}

static void layer_norm_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct row_job *job = ctx;
    int n = job->norm.n;
    (void)thread;
    for (int64_t r = begin; r < end; r++) {
        const float *x = job->norm.x + r * n;
        float *y = job->norm.y + r * n;
        double sum = 0, squares = 0;
        for (int i = 0; i < n; i++)
            sum += x[i];
        double mean = sum / n;
        for (int i = 0; i < n; i++)
            squares += (x[i] - mean) * (x[i] - mean);
        double factor = 1 / sqrt(squares / n + (double)job->norm.eps);
        for (int i = 0; i < n; i++)
            y[i] = (float)((x[i] - mean) * factor) * job->norm.w[i] + (job->norm.bias ? job->norm.bias[i] : 0);
    }
}

static pf_status cpu_layer_norm(pf_backend *backend, const float *x, const float *w, const float *bias, float eps,
                                int n, int rows, float *y)
{
    struct row_job job = { .b = cpu_of(backend), .norm = { x, w, bias, eps, n, y, 1 } };
    pf_pool_run(job.b->pool, layer_norm_rows, &job, rows, grain_of(n));
    return PF_OK;
}

void pf_cpu_activate(const struct cpu_backend *b, struct pf_act act, const float *gate, const float *up, int n,
                     float *y)
{
    if (act.kind == PF_ACT_SIGMOID)
        b->k.sigmoid_mul(gate, up, n, y);
    else if (act.kind == PF_ACT_SWIGLU_OAI)
        b->k.swiglu_oai(gate, up, n, y);
    else if (act.kind == PF_ACT_RELU)
        b->k.relu_mul(gate, up, n, y);
    else if (act.kind == PF_ACT_PRODUCT)
        b->k.mul(gate, up, n, y);
    else if (act.kind == PF_ACT_GELU)
        b->k.gelu_mul(gate, up, n, y);
    else if (act.kind == PF_ACT_SWIGLU_CAPPED && act.limit > 0)
        b->k.swiglu_capped(gate, up, act.limit, n, y);
    else if (act.limit > 0)
        b->k.swiglu_clamped(gate, up, act.limit, n, y);
    else
        b->k.swiglu(gate, up, n, y);
}

static void softcap_elements(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct row_job *job = ctx;
    float *x = job->add.y, cap = job->add.a;
    (void)thread;
    for (int64_t i = begin; i < end; i++)
        x[i] = cap * fmaf(2.0f, pf_sigmoidf(2.0f / cap * x[i]), -1.0f);
}

static pf_status cpu_softcap(pf_backend *backend, float *x, float cap, int64_t n)
{
    struct row_job job = { .b = cpu_of(backend), .add = { .y = x, .a = cap } };
    pf_pool_run(job.b->pool, softcap_elements, &job, n, 8192);
    return PF_OK;
}

static void cpu_weigh(const pf_backend *backend, const float *x, float top, float temp, int n, float *w)
{
    const struct cpu_backend *b = (const struct cpu_backend *)backend;
    b->k.weigh(x, top, temp, n, w);
}

static void act_elements(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct row_job *job = ctx;
    (void)thread;
    pf_cpu_activate(job->b, job->act.act, job->act.gate + begin, job->act.up + begin, (int)(end - begin),
                    job->act.y + begin);
}

static pf_status cpu_act(pf_backend *backend, struct pf_act act, const float *gate, const float *up, int64_t n,
                         float *y)
{
    struct row_job job = { .b = cpu_of(backend), .act = { act, gate, up, y } };
    pf_pool_run(job.b->pool, act_elements, &job, n, 8192);
    return PF_OK;
}

static void add_elements(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct row_job *job = ctx;
    (void)thread;
    if (job->add.a == 1.0f)
        job->b->k.add(job->add.y + begin, job->add.x + begin, (int)(end - begin));      /* fmaf's bits */
    else
        job->b->k.axpy(job->add.y + begin, job->add.a, job->add.x + begin, (int)(end - begin));
}

static pf_status cpu_add(pf_backend *backend, float *y, float a, const float *x, int64_t n)
{
    struct row_job job = { .b = cpu_of(backend), .add = { .y = y, .a = a, .x = x } };
    pf_pool_run(job.b->pool, add_elements, &job, n, 65536);
    return PF_OK;
}

static void add_gated_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct row_job *job = ctx;
    (void)thread;
    for (int64_t r = begin; r < end; r++)
        job->b->k.axpy(job->add.y + r * job->add.n, pf_sigmoidf(job->add.gate[r]), job->add.x + r * job->add.n,
                       job->add.n);
}

static pf_status cpu_add_gated(pf_backend *backend, float *y, const float *gate, const float *x, int n, int rows)
{
    struct row_job job = { .b = cpu_of(backend), .add = { .y = y, .gate = gate, .x = x, .n = n } };
    pf_pool_run(job.b->pool, add_gated_rows, &job, rows, grain_of(n));
    return PF_OK;
}

static void add_bias_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct row_job *job = ctx;
    (void)thread;
    for (int64_t r = begin; r < end; r++)
        job->b->k.add(job->add.y + r * job->add.n, job->add.x, job->add.n);
}

static pf_status cpu_add_bias(pf_backend *backend, float *y, const float *bias, int n, int rows)
{
    struct row_job job = { .b = cpu_of(backend), .add = { .y = y, .x = bias, .n = n } };
    pf_pool_run(job.b->pool, add_bias_rows, &job, rows, grain_of(n));
    return PF_OK;
}

static void gate_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct row_job *job = ctx;
    (void)thread;
    for (int64_t r = begin; r < end; r++)
        job->b->k.scale(job->add.y + r * job->add.n, pf_sigmoidf(job->add.gate[r]), job->add.n);
}

static pf_status cpu_gate(pf_backend *backend, float *x, const float *gate, int n, int rows)
{
    struct row_job job = { .b = cpu_of(backend), .add = { .y = x, .gate = gate, .n = n } };
    pf_pool_run(job.b->pool, gate_rows, &job, rows, grain_of(n));
    return PF_OK;
}

static void rope_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct row_job *job = ctx;
    (void)thread;
    for (int i = 0; i < job->rope.n_ropes; i++) {
        const struct pf_rope_op *op = &job->rope.ropes[i];
        for (int64_t r = begin; r < end; r++)
            for (int h = 0; h < op->n_head; h++)
                (op->neox ? job->b->k.rope_neox : job->b->k.rope_norm)(op->x + (r * op->n_head + h) * op->hd,
                                                                      op->cs + r * 2 * op->n_pairs, op->n_pairs);
    }
}

static pf_status cpu_rope(pf_backend *backend, const struct pf_rope_op *ropes, int n_ropes, int rows)
{
    struct row_job job = { .b = cpu_of(backend), .rope = { ropes, n_ropes } };
    pf_pool_run(job.b->pool, rope_rows, &job, rows, 4);
    return PF_OK;
}

static void copy_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct row_job *job = ctx;
    (void)thread;
    for (int i = 0; i < job->copy.n_copies; i++) {
        const struct pf_copy *c = &job->copy.copies[i];
        for (int64_t r = begin; r < end; r++)
            for (int64_t j = 0; j < c->n_blocks; j++)
                memcpy(c->to + r * c->to_row + j * c->to_block, c->from + r * c->from_row + j * c->from_block,
                       (size_t)c->n * sizeof *c->to);
    }
}

static pf_status cpu_copy(pf_backend *backend, const struct pf_copy *copies, int n_copies, int rows)
{
    struct row_job job = { .b = cpu_of(backend), .copy = { copies, n_copies } };
    pf_pool_run(job.b->pool, copy_rows, &job, rows, 4);
    return PF_OK;
}

/* n floats into row number `row`. */
static void put_head(const struct cpu_backend *b, enum pf_kv_type type, void *base, size_t row, const float *x, int n)
{
    void *to = (char *)base + row * pf_kv_row_bytes(type, n);
    if (type == PF_KV_F16)
        b->k.to_f16(x, n, to);
    else if (type == PF_KV_Q8_0)
        b->k.to_q8_0(x, n, to);
    else
        memcpy(to, x, (size_t)n * sizeof *x);
}

static void store_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct row_job *job = ctx;
    const struct pf_kv_view *kv = job->store.kv;
    (void)thread;
    for (int64_t r = begin; r < end; r++)
        for (int h = 0; h < kv->n_kv_head; h++) {
            size_t at = pf_kv_row(kv, job->store.pos[r], h);
            const float *k = job->store.k + (r * kv->n_kv_head + h) * kv->hd_k;
            const float *v = kv->v ? job->store.v + (r * kv->n_kv_head + h) * kv->hd_v : NULL;
            if (kv->type == PF_KV_I16) {
                pf_cpu_store_i16(job->b, kv, job->store.pos[r], h, k, v);
                continue;
            }
            put_head(job->b, kv->type, kv->k, at, k, kv->hd_k);
            if (kv->v)
                put_head(job->b, kv->type, kv->v, at, v, kv->hd_v);
        }
}

static pf_status cpu_kv_store(pf_backend *backend, const struct pf_kv_view *kv, const float *k, const float *v,
                              const int32_t *pos, int rows)
{
    struct row_job job = { .b = cpu_of(backend), .store = { kv, k, v, pos } };
    pf_pool_run(job.b->pool, store_rows, &job, rows, 16);
    return PF_OK;
}

static void cpu_alert(pf_backend *backend, bool on)
{
    pf_pool_alert(cpu_of(backend)->pool, on);
}

static const struct pf_backend_ops cpu_ops = {
    .name = "cpu",
    .close = cpu_close,
    .describe = cpu_describe,
    .watch = cpu_watch,
    .buf_alloc = cpu_buf_alloc,
    .buf_free = cpu_buf_free,
    .buf_copy = cpu_buf_copy,
    .upload = cpu_transfer,
    .download = cpu_transfer,
    .finish = cpu_finish,
    .begin = cpu_begin,
    .end = cpu_end,
    .scratch_bytes = cpu_scratch_bytes,
    .reserve = cpu_reserve,
    .embed = cpu_embed,
    .rms_norm = cpu_rms_norm,
    .norm_each = cpu_norm_each,
    .centre = cpu_centre,
    .layer_norm = cpu_layer_norm,
    .linear = pf_cpu_linear,
    .heads = pf_cpu_heads,
    .act = cpu_act,
    .add = cpu_add,
    .softcap = cpu_softcap,
    .weigh = cpu_weigh,
    .add_gated = cpu_add_gated,
    .add_bias = cpu_add_bias,
    .gate = cpu_gate,
    .rope = cpu_rope,
    .kv_store = cpu_kv_store,
    .attention = pf_cpu_attention, .partials = pf_cpu_partials,
    .choose = pf_cpu_choose,
    .route = pf_cpu_route,
    .copy = cpu_copy,
    .delta = pf_cpu_delta,
    .conv = pf_cpu_conv,
    .ssm = pf_cpu_ssm,
    .compress = pf_cpu_compress,
    .mix = pf_cpu_mix,
    .streams_read = pf_cpu_streams_read,
    .streams_write = pf_cpu_streams_write,
    .gated_read = pf_cpu_gated_read,
    .gated_write = pf_cpu_gated_write,
    .agree = pf_cpu_agree,
    .spread = pf_cpu_spread,
    .experts = pf_cpu_experts, .experts_begin = pf_cpu_experts_begin, .experts_part = pf_cpu_experts_part,
    .experts_halves = pf_cpu_experts_halves, .experts_given = pf_cpu_experts_given, .experts_end = pf_cpu_experts_end,
    .alert = cpu_alert,
};

/* The pool is the owner's, or a new one. */
static pf_status open_backend(pf_backend **out, pf_backend *owner, int n_threads, uint32_t isa_mask)
{
    *out = NULL;
    struct cpu_backend *b = pf_alloc(PF_MEM_KERNELS, sizeof *b);
    if (!b)
        PF_FAIL(PF_ENOMEM, "no memory for the CPU backend");
    b->base.ops = &cpu_ops;
    pf_kernels_resolve(&b->k, isa_mask);
    b->borrows = owner != NULL;
    b->pool = owner ? cpu_of(owner)->pool : NULL;
    pf_status st = owner ? PF_OK : pf_pool_open(&b->pool, n_threads);
    if (st < 0) {
        cpu_close(&b->base);
        return st;
    }
    *out = &b->base;
    return PF_OK;
}

pf_status pf_backend_cpu_open(pf_backend **out, int n_threads, uint32_t isa_mask)
{
    return open_backend(out, NULL, n_threads, isa_mask);
}

pf_status pf_backend_cpu_beside(pf_backend **out, pf_backend *owner, uint32_t isa_mask)
{
    return open_backend(out, owner, 0, isa_mask);
}
