/* Dense products of one row, a segment a lane (cu_segments.h): of K types, where a block a multiprocessor has all of
 * its rows in shared memory. They are on their way there before the kernel's turn.
 *
 *     plain     the row is in memory
 *     normed    it is normed first, by every block for itself */
#include "kernels/cuda/cu_linear_row.h"

enum { PLAIN_THREADS = 8 * WARP, NORMED_THREADS = 16 * WARP };

/* Elements of a row that a thread of normed takes four of, or eight. */
enum { FOUR_EACH = 4 * NORMED_THREADS, EIGHT_EACH = 2 * FOUR_EACH };

/* A block's memory. */
struct here {
    uint8_t      *rows;               /* as in `place`, once the box is full */
    struct x_here x;
    float        *sums;               /* [rows][segments] */
    float4       *y;                  /* of normed: the row as it was */
};

CU_HOST_FN int sums_bytes(const struct cu_linear &l, int block_rows)
{
    return (block_rows * (l.n / 256) * (int)sizeof(float) + 15) / 16 * 16;
}

CU_INLINE struct here here_of(const struct cu_linear &l, int block_rows, uint8_t *memory)
{
    uint8_t *x = memory + staged_bytes(block_rows, l.row_bytes), *sums = x + x_here_bytes(l.n / 256);
    return { memory, x_here_at(x, l.n / 256), (float *)sums, (float4 *)(sums + sums_bytes(l, block_rows)) };
}

/* Opens the box and sends for the block's rows; says where they will be. */
CU_INLINE void send_for_rows(const struct cu_linear &l, const struct place &at, struct here *m, uint64_t *box)
{
    int skip = (int)((uintptr_t)at.rows & 15), bytes = (skip + at.n * (int)l.row_bytes + 15) / 16 * 16;
    if (threadIdx.x == 0) {
        open_box(box);
        expect_bytes(box, bytes);
        copy_once_to_box(m->rows, at.rows - skip, bytes, box);
    }
    m->rows += skip;
}

/* What the residual adds the thread's output to: loaded before there is something to add. */
CU_INLINE float met_at(const struct given_linear &l, const struct place &at)
{
    return (int)threadIdx.x < at.n && l.residual.x ? l.residual.x[at.first + threadIdx.x] : 0.0f;
}

/* Multiplies the block's rows with x, which is in its memory when its threads have met. */
template <class T>
CU_INLINE void multiply(const struct given_linear &l, const struct place &at, const struct here &m, uint64_t *box,
                        float met)
{
    int n_segments = l.n / 256;
    __syncthreads();
    await_box(box, 0);
#pragma unroll 1
    for (int i = threadIdx.x; i < at.n * n_segments; i += blockDim.x) {
        int r = quotient(i, n_segments), segment = i - r * n_segments;
        m.sums[i] = T::sum(m.rows + r * (int)l.row_bytes + segment * T::BYTES, segment_of(m.x, segment));
    }
    __syncthreads();
    if ((int)threadIdx.x < at.n)
        finish(l, *at.p, at.first + threadIdx.x, 0, sum_of_row(m.sums + threadIdx.x * n_segments, n_segments), met);
}

/* blockIdx: block_rows rows of one part. */
template <class T>
static __global__ void __launch_bounds__(PLAIN_THREADS, 2)
plain_segments(const __grid_constant__ struct given_linear l, int block_rows)
{
    BLOCK_MEMORY(uint4, memory);
    __shared__ uint64_t box;
    struct place at = place_of(l, block_rows, blockIdx.x);
    struct here m = here_of(l, block_rows, (uint8_t *)memory);
    send_for_rows(l, at, &m, &box);
    __syncthreads();
    wait_turn();
    float met = met_at(l, at);
    bring_x<T>(m.x, x_row_of(l.x, l.n, 0), l.n / 32);
    multiply<T>(l, at, m, &box, met);
}

/* blockIdx: block_rows rows of one part. FOURS: of a thread's elements. */
template <class T, int FOURS>
static __global__ void __launch_bounds__(NORMED_THREADS, 1)
normed_segments(const __grid_constant__ struct given_linear l, int block_rows)
{
    BLOCK_MEMORY(uint4, memory);
    __shared__ uint64_t box;
    struct place at = place_of(l, block_rows, blockIdx.x);
    struct here m = here_of(l, block_rows, (uint8_t *)memory);
    float4 w[FOURS];
    send_for_rows(l, at, &m, &box);
    take_weights<NORMED_THREADS>(l.norm, w);
    __syncthreads();
    wait_turn();
    float met = met_at(l, at);
    norm_to<T, NORMED_THREADS>(l.norm, w, m.x, m.y);
    multiply<T>(l, at, m, &box, met);
}

template <class T>
static cudaError_t launch(cudaStream_t st, const struct given_linear *l, bool *takes)
{
    enum { STATIC_BYTES = 2 << 10 };
    bool normed = l->norm.y, early;
    auto kernel = !normed ? plain_segments<T> : l->n <= FOUR_EACH ? normed_segments<T, 1> : normed_segments<T, 2>;
    int n_units, most, block_rows;
    cudaError_t e = is_of_90(kernel, &early);
    if (e == cudaSuccess)
        e = ask_device(cudaDevAttrMultiProcessorCount, &n_units);
    if (e == cudaSuccess)
        e = ask_device(cudaDevAttrMaxSharedMemoryPerBlockOptin, &most);
    if (e != cudaSuccess || l->n_parts > n_units)
        return e;
    for (block_rows = ceil_div(n_blocks_of(l, 1), n_units); n_blocks_of(l, block_rows) > n_units; block_rows++)
        continue;
    size_t bytes = staged_bytes(block_rows, l->row_bytes) + x_here_bytes(l->n / 256) + sums_bytes(*l, block_rows) +
        (normed ? l->n * sizeof(float) : 0);
    *takes = early && bytes + STATIC_BYTES <= (size_t)most && block_rows <= PLAIN_THREADS &&
        (!normed || l->n <= EIGHT_EACH);
    if (!*takes)
        return cudaSuccess;
    e = allow_bytes(kernel, bytes);
    return e != cudaSuccess ? e : launch_early(kernel, n_blocks_of(l, block_rows),
                                               normed ? NORMED_THREADS : PLAIN_THREADS, bytes, st, *l, block_rows);
}

extern "C" cudaError_t pf_cu_linear_segments(cudaStream_t st, const struct given_linear *l, bool *takes)
{
    *takes = false;
    if (l->rows != 1 || l->n_heads)
        return cudaSuccess;
    switch (l->type) {
    case PF_Q4_K: return launch<segment_k45<false>>(st, l, takes);
    case PF_Q5_K: return launch<segment_k45<true>>(st, l, takes);
    case PF_Q6_K: return launch<segment_k6>(st, l, takes);
    default: return cudaSuccess;
    }
}
