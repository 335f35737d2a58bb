/* Gated DeltaNet between its products.
 *
 *     few rows   delta_head: a block takes a value head and does all of it, or, where blocks can write into each
 *                other's memory, two take half of its columns each; heads of 128 and four taps alone, not from a
 *                state that the kernel ahead leaves, and with one decay a head
 *     others     conv, a thread a channel; delta or delta_columns, a thread a column of a head's matrix; then
 *                gate_heads, a warp a head
 *
 * Heads of 128 have their columns in registers, so that a row costs two chains of 128 sums and no memory: some warps
 * go over columns, two others meanwhile over what the next row needs for all of them. They read their state before
 * their turn: it is older than the kernel ahead, which for delta_columns is conv. */
#include "kernels/cuda/cu_device.h"

enum { MAX_TAPS = 16, THREADS = 128, CONV_ROWS = 8 };

struct net {
    struct pf_delta_op op;
    struct cu_x x;               /* q NULL: out is not quantised */
    int        *fault;
};

CU_INLINE int key_head(const struct pf_delta_op &o, int hv)
{
    return o.tiled ? hv % o.n_k_head : hv / (o.n_v_head / o.n_k_head);
}

/* Where the matrix of value head hv begins in a state, in floats. */
CU_INLINE size_t matrix_at(const struct pf_delta_op &o, int hv)
{
    return pf_delta_state_rows(&o) + (size_t)hv * o.d * o.d;
}

CU_INLINE float decay_of(float a, float dt, float alpha, float least)
{
    float f = alpha + dt;
    return pf_expf(least != 0 ? least * pf_sigmoidf(-a * f) : a * pf_softplusf(f));
}

/* The decay of row i of a value head's matrix, where each has its own. */
CU_INLINE float row_decay(const struct pf_delta_op &o, int hv, int r, int i)
{
    return decay_of(o.a[hv], o.dt[(size_t)hv * o.d + i], pf_vector_at(&o.alpha, r, hv)[i], o.least);
}

CU_INLINE float gate_of(const struct pf_delta_op &o, float z)
{
    return o.sigmoid_gate ? pf_sigmoidf(z) : z * pf_sigmoidf(z);
}

/* ---- Step by step ------------------------------------------------------------------------------------------------ */

/* Channel c in row r of the batch, or, r negative, in one from before it; x is where it is in row 0. */
CU_INLINE float input_at(const struct pf_delta_op &o, const float *x, int64_t row, int r, int c)
{
    if (r >= 0)
        return x[r * row];
    return o.before ? o.before[(size_t)(o.taps - 1 + r) * pf_delta_channels(&o) + c] : 0.0f;
}

/* blockIdx.y: CONV_ROWS rows. The first block keeps the last ones, which the next step will see. */
static __global__ void conv(const __grid_constant__ struct net net)
{
    wait_turn();
    const struct pf_delta_op &o = net.op;
    int n = pf_delta_channels(&o), c = blockIdx.x * blockDim.x + threadIdx.x, i = c / o.d;
    int first = blockIdx.y * CONV_ROWS, end = min(first + (int)CONV_ROWS, o.rows);
    if (c >= n)
        return;
    const struct pf_vectors *from = pf_delta_input(&o, &i);
    const float *x = pf_vector_at(from, 0, i) + c % o.d;
    for (int r = first; r < end; r++) {
        float z = input_at(o, x, from->row, r - (o.taps - 1), c) * o.conv[c];
        for (int t = 1; t < o.taps; t++)
            z = fmaf(input_at(o, x, from->row, r - (o.taps - 1) + t, c), o.conv[(size_t)t * n + c], z);
        o.mixed[(size_t)r * n + c] = z * pf_sigmoidf(z);
    }
    for (int t = 0; blockIdx.y == 0 && t < o.taps - 1; t++)
        o.after[(size_t)t * n + c] = input_at(o, x, from->row, o.rows - (o.taps - 1) + t, c);
}

