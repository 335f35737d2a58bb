/* Stands in for backend_cuda.c where pfmoe is built without CUDA: there are no GPUs. */
#include "backend/among.h"
#include "backend/meet.h"

pf_status pf_backend_cuda_open(pf_backend **out, int device, uint64_t vram_bytes)
{
    (void)vram_bytes;
    *out = NULL;
    PF_FAIL(PF_EDEVICE, "there is no GPU %d: pfmoe was built without CUDA", device);
}

bool pf_backend_cuda_device(int i, struct pf_device *out)
{
    (void)i, (void)out;
    return false;
}

double pf_backend_cuda_bandwidth(int i)
{
    (void)i;
    return 0;
}

double pf_backend_cuda_copy_bandwidth(int i, void *host, size_t bytes, void (*meanwhile)(void *ctx), void *ctx)
{
    (void)i, (void)host, (void)bytes, (void)meanwhile, (void)ctx;
    return 0;
}

const struct pf_among_ops *pf_backend_cuda_among(const pf_backend *b)
{
    (void)b;
    return NULL;
}

const struct pf_meet_ops *pf_backend_cuda_meet(const pf_backend *b)
{
    (void)b;
    return NULL;
}
