/* Opening and closing a store: slots by size, files, tables. See store_impl.h. */
#define _GNU_SOURCE
#include "tiers/store/store_impl.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "base/pf_mem.h"
#include "base/pf_thread.h"
#include "tiers/spread.h"

enum { HUGE_BYTES = 2 << 20 };

/* ---- Sizes ------------------------------------------------------------------------------------------------------- */

static uint64_t slot_bytes_of(uint64_t bytes, uint32_t align)
{
    return (bytes + 2 * (uint64_t)align - 2) / align * align;        /* wherever in a sector it begins */
}

/* Parts of one size: how many a slab has at most, and how many the slab at hand has. */
struct size {
    uint64_t bytes;
    int      least, here;
};

static struct size *size_for(struct size *sizes, int *n, uint64_t bytes)
{
    for (int i = 0; i < *n; i++)
        if (sizes[i].bytes == bytes)
            return &sizes[i];
    sizes[*n] = (struct size){ .bytes = bytes };
    return &sizes[(*n)++];
}

pf_status pf_store_bytes(const struct pf_store_setup *s, uint64_t *all, uint64_t *least)
{
    int n = 0;
    *all = *least = 0;
    if (s->n_parts == 0)
        return PF_OK;
    struct size *sizes = pf_alloc_array(PF_MEM_TIERS, (size_t)s->n_parts, sizeof *sizes);
    if (!sizes)
        PF_FAIL(PF_ENOMEM, "no memory for the sizes of %d parts", s->n_parts);
    for (int i = 0; i < s->n_slabs; i++) {
        const struct pf_part *parts = s->parts + s->slabs[i].first;
        for (int p = 0; p < s->slabs[i].n; p++) {
            struct size *size = size_for(sizes, &n, parts[p].bytes);
            size->here++;
            size->least = size->here > size->least ? size->here : size->least;
            *all += slot_bytes_of(parts[p].bytes, PF_IO_ALIGN_UNKNOWN);
        }
        for (int p = 0; p < s->slabs[i].n; p++)
            size_for(sizes, &n, parts[p].bytes)->here = 0;
    }
    for (int i = 0; i < n; i++)
        *least += (uint64_t)sizes[i].least * slot_bytes_of(sizes[i].bytes, PF_IO_ALIGN_UNKNOWN);
    pf_free(sizes);
    return PF_OK;
}

/* ---- Opening ----------------------------------------------------------------------------------------------------- */

static int class_for(struct pf_store *s, uint64_t bytes)
{
    for (int c = 0; c < s->n_classes; c++)
        if (s->classes[c].bytes == bytes)
            return c;
    s->classes[s->n_classes] = (struct pf_slots){ .bytes = bytes, .slot_bytes = slot_bytes_of(bytes, s->align) };
    return s->n_classes++;
}

static int chunks_of(const struct pf_store *s, const struct pf_part *p)
{
    uint64_t begin = p->offset / s->align * s->align;
    return (int)((p->offset + p->bytes - begin + PF_STORE_READ_BYTES - 1) / PF_STORE_READ_BYTES);
}

/* Sorts the parts into classes and finds how many slots a class needs so that every slab fits by itself. */
static pf_status make_classes(struct pf_store *s, const struct pf_store_setup *setup)
{
    for (int i = 0; i < s->n_slabs; i++) {
        for (int p = s->slabs[i].first; p < s->slabs[i].first + s->slabs[i].n; p++) {
            struct pf_stored *part = &s->parts[p];
            const struct pf_part *at = &setup->parts[p];
            const struct pf_io_file *f = &s->files[at->file];
            if (at->bytes == 0 || at->offset > f->bytes || at->bytes > f->bytes - at->offset)
                PF_FAIL(PF_ECHANGED, "%s: the file ends at byte %" PRIu64 "; a tensor should be at %" PRIu64,
                        s->paths[at->file], f->bytes, at->offset);
            *part = (struct pf_stored){ .at = *at, .slab = i, .prev = PF_NO_PART, .next = PF_NO_PART,
                                        .n_chunks = chunks_of(s, at) };
            part->class = class_for(s, at->bytes);
            part->index = s->classes[part->class].n_parts++;
        }
        for (int c = 0; c < s->n_classes; c++) {
            int n = 0;
            for (int p = 0; p < s->slabs[i].n; p++)
                n += s->parts[s->slabs[i].first + p].class == c;
            s->classes[c].least = n > s->classes[c].least ? n : s->classes[c].least;
        }
    }
    return PF_OK;
}

