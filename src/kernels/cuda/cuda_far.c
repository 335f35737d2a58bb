/* The host's part of attention to far keys and values: see backend/share.h.
 *
 *     stream      .. | show | partials of the device's chunks | take: waits | fold | ..
 *     this thread        `-> attend: the host's partials -> raise `made` -^
 *
 * Run plainly, the host is asked before take is put on the stream: a kernel that was never launched may be loaded then,
 * for which CUDA waits for all that runs. In a replayed step it is asked in its turn among the shared layers
 * (cuda_share.c).
 *
 * Memory of the host that the device has mapped: two flags for each layer, each in a line of its own; one set of
 * queries and partials, since the device shows a layer's queries when it has taken the partials of the layer before. It
 * is taken when a session first asks for room, and stays. */
#include <string.h>

#include "base/pf_mem.h"
#include "base/pf_time.h"
#include "kernels/cuda/cuda_backend.h"

enum { LINE = 64 };
static const size_t PART_BYTES = (size_t)16 << 20;   /* 250,000 positions of 32 heads of 128 */

struct cuda_far {
    struct cu_far   at;                  /* of no layer: no flags */
    struct cu_flag *shown, *made;        /* [n_layer] */
    void           *mapped;              /* the memory of flags, queries and partials */
    int             n_layer;
    struct far_timing {
        uint64_t seen_ns, made_ns;       /* by the host's clock; 0: not in this step */
        bool     replayed, told;         /* told: pf_cuda_attended has said so */
    } *timings;                          /* [n_layer] */
};

/* ---- Opening and closing ----------------------------------------------------------------------------------------- */

static size_t lines(size_t bytes)
{
    return (bytes + LINE - 1) / LINE * LINE;
}

static pf_status open_mapped(const struct cuda_backend *b, struct cuda_far *f)
{
    size_t flags = (size_t)f->n_layer * sizeof *f->shown, n = PF_BY_HOST_ROWS * (size_t)b->sizes.max_heads,
           q = lines(PF_BY_HOST_ROWS * (size_t)b->sizes.max_i16 * 2), cq = lines(n * sizeof *f->at.cq);
    CU_TRY(cudaHostAlloc(&f->mapped, 2 * flags + q + cq + PART_BYTES, cudaHostAllocMapped), "allocating pinned memory");
    char *at = f->mapped;
    memset(at, 0, 2 * flags);
    f->shown = (struct cu_flag *)(void *)at;
    f->made = f->shown + f->n_layer;
    f->at.q = (int8_t *)at + 2 * flags;
    f->at.cq = (float *)(void *)(at + 2 * flags + q);
    f->at.part = (float *)(void *)(at + 2 * flags + q + cq);
    return PF_OK;
}

static pf_status open_far(struct cuda_backend *b, struct cuda_far *f)
{
    void *told;
    CU_TRY(cudaSetDevice(b->device), "choosing the GPU");
    f->timings = pf_alloc_array(PF_MEM_KERNELS, (size_t)f->n_layer, sizeof *f->timings);
    if (!f->timings)
        PF_FAIL(PF_ENOMEM, "no memory to time %d layers", f->n_layer);
    PF_TRY(pf_cuda_own(b, sizeof *f->at.told, &told));
    f->at.told = told;
    return open_mapped(b, f);
}

/* What was not to be had once is not asked for again: the device does without the host. */
size_t pf_cuda_attend_room(pf_backend *backend)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    if (!b->far && (b->far = pf_alloc(PF_MEM_KERNELS, sizeof *b->far))) {
        b->far->n_layer = pf_cuda_share_layers(b);
        (void)open_far(b, b->far);
    }
    return b->far && b->far->mapped ? PART_BYTES / sizeof(float) : 0;
}

void pf_cuda_far_close(struct cuda_backend *b)
{
    if (!b->far)
        return;
    cudaFreeHost(b->far->mapped);
    pf_free(b->far->timings);
    pf_free(b->far);
    b->far = NULL;
}

/* ---- A step ------------------------------------------------------------------------------------------------------ */

/* How long the device waited for layer il's partials; run plainly, since it had shown the queries. */
static uint64_t waited(const struct cuda_far *f, int il)
{
    uint64_t since = f->timings[il].replayed ? f->made[il].began_ns : f->shown[il].ns;
    return f->timings[il].made_ns && f->made[il].ns > since ? f->made[il].ns - since : 0;
}

uint64_t pf_cuda_far_lower(struct cuda_backend *b, int il)
{
    struct cuda_far *f = b->far;
    if (!f || !f->mapped)
        return 0;
    uint64_t ns = waited(f, il);
    f->shown[il] = f->made[il] = (struct cu_flag){ .up = CU_FLAG_DOWN };
    f->timings[il] = (struct far_timing){ 0, 0, false, false };
    return ns;
}

void pf_cuda_far_give_up(struct cuda_backend *b)
{
    for (int il = 0; b->far && b->far->mapped && il < b->far->n_layer; il++)
        __atomic_store_n(&b->far->made[il].up, CU_FLAG_GIVEN_UP, __ATOMIC_RELEASE);
}

struct cu_far pf_cuda_far_of(const struct cuda_backend *b, int il)
{
    struct cu_far far = b->far->at;
    far.shown = &b->far->shown[il];
    far.made = &b->far->made[il];
    return far;
}

struct pf_partials_op pf_cuda_far_partials(const struct cuda_backend *b, const struct pf_attention_op *a)
{
    const struct cu_far *at = &b->far->at;
    return (struct pf_partials_op){ .kv = a->kv, .q = at->q, .cq = at->cq, .part = (float *)(uintptr_t)at->part,
                                    .n_q = a->rows * (a->n_head / a->kv->n_kv_head) };
}

struct cu_flag *pf_cuda_far_shown(const struct cuda_backend *b, int il)
{
    return &b->far->shown[il];
}

void pf_cuda_far_made(struct cuda_backend *b, int il, uint64_t seen_ns, bool replayed)
{
    b->far->timings[il] = (struct far_timing){ seen_ns, pf_now_ns(), replayed, false };
    __atomic_store_n(&b->far->made[il].up, CU_FLAG_UP, __ATOMIC_RELEASE);
}

/* How long the host took for layer il, from the queries shown on; if the device was later, as far as the host knows. */
static uint64_t host_ns(const struct cuda_far *f, int il)
{
    const struct far_timing *t = &f->timings[il];
    return f->made[il].was_up ? t->made_ns - t->seen_ns : f->made[il].ns - f->shown[il].ns;
}

void pf_cuda_attended(pf_backend *backend, struct pf_attended *out)
{
    struct cuda_far *f = pf_cuda_of(backend)->far;
    *out = (struct pf_attended){ 0, 0 };
    for (int il = 0; f && f->mapped && il < f->n_layer; il++) {
        struct far_timing *t = &f->timings[il];
        uint64_t shown = f->shown[il].ns, began = f->made[il].began_ns;
        if (!t->replayed || t->told || shown == 0 || began <= shown)
            continue;
        t->told = true;
        out->host_ns += host_ns(f, il);
        out->device_ns += began - shown;
    }
}