/* to = x * a / max(length of x, eps), by one warp. */
CU_INLINE void l2_norm(const float *x, float eps, float a, int n, float *to)
{
    float sum = 0;
    for (int i = threadIdx.x % WARP; i < n; i += WARP)
        sum = fmaf(x[i], x[i], sum);
    float root = sqrtf(warp_fold_all(sum)), r = a / (root > eps ? root : eps);
    for (int i = threadIdx.x % WARP; i < n; i += WARP)
        to[i] = x[i] * r;
}

/* blockIdx.x: value head; blockIdx.y: its columns, blockDim.x at a time. */
static __global__ void delta(const __grid_constant__ struct net net)
{
    wait_turn();
    BLOCK_MEMORY(float, shared);
    const struct pf_delta_op &o = net.op;
    size_t d = o.d, n_k = (size_t)o.n_k_head * d, n_v = (size_t)o.n_v_head * d;
    int hv = blockIdx.x, hk = key_head(o, hv), warp = threadIdx.x / WARP, j = blockIdx.y * blockDim.x + threadIdx.x;
    float *q = shared, *k = q + d, *decays = k + d, *decayed_k = decays + d, *after = o.after + matrix_at(o, hv);
    const float *before = o.before ? o.before + matrix_at(o, hv) : NULL;
    for (int r = 0; r < o.rows; r++) {
        const float *u = o.mixed + r * (2 * n_k + n_v);
        __syncthreads();
        if (warp < 2)
            l2_norm(u + warp * n_k + hk * d, o.eps, warp ? 1.0f : 1.0f / sqrtf((float)d), o.d, warp ? k : q);
        __syncthreads();
        for (int i = threadIdx.x; o.by_key && i < o.d; i += blockDim.x) {
            decays[i] = row_decay(o, hv, r, i);
            decayed_k[i] = k[i] * decays[i];
        }
        __syncthreads();
        if (j < o.d) {
            float decay = o.by_key ? 0 : decay_of(o.a[hv], o.dt[hv], *pf_vector_at(&o.alpha, r, hv), o.least);
            float beta = pf_sigmoidf(*pf_vector_at(&o.beta, r, hv)), seen = 0, out = 0, v = u[2 * n_k + hv * d + j];
            for (size_t i = 0; before && i < d; i++)
                seen = fmaf(before[i * d + j], o.by_key ? decayed_k[i] : k[i], seen);
            float change = (o.by_key ? v - seen : fmaf(-decay, seen, v)) * beta;
            for (size_t i = 0; i < d; i++) {
                float s = fmaf(k[i], change, (before ? before[i * d + j] : 0.0f) * (o.by_key ? decays[i] : decay));
                after[i * d + j] = s;
                out = fmaf(s, q[i], out);
            }
            o.out[r * n_v + hv * d + j] = out;
        }
        before = after;
    }
}

/* A warp takes a head of a row: out = gate of z * norm(out). blockIdx.y: row. */
static __global__ void gate_heads(const __grid_constant__ struct net net)
{
    wait_turn();
    const struct pf_delta_op &o = net.op;
    int hv = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP, r = blockIdx.y, lane = threadIdx.x % WARP;
    int n_v = o.n_v_head * o.d;
    if (hv >= o.n_v_head)
        return;
    float *out = o.out + (size_t)r * n_v + (size_t)hv * o.d, sum = 0;
    const float *z = pf_vector_at(&o.z, r, hv);
    for (int j = lane; j < o.d; j += WARP)
        sum = fmaf(out[j], out[j], sum);
    float factor = 1.0f / sqrtf(warp_fold_all(sum) / (float)o.d + o.eps);
    for (int j = lane; j < o.d; j += WARP) {
        float y = gate_of(o, z[j]) * (out[j] * factor * o.norm[j]);
        out[j] = y;
        if (net.x.q)
            quantise_block(y, &net.x, n_v, r, (hv * o.d + j) / 32, net.fault);
    }
}

/* ---- Columns in registers ---------------------------------------------------------------------------------------- */

/* Values of one row that all columns of a head need; of decays and products of them with keys one, or, if each of a
 * key's numbers has its own, as many. */
