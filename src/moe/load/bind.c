/* Tensors to weights, every shape checked.
 *
 * Tensors are looked up by the names that the architecture's table implies and marked as they are found; a tensor of a
 * used layer that nobody asked for means a variant we would compute wrongly, so it is refused by name. Vectors (norms,
 * biases) may be F32, F16 or BF16 and are handed out as float32: the mapping itself where it is F32, else a converted
 * copy. */
#include "moe/load/bind.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/pf_mem.h"
#include "moe/model/lora.h"

enum { NAME_BYTES = 96, MAX_VOCAB = 1 << 24, MAX_SHARED = 1 << 24 };

static const char EMBEDDING[] = "token_embd";         /* whose adapters come the other way round */

pf_status pf_model_own(struct pf_model *m, void *p)
{
    if (p) {
        void **grown = pf_realloc(PF_MEM_MODEL, m->owned, (m->n_owned + 1) * sizeof *grown);
        if (grown) {
            m->owned = grown;
            m->owned[m->n_owned++] = p;
            return PF_OK;
        }
        pf_free(p);
    }
    PF_FAIL(PF_ENOMEM, "no memory for the tables of model %s", pf_gguf_path(m->file));
}

/* ---- Tensors ----------------------------------------------------------------------------------------------------- */

static const struct pf_tensor *find(const struct pf_loader *l, const char *name)
{
    const struct pf_tensor *t = pf_gguf_tensor(l->g, name);
    if (t)
        l->seen[t - pf_gguf_tensor_at(l->g, 0)] = true;
    return t;
}

static pf_status missing(const struct pf_loader *l, const char *name)
{
    PF_FAIL(PF_EFORMAT, "tensor %s, which %s models must have, is missing from %s", name, l->m->arch->name,
            pf_gguf_path(l->g));
}

static pf_status check_shape(const struct pf_loader *l, const struct pf_tensor *t, int64_t n0, int64_t n1, int64_t n2)
{
    if (t->ne[0] == n0 && t->ne[1] == n1 && t->ne[2] == n2 && t->ne[3] == 1)
        return PF_OK;
    PF_FAIL(PF_EFORMAT, "tensor %s has the shape {%lld, %lld, %lld, %lld}, expected {%lld, %lld, %lld}, in %s",
            pf_gguf_quote(t->name).s, (long long)t->ne[0], (long long)t->ne[1], (long long)t->ne[2],
            (long long)t->ne[3], (long long)n0, (long long)n1, (long long)n2, pf_gguf_path(l->g));
}

static pf_status wrong_type(const struct pf_loader *l, const struct pf_tensor *t, const char *expected)
{
    PF_FAIL(PF_EFORMAT, "tensor %s is %s, expected %s, in %s", pf_gguf_quote(t->name).s,
            pf_qtype_info(t->type)->name, expected, pf_gguf_path(l->g));
}

static float half_to_float(uint16_t h)
{
    uint32_t exponent = h >> 10 & 31, mantissa = h & 1023;
    float magnitude = exponent == 31
                          ? (mantissa ? NAN : INFINITY)
                          : ldexpf((float)(exponent ? mantissa | 1024 : mantissa), (int)(exponent ? exponent : 1) - 25);
    return h & 0x8000 ? -magnitude : magnitude;
}

static float bf16_to_float(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* The tensor's n values as float32. */
static pf_status as_floats(const struct pf_loader *l, const struct pf_tensor *t, int64_t n, const float **out)
{
    if (t->type == PF_F32) {              /* tensors are aligned to 8 or more, gguf.c checks that */
        *out = (const float *)(const void *)t->data;
        return PF_OK;
    }
    if (t->type != PF_F16 && t->type != PF_BF16)
        return wrong_type(l, t, "F32, F16 or BF16");
    float *copy = pf_alloc_array(PF_MEM_MODEL, (size_t)n, sizeof *copy);
    PF_TRY(pf_model_own(l->m, copy));
    for (int64_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, t->data + 2 * i, sizeof h);
        copy[i] = t->type == PF_F16 ? half_to_float(h) : bf16_to_float(h);
    }
    *out = copy;
    return PF_OK;
}

static pf_status vector(const struct pf_loader *l, enum pf_need need, const char *name, int64_t n0, int64_t n1,
                        const float **out)
{
    *out = NULL;
    if (need == PF_NEVER)
        return PF_OK;
    const struct pf_tensor *t = find(l, name);
    if (!t)
        return need == PF_REQUIRED ? missing(l, name) : PF_OK;
    PF_TRY(check_shape(l, t, n0, n1, 1));
    return as_floats(l, t, n0 * n1, out);
}

static pf_status block_vector(const struct pf_loader *l, enum pf_need need, int il, const char *suffix, int64_t n0,
                              int64_t n1, const float **out)
{
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "blk.%d.%s", il, suffix);
    return vector(l, need, name, n0, n1, out);
}

static pf_status check_weight_type(const struct pf_loader *l, const struct pf_tensor *t)
{
    return pf_qtype_info(t->type)->is_weight ? PF_OK : wrong_type(l, t, "a weight type");
}

static void weight_of(const struct pf_tensor *t, struct pf_weight *w)
{
    *w = (struct pf_weight){ .data = t->data, .type = t->type, .n_in = (int)t->ne[0], .n_out = (int)t->ne[1],
                             .row_bytes = t->row_bytes, .scale = 1.0f };
}

/* Puts a bound weight on the list of its layer. */
static void list(const struct pf_loader *l, int il, struct pf_weight *w)
{
    struct pf_layer *layer = &l->m->layers[il];
    if (!w->data)
        return;
    assert(layer->n_weights < PF_LAYER_WEIGHTS);
    layer->weights[layer->n_weights++] = w;
}

/* The tensor <name>.weight {n_in, n_out} with its optional <name>.scale and, as `bias` says, <name>.bias. */
static pf_status matrix(const struct pf_loader *l, enum pf_need need, const char *name, int64_t n_in, int64_t n_out,
                        enum pf_need bias, struct pf_weight *w)
{
    char full[NAME_BYTES];
    const float *scale;
    *w = (struct pf_weight){ .data = NULL };
    snprintf(full, sizeof full, "%s.weight", name);
    const struct pf_tensor *t = find(l, full);
    if (!t)
        return need == PF_REQUIRED ? missing(l, full) : PF_OK;
    PF_TRY(check_shape(l, t, n_in, n_out, 1));
    PF_TRY(check_weight_type(l, t));
    weight_of(t, w);
    if (strcmp(name, EMBEDDING) != 0)
        PF_TRY(pf_lora_bind(l->m, full, n_in, n_out, &w->lora));
    snprintf(full, sizeof full, "%s.bias", name);
    PF_TRY(vector(l, bias, full, n_out, 1, &w->bias));
    snprintf(full, sizeof full, "%s.scale", name);
    bool of_input = l->m->arch->dense_beside && strstr(name, "ffn_gate_inp");        /* {n_in}: see bind_beside */
    PF_TRY(vector(l, of_input ? PF_NEVER : PF_OPTIONAL, full, 1, 1, &scale));
    if (scale)
        w->scale = *scale;
    snprintf(full, sizeof full, "%s.input_scale", name); /* for static activation scales, which we do not use */
    (void)find(l, full);
    return PF_OK;
}

/* A matrix that several weights of the layer are cut out of. */
static pf_status whole_matrix(const struct pf_loader *l, enum pf_need need, int il, const char *suffix, int64_t n_in,
                              int64_t n_out, enum pf_need bias, struct pf_weight *w)
{
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "blk.%d.%s", il, suffix);
    return matrix(l, need, name, n_in, n_out, bias, w);
}

