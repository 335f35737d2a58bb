/* Weight rows times one row of activations, in the order of docs/numerics.md.
 *
 * The work is cut into tasks of a warp: four weight rows and a round of 32 blocks of 32, that is four segments.
 *
 *     lanes      0..7         8..15        16..23       24..31          first a block a lane: the terms it adds
 *                segment      segment      segment      segment
 *     then       lane 4 r + g runs the chain of segment g of row r, over the terms that eight lanes left in shared
 *                memory
 *     at last    a thread a row adds up its segments, left to right
 *
 * Which lane reads which bytes of a block is up to the type: lanes of a segment may share loads and exchange partial
 * integer sums, which are exact in any order. Activations are loaded once for the four rows.
 *
 * A decoded token runs a product's code once or twice on a multiprocessor, one instruction after the other. Few rows a
 * task keep the code and that wait short, and leave tasks for many warps. A warp may send for the weights of its first
 * task before the activations are there. */
#ifndef PF_CU_DOT_H
#define PF_CU_DOT_H

#include <cuda_pipeline.h>

#include "kernels/cuda/cu_dot_types.h"

/* ---- Tasks ------------------------------------------------------------------------------------------------------- */

/* The terms of four rows, term t of the chain of lane l at [t][l]. The width spreads what eight neighbouring lanes
 * write over the banks. */
enum { TASK_ROWS = 4, CHAINS = 4 * TASK_ROWS, CHAIN_WIDTH = CHAINS + 2, CHAIN_FLOATS = 2 * 8 * CHAIN_WIDTH };

/* Where rows of one matrix begin; rows past the last are read as the last, and their results are not looked at. */
struct row_set {
    const uint8_t *base;
    uint64_t       row_bytes;
    int            last;
};

CU_INLINE const uint8_t *row_of(const struct row_set &w, int r)
{
    return w.base + (uint64_t)(uint32_t)min(r, w.last) * (uint32_t)w.row_bytes;
}

/* Bytes that rows of one matrix take in shared memory, wherever they begin. */
CU_HOST_FN int staged_bytes(int n_rows, uint64_t row_bytes)
{
    return (int)(n_rows * row_bytes + 31) / 16 * 16;
}

/* Starts copying bytes from any address to a piece of shared memory that begins at a multiple of 16; the first lies at
 * `to` plus what the address is past such a multiple. */
CU_INLINE void stage(uint8_t *to, const uint8_t *from, int bytes)
{
    int skip = (int)((uintptr_t)from & 15);
#pragma unroll 1
    for (int i = 16 * (int)(threadIdx.x % WARP); i < skip + bytes; i += 16 * WARP)
        __pipeline_memcpy_async(to + i, from - skip + i, 16);
}

/* Quantised type T. */
template <class T>
struct quantised {
    typedef quantised staged;
    static constexpr bool is_staged = false;
    enum { ROWS = TASK_ROWS, STAGE_BYTES = T::STAGED ? (T::STAGED + 15) / 16 * 16 + 16 : 0 };
    enum { TERM_FLOATS = CHAIN_FLOATS * (T::second ? 2 : 1), WARP_FLOATS = TERM_FLOATS + TASK_ROWS * STAGE_BYTES / 4 };
    CU_HOST_FN int n_rounds(int n) { return (n + 1023) / 1024; }
    CU_HOST_FN int n_sums(int n) { return (n + 255) / 256; }

    /* Bytes of 32 blocks in rows of n elements. */
    static CU_READ_FN uint32_t bytes_of_32(uint64_t row_bytes, int n)
    {
        return T::ROUND ? (uint32_t)T::ROUND : (uint32_t)row_bytes * 32 / (uint32_t)(n / 32);
    }

    /* Block of this lane in a round of n_blocks. */
    static CU_READ_FN int my_block(int n_blocks)
    {
        int b = threadIdx.x % WARP;
        if (b < n_blocks)
            return b;
        return T::whole_segments ? n_blocks - 8 + b % 8 : n_blocks - 1;
    }

    /* Where the round begins in row r. */
    static CU_READ_FN const uint8_t *at(const struct row_set &w, int r, size_t round_bytes)
    {
        return row_of(w, r) + round_bytes;
    }

