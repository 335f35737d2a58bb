/* Dense products of one row, a segment a lane (cu_segments.h): of K types, where a multiprocessor's rows are more than
 * its shared memory holds. A block a multiprocessor stays until all is done, and memory is never left alone: teams of
 * four warps have some neighbouring rows each, and go over them in pieces, with a segment for each thread at most.
 *
 *     a team's rows     | piece 0 | piece 1 | piece 2 | piece 3 | ..      a piece is of one part
 *     its ring          | piece 2 | piece 1 |                             a box each; 2 has taken the place of 0
 *
 * The first pieces are on their way before the kernel's turn. The row may be normed first, by every block for itself.
 * Teams meet nobody else after that. */
#include "kernels/cuda/cu_linear_row.h"

enum { THREADS = 16 * WARP, TEAM = 4 * WARP, TEAMS = THREADS / TEAM, MOST_PLACES = 4 };

/* Elements of a row that a block can norm: a thread takes four of them up to four times. */
enum { MOST_NORMED = 16 * THREADS };

/* The ring of a team. */
struct ring {
    int n_rows;                       /* of all parts */
    int piece;                        /* rows of a piece */
    int bytes, n_places;
};

/* A block's memory. */
struct here {
    uint8_t      *places;             /* [teams][ring] */
    struct x_here x;
    float        *sums;               /* [teams][2][piece][segments], of a team's pieces in turn */
    float4       *y;                  /* where the row is normed: as it was */
};

/* Rows are counted through all parts. */
struct team {
    int       t;                      /* the thread's number in it */
    int       row, end;               /* what is multiplied next, and where the team's rows end */
    int       sent;                   /* what is sent for next; its first thread knows */
    uint8_t  *places;
    float    *sums;
    uint64_t *box;
};

CU_HOST_FN int sums_of(const struct cu_linear &l, int piece)
{
    return (piece * (l.n / 256) + 3) / 4 * 4;
}

CU_INLINE struct here here_of(const struct cu_linear &l, const struct ring &r, uint8_t *memory)
{
    uint8_t *x = memory + TEAMS * r.n_places * r.bytes;
    float *sums = (float *)(x + x_here_bytes(l.n / 256));
    return { memory, x_here_at(x, l.n / 256), sums, (float4 *)(sums + 2 * TEAMS * sums_of(l, r.piece)) };
}

CU_INLINE struct team team_of(const struct cu_linear &l, const struct ring &r, const struct here &m, uint64_t *boxes)
{
    int i = threadIdx.x / TEAM, n = blockIdx.x * TEAMS + i, n_teams = gridDim.x * TEAMS,
        first = (int)((int64_t)r.n_rows * n / n_teams), end = (int)((int64_t)r.n_rows * (n + 1) / n_teams);
    return { (int)threadIdx.x % TEAM, first, end, first, m.places + i * r.n_places * r.bytes,
             m.sums + 2 * i * sums_of(l, r.piece), boxes + i * MOST_PLACES };
}

/* The piece that begins at a row in front of `end`. */
CU_INLINE struct place piece_at(const struct cu_linear &l, const struct ring &r, int row, int end)
{
    int k = 0, n = min(r.piece, end - row);
#pragma unroll 1
    while (row >= l.part[k].n_out)
        row -= l.part[k++].n_out;
    return { &l.part[k], l.part[k].w + row * l.row_bytes, 0, row, min(n, l.part[k].n_out - row) };
}

/* The team's first thread sends for its next piece, if there is one. */
CU_INLINE void send_for_piece(const struct cu_linear &l, const struct ring &r, struct team &team, int place)
{
    if (team.sent >= team.end)
        return;
    struct place at = piece_at(l, r, team.sent, team.end);
    int skip = (int)((uintptr_t)at.rows & 15), bytes = (skip + at.n * (int)l.row_bytes + 15) / 16 * 16;
    expect_bytes(&team.box[place], bytes);
    copy_once_to_box(team.places + place * r.bytes, at.rows - skip, bytes, &team.box[place]);
    team.sent += at.n;
}

CU_INLINE void send_for_first(const struct cu_linear &l, const struct ring &r, struct team &team)
{
    if (team.t > 0)
        return;
    for (int i = 0; i < r.n_places; i++)
        open_box(&team.box[i]);
    for (int i = 0; i < r.n_places; i++)
        send_for_piece(l, r, team, i);
}

/* The sums of a piece's segments. */
template <class T>
CU_INLINE void multiply(const struct cu_linear &l, const struct place &at, const uint8_t *rows, const struct x_here &x,
                        int t, float *sums)
{
    int n_segments = l.n / 256;
#pragma unroll 1
    for (int i = t; i < at.n * n_segments; i += TEAM) {
        int r = quotient(i, n_segments), segment = i - r * n_segments;
        sums[i] = T::sum(rows + r * (int)l.row_bytes + segment * T::BYTES, segment_of(x, segment));
    }
}

