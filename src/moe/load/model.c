/* Reads a model's hyper-parameters from the keys of a GGUF file: in which order (read.h has the parts), what is
 * refused, and sizes of the whole. bind.c does the tensors.
 *
 *     keys --read.h--> struct pf_model with sizes --check_sizes--> --bind.c--> struct pf_model with weights */
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/pf_mem.h"
#include "base/pf_text.h"
#include "moe/load/bind.h"
#include "moe/load/keys.h"
#include "moe/load/nearest.h"
#include "moe/load/nextn.h"
#include "moe/load/read.h"
#include "moe/model/lora.h"

enum { MAX_HEAD_DIM = 8192, MAX_STATE = 1 << 26 };

void pf_model_logf(const struct pf_model *m, enum pf_log_level level, const char *fmt, ...)
{
    if (!m->log)
        return;
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    pf_text_clean(text);
    m->log(m->log_ctx, level, text);
}

/* ---- Sizes of the whole ------------------------------------------------------------------------------------------ */

/* Some converters write one key, some the other; a few families say by it which norm theirs is. */
static pf_status read_epsilon(const struct pf_loader *l)
{
    static const char suffix[] = "attention.layer_norm_rms_epsilon";
    struct pf_model *m = l->m;
    char name[PF_KEY_BYTES];
    PF_TRY(pf_key_real(l, "attention.layer_norm_epsilon", false, false, &m->eps));
    m->is_centred = m->arch->centred && m->eps > 0 && !pf_gguf_find(l->g, pf_key_name(l, name, suffix));
    return pf_key_real(l, suffix, m->eps == 0, true, &m->eps);
}

static pf_status read_sizes(const struct pf_loader *l, int *n_block)
{
    struct pf_model *m = l->m;
    int n_nextn = 0;
    PF_TRY(pf_key_int(l, "block_count", true, 1, PF_MAX_LAYERS, n_block));
    PF_TRY(pf_key_int(l, "nextn_predict_layers", false, 0, *n_block - 1, &n_nextn));
    if (m->arch->compressed && !pf_nextn_is_there(l, *n_block - n_nextn))
        n_nextn = 0;
    m->n_layer = *n_block - n_nextn;
    if (m->is_nextn)
        PF_TRY(pf_nextn_count(l, n_nextn));
    PF_TRY(pf_key_int(l, "embedding_length", true, 1, PF_MAX_DIM, &m->n_embd));
    PF_TRY(pf_key_int(l, "context_length", true, 1, INT_MAX, &m->n_ctx_train));
    return read_epsilon(l);
}

/* The last layers see the keys and values of the last layer before them that has some of its own and is of their
 * kind. */
static pf_status read_layer_parts(const struct pf_loader *l)
{
    struct pf_model *m = l->m;
    int kv_layer[2] = { -1, -1 };
    PF_TRY(pf_key_int(l, "embedding_length_per_layer_input", true, 0, PF_MAX_DIM / m->n_layer, &m->per_layer.width));
    PF_TRY(pf_key_int(l, "attention.shared_kv_layers", false, 0, m->n_layer - 1, &m->n_shared_kv));
    m->gather.per_token = m->per_layer.width > 0;
    for (int il = 0; il < m->n_layer; il++) {
        struct pf_attention *a = &m->layers[il].attn;
        int *last = &kv_layer[a->window > 0];
        if (il < m->n_layer - m->n_shared_kv)
            *last = il;
        const struct pf_attention *of = *last >= 0 ? &m->layers[*last].attn : NULL;
        if (!of || of->n_kv_head != a->n_kv_head || of->hd_k != a->hd_k)
            PF_FAIL(PF_EFORMAT, "layer %d has no keys and values that suit it, in %s", il, pf_gguf_path(l->g));
        a->kv_layer = *last;
    }
    return PF_OK;
}

