/* The float kernels: the same bits at every level, whatever the length, the alignment and the company of other queries;
 * the order that kernels.h lays down; and an error against double that its order allows.
 *
 * Attention is defined here a second time, one query and one position at a time. Everything else is compared with the
 * lowest level, and that one with double. */
#include "check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/pf_math.h"

enum { N_MAX = 2880, GUARD = 16, N_LEVELS_MAX = 3 };

static const int sizes[] = { 1, 3, 31, 32, 33, 64, 100, 128, 576, 2048, N_MAX };
enum { N_SIZES = sizeof sizes / sizeof *sizes };

static const struct pf_kernels *levels[N_LEVELS_MAX];
static int n_levels, n_failed;
static struct check_rng rng;

static void fail(const char *level, const char *what, int n, const char *how)
{
    printf("%s %s: n = %d, %s\n", level, what, n, how);
    n_failed++;
}

static uint32_t random_bits(void)
{
    return (uint32_t)(check_bits(&rng) >> 32);
}

/* Uniform in [-1, 1). */
static float random_float(void)
{
    return (float)(int32_t)random_bits() * 0x1p-31f;
}

static bool same(const float *a, const float *b, int n)
{
    for (int i = 0; i < n; i++)
        if (pf_float_bits(a[i]) != pf_float_bits(b[i]) && !(isnan(a[i]) && isnan(b[i])))
            return false;
    return true;
}

/* ---- Inputs ---------------------------------------------------------------------------------------------------- */

enum fill { FILL_PLAIN, FILL_WIDE, FILL_ZERO, FILL_TINY, FILL_HUGE, N_FILLS };
static const char *const fill_names[N_FILLS] = { "plain", "-100..100", "zeros", "denormals", "huge" };

static void fill(float *x, int n, enum fill how)
{
    static const float scale[N_FILLS] = { 3.0f, 100.0f, 0.0f, 0x1p-130f, 0x1.fp127f };
    for (int i = 0; i < n; i++)
        x[i] = random_float() * scale[how];
}

/* ---- One entry at a time, against the lowest level --------------------------------------------------------------- */

/* x, w: 2 n floats each. out: 2 n floats; entries that allow it write in place the second time. */
struct job {
    int          n;
    const float *x, *w;
    float       *out;
};

static void run_rms_norm(const struct pf_kernels *k, const struct job *j)
{
    k->rms_norm(j->x, j->w, 1e-6f, j->n, j->out);
    memcpy(j->out + j->n, j->x, (size_t)j->n * sizeof *j->x);
    k->rms_norm(j->out + j->n, NULL, 1e-5f, j->n, j->out + j->n);
}

static void run_centre(const struct pf_kernels *k, const struct job *j)
{
    k->centre(j->x, j->n, j->out);
    memcpy(j->out + j->n, j->w, (size_t)j->n * sizeof *j->w);
    k->centre(j->out + j->n, j->n, j->out + j->n);
}

static void run_glu(pf_swiglu_fn *fn, const struct job *j)
{
    fn(j->x, j->w, j->n, j->out);
    memcpy(j->out + j->n, j->w, (size_t)j->n * sizeof *j->w);
    fn(j->x, j->out + j->n, j->n, j->out + j->n);
}

static void run_swiglu(const struct pf_kernels *k, const struct job *j)
{
    run_glu(k->swiglu, j);
}

static void run_swiglu_oai(const struct pf_kernels *k, const struct job *j)
{
    run_glu(k->swiglu_oai, j);
}

static void run_swiglu_clamped(const struct pf_kernels *k, const struct job *j)
{
    k->swiglu_clamped(j->x, j->w, 1.5f, j->n, j->out);
    memcpy(j->out + j->n, j->w, (size_t)j->n * sizeof *j->w);
    k->swiglu_clamped(j->x, j->out + j->n, 0.1f, j->n, j->out + j->n);
}

static void run_swiglu_capped(const struct pf_kernels *k, const struct job *j)
{
    k->swiglu_capped(j->x, j->w, 1.5f, j->n, j->out);
    memcpy(j->out + j->n, j->w, (size_t)j->n * sizeof *j->w);
    k->swiglu_capped(j->x, j->out + j->n, 0.1f, j->n, j->out + j->n);
}

static void run_sigmoid_mul(const struct pf_kernels *k, const struct job *j)
{
    run_glu(k->sigmoid_mul, j);
}

static void run_relu_mul(const struct pf_kernels *k, const struct job *j)
{
    run_glu(k->relu_mul, j);
}

static void run_mul(const struct pf_kernels *k, const struct job *j)
{
    run_glu(k->mul, j);
}

static void run_l2_norm(const struct pf_kernels *k, const struct job *j)
{
    k->l2_norm(j->x, 1e-6f, 0.7f, j->n, j->out);
    memcpy(j->out + j->n, j->w, (size_t)j->n * sizeof *j->w);
    k->l2_norm(j->out + j->n, 1e-6f, 1.0f, j->n, j->out + j->n);
}

static void run_conv(const struct pf_kernels *k, const struct job *j)
{
    const float *taps[4] = { j->x, j->w, j->x + j->n, j->w + j->n };
    k->conv(taps, j->w, (size_t)j->n, 1, j->n, NULL, true, j->out);
    k->conv(taps, j->x, 0, 4, j->n, NULL, true, j->out + j->n);
}

static void run_conv_bias(const struct pf_kernels *k, const struct job *j)
{
    const float *taps[3] = { j->x, j->w, j->x + j->n };
    k->conv(taps, j->w, 0, 3, j->n, j->w + j->n, false, j->out);
    k->conv(taps, j->x, 0, 3, j->n, j->w, true, j->out + j->n);
}

/* From nothing, and then once more. */
static void run_compress(const struct pf_kernels *k, const struct job *j)
{
    float *m = j->out, *z = j->out + j->n;
    static float a[N_MAX];
    for (int i = 0; i < j->n; i++) {
        m[i] = -INFINITY;
        z[i] = a[i] = 0;
    }
    k->compress(m, z, a, j->x, j->w, j->w + j->n, j->n);
    k->compress(m, z, a, j->x + j->n, j->x, j->w, j->n);
    for (int i = 0; i < j->n; i++)
        m[i] += a[i];
}