/* A weight of the layer. */
static pf_status block_matrix(const struct pf_loader *l, enum pf_need need, int il, const char *suffix, int64_t n_in,
                              int64_t n_out, enum pf_need bias, struct pf_weight *w)
{
    PF_TRY(whole_matrix(l, need, il, suffix, n_in, n_out, bias, w));
    list(l, il, w);
    return PF_OK;
}

/* ---- Attention --------------------------------------------------------------------------------------------------- */

/* Rows [first, first + n) of a matrix, as the model has it: without what adapters add. */
static struct pf_weight rows_of(const struct pf_weight *w, int first, int n)
{
    struct pf_weight part = *w;
    part.data = (const uint8_t *)w->data + (uint64_t)first * w->row_bytes;
    part.n_out = n;
    part.bias = w->bias ? w->bias + first : NULL;
    part.lora = NULL;
    return part;
}

/* A weight of the layer, which is rows of a whole matrix. */
static pf_status adapted_rows_of(const struct pf_loader *l, int il, const struct pf_weight *w, int first, int n,
                                 struct pf_weight *out)
{
    *out = rows_of(w, first, n);
    list(l, il, out);
    return pf_lora_rows(l->m, w->lora, first, n, &out->lora);
}

static pf_status bind_qkv(const struct pf_loader *l, int il, struct pf_attention *a)
{
    const struct pf_arch *arch = l->m->arch;
    int n_q = a->n_head * a->hd_k, n_k = a->n_kv_head * a->hd_k, n_v = a->n_kv_head * a->hd_v;
    struct pf_weight fused = { .data = NULL };
    if (!arch->gated_attention)
        PF_TRY(whole_matrix(l, PF_OPTIONAL, il, "attn_qkv", l->m->n_embd, n_q + n_k + n_v, arch->qkv_bias, &fused));
    if (fused.data) {
        PF_TRY(adapted_rows_of(l, il, &fused, 0, n_q, &a->q));
        PF_TRY(adapted_rows_of(l, il, &fused, n_q, n_k, &a->k));
        return adapted_rows_of(l, il, &fused, n_q + n_k, n_v, &a->v);
    }
    n_q *= arch->gated_attention ? 2 : 1;
    PF_TRY(block_matrix(l, PF_REQUIRED, il, "attn_q", l->m->n_embd, n_q, arch->qkv_bias, &a->q));
    if (a->kv_layer != il)
        return PF_OK;
    PF_TRY(block_matrix(l, PF_REQUIRED, il, "attn_k", l->m->n_embd, n_k, arch->qkv_bias, &a->k));
    enum pf_need v = arch->value_norm ? PF_OPTIONAL : PF_REQUIRED;
    return block_matrix(l, v, il, "attn_v", l->m->n_embd, n_v, arch->qkv_bias, &a->v);
}

static pf_status bind_attention(const struct pf_loader *l, int il, struct pf_attention *a)
{
    const struct pf_arch *arch = l->m->arch;
    PF_TRY(bind_qkv(l, il, a));
    PF_TRY(block_matrix(l, PF_REQUIRED, il, "attn_output", (int64_t)a->n_head * a->hd_v, l->m->n_embd, arch->out_bias,
                        &a->out));
    if (arch->head_gate)
        PF_TRY(block_matrix(l, arch->head_gate, il, "attn_gate", l->m->n_embd, a->n_head, PF_NEVER, &a->gate));
    a->out.scale *= l->value_scale;
    int n_q = arch->norm_whole_row ? a->n_head : 1, n_k = arch->norm_whole_row ? a->n_kv_head : 1;
    PF_TRY(block_vector(l, arch->qk_norm, il, "attn_q_norm.weight", (int64_t)a->hd_k * n_q, 1, &a->q_norm));
    enum pf_need k_norm = a->q_norm && a->k.data ? PF_REQUIRED : PF_NEVER;
    PF_TRY(block_vector(l, k_norm, il, "attn_k_norm.weight", (int64_t)a->hd_k * n_k, 1, &a->k_norm));
    a->norm |= a->q_norm != NULL;
    return block_vector(l, arch->sinks, il, "attn_sinks.weight", a->n_head, 1, &a->sinks);
}

/* ---- Indexers ---------------------------------------------------------------------------------------------------- */

/* The first of two names, of which the file may have the other: in full with `ending` behind it,
 * il < 0: outside of layers. */
static const char *spelling(const struct pf_loader *l, int il, const char *name, const char *other, const char *ending)
{
    char full[NAME_BYTES];
    if (il < 0)
        snprintf(full, sizeof full, "%s%s", other, ending);
    else
        snprintf(full, sizeof full, "blk.%d.%s%s", il, other, ending);
    return pf_gguf_tensor(l->g, full) ? other : name;
}

static pf_status bind_compressor(const struct pf_loader *l, int il, const char *prefix, struct pf_compressor *c)
{
    char name[NAME_BYTES];
    int n_embd = l->m->n_embd, n = c->width * (1 + c->overlaps);
    snprintf(name, sizeof name, "%s_kv", prefix);
    PF_TRY(block_matrix(l, PF_REQUIRED, il, name, n_embd, n, PF_NEVER, &c->u));
    snprintf(name, sizeof name, "%s_gate", prefix);
    PF_TRY(block_matrix(l, PF_REQUIRED, il, name, n_embd, n, PF_NEVER, &c->gate));
    snprintf(name, sizeof name, "%s_ape.weight", prefix);
    PF_TRY(block_vector(l, PF_REQUIRED, il, name, n, c->ratio, &c->ape));
    snprintf(name, sizeof name, "%s_norm.weight", prefix);
    return block_vector(l, PF_REQUIRED, il, name, c->width, 1, &c->norm);
}

/* A key of a run of positions is made of their keys. */
static pf_status bind_pools(const struct pf_loader *l, int il, struct pf_indexer *x)
{
    int n_embd = l->m->n_embd;
    struct pf_compressor *c = &x->blocks;
    PF_TRY(block_matrix(l, PF_REQUIRED, il, "indexer.attn_k", n_embd, c->width, PF_NEVER, &c->u));
    PF_TRY(block_matrix(l, PF_REQUIRED, il, "indexer_compressor_gate", n_embd, c->width, PF_NEVER, &c->gate));
    return block_vector(l, PF_REQUIRED, il, "indexer_compressor_ape.weight", c->width, c->ratio, &c->ape);
}

/* The indexer of attention with several heads of keys: a query for each head. */
static pf_status bind_run_indexer(const struct pf_loader *l, int il, struct pf_indexer *x)
{
    const struct pf_index_sizes *s = &l->m->index;
    int n_embd = l->m->n_embd;
    PF_TRY(block_matrix(l, PF_REQUIRED, il, "indexer.q_proj", n_embd, (int64_t)s->n_head * s->width, PF_NEVER, &x->q));
    PF_TRY(block_matrix(l, PF_REQUIRED, il, "indexer.k_proj", n_embd, s->width, PF_NEVER, &x->k));
    PF_TRY(block_vector(l, PF_REQUIRED, il, "indexer.q_norm.weight", s->width, 1, &x->q_norm));
    return block_vector(l, PF_REQUIRED, il, "indexer.k_norm.weight", s->width, 1, &x->k_norm);
}

