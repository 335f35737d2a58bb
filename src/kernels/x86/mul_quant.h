/* Products of quantised weights with int8 activations, written once for any number of lanes.
 *
 * Include after a lanes header. Each weight type brings how its bytes are read and what codes they are (unpack.h);
 * everything else is shared. mul_types.h has the types. Rows are taken LANES at a time, one lane a row, and a segment
 * of 256 elements at a time:
 *
 *     weight rows        struct seg (in L1)                            per activation row
 *     row r   [segment]  codes[b][k]: lane r = bytes 4k..4k+3          sum  = codes . q          exact, int32
 *     row r+1 [segment]               of block b of row r              acc  = fma(dw * d, sum, acc)
 *     ...                dw[b], mw[b]: scales of block b, lane = row   y   += acc                once a segment
 *
 * So each lane does what the scalar kernel does for its row, in the same order, and the bits agree. The running total
 * of an output lives in y itself, which lets one unpacking serve any number of activation rows. Up to LANES_FEW of
 * them take the codes out of registers instead, as they are unpacked: to store a segment takes longer than to multiply
 * it by one row more.
 *
 * Codes are unsigned: value = code - bias. The bias is paid for by starting the integer sum at -bias * (sum of q).
 * Types whose codes come from grids have each row of a segment expanded to bytes first (expand.h).
 *
 * Rows left over after the last full group are done by moving that group back over rows already done, which get the
 * same values again; fewer than LANES rows in all are copied to a buffer first. */
#ifndef PF_MUL_QUANT_H
#define PF_MUL_QUANT_H

#include "kernels/kernels.h"
#include "kernels/x86/unpack.h"

struct seg {
    vi            codes[SEG_BLOCKS][8];
    struct scales scales;
};

/* One segment of one activation row. */
struct xseg {
    const int8_t *q;
    const float  *d;
    int32_t       start[16];      /* where the integer sums start, per block or, by halves, per half block */
    float         q_sum[8];       /* FORM_MIN: d * (sum of q) */
    float         half_sum[16];   /* FORM_PAIR_MIN: sum of q per half block */
};

LANE_FN bool by_halves(const struct quant_type *t)
{
    return t->form >= FORM_PAIR;
}

/* ---- One segment of LANES rows with a few activation rows ------------------------------------------------------ */

LANE_FN void xseg_init(struct xseg *xs, const struct pf_xrow *x, int at, const struct quant_type *t)
{
    __m256i sums = _mm256_loadu_si256((const void *)(x->s + at / 16));      /* may reach past n: the rows are padded */
    __m256i pairs = _mm256_madd_epi16(sums, _mm256_set1_epi16(1)), bias = _mm256_set1_epi32(-t->bias);
    xs->q = x->q + at;
    xs->d = x->d + at / 32;
    if (by_halves(t)) {
        __m256i lo = _mm256_cvtepi16_epi32(_mm256_castsi256_si128(sums));
        __m256i hi = _mm256_cvtepi16_epi32(_mm256_extracti128_si256(sums, 1));
        _mm256_storeu_si256((void *)xs->start, _mm256_mullo_epi32(lo, bias));
        _mm256_storeu_si256((void *)(xs->start + 8), _mm256_mullo_epi32(hi, bias));
        _mm256_storeu_ps(xs->half_sum, _mm256_cvtepi32_ps(lo));
        _mm256_storeu_ps(xs->half_sum + 8, _mm256_cvtepi32_ps(hi));
    } else {
        _mm256_storeu_si256((void *)xs->start, _mm256_mullo_epi32(pairs, bias));
    }
    if (t->form == FORM_MIN)
        _mm256_storeu_ps(xs->q_sum, _mm256_mul_ps(_mm256_loadu_ps(xs->d), _mm256_cvtepi32_ps(pairs)));
}

/* is[a] = the integer sum of n_k * 4 codes with the activations from `at` on; their start is xs[a].start[i]. These are
 * f's steps from `step` on. */
LANE_FN void int_sums(const vi *codes, int n_k, const struct xseg *xs, int n_a, const struct quant_type *t, int at,
                      int i, const struct fetch *f, int step, vi *is)
{
    const int8_t *q[LANES_X];
    for (int a = 0; a < n_a; a++) {
        q[a] = xs[a].q;
        is[a] = t->bias ? vi_set1(xs[a].start[i]) : vi_zero();
    }
    if (t->form == FORM_SIGNED)
        lane_dot_signed(n_a, n_k, codes, q, at, f, step, is);
    else
        lane_dot(n_a, n_k, t->adds, codes, q, at, f, step, is);
}

