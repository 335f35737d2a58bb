/* Reads a model's hyper-parameters from the keys of a GGUF file. bind.c does the tensors. */
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/pf_mem.h"
#include "base/pf_text.h"
#include "moe/load/bind.h"
#include "moe/model/lora.h"
#include "moe/load/nearest.h"

/* Bounds of what keys say, and of what stands in for keys (check_sizes): tables of the kernels and of ours rely on
 * them, and so do products of two sizes in an int. Far above any model. */
enum {
    NAME_BYTES = 96, MAX_DIM = 1 << 24, MAX_LAYERS = 4096, MAX_EXPERTS = 65535, MAX_PICKS = 512, MAX_HEADS = 65536,
    MAX_HEAD_DIM = 8192, MAX_ROTATED = 2 * PF_ROPE_MAX_PAIRS, MAX_STATE = 1 << 26
};

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

/* ---- Keys -------------------------------------------------------------------------------------------------------- */

static const char *key(const struct pf_loader *l, char out[NAME_BYTES], const char *suffix)
{
    snprintf(out, NAME_BYTES, "%s.%s", l->m->arch->name, suffix);
    return out;
}

static pf_status key_int(const struct pf_loader *l, const char *suffix, bool required, int64_t min, int64_t max,
                         int *out)
{
    char name[NAME_BYTES];
    int64_t value = *out;
    PF_TRY((required ? pf_gguf_int : pf_gguf_int_opt)(l->g, key(l, name, suffix), min, max, &value));
    *out = (int)value;
    return PF_OK;
}

/* A key that is a scalar or an array with one entry per block of the file; *value is the scalar's default. */
static pf_status key_ints(const struct pf_loader *l, const char *suffix, int n_block, int64_t min, int64_t max,
                          int64_t *out)
{
    char name[NAME_BYTES];
    return pf_gguf_ints_opt(l->g, key(l, name, suffix), n_block, min, max, out, NULL);
}

/* A key that is a scalar or an array with one entry per block of the file, and must be there if `required`. */
static pf_status key_layers(const struct pf_loader *l, const char *suffix, bool required, int64_t min, int64_t max,
                            int64_t *out)
{
    char name[NAME_BYTES];
    if (required && !pf_gguf_find(l->g, key(l, name, suffix)))
        PF_FAIL(PF_EFORMAT, "key %s is missing from %s", name, pf_gguf_path(l->g));
    return key_ints(l, suffix, l->n_block, min, max, out);
}

/* How many entries an array has that may go on past the last block of the file; anything else: n_block. */
static int n_entries(const struct pf_loader *l, const char *suffix)
{
    char name[NAME_BYTES];
    const struct pf_gguf_kv *kv = pf_gguf_find(l->g, key(l, name, suffix));
    bool longer = kv && kv->type == PF_GGUF_ARRAY && kv->n > (uint64_t)l->n_block;
    return longer && kv->n <= MAX_LAYERS ? (int)kv->n : l->n_block;
}

static pf_status key_bool(const struct pf_loader *l, const char *suffix, bool *out)
{
    char name[NAME_BYTES];
    return pf_gguf_bool_opt(l->g, key(l, name, suffix), out);
}

static pf_status key_real(const struct pf_loader *l, const char *suffix, bool required, bool positive, float *out)
{
    char name[NAME_BYTES];
    PF_TRY((required ? pf_gguf_real : pf_gguf_real_opt)(l->g, key(l, name, suffix), out));
    if (positive && !(*out > 0))
        PF_FAIL(PF_EFORMAT, "key %s is %g, expected a positive number, in %s", name, *out, pf_gguf_path(l->g));
    return PF_OK;
}

static pf_status check_size(const struct pf_loader *l, int il, const char *what, int64_t n, int64_t max)
{
    if (n >= 1 && n <= max)
        return PF_OK;
    PF_FAIL(PF_EUNSUPPORTED, "layer %d has %s of %lld, which its keys say or their absence; 1 to %lld are supported, "
            "in %s", il, what, (long long)n, (long long)max, pf_gguf_path(l->g));
}

/* ---- Attention --------------------------------------------------------------------------------------------------- */

static pf_status read_near_heads(const struct pf_loader *l)
{
    int hd_k = 0, hd_v = 0;
    PF_TRY(key_int(l, "attention.key_length_swa", true, 1, 4096, &hd_k));
    PF_TRY(key_int(l, "attention.value_length_swa", true, 1, 4096, &hd_v));
    for (int il = 0; il < l->m->n_layer; il++) {
        struct pf_attention *a = &l->m->layers[il].attn;
        a->hd_k = a->window ? hd_k : a->hd_k;
        a->hd_v = a->window ? hd_v : a->hd_v;
        if (l->m->arch->value_norm && a->hd_k != a->hd_v)
            PF_FAIL(PF_EUNSUPPORTED, "layer %d has keys of %d and values of %d, which may be made of them, in %s", il,
                    a->hd_k, a->hd_v, pf_gguf_path(l->g));
    }
    return PF_OK;
}

/* The last layers see the keys and values of the last layer before them that has some of its own and is of their
 * kind. */
static pf_status read_layer_parts(const struct pf_loader *l)
{
    struct pf_model *m = l->m;
    int kv_layer[2] = { -1, -1 };
    PF_TRY(key_int(l, "embedding_length_per_layer_input", true, 0, MAX_DIM / m->n_layer, &m->per_layer.width));
    PF_TRY(key_int(l, "attention.shared_kv_layers", false, 0, m->n_layer - 1, &m->n_shared_kv));
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
    return key_real(l, "final_logit_softcapping", false, false, &l->m->softcap);
}

/* Windows where the pattern says so, layer by layer. */
static pf_status read_layer_windows(const struct pf_loader *l)
{
    static const char suffix[] = "attention.sliding_window_pattern";
    struct pf_model *m = l->m;
    int64_t windowed[MAX_LAYERS];
    char name[NAME_BYTES];
    int window = 0;
    bool found;
    PF_TRY(key_int(l, "attention.sliding_window", true, 1, INT_MAX, &window));
    PF_TRY(pf_gguf_ints_opt(l->g, key(l, name, suffix), n_entries(l, suffix), 0, 1, windowed, &found));
    if (!found)
        PF_FAIL(PF_EFORMAT, "key %s is missing from %s", name, pf_gguf_path(l->g));
    for (int il = 0; il < m->n_layer; il++) {
        m->layers[il].attn.window = windowed[il] ? window : 0;
        m->layers[il].attn.near_rope = windowed[il];
    }
    return m->arch->near_heads ? read_near_heads(l) : PF_OK;
}

/* Windows on all but the last layer of each period. llama4's are fixed pieces; its other layers do not rotate and
 * temper their queries, its windowed ones norm queries and keys without weights, except in the model of 128 experts. */
