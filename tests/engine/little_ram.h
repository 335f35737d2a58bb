/* The least memory that a model runs in, found by planning. */
#ifndef TEST_LITTLE_RAM_H
#define TEST_LITTLE_RAM_H

#include "check.h"
#include "pfmoe.h"

static bool fits_ram(const char *path, struct pf_model_opts *o, uint64_t ram_bytes)
{
    struct pf_plan plan;
    o->ram_bytes = ram_bytes;
    return pf_model_plan(path, o, NULL, &plan) == PF_OK;
}

/* A little more than that, in which weights have to be read again and again; o: how the model is to be opened. */
static uint64_t little_ram(const char *path, struct pf_model_opts o)
{
    struct pf_file_info info;
    uint64_t lo = 1, hi = (uint64_t)1 << 31;
    o.speeds = (struct pf_speeds){ 1e12, 3e10, 5e10, 5e9 };
    CHECK(pf_file_inspect(path, 0, &info) == PF_OK, "%s", pf_last_error());
    while (lo + 1 < hi) {
        uint64_t mid = (lo + hi) / 2;
        *(fits_ram(path, &o, mid) ? &hi : &lo) = mid;
    }
    return hi + info.expert_bytes / 4;
}

#endif