static pf_status bind_indexer(const struct pf_loader *l, int il, int n_q_latent, struct pf_indexer *x)
{
    const struct pf_index_sizes *s = &l->m->index;
    int n_embd = l->m->n_embd;
    PF_TRY(block_matrix(l, PF_REQUIRED, il, "indexer.attn_q_b", n_q_latent, (int64_t)s->n_head * s->width, PF_NEVER,
                        &x->q));
    PF_TRY(block_matrix(l, PF_REQUIRED, il, "indexer.proj", n_embd, s->n_head, PF_NEVER, &x->w));
    if (x->blocks.ratio && !l->m->arch->index_pools)
        return bind_compressor(l, il, spelling(l, il, "indexer_compressor", "indexer.compress", "_kv.weight"),
                               &x->blocks);
    PF_TRY(l->m->arch->index_pools ? bind_pools(l, il, x)
           : block_matrix(l, PF_REQUIRED, il, "indexer.attn_k", n_embd, s->width, PF_NEVER, &x->k));
    PF_TRY(block_vector(l, PF_REQUIRED, il, "indexer.k_norm.weight", s->width, 1, &x->k_norm));
    return block_vector(l, PF_REQUIRED, il, "indexer.k_norm.bias", s->width, 1, &x->k_norm_bias);
}

static pf_status bind_mean_indexer(const struct pf_loader *l, int il, struct pf_indexer *x)
{
    const struct pf_index_sizes *s = &l->m->index;
    int n_embd = l->m->n_embd;
    PF_TRY(block_matrix(l, PF_REQUIRED, il, "indexer.q_proj", n_embd, (int64_t)s->n_head * s->width, PF_NEVER, &x->q));
    PF_TRY(block_matrix(l, PF_REQUIRED, il, "indexer.k_proj", n_embd, s->width, PF_NEVER, &x->k));
    PF_TRY(block_vector(l, PF_REQUIRED, il, "indexer.q_norm.weight", s->width, 1, &x->q_norm));
    return block_vector(l, PF_REQUIRED, il, "indexer.k_norm.weight", s->width, 1, &x->k_norm);
}

/* ---- Latent attention -------------------------------------------------------------------------------------------- */

/* A matrix per head, {n_in, n_out, n_head} or {n_in, n_out * n_head}; no data if it is not there. */
static pf_status by_head(const struct pf_loader *l, int il, const char *suffix, int64_t n_in, int64_t n_out,
                         int64_t n_head, struct pf_weight *w)
{
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "blk.%d.%s.weight", il, suffix);
    const struct pf_tensor *t = find(l, name);
    *w = (struct pf_weight){ .data = NULL };
    if (!t)
        return PF_OK;
    if (t->ne[1] != n_out * n_head)
        PF_TRY(check_shape(l, t, n_in, n_out, n_head));
    else
        PF_TRY(check_shape(l, t, n_in, n_out * n_head, 1));
    PF_TRY(check_weight_type(l, t));
    weight_of(t, w);
    w->n_out = (int)(n_out * n_head);
    return PF_OK;
}

static void skip(const struct pf_loader *l, int il, const char *suffix)
{
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "blk.%d.%s.weight", il, suffix);
    (void)find(l, name);
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
    PF_TRY(whole_matrix(l, PF_REQUIRED, il, "attn_kv_b", n_c, (int64_t)n_head * head_rows, PF_NEVER, &kv));
    if (kv.lora)
        PF_FAIL(PF_EUNSUPPORTED, "an adapter changes blk.%d.attn_kv_b.weight, which pfmoe cannot do", il);
    a->v_b = kv;
    a->v_b.data = (const uint8_t *)kv.data + (uint64_t)n * kv.row_bytes;
    a->v_b.n_out = n_head * s->n_v;
    a->v_head_rows = head_rows;

    turned = pf_alloc_array(PF_MEM_MODEL, (size_t)n_head * (size_t)n_c, (size_t)n * sizeof *turned);
    PF_TRY(pf_model_own(l->m, turned));
    for (int h = 0; h < n_head; h++) {
        struct pf_weight keys = rows_of(&kv, h * head_rows, n);
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

static pf_status bind_mla(const struct pf_loader *l, int il, struct pf_layer *layer)
{
    const struct pf_mla_sizes *s = &l->m->mla;
    struct pf_mla *a = &layer->mla;
    int n_embd = l->m->n_embd, n_head = layer->attn.n_head;
    int64_t n_q = (int64_t)n_head * (s->n_nope + s->n_rope);
    if (s->n_q_latent == 0) {
        PF_TRY(block_matrix(l, PF_REQUIRED, il, "attn_q", n_embd, n_q, PF_NEVER, &a->q));
    } else {
        PF_TRY(block_matrix(l, PF_REQUIRED, il, "attn_q_a", n_embd, s->n_q_latent, PF_NEVER, &a->q_a));
        PF_TRY(block_matrix(l, PF_REQUIRED, il, "attn_q_b", s->n_q_latent, n_q, PF_NEVER, &a->q_b));
        PF_TRY(block_vector(l, PF_REQUIRED, il, "attn_q_a_norm.weight", s->n_q_latent, 1, &a->q_norm));
    }
    PF_TRY(block_matrix(l, PF_REQUIRED, il, "attn_kv_a_mqa", n_embd, s->n_latent + s->n_rope, PF_NEVER, &a->kv));
    PF_TRY(block_vector(l, PF_REQUIRED, il, "attn_kv_a_norm.weight", s->n_latent, 1, &a->kv_norm));
    PF_TRY(by_head(l, il, "attn_k_b", s->n_nope, s->n_latent, n_head, &a->k_b));
    PF_TRY(by_head(l, il, "attn_v_b", s->n_latent, s->n_v, n_head, &a->v_b));
    a->v_head_rows = s->n_v;
    if (!a->k_b.data || !a->v_b.data)
        PF_TRY(split_kv_b(l, il, n_head, a));
    else
        skip(l, il, "attn_kv_b");             /* some files hold both forms */
    list(l, il, &a->k_b);
    list(l, il, &a->v_b);
    if (layer->has_indexer)
        PF_TRY(bind_indexer(l, il, s->n_q_latent, &layer->indexer));
    return block_matrix(l, PF_REQUIRED, il, "attn_output", (int64_t)n_head * s->n_v, n_embd, PF_NEVER,
                        &layer->attn.out);
}

/* ---- Compressed attention ---------------------------------------------------------------------------------------- */

static pf_status bind_compressed(const struct pf_loader *l, int il, struct pf_layer *layer)
{
    const struct pf_compressed_sizes *s = &l->m->compressed;
    struct pf_compressed *c = &layer->compressed;
    struct pf_attention *a = &layer->attn;
    int n_embd = l->m->n_embd, n_q = a->n_head * a->hd_k, n_out = s->n_group * s->n_group_out;
    PF_TRY(block_matrix(l, PF_REQUIRED, il, "attn_q_a", n_embd, s->n_q_latent, PF_NEVER, &c->q_a));
    PF_TRY(block_vector(l, PF_REQUIRED, il, "attn_q_a_norm.weight", s->n_q_latent, 1, &c->q_norm));
    PF_TRY(block_matrix(l, PF_REQUIRED, il, "attn_q_b", s->n_q_latent, n_q, PF_NEVER, &c->q_b));
    const char *kv = spelling(l, il, "attn_kv", "attn_kv_latent", ".weight");
    PF_TRY(block_matrix(l, PF_REQUIRED, il, kv, n_embd, a->hd_k, PF_NEVER, &c->kv));
    PF_TRY(block_vector(l, PF_REQUIRED, il, "attn_kv_a_norm.weight", a->hd_k, 1, &c->kv_norm));
    PF_TRY(block_vector(l, l->m->arch->sinks, il, "attn_sinks.weight", a->n_head, 1, &a->sinks));
    PF_TRY(by_head(l, il, "attn_output_a", n_q / s->n_group, s->n_group_out, s->n_group, &c->out_a));
    if (!c->out_a.data)
        PF_FAIL(PF_EFORMAT, "tensor blk.%d.attn_output_a.weight is missing from %s", il, pf_gguf_path(l->g));
    list(l, il, &c->out_a);
    PF_TRY(block_matrix(l, PF_REQUIRED, il, "attn_output_b", n_out, n_embd, PF_NEVER, &a->out));
    if (c->blocks.ratio)
        PF_TRY(bind_compressor(l, il, spelling(l, il, "attn_compressor", "attn_compress", "_kv.weight"), &c->blocks));
    return layer->has_indexer ? bind_indexer(l, il, s->n_q_latent, &layer->indexer) : PF_OK;
}

/* ---- Residual streams -------------------------------------------------------------------------------------------- */

/* The three tensors whose names begin so; n_weights that come out, in so many parts. */
static pf_status bind_mix(const struct pf_loader *l, const char *prefix, int n_weights, int n_parts, struct pf_mix *mix)
{
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "%s_fn", prefix);
    PF_TRY(matrix(l, PF_REQUIRED, name, (int64_t)l->m->streams.n * l->m->n_embd, n_weights, PF_NEVER, &mix->fn));
    snprintf(name, sizeof name, "%s_base.weight", prefix);
    PF_TRY(vector(l, PF_REQUIRED, name, n_weights, 1, &mix->base));
    snprintf(name, sizeof name, "%s_scale.weight", prefix);
    return vector(l, PF_REQUIRED, name, n_parts, 1, &mix->scale);
}