/* The output buffer with a copy of x, for entries that work in place. */
static float *copy_x(const struct job *j)
{
    return memcpy(j->out, j->x, 2 * (size_t)j->n * sizeof *j->x);
}

static void run_add(const struct pf_kernels *k, const struct job *j)
{
    k->add(copy_x(j), j->w, 2 * j->n);
}

static void run_scale(const struct pf_kernels *k, const struct job *j)
{
    k->scale(copy_x(j), -1.7f, 2 * j->n);
}

static void run_axpy(const struct pf_kernels *k, const struct job *j)
{
    k->axpy(copy_x(j), 0.3f, j->w, 2 * j->n);
}

static void run_rope_norm(const struct pf_kernels *k, const struct job *j)
{
    k->rope_norm(copy_x(j), j->w, j->n);
}

static void run_rope_neox(const struct pf_kernels *k, const struct job *j)
{
    k->rope_neox(copy_x(j), j->w, j->n);
}

static void run_softmax(const struct pf_kernels *k, const struct job *j)
{
    k->softmax(j->x, j->n, j->out);
    memcpy(j->out + j->n, j->w, (size_t)j->n * sizeof *j->w);
    k->softmax(j->out + j->n, j->n, j->out + j->n);
}

static void run_weigh(const struct pf_kernels *k, const struct job *j)
{
    k->weigh(j->x, 3.5f, 0.7f, j->n, j->out);
}

static void run_to_f16(const struct pf_kernels *k, const struct job *j)
{
    k->to_f16(j->x, 2 * j->n, (uint16_t *)(void *)j->out);
}

static const struct entry {
    const char *name;
    void      (*run)(const struct pf_kernels *k, const struct job *j);
    int         bytes;       /* bench: read and written per n, copies included */
} entries[] = {
    { "rms_norm", run_rms_norm, 36 },   { "centre", run_centre, 32 },
    { "swiglu", run_swiglu, 32 },       { "swiglu_oai", run_swiglu_oai, 32 },
    { "add", run_add, 40 },             { "scale", run_scale, 32 },         { "axpy", run_axpy, 40 },
    { "rope_norm", run_rope_norm, 40 }, { "rope_neox", run_rope_neox, 40 }, { "softmax", run_softmax, 56 },
    { "weigh", run_weigh, 8 },
    { "to_f16", run_to_f16, 12 },       { "sigmoid_mul", run_sigmoid_mul, 32 }, { "l2_norm", run_l2_norm, 32 },
    { "conv", run_conv, 32 },           { "conv_bias", run_conv_bias, 32 },     { "relu_mul", run_relu_mul, 32 },
    { "mul", run_mul, 32 }, { "swiglu_clamped", run_swiglu_clamped, 32 },
    { "swiglu_capped", run_swiglu_capped, 32 },
    { "compress", run_compress, 72 },
};
enum { N_ENTRIES = sizeof entries / sizeof *entries };

enum { ROOM = 2 * N_MAX + 2 * GUARD };

/* Writes between guards, at any multiple of 4 bytes; gives the 2 n floats. */
static const float *guarded_run(const struct entry *e, const struct pf_kernels *k, const struct job *in, int shift,
                                float *room)
{
    struct job j = *in;
    memset(room, 0xa5, ROOM * sizeof *room);
    j.out = room + GUARD + shift;
    check_doing("%s %s, n = %d", k->name, e->name, j.n);
    e->run(k, &j);
    if (pf_float_bits(j.out[2 * j.n]) != 0xa5a5a5a5u || pf_float_bits(j.out[-1]) != 0xa5a5a5a5u)
        fail(k->name, e->name, j.n, "writes past its output");
    return j.out;
}

/* Inputs end where touching the next byte faults. */
static void check_entry(const struct entry *e, int n, enum fill how, int shift)
{
    static float want_room[ROOM], got_room[ROOM];
    size_t bytes = 2 * (size_t)n * sizeof(float);
    float *x = (float *)(void *)check_fenced_new(bytes), *w = (float *)(void *)check_fenced_new(bytes);
    fill(x, 2 * n, how);
    fill(w, 2 * n, how);
    struct job j = { .n = n, .x = x, .w = w };
    const float *want = guarded_run(e, levels[0], &j, shift, want_room);
    for (int i = 1; i < n_levels; i++)
        if (!same(want, guarded_run(e, levels[i], &j, shift, got_room), 2 * n))
            fail(levels[i]->name, e->name, n, fill_names[how]);
    check_fenced_free((uint8_t *)x, bytes);
    check_fenced_free((uint8_t *)w, bytes);
}

/* ---- Quantisation ------------------------------------------------------------------------------------------------ */

struct qrow {
    int8_t  q[N_MAX + 64] __attribute__((aligned(64)));
    float   d[N_MAX / 32 + 16] __attribute__((aligned(64)));
    int16_t s[N_MAX / 16 + 32] __attribute__((aligned(64)));
};

/* The definition, once more. */
static void quantise_plainly(const float *x, int n, struct qrow *out)
{
    for (int b = 0; b < n / 32; b++) {
        float amax = 0;
        for (int i = 0; i < 32; i++)
            amax = fmaxf(amax, fabsf(x[32 * b + i]));
        bool zero = amax < 0x1p-100f;
        out->d[b] = zero ? 0 : amax / 127.0f;
        out->s[2 * b] = out->s[2 * b + 1] = 0;
        for (int i = 0; i < 32; i++) {
            out->q[32 * b + i] = zero ? 0 : (int8_t)lrintf(x[32 * b + i] * (127.0f / amax));
            out->s[2 * b + i / 16] = (int16_t)(out->s[2 * b + i / 16] + out->q[32 * b + i]);
        }
    }
}

