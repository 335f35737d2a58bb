/* Down of routed experts in a step of several rows, a segment a lane (cu_segments.h): of K types. A block a
 * multiprocessor stays until all is done, so that memory is never left alone. A block has one row of the step with all
 * of its picks and some neighbouring pieces, four outputs each, and teams of warps take these in turn. The last warp of
 * a team sends for pieces and puts out what the other warps have multiplied, while they multiply the next.
 *
 *     pieces         | 0 | 1 | 2 | 3 | 4 | 5 | 6 | ..     four rows of each pick's down matrix
 *     teams            0   1   2   0   1   2   0
 *     their rings    | 6 3 | 1 4 | 2 5 |                  a box for each place; 6 has taken that of 0
 *
 * The first pieces are on their way before the kernel's turn: picks, their weights, tables and what other devices did
 * of the picks were written before the kernel ahead. Rows of the step meet at the same weights in the cache. */
#include "kernels/cuda/cu_dot.h"
#include "kernels/cuda/cu_picks.h"
#include "kernels/cuda/cu_segments.h"
#include "kernels/cuda/cu_several_api.h"

enum { PIECE = 4, THREADS = 24 * WARP, MOST_TEAMS = 8, MOST_PLACES = 4 };
enum { MOST_MULTIPLY = 8 * WARP };    /* threads of a team beside its last warp */

/* How a block works. */
struct shape {
    int n_pieces;                     /* of a row of the step */
    int n_teams, threads;             /* threads of a team */
    int n_places, bytes;              /* places of a team; bytes of a place */
};

/* A block's memory. */
struct here {
    uint8_t      *places;             /* [teams][places][picks], a pick's rows as far behind a multiple of 16 as they
                                         are in the matrix */
    struct x_here x;                  /* [picks] */
    struct pick  *pick;
    float        *v;                  /* [teams][picks][PIECE], outputs */
    float        *sums;               /* [teams][2][picks][PIECE][segments], of a team's pieces in turn */
};

/* The block's pieces are those from `first` on in front of `end`. */
struct mine {
    int row, first, end;
};

/* The thread's team, and what is the team's alone of the block's memory and boxes. */
struct team {
    int       i, t;                   /* its number, the thread's number in it */
    uint8_t  *places;
    float    *v, *sums;
    uint64_t *boxes;
};

CU_HOST_FN int of_pick(const struct cu_experts &e)
{
    return staged_bytes(PIECE, e.w.row_bytes);
}

CU_HOST_FN int n_sums(const struct cu_experts &e)
{
    return e.n_used * PIECE * (e.n / 256);
}

CU_INLINE struct here here_of(const struct cu_experts &e, const struct shape &o, uint8_t *memory)
{
    uint8_t *x = memory + o.n_teams * o.n_places * o.bytes;
    struct pick *pick = (struct pick *)(x + x_here_bytes(e.n_used * (e.n / 256)));
    float *v = (float *)(pick + e.n_used);
    return { memory, x_here_at(x, e.n_used * (e.n / 256)), pick, v, v + o.n_teams * e.n_used * PIECE };
}

CU_HOST_FN size_t bytes_beside(const struct cu_experts &e, int n_teams)
{
    return x_here_bytes(e.n_used * (e.n / 256)) + e.n_used * sizeof(struct pick) +
        n_teams * (e.n_used * PIECE + 2 * n_sums(e)) * sizeof(float);
}

CU_INLINE struct mine mine_of(const struct shape &o)
{
    return { (int)blockIdx.y, o.n_pieces * (int)blockIdx.x / (int)gridDim.x,
             o.n_pieces * ((int)blockIdx.x + 1) / (int)gridDim.x };
}

CU_INLINE struct team team_of(const struct cu_experts &e, const struct shape &o, const struct here &m, uint64_t *boxes)
{
    int i = threadIdx.x / o.threads;
    return { i, (int)threadIdx.x - i * o.threads, m.places + i * o.n_places * o.bytes, m.v + i * e.n_used * PIECE,
             m.sums + 2 * i * n_sums(e), boxes + i * o.n_places };
}

CU_INLINE int rows_of_piece(const struct cu_experts &e, int piece)
{
    return min((int)PIECE, e.n_out - piece * PIECE);
}

CU_INLINE const uint8_t *at_piece(const struct cu_experts &e, const struct pick &p, int piece)
{
    return p.rows + piece * PIECE * e.w.row_bytes;
}

/* The row's picks, before the block's turn. */
CU_INLINE void look_up_picks(const struct cu_experts &e, int row, struct pick *pick)
{
#pragma unroll 1
    for (int i = threadIdx.x; i < e.n_used; i += blockDim.x) {
        int k = row * e.n_used + i, expert = *(const volatile int32_t *)&e.picks[k];
        pick[i] = { *(const uint8_t *const volatile *)&e.w.data[expert],
                    e.weigh_input ? 1.0f : *(const volatile float *)&e.weights[k], expert };
    }
}

