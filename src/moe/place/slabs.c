/* See slabs.h. */
#define _GNU_SOURCE
#include "moe/place/slabs.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "base/pf_mem.h"

static int by_address(const void *a, const void *b)
{
    const uint8_t *x = (*(const struct pf_tensor *const *)a)->data, *y = (*(const struct pf_tensor *const *)b)->data;
    return (x > y) - (x < y);
}

struct finder {
    const struct pf_tensor **sorted;
    size_t n;
};

static pf_status finder_open(struct finder *f, const pf_gguf *g)
{
    f->n = (size_t)pf_gguf_n_tensors(g);
    f->sorted = pf_alloc_array(PF_MEM_MODEL, f->n, sizeof *f->sorted);
    if (!f->sorted)
        PF_FAIL(PF_ENOMEM, "no memory for the table of tensors of %s", pf_gguf_path(g));
    for (size_t i = 0; i < f->n; i++)
        f->sorted[i] = pf_gguf_tensor_at(g, i);
    qsort(f->sorted, f->n, sizeof *f->sorted, by_address);
    return PF_OK;
}

/* The tensor that holds [data, data + bytes), or NULL: a converted copy, or none. */
static const struct pf_tensor *tensor_of(const struct finder *f, const uint8_t *data, uint64_t bytes)
{
    size_t lo = 0, hi = f->n;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (f->sorted[mid]->data <= data)
            lo = mid + 1;
        else
            hi = mid;
    }
    const struct pf_tensor *t = lo > 0 ? f->sorted[lo - 1] : NULL;
    return t && data < t->data + t->n_bytes && bytes <= t->n_bytes - (uint64_t)(data - t->data) ? t : NULL;
}

static void add_part(struct pf_slabs *s, const pf_gguf *g, const struct pf_tensor *t, const uint8_t *data,
                     uint64_t bytes)
{
    s->streams[t - pf_gguf_tensor_at(g, 0)] = true;
    s->parts[s->n_parts++] = (struct pf_part){ t->shard, t->offset + (uint64_t)(data - t->data), bytes };
}

/* The weights of a layer without experts that are whole tensors of the file; the others stay mapped. */
static void add_dense_layer(struct pf_slabs *s, const struct pf_model *m, const struct finder *f, int il)
{
    const struct pf_layer *layer = &m->layers[il];
    int first = s->n_parts;
    for (int i = 0; i < layer->n_weights; i++) {
        struct pf_weight *w = layer->weights[i];
        uint64_t bytes = pf_weight_bytes(w);
        const struct pf_tensor *t = tensor_of(f, w->data, bytes);
        if (!t || t->data != w->data || t->n_bytes != bytes)
            continue;
        s->weights[s->n_parts] = w;
        s->mapped[s->n_parts] = w->data;
        add_part(s, m->file, t, w->data, bytes);
    }
    if (s->n_parts == first)
        return;
    s->first_slab[il] = s->n_slabs;
    s->slabs[s->n_slabs++] = (struct pf_slab){ il, -1, first, s->n_parts - first };
}

static void add_moe_layer(struct pf_slabs *s, const struct pf_model *m, const struct finder *f, int il)
{
    const struct pf_moe *moe = &m->layers[il].moe;
    const struct pf_expert_weight *w[] = { &moe->gate, &moe->up, &moe->down };
    bool ungated = moe->gate.data == moe->up.data;
    s->first_slab[il] = s->n_slabs;
    for (int e = 0; e < m->n_expert; e++) {
        s->slabs[s->n_slabs++] = (struct pf_slab){ il, e, s->n_parts, ungated ? 2 : 3 };
        for (int i = ungated; i < 3; i++) {
            uint64_t bytes = pf_expert_weight_bytes(w[i]);
            add_part(s, m->file, tensor_of(f, w[i]->data[e], bytes), w[i]->data[e], bytes);
        }
    }
}

