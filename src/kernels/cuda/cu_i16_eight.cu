/* Attention in whole numbers of up to eight rows of a KV head, which is one token of most models. A thread block takes
 * a KV head of a sequence and every so many-th chunk of what its rows see; keys and values go from memory to registers.
 *
 *     sums      a warp 32 positions and 64 elements of the keys: positions are the rows of its products, queries the
 *               columns. Where a key is longer, its warps give each other the sums of the positions they do not score
 *     weights   each block's maxima meet in shared memory, then its weights do
 *     values    a warp 32 elements of a block, elements as rows of its products
 *     at last   a thread four elements of a row: the blocks' sums enter in their order
 *
 * Up to TOGETHER chunks are a cluster of thread blocks, which send each other what they have: each folds the chunks of
 * every so many-th 32 elements of the rows. More of them are folded by a kernel of its own.
 *
 * Older positions are on their way before the kernel's turn: only those of the rows themselves are stored by the kernel
 * ahead. What a chunk no longer needs of the registers, the next one's keys and values take at once. */
#include "kernels/cuda/cu_i16_parts.h"

enum { ROWS = 8, HALF = 32, SLICE = 64, MOST_WARPS = 16 };   /* SLICE: elements of the keys that a warp takes */
enum { TOGETHER = 8 };

struct eight_rows {
    struct i16_attention o;
    struct cu_parts      parts;
    bool whole;                           /* there is a single chunk */
};

/* A weight as a float and what it counts in z. */
struct share {
    float e, rsv;
};

template <int HV> struct shared_rows {
    float4       sums[N_BLOCKS][ROWS][HV / 4];           /* of values; pieces of each eight are swapped by the row */
    uint2        weights[N_BLOCKS][BLOCK / 16][WARP];    /* operands of products: upper, lower */
    union {                                              /* the one is read when the other is not there yet */
        uint4        others[MOST_WARPS][WARP];           /* sums for the warp, of its other half of the elements */
        struct share shares[N_BLOCKS][ROWS][BLOCK + 2];
    };
    float        z[N_BLOCKS][ROWS][8];
    float        m[ROWS][MOST_WARPS];                    /* of each warp's positions */
};

/* What a cluster's thread blocks send each other. */
template <int HV> struct sent_chunks {
    enum { PIECES = ROWS * HV / 32 };                    /* of 32 elements of a row, eight fours */
    float4   sums[(PIECES + TOGETHER) * 8];              /* chunk by chunk, of the pieces that the thread block folds */
    float    m[TOGETHER][ROWS], z[TOGETHER][ROWS];
    uint64_t box;
};

template <int HV, bool ONE> struct block_memory {
    struct shared_rows<HV> rows;
};

template <int HV> struct block_memory<HV, true> {
    struct shared_rows<HV> rows;
    struct sent_chunks<HV> sent;
};

/* Row r of a KV head of a sequence. */
CU_INLINE struct i16_row row_of(const struct eight_rows &f, int sequence, int hk, int r)
{
    int group = f.o.a.n_head / f.o.kv.n_kv_head, token = f.parts.first[sequence] + r / group;
    if (token >= f.parts.first[sequence + 1])
        return { 0, 0, INT32_MAX, -1, false };
    int pos = *(const volatile int32_t *)&f.o.a.pos[token];
    return { token, hk * group + r % group, first_visible(f.o.a, pos), pos, true };
}

/* Of lane r's row. */
CU_INLINE struct i16_row row_from(const struct i16_row &mine, int r)
{
    return { __shfl_sync(ALL_LANES, mine.token, r), __shfl_sync(ALL_LANES, mine.head, r),
             __shfl_sync(ALL_LANES, mine.first, r), __shfl_sync(ALL_LANES, mine.pos, r),
             __shfl_sync(ALL_LANES, mine.pos, r) >= 0 };
}

/* What a thread block's rows see together; own: from there on the kernel ahead may store. */
struct range {
    int first, last, own;
};

