/* The floating-point environment that the order of accumulation is defined in: round to nearest even, gradual
 * underflow, no exceptions. A caller's thread may have flush-to-zero on; results must not depend on it, so every thread
 * that computes sets its own control register and puts the caller's back. */
#ifndef PF_FP_H
#define PF_FP_H

#include <immintrin.h>

enum { PF_FP_DEFAULT = 0x1f80 };

/* Returns what to hand to pf_fp_end. */
static inline unsigned pf_fp_begin(void)
{
    unsigned before = _mm_getcsr();
    _mm_setcsr(PF_FP_DEFAULT);
    return before;
}

static inline void pf_fp_end(unsigned before)
{
    _mm_setcsr(before);
}

#endif
