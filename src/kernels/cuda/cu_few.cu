/* Dense products of a few rows of activations: see cu_few.h. Where tiles are few, all of them are multiplied at once,
 * and first tasks of warps are on their way before the turn; where they are many, teams go from tile to tile. */
#include "kernels/cuda/cu_few.h"
#include "kernels/cuda/cu_given.h"

/* Where a tile lies: on the rows from `first` on of part p. Parts begin at whole tiles. */
struct place {
    const struct cu_part *p;
    int                   first;
};

CU_INLINE struct place place_of(const struct cu_linear &l, int tile)
{
    int k = 0;
#pragma unroll 1
    for (int n; tile >= (n = (l.part[k].n_out + TILE_ROWS - 1) / TILE_ROWS); tile -= n)
        k++;
    return { &l.part[k], tile * TILE_ROWS };
}

CU_INLINE struct few_rows rows_of(const struct cu_linear &l, const struct place &at)
{
    return { at.p->w + (size_t)at.first * l.row_bytes, at.p->n_out - 1 - at.first };
}

/* Products of which rows of outputs may go to the host's memory, too. */
struct given_few : cu_linear {
    struct cu_given_rows given;
};

CU_INLINE void finish(const struct given_few &l, const struct cu_part &p, int r, int row, float v)
{
    if (p.scale != 1.0f)
        v = v * p.scale;
    if (p.bias)
        v = v + p.bias[r];
    p.y[(size_t)row * p.n_out + r] = v;
    if (l.given.to[row])
        l.given.to[row][r] = v;
    if (l.given.fault)
        check_logit(v, l.given.fault);
}

/* The team's outputs of a tile, whose sums are there when all of it has come. */
template <bool WIDE>
CU_INLINE void finish_tile(const struct given_few &l, const struct few_room &m, struct few_shape s, int tile, int row,
                           int n_columns)
{
    int n_threads = s.team_warps * WARP, team = threadIdx.x / n_threads;
    struct place at = place_of(l, tile);
    meet(1 + team, n_threads);
#pragma unroll 1
    for (int i = threadIdx.x - team * n_threads; i < TILE_ROWS * n_columns; i += n_threads)
        if (at.first + i % TILE_ROWS < at.p->n_out)
            finish(l, *at.p, at.first + i % TILE_ROWS, row + i / TILE_ROWS, few_total<WIDE>(m, n_segments(l.n), i));
    meet(1 + team, n_threads);
}

/* blockIdx: tiles, n_teams at a time; group of rows of activations, of l.rows at most. */
template <class T, bool WIDE>
static __global__ void __launch_bounds__(MOST_WARPS * WARP, 1) few_linear(const __grid_constant__ struct given_few l,
                                                                          struct few_shape s, int n_tiles,
                                                                          int group_rows)
{
    BLOCK_MEMORY(float4, memory);
    int n = l.n, segments = n_segments(n), warp = threadIdx.x / WARP, row = blockIdx.y * group_rows,
        n_columns = min(group_rows, l.rows - row), slot_bytes = TILE_ROWS * few_stride<T>();
    struct few_room m = few_room_at<T, WIDE>(memory, n, s);
    struct few_way now = { (int)blockIdx.x * s.n_teams + warp / s.team_warps, warp % s.team_warps }, ahead = now;
    auto row_of = [&](struct few_way w) {
        return few_row_of<T>(rows_of(l, place_of(l, w.tile)), (uint32_t)l.row_bytes, n, w.segment);
    };
    auto send_for = [&](uint8_t *slot) {
        if (ahead.tile < n_tiles)
            few_stage<T>(row_of(ahead), slot);
        __pipeline_commit();
        ahead = few_next(ahead, s, segments);
    };
    for (int i = 0; i < s.n_slots; i++)
        send_for(m.slots + i * slot_bytes);
    wait_turn();
    few_columns<T, WIDE>(m, x_row_of(l.x, n, row), n, n_columns);
    __syncthreads();
#pragma unroll 1
    for (int slot = 0; now.tile < n_tiles; slot = slot + 1 < s.n_slots ? slot + 1 : 0) {
        __pipeline_wait_prior(s.n_slots - 1);
        __syncwarp();
        few_segment<T, WIDE>(m, row_of(now), n, now.segment, m.slots + slot * slot_bytes);
        __syncwarp();
        send_for(m.slots + slot * slot_bytes);
        struct few_way later = few_next(now, s, segments);
        if (later.tile != now.tile)
            finish_tile<WIDE>(l, m, s, now.tile, row, n_columns);
        now = later;
    }
}

