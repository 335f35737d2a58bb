/* Stands in for backend_cuda.c where pfmoe is built without CUDA: there are no GPUs. */
#include "backend/among.h"
#include "backend/meet.h"
#include "backend/ranks.h"

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

double pf_backend_cuda_rate(int i)
{
    (void)i;
    return 0;
}

struct pf_link pf_backend_cuda_link(pf_backend *const *cards, int n, double *swap_seconds)
{
    (void)cards, (void)n;
    *swap_seconds = 0;
    return (struct pf_link){ 0, 0 };
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

pf_status pf_ranks_open(pf_ranks **out, int gpu, int rank, int n, int wait_s, const struct pf_cancel *cancel)
{
    (void)gpu, (void)rank, (void)n, (void)wait_s, (void)cancel;
    *out = NULL;
    PF_FAIL(PF_EUNSUPPORTED, "several processes exchange by their GPUs, and pfmoe was built without CUDA");
}

void pf_ranks_close(pf_ranks *r)
{
    (void)r;
}

static pf_status no_ranks(void)
{
    PF_FAIL(PF_EUNSUPPORTED, "pfmoe was built without CUDA");
}

void pf_ranks_expect(pf_ranks *r, int wait_s, const char *what)
{
    (void)r, (void)wait_s, (void)what;
}

pf_status pf_ranks_introduce(pf_ranks *r)
{
    (void)r;
    return no_ranks();
}

pf_status pf_ranks_watch(pf_ranks *r)
{
    (void)r;
    return no_ranks();
}

pf_status pf_ranks_broadcast(pf_ranks *r, void *bytes, size_t n)
{
    (void)r, (void)bytes, (void)n;
    return no_ranks();
}

pf_status pf_ranks_gather(pf_ranks *r, const void *mine, void *all, size_t n)
{
    (void)r, (void)mine, (void)all, (void)n;
    return no_ranks();
}

pf_status pf_ranks_all(pf_ranks *r, bool yes, bool *all)
{
    (void)r, (void)yes, (void)all;
    return no_ranks();
}

pf_status pf_ranks_send(pf_ranks *r, int to, const void *bytes, size_t n)
{
    (void)r, (void)to, (void)bytes, (void)n;
    return no_ranks();
}

pf_status pf_ranks_receive(pf_ranks *r, int from, void *bytes, size_t n)
{
    (void)r, (void)from, (void)bytes, (void)n;
    return no_ranks();
}

pf_status pf_ranks_abandon(pf_ranks *r, pf_status st)
{
    (void)r;
    return st;
}

void pf_ranks_use(pf_ranks *r, pf_backend *card)
{
    (void)r, (void)card;
}

pf_status pf_ranks_share(pf_ranks *r, float *all, int64_t n)
{
    (void)r, (void)all, (void)n;
    return no_ranks();
}

pf_status pf_ranks_spread(pf_ranks *r, float *x, int64_t n, int from)
{
    (void)r, (void)x, (void)n, (void)from;
    return no_ranks();
}

pf_status pf_ranks_settle(pf_ranks *r)
{
    (void)r;
    return no_ranks();
}
