/* Operations row by row or element by element: quantise, activation, sums, rotation, keys and values, copies. */
#include "kernels/cuda/cu_heads.h"
#include "kernels/cuda/cu_given.h"

enum { THREADS = 256 };

static __global__ void nothing(void)
{
}

extern "C" cudaError_t pf_cu_probe(cudaStream_t st)
{
    return launch_in_turn(nothing, 1, 1, 0, st);
}

extern "C" cudaError_t pf_cu_code(int *capability)
{
    cudaFuncAttributes of;
    cudaError_t e = cudaFuncGetAttributes(&of, nothing);
    *capability = e == cudaSuccess ? of.ptxVersion : 0;
    return e;
}

static __global__ void read_all(const uint4 *p, size_t n, uint32_t *out)
{
    uint32_t sum = 0;
    size_t step = (size_t)gridDim.x * blockDim.x;
#pragma unroll 8
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        uint4 v = __ldcs(p + i);
        sum |= v.x | v.y | v.z | v.w;
    }
    if (sum)                             /* the memory holds zeros */
        *out = sum;
}

extern "C" cudaError_t pf_cu_read(cudaStream_t st, const void *p, size_t n, uint32_t *out)
{
    return launch_in_turn(read_all, 2048, THREADS, 0, st, (const uint4 *)p, n / 16, out);
}

static __global__ void quantise(const __grid_constant__ struct cu_x x, int n, int stride, int *fault)
{
    wait_turn();
    int b = blockIdx.y * (THREADS / WARP) + threadIdx.x / WARP;
    if (b < n / 32)
        quantise_block(x.f[(size_t)blockIdx.x * stride + b * 32 + threadIdx.x % WARP], &x, n, blockIdx.x, b, fault);
}

static __global__ void quantise_fours(const __grid_constant__ struct cu_x x, int n4, int stride4, int *fault)
{
    wait_turn();
    int u = blockIdx.y * THREADS + threadIdx.x;
    float4 v = u < n4 ? ((const float4 *)x.f)[(size_t)blockIdx.x * stride4 + u] : make_float4(0, 0, 0, 0);
    struct codes c = codes_of(v);
    if (u < n4)
        put_codes(c, (size_t)blockIdx.x * n4 + u, x);
    if (!c.finite)
        *fault = CU_ACTIVATION_NOT_FINITE;
}

extern "C" cudaError_t pf_cu_quantise(cudaStream_t st, const struct cu_x *x, int n, int stride, int rows, int *fault)
{
    if (rows > CU_VECTOR_ROWS && by_fours(x->f, stride))
        return launch_early(quantise_fours, dim3(rows, ceil_div(n / 4, THREADS)), THREADS, 0, st, *x, n / 4, stride / 4,
                            fault);
    return launch_early(quantise, dim3(rows, ceil_div(n / 32, THREADS / WARP)), THREADS, 0, st, *x, n, stride, fault);
}

static __global__ void act_elements(struct pf_act act, const float *gate, const float *up, int64_t n, float *y)
{
    wait_turn();
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        y[i] = activation(act, gate[i], up[i]);
}

extern "C" cudaError_t pf_cu_act(cudaStream_t st, struct pf_act act, const float *gate, const float *up, int64_t n,
                                 float *y)
{
    return launch_early(act_elements, ceil_div(n, THREADS), THREADS, 0, st, act, gate, up, n, y);
}

/* A warp takes a block of 32. blockIdx.x: row; there may be more than a grid's y has room for. */
static __global__ void act_picks(struct pf_act act, const float *gate, const float *up,
                                 const __grid_constant__ struct cu_x x, int n, int n_blocks, const int32_t *picks,
                                 const uint8_t *const *only, int *fault)
{
    wait_turn();
    if (only && !only[picks[blockIdx.x]])
        return;
    int b = blockIdx.y * (THREADS / WARP) + threadIdx.x / WARP, i = b * 32 + threadIdx.x % WARP;
    size_t at = (size_t)blockIdx.x * n + i;
    if (b >= n_blocks)
        return;
    float a = i < n ? activation(act, gate[at], up[at]) : 0.0f;
    if (x.f && i < n)
        ((float *)x.f)[at] = a;
    if (x.q)
        quantise_block(a, &x, n, blockIdx.x, b, fault);
}

