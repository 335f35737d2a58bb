/* How many rows of prompts a round may have beside others' answers, learned from how long rounds take. The scheduler's
 * thread.
 *
 *     tok/s of the prompt    alone  ............................................... as many rows as are fastest
 *                            half   .........................,
 *                                            pause           most_pause             time of a round
 *
 * A round takes a pause, which is what others may be stopped. Where a step's time is hardly its rows', as where each
 * brings all experts from main memory, that would make a prompt many times slower and the others' pauses little
 * shorter: so more, up to most_pause, as long as a row takes more than twice what it takes in a prompt alone. Where
 * even a step of few rows takes longer than that, no fewer than would take a pause if they were as fast as alone. */
#ifndef PF_SERVE_PACE_H
#define PF_SERVE_PACE_H

#include <stddef.h>

struct pace {
    double pause_s, most_pause_s;    /* both the same: that bound is not to be passed */
    size_t most_rows;                /* of a step */
    double shared_rows;              /* that prompts may have in a round of several; 0: there was none yet */
    double row_s;                    /* of a row in such a round lately; 0: not known */
    double lone_row_s;               /* of a row in a slice of a prompt that was alone; 0: not known */
    size_t n_lone;                   /* the rows of that slice, a step's at most */
};

/* Rows of prompts in a round of several, 16 at least. */
size_t pace_rows(const struct pace *p);
/* A round of several, of so many rows of which some are prompts', is through. */
void pace_took(struct pace *p, size_t rows, size_t prompt_rows, double seconds);
/* So is a slice of a prompt that was alone. */
void pace_took_lone(struct pace *p, size_t rows, double seconds);
/* What a row of a prompt takes; 0: not known. */
double pace_row_s(const struct pace *p);

#endif