static void check_quantise(int n, enum fill how)
{
    static struct qrow want, got;
    float *x = (float *)(void *)check_fenced_new((size_t)n * sizeof(float));
    fill(x, n, how);
    memset(&want, 0x5a, sizeof want);
    quantise_plainly(x, n, &want);
    for (int i = 0; i < n_levels; i++) {
        memset(&got, 0x5a, sizeof got);
        if (levels[i]->quantise(x, n, got.q, got.d, got.s) != 0 || memcmp(&want, &got, sizeof got) != 0)
            fail(levels[i]->name, "quantise", n, fill_names[how]);
        static const float bad[] = { NAN, -NAN, INFINITY, -INFINITY };
        float was = x[n / 2];
        for (int j = 0; j < 4; j++) {
            x[n / 2] = bad[j];
            if (levels[i]->quantise(x, n, got.q, got.d, got.s) != -1)
                fail(levels[i]->name, "quantise", n, "takes a value that is not finite");
        }
        x[n / 2] = was;
    }
    check_fenced_free((uint8_t *)x, (size_t)n * sizeof(float));
}

/* ---- The delta rule ---------------------------------------------------------------------------------------------- */

enum { DELTA_MAX = 136 };

/* The definition, once more, column by column. */
static void delta_plainly(const struct pf_delta_args *a)
{
    for (int j = 0; j < a->d; j++) {
        float seen = 0, out = 0;
        for (int i = 0; i < a->d; i++)
            seen = fmaf(a->before[i * a->d + j], a->k[i], seen);
        float change = fmaf(-a->decay, seen, a->v[j]) * a->beta;
        for (int i = 0; i < a->d; i++) {
            float s = fmaf(a->k[i], change, a->before[i * a->d + j] * a->decay);
            a->after[i * a->d + j] = s;
            out = fmaf(s, a->q[i], out);
        }
        a->out[j] = out;
    }
}

/* From one matrix to another, and in place. */
static void check_delta(int d)
{
    static float before[DELTA_MAX * DELTA_MAX], want[DELTA_MAX * DELTA_MAX], got[DELTA_MAX * DELTA_MAX];
    static float q[DELTA_MAX], k[DELTA_MAX], v[DELTA_MAX], want_out[DELTA_MAX], got_out[DELTA_MAX];
    float *const inputs[] = { q, k, v };
    for (int i = 0; i < 3; i++)
        fill(inputs[i], d, FILL_PLAIN);
    fill(before, d * d, FILL_PLAIN);
    struct pf_delta_args a = { .before = before, .q = q, .k = k, .v = v, .decay = 0.9f, .beta = 0.4f, .d = d,
                               .after = want, .out = want_out };
    delta_plainly(&a);
    a.out = got_out;
    a.after = got;
    for (int i = 0; i < n_levels; i++)
        for (int in_place = 0; in_place < 2; in_place++) {
            if (in_place)
                memcpy(got, before, (size_t)(d * d) * sizeof *got);
            a.before = in_place ? got : before;
            levels[i]->delta_step(&a);
            if (!same(want, got, d * d) || !same(want_out, got_out, d))
                fail(levels[i]->name, "delta_step", d, in_place ? "in place" : "from one matrix to another");
        }
}

static void keyed_plainly(const struct pf_keyed_delta_args *a)
{
    for (int j = 0; j < a->d; j++) {
        float seen = 0, out = 0;
        for (int i = 0; i < a->d; i++)
            seen = fmaf(a->before[i * a->d + j], a->decayed_k[i], seen);
        float change = (a->v[j] - seen) * a->beta;
        for (int i = 0; i < a->d; i++) {
            float s = fmaf(a->k[i], change, a->before[i * a->d + j] * a->decay[i]);
            a->after[i * a->d + j] = s;
            out = fmaf(s, a->q[i], out);
        }
        a->out[j] = out;
    }
}

static void check_keyed_delta(int d)
{
    static float before[DELTA_MAX * DELTA_MAX], want[DELTA_MAX * DELTA_MAX], got[DELTA_MAX * DELTA_MAX];
    static float in[5][DELTA_MAX], want_out[DELTA_MAX], got_out[DELTA_MAX];
    for (int i = 0; i < 5; i++)
        fill(in[i], d, FILL_PLAIN);
    fill(before, d * d, FILL_PLAIN);
    struct pf_keyed_delta_args a = { .before = before, .q = in[0], .k = in[1], .decayed_k = in[2], .v = in[3],
                                     .decay = in[4], .beta = 0.4f, .d = d, .after = want, .out = want_out };
    keyed_plainly(&a);
    a.out = got_out;
    a.after = got;
    for (int i = 0; i < n_levels; i++)
        for (int in_place = 0; in_place < 2; in_place++) {
            if (in_place)
                memcpy(got, before, (size_t)(d * d) * sizeof *got);
            a.before = in_place ? got : before;
            levels[i]->keyed_delta_step(&a);
            if (!same(want, got, d * d) || !same(want_out, got_out, d))
                fail(levels[i]->name, "keyed_delta_step", d, in_place ? "in place" : "from one matrix to another");
        }
}

/* ---- Mamba2 ------------------------------------------------------------------------------------------------------ */

enum { SSM_D = 40, SSM_P = 136 };

/* The definition, once more, column by column. */
static void ssm_plainly(const struct pf_ssm_args *a)
{
    for (int j = 0; j < a->p; j++) {
        float in = a->t * a->x[j], out = 0;
        for (int i = 0; i < a->d; i++) {
            float s = fmaf(a->b[i], in, a->before[i * a->p + j] * a->decay);
            a->after[i * a->p + j] = s;
            out = fmaf(s, a->c[i], out);
        }
        a->out[j] = fmaf(a->skip, a->x[j], out);
    }
}

/* From one matrix to another, and in place. */
static void check_ssm(int d, int p)
{
    static float before[SSM_D * SSM_P], want[SSM_D * SSM_P], got[SSM_D * SSM_P];
    static float b[SSM_D], c[SSM_D], x[SSM_P], want_out[SSM_P], got_out[SSM_P];
    fill(b, d, FILL_PLAIN);
    fill(c, d, FILL_PLAIN);
    fill(x, p, FILL_PLAIN);
    fill(before, d * p, FILL_PLAIN);
    struct pf_ssm_args a = { .before = before, .b = b, .c = c, .x = x, .decay = 0.9f, .t = 0.4f, .skip = 0.7f, .d = d,
                             .p = p, .after = want, .out = want_out };
    ssm_plainly(&a);
    a.out = got_out;
    a.after = got;
    for (int i = 0; i < n_levels; i++)
        for (int in_place = 0; in_place < 2; in_place++) {
            if (in_place)
                memcpy(got, before, (size_t)(d * p) * sizeof *got);
            a.before = in_place ? got : before;
            levels[i]->ssm_step(&a);
            if (!same(want, got, d * p) || !same(want_out, got_out, p))
                fail(levels[i]->name, "ssm_step", p, in_place ? "in place" : "from one matrix to another");
        }
}

