/* Products of quantised weights with a few rows of activations on the tensor cores, in the order of docs/numerics.md:
 * a weight is read and unpacked once for up to sixteen rows.
 *
 *     a tile     sixteen weight rows, which a team of warps has
 *     a task     a segment (256 elements) of a tile, by a warp
 *     mma        isum of the 16 weight rows and 8 columns, which are rows of activations, for one block of 32. Lane l,
 *                with g = l / 4 and t = l % 4, has of weight rows g and g + 8 and of column g eight elements, those
 *                from 8 t on or, where halves of a block are taken apart, four from 4 t and four from 16 + 4 t on;
 *                and the sums of columns 2 t and 2 t + 1
 *
 * Weights' rows and the columns lie in shared memory. How they come there, and who adds up the sums of segments, is
 * told in cu_few.cu and cu_few_stream.cu. */
#ifndef PF_CU_FEW_H
#define PF_CU_FEW_H

#include "kernels/cuda/cu_dot_types.h"
#include "kernels/cuda/cu_few_api.h"
#include "kernels/cuda/cu_linear.h"

enum { TILE_ROWS = 16, SEGMENT = 8 };

/* ---- Types ------------------------------------------------------------------------------------------------------- */

/* A type is described by hand, or by its reader in cu_blocks.h (few_of).
 *
 * BYTES: a segment of a row. SKIP: how far a row may begin past a multiple of 16. WHOLE: a row is whole segments.
 * NEIGHBOURS: a lane's elements of a block are eight neighbours. MIXED: codes of the block's halves alternate in a
 * lane's words. MINUS: how much each code is too large. PACKED: scales take some unpacking, which is done once for all
 * lanes of a row: `scales` gives those of blocks t and t + 4, instead of `scale`.
 *
 * view: what a lane knows of a row's segment. codes: its two words of block k, which go with its two words of
 * activations. scale: what block k's sum is multiplied by and, with `minimums`, the negative of the minimum; with
 * `halves` the two integer scales of 16 elements each, and `row_scale` what all sums of the segment are multiplied
 * by; with both each integer scale has its integer minimum in its upper half, and `row_minimum` is the negative of what
 * these are multiplied by. */
struct few_type {
    static constexpr bool WHOLE = false, NEIGHBOURS = false, MIXED = false, PACKED = false, minimums = false,
                          halves = false;
    enum { MINUS = 0, SKIP = 15 };
    typedef const uint8_t *view;

    static CU_READ_FN view view_of(const uint8_t *segment)
    {
        return segment;
    }
};

template <bool FIVE>
struct few_k45 : few_type {
    static constexpr bool WHOLE = true, NEIGHBOURS = true, PACKED = true, minimums = true;
    enum { BYTES = FIVE ? 176 : 144, SKIP = 0 };

    static CU_READ_FN void scales(view v, int t, uint2 (&out)[2])
    {
        uint4 head = *(const uint4 *)v;
        float d = half_value((uint16_t)head.x), dmin = -half_value((uint16_t)(head.x >> 16));
        uint32_t sc = head.y >> 8 * t, mn = head.z >> 8 * t, both = head.w >> 8 * t;
        out[0] = scale_of(d, sc & 63, dmin, mn & 63);
        out[1] = scale_of(d, (both & 15) | (sc >> 2 & 0x30), dmin, (both >> 4 & 15) | (mn >> 2 & 0x30));
    }

    static CU_READ_FN uint2 scale_of(float d, uint32_t sc, float dmin, uint32_t mn)
    {
        return make_uint2(pf_float_bits(d * (float)(int)sc), pf_float_bits(dmin * (float)(int)mn));
    }

    static CU_READ_FN void codes(view v, int k, int t, const struct cu_tables &, uint32_t (&w)[2])
    {
        uint2 four = *(const uint2 *)(v + (FIVE ? 48 : 16) + 32 * (k / 2) + 8 * t);
        w[0] = four.x >> 4 * (k % 2) & 0x0f0f0f0f;
        w[1] = four.y >> 4 * (k % 2) & 0x0f0f0f0f;
        if (FIVE) {
            uint2 fifth = *(const uint2 *)(v + 16 + 8 * t);
            w[0] |= (k < 4 ? fifth.x << (4 - k) : fifth.x >> (k - 4)) & 0x10101010;
            w[1] |= (k < 4 ? fifth.y << (4 - k) : fifth.y >> (k - 4)) & 0x10101010;
        }
    }
};