/* act_picks for rows of whole blocks; a thread takes four elements. */
static __global__ void act_fours(struct pf_act act, const float4 *gate, const float4 *up,
                                 const __grid_constant__ struct cu_x x, int n4, const int32_t *picks,
                                 const uint8_t *const *only, int *fault)
{
    wait_turn();
    if (only && !only[picks[blockIdx.x]])
        return;
    int u = blockIdx.y * THREADS + threadIdx.x;
    size_t at = (size_t)blockIdx.x * n4 + u;
    float4 a = make_float4(0, 0, 0, 0);
    if (u < n4) {
        float4 g = gate[at], m = up[at];
        a = make_float4(activation(act, g.x, m.x), activation(act, g.y, m.y), activation(act, g.z, m.z),
                        activation(act, g.w, m.w));
    }
    if (x.f && u < n4)
        ((float4 *)x.f)[at] = a;
    if (!x.q)
        return;
    struct codes c = codes_of(a);
    if (u < n4)
        put_codes(c, at, x);
    if (!c.finite)
        *fault = CU_ACTIVATION_NOT_FINITE;
}

extern "C" cudaError_t pf_cu_act_picks(cudaStream_t st, struct pf_act act, const float *gate, const float *up,
                                       const struct cu_x *x, int n, int rows, const int32_t *picks,
                                       const uint8_t *const *only, int *fault)
{
    if (rows > CU_VECTOR_ROWS && n % 32 == 0 && by_fours(gate, n) && by_fours(up, n) && by_fours(x->f, n))
        return launch_early(act_fours, dim3(rows, ceil_div(n / 4, THREADS)), THREADS, 0, st, act, (const float4 *)gate,
                            (const float4 *)up, *x, n / 4, picks, only, fault);
    int n_blocks = ceil_div(n, 32);
    return launch_early(act_picks, dim3(rows, ceil_div(n_blocks, THREADS / WARP)), THREADS, 0, st, act, gate, up, *x, n,
                        n_blocks, picks, only, fault);
}

static __global__ void add_elements(float *y, float a, const float *x, int64_t n)
{
    wait_turn();
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        y[i] = fmaf(a, x[i], y[i]);
}

extern "C" cudaError_t pf_cu_add(cudaStream_t st, float *y, float a, const float *x, int64_t n)
{
    return launch_early(add_elements, ceil_div(n, THREADS), THREADS, 0, st, y, a, x, n);
}

static __global__ void check_finite(const float *x, int64_t n, int *fault)
{
    wait_turn();
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        check_logit(x[i], fault);
}

extern "C" cudaError_t pf_cu_check_finite(cudaStream_t st, const float *x, int64_t n, int *fault)
{
    return launch_early(check_finite, ceil_div(n, THREADS), THREADS, 0, st, x, n, fault);
}

/* Eight threads for each PF_TOPS_OF neighbours, whose largest leave by 32: what crosses PCIe is few and whole lines. */
static __global__ void tops(const __grid_constant__ struct cu_tops t, const float *x, int n, int n_tops)
{
    enum { EACH = 8, PIECES = THREADS / EACH };
    __shared__ float largest[PIECES];
    wait_turn();
    int first = blockIdx.x * PIECES, piece = threadIdx.x / EACH;
    const float *row = x + (size_t)blockIdx.y * n;
    float m = -INFINITY;
#pragma unroll
    for (int i = threadIdx.x % EACH; i < PF_TOPS_OF; i += EACH) {
        int at = (first + piece) * PF_TOPS_OF + i;
        m = fmaxf(m, at < n ? row[at] : -INFINITY);
    }
#pragma unroll
    for (int h = EACH / 2; h > 0; h /= 2)
        m = fmaxf(m, __shfl_xor_sync(ALL_LANES, m, h));
    if (threadIdx.x % EACH == 0)
        largest[piece] = m;
    __syncthreads();
    if (threadIdx.x < PIECES && first + (int)threadIdx.x < n_tops)
        t.to[blockIdx.y][first + threadIdx.x] = largest[threadIdx.x];
}

