/* Rows of q, k and v become whole numbers of 16 bits (docs/numerics.md): queries in scratch, keys and values in their
 * chunks. A warp takes a query head, or key and value of a KV head, in its own piece of shared memory; where nothing
 * has done so yet, it first norms and rotates them as cu_heads says (cu_heads.h). Bytes of neighbouring positions lie
 * in one word of the values: these are written byte by byte. */
#include "kernels/cuda/cu_heads.h"
#include "kernels/cuda/cu_i16.h"
#include "kernels/cuda/cu_i16_numbers.h"
#include "kernels/cuda/cu_i16_parts.h"

enum { THREADS = 256 };

struct rows {
    struct cu_heads   h;           /* all that happens to the rows before, if prepares */
    bool              prepares;
    const float      *q, *k, *v;   /* [rows][heads][hd], where they are ready */
    const float      *row_scale;   /* [rows] or NULL: multiplies queries */
    float             scale;       /* of scores, times log2(e) * 256 */
    int               n_head, hd_q;
    struct cu_i16     to;
    struct pf_kv_view kv;          /* n_kv_head 0: only queries */
    struct cu_parts   parts;       /* n 0: all rows are of one sequence, whose keys and values are kv */
    const int32_t    *pos;
    int               longest;     /* floats of shared memory for a row */
};

/* Sums and differences of a row of 32 E elements, which are one piece, E neighbours in a lane: those inside of a lane
 * first, then with the lanes whose number differs in one bit. */
template <int E>
CU_INLINE void rotate_in_lanes(float *x)
{
    int lane = threadIdx.x % WARP;
    float v[E], norm = pf_i16_norm(32 * E);
#pragma unroll
    for (int i = 0; i < E; i++)
        v[i] = x[lane * E + i];
#pragma unroll
    for (int h = 1; h < E; h *= 2)
#pragma unroll
        for (int i = 0; i < E; i++)
            if (!(i & h)) {
                float a = v[i], b = v[i + h];
                v[i] = a + b;
                v[i + h] = a - b;
            }
#pragma unroll 1
    for (int h = 1; h < WARP; h *= 2)
#pragma unroll
        for (int i = 0; i < E; i++) {
            float other = __shfl_xor_sync(ALL_LANES, v[i], h);
            v[i] = lane & h ? other - v[i] : v[i] + other;
        }
#pragma unroll
    for (int i = 0; i < E; i++)
        x[lane * E + i] = v[i] * norm;
    __syncwarp();
}

/* Sums and differences of any row; x is shared memory of a warp. */
CU_INLINE void rotate(float *x, int n)
{
    if (n == 64)
        return rotate_in_lanes<2>(x);
    if (n == 128)
        return rotate_in_lanes<4>(x);
    if (n == 256)
        return rotate_in_lanes<8>(x);
    int piece = pf_i16_piece(n), lane = threadIdx.x % WARP;
    float norm = pf_i16_norm(piece);
#pragma unroll 1
    for (int h = 1; h < piece; h *= 2) {
#pragma unroll 2
        for (int i = lane; i < n / 2; i += WARP) {
            float *at = x + 2 * (i & -h) + (i & (h - 1)), a = at[0], b = at[h];
            at[0] = a + b;
            at[h] = a - b;
        }
        __syncwarp();
    }
#pragma unroll 2
    for (int i = lane; i < n; i += WARP)
        x[i] *= norm;
    __syncwarp();
}

/* Every lane gets it. */
CU_INLINE struct scales scales_of(const float *x, int n)
{
    uint32_t bits = 0;
#pragma unroll 2
    for (int i = threadIdx.x % WARP; i < n; i += WARP)
        bits = max(bits, pf_float_bits(x[i]) & 0x7fffffffu);
    return scales_of_bits(all_max(bits));
}

CU_INLINE void take_row(float *to, const float *from, int n)
{
#pragma unroll 4
    for (int i = threadIdx.x % WARP; i < n; i += WARP)
        to[i] = from[i];
    __syncwarp();
}

/* Norm and rotation of a head, by what was fetched if it is a short one. */
CU_INLINE void prepare(const struct rows &o, int part, int head, int row, const struct head_factors &by, float *x)
{
    if (is_short_head(o.h, part))
        prepare_short_head(o.h, part, head, row, by, x);
    else
        prepare_head(o.h, part, head, row, x);
}

