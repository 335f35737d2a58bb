/* Matrix products of many rows on the tensor cores, int8 codes times int8 activations, in the order of
 * docs/numerics.md: dense ones, and those of experts, whose picks are sorted so that an expert's weights are unpacked
 * once for many of them.
 *
 *     a tile: TILE_M weight rows x `width` columns (rows of the batch, or picks of one expert)
 *     warps: four down, width / 32 across, each 32 x 32, or 32 x 16 or 32 x 8 where the tile has so few columns; a
 *            warp's mma gives isum of 16 x 8 for one block of 32
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

/* A product's sums begin with the bits of this float, whose last place is 1: so they are floats as they come, too large
 * by it, and need no instruction that converts, of which there are half as many a cycle. Sums are less than 2^22. */
enum { FROM_BITS = 0x4b400000 };
#define FROM 0x1.8p23f

CU_INLINE float whole(int sum)
{
    return pf_bits_float((uint32_t)sum) - FROM;
}

/* Two whole numbers of less than 512 as halves: 1,536 more of each are the bits 0x6600 and the number. */
CU_INLINE uint32_t small_halves(int low, int high)
{
    return halves_fma((uint32_t)(low + 0x6600 & 0xffff) | (uint32_t)(high + 0x6600) << 16, 0x3c003c00, 0xe600e600);
}

/* A tile, and where its weights are. */
struct source {
    struct item    t;
    const uint8_t *w;                    /* its first row */
};

/* Codes and scales of block k of row r. */
template <class R>
CU_INLINE void put_block(const struct stage &m, int r, int k, const struct cu_block &blk)
{
    uint4 *to = (uint4 *)(m.w + r * STRIDE + 32 * k);
    to[0] = make_uint4(blk.code[0], blk.code[1], blk.code[2], blk.code[3]);
    to[1] = make_uint4(blk.code[4], blk.code[5], blk.code[6], blk.code[7]);
    float other = R::kind == TWO_SCALES ? blk.dw1 : R::kind == MINIMUMS ? -blk.mw : 0.0f;
    m.dw[k * LINE + r] = make_float2(blk.dw, other);
    if (per_16<R>::scales)
        m.sc[k * LINE + r] = (int)small_halves(blk.sc[0], blk.sc[1]);
    if (per_16<R>::minimums)
        m.mn[k * LINE + r] = (blk.mn[0] & 0xffff) | blk.mn[1] << 16;
}

/* Codes and scales of a segment of the tile's rows, of which a thread has two blocks or more: both are on their way
 * before the first is waited for. Rows past the matrix repeat its last, blocks past a row's end the row's last. */
template <class R>
CU_INLINE void load_weights(const struct stage &m, const struct cu_tiles &o, const struct source &from, int b0,
                            int n_blocks)
{
    uint32_t row_bytes = (uint32_t)o.row_bytes;          /* a tile's rows lie within 4 GiB */
    int last = o.part[from.t.part].n_out - 1 - from.t.r0;
    int k = threadIdx.x % SEGMENT, b = min(b0 + k, n_blocks - 1), step = blockDim.x / SEGMENT;
#pragma unroll 1
    for (int r = threadIdx.x / SEGMENT; r < TILE_M; r += 2 * step) {
        struct cu_block one = read_block<R>(from.w + min(r, last) * row_bytes, b, o.tables),
                        other = read_block<R>(from.w + min(r + step, last) * row_bytes, b, o.tables);
        put_block<R>(m, r, k, one);
        put_block<R>(m, r + step, k, other);
    }
}

/* The pick, or the row, that a thread's column of a tile is; the row of x that it reads. */
CU_INLINE int pick_of_column(const struct cu_tiles &o, const struct item &t)
{
    int c = min((int)threadIdx.x, t.n_columns - 1);
    return o.groups ? o.groups->sorted[t.first + c] : t.first + c;
}

CU_INLINE int row_of_pick(const struct cu_tiles &o, int pick)
{
    return o.groups ? pick / o.x_divisor : pick;
}

/* Sends for the codes of a segment of the tile's columns. */
CU_INLINE void send_activations(const struct stage &m, const struct cu_tiles &o, int n_columns, const uint32_t *x_row,
                                int width, int b0, int n_blocks)
{
    enum { PIECES = K / 16 };             /* threads go over columns: each has its own piece */
    int piece = threadIdx.x % PIECES, c = threadIdx.x / PIECES, step = width / 4;
    const int8_t *q = o.x.q + b0 * 32 + piece * 16;
    uint8_t *to = m.x + c * STRIDE + piece * 16;
    if (b0 + piece / 2 < n_blocks)
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (i * step < n_columns)
                __pipeline_memcpy_async(to + i * step * STRIDE,
                                        q + (uint64_t)x_row[c + i * step] * (uint32_t)o.n, 16);
}

