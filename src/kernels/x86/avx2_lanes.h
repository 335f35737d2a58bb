/* Eight rows side by side: the vector operations of mul_quant.h and mul_float.h for AVX2 with FMA and F16C.
 * avx512_lanes.h has the same names and says what each operation does. Include one of them per file.
 *
 * The one #ifdef: with AVX-VNNI four products of bytes are summed by one instruction, exactly. */
#ifndef PF_AVX2_LANES_H
#define PF_AVX2_LANES_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

/* Not for the thread sanitizer, which mul_quant.h shows what others read and write. */
#define LANE_FN static inline __attribute__((always_inline, no_sanitize("thread")))

#include "kernels/x86/fetch.h"

enum { LANES = 8, LANES_X = 4, LANES_FEW = 2, LANES_VEC_ROWS = 2, LANES_FLOAT_ROWS = 1, LANES_FLOAT_X = 3 };

typedef __m256i vi;
typedef __m256  vf;

LANE_FN vi vi_zero(void)                         { return _mm256_setzero_si256(); }
LANE_FN vi vi_set1(int32_t a)                    { return _mm256_set1_epi32(a); }
LANE_FN vi vi_load(const void *p)                { return _mm256_loadu_si256(p); }
LANE_FN vi vi_and(vi a, vi b)                    { return _mm256_and_si256(a, b); }
LANE_FN vi vi_or(vi a, vi b)                     { return _mm256_or_si256(a, b); }
LANE_FN vi vi_xor(vi a, vi b)                    { return _mm256_xor_si256(a, b); }
LANE_FN vi vi_add(vi a, vi b)                    { return _mm256_add_epi32(a, b); }
LANE_FN vi vi_max(vi a, vi b)                    { return _mm256_max_epi32(a, b); }
LANE_FN vi vi_min(vi a, vi b)                    { return _mm256_min_epi32(a, b); }
LANE_FN vi vi_shl(vi a, int n)                   { return _mm256_sll_epi32(a, _mm_cvtsi32_si128(n)); }
LANE_FN vi vi_shr(vi a, int n)                   { return _mm256_srl_epi32(a, _mm_cvtsi32_si128(n)); }
LANE_FN vi vi_sar(vi a, int n)                   { return _mm256_sra_epi32(a, _mm_cvtsi32_si128(n)); }
LANE_FN vi vi_shlv(vi a, vi n)                   { return _mm256_sllv_epi32(a, n); }
LANE_FN void vi_store(void *p, vi a)             { _mm256_storeu_si256(p, a); }
LANE_FN vi vi_add16(vi a, vi b)                  { return _mm256_add_epi16(a, b); }
LANE_FN vi vi_madd16(vi a, vi b)                 { return _mm256_madd_epi16(a, b); }
LANE_FN vi vi_shl16(vi a, int n)                 { return _mm256_sll_epi16(a, _mm_cvtsi32_si128(n)); }
LANE_FN vi vi_sar16(vi a, int n)                 { return _mm256_sra_epi16(a, _mm_cvtsi32_si128(n)); }
LANE_FN vi vi_from_u16(const uint16_t *p)        { return _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)p)); }

LANE_FN vi vi_unless_equal(vi v, vi a, vi b)     { return _mm256_andnot_si256(_mm256_cmpeq_epi32(a, b), v); }

LANE_FN vi vi_byte4(vi a, int m)
{
    const __m128i four = _mm_setr_epi32(0x00000000, 0x04040404, 0x08080808, 0x0C0C0C0C);
    return _mm256_shuffle_epi8(a, _mm256_broadcastsi128_si256(_mm_add_epi8(four, _mm_set1_epi8((char)m))));
}

LANE_FN vi vi_lookup(const uint8_t *table, vi idx)
{
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)table)), idx);
}

LANE_FN vi vi_shuffle(vi a, const uint8_t *order)
{
    return _mm256_shuffle_epi8(a, _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)order)));
}

LANE_FN vf vf_zero(void)                         { return _mm256_setzero_ps(); }
LANE_FN vf vf_set1(float a)                      { return _mm256_set1_ps(a); }
LANE_FN vf vf_load(const float *p)               { return _mm256_loadu_ps(p); }
LANE_FN void vf_store(float *p, vf a)            { _mm256_storeu_ps(p, a); }
LANE_FN vf vf_add(vf a, vf b)                    { return _mm256_add_ps(a, b); }
LANE_FN vf vf_mul(vf a, vf b)                    { return _mm256_mul_ps(a, b); }
LANE_FN vf vf_fma(vf a, vf b, vf c)              { return _mm256_fmadd_ps(a, b, c); }
LANE_FN vf vf_fnma(vf a, vf b, vf c)             { return _mm256_fnmadd_ps(a, b, c); }
LANE_FN vf vf_from_int(vi a)                     { return _mm256_cvtepi32_ps(a); }
LANE_FN vf vf_from_bits(vi a)                    { return _mm256_castsi256_ps(a); }
LANE_FN vf vf_from_f16(const uint16_t *p)        { return _mm256_cvtph_ps(_mm_loadu_si128((const void *)p)); }

