/* See residency.h.
 *
 *     layer, expert  --first_slab[layer] + expert-->  slab  --3 parts: gate, up, down-->  slot
 *     dense layer    --first_slab[layer]---------->   slab  --a part per matrix-------->  slot, weights[part]->data */
#define _GNU_SOURCE
#include "moe/place/residency.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/pf_mem.h"
#include "moe/place/mapped.h"
#include "moe/place/cut.h"
#include "moe/run/session.h"
#include "tiers/plan.h"

enum { LAYERS_AHEAD = 2, ALL_TOUCHED = 3, SLABS_AHEAD = 16, MAX_MATRICES = 24 };
/* Prices when nobody names or measures better ones: a GPU of the middle class on PCIe 4, two channels of DDR4, a
 * drive. */
static const struct pf_speeds ASSUMED = { 500e9, 20e9, 30e9, 2.5e9 };
static const uint64_t VRAM_RESERVE = 256000000;
static const uint64_t STALL_NS = 30000000000u;

struct pf_residency {
    pf_store *store;
    struct pf_slab *slabs;
    struct pf_part *parts;
    int   n_slabs, n_parts;
    int  *first_slab;                    /* [n_layer]; -1: the layer is mapped */
    bool *streams;                       /* [n_tensors] */
    struct pf_weight **weights;          /* [n_parts] of a model without experts, else NULL */
    const uint8_t **mapped;              /* [n_parts] beside them: where their bytes are mapped */
    int  *order;                         /* [n_slabs] which to load first */
    int   n_planned;                     /* of them have a place in memory */

    const uint8_t **gate, **up, **down;  /* [n_expert] of the layer that is running */
    int  *todo, *ready, *queued;         /* [n_expert], todo of a dense model [n_layer]: slabs that a layer wants:
                                            without room, in memory, being read; the latter two are pinned, */
    int   n_todo, n_ready, n_queued;
    int   n_here;                        /* but for so many first ones of ready, which lie in memory for good: */
    const uint8_t *(*here)[3];           /* [n_slabs] of experts: where the parts of such a slab do, since it was in
                                            memory once and the store keeps all; else NULLs */
    bool  keeps_all;                     /* pf_store_holds_all */
    uint64_t n_here_hits;
    bool  wanted;                        /* they are those of the layer that is running */
    enum pf_pin *how;                    /* [n_expert] */
};

/* ---- What streams ------------------------------------------------------------------------------------------------ */

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

static void add_part(struct pf_residency *r, const pf_gguf *g, const struct pf_tensor *t, const uint8_t *data,
                     uint64_t bytes)
{
    r->streams[t - pf_gguf_tensor_at(g, 0)] = true;
    r->parts[r->n_parts++] = (struct pf_part){ t->shard, t->offset + (uint64_t)(data - t->data), bytes };
}

/* The matrices of a dense layer, as far as each is a whole tensor; what is none stays mapped. */
static int matrices_of(struct pf_layer *l, struct pf_weight *out[MAX_MATRICES])
{
    struct pf_weight *all[] = {
        &l->attn.q, &l->attn.k, &l->attn.v, &l->attn.out,
        &l->mla.q, &l->mla.q_a, &l->mla.q_b, &l->mla.kv, &l->mla.k_b,
        &l->delta.qkv, &l->delta.z, &l->delta.packed, &l->delta.beta, &l->delta.alpha, &l->delta.ba, &l->delta.out,
        &l->dense.gate, &l->dense.up, &l->dense.down,
    };
    int n = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i]->data)
            out[n++] = all[i];
    return n;
}

static void add_dense_layer(struct pf_residency *r, struct pf_model *m, const struct finder *f, int il)
{
    struct pf_weight *all[MAX_MATRICES];
    int n = matrices_of(&m->layers[il], all), first = r->n_parts;
    for (int i = 0; i < n; i++) {
        const uint8_t *data = all[i]->data;
        uint64_t bytes = pf_weight_bytes(all[i]);
        const struct pf_tensor *t = tensor_of(f, data, bytes);
        if (!t || t->data != data || t->n_bytes != bytes)
            continue;
        r->weights[r->n_parts] = all[i];
        r->mapped[r->n_parts] = data;
        add_part(r, m->file, t, data, bytes);
    }
    if (r->n_parts == first)
        return;
    r->first_slab[il] = r->n_slabs;
    r->slabs[r->n_slabs++] = (struct pf_slab){ il, -1, first, r->n_parts - first };
}

