/* Matrix products of many rows on the tensor cores, int8 codes times int8 activations, in the order of
 * docs/numerics.md: dense ones, and those of experts, whose picks are sorted so that an expert's weights are unpacked
 * once for many of them.
 *
 *     a tile: TILE_M weight rows x `width` columns (rows of the batch, or picks of one expert)
 *     warps: four down, width / 32 across, each 32 x 32; a warp's mma gives isum of 16 x 8 for one block of 32
 *     per segment (256 elements): codes and scales of the tile's rows go to shared memory, the activations too: a
 *                                   stage;
 *                                 eight steps of mma and float terms; then total = total + s
 *
 * A block of threads goes through every gridDim.x'th tile, segment after segment without a break: while it computes on
 * one stage it fills the other, half of the warps filling first and half computing first, so that loads are waited for
 * under cover of products. Where shared memory holds one stage only, filling and computing take turns.
 *
 * Types whose scales are per 16 take two mma of half the depth. */
#include <cuda_pipeline.h>

#include "kernels/cuda/cu_tile.h"

enum {
    MOST_WIDTH = 128, SEGMENT = 8, K = 32 * SEGMENT, MOST_THREADS = 4 * MOST_WIDTH,
    STRIDE = K + 16,             /* bytes of a row in shared memory: eight rows at a time lie in different banks */
    LINE = TILE_M + 4            /* scales of a block of all rows; the next begin eight banks on */
};

/* A stage in shared memory; `width` columns. */
struct stage {
    uint8_t *w, *x;              /* [TILE_M], [width] rows of STRIDE bytes */
    float2  *dw;                 /* [SEGMENT][LINE]: dw and -mw, or both scales */
    int     *sc, *mn;            /* [SEGMENT][LINE]: two of 16 bits each */
    float2  *da;                 /* [SEGMENT][width + 4]: da and da * sum of q */
    int     *s;                  /* [SEGMENT][width + 4]: sums of q, two of 16 bits */
};

CU_HOST_FN size_t stage_bytes(int width)
{
    return (size_t)(TILE_M + width) * STRIDE + SEGMENT * LINE * 16 + (size_t)SEGMENT * (width + 4) * 12;
}

/* All that a block has: stages, and twice the rows of x that a tile's columns read, for this tile and the next. */
CU_HOST_FN size_t block_bytes(int width, int n_stages)
{
    return n_stages * stage_bytes(width) + 2 * (size_t)width * sizeof(int);
}

CU_INLINE struct stage stage_at(uint8_t *p, int width)
{
    struct stage m;
    m.w = p, m.x = p + TILE_M * STRIDE;
    m.dw = (float2 *)(m.x + width * STRIDE);
    m.da = m.dw + SEGMENT * LINE;
    m.sc = (int *)(m.da + SEGMENT * (width + 4)), m.mn = m.sc + SEGMENT * LINE, m.s = m.mn + SEGMENT * LINE;
    return m;
}

/* Types with integer scales per 16, and with minimums per 16. */
template <class R> struct per_16 { static constexpr bool scales = false, minimums = false; };
template <> struct per_16<read_Q2_K> { static constexpr bool scales = true, minimums = true; };
template <> struct per_16<read_Q3_K> { static constexpr bool scales = true, minimums = false; };
template <> struct per_16<read_Q6_K> { static constexpr bool scales = true, minimums = false; };
template <> struct per_16<read_IQ2_XS> { static constexpr bool scales = true, minimums = false; };
template <> struct per_16<read_IQ2_S> { static constexpr bool scales = true, minimums = false; };
template <> struct per_16<read_IQ1_M> { static constexpr bool scales = true, minimums = false; };

