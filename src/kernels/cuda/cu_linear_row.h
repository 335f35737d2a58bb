/* What dense products of one row share that go a segment a lane (cu_segments.h). */
#ifndef PF_CU_LINEAR_ROW_H
#define PF_CU_LINEAR_ROW_H

#include "kernels/cuda/cu_linear.h"
#include "kernels/cuda/cu_segments.h"

/* Norms four elements of the row; the block that leaves the row writes them where the norm says, too. */
template <class T>
CU_INLINE void put_normed(const struct cu_norm &o, const struct x_here &x, int u, float4 y, bool leaves)
{
    struct codes c = codes_of(y);
    int sums = (c.sum & 0xffff) | __shfl_xor_sync(ALL_LANES, c.sum, 4) << 16, b = u / 8 % SEGMENT_BLOCKS;
    struct x_here segment = segment_of(x, u / (8 * SEGMENT_BLOCKS));
    ((uint32_t *)segment.q)[8 * b + u % 8] = c.q;
    if (u % 8 == 0) {
        segment.d[b] = c.d;
        segment.more[b] = T::more(c.d, sums);
    }
    if (!leaves)
        return;
    ((float4 *)o.y)[u] = y;
    if (o.q.q)
        put_codes(c, u, o.q);
    if (o.q.q && !c.finite)
        *o.fault = CU_ACTIVATION_NOT_FINITE;
}

/* The norm's weights that belong to a thread: of every THREADS-th four elements. */
template <int THREADS, int FOURS>
CU_INLINE void take_weights(const struct cu_norm &o, float4 (&w)[FOURS])
{
#pragma unroll
    for (int i = 0, u = threadIdx.x; i < FOURS; i++, u += THREADS)
        w[i] = o.w && u < o.n / 4 ? __ldg((const float4 *)o.w + u) : make_float4(1, 1, 1, 1);
}

/* The block norms the row for itself. y: room for the row as it was. */
template <class T, int THREADS, int FOURS>
CU_INLINE void norm_to(const struct cu_norm &o, const float4 (&w)[FOURS], const struct x_here &x, float4 *y)
{
    int n4 = o.n / 4;
#pragma unroll
    for (int i = 0, u = threadIdx.x; i < FOURS; i++, u += THREADS)
        if (u < n4)
            y[u] = __ldcg((const float4 *)o.x + u);
    __syncthreads();
    float f = norm_factor(o.n, o.eps, (const float *)y);
#pragma unroll
    for (int i = 0, u = threadIdx.x; i < FOURS; i++, u += THREADS)
        if (u < n4)                                                  /* whole warps */
            put_normed<T>(o, x, u, times(y[u], f, w[i]), blockIdx.x == 0);
}

#endif