/* ---- exp, F16 ---------------------------------------------------------------------------------------------------- */

static void check_exp(void)
{
    double worst = 0;
    for (uint32_t i = 0; i < 4000000; i++) {
        float x = i < 3000000 ? -87.33654f + (float)i * (176.05936f / 3000000.0f) : 2.0f * random_float();
        double want = exp((double)x);
        int e;
        frexp(want, &e);
        double err = fabs((double)pf_expf(x) - want) / ldexp(1.0, e - 24);
        worst = x <= 88.72283f && err > worst ? err : worst;
    }
    printf("exp: at most %.3f ulp\n", worst);
    if (!(worst < 1.01))
        fail("all", "exp", 0, "is not accurate");
    if (pf_expf(-INFINITY) != 0 || pf_expf(INFINITY) != INFINITY || !isnan(pf_expf(NAN)) || pf_expf(0) != 1 ||
        pf_expf(-0.0f) != 1 || pf_expf(-87.33655f) != 0 || pf_expf(-3e38f) != 0 || pf_expf(3e38f) != INFINITY ||
        pf_expf(88.72284f) != INFINITY || !(pf_expf(88.72283f) < INFINITY) || !(pf_expf(-87.33654f) >= 0x1p-126f))
        fail("all", "exp", 0, "ends wrongly");
    if (pf_sigmoidf(0) != 0.5f || pf_sigmoidf(200) != 1 || pf_sigmoidf(-200) != 0)
        fail("all", "sigmoid", 0, "ends wrongly");
}

static void check_softplus(void)
{
    double worst = 0;
    for (int i = 0; i < 1000000; i++) {
        float z = (i % 2 ? 87.0f : 4.0f) * random_float();
        double want = log1p(exp((double)z));
        worst = fmax(worst, fabs((double)pf_softplusf(z) - want) / want * 0x1p24);
    }
    printf("softplus: at most %.3f eps\n", worst);
    if (!(worst < 5) || pf_softplusf(-INFINITY) != 0 || pf_softplusf(INFINITY) != INFINITY || !isnan(pf_softplusf(NAN)))
        fail("all", "softplus", 0, "is not accurate");
}

static double half_value(uint32_t h)
{
    double m = h & 0x3ff, v = (h & 0x7c00) ? ldexp(1024 + m, (int)(h >> 10 & 31) - 25) : ldexp(m, -24);
    if ((h & 0x7fff) >= 0x7c00)
        v = m != 0 ? NAN : INFINITY;
    return h & 0x8000 ? -v : v;
}

/* Each half, the tie above it and the two floats beside that tie, at every level. */
static void check_to_f16(void)
{
    for (int i = 0; i < n_levels; i++)
        for (uint32_t h = 0; h < 0x7c00; h++) {
            float v = (float)half_value(h), up = h == 0x7bff ? 65536.0f : (float)half_value(h + 1);
            float tie = v + (up - v) / 2;
            float x[8] = { v, tie, nextafterf(tie, v), nextafterf(tie, up), -v, -tie, NAN, INFINITY };
            uint32_t even = h + (h & 1);
            uint32_t want[8] = { h, even, h, h + 1, 0x8000 | h, 0x8000 | even, 0x7e00, 0x7c00 };
            uint16_t got[8];
            levels[i]->to_f16(x, 8, got);
            for (int j = 0; j < 8; j++)
                if (got[j] != want[j]) {
                    fail(levels[i]->name, "to_f16", (int)h, "rounds wrongly");
                    return;
                }
        }
}

/* Codes are those of quantise, d its d as a half; what is not finite makes a block of NaNs; small and huge ones as
 * well. */
static void check_to_q8_0(void)
{
    enum { N = 256 };
    static const float sizes_of[N / 32] = { 1, 1e-3f, 1e-31f, 0, 1e4f, 3e-6f, 1, 1 };
    float x[N] __attribute__((aligned(64))), d[N / 32];
    int8_t q[N] __attribute__((aligned(64)));
    int16_t s[N / 16];
    struct pf_block_q8_0 want[N / 32], got[N / 32];
    fill(x, N, FILL_PLAIN);
    for (int i = 0; i < N; i++)
        x[i] *= sizes_of[i / 32];
    levels[0]->quantise(x, N, q, d, s);
    for (int b = 0; b < N / 32; b++) {
        uint16_t half;
        levels[0]->to_f16(&d[b], 1, &half);
        want[b].d = half;
        memcpy(want[b].qs, q + 32 * b, 32);
    }
    x[6 * 32 + 3] = NAN;
    x[7 * 32 + 30] = -INFINITY;
    for (int b = 6; b < 8; b++)
        want[b] = (struct pf_block_q8_0){ .d = 0x7e00 };
    for (int i = 0; i < n_levels; i++) {
        levels[i]->to_q8_0(x, N, got);
        if (memcmp(want, got, sizeof want) != 0)
            fail(levels[i]->name, "to_q8_0", N, "is not what the definition says");
    }
}

/* ---- Against double ---------------------------------------------------------------------------------------------- */

/* Relative error of y against want, in units of 2^-24; exact zeros agree. */
static double eps_off(float y, double want)
{
    return want == 0 && y == 0 ? 0 : fabs((double)y - want) / fabs(want) * 0x1p24;
}

static void expect(const char *what, int n, double off, double limit)
{
    if (!(off <= limit)) {
        printf("%s: n = %d is off by %.2f eps, allowed %.2f\n", what, n, off, limit);
        n_failed++;
    }
}