/* Codes and scales of a segment of the tile's rows. Rows past the matrix repeat its last. */
template <class R>
CU_INLINE void load_weights(const struct stage &m, const struct cu_tiles &o, const struct item &t, int b0, int n_blocks)
{
    const uint8_t *w = weights_of(o, t);
    int last = o.part[t.part].n_out - 1 - t.r0;
    uint32_t row_bytes = (uint32_t)o.row_bytes;          /* a tile's rows lie within 4 GiB */
#pragma unroll 2
    for (int i = threadIdx.x; i < TILE_M * SEGMENT; i += blockDim.x) {
        int r = i / SEGMENT, k = i % SEGMENT;
        if (b0 + k >= n_blocks)
            continue;
        struct cu_block blk = read_block<R>(w + min(r, last) * row_bytes, b0 + k, o.tables);
        uint4 *to = (uint4 *)(m.w + r * STRIDE + 32 * k);
        to[0] = make_uint4(blk.code[0], blk.code[1], blk.code[2], blk.code[3]);
        to[1] = make_uint4(blk.code[4], blk.code[5], blk.code[6], blk.code[7]);
        float other = R::kind == TWO_SCALES ? blk.dw1 : R::kind == MINIMUMS ? -blk.mw : 0.0f;
        m.dw[k * LINE + r] = make_float2(blk.dw, other);
        if (per_16<R>::scales)
            m.sc[k * LINE + r] = (blk.sc[0] & 0xffff) | blk.sc[1] << 16;
        if (per_16<R>::minimums)
            m.mn[k * LINE + r] = (blk.mn[0] & 0xffff) | blk.mn[1] << 16;
    }
}

/* The rows of x that the tile's columns read. */
CU_INLINE void find_rows(const struct cu_tiles &o, const struct item &t, int *x_row)
{
    for (int c = threadIdx.x; c < t.n_columns; c += blockDim.x)
        x_row[c] = row_of_column(o, t, c);
}

template <class R>
CU_INLINE void load_activations(const struct stage &m, const struct cu_tiles &o, int n_columns, const int *x_row,
                                int width, int b0, int n_blocks)
{
    enum { PIECES = K / 16 };             /* threads go over columns: each has its own piece, its own block */
    int piece = threadIdx.x % PIECES, k = threadIdx.x % SEGMENT;
    const int8_t *q = o.x.q + b0 * 32 + piece * 16;
    for (int c = threadIdx.x / PIECES; c < n_columns && b0 + piece / 2 < n_blocks; c += blockDim.x / PIECES)
        __pipeline_memcpy_async(m.x + c * STRIDE + piece * 16, q + (size_t)x_row[c] * (uint32_t)o.n, 16);
    for (int c = threadIdx.x / SEGMENT; c < n_columns && b0 + k < n_blocks; c += blockDim.x / SEGMENT) {
        size_t at = (size_t)x_row[c] * (uint32_t)n_blocks + b0 + k;
        float d = __ldg(o.x.d + at);
        int two = __ldg((const int *)o.x.s + at);
        m.da[k * (width + 4) + c] = make_float2(d, d * (float)((int16_t)two + (two >> 16)));
        if (per_16<R>::minimums)
            m.s[k * (width + 4) + c] = two;
    }
}

/* One 16 x 8 piece of a block: the scales of its two rows (8 apart) and two columns. */
template <class R>
CU_INLINE void step(const uint32_t (&a)[4], uint32_t b0, uint32_t b1, const float2 *w, const int *sc, const int *mn,
                    const float4 &x, const int *sum, float (&s)[4])
{
    int lower[4], upper[4];
    if (per_16<R>::scales || R::kind == TWO_SCALES) {
        mma16(lower, a, b0);
        mma16(upper, a + 2, b1);
    } else {
        mma32(lower, a, b0, b1);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int row = i / 2, isum = lower[i];
        float da = i % 2 ? x.z : x.x, g = i % 2 ? x.w : x.y;
        if (per_16<R>::scales)
            isum = (int16_t)sc[row] * lower[i] + (sc[row] >> 16) * upper[i];
        s[i] = fmaf(w[row].x * da, (float)isum, s[i]);
        if (R::kind == TWO_SCALES)
            s[i] = fmaf(w[row].y * da, (float)upper[i], s[i]);
        if (R::kind == MINIMUMS) {
            if (per_16<R>::minimums)
                g = da * (float)((int16_t)mn[row] * (int16_t)sum[i % 2] + (mn[row] >> 16) * (sum[i % 2] >> 16));
            s[i] = fmaf(w[row].y, g, s[i]);
        }
    }
}

