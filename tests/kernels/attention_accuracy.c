/* How far attention is from what double gives, with keys and values as whole numbers and with F16, for data of several
 * kinds; and that whole numbers are no worse. docs/numerics.md has the tables that this prints.
 *
 *     gauss      normal queries, keys, values           outlier keys    two elements of every key 20 times as large
 *     flat       keys near 0: all positions weigh alike outlier values  one element in 500 is 10 times as large
 *     peaked     a query is much like one key           far outliers    20 times, of a latent alone
 *     heavy      Student's t, four degrees of freedom   sink            the first key takes most of the weight, its
 *                                                                       value is small
 *
 * Values of a latent are the beginnings of its keys. Of two elements that are large in all keys one is a value's. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/pf_latent.h"
#include "check.h"
#include "pfmoe.h"

enum { N = 4096, N_Q = 16, HD_MAX = 576 };
enum kind { GAUSS, FLAT, PEAKED, HEAVY, OUTLIER_KEYS, OUTLIER_VALUES, FAR_OUTLIERS, SINK, N_KINDS };
static const char *const names[] = { "gauss", "flat", "peaked", "heavy", "outlier keys", "outlier values",
                                     "far outliers", "sink" };

static struct pf_kernels kernels;
static struct check_rng rng = { 12345 };
static float q[N_Q * HD_MAX], k[N * HD_MAX], v[N * HD_MAX];
static int hd, hd_v;             /* elements of a key, of a value */
static bool latent;

static double normal(void)
{
    double sum = 0;
    for (int i = 0; i < 12; i++)
        sum += (double)(check_bits(&rng) >> 40) * 0x1p-24;
    return sum - 6;
}

static double student(void)
{
    double x = normal(), squares = 0;
    for (int i = 0; i < 4; i++) {
        double y = normal();
        squares += y * y;
    }
    return x / sqrt(squares / 4);
}

static float value_of(enum kind kind)
{
    double x = kind == HEAVY ? student() : normal();
    bool outlier = (kind == OUTLIER_VALUES || kind == FAR_OUTLIERS) && check_int(&rng, 0, 499) == 0;
    return (float)(x * (!outlier ? 1 : kind == FAR_OUTLIERS ? 20 : 10));
}

static void fill(enum kind kind)
{
    for (int i = 0; i < N_Q * hd; i++)
        q[i] = (float)(kind == HEAVY ? student() : normal());
    for (int i = 0; i < N * hd; i++) {
        bool outlier = kind == OUTLIER_KEYS && (i % hd == 3 || i % hd == hd - 10);
        k[i] = (latent && i % hd < hd_v ? value_of(kind) : (float)(kind == HEAVY ? student() : normal())) *
               (kind == FLAT ? 0.01f : outlier ? 20 : 1);
        v[i / hd * hd_v + i % hd] = latent ? 0 : value_of(kind);
    }
    for (int i = 0; kind == PEAKED && i < N_Q * hd; i++)
        q[i] = 1.5f * k[(i / hd + 1) * (N / N_Q - 1) * hd + i % hd];
    for (int e = 0; kind == SINK && e < hd; e++) {
        k[e] = 0;
        v[e] *= 0.05f;
        for (int i = 0; i < N_Q; i++)
            k[e] += q[i * hd + e] * 0.9f;
    }
    for (int i = 0; latent && i < N * hd_v; i++)
        v[i] = k[i / hd_v * hd + i % hd_v];
}

/* [N_Q][hd_v] */
static void attend_in_double(double *out)
{
    static double s[N];
    for (int i = 0; i < N_Q; i++) {
        double top = -INFINITY, sum = 0, *o = out + i * hd_v;
        for (int p = 0; p < N; p++) {
            s[p] = 0;
            for (int e = 0; e < hd; e++)
                s[p] += (double)q[i * hd + e] * (double)k[p * hd + e];
            s[p] /= sqrt(hd);
            top = fmax(top, s[p]);
        }
        memset(o, 0, (size_t)hd_v * sizeof *o);
        for (int p = 0; p < N; p++) {
            double w = exp(s[p] - top);
            sum += w;
            for (int e = 0; e < hd_v; e++)
                o[e] += w * (double)v[p * hd_v + e];
        }
        for (int e = 0; e < hd_v; e++)
            o[e] /= sum;
    }
}

