/* Dense products, and rows of an embedding. A block takes a few neighbouring weight rows; see cu_dot.h. */
#include "kernels/cuda/cu_dot.h"

/* Output r of the row that begins at `at` of y. */
CU_INLINE void finish(const struct cu_part &p, int r, size_t at, float v)
{
    if (p.scale != 1.0f)
        v = v * p.scale;
    if (p.bias)
        v = v + p.bias[r];
    p.y[at + r] = v;
}

/* blockIdx.x: block_rows weight rows of one part; parts begin at whole blocks. Activation rows go one after another: the
 * weights stay in the cache. */
template <class D>
static __global__ void __launch_bounds__(MOST_THREADS, 3) linear(const __grid_constant__ struct cu_linear l, int block_rows)
{
    extern __shared__ float memory[];
    int block = blockIdx.x, k = 0, head = 0, n_heads = max(l.n_heads, 1);
    for (int n; block >= (n = (l.part[k].n_out + block_rows - 1) / block_rows); block -= n)
        l.n_heads ? head++ : k++;
    const struct cu_part &p = l.part[k];
    const uint8_t *base = p.w + (size_t)head * l.head_rows * l.row_bytes;
    int first = block * block_rows, y_stride = l.n_heads ? l.y_stride : p.n_out;
    for (int r = first + threadIdx.x / WARP; r < min(first + block_rows, p.n_out); r += blockDim.x / WARP)
        fetch_ahead(base + r * l.row_bytes, l.row_bytes);
    wait_turn();
    for (int row = blockIdx.y; row < l.rows; row += gridDim.y) {
        const float *sums = run_tasks<D>(block_rows / D::ROWS, l.n, l.tables, memory, [&](int g, struct row_set &w, int &r0, struct x_row &x) {
            w = { base, l.row_bytes, p.n_out - 1 };
            r0 = first + g * D::ROWS;
            x = x_row_of(l.x, l.n, (int64_t)row * n_heads + head);
            if (l.n_heads)
                x.f = l.x.f + ((int64_t)row * n_heads + head) * l.x_stride;
        });
        for (int i = threadIdx.x; i < block_rows && first + i < p.n_out; i += blockDim.x)
            finish(p, first + i, ((size_t)row * n_heads + head) * y_stride, D::total(sums + i * D::n_sums(l.n), l.n));
        __syncthreads();
    }
}

/* Float weights and many rows: a warp takes MANY_ROWS rows and MANY_OUT outputs, a lane its accumulator of each of them. */
enum { MANY_ROWS = 8, MANY_OUT = 4, MANY_THREADS = 8 * WARP };

template <int M>
CU_INLINE void fold_and_deal(float (&v)[WARP])
{
    bool upper = threadIdx.x & M;
#pragma unroll
    for (int i = 0; i < M; i++) {
        float given = __shfl_xor_sync(ALL_LANES, upper ? v[i] : v[i + M], M);
        v[i] = (upper ? v[i + M] : v[i]) + given;
    }
}

/* Folds 32 values, each over the lanes in the order of warp_fold; lane l gets value l. */
CU_INLINE float fold_all(float (&v)[WARP])
{
    fold_and_deal<16>(v);
    fold_and_deal<8>(v);
    fold_and_deal<4>(v);
    fold_and_deal<2>(v);
    fold_and_deal<1>(v);
    return v[0];
}

