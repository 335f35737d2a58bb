/* Sessions: options, sizes, opening and closing. See session.h for the invariants; the timeline is in timeline.c. */
#include "moe/place/residency.h"
#include "moe/run/session.h"

#include <string.h>

#include "base/pf_mem.h"
#include "moe/offload/offload.h"
#include "moe/place/cut.h"

enum { DEFAULT_CTX = 8192, DEFAULT_BATCH = 512, MAX_BATCH = 8192 };

void pf_session_opts_init(struct pf_session_opts *o)
{
    *o = (struct pf_session_opts){ .kv_type = PF_KV_F16 };
}

/* Blocks of Q8_0 are not shared by heads. */
static pf_status check_kv_type(const struct pf_model *m, enum pf_kv_type type)
{
    enum { BLOCK = 32 };
    if (type != PF_KV_F16 && type != PF_KV_F32 && type != PF_KV_Q8_0)
        PF_FAIL(PF_EINVAL, "kv_type %d is unknown", (int)type);
    for (int il = 0; type == PF_KV_Q8_0 && il < m->n_layer; il++) {
        const struct pf_attention *a = &m->layers[il].attn;
        if (a->hd_k % BLOCK != 0 || a->hd_v % BLOCK != 0)
            PF_FAIL(PF_EUNSUPPORTED,
                    "keys and values of layer %d have heads of %d and %d elements; Q8_0 takes multiples of %d", il,
                    a->hd_k, a->hd_v, BLOCK);
    }
    return PF_OK;
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
        PF_FAIL(PF_EINVAL, "n_ctx is %lld; 1 to %d are possible", (long long)o->n_ctx,
                INT32_MAX - PF_KV_CHUNK_POSITIONS);
    if (o->n_batch < 1 || o->n_batch > MAX_BATCH)
        PF_FAIL(PF_EINVAL, "n_batch is %d; 1 to %d are possible", o->n_batch, MAX_BATCH);
    PF_TRY(check_kv_type(m, o->kv_type));
    if (o->n_batch > o->n_ctx)
        o->n_batch = (int)o->n_ctx;
    return PF_OK;
}

/* ---- Sizes ------------------------------------------------------------------------------------------------------- */

static struct pf_kv_layer kv_layer(const struct pf_model *m, int il, const struct pf_session_opts *o)
{
    const struct pf_attention *a = &m->layers[il].attn;
    int n_chunks = pf_ring_chunks(m, il, o);
    size_t rows = (size_t)n_chunks * PF_KV_CHUNK_POSITIONS * (size_t)a->n_kv_head;
    return (struct pf_kv_layer){
        .view = { .type = o->kv_type, .n_kv_head = a->n_kv_head, .hd_k = a->hd_k, .hd_v = a->hd_v,
                  .n_chunks = n_chunks },
        .k_bytes = rows * pf_kv_row_bytes(o->kv_type, a->hd_k),
        .v_bytes = a->v_in_k ? 0 : rows * pf_kv_row_bytes(o->kv_type, a->hd_v),
    };
}

/* Keys of so many positions each. A step writes those of all blocks that its rows may touch, so there are two more. */
static struct pf_kv_layer keys_of(const struct pf_session_opts *o, enum pf_kv_type type, int ratio, int hd)
{
    int64_t n = ratio == 1 ? o->n_ctx : o->n_ctx / ratio + 2;
    int n_chunks = (int)((n + PF_KV_CHUNK_POSITIONS - 1) / PF_KV_CHUNK_POSITIONS);
    return (struct pf_kv_layer){ .view = { .type = type, .n_kv_head = 1, .hd_k = hd, .hd_v = hd, .n_chunks = n_chunks },
                                 .k_bytes = (size_t)n_chunks * PF_KV_CHUNK_POSITIONS * pf_kv_row_bytes(type, hd) };
}

