/* Kernels of the emulated GPU: blocks one after the other, those of a cluster together, as fibers of the thread that
 * calls.
 *
 *     run_blocks -> run_warp -> a fiber, until it waits for others or returns -> run_warp ..
 *
 * A fiber that waits points to what it waits for; whoever completes that makes all who wait for it ready again. All
 * state is the thread's own: streams run their kernels at the same time without knowing of each other. Fibers outlive
 * their kernel and are used by the next. Much of the emulation's time would go to switching them: processors expect a
 * return to go where the last call came from, and a call within which fibers are switched is returned from by another
 * one, to a place of its own. So functions here say who goes on, and the kernel's own code jumps there (emu_go). */
#define _GNU_SOURCE
#include "emulated.h"

#include <stdalign.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { PAGE = 4096, STACK = (128 << 10) + PAGE, LINE = 64, N_LINES = 61 };
enum { N_BARRIERS = 16, N_COPIES = 128, MOST_THREADS = 4096, N_WARPS = MOST_THREADS / EMU_WARP };
enum { GROUP_WARPS = 4, N_AHEAD = 1024 };                        /* acts that a warp may be ahead of its warpgroup */
enum { MOST_BLOCKS = 8, VARIABLE = 48 << 10, N_LETTERS = 16384 };        /* per cluster, of MOST_THREADS */

struct copy {
    void       *to;
    const void *from;
    size_t      bytes;
    int         group;
};

struct fiber {
    struct emu_place place;              /* where it goes on */
    struct emu_index thread;
    struct block    *block;
    struct warp     *w;
    int              warp, lane;
    unsigned         cluster_phase;      /* the cluster barrier's phase in which the fiber has arrived */
    const void      *waits_for;          /* a barrier, a box, the turn, if it is neither ready nor at an exchange */
    struct copy     *copies;             /* under way: {N_COPIES} */
    int              n_copies, n_groups;
};

/* Threads of one phase read what was said in it until all of them have come to the next. */
struct barrier {
    int      n_arrived;
    unsigned n_phases;
    bool     any[2];                     /* whether a thread said yes: in this phase and the one before, in turn */
};

/* Lanes are bits: those that have not returned from the kernel; of them, those that may go on, and those that wait for
 * the others to give a value, too. */
struct warp {
    uint32_t runs, ready, met;
    unsigned n_exchanges, n_acts;        /* n_acts: of its warpgroup's, which it has done */
    uint64_t value[2][EMU_WARP];         /* the lanes may be reading the last exchange while they give to the next */
    uint32_t words[2][EMU_WORDS][EMU_WARP];
};

/* The latest acts of a warpgroup, as the warp that was the first did them. */
struct group {
    struct emu_act act[N_AHEAD];
    unsigned n;
};

struct block {
    struct emu_index at;
    struct barrier   barriers[N_BARRIERS];
    int              n_runs;
    alignas(16) char variable[VARIABLE];
};

/* In the kernel's shared memory: how many bytes have yet to come, how many of so many threads have yet to arrive, or to
 * say so, and how often both were done. */
struct box {
    int32_t n_bytes;
    uint8_t n_pending, n_arrivals;
    uint16_t n_phases;
};

/* What is on its way to a block: a word of another one, or a copy of its own. */
struct letter {
    const struct block *block;
    float          v;
    const void    *from;                 /* of a copy; NULL: v */
    void          *to;
    int            bytes;
    struct box    *box;
};

struct machine {
    struct emu_place home;
    struct fiber   fibers[MOST_THREADS], *me;
    struct copy    copies[MOST_THREADS][N_COPIES];
    struct warp    warps[N_WARPS];
    struct group   groups[N_WARPS / GROUP_WARPS];
    struct block   blocks[MOST_BLOCKS];
    struct letter  letters[N_LETTERS];
    int            n_letters, n_arrived; /* n_arrived, n_phases: of the cluster */
    unsigned       n_phases;
    bool           has_turn, has_variable;
    int            step;                 /* through the lanes of a warp: 1 or -1 */
    int            n, n_made, n_runs;    /* fibers that these blocks need; that were made; that have not returned */
    int            n_numbered;           /* fibers, for blocks of this shape: */
    struct emu_index numbered;
    char          *stacks, *memory_end;
    size_t         memory_bytes;
    uint64_t       dice;
    const struct emu_kernel *kernel;
};

static __thread struct machine *m;
__thread struct emu_index threadIdx, blockIdx, blockDim, gridDim;

