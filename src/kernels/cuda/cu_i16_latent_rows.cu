/* Rows of queries and of latents become whole numbers of 16 bits (docs/numerics.md): queries in scratch, latents in
 * their chunks. A warp has a row in registers: 16 bytes of a lane are a word of each plane, and of eight neighbouring
 * lanes a piece that is rotated. */
#include "kernels/cuda/cu_i16_latent.h"
#include "kernels/cuda/cu_i16_numbers.h"

enum { WARPS = 4, MOST = 2 * PF_I16_HEAD_MAX / (4 * WARP) };     /* words of a lane */

struct latent_rows {
    const float      *q, *k;      /* [rows][n_head][hd_k], [rows][hd_k] */
    const float      *row_scale;  /* [rows] or NULL: multiplies queries */
    float             scale;      /* of scores, times log2(e) * 256 */
    int               n_head;     /* 0: no queries */
    struct cu_i16     to;
    struct pf_kv_view kv;         /* k NULL: no latents */
    const int32_t    *pos;
};

/* A row's two parts: the latent, and what carries the position. */
struct parts_of_row {
    float4        v[MOST];
    struct scales of[2];
    bool          good;           /* neither is out of range */
};

CU_INLINE uint32_t largest_of(float4 v)
{
    uint32_t x = pf_float_bits(v.x) & 0x7fffffffu, y = pf_float_bits(v.y) & 0x7fffffffu,
             z = pf_float_bits(v.z) & 0x7fffffffu, w = pf_float_bits(v.w) & 0x7fffffffu;
    return max(max(x, y), max(z, w));
}

/* Rotated; scale: what multiplies it first, or NULL. */
CU_INLINE void load_row(struct parts_of_row &r, const float *from, const struct pf_kv_view &kv, const float *scale)
{
    uint32_t bits[2] = { 0, 0 };
#pragma unroll
    for (int i = 0; i < MOST; i++) {
        int w = threadIdx.x % WARP + i * WARP;
        r.v[i] = make_float4(0, 0, 0, 0);
        if (w < kv.hd_k / 4)
            r.v[i] = *(const float4 *)(from + 4 * w);
    }
#pragma unroll
    for (int i = 0; i < MOST; i++) {
        int w = threadIdx.x % WARP + i * WARP;
        if (i * WARP >= kv.hd_k / 4)
            continue;
        if (scale)
            r.v[i] = times(r.v[i], *scale);
        r.v[i] = rotate_four(r.v[i]);
#pragma unroll
        for (int h = 1; h < PF_LATENT_PIECE / 4; h *= 2)
            r.v[i] = rotate_with(r.v[i], h);
        r.v[i] = times(r.v[i], pf_i16_norm(PF_LATENT_PIECE));
        uint32_t most = largest_of(r.v[i]);
        bits[0] = max(bits[0], w < kv.hd_v / 4 ? most : 0);
        bits[1] = max(bits[1], w < kv.hd_v / 4 ? 0 : most);
    }
    r.of[0] = scales_of_bits(all_max(bits[0]));
    r.of[1] = { 1, 0 };
    if (kv.hd_k > kv.hd_v)
        r.of[1] = scales_of_bits(all_max(bits[1]));
    r.good = r.of[0].s > 0 && r.of[1].s > 0;
}

/* Hands each of the lane's words to put(number, words); those of a row that is out of range are zeros. */
template <class F>
CU_INLINE void put_words(const struct parts_of_row &r, const struct pf_kv_view &kv, F put)
{
#pragma unroll
    for (int i = 0; i < MOST; i++) {
        int w = threadIdx.x % WARP + i * WARP;
        if (w < kv.hd_k / 4) {
            struct scales s = w >= kv.hd_v / 4 ? r.of[1] : r.of[0];
            float x[4] = { r.v[i].x, r.v[i].y, r.v[i].z, r.v[i].w };
            put(w, words_of(x, r.good ? s : scales{ 0, 0 }));
        }
    }
}