static pf_status read_windows(const struct pf_loader *l)
{
    enum { LLAMA4_PIECE = 8192, MAVERICK_EXPERTS = 128 };
    struct pf_model *m = l->m;
    bool sliding = m->arch->window == PF_WINDOW_SLIDING;
    int window = LLAMA4_PIECE, period = m->arch->window_period;
    if (m->arch->window == PF_WINDOW_NONE)
        return PF_OK;
    if (m->arch->window == PF_WINDOW_BY_LAYER)
        return read_layer_windows(l);
    if (!sliding)
        m->temper = (struct pf_temper){ 0.1, LLAMA4_PIECE, 1 };
    PF_TRY(key_int(l, "attention.sliding_window", sliding, sliding, INT_MAX, &window));
    PF_TRY(key_int(l, "attention.sliding_window_pattern", false, 1, MAX_LAYERS, &period));
    for (int il = 0; il < m->n_layer; il++) {
        struct pf_attention *a = &m->layers[il].attn;
        bool windowed = window == 0 || il % period < period - 1;
        a->window = windowed ? window : 0;
        if (sliding)
            continue;
        a->chunked = a->rotate = windowed;
        a->norm = windowed && m->n_expert != MAVERICK_EXPERTS;
        a->temper = !windowed;
    }
    return PF_OK;
}

/* Queries that grow with their position in all layers, from a context of `every` on; a scale of 0 is none. */
static pf_status read_temper(const struct pf_loader *l, int every)
{
    struct pf_model *m = l->m;
    float scale = 0;
    PF_TRY(key_real(l, "attention.temperature_scale", false, false, &scale));
    if (every == 0 || scale == 0)
        return PF_OK;
    m->temper = (struct pf_temper){ .scale = scale, .every = every };
    for (int il = 0; il < m->n_layer; il++)
        m->layers[il].attn.temper = true;
    return PF_OK;
}

/* A delta net's state: what the convolution looks back at, and a matrix for each value head. */
static size_t delta_state(const struct pf_delta_sizes *s)
{
    return (size_t)(s->taps - 1) * (size_t)s->n_conv + (size_t)s->n_v * (size_t)s->d;
}

/* Kimi's: keys and values have as many heads as queries. */
static pf_status read_kda(const struct pf_loader *l)
{
    enum { MAX_NET_HEADS = 4096, MAX_NET_DIM = 1024, MAX_TAPS = 16 };
    struct pf_model *m = l->m;
    struct pf_delta_sizes *s = &m->delta;
    PF_TRY(key_int(l, "attention.head_count", true, 1, MAX_NET_HEADS, &s->n_v_head));
    PF_TRY(key_int(l, "ssm.conv_kernel", true, 1, MAX_TAPS, &s->taps));
    PF_TRY(key_int(l, "kda.head_dim", true, 1, MAX_NET_DIM, &s->d));
    PF_TRY(key_real(l, "kda.gate_lower_bound", false, false, &s->least));
    s->n_k_head = s->n_v_head;
    s->n_k = s->n_v = s->n_v_head * s->d;
    s->n_conv = 3 * s->n_k;
    for (int il = 0; il < m->n_layer; il++)
        if (m->layers[il].mixer == PF_MIXER_DELTA)
            m->layers[il].n_state = delta_state(s);
    return PF_OK;
}

static pf_status read_delta(const struct pf_loader *l)
{
    enum { MAX_NET_HEADS = 4096, MAX_NET_DIM = 1024, MAX_TAPS = 16 };
    struct pf_model *m = l->m;
    struct pf_delta_sizes *s = &m->delta;
    int inner = 0, n_nets = 0;
    for (int il = 0; m->arch->delta && m->arch->delta != PF_DELTA_KDA && il < m->n_layer; il++) {
        char name[NAME_BYTES];
        snprintf(name, sizeof name, "blk.%d.ssm_conv1d.weight", il);
        if (!pf_gguf_tensor(l->g, name))
            continue;
        m->layers[il].mixer = PF_MIXER_DELTA;
        n_nets++;
    }
    if (n_nets == 0)
        return PF_OK;
    PF_TRY(key_int(l, "ssm.conv_kernel", true, 1, MAX_TAPS, &s->taps));
    PF_TRY(key_int(l, "ssm.state_size", true, 1, MAX_NET_DIM, &s->d));
    PF_TRY(key_int(l, "ssm.group_count", true, 1, MAX_NET_HEADS, &s->n_k_head));
    PF_TRY(key_int(l, "ssm.time_step_rank", true, 1, MAX_NET_HEADS, &s->n_v_head));
    PF_TRY(key_int(l, "ssm.inner_size", true, 1, MAX_DIM, &inner));
    s->n_k = s->n_k_head * s->d;
    s->n_v = s->n_v_head * s->d;
    s->n_conv = 2 * s->n_k + s->n_v;
    if (s->n_v_head % s->n_k_head || inner != s->n_v)
        PF_FAIL(PF_EFORMAT, "%d value heads of %d do not suit %d key heads and an inner size of %d, in %s", s->n_v_head,
                s->d, s->n_k_head, inner, pf_gguf_path(l->g));
    for (int il = 0; il < m->n_layer; il++)
        if (m->layers[il].mixer == PF_MIXER_DELTA)
            m->layers[il].n_state = delta_state(s);
    return PF_OK;
}

static pf_status read_mamba(const struct pf_loader *l)
{
    enum { MAX_SSM_HEADS = 65536, MAX_SSM_STATE = 4096, MAX_TAPS = 16 };
    struct pf_model *m = l->m;
    struct pf_mamba_sizes *s = &m->mamba;
    PF_TRY(key_int(l, "ssm.conv_kernel", true, 1, MAX_TAPS, &s->taps));
    PF_TRY(key_int(l, "ssm.inner_size", true, 1, MAX_DIM / 4, &s->n_inner));
    PF_TRY(key_int(l, "ssm.state_size", true, 1, MAX_SSM_STATE, &s->d));
    PF_TRY(key_int(l, "ssm.time_step_rank", true, 1, MAX_SSM_HEADS, &s->n_head));
    PF_TRY(key_int(l, "ssm.group_count", true, 1, MAX_SSM_HEADS / 64, &s->n_group));
    if (s->n_inner % s->n_head || s->n_head % s->n_group)
        PF_FAIL(PF_EFORMAT, "%d heads in %d groups do not suit an inner size of %d, in %s", s->n_head, s->n_group,
                s->n_inner, pf_gguf_path(l->g));
    s->p = s->n_inner / s->n_head;
    s->n_conv = s->n_inner + 2 * s->n_group * s->d;
    for (int il = 0; il < m->n_layer; il++)
        if (m->layers[il].mixer == PF_MIXER_MAMBA2)
            m->layers[il].n_state =
                (size_t)(s->taps - 1) * (size_t)s->n_conv + (size_t)s->n_inner * (size_t)s->d;
    return PF_OK;
}