/* Of the layer's blocks, if it has any. */
static struct pf_kv_layer block_kv_layer(const struct pf_model *m, int il, const struct pf_session_opts *o)
{
    const struct pf_compressor *c = &m->layers[il].compressed.blocks;
    return c->ratio ? keys_of(o, o->kv_type, c->ratio, c->width) : (struct pf_kv_layer){ .k_bytes = 0 };
}

/* Of a layer's indexer, if it has one: what it chooses is too much to hang on the rounding of small keys. */
static struct pf_kv_layer index_kv_layer(const struct pf_model *m, int il, const struct pf_session_opts *o)
{
    enum pf_kv_type type = o->kv_type == PF_KV_Q8_0 ? PF_KV_F16 : o->kv_type;
    return m->layers[il].has_indexer ? keys_of(o, type, m->index.ratio, m->index.width)
                                     : (struct pf_kv_layer){ .k_bytes = 0 };
}

static void widen(int *to, int64_t n)
{
    if (*to < n)
        *to = (int)n;
}

struct widths {
    int q, k, v, attn;       /* of attention */
    int packed, gate_out;    /* of gated attention and delta nets */
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
        widen(&w.gate_out, m->arch->gated_attention ? (int64_t)a->n_head * a->hd_v : 0);
        const struct pf_moe *moe = &m->layers[il].moe;
        widen(&w.ff, m->layers[il].dense.gate.n_out);
        widen(&w.ff, moe->shared.gate.n_out);
        widen(&w.shared, moe->shared.down.n_out);
    }
    widen(&w.attn, m->delta.n_v);
    widen(&w.gate_out, m->delta.n_v);
    if (m->arch->mla) {
        int64_t n_head = m->layers[0].attn.n_head;
        widen(&w.packed, n_head * (m->mla.n_nope + m->mla.n_rope));
        widen(&w.packed, n_head * m->mla.n_v);
        widen(&w.gate_out, m->mla.n_latent + m->mla.n_rope);
    }
    if (m->arch->compressed) {
        int hd_k = m->layers[0].attn.hd_k;
        int64_t n_channels = 2 * (int64_t)(hd_k > m->index.width ? hd_k : m->index.width);
        widen(&w.packed, n_channels);
        widen(&w.packed, (int64_t)m->compressed.n_group * m->compressed.n_group_out);
        widen(&w.gate_out, n_channels);
    }
    widen(&w.packed, m->arch->gated_attention ? 2 * (int64_t)w.q : 0);
    widen(&w.packed, 2 * ((int64_t)m->delta.n_k + m->delta.n_v));
    return w;
}

static struct pf_backend_sizes backend_sizes(const struct pf_model *m, const struct pf_session_opts *o)
{
    struct widths w = widths_of(m);
    struct pf_backend_sizes s = { .max_rows = o->n_batch, .max_n_in = m->n_embd, .max_picks = o->n_batch * m->n_used,
                                  .n_expert = m->n_expert, .n_ff = m->n_ff_expert, .n_out = m->n_expert ? m->n_embd : 0,
                                  .n_ctx = o->n_ctx };
    widen(&s.max_n_in, w.attn);
    widen(&s.max_n_in, m->lora_rank);
    s.expert_rank = m->lora_expert_rank;
    if (m->arch->mla) {
        widen(&s.max_n_in, (int64_t)m->layers[0].attn.n_head * m->mla.n_v);
        widen(&s.max_n_in, m->mla.n_q_latent);
        s.max_head_rows = o->n_batch * m->layers[0].attn.n_head;
        s.max_head_n_in = m->mla.n_latent > m->mla.n_nope ? m->mla.n_latent : m->mla.n_nope;
    }
    if (m->arch->compressed) {
        const struct pf_compressed_sizes *c = &m->compressed;
        widen(&s.max_n_in, c->n_q_latent);
        widen(&s.max_n_in, (int64_t)c->n_group * c->n_group_out);
        widen(&s.max_head_rows, (int64_t)o->n_batch * c->n_group);
        widen(&s.max_head_n_in, (int64_t)m->layers[0].attn.n_head / c->n_group * m->layers[0].attn.hd_k);
    }
    s.n_choose_head = m->index.n_head;
    widen(&s.max_head_rows, (int64_t)o->n_batch * m->index.n_head);
    widen(&s.max_head_n_in, m->index.width);
    widen(&s.max_positions, m->index.n_head ? o->n_ctx / m->index.ratio : 0);
    widen(&s.max_n_in, (int64_t)m->streams.n * m->n_embd);
    widen(&s.max_n_in, w.ff);
    for (int il = 0; il < m->n_layer; il++) {
        widen(&s.max_head_dim, m->layers[il].attn.hd_k);
        widen(&s.max_head_dim, m->layers[il].attn.hd_v);
        widen(&s.max_heads, m->layers[il].attn.n_head);
    }
    widen(&s.max_head_dim, m->delta.d);
    return s;
}

