/* Tiles of products by warpgroups, in the order of docs/numerics.md: MXFP4, on GPUs of generation 9.0.
 *
 * Codes of weights and activations are whole numbers that halves hold exactly, so products of halves with float32
 * sums give a block's integer sum as a float, and nothing is left to convert. Scales are powers of two and go into the
 * codes; then the float step is one fmaf an output.
 *
 *     a tile      128 weight rows x 128 columns (rows of the batch, or picks of one expert)
 *     producer    a warpgroup: quantised rows as they lie, activations as halves; half a segment, a stage, ahead
 *     consumers   two warpgroups of 64 rows: a warp makes its 16 rows' operand in registers from the quantised bytes,
 *                 while the product of the block before runs
 *
 *                 | full     ^ empty                        a stage is: who goes on calls arrive(), who waits meet()
 *
 *     a stage     lines of x   [2][128 columns] of 128 bytes, two blocks each; pieces of 16 swapped as lines_of says
 *                 da           [4 blocks][128]; columns 16 i + 8 h + 2 t + e at 16 i + 4 t + 2 h + e: a thread reads
 *                              four at a time
 *                 rows         [128] quantised, each from the 16 bytes on in which its first byte lies
 *
 * Where a sum's terms stand within a block of 32 is free. A thread of a quad, t, has the elements 4 t .. 4 t + 3 and
 * 16 more of a row, in pairs two apart, since those lie in one word's halves once it is masked:
 *
 *     position   2 t, 2 t + 1     8 + 2 t, + 1         of the first sixteen; the second sixteen 16 elements on
 *     element    4 t, 4 t + 2     4 t + 1, 4 t + 3 */
#include <cuda_pipeline.h>

#include "kernels/cuda/cu_tile.h"

enum {
    GROUP = 4 * WARP, GROUPS = 2, CONSUMERS = GROUPS * GROUP, THREADS = CONSUMERS + GROUP, STAGES = 3,
    WIDTH = TILE_GROUP_WIDTH,
    BLOCKS = 4, LINE = 128, LINES = WIDTH * LINE,        /* of a stage, half a segment; lines hold two blocks */
    BLOCK_BYTES = 17, SLOT = 112, PIECES = (15 + BLOCKS * BLOCK_BYTES + 15) / 16,          /* of a row in a stage */
    FULL = 1, EMPTY = FULL + STAGES * GROUPS, PRODUCERS = EMPTY + STAGES,      /* barriers */
    BEHIND = 1,                          /* stages between the one that is sent for and the one that is full */
    PRODUCER_REGISTERS = 40, CONSUMER_REGISTERS = 232,
    KEPT = 14                            /* of 16 times 8 columns: sums of whole segments that registers do not hold */
};

/* Where in shared memory what lies: in a stage, and behind the stages. */
enum {
    DA = 2 * LINES, ROWS = DA + BLOCKS * WIDTH * 4,
    STAGE_BYTES = (ROWS + TILE_M * SLOT + TILE_ALIGNMENT - 1) / TILE_ALIGNMENT * TILE_ALIGNMENT,
    X_ROWS = STAGES * STAGE_BYTES, SEGMENTS = X_ROWS + WIDTH * 4,
    ALL_BYTES = SEGMENTS + KEPT * CONSUMERS * 16 + TILE_ALIGNMENT
};

/* How often and where a block of threads turns to the next stage. */
struct turns {
    int stage, n_left;                   /* of all stages of all tiles */

    __device__ __forceinline__ void next(void)
    {
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        n_left--;
    }
};

CU_INLINE int stages_of(const struct cu_tiles &o)
{
    return (o.n / 32 + BLOCKS - 1) / BLOCKS;
}

/* ---- The producer ------------------------------------------------------------------------------------------------ */

