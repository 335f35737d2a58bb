/* How far attention is from what double gives, with keys and values as whole numbers and with F16, for data of several
 * kinds; and that whole numbers are no worse. docs/numerics.md has the table that this prints.
 *
 *     gauss      normal queries, keys, values           outlier keys    two elements of every key 20 times as large
 *     flat       keys near 0: all positions weigh alike outlier values  one element in 500 is 10 times as large
 *     peaked     a query is much like one key           sink            the first key takes most of the weight, its
 *     heavy      Student's t, four degrees of freedom                   value is small */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/pf_i16.h"
#include "check.h"
#include "pfmoe.h"

enum { N = 4096, N_Q = 16, HD_MAX = 256 };
enum kind { GAUSS, FLAT, PEAKED, HEAVY, OUTLIER_KEYS, OUTLIER_VALUES, SINK, N_KINDS };
static const char *const names[] = { "gauss", "flat", "peaked", "heavy", "outlier keys", "outlier values", "sink" };

static struct pf_kernels kernels;
static struct check_rng rng = { 12345 };
static float q[N_Q * HD_MAX], k[N * HD_MAX], v[N * HD_MAX];
static int hd;

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

static void fill(enum kind kind)
{
    for (int i = 0; i < N_Q * hd; i++)
        q[i] = (float)(kind == HEAVY ? student() : normal());
    for (int i = 0; i < N * hd; i++) {
        bool outlier = kind == OUTLIER_KEYS && (i % hd == 3 || i % hd == hd - 10);
        k[i] = (float)((kind == HEAVY ? student() : normal()) * (kind == FLAT ? 0.01 : outlier ? 20 : 1));
        v[i] = (float)((kind == HEAVY ? student() : normal()) *
                       (kind == OUTLIER_VALUES && check_int(&rng, 0, 499) == 0 ? 10 : 1));
    }
    for (int i = 0; kind == PEAKED && i < N_Q * hd; i++)
        q[i] = 1.5f * k[(i / hd + 1) * (N / N_Q - 1) * hd + i % hd];
    for (int e = 0; kind == SINK && e < hd; e++) {
        k[e] = 0;
        v[e] *= 0.05f;
        for (int i = 0; i < N_Q; i++)
            k[e] += q[i * hd + e] * 0.9f;
    }
}

/* [N_Q][hd] */
static void attend_in_double(double *out)
{
    static double s[N];
    for (int i = 0; i < N_Q; i++) {
        double top = -INFINITY, sum = 0, *o = out + i * hd;
        for (int p = 0; p < N; p++) {
            s[p] = 0;
            for (int e = 0; e < hd; e++)
                s[p] += (double)q[i * hd + e] * (double)k[p * hd + e];
            s[p] /= sqrt(hd);
            top = fmax(top, s[p]);
        }
        memset(o, 0, (size_t)hd * sizeof *o);
        for (int p = 0; p < N; p++) {
            double w = exp(s[p] - top);
            sum += w;
            for (int e = 0; e < hd; e++)
                o[e] += w * (double)v[p * hd + e];
        }
        for (int e = 0; e < hd; e++)
            o[e] /= sum;
    }
}

static void attend_f16(float *out)
{
    static uint16_t k16[PF_KV_CHUNK * HD_MAX], v16[PF_KV_CHUNK * HD_MAX];
    static float score[N_Q * PF_KV_CHUNK], ac[N_Q * HD_MAX];
    float m[N_Q], z[N_Q] = { 0 };
    int lo[N_Q] = { 0 }, hi[N_Q];
    memset(out, 0, (size_t)(N_Q * hd) * sizeof *out);
    for (int i = 0; i < N_Q; i++) {
        m[i] = -INFINITY;
        hi[i] = PF_KV_CHUNK;
    }
    for (int p = 0; p < N; p += PF_KV_CHUNK) {
        kernels.to_f16(k + p * hd, PF_KV_CHUNK * hd, k16);
        kernels.to_f16(v + p * hd, PF_KV_CHUNK * hd, v16);
        kernels.attn_f16(&(struct pf_attn_args){
            .q = q, .q_stride = (size_t)hd, .k = k16, .v = v16, .n_q = N_Q, .hd_k = hd, .hd_v = hd, .lo = lo, .hi = hi,
            .scale = 1 / sqrtf((float)hd), .score = score, .m = m, .z = z, .acc = out, .acc_stride = (size_t)hd,
            .ac = ac });
    }
    for (int i = 0; i < N_Q * hd; i++)
        out[i] *= 1 / z[i / hd];
}

