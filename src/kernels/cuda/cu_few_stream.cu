/* Dense products of a few rows of activations (cu_few.h), where multiprocessors have bulk copies and much shared
 * memory. A block a multiprocessor; its teams have tiles in turn, and go over each in pieces, of as many segments as a
 * team has warps that multiply, one each. The team's last warp sends for pieces, and adds up and puts out what the
 * others have multiplied.
 *
 *     a tile of 10 segments      | 0 1 2 3 | 4 5 6 7 | 8 9 |           pieces of a team of four, and its last warp
 *     its ring                   | piece 2 | piece 1 |                 places for pieces; 2 has taken the place of 0
 *
 *     box          is ready when                         who waits for it
 *     come         a place's piece is there              warps that multiply
 *     multiplied   all of them have put their sums       the last warp: then it sends for the next piece in that place
 *     added        the last warp has added these up      warps that multiply: two pieces later they put theirs there
 *
 * The first pieces are on their way before the kernel's turn. */
#include "kernels/cuda/cu_few.h"

enum { WARPS = 18, MOST_TEAMS = 6, MOST_PLACES = 4, TURNS = 2 };

/* How a block works. */
struct shape {
    int n_teams, warps;              /* warps of a team that multiply */
    int n_places, stride, bytes;     /* places of a team; bytes from one row in them to the next, and of a place */
};

struct boxes {
    uint64_t come[MOST_PLACES], multiplied[TURNS], added[TURNS];
};

/* The warp's team. */
struct team {
    int      i, warp;                /* its number, and the warp's in it */
    uint8_t *places;
    float   *sums;                   /* [TURNS][warps][few_sums] */
    uint2   *scales;                 /* the warp's own, if T's are packed */
    struct boxes *box;
};

/* Segments of a tile, from `first` on. */
struct piece {
    int tile, first;
};

CU_INLINE struct piece after(struct piece p, const struct shape &o, int n_segments)
{
    p.first += o.warps;
    return p.first < n_segments ? p : piece{ p.tile + o.n_teams, 0 };
}

CU_INLINE int n_tiles_of(const struct place &at)
{
    return (at.n + TILE_ROWS - 1) / TILE_ROWS;
}

/* The r-th of a piece's rows in device memory. */
template <class T>
CU_INLINE const uint8_t *row_of(const struct given_few &l, const struct place &at, struct piece p, int r)
{
    return at.rows + (uint64_t)(uint32_t)(p.tile * TILE_ROWS + r) * (uint32_t)l.row_bytes + p.first * T::BYTES;
}

template <class T>
CU_INLINE uint32_t skip_of(const uint8_t *row)
{
    return T::SKIP ? (uint32_t)(uintptr_t)row & 15 : 0;
}

/* ---- Shared memory ----------------------------------------------------------------------------------------------- */

template <class T, bool WIDE>
CU_HOST_FN size_t bytes_beside(int n, int n_teams, int warps)
{
    size_t of_warp = TURNS * few_sums<WIDE>() * sizeof(float) + few_scale_count<T>() * sizeof(uint2);
    return few_x_bytes<T, WIDE>(n) + n_teams * warps * of_warp;
}

/* Places come first, then columns, scales, sums. */
template <class T, bool WIDE>
CU_INLINE struct team team_of(const struct shape &o, uint8_t *memory, struct few_x *x, int n, struct boxes *boxes)
{
    int warp = uniform(threadIdx.x / WARP), i = warp / (o.warps + 1), of_team = warp - i * (o.warps + 1);
    uint8_t *columns = memory + o.n_teams * o.bytes * o.n_places;
    uint2 *scales = (uint2 *)(columns + few_x_bytes<T, WIDE>(n));
    float *sums = (float *)(scales + o.n_teams * o.warps * few_scale_count<T>());
    *x = few_x_at<T, WIDE>(columns, n);
    return { i, of_team, memory + i * o.n_places * o.bytes, sums + i * TURNS * o.warps * few_sums<WIDE>(),
             scales + (i * o.warps + of_team) * few_scale_count<T>(), boxes + i };
}

/* ---- A team's last warp ------------------------------------------------------------------------------------------ */

