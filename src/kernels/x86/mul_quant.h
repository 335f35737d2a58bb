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

struct seg {
    vi codes[SEG_BLOCKS][8];
    vf dw[SEG_BLOCKS];
    vf mw[SEG_BLOCKS];            /* types with minimums */
    vf scale[2 * SEG_BLOCKS];     /* types with two integer scales a block */
};

/* Reads n_blocks blocks of 32 of LANES rows, row r at p + r * row_bytes. */
typedef void unpack_fn(struct seg *g, const uint8_t *p, size_t row_bytes, int n_blocks);

enum form {
    FORM_PLAIN,                   /* a term dw * d * sum */
    FORM_SIGNED,                  /* the same, codes made by vi_signed_codes */
    FORM_MIN,                     /* a second term -(mw * d) * (sum of q) */
    FORM_PAIR,                    /* sum = scale[2b] * (first 16) + scale[2b+1] * (last 16) */
};

struct quant_type {
    unpack_fn *unpack;
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

/* The halfword at p of each row. */
LANE_FN vf rows_f16(const uint8_t *p, size_t row_bytes)
{
    uint16_t h[LANES];
    for (int r = 0; r < LANES; r++)
        memcpy(h + r, p + (size_t)r * row_bytes, 2);
    return vf_from_f16(h);
}

LANE_FN void unpack_q8_0(struct seg *g, const uint8_t *p, size_t row_bytes, int n_blocks)
{
    for (int b = 0; b < n_blocks; b++, p += 34) {
        g->dw[b] = rows_f16(p, row_bytes);
        vi_rows16(g->codes[b], p + 2, row_bytes);
        vi_rows16(g->codes[b] + 4, p + 18, row_bytes);
        for (int k = 0; k < 8; k++)
            g->codes[b][k] = vi_signed_codes(g->codes[b][k]);
    }
}

LANE_FN void unpack_q4_0(struct seg *g, const uint8_t *p, size_t row_bytes, int n_blocks)
{
    for (int b = 0; b < n_blocks; b++, p += 18) {
        vi v[4];
        g->dw[b] = rows_f16(p, row_bytes);
        vi_rows16(v, p + 2, row_bytes);
        for (int k = 0; k < 4; k++) {
            g->codes[b][k] = low_nibbles(v[k]);
            g->codes[b][4 + k] = high_nibbles(v[k]);
        }
    }
}

/* 2^(e - 128) of the byte at p of each row: an exponent field of e - 1, or a subnormal for e below 2. */
LANE_FN vf rows_e8m0(const uint8_t *p, size_t row_bytes)
{
    uint8_t e8[16];
    for (int r = 0; r < LANES; r++)
        e8[r] = p[(size_t)r * row_bytes];
    vi e = vi_from_u8(e8);
    vi normal = vi_shl(vi_add(e, vi_set1(-1)), 23);          /* negative for e = 0, zero for 1: never the greater */
    vi subnormal = vi_shlv(vi_set1(1 << 21), vi_min(e, vi_set1(1)));
    return vf_from_bits(vi_max(normal, subnormal));
}

enum { FP4_BIAS = 12 };
static const uint8_t fp4_codes[16] = {      /* twice the E2M1 value, plus FP4_BIAS */
    12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0,
};

LANE_FN void unpack_mxfp4(struct seg *g, const uint8_t *p, size_t row_bytes, int n_blocks)
{
    for (int b = 0; b < n_blocks; b++, p += 17) {
        vi v[4];
        g->dw[b] = rows_e8m0(p, row_bytes);
        vi_rows16(v, p + 1, row_bytes);
        for (int k = 0; k < 4; k++) {
            g->codes[b][k] = vi_lookup(fp4_codes, low_nibbles(v[k]));
            g->codes[b][4 + k] = vi_lookup(fp4_codes, high_nibbles(v[k]));
        }
    }
}

/* d, dmin and the eight 6-bit scales and minimums of Q4_K and Q5_K, from the sixteen bytes they share:
 *
 *     head[0] d, dmin    head[1] scales 0..3, low six bits; above them two bits of scales 4..7
 *                        head[2] minimums likewise    head[3] four low bits of scales and of minimums 4..7 */
LANE_FN void unpack_k_scales(struct seg *g, const uint8_t *p, size_t row_bytes)
{
    const vi six = vi_set1(0x3F3F3F3F), two = vi_set1(0x30303030), byte = vi_set1(0xFF);
    vi head[4];
    vi_rows16(head, p, row_bytes);
    vi scales[2] = { vi_and(head[1], six), vi_or(low_nibbles(head[3]), vi_and(vi_shr(head[1], 2), two)) };
    vi mins[2] = { vi_and(head[2], six), vi_or(high_nibbles(head[3]), vi_and(vi_shr(head[2], 2), two)) };
    vf d = vf_from_low_f16(head[0]), dmin = vf_from_low_f16(vi_shr(head[0], 16));
    for (int b = 0; b < 8; b++) {
        g->dw[b] = vf_mul(d, vf_from_int(vi_and(vi_shr(scales[b / 4], 8 * (b % 4)), byte)));
        g->mw[b] = vf_mul(dmin, vf_from_int(vi_and(vi_shr(mins[b / 4], 8 * (b % 4)), byte)));
    }
}

LANE_FN void unpack_q4_k(struct seg *g, const uint8_t *p, size_t row_bytes, int n_blocks)
{
    (void)n_blocks;
    unpack_k_scales(g, p, row_bytes);
    for (int c = 0; c < 8; c++) {               /* sixteen bytes: half of the blocks c / 2 * 2 and the one after */
        vi v[4];
        vi_rows16(v, p + 16 + 16 * c, row_bytes);
        for (int k = 0; k < 4; k++) {
            g->codes[c / 2 * 2][c % 2 * 4 + k] = low_nibbles(v[k]);
            g->codes[c / 2 * 2 + 1][c % 2 * 4 + k] = high_nibbles(v[k]);
        }
    }
}

/* Bit g of every byte, as bit 4. */
LANE_FN vi fifth_bit(vi v, int g)
{
    return vi_and(g < 4 ? vi_shl(v, 4 - g) : vi_shr(v, g - 4), vi_set1(0x10101010));
}

LANE_FN void unpack_q5_k(struct seg *g, const uint8_t *p, size_t row_bytes, int n_blocks)
{
    (void)n_blocks;
    unpack_k_scales(g, p, row_bytes);
    for (int half = 0; half < 2; half++) {
        vi fifth[4];
        vi_rows16(fifth, p + 16 + 16 * half, row_bytes);
        for (int b = 0; b < 8; b += 2) {
            vi v[4];
            vi_rows16(v, p + 48 + 16 * b + 16 * half, row_bytes);
            for (int k = 0; k < 4; k++) {
                g->codes[b][half * 4 + k] = vi_or(low_nibbles(v[k]), fifth_bit(fifth[k], b));
                g->codes[b + 1][half * 4 + k] = vi_or(high_nibbles(v[k]), fifth_bit(fifth[k], b + 1));
            }
        }
    }
}

/* Sixteen bytes of quarters 0 and 2 (even), of 1 and 3 (odd) and of the bit pairs above all four. */
LANE_FN void unpack_q6_k_quarters(vi (*codes)[8], const vi *even, const vi *odd, const vi *high, int at)
{
    const vi pair = vi_set1(0x30303030);
    for (int k = 0; k < 4; k++) {
        codes[0][at + k] = vi_or(low_nibbles(even[k]), vi_and(vi_shl(high[k], 4), pair));
        codes[1][at + k] = vi_or(low_nibbles(odd[k]), vi_and(vi_shl(high[k], 2), pair));
        codes[2][at + k] = vi_or(high_nibbles(even[k]), vi_and(high[k], pair));
        codes[3][at + k] = vi_or(high_nibbles(odd[k]), vi_and(vi_shr(high[k], 2), pair));
    }
}

LANE_FN void unpack_q6_k(struct seg *g, const uint8_t *p, size_t row_bytes, int n_blocks)
{
    (void)n_blocks;
    for (int h = 0; h < 2; h++)
        for (int half = 0; half < 2; half++) {
            vi even[4], odd[4], high[4];
            vi_rows16(even, p + 64 * h + 16 * half, row_bytes);
            vi_rows16(odd, p + 64 * h + 32 + 16 * half, row_bytes);
            vi_rows16(high, p + 128 + 32 * h + 16 * half, row_bytes);
            unpack_q6_k_quarters(g->codes + 4 * h, even, odd, high, 4 * half);
        }
    vi v[4];
    vi_rows16(v, p + 192, row_bytes);
    for (int i = 0; i < 16; i++)
        g->scale[i] = vf_from_int(vi_sar(vi_shl(v[i / 4], 24 - 8 * (i % 4)), 24));
    vf d = rows_f16(p + 208, row_bytes);
    for (int b = 0; b < 8; b++)
        g->dw[b] = d;
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

/* sum[a] = the block's integer sum as a float. With two scales a sum of 16 is at most 16 * 32 * 127 and a scale 128:
 * every product and their sum stay below 2^24, so floats hold them exactly. */
LANE_FN void block_sums(const struct seg *g, int b, const struct xseg *xs, int n_a, const struct quant_type *t, vf *sum)
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
        lane_dot(n_a, 4, t->adds, g->codes[b], q, 32 * b, is);
        lane_dot(n_a, 4, t->adds, g->codes[b] + 4, q, 32 * b + 16, is2);
        for (int a = 0; a < n_a; a++)
            sum[a] = vf_fma(g->scale[2 * b + 1], vf_from_int(is2[a]), vf_mul(g->scale[2 * b], vf_from_int(is[a])));
        return;
    }
    if (t->form == FORM_SIGNED)
        lane_dot_signed(n_a, 8, g->codes[b], q, 32 * b, is);
    else
        lane_dot(n_a, 8, t->adds, g->codes[b], q, 32 * b, is);
    for (int a = 0; a < n_a; a++)
        sum[a] = vf_from_int(is[a]);
}