static void put(char *keys, char *values, int p)
{
    float row[HD_MAX];
    int8_t kp[2 * HD_MAX], vp[2 * HD_MAX];
    char *kb = keys + pf_i16_key_block(hd, p % PF_I16_CHUNK), *vb = values + pf_i16_value_block(hd, p % PF_I16_CHUNK);
    int at = p % PF_I16_BLOCK;
    memcpy(row, k + p * hd, (size_t)hd * sizeof *row);
    float sk = kernels.to_i16(row, hd, true, kp);
    memcpy(row, v + p * hd, (size_t)hd * sizeof *row);
    float sv = kernels.to_i16(row, hd, false, vp), lsv = pf_log2f(sv), rsv = 1 / sv;
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

static void attend_i16(float *out)
{
    static _Alignas(64) char keys[PF_I16_CHUNK * (2 * HD_MAX + 8)], values[PF_I16_CHUNK * (2 * HD_MAX + 4)];
    static _Alignas(64) char scratch[PF_ATTN_I16_SCRATCH];
    static int8_t planes[N_Q * 2 * HD_MAX];
    static float total[N_Q * (HD_MAX + 2)], part[N_Q * (HD_MAX + 2)], row[HD_MAX];
    float cq[N_Q], scale = 1 / sqrtf((float)hd);
    int lo[N_Q] = { 0 }, hi[N_Q], stride = hd + 2;
    memset(total, 0, sizeof total);
    for (int i = 0; i < N_Q; i++) {
        memcpy(row, q + i * hd, (size_t)hd * sizeof *row);
        cq[i] = kernels.to_i16(row, hd, true, planes + i * 2 * hd) * (scale * PF_LOG2_E * 256);
        hi[i] = PF_I16_CHUNK;
        total[i * stride + hd] = -INFINITY;
    }
    for (int c = 0; c < N; c += PF_I16_CHUNK) {
        for (int p = c; p < c + PF_I16_CHUNK; p++)
            put(keys, values, p);
        kernels.attn_i16(&(struct pf_attn_i16_args){
            .q = planes, .cq = cq, .k = keys, .v = values, .n_q = N_Q, .hd_k = hd, .hd_v = hd, .lo = lo, .hi = hi,
            .part = part, .part_stride = (size_t)stride, .scratch = scratch });
        for (int i = 0; i < N_Q; i++)
            kernels.attn_fold(total + i * stride, part + i * stride, hd);
    }
    for (int i = 0; i < N_Q * hd; i++)
        out[i] = total[i / hd * stride + i % hd] * (1 / total[i / hd * stride + hd + 1]);
}

/* The root of the mean square of the error over that of the output. */
static double error_of(const float *found, const double *exact)
{
    double wrong = 0, all = 0;
    for (int i = 0; i < N_Q * hd; i++) {
        wrong += ((double)found[i] - exact[i]) * ((double)found[i] - exact[i]);
        all += exact[i] * exact[i];
    }
    return sqrt(wrong / all);
}

int main(void)
{
    static const int heads[] = { 64, 96, 128, 256 };
    static double exact[N_Q * HD_MAX];
    static float out[N_Q * HD_MAX];
    int n_failed = 0;
    pf_kernels_resolve(&kernels, PF_ISA_ALL);
    printf("%d positions; error over output, in 1e-4: F16, whole numbers\n", N);
    for (int h = 0; h < (int)(sizeof heads / sizeof *heads); h++)
        for (int kind = 0; kind < N_KINDS; kind++) {
            hd = heads[h];
            fill((enum kind)kind);
            attend_in_double(exact);
            attend_f16(out);
            double half = error_of(out, exact);
            attend_i16(out);
            double whole = error_of(out, exact);
            printf("head %3d  %-15s %6.2f %6.2f\n", hd, names[kind], half * 1e4, whole * 1e4);
            if (!(whole <= half)) {
                printf("whole numbers are worse\n");
                n_failed++;
            }
        }
    printf("%d failed\n", n_failed);
    return n_failed != 0;
}