/* Words of a segment that begins at an even address. Words that lie multiples of four bytes behind it are found
 * from `at`, `shift` bits further; those that lie two bytes behind these, from `past`, and 16 bits further or not. */
struct even_words {
    const uint8_t  *segment;
    const uint32_t *at, *past;
    int             shift;
};

CU_INLINE struct even_words even_words_of(const uint8_t *segment)
{
    int odd = (uint32_t)(uintptr_t)segment >> 1 & 1;
    return { segment, (const uint32_t *)(segment - 2 * odd), (const uint32_t *)(segment + 2 * odd), 16 * odd };
}

/* The word `from` bytes behind the segment's beginning, and t words further. */
CU_INLINE uint32_t even_word(const struct even_words &v, int from, int t)
{
    const uint32_t *p = from % 4 ? v.past + (from - 2) / 4 + t : v.at + from / 4 + t;
    return __funnelshift_r(p[0], p[1], from % 4 ? v.shift ^ 16 : v.shift);
}

/* A type whose blocks have an even number of bytes. */
struct few_even : few_type {
    typedef struct even_words view;

    static CU_READ_FN view view_of(const uint8_t *segment)
    {
        return even_words_of(segment);
    }
};

struct few_k6 : few_even {
    static constexpr bool WHOLE = true, PACKED = true, halves = true;
    enum { BYTES = 210, MINUS = 32 };

    static CU_READ_FN float row_scale(const view &v)
    {
        return half_value(*(const uint16_t *)(v.segment + 208));
    }

    static CU_READ_FN void scales(const view &v, int t, uint2 (&out)[2])
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int both = *(const int16_t *)(v.segment + 192 + 2 * t + 8 * i);
            out[i] = make_uint2((uint32_t)(int)(int8_t)both, (uint32_t)(both >> 8));
        }
    }

    static CU_READ_FN void codes(const view &v, int k, int t, const struct cu_tables &, uint32_t (&w)[2])
    {
        int p = k % 4;                       /* words are loaded once for all blocks that share them */
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t four = even_word(v, 64 * (k / 4) + 32 * (k % 2) + 16 * i, t),
                     two = even_word(v, 128 + 32 * (k / 4) + 16 * i, t);
            two = p < 2 ? two << (4 - 2 * p) : two >> (2 * p - 4);
            w[i] = (four >> p / 2 * 4 & 0x0f0f0f0f) | (two & 0x30303030);
        }
    }
};

struct few_q8 : few_even {
    enum { BYTES = 8 * 34 };

    static CU_READ_FN uint2 scale(const view &v, int k)
    {
        return make_uint2(pf_float_bits(half_value(*(const uint16_t *)(v.segment + 34 * k))), 0);
    }

    static CU_READ_FN void codes(const view &v, int k, int t, const struct cu_tables &, uint32_t (&w)[2])
    {
        w[0] = even_word(v, 34 * k + 2, t);
        w[1] = even_word(v, 34 * k + 18, t);
    }
};

struct few_q4 : few_even {
    enum { BYTES = 8 * 18, MINUS = 8 };

    static CU_READ_FN uint2 scale(const view &v, int k)
    {
        return make_uint2(pf_float_bits(half_value(*(const uint16_t *)(v.segment + 18 * k))), 0);
    }

    static CU_READ_FN void codes(const view &v, int k, int t, const struct cu_tables &, uint32_t (&w)[2])
    {
        uint32_t both = even_word(v, 18 * k + 2, t);
        w[0] = both & 0x0f0f0f0f;
        w[1] = both >> 4 & 0x0f0f0f0f;
    }
};

struct few_mx4 : few_type {
    static constexpr bool MIXED = true;
    enum { BYTES = 8 * 17, MINUS = 12 };

    static CU_READ_FN uint2 scale(view v, int k)
    {
        return make_uint2(pf_float_bits(mx_scale(v[17 * k])), 0);
    }

    static CU_READ_FN void codes(view v, int k, int t, const struct cu_tables &, uint32_t (&w)[2])
    {
        uint32_t c[1];
        load_words(v + 17 * k + 1 + 4 * t, c);
        uint32_t high = c[0] ^ 0x88888888;
        w[0] = e2m1_plus_12(c[0], high);
        w[1] = e2m1_plus_12(c[0] >> 16, high >> 16);
    }
};