static void add_moe_layer(struct pf_residency *r, struct pf_model *m, const struct finder *f, int il)
{
    const struct pf_moe *moe = &m->layers[il].moe;
    const struct pf_expert_weight *w[] = { &moe->gate, &moe->up, &moe->down };
    r->first_slab[il] = r->n_slabs;
    for (int e = 0; e < m->n_expert; e++) {
        r->slabs[r->n_slabs++] = (struct pf_slab){ il, e, r->n_parts, 3 };
        for (int i = 0; i < 3; i++) {
            uint64_t bytes = pf_expert_weight_bytes(w[i]);
            add_part(r, m->file, tensor_of(f, w[i]->data[e], bytes), w[i]->data[e], bytes);
        }
    }
}

static bool tables_new(struct pf_residency *r, const struct pf_model *m)
{
    size_t n_expert = (size_t)m->n_expert, n_layer = (size_t)m->n_layer;
    size_t n_slabs = n_expert ? n_layer * n_expert : n_layer, n_parts = n_expert ? 3 * n_slabs : MAX_MATRICES * n_layer;
    r->slabs = pf_alloc_array(PF_MEM_MODEL, n_slabs, sizeof *r->slabs);
    r->parts = pf_alloc_array(PF_MEM_MODEL, n_parts, sizeof *r->parts);
    r->order = pf_alloc_array(PF_MEM_MODEL, n_slabs, sizeof *r->order);
    r->first_slab = pf_alloc_array(PF_MEM_MODEL, n_layer, sizeof *r->first_slab);
    r->streams = pf_alloc_array(PF_MEM_MODEL, (size_t)pf_gguf_n_tensors(m->file), sizeof *r->streams);
    r->weights = pf_alloc_array(PF_MEM_MODEL, n_expert ? 0 : n_parts, sizeof(struct pf_weight *));
    r->mapped = pf_alloc_array(PF_MEM_MODEL, n_expert ? 0 : n_parts, sizeof *r->mapped);
    r->gate = pf_alloc_array(PF_MEM_MODEL, n_expert, sizeof *r->gate);
    r->up = pf_alloc_array(PF_MEM_MODEL, n_expert, sizeof *r->up);
    r->down = pf_alloc_array(PF_MEM_MODEL, n_expert, sizeof *r->down);
    r->todo = pf_alloc_array(PF_MEM_MODEL, n_expert ? n_expert : n_layer, sizeof *r->todo);
    r->ready = pf_alloc_array(PF_MEM_MODEL, n_expert, sizeof *r->ready);
    r->queued = pf_alloc_array(PF_MEM_MODEL, n_expert, sizeof *r->queued);
    r->here = pf_alloc_array(PF_MEM_MODEL, n_expert ? n_slabs : 0, sizeof *r->here);
    r->how = pf_alloc_array(PF_MEM_MODEL, n_expert, sizeof *r->how);
    return r->slabs && r->parts && r->order && r->first_slab && r->streams && r->weights && r->mapped && r->gate &&
           r->up && r->down && r->todo && r->ready && r->queued && r->here && r->how;
}

static void residency_free(struct pf_residency *r)
{
    if (!r)
        return;
    pf_store_close(&r->store);
    void *tables[] = { r->slabs, r->parts, r->order, r->first_slab, r->streams, r->weights, r->mapped, r->gate, r->up,
                       r->down, r->todo, r->ready, r->queued, r->here, r->how };
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        pf_free(tables[i]);
    pf_free(r);
}

/* Every layer gets its share first: expert 0 of all layers, then expert 1. Dense layers in their order. */
static void make_order(struct pf_residency *r, const struct pf_model *m)
{
    int n = 0, per_layer = m->n_expert ? m->n_expert : 1;
    for (int e = 0; e < per_layer; e++)
        for (int il = 0; il < m->n_layer; il++)
            if (r->first_slab[il] >= 0)
                r->order[n++] = r->first_slab[il] + e;
}

