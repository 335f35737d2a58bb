/* Copies to shared memory beside the program: cp.async and its groups. */
#ifndef PF_EMULATED_CUDA_PIPELINE_H
#define PF_EMULATED_CUDA_PIPELINE_H

#include "emulated.h"

static inline void __pipeline_memcpy_async(void *to, const void *from, size_t n) { emu_copy_async(to, from, n); }
static inline void __pipeline_commit(void) { emu_copies_commit(); }
static inline void __pipeline_wait_prior(int n) { emu_copies_wait(n); }

#endif
