/* Stands in for NCCL: a library of its name with the functions that pfmoe uses (kernels/cuda/nccl.h), between processes
 * on emulated GPUs. Processes meet at NCCL_COMM_ID; bytes go over sockets, each communicator having one for every pair.
 * As with NCCL, calls return at once, operations run on their streams in order, and one whose peer is gone never ends
 * until its communicator is aborted; and aborting frees memory of the GPU, so that it waits for all that the GPU does,
 * and before for the end of all graphs that operations were captured in. An operation of a graph has to be one in all
 * ranks.
 *
 * PFMOE_STANDIN has words with spaces between:
 *     late         each operation waits a random while
 *     mute         a peer that is gone is not noticed (shared memory); otherwise the communicator fails (a network)
 *     fail=K:N     operation number N of rank K fails
 *     die=K:N      at operation number N rank K ends
 *     stop=K:N     at operation number N rank K stops, as a machine without power does for others
 * Operations and splits are counted when they are asked for, those of graphs when they run, but not heartbeats, which
 * are gathers of one byte. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { SUCCESS = 0, SYSTEM_ERROR = 2, REMOTE_ERROR = 6, IN_PROGRESS = 7 };
enum { MOST_RANKS = 8, MESHES = 3, ROOM_BYTES = 256, NAP_NS = 1000000, VERSION = 21801 };

struct nccl_id {
    char bytes[128];
};

struct comm {
    int          n, rank;
    int          fd[MESHES][MOST_RANKS];     /* of a communicator that was split off, the first alone */
    int          n_split;                    /* of this one */
    void        *room;                       /* of the GPU */
    atomic_int   state, under_way, captured;
    atomic_bool  aborted;
};

struct op {
    enum { SEND, RECEIVE, BROADCAST, GATHER } kind;
    struct comm *c;
    const char  *from;
    char        *to;
    size_t       n;
    int          peer;
    bool         of_graph;
};

#pragma GCC visibility push(default)
int ncclGetVersion(int *version);
int ncclGetUniqueId(struct nccl_id *id);
int ncclCommInitRankConfig(struct comm **out, int n, struct nccl_id id, int rank, void *config);
int ncclCommSplit(struct comm *c, int colour, int key, struct comm **out, void *config);
int ncclCommGetAsyncError(struct comm *c, int *state);
int ncclCommAbort(struct comm *c);
int ncclBroadcast(const void *from, void *to, size_t n, int type, int root, struct comm *c, void *stream);
int ncclAllGather(const void *from, void *to, size_t n, int type, struct comm *c, void *stream);
int ncclSend(const void *from, size_t n, int type, int to, struct comm *c, void *stream);
int ncclRecv(void *to, size_t n, int type, int from, struct comm *c, void *stream);
const char *ncclGetErrorString(int result);
const char *ncclGetLastError(struct comm *c);
#pragma GCC visibility pop

/* The program's. */
extern int cudaLaunchHostFunc(void *stream, void (*fn)(void *ctx), void *ctx);
extern int cudaMalloc(void **p, size_t bytes);
extern int cudaFree(void *p);
extern bool emu_keep(void *stream, void (*drop)(void *ctx), void *ctx);

/* ---- What is asked for ------------------------------------------------------------------------------------------- */

static const char *wish(const char *name)
{
    const char *all = getenv("PFMOE_STANDIN"), *at = all ? strstr(all, name) : NULL;
    return at ? at + strlen(name) : NULL;
}

static bool is_turn(const char *name, const struct comm *c, int n)
{
    int rank, number;
    const char *how = wish(name);
    return how && sscanf(how, "%d:%d", &rank, &number) == 2 && rank == c->rank && number == n;
}

static void nap(long ns)
{
    nanosleep(&(struct timespec){ 0, ns }, NULL);
}

/* ---- Meeting ----------------------------------------------------------------------------------------------------- */

static bool move(struct comm *c, int fd, void *bytes, size_t n, bool writes)
{
    char *p = bytes;
    while (n > 0) {
        ssize_t done = writes ? send(fd, p, n, MSG_NOSIGNAL) : recv(fd, p, n, 0);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0 || atomic_load(&c->aborted))
            return false;
        p += done;
        n -= (size_t)done;
    }
    return true;
}

static int listen_at(int port, int *found)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t size = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), yes = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(fd, (struct sockaddr *)&a, sizeof a) < 0 || listen(fd, MOST_RANKS * MESHES) < 0 ||
        getsockname(fd, (struct sockaddr *)&a, &size) < 0) {
        close(fd);
        return -1;
    }
    *found = ntohs(a.sin_port);
    return fd;
}

static int call(struct comm *c, int port, int mesh)
{
    enum { TRIES = 20000 };
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    int hello[2] = { c->rank, mesh }, yes = 1;
    for (int i = 0; i < TRIES && !atomic_load(&c->aborted); i++) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(fd, (struct sockaddr *)&a, sizeof a) == 0) {
            setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
            if (move(c, fd, hello, sizeof hello, true))
                return fd;
        }
        close(fd);
        nap(NAP_NS);
    }
    return -1;
}

