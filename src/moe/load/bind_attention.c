/* Tensors of attention: plain, latent and compressed, with the indexers that choose what they see. */
#include <stdio.h>

#include "base/pf_mem.h"
#include "moe/load/bind.h"
#include "moe/load/tensors.h"

static pf_status bind_qkv(const struct pf_loader *l, int il, struct pf_attention *a)
{
    const struct pf_arch *arch = l->m->arch;
    int n_q = a->n_head * a->hd_k, n_k = a->n_kv_head * a->hd_k, n_v = a->n_kv_head * a->hd_v;
    struct pf_weight fused = { .data = NULL };
    if (!arch->gated_attention)
        PF_TRY(pf_layer_whole(l, PF_OPTIONAL, il, "attn_qkv", l->m->n_embd, n_q + n_k + n_v, arch->qkv_bias, &fused));
    if (fused.data) {
        PF_TRY(pf_layer_rows(l, il, &fused, 0, n_q, &a->q));
        PF_TRY(pf_layer_rows(l, il, &fused, n_q, n_k, &a->k));
        return pf_layer_rows(l, il, &fused, n_q + n_k, n_v, &a->v);
    }
    n_q *= arch->gated_attention ? 2 : 1;
    PF_TRY(pf_layer_matrix(l, PF_REQUIRED, il, "attn_q", l->m->n_embd, n_q, arch->qkv_bias, &a->q));
    if (a->kv_layer != il)
        return PF_OK;
    PF_TRY(pf_layer_matrix(l, PF_REQUIRED, il, "attn_k", l->m->n_embd, n_k, arch->qkv_bias, &a->k));
    enum pf_need v = arch->value_norm ? PF_OPTIONAL : PF_REQUIRED;
    return pf_layer_matrix(l, v, il, "attn_v", l->m->n_embd, n_v, arch->qkv_bias, &a->v);
}

pf_status pf_bind_attention(const struct pf_loader *l, int il, struct pf_attention *a)
{
    const struct pf_arch *arch = l->m->arch;
    PF_TRY(bind_qkv(l, il, a));
    PF_TRY(pf_layer_matrix(l, PF_REQUIRED, il, "attn_output", (int64_t)a->n_head * a->hd_v, l->m->n_embd,
                           arch->out_bias, &a->out));
    int64_t n_gate = arch->gate_elements ? (int64_t)a->n_head * a->hd_v : a->n_head;
    if (arch->head_gate)
        PF_TRY(pf_layer_matrix(l, arch->head_gate, il, "attn_gate", l->m->n_embd, n_gate, PF_NEVER, &a->gate));
    a->out.scale *= l->value_scale;
    int n_q = arch->norm_whole_row ? a->n_head : 1, n_k = arch->norm_whole_row ? a->n_kv_head : 1;
    PF_TRY(pf_layer_vector(l, arch->qk_norm, il, "attn_q_norm.weight", (int64_t)a->hd_k * n_q, 1, &a->q_norm));
    enum pf_need k_norm = a->q_norm && a->k.data ? PF_REQUIRED : PF_NEVER;
    PF_TRY(pf_layer_vector(l, k_norm, il, "attn_k_norm.weight", (int64_t)a->hd_k * n_k, 1, &a->k_norm));
    a->norm |= a->q_norm != NULL;
    return pf_layer_vector(l, arch->sinks, il, "attn_sinks.weight", a->n_head, 1, &a->sinks);
}

/* ---- Indexers ---------------------------------------------------------------------------------------------------- */

static pf_status bind_compressor(const struct pf_loader *l, int il, const char *prefix, struct pf_compressor *c)
{
    char name[PF_TENSOR_BYTES];
    int n_embd = l->m->n_embd, n = c->width * (1 + c->overlaps);
    snprintf(name, sizeof name, "%s_kv", prefix);
    PF_TRY(pf_layer_matrix(l, PF_REQUIRED, il, name, n_embd, n, PF_NEVER, &c->u));
    snprintf(name, sizeof name, "%s_gate", prefix);
    PF_TRY(pf_layer_matrix(l, PF_REQUIRED, il, name, n_embd, n, PF_NEVER, &c->gate));
    snprintf(name, sizeof name, "%s_ape.weight", prefix);
    PF_TRY(pf_layer_vector(l, PF_REQUIRED, il, name, n, c->ratio, &c->ape));
    snprintf(name, sizeof name, "%s_norm.weight", prefix);
    return pf_layer_vector(l, PF_REQUIRED, il, name, c->width, 1, &c->norm);
}

/* A key of a run of positions is made of their keys. */
static pf_status bind_pools(const struct pf_loader *l, int il, struct pf_indexer *x)
{
    int n_embd = l->m->n_embd;
    struct pf_compressor *c = &x->blocks;
    PF_TRY(pf_layer_matrix(l, PF_REQUIRED, il, "indexer.attn_k", n_embd, c->width, PF_NEVER, &c->u));
    PF_TRY(pf_layer_matrix(l, PF_REQUIRED, il, "indexer_compressor_gate", n_embd, c->width, PF_NEVER, &c->gate));
    return pf_layer_vector(l, PF_REQUIRED, il, "indexer_compressor_ape.weight", c->width, c->ratio, &c->ape);
}