/* Sends for the quantised blocks b .. b + n - 1 of a tile's rows; neighbouring threads take neighbouring pieces. */
CU_INLINE void copy_rows(const struct cu_tiles &o, const uint8_t *w, int last, int b, int n, char *slots)
{
#pragma unroll 2
    for (int i = threadIdx.x % GROUP; i < TILE_M * PIECES; i += GROUP) {
        int row = i / PIECES, at = i % PIECES * 16;
        const uint8_t *from = w + (size_t)((uint32_t)min(row, last) * (uint64_t)o.row_bytes) + b * BLOCK_BYTES;
        int skip = (int)((uintptr_t)from & 15);
        if (at < skip + n * BLOCK_BYTES)
            __pipeline_memcpy_async(slots + row * SLOT + at, from - skip + at, 16);
    }
}

/* Sends for the activations of blocks b .. b + n - 1. x_row: rows that columns read. */
CU_INLINE void copy_columns(const struct cu_tiles &o, const int *x_row, int n_columns, int b, int n, char *lines)
{
    int x = threadIdx.x % GROUP, piece = x % 16, c = x / 16;
    const char *halves = (const char *)o.halves + (size_t)b * 64 + piece * 16;
    char *to = lines + piece / 8 * LINES + c * LINE + (piece % 8 ^ c) * 16;
    if (piece / 4 < n)
#pragma unroll 4
        for (; c < n_columns; c += 8, to += 8 * LINE)
            __pipeline_memcpy_async(to, halves + (size_t)x_row[c] * (uint32_t)(2 * o.n), 16);
}

/* A column's scales of a stage: fetched with one stage, stored with the next, when they have come. */
struct scales {
    float4 da;
    char  *to;                           /* NULL: none have been fetched */

    __device__ __forceinline__ void fetch(const struct cu_tiles &o, int row, int stage, char *at)
    {
        int x = threadIdx.x % GROUP;
        da = ((const float4 *)o.scales)[(size_t)row * stages_of(o) + stage];
        to = at + DA + (x / 16 * 16 + x % 8 / 2 * 4 + x / 8 % 2 * 2 + x % 2) * 4;
    }
    __device__ __forceinline__ void store(void)
    {
        enum { STEP = WIDTH * 4 };
        if (!to)
            return;
        *(float *)to = da.x, *(float *)(to + STEP) = da.y;
        *(float *)(to + 2 * STEP) = da.z, *(float *)(to + 3 * STEP) = da.w;
        to = NULL;
    }
};

/* A stage is said to be full when the next has been sent for, before room for one more is waited for: the
 * consumers have it when they come to it. */
CU_INLINE void produce(const struct cu_tiles &o, int n_row_tiles, struct turns all, char *shared, int *x_row)
{
    int x = threadIdx.x % GROUP, n_stages = stages_of(o), full = 0, last = 0;
    struct item t = {};
    struct scales of = { {}, NULL };
    const uint8_t *w = NULL;
    for (int n = 0, i = blockIdx.x, j = 0; n < all.n_left + BEHIND; n++) {
        of.store();
        __syncwarp();                    /* barriers are for warps whose lanes are together */
        if (n < all.n_left) {
            char *stage = shared + all.stage * STAGE_BYTES;
            if (j == 0) {
                t = item_at(o, n_row_tiles, WIDTH, i);
                w = weights_of(o, t);
                last = o.part[t.part].n_out - 1 - t.r0;
                meet(PRODUCERS, GROUP);
                if (x < t.n_columns)
                    x_row[x] = row_of_column(o, t, x);
                __syncwarp();
                meet(PRODUCERS, GROUP);
            }
            if (n >= STAGES)
                meet(EMPTY + all.stage, THREADS);
            int b = j * BLOCKS, n_blocks = min(o.n / 32 - b, (int)BLOCKS);
            copy_columns(o, x_row, t.n_columns, b, n_blocks, stage);
            if (x < t.n_columns)
                of.fetch(o, x_row[x], j, stage);
            copy_rows(o, w, last, b, n_blocks, stage + ROWS);
            all.stage = all.stage + 1 == STAGES ? 0 : all.stage + 1;
            if (++j == n_stages)
                j = 0, i += gridDim.x;
        }
        __pipeline_commit();
        if (n < BEHIND)
            continue;
        __pipeline_wait_prior(BEHIND);
        show_tiles();
        __syncwarp();
#pragma unroll
        for (int g = 0; g < GROUPS; g++)
            arrive(FULL + full * GROUPS + g, 2 * GROUP);
        full = full + 1 == STAGES ? 0 : full + 1;
    }
}

