/* Small matrices of floats, as those of routers, times a few rows: a warp takes a weight row and a row of activations,
 * so that the rows do not wait for each other. Short weights are copied to shared memory before the kernel's turn. */
#include "kernels/cuda/cu_dot.h"
#include "kernels/cuda/cu_few_api.h"

enum { BLOCK_ROWS = 4, MOST_ROWS = 1024 };

/* Where a block works: on rows from `first` on of part p. */
struct place {
    const struct cu_part *p;
    int                   first;
};

CU_INLINE struct place place_of(const struct cu_linear &l)
{
    int block = blockIdx.x, k = 0;
#pragma unroll 1
    for (int n; block >= (n = (l.part[k].n_out + BLOCK_ROWS - 1) / BLOCK_ROWS); block -= n)
        k++;
    return { &l.part[k], block * BLOCK_ROWS };
}

CU_INLINE void finish(const struct cu_part &p, int r, int row, float v)
{
    if (threadIdx.x % WARP || r >= p.n_out)
        return;
    if (p.scale != 1.0f)
        v = v * p.scale;
    if (p.bias)
        v = v + p.bias[r];
    p.y[(size_t)row * p.n_out + r] = v;
}

/* blockIdx: weight rows of one part, row of activations. */
template <class L>
static __global__ void __launch_bounds__(BLOCK_ROWS * WARP) few_floats(const __grid_constant__ struct cu_linear l)
{
    __shared__ float sums[BLOCK_ROWS];
    wait_turn();
    int row = blockIdx.y, warp = threadIdx.x / WARP;
    struct place at = place_of(l);
    floats<L>::task({ at.p->w, l.row_bytes, at.p->n_out - 1 }, at.first + warp, x_row_of(l.x, l.n, row), l.n, 0,
                    l.tables, NULL, sums + warp);
    finish(*at.p, at.first + warp, row, sums[warp]);
}

/* A block's memory in staged_floats: a weight row for each warp, behind a row of activations. */
CU_HOST_FN size_t slot_bytes(const struct cu_linear &l)
{
    return (l.row_bytes + 31) / 16 * 16;
}

static size_t staged_bytes(const struct cu_linear *l)
{
    return l->n * sizeof(float) + BLOCK_ROWS * slot_bytes(*l);
}

/* As few_floats. */
template <class L>
static __global__ void __launch_bounds__(BLOCK_ROWS * WARP) staged_floats(const __grid_constant__ struct cu_linear l)
{
    BLOCK_MEMORY(float4, x);
    __shared__ float sums[BLOCK_ROWS];
    int row = blockIdx.y, warp = threadIdx.x / WARP, n4 = l.n / 4;
    struct place at = place_of(l);
    uint8_t *slot = (uint8_t *)(x + n4) + warp * slot_bytes(l);
    const uint8_t *w = at.p->w + min(at.first + warp, at.p->n_out - 1) * l.row_bytes;
    stage(slot, w, (int)l.row_bytes);
    wait_turn();
#pragma unroll 4
    for (int u = threadIdx.x; u < n4; u += BLOCK_ROWS * WARP)
        __pipeline_memcpy_async(x + u, l.x.f + (size_t)row * l.n + 4 * u, 16);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncthreads();
    floats<L, true>::task({ slot + ((uintptr_t)w & 15), l.row_bytes, 0 }, 0, { (const float *)x }, l.n, 0, l.tables,
                          NULL, sums + warp);
    finish(*at.p, at.first + warp, row, sums[warp]);
}

template <class L>
static cudaError_t launch(cudaStream_t st, const struct cu_linear *l)
{
    enum { MOST_BYTES = 62 << 10 };                      /* that a block of the smallest GPUs may have */
    size_t bytes = staged_bytes(l);
    int n_blocks = 0;
    for (int i = 0; i < l->n_parts; i++)
        n_blocks += ceil_div(l->part[i].n_out, BLOCK_ROWS);
    dim3 grid(n_blocks, l->rows);
    if (!by_fours(l->x.f, l->n) || bytes > MOST_BYTES)
        return launch_early(few_floats<L>, grid, BLOCK_ROWS * WARP, 0, st, *l);
    cudaError_t e = allow_bytes(staged_floats<L>, bytes);
    return e != cudaSuccess ? e : launch_early(staged_floats<L>, grid, BLOCK_ROWS * WARP, bytes, st, *l);
}

/* Larger matrices are better read once for all rows. */
extern "C" bool pf_cu_few_floats_takes(const struct cu_linear *l)
{
    int n_rows = 0;
    for (int i = 0; i < l->n_parts; i++)
        n_rows += l->part[i].n_out;
    return l->rows >= 2 && l->rows <= CU_VECTOR_ROWS && !l->n_heads && !l->norm.y && n_rows <= MOST_ROWS &&
           (l->type == PF_F32 || l->type == PF_F16 || l->type == PF_BF16);
}

extern "C" cudaError_t pf_cu_few_floats(cudaStream_t st, const struct cu_linear *l)
{
    switch (l->type) {
    case PF_F32: return launch<load_F32>(st, l);
    case PF_F16: return launch<load_F16>(st, l);
    default: return launch<load_BF16>(st, l);
    }
}
