/* Norm and rotation of a head of queries or keys between its product and attention, and how elements of keys and values
 * are stored in their chunks. A warp takes a head. */
#ifndef PF_CU_HEADS_H
#define PF_CU_HEADS_H

#include "kernels/cuda/cu_device.h"

CU_INLINE void put_q8_0(struct cu_q8_0 *b, float x)
{
    enum { HALF_NAN = 0x7e00 };
    struct lane_code v = code_of_lane(x);
    b->q[threadIdx.x % WARP] = (int8_t)(v.finite ? v.q : 0);
    if (threadIdx.x % WARP == 0)
        b->d = v.finite ? half_bits(v.d) : HALF_NAN;
}

/* Element number `at`; the lanes of a warp put neighbours, lane 0 at a multiple of 32. */
CU_INLINE void put(enum pf_kv_type type, void *base, size_t at, float x)
{
    if (type == PF_KV_F16)
        ((uint16_t *)base)[at] = half_bits(x);
    else if (type == PF_KV_Q8_0)
        put_q8_0((struct cu_q8_0 *)base + at / 32, x);
    else
        ((float *)base)[at] = x;
}

CU_INLINE const float *block_from(const struct pf_copy &c, int row, int block)
{
    return c.from + row * c.from_row + (int64_t)block * c.from_block;
}

/* Copies what lies beside a head of q. */
CU_INLINE void deal_beside(const struct cu_heads &o, int head, int row)
{
    const struct pf_copy &c = o.deal[1];
    const float *from = block_from(c, row, head);
#pragma unroll 4
    for (int i = threadIdx.x % WARP; i < c.n; i += WARP)
        c.to[row * c.to_row + (int64_t)head * c.to_block + i] = from[i];
}

/* Head `head` of part 0 (q) or 1 (k), normed and rotated, in v, which is shared memory. */
CU_INLINE void prepare_head(const struct cu_heads &o, int part, int head, int row, float *v)
{
    const struct pf_rope_op &r = o.rope[part];
    const float *x = r.x + ((size_t)row * r.n_head + head) * r.hd, *cs = r.cs + (size_t)row * 2 * r.n_pairs;
    int lane = threadIdx.x % WARP;
    float sum = 0;
    if (part == 0 && o.deal[0].n)
        x = block_from(o.deal[0], row, head);
#pragma unroll 4
    for (int i = lane; i < r.hd; i += WARP) {
        v[i] = x[i];
        sum = fmaf(v[i], v[i], sum);
    }
    if (o.norm[part]) {
        float factor = 1.0f / sqrtf(warp_fold_all(sum) / (float)r.hd + o.eps);
#pragma unroll 4
        for (int i = lane; i < r.hd; i += WARP) {
            float y = v[i] * factor;
            v[i] = o.weight[part] ? y * o.weight[part][i] : y;
        }
    }
    __syncwarp();
#pragma unroll 2
    for (int i = lane; i < r.n_pairs; i += WARP) {
        float *pa = v + (r.neox ? i : 2 * i), *pb = v + (r.neox ? i + r.n_pairs : 2 * i + 1);
        float a = *pa, b = *pb, c = cs[i], s = cs[r.n_pairs + i];
        *pa = fmaf(a, c, -(b * s));
        *pb = fmaf(a, s, b * c);
    }
    __syncwarp();
}

#endif