static void attend_f16(float *out)
{
    static uint16_t k16[PF_KV_CHUNK * HD_MAX], v16[PF_KV_CHUNK * HD_MAX];
    static float score[N_Q * PF_KV_CHUNK], ac[N_Q * HD_MAX];
    float m[N_Q], z[N_Q] = { 0 };
    int lo[N_Q] = { 0 }, hi[N_Q];
    memset(out, 0, (size_t)(N_Q * hd_v) * sizeof *out);
    for (int i = 0; i < N_Q; i++) {
        m[i] = -INFINITY;
        hi[i] = PF_KV_CHUNK;
    }
    for (int p = 0; p < N; p += PF_KV_CHUNK) {
        kernels.to_f16(k + p * hd, PF_KV_CHUNK * hd, k16);
        kernels.to_f16(v + p * hd_v, PF_KV_CHUNK * hd_v, v16);
        kernels.attn_f16(&(struct pf_attn_args){
            .q = q, .q_stride = (size_t)hd, .k = k16, .v = v16, .n_q = N_Q, .hd_k = hd, .hd_v = hd_v, .lo = lo,
            .hi = hi, .scale = 1 / sqrtf((float)hd), .score = score, .m = m, .z = z, .acc = out,
            .acc_stride = (size_t)hd_v, .ac = ac });
    }
    for (int i = 0; i < N_Q * hd_v; i++)
        out[i] *= 1 / z[i / hd_v];
}

static void put(char *keys, char *values, int p)
{
    float row[HD_MAX];
    int8_t kp[2 * HD_MAX], vp[2 * HD_MAX];
    char *kb = keys + pf_i16_key_block(hd, p % PF_I16_CHUNK), *vb = values + pf_i16_value_block(hd, p % PF_I16_CHUNK);
    int at = p % PF_I16_BLOCK;
    memcpy(row, k + p * hd, (size_t)hd * sizeof *row);
    kernels.rotate(row, hd, pf_i16_piece(hd));
    float sk = kernels.to_i16(row, hd, kp), sv = kernels.to_i16(v + p * hd, hd, vp), lsv = pf_log2f(sv), rsv = 1 / sv;
    for (int e = 0; e < hd; e++) {
        kb[pf_i16_key_at(hd, at, e)] = (char)kp[e];
        kb[pf_i16_key_at(hd, at, e) + PF_I16_PLANE] = (char)kp[hd + e];
        vb[pf_i16_value_at(hd, at, e)] = (char)vp[e];
        vb[pf_i16_value_at(hd, at, e) + PF_I16_PLANE] = (char)vp[hd + e];
    }
    memcpy(kb + pf_i16_sk(hd) + (size_t)at * sizeof sk, &sk, sizeof sk);
    memcpy(kb + pf_i16_lsv(hd) + (size_t)at * sizeof lsv, &lsv, sizeof lsv);
    memcpy(vb + pf_i16_rsv(hd) + (size_t)at * sizeof rsv, &rsv, sizeof rsv);
}

static void put_latent(char *chunk, int p)
{
    float row[HD_MAX];
    int8_t planes[2 * HD_MAX];
    char *block = chunk + pf_latent_block(hd, p % PF_I16_CHUNK);
    int at = p % PF_I16_BLOCK, n_pe = hd - hd_v;
    memcpy(row, k + p * hd, (size_t)hd * sizeof *row);
    kernels.rotate(row, hd, PF_LATENT_PIECE);
    float s = kernels.to_i16(row, hd_v, planes);
    float scales[4] = { s, kernels.to_i16(row + hd_v, n_pe, planes + 2 * hd_v), pf_log2f(s), 1 / s };
    for (int e = 0; e < hd; e++) {
        int n = e < hd_v ? hd_v : n_pe;
        const int8_t *part = e < hd_v ? planes + e : planes + 2 * hd_v + e - hd_v;
        block[pf_latent_at(hd, at, e)] = (char)part[0];
        block[pf_latent_at(hd, at, e) + PF_LATENT_PLANE] = (char)part[n];
    }
    for (int i = 0; i < 4; i++)
        memcpy(block + pf_latent_scales(hd, i) + (size_t)at * sizeof *scales, &scales[i], sizeof *scales);
}

/* Queries as planes, of one part or, of a latent, two. */
static void to_planes(int8_t *planes, float *cq, float *cqp)
{
    float row[HD_MAX], scale = 1 / sqrtf((float)hd) * PF_LOG2_E * 256;
    for (int i = 0; i < N_Q; i++) {
        memcpy(row, q + i * hd, (size_t)hd * sizeof *row);
        kernels.rotate(row, hd, latent ? PF_LATENT_PIECE : pf_i16_piece(hd));
        cq[i] = kernels.to_i16(row, latent ? hd_v : hd, planes + i * 2 * hd) * scale;
        if (latent)
            cqp[i] = kernels.to_i16(row + hd_v, hd - hd_v, planes + i * 2 * hd + 2 * hd_v) * scale;
    }
}