/* A type whose reader (cu_blocks.h) is by words. */
template <class R>
struct few_of : few_type {
    typedef typename R::blocks blocks;
    static constexpr bool WHOLE = R::per == SEGMENT, PACKED = WHOLE, minimums = R::kind == MINIMUMS, halves = R::halves;
    enum { BYTES = SEGMENT / R::per * sizeof(blocks) };

    static CU_READ_FN struct cu_block head_of(view v, int k)
    {
        struct cu_block blk = { .sc = { 1, 1 }, .mn = { 1, 1 } };
        R::head((const blocks *)v + k / R::per, k % R::per, blk);
        return blk;
    }

    static CU_READ_FN float row_scale(view v) { return head_of(v, 0).dw; }
    static CU_READ_FN float row_minimum(view v) { return -head_of(v, 0).mw; }

    static CU_READ_FN uint2 scale(view v, int k)
    {
        struct cu_block blk = head_of(v, k);
        if (halves && minimums)
            return make_uint2(blk.sc[0] | blk.mn[0] << 16, blk.sc[1] | blk.mn[1] << 16);
        if (halves)
            return make_uint2((uint32_t)blk.sc[0], (uint32_t)blk.sc[1]);
        return make_uint2(pf_float_bits(blk.dw), minimums ? pf_float_bits(-blk.mw) : 0);
    }

    static CU_READ_FN void scales(view v, int t, uint2 (&out)[2])
    {
        out[0] = scale(v, t);
        out[1] = scale(v, t + 4);
    }

    static CU_READ_FN void codes(view v, int k, int t, const struct cu_tables &tables, uint32_t (&w)[2])
    {
        R::words((const blocks *)v + k / R::per, k % R::per, t, tables, w);
    }
};

#define CU_FEW_LIST(X)                                                                                               \
    X(Q4_K, few_k45<false>) X(Q5_K, few_k45<true>) X(Q6_K, few_k6) X(Q8_0, few_q8) X(Q4_0, few_q4) X(MXFP4, few_mx4) \
    X(Q4_1, few_of<read_Q4_1>) X(Q5_0, few_of<read_Q5_0>) X(Q5_1, few_of<read_Q5_1>) X(Q2_K, few_of<read_Q2_K>)      \
    X(Q3_K, few_of<read_Q3_K>) X(IQ2_XXS, few_of<read_IQ2_XXS>) X(IQ2_XS, few_of<read_IQ2_XS>)                       \
    X(IQ2_S, few_of<read_IQ2_S>) X(IQ3_XXS, few_of<read_IQ3_XXS>) X(IQ3_S, few_of<read_IQ3_S>)                       \
    X(IQ1_S, few_of<read_IQ1_S>) X(IQ1_M, few_of<read_IQ1_M>) X(IQ4_NL, few_of<read_IQ4_NL>)                         \
    X(IQ4_XS, few_of<read_IQ4_XS>)

/* ---- Shared memory ----------------------------------------------------------------------------------------------- */

/* Bytes from one row of a tile to the next, of so many segments each, beginning wherever the row does: rows lie in
 * different banks. */
template <class T>
CU_HOST_FN constexpr int few_stride(int n_segments)
{
    int bytes = (n_segments * T::BYTES + T::SKIP + 15) / 16 * 16;
    return T::NEIGHBOURS ? (bytes + 95) / 128 * 128 + 32 : (bytes + 15) / 32 * 32 + 16;
}

/* From one column's codes to the next. */
template <class T>
CU_HOST_FN constexpr int few_pitch(int n)
{
    return n + (T::NEIGHBOURS ? 32 : 16);
}

/* Columns that a block has room for: 16, or 8 where they are no more. */
template <bool WIDE>
CU_HOST_FN constexpr int few_columns_of(void)
{
    return WIDE ? 16 : 8;
}

CU_HOST_FN int n_segments(int n)
{
    return (n + 255) / 256;
}

/* A column's side of a block of 32: its scale and, if there are minimums, the product of that with the sum of the
 * column's codes, or with `halves` both halves' sums; else, if there is MINUS, what a sum begins with: with `halves`
 * what both begin with. Sums of 32 products begin at EXACT besides: then their bits are those of a float, WHOLE_FLOAT
 * more than the sum, which is exact as long as sums are less than 2^22: 32 products of bytes are. */
enum { EXACT = 0x4b400000 };
static constexpr float WHOLE_FLOAT = 12582912.0f;

