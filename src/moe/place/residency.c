/* See residency.h. slabs.c says which weights may stream, and in what order they are loaded. */
#include "moe/place/residency.h"

#include <string.h>

#include "base/pf_count.h"
#include "base/pf_mem.h"

enum { LAYERS_AHEAD = 2, ALL_TOUCHED = 3, SLABS_AHEAD = 16 };
static const uint64_t STALL_NS = 30000000000u;

struct pf_residency {
    struct pf_placement base;
    pf_store *store;
    struct pf_slabs t;
    int   n_planned;                     /* the first n_planned of t.order have a place in memory */
    uint64_t slot_bytes;

    const uint8_t **gate, **up, **down;  /* [n_expert] of the layer that is running */
    int  *todo, *ready, *queued;         /* [n_expert], todo of a dense model [n_layer]: slabs that a layer wants:
                                            without room, in memory, being read. the last two are pinned, see n_here */
    int   n_todo, n_ready, n_queued;
    int   n_here;                        /* the first n_here of ready are in memory for good and need no pin */
    const uint8_t *(*here)[3];           /* [n_slabs] addresses of the parts of an expert that is in memory for good
                                            (it was there once, and the store keeps all); else NULLs */
    bool  keeps_all;                     /* pf_store_holds_all */
    pf_counter n_here_hits;
    bool  wanted;                        /* todo, ready and queued belong to the layer that is running */
    enum pf_pin *how;                    /* [n_expert] */
};

static struct pf_residency *residency_of(struct pf_placement *p)
{
    return (struct pf_residency *)p;
}

/* ---- A step ------------------------------------------------------------------------------------------------------ */

static bool is_dense_slab(const struct pf_residency *r, int il)
{
    return r->base.m->n_expert == 0 && r->t.first_slab[il] >= 0;
}

/* Reads the next layers that are not in memory while this one computes; after the last comes the first, of the next
 * step. */
static void read_ahead(const struct pf_residency *r, int il)
{
    int n = 0, n_layer = r->base.m->n_layer;
    for (int i = 1; i < n_layer; i++)
        if (r->t.first_slab[(il + i) % n_layer] >= 0)
            r->todo[n++] = r->t.first_slab[(il + i) % n_layer];
    pf_store_prefetch(r->store, r->todo, n, LAYERS_AHEAD);
}

static pf_status residency_enter(struct pf_placement *p, int il)
{
    struct pf_residency *r = residency_of(p);
    enum pf_pin how;
    if (!is_dense_slab(r, il))
        return PF_OK;
    int slab = r->t.first_slab[il];
    pf_store_enter(r->store, il);
    PF_TRY(pf_store_pin(r->store, &slab, 1, &how));
    read_ahead(r, il);
    pf_status st = how == PF_PIN_READY ? PF_OK : pf_store_wait(r->store, slab);
    if (st < 0) {
        pf_store_unpin(r->store, &slab, 1);
        return st;
    }
    const struct pf_slab *k = &r->t.slabs[slab];
    for (int i = k->first; i < k->first + k->n; i++)
        r->t.weights[i]->data = pf_store_data(r->store, i);
    return PF_OK;
}

/* Gives back what a layer wanted and never ran. */
static void unwant(struct pf_residency *r)
{
    pf_store_unpin(r->store, r->ready + r->n_here, r->n_ready - r->n_here);
    pf_store_unpin(r->store, r->queued, r->n_queued);
    r->wanted = false;
}

static void residency_leave(struct pf_placement *p, int il)
{
    struct pf_residency *r = residency_of(p);
    if (r->wanted)
        unwant(r);
    if (!is_dense_slab(r, il))
        return;
    int slab = r->t.first_slab[il];
    const struct pf_slab *k = &r->t.slabs[slab];
    for (int i = k->first; i < k->first + k->n; i++)
        r->t.weights[i]->data = r->t.mapped[i];
    pf_store_unpin(r->store, &slab, 1);
}

static void find_parts(struct pf_residency *r, int slab)
{
    const struct pf_slab *k = &r->t.slabs[slab];
    const uint8_t *found[3] = { NULL }, **at = r->keeps_all ? r->here[slab] : found;
    bool known = at[0] != NULL;
    for (int i = 0; i < 3 && !known; i++)
        at[i] = pf_store_data(r->store, pf_slab_part(k, i));
    r->gate[k->expert] = at[0];
    r->up[k->expert] = at[1];
    r->down[k->expert] = at[2];
}

