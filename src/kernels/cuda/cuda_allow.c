/* How much shared memory the blocks of a kernel may have. It is one number for each kernel and card in the whole
 * process, so that one thread's launch depends on what others set: it only ever rises. Any thread may call. */
#include <pthread.h>

#include "kernels/cuda/cu_api.h"

static cudaError_t may_have(const void *kernel, size_t bytes, bool *out)
{
    struct cudaFuncAttributes of;
    cudaError_t e = cudaFuncGetAttributes(&of, kernel);
    *out = e == cudaSuccess && (size_t)of.maxDynamicSharedSizeBytes >= bytes;
    return e;
}

cudaError_t pf_cu_allow_bytes(const void *kernel, size_t bytes)
{
    static pthread_mutex_t one_raises = PTHREAD_MUTEX_INITIALIZER;
    enum { UNASKED = 48 << 10 };             /* with static variables; the number may or may not leave those out */
    bool may;
    if (bytes <= UNASKED)
        bytes = UNASKED + 16;
    cudaError_t e = may_have(kernel, bytes, &may);
    if (e != cudaSuccess || may)
        return e;
    pthread_mutex_lock(&one_raises);
    e = may_have(kernel, bytes, &may);
    if (e == cudaSuccess && !may)
        e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    pthread_mutex_unlock(&one_raises);
    return e;
}
