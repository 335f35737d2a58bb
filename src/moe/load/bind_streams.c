/* Tensors of what runs beside the blocks: several residual streams, and what layers add of the token itself (a part for
 * each layer, or n-grams). */
#include <math.h>
#include <stdio.h>

#include "base/pf_mem.h"
#include "moe/load/bind.h"
#include "moe/load/tensors.h"

/* ---- Residual streams -------------------------------------------------------------------------------------------- */

/* The three tensors whose names begin so; n_weights that come out, in so many parts. */
pf_status pf_bind_mix(const struct pf_loader *l, const char *prefix, int n_weights, int n_parts, struct pf_mix *mix)
{
    char name[PF_TENSOR_BYTES];
    snprintf(name, sizeof name, "%s_fn", prefix);
    PF_TRY(pf_bind_matrix(l, PF_REQUIRED, name, (int64_t)l->m->streams.n * l->m->n_embd, n_weights, PF_NEVER,
                          &mix->fn));
    snprintf(name, sizeof name, "%s_base.weight", prefix);
    PF_TRY(pf_bind_vector(l, PF_REQUIRED, name, n_weights, 1, &mix->base));
    snprintf(name, sizeof name, "%s_scale.weight", prefix);
    return pf_bind_vector(l, PF_REQUIRED, name, n_parts, 1, &mix->scale);
}

/* Tensors of gated streams, whose names begin with `prefix`. The products' inputs count a share of the streams each. */
pf_status pf_bind_gated_mix(const struct pf_loader *l, const char *prefix, enum pf_need inject, struct pf_mix *mix)
{
    char name[PF_TENSOR_BYTES];
    int n = l->m->streams.n, rank = l->m->streams.low_rank;
    int64_t n_all = (int64_t)n * l->m->n_embd;
    snprintf(name, sizeof name, "%s_norm.weight", prefix);
    PF_TRY(pf_bind_vector(l, PF_REQUIRED, name, n_all, 1, &mix->norm));
    snprintf(name, sizeof name, "%s_down", prefix);
    PF_TRY(pf_bind_matrix(l, PF_REQUIRED, name, n_all, rank, PF_NEVER, &mix->down));
    snprintf(name, sizeof name, "%s_up", prefix);
    PF_TRY(pf_bind_matrix(l, PF_REQUIRED, name, rank, n_all, PF_NEVER, &mix->up));
    mix->down.scale /= (float)n;
    if (inject == PF_NEVER)
        return PF_OK;
    snprintf(name, sizeof name, "%s_inject", prefix);
    PF_TRY(pf_bind_matrix(l, inject, name, n_all, n, PF_NEVER, &mix->inject));
    mix->inject.scale /= (float)n;
    return PF_OK;
}

pf_status pf_bind_layer_gates(const struct pf_loader *l, int il, struct pf_layer *layer)
{
    struct pf_mix *mixes[] = { &layer->attn_mix, &layer->ffn_mix };
    static const char *const names[] = { "attn", "ffn" };
    for (int i = 0; i < 2; i++) {
        char prefix[PF_TENSOR_BYTES / 2];
        snprintf(prefix, sizeof prefix, "blk.%d.hc_%s", il, names[i]);
        PF_TRY(pf_bind_gated_mix(l, prefix, PF_REQUIRED, mixes[i]));
        pf_layer_list(l, il, &mixes[i]->down);
        pf_layer_list(l, il, &mixes[i]->up);
        pf_layer_list(l, il, &mixes[i]->inject);
    }
    return PF_OK;
}

pf_status pf_bind_layer_mixes(const struct pf_loader *l, int il, struct pf_layer *layer)
{
    char prefix[PF_TENSOR_BYTES / 2];
    int n = l->m->streams.n, n_weights = n * (2 + n);
    snprintf(prefix, sizeof prefix, "blk.%d.hc_attn", il);
    PF_TRY(pf_bind_mix(l, prefix, n_weights, 3, &layer->attn_mix));
    pf_layer_list(l, il, &layer->attn_mix.fn);
    snprintf(prefix, sizeof prefix, "blk.%d.hc_ffn", il);
    PF_TRY(pf_bind_mix(l, prefix, n_weights, 3, &layer->ffn_mix));
    pf_layer_list(l, il, &layer->ffn_mix.fn);
    return PF_OK;
}

/* ---- Rows gathered for each token -------------------------------------------------------------------------------- */