_Noreturn static void broken(const char *rule)
{
    fprintf(stderr, "emulated GPU: %s (block %u,%u,%u, thread %u)\n", rule, blockIdx.x, blockIdx.y, blockIdx.z,
            threadIdx.x);
    abort();
}

/* ---- Fibers ------------------------------------------------------------------------------------------------------ */

static inline uint32_t bit_of(const struct fiber *f)
{
    return (uint32_t)1 << f->lane;
}

/* Lanes of a warp are of one block, which run_warp() names. */
static inline struct emu_place *make_current(struct fiber *f)
{
    m->me = f;
    threadIdx = f->thread;
    return &f->place;
}

/* Of lanes that are ready, the first in the order of this turn. */
static inline int first_lane(uint32_t ready)
{
    return m->step < 0 ? EMU_WARP - 1 - __builtin_clz(ready) : __builtin_ctz(ready);
}

/* The lane of this warp that is ready and comes next, in the order of this turn, after the last one the first again;
 * NULL: all wait. Nearly always it is the neighbour, and the processor goes on there before it has seen that. */
static inline struct fiber *next_lane(void)
{
    struct fiber *me = m->me;
    uint32_t ready = me->w->ready, bit = bit_of(me);
    if (m->step > 0 ? ready & bit << 1 : ready & bit >> 1)
        return me + m->step;
    uint32_t later = ready & (m->step > 0 ? -bit << 1 : bit - 1);
    return ready ? me - me->lane + first_lane(later ? later : ready) : NULL;
}

/* From a fiber that waits. */
static inline struct emu_way way_on(void)
{
    struct fiber *me = m->me, *next = next_lane();
    return (struct emu_way){ &me->place, next ? make_current(next) : &m->home };
}

static void *map(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        broken("there is no memory for its fibers");
    return p;
}

static size_t memory_map(void)
{
    return (emu_most_shared_bytes() + PAGE - 1) / PAGE * PAGE;
}

static void make_machine(void)
{
    m = map(sizeof *m);
    m->stacks = map((size_t)MOST_THREADS * STACK);
    m->memory_end = (char *)map(memory_map() + PAGE) + memory_map();
    mprotect(m->memory_end, PAGE, PROT_NONE);
    m->dice = 1;
}

/* ---- Blocks ------------------------------------------------------------------------------------------------------ */

static int n_warps(void)
{
    return (m->n + EMU_WARP - 1) / EMU_WARP;
}

static unsigned roll(unsigned n)
{
    m->dice = m->dice * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(m->dice >> 33) % n;
}

static const struct emu_way stay;

static inline struct emu_way wait_for(const void *what)
{
    m->me->waits_for = what;
    m->me->w->ready &= ~bit_of(m->me);
    return way_on();
}

/* All fibers that wait for this. */
static void wake(const void *what)
{
    for (int warp = 0; warp < n_warps(); warp++) {
        struct warp *w = &m->warps[warp];
        for (uint32_t waits = w->runs & ~w->ready & ~w->met; waits; waits &= waits - 1) {
            int lane = __builtin_ctz(waits);
            if (m->fibers[warp * EMU_WARP + lane].waits_for == what)
                w->ready |= (uint32_t)1 << lane;
        }
    }
}

/* The last may have come, or one that it would have waited for has returned. */
static void check_barrier(struct barrier *b, int n_threads)
{
    if (b->n_arrived == 0 || b->n_arrived < n_threads)
        return;
    b->n_arrived = 0;
    b->any[++b->n_phases % 2] = false;
    wake(b);
}

static void check_warp(struct warp *w)
{
    if (w->met == 0 || w->met != w->runs)
        return;
    w->met = 0;
    w->ready = w->runs;
    w->n_exchanges++;
}

static void end_fiber(struct fiber *f)
{
    struct warp *w = f->w;
    if (f->n_copies)
        broken("a thread returned with copies under way");
    w->runs &= ~bit_of(f);
    w->ready &= ~bit_of(f);
    m->n_runs--;
    f->block->n_runs--;
    check_barrier(&f->block->barriers[0], f->block->n_runs);
    check_warp(w);
}

/* Between blocks a fiber waits in emu_go(). */
static void fiber_main(void)
{
    for (;;) {
        m->kernel->call(m->kernel->args);
        end_fiber(m->me);
        emu_go(way_on());
    }
}

/* As if somebody had called fiber_main() on its stack. */
static void make_fiber(int i)
{
    char *stack = m->stacks + (size_t)i * STACK;
    char *top = stack + STACK - (size_t)i % N_LINES * LINE;              /* they would share lines of the cache */
    mprotect(stack, PAGE, PROT_NONE);
    m->fibers[i].copies = m->copies[i];
    m->fibers[i].place = (struct emu_place){ fiber_main, top - sizeof(void *), NULL };
}

