/* Matrix products of many rows on the tensor cores, int8 codes times int8 activations, in the order of docs/numerics.md: dense
 * ones, and those of experts, whose picks are sorted so that an expert's weights are unpacked once for many of them.
 *
 *     a block's tile: TILE_M weight rows x TILE_N columns (rows of the batch, or picks of one expert)
 *     eight warps, 4 x 2, each 32 x 32; a warp's mma gives isum of 16 x 8 for one block of 32
 *     per segment (256 elements): codes and scales of the tile's rows go to shared memory, the activations too;
 *                                 eight steps of mma and float terms; then total = total + s
 *
 * Types whose scales are per 16 take two mma of half the depth. */
#include "kernels/cuda/cu_blocks.h"

enum {
    TILE_M = 128, TILE_N = 64, THREADS = 256, SEGMENT = 8, K = 32 * SEGMENT,
    STRIDE = K + 16              /* bytes of a row in shared memory: eight rows at a time lie in different banks */
};

struct tile_memory {
    uint8_t w[TILE_M][STRIDE], x[TILE_N][STRIDE];
    float   dw[SEGMENT][TILE_M], mw[SEGMENT][TILE_M];        /* mw: or the second scale */
    int     sc[SEGMENT][TILE_M], mn[SEGMENT][TILE_M];        /* two of 16 bits each */
    float   da[SEGMENT][TILE_N], g[SEGMENT][TILE_N];         /* g = da * sum of q */
    int     s[SEGMENT][TILE_N];                              /* sums of q, two of 16 bits */
    int     column[TILE_N];                                  /* row of x, or -1 */
};

/* Types with integer scales per 16, and with minimums per 16. */
template <class R> struct per_16 { static constexpr bool scales = false, minimums = false; };
template <> struct per_16<read_Q2_K> { static constexpr bool scales = true, minimums = true; };
template <> struct per_16<read_Q3_K> { static constexpr bool scales = true, minimums = false; };
template <> struct per_16<read_Q6_K> { static constexpr bool scales = true, minimums = false; };
template <> struct per_16<read_IQ2_XS> { static constexpr bool scales = true, minimums = false; };
template <> struct per_16<read_IQ2_S> { static constexpr bool scales = true, minimums = false; };
template <> struct per_16<read_IQ1_M> { static constexpr bool scales = true, minimums = false; };

/* c += a (16 x 16) times b (16 x 8); a lane's c: rows lane / 4 and 8 more, columns 2 (lane % 4) and the next. */
CU_INLINE void mma16(int (&c)[4], const uint32_t *a, uint32_t b)
{
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(b));
#else
    asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};" : "+r"(c[0]), "+r"(c[1]) : "r"(a[0]), "r"(b));
    asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};" : "+r"(c[2]), "+r"(c[3]) : "r"(a[1]), "r"(b));
#endif
}

