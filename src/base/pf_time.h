/* The clock that durations are measured with. Any thread. */
#ifndef PF_TIME_H
#define PF_TIME_H

#include <stdint.h>
#include <time.h>

/* Nanoseconds since some moment before the program began. */
static inline uint64_t pf_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

#endif