static void check_box(struct box *b)
{
    if (b->n_pending > 0 || b->n_bytes != 0)
        return;
    b->n_pending = b->n_arrivals;
    b->n_phases++;
    wake(b);
}

static struct block *block_of(const void *variable)
{
    for (int i = 0; i < MOST_BLOCKS; i++)
        if ((const char *)variable >= m->blocks[i].variable &&
            (const char *)variable < m->blocks[i].variable + VARIABLE)
            return &m->blocks[i];
    broken("a word is sent to what is no variable of a cluster");
}

static void bring(const struct letter *l)
{
    if (l->block->n_runs == 0)
        broken("what was sent to a block comes when it has ended");
    memcpy(l->to, l->from ? l->from : &l->v, (size_t)l->bytes);
    l->box->n_bytes -= l->bytes;
    check_box(l->box);
}

/* Delivers some or all of the letters under way. False: there were none. */
static bool deliver(bool all)
{
    bool any = false;
    for (int i = 0; i < m->n_letters; i++) {
        struct letter l = m->letters[i];
        if (!all && roll(4) > 0)
            continue;
        m->letters[i--] = m->letters[--m->n_letters];
        bring(&l);
        any = true;
    }
    return any;
}

/* Lanes of a warp, forwards or backwards, until all wait for others; a lane that waits hands on to the next. False: all
 * waited already. */
static bool run_warp(int warp)
{
    uint32_t ready = m->warps[warp].ready;
    m->step = roll(2) ? 1 : -1;
    if (!ready)
        return false;
    struct fiber *f = &m->fibers[warp * EMU_WARP + first_lane(ready)];
    blockIdx = f->block->at;
    emu_go((struct emu_way){ &m->home, make_current(f) });
    return true;
}

static void begin_memory(const struct emu_kernel *k)
{
    if (k->cluster > MOST_BLOCKS || (k->cluster > 1 && (k->shared_bytes > 0 || k->block.x % EMU_WARP > 0)) ||
        (int)k->block.x * k->cluster > MOST_THREADS)
        broken("a cluster is larger than the emulation has room for, or has dynamic shared memory");
    m->memory_bytes = (k->shared_bytes + 15) & ~(size_t)15;
    memset(m->memory_end - m->memory_bytes, 0xff, m->memory_bytes);
    memset(m->warps, 0, sizeof m->warps[0] * (size_t)n_warps());
    for (int i = 0; i < N_WARPS / GROUP_WARPS; i++)
        m->groups[i].n = 0;
    for (int i = 0; i < k->cluster; i++)
        memset(&m->blocks[i], 0, offsetof(struct block, variable));
    m->has_variable = false;
    m->n_letters = m->n_arrived = 0;
}

/* What is the same in all blocks of a kernel, and in most of those that follow: who is which thread of which block. */
static void number_fibers(const struct emu_kernel *k, int n_threads)
{
    const struct emu_index *b = &k->block;
    if (m->n == m->n_numbered && memcmp(b, &m->numbered, sizeof *b) == 0)
        return;
    for (; m->n_made < m->n; m->n_made++)
        make_fiber(m->n_made);
    for (int i = 0; i < m->n; i++) {
        struct fiber *f = &m->fibers[i];
        unsigned x = (unsigned)(i % n_threads);
        f->block = &m->blocks[i / n_threads];
        f->thread = (struct emu_index){ x % b->x, x / b->x % b->y, x / b->x / b->y };
        f->warp = i / EMU_WARP;
        f->w = &m->warps[f->warp];
        f->lane = i % EMU_WARP;
    }
    m->n_numbered = m->n;
    m->numbered = *b;
}

/* The block at `at`, or the blocks of the cluster from there on. */
static void begin_blocks(const struct emu_kernel *k, struct emu_index at)
{
    int n_threads = (int)(k->block.x * k->block.y * k->block.z);
    m->n = m->n_runs = n_threads * k->cluster;
    begin_memory(k);
    number_fibers(k, n_threads);
    for (int i = 0; i < k->cluster; i++) {
        m->blocks[i].at = (struct emu_index){ at.x + (unsigned)i, at.y, at.z };
        m->blocks[i].n_runs = n_threads;
    }
    for (int i = 0; i < n_warps(); i++) {
        int n_none = (i + 1) * EMU_WARP - m->n;                          /* lanes that the last warp lacks */
        m->warps[i].runs = m->warps[i].ready = UINT32_MAX >> (n_none > 0 ? n_none : 0);
    }
    for (struct fiber *f = m->fibers; f < m->fibers + m->n; f++)
        f->n_copies = f->n_groups = 0;
}

