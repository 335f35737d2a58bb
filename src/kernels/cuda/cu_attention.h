/* What the kernels of attention share: the operation as they get it, what a row sees, elements of keys and values. */
#ifndef PF_CU_ATTENTION_H
#define PF_CU_ATTENTION_H

#include "kernels/cuda/cu_device.h"

enum { CHUNK = PF_KV_CHUNK_POSITIONS };

struct attention {
    struct pf_attention_op a;
    struct pf_kv_view      kv, blocks;
    int                    n_chunks;
    int                   *count;    /* [row][head]: blocks of the heads that have ended; 0 between launches */
    float                 *part;     /* [row][head][chunk][hd_v + 2]: ac, mc, zc */
    float                 *scores;   /* as many floats as pf_cu_latent_floats says; or NULL */
    int                    value_bytes, key_bytes;  /* of a chunk's values of a KV head, and of one of its keys, where
                                                       split copies them to shared memory; or 0 */
    int                    own_bytes; /* of the position's own key, where split_heads has that one alone there; or 0 */
    int                    v_stride; /* from one value to the next; kv.v is kv.k where keys begin with the values */
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

/* Where elements of keys and values lie: a pointer to floats or halves, or, counted from the first one, an element of
 * blocks of Q8_0. What follows is all that knows one from the other. */
struct q8_at {
    const struct cu_q8_0 *blocks;
    size_t                at;
};

CU_INLINE struct q8_at operator+(struct q8_at p, size_t n)
{
    return { p.blocks, p.at + n };
}

/* Element number `at` of what begins at base. */
template <class P>
CU_INLINE P element_at(const void *base, size_t at)
{
    return (P)base + at;
}

template <>
__device__ __forceinline__ struct q8_at element_at<struct q8_at>(const void *base, size_t at)
{
    return { (const struct cu_q8_0 *)base, at };
}

/* Bytes of n elements, whole blocks. */
template <class P>
CU_INLINE int bytes_of(int n)
{
    return n * (int)sizeof *(P)NULL;
}

template <>
__device__ __forceinline__ int bytes_of<struct q8_at>(int n)
{
    return n / 32 * (int)sizeof(struct cu_q8_0);
}

template <class P>
CU_INLINE const char *byte_at(P p)
{
    return (const char *)p;
}

template <>
__device__ __forceinline__ const char *byte_at(struct q8_at p)
{
    return (const char *)(p.blocks + p.at / 32);
}

/* An element as it is read, and the float that it is. */
struct q8_code {
    uint16_t d;
    int8_t   q;
};

CU_INLINE float loaded(const float *p)
{
    return *p;
}

CU_INLINE uint16_t loaded(const uint16_t *p)
{
    return *p;
}

CU_INLINE struct q8_code loaded(struct q8_at p)
{
    const struct cu_q8_0 *b = p.blocks + p.at / 32;
    return { b->d, b->q[p.at % 32] };
}

CU_INLINE float value_of(float x)
{
    return x;
}

CU_INLINE float value_of(uint16_t x)
{
    return half_value(x);
}

CU_INLINE float value_of(struct q8_code x)
{
    return half_value(x.d) * (float)x.q;
}

/* Eight neighbours from a multiple of eight on; hd a multiple of 8 keeps rows aligned. */
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

CU_INLINE void load8(struct q8_at p, float *f)
{
    const struct cu_q8_0 *b = p.blocks + p.at / 32;
    const uint16_t *two = (const uint16_t *)(b->q + p.at % 32);
    float d = half_value(b->d);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint16_t w = two[i];
        f[2 * i] = d * (float)(int8_t)w;
        f[2 * i + 1] = d * (float)(int8_t)(w >> 8);
    }
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
template <class P>
CU_INLINE float dot(const float *q, P k, int n)
{
    float s[32] = { 0 };
    int e0 = 0;
    if (n % 8 == 0)
#pragma unroll 4
        for (; e0 + 32 <= n; e0 += 32)
#pragma unroll
            for (int i = 0; i < 32; i += 8) {
                float f[8];
                load8(k + (e0 + i), f);
#pragma unroll
                for (int j = 0; j < 8; j++)
                    s[i + j] = fmaf(q[e0 + i + j], f[j], s[i + j]);
            }
#pragma unroll 1
    for (; e0 < n; e0 += 32)
#pragma unroll
        for (int i = 0; i < 32; i++)
            if (e0 + i < n)
                s[i] = fmaf(q[e0 + i], value_of(loaded(k + (e0 + i))), s[i]);
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

/* Attention of a prompt in tiles, cu_attention_tile.cu. Not for heads longer than 256 or of no multiple of 8, nor for
 * values in keys, nor for chosen positions. */
extern "C" bool pf_cu_attention_tiled(const struct attention *o);
extern "C" cudaError_t pf_cu_attention_tiles(cudaStream_t st, const struct attention *o);

/* Attention to a cached latent, cu_latent.cu and, of a prompt, cu_latent_prompt.cu: keys that begin with the values,
 * one for all heads, of the lengths that there are kernels for. */
extern "C" bool pf_cu_latent_takes(const struct attention *o, size_t shared_bytes);
extern "C" cudaError_t pf_cu_latent(cudaStream_t st, const struct attention *o, size_t shared_bytes);
extern "C" bool pf_cu_latent_prompt_takes(const struct attention *o, size_t shared_bytes);
extern "C" cudaError_t pf_cu_latent_prompt(cudaStream_t st, const struct attention *o);

#endif
