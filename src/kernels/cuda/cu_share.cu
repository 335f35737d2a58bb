/* The device's side of experts shared with the host: it shows what the router picked, waits, and takes what it is
 * given.
 *
 *     offer    one block copies x, picks and weights to memory of the host, then raises a flag there; it learns from
 *              the host which experts are to be read where they lie in its memory. The choice of one row is made by its
 *              first warp while the others copy x
 *     take     a block for each pick; those of picks that are missed wait for the host's flag, and read around the
 *              caches, since the host has just written
 *
 * Where the device holds all that was picked, take does not wait, and the device may be layers ahead of the host.
 *
 * One thread of all asks for the host's flag, and tells the others through the device's memory (cu_flag.h).
 *
 * Both kernels are part of captured graphs: they know addresses of flags and buffers, never where an expert lies. */
#include "kernels/cuda/cu_flag.h"
#include "kernels/cuda/cu_route.h"

enum { OFFER_THREADS = 1024, TAKE_THREADS = 1024, TAKE_AHEAD = 3, TABLE_THREADS = 256 };

/* By all threads from the first-th on. */
CU_INLINE void show_x(const struct cu_offer &o, int first)
{
    for (int i = threadIdx.x - first; i < o.n_x; i += OFFER_THREADS - first)
        o.host_x[i] = o.x[i];
}

CU_INLINE void show_picks(const struct cu_offer &o)
{
    for (int i = threadIdx.x; i < o.n_picks; i += OFFER_THREADS) {
        o.host_picks[i] = o.picks[i];
        o.host_weights[i] = o.weights[i];
    }
}

CU_INLINE void choose_and_show(const struct cu_offer &o, const struct cu_choice &choice)
{
    struct chosen mine = choose_in_warp<LANE_EXPERTS>(choice, 0, true);
    put_choice(choice, 0, mine);
    if ((int)threadIdx.x < o.n_picks) {
        o.host_picks[threadIdx.x] = mine.expert;
        o.host_weights[threadIdx.x] = mine.weight;
    }
}

/* Where a pick's expert lies, if the device holds it. */
CU_INLINE struct pf_handed held_at(const struct cu_offer &o, int pick)
{
    int expert = o.picks[pick];
    return { PF_BY_DEVICE, 0, o.held[expert], o.held[o.n_expert + expert], o.held[2 * o.n_expert + expert] };
}

/* Picks of one expert in several rows write the same addresses. */
CU_INLINE void name_now(const struct cu_offer &o, int pick, const struct pf_handed &h)
{
    int expert = o.picks[pick];
    o.now[expert] = (const uint8_t *)h.gate;
    o.now[o.n_expert + expert] = (const uint8_t *)h.up;
    o.now[2 * o.n_expert + expert] = (const uint8_t *)h.down;
}

/* Writes where a picked expert lies that is held, or that the host has dealt to this card to read in place. */
CU_INLINE void find_expert(const struct cu_offer &o, int pick, bool is_dealt)
{
    struct pf_handed h = held_at(o, pick);
    if (!h.gate && is_dealt) {
        const uint4 *from = (const uint4 *)&o.handed[pick];
        uint4 raw[2] = { __ldcv(from), __ldcv(from + 1) };
        h = *(const struct pf_handed *)raw;
        if (h.by != PF_BY_PLACE || h.card != o.card)
            h.gate = h.up = h.down = NULL;
    }
    name_now(o, pick, h);
}