/* Computes n experts that are in memory, and lets them go, all but the first n_here, which are not pinned. */
static pf_status run_part(struct pf_residency *r, int *slabs, int n, int n_here, pf_residency_fn *fn, void *ctx)
{
    int experts[PF_RESIDENCY_BATCH];
    pf_status st = PF_OK;
    for (int i = 0, k; st == PF_OK && i < n; i += k) {
        for (k = 0; k < PF_RESIDENCY_BATCH && i + k < n; k++) {
            experts[k] = r->t.slabs[slabs[i + k]].expert;
            find_parts(r, slabs[i + k]);
        }
        st = fn(ctx, experts, k);
    }
    if (n > n_here)
        pf_store_unpin(r->store, slabs + n_here, n - n_here);
    return st;
}

/* Moves slabs that are in memory for good from todo to ready; they need no pins. */
static void take_here(struct pf_residency *r)
{
    int n = r->n_todo;
    r->n_todo = r->n_here = 0;
    for (int i = 0; i < n; i++)
        if (r->here[r->todo[i]][0])
            r->ready[r->n_here++] = r->todo[i];
        else
            r->todo[r->n_todo++] = r->todo[i];
    pf_count(&r->n_here_hits, (uint64_t)r->n_here);
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

static pf_status want(struct pf_residency *r, int il, const struct pf_experts_op *e, const bool *skip)
{
    r->n_todo = picked_slabs(r, r->t.first_slab[il], e, skip);
    r->n_ready = r->n_queued = 0;
    take_here(r);
    if (r->n_todo > 0)
        pf_store_enter(r->store, il);
    PF_TRY(pin_round(r));
    r->wanted = true;
    return PF_OK;
}

static pf_status residency_want(struct pf_placement *p, int il, const struct pf_experts_op *e)
{
    return want(residency_of(p), il, e, NULL);
}

pf_status pf_residency_run(struct pf_residency *r, int il, const struct pf_experts_op *e, const bool *skip,
                           pf_residency_fn *fn, void *ctx)
{
    if (!r->wanted)
        PF_TRY(want(r, il, e, skip));
    r->wanted = false;
    PF_TRY(run_round(r, fn, ctx));
    while (r->n_todo > 0) {
        r->n_here = 0;
        PF_TRY(pin_round(r));
        PF_TRY(run_round(r, fn, ctx));
    }
    return PF_OK;
}

static enum pf_guess residency_guesses(const struct pf_placement *p, int il, int rows)
{
    const struct pf_residency *r = (const struct pf_residency *)p;
    const struct pf_model *m = p->m;
    if (r->n_queued == 0 || il >= m->n_layer || r->t.first_slab[il] < 0 ||
        !pf_store_wants_guess(r->store))
        return PF_GUESS_NOTHING;
    if (rows * m->n_used >= ALL_TOUCHED * m->n_expert)
        return PF_GUESS_ALL;
    return rows <= PF_GUESS_ROWS ? PF_GUESS_PICKS : PF_GUESS_NOTHING;
}

/* The last quarter of the picks is wrong about as often as right, so it is left out. */
static void residency_guess(struct pf_placement *p, int il, const int32_t *picks, int rows, int depth)
{
    struct pf_residency *r = residency_of(p);
    const struct pf_model *m = p->m;
    int n_used = m->layers[il].moe.routing.n_used;
    int slabs[PF_MAX_GUESSES], n = 0, n_ranks = picks ? (3 * n_used + 3) / 4 : m->n_expert;
    for (int rank = 0; rank < n_ranks; rank++)
        for (int row = 0; row < rows && n < PF_MAX_GUESSES; row++)
            slabs[n++] = r->t.first_slab[il] + (picks ? picks[row * n_used + rank] : rank);
    pf_store_guess(r->store, slabs, n, depth);
}

void pf_residency_tables(const struct pf_residency *r, struct pf_experts_op *op, struct pf_expert_weight w[3])
{
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

bool pf_residency_take(struct pf_residency *r, int il, int expert, const uint8_t *parts[3])
{
    int slab = r->t.first_slab[il] + expert;
    enum pf_pin how;
    if (!pf_store_is_ready(r->store, slab) || pf_store_pin(r->store, &slab, 1, &how) < 0 || how == PF_PIN_BUSY)
        return false;
    if (how == PF_PIN_QUEUED) {              /* evicted in between */
        pf_store_unpin(r->store, &slab, 1);
        return false;
    }
    for (int i = 0; i < 3; i++)
        parts[i] = pf_store_data(r->store, pf_slab_part(&r->t.slabs[slab], i));
    return true;
}

void pf_residency_drop(struct pf_residency *r, int il, int expert)
{
    int slab = r->t.first_slab[il] + expert;
    pf_store_unpin(r->store, &slab, 1);
}

bool pf_residency_keeps_all(const struct pf_residency *r)
{
    return r->keeps_all;
}

uint64_t pf_residency_slot_bytes(const struct pf_residency *r)
{
    return r->slot_bytes;
}

bool pf_residency_is_short(const struct pf_residency *r)
{
    return r->n_planned < r->t.n_slabs;
}

void *pf_residency_arena(const struct pf_residency *r, size_t *bytes)
{
    return pf_store_arena(r->store, bytes);
}

static pf_status compute_part(void *ctx, const int *experts, int n)
{
    pf_backend *b = ctx;
    return b->ops->experts_part(b, experts, n);
}

static pf_status residency_experts(struct pf_placement *p, pf_backend *b, int il, const struct pf_experts_op *e)
{
    struct pf_residency *r = residency_of(p);
    struct pf_expert_weight w[3];
    struct pf_experts_op op = *e;
    pf_residency_tables(r, &op, w);
    PF_TRY(b->ops->experts_begin(b, &op));
    PF_TRY(pf_residency_run(r, il, e, NULL, compute_part, b));
    return b->ops->experts_end(b);
}

/* ---- Loading ahead ----------------------------------------------------------------------------------------------- */

static bool residency_maps(const struct pf_placement *p, const struct pf_tensor *t)
{
    return !((const struct pf_residency *)p)->t.streams[t - pf_gguf_tensor_at(p->m->file, 0)];
}

/* The slabs of a layer, or (-1) those that have a place in memory, in the order to load them. */
static int slabs_of(const struct pf_residency *r, int layer, int at)
{
    int per_layer = r->base.m->n_expert ? r->base.m->n_expert : 1;
    if (layer < 0)
        return at < r->n_planned ? r->t.order[at] : -1;
    return at < per_layer && r->t.first_slab[layer] >= 0 ? r->t.first_slab[layer] + at : -1;
}

static uint64_t residency_bytes(const struct pf_placement *p, int layer)
{
    const struct pf_residency *r = (const struct pf_residency *)p;
    uint64_t bytes = 0;
    for (int i = 0, slab; (slab = slabs_of(r, layer, i)) >= 0; i++)
        bytes += pf_slab_bytes(&r->t, slab);
    return bytes;
}

static pf_status residency_load(struct pf_placement *p, int layer, pf_progress_fn *progress, void *ctx, uint64_t done,
                                uint64_t total)
{
    struct pf_residency *r = residency_of(p);
    for (int i = 0, ahead = 0, slab; (slab = slabs_of(r, layer, i)) >= 0; i++) {
        enum pf_pin how;
        PF_TRY(pf_cancel_check(&p->m->cancel));
        for (int next; ahead < i + SLABS_AHEAD && (next = slabs_of(r, layer, ahead)) >= 0; ahead++)
            pf_store_prefetch(r->store, &next, 1, 1);
        PF_TRY(pf_store_pin(r->store, &slab, 1, &how));
        pf_status st = pf_store_wait(r->store, slab);
        pf_store_unpin(r->store, &slab, 1);
        PF_TRY(st);
        done += pf_slab_bytes(&r->t, slab);
        if (progress)
            progress(ctx, done, total);
    }
    return PF_OK;
}

static bool residency_holds(const struct pf_placement *p, int layer)
{
    const struct pf_residency *r = (const struct pf_residency *)p;
    for (int i = 0, slab; (slab = slabs_of(r, layer, i)) >= 0; i++)
        if (!pf_store_is_ready(r->store, slab))
            return false;
    return true;
}

static void residency_stats(const struct pf_placement *p, struct pf_stats *out)
{
    const struct pf_residency *r = (const struct pf_residency *)p;
    struct pf_store_stats s;
    pf_store_stats_get(r->store, &s);
    out->slab_slots = pf_slabs_in(&r->t, s.slot_bytes);
    out->slab_hits = s.n_hits + pf_counted(&r->n_here_hits);
    out->slab_misses = s.n_misses;
    out->disk_bytes_read = s.bytes_read;
    out->disk_busy_ns = s.busy_ns;
    out->disk_wait_ns = s.wait_ns;
}

static void residency_stats_reset(struct pf_placement *p)
{
    struct pf_residency *r = residency_of(p);
    pf_count_anew(&r->n_here_hits);
    pf_store_stats_reset(r->store);
}

/* ---- Opening and closing ----------------------------------------------------------------------------------------- */

static pf_status open_store(struct pf_residency *r, uint64_t slot_bytes, const struct pf_residency_setup *given)
{
    const struct pf_model *m = r->base.m;
    static const struct pf_residency_setup usual = { .io = pf_io_best_open, .policy = &pf_evict_nextuse,
                                                     .stall_ns = STALL_NS };
    const struct pf_residency_setup *use = given && given->io ? given : &usual;
    struct pf_store_setup s;
    pf_slabs_setup(&r->t, m, &s);
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

static pf_status tables_new(struct pf_residency *r, const struct pf_model *m)
{
    size_t n_expert = (size_t)m->n_expert;
    r->gate = pf_alloc_array(PF_MEM_MODEL, n_expert, sizeof *r->gate);
    r->up = pf_alloc_array(PF_MEM_MODEL, n_expert, sizeof *r->up);
    r->down = pf_alloc_array(PF_MEM_MODEL, n_expert, sizeof *r->down);
    r->todo = pf_alloc_array(PF_MEM_MODEL, n_expert ? n_expert : (size_t)m->n_layer, sizeof *r->todo);
    r->ready = pf_alloc_array(PF_MEM_MODEL, n_expert, sizeof *r->ready);
    r->queued = pf_alloc_array(PF_MEM_MODEL, n_expert, sizeof *r->queued);
    r->here = pf_alloc_array(PF_MEM_MODEL, n_expert ? (size_t)r->t.n_slabs : 0, sizeof *r->here);
    r->how = pf_alloc_array(PF_MEM_MODEL, n_expert, sizeof *r->how);
    if (!r->gate || !r->up || !r->down || !r->todo || !r->ready || !r->queued || !r->here || !r->how)
        PF_FAIL(PF_ENOMEM, "no memory for the tables of what %s needs when", pf_gguf_path(m->file));
    return PF_OK;
}

static void residency_close(struct pf_placement *p)
{
    struct pf_residency *r = residency_of(p);
    pf_store_close(&r->store);
    pf_slabs_free(&r->t);
    void *tables[] = { r->gate, r->up, r->down, r->todo, r->ready, r->queued, r->here, r->how };
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        pf_free(tables[i]);
    pf_free(r);
}

static const struct pf_place_ops ops = {
    .enter = residency_enter, .leave = residency_leave, .want = residency_want,
    .experts = residency_experts, .guesses = residency_guesses, .guess = residency_guess, .maps = residency_maps,
    .bytes = residency_bytes, .load = residency_load, .holds = residency_holds, .stats = residency_stats,
    .stats_reset = residency_stats_reset, .close = residency_close,
};

struct pf_residency *pf_residency_of(struct pf_placement *p)
{
    return p && p->ops == &ops ? residency_of(p) : NULL;
}

static void log_open(const struct pf_residency *r)
{
    struct pf_store_stats stats;
    pf_store_stats_get(r->store, &stats);
    pf_model_logf(r->base.m, PF_LOG_INFO,
                  "%d of %d %s fit in memory (%llu MB); the others are read by %s as they are wanted", r->n_planned,
                  r->t.n_slabs, r->base.m->n_expert ? "experts" : "layers",
                  (unsigned long long)(r->slot_bytes / 1000000), stats.engine);
}

pf_status pf_residency_open(struct pf_placement **out, struct pf_model *m, struct pf_slabs *t,
                            const struct pf_streaming *how, const struct pf_residency_setup *setup)
{
    struct pf_residency *r = pf_alloc(PF_MEM_MODEL, sizeof *r);
    *out = NULL;
    if (!r) {
        pf_slabs_free(t);
        PF_FAIL(PF_ENOMEM, "no memory for the tables of what %s needs when", pf_gguf_path(m->file));
    }
    r->base = (struct pf_placement){ .ops = &ops, .m = m, .device = m->cpu, .cut = pf_cut_all(m) };
    r->t = *t;
    r->n_planned = how->n_planned;
    r->slot_bytes = how->slot_bytes;
    pf_status st = tables_new(r, m);
    if (st == PF_OK)
        st = open_store(r, how->slot_bytes, setup);
    if (st < 0) {
        residency_close(&r->base);
        return st;
    }
    r->keeps_all = pf_store_holds_all(r->store);
    pf_slabs_ask_rest(&r->t, m, how->first);
    pf_store_fill(r->store, r->t.order, r->t.n_slabs);
    log_open(r);
    *out = &r->base;
    return PF_OK;
}
