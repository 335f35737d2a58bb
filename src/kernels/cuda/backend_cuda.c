/* The CUDA backend opens and closes here; which GPUs there are. */
#include <stdio.h>
#include <string.h>

#include "backend/ranks.h"
#include "base/pf_mem.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/ref/iq_tables.h"

pf_status pf_cuda_check(cudaError_t e, const char *what)
{
    if (e == cudaSuccess)
        return PF_OK;
    cudaGetLastError();
    pf_status st = e == cudaErrorMemoryAllocation ? PF_ENOMEM : PF_EDEVICE;
    PF_FAIL(st, "%s failed on the GPU: %s", what, cudaGetErrorString(e));
}

static void cuda_close(pf_backend *backend)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    if (!b)
        return;
    cudaSetDevice(b->device);
    if (b->stream)
        cudaStreamSynchronize(b->stream);
    if (b->ranks)
        pf_ranks_use(b->ranks, NULL);
    pf_cuda_copies_close(b);
    pf_cuda_share_close(b);
    pf_cuda_among_close(b);
    for (int i = 0; i < b->n_owned; i++)
        cudaFree(b->owned[i]);
    pf_cuda_drop_graphs(b);
    cudaFree(b->scratch);
    cudaFreeHost(b->fault);
    cudaFreeHost(b->told);
    if (b->so_far)
        cudaEventDestroy(b->so_far);
    if (b->stream)
        cudaStreamDestroy(b->stream);
    cudaGetLastError();
    pf_placed_free(&b->placed);
    pf_free(b);
}

static uint64_t cuda_room(const pf_backend *backend)
{
    const struct cuda_backend *b = (const struct cuda_backend *)backend;
    return b->budget - b->used;
}

static const char *cuda_describe(const pf_backend *backend)
{
    return ((const struct cuda_backend *)backend)->describe;
}

static const struct pf_backend_ops cuda_ops = {
    .name = "cuda",
    .close = cuda_close,
    .describe = cuda_describe,
    .room = cuda_room,
    .place = pf_cuda_place,
    .place_pieces = pf_cuda_place_pieces,
    .buf_alloc = pf_cuda_buf_alloc,
    .buf_free = pf_cuda_buf_free,
    .buf_copy = pf_cuda_buf_copy,
    .pass = pf_cuda_pass,
    .upload = pf_cuda_upload,
    .bring = pf_cuda_bring,
    .download = pf_cuda_download,
    .finish = pf_cuda_finish,
    .is_lost = pf_cuda_is_lost,
    .begin = pf_cuda_begin,
    .repeats = pf_cuda_repeats,
    .end = pf_cuda_end,
    .scratch_bytes = pf_cuda_scratch_bytes,
    .scratch_more = pf_cuda_scratch_more,
    .reserve = pf_cuda_reserve,
    .embed = pf_cuda_embed,
    .rms_norm = pf_cuda_rms_norm,
    .norm_each = pf_cuda_norm_each,
    .centre = pf_cuda_centre,
    .layer_norm = pf_cuda_layer_norm,
    .linear = pf_cuda_linear,
    .heads = pf_cuda_heads,
    .act = pf_cuda_act,
    .add = pf_cuda_add,
    .check_finite = pf_cuda_check_finite,
    .tops = pf_cuda_tops,
    .add_gated = pf_cuda_add_gated,
    .add_bias = pf_cuda_add_bias,
    .gate = pf_cuda_gate,
    .softcap = pf_cuda_softcap,
    .rope = pf_cuda_rope,
    .kv_store = pf_cuda_kv_store,
    .attention = pf_cuda_attention,
    .choose = pf_cuda_choose,
    .route = pf_cuda_route,
    .copy = pf_cuda_copy,
    .delta = pf_cuda_delta,
    .conv = pf_cuda_conv,
    .ssm = pf_cuda_ssm,
    .compress = pf_cuda_compress,
    .mix = pf_cuda_mix,
    .streams_read = pf_cuda_streams_read,
    .streams_write = pf_cuda_streams_write,
    .gated_read = pf_cuda_gated_read,
    .gated_write = pf_cuda_gated_write,
    .agree = pf_cuda_agree,
    .spread = pf_cuda_spread,
    .experts = pf_cuda_experts,
    .experts_begin = pf_cuda_experts_begin,
    .experts_part = pf_cuda_experts_part,
    .experts_given = pf_cuda_experts_given,
    .experts_end = pf_cuda_experts_end,
    .experts_up = pf_cuda_experts_up,
    .experts_down = pf_cuda_experts_down,
    .share = &pf_cuda_share_ops,
};

const struct pf_among_ops *pf_backend_cuda_among(const pf_backend *b)
{
    return b->ops == &cuda_ops ? &pf_cuda_among_ops : NULL;
}

const struct pf_meet_ops *pf_backend_cuda_meet(const pf_backend *b)
{
    return b->ops == &cuda_ops ? &pf_cuda_meet_ops : NULL;
}

/* Kernels look numbers up in copies of the host's tables. */
static pf_status copy_tables(struct cuda_backend *b)
{
    const struct { const void *host; size_t bytes; const void **to; } tables[] = {
        { pf_grid_iq2_xxs, sizeof pf_grid_iq2_xxs, (const void **)&b->tables.iq2_xxs },
        { pf_grid_iq2_xs, sizeof pf_grid_iq2_xs, (const void **)&b->tables.iq2_xs },
        { pf_grid_iq2_s, sizeof pf_grid_iq2_s, (const void **)&b->tables.iq2_s },
        { pf_grid_iq1, sizeof pf_grid_iq1, (const void **)&b->tables.iq1 },
        { pf_grid_iq3_xxs, sizeof pf_grid_iq3_xxs, (const void **)&b->tables.iq3_xxs },
        { pf_grid_iq3_s, sizeof pf_grid_iq3_s, (const void **)&b->tables.iq3_s },
    };
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        void *dev;
        PF_TRY(pf_cuda_copy_in(b, tables[i].host, tables[i].bytes, &dev));
        *tables[i].to = dev;
    }
    return PF_OK;
}

