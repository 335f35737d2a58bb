/* Attention of few rows in whole numbers, of one sequence or of several, but for what cu_i16_eight.cu takes. A thread
 * block takes a KV head of a sequence, a tile or two of 16 rows (tokens by the query heads that share it) and every so
 * many-th chunk of what they see; in a chunk each of its four warps takes a block of 64 positions. So all rows share
 * what is read. Where chunks are too few for the GPU, several thread blocks share the elements of the values, and each
 * makes all scores for itself.
 *
 *     a warp    streams its blocks' bytes through slots of its own, some pieces ahead of the one it computes with:
 *               pieces of keys (32 positions, 64 elements), then of values (64 positions, 32 elements)
 *     together  after each piece of values the four blocks enter the chunk's partial in their order
 *     at last   where there is a single chunk, its partial is the whole; else the partials of a row's chunks enter the
 *               whole in a kernel of its own (cu_i16_fold.cu): in the thread block that ends last it takes longer
 *
 * Older positions are on their way before the kernel's turn: only those of the rows themselves are stored by the kernel
 * ahead. A slot's lines are spread as cu_i16.h says. */
#include "kernels/cuda/cu_i16_parts.h"
#include "kernels/cuda/cu_i16_pieces.h"

enum { WARPS = 4, THREADS = WARPS * WARP };
static_assert((int)WARPS == (int)N_BLOCKS, "a warp a block");

struct few_rows {
    struct i16_attention o;
    struct cu_parts      parts;
    int  n_slots, n_groups;               /* row groups of a sequence's KV head */
    int  kept;                            /* rows of a group: 8, 16, 24 or 32 */
    bool whole;                           /* there is a single chunk */
};

/* Row r of a KV head of a sequence. */
CU_INLINE struct i16_row row_of(const struct few_rows &f, int sequence, int hk, int r)
{
    int group = f.o.a.n_head / f.o.kv.n_kv_head, token = f.parts.first[sequence] + r / group;
    if (token >= f.parts.first[sequence + 1])
        return { 0, 0, INT32_MAX, -1, false };
    int pos = *(const volatile int32_t *)&f.o.a.pos[token];
    return { token, hk * group + r % group, first_visible(f.o.a, pos), pos, true };
}

/* How many rows a KV head of a sequence has. */
CU_INLINE int rows_of(const struct few_rows &f, int sequence)
{
    return (f.parts.first[sequence + 1] - f.parts.first[sequence]) * (f.o.a.n_head / f.o.kv.n_kv_head);
}

/* A block's shared memory. */
struct place {
    char  *slots;                         /* [WARPS][n_slots][SLOT] */
    char  *q;                             /* [kept][q_step] queries */
    float *sums;                          /* [2][WARPS][kept][32] what the blocks give for a piece of values */
    float *m, *z;                         /* [WARPS][kept], [WARPS][kept][8]; m of a whole's rows: their last factors */
    float *old, *fresh;                   /* [WARPS][kept] how a block enters; fresh -0: it does not */
    float *cq;                            /* [kept] */
    struct i16_row *of;                   /* [kept] */
};

/* Bytes from one row of queries to the next: neighbours lie in different banks. */
CU_HOST_FN int q_step(int hd)
{
    return 2 * hd + (hd % 64 ? 0 : 64);
}

CU_HOST_FN size_t bytes_for(int n_slots, int kept, int hd_k)
{
    return (size_t)WARPS * n_slots * SLOT + (size_t)kept * (q_step(hd_k) + sizeof(float) + sizeof(struct i16_row)) +
           (size_t)WARPS * kept * (2 * 32 + 1 + 8 + 2) * sizeof(float);
}

CU_INLINE struct place carve(char *shared, const struct few_rows &f)
{
    struct place p;
    p.slots = shared;
    p.q = shared + WARPS * f.n_slots * SLOT;
    p.sums = (float *)(p.q + f.kept * q_step(f.o.kv.hd_k));
    p.z = p.sums + 2 * WARPS * f.kept * 32;
    p.m = p.z + WARPS * f.kept * 8;
    p.old = p.m + WARPS * f.kept, p.fresh = p.old + WARPS * f.kept;
    p.cq = p.fresh + WARPS * f.kept;
    p.of = (struct i16_row *)(p.cq + f.kept);
    return p;
}

