/* Attention to a latent in whole numbers, of one tile of 16 rows (tokens by query heads) that sees many blocks: each
 * thread block comes to several of them, and has a multiprocessor to itself. Some of its warps copy blocks to shared
 * memory and some make weights of a block while others sum the values of the block before, so that none waits where
 * another does.
 *
 *     producer   blocks, to two turns of shared memory; the one behind them is on its way to the second cache
 *                    | ready                               who goes on calls arrive(), who waits meet()
 *     scorer     (half, quarter) of eight: exact sums of a quarter of the latent's elements meet in shared memory; of
 *                the other part, whose elements are few, it sums those that it weighs
 *                    | full                                a turn of weights goes with one of a block
 *     summer     one of eight: weighted sums
 *                    | free, for the producer
 *
 * cu_i16_latent_tile.h says what a lane has of them. A block lies in shared memory as it does in memory, but for the
 * eight pieces of 16 bytes of a line of 128 (a word of 32 positions, a plane): their numbers are swapped by the word's
 * (swap_of), so that eight lanes which read together touch all banks, as keys and as values. */
#include "kernels/cuda/cu_i16_latent_tile.h"

enum {
    ROWS = TILE_ROWS, KIND = WARPS * WARP,               /* scorers; summers */
    PRODUCERS = 4 * WARP, THREADS = 2 * KIND + PRODUCERS,
    TURNS = 2, LINE_PIECES = LINE / 16,
    PIECE_BYTES = PRODUCERS * 16,                        /* from a producer's piece to its next one */
    RUN_BYTES = KIND * 2 * HALF,                         /* from a run's words to those of the summer's next one */
    SUMS = 4 * WARP,                                     /* of four tiles of 8 columns */
    HALVES = 1, SCORED = HALVES + 2, READY = SCORED + 1, FULL = READY + TURNS, FREE = FULL + TURNS   /* barriers */
};
static_assert(KIND >= 8 * ROWS, "a summer has one sum of weights at most");
static_assert(PRODUCERS / LINE_PIECES % 8 == 0, "the words of a producer's pieces are swapped alike");

/* A scorer's, a summer's number among those of its kind. */
CU_INLINE int number(void)
{
    return threadIdx.x % KIND;
}

/* Scales of a block, as they lie behind it. */
struct scales {
    float s[BLOCK], sp[BLOCK], lsv[BLOCK], rsv[BLOCK];
};

/* What scorers give summers of a block. */
struct given {
    uint32_t weights[2][2][4][WARP];      /* of half of the positions: upper, lower; as operands */
    float m[ROWS][WARPS], e[ROWS][E_STRIDE];
};

/* A thread block's shared memory; behind it queries, [hd_k / 16][32] of 16 bytes, then TURNS blocks. */
struct place {
    uint4 sums[2][QUARTERS][SUMS];        /* of the latent */
    struct given turns[TURNS];
    float2 cq[ROWS];
    struct i16_row of[ROWS];
};
static_assert(sizeof(struct place) % 16 == 0, "queries are read by 16 bytes");

CU_INLINE char *queries_of(struct place &p)
{
    return (char *)(&p + 1);
}

CU_INLINE char *block_of(struct place &p, int hd, int turn)
{
    return queries_of(p) + ROWS * 2 * hd + turn * (int)pf_latent_block(hd, BLOCK);
}

CU_INLINE const struct scales &scales_of(const char *block, int hd)
{
    return *(const struct scales *)(block + (int)pf_latent_scales(hd, 0));
}

/* By what the numbers of word w's pieces are swapped. */
CU_INLINE int swap_of(int w)
{
    return 2 * (w % 4) ^ w % 2;
}

/* ---- Scores ------------------------------------------------------------------------------------------------------ */