template <class T>
struct few_has {
    static constexpr bool pair = T::minimums || T::MINUS, scale = !pair || T::halves;
    enum { BYTES = (pair ? 8 : 0) + (scale ? 4 : 0) };
};

/* The activations' columns in a block's memory. */
struct few_x {
    uint8_t *x;                   /* [COLUMNS][pitch], codes */
    uint2   *pair;                /* [n / 32][COLUMNS], if T has them */
    float   *scale;               /* [n / 32][COLUMNS], if T has them */
};

template <class T, bool WIDE>
CU_HOST_FN size_t few_x_bytes(int n)
{
    return few_columns_of<WIDE>() * ((size_t)few_pitch<T>(n) + n / 32 * few_has<T>::BYTES);
}

template <class T, bool WIDE>
CU_INLINE struct few_x few_x_at(uint8_t *memory, int n)
{
    constexpr int COLUMNS = few_columns_of<WIDE>();
    uint2 *pair = (uint2 *)(memory + COLUMNS * few_pitch<T>(n));
    return { memory, pair, (float *)(pair + (few_has<T>::pair ? n / 32 * COLUMNS : 0)) };
}

/* Floats that a warp's sums of a segment take, and scales of its rows, if they are packed. */
enum { SCALES = SEGMENT + 2 };

template <bool WIDE>
CU_HOST_FN constexpr int few_sums(void)
{
    return TILE_ROWS * (few_columns_of<WIDE>() + 1);
}

template <class T>
CU_HOST_FN constexpr int few_scale_count(void)
{
    return T::PACKED ? SCALES * TILE_ROWS : 0;
}

/* What goes with the sum of a block's codes. */
template <class T>
CU_INLINE uint2 few_pair(float d, int two)
{
    int lower = (int)(int16_t)two, upper = two >> 16;
    if (T::halves && T::minimums)
        return make_uint2((uint32_t)lower, (uint32_t)upper);
    if (T::halves)
        return make_uint2((uint32_t)(-T::MINUS * lower), (uint32_t)(-T::MINUS * upper));
    return make_uint2(pf_float_bits(d), T::minimums ? pf_float_bits(d * (float)(lower + upper)) :
                                                      (uint32_t)(EXACT - T::MINUS * (lower + upper)));
}

/* What goes with the columns, by all threads. */
template <class T, bool WIDE>
CU_INLINE void few_sides(const struct few_x &m, const struct x_row &x, int n, int n_columns)
{
    enum { COLUMNS = few_columns_of<WIDE>(), AT_ONCE = 4 };
    int n_blocks = n / 32, step = blockDim.x / COLUMNS, c = threadIdx.x % COLUMNS;
#pragma unroll 1
    for (int first = threadIdx.x / COLUMNS; first < n_blocks && c < n_columns; first += AT_ONCE * step) {
        float d[AT_ONCE];
        int two[AT_ONCE] = {};
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            int b = c * n_blocks + min(first + i * step, n_blocks - 1);
            d[i] = x.d[b];
            if (few_has<T>::pair)
                two[i] = ((const int *)x.s)[b];
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            int b = min(first + i * step, n_blocks - 1);
            if (few_has<T>::pair)
                m.pair[b * COLUMNS + c] = few_pair<T>(d[i], two[i]);
            if (few_has<T>::scale)
                m.scale[b * COLUMNS + c] = d[i];
        }
    }
}

/* ---- A task ------------------------------------------------------------------------------------------------------ */

/* What a lane multiplies of a task: its rows, its columns' codes, and what goes with rows and columns. */
template <class T>
struct few_lane {
    typename T::view view[2];
    const uint8_t *x[2];
    const uint2   *scales, *pair;
    const float   *scale;
    float          row_scale[2], row_minimum[2];
    const struct cu_tables &tables;
};

/* The scales of a whole segment's blocks, each by one lane. */
template <class T>
CU_INLINE void few_scales(const struct few_lane<T> &l, uint2 *scales)
{
    int g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        uint2 two[2];
        T::scales(l.view[h], t, two);
        scales[(g + 8 * h) * SCALES + t] = two[0];
        scales[(g + 8 * h) * SCALES + t + 4] = two[1];
    }
    __syncwarp();
}