/* Sends for a piece's rows, those that are there: each begins as far past a multiple of 16 as it does in the matrix. */
template <class T>
CU_INLINE void send_for(const struct given_few &l, const struct place &at, const struct shape &o, struct piece p,
                        uint8_t *place, uint64_t *box)
{
    int n_rows = min(at.n - p.tile * TILE_ROWS, (int)TILE_ROWS),
        n = T::WHOLE ? min(o.warps, l.n / 256 - p.first) * (int)T::BYTES :
                       min(o.warps * (int)SEGMENT, l.n / 32 - p.first * SEGMENT) * ((int)T::BYTES / SEGMENT);
    const uint8_t *from = row_of<T>(l, at, p, 0);
    uint32_t row_bytes = (uint32_t)l.row_bytes;
    if (!one_of_warp())
        return;
    int all = 0;
#pragma unroll 4
    for (int r = 0; r < n_rows; r++)
        all += (skip_of<T>(from + r * row_bytes) + n + 15) / 16 * 16;
    expect_bytes(box, all);
#pragma unroll 4
    for (int r = 0; r < n_rows; r++, from += row_bytes, place += o.stride) {
        int skip = skip_of<T>(from);
        copy_once_to_box(place, from - skip, (skip + n + 15) / 16 * 16, box);
    }
}

/* Opens the team's boxes and sends for its first pieces. Returns the next one. */
template <class T>
CU_INLINE struct piece send_for_first(const struct given_few &l, const struct place &at, const struct shape &o,
                                      const struct team &team)
{
    struct piece p = { team.i, 0 };
    int lane = threadIdx.x % WARP;
    if (lane < o.n_places)
        open_box(&team.box->come[lane]);
    if (lane < TURNS) {
        open_box(&team.box->multiplied[lane], o.warps);
        open_box(&team.box->added[lane]);
    }
    __syncwarp();
#pragma unroll 1
    for (int i = 0; i < o.n_places; i++, p = after(p, o, n_segments(l.n)))
        if (p.tile < n_tiles_of(at))
            send_for<T>(l, at, o, p, team.places + i * o.bytes, &team.box->come[i]);
    return p;
}

/* Sends for the columns' codes. */
template <class T>
CU_INLINE void send_for_codes(const struct few_x &m, const struct x_row &x, int n, int n_columns, uint64_t *box)
{
    if (!one_of_warp())
        return;
    expect_bytes(box, n_columns * n);
#pragma unroll 1
    for (int c = 0; c < n_columns; c++)
        copy_to_box(m.x + c * few_pitch<T>(n), (const uint8_t *)x.q + (size_t)c * n, n, box);
}

/* A lane's outputs of a tile: row lane % 16, every second column. */
template <bool WIDE>
struct outputs {
    enum { N = few_columns_of<WIDE>() * TILE_ROWS / WARP };
    float total[N];
};

/* Adds the sums of a piece's segments. */
template <bool WIDE>
CU_INLINE void add_sums(const float *sums, int n, struct outputs<WIDE> *y)
{
    int lane = threadIdx.x % WARP;
    sums += lane % TILE_ROWS * (few_columns_of<WIDE>() + 1) + lane / TILE_ROWS;
#pragma unroll 4
    for (int k = 0; k < n; k++)
#pragma unroll
        for (int i = 0; i < y->N; i++)
            y->total[i] = y->total[i] + sums[k * few_sums<WIDE>() + 2 * i];
}

template <bool WIDE>
CU_INLINE void put_out(const struct given_few &l, const struct place &at, int tile, int row, int n_columns,
                       const struct outputs<WIDE> &y)
{
    int lane = threadIdx.x % WARP, r = tile * TILE_ROWS + lane % TILE_ROWS;
#pragma unroll
    for (int i = 0; i < y.N; i++) {
        int c = lane / TILE_ROWS + 2 * i;
        if (r < at.n && c < n_columns)
            finish(l, *at.p, at.first + r, row + c, y.total[i]);
    }
}

