/* Shared by the two files of ranks by NCCL (backend/ranks.h).
 *
 *     cuda_ranks.c    meeting, exchanges, waiting for them
 *     cuda_guard.c    who notices that a rank is lost, and ends what waits for it
 *
 * Threads: whoever calls ranks.h, the caller; the heart, which exchanges a byte with all ranks every second; the guard.
 * The caller may wait for the GPU in places that know nothing of ranks, as the driver does in many of its calls, and so
 * may the heart. The guard calls nobody but the clock and the system until a rank is lost.
 *
 * Invariants:
 *  1. Only who is in a line (pf_line_enter) calls NCCL with its communicator. Nobody enters one that has ended.
 *  2. All lines end at once (pf_ranks_end), each on a thread of its own: an abort frees memory of the GPU, for which
 *     it waits for all kernels, and those of another communicator end by that one's abort alone. What an abort does
 *     first is to tell the kernels, without the driver.
 *  3. An abort waits besides until the card's recorded steps are gone that have exchanges. pf_ranks_stop forgets them
 *     when no kernel waits any more.
 *  4. `is_lost` is set before the lines end. So who sees that an exchange is done and then that nothing is lost has
 *     what was exchanged. */
#ifndef PF_CUDA_RANKS_H
#define PF_CUDA_RANKS_H

#include <pthread.h>
#include <stdatomic.h>

#include "backend/ranks.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/nccl.h"

enum { RANKS_AHEAD = 8 };

/* A communicator with what its operations need of the GPU. */
struct line {
    const struct nccl *nccl;
    nccl_comm       comm;            /* NULL: there is none */
    pthread_mutex_t lock;            /* of who is in the line */
    atomic_bool     has_ended;
    pthread_t       ender;
    bool            has_ender;
    cudaStream_t    stream;
    char           *room;
};

struct pf_ranks {
    struct nccl nccl;
    int         gpu, rank, n;
    uint64_t    limit_ns;            /* how long is waited, for what; 0: as long as there is a heartbeat */
    char        expected[160];
    const struct pf_cancel *cancel;
    struct line talk, beat;
    struct cuda_backend *card;       /* NULL: no floats are exchanged */
    struct line floats;              /* its stream is the card's */
    cudaEvent_t ended[RANKS_AHEAD];  /* of exchanges of floats: number i has ended[i % RANKS_AHEAD] */
    uint64_t    n_floats;            /* exchanges of floats so far */
    bool        is_broken;           /* what was lost is lost */
    char        why[400];

    pthread_t   heart, guard;
    bool        has_heart, has_guard;
    atomic_int  process[PF_MAX_GPUS];   /* descriptors of ranks' processes; -1: it cannot be seen from here */
    atomic_bool leave;               /* the heart and the guard are to stop */
    _Atomic uint64_t beaten_ns;      /* when the last heartbeat was complete; 0: there is none yet */
    atomic_bool is_faint;            /* a heartbeat has failed, */
    char        faint_why[300];      /* which was written before */
    atomic_bool is_ending;           /* the lines end */
    atomic_bool is_lost;             /* the guard has noticed that a rank is lost, */
    char        lost_why[320];       /* which was written before */
};

/* ---- cuda_ranks.c ------------------------------------------------------------------------------------------------ */

/* What an answer of NCCL says; whoever asks is in the line. */
pf_status pf_line_check(const struct line *l, int result);
/* PF_EIO: the line has ended. */
pf_status pf_line_enter(struct pf_ranks *r, struct line *l);
void      pf_line_leave(struct line *l);
/* Whether all that the line was asked for is done; fails if its communicator has. The same by the caller, who waits. */
pf_status pf_line_look(struct pf_ranks *r, struct line *l, bool *done);
pf_status pf_line_settle(struct pf_ranks *r, struct line *l);

/* ---- cuda_guard.c ------------------------------------------------------------------------------------------------ */

pf_status pf_ranks_start_guard(struct pf_ranks *r);
/* By all ranks, when the line of the heartbeat has its communicator. */
pf_status pf_ranks_start_heart(struct pf_ranks *r);
/* Ends all lines, without waiting until they have. Any thread, any number of times. */
void      pf_ranks_end(struct pf_ranks *r);
/* Ends all lines, and waits until they have ended, and the heart and the guard. */
void      pf_ranks_stop(struct pf_ranks *r);

#endif
