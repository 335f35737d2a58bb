/* Sessions: opening, the timeline, evaluation in batches, saving and loading. See session.h for the invariants. */
#include "moe/session.h"

#include <string.h>
#include <time.h>

#include "base/pf_fp.h"
#include "base/pf_mem.h"

enum { DEFAULT_CTX = 8192, DEFAULT_BATCH = 512, MAX_BATCH = 8192 };

void pf_session_opts_init(struct pf_session_opts *o)
{
    *o = (struct pf_session_opts){ .kv_type = PF_KV_F16 };
}

static pf_status resolve_opts(const struct pf_model *m, const struct pf_session_opts *in, struct pf_session_opts *o)
{
    pf_session_opts_init(o);
    if (in)
        *o = *in;
    if (!m->backend)
        PF_FAIL(PF_EINVAL, "the model was opened for its vocabulary only; it cannot run");
    if (o->n_ctx == 0)
        o->n_ctx = m->n_ctx_train < DEFAULT_CTX ? m->n_ctx_train : DEFAULT_CTX;
    if (o->n_batch == 0)
        o->n_batch = DEFAULT_BATCH;
    if (o->n_ctx < 1 || o->n_ctx > INT32_MAX - PF_KV_CHUNK_POSITIONS)
        PF_FAIL(PF_EINVAL, "n_ctx is %lld; 1 to %d are possible", (long long)o->n_ctx, INT32_MAX - PF_KV_CHUNK_POSITIONS);
    if (o->n_batch < 1 || o->n_batch > MAX_BATCH)
        PF_FAIL(PF_EINVAL, "n_batch is %d; 1 to %d are possible", o->n_batch, MAX_BATCH);
    if (o->kv_type != PF_KV_F16 && o->kv_type != PF_KV_F32)
        PF_FAIL(PF_EINVAL, "kv_type %d is unknown", (int)o->kv_type);
    if (o->n_batch > o->n_ctx)
        o->n_batch = (int)o->n_ctx;
    return PF_OK;
}

/* ---- Sizes ------------------------------------------------------------------------------------------------------ */

static struct pf_kv_layer kv_layer(const struct pf_attention *a, const struct pf_session_opts *o)
{
    size_t element = o->kv_type == PF_KV_F16 ? 2 : 4;
    size_t positions = (size_t)(o->n_ctx + PF_KV_CHUNK_POSITIONS - 1) / PF_KV_CHUNK_POSITIONS * PF_KV_CHUNK_POSITIONS;
    return (struct pf_kv_layer){
        .view = { .type = o->kv_type, .n_kv_head = a->n_kv_head, .hd_k = a->hd_k, .hd_v = a->hd_v },
        .k_bytes = positions * (size_t)a->n_kv_head * (size_t)a->hd_k * element,
        .v_bytes = positions * (size_t)a->n_kv_head * (size_t)a->hd_v * element,
    };
}

static void widen(int *to, int64_t n)
{
    if (*to < n)
        *to = (int)n;
}

struct widths {
    int q, k, v, attn;       /* of attention */
    int ff, shared;          /* of dense and shared feed-forward; n_embd if there is a shared expert */
};

static struct widths widths_of(const struct pf_model *m)
{
    struct widths w = { 0 };
    for (int il = 0; il < m->n_layer; il++) {
        const struct pf_attention *a = &m->layers[il].attn;
        widen(&w.q, (int64_t)a->n_head * a->hd_k);
        widen(&w.k, (int64_t)a->n_kv_head * a->hd_k);
        widen(&w.v, (int64_t)a->n_kv_head * a->hd_v);
        widen(&w.attn, (int64_t)a->n_head * a->hd_v);
        const struct pf_moe *moe = &m->layers[il].moe;
        widen(&w.ff, m->layers[il].dense.gate.n_out);
        widen(&w.ff, moe->shared.gate.n_out);
        widen(&w.shared, moe->shared.down.n_out);
    }
    return w;
}

