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
    FULL = 1, EMPTY = FULL + STAGES * GROUPS, AGREE = EMPTY + STAGES,          /* barriers */
    BEHIND = 1,                          /* stages between the one that is sent for and the one that is full */
    PRODUCER_REGISTERS = 40, CONSUMER_REGISTERS = 232,
    KEPT = 10                            /* of 16 times 8 columns: sums of whole segments that registers do not hold */
};

/* A warpgroup that takes more registers than others have given up waits for ever. */
static_assert(PRODUCER_REGISTERS + GROUPS * CONSUMER_REGISTERS <= (GROUPS + 1) * (65536 / THREADS / 8 * 8),
              "what a block begins with");

/* Where in shared memory what lies: in a stage, and behind the stages. */
enum {
    DA = 2 * LINES, ROWS = DA + BLOCKS * WIDTH * 4,
    STAGE_BYTES = (ROWS + TILE_M * SLOT + TILE_ALIGNMENT - 1) / TILE_ALIGNMENT * TILE_ALIGNMENT,
    SEGMENTS = STAGES * STAGE_BYTES,
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

/* What a thread of the producer brings of a tile. Neighbouring threads take neighbouring pieces of 16 bytes; where they
 * come from moves on with each stage, and where they go is the same in all stages.
 *
 *     of columns x / 4, 32 more, ..   pieces x % 4, 4 more, .. : one of each block
 *     of rows x / 2 and 64 more       pieces x % 2, 2 more, .. , from the one on in which the stage's first byte is */
struct way {
    enum { QUARTERS = WIDTH / 32, HALVES = TILE_M / 64 };
    const char    *column[QUARTERS];
    const uint8_t *row[HALVES];
    int            scales_row, n_columns;

    __device__ __forceinline__ void begin(const struct cu_tiles &o, const struct item &t)
    {
        int x = threadIdx.x % GROUP, last = o.part[t.part].n_out - 1 - t.r0;
        const uint8_t *w = weights_of(o, t);
        n_columns = t.n_columns;
        scales_row = row_of_column(o, t, min(x, t.n_columns - 1));
#pragma unroll
        for (int i = 0; i < QUARTERS; i++)
            column[i] = (const char *)o.halves + x % 4 * 16 +
                        (size_t)row_of_column(o, t, min(x / 4 + 32 * i, t.n_columns - 1)) * (uint32_t)(2 * o.n);
#pragma unroll
        for (int i = 0; i < HALVES; i++)
            row[i] = w + (size_t)((uint32_t)min(x / 2 + 64 * i, last) * (uint64_t)o.row_bytes);
    }

    /* Sends for the activations of the next n blocks. Columns that a tile lacks repeat its last, up to whole 32. */
    __device__ __forceinline__ void send_columns(int n, char *lines)
    {
        int x = threadIdx.x % GROUP, c = x / 4;
        char *even = lines + c * LINE + (x % 4 ^ c % 8) * 16, *odd = lines + c * LINE + ((x % 4 + 4) ^ c % 8) * 16;
#pragma unroll
        for (int i = 0; i < QUARTERS; i++) {
            if (32 * i < n_columns)
#pragma unroll
                for (int k = 0; k < BLOCKS; k++)
                    if (k < n)
                        __pipeline_memcpy_async((k % 2 ? odd : even) + k / 2 * LINES + 32 * i * LINE,
                                                column[i] + 64 * k, 16);
            column[i] += BLOCKS * 64;
        }
    }

