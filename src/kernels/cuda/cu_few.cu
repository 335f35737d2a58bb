/* Dense products of a few rows of activations: see cu_few.h. A block takes some tiles of 16 neighbouring weight rows of
 * one part, all of their segments; its warps' first bytes are on their way before the block's turn. */
#include "kernels/cuda/cu_few.h"

/* Where a block works: on n rows from `first` on of part p. Parts begin at whole blocks. */
struct place {
    const struct cu_part *p;
    int                   first, n;
};

CU_INLINE struct place place_of(const struct cu_linear &l, int block_rows, int block)
{
    int k = 0;
#pragma unroll 1
    for (int n; block >= (n = (l.part[k].n_out + block_rows - 1) / block_rows); block -= n)
        k++;
    int first = block * block_rows;
    return { &l.part[k], first, min(block_rows, l.part[k].n_out - first) };
}

CU_INLINE void finish(const struct cu_part &p, int r, int row, float v)
{
    if (p.scale != 1.0f)
        v = v * p.scale;
    if (p.bias)
        v = v + p.bias[r];
    p.y[(size_t)row * p.n_out + r] = v;
}

/* blockIdx: group of rows of activations, of l.rows at most; weight rows, which the groups read at the same time. */
template <class T, bool WIDE>
static __global__ void __launch_bounds__(MOST_WARPS * WARP, 3) few_linear(const __grid_constant__ struct cu_linear l,
                                                                          int n_tiles, int n_slots, int group_rows)
{
    BLOCK_MEMORY(float4, memory);
    int n = l.n, n_rows = n_tiles * TASK_ROWS, segments = n_segments(n), row = blockIdx.x * group_rows,
        n_columns = min(group_rows, l.rows - row);
    struct place at = place_of(l, n_rows, blockIdx.y);
    struct few_room m = few_room_at<T, WIDE>(memory, n, n_rows, n_slots);
    const uint8_t *base = at.p->w + (size_t)at.first * l.row_bytes;
    auto rows_of = [&](int tile, int segment) -> struct few_rows {
        int r = min(tile * TASK_ROWS, at.n - 1);
        return { base + (size_t)r * l.row_bytes + (size_t)segment * T::BYTES, (uint32_t)l.row_bytes, at.n - 1 - r,
                 min(n / 32 - segment * SEGMENT, (int)SEGMENT) };
    };
    struct few_way begin = few_begin(segments);
    struct few_pair first = few_pair_of(rows_of(begin.tile, begin.segment));
    if (begin.tile < n_tiles)
        few_stage<T>(first, m.slots);
    wait_turn();
    few_columns<T, WIDE>(m, x_row_of(l.x, n, row), n, n_columns);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncthreads();
    few_tasks<T, WIDE>(m, n, n_tiles, n_slots, first, rows_of);
    for (int i = threadIdx.x; i < n_rows * n_columns; i += blockDim.x) {
        int r = i % n_rows, column = i / n_rows;
        if (r < at.n)
            finish(*at.p, at.first + r, row + column, few_total<WIDE>(m, n, r, column));
    }
}

/* How a product is cut: tiles of a block, warps, slots of each. */
struct cut {
    int    n_tiles, n_warps, n_slots;
    size_t bytes;
};

/* As many blocks as a large GPU holds at once, if there are so many tiles; a second slot for each warp where it has
 * more than one task and two blocks still fit a multiprocessor. */
template <class T, bool WIDE>
static struct cut cut_of(const struct cu_linear *l)
{
    enum { BLOCKS = 256, MOST_TILES = 8, MUCH = 100 << 10 };
    int tiles = 0;
    for (int i = 0; i < l->n_parts; i++)
        tiles += ceil_div(l->part[i].n_out, TASK_ROWS);
    struct cut c;
    c.n_tiles = min(max(tiles / BLOCKS, 1), (int)MOST_TILES);
    int n_tasks = c.n_tiles * n_segments(l->n);
    c.n_warps = min(n_tasks, (int)MOST_WARPS);
    c.n_slots = 1;
    if (n_tasks > c.n_warps && few_bytes<T, WIDE>(l->n, c.n_tiles * TASK_ROWS, c.n_warps, 2) <= MUCH)
        c.n_slots = 2;
    c.bytes = few_bytes<T, WIDE>(l->n, c.n_tiles * TASK_ROWS, c.n_warps, c.n_slots);
    return c;
}

/* Rows of activations that a block takes, and how many groups of so many there are. */
static int n_groups(const struct cu_linear *l)
{
    return ceil_div(l->rows, FEW_COLUMNS);
}

static int group_rows(const struct cu_linear *l)
{
    return ceil_div(l->rows, n_groups(l));
}

template <class T, bool WIDE>
static cudaError_t launch_as(cudaStream_t st, const struct cu_linear *l)
{
    struct cut c = cut_of<T, WIDE>(l);
    int n_blocks = 0;
    for (int i = 0; i < l->n_parts; i++)
        n_blocks += ceil_div(l->part[i].n_out, c.n_tiles * TASK_ROWS);
    cudaError_t e = allow_bytes(few_linear<T, WIDE>, c.bytes);
    if (e != cudaSuccess)
        return e;
    return launch_early(few_linear<T, WIDE>, dim3(n_groups(l), n_blocks), c.n_warps * WARP, c.bytes, st, *l, c.n_tiles,
                        c.n_slots, group_rows(l));
}

template <class T>
static cudaError_t launch(cudaStream_t st, const struct cu_linear *l)
{
    return group_rows(l) > FEW_NARROW ? launch_as<T, true>(st, l) : launch_as<T, false>(st, l);
}

template <class T>
static size_t bytes_of(const struct cu_linear *l)
{
    return group_rows(l) > FEW_NARROW ? cut_of<T, true>(l).bytes : cut_of<T, false>(l).bytes;
}

/* Two rows are done as soon one after the other. */
extern "C" bool pf_cu_few_takes(const struct cu_linear *l, size_t shared_bytes)
{
    if (l->rows < 3 || l->rows > CU_VECTOR_ROWS || l->n_heads || l->norm.y)
        return false;
    switch (l->type) {
#define X(TYPE, ...) case PF_##TYPE: return bytes_of<__VA_ARGS__>(l) <= shared_bytes;
    CU_FEW_LIST(X)
#undef X
    default: return false;
    }
}

extern "C" cudaError_t pf_cu_few(cudaStream_t st, const struct cu_linear *l)
{
    switch (l->type) {
#define X(TYPE, ...) case PF_##TYPE: return launch<__VA_ARGS__>(st, l);
    CU_FEW_LIST(X)
#undef X
    default: return cudaErrorInvalidValue;
    }
}
