/* Sixteen rows side by side: the vector operations that mul_quant.h and mul_float.h are written in, for AVX-512.
 *
 * One lane is one weight row, so every lane runs the scalar order of accumulation unchanged and nothing is ever summed
 * across lanes but whole integers. avx2_lanes.h offers the same names with eight lanes. Include one of them per file.
 *
 * The one #ifdef: with VNNI four products of bytes are summed by one instruction, exactly. Without it vpmaddubsw forms
 * sums of two in int16, which saturates; `adds` says how many of them may be added in int16 before widening. */
#ifndef PF_AVX512_LANES_H
#define PF_AVX512_LANES_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

/* Not for the thread sanitizer, which mul_quant.h shows what others read and write. */
#define LANE_FN static inline __attribute__((always_inline, no_sanitize("thread")))

#include "kernels/x86/fetch.h"

enum { LANES = 16, LANES_X = 8, LANES_FEW = 4, LANES_VEC_ROWS = 4, LANES_FLOAT_ROWS = 4, LANES_FLOAT_X = 3 };

typedef __m512i vi;
typedef __m512  vf;

LANE_FN vi vi_zero(void)                         { return _mm512_setzero_si512(); }
LANE_FN vi vi_set1(int32_t a)                    { return _mm512_set1_epi32(a); }
LANE_FN vi vi_load(const void *p)                { return _mm512_loadu_si512(p); }
LANE_FN vi vi_and(vi a, vi b)                    { return _mm512_and_si512(a, b); }
LANE_FN vi vi_or(vi a, vi b)                     { return _mm512_or_si512(a, b); }
LANE_FN vi vi_xor(vi a, vi b)                    { return _mm512_xor_si512(a, b); }
LANE_FN vi vi_add(vi a, vi b)                    { return _mm512_add_epi32(a, b); }
LANE_FN vi vi_max(vi a, vi b)                    { return _mm512_max_epi32(a, b); }
LANE_FN vi vi_min(vi a, vi b)                    { return _mm512_min_epi32(a, b); }
LANE_FN vi vi_shl(vi a, int n)                   { return _mm512_sll_epi32(a, _mm_cvtsi32_si128(n)); }
LANE_FN vi vi_shr(vi a, int n)                   { return _mm512_srl_epi32(a, _mm_cvtsi32_si128(n)); }
LANE_FN vi vi_sar(vi a, int n)                   { return _mm512_sra_epi32(a, _mm_cvtsi32_si128(n)); }
LANE_FN vi vi_shlv(vi a, vi n)                   { return _mm512_sllv_epi32(a, n); }
LANE_FN void vi_store(void *p, vi a)             { _mm512_storeu_si512(p, a); }
LANE_FN vi vi_add16(vi a, vi b)                  { return _mm512_add_epi16(a, b); }
LANE_FN vi vi_madd16(vi a, vi b)                 { return _mm512_madd_epi16(a, b); }
LANE_FN vi vi_shl16(vi a, int n)                 { return _mm512_sll_epi16(a, _mm_cvtsi32_si128(n)); }
LANE_FN vi vi_sar16(vi a, int n)                 { return _mm512_sra_epi16(a, _mm_cvtsi32_si128(n)); }
LANE_FN vi vi_from_u16(const uint16_t *p)        { return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)p)); }

/* v where a and b differ, 0 where they are equal. */
LANE_FN vi vi_unless_equal(vi v, vi a, vi b)     { return _mm512_maskz_mov_epi32(_mm512_cmpneq_epi32_mask(a, b), v); }

/* Every byte of a lane replaced by the lane's byte m. */
LANE_FN vi vi_byte4(vi a, int m)
{
    const __m128i four = _mm_setr_epi32(0x00000000, 0x04040404, 0x08080808, 0x0C0C0C0C);
    return _mm512_shuffle_epi8(a, _mm512_broadcast_i32x4(_mm_add_epi8(four, _mm_set1_epi8((char)m))));
}

/* Each byte of idx, 0 to 15, replaced by that byte of table[16]. */
LANE_FN vi vi_lookup(const uint8_t *table, vi idx)
{
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const void *)table)), idx);
}