/* Tensors of gated streams, whose names begin with `prefix`. The products' inputs count a share of the streams each. */
static pf_status bind_gated_mix(const struct pf_loader *l, const char *prefix, enum pf_need inject, struct pf_mix *mix)
{
    char name[NAME_BYTES];
    int n = l->m->streams.n, rank = l->m->streams.low_rank;
    int64_t n_all = (int64_t)n * l->m->n_embd;
    snprintf(name, sizeof name, "%s_norm.weight", prefix);
    PF_TRY(vector(l, PF_REQUIRED, name, n_all, 1, &mix->norm));
    snprintf(name, sizeof name, "%s_down", prefix);
    PF_TRY(matrix(l, PF_REQUIRED, name, n_all, rank, PF_NEVER, &mix->down));
    snprintf(name, sizeof name, "%s_up", prefix);
    PF_TRY(matrix(l, PF_REQUIRED, name, rank, n_all, PF_NEVER, &mix->up));
    mix->down.scale /= (float)n;
    if (inject == PF_NEVER)
        return PF_OK;
    snprintf(name, sizeof name, "%s_inject", prefix);
    PF_TRY(matrix(l, inject, name, n_all, n, PF_NEVER, &mix->inject));
    mix->inject.scale /= (float)n;
    return PF_OK;
}

static pf_status bind_layer_gates(const struct pf_loader *l, int il, struct pf_layer *layer)
{
    struct pf_mix *mixes[] = { &layer->attn_mix, &layer->ffn_mix };
    static const char *const names[] = { "attn", "ffn" };
    for (int i = 0; i < 2; i++) {
        char prefix[NAME_BYTES / 2];
        snprintf(prefix, sizeof prefix, "blk.%d.hc_%s", il, names[i]);
        PF_TRY(bind_gated_mix(l, prefix, PF_REQUIRED, mixes[i]));
        list(l, il, &mixes[i]->down);
        list(l, il, &mixes[i]->up);
        list(l, il, &mixes[i]->inject);
    }
    return PF_OK;
}

static pf_status bind_layer_mixes(const struct pf_loader *l, int il, struct pf_layer *layer)
{
    char prefix[NAME_BYTES / 2];
    int n = l->m->streams.n, n_weights = n * (2 + n);
    snprintf(prefix, sizeof prefix, "blk.%d.hc_attn", il);
    PF_TRY(bind_mix(l, prefix, n_weights, 3, &layer->attn_mix));
    list(l, il, &layer->attn_mix.fn);
    snprintf(prefix, sizeof prefix, "blk.%d.hc_ffn", il);
    PF_TRY(bind_mix(l, prefix, n_weights, 3, &layer->ffn_mix));
    list(l, il, &layer->ffn_mix.fn);
    return PF_OK;
}

/* ---- Delta nets -------------------------------------------------------------------------------------------------- */

/* n channels to turned[0 ..]: {taps, n} -> [taps][n_conv], so that channels are neighbours. */
static void turn_conv(const float *w, int taps, int n, int n_conv, float *turned)
{
    for (int c = 0; c < n; c++)
        for (int t = 0; t < taps; t++)
            turned[(size_t)t * n_conv + c] = w[(size_t)c * taps + t];
}

/* Values in whatever shape. */
static pf_status bind_values(const struct pf_loader *l, int il, const char *suffix, int64_t n, const float **out)
{
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "blk.%d.%s", il, suffix);
    const struct pf_tensor *t = find(l, name);
    if (!t)
        return missing(l, name);
    if (t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3] != n)
        PF_TRY(check_shape(l, t, n, 1, 1));
    return as_floats(l, t, n, out);
}

/* Kimi's: a kernel each for queries, keys and values, {taps, K} or {taps, 1, K}. */
static pf_status bind_kda_conv(const struct pf_loader *l, int il, const float **out)
{
    static const char *const names[] = { "ssm_conv1d_q.weight", "ssm_conv1d_k.weight", "ssm_conv1d_v.weight" };
    const struct pf_delta_sizes *s = &l->m->delta;
    float *turned = pf_alloc_array(PF_MEM_MODEL, (size_t)s->taps * (size_t)s->n_conv, sizeof *turned);
    PF_TRY(pf_model_own(l->m, turned));
    for (int i = 0; i < 3; i++) {
        const float *w;
        PF_TRY(bind_values(l, il, names[i], (int64_t)s->taps * s->n_k, &w));
        turn_conv(w, s->taps, s->n_k, s->n_conv, turned + i * s->n_k);
    }
    *out = turned;
    return PF_OK;
}

static pf_status bind_kda(const struct pf_loader *l, int il, struct pf_delta_net *d)
{
    const struct pf_delta_sizes *s = &l->m->delta;
    int n_embd = l->m->n_embd;
    PF_TRY(block_matrix(l, PF_REQUIRED, il, "attn_q", n_embd, s->n_k, PF_NEVER, &d->q));
    PF_TRY(block_matrix(l, PF_REQUIRED, il, "attn_k", n_embd, s->n_k, PF_NEVER, &d->k));
    PF_TRY(block_matrix(l, PF_REQUIRED, il, "attn_v", n_embd, s->n_v, PF_NEVER, &d->v));
    PF_TRY(block_matrix(l, PF_REQUIRED, il, "ssm_beta", n_embd, s->n_v_head, PF_NEVER, &d->beta));
    PF_TRY(block_matrix(l, PF_REQUIRED, il, "ssm_f_a", n_embd, s->d, PF_NEVER, &d->decay_a));
    PF_TRY(block_matrix(l, PF_REQUIRED, il, "ssm_f_b", s->d, s->n_k, PF_NEVER, &d->decay_b));
    PF_TRY(block_matrix(l, PF_REQUIRED, il, "ssm_g_a", n_embd, s->d, PF_NEVER, &d->z_a));
    PF_TRY(block_matrix(l, PF_REQUIRED, il, "ssm_g_b", s->d, s->n_v, PF_NEVER, &d->z_b));
    PF_TRY(bind_kda_conv(l, il, &d->conv));
    PF_TRY(bind_values(l, il, "ssm_a", s->n_v_head, &d->a));
    PF_TRY(block_vector(l, PF_REQUIRED, il, "ssm_dt.bias", s->n_k, 1, &d->dt));
    PF_TRY(block_vector(l, PF_REQUIRED, il, "ssm_norm.weight", s->d, 1, &d->norm));
    return block_matrix(l, PF_REQUIRED, il, "attn_output", s->n_v, n_embd, PF_NEVER, &d->out);
}