CU_INLINE void multiply(struct i16_sums &s, const struct step_words &k, const char *q)
{
    uint4 a = *(const uint4 *)q;
#pragma unroll
    for (int c = 0; c < 4; c++)
        mma16_add<true>(s.upper[c], a.x, a.y, k.upper[c]);
#pragma unroll
    for (int c = 0; c < 4; c++)
        mma16_add<true>(s.middle[c], a.z, a.w, k.upper[c]);
#pragma unroll
    for (int c = 0; c < 4; c++)
        mma16_add<true>(s.middle[c], a.x, a.y, k.lower[c]);
}

/* Sums of all quarters as they enter scores: exact until they become floats. */
CU_INLINE void add_up(const uint4 *from, float (&out)[4])
{
    uint4 sum = from[0];
#pragma unroll
    for (int i = 1; i < QUARTERS; i++) {
        uint4 v = from[i * SUMS];
        sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
    }
    out[0] = (float)(int)sum.x, out[1] = (float)(int)sum.y, out[2] = (float)(int)sum.z, out[3] = (float)(int)sum.w;
}

/* A scorer: what it sums and weighs. */
struct scorer {
    int hd, n_latent, n_others;           /* steps of the latent, of the other part */
    int first, n;                         /* its quarter's */
    int half, quarter, at;                /* its lane's positions: at, and four further */

    __device__ __forceinline__ void begin(const struct pf_kv_view &kv)
    {
        int warp = uniform(number() / WARP);
        hd = kv.hd_k;
        half = warp / QUARTERS, quarter = warp % QUARTERS;
        n_latent = kv.hd_v / STEP;
        first = first_step(n_latent, quarter);
        n = first_step(n_latent, quarter + 1) - first;
        n_others = hd / STEP - n_latent;
        at = half * HALF + threadIdx.x % WARP % 4 * 8 + quarter;
    }
    /* Where word w of the lane's four positions lies, whose number is lane % 4 in its step. */
    __device__ __forceinline__ const char *word_of(const char *block, int w) const
    {
        int j = threadIdx.x % 4, piece = threadIdx.x % WARP / 4 ^ swap_of(j);
        return block + (int)pf_latent_at(hd, half * HALF, (w + j) * 4) + piece * 16;
    }
};

/* Sums of a quarter of the latent go to shared memory; those of the other part to `other`, of the tile of 8 columns
 * that the warp weighs. */
