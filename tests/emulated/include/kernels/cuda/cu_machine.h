/* Stands in for kernels/cuda/cu_machine.h on the emulated GPU; the comments there say what each function does. */
#ifndef PF_CU_MACHINE_H
#define PF_CU_MACHINE_H

#include <immintrin.h>
#include <time.h>

#include "emulated.h"

#define CU_INLINE static inline

enum { WARP = EMU_WARP };
#define ALL_LANES 0xffffffffu

#define BLOCK_MEMORY(type, name) type *name = (type *)emu_block_memory()
#define CLUSTER_VARIABLE(type, name) type &name = *(type *)emu_cluster_variable(sizeof(type))

EMU_INLINE void wait_turn(void)
{
    emu_wait_turn();
}

/* Leaves the processor to the thread that is waited for. */
EMU_INLINE void look_again(void)
{
    static const struct timespec a_while = { 0, 20000 };
    nanosleep(&a_while, NULL);
}

/* Touches the first and the last byte: that much the kernel will surely read. */
EMU_INLINE void fetch_ahead(const uint8_t *p, size_t bytes)
{
    (void)*(const volatile uint8_t *)p;
    (void)*(const volatile uint8_t *)(p + bytes - 1);
}

EMU_INLINE void meet(int barrier, int threads)
{
    emu_barrier_any(barrier, threads, false);
}

EMU_INLINE void arrive_cluster(void)
{
    emu_cluster_arrive();
}

EMU_INLINE void wait_cluster(void)
{
    emu_cluster_wait();
}

EMU_INLINE void open_box(uint64_t *box, int n_arrivals = 1)
{
    emu_open_box(box, n_arrivals);
}

EMU_INLINE void arrive_at(uint64_t *box)
{
    emu_arrive_at(box);
}

EMU_INLINE void expect_bytes(uint64_t *box, int bytes)
{
    emu_expect_bytes(box, bytes);
}

EMU_INLINE void send(float v, float *to, uint64_t *box, int block)
{
    emu_send(v, to, box, block);
}

EMU_INLINE void copy_to_box(uint8_t *to, const uint8_t *from, int bytes, uint64_t *box)
{
    emu_copy_to_box(to, from, bytes, box);
}

EMU_INLINE void copy_once_to_box(uint8_t *to, const uint8_t *from, int bytes, uint64_t *box)
{
    emu_copy_to_box(to, from, bytes, box);
}

EMU_INLINE void await_box(uint64_t *box, int turn)
{
    emu_await_box(box, turn);
}

EMU_INLINE void await_sent(uint64_t *box, int turn)
{
    emu_await_box(box, turn);
}

EMU_INLINE bool one_of_warp(void)
{
    return threadIdx.x % WARP == 0;
}

EMU_INLINE uint4 fetch16(const char *p)
{
    return *(const uint4 *)p;
}

EMU_INLINE float fetch4(const char *p)
{
    return *(const float *)p;
}

EMU_INLINE void have(const char *&) {}

EMU_INLINE unsigned long long device_ns(void)
{
    return emu_ns();
}

EMU_INLINE int uniform(int v)
{
    return (int)emu_exchange((uint64_t)(int64_t)v)[0];
}

EMU_INLINE const uint8_t *uniform(const uint8_t *p)
{
    return (const uint8_t *)emu_exchange((uint64_t)(uintptr_t)p)[0];
}

EMU_INLINE uint32_t warp_max(uint32_t v)
{
    const uint64_t *all = emu_exchange(v);
    for (int i = 0; i < WARP; i++)
        v = max(v, (uint32_t)all[i]);
    return v;
}

EMU_INLINE uint32_t all_max(uint32_t v)
{
    return warp_max(v);
}

EMU_INLINE uint32_t permute(uint32_t low, uint32_t high, uint32_t nibbles)
{
    __m128i bytes = _mm_cvtsi64_si128((int64_t)((uint64_t)high << 32 | low));
    __m128i all = _mm_unpacklo_epi64(bytes, _mm_cmpgt_epi8(_mm_setzero_si128(), bytes));     /* and their signs */
    __m128i which = _mm_cvtsi32_si128((int)_pdep_u32(nibbles, 0x0f0f0f0f));
    return (uint32_t)_mm_cvtsi128_si32(_mm_shuffle_epi8(all, which));
}

template <bool SIGNED>
EMU_INLINE __m256i emu_wide(__m128i bytes)
{
    return SIGNED ? _mm256_cvtepi8_epi16(bytes) : _mm256_cvtepu8_epi16(bytes);
}

/* What is in each of four: {0, 1, 2, 3}, each summed up. */
EMU_INLINE __m128i emu_sums(const __m256i (&of)[4])
{
    __m256i pairs = _mm256_hadd_epi32(_mm256_hadd_epi32(of[0], of[1]), _mm256_hadd_epi32(of[2], of[3]));
    return _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
}

