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
 * task keep the code and that wait short, and leave tasks for many warps. */
#ifndef PF_CU_DOT_H
#define PF_CU_DOT_H

#include <cuda_pipeline.h>

#include "kernels/cuda/cu_blocks.h"

/* The terms of one block: s = fmaf(p, f, s), then, for types with a second term, s = fmaf(m, g, s). */
struct term {
    float p, f, m, g;
};

struct x_row {
    const float   *f;
    const int8_t  *q;
    const float   *d;
    const int16_t *s;
};

CU_INLINE struct x_row x_row_of(const struct cu_x &x, int n, int64_t row)
{
    return { x.f + row * n, x.q + row * n, x.d + row * (n / 32), x.s + row * (n / 16) };
}

/* Sixteen bytes of an activation. Not through the read-only cache: a kernel that began early may
 * have met older ones. */
CU_INLINE uint4 fresh16(const void *p)
{
    return *(const uint4 *)p;
}

CU_INLINE int sum_of_block(const struct x_row &x, int b)
{
    int two = ((const int *)x.s)[b];
    return (int)(int16_t)two + (two >> 16);
}

CU_INLINE int dot16(uint4 w, uint4 x, int sum)
{
    sum = __dp4a((int)w.x, (int)x.x, sum);
    sum = __dp4a((int)w.y, (int)x.y, sum);
    sum = __dp4a((int)w.z, (int)x.z, sum);
    return __dp4a((int)w.w, (int)x.w, sum);
}

/* Types. load() fetches what a lane needs of block b of a round, load_x() of the activations, dot() makes the terms.
 * ROUND: bytes of a whole round, or 0: whoever wants them divides.
 * Types whose lanes would read the same words many times are STAGED: a round of them, at most so many bytes, is first
 * copied to shared memory, and its rows are multiplied in a loop. */

/* Any type, through its reader. */
template <class R>
struct plain {
    static constexpr bool whole_segments = false, second = R::kind != ONE_TERM;
    enum { STAGED = 32 * 24, ROUND = 0 };
    typedef struct cu_block raw;
    struct side { uint4 x0, x1; float d; int s0, s1; };

    static CU_READ_FN raw load(const uint8_t *row, int b, const struct cu_tables &t)
    {
        return read_block<R>(row, b, t);
    }

    static CU_READ_FN side load_x(const struct x_row &x, int b)
    {
        int two = ((const int *)x.s)[b];
        return { fresh16(x.q + b * 32), fresh16(x.q + b * 32 + 16), x.d[b], (int16_t)two, two >> 16 };
    }

    static CU_READ_FN struct term dot(const raw &w, const side &x, int)
    {
        int lower = w.sc[0] * dot16(make_uint4(w.code[0], w.code[1], w.code[2], w.code[3]), x.x0, 0);
        int upper = w.sc[1] * dot16(make_uint4(w.code[4], w.code[5], w.code[6], w.code[7]), x.x1, 0);
        if (R::kind == TWO_SCALES)
            return { w.dw * x.d, (float)lower, w.dw1 * x.d, (float)upper };
        return { w.dw * x.d, (float)(lower + upper), -w.mw, x.d * (float)(w.mn[0] * x.s0 + w.mn[1] * x.s1) };
    }
};

/* A pair of lanes shares the 32 bytes of two blocks, low and high nibbles: each takes sixteen of them for both. HERE:
 * rows are in shared memory. */
template <bool FIVE, bool HERE = false>
struct k45 {
    static constexpr bool whole_segments = true, second = true;
    enum { BYTES = FIVE ? 176 : 144, STAGED = 0, ROUND = 4 * BYTES };
    struct raw { uint4 head, w, fifth; };
    struct side { uint4 even, odd; float d, g; };

    static CU_READ_FN uint4 at(const uint8_t *p)
    {
        return HERE ? *(const uint4 *)p : load16(p);
    }