pf_status pf_bind_key_indexer(const struct pf_loader *l, int il, struct pf_indexer *x)
{
    const struct pf_index_sizes *s = &l->m->index;
    int n_embd = l->m->n_embd;
    PF_TRY(pf_layer_matrix(l, PF_REQUIRED, il, "indexer.q_proj", n_embd, (int64_t)s->n_head * s->width, PF_NEVER,
                           &x->q));
    PF_TRY(pf_layer_matrix(l, PF_REQUIRED, il, "indexer.k_proj", n_embd, s->width, PF_NEVER, &x->k));
    PF_TRY(pf_layer_vector(l, PF_REQUIRED, il, "indexer.q_norm.weight", s->width, 1, &x->q_norm));
    return pf_layer_vector(l, PF_REQUIRED, il, "indexer.k_norm.weight", s->width, 1, &x->k_norm);
}

static pf_status bind_indexer(const struct pf_loader *l, int il, int n_q_latent, struct pf_indexer *x)
{
    const struct pf_index_sizes *s = &l->m->index;
    int n_embd = l->m->n_embd;
    PF_TRY(pf_layer_matrix(l, PF_REQUIRED, il, "indexer.attn_q_b", n_q_latent, (int64_t)s->n_head * s->width, PF_NEVER,
                           &x->q));
    PF_TRY(pf_layer_matrix(l, PF_REQUIRED, il, "indexer.proj", n_embd, s->n_head, PF_NEVER, &x->w));
    if (x->blocks.ratio && !l->m->arch->index_pools)
        return bind_compressor(l, il, pf_tensor_spelling(l, il, "indexer_compressor", "indexer.compress", "_kv.weight"),
                               &x->blocks);
    PF_TRY(l->m->arch->index_pools ? bind_pools(l, il, x)
           : pf_layer_matrix(l, PF_REQUIRED, il, "indexer.attn_k", n_embd, s->width, PF_NEVER, &x->k));
    PF_TRY(pf_layer_vector(l, PF_REQUIRED, il, "indexer.k_norm.weight", s->width, 1, &x->k_norm));
    return pf_layer_vector(l, PF_REQUIRED, il, "indexer.k_norm.bias", s->width, 1, &x->k_norm_bias);
}

/* ---- Latent attention -------------------------------------------------------------------------------------------- */

static void skip(const struct pf_loader *l, int il, const char *suffix)
{
    char name[PF_TENSOR_BYTES];
    snprintf(name, sizeof name, "blk.%d.%s.weight", il, suffix);
    (void)pf_tensor_find(l, name);
}

/* Rows of a weight as float32, to be freed with the model. */
static pf_status as_matrix(const struct pf_loader *l, const struct pf_weight *w, float **out)
{
    pf_backend *be = l->m->cpu;
    float *values = pf_alloc_array(PF_MEM_MODEL, (size_t)w->n_out * (size_t)w->n_in, sizeof *values);
    PF_TRY(pf_model_own(l->m, values));
    for (int32_t r = 0; r < w->n_out; r++)
        PF_TRY(be->ops->embed(be, w, &r, 1, values + (size_t)r * (size_t)w->n_in));
    *out = values;
    return PF_OK;
}

/* Files of 2024 have attn_kv_b {n_latent, n_head * (n_nope + n_v)}: per head the rows of keys, then those of values.
 * The latter serve as they are; the former are turned into {n_nope, n_latent}. */
static pf_status split_kv_b(const struct pf_loader *l, int il, int n_head, struct pf_mla *a)
{
    const struct pf_mla_sizes *s = &l->m->mla;
    int head_rows = s->n_nope + s->n_v, n_c = s->n_latent, n = s->n_nope;
    struct pf_weight kv;
    float *values, *turned;
    PF_TRY(pf_layer_whole(l, PF_REQUIRED, il, "attn_kv_b", n_c, (int64_t)n_head * head_rows, PF_NEVER, &kv));
    if (kv.lora)
        PF_FAIL(PF_EUNSUPPORTED, "an adapter changes blk.%d.attn_kv_b.weight, which pfmoe cannot do", il);
    a->v_b = kv;
    a->v_b.data = (const uint8_t *)kv.data + (uint64_t)n * kv.row_bytes;
    a->v_b.n_out = n_head * s->n_v;
    a->v_head_rows = head_rows;

    turned = pf_alloc_array(PF_MEM_MODEL, (size_t)n_head * (size_t)n_c, (size_t)n * sizeof *turned);
    PF_TRY(pf_model_own(l->m, turned));
    for (int h = 0; h < n_head; h++) {
        struct pf_weight keys = pf_weight_rows(&kv, h * head_rows, n);
        PF_TRY(as_matrix(l, &keys, &values));
        for (int c = 0; c < n_c; c++)
            for (int i = 0; i < n; i++)
                turned[((size_t)h * n_c + c) * n + i] = values[(size_t)i * n_c + c];
    }
    a->k_b = (struct pf_weight){ .data = turned, .type = PF_F32, .n_in = n, .n_out = n_head * n_c,
                                 .row_bytes = (uint64_t)n * sizeof *turned, .scale = 1 };
    a->k_b_is_made = true;
    return PF_OK;
}