/* ---- A block of positions ---------------------------------------------------------------------------------------- */

/* TILES of 16 rows, or one of EIGHTS 1: of 8. What a lane knows of its rows. */
template <int TILES, int EIGHTS> struct rows {
    struct i16_row of[TILES][2];
    float          cq[TILES][2];
};

/* Scores of a block, all its keys' pieces; rsv of the lane's positions. */
template <int TILES, int EIGHTS, class N>
CU_INLINE void score_block(N next, const struct place &p, int kept, int hd, const struct rows<TILES, EIGHTS> &rows,
                           float (&y)[TILES][8][4], float2 (&rsv)[8])
{
    int lane = threadIdx.x % WARP, step = q_step(hd);
    const char *q[TILES][2];
#pragma unroll
    for (int i = 0; i < 2 * TILES; i++)                      /* rows beyond those kept: any will do */
        q[i / 2][i % 2] = p.q + (8 * i < kept ? 8 * i + lane / 4 : 0) * step + lane % 4 * 16;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        struct i16_sums s[TILES] = {};
        const char *piece;
        int e = 0;
#pragma unroll 1
        do {
            piece = next();
            int end = min(e + 64, hd);
            const char *at = piece + (lane / 16 * 16 + lane % 4) * LINE;
#pragma unroll 2
            for (; e < end; e += 32, at += 8 * LINE)
#pragma unroll
                for (int i = 0; i < TILES; i++) {
                    struct i16_queries a = i16_pair(*(const uint4 *)(q[i][0] + 2 * e),
                                                    *(const uint4 *)(q[i][1] + 2 * e));
                    i16_add<true>(s[i], a.upper, a.lower, at, i16_spread(lane), 4 * LINE);
                }
        } while (e < hd);
        const float *scales = (const float *)(piece + PIECE);
#pragma unroll
        for (int i = 0; i < TILES; i++)
            i16_scores<EIGHTS>(s[i], scales, scales + 32, rows.cq[i], y[i] + 4 * half);
#pragma unroll
        for (int i = 0; i < 4; i++)
            rsv[4 * half + i] = *(const float2 *)(scales + 64 + 8 * i + lane % 4 * 2);
    }
}

/* What a warp's block gives its rows goes to shared memory. */
template <int EIGHTS>
CU_INLINE void tell(const struct place &p, int kept, int warp, int tile, const struct i16_weights &w)
{
    int lane = threadIdx.x % WARP;
#pragma unroll
    for (int r = 0; r < EIGHTS; r++) {
        int row = warp * kept + 16 * tile + 8 * r + lane / 4;
        if (16 * tile + 8 * r >= kept)
            continue;
        if (lane % 4 == 0)
            p.m[row] = w.m[r];
        *(float2 *)(p.z + 8 * row + lane % 4 * 2) = make_float2(w.z[r][0], w.z[r][1]);
    }
}

/* Sums of 32 elements of the values: the lane's eight of a row, two pieces of 16 bytes, which are swapped in every
 * other row. */
template <int EIGHTS>
CU_INLINE void put_sums(float *to, int kept, int tile, const struct i16_sums &s)
{
    int lane = threadIdx.x % WARP;
#pragma unroll
    for (int r = 0; r < EIGHTS; r++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = 16 * tile + 8 * r + lane / 4, piece = (lane % 4 * 2 + half) ^ (row & 1), c = 2 * r + half;
            if (16 * tile + 8 * r < kept)
                *(float4 *)(to + row * 32 + piece * 4) = make_float4(i16_sum(s, 0, c), i16_sum(s, 1, c),
                                                                     i16_sum(s, 2, c), i16_sum(s, 3, c));
        }
}

/* ---- A chunk ----------------------------------------------------------------------------------------------------- */

/* How the four blocks enter the chunk: a thread a row. */
CU_INLINE void join_blocks(const struct few_rows &f, const struct place &p, int c)
{
    int r = threadIdx.x, kept = f.kept;
    float m = -INFINITY, z[8] = { 0 };
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        int at = w * kept + r;
        struct i16_join j = i16_joined(m, p.m[at]);
#pragma unroll
        for (int i = 0; i < 8; i++)
            z[i] = j.fresh > 0 ? fmaf(z[i], j.old, p.z[8 * at + i] * j.fresh) : z[i];
        p.old[at] = j.old;
        p.fresh[at] = PF_I16_GAIN * j.fresh;
    }
