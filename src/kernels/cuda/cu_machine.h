/* The parts of the machine that kernels use beyond the language: a block's shared memory, and instructions by their
 * names. All that depends on the GPU's generation is in here, so that kernels need not ask. tests/emulated has another
 * file of this name, for a GPU that is none. */
#ifndef PF_CU_MACHINE_H
#define PF_CU_MACHINE_H

#include <stdint.h>

#define CU_INLINE static __device__ __forceinline__

enum { WARP = 32 };
#define ALL_LANES 0xffffffffu

/* Declares a kernel's name for the shared memory that its launch asks for. */
#define BLOCK_MEMORY(type, name) extern __shared__ type name[]

/* Declares a kernel's variable in shared memory that other blocks of the cluster may write to. */
#define CLUSTER_VARIABLE(type, name) __shared__ __align__(16) type name

/* Where a kernel begins that was launched with launch_early: waits until everything ahead of it in the stream has ended
 * and can be seen, then lets the blocks of the next kernel come. Every thread calls it, before it returns and before it
 * touches anything but what no kernel changes, such as weights. Results of kernels before the one ahead may be read
 * before, too, but not through the first cache: volatile, or by copies of 16 bytes to shared memory. */
CU_INLINE void wait_turn(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Asks for bytes that the block will surely read, so that they are on their way to the cache when it comes to them. One
 * thread calls it. The kernel must read these bytes later: otherwise the request may outlive the kernel, and the
 * memory. Up to 15 bytes more are touched at both ends. */
CU_INLINE void fetch_ahead(const uint8_t *p, size_t bytes)
{
#if __CUDA_ARCH__ >= 900
    uintptr_t begin = (uintptr_t)p & ~(uintptr_t)15, end = ((uintptr_t)p + bytes + 15) & ~(uintptr_t)15;
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" :: "l"(begin), "r"((uint32_t)(end - begin)) : "memory");
#endif
}

/* Meets the warps that are so many threads of a block, wherever in the code they are. */
CU_INLINE void meet(int barrier, int threads)
{
    asm volatile("bar.sync %0, %1;" :: "r"(barrier), "r"(threads) : "memory");
}

/* A box in a block's shared memory counts bytes, which copies or other blocks of its cluster bring, or threads that
 * arrive at it. A thread opens it, for so many arrivals, before any other knows of it: of a cluster, all threads arrive
 * and wait for that before one sends. Then, each time, one thread says how many bytes the block expects, which is an
 * arrival, or as many arrive; and whoever needs that awaits the box: the first time with turn 0, then 1, 0 and so on.
 * The next may be sent for when all have. Awaiting turn 1 of a box that is new is over at once. */
CU_INLINE void open_box(uint64_t *box, int n_arrivals = 1)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n\t"
                 "fence.mbarrier_init.release.cluster;"
                 :: "r"((uint32_t)__cvta_generic_to_shared(box)), "r"(n_arrivals) : "memory");
#endif
}

/* Arrives at a box that expects no bytes, but arrivals. Whoever awaits it sees what the thread wrote before. */
CU_INLINE void arrive_at(uint64_t *box)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];"
                 :: "r"((uint32_t)__cvta_generic_to_shared(box)) : "memory");
#endif
}

CU_INLINE void arrive_cluster(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
#endif
}

CU_INLINE void wait_cluster(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}

CU_INLINE void expect_bytes(uint64_t *box, int bytes)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"((uint32_t)__cvta_generic_to_shared(box)), "r"(bytes) : "memory");
#endif
}

/* Writes v to the place that *to has in shared memory of `block`, and counts it in that block's box. */
CU_INLINE void send(float v, float *to, uint64_t *box, int block)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n\t.reg .u32 there, box;\n\t"
                 "mapa.shared::cluster.u32 there, %0, %2;\n\t"
                 "mapa.shared::cluster.u32 box, %1, %2;\n\t"
                 "st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [there], %3, [box];\n\t}"
                 :: "r"((uint32_t)__cvta_generic_to_shared(to)), "r"((uint32_t)__cvta_generic_to_shared(box)),
                    "r"(block), "f"(v) : "memory");
#endif
}