/* Every class gets the slots it needs, and then one share of the slots it would like, equal for all classes. */
static pf_status share_out(struct pf_store *s, uint64_t budget)
{
    uint64_t least = 0, more = 0;
    for (int c = 0; c < s->n_classes; c++) {
        least += (uint64_t)s->classes[c].least * s->classes[c].slot_bytes;
        more += (uint64_t)(s->classes[c].n_parts - s->classes[c].least) * s->classes[c].slot_bytes;
    }
    if (budget < least)
        PF_FAIL(PF_ENOMEM,
                "%" PRIu64 " bytes of memory are left for weights that are read as they are wanted; at least %" PRIu64
                " are needed",
                budget, least);
    double share = more == 0 ? 0 : (double)(budget - least) / (double)more;
    share = share > 1 ? 1 : share;
    for (int c = 0; c < s->n_classes; c++) {
        struct pf_slots *k = &s->classes[c];
        k->n_slots = k->least + (int)(share * (k->n_parts - k->least));
        s->arena_bytes += (size_t)k->n_slots * k->slot_bytes;
    }
    s->stats.slot_bytes = s->arena_bytes;
    s->arena_bytes += HUGE_BYTES;                /* so that the arena can begin on a huge page, which is
                                                    as aligned as any drive wants */
    return PF_OK;
}

static pf_status open_class(struct pf_store *s, struct pf_slots *k, const struct pf_store_setup *setup, uint8_t *at)
{
    int *layers = pf_alloc_array(PF_MEM_TIERS, (size_t)k->n_parts, sizeof *layers), n = 0;
    k->free = pf_alloc_array(PF_MEM_TIERS, (size_t)k->n_slots, sizeof *k->free);
    k->part_of = pf_alloc_array(PF_MEM_TIERS, (size_t)k->n_parts, sizeof *k->part_of);
    if (!layers || !k->free || !k->part_of) {
        pf_free(layers);
        PF_FAIL(PF_ENOMEM, "no memory for the tables of %d parts", k->n_parts);
    }
    for (int p = 0; p < s->n_parts; p++)
        if (&s->classes[s->parts[p].class] == k) {
            k->part_of[n] = p;
            layers[n++] = s->slabs[s->parts[p].slab].layer;
        }
    k->slots = at;
    for (k->n_free = 0; k->n_free < k->n_slots; k->n_free++)                     /* the first comes off first */
        k->free[k->n_free] = at + (uint64_t)(k->n_slots - 1 - k->n_free) * k->slot_bytes;
    pf_status st = setup->policy->open(&k->policy, &(struct pf_evict_shape){ k->n_parts, setup->n_layers, layers });
    pf_free(layers);
    return st;
}

static pf_status open_files(struct pf_store *s, const struct pf_store_setup *setup)
{
    s->files = pf_alloc_array(PF_MEM_TIERS, (size_t)setup->n_files, sizeof *s->files);
    s->paths = pf_alloc_array(PF_MEM_TIERS, (size_t)setup->n_files, sizeof *s->paths);
    if (!s->files || !s->paths)
        PF_FAIL(PF_ENOMEM, "no memory for a table of %d files", setup->n_files);
    s->align = PF_IO_ALIGN_UNKNOWN;
    for (; s->n_files < setup->n_files; s->n_files++) {
        const char *path = setup->paths[s->n_files];
        s->paths[s->n_files] = pf_strndup(PF_MEM_TIERS, path, strlen(path));
        if (!s->paths[s->n_files])
            PF_FAIL(PF_ENOMEM, "no memory for the name of %s", path);
        pf_status st = pf_io_file_open(&s->files[s->n_files], path);
        if (st < 0) {
            pf_free(s->paths[s->n_files]);
            return st;
        }
        s->align = s->files[s->n_files].align > s->align ? s->files[s->n_files].align : s->align;
    }
    return PF_OK;
}

