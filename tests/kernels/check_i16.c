/* Attention in whole numbers: rows to numbers, chunks, the fold. Every level against the scalar one, bit for bit, and
 * the scalar one's numbers against what docs/numerics.md says. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/pf_i16.h"
#include "check.h"

enum { QUERIES = PF_ATTN_I16_QUERIES, HD_MAX = PF_I16_HEAD_MAX, ROW = HD_MAX + 2 };

static const struct check_opts *opts;
static struct check_rng rng;
static int n_failed;

static void fail(const char *level, const char *entry, int n, const char *what)
{
    printf("%s %s, %d elements: %s\n", level, entry, n, what);
    n_failed++;
}

static float gauss(void)
{
    float sum = 0;
    for (int i = 0; i < 12; i++)
        sum += (float)(check_bits(&rng) >> 40) * 0x1p-24f;
    return sum - 6;
}

/* ---- Rows -------------------------------------------------------------------------------------------------------- */

enum row_kind { ROW_GAUSS, ROW_WIDE, ROW_ZERO, ROW_TINY, ROW_HUGE, ROW_TOO_LARGE, ROW_INF, ROW_NAN, N_ROW_KINDS };

static void fill_row(float *x, int n, enum row_kind kind)
{
    for (int i = 0; i < n; i++)
        x[i] = kind == ROW_ZERO ? 0 : kind == ROW_WIDE ? check_real(&rng, -30, 20) :
               gauss() * (kind == ROW_TINY ? 0x1p-70f : kind == ROW_HUGE ? 0x1p32f : 1);
    int at = check_int(&rng, 0, n - 1);
    if (kind >= ROW_TOO_LARGE)
        x[at] = kind == ROW_TOO_LARGE ? -0x1p60f : kind == ROW_INF ? INFINITY : NAN;
}

static void check_row(int n, enum row_kind kind)
{
    static float x[HD_MAX];
    static int8_t want[2 * HD_MAX], got[2 * HD_MAX];
    float want_s = 0;
    fill_row(x, n, kind);
    for (int i = 0, first = 1; pf_kernels_level(i); i++) {
        const struct pf_kernels *k = pf_kernels_level(i);
        if (!k->to_i16 || !check_runs(opts, k))
            continue;
        check_doing("%s to_i16, %d elements", k->name, n);
        float s = k->to_i16(x, n, first ? want : got);
        if (first)
            want_s = s;
        else if (memcmp(&s, &want_s, sizeof s) != 0 || memcmp(want, got, 2 * (size_t)n) != 0)
            fail(k->name, "to_i16", n, "differs");
        first = 0;
    }
    if ((want_s == 0) != (kind >= ROW_TOO_LARGE))
        fail("scalar", "to_i16", n, "takes a row that is out of range, or refuses one that is not");
    for (int i = 0; i < n && want_s > 0; i++)
        if (fabsf((float)(want[i] * 256 + want[n + i]) * want_s - x[i]) > 0.51f * want_s)
            fail("scalar", "to_i16", n, "is not the row");
}

static void check_rows(void)
{
    int before = n_failed;
    for (int n = PF_I16_HEAD_STEP; n <= HD_MAX; n += PF_I16_HEAD_STEP)
        for (int kind = 0; kind < N_ROW_KINDS; kind++)
            check_row(n, (enum row_kind)kind);
    printf("%-14s %d failed\n", "to_i16", n_failed - before);
}

/* Twice is the row again. */
static void check_rotation(int n, int piece)
{
    static float x[HD_MAX], want[HD_MAX], got[HD_MAX];
    fill_row(x, n, ROW_GAUSS);
    for (int i = 0, first = 1; pf_kernels_level(i); i++) {
        const struct pf_kernels *k = pf_kernels_level(i);
        if (!k->rotate || !check_runs(opts, k))
            continue;
        memcpy(first ? want : got, x, sizeof x);
        check_doing("%s rotate, %d elements by %d", k->name, n, piece);
        k->rotate(first ? want : got, n, piece);
        if (!first && memcmp(want, got, (size_t)n * sizeof *x) != 0)
            fail(k->name, "rotate", n, "differs");
        first = 0;
    }
    memcpy(got, want, sizeof got);
    pf_kernels_level(0)->rotate(got, n, piece);
    for (int i = 0; i < n; i++)
        if (!(fabsf(got[i] - x[i]) < 1e-5f))
            fail("scalar", "rotate", n, "twice is not the row");
}