template <int D, bool BY_KEY>
struct delta_row {
    float q[D], k[D], decay[BY_KEY ? D : 1], decayed_k[BY_KEY ? D : 1], beta;
};

/* Computes them by two warps; which: 0 or 1, the calling warp. */
template <int D, bool BY_KEY>
CU_INLINE void prepare_row(const struct pf_delta_op &o, int hv, int hk, int r, int which,
                           struct delta_row<D, BY_KEY> &to)
{
    size_t n_k = (size_t)o.n_k_head * D, n_v = (size_t)o.n_v_head * D;
    const float *u = o.mixed + r * (2 * n_k + n_v);
    l2_norm(u + which * n_k + hk * D, o.eps, which ? 1.0f : 1.0f / sqrtf((float)D), D, which ? to.k : to.q);
    if (which == 0 && threadIdx.x % WARP == 0) {
        if (!BY_KEY)
            to.decay[0] = decay_of(o.a[hv], o.dt[hv], *pf_vector_at(&o.alpha, r, hv), o.least);
        to.beta = pf_sigmoidf(*pf_vector_at(&o.beta, r, hv));
    }
    for (int i = threadIdx.x % WARP; BY_KEY && which == 1 && i < D; i += WARP) {     /* a lane's own keys */
        to.decay[i] = row_decay(o, hv, r, i);
        to.decayed_k[i] = to.k[i] * to.decay[i];
    }
}

/* Column j of the matrix; zeros if there is none. */
template <int D>
CU_INLINE void load_column(const struct pf_delta_op &o, int hv, int j, bool there, float (&s)[D])
{
    const float *from = o.before + matrix_at(o, hv) + j;
#pragma unroll
    for (int i = 0; i < D; i++)
        s[i] = there && o.before ? __ldcg(from + i * D) : 0.0f;
}

template <int D>
CU_INLINE void store_column(const struct pf_delta_op &o, int hv, int j, const float (&s)[D])
{
    float *to = o.after + matrix_at(o, hv) + j;
#pragma unroll
    for (int i = 0; i < D; i++)
        to[i * D] = s[i];
}

/* A row's step of a column whose rows have decays of their own. Returns what it puts out. */
template <int D>
CU_INLINE float step_keyed_column(float (&s)[D], const struct delta_row<D, true> &row, float v, bool fresh)
{
    float seen = 0, out = 0;
    if (!fresh)
#pragma unroll
        for (int i = 0; i < D; i++)
            seen = fmaf(s[i], row.decayed_k[i], seen);
    float change = (v - seen) * row.beta;
#pragma unroll
    for (int i = 0; i < D; i++) {
        s[i] = fmaf(row.k[i], change, s[i] * row.decay[i]);
        out = fmaf(s[i], row.q[i], out);
    }
    return out;
}

/* A row's step of a column; fresh: there is no matrix yet. Returns what it puts out. */
template <int D>
CU_INLINE float step_column(float (&s)[D], const float *q, const float *k, float v, float decay, float beta, bool fresh)
{
    float seen = 0, out = 0;
    if (!fresh)
#pragma unroll
        for (int i = 0; i < D; i++)
            seen = fmaf(s[i], k[i], seen);
    float change = fmaf(-decay, seen, v) * beta;
    __syncwarp();                            /* keys are read again: there are no registers to keep them in */
#pragma unroll
    for (int i = 0; i < D; i++) {
        s[i] = fmaf(k[i], change, s[i] * decay);
        out = fmaf(s[i], q[i], out);
    }
    return out;
}

template <int D>
CU_INLINE float step_row(float (&s)[D], const struct delta_row<D, false> &row, float v, bool fresh)
{
    return step_column<D>(s, row.q, row.k, v, row.decay[0], row.beta, fresh);
}

template <int D>
CU_INLINE float step_row(float (&s)[D], const struct delta_row<D, true> &row, float v, bool fresh)
{
    return step_keyed_column<D>(s, row, v, fresh);
}

