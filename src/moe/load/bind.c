/* Tensors to weights: embedding and output, and layer by layer what the layer consists of (bind.h has the parts).
 *
 * Tensors are looked up by the names that the architecture's table implies and marked as they are found; a tensor of a
 * used layer that nobody asked for means a variant we would compute wrongly, so it is refused by name. */
#include "moe/load/bind.h"

#include <stdio.h>

#include "moe/load/nextn.h"
#include "moe/load/tensors.h"
#include "moe/model/lora.h"

enum { MAX_VOCAB = 1 << 24 };

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

/* How streams are read at the end. The layer that guesses ahead may have its own way. */
static pf_status bind_output_mix(const struct pf_loader *l)
{
    char own[PF_TENSOR_BYTES];
    bool has_own = pf_nextn_name(l, own, "hc_head_fn", "") == own;
    snprintf(own, sizeof own, "blk.%d.nextn.hc_head", l->m->first_block);
    return pf_bind_mix(l, has_own ? own : pf_tensor_spelling(l, -1, "output_hc", "hc_head", "_fn.weight"),
                       l->m->streams.n, 1, &l->m->output_mix);
}

static pf_status bind_embedding(const struct pf_loader *l)
{
    struct pf_model *m = l->m;
    char name[PF_TENSOR_BYTES], own[PF_TENSOR_BYTES];
    const char *embedding = pf_nextn_name(l, own, "embed_tokens", PF_EMBEDDING);
    snprintf(name, sizeof name, "%.80s.weight", embedding);
    const struct pf_tensor *t = pf_tensor_find(l, name);
    if (!t)
        return pf_tensor_missing(l, name);
    int64_t n_vocab = t->ne[1];
    if (m->vocab && pf_vocab_size(m->vocab) != n_vocab)
        PF_FAIL(PF_EFORMAT, "tensor token_embd.weight has %lld rows, but the tokenizer has %lld tokens, in %s",
                (long long)n_vocab, (long long)pf_vocab_size(m->vocab), pf_gguf_path(l->g));
    if (n_vocab < 1 || n_vocab > MAX_VOCAB)
        PF_FAIL(PF_EFORMAT, "tensor %s has %lld rows, in %s", name, (long long)n_vocab, pf_gguf_path(l->g));
    m->n_vocab = (int)n_vocab;
    PF_TRY(pf_bind_matrix(l, PF_REQUIRED, embedding, m->n_embd, n_vocab, PF_NEVER, &m->embed));
    const char *output = pf_nextn_name(l, own, "shared_head_head", "output");
    PF_TRY(pf_bind_matrix(l, PF_OPTIONAL, output, m->n_embd, n_vocab, PF_OPTIONAL, &m->output));
    PF_TRY(bind_embedding_adapters(l, n_vocab));
    m->embed.scale *= l->embedding_scale;
    m->output.scale /= l->logit_scale;
    if (m->arch->gated_streams)
        return pf_bind_gated_mix(l, "output_hc", PF_NEVER, &m->output_mix);
    if (m->arch->streams && !m->arch->streams_mean)
        PF_TRY(bind_output_mix(l));
    const char *norm = m->arch->output_norm ? m->arch->output_norm : "output_norm";
    snprintf(name, sizeof name, "%.80s.weight", pf_nextn_name(l, own, "shared_head_norm", norm));
    PF_TRY(pf_bind_vector(l, m->arch->norm_bias, "output_norm.bias", m->n_embd, 1, &m->output_norm_bias));
    return pf_bind_vector(l, PF_REQUIRED, name, m->n_embd, 1, &m->output_norm);
}

static pf_status bind_mixer(const struct pf_loader *l, int il, struct pf_layer *layer)
{
    switch (layer->mixer) {
    case PF_MIXER_ATTENTION:
        return pf_bind_attention(l, il, &layer->attn);
    case PF_MIXER_LATENT:
        return pf_bind_mla(l, il, layer);
    case PF_MIXER_COMPRESSED:
        return pf_bind_compressed(l, il, layer);
    case PF_MIXER_DELTA:
        return pf_bind_delta(l, il, &layer->delta);
    case PF_MIXER_MAMBA2:
        return pf_bind_mamba(l, il, &layer->mamba);
    case PF_MIXER_SHORT_CONV:
        return pf_bind_short_conv(l, il, &layer->short_conv);
    case PF_MIXER_NONE:
        break;
    }
    return PF_OK;
}

