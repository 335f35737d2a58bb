/* Dense products, and rows of an embedding. A block takes a few neighbouring weight rows; see cu_dot.h. */
#include "kernels/cuda/cu_dot.h"

CU_INLINE void finish(const struct cu_part &p, int r, int row, float v)
{
    if (p.scale != 1.0f)
        v = v * p.scale;
    if (p.bias)
        v = v + p.bias[r];
    p.y[(size_t)row * p.n_out + r] = v;
}

/* blockIdx.x: block_rows weight rows of one part; parts begin at whole blocks. Activation rows go one after another: the
 * weights stay in the cache. */
template <class D>
static __global__ void __launch_bounds__(MOST_THREADS, 3) linear(const __grid_constant__ struct cu_linear l, int block_rows)
{
    extern __shared__ float memory[];
    int block = blockIdx.x, k = 0;
    while (block >= (l.part[k].n_out + block_rows - 1) / block_rows)
        block -= (l.part[k++].n_out + block_rows - 1) / block_rows;
    const struct cu_part &p = l.part[k];
    int first = block * block_rows;
    for (int row = blockIdx.y; row < l.rows; row += gridDim.y) {
        const float *sums = run_tasks<D>(block_rows / D::ROWS, l.n, l.tables, memory, [&](int g, struct row_set &w, int &r0, struct x_row &x) {
            w = { p.w, l.row_bytes, p.n_out - 1 };
            r0 = first + g * D::ROWS;
            x = x_row_of(l.x, l.n, row);
        });
        for (int i = threadIdx.x; i < block_rows && first + i < p.n_out; i += blockDim.x)
            finish(p, first + i, row, D::total(sums + i * D::n_sums(l.n), l.n));
        __syncthreads();
    }
}

template <class D>
static cudaError_t launch(cudaStream_t st, const struct cu_linear *l)
{
    enum { TASKS = 4, MANY_ROWS = 64 };
    int n_blocks = 0, block_rows = TASK_ROWS;
    while (D::ROWS > 1 && block_rows / D::ROWS * D::n_rounds(l->n) < TASKS)
        block_rows *= 2;
    struct block_shape shape = shape_of<D>(block_rows / D::ROWS, l->n);
    for (int i = 0; i < l->n_parts; i++)
        n_blocks += ceil_div(l->part[i].n_out, block_rows);
    cudaError_t e = allow_bytes(linear<D>, shape.bytes);
    if (e != cudaSuccess)
        return e;
    int n_y = l->rows < MANY_ROWS ? 1 : ceil_div(l->rows, CU_VECTOR_ROWS);
    linear<D><<<dim3(n_blocks, n_y), shape.threads, shape.bytes, st>>>(*l, block_rows);
    return cudaGetLastError();
}

extern "C" cudaError_t pf_cu_linear(cudaStream_t st, const struct cu_linear *l)
{
    switch (l->type) {
#define X(TYPE) case PF_##TYPE: return launch<dot_##TYPE>(st, l);
    CU_TYPE_LIST(X)
#undef X
    default: return cudaErrorInvalidValue;
    }
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
