/* Weight rows times one or two rows of activations, for steps that are large enough to keep a GPU busy: as cu_dot.h
 * cuts them, but a warp goes through neighbouring tasks of one round, so that activations are loaded once for all of
 * them, and a weight is read and unpacked once for both rows.
 *
 *     a quad     four weight rows and a round of 32 blocks of 32
 *     lanes      each makes its block's terms of the four rows; with two rows of activations all 32 lanes then have a
 *                chain to run: lane 16 j + 4 i + g that of segment g of weight row i and activations j */
#ifndef PF_CU_SEVERAL_H
#define PF_CU_SEVERAL_H

#include "kernels/cuda/cu_dot.h"
#include "kernels/cuda/cu_several_api.h"

enum { SHARED_BY = 2 };           /* the most rows of activations that a weight is unpacked for */

/* The place of a pick among those of its expert, and the next one of these, or the pick itself. */
struct mates {
    int place, next;
};

CU_INLINE struct mates mates_of(const int32_t *picks, int n_picks, int pick, int expert)
{
    enum { AT_ONCE = 4 };                /* loads of a lane on their way together */
    struct mates m = { 0, pick };
    int lane = threadIdx.x % WARP;
#pragma unroll 1
    for (int first = 0; first < n_picks; first += AT_ONCE * WARP) {
        int32_t of[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            int i = first + k * WARP + lane;
            of[k] = i < n_picks ? picks[i] : -1;
        }
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            int i = first + k * WARP;
            uint32_t same = __ballot_sync(ALL_LANES, of[k] == expert);
            uint32_t before = pick >= i + WARP ? ALL_LANES : pick < i ? 0 : (1u << (pick - i)) - 1;
            uint32_t after = same & ~before & ~(pick >= i && pick < i + WARP ? 1u << (pick - i) : 0);
            m.place += __popc(same & before);
            if (after && m.next == pick && pick < i + WARP)
                m.next = i + __ffs((int)after) - 1;
        }
    }
    return m;
}

template <class T, int R>
struct several {
    typedef quantised<T> D;
    enum { N_CHAINS = R * CHAINS, WIDTH = N_CHAINS + 2, TERM_FLOATS = 2 * 8 * WIDTH * (T::second ? 2 : 1) };

    /* Rows of activations, as a lane's block of the round needs them. */
    struct sides {
        typename T::side of[R];
    };

    static CU_READ_FN void put(const struct term &v, int row, int j, bool there, float2 *terms)
    {
        int to = threadIdx.x % 8 * WIDTH + j * CHAINS + 4 * row + threadIdx.x % WARP / 8;
        terms[to] = make_float2(v.p, there ? v.f : 0.0f);
        if (T::second)
            terms[8 * WIDTH + to] = make_float2(v.m, there ? v.g : 0.0f);
    }

    static CU_READ_FN void put_all(const typename T::raw &raw, const struct sides &x, int b, int row, bool there,
                                   float2 *terms)
    {
#pragma unroll
        for (int j = 0; j < R; j++)
            put(T::dot(raw, x.of[j], b), row, j, there, terms);
    }

    /* The terms of the quad at r0, whose weights were sent for. */
    static CU_READ_FN void make_terms(const typename D::ahead &ahead, const struct row_set &w, int r0,
                                      size_t round_bytes, const struct sides &x, int b, bool there,
                                      const struct cu_tables &t, const uint8_t *staged, float2 *terms)
    {
        if constexpr (T::STAGED) {
            __pipeline_wait_prior(0);
            __syncwarp();
#pragma unroll 2
            for (int i = 0; i < TASK_ROWS; i++) {
                int skip = (int)((uintptr_t)D::at(w, r0 + i, round_bytes) & 15);
                put_all(T::load(staged + i * D::STAGE_BYTES + skip, b, t), x, b, i, there, terms);
            }
        } else {
#pragma unroll
            for (int i = 0; i < TASK_ROWS; i++)
                put_all(ahead.raw[i], x, b, i, there, terms);
        }
    }

    /* Sums of the quad's segments; those of row i and activations j go to sums[j * next_x + i * stride]. */
    static CU_READ_FN void run_chains(const float2 *terms, int n, int round, float *sums, int next_x)
    {
        int lane = threadIdx.x % WARP, segment = 4 * round + lane % 4, stride = D::n_sums(n);
        float s = D::template run_chain<WIDTH>(terms, lane % N_CHAINS);
        if (segment < stride && lane < N_CHAINS)
            sums[lane / CHAINS * next_x + lane % CHAINS / 4 * stride + segment] = s;
    }
};

/* Bytes of a warp's memory. */
template <class T>
CU_HOST_FN constexpr int several_bytes(void)
{
    return several<T, SHARED_BY>::TERM_FLOATS * (int)sizeof(float) + TASK_ROWS * quantised<T>::STAGE_BYTES;
}

/* A quad whose weights are on their way, or were the last to be. */
template <class T>
struct sent {
    struct row_set w;
    int            r0, round;
    typename quantised<T>::ahead ahead;
};

