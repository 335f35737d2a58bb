/* A bound model of which this process has some of the layers: model.h. */
#include "moe/model/model.h"

static bool is_kept(const struct pf_model *m, const struct pf_tensor *t, int first, int end)
{
    int il = pf_tensor_layer(m, t);
    if (il >= 0 && il < m->n_layer)
        return il >= first && il < end;
    return first == 0 || (t->data != m->embed.data && t->data != m->output.data);
}

static void keep_tensors(struct pf_model *m, int first, int end)
{
    for (uint64_t i = 0; i < pf_gguf_n_tensors(m->file); i++)
        m->used[i] = m->used[i] && is_kept(m, pf_gguf_tensor_at(m->file, i), first, end);
    if (first == 0)
        return;
    m->embed = (struct pf_weight){ .n_in = m->embed.n_in };
    m->output = (struct pf_weight){ .n_in = m->output.n_in };
}

void pf_model_keep_layers(struct pf_model *m, int first, int end)
{
    keep_tensors(m, first, end);
    for (int il = 0; il < m->n_layer; il++)
        m->layers[il].attn.kv_layer -= first;
    m->n_before = first;
    m->n_behind = m->n_layer - end;
    m->n_layer = end - first;
    m->first_block += first;
    m->layers += first;
    m->n_moe = 0;
    for (int il = 0; il < m->n_layer; il++) {
        m->layers[il].moe.ordinal = m->n_moe;
        m->n_moe += m->layers[il].is_moe;
    }
    if (m->n_moe == 0)                       /* to placement it is a model without experts */
        m->n_expert = m->n_used = 0;
}