static pf_status read_short_conv(const struct pf_loader *l)
{
    enum { MAX_TAPS = 16 };
    struct pf_model *m = l->m;
    PF_TRY(key_int(l, "shortconv.l_cache", true, 2, MAX_TAPS, &m->conv_taps));
    for (int il = 0; il < m->n_layer; il++)
        if (m->layers[il].mixer == PF_MIXER_SHORT_CONV)
            m->layers[il].n_state = (size_t)(m->conv_taps - 1) * (size_t)m->n_embd;
    return PF_OK;
}

/* What each layer consists of, where that follows from keys alone. */
static pf_status read_mixers(const struct pf_loader *l)
{
    struct pf_model *m = l->m;
    const struct pf_arch *arch = m->arch;
    int64_t n_kv[MAX_LAYERS], n_ff[MAX_LAYERS];
    bool by_kv = arch->without_kv != PF_MIXER_ATTENTION;
    for (int il = 0; il < m->n_layer; il++) {
        m->layers[il].mixer = arch->mla ? PF_MIXER_LATENT : arch->compressed ? PF_MIXER_COMPRESSED : PF_MIXER_ATTENTION;
        m->layers[il].has_ffn = true;
    }
    if (!by_kv)
        return PF_OK;
    PF_TRY(key_layers(l, "attention.head_count_kv", true, 0, MAX_HEADS, n_kv));
    if (arch->split_layers)
        PF_TRY(key_layers(l, "feed_forward_length", true, 0, MAX_DIM, n_ff));
    for (int il = 0; il < m->n_layer; il++) {
        m->layers[il].has_ffn = !arch->split_layers || n_ff[il] > 0;
        if (arch->split_layers && n_ff[il] > 0)
            m->layers[il].mixer = PF_MIXER_NONE;
        else if (n_kv[il] == 0)
            m->layers[il].mixer = arch->without_kv;
    }
    return arch->without_kv == PF_MIXER_MAMBA2 ? read_mamba(l)
           : arch->without_kv == PF_MIXER_DELTA ? read_kda(l)
                                                : read_short_conv(l);
}

static pf_status read_index_sizes(const struct pf_loader *l, int n_rot, int ratio)
{
    struct pf_index_sizes *s = &l->m->index;
    s->ratio = ratio;
    s->run = s->n_lists = 1;
    s->eps = 1e-6f;
    PF_TRY(key_int(l, "attention.indexer.head_count", true, 1, 4096, &s->n_head));
    PF_TRY(key_int(l, "attention.indexer.key_length", true, n_rot, 4096, &s->width));
    return key_int(l, "attention.indexer.top_k", true, 1, 65536, &s->max_chosen);
}

/* Runs of positions, whose keys become one; the budget counts positions. */
static pf_status read_pools(const struct pf_loader *l)
{
    struct pf_model *m = l->m;
    struct pf_index_sizes *s = &m->index;
    char name[NAME_BYTES];
    bool tail = false;
    s->eps = 0;
    PF_TRY(key_int(l, "attention.indexer.kpool", true, 2, 256, &s->ratio));
    PF_TRY(key_bool(l, "attention.indexer.kpool_select_tail", &tail));
    PF_TRY(key_real(l, "attention.layer_norm_epsilon", false, false, &s->eps));
    if (!tail)
        PF_FAIL(PF_EUNSUPPORTED, "key %s is not true; positions after the last full run are always seen here, in %s",
                key(l, name, "attention.indexer.kpool_select_tail"), pf_gguf_path(l->g));
    if (s->max_chosen % s->ratio)
        PF_FAIL(PF_EFORMAT, "%d positions, which an indexer may choose, are no whole number of runs of %d, in %s",
                s->max_chosen, s->ratio, pf_gguf_path(l->g));
    s->max_chosen /= s->ratio;
    m->compressed.ratio[0] = s->ratio;
    for (int il = 0; il < m->n_layer; il++)
        if (m->layers[il].has_indexer) {
            m->layers[il].indexer.blocks = (struct pf_compressor){ .width = s->width, .ratio = s->ratio };
            m->layers[il].n_state += 3 * (size_t)s->width;
        }
    return PF_OK;
}

/* Every layer with attention has an indexer, or those that attention.indexer.types says; GLM-5.2, known by its context,
 * has them in layers 0, 1 and each fourth from 2 on. */
static pf_status read_indexer(const struct pf_loader *l)
{
    enum { SHARING_FROM_CONTEXT = 1 << 20, SHARING_PERIOD = 4, SHARING_PHASE = 2 };
    struct pf_model *m = l->m;
    int64_t full[MAX_LAYERS];
    int first = 0;
    PF_TRY(read_index_sizes(l, m->mla.n_rope, 1));
    if (m->mla.n_q_latent == 0)
        PF_FAIL(PF_EFORMAT, "%s models have indexers, which need an attention.q_lora_rank, in %s", m->arch->name,
                pf_gguf_path(l->g));
    for (int il = 0; il < l->n_block; il++)
        full[il] = m->n_ctx_train < SHARING_FROM_CONTEXT || m->arch->index_pools || il < SHARING_PHASE ||
                   il % SHARING_PERIOD == SHARING_PHASE;
    PF_TRY(key_ints(l, "attention.indexer.types", l->n_block, 0, INT_MAX, full));
    for (int il = 0; il < m->n_layer; il++)
        m->layers[il].has_indexer = full[il] == 1 && m->layers[il].mixer == PF_MIXER_LATENT;
    while (first < m->n_layer && m->layers[first].mixer != PF_MIXER_LATENT)
        first++;
    if (first < m->n_layer && !m->layers[first].has_indexer)
        PF_FAIL(PF_EFORMAT, "the first layer has no indexer whose choice it could take, in %s", pf_gguf_path(l->g));
    return m->arch->index_pools ? read_pools(l) : PF_OK;
}

/* Newer files describe the cache in key_length and value_length and the heads in the keys ending in _mla, older ones
 * only the heads. */
static pf_status read_mla(const struct pf_loader *l)
{
    struct pf_model *m = l->m;
    struct pf_mla_sizes *s = &m->mla;
    int n_k = 0, temper = 0;
    bool rotate = !m->arch->no_rope;
    PF_TRY(key_int(l, "attention.head_count", true, 1, MAX_HEADS, &s->n_head));
    PF_TRY(key_int(l, "attention.kv_lora_rank", true, 1, 4096, &s->n_latent));
    PF_TRY(key_int(l, "attention.q_lora_rank", false, 0, MAX_DIM, &s->n_q_latent));
    PF_TRY(key_int(l, "attention.key_length", true, 1, 8192, &n_k));
    PF_TRY(key_int(l, "attention.key_length_mla", false, 1, 8192, &n_k));
    PF_TRY(key_int(l, "attention.value_length", true, 1, 8192, &s->n_v));
    PF_TRY(key_int(l, "attention.value_length_mla", false, 1, 8192, &s->n_v));
    PF_TRY(key_int(l, "rope.dimension_count", true, rotate ? 2 : 0, n_k - 1, &s->n_rope));
    PF_TRY(key_int(l, "attention.temperature_length", false, 0, INT_MAX, &temper));
    s->n_nope = n_k - s->n_rope;
    for (int il = 0; il < m->n_layer; il++)
        if (m->layers[il].mixer == PF_MIXER_LATENT)
            m->layers[il].attn = (struct pf_attention){
                .n_head = s->n_head, .n_kv_head = 1, .hd_k = s->n_latent + s->n_rope, .hd_v = s->n_latent,
                .rotate = rotate, .v_in_k = true, .scale = 1.0f / sqrtf((float)n_k) };
    PF_TRY(read_temper(l, temper));
    return m->arch->indexer ? read_indexer(l) : PF_OK;
}

