/* What kernels of dense products share: where a block works, and what is done with an output. */
#ifndef PF_CU_LINEAR_H
#define PF_CU_LINEAR_H

#include "kernels/cuda/cu_dot.h"
#include "kernels/cuda/cu_given.h"

struct given_linear : cu_linear {
    struct cu_given given;
};

/* Output r of a part, from the sum of its products. */
CU_INLINE float scaled(const struct cu_part &p, int r, float v)
{
    if (p.scale != 1.0f)
        v = v * p.scale;
    return p.bias ? v + p.bias[r] : v;
}

/* Output r of the row that begins at `at` of y. met: what the residual adds it to. */
CU_INLINE void finish(const struct given_linear &l, const struct cu_part &p, int r, size_t at, float v, float met)
{
    v = scaled(p, r, v);
    p.y[at + r] = v;
    if (l.residual.x)
        l.residual.x[at + r] = fmaf(l.residual.a, v, met);
    if (l.given.to)
        l.given.to[r] = v;
    if (l.given.fault)
        check_logit(v, l.given.fault);
}

CU_INLINE void finish(const struct given_linear &l, const struct cu_part &p, int r, size_t at, float v)
{
    finish(l, p, r, at, v, l.residual.x ? l.residual.x[at + r] : 0.0f);
}

/* Where a block works: on n rows from `first` on of part p, of one head. Parts, and heads, begin at whole blocks. */
struct place {
    const struct cu_part *p;
    const uint8_t        *rows;
    int                   head, first, n;
};

CU_INLINE struct place place_of(const struct cu_linear &l, int block_rows, int block)
{
    int k = 0, head = 0;
#pragma unroll 1
    for (int n; block >= (n = (l.part[k].n_out + block_rows - 1) / block_rows); block -= n)
        l.n_heads ? head++ : k++;
    int first = block * block_rows, n = min(block_rows, l.part[k].n_out - first);
    return { &l.part[k], l.part[k].w + ((size_t)head * l.head_rows + first) * l.row_bytes, head, first, n };
}

/* Blocks of so many rows, which parts do not share. */
static int n_blocks_of(const struct cu_linear *l, int block_rows)
{
    int n = 0;
    for (int i = 0; i < l->n_parts; i++)
        n += ceil_div(l->part[i].n_out, block_rows);
    return n;
}

/* A product of one row by the kernels of cu_linear_segments.cu, or of cu_linear_stream.cu, if *takes then; otherwise
 * nothing is done. */
extern "C" cudaError_t pf_cu_linear_segments(cudaStream_t st, const struct given_linear *l, bool *takes);
extern "C" cudaError_t pf_cu_linear_stream(cudaStream_t st, const struct given_linear *l, bool *takes);
/* Whether the second takes a product that begins with its norm. */
extern "C" bool pf_cu_linear_streams(const struct cu_linear *l);

#endif