/* The next n of the 4-byte elements at base; NULL if that is NULL. */
static void *cut(void *base, size_t *used, size_t n)
{
    void *p = base ? (char *)base + *used : NULL;
    *used += 4 * n;
    return p;
}

struct pf_inputs pf_inputs_at(const struct pf_model *m, int rows, void *base)
{
    struct pf_inputs in = { .bytes = 0 };
    size_t n = (size_t)rows, n_picks = m->injected.n_tokens ? n * (size_t)m->n_moe * (size_t)m->n_used : 0;
    size_t table = 2 * (size_t)m->rope.n_pairs, tables = m->arch->compressed ? n * table : 0;
    in.ids = cut(base, &in.bytes, n);
    in.pos = cut(base, &in.bytes, n);
    in.temper = cut(base, &in.bytes, n);
    in.cs = cut(base, &in.bytes, n * table);
    in.blocks.back = cut(base, &in.bytes, tables);
    in.blocks.far = cut(base, &in.bytes, tables);
    in.blocks.far_back = cut(base, &in.bytes, tables);
    for (int i = 0; i < PF_MAX_RATIOS; i++) {
        size_t n_blocks = m->compressed.ratio[i] ? (size_t)pf_block_rows(m->compressed.ratio[i], rows) : 0;
        in.blocks.number[i] = cut(base, &in.bytes, n_blocks);
        in.blocks.cs[i] = cut(base, &in.bytes, n_blocks * table);
    }
    in.picks = cut(base, &in.bytes, n_picks);
    in.weights = cut(base, &in.bytes, n_picks);
    return in;
}

struct pf_picks pf_routed_at(const struct pf_session *s, int ordinal, int rows)
{
    size_t at = (size_t)ordinal * (size_t)rows * (size_t)s->m->n_used;
    return (struct pf_picks){ s->unit->buf.picks + at, s->unit->buf.pick_weights + at };
}

struct pf_picks pf_picks_at(const struct pf_session *s, int ordinal, int rows)
{
    size_t at = (size_t)ordinal * (size_t)rows * (size_t)s->m->n_used;
    if (s->m->injected.n_tokens == 0)
        return pf_routed_at(s, ordinal, rows);
    return (struct pf_picks){ s->unit->buf.injected + at, s->unit->buf.injected_weights + at };
}

/* The output matrix gets fewer rows than the others. */
static size_t added_floats(const struct pf_model *m, size_t rows)
{
    size_t output = m->output.lora ? PF_LOGIT_ROWS * (size_t)m->n_vocab : 0, others = rows * (size_t)m->lora_out;
    return output > others ? output : others;
}

