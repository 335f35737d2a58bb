/* Weights, named by their host addresses: invariant 1 of cuda_backend.h. Small things share blocks. */
#include "base/pf_mem.h"
#include "kernels/cuda/cuda_backend.h"

enum { SMALL_BYTES = 1 << 20 };

pf_status pf_cuda_own(struct cuda_backend *b, size_t bytes, void **out)
{
    if (b->n_owned == CUDA_MAX_OWNED)
        PF_FAIL(PF_ENOMEM, "the model has more than %d tensors, too many for the GPU", (int)CUDA_MAX_OWNED);
    PF_TRY(pf_cuda_alloc(b, bytes, "weights", out));
    b->owned[b->n_owned++] = *out;
    return PF_OK;
}

/* Small things are cut from blocks of SMALL_BYTES. */
static pf_status cut(struct cuda_backend *b, size_t bytes, void **out)
{
    bytes = (bytes + CUDA_ALIGN - 1) / CUDA_ALIGN * CUDA_ALIGN;
    if (bytes > SMALL_BYTES)
        return pf_cuda_own(b, bytes, out);
    if (!b->small || b->small_used + bytes > SMALL_BYTES) {
        void *block;
        PF_TRY(pf_cuda_own(b, SMALL_BYTES, &block));
        b->small = block;
        b->small_used = 0;
    }
    *out = b->small + b->small_used;
    b->small_used += bytes;
    return PF_OK;
}

pf_status pf_cuda_copy_in(struct cuda_backend *b, const void *host, size_t bytes, void **dev)
{
    PF_TRY(cut(b, bytes, dev));
    return pf_cuda_check(cudaMemcpyAsync(*dev, host, bytes, cudaMemcpyHostToDevice, pf_cuda_follows(b)),
                         "copying weights");
}

pf_status pf_cuda_place(pf_backend *backend, const void *host, size_t bytes)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    void *dev;
    if (bytes == 0 || pf_placed_find(&b->placed, host))
        return PF_OK;
    PF_TRY(pf_cuda_copy_in(b, host, bytes, &dev));
    return pf_placed_add(&b->placed, host, bytes, dev);
}

/* One block of the device's memory has them all, each on a multiple of CUDA_ALIGN. */
pf_status pf_cuda_place_pieces(pf_backend *backend, const uint8_t *const *host, int n, size_t bytes)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    size_t stride = (bytes + CUDA_OVERREAD + CUDA_ALIGN - 1) / CUDA_ALIGN * CUDA_ALIGN;
    void *block;
    PF_TRY(cut(b, (size_t)n * stride, &block));
    for (int i = 0; i < n; i++) {
        char *dev = (char *)block + (size_t)i * stride;
        CU_TRY(cudaMemcpyAsync(dev, host[i], bytes, cudaMemcpyHostToDevice, pf_cuda_follows(b)), "copying weights");
        PF_TRY(pf_placed_add(&b->placed, host[i], bytes, dev));
    }
    return PF_OK;
}

/* An operation that is held knows where its weights are: it begins before somebody else's may lie there. */
pf_status pf_cuda_lend(pf_backend *backend, const void *host, size_t bytes, void *dev)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    if (dev)
        return pf_placed_add(&b->placed, host, bytes, dev);
    pf_placed_remove(&b->placed, host);
    return pf_cuda_settle(b);
}

pf_status pf_cuda_matrix_at(const struct cuda_backend *b, const void *host, const uint8_t **out)
{
    *out = pf_placed_find(&b->placed, host);
    if (!*out)
        PF_FAIL(PF_EDEVICE, "a weight is not in the GPU's memory");
    return PF_OK;
}

pf_status pf_cuda_floats_at(struct cuda_backend *b, const float *host, size_t n, const float **out)
{
    *out = NULL;
    if (!host)
        return PF_OK;
    PF_TRY(pf_cuda_in_step(pf_cuda_place(&b->base, host, n * sizeof *host)));
    *out = pf_placed_find(&b->placed, host);
    return PF_OK;
}

pf_status pf_cuda_table_at(struct cuda_backend *b, const uint8_t *const *host, int n, const uint8_t *const **out)
{
    *out = pf_placed_find(&b->placed, host);
    if (*out)
        return PF_OK;
    const uint8_t **table = pf_alloc_array(PF_MEM_KERNELS, (size_t)n, sizeof *table);
    pf_status st = PF_OK;
    void *dev;
    if (!table)
        PF_FAIL(PF_ENOMEM, "no memory for a table of %d experts", n);
    for (int e = 0; st == PF_OK && e < n; e++)
        st = pf_cuda_matrix_at(b, host[e], &table[e]);
    if (st == PF_OK)
        st = pf_cuda_copy_in(b, table, (size_t)n * sizeof *table, &dev);
    pf_free(table);
    PF_TRY(st);
    *out = dev;
    return pf_placed_add(&b->placed, host, (size_t)n * sizeof *host, dev);
}