enum { FINE_RATIO = 4, COARSE_RATIO = 128 };          /* blocks of FINE_RATIO overlap, and an indexer
                                                         chooses among them */

static void set_ratio(struct pf_model *m, struct pf_layer *layer, int ratio)
{
    bool fine = ratio == FINE_RATIO;
    if (ratio == 0)
        return;
    layer->compressed.blocks = (struct pf_compressor){ .width = layer->attn.hd_k, .ratio = ratio, .overlaps = fine };
    layer->n_state = 3 * (size_t)(1 + fine) * (size_t)layer->attn.hd_k;
    layer->has_indexer = fine;
    if (fine) {
        layer->indexer.blocks = (struct pf_compressor){ .width = m->index.width, .ratio = ratio, .overlaps = true };
        layer->n_state += 3 * 2 * (size_t)m->index.width;
    }
}

/* Layers of plain attention that choose runs of positions, all of the same length, by means of their keys. */
static pf_status read_index_means(const struct pf_loader *l, int hd_k)
{
    static const char suffix[] = "attention.compress_ratios";
    enum { MAX_RUN = 256 };
    struct pf_model *m = l->m;
    int64_t run[MAX_LAYERS] = { 0 };
    int n_rot = hd_k, *all = &m->compressed.ratio[0];
    char name[NAME_BYTES];
    PF_TRY(key_ints(l, suffix, l->n_block, 0, MAX_RUN, run));
    PF_TRY(key_int(l, "rope.dimension_count", false, 2, hd_k, &n_rot));
    for (int il = 0; il < m->n_layer; il++) {
        m->layers[il].has_indexer = run[il] > 0 && m->layers[il].mixer == PF_MIXER_ATTENTION;
        if (!m->layers[il].has_indexer)
            continue;
        if (*all && *all != run[il])
            PF_FAIL(PF_EUNSUPPORTED, "key %s has %d and %lld; one number for all layers is supported, in %s",
                    key(l, name, suffix), *all, (long long)run[il], pf_gguf_path(l->g));
        *all = (int)run[il];
    }
    if (*all == 0)
        return PF_OK;
    PF_TRY(read_index_sizes(l, n_rot, *all));
    m->index.max_chosen /= *all;
    if (m->index.max_chosen == 0)
        PF_FAIL(PF_EFORMAT, "key %s is less than a run of %d positions, in %s",
                key(l, name, "attention.indexer.top_k"), *all, pf_gguf_path(l->g));
    for (int il = 0; il < m->n_layer; il++)
        m->layers[il].n_state += m->layers[il].has_indexer ? 3 * (size_t)m->index.width : 0;
    return PF_OK;
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

/* Which layers have keys of blocks, and of how many positions. */
static pf_status read_ratios(const struct pf_loader *l)
{
    static const char suffix[] = "attention.compress_ratios";
    struct pf_model *m = l->m;
    int64_t ratio[MAX_LAYERS];
    char name[NAME_BYTES];
    bool found;
    PF_TRY(pf_gguf_ints_opt(l->g, key(l, name, suffix), n_entries(l, suffix), 0, INT_MAX, ratio, &found));
    if (!found)
        PF_FAIL(PF_EFORMAT, "key %s is missing from %s", name, pf_gguf_path(l->g));
    for (int il = 0; il < m->n_layer; il++) {
        if (ratio[il] != 0 && ratio[il] != FINE_RATIO && ratio[il] != COARSE_RATIO)
            PF_FAIL(PF_EUNSUPPORTED, "key %s has %lld for layer %d; 0, %d and %d are supported, in %s", name,
                    (long long)ratio[il], il, FINE_RATIO, COARSE_RATIO, pf_gguf_path(l->g));
        if (ratio[il] != 0)
            m->compressed.ratio[ratio[il] == COARSE_RATIO] = (int)ratio[il];
    }
    if (m->compressed.ratio[0])
        PF_TRY(read_index_sizes(l, m->compressed.n_rot, FINE_RATIO));
    for (int il = 0; il < m->n_layer; il++)
        set_ratio(m, &m->layers[il], (int)ratio[il]);
    return PF_OK;
}

static pf_status read_compressed(const struct pf_loader *l)
{
    struct pf_model *m = l->m;
    struct pf_compressed_sizes *s = &m->compressed;
    int n_head = 0, n_kv_head = 0, hd = 0, hd_v, window = 0;
    PF_TRY(key_int(l, "attention.head_count", true, 1, MAX_HEADS, &n_head));
    PF_TRY(key_int(l, "attention.head_count_kv", true, 1, 1, &n_kv_head));
    PF_TRY(key_int(l, "attention.key_length", true, 1, 4096, &hd));
    hd_v = hd;
    PF_TRY(key_int(l, "attention.value_length", false, hd, hd, &hd_v));
    PF_TRY(key_int(l, "attention.sliding_window", true, 1, INT_MAX, &window));
    PF_TRY(key_int(l, "attention.q_lora_rank", true, 1, MAX_DIM, &s->n_q_latent));
    PF_TRY(key_int(l, "attention.output_group_count", true, 1, n_head, &s->n_group));
    PF_TRY(key_int(l, "attention.output_lora_rank", true, 1, MAX_DIM, &s->n_group_out));
    PF_TRY(key_int(l, "rope.dimension_count", true, 2, hd, &s->n_rot));
    if (n_head % s->n_group)
        PF_FAIL(PF_EFORMAT, "%d heads do not make %d groups, in %s", n_head, s->n_group, pf_gguf_path(l->g));
    for (int il = 0; il < m->n_layer; il++)
        m->layers[il].attn = (struct pf_attention){ .n_head = n_head, .n_kv_head = n_kv_head, .hd_k = hd, .hd_v = hd,
                                                    .rotate = true, .v_in_k = true, .window = window,
                                                    .scale = 1.0f / sqrtf((float)hd) };
    return read_ratios(l);
}

static pf_status read_streams(const struct pf_loader *l)
{
    enum { MAX_GATED = 7, MAX_LOW_RANK = 1 << 16 };
    struct pf_streams_sizes *s = &l->m->streams;
    s->n = 1;
    if (l->m->arch->gated_streams) {
        PF_TRY(key_int(l, "hyper_connection.count", true, 2, MAX_GATED, &s->n));
        PF_TRY(check_size(l, 0, "all streams", (int64_t)s->n * l->m->n_embd, MAX_DIM));
        return key_int(l, "hyper_connection.low_rank", true, 1, MAX_LOW_RANK, &s->low_rank);
    }
    if (!l->m->arch->streams)
        return PF_OK;
    PF_TRY(key_int(l, "hyper_connection.count", true, PF_MAX_STREAMS, PF_MAX_STREAMS, &s->n));
    PF_TRY(key_int(l, "hyper_connection.sinkhorn_iterations", true, 1, 1000, &s->rounds));
    return key_real(l, "hyper_connection.epsilon", true, true, &s->eps);
}

/* Whether layer il is the last of a period of n; n 0: there are no periods. */
static bool is_last_of(int il, int n)
{
    return n > 0 && (il + 1) % n == 0;
}

/* Layers whose indexer chooses runs of positions: those that have its tensors. */
static pf_status read_index_runs(const struct pf_loader *l, int hd_k)
{
    struct pf_model *m = l->m;
    struct pf_index_sizes *s = &m->index;
    char name[NAME_BYTES];
    int n_rot = hd_k;
    if (!m->arch->index_runs)
        return PF_OK;
    PF_TRY(key_int(l, "rope.dimension_count", false, 2, MAX_ROTATED, &n_rot));
    PF_TRY(read_index_sizes(l, n_rot, 1));
    PF_TRY(key_int(l, "attention.indexer.block_size", true, s->n_head, PF_KV_CHUNK_POSITIONS, &s->run));
    PF_TRY(key_int(l, "attention.indexer.local_blocks", false, 1, s->max_chosen, &s->n_local));
    if (PF_KV_CHUNK_POSITIONS % s->run || s->n_local < 1)
        PF_FAIL(PF_EUNSUPPORTED, "runs of %d positions, of which the last %d are always seen, are not supported; runs "
                "divide %d, and one at least is seen, in %s", s->run, s->n_local, (int)PF_KV_CHUNK_POSITIONS,
                pf_gguf_path(l->g));
    s->n_lists = s->n_head;
    for (int il = 0; il < m->n_layer; il++) {
        struct pf_layer *layer = &m->layers[il];
        snprintf(name, sizeof name, "blk.%d.indexer.q_proj.weight", il);
        layer->has_indexer = pf_gguf_tensor(l->g, name) != NULL;
        if (layer->has_indexer && layer->attn.n_kv_head != s->n_head)
            PF_FAIL(PF_EFORMAT, "the indexer of layer %d has %d heads, keys and values have %d, in %s", il, s->n_head,
                    layer->attn.n_kv_head, pf_gguf_path(l->g));
    }
    return PF_OK;
}

/* Head counts and sizes of every layer, from keys that may be scalars or arrays. */
static pf_status read_attention(const struct pf_loader *l, int n_block, int *out_hd_k)
{
    struct pf_model *m = l->m;
    int64_t n_head[MAX_LAYERS], n_kv[MAX_LAYERS];
    for (int i = 0; i < n_block; i++)
        n_head[i] = 0;
    PF_TRY(key_ints(l, "attention.head_count", n_block, 1, MAX_HEADS, n_head));
    if (n_head[0] == 0) {
        char name[NAME_BYTES];
        PF_FAIL(PF_EFORMAT, "key %s is missing from %s", key(l, name, "attention.head_count"), pf_gguf_path(l->g));
    }
    memcpy(n_kv, n_head, (size_t)n_block * sizeof *n_kv);
    bool may_lack = m->arch->delta || m->arch->without_kv != PF_MIXER_ATTENTION;
    PF_TRY(key_ints(l, "attention.head_count_kv", n_block, may_lack ? 0 : 1, MAX_HEADS, n_kv));

    int hd_k = (int)(m->n_embd / n_head[0]), hd_v;
    float scale = 0;
    PF_TRY(key_int(l, "attention.key_length", false, 1, 4096, &hd_k));
    hd_v = hd_k;
    PF_TRY(key_int(l, "attention.value_length", false, 1, 4096, &hd_v));
    if (m->arch->attention_scale)
        PF_TRY(key_real(l, "attention.scale", false, false, &scale));
    for (int il = 0; il < m->n_layer; il++) {
        if (m->layers[il].mixer != PF_MIXER_ATTENTION)
            continue;
        if (n_kv[il] == 0 || n_head[il] % n_kv[il])
            PF_FAIL(PF_EFORMAT, "layer %d has %lld heads, not a multiple of its %lld KV heads, in %s", il,
                    (long long)n_head[il], (long long)n_kv[il], pf_gguf_path(l->g));
        m->layers[il].attn = (struct pf_attention){
            .n_head = (int)n_head[il], .n_kv_head = (int)n_kv[il], .hd_k = hd_k, .hd_v = hd_v,
            .rotate = !m->arch->no_rope && !is_last_of(il, m->arch->still_period),
            .scale = m->arch->unscaled ? 1 : scale != 0 ? scale : 1.0f / sqrtf((float)hd_k), .kv_layer = il,
        };
    }
    *out_hd_k = hd_k;
    PF_TRY(read_index_runs(l, hd_k));
    return read_windows(l);
}

/* Text has one position where images have several (time, height, width, a fourth that stays 0). Pairs of the first
 * three rotate as usual, a pair of the fourth does not. */
static pf_status read_sections(const struct pf_loader *l, int n_rot, bool still[PF_ROPE_MAX_PAIRS])
{
    int64_t s[4] = { 0 };
    char name[NAME_BYTES];
    bool found = false;
    if (l->m->arch->rope_sections == PF_SECTIONS_NONE)
        return PF_OK;
    PF_TRY(pf_gguf_ints_opt(l->g, key(l, name, "rope.dimension_sections"), 4, 0, n_rot, s, &found));
    int64_t sum = s[0] + s[1] + s[2] + s[3];
    for (int64_t i = 0; found && sum > 0 && i < n_rot / 2 && i < PF_ROPE_MAX_PAIRS; i++) {
        int64_t at = i % sum;
        still[i] = l->m->arch->rope_sections == PF_SECTIONS_BLOCKS ? at >= sum - s[3] : at >= 3 * s[at % 3];
    }
    return PF_OK;
}

/* DeepSeek's YaRN scales the logits instead of what rotates, Mistral's what rotates by a ratio. */
static pf_status move_magnitude(const struct pf_loader *l, struct pf_rope_params *p)
{
    float log_mul = 0;
    PF_TRY(key_real(l, "rope.scaling.yarn_log_multiplier", false, false, &log_mul));
    if (log_mul == 0)
        return PF_OK;
    p->plain_mag = true;
    log_mul *= l->m->arch->mla ? 1 : 0.1f;            /* in these files, ten times as large */
    float mag = p->factor > 1 ? 1 + log_mul * logf(p->factor) : 1;
    if (l->m->arch->yarn_ratio && p->factor > 1) {
        float plain = 1 + 0.1f * logf(p->factor);
        p->attn_factor *= plain / mag;
        mag = plain;
    }
    for (int il = 0; l->m->arch->mla && il < l->m->n_layer; il++)
        l->m->layers[il].attn.scale *= mag * mag;
    return PF_OK;
}

/* How many dimensions rotate in layers with a window. */
static pf_status read_near_rotation(struct pf_loader *l)
{
    int *n_rot = &l->near_rope.n_rot;
    char name[NAME_BYTES];
    PF_TRY(key_int(l, "rope.dimension_count_swa", false, 2, MAX_ROTATED, n_rot));
    for (int il = 0; il < l->m->n_layer; il++)
        if (l->m->layers[il].attn.window && (*n_rot % 2 || *n_rot > l->m->layers[il].attn.hd_k))
            PF_FAIL(PF_EFORMAT, "key %s is %d, which does not suit heads of %d, in %s",
                    key(l, name, "rope.dimension_count_swa"), *n_rot, l->m->layers[il].attn.hd_k, pf_gguf_path(l->g));
    return PF_OK;
}

static pf_status read_rope(struct pf_loader *l, int hd_k, struct pf_rope_params *out)
{
    struct pf_model *m = l->m;
    int n_rot = hd_k, n_ctx_orig = m->n_ctx_train;
    struct pf_rope_params p = { .base = 10000, .attn_factor = 1, .beta_fast = 32, .beta_slow = 1 };
    struct pf_str scaling = { "linear", 6 };
    char name[NAME_BYTES];
    if (m->arch->no_rope) {
        *out = l->near_rope = (struct pf_rope_params){ .base = p.base, .attn_factor = 1 };
        return PF_OK;
    }
    PF_TRY(key_int(l, "rope.dimension_count", false, 2, MAX_ROTATED, &n_rot));
    if (n_rot % 2 || n_rot > hd_k || (m->arch->rope_whole_head && n_rot != hd_k) ||
        (m->arch->half_rope && n_rot % 4))
        PF_FAIL(PF_EFORMAT, "key %s is %d, which does not suit heads of %d, in %s",
                key(l, name, "rope.dimension_count"), n_rot, hd_k, pf_gguf_path(l->g));
    PF_TRY(key_real(l, "rope.freq_base", false, true, &p.base));
    PF_TRY(key_real(l, "rope.scale_linear", false, false, &p.factor));
    PF_TRY(key_real(l, "rope.scaling.factor", false, false, &p.factor));
    PF_TRY(key_real(l, "rope.scaling.attn_factor", false, true, &p.attn_factor));
    PF_TRY(key_int(l, "rope.scaling.original_context_length", false, 1, INT_MAX, &n_ctx_orig));
    if (m->arch->temper)
        PF_TRY(read_temper(l, n_ctx_orig));
    PF_TRY(pf_gguf_str_opt(l->g, key(l, name, "rope.scaling.type"), &scaling));
    if (scaling.n == 4 && memcmp(scaling.p, "none", 4) == 0)
        p.factor = 0;
    else if (scaling.n == 4 && memcmp(scaling.p, "yarn", 4) == 0)
        p.yarn = true;
    else if (m->arch->long_rope && scaling.n == 8 && memcmp(scaling.p, "longrope", 8) == 0)
        p.factor = 0;                     /* whose divisors bind.c reads */
    else if (scaling.n != 6 || memcmp(scaling.p, "linear", 6) != 0)
        PF_FAIL(PF_EUNSUPPORTED, "key %s is \"%s\"; none, linear and yarn are supported, in %s", name,
                pf_gguf_quote(scaling).s, pf_gguf_path(l->g));
    if (m->arch->yarn_betas) {
        PF_TRY(key_real(l, "rope.scaling.yarn_beta_fast", false, true, &p.beta_fast));
        PF_TRY(key_real(l, "rope.scaling.yarn_beta_slow", false, true, &p.beta_slow));
    }
    if ((m->arch->mla || m->arch->yarn_ratio) && p.yarn)
        PF_TRY(move_magnitude(l, &p));
    if (m->arch->rope_switch) {
        bool rotate = true;
        PF_TRY(key_bool(l, "rope.scaling.finetuned", &rotate));
        for (int il = 0; il < m->n_layer; il++)
            m->layers[il].attn.rotate = rotate;
    }
    if (m->arch->compressed) {
        PF_TRY(key_real(l, "attention.compress_rope_freq_base", true, true, &l->far_base));
        p.plain_mag = true;
        p.attn_factor = 1;
    }
    PF_TRY(read_sections(l, n_rot, p.still));
    p.n_rot = m->arch->half_rope ? n_rot / 2 : n_rot;
    p.n_ctx_orig = n_ctx_orig;
    *out = p;
    l->near_rope = p;
    l->near_rope.n_rot = n_rot;
    l->near_rope.base = 10000;
    if (m->arch->window == PF_WINDOW_BY_LAYER)
        PF_TRY(key_real(l, "rope.freq_base_swa", false, true, &l->near_rope.base));
    return m->arch->near_heads ? read_near_rotation(l) : PF_OK;
}

/* ---- The whole model --------------------------------------------------------------------------------------------- */

/* How many experts the layers pick and how wide these are: scalars or an entry for each layer. */
static pf_status read_widths(const struct pf_loader *l)
{
    struct pf_model *m = l->m;
    int64_t used[MAX_LAYERS], n_ff[MAX_LAYERS] = { 0 }, width[MAX_LAYERS];
    bool ff_is_width = m->arch->expert_width == PF_WIDTH_FF, by_key = m->arch->expert_width == PF_WIDTH_KEY;
    PF_TRY(key_layers(l, "expert_used_count", true, 1, m->n_expert < MAX_PICKS ? m->n_expert : MAX_PICKS, used));
    PF_TRY(key_layers(l, "feed_forward_length", ff_is_width, 0, MAX_DIM, n_ff));
    for (int il = 0; il < l->n_block; il++)
        width[il] = m->arch->expert_width == PF_WIDTH_FF_PER_PICK ? n_ff[il] / used[il] : n_ff[il];
    PF_TRY(key_layers(l, "expert_feed_forward_length", by_key, m->arch->split_layers ? 0 : 1, MAX_DIM, width));
    for (int il = 0; il < m->n_layer; il++) {
        struct pf_moe *moe = &m->layers[il].moe;
        if (!m->layers[il].has_ffn)
            continue;
        moe->n_ff = (int)width[il];
        moe->routing.n_used = (int)used[il];
        m->n_ff = n_ff[il] > m->n_ff ? (int)n_ff[il] : m->n_ff;
        m->n_used = moe->routing.n_used > m->n_used ? moe->routing.n_used : m->n_used;
        m->n_ff_expert = moe->n_ff > m->n_ff_expert ? moe->n_ff : m->n_ff_expert;
        if (moe->n_ff == 0) {
            char name[NAME_BYTES];
            PF_FAIL(PF_EFORMAT, "key %s is missing from %s", key(l, name, "expert_feed_forward_length"),
                    pf_gguf_path(l->g));
        }
    }
    for (int il = 0; il < m->n_layer; il++)
        if (m->layers[il].has_ffn)
            m->uneven |= m->layers[il].moe.n_ff != m->n_ff_expert || m->layers[il].moe.routing.n_used != m->n_used;
    return PF_OK;
}

/* Widths of dense layers, which bind.c sees in their tensors; n_ff is that of the widest. */
static pf_status read_layer_widths(const struct pf_loader *l)
{
    int64_t n_ff[MAX_LAYERS] = { 0 };
    PF_TRY(key_ints(l, "feed_forward_length", l->n_block, 1, MAX_DIM, n_ff));
    for (int i = 0; i < l->n_block; i++)
        l->m->n_ff = n_ff[i] > l->m->n_ff ? (int)n_ff[i] : l->m->n_ff;
    return PF_OK;
}

static pf_status read_experts(const struct pf_loader *l)
{
    struct pf_model *m = l->m;
    bool must = m->arch->dense == PF_NEVER;
    m->n_expert_in = m->n_embd;
    if (m->arch->dense != PF_REQUIRED)
        PF_TRY(key_int(l, "expert_count", must, must, MAX_EXPERTS, &m->n_expert));
    if (m->n_expert == 0 && m->arch->layer_parts)
        return read_layer_widths(l);
    if (m->n_expert == 0)
        return key_int(l, "feed_forward_length", true, 1, MAX_DIM, &m->n_ff);
    if (m->arch->latent_experts) {
        int n_latent = 0;
        PF_TRY(key_int(l, "moe_latent_size", false, 0, MAX_DIM, &n_latent));
        m->n_expert_in = n_latent ? n_latent : m->n_embd;
    }
    return read_widths(l);
}

static pf_status read_gating(const struct pf_loader *l, enum pf_gating *out)
{
    char name[NAME_BYTES];
    int func = 0;
    PF_TRY(key_int(l, "expert_gating_func", false, 0, INT_MAX, &func));
    if (func > 2 && func != 4)
        PF_FAIL(PF_EUNSUPPORTED,
                "key %s is %d; 1 (softmax), 2 (sigmoid) and 4 (square root of softplus) are supported, in %s",
                key(l, name, "expert_gating_func"), func, pf_gguf_path(l->g));
    if (func != 0)
        *out = func == 1 ? PF_GATE_SOFTMAX : func == 2 ? PF_GATE_SIGMOID : PF_GATE_SQRT_SOFTPLUS;
    else if (l->m->arch->mla && (l->n_block == 47 || l->n_block == 48))
        *out = PF_GATE_SIGMOID;           /* GLM-4.7-Flash, whose first files do not say */
    return PF_OK;
}

/* The routing rules, which all layers share. */
static pf_status read_routing(const struct pf_loader *l)
{
    struct pf_model *m = l->m;
    struct pf_routing r = { .n_expert = m->n_expert, .gating = m->arch->gating,
                            .norm_weights = m->arch->norm_weights, .weight_scale = 1 };
    if (m->arch->router_keys) {
        PF_TRY(read_gating(l, &r.gating));
        PF_TRY(key_bool(l, "expert_weights_norm", &r.norm_weights));
        PF_TRY(key_real(l, "expert_weights_scale", false, false, &r.weight_scale));
        PF_TRY(key_int(l, "expert_group_count", false, 0, MAX_PICKS, &r.n_group));
        PF_TRY(key_int(l, "expert_group_used_count", r.n_group > 1, 0, MAX_PICKS, &r.n_group_used));
    }
    if (r.weight_scale == 0)
        r.weight_scale = 1;
    if (r.n_group > 1 && (m->n_expert % r.n_group || r.n_group_used < 1 || r.n_group_used > r.n_group ||
                          m->n_expert / r.n_group * r.n_group_used < m->n_used))
        PF_FAIL(PF_EFORMAT, "%d experts in %d groups, of which %d may be used, do not give %d picks, in %s",
                m->n_expert, r.n_group, r.n_group_used, m->n_used, pf_gguf_path(l->g));
    for (int il = 0; il < m->n_layer; il++) {
        r.n_used = m->layers[il].moe.routing.n_used;
        m->layers[il].moe.routing = r;
    }
    return PF_OK;
}

/* How far the experts' gates and ups may go; a limit this small is none. */
static pf_status read_limits(const struct pf_loader *l)
{
    static const char routed[] = "swiglu_clamp_exp", shared[] = "swiglu_clamp_shexp";
    static const float none = 1e-6f;
    float limit[MAX_LAYERS] = { 0 };
    char name[NAME_BYTES];
    struct pf_model *m = l->m;
    if (!m->arch->limits)
        return PF_OK;
    PF_TRY(pf_gguf_reals_opt(l->g, key(l, name, routed), n_entries(l, routed), limit));
    for (int il = 0; il < m->n_layer; il++)
        m->layers[il].moe.act.limit = limit[il] > none ? limit[il] : 0;
    if (m->arch->act == PF_ACT_SWIGLU_CAPPED)            /* the others' are not those of shared experts */
        memset(limit, 0, sizeof limit);
    PF_TRY(pf_gguf_reals_opt(l->g, key(l, name, shared), n_entries(l, shared), limit));
    for (int il = 0; il < m->n_layer; il++)
        m->layers[il].dense.act.limit = m->layers[il].moe.shared.act.limit = limit[il] > none ? limit[il] : 0;
    return PF_OK;
}

/* Whether layer il has a router. */
static bool has_router(const struct pf_loader *l, int il)
{
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "blk.%d.ffn_gate_inp.weight", il);
    return pf_gguf_tensor(l->g, name) != NULL;
}

