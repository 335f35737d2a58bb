/* What kernels of a row's experts share: whose rows a pick multiplies, and how the picks' outputs are added up. Kernels
 * that make the choice for themselves are built apart from those that do not (CHOOSES): its code is longer than the
 * rest, and code that is run once a layer is fetched each time. */
#ifndef PF_CU_PICKS_H
#define PF_CU_PICKS_H

#include "kernels/cuda/cu_combine.h"
#include "kernels/cuda/cu_route.h"

/* Rows of gate, and of up, that a block takes, whose results are a whole block of the next product's input; rows of
 * down. */
enum { GATE_ROWS = 32, DOWN_ROWS = 8 };

enum { SHARED = -1 };             /* the number of the shared expert, whose pick is behind the row's others */

/* Of a row, and of all rows. */
CU_HOST_FN int n_picks(const struct cu_experts &e)
{
    return e.n_used + (e.with.gate ? 1 : 0);
}

CU_HOST_FN int all_picks(const struct cu_experts &e)
{
    return e.rows * n_picks(e);
}

/* The expert of a pick, and its weight if that multiplies the input. */
template <bool CHOOSES>
CU_INLINE struct chosen pick_here(const struct cu_experts &e, const struct cu_choice &choice, int pick)
{
    __shared__ struct chosen chosen;
    if (e.with.gate && pick == e.n_used)
        return { SHARED, 1.0f };
    if (!CHOOSES)
        return { e.picks[pick], e.weigh_input ? e.weights[pick] : 1.0f };
    if (threadIdx.x < WARP) {
        struct chosen mine = choose_in_warp<1>(choice, 0, e.weigh_input);
        if ((int)threadIdx.x == pick)
            chosen = mine;
    }
    __syncthreads();
    return chosen;
}

/* Whether some picks of experts in two turns come late. Like ends_with_turn it is asked before the block's turn. */
CU_INLINE bool some_come_late(const struct cu_turns &turns)
{
    return turns.told && *(const volatile uint32_t *)turns.told != CU_NOTHING_MISSED;
}

/* Whether a second turn has nothing to do. The block has waited for its turn then: the kernel behind it may not begin
 * before the kernel ahead of it has ended. */
CU_INLINE bool ends_with_turn(const struct cu_turns &turns)
{
    bool ends = turns.told && !turns.done && !some_come_late(turns);
    if (ends)
        wait_turn();
    return ends;
}

/* The block's pick; waits for its turn, too. Picks of a second turn were there before the first. */
template <bool CHOOSES>
CU_INLINE struct chosen await_pick(const struct cu_experts &e, const struct cu_choice &choice, int pick)
{
    struct chosen chosen;
    bool is_second = e.turns.told && !e.turns.done;
    if (is_second)
        chosen = pick_here<CHOOSES>(e, choice, pick);
    wait_turn();
    return is_second ? chosen : pick_here<CHOOSES>(e, choice, pick);
}

/* A pick of the block's row: the block's eight rows of the expert's down matrix, NULL if the expert is not on the
 * device; picks.v holds the eight outputs of each pick. The shared expert's is behind the others. */
struct pick {
    const uint8_t *rows;
    float          weight;
    int            expert;
};
struct picks {
    struct pick *at;              /* [n] */
    float       *v;               /* [n][DOWN_ROWS] */
    float       *rest;            /* the block's memory behind v */
};

CU_HOST_FN size_t picks_bytes(int n)
{
    return n * (sizeof(struct pick) + DOWN_ROWS * sizeof(float));
}

CU_INLINE struct picks picks_at(float *memory, int n)
{
    float *v = memory + n * (sizeof(struct pick) / sizeof(float));
    return { (struct pick *)memory, v, v + n * DOWN_ROWS };
}

