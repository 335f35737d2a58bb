/* Dense products of a few rows of activations (cu_few.h): the choice of cu_few_stream.cu where its kernels can be, and
 * kernels for all other cards. A block has neighbouring weight rows, whose tiles are multiplied at once if they are
 * few. A team's warps have each every so many-th segment of its tiles, and a ring of slots, to which the bytes of the
 * next ones are copied while they compute; the first are on their way before the turn. Sums of a round, a segment of
 * each warp of a team, go to shared memory, where a thread an output adds them up, left to right; a team of one warp
 * adds them in its registers. */
#include <cuda_pipeline.h>

#include "kernels/cuda/cu_few.h"

enum { MOST_WARPS = 16 };

/* How a block's warps and memory are dealt out. */
struct few_shape {
    int n_teams, team_warps, n_slots;
};

/* A block's memory. */
struct room {
    struct few_x x;
    float   *sums;                /* this team's: [2][team_warps][few_sums], by turns of rounds */
    float   *totals;              /* this team's: [COLUMNS][TILE_ROWS] */
    uint2   *scales;              /* this warp's: [TILE_ROWS][SCALES], if they are packed in T's rows */
    uint8_t *slots;               /* this warp's: [n_slots][TILE_ROWS][stride] */
};

/* Floats that only teams of several warps need: of a team, of a warp. */
template <bool WIDE>
CU_HOST_FN int totals_of(struct few_shape s)
{
    return s.team_warps > 1 ? few_columns_of<WIDE>() * TILE_ROWS : 0;
}

template <bool WIDE>
CU_HOST_FN int sums_of(struct few_shape s)
{
    return s.team_warps > 1 ? 2 * few_sums<WIDE>() : 0;
}

template <class T, bool WIDE>
CU_HOST_FN size_t bytes_of(int n, struct few_shape s)
{
    size_t of_warp = sums_of<WIDE>(s) * sizeof(float) + few_scale_count<T>() * sizeof(uint2) +
                     (size_t)s.n_slots * TILE_ROWS * few_stride<T>(1);
    return few_x_bytes<T, WIDE>(n) + s.n_teams * (totals_of<WIDE>(s) * sizeof(float) + s.team_warps * of_warp);
}

template <class T, bool WIDE>
CU_INLINE struct room room_at(uint8_t *memory, int n, struct few_shape s)
{
    int warp = threadIdx.x / WARP, team = warp / s.team_warps, n_warps = s.n_teams * s.team_warps;
    struct room m;
    m.x = few_x_at<T, WIDE>(memory, n);
    m.sums = (float *)(memory + few_x_bytes<T, WIDE>(n));
    m.totals = m.sums + n_warps * sums_of<WIDE>(s);
    uint2 *scales = (uint2 *)(m.totals + s.n_teams * totals_of<WIDE>(s));
    m.sums += team * s.team_warps * sums_of<WIDE>(s);
    m.totals += team * totals_of<WIDE>(s);
    m.scales = scales + warp * few_scale_count<T>();
    m.slots = (uint8_t *)(scales + n_warps * few_scale_count<T>()) + warp * s.n_slots * TILE_ROWS * few_stride<T>(1);
    return m;
}

/* ---- A warp's way ------------------------------------------------------------------------------------------------ */

/* The lane's two rows of a tile, of which it copies every fourth piece of 16 bytes. What is not there is not copied;
 * what comes of it, nobody wants. */
struct rows {
    const uint8_t *from[2];
    bool           there[2];
};

/* Where a warp is on its way through its tasks: segments of a tile first. */
struct way {
    int tile, segment;
    struct rows rows;
};

CU_INLINE void go_to(struct way *w, const struct given_few &l, const struct place &at, int tile)
{
    const uint8_t *first = at.rows + (size_t)tile * TILE_ROWS * l.row_bytes;
    int g = threadIdx.x % WARP / 4, n = at.n - tile * TILE_ROWS;
    uint32_t row_bytes = (uint32_t)l.row_bytes;
    w->tile = tile;
    w->rows = { { first + g * row_bytes, first + (g + 8) * row_bytes }, { g < n, g + 8 < n } };
}

/* How far a row's segment begins past a multiple of 16. */
template <class T>
CU_INLINE int skip_of(const uint8_t *row, int segment)
{
    return T::SKIP ? ((uint32_t)(uintptr_t)row + segment * T::BYTES) & 15 : 0;
}