static pf_status read_softcap(const struct pf_loader *l)
{
    enum { DEFAULT_CAP = 30 };
    if (!l->m->arch->softcap)
        return PF_OK;
    l->m->softcap = DEFAULT_CAP;
    return pf_key_real(l, "final_logit_softcapping", false, false, &l->m->softcap);
}

/* N-grams and what their layer keeps of them, which comes behind its other state. */
static pf_status read_ngrams(const struct pf_loader *l)
{
    struct pf_model *m = l->m;
    m->ngrams.layer = -1;
    if (!m->arch->ngrams)
        return PF_OK;
    PF_TRY(pf_ngrams_read(l->g, m->arch->name, m->n_layer, m->n_embd, &m->ngrams));
    if (m->ngrams.layer < 0)
        return PF_OK;
    m->gather.per_token = pf_ngram_rows(&m->ngrams);
    m->layers[m->ngrams.layer].n_state +=
        (size_t)((m->ngrams.taps - 1) * m->ngrams.n) * (size_t)m->streams.n * (size_t)m->n_embd;
    return PF_OK;
}

static pf_status read_streams(const struct pf_loader *l)
{
    enum { MAX_GATED = 7, MAX_LOW_RANK = 1 << 16 };
    struct pf_streams_sizes *s = &l->m->streams;
    s->n = 1;
    if (l->m->arch->gated_streams) {
        PF_TRY(pf_key_int(l, "hyper_connection.count", true, 2, MAX_GATED, &s->n));
        PF_TRY(pf_size_check(l, 0, "all streams", (int64_t)s->n * l->m->n_embd, PF_MAX_DIM));
        return pf_key_int(l, "hyper_connection.low_rank", true, 1, MAX_LOW_RANK, &s->low_rank);
    }
    if (!l->m->arch->streams)
        return PF_OK;
    PF_TRY(pf_key_int(l, "hyper_connection.count", true, PF_MAX_STREAMS, PF_MAX_STREAMS, &s->n));
    PF_TRY(pf_key_int(l, "hyper_connection.sinkhorn_iterations", true, 1, 1000, &s->rounds));
    return pf_key_real(l, "hyper_connection.epsilon", true, true, &s->eps);
}

/* Granite's: of the embedding, of what a block adds, and (a divisor) of the logits. bind.c puts the first and last into
 * the weights they belong to. */
static pf_status read_multipliers(struct pf_loader *l)
{
    l->m->residual_scale = l->embedding_scale = l->logit_scale = l->value_scale = 1;
    if (l->m->arch->embed_root)
        l->embedding_scale = sqrtf((float)l->m->n_embd);
    if (l->m->arch->value_scale)
        PF_TRY(pf_key_real(l, "attention.value_scale", false, true, &l->value_scale));
    if (l->m->arch->logit_factor) {
        PF_TRY(pf_key_real(l, "logit_scale", true, true, &l->logit_scale));
        l->logit_scale = 1 / l->logit_scale;
    }
    if (!l->m->arch->multipliers)
        return PF_OK;
    PF_TRY(pf_key_real(l, "embedding_scale", false, true, &l->embedding_scale));
    PF_TRY(pf_key_real(l, "residual_scale", false, true, &l->m->residual_scale));
    return pf_key_real(l, "logit_scale", false, true, &l->logit_scale);
}

/* Lays the recurrent states of all layers one behind the other. */
static void lay_out_state(struct pf_model *m)
{
    for (int il = 1; il < m->n_layer; il++)
        m->layers[il].state_at = m->layers[il - 1].state_at + m->layers[il - 1].n_state;
    for (int il = 0; il < m->n_layer; il++)
        m->recurrent |= m->layers[il].n_state > 0;
}

