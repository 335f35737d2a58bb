/* How fast a GPU reads its memory, and how fast copies to it arrive. Neither needs an open backend; each call takes
 * what it needs and gives it back. Times are the GPU's own, by events. */
#include <string.h>

#include "kernels/cuda/cuda_backend.h"

/* ---- Its memory -------------------------------------------------------------------------------------------------- */

/* The best of a few runs over much more than the cache holds. */
static cudaError_t measure_read(char *memory, size_t bytes, float *best_ms)
{
    enum { RUNS = 4 };
    cudaEvent_t begin, end;
    cudaError_t e = cudaEventCreate(&begin);
    if (e != cudaSuccess)
        return e;
    e = cudaEventCreate(&end);
    for (int i = 0; e == cudaSuccess && i < RUNS; i++) {
        float ms = 0;
        cudaEventRecord(begin, 0);
        pf_cu_read(0, memory, bytes, (uint32_t *)(void *)(memory + bytes));
        cudaEventRecord(end, 0);
        e = cudaEventSynchronize(end);
        if (e == cudaSuccess)
            e = cudaEventElapsedTime(&ms, begin, end);
        if (i == 0 || ms < *best_ms)
            *best_ms = ms;
    }
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    return e;
}

double pf_backend_cuda_bandwidth(int i)
{
    struct pf_device gpu;
    size_t bytes = (size_t)1 << 30;
    void *memory = NULL;
    float ms = 0;
    if (!pf_backend_cuda_device(i, &gpu) || cudaSetDevice(i) != cudaSuccess ||
        cudaMalloc(&memory, bytes + CUDA_ALIGN) != cudaSuccess) {
        cudaGetLastError();
        return 0;
    }
    cudaError_t e = cudaMemset(memory, 0, bytes + CUDA_ALIGN);
    if (e == cudaSuccess)
        e = measure_read(memory, bytes, &ms);
    cudaFree(memory);
    cudaGetLastError();
    return e == cudaSuccess && ms > 0 ? (double)bytes / ms * 1e3 : 0;
}

/* The memory transfers at both edges of its clock. */
double pf_backend_cuda_rate(int i)
{
    int khz = 0, bits = 0;
    if (cudaDeviceGetAttribute(&khz, cudaDevAttrMemoryClockRate, i) != cudaSuccess ||
        cudaDeviceGetAttribute(&bits, cudaDevAttrGlobalMemoryBusWidth, i) != cudaSuccess)
        cudaGetLastError();
    return 2e3 * khz * (bits / 8);
}

/* ---- Copies to it ------------------------------------------------------------------------------------------------ */

/* Beside something 4 GiB are copied, so that it ends before they do. */
enum { PIECE_BYTES = 16 << 20, PIECES_ALONE = 64, PIECES_BESIDE = 256 };

struct copying {
    cudaStream_t stream;
    cudaEvent_t  at[PIECES_BESIDE + 1];      /* the beginning, and the end of each piece */
    void        *to;
    bool         pinned;
};

static bool copying_open(struct copying *c, void *host, size_t bytes, int n)
{
    bool ok = cudaMalloc(&c->to, PIECE_BYTES) == cudaSuccess &&
              cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking) == cudaSuccess;
    for (int i = 0; ok && i <= n; i++)
        ok = cudaEventCreate(&c->at[i]) == cudaSuccess;
    c->pinned = ok && cudaHostRegister(host, bytes, cudaHostRegisterPortable) == cudaSuccess;
    return c->pinned;
}

static void copying_close(struct copying *c, void *host)
{
    if (c->pinned)
        cudaHostUnregister(host);
    for (int i = 0; i <= PIECES_BESIDE && c->at[i]; i++)
        cudaEventDestroy(c->at[i]);
    if (c->stream)
        cudaStreamDestroy(c->stream);
    cudaFree(c->to);
    cudaGetLastError();
}

static bool begin_copies(const struct copying *c, const char *host, size_t n_pieces, int n)
{
    bool ok = cudaEventRecord(c->at[0], c->stream) == cudaSuccess;
    for (int i = 0; ok && i < n; i++)
        ok = cudaMemcpyAsync(c->to, host + (size_t)i % n_pieces * PIECE_BYTES, PIECE_BYTES, cudaMemcpyHostToDevice,
                             c->stream) == cudaSuccess && cudaEventRecord(c->at[i + 1], c->stream) == cudaSuccess;
    return ok;
}

double pf_backend_cuda_copy_bandwidth(int i, void *host, size_t bytes, void (*meanwhile)(void *ctx), void *ctx)
{
    struct pf_device gpu;
    struct copying c;
    int n = meanwhile ? PIECES_BESIDE : PIECES_ALONE, n_done = n;
    float ms = 0;
    memset(&c, 0, sizeof c);
    if (bytes < PIECE_BYTES || !pf_backend_cuda_device(i, &gpu) || cudaSetDevice(i) != cudaSuccess)
        return 0;
    bool ok = copying_open(&c, host, bytes, n) && begin_copies(&c, host, bytes / PIECE_BYTES, n);
    if (ok && meanwhile) {
        meanwhile(ctx);
        while (n_done > 0 && cudaEventQuery(c.at[n_done]) != cudaSuccess)        /* only what ended beside it counts */
            n_done--;
    }
    ok = c.stream && cudaStreamSynchronize(c.stream) == cudaSuccess && ok && n_done > 0 &&
         cudaEventElapsedTime(&ms, c.at[0], c.at[n_done]) == cudaSuccess;
    copying_close(&c, host);
    return ok && ms > 0 ? (double)n_done * PIECE_BYTES / ms * 1e3 : 0;
}
