/* Noticing that a rank is lost: cuda_ranks.h.
 *
 *     a process of this machine    ends: the system says so, at once
 *     the transport                fails: NCCL says so, to whoever asks, and to the heart
 *     anything else                the heart has had no answer for LIMIT_NS
 *
 * The heart gathers a byte of all ranks every second, by a small communicator and a stream of its own. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/pf_thread.h"
#include "base/pf_time.h"
#include "kernels/cuda/cuda_ranks.h"

static const uint64_t SECOND_NS = 1000000000, BEAT_NS = 1000000000, LIMIT_NS = 10000000000, GRACE_NS = 2000000000;
static const long NAP_NS = 1000000;
enum { LOOK_MS = 100 };

/* ---- Ending ------------------------------------------------------------------------------------------------------ */

/* Somebody in the line who is stuck there is ended by the abort alone. */
static void *end_line(void *ctx)
{
    struct line *l = ctx;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec++;
    bool alone = pthread_mutex_timedlock(&l->lock, &until) == 0;
    atomic_store(&l->has_ended, true);
    if (alone)
        pthread_mutex_unlock(&l->lock);
    if (l->comm)
        l->nccl->comm_abort(l->comm);
    return NULL;
}

void pf_ranks_end(struct pf_ranks *r)
{
    struct line *lines[] = { &r->floats, &r->talk, &r->beat };
    if (atomic_exchange(&r->is_ending, true))
        return;
    for (int i = 0; i < 3; i++) {
        lines[i]->has_ender = pf_thread_start(&lines[i]->ender, end_line, lines[i]) == 0;
        if (!lines[i]->has_ender)
            end_line(lines[i]);
    }
}

/* Invariant 3. */
static void forget_steps(struct pf_ranks *r)
{
    if (!r->card)
        return;
    cudaStreamSynchronize(r->card->stream);
    pf_cuda_drop_graphs(r->card);
    pf_ranks_use(r, NULL);
}

/* The guard, if it ends the lines, has done so when it has stopped. */
void pf_ranks_stop(struct pf_ranks *r)
{
    struct line *lines[] = { &r->floats, &r->talk, &r->beat };
    atomic_store(&r->leave, true);
    if (r->has_guard)
        pthread_join(r->guard, NULL);
    pf_ranks_end(r);
    forget_steps(r);
    if (r->has_heart)
        pthread_join(r->heart, NULL);
    for (int i = 0; i < 3; i++)
        if (lines[i]->has_ender)
            pthread_join(lines[i]->ender, NULL);
    r->has_guard = r->has_heart = false;
    for (int k = 0; k < PF_MAX_GPUS; k++)
        if (r->process[k] >= 0)
            close(r->process[k]);
}

/* ---- Heartbeat --------------------------------------------------------------------------------------------------- */

static pf_status ask_beat(struct pf_ranks *r)
{
    struct line *l = &r->beat;
    PF_TRY(pf_line_enter(r, l));
    pf_status st = pf_line_check(l, r->nccl.all_gather(l->room, l->room + 1, 1, NCCL_CHAR, l->comm, l->stream));
    pf_line_leave(l);
    return st;
}

/* For as long as it takes: that it takes too long the guard sees. */
static pf_status beat_once(struct pf_ranks *r)
{
    PF_TRY(ask_beat(r));
    for (bool done = false; !done && !atomic_load(&r->leave);) {
        nanosleep(&(struct timespec){ 0, NAP_NS }, NULL);
        PF_TRY(pf_line_look(r, &r->beat, &done));
    }
    atomic_store(&r->beaten_ns, pf_now_ns());
    return PF_OK;
}

static void *heart_main(void *ctx)
{
    struct pf_ranks *r = ctx;
    cudaSetDevice(r->gpu);
    for (uint64_t next = 0; !atomic_load(&r->leave);) {
        if (pf_now_ns() < next) {
            nanosleep(&(struct timespec){ 0, NAP_NS * 10 }, NULL);
            continue;
        }
        next = pf_now_ns() + BEAT_NS;
        if (beat_once(r) < 0) {
            snprintf(r->faint_why, sizeof r->faint_why, "%s", pf_last_error());
            atomic_store(&r->is_faint, true);
            break;
        }
    }
    return NULL;
}