static pf_status bind_conv(const struct pf_loader *l, int il, const char *suffix, int taps, int n_conv,
                           const float **out)
{
    const float *w;
    PF_TRY(block_vector(l, PF_REQUIRED, il, suffix, taps, n_conv, &w));
    float *turned = pf_alloc_array(PF_MEM_MODEL, (size_t)taps * (size_t)n_conv, sizeof *turned);
    PF_TRY(pf_model_own(l->m, turned));
    turn_conv(w, taps, n_conv, n_conv, turned);
    *out = turned;
    return PF_OK;
}

static pf_status bind_delta(const struct pf_loader *l, int il, struct pf_delta_net *d)
{
    const struct pf_delta_sizes *s = &l->m->delta;
    int n_embd = l->m->n_embd;
    if (l->m->arch->delta == PF_DELTA_KDA)
        return bind_kda(l, il, d);
    PF_TRY(block_matrix(l, PF_OPTIONAL, il, "ssm_in", n_embd, 2 * (int64_t)(s->n_k + s->n_v), PF_NEVER, &d->packed));
    if (!d->packed.data) {
        PF_TRY(block_matrix(l, PF_REQUIRED, il, "attn_qkv", n_embd, s->n_conv, PF_NEVER, &d->qkv));
        PF_TRY(block_matrix(l, PF_REQUIRED, il, "attn_gate", n_embd, s->n_v, PF_NEVER, &d->z));
    }
    PF_TRY(block_matrix(l, PF_OPTIONAL, il, "ssm_ba", n_embd, 2 * (int64_t)s->n_v_head, PF_NEVER, &d->ba));
    if (!d->ba.data) {
        PF_TRY(block_matrix(l, PF_REQUIRED, il, "ssm_beta", n_embd, s->n_v_head, PF_NEVER, &d->beta));
        PF_TRY(block_matrix(l, PF_REQUIRED, il, "ssm_alpha", n_embd, s->n_v_head, PF_NEVER, &d->alpha));
    }
    PF_TRY(bind_conv(l, il, "ssm_conv1d.weight", s->taps, s->n_conv, &d->conv));
    PF_TRY(block_vector(l, PF_REQUIRED, il, "ssm_a", s->n_v_head, 1, &d->a));
    PF_TRY(block_vector(l, PF_REQUIRED, il, "ssm_dt.bias", s->n_v_head, 1, &d->dt));
    PF_TRY(block_vector(l, PF_REQUIRED, il, "ssm_norm.weight", s->d, 1, &d->norm));
    return block_matrix(l, PF_REQUIRED, il, "ssm_out", s->n_v, n_embd, PF_NEVER, &d->out);
}

/* ---- Mamba2 ------------------------------------------------------------------------------------------------------ */

/* ssm_in holds the rows of z, then those of what passes through the convolution, then those of dt. */
static pf_status bind_mamba(const struct pf_loader *l, int il, struct pf_mamba *a)
{
    const struct pf_mamba_sizes *s = &l->m->mamba;
    struct pf_weight in;
    PF_TRY(whole_matrix(l, PF_REQUIRED, il, "ssm_in", l->m->n_embd, (int64_t)s->n_inner + s->n_conv + s->n_head,
                        PF_NEVER, &in));
    PF_TRY(adapted_rows_of(l, il, &in, 0, s->n_inner, &a->z));
    PF_TRY(adapted_rows_of(l, il, &in, s->n_inner, s->n_conv, &a->u));
    PF_TRY(adapted_rows_of(l, il, &in, s->n_inner + s->n_conv, s->n_head, &a->dt));
    PF_TRY(bind_conv(l, il, "ssm_conv1d.weight", s->taps, s->n_conv, &a->conv));
    PF_TRY(block_vector(l, PF_REQUIRED, il, "ssm_conv1d.bias", s->n_conv, 1, &a->conv_bias));
    PF_TRY(block_vector(l, PF_REQUIRED, il, "ssm_dt.bias", s->n_head, 1, &a->dt_bias));
    PF_TRY(block_vector(l, PF_REQUIRED, il, "ssm_a", 1, s->n_head, &a->a));
    PF_TRY(block_vector(l, PF_REQUIRED, il, "ssm_d", 1, s->n_head, &a->skip));
    PF_TRY(block_vector(l, PF_REQUIRED, il, "ssm_norm.weight", s->n_inner / s->n_group, s->n_group, &a->norm));
    return block_matrix(l, PF_REQUIRED, il, "ssm_out", s->n_inner, l->m->n_embd, PF_NEVER, &a->out);
}

/* ---- Short convolutions ------------------------------------------------------------------------------------------ */

static pf_status bind_short_conv(const struct pf_loader *l, int il, struct pf_short_conv *c)
{
    int n = l->m->n_embd;
    struct pf_weight in;
    PF_TRY(whole_matrix(l, PF_REQUIRED, il, "shortconv.in_proj", n, 3 * (int64_t)n, PF_NEVER, &in));
    PF_TRY(adapted_rows_of(l, il, &in, 0, n, &c->gate_in));
    PF_TRY(adapted_rows_of(l, il, &in, n, n, &c->gate_out));
    PF_TRY(adapted_rows_of(l, il, &in, 2 * n, n, &c->x));
    PF_TRY(bind_conv(l, il, "shortconv.conv.weight", l->m->conv_taps, n, &c->conv));
    return block_matrix(l, PF_REQUIRED, il, "shortconv.out_proj", n, n, PF_NEVER, &c->out);
}

/* ---- N-grams ----------------------------------------------------------------------------------------------------- */

/* Where a model gathers rows for each token, the table of these. */
static pf_status bind_gathered(const struct pf_loader *l, int64_t width)
{
    struct pf_model *m = l->m;
    const struct pf_tensor *t = pf_gguf_tensor(l->g, "per_layer_token_embd.weight");
    return matrix(l, PF_REQUIRED, "per_layer_token_embd", width, t ? t->ne[1] : 0, PF_NEVER, &m->gather.table);
}

/* What all layers make of the token together. Half of the parts' mean square comes from the table, half from the
 * embedding: their sum is divided by sqrt(2), which is in the weights. */