/* Sends for a piece, a lane a pick. A warp calls it. Rows of the step ask for the same weights at about the same time:
 * these need not stay in the cache after that. */
CU_INLINE void send_for_piece(const struct cu_experts &e, const struct here &m, int piece, uint8_t *place,
                              uint64_t *box)
{
    int i = threadIdx.x % WARP, n = rows_of_piece(e, piece) * (int)e.w.row_bytes;
    const uint8_t *rows = i < e.n_used && m.pick[i].rows ? at_piece(e, m.pick[i], piece) : NULL;
    int skip = (int)((uintptr_t)rows & 15), bytes = rows ? (skip + n + 15) / 16 * 16 : 0, all = bytes;
#pragma unroll
    for (int h = WARP / 2; h > 0; h /= 2)
        all += __shfl_xor_sync(ALL_LANES, all, h);
    if (i == 0)
        expect_bytes(box, all);
    __syncwarp();
    if (rows)
        copy_once_to_box(place + i * of_pick(e), rows - skip, bytes, box);
}

/* The team's sums of a piece's segments. */
template <class T>
CU_INLINE void multiply(const struct cu_experts &e, const struct here &m, int piece, const uint8_t *place, int t,
                        int threads, float *sums)
{
    int n_segments = e.n / 256, per_pick = PIECE * n_segments, n_rows = rows_of_piece(e, piece);
#pragma unroll 1
    for (int i = t; i < e.n_used * per_pick; i += threads) {
        int k = quotient(i, per_pick), in_pick = i - k * per_pick, r = quotient(in_pick, n_segments);
        const uint8_t *rows = place + k * of_pick(e) + ((uintptr_t)at_piece(e, m.pick[k], piece) & 15);
        if (m.pick[k].rows && r < n_rows)
            sums[i] = T::sum(rows + in_pick * T::BYTES, segment_of(m.x, k * n_segments + in_pick - r * n_segments));
    }
}

/* The piece's outputs: those of each pick, and their sum in the picks' order. A warp calls it. */
CU_INLINE void put_piece(const struct cu_experts &e, const struct cu_residual &residual, const struct met &met,
                         const struct here &m, int row, int piece, const float *sums, float *v, float *y)
{
    int lane = threadIdx.x % WARP, n_segments = e.n / 256, first = piece * PIECE;
#pragma unroll 1
    for (int i = lane; i < e.n_used * PIECE; i += WARP) {
        const struct pick &p = m.pick[i / PIECE];
        int r = first + i % PIECE;
        if (p.rows && r < e.n_out)
            v[i] = scale_and_bias(e.w, p.expert, e.n_out, r, sum_of_row(sums + i * n_segments, n_segments));
        else if (e.done && r < e.n_out)
            v[i] = e.done[(size_t)(row * e.n_used + i / PIECE) * e.n_out + r];
    }
    __syncwarp();
    if (lane >= rows_of_piece(e, piece))
        return;
    float sum = 0;
#pragma unroll 4
    for (int i = 0; i < e.n_used; i++)
        sum = fmaf(m.pick[i].weight, v[i * PIECE + lane], sum);
    put_out(residual, met, sum, (size_t)row * e.n_out + first + lane, y);
}

/* The pieces of a team, by the warps that multiply: a place may be filled anew when the team has met, and sums when it
 * has met once more. */
template <class T>
CU_INLINE void multiply_pieces(const struct cu_experts &e, const struct shape &o, const struct here &m,
                               const struct mine &mine, const struct team &team)
{
    int place = 0, turn = 0, odd = 0;
#pragma unroll 1
    for (int piece = mine.first + team.i; piece < mine.end; piece += o.n_teams, odd ^= n_sums(e)) {
        await_box(&team.boxes[place], turn);
        multiply<T>(e, m, piece, team.places + place * o.bytes, team.t, o.threads - WARP, team.sums + odd);
        meet(1 + team.i, o.threads);
        if (++place == o.n_places)
            place = 0, turn ^= 1;
    }
}

/* The pieces of a team, by its last warp: sends for those that follow, and puts out what the other warps have
 * multiplied. */
CU_INLINE void put_pieces(const struct cu_experts &e, const struct cu_residual &residual, const struct shape &o,
                          const struct here &m, const struct mine &mine, const struct team &team, float *y)
{
    int place = 0, odd = 0, ahead = o.n_places * o.n_teams, lane = threadIdx.x % WARP;
#pragma unroll 1
    for (int piece = mine.first + team.i; piece < mine.end; piece += o.n_teams, odd ^= n_sums(e)) {
        struct met met = {};
        if (lane < rows_of_piece(e, piece))
            met = met_at(residual, mine.row, (size_t)mine.row * e.n_out + piece * PIECE + lane);
        meet(1 + team.i, o.threads);
        if (piece + ahead < mine.end)
            send_for_piece(e, m, piece + ahead, team.places + place * o.bytes, &team.boxes[place]);
        put_piece(e, residual, met, m, mine.row, piece, team.sums + odd, team.v, y);
        if (++place == o.n_places)
            place = 0;
    }
}

