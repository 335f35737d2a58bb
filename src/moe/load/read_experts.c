/* Keys of feed-forward: which layers have experts, how many and how wide these are, and how a router picks. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "moe/load/keys.h"
#include "moe/load/read.h"

enum { MAX_EXPERTS = 65535, MAX_PICKS = 512 };

/* How many experts the layers pick and how wide these are: scalars or an entry for each layer. */
static pf_status read_widths(const struct pf_loader *l)
{
    struct pf_model *m = l->m;
    int64_t used[PF_MAX_LAYERS], n_ff[PF_MAX_LAYERS] = { 0 }, width[PF_MAX_LAYERS];
    bool ff_is_width = m->arch->expert_width == PF_WIDTH_FF, by_key = m->arch->expert_width == PF_WIDTH_KEY;
    PF_TRY(pf_key_layers(l, "expert_used_count", true, 1, m->n_expert < MAX_PICKS ? m->n_expert : MAX_PICKS, used));
    PF_TRY(pf_key_layers(l, "feed_forward_length", ff_is_width, 0, PF_MAX_DIM, n_ff));
    for (int il = 0; il < l->n_block; il++)
        width[il] = m->arch->expert_width == PF_WIDTH_FF_PER_PICK ? n_ff[il] / used[il] : n_ff[il];
    PF_TRY(pf_key_layers(l, "expert_feed_forward_length", by_key, m->arch->split_layers ? 0 : 1, PF_MAX_DIM, width));
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
            char name[PF_KEY_BYTES];
            PF_FAIL(PF_EFORMAT, "key %s is missing from %s", pf_key_name(l, name, "expert_feed_forward_length"),
                    pf_gguf_path(l->g));
        }
    }
    for (int il = 0; il < m->n_layer; il++)
        if (m->layers[il].has_ffn)
            m->uneven |= m->layers[il].moe.n_ff != m->n_ff_expert || m->layers[il].moe.routing.n_used != m->n_used;
    return PF_OK;
}

/* Widths of dense layers, which bind_experts.c sees in their tensors; n_ff is that of the widest. */
static pf_status read_layer_widths(const struct pf_loader *l)
{
    int64_t n_ff[PF_MAX_LAYERS] = { 0 };
    PF_TRY(pf_key_ints(l, "feed_forward_length", l->n_block, 1, PF_MAX_DIM, n_ff));
    for (int i = 0; i < l->n_block; i++)
        l->m->n_ff = n_ff[i] > l->m->n_ff ? (int)n_ff[i] : l->m->n_ff;
    return PF_OK;
}

pf_status pf_read_experts(const struct pf_loader *l)
{
    struct pf_model *m = l->m;
    bool must = m->arch->dense == PF_NEVER;
    m->n_expert_in = m->n_embd;
    if (m->arch->dense != PF_REQUIRED)
        PF_TRY(pf_key_int(l, "expert_count", must, must, MAX_EXPERTS, &m->n_expert));
    if (m->n_expert == 0 && m->arch->layer_parts)
        return read_layer_widths(l);
    if (m->n_expert == 0)
        return pf_key_int(l, "feed_forward_length", true, 1, PF_MAX_DIM, &m->n_ff);
    if (m->arch->latent_experts) {
        int n_latent = 0;
        PF_TRY(pf_key_int(l, "moe_latent_size", false, 0, PF_MAX_DIM, &n_latent));
        m->n_expert_in = n_latent ? n_latent : m->n_embd;
    }
    return read_widths(l);
}

static pf_status read_gating(const struct pf_loader *l, enum pf_gating *out)
{
    char name[PF_KEY_BYTES];
    int func = 0;
    PF_TRY(pf_key_int(l, "expert_gating_func", false, 0, INT_MAX, &func));
    if (func > 2 && func != 4)
        PF_FAIL(PF_EUNSUPPORTED,
                "key %s is %d; 1 (softmax), 2 (sigmoid) and 4 (square root of softplus) are supported, in %s",
                pf_key_name(l, name, "expert_gating_func"), func, pf_gguf_path(l->g));
    if (func != 0)
        *out = func == 1 ? PF_GATE_SOFTMAX : func == 2 ? PF_GATE_SIGMOID : PF_GATE_SQRT_SOFTPLUS;
    else if (l->m->arch->mla && (l->n_block == 47 || l->n_block == 48))
        *out = PF_GATE_SIGMOID;           /* GLM-4.7-Flash, whose first files do not say */
    return PF_OK;
}