CU_INLINE struct range see(const struct i16_row &mine)
{
    int first = (int)~all_max(~(uint32_t)mine.first), last = (int)all_max((uint32_t)(mine.pos + 1)) - 1;
    return { first, last, (int)~all_max(~(uint32_t)(mine.there ? mine.pos : INT32_MAX)) };
}

CU_INLINE bool is_seen(const struct range &all, int p0, int n)
{
    return p0 <= all.last && p0 + n > all.first;
}

/* Where the chunk of a KV head lies. */
struct chunk_at {
    const char *k, *v;
};

CU_INLINE struct chunk_at chunk_at(const struct pf_kv_view &kv, int c, int hk)
{
    return { pf_kv_i16_keys(&kv, c * CHUNK, hk), pf_kv_i16_values(&kv, c * CHUNK, hk) };
}

/* Where in a chunk a lane's bytes begin, and what of it the warp takes. */
template <int HD> struct places {
    enum {
        SLICES = HD / SLICE, WARPS = 8 * SLICES, PIECES = HD / 32, TILES = 2 / SLICES,    /* TILES: 16 positions each */
        KEY_BLOCK = BLOCK * (2 * HD + 8), VALUE_BLOCK = BLOCK * (2 * HD + 4)
    };
    static_assert((int)PIECES * (int)N_BLOCKS == (int)WARPS, "a warp a block's piece of the values");
    int half, slice, first;               /* first: of the positions that it scores */
    int block, piece;
    int k, k_scales, v, v_scales;

    __device__ __forceinline__ places(int warp)
    {
        int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
        half = warp / SLICES, slice = warp % SLICES, first = warp * 16 * TILES;
        block = warp / PIECES, piece = warp % PIECES;
        k = half / 2 * KEY_BLOCK + ((half % 2 * 2 + g / 4) * (HD / 4) + slice * (SLICE / 4) + t) * LINE + g % 4 * 16;
        v = block * VALUE_BLOCK + (t * (HD / 16) + piece * 2 + g / 4) * LINE + g % 4 * 16;
        k_scales = half / 2 * KEY_BLOCK + BLOCK * 2 * HD + (first % BLOCK + g) * 4;
        v_scales = half / 2 * VALUE_BLOCK + BLOCK * 2 * HD + (first % BLOCK + g) * 4;
    }
};

/* For each 16 elements of the slice the upper and lower planes of positions g, g + 8, g + 16 and g + 24 of a half. */
struct slice_keys {
    uint4 upper[SLICE / 16], lower[SLICE / 16];

    __device__ __forceinline__ void load(const char *at)
    {
#pragma unroll
        for (int i = 0; i < SLICE / 16; i++) {
            upper[i] = fetch16(at + i * 4 * LINE);
            lower[i] = fetch16(at + i * 4 * LINE + PF_I16_PLANE);
        }
    }
};

template <int TILES> struct scales {
    float sk[2 * TILES], lsv[2 * TILES], rsv[2 * TILES];

    __device__ __forceinline__ void load(const char *of_k, const char *of_v)
    {
#pragma unroll
        for (int i = 0; i < 2 * TILES; i++) {
            sk[i] = fetch4(of_k + 32 * i);
            lsv[i] = fetch4(of_k + BLOCK * 4 + 32 * i);
            rsv[i] = fetch4(of_v + 32 * i);
        }
    }
};

/* 32 elements of a block's values: for each 16 positions four words of the lane's elements. */
template <int HV> struct piece_values {
    uint4 upper[4], lower[4];

    __device__ __forceinline__ void load(const char *at)
    {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            upper[i] = fetch16(at + i * 4 * (HV / 16) * LINE);
            lower[i] = fetch16(at + i * 4 * (HV / 16) * LINE + PF_I16_PLANE);
        }
    }
};

/* Sums of products with two tiles of 16 rows. */
struct pair_sums {
    int upper[2][4], middle[2][4], lower[2][4];

