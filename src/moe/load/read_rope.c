/* Keys of rotation: how many dimensions, at which frequencies, and how these are stretched to longer contexts. */
#include <limits.h>
#include <math.h>
#include <string.h>

#include "moe/load/keys.h"
#include "moe/load/read.h"

/* Text has one position where images have several (time, height, width, a fourth that stays 0). Pairs of the first
 * three rotate as usual, a pair of the fourth does not. */
static pf_status read_sections(const struct pf_loader *l, int n_rot, bool still[PF_ROPE_MAX_PAIRS])
{
    int64_t s[4] = { 0 };
    char name[PF_KEY_BYTES];
    bool found = false;
    if (l->m->arch->rope_sections == PF_SECTIONS_NONE)
        return PF_OK;
    PF_TRY(pf_gguf_ints_opt(l->g, pf_key_name(l, name, "rope.dimension_sections"), 4, 0, n_rot, s, &found));
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
    PF_TRY(pf_key_real(l, "rope.scaling.yarn_log_multiplier", false, false, &log_mul));
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
    char name[PF_KEY_BYTES];
    PF_TRY(pf_key_int(l, "rope.dimension_count_swa", false, 2, PF_MAX_ROTATED, n_rot));
    for (int il = 0; il < l->m->n_layer; il++)
        if (l->m->layers[il].attn.window && (*n_rot % 2 || *n_rot > l->m->layers[il].attn.hd_k))
            PF_FAIL(PF_EFORMAT, "key %s is %d, which does not suit heads of %d, in %s",
                    pf_key_name(l, name, "rope.dimension_count_swa"), *n_rot, l->m->layers[il].attn.hd_k,
                    pf_gguf_path(l->g));
    return PF_OK;
}

/* How longer contexts than those of the training are reached. */
static pf_status read_scaling(const struct pf_loader *l, struct pf_rope_params *p)
{
    struct pf_str scaling = { "linear", 6 };
    char name[PF_KEY_BYTES];
    PF_TRY(pf_gguf_str_opt(l->g, pf_key_name(l, name, "rope.scaling.type"), &scaling));
    if (scaling.n == 4 && memcmp(scaling.p, "none", 4) == 0)
        p->factor = 0;
    else if (scaling.n == 4 && memcmp(scaling.p, "yarn", 4) == 0)
        p->yarn = true;
    else if (l->m->arch->long_rope && scaling.n == 8 && memcmp(scaling.p, "longrope", 8) == 0)
        p->factor = 0;                     /* whose divisors bind.c binds */
    else if (scaling.n != 6 || memcmp(scaling.p, "linear", 6) != 0)
        PF_FAIL(PF_EUNSUPPORTED, "key %s is \"%s\"; none, linear and yarn are supported, in %s", name,
                pf_gguf_quote(scaling).s, pf_gguf_path(l->g));
    return PF_OK;
}

/* The rotation of layers with a window, of which some architectures have their own. */
static pf_status set_near(struct pf_loader *l, const struct pf_rope_params *p, int n_rot)
{
    const struct pf_arch *arch = l->m->arch;
    l->near_rope = *p;
    l->near_rope.n_rot = n_rot;
    l->near_rope.base = 10000;
    if (arch->near_plain)
        l->near_rope = (struct pf_rope_params){ .base = p->base, .n_rot = n_rot, .attn_factor = 1 };
    if (arch->window == PF_WINDOW_BY_LAYER)
        PF_TRY(pf_key_real(l, "rope.freq_base_swa", false, true, &l->near_rope.base));
    return arch->near_heads ? read_near_rotation(l) : PF_OK;
}

pf_status pf_read_rope(struct pf_loader *l, int hd_k, struct pf_rope_params *out)
{
    struct pf_model *m = l->m;
    int n_rot = hd_k, n_ctx_orig = m->n_ctx_train;
    struct pf_rope_params p = { .base = 10000, .attn_factor = 1, .beta_fast = 32, .beta_slow = 1 };
    char name[PF_KEY_BYTES];
    if (m->arch->no_rope) {
        *out = l->near_rope = (struct pf_rope_params){ .base = p.base, .attn_factor = 1 };
        return PF_OK;
    }
    PF_TRY(pf_key_int(l, "rope.dimension_count", false, 2, PF_MAX_ROTATED, &n_rot));
    if (n_rot % 2 || n_rot > hd_k || (m->arch->rope_whole_head && n_rot != hd_k) ||
        (m->arch->half_rope && n_rot % 4))
        PF_FAIL(PF_EFORMAT, "key %s is %d, which does not suit heads of %d, in %s",
                pf_key_name(l, name, "rope.dimension_count"), n_rot, hd_k, pf_gguf_path(l->g));
    PF_TRY(pf_key_real(l, "rope.freq_base", false, true, &p.base));
    PF_TRY(pf_key_real(l, "rope.scale_linear", false, false, &p.factor));
    PF_TRY(pf_key_real(l, "rope.scaling.factor", false, false, &p.factor));
    PF_TRY(pf_key_real(l, "rope.scaling.attn_factor", false, true, &p.attn_factor));
    PF_TRY(pf_key_int(l, "rope.scaling.original_context_length", false, 1, INT_MAX, &n_ctx_orig));
    if (m->arch->temper)
        PF_TRY(pf_read_temper(l, n_ctx_orig));
    PF_TRY(read_scaling(l, &p));
    if (m->arch->yarn_betas) {
        PF_TRY(pf_key_real(l, "rope.scaling.yarn_beta_fast", false, true, &p.beta_fast));
        PF_TRY(pf_key_real(l, "rope.scaling.yarn_beta_slow", false, true, &p.beta_slow));
    }
    if ((m->arch->mla || m->arch->yarn_ratio) && p.yarn)
        PF_TRY(move_magnitude(l, &p));
    if (m->arch->rope_switch) {
        bool rotate = true;
        PF_TRY(pf_key_bool(l, "rope.scaling.finetuned", &rotate));
        for (int il = 0; il < m->n_layer; il++)
            m->layers[il].attn.rotate = rotate;
    }
    if (m->arch->compressed) {
        PF_TRY(pf_key_real(l, "attention.compress_rope_freq_base", true, true, &l->far_base));
        p.plain_mag = true;
        p.attn_factor = 1;
    }
    PF_TRY(read_sections(l, n_rot, p.still));
    p.n_rot = m->arch->half_rope ? n_rot / 2 : n_rot;
    p.n_ctx_orig = n_ctx_orig;
    *out = p;
    return set_near(l, &p, n_rot);
}