/* A sum over n in 32 accumulators is off by at most n / 32 + 5 roundings; the elements add a few each. */
static void check_accuracy(int n)
{
    static float x[N_MAX], w[N_MAX], y[N_MAX];
    double sum = 0, mean = 0, norm = 0, centred = 0;
    double glu = 0, clamped = 0, soft = 0, weight = 0, sum_exp = 0, allowed = n / 32.0 + 6;
    float max = -INFINITY;
    fill(x, n, FILL_PLAIN);
    fill(w, n, FILL_PLAIN);
    for (int i = 0; i < n; i++) {
        sum += (double)x[i] * (double)x[i];
        mean += (double)x[i] / n;
        max = x[i] > max ? x[i] : max;
    }
    for (int i = 0; i < n; i++)
        sum_exp += exp((double)x[i] - (double)max);
    levels[0]->rms_norm(x, w, 1e-6f, n, y);
    for (int i = 0; i < n; i++)
        norm = fmax(norm, eps_off(y[i], (double)x[i] / sqrt(sum / n + (double)1e-6f) * (double)w[i]));
    levels[0]->centre(x, n, y);
    for (int i = 0; i < n; i++)
        centred = fmax(centred, fabs((double)y[i] - ((double)x[i] - mean)) * 0x1p24 / 3);       /* of |x| up to 3 */
    levels[0]->swiglu(x, w, n, y);
    for (int i = 0; i < n; i++)
        glu = fmax(glu, eps_off(y[i], (double)x[i] / (1 + exp(-(double)x[i])) * (double)w[i]));
    levels[0]->swiglu_clamped(x, w, 0.7f, n, y);
    for (int i = 0; i < n; i++) {
        double g = fmin((double)x[i], (double)0.7f), u = fmax(fmin((double)w[i], (double)0.7f), -(double)0.7f);
        clamped = fmax(clamped, eps_off(y[i], g / (1 + exp(-g)) * u));
    }
    levels[0]->softmax(x, n, y);
    for (int i = 0; i < n; i++)
        soft = fmax(soft, eps_off(y[i], exp((double)x[i] - (double)max) / sum_exp));
    levels[0]->weigh(x, max, 0.7f, n, y);
    for (int i = 0; i < n; i++)
        weight = fmax(weight, eps_off(y[i], exp((double)(x[i] - max) / (double)0.7f)));
    expect("weigh", n, weight, 12);
    expect("rms_norm", n, norm, allowed / 2 + 5);
    expect("centre", n, centred, allowed + 2);
    expect("swiglu", n, glu, 8);
    expect("swiglu_clamped", n, clamped, 8);
    expect("softmax", n, soft, allowed + 12);
}

/* ---- Attention --------------------------------------------------------------------------------------------------- */

enum { Q_MAX = 70, HD_MAX = 576, N_ATTN_TYPES = 3 };
static const enum pf_qtype attn_types[N_ATTN_TYPES] = { PF_F32, PF_F16, PF_Q8_0 };

static struct attn_case {
    int      n_q, hd_k, hd_v;
    int      lo[Q_MAX], hi[Q_MAX];
    float    q[Q_MAX * HD_MAX];
    float    k[PF_KV_CHUNK * HD_MAX], v[PF_KV_CHUNK * HD_MAX];
    uint16_t k16[PF_KV_CHUNK * HD_MAX], v16[PF_KV_CHUNK * HD_MAX];
    struct pf_block_q8_0 k8[PF_KV_CHUNK * HD_MAX / 32], v8[PF_KV_CHUNK * HD_MAX / 32];
    float    m[Q_MAX], z[Q_MAX], acc[Q_MAX * HD_MAX];
} given, state;

static float score_room[Q_MAX * PF_KV_CHUNK], ac_room[Q_MAX * HD_MAX];

static void fold(float *s)
{
    for (int h = 16; h > 0; h /= 2)
        for (int i = 0; i < h; i++)
            s[i] += s[i + h];
}

/* kernels.h, word for word, for query i. */
static void attn_plainly(struct attn_case *c, int i, float scale)
{
    float e[PF_KV_CHUNK], mc = -INFINITY, zs[32] = {0}, ac[HD_MAX] = {0};
    if (c->lo[i] == c->hi[i])
        return;
    for (int p = c->lo[i]; p < c->hi[i]; p++) {
        float s[32] = {0};
        for (int d = 0; d < c->hd_k; d++)
            s[d % 32] = fmaf(c->q[i * c->hd_k + d], c->k[p * c->hd_k + d], s[d % 32]);
        fold(s);
        e[p] = scale * s[0];
        mc = e[p] > mc ? e[p] : mc;
    }
    for (int p = c->lo[i]; p < c->hi[i]; p++) {
        e[p] = pf_expf(e[p] - mc);
        zs[p % 32] += e[p];
        for (int d = 0; d < c->hd_v; d++)
            ac[d] = fmaf(e[p], c->v[p * c->hd_v + d], ac[d]);
    }
    fold(zs);
    float m = c->m[i] > mc ? c->m[i] : mc, a = pf_expf(c->m[i] - m), b = pf_expf(mc - m);
    c->z[i] = fmaf(c->z[i], a, zs[0] * b);
    for (int d = 0; d < c->hd_v; d++)
        c->acc[i * c->hd_v + d] = fmaf(c->acc[i * c->hd_v + d], a, ac[d] * b);
    c->m[i] = m;
}

/* The kernels, and what they read. */
static const char *attn_name(enum pf_qtype type)
{
    return type == PF_F16 ? "attn_f16" : type == PF_F32 ? "attn_f32" : "attn_q8_0";
}

static pf_attn_fn *attn_kernel(const struct pf_kernels *k, enum pf_qtype type)
{
    return type == PF_F16 ? k->attn_f16 : type == PF_F32 ? k->attn_f32 : k->attn_q8_0;
}

static const void *attn_keys(const struct attn_case *c, enum pf_qtype type)
{
    return type == PF_F16 ? (const void *)c->k16 : type == PF_F32 ? (const void *)c->k : c->k8;
}

static const void *attn_values(const struct attn_case *c, enum pf_qtype type)
{
    return type == PF_F16 ? (const void *)c->v16 : type == PF_F32 ? (const void *)c->v : c->v8;
}

/* Makes k16, v16, k8 and v8 from k and v. */
static void attn_convert(struct attn_case *c)
{
    levels[0]->to_f16(c->k, PF_KV_CHUNK * c->hd_k, c->k16);
    levels[0]->to_f16(c->v, PF_KV_CHUNK * c->hd_v, c->v16);
    levels[0]->to_q8_0(c->k, PF_KV_CHUNK * c->hd_k, c->k8);
    levels[0]->to_q8_0(c->v, PF_KV_CHUNK * c->hd_v, c->v8);
}

