/* Device memory and copies: the budget, buffers of sessions, and what goes in and out in turn with the operations. */
#include <string.h>

#include "kernels/cuda/cuda_backend.h"

pf_status pf_cuda_alloc(struct cuda_backend *b, size_t bytes, const char *what, void **out)
{
    *out = NULL;
    if (bytes > b->budget - b->used)
        PF_FAIL(PF_ENOMEM, "no GPU memory for %s of %zu bytes: %llu of %llu are taken", what, bytes,
                (unsigned long long)b->used, (unsigned long long)b->budget);
    CU_TRY(cudaSetDevice(b->device), "choosing the GPU");
    CU_TRY(cudaMalloc(out, bytes + CUDA_OVERREAD), what);
    b->used += bytes;
    return PF_OK;
}

void pf_cuda_free(struct cuda_backend *b, void *p, size_t bytes)
{
    if (!p)
        return;
    cudaFree(p);
    b->used -= bytes;
}

/* Waits, since copies of other streams may follow. */
static pf_status clear(struct cuda_backend *b, void *p, size_t bytes)
{
    CU_TRY(cudaMemsetAsync(p, 0, bytes, b->stream), "clearing a buffer");
    return pf_cuda_check(cudaStreamSynchronize(b->stream), "clearing a buffer");
}

pf_status pf_cuda_buf_alloc(pf_backend *backend, size_t bytes, bool shared, void **out)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    *out = NULL;
    if (shared) {
        CU_TRY(cudaSetDevice(b->device), "choosing the GPU");
        CU_TRY(cudaMallocHost(out, bytes), "allocating pinned memory");
        memset(*out, 0, bytes);
        return PF_OK;
    }
    PF_TRY(pf_cuda_alloc(b, bytes, "a buffer", out));
    pf_status st = clear(b, *out, bytes);
    if (st < 0) {
        pf_cuda_free(b, *out, bytes);
        *out = NULL;
    }
    return st;
}

void pf_cuda_buf_free(pf_backend *backend, void *p, size_t bytes, bool shared)
{
    if (!p)
        return;
    struct cuda_backend *b = pf_cuda_of(backend);
    cudaSetDevice(b->device);
    (void)pf_cuda_settle(b);             /* a held operation may name p */
    cudaStreamSynchronize(b->stream);
    pf_cuda_drop_graphs(b);
    if (shared) {
        cudaFreeHost(p);
        return;
    }
    pf_cuda_free(b, p, bytes);
}

void pf_cuda_buf_copy(pf_backend *backend, const struct pf_buf_copy *c)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    cudaMemcpy2DAsync(c->to, c->to_stride, c->from, c->from_stride, c->bytes, (size_t)c->rows, cudaMemcpyDeviceToDevice,
                      pf_cuda_follows(b));
}

pf_status pf_cuda_upload(pf_backend *backend, void *to, const void *from, size_t bytes)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    PF_TRY(pf_cuda_settle(b));
    b->x_of = NULL;
    return pf_cuda_put(b, cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, b->stream), "copying to the GPU");
}

void *pf_cuda_seen_by_kernels(void *p)
{
    void *seen;
    if (cudaHostGetDevicePointer(&seen, p, 0) == cudaSuccess)
        return seen;
    cudaGetLastError();
    return NULL;
}

pf_status pf_cuda_bring(pf_backend *backend, void *to, const void *from, size_t bytes)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    const void *seen = pf_cuda_seen_by_kernels((void *)(uintptr_t)from);
    if (!seen || ((uintptr_t)seen | (uintptr_t)to | bytes) % 16 != 0)
        return pf_cuda_upload(backend, to, from, bytes);
    PF_TRY(pf_cuda_settle(b));
    b->x_of = NULL;
    return pf_cuda_put(b, pf_cu_bring(b->stream, to, seen, bytes), "copying to the GPU");
}

pf_status pf_cuda_download(pf_backend *backend, void *to, const void *from, size_t bytes)
{
    struct cuda_backend *b = pf_cuda_of(backend);
    struct held_rows rows;
    bool gives = pf_cuda_gives(b, from, (int64_t)(bytes / sizeof(float)), &rows) && !b->product.given.to[rows.first];
    float *seen = gives ? pf_cuda_seen_by_kernels(to) : NULL;
    if (seen) {
        for (int i = 0; i < rows.n; i++)
            b->product.given.to[rows.first + i] = seen + (size_t)i * (size_t)rows.n_out;
        return rows.first + rows.n == b->product.linear.rows ? pf_cuda_settle(b) : PF_OK;
    }
    PF_TRY(pf_cuda_settle(b));
    return pf_cuda_put(b, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, b->stream), "copying from the GPU");
}

pf_status pf_cuda_after(struct cuda_backend *b, struct cuda_backend *other)
{
    PF_TRY(pf_cuda_settle(b));
    PF_TRY(pf_cuda_settle(other));
    CU_PUT(other, cudaEventRecord(other->so_far, other->stream), "being waited for by another GPU");
    return pf_cuda_put(b, cudaStreamWaitEvent(b->stream, other->so_far, 0), "waiting for another GPU");
}

bool pf_cuda_reaches(const struct cuda_backend *b, const struct cuda_backend *other)
{
    int can = 0;
    if (cudaDeviceCanAccessPeer(&can, b->device, other->device) != cudaSuccess)
        cudaGetLastError();
    return can;
}

/* The driver takes the copy through main memory where the cards do not reach each other. */
pf_status pf_cuda_pass(pf_backend *backend, pf_backend *other, void *x_to, const void *x, size_t bytes)
{
    struct cuda_backend *b = pf_cuda_of(backend), *to = pf_cuda_of(other);
    to->x_of = NULL;
    PF_TRY(pf_cuda_after(b, to));
    CU_PUT(b, cudaMemcpyPeerAsync(x_to, to->device, x, b->device, bytes, b->stream), "copying to another GPU");
    return pf_cuda_after(to, b);
}
