/* Products of quantised weights with int8 activations, written once for any number of lanes.
 *
 * Include after a lanes header. Each weight type brings one `unpack`; everything else is shared. Rows are taken LANES at
 * a time, one lane a row, and a segment of 256 elements at a time:
 *
 *     weight rows        struct seg (in L1)                            per activation row
 *     row r   [segment]  codes[b][k]: lane r = bytes 4k..4k+3          sum  = codes . q          exact, int32
 *     row r+1 [segment]               of block b of row r              acc  = fma(dw * d, sum, acc)
 *     ...                dw[b], mw[b]: scales of block b, lane = row   y   += acc                once a segment
 *
 * So each lane does what the scalar kernel does for its row, in the same order, and the bits agree. The running total of
 * an output lives in y itself, which lets one unpacking serve any number of activation rows.
 *
 * Codes are unsigned: value = code - bias. The bias is paid for by starting the integer sum at -bias * (sum of q).
 *
 * Rows left over after the last full group are done by moving that group back over rows already done, which get the
 * same values again; fewer than LANES rows in all are copied to a buffer first. */
#ifndef PF_MUL_QUANT_H
#define PF_MUL_QUANT_H

#include "kernels/kernels.h"
#include "kernels/qblocks.h"

enum { SEG_LEN = 256, SEG_BLOCKS = 8, SEG_MAX_BYTES = 8 * sizeof(struct pf_block_q8_0) };

/* Scales of a segment, lane = row. */
struct scales {
    vf dw[SEG_BLOCKS];
    vf mw[SEG_BLOCKS];            /* types with minimums */
    vf pair[2 * SEG_BLOCKS];      /* types with two integer scales a block */
};

struct seg {
    vi            codes[SEG_BLOCKS][8];
    struct scales scales;
};

/* p: the segment of row 0; row r lies r * row_bytes further. unpack_fn takes block b and as many after it as its type
 * unpacks together; scales_fn the first n_blocks. */
typedef void unpack_fn(vi (*codes)[8], const uint8_t *p, size_t row_bytes, int b);
typedef void scales_fn(struct scales *s, const uint8_t *p, size_t row_bytes, int n_blocks);

enum form {
    FORM_PLAIN,                   /* a term dw * d * sum */
    FORM_SIGNED,                  /* the same, codes made by vi_signed_codes */
    FORM_MIN,                     /* a second term -(mw * d) * (sum of q) */
    FORM_PAIR,                    /* sum = scale[2b] * (first 16) + scale[2b+1] * (last 16) */
};

struct quant_type {
    unpack_fn *unpack;
    scales_fn *scales;
    int        unit;              /* blocks that unpack takes */
    enum form  form;
    int        bias;
    int        adds;              /* lane_dot: sums of two products that fit an int16 together */
    int        block_len, block_bytes;
};

/* One segment of one activation row. */
struct xseg {
    const int8_t *q;
    const float  *d;
    int32_t       start[16];      /* of the integer sums, per block or, in FORM_PAIR, per half block */
    float         q_sum[8];       /* FORM_MIN */
};

/* ---- Unpacking ----------------------------------------------------------------------------------------------- */

LANE_FN vi low_nibbles(vi v)
{
    return vi_and(v, vi_set1(0x0F0F0F0F));
}

LANE_FN vi high_nibbles(vi v)
{
    return low_nibbles(vi_shr(v, 4));
}

/* The halfwords at p, p + step, ... of each row. */
LANE_FN void rows_f16(vf *out, const uint8_t *p, size_t row_bytes, int step, int n)
{
    uint16_t half[SEG_BLOCKS][LANES];
    for (int r = 0; r < LANES; r++)
        for (int b = 0; b < n; b++)
            memcpy(&half[b][r], p + (size_t)r * row_bytes + (size_t)(b * step), 2);
    for (int b = 0; b < n; b++)
        out[b] = vf_from_f16(half[b]);
}

LANE_FN void scales_q8_0(struct scales *s, const uint8_t *p, size_t row_bytes, int n_blocks)
{
    rows_f16(s->dw, p, row_bytes, 34, n_blocks);
}

LANE_FN void unpack_q8_0(vi (*codes)[8], const uint8_t *p, size_t row_bytes, int b)
{
    vi_rows32(codes[0], p + 34 * b + 2, row_bytes);
    for (int k = 0; k < 8; k++)
        codes[0][k] = vi_signed_codes(codes[0][k]);
}

LANE_FN void scales_q4_0(struct scales *s, const uint8_t *p, size_t row_bytes, int n_blocks)
{
    rows_f16(s->dw, p, row_bytes, 18, n_blocks);
}