CU_INLINE void put_query(const struct rows &o, int row, int head, const struct head_factors &by, float *x)
{
    int lane = threadIdx.x % WARP, n = o.hd_q;
    size_t at = (size_t)row * o.n_head + head;
    if (o.prepares) {
        prepare(o, 0, head, row, by, x);
        deal_beside(o.h, head, row);
    } else {
        take_row(x, o.q + at * n, n);
    }
#pragma unroll 1
    for (int i = lane; o.row_scale && i < n; i += WARP)
        x[i] *= o.row_scale[row];
    __syncwarp();
    rotate(x, n);
    struct scales s = scales_of(x, n);
    uint32_t *to = (uint32_t *)(o.to.q + at * 2 * n);
#pragma unroll 2
    for (int w = lane; w < n / 4; w += WARP) {
        struct words v = words_of(x + 4 * w, s);
        to[i16_query_word(w)] = v.upper;
        to[i16_query_word(w) + 2] = v.lower;
    }
    float cq = s.s * o.scale;
    if (lane == 0)
        o.to.cq[at] = s.s > 0 && fabsf(cq) < PF_I16_MOST_CQ ? cq : NAN;
}

CU_INLINE void put_key_value(const struct rows &o, int row, int head, const struct head_factors &by, float *k, float *v)
{
    const struct pf_kv_view &kv = o.parts.n ? o.parts.kv[sequence_of(o.parts, row)] : o.kv;
    int lane = threadIdx.x % WARP, pos = o.pos[row], p = pos % BLOCK;
    char *keys = i16_keys(kv, kv.hd_k, pos / BLOCK, head);
    char *values = i16_values_of(kv, kv.hd_v, pos / BLOCK, head);
    if (o.prepares)
        prepare(o, 1, head, row, by, k);
    else
        take_row(k, o.k + ((size_t)row * kv.n_kv_head + head) * kv.hd_k, kv.hd_k);
    take_row(v, o.v + ((size_t)row * kv.n_kv_head + head) * kv.hd_v, kv.hd_v);
    rotate(k, kv.hd_k);
    struct scales of_k = scales_of(k, kv.hd_k), of_v = scales_of(v, kv.hd_v);
    bool good = of_k.s > 0 && of_v.s > 0;
    of_k.s = good ? of_k.s : 0, of_v.s = good ? of_v.s : 0;
#pragma unroll 2
    for (int w = lane; w < kv.hd_k / 4; w += WARP) {
        struct words n = words_of(k + 4 * w, of_k);
        uint32_t *to = (uint32_t *)(keys + pf_i16_key_at(kv.hd_k, p, 4 * w));
        to[0] = n.upper;
        to[PF_I16_PLANE / 4] = n.lower;
    }
#pragma unroll 2
    for (int i = lane; i < kv.hd_v; i += WARP) {
        int n = good ? pf_i16_number(v[i], of_v.inv) : 0;
        char *to = values + pf_i16_value_at(kv.hd_v, p, i);
        to[0] = (char)pf_i16_upper(n);
        to[PF_I16_PLANE] = (char)pf_i16_lower(n);
    }
    if (lane == 0) {
        ((float *)(keys + pf_i16_sk(kv.hd_k)))[p] = good ? of_k.s : 1.0f;
        ((float *)(keys + pf_i16_lsv(kv.hd_k)))[p] = good ? pf_log2f(of_v.s) : 0.0f;
        ((float *)(values + pf_i16_rsv(kv.hd_v)))[p] = good ? 1.0f / of_v.s : NAN;
    }
}

/* blockIdx: heads, row. Weights and angles are inputs of the step: they are fetched before the kernel's turn. */
static __global__ void __launch_bounds__(THREADS) rows_to_i16(const __grid_constant__ struct rows o)
{
    BLOCK_MEMORY(float, shared);
    int warp = threadIdx.x / WARP, head = blockIdx.x * (blockDim.x / WARP) + warp, row = blockIdx.y;
    float *x = shared + warp * 2 * o.longest;
    struct head_factors by = {};
    bool is_query = head < o.n_head, is_key = !is_query && head < o.n_head + o.kv.n_kv_head;
    if (o.prepares && (is_query || is_key) && is_short_head(o.h, is_key))
        fetch_factors(o.h, is_key, row, by);
    wait_turn();
    if (is_query)
        put_query(o, row, head, by, x);
    else if (is_key)
        put_key_value(o, row, head - o.n_head, by, x, x + o.longest);
}

/* ---- Heads of 64, 128 and 256, in registers ---------------------------------------------------------------------- */

/* Lane l has elements l, l + 32 and so on of a head of 32 E, the first 32 P of which are rotated with the next 32 P: no
 * lane needs another's but for norms, sums and differences. Factors, and where bytes go, are known before the row is
 * there. */
template <int E, int P>
struct in_lanes {
    float weight[E], c[P], s[P];
};