/* Adds 16 bytes each of two rows times those of two columns: row 0 with column 0, with 1; row 1 with 0, with 1. */
EMU_INLINE void emu_add_products(__m256i (&to)[4], __m256i row0, __m256i row1, __m256i column0, __m256i column1)
{
    to[0] = _mm256_add_epi32(to[0], _mm256_madd_epi16(row0, column0));
    to[1] = _mm256_add_epi32(to[1], _mm256_madd_epi16(row0, column1));
    to[2] = _mm256_add_epi32(to[2], _mm256_madd_epi16(row1, column0));
    to[3] = _mm256_add_epi32(to[3], _mm256_madd_epi16(row1, column1));
}

/* Of four lanes, which have 16 bytes of a row or column between them, what they gave. */
EMU_INLINE __m128i emu_line(const uint32_t (&all)[EMU_WARP], int line)
{
    return _mm_loadu_si128((const __m128i *)(all + 4 * line));
}

/* Of one exchange: of each of N products rows are two words of lanes, from the first on, columns one, behind them. */
template <bool SIGNED_ROWS, bool SIGNED_COLUMNS, int N>
EMU_INLINE void emu_product(int (&c)[4], const uint32_t (*all)[EMU_WARP])
{
    int lane = threadIdx.x % WARP, row = lane / 4, column = 2 * (lane % 4);
    __m256i sums[4] = {};
#pragma GCC unroll 2
    for (int i = 0; i < N; i++)
        emu_add_products(sums, emu_wide<SIGNED_ROWS>(emu_line(all[2 * i], row)),
                         emu_wide<SIGNED_ROWS>(emu_line(all[2 * i + 1], row)),
                         emu_wide<SIGNED_COLUMNS>(emu_line(all[2 * N + i], column)),
                         emu_wide<SIGNED_COLUMNS>(emu_line(all[2 * N + i], column + 1)));
    _mm_storeu_si128((__m128i *)c, _mm_add_epi32(_mm_loadu_si128((const __m128i *)c), emu_sums(sums)));
}

/* A lane gives 4 bytes of row lane / 4 of a and of the row 8 below, and of column lane / 4 of b, from element
 * 4 (lane % 4) on. */
template <bool SIGNED>
EMU_INLINE void mma16_add(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t b)
{
    const uint32_t words[] = { a0, a1, b };
    emu_product<true, SIGNED, 1>(c, emu_exchange_words(words, 3));
}

template <bool SIGNED>
EMU_INLINE void mma32_add(int (&c)[4], const uint32_t (&a)[4], uint32_t lower, uint32_t upper)
{
    const uint32_t words[] = { a[0], a[1], a[2], a[3], lower, upper };
    emu_product<SIGNED, true, 2>(c, emu_exchange_words(words, 6));
}

EMU_INLINE void mma16(int (&c)[4], const uint32_t *a, uint32_t b, int from = 0)
{
    for (int i = 0; i < 4; i++)
        c[i] = from;
    mma16_add<true>(c, a[0], a[1], b);
}

EMU_INLINE void mma32(int (&c)[4], const uint32_t (&a)[4], uint32_t lower, uint32_t upper, int from = 0)
{
    for (int i = 0; i < 4; i++)
        c[i] = from;
    mma32_add<true>(c, a, lower, upper);
}

template <bool SIGNED>
EMU_INLINE void mma32_more(int (&c)[4], const uint32_t (&a)[4], uint32_t lower, uint32_t upper)
{
    mma32_add<SIGNED>(c, a, lower, upper);
}

EMU_INLINE void load_pieces(uint32_t (&v)[4], const uint8_t *row)
{
    const uint64_t *rows = emu_exchange((uint64_t)(uintptr_t)row);
    int lane = threadIdx.x % WARP;
    for (int i = 0; i < 4; i++)
        memcpy(&v[i], (const uint8_t *)(uintptr_t)rows[8 * i + lane / 4] + 4 * (lane % 4), 4);
}

enum { TILE_ALIGNMENT = 1024 };

EMU_INLINE char *aligned_tiles(char *p)
{
    return p + (-(uintptr_t)p & (TILE_ALIGNMENT - 1));
}

template <class... P>
static bool has_groups(void (*)(P...))
{
    return emu_card()->capability == 90;
}

EMU_INLINE void arrive(int barrier, int threads)
{
    emu_arrive(barrier, threads);
}

EMU_INLINE bool all_agree(int barrier, int threads, bool v)
{
    return !emu_barrier_any(barrier, threads, !v);
}