/* acc[a] = the segment's sum for activation row a. */
LANE_FN void seg_sums(const struct seg *g, int n_blocks, const struct xseg *xs, int n_a, const struct quant_type *t,
                      vf *acc)
{
    for (int a = 0; a < n_a; a++)
        acc[a] = vf_zero();
    for (int b = 0; b < n_blocks; b++) {
        vf sum[LANES_X];
        block_sums(g, b, xs, n_a, t, sum);
        for (int a = 0; a < n_a; a++) {
            vf d = vf_set1(xs[a].d[b]);
            acc[a] = vf_fma(vf_mul(g->dw[b], d), sum[a], acc[a]);
            if (t->form == FORM_MIN)
                acc[a] = vf_fnma(vf_mul(g->mw[b], d), vf_set1(xs[a].q_sum[b]), acc[a]);
        }
    }
}

/* Where a segment's sums go: y[a * stride] for rows 0 .. n_rows - 1, added to what is there unless it is the first. */
struct out {
    float *y;
    size_t stride;
    int    n_rows;
    bool   first;
};

LANE_FN void seg_mul(const struct seg *g, int at, int n_blocks, const struct pf_xrow *x, int n_a,
                     const struct quant_type *t, const struct out *o, int j)
{
    struct xseg xs[LANES_X];
    vf acc[LANES_X];
    for (int a = 0; a < n_a; a++)
        xseg_init(xs + a, x + j + a, at, t);
    seg_sums(g, n_blocks, xs, n_a, t, acc);
    for (int a = 0; a < n_a; a++) {
        float *y = o->y + (size_t)(j + a) * o->stride;
        vf total = o->first ? vf_zero() : vf_load_n(y, o->n_rows);
        vf_store_n(y, vf_add(total, acc[a]), o->n_rows);
    }
}

