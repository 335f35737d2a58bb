/* Dense products row by row, and rows of an embedding. A warp takes a weight row; see cu_dot.h. */
#include "kernels/cuda/cu_dot.h"

enum { WARPS = 8 };

CU_INLINE void finish(const struct cu_part &p, int r, int row, float v)
{
    if (p.scale != 1.0f)
        v = v * p.scale;
    if (p.bias)
        v = v + p.bias[r];
    p.y[(size_t)row * p.n_out + r] = v;
}

/* N activation rows a warp. */
template <class D, int N>
static __global__ void __launch_bounds__(WARPS * WARP) linear(const __grid_constant__ struct cu_linear l)
{
    int r = blockIdx.x * WARPS + threadIdx.x / WARP, i = 0;
    int x0 = blockIdx.y * N, n_x = min(N, l.rows - x0);
    while (i < l.n_parts && r >= l.part[i].n_out)
        r -= l.part[i++].n_out;
    if (i == l.n_parts)
        return;
    const uint8_t *row = l.part[i].w + (size_t)r * l.row_bytes;
    float total[N];
    if (N == 1) {
        const uint8_t *const rows[1] = { row };
        const struct x_row x[1] = { x_row_of(l.x, l.n, x0) };
        D::template pairs<1>(rows, x, l.n, l.tables, (float(&)[1])total);
    } else {
        D::template rows<N>(row, l.x, x0, n_x, l.n, l.tables, total);
    }
    if (threadIdx.x % WARP == 0)
        for (int j = 0; j < n_x; j++)
            finish(l.part[i], r, x0 + j, total[j]);
}

template <class D>
static void launch(cudaStream_t st, const struct cu_linear *l)
{
    int n_rows = 0;
    for (int i = 0; i < l->n_parts; i++)
        n_rows += l->part[i].n_out;
    if (l->rows == 1)
        linear<D, 1><<<ceil_div(n_rows, WARPS), WARPS * WARP, 0, st>>>(*l);
    else
        linear<D, CU_VECTOR_ROWS><<<dim3(ceil_div(n_rows, WARPS), ceil_div(l->rows, CU_VECTOR_ROWS)), WARPS * WARP, 0, st>>>(*l);
}

extern "C" cudaError_t pf_cu_linear(cudaStream_t st, const struct cu_linear *l)
{
    switch (l->type) {
#define X(TYPE) case PF_##TYPE: launch<dot_##TYPE>(st, l); break;
    CU_TYPE_LIST(X)
#undef X
    default: return cudaErrorInvalidValue;
    }
    return cudaGetLastError();
}

struct embedding {
    const uint8_t   *w;
    uint64_t         row_bytes;
    int              n;
    float            scale;
    const int32_t   *ids;
    float           *x;
    struct cu_tables tables;
};

CU_INLINE void put(const struct embedding &e, int i, float v)
{
    e.x[(size_t)blockIdx.y * e.n + i] = e.scale != 1.0f ? v * e.scale : v;
}

template <class R>
static __global__ void embed_blocks(const __grid_constant__ struct embedding e)
{
    int b = blockIdx.x * blockDim.x + threadIdx.x;
    if (b >= e.n / 32)
        return;
    struct cu_block blk = read_block<R>(e.w + (size_t)e.ids[blockIdx.y] * e.row_bytes, b, e.tables);
#pragma unroll
    for (int i = 0; i < 32; i++)
        put(e, b * 32 + i, block_value<R>(blk, i));
}

template <class L>
static __global__ void embed_floats(const __grid_constant__ struct embedding e)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < e.n)
        put(e, i, L::at(e.w + (size_t)e.ids[blockIdx.y] * e.row_bytes, i));
}

extern "C" cudaError_t pf_cu_embed(cudaStream_t st, enum pf_qtype type, const uint8_t *w, uint64_t row_bytes, int n, float scale,
                                   const int32_t *ids, int rows, float *x, const struct cu_tables *t)
{
    struct embedding e = { w, row_bytes, n, scale, ids, x, *t };
    dim3 by_block(ceil_div(n, 32 * 32), rows), by_element(ceil_div(n, 256), rows);
    switch (type) {
#define X(TYPE) case PF_##TYPE: embed_floats<load_##TYPE><<<by_element, 256, 0, st>>>(e); break;
    X(F32) X(F16) X(BF16)
#undef X
#define X(TYPE) case PF_##TYPE: embed_blocks<read_##TYPE><<<by_block, 32, 0, st>>>(e); break;
    CU_QUANTISED_LIST(X)
#undef X
    default: return cudaErrorInvalidValue;
    }
    return cudaGetLastError();
}
