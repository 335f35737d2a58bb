/* Attention of a prompt in whole numbers, by products of warpgroups: for GPUs of generation 9.0, heads of 64 and 128.
 *
 * A block of threads has 64 rows of a KV head for each of its two or three consumers, warpgroups that compute. One more
 * warpgroup, the producer, takes blocks of 64 positions from memory into the order in which a product reads them,
 * STAGES ahead. Each goes at its own pace: while one warpgroup weighs scores, the products of another run.
 *
 *     producer   keys, values, scales of block b+1 ---> of b+2 ..
 *                    | full    ^ empty                         a stage is: who goes on calls arrive(), who waits meet()
 *     consumer   scores -> weights -> weighted sums -> scores of the next ..
 *
 * Tiles in shared memory have lines of 128 bytes, whose eight pieces of 16 bytes are swapped by the line's number:
 * line n has its piece i at i ^ n % 8.
 *
 *     keys     [2 HK / 128][64 positions][128]     a position's upper plane, then its lower one
 *     values   [HV][2 planes][64 positions]        line 32 j + 8 i + c: element 32 j + 4 c + i, as acc lies (cu_i16.h)
 *     kept     [HV / 8][threads] of 16 bytes       sums of the chunks before, each thread's own
 *
 * Sums of whole numbers are exact, and everything else is done as in cu_i16_many.cu and in its order, for the same
 * bits. */
#include "kernels/cuda/cu_i16_running.h"

enum { GROUP = 4 * WARP, GROUP_ROWS = 64, STAGES = 3, TILE = BLOCK * LINE };

template <int HK, int HV> struct shape {
    enum {
        GROUPS = HK <= 64 && HV <= 64 ? 3 : 2,           /* consumers: as many as their registers leave room for */
        ROWS = GROUPS * GROUP_ROWS, THREADS = (GROUPS + 1) * GROUP,
        FULL = 1, EMPTY = FULL + STAGES * GROUPS,        /* barriers: of a stage and a warpgroup; of a stage */
        EACH = 65536 / THREADS / 8 * 8,                  /* registers that a kernel begins with */
        PRODUCER_EACH = GROUPS == 3 ? 56 : 72, CONSUMER_EACH = (EACH + (EACH - PRODUCER_EACH) / GROUPS) / 8 * 8,
        KEY_BYTES = 2 * HK * BLOCK, VALUE_BYTES = 2 * HV * BLOCK, SCALE_BYTES = 4 * BLOCK * 4,   /* sk, lsv, rsv */
        KEYS = 0, VALUES = KEYS + STAGES * KEY_BYTES, SCALES = VALUES + STAGES * VALUE_BYTES,
        WHOLE = SCALES + STAGES * SCALE_BYTES, KEPT = WHOLE + ROWS * 8, BYTES = KEPT + ROWS * HV * 4 + TILE_ALIGNMENT
    };
};

/* ---- The producer ------------------------------------------------------------------------------------------------ */

CU_INLINE uint32_t word(const uint4 &v, int i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* What a thread of the producer takes of a block, N times four pieces of 16 bytes: a square of words that it turns
 * over, so that rows of the one order become rows of the other. */
template <int N> struct squares {
    uint4 v[N][4];

    __device__ __forceinline__ void put(char *to, int n, int i) const
    {
        *(uint4 *)to = make_uint4(word(v[n][0], i), word(v[n][1], i), word(v[n][2], i), word(v[n][3], i));
    }
};

/* Square n of thread x of the keys: positions 32 b + 8 i + x % 8, elements 16 j .. of a plane. */
template <int HK> struct key_squares {
    enum { N = HK / 64 };
    struct squares<N> of;

    __device__ __forceinline__ void load(const char *keys, int x)
    {
        const char *at = keys + ((x / 16 % 2 * 2 + x / 4 % 2) * (HK / 4) + x / 32 * 4) * LINE +
                         x / 8 % 2 * PF_I16_PLANE + x % 4 * 16;
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int q = 0; q < 4; q++)
                of.v[n][q] = *(const uint4 *)(at + (16 * n + q) * LINE);
    }
    __device__ __forceinline__ void store(char *tiles, int x) const
    {
#pragma unroll
        for (int n = 0; n < N; n++) {
            int byte = x / 8 % 2 * HK + (x / 32 + 4 * n) * 16, position = x / 16 % 2 * 32 + x % 8;
            char *at = tiles + byte / LINE * TILE + position * LINE + (byte % LINE / 16 ^ x % 8) * 16;
#pragma unroll
            for (int i = 0; i < 4; i++)
                of.put(at + 8 * i * LINE, n, i);
        }
    }
};

