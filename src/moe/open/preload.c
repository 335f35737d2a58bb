/* Reading weights into memory before they are wanted, and asking whether they are there. Weights outside the store are
 * in memory if the page cache has them. */
#define _GNU_SOURCE
#include <sys/mman.h>

#include "moe/place/placement.h"

/* Calls fn for every tensor of the layer (-2: all) that the CPU reads where it is mapped, until it returns false. */
typedef bool visit_fn(void *ctx, const struct pf_tensor *t);

static bool visit(const struct pf_placement *p, int layer, visit_fn *fn, void *ctx)
{
    const struct pf_model *m = p->m;
    for (uint64_t i = 0; i < pf_gguf_n_tensors(m->file); i++) {
        const struct pf_tensor *t = pf_gguf_tensor_at(m->file, i);
        int il = pf_tensor_layer(m, t);
        bool wanted = il == layer || (layer == -2 && il != PF_UNUSED);
        if (wanted && pf_place_maps(p, t) && !pf_model_gathers(m, t) && !fn(ctx, t))
            return false;
    }
    return true;
}

struct preload {
    pf_progress_fn *progress;
    void    *ctx;
    const struct pf_cancel *cancel;
    uint64_t done, total;
    uint8_t  sum;            /* the result of reading, or a compiler would leave the reads out */
};

static bool add_size(void *ctx, const struct pf_tensor *t)
{
    ((struct preload *)ctx)->total += t->n_bytes;
    return true;
}

/* How a tensor is read that is about to be touched page by page, whatever was advised before: in order, and where the
 * file system can, in pieces of 2 MB that the processor maps as one. With small ones decoding is slower
 * (docs/performance.md). To ask for the pages ahead (MADV_WILLNEED) would bring small ones, and no more of them at once
 * than the device's readahead. */
static void read_in_order(const struct pf_tensor *t)
{
    enum { PAGE = 4096 };
    uintptr_t begin = (uintptr_t)t->data / PAGE * PAGE, end = (uintptr_t)t->data + t->n_bytes;
    madvise((void *)begin, end - begin, MADV_NORMAL);
    madvise((void *)begin, end - begin, MADV_HUGEPAGE);      /* advice: not every kernel knows it for files */
}

/* Touches each page. False: cancelled. */
static bool touch(void *ctx, const struct pf_tensor *t)
{
    enum { STRIDE = 4096, WINDOW = 16 << 20 };
    struct preload *p = ctx;
    read_in_order(t);
    for (uint64_t at = 0; at < t->n_bytes; at += WINDOW) {
        if (pf_cancel_check(p->cancel) < 0)
            return false;
        uint64_t n = t->n_bytes - at < WINDOW ? t->n_bytes - at : WINDOW;
        for (uint64_t i = 0; i < n; i += STRIDE)
            p->sum ^= *(const volatile uint8_t *)(t->data + at + i);
        p->sum ^= *(const volatile uint8_t *)(t->data + at + n - 1);
        p->done += n;
        if (p->progress)
            p->progress(p->ctx, p->done, p->total);
    }
    return true;
}

/* Reads the weights of one layer; -1: of all. */
static pf_status preload(struct pf_placement *place, int layer, struct preload *p)
{
    if (!visit(place, layer < 0 ? -2 : layer, touch, p))
        return PF_ECANCEL;
    PF_TRY(pf_place_load(place, layer, p->progress, p->ctx, p->done, p->total));
    p->done += pf_place_bytes(place, layer);
    return PF_OK;
}

/* A device may be lost meanwhile: then what was begun ends as it began, and the next step finds out and leaves it. */
pf_status pf_model_preload(pf_model *m, const int *layers, int n, pf_progress_fn *progress, void *ctx)
{
    struct preload p = { .progress = progress, .ctx = ctx, .cancel = &m->cancel };
    struct pf_placement *place = m->place;
    if (!place)
        PF_FAIL(PF_EINVAL, "the model was opened for its vocabulary only; it has no weights");
    for (int i = 0; layers && i < n; i++)
        if (layers[i] < 0 || layers[i] >= m->n_layer)
            PF_FAIL(PF_EINVAL, "there is no layer %d; the model has 0 to %d", layers[i], m->n_layer - 1);
    PF_TRY(pf_gguf_unchanged(m->file));
    for (int i = 0; i < (layers ? n : 1); i++) {
        visit(place, layers ? layers[i] : -2, add_size, &p);
        p.total += pf_place_bytes(place, layers ? layers[i] : -1);
    }
    for (int i = 0; i < (layers ? n : 1); i++)
        PF_TRY(preload(place, layers ? layers[i] : -1, &p));
    if (layers)
        return PF_OK;
    pf_lock_take(&m->step_lock);
    pf_status st = pf_place_fill(m->place);
    pf_lock_give(&m->step_lock);
    return st == PF_EDEVICE ? PF_OK : st;
}

static bool in_memory(void *ctx, const struct pf_tensor *t)
{
    enum { PAGE = 4096, PAGES = 4096 };
    unsigned char map[PAGES];
    (void)ctx;
    uintptr_t begin = (uintptr_t)t->data / PAGE * PAGE, end = (uintptr_t)t->data + t->n_bytes;
    for (; begin < end; begin += (uintptr_t)PAGES * PAGE) {
        size_t n = end - begin < (size_t)PAGES * PAGE ? end - begin : (size_t)PAGES * PAGE;
        if (mincore((void *)begin, n, map) != 0)
            return false;
        for (size_t i = 0; i < (n + PAGE - 1) / PAGE; i++)
            if (!(map[i] & 1))
                return false;
    }
    return true;
}

bool pf_model_is_resident(const pf_model *m, int layer)
{
    const struct pf_placement *p = m->place;
    return p && layer >= 0 && layer < m->n_layer && visit(p, layer, in_memory, NULL) && pf_place_holds(p, layer);
}