/* ahead: the first piece that was not sent for. */
template <class T, bool WIDE>
CU_INLINE void put_pieces(const struct given_few &l, const struct place &at, const struct shape &o,
                          const struct team &team, struct piece ahead, int row, int n_columns)
{
    int segments = n_segments(l.n), n_tiles = n_tiles_of(at), place = 0, turn = 0, phase = 0;
#pragma unroll 1
    for (int tile = team.i; tile < n_tiles; tile += o.n_teams) {
        struct outputs<WIDE> y = {};
#pragma unroll 1
        for (int first = 0; first < segments; first += o.warps, phase ^= turn, turn ^= 1) {
            await_box(&team.box->multiplied[turn], phase);
            if (ahead.tile < n_tiles)
                send_for<T>(l, at, o, ahead, team.places + place * o.bytes, &team.box->come[place]);
            ahead = after(ahead, o, segments);
            place = place + 1 < o.n_places ? place + 1 : 0;
            add_sums<WIDE>(team.sums + turn * o.warps * few_sums<WIDE>(), min(o.warps, segments - first), &y);
            __syncwarp();
            if (threadIdx.x % WARP == 0)
                arrive_at(&team.box->added[turn]);
        }
        put_out<WIDE>(l, at, tile, row, n_columns, y);
    }
}

/* ---- Warps that multiply ----------------------------------------------------------------------------------------- */

template <class T, bool WIDE>
CU_INLINE void multiply_pieces(const struct given_few &l, const struct few_x &x, const struct place &at,
                               const struct shape &o, const struct team &team)
{
    int segments = n_segments(l.n), n_tiles = n_tiles_of(at), g = threadIdx.x % WARP / 4, place = 0, round = 0,
        turn = 0, phase = 0;
#pragma unroll 1
    for (struct piece p = { team.i, 0 }; p.tile < n_tiles; p = after(p, o, segments), phase ^= turn, turn ^= 1) {
        bool has_segment = p.first + team.warp < segments;
        const uint8_t *row[2], *rows = team.places + place * o.bytes + team.warp * T::BYTES;
        float sum[WIDE ? 8 : 4] = {};
#pragma unroll
        for (int h = 0; h < 2; h++)
            row[h] = rows + (g + 8 * h) * o.stride + skip_of<T>(row_of<T>(l, at, p, g + 8 * h));
        await_box(&team.box->come[place], round);
        if (has_segment)
            few_segment<T, WIDE>(x, row, l.tables, l.n, p.first + team.warp, team.scales, sum);
        await_box(&team.box->added[turn], phase ^ 1);
        if (has_segment)
            few_put_sums<WIDE>(team.sums + (turn * o.warps + team.warp) * few_sums<WIDE>(), sum);
        __syncwarp();
        if (threadIdx.x % WARP == 0)
            arrive_at(&team.box->multiplied[turn]);
        if (++place == o.n_places)
            place = 0, round ^= 1;
    }
}

/* ---- The kernel -------------------------------------------------------------------------------------------------- */

/* blockIdx: block_rows weight rows of one part; group_rows rows of activations. */
template <class T, bool WIDE>
static __global__ void __launch_bounds__(WARPS * WARP, 1)
few_stream(const __grid_constant__ struct given_few l, const __grid_constant__ struct shape o, int block_rows,
           int group_rows)
{
    BLOCK_MEMORY(uint4, memory);
    __shared__ struct boxes boxes[MOST_TEAMS];
    __shared__ uint64_t codes;
    int row = blockIdx.y * group_rows, n_columns = min(group_rows, l.rows - row);
    struct few_x x;
    struct team team = team_of<T, WIDE>(o, (uint8_t *)memory, &x, l.n, boxes);
    struct place at = place_of(l, block_rows, blockIdx.x);
    bool is_last = team.warp == o.warps;
    struct piece ahead = {};
    if (threadIdx.x == o.warps * WARP)
        open_box(&codes);
    if (is_last)
        ahead = send_for_first<T>(l, at, o, team);
    wait_turn();
    if (is_last && team.i == 0)
        send_for_codes<T>(x, x_row_of(l.x, l.n, row), l.n, n_columns, &codes);
    few_sides<T, WIDE>(x, x_row_of(l.x, l.n, row), l.n, n_columns);
    __syncthreads();
    if (is_last) {
        put_pieces<T, WIDE>(l, at, o, team, ahead, row, n_columns);
        return;
    }
    await_box(&codes, 0);
    multiply_pieces<T, WIDE>(l, x, at, o, team);
}

/* ---- Launches ---------------------------------------------------------------------------------------------------- */

