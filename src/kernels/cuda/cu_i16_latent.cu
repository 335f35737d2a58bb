/* Attention to a latent in whole numbers, of any rows. A thread block takes one or two tiles of 16 rows (tokens by
 * query heads) and goes over blocks of 64 positions, all of its warps together. Operands come straight from memory,
 * where pf_latent.h lays them out for that: keys from the second cache, which the block ahead is on its way to, and the
 * same bytes as values mostly from the first.
 *
 *     scores     warp (half, quarter) of eight: 32 positions and a quarter of the elements; exact sums to shared memory
 *     weights    warp (half, quarter): every fourth of the 32 positions, all elements; bytes to shared memory
 *     values     a warp: elements 32 w .. and 32 (w + 8) .., all positions
 *
 * cu_i16_latent_tile.h says what a lane has of them. What becomes of a row's sums:
 *     few rows    partials of chunks, or, where these are too few for the GPU, of blocks; another kernel folds them.
 *                 A single tile's are left to cu_i16_latent_long.cu where a thread block comes to several blocks
 *     a prompt    a thread block has its rows alone: chunks enter the whole, which lies in the output until the last */
#include "kernels/cuda/cu_i16_latent_tile.h"

enum { THREADS = WARPS * WARP };

/* How the steps of a key are shared out to quarters: those of the latent first, then those of the other part. */
struct steps {
    int n, n_latent;                      /* of a key; of the latent */
    int with_latent, first_other;         /* quarters that may have some of the latent; of the other part, from there */
};

CU_HOST_FN struct steps steps_of(const struct pf_kv_view &kv)
{
    struct steps s = { kv.hd_k / STEP, kv.hd_v / STEP, 0, 0 };
    while (s.with_latent < QUARTERS && first_step(s.n, s.with_latent) < s.n_latent)
        s.with_latent++;
    while (s.first_other < QUARTERS && (s.n == s.n_latent || first_step(s.n, s.first_other + 1) <= s.n_latent))
        s.first_other++;
    return s;
}

/* A block's shared memory. */
template <int TILES> struct place {
    enum { ROWS = TILES * TILE_ROWS, SUMS = TILES * 4 * WARP };
    char  *q;                             /* [TILES][hd_k / 16][32] of 16 bytes */
    uint4 *sums;                          /* [2][QUARTERS][TILES][4 tiles of 8 columns][32]: of the latent */
    uint4 *others;                        /* [2][quarters that have some][TILES][4][32]: of the other part */
    uint8_t *weights;                     /* [TILES][2][upper, lower][4 words][32] of 4 bytes */
    float *m, *e;                         /* [ROWS][WARPS], [ROWS][E_STRIDE] */
    float *rsv, *last;                    /* [BLOCK], [ROWS] */
    float2 *cq;                           /* [ROWS] */
    struct i16_row *of;                   /* [ROWS] */
};

template <int TILES>
CU_HOST_FN size_t bytes_for(const struct pf_kv_view &kv)
{
    using P = place<TILES>;
    return (size_t)P::ROWS * 2 * kv.hd_k + (size_t)2 * (QUARTERS + QUARTERS - steps_of(kv).first_other) * P::SUMS * 16 +
           P::ROWS * 2 * BLOCK + P::ROWS * (WARPS + E_STRIDE + 1) * 4 + BLOCK * 4 +
           P::ROWS * (sizeof(float2) + sizeof(struct i16_row));
}

template <int TILES>
CU_INLINE struct place<TILES> carve(char *shared, const struct pf_kv_view &kv, const struct steps &steps)
{
    using P = place<TILES>;
    P p;
    p.q = shared;
    p.sums = (uint4 *)(shared + P::ROWS * 2 * kv.hd_k);
    p.others = p.sums + 2 * QUARTERS * P::SUMS;
    p.weights = (uint8_t *)(p.others + 2 * (QUARTERS - steps.first_other) * P::SUMS);
    p.cq = (float2 *)(p.weights + P::ROWS * 2 * BLOCK);
    p.m = (float *)(p.cq + P::ROWS);
    p.e = p.m + P::ROWS * WARPS;
    p.rsv = p.e + P::ROWS * E_STRIDE;
    p.last = p.rsv + BLOCK;
    p.of = (struct i16_row *)(p.last + P::ROWS);
    return p;
}

