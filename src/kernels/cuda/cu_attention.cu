/* Attention, folded over chunks of 256 absolute positions as kernels.h defines it.
 *
 *     few rows   a block per (two heads, row, chunk) leaves the chunk's maximum, sum and weighted values; the last
 *                of a row's blocks to end folds the chunks in order
 *     one row    the same blocks norm and rotate their queries and the new key first, and keep key and value; of gated
 *                attention they deal out queries and gates, too
 *     many rows  tiles of rows share keys and values in shared memory (cu_attention_tile.cu); where their heads do not
 *                fit, and where keys are chosen or stand for blocks of positions, a block per (HEADS heads, row) goes
 *                over the chunks itself
 *
 * A cached latent has kernels of its own (cu_latent.cu), for lengths that they know.
 *
 * In a chunk a thread owns a dot of a query and a key, and an element of the weighted sum of values, so that each runs
 * in its fixed order. Query heads that share the KV head go together, SPLIT_HEADS or HEADS at a time. */
#include <cuda_pipeline.h>

#include "kernels/cuda/cu_attention.h"
#include "kernels/cuda/cu_heads.h"

enum { HEADS = 8, THREADS = 256, SPLIT_ROWS = CU_VECTOR_ROWS, SPLIT_HEADS = 2, SPLIT_THREADS = 512 };

/* What a block keeps of its heads in shared memory. */
struct sums {
    float *q;          /* [heads][hd_k] */
    float *weight;     /* [heads][256] */
    float *mc, *zc;    /* [heads] */
};

/* Weights, maximum and sum of one chunk, for n_heads heads: first a thread a dot, then a warp a head. key(p) is where
 * the key of position p lies. Only whole groups of 32 positions around [lo, hi) are looked at. */
template <class K>
CU_INLINE void chunk_weights(const struct attention &o, K key, int lo, int hi, int n_heads, const struct sums &s)
{
    int lo32 = lo & ~31, n = ((hi + 31) & ~31) - lo32, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x; i < n_heads * n; i += blockDim.x) {
        int h = i / n, p = lo32 + i % n;
        bool seen = p >= lo && p < hi;
        s.weight[h * CHUNK + p] = seen ? dot(s.q + h * o.kv.hd_k, key(p), o.kv.hd_k) * o.a.scale : -INFINITY;
    }
    __syncthreads();
#pragma unroll 1
    for (int h = warp; h < n_heads; h += blockDim.x / WARP) {
        float top = -INFINITY, sum = 0;
#pragma unroll 4
        for (int i = lo32 + lane; i < hi; i += WARP)
            top = s.weight[h * CHUNK + i] > top ? s.weight[h * CHUNK + i] : top;
        top = warp_max(top);
#pragma unroll 4
        for (int i = lo32 + lane; i < hi; i += WARP) {
            float e = pf_expf(s.weight[h * CHUNK + i] - top);
            s.weight[h * CHUNK + i] = e;
            sum = sum + e;
        }
        sum = warp_fold(sum);
        if (lane == 0) {
            s.mc[h] = top;
            s.zc[h] = sum;
        }
    }
    __syncthreads();
}

/* The weighted sums of an element of the values for N heads, of which n_heads are there. value(p): the
 * element of position p. */
template <int N, class V>
CU_INLINE void chunk_values(V value, int lo, int hi, int n_heads, const float *weight, float (&ac)[N])
{
#pragma unroll
    for (int h = 0; h < N; h++)
        ac[h] = 0;
#pragma unroll 8
    for (int p = lo; p < hi; p++) {
        float x = value_of(loaded(value(p)));
#pragma unroll
        for (int h = 0; h < N; h++)
            if (h < n_heads)
                ac[h] = fmaf(weight[h * CHUNK + p], x, ac[h]);
    }
}

CU_INLINE void load_queries(const struct attention &o, int row, int head, int n_heads, float *q)
{
#pragma unroll 1
    for (int i = threadIdx.x; i < n_heads * o.kv.hd_k; i += blockDim.x) {
        float v = o.a.q[((size_t)row * o.a.n_head + head) * o.kv.hd_k + i];
        q[i] = o.a.row_scale ? v * o.a.row_scale[row] : v;
    }
}

CU_INLINE struct sums carve(float *shared, int heads, int hd_k)
{
    return { shared, shared + heads * hd_k, shared + heads * (hd_k + CHUNK), shared + heads * (hd_k + CHUNK + 1) };
}