/* The tables of all that may stream; no store yet. */
static pf_status tables_make(struct pf_residency **out, struct pf_model *m)
{
    struct finder f = { 0 };
    struct pf_residency *r = pf_alloc(PF_MEM_MODEL, sizeof *r);
    *out = NULL;
    if (!r || !tables_new(r, m)) {
        residency_free(r);
        PF_FAIL(PF_ENOMEM, "no memory for the tables of what %s needs when", pf_gguf_path(m->file));
    }
    pf_status st = finder_open(&f, m->file);
    for (int il = 0; st == PF_OK && il < m->n_layer; il++) {
        r->first_slab[il] = -1;
        if (m->n_expert == 0 && !pf_is_on_device(m, il))
            add_dense_layer(r, m, &f, il);
        else if (m->layers[il].is_moe)
            add_moe_layer(r, m, &f, il);
    }
    pf_free(f.sorted);
    if (st < 0) {
        residency_free(r);
        return st;
    }
    make_order(r, m);
    *out = r;
    return PF_OK;
}

/* ---- Planning and opening ---------------------------------------------------------------------------------------- */

static uint64_t slab_bytes(const struct pf_residency *r, int slab)
{
    uint64_t bytes = 0;
    for (int p = r->slabs[slab].first; p < r->slabs[slab].first + r->slabs[slab].n; p++)
        bytes += r->parts[p].bytes;
    return bytes;
}

static void setup_parts(struct pf_store_setup *s, const struct pf_residency *r, const struct pf_model *m)
{
    *s = (struct pf_store_setup){ .parts = r->parts, .n_parts = r->n_parts, .slabs = r->slabs, .n_slabs = r->n_slabs,
                                  .n_layers = m->n_layer, .n_files = pf_gguf_n_shards(m->file) };
}

static pf_status sizes_of(const struct pf_model *m, const struct pf_residency *r, const struct pf_session_opts *so,
                          struct pf_plan_sizes *out)
{
    struct pf_plan_sizes s = { .weight_bytes = m->info.weight_bytes, .n_slabs = (uint64_t)r->n_slabs,
                               .token_bytes = m->info.bytes_per_token, .experts = m->n_expert > 0 };
    struct pf_store_setup setup;
    uint64_t kv, work;
    if (m->cut.whole)
        PF_TRY(pf_session_bytes(m, so, &kv, &work));
    else
        PF_TRY(pf_session_part_bytes(m, so, m->cpu, m->cut.n_layers, m->n_layer, &kv, &work));
    s.weight_bytes -= m->cut.whole ? 0 : m->cut.bytes;
    s.other_bytes = kv + work + pf_model_extra_bytes(m);
    setup_parts(&setup, r, m);
    PF_TRY(pf_store_bytes(&setup, &s.slots_all, &s.slots_least));
    for (int p = 0; p < r->n_parts; p++)
        s.slab_bytes += r->parts[p].bytes;
    s.token_slab_bytes = m->n_expert ? s.slab_bytes / (uint64_t)m->n_expert * (uint64_t)m->n_used : s.slab_bytes;
    *out = s;
    return PF_OK;
}

static struct pf_plan_budget budget_of(const struct pf_model_opts *o)
{
    return (struct pf_plan_budget){ .ram_bytes = o->ram_bytes ? o->ram_bytes : pf_ram_available(""),
                                    .streaming = o->streaming, .no_nvme = o->no_nvme, .speeds = ASSUMED };
}

/* Memory of the GPU that is there, or was described. */
static uint64_t vram_of(const struct pf_model_opts *o)
{
    struct pf_device gpu;
    if (o->vram_bytes || o->device < 0)
        return o->vram_bytes;
    bool there = pf_backend_cuda_device(o->device, &gpu);
    return there && gpu.memory_bytes > VRAM_RESERVE ? gpu.memory_bytes - VRAM_RESERVE : 0;
}

/* The first known of: given, measured, assumed (which *price holds before). */
static enum pf_price price_of(double given, double measured, double *price)
{
    if (given <= 0 && measured <= 0)
        return PF_PRICE_ASSUMED;
    *price = given > 0 ? given : measured;
    return given > 0 ? PF_PRICE_GIVEN : PF_PRICE_MEASURED;
}

