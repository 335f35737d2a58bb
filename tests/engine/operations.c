/* Operations of recurrent layers and of several residual streams alone, on the CPU: against their formulas in double,
 * as op_streams.h and backend.h write them, and the best kernels on three threads against scalar ones on one, bit for
 * bit. A step in two parts with the state between them gives what one step gives. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "check.h"

enum { ROWS = 9, MOST = 1 << 16 };

static pf_backend *unit;
static uint64_t    seed;

static void must(pf_status st)
{
    if (st == PF_OK)
        return;
    printf("failed: %s\n", pf_last_error());
    exit(1);
}

/* n floats, uniform in -size .. size, of which the next n are others. */
static float *reals(size_t n, double size)
{
    float *x = aligned_alloc(64, (n * sizeof *x + 63) / 64 * 64);
    for (size_t i = 0; i < n; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        x[i] = (float)(((double)(seed >> 40) / (1 << 23) - 1) * size);
    }
    return x;
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double softplus(double x)
{
    return x > 30 ? x : log1p(exp(x));
}

/* The largest error over the root of the mean square of what is expected. */
static void close_to(const char *what, const float *found, const double *expected, size_t n)
{
    double worst = 0, squares = 0;
    for (size_t i = 0; i < n; i++) {
        double e = fabs((double)found[i] - expected[i]);
        worst = e > worst || isnan(e) ? e : worst;
        squares += expected[i] * expected[i];
    }
    CHECK(worst <= 2e-5 * sqrt(squares / (double)n), "%s: off by %.2e of %.2e", what, worst,
          sqrt(squares / (double)n));
}

/* What an operation gave, one behind the other, to compare units. */
static float  given[2][MOST];
static size_t n_given;
static int    which;

static void give(const float *x, size_t n)
{
    CHECK(n_given + n <= MOST, "%zu floats", n_given + n);
    memcpy(given[which] + n_given, x, n * sizeof *x);
    n_given += n;
}

/* ---- Streams ----------------------------------------------------------------------------------------------------- */

static void gated_streams(int n, int n_streams)
{
    size_t all = (size_t)ROWS * (size_t)n_streams * (size_t)n, one = (size_t)ROWS * (size_t)n;
    float *x = reals(all, 2), *gates = reals(all, 6), *y = reals(one, 1), *w = reals((size_t)(ROWS * n_streams), 4);
    double *expected = calloc(all, sizeof *expected);
    const struct pf_gated_op op = { x, y, gates, w, n, n_streams, ROWS };
    for (size_t r = 0; r < ROWS; r++)
        for (size_t s = 0; s < (size_t)n_streams; s++)
            for (size_t i = 0; i < (size_t)n; i++) {
                size_t at = (r * (size_t)n_streams + s) * (size_t)n + i;
                expected[r * (size_t)n + i] += sigmoid((double)gates[at]) * (double)x[at] / n_streams;
            }
    must(unit->ops->gated_read(unit, &op));
    close_to("gated_read", y, expected, one);
    give(y, one);
    for (size_t i = 0; i < all; i++) {
        size_t row = i / (size_t)n / (size_t)n_streams;
        expected[i] = (double)x[i] + 2 * sigmoid((double)w[i / (size_t)n]) * (double)y[row * (size_t)n + i % (size_t)n];
    }
    must(unit->ops->gated_write(unit, &op));
    close_to("gated_write", x, expected, all);
    give(x, all);
    free(x);
    free(gates);
    free(y);
    free(w);
    free(expected);
}

static void agree(int n, int n_streams)
{
    size_t width = (size_t)n, all = (size_t)ROWS * (size_t)n_streams * width;
    float *key = reals(all, 2), *query = reals(all, 2), *value = reals(ROWS * width, 1), *out = reals(all, 1);
    double *expected = calloc(all, sizeof *expected);
    for (size_t v = 0; v < all / width; v++) {
        double dot = 0;
        for (size_t i = 0; i < width; i++)
            dot += (double)key[v * width + i] * (double)query[v * width + i];
        dot /= sqrt(n);
        double gate = sigmoid((dot < 0 ? -1 : 1) * sqrt(fabs(dot) > 1e-6 ? fabs(dot) : 1e-6));
        for (size_t i = 0; i < width; i++)
            expected[v * width + i] = gate * (double)value[v / (size_t)n_streams * width + i];
    }
    must(unit->ops->agree(unit, &(struct pf_agree_op){ key, query, value, out, n, n_streams, ROWS }));
    close_to("agree", out, expected, all);
    give(out, all);
    free(key);
    free(query);
    free(value);
    free(out);
    free(expected);
}

/* Rows first .. first + rows of a step whose state is in and out. */
static void spread_part(const struct pf_spread_op *all, int first, int rows, const float *in, float *out)
{
    struct pf_spread_op op = *all;
    op.u += (size_t)first * (size_t)op.n;
    op.v += (size_t)first * (size_t)op.n;
    op.x += (size_t)first * (size_t)op.n;
    op.rows = rows;
    op.before = in;
    op.after = out;
    must(unit->ops->spread(unit, &op));
}

static void spread(int n, int taps, int step, int first)
{
    size_t width = (size_t)n, all = ROWS * width, kept = (size_t)((taps - 1) * step) * width;
    float *u = reals(all, 2), *v = reals(all, 1), *conv = reals((size_t)taps * width, 1), *x = reals(all, 1);
    float *before = reals(kept + 1, 2), *between = reals(kept + 1, 1), *after = reals(kept + 1, 1);
    double *expected = calloc(all, sizeof *expected);
    const struct pf_spread_op op = { .u = u, .v = v, .conv = conv, .x = x, .n = n, .taps = taps, .step = step };
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < n; i++) {
            double sum = 0;
            for (int t = 0; t < taps; t++) {
                int at = r - (taps - 1 - t) * step;
                sum += (double)conv[t * n + i] * (double)(at >= 0 ? u[at * n + i] : before[(int)kept + at * n + i]);
            }
            expected[r * n + i] = (double)x[r * n + i] + (double)v[r * n + i] + sum * sigmoid(sum);
        }
    spread_part(&op, 0, first, before, first < ROWS ? between : after);
    if (first < ROWS)
        spread_part(&op, first, ROWS - first, between, after);
    close_to("spread", x, expected, all);
    for (int i = 0; i < (int)kept; i++) {
        int at = ROWS * n - (int)kept + i;
        CHECK(after[i] == (at >= 0 ? u[at] : before[(int)kept + at]), "state %d of spread", i);
    }
    give(x, all);
    give(after, kept);
    float *const mine[] = { u, v, conv, x, before, between, after };
    for (size_t i = 0; i < sizeof mine / sizeof *mine; i++)
        free(mine[i]);
    free(expected);
}