    /* upper, lower: of the rows, words of four times eight; b: of the columns. */
    template <bool SIGNED>
    __device__ __forceinline__ void add(uint4 a_upper, uint4 a_lower, uint32_t b_upper, uint32_t b_lower)
    {
        mma16_add<SIGNED>(upper[0], a_upper.x, a_upper.y, b_upper);
        mma16_add<SIGNED>(upper[1], a_upper.z, a_upper.w, b_upper);
        mma16_add<SIGNED>(middle[0], a_upper.x, a_upper.y, b_lower);
        mma16_add<SIGNED>(middle[1], a_upper.z, a_upper.w, b_lower);
        mma16_add<SIGNED>(lower[0], a_lower.x, a_lower.y, b_upper);
        mma16_add<SIGNED>(lower[1], a_lower.z, a_lower.w, b_upper);
    }

    __device__ __forceinline__ int of(int i, int c) const
    {
        return 256 * upper[i][c] + (middle[i][c] + lower[i][c]);
    }
};

/* The warp's sums, sum[i][c] of position 16 i + g + 8 (c / 2) and row 2 t + c % 2. */
template <int HD>
CU_INLINE void sum_slice(const struct slice_keys &k, const uint4 (&q)[SLICE / 32], const struct places<HD> &at,
                         struct shared_rows<HD> &s, int (&sum)[places<HD>::TILES][4])
{
    int lane = threadIdx.x % WARP;
    struct pair_sums pair = {};
#pragma unroll
    for (int e = 0; e < SLICE / 16; e++)
        pair.add<true>(k.upper[e], k.lower[e], e % 2 ? q[e / 2].y : q[e / 2].x, e % 2 ? q[e / 2].w : q[e / 2].z);
    if constexpr (places<HD>::SLICES == 1) {
#pragma unroll
        for (int c = 0; c < 8; c++)
            sum[c / 4][c % 4] = pair.of(c / 4, c % 4);
    } else {
        uint32_t theirs[4];
#pragma unroll
        for (int c = 0; c < 4; c++) {
            int a = pair.of(0, c), b = pair.of(1, c);
            sum[0][c] = at.slice ? b : a, theirs[c] = (uint32_t)(at.slice ? a : b);
        }
        s.others[2 * at.half + 1 - at.slice][lane] = { theirs[0], theirs[1], theirs[2], theirs[3] };
        meet(1 + at.half, 2 * WARP);
        uint4 other = s.others[2 * at.half + at.slice][lane];
        sum[0][0] += (int)other.x, sum[0][1] += (int)other.y, sum[0][2] += (int)other.z, sum[0][3] += (int)other.w;
    }
}

/* The largest of each row's scores, for all lanes that have some of the row; a NaN is left out. */
template <int TILES>
CU_INLINE void most_of(const float (&y)[TILES][4], float (&m)[2])
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        m[r] = fmaxf(fmaxf(y[0][r], y[0][2 + r]), -INFINITY);
        if (TILES == 2)
            m[r] = fmaxf(fmaxf(y[TILES - 1][r], y[TILES - 1][2 + r]), m[r]);
    }
#pragma unroll
    for (int h = 4; h < WARP; h *= 2)
#pragma unroll
        for (int r = 0; r < 2; r++)
            m[r] = fmaxf(m[r], __shfl_xor_sync(ALL_LANES, m[r], h));
}

/* Weights of 16 positions: operands for products, and shares. What is not seen has 2^-125, whose weight is 0. */
CU_INLINE void weigh_tile(const float (&y)[4], const float (&m)[2], const float *rsv, uint2 *to, struct share *a,
                          struct share *b)
{
    int lane = threadIdx.x % WARP, g = lane / 4;
    bool odd = g % 2;
    uint32_t bits[4], x[2];
#pragma unroll
    for (int c = 0; c < 4; c++) {
        float e = pf_exp2_neg(y[c] - m[c % 2]);
        bits[c] = pf_float_bits(fmaf(e, PF_I16_WEIGHT, 0x1p23f));
        (c % 2 ? b : a)[c / 2 * 8 + g] = { e, y[c] == -INFINITY ? 0.0f : rsv[c / 2] };
    }
    x[0] = permute(bits[0], bits[2], 0x5140), x[1] = permute(bits[1], bits[3], 0x5140);
    uint32_t mine = odd ? x[1] : x[0], other = __shfl_xor_sync(ALL_LANES, odd ? x[0] : x[1], 4),
             even = odd ? other : mine;
    other = odd ? mine : other;
    to[(lane % 4 * 2 + odd) * 4 + g / 2] = { permute(even, other, 0x7362), permute(even, other, 0x5140) };
}