/* What is held is asked for before the flag goes up, since that waits for the host's memory meanwhile. */
template <bool CHOOSES>
static __global__ void __launch_bounds__(OFFER_THREADS)
offer(const __grid_constant__ struct cu_offer o, const __grid_constant__ struct cu_choice choice)
{
    __shared__ bool is_dealt;
    static_assert(sizeof(struct pf_handed) == 2 * sizeof(uint4), "read as two");
    struct pf_handed first = {};
    bool missed = false;
    wait_turn();
    if (!CHOOSES)
        show_picks(o);
    if (CHOOSES && threadIdx.x < WARP)
        choose_and_show(o, choice);
    else
        show_x(o, CHOOSES ? WARP : 0);
    if ((int)threadIdx.x < o.n_picks)
        first = held_at(o, threadIdx.x);
    raise_for_host(o.flag);
    for (int p = threadIdx.x; p < o.n_picks; p += OFFER_THREADS) {
        struct pf_handed h = p == (int)threadIdx.x ? first : held_at(o, p);
        missed |= !h.gate && !(o.elsewhere && o.elsewhere[o.picks[p]]);
        name_now(o, p, h);
    }
    missed = __syncthreads_or(missed);
    if (threadIdx.x == 0) {
        *o.told = missed ? CU_FLAG_DOWN : CU_NOTHING_MISSED;
        is_dealt = missed && o.deal && ask_host(o.deal, o.fault) == CU_FLAG_UP;
    }
    if (!missed)
        return;
    __threadfence_system();
    __syncthreads();
    for (int p = threadIdx.x; p < o.n_picks; p += OFFER_THREADS)
        find_expert(o, p, is_dealt);
}

extern "C" cudaError_t pf_cu_offer(cudaStream_t st, const struct cu_offer *o)
{
    struct cu_choice none = {};
    return launch_early(offer<false>, dim3(1), OFFER_THREADS, 0, st, *o, none);
}

extern "C" bool pf_cu_offer_chooses(const struct cu_choice *c)
{
    return c->op.rows == 1 && warp_chooses(*c, LANE_EXPERTS);
}

extern "C" cudaError_t pf_cu_offer_of(cudaStream_t st, const struct cu_offer *o, const struct cu_choice *c)
{
    return launch_early(offer<true>, dim3(1), OFFER_THREADS, 0, st, *o, *c);
}

static __global__ void find(const __grid_constant__ struct cu_offer o)
{
    bool is_dealt = o.deal && *(const volatile uint32_t *)o.told != CU_NOTHING_MISSED;
    for (int p = threadIdx.x; p < o.n_picks; p += TABLE_THREADS)
        find_expert(o, p, is_dealt);
}

extern "C" cudaError_t pf_cu_find(cudaStream_t st, const struct cu_offer *o)
{
    return launch_in_turn(find, 1, TABLE_THREADS, 0, st, *o);
}

/* Before a take's turn; the offer, which wrote them, is never the kernel ahead. */
CU_INLINE int expert_of(const struct cu_take &t, int pick)
{
    return *(const volatile int32_t *)&t.picks[pick];
}

CU_INLINE bool holds(const struct cu_take &t, int expert)
{
    return t.held && t.held[expert];
}

/* Whether the block, whose pick the device does not hold, asks for the host's flag: it has the first one such. */
CU_INLINE bool asks(const struct cu_take &t)
{
    bool is_before = false;
    for (int p = threadIdx.x; p < (int)blockIdx.x; p += TAKE_THREADS)
        is_before |= !holds(t, expert_of(t, p));
    return !__syncthreads_or(is_before);
}

/* What the host has answered, a CU_FLAG_; by a thread of each block. Blocks begin in order, so the one that asks is
 * there for the others behind it. */
CU_INLINE uint32_t wait_for_host(const struct cu_take &t, bool is_first)
{
    uint32_t f;
    if (is_first) {
        f = ask_host(t.flag, t.fault);
        __threadfence_system();
        *(volatile uint32_t *)t.told = f;
    } else {
        while ((f = *(const volatile uint32_t *)t.told) == CU_FLAG_DOWN)
            ;
        __threadfence_system();
    }
    return f;
}

/* A thread's elements of a row of host_y, loaded in the same crossing of PCIe as the pick's pf_handed, which may say
 * that the row is not used. */
struct ahead {
    float y[TAKE_AHEAD];
};

CU_INLINE struct ahead ask_row(const float *host_y, int n)
{
    struct ahead a;
    for (int k = 0, i = threadIdx.x; k < TAKE_AHEAD; k++, i += TAKE_THREADS)
        a.y[k] = i < n ? __ldcv(host_y + i) : 0.0f;
    return a;
}