/* The place of a piece may be filled anew when the team has met; its sums when it has met once more. */
template <class T>
CU_INLINE void go_over_rows(const struct given_linear &l, const struct ring &r, const struct x_here &x,
                            struct team &team)
{
    int n_segments = l.n / 256, t = team.t, n_sums = sums_of(l, r.piece);
#pragma unroll 1
    for (int place = 0, turn = 0, odd = 0; team.row < team.end; odd ^= n_sums) {
        struct place at = piece_at(l, r, team.row, team.end);
        float met = t < at.n && l.residual.x ? l.residual.x[at.first + t] : 0.0f, *sums = team.sums + odd;
        await_box(&team.box[place], turn);
        multiply<T>(l, at, team.places + place * r.bytes + ((uintptr_t)at.rows & 15), x, t, sums);
        meet(1 + threadIdx.x / TEAM, TEAM);
        if (t == 0)
            send_for_piece(l, r, team, place);
        if (t < at.n)
            finish(l, *at.p, at.first + t, 0, sum_of_row(sums + t * n_segments, n_segments), met);
        team.row += at.n;
        if (++place == r.n_places)
            place = 0, turn ^= 1;
    }
}

/* FOURS: how often a thread takes four elements of the row that is normed; 0: it is not. */
template <class T, int FOURS>
static __global__ void __launch_bounds__(THREADS, 1)
stream(const __grid_constant__ struct given_linear l, const __grid_constant__ struct ring r)
{
    BLOCK_MEMORY(uint4, memory);
    __shared__ uint64_t boxes[TEAMS * MOST_PLACES];
    struct here m = here_of(l, r, (uint8_t *)memory);
    struct team team = team_of(l, r, m, boxes);
    float4 w[FOURS > 0 ? FOURS : 1];
    send_for_first(l, r, team);
    if (FOURS > 0)
        take_weights<THREADS>(l.norm, w);
    __syncthreads();
    wait_turn();
    if (FOURS > 0)
        norm_to<T, THREADS>(l.norm, w, m.x, m.y);
    else
        bring_x<T>(m.x, x_row_of(l.x, l.n, 0), l.n / 32);
    __syncthreads();
    go_over_rows<T>(l, r, m.x, team);
}

/* The memory of a block beside its rings. */
static size_t bytes_beside(const struct cu_linear *l, int piece)
{
    return x_here_bytes(l->n / 256) + 2 * TEAMS * sums_of(*l, piece) * sizeof(float) +
        (l->norm.y ? l->n * sizeof(float) : 0);
}

/* The largest pieces of which a ring holds two; false: they would have no work for half of a team's threads. */
static bool ring_of(const struct cu_linear *l, size_t shared_bytes, struct ring *r)
{
    int n_segments = l->n / 256;
    r->n_rows = n_blocks_of(l, 1);
    for (r->piece = max(TEAM / n_segments, 1); 2 * r->piece * n_segments >= TEAM && r->piece > 0; r->piece--) {
        size_t beside = bytes_beside(l, r->piece), room = shared_bytes > beside ? shared_bytes - beside : 0;
        r->bytes = staged_bytes(r->piece, l->row_bytes);
        r->n_places = min((int)(room / (TEAMS * r->bytes)), MOST_PLACES);
        if (r->n_places > 1)
            return true;
    }
    return false;
}

/* Shared memory that a block may have beside what the compiler gives it. */
static cudaError_t ask_room(size_t *bytes)
{
    enum { STATIC_BYTES = 2 << 10 };
    int most;
    cudaError_t e = ask_device(cudaDevAttrMaxSharedMemoryPerBlockOptin, &most);
    *bytes = e == cudaSuccess ? most - STATIC_BYTES : 0;
    return e;
}

template <class T>
static auto kernel_of(const struct cu_linear *l)
{
    return !l->norm.y              ? stream<T, 0>
           : l->n <= 4 * THREADS   ? stream<T, 1>
           : l->n <= 8 * THREADS   ? stream<T, 2>
                                   : stream<T, 4>;
}

template <class T>
static cudaError_t launch(cudaStream_t st, const struct given_linear *l, bool *takes)
{
    auto kernel = kernel_of<T>(l);
    struct ring r;
    size_t room;
    int n_units;
    cudaError_t e = is_of_90(kernel, takes);
    if (e == cudaSuccess)
        e = ask_room(&room);
    if (e == cudaSuccess)
        e = ask_device(cudaDevAttrMultiProcessorCount, &n_units);
    if (e != cudaSuccess)
        return e;
    *takes = *takes && (!l->norm.y || l->n <= MOST_NORMED) && ring_of(l, room, &r);
    if (!*takes)
        return cudaSuccess;
    size_t bytes = bytes_beside(l, r.piece) + TEAMS * r.n_places * r.bytes;
    e = allow_bytes(kernel, bytes);
    return e != cudaSuccess ? e : launch_early(kernel, n_units, THREADS, bytes, st, *l, r);
}

extern "C" cudaError_t pf_cu_linear_stream(cudaStream_t st, const struct given_linear *l, bool *takes)
{
    *takes = false;
    if (l->rows != 1 || l->n_heads)
        return cudaSuccess;
    switch (l->type) {
    case PF_Q4_K: return launch<segment_k45<false>>(st, l, takes);
    case PF_Q5_K: return launch<segment_k45<true>>(st, l, takes);
    case PF_Q6_K: return launch<segment_k6>(st, l, takes);
    default: return cudaSuccess;
    }
}

extern "C" bool pf_cu_linear_streams(const struct cu_linear *l)
{
    struct ring r;
    size_t room;
    bool is_of_type = l->type == PF_Q4_K || l->type == PF_Q5_K || l->type == PF_Q6_K, early;
    return is_of_type && l->rows == 1 && !l->n_heads && l->n <= MOST_NORMED &&
           is_of_90(stream<segment_k6, 1>, &early) == cudaSuccess && early && ask_room(&room) == cudaSuccess &&
           ring_of(l, room, &r);
}
