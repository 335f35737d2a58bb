/* Attention of a prompt in whole numbers: 64 rows of a KV head against blocks of 64 positions in shared memory, a warp
 * 16 rows. While a block is computed, the next is copied; with two stages both keys and values, with one the keys as
 * soon as scores are made, the values when they are summed.
 *
 *     per block     scores of 64 positions in registers, weights in registers; sums of values into acc
 *     per chunk     acc enters the whole, which lies in the output until the last chunk
 *
 * A warp leaves out blocks that its rows do not see. Queries stay in registers up to heads of 128, else they are read
 * from shared memory. */
#include "kernels/cuda/cu_i16_running.h"

enum { WARPS = 4, THREADS = WARPS * WARP, ROWS = 16 * WARPS };

template <int HK, int HV, int STAGES> struct shape {
    enum {
        KEY_BYTES = LINE * HK + 3 * BLOCK * 4, VALUE_BYTES = LINE * HV,      /* sk, lsv, rsv lie behind the keys */
        Q_SHARED = HK > 128, Q_BYTES = Q_SHARED ? ROWS * 2 * HK : 0, WHOLE_BYTES = ROWS * 8,
        BYTES = STAGES * (KEY_BYTES + VALUE_BYTES) + Q_BYTES + WHOLE_BYTES,
        PER_UNIT = HK <= 64 && HV <= 64 ? 3 : 2      /* blocks that registers are shared out for */
    };
};

/* Starts copying a block's keys and all its scales, or its values; THREADS / 8 lines at once. */
template <int HD>
CU_INLINE void copy_keys(char *to, const char *from, const char *rsv)
{
    int line = threadIdx.x / 8, piece = threadIdx.x % 8, scales = threadIdx.x * 16;
    char *at = to + line * LINE + (piece ^ line % 4 * 2) * 16;
#pragma unroll
    for (int i = 0; i < LINE * HD; i += THREADS * 16)
        __pipeline_memcpy_async(at + i, from + i + threadIdx.x * 16, 16);
    if (scales < 3 * BLOCK * 4)
        __pipeline_memcpy_async(to + LINE * HD + scales,
                                scales < 2 * BLOCK * 4 ? from + LINE * HD + scales : rsv + scales - 2 * BLOCK * 4, 16);
}

/* Where THREADS / 8 lines are whole fourths of the spread's period, a thread's place in a line differs from its first
 * one by what i alone says. */
template <int HD>
CU_INLINE void copy_values(char *to, const char *from)
{
    enum { PER = HD / 16, STEP = THREADS / 8 };              /* lines that are spread alike; lines copied at once */
    int first = threadIdx.x / 8, piece = threadIdx.x % 8, at = (piece ^ first / PER % 4 * 2) * 16;
#pragma unroll
    for (int i = 0; i < HD; i += STEP) {
        int spread = STEP % PER == 0 ? at ^ i / PER % 4 * 32 : (piece ^ (first + i) / PER % 4 * 2) * 16;
        __pipeline_memcpy_async(to + (first + i) * LINE + spread, from + i * LINE + threadIdx.x * 16, 16);
    }
}

/* Blocks on their way into shared memory, one after the other. */
template <int HK, int HV, int STAGES> struct blocks {
    using S = shape<HK, HV, STAGES>;
    const struct i16_attention &o;
    const char *k, *v;                   /* the next block */
    int  hk, next, end, stage;           /* stage: where it goes; keys and values count on together */
    char *keys, *values;

    /* Where block `next` lies: chunk by chunk, since a ring's chunks come round. */
    __device__ __forceinline__ void find(void)
    {
        k = i16_keys(o.kv, HK, next, hk);
        v = i16_values_of(o.kv, HV, next, hk);
    }
    __device__ __forceinline__ void send_keys(void)
    {
        if (next <= end)
            copy_keys<HK>(keys + stage * S::KEY_BYTES, k, v + S::VALUE_BYTES);
        __pipeline_commit();
    }
    /* Behind its keys. */
    __device__ __forceinline__ void send_values(void)
    {
        if (next <= end)
            copy_values<HV>(values + stage * S::VALUE_BYTES, v);
        __pipeline_commit();
        k += pf_i16_key_bytes(HK) * BLOCK;
        v += pf_i16_value_bytes(HV) * BLOCK;
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        if (++next % N_BLOCKS == 0 && next <= end)
            find();
    }
};