/* Sums z of a block, by two of its warps: a lane positions i, i + 8 .. of a row. */
template <int HD>
CU_INLINE void put_z(const struct places<HD> &at, struct shared_rows<HD> &s)
{
    int r = at.piece * 4 + threadIdx.x % WARP / 8, i = threadIdx.x % 8;
    if (at.piece >= 2)
        return;
    float z = 0;
#pragma unroll
    for (int k = 0; k < BLOCK / 8; k++) {
        struct share share = s.shares[at.block][r][8 * k + i];
        z = fmaf(share.e, share.rsv, z);
    }
    s.z[at.block][r][i] = z;
}

/* Sums of 32 elements of a block. */
template <int HD>
CU_INLINE void sum_values(const struct piece_values<HD> &v, const struct places<HD> &at, struct shared_rows<HD> &s)
{
    int lane = threadIdx.x % WARP;
    struct pair_sums pair = {};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint2 w = s.weights[at.block][i][lane];
        pair.add<false>(v.upper[i], v.lower[i], w.x, w.y);
    }
#pragma unroll
    for (int r = 0; r < 2; r++)
        s.sums[at.block][lane % 4 * 2 + r][at.piece * 8 + (lane / 4 ^ lane % 4 * 2)] =
            make_float4((float)pair.of(0, r), (float)pair.of(0, 2 + r), (float)pair.of(1, r), (float)pair.of(1, 2 + r));
}

/* How the blocks enter a row: by lanes, each of four the factors of a block; m of all blocks. */
struct entry {
    struct i16_join join;
    float m;
};

template <int N>
CU_INLINE struct entry enter(const float *m)
{
    struct entry e = { {}, -INFINITY };
    float before = -INFINITY, mine = -INFINITY;
    int block = threadIdx.x % N_BLOCKS;
#pragma unroll
    for (int b = 0; b < N_BLOCKS; b++) {
        float most = m[b * N];
#pragma unroll
        for (int i = 1; i < N; i++)
            most = fmaxf(most, m[b * N + i]);
        before = b == block ? e.m : before;
        mine = b == block ? most : mine;
        e.m = e.m > most ? e.m : most;
    }
    e.join = i16_joined(before, mine);
    return e;
}

/* What a row has of a chunk: four elements of its sum, by HD / 4 neighbouring threads each. */
struct chunk_row {
    float4 sum;
    float  m, z;
    bool   good;
};

/* ---- Chunks of a cluster ----------------------------------------------------------------------------------------- */

/* Which of a cluster's n thread blocks that have a chunk this one is. Piece i of the rows is folded by number i % n. */
struct member {
    int n, me;

    __device__ __forceinline__ int n_pieces(int of, int number) const
    {
        return (of - number + n - 1) / n;
    }
};

/* Says what the thread block expects: of each chunk its pieces, and all maxima and z. */
template <int HD>
CU_INLINE void expect_chunks(struct sent_chunks<HD> &s, struct member at)
{
    if (threadIdx.x != 0)
        return;
    open_box(&s.box);
    expect_bytes(&s.box, at.n * (at.n_pieces(s.PIECES, at.me) * 32 + 2 * ROWS) * (int)sizeof(float));
}