    /* Sends for the next n quantised blocks of the rows. */
    __device__ __forceinline__ void send_rows(int n, char *slots)
    {
        int x = threadIdx.x % GROUP;
#pragma unroll
        for (int i = 0; i < HALVES; i++) {
            int skip = (int)((uintptr_t)row[i] & 15);
            const uint8_t *from = row[i] - skip + x % 2 * 16;
            char *to = slots + (x / 2 + 64 * i) * SLOT + x % 2 * 16;
#pragma unroll
            for (int at = 0; at < PIECES * 16; at += 32)
                if (at + x % 2 * 16 < skip + n * BLOCK_BYTES)
                    __pipeline_memcpy_async(to + at, from + at, 16);
            row[i] += BLOCKS * BLOCK_BYTES;
        }
    }
};

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
CU_INLINE void produce(const struct cu_tiles &o, int n_row_tiles, struct turns all, char *shared)
{
    int n_stages = stages_of(o), full = 0;
    struct way w = {};
    struct scales of = { {}, NULL };
    for (int n = 0, i = blockIdx.x, j = 0; n < all.n_left + BEHIND; n++) {
        of.store();
        __syncwarp();                    /* barriers are for warps whose lanes are together */
        if (n < all.n_left) {
            char *stage = shared + all.stage * STAGE_BYTES;
            if (j == 0)
                w.begin(o, item_at(o, n_row_tiles, WIDTH, i));
            if (n >= STAGES)
                meet(EMPTY + all.stage, THREADS);
            int n_blocks = min(o.n / 32 - j * BLOCKS, (int)BLOCKS);
            w.send_columns(n_blocks, stage);
            if ((int)threadIdx.x % GROUP < w.n_columns)
                of.fetch(o, w.scales_row, j, stage);
            w.send_rows(n_blocks, stage + ROWS);
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
 * dw are halves; so fmaf(da, dw * isum, s) is fmaf(dw * da, isum, s). All of a warpgroup fold, or none: its warps begin
 * each product together. */
CU_INLINE bool folds(const char *stage, const int (&at)[2], int n)
{
    int k = threadIdx.x % 4 < n ? threadIdx.x % 4 : 0;
    uint32_t e0 = (uint8_t)stage[at[0] + BLOCK_BYTES * k], e1 = (uint8_t)stage[at[1] + BLOCK_BYTES * k];
    return all_agree(AGREE + threadIdx.x / GROUP, GROUP, e0 - LEAST <= MOST - LEAST && e1 - LEAST <= MOST - LEAST);
}

/* Halves of E2M1 * 2^-14, of which `sign` has the signs where they belong and `rest` the rest, times a factor. */
CU_INLINE uint32_t pair(uint32_t sign, uint32_t rest, uint32_t factor)
{
    return halves_fma((sign & 0x80008000) | (rest & 0x0e000e00), factor, 0);
}

/* Block k of a stage, of the two rows whose bytes begin at at[0] and at[1]. */
template <bool FOLDED>
CU_INLINE void read_block(const char *stage, const int (&at)[2], int k, struct operand &to)
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        uint32_t e = (uint8_t)stage[at[r] + BLOCK_BYTES * k], factor = ((FOLDED ? e : MOST) - 98) * 0x04000400,
                 w = word_at(stage, at[r] + 1 + 4 * (threadIdx.x % 4), 4 * k, k);
        to.dw[r] = mx_scale((uint8_t)e);
        to.put(r, pair(w << 12, w << 9, factor), pair(w << 4, w << 1, factor), pair(w << 8, w << 5, factor),
               pair(w, w >> 3, factor));
    }
}

/* Begins a block's product with 64 columns, the first or the others. */
CU_INLINE void begin_product(float (&isum)[8][4], const struct operand &w, const char *stage, int k, int half)
{
    group_begin();
#pragma unroll
    for (int i = 0; i < 2; i++)
        half_product<8>(isum, w.a[i], lines_of(stage + k / 2 * LINES + half * 64 * LINE, k % 2 * 64 + i * 32), i > 0);
    group_commit();
}

/* A block's terms of 64 columns, to s, or with `begins` to 0; da: of the thread's columns. */
template <bool FOLDED, int N>
CU_INLINE void add_terms(float (&s)[N][4], bool begins, int half, const float (&isum)[8][4], const struct operand &w,
                         const float4 *da)
{
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
        float4 d = da[2 * (8 * half + j)];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float x = i / 4 ? i % 2 ? d.w : d.z : i % 2 ? d.y : d.x, &to = s[(8 * half + j + i / 4) % N][i % 4];
            to = fmaf(FOLDED ? x : w.dw[i % 4 / 2] * x, isum[j + i / 4][i % 4], begins ? 0.0f : to);
        }
    }
}

