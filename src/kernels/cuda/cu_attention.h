/* What the kernels of attention share: the operation as they get it, what a row sees, elements of keys and values. */
#ifndef PF_CU_ATTENTION_H
#define PF_CU_ATTENTION_H

#include "kernels/cuda/cu_device.h"

enum { CHUNK = PF_KV_CHUNK_POSITIONS };

struct attention {
    struct pf_attention_op a;
    struct pf_kv_view      kv;
    int                    n_chunks;
    int                   *count;    /* [row][head]: blocks of the heads that have ended; 0 between launches */
    float                 *part;     /* [row][head][chunk][hd_v + 2]: ac, mc, zc */
    int                    v_stride; /* from one value to the next; kv.v is kv.k where values are the beginnings of keys */
    struct cu_x            x;        /* where few rows go in int8 too, or q NULL */
    int                   *fault;
};

CU_INLINE int first_visible(const struct pf_attention_op &a, int pos)
{
    if (a.window == 0)
        return 0;
    int first = a.chunked ? pos - pos % a.window : pos - a.window + 1;
    return first > 0 ? first : 0;
}

CU_INLINE float element(const float *p)
{
    return *p;
}

CU_INLINE float element(const uint16_t *p)
{
    return half_value(*p);
}

/* Eight neighbours; hd a multiple of 8 keeps rows aligned. */
CU_INLINE void load8(const uint16_t *p, float *f)
{
    uint4 v = *(const uint4 *)p;
    uint32_t w[4] = { v.x, v.y, v.z, v.w };
#pragma unroll
    for (int i = 0; i < 4; i++) {
        f[2 * i] = half_value((uint16_t)w[i]);
        f[2 * i + 1] = half_value((uint16_t)(w[i] >> 16));
    }
}

CU_INLINE void load8(const float *p, float *f)
{
    float4 a = *(const float4 *)p, b = *((const float4 *)p + 1);
    f[0] = a.x, f[1] = a.y, f[2] = a.z, f[3] = a.w, f[4] = b.x, f[5] = b.y, f[6] = b.z, f[7] = b.w;
}

template <int H>
CU_INLINE void fold_by(float (&s)[32])
{
#pragma unroll
    for (int i = 0; i < H; i++)
        s[i] = s[i] + s[i + H];
}

/* Folds the 32 accumulators of a thread. */
CU_INLINE float fold32(float (&s)[32])
{
    fold_by<16>(s);
    fold_by<8>(s);
    fold_by<4>(s);
    fold_by<2>(s);
    return s[0] + s[1];
}

/* q in shared memory, k in device memory, n elements. */
template <class E>
CU_INLINE float dot(const float *q, const E *k, int n)
{
    float s[32] = { 0 };
    int e0 = 0;
    if (n % 8 == 0)
#pragma unroll 4
        for (; e0 + 32 <= n; e0 += 32)
#pragma unroll
            for (int i = 0; i < 32; i += 8) {
                float f[8];
                load8(k + e0 + i, f);
#pragma unroll
                for (int j = 0; j < 8; j++)
                    s[i + j] = fmaf(q[e0 + i + j], f[j], s[i + j]);
            }
    for (; e0 < n; e0 += 32)
#pragma unroll
        for (int i = 0; i < 32; i++)
            if (e0 + i < n)
                s[i] = fmaf(q[e0 + i], element(k + e0 + i), s[i]);
    return fold32(s);
}

/* Factor that turns the weighted sum into the result; the sink has a logit but no value. */
CU_INLINE float last_factor(const struct pf_attention_op &a, int head, float m, float z)
{
    if (!a.sinks)
        return 1.0f / z;
    float sink = a.sinks[head], top = m > sink ? m : sink, shrink = pf_expf(m - top);
    return shrink / fmaf(z, shrink, pf_expf(sink - top));
}

/* Attention of a prompt in tiles, cu_attention_tile.cu. Not for heads longer than 256 or of no multiple of 8, nor for values
 * in keys, nor for chosen positions. */
extern "C" bool pf_cu_attention_tiled(const struct attention *o);
extern "C" cudaError_t pf_cu_attention_tiles(cudaStream_t st, const struct attention *o);

#endif