/* Where a model gathers rows for each token, the table of these. */
static pf_status bind_gathered(const struct pf_loader *l, int64_t width)
{
    struct pf_model *m = l->m;
    const struct pf_tensor *t = pf_gguf_tensor(l->g, "per_layer_token_embd.weight");
    if (t && t->ne[1] > INT32_MAX)
        PF_FAIL(PF_EUNSUPPORTED, "tensor per_layer_token_embd.weight has %lld rows; %d are supported, in %s",
                (long long)t->ne[1], INT32_MAX, pf_gguf_path(l->g));
    return pf_bind_matrix(l, PF_REQUIRED, "per_layer_token_embd", width, t ? t->ne[1] : 0, PF_NEVER, &m->gather.table);
}

/* What all layers make of the token together. Half of the parts' mean square comes from the table, half from the
 * embedding: their sum is divided by sqrt(2), which is in the weights. */
pf_status pf_bind_per_layer(const struct pf_loader *l)
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
    PF_TRY(pf_bind_matrix(l, PF_REQUIRED, "per_layer_model_proj", m->n_embd, (int64_t)width * m->n_layer, PF_NEVER,
                          &m->per_layer.proj));
    PF_TRY(pf_bind_vector(l, PF_REQUIRED, "per_layer_proj_norm.weight", width, 1, &norm));
    m->gather.table.scale *= sqrtf((float)width / 2);
    m->per_layer.proj.scale /= sqrtf((float)m->n_embd);
    float *halved = pf_alloc_array(PF_MEM_MODEL, (size_t)width, sizeof *halved);
    PF_TRY(pf_model_own(m, halved));
    for (int i = 0; i < width; i++)
        halved[i] = norm[i] * sqrtf(0.5f);
    m->per_layer.norm = halved;
    return PF_OK;
}

pf_status pf_bind_own_part(const struct pf_loader *l, int il, struct pf_layer *layer)
{
    int n_embd = l->m->n_embd, width = l->m->per_layer.width;
    const float *scale;
    PF_TRY(pf_layer_vector(l, PF_OPTIONAL, il, "layer_output_scale.weight", 1, 1, &scale));
    layer->scale = scale ? *scale : 1;
    if (width == 0)
        return PF_OK;
    PF_TRY(pf_layer_matrix(l, PF_REQUIRED, il, "inp_gate", n_embd, width, PF_NEVER, &layer->own.gate));
    PF_TRY(pf_layer_matrix(l, PF_REQUIRED, il, "proj", width, n_embd, PF_NEVER, &layer->own.proj));
    return pf_layer_vector(l, PF_REQUIRED, il, "post_norm.weight", n_embd, 1, &layer->own.norm);
}

pf_status pf_bind_ngrams(const struct pf_loader *l)
{
    const struct pf_model *m = l->m;
    struct pf_layer *layer = &m->layers[m->ngrams.layer];
    struct pf_ngram_weights *g = &layer->ngrams;
    int il = m->ngrams.layer, n_embd = m->n_embd, n_all = m->streams.n * n_embd;
    PF_TRY(bind_gathered(l, m->ngrams.width));
    if (pf_ngrams_end(&m->ngrams) > (uint64_t)m->gather.table.n_out)
        PF_FAIL(PF_EFORMAT, "tensor per_layer_token_embd.weight has %d rows, but n-grams have up to %llu, in %s",
                m->gather.table.n_out, (unsigned long long)pf_ngrams_end(&m->ngrams), pf_gguf_path(l->g));
    PF_TRY(pf_layer_matrix(l, PF_REQUIRED, il, "ple_key", n_embd, n_all, PF_NEVER, &g->key));
    PF_TRY(pf_layer_matrix(l, PF_REQUIRED, il, "ple_value", n_embd, n_embd, PF_NEVER, &g->value));
    PF_TRY(pf_layer_vector(l, PF_REQUIRED, il, "ple_norm_key.weight", n_all, 1, &g->key_norm));
    PF_TRY(pf_layer_vector(l, PF_REQUIRED, il, "ple_norm_query.weight", n_all, 1, &g->query_norm));
    PF_TRY(pf_layer_vector(l, PF_REQUIRED, il, "ple_norm_conv.weight", n_all, 1, &g->conv_norm));
    return pf_bind_conv(l, il, "ple_conv1d.weight", m->ngrams.taps, n_all, &g->conv);
}
