/* Tensors of feed-forward: experts in each of the three forms that files have, routers, shared experts, dense layers.
 *
 *     ffn_gate_exps {n_in, n_ff, E}        one tensor for all experts
 *     ffn_gate_up_exps {n_in, 2 n_ff, E}   one for gate and up
 *     ffn_gate.0, ffn_gate.1, ..           one for each expert */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/pf_mem.h"
#include "moe/load/bind.h"
#include "moe/load/tensors.h"
#include "moe/model/lora.h"

enum { MAX_SHARED = 1 << 24 };

/* One expert tensor {n_in, n_rows, n_expert}: where each expert's rows [first_row, first_row + n_out) begin. */
static pf_status slices(const struct pf_loader *l, const struct pf_tensor *t, int64_t first_row, int64_t n_out,
                        struct pf_expert_weight *w)
{
    const uint8_t **data = pf_alloc_array(PF_MEM_MODEL, (size_t)l->m->n_expert, sizeof *data);
    PF_TRY(pf_model_own(l->m, data));
    PF_TRY(pf_tensor_check_weight(l, t));
    for (int e = 0; e < l->m->n_expert; e++)
        data[e] = t->data + ((uint64_t)e * (uint64_t)t->ne[1] + (uint64_t)first_row) * t->row_bytes;
    *w = (struct pf_expert_weight){ .data = data, .type = t->type, .n_in = (int)t->ne[0], .n_out = (int)n_out,
                                    .row_bytes = t->row_bytes };
    return PF_OK;
}

static pf_status stacked(const struct pf_loader *l, int il, const char *part, int64_t n_in, int64_t n_out,
                         struct pf_expert_weight *w)
{
    char name[PF_TENSOR_BYTES];
    snprintf(name, sizeof name, "blk.%d.ffn_%s_exps.weight", il, part);
    const struct pf_tensor *t = pf_tensor_find(l, name);
    if (!t)
        return pf_tensor_missing(l, name);
    PF_TRY(pf_tensor_check_shape(l, t, n_in, n_out, l->m->n_expert));
    PF_TRY(slices(l, t, 0, n_out, w));
    PF_TRY(pf_lora_bind_experts(l->m, name, n_in, n_out, &w->lora));
    snprintf(name, sizeof name, "blk.%d.ffn_%s_exps.bias", il, part);
    PF_TRY(pf_bind_vector(l, l->m->arch->expert_bias, name, n_out, l->m->n_expert, &w->bias));
    snprintf(name, sizeof name, "blk.%d.ffn_%s_exps.scale", il, part);
    PF_TRY(pf_bind_vector(l, PF_OPTIONAL, name, l->m->n_expert, 1, &w->scale));
    snprintf(name, sizeof name, "blk.%d.ffn_%s_exps.input_scale", il, part);
    (void)pf_tensor_find(l, name);
    return PF_OK;
}

/* Files of 2023: one tensor per expert, blk.N.ffn_gate.E.weight. *found is false when the first is not there. */
static pf_status one_by_one(const struct pf_loader *l, int il, const char *part, int64_t n_in, int64_t n_out,
                            struct pf_expert_weight *w, bool *found)
{
    const uint8_t **data = NULL;
    for (int e = 0; e < l->m->n_expert; e++) {
        char name[PF_TENSOR_BYTES];
        snprintf(name, sizeof name, "blk.%d.ffn_%s.%d.weight", il, part, e);
        const struct pf_tensor *t = pf_tensor_find(l, name);
        *found = t || e > 0;
        if (!t)
            return e > 0 ? pf_tensor_missing(l, name) : PF_OK;
        PF_TRY(pf_tensor_check_shape(l, t, n_in, n_out, 1));
        PF_TRY(pf_tensor_check_weight(l, t));
        if (e == 0) {
            data = pf_alloc_array(PF_MEM_MODEL, (size_t)l->m->n_expert, sizeof *data);
            PF_TRY(pf_model_own(l->m, data));
            *w = (struct pf_expert_weight){ .data = data, .type = t->type, .n_in = (int)n_in, .n_out = (int)n_out,
                                            .row_bytes = t->row_bytes };
        } else if (t->type != w->type) {
            return pf_tensor_wrong_type(l, t, pf_qtype_info(w->type)->name);
        }
        data[e] = t->data;
    }
    return PF_OK;
}

