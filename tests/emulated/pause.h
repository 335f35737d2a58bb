/* For the backend's host side on an emulated GPU. A thread that looks again and again for what the GPU has to show
 * takes a processor from the threads that are the GPU, so it sleeps between looks. */
#ifndef PF_EMULATED_PAUSE_H
#define PF_EMULATED_PAUSE_H

#include <immintrin.h>
#include <time.h>

static inline void emu_pause(void)
{
    enum { LOOKS = 256, SLEEP_NS = 20000 };
    static __thread unsigned n;
    _mm_pause();
    if (++n % LOOKS == 0)
        nanosleep(&(struct timespec){ .tv_nsec = SLEEP_NS }, NULL);
}
#define _mm_pause emu_pause

#endif
