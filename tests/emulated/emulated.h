/* A GPU that is none: pfmoe's CUDA backend, kernels and all, compiled by the host's compilers and run by its threads,
 * so that a machine without a GPU tests them. It says whether results have the right bits and whether kernels keep
 * CUDA's rules; it says nothing about speed.
 *
 *     include/          what stands in for CUDA's headers, and for kernels/cuda/cu_machine.h
 *     language.h        CUDA C++ for a host compiler; every kernel is compiled with it
 *     runtime.c         memory, streams, events, graphs: a thread per stream takes tasks in order
 *     card.c            what card it is: memory, multiprocessors, shared memory, generation
 *     blocks.c          a kernel: block after block, a fiber per thread, on a thread of its stream
 *
 * It is stricter than a GPU where that finds mistakes:
 *  - device memory ends at a page that nobody may touch, and its first megabyte begins as NaNs; so does all of a
 *    block's shared memory;
 *  - warps take turns in an order that looks random; a fiber runs on until it has to wait for another;
 *  - asynchronous copies to shared memory happen when they are waited for, not before;
 *  - of a kernel that may begin early, the first block does, before the kernel ahead has;
 *  - grids, shared memory and alignment have the limits of the card, a launch that only newer cards know is refused,
 *    and a barrier that not all reach ends the program. */
#ifndef PF_EMULATED_H
#define PF_EMULATED_H

#include <cuda_runtime_api.h>
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { EMU_WARP = 32, EMU_THREADS = 1024, EMU_SHARED_UNASKED = 48 << 10, EMU_WORDS = 6 };

/* ---- The card ---------------------------------------------------------------------------------------------------- */

struct emu_card {
    const char *name;
    int    capability;                   /* times ten; from 90 on kernels may begin early, and in clusters */
    size_t memory_bytes, shared_bytes;   /* the card's; a block's that asks */
    int    n_units;                      /* multiprocessors */
};
const struct emu_card *emu_card_of(int device);
const struct emu_card *emu_card(void);          /* the one that the thread has chosen */
size_t emu_most_shared_bytes(void);             /* of any card's block */

/* ---- Of the kernel that runs on this thread; for language.h ------------------------------------------------------ */

struct emu_index { unsigned x, y, z; };
extern __thread struct emu_index threadIdx, blockIdx, blockDim, gridDim;

void *emu_block_memory(void);                   /* dynamic shared memory, 16-byte aligned */
void *emu_cluster_variable(size_t bytes);       /* a kernel's one; another block's of the cluster lies elsewhere */
void  emu_arrive(int which, int n_threads);     /* at a barrier, without waiting for it */
/* Of a warpgroup's four warps, by every lane: all must do the same in the same order. */
struct emu_act {
    const void *what, *lines;                   /* a kind of product, a commit, a wait; a product's second operand */
    int         byte;                           /* of each line, from here on; for a wait: how many it leaves */
    bool        adds;
};
void  emu_group_acts(struct emu_act a);
void  emu_copy_async(void *to, const void *from, size_t bytes);
void  emu_copies_commit(void);
void  emu_copies_wait(int n_left);              /* until so many of the committed groups are left */
void  emu_cluster_arrive(void);
/* Boxes, and words sent to another block of the cluster: see kernels/cuda/cu_machine.h. */
void  emu_open_box(uint64_t *box, int n_arrivals);
void  emu_arrive_at(uint64_t *box);
void  emu_expect_bytes(uint64_t *box, int bytes);
void  emu_send(float v, float *to, uint64_t *box, int block);
void  emu_copy_to_box(uint8_t *to, const uint8_t *from, int bytes, uint64_t *box);
unsigned long long emu_ns(void);

/* ---- Where threads wait ------------------------------------------------------------------------------------------ */

struct emu_place { void *at, *stack, *frame; };             /* where a fiber goes on */
struct emu_way { struct emu_place *here, *there; };         /* there: who goes on meanwhile; NULL: there is no wait */

/* Of what goes such a way: part of the kernel that calls it, as blocks.c wants it. */
#define EMU_INLINE static inline __attribute__((always_inline))