/* What a GPU would take of a model without experts; whether that is everything the planner sees for itself. */
static pf_status cut_sizes_of(const struct pf_model *m, const struct pf_residency *r, const struct pf_session_opts *so,
                              const struct pf_plan_budget *budget, struct pf_plan_sizes *s)
{
    struct pf_cut cut;
    uint64_t least;
    PF_TRY(pf_cut_of(m, so, budget->vram_bytes, budget->streaming, &cut, &least));
    s->cut_bytes = cut.output ? pf_weight_bytes(&m->output) : 0;
    for (int i = 0; i < r->n_slabs; i++)
        if (r->slabs[i].layer < cut.n_layers) {
            s->cut_slabs++;
            s->cut_slab_bytes += slab_bytes(r, i);
        }
    return PF_OK;
}

pf_status pf_residency_plan(struct pf_model *m, const struct pf_model_opts *o, const struct pf_session_opts *so,
                            struct pf_plan *out)
{
    struct pf_residency *r;
    struct pf_plan_sizes sizes;
    struct pf_plan_budget budget = budget_of(o);
    const struct pf_speeds *given = &o->speeds;
    enum pf_price from[PF_N_TIERS];
    budget.vram_bytes = vram_of(o);
    PF_TRY(tables_make(&r, m));
    pf_status st = sizes_of(m, r, so, &sizes);
    if (st == PF_OK && m->n_expert == 0)
        st = cut_sizes_of(m, r, so, &budget, &sizes);
    residency_free(r);
    PF_TRY(st);
    enum pf_price copies = price_of(given->pcie_bytes_s, 0, &budget.speeds.pcie_bytes_s);
    from[PF_TIER_VRAM] = price_of(given->vram_bytes_s, 0, &budget.speeds.vram_bytes_s);
    from[PF_TIER_RAM] = price_of(given->ram_bytes_s, given->ram_bytes_s > 0 ? 0 : pf_price_ram(m->info.n_threads),
                                 &budget.speeds.ram_bytes_s);
    from[PF_TIER_DISK] = price_of(given->disk_bytes_s,
                                  given->disk_bytes_s > 0 ? 0 : pf_price_disk(pf_gguf_shard_path(m->file, 0)),
                                  &budget.speeds.disk_bytes_s);
    PF_TRY(pf_plan_make(&sizes, &budget, out));
    if (out->tiers[PF_TIER_RAM].bytes_s > budget.speeds.ram_bytes_s)
        from[PF_TIER_RAM] = copies;
    for (int t = 0; t < PF_N_TIERS; t++)
        out->tiers[t].price = from[t];
    return PF_OK;
}

static pf_status open_store(struct pf_model *m, struct pf_residency *r, uint64_t slot_bytes,
                            const struct pf_residency_setup *given)
{
    static const struct pf_residency_setup usual = { .io = pf_io_best_open, .policy = &pf_evict_nextuse,
                                                     .stall_ns = STALL_NS };
    const struct pf_residency_setup *use = given && given->io ? given : &usual;
    struct pf_store_setup s;
    setup_parts(&s, r, m);
    const char **paths = pf_alloc_array(PF_MEM_MODEL, (size_t)s.n_files, sizeof *paths);
    if (!paths)
        PF_FAIL(PF_ENOMEM, "no memory for the names of %d files", s.n_files);
    for (int i = 0; i < s.n_files; i++)
        paths[i] = pf_gguf_shard_path(m->file, i);
    s.paths = paths;
    s.budget_bytes = slot_bytes;
    s.policy = use->policy;
    s.io = use->io;
    s.io_ctx = use->io_ctx;
    s.stall_ns = use->stall_ns;
    s.spans = m->spans;
    pf_status st = pf_store_open(&r->store, &s);
    pf_free(paths);
    PF_TRY(st);
    return pf_gguf_unchanged(m->file);           /* the store opened the files anew, by name */
}