/* Adds the terms of block b, which has two scales, to the chains acc[a]; first, last: the integer sums of its halves. A
 * sum of 16 is at most 16 * 43 * 127 and its scale 31, or 16 * 32 * 127 and 128: products and their sums stay below
 * 2^24, so floats hold them exactly. */
LANE_FN void add_halves(const vi *first, const vi *last, const struct scales *s, int b, const struct xseg *xs, int n_a,
                        const struct quant_type *t, vf *acc)
{
    for (int a = 0; a < n_a; a++) {
        vf d = vf_set1(xs[a].d[b]), f = vf_from_int(first[a]), l = vf_from_int(last[a]);
        if (t->form == FORM_TWO) {
            acc[a] = vf_fma(vf_mul(s->pair[2 * b], d), f, acc[a]);
            acc[a] = vf_fma(vf_mul(s->pair[2 * b + 1], d), l, acc[a]);
            continue;
        }
        vf sum = vf_fma(s->pair[2 * b + 1], l, vf_mul(s->pair[2 * b], f));
        acc[a] = vf_fma(vf_mul(s->dw[b], d), sum, acc[a]);
        if (t->form == FORM_PAIR_MIN) {
            vf lo = vf_mul(s->mins[2 * b], vf_set1(xs[a].half_sum[2 * b]));
            vf q_sum = vf_fma(s->mins[2 * b + 1], vf_set1(xs[a].half_sum[2 * b + 1]), lo);
            acc[a] = vf_fnma(s->mw[b], vf_mul(d, q_sum), acc[a]);
        }
    }
}

/* Adds the terms of block b to the chains acc[a]. Its products are f's steps from `step` on. */
LANE_FN void block_mul(const vi *codes, const struct scales *s, int b, const struct xseg *xs, int n_a,
                       const struct quant_type *t, const struct fetch *f, int step, vf *acc)
{
    vi is[LANES_X], last[LANES_X];
    if (by_halves(t)) {
        int_sums(codes, 4, xs, n_a, t, 32 * b, 2 * b, f, step, is);
        int_sums(codes + 4, 4, xs, n_a, t, 32 * b + 16, 2 * b + 1, f, step + 4, last);
        add_halves(is, last, s, b, xs, n_a, t, acc);
        return;
    }
    int_sums(codes, 8, xs, n_a, t, 32 * b, b, f, step, is);
    for (int a = 0; a < n_a; a++) {
        acc[a] = vf_fma(vf_mul(s->dw[b], vf_set1(xs[a].d[b])), vf_from_int(is[a]), acc[a]);
        if (t->form == FORM_MIN)
            acc[a] = vf_fnma(s->mw[b], vf_set1(xs[a].q_sum[b]), acc[a]);
    }
}

/* ---- All rows ------------------------------------------------------------------------------------------------ */

/* The arguments of one call. */
struct job {
    const uint8_t        *w;
    size_t                row_bytes;
    int                   n;
    const struct pf_xrow *x;
    int                   n_x;
    float                *y;
    size_t                y_stride;
    const uint8_t        *next;
};

/* Rows r .. r + n_rows - 1, n_rows <= LANES; behind: bytes of the rows that follow them in this call. ahead: what to
 * fetch meanwhile, the rows that follow or what the thread reads then, or these rows once more if that is not known;
 * apart: see struct src. */
struct group {
    int            r, n_rows;
    size_t         behind;
    const uint8_t *ahead;
    ptrdiff_t      apart;
};

LANE_FN size_t seg_bytes(const struct quant_type *t)
{
    return (size_t)(SEG_LEN / t->block_len * t->block_bytes);
}

/* Blocks of the segment at element `at`: a constant for types that have whole segments only. */
LANE_FN int seg_blocks(const struct quant_type *t, int n, int at)
{
    return t->block_len == SEG_LEN || n - at >= SEG_LEN ? SEG_BLOCKS : (n - at) / 32;
}

/* Bytes of a row that are read for n_blocks of a segment: unpackers take whole units, expanders all. */
LANE_FN size_t read_bytes(const struct quant_type *t, int n_blocks)
{
    int n_units = (n_blocks + t->unit - 1) / t->unit;
    return t->expand ? seg_bytes(t) : (size_t)(n_units * t->unit * 32 / t->block_len * t->block_bytes);
}