/* Names the card's generation; also that of the code, if there are faster paths for the card than it has. */
static pf_status describe(struct cuda_backend *b, int capability)
{
    int code;
    CU_TRY(pf_cu_code(&code), "asking for the kernels' code");
    bool is_slow = (code < 80 && capability >= 80) || (code < 90 && capability >= 90);
    snprintf(b->describe, sizeof b->describe, is_slow ? "sm_%d, code of sm_%d" : "sm_%d", capability, code);
    return PF_OK;
}

/* Copies between cards go straight, if they can, once both have asked for it. */
static void reach_others(int device)
{
    int n = 0, can = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess)
        n = 0;
    for (int i = 0; i < n; i++)
        if (i != device && cudaDeviceCanAccessPeer(&can, device, i) == cudaSuccess && can)
            (void)cudaDeviceEnablePeerAccess(i, 0);
    cudaGetLastError();                  /* it was asked for before */
}

static pf_status open_parts(struct cuda_backend *b, uint64_t vram_bytes)
{
    enum { LEAVE_BYTES = 256 << 20 };        /* for the driver's own needs and for other programs */
    enum { STATIC_BYTES = 256 };             /* more than static variables take of most blocks' shared
                                                memory; kernels that have more leave more */
    struct cudaDeviceProp prop;
    size_t free_bytes, total_bytes;
    CU_TRY(cudaSetDevice(b->device), "choosing the GPU");
    CU_TRY(cudaGetDeviceProperties(&prop, b->device), "asking the GPU");
    CU_TRY(cudaMemGetInfo(&free_bytes, &total_bytes), "asking for free memory");
    b->budget = free_bytes > LEAVE_BYTES ? free_bytes - LEAVE_BYTES : 0;
    if (vram_bytes && vram_bytes < b->budget)
        b->budget = vram_bytes;
    reach_others(b->device);
    b->shared_bytes = prop.sharedMemPerBlockOptin - STATIC_BYTES;
    b->has_tiles = pf_cu_tile_shape(prop.sharedMemPerBlockOptin, prop.multiProcessorCount, &b->shape);
    PF_TRY(describe(b, prop.major * 10 + prop.minor));
    CU_TRY(cudaStreamCreateWithFlags(&b->stream, cudaStreamNonBlocking), "opening a stream");
    CU_TRY(cudaEventCreateWithFlags(&b->so_far, cudaEventDisableTiming), "making an event");
    CU_TRY(cudaHostAlloc((void **)&b->fault, sizeof *b->fault, cudaHostAllocMapped), "allocating pinned memory");
    *b->fault = CU_FINE;
    CU_TRY(cudaHostAlloc((void **)&b->told, sizeof *b->told, cudaHostAllocMapped), "allocating pinned memory");
    *b->told = 0;
    PF_TRY(pf_cuda_copy_in(b, b->told, sizeof *b->told, (void **)&b->ended));
    CU_TRY(pf_cu_probe(b->stream), "running a kernel");
    CU_TRY(cudaStreamSynchronize(b->stream), "running a kernel");
    return copy_tables(b);
}

pf_status pf_backend_cuda_open(pf_backend **out, int device, uint64_t vram_bytes)
{
    int n = 0;
    *out = NULL;
    if (cudaGetDeviceCount(&n) != cudaSuccess)
        n = 0;
    cudaGetLastError();
    if (device < 0 || device >= n)
        PF_FAIL(PF_EDEVICE, "there is no GPU %d: this machine has %d that CUDA can use", device, n);
    struct cuda_backend *b = pf_alloc(PF_MEM_KERNELS, sizeof *b);
    if (!b)
        PF_FAIL(PF_ENOMEM, "no memory for the CUDA backend");
    b->base.ops = &cuda_ops;
    b->device = device;
    pf_status st = open_parts(b, vram_bytes);
    if (st < 0) {
        cuda_close(&b->base);
        return st;
    }
    *out = &b->base;
    return PF_OK;
}

/* "570.86.15, CUDA 12.8". CUDA has no call for the release; the kernel module's file is absent in some containers. */
static void describe_driver(char *out, size_t cap)
{
    char release[32] = "";
    int cuda = 0;
    FILE *f = fopen("/sys/module/nvidia/version", "re");
    if (f && fgets(release, sizeof release, f))
        release[strcspn(release, "\n")] = 0;
    if (f)
        fclose(f);
    cudaDriverGetVersion(&cuda);
    snprintf(out, cap, "%s%sCUDA %d.%d", release, release[0] ? ", " : "", cuda / 1000, cuda % 1000 / 10);
}

bool pf_backend_cuda_device(int i, struct pf_device *out)
{
    struct cudaDeviceProp prop;
    int n = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess || i >= n || cudaGetDeviceProperties(&prop, i) != cudaSuccess) {
        cudaGetLastError();
        return false;
    }
    *out = (struct pf_device){ .backend = "cuda", .memory_bytes = prop.totalGlobalMem,
                               .n_units = prop.multiProcessorCount };
    snprintf(out->name, sizeof out->name, "%.63s", prop.name);
    describe_driver(out->driver, sizeof out->driver);
    return true;
}