/* ---- Scores ------------------------------------------------------------------------------------------------------ */

/* The first N steps of a warp's quarter, on their way. One tile leaves registers for all of a usual key, so that they
 * come while the values of the block before are multiplied. */
template <int TILES> struct steps_ahead {
    enum { N = TILES == 1 ? 9 : 3, EARLY = TILES == 1 };
    struct step_words of[N];

    __device__ __forceinline__ void load(const char *at, int n)
    {
#pragma unroll
        for (int i = 0; i < N; i++)
            if (i < n)
                of[i].load(at + i * STEP_BYTES);
    }
};

template <int TILES>
CU_INLINE void multiply(struct i16_sums (&s)[TILES], const struct step_words &k, const char *q, int tile_bytes)
{
#pragma unroll
    for (int t = 0; t < TILES; t++) {
        uint4 a = *(const uint4 *)(q + t * tile_bytes);
#pragma unroll
        for (int c = 0; c < 4; c++)
            mma16_add<true>(s[t].upper[c], a.x, a.y, k.upper[c]);
#pragma unroll
        for (int c = 0; c < 4; c++)
            mma16_add<true>(s[t].middle[c], a.z, a.w, k.upper[c]);
#pragma unroll
        for (int c = 0; c < 4; c++)
            mma16_add<true>(s[t].middle[c], a.x, a.y, k.lower[c]);
    }
}

/* The lane's exact sums of steps [first, end) of its quarter go to `to`; at, q: where the quarter's words begin. */
template <int TILES>
CU_INLINE void sum_steps(const struct steps_ahead<TILES> &ahead, const char *at, const char *q, int tile_bytes,
                         int first, int end, uint4 *to)
{
    enum { N = steps_ahead<TILES>::N };
    int lane = threadIdx.x % WARP;
    struct i16_sums s[TILES] = {};
#pragma unroll
    for (int i = 0; i < N; i++)
        if (i >= first && i < end)
            multiply<TILES>(s, ahead.of[i], q + i * WARP * 16, tile_bytes);
#pragma unroll 3
    for (int i = max(first, (int)N); i < end; i++) {
        struct step_words k;
        k.load(at + i * STEP_BYTES);
        multiply<TILES>(s, k, q + i * WARP * 16, tile_bytes);
    }
    auto sum = [&](int t, int c, int i) { return (unsigned)(256 * s[t].upper[c][i] + s[t].middle[c][i]); };
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int c = 0; c < 4; c++)
            to[(t * 4 + c) * WARP + lane] = make_uint4(sum(t, c, 0), sum(t, c, 1), sum(t, c, 2), sum(t, c, 3));
}

/* Where the lane's words of a quarter's first step lie. */
CU_INLINE const char *quarter_of(const char *block, const struct steps &steps, int hd, int half, int quarter)
{
    int lane = threadIdx.x % WARP, step = first_step(steps.n, quarter);
    return block + pf_latent_at(hd, half * HALF + lane / 4 * 4, (step * 4 + lane % 4) * 4);
}