/* Scales and sums of a thread's two columns, of its block. */
struct sides {
    float d[2];
    int   sums[2];

    __device__ __forceinline__ void fetch(const struct cu_tiles &o, const uint32_t *x_row, int width, int b0,
                                          int n_blocks)
    {
        uint32_t b = min(b0 + (int)(threadIdx.x % SEGMENT), n_blocks - 1);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t at = x_row[threadIdx.x / SEGMENT + i * width / 2] * (uint32_t)n_blocks + b;
            d[i] = __ldg(o.x.d + at);
            sums[i] = __ldg((const int *)o.x.s + at);
        }
    }
    template <class R> __device__ __forceinline__ void put(const struct stage &m, int width) const
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int at = threadIdx.x % SEGMENT * (width + 4) + threadIdx.x / SEGMENT + i * width / 2;
            m.da[at] = make_float2(d[i], d[i] * (float)((int16_t)sums[i] + (sums[i] >> 16)));
            if (per_16<R>::minimums)
                m.s[at] = sums[i];
        }
    }
};

/* Fills a stage with segment s of a tile. All that comes from memory is asked for before any of it is waited for. */
template <class R>
CU_INLINE void fill(const struct stage &m, const struct cu_tiles &o, const struct source &from, const uint32_t *x_row,
                    int width, int s, int n_blocks)
{
    struct sides of;
    send_activations(m, o, from.t.n_columns, x_row, width, s * SEGMENT, n_blocks);
    of.fetch(o, x_row, width, s * SEGMENT, n_blocks);
    load_weights<R>(m, o, from, s * SEGMENT, n_blocks);
    of.put<R>(m, width);
}

/* What a lane knows of a weight row's block: dw and -mw, or both scales; the scales of sixteen codes, and the first
 * one's share of FROM; minimums of sixteen, 16 bits each. */
struct row_scales {
    float2 w, sc;
    float  less;
    int    mn;
};

/* One 16 x 8 piece of a block, of two rows (8 apart) and two columns. */
template <class R>
CU_INLINE void step(const uint32_t (&a)[4], uint32_t b0, uint32_t b1, const struct row_scales *rows, const float4 &x,
                    const int *sum, float (&s)[4])
{
    int lower[4], upper[4];
    if (per_16<R>::scales || R::kind == TWO_SCALES) {
        mma16(lower, a, b0, FROM_BITS);
        mma16(upper, a + 2, b1, FROM_BITS);
    } else {
        mma32(lower, a, b0, b1, FROM_BITS);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const struct row_scales &r = rows[i / 2];
        float da = i % 2 ? x.z : x.x, g = i % 2 ? x.w : x.y, isum;
        if (per_16<R>::scales)
            isum = fmaf(r.sc.y, whole(upper[i]), fmaf(r.sc.x, pf_bits_float((uint32_t)lower[i]), r.less));
        else
            isum = whole(lower[i]);
        s[i] = fmaf(r.w.x * da, isum, s[i]);
        if (R::kind == TWO_SCALES)
            s[i] = fmaf(r.w.y * da, whole(upper[i]), s[i]);
        if (R::kind == MINIMUMS) {
            if (per_16<R>::minimums)
                g = da * (float)((int16_t)r.mn * (int16_t)sum[i % 2] + (r.mn >> 16) * (sum[i % 2] >> 16));
            s[i] = fmaf(r.w.y, g, s[i]);
        }
    }
}

template <class R>
CU_INLINE struct row_scales scales_at(const struct stage &m, int at)
{
    struct row_scales r = { m.dw[at], {}, 0, 0 };
    if (per_16<R>::scales) {
        r.sc = make_float2(half_value((uint16_t)m.sc[at]), half_value((uint16_t)(m.sc[at] >> 16)));
        r.less = -FROM * r.sc.x;
    }
    if (per_16<R>::minimums)
        r.mn = m.mn[at];
    return r;
}