/* ffn_gate_up_exps: per expert the rows of gate, then the rows of up. */
static pf_status merged_gate_up(const struct pf_loader *l, int il, struct pf_moe *moe, bool *found)
{
    char name[PF_TENSOR_BYTES];
    int n_ff = moe->n_ff, n_in = l->m->n_expert_in;
    const float *bias = NULL, *scale = NULL;
    const struct pf_expert_lora *both;
    snprintf(name, sizeof name, "blk.%d.ffn_gate_up_exps.weight", il);
    const struct pf_tensor *t = pf_tensor_find(l, name);
    *found = t != NULL;
    if (!t)
        return PF_OK;
    PF_TRY(pf_tensor_check_shape(l, t, n_in, 2 * (int64_t)n_ff, l->m->n_expert));
    PF_TRY(slices(l, t, 0, n_ff, &moe->gate));
    PF_TRY(slices(l, t, n_ff, n_ff, &moe->up));
    PF_TRY(pf_lora_bind_experts(l->m, name, n_in, 2 * (int64_t)n_ff, &both));
    PF_TRY(pf_lora_expert_rows(l->m, both, 0, n_ff, &moe->gate.lora));
    PF_TRY(pf_lora_expert_rows(l->m, both, n_ff, n_ff, &moe->up.lora));
    snprintf(name, sizeof name, "blk.%d.ffn_gate_up_exps.scale", il);
    PF_TRY(pf_bind_vector(l, PF_OPTIONAL, name, l->m->n_expert, 1, &scale));
    moe->gate.scale = moe->up.scale = scale;
    snprintf(name, sizeof name, "blk.%d.ffn_gate_up_exps.bias", il);
    PF_TRY(pf_bind_vector(l, l->m->arch->expert_bias, name, 2 * (int64_t)n_ff, l->m->n_expert, &bias));
    if (!bias)
        return PF_OK;
    /* {2 n_ff, E} -> two packed {n_ff, E}, the form the experts' products take. */
    size_t n = (size_t)n_ff * (size_t)l->m->n_expert;
    float *split = pf_alloc_array(PF_MEM_MODEL, 2 * n, sizeof *split);
    PF_TRY(pf_model_own(l->m, split));
    for (int e = 0; e < l->m->n_expert; e++) {
        memcpy(split + (size_t)e * n_ff, bias + (size_t)e * 2 * n_ff, (size_t)n_ff * sizeof *split);
        memcpy(split + n + (size_t)e * n_ff, bias + ((size_t)e * 2 + 1) * n_ff, (size_t)n_ff * sizeof *split);
    }
    moe->gate.bias = split;
    moe->up.bias = split + n;
    return PF_OK;
}

static pf_status bind_experts(const struct pf_loader *l, int il, struct pf_moe *moe)
{
    const struct pf_model *m = l->m;
    int n_in = m->n_expert_in, n_ff = moe->n_ff;
    bool found;
    if (m->arch->ungated) {
        PF_TRY(stacked(l, il, "up", n_in, n_ff, &moe->gate));
        moe->up = moe->gate;
        return stacked(l, il, "down", n_ff, n_in, &moe->down);
    }
    PF_TRY(one_by_one(l, il, "gate", n_in, n_ff, &moe->gate, &found));
    if (found) {
        PF_TRY(one_by_one(l, il, "up", n_in, n_ff, &moe->up, &found));
        return one_by_one(l, il, "down", n_ff, n_in, &moe->down, &found);
    }
    PF_TRY(merged_gate_up(l, il, moe, &found));
    if (!found) {
        PF_TRY(stacked(l, il, "gate", n_in, n_ff, &moe->gate));
        PF_TRY(stacked(l, il, "up", n_in, n_ff, &moe->up));
    }
    return stacked(l, il, "down", n_ff, n_in, &moe->down);
}

