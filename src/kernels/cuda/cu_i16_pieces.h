/* Keys and values of few rows on their way to a warp: bytes of its blocks in pieces of 4 KB, through slots of its own
 * in shared memory, some ahead of the one that it computes with. Lines are spread as cu_i16.h says. */
#ifndef PF_CU_I16_PIECES_H
#define PF_CU_I16_PIECES_H

#include "kernels/cuda/cu_i16.h"

enum { PIECE = 32 * LINE, SLOT = PIECE + 3 * 32 * 4, MOST_SLOTS = 8 };    /* a slot: with scales of 32 positions */

/* A warp's way through its pieces: chunks c, then every step-th to `end` of those that are not the host's, of each
 * block `warp`, if any row sees something of it. */
struct way {
    int c, end, step, first, last;        /* chunks; positions that any row sees */
    struct i16_host host;
    int piece, n_keys, n_pieces;          /* of a block: first the keys' */
    int first_value;                      /* the values' first piece that the thread block takes */
    const char *k, *v;                    /* the block */
};

CU_INLINE bool sees(const struct way &w, int warp)
{
    int p = w.c * CHUNK + warp * BLOCK;
    return p <= w.last && p + BLOCK > w.first;
}

/* To the next block that is seen, this one included. */
CU_INLINE void find(struct way &w, const struct pf_kv_view &kv, int hk, int warp)
{
    while (w.c <= w.end && !sees(w, warp))
        w.c = i16_chunk(w.host, w.c, w.step);
    w.piece = 0;
    if (w.c <= w.end) {
        w.k = i16_keys(kv, kv.hd_k, w.c * N_BLOCKS + warp, hk);
        w.v = i16_values_of(kv, kv.hd_v, w.c * N_BLOCKS + warp, hk);
    }
}

/* Keys: lines of [position bit 2][16 groups of 4 elements], of 64 elements or the 32 that are left; with the last ones
 * of a half go its scales. A lane's lines are lane / 8 and every fourth from there. */
CU_INLINE void copy_keys(const struct way &w, const struct pf_kv_view &kv, char *slot)
{
    int hd = kv.hd_k, lane = threadIdx.x % WARP, per_half = (hd + 63) / 64, half = w.piece >= per_half,
        part = w.piece - half * per_half, n = min(16, hd / 4 - 16 * part);
    const char *from = w.k + (half * 2 * (hd / 4) + 16 * part + lane / 8) * LINE + lane % 8 * 16,
               *odd = from + hd / 4 * LINE;
    char *to = slot + lane / 8 * LINE + (lane % 8 ^ lane / 8 * 2) * 16;
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (lane / 8 + 4 * i < n) {
            __pipeline_memcpy_async(to + 4 * i * LINE, from + 4 * i * LINE, 16);
            __pipeline_memcpy_async(to + (16 + 4 * i) * LINE, odd + 4 * i * LINE, 16);
        }
    if (part == per_half - 1 && lane < 24) {
        const char *scales = lane < 16 ? w.k + pf_i16_sk(hd) + lane / 8 * BLOCK * 4 : w.v + pf_i16_rsv(kv.hd_v);
        __pipeline_memcpy_async(slot + PIECE + lane * 16, scales + half * 32 * 4 + lane % 8 * 16, 16);
    }
}

/* Values: lines of [position bits 5, 4, 2, 1][2 groups of 16 elements]. A lane copies lines lane / 8 and
 * every fourth from there. */
CU_INLINE void copy_values(const struct way &w, int hd, char *slot)
{
    int lane = threadIdx.x % WARP, per = hd / 16, step = 2 * per * LINE,
        line = 2 * (w.piece - w.n_keys + w.first_value) + lane / 16 * per + lane / 8 % 2;
    const char *from = w.v + line * LINE + lane % 8 * 16;
    int at = (lane % 8 ^ lane / 16 * 2) * 16;
    char *to = slot + lane / 8 * LINE;
#pragma unroll
    for (int i = 0; i < 8; i++, from += step)
        __pipeline_memcpy_async(to + 4 * i * LINE + (at ^ i % 2 * 64), from, 16);
}

/* Starts copying the next piece, if there is one, and counts it. */
CU_INLINE void send_for(struct way &w, const struct pf_kv_view &kv, int hk, int warp, char *slot)
{
    if (w.c <= w.end) {
        if (w.piece < w.n_keys)
            copy_keys(w, kv, slot);
        else
            copy_values(w, kv.hd_v, slot);
        if (++w.piece == w.n_pieces) {
            w.c = i16_chunk(w.host, w.c, w.step);
            find(w, kv, hk, warp);
        }
    }
    __pipeline_commit();
}

/* The slots of a warp, in turn. */
struct slots {
    char *at;
    int   n, next;                        /* next: the one that is computed with next */
};

/* The piece to compute with now. The one before is used up by all lanes: its slot takes the next piece. */
CU_INLINE const char *arrive(struct slots &s, struct way &w, const struct pf_kv_view &kv, int hk, int warp)
{
    __pipeline_wait_prior(s.n - 2);
    __syncwarp();
    char *piece = s.at + s.next * SLOT, *before = s.at + (s.next ? s.next - 1 : s.n - 1) * SLOT;
    send_for(w, kv, hk, warp, before);
    s.next = s.next + 1 == s.n ? 0 : s.next + 1;
    return piece;
}

#endif