/* The scales of blocks k and k + 1 of a lane's rows. */
template <class T>
CU_INLINE void few_two_scales(const struct few_lane<T> &l, int k, uint2 (&scale)[2][2])
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if constexpr (T::PACKED) {
            uint4 v = *(const uint4 *)(l.scales + 8 * h * SCALES + k);
            scale[0][h] = make_uint2(v.x, v.y), scale[1][h] = make_uint2(v.z, v.w);
        } else {
            scale[0][h] = T::scale(l.view[h], k), scale[1][h] = T::scale(l.view[h], k + 1);
        }
    }
}

/* A lane's two words of a column's block. */
template <class T>
CU_INLINE uint2 few_words(const uint8_t *x, int k)
{
    if (T::NEIGHBOURS)
        return *(const uint2 *)(x + 32 * k);
    const uint32_t *w = (const uint32_t *)(x + 32 * k);
    return T::MIXED ? make_uint2(permute(w[0], w[4], 0x5140), permute(w[0], w[4], 0x7362)) : make_uint2(w[0], w[4]);
}

/* The integer scale of a half, beside which its integer minimum may be. */
template <class T>
CU_INLINE int few_integer(uint32_t scale)
{
    return T::minimums ? (int)(scale & 0xffff) : (int)scale;
}

/* Adds to s what a block's minimum takes away: `scale` and `pair` have it and the sum of the column's codes, each with
 * its factor, or with `halves` as integers of both halves, whose factors are row_minimum and d. */
template <class T>
CU_INLINE float few_minimum(float row_minimum, uint2 scale, uint2 pair, float d, float s)
{
    if (T::halves) {
        int lower = (int)(scale.x >> 16) * (int)pair.x, upper = (int)(scale.y >> 16) * (int)pair.y;
        return fmaf(row_minimum, d * (float)(lower + upper), s);
    }
    return fmaf(pf_bits_float(scale.y), pf_bits_float(pair.y), s);
}

/* Sums of a block's rows with eight columns, as floats. scale: of the halves, if each has its own. */
template <class T>
CU_INLINE void few_isums(const uint32_t (&w)[2][2], uint2 x, const uint2 (&scale)[2], const uint2 (&pair)[2],
                         float (&isum)[4])
{
    const uint32_t a[4] = { w[0][0], w[1][0], w[0][1], w[1][1] };
    int sum[4], upper[4];
    if constexpr (T::halves) {
#pragma unroll
        for (int c = 0; c < 4; c++)
            sum[c] = T::MINUS ? (int)pair[c % 2].x : 0, upper[c] = T::MINUS ? (int)pair[c % 2].y : 0;
        mma16_add<true>(sum, a[0], a[1], x.x);
        mma16_add<true>(upper, a[2], a[3], x.y);
    } else if (T::MINUS) {
#pragma unroll
        for (int c = 0; c < 4; c++)
            sum[c] = (int)pair[c % 2].y;
        mma32_more<true>(sum, a, x.x, x.y);
    } else {
        mma32(sum, a, x.x, x.y, EXACT);
    }
#pragma unroll
    for (int c = 0; c < 4; c++)
        isum[c] = T::halves ? (float)(few_integer<T>(scale[c / 2].x) * sum[c] +
                                      few_integer<T>(scale[c / 2].y) * upper[c]) :
                              pf_bits_float((uint32_t)sum[c]) - WHOLE_FLOAT;
}

/* Block k of the segment, for two weight rows and two columns, or two and two. */
template <class T, bool WIDE>
CU_INLINE void few_block(const struct few_lane<T> &l, int k, const uint2 (&scale)[2], float (&s)[WIDE ? 8 : 4])
{
    uint32_t w[2][2];
#pragma unroll
    for (int h = 0; h < 2; h++)
        T::codes(l.view[h], k, threadIdx.x % 4, l.tables, w[h]);
#pragma unroll
    for (int i = 0; i < (WIDE ? 2 : 1); i++) {
        int at = k * few_columns_of<WIDE>() + 8 * i;
        uint2 pair[2] = {};
        float2 d;
        if (few_has<T>::pair) {
            uint4 v = *(const uint4 *)(l.pair + at);
            pair[0] = make_uint2(v.x, v.y), pair[1] = make_uint2(v.z, v.w);
            d = make_float2(pf_bits_float(v.x), pf_bits_float(v.z));
        }
        if (few_has<T>::scale)
            d = *(const float2 *)(l.scale + at);
        float isum[4];
        few_isums<T>(w, few_words<T>(l.x[i], k), scale, pair, isum);
#pragma unroll
        for (int c = 0; c < 4; c++) {
            float dw = T::halves ? l.row_scale[c / 2] : pf_bits_float(scale[c / 2].x), dx = c % 2 ? d.y : d.x,
                  &of = s[4 * i + c];
            of = fmaf(dw * dx, isum[c], of);
            if (T::minimums)
                of = few_minimum<T>(l.row_minimum[c / 2], scale[c / 2], pair[c % 2], dx, of);
        }
    }
}