CU_INLINE void sum_scores(struct place &p, const struct scorer &me, const char *block, int (&other)[4])
{
    int lane = threadIdx.x % WARP, upper[4] = {}, middle[4] = {};
    const char *queries = queries_of(p) + lane * 16, *q = queries + me.first * WARP * 16,
               *at = me.word_of(block, me.first * 4);
    struct i16_sums s = {};
#pragma unroll 4
    for (int i = 0; i < me.n; i++) {
        struct step_words k;
        k.load(at + i * STEP_BYTES);
        multiply(s, k, q + i * WARP * 16);
    }
    auto sum = [&](int c, int i) { return (unsigned)(256 * s.upper[c][i] + s.middle[c][i]); };
#pragma unroll
    for (int c = 0; c < 4; c++)
        p.sums[me.half][me.quarter][c * WARP + lane] = make_uint4(sum(c, 0), sum(c, 1), sum(c, 2), sum(c, 3));
    q = queries + me.n_latent * WARP * 16;
    at = me.word_of(block, me.n_latent * 4) + me.quarter * 4;
#pragma unroll 4
    for (int i = 0; i < me.n_others; i++) {
        uint4 a = *(const uint4 *)(q + i * WARP * 16);
        uint32_t k_upper = *(const uint32_t *)(at + i * STEP_BYTES),
                 k_lower = *(const uint32_t *)(at + i * STEP_BYTES + PF_LATENT_PLANE);
        mma16_add<true>(upper, a.x, a.y, k_upper);
        mma16_add<true>(middle, a.z, a.w, k_upper);
        mma16_add<true>(middle, a.x, a.y, k_lower);
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        other[i] = 256 * upper[i] + middle[i];
}

/* y of the lane's positions and rows: rows g, g + 8 by two positions each; and the largest that the warp has, shown.
 * other: sums of the other part. */
CU_INLINE void score(struct place &p, struct given &to, const struct scorer &me, const struct scales &by,
                     const int (&other)[4], bool cut, int p0, float (&y)[4])
{
    int lane = threadIdx.x % WARP;
    float latent[4];
    add_up(&p.sums[me.half][0][me.quarter * WARP + lane], latent);
#pragma unroll
    for (int c = 0; c < 4; c++) {
        int row = c / 2 * 8 + lane / 4, at = me.at + 4 * (c % 2);
        float2 cq = p.cq[row];
        float v = by.lsv[at];
        if (me.n_others)
            v = fmaf((float)other[c] * by.sp[at], cq.y, v);
        v = fmaf(latent[c] * by.s[at], cq.x, v);
        if (cut)
            v = p0 + at < p.of[row].first || p0 + at > p.of[row].pos ? -INFINITY : v;
        y[c] = v;
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float m = fmaxf(y[2 * r + 1], fmaxf(y[2 * r], -INFINITY));                /* a NaN is left out */
#pragma unroll
        for (int h = 1; h < 4; h *= 2)
            m = fmaxf(m, __shfl_xor_sync(ALL_LANES, m, h));
        if (lane % 4 == 0)
            to.m[8 * r + lane / 4][me.half * QUARTERS + me.quarter] = m;
    }
}

/* ---- Weights ----------------------------------------------------------------------------------------------------- */

/* Weights as operands, and as floats for their sums. */
CU_INLINE void weigh(struct given &to, const struct scorer &me, const float (&y)[4])
{
    int lane = threadIdx.x % WARP;
    float m[2] = { largest(to.m[lane / 4]), largest(to.m[8 + lane / 4]) };
#pragma unroll
    for (int c = 0; c < 4; c++) {
        uint8_t *at = (uint8_t *)&to.weights[me.half][0][c / 2 + c % 2 * 2][lane] + me.quarter;
        to.e[c / 2 * 8 + lane / 4][me.at + c % 2 * 4] = put_weight(at, y[c], m[c / 2]);
    }
}

/* ---- Values ------------------------------------------------------------------------------------------------------ */

/* A plane of 32 elements and 32 positions as operands; at: the lane's first piece, `second` bytes before the other. */
CU_INLINE void load_values(const char *at, int second, uint32_t (&v)[2][4])
{
    turn_over(*(const uint4 *)at, v[0]);
    turn_over(*(const uint4 *)(at + second), v[1]);
}

/* Adds products of a plane of 32 positions. */
CU_INLINE void add_products(int (&s)[4][4], const uint32_t (&weights)[4][WARP], const uint32_t (&v)[2][4])
{
    uint32_t w[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        w[i] = weights[i][threadIdx.x % WARP];
#pragma unroll
    for (int i = 0; i < 4; i++)
        mma32_more<false>(s[i], w, v[0][i], v[1][i]);
}

/* Exact weighted sums of 32 elements whose words lie at `at` and half_bytes further; second: see load_values. Products
 * of upper planes come first: times 256 they are what the others are added to, and a sum is one register. */
CU_INLINE void sum_values(const struct given &from, const char *at, int half_bytes, int second, int (&s)[4][4])
{
    uint32_t upper[2][2][4], lower[2][4];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        load_values(at + half * half_bytes, second, upper[half]);
        add_products(s, from.weights[half][0], upper[half]);
    }
#pragma unroll
    for (int i = 0; i < 16; i++)
        s[i / 4][i % 4] *= 256;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        add_products(s, from.weights[half][1], upper[half]);
        load_values(at + half * half_bytes + PF_LATENT_PLANE, second, lower);
        add_products(s, from.weights[half][0], lower);
    }
}

/* ---- Sums -------------------------------------------------------------------------------------------------------- */

/* A summer: its elements, and what its lane has of its rows in a chunk, or in a block alone. */
struct summer {
    int d, n;                             /* 32 elements from d on, from d + KIND on ..: n runs */
    int at, second, half_bytes;           /* where its lane's words lie in a block: two pieces, in both halves */
    float acc[RUNS][4][4], m[2];
    struct sum_of_weights w;              /* in the first 8 ROWS summers */