/* blockIdx: 4 x MANY_OUT outputs of one part, 2 x MANY_ROWS rows. */
template <class L>
static __global__ void __launch_bounds__(MANY_THREADS) float_rows(const __grid_constant__ struct cu_linear l)
{
    wait_turn();
    int block = blockIdx.x, k = 0, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    while (block >= (l.part[k].n_out + 4 * MANY_OUT - 1) / (4 * MANY_OUT))
        block -= (l.part[k++].n_out + 4 * MANY_OUT - 1) / (4 * MANY_OUT);
    const struct cu_part &p = l.part[k];
    int out = (block * 4 + warp % 4) * MANY_OUT, row = (blockIdx.y * 2 + warp / 4) * MANY_ROWS;
    const float *x[MANY_ROWS];
    const uint8_t *w[MANY_OUT];
    float sum[WARP] = {};
#pragma unroll
    for (int i = 0; i < MANY_ROWS; i++)
        x[i] = l.x.f + (size_t)min(row + i, l.rows - 1) * l.n;
#pragma unroll
    for (int j = 0; j < MANY_OUT; j++)
        w[j] = p.w + min(out + j, p.n_out - 1) * l.row_bytes;
#pragma unroll 4
    for (int e = lane; e < l.n; e += WARP) {
        float a[MANY_ROWS], b[MANY_OUT];
#pragma unroll
        for (int i = 0; i < MANY_ROWS; i++)
            a[i] = x[i][e];
#pragma unroll
        for (int j = 0; j < MANY_OUT; j++)
            b[j] = L::at(w[j], e);
#pragma unroll
        for (int i = 0; i < MANY_ROWS; i++)
#pragma unroll
            for (int j = 0; j < MANY_OUT; j++)
                sum[i * MANY_OUT + j] = fmaf(b[j], a[i], sum[i * MANY_OUT + j]);
    }
    float v = fold_all(sum);
    row += lane / MANY_OUT;
    out += lane % MANY_OUT;
    if (row < l.rows && out < p.n_out)
        finish(p, out, (size_t)row * p.n_out, v);
}

template <class L>
static cudaError_t launch_float_rows(cudaStream_t st, const struct cu_linear *l)
{
    int n_blocks = 0;
    for (int i = 0; i < l->n_parts; i++)
        n_blocks += ceil_div(l->part[i].n_out, 4 * MANY_OUT);
    return launch_early(float_rows<L>, dim3(n_blocks, ceil_div(l->rows, 2 * MANY_ROWS)), MANY_THREADS, 0, st, *l);
}

template <class D>
static cudaError_t launch(cudaStream_t st, const struct cu_linear *l)
{
    enum { TASKS = 4, MANY = 64 };
    int n_blocks = 0, block_rows = TASK_ROWS;
    while (D::ROWS > 1 && block_rows / D::ROWS * D::n_rounds(l->n) < TASKS)
        block_rows *= 2;
    struct block_shape shape = shape_of<D>(block_rows / D::ROWS, l->n);
    for (int i = 0; i < l->n_parts; i++)
        n_blocks += ceil_div(l->part[i].n_out, block_rows);
    n_blocks *= l->n_heads ? l->n_heads : 1;
    cudaError_t e = allow_bytes(linear<D>, shape.bytes);
    if (e != cudaSuccess)
        return e;
    int n_y = l->rows < MANY ? 1 : ceil_div(l->rows, CU_VECTOR_ROWS);
    return launch_early(linear<D>, dim3(n_blocks, n_y), shape.threads, shape.bytes, st, *l, block_rows);
}

extern "C" cudaError_t pf_cu_linear(cudaStream_t st, const struct cu_linear *l)
{
    bool many = l->rows > CU_VECTOR_ROWS && l->n_heads == 0;
    switch (l->type) {
#define X(TYPE) case PF_##TYPE: return many ? launch_float_rows<load_##TYPE>(st, l) : launch<dot_##TYPE>(st, l);
    X(F32) X(F16) X(BF16)
#undef X
#define X(TYPE) case PF_##TYPE: return launch<dot_##TYPE>(st, l);
    CU_QUANTISED_LIST(X)
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
    wait_turn();
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
    wait_turn();
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
#define X(TYPE) case PF_##TYPE: return launch_early(embed_floats<load_##TYPE>, by_element, 256, 0, st, e);
    X(F32) X(F16) X(BF16)
#undef X
#define X(TYPE) case PF_##TYPE: return launch_early(embed_blocks<read_##TYPE>, by_block, 32, 0, st, e);
    CU_QUANTISED_LIST(X)
#undef X
    default: return cudaErrorInvalidValue;
    }
}