/* Carves the buffers out of base; with base NULL only measures. Returns the bytes. */
static size_t carve(const struct pf_model *m, int n_batch, char *base, struct pf_buffers *b)
{
    struct widths w = widths_of(m);
    size_t rows = (size_t)n_batch, guess_rows = rows < PF_GUESS_ROWS ? rows : PF_GUESS_ROWS;
    size_t n_picks = (size_t)m->n_moe * (size_t)m->n_used, used = 0;
    size_t n_s = (size_t)m->streams.n, mixed = n_s > 1 ? n_s : 0;
    size_t q_latent = (size_t)(m->mla.n_q_latent + m->compressed.n_q_latent);
    const struct { void *at; size_t n; } parts[] = {
        { &b->x, rows * n_s * (size_t)m->n_embd }, { &b->h, rows * (size_t)m->n_embd },
        { &b->flat, rows * mixed * (size_t)m->n_embd }, { &b->mix, rows * mixed * (2 + n_s) },
        { &b->guess_mix, guess_rows * mixed * (2 + n_s) },
        { &b->q, rows * (size_t)w.q },             { &b->k, rows * (size_t)w.k },
        { &b->v, rows * (size_t)w.v },             { &b->attn, rows * (size_t)w.attn },
        { &b->q_latent, rows * q_latent },
        { &b->index_q, rows * (size_t)m->index.n_head * (size_t)m->index.width },
        { &b->index_k, rows * (size_t)m->index.width }, { &b->index_w, rows * (size_t)m->index.n_head },
        { &b->chosen, rows * (size_t)m->index.max_chosen },
        { &b->packed, rows * (size_t)w.packed },   { &b->gate_out, rows * (size_t)w.gate_out },
        { &b->mixed, rows * (size_t)m->delta.n_conv }, { &b->ba, rows * 2 * (size_t)m->delta.n_v_head },
        { &b->gate, rows * (size_t)w.ff },         { &b->up, rows * (size_t)w.ff },
        { &b->low, rows * (size_t)m->lora_rank },  { &b->added, added_floats(m, rows) },
        { &b->y, rows * (size_t)m->n_embd },       { &b->y_shared, rows * (size_t)w.shared },
        { &b->shared_gate, rows },                 { &b->router, rows * (size_t)m->n_expert },
        { &b->inputs, pf_inputs_at(m, n_batch, NULL).bytes / 4 },
        { &b->logits, PF_LOGIT_ROWS * (size_t)m->n_vocab },
        { &b->pick_weights, rows * n_picks },      { &b->picks, rows * n_picks },
        { &b->guess, guess_rows * (size_t)m->n_used }, { &b->guess_weights, guess_rows * (size_t)m->n_used },
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        void *p = base ? base + used : NULL;
        memcpy(parts[i].at, &p, sizeof p);       /* every part is a pointer to 4-byte elements */
        used += (parts[i].n * 4 + 63) / 64 * 64;
    }
    return used;
}

static uint64_t kv_bytes_of(const struct pf_model *m, int il, const struct pf_session_opts *o)
{
    struct pf_kv_layer kv = kv_layer(m, il, o);
    return kv.k_bytes + kv.v_bytes + block_kv_layer(m, il, o).k_bytes + index_kv_layer(m, il, o).k_bytes;
}

static int n_checkpoints(const struct pf_model *m, const struct pf_session_opts *o)
{
    return pf_n_checkpoints(pf_kept_bytes(m, o, 0, m->n_layer));
}

/* The state of those layers, its second copy, and checkpoints. */
static uint64_t states_bytes(const struct pf_model *m, int first, int end, const struct pf_session_opts *o)
{
    return 2 * (uint64_t)pf_state_bytes(m, first, end) +
           (uint64_t)pf_kept_bytes(m, o, first, end) * (uint64_t)n_checkpoints(m, o);
}

pf_status pf_session_part_bytes(const struct pf_model *m, const struct pf_session_opts *opts, const pf_backend *b,
                                int first, int end, uint64_t *kv_bytes, uint64_t *work_bytes)
{
    struct pf_session_opts o;
    struct pf_buffers buf;
    PF_TRY(resolve_opts(m, opts, &o));
    *kv_bytes = 0;
    for (int il = first; il < end; il++)
        *kv_bytes += kv_bytes_of(m, il, &o);
    struct pf_backend_sizes sizes = backend_sizes(m, &o);
    *work_bytes = states_bytes(m, first, end, &o) + carve(m, o.n_batch, NULL, &buf) + b->ops->scratch_bytes(b, &sizes);
    return PF_OK;
}

