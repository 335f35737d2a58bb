/* Products and dequantisation of every weight type: every level against the scalar one, bit for bit; then timed.
 *
 * One set of rows and activations of all moods is made per type and length. The scalar level computes every (row,
 * activation) once; what a level writes for any shape must be a part of that. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"

enum { MAX_ROWS = 64, MAX_X = 33 };

static const int row_counts[] = { 1, 2, 7, 15, 16, 17, 33, 64 };
static const int x_counts[] = { 1, 2, 3, 4, 7, 8, 16, 33 };
static const int lengths[] = { 1, 7, 31, 32, 33, 64, 96, 100, 160, 256, 288, 512, 2048, 2880, 4096 };

#define LEN(a) ((int)(sizeof(a) / sizeof *(a)))

/* One type at one length: weights end at a fence, want[j * MAX_ROWS + r]. */
struct problem {
    const char           *type_name;
    enum pf_qtype         type;
    int                   n;
    size_t                row_bytes, bytes;
    uint8_t              *w;
    struct check_acts     acts;
    float                 want[MAX_X * MAX_ROWS];
    const struct pf_kernels *scalar;
};

/* The part of a problem that one call computes. */
struct shape { int row0, n_rows, x0, n_x; };

static void problem_init(struct problem *p, struct check_rng *rng)
{
    p->row_bytes = (size_t)pf_qtype_row_bytes(p->type, (uint64_t)p->n);
    p->bytes = p->row_bytes * MAX_ROWS;
    p->w = check_fenced_new(p->bytes);
    for (int r = 0; r < MAX_ROWS; r++) {
        static const enum check_mood moods[8] = { CHECK_MIXED, CHECK_PLAIN, CHECK_MIXED, CHECK_ONES,
                                                  CHECK_PLAIN, CHECK_ZEROS, CHECK_MIXED, CHECK_MIXED };
        check_weights(rng, p->type, moods[r % 8], p->w + (size_t)r * p->row_bytes, p->n);
    }
    p->acts = check_acts_new(rng, p->n, MAX_X, false);
    check_doing("scalar tile %s n=%d", p->type_name, p->n);
    p->scalar->tile[p->type](p->w, p->row_bytes, MAX_ROWS, p->n, p->acts.x, MAX_X, p->want, MAX_ROWS, NULL);
    for (int i = 0; i < MAX_X * MAX_ROWS; i++)
        if (p->want[i] != p->want[i]) {
            fprintf(stderr, "%s n=%d: the inputs make a NaN; a fault of the harness\n", p->type_name, p->n);
            exit(2);
        }
}

static void problem_free(struct problem *p)
{
    check_acts_free(&p->acts);
    check_fenced_free(p->w, p->bytes);
}

/* True if y holds the problem's numbers for this shape and nothing around them was written. */
static bool same(const struct problem *p, const char *what, struct shape s, const float *y, size_t stride)
{
    for (int j = 0; j < s.n_x; j++)
        for (int r = 0; r < s.n_rows; r++) {
            const float *got = &y[(size_t)j * stride + (size_t)r];
            const float *want = &p->want[(s.x0 + j) * MAX_ROWS + s.row0 + r];
            if (memcmp(got, want, sizeof *got) != 0) {
                printf("%s %s n=%d rows %d+%d x %d+%d: row %d, x %d is %a, must be %a\n", what, p->type_name, p->n,
                       s.row0, s.n_rows, s.x0, s.n_x, r, j, (double)*got, (double)*want);
                return false;
            }
        }
    return true;
}

static bool gaps_intact(const float *y, struct shape s, size_t stride, uint32_t fill)
{
    for (int j = 0; j + 1 < s.n_x; j++)
        for (size_t r = (size_t)s.n_rows; r < stride; r++)
            if (memcmp(&y[(size_t)j * stride + r], &fill, sizeof fill) != 0)
                return false;
    return true;
}

