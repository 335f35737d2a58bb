/* The buffers of a session: options, widths, what a step's inputs and activations take. See layout.h. */
#include <string.h>

#include "draft/drafter.h"
#include "moe/layout/layout.h"

enum { LEAST_CTX = 8192, CTX_STEP = 1024, MAX_BATCH = 8192, MAX_SESSIONS = 1 << 20,
       DEFAULT_DRAFT = 16 };

void pf_session_opts_init(struct pf_session_opts *o)
{
    *o = (struct pf_session_opts){ .kv_type = PF_KV_I16 };
}

/* Blocks of Q8_0 are not shared by heads. */
static pf_status check_kv_type(const struct pf_model *m, enum pf_kv_type type)
{
    enum { BLOCK = 32 };
    if (type != PF_KV_I16 && type != PF_KV_F32 && type != PF_KV_Q8_0)
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

int64_t pf_least_context(const struct pf_model *m)
{
    return m->n_ctx_train < LEAST_CTX ? m->n_ctx_train : LEAST_CTX;
}

/* Bytes of so many sessions of so many positions; inputs and activations are shared. UINT64_MAX: options that make no
 * session. */
static uint64_t sessions_bytes(const struct pf_model *m, const struct pf_session_opts *o, const pf_backend *b,
                               int64_t n_ctx)
{
    struct pf_session_opts asked = *o, with;
    uint64_t kv, work, n = o->n_sessions > 0 ? (uint64_t)o->n_sessions : 1;
    asked.n_ctx = n_ctx;
    if (pf_session_opts_resolve(m, &asked, &with) < 0 ||
        pf_session_part_bytes(m, &with, b, 0, m->n_layer, &kv, &work) < 0)
        return UINT64_MAX;
    uint64_t own = kv + pf_states_bytes(m, 0, m->n_layer, &with), shared = kv + work - own;
    return own > (UINT64_MAX - shared) / n ? UINT64_MAX : own * n + shared;
}

int64_t pf_context_within(const struct pf_model *m, const struct pf_session_opts *o, const pf_backend *b,
                          uint64_t bytes)
{
    int64_t least = pf_least_context(m), most = INT32_MAX - PF_KV_CHUNK_POSITIONS;
    most = m->n_ctx_train < most ? m->n_ctx_train : most;
    if (least == most || sessions_bytes(m, o, b, most) <= bytes)
        return most;
    int64_t fits = least / CTX_STEP, not = (most + CTX_STEP - 1) / CTX_STEP;     /* in steps */
    while (fits + 1 < not) {
        int64_t middle = fits + (not - fits) / 2;
        *(sessions_bytes(m, o, b, middle * CTX_STEP) <= bytes ? &fits : &not) = middle;
    }
    return fits * CTX_STEP;
}

uint64_t pf_more_rows_bytes(const struct pf_model *m, const pf_backend *b)
{
    struct pf_session_opts o = { .n_ctx = pf_least_context(m), .n_batch = PF_DEFAULT_BATCH, .kv_type = PF_KV_I16 };
    uint64_t few = sessions_bytes(m, &o, b, o.n_ctx);
    o.n_batch = PF_DEVICE_BATCH;
    uint64_t many = sessions_bytes(m, &o, b, o.n_ctx);
    return many != UINT64_MAX && many > few ? many - few : 0;
}

bool pf_can_draft(const struct pf_model *m)
{
    int il = 0;
    while (il < m->n_layer && (m->layers[il].n_state == 0 || pf_input_floats(m, il) > 0))
        il++;
    return il == m->n_layer;
}

static pf_status resolve_drafts(const struct pf_model *m, struct pf_session_opts *o)
{
    if (o->draft < PF_DRAFT_OFF || o->draft > PF_DRAFT_MODEL)
        PF_FAIL(PF_EINVAL, "draft %d is unknown", (int)o->draft);
    if (o->draft_max < 0 || o->draft_max > PF_MAX_DRAFT)
        PF_FAIL(PF_EINVAL, "draft_max is %d; 0 to %d are possible", o->draft_max, PF_MAX_DRAFT);
    if (o->draft == PF_DRAFT_GIVEN && !o->draft_fn)
        PF_FAIL(PF_EINVAL, "drafts are to be given, and draft_fn is NULL");
    if (o->draft == PF_DRAFT_MTP && !m->nextn)
        PF_FAIL(PF_EUNSUPPORTED, "drafts are to come of a layer that guesses ahead, and none was opened with %s",
                pf_gguf_path(m->file));
    if (o->draft == PF_DRAFT_MODEL && !m->second)
        PF_FAIL(PF_EINVAL, "drafts are to come of a second model, and none was opened with %s", pf_gguf_path(m->file));
    if (o->draft > PF_DRAFT_AUTO && !pf_can_draft(m))
        PF_FAIL(PF_EUNSUPPORTED, "drafts are not possible with %s: its state cannot go back to a row within a step",
                pf_gguf_path(m->file));
    if (o->draft_max == 0)
        o->draft_max = DEFAULT_DRAFT;
    if (o->draft_max > o->n_batch - 1)
        o->draft_max = o->n_batch - 1;
    if (o->draft_max == 0 || !pf_can_draft(m))
        o->draft = PF_DRAFT_OFF;
    return PF_OK;
}

pf_status pf_session_opts_resolve(const struct pf_model *m, const struct pf_session_opts *in, struct pf_session_opts *o)
{
    pf_session_opts_init(o);
    if (in)
        *o = *in;
    if (!m->cpu)
        PF_FAIL(PF_EINVAL, "the model was opened for its vocabulary only; it cannot run");
    if (o->n_sessions < 0 || o->n_sessions > MAX_SESSIONS)
        PF_FAIL(PF_EINVAL, "n_sessions is %d; up to %d are possible", o->n_sessions, MAX_SESSIONS);
    if (o->n_batch == 0)
        o->n_batch = m->backend == m->cpu ? PF_DEFAULT_BATCH : PF_DEVICE_BATCH;
    if (o->n_ctx == 0)
        o->n_ctx = pf_context_within(m, o, m->backend, m->context_bytes);
    if (o->n_ctx < 1 || o->n_ctx > INT32_MAX - PF_KV_CHUNK_POSITIONS)
        PF_FAIL(PF_EINVAL, "n_ctx is %lld; 1 to %d are possible", (long long)o->n_ctx,
                INT32_MAX - PF_KV_CHUNK_POSITIONS);
    if (o->n_batch < 1 || o->n_batch > MAX_BATCH)
        PF_FAIL(PF_EINVAL, "n_batch is %d; 1 to %d are possible", o->n_batch, MAX_BATCH);
    if (o->n_near < 0)
        PF_FAIL(PF_EINVAL, "n_near is %lld; it may not be negative", (long long)o->n_near);
    PF_TRY(check_kv_type(m, o->kv_type));
    if (o->n_batch > o->n_ctx)
        o->n_batch = (int)o->n_ctx;
    return resolve_drafts(m, o);
}

const struct pf_model *pf_session_follower(const struct pf_model *m, const struct pf_session_opts *o,
                                           struct pf_session_opts *own)
{
    pf_session_opts_init(own);
    own->n_ctx = o->n_ctx;
    own->n_batch = o->n_batch;
    if (o->draft == PF_DRAFT_MODEL)
        return m->second;
    own->kv_type = o->kv_type;
    return o->draft == PF_DRAFT_AUTO || o->draft == PF_DRAFT_MTP ? m->nextn : NULL;
}

bool pf_session_keeps_hidden(const struct pf_model *m, const struct pf_session_opts *o)
{
    struct pf_session_opts own;
    const struct pf_model *follower = pf_session_follower(m, o, &own);
    return m->is_nextn || (follower && follower->is_nextn);
}

static void widen(int *to, int64_t n)
{
    if (*to < n)
        *to = (int)n;
}

struct widths {
    int q, k, v, attn;       /* widths in attention */
    int packed, gate_out;    /* widths in gated attention and delta nets */
    int ff, shared;          /* ff: of feed-forward, dense or shared; shared: n_embd, or 0 without a shared expert */
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
        bool elements = m->arch->gated_attention || m->arch->gate_elements;
        widen(&w.gate_out, m->arch->head_gate ? a->n_head : 0);
        widen(&w.gate_out, elements ? (int64_t)a->n_head * a->hd_v : 0);
        const struct pf_moe *moe = &m->layers[il].moe;
        widen(&w.ff, m->layers[il].dense.gate.n_out);
        widen(&w.ff, moe->shared.gate.n_out);
        widen(&w.shared, moe->shared.down.n_out);
    }
    widen(&w.ff, m->per_layer.width);
    widen(&w.packed, m->arch->value_norm ? w.v : 0);
    widen(&w.attn, m->delta.n_v);
    widen(&w.attn, m->mamba.n_inner);
    widen(&w.gate_out, m->delta.n_v);
    widen(&w.gate_out, m->mamba.n_inner);
    widen(&w.packed, m->mamba.n_conv);
    if (m->conv_taps) {
        widen(&w.attn, m->n_embd);
        widen(&w.gate_out, m->n_embd);
        widen(&w.packed, m->n_embd);
    }
    if (m->arch->mla) {
        int64_t n_head = m->mla.n_head;
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
    if (m->arch->index_pools) {
        widen(&w.packed, m->index.width);
        widen(&w.gate_out, m->index.width);
        widen(&w.v, m->index.width);
    }
    widen(&w.packed, m->arch->gated_attention ? 2 * (int64_t)w.q : 0);
    widen(&w.v, m->arch->index_means ? m->index.width : 0);
    widen(&w.packed, 2 * ((int64_t)m->delta.n_k + m->delta.n_v));
    return w;
}

struct pf_backend_sizes pf_backend_sizes_of(const struct pf_model *m, const struct pf_session_opts *o)
{
    struct widths w = widths_of(m);
    struct pf_backend_sizes s = { .max_rows = o->n_batch, .max_n_in = m->n_embd, .max_picks = o->n_batch * m->n_used,
                                  .n_expert = m->n_expert, .n_ff = m->n_ff_expert,
                                  .n_out = m->n_expert ? m->n_expert_in : 0, .n_ctx = o->n_ctx };
    widen(&s.max_n_in, w.attn);
    widen(&s.max_n_in, m->lora_rank);
    widen(&s.max_n_in, m->n_expert_in);
    widen(&s.max_n_in, m->is_nextn ? 2 * (int64_t)m->n_embd : 0);
    s.expert_rank = m->lora_expert_rank;
    if (m->arch->mla) {
        widen(&s.max_n_in, (int64_t)m->mla.n_head * m->mla.n_v);
        widen(&s.max_n_in, m->mla.n_q_latent);
        s.max_latent_heads = m->mla.n_head;
        s.max_head_rows = o->n_batch * m->mla.n_head;
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
    if (m->arch->index_runs)             /* a score for each run and head; runs are no shorter than there are heads */
        widen(&s.max_positions, o->n_ctx + m->index.n_head);
    widen(&s.max_n_in, (int64_t)m->streams.n * m->n_embd);
    widen(&s.max_n_in, m->streams.low_rank);
    widen(&s.max_n_in, w.ff);
    for (int il = 0; il < m->n_layer; il++) {
        widen(&s.max_head_dim, m->layers[il].attn.hd_k);
        widen(&s.max_head_dim, m->layers[il].attn.hd_v);
        widen(&s.max_heads, m->layers[il].attn.n_head);
        if (pf_kv_layer_of(m, il, o).view.type == PF_KV_I16)
            widen(&s.max_i16, (int64_t)m->layers[il].attn.n_head * m->layers[il].attn.hd_k);
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
    in.far_range = cut(base, &in.bytes, PF_BY_HOST_PARTS * sizeof *in.far_range / 4);
    in.cs = cut(base, &in.bytes, n * table);
    in.near_cs = cut(base, &in.bytes, n * 2 * (size_t)m->near_rope.n_pairs);
    in.blocks.back = cut(base, &in.bytes, tables);
    in.blocks.far = cut(base, &in.bytes, tables);
    in.blocks.far_back = cut(base, &in.bytes, tables);
    for (int i = 0; i < PF_MAX_RATIOS; i++) {
        size_t n_blocks = m->compressed.ratio[i] ? n : 0;        /* pf_block_rows of each part; no more than its rows */
        in.blocks.number[i] = cut(base, &in.bytes, n_blocks);
        in.blocks.cs[i] = cut(base, &in.bytes, n_blocks * table);
    }
    in.gather_ids = cut(base, &in.bytes, n * (size_t)m->gather.per_token);
    in.gathered = cut(base, &in.bytes, n * (size_t)m->gather.per_token * (size_t)m->gather.table.n_in);
    in.hidden = cut(base, &in.bytes, m->is_nextn ? n * pf_hidden_width(m) : 0);
    in.picks = cut(base, &in.bytes, n_picks);
    in.weights = cut(base, &in.bytes, n_picks);
    return in;
}
/* The output matrix gets fewer rows than the others. */
static size_t added_floats(const struct pf_model *m, size_t rows)
{
    size_t output = m->output.lora ? PF_LOGIT_ROWS * (size_t)m->n_vocab : 0, others = rows * (size_t)m->lora_out;
    return output > others ? output : others;
}

size_t pf_buffers_cut(const struct pf_model *m, int n_batch, char *base, struct pf_buffers *b)
{
    struct widths w = widths_of(m);
    size_t rows = (size_t)n_batch, guess_rows = rows < PF_GUESS_ROWS ? rows : PF_GUESS_ROWS;
    size_t n_picks = (size_t)m->n_moe * (size_t)m->n_used, used = 0;
    size_t n_s = (size_t)m->streams.n, mixed = n_s > 1 ? n_s : 0;
    size_t convolved = (size_t)(m->delta.n_conv + m->mamba.n_conv + (m->conv_taps ? m->n_embd : 0));
    size_t latent = m->n_expert_in != m->n_embd ? rows * (size_t)m->n_expert_in : 0;
    size_t q_latent = (size_t)(m->mla.n_q_latent + m->compressed.n_q_latent);
    const struct { void *at; size_t n; } parts[] = {
        { &b->x, rows * n_s * (size_t)m->n_embd }, { &b->h, rows * (size_t)m->n_embd },
        { &b->pair, m->is_nextn ? 2 * rows * (size_t)m->n_embd : 0 },
        { &b->flat, rows * mixed * (size_t)m->n_embd }, { &b->mix, rows * mixed * (2 + n_s) },
        { &b->guess_mix, guess_rows * mixed * (2 + n_s) },
        { &b->gates, m->arch->gated_streams ? rows * n_s * (size_t)m->n_embd : 0 },
        { &b->gate_low, rows * (size_t)m->streams.low_rank },
        { &b->per_layer, rows * (size_t)m->n_layer * (size_t)m->per_layer.width },
        { &b->entering, m->ngrams.n ? rows * n_s * (size_t)m->n_embd : 0 },
        { &b->q, rows * (size_t)w.q },             { &b->k, rows * (size_t)w.k },
        { &b->v, rows * (size_t)w.v },             { &b->attn, rows * (size_t)w.attn },
        { &b->q_latent, rows * q_latent },
        { &b->index_q, rows * (size_t)m->index.n_head * (size_t)m->index.width },
        { &b->index_k, rows * (size_t)m->index.width }, { &b->index_w, rows * (size_t)m->index.n_head },
        { &b->chosen, rows * (size_t)m->index.n_lists * (size_t)m->index.max_chosen },
        { &b->packed, rows * (size_t)w.packed },   { &b->gate_out, rows * (size_t)w.gate_out },
        { &b->mixed, rows * convolved },
        { &b->ba, rows * (size_t)(2 * (m->delta.n_v_head + m->delta.d) + m->mamba.n_head) },
        { &b->latent, latent }, { &b->latent_y, latent },
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

pf_status pf_session_part_bytes(const struct pf_model *m, const struct pf_session_opts *opts, const pf_backend *b,
                                int first, int end, uint64_t *kv_bytes, uint64_t *work_bytes)
{
    struct pf_session_opts o;
    struct pf_buffers buf;
    PF_TRY(pf_session_opts_resolve(m, opts, &o));
    *kv_bytes = 0;
    for (int il = first; il < end; il++)
        *kv_bytes += pf_kv_bytes_of(m, il, &o);
    struct pf_backend_sizes sizes = pf_backend_sizes_of(m, &o);
    *work_bytes = pf_kv_stage_bytes(m, &o, first, end) + pf_states_bytes(m, first, end, &o) +
                  pf_buffers_cut(m, o.n_batch, NULL, &buf) + b->ops->scratch_bytes(b, &sizes);
    return PF_OK;
}

uint64_t pf_session_host_bytes(const struct pf_model *m, const struct pf_session_opts *o)
{
    uint64_t row = ((uint64_t)m->n_vocab + (uint64_t)pf_n_tops(m->n_vocab)) * sizeof(float);
    return (uint64_t)o->n_ctx * sizeof(int32_t) + (uint64_t)pf_logit_rows(o) * row +
           (uint64_t)m->n_vocab * (sizeof(struct pf_candidate) + 2 * sizeof(float) + sizeof(int32_t)) +
           (o->draft == PF_DRAFT_OFF ? 0 : pf_drafter_lookup_bytes(o->n_ctx)) +
           (pf_session_keeps_hidden(m, o) ? 2 * (uint64_t)o->n_batch * pf_hidden_width(m) * sizeof(float) : 0);
}