    static CU_READ_FN raw load(const uint8_t *row, int b, const struct cu_tables &)
    {
        const uint8_t *p = row + (size_t)(b / 8) * BYTES;
        int g = b % 8;
        raw r;
        r.head = at(p);
        r.w = at(p + (FIVE ? 48 : 16) + 16 * g);
        if (FIVE)
            r.fifth = at(p + 16 + 16 * (g & 1));
        return r;
    }

    static CU_READ_FN side load_x(const struct x_row &x, int b)
    {
        const int8_t *q = x.q + (b & ~1) * 32 + 16 * (b & 1);
        float d = x.d[b];
        return { fresh16(q), fresh16(q + 32), d, d * (float)sum_of_block(x, b) };
    }

    static CU_READ_FN struct term dot(const raw &r, const side &x, int b)
    {
        int g = b % 8, odd = g & 1;
        uint4 lo = make_uint4(r.w.x & 0x0f0f0f0f, r.w.y & 0x0f0f0f0f, r.w.z & 0x0f0f0f0f, r.w.w & 0x0f0f0f0f);
        uint4 hi = make_uint4(r.w.x >> 4 & 0x0f0f0f0f, r.w.y >> 4 & 0x0f0f0f0f, r.w.z >> 4 & 0x0f0f0f0f,
                              r.w.w >> 4 & 0x0f0f0f0f);
        if (FIVE) {
            int c = g - odd;
            lo.x |= (r.fifth.x >> c & 0x01010101) << 4, hi.x |= (r.fifth.x >> (c + 1) & 0x01010101) << 4;
            lo.y |= (r.fifth.y >> c & 0x01010101) << 4, hi.y |= (r.fifth.y >> (c + 1) & 0x01010101) << 4;
            lo.z |= (r.fifth.z >> c & 0x01010101) << 4, hi.z |= (r.fifth.z >> (c + 1) & 0x01010101) << 4;
            lo.w |= (r.fifth.w >> c & 0x01010101) << 4, hi.w |= (r.fifth.w >> (c + 1) & 0x01010101) << 4;
        }
        int even_sum = dot16(lo, x.even, 0), odd_sum = dot16(hi, x.odd, 0);
        int sum = (odd ? odd_sum : even_sum) + __shfl_xor_sync(ALL_LANES, odd ? even_sum : odd_sum, 1);
        struct scale_min sm = scale_min_words(r.head.y, r.head.z, r.head.w, g);
        float d = half_value((uint16_t)r.head.x), dmin = half_value((uint16_t)(r.head.x >> 16));
        return { d * (float)sm.sc * x.d, (float)sum, -(dmin * (float)sm.mn), x.g };
    }
};

/* Lanes t and t + 2 of the four that have half a super-block share the bytes of their two planes: each takes sixteen of
 * them, and of the upper bits, for both. */
struct k6 {
    static constexpr bool whole_segments = true, second = false;
    enum { ROUND = 4 * 210, STAGED = ROUND };
    struct raw { uint32_t low[4], high[4]; int sc0, sc1; uint16_t d; };
    struct side { uint4 x0, x1; float d; int minus0, minus1; };

    static CU_READ_FN raw load(const uint8_t *row, int b, const struct cu_tables &)
    {
        const uint8_t *p = row + (b >> 3) * 210;
        int h = b >> 2 & 1, upper = b >> 1 & 1, odd = b & 1;
        const int8_t *sc = (const int8_t *)(p + 192 + 8 * h + 2 * odd + upper);
        raw r;
        load_words(p + 64 * h + 32 * odd + 16 * upper, r.low);
        load_words(p + 128 + 32 * h + 16 * upper, r.high, 2 * odd);
        r.sc0 = sc[0];
        r.sc1 = sc[4];
        r.d = *(const uint16_t *)(p + 208);
        return r;
    }

    static CU_READ_FN side load_x(const struct x_row &x, int b)
    {
        int at = 2 * (b & ~3) + 2 * (b & 1) + (b >> 1 & 1);                       /* nibble number, of 16 */
        return { fresh16(x.q + 16 * at), fresh16(x.q + 16 * at + 64), x.d[b], -32 * x.s[at], -32 * x.s[at + 4] };
    }