pf_status pf_session_bytes(const pf_model *m, const struct pf_session_opts *opts, uint64_t *kv_bytes,
                           uint64_t *work_bytes)
{
    struct pf_session_opts o;
    uint64_t kv = 0, work = 0;
    PF_TRY(resolve_opts(m, opts, &o));
    PF_TRY(pf_session_part_bytes(m, &o, m->backend, 0, m->cut.n_layers, kv_bytes, work_bytes));
    if (!m->cut.whole)
        PF_TRY(pf_session_part_bytes(m, &o, m->cpu, m->cut.n_layers, m->n_layer, &kv, &work));
    *kv_bytes += kv;
    *work_bytes += work + (uint64_t)o.n_ctx * sizeof(int32_t) +
                   (uint64_t)m->n_vocab * (sizeof(struct pf_candidate) + sizeof(int32_t));
    return PF_OK;
}

/* ---- Opening and closing ----------------------------------------------------------------------------------------- */

static void close_unit(struct pf_session *s, struct pf_unit *u)
{
    pf_backend *b = u->backend;
    if (!b)
        return;
    for (int il = u->first; il < u->end; il++) {
        b->ops->buf_free(b, s->kv[il].view.k, s->kv[il].k_bytes, false);
        b->ops->buf_free(b, s->kv[il].view.v, s->kv[il].v_bytes, false);
        b->ops->buf_free(b, s->block_kv[il].view.k, s->block_kv[il].k_bytes, false);
        b->ops->buf_free(b, s->index_kv[il].view.k, s->index_kv[il].k_bytes, false);
        s->kv[il] = s->block_kv[il] = s->index_kv[il] = (struct pf_kv_layer){ .k_bytes = 0 };
    }
    b->ops->buf_free(b, u->state, u->state_bytes, false);
    b->ops->buf_free(b, u->next, u->state_bytes, false);
    for (int i = 0; i < PF_MAX_CHECKPOINTS; i++)
        b->ops->buf_free(b, u->kept[i], u->kept_bytes, false);
    b->ops->buf_free(b, u->buf.base, u->buf.bytes, false);
    *u = (struct pf_unit){ .backend = NULL };
}

static size_t handed_bytes(const struct pf_session *s)
{
    return (size_t)s->opts.n_batch * (size_t)s->m->n_embd * sizeof *s->handed;
}

/* What lies in the memory of the units. */
static void close_buffers(struct pf_session *s)
{
    pf_backend *b = s->units[0].backend;
    if (b) {
        b->ops->buf_free(b, s->inputs, pf_inputs_at(s->m, s->opts.n_batch, NULL).bytes, true);
        b->ops->buf_free(b, s->logits, (size_t)s->m->n_vocab * sizeof *s->logits, true);
        b->ops->buf_free(b, s->handed, handed_bytes(s), true);
    }
    s->inputs = NULL;
    s->logits = s->handed = NULL;
    close_unit(s, &s->units[1]);
    close_unit(s, &s->units[0]);
    memset(s->checkpoints, 0, sizeof s->checkpoints);
    s->n_checkpoints = 0;
}

void pf_session_close(pf_session **sp)
{
    struct pf_session *s = *sp;
    if (!s)
        return;
    close_buffers(s);
    pf_free(s->kv);
    pf_free(s->block_kv);
    pf_free(s->index_kv);
    pf_free(s->tokens);
    pf_free(s->all_logits);
    pf_free(s->candidates);
    pf_free(s->seen);
    atomic_fetch_sub(&s->m->n_sessions, 1);
    pf_free(s);
    *sp = NULL;
}

static pf_status alloc_floats(pf_backend *b, size_t bytes, bool shared, float **out)
{
    void *p = NULL;
    PF_TRY(b->ops->buf_alloc(b, bytes, shared, &p));
    *out = p;
    return PF_OK;
}

