/* The runtime of the emulated GPU: what include/cuda_runtime_api.h declares.
 *
 *     a caller --task--> queue of a stream --> the stream's thread: copies, events, waits
 *                                                `-> its two runners in turn: kernels
 *
 * A stream's thread takes tasks in order. When the kernel at the head of the queue was launched to begin early, and so
 * was the one behind it, that one begins first, on the other runner, and stops where it waits for its turn (blocks.c);
 * so whatever it reads too early, it reads before it is written. Behind a kernel launched in turn, which does not let
 * others come, a GPU would not begin it either. `lock` guards all that more than one thread sees; nothing is computed
 * or copied under it.
 *
 * There are three cards, or as many as PFMOE_EMULATED_CARDS says (1 to MOST_CARDS), each with memory and streams of its
 * own; a thread's calls go to the one that it chose (cudaSetDevice). As on real ones, a kernel or an event goes only to
 * a stream of the chosen card, and a copy between two cards has to say so; while it is under way, its target holds NaNs
 * for a while.
 *
 * Host and device share addresses here. That they are apart on a GPU is kept up by checks: copies name device memory on
 * the right side, and host memory that was never pinned is copied before the call returns. */
#define _GNU_SOURCE
#include "emulated.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "base/pf_cpu.h"
#include "pfmoe.h"

enum { PAGE = 4096, ALIGN = 256, FILL = 1 << 20, N_KERNELS = 4096, MOST_CARDS = 4 };

struct emu_event {
    int      card;
    struct emu_graph *capture;           /* recorded on a stream that is being captured */
    uint64_t n_recorded, n_done;
    double   ms;                         /* time of the last record that is done */
};

struct emu_task {
    struct emu_task *next;
    struct emu_stream *stream;           /* of a graph's task */
    enum { TASK_KERNEL, TASK_COPY, TASK_PASS, TASK_FILL, TASK_RECORD, TASK_WAIT, TASK_CALL } kind;
    bool of_graph;                       /* the args of the kernel belong to a graph, not to this task */
    union {
        struct emu_kernel kernel;
        struct { char *to; const char *from; size_t to_pitch, from_pitch, width, height; } copy;
        struct { void *to; int value; size_t bytes; } fill;
        struct { struct emu_event *event; uint64_t n; } mark;
        struct { void (*fn)(void *ctx); void *ctx; } call;
    };
};

struct queue {
    struct emu_task *head, *tail;
};

/* Something that a graph refers to. */
struct kept {
    struct kept *next;
    void (*drop)(void *ctx);
    void  *ctx;
};

struct emu_graph {
    struct queue tasks;                  /* of all streams, as they were called */
    struct kept *kept;
    struct emu_stream *joined[MOST_CARDS];  /* streams besides the first that are captured, too */
    int          n_joined;
    size_t       n;
    int          n_owners;               /* the graph itself, and what was made from it */
};

/* A thread that runs kernels. begin -> STALLED at its turn, or at its end -> turn -> DONE. */
struct runner {
    struct emu_stream *stream;
    pthread_t      thread;
    pthread_cond_t told;
    const struct emu_kernel *kernel;     /* NULL: none; set when it is to begin */
    enum { RUNNER_NONE, RUNNER_BEGUN, RUNNER_STALLED, RUNNER_TURN, RUNNER_DONE, RUNNER_LEAVE } state;
};

struct emu_stream {
    struct emu_stream *next;             /* of all */
    int               card;
    pthread_t         thread;
    pthread_cond_t    work, runner_said;
    struct queue      queue;
    bool              leave;
    unsigned          delays_us, random; /* see dawdle */
    struct emu_graph *capture;           /* tasks go there */
    struct runner     runner[2];
};