/* The routing rules, which all layers share. */
pf_status pf_read_routing(const struct pf_loader *l)
{
    struct pf_model *m = l->m;
    struct pf_routing r = { .n_expert = m->n_expert, .gating = m->arch->gating,
                            .norm_weights = m->arch->norm_weights, .weight_scale = 1 };
    if (m->arch->router_keys) {
        PF_TRY(read_gating(l, &r.gating));
        PF_TRY(pf_key_bool(l, "expert_weights_norm", &r.norm_weights));
        PF_TRY(pf_key_real(l, "expert_weights_scale", false, false, &r.weight_scale));
        PF_TRY(pf_key_int(l, "expert_group_count", false, 0, MAX_PICKS, &r.n_group));
        PF_TRY(pf_key_int(l, "expert_group_used_count", r.n_group > 1, 0, MAX_PICKS, &r.n_group_used));
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
pf_status pf_read_limits(const struct pf_loader *l)
{
    static const char routed[] = "swiglu_clamp_exp", shared[] = "swiglu_clamp_shexp";
    static const float none = 1e-6f;
    float limit[PF_MAX_LAYERS] = { 0 };
    char name[PF_KEY_BYTES];
    struct pf_model *m = l->m;
    if (!m->arch->limits)
        return PF_OK;
    PF_TRY(pf_gguf_reals_opt(l->g, pf_key_name(l, name, routed), pf_key_entries(l, routed), limit));
    for (int il = 0; il < m->n_layer; il++)
        m->layers[il].moe.act.limit = limit[il] > none ? limit[il] : 0;
    if (m->arch->act == PF_ACT_SWIGLU_CAPPED)            /* the others' are not those of shared experts */
        memset(limit, 0, sizeof limit);
    PF_TRY(pf_gguf_reals_opt(l->g, pf_key_name(l, name, shared), pf_key_entries(l, shared), limit));
    for (int il = 0; il < m->n_layer; il++)
        m->layers[il].dense.act.limit = m->layers[il].moe.shared.act.limit = limit[il] > none ? limit[il] : 0;
    return PF_OK;
}

/* Whether layer il has a router. */
static bool has_router(const struct pf_loader *l, int il)
{
    char name[PF_KEY_BYTES];
    snprintf(name, sizeof name, "blk.%d.ffn_gate_inp.weight", il);
    return pf_gguf_tensor(l->g, name) != NULL;
}

/* Which layers have experts. */
pf_status pf_read_layout(const struct pf_loader *l)
{
    struct pf_model *m = l->m;
    int n_dense = 0, step = 1, n_hash = 0;
    if (m->arch->hash_layers)
        PF_TRY(pf_key_int(l, "hash_layer_count", true, 0, PF_MAX_LAYERS, &n_hash));
    if (m->arch->leading_dense)
        PF_TRY(pf_key_int(l, "leading_dense_block_count", m->arch->leading_dense == PF_REQUIRED, 0, PF_MAX_LAYERS,
                          &n_dense));
    if (m->arch->interleave)
        PF_TRY(pf_key_int(l, "interleave_moe_layer_step", m->arch->interleave == PF_REQUIRED, 1, PF_MAX_LAYERS, &step));
    for (int il = 0; il < m->n_layer; il++) {
        m->layers[il].is_moe = m->layers[il].has_ffn && m->n_expert > 0 && il >= n_dense && (il + 1) % step == 0 &&
                              (!m->arch->dense_by_tensor || has_router(l, il));
        m->layers[il].attn.rotate |= m->arch->dense_rotates && il < n_dense;
        m->layers[il].moe.ordinal = m->n_moe;
        m->layers[il].moe.by_token = il < n_hash;
        m->n_moe += m->layers[il].is_moe;
    }
    for (int il = 0; il < m->n_layer; il++)
        if (m->layers[il].has_ffn && !m->layers[il].is_moe && m->n_ff == 0) {
            char name[PF_KEY_BYTES];
            PF_FAIL(PF_EFORMAT, "key %s is missing from %s", pf_key_name(l, name, "feed_forward_length"),
                    pf_gguf_path(l->g));
        }
    return PF_OK;
}
