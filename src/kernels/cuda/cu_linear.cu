/* Dense products, and rows of an embedding.
 *
 *     linear        a block takes a few neighbouring weight rows; see cu_dot.h
 *     norm_linear   the same of one row that is normed first: every block does that for itself, in its shared memory;
 *                   float weights are there before the row is
 *     large_linear  one row, and a matrix much larger than what the GPU multiplies at once: blocks stay, and copy ahead
 *     float_rows    float weights and many rows; quantised ones go by tiles (cu_tile.cu)
 *
 * One row times K types goes by cu_linear_segments.cu or cu_linear_stream.cu where these take it. */
#include "kernels/cuda/cu_linear.h"

CU_INLINE void fetch_rows_ahead(const struct cu_linear &l, const struct place &at)
{
    if (threadIdx.x == 0)
        fetch_ahead(at.rows, at.n * l.row_bytes);
}

/* Starts copying the rows, by so many threads; *at is where they will be. */
CU_INLINE void stage_rows(const struct cu_linear &l, struct place *at, uint8_t *to, int n_threads)
{
    int skip = (int)((uintptr_t)at->rows & 15), bytes = skip + at->n * (int)l.row_bytes;
    const uint8_t *from = at->rows - skip + 16 * threadIdx.x;
#pragma unroll 1
    for (int i = 16 * threadIdx.x; i < bytes; i += 16 * n_threads, from += 16 * n_threads)
        __pipeline_memcpy_async(to + i, from, 16);
    at->rows = to + skip;
}

/* What a block multiplies with row `row` of from. */
template <class D>
CU_INLINE auto groups_of(const struct cu_linear &l, const struct cu_x &from, const struct place &at, int row)
{
    return [&l, &from, &at, row](int g, struct row_set &w, int &r0, struct x_row &x) {
        int64_t x_row = (int64_t)row * max(l.n_heads, 1) + at.head;
        w = { at.rows, l.row_bytes, at.n - 1 };
        r0 = g * D::ROWS;
        x = x_row_of(from, l.n, x_row);
        if (l.n_heads)
            x.f = from.f + x_row * l.x_stride;
        return true;
    };
}

template <class D, class G>
CU_INLINE void multiply_row(const struct given_linear &l, const struct place &at, int row, float *memory,
                            struct tasks<D> &tasks, G groups)
{
    int n_heads = max(l.n_heads, 1), y_stride = l.n_heads ? l.y_stride : at.p->n_out;
    const float *sums = end_tasks<D>(tasks, l.tables, memory, groups);
#pragma unroll 1
    for (int i = threadIdx.x; i < at.n; i += blockDim.x)
        finish(l, *at.p, at.first + i, ((size_t)row * n_heads + at.head) * y_stride,
               D::total(sums + i * D::n_sums(l.n), l.n));
}

/* blockIdx.x: block_rows weight rows of one part. Activation rows go one after another: the
 * weights stay in the cache. A warp's first weights are sent for before the kernel's turn. */
template <class D>
static __global__ void __launch_bounds__(MOST_THREADS, 3) linear(const __grid_constant__ struct given_linear l,
                                                                 int block_rows)
{
    BLOCK_MEMORY(float, memory);
    struct place at = place_of(l, block_rows, blockIdx.x);
    struct tasks<D> tasks;
    fetch_rows_ahead(l, at);
    begin_tasks<D>(tasks, block_rows / D::ROWS, l.n, l.tables, memory, groups_of<D>(l, l.x, at, blockIdx.y));
    wait_turn();
    for (int row = blockIdx.y; row < l.rows; row += gridDim.y) {
        auto groups = groups_of<D>(l, l.x, at, row);
        if (row > (int)blockIdx.y)
            begin_tasks<D>(tasks, block_rows / D::ROWS, l.n, l.tables, memory, groups);
        multiply_row<D>(l, at, row, memory, tasks, groups);
        __syncthreads();
    }
}

/* ---- A large matrix and one row ---------------------------------------------------------------------------------- */

enum { LARGE_BYTES = 16 << 20 };