LANE_FN void unpack_q4_0(vi (*codes)[8], const uint8_t *p, size_t row_bytes, int b)
{
    vi v[4];
    vi_rows16(v, p + 18 * b + 2, row_bytes);
    for (int k = 0; k < 4; k++) {
        codes[0][k] = low_nibbles(v[k]);
        codes[0][4 + k] = high_nibbles(v[k]);
    }
}

/* 2^(e - 128) in each lane: an exponent field of e - 1, or a subnormal for e below 2. */
LANE_FN vf e8m0(vi e)
{
    vi normal = vi_shl(vi_add(e, vi_set1(-1)), 23);          /* negative for e = 0, zero for 1: never the greater */
    vi subnormal = vi_shlv(vi_set1(1 << 21), vi_min(e, vi_set1(1)));
    return vf_from_bits(vi_max(normal, subnormal));
}

LANE_FN void scales_mxfp4(struct scales *s, const uint8_t *p, size_t row_bytes, int n_blocks)
{
    uint8_t e[SEG_BLOCKS][LANES];
    for (int r = 0; r < LANES; r++)
        for (int b = 0; b < n_blocks; b++)
            e[b][r] = p[(size_t)r * row_bytes + (size_t)(17 * b)];
    for (int b = 0; b < n_blocks; b++)
        s->dw[b] = e8m0(vi_from_u8(e[b]));
}

enum { FP4_BIAS = 12 };
static const uint8_t fp4_codes[16] = {      /* twice the E2M1 value, plus FP4_BIAS */
    12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0,
};

LANE_FN void unpack_mxfp4(vi (*codes)[8], const uint8_t *p, size_t row_bytes, int b)
{
    vi v[4];
    vi_rows16(v, p + 17 * b + 1, row_bytes);
    for (int k = 0; k < 4; k++) {
        codes[0][k] = vi_lookup(fp4_codes, low_nibbles(v[k]));
        codes[0][4 + k] = vi_lookup(fp4_codes, high_nibbles(v[k]));
    }
}

/* d, dmin and the eight 6-bit scales and minimums of Q4_K and Q5_K, from the sixteen bytes they share:
 *
 *     head[0] d, dmin    head[1] scales 0..3, low six bits; above them two bits of scales 4..7
 *                        head[2] minimums likewise    head[3] four low bits of scales and of minimums 4..7 */
LANE_FN void scales_k(struct scales *s, const uint8_t *p, size_t row_bytes, int n_blocks)
{
    const vi six = vi_set1(0x3F3F3F3F), two = vi_set1(0x30303030), byte = vi_set1(0xFF);
    vi head[4];
    vi_rows16(head, p, row_bytes);
    vi scales[2] = { vi_and(head[1], six), vi_or(low_nibbles(head[3]), vi_and(vi_shr(head[1], 2), two)) };
    vi mins[2] = { vi_and(head[2], six), vi_or(high_nibbles(head[3]), vi_and(vi_shr(head[2], 2), two)) };
    vf d = vf_from_low_f16(head[0]), dmin = vf_from_low_f16(vi_shr(head[0], 16));
    for (int b = 0; b < n_blocks; b++) {
        s->dw[b] = vf_mul(d, vf_from_int(vi_and(vi_shr(scales[b / 4], 8 * (b % 4)), byte)));
        s->mw[b] = vf_mul(dmin, vf_from_int(vi_and(vi_shr(mins[b / 4], 8 * (b % 4)), byte)));
    }
}

LANE_FN void unpack_q4_k(vi (*codes)[8], const uint8_t *p, size_t row_bytes, int b)
{
    vi v[8];
    vi_rows32(v, p + 16 + 16 * b, row_bytes);
    for (int k = 0; k < 8; k++) {
        codes[0][k] = low_nibbles(v[k]);
        codes[1][k] = high_nibbles(v[k]);
    }
}

/* Bit g of every byte, as bit 4. */
LANE_FN vi fifth_bit(vi v, int g)
{
    return vi_and(g < 4 ? vi_shl(v, 4 - g) : vi_shr(v, g - 4), vi_set1(0x10101010));
}

LANE_FN void unpack_q5_k(vi (*codes)[8], const uint8_t *p, size_t row_bytes, int b)
{
    vi v[8], fifth[8];
    vi_rows32(fifth, p + 16, row_bytes);
    vi_rows32(v, p + 48 + 16 * b, row_bytes);
    for (int k = 0; k < 8; k++) {
        codes[0][k] = vi_or(low_nibbles(v[k]), fifth_bit(fifth[k], b));
        codes[1][k] = vi_or(high_nibbles(v[k]), fifth_bit(fifth[k], b + 1));
    }
}