template <int E, int P>
CU_INLINE void fetch_in_lanes(const struct cu_heads &o, int part, int row, struct in_lanes<E, P> &f)
{
    int lane = threadIdx.x % WARP;
    const float *cs = o.rope[part].cs + (size_t)row * 2 * 32 * P + lane;
    const float *weight = o.norm[part] ? o.weight[part] : NULL;
#pragma unroll
    for (int k = 0; k < E; k++)
        f.weight[k] = weight ? weight[lane + k * WARP] : 1.0f;
#pragma unroll
    for (int k = 0; k < P; k++) {
        f.c[k] = cs[k * WARP];
        f.s[k] = cs[(P + k) * WARP];
    }
}

template <int E>
CU_INLINE void load_in_lanes(const float *x, float (&v)[E])
{
#pragma unroll
    for (int k = 0; k < E; k++)
        v[k] = x[k * WARP];
}

/* Norm, rotation by the position, and sums and differences. */
template <int E, int P>
CU_INLINE void prepare_in_lanes(const struct cu_heads &o, int part, const struct in_lanes<E, P> &f, float (&v)[E])
{
    int lane = threadIdx.x % WARP;
    if (o.norm[part]) {
        float sum = 0;
#pragma unroll
        for (int k = 0; k < E; k++)
            sum = fmaf(v[k], v[k], sum);
#pragma unroll
        for (int h = 16; h > 0; h /= 2)
            sum += __shfl_xor_sync(ALL_LANES, sum, h);
        float factor = 1.0f / sqrtf(sum / (32.0f * E) + o.eps);
#pragma unroll
        for (int k = 0; k < E; k++)
            v[k] = o.weight[part] ? v[k] * factor * f.weight[k] : v[k] * factor;
    }
#pragma unroll
    for (int k = 0; k < P; k++) {
        float a = v[k], b = v[k + P];
        v[k] = fmaf(a, f.c[k], -(b * f.s[k]));
        v[k + P] = fmaf(a, f.s[k], b * f.c[k]);
    }
#pragma unroll
    for (int h = 1; h < WARP; h *= 2) {
        float sign = lane & h ? -1.0f : 1.0f;
#pragma unroll
        for (int k = 0; k < E; k++)
            v[k] = fmaf(v[k], sign, __shfl_xor_sync(ALL_LANES, v[k], h));
    }
#pragma unroll
    for (int h = 1; h < E; h *= 2)
#pragma unroll
        for (int k = 0; k < E; k++)
            if (!(k & h)) {
                float a = v[k], b = v[k + h];
                v[k] = a + b;
                v[k + h] = a - b;
            }
#pragma unroll
    for (int k = 0; k < E; k++)
        v[k] *= pf_i16_norm(32 * E);
}

template <int E>
CU_INLINE struct scales scales_in_lanes(const float (&v)[E])
{
    uint32_t bits = 0;
#pragma unroll
    for (int k = 0; k < E; k++)
        bits = max(bits, pf_float_bits(v[k]) & 0x7fffffffu);
    return scales_of_bits(all_max(bits));
}

/* blockIdx.x: two query heads, then a key and its value; blockIdx.y: row. */
template <int E, int P>
static __global__ void __launch_bounds__(2 * WARP) short_rows_to_i16(const __grid_constant__ struct rows o)
{
    enum { N = 32 * E };
    __shared__ float scale_of[2];
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, row = blockIdx.y, head = 2 * blockIdx.x + warp;
    struct in_lanes<E, P> by;
    float v[E];
    if (head < o.n_head) {
        size_t at = (size_t)row * o.n_head + head;
        const float *x = o.h.deal[0].n ? block_from(o.h.deal[0], row, head) : o.h.rope[0].x + at * N;
        char *to = (char *)o.to.q + at * 2 * N + lane % 4;
        fetch_in_lanes<E, P>(o.h, 0, row, by);
        wait_turn();
        load_in_lanes<E>(x + lane, v);
        deal_beside(o.h, head, row);
        prepare_in_lanes<E, P>(o.h, 0, by, v);
        struct scales s = scales_in_lanes<E>(v);
#pragma unroll
        for (int k = 0; k < E; k++) {
            int n = s.s > 0 ? pf_i16_number(v[k], s.inv) : 0;
            char *byte = to + 4 * i16_query_word(lane / 4 + k * 8);
            byte[0] = (char)pf_i16_upper(n);
            byte[8] = (char)pf_i16_lower(n);
        }
        float cq = s.s * o.scale;
        if (lane == 0)
            o.to.cq[at] = s.s > 0 && fabsf(cq) < PF_I16_MOST_CQ ? cq : NAN;
        return;
    }
    head = blockIdx.x - o.n_head / 2;
    const struct pf_kv_view &kv = o.parts.n ? o.parts.kv[sequence_of(o.parts, row)] : o.kv;
    int pos = o.pos[row], p = pos % BLOCK;
    char *keys = i16_keys(kv, N, pos / BLOCK, head), *values = i16_values_of(kv, N, pos / BLOCK, head);
    const float *x = (warp ? o.v : o.h.rope[1].x) + ((size_t)row * kv.n_kv_head + head) * N + lane;
    if (warp == 0)
        fetch_in_lanes<E, P>(o.h, 1, row, by);
    wait_turn();
    load_in_lanes<E>(x, v);
    if (warp == 0)
        prepare_in_lanes<E, P>(o.h, 1, by, v);
    struct scales s = scales_in_lanes<E>(v);
    if (lane == 0)
        scale_of[warp] = s.s;
    __syncthreads();
    bool good = scale_of[0] > 0 && scale_of[1] > 0;
#pragma unroll
    for (int k = 0; k < E; k++) {
        int n = good ? pf_i16_number(v[k], s.inv) : 0, e = lane + k * WARP;
        char *to = warp ? values + pf_i16_value_at(N, p, e) : keys + pf_i16_key_at(N, p, e);
        to[0] = (char)pf_i16_upper(n);
        to[PF_I16_PLANE] = (char)pf_i16_lower(n);
    }
    if (lane == 0 && warp == 0) {
        ((float *)(keys + pf_i16_sk(N)))[p] = good ? s.s : 1.0f;
    } else if (lane == 0) {
        ((float *)(keys + pf_i16_lsv(N)))[p] = good ? pf_log2f(s.s) : 0.0f;
        ((float *)(values + pf_i16_rsv(N)))[p] = good ? 1.0f / s.s : NAN;
    }
}