/* blockIdx.x: value head; blockIdx.y: 64 of its columns. */
template <int D, bool BY_KEY>
static __global__ void __launch_bounds__(4 * WARP) delta_columns(const __grid_constant__ struct net net)
{
    __shared__ __align__(16) struct delta_row<D, BY_KEY> rows[2];
    const struct pf_delta_op &o = net.op;
    int hv = blockIdx.x, hk = key_head(o, hv), warp = threadIdx.x / WARP;
    int j = blockIdx.y * 2 * WARP + threadIdx.x % (2 * WARP);
    size_t n_k = (size_t)o.n_k_head * D, n_v = (size_t)o.n_v_head * D;
    const float *value = o.mixed + 2 * n_k + hv * D + j;
    float s[D], v = 0;
    load_column<D>(o, hv, j, warp < 2, s);
    wait_turn();
    if (warp >= 2)
        prepare_row<D, BY_KEY>(o, hv, hk, 0, warp - 2, rows[0]);
    else
        v = value[0];
    for (int r = 0; r < o.rows; r++) {
        __syncthreads();
        if (warp >= 2) {
            if (r + 1 < o.rows)
                prepare_row<D, BY_KEY>(o, hv, hk, r + 1, warp - 2, rows[(r + 1) % 2]);
            continue;
        }
        const struct delta_row<D, BY_KEY> &row = rows[r % 2];
        float next = r + 1 < o.rows ? value[(r + 1) * (2 * n_k + n_v)] : 0.0f;
        o.out[r * n_v + hv * D + j] = step_row<D>(s, row, v, !o.before && r == 0);
        v = next;
    }
    if (warp < 2)
        store_column<D>(o, hv, j, s);
}

/* ---- Few rows, in one kernel ------------------------------------------------------------------------------------- */

/* A channel of the convolution, from row to row: its weights, and what it has seen. */
template <int TAPS>
struct channel {
    float w[TAPS], x[TAPS - 1];
};

template <int TAPS>
CU_INLINE void open_channel(const struct pf_delta_op &o, int c, struct channel<TAPS> &at)
{
    int n = pf_delta_channels(&o);
#pragma unroll
    for (int t = 0; t < TAPS; t++)
        at.w[t] = o.conv[t * n + c];
#pragma unroll
    for (int t = 0; t < TAPS - 1; t++)
        at.x[t] = o.before ? __ldcg(o.before + t * n + c) : 0.0f;
}

/* The next x. */
template <int TAPS>
CU_INLINE float convolve(struct channel<TAPS> &at, float x)
{
    float z = at.x[0] * at.w[0];
#pragma unroll
    for (int t = 1; t < TAPS - 1; t++) {
        z = fmaf(at.x[t], at.w[t], z);
        at.x[t - 1] = at.x[t];
    }
    z = fmaf(x, at.w[TAPS - 1], z);
    at.x[TAPS - 2] = x;
    return z * pf_sigmoidf(z);
}

template <int TAPS>
CU_INLINE void keep_channel(const struct pf_delta_op &o, int c, const struct channel<TAPS> &at)
{
#pragma unroll
    for (int t = 0; t < TAPS - 1; t++)
        o.after[t * pf_delta_channels(&o) + c] = at.x[t];
}

/* Shared memory of a block's warps: queries and keys of two rows, and outputs of all columns of the head for two rows;
 * box[i] counts the outputs that another block's columns send to out[i]. */
template <int D>
struct head_memory {
    float    qk[2][2][D], out[2][D];
    uint64_t box[2];
};

/* Queries, or keys, of a head, row by row, each ready for the columns one row ahead of them; by a warp. A lane has
 * every 32nd channel. The first of the value heads that share them keeps their last rows. */