LANE_FN void scales_q6_k(struct scales *s, const uint8_t *p, size_t row_bytes, int n_blocks)
{
    vi v[4];
    vi_rows16(v, p + 192, row_bytes);
    for (int i = 0; i < 2 * n_blocks; i++)
        s->pair[i] = vf_from_int(vi_sar(vi_shl(v[i / 4], 24 - 8 * (i % 4)), 24));
    vi_rows16(v, p + 194, row_bytes);                                   /* its last two bytes are d */
    for (int b = 0; b < n_blocks; b++)
        s->dw[b] = vf_from_low_f16(vi_shr(v[3], 16));
}

/* Half a super-block: blocks 0 and 2 in the nibbles of the first 32 bytes, 1 and 3 in the next, bit pairs above them. */
LANE_FN void unpack_q6_k(vi (*codes)[8], const uint8_t *p, size_t row_bytes, int b)
{
    const vi pair = vi_set1(0x30303030);
    vi even[8], odd[8], high[8];
    vi_rows32(even, p + 16 * b, row_bytes);
    vi_rows32(odd, p + 16 * b + 32, row_bytes);
    vi_rows32(high, p + 128 + 8 * b, row_bytes);
    for (int k = 0; k < 8; k++) {
        codes[0][k] = vi_or(low_nibbles(even[k]), vi_and(vi_shl(high[k], 4), pair));
        codes[1][k] = vi_or(low_nibbles(odd[k]), vi_and(vi_shl(high[k], 2), pair));
        codes[2][k] = vi_or(high_nibbles(even[k]), vi_and(high[k], pair));
        codes[3][k] = vi_or(high_nibbles(odd[k]), vi_and(vi_shr(high[k], 2), pair));
    }
}

/* ---- One segment of LANES rows with a few activation rows ------------------------------------------------------ */

LANE_FN void xseg_init(struct xseg *xs, const struct pf_xrow *x, int at, const struct quant_type *t)
{
    __m256i sums = _mm256_loadu_si256((const void *)(x->s + at / 16));      /* may reach past n: the rows are padded */
    __m256i pairs = _mm256_madd_epi16(sums, _mm256_set1_epi16(1)), bias = _mm256_set1_epi32(-t->bias);
    xs->q = x->q + at;
    xs->d = x->d + at / 32;
    if (t->form == FORM_PAIR) {
        __m256i lo = _mm256_cvtepi16_epi32(_mm256_castsi256_si128(sums));
        __m256i hi = _mm256_cvtepi16_epi32(_mm256_extracti128_si256(sums, 1));
        _mm256_storeu_si256((void *)xs->start, _mm256_mullo_epi32(lo, bias));
        _mm256_storeu_si256((void *)(xs->start + 8), _mm256_mullo_epi32(hi, bias));
    } else {
        _mm256_storeu_si256((void *)xs->start, _mm256_mullo_epi32(pairs, bias));
    }
    if (t->form == FORM_MIN)
        _mm256_storeu_ps(xs->q_sum, _mm256_cvtepi32_ps(pairs));
}

/* sum[a] = the integer sum of block b as a float. With two scales a sum of 16 is at most 16 * 32 * 127 and a scale 128:
 * every product and their sum stay below 2^24, so floats hold them exactly. */
LANE_FN void block_sums(const vi *codes, const struct scales *s, int b, const struct xseg *xs, int n_a,
                        const struct quant_type *t, vf *sum)
{
    const int8_t *q[LANES_X];
    vi is[LANES_X], is2[LANES_X];
    for (int a = 0; a < n_a; a++) {
        q[a] = xs[a].q;
        is[a] = t->bias ? vi_set1(xs[a].start[t->form == FORM_PAIR ? 2 * b : b]) : vi_zero();
    }
    if (t->form == FORM_PAIR) {
        for (int a = 0; a < n_a; a++)
            is2[a] = vi_set1(xs[a].start[2 * b + 1]);
        lane_dot(n_a, 4, t->adds, codes, q, 32 * b, is);
        lane_dot(n_a, 4, t->adds, codes + 4, q, 32 * b + 16, is2);
        for (int a = 0; a < n_a; a++)
            sum[a] = vf_fma(s->pair[2 * b + 1], vf_from_int(is2[a]), vf_mul(s->pair[2 * b], vf_from_int(is[a])));
        return;
    }
    if (t->form == FORM_SIGNED)
        lane_dot_signed(n_a, 8, codes, q, 32 * b, is);
    else
        lane_dot(n_a, 8, t->adds, codes, q, 32 * b, is);
    for (int a = 0; a < n_a; a++)
        sum[a] = vf_from_int(is[a]);
}