/* Element i of an array of the given type, as a number. */
static float attn_number(const struct pf_block_q8_0 *q8, const uint16_t *f16, const float *f32, enum pf_qtype type,
                         int i)
{
    if (type == PF_Q8_0)
        return (float)half_value(q8[i / 32].d) * (float)q8[i / 32].qs[i % 32];
    return type == PF_F16 ? (float)half_value(f16[i]) : f32[i];
}

/* Queries first .. first + n of c through a kernel. */
static void attn_some(const struct pf_kernels *k, enum pf_qtype type, struct attn_case *c, int first, int n,
                      float scale)
{
    struct pf_attn_args a = {
        .q = c->q + first * c->hd_k, .q_stride = (size_t)c->hd_k, .n_q = n, .hd_k = c->hd_k, .hd_v = c->hd_v,
        .k = attn_keys(c, type), .v = attn_values(c, type),
        .lo = c->lo + first, .hi = c->hi + first, .scale = scale, .score = score_room, .m = c->m + first,
        .z = c->z + first, .acc = c->acc + first * c->hd_v, .acc_stride = (size_t)c->hd_v, .ac = ac_room,
    };
    attn_kernel(k, type)(&a);
}

/* Rows outside what anyone sees are NaN: they must not be used. */
static void attn_fill(struct attn_case *c, int n_q, int hd_k, int hd_v)
{
    int lo = PF_KV_CHUNK, hi = 0;
    c->n_q = n_q, c->hd_k = hd_k, c->hd_v = hd_v;
    for (int i = 0; i < n_q; i++) {
        uint32_t a = random_bits() % (PF_KV_CHUNK + 1), b = random_bits() % (PF_KV_CHUNK + 1);
        c->lo[i] = (int)(a < b ? a : b);
        c->hi[i] = i % 5 == 4 ? c->lo[i] : (int)(a < b ? b : a);
        lo = c->lo[i] < lo && c->lo[i] < c->hi[i] ? c->lo[i] : lo;
        hi = c->hi[i] > hi && c->lo[i] < c->hi[i] ? c->hi[i] : hi;
        c->m[i] = i % 3 == 0 ? -INFINITY : random_float();
        c->z[i] = i % 3 == 0 ? 0.0f : 1.0f + fabsf(random_float());
    }
    for (int i = 0; i < n_q * hd_v; i++)
        c->acc[i] = i / hd_v % 3 == 0 ? 0.0f : random_float();
    fill(c->q, n_q * hd_k, FILL_PLAIN);
    for (int i = 0; i < PF_KV_CHUNK * hd_k; i++)
        c->k[i] = i / hd_k < lo || i / hd_k >= hi ? NAN : random_float();
    for (int i = 0; i < PF_KV_CHUNK * hd_v; i++)
        c->v[i] = i / hd_v < lo || i / hd_v >= hi ? NAN : random_float();
    attn_convert(c);
}

static bool attn_same(const struct attn_case *a, const struct attn_case *b)
{
    return same(a->m, b->m, a->n_q) && same(a->z, b->z, a->n_q) && same(a->acc, b->acc, a->n_q * a->hd_v);
}

/* Values that are the beginnings of the keys, against a copy of them in memory of its own. */
static void check_attn_within(int n_q, int hd_k, int hd_v, enum pf_qtype type)
{
    static struct attn_case want;
    attn_fill(&given, n_q, hd_k, hd_v);
    for (int i = 0; i < PF_KV_CHUNK * hd_v; i++)
        given.v[i] = given.k[i / hd_v * hd_k + i % hd_v];
    attn_convert(&given);
    for (int i = 0; i < n_levels; i++) {
        want = state = given;
        attn_some(levels[i], type, &want, 0, n_q, 0.1f);
        struct pf_attn_args a = {
            .q = state.q, .q_stride = (size_t)hd_k, .n_q = n_q, .hd_k = hd_k, .hd_v = hd_v, .v_stride = (size_t)hd_k,
            .k = attn_keys(&state, type), .v = attn_keys(&state, type), .lo = state.lo, .hi = state.hi, .scale = 0.1f,
            .score = score_room, .m = state.m, .z = state.z, .acc = state.acc, .acc_stride = (size_t)hd_v,
            .ac = ac_room,
        };
        attn_kernel(levels[i], type)(&a);
        if (!attn_same(&want, &state))
            fail(levels[i]->name, attn_name(type), hd_k, "reads values within keys wrongly");
    }
}

static void check_attn(int n_q, int hd_k, int hd_v, enum pf_qtype type)
{
    static struct attn_case want;
    float scale = 1.0f / sqrtf((float)hd_k);
    attn_fill(&given, n_q, hd_k, hd_v);
    want = given;
    for (int i = 0; i < PF_KV_CHUNK * hd_k; i++)
        want.k[i] = attn_number(given.k8, given.k16, given.k, type, i);
    for (int i = 0; i < PF_KV_CHUNK * hd_v; i++)
        want.v[i] = attn_number(given.v8, given.v16, given.v, type, i);
    for (int i = 0; i < n_q; i++)
        attn_plainly(&want, i, scale);
    for (int i = 0; i < n_levels; i++) {
        state = given;
        attn_some(levels[i], type, &state, 0, n_q, scale);
        if (!attn_same(&want, &state))
            fail(levels[i]->name, attn_name(type), hd_k, "is not what the definition says");
        state = given;
        for (int first = 0, n; first < n_q; first += n) {
            n = 1 + (int)(random_bits() % (uint32_t)(n_q - first));
            attn_some(levels[i], type, &state, first, n, scale);
        }
        if (!attn_same(&want, &state))
            fail(levels[i]->name, attn_name(type), hd_k, "depends on how queries are split");
    }
}