/* Copies n_bytes of n_rows rows to where n_read of each of LANES rows may be read; what is missing reads as zero. */
static __attribute__((noinline)) void copy_rows(uint8_t (*to)[SEG_MAX_BYTES], const uint8_t *p, size_t row_bytes,
                                                int n_rows, size_t n_bytes, size_t n_read)
{
    enum { PIECE = 16 };                     /* no block is smaller */
    for (int r = 0; r < n_rows; r++, p += row_bytes) {
        for (size_t i = 0; i + PIECE < n_bytes; i += PIECE)
            memcpy(to[r] + i, p + i, PIECE);
        memcpy(to[r] + n_bytes - PIECE, p + n_bytes - PIECE, PIECE);
        memset(to[r] + n_bytes, 0, n_read - n_bytes);
    }
    for (int r = n_rows; r < LANES; r++)
        memset(to[r], 0, n_read);
}

/* The segment at p, or a copy of it where rows are missing, or blocks that no row behind has bytes for. */
LANE_FN struct src seg_src(const struct quant_type *t, const uint8_t *p, size_t row_bytes, const struct group *g,
                           int n_blocks, uint8_t (*copy)[SEG_MAX_BYTES])
{
    size_t n_bytes = (size_t)(n_blocks * 32 / t->block_len * t->block_bytes), n_read = read_bytes(t, n_blocks);
    if (g->n_rows == LANES && n_read - n_bytes <= g->behind)
        return (struct src){ .p = p, .row_bytes = row_bytes };
    copy_rows(copy, p, row_bytes, g->n_rows, n_bytes, n_read);
    return (struct src){ .p = copy[0], .row_bytes = SEG_MAX_BYTES };
}

/* Every row of the segment expanded, if its type needs that; what is fetched ahead then is, a row at a time. */
LANE_FN struct src seg_expand(const struct quant_type *t, struct src src, struct pf_expanded *rows)
{
    if (!t->expand)
        return src;
    for (size_t r = 0, n = seg_bytes(t); r < LANES; r++) {
        for (size_t i = 0; i < n; i += 64)
            _mm_prefetch((const char *)src.ahead + r * n + i, _MM_HINT_T1);
        t->expand(src.p + r * src.row_bytes, &rows[r]);
    }
    return (struct src){ .p = rows[0].codes, .ahead = rows[0].codes, .row_bytes = sizeof *rows };
}

/* The chains of one segment with the activation row x, in types whose rows are multiplied one by one. */
LANE_FN vf seg_dots(const struct quant_type *t, const struct src *src, const struct pf_xrow *x, int at)
{
    struct pf_dots dots[LANES];
    vi sum[SEG_BLOCKS], scale[SEG_BLOCKS];
    t->dot(src->p, src->row_bytes, LANES, x, at, src->ahead, dots);
    vi_rows32(sum, (const uint8_t *)dots->sum, sizeof *dots);
    vi_rows32(scale, (const uint8_t *)dots->scale, sizeof *dots);
    vf acc = vf_zero();
    for (int b = 0; b < SEG_BLOCKS; b++)
        acc = vf_fma(vf_from_bits(scale[b]), vf_from_bits(sum[b]), acc);
    return acc;
}

/* The lines that correspond to the unit from block b on, and the steps of its products with one row of activations.
 * Expanded rows are fetched as they are expanded. */
LANE_FN struct fetch unit_fetch(const struct quant_type *t, const struct src *src, int b)
{
    enum { STEPS_OF_A_BLOCK = 8 };
    const size_t block = LANES * seg_bytes(t) / SEG_BLOCKS;
    const char *lines = (const char *)src->ahead + block * (size_t)b;
    return (struct fetch){ .lines = lines, .others = lines + src->apart,
                           .n = t->expand ? 0 : ((int)block * t->unit + FETCH_LINE - 1) / FETCH_LINE,
                           .n_steps = STEPS_OF_A_BLOCK * t->unit };
}

/* Adds the terms of the unit from block b on, n_blocks of which there are. */
LANE_FN void unit_mul(const struct quant_type *t, const struct src *src, struct scales *s, int b, int n_blocks,
                      const struct xseg *xs, int n_a, vf *acc)
{
    const struct fetch f = unit_fetch(t, src, b);
    vi raw[RAW_WORDS], codes[8];
    t->load(raw, src, b, 0);
#pragma GCC unroll 4
    for (int i = 0; i < MOST_UNIT; i++)
        if (i < t->unit && b + i < n_blocks) {
            t->codes(codes, s, raw, b, i);
            block_mul(codes, s, b + i, xs, n_a, t, &f, 8 * i, acc);
        }
}