/* The rest is read once and stays, if the kernel will: ask for it now. */
static void advise_mapped(const struct pf_model *m, const struct pf_residency *r)
{
    enum { PAGE = 4096 };
    for (uint64_t i = 0; i < pf_gguf_n_tensors(m->file); i++) {
        const struct pf_tensor *t = pf_gguf_tensor_at(m->file, i);
        uintptr_t begin = (uintptr_t)t->data / PAGE * PAGE;
        if (!r->streams[i] && !pf_is_on_device(m, pf_tensor_layer(t)))
            madvise((void *)begin, (uintptr_t)t->data + t->n_bytes - begin, MADV_WILLNEED);
    }
}

pf_status pf_residency_open(struct pf_model *m, const struct pf_model_opts *o, const struct pf_residency_setup *setup)
{
    struct pf_residency *r;
    struct pf_plan plan;
    struct pf_plan_sizes sizes;
    struct pf_plan_budget budget = budget_of(o);     /* without a GPU: what it holds is not left out of memory */
    PF_TRY(tables_make(&r, m));
    pf_status st = sizes_of(m, r, NULL, &sizes);
    if (st == PF_OK)
        st = pf_plan_make(&sizes, &budget, &plan);
    /* A GPU copies experts from slots, which can be pinned. */
    bool mapped = st == PF_OK && plan.resident && (m->backend == m->cpu || m->n_expert == 0);
    if (st == PF_OK && !mapped)
        st = open_store(m, r, plan.resident ? sizes.slots_all : plan.slot_bytes, setup);
    if (st < 0 || mapped) {
        residency_free(r);
        return st < 0 ? st : pf_mapped_open(m);
    }
    r->n_planned = (int)plan.tiers[PF_TIER_RAM].n_slabs;
    r->keeps_all = pf_store_holds_all(r->store);
    m->residency = r;
    advise_mapped(m, r);
    pf_store_fill(r->store, r->order, r->n_slabs);
    struct pf_store_stats stats;
    pf_store_stats_get(r->store, &stats);
    pf_model_logf(m, PF_LOG_INFO, "%llu of %d %s fit in memory (%llu MB); the others are read by %s as they are wanted",
                  (unsigned long long)plan.tiers[PF_TIER_RAM].n_slabs, r->n_slabs, m->n_expert ? "experts" : "layers",
                  (unsigned long long)(plan.slot_bytes / 1000000), stats.engine);
    return PF_OK;
}

void pf_residency_close(struct pf_model *m)
{
    residency_free(m->residency);
    m->residency = NULL;
    pf_mapped_close(m);
}

/* ---- A step ------------------------------------------------------------------------------------------------------ */

static bool is_dense_slab(const struct pf_model *m, int il)
{
    return m->residency && m->n_expert == 0 && m->residency->first_slab[il] >= 0;
}

/* Reads the next layers that are not in memory while this one computes; after the last comes the first, of the next
 * step. */
static void read_ahead(const struct pf_model *m, int il)
{
    const struct pf_residency *r = m->residency;
    int n = 0;
    for (int i = 1; i < m->n_layer; i++)
        if (r->first_slab[(il + i) % m->n_layer] >= 0)
            r->todo[n++] = r->first_slab[(il + i) % m->n_layer];
    pf_store_prefetch(r->store, r->todo, n, LAYERS_AHEAD);
}

pf_status pf_residency_enter(struct pf_model *m, int il)
{
    enum pf_pin how;
    if (m->mapped && !pf_is_on_device(m, il))
        pf_mapped_enter(m, il);
    if (!is_dense_slab(m, il))
        return PF_OK;
    struct pf_residency *r = m->residency;
    int slab = r->first_slab[il];
    pf_store_step(r->store, il);
    PF_TRY(pf_store_pin(r->store, &slab, 1, &how));
    read_ahead(m, il);
    pf_status st = how == PF_PIN_READY ? PF_OK : pf_store_wait(r->store, slab);
    if (st < 0) {
        pf_store_unpin(r->store, &slab, 1);
        return st;
    }
    for (int p = r->slabs[slab].first; p < r->slabs[slab].first + r->slabs[slab].n; p++)
        r->weights[p]->data = pf_store_data(r->store, p);
    return PF_OK;
}

/* Gives back what a layer wanted and never ran. */
static void unwant(struct pf_residency *r)
{
    pf_store_unpin(r->store, r->ready + r->n_here, r->n_ready - r->n_here);
    pf_store_unpin(r->store, r->queued, r->n_queued);
    r->wanted = false;
}

