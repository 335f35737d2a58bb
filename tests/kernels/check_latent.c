/* Attention to a latent in whole numbers: every level against the scalar one, bit for bit. The bench has the float
 * kernel over F16 beside it, of the same shape. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/pf_latent.h"
#include "check.h"

enum { QUERIES = PF_ATTN_I16_QUERIES, HD_MAX = 2 * PF_I16_HEAD_MAX, ROW = PF_I16_HEAD_MAX + 2 };

static const struct check_opts *opts;
static struct check_rng rng;
static int n_failed;

struct chunk {
    int      hd_k, hd_v, n_q;
    int8_t   q[QUERIES * 2 * HD_MAX];
    float    cq[QUERIES], cqp[QUERIES];
    int      lo[QUERIES], hi[QUERIES];
    uint8_t *at;                 /* fenced */
};

static size_t bytes_of(const struct chunk *c)
{
    return PF_I16_CHUNK * pf_latent_bytes(c->hd_k);
}

static int8_t any_byte(bool extreme)
{
    return extreme ? (check_bits(&rng) & 1 ? 127 : -128) : (int8_t)check_bits(&rng);
}

/* Upper bytes are within +-127. */
static int8_t any_upper(bool extreme)
{
    int8_t byte = any_byte(extreme);
    return byte == -128 ? -127 : byte;
}

/* Numbers of every kind; scales as they can be. One position in 50 is out of range: its numbers are zeros. */
static void fill_position(struct chunk *c, int p, bool extreme)
{
    uint8_t *block = c->at + pf_latent_block(c->hd_k, p);
    int at = p % PF_I16_BLOCK;
    float s = fabsf(extreme ? check_real(&rng, -70, 20) : check_real(&rng, -16, -12));
    float sp = fabsf(check_real(&rng, -16, -12));
    float scales[4] = { s, sp, pf_log2f(s), 1 / s };
    bool bad = check_int(&rng, 0, 49) == 0;
    if (bad)
        memcpy(scales, (float[]){ 1, 1, 0, NAN }, sizeof scales);
    for (int e = 0; e < c->hd_k; e++) {
        block[pf_latent_at(c->hd_k, at, e)] = (uint8_t)(bad ? 0 : any_upper(extreme));
        block[pf_latent_at(c->hd_k, at, e) + PF_LATENT_PLANE] = (uint8_t)(bad ? 0 : any_byte(extreme));
    }
    for (int i = 0; i < 4; i++)
        memcpy(block + pf_latent_scales(c->hd_k, i) + (size_t)at * 4, &scales[i], 4);
}

static void fill_query(struct chunk *c, int i, bool extreme)
{
    int n_pe = c->hd_k - c->hd_v;
    int8_t *q = c->q + (size_t)i * 2 * (size_t)c->hd_k;
    for (int e = 0; e < 2 * c->hd_k; e++) {
        bool upper = e < c->hd_v || (e >= 2 * c->hd_v && e < 2 * c->hd_v + n_pe);
        q[e] = upper ? any_upper(extreme) : any_byte(extreme);
    }
    c->cq[i] = extreme ? check_real(&rng, -20, 10) : check_real(&rng, -16, -13);
    c->cqp[i] = n_pe ? check_real(&rng, -16, -13) : NAN;
}

/* Whatever no query sees is all ones: NaNs, where it is a scale. */
static void fill_chunk(struct chunk *c, bool extreme)
{
    bool seen[PF_I16_CHUNK] = { false };
    memset(c->at, 0xff, bytes_of(c));
    for (int i = 0; i < c->n_q; i++) {
        int a = check_int(&rng, 0, PF_I16_CHUNK), b = check_int(&rng, 0, PF_I16_CHUNK);
        c->lo[i] = i % 3 == 0 ? 0 : a < b ? a : b;
        c->hi[i] = i % 7 == 5 ? c->lo[i] : i % 3 == 1 ? PF_I16_CHUNK : a < b ? b : a;
        fill_query(c, i, extreme);
        for (int p = c->lo[i]; p < c->hi[i]; p++)
            seen[p] = true;
    }
    for (int p = 0; p < PF_I16_CHUNK; p++)
        if (seen[p])
            fill_position(c, p, extreme);
}