    __device__ __forceinline__ void begin(const struct pf_kv_view &kv)
    {
        int lane = threadIdx.x % WARP;
        d = uniform(number() / WARP) * 32;
        n = (kv.hd_v - d + KIND - 1) / KIND;
        int piece = lane % 4 * 2 ^ swap_of(lane / 4);
        at = (int)pf_latent_at(kv.hd_k, 0, d + lane / 4 * 4) + piece * 16;
        second = (piece ^ 1) * 16 - piece * 16;
        half_bytes = (int)pf_latent_at(kv.hd_k, HALF, 0);
        clear();
    }
    __device__ __forceinline__ void clear(void)
    {
        m[0] = m[1] = -INFINITY;
        w.m = -INFINITY, w.z = 0;
#pragma unroll
        for (int u = 0; u < RUNS; u++)
#pragma unroll
            for (int i = 0; i < 16; i++)
                acc[u][i / 4][i % 4] = 0;
    }
};

/* A block that begins at position p0 enters a sum of weights. */
CU_INLINE void add_weights(const struct place &p, const struct given &from, const float *rsv, int p0, bool by_block,
                           struct sum_of_weights &w)
{
    int r = number() / 8;
    float z = weights_of(from.e[r], rsv, p.of[r], p0, threadIdx.x % 8);
    struct i16_join j = i16_joined(w.m, largest(from.m[r]));
    w.z = by_block ? z : fmaf(w.z, j.old, z * j.fresh);
}

/* Each row's partial, number `item`. */
CU_INLINE void put_partials(const struct latent_attention &f, const struct place &p, const struct summer &s, int item)
{
    const struct i16_attention &o = f.o;
    int lane = threadIdx.x % WARP, r = number() / 8;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        struct i16_row row = p.of[8 * half + lane / 4];
        float *to = o.s.part + part_of(o, row, item) * o.kv.hd_v + s.d + lane % 4 * 8;
#pragma unroll
        for (int u = 0; u < RUNS; u++)
            if (row.there && u < s.n)
                put_values(to + u * KIND, s.acc[u], 2 * half);
    }
    if (r < ROWS)
        put_weights(o, p.of[r], p.cq[r].x == p.cq[r].x, f.by_block, item, s.w);
}

/* A block enters the sums, by the weights that were given for it. */
CU_INLINE void sum_block(const struct given &from, const char *block, bool by_block, struct summer &s)
{
    int lane = threadIdx.x % WARP;
    struct i16_join j[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        j[r] = i16_joined(s.m[r], largest(from.m[8 * r + lane / 4]));
        j[r].fresh *= PF_I16_GAIN;
        if (by_block)
            j[r] = { 0, 1 };
    }
#pragma unroll
    for (int u = 0; u < RUNS; u++) {
        int sum[4][4] = {};
        if (u >= s.n)
            continue;
        sum_values(from, block + s.at + u * RUN_BYTES, s.half_bytes, s.second, sum);
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int c = 0; c < 4; c++)
                s.acc[u][i][c] = fmaf((float)sum[i][c], j[c / 2].fresh, s.acc[u][i][c] * j[c / 2].old);
    }
}

/* ---- The kernel -------------------------------------------------------------------------------------------------- */

CU_INLINE void load_queries(const struct i16_attention &o, struct place &p)
{
    const uint4 *from = (const uint4 *)o.s.q;
#pragma unroll 4
    for (int i = threadIdx.x; i < ROWS * 2 * o.kv.hd_k / 16; i += THREADS)
        ((uint4 *)queries_of(p))[i] = from[i];
    if (threadIdx.x < ROWS)
        p.cq[threadIdx.x] = p.of[threadIdx.x].there ? latent_factors(o)[threadIdx.x] : make_float2(0, 0);
}