LANE_FN vf vf_from_low_f16(vi a)
{
    __m256i low = _mm256_and_si256(a, _mm256_set1_epi32(0xFFFF));
    __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, low), 0x08);
    return _mm256_cvtph_ps(_mm256_castsi256_si128(packed));
}

LANE_FN __m256i lane_first(int n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

/* All lanes as a rule: AMD's processors take a masked store apart into dozens of steps. */
LANE_FN vf vf_load_n(const float *p, int n)
{
    return n == LANES ? _mm256_loadu_ps(p) : _mm256_maskload_ps(p, lane_first(n));
}

LANE_FN void vf_store_n(float *p, vf a, int n)
{
    if (n == LANES)
        _mm256_storeu_ps(p, a);
    else
        _mm256_maskstore_ps(p, lane_first(n), a);
}

LANE_FN vf vf_fma_n(vf a, vf b, vf c, int n)
{
    return _mm256_blendv_ps(c, _mm256_fmadd_ps(a, b, c), _mm256_castsi256_ps(lane_first(n)));
}

LANE_FN float vf_fold(vf a)
{
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}

LANE_FN __m256i lane_quad(const uint8_t *p, size_t row_bytes)
{
    __m256i a = _mm256_castsi128_si256(_mm_loadu_si128((const void *)p));
    return _mm256_inserti128_si256(a, _mm_loadu_si128((const void *)(p + 4 * row_bytes)), 1);
}

LANE_FN void vi_rows16(vi v[4], const uint8_t *p, size_t row_bytes)
{
    __m256i a0 = lane_quad(p, row_bytes), a1 = lane_quad(p + row_bytes, row_bytes);
    __m256i a2 = lane_quad(p + 2 * row_bytes, row_bytes), a3 = lane_quad(p + 3 * row_bytes, row_bytes);
    __m256i lo01 = _mm256_unpacklo_epi32(a0, a1), hi01 = _mm256_unpackhi_epi32(a0, a1);
    __m256i lo23 = _mm256_unpacklo_epi32(a2, a3), hi23 = _mm256_unpackhi_epi32(a2, a3);
    v[0] = _mm256_unpacklo_epi64(lo01, lo23);
    v[1] = _mm256_unpackhi_epi64(lo01, lo23);
    v[2] = _mm256_unpacklo_epi64(hi01, hi23);
    v[3] = _mm256_unpackhi_epi64(hi01, hi23);
}

LANE_FN void vi_rows32(vi v[8], const uint8_t *p, size_t row_bytes)
{
    vi_rows16(v, p, row_bytes);
    vi_rows16(v + 4, p + 16, row_bytes);
}

LANE_FN vi lane_bytes4(const int8_t *x)
{
    int32_t four;
    memcpy(&four, x, 4);
    return _mm256_set1_epi32(four);
}

#ifdef __AVXVNNI__

LANE_FN vi vi_dot4(vi s, vi u, vi x)             { return _mm256_dpbusd_avx_epi32(s, u, x); }

#include "kernels/x86/vnni_lanes.h"

#else

enum { LANES_S8_BIAS = 0 };

LANE_FN vi vi_signed_codes(vi w)                 { return w; }

/* vpmaddubsw saturates at int16: `adds` of its results fit, and are added there before widening. Each is added where
 * it is made: compilers that put all sums behind all products run out of registers. */
LANE_FN void lane_dot(int n_a, int n_k, int adds, const vi *w, const int8_t *const *x, int at, const struct fetch *f,
                      int step, vi *sum)
{
    const __m256i ones = _mm256_set1_epi16(1);
    for (int k0 = 0; k0 < n_k; k0 += adds) {
        __m256i pair[LANES_X];
        fetch_step(f, step + k0);
        for (int a = 0; a < n_a; a++)
            pair[a] = _mm256_maddubs_epi16(w[k0], lane_bytes4(x[a] + at + 4 * k0));
        for (int k = k0 + 1; k < k0 + adds && k < n_k; k++) {
            fetch_step(f, step + k);
            for (int a = 0; a < n_a; a++) {
                pair[a] = _mm256_add_epi16(pair[a], _mm256_maddubs_epi16(w[k], lane_bytes4(x[a] + at + 4 * k)));
                __asm__("" : "+x"(pair[a]));
            }
        }
        for (int a = 0; a < n_a; a++)
            sum[a] = _mm256_add_epi32(sum[a], _mm256_madd_epi16(pair[a], ones));
    }
}

/* |w| up to 128 as an unsigned code, its sign moved to x: a pair is at most 32512. */
LANE_FN void lane_dot_signed(int n_a, int n_k, const vi *w, const int8_t *const *x, int at, const struct fetch *f,
                             int step, vi *sum)
{
    const __m256i ones = _mm256_set1_epi16(1);
    for (int k = 0; k < n_k; k++) {
        __m256i size = _mm256_abs_epi8(w[k]);
        fetch_step(f, step + k);
        for (int a = 0; a < n_a; a++) {
            __m256i four = _mm256_sign_epi8(lane_bytes4(x[a] + at + 4 * k), w[k]);
            sum[a] = _mm256_add_epi32(sum[a], _mm256_madd_epi16(_mm256_maddubs_epi16(size, four), ones));
        }
    }
}

#endif

#endif