/* One segment of a warp's 32 x 8 N. */
template <class R, int N>
CU_INLINE void segment(const struct stage &m, int width, int row0, int col0, int n_steps, float (&total)[2][4][4])
{
    int lane = threadIdx.x % WARP, of_row = row0 + lane / 4, of_column = col0 + 2 * (lane % 4);
    const uint8_t *pa = m.w + (row0 + lane / 8 % 2 * 8 + lane % 8) * STRIDE + lane / 16 * 16;
    const uint8_t *pb = m.x + (col0 + lane / 16 * 8 + lane % 8) * STRIDE + lane / 8 % 2 * 16;
    float s[2][N][4] = {};
#pragma unroll 1
    for (; n_steps > 0; n_steps--, pa += 32, pb += 32, of_row += LINE, of_column += width + 4) {
        uint32_t a[2][4], b[2][4];
        struct row_scales rows[2][2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            load_pieces(a[i], pa + 16 * i * STRIDE);
            if (2 * i < N)
                load_pieces(b[i], pb + 16 * i * STRIDE);
#pragma unroll
            for (int h = 0; h < 2; h++)
                rows[i][h] = scales_at<R>(m, of_row + 16 * i + 8 * h);
        }
#pragma unroll
        for (int j = 0; j < N; j++) {
            int at = of_column + 8 * j, sum[2] = {};
            float4 x = *(const float4 *)&m.da[at];
            if (per_16<R>::minimums)
                sum[0] = m.s[at], sum[1] = m.s[at + 1];
#pragma unroll
            for (int i = 0; i < 2; i++)
                step<R>(a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1], rows[i], x, sum, s[i][j]);
        }
    }
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < N; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                total[i][j][e] = total[i][j][e] + s[i][j][e];
}

/* Columns of a warp: of a tile that has few, all warps take a part. */
CU_INLINE int columns_of_warp(const struct item &t, int width)
{
    int across = width / 32;
    return t.n_columns <= 8 * across ? 8 : t.n_columns <= 16 * across ? 16 : 32;
}

template <class R>
CU_INLINE void compute(const struct stage &m, const struct item &t, int width, int row0, int n_steps,
                       float (&total)[2][4][4])
{
    int n = columns_of_warp(t, width), col0 = threadIdx.x / WARP / 4 * n;
    if (col0 >= t.n_columns)
        return;
    if (n == 8)
        segment<R, 1>(m, width, row0, col0, n_steps, total);
    else if (n == 16)
        segment<R, 2>(m, width, row0, col0, n_steps, total);
    else
        segment<R, 4>(m, width, row0, col0, n_steps, total);
}

/* The tiles of a block of threads, in shared memory: the one that is computed, the one that is loaded, which may be the
 * next, the one after that, and room for one more. What of them comes from memory is asked for with a tile's last
 * segment: of the next tile, where its weights are and the rows of x that its columns read, and which is the one after
 * that. */
struct ring {
    enum { PLACES = 4 };
    struct source *of;                   /* [PLACES] */
    uint32_t      *x_row;                /* [2][width]; columns that a tile lacks repeat its last */
    int            width, n_row_tiles, n_items, n;       /* n: the one that is loaded */

    __device__ __forceinline__ int item(int later) const
    {
        return blockIdx.x + (n + later) * gridDim.x;
    }
    __device__ __forceinline__ bool has(int later) const
    {
        return item(later) < n_items;
    }
    __device__ __forceinline__ struct source &at(int later) const
    {
        return of[n + later & PLACES - 1];
    }
    __device__ __forceinline__ uint32_t *rows(int later) const
    {
        return x_row + ((n + later) & 1) * width;
    }
    __device__ __forceinline__ void begin(const struct cu_tiles &o)
    {
        int x = threadIdx.x;
        if (x < 2 && has(x))
            of[x].t = item_at(o, n_row_tiles, width, item(x));
        if (x == 0 && has(0))
            of[0].w = weights_of(o, of[0].t);
        __syncthreads();
        if (x < width && has(0))
            x_row[x] = row_of_pick(o, pick_of_column(o, of[0].t));
        __syncthreads();
    }
};

CU_HOST_FN size_t ring_bytes(int width)
{
    return ring::PLACES * sizeof(struct source) + 2 * (size_t)width * sizeof(uint32_t);
}

CU_INLINE struct ring ring_at(uint8_t *p, const struct cu_tiles &o, int width, int n_row_tiles)
{
    return { (struct source *)p, (uint32_t *)(p + ring::PLACES * sizeof(struct source)), width, n_row_tiles,
             n_items_of(o, n_row_tiles, width), 0 };
}

/* All that a block has: stages, and its tiles. */
CU_HOST_FN size_t block_bytes(int width, int n_stages)
{
    return n_stages * stage_bytes(width) + ring_bytes(width);
}