/* The first beat loads its kernel while nothing else runs. */
pf_status pf_ranks_start_heart(struct pf_ranks *r)
{
    PF_TRY(ask_beat(r));
    PF_TRY(pf_line_settle(r, &r->beat));
    atomic_store(&r->beaten_ns, pf_now_ns());
    if (pf_thread_start(&r->heart, heart_main, r) != 0)
        PF_FAIL(PF_ENOMEM, "no thread for the heartbeat of ranks");
    r->has_heart = true;
    return PF_OK;
}

/* ---- Processes of this machine ----------------------------------------------------------------------------------- */

/* Who a process is, for those who see the same processes by the same numbers. */
struct who {
    char     boot[40];
    uint64_t names;                      /* of processes: their name space */
    int32_t  pid;
};

static void say_who(struct who *w)
{
    struct stat names;
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    *w = (struct who){ .pid = 0 };
    if (fd >= 0 && read(fd, w->boot, sizeof w->boot - 1) > 0 && stat("/proc/self/ns/pid", &names) == 0) {
        w->names = (uint64_t)names.st_ino;
        w->pid = (int32_t)getpid();
    }
    if (fd >= 0)
        close(fd);
}

pf_status pf_ranks_introduce(pf_ranks *r)
{
    struct who mine, all[PF_MAX_GPUS];
    say_who(&mine);
    PF_TRY(pf_ranks_gather(r, &mine, all, sizeof mine));
    for (int k = 0; k < r->n; k++) {
        bool is_here = mine.pid && all[k].pid && all[k].names == mine.names &&
                       memcmp(all[k].boot, mine.boot, sizeof mine.boot) == 0;
        if (k != r->rank && is_here)
            atomic_store(&r->process[k], (int)syscall(SYS_pidfd_open, all[k].pid, 0));
    }
    return PF_OK;
}

/* Waits a while for the end of one of the processes; the rank that has ended, or -1. */
static int look_at_processes(struct pf_ranks *r)
{
    struct pollfd fds[PF_MAX_GPUS];
    for (int k = 0; k < PF_MAX_GPUS; k++)
        fds[k] = (struct pollfd){ .fd = atomic_load(&r->process[k]), .events = POLLIN };
    int n = poll(fds, PF_MAX_GPUS, LOOK_MS);
    for (int k = 0; n > 0 && k < PF_MAX_GPUS; k++)
        if (fds[k].revents)
            return k;
    return -1;
}

/* ---- Guard ------------------------------------------------------------------------------------------------------- */

/* Whether there is a sign that a rank is lost, for which this waits a while; then lost_why says which. */
static bool has_sign(struct pf_ranks *r)
{
    int gone = look_at_processes(r);
    uint64_t beaten = atomic_load(&r->beaten_ns);
    r->lost_why[0] = '\0';
    if (gone >= 0)
        snprintf(r->lost_why, sizeof r->lost_why, "the process of rank %d has ended", gone);
    else if (atomic_load(&r->is_faint))
        snprintf(r->lost_why, sizeof r->lost_why, "%s", r->faint_why);
    else if (beaten && pf_now_ns() - beaten > LIMIT_NS)
        snprintf(r->lost_why, sizeof r->lost_why, "there was no sign of life for %d seconds",
                 (int)(LIMIT_NS / SECOND_NS));
    return r->lost_why[0];
}

static void wait_in_grace(struct pf_ranks *r)
{
    for (uint64_t since = pf_now_ns(); !atomic_load(&r->leave) && pf_now_ns() - since < GRACE_NS;)
        nanosleep(&(struct timespec){ 0, NAP_NS * LOOK_MS }, NULL);
}

/* A sign counts if it is still there after some time: a rank that ends its work is gone when all have answered, and
 * what is on its way then still arrives; and where all ranks were stopped together, or asleep, hearts beat again. */
static void *guard_main(void *ctx)
{
    struct pf_ranks *r = ctx;
    bool lost = false;
    while (!lost && !atomic_load(&r->leave)) {
        if (!has_sign(r))
            continue;
        wait_in_grace(r);
        lost = has_sign(r);
    }
    if (lost && !atomic_load(&r->leave)) {
        atomic_store(&r->is_lost, true);
        pf_ranks_end(r);
    }
    return NULL;
}

pf_status pf_ranks_start_guard(struct pf_ranks *r)
{
    if (pf_thread_start(&r->guard, guard_main, r) != 0)
        PF_FAIL(PF_ENOMEM, "no thread to watch over ranks");
    r->has_guard = true;
    return PF_OK;
}