/* A block that the thread block comes to. */
struct spot {
    int b;
    size_t at;                            /* where it lies behind the first chunk */

    __device__ __forceinline__ const char *in(const struct pf_kv_view &kv) const
    {
        return (const char *)kv.k + at;
    }
};

/* The thread block's blocks: `per` in a row, 1 or as many as a chunk has, those of all thread blocks in turn. */
struct walk {
    int end, per;

    __device__ __forceinline__ int after(int b) const
    {
        return (b + 1) & (per - 1) ? b + 1 : b + 1 + ((int)gridDim.x - 1) * per;
    }
    __device__ __forceinline__ struct spot at(const struct pf_kv_view &kv, int b) const
    {
        return { b, (size_t)(latent_block_of(kv, b) - (const char *)kv.k) };
    }
    __device__ __forceinline__ struct spot after(const struct pf_kv_view &kv, struct spot s) const
    {
        int b = after(s.b);
        return b == s.b + 1 && b % N_BLOCKS ? spot{ b, s.at + pf_latent_block(kv.hd_k, BLOCK) } : at(kv, b);
    }
};

/* A producer: where its first piece lies in a block, in memory and in shared memory. */
struct producer {
    int hd, from, to;

    __device__ __forceinline__ void begin(const struct pf_kv_view &kv)
    {
        int x = threadIdx.x % PRODUCERS, line = x / LINE_PIECES, piece = x % LINE_PIECES;
        hd = kv.hd_k;
        from = x * 16;
        to = line * LINE + (piece ^ swap_of(line / 2)) * 16;
    }
    __device__ __forceinline__ void copy(char *to_block, const char *block) const
    {
        int n = hd * 2 * BLOCK / PIECE_BYTES, scales = (int)pf_latent_scales(hd, 0) + from;
#pragma unroll 4
        for (int i = 0; i < n; i++)
            __pipeline_memcpy_async(to_block + to + i * PIECE_BYTES, block + from + i * PIECE_BYTES, 16);
        if (from < (int)sizeof(struct scales))
            __pipeline_memcpy_async(to_block + scales, block + scales, 16);
        __pipeline_commit();
    }
    __device__ __forceinline__ void send_for(const char *block) const
    {
        if (from == 0)
            fetch_ahead((const uint8_t *)block, pf_latent_block(hd, BLOCK));
    }
};

/* The first n blocks are on their way, one or two, and s is the block behind them. A block is said to be ready before
 * the turn of the one before it is waited for. */
CU_INLINE void produce(const struct i16_attention &o, struct place &p, const struct walk &blocks, struct spot s, int n,
                       const struct producer &me)
{
    if (s.b <= blocks.end)
        me.send_for(s.in(o.kv));
    if (n == 2)
        __pipeline_wait_prior(1);
    else
        __pipeline_wait_prior(0);
    arrive(READY, KIND + PRODUCERS);
#pragma unroll 1
    for (int i = 1; i < n; i++) {
        int turn = i % TURNS;
        __pipeline_wait_prior(0);
        arrive(READY + turn, KIND + PRODUCERS);
        if (s.b > blocks.end)
            continue;
        meet(FREE + (turn ^ 1), KIND + PRODUCERS);
        me.copy(block_of(p, me.hd, turn ^ 1), s.in(o.kv));
        s = blocks.after(o.kv, s);
        if (s.b <= blocks.end)
            me.send_for(s.in(o.kv));
        n++;
    }
}

CU_INLINE void score_blocks(const struct i16_attention &o, struct place &p, const struct range &all,
                            const struct walk &blocks, int b)
{
    struct scorer me;
    me.begin(o.kv);
#pragma unroll 1
    for (int n = 0; b <= blocks.end; b = blocks.after(b), n++) {
        bool cut = b * BLOCK < all.from || b * BLOCK + BLOCK - 1 > all.to;
        int turn = n % TURNS, other[4];
        const char *block = block_of(p, me.hd, turn);
        float y[4];
        meet(READY + turn, KIND + PRODUCERS);
        sum_scores(p, me, block, other);
        meet(HALVES + me.half, KIND / 2);
        score(p, p.turns[turn], me, scales_of(block, me.hd), other, cut, b * BLOCK, y);
        meet(SCORED, KIND);
        weigh(p.turns[turn], me, y);
        arrive(FULL + turn, 2 * KIND);
    }
}