/* The kernel for few rows of queries, keys and values of the same short length, which are rotated by halves, whole or
 * their first part; or NULL. */
typedef void short_kernel(struct rows);
static short_kernel *short_kernel_of(const struct rows &o, int n_rows)
{
    const struct pf_rope_op *r = o.h.rope;
    int n = o.hd_q, n_pairs = r[0].n_pairs;
    bool is_short = o.prepares && n_rows <= CU_VECTOR_ROWS && o.kv.hd_k == n && o.kv.hd_v == n && o.kv.n_kv_head > 0 &&
                    o.n_head % 2 == 0 && !o.row_scale && r[0].neox && r[1].neox && r[1].n_pairs == n_pairs;
    if (!is_short)
        return NULL;
    if (n == 64)
        return n_pairs == 32 ? short_rows_to_i16<2, 1> : NULL;
    if (n == 128)
        return n_pairs == 32 ? short_rows_to_i16<4, 1> : n_pairs == 64 ? short_rows_to_i16<4, 2> : NULL;
    if (n == 256)
        return n_pairs == 32 ? short_rows_to_i16<8, 1> : n_pairs == 128 ? short_rows_to_i16<8, 4> : NULL;
    return NULL;
}

static cudaError_t start(cudaStream_t st, const struct rows &o, int n_rows)
{
    short_kernel *short_rows = short_kernel_of(o, n_rows);
    if (short_rows)
        return launch_early(short_rows, dim3(o.n_head / 2 + o.kv.n_kv_head, n_rows), 2 * WARP, 0, st, o);
    int heads = o.n_head + o.kv.n_kv_head, warps = n_rows <= CU_VECTOR_ROWS ? 2 : THREADS / WARP;
    return launch_early(rows_to_i16, dim3(ceil_div(heads, warps), n_rows), warps * WARP,
                        warps * 2 * o.longest * sizeof(float), st, o);
}

extern "C" cudaError_t pf_cu_i16_store(cudaStream_t st, const struct pf_kv_view *kv, const float *k, const float *v,
                                       const int32_t *pos, int rows)
{
    struct rows o = {};
    o.k = k, o.v = v, o.kv = *kv, o.pos = pos, o.longest = max(kv->hd_k, kv->hd_v);
    return start(st, o, rows);
}

extern "C" cudaError_t pf_cu_i16_queries(cudaStream_t st, const struct pf_attention_op *a, const struct cu_i16 *to,
                                         const struct cu_heads *heads)
{
    return pf_cu_i16_queries_of(st, a, to, heads, NULL);
}

extern "C" cudaError_t pf_cu_i16_queries_of(cudaStream_t st, const struct pf_attention_op *a,
                                            const struct cu_i16 *to, const struct cu_heads *heads,
                                            const struct cu_parts *parts)
{
    struct rows o = {};
    if (parts)
        o.parts = *parts;
    o.q = a->q, o.row_scale = a->row_scale, o.scale = a->scale * PF_LOG2_E * 256.0f, o.to = *to;
    o.n_head = a->n_head, o.hd_q = a->kv->hd_k, o.longest = max(a->kv->hd_k, a->kv->hd_v);
    if (heads) {
        o.h = *heads, o.prepares = true;
        o.v = heads->v, o.kv = heads->kv, o.pos = heads->pos;
    }
    return start(st, o, a->rows);
}
