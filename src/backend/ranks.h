/* The seam of processes, on one machine or on several, that compute one model together: ranks 0 to n - 1, one process
 * each. A rank has a GPU by which it exchanges bytes with the others, and may compute with more than that one.
 *
 *     rank 0     broadcast |                           | gather
 *     rank k     broadcast | receive from, send to any | gather      each call of one rank meets that of the others
 *
 * Calls wait until the bytes are there, or gone. A rank that dies ends the calls of the others within seconds: by the
 * transport where it notices, else (pf_ranks_watch) by a heartbeat that stops. Then everything has ended: the call that
 * noticed fails with PF_EIO, and all later ones do at once. Bytes are the host's.
 *
 * Cards of all ranks that compute parts of the same rows (backend/team.h) exchange floats of their own memory besides:
 *
 *     card of rank 0   .. | share | .. | share | ..     work of the card's stream, like kernels: the host asks for it
 *     card of rank 1   .. | share | .. | share | ..     and goes on, until pf_ranks_settle
 *
 * A step that a card records is recorded with its exchanges: it has to be in all ranks, and be replayed in all.
 *
 * All calls belong to one thread at a time. */
#ifndef PF_RANKS_H
#define PF_RANKS_H

#include "base/pf_cancel.h"
#include "backend/backend.h"

typedef struct pf_ranks pf_ranks;

/* Meets the other ranks; PF_EIO: not all have come within wait_s seconds. gpu: the GPU for the exchange. Where they
 * meet the environment says: NCCL_COMM_ID, rank 0's host:port, as NCCL reads it. cancel is asked while waiting here or
 * for what is expected, and by ranks other than 0 in pf_ranks_broadcast; what it points to must outlive the ranks. */
pf_status pf_ranks_open(pf_ranks **out, int gpu, int rank, int n, int wait_s, const struct pf_cancel *cancel);
void      pf_ranks_close(pf_ranks *r);            /* NULL-safe */

/* By all ranks: each tells the others which process it is. From now on a rank whose process ends is noticed within
 * seconds, if it is one of this machine. */
pf_status pf_ranks_introduce(pf_ranks *r);

/* From now on a call waits for other ranks so long at most, and then fails with a sentence that names what was
 * expected; 0: as long as it takes, which is for when a heartbeat watches over them. */
void      pf_ranks_expect(pf_ranks *r, int wait_s, const char *what);

/* By all ranks: from now on a rank that is gone without a word is noticed, too. Waiting for the others to come to this
 * call has what limit is set. */
pf_status pf_ranks_watch(pf_ranks *r);

/* After a failure that has nothing to do with them, in the midst of what all ranks do together: the others cannot go on
 * without this one. Returns what all calls return from now on. */
pf_status pf_ranks_abandon(pf_ranks *r, pf_status st);

/* Rank 0's bytes to all; n bytes of each rank to all, which has n times as many as there are ranks. */
pf_status pf_ranks_broadcast(pf_ranks *r, void *bytes, size_t n);
pf_status pf_ranks_gather(pf_ranks *r, const void *mine, void *all, size_t n);

/* *all: whether all ranks say yes. */
pf_status pf_ranks_all(pf_ranks *r, bool yes, bool *all);

/* What one rank sends to another one, that one receives. */
pf_status pf_ranks_send(pf_ranks *r, int to, const void *bytes, size_t n);
pf_status pf_ranks_receive(pf_ranks *r, int from, void *bytes, size_t n);

/* ---- Floats of a card -------------------------------------------------------------------------------------------- */

/* By all ranks, or by none, before pf_ranks_watch: the card, that of the exchange, whose floats are meant below. It
 * outlives the ranks, or is closed before there was an exchange. NULL: there is none any more. */
void      pf_ranks_use(pf_ranks *r, pf_backend *card);

/* n floats of each rank to all: all has room for as many as there are ranks, and this one's stand in their place. Or n
 * floats of one rank to all others. */
pf_status pf_ranks_share(pf_ranks *r, float *all, int64_t n);
pf_status pf_ranks_spread(pf_ranks *r, float *x, int64_t n, int from);

/* Waits until the card has done all that it was asked for. After a failure it waits for no other rank any more. */
pf_status pf_ranks_settle(pf_ranks *r);

#endif
