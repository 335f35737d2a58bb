/* Attention to a latent by tiles of 16 rows: what warps share out, and what a lane has of it. Eight warps, (half,
 * quarter), score a block: each has 32 positions and a quarter of the elements, and then every fourth of the 32
 * positions with all elements. Eight warps sum its values: each has elements 32 w .. and 32 (w + 8) .. and all
 * positions.
 *
 * Lane l, with g = l / 4 and j = l % 4, reads 16 bytes of a key's words at positions 4 g .. : column g of four tiles of
 * 8 columns, so that its sums are of positions 8 j .. 8 j + 7. As values it reads positions 8 j .. of words 8 m + g and
 * turns squares of 4 x 4 bytes over: column g of four tiles, element 32 m + 4 g + i in tile i. Its sums are of elements
 * 32 m + 8 j .. + 7. */
#ifndef PF_CU_I16_LATENT_TILE_H
#define PF_CU_I16_LATENT_TILE_H

#include "kernels/cuda/cu_i16_latent.h"

enum {
    WARPS = 8, QUARTERS = 4, HALF = PF_LATENT_RUN,
    RUNS = PF_I16_HEAD_MAX / WARP / WARPS,               /* of 32 elements that a warp has sums of */
    STEP_BYTES = STEP * 2 * HALF,                        /* from a step's words to the next one's */
    WEIGHT_PLANE = 4 * WARP * 4,                         /* bytes from a weight's upper byte to its lower one */
    E_STRIDE = BLOCK + 1                                 /* lanes that write together, in different banks */
};
static_assert(BLOCK == 2 * HALF && WARPS == 2 * QUARTERS, "a warp a half and a quarter");

/* The first of n steps that are a quarter's. */
CU_HOST_FN int first_step(int n, int quarter)
{
    return quarter * n / QUARTERS;
}

/* Words of a step, of both planes. */
struct step_words {
    uint32_t upper[4], lower[4];

    __device__ __forceinline__ void load(const char *at)
    {
        i16_load(at, upper);
        i16_load(at + PF_LATENT_PLANE, lower);
    }
};

/* The largest that the warps have shown of a row: of m[WARPS]. */
CU_INLINE float largest(const float *of)
{
    const float4 *m = (const float4 *)of;
    float4 a = m[0], b = m[1];
    return fmaxf(fmaxf(fmaxf(a.x, a.y), fmaxf(a.z, a.w)), fmaxf(fmaxf(b.x, b.y), fmaxf(b.z, b.w)));
}

/* A weight as an operand, and, returned, as a float; a position that is not seen has 0. */
CU_INLINE float put_weight(uint8_t *to, float y, float m)
{
    float e = pf_exp2_neg(y - m);
    e = y == -INFINITY ? 0.0f : e;
    uint32_t bits = pf_float_bits(fmaf(e, PF_I16_WEIGHT, 0x1p23f));
    to[0] = (uint8_t)(bits >> 8);
    to[WEIGHT_PLANE] = (uint8_t)bits;
    return e;
}

/* Four words of four bytes, turned over. */
CU_INLINE void turn_over(uint4 v, uint32_t (&out)[4])
{
    uint32_t a = permute(v.x, v.y, 0x5140), b = permute(v.z, v.w, 0x5140), c = permute(v.x, v.y, 0x7362),
             d = permute(v.z, v.w, 0x7362);
    out[0] = permute(a, b, 0x5410), out[1] = permute(a, b, 0x7632);
    out[2] = permute(c, d, 0x5410), out[3] = permute(c, d, 0x7632);
}

/* One of the eight sums of weights of a row: of a chunk, or of a block alone; and of the whole, where it is a
 * prompt's. */
struct sum_of_weights {
    float m, z, whole_m, whole;
};

/* What a block adds to sum number i of a row: it has weights e, which are 0 where the row does not see, and begins at
 * position p0. */
CU_INLINE float weights_of(const float *e, const float *rsv, const struct i16_row &of, int p0, int i)
{
    float z = 0;
#pragma unroll
    for (int k = 0; k < BLOCK / 8; k++) {
        int at = 8 * k + i;
        bool seen = p0 + at >= of.first && p0 + at <= of.pos;
        z = fmaf(e[at], seen ? rsv[at] : 0.0f, z);
    }
    return z;
}

/* z of a chunk, in all eight threads of a row. */
CU_INLINE float fold_eight(float z)
{
#pragma unroll
    for (int h = 4; h > 0; h /= 2)
        z = z + __shfl_xor_sync(ALL_LANES, z, h);
    return z;
}

/* The lane's sums of a run, c: 0 of row g, 2 of row g + 8. */
CU_INLINE void put_values(float *to, const float (&v)[4][4], int c)
{
    ((float4 *)to)[0] = make_float4(v[0][c], v[1][c], v[2][c], v[3][c]);
    ((float4 *)to)[1] = make_float4(v[0][c + 1], v[1][c + 1], v[2][c + 1], v[3][c + 1]);
}

/* A partial's maximum and sum of weights; `good`: the query is not out of range. */
CU_INLINE void put_weights(const struct i16_attention &o, const struct i16_row &row, bool good, bool by_block, int item,
                           const struct sum_of_weights &w)
{
    bool is_first = threadIdx.x % 8 == 0;
    size_t at = part_of(o, row, item);
    float z = fold_eight(w.z);
    if (row.there && is_first)
        maxima(o)[at] = good ? w.m : 0.0f;
    if (row.there && by_block)
        block_zs(o, at)[threadIdx.x % 8] = good ? w.z : NAN;
    else if (row.there && is_first)
        zs(o)[at] = good ? z : NAN;
}

/* What rows see: some of them something of blocks [begin, end], all of them all of positions [from, to]. */
struct range {
    int begin, end, from, to;
};

/* rows: those of the thread block, from first_row on, in shared memory. */
template <int ROWS>
CU_INLINE struct range see(const struct i16_attention &o, struct i16_row *rows, int first_row)
{
    if (threadIdx.x < ROWS)
        rows[threadIdx.x] = i16_row_of(o, 0, first_row + threadIdx.x);
    __syncthreads();
    struct i16_row of = rows[threadIdx.x % ROWS];
    int first = lanes_least(of.first), last = -lanes_least(-of.pos),
        from = -lanes_least(of.there ? -of.first : 0), to = lanes_least(of.there ? of.pos : INT32_MAX);
    return { uniform(first / BLOCK), uniform(last / BLOCK), uniform(from), uniform(to) };
}

/* The position from which on the kernel ahead may store; of many rows nobody asks. */
CU_INLINE int first_new(const struct i16_attention &o)
{
    int lane = threadIdx.x % WARP;
    if (o.a.rows > WARP)
        return 0;
    return uniform(lanes_least(lane < o.a.rows ? *(const volatile int32_t *)&o.a.pos[lane] : INT32_MAX));
}

#endif