/* Loads a segment of a tile. ends: the last one, with which comes what is not yet known of the tiles after it. */
template <class R>
CU_INLINE void load(const struct stage &m, const struct cu_tiles &o, const struct ring &tiles, int s, int n_blocks,
                    bool ends)
{
    bool looks = ends && tiles.has(1) && threadIdx.x < tiles.width, first = threadIdx.x == 0;
    struct item after = {};
    const uint8_t *w = NULL;
    int pick = 0;
    if (looks) {
        pick = pick_of_column(o, tiles.at(1).t);
        w = first ? weights_of(o, tiles.at(1).t) : NULL;
        if (first && tiles.has(2))
            after = item_at(o, tiles.n_row_tiles, tiles.width, tiles.item(2));
    }
    fill<R>(m, o, tiles.at(0), tiles.rows(0), tiles.width, s, n_blocks);
    if (looks)
        tiles.rows(1)[threadIdx.x] = row_of_pick(o, pick);
    if (looks && first) {
        tiles.at(1).w = w;
        tiles.at(2).t = after;
    }
}

/* n_stages: 1 or 2. */
template <class R>
static __global__ void __launch_bounds__(MOST_THREADS, 1) tiles(const __grid_constant__ struct cu_tiles o,
                                                                int n_row_tiles, int n_stages)
{
    BLOCK_MEMORY(uint4, shared);
    int width = blockDim.x / 4, n_blocks = o.n / 32, n_segments = (n_blocks + SEGMENT - 1) / SEGMENT;
    int warp = threadIdx.x / WARP, row0 = warp % 4 * 32;
    bool compute_first = n_stages == 1 || warp / 4 % 2;
    float total[2][4][4] = {};
    int coming = 0, now = -1;            /* segments: of the tile that is loaded; computed, -1: nothing */
    struct ring of = ring_at((uint8_t *)shared + n_stages * stage_bytes(width), o, width, n_row_tiles);
    auto stage = [&](int n) {
        return stage_at((uint8_t *)shared + (n & n_stages - 1) * stage_bytes(width), width);
    };
    of.begin(o);
    for (int n = 0; of.has(0) || now >= 0; n++) {
        const struct item &t = of.at(coming == 0 ? -1 : 0).t;            /* of `now` */
        bool loads = of.has(0), ends = loads && coming == n_segments - 1;
#pragma unroll 1
        for (int turn = 0; turn < 2; turn++) {
            if ((turn == 0) == compute_first) {
                if (now >= 0)
                    compute<R>(stage(n + 1), t, width, row0, min((int)SEGMENT, n_blocks - now * SEGMENT), total);
                continue;
            }
            if (n_stages == 1)
                __syncthreads();
            if (loads)
                load<R>(stage(n), o, of, coming, n_blocks, ends);
        }
        __pipeline_commit();
        if (now == n_segments - 1) {
            int columns = columns_of_warp(t, width), col0 = warp / 4 * columns;
            store(o, t, row0, col0, col0 + columns, total);
        }
        now = loads ? coming++ : -1;
        if (ends) {
            coming = 0;
            of.n++;
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
    cudaError_t e = allow_bytes(tiles<R>, bytes);
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

/* Does f(p, picks[p]) for a thread's share of the picks, of which some are asked for at a time. */
template <class F>
CU_INLINE void each_pick(const int32_t *picks, int n_picks, F f)
{
    enum { AT_ONCE = 8 };
    for (int first = threadIdx.x; first < n_picks; first += AT_ONCE * blockDim.x) {
        int32_t pick[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            pick[i] = picks[min(first + i * (int)blockDim.x, n_picks - 1)];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            if (first + i * (int)blockDim.x < n_picks)
                f(first + i * (int)blockDim.x, pick[i]);
    }
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
    each_pick(picks, n_picks, [&](int, int e) { atomicAdd(&count[e], 1); });
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
    int32_t *sorted = g->sorted;
    each_pick(picks, n_picks, [&](int p, int e) { sorted[atomicAdd(&next[e], 1)] = p; });
}

extern "C" cudaError_t pf_cu_group(cudaStream_t st, const int32_t *picks, int n_picks, int n_expert, int width,
                                   const uint8_t *const *only, struct cu_groups *g)
{
    size_t bytes = 2 * (size_t)n_expert * sizeof(int);
    return launch_in_turn(group, 1, 1024, bytes, st, picks, n_picks, n_expert, width, only, g);
}
