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

/* Pair i of a head is rotated. */
CU_INLINE void rotate_pair(const struct pf_rope_op &r, int i, float c, float s, float *v)
{
    float *pa = v + (r.neox ? i : 2 * i), *pb = v + (r.neox ? i + r.n_pairs : 2 * i + 1), a = *pa, b = *pb;
    *pa = fmaf(a, c, -(b * s));
    *pb = fmaf(a, s, b * c);
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
    for (int i = lane; i < r.n_pairs; i += WARP)
        rotate_pair(r, i, cs[i], cs[r.n_pairs + i], v);
    __syncwarp();
}

/* Short heads may have what they are normed and rotated by in registers before the row itself is there. */
enum { SHORT_HEAD = 4 * WARP };
struct head_factors {
    float weight[4], c[2], s[2];
};

CU_INLINE bool is_short_head(const struct cu_heads &o, int part)
{
    return o.rope[part].hd <= SHORT_HEAD && o.rope[part].n_pairs <= SHORT_HEAD / 2;
}

CU_INLINE void fetch_factors(const struct cu_heads &o, int part, int row, struct head_factors &f)
{
    const struct pf_rope_op &r = o.rope[part];
    const float *cs = r.cs + (size_t)row * 2 * r.n_pairs, *weight = o.norm[part] ? o.weight[part] : NULL;
    int lane = threadIdx.x % WARP;
#pragma unroll
    for (int k = 0; k < 4; k++)
        f.weight[k] = weight && lane + k * WARP < r.hd ? weight[lane + k * WARP] : 1.0f;
#pragma unroll
    for (int k = 0; k < 2; k++) {
        f.c[k] = lane + k * WARP < r.n_pairs ? cs[lane + k * WARP] : 1.0f;
        f.s[k] = lane + k * WARP < r.n_pairs ? cs[r.n_pairs + lane + k * WARP] : 0.0f;
    }
}

/* prepare_head of a short head. */
CU_INLINE void prepare_short_head(const struct cu_heads &o, int part, int head, int row, const struct head_factors &f,
                                  float *v)
{
    const struct pf_rope_op &r = o.rope[part];
    const float *x = part == 0 && o.deal[0].n ? block_from(o.deal[0], row, head) :
                                                r.x + ((size_t)row * r.n_head + head) * r.hd;
    int lane = threadIdx.x % WARP;
    float y[4], sum = 0;
#pragma unroll
    for (int k = 0; k < 4; k++)
        y[k] = lane + k * WARP < r.hd ? x[lane + k * WARP] : 0.0f;
#pragma unroll
    for (int k = 0; k < 4; k++)
        if (lane + k * WARP < r.hd)
            sum = fmaf(y[k], y[k], sum);
    if (o.norm[part]) {
        float factor = 1.0f / sqrtf(warp_fold_all(sum) / (float)r.hd + o.eps);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            y[k] *= factor;
            y[k] = o.weight[part] ? y[k] * f.weight[k] : y[k];
        }
    }
#pragma unroll
    for (int k = 0; k < 4; k++)
        if (lane + k * WARP < r.hd)
            v[lane + k * WARP] = y[k];
    __syncwarp();
#pragma unroll
    for (int k = 0; k < 2; k++) {
        int i = lane + k * WARP;
        if (i < r.n_pairs)
            rotate_pair(r, i, f.c[k], f.s[k], v);
    }
    __syncwarp();
}

#endif
