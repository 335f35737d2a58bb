/* A drive that is slow to give the samples by which models are told apart, for a program that is started with this
 * library in front of its own (LD_PRELOAD): who asks the kernel to fetch something small waits. */
#define _GNU_SOURCE
#include <stddef.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { MOST_BYTES = 18 * 4096 };         /* a sample, or a small tensor */

__attribute__((visibility("default"))) int madvise(void *p, size_t n, int advice)
{
    static const struct timespec wait = { .tv_nsec = 5000000 };
    if (advice == MADV_WILLNEED && n <= MOST_BYTES)
        nanosleep(&wait, NULL);
    return (int)syscall(SYS_madvise, p, n, advice);
}