/* What a thread has of the thread block's chunk goes to who folds it; m and z of its row to all. */
template <int HD>
CU_INLINE void send_chunk(struct sent_chunks<HD> &s, struct member at, const struct chunk_row &v)
{
    int r = threadIdx.x / (HD / 4), piece = threadIdx.x % (HD / 4), i = r * (HD / 32) + piece / 8, to = i % at.n;
    float *four = (float *)&s.sums[(at.me * at.n_pieces(s.PIECES, to) + i / at.n) * 8 + piece % 8];
    send(v.sum.x, four, &s.box, to);
    send(v.sum.y, four + 1, &s.box, to);
    send(v.sum.z, four + 2, &s.box, to);
    send(v.sum.w, four + 3, &s.box, to);
    if (piece < at.n) {
        send(v.good ? v.m : 0.0f, &s.m[at.me][r], &s.box, piece);
        send(v.good ? v.z : NAN, &s.z[at.me][r], &s.box, piece);
    }
}

/* The chunks of the thread block's pieces, of which `begin` is the first, enter the whole as cu_i16_fold.cu has them
 * enter. Eight lanes a piece. */
template <int HD>
CU_INLINE void fold_chunks(const struct eight_rows &f, struct sent_chunks<HD> &s, struct member at,
                           const struct i16_row &mine, int begin)
{
    int lane = threadIdx.x % WARP, n = at.n_pieces(s.PIECES, at.me), i = min((int)threadIdx.x / 8, n - 1);
    if ((int)threadIdx.x - lane >= n * 8)
        return;
    int piece = i * at.n + at.me, r = piece / (HD / 32);
    struct i16_row row = row_from(mine, r);
    float4 acc = make_float4(0, 0, 0, 0);
    float m = -INFINITY, z = 0;
    await_sent(&s.box, 0);
#pragma unroll 1
    for (int c = row.first / CHUNK; row.there && c <= row.pos / CHUNK; c++) {
        float4 v = s.sums[((c - begin) * n + i) * 8 + threadIdx.x % 8];
        float fresh = s.m[c - begin][r], top = m > fresh ? m : fresh;
        struct i16_join j = { pf_exp2_neg(m - top), pf_exp2_neg(fresh - top) };
        m = top;
        z = fmaf(z, j.old, s.z[c - begin][r] * j.fresh);
        acc.x = fmaf(v.x, j.fresh, acc.x * j.old);
        acc.y = fmaf(v.y, j.fresh, acc.y * j.old);
        acc.z = fmaf(v.z, j.fresh, acc.z * j.old);
        acc.w = fmaf(v.w, j.fresh, acc.w * j.old);
    }
    put_four(f.o, row, piece % (HD / 32) * 32 + threadIdx.x % 8 * 4, acc,
             row.there ? i16_last_factor(f.o.a, row.head, m, z) : 0.0f, row.there && (int)threadIdx.x < n * 8);
}

/* ---- The kernel -------------------------------------------------------------------------------------------------- */

/* All blocks enter the chunk. */
template <int HD>
CU_INLINE struct chunk_row join_row(const struct shared_rows<HD> &s, const struct range &all, struct entry e, float cq,
                                    int c)
{
    int lane = threadIdx.x % WARP, r = threadIdx.x / (HD / 4), piece = threadIdx.x % (HD / 4);
    float4 acc = make_float4(0, 0, 0, 0);
    float z = 0, old[N_BLOCKS], fresh[N_BLOCKS];
#pragma unroll
    for (int b = 0; b < N_BLOCKS; b++) {
        old[b] = __shfl_sync(ALL_LANES, e.join.old, lane - lane % N_BLOCKS + b);
        fresh[b] = __shfl_sync(ALL_LANES, e.join.fresh, lane - lane % N_BLOCKS + b);
    }
#pragma unroll
    for (int b = 0; b < N_BLOCKS; b++)
        if (is_seen(all, c * CHUNK + b * BLOCK, BLOCK)) {
            float4 v = s.sums[b][r][piece ^ r / 2 * 2];
            float gain = PF_I16_GAIN * fresh[b];
            z = fmaf(z, old[b], s.z[b][r][lane % 8] * fresh[b]);
            acc.x = fmaf(v.x, gain, acc.x * old[b]);
            acc.y = fmaf(v.y, gain, acc.y * old[b]);
            acc.z = fmaf(v.z, gain, acc.z * old[b]);
            acc.w = fmaf(v.w, gain, acc.w * old[b]);
        }
#pragma unroll
    for (int h = 4; h > 0; h /= 2)
        z = z + __shfl_xor_sync(ALL_LANES, z, h);
    return { acc, e.m, z, cq == cq };
}