#pragma unroll
    for (int h = 4; h > 0; h /= 2)
#pragma unroll
        for (int i = 0; i < h; i++)
            z[i] = z[i] + z[i + h];
    bool good = p.cq[r] == p.cq[r];
    struct i16_row row = p.of[r];
    if (f.whole)
        p.m[r] = good ? i16_last_factor(f.o.a, row.head, m, z[0]) : NAN;
    else if (blockIdx.z == 0 && row.there && (m > -INFINITY || !good)) {
        size_t at = part_of(f.o, row, c);
        maxima(f.o)[at] = good ? m : 0.0f;
        zs(f.o)[at] = good ? z[0] : NAN;
    }
}

/* Elements d .. d + 31 of the rows' sums in the chunk, from those of the blocks. */
CU_INLINE void join_sums(const struct few_rows &f, const struct place &p, const float *sums, int n, int c, int d)
{
    const struct i16_attention &o = f.o;
    int kept = f.kept;
#pragma unroll 1
    for (int i = threadIdx.x, lane = i % WARP; i - lane < n * 8; i += THREADS) {
        int r = min(i / 8, n - 1);
        float4 acc = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            float old = p.old[w * kept + r], fresh = p.fresh[w * kept + r];
            if (fresh > 0) {
                float4 v = *(const float4 *)(sums + (w * kept + r) * 32 + (i % 8 ^ (r & 1)) * 4);
                acc.x = fmaf(v.x, fresh, acc.x * old);
                acc.y = fmaf(v.y, fresh, acc.y * old);
                acc.z = fmaf(v.z, fresh, acc.z * old);
                acc.w = fmaf(v.w, fresh, acc.w * old);
            }
        }
        if (f.whole)
            put_whole(o, p.of[r], d + i % 8 * 4, acc, p.m[r], i < n * 8);
        else if (i < n * 8)
            *(float4 *)(o.s.part + part_of(o, p.of[r], c) * o.kv.hd_v + d + i % 8 * 4) = acc;
    }
}

/* ---- The kernel -------------------------------------------------------------------------------------------------- */

/* Rows are in place. */
CU_INLINE void load_queries(const struct few_rows &f, const struct place &p)
{
    const struct i16_attention &o = f.o;
    int hd = o.kv.hd_k, per = hd / 8, step = q_step(hd);      /* pieces of 16 bytes of a row */
#pragma unroll 2
    for (int i = threadIdx.x; i < f.kept * per; i += THREADS) {
        struct i16_row row = p.of[i / per];
        size_t at = (size_t)row.token * o.a.n_head + row.head;
        uint4 v = { 0, 0, 0, 0 };
        if (row.there)
            v = *(const uint4 *)(o.s.q + at * 2 * hd + i % per * 16);
        *(uint4 *)(p.q + i / per * step + i % per * 16) = v;
        if (i % per == 0)
            p.cq[i / per] = row.there ? o.s.cq[at] : 0.0f;
    }
}

/* What a thread block's rows see together; own: from there on the kernel ahead may store. */
struct range {
    int first, last, own;
};

template <int TILES, int EIGHTS>
CU_INLINE struct range see(const struct few_rows &f, const struct place &p, int sequence, int hk, int first_row,
                           struct rows<TILES, EIGHTS> &rows)
{
    int lane = threadIdx.x % WARP;
    struct range s = { INT32_MAX, -1, INT32_MAX };
    if (threadIdx.x < f.kept)
        p.of[threadIdx.x] = row_of(f, sequence, hk, first_row + threadIdx.x);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            rows.of[i][r] = { 0, 0, INT32_MAX, -1, false };
            if (16 * i + 8 * r < f.kept)
                rows.of[i][r] = p.of[16 * i + 8 * r + lane / 4];
            s.first = min(s.first, rows.of[i][r].first);
            s.last = max(s.last, rows.of[i][r].pos);
        }
    s.first = lanes_least(s.first), s.last = -lanes_least(-s.last);
    for (int i = f.parts.first[sequence]; i < f.parts.first[sequence + 1]; i++)
        s.own = min(s.own, *(const volatile int32_t *)&f.o.a.pos[i]);
    return s;
}