    static CU_READ_FN struct term dot(const raw &r, const side &x, int b)
    {
        uint32_t lo[4], hi[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            lo[i] = (r.low[i] & 0x0f0f0f0f) | (r.high[i] << 4 & 0x30303030);
            hi[i] = (r.low[i] >> 4 & 0x0f0f0f0f) | (r.high[i] & 0x30303030);
        }
        int lower = r.sc0 * dot16(make_uint4(lo[0], lo[1], lo[2], lo[3]), x.x0, x.minus0);
        int upper = r.sc1 * dot16(make_uint4(hi[0], hi[1], hi[2], hi[3]), x.x1, x.minus1);
        int sum = (b & 2 ? upper : lower) + __shfl_xor_sync(ALL_LANES, b & 2 ? lower : upper, 2);
        return { half_value(r.d) * x.d, (float)sum, 0, 0 };
    }
};

/* Blocks begin at even addresses: words are read as they are aligned, and put together. */
struct q8 {
    static constexpr bool whole_segments = false, second = false;
    enum { STAGED = 0, ROUND = 32 * 34 };
    struct raw { uint32_t a[9]; uint32_t half; };
    struct side { uint4 x0, x1; float d; };

    static CU_READ_FN raw load(const uint8_t *row, int b, const struct cu_tables &)
    {
        uintptr_t p = (uintptr_t)(row + (size_t)b * 34);
        const uint32_t *a = (const uint32_t *)(p & ~(uintptr_t)3);
        raw r;
        r.half = p & 2;
#pragma unroll
        for (int i = 0; i < 9; i++)
            r.a[i] = __ldg(a + i);
        return r;
    }

    static CU_READ_FN side load_x(const struct x_row &x, int b)
    {
        return { fresh16(x.q + b * 32), fresh16(x.q + b * 32 + 16), x.d[b] };
    }

    static CU_READ_FN struct term dot(const raw &r, const side &x, int)
    {
        uint32_t w[8], shift = 16 + 8 * r.half;                  /* 32 where the codes begin at a word */
#pragma unroll
        for (int i = 0; i < 8; i++)
            w[i] = __funnelshift_rc(r.a[i], r.a[i + 1], shift);
        int sum = dot16(make_uint4(w[0], w[1], w[2], w[3]), x.x0, 0);
        sum = dot16(make_uint4(w[4], w[5], w[6], w[7]), x.x1, sum);
        return { half_value((uint16_t)(r.a[0] >> 8 * r.half)) * x.d, (float)sum, 0, 0 };
    }
};

struct q4 {
    static constexpr bool whole_segments = false, second = false;
    enum { STAGED = 0, ROUND = 32 * 18 };
    struct raw { uint32_t a[5]; uint32_t half; };
    struct side { uint4 x0, x1; float d; int minus; };

    static CU_READ_FN raw load(const uint8_t *row, int b, const struct cu_tables &)
    {
        uintptr_t p = (uintptr_t)(row + (size_t)b * 18);
        const uint32_t *a = (const uint32_t *)(p & ~(uintptr_t)3);
        raw r;
        r.half = p & 2;
#pragma unroll
        for (int i = 0; i < 5; i++)
            r.a[i] = __ldg(a + i);
        return r;
    }

    static CU_READ_FN side load_x(const struct x_row &x, int b)
    {
        return { fresh16(x.q + b * 32), fresh16(x.q + b * 32 + 16), x.d[b], -8 * sum_of_block(x, b) };
    }

    static CU_READ_FN struct term dot(const raw &r, const side &x, int)
    {
        uint32_t w[4], shift = 16 + 8 * r.half;
#pragma unroll
        for (int i = 0; i < 4; i++)
            w[i] = __funnelshift_rc(r.a[i], r.a[i + 1], shift);
        uint4 lo = make_uint4(w[0] & 0x0f0f0f0f, w[1] & 0x0f0f0f0f, w[2] & 0x0f0f0f0f, w[3] & 0x0f0f0f0f);
        uint4 hi = make_uint4(w[0] >> 4 & 0x0f0f0f0f, w[1] >> 4 & 0x0f0f0f0f, w[2] >> 4 & 0x0f0f0f0f,
                              w[3] >> 4 & 0x0f0f0f0f);
        int sum = dot16(hi, x.x1, dot16(lo, x.x0, x.minus));
        return { half_value((uint16_t)(r.a[0] >> 8 * r.half)) * x.d, (float)sum, 0, 0 };
    }
};