CU_HOST_FN int sums_bytes(int heads, int hd_k)
{
    return (heads * (hd_k + CHUNK + 2) * (int)sizeof(float) + 15) / 16 * 16;
}

/* A block's memory: the sums, then a chunk's values, then its keys, whose rows lie so that eight lanes read
 * eight of them at once, or one key. */
enum { KEY_PAD = 16 };

static inline size_t split_bytes(const struct attention &o, int heads)
{
    return sums_bytes(heads, o.kv.hd_k) + (o.value_bytes ? o.value_bytes + 16 : 0) +
           (o.key_bytes ? CHUNK * (o.key_bytes + KEY_PAD) : o.own_bytes);
}

/* Starts copying keys lo to hi - 1, each a multiple of 16 bytes. */
CU_INLINE void fetch_keys(char *to, const char *from, int bytes, int lo, int hi)
{
    int per = bytes / 16;
#pragma unroll 2
    for (int i = lo * per + threadIdx.x; i < hi * per; i += blockDim.x)
        __pipeline_memcpy_async(to + i / per * (bytes + KEY_PAD) + i % per * 16, from + (size_t)i * 16, 16);
    __pipeline_commit();
}

/* Starts copying bytes from any address to shared memory, from a multiple of 16 on; where they will lie. */
CU_INLINE const char *fetch_values(char *to, const char *from, int bytes)
{
    int skip = (int)((uintptr_t)from & 15);
#pragma unroll 2
    for (int i = 16 * threadIdx.x; i < skip + bytes; i += 16 * blockDim.x)
        __pipeline_memcpy_async(to + i, from - skip + i, 16);
    __pipeline_commit();
    return to + skip;
}

/* Goes on with the weighted sum of an element of the values, as many loads ahead of it, as long
 * as there are so many. */
template <int AHEAD, class P>
CU_INLINE void add_values(P v, int stride, int &p, int hi, const float *weight, float &sum)
{
#pragma unroll 1
    for (; p + AHEAD <= hi; p += AHEAD) {
        decltype(loaded(v)) x[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            x[i] = loaded(v + (size_t)(p + i) * stride);
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            sum = fmaf(weight[p + i], value_of(x[i]), sum);
    }
}

template <class P>
CU_INLINE float chunk_value(P v, int stride, int lo, int hi, const float *weight)
{
    int p = lo;
    float sum = 0;
    add_values<16>(v, stride, p, hi, weight, sum);
    add_values<1>(v, stride, p, hi, weight, sum);
    return sum;
}

/* Folds the chunks of heads [head, head + n_heads) of a row. Every thread goes over the same maxima and sums. */
CU_INLINE void fold_chunks(const struct attention &o, int row, int head, int n_heads, int begin, int end)
{
    int stride = o.kv.hd_v + 2;
#pragma unroll 1
    for (int i = threadIdx.x; i < n_heads * o.kv.hd_v; i += blockDim.x) {
        int h = head + i / o.kv.hd_v, d = i % o.kv.hd_v;
        const float *part = o.part + ((size_t)row * o.a.n_head + h) * o.n_chunks * stride;
        float m = -INFINITY, z = 0, acc = 0;
#pragma unroll 2
        for (int c = begin; c <= end; c++) {
            const float *p = part + (size_t)c * stride;
            float mc = __ldcg(p + o.kv.hd_v), zc = __ldcg(p + o.kv.hd_v + 1), ac = __ldcg(p + d), top = m > mc ? m : mc;
            float a = pf_expf(m - top), b = pf_expf(mc - top);
            z = fmaf(z, a, zc * b);
            acc = fmaf(acc, a, ac * b);
            m = top;
        }
        float y = acc * last_factor(o.a, h, m, z);
        o.a.out[((size_t)row * o.a.n_head + h) * o.kv.hd_v + d] = y;
        if (o.x.q)
            quantise_block(y, &o.x, o.a.n_head * o.kv.hd_v, row, (h * o.kv.hd_v + d) / 32, o.fault);
    }
}

/* Whether this block is the last of n that count here; the count is then back at 0. What the
 * others wrote can be seen. */
CU_INLINE bool last_of(int n, int *count)
{
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd(count, 1) == n - 1;
        if (last)
            *count = 0;
        __threadfence();
    }
    __syncthreads();
    return last;
}