/* ---- Recurrent layers -------------------------------------------------------------------------------------------- */

/* y[row] of a convolution over time of x, which goes on before its first row. */
static double convolved(const float *x, const float *before, const float *w, int n, int taps, int r, int i)
{
    double sum = 0;
    for (int t = 0; t < taps; t++) {
        int at = r - (taps - 1) + t;
        sum += (double)w[t * n + i] * (double)(at >= 0 ? x[at * n + i] : before[(taps - 1 + at) * n + i]);
    }
    return sum;
}

static void convolution(int n, int taps, bool has_bias, bool silu)
{
    size_t all = (size_t)(ROWS * n), kept = (size_t)((taps - 1) * n);
    float *x = reals(all, 2), *w = reals((size_t)(taps * n), 1), *bias = reals((size_t)n, 1), *y = reals(all, 1),
          *before = reals(kept, 2), *after = reals(kept, 1);
    double *expected = calloc(all, sizeof *expected);
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < n; i++) {
            double sum = convolved(x, before, w, n, taps, r, i) + (has_bias ? (double)bias[i] : 0);
            expected[r * n + i] = silu ? sum * sigmoid(sum) : sum;
        }
    must(unit->ops->conv(unit, &(struct pf_conv_op){ .x = x, .w = w, .bias = has_bias ? bias : NULL, .before = before,
                                                     .after = after, .y = y, .n = n, .taps = taps, .rows = ROWS,
                                                     .silu = silu }));
    close_to("conv", y, expected, all);
    CHECK(memcmp(after, x + all - kept, kept * sizeof *x) == 0, "state of conv");
    give(y, all);
    float *const mine[] = { x, w, bias, y, before, after };
    for (size_t i = 0; i < sizeof mine / sizeof *mine; i++)
        free(mine[i]);
    free(expected);
}

/* One row of one head of a Mamba2: S in double goes on, y without its gate and norm. */
static void mamba_row(const struct pf_ssm_op *o, int r, int h, double *s, double *y)
{
    const float *u = o->u + (size_t)(r * pf_ssm_channels(o)), *x = u + h * o->p;
    const float *b = u + o->n_head * o->p + h / (o->n_head / o->n_group) * o->d, *c = b + o->n_group * o->d;
    double t = softplus((double)o->dt[r * o->n_head + h] + (double)o->dt_bias[h]), decay = exp(t * (double)o->a[h]);
    for (int j = 0; j < o->p; j++)
        y[j] = (double)o->skip[h] * (double)x[j];
    for (int i = 0; i < o->d; i++)
        for (int j = 0; j < o->p; j++) {
            s[i * o->p + j] = s[i * o->p + j] * decay + (double)b[i] * t * (double)x[j];
            y[j] += s[i * o->p + j] * (double)c[i];
        }
}