    static CU_READ_FN void put(const struct term &v, int i, bool there, float2 *terms)
    {
        int to = threadIdx.x % 8 * CHAIN_WIDTH + 4 * i + threadIdx.x % WARP / 8;
        terms[to] = make_float2(v.p, there ? v.f : 0.0f);
        if (T::second)
            terms[8 * CHAIN_WIDTH + to] = make_float2(v.m, there ? v.g : 0.0f);
    }

    /* The terms of a lane's block b of all rows, which are on their way to shared memory. */
    static CU_READ_FN void staged_terms(const struct row_set &w, int r0, size_t round_bytes, const struct x_row &x,
                                        int b, int xb, bool there, const struct cu_tables &t, const uint8_t *staged,
                                        float2 *terms)
    {
        typename T::side side = T::load_x(x, xb);
        __pipeline_wait_prior(0);
        __syncwarp();
#pragma unroll 2
        for (int i = 0; i < TASK_ROWS; i++) {
            int skip = (int)((uintptr_t)at(w, r0 + i, round_bytes) & 15);
            put(T::dot(T::load(staged + i * STAGE_BYTES + skip, b, t), side, b), i, there, terms);
        }
    }

    static CU_READ_FN void loaded_terms(const typename T::raw (&raw)[TASK_ROWS], const struct x_row &x, int b, int xb,
                                        bool there, float2 *terms)
    {
        typename T::side side = T::load_x(x, xb);
#pragma unroll
        for (int i = 0; i < TASK_ROWS; i++)
            put(T::dot(raw[i], side, b), i, there, terms);
    }

    /* The sum of a chain; WIDTH: from one term of it to the next. */
    template <int WIDTH = CHAIN_WIDTH>
    static CU_READ_FN float run_chain(const float2 *terms, int chain)
    {
        float s = 0;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float2 v = terms[i * WIDTH + chain];
            s = fmaf(v.x, v.y, s);
            if (T::second) {
                v = terms[(8 + i) * WIDTH + chain];
                s = fmaf(v.x, v.y, s);
            }
        }
        return s;
    }

    /* Segment sums of a round's terms of four rows go to sums[row][segment]. */
    static CU_READ_FN void run_chains(const float2 *terms, int n, int round, float *sums)
    {
        int lane = threadIdx.x % WARP, segment = 4 * round + lane % 4, stride = n_sums(n);
        float s = run_chain(terms, lane % CHAINS);
        if (segment < stride && lane < CHAINS)
            sums[lane / 4 * stride + segment] = s;
    }

    /* A task's weights on their way: in registers, or to shared memory. */
    struct ahead {
        typename T::raw raw[T::STAGED ? 1 : TASK_ROWS];
    };

    static CU_READ_FN int n_blocks_of(int n, int round)
    {
        return min(n / 32 - round * WARP, (int)WARP);
    }

    /* Sends for the weights of rows r0 .. r0 + 3 in `round`. */
    static CU_READ_FN void begin(const struct row_set &w, int r0, int n, int round, const struct cu_tables &t,
                                 float *warp_memory, struct ahead &of)
    {
        int n_blocks = n_blocks_of(n, round), b = my_block(n_blocks);
        uint32_t bytes_32 = bytes_of_32(w.row_bytes, n);
        size_t round_bytes = (size_t)bytes_32 * round;
        uint8_t *staged = (uint8_t *)(warp_memory + TERM_FLOATS);
        if (T::STAGED) {
            __syncwarp();
#pragma unroll 1
            for (int i = 0; i < TASK_ROWS; i++)
                stage(staged + i * STAGE_BYTES, at(w, r0 + i, round_bytes), (bytes_32 * n_blocks + 31) / 32);
            __pipeline_commit();
        } else {
#pragma unroll
            for (int i = 0; i < TASK_ROWS; i++)
                of.raw[T::STAGED ? 0 : i] = T::load(at(w, r0 + i, round_bytes), b, t);
        }
    }

    /* Sums of the four segments of `round` in those rows. */
    static CU_READ_FN void end(const struct row_set &w, int r0, const struct x_row &x, int n, int round,
                               const struct cu_tables &t, float *warp_memory, const struct ahead &of, float *sums)
    {
        int n_blocks = n_blocks_of(n, round), lane = threadIdx.x % WARP, b = my_block(n_blocks);
        float2 *terms = (float2 *)warp_memory;
        __syncwarp();
        if constexpr (T::STAGED)
            staged_terms(w, r0, (size_t)bytes_of_32(w.row_bytes, n) * round, x, b, round * WARP + b, lane < n_blocks, t,
                         (const uint8_t *)(warp_memory + TERM_FLOATS), terms);
        else
            loaded_terms(of.raw, x, b, round * WARP + b, lane < n_blocks, terms);
        __syncwarp();
        run_chains(terms, n, round, sums);
    }

    static CU_READ_FN float total(const float *sums, int n)
    {
        float total = 0;
#pragma unroll 2
        for (int i = 0; i < n_sums(n); i++)
            total = total + sums[i];
        return total;
    }
};

