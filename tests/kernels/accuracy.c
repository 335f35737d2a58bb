/* The product of every type against double precision: dequantised weights times dequantised activations. The
 * float terms of a product are fewer than its elements, so n * eps * sum |w * a| bounds its rounding with room to
 * spare; a wrong scale, order of elements or sign does not pass. Lengths with a whole and a short last segment. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "check.h"

enum { ROWS = 24, N_X = 5, MAX_N = 2880 };

static float dequantised(const struct pf_xrow *x, bool is_float, int i)
{
    return is_float ? x->f[i] : (float)x->q[i];
}

/* The error of y as a share of its bound. */
static double share_of_bound(const float *w, const struct pf_xrow *x, bool is_float, int n, float y)
{
    double sum = 0, magnitude = 0;
    for (int i = 0; i < n; i++) {
        double scale = is_float ? 1 : (double)x->d[i / 32];
        double term = (double)w[i] * ((double)dequantised(x, is_float, i) * scale);
        sum += term;
        magnitude += fabs(term);
    }
    double bound = n * (double)FLT_EPSILON * magnitude + n * 0x1p-149;
    return fabs((double)y - sum) / bound;
}

static int check_type(const struct pf_kernels *scalar, enum pf_qtype type, int n)
{
    const struct pf_qtype_info *info = pf_qtype_info(type);
    struct check_rng rng = { .state = (uint64_t)(type * 10000 + n) };
    struct check_acts acts = check_acts_new(&rng, n, N_X, true);
    size_t row_bytes = (size_t)pf_qtype_row_bytes(type, (uint64_t)n);
    uint8_t *row = check_fenced_new(row_bytes);
    float *w = malloc((size_t)n * sizeof *w), y[N_X];
    double worst = 0;
    for (int r = 0; r < ROWS; r++) {
        check_weights(&rng, type, r % 3 ? CHECK_PLAIN : CHECK_MIXED, row, n);
        scalar->dequant[type](row, n, w);
        scalar->tile[type](row, row_bytes, 1, n, acts.x, N_X, y, 1, NULL);
        for (int j = 0; j < N_X; j++)
            worst = fmax(worst, share_of_bound(w, &acts.x[j], info->is_float, n, y[j]));
    }
    free(w);
    check_fenced_free(row, row_bytes);
    check_acts_free(&acts);
    if (!(worst <= 1))
        printf("%s n=%d: error is %.3g of its bound\n", info->name, n, worst);
    return !(worst <= 1);
}

int main(void)
{
    static const int lengths[] = { 7, 32, 64, 96, 256, 288, 384, 2048, MAX_N };
    int n_failed = 0, n_run = 0;
    struct pf_kernels scalar;
    pf_kernels_resolve(&scalar, 0);
    for (int type = 0; type < PF_N_QTYPES; type++) {
        const struct pf_qtype_info *info = pf_qtype_info((uint32_t)type);
        for (size_t i = 0; info && info->is_weight && i < sizeof lengths / sizeof *lengths; i++)
            if (lengths[i] % info->block_len == 0) {
                n_failed += check_type(&scalar, (enum pf_qtype)type, lengths[i]);
                n_run++;
            }
    }
    printf("%d types and lengths, %d failed\n", n_run, n_failed);
    return n_failed != 0;
}