/* Runs one shape; with spread, rows lie further apart than they are long, at odd addresses. */
static bool try_shape(const struct problem *p, struct check_rng *rng, const char *what, pf_mul_fn *mul, struct shape s,
                      bool spread)
{
    size_t stride = (size_t)(s.n_rows + check_int(rng, 0, 5)), n_y = stride * (size_t)(s.n_x - 1) + (size_t)s.n_rows;
    size_t row_bytes = p->row_bytes + (spread ? (size_t)check_int(rng, 1, 9) : 0);
    size_t bytes = row_bytes * (size_t)(s.n_rows - 1) + p->row_bytes;
    const uint8_t *w = p->w + (size_t)s.row0 * p->row_bytes;
    uint8_t *copy = spread ? check_fenced_new(bytes) : NULL;
    for (int r = 0; spread && r < s.n_rows; r++)
        memcpy(copy + (size_t)r * row_bytes, w + (size_t)r * p->row_bytes, p->row_bytes);

    const uint32_t fill = 0x7f812345;
    float *y = check_guarded_new(rng, n_y);
    for (size_t i = 0; i < n_y; i++)
        memcpy(&y[i], &fill, sizeof fill);
    check_doing("%s %s n=%d n_rows=%d n_x=%d spread=%d", what, p->type_name, p->n, s.n_rows, s.n_x, spread);
    const uint8_t *rows = spread ? copy : w, *next[] = { NULL, rows + row_bytes * (size_t)s.n_rows, p->w };
    mul(rows, row_bytes, s.n_rows, p->n, p->acts.x + s.x0, s.n_x, y, stride, next[check_int(rng, 0, LEN(next) - 1)]);

    bool ok = same(p, what, s, y, stride);
    if (ok && !(check_guarded_intact(y, n_y) && gaps_intact(y, s, stride, fill))) {
        printf("%s %s n=%d n_rows=%d n_x=%d: writes outside its outputs\n", what, p->type_name, p->n, s.n_rows, s.n_x);
        ok = false;
    }
    check_guarded_free(y);
    if (copy)
        check_fenced_free(copy, bytes);
    return ok;
}

/* All shapes for short rows, some for long ones; half of them with the last rows, which end at the fence. */
static bool try_shapes(const struct problem *p, struct check_rng *rng, const char *what, pf_mul_fn *mul, bool one_x)
{
    for (int i = 0; i < LEN(row_counts); i++)
        for (int k = 0; k < (one_x ? 1 : LEN(x_counts)); k++) {
            struct shape s = { .n_rows = row_counts[i], .n_x = x_counts[k] };
            if (p->n > 512 && check_int(rng, 0, 5) != 0)
                continue;
            s.row0 = check_int(rng, 0, 1) ? MAX_ROWS - s.n_rows : check_int(rng, 0, MAX_ROWS - s.n_rows);
            s.x0 = check_int(rng, 0, MAX_X - s.n_x);
            if (!try_shape(p, rng, what, mul, s, check_int(rng, 0, 2) == 0))
                return false;
        }
    return true;
}

static bool try_dequant(const struct problem *p, struct check_rng *rng, const char *what, pf_dequant_fn *dequant)
{
    uint8_t *row = check_fenced_new(p->row_bytes);
    float *want = check_guarded_new(rng, (size_t)p->n), *got = check_guarded_new(rng, (size_t)p->n);
    bool ok = true;
    for (int round = 0; round < 4 && ok; round++) {
        check_weights(rng, p->type, CHECK_ANY, row, p->n);
        p->scalar->dequant[p->type](row, p->n, want);
        check_doing("%s %s n=%d", what, p->type_name, p->n);
        dequant(row, p->n, got);
        for (int i = 0; i < p->n && ok; i++)
            if (memcmp(&got[i], &want[i], sizeof *got) != 0) {
                printf("%s %s n=%d: element %d is %a, must be %a\n", what, p->type_name, p->n, i, (double)got[i],
                       (double)want[i]);
                ok = false;
            }
        if (ok && !check_guarded_intact(got, (size_t)p->n)) {
            printf("%s %s n=%d: writes outside its output\n", what, p->type_name, p->n);
            ok = false;
        }
    }
    check_guarded_free(want);
    check_guarded_free(got);
    check_fenced_free(row, p->row_bytes);
    return ok;
}

