/* Keys of attention whose keys and values are one latent row: a row for each position (MLA), or also rows that stand
 * for blocks of positions (compressed). */
#include <limits.h>
#include <math.h>

#include "moe/load/keys.h"
#include "moe/load/read.h"

/* Newer files describe the cache in key_length and value_length and the heads in the keys ending in _mla, older ones
 * only the heads. */
pf_status pf_read_mla(const struct pf_loader *l)
{
    struct pf_model *m = l->m;
    struct pf_mla_sizes *s = &m->mla;
    int n_k = 0, temper = 0;
    bool rotate = !m->arch->no_rope;
    PF_TRY(pf_key_int(l, "attention.head_count", true, 1, PF_MAX_HEADS, &s->n_head));
    PF_TRY(pf_key_int(l, "attention.kv_lora_rank", true, 1, 4096, &s->n_latent));
    PF_TRY(pf_key_int(l, "attention.q_lora_rank", false, 0, PF_MAX_DIM, &s->n_q_latent));
    PF_TRY(pf_key_int(l, "attention.key_length", true, 1, 8192, &n_k));
    PF_TRY(pf_key_int(l, "attention.key_length_mla", false, 1, 8192, &n_k));
    PF_TRY(pf_key_int(l, "attention.value_length", true, 1, 8192, &s->n_v));
    PF_TRY(pf_key_int(l, "attention.value_length_mla", false, 1, 8192, &s->n_v));
    PF_TRY(pf_key_int(l, "rope.dimension_count", true, rotate ? 2 : 0, n_k - 1, &s->n_rope));
    PF_TRY(pf_key_int(l, "attention.temperature_length", false, 0, INT_MAX, &temper));
    s->n_nope = n_k - s->n_rope;
    for (int il = 0; il < m->n_layer; il++)
        if (m->layers[il].mixer == PF_MIXER_LATENT)
            m->layers[il].attn = (struct pf_attention){
                .n_head = s->n_head, .n_kv_head = 1, .hd_k = s->n_latent + s->n_rope, .hd_v = s->n_latent,
                .rotate = rotate, .v_in_k = true, .scale = 1.0f / sqrtf((float)n_k) };
    PF_TRY(pf_read_temper(l, temper));
    return m->arch->indexer ? pf_read_indexer(l) : PF_OK;
}

enum { FINE_RATIO = 4, COARSE_RATIO = 128 };       /* blocks of FINE_RATIO overlap, and an indexer chooses among them */

static void set_ratio(struct pf_model *m, struct pf_layer *layer, int ratio)
{
    bool fine = ratio == FINE_RATIO;
    if (ratio == 0)
        return;
    layer->compressed.blocks = (struct pf_compressor){ .width = layer->attn.hd_k, .ratio = ratio, .overlaps = fine };
    layer->n_state = 3 * (size_t)(1 + fine) * (size_t)layer->attn.hd_k;
    layer->has_indexer = fine;
    if (fine) {
        layer->indexer.blocks = (struct pf_compressor){ .width = m->index.width, .ratio = ratio, .overlaps = true };
        layer->n_state += 3 * 2 * (size_t)m->index.width;
    }
}

/* Which layers have keys of blocks, and of how many positions. */
static pf_status read_ratios(const struct pf_loader *l)
{
    static const char suffix[] = "attention.compress_ratios";
    struct pf_model *m = l->m;
    int64_t ratio[PF_MAX_LAYERS];
    char name[PF_KEY_BYTES];
    bool found;
    PF_TRY(pf_gguf_ints_opt(l->g, pf_key_name(l, name, suffix), pf_key_entries(l, suffix), 0, INT_MAX, ratio, &found));
    if (!found)
        PF_FAIL(PF_EFORMAT, "key %s is missing from %s", name, pf_gguf_path(l->g));
    for (int il = 0; il < m->n_layer; il++) {
        if (ratio[il] != 0 && ratio[il] != FINE_RATIO && ratio[il] != COARSE_RATIO)
            PF_FAIL(PF_EUNSUPPORTED, "key %s has %lld for layer %d; 0, %d and %d are supported, in %s", name,
                    (long long)ratio[il], il, FINE_RATIO, COARSE_RATIO, pf_gguf_path(l->g));
        if (ratio[il] != 0)
            m->compressed.ratio[ratio[il] == COARSE_RATIO] = (int)ratio[il];
    }
    if (m->compressed.ratio[0])
        PF_TRY(pf_read_index_sizes(l, m->compressed.n_rot, FINE_RATIO));
    for (int il = 0; il < m->n_layer; il++)
        set_ratio(m, &m->layers[il], (int)ratio[il]);
    return PF_OK;
}

pf_status pf_read_compressed(const struct pf_loader *l)
{
    struct pf_model *m = l->m;
    struct pf_compressed_sizes *s = &m->compressed;
    int n_head = 0, n_kv_head = 0, hd = 0, hd_v, window = 0;
    PF_TRY(pf_key_int(l, "attention.head_count", true, 1, PF_MAX_HEADS, &n_head));
    PF_TRY(pf_key_int(l, "attention.head_count_kv", true, 1, 1, &n_kv_head));
    PF_TRY(pf_key_int(l, "attention.key_length", true, 1, 4096, &hd));
    hd_v = hd;
    PF_TRY(pf_key_int(l, "attention.value_length", false, hd, hd, &hd_v));
    PF_TRY(pf_key_int(l, "attention.sliding_window", true, 1, INT_MAX, &window));
    PF_TRY(pf_key_int(l, "attention.q_lora_rank", true, 1, PF_MAX_DIM, &s->n_q_latent));
    PF_TRY(pf_key_int(l, "attention.output_group_count", true, 1, n_head, &s->n_group));
    PF_TRY(pf_key_int(l, "attention.output_lora_rank", true, 1, PF_MAX_DIM, &s->n_group_out));
    PF_TRY(pf_key_int(l, "rope.dimension_count", true, 2, hd, &s->n_rot));
    if (n_head % s->n_group)
        PF_FAIL(PF_EFORMAT, "%d heads do not make %d groups, in %s", n_head, s->n_group, pf_gguf_path(l->g));
    for (int il = 0; il < m->n_layer; il++)
        m->layers[il].attn = (struct pf_attention){ .n_head = n_head, .n_kv_head = n_kv_head, .hd_k = hd, .hd_v = hd,
                                                    .rotate = true, .v_in_k = true, .window = window,
                                                    .scale = 1.0f / sqrtf((float)hd) };
    return read_ratios(l);
}