/* Looks at a box until it is ready; SCOPE: "cta" or "cluster", whose writes the thread sees then. */
#define CU_AWAIT_BOX(SCOPE, box, turn)                                                                                \
    uint32_t there;                                                                                                   \
    do                                                                                                                \
        asm volatile("{\n\t.reg .pred p;\n\t"                                                                         \
                     "mbarrier.try_wait.parity.acquire." SCOPE ".shared::cta.b64 p, [%1], %2;\n\t"                    \
                     "selp.u32 %0, 1, 0, p;\n\t}"                                                                     \
                     : "=r"(there) : "r"((uint32_t)__cvta_generic_to_shared(box)), "r"(turn) : "memory");             \
    while (!there)

/* Awaits words of other blocks. */
CU_INLINE void await_sent(uint64_t *box, int turn)
{
#if __CUDA_ARCH__ >= 900
    CU_AWAIT_BOX("cluster", box, turn);
#endif
}

/* Awaits copies, or arrivals, of the block's own: unlike await_sent it leaves the first cache as it is. */
CU_INLINE void await_box(uint64_t *box, int turn)
{
#if __CUDA_ARCH__ >= 900
    CU_AWAIT_BOX("cta", box, turn);
#endif
}

/* Copies bytes to the block's shared memory, all at multiples of 16, and counts them in a box there, which the thread
 * has told to expect them. */
CU_INLINE void copy_to_box(uint8_t *to, const uint8_t *from, int bytes, uint64_t *box)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :: "r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from), "r"(bytes),
                    "r"((uint32_t)__cvta_generic_to_shared(box)) : "memory");
#endif
}

/* copy_to_box of bytes that are not read again soon: they are the first to leave the second cache. */
CU_INLINE void copy_once_to_box(uint8_t *to, const uint8_t *from, int bytes, uint64_t *box)
{
#if __CUDA_ARCH__ >= 900
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], %4;"
                 :: "r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from), "r"(bytes),
                    "r"((uint32_t)__cvta_generic_to_shared(box)), "l"(policy) : "memory");
#endif
}

/* Sixteen bytes, not through the first cache. Such loads are asked for in the order in which the code names them, and
 * before or after the kernel's turn as they stand there. */
CU_INLINE uint4 fetch16(const char *p)
{
    uint4 v;
    asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
    return v;
}

CU_INLINE float fetch4(const char *p)
{
    float v;
    asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(v) : "l"(p) : "memory");
    return v;
}

/* Has the compiler find an address here, and not where it is used. */
CU_INLINE void have(const char *&p)
{
    asm volatile("" : "+l"(p));
}

/* The clock of the GPU. */
CU_INLINE unsigned long long device_ns(void)
{
    unsigned long long t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}

/* Between two looks at memory that another card or the host is about to write. */
CU_INLINE void look_again(void)
{
}

/* True for one lane of a warp. Unlike after a comparison of lanes the compiler knows that it is one: bulk copies that
 * this lane sends for, from addresses that are the same for the warp, take a few instructions each instead of a loop
 * over lanes. All lanes call it. */
CU_INLINE bool one_of_warp(void)
{
#if __CUDA_ARCH__ >= 900
    uint32_t is;
    asm volatile("{\n\t.reg .pred p;\n\t"
                 "elect.sync _|p, 0xffffffff;\n\t"
                 "selp.u32 %0, 1, 0, p;\n\t}" : "=r"(is));
    return is;
#else
    return threadIdx.x % WARP == 0;
#endif
}

/* Tells the compiler that all lanes of a warp have this value. */
CU_INLINE int uniform(int v)
{
    return __shfl_sync(ALL_LANES, v, 0);
}

CU_INLINE const uint8_t *uniform(const uint8_t *p)
{
    return (const uint8_t *)__shfl_sync(ALL_LANES, (unsigned long long)p, 0);
}

/* The largest over the warp, for every lane. */
CU_INLINE uint32_t warp_max(uint32_t v)
{
    for (int h = 16; h > 0; h /= 2)
        v = max(v, __shfl_xor_sync(ALL_LANES, v, h));
    return v;
}

/* warp_max, in one instruction where there is one. */
CU_INLINE uint32_t all_max(uint32_t v)
{
#if __CUDA_ARCH__ >= 800
    return __reduce_max_sync(ALL_LANES, v);
#else
    return warp_max(v);
#endif
}