/* The bytes of every 16 in the order of order[16]. */
LANE_FN vi vi_shuffle(vi a, const uint8_t *order)
{
    return _mm512_shuffle_epi8(a, _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)order)));
}

LANE_FN vf vf_zero(void)                         { return _mm512_setzero_ps(); }
LANE_FN vf vf_set1(float a)                      { return _mm512_set1_ps(a); }
LANE_FN vf vf_load(const float *p)               { return _mm512_loadu_ps(p); }
LANE_FN void vf_store(float *p, vf a)            { _mm512_storeu_ps(p, a); }
LANE_FN vf vf_add(vf a, vf b)                    { return _mm512_add_ps(a, b); }
LANE_FN vf vf_mul(vf a, vf b)                    { return _mm512_mul_ps(a, b); }
LANE_FN vf vf_fma(vf a, vf b, vf c)              { return _mm512_fmadd_ps(a, b, c); }
LANE_FN vf vf_fnma(vf a, vf b, vf c)             { return _mm512_fnmadd_ps(a, b, c); }
LANE_FN vf vf_from_int(vi a)                     { return _mm512_cvtepi32_ps(a); }
LANE_FN vf vf_from_bits(vi a)                    { return _mm512_castsi512_ps(a); }
LANE_FN vf vf_from_f16(const uint16_t *p)        { return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)p)); }

/* The low half of every lane, an F16. */
LANE_FN vf vf_from_low_f16(vi a)                 { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(a)); }

/* The first n lanes from or to p; lanes past them are 0, and nothing past p[n] is touched. */
LANE_FN vf vf_load_n(const float *p, int n)      { return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p); }
LANE_FN void vf_store_n(float *p, vf a, int n)   { _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), a); }

/* a * b + c in the first n lanes, c in the others; n below 1: in none, above LANES: in all. */
LANE_FN vf vf_fma_n(vf a, vf b, vf c, int n)
{
    __mmask16 m = n <= 0 ? 0 : n >= LANES ? 0xFFFF : (__mmask16)((1u << n) - 1);
    return _mm512_mask3_fmadd_ps(a, b, c, m);
}

/* The 16 lanes added as 8 + 8, 4 + 4, 2 + 2, 1 + 1. */
LANE_FN float vf_fold(vf a)
{
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}

/* Masked broadcasts rather than inserts: those would compete with the transpose for the shuffle units. */
LANE_FN __m512i lane_quad(const uint8_t *p, size_t row_bytes)
{
    __m512i a = _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)p));
    a = _mm512_mask_broadcast_i32x4(a, 0x00F0, _mm_loadu_si128((const void *)(p + 4 * row_bytes)));
    a = _mm512_mask_broadcast_i32x4(a, 0x0F00, _mm_loadu_si128((const void *)(p + 8 * row_bytes)));
    return _mm512_mask_broadcast_i32x4(a, 0xF000, _mm_loadu_si128((const void *)(p + 12 * row_bytes)));
}

LANE_FN __m512i lane_halves(const uint8_t *p, size_t row_bytes)
{
    __m512i a = _mm512_castsi256_si512(_mm256_loadu_si256((const void *)p));
    return _mm512_inserti64x4(a, _mm256_loadu_si256((const void *)(p + 4 * row_bytes)), 1);
}

/* Columns of 4 x 4 transposed: column c of v[k] has bytes 16c + 4k .. 4k+3 of the four rows p, p + row_bytes ... */
LANE_FN void lane_transpose(__m512i v[4], __m512i a0, __m512i a1, __m512i a2, __m512i a3)
{
    __m512i lo01 = _mm512_unpacklo_epi32(a0, a1), hi01 = _mm512_unpackhi_epi32(a0, a1);
    __m512i lo23 = _mm512_unpacklo_epi32(a2, a3), hi23 = _mm512_unpackhi_epi32(a2, a3);
    v[0] = _mm512_unpacklo_epi64(lo01, lo23);
    v[1] = _mm512_unpackhi_epi64(lo01, lo23);
    v[2] = _mm512_unpacklo_epi64(hi01, hi23);
    v[3] = _mm512_unpackhi_epi64(hi01, hi23);
}

/* 16 bytes of each row, transposed: lane r of v[k] holds bytes 4k .. 4k+3 of p + r * row_bytes.
 *
 *     loaded   | row r | row r+4 | row r+8 | row r+12 |      then every 128-bit column is a 4 x 4 transpose */
