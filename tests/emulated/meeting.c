/* Ranks that wait in vain for others, to meet them or for what they do next: each ends with a sentence that names what
 * it has waited for. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "backend/ranks.h"
#include "base/pf_time.h"
#include "check.h"
#include "free_port.h"
#include "pfmoe.h"

enum { N = 3, WAIT_S = 1, MEET_S = 20, LIMIT_S = 10, N_STEPS = 6 };

static const struct pf_cancel none = { NULL, NULL };

static void wait_as(int rank)
{
    pf_ranks *r;
    uint64_t begin = pf_now_ns();
    CHECK(pf_ranks_open(&r, 0, rank, 2, WAIT_S, &none) == PF_EIO && !r, "rank %d has met the others", rank);
    CHECK(strstr(pf_last_error(), "has waited 1 seconds for the other ranks"), "%s", pf_last_error());
    uint64_t took = pf_now_ns() - begin;
    CHECK(took >= WAIT_S * 1000000000ull && took < LIMIT_S * 1000000000ull, "it took %.1f s", (double)took * 1e-9);
}

/* ---- From the meeting to the first heartbeat --------------------------------------------------------------------- */

/* As when a model is opened: what all know, what rank 0 decides, whether all went well, the heartbeat. */
static pf_status come_together(pf_ranks *r, int rank, long delay_ns)
{
    const struct timespec delay = { 0, rank == 1 ? delay_ns : 0 };
    int32_t mine = rank + 7, all[N], word = rank == 0 ? 5 : 0;
    nanosleep(&delay, NULL);
    pf_ranks_expect(r, WAIT_S, "what all know");
    PF_TRY(pf_ranks_gather(r, &mine, all, sizeof mine));
    nanosleep(&delay, NULL);
    pf_ranks_expect(r, WAIT_S, "what the first one decides");
    PF_TRY(pf_ranks_broadcast(r, &word, sizeof word));
    CHECK(word == 5 && all[0] == 7 && all[N - 1] == N + 6, "%d, %d, %d", (int)word, (int)all[0], (int)all[N - 1]);
    nanosleep(&delay, NULL);
    pf_ranks_expect(r, WAIT_S, "all to be ready");
    PF_TRY(pf_ranks_gather(r, &mine, all, sizeof mine));
    nanosleep(&delay, NULL);
    pf_ranks_expect(r, WAIT_S, "the heartbeat");
    return pf_ranks_watch(r);
}

/* The lost rank says nothing; of the others, each has what it waited for, or what the transport told of it. */
static int be_rank(int rank, const char *words, long delay_ns)
{
    pf_ranks *r;
    setenv("PFMOE_STANDIN", words, 1);
    pf_status st = pf_ranks_open(&r, 0, rank, N, MEET_S, &none);
    CHECK(st == PF_OK, "%s", pf_last_error());
    if (st < 0)
        return 1;
    uint64_t begin = pf_now_ns();
    st = come_together(r, rank, delay_ns);
    double took = (double)(pf_now_ns() - begin) * 1e-9;
    const char *why = st < 0 ? pf_last_error() : "", *waited = strstr(why, "has waited 1 seconds for ");
    bool names = waited && (strstr(waited, "what all know") || strstr(waited, "what the first one decides") ||
                            strstr(waited, "all to be ready") || strstr(waited, "the heartbeat"));
    bool may_notice = rank > 0 || strncmp(words, "die", 3) == 0;
    if (delay_ns > 0) {
        CHECK(st == PF_OK, "%s", why);
    } else {
        CHECK(st == PF_EIO && took < LIMIT_S, "%s: %d after %.1f s", words, st, took);
        CHECK(names || (may_notice && strstr(why, "NCCL says")), "%s: rank %d: %s", words, rank, why);
        CHECK(pf_ranks_broadcast(r, &rank, sizeof rank) == PF_EIO, "%s: nothing is lost", words);
    }
    pf_ranks_close(r);
    return check_n_failed > 0;
}

/* Several processes; the lost one, if any, is rank 1. */
static void come_together_all(const char *words, long delay_ns)
{
    pid_t pid[N];
    int status;
    meet_at_free_port();
    fflush(stdout);
    for (int k = 0; k < N; k++)
        if ((pid[k] = fork()) == 0) {
            status = be_rank(k, words, delay_ns);
            fflush(stdout);
            _exit(status);
        }
    for (int i = 0; i < N; i++) {
        int k = i == 0 ? 0 : N - i;          /* rank 1 last, as it may have to be killed */
        if (k == 1 && delay_ns == 0)
            kill(pid[k], SIGKILL);
        waitpid(pid[k], &status, 0);
        CHECK(k == 1 && delay_ns == 0 ? WIFSIGNALED(status) : WIFEXITED(status) && WEXITSTATUS(status) == 0,
              "%s: rank %d ended with %d", words, k, status);
    }
}

int main(void)
{
    static const char *const ways[] = { "die", "mute die", "stop" };
    for (int i = 0; i < N_STEPS * 3; i++) {
        char words[32];
        snprintf(words, sizeof words, "%s=1:%d", ways[i % 3], i / 3 + 1);
        come_together_all(words, 0);
    }
    come_together_all("late", 300000000);
    setenv("NCCL_COMM_ID", "127.0.0.1:0", 1);        /* a port that is free; nobody can call there */
    wait_as(0);
    wait_as(1);
    return check_status();
}