static void mamba(int n_head, int n_group, int d, int p)
{
    int inner = n_head * p, channels = inner + 2 * n_group * d, run = inner / n_group;
    size_t n_state = (size_t)(n_head * d * p), all = (size_t)(ROWS * inner);
    float *u = reals((size_t)(ROWS * channels), 1), *dt = reals((size_t)(ROWS * n_head), 2), *z = reals(all, 2),
          *bias = reals((size_t)n_head, 1), *a = reals((size_t)n_head, 1), *skip = reals((size_t)n_head, 1),
          *norm = reals((size_t)inner, 1), *before = reals(n_state, 1), *after = reals(n_state, 1),
          *out = reals(all, 1);
    double *s = calloc(n_state, sizeof *s), *y = calloc(all, sizeof *y);
    for (int h = 0; h < n_head; h++)
        a[h] = -fabsf(a[h]) - 0.1f;
    const struct pf_ssm_op op = { .u = u, .dt = dt, .z = z, .dt_bias = bias, .a = a, .skip = skip, .norm = norm,
                                  .before = before, .after = after, .out = out, .d = d, .p = p, .n_head = n_head,
                                  .n_group = n_group, .rows = ROWS, .eps = 1e-5f };
    for (size_t i = 0; i < n_state; i++)
        s[i] = (double)before[i];
    for (int r = 0; r < ROWS; r++) {
        for (int h = 0; h < n_head; h++)
            mamba_row(&op, r, h, s + h * d * p, y + r * inner + h * p);
        for (int i = 0; i < inner; i++)
            y[r * inner + i] *= (double)z[r * inner + i] * sigmoid((double)z[r * inner + i]);
        for (int g = 0; g < n_group; g++) {
            double squares = 0, *row = y + r * inner + g * run;
            for (int i = 0; i < run; i++)
                squares += row[i] * row[i];
            for (int i = 0; i < run; i++)
                row[i] *= (double)norm[g * run + i] / sqrt(squares / run + 1e-5);
        }
    }
    must(unit->ops->ssm(unit, &op));
    close_to("Mamba2", out, y, all);
    close_to("state of Mamba2", after, s, n_state);
    give(out, all);
    give(after, n_state);
    float *const mine[] = { u, dt, z, bias, a, skip, norm, before, after, out };
    for (size_t i = 0; i < sizeof mine / sizeof *mine; i++)
        free(mine[i]);
    free(s);
    free(y);
}

/* Kimi's delta net. x is q, k and v of all heads, one behind the other, before their convolution. */
struct kimi {
    int    heads, d, taps;
    float  least;
    float *x[3], *joined, *conv, *alpha, *dt, *beta, *a, *z, *norm, *before;
};

static void kimi_row(const struct kimi *c, int r, int h, double *s, double *out)
{
    int d = c->d, n = 3 * c->heads * d;
    double q[64], k[64], v[64], lq = 0, lk = 0, squares = 0, beta = sigmoid((double)c->beta[r * c->heads + h]);
    for (int i = 0; i < d; i++) {
        double *const to[] = { &q[i], &k[i], &v[i] };
        for (int part = 0; part < 3; part++) {
            double sum = convolved(c->joined, c->before, c->conv, n, c->taps, r, (part * c->heads + h) * d + i);
            *to[part] = sum * sigmoid(sum);
        }
        lq += q[i] * q[i];
        lk += k[i] * k[i];
    }
    for (int i = 0; i < d; i++) {
        double f = (double)c->alpha[(r * c->heads + h) * d + i] + (double)c->dt[h * d + i], a = (double)c->a[h];
        double decay = exp(c->least != 0 ? (double)c->least * sigmoid(-a * f) : a * softplus(f));
        q[i] /= sqrt(lq) * sqrt(d);
        k[i] /= sqrt(lk);
        for (int j = 0; j < d; j++)
            s[i * d + j] *= decay;
    }
    for (int j = 0; j < d; j++) {
        double seen = 0;
        out[j] = 0;
        for (int i = 0; i < d; i++)
            seen += s[i * d + j] * k[i];
        for (int i = 0; i < d; i++) {
            s[i * d + j] += k[i] * beta * (v[j] - seen);
            out[j] += s[i * d + j] * q[i];
        }
        squares += out[j] * out[j];
    }
    for (int j = 0; j < d; j++)
        out[j] *= (double)c->norm[j] / sqrt(squares / d + 1e-5) * sigmoid((double)c->z[(r * c->heads + h) * d + j]);
}