/* Which layers have experts. */
static pf_status read_layout(const struct pf_loader *l)
{
    struct pf_model *m = l->m;
    int n_dense = 0, step = 1, n_hash = 0;
    if (m->arch->hash_layers)
        PF_TRY(key_int(l, "hash_layer_count", true, 0, MAX_LAYERS, &n_hash));
    if (m->arch->leading_dense)
        PF_TRY(key_int(l, "leading_dense_block_count", m->arch->leading_dense == PF_REQUIRED, 0, MAX_LAYERS, &n_dense));
    if (m->arch->interleave)
        PF_TRY(key_int(l, "interleave_moe_layer_step", m->arch->interleave == PF_REQUIRED, 1, MAX_LAYERS, &step));
    for (int il = 0; il < m->n_layer; il++) {
        m->layers[il].is_moe = m->layers[il].has_ffn && m->n_expert > 0 && il >= n_dense && (il + 1) % step == 0 &&
                              (!m->arch->dense_by_tensor || has_router(l, il));
        m->layers[il].moe.ordinal = m->n_moe;
        m->layers[il].moe.by_token = il < n_hash;
        m->n_moe += m->layers[il].is_moe;
    }
    for (int il = 0; il < m->n_layer; il++)
        if (m->layers[il].has_ffn && !m->layers[il].is_moe && m->n_ff == 0) {
            char name[NAME_BYTES];
            PF_FAIL(PF_EFORMAT, "key %s is missing from %s", key(l, name, "feed_forward_length"), pf_gguf_path(l->g));
        }
    return PF_OK;
}