/* One segment of a warp's 32 x 32. */
template <class R>
CU_INLINE void segment(const struct stage &m, int width, int row0, int col0, int n_steps, float (&total)[2][4][4])
{
    int lane = threadIdx.x % WARP, row = row0 + lane / 4, column = col0 + 2 * (lane % 4);
    const uint8_t *pa = m.w + (row0 + lane / 8 % 2 * 8 + lane % 8) * STRIDE + lane / 16 * 16;
    const uint8_t *pb = m.x + (col0 + lane / 16 * 8 + lane % 8) * STRIDE + lane / 8 % 2 * 16;
    float s[2][4][4] = {};
#pragma unroll 1
    for (int k = 0; k < n_steps; k++) {
        uint32_t a[2][4], b[2][4];
        float2 w[2][2];
        int sc[2][2] = {}, mn[2][2] = {};
#pragma unroll
        for (int i = 0; i < 2; i++) {
            load_pieces(a[i], pa + 16 * i * STRIDE + 32 * k);
            load_pieces(b[i], pb + 16 * i * STRIDE + 32 * k);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                int at = k * LINE + row + 16 * i + 8 * h;
                w[i][h] = m.dw[at];
                if (per_16<R>::scales)
                    sc[i][h] = m.sc[at];
                if (per_16<R>::minimums)
                    mn[i][h] = m.mn[at];
            }
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int at = k * (width + 4) + column + 8 * j, sum[2] = {};
            float4 x = *(const float4 *)&m.da[at];
            if (per_16<R>::minimums)
                sum[0] = m.s[at], sum[1] = m.s[at + 1];
#pragma unroll
            for (int i = 0; i < 2; i++)
                step<R>(a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1], w[i], sc[i], mn[i], x, sum, s[i][j]);
        }
    }
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                total[i][j][e] = total[i][j][e] + s[i][j][e];
}

template <class R>
static __global__ void __launch_bounds__(MOST_THREADS, 1) tiles(const __grid_constant__ struct cu_tiles o,
                                                                int n_row_tiles, int n_stages)
{
    BLOCK_MEMORY(uint4, shared);
    int width = blockDim.x / 4, n_blocks = o.n / 32, n_segments = (n_blocks + SEGMENT - 1) / SEGMENT;
    int n_items = n_items_of(o, n_row_tiles, width);
    int warp = threadIdx.x / WARP, row0 = warp % 4 * 32, col0 = warp / 4 * 32;
    bool compute_first = n_stages == 1 || warp / 4 % 2;
    float total[2][4][4] = {};
    int coming = blockIdx.x, coming_segment = 0, now_segment = -1;    /* filled; computed, -1: nothing */
    int *x_row = (int *)((uint8_t *)shared + n_stages * stage_bytes(width)), half = 0;  /* which is for next */
    struct item next = {}, now = {};
    if (coming < n_items) {
        next = item_at(o, n_row_tiles, width, coming);
        find_rows(o, next, x_row);
    }
    __syncthreads();
    for (int n = 0; coming < n_items || now_segment >= 0; n++) {
#pragma unroll 1
        for (int turn = 0; turn < 2; turn++) {
            if ((turn == 0) == compute_first) {
                if (now_segment >= 0 && col0 < now.n_columns)
                    segment<R>(stage_at((uint8_t *)shared + (n + 1) % n_stages * stage_bytes(width), width), width,
                               row0, col0, min((int)SEGMENT, n_blocks - now_segment * SEGMENT), total);
                continue;
            }
            if (n_stages == 1)
                __syncthreads();
            if (coming < n_items) {
                struct stage m = stage_at((uint8_t *)shared + n % n_stages * stage_bytes(width), width);
                load_activations<R>(m, o, next.n_columns, x_row + half, width, coming_segment * SEGMENT, n_blocks);
                load_weights<R>(m, o, next, coming_segment * SEGMENT, n_blocks);
            }
        }
        __pipeline_commit();
        if (now_segment == n_segments - 1)
            store(o, now, row0, col0, total);
        now_segment = -1;
        if (coming < n_items) {
            now = next;
            now_segment = coming_segment++;
            if (coming_segment == n_segments) {
                coming_segment = 0;
                coming += gridDim.x;
                half = width - half;
                if (coming < n_items) {
                    next = item_at(o, n_row_tiles, width, coming);
                    find_rows(o, next, x_row + half);
                }
            }
        }
        __pipeline_wait_prior(0);
        __syncthreads();
    }
}

/* No fewer than there are. */
static int n_column_tiles(const struct cu_tiles *o, const struct cu_tile_shape *shape)
{
    return o->groups ? pf_cu_max_tiles(o->n_columns, o->n_expert, shape->width) : ceil_div(o->n_columns, shape->width);
}