static _Alignas(64) char keys[PF_I16_CHUNK * (2 * HD_MAX + 16)], values[PF_I16_CHUNK * (2 * HD_MAX + 4)];
static _Alignas(64) char scratch[PF_ATTN_I16_SCRATCH > PF_ATTN_LATENT_SCRATCH ? PF_ATTN_I16_SCRATCH
                                                                              : PF_ATTN_LATENT_SCRATCH];

/* The positions from c on become a chunk, to which queries attend. */
static void attend_chunk(const int8_t *planes, const float *cq, const float *cqp, int c, float *part)
{
    int lo[N_Q] = { 0 }, hi[N_Q];
    size_t stride = (size_t)hd_v + 2;
    for (int i = 0; i < N_Q; i++)
        hi[i] = PF_I16_CHUNK;
    for (int p = c; p < c + PF_I16_CHUNK; p++)
        if (latent)
            put_latent(keys, p);
        else
            put(keys, values, p);
    if (latent)
        kernels.attn_latent(&(struct pf_attn_latent_args){
            .q = planes, .cq = cq, .cqp = cqp, .chunk = keys, .n_q = N_Q, .hd_k = hd, .hd_v = hd_v, .lo = lo,
            .hi = hi, .part = part, .part_stride = stride, .scratch = scratch });
    else
        kernels.attn_i16(&(struct pf_attn_i16_args){
            .q = planes, .cq = cq, .k = keys, .v = values, .n_q = N_Q, .hd_k = hd, .hd_v = hd_v, .lo = lo, .hi = hi,
            .part = part, .part_stride = stride, .scratch = scratch });
}

static void attend_i16(float *out)
{
    static int8_t planes[N_Q * 2 * HD_MAX];
    static float total[N_Q * (HD_MAX + 2)], part[N_Q * (HD_MAX + 2)];
    float cq[N_Q], cqp[N_Q];
    int stride = hd_v + 2;
    to_planes(planes, cq, cqp);
    memset(total, 0, sizeof total);
    for (int i = 0; i < N_Q; i++)
        total[i * stride + hd_v] = -INFINITY;
    for (int c = 0; c < N; c += PF_I16_CHUNK) {
        attend_chunk(planes, cq, cqp, c, part);
        for (int i = 0; i < N_Q; i++)
            kernels.attn_fold(total + i * stride, part + i * stride, hd_v);
    }
    for (int i = 0; i < N_Q * hd_v; i++)
        out[i] = total[i / hd_v * stride + i % hd_v] * (1 / total[i / hd_v * stride + hd_v + 1]);
    if (latent)
        kernels.rotate(out, N_Q * hd_v, PF_LATENT_PIECE);
}

/* The root of the mean square of the error over that of the output. */
static double error_of(const float *found, const double *exact)
{
    double wrong = 0, all = 0;
    for (int i = 0; i < N_Q * hd_v; i++) {
        wrong += ((double)found[i] - exact[i]) * ((double)found[i] - exact[i]);
        all += exact[i] * exact[i];
    }
    return sqrt(wrong / all);
}

/* Prints both errors; whether whole numbers are worse. */
static bool compare(enum kind kind)
{
    static double exact[N_Q * HD_MAX];
    static float out[N_Q * HD_MAX];
    fill(kind);
    attend_in_double(exact);
    attend_f16(out);
    double half = error_of(out, exact);
    attend_i16(out);
    double whole = error_of(out, exact);
    printf("%s %3d  %-15s %6.2f %6.2f\n", latent ? "latent" : "head", hd_v, names[kind], half * 1e4, whole * 1e4);
    if (!(whole <= half))
        printf("whole numbers are worse\n");
    return !(whole <= half);
}

int main(void)
{
    static const int shapes[][3] = { { 64, 64, false }, { 96, 96, false }, { 128, 128, false }, { 256, 256, false },
                                     { 576, 512, true } };
    int n_failed = 0;
    pf_kernels_resolve(&kernels, PF_ISA_ALL);
    printf("%d positions; error over output, in 1e-4: F16, whole numbers\n", N);
    for (int i = 0; i < (int)(sizeof shapes / sizeof *shapes); i++)
        for (int kind = 0; kind < N_KINDS; kind++) {
            hd = shapes[i][0];
            hd_v = shapes[i][1];
            latent = shapes[i][2];
            if (kind == (latent ? SINK : FAR_OUTLIERS))
                continue;
            n_failed += compare((enum kind)kind);
        }
    printf("%d failed\n", n_failed);
    return n_failed != 0;
}
