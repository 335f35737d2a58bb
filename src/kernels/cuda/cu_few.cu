/* Dense products of a few rows of activations: see cu_few.h. A block has neighbouring weight rows, whose tiles are
 * multiplied at once if they are few; first tasks of warps are on their way before the turn. Where a warp has whole
 * tiles, of a large matrix, it has neighbours, whose outputs leave by two tiles: 128 bytes of each row of outputs. */
#include "kernels/cuda/cu_few.h"
#include "kernels/cuda/cu_linear.h"

/* The rows of a tile of the block. */
CU_INLINE struct few_rows rows_of(const struct cu_linear &l, const struct place &at, int tile)
{
    int first = tile * TILE_ROWS;
    return { at.rows + (size_t)first * l.row_bytes, at.n - first };
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

/* Adds the sums of a round, of the segments from `first` on, to the team's outputs of a tile, when all of it has come;
 * those of the last round are put out. An output is always the same thread's. */
template <bool WIDE>
CU_INLINE void add_round(const struct given_few &l, const struct few_room &m, const float *sums, struct few_shape s,
                         const struct place &at, int tile, int first, int row, int n_columns)
{
    int n_threads = s.team_warps * WARP, team = threadIdx.x / n_threads, left = n_segments(l.n) - first,
        n = min(left, s.team_warps);
    meet(1 + team, n_threads);
#pragma unroll 1
    for (int i = threadIdx.x - team * n_threads; i < TILE_ROWS * n_columns; i += n_threads) {
        int c = i / TILE_ROWS, r = tile * TILE_ROWS + i % TILE_ROWS;
        const float *sum = sums + i % TILE_ROWS * (few_columns_of<WIDE>() + 1) + c;
        float total = first ? m.totals[i] : 0.0f;
#pragma unroll 4
        for (int k = 0; k < n; k++)
            total = total + sum[k * few_round<WIDE>()];
        m.totals[i] = total;
        if (left <= s.team_warps && r < at.n)
            finish(l, *at.p, at.first + r, row + c, total);
    }
}

/* The outputs of a tile, by the warp that has it alone: with those of the tile before it, or as they are if it is the
 * last. */
template <bool WIDE>
CU_INLINE void finish_alone(const struct given_few &l, const struct few_room &m, const struct place &at, int tile,
                            bool is_last, int row, int n_columns, const float (&total)[WIDE ? 8 : 4])
{
    int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4, second = tile % 2;
#pragma unroll
    for (int i = 0; i < (WIDE ? 8 : 4); i++)
        m.sums[(i / 4 * 8 + 2 * t + i % 2) * WARP + second * TILE_ROWS + g + i % 4 / 2 * 8] = total[i];
    if (!second && !is_last)
        return;
    __syncwarp();
    int r = (tile - second) * TILE_ROWS + lane;
    bool is_there = r < at.n && (second || lane < TILE_ROWS);
#pragma unroll 1
    for (int c = 0; is_there && c < n_columns; c++)
        finish(l, *at.p, at.first + r, row + c, m.sums[c * WARP + lane]);
    __syncwarp();
}

/* blockIdx: block_rows weight rows of one part; group_rows rows of activations. */
template <class T, bool WIDE>
static __global__ void __launch_bounds__(MOST_WARPS * WARP, 1) few_linear(const __grid_constant__ struct given_few l,
                                                                          struct few_shape s, int block_rows,
                                                                          int group_rows)
{
    BLOCK_MEMORY(float4, memory);
    enum { N_SUMS = WIDE ? 8 : 4 };
    int n = l.n, segments = n_segments(n), row = blockIdx.y * group_rows,
        n_columns = min(group_rows, l.rows - row), slot_bytes = TILE_ROWS * few_stride<T>();
    struct few_room m = few_room_at<T, WIDE>(memory, n, s);
    struct place at = place_of(l, block_rows, blockIdx.x);
    const struct few_way way = few_begin(s, (at.n + TILE_ROWS - 1) / TILE_ROWS);
    struct few_way ahead = way;
    auto row_of = [&](int tile, int segment) {
        return few_row_of<T>(rows_of(l, at, tile), (uint32_t)l.row_bytes, n, segment);
    };
    auto send_for = [&](uint8_t *slot) {
        if (ahead.tile < ahead.end)
            few_stage<T>(row_of(ahead.tile, ahead.segment), slot);
        __pipeline_commit();
        ahead = few_next(ahead, s, segments);
    };
    for (int i = 0; i < s.n_slots; i++)
        send_for(m.slots + i * slot_bytes);
    wait_turn();
    few_columns<T, WIDE>(m, x_row_of(l.x, n, row), n, n_columns);
    __syncthreads();
    int slot = 0, turn = 0;
#pragma unroll 1
    for (int tile = way.tile; tile < way.end; tile += way.step) {
        float total[N_SUMS] = {};
#pragma unroll 1
        for (int first = 0; first < segments; first += s.team_warps, turn ^= 1) {
            int of_team = threadIdx.x / WARP % s.team_warps, segment = first + of_team;
            float sum[N_SUMS] = {}, *sums = m.sums + turn * s.team_warps * few_round<WIDE>();
            if (segment < segments) {
                __pipeline_wait_prior(s.n_slots - 1);
                __syncwarp();
                few_segment<T, WIDE>(m, row_of(tile, segment), n, segment, m.slots + slot * slot_bytes, sum);
                __syncwarp();
                send_for(m.slots + slot * slot_bytes);
                slot = slot + 1 < s.n_slots ? slot + 1 : 0;
            }
            if (s.alone) {
#pragma unroll
                for (int i = 0; i < N_SUMS; i++)
                    total[i] = total[i] + sum[i];
                continue;
            }
            few_put_sums<WIDE>(sums + of_team * few_round<WIDE>(), sum);
            add_round<WIDE>(l, m, sums, s, at, tile, first, row, n_columns);
        }
        if (s.alone)
            finish_alone<WIDE>(l, m, at, tile, tile + 1 == way.end, row, n_columns, total);
    }
}

/* How a product is cut for a GPU. */
struct cut {
    struct few_shape s;
    int    block_rows, n_blocks, n_groups;
    size_t bytes;
};

/* Rows of activations that a block takes. */
static int group_rows(const struct cu_linear *l, int n_groups)
{
    return ceil_div(l->rows, n_groups);
}

/* As many warps, but no less than half of those there may be, as have the fewest pairs of a block's tiles to do. */
static void deal_pairs(int n_pairs, struct few_shape *s)
{
    int most = s->n_teams;
    for (int w = most - 1; w >= ceil_div(most, 2); w--)
        if (w * ceil_div(n_pairs, w) < s->n_teams * ceil_div(n_pairs, s->n_teams))
            s->n_teams = w;
    s->alone = 2 * ceil_div(n_pairs, s->n_teams);
}

/* A team for each of a block's tiles if these are few, and of so many warps as share a tile's segments evenly; of many
 * pairs of tiles for each warp, if segments or columns are many, else teams of one warp are faster. Slots for all tasks
 * of a warp, or as many as there is room for. */
template <class T, bool WIDE>
static bool cut_as(const struct cu_linear *l, size_t shared_bytes, struct cut *c)
{
    enum { MOST_SLOTS = 8, MANY_SEGMENTS = 16 };
    int segments = n_segments(l->n), n_tiles = ceil_div(c->block_rows, TILE_ROWS);
    for (int most = MOST_WARPS; most > 0; most--) {
        struct few_shape s = { min(n_tiles, most), 1, 1, 0 };
        for (int w = 2; w <= min(most / s.n_teams, segments); w++)
            if (ceil_div(segments, w) < ceil_div(segments, s.team_warps))
                s.team_warps = w;
        if (s.team_warps == 1 && n_tiles >= 2 * s.n_teams && (WIDE || segments >= MANY_SEGMENTS))
            deal_pairs(ceil_div(n_tiles, 2), &s);
        s.n_slots = min((int)MOST_SLOTS, ceil_div(n_tiles, s.n_teams) * ceil_div(segments, s.team_warps));
        while (s.n_slots > 2 && few_bytes<T, WIDE>(l->n, s) > shared_bytes)
            s.n_slots--;
        c->s = s;
        c->bytes = few_bytes<T, WIDE>(l->n, s);
        if (c->bytes <= shared_bytes)
            return true;
    }
    return false;
}

/* A block a multiprocessor, of whole eights of rows, by which multiprocessors share the rows more evenly than by whole
 * tiles: rows that a block's last tile lacks are not read. */
template <class T>
static bool cut_of(const struct cu_linear *l, size_t shared_bytes, struct cut *c)
{
    int n_units;
    if (ask_device(cudaDevAttrMultiProcessorCount, &n_units) != cudaSuccess || l->n_parts > n_units)
        return false;
    c->block_rows = max(n_blocks_of(l, 8) / n_units, 1) * 8;
    while (n_blocks_of(l, c->block_rows) > n_units)
        c->block_rows += 8;
    c->n_blocks = n_blocks_of(l, c->block_rows);
    c->n_groups = 1;
    if (l->rows > few_columns_of<false>() && cut_as<T, true>(l, shared_bytes, c))
        return true;
    c->n_groups = ceil_div(l->rows, few_columns_of<false>());
    return cut_as<T, false>(l, shared_bytes, c);
}

template <class T, bool WIDE>
static cudaError_t launch_as(cudaStream_t st, const struct given_few *l, const struct cut *c)
{
    cudaError_t e = allow_bytes(few_linear<T, WIDE>, c->bytes);
    if (e != cudaSuccess)
        return e;
    return launch_early(few_linear<T, WIDE>, dim3(c->n_blocks, c->n_groups), c->s.n_teams * c->s.team_warps * WARP,
                        c->bytes, st, *l, c->s, c->block_rows, group_rows(l, c->n_groups));
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

extern "C" bool pf_cu_few_takes(const struct cu_linear *l, size_t shared_bytes)
{
    struct cut c;
    if (l->rows < 2 || l->rows > CU_VECTOR_ROWS || l->n_heads || l->norm.y)
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