template <int D, int TAPS, int PARTS>
CU_INLINE void head_vectors(const struct pf_delta_op &o, int hv, int part, bool is_key, struct head_memory<D> &memory)
{
    int hk = key_head(o, hv), lane = threadIdx.x % WARP, c = (is_key * o.n_k_head + hk) * D + lane;
    bool keeps = part == 0 && (o.tiled ? hv < o.n_k_head : hv % (o.n_v_head / o.n_k_head) == 0);
    const struct pf_vectors &from = is_key ? o.k : o.q;
    const float *x = pf_vector_at(&from, 0, hk) + lane;
    float a = is_key ? 1.0f : 1.0f / sqrtf((float)D), u[D / WARP];
    struct channel<TAPS> at[D / WARP];
#pragma unroll
    for (int i = 0; i < D / WARP; i++)
        open_channel<TAPS>(o, c + i * WARP, at[i]);
    wait_turn();
    if (PARTS > 1)
        wait_cluster();
    for (int r = 0; r < o.rows; r++) {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < D / WARP; i++)
            u[i] = x[r * from.row + i * WARP];
#pragma unroll
        for (int i = 0; i < D / WARP; i++)
            u[i] = convolve<TAPS>(at[i], u[i]);
#pragma unroll
        for (int i = 0; i < D / WARP; i++)
            sum = fmaf(u[i], u[i], sum);
        float root = sqrtf(warp_fold_all(sum)), factor = a / (root > o.eps ? root : o.eps);
#pragma unroll
        for (int i = 0; i < D / WARP; i++)
            memory.qk[r % 2][is_key][i * WARP + lane] = u[i] * factor;
        meet(1, D / PARTS + 2 * WARP);
    }
#pragma unroll
    for (int i = 0; keeps && i < D / WARP; i++)
        keep_channel<TAPS>(o, c + i * WARP, at[i]);
}

/* Inputs of one column from one row. */
struct column_input {
    float v, z, alpha, beta;
};

/* Sends the output of column j for row r to all columns of the head; afterwards memory.out[r % 2] holds theirs. */
template <int D, int PARTS>
CU_INLINE void share_out(struct head_memory<D> &memory, int r, int j, float out)
{
    enum { MINE = D / PARTS };
    uint64_t *box = &memory.box[r % 2];
    float *to = &memory.out[r % 2][j];
    if (PARTS > 1 && threadIdx.x == 0)
        expect_bytes(box, (D - MINE) * sizeof(float));
    *to = out;
#pragma unroll
    for (int i = 1; i < PARTS; i++)
        send(out, to, box, (blockIdx.x + i) % PARTS);
    meet(2, MINE);
    if (PARTS > 1)
        await_sent(box, r / 2 % 2);
}

/* Columns of a head, row by row; by D / PARTS threads. */
template <int D, int TAPS, int PARTS>
CU_INLINE void head_columns(const struct net &net, int hv, int part, struct head_memory<D> &memory)
{
    const struct pf_delta_op &o = net.op;
    int j = part * (D / PARTS) + threadIdx.x, lane = threadIdx.x % WARP, c = (2 * o.n_k_head + hv) * D + j;
    const float *v = pf_vector_at(&o.v, 0, hv) + j, *z = pf_vector_at(&o.z, 0, hv) + j,
                *alpha = pf_vector_at(&o.alpha, 0, hv), *beta = pf_vector_at(&o.beta, 0, hv);
    float s[D], weight = o.norm[j], a = o.a[hv], dt = o.dt[hv];
    struct channel<TAPS> at;
    load_column<D>(o, hv, j, true, s);
    open_channel<TAPS>(o, c, at);
    wait_turn();
    struct column_input next = { *v, *z, *alpha, *beta };
    if (PARTS > 1)
        wait_cluster();
#pragma unroll 1
    for (int r = 0; r < o.rows; r++) {
        struct column_input in = next;
        int after = min(r + 1, o.rows - 1);
        next = { v[after * o.v.row], z[after * o.z.row], alpha[after * o.alpha.row], beta[after * o.beta.row] };
        float value = convolve<TAPS>(at, in.v), gate = gate_of(o, in.z), decay = decay_of(a, dt, in.alpha, o.least),
              rate = pf_sigmoidf(in.beta), sum = 0;
        meet(1, D / PARTS + 2 * WARP);
        const float (&qk)[2][D] = memory.qk[r % 2];
        float out = step_column<D>(s, qk[0], qk[1], value, decay, rate, !o.before && r == 0);
        share_out<D, PARTS>(memory, r, j, out);
        const float (&all)[D] = memory.out[r % 2];
#pragma unroll
        for (int i = 0; i < D / WARP; i++)
            sum = fmaf(all[i * WARP + lane], all[i * WARP + lane], sum);
        float y = gate * (out * (1.0f / sqrtf(warp_fold_all(sum) / (float)D + o.eps)) * weight);
        o.out[((size_t)r * o.n_v_head + hv) * D + j] = y;
        if (net.x.q)
            quantise_block(y, &net.x, o.n_v_head * D, r, hv * (D / 32) + j / 32, net.fault);
    }
    store_column<D>(o, hv, j, s);
    keep_channel<TAPS>(o, c, at);
}