extern "C" cudaError_t pf_cu_tops(cudaStream_t st, const struct cu_tops *t, const float *x, int n, int rows)
{
    return launch_early(tops, dim3(ceil_div(n, THREADS / 8 * PF_TOPS_OF), rows), THREADS, 0, st, *t, x, n,
                        pf_n_tops(n));
}

static __global__ void tell(uint32_t *count, uint32_t *told)
{
    wait_turn();
    uint32_t n = *count + 1;
    *count = n;
    __threadfence_system();
    *(volatile uint32_t *)told = n;
}

extern "C" cudaError_t pf_cu_tell(cudaStream_t st, uint32_t *count, uint32_t *told)
{
    return launch_early(tell, 1, 1, 0, st, count, told);
}

static __global__ void add_gated(float *y, const float *gate, const float *x, int n)
{
    wait_turn();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    size_t at = (size_t)blockIdx.y * n + i;
    if (i < n)
        y[at] = fmaf(pf_sigmoidf(gate[blockIdx.y]), x[at], y[at]);
}

static __global__ void add_bias(float *y, const float *bias, int n)
{
    wait_turn();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    size_t at = (size_t)blockIdx.y * n + i;
    if (i < n)
        y[at] = y[at] + bias[i];
}

extern "C" cudaError_t pf_cu_add_bias(cudaStream_t st, float *y, const float *bias, int n, int rows)
{
    return launch_early(add_bias, dim3(ceil_div(n, THREADS), rows), THREADS, 0, st, y, bias, n);
}

extern "C" cudaError_t pf_cu_add_gated(cudaStream_t st, float *y, const float *gate, const float *x, int n, int rows)
{
    return launch_early(add_gated, dim3(ceil_div(n, THREADS), rows), THREADS, 0, st, y, gate, x, n);
}

static __global__ void gate_rows(float *x, const float *gate, int n)
{
    wait_turn();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    size_t at = (size_t)blockIdx.y * n + i;
    if (i < n)
        x[at] = x[at] * pf_sigmoidf(gate[blockIdx.y]);
}

/* A grid has no more than 65,535 rows. */
extern "C" cudaError_t pf_cu_gate(cudaStream_t st, float *x, const float *gate, int n, int rows)
{
    enum { MOST = 65535 };
    cudaError_t e = cudaSuccess;
    for (int r = 0; e == cudaSuccess && r < rows; r += MOST)
        e = launch_early(gate_rows, dim3(ceil_div(n, THREADS), rows - r < MOST ? rows - r : (int)MOST), THREADS, 0, st,
                         x + (size_t)r * n, gate + r, n);
    return e;
}

struct ropes {
    struct pf_rope_op op[2];
    int n_ops;
};

/* A thread per pair; blockIdx.y is the row. */
static __global__ void rope(const __grid_constant__ struct ropes o)
{
    wait_turn();
    int i = blockIdx.x * blockDim.x + threadIdx.x, k = 0;
    while (k < o.n_ops && i >= o.op[k].n_head * o.op[k].n_pairs) {
        i -= o.op[k].n_head * o.op[k].n_pairs;
        k++;
    }
    if (k == o.n_ops)
        return;
    const struct pf_rope_op &op = o.op[k];
    int head = i / op.n_pairs, pair = i % op.n_pairs;
    float *x = op.x + ((size_t)blockIdx.y * op.n_head + head) * op.hd;
    const float *cs = op.cs + (size_t)blockIdx.y * 2 * op.n_pairs;
    float *pa = x + (op.neox ? pair : 2 * pair), *pb = x + (op.neox ? pair + op.n_pairs : 2 * pair + 1);
    float a = *pa, b = *pb, c = cs[pair], s = cs[op.n_pairs + pair];
    *pa = fmaf(a, c, -(b * s));
    *pb = fmaf(a, s, b * c);
}

