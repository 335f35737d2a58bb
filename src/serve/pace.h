/* How many rows of prompts a round may have beside others' answers, learned from how long rounds take. The scheduler's
 * thread.
 *
 * A round takes pause_s, which is what others may be stopped. Where a step takes long however few its rows are, as
 * where each brings all experts from main memory, a prompt would be many times slower for pauses that are little
 * shorter: so a round of several times as many rows is tried now and then, and rounds take most_pause_s if that brings
 * a prompt on as much faster as it does where half of a short round's time is not its rows'. That they no longer do is
 * seen in the same way. Only neighbouring rounds are compared, since what a row takes changes with the depth of the
 * context; and ratios, since no line fits few rows and many: few rows name few experts.
 *
 * Where more rows hardly make a round longer, it may be longer than most_pause_s, too. */
#ifndef PF_SERVE_PACE_H
#define PF_SERVE_PACE_H

#include <stdbool.h>
#include <stddef.h>

struct pace {
    double pause_s, most_pause_s;    /* both the same: that bound is not to be passed */
    size_t most_rows;                /* of a step */
    double rows;                     /* that prompts may have in a round of several; 0: there was none yet */
    bool   is_long;                  /* rounds take most_pause_s */
    double rate;                     /* rows a second, the best of the last few rounds */
    double usual_s, usual_rows;      /* that the last one took which was no trial, and prompts' rows of it */
    double few_s;                    /* that one took which had far fewer rows; 0: not known */
    double trial_rate;               /* of a trial in the last round; 0: there was none */
    int    until_trial, gap;         /* rounds; from one trial to the next, more with each that changes nothing */
    double lone_s;                   /* that the last slice of a prompt alone took, of n_lone rows; 0: there was none */
    size_t n_lone;
};

/* Rows of prompts in a round of several, 16 at least. */
size_t pace_rows(const struct pace *p);
/* Rows of a round of several prompts that stops no answer: as many as a prompt alone is through with in most_pause_s,
 * pace_rows at least. */
size_t pace_rows_of_prompts(const struct pace *p);
/* A round of several, of so many rows of which some are prompts', is through. */
void pace_took(struct pace *p, size_t rows, size_t prompt_rows, double seconds);
/* So is a slice of a prompt that was alone. */
void pace_took_lone(struct pace *p, size_t rows, double seconds);
/* What a row of a prompt takes; 0: not known. */
double pace_row_s(const struct pace *p);

#endif