struct range {
    struct range *next;
    int           card;                  /* of device memory */
    char         *begin, *map;
    size_t        bytes, map_bytes;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t  settled = PTHREAD_COND_INITIALIZER;       /* a task has ended */
static struct range *device_memory, *pinned;
static size_t used[MOST_CARDS];
static struct { const void *function; size_t bytes; } asked[MOST_CARDS][N_KERNELS];   /* shared memory */
static struct emu_stream *default_stream, *streams;
static struct {
    uint64_t n_calls, at;
    bool     is_lost;
    uint64_t lost_at[MOST_CARDS];           /* 0: the card is not lost */
} faults;
static __thread cudaError_t last_error;
static __thread int chosen;              /* this thread's card */
static __thread int n_captures;          /* under way, begun by this thread */

/* cudaErrorNotReady is an answer, and not kept. */
static cudaError_t fail(cudaError_t e)
{
    if (e != cudaSuccess)
        last_error = e;
    return e;
}

/* ---- Faults ------------------------------------------------------------------------------------------------------ */

void emu_fail_at(uint64_t n, bool is_lost)
{
    pthread_mutex_lock(&lock);
    memset(&faults, 0, sizeof faults);
    faults.at = n;
    faults.is_lost = is_lost;
    pthread_mutex_unlock(&lock);
}

void emu_lose_at(int card, uint64_t n)
{
    pthread_mutex_lock(&lock);
    faults.lost_at[card] = n;
    pthread_mutex_unlock(&lock);
}

uint64_t emu_n_calls(void)
{
    pthread_mutex_lock(&lock);
    uint64_t n = faults.n_calls;
    pthread_mutex_unlock(&lock);
    return n;
}

/* Under the lock. */
static bool has_lost(int card)
{
    return faults.lost_at[card] > 0 && faults.n_calls >= faults.lost_at[card];
}

/* Whether this call, which two cards have a part in, or one that is named twice, is one that is to fail, and how. */
static cudaError_t fault_of(int card, int other, cudaError_t how)
{
    pthread_mutex_lock(&lock);
    uint64_t n = ++faults.n_calls;
    bool fails = faults.at > 0 && (n == faults.at || (faults.is_lost && n > faults.at));
    bool lost = has_lost(card) || has_lost(other);
    pthread_mutex_unlock(&lock);
    return fail(lost ? cudaErrorLaunchFailure : fails ? how : cudaSuccess);
}

static cudaError_t fault(int card, cudaError_t how)
{
    return fault_of(card, card, how);
}

#define MAY_FAIL(card, how) \
    do { cudaError_t fault_ = fault((card), (how)); if (fault_ != cudaSuccess) return fault_; } while (0)

/* ---- The device -------------------------------------------------------------------------------------------------- */

cudaError_t cudaGetLastError(void)
{
    cudaError_t e = last_error;
    last_error = cudaSuccess;
    return e;
}

const char *cudaGetErrorString(cudaError_t e)
{
    switch (e) {
    case cudaSuccess:                         return "no error";
    case cudaErrorInvalidValue:               return "invalid argument";
    case cudaErrorMemoryAllocation:           return "out of memory";
    case cudaErrorInvalidConfiguration:       return "invalid configuration argument";
    case cudaErrorInvalidDevice:              return "invalid device ordinal";
    case cudaErrorInvalidResourceHandle:      return "invalid resource handle";
    case cudaErrorPeerAccessAlreadyEnabled:   return "peer access is already enabled";
    case cudaErrorNotReady:                   return "device not ready";
    case cudaErrorHostMemoryAlreadyRegistered: return "part or all of the requested memory range is already mapped";
    case cudaErrorLaunchFailure:              return "unspecified launch failure";
    case cudaErrorHostMemoryNotRegistered:    return "pointer does not correspond to a registered memory region";
    case cudaErrorStreamCaptureUnsupported:   return "operation not permitted when stream is capturing";
    }
    return "an error";
}

static int n_cards(void)
{
    const char *given = getenv("PFMOE_EMULATED_CARDS");
    int n = given ? atoi(given) : 3;
    assert(n > 0 && n <= MOST_CARDS);
    return n;
}

/* The kernels are compiled for CPUs of this level. */
cudaError_t cudaGetDeviceCount(int *n)
{
    *n = (pf_cpu_isa() & PF_ISA_AVX2) != 0 ? n_cards() : 0;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = 12040;
    return cudaSuccess;
}

const struct emu_card *emu_card(void)
{
    return emu_card_of(chosen);
}

cudaError_t cudaGetDevice(int *device)
{
    *device = chosen;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    if (device < 0 || device >= n_cards())
        return fail(cudaErrorInvalidDevice);
    chosen = device;
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    *can = device != peer && !getenv("PFMOE_EMULATED_APART");
    return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    (void)flags;
    return fail(peer == chosen ? cudaErrorInvalidDevice : cudaSuccess);
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device)
{
    const struct emu_card *c = emu_card_of(device);
    *prop = (struct cudaDeviceProp){ .name = "emulated", .totalGlobalMem = c->memory_bytes,
                                     .sharedMemPerBlockOptin = c->shared_bytes, .major = c->capability / 10,
                                     .minor = c->capability % 10, .multiProcessorCount = c->n_units };
    return fail(device >= 0 && device < n_cards() ? cudaSuccess : cudaErrorInvalidDevice);
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    enum { KHZ = 8000000, BITS = 256, SLOWER = 16 };
    const char *slow = getenv("PFMOE_EMULATED_SLOW");                /* the number of a card whose memory is slow */
    switch (attribute) {
    case cudaDevAttrMultiProcessorCount:          *value = emu_card_of(device)->n_units; break;
    case cudaDevAttrMemoryClockRate:              *value = slow && atoi(slow) == device ? KHZ / SLOWER : KHZ; break;
    case cudaDevAttrGlobalMemoryBusWidth:         *value = BITS; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = (int)emu_card_of(device)->shared_bytes; break;
    }
    return fail(device >= 0 && device < n_cards() ? cudaSuccess : cudaErrorInvalidDevice);
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

/* card negative: memory of any. */
static bool lies_in(const struct range *r, int card, const void *p, size_t bytes)
{
    for (; r; r = r->next)
        if ((card < 0 || r->card == card) && (const char *)p >= r->begin &&
            (const char *)p + bytes <= r->begin + r->bytes)
            return true;
    return false;
}

static void add_range(struct range **list, struct range r)
{
    struct range *new = malloc(sizeof *new);
    r.next = *list;
    *new = r;
    *list = new;
}

static bool take_range(struct range **list, const void *p, struct range *out)
{
    for (struct range **r = list; *r; r = &(*r)->next)
        if ((*r)->begin == p) {
            struct range *found = *r;
            *out = *found;
            *r = found->next;
            free(found);
            return true;
        }
    return false;
}

/* Memory whose end is the end of a page, or less than ALIGN before it, with nothing behind. */
static cudaError_t map_memory(struct range **list, void **p, size_t bytes)
{
    size_t rounded = (bytes + ALIGN - 1) / ALIGN * ALIGN, pages = (rounded + PAGE - 1) / PAGE * PAGE;
    char *map = mmap(NULL, pages + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED)
        return fail(cudaErrorMemoryAllocation);
    mprotect(map + pages, PAGE, PROT_NONE);
    *p = map + pages - rounded;
    memset(*p, 0xff, rounded < FILL ? rounded : FILL);
    add_range(list, (struct range){ NULL, chosen, *p, map, bytes, pages + PAGE });
    return cudaSuccess;
}

static cudaError_t unmap_memory(struct range **list, void *p)
{
    struct range r;
    if (!take_range(list, p, &r) || !r.map)
        return fail(cudaErrorInvalidValue);
    munmap(r.map, r.map_bytes);
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    pthread_mutex_lock(&lock);
    *free_bytes = emu_card()->memory_bytes - used[chosen];
    *total_bytes = emu_card()->memory_bytes;
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **p, size_t bytes)
{
    MAY_FAIL(chosen, cudaErrorMemoryAllocation);
    cudaError_t e = cudaErrorMemoryAllocation;
    pthread_mutex_lock(&lock);
    if (bytes <= emu_card()->memory_bytes - used[chosen])
        e = map_memory(&device_memory, p, bytes);
    used[chosen] += e == cudaSuccess ? bytes : 0;
    pthread_mutex_unlock(&lock);
    return fail(e);
}

/* Until all that a card was given has ended. Under the lock. */
static void wait_for_card(int card)
{
    struct emu_stream *s = streams;
    while (s)
        if (s->card == card && s->queue.head) {
            pthread_cond_wait(&settled, &lock);
            s = streams;                 /* another thread may have destroyed one */
        } else {
            s = s->next;
        }
}

static const struct range *range_at(const struct range *r, const void *p)
{
    while (r && r->begin != p)
        r = r->next;
    return r;
}

/* Waits for the whole card, as CUDA does. */
cudaError_t cudaFree(void *p)
{
    cudaError_t e = cudaSuccess;
    pthread_mutex_lock(&lock);
    const struct range *r = p ? range_at(device_memory, p) : NULL;
    if (r) {
        wait_for_card(r->card);
        used[r->card] -= r->bytes;
    }
    if (p)
        e = unmap_memory(&device_memory, p);
    pthread_mutex_unlock(&lock);
    return e;
}

cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned flags)
{
    MAY_FAIL(chosen, cudaErrorMemoryAllocation);
    (void)flags;
    pthread_mutex_lock(&lock);
    cudaError_t e = map_memory(&pinned, p, bytes);
    pthread_mutex_unlock(&lock);
    return e;
}

cudaError_t cudaMallocHost(void **p, size_t bytes)
{
    return cudaHostAlloc(p, bytes, 0);
}

cudaError_t cudaFreeHost(void *p)
{
    pthread_mutex_lock(&lock);
    cudaError_t e = p ? unmap_memory(&pinned, p) : cudaSuccess;
    pthread_mutex_unlock(&lock);
    return e;
}

cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned flags)
{
    (void)flags;
    pthread_mutex_lock(&lock);
    bool found = lies_in(pinned, -1, host, 1);
    pthread_mutex_unlock(&lock);
    *device = host;
    return fail(found ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned flags)
{
    MAY_FAIL(chosen, cudaErrorMemoryAllocation);
    cudaError_t e = cudaSuccess;
    (void)flags;
    pthread_mutex_lock(&lock);
    for (struct range *r = pinned; r; r = r->next)
        if ((char *)p < r->begin + r->bytes && r->begin < (char *)p + bytes)
            e = cudaErrorHostMemoryAlreadyRegistered;
    if (e == cudaSuccess)
        add_range(&pinned, (struct range){ .begin = p, .bytes = bytes });
    pthread_mutex_unlock(&lock);
    return fail(e);
}

int emu_n_live(void)
{
    int n = 0;
    pthread_mutex_lock(&lock);
    for (const struct range *r = device_memory; r; r = r->next)
        n++;
    for (const struct range *r = pinned; r; r = r->next)
        n++;
    pthread_mutex_unlock(&lock);
    return n;
}

cudaError_t cudaHostUnregister(void *p)
{
    struct range r;
    pthread_mutex_lock(&lock);
    bool found = take_range(&pinned, p, &r);
    pthread_mutex_unlock(&lock);
    return fail(found ? cudaSuccess : cudaErrorHostMemoryNotRegistered);
}

/* ---- Tasks ------------------------------------------------------------------------------------------------------- */

static void push(struct queue *q, struct emu_task *t)
{
    t->next = NULL;
    if (q->tail)
        q->tail->next = t;
    else
        q->head = t;
    q->tail = t;
}

static struct emu_task *pop(struct queue *q)
{
    struct emu_task *t = q->head;
    q->head = t->next;
    if (!q->head)
        q->tail = NULL;
    return t;
}

static void drop_task(struct emu_task *t)
{
    if (t->kind == TASK_KERNEL && !t->of_graph)
        t->kernel.drop(t->kernel.args);
    free(t);
}

static void stall(void *ctx)
{
    struct runner *r = ctx;
    pthread_mutex_lock(&lock);
    r->state = RUNNER_STALLED;
    pthread_cond_signal(&r->stream->runner_said);
    while (r->state != RUNNER_TURN)
        pthread_cond_wait(&r->told, &lock);
    pthread_mutex_unlock(&lock);
}

static void *runner_main(void *ctx)
{
    struct runner *r = ctx;
    pthread_mutex_lock(&lock);
    while (r->state != RUNNER_LEAVE) {
        if (r->state != RUNNER_BEGUN) {
            pthread_cond_wait(&r->told, &lock);
            continue;
        }
        pthread_mutex_unlock(&lock);
        emu_run(r->kernel, stall, r);
        pthread_mutex_lock(&lock);
        r->state = RUNNER_DONE;
        pthread_cond_signal(&r->stream->runner_said);
    }
    pthread_mutex_unlock(&lock);
    emu_run_end();
    return NULL;
}

/* Lets a runner go on from one state to another, and waits until it has come to that. Under the lock. */
static void let_run(struct emu_stream *s, struct runner *r, int from, int until)
{
    r->state = from;
    pthread_cond_signal(&r->told);
    while ((int)r->state != until)
        pthread_cond_wait(&s->runner_said, &lock);
}

static void begin_kernel(struct emu_stream *s, struct runner *r, const struct emu_kernel *k)
{
    r->kernel = k;
    if (r->state == RUNNER_NONE) {
        r->stream = s;
        pthread_cond_init(&r->told, NULL);
        pthread_create(&r->thread, NULL, runner_main, r);
    }
    let_run(s, r, RUNNER_BEGUN, RUNNER_STALLED);
}

/* The task at the head of the queue, which is a kernel; the one behind it begins, if it may. Under the lock. */
static void run_kernel(struct emu_stream *s, const struct emu_task *t)
{
    struct runner *mine = &s->runner[s->runner[1].kernel == &t->kernel], *other = &s->runner[mine == s->runner];
    const struct emu_task *next = t->next;
    if (mine->kernel != &t->kernel)
        begin_kernel(s, mine, &t->kernel);
    if (t->kernel.is_early && next && next->kind == TASK_KERNEL && next->kernel.is_early)
        begin_kernel(s, other, &next->kernel);
    let_run(s, mine, RUNNER_TURN, RUNNER_DONE);
    mine->kernel = NULL;
}

/* What reads the target of a copy between cards before it has arrived reads NaNs. */
static void delay(const struct emu_task *t)
{
    enum { WAIT_NS = 50000 };
    memset(t->copy.to, 0xff, t->copy.width);
    nanosleep(&(struct timespec){ 0, WAIT_NS }, NULL);
}

static void run_copy(const struct emu_task *t)
{
    for (size_t i = 0; i < t->copy.height; i++)
        memmove(t->copy.to + i * t->copy.to_pitch, t->copy.from + i * t->copy.from_pitch, t->copy.width);
}

/* What a lost card was to hand to another one: nobody says what arrives. Positions that are none would lead the other
 * card out of its memory, which here ends the process; zeros do not, and are harder to tell from what is right. */
static void lack_copy(const struct emu_task *t)
{
    for (size_t i = 0; t->kind == TASK_PASS && i < t->copy.height; i++)
        memset(t->copy.to + i * t->copy.to_pitch, 0, t->copy.width);
}

/* Under the lock, which is let go for what takes time. Of what a lost card was given, a kernel that has begun ends, and
 * nothing else is done; who waits for its events waits no more. */
static void run_task(struct emu_stream *s, struct emu_task *t)
{
    struct emu_event *e = t->mark.event;
    bool has_begun = s->runner[0].kernel == &t->kernel || s->runner[1].kernel == &t->kernel;
    bool marks = t->kind == TASK_RECORD || t->kind == TASK_WAIT;
    if (has_lost(s->card) && !marks && !has_begun) {
        lack_copy(t);
        return;
    }
    switch (t->kind) {
    case TASK_KERNEL:
        run_kernel(s, t);
        break;
    case TASK_RECORD:
        e->n_done = t->mark.n;
        e->ms = (double)emu_ns() * 1e-6;
        break;
    case TASK_WAIT:
        while (e->n_done < t->mark.n)
            pthread_cond_wait(&settled, &lock);
        break;
    case TASK_CALL:
        pthread_mutex_unlock(&lock);
        t->call.fn(t->call.ctx);
        pthread_mutex_lock(&lock);
        break;
    case TASK_COPY:
    case TASK_PASS:
    case TASK_FILL:
        pthread_mutex_unlock(&lock);
        if (t->kind == TASK_PASS)
            delay(t);
        if (t->kind == TASK_FILL)
            memset(t->fill.to, t->fill.value, t->fill.bytes);
        else
            run_copy(t);
        pthread_mutex_lock(&lock);
    }
}

/* With PFMOE_EMULATED_DELAYS=N a stream waits before some tasks, for N us at most, so that cards come to what they
 * exchange in all orders. Under the lock, which is let go. */
static void dawdle(struct emu_stream *s)
{
    enum { ONE_IN = 16 };
    s->random = s->random * 1664525u + 1013904223u;
    if (s->delays_us == 0 || s->random >> 16 & (ONE_IN - 1))
        return;
    pthread_mutex_unlock(&lock);
    nanosleep(&(struct timespec){ 0, (long)((s->random >> 20) % s->delays_us) * 1000 }, NULL);
    pthread_mutex_lock(&lock);
}

static void *stream_main(void *ctx)
{
    struct emu_stream *s = ctx;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (!s->queue.head && !s->leave)
            pthread_cond_wait(&s->work, &lock);
        if (!s->queue.head)
            break;
        dawdle(s);
        run_task(s, s->queue.head);
        drop_task(pop(&s->queue));
        pthread_cond_broadcast(&settled);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

/* ---- Streams ----------------------------------------------------------------------------------------------------- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *st, unsigned flags)
{
    MAY_FAIL(chosen, cudaErrorMemoryAllocation);
    struct emu_stream *s = calloc(1, sizeof *s);
    (void)flags;
    const char *delays = getenv("PFMOE_EMULATED_DELAYS");
    s->card = chosen;
    s->delays_us = delays ? (unsigned)atoi(delays) : 0;
    s->random = (unsigned)emu_ns();
    pthread_cond_init(&s->work, NULL);
    pthread_cond_init(&s->runner_said, NULL);
    if (pthread_create(&s->thread, NULL, stream_main, s) != 0) {
        free(s);
        return fail(cudaErrorMemoryAllocation);
    }
    pthread_mutex_lock(&lock);
    s->next = streams;
    streams = s;
    pthread_mutex_unlock(&lock);
    *st = s;
    return cudaSuccess;
}

static struct emu_stream *stream_of(cudaStream_t st)
{
    if (!st && !default_stream)
        cudaStreamCreateWithFlags(&default_stream, 0);
    return st ? st : default_stream;
}

/* Takes a copy of the task. */
static void enqueue(cudaStream_t st, struct emu_task task)
{
    struct emu_stream *s = stream_of(st);
    struct emu_task *t = malloc(sizeof *t);
    *t = task;
    t->stream = s;
    pthread_mutex_lock(&lock);
    if (s->capture) {
        push(&s->capture->tasks, t);
        s->capture->n++;
    } else {
        push(&s->queue, t);
        pthread_cond_signal(&s->work);
    }
    pthread_mutex_unlock(&lock);
}

/* What a thread that captures may not ask. */
static cudaError_t check_captures(void)
{
    return fail(n_captures > 0 ? cudaErrorStreamCaptureUnsupported : cudaSuccess);
}

/* Whoever asks again and again would take a processor from the threads that are the GPU. */
cudaError_t cudaStreamQuery(cudaStream_t st)
{
    static const struct timespec a_while = { 0, 20000 };
    struct emu_stream *s = stream_of(st);
    if (check_captures() != cudaSuccess)
        return cudaErrorStreamCaptureUnsupported;
    pthread_mutex_lock(&lock);
    bool empty = !s->queue.head;
    pthread_mutex_unlock(&lock);
    if (empty)
        return fault(s->card, cudaErrorLaunchFailure);
    nanosleep(&a_while, NULL);
    return cudaErrorNotReady;
}

cudaError_t cudaStreamSynchronize(cudaStream_t st)
{
    struct emu_stream *s = stream_of(st);
    pthread_mutex_lock(&lock);
    while (s->queue.head)
        pthread_cond_wait(&settled, &lock);
    pthread_mutex_unlock(&lock);
    return fault(s->card, cudaErrorLaunchFailure);
}

static void end_runner(struct runner *r)
{
    if (r->state == RUNNER_NONE)
        return;
    pthread_mutex_lock(&lock);
    r->state = RUNNER_LEAVE;
    pthread_cond_signal(&r->told);
    pthread_mutex_unlock(&lock);
    pthread_join(r->thread, NULL);
    pthread_cond_destroy(&r->told);
}

cudaError_t cudaStreamDestroy(cudaStream_t st)
{
    cudaStreamSynchronize(st);
    pthread_mutex_lock(&lock);
    struct emu_stream **at = &streams;
    while (*at != st)
        at = &(*at)->next;
    *at = st->next;
    st->leave = true;
    pthread_cond_signal(&st->work);
    pthread_mutex_unlock(&lock);
    pthread_join(st->thread, NULL);
    end_runner(&st->runner[0]);
    end_runner(&st->runner[1]);
    pthread_cond_destroy(&st->work);
    pthread_cond_destroy(&st->runner_said);
    free(st);
    return cudaSuccess;
}

/* Shared memory that blocks of a kernel may have on the chosen card. Under the lock. */
static size_t *allowed(const void *function)
{
    int i = 0;
    while (asked[chosen][i].function && asked[chosen][i].function != function)
        i++;
    assert(i < N_KERNELS - 1);
    if (!asked[chosen][i].function)
        asked[chosen][i].bytes = EMU_SHARED_UNASKED;
    asked[chosen][i].function = function;
    return &asked[chosen][i].bytes;
}

/* As on a GPU, what is set last holds, whichever thread set it, and for less than a block has unasked, too. Other
 * threads get the time to set something else. */
cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute attribute, int value)
{
    (void)attribute;
    if (value < 0 || (size_t)value > emu_card()->shared_bytes)
        return fail(cudaErrorInvalidValue);
    pthread_mutex_lock(&lock);
    *allowed(function) = (size_t)value;
    pthread_mutex_unlock(&lock);
    nanosleep(&(struct timespec){ .tv_nsec = 20000 }, NULL);
    return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *of, const void *function)
{
    of->ptxVersion = emu_card()->capability;
    pthread_mutex_lock(&lock);
    of->maxDynamicSharedSizeBytes = (int)*allowed(function);
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

/* False for a launch that a GPU would refuse. */
static bool may_launch(const cudaLaunchConfig_t *c, int cluster, const void *function)
{
    unsigned threads = c->blockDim.x * c->blockDim.y * c->blockDim.z;
    pthread_mutex_lock(&lock);
    size_t most = *allowed(function);
    pthread_mutex_unlock(&lock);
    return threads >= 1 && threads <= EMU_THREADS && c->gridDim.x >= 1 && c->gridDim.x <= 0x7fffffffu &&
           c->gridDim.y >= 1 && c->gridDim.y <= 65535 && c->gridDim.z >= 1 && c->gridDim.z <= 65535 &&
           cluster >= 1 && c->gridDim.x % (unsigned)cluster == 0 && c->dynamicSmemBytes <= most;
}

cudaError_t emu_launch(const cudaLaunchConfig_t *c, const void *function, struct emu_kernel k)
{
    k.cluster = 1;
    for (unsigned i = 0; i < c->numAttrs; i++)
        if (c->attrs[i].id == cudaLaunchAttributeClusterDimension)
            k.cluster = (int)c->attrs[i].val.clusterDim.x;
        else
            k.is_early = true;
    if (stream_of(c->stream)->card != chosen) {
        k.drop(k.args);
        return fail(cudaErrorInvalidResourceHandle);
    }
    bool is_new = k.is_early || k.cluster > 1;
    if (!may_launch(c, k.cluster, function) || (is_new && emu_card()->capability < 90)) {
        k.drop(k.args);
        return fail(cudaErrorInvalidConfiguration);
    }
    cudaError_t e = fault(stream_of(c->stream)->card, cudaErrorLaunchFailure);
    if (e != cudaSuccess) {
        k.drop(k.args);
        return e;
    }
    k.grid = (struct emu_index){ c->gridDim.x, c->gridDim.y, c->gridDim.z };
    k.block = (struct emu_index){ c->blockDim.x, c->blockDim.y, c->blockDim.z };
    k.shared_bytes = c->dynamicSmemBytes;
    enqueue(c->stream, (struct emu_task){ .kind = TASK_KERNEL, .kernel = k });
    return cudaSuccess;
}

/* ---- Copies ------------------------------------------------------------------------------------------------------ */

static bool is_of(struct range *const *list, int card, const void *p, size_t bytes)
{
    pthread_mutex_lock(&lock);
    bool found = lies_in(*list, card, p, bytes);
    pthread_mutex_unlock(&lock);
    return found;
}

/* Whether memory of the host is pinned in part: no copy may go there in one call. */
static bool leaves_pinned(const void *p, size_t bytes)
{
    const char *begin = p, *end = begin + bytes;
    bool leaves = false;
    pthread_mutex_lock(&lock);
    for (const struct range *r = pinned; r && !leaves; r = r->next)
        leaves = begin < r->begin + r->bytes && r->begin < end && !lies_in(pinned, -1, p, bytes);
    pthread_mutex_unlock(&lock);
    return leaves;
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, enum cudaMemcpyKind kind, cudaStream_t st)
{
    MAY_FAIL(stream_of(st)->card, cudaErrorLaunchFailure);
    size_t to_bytes = height ? (height - 1) * to_pitch + width : 0;
    size_t from_bytes = height ? (height - 1) * from_pitch + width : 0;
    bool to_host = kind == cudaMemcpyDeviceToHost, from_host = kind == cudaMemcpyHostToDevice;
    int card = stream_of(st)->card;
    if ((!to_host && !is_of(&device_memory, card, to, to_bytes)) ||
        (!from_host && !is_of(&device_memory, card, from, from_bytes)))
        return fail(cudaErrorInvalidValue);
    if ((to_host && leaves_pinned(to, to_bytes)) || (from_host && leaves_pinned(from, from_bytes)))
        return fail(cudaErrorInvalidValue);
    enqueue(st, (struct emu_task){ .kind = TASK_COPY, .copy = { to, from, to_pitch, from_pitch, width, height } });
    if ((to_host && !is_of(&pinned, -1, to, to_bytes)) || (from_host && !is_of(&pinned, -1, from, from_bytes)))
        return cudaStreamSynchronize(st);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t st)
{
    return cudaMemcpy2DAsync(to, bytes, from, bytes, bytes, 1, kind, st);
}

cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t bytes,
                                cudaStream_t st)
{
    cudaError_t e = fault_of(to_device, from_device, cudaErrorLaunchFailure);
    if (e != cudaSuccess)
        return e;
    if (!is_of(&device_memory, to_device, to, bytes) || !is_of(&device_memory, from_device, from, bytes))
        return fail(cudaErrorInvalidValue);
    enqueue(st, (struct emu_task){ .kind = TASK_PASS, .copy = { to, from, bytes, bytes, bytes, 1 } });
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    cudaError_t e = cudaMemcpyAsync(to, from, bytes, kind, NULL);
    return e == cudaSuccess ? cudaStreamSynchronize(NULL) : e;
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t st)
{
    MAY_FAIL(stream_of(st)->card, cudaErrorLaunchFailure);
    if (!is_of(&device_memory, stream_of(st)->card, p, bytes) && !is_of(&pinned, -1, p, bytes))
        return fail(cudaErrorInvalidValue);
    enqueue(st, (struct emu_task){ .kind = TASK_FILL, .fill = { p, value, bytes } });
    return cudaSuccess;
}

cudaError_t cudaMemset(void *p, int value, size_t bytes)
{
    cudaError_t e = cudaMemsetAsync(p, value, bytes, NULL);
    return e == cudaSuccess ? cudaStreamSynchronize(NULL) : e;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t st, void (*fn)(void *ctx), void *ctx)
{
    MAY_FAIL(stream_of(st)->card, cudaErrorLaunchFailure);
    enqueue(st, (struct emu_task){ .kind = TASK_CALL, .call = { fn, ctx } });
    return cudaSuccess;
}

/* ---- Events ------------------------------------------------------------------------------------------------------ */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags)
{
    MAY_FAIL(chosen, cudaErrorMemoryAllocation);
    (void)flags;
    *e = calloc(1, sizeof **e);
    if (!*e)
        return fail(cudaErrorMemoryAllocation);
    (*e)->card = chosen;
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *e)
{
    return cudaEventCreateWithFlags(e, 0);
}

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    cudaEventSynchronize(e);
    free(e);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t st)
{
    MAY_FAIL(stream_of(st)->card, cudaErrorLaunchFailure);
    if (e->card != stream_of(st)->card)
        return fail(cudaErrorInvalidResourceHandle);
    pthread_mutex_lock(&lock);
    e->capture = stream_of(st)->capture;
    uint64_t n = e->capture ? 0 : ++e->n_recorded;
    pthread_mutex_unlock(&lock);
    enqueue(st, (struct emu_task){ .kind = TASK_RECORD, .mark = { e, n } });
    return cudaSuccess;
}