static void check_rotations(void)
{
    int before = n_failed;
    for (int n = PF_I16_HEAD_STEP; n <= HD_MAX; n += PF_I16_HEAD_STEP)
        for (int piece = PF_I16_HEAD_STEP; n % piece == 0; piece *= 2)
            check_rotation(n, piece);
    printf("%-14s %d failed\n", "rotate", n_failed - before);
}

/* ---- A chunk ----------------------------------------------------------------------------------------------------- */

struct chunk {
    int     hd_k, hd_v, n_q;
    int8_t  q[QUERIES * 2 * HD_MAX];
    float   cq[QUERIES];
    int     lo[QUERIES], hi[QUERIES];
    uint8_t *k, *v;              /* fenced */
};

static size_t key_bytes(const struct chunk *c)
{
    return PF_I16_CHUNK * pf_i16_key_bytes(c->hd_k);
}

static size_t value_bytes(const struct chunk *c)
{
    return PF_I16_CHUNK * pf_i16_value_bytes(c->hd_v);
}

static int8_t any_byte(bool extreme)
{
    return extreme ? (check_bits(&rng) & 1 ? 127 : -128) : (int8_t)check_bits(&rng);
}

/* Numbers of every kind; scales as they can be. Upper bytes are within +-127. */
static void fill_position(struct chunk *c, int p, bool extreme)
{
    uint8_t *k = c->k + pf_i16_key_block(c->hd_k, p), *v = c->v + pf_i16_value_block(c->hd_v, p);
    int at = p % PF_I16_BLOCK;
    float sk = fabsf(check_real(&rng, -16, -12)), sv = fabsf(extreme ? check_real(&rng, -70, 20) : gauss() + 7);
    float lsv = pf_log2f(sv), rsv = 1 / sv;
    for (int e = 0; e < c->hd_k; e++) {
        int8_t upper = any_byte(extreme), lower = any_byte(extreme);
        k[pf_i16_key_at(c->hd_k, at, e)] = (uint8_t)(upper == -128 ? -127 : upper);
        k[pf_i16_key_at(c->hd_k, at, e) + PF_I16_PLANE] = (uint8_t)lower;
    }
    for (int e = 0; e < c->hd_v; e++) {
        int8_t upper = any_byte(extreme), lower = any_byte(extreme);
        v[pf_i16_value_at(c->hd_v, at, e)] = (uint8_t)(upper == -128 ? -127 : upper);
        v[pf_i16_value_at(c->hd_v, at, e) + PF_I16_PLANE] = (uint8_t)lower;
    }
    memcpy(k + pf_i16_sk(c->hd_k) + (size_t)at * 4, &sk, 4);
    memcpy(k + pf_i16_lsv(c->hd_k) + (size_t)at * 4, &lsv, 4);
    memcpy(v + pf_i16_rsv(c->hd_v) + (size_t)at * 4, &rsv, 4);
}

/* Whatever no query sees is all ones: NaNs, where it is a scale. */
static void fill_chunk(struct chunk *c, bool extreme)
{
    bool seen[PF_I16_CHUNK] = { false };
    memset(c->k, 0xff, key_bytes(c));
    memset(c->v, 0xff, value_bytes(c));
    for (int i = 0; i < c->n_q; i++) {
        int a = check_int(&rng, 0, PF_I16_CHUNK), b = check_int(&rng, 0, PF_I16_CHUNK);
        c->lo[i] = i % 3 == 0 ? 0 : a < b ? a : b;
        c->hi[i] = i % 7 == 5 ? c->lo[i] : i % 3 == 1 ? PF_I16_CHUNK : a < b ? b : a;
        c->cq[i] = extreme ? check_real(&rng, -20, 10) : check_real(&rng, -16, -13);
        for (int e = 0; e < 2 * c->hd_k; e++) {
            int8_t byte = any_byte(extreme);
            c->q[(size_t)i * 2 * (size_t)c->hd_k + (size_t)e] = e < c->hd_k && byte == -128 ? -127 : byte;
        }
        for (int p = c->lo[i]; p < c->hi[i]; p++)
            seen[p] = true;
    }
    for (int p = 0; p < PF_I16_CHUNK; p++)
        if (seen[p])
            fill_position(c, p, extreme);
}