/* Four bytes out of eight, by four nibbles; one whose bit 3 is set gives the sign of its byte instead. */
CU_INLINE uint32_t permute(uint32_t low, uint32_t high, uint32_t nibbles)
{
    uint32_t r;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(low), "r"(high), "r"(nibbles));
    return r;
}

/* c = a (16 x 16) times b (16 x 8), each sum `from` more; a lane's c: rows lane / 4 and 8 more, columns 2 (lane % 4)
 * and the next. */
CU_INLINE void mma16(int (&c)[4], const uint32_t *a, uint32_t b, int from = 0)
{
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%7,%7,%7};"
        : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(b), "r"(from));
#else
    for (int i = 0; i < 2; i++)
        asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%4,%4};"
            : "=r"(c[2 * i]), "=r"(c[2 * i + 1]) : "r"(a[i]), "r"(b), "r"(from));
#endif
}

/* mma16 with a depth of 32: a[0], a[1] hold the lower sixteen, a[2], a[3] the upper. */
CU_INLINE void mma32(int (&c)[4], const uint32_t (&a)[4], uint32_t lower, uint32_t upper, int from = 0)
{
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
        : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(lower), "r"(upper), "r"(from));
#else
    int more[4];
    mma16(c, a, lower, from);
    mma16(more, a + 2, upper);
    for (int i = 0; i < 4; i++)
        c[i] += more[i];
#endif
}

/* Adds a (16 x 32) times b (32 x 8) to c: registers as in mma32. b's bytes have a sign, a's only if SIGNED. */
template <bool SIGNED>
CU_INLINE void mma32_add(int (&c)[4], const uint32_t (&a)[4], uint32_t lower, uint32_t upper)
{
#if __CUDA_ARCH__ >= 800
#pragma unroll
    for (int h = 0; h < 2; h++) {                /* by halves: b's words need not lie in neighbouring registers */
        uint32_t of_b = h ? upper : lower;
        if (SIGNED)
            asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3]) : "r"(a[2 * h]), "r"(a[2 * h + 1]), "r"(of_b));
        else
            asm("mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3]) : "r"(a[2 * h]), "r"(a[2 * h + 1]), "r"(of_b));
    }
#else
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int *of = c + 2 * (i & 1);
        uint32_t b = i < 2 ? lower : upper;
        if (SIGNED)
            asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};"
                : "+r"(of[0]), "+r"(of[1]) : "r"(a[i]), "r"(b));
        else
            asm("mma.sync.aligned.m8n8k16.row.col.s32.u8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};"
                : "+r"(of[0]), "+r"(of[1]) : "r"(a[i]), "r"(b));
    }
#endif
}

/* Adds a (16 x 32) times b (32 x 8) to c as mma32_add does, by one instruction where the GPU has one; that takes b's
 * two words from neighbouring registers. */
template <bool SIGNED>
CU_INLINE void mma32_more(int (&c)[4], const uint32_t (&a)[4], uint32_t lower, uint32_t upper)
{
#if __CUDA_ARCH__ >= 800
    if (SIGNED)
        asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(lower), "r"(upper));
    else
        asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(lower), "r"(upper));
#else
    mma32_add<SIGNED>(c, a, lower, upper);
#endif
}

/* Adds a (16 x 16) times b (16 x 8) to c; a0, a1: the lane's words of a's upper eight rows, of its lower eight. a's
 * bytes have a sign, b's only if SIGNED. */
template <bool SIGNED>
CU_INLINE void mma16_add(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t b)
{
#if __CUDA_ARCH__ >= 800
    if (SIGNED)
        asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
            : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3]) : "r"(a0), "r"(a1), "r"(b));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.u8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
            : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3]) : "r"(a0), "r"(a1), "r"(b));
#else
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t a = i ? a1 : a0;
        if (SIGNED)
            asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};"
                : "+r"(c[2 * i]), "+r"(c[2 * i + 1]) : "r"(a), "r"(b));
        else
            asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.u8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};"
                : "+r"(c[2 * i]), "+r"(c[2 * i + 1]) : "r"(a), "r"(b));
    }
#endif
}