/* The sums of a segment, where the lane's two rows of it lie in shared memory: s[4 i + c] is of weight row
 * g + 8 (c / 2) and of column 8 i + 2 t + c % 2. scales: room for those of a warp's rows, [TILE_ROWS][SCALES], if
 * they are packed. */
template <class T, bool WIDE>
CU_INLINE void few_segment(const struct few_x &m, const uint8_t *const (&row)[2], const struct cu_tables &tables, int n,
                           int segment, uint2 *scales, float (&s)[WIDE ? 8 : 4])
{
    constexpr int COLUMNS = few_columns_of<WIDE>();
    int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4, side = segment * SEGMENT * COLUMNS + 2 * t;
    struct few_lane<T> l = { .tables = tables };
#pragma unroll
    for (int h = 0; h < 2; h++) {
        l.view[h] = T::view_of(row[h]);
        l.x[h] = m.x + (g + 8 * h) * few_pitch<T>(n) + segment * 256 + (T::NEIGHBOURS ? 8 : 4) * t;
        if constexpr (T::halves)
            l.row_scale[h] = T::row_scale(l.view[h]);
        if constexpr (T::halves && T::minimums)
            l.row_minimum[h] = T::row_minimum(l.view[h]);
    }
    l.scales = scales + g * SCALES, l.pair = m.pair + side, l.scale = m.scale + side;
    if constexpr (T::PACKED)
        few_scales<T>(l, scales);
    int n_blocks = n / 32 - segment * SEGMENT;
    uint2 scale[2][2];
    if (T::WHOLE || n_blocks >= SEGMENT) {
#pragma unroll
        for (int k = 0; k < SEGMENT; k += 2) {
            few_two_scales<T>(l, k, scale);
            few_block<T, WIDE>(l, k, scale[0], s);
            few_block<T, WIDE>(l, k + 1, scale[1], s);
        }
        return;
    }
    if constexpr (!T::PACKED)
#pragma unroll 1
        for (int k = 0; k < n_blocks; k++) {
            scale[0][0] = T::scale(l.view[0], k), scale[0][1] = T::scale(l.view[1], k);
            few_block<T, WIDE>(l, k, scale[0], s);
        }
}

/* A segment's sums of a tile, to [TILE_ROWS][COLUMNS + 1]. */
template <bool WIDE>
CU_INLINE void few_put_sums(float *to, const float (&s)[WIDE ? 8 : 4])
{
    int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int i = 0; i < (WIDE ? 8 : 4); i++)
        to[(g + i % 4 / 2 * 8) * (few_columns_of<WIDE>() + 1) + i / 4 * 8 + 2 * t + i % 2] = s[i];
}

/* ---- Outputs ----------------------------------------------------------------------------------------------------- */

/* Products of which rows of outputs may go to the host's memory, too. */
struct given_few : cu_linear {
    struct cu_given_rows given;
};

CU_INLINE void finish(const struct given_few &l, const struct cu_part &p, int r, int row, float v)
{
    v = scaled(p, r, v);
    p.y[(size_t)row * p.n_out + r] = v;
    if (l.given.to[row])
        l.given.to[row][r] = v;
    if (l.given.fault)
        check_logit(v, l.given.fault);
}

/* Weight rows that a block has, of one part, where so many blocks share all of them: whole eights, by which they are
 * shared more evenly than by whole tiles. */
static int few_block_rows(const struct cu_linear *l, int n_blocks)
{
    int rows = max(n_blocks_of(l, 8) / n_blocks, 1) * 8;
    while (n_blocks_of(l, rows) > n_blocks)
        rows += 8;
    return rows;
}

/* The product by the kernels of cu_few_stream.cu, if *takes then; otherwise nothing is done. */
extern "C" cudaError_t pf_cu_few_stream(cudaStream_t st, const struct given_few *l, size_t shared_bytes, bool *takes);

#endif