/* has_turn is what fibers wait for that wait for their kernel's turn. */
static void take_turn(void (*await_turn)(void *ctx), void *ctx)
{
    await_turn(ctx);
    m->has_turn = true;
    wake(&m->has_turn);
}

static void run_blocks(const struct emu_kernel *k, struct emu_index at, void (*await_turn)(void *ctx), void *ctx)
{
    begin_blocks(k, at);
    int n = n_warps();
    while (m->n_runs) {
        int first = (int)roll((unsigned)n), skipped = (int)roll(2 * (unsigned)n);
        bool any = false;
        for (int i = 0; i < n; i++)
            any |= i == skipped || run_warp((first + i) % n);
        any |= deliver(!any);
        if (!any && m->has_turn)
            broken("threads wait for others that never come");
        if (!any)
            take_turn(await_turn, ctx);
    }
    deliver(true);
    for (int i = 0; i < n; i++)
        if (m->warps[i].n_acts != m->groups[i / GROUP_WARPS].n)
            broken("a warp of a warpgroup has done less than another");
}

void emu_run(const struct emu_kernel *k, void (*await_turn)(void *ctx), void *ctx)
{
    if (!m)
        make_machine();
    m->kernel = k;
    m->has_turn = false;
    gridDim = k->grid;
    blockDim = k->block;
    for (unsigned z = 0; z < k->grid.z; z++)
        for (unsigned y = 0; y < k->grid.y; y++)
            for (unsigned x = 0; x < k->grid.x; x += (unsigned)k->cluster)
                run_blocks(k, (struct emu_index){ x, y, z }, await_turn, ctx);
    if (!m->has_turn && k->is_early)     /* the one behind it would not wait for the one ahead of it */
        broken("no thread of a kernel that may begin early waited for its turn");
    if (!m->has_turn)
        take_turn(await_turn, ctx);
}

void emu_run_end(void)
{
    if (!m)
        return;
    munmap(m->stacks, (size_t)MOST_THREADS * STACK);
    munmap(m->memory_end - memory_map(), memory_map() + PAGE);
    munmap(m, sizeof *m);
    m = NULL;
}

/* ---- What kernels call ------------------------------------------------------------------------------------------- */

void *emu_block_memory(void)
{
    return m->memory_end - m->memory_bytes;
}

struct emu_way emu_come(int which, int n_threads, bool yes, const bool **any)
{
    struct barrier *b = &m->me->block->barriers[which];
    int needed = n_threads ? n_threads : m->me->block->n_runs;
    bool *said = &b->any[b->n_phases % 2];
    *said |= yes;
    *any = said;
    if (++b->n_arrived < needed)
        return wait_for(b);
    check_barrier(b, needed);
    return stay;
}

void emu_arrive(int which, int n_threads)
{
    struct barrier *b = &m->me->block->barriers[which];
    b->n_arrived++;
    check_barrier(b, n_threads);
}

/* The processor takes an act to be the whole warpgroup's, without making its warps wait: if they come to different
 * ones, nobody can say what it does. */
void emu_group_acts(struct emu_act a)
{
    struct warp *w = m->me->w;
    struct group *g = &m->groups[m->me->warp / GROUP_WARPS];
    if (m->me->lane > 0)
        return;
    struct emu_act *first = &g->act[w->n_acts % N_AHEAD];
    if (w->n_acts == g->n) {
        *first = a;
        g->n++;
    } else if (g->n - w->n_acts > N_AHEAD) {
        broken("the warps of a warpgroup are farther apart than the emulation has room for");
    } else if (first->what != a.what || first->lines != a.lines || first->byte != a.byte || first->adds != a.adds) {
        broken("the warps of a warpgroup do different things");
    }
    w->n_acts++;
}

static inline struct emu_way meet_lanes(struct warp *w)
{
    uint32_t bit = bit_of(m->me);
    w->met |= bit;
    if (w->met != w->runs) {
        w->ready &= ~bit;
        return way_on();
    }
    check_warp(w);
    return stay;
}

struct emu_way emu_give(uint64_t value, const uint64_t **all)
{
    struct warp *w = m->me->w;
    uint64_t *values = w->value[w->n_exchanges % 2];
    values[m->me->lane] = value;
    *all = values;
    return meet_lanes(w);
}