/* What waits for captured work is captured with it. Under the lock. */
static void join(struct emu_graph *g, struct emu_stream *s)
{
    s->capture = g;
    g->joined[g->n_joined++] = s;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t st, cudaEvent_t e, unsigned flags)
{
    (void)flags;
    cudaError_t failed = fault_of(stream_of(st)->card, e->card, cudaErrorLaunchFailure);
    if (failed != cudaSuccess)
        return failed;
    pthread_mutex_lock(&lock);
    uint64_t n = e->n_recorded;
    if (e->capture && !stream_of(st)->capture)
        join(e->capture, stream_of(st));
    pthread_mutex_unlock(&lock);
    enqueue(st, (struct emu_task){ .kind = TASK_WAIT, .mark = { e, n } });
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t e)
{
    if (check_captures() != cudaSuccess)
        return cudaErrorStreamCaptureUnsupported;
    pthread_mutex_lock(&lock);
    bool done = e->n_done == e->n_recorded;
    pthread_mutex_unlock(&lock);
    return done ? fault(e->card, cudaErrorLaunchFailure) : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    pthread_mutex_lock(&lock);
    while (e->n_done < e->n_recorded)
        pthread_cond_wait(&settled, &lock);
    pthread_mutex_unlock(&lock);
    return fault(e->card, cudaErrorLaunchFailure);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end)
{
    MAY_FAIL(begin->card, cudaErrorLaunchFailure);
    cudaError_t e = cudaEventQuery(begin);
    if (e == cudaSuccess)
        e = cudaEventQuery(end);
    if (e == cudaSuccess)
        *ms = (float)(end->ms - begin->ms);
    return e;
}