CU_INLINE void put_query(const struct latent_rows &o, int row, int head)
{
    struct parts_of_row r;
    int at = row * o.n_head + head;
    load_row(r, o.q + (size_t)at * o.kv.hd_k, o.kv, o.row_scale ? o.row_scale + row : NULL);
    put_words(r, o.kv, [&](int w, struct words n) {
        uint32_t *to = (uint32_t *)(o.to.q + latent_query_at(o.kv.hd_k, at, w));
        to[0] = n.upper;
        to[2] = n.lower;
    });
    float cq = r.of[0].s * o.scale, cqp = o.kv.hd_k > o.kv.hd_v ? r.of[1].s * o.scale : 0.0f;
    bool good = r.good && fabsf(cq) < PF_I16_MOST_CQ && fabsf(cqp) < PF_I16_MOST_CQ;
    if (threadIdx.x % WARP == 0)
        ((float2 *)o.to.cq)[at] = good ? make_float2(cq, cqp) : make_float2(NAN, NAN);
}

CU_INLINE void put_latent(const struct latent_rows &o, int row)
{
    struct parts_of_row r;
    int pos = o.pos[row], p = pos % BLOCK, hd = o.kv.hd_k;
    char *block = latent_block_of(o.kv, pos / BLOCK);
    load_row(r, o.k + (size_t)row * hd, o.kv, NULL);
    put_words(r, o.kv, [&](int w, struct words n) {
        uint32_t *to = (uint32_t *)(block + pf_latent_at(hd, p, 4 * w));
        to[0] = n.upper;
        to[PF_LATENT_PLANE / 4] = n.lower;
    });
    if (threadIdx.x % WARP == 0) {
        ((float *)(block + pf_latent_scales(hd, 0)))[p] = r.good ? r.of[0].s : 1.0f;
        ((float *)(block + pf_latent_scales(hd, 1)))[p] = r.good ? r.of[1].s : 1.0f;
        ((float *)(block + pf_latent_scales(hd, 2)))[p] = r.good ? pf_log2f(r.of[0].s) : 0.0f;
        ((float *)(block + pf_latent_scales(hd, 3)))[p] = r.good ? 1.0f / r.of[0].s : NAN;
    }
}

/* blockIdx: heads, and behind them the latent; row. */
static __global__ void __launch_bounds__(WARPS * WARP) latent_rows_to_i16(const __grid_constant__ struct latent_rows o)
{
    int head = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP, row = blockIdx.y;
    wait_turn();
    if (head < o.n_head)
        put_query(o, row, head);
    else if (head == o.n_head && o.kv.k)
        put_latent(o, row);
}

static cudaError_t start(cudaStream_t st, const struct latent_rows &o, int rows)
{
    int n = o.n_head + (o.kv.k != NULL), warps = min(n, rows <= CU_VECTOR_ROWS ? 1 : (int)WARPS);
    return launch_early(latent_rows_to_i16, dim3(ceil_div(n, warps), rows), warps * WARP, 0, st, o);
}

extern "C" cudaError_t pf_cu_latent_store(cudaStream_t st, const struct pf_kv_view *kv, const float *k,
                                          const int32_t *pos, int rows)
{
    struct latent_rows o = {};
    o.k = k, o.kv = *kv, o.pos = pos;
    return start(st, o, rows);
}

extern "C" cudaError_t pf_cu_latent_queries(cudaStream_t st, const struct pf_attention_op *a, const struct cu_i16 *to,
                                            const struct cu_heads *heads)
{
    struct latent_rows o = {};
    o.q = a->q, o.row_scale = a->row_scale, o.scale = a->scale * PF_LOG2_E * 256.0f, o.n_head = a->n_head, o.to = *to;
    o.kv = *a->kv;
    o.kv.k = NULL;
    if (heads)
        o.k = heads->rope[1].x, o.kv.k = heads->kv.k, o.pos = heads->pos;
    return start(st, o, a->rows);
}