static pf_status bind_per_layer(const struct pf_loader *l)
{
    struct pf_model *m = l->m;
    int width = m->per_layer.width;
    const float *norm;
    if (width == 0)
        return PF_OK;
    PF_TRY(bind_gathered(l, (int64_t)width * m->n_layer));
    if (m->gather.table.n_out != m->n_vocab)
        PF_FAIL(PF_EFORMAT, "tensor per_layer_token_embd.weight has %d rows for %d tokens, in %s",
                m->gather.table.n_out, m->n_vocab, pf_gguf_path(l->g));
    PF_TRY(matrix(l, PF_REQUIRED, "per_layer_model_proj", m->n_embd, (int64_t)width * m->n_layer, PF_NEVER,
                  &m->per_layer.proj));
    PF_TRY(vector(l, PF_REQUIRED, "per_layer_proj_norm.weight", width, 1, &norm));
    m->gather.table.scale *= sqrtf((float)width / 2);
    m->per_layer.proj.scale /= sqrtf((float)m->n_embd);
    float *halved = pf_alloc_array(PF_MEM_MODEL, (size_t)width, sizeof *halved);
    PF_TRY(pf_model_own(m, halved));
    for (int i = 0; i < width; i++)
        halved[i] = norm[i] * sqrtf(0.5f);
    m->per_layer.norm = halved;
    return PF_OK;
}

static pf_status bind_own_part(const struct pf_loader *l, int il, struct pf_layer *layer)
{
    int n_embd = l->m->n_embd, width = l->m->per_layer.width;
    const float *scale;
    PF_TRY(block_vector(l, PF_OPTIONAL, il, "layer_output_scale.weight", 1, 1, &scale));
    layer->scale = scale ? *scale : 1;
    if (width == 0)
        return PF_OK;
    PF_TRY(block_matrix(l, PF_REQUIRED, il, "inp_gate", n_embd, width, PF_NEVER, &layer->own.gate));
    PF_TRY(block_matrix(l, PF_REQUIRED, il, "proj", width, n_embd, PF_NEVER, &layer->own.proj));
    return block_vector(l, PF_REQUIRED, il, "post_norm.weight", n_embd, 1, &layer->own.norm);
}

static pf_status bind_ngrams(const struct pf_loader *l)
{
    const struct pf_model *m = l->m;
    struct pf_layer *layer = &m->layers[m->ngrams.layer];
    struct pf_ngram_weights *g = &layer->ngrams;
    int il = m->ngrams.layer, n_embd = m->n_embd, n_all = m->streams.n * n_embd;
    PF_TRY(bind_gathered(l, m->ngrams.width));
    if (pf_ngrams_end(&m->ngrams) > (uint64_t)m->gather.table.n_out)
        PF_FAIL(PF_EFORMAT, "tensor per_layer_token_embd.weight has %d rows, but n-grams have up to %llu, in %s",
                m->gather.table.n_out, (unsigned long long)pf_ngrams_end(&m->ngrams), pf_gguf_path(l->g));
    PF_TRY(block_matrix(l, PF_REQUIRED, il, "ple_key", n_embd, n_all, PF_NEVER, &g->key));
    PF_TRY(block_matrix(l, PF_REQUIRED, il, "ple_value", n_embd, n_embd, PF_NEVER, &g->value));
    PF_TRY(block_vector(l, PF_REQUIRED, il, "ple_norm_key.weight", n_all, 1, &g->key_norm));
    PF_TRY(block_vector(l, PF_REQUIRED, il, "ple_norm_query.weight", n_all, 1, &g->query_norm));
    PF_TRY(block_vector(l, PF_REQUIRED, il, "ple_norm_conv.weight", n_all, 1, &g->conv_norm));
    return bind_conv(l, il, "ple_conv1d.weight", m->ngrams.taps, n_all, &g->conv);
}

/* ---- Feed-forward ------------------------------------------------------------------------------------------------ */

/* One expert tensor {n_in, n_rows, n_expert}: where each expert's rows [first_row, first_row + n_out) begin. */
static pf_status slices(const struct pf_loader *l, const struct pf_tensor *t, int64_t first_row, int64_t n_out,
                        struct pf_expert_weight *w)
{
    const uint8_t **data = pf_alloc_array(PF_MEM_MODEL, (size_t)l->m->n_expert, sizeof *data);
    PF_TRY(pf_model_own(l->m, data));
    PF_TRY(check_weight_type(l, t));
    for (int e = 0; e < l->m->n_expert; e++)
        data[e] = t->data + ((uint64_t)e * (uint64_t)t->ne[1] + (uint64_t)first_row) * t->row_bytes;
    *w = (struct pf_expert_weight){ .data = data, .type = t->type, .n_in = (int)t->ne[0], .n_out = (int)n_out,
                                    .row_bytes = t->row_bytes };
    return PF_OK;
}

static pf_status stacked(const struct pf_loader *l, int il, const char *part, int64_t n_in, int64_t n_out,
                         struct pf_expert_weight *w)
{
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "blk.%d.ffn_%s_exps.weight", il, part);
    const struct pf_tensor *t = find(l, name);
    if (!t)
        return missing(l, name);
    PF_TRY(check_shape(l, t, n_in, n_out, l->m->n_expert));
    PF_TRY(slices(l, t, 0, n_out, w));
    PF_TRY(pf_lora_bind_experts(l->m, name, n_in, n_out, &w->lora));
    snprintf(name, sizeof name, "blk.%d.ffn_%s_exps.bias", il, part);
    PF_TRY(vector(l, l->m->arch->expert_bias, name, n_out, l->m->n_expert, &w->bias));
    snprintf(name, sizeof name, "blk.%d.ffn_%s_exps.scale", il, part);
    PF_TRY(vector(l, PF_OPTIONAL, name, l->m->n_expert, 1, &w->scale));
    snprintf(name, sizeof name, "blk.%d.ffn_%s_exps.input_scale", il, part);
    (void)find(l, name);
    return PF_OK;
}

/* Files of 2023: one tensor per expert, blk.N.ffn_gate.E.weight. *found is false when the first is not there. */
static pf_status one_by_one(const struct pf_loader *l, int il, const char *part, int64_t n_in, int64_t n_out,
                            struct pf_expert_weight *w, bool *found)
{
    const uint8_t **data = NULL;
    for (int e = 0; e < l->m->n_expert; e++) {
        char name[NAME_BYTES];
        snprintf(name, sizeof name, "blk.%d.ffn_%s.%d.weight", il, part, e);
        const struct pf_tensor *t = find(l, name);
        *found = t || e > 0;
        if (!t)
            return e > 0 ? missing(l, name) : PF_OK;
        PF_TRY(check_shape(l, t, n_in, n_out, 1));
        PF_TRY(check_weight_type(l, t));
        if (e == 0) {
            data = pf_alloc_array(PF_MEM_MODEL, (size_t)l->m->n_expert, sizeof *data);
            PF_TRY(pf_model_own(l->m, data));
            *w = (struct pf_expert_weight){ .data = data, .type = t->type, .n_in = (int)n_in, .n_out = (int)n_out,
                                            .row_bytes = t->row_bytes };
        } else if (t->type != w->type) {
            return wrong_type(l, t, pf_qtype_info(w->type)->name);
        }
        data[e] = t->data;
    }
    return PF_OK;
}

