/* Half of a super-block of Q6_K in one lane's registers: four blocks of 32 weights. */
#ifndef PF_CU_K6_H
#define PF_CU_K6_H

#include "kernels/cuda/cu_blocks.h"

struct k6_half {
    uint32_t low[16], high[8], sc[2];
};

/* Of the super-block at p, which begins at an even address. */
CU_INLINE struct k6_half k6_half_of(const uint8_t *p, int half)
{
    struct k6_half h;
    load_words(p + 64 * half, h.low);
    load_words(p + 128 + 32 * half, h.high);
    load_words(p + 192 + 8 * half, h.sc);
    return h;
}

/* The codes of block k of the half, 32 too large. */
CU_INLINE void k6_codes(const struct k6_half &h, int k, uint32_t (&w)[8])
{
#pragma unroll
    for (int i = 0; i < 8; i++) {
        uint32_t bits = k < 2 ? h.high[i] << (4 - 2 * k) : h.high[i] >> (2 * k - 4);
        w[i] = (h.low[8 * (k % 2) + i] >> k / 2 * 4 & 0x0f0f0f0f) | (bits & 0x30303030);
    }
}

/* The scale of the block's first (i 0) or last sixteen. */
CU_INLINE int k6_scale(const struct k6_half &h, int k, int i)
{
    return (int8_t)(h.sc[k / 2] >> (16 * (k % 2) + 8 * i));
}

#endif