/* Four 8 x 16 pieces of bytes: lane l gives where a row of piece l / 8 begins. */
CU_INLINE void load_pieces(uint32_t (&v)[4], const uint8_t *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
        : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "r"((uint32_t)__cvta_generic_to_shared(row)) : "memory");
}

/* ---- Products of warpgroups: four warps, a product's lines in shared memory. GPUs of generation 9.0 alone. ------- */

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define CU_GROUP_ASM(...) asm volatile(__VA_ARGS__)
#else
#define CU_GROUP_ASM(...)
#endif

/* Tiles begin at multiples of it. */
enum { TILE_ALIGNMENT = 1024 };

CU_INLINE char *aligned_tiles(char *p)
{
    return p + (-(uint32_t)__cvta_generic_to_shared(p) & (TILE_ALIGNMENT - 1));
}

/* Whether this GPU runs a kernel's products: the build has to have been for this generation by name. */
template <class... P>
static bool has_groups(void (*kernel)(P...))
{
#ifdef PF_GPU_GROUPS
    cudaFuncAttributes of;
    return cudaFuncGetAttributes(&of, kernel) == cudaSuccess && of.binaryVersion == 90;
#else
    (void)kernel;
    return false;
#endif
}

/* Comes to a barrier that others meet at, and goes on. */
CU_INLINE void arrive(int barrier, int threads)
{
    asm volatile("bar.arrive %0, %1;" :: "r"(barrier), "r"(threads) : "memory");
}

/* Whether v holds for all threads that meet here. */
CU_INLINE bool all_agree(int barrier, int threads, bool v)
{
    int all;
    asm volatile("{\n\t.reg .pred mine, all;\n\tsetp.ne.b32 mine, %1, 0;\n\tbar.red.and.pred all, %2, %3, mine;\n\t"
                 "selp.b32 %0, 1, 0, all;\n\t}" : "=r"(all) : "r"((int)v), "r"(barrier), "r"(threads) : "memory");
    return all;
}