/* Granite's: of the embedding, of what a block adds, and (a divisor) of the logits. bind.c puts the first and last into
 * the weights they belong to. */
static pf_status read_multipliers(struct pf_loader *l)
{
    l->m->residual_scale = l->embedding_scale = l->logit_scale = l->value_scale = 1;
    if (l->m->arch->embed_root)
        l->embedding_scale = sqrtf((float)l->m->n_embd);
    if (l->m->arch->value_scale)
        PF_TRY(key_real(l, "attention.value_scale", false, true, &l->value_scale));
    if (!l->m->arch->multipliers)
        return PF_OK;
    PF_TRY(key_real(l, "embedding_scale", false, true, &l->embedding_scale));
    PF_TRY(key_real(l, "residual_scale", false, true, &l->m->residual_scale));
    return key_real(l, "logit_scale", false, true, &l->logit_scale);
}

/* Some files count layers that guess ahead and do not have them. */
static bool has_nextn(const struct pf_loader *l, int first)
{
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "blk.%d.nextn.eh_proj.weight", first);
    return pf_gguf_tensor(l->g, name) != NULL;
}

static pf_status read_sizes(const struct pf_loader *l, int *n_block)
{
    struct pf_model *m = l->m;
    int n_nextn = 0;
    PF_TRY(key_int(l, "block_count", true, 1, MAX_LAYERS, n_block));
    PF_TRY(key_int(l, "nextn_predict_layers", false, 0, *n_block - 1, &n_nextn));
    if (m->arch->compressed && !has_nextn(l, *n_block - n_nextn))
        n_nextn = 0;
    m->n_layer = *n_block - n_nextn;
    PF_TRY(key_int(l, "embedding_length", true, 1, MAX_DIM, &m->n_embd));
    PF_TRY(key_int(l, "context_length", true, 1, INT_MAX, &m->n_ctx_train));
    PF_TRY(key_real(l, "attention.layer_norm_epsilon", false, false, &m->eps));       /* where the other is absent */
    return key_real(l, "attention.layer_norm_rms_epsilon", m->eps == 0, true, &m->eps);
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
        PF_TRY(check_size(l, 0, "a rotated part", n_rot, MAX_ROTATED));
    for (int il = 0; il < m->n_layer; il++) {
        const struct pf_attention *a = &m->layers[il].attn;
        if (m->layers[il].n_state)
            PF_TRY(check_size(l, il, "a recurrent state", (int64_t)m->layers[il].n_state, MAX_STATE));
        if (a->n_head == 0)
            continue;
        PF_TRY(check_size(l, il, "heads with keys", a->hd_k, MAX_HEAD_DIM));
        PF_TRY(check_size(l, il, "heads with values", a->hd_v, MAX_HEAD_DIM));
        PF_TRY(check_size(l, il, "all queries", (int64_t)a->n_head * a->hd_k, MAX_DIM));
        PF_TRY(check_size(l, il, "all values", (int64_t)a->n_head * a->hd_v, MAX_DIM));
    }
    if (m->arch->mla) {
        int64_t n_head = m->mla.n_head;
        PF_TRY(check_size(l, 0, "all queries", n_head * (m->mla.n_nope + m->mla.n_rope), MAX_DIM));
        PF_TRY(check_size(l, 0, "all values", n_head * m->mla.n_v, MAX_DIM));
    }
    if (m->arch->compressed)
        PF_TRY(check_size(l, 0, "all groups of heads", (int64_t)m->compressed.n_group * m->compressed.n_group_out,
                          MAX_DIM));
    return m->n_expert ? check_size(l, 0, "experts", m->n_ff_expert, MAX_DIM) : PF_OK;
}

