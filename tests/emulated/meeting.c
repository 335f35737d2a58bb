/* A rank that waits in vain for the others: whether it is the first or another one, it ends with a sentence. */
#include <stdlib.h>
#include <string.h>

#include "backend/ranks.h"
#include "base/pf_time.h"
#include "check.h"
#include "pfmoe.h"

enum { WAIT_S = 1, LIMIT_S = 10 };

static void wait_as(int rank)
{
    const struct pf_cancel none = { NULL, NULL };
    pf_ranks *r;
    uint64_t begin = pf_now_ns();
    CHECK(pf_ranks_open(&r, 0, rank, 2, WAIT_S, &none) == PF_EIO && !r, "rank %d has met the others", rank);
    CHECK(strstr(pf_last_error(), "has waited 1 seconds for the other ranks"), "%s", pf_last_error());
    uint64_t took = pf_now_ns() - begin;
    CHECK(took >= WAIT_S * 1000000000ull && took < LIMIT_S * 1000000000ull, "it took %.1f s", (double)took * 1e-9);
}

int main(void)
{
    setenv("NCCL_COMM_ID", "127.0.0.1:0", 1);        /* a port that is free; nobody can call there */
    wait_as(0);
    wait_as(1);
    return check_status();
}