/* Goes on there, and returns once somebody goes on here. Registers are saved on the stack meanwhile. */
EMU_INLINE void emu_go(struct emu_way way)
{
    if (!way.there)
        return;
    __asm__ volatile("leaq 1f(%%rip), %%rax\n\t"
                     "movq %%rax, (%0)\n\t"
                     "movq %%rsp, 8(%0)\n\t"
                     "movq %%rbp, 16(%0)\n\t"
                     "movq 8(%1), %%rsp\n\t"
                     "movq 16(%1), %%rbp\n\t"
                     "jmpq *(%1)\n"
                     "1:"
                     : "+D"(way.here), "+S"(way.there)
                     :
                     : "rax", "rbx", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "xmm0", "xmm1",
                       "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12",
                       "xmm13", "xmm14", "xmm15", "cc", "memory");
}

/* What blocks.c does of the functions below; the kernel goes the way itself. */
struct emu_way emu_come(int which, int n_threads, bool yes, const bool **any);
struct emu_way emu_give(uint64_t value, const uint64_t **all);
struct emu_way emu_give_words(const uint32_t *words, int n, const uint32_t (**all)[EMU_WARP]);
struct emu_way emu_ask_turn(void);
struct emu_way emu_ask_cluster(void);
struct emu_way emu_ask_box(uint64_t *box, int turn);

/* A barrier of the block, for 0 threads of all that have not returned: whether any that met there said yes. */
EMU_INLINE bool emu_barrier_any(int which, int n_threads, bool yes)
{
    const bool *any;
    emu_go(emu_come(which, n_threads, yes, &any));
    return *any;
}

/* Every lane of the warp gives a value and gets all, which stay valid until its next exchange. */
EMU_INLINE const uint64_t *emu_exchange(uint64_t value)
{
    const uint64_t *all;
    emu_go(emu_give(value, &all));
    return all;
}

/* As emu_exchange, n words of each lane, EMU_WORDS at most: [n][EMU_WARP]. */
EMU_INLINE const uint32_t (*emu_exchange_words(const uint32_t *words, int n))[EMU_WARP]
{
    const uint32_t (*all)[EMU_WARP];
    emu_go(emu_give_words(words, n, &all));
    return all;
}

EMU_INLINE void emu_wait_turn(void)
{
    emu_go(emu_ask_turn());
}

EMU_INLINE void emu_cluster_wait(void)
{
    emu_go(emu_ask_cluster());
}

EMU_INLINE void emu_await_box(uint64_t *box, int turn)
{
    for (struct emu_way way; (way = emu_ask_box(box, turn)).there;)
        emu_go(way);
}

/* ---- For tests --------------------------------------------------------------------------------------------------- */

/* The n-th call from now on that can fail does, once or, if the device is lost then, with all that follow; 0: none. */
void     emu_fail_at(uint64_t n, bool is_lost);
/* From the n-th call since emu_fail_at on a card is lost: whatever it has a part in fails, and it does nothing more. */
void     emu_lose_at(int card, uint64_t n);
uint64_t emu_n_calls(void);                     /* calls since emu_fail_at that could have failed */
int      emu_n_live(void);                      /* pieces of memory that are allocated or pinned */

/* ---- For the stand-in of NCCL ------------------------------------------------------------------------------------ */

/* Whether the stream is being captured: then ctx is dropped when the graph is gone, and what was made from it. */
__attribute__((visibility("default"))) bool emu_keep(cudaStream_t st, void (*drop)(void *ctx), void *ctx);

/* ---- Between runtime.c and blocks.c ------------------------------------------------------------------------------ */

/* A launch: call(args) runs the kernel for the thread that the variables above name. */
struct emu_kernel {
    struct emu_index grid, block;
    size_t shared_bytes;
    int    cluster;                             /* blocks */
    bool   is_early;                            /* begins before the one ahead has ended, lets the next do so */
    void (*call)(const void *args);
    void (*drop)(void *args);
    void  *args;
};

/* Puts a kernel on a stream, which then owns its args. */
cudaError_t emu_launch(const cudaLaunchConfig_t *config, const void *function, struct emu_kernel k);

/* Runs one kernel whole on this thread. await_turn is called once: when the threads of the first block that have not
 * returned wait for the kernel's turn, or at the end. emu_run_end() gives back what the thread has for it. */
void emu_run(const struct emu_kernel *k, void (*await_turn)(void *ctx), void *ctx);
void emu_run_end(void);

#ifdef __cplusplus
}
#endif

#endif