static pf_status open_tables(struct pf_store *s, const struct pf_store_setup *setup)
{
    s->n_parts = setup->n_parts;
    s->n_slabs = setup->n_slabs;
    s->parts = pf_alloc_array(PF_MEM_TIERS, (size_t)s->n_parts, sizeof *s->parts);
    s->slabs = pf_alloc_array(PF_MEM_TIERS, (size_t)s->n_slabs, sizeof *s->slabs);
    s->classes = pf_alloc_array(PF_MEM_TIERS, (size_t)s->n_parts, sizeof *s->classes);
    if (!s->parts || !s->slabs || !s->classes)
        PF_FAIL(PF_ENOMEM, "no memory for the tables of %d parts", s->n_parts);
    memcpy(s->slabs, setup->slabs, (size_t)s->n_slabs * sizeof *s->slabs);
    PF_TRY(make_classes(s, setup));
    PF_TRY(share_out(s, setup->budget_bytes));
    s->arena = pf_pages_alloc(s->arena_bytes);
    if (!s->arena)
        PF_FAIL(PF_ENOMEM, "no memory for %zu bytes of weights", s->arena_bytes);
    pf_numa_spread(s->arena, s->arena_bytes);
    uint8_t *at = (uint8_t *)(((uintptr_t)s->arena + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES);
    for (int c = 0; c < s->n_classes; c++) {
        PF_TRY(open_class(s, &s->classes[c], setup, at));
        at += (uint64_t)s->classes[c].n_slots * s->classes[c].slot_bytes;
    }
    return PF_OK;
}

static pf_status open_reader(struct pf_store *s, const struct pf_store_setup *setup)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, &attr);
    pthread_cond_init(&s->has_work, NULL);
    pthread_condattr_destroy(&attr);
    s->has_lock = true;
    s->wanted = s->ahead = s->came = (struct pf_store_queue){ PF_NO_PART, PF_NO_PART };
    for (int i = 0; i < PF_STORE_DEPTH; i++) {
        s->reads[i].next = s->idle;
        s->idle = &s->reads[i];
    }
    struct pf_io_setup io = { .files = s->files, .n_files = s->n_files, .depth = PF_STORE_DEPTH, .arena = s->arena,
                              .arena_bytes = s->arena_bytes };
    PF_TRY(setup->io(&s->io, &io, setup->io_ctx));
    s->stats.policy = setup->policy->name;
    int err = pf_thread_start(&s->reader, pf_store_reader, s);
    if (err)
        PF_FAIL(PF_ENOMEM, "no thread to read weights with: %s", strerror(err));
    s->has_reader = true;
    return PF_OK;
}

pf_status pf_store_open(pf_store **out, const struct pf_store_setup *setup)
{
    pf_status st;
    *out = NULL;
    pf_store *s = pf_alloc(PF_MEM_TIERS, sizeof *s);
    if (!s)
        PF_FAIL(PF_ENOMEM, "no memory for a store of weights");
    s->n_entered = 1;                          /* 0 is no layer */
    s->stall_ns = setup->stall_ns;
    s->spans = setup->spans;
    PF_TRY_GOTO(st, open_files(s, setup));
    PF_TRY_GOTO(st, open_tables(s, setup));
    PF_TRY_GOTO(st, open_reader(s, setup));
    *out = s;
    return PF_OK;
fail:
    pf_store_close(&s);
    return st;
}

void pf_store_close(pf_store **sp)
{
    pf_store *s = *sp;
    if (!s)
        return;
    if (s->has_reader) {
        pthread_mutex_lock(&s->lock);
        s->closing = true;
        pthread_cond_signal(&s->has_work);
        pthread_mutex_unlock(&s->lock);
        pthread_join(s->reader, NULL);
    }
    for (int p = 0; s->parts && p < s->n_parts; p++)
        assert(s->parts[p].pins == 0 && "every pin has its unpin");
    if (s->io)
        s->io->ops->close(s->io);
    for (int c = 0; c < s->n_classes; c++) {
        if (s->classes[c].policy)
            s->classes[c].policy->ops->close(s->classes[c].policy);
        pf_free(s->classes[c].free);
        pf_free(s->classes[c].part_of);
    }
    for (int f = 0; f < s->n_files; f++) {
        pf_io_file_close(&s->files[f]);
        pf_free(s->paths[f]);
    }
    if (s->has_lock) {
        pthread_cond_destroy(&s->changed);
        pthread_cond_destroy(&s->has_work);
        pthread_mutex_destroy(&s->lock);
    }
    pf_pages_free(s->arena, s->arena_bytes);
    pf_free(s->classes);
    pf_free(s->parts);
    pf_free(s->slabs);
    pf_free(s->files);
    pf_free(s->paths);
    pf_free(s);
    *sp = NULL;
}
