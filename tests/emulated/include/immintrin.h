/* Stands in front of the compiler's header for the backend's host side on an emulated GPU. A thread that looks again
 * and again for what the GPU has to show takes a processor from the threads that are the GPU, so it sleeps between
 * looks. */
#ifndef PF_EMULATED_IMMINTRIN_H
#define PF_EMULATED_IMMINTRIN_H

#include_next <immintrin.h>
#include <time.h>

static inline void emu_pause(void)
{
    enum { LOOKS = 256 };
    static const struct timespec a_while = { 0, 20000 };
    static __thread unsigned n;
    _mm_pause();
    if (++n % LOOKS == 0)
        nanosleep(&a_while, NULL);
}
#define _mm_pause emu_pause

#endif