/* Adds the terms of block b to the chains acc[a]. */
LANE_FN void block_mul(const vi *codes, const struct scales *s, int b, const struct xseg *xs, int n_a,
                       const struct quant_type *t, vf *acc)
{
    vf sum[LANES_X];
    block_sums(codes, s, b, xs, n_a, t, sum);
    for (int a = 0; a < n_a; a++) {
        vf d = vf_set1(xs[a].d[b]);
        acc[a] = vf_fma(vf_mul(s->dw[b], d), sum[a], acc[a]);
        if (t->form == FORM_MIN)
            acc[a] = vf_fnma(vf_mul(s->mw[b], d), vf_set1(xs[a].q_sum[b]), acc[a]);
    }
}

/* ---- All rows ------------------------------------------------------------------------------------------------ */

/* One call: what is multiplied and where it goes. */
struct job {
    const uint8_t        *w;
    size_t                row_bytes;
    int                   n;
    const struct pf_xrow *x;
    int                   n_x;
    float                *y;
    size_t                y_stride;
};

/* Blocks of the segment at element `at`: a constant for types that have whole segments only. */
LANE_FN int seg_blocks(const struct quant_type *t, int n, int at)
{
    return t->block_len == SEG_LEN || n - at >= SEG_LEN ? SEG_BLOCKS : (n - at) / 32;
}

LANE_FN size_t seg_bytes(const struct quant_type *t)
{
    return (size_t)(SEG_LEN / t->block_len * t->block_bytes);
}

LANE_FN void prefetch_range(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i += 64)
        _mm_prefetch((const char *)p + i, _MM_HINT_T0);
}

LANE_FN vf seg_vec(const struct quant_type *t, const uint8_t *p, size_t row_bytes, int n_blocks, const struct xseg *xs,
                   const uint8_t *ahead)
{
    struct scales s;
    vf acc = vf_zero();
    t->scales(&s, p, row_bytes, n_blocks);
#pragma GCC unroll 8
    for (int b = 0; b < n_blocks; b += t->unit) {
        vi codes[4][8];
        if (ahead)
            prefetch_range(ahead + (size_t)b * LANES * seg_bytes(t) / 8, (size_t)t->unit * LANES * seg_bytes(t) / 8);
        t->unpack(codes, p, row_bytes, b);
        for (int u = 0; u < t->unit; u++)
            block_mul(codes[u], &s, b + u, xs, 1, t, &acc);
    }
    return acc;
}

/* Rows r .. r + LANES - 1 with one activation row; the rows after them, if any, are fetched meanwhile. */
LANE_FN void group_vec(const struct quant_type *t, const struct job *job, int r, bool more)
{
    const uint8_t *p = job->w + (size_t)r * job->row_bytes, *ahead = p + LANES * job->row_bytes;
    vf total = vf_zero();
    for (int at = 0; at < job->n; at += SEG_LEN, p += seg_bytes(t), ahead += LANES * seg_bytes(t)) {
        struct xseg xs;
        xseg_init(&xs, job->x, at, t);
        total = vf_add(total, seg_vec(t, p, job->row_bytes, seg_blocks(t, job->n, at), &xs,
                                      more ? ahead : NULL));
    }
    vf_store(job->y + r, total);
}

LANE_FN void seg_tile(const struct quant_type *t, const struct seg *g, const struct job *job, int r, int at, int j, int n_a)
{
    struct xseg xs[LANES_X];
    vf acc[LANES_X];
    for (int a = 0; a < n_a; a++) {
        xseg_init(xs + a, job->x + j + a, at, t);
        acc[a] = vf_zero();
    }
    for (int b = 0, n_blocks = seg_blocks(t, job->n, at); b < n_blocks; b++)
        block_mul(g->codes[b], &g->scales, b, xs, n_a, t, acc);
    for (int a = 0; a < n_a; a++) {
        float *y = job->y + (size_t)(j + a) * job->y_stride + r;
        vf_store(y, vf_add(at ? vf_load(y) : vf_zero(), acc[a]));
    }
}

