/* The keys that an indexer finds worth attending to, as kernels/cpu/cpu_choose.c defines them: a score per key, and
 * the best of each row, in rising order. Rows go in blocks of CU_CHOOSE_ROWS, whose scores are scratch. */
#include "kernels/cuda/cu_attention.h"

enum { SCORE_THREADS = CHUNK, CHOOSE_THREADS = 1024, DIGITS = 256 };

struct choose {
    struct pf_choose_op op;
    struct pf_kv_view   kv;
    float              *scores;
    int                 max_positions, first;      /* row of the block */
};

CU_INLINE int n_seen(const struct choose &o, int row)
{
    return pf_choose_seen(&o.op, o.op.pos[row]);
}

/* blockIdx: chunk, row. A thread takes a key. */
template <class E>
static __global__ void __launch_bounds__(SCORE_THREADS) score_chunk(const __grid_constant__ struct choose o)
{
    BLOCK_MEMORY(float, q);              /* [n_head][hd_k] */
    wait_turn();
    int row = o.first + blockIdx.y, at = blockIdx.x * CHUNK + threadIdx.x, seen = n_seen(o, row),
        n = o.op.n_head * o.kv.hd_k;
    if ((int)blockIdx.x * CHUNK >= seen || seen <= o.op.max_chosen)
        return;
    for (int i = threadIdx.x; i < n; i += SCORE_THREADS)
        q[i] = o.op.q[(size_t)row * n + i];
    __syncthreads();
    if (at >= seen)
        return;
    const E *k = (const E *)o.kv.k + pf_kv_row(&o.kv, at, 0) * o.kv.hd_k;
    float score = 0;
    for (int h = 0; h < o.op.n_head; h++) {
        float d = dot(q + h * o.kv.hd_k, k, o.kv.hd_k);
        score = fmaf(o.op.w ? o.op.w[(size_t)row * o.op.n_head + h] : 1.0f, d > 0 ? d : 0, score);
    }
    o.scores[(size_t)blockIdx.y * o.max_positions + at] = score;
}

/* Scores of runs of keys, for heads that choose for themselves: a list of scores for each head. */
template <class E>
static __global__ void __launch_bounds__(SCORE_THREADS) score_runs(const __grid_constant__ struct choose o)
{
    BLOCK_MEMORY(float, q);              /* [n_head][hd_k] */
    __shared__ float dots[SCORE_THREADS];
    wait_turn();
    int row = o.first + blockIdx.y, at = blockIdx.x * CHUNK + threadIdx.x, seen = o.op.pos[row] + 1,
        n_runs = n_seen(o, row), n = o.op.n_head * o.kv.hd_k, run = at / o.op.run;
    float *scores = o.scores + (size_t)blockIdx.y * o.max_positions;
    if ((int)blockIdx.x * CHUNK >= seen || n_runs <= o.op.max_chosen)
        return;
    for (int i = threadIdx.x; i < n; i += SCORE_THREADS)
        q[i] = o.op.q[(size_t)row * n + i];
    __syncthreads();
    const E *k = (const E *)o.kv.k + pf_kv_row(&o.kv, at < seen ? at : 0, 0) * o.kv.hd_k;
    for (int h = 0; h < o.op.n_head; h++) {
        dots[threadIdx.x] = at < seen ? dot(q + h * o.kv.hd_k, k, o.kv.hd_k) : -INFINITY;
        __syncthreads();
        if (at < seen && threadIdx.x % o.op.run == 0) {
            float top = -INFINITY;
            for (int i = threadIdx.x; i < (int)threadIdx.x + o.op.run; i++)
                top = dots[i] > top ? dots[i] : top;
            scores[(size_t)h * n_runs + run] = run >= n_runs - o.op.n_local ? INFINITY : top;
        }
        __syncthreads();
    }
}

