/* Keys of indexers, which choose the positions that attention sees: which layers have one, of which size, and whether
 * it chooses single positions or runs of them. */
#include <limits.h>
#include <stdio.h>

#include "moe/load/keys.h"
#include "moe/load/read.h"

pf_status pf_read_index_sizes(const struct pf_loader *l, int n_rot, int ratio)
{
    struct pf_index_sizes *s = &l->m->index;
    s->ratio = ratio;
    s->run = s->n_lists = 1;
    s->eps = 1e-6f;
    PF_TRY(pf_key_int(l, "attention.indexer.head_count", true, 1, 4096, &s->n_head));
    PF_TRY(pf_key_int(l, "attention.indexer.key_length", true, n_rot, 4096, &s->width));
    return pf_key_int(l, "attention.indexer.top_k", true, 1, 65536, &s->max_chosen);
}

/* Runs of positions, whose keys become one; the budget counts positions. */
static pf_status read_pools(const struct pf_loader *l)
{
    struct pf_model *m = l->m;
    struct pf_index_sizes *s = &m->index;
    char name[PF_KEY_BYTES];
    bool tail = false;
    s->eps = 0;
    PF_TRY(pf_key_int(l, "attention.indexer.kpool", true, 2, 256, &s->ratio));
    PF_TRY(pf_key_bool(l, "attention.indexer.kpool_select_tail", &tail));
    PF_TRY(pf_key_real(l, "attention.layer_norm_epsilon", false, false, &s->eps));
    if (!tail)
        PF_FAIL(PF_EUNSUPPORTED, "key %s is not true; positions after the last full run are always seen here, in %s",
                pf_key_name(l, name, "attention.indexer.kpool_select_tail"), pf_gguf_path(l->g));
    if (s->max_chosen % s->ratio)
        PF_FAIL(PF_EFORMAT, "%d positions, which an indexer may choose, are no whole number of runs of %d, in %s",
                s->max_chosen, s->ratio, pf_gguf_path(l->g));
    s->max_chosen /= s->ratio;
    m->compressed.ratio[0] = s->ratio;
    for (int il = 0; il < m->n_layer; il++)
        if (m->layers[il].has_indexer) {
            m->layers[il].indexer.blocks = (struct pf_compressor){ .width = s->width, .ratio = s->ratio };
            m->layers[il].n_state += 3 * (size_t)s->width;
        }
    return PF_OK;
}

/* Every layer with attention has an indexer, or those that attention.indexer.types says; GLM-5.2, known by its context,
 * has them in layers 0, 1 and each fourth from 2 on. */
pf_status pf_read_indexer(const struct pf_loader *l)
{
    enum { SHARING_FROM_CONTEXT = 1 << 20, SHARING_PERIOD = 4, SHARING_PHASE = 2 };
    struct pf_model *m = l->m;
    int64_t full[PF_MAX_LAYERS];
    int first = 0;
    PF_TRY(pf_read_index_sizes(l, m->mla.n_rope, 1));
    if (m->mla.n_q_latent == 0)
        PF_FAIL(PF_EFORMAT, "%s models have indexers, which need an attention.q_lora_rank, in %s", m->arch->name,
                pf_gguf_path(l->g));
    for (int il = 0; il < l->n_block; il++)
        full[il] = m->n_ctx_train < SHARING_FROM_CONTEXT || m->arch->index_pools || il < SHARING_PHASE ||
                   il % SHARING_PERIOD == SHARING_PHASE;
    PF_TRY(pf_key_ints(l, "attention.indexer.types", l->n_block, 0, INT_MAX, full));
    for (int il = 0; il < m->n_layer; il++)
        m->layers[il].has_indexer = full[il] == 1 && m->layers[il].mixer == PF_MIXER_LATENT;
    while (first < m->n_layer && m->layers[first].mixer != PF_MIXER_LATENT)
        first++;
    if (first < m->n_layer && !m->layers[first].has_indexer)
        PF_FAIL(PF_EFORMAT, "the first layer has no indexer whose choice it could take, in %s", pf_gguf_path(l->g));
    return m->arch->index_pools ? read_pools(l) : PF_OK;
}