CU_INLINE void put_row(const struct ahead &a, const float *host_y, int n, float *y)
{
    for (int k = 0, i = threadIdx.x; k < TAKE_AHEAD; k++, i += TAKE_THREADS)
        if (i < n)
            y[i] = a.y[k];
    for (int i = threadIdx.x + TAKE_AHEAD * TAKE_THREADS; i < n; i += TAKE_THREADS)
        y[i] = __ldcv(host_y + i);
}

CU_INLINE void name_late(const struct cu_take &t, int expert, enum pf_pick_by by, const struct pf_handed &h)
{
    bool whole = by == PF_BY_COPY, down = whole || by == PF_BY_DOWN;
    t.late[expert] = whole ? (const uint8_t *)h.gate : NULL;
    t.late[t.n_expert + expert] = whole ? (const uint8_t *)h.up : NULL;
    t.late[2 * t.n_expert + expert] = down ? (const uint8_t *)h.down : NULL;
}

/* By whole warps, if it is to be quantised. */
CU_INLINE void take_activation(const struct cu_take &t, int pick)
{
    for (int i = threadIdx.x; i < t.n_ff; i += TAKE_THREADS) {
        float a = __ldcv(t.act + (size_t)pick * t.n_ff + i);
        ((float *)t.a.f)[(size_t)pick * t.n_ff + i] = a;
        if (t.a.q)
            quantise_block(a, &t.a, t.n_ff, pick, i / 32, t.fault);
    }
}

static __global__ void __launch_bounds__(TAKE_THREADS) take(const __grid_constant__ struct cu_take t)
{
    __shared__ __align__(16) struct pf_handed h;
    __shared__ uint32_t told;
    static_assert(sizeof h == 2 * sizeof(uint4), "read as two");
    int pick = blockIdx.x, expert = expert_of(t, pick);
    bool is_first = asks(t), is_here = holds(t, expert) || *(const volatile uint32_t *)t.told == CU_NOTHING_MISSED;
    const float *host_y = t.host_y + (size_t)pick * t.n_out;
    wait_turn();
    if (is_here) {
        if (threadIdx.x == 0) {
            name_late(t, expert, PF_BY_DEVICE, {});
            if (t.theirs)
                t.theirs[pick] = t.elsewhere[expert] != NULL;
        }
        return;
    }
    if (threadIdx.x == 0)
        told = wait_for_host(t, is_first);
    __syncthreads();
    struct ahead ahead = ask_row(host_y, t.card == 0 ? t.n_out : 0);
    if (threadIdx.x < 2)
        ((uint4 *)&h)[threadIdx.x] = __ldcv((const uint4 *)&t.handed[pick] + threadIdx.x);
    __syncthreads();
    bool is_theirs = h.by != PF_BY_HOST && h.card != t.card;
    enum pf_pick_by by = told == CU_FLAG_UP && !is_theirs ? h.by : PF_BY_DEVICE;
    if (threadIdx.x == 0) {
        name_late(t, expert, by, h);
        if (t.theirs)
            t.theirs[pick] = is_theirs;
    }
    if (by == PF_BY_HOST && t.card == 0)
        put_row(ahead, host_y, t.n_out, t.y + (size_t)pick * t.n_out);
    if (by == PF_BY_DOWN)
        take_activation(t, pick);
}

extern "C" cudaError_t pf_cu_take(cudaStream_t st, const struct cu_take *t)
{
    return launch_early(take, dim3(t->n_picks), TAKE_THREADS, 0, st, *t);
}

static __global__ void set_table(const uint8_t **table, const __grid_constant__ struct cu_entries e)
{
    for (int i = threadIdx.x; i < 3 * e.n_clear; i += blockDim.x)
        table[i / e.n_clear * e.stride + i % e.n_clear] = NULL;
    __syncthreads();
    for (int i = threadIdx.x; i < 3 * e.n; i += blockDim.x)
        table[i / e.n * e.stride + e.expert[i % e.n]] = e.at[i / e.n][i % e.n];
}

extern "C" cudaError_t pf_cu_set_table(cudaStream_t st, const uint8_t **table, const struct cu_entries *e)
{
    return launch_in_turn(set_table, 1, TABLE_THREADS, 0, st, table, *e);
}
