/* How many of the far chunks of keys and values the CPU attends to while the GPU reads the others over the bus: as many
 * as let both end together.
 *
 *     GPU    | near chunks | n - k far chunks, and the one that the step writes to |
 *     CPU    | k far chunks                                                        |
 *
 * Nobody knows beforehand what a chunk takes either of them, as they share the memory's bandwidth. So the CPU's share
 * is moved after every step, by half of what would have made both end together if what each took were all for its far
 * chunks: what the GPU has near makes the move smaller, and changes nothing of where it leads. More rows are more work
 * for the CPU with the same bytes, so the share is kept for each power of two of them.
 *
 * Plain data, all zeros at first; one thread at a time. */
#ifndef PF_FAR_DEAL_H
#define PF_FAR_DEAL_H

#include "backend/share.h"

enum { PF_FAR_SIZES = 4 };               /* rows below 2^4 */

struct pf_far_deal {
    double share[PF_FAR_SIZES];          /* the CPU's, of n + 1; 0: nothing is known yet */
    int    size, n_host, n_device;       /* the deal of the step under way: whose share, chunks; n_host 0: none */
};

/* The CPU's part of n far chunks that a step of so many rows does not write to: one at least, so that what it takes is
 * seen; `most` at most. 0: none. */
int  pf_far_deal(struct pf_far_deal *d, int rows, int n, int most);

/* What the layers of the step took whose deal was the last one. The deal is over. */
void pf_far_learn(struct pf_far_deal *d, const struct pf_attended *took);

#endif