/* One visible position weighs exactly 1, so that the sum is its value: every half comes out as the number it is. */
static void check_halves(void)
{
    enum { HD = 512 };
    for (int i = 0; i < n_levels; i++)
        for (uint32_t first = 0; first < 0x10000; first += HD) {
            float q = 1, m = -INFINITY, z = 0, acc[HD] = {0}, ac[HD];
            uint16_t k[6] = {0}, v[6 * HD] = {0};
            int lo = 5, hi = 6;
            for (uint32_t j = 0; j < HD; j++)
                v[5 * HD + j] = (uint16_t)(first + j);
            struct pf_attn_args a = {
                .q = &q, .k = k, .v = v, .n_q = 1, .hd_k = 1, .hd_v = HD, .lo = &lo, .hi = &hi, .scale = 1,
                .score = score_room, .m = &m, .z = &z, .acc = acc, .ac = ac,
            };
            levels[i]->attn_f16(&a);
            for (uint32_t j = 0; j < HD; j++) {
                double want = half_value(first + j);
                if ((double)acc[j] != want && !(isnan(acc[j]) && isnan(want))) {
                    fail(levels[i]->name, "attn_f16", (int)(first + j), "reads a half wrongly");
                    return;
                }
            }
        }
}

/* Two chunks of history, all visible, against a softmax in double. Scores are off by n eps sum |q k|, which moves each
 * weight by that much; the sums over positions add their own roundings. */
static void check_attn_accuracy(int hd)
{
    enum { N = 2 * PF_KV_CHUNK };
    static float k[N * 128], v[N * 128], q[128], ac[128];
    float m = -INFINITY, z = 0, acc[128] = {0}, scale = 1.0f / sqrtf((float)hd);
    int lo = 0, hi = PF_KV_CHUNK;
    double s[N], top = -INFINITY, sum = 0, moved = 0, worst = 0;
    fill(q, hd, FILL_PLAIN);
    fill(k, N * hd, FILL_PLAIN);
    fill(v, N * hd, FILL_PLAIN);
    for (int c = 0; c < 2; c++) {
        struct pf_attn_args a = {
            .q = q, .k = k + c * PF_KV_CHUNK * hd, .v = v + c * PF_KV_CHUNK * hd, .n_q = 1, .hd_k = hd, .hd_v = hd,
            .lo = &lo, .hi = &hi, .scale = scale, .score = score_room, .m = &m, .z = &z, .acc = acc, .ac = ac,
        };
        levels[0]->attn_f32(&a);
    }
    for (int p = 0; p < N; p++) {
        double size = 0;
        s[p] = 0;
        for (int d = 0; d < hd; d++) {
            s[p] += (double)q[d] * (double)k[p * hd + d] * (double)scale;
            size += fabs((double)q[d] * (double)k[p * hd + d] * (double)scale);
        }
        moved = fmax(moved, size * (hd / 32 + 7));
        top = fmax(top, s[p]);
    }
    for (int p = 0; p < N; p++)
        sum += exp(s[p] - top);
    for (int d = 0; d < hd; d++) {
        double want = 0, size = 0;
        for (int p = 0; p < N; p++) {
            want += exp(s[p] - top) / sum * (double)v[p * hd + d];
            size += exp(s[p] - top) / sum * fabs((double)v[p * hd + d]);
        }
        worst = fmax(worst, fabs((double)(acc[d] / z) - want) / size * 0x1p24);
    }
    expect("attention", hd, worst, 2 * moved + PF_KV_CHUNK + 20);
}

/* ---- Bench ------------------------------------------------------------------------------------------------------- */

/* The best of several runs, each long enough to time. */
#define BEST_NS(best, call)                                         \
    do {                                                            \
        int reps_ = 1;                                              \
        (best) = INFINITY;                                          \
        for (int run_ = 0; run_ < 12; run_++) {                     \
            double t0_ = (double)check_now_ns();                                  \
            for (int rep_ = 0; rep_ < reps_; rep_++)                \
                call;                                               \
            double each_ = ((double)check_now_ns() - t0_) / reps_;                \
            (best) = each_ < (best) ? each_ : (best);               \
            reps_ = each_ * reps_ < 1e6 ? 2 * reps_ + 1 : reps_;    \
        }                                                           \
    } while (0)

static void bench_attn(const struct pf_kernels *k, int n_q, enum pf_qtype type)
{
    enum { HD = 128, N_CHUNKS = 64 };
    static uint16_t keys[N_CHUNKS * PF_KV_CHUNK * HD * 2];
    static float q[256 * HD], score[256 * PF_KV_CHUNK], m[256], z[256], acc[256 * HD], ac[256 * HD];
    static int lo[256], hi[256];
    int chunk_bytes = type == PF_Q8_0 ? PF_KV_CHUNK * HD / 32 * 34 : PF_KV_CHUNK * HD * (type == PF_F16 ? 2 : 4);
    int chunks = n_q > 8 ? 2 : N_CHUNKS / (type == PF_F32 ? 2 : 1);
    double ns;
    for (int i = 0; i < N_CHUNKS * PF_KV_CHUNK * HD * 2; i++)
        keys[i] = (uint16_t)(0x3000 | (random_bits() & 0x83ff));
    for (int i = 0; i < n_q; i++)
        hi[i] = PF_KV_CHUNK;
    fill(q, 256 * HD, FILL_PLAIN);
    struct pf_attn_args a = {
        .q = q, .q_stride = HD, .n_q = n_q, .hd_k = HD, .hd_v = HD, .lo = lo, .hi = hi, .scale = 0.08f, .score = score,
        .m = m, .z = z, .acc = acc, .acc_stride = HD, .ac = ac,
    };
    BEST_NS(ns, for (int c = 0; c < chunks; c++) {
        a.k = (const char *)keys + 2 * c * chunk_bytes;
        a.v = (const char *)keys + (2 * c + 1) * chunk_bytes;
        attn_kernel(k, type)(&a);
    });
    printf("%-14s %s n_q %-5d %10.0f ns a chunk %7.2f GB/s %7.1f GFLOP/s\n", k->name, attn_name(type), n_q, ns / chunks,
           2.0 * chunk_bytes * chunks / ns, 4.0 * PF_KV_CHUNK * HD * n_q * chunks / ns);
}

