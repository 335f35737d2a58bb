/* How many of the far chunks of keys and values the CPU attends to while the GPU reads the others over the bus: as many
 * as let both end together.
 *
 *     GPU    | near chunks | n - k far chunks, and the one that the step writes to |
 *     CPU    | k far chunks                                                        |
 *
 * Nobody knows beforehand what a chunk takes either of them, as they share the memory's bandwidth. So the CPU's share
 * is moved after every step, by half of what would have made both end together if what each took were all for its far
 * chunks: what the GPU has near makes the move smaller, and changes nothing of where it leads. More rows are more work
 * for the CPU with the same bytes, and in a short context what each takes before its first chunk counts for more: the
 * share is kept for each power of two of rows and of chunks, whichever sequence they are of. Where it is less than half
 * a chunk, to hand over takes longer than it saves: the GPU attends alone, but for a step now and then that shows
 * whether it still does.
 *
 * All zeros at first; one thread at a time. */
#ifndef PF_FAR_DEAL_H
#define PF_FAR_DEAL_H

#include "backend/share.h"

enum { PF_FAR_ROWS = 4, PF_FAR_CHUNKS = 12 };        /* rows below 2^4; as many chunks as 2^12 and more are one */

struct pf_far_shares {
    struct pf_far_share {
        double cpu;                      /* of n + 1 chunks; 0: nothing is known yet */
        int    n_without;                /* deals since the CPU had any */
    } of[PF_FAR_ROWS][PF_FAR_CHUNKS];
};

/* Of a sequence in the step under way. */
struct pf_far_deal {
    struct pf_far_share *share;
    int n_host, n_device, most;          /* its chunks, and how many the CPU could have had; n_host 0: it has none */
};

/* The CPU's part of n far chunks of a sequence that its rows in the step do not write to: `most` at most. 0: none. */
int  pf_far_deal(struct pf_far_shares *s, int rows, int n, int most, struct pf_far_deal *out);

/* What the layers took of the sequence, one of n_deals of the step by the same share. The deal is over. */
void pf_far_learn(struct pf_far_deal *d, const struct pf_attended *took, int n_deals);

#endif