/* ---- All rows ------------------------------------------------------------------------------------------------ */

LANE_FN void prefetch_range(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i += 64)
        _mm_prefetch((const char *)p + i, _MM_HINT_T0);
}

/* LANES rows from p; ahead: the next rows to be read, fetched meanwhile, or NULL. */
LANE_FN void group_mul(const uint8_t *p, size_t row_bytes, int n, const struct pf_xrow *x, int n_x,
                       const struct quant_type *t, struct out *o, const uint8_t *ahead)
{
    int seg_bytes = SEG_LEN / t->block_len * t->block_bytes;
    for (int at = 0; at < n; at += SEG_LEN, p += seg_bytes) {
        struct seg g;
        int n_blocks = n - at < SEG_LEN ? (n - at) / 32 : SEG_BLOCKS, j = 0;
        if (t->block_len == SEG_LEN)
            n_blocks = SEG_BLOCKS;
        if (ahead)
            prefetch_range(ahead + (size_t)(at / SEG_LEN * seg_bytes) * LANES, (size_t)seg_bytes * LANES);
        t->unpack(&g, p, row_bytes, n_blocks);
        o->first = at == 0;
        for (; j + LANES_X <= n_x; j += LANES_X)
            seg_mul(&g, at, n_blocks, x, LANES_X, t, o, j);
        for (; j + 2 <= n_x; j += 2)
            seg_mul(&g, at, n_blocks, x, 2, t, o, j);
        if (j < n_x)
            seg_mul(&g, at, n_blocks, x, 1, t, o, j);
    }
}