template <int HD>
CU_INLINE void put_chunk(const struct eight_rows &f, const struct i16_row &row, int c, const struct chunk_row &v)
{
    int piece = threadIdx.x % (HD / 4);
    if (f.whole)
        return put_whole(f.o, row, piece * 4, v.sum, v.good ? i16_last_factor(f.o.a, row.head, v.m, v.z) : NAN,
                         row.there);
    if (!row.there)
        return;
    size_t at = part_of(f.o, row, c);
    *(float4 *)(f.o.s.part + at * HD + piece * 4) = v.sum;
    if (piece == 0 && (v.m > -INFINITY || !v.good)) {
        maxima(f.o)[at] = v.good ? v.m : 0.0f;
        zs(f.o)[at] = v.good ? v.z : NAN;
    }
}

/* What a warp needs of a chunk, and where it begins in the one that is fetched: all of it in registers. */
template <int HD> struct held {
    struct slice_keys                keys;
    struct scales<places<HD>::TILES> scales;
    struct piece_values<HD>          values;

    __device__ __forceinline__ void load_keys(const struct places<HD> &at, struct chunk_at from)
    {
        keys.load(from.k + at.k);
    }

    __device__ __forceinline__ void load_scales(const struct places<HD> &at, struct chunk_at from)
    {
        scales.load(from.k + at.k_scales, from.v + at.v_scales);
    }

    __device__ __forceinline__ void load_values(const struct places<HD> &at, struct chunk_at from)
    {
        values.load(from.v + at.v);
    }
};

/* Queries of a warp's slice of the elements, and what a lane knows of the rows of its scores. */
struct asked {
    uint4 q[SLICE / 32];
    float cq[2];
    int   first[2], last[2];
};

/* Scores of the warp's positions of chunk c, -inf where they are not seen, and the largest. */
template <int HD, int TILES>
CU_INLINE void score(const struct held<HD> &h, const struct asked &a, const struct places<HD> &at, int c,
                     struct shared_rows<HD> &s, float (&y)[TILES][4], float (&m)[2])
{
    int sum[TILES][4], p0 = c * CHUNK + at.first + threadIdx.x % WARP / 4;
    sum_slice(h.keys, a.q, at, s, sum);
#pragma unroll
    for (int i = 0; i < 4 * TILES; i++) {
        int j = i / 2, r = i % 2, p = p0 + 8 * j;
        float score = fmaf((float)sum[i / 4][i % 4] * h.scales.sk[j], a.cq[r], h.scales.lsv[j]);
        y[i / 4][i % 4] = p < a.first[r] || p > a.last[r] ? -INFINITY : score;
    }
    most_of<TILES>(y, m);
}

/* Weights of the warp's positions, from the maxima of all warps of the block. */
template <int HD, int TILES>
CU_INLINE void weigh(const struct held<HD> &h, const struct places<HD> &at, bool seen, const float (&y)[TILES][4],
                     struct shared_rows<HD> &s)
{
    enum { PER_BLOCK = places<HD>::WARPS / N_BLOCKS };
    int lane = threadIdx.x % WARP, row = lane % 4 * 2, block = at.half / 2, tile = at.first / 16 % 4;
    float m[2] = { -INFINITY, -INFINITY };
#pragma unroll
    for (int i = 0; i < 2 * PER_BLOCK; i++)
        m[i % 2] = fmaxf(m[i % 2], s.m[row + i % 2][block * PER_BLOCK + i / 2]);
#pragma unroll
    for (int i = 0; i < TILES; i++, tile++)
        if (seen) {
            weigh_tile(y[i], m, h.scales.rsv + 2 * i, s.weights[block][tile], s.shares[block][row] + 16 * tile,
                       s.shares[block][row + 1] + 16 * tile);
        } else {
            s.weights[block][tile][lane] = { 0, 0 };
            for (int j = 0; j < 4; j++)
                s.shares[block][lane / 4][16 * tile + lane % 4 * 4 + j] = { 0, 0 };
        }
}