pf_status pf_bind_mla(const struct pf_loader *l, int il, struct pf_layer *layer)
{
    const struct pf_mla_sizes *s = &l->m->mla;
    struct pf_mla *a = &layer->mla;
    int n_embd = l->m->n_embd, n_head = layer->attn.n_head;
    int64_t n_q = (int64_t)n_head * (s->n_nope + s->n_rope);
    if (s->n_q_latent == 0) {
        PF_TRY(pf_layer_matrix(l, PF_REQUIRED, il, "attn_q", n_embd, n_q, PF_NEVER, &a->q));
    } else {
        PF_TRY(pf_layer_matrix(l, PF_REQUIRED, il, "attn_q_a", n_embd, s->n_q_latent, PF_NEVER, &a->q_a));
        PF_TRY(pf_layer_matrix(l, PF_REQUIRED, il, "attn_q_b", s->n_q_latent, n_q, PF_NEVER, &a->q_b));
        PF_TRY(pf_layer_vector(l, PF_REQUIRED, il, "attn_q_a_norm.weight", s->n_q_latent, 1, &a->q_norm));
    }
    PF_TRY(pf_layer_matrix(l, PF_REQUIRED, il, "attn_kv_a_mqa", n_embd, s->n_latent + s->n_rope, PF_NEVER, &a->kv));
    PF_TRY(pf_layer_vector(l, PF_REQUIRED, il, "attn_kv_a_norm.weight", s->n_latent, 1, &a->kv_norm));
    PF_TRY(pf_layer_by_head(l, il, "attn_k_b", s->n_nope, s->n_latent, n_head, &a->k_b));
    PF_TRY(pf_layer_by_head(l, il, "attn_v_b", s->n_latent, s->n_v, n_head, &a->v_b));
    a->v_head_rows = s->n_v;
    if (!a->k_b.data || !a->v_b.data)
        PF_TRY(split_kv_b(l, il, n_head, a));
    else
        skip(l, il, "attn_kv_b");             /* some files hold both forms */
    pf_layer_list(l, il, &a->k_b);
    pf_layer_list(l, il, &a->v_b);
    if (layer->has_indexer)
        PF_TRY(bind_indexer(l, il, s->n_q_latent, &layer->indexer));
    return pf_layer_matrix(l, PF_REQUIRED, il, "attn_output", (int64_t)n_head * s->n_v, n_embd, PF_NEVER,
                           &layer->attn.out);
}

pf_status pf_bind_compressed(const struct pf_loader *l, int il, struct pf_layer *layer)
{
    const struct pf_compressed_sizes *s = &l->m->compressed;
    struct pf_compressed *c = &layer->compressed;
    struct pf_attention *a = &layer->attn;
    int n_embd = l->m->n_embd, n_q = a->n_head * a->hd_k, n_out = s->n_group * s->n_group_out;
    PF_TRY(pf_layer_matrix(l, PF_REQUIRED, il, "attn_q_a", n_embd, s->n_q_latent, PF_NEVER, &c->q_a));
    PF_TRY(pf_layer_vector(l, PF_REQUIRED, il, "attn_q_a_norm.weight", s->n_q_latent, 1, &c->q_norm));
    PF_TRY(pf_layer_matrix(l, PF_REQUIRED, il, "attn_q_b", s->n_q_latent, n_q, PF_NEVER, &c->q_b));
    const char *kv = pf_tensor_spelling(l, il, "attn_kv", "attn_kv_latent", ".weight");
    PF_TRY(pf_layer_matrix(l, PF_REQUIRED, il, kv, n_embd, a->hd_k, PF_NEVER, &c->kv));
    PF_TRY(pf_layer_vector(l, PF_REQUIRED, il, "attn_kv_a_norm.weight", a->hd_k, 1, &c->kv_norm));
    PF_TRY(pf_layer_vector(l, l->m->arch->sinks, il, "attn_sinks.weight", a->n_head, 1, &a->sinks));
    PF_TRY(pf_layer_by_head(l, il, "attn_output_a", n_q / s->n_group, s->n_group_out, s->n_group, &c->out_a));
    if (!c->out_a.data)
        PF_FAIL(PF_EFORMAT, "tensor blk.%d.attn_output_a.weight is missing from %s", il, pf_gguf_path(l->g));
    pf_layer_list(l, il, &c->out_a);
    PF_TRY(pf_layer_matrix(l, PF_REQUIRED, il, "attn_output_b", n_out, n_embd, PF_NEVER, &a->out));
    if (c->blocks.ratio)
        PF_TRY(bind_compressor(l, il, pf_tensor_spelling(l, il, "attn_compressor", "attn_compress", "_kv.weight"),
                               &c->blocks));
    return layer->has_indexer ? bind_indexer(l, il, s->n_q_latent, &layer->indexer) : PF_OK;
}