CU_INLINE struct place group_at(const struct cu_linear &l, int group, int first)
{
    const struct cu_part *p = &l.part[0];
    return { p, p->w + first * l.row_bytes, 0, first, min(group, p->n_out - first) };
}

/* A block takes a group of rows, and another, until there are none; the next one is copied while one is multiplied. A
 * warp has four rows of each group and a round, the same in all, and what that takes of x stays in its registers. */
template <class T>
static __global__ void __launch_bounds__(MOST_THREADS, 3) large_linear(const __grid_constant__ struct given_linear l,
                                                                       int group)
{
    BLOCK_MEMORY(float, memory);
    typedef quantised<T> D;
    int n_rounds = D::n_rounds(l.n), warp = threadIdx.x / WARP, round = warp % n_rounds,
        r0 = warp / n_rounds * TASK_ROWS, n_blocks = min(l.n / 32 - round * WARP, (int)WARP), b = D::my_block(n_blocks),
        row_bytes = (int)l.row_bytes, begin = r0 * row_bytes + D::bytes_of_32(l.row_bytes, l.n) * round;
    size_t bytes = staged_bytes(group, l.row_bytes);
    uint8_t *copies = (uint8_t *)memory;
    float *rest = (float *)(copies + 2 * bytes), *sums = rest + blockDim.x / WARP * D::TERM_FLOATS;
    float2 *terms = (float2 *)(rest + warp * D::TERM_FLOATS);
    struct place at = group_at(l, group, blockIdx.x * group);
    stage_rows(l, &at, copies, blockDim.x);
    __pipeline_commit();
    wait_turn();
    typename T::side x = T::load_x(x_row_of(l.x, l.n, 0), round * WARP + b);
#pragma unroll 1
    for (int copy = 1; at.n > 0; copy ^= 1) {
        struct place next = group_at(l, group, at.first + gridDim.x * group);
        __pipeline_wait_prior(0);
        __syncthreads();
        stage_rows(l, &next, copies + copy * bytes, blockDim.x);
        __pipeline_commit();
#pragma unroll 2
        for (int i = 0; i < TASK_ROWS; i++)
            D::put(T::dot(T::load(at.rows + begin + i * row_bytes, b, l.tables), x, b), i,
                   threadIdx.x % WARP < n_blocks, terms);
        __syncwarp();
        D::run_chains(terms, l.n, round, sums + r0 * D::n_sums(l.n));
        __syncthreads();
        if (threadIdx.x < at.n)
            finish(l, *at.p, at.first + threadIdx.x, 0, D::total(sums + threadIdx.x * D::n_sums(l.n), l.n));
        at = next;
    }
}

/* Rows of a group, and the block that has a warp for four of them and a round; no threads: not a product for this. */
template <class T>
static struct block_shape large_shape(const struct cu_linear *l, int *group)
{
    typedef quantised<T> D;
    enum { WARPS = 4, MOST_BYTES = 48 << 10 };
    bool large = l->rows == 1 && l->n_parts == 1 && !l->n_heads && l->part[0].n_out * l->row_bytes >= LARGE_BYTES;
    int n_rounds = D::n_rounds(l->n), n_fours = ceil_div(WARPS, n_rounds), n_warps = n_fours * n_rounds;
    *group = n_fours * TASK_ROWS;
    size_t floats = (size_t)n_warps * D::TERM_FLOATS + (size_t)*group * D::n_sums(l->n),
           bytes = 2 * staged_bytes(*group, l->row_bytes) + floats * sizeof(float);
    return { large && n_warps <= MOST_THREADS / WARP && bytes <= MOST_BYTES ? n_warps * WARP : 0, bytes };
}

/* As many blocks as the GPU holds. */
template <class T>
static cudaError_t launch_large(cudaStream_t st, const struct given_linear *l, const struct block_shape *shape,
                                int group)
{
    int n_units, n_blocks;
    cudaError_t e = ask_device(cudaDevAttrMultiProcessorCount, &n_units);
    if (e == cudaSuccess)
        e = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&n_blocks, large_linear<T>, shape->threads, shape->bytes);
    if (e != cudaSuccess)
        return e;
    return launch_early(large_linear<T>, n_blocks * n_units, shape->threads, shape->bytes, st, *l, group);
}

