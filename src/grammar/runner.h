/* An automaton at work: the sets of stacks that outputs lead to, made as they are met and kept.
 *
 *     position   a set of (state, stack): everything the output so far may be in the middle of
 *     stack      a set of (state to return to, stack below): sets, so that ways that differ only in what is below share
 *                what is above, and an ambiguous grammar costs no more than its states times its length (a
 *                graph-structured stack)
 *
 * Both are numbered and found by their contents: the second element of an array is at the position of the first, and
 * what was worked out there, the next position for each byte, holds again. Position 0 is the dead one: nothing can
 * come.
 *
 * A hole stands for a stack that is not known: a position with holes is one of many that differ only in what is below.
 * What it accepts without returning through a hole all of them accept; popping hole k leaves PF_HOLE + k in the set.
 *
 * Bounds: positions, stacks and their elements; and the work of one call, counted in elements that were looked at,
 * those too that were there already. A runner that is fuller than pf_runner_is_full says wants pf_runner_shrink. One
 * thread at a time. */
#ifndef PF_RUNNER_H
#define PF_RUNNER_H

#include "base/pf_hash.h"
#include "grammar/automaton.h"

/* States that are none of the automaton's. */
enum { PF_ENDED = -1,                    /* the whole grammar has been matched */
       PF_HOLE  = -16 };                 /* PF_HOLE + k, k < PF_MAX_HOLES */
enum { PF_MAX_HOLES = 8 };
enum { PF_MOST_KEPT = 2 };               /* positions that pf_runner_shrink keeps */
enum { PF_MOST_EFFORT = 1 << 23 };       /* what a call may take at most: about a tenth of a second */

struct pf_item {
    int32_t state, stack;
};

/* Sets of items, by number and by content. */
struct pf_item_sets {
    struct pf_item *items;
    struct pf_item_set {
        uint32_t first, n;
        unsigned holes;                  /* of live: bit k: hole k was returned through */
    } *sets;
    uint32_t *table;                     /* open addressing; number + 1 */
    size_t    n_items, item_cap, n_sets, set_cap, mask;
};

/* Pairs met in the present closure: open addressing, emptied by counting the stamp up. */
struct pf_met {
    struct pf_item *items;
    uint32_t *stamps, stamp;
    size_t    n, mask;
};

struct pf_pending {                      /* a rule to be entered with a stack of these elements */
    int32_t rule;
    struct pf_item item;
};

struct pf_row {                          /* what is known of the bytes at a position */
    int32_t  next[256];                  /* -1: not known yet */
    int32_t  n_alive;                    /* bytes below 128 that lead to others than the dead position */
    int32_t  onward;                     /* the position that most bytes lead to */
    uint64_t kinds;                      /* kinds of bytes (tokens.h) all of which lead there */
    bool     is_whole;                   /* next, onward and kinds are known */
    enum { PF_WIDE_UNKNOWN, PF_WIDE, PF_NOT_WIDE } wide;     /* every character of several bytes leads onward, too */
};

struct pf_runner {
    const struct pf_automaton *a;
    struct pf_hash_key key;
    struct pf_item_sets stacks;
    struct pf_item_sets roots;           /* positions, by the items that the last byte led to */
    struct pf_item_sets live;            /* positions' items with edges of bytes, ended and holes; same numbers */
    struct pf_row **rows;                /* [row_cap] by position; NULL: nothing is known */
    size_t    row_cap;
    struct pf_met met;
    struct pf_item *work, *kept, *base;  /* of the present closure */
    size_t    n_work, work_cap, n_kept, kept_cap, n_base, base_cap;
    struct pf_pending *pending;
    size_t    n_pending, pending_cap;
    uint64_t  effort, most_effort;       /* elements looked at since the call began, and how many may be */
};

pf_status pf_runner_open(struct pf_runner *r, const struct pf_automaton *a);
void      pf_runner_close(struct pf_runner *r);      /* takes half-built ones */

/* Begins to count the work of a call anew; it may be `most`. */
void      pf_runner_begin(struct pf_runner *r, uint64_t most);

pf_status pf_runner_start(struct pf_runner *r, int32_t *position);
pf_status pf_runner_compute(struct pf_runner *r, int32_t position, uint8_t byte, int32_t *next);

/* The position after a byte. */
static inline pf_status pf_runner_next(struct pf_runner *r, int32_t position, uint8_t byte, int32_t *next)
{
    const struct pf_row *row = r->rows[position];
    if (row && row->next[byte] >= 0) {
        *next = row->next[byte];
        return PF_OK;
    }
    return pf_runner_compute(r, position, byte, next);
}

/* The position's row, whole; borrowed until the runner shrinks. Inside of a string onward is the position itself, or
 * the one with a character more. */
pf_status pf_runner_row(struct pf_runner *r, int32_t position, const struct pf_row **row);

/* Fewer than half of ASCII may come, so that a row would have the dead position for onward. */
pf_status pf_runner_is_narrow(struct pf_runner *r, int32_t position, bool *narrow);

/* The grammar may end here; and nothing else may come. */
bool pf_runner_may_end(const struct pf_runner *r, int32_t position);
bool pf_runner_must_end(const struct pf_runner *r, int32_t position);

/* The position with its stacks replaced by holes; *n_holes of them, holes[k] the stack of hole k. *n_holes is -1 and
 * *shape the position itself where it has more stacks than there are holes. */
pf_status pf_runner_shape(struct pf_runner *r, int32_t position, int32_t *shape, int32_t holes[PF_MAX_HOLES],
                          int *n_holes);
/* Bit k: hole k was returned through at this position. */
static inline unsigned pf_runner_holes(const struct pf_runner *r, int32_t position)
{
    return r->live.sets[position].holes;
}
/* The position after returning into a stack. */
pf_status pf_runner_return(struct pf_runner *r, int32_t stack, int32_t *position);

/* Whether every character of several bytes leads to the position's onward, and by ways without holes. */
pf_status pf_runner_is_wide(struct pf_runner *r, int32_t position, bool *wide);

bool      pf_runner_is_full(const struct pf_runner *r);
/* Forgets everything but n positions, PF_MOST_KEPT at most, which get other numbers; part of the call's work. On
 * failure nothing has changed. */
pf_status pf_runner_shrink(struct pf_runner *r, int32_t *positions, int n);

#endif