template <int TILES>
CU_INLINE void sum_scores(const struct place<TILES> &p, const struct steps &steps,
                          const struct steps_ahead<TILES> &ahead, const char *at, int hd, int half, int quarter)
{
    enum { SUMS = place<TILES>::SUMS };
    int begin = first_step(steps.n, quarter), n = first_step(steps.n, quarter + 1) - begin,
        n_latent = min(max(steps.n_latent - begin, 0), n), n_others = QUARTERS - steps.first_other;
    const char *q = p.q + (begin * WARP + threadIdx.x % WARP) * 16;
#pragma unroll 1                              /* so that there is less code to fetch */
    for (int other = 0; other < 2; other++) {
        uint4 *to = other ? p.others + (half * n_others + quarter - steps.first_other) * SUMS :
                            p.sums + (half * QUARTERS + quarter) * SUMS;
        if (other ? quarter >= steps.first_other : quarter < steps.with_latent)
            sum_steps<TILES>(ahead, at, q, TILE_ROWS * 2 * hd, other ? n_latent : 0, other ? n : n_latent, to);
    }
}

/* Sums of n quarters as they enter scores: exact until they become floats. */
CU_INLINE void add_up(const uint4 *from, int n, int stride, float (&out)[4])
{
    uint4 sum = from[0];
#pragma unroll 3
    for (int i = 1; i < n; i++) {
        uint4 v = from[i * stride];
        sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
    }
    out[0] = (float)(int)sum.x, out[1] = (float)(int)sum.y, out[2] = (float)(int)sum.z, out[3] = (float)(int)sum.w;
}

/* Scales of the lane's two positions, those of its warp: 8 j + quarter of the half, and four further. */
struct scales_of_two {
    float s[2], sp[2], lsv[2], rsv[2];

    __device__ __forceinline__ void load(const char *block, int hd, int p)
    {
        const float *at = (const float *)(block + pf_latent_scales(hd, 0)) + p;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            s[i] = at[4 * i];
            sp[i] = at[BLOCK + 4 * i];
            lsv[i] = at[2 * BLOCK + 4 * i];
            rsv[i] = at[3 * BLOCK + 4 * i];
        }
    }
};

/* y of the lane's positions and rows: rows g, g + 8 by two positions each; and the largest that the warp has, shown. */
template <int TILES>
CU_INLINE void score(const struct place<TILES> &p, const struct steps &steps, const struct scales_of_two &by, bool cut,
                     int p0, int half, int quarter, float (&y)[TILES][4])
{
    enum { SUMS = place<TILES>::SUMS };
    int lane = threadIdx.x % WARP, n_others = QUARTERS - steps.first_other;
#pragma unroll
    for (int t = 0; t < TILES; t++) {
        float latent[4], other[4], m[2];
        int at = (t * 4 + quarter) * WARP + lane;
        add_up(p.sums + half * QUARTERS * SUMS + at, steps.with_latent, SUMS, latent);
        if (n_others)
            add_up(p.others + half * n_others * SUMS + at, n_others, SUMS, other);
#pragma unroll
        for (int c = 0; c < 4; c++) {
            int row = t * TILE_ROWS + c / 2 * 8 + lane / 4;
            float2 cq = p.cq[row];
            float v = by.lsv[c % 2];
            if (n_others)
                v = fmaf(other[c] * by.sp[c % 2], cq.y, v);
            v = fmaf(latent[c] * by.s[c % 2], cq.x, v);
            if (cut) {
                struct i16_row of = p.of[row];
                int pos = p0 + 4 * (c % 2);
                v = pos < of.first || pos > of.pos ? -INFINITY : v;
            }
            y[t][c] = v;
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            m[r] = fmaxf(y[t][2 * r + 1], fmaxf(y[t][2 * r], -INFINITY));         /* a NaN is left out */
#pragma unroll
            for (int h = 1; h < 4; h *= 2)
                m[r] = fmaxf(m[r], __shfl_xor_sync(ALL_LANES, m[r], h));
            if (lane % 4 == 0)
                p.m[(t * TILE_ROWS + 8 * r + lane / 4) * WARPS + half * QUARTERS + quarter] = m[r];
        }
    }
}

/* ---- Weights ----------------------------------------------------------------------------------------------------- */

/* Weights as operands, and as floats for their sums. m: of the block, of rows g and
 * g + 8. */