static struct pf_backend_sizes backend_sizes(const struct pf_model *m, int rows)
{
    struct widths w = widths_of(m);
    struct pf_backend_sizes s = { .max_rows = rows, .max_n_in = m->n_embd, .max_picks = rows * m->n_used, .n_expert = m->n_expert,
                                  .n_ff = m->n_ff_expert, .n_out = m->n_expert ? m->n_embd : 0 };
    widen(&s.max_n_in, w.attn);
    widen(&s.max_n_in, w.ff);
    for (int il = 0; il < m->n_layer; il++) {
        widen(&s.max_head_dim, m->layers[il].attn.hd_k);
        widen(&s.max_head_dim, m->layers[il].attn.hd_v);
    }
    return s;
}

/* Carves the buffers out of base; with base NULL only measures. Returns the bytes. */
static size_t carve(const struct pf_model *m, int n_batch, char *base, struct pf_buffers *b)
{
    struct widths w = widths_of(m);
    size_t rows = (size_t)n_batch, used = 0;
    const struct { void *at; size_t n; } parts[] = {
        { &b->x, rows * (size_t)m->n_embd },       { &b->h, rows * (size_t)m->n_embd },
        { &b->q, rows * (size_t)w.q },             { &b->k, rows * (size_t)w.k },
        { &b->v, rows * (size_t)w.v },             { &b->attn, rows * (size_t)w.attn },
        { &b->gate, rows * (size_t)w.ff },         { &b->up, rows * (size_t)w.ff },
        { &b->y, rows * (size_t)m->n_embd },       { &b->y_shared, rows * (size_t)w.shared },
        { &b->shared_gate, rows },                 { &b->router, rows * (size_t)m->n_expert },
        { &b->cs, rows * 2 * (size_t)m->rope.n_pairs }, { &b->logits, (size_t)m->n_vocab },
        { &b->pick_weights, rows * (size_t)m->n_used }, { &b->picks, rows * (size_t)m->n_used },
        { &b->ids, rows },                         { &b->pos, rows },
        { &b->temper, rows },
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        void *p = base ? base + used : NULL;
        memcpy(parts[i].at, &p, sizeof p);       /* every part is a pointer to 4-byte elements */
        used += (parts[i].n * 4 + 63) / 64 * 64;
    }
    return used;
}

pf_status pf_session_bytes(const pf_model *m, const struct pf_session_opts *opts, uint64_t *kv_bytes, uint64_t *work_bytes)
{
    struct pf_session_opts o;
    struct pf_buffers b;
    PF_TRY(resolve_opts(m, opts, &o));
    *kv_bytes = 0;
    for (int il = 0; il < m->n_layer; il++) {
        struct pf_kv_layer kv = kv_layer(&m->layers[il].attn, &o);
        *kv_bytes += kv.k_bytes + kv.v_bytes;
    }
    struct pf_backend_sizes sizes = backend_sizes(m, o.n_batch);
    *work_bytes = carve(m, o.n_batch, NULL, &b) + m->backend->ops->scratch_bytes(m->backend, &sizes) +
                  (uint64_t)o.n_ctx * sizeof(int32_t) + (uint64_t)m->n_vocab * (sizeof(struct pf_candidate) + sizeof(int32_t));
    return PF_OK;
}

/* ---- Opening and closing ---------------------------------------------------------------------------------------- */

void pf_session_close(pf_session **sp)
{
    struct pf_session *s = *sp;
    if (!s)
        return;
    const struct pf_backend_ops *ops = s->m->backend->ops;
    for (int il = 0; s->kv && il < s->m->n_layer; il++) {
        ops->buf_free(s->m->backend, s->kv[il].view.k, s->kv[il].k_bytes);
        ops->buf_free(s->m->backend, s->kv[il].view.v, s->kv[il].v_bytes);
    }
    ops->buf_free(s->m->backend, s->buf.base, s->buf.bytes);
    pf_free(s->kv);
    pf_free(s->tokens);
    pf_free(s->all_logits);
    pf_free(s->candidates);
    pf_free(s->seen);
    atomic_fetch_sub(&s->m->n_sessions, 1);
    pf_free(s);
    *sp = NULL;
}