CU_INLINE const float4 *da_of(const char *stage, int k)
{
    return (const float4 *)(stage + DA + k * WIDTH * 4) + threadIdx.x % 4;
}

/* A whole stage whose scales are in the codes, straight on: while the terms of one half of the columns are added, the
 * product of the other half runs, or the next block's. begins: the segment does. never: see keep(). */
template <int N>
CU_INLINE void add_stage(float (&s)[N][4], bool begins, const char *stage, const int (&at)[2], bool never)
{
    enum { BOTH = N > 8 };
    struct operand w[2];
    float first[8][4], other[8][4];
    read_block<true>(stage, at, 0, w[0]);
    begin_product(first, w[0], stage, 0, 0);
    if (BOTH)
        begin_product(other, w[0], stage, 0, 1);
#pragma unroll
    for (int k = 0; k < BLOCKS; k++) {
        struct operand &now = w[k % 2], &next = w[(k + 1) % 2];
        const bool more = k + 1 < BLOCKS;
        if (more)
            read_block<true>(stage, at, k + 1, next);
        group_wait<BOTH>(first);
        add_terms<true>(s, begins && k == 0, 0, first, now, da_of(stage, k));
        if (more)
            begin_product(first, next, stage, k + 1, 0);
        if (BOTH && more)
            group_wait<1>(other);
        if (BOTH && !more)
            group_wait(other);
        keep(now.a[0], never);
        keep(now.a[1], never);
        if (BOTH)
            add_terms<true>(s, begins && k == 0, 1, other, now, da_of(stage, k));
        if (BOTH && more)
            begin_product(other, next, stage, k + 1, 1);
    }
}

/* The n blocks of any stage, one by one. */
template <int N>
CU_INLINE void add_blocks(float (&s)[N][4], const char *stage, const int (&at)[2], int n, bool never)
{
#pragma unroll 1
    for (int k = 0; k < n; k++) {
        struct operand w;
        float isum[8][4];
        read_block<false>(stage, at, k, w);
#pragma unroll
        for (int half = 0; half < N / 8; half++) {
            begin_product(isum, w, stage, k, half);
            group_wait(isum);
            add_terms<false>(s, false, half, isum, w, da_of(stage, k));
        }
        keep(w.a[0], never);
        keep(w.a[1], never);
    }
}

/* The n blocks b .. of a stage. */
template <int N>
CU_INLINE void add(float (&s)[N][4], bool begins, const char *stage, const uint32_t (&low)[2], int b, int n, bool never)
{
    int lane = threadIdx.x % WARP, slot = ROWS + (threadIdx.x / WARP * 16 + lane / 4) * SLOT;
    const int at[2] = { slot + (int)((low[0] + b * BLOCK_BYTES) & 15),
                        slot + 8 * SLOT + (int)((low[1] + b * BLOCK_BYTES) & 15) };
    if (n == BLOCKS && folds(stage, at, n)) {
        add_stage(s, begins, stage, at, never);
        return;
    }
    if (begins)
#pragma unroll
        for (int i = 0; i < 4 * N; i++)
            s[i / 4][i % 4] = 0;
    add_blocks(s, stage, at, n, never);
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
    auto add_next = [&](int b, bool begins) {
        meet(FULL + all.stage * GROUPS + group, 2 * GROUP);
        add(s, begins, shared + all.stage * STAGE_BYTES, low, b, min(n_blocks - b, (int)BLOCKS), o.n < 0);
        if (all.n_left > STAGES)
            arrive(EMPTY + all.stage, THREADS);
        all.next();
    };
#pragma unroll 1
    for (int b = 0; b < n_blocks; b += 2 * BLOCKS) {
        add_next(b, true);
        if (b + BLOCKS < n_blocks)
            add_next(b + BLOCKS, false);
        segments.add(s);
    }
    segments.take(total[0]);
    store(o, t, threadIdx.x / WARP * 16, 0, WIDTH, total);
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
        produce(o, n_row_tiles, all, shared);
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