/* ffn_gate_up_exps: per expert the rows of gate, then the rows of up. */
static pf_status merged_gate_up(const struct pf_loader *l, int il, struct pf_moe *moe, bool *found)
{
    char name[NAME_BYTES];
    int n_ff = moe->n_ff, n_in = l->m->n_expert_in;
    const float *bias = NULL, *scale = NULL;
    const struct pf_expert_lora *both;
    snprintf(name, sizeof name, "blk.%d.ffn_gate_up_exps.weight", il);
    const struct pf_tensor *t = find(l, name);
    *found = t != NULL;
    if (!t)
        return PF_OK;
    PF_TRY(check_shape(l, t, n_in, 2 * (int64_t)n_ff, l->m->n_expert));
    PF_TRY(slices(l, t, 0, n_ff, &moe->gate));
    PF_TRY(slices(l, t, n_ff, n_ff, &moe->up));
    PF_TRY(pf_lora_bind_experts(l->m, name, n_in, 2 * (int64_t)n_ff, &both));
    PF_TRY(pf_lora_expert_rows(l->m, both, 0, n_ff, &moe->gate.lora));
    PF_TRY(pf_lora_expert_rows(l->m, both, n_ff, n_ff, &moe->up.lora));
    snprintf(name, sizeof name, "blk.%d.ffn_gate_up_exps.scale", il);
    PF_TRY(vector(l, PF_OPTIONAL, name, l->m->n_expert, 1, &scale));
    moe->gate.scale = moe->up.scale = scale;
    snprintf(name, sizeof name, "blk.%d.ffn_gate_up_exps.bias", il);
    PF_TRY(vector(l, l->m->arch->expert_bias, name, 2 * (int64_t)n_ff, l->m->n_expert, &bias));
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

/* The number of rows of a tensor that may be absent: 0. */
static int64_t n_rows(const struct pf_loader *l, int il, const char *suffix)
{
    char name[NAME_BYTES];
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
    PF_TRY(block_matrix(l, PF_REQUIRED, il, first, m->n_embd, n_ff, PF_NEVER, &moe->shared.gate));
    if (!m->arch->ungated)
        PF_TRY(block_matrix(l, PF_REQUIRED, il, "ffn_up_shexp", m->n_embd, n_ff, PF_NEVER, &moe->shared.up));
    PF_TRY(block_matrix(l, PF_REQUIRED, il, "ffn_down_shexp", n_ff, m->n_embd, PF_NEVER, &moe->shared.down));
    if (m->arch->shared_gate == PF_NEVER)
        return PF_OK;
    return block_matrix(l, m->arch->shared_gate, il, "ffn_gate_inp_shexp", m->n_embd, 1, PF_NEVER, &moe->shared_gate);
}

/* The table of picks for each token. A file may hold any bytes, so each number is checked. */
static pf_status bind_table(const struct pf_loader *l, int il, struct pf_moe *moe)
{
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "blk.%d.ffn_gate_tid2eid.weight", il);
    const struct pf_tensor *t = find(l, name);
    if (!t)
        return missing(l, name);
    PF_TRY(check_shape(l, t, l->m->n_used, l->m->n_vocab, 1));
    if (t->type != PF_I32)
        return wrong_type(l, t, pf_qtype_info(PF_I32)->name);
    moe->table = (const int32_t *)(const void *)t->data;
    for (int64_t i = 0; i < (int64_t)l->m->n_used * l->m->n_vocab; i++)
        if (moe->table[i] < 0 || moe->table[i] >= l->m->n_expert)
            PF_FAIL(PF_EFORMAT, "tensor %s has expert %d for token %lld; there are %d, in %s", name, moe->table[i],
                    (long long)(i / l->m->n_used), l->m->n_expert, pf_gguf_path(l->g));
    return PF_OK;
}

static pf_status bind_dense(const struct pf_loader *l, int il, struct pf_dense_ffn *f)
{
    const struct pf_model *m = l->m;
    enum pf_need bias = m->arch->dense_bias;
    int64_t n_ff = m->arch->layer_parts ? n_rows(l, il, "ffn_gate") : m->n_ff;
    if (n_ff > MAX_SHARED)
        PF_FAIL(PF_EFORMAT, "tensor blk.%d.ffn_gate.weight has %lld rows; %d are supported, in %s", il,
                (long long)n_ff, (int)MAX_SHARED, pf_gguf_path(l->g));
    f->act.kind = m->arch->act;
    PF_TRY(block_matrix(l, PF_REQUIRED, il, "ffn_gate", m->n_embd, n_ff, bias, &f->gate));
    PF_TRY(block_matrix(l, PF_REQUIRED, il, "ffn_up", m->n_embd, n_ff, bias, &f->up));
    return block_matrix(l, PF_REQUIRED, il, "ffn_down", n_ff, m->n_embd, bias, &f->down);
}

/* A dense feed-forward beside the experts, in the place of a shared one, and the norms around them. The router's input
 * is x, normed and then multiplied by a tensor and by 1 / sqrt(n_embd). */
static pf_status bind_beside(const struct pf_loader *l, int il, struct pf_layer *layer)
{
    struct pf_moe *moe = &layer->moe;
    int n = l->m->n_embd;
    moe->router.scale /= sqrtf((float)n);
    moe->shared_norm = layer->ffn_norm;
    PF_TRY(block_vector(l, PF_REQUIRED, il, "ffn_gate_inp.scale", n, 1, &moe->router_norm));
    PF_TRY(block_vector(l, PF_REQUIRED, il, "pre_ffw_norm_2.weight", n, 1, &layer->ffn_norm));
    PF_TRY(block_vector(l, PF_REQUIRED, il, "post_ffw_norm_1.weight", n, 1, &moe->shared_post));
    PF_TRY(block_vector(l, PF_REQUIRED, il, "post_ffw_norm_2.weight", n, 1, &moe->experts_post));
    return bind_dense(l, il, &moe->shared);
}

static pf_status bind_moe(const struct pf_loader *l, int il, struct pf_moe *moe)
{
    const struct pf_model *m = l->m;
    enum pf_need bias = m->arch->router_bias;
    moe->act.kind = m->arch->act;
    PF_TRY(block_matrix(l, PF_REQUIRED, il, "ffn_gate_inp", m->n_embd, m->n_expert, bias, &moe->router));
    if (moe->by_token)
        PF_TRY(bind_table(l, il, moe));
    else
        PF_TRY(block_vector(l, m->arch->select_bias, il, "exp_probs_b.bias", m->n_expert, 1, &moe->select_bias));
    PF_TRY(bind_experts(l, il, moe));
    if (m->n_expert_in != m->n_embd) {
        PF_TRY(block_matrix(l, PF_REQUIRED, il, "ffn_latent_down", m->n_embd, m->n_expert_in, PF_NEVER,
                            &moe->latent_down));
        PF_TRY(block_matrix(l, PF_REQUIRED, il, "ffn_latent_up", m->n_expert_in, m->n_embd, PF_NEVER,
                            &moe->latent_up));
    }
    return bind_shared(l, il, moe);
}

/* ---- The whole model --------------------------------------------------------------------------------------------- */

/* Also makes the output matrix the embedding, if it has none of its own. */
static pf_status bind_embedding_adapters(const struct pf_loader *l, int64_t n_vocab)
{
    struct pf_model *m = l->m;
    const struct pf_lora *flipped;
    PF_TRY(pf_lora_bind_embedding(m, "token_embd.weight", m->n_embd, n_vocab, &m->embed.lora, &flipped));
    if (m->output.data)
        return PF_OK;
    m->output = m->embed;
    m->output.lora = m->flipped = flipped;
    return PF_OK;
}