/* A block of split: a chunk of KV head hk for n_heads heads from `head` on. It sees [lo, hi) of the chunk. */
struct piece {
    int  hk, c, row, pos, first, lo, hi, head, n_heads;
    bool leads;                   /* of the blocks of a KV head and chunk the first */
};

CU_INLINE struct piece piece_of(const struct attention &o, int n_groups)
{
    int group = o.a.n_head / o.kv.n_kv_head, h0 = blockIdx.x % n_groups * SPLIT_HEADS, hk = blockIdx.x / n_groups;
    int pos = *(const volatile int32_t *)&o.a.pos[blockIdx.z], first = first_visible(o.a, pos),
        start = blockIdx.y * CHUNK;
    return { hk, (int)blockIdx.y, (int)blockIdx.z, pos, first, max(first - start, 0), min(pos + 1 - start, (int)CHUNK),
             hk * group + h0, min((int)SPLIT_HEADS, group - h0), h0 == 0 };
}

/* Where copies of keys and values lie in shared memory: element d of position p of the chunk is number d
 * past p times the stride. */
template <class P>
struct copies {
    char *keys;
    P     v;
};

/* Starts copying what is to be copied of positions [p.lo, end). */
template <class P>
CU_INLINE struct copies<P> fetch_chunk(const struct attention &o, const struct piece &p, int end, float *shared)
{
    size_t at = pf_kv_row(&o.kv, p.c * CHUNK, p.hk);
    P k = element_at<P>(o.kv.k, at * o.kv.hd_k), v = element_at<P>(o.kv.v, at * o.v_stride);
    char *values = (char *)shared + sums_bytes(SPLIT_HEADS, o.kv.hd_k),
        *keys = values + (o.value_bytes ? o.value_bytes + 16 : 0);
    if (o.key_bytes)
        fetch_keys(keys, byte_at(k), o.key_bytes, p.lo, end);
    if (o.value_bytes)
        v = element_at<P>(fetch_values(values, byte_at(v + (size_t)p.lo * o.kv.hd_v),
                                       bytes_of<P>((end - p.lo) * o.kv.hd_v)) -
                          bytes_of<P>(p.lo * o.kv.hd_v), 0);
    return { keys, v };
}

/* own: the position whose key is in shared memory even if the others are not; or -1. */
template <class P>
CU_INLINE void split_chunk(const struct attention &o, const struct piece &p, const struct copies<P> &from, int own,
                           const struct sums &s)
{
    size_t at = pf_kv_row(&o.kv, p.c * CHUNK, p.hk), stride = (size_t)o.n_chunks * (o.kv.hd_v + 2);
    float *part = o.part + (((size_t)p.row * o.a.n_head + p.head) * o.n_chunks + p.c) * (o.kv.hd_v + 2);
    P k = element_at<P>(o.kv.k, at * o.kv.hd_k);
    if (o.key_bytes) {
        o.value_bytes ? __pipeline_wait_prior(1) : __pipeline_wait_prior(0);
        chunk_weights(o, [&](int i) { return element_at<P>(from.keys + i * (o.key_bytes + KEY_PAD), 0); }, p.lo, p.hi,
                      p.n_heads, s);
    } else {
        chunk_weights(o, [&](int i) { return i == own ? element_at<P>(from.keys, 0) : k + (size_t)i * o.kv.hd_k; },
                      p.lo, p.hi, p.n_heads, s);
    }
    __pipeline_wait_prior(0);
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x; i < p.n_heads * o.kv.hd_v; i += SPLIT_THREADS) {
        int h = i / o.kv.hd_v, d = i % o.kv.hd_v;
        part[h * stride + d] = chunk_value(from.v + d, o.v_stride, p.lo, p.hi, s.weight + h * CHUNK);
    }
    if (threadIdx.x < p.n_heads) {
        part[threadIdx.x * stride + o.kv.hd_v] = s.mc[threadIdx.x];
        part[threadIdx.x * stride + o.kv.hd_v + 1] = s.zc[threadIdx.x];
    }
}

/* Whoever is the last of a row's blocks folds its chunks. */
CU_INLINE void fold_if_last(const struct attention &o, const struct piece &p)
{
    int n = p.pos / CHUNK - p.first / CHUNK + 1;
    __syncthreads();
    if (n == 1 || last_of(n, &o.count[p.row * gridDim.x + blockIdx.x]))
        fold_chunks(o, p.row, p.head, p.n_heads, p.first / CHUNK, p.pos / CHUNK);
}