/* ---- A product that begins with its norm ------------------------------------------------------------------------- */

enum { NORM_THREADS = 12 * WARP, WIDE_THREADS = 24 * WARP, NORM_ROWS = 16 << 10 };

/* A block's memory: what the norm gives, as floats and quantised, and its weights; then that of the tasks. */
struct normed {
    float4     *y, *w;
    struct cu_x x;
    float      *rest;
};

CU_HOST_FN size_t normed_bytes(int n)
{
    return 9 * (size_t)n + ((size_t)n / 4 + 15) / 16 * 16;
}

CU_INLINE struct normed normed_at(float *memory, int n)
{
    int8_t *q = (int8_t *)(memory + 2 * n);
    float *d = (float *)(q + n);
    return { (float4 *)memory, (float4 *)(memory + n), { memory, q, d, (int16_t *)(d + n / 32) },
             (float *)((char *)memory + normed_bytes(n)) };
}

/* Norms the row into the block's memory; the one that leaves it writes it where the norm says, too. Weights of the norm
 * are on their way there, and then others, which have arrived in the end. */
template <int THREADS>
CU_INLINE void norm_here(const struct cu_norm &o, const struct normed &at, bool leaves)
{
    int n4 = o.n / 4, lane = threadIdx.x % WARP;
#pragma unroll 1
    for (int u = threadIdx.x; u < n4; u += THREADS)
        at.y[u] = __ldcg((const float4 *)o.x + u);
    __pipeline_wait_prior(1);
    __syncthreads();
    float f = norm_factor(o.n, o.eps, (const float *)at.y);
#pragma unroll 1
    for (int u = threadIdx.x; u - lane < n4; u += THREADS) {
        float4 y = u < n4 ? times(at.y[u], f, o.w ? at.w[u] : make_float4(1, 1, 1, 1)) : make_float4(0, 0, 0, 0);
        struct codes c = codes_of(y);
        if (u >= n4)
            break;
        at.y[u] = y;
        put_codes(c, u, at.x);
        if (!leaves)
            continue;
        ((float4 *)o.y)[u] = y;
        if (o.q.q)
            put_codes(c, u, o.q);
        if (o.q.q && !c.finite)
            *o.fault = CU_ACTIVATION_NOT_FINITE;
    }
    __pipeline_wait_prior(0);
    __syncthreads();
}

template <class D, int THREADS>
static __global__ void __launch_bounds__(THREADS, WIDE_THREADS / THREADS)
norm_linear(const __grid_constant__ struct given_linear l, int block_rows)
{
    BLOCK_MEMORY(float, memory);
    struct place at = place_of(l, block_rows, blockIdx.x);
    struct normed x = normed_at(memory, l.n);
    for (int u = threadIdx.x; l.norm.w && u < l.n / 4; u += THREADS)
        __pipeline_memcpy_async(x.w + u, (const float4 *)l.norm.w + u, 16);
    __pipeline_commit();
    if (D::is_staged) {
        stage_rows(l, &at, (uint8_t *)x.rest, THREADS);
        x.rest += staged_bytes(block_rows, l.row_bytes) / sizeof(float);
    } else {
        fetch_rows_ahead(l, at);
    }
    auto groups = groups_of<D>(l, x.x, at, 0);
    struct tasks<D> tasks;
    begin_tasks<D>(tasks, block_rows / D::ROWS, l.n, l.tables, x.rest, groups);
    __pipeline_commit();
    wait_turn();
    norm_here<THREADS>(l.norm, x, blockIdx.x == 0);
    multiply_row<D>(l, at, 0, x.rest, tasks, groups);
}