LANE_FN void vi_rows16(vi v[4], const uint8_t *p, size_t row_bytes)
{
    lane_transpose(v, lane_quad(p, row_bytes), lane_quad(p + row_bytes, row_bytes),
                   lane_quad(p + 2 * row_bytes, row_bytes), lane_quad(p + 3 * row_bytes, row_bytes));
}

/* vi_rows16 for 32 bytes of each row, in half as many loads.
 *
 *     loaded   | row r, both halves | row r+4, both halves |   and for rows r+8, r+12 */
LANE_FN void vi_rows32(vi v[8], const uint8_t *p, size_t row_bytes)
{
    __m512i lo[4], hi[4];
    const uint8_t *p8 = p + 8 * row_bytes;
    lane_transpose(lo, lane_halves(p, row_bytes), lane_halves(p + row_bytes, row_bytes),
                   lane_halves(p + 2 * row_bytes, row_bytes), lane_halves(p + 3 * row_bytes, row_bytes));
    lane_transpose(hi, lane_halves(p8, row_bytes), lane_halves(p8 + row_bytes, row_bytes),
                   lane_halves(p8 + 2 * row_bytes, row_bytes), lane_halves(p8 + 3 * row_bytes, row_bytes));
    for (int k = 0; k < 4; k++) {
        v[k] = _mm512_shuffle_i32x4(lo[k], hi[k], 0x88);
        v[4 + k] = _mm512_shuffle_i32x4(lo[k], hi[k], 0xDD);
    }
}

LANE_FN vi lane_bytes4(const int8_t *x)
{
    int32_t four;
    memcpy(&four, x, 4);
    return _mm512_set1_epi32(four);
}

/* lane_dot: sum[a] += dot of n_k * 4 unsigned codes of each row with the activations x[a] from `at` on; these are f's
 * steps from `step` on. Exact: without VNNI because codes are at most 128 / adds. lane_dot_signed: the same for signed
 * bytes as vi_signed_codes left them; LANES_S8_BIAS is what that added to each. */
#ifdef __AVX512VNNI__

LANE_FN vi vi_dot4(vi s, vi u, vi x)             { return _mm512_dpbusd_epi32(s, u, x); }

#include "kernels/x86/vnni_lanes.h"

#else

enum { LANES_S8_BIAS = 0 };

LANE_FN vi vi_signed_codes(vi w)                 { return w; }

LANE_FN void lane_dot(int n_a, int n_k, int adds, const vi *w, const int8_t *const *x, int at, const struct fetch *f,
                      int step, vi *sum)
{
    const __m512i ones = _mm512_set1_epi16(1);
    for (int k0 = 0; k0 < n_k; k0 += adds)
        for (int a = 0; a < n_a; a++) {
            __m512i pair = _mm512_setzero_si512();
            for (int k = k0; k < k0 + adds && k < n_k; k++) {
                if (a == 0)
                    fetch_step(f, step + k);
                pair = _mm512_add_epi16(pair, _mm512_maddubs_epi16(w[k], lane_bytes4(x[a] + at + 4 * k)));
            }
            sum[a] = _mm512_add_epi32(sum[a], _mm512_madd_epi16(pair, ones));
        }
}

/* |w| up to 128 as an unsigned code, its sign moved to x: a pair is at most 32512. */
LANE_FN void lane_dot_signed(int n_a, int n_k, const vi *w, const int8_t *const *x, int at, const struct fetch *f,
                             int step, vi *sum)
{
    const __m512i ones = _mm512_set1_epi16(1);
    for (int k = 0; k < n_k; k++) {
        __mmask64 negative = _mm512_movepi8_mask(w[k]);
        __m512i size = _mm512_abs_epi8(w[k]);
        fetch_step(f, step + k);
        for (int a = 0; a < n_a; a++) {
            __m512i four = lane_bytes4(x[a] + at + 4 * k);
            four = _mm512_mask_sub_epi8(four, negative, _mm512_setzero_si512(), four);
            sum[a] = _mm512_add_epi32(sum[a], _mm512_madd_epi16(_mm512_maddubs_epi16(size, four), ones));
        }
    }
}

#endif

#endif