static pf_status open_parts(struct pf_session *s)
{
    struct pf_model *m = s->m;
    const struct pf_backend_ops *ops = m->backend->ops;
    s->tokens = pf_alloc_array(PF_MEM_SESSION, (size_t)s->opts.n_ctx, sizeof *s->tokens);
    s->kv = pf_alloc_array(PF_MEM_SESSION, (size_t)m->n_layer, sizeof *s->kv);
    s->candidates = pf_alloc_array(PF_MEM_SESSION, (size_t)m->n_vocab, sizeof *s->candidates);
    s->seen = pf_alloc_array(PF_MEM_SESSION, (size_t)m->n_vocab, sizeof *s->seen);
    if (!s->tokens || !s->kv || !s->candidates || !s->seen)
        PF_FAIL(PF_ENOMEM, "no memory for a session of %lld positions", (long long)s->opts.n_ctx);
    for (int il = 0; il < m->n_layer; il++) {
        struct pf_kv_layer kv = kv_layer(&m->layers[il].attn, &s->opts);
        PF_TRY(ops->buf_alloc(m->backend, kv.k_bytes, &kv.view.k));
        s->kv[il] = kv;
        PF_TRY(ops->buf_alloc(m->backend, kv.v_bytes, &s->kv[il].view.v));
    }
    s->buf.bytes = carve(m, s->opts.n_batch, NULL, &s->buf);
    PF_TRY(ops->buf_alloc(m->backend, s->buf.bytes, &s->buf.base));
    carve(m, s->opts.n_batch, s->buf.base, &s->buf);

    struct pf_backend_sizes sizes = backend_sizes(m, s->opts.n_batch);
    pthread_mutex_lock(&m->step_lock);
    pf_status st = ops->reserve(m->backend, &sizes);
    pthread_mutex_unlock(&m->step_lock);
    return st;
}

pf_status pf_session_open(pf_session **out, pf_model *m, const struct pf_session_opts *opts)
{
    struct pf_session_opts o;
    *out = NULL;
    PF_TRY(resolve_opts(m, opts, &o));
    struct pf_session *s = pf_alloc(PF_MEM_SESSION, sizeof *s);
    if (!s)
        PF_FAIL(PF_ENOMEM, "no memory for a session");
    s->m = m;
    s->opts = o;
    atomic_fetch_add(&m->n_sessions, 1);
    pf_status st = open_parts(s);
    if (st < 0) {
        pf_session_close(&s);
        return st;
    }
    *out = s;
    return PF_OK;
}

/* ---- Evaluation ------------------------------------------------------------------------------------------------- */

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static pf_status step(struct pf_session *s, const struct pf_batch *batch)
{
    struct pf_model *m = s->m;
    pthread_mutex_lock(&m->step_lock);
    uint64_t begin = now_ns();
    unsigned fp = pf_fp_begin();
    pf_status st = pf_forward(s, batch);
    pf_fp_end(fp);
    atomic_fetch_add(&m->step_ns, now_ns() - begin);
    atomic_fetch_add(&m->n_steps, 1);
    atomic_fetch_add(&m->n_tokens, (uint64_t)batch->rows);
    atomic_store(&m->weight_bytes_now, m->backend->weight_bytes_read);
    pthread_mutex_unlock(&m->step_lock);
    return st;
}

static pf_status check_tokens(const struct pf_session *s, const int32_t *tok, size_t n)
{
    if (n > (size_t)(s->opts.n_ctx - s->pos))
        PF_FAIL(PF_ECONTEXT, "%zu tokens after %lld do not fit a context of %lld", n, (long long)s->pos, (long long)s->opts.n_ctx);
    for (size_t i = 0; i < n; i++)
        if (tok[i] < 0 || tok[i] >= s->m->n_vocab)
            PF_FAIL(PF_EINVAL, "token %zu is %d; the vocabulary has ids 0 to %d", i, tok[i], s->m->n_vocab - 1);
    return pf_gguf_unchanged(s->m->file);
}