static pf_status read_keys(struct pf_loader *l)
{
    struct pf_model *m = l->m;
    int hd_k = 0;
    PF_TRY(read_sizes(l, &l->n_block));
    m->layers = pf_alloc_array(PF_MEM_MODEL, (size_t)m->n_layer, sizeof *m->layers);
    if (!m->layers)
        PF_FAIL(PF_ENOMEM, "no memory for the %d layers of %s", m->n_layer, pf_gguf_path(l->g));
    PF_TRY(read_mixers(l));
    PF_TRY(read_delta(l));
    PF_TRY(read_experts(l));
    PF_TRY(m->arch->mla          ? read_mla(l)
           : m->arch->compressed ? read_compressed(l)
                                 : read_attention(l, l->n_block, &hd_k));
    if (m->arch->index_means)
        PF_TRY(read_index_means(l, hd_k));
    if (m->arch->layer_parts)
        PF_TRY(read_layer_parts(l));
    PF_TRY(read_softcap(l));
    PF_TRY(read_streams(l));
    PF_TRY(read_ngrams(l));
    lay_out_state(m);
    PF_TRY(read_routing(l));
    PF_TRY(read_limits(l));
    PF_TRY(read_layout(l));
    PF_TRY(read_multipliers(l));
    PF_TRY(read_rope(l, m->arch->mla ? m->mla.n_rope : m->arch->compressed ? m->compressed.n_rot : hd_k, &l->rope));
    return check_sizes(l, l->rope.n_rot);
}

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
    l.seen = pf_alloc(PF_MEM_MODEL, pf_gguf_n_tensors(m->file));
    if (!l.seen)
        PF_FAIL(PF_ENOMEM, "no memory to bind the tensors of %s", pf_gguf_path(m->file));
    pf_status st = read_keys(&l);
    if (st == PF_OK)
        st = pf_bind_tensors(&l);
    pf_free(l.seen);
    return st;
}

bool pf_model_gathers(const struct pf_model *m, const struct pf_tensor *t)
{
    return m->gather.table.data && t->data == m->gather.table.data;
}

int pf_tensor_layer(const struct pf_tensor *t)
{
    char name[16];
    int il;
    snprintf(name, sizeof name, "%.*s", (int)t->name.n, t->name.p);
    return sscanf(name, "blk.%d.", &il) == 1 ? il : -1;
}

void pf_expert_bytes(const struct pf_model *m, int il, uint64_t bytes[3])
{
    const struct pf_moe *moe = &m->layers[il].moe;
    const struct pf_expert_weight *w[] = { &moe->gate, &moe->up, &moe->down };
    for (int i = 0; i < 3; i++)
        bytes[i] = pf_expert_weight_bytes(w[i]);
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
