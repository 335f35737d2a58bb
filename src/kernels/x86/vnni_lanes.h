/* Sums of products of bytes with VNNI, for any number of lanes: what avx2_lanes.h and avx512_lanes.h have of lane_dot
 * where the instruction is there. They include it after vi_dot4, s + the products of four unsigned bytes by four signed
 * ones, which is all that depends on the width. */
#ifndef PF_VNNI_LANES_H
#define PF_VNNI_LANES_H

enum { LANES_S8_BIAS = 128 };

LANE_FN vi vi_signed_codes(vi w)                 { return vi_xor(w, vi_set1((int32_t)0x80808080)); }

LANE_FN void lane_dot(int n_a, int n_k, int adds, const vi *w, const int8_t *const *x, int at, const struct fetch *f,
                      int step, vi *sum)
{
    (void)adds;
    for (int k = 0; k < n_k; k++) {
        fetch_step(f, step + k);
        for (int a = 0; a < n_a; a++)
            sum[a] = vi_dot4(sum[a], w[k], lane_bytes4(x[a] + at + 4 * k));
    }
}

LANE_FN void lane_dot_signed(int n_a, int n_k, const vi *w, const int8_t *const *x, int at, const struct fetch *f,
                             int step, vi *sum)
{
    lane_dot(n_a, n_k, 1, w, x, at, f, step, sum);
}

#endif