void pf_residency_leave(struct pf_model *m, int il)
{
    if (m->residency && m->residency->wanted)
        unwant(m->residency);
    if (!is_dense_slab(m, il))
        return;
    struct pf_residency *r = m->residency;
    int slab = r->first_slab[il];
    for (int p = r->slabs[slab].first; p < r->slabs[slab].first + r->slabs[slab].n; p++)
        r->weights[p]->data = r->mapped[p];
    pf_store_unpin(r->store, &slab, 1);
}

static void find_parts(struct pf_residency *r, int slab)
{
    const struct pf_slab *k = &r->slabs[slab];
    const uint8_t *found[3] = { NULL }, **at = r->keeps_all ? r->here[slab] : found;
    bool known = at[0] != NULL;
    for (int i = 0; i < 3 && !known; i++)
        at[i] = pf_store_data(r->store, k->first + i);
    r->gate[k->expert] = at[0];
    r->up[k->expert] = at[1];
    r->down[k->expert] = at[2];
}

/* Computes n experts that are in memory, and lets them go, all but the first n_here, which are not pinned. */
static pf_status run_part(struct pf_residency *r, int *slabs, int n, int n_here, pf_residency_fn *fn, void *ctx)
{
    int experts[64];
    pf_status st = PF_OK;
    for (int i = 0, k; st == PF_OK && i < n; i += k) {
        for (k = 0; k < 64 && i + k < n; k++) {
            experts[k] = r->slabs[slabs[i + k]].expert;
            find_parts(r, slabs[i + k]);
        }
        st = fn(ctx, experts, k);
    }
    if (n > n_here)
        pf_store_unpin(r->store, slabs + n_here, n - n_here);
    return st;
}

/* Takes those that are in memory for good, which needs no pins. */
static void take_here(struct pf_residency *r)
{
    int n = r->n_todo;
    r->n_todo = r->n_here = 0;
    for (int i = 0; i < n; i++)
        if (r->here[r->todo[i]][0])
            r->ready[r->n_here++] = r->todo[i];
        else
            r->todo[r->n_todo++] = r->todo[i];
    r->n_here_hits += (uint64_t)r->n_here;
}

/* Pins what finds room of the slabs in r->todo; what found none is left there. */
static pf_status pin_round(struct pf_residency *r)
{
    int n = r->n_todo;
    if (n > 0)
        PF_TRY(pf_store_pin(r->store, r->todo, n, r->how));
    r->n_ready = r->n_here;
    r->n_todo = r->n_queued = 0;
    for (int i = 0; i < n; i++) {
        if (r->how[i] == PF_PIN_READY)
            r->ready[r->n_ready++] = r->todo[i];
        else if (r->how[i] == PF_PIN_QUEUED)
            r->queued[r->n_queued++] = r->todo[i];
        else
            r->todo[r->n_todo++] = r->todo[i];
    }
    return PF_OK;
}

/* Computes what was pinned, and lets it go: first what is in memory, then the rest as it arrives. */
static pf_status run_round(struct pf_residency *r, pf_residency_fn *fn, void *ctx)
{
    int i = 0;
    pf_status st = run_part(r, r->ready, r->n_ready, r->n_here, fn, ctx);
    for (int n; st == PF_OK && i < r->n_queued; i += n) {
        st = pf_store_wait_any(r->store, r->queued + i, r->n_queued - i, &n);
        if (st < 0)
            break;
        st = run_part(r, r->queued + i, n, 0, fn, ctx);
    }
    if (i < r->n_queued)
        pf_store_unpin(r->store, r->queued + i, r->n_queued - i);
    return st;
}

/* The slabs of the experts that were picked and are not to be skipped, by rising expert. */
static int picked_slabs(const struct pf_residency *r, int first_slab, const struct pf_experts_op *e, const bool *skip)
{
    int n = 0;
    memset(r->how, 0, (size_t)e->n_expert * sizeof *r->how);
    for (int p = 0; p < e->rows * e->n_used; p++)
        r->how[e->picks[p]] = PF_PIN_BUSY;           /* only a mark here */
    for (int x = 0; x < e->n_expert; x++)
        if (r->how[x] == PF_PIN_BUSY && !(skip && skip[x]))
            r->todo[n++] = first_slab + x;
    return n;
}