extern "C" cudaError_t pf_cu_rope(cudaStream_t st, const struct pf_rope_op *ops, int n_ops, int rows)
{
    struct ropes o = { {}, 0 };
    int n = 0;
    for (int i = 0; i < n_ops; i++) {
        o.op[o.n_ops++] = ops[i];
        n += ops[i].n_head * ops[i].n_pairs;
        if (o.n_ops == 2 || i == n_ops - 1) {
            cudaError_t e = launch_early(rope, dim3(ceil_div(n, THREADS), rows), THREADS, 0, st, o);
            if (e != cudaSuccess)
                return e;
            o.n_ops = n = 0;
        }
    }
    return cudaGetLastError();
}

struct store {
    struct pf_kv_view kv;
    const float *k, *v;
    const int32_t *pos;
};

CU_INLINE void put_head(enum pf_kv_type type, void *base, size_t at, const float *x, int n)
{
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        put(type, base, at + i, x[i]);
}

static __global__ void kv_store(const __grid_constant__ struct store o)
{
    wait_turn();
    int h = blockIdx.x, row = blockIdx.y, pos = o.pos[row], n = o.kv.n_kv_head;
    size_t at = pf_kv_row(&o.kv, pos, h);
    put_head(o.kv.type, o.kv.k, at * o.kv.hd_k, o.k + ((size_t)row * n + h) * o.kv.hd_k, o.kv.hd_k);
    if (o.kv.v)
        put_head(o.kv.type, o.kv.v, at * o.kv.hd_v, o.v + ((size_t)row * n + h) * o.kv.hd_v, o.kv.hd_v);
}

extern "C" cudaError_t pf_cu_kv_store(cudaStream_t st, const struct pf_kv_view *kv, const float *k, const float *v,
                                      const int32_t *pos, int rows)
{
    if (pf_kv_is_latent(kv))
        return pf_cu_latent_store(st, kv, k, pos, rows);
    if (kv->type == PF_KV_I16)
        return pf_cu_i16_store(st, kv, k, v, pos, rows);
    return launch_early(kv_store, dim3(kv->n_kv_head, rows), 128, 0, st, (struct store){ *kv, k, v, pos });
}

/* A warp takes a head, first the heads of q, then of k, then of v, and works in its own piece of shared memory. */
static __global__ void __launch_bounds__(THREADS) heads(const __grid_constant__ struct cu_heads o, int longest)
{
    wait_turn();
    BLOCK_MEMORY(float, shared);
    int lane = threadIdx.x % WARP, head = blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP, row = blockIdx.y,
        part = 0;
    float *v = shared + threadIdx.x / WARP * longest;
    while (part < 2 && head >= o.rope[part].n_head)
        head -= o.rope[part++].n_head;
    if (part == 2 && (head >= o.kv.n_kv_head || o.kv.type == PF_KV_I16))
        return;
    int hd = part == 2 ? o.kv.hd_v : o.rope[part].hd;
    size_t at = pf_kv_row(&o.kv, o.pos[row], head) * hd;
    if (part == 2) {
        const float *from = o.v + ((size_t)row * o.kv.n_kv_head + head) * hd;
#pragma unroll 1
        for (int i = lane; i < hd; i += WARP)
            put(o.kv.type, o.kv.v, at + i, from[i]);
        return;
    }
    prepare_head(o, part, head, row, v);
    if (part == 0)
        deal_beside(o, head, row);
    float *x = o.rope[part].x + ((size_t)row * o.rope[part].n_head + head) * hd;
#pragma unroll 1
    for (int i = lane; i < hd; i += WARP) {
        x[i] = v[i];
        if (part == 1 && o.kv.type != PF_KV_I16)
            put(o.kv.type, o.kv.k, at + i, v[i]);
    }
}