template <class R>
static cudaError_t launch(cudaStream_t st, const struct cu_tiles *o, const struct cu_tile_shape *shape, int n_row_tiles)
{
    size_t bytes = block_bytes(shape->width, shape->n_stages);
    cudaError_t e = cudaFuncSetAttribute(tiles<R>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (e != cudaSuccess)
        return e;
    int n_blocks = min(n_row_tiles * n_column_tiles(o, shape), shape->n_blocks);
    return launch_in_turn(tiles<R>, n_blocks, 4 * shape->width, bytes, st, *o, n_row_tiles, shape->n_stages);
}

extern "C" bool pf_cu_tile_shape(size_t shared_bytes, int n_units, struct cu_tile_shape *out)
{
    static const struct cu_tile_shape shapes[] = { { 128, 2, 1 }, { 64, 1, 2 }, { 32, 1, 1 } };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if (block_bytes(shapes[i].width, shapes[i].n_stages) <= shared_bytes) {
            *out = shapes[i];
            out->n_blocks *= n_units;
            out->groups = out->width == TILE_GROUP_WIDTH && pf_cu_has_tile_groups(shared_bytes);
            return true;
        }
    return false;
}

extern "C" cudaError_t pf_cu_tiles(cudaStream_t st, const struct cu_tiles *o, const struct cu_tile_shape *shape)
{
    int n_row_tiles = 0;
    for (int i = 0; i < o->n_parts; i++)
        n_row_tiles += ceil_div(o->part[i].n_out, TILE_M);
    if (shape->groups && pf_cu_takes_tile_groups(o->type))
        return pf_cu_tile_groups(st, o, n_row_tiles, min(n_row_tiles * n_column_tiles(o, shape), shape->n_blocks));
    switch (o->type) {
#define X(TYPE) case PF_##TYPE: return launch<read_##TYPE>(st, o, shape, n_row_tiles);
    CU_QUANTISED_LIST(X)
#undef X
    default: return cudaErrorInvalidValue;
    }
}

/* ---- Picks by expert --------------------------------------------------------------------------------------------- */

extern "C" int pf_cu_max_tiles(int n_picks, int n_expert, int width)
{
    return n_picks / width + (n_picks < n_expert ? n_picks : n_expert);
}

/* One block. The order of an expert's picks is left to chance: none of their results depends on it. */
static __global__ void __launch_bounds__(1024) group(const int32_t *picks, int n_picks, int n_expert, int width,
                                                     const uint8_t *const *only, struct cu_groups *g)
{
    BLOCK_MEMORY(int, count);            /* [n_expert] then where each expert's next pick goes [n_expert] */
    int *next = count + n_expert;
    for (int e = threadIdx.x; e < n_expert; e += blockDim.x)
        count[e] = 0;
    __syncthreads();
    for (int p = threadIdx.x; p < n_picks; p += blockDim.x)
        atomicAdd(&count[picks[p]], 1);
    __syncthreads();
    /* a warp deals 32 experts at a time their first pick and their first tile */
    for (int e0 = 0, first = 0, n = 0; threadIdx.x < WARP && e0 < n_expert; e0 += WARP) {
        int e = e0 + threadIdx.x, picks_of = e < n_expert ? count[e] : 0;
        int tiles_of = e < n_expert && only && !only[e] ? 0 : (picks_of + width - 1) / width;
        int picks_to = picks_of, tiles_to = tiles_of;
        for (int h = 1; h < WARP; h *= 2) {
            int p = __shfl_up_sync(ALL_LANES, picks_to, h), t = __shfl_up_sync(ALL_LANES, tiles_to, h);
            picks_to += threadIdx.x >= h ? p : 0;
            tiles_to += threadIdx.x >= h ? t : 0;
        }
        int at = first + picks_to - picks_of;
        if (e < n_expert)
            next[e] = at;
        for (int i = 0; i < tiles_of; i++)
            g->tile[n + tiles_to - tiles_of + i] = { e, at + i * width, min(width, picks_of - i * width) };
        first += __shfl_sync(ALL_LANES, picks_to, WARP - 1);
        n += __shfl_sync(ALL_LANES, tiles_to, WARP - 1);
        if (threadIdx.x == 0)
            g->n_tiles = n;
    }
    __syncthreads();
    for (int p = threadIdx.x; p < n_picks; p += blockDim.x)
        g->sorted[atomicAdd(&next[picks[p]], 1)] = p;
}

extern "C" cudaError_t pf_cu_group(cudaStream_t st, const int32_t *picks, int n_picks, int n_expert, int width,
                                   const uint8_t *const *only, struct cu_groups *g)
{
    size_t bytes = 2 * (size_t)n_expert * sizeof(int);
    return launch_in_turn(group, 1, 1024, bytes, st, picks, n_picks, n_expert, width, only, g);
}
