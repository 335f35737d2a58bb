/* Flags between a device and the host, in memory of the host that the device has mapped (struct cu_flag). Reads of one
 * line of the host's memory stand in line, 5 to 6 us each on an H200, and whatever else crosses stands behind them:
 * copies, events, other reads. So one thread of all asks, and tells the others through the device's memory. */
#ifndef PF_CU_FLAG_H
#define PF_CU_FLAG_H

#include "kernels/cuda/cu_device.h"

static const __device__ unsigned long long PATIENCE_NS = 30000000000ull;

/* Waits for the host to raise a flag: CU_FLAG_UP, or CU_FLAG_GIVEN_UP after PATIENCE_NS. One thread of all calls it. */
CU_INLINE uint32_t ask_host(struct cu_flag *flag, int *fault)
{
    unsigned long long begin = device_ns();
    uint32_t f = *(const volatile uint32_t *)&flag->up;
    bool was_up = f != CU_FLAG_DOWN;
    while (f == CU_FLAG_DOWN && device_ns() - begin <= PATIENCE_NS)
        f = *(const volatile uint32_t *)&flag->up;
    *(volatile uint32_t *)&flag->was_up = was_up;
    *(volatile uint64_t *)&flag->began_ns = begin;
    *(volatile uint64_t *)&flag->ns = device_ns();
    if (f == CU_FLAG_UP)
        return f;
    *fault = CU_HOST_LATE;
    return CU_FLAG_GIVEN_UP;
}

/* Whatever all threads of the block have written is there for the host when it sees the flag up. */
CU_INLINE void raise_for_host(struct cu_flag *flag)
{
    if (threadIdx.x == 0)
        *(volatile uint64_t *)&flag->ns = device_ns();
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x == 0)
        *(volatile uint32_t *)&flag->up = CU_FLAG_UP;
}

#endif