/* ---- Feed-forward of a layer ------------------------------------------------------------------------------------- */

/* The number of rows of a tensor that may be absent: 0. */
static int64_t n_rows(const struct pf_loader *l, int il, const char *suffix)
{
    char name[PF_TENSOR_BYTES];
    snprintf(name, sizeof name, "blk.%d.%s.weight", il, suffix);
    const struct pf_tensor *t = pf_gguf_tensor(l->g, name);
    return t ? t->ne[1] : 0;
}

/* Keys name the width of the shared expert in four ways, tensors in one. */
static pf_status bind_shared(const struct pf_loader *l, int il, struct pf_moe *moe)
{
    const struct pf_model *m = l->m;
    const char *first = m->arch->ungated ? "ffn_up_shexp" : "ffn_gate_shexp";
    int64_t n_ff = n_rows(l, il, first);
    moe->shared.act.kind = m->arch->act;
    if (m->arch->shared == PF_NEVER || (m->arch->shared == PF_OPTIONAL && n_ff == 0))
        return PF_OK;
    if (n_ff > MAX_SHARED)
        PF_FAIL(PF_EFORMAT, "tensor blk.%d.%s.weight has %lld rows; %d are supported, in %s", il, first,
                (long long)n_ff, (int)MAX_SHARED, pf_gguf_path(l->g));
    moe->routing.weight_scale *= m->arch->shared_mean ? 0.5f : 1;
    PF_TRY(pf_layer_matrix(l, PF_REQUIRED, il, first, m->n_embd, n_ff, PF_NEVER, &moe->shared.gate));
    if (!m->arch->ungated)
        PF_TRY(pf_layer_matrix(l, PF_REQUIRED, il, "ffn_up_shexp", m->n_embd, n_ff, PF_NEVER, &moe->shared.up));
    PF_TRY(pf_layer_matrix(l, PF_REQUIRED, il, "ffn_down_shexp", n_ff, m->n_embd, PF_NEVER, &moe->shared.down));
    if (m->arch->shared_gate == PF_NEVER)
        return PF_OK;
    return pf_layer_matrix(l, m->arch->shared_gate, il, "ffn_gate_inp_shexp", m->n_embd, 1, PF_NEVER,
                           &moe->shared_gate);
}

/* The table of picks for each token. A file may hold any bytes, so each number is checked. */
static pf_status bind_table(const struct pf_loader *l, int il, struct pf_moe *moe)
{
    char name[PF_TENSOR_BYTES];
    snprintf(name, sizeof name, "blk.%d.ffn_gate_tid2eid.weight", il);
    const struct pf_tensor *t = pf_tensor_find(l, name);
    if (!t)
        return pf_tensor_missing(l, name);
    PF_TRY(pf_tensor_check_shape(l, t, l->m->n_used, l->m->n_vocab, 1));
    if (t->type != PF_I32)
        return pf_tensor_wrong_type(l, t, pf_qtype_info(PF_I32)->name);
    moe->table = (const int32_t *)(const void *)t->data;
    for (int64_t i = 0; i < (int64_t)l->m->n_used * l->m->n_vocab; i++)
        if (moe->table[i] < 0 || moe->table[i] >= l->m->n_expert)
            PF_FAIL(PF_EFORMAT, "tensor %s has expert %d for token %lld; there are %d, in %s", name, moe->table[i],
                    (long long)(i / l->m->n_used), l->m->n_expert, pf_gguf_path(l->g));
    return PF_OK;
}

