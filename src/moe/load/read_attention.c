/* Keys of plain attention: heads and their sizes, windows, and queries that grow with their position. */
#include <limits.h>
#include <math.h>
#include <string.h>

#include "moe/load/keys.h"
#include "moe/load/read.h"

static pf_status read_near_heads(const struct pf_loader *l)
{
    int hd_k = 0, hd_v = 0;
    PF_TRY(pf_key_int(l, "attention.key_length_swa", true, 1, 4096, &hd_k));
    PF_TRY(pf_key_int(l, "attention.value_length_swa", true, 1, 4096, &hd_v));
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

/* Windows where the pattern says so, layer by layer. */
static pf_status read_layer_windows(const struct pf_loader *l)
{
    static const char suffix[] = "attention.sliding_window_pattern";
    struct pf_model *m = l->m;
    int64_t windowed[PF_MAX_LAYERS];
    char name[PF_KEY_BYTES];
    int window = 0;
    bool found;
    PF_TRY(pf_key_int(l, "attention.sliding_window", true, 1, INT_MAX, &window));
    PF_TRY(pf_gguf_ints_opt(l->g, pf_key_name(l, name, suffix), pf_key_entries(l, suffix), 0, 1, windowed, &found));
    if (!found)
        PF_FAIL(PF_EFORMAT, "key %s is missing from %s", name, pf_gguf_path(l->g));
    for (int il = 0; il < m->n_layer; il++) {
        m->layers[il].attn.window = windowed[il] ? window : 0;
        m->layers[il].attn.near_rope = windowed[il] && !m->arch->still_far;
        m->layers[il].attn.rotate &= windowed[il] || !m->arch->still_far;
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
    PF_TRY(pf_key_int(l, "attention.sliding_window", sliding, sliding, INT_MAX, &window));
    PF_TRY(pf_key_int(l, "attention.sliding_window_pattern", false, 1, PF_MAX_LAYERS, &period));
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

pf_status pf_read_temper(const struct pf_loader *l, int every)
{
    struct pf_model *m = l->m;
    float scale = 0;
    PF_TRY(pf_key_real(l, "attention.temperature_scale", false, false, &scale));
    if (every == 0 || scale == 0)
        return PF_OK;
    m->temper = (struct pf_temper){ .scale = scale, .every = every };
    for (int il = 0; il < m->n_layer; il++)
        m->layers[il].attn.temper = true;
    return PF_OK;
}

/* Whether layer il is the last of a period of n; n 0: there are no periods. */
static bool is_last_of(int il, int n)
{
    return n > 0 && (il + 1) % n == 0;
}

/* Head counts and sizes of every layer, from keys that may be scalars or arrays. */
pf_status pf_read_attention(const struct pf_loader *l, int n_block, int *out_hd_k)
{
    struct pf_model *m = l->m;
    int64_t n_head[PF_MAX_LAYERS], n_kv[PF_MAX_LAYERS];
    for (int i = 0; i < n_block; i++)
        n_head[i] = 0;
    PF_TRY(pf_key_ints(l, "attention.head_count", n_block, 1, PF_MAX_HEADS, n_head));
    if (n_head[0] == 0) {
        char name[PF_KEY_BYTES];
        PF_FAIL(PF_EFORMAT, "key %s is missing from %s", pf_key_name(l, name, "attention.head_count"),
                pf_gguf_path(l->g));
    }
    memcpy(n_kv, n_head, (size_t)n_block * sizeof *n_kv);
    bool may_lack = m->arch->delta || m->arch->without_kv != PF_MIXER_ATTENTION;
    PF_TRY(pf_key_ints(l, "attention.head_count_kv", n_block, may_lack ? 0 : 1, PF_MAX_HEADS, n_kv));

    int hd_k = (int)(m->n_embd / n_head[0]), hd_v;
    float scale = 0;
    PF_TRY(pf_key_int(l, "attention.key_length", false, 1, 4096, &hd_k));
    hd_v = hd_k;
    PF_TRY(pf_key_int(l, "attention.value_length", false, 1, 4096, &hd_v));
    if (m->arch->attention_scale)
        PF_TRY(pf_key_real(l, "attention.scale", false, false, &scale));
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
    PF_TRY(pf_read_index_runs(l, hd_k));
    return read_windows(l);
}
