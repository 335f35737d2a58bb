/* Facts about an open model: pf_model_info. */
#include <stdio.h>

#include "moe/open/open.h"

static void read_string(const pf_gguf *g, const char *key, char *out, size_t cap)
{
    struct pf_str s;
    const struct pf_gguf_kv *kv = pf_gguf_find(g, key);
    out[0] = 0;
    if (kv && kv->type == PF_GGUF_STRING && pf_gguf_str(g, key, &s) == PF_OK)
        snprintf(out, cap, "%.*s", (int)s.n, s.p);
}

static pf_status read_sampling(struct pf_model *m)
{
    int64_t top_k = -1;
    struct pf_model_info *info = &m->info;
    info->temp = info->top_p = info->min_p = -1;
    PF_TRY(pf_gguf_real_opt(m->file, "general.sampling.temp", &info->temp));
    PF_TRY(pf_gguf_real_opt(m->file, "general.sampling.top_p", &info->top_p));
    PF_TRY(pf_gguf_real_opt(m->file, "general.sampling.min_p", &info->min_p));
    PF_TRY(pf_gguf_int_opt(m->file, "general.sampling.top_k", 0, INT32_MAX, &top_k));
    info->top_k = (int)top_k;
    return PF_OK;
}

/* Weights gone over to decode one token. */
static uint64_t bytes_per_token(const struct pf_model *m)
{
    uint64_t bytes = pf_weight_bytes(&m->output) + m->embed.row_bytes + pf_weight_bytes(&m->output_mix.fn);
    for (int il = 0; il < m->n_layer; il++)
        bytes += pf_layer_bytes(&m->layers[il]) + pf_picked_bytes(&m->layers[il]);
    return bytes;
}

void pf_info_placed(struct pf_model *m)
{
    m->info.backend = m->backend->ops->name;
    m->info.isa = m->backend->ops->describe(m->backend);
    pf_place_share(m->place, &m->info.n_gpu_layers, &m->info.gpu_bytes_per_token);
}

void pf_info_names(struct pf_model *m)
{
    read_string(m->file, "general.name", m->name, sizeof m->name);
    read_string(m->file, "general.architecture", m->arch_name, sizeof m->arch_name);
}

void pf_info_weights(struct pf_model *m)
{
    struct pf_model_info *info = &m->info;
    info->weight_bytes = 0;
    for (uint64_t i = 0; i < pf_gguf_n_tensors(m->file); i++) {
        const struct pf_tensor *t = pf_gguf_tensor_at(m->file, i);
        info->weight_bytes += pf_tensor_layer(m, t) == PF_UNUSED ? 0 : t->n_bytes;
    }
    info->bytes_per_token = m->backend ? bytes_per_token(m) : 0;
}

static void fill_sizes(struct pf_model *m)
{
    struct pf_model_info *info = &m->info;
    info->n_layers = m->n_layer;
    info->n_ctx_train = m->n_ctx_train;
    info->n_embd = m->n_embd;
    for (int il = m->n_layer - 1; il >= 0; il--)
        if (m->layers[il].attn.n_head > 0) {
            info->n_heads = m->layers[il].attn.n_head;
            info->n_kv_heads = m->layers[il].attn.n_kv_head;
        }
    info->n_experts = m->n_expert;
    info->n_experts_used = m->n_used;
    info->n_expert_layers = m->n_moe;
    info->can_draft = pf_can_draft(m);
    info->n_ctx_long = m->long_from;
}

pf_status pf_info_fill(struct pf_model *m)
{
    struct pf_model_info *info = &m->info;
    pf_info_names(m);
    info->name = m->name;
    info->architecture = m->arch_name;
    info->has_tokenizer = m->vocab != NULL;
    info->has_chat_template = m->tmpl != NULL;
    info->n_vocab = m->backend ? m->n_vocab : m->vocab ? pf_vocab_size(m->vocab) : 0;
    info->backend = m->backend ? m->backend->ops->name : "";
    info->isa = m->backend ? m->backend->ops->describe(m->backend) : "";
    pf_info_weights(m);
    if (m->backend)
        fill_sizes(m);
    return read_sampling(m);
}