/* How a product is cut for a GPU. */
struct cut {
    struct few_shape s;
    int    n_tiles, n_blocks, n_groups;
    size_t bytes;
};

/* Rows of activations that a block takes. */
static int group_rows(const struct cu_linear *l, int n_groups)
{
    return ceil_div(l->rows, n_groups);
}

/* A block a multiprocessor, with a team for each of its tiles if these are few, and of so many warps as share a tile's
 * segments evenly. Slots for all tasks of a warp, or as many as there is room for. */
template <class T, bool WIDE>
static bool cut_as(const struct cu_linear *l, int n_units, size_t shared_bytes, struct cut *c)
{
    enum { MOST_SLOTS = 8 };
    int segments = n_segments(l->n), tiles_each = ceil_div(c->n_tiles, n_units);
    for (int most = MOST_WARPS; most > 0; most--) {
        struct few_shape s = { min(tiles_each, most), 1, 1 };
        for (int w = 2; w <= min(most / s.n_teams, segments); w++)
            if (ceil_div(segments, w) < ceil_div(segments, s.team_warps))
                s.team_warps = w;
        s.n_slots = min((int)MOST_SLOTS, ceil_div(tiles_each, s.n_teams) * ceil_div(segments, s.team_warps));
        while (s.n_slots > 2 && few_bytes<T, WIDE>(l->n, s) > shared_bytes)
            s.n_slots--;
        c->s = s;
        c->bytes = few_bytes<T, WIDE>(l->n, s);
        c->n_blocks = min(n_units, ceil_div(c->n_tiles, s.n_teams));
        if (c->bytes <= shared_bytes)
            return true;
    }
    return false;
}

template <class T>
static bool cut_of(const struct cu_linear *l, size_t shared_bytes, struct cut *c)
{
    int n_units;
    if (ask_device(cudaDevAttrMultiProcessorCount, &n_units) != cudaSuccess)
        return false;
    c->n_tiles = 0;
    for (int i = 0; i < l->n_parts; i++)
        c->n_tiles += ceil_div(l->part[i].n_out, TILE_ROWS);
    c->n_groups = 1;
    if (l->rows > few_columns_of<false>() && cut_as<T, true>(l, n_units, shared_bytes, c))
        return true;
    c->n_groups = ceil_div(l->rows, few_columns_of<false>());
    return cut_as<T, false>(l, n_units, shared_bytes, c);
}

template <class T, bool WIDE>
static cudaError_t launch_as(cudaStream_t st, const struct given_few *l, const struct cut *c)
{
    cudaError_t e = allow_bytes(few_linear<T, WIDE>, c->bytes);
    if (e != cudaSuccess)
        return e;
    return launch_early(few_linear<T, WIDE>, dim3(c->n_blocks, c->n_groups), c->s.n_teams * c->s.team_warps * WARP,
                        c->bytes, st, *l, c->s, c->n_tiles, group_rows(l, c->n_groups));
}

template <class T>
static cudaError_t launch(cudaStream_t st, const struct given_few *l, size_t shared_bytes)
{
    struct cut c;
    if (!cut_of<T>(l, shared_bytes, &c))
        return cudaErrorInvalidValue;
    bool wide = group_rows(l, c.n_groups) > few_columns_of<false>();
    return wide ? launch_as<T, true>(st, l, &c) : launch_as<T, false>(st, l, &c);
}

/* Two rows are done as soon one after the other. */
extern "C" bool pf_cu_few_takes(const struct cu_linear *l, size_t shared_bytes)
{
    struct cut c;
    if (l->rows < 3 || l->rows > CU_VECTOR_ROWS || l->n_heads || l->norm.y)
        return false;
    switch (l->type) {
#define X(TYPE, ...) case PF_##TYPE: return cut_of<__VA_ARGS__>(l, shared_bytes, &c);
    CU_FEW_LIST(X)
#undef X
    default: return false;
    }
}

extern "C" cudaError_t pf_cu_few_given(cudaStream_t st, const struct cu_linear *l, const struct cu_given_rows *given,
                                       size_t shared_bytes)
{
    struct given_few o;
    (struct cu_linear &)o = *l;
    o.given = *given;
    switch (l->type) {
#define X(TYPE, ...) case PF_##TYPE: return launch<__VA_ARGS__>(st, &o, shared_bytes);
    CU_FEW_LIST(X)
#undef X
    default: return cudaErrorInvalidValue;
    }
}

extern "C" cudaError_t pf_cu_few(cudaStream_t st, const struct cu_linear *l, size_t shared_bytes)
{
    const struct cu_given_rows nowhere = {};
    return pf_cu_few_given(st, l, &nowhere, shared_bytes);
}