/* A lane's queries: in registers, or where they lie in shared memory. */
template <int HK, bool SHARED> struct queries {
    struct i16_queries v[HK / 32];
    __device__ __forceinline__ void load(const uint4 *const (&from)[2], char *)
    {
#pragma unroll
        for (int s = 0; s < HK / 32; s++)
            v[s] = i16_pair(from[0][4 * s], from[1][4 * s]);
    }
    __device__ __forceinline__ struct i16_queries step(int s) const { return v[s]; }
};

/* [row][2 HK], neighbouring rows with their 64 bytes swapped where they are an even number: for all banks. */
template <int HK> struct queries<HK, true> {
    char *at;                            /* the lane's, of row g of the warp's */
    int   swap;
    __device__ __forceinline__ void load(const uint4 *const (&from)[2], char *to)
    {
        int lane = threadIdx.x % WARP;
        at = to + (threadIdx.x / WARP * 16 + lane / 4) * 2 * HK + lane % 4 * 16;
        swap = HK % 64 ? 0 : lane / 4 % 2;
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int s = 0; s < HK / 32; s++)
                *(uint4 *)(at + 16 * i * HK + 64 * (s ^ swap)) = from[i][4 * s];
        __syncwarp();
    }
    __device__ __forceinline__ struct i16_queries step(int s) const
    {
        const char *p = at + 64 * (s ^ swap);
        return i16_pair(*(const uint4 *)p, *(const uint4 *)(p + 16 * HK));
    }
};

/* Adds the values of a block, weighted. */
template <int HV>
CU_INLINE void add_values(struct running<HV> &to, const struct i16_weights &w, const char *values, int lane,
                          const float (&gain)[2])
{
    const char *at = values + (lane % 4 * (HV / 16) + lane / 16) * LINE;
#pragma unroll
    for (int j = 0; j < HV / 32; j++) {
        struct i16_sums s;
        i16_values(s, w, at + 2 * j * LINE, i16_spread(lane), 4 * (HV / 16) * LINE);
        to.add(s, j, gain);
    }
}

/* Scores of a block, and its weights. */
template <int HK, class Q>
CU_INLINE void weigh_block(const Q &q, const char *keys, const struct i16_row (&row)[2],
                           const float (&cq)[2], int p0, int lane, struct i16_weights &w)
{
    const float *sk = (const float *)(keys + LINE * HK);
    float y[8][4];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const char *at = keys + ((half * 2 + lane / 16) * (HK / 4) + lane % 4) * LINE;
        struct i16_sums s = {};
#pragma unroll
        for (int i = 0; i < HK / 32; i++) {
            struct i16_queries a = q.step(i);
            i16_add<true>(s, a.upper, a.lower, at + i * 8 * LINE, i16_spread(lane), 4 * LINE);
        }
        i16_scores(s, sk + 32 * half, sk + BLOCK + 32 * half, cq, y + 4 * half);
    }
    i16_weigh_block(y, sk + 2 * BLOCK, row, p0, lane, w);
}