pf_status pf_residency_want(struct pf_model *m, int il, const struct pf_experts_op *e, const bool *skip)
{
    struct pf_residency *r = m->residency;
    if (m->mapped)
        pf_mapped_experts(m, il, e);
    if (!r)
        return PF_OK;
    r->n_todo = picked_slabs(r, r->first_slab[il], e, skip);
    r->n_ready = r->n_queued = 0;
    take_here(r);
    if (r->n_todo > 0)
        pf_store_step(r->store, il);
    PF_TRY(pin_round(r));
    r->wanted = true;
    return PF_OK;
}

pf_status pf_residency_run(struct pf_model *m, int il, const struct pf_experts_op *e, const bool *skip,
                           pf_residency_fn *fn, void *ctx)
{
    struct pf_residency *r = m->residency;
    if (!r->wanted)
        PF_TRY(pf_residency_want(m, il, e, skip));
    r->wanted = false;
    PF_TRY(run_round(r, fn, ctx));
    while (r->n_todo > 0) {
        r->n_here = 0;
        PF_TRY(pin_round(r));
        PF_TRY(run_round(r, fn, ctx));
    }
    return PF_OK;
}

enum pf_guess pf_residency_guesses(const struct pf_model *m, int il, int rows)
{
    const struct pf_residency *r = m->residency;
    if (!r || m->offload || r->n_queued == 0 || il >= m->n_layer || r->first_slab[il] < 0 ||
        !pf_store_wants_guess(r->store))
        return PF_GUESS_NOTHING;
    if (rows * m->n_used >= ALL_TOUCHED * m->n_expert)
        return PF_GUESS_ALL;
    return rows <= PF_GUESS_ROWS ? PF_GUESS_PICKS : PF_GUESS_NOTHING;
}

/* The last quarter of the picks is wrong about as often as right, so it is left out. */
void pf_residency_guess(struct pf_model *m, int il, const int32_t *picks, int rows, int depth)
{
    struct pf_residency *r = m->residency;
    int slabs[PF_MAX_GUESSES], n = 0, n_ranks = picks ? (3 * m->n_used + 3) / 4 : m->n_expert;
    for (int rank = 0; rank < n_ranks; rank++)
        for (int row = 0; row < rows && n < PF_MAX_GUESSES; row++)
            slabs[n++] = r->first_slab[il] + (picks ? picks[row * m->n_used + rank] : rank);
    pf_store_guess(r->store, slabs, n, depth);
}

void pf_residency_tables(const struct pf_model *m, struct pf_experts_op *op, struct pf_expert_weight w[3])
{
    const struct pf_residency *r = m->residency;
    w[0] = *op->gate;
    w[1] = *op->up;
    w[2] = *op->down;
    w[0].data = r->gate;
    w[1].data = r->up;
    w[2].data = r->down;
    op->gate = &w[0];
    op->up = &w[1];
    op->down = &w[2];
}

bool pf_residency_take(struct pf_model *m, int il, int expert, const uint8_t *parts[3])
{
    struct pf_residency *r = m->residency;
    int slab = r->first_slab[il] + expert;
    enum pf_pin how;
    if (!pf_store_is_ready(r->store, slab) || pf_store_pin(r->store, &slab, 1, &how) < 0 || how == PF_PIN_BUSY)
        return false;
    if (how == PF_PIN_QUEUED) {              /* evicted in between */
        pf_store_unpin(r->store, &slab, 1);
        return false;
    }
    for (int i = 0; i < 3; i++)
        parts[i] = pf_store_data(r->store, r->slabs[slab].first + i);
    return true;
}

void pf_residency_drop(struct pf_model *m, int il, int expert)
{
    int slab = m->residency->first_slab[il] + expert;
    pf_store_unpin(m->residency->store, &slab, 1);
}

bool pf_residency_keeps_all(const struct pf_model *m)
{
    return m->residency->keeps_all;
}

bool pf_residency_is_short(const struct pf_model *m)
{
    return m->residency->n_planned < m->residency->n_slabs;
}