/* The first pieces are sent for; those with positions that the kernel ahead may store in the kernel's turn, which is
 * waited for at the latest behind them. */
CU_INLINE void begin_pieces(struct slots &s, struct way &w, const struct pf_kv_view &kv, int hk, int warp, int own)
{
    bool turn = false;
    for (int i = 0; i < s.n - 1; i++) {
        if (!turn && w.c <= w.end && w.c * CHUNK + warp * BLOCK + BLOCK > own) {
            wait_turn();
            turn = true;
        }
        send_for(w, kv, hk, warp, s.at + i * SLOT);
    }
    if (!turn)
        wait_turn();
}

/* Weights of the warp's block of a chunk, if any row sees something of it. */
template <int TILES, int EIGHTS, class N>
CU_INLINE void weigh_block(N next, const struct few_rows &f, const struct place &p,
                           const struct rows<TILES, EIGHTS> &rows, bool seen, int p0,
                           struct i16_weights (&weights)[TILES])
{
    float y[TILES][8][4];
    float2 rsv[8];
    if (seen)
        score_block<TILES, EIGHTS>(next, p, f.kept, f.o.kv.hd_k, rows, y, rsv);
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        if (seen) {
            i16_mask<EIGHTS>(y[i], rows.of[i], p0);
            i16_weigh<true, EIGHTS>(y[i], [&](int k) { return rsv[k]; }, weights[i]);
        } else {
            weights[i] = { {}, {}, { -INFINITY, -INFINITY }, {} };
        }
        tell<EIGHTS>(p, f.kept, threadIdx.x / WARP, i, weights[i]);
    }
}

/* blockIdx: sequence, KV head and row group; one of gridDim.y thread blocks that share the chunks; one of gridDim.z
 * that share the elements of the values. */
template <int TILES, int EIGHTS>
static __global__ void __launch_bounds__(THREADS, 2) few(const __grid_constant__ struct few_rows f)
{
    BLOCK_MEMORY(float4, shared);
    const struct i16_attention &o = f.o;
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, head = blockIdx.x / f.n_groups,
        first_row = blockIdx.x % f.n_groups * f.kept, hk = head % o.kv.n_kv_head, sequence = head / o.kv.n_kv_head;
    const struct pf_kv_view &kv = f.parts.kv[sequence];
    struct place p = carve((char *)shared, f);
    struct rows<TILES, EIGHTS> rows;
    struct range see_all = see<TILES, EIGHTS>(f, p, sequence, hk, first_row, rows);
    struct i16_host host = i16_host_of(o);
    int begin = see_all.first / CHUNK, end = see_all.last / CHUNK, c_first = i16_chunk(host, begin - 1, blockIdx.y + 1);
    if (c_first > end) {
        wait_turn();
        return;
    }
    struct way w = { c_first, end, (int)gridDim.y, see_all.first, see_all.last, host };
    w.n_keys = 2 * ((kv.hd_k + 63) / 64);
    int n_values = kv.hd_v / 32 / gridDim.z;
    w.first_value = n_values * blockIdx.z;
    w.n_pieces = w.n_keys + n_values;
    find(w, kv, hk, warp);
    struct slots s = { p.slots + warp * f.n_slots * SLOT, f.n_slots, 0 };
    begin_pieces(s, w, kv, hk, warp, host.n ? 0 : see_all.own);
    load_queries(f, p);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2 * TILES; i++)
        rows.cq[i / 2][i % 2] = 8 * i < f.kept ? p.cq[8 * i + lane / 4] : 0.0f;

    auto next = [&]() { return arrive(s, w, kv, hk, warp); };