static _Alignas(64) uint8_t scratch[PF_ATTN_I16_SCRATCH];

/* Queries first .. first + n through a kernel. */
static void attend(const struct pf_kernels *k, const struct chunk *c, int first, int n, float *part)
{
    struct pf_attn_i16_args a = {
        .q = c->q + (size_t)first * 2 * (size_t)c->hd_k, .cq = c->cq + first, .k = c->k, .v = c->v, .next_k = c->k,
        .next_v = c->v, .n_q = n, .hd_k = c->hd_k, .hd_v = c->hd_v, .lo = c->lo + first, .hi = c->hi + first,
        .part = part + (size_t)first * ROW, .part_stride = ROW, .scratch = scratch,
    };
    check_doing("%s attn_i16, %d queries, heads of %d and %d", k->name, n, c->hd_k, c->hd_v);
    k->attn_i16(&a);
}

static bool parts_equal(const struct chunk *c, const float *a, const float *b)
{
    for (int i = 0; i < c->n_q; i++)
        if (memcmp(a + i * ROW, b + i * ROW, ((size_t)c->hd_v + 2) * sizeof *a) != 0)
            return false;
    return true;
}

static void check_chunk(int n_q, int hd_k, int hd_v, bool extreme)
{
    static struct chunk c;
    static float want[QUERIES * ROW], got[QUERIES * ROW];
    c = (struct chunk){ .hd_k = hd_k, .hd_v = hd_v, .n_q = n_q };
    c.k = check_fenced_new(key_bytes(&c));
    c.v = check_fenced_new(value_bytes(&c));
    fill_chunk(&c, extreme);
    bool first = true;
    for (int i = 0; pf_kernels_level(i); i++) {
        const struct pf_kernels *k = pf_kernels_level(i);
        if (!k->attn_i16 || !check_runs(opts, k))
            continue;
        attend(k, &c, 0, n_q, first ? want : got);
        if (!first && !parts_equal(&c, want, got))
            fail(k->name, "attn_i16", hd_k, "differs");
        for (int at = 0, n; at < n_q; at += n) {
            n = check_int(&rng, 1, n_q - at);
            memset(scratch, 0xff, sizeof scratch);
            attend(k, &c, at, n, got);
        }
        if (!parts_equal(&c, want, got))
            fail(k->name, "attn_i16", hd_k, "depends on how queries are split");
        first = false;
    }
    check_fenced_free(c.k, key_bytes(&c));
    check_fenced_free(c.v, value_bytes(&c));
}

static void check_chunks(void)
{
    static const int shapes[][3] = { { 1, 128, 128 }, { 3, 64, 64 }, { 8, 128, 128 }, { 64, 64, 128 },
                                     { 5, 512, 512 }, { 8, 96, 32 }, { 2, 32, 160 }, { 17, 256, 256 },
                                     { 7, 192, 128 }, { 4, 224, 96 } };
    int before = n_failed;
    for (int i = 0; i < (int)(sizeof shapes / sizeof *shapes); i++)
        for (int extreme = 0; extreme < 2; extreme++)
            check_chunk(shapes[i][0], shapes[i][1], shapes[i][2], extreme);
    printf("%-14s %d failed\n", "attn_i16", n_failed - before);
}

/* ---- The fold ---------------------------------------------------------------------------------------------------- */

static void check_fold(int hd)
{
    static float total[ROW], part[ROW], want[ROW], got[ROW];
    for (int i = 0; i < hd + 2; i++) {
        total[i] = check_real(&rng, -20, 20);
        part[i] = check_real(&rng, -20, 20);
    }
    total[hd] = check_bits(&rng) % 4 == 0 ? -INFINITY : 100 * gauss();
    part[hd] = 100 * gauss();
    for (int i = 0, first = 1; pf_kernels_level(i); i++) {
        const struct pf_kernels *k = pf_kernels_level(i);
        if (!k->attn_fold || !check_runs(opts, k))
            continue;
        memcpy(first ? want : got, total, sizeof total);
        k->attn_fold(first ? want : got, part, hd);
        if (!first && memcmp(want, got, ((size_t)hd + 2) * sizeof *want) != 0)
            fail(k->name, "attn_fold", hd, "differs");
        first = 0;
    }
}