/* Codes stay in the order of their nibbles, element 0, 16, 1, 17 ...: the activations are put in that order instead.
 * Twice E2M1 lies in -12..12. Its magnitudes are looked up twice: for nibbles without a sign (bit 3), others getting 0,
 * and for those with one, whose sum is subtracted. */
struct mx4 {
    static constexpr bool whole_segments = false, second = false;
    enum { STAGED = 0, ROUND = 32 * 17 };
    struct raw { uint32_t a[5]; uint32_t at; };
    struct side { uint4 x0, x1; float d; uint32_t lower; };

    static CU_READ_FN raw load(const uint8_t *row, int b, const struct cu_tables &)
    {
        uintptr_t p = (uintptr_t)(row + (uint32_t)b * 17);
        const uint32_t *a = (const uint32_t *)(p & ~(uintptr_t)3);
        raw r;
        r.at = p & 3;
#pragma unroll
        for (int i = 0; i < 5; i++)
            r.a[i] = __ldg(a + i);
        return r;
    }

    /* lower: magnitudes 0 .. 3. A scale has no sign: without that term, which the compiler cannot know to be 0, it
     * would make the number anew for each use. */
    static CU_READ_FN side load_x(const struct x_row &x, int b)
    {
        uint4 l = fresh16(x.q + b * 32), h = fresh16(x.q + b * 32 + 16);
        float d = x.d[b];
        return { make_uint4(permute(l.x, h.x, 0x5140), permute(l.x, h.x, 0x7362), permute(l.y, h.y, 0x5140),
                            permute(l.y, h.y, 0x7362)),
                 make_uint4(permute(l.z, h.z, 0x5140), permute(l.z, h.z, 0x7362), permute(l.w, h.w, 0x5140),
                            permute(l.w, h.w, 0x7362)),
                 d, 0x03020100 + (pf_float_bits(d) >> 31) };
    }