struct emu_way emu_give_words(const uint32_t *words, int n, const uint32_t (**all)[EMU_WARP])
{
    struct warp *w = m->me->w;
    uint32_t (*given)[EMU_WARP] = w->words[w->n_exchanges % 2];
    for (int i = 0; i < n; i++)
        given[i][m->me->lane] = words[i];
    *all = (const uint32_t (*)[EMU_WARP])given;
    return meet_lanes(w);
}

struct emu_way emu_ask_turn(void)
{
    return m->has_turn ? stay : wait_for(&m->has_turn);
}

void *emu_cluster_variable(size_t bytes)
{
    if (bytes > VARIABLE)
        broken("a variable of a cluster is larger than the emulation has room for");
    if (!m->has_variable)                /* few kernels have one: it is NaNs from where the first thread names it */
        for (int i = 0; i < m->kernel->cluster; i++)
            memset(m->blocks[i].variable, 0xff, VARIABLE);
    m->has_variable = true;
    return m->me->block->variable;
}

void emu_cluster_arrive(void)
{
    m->me->cluster_phase = m->n_phases;
    if (++m->n_arrived < m->n_runs)
        return;
    m->n_arrived = 0;
    m->n_phases++;
    wake(&m->n_phases);
}

struct emu_way emu_ask_cluster(void)
{
    return m->me->cluster_phase == m->n_phases ? wait_for(&m->n_phases) : stay;
}

void emu_open_box(uint64_t *box, int n_arrivals)
{
    memcpy(box, &(struct box){ .n_pending = (uint8_t)n_arrivals, .n_arrivals = (uint8_t)n_arrivals }, sizeof *box);
}

void emu_arrive_at(uint64_t *box)
{
    struct box *b = (struct box *)box;
    if (!b->n_pending)
        broken("more threads arrive at a box than it was opened for");
    b->n_pending--;
    check_box(b);
}

void emu_expect_bytes(uint64_t *box, int bytes)
{
    struct box *b = (struct box *)box;
    if (b->n_pending != 1)
        broken("a box expects bytes twice");
    b->n_pending = 0;
    b->n_bytes += bytes;
    check_box(b);
}

static void post(struct letter l)
{
    if (m->n_letters == N_LETTERS)
        broken("more is under way to blocks than the emulation has room for");
    m->letters[m->n_letters++] = l;
}

void emu_send(float v, float *to, uint64_t *box, int block)
{
    char *there = m->blocks[block].variable, *here = m->me->block->variable, *at = there + ((char *)to - here);
    post((struct letter){ block_of(at), v, NULL, at, sizeof v, (struct box *)(there + ((char *)box - here)) });
}

void emu_copy_to_box(uint8_t *to, const uint8_t *from, int bytes, uint64_t *box)
{
    const uint8_t *memory = (const uint8_t *)emu_block_memory();
    if (((uintptr_t)to | (uintptr_t)from | (uintptr_t)bytes) % 16)
        broken("a copy to shared memory is not aligned");
    if (to < memory || to + bytes > (const uint8_t *)m->memory_end)
        broken("a copy to shared memory goes elsewhere");
    memset(to, 0xff, (size_t)bytes);
    post((struct letter){ m->me->block, 0, from, to, bytes, (struct box *)box });
}

struct emu_way emu_ask_box(uint64_t *box, int turn)
{
    const struct box *b = (const struct box *)box;
    return b->n_phases % 2 == turn ? wait_for(b) : stay;
}

void emu_copy_async(void *to, const void *from, size_t bytes)
{
    struct fiber *f = m->me;
    char *memory = emu_block_memory();
    if (((uintptr_t)to | (uintptr_t)from) % bytes)
        broken("a copy to shared memory is not aligned");
    if ((char *)to < memory || (char *)to + bytes > m->memory_end)
        broken("a copy to shared memory goes elsewhere");
    if (f->n_copies == N_COPIES)
        broken("a thread has more copies under way than the emulation has room for");
    f->copies[f->n_copies++] = (struct copy){ to, from, bytes, f->n_groups };
}

void emu_copies_commit(void)
{
    m->me->n_groups++;
}

void emu_copies_wait(int n_left)
{
    struct fiber *f = m->me;
    int n = 0;
    while (n < f->n_copies && f->copies[n].group < f->n_groups - n_left) {
        memcpy(f->copies[n].to, f->copies[n].from, f->copies[n].bytes);
        n++;
    }
    f->n_copies -= n;
    memmove(f->copies, f->copies + n, (size_t)f->n_copies * sizeof *f->copies);
}

unsigned long long emu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (unsigned long long)t.tv_sec * 1000000000u + (unsigned long long)t.tv_nsec;
}
