/* Weights, named by their host addresses: invariant 1 of cuda_backend.h. Small things share blocks. */
#include <string.h>

#include "base/pf_mem.h"
#include "kernels/cuda/cuda_backend.h"

enum { SMALL_BYTES = 1 << 20 };

/* Where host belongs in placed[]: the first entry that begins past it. */
static size_t past(const struct cuda_backend *b, const void *host)
{
    size_t low = 0, high = b->n_placed;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (b->placed[mid].host <= (const char *)host)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static void *find(const struct cuda_backend *b, const void *host)
{
    size_t i = past(b, host);
    if (i == 0)
        return NULL;
    const struct placed *p = &b->placed[i - 1];
    size_t at = (size_t)((const char *)host - p->host);
    return at < p->bytes ? p->dev + at : NULL;
}

static pf_status remember(struct cuda_backend *b, const void *host, size_t bytes, void *dev)
{
    if (b->n_placed == b->cap_placed) {
        size_t cap = b->cap_placed ? 2 * b->cap_placed : 256;
        struct placed *grown = pf_realloc(PF_MEM_KERNELS, b->placed, cap * sizeof *grown);
        if (!grown)
            PF_FAIL(PF_ENOMEM, "no memory for the list of weights on the GPU");
        b->placed = grown;
        b->cap_placed = cap;
    }
    size_t i = past(b, host);
    memmove(&b->placed[i + 1], &b->placed[i], (b->n_placed - i) * sizeof *b->placed);
    b->placed[i] = (struct placed){ .host = host, .bytes = bytes, .dev = dev };
    b->n_placed++;
    return PF_OK;
}

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
    return pf_cuda_check(cudaMemcpy(*dev, host, bytes, cudaMemcpyHostToDevice), "copying weights");
}

pf_status pf_cuda_place(pf_backend *backend, const void *host, size_t bytes)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    void *dev;
    if (bytes == 0 || find(b, host))
        return PF_OK;
    PF_TRY(pf_cuda_copy_in(b, host, bytes, &dev));
    return remember(b, host, bytes, dev);
}

pf_status pf_cuda_matrix_at(const struct cuda_backend *b, const void *host, const uint8_t **out)
{
    *out = find(b, host);
    if (!*out)
        PF_FAIL(PF_EDEVICE, "a weight is not in the GPU's memory");
    return PF_OK;
}

pf_status pf_cuda_floats_at(struct cuda_backend *b, const float *host, size_t n, const float **out)
{
    *out = NULL;
    if (!host)
        return PF_OK;
    PF_TRY(pf_cuda_place(&b->base, host, n * sizeof *host));
    *out = find(b, host);
    return PF_OK;
}

pf_status pf_cuda_table_at(struct cuda_backend *b, const uint8_t *const *host, int n, const uint8_t *const **out)
{
    *out = find(b, host);
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
    return remember(b, host, (size_t)n * sizeof *host, dev);
}