CU_INLINE void sum_blocks(const struct latent_attention &f, struct place &p, const struct walk &blocks, int b)
{
    const struct i16_attention &o = f.o;
    struct summer s;
    s.begin(o.kv);
#pragma unroll 1
    for (int n = 0, next; b <= blocks.end; b = next, n++) {
        int turn = n % TURNS;
        const char *block = block_of(p, o.kv.hd_k, turn);
        next = blocks.after(b);
        meet(FULL + turn, 2 * KIND);
        if (number() < 8 * ROWS)
            add_weights(p, p.turns[turn], scales_of(block, o.kv.hd_k).rsv, b * BLOCK, f.by_block, s.w);
        sum_block(p.turns[turn], block, f.by_block, s);
        if (next <= blocks.end && blocks.after(next) <= blocks.end)
            arrive(FREE + turn, KIND + PRODUCERS);
        if ((next & (blocks.per - 1)) == 0 || next > blocks.end) {
            put_partials(f, p, s, b / blocks.per);
            s.clear();
        }
    }
}

/* blockIdx: one of those that share chunks, or blocks. */
static __global__ void __launch_bounds__(THREADS, 1) latent_long(const __grid_constant__ struct latent_attention f)
{
    BLOCK_MEMORY(float4, shared);
    struct place &p = *(struct place *)shared;
    const struct i16_attention &o = f.o;
    int kind = uniform(threadIdx.x / KIND), n = 0;
    struct range all = see<ROWS>(o, p.of, 0);
    int per = f.by_block ? 1 : N_BLOCKS, b = max((all.begin / per + (int)blockIdx.x) * per, all.begin);
    struct walk blocks = { all.end, per };
    struct spot next = blocks.at(o.kv, b);
    struct producer me;
    me.begin(o.kv);
    auto send_first = [&](int end) {         /* the first blocks that end there or before */
        for (; n < TURNS && next.b <= blocks.end && next.b * BLOCK + BLOCK <= end; n++) {
            me.copy(block_of(p, me.hd, n), next.in(o.kv));
            next = blocks.after(o.kv, next);
        }
    };
    int old = first_new(o);
    if (kind == 2)
        send_first(old);
    wait_turn();
    if (b > all.end)
        return;
    load_queries(o, p);
    if (kind == 2)
        send_first(INT32_MAX);
    __syncthreads();
    if (kind == 0)
        score_blocks(o, p, all, blocks, b);
    else if (kind == 1)
        sum_blocks(f, p, blocks, b);
    else
        produce(o, p, blocks, next, n, me);
}

static size_t bytes_for(const struct pf_kv_view &kv)
{
    return sizeof(struct place) + (size_t)ROWS * 2 * kv.hd_k + TURNS * pf_latent_block(kv.hd_k, BLOCK);
}

/* A single block is done sooner where all warps of a thread block are at it. */
extern "C" bool pf_cu_latent_takes_long(const struct latent_attention *f, int n_units, size_t shared_bytes)
{
    int n_blocks = f->by_block ? f->o.n_chunks : f->o.n_chunks * N_BLOCKS;
    return f->o.a.rows * f->o.a.n_head <= ROWS && n_blocks > n_units && bytes_for(f->o.kv) <= shared_bytes;
}

extern "C" cudaError_t pf_cu_latent_long(cudaStream_t st, const struct latent_attention *f, int n_units)
{
    size_t bytes = bytes_for(f->o.kv);
    cudaError_t e = allow_bytes(latent_long, bytes);
    return e != cudaSuccess ? e : launch_early(latent_long, min(f->o.n_chunks, n_units), THREADS, bytes, st, *f);
}