/* The same with 32 elements: a[0], a[1] hold the lower sixteen, a[2], a[3] the upper. */
CU_INLINE void mma32(int (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    mma16(c, a, b[0]);
    mma16(c, a + 2, b[1]);
#endif
}

/* Codes and scales of one segment of the tile's rows. Rows past the matrix repeat its last. */
template <class R>
CU_INLINE void load_weights(struct tile_memory &m, const uint8_t *w, uint64_t row_bytes, int last, int b0, int n_blocks,
                            const struct cu_tables &t)
{
    for (int i = threadIdx.x; i < TILE_M * SEGMENT; i += THREADS) {
        int r = i / SEGMENT, k = i % SEGMENT;
        struct cu_block blk = {};
        if (b0 + k < n_blocks)
            blk = read_block<R>(w + (size_t)min(r, last) * row_bytes, b0 + k, t);
        uint4 *to = (uint4 *)&m.w[r][32 * k];
        to[0] = make_uint4(blk.code[0], blk.code[1], blk.code[2], blk.code[3]);
        to[1] = make_uint4(blk.code[4], blk.code[5], blk.code[6], blk.code[7]);
        m.dw[k][r] = blk.dw;
        if (R::kind != ONE_TERM)
            m.mw[k][r] = R::kind == TWO_SCALES ? blk.dw1 : -blk.mw;
        if (per_16<R>::scales)
            m.sc[k][r] = (blk.sc[0] & 0xffff) | blk.sc[1] << 16;
        if (per_16<R>::minimums)
            m.mn[k][r] = (blk.mn[0] & 0xffff) | blk.mn[1] << 16;
    }
}

CU_INLINE void load_activations(struct tile_memory &m, const struct cu_x &x, int n, int b0, int n_blocks)
{
    for (int i = threadIdx.x; i < TILE_N * SEGMENT; i += THREADS) {
        int c = i / SEGMENT, k = i % SEGMENT, row = m.column[c], two = 0;
        float d = 0;
        uint4 lower = make_uint4(0, 0, 0, 0), upper = lower;
        if (row >= 0 && b0 + k < n_blocks) {
            const uint4 *q = (const uint4 *)(x.q + (size_t)row * n + (b0 + k) * 32);
            lower = __ldg(q), upper = __ldg(q + 1);
            d = __ldg(x.d + (size_t)row * (n / 32) + b0 + k);
            two = __ldg((const int *)(x.s + (size_t)row * (n / 16)) + b0 + k);
        }
        uint4 *to = (uint4 *)&m.x[c][32 * k];
        to[0] = lower;
        to[1] = upper;
        m.da[k][c] = d;
        m.g[k][c] = d * (float)((int16_t)two + (two >> 16));
        m.s[k][c] = two;
    }
}

/* One 16 x 8 piece: row0, col0 within the tile. */
template <class R>
CU_INLINE void step(const struct tile_memory &m, int k, int row0, int col0, const uint32_t (&a)[4], const uint32_t (&b)[2], float (&s)[4])
{
    int lane = threadIdx.x % WARP, r = row0 + lane / 4, c = col0 + 2 * (lane % 4);
    int lower[4] = { 0, 0, 0, 0 }, upper[4] = { 0, 0, 0, 0 };
    if (per_16<R>::scales || R::kind == TWO_SCALES) {
        mma16(lower, a, b[0]);
        mma16(upper, a + 2, b[1]);
    } else {
        mma32(lower, a, b);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int row = r + 8 * (i / 2), col = c + i % 2, isum = lower[i];
        float da = m.da[k][col], dw = m.dw[k][row];
        if (per_16<R>::scales)
            isum = (int16_t)m.sc[k][row] * lower[i] + (m.sc[k][row] >> 16) * upper[i];
        s[i] = fmaf(dw * da, (float)isum, s[i]);
        if (R::kind == TWO_SCALES)
            s[i] = fmaf(m.mw[k][row] * da, (float)upper[i], s[i]);
        if (R::kind == MINIMUMS) {
            float g = m.g[k][col];
            if (per_16<R>::minimums)
                g = da * (float)((int16_t)m.mn[k][row] * (int16_t)m.s[k][col] + (m.mn[k][row] >> 16) * (m.s[k][col] >> 16));
            s[i] = fmaf(m.mw[k][row], g, s[i]);
        }
    }
}

/* One segment of a warp's 32 x 32. */
template <class R>
CU_INLINE void segment(const struct tile_memory &m, int row0, int col0, int n_steps, float (&total)[2][4][4])
{
    int lane = threadIdx.x % WARP, at = 4 * (lane % 4);
    float s[2][4][4] = {};
    for (int k = 0; k < n_steps; k++) {
        uint32_t a[2][4], b[4][2];
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                a[i][j] = *(const uint32_t *)&m.w[row0 + 16 * i + 8 * (j % 2) + lane / 4][32 * k + 16 * (j / 2) + at];
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 2; j++)
                b[i][j] = *(const uint32_t *)&m.x[col0 + 8 * i + lane / 4][32 * k + 16 * j + at];
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                step<R>(m, k, row0 + 16 * i, col0 + 8 * j, a[i], b[j], s[i][j]);
    }
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                total[i][j][e] = total[i][j][e] + s[i][j][e];
}

/* blockIdx: tile of rows, tile of columns. */
template <class R>
static __global__ void __launch_bounds__(THREADS, 2) tiles(const __grid_constant__ struct cu_tiles o)
{
    extern __shared__ uint4 shared[];
    struct tile_memory &m = *(struct tile_memory *)shared;
    int first = blockIdx.y * TILE_N, n_columns = o.n_columns - first, expert = 0;
    if (o.groups) {
        if (blockIdx.y >= o.groups->n_tiles)
            return;
        struct cu_tile tile = o.groups->tile[blockIdx.y];
        expert = tile.expert, first = tile.first, n_columns = tile.n;
    }
    n_columns = min(n_columns, (int)TILE_N);
    int r0 = blockIdx.x * TILE_M, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, n_blocks = o.n / 32;
    int row0 = warp % 4 * 32, col0 = warp / 4 * 32;
    const uint8_t *w = (o.groups ? o.table[expert] : o.w) + (size_t)r0 * o.row_bytes;
    for (int c = threadIdx.x; c < TILE_N; c += THREADS)
        m.column[c] = c >= n_columns ? -1 : o.groups ? o.groups->sorted[first + c] / o.x_divisor : first + c;
    float total[2][4][4] = {};
    for (int b0 = 0; b0 < n_blocks; b0 += SEGMENT) {
        __syncthreads();
        load_weights<R>(m, w, o.row_bytes, o.n_out - 1 - r0, b0, n_blocks, o.tables);
        load_activations(m, o.x, o.n, b0, n_blocks);
        __syncthreads();
        if (col0 < n_columns)
            segment<R>(m, row0, col0, min((int)SEGMENT, n_blocks - b0), total);
    }
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int r = r0 + row0 + 16 * i + lane / 4 + 8 * (e / 2), c = col0 + 8 * j + 2 * (lane % 4) + e % 2;
                if (r >= o.n_out || c >= n_columns)
                    continue;
                int to = o.groups ? o.groups->sorted[first + c] : first + c;
                float v = total[i][j][e];
                if (o.groups ? o.scales != NULL : o.scale != 1.0f)
                    v = v * (o.groups ? o.scales[expert] : o.scale);
                if (o.bias)
                    v = v + o.bias[(size_t)expert * o.n_out + r];
                if (o.weights)
                    v = v * o.weights[to];
                o.y[(size_t)to * o.n_out + r] = v;
            }
}