/* How a product is cut for a card. */
struct cut {
    struct shape o;
    int    block_rows, n_blocks, n_groups;
    size_t bytes;
};

/* What a block takes, about, in units of what a warp takes for a segment beside others: its rounds, each of which is as
 * long as its warps need that share the multiprocessor, but no less than one warp needs for itself. One team alone is
 * slower: its warps all want the same at the same time. */
static float cost_of(int n_tiles, int segments, int n_teams, int warps)
{
    enum { ALONE = 9 };
    int rounds = ceil_div(n_tiles, n_teams) * ceil_div(segments, warps);
    return rounds * (float)max((int)ALONE, n_teams * warps) * (n_teams == 1 ? 1.12f : 1.0f);
}

/* The cheapest shape of which a team has two places at least; false: there is none. */
template <class T, bool WIDE>
static bool shape_of_block(const struct cu_linear *l, size_t room, struct cut *c)
{
    int segments = n_segments(l->n), n_tiles = ceil_div(c->block_rows, TILE_ROWS);
    float best = INFINITY;
    for (int n = 1; n <= min((int)MOST_TEAMS, n_tiles); n++)
        for (int w = min(WARPS / n - 1, segments); w > 0; w--) {
            struct shape o = { n, w, 0, few_stride<T>(w), TILE_ROWS * few_stride<T>(w) };
            size_t beside = bytes_beside<T, WIDE>(l->n, n, w);
            float cost = cost_of(n_tiles, segments, n, w);
            o.n_places = room > beside ? (int)min((room - beside) / (n * o.bytes), (size_t)MOST_PLACES) : 0;
            if (o.n_places < 2 || cost >= best)
                continue;
            best = cost;
            c->o = o;
            c->bytes = beside + n * o.n_places * o.bytes;
        }
    return best < INFINITY;
}

/* Blocks for all rows of activations at once; or for eight each, which read the same weights at about the same time. */
template <class T, bool WIDE>
static bool cut_as(const struct cu_linear *l, size_t room, int n_units, struct cut *c)
{
    c->n_groups = ceil_div(l->rows, few_columns_of<WIDE>());
    if (l->n_parts > n_units / c->n_groups)
        return false;
    c->block_rows = few_block_rows(l, n_units / c->n_groups);
    c->n_blocks = n_blocks_of(l, c->block_rows);
    return shape_of_block<T, WIDE>(l, room, c);
}

template <class T, bool WIDE>
static cudaError_t launch_as(cudaStream_t st, const struct given_few *l, size_t shared_bytes, bool *takes)
{
    enum { STATIC_BYTES = 1 << 10 };
    struct cut c;
    int n_units;
    cudaError_t e = is_of_90(few_stream<T, WIDE>, takes);
    if (e == cudaSuccess)
        e = ask_device(cudaDevAttrMultiProcessorCount, &n_units);
    *takes = e == cudaSuccess && *takes && cut_as<T, WIDE>(l, shared_bytes - STATIC_BYTES, n_units, &c);
    if (!*takes)
        return e;
    e = allow_bytes(few_stream<T, WIDE>, c.bytes);
    return e != cudaSuccess ? e :
        launch_early(few_stream<T, WIDE>, dim3(c.n_blocks, c.n_groups), c.o.n_teams * (c.o.warps + 1) * WARP, c.bytes,
                     st, *l, c.o, c.block_rows, ceil_div(l->rows, c.n_groups));
}

template <class T>
static cudaError_t launch(cudaStream_t st, const struct given_few *l, size_t shared_bytes, bool *takes)
{
    cudaError_t e = cudaSuccess;
    *takes = false;
    if (l->rows > few_columns_of<false>())
        e = launch_as<T, true>(st, l, shared_bytes, takes);
    return e != cudaSuccess || *takes ? e : launch_as<T, false>(st, l, shared_bytes, takes);
}

extern "C" cudaError_t pf_cu_few_stream(cudaStream_t st, const struct given_few *l, size_t shared_bytes, bool *takes)
{
    *takes = false;
    switch (l->type) {
#define X(TYPE, ...) case PF_##TYPE: return launch<__VA_ARGS__>(st, l, shared_bytes, takes);
    CU_FEW_LIST(X)
#undef X
    default: return cudaSuccess;
    }
}
