/* Products of rows with one activation row, of the types whose codes come from grids: a segment of 256 elements to
 * eight sums and their scales. To look a row's codes up takes longer than to multiply them, so with one activation row
 * they are not stored: signs go to the activations, and what is stored is a sum for each block. mul_quant.h adds the
 * terms scale * sum in their order, a row a lane. AVX2; pure functions. */
#ifndef PF_DOT_ROWS_H
#define PF_DOT_ROWS_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/kernels.h"

struct pf_dots {
    float sum[8];                /* of code * q of each block, in types with two scales of scale * code * q; exact */
    float scale[8];              /* dw * d */
};

/* out[r] of rows r < n_rows, the segment of row r at p + r * row_bytes and x's from element `at` on. ahead: what to
 * bring into the second cache meanwhile, as many bytes as are read; NULL: nothing. */
typedef void pf_dot_rows_fn(const uint8_t *p, size_t row_bytes, int n_rows, const struct pf_xrow *x, int at,
                            const uint8_t *ahead, struct pf_dots *out);

pf_dot_rows_fn pf_dot_iq2_xxs, pf_dot_iq2_xs, pf_dot_iq2_s, pf_dot_iq3_xxs, pf_dot_iq3_s, pf_dot_iq1_s, pf_dot_iq1_m;

#endif
