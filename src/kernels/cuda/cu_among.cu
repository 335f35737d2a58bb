/* What crosses between cards that have whole experts each, or some columns of the same rows: plain copies by kernels,
 * whose addresses may be another card's memory or the host's. Copies begin in turn, since what they read was written on
 * another card: events order cards, and only work that waits for all ahead of it is ordered by them. A swap begins
 * early: what it reads of other cards says itself when it is there. */
#include "kernels/cuda/cu_device.h"

#include "kernels/cuda/cu_among.h"

enum { SEND_THREADS = 256, MOST_BLOCKS = 264 };

static __global__ void send_words(const __grid_constant__ struct cu_letter l)
{
    const struct cu_sheet *s = &l.sheet[blockIdx.y];
    const volatile uint32_t *from = (const volatile uint32_t *)s->from;
    uint32_t *to = (uint32_t *)s->to;
    for (int64_t i = blockIdx.x * (int64_t)SEND_THREADS + threadIdx.x; i < s->n; i += gridDim.x * (int64_t)SEND_THREADS)
        to[i] = from[i];
}

extern "C" cudaError_t pf_cu_send(cudaStream_t st, const struct cu_letter *l)
{
    int64_t most = 1;
    for (int i = 0; i < CU_SHEETS; i++)
        most = l->sheet[i].n > most ? l->sheet[i].n : most;
    int n = ceil_div(most, SEND_THREADS);
    return launch_in_turn(send_words, dim3(n < MOST_BLOCKS ? n : MOST_BLOCKS, CU_SHEETS), SEND_THREADS, 0, st, *l);
}

/* A block a pick. */
static __global__ void send_rows(const __grid_constant__ struct cu_some_rows r)
{
    size_t at = (size_t)blockIdx.x * r.n;
    bool takes = r.table ? (r.table[r.picks[blockIdx.x]] != NULL) == r.here : r.marked[blockIdx.x] != 0;
    if (!takes)
        return;
    for (int i = threadIdx.x; i < r.n; i += SEND_THREADS)
        r.to[at + i] = *(const volatile float *)&r.from[at + i];
}

extern "C" cudaError_t pf_cu_send_rows(cudaStream_t st, const struct cu_some_rows *r)
{
    return launch_in_turn(send_rows, dim3(r->n_picks), SEND_THREADS, 0, st, *r);
}

/* A row of blocks for each card's columns. */
static __global__ void gather_rows(const __grid_constant__ struct pf_gather_op g)
{
    int first = g.first[blockIdx.y], n = g.first[blockIdx.y + 1] - first;
    const volatile float *from = g.shown[blockIdx.y];
    int64_t all = (int64_t)g.rows * n;
    for (int64_t i = blockIdx.x * (int64_t)SEND_THREADS + threadIdx.x; i < all; i += gridDim.x * (int64_t)SEND_THREADS)
        g.y[i / n * g.n + first + i % n] = from[i];
}

extern "C" cudaError_t pf_cu_gather(cudaStream_t st, const struct pf_gather_op *g)
{
    int n = ceil_div((int64_t)g->rows * g->n, SEND_THREADS);
    return launch_in_turn(gather_rows, dim3(n < MOST_BLOCKS ? n : MOST_BLOCKS, g->n_cards), SEND_THREADS, 0, st, *g);
}

/* ---- Few rows, by trays ------------------------------------------------------------------------------------------ */

enum { SWAP_THREADS = 256, SWAP_EACH = PF_TRAY_FLOATS / SWAP_THREADS };
static const __device__ unsigned long long SWAP_PATIENCE_NS = 10000000000ull, SWAP_LOOK_NS = 1000000;

CU_INLINE int columns(const struct pf_swap_op &o, int card)
{
    return o.first[card + 1] - o.first[card];
}