/* The memory of a block of so many rows. */
template <class D>
static struct block_shape norm_block(const struct cu_linear *l, int block_rows, int threads)
{
    size_t floats = (size_t)(threads / WARP) * D::WARP_FLOATS + (size_t)block_rows * D::n_sums(l->n);
    size_t staged = D::is_staged ? staged_bytes(block_rows, l->row_bytes) : 0;
    return { threads, normed_bytes(l->n) + staged + floats * sizeof(float) };
}

/* Whole groups of rows, so that there are no more than n_blocks. */
template <class D>
static int rows_of_blocks(const struct cu_linear *l, int n_blocks)
{
    return ceil_div(ceil_div(n_blocks_of(l, 1), n_blocks), D::ROWS) * D::ROWS;
}

/* Rows of a block, and its memory. As many blocks as a large GPU holds at once; where rows are fewer, one each. */
template <class D>
static struct block_shape norm_shape(const struct cu_linear *l, int *block_rows)
{
    enum { BLOCKS = 256 };
    *block_rows = rows_of_blocks<D>(l, BLOCKS);
    return norm_block<D>(l, *block_rows, NORM_THREADS);
}

/* A block of twice the warps a multiprocessor, which norms the row once for all of them; no threads: its warps would
 * have several tasks each, or half of them none, or its memory does not hold them. */
template <class D>
static cudaError_t wide_shape(const struct cu_linear *l, int *block_rows, struct block_shape *shape)
{
    int n_units, most;
    cudaError_t e = ask_device(cudaDevAttrMultiProcessorCount, &n_units);
    if (e == cudaSuccess)
        e = ask_device(cudaDevAttrMaxSharedMemoryPerBlockOptin, &most);
    if (e != cudaSuccess)
        return e;
    *block_rows = rows_of_blocks<D>(l, n_units);
    *shape = norm_block<D>(l, *block_rows, WIDE_THREADS);
    int n_tasks = *block_rows / D::ROWS * D::n_rounds(l->n), n_warps = WIDE_THREADS / WARP;
    if (n_tasks > n_warps || n_tasks <= n_warps / 2 || shape->bytes > (size_t)most)
        shape->threads = 0;
    return cudaSuccess;
}

template <class D, int THREADS>
static cudaError_t launch_norm_blocks(cudaStream_t st, const struct given_linear *l, const struct block_shape *shape,
                                      int block_rows)
{
    cudaError_t e = allow_bytes(norm_linear<D, THREADS>, shape->bytes);
    dim3 grid(n_blocks_of(l, block_rows));
    return e != cudaSuccess ? e : launch_early(norm_linear<D, THREADS>, grid, THREADS, shape->bytes, st, *l,
                                               block_rows);
}

template <class D>
static cudaError_t launch_norm_as(cudaStream_t st, const struct given_linear *l)
{
    int block_rows;
    struct block_shape shape;
    if constexpr (D::ROWS > 1) {
        cudaError_t e = wide_shape<D>(l, &block_rows, &shape);
        if (e != cudaSuccess || shape.threads)
            return e != cudaSuccess ? e : launch_norm_blocks<D, WIDE_THREADS>(st, l, &shape, block_rows);
    }
    shape = norm_shape<D>(l, &block_rows);
    return launch_norm_blocks<D, NORM_THREADS>(st, l, &shape, block_rows);
}

/* Rows are staged where a block has 48 KB at most with them: two of them fit a multiprocessor with 100 KB, and one fits
 * one with 64. */
template <class D>
static cudaError_t launch_norm(cudaStream_t st, const struct given_linear *l)
{
    enum { STAGED_BYTES = 48 << 10 };
    int block_rows;
    if (norm_shape<typename D::staged>(l, &block_rows).bytes <= STAGED_BYTES)
        return launch_norm_as<typename D::staged>(st, l);
    return launch_norm_as<D>(st, l);
}

extern "C" bool pf_cu_linear_norms(const struct cu_linear *l, size_t shared_bytes)
{
    int block_rows;
    if (pf_cu_linear_streams(l))
        return true;
    if (l->rows != 1 || l->n_heads || l->n % 32 || n_blocks_of(l, 1) > NORM_ROWS)
        return false;
    switch (l->type) {
#define X(TYPE) case PF_##TYPE: return norm_shape<dot_##TYPE>(l, &block_rows).bytes <= shared_bytes;
    CU_TYPE_LIST(X)
#undef X
    default: return false;
    }
}