/* look_up of a block that makes the choice. */
CU_INLINE void look_up_chosen(const struct cu_experts &e, const struct cu_choice &choice, const struct picks &p)
{
    if (threadIdx.x < WARP) {
        struct chosen mine = choose_in_warp<1>(choice, 0, true);
        if ((int)threadIdx.x < e.n_used)
            p.at[threadIdx.x] = { e.w.data[mine.expert] + blockIdx.x * DOWN_ROWS * e.w.row_bytes,
                                  e.weigh_input ? 1.0f : mine.weight, mine.expert };
        if (blockIdx.x == 0)
            put_choice(choice, 0, mine);
    }
    __syncthreads();
}

/* look_up of a block that is told the picks. */
CU_INLINE void look_up_told(const struct cu_experts &e, int row, const struct picks &p)
{
    int first = blockIdx.x * DOWN_ROWS;
#pragma unroll 1
    for (int t = threadIdx.x; t < DOWN_ROWS * e.n_used; t += blockDim.x) {
        int i = t / DOWN_ROWS, r = first + t % DOWN_ROWS, k = row * e.n_used + i;
        int expert = *(const volatile int32_t *)&e.picks[k];
        const uint8_t *w = *(const uint8_t *const volatile *)&e.w.data[expert];
        if (t % DOWN_ROWS == 0)
            p.at[i] = { w ? w + first * e.w.row_bytes : NULL,
                        e.weigh_input ? 1.0f : *(const volatile float *)&e.weights[k], expert };
        if (!w && e.done && r < e.n_out)
            p.v[t] = *(const volatile float *)&e.done[(size_t)k * e.n_out + r];
    }
    __syncthreads();
}

/* Fills p before the block's turn: picks and their weights, or the router's logits, tables and e.done were written
 * before the kernel ahead. */
template <bool CHOOSES>
CU_INLINE void look_up(const struct cu_experts &e, const struct cu_choice &choice, int row, const struct picks &p)
{
    if (e.with.down && threadIdx.x == 0)
        p.at[e.n_used] = { e.with.down + blockIdx.x * DOWN_ROWS * e.w.row_bytes, 0.0f, SHARED };
    if constexpr (CHOOSES)
        look_up_chosen(e, choice, p);
    else
        look_up_told(e, row, p);
}

/* What is added to the output of a thread that has one; before the picks' outputs are known. */
CU_INLINE struct met met_here(const struct cu_experts &e, const struct cu_residual &residual, int row)
{
    int r = blockIdx.x * DOWN_ROWS + threadIdx.x;
    if (threadIdx.x < DOWN_ROWS && r < e.n_out)
        return met_at(residual, row, (size_t)row * e.n_out + r);
    return {};
}

/* Stores the outputs of the picks whose experts are here for the second turn. */
CU_INLINE void keep_picks(const struct cu_experts &e, int row, const struct picks &p)
{
    __syncthreads();
    for (int t = threadIdx.x; t < DOWN_ROWS * e.n_used; t += blockDim.x) {
        int i = t / DOWN_ROWS, r = blockIdx.x * DOWN_ROWS + t % DOWN_ROWS;
        if (p.at[i].rows && r < e.n_out)
            e.turns.done[(size_t)(row * e.n_used + i) * e.n_out + r] = p.v[t];
    }
}

/* Sums the picks in their order and stores the block's eight outputs. */
CU_INLINE void add_picks(const struct cu_experts &e, const struct cu_residual &residual, struct met met, int row,
                         const struct picks &p, float *y)
{
    int r = blockIdx.x * DOWN_ROWS + threadIdx.x;
    size_t at = (size_t)row * e.n_out + r;
    float sum = 0;
    __syncthreads();
    if (threadIdx.x >= DOWN_ROWS || r >= e.n_out)
        return;
#pragma unroll 4
    for (int i = 0; i < e.n_used; i++)
        sum = fmaf(p.at[i].weight, p.v[i * DOWN_ROWS + threadIdx.x], sum);
    if (e.with.down) {
        float shared = p.v[e.n_used * DOWN_ROWS + threadIdx.x];
        e.with.y[at] = shared;
        met.plus = residual.plus == e.with.y ? shared : met.plus;
    }
    put_out(residual, met, sum, at, y);
}

#endif