/* blockIdx: KV head and SPLIT_HEADS of its heads, chunk, row. A thread that reads its key itself touches a line for
 * every 16 bytes: keys and values go to shared memory where they fit. */
template <class P>
static __global__ void __launch_bounds__(SPLIT_THREADS, 1) split(const __grid_constant__ struct attention o,
                                                                 int n_groups)
{
    BLOCK_MEMORY(float, shared);
    wait_turn();
    struct sums s = carve(shared, SPLIT_HEADS, o.kv.hd_k);
    struct piece p = piece_of(o, n_groups);
    if (p.lo >= p.hi)
        return;
    struct copies<P> from = fetch_chunk<P>(o, p, p.hi, shared);
    load_queries(o, p.row, p.head, p.n_heads, s.q);
    split_chunk(o, p, from, -1, s);
    fold_if_last(o, p);
}

/* One row's attention, split over the context, with what heads does (cu_rows.cu): queries are normed and rotated on
 * their way to shared memory, and so is the position's own key; one block of each KV head leaves key and value where
 * they are kept. Keys and values of older steps are copied before the kernel's turn; where there is no room for keys,
 * they are read in place. */
template <class P>
static __global__ void __launch_bounds__(SPLIT_THREADS, 1) split_heads(const __grid_constant__ struct attention o,
                                                                       const __grid_constant__ struct cu_heads heads,
                                                                       int n_groups)
{
    BLOCK_MEMORY(float, shared);
    struct sums s = carve(shared, SPLIT_HEADS, o.kv.hd_k);
    struct piece p = piece_of(o, n_groups);
    if (p.lo >= p.hi) {
        wait_turn();
        return;
    }
    int own = p.pos - p.c * CHUNK, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    int own_at = o.key_bytes ? own * (o.key_bytes + KEY_PAD) / (o.key_bytes / o.kv.hd_k) : 0;
    struct copies<P> from = fetch_chunk<P>(o, p, min(p.hi, own), shared);
    size_t at = pf_kv_row(&o.kv, p.pos, p.hk);
    wait_turn();
    if (warp < p.n_heads) {
        prepare_head(heads, 0, p.head + warp, 0, s.q + warp * o.kv.hd_k);
#pragma unroll 1
        for (int i = lane; o.a.row_scale && i < o.kv.hd_k; i += WARP)
            s.q[warp * o.kv.hd_k + i] *= o.a.row_scale[0];
        if (own < CHUNK)
            deal_beside(heads, p.head + warp, 0);
    } else if (warp == SPLIT_HEADS && own < CHUNK) {
        prepare_head(heads, 1, p.hk, 0, s.weight);               /* own < CHUNK: the position is this chunk's */
#pragma unroll 1
        for (int i = lane; i < o.kv.hd_k; i += WARP) {
            put(o.kv.type, from.keys, own_at + i, s.weight[i]);
            if (p.leads)
                put(o.kv.type, o.kv.k, at * o.kv.hd_k + i, s.weight[i]);
        }
    } else if (warp == SPLIT_HEADS + 1 && own < CHUNK) {
        const float *v = heads.v + p.hk * o.kv.hd_v;
#pragma unroll 1
        for (int i = lane; i < o.kv.hd_v; i += WARP) {
            put(o.kv.type, (void *)byte_at(from.v), own * o.kv.hd_v + i, v[i]);
            if (p.leads)
                put(o.kv.type, o.kv.v, at * o.kv.hd_v + i, v[i]);
        }
    }
    __syncthreads();
    split_chunk(o, p, from, own, s);
    fold_if_last(o, p);
}

/* What a row sees of the keys of positions, or of those of blocks: [first, end), or so many of a list's. */
struct seen {
    int            first, end, n_seen;
    const int32_t *list;
};

CU_INLINE struct seen seen_of(const struct attention &o, int row, int kv_head, bool blocks)
{
    int pos = o.a.pos[row], n = blocks ? (pos + 1) / o.a.ratio : pos + 1;
    if (o.a.chosen && blocks == (o.a.blocks != NULL))
        return { 0, pf_chosen_keys(&o.a, n), n, pf_chosen_list(&o.a, row, kv_head) };
    return { blocks ? 0 : first_visible(o.a, pos), n, n, NULL };
}

