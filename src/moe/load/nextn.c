/* See nextn.h. */
#include "moe/load/nextn.h"

#include <stdio.h>
#include <string.h>

#include "moe/load/keys.h"
#include "moe/load/tensors.h"

bool pf_nextn_is_there(const struct pf_loader *l, int il)
{
    char name[PF_TENSOR_BYTES];
    snprintf(name, sizeof name, "blk.%d.nextn.enorm.weight", il);
    return pf_gguf_tensor(l->g, name) != NULL;
}

pf_status pf_nextn_count(const struct pf_loader *l, int n_nextn)
{
    struct pf_model *m = l->m;
    if (!m->arch->nextn)
        PF_FAIL(PF_EUNSUPPORTED, "%s models run without the layer that guesses ahead, in %s", m->arch->name,
                pf_gguf_path(l->g));
    if (n_nextn == 0 || !pf_nextn_is_there(l, m->n_layer))
        PF_FAIL(PF_EUNSUPPORTED, "there is no layer that guesses ahead in %s", pf_gguf_path(l->g));
    m->first_block = m->n_layer++;
    return PF_OK;
}

pf_status pf_nextn_check(const struct pf_loader *l)
{
    struct pf_layer *layer = &l->m->layers[l->m->first_block];
    layer->has_indexer = false;
    if (layer->n_state || !layer->has_ffn || layer->mixer == PF_MIXER_NONE)
        PF_FAIL(PF_EUNSUPPORTED, "layer %d, which guesses ahead, is not one of attention and a feed-forward, in %s",
                l->m->first_block, pf_gguf_path(l->g));
    return PF_OK;
}

pf_status pf_nextn_bind(const struct pf_loader *l)
{
    struct pf_nextn_entry *e = &l->m->entry;
    int il = l->m->first_block, n = l->m->n_embd;
    PF_TRY(pf_layer_matrix(l, PF_REQUIRED, il, "nextn.eh_proj", 2 * (int64_t)n, n, PF_NEVER, &e->eh));
    if (l->m->arch->nextn_centred)
        PF_TRY(pf_key_real(l, "attention.layer_norm_epsilon", true, true, &l->m->centred_eps));
    PF_TRY(pf_layer_vector(l, PF_REQUIRED, il, "nextn.enorm.weight", n, 1, &e->enorm));
    return pf_layer_vector(l, PF_REQUIRED, il, "nextn.hnorm.weight", n, 1, &e->hnorm);
}

void pf_nextn_drop_others(struct pf_model *m)
{
    m->layers += m->first_block;
    m->n_layer = 1;
    m->layers->attn.kv_layer = 0;
    m->layers->moe.ordinal = 0;
    m->layers->state_at = 0;
    m->n_moe = m->layers->is_moe;
    m->recurrent = false;
    memset(m->compressed.ratio, 0, sizeof m->compressed.ratio);
    m->delta = (struct pf_delta_sizes){ .d = 0 };
    m->mamba = (struct pf_mamba_sizes){ .n_head = 0 };
    m->index = (struct pf_index_sizes){ .width = 0 };
}

const char *pf_nextn_name(const struct pf_loader *l, char own[], const char *suffix, const char *name)
{
    char full[PF_TENSOR_BYTES];
    snprintf(own, PF_TENSOR_BYTES, "blk.%d.nextn.%s", l->m->first_block, suffix);
    snprintf(full, sizeof full, "%s.weight", own);
    return l->m->is_nextn && pf_gguf_tensor(l->g, full) ? own : name;
}