static pf_status bind_layer(const struct pf_loader *l, int il, struct pf_layer *layer)
{
    const struct pf_arch *arch = l->m->arch;
    char name[PF_TENSOR_BYTES];
    if (!arch->gated_streams)
        PF_TRY(pf_layer_vector(l, PF_REQUIRED, il, "attn_norm.weight", l->m->n_embd, 1, &layer->attn_norm));
    PF_TRY(pf_layer_vector(l, arch->norm_bias, il, "attn_norm.bias", l->m->n_embd, 1, &layer->attn_norm_bias));
    if (arch->streams || arch->gated_streams)
        PF_TRY((arch->gated_streams ? pf_bind_layer_gates : pf_bind_layer_mixes)(l, il, layer));
    PF_TRY(bind_mixer(l, il, layer));
    layer->scale = 1;
    if (arch->post_norms) {
        PF_TRY(pf_layer_vector(l, PF_REQUIRED, il, "post_attention_norm.weight", l->m->n_embd, 1, &layer->attn_post));
        PF_TRY(pf_layer_vector(l, PF_REQUIRED, il, "post_ffw_norm.weight", l->m->n_embd, 1, &layer->ffn_post));
    }
    if (arch->layer_parts)
        PF_TRY(pf_bind_own_part(l, il, layer));
    if ((arch->index_means || arch->index_runs) && layer->has_indexer)
        PF_TRY(pf_bind_key_indexer(l, il, &layer->indexer));
    if (l->m->ngrams.layer == il)
        PF_TRY(pf_bind_ngrams(l));
    if (!layer->has_ffn)
        return PF_OK;
    if (arch->parallel)
        layer->ffn_norm = layer->attn_norm;
    const char *norm = l->m->is_nextn && arch->split_layers ? "post_attention_norm" : arch->ffn_norm;
    if (norm) {
        snprintf(name, sizeof name, "%s.weight", norm);
        PF_TRY(pf_layer_vector(l, PF_REQUIRED, il, name, l->m->n_embd, 1, &layer->ffn_norm));
        snprintf(name, sizeof name, "%s.bias", norm);
        PF_TRY(pf_layer_vector(l, arch->norm_bias, il, name, l->m->n_embd, 1, &layer->ffn_norm_bias));
    }
    if (!layer->is_moe)
        return pf_bind_dense(l, il, &layer->dense);
    PF_TRY(pf_bind_moe(l, il, &layer->moe));
    return arch->dense_beside ? pf_bind_beside(l, il, layer) : PF_OK;
}

/* A tensor nobody asked for: in a layer that runs it is an error, anywhere else it is only worth a word. */
static pf_status check_all_seen(const struct pf_loader *l)
{
    for (uint64_t i = 0; i < pf_gguf_n_tensors(l->g); i++) {
        const struct pf_tensor *t = pf_gguf_tensor_at(l->g, i);
        char name[PF_TENSOR_BYTES];
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
    PF_TRY(pf_bind_vector(l, need, "rope_freqs.weight", n_divided / 2, 1, &p.divisors));
    if (l->m->arch->window == PF_WINDOW_BY_LAYER && !l->m->arch->still_far)
        pf_rope_init(&l->m->near_rope, &l->near_rope);
    if (l->m->arch->long_rope) {
        PF_TRY(pf_bind_vector(l, PF_REQUIRED, "rope_factors_long.weight", p.n_rot / 2, 1, &p.divisors));
        pf_rope_init(&l->m->long_rope, &p);
        l->m->long_from = p.n_ctx_orig + 1;
        PF_TRY(pf_bind_vector(l, PF_REQUIRED, "rope_factors_short.weight", p.n_rot / 2, 1, &p.divisors));
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
    PF_TRY(pf_bind_per_layer(l));
    for (int il = m->first_block; il < m->n_layer; il++)
        PF_TRY(bind_layer(l, il, &m->layers[il]));
    if (m->is_nextn)                         /* whose layer may have more than is used */
        return pf_nextn_bind(l);
    PF_TRY(check_all_seen(l));
    return pf_lora_all_used(m);
}