template <int TILES>
CU_INLINE void weigh(const struct place<TILES> &p, const float (&y)[TILES][4], const float (&m)[TILES][2],
                     const struct scales_of_two &by, int half, int quarter)
{
    int lane = threadIdx.x % WARP, at = half * HALF + lane % 4 * 8 + quarter;
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int c = 0; c < 4; c++) {
            uint8_t *to = p.weights + ((t * 2 + half) * 8 + c / 2 + c % 2 * 2) * WARP * 4 + lane * 4 + quarter;
            float *e = p.e + (t * TILE_ROWS + c / 2 * 8 + lane / 4) * E_STRIDE + at + c % 2 * 4;
            *e = put_weight(to, y[t][c], m[t][c / 2]);
        }
    if (lane < 4)
        p.rsv[at] = by.rsv[0], p.rsv[at + 4] = by.rsv[1];
}

/* ---- Values ------------------------------------------------------------------------------------------------------ */

/* Weighted sums of the 32 elements from 32 m on. */
template <int TILES>
CU_INLINE void sum_values(const struct place<TILES> &p, const char *block, int hd, int m, struct i16_sums (&s)[TILES])
{
    int lane = threadIdx.x % WARP;
#pragma unroll
    for (int t = 0; t < TILES; t++)
        s[t] = {};
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const uint4 *at = (const uint4 *)(block + pf_latent_at(hd, half * HALF + lane % 4 * 8, 32 * m + lane / 4 * 4));
        uint4 upper[2] = { at[0], at[1] }, lower[2] = { at[PF_LATENT_PLANE / 16], at[PF_LATENT_PLANE / 16 + 1] };
        uint32_t b[2][4];
        uint32_t w[TILES][2][4];
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int i = 0; i < 8; i++)
                w[t][i / 4][i % 4] = ((const uint32_t *)p.weights)[((t * 2 + half) * 8 + i) * WARP + lane];
        turn_over(upper[0], b[0]);
        turn_over(upper[1], b[1]);
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                mma32_more<false>(s[t].upper[i], w[t][0], b[0][i], b[1][i]);
                mma32_more<false>(s[t].middle[i], w[t][1], b[0][i], b[1][i]);
            }
        turn_over(lower[0], b[0]);
        turn_over(lower[1], b[1]);
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                mma32_more<false>(s[t].middle[i], w[t][0], b[0][i], b[1][i]);
    }
}

/* ---- Sums -------------------------------------------------------------------------------------------------------- */

/* What a lane has of its rows in a chunk, or in a block alone; and of the whole, where it is a prompt's. */
template <int TILES> struct sums {
    float acc[TILES][RUNS][4][4], m[TILES][2], whole[TILES][2];

    __device__ __forceinline__ void clear(void)
    {
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            m[t][0] = m[t][1] = -INFINITY;
#pragma unroll
            for (int u = 0; u < RUNS; u++)
#pragma unroll
                for (int i = 0; i < 16; i++)
                    acc[t][u][i / 4][i % 4] = 0;
        }
    }
};

/* A block enters a sum of weights, which the first 8 ROWS threads have. */
template <int TILES>
CU_INLINE void add_weights(const struct place<TILES> &p, float m, int p0, bool by_block, struct sum_of_weights &w)
{
    int r = threadIdx.x / 8;
    float z = weights_of(p.e + r * E_STRIDE, p.rsv, p.of[r], p0, threadIdx.x % 8);
    struct i16_join j = i16_joined(w.m, m);
    w.z = by_block ? z : fmaf(w.z, j.old, z * j.fresh);
}

/* Number of the warp's run u of 32 elements; behind the last if there is none. Thread blocks along z share them. */
CU_INLINE int run_of(int u)
{
    int warp = threadIdx.x / WARP, n = RUNS / gridDim.z;
    return u < n ? (blockIdx.z * n + u) * WARPS + warp : RUNS * WARPS;
}