/* A head of 128, as in a prompt: its matrix stays in the second cache. */
static void bench_delta(const struct pf_kernels *k)
{
    enum { D = 128 };
    static float matrix[D * D], x[4 * D];
    double ns;
    struct pf_delta_args a = { .before = matrix, .after = matrix, .q = x, .k = x + D, .v = x + 2 * D, .out = x + 3 * D,
                               .decay = 0.9f, .beta = 0.4f, .d = D };
    BEST_NS(ns, k->delta_step(&a));
    printf("%-14s %-14s %10.0f ns %7.2f GB/s\n", k->name, "delta_step", ns, 8.0 * D * D / ns);
}

static void bench_level(const struct check_opts *o, const struct pf_kernels *k)
{
    static float x[2 * N_MAX], w[2 * N_MAX], out[2 * N_MAX];
    static struct qrow row;
    struct job j = { .n = 2048, .x = x, .w = w, .out = out };
    double ns;
    fill(x, 2 * N_MAX, FILL_PLAIN);
    fill(w, 2 * N_MAX, FILL_PLAIN);
    for (int e = 0; e < N_ENTRIES; e++)
        if (check_wants(o, entries[e].name)) {
            BEST_NS(ns, entries[e].run(k, &j));
            printf("%-14s %-14s %10.0f ns %7.2f GB/s\n", k->name, entries[e].name, ns, entries[e].bytes * j.n / ns);
        }
    if (check_wants(o, "quantise")) {
        BEST_NS(ns, k->quantise(x, j.n, row.q, row.d, row.s));
        printf("%-14s %-14s %10.0f ns %7.2f GB/s\n", k->name, "quantise", ns, 5.25 * j.n / ns);
    }
    if (check_wants(o, "delta_step"))
        bench_delta(k);
    static const int n_q[] = { 1, 4, 8, 32, 256 };
    for (int t = 0; t < N_ATTN_TYPES; t++)
        for (int i = 0; i < 5 && check_wants(o, attn_name(attn_types[t])); i++)
            bench_attn(k, n_q[i], attn_types[t]);
}

/* ---- All of it --------------------------------------------------------------------------------------------------- */

static void find_levels(const struct check_opts *o)
{
    n_levels = 0;
    rng.state = o->seed;
    for (int i = 0; pf_kernels_level(i) && n_levels < N_LEVELS_MAX; i++)
        if (pf_kernels_level(i)->rms_norm && check_runs(o, pf_kernels_level(i)))
            levels[n_levels++] = pf_kernels_level(i);
}

static void report(const char *name, int n_failed_before)
{
    printf("%-14s %d levels, %d failed\n", name, n_levels, n_failed - n_failed_before);
}

static void check_by_size(const struct entry *e)
{
    int before = n_failed;
    for (int s = 0; s < N_SIZES; s++)
        for (int how = 0; how < N_FILLS; how++)
            for (int shift = 0; shift < 4; shift++)
                check_entry(e, sizes[s], how, shift);
    report(e->name, before);
}

static void check_all_quantise(void)
{
    int before = n_failed;
    for (int s = 0; s < N_SIZES; s++)
        for (int how = 0; how < N_FILLS && sizes[s] % 32 == 0; how++)
            check_quantise(sizes[s], how);
    report("quantise", before);
}

static void check_all_attn(enum pf_qtype type)
{
    static const int shapes[][3] = { { 1, 128, 128 }, { 3, 64, 64 }, { 8, 128, 128 }, { 70, 64, 128 }, { 5, 576, 512 },
                                     { 8, 80, 96 }, { 2, 33, 1 }, { 16, 256, 256 } };
    int before = n_failed;
    for (int i = 0; i < (int)(sizeof shapes / sizeof *shapes); i++)
        if (type != PF_Q8_0 || (shapes[i][1] % 32 == 0 && shapes[i][2] % 32 == 0))
            check_attn(shapes[i][0], shapes[i][1], shapes[i][2], type);
    check_attn_within(16, 576, 512, type);
    check_attn_within(3, type == PF_Q8_0 ? 96 : 40, 32, type);
    if (type == PF_F16)
        check_halves();
    if (type == PF_F32) {
        check_attn_accuracy(64);
        check_attn_accuracy(128);
    }
    report(attn_name(type), before);
}

static void check_all_delta(void)
{
    static const int sizes_of_heads[] = { 1, 3, 16, 20, 64, 100, 128, DELTA_MAX };
    int before = n_failed;
    for (int i = 0; i < (int)(sizeof sizes_of_heads / sizeof *sizes_of_heads); i++)
        check_delta(sizes_of_heads[i]);
    report("delta_step", before);
    before = n_failed;
    for (int i = 0; i < (int)(sizeof sizes_of_heads / sizeof *sizes_of_heads); i++)
        check_keyed_delta(sizes_of_heads[i]);
    report("keyed_delta_step", before);
}

static void check_all_ssm(void)
{
    static const int widths[] = { 1, 3, 16, 20, 64, 100, 128, SSM_P };
    int before = n_failed;
    for (int i = 0; i < (int)(sizeof widths / sizeof *widths); i++)
        check_ssm(i % 2 ? SSM_D : 7, widths[i]);
    report("ssm_step", before);
}

int check_float(const struct check_opts *o)
{
    n_failed = 0;
    find_levels(o);
    for (int e = 0; e < N_ENTRIES; e++)
        if (check_wants(o, entries[e].name))
            check_by_size(&entries[e]);
    if (check_wants(o, "quantise"))
        check_all_quantise();
    if (check_wants(o, "to_f16"))
        check_to_f16();
    if (check_wants(o, "to_q8_0"))
        check_to_q8_0();
    for (int t = 0; t < N_ATTN_TYPES; t++)
        if (check_wants(o, attn_name(attn_types[t])))
            check_all_attn(attn_types[t]);
    if (check_wants(o, "delta_step"))
        check_all_delta();
    if (check_wants(o, "ssm_step"))
        check_all_ssm();
    if (check_wants(o, "exp")) {
        check_exp();
        check_softplus();
    }
    for (int s = 0; s < N_SIZES && !o->only; s++)
        check_accuracy(sizes[s]);
    return n_failed;
}

void bench_float(const struct check_opts *o)
{
    find_levels(o);
    for (int i = 0; i < n_levels; i++)
        bench_level(o, levels[i]);
}