/* blockIdx: KV head and HEADS of its heads, row. The running sums of a thread's elements stay in registers, those of
 * the heads in shared memory. Where keys are chosen, they are taken as if they lay one after another. */
template <class P>
static __global__ void __launch_bounds__(THREADS) whole(const __grid_constant__ struct attention o, int n_groups)
{
    wait_turn();
    BLOCK_MEMORY(float, shared);
    enum { PARTS = CU_HEAD_DIM / THREADS };
    struct sums s = carve(shared, HEADS, o.kv.hd_k);
    float *m = s.zc + HEADS, *z = m + HEADS, *old = z + HEADS, *fresh = old + HEADS, acc[PARTS][HEADS] = { { 0 } };
    int hk = blockIdx.x / n_groups, h0 = blockIdx.x % n_groups * HEADS, row = blockIdx.y,
        group = o.a.n_head / o.kv.n_kv_head;
    int n_heads = min((int)HEADS, group - h0), head = hk * group + h0, n_parts = (o.kv.hd_v + THREADS - 1) / THREADS,
        t = threadIdx.x;
    load_queries(o, row, head, n_heads, s.q);
    if (t < HEADS) {
        m[t] = -INFINITY;
        z[t] = 0;
    }
    for (int source = 0; source < (o.a.blocks ? 2 : 1); source++) {
        const struct pf_kv_view &kv = source ? o.blocks : o.kv;
        struct seen seen = seen_of(o, row, hk, source);
        for (int c = seen.first / CHUNK; c * CHUNK < seen.end; c++) {
            int lo = max(seen.first - c * CHUNK, 0), hi = min(seen.end - c * CHUNK, (int)CHUNK);
            auto place = [&](int p) {
                int i = c * CHUNK + p;
                return pf_kv_row(&kv, seen.list ? pf_chosen_key(&o.a, seen.list, seen.n_seen, i) : i, hk);
            };
            chunk_weights(o, [&](int p) { return element_at<P>(kv.k, place(p) * kv.hd_k); }, lo, hi, n_heads, s);
            if (t < n_heads) {
                float top = m[t] > s.mc[t] ? m[t] : s.mc[t];
                old[t] = pf_expf(m[t] - top);
                fresh[t] = pf_expf(s.mc[t] - top);
                z[t] = fmaf(z[t], old[t], s.zc[t] * fresh[t]);
                m[t] = top;
            }
            __syncthreads();
#pragma unroll
            for (int i = 0; i < PARTS; i++) {
                float ac[HEADS];
                int d = i * THREADS + t;
                if (i < n_parts && d < kv.hd_v) {
                    chunk_values([&](int p) { return element_at<P>(kv.v, place(p) * o.v_stride + d); }, lo, hi, n_heads,
                                 s.weight, ac);
#pragma unroll
                    for (int h = 0; h < HEADS; h++)
                        if (h < n_heads)
                            acc[i][h] = fmaf(acc[i][h], old[h], ac[h] * fresh[h]);
                }
            }
        }
    }
#pragma unroll
    for (int i = 0; i < PARTS; i++)
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
            int d = i * THREADS + t;
            if (h < n_heads && d < o.kv.hd_v)
                o.a.out[((size_t)row * o.a.n_head + head + h) * o.kv.hd_v + d] =
                    acc[i][h] * last_factor(o.a, head + h, m[h], z[h]);
        }
}

extern "C" size_t pf_cu_attention_floats(int rows, int n_head, int n_chunks, int hd_v)
{
    return (size_t)(rows < SPLIT_ROWS ? rows : SPLIT_ROWS) * n_head * n_chunks * (hd_v + 2);
}

static bool goes_by_chunks(const struct attention &o)
{
    return o.a.rows <= SPLIT_ROWS && !o.a.chosen && !o.a.blocks;
}

template <class... K>
static cudaError_t launch_split(cudaStream_t st, void (*kernel)(K...), const struct attention &o, K... args)
{
    size_t bytes = split_bytes(o, SPLIT_HEADS);
    dim3 grid(o.kv.n_kv_head * ceil_div(o.a.n_head / o.kv.n_kv_head, SPLIT_HEADS), o.n_chunks, o.a.rows);
    cudaError_t e = allow_bytes(kernel, bytes);
    return e != cudaSuccess ? e : launch_early(kernel, grid, SPLIT_THREADS, bytes, st, args...);
}