/* The chunk's or block's partial of each row, number `item`. */
template <int TILES>
CU_INLINE void put_partials(const struct latent_attention &f, const struct place<TILES> &p, const struct sums<TILES> &s,
                            const struct sum_of_weights &w, int item)
{
    const struct i16_attention &o = f.o;
    int lane = threadIdx.x % WARP;
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            struct i16_row row = p.of[t * TILE_ROWS + 8 * r + lane / 4];
            float *to = o.s.part + part_of(o, row, item) * o.kv.hd_v + lane % 4 * 8;
#pragma unroll
            for (int u = 0; u < RUNS; u++) {
                int d = run_of(u) * 32;
                if (row.there && d < o.kv.hd_v)
                    put_values(to + d, s.acc[t][u], 2 * r);
            }
        }
    if (blockIdx.z > 0 || threadIdx.x >= 8 * place<TILES>::ROWS)
        return;
    float2 cq = p.cq[threadIdx.x / 8];
    put_weights(o, p.of[threadIdx.x / 8], cq.x == cq.x, f.by_block, item, w);
}

CU_INLINE float4 joined(float4 v, const float (&acc)[4][4], int c, struct i16_join j)
{
    return make_float4(fmaf(acc[0][c], j.fresh, v.x * j.old), fmaf(acc[1][c], j.fresh, v.y * j.old),
                       fmaf(acc[2][c], j.fresh, v.z * j.old), fmaf(acc[3][c], j.fresh, v.w * j.old));
}

/* Eight neighbours, of four neighbouring lanes a piece. */
CU_INLINE void rotate_eight(float4 (&v)[2])
{
    float4 a = rotate_four(v[0]), b = rotate_four(v[1]);
    v[0] = make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
    v[1] = make_float4(a.x - b.x, a.y - b.y, a.z - b.z, a.w - b.w);
#pragma unroll
    for (int i = 0; i < 2; i++)
        v[i] = times(rotate_with(rotate_with(v[i], 1), 2), pf_i16_norm(PF_LATENT_PIECE));
}

/* A chunk enters the whole, which lies in the output; the last one ends it. */
template <int TILES>
CU_INLINE void enter_whole(const struct i16_attention &o, const struct place<TILES> &p, struct sums<TILES> &s,
                           struct sum_of_weights &w, bool is_last)
{
    int lane = threadIdx.x % WARP;
    if (threadIdx.x < 8 * place<TILES>::ROWS) {
        int r = threadIdx.x / 8;
        struct i16_join j = i16_joined(w.whole_m, w.m);
        w.whole = fmaf(w.whole, j.old, fold_eight(w.z) * j.fresh);
        if (is_last && threadIdx.x % 8 == 0)
            p.last[r] = p.cq[r].x == p.cq[r].x ? i16_last_factor(o.a, p.of[r].head, w.whole_m, w.whole) : NAN;
    }
    if (is_last)
        __syncthreads();
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int number = t * TILE_ROWS + 8 * r + lane / 4;
            struct i16_row row = p.of[number];
            bool begins = s.whole[t][r] == -INFINITY;
            struct i16_join j = i16_joined(s.whole[t][r], s.m[t][r]);
            float f = is_last ? p.last[number] : 1.0f;
            float *out = o.a.out + ((size_t)row.token * o.a.n_head + row.head) * o.kv.hd_v + lane % 4 * 8;
#pragma unroll
            for (int u = 0; u < RUNS; u++) {
                int d = run_of(u) * 32;
                float4 *at = (float4 *)(out + d), v[2] = { { 0, 0, 0, 0 }, { 0, 0, 0, 0 } };
                if (d >= o.kv.hd_v)
                    continue;
                if (!begins && row.there)
                    v[0] = at[0], v[1] = at[1];
                v[0] = times(joined(v[0], s.acc[t][u], 2 * r, j), f);
                v[1] = times(joined(v[1], s.acc[t][u], 2 * r + 1, j), f);
                if (is_last)
                    rotate_eight(v);
                if (row.there)
                    at[0] = v[0], at[1] = v[1];
            }
        }
}