/* ---- The consumers ----------------------------------------------------------------------------------------------- */

/* What a thread has of a block of two weight rows, eight apart: of the first sixteen elements and of the others. */
struct operand {
    uint32_t a[2][4];
    float    dw[2];                      /* read only where codes are not multiplied by it */

    /* Eight codes of a row, in pairs, to where they belong. */
    __device__ __forceinline__ void put(int row, uint32_t p0, uint32_t p1, uint32_t p2, uint32_t p3)
    {
        a[0][row] = p0, a[0][2 + row] = p1, a[1][row] = p2, a[1][2 + row] = p3;
    }
};

/* A word at any address of a stage: `at` + 4 `words` + `bytes`, the last two known to the compiler. */
CU_INLINE uint32_t word_at(const char *stage, int at, int words, int bytes)
{
    const uint32_t *p = (const uint32_t *)(stage + (at + bytes & ~3)) + words;
    return __funnelshift_r(p[0], p[1], 8 * (uint32_t)at + 8 * bytes);
}

enum { LEAST = 109, MOST = 128 };       /* exponents of scales that are multiplied into codes */

/* dw is 2^(e - 128). With e in LEAST .. MOST, dw * da is not rounded, since da is 0 or over 2^-107, and codes times
 * dw are halves; so fmaf(da, dw * isum, s) is fmaf(dw * da, isum, s). All of a warp fold, or none. */
CU_INLINE bool folds(const char *stage, const int (&at)[2], int n)
{
    int k = threadIdx.x % 4 < n ? threadIdx.x % 4 : 0;
    uint32_t e0 = (uint8_t)stage[at[0] + BLOCK_BYTES * k], e1 = (uint8_t)stage[at[1] + BLOCK_BYTES * k];
    return !__ballot_sync(ALL_LANES, e0 - LEAST > MOST - LEAST || e1 - LEAST > MOST - LEAST);
}

/* Halves of E2M1 * 2^-14, of which `sign` has the signs where they belong and `rest` the rest, times a factor. */
CU_INLINE uint32_t pair(uint32_t sign, uint32_t rest, uint32_t factor)
{
    return halves_fma((sign & 0x80008000) | (rest & 0x0e000e00), factor, 0);
}

/* Block k of a stage, of the two rows whose bytes begin at at[0] and at[1]. */
CU_INLINE void read_block(const char *stage, const int (&at)[2], int k, bool folded, struct operand &to)
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        uint32_t e = (uint8_t)stage[at[r] + BLOCK_BYTES * k], factor = ((folded ? e : MOST) - 98) * 0x04000400,
                 w = word_at(stage, at[r] + 1 + 4 * (threadIdx.x % 4), 4 * k, k);
        to.dw[r] = mx_scale((uint8_t)e);
        to.put(r, pair(w << 12, w << 9, factor), pair(w << 4, w << 1, factor), pair(w << 8, w << 5, factor),
               pair(w, w >> 3, factor));
    }
}

/* A block's terms. da: of the thread's columns. */
template <bool FOLDED, int N>
CU_INLINE void add_terms(float (&s)[N][4], const float (&isum)[N][4], const struct operand &w, const float4 *da)
{
    float dw[2] = { FOLDED ? 0 : w.dw[0], FOLDED ? 0 : w.dw[1] };
#pragma unroll
    for (int j = 0; j < N; j += 2) {
        float4 d = da[2 * j];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float x = i / 4 ? i % 2 ? d.w : d.z : i % 2 ? d.y : d.x, &to = s[j + i / 4][i % 4];
            to = fmaf(FOLDED ? x : dw[i % 4 / 2] * x, isum[j + i / 4][i % 4], to);
        }
    }
}