static pf_status bind_embedding(const struct pf_loader *l)
{
    struct pf_model *m = l->m;
    char name[NAME_BYTES];
    const struct pf_tensor *t = find(l, "token_embd.weight");
    if (!t)
        return missing(l, "token_embd.weight");
    int64_t n_vocab = t->ne[1];
    if (m->vocab && pf_vocab_size(m->vocab) != n_vocab)
        PF_FAIL(PF_EFORMAT, "tensor token_embd.weight has %lld rows, but the tokenizer has %lld tokens, in %s",
                (long long)n_vocab, (long long)pf_vocab_size(m->vocab), pf_gguf_path(l->g));
    if (n_vocab < 1 || n_vocab > MAX_VOCAB)
        PF_FAIL(PF_EFORMAT, "tensor token_embd.weight has %lld rows, in %s", (long long)n_vocab, pf_gguf_path(l->g));
    m->n_vocab = (int)n_vocab;
    PF_TRY(matrix(l, PF_REQUIRED, EMBEDDING, m->n_embd, n_vocab, PF_NEVER, &m->embed));
    PF_TRY(matrix(l, PF_OPTIONAL, "output", m->n_embd, n_vocab, PF_OPTIONAL, &m->output));
    PF_TRY(bind_embedding_adapters(l, n_vocab));
    m->embed.scale *= l->embedding_scale;
    m->output.scale /= l->logit_scale;
    if (m->arch->gated_streams)
        return bind_gated_mix(l, "output_hc", PF_NEVER, &m->output_mix);
    if (m->arch->streams && !m->arch->streams_mean)
        PF_TRY(bind_mix(l, spelling(l, -1, "output_hc", "hc_head", "_fn.weight"), m->streams.n, 1, &m->output_mix));
    snprintf(name, sizeof name, "%s.weight", m->arch->output_norm ? m->arch->output_norm : "output_norm");
    PF_TRY(vector(l, m->arch->norm_bias, "output_norm.bias", m->n_embd, 1, &m->output_norm_bias));
    return vector(l, PF_REQUIRED, name, m->n_embd, 1, &m->output_norm);
}

static pf_status bind_mixer(const struct pf_loader *l, int il, struct pf_layer *layer)
{
    switch (layer->mixer) {
    case PF_MIXER_ATTENTION:
        return bind_attention(l, il, &layer->attn);
    case PF_MIXER_LATENT:
        return bind_mla(l, il, layer);
    case PF_MIXER_COMPRESSED:
        return bind_compressed(l, il, layer);
    case PF_MIXER_DELTA:
        return bind_delta(l, il, &layer->delta);
    case PF_MIXER_MAMBA2:
        return bind_mamba(l, il, &layer->mamba);
    case PF_MIXER_SHORT_CONV:
        return bind_short_conv(l, il, &layer->short_conv);
    case PF_MIXER_NONE:
        break;
    }
    return PF_OK;
}

static pf_status bind_layer(const struct pf_loader *l, int il, struct pf_layer *layer)
{
    const struct pf_arch *arch = l->m->arch;
    char name[NAME_BYTES];
    if (!arch->gated_streams)
        PF_TRY(block_vector(l, PF_REQUIRED, il, "attn_norm.weight", l->m->n_embd, 1, &layer->attn_norm));
    PF_TRY(block_vector(l, arch->norm_bias, il, "attn_norm.bias", l->m->n_embd, 1, &layer->attn_norm_bias));
    if (arch->streams || arch->gated_streams)
        PF_TRY((arch->gated_streams ? bind_layer_gates : bind_layer_mixes)(l, il, layer));
    PF_TRY(bind_mixer(l, il, layer));
    layer->scale = 1;
    if (arch->post_norms) {
        PF_TRY(block_vector(l, PF_REQUIRED, il, "post_attention_norm.weight", l->m->n_embd, 1, &layer->attn_post));
        PF_TRY(block_vector(l, PF_REQUIRED, il, "post_ffw_norm.weight", l->m->n_embd, 1, &layer->ffn_post));
    }
    if (arch->layer_parts)
        PF_TRY(bind_own_part(l, il, layer));
    if (arch->index_means && layer->has_indexer)
        PF_TRY(bind_mean_indexer(l, il, &layer->indexer));
    if (arch->index_runs && layer->has_indexer)
        PF_TRY(bind_run_indexer(l, il, &layer->indexer));
    if (l->m->ngrams.layer == il)
        PF_TRY(bind_ngrams(l));
    if (!layer->has_ffn)
        return PF_OK;
    if (arch->ffn_norm) {
        snprintf(name, sizeof name, "%s.weight", arch->ffn_norm);
        PF_TRY(block_vector(l, PF_REQUIRED, il, name, l->m->n_embd, 1, &layer->ffn_norm));
        snprintf(name, sizeof name, "%s.bias", arch->ffn_norm);
        PF_TRY(block_vector(l, arch->norm_bias, il, name, l->m->n_embd, 1, &layer->ffn_norm_bias));
    }
    if (!layer->is_moe)
        return bind_dense(l, il, &layer->dense);
    PF_TRY(bind_moe(l, il, &layer->moe));
    return arch->dense_beside ? bind_beside(l, il, layer) : PF_OK;
}

/* A tensor nobody asked for: in a layer that runs it is an error, anywhere else it is only worth a word. */
static pf_status check_all_seen(const struct pf_loader *l)
{
    for (uint64_t i = 0; i < pf_gguf_n_tensors(l->g); i++) {
        const struct pf_tensor *t = pf_gguf_tensor_at(l->g, i);
        char name[NAME_BYTES];
        int il;
        if (l->seen[i])
            continue;
        snprintf(name, sizeof name, "%.*s", (int)t->name.n, t->name.p);
        if (sscanf(name, "blk.%d.", &il) == 1 && il < l->m->n_layer)
            PF_FAIL(PF_EUNSUPPORTED,
                    "tensor %s is not one that %s models have; this file needs something pfmoe does not do, in %s",
                    name, l->m->arch->name, pf_gguf_path(l->g));
        pf_model_logf(l->m, PF_LOG_WARN, "tensor %s is not used", name);
    }
    return PF_OK;
}

static pf_status bind_rope(const struct pf_loader *l)
{
    struct pf_rope_params p = l->rope;
    enum pf_need need = l->m->arch->rope_freqs ? PF_OPTIONAL : PF_NEVER;
    int n_divided = l->m->arch->half_rope ? l->near_rope.n_rot : p.n_rot;
    PF_TRY(vector(l, need, "rope_freqs.weight", n_divided / 2, 1, &p.divisors));
    if (l->m->arch->window == PF_WINDOW_BY_LAYER)
        pf_rope_init(&l->m->near_rope, &l->near_rope);
    if (l->m->arch->long_rope) {
        PF_TRY(vector(l, PF_REQUIRED, "rope_factors_long.weight", p.n_rot / 2, 1, &p.divisors));
        pf_rope_init(&l->m->long_rope, &p);
        l->m->long_from = p.n_ctx_orig + 1;
        PF_TRY(vector(l, PF_REQUIRED, "rope_factors_short.weight", p.n_rot / 2, 1, &p.divisors));
    }
    if (l->m->arch->compressed) {            /* whose extension is of layers with keys of blocks alone */
        struct pf_rope_params far = p;
        far.base = l->far_base;
        pf_rope_init(&l->m->far_rope, &far);
        p.factor = 0;
        p.yarn = false;
    }
    pf_rope_init(&l->m->rope, &p);
    if (l->m->arch->index_means)
        l->m->far_rope = l->m->rope;
    return PF_OK;
}

pf_status pf_bind_tensors(const struct pf_loader *l)
{
    struct pf_model *m = l->m;
    PF_TRY(bind_rope(l));
    PF_TRY(bind_embedding(l));
    PF_TRY(bind_per_layer(l));
    for (int il = 0; il < m->n_layer; il++)
        PF_TRY(bind_layer(l, il, &m->layers[il]));
    PF_TRY(check_all_seen(l));
    return pf_lora_all_used(m);
}
