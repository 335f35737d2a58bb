/* Operations on several residual streams, and on what enters all of them: see backend.h, which has the table. */
#ifndef PF_OP_STREAMS_H
#define PF_OP_STREAMS_H

#include "base/pf_i16.h"

/* Hyper-connections: S residual streams instead of one, and how a block reads and writes them (Xie et al. 2025, "mHC:
 * Manifold-Constrained Hyper-Connections"). weights [rows][n_weights] from logits L of that shape, with
 *     y = fmaf(L, scale[k], base), k = 0 .. 2 for the three parts:
 *     read  {S}      sigmoid(y) + eps
 *     write {S}      2 sigmoid(y)
 *     mix   {S, S}   [from][to]: softmax(y) over `to`, + eps; then divided by (its sum over `from`) + eps; then
 *                    rounds - 1 times by (sum over `to`) + eps and by (sum over `from`) + eps
 * n_weights S: the first part only. Sums start at their first term and rise. */
enum { PF_MAX_STREAMS = 4 };
struct pf_mix_op {
    const float *logits, *base, *scale;
    float       *weights;                 /* may be logits */
    int          n_streams, n_weights, rounds, rows;
    float        eps;
};

/* x [rows][n_streams][n], y [rows][n], weights of a pf_mix_op. Reading: y = 0, then fmaf(read[i], x[i], y) with i
 * rising. Writing: x'[to] = write[to] * y, then fmaf(mix[from][to], x[from], x'[to]) with from rising. */
struct pf_streams_op {
    float       *x, *y;
    const float *weights;
    int          n, n_streams, n_weights, rows;
};

/* Gated hyper-connections: what a block reads of S streams is gated element by element, and it writes to each by a
 * number; gates and weights are logits. x, gates [rows][n_streams][n], y [rows][n], weights [rows][n_streams].
 * Reading: y = 0, then fmaf(sigmoid(gates[i]), x[i], y) with i rising, then y *= 1 / n_streams.
 * Writing: x[i] = fmaf(2 sigmoid(weights[i]), y, x[i]). */
struct pf_gated_op {
    float       *x, *y;
    const float *gates, *weights;
    int          n, n_streams, rows;
};

/* A value enters each stream as far as key and query of that stream agree: out, key, query [rows][n_streams][n], value
 * [rows][n]. With s = dot(key, query) * (1 / sqrt(n)), folded as numerics.md says,
 *     out = sigmoid(sign(s) * sqrt(max(|s|, 1e-6))) * value */
struct pf_agree_op {
    const float *key, *query, *value;
    float       *out;
    int          n, n_streams, rows;
};

/* A causal convolution over time whose taps are `step` positions apart, added with its input:
 *     x[r] += v[r] + silu(sum over t of conv[t] * u[r - (taps - 1 - t) * step])
 * u, v, x [rows][n]; conv [taps][n]. A state is the last (taps - 1) * step rows of u; before NULL: zeros. */
enum { PF_MAX_SPREAD_TAPS = 16 };
struct pf_spread_op {
    const float *u, *v, *conv, *before;
    float       *after, *x;
    int          n, taps, step, rows;
};

PF_UNIT_FN int pf_spread_rows(const struct pf_spread_op *o)
{
    return (o->taps - 1) * o->step;
}

#endif