extern "C" cudaError_t pf_cu_heads(cudaStream_t st, const struct cu_heads *o)
{
    if (pf_kv_is_latent(&o->kv))
        return pf_cu_latent_store(st, &o->kv, o->rope[1].x, o->pos, o->rows);
    int n = o->rope[0].n_head + o->rope[1].n_head + o->kv.n_kv_head, longest = max(o->rope[0].hd, o->rope[1].hd);
    cudaError_t e = launch_early(heads, dim3(ceil_div(n, THREADS / WARP), o->rows), THREADS,
                                 THREADS / WARP * longest * sizeof(float), st, *o, longest);
    return e != cudaSuccess || o->kv.type != PF_KV_I16 ? e :
           pf_cu_i16_store(st, &o->kv, o->rope[1].x, o->v, o->pos, o->rows);
}

struct copies {
    struct pf_copy c[4];
};

/* blockIdx.y: row; blockIdx.z: which. */
static __global__ void copy_blocks(const __grid_constant__ struct copies o)
{
    wait_turn();
    const struct pf_copy &c = o.c[blockIdx.z];
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, block = i / c.n, at = i % c.n;
    if (block < c.n_blocks)
        c.to[blockIdx.y * c.to_row + block * c.to_block + at] =
            c.from[blockIdx.y * c.from_row + block * c.from_block + at];
}

extern "C" cudaError_t pf_cu_copy(cudaStream_t st, const struct pf_copy *copies, int n_copies, int rows)
{
    enum { MOST = sizeof(struct copies) / sizeof(struct pf_copy) };
    cudaError_t e = cudaSuccess;
    for (int first = 0; e == cudaSuccess && first < n_copies; first += MOST) {
        struct copies o = {};
        int n = min(n_copies - first, (int)MOST);
        int64_t longest = 0;
        for (int i = 0; i < n; i++) {
            o.c[i] = copies[first + i];
            longest = max(longest, (int64_t)o.c[i].n * o.c[i].n_blocks);
        }
        e = launch_early(copy_blocks, dim3(ceil_div(longest, THREADS), rows, n), THREADS, 0, st, o);
    }
    return e;
}

/* A thread has several sixteens on their way at once: the bus takes long to answer. */
static __global__ void __launch_bounds__(THREADS) bring(uint4 *to, const uint4 *from, size_t n)
{
    enum { AT_ONCE = 8 };
    size_t stride = (size_t)gridDim.x * blockDim.x;
    wait_turn();
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += AT_ONCE * stride) {
        uint4 v[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++)
            if (i + k * stride < n)
                v[k] = __ldcs(from + i + k * stride);
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++)
            if (i + k * stride < n)
                to[i + k * stride] = v[k];
    }
}

extern "C" cudaError_t pf_cu_bring(cudaStream_t st, void *to, const void *from, size_t bytes)
{
    enum { MOST_BLOCKS = 256 };
    size_t n = bytes / sizeof(uint4), blocks = (n + THREADS - 1) / THREADS;
    return launch_early(bring, (unsigned)(blocks < MOST_BLOCKS ? blocks : (size_t)MOST_BLOCKS), THREADS, 0, st,
                        (uint4 *)to, (const uint4 *)from, n);
}

/* blockIdx: pick. A thread has several words on their way at once: the bus takes long to answer. */
static __global__ void __launch_bounds__(THREADS) take_given(const __grid_constant__ struct cu_given_picks g)
{
    wait_turn();
    size_t first = (size_t)blockIdx.x * g.n;
    if (!g.table[g.picks[blockIdx.x]])
        return;
#pragma unroll 8
    for (int i = threadIdx.x; i < g.n; i += THREADS)
        g.to[first + i] = __ldcs(g.y + first + i);
}

extern "C" cudaError_t pf_cu_take_given(cudaStream_t st, const struct cu_given_picks *g)
{
    return launch_early(take_given, (unsigned)g->n_picks, THREADS, 0, st, *g);
}

static __global__ void softcap(float *x, float cap, int64_t n)
{
    wait_turn();
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n)
        x[i] = cap * fmaf(2.0f, pf_sigmoidf(2.0f / cap * x[i]), -1.0f);
}

extern "C" cudaError_t pf_cu_softcap(cudaStream_t st, float *x, float cap, int64_t n)
{
    return launch_early(softcap, (unsigned)((n + THREADS - 1) / THREADS), THREADS, 0, st, x, cap, n);
}