/* Registers that a warpgroup's threads have from here on. */
template <int N> CU_INLINE void fewer_registers(void)
{
    CU_GROUP_ASM("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(N));
}

template <int N> CU_INLINE void more_registers(void)
{
    CU_GROUP_ASM("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(N));
}

/* Makes the thread's writes to shared memory visible to products of the warps that it meets afterwards. */
CU_INLINE void show_tiles(void)
{
    CU_GROUP_ASM("fence.proxy.async.shared::cta;" ::: "memory");
}

/* 64 lines of 128 bytes, their pieces of 16 swapped by the lowest bits of the line's number; 32 bytes of each, from
 * `byte` on, are an operand. */
struct group_lines {
    uint32_t at;                         /* in units of 16 bytes; the rest of the operand's description never changes */
};

CU_INLINE struct group_lines lines_of(const char *lines, int byte)
{
    return { ((uint32_t)__cvta_generic_to_shared(lines) + byte) >> 4 & 0x3fff };
}

/* Between group_begin and group_end products are under way, and nobody touches their registers. */
CU_INLINE void group_begin(void)
{
    CU_GROUP_ASM("wgmma.fence.sync.aligned;" ::: "memory");
}

template <class... S> CU_INLINE void group_end(S &...sums)
{
    CU_GROUP_ASM("wgmma.commit_group.sync.aligned;\n\twgmma.wait_group.sync.aligned 0;" ::: "memory");
    auto come = [](int (&c)[4][4]) {
#pragma unroll
        for (int i = 0; i < 16; i++)
            asm volatile("" : "+r"(c[i / 4][i % 4]) :: "memory");
    };
    (come(sums), ...);
}

#define CU_ROW4(c) "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
#define CU_TILES(c) CU_ROW4(c[0]), CU_ROW4(c[1]), CU_ROW4(c[2]), CU_ROW4(c[3])
#define CU_GROUP_PRODUCT(a_type)                                                                                       \
    CU_GROUP_ASM("{\n\t.reg .pred adds;\n\tsetp.ne.b32 adds, %37, 0;\n\t.reg .b64 lines;\n\t"                          \
                 "mov.b64 lines, {%36, 0x40000040};\n\t"                                                               \
                 "wgmma.mma_async.sync.aligned.m64n64k32.s32." a_type ".s8 "                                           \
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"                                             \
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "                                  \
                 "{%32,%33,%34,%35}, lines, adds;\n\t}"                                                                \
                 : CU_TILES(c), CU_TILES(d)                                                                            \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.at), "r"((int)adds))

/* c, d (64 columns of the warp's 16 rows; registers by eight columns as in mma32) = a (16 x 32) times 64 lines of b, to
 * which the sums are added if `adds`. b's bytes have a sign, a's only if SIGNED. */
template <bool SIGNED>
CU_INLINE void group_product(int (&c)[4][4], int (&d)[4][4], const uint32_t (&a)[4], struct group_lines b, bool adds)
{
    if (SIGNED)
        CU_GROUP_PRODUCT("s8");
    else
        CU_GROUP_PRODUCT("u8");
}

/* ---- Products of halves, sums in float32: exact, where they are of whole numbers up to 2^24. --------------------- */

/* a * b + c of two halves each, one rounding. */
CU_INLINE uint32_t halves_fma(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t r;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}

/* Ends what group_begin began. group_wait(c) comes before c is touched: then all but the latest LEFT have ended. Where
 * some are left, the code goes straight on from begin to wait: across branches the compiler waits for all of them. */
CU_INLINE void group_commit(void)
{
    CU_GROUP_ASM("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int LEFT = 0, int N> CU_INLINE void group_wait(float (&c)[N][4])
{
    CU_GROUP_ASM("wgmma.wait_group.sync.aligned %0;" :: "n"(LEFT) : "memory");
#pragma unroll
    for (int i = 0; i < 4 * N; i++)
        asm volatile("" : "+f"(c[i / 4][i % 4]) :: "memory");
}

/* Keeps a product's operand in its registers up to here, which a product reads until it is waited for: the compiler
 * lets others have them otherwise. never: false, but not to the compiler's knowledge. */
CU_INLINE void keep(const uint32_t (&a)[4], bool never)
{
    CU_GROUP_ASM("{\n\t.reg .pred never;\n\tsetp.ne.b32 never, %4, 0;\n\t"
                 "@never st.shared.v4.b32 [%4], {%0, %1, %2, %3};\n\t}"
                 :: "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"((int)never) : "memory");
}

#define CU_F4(c) "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
#define CU_F16(c, i) CU_F4(c[i]), CU_F4(c[i + 1]), CU_F4(c[i + 2]), CU_F4(c[i + 3])
#define CU_32_SUMS                                                                                                     \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"                                                           \
    "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define CU_64_SUMS                                                                                                     \
    CU_32_SUMS ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"                                     \
    "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define CU_HALF_PRODUCT(shape, sums, a0, a1, a2, a3, b_at, adds_at)                                                    \
    "{\n\t.reg .pred adds;\n\tsetp.ne.b32 adds, %" adds_at ", 0;\n\t.reg .b64 lines;\n\t"                            \
    "mov.b64 lines, {%" b_at ", 0x40000040};\n\t"                                                                     \
    "wgmma.mma_async.sync.aligned." shape ".f32.f16.f16 {" sums "}, "                                                  \
    "{%" a0 ",%" a1 ",%" a2 ",%" a3 "}, lines, adds, 1, 1, 0;\n\t}"

/* c (8 N columns of the warp's 16 rows; registers by eight columns as in mma32) = a (16 x 16 halves; in each register
 * two neighbours of a row: of the upper left quarter, the lower left, the upper right, the lower right) times 8 N lines
 * of b, to which the sums are added if `adds`. */
template <int N> CU_INLINE void half_product(float (&c)[N][4], const uint32_t (&a)[4], struct group_lines b, bool adds)
{
    static_assert(N == 8 || N == 16, "columns that there are instructions for here");
    if constexpr (N == 8)
        CU_GROUP_ASM(CU_HALF_PRODUCT("m64n64k16", CU_32_SUMS, "32", "33", "34", "35", "36", "37")
                     : CU_F16(c, 0), CU_F16(c, 4)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.at), "r"((int)adds));
    else
        CU_GROUP_ASM(CU_HALF_PRODUCT("m64n128k16", CU_64_SUMS, "64", "65", "66", "67", "68", "69")
                     : CU_F16(c, 0), CU_F16(c, 4), CU_F16(c, 8), CU_F16(c, 12)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.at), "r"((int)adds));
}

#endif
