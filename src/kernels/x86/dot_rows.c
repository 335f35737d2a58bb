/* See dot_rows.h. A sum of two products fits an int16 in every type: 62 * 127 * 2 is the largest. */
#include "kernels/x86/dot_rows.h"

#include <stdbool.h>

#include "kernels/x86/grids.h"

/* The activations of one segment. */
struct acts {
    const int8_t  *q;
    const int16_t *s;
    __m256         d;
};

GRID_FN __m256i q_of(const struct acts *x, int b)
{
    return _mm256_loadu_si256((const void *)(x->q + 32 * b));
}

/* Lane i = the sum of the lanes of v[i]. */
GRID_FN __m256i fold8(const __m256i v[8])
{
    __m256i four[2];
    for (int i = 0; i < 2; i++) {
        __m256i a = _mm256_hadd_epi32(v[4 * i], v[4 * i + 1]), b = _mm256_hadd_epi32(v[4 * i + 2], v[4 * i + 3]);
        four[i] = _mm256_hadd_epi32(a, b);
    }
    return _mm256_add_epi32(_mm256_permute2x128_si256(four[0], four[1], 0x20),
                            _mm256_permute2x128_si256(four[0], four[1], 0x31));
}

/* The scales of all halves as words, blocks 0..3 and 4..7; of them those of block b, one for each pair of elements. */
struct halves { __m256i words[2]; };

GRID_FN struct halves halves_of(const struct grid_head *h)
{
    __m256i words = _mm256_loadu_si256((const void *)h->odd);
    return (struct halves){ { _mm256_permute4x64_epi64(words, 0x44), _mm256_permute4x64_epi64(words, 0xee) } };
}

GRID_FN __m256i halves_at(const struct halves *s, int b)
{
    int first = 4 * (b % 4);
    __m128i lower = _mm_set1_epi16((short)(first | (first + 1) << 8));
    __m128i upper = _mm_set1_epi16((short)((first + 2) | (first + 3) << 8));
    return _mm256_shuffle_epi8(s->words[b / 4], _mm256_set_m128i(upper, lower));
}

GRID_FN void put_dots(struct pf_dots *out, __m256i sums, const struct grid_head *h, const struct acts *x)
{
    _mm256_storeu_ps(out->sum, _mm256_cvtepi32_ps(sums));
    _mm256_storeu_ps(out->scale, _mm256_mul_ps(_mm256_loadu_ps(h->dw), x->d));
}

#define DOT_SIGNED(name, by_halves)                                                                                \
    GRID_FN void row_##name(const uint8_t *p, const struct acts *x, struct pf_dots *out)                          \
    {                                                                                                             \
        struct grid_head h;                                                                                       \
        struct halves scales;                                                                                     \
        __m256i sums[8];                                                                                          \
        head_##name(p, &h);                                                                                       \
        if (by_halves)                                                                                            \
            scales = halves_of(&h);                                                                               \
        _Pragma("GCC unroll 8")                                                                                   \
        for (int b = 0; b < 8; b++) {                                                                             \
            __m256i q = with_signs(q_of(x, b), h.signs[b]);                                                       \
            __m256i pairs = _mm256_maddubs_epi16(size_##name(p, &h, b), q);                                       \
            sums[b] = _mm256_madd_epi16(pairs, by_halves ? halves_at(&scales, b) : _mm256_set1_epi16(1));         \
        }                                                                                                         \
        put_dots(out, fold8(sums), &h, x);                                                                        \
    }

DOT_SIGNED(iq2_xxs, false)
DOT_SIGNED(iq2_xs, true)
DOT_SIGNED(iq2_s, true)
DOT_SIGNED(iq3_xxs, false)
DOT_SIGNED(iq3_s, false)

/* Steps are made unsigned by adding one, so the sum of a block is 8 * sum((step + 1) q) + (delta - 8) * sum(q). */
GRID_FN void row_iq1_s(const uint8_t *p, const struct acts *x, struct pf_dots *out)
{
    const struct pf_block_iq1_s *w = (const void *)p;
    struct grid_head h;
    __m256i sums[8];
    head_iq1_s(p, &h);
#pragma GCC unroll 8
    for (int b = 0; b < 8; b++) {
        __m256i codes = _mm256_add_epi8(steps_iq1(p, &h, b), _mm256_set1_epi8(1));
        sums[b] = _mm256_madd_epi16(_mm256_maddubs_epi16(codes, q_of(x, b)), _mm256_set1_epi16(8));
    }
    __m256i negative = _mm256_cvtepi16_epi32(_mm_srai_epi16(_mm_loadu_si128((const void *)w->qh), 15));
    __m256i delta = _mm256_or_si256(_mm256_add_epi32(negative, negative), _mm256_set1_epi32(1));     /* 1 or -1 */
    __m256i q_sums = _mm256_madd_epi16(_mm256_loadu_si256((const void *)x->s), _mm256_set1_epi16(1));
    __m256i rest = _mm256_mullo_epi32(_mm256_sub_epi32(delta, _mm256_set1_epi32(8)), q_sums);
    put_dots(out, _mm256_add_epi32(fold8(sums), rest), &h, x);
}

/* Codes are 8 * step + delta + 9, so 9 * scale * sum(q) of both halves is taken off again. */
GRID_FN void row_iq1_m(const uint8_t *p, const struct acts *x, struct pf_dots *out)
{
    enum { BIAS = 9 };
    struct grid_head h;
    __m256i sums[8];
    head_iq1_m(p, &h);
    struct halves scales = halves_of(&h);
#pragma GCC unroll 8
    for (int b = 0; b < 8; b++) {
        __m256i codes = _mm256_add_epi8(with_delta(steps_iq1(p, &h, b), delta_iq1_m(p, b)), _mm256_set1_epi8(BIAS));
        sums[b] = _mm256_madd_epi16(_mm256_maddubs_epi16(codes, q_of(x, b)), halves_at(&scales, b));
    }
    __m256i nine = _mm256_mullo_epi16(_mm256_loadu_si256((const void *)h.odd), _mm256_set1_epi16(BIAS));
    __m256i rest = _mm256_madd_epi16(_mm256_loadu_si256((const void *)x->s), nine);
    put_dots(out, _mm256_sub_epi32(fold8(sums), rest), &h, x);
}

#define DOT_ROWS(name)                                                                                             \
    void pf_dot_##name(const uint8_t *p, size_t row_bytes, int n_rows, const struct pf_xrow *x, int at,           \
                       const uint8_t *ahead, struct pf_dots *out)                                                 \
    {                                                                                                             \
        struct acts acts = { x->q + at, x->s + at / 16, _mm256_loadu_ps(x->d + at / 32) };                        \
        for (int r = 0; r < n_rows; r++, p += row_bytes) {                                                        \
            for (size_t i = 0; ahead && i < sizeof(struct pf_block_##name); i += 64)                              \
                _mm_prefetch((const char *)ahead + (size_t)r * sizeof(struct pf_block_##name) + i, _MM_HINT_T1);  \
            row_##name(p, &acts, &out[r]);                                                                        \
        }                                                                                                         \
    }

DOT_ROWS(iq2_xxs)
DOT_ROWS(iq2_xs)
DOT_ROWS(iq2_s)
DOT_ROWS(iq3_xxs)
DOT_ROWS(iq3_s)
DOT_ROWS(iq1_s)
DOT_ROWS(iq1_m)