/* Layers of plain attention that choose runs of positions, all of the same length, by means of their keys. */
pf_status pf_read_index_means(const struct pf_loader *l, int hd_k)
{
    static const char suffix[] = "attention.compress_ratios";
    enum { MAX_RUN = 256 };
    struct pf_model *m = l->m;
    int64_t run[PF_MAX_LAYERS] = { 0 };
    int n_rot = hd_k, *all = &m->compressed.ratio[0];
    char name[PF_KEY_BYTES];
    PF_TRY(pf_key_ints(l, suffix, l->n_block, 0, MAX_RUN, run));
    PF_TRY(pf_key_int(l, "rope.dimension_count", false, 2, hd_k, &n_rot));
    for (int il = 0; il < m->n_layer; il++) {
        m->layers[il].has_indexer = run[il] > 0 && m->layers[il].mixer == PF_MIXER_ATTENTION;
        if (!m->layers[il].has_indexer)
            continue;
        if (*all && *all != run[il])
            PF_FAIL(PF_EUNSUPPORTED, "key %s has %d and %lld; one number for all layers is supported, in %s",
                    pf_key_name(l, name, suffix), *all, (long long)run[il], pf_gguf_path(l->g));
        *all = (int)run[il];
    }
    if (*all == 0)
        return PF_OK;
    PF_TRY(pf_read_index_sizes(l, n_rot, *all));
    m->index.max_chosen /= *all;
    if (m->index.max_chosen == 0)
        PF_FAIL(PF_EFORMAT, "key %s is less than a run of %d positions, in %s",
                pf_key_name(l, name, "attention.indexer.top_k"), *all, pf_gguf_path(l->g));
    for (int il = 0; il < m->n_layer; il++)
        m->layers[il].n_state += m->layers[il].has_indexer ? 3 * (size_t)m->index.width : 0;
    return PF_OK;
}

/* Layers whose indexer chooses runs of positions: those that have its tensors. */
pf_status pf_read_index_runs(const struct pf_loader *l, int hd_k)
{
    struct pf_model *m = l->m;
    struct pf_index_sizes *s = &m->index;
    char name[PF_KEY_BYTES];
    int n_rot = hd_k;
    if (!m->arch->index_runs)
        return PF_OK;
    PF_TRY(pf_key_int(l, "rope.dimension_count", false, 2, PF_MAX_ROTATED, &n_rot));
    PF_TRY(pf_read_index_sizes(l, n_rot, 1));
    PF_TRY(pf_key_int(l, "attention.indexer.block_size", true, s->n_head, PF_KV_CHUNK_POSITIONS, &s->run));
    PF_TRY(pf_key_int(l, "attention.indexer.local_blocks", false, 1, s->max_chosen, &s->n_local));
    if (PF_KV_CHUNK_POSITIONS % s->run || s->n_local < 1)
        PF_FAIL(PF_EUNSUPPORTED, "runs of %d positions, of which the last %d are always seen, are not supported; runs "
                "divide %d, and one at least is seen, in %s", s->run, s->n_local, (int)PF_KV_CHUNK_POSITIONS,
                pf_gguf_path(l->g));
    s->n_lists = s->n_head;
    for (int il = 0; il < m->n_layer; il++) {
        struct pf_layer *layer = &m->layers[il];
        snprintf(name, sizeof name, "blk.%d.indexer.q_proj.weight", il);
        layer->has_indexer = pf_gguf_tensor(l->g, name) != NULL;
        if (layer->has_indexer && layer->attn.n_kv_head != s->n_head)
            PF_FAIL(PF_EFORMAT, "the indexer of layer %d has %d heads, keys and values have %d, in %s", il, s->n_head,
                    layer->attn.n_kv_head, pf_gguf_path(l->g));
    }
    return PF_OK;
}