/* Appends the tokens batch by batch; each batch that succeeds is committed. */
static pf_status append(struct pf_session *s, const int32_t *tok, size_t n)
{
    for (size_t done = 0; done < n;) {
        int rows = n - done < (size_t)s->opts.n_batch ? (int)(n - done) : s->opts.n_batch;
        bool last = done + (size_t)rows == n;
        struct pf_batch batch = { .tokens = tok + done, .rows = rows, .n_logits = s->all_logits ? rows : last };
        batch.logits = s->all_logits ? s->all_logits + done * (size_t)s->m->n_vocab : s->buf.logits;
        PF_TRY(step(s, &batch));
        memcpy(s->tokens + s->pos, tok + done, (size_t)rows * sizeof *tok);
        s->pos += rows;
        done += (size_t)rows;
    }
    return PF_OK;
}

static void drop_logits(struct pf_session *s)
{
    pf_free(s->all_logits);
    s->all_logits = NULL;
    s->n_all = 0;
    s->has_logits = false;
}

pf_status pf_session_eval(pf_session *s, const int32_t *tok, size_t n, unsigned flags)
{
    if (n == 0)
        PF_FAIL(PF_EINVAL, "there are no tokens to evaluate");
    PF_TRY(check_tokens(s, tok, n));
    float *all = NULL;
    if (flags & PF_LOGITS_ALL) {
        all = pf_alloc_array(PF_MEM_SESSION, n * (size_t)s->m->n_vocab, sizeof *all);
        if (!all)
            PF_FAIL(PF_ENOMEM, "no memory for the logits of %zu positions", n);
    }
    int64_t before = s->pos;
    drop_logits(s);
    s->all_logits = all;
    pf_status st = append(s, tok, n);
    if (st < 0) {
        drop_logits(s);
        s->pos = before;
        return st;
    }
    s->n_all = all ? n : 0;
    s->has_logits = true;
    return PF_OK;
}

pf_status pf_session_sync(pf_session *s, const int32_t *tok, size_t n, size_t *reused)
{
    if (n == 0)
        PF_FAIL(PF_EINVAL, "there are no tokens to evaluate");
    size_t common = 0;
    while (common < n && common < (size_t)s->pos && s->tokens[common] == tok[common])
        common++;
    if (common == n && !(s->has_logits && s->pos == (int64_t)n))
        common--;                            /* its logits are needed */
    if (n > (size_t)s->opts.n_ctx)
        PF_FAIL(PF_ECONTEXT, "%zu tokens do not fit a context of %lld", n, (long long)s->opts.n_ctx);
    int64_t before = s->pos;
    s->pos = (int64_t)common;
    pf_status st = check_tokens(s, tok + common, n - common);
    if (st < 0) {
        s->pos = before;
        return st;
    }
    if (reused)
        *reused = common;
    if (common == n)
        return PF_OK;
    drop_logits(s);
    PF_TRY(append(s, tok + common, n - common));
    s->has_logits = true;
    return PF_OK;
}

pf_status pf_session_rewind(pf_session *s, int64_t pos)
{
    if (pos < 0 || pos > s->pos)
        PF_FAIL(PF_EINVAL, "cannot rewind to position %lld of a timeline of %lld", (long long)pos, (long long)s->pos);
    if (pos < s->pos)
        drop_logits(s);
    s->pos = pos;
    return PF_OK;
}

int64_t pf_session_pos(const pf_session *s)
{
    return s->pos;
}

int64_t pf_session_n_ctx(const pf_session *s)
{
    return s->opts.n_ctx;
}

const int32_t *pf_session_tokens(const pf_session *s)
{
    return s->tokens;
}

const float *pf_session_logits(const pf_session *s)
{
    if (!s->has_logits)
        return NULL;
    return s->all_logits ? s->all_logits + (s->n_all - 1) * (size_t)s->m->n_vocab : s->buf.logits;
}

const float *pf_session_logits_at(const pf_session *s, size_t i)
{
    return i < s->n_all ? s->all_logits + i * (size_t)s->m->n_vocab : NULL;
}

void pf_session_cancel(pf_session *s)
{
    atomic_store(&s->cancel, true);
}