    static CU_READ_FN struct term dot(const raw &r, const side &x, int)
    {
        enum { UPPER = 0x0c080604 };                             /* magnitudes 4, 6, 8, 12 */
        uint32_t shift = 8 * r.at + 8, w[8], minus[8];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t c = __funnelshift_rc(r.a[i], r.a[i + 1], shift), v = c ^ 0x88888888;
            w[2 * i] = permute(x.lower, UPPER, c);
            w[2 * i + 1] = permute(x.lower, UPPER, c >> 16);
            minus[2 * i] = permute(x.lower, UPPER, v);
            minus[2 * i + 1] = permute(x.lower, UPPER, v >> 16);
        }
        int sum = dot16(make_uint4(w[0], w[1], w[2], w[3]), x.x0, 0);
        int less = dot16(make_uint4(minus[0], minus[1], minus[2], minus[3]), x.x0, 0);
        sum = dot16(make_uint4(w[4], w[5], w[6], w[7]), x.x1, sum);
        less = dot16(make_uint4(minus[4], minus[5], minus[6], minus[7]), x.x1, less);
        return { mx_scale((uint8_t)(r.a[0] >> 8 * r.at)) * x.d, (float)(sum - less), 0, 0 };
    }
};

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

    /* The terms of a lane's block b of all rows, through shared memory, or through registers. */
    static CU_READ_FN void staged_terms(const struct row_set &w, int r0, size_t round_bytes, int bytes,
                                        const struct x_row &x, int b, int xb, bool there, const struct cu_tables &t,
                                        uint8_t *staged, float2 *terms)
    {
#pragma unroll 1
        for (int i = 0; i < TASK_ROWS; i++)
            stage(staged + i * STAGE_BYTES, at(w, r0 + i, round_bytes), bytes);
        __pipeline_commit();
        typename T::side side = T::load_x(x, xb);
        __pipeline_wait_prior(0);
        __syncwarp();
#pragma unroll 2
        for (int i = 0; i < TASK_ROWS; i++) {
            int skip = (int)((uintptr_t)at(w, r0 + i, round_bytes) & 15);
            put(T::dot(T::load(staged + i * STAGE_BYTES + skip, b, t), side, b), i, there, terms);
        }
    }

    static CU_READ_FN void loaded_terms(const struct row_set &w, int r0, size_t round_bytes, const struct x_row &x,
                                        int b, int xb, bool there, const struct cu_tables &t, float2 *terms)
    {
        typename T::raw raw[TASK_ROWS];
#pragma unroll
        for (int i = 0; i < TASK_ROWS; i++)
            raw[i] = T::load(at(w, r0 + i, round_bytes), b, t);
        typename T::side side = T::load_x(x, xb);
#pragma unroll
        for (int i = 0; i < TASK_ROWS; i++)
            put(T::dot(raw[i], side, b), i, there, terms);
    }

    /* The sum of a lane's chain. */
    static CU_READ_FN float run_chain(const float2 *terms)
    {
        int chain = threadIdx.x % CHAINS;
        float s = 0;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float2 v = terms[i * CHAIN_WIDTH + chain];
            s = fmaf(v.x, v.y, s);
            if (T::second) {
                v = terms[(8 + i) * CHAIN_WIDTH + chain];
                s = fmaf(v.x, v.y, s);
            }
        }
        return s;
    }

    /* Segment sums of a round's terms of four rows go to sums[row][segment]. */
    static CU_READ_FN void run_chains(const float2 *terms, int n, int round, float *sums)
    {
        int lane = threadIdx.x % WARP, segment = 4 * round + lane % 4, stride = n_sums(n);
        float s = run_chain(terms);
        if (segment < stride && lane < CHAINS)
            sums[lane / 4 * stride + segment] = s;
    }

    /* Sums of the four segments of `round` in rows r0 .. r0 + 3. */
    static CU_READ_FN void task(const struct row_set &w, int r0, const struct x_row &x, int n, int round,
                                const struct cu_tables &t, float *warp_memory, float *sums)
    {
        int n_blocks = min(n / 32 - round * WARP, (int)WARP), lane = threadIdx.x % WARP, b = my_block(n_blocks);
        uint32_t bytes_32 = bytes_of_32(w.row_bytes, n);
        float2 *terms = (float2 *)warp_memory;
        uint8_t *staged = (uint8_t *)(warp_memory + TERM_FLOATS);
        __syncwarp();
        if (T::STAGED)
            staged_terms(w, r0, (size_t)bytes_32 * round, (bytes_32 * n_blocks + 31) / 32, x, b, round * WARP + b,
                         lane < n_blocks, t, staged, terms);
        else
            loaded_terms(w, r0, (size_t)bytes_32 * round, x, b, round * WARP + b, lane < n_blocks, t, terms);
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

/* Runs n_groups groups of D::ROWS rows, spread over the warps of the block; then every thread may read the sums of
 * row r of group g at [g * D::ROWS + r]. place(g, w, r0, x) says what a group multiplies; false: nothing, and it has no
 * sums. memory: shape_of's bytes. */
template <class D, class F>
CU_INLINE const float *run_tasks(int n_groups, int n, const struct cu_tables &t, float *memory, F place)
{
    int n_rounds = D::n_rounds(n), n_warps = blockDim.x / WARP, warp = threadIdx.x / WARP;
    float *sums = memory + n_warps * D::WARP_FLOATS;
#pragma unroll 1
    for (int task = warp; task < n_groups * n_rounds; task += n_warps) {
        struct row_set w;
        struct x_row x;
        int g = quotient(task, n_rounds), r0;
        if (!place(g, w, r0, x))
            continue;
        D::task(w, r0, x, n, task - g * n_rounds, t, memory + warp * D::WARP_FLOATS,
                sums + (size_t)g * D::ROWS * D::n_sums(n));
    }
    __syncthreads();
    return sums;
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