/* The entries that one level has for one type. */
enum { DEQUANT, VEC, TILE, N_ENTRIES };
static const char *const entry_names[N_ENTRIES] = { "dequant", "vec", "tile" };

struct verdict { bool failed[N_ENTRIES]; };

static bool has(const struct pf_kernels *level, int entry, enum pf_qtype t)
{
    return entry == DEQUANT ? level->dequant[t] != NULL : entry == VEC ? level->vec[t] != NULL : level->tile[t] != NULL;
}

static void check_level(const struct problem *p, struct check_rng *rng, const struct pf_kernels *level,
                        struct verdict *v)
{
    char what[N_ENTRIES][64];
    for (int e = 0; e < N_ENTRIES; e++)
        snprintf(what[e], sizeof what[e], "%s %s", level->name, entry_names[e]);
    if (has(level, DEQUANT, p->type) && !v->failed[DEQUANT])
        v->failed[DEQUANT] = !try_dequant(p, rng, what[DEQUANT], level->dequant[p->type]);
    if (has(level, VEC, p->type) && !v->failed[VEC])
        v->failed[VEC] = !try_shapes(p, rng, what[VEC], level->vec[p->type], true);
    if (has(level, TILE, p->type) && !v->failed[TILE])
        v->failed[TILE] = !try_shapes(p, rng, what[TILE], level->tile[p->type], false);
}

enum { MAX_LEVELS = 16 };

static int print_verdicts(const struct check_opts *o, enum pf_qtype type, const struct verdict *verdicts)
{
    int n_failed = 0;
    printf("%-8s", pf_qtype_info(type)->name);
    for (int i = 0; pf_kernels_level(i); i++)
        for (int e = 0; e < N_ENTRIES; e++) {
            if (!check_runs(o, pf_kernels_level(i)) || !has(pf_kernels_level(i), e, type))
                continue;
            n_failed += verdicts[i].failed[e];
            printf("  %s %s%s", pf_kernels_level(i)->name, entry_names[e], verdicts[i].failed[e] ? " FAILED" : "");
        }
    printf("\n");
    return n_failed;
}

static int check_type(const struct check_opts *o, enum pf_qtype type, const struct pf_kernels *scalar)
{
    const struct pf_qtype_info *info = pf_qtype_info(type);
    struct verdict verdicts[MAX_LEVELS] = { 0 };
    /* Seeded per type, so that --only repeats what a whole run did. */
    struct check_rng rng = { .state = o->seed + 7919 * (uint64_t)type };
    struct problem *p = malloc(sizeof *p);
    for (int i = 0; i < LEN(lengths); i++) {
        if (lengths[i] % info->block_len != 0)
            continue;
        *p = (struct problem){ .type_name = info->name, .type = type, .n = lengths[i], .scalar = scalar };
        problem_init(p, &rng);
        for (int k = 0; k < MAX_LEVELS && pf_kernels_level(k); k++)
            if (check_runs(o, pf_kernels_level(k)))
                check_level(p, &rng, pf_kernels_level(k), &verdicts[k]);
        problem_free(p);
    }
    free(p);
    return print_verdicts(o, type, verdicts);
}

static bool is_wanted(const struct check_opts *o, int type)
{
    const struct pf_qtype_info *info = pf_qtype_info((uint32_t)type);
    return info && info->is_weight && check_wants(o, info->name);
}

int check_products(const struct check_opts *o)
{
    int n_failed = 0;
    struct pf_kernels scalar;
    pf_kernels_resolve(&scalar, 0);
    for (int type = 0; type < PF_N_QTYPES; type++)
        if (is_wanted(o, type))
            n_failed += check_type(o, (enum pf_qtype)type, &scalar);
    return n_failed;
}

/* ---- Timing ----------------------------------------------------------------------------------------------------- */