/* Starts copying a segment of the rows to a slot: four lanes a row. */
template <class T>
CU_INLINE void copy_segment(const struct rows &r, int n, int segment, uint8_t *slot)
{
    constexpr int PIECES = (T::BYTES + T::SKIP + 15) / 16;
    int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4,
        bytes = T::WHOLE ? (int)T::BYTES : (int)T::BYTES / SEGMENT * min(n / 32 - segment * SEGMENT, (int)SEGMENT);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int skip = skip_of<T>(r.from[h], segment), left = skip + bytes - 16 * t;
        const uint8_t *from = r.from[h] + (segment * T::BYTES - skip + 16 * t);
        uint8_t *to = slot + (g + 8 * h) * few_stride<T>(1) + 16 * t;
        if (!r.there[h])
            continue;
#pragma unroll
        for (int j = 0; j < (PIECES + 3) / 4; j++)
            if ((T::WHOLE && 64 * (j + 1) <= T::BYTES) || 64 * j < left)
                __pipeline_memcpy_async(to + 64 * j, from + 64 * j, 16);
    }
}

/* Waits until the oldest of the copies that are on their way to a warp's slots has arrived. */
CU_INLINE void await_slot(int n_slots)
{
    if (n_slots == 4)
        __pipeline_wait_prior(3);
    else if (n_slots == 3)
        __pipeline_wait_prior(2);
    else
        __pipeline_wait_prior(1);
    __syncwarp();
}

/* ---- The kernel -------------------------------------------------------------------------------------------------- */

/* The columns' codes, by all threads. */
template <class T>
CU_INLINE void copy_codes(const struct few_x &m, const struct x_row &x, int n, int n_columns)
{
    enum { AT_ONCE = 8 };
#pragma unroll 1
    for (int first = 0; first < n_columns; first += AT_ONCE) {
#pragma unroll 1
        for (int i = threadIdx.x; i < n / 16; i += blockDim.x) {
            uint4 v[AT_ONCE];
#pragma unroll
            for (int c = 0; c < AT_ONCE; c++)
                if (first + c < n_columns)
                    v[c] = fresh16(x.q + (size_t)(first + c) * n + 16 * i);
#pragma unroll
            for (int c = 0; c < AT_ONCE; c++)
                if (first + c < n_columns)
                    *(uint4 *)(m.x + (first + c) * few_pitch<T>(n) + 16 * i) = v[c];
        }
    }
}

/* Adds the sums of a round, of the segments from `first` on, to the team's outputs of a tile, when all of it has come;
 * those of the last round are put out. An output is always the same thread's. */
template <bool WIDE>
CU_INLINE void add_round(const struct given_few &l, const struct room &m, const float *sums, struct few_shape s,
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
            total = total + sum[k * few_sums<WIDE>()];
        if (left > s.team_warps)
            m.totals[i] = total;
        else if (r < at.n)
            finish(l, *at.p, at.first + r, row + c, total);
    }
}

/* The outputs of a tile, by the warp that has it alone. */
template <bool WIDE>
CU_INLINE void finish_alone(const struct given_few &l, const struct place &at, int tile, int row, int n_columns,
                            const float (&total)[WIDE ? 8 : 4])
{
    int lane = threadIdx.x % WARP, r = tile * TILE_ROWS + lane / 4, t = lane % 4;
#pragma unroll
    for (int i = 0; i < (WIDE ? 8 : 4); i++) {
        int c = i / 4 * 8 + 2 * t + i % 2, of = r + i % 4 / 2 * 8;
        if (c < n_columns && of < at.n)
            finish(l, *at.p, at.first + of, row + c, total[i]);
    }
}