/* blockIdx: some pieces, row of the step. */
template <class T>
static __global__ void __launch_bounds__(THREADS, 1)
down(const __grid_constant__ struct cu_experts e, const __grid_constant__ struct shape o, float *y,
     const __grid_constant__ struct cu_residual residual)
{
    BLOCK_MEMORY(uint4, memory);
    __shared__ uint64_t boxes[MOST_TEAMS * MOST_PLACES];
    struct here m = here_of(e, o, (uint8_t *)memory);
    struct mine mine = mine_of(o);
    struct team team = team_of(e, o, m, boxes);
    bool puts = team.t >= o.threads - WARP;
    if (team.t < o.n_places)
        open_box(&team.boxes[team.t]);
    look_up_picks(e, mine.row, m.pick);
    __syncthreads();
#pragma unroll 1
    for (int i = 0, piece = mine.first + team.i; puts && i < o.n_places && piece < mine.end; i++, piece += o.n_teams)
        send_for_piece(e, m, piece, team.places + i * o.bytes, &team.boxes[i]);
    wait_turn();
    bring_x<T>(m.x, x_row_of(e.x, e.n, mine.row * e.n_used), e.n_used * (e.n / 256) * SEGMENT_BLOCKS);
    __syncthreads();
    if (puts)
        put_pieces(e, residual, o, m, mine, team, y);
    else
        multiply_pieces<T>(e, o, m, mine, team);
}

/* A thread multiplies one of a piece's segments, or two, three ..; false: there is no room for two teams with two
 * places each. */
static bool shape_of_block(const struct cu_experts *e, size_t room, struct shape *o)
{
    int rounds = ceil_div(n_sums(*e), MOST_MULTIPLY);
    o->threads = (ceil_div(ceil_div(n_sums(*e), rounds), WARP) + 1) * WARP;
    o->bytes = e->n_used * of_pick(*e);
    o->n_pieces = ceil_div(e->n_out, PIECE);
    for (o->n_teams = min(THREADS / o->threads, (int)MOST_TEAMS); o->n_teams > 1; o->n_teams--) {
        size_t beside = bytes_beside(*e, o->n_teams);
        o->n_places = min(room > beside ? (int)((room - beside) / (o->n_teams * o->bytes)) : 0, (int)MOST_PLACES);
        if (o->n_places > 1)
            return true;
    }
    return false;
}

/* Multiprocessors, and how a block of theirs works. */
struct plan {
    int n_units;
    struct shape o;
};

template <class T>
static bool plan_of(const struct cu_experts *e, struct plan *p)
{
    enum { STATIC_BYTES = 2 << 10 };
    int most = 0;
    bool early = false;
    return is_of_90(down<T>, &early) == cudaSuccess && early &&
           ask_device(cudaDevAttrMultiProcessorCount, &p->n_units) == cudaSuccess && e->rows <= p->n_units &&
           ask_device(cudaDevAttrMaxSharedMemoryPerBlockOptin, &most) == cudaSuccess &&
           shape_of_block(e, most - STATIC_BYTES, &p->o);
}

template <class T>
static cudaError_t launch(cudaStream_t st, const struct cu_experts *e, float *y, const struct cu_residual *residual)
{
    struct plan p;
    if (!plan_of<T>(e, &p))
        return cudaErrorInvalidValue;
    const struct shape &o = p.o;
    size_t bytes = o.n_teams * o.n_places * o.bytes + bytes_beside(*e, o.n_teams);
    dim3 grid(min(p.n_units / e->rows, o.n_pieces), e->rows);
    cudaError_t err = allow_bytes(down<T>, bytes);
    return err != cudaSuccess ? err :
        launch_early(down<T>, grid, o.n_teams * o.threads, bytes, st, *e, o, y, *residual);
}

extern "C" bool pf_cu_down_stream_takes(const struct cu_experts *e)
{
    struct plan p;
    if (e->rows < CU_DOWN_STREAM || e->rows > CU_VECTOR_ROWS || e->n_used > WARP || e->n % 256 || e->with.down ||
        e->turns.told)
        return false;
    switch (e->w.type) {
    case PF_Q4_K: return plan_of<segment_k45<false>>(e, &p);
    case PF_Q5_K: return plan_of<segment_k45<true>>(e, &p);
    case PF_Q6_K: return plan_of<segment_k6>(e, &p);
    default: return false;
    }
}

extern "C" cudaError_t pf_cu_down_stream(cudaStream_t st, const struct cu_experts *e, float *y,
                                         const struct cu_residual *residual)
{
    switch (e->w.type) {
    case PF_Q4_K: return launch<segment_k45<false>>(st, e, y, residual);
    case PF_Q5_K: return launch<segment_k45<true>>(st, e, y, residual);
    case PF_Q6_K: return launch<segment_k6>(st, e, y, residual);
    default: return cudaErrorInvalidValue;
    }
}