/* The n blocks b .. of a stage. never: see keep(). */
template <int N>
CU_INLINE void add_stage(float (&s)[N][4], const char *stage, const uint32_t (&low)[2], int b, int n, bool never)
{
    int lane = threadIdx.x % WARP, slot = ROWS + (threadIdx.x / WARP * 16 + lane / 4) * SLOT;
    const int at[2] = { slot + (int)((low[0] + b * BLOCK_BYTES) & 15),
                        slot + 8 * SLOT + (int)((low[1] + b * BLOCK_BYTES) & 15) };
    struct operand w, next;
    bool folded = folds(stage, at, n);
    read_block(stage, at, 0, folded, w);
#pragma unroll
    for (int k = 0; k < BLOCKS; k++) {
        if (k >= n)
            break;
        const float4 *da = (const float4 *)(stage + DA + k * WIDTH * 4) + lane % 4;
        float isum[N][4];
        group_begin();
#pragma unroll
        for (int i = 0; i < 2; i++)
            half_product<N>(isum, w.a[i], lines_of(stage + k / 2 * LINES, k % 2 * 64 + i * 32), i > 0);
        group_commit();
        if (k + 1 < BLOCKS && k + 1 < n)
            read_block(stage, at, k + 1, folded, next);
        group_wait(isum);
        keep(w.a[0], never);
        keep(w.a[1], never);
        if (folded)
            add_terms<true>(s, isum, w, da);
        else
            add_terms<false>(s, isum, w, da);
        w = next;
    }
}

/* The sums of whole segments of a thread, those of the first K times 8 columns in shared memory: with them in registers
 * others would go to local memory, thus to the second cache, which has enough to do. */
template <int N, int K> struct totals {
    float4 *kept;
    float   v[N - K][4];

    __device__ __forceinline__ void clear(char *memory)
    {
        kept = (float4 *)memory + threadIdx.x;
#pragma unroll
        for (int j = 0; j < K; j++)
            kept[j * CONSUMERS] = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int i = 0; i < 4 * (N - K); i++)
            v[i / 4][i % 4] = 0;
    }
    __device__ __forceinline__ void add(const float (&s)[N][4])
    {
#pragma unroll
        for (int j = 0; j < K; j++) {
            float4 t = kept[j * CONSUMERS];
            kept[j * CONSUMERS] = make_float4(t.x + s[j][0], t.y + s[j][1], t.z + s[j][2], t.w + s[j][3]);
        }
#pragma unroll
        for (int i = 4 * K; i < 4 * N; i++)
            v[i / 4 - K][i % 4] = v[i / 4 - K][i % 4] + s[i / 4][i % 4];
    }
    __device__ __forceinline__ void take(float (&to)[N][4]) const
    {
#pragma unroll
        for (int j = 0; j < K; j++) {
            float4 t = kept[j * CONSUMERS];
            to[j][0] = t.x, to[j][1] = t.y, to[j][2] = t.z, to[j][3] = t.w;
        }
#pragma unroll
        for (int i = 4 * K; i < 4 * N; i++)
            to[i / 4][i % 4] = v[i / 4 - K][i % 4];
    }
};

/* A tile of up to 8 N columns. */
template <int N>
CU_INLINE void compute(const struct cu_tiles &o, const struct item &t, struct turns &all, int group, char *shared)
{
    int n_blocks = o.n / 32, row = threadIdx.x / WARP * 16 + threadIdx.x % WARP / 4,
        last = o.part[t.part].n_out - 1 - t.r0;
    uint32_t base = (uint32_t)(uintptr_t)weights_of(o, t), row_bytes = (uint32_t)o.row_bytes;
    const uint32_t low[2] = { base + min(row, last) * row_bytes, base + min(row + 8, last) * row_bytes };
    struct totals<N, N == WIDTH / 8 ? KEPT : 0> segments;
    float s[N][4], total[1][N][4];
    segments.clear(shared + SEGMENTS);
#pragma unroll 1
    for (int b = 0; b < n_blocks; b += BLOCKS) {
        meet(FULL + all.stage * GROUPS + group, 2 * GROUP);
        if (b % 8 == 0)
#pragma unroll
            for (int i = 0; i < 4 * N; i++)
                s[i / 4][i % 4] = 0;
        add_stage(s, shared + all.stage * STAGE_BYTES, low, b, min(n_blocks - b, (int)BLOCKS), o.n < 0);
        if (all.n_left > STAGES)
            arrive(EMPTY + all.stage, THREADS);
        all.next();
        if (b % 8 != 0 || b + BLOCKS >= n_blocks)
            segments.add(s);
    }
    segments.take(total[0]);
    store(o, t, threadIdx.x / WARP * 16, 0, total);
}

