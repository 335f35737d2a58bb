/* The host's part of attention to far keys and values: see backend/share.h.
 *
 *     stream      .. | show | partials of the device's chunks | take: waits | fold | ..
 *     this thread        `-> attend: the host's partials -> raise `made` -^
 *
 * Run plainly, the host is asked before take is put on the stream: a kernel that was never launched may be loaded then,
 * for which CUDA waits for all that runs. In a replayed step it is asked in its turn among the shared layers
 * (cuda_share.c).
 *
 * Memory of the host that the device has mapped: two flags for each layer and sequence of a step, each in a line of its
 * own; one set of queries and partials, since the device shows queries when it has taken the partials of those before.
 * This memory is taken when a session first asks for room, and stays. */
#include <string.h>

#include "base/pf_mem.h"
#include "base/pf_time.h"
#include "kernels/cuda/cuda_backend.h"

enum { LINE = 64 };
static const size_t PART_BYTES = (size_t)16 << 20;   /* 250,000 positions of 32 heads of 128 */

struct cuda_far {
    struct cu_far   at;                  /* of no layer: no flags */
    struct cu_flag *shown, *made;        /* [n_layer][PF_BY_HOST_PARTS], numbered by far_number */
    void           *mapped;              /* the memory of flags, queries and partials */
    int             n_layer;
    struct far_timing {
        uint64_t seen_ns, made_ns;       /* by the host's clock; 0: not in this step */
        bool     replayed, told;         /* told: pf_cuda_attended has said so */
    } *timings;                          /* as flags */
};

static int far_number(int il, int part)
{
    return il * PF_BY_HOST_PARTS + part;
}

static int n_numbers(const struct cuda_far *f)
{
    return far_number(f->n_layer, 0);
}

/* ---- Opening and closing ----------------------------------------------------------------------------------------- */

static size_t lines(size_t bytes)
{
    return (bytes + LINE - 1) / LINE * LINE;
}

static pf_status open_mapped(const struct cuda_backend *b, struct cuda_far *f)
{
    size_t flags = (size_t)n_numbers(f) * sizeof *f->shown, n = PF_BY_HOST_ROWS * (size_t)b->sizes.max_heads,
           q = lines(PF_BY_HOST_ROWS * (size_t)b->sizes.max_i16 * 2), cq = lines(n * sizeof *f->at.cq);
    CU_TRY(cudaHostAlloc(&f->mapped, 2 * flags + q + cq + PART_BYTES, cudaHostAllocMapped), "allocating pinned memory");
    char *at = f->mapped;
    memset(at, 0, 2 * flags);
    f->shown = (struct cu_flag *)(void *)at;
    f->made = f->shown + n_numbers(f);
    f->at.q = (int8_t *)at + 2 * flags;
    f->at.cq = (float *)(void *)(at + 2 * flags + q);
    f->at.part = (float *)(void *)(at + 2 * flags + q + cq);
    return PF_OK;
}

static pf_status open_far(struct cuda_backend *b, struct cuda_far *f)
{
    void *told;
    CU_TRY(cudaSetDevice(b->device), "choosing the GPU");
    f->timings = pf_alloc_array(PF_MEM_KERNELS, (size_t)n_numbers(f), sizeof *f->timings);
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

/* How long the device waited for the host's partials; run plainly, since it had shown the queries. */
static uint64_t waited(const struct cuda_far *f, int number)
{
    uint64_t since = f->timings[number].replayed ? f->made[number].began_ns : f->shown[number].ns;
    return f->timings[number].made_ns && f->made[number].ns > since ? f->made[number].ns - since : 0;
}

static uint64_t lower(struct cuda_far *f, int number)
{
    uint64_t ns = waited(f, number);
    f->shown[number] = f->made[number] = (struct cu_flag){ .up = CU_FLAG_DOWN };
    f->timings[number] = (struct far_timing){ 0, 0, false, false };
    return ns;
}

uint64_t pf_cuda_far_lower(struct cuda_backend *b, const struct pf_by_host *by_host)
{
    return lower(b->far, far_number(by_host->il, by_host->part));
}

uint64_t pf_cuda_far_lower_all(struct cuda_backend *b)
{
    struct cuda_far *f = b->far;
    uint64_t ns = 0;
    for (int i = 0; f && f->mapped && i < n_numbers(f); i++)
        ns += lower(f, i);
    return ns;
}

void pf_cuda_far_give_up(struct cuda_backend *b)
{
    for (int i = 0; b->far && b->far->mapped && i < n_numbers(b->far); i++)
        __atomic_store_n(&b->far->made[i].up, CU_FLAG_GIVEN_UP, __ATOMIC_RELEASE);
}

struct cu_far pf_cuda_far_of(const struct cuda_backend *b, const struct pf_by_host *by_host)
{
    struct cu_far far = b->far->at;
    int number = far_number(by_host->il, by_host->part);
    far.shown = &b->far->shown[number];
    far.made = &b->far->made[number];
    return far;
}

struct pf_partials_op pf_cuda_far_partials(const struct cuda_backend *b, const struct pf_attention_op *a)
{
    const struct cu_far *at = &b->far->at;
    return (struct pf_partials_op){ .kv = a->kv, .q = at->q, .cq = at->cq, .part = (float *)(uintptr_t)at->part,
                                    .n_q = a->rows * (a->n_head / a->kv->n_kv_head) };
}

struct cu_flag *pf_cuda_far_shown(const struct cuda_backend *b, const struct pf_by_host *by_host)
{
    return &b->far->shown[far_number(by_host->il, by_host->part)];
}

void pf_cuda_far_made(struct cuda_backend *b, const struct pf_by_host *by_host, uint64_t seen_ns, bool replayed)
{
    int number = far_number(by_host->il, by_host->part);
    b->far->timings[number] = (struct far_timing){ seen_ns, pf_now_ns(), replayed, false };
    __atomic_store_n(&b->far->made[number].up, CU_FLAG_UP, __ATOMIC_RELEASE);
}

/* How long the host took, from the queries shown on; if the device was later, as far as the host knows. */
static uint64_t host_ns(const struct cuda_far *f, int number)
{
    const struct far_timing *t = &f->timings[number];
    return f->made[number].was_up ? t->made_ns - t->seen_ns : f->made[number].ns - f->shown[number].ns;
}

void pf_cuda_attended(pf_backend *backend, int part, struct pf_attended *out)
{
    struct cuda_far *f = pf_cuda_of(backend)->far;
    *out = (struct pf_attended){ 0, 0 };
    for (int il = 0; f && f->mapped && il < f->n_layer; il++) {
        int number = far_number(il, part);
        struct far_timing *t = &f->timings[number];
        uint64_t shown = f->shown[number].ns, began = f->made[number].began_ns;
        if (!t->replayed || t->told || shown == 0 || began <= shown)
            continue;
        t->told = true;
        out->host_ns += host_ns(f, number);
        out->device_ns += began - shown;
    }
}