/* blockIdx: block_rows weight rows of one part; group_rows rows of activations. */
template <class T, bool WIDE>
static __global__ void __launch_bounds__(MOST_WARPS * WARP, 1) few_linear(const __grid_constant__ struct given_few l,
                                                                          struct few_shape s, int block_rows,
                                                                          int group_rows)
{
    BLOCK_MEMORY(float4, memory);
    enum { N_SUMS = WIDE ? 8 : 4, SLOT_BYTES = TILE_ROWS * few_stride<T>(1) };
    int n = l.n, segments = n_segments(n), row = blockIdx.y * group_rows, n_columns = min(group_rows, l.rows - row),
        warp = threadIdx.x / WARP, team = warp / s.team_warps, of_team = warp - team * s.team_warps,
        g = threadIdx.x % WARP / 4;
    struct room m = room_at<T, WIDE>((uint8_t *)memory, n, s);
    struct place at = place_of(l, block_rows, blockIdx.x);
    int n_tiles = (at.n + TILE_ROWS - 1) / TILE_ROWS;
    uint8_t *last = m.slots + (s.n_slots - 1) * SLOT_BYTES, *slot = m.slots;
    struct way here, ahead;
    go_to(&here, l, at, team);
    ahead = here, ahead.segment = of_team;
    auto send_for = [&](uint8_t *to) {
        if (ahead.tile < n_tiles)
            copy_segment<T>(ahead.rows, n, ahead.segment, to);
        __pipeline_commit();
        ahead.segment += s.team_warps;
        if (ahead.segment >= segments) {
            ahead.segment = of_team;
            go_to(&ahead, l, at, ahead.tile + s.n_teams);
        }
    };
    for (int i = 0; i < s.n_slots; i++)
        send_for(m.slots + i * SLOT_BYTES);
    wait_turn();
    struct x_row x = x_row_of(l.x, n, row);
    copy_codes<T>(m.x, x, n, n_columns);
    few_sides<T, WIDE>(m.x, x, n, n_columns);
    __syncthreads();
    int turn = 0;
#pragma unroll 1
    for (; here.tile < n_tiles; go_to(&here, l, at, here.tile + s.n_teams)) {
        float total[N_SUMS] = {};
#pragma unroll 1
        for (int first = 0; first < segments; first += s.team_warps, turn ^= 1) {
            int segment = first + of_team;
            float sum[N_SUMS] = {}, *sums = m.sums + turn * s.team_warps * few_sums<WIDE>();
            if (segment < segments) {
                const uint8_t *rows[2];
#pragma unroll
                for (int h = 0; h < 2; h++)
                    rows[h] = slot + (g + 8 * h) * few_stride<T>(1) + skip_of<T>(here.rows.from[h], segment);
                await_slot(s.n_slots);
                few_segment<T, WIDE>(m.x, rows, l.tables, n, segment, m.scales, sum);
                __syncwarp();
                send_for(slot);
                slot = slot == last ? m.slots : slot + SLOT_BYTES;
            }
            if (s.team_warps == 1) {
#pragma unroll
                for (int i = 0; i < N_SUMS; i++)
                    total[i] = total[i] + sum[i];
                continue;
            }
            few_put_sums<WIDE>(sums + of_team * few_sums<WIDE>(), sum);
            add_round<WIDE>(l, m, sums, s, at, here.tile, first, row, n_columns);
        }
        if (s.team_warps == 1)
            finish_alone<WIDE>(l, at, here.tile, row, n_columns, total);
    }
}

/* ---- Launches ---------------------------------------------------------------------------------------------------- */

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

/* A team for each of a block's tiles if these are few, and of so many warps as share a tile's segments evenly; with the
 * most slots that there is room for. */
template <class T, bool WIDE>
static bool cut_as(const struct cu_linear *l, size_t shared_bytes, struct cut *c)
{
    enum { MOST_SLOTS = 4, LEAST_SLOTS = 2 };
    int segments = n_segments(l->n), n_tiles = ceil_div(c->block_rows, TILE_ROWS);
    for (int most = MOST_WARPS; most > 0; most--) {
        struct few_shape s = { ceil_div(n_tiles, ceil_div(n_tiles, most)), 1, MOST_SLOTS };
        for (int w = 2; w <= min(most / s.n_teams, segments); w++)
            if (ceil_div(segments, w) < ceil_div(segments, s.team_warps))
                s.team_warps = w;
        while (s.n_slots > LEAST_SLOTS && bytes_of<T, WIDE>(l->n, s) > shared_bytes)
            s.n_slots--;
        c->s = s;
        c->bytes = bytes_of<T, WIDE>(l->n, s);
        if (c->bytes <= shared_bytes)
            return true;
    }
    return false;
}

/* A block a multiprocessor. Rows that its last tile lacks are not read. */
template <class T>
static bool cut_of(const struct cu_linear *l, size_t shared_bytes, struct cut *c)
{
    int n_units;
    if (ask_device(cudaDevAttrMultiProcessorCount, &n_units) != cudaSuccess || l->n_parts > n_units)
        return false;
    c->block_rows = few_block_rows(l, n_units);
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
    bool takes;
    cudaError_t e = pf_cu_few_stream(st, &o, shared_bytes, &takes);
    if (e != cudaSuccess || takes)
        return e;
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