/* Sizes as they came out, whether a key said them, a default stood in, or they are products. */
static pf_status check_sizes(const struct pf_loader *l, int n_rot)
{
    const struct pf_model *m = l->m;
    if (!m->arch->no_rope)
        PF_TRY(pf_size_check(l, 0, "a rotated part", n_rot, PF_MAX_ROTATED));
    for (int il = 0; il < m->n_layer; il++) {
        const struct pf_attention *a = &m->layers[il].attn;
        if (m->layers[il].n_state)
            PF_TRY(pf_size_check(l, il, "a recurrent state", (int64_t)m->layers[il].n_state, MAX_STATE));
        if (a->n_head == 0)
            continue;
        PF_TRY(pf_size_check(l, il, "heads with keys", a->hd_k, MAX_HEAD_DIM));
        PF_TRY(pf_size_check(l, il, "heads with values", a->hd_v, MAX_HEAD_DIM));
        PF_TRY(pf_size_check(l, il, "all queries", (int64_t)a->n_head * a->hd_k, PF_MAX_DIM));
        PF_TRY(pf_size_check(l, il, "all values", (int64_t)a->n_head * a->hd_v, PF_MAX_DIM));
    }
    if (m->arch->mla) {
        int64_t n_head = m->mla.n_head;
        PF_TRY(pf_size_check(l, 0, "all queries", n_head * (m->mla.n_nope + m->mla.n_rope), PF_MAX_DIM));
        PF_TRY(pf_size_check(l, 0, "all values", n_head * m->mla.n_v, PF_MAX_DIM));
    }
    if (m->arch->compressed)
        PF_TRY(pf_size_check(l, 0, "all groups of heads", (int64_t)m->compressed.n_group * m->compressed.n_group_out,
                             PF_MAX_DIM));
    return m->n_expert ? pf_size_check(l, 0, "experts", m->n_ff_expert, PF_MAX_DIM) : PF_OK;
}

static pf_status read_keys(struct pf_loader *l)
{
    struct pf_model *m = l->m;
    int hd_k = 0;
    PF_TRY(read_sizes(l, &l->n_block));
    m->layers = m->all_layers = pf_alloc_array(PF_MEM_MODEL, (size_t)m->n_layer, sizeof *m->layers);
    if (!m->layers)
        PF_FAIL(PF_ENOMEM, "no memory for the %d layers of %s", m->n_layer, pf_gguf_path(l->g));
    PF_TRY(pf_read_mixers(l));
    PF_TRY(pf_read_delta(l));
    PF_TRY(pf_read_experts(l));
    PF_TRY(m->arch->mla          ? pf_read_mla(l)
           : m->arch->compressed ? pf_read_compressed(l)
                                 : pf_read_attention(l, l->n_block, &hd_k));
    if (m->arch->index_means)
        PF_TRY(pf_read_index_means(l, hd_k));
    if (m->arch->layer_parts)
        PF_TRY(read_layer_parts(l));
    PF_TRY(read_softcap(l));
    PF_TRY(read_streams(l));
    PF_TRY(read_ngrams(l));
    lay_out_state(m);
    PF_TRY(pf_read_routing(l));
    PF_TRY(pf_read_limits(l));
    PF_TRY(pf_read_layout(l));
    PF_TRY(read_multipliers(l));
    PF_TRY(pf_read_rope(l, m->arch->mla ? m->mla.n_rope : m->arch->compressed ? m->compressed.n_rot : hd_k, &l->rope));
    PF_TRY(check_sizes(l, l->rope.n_rot));
    return m->is_nextn ? pf_nextn_check(l) : PF_OK;
}

/* ---- The whole model --------------------------------------------------------------------------------------------- */

static pf_status unknown_architecture(const pf_gguf *g, struct pf_str name)
{
    char known[560] = "", nearest[320];
    size_t n = 0;
    for (int i = 0; pf_arch_at(i) && n < sizeof known; i++)
        n += (size_t)snprintf(known + n, sizeof known - n, "%s%s", i ? ", " : "", pf_arch_at(i)->name);
    pf_nearest_arch(g, nearest, sizeof nearest);
    PF_FAIL(PF_EUNSUPPORTED, "architecture \"%s\" is not supported (supported: %s); %s; in %s", pf_gguf_quote(name).s,
            known, nearest, pf_gguf_path(g));
}