/* Float type L: a task is one row; lane i is accumulator i. STAGED: rows are in shared memory. */
template <class L, bool STAGED = false>
struct floats {
    typedef floats<L, true> staged;
    static constexpr bool is_staged = STAGED;
    enum { ROWS = 1, WARP_FLOATS = 0 };
    CU_HOST_FN int n_rounds(int) { return 1; }
    CU_HOST_FN int n_sums(int) { return 1; }

    static CU_READ_FN float element(const uint8_t *row, int e)
    {
        return STAGED ? L::shared(row, e) : L::at(row, e);
    }

    /* Goes on with the lane's sum from element e, AHEAD elements loaded at once, while that many are left. */
    template <int AHEAD>
    static CU_READ_FN void add(const uint8_t *row, const float *x, int n, int &e, float &sum)
    {
#pragma unroll 1
        for (; e - (int)(threadIdx.x % WARP) + AHEAD * WARP <= n; e += AHEAD * WARP) {
            float a[AHEAD], b[AHEAD];
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                a[i] = element(row, e + i * WARP);
                b[i] = x[e + i * WARP];
            }
#pragma unroll
            for (int i = 0; i < AHEAD; i++)
                sum = fmaf(a[i], b[i], sum);
        }
    }

    struct ahead {};

    static CU_READ_FN void begin(const struct row_set &, int, int, int, const struct cu_tables &, float *,
                                 struct ahead &)
    {
    }

    static CU_READ_FN void end(const struct row_set &w, int r0, const struct x_row &x, int n, int round,
                               const struct cu_tables &t, float *memory, const struct ahead &, float *sums)
    {
        task(w, r0, x, n, round, t, memory, sums);
    }

    static CU_READ_FN void task(const struct row_set &w, int r0, const struct x_row &x, int n, int,
                                const struct cu_tables &, float *, float *sums)
    {
        const uint8_t *row = row_of(w, r0);
        int e = threadIdx.x % WARP;
        float sum = 0;
        add<16>(row, x.f, n, e, sum);
        add<4>(row, x.f, n, e, sum);
        add<1>(row, x.f, n, e, sum);
        if (e < n)
            sum = fmaf(element(row, e), x.f[e], sum);
        sum = warp_fold(sum);
        if (threadIdx.x % WARP == 0)
            sums[0] = sum;
    }

    static CU_READ_FN float total(const float *sums, int) { return sums[0]; }
};

/* a / b of numbers below 2^16: what is added keeps the quotient further from whole numbers than it may be off. */
CU_INLINE int quotient(int a, int b)
{
    return (int)__fdividef((float)a + 0.5f, (float)b);
}

/* A warp's place in n_groups groups of D::ROWS rows, whose tasks are spread over the warps of the block. */
template <class D>
struct tasks {
    int n, n_all, task, n_rounds;          /* columns; tasks; the warp's next one; of a group */
    struct row_set w;
    struct x_row   x;
    int            r0;
    typename D::ahead ahead;
};