/* unit_mul for units that are read in two parts: the sums of all blocks come first. */
LANE_FN void unit_mul_parts(const struct quant_type *t, const struct src *src, struct scales *s, int b,
                            const struct xseg *xs, int n_a, vf *acc)
{
    const struct fetch f = unit_fetch(t, src, b);
    vi raw[RAW_WORDS], codes[8], is[MOST_UNIT][2][LANES_X];
#pragma GCC unroll 4
    for (int n = 0; n < MOST_UNIT; n++) {
        int part = n / 2, i = part + n % 2 * 2;
        if (n % 2 == 0)
            t->load(raw, src, b, part);
        t->codes(codes, s, raw, b, i);
        int_sums(codes, 4, xs, n_a, t, 32 * (b + i), 2 * (b + i), &f, 8 * n, is[i][0]);
        int_sums(codes + 4, 4, xs, n_a, t, 32 * (b + i) + 16, 2 * (b + i) + 1, &f, 8 * n + 4, is[i][1]);
    }
    for (int i = 0; i < MOST_UNIT; i++)
        add_halves(is[i][0], is[i][1], s, b + i, xs, n_a, t, acc);
}

LANE_FN void any_unit_mul(const struct quant_type *t, const struct src *src, struct scales *s, int b, int n_blocks,
                          const struct xseg *xs, int n_a, vf *acc)
{
    if (t->two_parts)
        unit_mul_parts(t, src, s, b, xs, n_a, acc);
    else
        unit_mul(t, src, s, b, n_blocks, xs, n_a, acc);
}

/* The codes of the unit from block b on, for many rows of activations: its lines are asked for once, there is time. */
LANE_FN void unit_codes(const struct quant_type *t, const struct src *src, struct seg *seg, int b, int n_blocks)
{
    const struct fetch f = unit_fetch(t, src, b);
    for (int i = 0; i < f.n; i++)
        fetch_line(f.lines + i * FETCH_LINE);
    vi raw[RAW_WORDS];
    t->load(raw, src, b, 0);
#pragma GCC unroll 4
    for (int n = 0; n < MOST_UNIT; n++) {
        int i = t->two_parts ? n / 2 + n % 2 * 2 : n;
        if (t->two_parts && n == 2)
            t->load(raw, src, b, 1);
        if (n < t->unit && b + i < n_blocks)
            t->codes(seg->codes[b + i], &seg->scales, raw, b, i);
    }
}

#ifdef PF_SHARED_ROWS
#define UNROLL_BLOCKS                /* a unit's blocks are no constant there */
#else
#define UNROLL_BLOCKS _Pragma("GCC unroll 8")
#endif

/* The chains of one segment with n_a activation rows. Unrolled for several of them it would hardly be faster, and much
 * larger. */
LANE_FN void seg_few(const struct quant_type *t, const struct src *src, int n_blocks, const struct xseg *xs, int n_a,
                     vf *acc)
{
    struct scales s;
    for (int a = 0; a < n_a; a++)
        acc[a] = vf_zero();
    if (t->scales)
        t->scales(&s, src);
    if (n_a == 1) {
        UNROLL_BLOCKS
        for (int b = 0; b < n_blocks; b += t->unit)
            any_unit_mul(t, src, &s, b, n_blocks, xs, n_a, acc);
    } else {
#pragma GCC unroll 1
        for (int b = 0; b < n_blocks; b += t->unit)
            any_unit_mul(t, src, &s, b, n_blocks, xs, n_a, acc);
    }
}

/* What is fetched with the next segment. */
LANE_FN const uint8_t *next_lines(const struct quant_type *t, const uint8_t *ahead)
{
    return ahead + LANES * seg_bytes(t);
}