/* ---- Graphs ------------------------------------------------------------------------------------------------------ */

cudaError_t cudaStreamBeginCapture(cudaStream_t st, enum cudaStreamCaptureMode mode)
{
    MAY_FAIL(stream_of(st)->card, cudaErrorLaunchFailure);
    (void)mode;
    pthread_mutex_lock(&lock);
    st->capture = calloc(1, sizeof *st->capture);
    st->capture->n_owners = 1;
    n_captures++;
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t st, cudaGraph_t *graph)
{
    pthread_mutex_lock(&lock);
    *graph = st->capture;
    for (int i = 0; i < st->capture->n_joined; i++)
        st->capture->joined[i]->capture = NULL;
    st->capture = NULL;
    n_captures--;
    pthread_mutex_unlock(&lock);
    cudaError_t e = fault(stream_of(st)->card, cudaErrorLaunchFailure);
    if (e != cudaSuccess) {
        cudaGraphDestroy(*graph);
        *graph = NULL;
    }
    return e;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *n)
{
    (void)nodes;
    *n = graph->n;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags)
{
    MAY_FAIL(chosen, cudaErrorLaunchFailure);
    (void)flags;
    graph->n_owners++;
    *exec = graph;
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t st)
{
    MAY_FAIL(stream_of(st)->card, cudaErrorLaunchFailure);
    for (int i = 0; i < exec->n_joined; i++)
        MAY_FAIL(exec->joined[i]->card, cudaErrorLaunchFailure);
    for (const struct emu_task *t = exec->tasks.head; t; t = t->next) {
        struct emu_task copy = *t;
        bool marks = t->kind == TASK_RECORD || t->kind == TASK_WAIT;
        copy.of_graph = true;
        pthread_mutex_lock(&lock);
        if (marks) {                     /* each launch has its own */
            copy.mark.event->n_recorded += t->kind == TASK_RECORD;
            copy.mark.event->capture = NULL;
            copy.mark.n = copy.mark.event->n_recorded;
        }
        pthread_mutex_unlock(&lock);
        enqueue(exec->n_joined ? t->stream : st, copy);
    }
    return cudaSuccess;
}

bool emu_keep(cudaStream_t st, void (*drop)(void *ctx), void *ctx)
{
    struct kept *k = malloc(sizeof *k);
    pthread_mutex_lock(&lock);
    struct emu_graph *g = stream_of(st)->capture;
    *k = (struct kept){ g ? g->kept : NULL, drop, ctx };
    if (g)
        g->kept = k;
    pthread_mutex_unlock(&lock);
    if (!g)
        free(k);
    return g != NULL;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    if (--graph->n_owners > 0)
        return cudaSuccess;
    while (graph->tasks.head)
        drop_task(pop(&graph->tasks));
    for (struct kept *k = graph->kept, *next; k; k = next) {
        next = k->next;
        k->drop(k->ctx);
        free(k);
    }
    free(graph);
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    return cudaGraphDestroy(exec);
}