/* ---- The kernel -------------------------------------------------------------------------------------------------- */

template <int TILES>
CU_INLINE void load_queries(const struct i16_attention &o, const struct place<TILES> &p, int first_row)
{
    enum { ROWS = place<TILES>::ROWS };
    const uint4 *from = (const uint4 *)(o.s.q + (size_t)first_row * 2 * o.kv.hd_k);
#pragma unroll 4
    for (int i = threadIdx.x; i < ROWS * 2 * o.kv.hd_k / 16; i += THREADS)
        ((uint4 *)p.q)[i] = from[i];
    if (threadIdx.x < ROWS)
        p.cq[threadIdx.x] = p.of[threadIdx.x].there ? latent_factors(o)[first_row + threadIdx.x] : make_float2(0, 0);
}

/* A warp's eighth of a block is on its way to the second cache. */
CU_INLINE void send_for(const struct pf_kv_view &kv, const char *block, int warp)
{
    size_t bytes = BLOCK * pf_latent_bytes(kv.hd_k) / WARPS;
    if (threadIdx.x % WARP == 0)
        fetch_ahead((const uint8_t *)block + warp * bytes, bytes);
}

/* blockIdx: rows, in a prompt the last ones, which see most, first; one of gridDim.y thread blocks that share chunks,
 * or blocks. */
template <int TILES, bool WHOLE>
static __global__ void __launch_bounds__(THREADS, 1)
    latent(const __grid_constant__ struct latent_attention f)
{
    BLOCK_MEMORY(float4, shared);
    enum { ROWS = place<TILES>::ROWS };
    const struct i16_attention &o = f.o;
    int lane = threadIdx.x % WARP, warp = uniform(threadIdx.x / WARP), half = warp / QUARTERS,
        quarter = warp % QUARTERS, hd = o.kv.hd_k, per = f.by_block ? 1 : N_BLOCKS,
        first_row = (WHOLE ? gridDim.x - 1 - blockIdx.x : blockIdx.x) * ROWS, at = half * HALF + lane % 4 * 8 + quarter;
    struct steps steps = steps_of(o.kv);
    struct place<TILES> p = carve<TILES>((char *)shared, o.kv, steps);
    struct range all = see<ROWS>(o, p.of, first_row);
    int b = max((all.begin / per + (int)blockIdx.y) * per, all.begin);
    if (b <= all.end)
        send_for(o.kv, latent_block_of(o.kv, b), warp);
    struct sums<TILES> s;
    struct sum_of_weights w = { -INFINITY, 0, -INFINITY, 0 };
    s.clear();
#pragma unroll
    for (int i = 0; i < 2 * TILES; i++)
        s.whole[i / 2][i % 2] = -INFINITY;
    struct steps_ahead<TILES> ahead;
    struct scales_of_two by;
    const char *block = latent_block_of(o.kv, b);
    int n_steps = first_step(steps.n, quarter + 1) - first_step(steps.n, quarter);
    auto load = [&](const char *block) {
        ahead.load(quarter_of(block, steps, hd, half, quarter), n_steps);
        by.load(block, hd, at);
    };
    bool is_old = b <= all.end && b * BLOCK + BLOCK <= first_new(o);
    if (is_old)
        load(block);
    wait_turn();
    if (b > all.end)
        return;
    if (!is_old)
        load(block);
    load_queries(o, p, first_row);
    __syncthreads();
#pragma unroll 1
    for (int next; b <= all.end; b = next) {
        const char *values = block;
        bool cut = b * BLOCK < all.from || b * BLOCK + BLOCK - 1 > all.to;
        float y[TILES][4], m[TILES][2], row_m;
        next = b + 1;
        if (next % per == 0)
            next += ((int)gridDim.y - 1) * per;
        if (next <= all.end)
            send_for(o.kv, latent_block_of(o.kv, next), warp);
        sum_scores(p, steps, ahead, quarter_of(block, steps, hd, half, quarter), hd, half, quarter);
        meet(1 + half, THREADS / 2);
        score(p, steps, by, cut, b * BLOCK + at, half, quarter, y);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 2 * TILES; i++)
            m[i / 2][i % 2] = largest(p.m + (i * 8 + lane / 4) * WARPS);
        row_m = largest(p.m + threadIdx.x / 8 % ROWS * WARPS);
        weigh(p, y, m, by, half, quarter);
        __syncthreads();
        if (next <= all.end) {
            block = latent_block_of(o.kv, next);
            if (steps_ahead<TILES>::EARLY)
                load(block);
        }
        if (threadIdx.x < 8 * ROWS)
            add_weights(p, row_m, b * BLOCK, f.by_block, w);

        struct i16_join j[TILES][2];
#pragma unroll
        for (int i = 0; i < 2 * TILES; i++) {
            j[i / 2][i % 2] = i16_joined(s.m[i / 2][i % 2], m[i / 2][i % 2]);
            if (f.by_block)
                j[i / 2][i % 2] = { 0, 1 };
            else
                j[i / 2][i % 2].fresh *= PF_I16_GAIN;
        }
#pragma unroll
        for (int u = 0; u < RUNS; u++) {
            struct i16_sums v[TILES];
            if (run_of(u) * 32 >= o.kv.hd_v)
                continue;
            sum_values(p, values, hd, run_of(u), v);
#pragma unroll
            for (int t = 0; t < TILES; t++)
#pragma unroll
                for (int i = 0; i < 4; i++)
#pragma unroll
                    for (int c = 0; c < 4; c++)
                        s.acc[t][u][i][c] = fmaf(i16_sum(v[t], i, c), j[t][c / 2].fresh,
                                                 s.acc[t][u][i][c] * j[t][c / 2].old);
        }
        if (next % per == 0 || next > all.end) {
            if (WHOLE)
                enter_whole(o, p, s, w, next > all.end);
            else
                put_partials(f, p, s, w, b / per);
            s.clear();
            w.m = -INFINITY, w.z = 0;
        }
        if (!steps_ahead<TILES>::EARLY && next <= all.end)
            load(block);
    }
}