static void kimi(int heads, int d, float least)
{
    enum { TAPS = 4 };
    int width = heads * d, n = 3 * width;
    size_t all = (size_t)(ROWS * width), n_rows = (size_t)((TAPS - 1) * n), n_state = n_rows + (size_t)(width * d);
    struct kimi c = { .heads = heads, .d = d, .taps = TAPS, .least = least, .joined = reals(3 * all, 1),
                      .conv = reals((size_t)(TAPS * n), 1), .alpha = reals(all, 2), .dt = reals((size_t)width, 1),
                      .beta = reals((size_t)(ROWS * heads), 2), .a = reals((size_t)heads, 1), .z = reals(all, 2),
                      .norm = reals((size_t)d, 1), .before = reals(n_state, 1) };
    float *after = reals(n_state, 1), *mixed = reals(3 * all, 1), *out = reals(all, 1);
    double *s = calloc((size_t)(width * d), sizeof *s), *expected = calloc(all, sizeof *expected);
    for (int h = 0; h < heads; h++)
        c.a[h] = -fabsf(c.a[h]) - 0.1f;
    for (int part = 0; part < 3; part++) {
        c.x[part] = reals(all, 1);
        for (int r = 0; r < ROWS; r++)
            memcpy(c.x[part] + r * width, c.joined + r * n + part * width, (size_t)width * sizeof(float));
    }
    for (int i = 0; i < width * d; i++)
        s[i] = (double)c.before[n_rows + (size_t)i];
    for (int r = 0; r < ROWS; r++)
        for (int h = 0; h < heads; h++)
            kimi_row(&c, r, h, s + h * d * d, expected + (r * heads + h) * d);
#define VECTORS(from, len) { .at = from, .row = heads * (len), .n = len, .per = heads }
    must(unit->ops->delta(unit, &(struct pf_delta_op){
        .q = VECTORS(c.x[0], d), .k = VECTORS(c.x[1], d), .v = VECTORS(c.x[2], d), .z = VECTORS(c.z, d),
        .alpha = VECTORS(c.alpha, d), .beta = VECTORS(c.beta, 1), .conv = c.conv, .a = c.a, .dt = c.dt,
        .norm = c.norm, .before = c.before, .after = after, .mixed = mixed, .out = out, .d = d, .n_k_head = heads,
        .n_v_head = heads, .taps = TAPS, .rows = ROWS, .by_key = true, .sigmoid_gate = true, .eps = 1e-5f,
        .least = least }));
    close_to("Kimi's delta net", out, expected, all);
    close_to("state of Kimi's delta net", after + n_rows, s, (size_t)(width * d));
    give(out, all);
    give(after, n_state);
    float *const mine[] = { c.joined, c.conv, c.alpha, c.dt, c.beta, c.a, c.z, c.norm, c.before, after, mixed, out,
                            c.x[0], c.x[1], c.x[2] };
    for (size_t i = 0; i < sizeof mine / sizeof *mine; i++)
        free(mine[i]);
    free(s);
    free(expected);
}

static void all_operations(void)
{
    static const int widths[] = { 8, 70, 256 };
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        n_given = 0;
        gated_streams(widths[i], 4);
        gated_streams(widths[i], 3);
        agree(widths[i], 4);
        for (int first = 1; first <= ROWS; first += 4)
            spread(widths[i], 4, 3, first);
        spread(widths[i], 2, 1, 2);
        convolution(widths[i], 4, true, true);
        convolution(widths[i], 3, false, false);
    }
    n_given = 0;
    mamba(4, 2, 16, 8);
    mamba(6, 1, 32, 16);
    kimi(2, 16, 0);
    kimi(3, 32, -5);
}

int main(void)
{
    static const struct pf_backend_sizes sizes = { .max_rows = ROWS, .max_n_in = 1024, .max_head_rows = ROWS * 8,
                                                   .max_head_n_in = 256, .max_head_dim = 256, .max_heads = 8,
                                                   .n_ctx = 256 };
    for (which = 0; which < 2; which++) {
        must(pf_backend_cpu_open(&unit, which ? 1 : 3, which ? 0 : PF_ISA_ALL));
        must(unit->ops->reserve(unit, &sizes));
        seed = 7;
        all_operations();
        unit->ops->close(unit);
    }
    CHECK(memcmp(given[0], given[1], n_given * sizeof(float)) == 0, "kernels differ from scalar ones");
    return check_status();
}