pf_status pf_bind_dense(const struct pf_loader *l, int il, struct pf_dense_ffn *f)
{
    const struct pf_model *m = l->m;
    enum pf_need bias = m->arch->dense_bias;
    int64_t n_ff = m->arch->layer_parts ? n_rows(l, il, "ffn_gate") : m->n_ff;
    if (n_ff > MAX_SHARED)
        PF_FAIL(PF_EFORMAT, "tensor blk.%d.ffn_gate.weight has %lld rows; %d are supported, in %s", il,
                (long long)n_ff, (int)MAX_SHARED, pf_gguf_path(l->g));
    f->act.kind = m->arch->act;
    PF_TRY(pf_layer_matrix(l, PF_REQUIRED, il, "ffn_gate", m->n_embd, n_ff, bias, &f->gate));
    PF_TRY(pf_layer_matrix(l, PF_REQUIRED, il, "ffn_up", m->n_embd, n_ff, bias, &f->up));
    return pf_layer_matrix(l, PF_REQUIRED, il, "ffn_down", n_ff, m->n_embd, bias, &f->down);
}

/* A dense feed-forward beside the experts, in the place of a shared one, and the norms around them. The router's input
 * is x, normed and then multiplied by a tensor and by 1 / sqrt(n_embd). */
pf_status pf_bind_beside(const struct pf_loader *l, int il, struct pf_layer *layer)
{
    struct pf_moe *moe = &layer->moe;
    int n = l->m->n_embd;
    moe->router.scale /= sqrtf((float)n);
    moe->shared_norm = layer->ffn_norm;
    PF_TRY(pf_layer_vector(l, PF_REQUIRED, il, "ffn_gate_inp.scale", n, 1, &moe->router_norm));
    PF_TRY(pf_layer_vector(l, PF_REQUIRED, il, "pre_ffw_norm_2.weight", n, 1, &layer->ffn_norm));
    PF_TRY(pf_layer_vector(l, PF_REQUIRED, il, "post_ffw_norm_1.weight", n, 1, &moe->shared_post));
    PF_TRY(pf_layer_vector(l, PF_REQUIRED, il, "post_ffw_norm_2.weight", n, 1, &moe->experts_post));
    return pf_bind_dense(l, il, &moe->shared);
}

/* Some converters leave the suffix out. */
static pf_status bind_select_bias(const struct pf_loader *l, int il, struct pf_moe *moe)
{
    int n = l->m->n_expert;
    enum pf_need need = l->m->arch->select_bias;
    if (need != PF_NEVER)
        PF_TRY(pf_layer_vector(l, PF_OPTIONAL, il, "exp_probs_b", n, 1, &moe->select_bias));
    return moe->select_bias ? PF_OK : pf_layer_vector(l, need, il, "exp_probs_b.bias", n, 1, &moe->select_bias);
}

pf_status pf_bind_moe(const struct pf_loader *l, int il, struct pf_moe *moe)
{
    const struct pf_model *m = l->m;
    enum pf_need bias = m->arch->router_bias;
    moe->act.kind = m->arch->act;
    PF_TRY(pf_layer_matrix(l, PF_REQUIRED, il, "ffn_gate_inp", m->n_embd, m->n_expert, bias, &moe->router));
    if (moe->by_token)
        PF_TRY(bind_table(l, il, moe));
    else
        PF_TRY(bind_select_bias(l, il, moe));
    PF_TRY(bind_experts(l, il, moe));
    if (m->n_expert_in != m->n_embd) {
        PF_TRY(pf_layer_matrix(l, PF_REQUIRED, il, "ffn_latent_down", m->n_embd, m->n_expert_in, PF_NEVER,
                               &moe->latent_down));
        PF_TRY(pf_layer_matrix(l, PF_REQUIRED, il, "ffn_latent_up", m->n_expert_in, m->n_embd, PF_NEVER,
                               &moe->latent_up));
    }
    return bind_shared(l, il, moe);
}