template <class P>
static cudaError_t launch(cudaStream_t st, const struct attention &o)
{
    size_t bytes = HEADS * ((size_t)o.kv.hd_k + CHUNK + 6) * sizeof(float);
    int group = o.a.n_head / o.kv.n_kv_head, n_wholes = ceil_div(group, HEADS);
    if (goes_by_chunks(o))
        return launch_split(st, split<P>, o, o, ceil_div(group, SPLIT_HEADS));
    if (pf_cu_attention_tiled(&o))
        return pf_cu_attention_tiles(st, &o);
    return launch_early(whole<P>, dim3(o.kv.n_kv_head * n_wholes, o.a.rows), THREADS, bytes, st, o, n_wholes);
}

/* What split copies to shared memory, of which a block may have so much: values first, then keys. */
static void choose_copies(struct attention *o, size_t shared_bytes)
{
    enum { MOST = 140 << 10 };
    size_t key = pf_kv_row_bytes(o->kv.type, o->kv.hd_k), most = min(shared_bytes, (size_t)MOST),
        used = split_bytes(*o, SPLIT_HEADS);
    size_t values = CHUNK * pf_kv_row_bytes(o->kv.type, o->kv.hd_v), keys = CHUNK * (key + KEY_PAD);
    if (o->v_stride == o->kv.hd_v && used + values + 16 <= most) {
        o->value_bytes = (int)values;
        used += values + 16;
    }
    if (key % 16 == 0 && used + keys <= most)
        o->key_bytes = (int)key;
}

static struct attention attention_of(const struct pf_attention_op *a, int n_chunks, int *count, float *part,
                                     float *scores, const struct cu_x *x, size_t shared_bytes, int *fault)
{
    struct attention o = { *a, *a->kv, {}, n_chunks, count, part, scores, 0, 0, 0,
                           a->kv->v ? a->kv->hd_v : a->kv->hd_k, *x, fault };
    o.kv.v = a->kv->v ? a->kv->v : a->kv->k;
    if (a->blocks) {
        o.blocks = *a->blocks;
        o.blocks.v = o.blocks.k;
    }
    choose_copies(&o, shared_bytes);
    return o;
}

/* Whether split_heads can do it: floats or halves, values in shared memory, the key in the place of its weights; no
 * copy reaches into the row behind it. */
static bool takes_heads(const struct attention &o, const struct cu_heads *h)
{
    return goes_by_chunks(o) && o.a.rows == 1 && o.kv.type != PF_KV_Q8_0 && o.value_bytes &&
           o.value_bytes / CHUNK % 16 == 0 && o.kv.hd_k <= SPLIT_HEADS * CHUNK && h->kv.k == o.kv.k &&
           h->kv.v == o.kv.v && h->rope[0].x == o.a.q && h->pos == o.a.pos && h->rope[0].n_head == o.a.n_head &&
           h->rope[0].hd == o.kv.hd_k;
}

extern "C" cudaError_t pf_cu_attention(cudaStream_t st, const struct pf_attention_op *a, int n_chunks, int *count,
                                       float *part, float *scores, const struct cu_x *x,
                                       const struct cu_heads *heads, size_t shared_bytes, int *fault)
{
    struct attention o = attention_of(a, n_chunks, count, part, scores, x, shared_bytes, fault);
    if (a->kv->hd_k > CU_HEAD_DIM || a->kv->hd_v > CU_HEAD_DIM)
        return cudaErrorInvalidValue;
    int n_groups = ceil_div(o.a.n_head / o.kv.n_kv_head, SPLIT_HEADS);
    if (heads && takes_heads(o, heads)) {
        o.own_bytes = (int)pf_kv_row_bytes(a->kv->type, a->kv->hd_k);
        return a->kv->type == PF_KV_F16 ? launch_split(st, split_heads<const uint16_t *>, o, o, *heads, n_groups) :
               launch_split(st, split_heads<const float *>, o, o, *heads, n_groups);
    }
    cudaError_t e = heads ? pf_cu_heads(st, heads) : cudaSuccess;
    return e != cudaSuccess ? e :
           pf_cu_latent_takes(&o, shared_bytes) ? pf_cu_latent(st, &o, shared_bytes) :
           a->kv->type == PF_KV_F16 ? launch<const uint16_t *>(st, o) :
           a->kv->type == PF_KV_F32 ? launch<const float *>(st, o) : launch<struct q8_at>(st, o);
}