/* blockIdx: one of gridDim.x thread blocks that share the chunks; KV head; sequence. ONE: each has one, or none, and
 * they are a cluster if there is more than one. */
template <int HD, bool ONE>
static __global__ void __launch_bounds__(places<HD>::WARPS * WARP, 512 / (places<HD>::WARPS * WARP))
eight(const __grid_constant__ struct eight_rows f)
{
    using memory = struct block_memory<HD, ONE>;
    CLUSTER_VARIABLE(memory, shared);
    struct shared_rows<HD> &s = shared.rows;
    const struct i16_attention &o = f.o;
    const struct pf_kv_view &kv = f.parts.kv[blockIdx.z];
    int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4, warp = uniform(threadIdx.x / WARP), hk = blockIdx.y,
        joined = threadIdx.x / (HD / 4) % ROWS;
    struct i16_row mine = row_of(f, blockIdx.z, hk, lane % ROWS);
    struct range all = see(mine);
    struct i16_host host = i16_host_of(o);
    all.own = host.n ? 0 : all.own;
    int end = all.last / CHUNK, begin = all.first / CHUNK, c = i16_chunk(host, begin - 1, blockIdx.x + 1);
    struct member cluster = { end - begin + 1, (int)blockIdx.x };
    if constexpr (ONE) {
        if (!f.whole && c <= end)
            expect_chunks(shared.sent, cluster);
        if (!f.whole)
            arrive_cluster();
    }
    if (c > end) {
        wait_turn();
        if (ONE && !f.whole)
            wait_cluster();
        return;
    }
    struct places<HD> at(warp);
    struct held<HD> h;
    auto keys_seen = [&](int c) { return c <= end && is_seen(all, c * CHUNK + at.half * HALF, HALF); };
    auto values_seen = [&](int c) { return c <= end && is_seen(all, c * CHUNK + at.block * BLOCK, BLOCK); };
    struct chunk_at chunk = chunk_at(kv, c, hk);
    bool old_keys = c * CHUNK + at.half * HALF + HALF <= all.own,
         old_values = c * CHUNK + at.block * BLOCK + BLOCK <= all.own;
    auto load = [&](bool keys, bool values) {
        if (keys && keys_seen(c)) {
            h.load_keys(at, chunk);
            h.load_scales(at, chunk);
        }
        if (values && values_seen(c))
            h.load_values(at, chunk);
    };
    load(old_keys, old_values);
    struct asked a;
    int q_row = __shfl_sync(ALL_LANES, mine.token * o.a.n_head + mine.head, g);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        a.first[r] = __shfl_sync(ALL_LANES, mine.first, 2 * t + r);
        a.last[r] = __shfl_sync(ALL_LANES, mine.pos, 2 * t + r);
    }
    struct i16_row row = row_from(mine, joined);
    const char *q_at = (const char *)o.s.q + (size_t)q_row * 2 * HD + at.slice * 2 * SLICE + t * 16,
               *cq_at = (const char *)(o.s.cq + q_row);
    have(q_at), have(cq_at), have(chunk.k), have(chunk.v);
    wait_turn();
    if (ONE && !f.whole)
        wait_cluster();
#pragma unroll
    for (int i = 0; i < SLICE / 32; i++)
        a.q[i] = fetch16(q_at + 64 * i);
    float cq = fetch4(cq_at);
    load(!old_keys, !old_values);
    a.cq[0] = __shfl_sync(ALL_LANES, cq, 8 * t), a.cq[1] = __shfl_sync(ALL_LANES, cq, 8 * t + 4);
    cq = __shfl_sync(ALL_LANES, cq, 4 * joined);

