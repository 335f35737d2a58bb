/* Small matrices of floats, as those of routers, times a few rows: a warp takes a weight row and a row of activations,
 * so that the rows do not wait for each other. */
#include "kernels/cuda/cu_dot.h"
#include "kernels/cuda/cu_few_api.h"

enum { BLOCK_ROWS = 4, MOST_ROWS = 1024 };

/* blockIdx: weight rows of one part, row of activations. */
template <class L>
static __global__ void __launch_bounds__(BLOCK_ROWS * WARP) few_floats(const __grid_constant__ struct cu_linear l)
{
    __shared__ float sums[BLOCK_ROWS];
    wait_turn();
    int block = blockIdx.x, k = 0, row = blockIdx.y, warp = threadIdx.x / WARP;
#pragma unroll 1
    for (int n; block >= (n = (l.part[k].n_out + BLOCK_ROWS - 1) / BLOCK_ROWS); block -= n)
        k++;
    const struct cu_part &p = l.part[k];
    int r = block * BLOCK_ROWS + warp;
    floats<L>::task({ p.w, l.row_bytes, p.n_out - 1 }, r, x_row_of(l.x, l.n, row), l.n, 0, l.tables, NULL, sums + warp);
    if (threadIdx.x % WARP || r >= p.n_out)
        return;
    float v = sums[warp];
    if (p.scale != 1.0f)
        v = v * p.scale;
    if (p.bias)
        v = v + p.bias[r];
    p.y[(size_t)row * p.n_out + r] = v;
}

template <class L>
static cudaError_t launch(cudaStream_t st, const struct cu_linear *l)
{
    int n_blocks = 0;
    for (int i = 0; i < l->n_parts; i++)
        n_blocks += ceil_div(l->part[i].n_out, BLOCK_ROWS);
    return launch_early(few_floats<L>, dim3(n_blocks, l->rows), BLOCK_ROWS * WARP, 0, st, *l);
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