#pragma unroll 1
    for (int c = c_first; c <= end; c = i16_chunk(host, c, gridDim.y)) {
        int p0 = c * CHUNK + warp * BLOCK;
        bool seen = p0 <= see_all.last && p0 + BLOCK > see_all.first;
        struct i16_weights weights[TILES];
        weigh_block<TILES, EIGHTS>(next, f, p, rows, seen, p0, weights);
        __syncthreads();
        if (threadIdx.x < f.kept)
            join_blocks(f, p, c);
#pragma unroll 1
        for (int d = 32 * w.first_value; d < 32 * (w.first_value + n_values); d += 32) {
            float *sums = p.sums + d / 32 % 2 * WARPS * f.kept * 32;
            if (seen) {
                const char *at = next() + (lane % 4 * 2 + lane / 16) * LINE;
#pragma unroll
                for (int i = 0; i < TILES; i++) {
                    struct i16_sums v;
                    i16_values(v, weights[i], at, i16_spread(lane), 8 * LINE);
                    put_sums<EIGHTS>(sums + warp * f.kept * 32, f.kept, i, v);
                }
            }
            __syncthreads();
            join_sums(f, p, sums, min(f.kept, rows_of(f, sequence) - first_row), c, d);
        }
    }
}

/* Slots for a GPU whose blocks may have so much memory: two blocks at once where there is much. */
static int slots_for(size_t shared_bytes, int kept, int hd)
{
    enum { MUCH = 128 << 10, OF_SYSTEM = 2 << 10 };
    size_t most = shared_bytes >= MUCH ? shared_bytes / 2 - OF_SYSTEM : shared_bytes;
    int n = MOST_SLOTS;
    while (n > 2 && bytes_for(n, kept, hd) > most)
        n--;
    return n;
}

/* How many thread blocks may share so many pieces of values evenly, where there is room for `most`. */
static int sharers(int n_pieces, int most)
{
    int n = min(n_pieces, max(most, 1));
    while (n_pieces % n)
        n--;
    return n;
}

template <int TILES, int EIGHTS>
static cudaError_t start(cudaStream_t st, struct few_rows f, int n_units, size_t shared_bytes)
{
    f.n_slots = slots_for(shared_bytes, f.kept, f.o.kv.hd_k);
    size_t bytes = bytes_for(f.n_slots, f.kept, f.o.kv.hd_k);
    int x = f.parts.n * f.o.kv.n_kv_head * f.n_groups, y = min(f.o.n_chunks, max(1, 2 * n_units / x));
    cudaError_t e = allow_bytes(few<TILES, EIGHTS>, bytes);
    dim3 grid(x, y, sharers(f.o.kv.hd_v / 32, n_units / (x * y)));
    return e == cudaSuccess ? launch_early(few<TILES, EIGHTS>, grid, THREADS, bytes, st, f) : e;
}

/* folds: the result is put out, too. */
static cudaError_t start_partials(cudaStream_t st, const struct i16_attention &o, const struct cu_parts &parts,
                                  int n_units, size_t shared_bytes, bool *folds)
{
    struct few_rows f = { o, parts, 0, 0, 0, is_whole(o) };
    *folds = f.whole;
    int most = 0;
    for (int i = 0; i < parts.n; i++)
        most = max(most, parts.first[i + 1] - parts.first[i]);
    int n_rows = most * (o.a.n_head / o.kv.n_kv_head);
    if (pf_cu_i16_takes_eight(&o, &parts, n_rows, n_units))
        return pf_cu_i16_eight(st, &o, &parts, n_units, folds);
    f.kept = min(32, ceil_div(n_rows, 8) * 8);
    while (f.kept > 8 && bytes_for(2, f.kept, o.kv.hd_k) > shared_bytes)
        f.kept -= 8;
    f.n_groups = ceil_div(n_rows, f.kept);
    if (f.kept > 16)
        return start<2, 2>(st, f, n_units, shared_bytes);
    return f.kept > 8 ? start<1, 2>(st, f, n_units, shared_bytes) : start<1, 1>(st, f, n_units, shared_bytes);
}

/* Up to CU_VECTOR_ROWS rows, of one sequence or of several. Partials of which the host makes some are folded later. */
static cudaError_t start_parts(cudaStream_t st, const struct i16_attention &o, const struct cu_parts &parts,
                               int n_units, size_t shared_bytes)
{
    bool folds;
    cudaError_t e = start_partials(st, o, parts, n_units, shared_bytes, &folds);
    return e == cudaSuccess && !folds && !o.s.by_host ? pf_cu_i16_fold(st, &o) : e;
}

static cudaError_t start_few(cudaStream_t st, const struct i16_attention &o, int n_units, size_t shared_bytes)
{
    struct cu_parts one = { 1, { o.kv }, { 0, o.a.rows } };
    return start_parts(st, o, one, n_units, shared_bytes);
}