/* ---- The kernel -------------------------------------------------------------------------------------------------- */

static __global__ void __launch_bounds__(THREADS, 1) by_groups(const __grid_constant__ struct cu_tiles o,
                                                               int n_row_tiles)
{
    BLOCK_MEMORY(float4, memory);
    wait_turn();
    char *shared = aligned_tiles((char *)memory);
    int n_items = n_items_of(o, n_row_tiles, WIDTH), group = uniform(threadIdx.x / GROUP), mine = blockIdx.x;
    struct turns all = { 0, mine < n_items ? ((n_items - 1 - mine) / (int)gridDim.x + 1) * stages_of(o) : 0 };
    if (group == GROUPS) {
        fewer_registers<PRODUCER_REGISTERS>();
        produce(o, n_row_tiles, all, shared, (int *)(shared + X_ROWS));
        return;
    }
    more_registers<CONSUMER_REGISTERS>();
#pragma unroll 1
    for (; mine < n_items; mine += gridDim.x) {
        struct item t = item_at(o, n_row_tiles, WIDTH, mine);
        if (t.n_columns > WIDTH / 2)
            compute<WIDTH / 8>(o, t, all, group, shared);
        else
            compute<WIDTH / 16>(o, t, all, group, shared);
    }
}

/* Sixteen and eight of the codes that bytes are, as pairs of halves: a byte behind 0x64 is 1,024 more than it was. */
CU_INLINE uint32_t even_bytes(uint32_t w)
{
    return halves_fma(permute(w ^ 0x80808080, 0x64646464, 0x4240), 0x3c003c00, 0xe480e480);
}

CU_INLINE uint32_t odd_bytes(uint32_t w)
{
    return halves_fma(permute(w ^ 0x80808080, 0x64646464, 0x4341), 0x3c003c00, 0xe480e480);
}

/* Activations as halves, in the order of positions above, and da by stages. A thread has sixteen. */
static __global__ void widen(const __grid_constant__ struct cu_tiles o, int64_t n)
{
    wait_turn();
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    uint4 q = ((const uint4 *)o.x.q)[i];
    uint4 *to = (uint4 *)o.halves + 2 * i;
    to[0] = make_uint4(even_bytes(q.x), even_bytes(q.y), even_bytes(q.z), even_bytes(q.w));
    to[1] = make_uint4(odd_bytes(q.x), odd_bytes(q.y), odd_bytes(q.z), odd_bytes(q.w));
    int64_t block = i / 2, n_blocks = o.n / 32;
    if (i % 2 == 0)
        o.scales[block / n_blocks * stages_of(o) * BLOCKS + block % n_blocks] = o.x.d[block];
}

extern "C" bool pf_cu_has_tile_groups(size_t shared_bytes)
{
    return ALL_BYTES <= shared_bytes && has_groups(by_groups);
}

extern "C" bool pf_cu_takes_tile_groups(enum pf_qtype type)
{
    return type == PF_MXFP4;
}

extern "C" cudaError_t pf_cu_tile_groups(cudaStream_t st, const struct cu_tiles *o, int n_row_tiles, int n_blocks)
{
    enum { WIDENERS = 256 };
    int64_t rows = o->groups ? o->n_columns / o->x_divisor : o->n_columns, n = rows * (o->n / 16);
    cudaError_t e = allow_bytes(by_groups, ALL_BYTES);
    if (e == cudaSuccess)
        e = launch_early(widen, ceil_div(n, WIDENERS), WIDENERS, 0, st, *o, n);
    return e != cudaSuccess ? e : launch_early(by_groups, n_blocks, THREADS, ALL_BYTES, st, *o, n_row_tiles);
}