/* Fewer than LANES rows: a group that lies in a buffer, one segment at a time, the missing rows being the last again. */
LANE_FN void few_rows_mul(const uint8_t *w, size_t row_bytes, int n, const struct pf_xrow *x, int n_x,
                          const struct quant_type *t, struct out *o)
{
    uint8_t rows[LANES][SEG_MAX_BYTES];
    int seg_bytes = SEG_LEN / t->block_len * t->block_bytes;
    for (int at = 0; at < n; at += SEG_LEN, w += seg_bytes) {
        struct seg g;
        int n_blocks = n - at < SEG_LEN ? (n - at) / 32 : SEG_BLOCKS;
        for (int r = 0; r < LANES; r++)
            memcpy(rows[r], w + (size_t)(r < o->n_rows ? r : o->n_rows - 1) * row_bytes,
                   (size_t)(n_blocks * 32 / t->block_len * t->block_bytes));
        t->unpack(&g, rows[0], SEG_MAX_BYTES, n_blocks);
        o->first = at == 0;
        for (int j = 0; j < n_x; j++)
            seg_mul(&g, at, n_blocks, x, 1, t, o, j);
    }
}

LANE_FN void rows_mul(const struct quant_type *t, const uint8_t *w, size_t row_bytes, int n_rows, int n,
                      const struct pf_xrow *x, int n_x, float *y, size_t y_stride)
{
    struct out o = { .y = y, .stride = y_stride, .n_rows = LANES };
    if (n_rows < LANES) {
        o.n_rows = n_rows;
        if (n_rows > 0)
            few_rows_mul(w, row_bytes, n, x, n_x, t, &o);
        return;
    }
    for (int r = 0; r < n_rows; r += LANES) {
        int r0 = r + LANES <= n_rows ? r : n_rows - LANES;
        const uint8_t *p = w + (size_t)r0 * row_bytes;
        o.y = y + r0;
        group_mul(p, row_bytes, n, x, n_x, t, &o, r + LANES < n_rows ? p + LANES * row_bytes : NULL);
    }
}

#define MUL_QUANT(name, ...)                                                                                         \
    static void mul_##name(const void *w, size_t row_bytes, int n_rows, int n, const struct pf_xrow *x, int n_x,    \
                           float *y, size_t y_stride)                                                               \
    {                                                                                                               \
        static const struct quant_type type = { .unpack = unpack_##name, __VA_ARGS__ };                             \
        rows_mul(&type, w, row_bytes, n_rows, n, x, n_x, y, y_stride);                                              \
    }

MUL_QUANT(q8_0, .form = FORM_SIGNED, .bias = LANES_S8_BIAS, .block_len = 32, .block_bytes = 34)
MUL_QUANT(q4_0, .form = FORM_PLAIN, .bias = 8, .adds = 8, .block_len = 32, .block_bytes = 18)
MUL_QUANT(mxfp4, .form = FORM_PLAIN, .bias = FP4_BIAS, .adds = 4, .block_len = 32, .block_bytes = 17)
MUL_QUANT(q4_k, .form = FORM_MIN, .adds = 8, .block_len = 256, .block_bytes = 144)
MUL_QUANT(q5_k, .form = FORM_MIN, .adds = 4, .block_len = 256, .block_bytes = 176)
MUL_QUANT(q6_k, .form = FORM_PAIR, .bias = 32, .adds = 2, .block_len = 256, .block_bytes = 210)

#define MUL_QUANT_ENTRIES \
    [PF_Q8_0] = mul_q8_0, [PF_Q4_0] = mul_q4_0, [PF_MXFP4] = mul_mxfp4, \
    [PF_Q4_K] = mul_q4_k, [PF_Q5_K] = mul_q5_k, [PF_Q6_K] = mul_q6_k

#endif