#pragma unroll 1
    for (int next; c <= end; c = next) {
        next = ONE ? INT32_MAX : i16_chunk(host, c, gridDim.x);
        if (next <= end)
            chunk = chunk_at(kv, next, hk);
        bool seen = keys_seen(c);
        float y[places<HD>::TILES][4], m[2] = { -INFINITY, -INFINITY };
        if (seen)
            score(h, a, at, c, s, y, m);
        if (lane < 4)
            s.m[2 * lane][warp] = m[0], s.m[2 * lane + 1][warp] = m[1];
        if (keys_seen(next))
            h.load_keys(at, chunk);
        __syncthreads();
        weigh(h, at, seen, y, s);
        if (keys_seen(next))
            h.load_scales(at, chunk);
        __syncthreads();
        if (values_seen(c)) {
            put_z(at, s);
            sum_values(h.values, at, s);
        }
        if (values_seen(next))
            h.load_values(at, chunk);
        struct entry by = enter<places<HD>::WARPS / N_BLOCKS>(s.m[joined]);
        __syncthreads();
        if (threadIdx.x >= ROWS * HD / 4)
            continue;
        struct chunk_row of_chunk = join_row(s, all, by, cq, c);
        if constexpr (ONE)
            if (!f.whole) {
                send_chunk(shared.sent, cluster, of_chunk);
                continue;
            }
        put_chunk<HD>(f, row, c, of_chunk);
    }
    if constexpr (ONE)
        if (!f.whole)
            fold_chunks(f, shared.sent, cluster, mine, begin);
}

/* Thread blocks of heads of HD elements that a GPU runs at once. */
template <int HD> static int room(int n_units)
{
    return 512 / (places<HD>::WARPS * WARP) * n_units;
}

/* How many chunks a KV head's rows may see, which are neighbouring positions. */
static int seen_chunks(const struct i16_attention &o)
{
    return o.a.window ? min(o.n_chunks, (o.a.window + ROWS) / CHUNK + 2) : o.n_chunks;
}

/* With single chunks by the kernel that has no loop over them a token takes 1 to 2% longer where heads have 128
 * elements (qwen3-30b-a3b, H200), and as much less where they have 64 (gpt-oss-20b). */
template <int HD>
static cudaError_t start(cudaStream_t st, const struct eight_rows &f, int n_units, bool *folds)
{
    int heads = f.o.kv.n_kv_head, seen = seen_chunks(f.o);
    int n = min(seen, max(1, room<HD>(n_units) / (heads * f.parts.n)));
    bool one = !f.o.s.by_host && n == seen && n <= TOGETHER;
    dim3 grid(n, heads, f.parts.n);
    int threads = places<HD>::WARPS * WARP;
    cudaError_t e = cudaSuccess;
    if (f.whole)
        one = one && HD == 64;
    else if (one)
        e = takes_cluster(n, eight<HD, true>, threads, &one);
    *folds = one || f.whole;
    if (e != cudaSuccess)
        return e;
    return one ? launch_in_clusters(n, eight<HD, true>, grid, threads, 0, st, f)
               : launch_early(eight<HD, false>, grid, threads, 0, st, f);
}

/* Where chunks fill the GPU, copies to shared memory (cu_i16_few.cu) bring more bytes at a time, and its thread blocks
 * find room beside those of the kernel ahead. */
extern "C" bool pf_cu_i16_takes_eight(const struct i16_attention *o, const struct cu_parts *parts, int n_rows,
                                      int n_units)
{
    int hd = o->kv.hd_k, n_blocks = parts->n * o->kv.n_kv_head * seen_chunks(*o);
    if (n_rows > ROWS || hd != o->kv.hd_v || (hd != 64 && hd != 128))
        return false;
    return n_blocks <= (hd == 64 ? room<64>(n_units) : room<128>(n_units)) / 2;
}

extern "C" cudaError_t pf_cu_i16_eight(cudaStream_t st, const struct i16_attention *o, const struct cu_parts *parts,
                                       int n_units, bool *folds)
{
    struct eight_rows f = { *o, *parts, is_whole(*o) };
    return o->kv.hd_k == 64 ? start<64>(st, f, n_units, folds) : start<128>(st, f, n_units, folds);
}