enum { BENCH_N = 2048, CACHE_BYTES = 192 << 10, TILE_ROWS = 128, LONG_NS = 30000000 };

struct bench {
    uint8_t          *w;             /* rows of the type being timed */
    size_t            n_bytes;
    size_t            at;            /* where the stream goes on */
    double            read_gbs;      /* GB/s that one thread of this machine reads */
    struct check_acts acts;
    float            *y;
    pf_mul_fn        *mul;
    enum pf_qtype     type;
    size_t            row_bytes;
};

/* What does not fit the last cache, which on servers holds hundreds of megabytes. */
static size_t stream_bytes(void)
{
    const size_t least = (size_t)256 << 20, most = (size_t)2 << 30;
    long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    size_t bytes = cache > 0 ? 4 * (size_t)cache : 0;
    return bytes < least ? least : bytes > most ? most : bytes / 4096 * 4096;
}

/* Best of three: what plain loads reach, eight streams of 64 bytes a step. */
static double measure_read(const uint8_t *w, size_t n_bytes)
{
    typedef uint64_t vec __attribute__((vector_size(64), aligned(64)));
    const vec *v = (const vec *)(const void *)w;
    double best = 0;
    for (int round = 0; round < 3; round++) {
        vec sum[4] = { { 0 } };
        uint64_t t = check_now_ns();
        for (size_t i = 0; i < n_bytes / sizeof(vec); i += 4) {
            __builtin_prefetch(&v[i + 64]);
            __builtin_prefetch(&v[i + 65]);
            __builtin_prefetch(&v[i + 66]);
            __builtin_prefetch(&v[i + 67]);
            for (int k = 0; k < 4; k++)
                sum[k] += v[i + (size_t)k];
        }
        t = check_now_ns() - t;
        sum[0] += sum[1] + sum[2] + sum[3];
        uint64_t all = sum[0][0] ^ sum[0][3];
        __asm__ volatile("" : : "r"(all));
        if ((double)n_bytes / (double)t > best)
            best = (double)n_bytes / (double)t;
    }
    return best;
}

/* ns of one call on n_rows rows and n_x activations: the least of many equal calls. */
static double time_call(const struct bench *b, int n_rows, int n_x)
{
    uint64_t best = UINT64_MAX, start = check_now_ns();
    for (int i = 0; i < 3 || check_now_ns() - start < LONG_NS; i++) {
        uint64_t t = check_now_ns();
        b->mul(b->w, b->row_bytes, n_rows, BENCH_N, b->acts.x, n_x, b->y, (size_t)n_rows, b->w);
        t = check_now_ns() - t;
        best = t < best ? t : best;
    }
    return (double)best;
}

/* GB/s over rows that come from memory. Each piece is read once; the best of three stretches of LONG_NS. */
static double time_stream(struct bench *b)
{
    enum { ROWS = 64 };
    double best = 0;
    for (int round = 0; round < 3; round++) {
        size_t bytes = 0;
        uint64_t start = check_now_ns(), t = 0;
        while (t < LONG_NS) {
            if (b->at + ROWS * b->row_bytes > b->n_bytes)
                b->at = 0;
            const uint8_t *w = b->w + b->at;
            b->at += ROWS * b->row_bytes;
            b->mul(w, b->row_bytes, ROWS, BENCH_N, b->acts.x, 1, b->y, ROWS, b->w + b->at);
            bytes += ROWS * b->row_bytes;
            t = check_now_ns() - start;
        }
        if ((double)bytes / (double)t > best)
            best = (double)bytes / (double)t;
    }
    return best;
}

static double time_dequant(const struct bench *b, pf_dequant_fn *dequant)
{
    uint64_t best = UINT64_MAX, start = check_now_ns();
    for (int i = 0; i < 3 || check_now_ns() - start < LONG_NS / 4; i++) {
        uint64_t t = check_now_ns();
        dequant(b->w, BENCH_N, b->y);
        t = check_now_ns() - t;
        best = t < best ? t : best;
    }
    return (double)best;
}