static bool take_calls(struct comm *c, int listening, int n)
{
    int hello[2], yes = 1;
    for (int i = 0; i < n; i++) {
        int fd = accept4(listening, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0 || !move(c, fd, hello, sizeof hello, false))
            return false;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        c->fd[hello[1]][hello[0]] = fd;
    }
    return true;
}

static bool call_rank(struct comm *c, int rank, int port)
{
    for (int mesh = 0; mesh < MESHES; mesh++)
        if ((c->fd[mesh][rank] = call(c, port, mesh)) < 0)
            return false;
    return true;
}

/* Rank 0 is called by all and learns where each listens; then each calls those in front of it. */
static bool meet(struct comm *c)
{
    int ports[MOST_RANKS] = { 0 }, port = 0, listening;
    const char *at = getenv("NCCL_COMM_ID"), *colon = at ? strrchr(at, ':') : NULL;
    if (!colon || c->n > MOST_RANKS)
        return false;
    listening = listen_at(c->rank == 0 ? atoi(colon + 1) : 0, &port);
    bool ok = listening >= 0;
    if (c->rank > 0) {
        ok = ok && call_rank(c, 0, atoi(colon + 1)) && move(c, c->fd[0][0], &port, sizeof port, true) &&
             move(c, c->fd[0][0], ports, sizeof ports, false);
        for (int k = 1; ok && k < c->rank; k++)
            ok = call_rank(c, k, ports[k]);
        ok = ok && take_calls(c, listening, (c->n - 1 - c->rank) * MESHES);
    } else {
        ok = ok && take_calls(c, listening, (c->n - 1) * MESHES);
        for (int k = 1; ok && k < c->n; k++)
            ok = move(c, c->fd[0][k], &ports[k], sizeof port, false);
        for (int k = 1; ok && k < c->n; k++)
            ok = move(c, c->fd[0][k], ports, sizeof ports, true);
    }
    close(listening);
    return ok;
}

static void *meet_main(void *ctx)
{
    struct comm *c = ctx;
    atomic_store(&c->state, meet(c) ? SUCCESS : SYSTEM_ERROR);
    return NULL;
}

int ncclGetVersion(int *version)
{
    *version = VERSION;
    return SUCCESS;
}

int ncclGetUniqueId(struct nccl_id *id)
{
    memset(id, 0, sizeof *id);
    return SUCCESS;
}

int ncclCommInitRankConfig(struct comm **out, int n, struct nccl_id id, int rank, void *config)
{
    struct comm *c = calloc(1, sizeof *c);
    pthread_t thread;
    (void)id, (void)config;
    c->n = n;
    c->rank = rank;
    memset(c->fd, -1, sizeof c->fd);
    atomic_store(&c->state, IN_PROGRESS);
    cudaMalloc(&c->room, ROOM_BYTES);
    *out = c;
    pthread_create(&thread, NULL, meet_main, c);
    pthread_detach(thread);
    return IN_PROGRESS;
}

int ncclCommGetAsyncError(struct comm *c, int *state)
{
    *state = atomic_load(&c->state);
    return SUCCESS;
}

/* The communicator stays allocated: threads may have to learn that it was aborted. */
int ncclCommAbort(struct comm *c)
{
    atomic_store(&c->aborted, true);
    for (int k = 0; k < c->n; k++)
        if (k != c->rank && c->fd[0][k] >= 0)
            shutdown(c->fd[0][k], SHUT_RDWR);
    while (atomic_load(&c->under_way) + atomic_load(&c->captured) > 0)
        nap(NAP_NS);
    cudaFree(c->room);
    return SUCCESS;
}

const char *ncclGetErrorString(int result)
{
    return result == REMOTE_ERROR ? "remote process exited or there was a network error" : "a system call failed";
}

const char *ncclGetLastError(struct comm *c)
{
    (void)c;
    return "";
}

/* ---- Operations -------------------------------------------------------------------------------------------------- */

/* move, of an operation's bytes: in front of them stands whether it is one of a graph. */
static bool pass(const struct op *o, int k, void *bytes, size_t n, bool writes)
{
    struct comm *c = o->c;
    char here = o->of_graph, there = here;
    if (!move(c, c->fd[0][k], &there, 1, writes))
        return false;
    if (there != here) {
        fprintf(stderr, "an operation is one of a graph on rank %d, and not on rank %d\n", here ? c->rank : k,
                here ? k : c->rank);
        abort();
    }
    return move(c, c->fd[0][k], bytes, n, writes);
}

/* Every rank has n bytes of each at all. Pairs take turns in an order that all agree on, so that no two send to each
 * other what neither has room for. */
static bool gather(const struct op *o, char *all, size_t n)
{
    const struct comm *c = o->c;
    bool ok = true;
    for (int k = 0; ok && k < c->n; k++) {
        char *mine = all + (size_t)c->rank * n, *theirs = all + (size_t)k * n;
        if (k != c->rank)
            ok = c->rank < k ? pass(o, k, mine, n, true) && pass(o, k, theirs, n, false)
                             : pass(o, k, theirs, n, false) && pass(o, k, mine, n, true);
    }
    return ok;
}

