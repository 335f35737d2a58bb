/* Few rows that attend to a latent: partials of blocks of 64 positions enter those of chunks, and these the whole. Up
 * to CHUNKS chunks' partials are on their way at once; each warp joins the blocks of some chunks, and then a single one
 * has a chain of two operations a chunk, as in cu_i16_fold.cu. */
#include "kernels/cuda/cu_i16_latent.h"

enum { THREADS = 256, CHUNKS = 64, BLOCKS = CHUNKS * N_BLOCKS, ELEMENTS = WARP };

/* How a block enters its chunk, or a chunk the whole: what is there by `old`, what is new by `fresh`. */
struct entry {
    float old, fresh;
};

struct folding {
    float4       parts[BLOCKS][ELEMENTS / 4];
    float4       z[BLOCKS][2];
    float        chunks[CHUNKS][ELEMENTS];
    struct entry blocks[BLOCKS], of_chunk[CHUNKS];
    float        chunk_z[CHUNKS], tops[CHUNKS / WARP];
};

/* The blocks of chunk c, of which the row sees [first, end): how they enter, its maximum and its sum of weights; they
 * are numbers b0 .. of those that lie in shared memory. maxima: theirs. */
CU_INLINE float join_blocks(struct folding &s, const float (&maxima)[N_BLOCKS], int c, int first, int end, int b0,
                            float &sum)
{
    float m = -INFINITY, z[8] = { 0 };
#pragma unroll
    for (int i = 0; i < N_BLOCKS; i++) {
        int b = c * N_BLOCKS + i, at = b - b0;
        bool seen = b >= first && b < end;
        struct i16_join j = i16_joined(m, maxima[i]);
        const float *zb = (const float *)s.z[at];
#pragma unroll
        for (int k = 0; k < 8; k++)
            z[k] = seen ? fmaf(z[k], j.old, zb[k] * j.fresh) : z[k];
        s.blocks[at] = { j.old, seen ? PF_I16_GAIN * j.fresh : 0.0f };
    }
#pragma unroll
    for (int h = 4; h > 0; h /= 2)
#pragma unroll
        for (int k = 0; k < h; k++)
            z[k] = z[k] + z[k + h];
    sum = z[0];
    return m;
}

/* blockIdx: query head, ELEMENTS of it, row. */
static __global__ void __launch_bounds__(THREADS) latent_fold(const __grid_constant__ struct i16_attention o)
{
    BLOCK_MEMORY(float4, shared);
    struct folding &s = *(struct folding *)shared;
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, t = threadIdx.x, d = blockIdx.y * ELEMENTS,
        hd = o.kv.hd_v;
    int pos = *(const volatile int32_t *)&o.a.pos[blockIdx.z], first = first_visible(o.a, pos) / BLOCK,
        end = pos / BLOCK + 1;
    struct i16_row row = { (int)blockIdx.z, (int)blockIdx.x, first, pos, true };
    float acc = 0, m = -INFINITY, whole = 0;
    size_t at = part_of(o, row, 0);
    wait_turn();
#pragma unroll 1
    for (int c0 = first / N_BLOCKS; c0 * N_BLOCKS < end; c0 += CHUNKS) {
        int b0 = c0 * N_BLOCKS, from = max(b0, first), to = min(b0 + (int)BLOCKS, end),
            n = (to - 1) / N_BLOCKS - c0 + 1;
#pragma unroll 4
        for (int i = t; i < (to - from) * (ELEMENTS / 4); i += THREADS) {
            int b = from + i / (ELEMENTS / 4), piece = i % (ELEMENTS / 4);
            __pipeline_memcpy_async(&s.parts[b - b0][piece], o.s.part + (at + b) * hd + d + piece * 4, 16);
        }
        for (int i = t; i < (to - from) * 2; i += THREADS) {
            int b = from + i / 2;
            __pipeline_memcpy_async(&s.z[b - b0][i % 2], block_zs(o, at + b) + i % 2 * 4, 16);
        }
        __pipeline_commit();
        float of_blocks[N_BLOCKS], mine = -INFINITY, z = 0;
#pragma unroll
        for (int i = 0; i < N_BLOCKS; i++) {
            int b = (c0 + t) * N_BLOCKS + i;
            of_blocks[i] = b >= from && b < to ? __ldcg(maxima(o) + at + b) : -INFINITY;
        }
        __pipeline_wait_prior(0);
        __syncthreads();
        if (t < n)
            mine = join_blocks(s, of_blocks, c0 + t, first, end, b0, z);
        if (t < CHUNKS) {
            float top = warp_max(mine);
            if (lane == 0)
                s.tops[warp] = top;
        }
        __syncthreads();
        float before = m;
#pragma unroll
        for (int k = 0; k < CHUNKS / WARP; k++) {
            before = k < warp && s.tops[k] > before ? s.tops[k] : before;
            m = s.tops[k] > m ? s.tops[k] : m;
        }
        if (t < CHUNKS) {
            struct i16_join j = join_partials(mine, before);
            s.of_chunk[t] = { j.old, j.fresh };
            s.chunk_z[t] = z * j.fresh;
        }
#pragma unroll 1
        for (int c = warp; c < n; c += THREADS / WARP) {
            float sum = 0;
#pragma unroll
            for (int i = 0; i < N_BLOCKS; i++) {
                struct entry by = s.blocks[c * N_BLOCKS + i];
                if (by.fresh > 0)
                    sum = fmaf(((const float *)s.parts[c * N_BLOCKS + i])[lane], by.fresh, sum * by.old);
            }
            s.chunks[c][lane] = sum;
        }
        __syncthreads();
        if (warp == 0)
#pragma unroll 8
            for (int c = 0; c < n; c++) {
                struct entry by = s.of_chunk[c];
                acc = fmaf(s.chunks[c][lane], by.fresh, acc * by.old);
                whole = fmaf(whole, by.old, s.chunk_z[c]);
            }
        __syncthreads();
    }
    if (warp == 0)
        put_out(o, row, d + t, acc * i16_last_factor(o.a, row.head, m, whole));
}

extern "C" cudaError_t pf_cu_latent_fold(cudaStream_t st, const struct i16_attention *o)
{
    dim3 grid(o->a.n_head, o->kv.hd_v / ELEMENTS, o->a.rows);
    cudaError_t e = allow_bytes(latent_fold, sizeof(struct folding));
    return e != cudaSuccess ? e : launch_early(latent_fold, grid, THREADS, sizeof(struct folding), st, *o);
}