static _Alignas(64) uint8_t scratch[PF_ATTN_LATENT_SCRATCH];

/* Queries first .. first + n through a kernel. */
static void attend(const struct pf_kernels *k, const struct chunk *c, int first, int n, float *part)
{
    struct pf_attn_latent_args a = {
        .q = c->q + (size_t)first * 2 * (size_t)c->hd_k, .cq = c->cq + first, .cqp = c->cqp + first, .chunk = c->at,
        .next = c->at, .n_q = n, .hd_k = c->hd_k, .hd_v = c->hd_v, .lo = c->lo + first, .hi = c->hi + first,
        .part = part + (size_t)first * ROW, .part_stride = ROW, .scratch = scratch,
    };
    check_doing("%s attn_latent, %d queries, a latent of %d, %d", k->name, n, c->hd_v, c->hd_k);
    k->attn_latent(&a);
}

/* Whether partials have the same bits, where a sum of weights that is not a number may have any. */
static bool parts_equal(const struct chunk *c, const float *a, const float *b)
{
    for (int i = 0; i < c->n_q; i++) {
        const float *x = a + i * ROW, *y = b + i * ROW;
        bool both_nan = isnan(x[c->hd_v + 1]) && isnan(y[c->hd_v + 1]);
        if (memcmp(x, y, ((size_t)c->hd_v + (both_nan ? 1 : 2)) * sizeof *x) != 0)
            return false;
    }
    return true;
}

static void fail(const struct pf_kernels *k, const struct chunk *c, const char *what)
{
    printf("%s attn_latent, %d queries, a latent of %d, %d: %s\n", k->name, c->n_q, c->hd_v, c->hd_k, what);
    n_failed++;
}

static void check_chunk(int n_q, int hd_k, int hd_v, bool extreme)
{
    static struct chunk c;
    static float want[QUERIES * ROW], got[QUERIES * ROW];
    c = (struct chunk){ .hd_k = hd_k, .hd_v = hd_v, .n_q = n_q };
    c.at = check_fenced_new(bytes_of(&c));
    fill_chunk(&c, extreme);
    bool first = true;
    for (int i = 0; pf_kernels_level(i); i++) {
        const struct pf_kernels *k = pf_kernels_level(i);
        if (!k->attn_latent || !check_runs(opts, k))
            continue;
        attend(k, &c, 0, n_q, first ? want : got);
        if (!first && !parts_equal(&c, want, got))
            fail(k, &c, "differs");
        for (int at = 0, n; at < n_q; at += n) {
            n = check_int(&rng, 1, n_q - at);
            memset(scratch, 0xff, sizeof scratch);
            attend(k, &c, at, n, got);
        }
        if (!parts_equal(&c, want, got))
            fail(k, &c, "depends on how queries are split");
        first = false;
    }
    check_fenced_free(c.at, bytes_of(&c));
}

int check_latent(const struct check_opts *o)
{
    static const int shapes[][3] = { { 1, 576, 512 }, { 16, 576, 512 }, { 5, 64, 32 }, { 64, 96, 64 }, { 7, 512, 512 },
                                     { 4, 1024, 512 }, { 3, 544, 32 }, { 8, 160, 96 }, { 2, 32, 32 },
                                     { 17, 320, 256 } };
    opts = o;
    rng.state = o->seed;
    n_failed = 0;
    if (!check_wants(o, "attn_latent"))
        return 0;
    for (int i = 0; i < (int)(sizeof shapes / sizeof *shapes); i++)
        for (int extreme = 0; extreme < 2; extreme++)
            check_chunk(shapes[i][0], shapes[i][1], shapes[i][2], extreme);
    printf("%-14s %d failed\n", "attn_latent", n_failed);
    return n_failed;
}

/* ---- Bench ------------------------------------------------------------------------------------------------------- */

enum { BENCH_HD = 576, BENCH_HD_V = 512, BENCH_CHUNKS = 16 };

typedef void run_fn(const struct pf_kernels *k, struct chunk *c, const uint8_t *chunk);