static bool run(const struct op *o)
{
    struct comm *c = o->c;
    bool ok = true;
    char *from = o->to;
    if (o->from && o->from != o->to && o->kind != SEND)
        memmove(o->to + (o->kind == GATHER ? (size_t)c->rank * o->n : 0), o->from, o->n);
    switch (o->kind) {
    case SEND:
    case RECEIVE:
        return pass(o, o->peer, o->to, o->n, o->kind == SEND);
    case BROADCAST:
        for (int k = 0; ok && c->rank == o->peer && k < c->n; k++)
            ok = k == c->rank || pass(o, k, from, o->n, true);
        return c->rank == o->peer ? ok : pass(o, o->peer, o->to, o->n, false);
    case GATHER:
        return gather(o, from, o->n);
    }
    return ok;
}

/* What is to happen at the next operation. */
static int take_turn(const struct comm *c)
{
    static atomic_int number;
    int n = atomic_fetch_add(&number, 1) + 1;
    if (is_turn("die=", c, n))
        raise(SIGKILL);
    if (is_turn("stop=", c, n))
        raise(SIGSTOP);
    return is_turn("fail=", c, n) ? SYSTEM_ERROR : SUCCESS;
}

static bool is_beat(const struct op *o)
{
    return o->kind == GATHER && o->n == 1;
}

static void run_op(void *ctx)
{
    struct op *o = ctx;
    struct comm *c = o->c;
    unsigned seed = (unsigned)time(NULL) ^ (unsigned)getpid();
    bool fails = o->of_graph && take_turn(c) != SUCCESS;
    if (o->of_graph)
        atomic_fetch_add(&c->under_way, 1);
    if (wish("late"))
        nap(rand_r(&seed) % NAP_NS);
    if (!atomic_load(&c->aborted) && (fails || !run(o))) {
        if (fails || !wish("mute"))
            atomic_store(&c->state, fails ? SYSTEM_ERROR : REMOTE_ERROR);
        while (!atomic_load(&c->aborted))
            nap(NAP_NS);
    }
    atomic_fetch_sub(&c->under_way, 1);
    if (!o->of_graph)
        free(o);
}

static void drop_op(void *ctx)
{
    struct op *o = ctx;
    atomic_fetch_sub(&o->c->captured, 1);
    free(o);
}

static int ask(struct op what, void *stream)
{
    struct comm *c = what.c;
    struct op *o = malloc(sizeof *o);
    *o = what;
    o->of_graph = emu_keep(stream, drop_op, o);
    if (!o->of_graph && !is_beat(o) && take_turn(c) != SUCCESS) {
        free(o);
        return SYSTEM_ERROR;
    }
    atomic_fetch_add(o->of_graph ? &c->captured : &c->under_way, 1);
    return cudaLaunchHostFunc(stream, run_op, o) == 0 ? SUCCESS : SYSTEM_ERROR;
}

/* All split before any has its part. */
static void *split_main(void *ctx)
{
    struct comm *c = ctx;
    char seen[MOST_RANKS] = "";
    if (gather(&(struct op){ .c = c }, seen, 1))
        atomic_store(&c->state, SUCCESS);
    else if (!wish("mute"))
        atomic_store(&c->state, REMOTE_ERROR);
    atomic_fetch_sub(&c->under_way, 1);
    return NULL;
}

int ncclCommSplit(struct comm *c, int colour, int key, struct comm **out, void *config)
{
    pthread_t thread;
    (void)colour, (void)config;
    if (take_turn(c) != SUCCESS || ++c->n_split == MESHES)
        return SYSTEM_ERROR;
    struct comm *part = calloc(1, sizeof *part);
    part->n = c->n;
    part->rank = key;
    memcpy(part->fd[0], c->fd[c->n_split], sizeof part->fd[0]);
    atomic_store(&part->state, IN_PROGRESS);
    atomic_store(&part->under_way, 1);
    cudaMalloc(&part->room, ROOM_BYTES);
    *out = part;
    pthread_create(&thread, NULL, split_main, part);
    pthread_detach(thread);
    return IN_PROGRESS;
}

int ncclBroadcast(const void *from, void *to, size_t n, int type, int root, struct comm *c, void *stream)
{
    (void)type;
    return ask((struct op){ BROADCAST, c, c->rank == root ? from : NULL, to, n, root, false }, stream);
}

int ncclAllGather(const void *from, void *to, size_t n, int type, struct comm *c, void *stream)
{
    (void)type;
    return ask((struct op){ GATHER, c, from, to, n, 0, false }, stream);
}

int ncclSend(const void *from, size_t n, int type, int to, struct comm *c, void *stream)
{
    union { const void *given; void *to; } bytes = { .given = from };
    (void)type;
    return ask((struct op){ SEND, c, from, bytes.to, n, to, false }, stream);
}

int ncclRecv(void *to, size_t n, int type, int from, struct comm *c, void *stream)
{
    (void)type;
    return ask((struct op){ RECEIVE, c, NULL, to, n, from, false }, stream);
}