static void check_folds(void)
{
    int before = n_failed;
    for (int i = 0; i < 200; i++)
        check_fold(PF_I16_HEAD_STEP * check_int(&rng, 1, HD_MAX / PF_I16_HEAD_STEP));
    printf("%-14s %d failed\n", "attn_fold", n_failed - before);
}

int check_i16(const struct check_opts *o)
{
    opts = o;
    rng.state = o->seed;
    n_failed = 0;
    if (check_wants(o, "rotate"))
        check_rotations();
    if (check_wants(o, "to_i16"))
        check_rows();
    if (check_wants(o, "attn_i16"))
        check_chunks();
    if (check_wants(o, "attn_fold"))
        check_folds();
    return n_failed;
}

/* ---- Bench ------------------------------------------------------------------------------------------------------- */

enum { BENCH_HD = 128, BENCH_CHUNKS = 32 };

/* The best time of an attention to one chunk, of several. */
static double best_ns(const struct pf_kernels *k, struct chunk *c, uint8_t *keys, uint8_t *values, int n_chunks)
{
    static float part[QUERIES * ROW];
    double best = INFINITY;
    for (int run = 0; run < 30; run++) {
        uint64_t start = check_now_ns();
        for (int i = 0; i < n_chunks; i++) {
            c->k = keys + (size_t)i * key_bytes(c);
            c->v = values + (size_t)i * value_bytes(c);
            attend(k, c, 0, c->n_q, part);
        }
        double ns = (double)(check_now_ns() - start) / n_chunks;
        best = ns < best ? ns : best;
    }
    return best;
}

static void bench_chunks(const struct pf_kernels *k)
{
    static const int n_q[] = { 1, 4, 8, 64 };
    static struct chunk c = { .hd_k = BENCH_HD, .hd_v = BENCH_HD, .n_q = QUERIES };
    uint8_t *keys = check_fenced_new(BENCH_CHUNKS * key_bytes(&c));
    uint8_t *values = check_fenced_new(BENCH_CHUNKS * value_bytes(&c));
    for (int i = 0; i < BENCH_CHUNKS; i++) {
        c.k = keys + (size_t)i * key_bytes(&c);
        c.v = values + (size_t)i * value_bytes(&c);
        fill_chunk(&c, false);
        for (int p = 0; p < PF_I16_CHUNK; p++)
            fill_position(&c, p, false);
    }
    for (int i = 0; i < QUERIES; i++) {
        c.lo[i] = 0;
        c.hi[i] = PF_I16_CHUNK;
    }
    for (int i = 0; i < 4; i++) {
        c.n_q = n_q[i];
        double ns = best_ns(k, &c, keys, values, n_q[i] > 8 ? 2 : BENCH_CHUNKS);
        printf("%-14s attn_i16 n_q %-5d %10.0f ns a chunk %7.2f GB/s %7.1f GFLOP/s\n", k->name, n_q[i], ns,
               (double)(key_bytes(&c) + value_bytes(&c)) / ns, 4.0 * PF_I16_CHUNK * BENCH_HD * n_q[i] / ns);
    }
    check_fenced_free(keys, BENCH_CHUNKS * key_bytes(&c));
    check_fenced_free(values, BENCH_CHUNKS * value_bytes(&c));
}

static void bench_rows(const struct pf_kernels *k)
{
    static float x[BENCH_HD];
    static int8_t planes[2 * BENCH_HD];
    double best = INFINITY;
    fill_row(x, BENCH_HD, ROW_GAUSS);
    for (int run = 0; run < 30; run++) {
        uint64_t start = check_now_ns();
        for (int i = 0; i < 1000; i++)
            x[i % BENCH_HD] = k->to_i16(x, BENCH_HD, planes);
        double ns = (double)(check_now_ns() - start) / 1000;
        best = ns < best ? ns : best;
    }
    printf("%-14s to_i16         %10.0f ns\n", k->name, best);
}

void bench_i16(const struct check_opts *o)
{
    opts = o;
    rng.state = o->seed;
    for (int i = 0; pf_kernels_level(i); i++) {
        const struct pf_kernels *k = pf_kernels_level(i);
        if (k->attn_i16 && check_runs(o, k) && check_wants(o, "attn_i16"))
            bench_chunks(k);
        if (k->to_i16 && check_runs(o, k) && check_wants(o, "to_i16"))
            bench_rows(k);
    }
}