/* All n_a activation rows, n_a <= LANES_FEW. */
LANE_FN void group_few(const struct quant_type *t, const struct job *job, const struct group *g, int n_a)
{
    uint8_t copy[LANES][SEG_MAX_BYTES];
    struct pf_expanded expanded[LANES];
    const uint8_t *p = job->w + (size_t)g->r * job->row_bytes, *ahead = g->ahead;
    vf total[LANES_FEW], acc[LANES_FEW];
    for (int a = 0; a < n_a; a++)
        total[a] = vf_zero();
    for (int at = 0; at < job->n; at += SEG_LEN, p += seg_bytes(t), ahead = next_lines(t, ahead)) {
        struct xseg xs[LANES_FEW];
        int n_blocks = seg_blocks(t, job->n, at);
        struct src src = seg_src(t, p, job->row_bytes, g, n_blocks, copy);
        src.ahead = ahead;
        src.apart = g->apart;
        if (n_a == 1 && t->dot) {
            total[0] = vf_add(total[0], seg_dots(t, &src, job->x, at));
            continue;
        }
        for (int a = 0; a < n_a; a++)
            xseg_init(xs + a, job->x + a, at, t);
        src = seg_expand(t, src, expanded);
        if (n_blocks == SEG_BLOCKS)
            seg_few(t, &src, SEG_BLOCKS, xs, n_a, acc);
        else
            seg_few(t, &src, n_blocks, xs, n_a, acc);
        for (int a = 0; a < n_a; a++)
            total[a] = vf_add(total[a], acc[a]);
    }
    for (int a = 0; a < n_a; a++)
        vf_store_n(job->y + (size_t)a * job->y_stride + g->r, total[a], g->n_rows);
}

/* One unpacked segment with n_a activation rows from j on. */
LANE_FN void seg_tile(const struct quant_type *t, const struct seg *seg, const struct job *job, const struct group *g,
                      int at, int j, int n_a)
{
    const struct fetch nothing = { .n_steps = 1 };
    struct xseg xs[LANES_X];
    vf acc[LANES_X];
    for (int a = 0; a < n_a; a++) {
        xseg_init(xs + a, job->x + j + a, at, t);
        acc[a] = vf_zero();
    }
    for (int b = 0, n_blocks = seg_blocks(t, job->n, at); b < n_blocks; b++)
        block_mul(seg->codes[b], &seg->scales, b, xs, n_a, t, &nothing, 0, acc);
    for (int a = 0; a < n_a; a++) {
        float *y = job->y + (size_t)(j + a) * job->y_stride + g->r;
        vf total = at ? vf_load_n(y, g->n_rows) : vf_zero();
        vf_store_n(y, vf_add(total, acc[a]), g->n_rows);
    }
}

LANE_FN void group_tile(const struct quant_type *t, const struct job *job, const struct group *g)
{
    uint8_t copy[LANES][SEG_MAX_BYTES];
    struct pf_expanded expanded[LANES];
    const uint8_t *p = job->w + (size_t)g->r * job->row_bytes, *ahead = g->ahead;
    for (int at = 0; at < job->n; at += SEG_LEN, p += seg_bytes(t), ahead = next_lines(t, ahead)) {
        struct seg seg;
        int n_blocks = seg_blocks(t, job->n, at), j = 0;
        struct src src = seg_src(t, p, job->row_bytes, g, n_blocks, copy);
        src.ahead = ahead;
        src.apart = g->apart;
        src = seg_expand(t, src, expanded);
        if (t->scales)
            t->scales(&seg.scales, &src);
        for (int b = 0; b < n_blocks; b += t->unit)
            unit_codes(t, &src, &seg, b, n_blocks);
        for (; j + LANES_X <= job->n_x; j += LANES_X)
            seg_tile(t, &seg, job, g, at, j, LANES_X);
        for (; j + 2 <= job->n_x; j += 2)
            seg_tile(t, &seg, job, g, at, j, 2);
        if (j < job->n_x)
            seg_tile(t, &seg, job, g, at, j, 1);
    }
}

/* Each type has these loops of its own, with its constants in them. With PF_SHARED_ROWS, for sanitizers and for CI's
 * second compiler, there is one function for all types, which makes the same accesses and compiles in a tenth of the
 * time. The thread sanitizer would spend most of its time on codes and sums that these functions hand to each other in
 * variables of their own, so it leaves them alone (LANE_FN), and sees what they share with other threads in
 * show_accesses. */
#ifdef PF_SHARED_ROWS
#define ROWS_FN static __attribute__((noinline, no_sanitize("thread")))

/* Reads all rows of weights and of x, and writes all of y, which begins at zero. */
static __attribute__((noinline)) void show_accesses(const struct quant_type *t, const struct job *job, int n_rows)
{
    enum { WORD = 8 };                       /* of bytes one in so many, for others write more at once */
    for (int r = 0; r < n_rows; r++)
        for (int i = 0; i < job->n / t->block_len * t->block_bytes; i += WORD)
            (void)*(const volatile uint8_t *)(job->w + (size_t)r * job->row_bytes + i);
    for (int a = 0; a < job->n_x; a++) {
        for (int i = 0; i < job->n; i += WORD)
            (void)*(const volatile int8_t *)(job->x[a].q + i);
        for (int i = 0; i < job->n; i += 32)
            (void)*(const volatile float *)(job->x[a].d + i / 32);
        for (int i = 0; i < job->n; i += 16)
            (void)*(const volatile int16_t *)(job->x[a].s + i / 16);
        for (int r = 0; r < n_rows; r++)
            *(volatile float *)(job->y + (size_t)a * job->y_stride + r) = 0;
    }
}
#else
#define ROWS_FN LANE_FN