LANE_FN void group_tile(const struct quant_type *t, const struct job *job, int r)
{
    const uint8_t *p = job->w + (size_t)r * job->row_bytes;
    for (int at = 0; at < job->n; at += SEG_LEN, p += seg_bytes(t)) {
        struct seg g;
        int n_blocks = seg_blocks(t, job->n, at), j = 0;
        t->scales(&g.scales, p, job->row_bytes, n_blocks);
        for (int b = 0; b < n_blocks; b += t->unit)
            t->unpack(g.codes + b, p, job->row_bytes, b);
        for (; j + LANES_X <= job->n_x; j += LANES_X)
            seg_tile(t, &g, job, r, at, j, LANES_X);
        for (; j + 2 <= job->n_x; j += 2)
            seg_tile(t, &g, job, r, at, j, 2);
        if (j < job->n_x)
            seg_tile(t, &g, job, r, at, j, 1);
    }
}

/* Fewer than LANES rows: a group that lies in a buffer, one segment at a time, the missing rows being the last again. */
LANE_FN void few_rows(const struct quant_type *t, const struct job *job, int n_rows, int j)
{
    uint8_t rows[LANES][SEG_MAX_BYTES] = { { 0 } };
    const uint8_t *p = job->w;
    vf total = vf_zero();
    for (int at = 0; at < job->n; at += SEG_LEN, p += seg_bytes(t)) {
        struct xseg xs;
        int n_blocks = seg_blocks(t, job->n, at);
        for (int r = 0; r < n_rows; r++)
            memcpy(rows[r], p + (size_t)r * job->row_bytes, (size_t)(n_blocks * 32 / t->block_len * t->block_bytes));
        xseg_init(&xs, job->x + j, at, t);
        total = vf_add(total, seg_vec(t, rows[0], SEG_MAX_BYTES, n_blocks, &xs, NULL));
    }
    vf_store_n(job->y + (size_t)j * job->y_stride, total, n_rows);
}

LANE_FN void all_rows(const struct quant_type *t, const struct job *job, int n_rows, bool tile)
{
    if (n_rows < LANES) {
        for (int j = 0; j < job->n_x && n_rows > 0; j++)
            few_rows(t, job, n_rows, j);
        return;
    }
    for (int r = 0; r < n_rows; r += LANES) {
        int from = r + LANES <= n_rows ? r : n_rows - LANES;
        if (tile)
            group_tile(t, job, from);
        else
            group_vec(t, job, from, r + LANES < n_rows);
    }
}

/* The two entries of a type. */
#define MUL_QUANT(name, ...)                                                                                         \
    static const struct quant_type type_##name = { __VA_ARGS__ };                                                   \
    static void vec_##name(const void *w, size_t row_bytes, int n_rows, int n, const struct pf_xrow *x, int n_x,    \
                           float *y, size_t y_stride)                                                               \
    {                                                                                                               \
        struct job job = { w, row_bytes, n, x, n_x, y, y_stride };                                                  \
        all_rows(&type_##name, &job, n_rows, false);                                                                \
    }                                                                                                               \
    static void tile_##name(const void *w, size_t row_bytes, int n_rows, int n, const struct pf_xrow *x, int n_x,   \
                            float *y, size_t y_stride)                                                              \
    {                                                                                                               \
        struct job job = { w, row_bytes, n, x, n_x, y, y_stride };                                                  \
        all_rows(&type_##name, &job, n_rows, true);                                                                 \
    }

MUL_QUANT(q8_0, unpack_q8_0, scales_q8_0, .unit = 1, .form = FORM_SIGNED, .bias = LANES_S8_BIAS, .block_len = 32,
          .block_bytes = 34)
MUL_QUANT(q4_0, unpack_q4_0, scales_q4_0, .unit = 1, .form = FORM_PLAIN, .bias = 8, .adds = 8, .block_len = 32,
          .block_bytes = 18)
MUL_QUANT(mxfp4, unpack_mxfp4, scales_mxfp4, .unit = 1, .form = FORM_PLAIN, .bias = FP4_BIAS, .adds = 4,
          .block_len = 32, .block_bytes = 17)
MUL_QUANT(q4_k, unpack_q4_k, scales_k, .unit = 2, .form = FORM_MIN, .adds = 8, .block_len = 256, .block_bytes = 144)
MUL_QUANT(q5_k, unpack_q5_k, scales_k, .unit = 2, .form = FORM_MIN, .adds = 4, .block_len = 256, .block_bytes = 176)
MUL_QUANT(q6_k, unpack_q6_k, scales_q6_k, .unit = 4, .form = FORM_PAIR, .bias = 32, .adds = 2, .block_len = 256,
          .block_bytes = 210)

#define QUANT_ENTRIES(kind) \
    [PF_Q8_0] = kind##_q8_0, [PF_Q4_0] = kind##_q4_0, [PF_MXFP4] = kind##_mxfp4, \
    [PF_Q4_K] = kind##_q4_k, [PF_Q5_K] = kind##_q5_k, [PF_Q6_K] = kind##_q6_k

#endif