/* Square n of thread x of the values: elements 32 j + 4 (x % 8) .., positions 16 b .. of a plane. */
template <int HV> struct value_squares {
    enum { N = HV / 64 };
    struct squares<N> of;

    __device__ __forceinline__ void load(const char *values, int x)
    {
        const char *at = values + (x / 16 % 4 * 4 * (HV / 16) + x / 64 * 2 + x / 4 % 2) * LINE +
                         x / 8 % 2 * PF_I16_PLANE + x % 4 * 16;
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int t = 0; t < 4; t++)
                of.v[n][t] = *(const uint4 *)(at + (4 * n + t * (HV / 16)) * LINE);
    }
    __device__ __forceinline__ void store(char *tile, int x) const
    {
        char *at = tile + (x / 64 * 32 + x % 8) * LINE + ((x / 8 % 2 * 4 + x / 16 % 4) ^ x % 8) * 16;
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                of.put(at + (64 * n + 8 * i) * LINE, n, i);
    }
};

template <int HK, int HV>
CU_INLINE void produce(const struct i16_attention &o, int hk, int begin, int end, char *shared)
{
    using S = shape<HK, HV>;
    int x = threadIdx.x % GROUP, stage = 0;
    const char *k = NULL, *v = NULL;
    for (int b = begin; b <= end; b++, k += pf_i16_key_bytes(HK) * BLOCK, v += pf_i16_value_bytes(HV) * BLOCK) {
        if (b == begin || b % N_BLOCKS == 0) {           /* a ring's chunks come round */
            k = i16_keys(o.kv, HK, b, hk);
            v = i16_values_of(o.kv, HV, b, hk);
        }
        struct key_squares<HK> keys;
        struct value_squares<HV> values;
        uint4 scales = {};
        keys.load(k, x);
        if (x < 3 * BLOCK / 4)
            scales = *(const uint4 *)(x < 2 * BLOCK / 4 ? k + S::KEY_BYTES + x * 16 :
                                                          v + S::VALUE_BYTES + (x - 2 * BLOCK / 4) * 16);
        __syncwarp();                                    /* barriers are for warps whose lanes are together */
        if (b - begin >= STAGES)
            meet(S::EMPTY + stage, S::THREADS);
        keys.store(shared + S::KEYS + stage * S::KEY_BYTES, x);
        values.load(v, x);
        if (x < 3 * BLOCK / 4)
            *(uint4 *)(shared + S::SCALES + stage * S::SCALE_BYTES + x * 16) = scales;
        values.store(shared + S::VALUES + stage * S::VALUE_BYTES, x);
        show_tiles();
        __syncwarp();
#pragma unroll
        for (int i = 0; i < S::GROUPS; i++)
            arrive(S::FULL + stage * S::GROUPS + i, 2 * GROUP);
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
}

/* ---- The consumers ----------------------------------------------------------------------------------------------- */

/* Scores of 64 positions, in halves. */
template <int HK>
CU_INLINE void scores(struct i16_sums (&s)[2], const struct i16_queries (&q)[HK / 32], const char *keys)
{
    group_begin();
#pragma unroll
    for (int i = 0; i < HK / 32; i++) {
        int up = 32 * i, low = HK + 32 * i;
        struct group_lines upper = lines_of(keys + up / LINE * TILE, up % LINE),
                           lower = lines_of(keys + low / LINE * TILE, low % LINE);
        group_product<true>(s[0].upper, s[1].upper, q[i].upper, upper, i > 0);
        group_product<true>(s[0].middle, s[1].middle, q[i].lower, upper, i > 0);
        group_product<true>(s[0].middle, s[1].middle, q[i].upper, lower, true);
    }
    group_end(s[0].upper, s[1].upper, s[0].middle, s[1].middle);
}

/* Weighted sums of 64 elements. */
CU_INLINE void value_sums(struct i16_sums (&s)[2], const struct i16_weights &w, const char *values)
{
    group_begin();
#pragma unroll
    for (int i = 0; i < 2; i++) {
        struct group_lines upper = lines_of(values, 32 * i), lower = lines_of(values, 64 + 32 * i);
        group_product<false>(s[0].upper, s[1].upper, w.upper[i], upper, i > 0);
        group_product<false>(s[0].middle, s[1].middle, w.lower[i], upper, i > 0);
        group_product<false>(s[0].middle, s[1].middle, w.upper[i], lower, true);
    }
    group_end(s[0].upper, s[1].upper, s[0].middle, s[1].middle);
}

struct span {
    int begin, end;                      /* blocks, the last one included */
};

/* A warpgroup's rows. */
template <int HK> struct rows {
    struct i16_row row[2];
    float cq[2];
    struct i16_queries q[HK / 32];

    __device__ __forceinline__ void load(const struct i16_attention &o)
    {
        const uint4 *from[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            size_t at = (size_t)row[r].token * o.a.n_head + row[r].head;
            from[r] = (const uint4 *)(o.s.q + at * 2 * HK) + threadIdx.x % 4;
            cq[r] = o.s.cq[at];
        }
#pragma unroll
        for (int i = 0; i < HK / 32; i++)
            q[i] = i16_pair(from[0][4 * i], from[1][4 * i]);
    }
};

template <int HK>
CU_INLINE void weigh(const struct rows<HK> &of, const char *keys, const float *sk, int b, struct i16_weights &w)
{
    struct i16_sums s[2];
    float y[8][4];
    scores<HK>(s, of.q, keys);
#pragma unroll
    for (int half = 0; half < 2; half++)
        i16_scores(s[half], sk + 32 * half, sk + BLOCK + 32 * half, of.cq, y + 4 * half);
    i16_weigh_block(y, sk + 2 * BLOCK, of.row, b * BLOCK, threadIdx.x % WARP, w);
}

template <int HV>
CU_INLINE void add_values(struct running<HV> &to, const struct i16_weights &w, const char *values)
{
    float gain[2];
    to.enter(w, gain);
#pragma unroll
    for (int j = 0; j < HV / 64; j++) {
        struct i16_sums s[2];
        value_sums(s, w, values + j * TILE);
        to.add(s[0], 2 * j, gain);
        to.add(s[1], 2 * j + 1, gain);
    }
}

/* Blocks of `all` come; the warpgroup's rows see those of `mine`. */
template <int HK, int HV>
CU_INLINE void compute(const struct i16_attention &o, int hk, int first_row, struct rows<HK> &of, struct span all,
                       struct span mine, int group, char *shared)
{
    using S = shape<HK, HV>;
    float2 *whole = (float2 *)(shared + S::WHOLE) + threadIdx.x / WARP * 16 + threadIdx.x % WARP / 4;
    float4 *kept = (float4 *)(shared + S::KEPT) + threadIdx.x;
    struct running<HV> sums;
    int stage = 0;
    of.load(o);
    whole[0] = whole[8] = make_float2(-INFINITY, 0);
    sums.clear_chunk();
#pragma unroll 1
    for (int b = all.begin; b <= all.end; b++) {
        meet(S::FULL + stage * S::GROUPS + group, 2 * GROUP);
        if (b >= mine.begin && b <= mine.end) {
            struct i16_weights w;
            weigh(of, shared + S::KEYS + stage * S::KEY_BYTES,
                  (const float *)(shared + S::SCALES + stage * S::SCALE_BYTES), b, w);
            add_values(sums, w, shared + S::VALUES + stage * S::VALUE_BYTES);
        }
        if (b + STAGES <= all.end)
            arrive(S::EMPTY + stage, S::THREADS);
        if (b == mine.end || (b % N_BLOCKS == N_BLOCKS - 1 && b >= mine.begin && b < mine.end))
            sums.template end_chunk<S::ROWS * 2>(o, hk, first_row, of.cq, whole, kept, b == mine.end);
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
}

/* ---- The kernel -------------------------------------------------------------------------------------------------- */

/* Which blocks rows of so many warps see. */
CU_INLINE struct span span_of(const struct span *warps, int n)
{
    struct span s = warps[0];
    for (int i = 1; i < n; i++)
        s = { min(s.begin, warps[i].begin), max(s.end, warps[i].end) };
    return { uniform(s.begin), uniform(s.end) };
}

/* blockIdx: KV head, 64 rows of it for each consumer; the last ones, which see most, first. */
template <int HK, int HV>
static __global__ void __launch_bounds__(shape<HK, HV>::THREADS, 1)
    by_groups(const __grid_constant__ struct i16_attention o)
{
    using S = shape<HK, HV>;
    BLOCK_MEMORY(float4, memory);
    __shared__ struct span spans[S::ROWS / 16];
    char *shared = aligned_tiles((char *)memory);
    int lane = threadIdx.x % WARP, warp = uniform(threadIdx.x / WARP), n_warps = S::ROWS / 16, hk = blockIdx.x,
        first_row = (gridDim.y - 1 - blockIdx.y) * S::ROWS + warp % n_warps * 16 + lane / 4;
    wait_turn();
    struct rows<HK> of = { { i16_row_of(o, hk, first_row), i16_row_of(o, hk, first_row + 8) } };
    int begin = lanes_least(min(of.row[0].first, of.row[1].first)) / BLOCK,
        end = -lanes_least(min(-of.row[0].pos, -of.row[1].pos)) / BLOCK;   /* of no rows: from far on, to block 0 */
    if (warp < n_warps && lane == 0)
        spans[warp] = { begin, end };
    __syncthreads();
    struct span all = span_of(spans, n_warps);
    if (warp >= n_warps) {
        fewer_registers<S::PRODUCER_EACH>();
        produce<HK, HV>(o, hk, all.begin, all.end, shared);
    } else {
        more_registers<S::CONSUMER_EACH>();
        compute<HK, HV>(o, hk, first_row, of, all, span_of(spans + warp / 4 * 4, 4), warp / 4, shared);
    }
}

template <int HK, int HV> static cudaError_t start(cudaStream_t st, const struct i16_attention &o)
{
    enum { BYTES = shape<HK, HV>::BYTES };
    cudaError_t e = allow_bytes(by_groups<HK, HV>, BYTES);
    dim3 grid(o.kv.n_kv_head, ceil_div((int64_t)o.a.rows * (o.a.n_head / o.kv.n_kv_head), shape<HK, HV>::ROWS));
    return e != cudaSuccess ? e : launch_early(by_groups<HK, HV>, grid, shape<HK, HV>::THREADS, BYTES, st, o);
}

extern "C" bool pf_cu_i16_takes_groups(const struct i16_attention *o, size_t shared_bytes)
{
    size_t bytes = o->kv.hd_k == 64 ? shape<64, 64>::BYTES : o->kv.hd_k == 128 ? shape<128, 128>::BYTES : SIZE_MAX;
    return o->kv.hd_k == o->kv.hd_v && bytes <= shared_bytes && has_groups(by_groups<64, 64>);
}

extern "C" cudaError_t pf_cu_i16_groups(cudaStream_t st, const struct i16_attention *o)
{
    return o->kv.hd_k == 64 ? start<64, 64>(st, *o) : start<128, 128>(st, *o);
}