LANE_FN void show_accesses(const struct quant_type *t, const struct job *job, int n_rows)
{
    (void)t;
    (void)job;
    (void)n_rows;
}
#endif

/* What is fetched during a group of rows: the next group, or what comes after the call; and the lines a page further
 * on, but for those behind the call's last row, which others may read: then the lines a page back, once more. */
LANE_FN void set_ahead(struct group *g, const struct job *job, int n_rows)
{
    const int n_left = n_rows - g->r - LANES;            /* behind this group */
    const uint8_t *rows = job->w + (size_t)g->r * job->row_bytes;
    g->ahead = n_left > 0 ? rows + LANES * job->row_bytes : job->next ? job->next : rows;
    g->apart = n_left > 0 && n_left <= LANES ? -FETCH_PAGE : FETCH_PAGE;
}

/* n_a: the activation rows of group_few; 0: group_tile. */
ROWS_FN void all_rows(const struct quant_type *t, const struct job *job, int n_rows, int n_a)
{
    for (int r = 0; r < n_rows; r += LANES) {
        int from = r + LANES <= n_rows ? r : n_rows < LANES ? 0 : n_rows - LANES;
        struct group g = { .r = from, .n_rows = n_rows < LANES ? n_rows : LANES };
        g.behind = (size_t)(n_rows - from - g.n_rows) * job->row_bytes;
        set_ahead(&g, job, n_rows);
        if (n_a)
            group_few(t, job, &g, n_a);
        else
            group_tile(t, job, &g);
    }
}

/* Types that are expanded first have their codes in memory anyway. */
LANE_FN void several_x(const struct quant_type *t, const struct job *job, int n_rows)
{
    bool few = !t->expand && job->n_x <= LANES_FEW;
    if (few && job->n_x == 2)
        all_rows(t, job, n_rows, 2);
    else if (few && LANES_FEW > 2 && job->n_x == 3)
        all_rows(t, job, n_rows, 3);
    else if (few && LANES_FEW > 3 && job->n_x == 4)
        all_rows(t, job, n_rows, 4);
    else
        all_rows(t, job, n_rows, 0);
}

/* The entries of a type: for one row of activations, and for any number of them. */
#define MUL_VEC(name, ...)                                                                                           \
    static const struct quant_type type_##name = { __VA_ARGS__ };                                                   \
    static void vec_##name(const void *w, size_t row_bytes, int n_rows, int n, const struct pf_xrow *x, int n_x,    \
                           float *y, size_t y_stride, const void *next)                                             \
    {                                                                                                               \
        struct job job = { w, row_bytes, n, x, n_x, y, y_stride, next };                                            \
        show_accesses(&type_##name, &job, n_rows);                                                                  \
        all_rows(&type_##name, &job, n_rows, 1);                                                                    \
    }
#define MUL_QUANT(name, ...)                                                                                         \
    MUL_VEC(name, __VA_ARGS__)                                                                                      \
    static void tile_##name(const void *w, size_t row_bytes, int n_rows, int n, const struct pf_xrow *x, int n_x,   \
                            float *y, size_t y_stride, const void *next)                                            \
    {                                                                                                               \
        struct job job = { w, row_bytes, n, x, n_x, y, y_stride, next };                                            \
        show_accesses(&type_##name, &job, n_rows);                                                                  \
        several_x(&type_##name, &job, n_rows);                                                                      \
    }

#define BLOCK_32(bytes)     .block_len = 32, .block_bytes = bytes
#define SUPER_BLOCK(bytes)  .block_len = 256, .block_bytes = bytes

/* The types whose codes come from grids. */
#define GRID_ENTRIES(kind) \
    [PF_IQ2_XXS] = kind##_iq2_xxs, [PF_IQ2_XS] = kind##_iq2_xs, [PF_IQ2_S] = kind##_iq2_s, \
    [PF_IQ3_XXS] = kind##_iq3_xxs, [PF_IQ3_S] = kind##_iq3_s, [PF_IQ1_S] = kind##_iq1_s, [PF_IQ1_M] = kind##_iq1_m

#endif