/* Goes to the warp's next task from s.task on that has something to multiply, and sends for its weights. */
template <class D, class F>
CU_INLINE void next_task(struct tasks<D> &s, const struct cu_tables &t, float *memory, F place)
{
    for (; s.task < s.n_all; s.task += blockDim.x / WARP) {
        int g = quotient(s.task, s.n_rounds);
        if (!place(g, s.w, s.r0, s.x))
            continue;
        D::begin(s.w, s.r0, s.n, s.task - g * s.n_rounds, t, memory + threadIdx.x / WARP * D::WARP_FLOATS, s.ahead);
        return;
    }
}

/* A warp's first task of n_groups groups: its weights are sent for. place(g, w, r0, x) says what a group multiplies;
 * false: nothing, and it has no sums. x may be known later. */
template <class D, class F>
CU_INLINE void begin_tasks(struct tasks<D> &s, int n_groups, int n, const struct cu_tables &t, float *memory, F place)
{
    s.n = n, s.n_rounds = D::n_rounds(n), s.n_all = n_groups * s.n_rounds, s.task = threadIdx.x / WARP;
    next_task<D>(s, t, memory, place);
}

/* Runs what begin_tasks began; then every thread may read the sums of row r of group g at [g * D::ROWS + r]. memory:
 * shape_of's bytes. */
template <class D, class F>
CU_INLINE const float *end_tasks(struct tasks<D> &s, const struct cu_tables &t, float *memory, F place)
{
    float *sums = memory + blockDim.x / WARP * D::WARP_FLOATS;
#pragma unroll 1
    while (s.task < s.n_all) {
        int g = quotient(s.task, s.n_rounds);
        place(g, s.w, s.r0, s.x);
        D::end(s.w, s.r0, s.x, s.n, s.task - g * s.n_rounds, t, memory + threadIdx.x / WARP * D::WARP_FLOATS, s.ahead,
               sums + (size_t)g * D::ROWS * D::n_sums(s.n));
        s.task += blockDim.x / WARP;
        next_task<D>(s, t, memory, place);
    }
    __syncthreads();
    return sums;
}

template <class D, class F>
CU_INLINE const float *run_tasks(int n_groups, int n, const struct cu_tables &t, float *memory, F place)
{
    struct tasks<D> s;
    begin_tasks<D>(s, n_groups, n, t, memory, place);
    return end_tasks<D>(s, t, memory, place);
}

/* The shape of a block that runs n_groups groups of rows: as many warps, up to MOST, as share their tasks evenly. */
enum { MOST_THREADS = 8 * WARP };
struct block_shape {
    int    threads;
    size_t bytes;
};

template <class D, int MOST = MOST_THREADS / WARP>
static struct block_shape shape_of(int n_groups, int n)
{
    int n_tasks = n_groups * D::n_rounds(n), best = 1;
    for (int w = 1; w <= MOST && w <= n_tasks; w++)
        if (ceil_div(n_tasks, w) < ceil_div(n_tasks, best))
            best = w;
    return { best * WARP, ((size_t)best * D::WARP_FLOATS + (size_t)n_groups * D::ROWS * D::n_sums(n)) * sizeof(float) };
}

/* How each type is multiplied: types by hand, the rest through their readers. */
typedef floats<load_F32> dot_F32;
typedef floats<load_F16> dot_F16;
typedef floats<load_BF16> dot_BF16;
typedef quantised<q8> dot_Q8_0;
typedef quantised<q4> dot_Q4_0;
typedef quantised<k45<false>> dot_Q4_K;
typedef quantised<k45<true>> dot_Q5_K;
typedef quantised<k6> dot_Q6_K;
typedef quantised<mx4> dot_MXFP4;
#define PLAIN_LIST(X)                                                                                  \
    X(Q4_1) X(Q5_0) X(Q5_1) X(Q2_K) X(Q3_K) X(IQ2_XXS) X(IQ2_XS) X(IQ2_S) X(IQ3_XXS) X(IQ3_S) X(IQ1_S)  \
    X(IQ1_M) X(IQ4_NL) X(IQ4_XS) X(TQ1_0) X(TQ2_0) X(NVFP4) X(Q1_0) X(Q2_0)
#define X(TYPE) typedef quantised<plain<read_##TYPE>> dot_##TYPE;
PLAIN_LIST(X)
#undef X

#define CU_TYPE_LIST(X) X(F32) X(F16) X(BF16) CU_QUANTISED_LIST(X)

#endif