template <class R>
static cudaError_t launch(cudaStream_t st, const struct cu_tiles *o)
{
    cudaError_t e = cudaFuncSetAttribute(tiles<R>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(struct tile_memory));
    if (e != cudaSuccess)
        return e;
    int n_y = o->groups ? pf_cu_max_tiles(o->n_columns, o->n_expert) : ceil_div(o->n_columns, TILE_N);
    tiles<R><<<dim3(ceil_div(o->n_out, TILE_M), n_y), THREADS, sizeof(struct tile_memory), st>>>(*o);
    return cudaGetLastError();
}

extern "C" size_t pf_cu_tile_bytes(void)
{
    return sizeof(struct tile_memory);
}

extern "C" cudaError_t pf_cu_tiles(cudaStream_t st, const struct cu_tiles *o)
{
    switch (o->type) {
#define X(TYPE) case PF_##TYPE: return launch<read_##TYPE>(st, o);
    CU_QUANTISED_LIST(X)
#undef X
    default: return cudaErrorInvalidValue;
    }
}

/* ---- Picks by expert ---------------------------------------------------------------------------------------------------- */

extern "C" int pf_cu_max_tiles(int n_picks, int n_expert)
{
    return n_picks / TILE_N + (n_picks < n_expert ? n_picks : n_expert);
}

/* One block. The order of an expert's picks is left to chance: none of their results depends on it. */
static __global__ void __launch_bounds__(1024) group(const int32_t *picks, int n_picks, int n_expert, struct cu_groups *g)
{
    extern __shared__ int count[];               /* [n_expert] then where each expert's next pick goes [n_expert] */
    int *next = count + n_expert;
    for (int e = threadIdx.x; e < n_expert; e += blockDim.x)
        count[e] = 0;
    __syncthreads();
    for (int p = threadIdx.x; p < n_picks; p += blockDim.x)
        atomicAdd(&count[picks[p]], 1);
    __syncthreads();
    if (threadIdx.x == 0) {
        int first = 0, n = 0;
        for (int e = 0; e < n_expert; e++) {
            next[e] = first;
            for (int i = 0; i < count[e]; i += TILE_N)
                g->tile[n++] = { e, first + i, min((int)TILE_N, count[e] - i) };
            first += count[e];
        }
        g->n_tiles = n;
    }
    __syncthreads();
    for (int p = threadIdx.x; p < n_picks; p += blockDim.x)
        g->sorted[atomicAdd(&next[picks[p]], 1)] = p;
}

extern "C" cudaError_t pf_cu_group(cudaStream_t st, const int32_t *picks, int n_picks, int n_expert, struct cu_groups *g)
{
    group<<<1, 1024, 2 * (size_t)n_expert * sizeof(int), st>>>(picks, n_picks, n_expert, g);
    return cudaGetLastError();
}

/* y[row] = sum over its picks, in order, of weight * v[pick]. */
static __global__ void combine(const float *v, const float *weights, int n, int n_used, float *y)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    float sum = 0;
    for (int k = 0; k < n_used; k++) {
        size_t p = (size_t)blockIdx.y * n_used + k;
        sum = fmaf(weights ? weights[p] : 1.0f, v[p * n + i], sum);
    }
    y[(size_t)blockIdx.y * n + i] = sum;
}

extern "C" cudaError_t pf_cu_combine(cudaStream_t st, const float *v, const float *weights, int n, int n_used, int rows, float *y)
{
    combine<<<dim3(ceil_div(n, THREADS), rows), THREADS, 0, st>>>(v, weights, n, n_used, y);
    return cudaGetLastError();
}