void *pf_residency_arena(const struct pf_model *m, size_t *bytes)
{
    return pf_store_arena(m->residency->store, bytes);
}

static pf_status compute_part(void *ctx, const int *experts, int n)
{
    pf_backend *b = ctx;
    return b->ops->experts_part(b, experts, n);
}

pf_status pf_residency_experts(struct pf_model *m, pf_backend *b, int il, const struct pf_experts_op *e)
{
    struct pf_expert_weight w[3];
    struct pf_experts_op op = *e;
    if (!m->residency)
        return b->ops->experts(b, e);
    pf_residency_tables(m, &op, w);
    PF_TRY(b->ops->experts_begin(b, &op));
    PF_TRY(pf_residency_run(m, il, e, NULL, compute_part, b));
    return b->ops->experts_end(b);
}

/* ---- Loading ahead ----------------------------------------------------------------------------------------------- */

bool pf_residency_streams(const struct pf_model *m, const struct pf_tensor *t)
{
    return m->residency && m->residency->streams[t - pf_gguf_tensor_at(m->file, 0)];
}

/* The slabs of a layer, or (-1) those that the plan places in memory, in the order to load them. */
static int slabs_of(const struct pf_model *m, int layer, int at)
{
    const struct pf_residency *r = m->residency;
    int per_layer = m->n_expert ? m->n_expert : 1;
    if (layer < 0)
        return at < r->n_planned ? r->order[at] : -1;
    return at < per_layer && r->first_slab[layer] >= 0 ? r->first_slab[layer] + at : -1;
}

uint64_t pf_residency_bytes(const struct pf_model *m, int layer)
{
    uint64_t bytes = 0;
    for (int i = 0, slab; m->residency && (slab = slabs_of(m, layer, i)) >= 0; i++)
        bytes += slab_bytes(m->residency, slab);
    return bytes;
}

pf_status pf_residency_load(struct pf_model *m, int layer, pf_progress_fn *progress, void *ctx, uint64_t done,
                            uint64_t total)
{
    struct pf_residency *r = m->residency;
    for (int i = 0, ahead = 0, slab; r && (slab = slabs_of(m, layer, i)) >= 0; i++) {
        enum pf_pin how;
        PF_TRY(pf_cancel_check(&m->cancel));
        for (int next; ahead < i + SLABS_AHEAD && (next = slabs_of(m, layer, ahead)) >= 0; ahead++)
            pf_store_prefetch(r->store, &next, 1, 1);
        PF_TRY(pf_store_pin(r->store, &slab, 1, &how));
        pf_status st = pf_store_wait(r->store, slab);
        pf_store_unpin(r->store, &slab, 1);
        PF_TRY(st);
        done += slab_bytes(r, slab);
        if (progress)
            progress(ctx, done, total);
    }
    return PF_OK;
}

bool pf_residency_holds(const struct pf_model *m, int layer)
{
    for (int i = 0, slab; m->residency && (slab = slabs_of(m, layer, i)) >= 0; i++)
        if (!pf_store_is_ready(m->residency->store, slab))
            return false;
    return true;
}

/* How many slabs of average size so many bytes hold. */
static uint64_t slots_of(const struct pf_residency *r, uint64_t bytes)
{
    uint64_t all = 0;
    for (int i = 0; i < r->n_slabs; i++)
        all += slab_bytes(r, i);
    return (uint64_t)((double)bytes / (double)all * (double)r->n_slabs);
}

void pf_residency_stats(const struct pf_model *m, struct pf_stats *out)
{
    struct pf_store_stats s;
    if (!m->residency)
        return;
    pf_store_stats_get(m->residency->store, &s);
    out->slab_slots = slots_of(m->residency, s.slot_bytes);
    out->slab_hits = s.n_hits + m->residency->n_here_hits;
    out->slab_misses = s.n_misses;
    out->disk_bytes_read = s.bytes_read;
    out->disk_busy_ns = s.busy_ns;
    out->disk_wait_ns = s.wait_ns;
}

void pf_residency_stats_reset(struct pf_model *m)
{
    if (!m->residency)
        return;
    m->residency->n_here_hits = 0;
    pf_store_stats_reset(m->residency->store);
}