pf_status pf_model_bind(struct pf_model *m)
{
    struct pf_str name, kind = { "model", 5 };
    PF_TRY(pf_gguf_str(m->file, "general.architecture", &name));
    PF_TRY(pf_gguf_str_opt(m->file, "general.type", &kind));
    if (kind.n != 5 || memcmp(kind.p, "model", 5) != 0)
        PF_FAIL(PF_EUNSUPPORTED, "key general.type is \"%s\": this file is not a model, in %s", pf_gguf_quote(kind).s,
                pf_gguf_path(m->file));
    m->arch = pf_arch_find(name.p, name.n);
    if (!m->arch)
        return unknown_architecture(m->file, name);
    struct pf_loader l = { .m = m, .g = m->file };
    l.seen = m->used = pf_alloc(PF_MEM_MODEL, pf_gguf_n_tensors(m->file));
    if (!l.seen)
        PF_FAIL(PF_ENOMEM, "no memory to bind the tensors of %s", pf_gguf_path(m->file));
    pf_status st = read_keys(&l);
    if (st == PF_OK)
        st = pf_bind_tensors(&l);
    if (st == PF_OK && m->is_nextn)
        pf_nextn_drop_others(m);
    m->row_prices.share = m->n_expert ? (float)m->n_used / (float)m->n_expert : 0;
    return st;
}

bool pf_model_gathers(const struct pf_model *m, const struct pf_tensor *t)
{
    return m->gather.table.data && t->data == m->gather.table.data;
}

int pf_tensor_layer(const struct pf_model *m, const struct pf_tensor *t)
{
    char name[16];
    int il;
    if (m->used && !m->used[t - pf_gguf_tensor_at(m->file, 0)])
        return PF_UNUSED;
    snprintf(name, sizeof name, "%.*s", (int)t->name.n, t->name.p);
    return sscanf(name, "blk.%d.", &il) == 1 && il >= m->first_block ? il - m->first_block : -1;
}

bool pf_model_places(const struct pf_model *m, const struct pf_tensor *t)
{
    return pf_tensor_layer(m, t) != PF_UNUSED && !pf_model_gathers(m, t);
}

void pf_expert_bytes(const struct pf_model *m, int il, uint64_t bytes[3])
{
    const struct pf_moe *moe = &m->layers[il].moe;
    const struct pf_expert_weight *w[] = { &moe->gate, &moe->up, &moe->down };
    for (int i = 0; i < 3; i++)
        bytes[i] = pf_expert_weight_bytes(w[i]);
}

uint64_t pf_layer_bytes(const struct pf_layer *l)
{
    uint64_t bytes = 0;
    for (int i = 0; i < l->n_weights; i++)
        bytes += pf_weight_bytes(l->weights[i]);
    return bytes;
}

uint64_t pf_picked_bytes(const struct pf_layer *l)
{
    const struct pf_moe *moe = &l->moe;
    bool gated = moe->gate.data != moe->up.data;
    uint64_t expert = pf_expert_weight_bytes(&moe->gate) + (gated ? pf_expert_weight_bytes(&moe->up) : 0) +
                      pf_expert_weight_bytes(&moe->down);
    return l->is_moe ? (uint64_t)moe->routing.n_used * expert : 0;
}

uint64_t pf_model_extra_bytes(const struct pf_model *m)
{
    uint64_t bytes = pf_lora_bytes(m);
    for (int il = 0; il < m->n_layer; il++)
        bytes += m->layers[il].mla.k_b_is_made ? pf_weight_bytes(&m->layers[il].mla.k_b) : 0;
    return bytes;
}

pf_status pf_model_place_extra(const struct pf_model *m, pf_backend *device)
{
    for (int il = 0; il < m->n_layer; il++) {
        const struct pf_mla *mla = &m->layers[il].mla;
        if (mla->k_b_is_made)
            PF_TRY(device->ops->place(device, mla->k_b.data, pf_weight_bytes(&mla->k_b)));
    }
    return pf_lora_place(m, device);
}