static void run_whole(const struct pf_kernels *k, struct chunk *c, const uint8_t *chunk)
{
    static float part[QUERIES * ROW];
    memcpy(&c->at, &chunk, sizeof chunk);
    attend(k, c, 0, c->n_q, part);
}

static void run_f16(const struct pf_kernels *k, struct chunk *c, const uint8_t *chunk)
{
    static float q[QUERIES * BENCH_HD], score[QUERIES * PF_KV_CHUNK], m[QUERIES], z[QUERIES];
    static float acc[QUERIES * BENCH_HD_V], ac[QUERIES * BENCH_HD_V];
    k->attn_f16(&(struct pf_attn_args){
        .q = q, .q_stride = BENCH_HD, .k = chunk, .v = chunk, .v_stride = BENCH_HD, .n_q = c->n_q, .hd_k = BENCH_HD,
        .hd_v = BENCH_HD_V, .lo = c->lo, .hi = c->hi, .scale = 1, .score = score, .m = m, .z = z, .acc = acc,
        .acc_stride = BENCH_HD_V, .ac = ac });
}

/* The best time of an attention to one chunk, of several. */
static double best_ns(const struct pf_kernels *k, run_fn *run, struct chunk *c, const uint8_t *chunks, size_t bytes)
{
    double best = INFINITY;
    for (int i = 0; i < 10; i++) {
        uint64_t start = check_now_ns();
        for (int j = 0; j < BENCH_CHUNKS; j++)
            run(k, c, chunks + (size_t)j * bytes);
        double ns = (double)(check_now_ns() - start) / BENCH_CHUNKS;
        best = ns < best ? ns : best;
    }
    return best;
}

static void bench_level(const struct pf_kernels *k, const char *entry, run_fn *run, const uint8_t *chunks, size_t bytes)
{
    static const int n_q[] = { 1, 4, 16, 64 };
    static struct chunk c = { .hd_k = BENCH_HD, .hd_v = BENCH_HD_V };
    for (int i = 0; i < QUERIES; i++) {
        c.lo[i] = 0;
        c.hi[i] = PF_I16_CHUNK;
        fill_query(&c, i, false);
    }
    for (int i = 0; i < (int)(sizeof n_q / sizeof *n_q); i++) {
        c.n_q = n_q[i];
        double ns = best_ns(k, run, &c, chunks, bytes);
        printf("%-14s %-11s n_q %-5d %10.0f ns a chunk %7.2f GB/s %7.1f GFLOP/s\n", k->name, entry, n_q[i], ns,
               (double)bytes / ns, 2.0 * PF_I16_CHUNK * (BENCH_HD + BENCH_HD_V) * n_q[i] / ns);
    }
}

void bench_latent(const struct check_opts *o)
{
    static struct chunk c = { .hd_k = BENCH_HD, .hd_v = BENCH_HD_V };
    size_t bytes = bytes_of(&c), f16_bytes = (size_t)PF_KV_CHUNK * BENCH_HD * 2;
    uint8_t *chunks = check_fenced_new(BENCH_CHUNKS * bytes), *halves = check_fenced_new(BENCH_CHUNKS * f16_bytes);
    opts = o;
    rng.state = o->seed;
    for (int i = 0; i < BENCH_CHUNKS * PF_I16_CHUNK; i++) {
        c.at = chunks + (size_t)(i / PF_I16_CHUNK) * bytes;
        fill_position(&c, i % PF_I16_CHUNK, false);
    }
    memset(halves, 0x30, BENCH_CHUNKS * f16_bytes);
    for (int i = 0; pf_kernels_level(i) && check_wants(o, "attn_latent"); i++) {
        const struct pf_kernels *k = pf_kernels_level(i);
        if (!check_runs(o, k))
            continue;
        if (k->attn_latent)
            bench_level(k, "attn_latent", run_whole, chunks, bytes);
        if (k->attn_f16)
            bench_level(k, "attn_f16", run_f16, halves, f16_bytes);
    }
    check_fenced_free(chunks, BENCH_CHUNKS * bytes);
    check_fenced_free(halves, BENCH_CHUNKS * f16_bytes);
}