/* Where the words lie that `from` sends to the owner of a tray, of this block. */
CU_INLINE volatile uint64_t *words_of(const struct pf_swap_op &o, int to, int from, uint32_t number)
{
    size_t half = ((size_t)(number & 1) * o.n_cards + from) * PF_TRAY_BLOCKS;
    return (volatile uint64_t *)o.tray[to] + (half + blockIdx.x) * PF_TRAY_FLOATS;
}

CU_INLINE volatile uint32_t *last_of(const struct pf_swap_op &o)
{
    uint64_t *words = (uint64_t *)o.tray[o.card] + 2 * (size_t)o.n_cards * PF_TRAY_BLOCKS * PF_TRAY_FLOATS;
    return (volatile uint32_t *)words + blockIdx.x;
}

/* The float of the word with that number, which was `word` when last seen. Whoever waits long looks now and then if the
 * step has failed. */
CU_INLINE float await_word(uint64_t word, const volatile uint64_t *at, uint32_t number, int *fault)
{
    unsigned long long begin = 0, looked = 0;
    while ((uint32_t)(word >> 32) != number) {
        unsigned long long now = device_ns();
        begin = begin ? begin : now;
        looked = looked ? looked : now;
        if (now - looked > SWAP_LOOK_NS) {
            looked = now;
            if (*(volatile int *)fault != CU_FINE)
                break;
        }
        if (now - begin > SWAP_PATIENCE_NS) {
            *(volatile int *)fault = CU_CARD_LATE;
            break;
        }
        look_again();
        word = *at;
    }
    return pf_bits_float((uint32_t)word);
}

/* Float i of a card's columns in whole rows. */
CU_INLINE float *place_of(const struct pf_swap_op &o, int card, int i)
{
    int n = columns(o, card);
    return &o.y[(size_t)(i / n) * o.n + o.first[card] + i % n];
}

/* Puts v there, or adds it to `sum`, which is what was there. With codes, lanes of a warp have a block of 32. */
CU_INLINE void put_float(const struct pf_swap_op &o, const struct cu_x &codes, int card, int i, float v, float sum,
                         int *fault)
{
    *place_of(o, card, i) = o.adds ? fmaf(o.a, v, sum) : v;
    if (codes.q) {
        int n = columns(o, card);
        quantise_block(v, &codes, o.n, i / n, (o.first[card] + i % n) / WARP, fault);
    }
}

/* How many floats a card has from this block's first one on; may be less than 0. */
CU_INLINE int floats_of(const struct pf_swap_op &o, int card)
{
    return o.rows * columns(o, card) - (int)blockIdx.x * PF_TRAY_FLOATS;
}

/* The number was asked for, like the floats, but need not have come yet. */
CU_INLINE void send_columns(const struct pf_swap_op &o, const float (&mine)[SWAP_EACH], uint32_t number, bool to_itself)
{
    int n = floats_of(o, o.card);
    for (int to = 0; to < o.n_cards; to++) {
        volatile uint64_t *words = words_of(o, to, o.card, number);
        for (int k = 0; k < SWAP_EACH; k++) {
            int i = k * SWAP_THREADS + threadIdx.x;
            if (i < n && (to != o.card || to_itself))
                words[i] = (uint64_t)number << 32 | pf_float_bits(mine[k]);
        }
    }
}

/* All of a thread's words, and what they are added to, are asked for before the first is awaited. */
CU_INLINE void take_columns(const struct pf_swap_op &o, const struct cu_x &codes, uint32_t number, int from, int *fault)
{
    const volatile uint64_t *words = words_of(o, o.card, from, number);
    int n = floats_of(o, from);
    uint64_t word[SWAP_EACH];
    float sum[SWAP_EACH];
    for (int k = 0; k < SWAP_EACH; k++) {
        int i = k * SWAP_THREADS + threadIdx.x;
        word[k] = i < n ? words[i] : 0;
        sum[k] = i < n && o.adds ? *place_of(o, from, blockIdx.x * PF_TRAY_FLOATS + i) : 0;
    }
    for (int k = 0; k < SWAP_EACH; k++) {
        int i = k * SWAP_THREADS + threadIdx.x;
        if (i >= n)
            break;
        float v = await_word(word[k], words + i, number, fault);
        put_float(o, codes, from, blockIdx.x * PF_TRAY_FLOATS + i, v, sum[k], fault);
    }
}