static pf_status open_state(struct pf_session *s, struct pf_unit *u)
{
    u->state_bytes = pf_state_bytes(s->m, u->first, u->end);
    u->kept_bytes = pf_kept_bytes(s->m, &s->opts, u->first, u->end);
    if (u->state_bytes) {
        PF_TRY(alloc_floats(u->backend, u->state_bytes, false, &u->state));
        PF_TRY(alloc_floats(u->backend, u->state_bytes, false, &u->next));
    }
    for (int i = 0; u->kept_bytes && i < n_checkpoints(s->m, &s->opts); i++)
        PF_TRY(u->backend->ops->buf_alloc(u->backend, u->kept_bytes, false, &u->kept[i]));
    return PF_OK;
}

static pf_status open_kv(struct pf_session *s, const struct pf_unit *u, int il)
{
    const struct pf_backend_ops *ops = u->backend->ops;
    struct pf_kv_layer kv = kv_layer(s->m, il, &s->opts);
    if (kv.k_bytes == 0)                     /* a delta net */
        return PF_OK;
    PF_TRY(ops->buf_alloc(u->backend, kv.k_bytes, false, &kv.view.k));
    s->kv[il] = kv;
    if (kv.v_bytes)
        PF_TRY(ops->buf_alloc(u->backend, kv.v_bytes, false, &s->kv[il].view.v));
    s->block_kv[il] = block_kv_layer(s->m, il, &s->opts);
    if (s->block_kv[il].k_bytes)
        PF_TRY(ops->buf_alloc(u->backend, s->block_kv[il].k_bytes, false, &s->block_kv[il].view.k));
    s->index_kv[il] = index_kv_layer(s->m, il, &s->opts);
    if (s->index_kv[il].k_bytes)
        PF_TRY(ops->buf_alloc(u->backend, s->index_kv[il].k_bytes, false, &s->index_kv[il].view.k));
    return PF_OK;
}

/* What the unit needs for any layers. */
static pf_status open_work(struct pf_session *s, struct pf_unit *u, pf_backend *b)
{
    *u = (struct pf_unit){ .backend = b };
    u->buf.bytes = carve(s->m, s->opts.n_batch, NULL, &u->buf);
    u->buf.base = NULL;
    PF_TRY(b->ops->buf_alloc(b, u->buf.bytes, false, &u->buf.base));
    carve(s->m, s->opts.n_batch, u->buf.base, &u->buf);
    return b->ops->reserve(b, &s->sizes);
}

static pf_status open_layers(struct pf_session *s, struct pf_unit *u, int first, int end)
{
    u->first = first;
    u->end = end;
    for (int il = first; il < end; il++)
        PF_TRY(open_kv(s, u, il));
    return open_state(s, u);
}

/* How many layers the first unit takes: those whose weights its backend has, as far as there is room
 * for the rest of them. */
static int n_layers_of_first(const struct pf_session *s)
{
    const struct pf_model *m = s->m;
    int n = 0;
    if (m->backend == m->cpu || m->n_expert > 0)
        return m->n_layer;
    uint64_t used = m->cut.whole ? 0 : PF_CUT_SPARE_BYTES, room = m->backend->ops->room(m->backend);
    while (n < m->cut.n_layers) {
        used += kv_bytes_of(m, n, &s->opts) + states_bytes(m, n, n + 1, &s->opts);
        if (used > room)
            break;
        n++;
    }
    return n;
}

/* The CPU's part. What is handed over to it and back lies where the device can copy from and to. */
static pf_status open_second(struct pf_session *s, int first)
{
    PF_TRY(open_work(s, &s->units[1], s->m->cpu));
    PF_TRY(open_layers(s, &s->units[1], first, s->m->n_layer));
    PF_TRY(alloc_floats(s->units[0].backend, handed_bytes(s), true, &s->handed));
    s->units[1].buf.x = s->handed;
    return PF_OK;
}