static bool tables_new(struct pf_slabs *s, const struct pf_model *m)
{
    size_t n_expert = (size_t)m->n_expert, n_layer = (size_t)m->n_layer;
    size_t n_slabs = n_expert ? n_layer * n_expert : n_layer;
    size_t n_parts = n_expert ? 3 * n_slabs : PF_LAYER_WEIGHTS * n_layer;
    s->slabs = pf_alloc_array(PF_MEM_MODEL, n_slabs, sizeof *s->slabs);
    s->parts = pf_alloc_array(PF_MEM_MODEL, n_parts, sizeof *s->parts);
    s->order = pf_alloc_array(PF_MEM_MODEL, n_slabs, sizeof *s->order);
    s->first_slab = pf_alloc_array(PF_MEM_MODEL, n_layer, sizeof *s->first_slab);
    s->streams = pf_alloc_array(PF_MEM_MODEL, (size_t)pf_gguf_n_tensors(m->file), sizeof *s->streams);
    s->weights = pf_alloc_array(PF_MEM_MODEL, n_expert ? 0 : n_parts, sizeof(struct pf_weight *));
    s->mapped = pf_alloc_array(PF_MEM_MODEL, n_expert ? 0 : n_parts, sizeof *s->mapped);
    return s->slabs && s->parts && s->order && s->first_slab && s->streams && s->weights && s->mapped;
}

void pf_slabs_free(struct pf_slabs *s)
{
    void *tables[] = { s->slabs, s->parts, s->order, s->first_slab, s->streams, s->weights, s->mapped };
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        pf_free(tables[i]);
    *s = (struct pf_slabs){ .slabs = NULL };
}

/* Every layer gets its share first: expert 0 of all layers, then expert 1. Dense layers in their order. */
static void make_order(struct pf_slabs *s, const struct pf_model *m)
{
    int n = 0, per_layer = m->n_expert ? m->n_expert : 1;
    for (int e = 0; e < per_layer; e++)
        for (int il = 0; il < m->n_layer; il++)
            if (s->first_slab[il] >= 0)
                s->order[n++] = s->first_slab[il] + e;
}

pf_status pf_slabs_make(struct pf_slabs *s, const struct pf_model *m, int first)
{
    struct finder f = { 0 };
    *s = (struct pf_slabs){ .slabs = NULL };
    if (!tables_new(s, m)) {
        pf_slabs_free(s);
        PF_FAIL(PF_ENOMEM, "no memory for the tables of what %s needs when", pf_gguf_path(m->file));
    }
    pf_status st = finder_open(&f, m->file);
    for (int il = 0; st == PF_OK && il < m->n_layer; il++) {
        s->first_slab[il] = -1;
        if (m->n_expert == 0 && il >= first)
            add_dense_layer(s, m, &f, il);
        else if (m->layers[il].is_moe)
            add_moe_layer(s, m, &f, il);
    }
    pf_free(f.sorted);
    if (st < 0) {
        pf_slabs_free(s);
        return st;
    }
    make_order(s, m);
    return PF_OK;
}

uint64_t pf_slab_bytes(const struct pf_slabs *s, int slab)
{
    uint64_t bytes = 0;
    for (int p = s->slabs[slab].first; p < s->slabs[slab].first + s->slabs[slab].n; p++)
        bytes += s->parts[p].bytes;
    return bytes;
}

uint64_t pf_slabs_in(const struct pf_slabs *s, uint64_t bytes)
{
    uint64_t all = 0;
    for (int i = 0; i < s->n_slabs; i++)
        all += pf_slab_bytes(s, i);
    return (uint64_t)((double)bytes / (double)all * (double)s->n_slabs);
}

void pf_slabs_ask_rest(const struct pf_slabs *s, const struct pf_model *m, int first)
{
    enum { PAGE = 4096 };
    for (uint64_t i = 0; i < pf_gguf_n_tensors(m->file); i++) {
        const struct pf_tensor *t = pf_gguf_tensor_at(m->file, i);
        uintptr_t begin = (uintptr_t)t->data / PAGE * PAGE;
        int il = pf_tensor_layer(m, t);
        bool by_rows = pf_model_gathers(m, t);
        if (by_rows || (!s->streams[i] && (il == -1 || il >= first)))
            madvise((void *)begin, (uintptr_t)t->data + t->n_bytes - begin, by_rows ? MADV_RANDOM : MADV_WILLNEED);
    }
}

void pf_slabs_setup(const struct pf_slabs *s, const struct pf_model *m, struct pf_store_setup *out)
{
    *out = (struct pf_store_setup){ .parts = s->parts, .n_parts = s->n_parts, .slabs = s->slabs, .n_slabs = s->n_slabs,
                                    .n_layers = m->n_layer, .n_files = pf_gguf_n_shards(m->file) };
}