/* ---- Launches ---------------------------------------------------------------------------------------------------- */

static int n_tiles(const struct i16_attention &o)
{
    return ceil_div((int64_t)o.a.rows * o.a.n_head, TILE_ROWS);
}

template <int TILES, bool WHOLE>
static cudaError_t start(cudaStream_t st, const struct latent_attention &f, int n_shares, int n_units)
{
    size_t bytes = bytes_for<TILES>(f.o.kv);
    int x = ceil_div(n_tiles(f.o), TILES), z = f.o.kv.hd_v > WARPS * WARP && 2 * x * n_shares <= n_units ? RUNS : 1;
    cudaError_t e = allow_bytes(latent<TILES, WHOLE>, bytes);
    return e != cudaSuccess ? e : launch_early(latent<TILES, WHOLE>, dim3(x, n_shares, z), THREADS, bytes, st, f);
}

/* A GPU as far as it matters here. */
struct card {
    int    n_units;
    size_t shared_bytes;
    bool   two;                           /* thread blocks may have two tiles */
};

static cudaError_t find_card(const struct pf_kv_view &kv, size_t shared_bytes, struct card *out)
{
    *out = { 0, shared_bytes, bytes_for<2>(kv) <= shared_bytes };
    return ask_device(cudaDevAttrMultiProcessorCount, &out->n_units);
}