static pf_status open_buffers(struct pf_session *s)
{
    struct pf_model *m = s->m;
    pf_backend *b = m->backend;
    s->unit = &s->units[0];
    s->sizes = backend_sizes(m, &s->opts);
    PF_TRY(open_work(s, &s->units[0], b));
    PF_TRY(b->ops->buf_alloc(b, pf_inputs_at(m, s->opts.n_batch, NULL).bytes, true, &s->inputs));
    PF_TRY(alloc_floats(b, (size_t)m->n_vocab * sizeof *s->logits, true, &s->logits));
    int n = n_layers_of_first(s);
    PF_TRY(open_layers(s, &s->units[0], 0, n));
    if (n < m->n_layer || !m->cut.whole)
        PF_TRY(open_second(s, n));
    s->n_checkpoints = n_checkpoints(m, &s->opts);
    return m->offload ? pf_offload_reserve(m, &s->sizes) : PF_OK;
}

static pf_status open_parts(struct pf_session *s)
{
    struct pf_model *m = s->m;
    s->tokens = pf_alloc_array(PF_MEM_SESSION, (size_t)s->opts.n_ctx, sizeof *s->tokens);
    s->kv = pf_alloc_array(PF_MEM_SESSION, (size_t)m->n_layer, sizeof *s->kv);
    s->block_kv = pf_alloc_array(PF_MEM_SESSION, (size_t)m->n_layer, sizeof *s->block_kv);
    s->index_kv = pf_alloc_array(PF_MEM_SESSION, (size_t)m->n_layer, sizeof *s->index_kv);
    s->candidates = pf_alloc_array(PF_MEM_SESSION, (size_t)m->n_vocab, sizeof *s->candidates);
    s->seen = pf_alloc_array(PF_MEM_SESSION, (size_t)m->n_vocab, sizeof *s->seen);
    if (!s->tokens || !s->kv || !s->block_kv || !s->index_kv || !s->candidates || !s->seen)
        PF_FAIL(PF_ENOMEM, "no memory for a session of %lld positions", (long long)s->opts.n_ctx);
    return open_buffers(s);
}

pf_status pf_session_follow(struct pf_session *s)
{
    if (s->units[0].backend == s->m->backend)
        return PF_OK;
    close_buffers(s);
    s->computed = s->held_from = 0;
    pf_status st = open_buffers(s);
    if (st < 0)
        close_buffers(s);
    return st;
}

/* A GPU's expert cache gives way to the session, then takes what is left. */
static pf_status open_with_room(struct pf_session *s)
{
    uint64_t kv_bytes, work_bytes;
    PF_TRY(pf_session_bytes(s->m, &s->opts, &kv_bytes, &work_bytes));
    pf_offload_make_room(s->m, kv_bytes + work_bytes);
    pf_status st = open_parts(s);
    pf_offload_use_room(s->m);
    return st;
}

/* Whether the CPU goes on: a device that is lost is so for all sessions; one that has no room for a model's only
 * session is of no use to it. */
static bool leave_device(pf_model *m, pf_status st, bool only)
{
    if (st != PF_EDEVICE && !(st == PF_ENOMEM && only))
        return false;
    pthread_mutex_lock(&m->step_lock);
    bool left = pf_model_leave_device(m);
    pthread_mutex_unlock(&m->step_lock);
    return left;
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
    s->window = pf_widest_window(m);
    s->ring_positions = pf_ring_positions(m, &o);
    atomic_fetch_add(&m->n_sessions, 1);
    pthread_mutex_lock(&m->step_lock);
    pf_status st = open_with_room(s);
    pthread_mutex_unlock(&m->step_lock);
    if (st < 0) {
        bool only = atomic_load(&m->n_sessions) == 1;
        pf_session_close(&s);
        return leave_device(m, st, only) ? pf_session_open(out, m, opts) : st;
    }
    *out = s;
    return PF_OK;
}