/* ---- Products of many rows --------------------------------------------------------------------------------------- */

/* Float weights and many rows: a warp takes MANY_ROWS rows and MANY_OUT outputs, a lane its
 * accumulator of each of them. */
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
static __global__ void __launch_bounds__(MANY_THREADS) float_rows(const __grid_constant__ struct given_linear l)
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
        finish(l, p, out, (size_t)row * p.n_out, v);
}

template <class L>
static cudaError_t launch_float_rows(cudaStream_t st, const struct given_linear *l)
{
    dim3 grid(n_blocks_of(l, 4 * MANY_OUT), ceil_div(l->rows, 2 * MANY_ROWS));
    return launch_early(float_rows<L>, grid, MANY_THREADS, 0, st, *l);
}

template <class D>
static cudaError_t launch(cudaStream_t st, const struct given_linear *l)
{
    if (l->norm.y)
        return launch_norm<D>(st, l);
    enum { TASKS = 4, MANY = 64 };
    int block_rows = TASK_ROWS;
    while (D::ROWS > 1 && block_rows / D::ROWS * D::n_rounds(l->n) < TASKS)
        block_rows *= 2;
    struct block_shape shape = shape_of<D>(block_rows / D::ROWS, l->n);
    cudaError_t e = allow_bytes(linear<D>, shape.bytes);
    if (e != cudaSuccess)
        return e;
    dim3 grid(n_blocks_of(l, block_rows) * max(l->n_heads, 1), l->rows < MANY ? 1 : ceil_div(l->rows, CU_LOOP_ROWS));
    return launch_early(linear<D>, grid, shape.threads, shape.bytes, st, *l, block_rows);
}

static cudaError_t put(cudaStream_t st, const struct given_linear *l)
{
    bool many = l->rows > CU_LOOP_ROWS && l->n_heads == 0;
    int group;
    bool taken;
    struct block_shape large = large_shape<k6>(l, &group);
    cudaError_t e = pf_cu_linear_segments(st, l, &taken);
    if (e == cudaSuccess && !taken)
        e = pf_cu_linear_stream(st, l, &taken);
    if (e != cudaSuccess || taken)
        return e;
    if (l->type == PF_Q6_K && !l->norm.y && large.threads)
        return launch_large<k6>(st, l, &large, group);
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

extern "C" cudaError_t pf_cu_linear_given(cudaStream_t st, const struct cu_linear *l, const struct cu_given *given)
{
    struct given_linear o;
    (struct cu_linear &)o = *l;
    o.given = *given;
    return put(st, &o);
}

extern "C" cudaError_t pf_cu_linear(cudaStream_t st, const struct cu_linear *l)
{
    const struct cu_given nowhere = {};
    return pf_cu_linear_given(st, l, &nowhere);
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
static __global__ void __launch_bounds__(WARP) embed_blocks(const __grid_constant__ struct embedding e)
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

extern "C" cudaError_t pf_cu_embed(cudaStream_t st, enum pf_qtype type, const uint8_t *w, uint64_t row_bytes, int n,
                                   float scale, const int32_t *ids, int rows, float *x, const struct cu_tables *t)
{
    struct embedding e = { w, row_bytes, n, scale, ids, x, *t };
    dim3 by_block(ceil_div(n, 32 * 32), rows), by_element(ceil_div(n, 256), rows);
    switch (type) {
#define X(TYPE) case PF_##TYPE: return launch_early(embed_floats<load_##TYPE>, by_element, 256, 0, st, e);
    X(F32) X(F16) X(BF16)
#undef X
#define X(TYPE) case PF_##TYPE: return launch_early(embed_blocks<read_##TYPE>, by_block, WARP, 0, st, e);
    CU_QUANTISED_LIST(X)
#undef X
    default: return cudaErrorInvalidValue;
    }
}
