/* Tiles of products, for the kernels of cu_tile.cu and cu_tile_group.cu: which part of an output each is, and how it is
 * written. */
#ifndef PF_CU_TILE_H
#define PF_CU_TILE_H

#include "kernels/cuda/cu_blocks.h"

enum { TILE_M = 128 };               /* weight rows of a tile */

/* One tile of the output: rows r0 on of a part, columns first .. first + n_columns of the batch or the sorted picks. */
struct item {
    int part, r0, first, n_columns, expert;
};

/* Tile number i: rows go faster than columns. */
CU_INLINE struct item item_at(const struct cu_tiles &o, int n_row_tiles, int width, int i)
{
    int r = i % n_row_tiles, c = i / n_row_tiles;
    struct item t = { 0, 0, c * width, min(o.n_columns - c * width, width), 0 };
    while (r >= (o.part[t.part].n_out + TILE_M - 1) / TILE_M)
        r -= (o.part[t.part++].n_out + TILE_M - 1) / TILE_M;
    t.r0 = r * TILE_M;
    if (o.groups) {
        struct cu_tile tile = o.groups->tile[c];
        t.expert = tile.expert, t.first = tile.first, t.n_columns = tile.n;
    }
    return t;
}

CU_INLINE int n_items_of(const struct cu_tiles &o, int n_row_tiles, int width)
{
    return n_row_tiles * (o.groups ? o.groups->n_tiles : (o.n_columns + width - 1) / width);
}

/* The first of the tile's weight rows. */
CU_INLINE const uint8_t *weights_of(const struct cu_tiles &o, const struct item &t)
{
    const struct cu_tile_part &p = o.part[t.part];
    return (o.groups ? p.table[t.expert] : p.w) + (size_t)t.r0 * o.row_bytes;
}

/* The row of x that column c of the tile reads. */
CU_INLINE int row_of_column(const struct cu_tiles &o, const struct item &t, int c)
{
    return o.groups ? o.groups->sorted[t.first + c] / o.x_divisor : t.first + c;
}

/* Where a thread's columns go, two of each eight of N: the picks or rows that they are, and their weights. All of a
 * kind are asked for before the first is waited for. */
template <int N> struct destinations {
    int   to[N][2];
    float weight[N][2];

    __device__ __forceinline__ void find(const struct cu_tiles &o, const struct item &t, int column)
    {
        const int *sorted = o.groups ? o.groups->sorted + t.first : NULL;
#pragma unroll
        for (int i = 0; i < 2 * N; i++) {
            int c = min(column + i / 2 * 8 + i % 2, t.n_columns - 1);
            to[i / 2][i % 2] = sorted ? __ldg(sorted + c) : t.first + c;
        }
#pragma unroll
        for (int i = 0; i < 2 * N; i++)
            weight[i / 2][i % 2] = o.weights ? __ldg(o.weights + to[i / 2][i % 2]) : 1.0f;
    }
};

/* Writes a warp's 16 M x 8 N, of which columns from `end` on are none, and begins the next. Where there is no bias,
 * scale or weight, -0 and 1 change nothing. */
template <int M, int N>
CU_INLINE void store(const struct cu_tiles &o, const struct item &t, int row0, int col0, int end,
                     float (&total)[M][N][4])
{
    const struct cu_tile_part &p = o.part[t.part];
    int lane = threadIdx.x % WARP, r = t.r0 + row0 + lane / 4, column = col0 + 2 * (lane % 4);
    float scale = !o.groups ? p.scale : p.scales ? p.scales[t.expert] : 1.0f, bias[2 * M];
    struct destinations<N> of;
    end = min(end, t.n_columns);
    of.find(o, t, column);
#pragma unroll
    for (int i = 0; i < 2 * M; i++)
        bias[i] = p.bias && r + 8 * i < p.n_out ? p.bias[(size_t)t.expert * p.n_out + r + 8 * i] : -0.0f;
#pragma unroll
    for (int j = 0; j < N; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float *y = p.y + (size_t)of.to[j][e] * (uint32_t)p.n_out + r;
#pragma unroll
            for (int i = 0; i < 2 * M; i++) {
                float v = total[i / 2][j][i % 2 * 2 + e];
                if (r + 8 * i < p.n_out && column + 8 * j + e < end)
                    y[8 * i] = (v * scale + bias[i]) * of.weight[j][e];
                total[i / 2][j][i % 2 * 2 + e] = 0;
            }
        }
}

/* Tiles by products of warpgroups, cu_tile_group.cu: whether this GPU has them, and whether a type has code for them.
 * Tiles are TILE_GROUP_WIDTH columns wide. */
enum { TILE_GROUP_WIDTH = 128 };
extern "C" bool pf_cu_has_tile_groups(size_t shared_bytes);
extern "C" bool pf_cu_takes_tile_groups(enum pf_qtype type);
extern "C" cudaError_t pf_cu_tile_groups(cudaStream_t st, const struct cu_tiles *o, int n_row_tiles, int n_blocks);

#endif