/* Up to CU_VECTOR_ROWS rows. By blocks where chunks would leave half of the GPU idle, if there is scratch for that. */
static cudaError_t start_few(cudaStream_t st, const struct i16_attention &o, const struct card &card)
{
    struct latent_attention f = { o, false };
    int tiles = n_tiles(o) > 1 && card.two ? 2 : 1, x = ceil_div(n_tiles(o), tiles);
    size_t rows = (size_t)o.a.rows * o.a.n_head;
    f.by_block = (int64_t)x * o.n_chunks * 2 <= card.n_units &&
                 rows * o.n_chunks * N_BLOCKS * (o.kv.hd_v + 9) <= o.s.n_part;
    if (f.by_block)
        f.o.n_chunks *= N_BLOCKS;
    int y = min(f.o.n_chunks, max(1, card.n_units / x));
    cudaError_t e;
    if (pf_cu_latent_takes_long(&f, card.n_units, card.shared_bytes))
        e = pf_cu_latent_long(st, &f, card.n_units);
    else
        e = tiles == 2 ? start<2, false>(st, f, y, card.n_units) : start<1, false>(st, f, y, card.n_units);
    if (e != cudaSuccess)
        return e;
    return f.by_block ? pf_cu_latent_fold(st, &f.o) : pf_cu_i16_fold(st, &f.o);
}

static_assert(CU_VECTOR_ROWS % TILE_ROWS == 0, "queries of a turn begin with a tile");

static cudaError_t start_in_turn(cudaStream_t st, struct i16_attention o, const struct card &card)
{
    struct pf_attention_op a = o.a;
    cudaError_t e = cudaSuccess;
    for (int first = 0; e == cudaSuccess && first < a.rows; first += CU_VECTOR_ROWS) {
        o.a.rows = min(a.rows - first, (int)CU_VECTOR_ROWS);
        o.a.pos = a.pos + first;
        o.a.out = a.out + (size_t)first * a.n_head * o.kv.hd_v;
        e = start_few(st, o, card);
        o.s.q += (size_t)CU_VECTOR_ROWS * a.n_head * 2 * o.kv.hd_k;
        o.s.cq += (size_t)CU_VECTOR_ROWS * a.n_head * 2;
    }
    return e;
}

/* Whether rows are done sooner CU_VECTOR_ROWS at a time, their chunks over all of the GPU, than by thread blocks that
 * have some rows each. In microseconds: so many for a block of positions, and for what a turn takes besides. */
static bool in_turn_is_faster(const struct i16_attention &o, const struct card &card)
{
    const double per_block = 2.5, per_turn = 8;
    int64_t span = o.a.n_positions;
    if (o.a.window && o.a.window + o.a.rows < span)
        span = o.a.window + o.a.rows;
    int groups = ceil_div(n_tiles(o), 2), n_turns = ceil_div(o.a.rows, CU_VECTOR_ROWS);
    double blocks = (double)span / BLOCK, whole = blocks * per_block * ceil_div(groups, card.n_units),
           turns = n_turns * per_turn + blocks * per_block * groups / card.n_units;
    return turns < whole;
}

extern "C" cudaError_t pf_cu_latent_attention(cudaStream_t st, const struct pf_attention_op *a, int n_chunks,
                                              const struct cu_i16 *s, const struct cu_x *x,
                                              const struct cu_heads *heads, size_t shared_bytes, int *fault)
{
    struct i16_attention o = { *a, *a->kv, *s, n_chunks, *x, fault };
    struct card card;
    cudaError_t e = find_card(o.kv, shared_bytes, &card);
    if (e == cudaSuccess)
        e = pf_cu_latent_queries(st, a, s, heads);
    if (e != cudaSuccess)
        return e;
    if (a->rows <= CU_VECTOR_ROWS)
        return start_few(st, o, card);
    o.x.q = NULL;
    if (in_turn_is_faster(o, card))
        return start_in_turn(st, o, card);
    struct latent_attention f = { o, false };
    return card.two ? start<2, true>(st, f, 1, card.n_units) : start<1, true>(st, f, 1, card.n_units);
}
