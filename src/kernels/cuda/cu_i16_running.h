/* Attention of a prompt in whole numbers: the sums over blocks and chunks that a lane keeps of its two rows, and what
 * it weighs a block's positions by. Where the products come from is the kernels': tiles of a warp in cu_i16_many.cu,
 * of a warpgroup in cu_i16_group.cu.
 *
 *     scores of 64 positions -> weigh_block: weights, their maximum and sum -> enter, add -> acc
 *     acc, at the end of a chunk -> end_chunk -> the whole, in the output until the last chunk */
#ifndef PF_CU_I16_RUNNING_H
#define PF_CU_I16_RUNNING_H

#include "kernels/cuda/cu_i16.h"

/* What a lane keeps of its two rows in a chunk. */
template <int HV> struct running {
    float acc[HV / 32][4][4], m[2], z[2][2];

    __device__ __forceinline__ void clear_chunk(void)
    {
#pragma unroll
        for (int j = 0; j < HV / 32; j++)
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int c = 0; c < 4; c++)
                    acc[j][i][c] = 0;
        m[0] = m[1] = -INFINITY;
        z[0][0] = z[0][1] = z[1][0] = z[1][1] = 0;
    }

    /* A block enters: its maxima and sums; what is left of acc is not yet multiplied where that changes nothing. */
    __device__ __forceinline__ void enter(const struct i16_weights &w, float (&gain)[2])
    {
        struct i16_join j[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            j[r] = i16_joined(m[r], w.m[r]);
            z[r][0] = fmaf(z[r][0], j[r].old, w.z[r][0] * j[r].fresh);
            z[r][1] = fmaf(z[r][1], j[r].old, w.z[r][1] * j[r].fresh);
            gain[r] = PF_I16_GAIN * j[r].fresh;
        }
        if (__ballot_sync(ALL_LANES, j[0].old != 1.0f || j[1].old != 1.0f))
#pragma unroll
            for (int k = 0; k < HV / 32; k++)
#pragma unroll
                for (int i = 0; i < 4; i++)
#pragma unroll
                    for (int c = 0; c < 4; c++)
                        acc[k][i][c] *= j[c >> 1].old;
    }

    /* Sums of 32 elements of the values, the j-th. */
    __device__ __forceinline__ void add(const struct i16_sums &s, int j, const float (&gain)[2])
    {
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int c = 0; c < 4; c++)
                acc[j][i][c] = fmaf(i16_sum(s, i, c), gain[c >> 1], acc[j][i][c]);
    }

    /* The chunk enters the whole, whose m and z are in *whole (of row g + 8 eight further). Sums of the chunks before
     * are in kept, 16 bytes each STRIDE, or with STRIDE 0 in the output; the last chunk's go to the output. */
    template <int STRIDE>
    __device__ __forceinline__ void end_chunk(const struct i16_attention &o, int hk, int first_row,
                                              const float (&cq)[2], float2 *whole, float4 *kept, bool is_last)
    {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float sum[2] = { z[r][0], z[r][1] }, f = 1.0f;
            for (int h = 2; h > 0; h /= 2)
#pragma unroll
                for (int c = 0; c < 2; c++)
                    sum[c] = sum[c] + __shfl_xor_sync(ALL_LANES, sum[c], h);
            float2 v = whole[8 * r];
            bool begins = v.x == -INFINITY;
            struct i16_join j = i16_joined(v.x, m[r]);
            v.y = fmaf(v.y, j.old, (sum[0] + sum[1]) * j.fresh);
            struct i16_row row = i16_row_of(o, hk, first_row + 8 * r);
            if (is_last)
                f = cq[r] == cq[r] ? i16_last_factor(o.a, row.head, v.x, v.y) : NAN;
            __syncwarp();
            if (threadIdx.x % 4 == 0)
                whole[8 * r] = v;
            if (row.there)
                put_row<STRIDE>(r, o.a.out + ((size_t)row.token * o.a.n_head + row.head) * HV + threadIdx.x % 4 * 8,
                                kept, begins, j, f, is_last);
            __syncwarp();
        }
        clear_chunk();
    }

    template <int STRIDE>
    __device__ __forceinline__ void put_row(int r, float *out, float4 *kept, bool begins, struct i16_join j, float f,
                                            bool is_last)
    {
#pragma unroll
        for (int k = 0; k < HV / 32; k++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float4 *at = (float4 *)(out + 32 * k + 4 * half), v = make_float4(0, 0, 0, 0),
                       *was = STRIDE ? kept + ((r * (HV / 32) + k) * 2 + half) * STRIDE : at;
                if (!begins)
                    v = *was;
                v.x = fmaf(acc[k][0][2 * r + half], j.fresh, v.x * j.old);
                v.y = fmaf(acc[k][1][2 * r + half], j.fresh, v.y * j.old);
                v.z = fmaf(acc[k][2][2 * r + half], j.fresh, v.z * j.old);
                v.w = fmaf(acc[k][3][2 * r + half], j.fresh, v.w * j.old);
                *(STRIDE && !is_last ? was : at) = make_float4(v.x * f, v.y * f, v.z * f, v.w * f);
            }
    }
};

/* Weights of the block from position p0 on, by its scores; rsv: the block's in shared memory. */
CU_INLINE void i16_weigh_block(float (&y)[8][4], const float *rsv, const struct i16_row (&row)[2], int p0, int lane,
                               struct i16_weights &w)
{
    bool cut = false;
#pragma unroll
    for (int r = 0; r < 2; r++)
        cut |= row[r].there && (row[r].first > p0 || row[r].pos < p0 + BLOCK - 1);
    auto scale = [&](int i) { return *(const float2 *)(rsv + 8 * i + lane % 4 * 2); };
    if (__ballot_sync(ALL_LANES, cut)) {
        i16_mask(y, row, p0);
        i16_weigh<true>(y, scale, w);
    } else {
        i16_weigh<false>(y, scale, w);
    }
}

#endif