/* ns of the scalar level, to compare with; 0: not yet measured. */
struct baseline { double vec, tile, dequant; };

static void bench_vec(struct bench *b, const struct pf_kernels *level, struct baseline *base)
{
    int n_rows = (int)(CACHE_BYTES / b->row_bytes);
    b->mul = level->vec[b->type];
    double ns = time_call(b, n_rows, 1), stream = time_stream(b);
    double per_row = ns / n_rows, gbs = (double)b->row_bytes / per_row;
    base->vec = base->vec > 0 ? base->vec : per_row;
    printf("  vec     %8.1f ns a row  %6.1f GB/s cached  %6.1f GB/s streamed (%3.0f%% of %.1f)  %5.1fx scalar\n",
           per_row, gbs, stream, 100 * stream / b->read_gbs, b->read_gbs, base->vec / per_row);
}

static void bench_tile(struct bench *b, const struct pf_kernels *level, struct baseline *base)
{
    b->mul = level->tile[b->type];
    double ns16 = time_call(b, TILE_ROWS, 16), ns32 = time_call(b, TILE_ROWS, 32), macs = (double)TILE_ROWS * BENCH_N;
    base->tile = base->tile > 0 ? base->tile : ns32;
    printf("  tile    %8.1f us of 32  %6.1f GMAC/s of 16  %6.1f GMAC/s of 32  %5.1fx scalar\n", ns32 * 1e-3,
           macs * 16 / ns16, macs * 32 / ns32, base->tile / ns32);
}

static void bench_dequant(struct bench *b, const struct pf_kernels *level, struct baseline *base)
{
    double ns = time_dequant(b, level->dequant[b->type]);
    base->dequant = base->dequant > 0 ? base->dequant : ns;
    printf("  dequant %8.1f ns a row  %6.2f elements/ns  %5.1fx scalar\n", ns, BENCH_N / ns, base->dequant / ns);
}

static void bench_type(const struct check_opts *o, struct bench *b)
{
    struct check_rng rng = { .state = o->seed };
    struct baseline base = { 0 };
    b->row_bytes = (size_t)pf_qtype_row_bytes(b->type, BENCH_N);
    size_t once = b->row_bytes * TILE_ROWS, at = once;
    check_weights(&rng, b->type, CHECK_PLAIN, b->w, BENCH_N * TILE_ROWS);
    for (; at + once <= b->n_bytes; at += once)
        memcpy(b->w + at, b->w, once);
    memcpy(b->w + at, b->w, b->n_bytes - at);
    for (int i = 0; pf_kernels_level(i); i++) {
        const struct pf_kernels *level = pf_kernels_level(i);
        if (!check_runs(o, level) || !(level->vec[b->type] || level->tile[b->type] || level->dequant[b->type]))
            continue;
        printf("%s %s\n", pf_qtype_info(b->type)->name, level->name);
        if (level->vec[b->type])
            bench_vec(b, level, &base);
        if (level->tile[b->type])
            bench_tile(b, level, &base);
        if (level->dequant[b->type])
            bench_dequant(b, level, &base);
    }
}

void bench_products(const struct check_opts *o)
{
    struct check_rng rng = { .state = o->seed };
    struct bench b = { .n_bytes = stream_bytes(), .acts = check_acts_new(&rng, BENCH_N, 32, true) };
    b.w = check_fenced_new(b.n_bytes);
    b.y = check_guarded_new(&rng, 1 << 20);
    memset(b.w, 1, b.n_bytes);
    b.read_gbs = measure_read(b.w, b.n_bytes);
    printf("rows of %d; one thread reads %.1f GB/s\n", BENCH_N, b.read_gbs);
    for (int type = 0; type < PF_N_QTYPES; type++) {
        b.type = (enum pf_qtype)type;
        if (is_wanted(o, type))
            bench_type(o, &b);
    }
    check_guarded_free(b.y);
    check_acts_free(&b.acts);
    check_fenced_free(b.w, b.n_bytes);
}