template <int N> EMU_INLINE void fewer_registers(void) {}
template <int N> EMU_INLINE void more_registers(void) {}
EMU_INLINE void show_tiles(void) {}

struct group_lines {
    const char *lines;
    int byte;
};

EMU_INLINE struct group_lines lines_of(const char *lines, int byte)
{
    return { lines, byte };
}

EMU_INLINE void group_begin(void) {}
template <class... S> EMU_INLINE void group_end(S &...) {}

/* Rows lane / 4 and 8 more of a product's first operand, 32 bytes each. */
struct emu_rows {
    alignas(16) uint32_t of[2][8];
};

/* Each warp for itself: its lanes' shares of a come together. Of b, products read the lines where they lie. */
EMU_INLINE struct emu_rows emu_gather(const uint32_t (&a)[4])
{
    struct emu_rows rows;
    int row = threadIdx.x % WARP / 4;
    const uint32_t (*all)[EMU_WARP] = emu_exchange_words(a, 4);
    for (int i = 0; i < 4; i++)
        _mm_store_si128((__m128i *)rows.of[i % 2] + i / 2, emu_line(all[i], row));
    return rows;
}

template <bool SIGNED>
EMU_INLINE void group_product(int (&c)[4][4], int (&d)[4][4], const uint32_t (&a)[4], struct group_lines b, bool adds)
{
    static const char what = 0;
    int lane = threadIdx.x % WARP;
    emu_group_acts({ &what, b.lines, b.byte, adds });
    struct emu_rows rows = emu_gather(a);
    __m256i of_a[2][2];
    for (int i = 0; i < 4; i++)
        of_a[i / 2][i % 2] = emu_wide<SIGNED>(((const __m128i *)rows.of[i / 2])[i % 2]);
    for (int i = 0; i < 8; i++) {
        __m256i sums[4] = {};
        int line = 8 * i + 2 * (lane % 4);
        const __m128i *of_b = (const __m128i *)(b.lines + 128 * line);
        for (int h = 0; h < 2; h++)
            emu_add_products(sums, of_a[0][h], of_a[1][h], emu_wide<true>(of_b[(b.byte / 16 + h) ^ line % 8]),
                             emu_wide<true>(of_b[8 + ((b.byte / 16 + h) ^ (line + 1) % 8)]));
        __m128i *to = (__m128i *)(i < 4 ? c[i] : d[i - 4]), sum = emu_sums(sums);
        _mm_storeu_si128(to, adds ? _mm_add_epi32(_mm_loadu_si128(to), sum) : sum);
    }
}

EMU_INLINE uint32_t halves_fma(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t r = 0;
    for (int i = 0; i < 2; i++) {
        int by = 16 * i;
        float v = fmaf(_cvtsh_ss(a >> by & 0xffff), _cvtsh_ss(b >> by & 0xffff), _cvtsh_ss(c >> by & 0xffff));
        r |= (uint32_t)_cvtss_sh(v, 0) << by;
    }
    return r;
}

EMU_INLINE void group_commit(void)
{
    static const char what = 0;
    emu_group_acts({ &what, nullptr, 0, false });
}

template <int LEFT = 0, int N> EMU_INLINE void group_wait(float (&)[N][4])
{
    static const char what = 0;
    emu_group_acts({ &what, nullptr, LEFT, false });
}

EMU_INLINE void keep(const uint32_t (&)[4], bool) {}

template <int N> EMU_INLINE void half_product(float (&c)[N][4], const uint32_t (&a)[4], struct group_lines b, bool adds)
{
    static const char what = 0;
    int lane = threadIdx.x % WARP;
    emu_group_acts({ &what, b.lines, b.byte, adds });
    struct emu_rows rows = emu_gather(a);
    __m256 of_a[2][2];
    for (int i = 0; i < 4; i++)
        of_a[i / 2][i % 2] = _mm256_cvtph_ps(((const __m128i *)rows.of[i / 2])[i % 2]);
    for (int i = 0; i < N; i++)
        for (int e = 0; e < 2; e++) {
            int line = 8 * i + 2 * (lane % 4) + e;
            const __m128i *of_b = (const __m128i *)(b.lines + 128 * line);
            __m256 left = _mm256_cvtph_ps(of_b[b.byte / 16 ^ line % 8]),
                   right = _mm256_cvtph_ps(of_b[(b.byte / 16 + 1) ^ line % 8]);
            for (int r = 0; r < 2; r++) {
                __m256 eight = _mm256_fmadd_ps(of_a[r][1], right, _mm256_mul_ps(of_a[r][0], left));
                __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
                __m128 two = _mm_hadd_ps(four, four);
                float sum = _mm_cvtss_f32(_mm_hadd_ps(two, two)), &to = c[i][2 * r + e];
                to = adds ? to + sum : sum;
            }
        }
}

#endif