/* Larger floats have larger ranks. */
CU_INLINE uint32_t rank_of(float x)
{
    uint32_t bits = pf_float_bits(x);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

/* The k-th largest rank of n scores; *n_equal: how many of that rank are among the k. */
CU_INLINE uint32_t kth_largest(const float *score, int n, int k, int *n_equal)
{
    __shared__ int count[DIGITS], digit, left;
    uint32_t found = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        if (threadIdx.x < DIGITS)
            count[threadIdx.x] = 0;
        __syncthreads();
        for (int i = threadIdx.x; i < n; i += CHOOSE_THREADS) {
            uint32_t rank = rank_of(score[i]);
            if (shift == 24 || rank >> (shift + 8) == found >> (shift + 8))
                atomicAdd(&count[rank >> shift & 255], 1);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            left = k;
            for (digit = DIGITS - 1; count[digit] < left; digit--)
                left -= count[digit];
        }
        __syncthreads();
        found |= (uint32_t)digit << shift;
        k = left;
        __syncthreads();
    }
    *n_equal = k;
    return found;
}

/* How many threads before this one say yes; *total: how many of the block. */
CU_INLINE int yes_before(bool yes, int *total)
{
    __shared__ int in_warp[CHOOSE_THREADS / WARP];
    int warp = threadIdx.x / WARP, before = 0, all = 0;
    uint32_t votes = __ballot_sync(ALL_LANES, yes);
    if (threadIdx.x % WARP == 0)
        in_warp[warp] = __popc(votes);
    __syncthreads();
    for (int w = 0; w < CHOOSE_THREADS / WARP; w++) {
        before += w < warp ? in_warp[w] : 0;
        all += in_warp[w];
    }
    __syncthreads();
    *total = all;
    return before + __popc(votes & ((1u << threadIdx.x % WARP) - 1));
}

/* blockIdx: row, list. */
static __global__ void __launch_bounds__(CHOOSE_THREADS) choose_row(const __grid_constant__ struct choose o)
{
    wait_turn();
    int row = o.first + blockIdx.x, n = n_seen(o, row), n_equal = 0, n_out = 0, n_met = 0;
    int32_t *out = o.op.chosen + ((size_t)row * gridDim.y + blockIdx.y) * o.op.max_chosen;
    const float *score = o.scores + (size_t)blockIdx.x * o.max_positions + (size_t)blockIdx.y * n;
    if (n <= o.op.max_chosen) {
        for (int p = threadIdx.x; p < n; p += CHOOSE_THREADS)
            out[p] = p;
        return;
    }
    uint32_t least = kth_largest(score, n, o.op.max_chosen, &n_equal);
    for (int p0 = 0; p0 < n; p0 += CHOOSE_THREADS) {
        int p = p0 + threadIdx.x, n_same, n_taken;
        uint32_t rank = p < n ? rank_of(score[p]) : 0;
        bool equal = p < n && rank == least;
        int same_before = n_met + yes_before(equal, &n_same);
        bool taken = (p < n && rank > least) || (equal && same_before < n_equal);
        int at = n_out + yes_before(taken, &n_taken);
        if (taken)
            out[at] = p;
        n_met += n_same;
        n_out += n_taken;
    }
}

extern "C" cudaError_t pf_cu_choose(cudaStream_t st, const struct pf_choose_op *c, float *scores, int max_positions)
{
    struct choose o = { *c, *c->kv, scores, max_positions, 0 };
    size_t bytes = (size_t)c->n_head * c->kv->hd_k * sizeof(float);
    auto score = c->kv->type == PF_KV_F16 ? (c->run ? score_runs<uint16_t> : score_chunk<uint16_t>)
                                          : (c->run ? score_runs<float> : score_chunk<float>);
    cudaError_t e = allow_bytes(score, bytes);
    for (; e == cudaSuccess && o.first < c->rows; o.first += CU_CHOOSE_ROWS) {
        int rows = c->rows - o.first < CU_CHOOSE_ROWS ? c->rows - o.first : (int)CU_CHOOSE_ROWS;
        e = launch_early(score, dim3(ceil_div(max_positions, CHUNK), rows), SCORE_THREADS, bytes, st, o);
        if (e == cudaSuccess)
            e = launch_early(choose_row, dim3(rows, c->run ? c->n_head : 1), CHOOSE_THREADS, 0, st, o);
    }
    return e;
}