/* blockIdx: KV head, 64 rows of it; the last ones, which see most, first. */
template <int HK, int HV, int STAGES>
static __global__ void __launch_bounds__(THREADS, shape<HK, HV, STAGES>::PER_UNIT)
    many(const __grid_constant__ struct i16_attention o)
{
    using S = shape<HK, HV, STAGES>;
    BLOCK_MEMORY(float4, shared);
    __shared__ int begins[WARPS], ends[WARPS];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, hk = blockIdx.x,
        first_row = (gridDim.y - 1 - blockIdx.y) * ROWS + warp * 16 + lane / 4;
    enum { VALUE_BYTES = S::VALUE_BYTES };
    char *keys = (char *)shared, *values = keys + STAGES * S::KEY_BYTES;
    wait_turn();
    struct i16_row row[2] = { i16_row_of(o, hk, first_row), i16_row_of(o, hk, first_row + 8) };
    int my_begin = lanes_least(min(row[0].first, row[1].first)) / BLOCK,
        my_end = -lanes_least(min(-row[0].pos, -row[1].pos)) / BLOCK;      /* of no rows: from far on, to block 0 */
    if (lane == 0) {
        begins[warp] = my_begin;
        ends[warp] = my_end;
    }
    __syncthreads();
    int begin = begins[0], end = ends[0];
#pragma unroll
    for (int i = 1; i < WARPS; i++) {
        begin = min(begin, begins[i]);
        end = max(end, ends[i]);
    }
    struct blocks<HK, HV, STAGES> ahead = { o, NULL, NULL, hk, begin, end, 0, keys, values };
    if (begin <= end)
        ahead.find();
    ahead.send_keys();
    ahead.send_values();

    struct queries<HK, S::Q_SHARED> q;
    const uint4 *from[2];
    float2 *whole = (float2 *)(values + STAGES * VALUE_BYTES + S::Q_BYTES) + warp * 16 + lane / 4;
    float cq[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        size_t at = (size_t)row[r].token * o.a.n_head + row[r].head;
        from[r] = (const uint4 *)(o.s.q + at * 2 * HK) + lane % 4;
        cq[r] = o.s.cq[at];
        whole[8 * r] = make_float2(-INFINITY, 0);
    }
    q.load(from, values + STAGES * VALUE_BYTES);

    struct running<HV> sums;
    sums.clear_chunk();
#pragma unroll 1
    for (int b = begin; b <= end; b++) {
        int stage = STAGES > 1 ? ahead.stage ^ 1 : 0;        /* block b's: the one that was sent last */
        const char *k = keys + stage * S::KEY_BYTES, *v = values + stage * VALUE_BYTES;
        bool mine = b >= my_begin && b <= my_end;
        struct i16_weights w;
        __pipeline_wait_prior(STAGES == 1);
        __syncthreads();
        if (STAGES > 1) {
            ahead.send_keys();
            ahead.send_values();
        }
        if (mine)
            weigh_block<HK>(q, k, row, cq, b * BLOCK, lane, w);
        if (STAGES == 1) {
            __syncthreads();
            ahead.send_keys();
            __pipeline_wait_prior(1);
            __syncthreads();
        }
        if (mine) {
            float gain[2];
            sums.enter(w, gain);
            add_values(sums, w, v, lane, gain);
            if (b == my_end || b % N_BLOCKS == N_BLOCKS - 1)
                sums.template end_chunk<0>(o, hk, first_row, cq, whole, NULL, b == my_end);
        }
        if (STAGES == 1) {
            __syncthreads();
            ahead.send_values();
        }
    }
}

template <int HK, int HV, int STAGES>
static cudaError_t start(cudaStream_t st, const struct i16_attention &o)
{
    using S = shape<HK, HV, STAGES>;
    cudaError_t e = allow_bytes(many<HK, HV, STAGES>, S::BYTES);
    dim3 grid(o.kv.n_kv_head, ceil_div((int64_t)o.a.rows * (o.a.n_head / o.kv.n_kv_head), ROWS));
    return e != cudaSuccess ? e : launch_early(many<HK, HV, STAGES>, grid, THREADS, S::BYTES, st, o);
}

struct kind {
    int    hd_k, hd_v;
    size_t bytes;
    cudaError_t (*start)(cudaStream_t st, const struct i16_attention &o);
};

#define KIND(hk, hv, stages) { hk, hv, shape<hk, hv, stages>::BYTES, start<hk, hv, stages> }

/* The first one that fits. */
static const struct kind *kind_of(const struct i16_attention *o, size_t shared_bytes)
{
    static const struct kind kinds[] = { KIND(64, 64, 2),   KIND(96, 96, 2),   KIND(128, 128, 2), KIND(128, 128, 1),
                                         KIND(192, 128, 1), KIND(192, 192, 1), KIND(256, 256, 1) };
    for (const struct kind &k : kinds)
        if (k.hd_k == o->kv.hd_k && k.hd_v == o->kv.hd_v && k.bytes <= shared_bytes)
            return &k;
    return NULL;
}

extern "C" bool pf_cu_i16_takes_many(const struct i16_attention *o, size_t shared_bytes)
{
    return kind_of(o, shared_bytes) != NULL;
}

extern "C" cudaError_t pf_cu_i16_many(cudaStream_t st, const struct i16_attention *o, size_t shared_bytes)
{
    return kind_of(o, shared_bytes)->start(st, *o);
}
