/* Partials of few rows in whole numbers: what a row has of each chunk, and how they enter the whole in their order. The
 * factors by which they do need only the maxima: they are found for 32 partials at once, before any sums are made. */
#ifndef PF_CU_I16_PARTS_H
#define PF_CU_I16_PARTS_H

#include "kernels/cuda/cu_i16.h"
#include "kernels/cuda/cu_parts.h"

/* Whose a row is. */
CU_INLINE int sequence_of(const struct cu_parts &parts, int row)
{
    int i = 0;
    while (row >= parts.first[i + 1])
        i++;
    return i;
}

/* Number of a row's partial: what it has of a chunk. Behind all sums of values lie all maxima, then all z. */
CU_INLINE size_t part_of(const struct i16_attention &o, const struct i16_row &r, int c)
{
    return ((size_t)r.token * o.a.n_head + r.head) * o.n_chunks + c;
}

CU_INLINE float *maxima(const struct i16_attention &o)
{
    return o.s.part + (size_t)o.a.rows * o.a.n_head * o.n_chunks * o.kv.hd_v;
}

CU_INLINE float *zs(const struct i16_attention &o)
{
    return maxima(o) + (size_t)o.a.rows * o.a.n_head * o.n_chunks;
}

/* How 32 partials of a row enter the whole, a lane a partial, by their maxima: factors before any sums are made. m: the
 * maximum of all partials before them, then of these, too. */
CU_INLINE struct i16_join join_partials(float mine, float &m)
{
    int lane = threadIdx.x % WARP;
    float top = mine;
    for (int h = 1; h < WARP; h *= 2) {
        float other = __shfl_up_sync(ALL_LANES, top, h);
        top = lane >= h && other > top ? other : top;
    }
    top = m > top ? m : top;
    float before = __shfl_up_sync(ALL_LANES, top, 1);
    before = lane == 0 ? m : before;
    m = __shfl_sync(ALL_LANES, top, WARP - 1);
    return { pf_exp2_neg(before - top), pf_exp2_neg(mine - top) };
}

/* Of a piece of a latent's row, a lane an element: rotates it, or what was rotated back. */
CU_INLINE float rotate_lanes(float y)
{
    static_assert((int)PF_LATENT_PIECE == (int)WARP, "a lane an element");
#pragma unroll
    for (int h = 1; h < WARP; h *= 2) {
        float other = __shfl_xor_sync(ALL_LANES, y, h);
        y = threadIdx.x & h ? other - y : y + other;
    }
    return y * pf_i16_norm(PF_LATENT_PIECE);
}

/* Element d + lane of a row's result. */
CU_INLINE void put_out(const struct i16_attention &o, const struct i16_row &r, int d, float y)
{
    if (pf_kv_is_latent(&o.kv))
        y = rotate_lanes(y);
    o.a.out[((size_t)r.token * o.a.n_head + r.head) * o.kv.hd_v + d] = y;
    if (o.x.q)
        quantise_block(y, &o.x, o.a.n_head * o.kv.hd_v, r.token, (r.head * o.kv.hd_v + d) / 32, o.fault);
}

/* Elements d .. d + 3 of a row's result, from its sum in all chunks. Eight neighbouring lanes have a block of 32. */
CU_INLINE void put_four(const struct i16_attention &o, const struct i16_row &row, int d, float4 sum, float factor,
                        bool there)
{
    size_t at = ((size_t)row.token * o.a.n_head + row.head) * o.kv.hd_v + d;
    float4 y = make_float4(sum.x * factor, sum.y * factor, sum.z * factor, sum.w * factor);
    struct codes c = codes_of(y);
    if (!there)
        return;
    *(float4 *)(o.a.out + at) = y;
    if (o.x.q)
        put_codes(c, at / 4, o.x);
    if (o.x.q && !c.finite)
        *o.fault = CU_ACTIVATION_NOT_FINITE;
}

/* put_four of the sum in the only chunk, which enters as cu_i16_fold.cu has it enter. */
CU_INLINE void put_whole(const struct i16_attention &o, const struct i16_row &row, int d, float4 sum, float factor,
                         bool there)
{
    put_four(o, row, d, make_float4(sum.x + 0.0f, sum.y + 0.0f, sum.z + 0.0f, sum.w + 0.0f), factor, there);
}

/* Whether the kernels of the partials put out the result itself. */
CU_HOST_FN bool is_whole(const struct i16_attention &o)
{
    return o.n_chunks == 1;
}

/* pf_cu_i16_queries for rows of several sequences, or, with parts NULL, of one. */
extern "C" cudaError_t pf_cu_i16_queries_of(cudaStream_t st, const struct pf_attention_op *a,
                                            const struct cu_i16 *to, const struct cu_heads *heads,
                                            const struct cu_parts *parts);

/* Attention of up to eight rows of a KV head, cu_i16_eight.cu: whether it takes so many rows of a KV head of these
 * sequences, on a GPU of so many multiprocessors. */
extern "C" bool pf_cu_i16_takes_eight(const struct i16_attention *o, const struct cu_parts *parts, int n_rows,
                                      int n_units);
/* folds: it puts out the result itself. */
extern "C" cudaError_t pf_cu_i16_eight(cudaStream_t st, const struct i16_attention *o, const struct cu_parts *parts,
                                       int n_units, bool *folds);

/* Folds the chunks of few rows, cu_i16_fold.cu. */
extern "C" cudaError_t pf_cu_i16_fold(cudaStream_t st, const struct i16_attention *o);

#endif