/* More rows, so many at a time: what in_turn_is_faster knows the time of. */
enum { TURN_ROWS = 8 };
static_assert((int)TURN_ROWS <= (int)CU_VECTOR_ROWS, "as many as start_few takes");

static cudaError_t start_in_turn(cudaStream_t st, struct i16_attention o, int n_units, size_t shared_bytes)
{
    struct pf_attention_op a = o.a;
    cudaError_t e = cudaSuccess;
    for (int first = 0; e == cudaSuccess && first < a.rows; first += TURN_ROWS) {
        o.a.rows = min(a.rows - first, (int)TURN_ROWS);
        o.a.pos = a.pos + first;
        o.a.out = a.out + (size_t)first * a.n_head * o.kv.hd_v;
        e = start_few(st, o, n_units, shared_bytes);
        o.s.q += (size_t)TURN_ROWS * a.n_head * 2 * o.kv.hd_k;
        o.s.cq += (size_t)TURN_ROWS * a.n_head;
    }
    return e;
}

/* Whether rows are done sooner a few at a time than in tiles, of which there may be too few for the GPU. Estimates in
 * microseconds for an H200: 1.5 for a block of positions in a tile; 8 for TURN_ROWS rows, and what their keys and
 * values take at 2.5 TB/s, which holds as long as reading is what these rows wait for. */
static bool in_turn_is_faster(const struct i16_attention &o, int n_units)
{
    int64_t span = o.a.n_positions, rows = (int64_t)o.a.rows * (o.a.n_head / o.kv.n_kv_head);
    if (o.a.window && o.a.window + o.a.rows < span)
        span = o.a.window + o.a.rows;
    int n_tiles = ceil_div(rows, 64) * o.kv.n_kv_head;
    double tiles = 1.5 * (double)(span / BLOCK) * ceil_div(n_tiles, 2 * n_units),
           bytes = (double)span * o.kv.n_kv_head *
                   (double)(pf_i16_key_bytes(o.kv.hd_k) + pf_i16_value_bytes(o.kv.hd_v)),
           few = ceil_div(o.a.rows, TURN_ROWS) * (8 + bytes * 0.4e-6);
    return few < tiles;
}

extern "C" cudaError_t pf_cu_i16_attention(cudaStream_t st, const struct pf_attention_op *a, int n_chunks,
                                           const struct cu_i16 *s, const struct cu_far *far, const struct cu_x *x,
                                           const struct cu_heads *heads, size_t shared_bytes, int *fault)
{
    struct i16_attention o = { *a, *a->kv, *s, n_chunks, *x, fault };
    int n_units;
    cudaError_t e = ask_device(cudaDevAttrMultiProcessorCount, &n_units);
    if (e == cudaSuccess)
        e = pf_cu_i16_queries(st, a, s, heads);
    if (e == cudaSuccess && far)
        e = pf_cu_far_show(st, a, s, far);
    if (e != cudaSuccess)
        return e;
    if (a->rows <= CU_VECTOR_ROWS)
        return start_few(st, o, n_units, shared_bytes);
    o.x.q = NULL;
    if (!pf_cu_i16_takes_many(&o, shared_bytes) || in_turn_is_faster(o, n_units))
        return start_in_turn(st, o, n_units, shared_bytes);
    return pf_cu_i16_takes_groups(&o, shared_bytes) ? pf_cu_i16_groups(st, &o) : pf_cu_i16_many(st, &o, shared_bytes);
}

extern "C" cudaError_t pf_cu_i16_together(cudaStream_t st, const struct pf_attention_op *a,
                                          const struct cu_parts *parts, int n_chunks, const struct cu_i16 *s,
                                          const struct cu_x *x, const struct cu_heads *heads, size_t shared_bytes,
                                          int *fault)
{
    struct i16_attention o = { *a, *a->kv, *s, n_chunks, *x, fault };
    int n_units;
    cudaError_t e = ask_device(cudaDevAttrMultiProcessorCount, &n_units);
    if (e == cudaSuccess)
        e = pf_cu_i16_queries_of(st, a, s, heads, parts);
    return e == cudaSuccess ? start_parts(st, o, *parts, n_units, shared_bytes) : e;
}