CU_INLINE void keep_columns(const struct pf_swap_op &o, const struct cu_x &codes, const float (&mine)[SWAP_EACH],
                            int *fault)
{
    int n = floats_of(o, o.card);
    for (int k = 0; k < SWAP_EACH; k++) {
        int i = k * SWAP_THREADS + threadIdx.x, at = blockIdx.x * PF_TRAY_FLOATS + i;
        if (i >= n)
            break;
        put_float(o, codes, o.card, at, mine[k], o.adds ? *place_of(o, o.card, at) : 0, fault);
    }
}

/* A card's own columns: they are where they should be, are copied, or, where whole rows lie over those that are still
 * to be sent, pass through the card's tray, between two kernels. */
enum own { STAYS, COPIED, BY_TRAY };

template <bool SENDS, bool TAKES>
static __global__ void __launch_bounds__(SWAP_THREADS) swap(const __grid_constant__ struct pf_swap_op o,
                                                            const __grid_constant__ struct cu_x codes, enum own own,
                                                            int *fault)
{
    float mine[SWAP_EACH];
    wait_turn();
    uint32_t number = *last_of(o) + 1;
    for (int k = 0; k < SWAP_EACH; k++) {
        int i = k * SWAP_THREADS + threadIdx.x, at = blockIdx.x * PF_TRAY_FLOATS + i;
        bool has = i < floats_of(o, o.card);
        mine[k] = has ? *(const volatile float *)&o.mine[at] : 0;
        if (has && o.up)
            mine[k] = activation(o.act, mine[k], *(const volatile float *)&o.up[at]);
    }
    if (SENDS)
        send_columns(o, mine, number, own == BY_TRAY);
    __syncthreads();
    if (!TAKES)
        return;
    if (own == COPIED)
        keep_columns(o, codes, mine, fault);
    for (int i = 0; i < o.n_cards; i++)
        if (i != o.card || own == BY_TRAY)
            take_columns(o, codes, number, i, fault);
    if (threadIdx.x == 0)
        *last_of(o) = number;
}

/* One row's columns stay if they lie in the row that becomes whole, and are nothing new. */
static enum own what_becomes(const struct pf_swap_op *s, bool is_new)
{
    const float *end = s->y + (size_t)s->rows * s->n;
    if (s->adds || s->mine >= end || s->mine + (size_t)s->rows * (s->first[s->card + 1] - s->first[s->card]) <= s->y)
        return COPIED;
    if (s->rows > 1 || s->mine != s->y + s->first[s->card])
        return BY_TRAY;
    return is_new ? COPIED : STAYS;
}

extern "C" cudaError_t pf_cu_swap(cudaStream_t st, const struct pf_swap_op *s, const struct cu_x *codes, int *fault)
{
    int most = 1;
    enum own own = what_becomes(s, s->up || codes->q);
    for (int k = 0; k < s->n_cards; k++)
        most = s->first[k + 1] - s->first[k] > most ? s->first[k + 1] - s->first[k] : most;
    dim3 grid(ceil_div((int64_t)s->rows * most, PF_TRAY_FLOATS));
    if (own != BY_TRAY)
        return launch_early(swap<true, true>, grid, SWAP_THREADS, 0, st, *s, *codes, own, fault);
    cudaError_t e = launch_early(swap<true, false>, grid, SWAP_THREADS, 0, st, *s, *codes, own, fault);
    return e != cudaSuccess ? e : launch_early(swap<false, true>, grid, SWAP_THREADS, 0, st, *s, *codes, own, fault);
}
