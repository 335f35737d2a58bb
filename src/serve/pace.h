/* How many rows of prompts a round may have beside others' answers, learned from how long rounds take. The scheduler's
 * thread.
 *
 *     a round      fixed_s + rows * what a row takes there, which grows with the depth of the context
 *
 * fixed_s is told by a slice of a prompt alone, of many rows, and the round of few that follows it, at the same depth.
 * Where it is little, a round takes pause_s, which is what others may be stopped. Where it is much, as where each step
 * brings all experts from main memory, that would make a prompt many times slower and the others' pauses little
 * shorter: so as many rows as give the prompt half of its speed alone, as long as a round stays within most_pause_s.
 * Where fixed_s alone is more than that, as many as would take pause_s at the speed alone. */
#ifndef PF_SERVE_PACE_H
#define PF_SERVE_PACE_H

#include <stddef.h>

struct pace {
    double pause_s, most_pause_s;    /* both the same: that bound is not to be passed */
    size_t most_rows;                /* of a step */
    double rows;                     /* that prompts may have in a round of several; 0: there was none yet */
    double row_s;                    /* of a row in such a round lately; 0: not known */
    double fixed_s;                  /* 0 until a prompt was alone, too; the mean of up to n_fixed times */
    int    n_fixed;
    double lone_s;                   /* that the last slice of a prompt alone took, of n_lone rows; 0: there was none */
    size_t n_lone;
    int    n_alike;                  /* rounds to come that are at about that slice's depth */
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