/* blockIdx.x: value head, and which of its parts; those of a head are a cluster. A thread has a column; two more warps
 * have queries and keys, of which there is room for two rows: before a third is written, the columns that read the
 * first have been met. So of what columns put out: who sends a third row's has the second from all, who had read the
 * first. */
template <int D, int TAPS, int PARTS>
static __global__ void __launch_bounds__(D / PARTS + 2 * WARP) delta_head(const __grid_constant__ struct net net)
{
    CLUSTER_VARIABLE(struct head_memory<D>, memory);
    int hv = blockIdx.x / PARTS, part = blockIdx.x % PARTS, others = (int)threadIdx.x - D / PARTS;
    if (PARTS > 1 && threadIdx.x == 0) {
        open_box(&memory.box[0]);
        open_box(&memory.box[1]);
    }
    if (PARTS > 1)
        arrive_cluster();
    if (others < 0)
        head_columns<D, TAPS, PARTS>(net, hv, part, memory);
    else
        head_vectors<D, TAPS, PARTS>(net.op, hv, part, others >= WARP, memory);
}

template <int D, int TAPS, int PARTS>
static cudaError_t launch_head(cudaStream_t st, const struct net &net)
{
    return launch_in_clusters(PARTS, delta_head<D, TAPS, PARTS>, net.op.n_v_head * PARTS, D / PARTS + 2 * WARP, 0, st,
                              net);
}

template <int D, int TAPS>
static cudaError_t launch_head_in_parts(cudaStream_t st, const struct net &net)
{
    bool clusters;
    cudaError_t e = is_of_90(delta_head<D, TAPS, 2>, &clusters);
    if (e != cudaSuccess)
        return e;
    return clusters ? launch_head<D, TAPS, 2>(st, net) : launch_head<D, TAPS, 1>(st, net);
}

extern "C" cudaError_t pf_cu_delta(cudaStream_t st, const struct pf_delta_op *o, const struct cu_x *x, int *fault)
{
    enum { D = 128, TAPS = 4, GATE_THREADS = 8 * WARP };
    struct net net = { *o, *x, fault };
    if (o->taps < 1 || o->taps > MAX_TAPS)
        return cudaErrorInvalidValue;
    if (o->d == D && o->taps == TAPS && o->rows <= CU_VECTOR_ROWS && !o->follows && !o->by_key)
        return launch_head_in_parts<D, TAPS>(st, net);
    dim3 channels(ceil_div(pf_delta_channels(o), THREADS), ceil_div(o->rows, CONV_ROWS)),
        columns(o->n_v_head, ceil_div(o->d, 64)), heads(ceil_div(o->n_v_head, GATE_THREADS / WARP), o->rows);
    cudaError_t e = launch_early(conv, channels, THREADS, 0, st, net);
    if (e == cudaSuccess && o->d == D)
        e = launch_early(o->by_key ? delta_columns<D, true> : delta_columns<D, false>, columns, 4 * WARP, 0, st, net);
    else if (e == cudaSuccess)
        e = launch_early(delta, columns, 64, 4 * (size_t)o->d * sizeof(float), st, net);
    return e != cudaSuccess ? e : launch_early(gate_heads, heads, GATE_THREADS, 0, st, net);
}