template <class T>
CU_INLINE void send_for(struct sent<T> &s, int n, const struct cu_tables &t, float2 *terms)
{
    typedef quantised<T> D;
    float *of_warp = (float *)terms + several<T, SHARED_BY>::TERM_FLOATS - D::TERM_FLOATS;
    D::begin(s.w, s.r0, n, s.round, t, of_warp, s.ahead);
}

/* Tasks of one unit, some quads and their rounds, a round's quads first: from `task`, which was sent for, to `end`.
 * place(quad, s) says which weight rows a quad has; follow(s) the same of the task behind the last, false: there is
 * none. sums: of the first quad's first row and the first activations; next_x floats further those of the second. */
template <class T, int R, class F, class G>
CU_INLINE void run_quads(struct sent<T> &s, int task, int end, int n_quads, int n, const struct x_row (&x)[SHARED_BY],
                         const struct cu_tables &t, float2 *terms, float *sums, int next_x, F place, G follow)
{
    typedef several<T, R> S;
    typedef quantised<T> D;
    const uint8_t *staged = (const uint8_t *)((float *)terms + several<T, SHARED_BY>::TERM_FLOATS);
    int round = task / n_quads, quad = task - round * n_quads, lane = threadIdx.x % WARP, stride = D::n_sums(n), b = 0;
    size_t round_bytes = 0;
    bool there = false, fresh = true;
    typename S::sides sides;
#pragma unroll 1
    for (; task < end; task++) {
        if (fresh) {
            int n_blocks = D::n_blocks_of(n, round);
            b = D::my_block(n_blocks);
            there = lane < n_blocks;
            round_bytes = (size_t)D::bytes_of_32(s.w.row_bytes, n) * round;
#pragma unroll
            for (int j = 0; j < R; j++)
                sides.of[j] = T::load_x(x[j], round * WARP + b);
            if constexpr (T::LOOKS_UP)                   /* in one register, so that codes are looked up once */
                for (int j = 1; j < R; j++)
                    sides.of[j].lower = sides.of[0].lower;
            fresh = false;
        }
        S::make_terms(s.ahead, s.w, s.r0, round_bytes, sides, b, there, t, staged, terms);
        float *to = sums + quad * TASK_ROWS * stride;
        int of_round = round;
        if (++quad == n_quads)
            quad = 0, round++, fresh = true;
        s.round = round;
        bool more = task + 1 < end;
        if (more)
            place(quad, s);
        if (more || follow(s))
            send_for<T>(s, n, t, terms);
        __syncwarp();
        S::run_chains(terms, n, of_round, to, next_x);
        __syncwarp();
    }
}

/* The types whose experts are multiplied so, and in steps of how many rows they are: fewer rows are sooner done pick by
 * pick, more by a prompt's tiles. Timed on an H200, with 8 experts of 128 a row; but IQ2_XS, IQ2_S, IQ3_XXS and IQ1_S
 * have the rows of the types that are unpacked like them. */
#define CU_SEVERAL_LIST(X)                                                                                           \
    X(Q4_K, 9, 16, k45<false>) X(Q5_K, 9, 16, k45<true>) X(Q6_K, 9, 16, k6) X(Q8_0, 9, 16, q8) X(MXFP4, 2, 16, mx4)  \
    X(Q4_0, 2, 12, q4) X(Q5_0, 2, 10, plain<read_Q5_0>) X(IQ4_NL, 2, 8, plain<read_IQ4_NL>)                          \
    X(Q2_K, 9, 16, plain<read_Q2_K>) X(Q3_K, 9, 16, plain<read_Q3_K>) X(Q4_1, 9, 16, plain<read_Q4_1>)               \
    X(Q5_1, 9, 16, plain<read_Q5_1>) X(IQ2_XXS, 9, 16, plain<read_IQ2_XXS>) X(IQ2_XS, 9, 16, plain<read_IQ2_XS>)     \
    X(IQ2_S, 9, 16, plain<read_IQ2_S>) X(IQ3_XXS, 9, 16, plain<read_IQ3_XXS>) X(IQ3_S, 9, 16, plain<read_IQ3_S>)     \
    X(IQ1_S, 9, 16, plain<read_IQ1_S>) X(IQ1_M, 9, 16, plain<read_IQ1_M>) X(IQ4_XS, 9, 16, plain<read_IQ4_XS>)   \
    X(NVFP4, 2, 16, plain<read_NVFP4>)

template <class T>
struct of_type {
    typedef T type;
};

/* Whether there is a kernel for the experts' type that is sooner done than pick by pick, and room for its blocks.
 * bytes_of(of_type<T>()): what a block of type T takes. */
template <class F>
static bool several_takes(const struct cu_experts *e, size_t shared_bytes, F bytes_of)
{
    switch (e->w.type) {
#define X(TYPE, FROM, MOST, ...)                                                            \
    case PF_##TYPE: return e->rows >= FROM && bytes_of(of_type<__VA_ARGS__>()) <= shared_bytes;
    CU_SEVERAL_LIST(X)
#undef X
    default: return false;
    }
}

#endif
