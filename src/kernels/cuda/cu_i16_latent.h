/* Attention to a latent in whole numbers (docs/numerics.md; base/pf_latent.h): what its kernels share.
 *
 *     cu_i16_latent_rows.cu   rows become numbers: queries in scratch, latents in their chunks
 *     cu_i16_latent.cu        attention of any number of rows
 *     cu_i16_latent_long.cu   the same of one tile of rows that sees many blocks
 *     cu_i16_latent_fold.cu   partials of few rows enter the whole, where they are of blocks and not yet of chunks
 *
 * A row of these kernels is a token and a query head, numbered token by token, head by head: all heads see the same
 * latents. 16 rows are a tile of mma m16n8k16, in which lane l has rows g = l / 4 and g + 8, and of what it multiplies
 * words j = l % 4. Queries lie in scratch as the product takes them: [tile][hd_k / 16 steps][lane] of 16 bytes, the
 * words of four elements 16 step + 4 j of row g and of row g + 8, upper plane, then the same of the lower one. */
#ifndef PF_CU_I16_LATENT_H
#define PF_CU_I16_LATENT_H

#include "kernels/cuda/cu_i16_parts.h"

enum { TILE_ROWS = 16, STEP = 16 };       /* elements of a step */

/* Where the upper word w of row r lies among the queries; the lower one is 8 bytes further. */
CU_INLINE size_t latent_query_at(int hd_k, int r, int w)
{
    size_t step = (size_t)(r / TILE_ROWS) * (hd_k / STEP) + w / 4;
    return (step * WARP + r % 8 * 4 + w % 4) * 16 + r % TILE_ROWS / 8 * 4;
}

/* Four neighbours of x become their sums and differences: the steps h = 1 and 2 of a rotation. */
CU_INLINE float4 rotate_four(float4 x)
{
    float4 v = make_float4(x.x + x.y, x.x - x.y, x.z + x.w, x.z - x.w);
    return make_float4(v.x + v.z, v.y + v.w, v.x - v.z, v.y - v.w);
}

/* A later step of a rotation: sums and differences of v with what the lane has whose number differs in one bit. */
CU_INLINE float4 rotate_with(float4 v, int bit)
{
    float x = __shfl_xor_sync(ALL_LANES, v.x, bit), y = __shfl_xor_sync(ALL_LANES, v.y, bit),
          z = __shfl_xor_sync(ALL_LANES, v.z, bit), w = __shfl_xor_sync(ALL_LANES, v.w, bit);
    if (threadIdx.x & bit)
        return make_float4(x - v.x, y - v.y, z - v.z, w - v.w);
    return make_float4(v.x + x, v.y + y, v.z + z, v.w + w);
}

CU_INLINE float4 times(float4 v, float by)
{
    return make_float4(v.x * by, v.y * by, v.z * by, v.w * by);
}

/* Where block b of 64 positions lies. */
CU_INLINE char *latent_block_of(const struct pf_kv_view &kv, int b)
{
    return pf_kv_latent(&kv, b * BLOCK) + pf_latent_block(kv.hd_k, b % N_BLOCKS * BLOCK);
}

/* Factors of a row's scores with the latent and with the part that has the position; NaN: the row is out of range. */
CU_INLINE float2 *latent_factors(const struct i16_attention &o)
{
    return (float2 *)o.s.cq;
}

/* The eight sums of a block's weights, where partials are of blocks: number `at` of them. */
CU_INLINE float *block_zs(const struct i16_attention &o, size_t at)
{
    return zs(o) + 8 * at;
}

/* Attention whose rows leave partials. */
struct latent_attention {
    struct i16_attention o;               /* by_block: n_chunks counts blocks */
    bool by_block;                        /* partials are of blocks of 64 positions, not of chunks */
};

/* Partials of a tile of rows that sees many blocks, cu_i16_latent_long.cu: whether it takes these rows on a GPU of so
 * many multiprocessors. */
extern "C" bool pf_cu_latent_takes_long(const struct latent_attention *f, int n_units, size_t shared_bytes);
extern "C" cudaError_t pf_cu_latent_long(cudaStream_t st, const struct latent_attention *f, int n_units);

/* Partials of blocks, which are o's chunks then, enter the whole. */
extern "C" cudaError_t pf_cu_latent_fold(cudaStream_t st, const struct i16_attention *o);

#endif
