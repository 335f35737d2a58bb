/* See pace.h. */
#include "serve/pace.h"

enum { LEAST_ROWS = 16, LEAST_GAP = 32, UNSURE_GAP = 64, MOST_GAP = 1 << 14, FAR_SLOWER = 4 };

/* How much longer a round may be than one of far fewer rows, whatever the bound; what is left of a rate in the next
 * round; how much of their bound long rounds take, since the next one is further on in its context. */
static const double HARDLY = 1.1, FADES = 0.9, NEARLY = 0.96;

static double larger(double a, double b)
{
    return a > b ? a : b;
}

static double between(double least, double a, double most)
{
    return a < least ? least : a > most ? most : a;
}

double pace_row_s(const struct pace *p)
{
    return p->lone_s > 0 ? p->lone_s / (double)p->n_lone : p->rate > 0 ? 1 / p->rate : 0;
}

/* Whether pauses have a bound that was given. */
static bool is_bound(const struct pace *p)
{
    return p->most_pause_s <= p->pause_s;
}

static double usual_rows(const struct pace *p)
{
    double first = p->lone_s > 0 && !is_bound(p) ? p->pause_s / pace_row_s(p) : 0;
    return between(LEAST_ROWS, p->rows > 0 ? p->rows : first, (double)p->most_rows);
}

static bool is_trial(const struct pace *p)
{
    return p->usual_rows > 0 && p->until_trial == 0 && p->trial_rate <= 0 && !is_bound(p);
}

/* Whether prompts are so much slower than alone that the depth of a context hardly explains it. */
static bool is_far_slower(const struct pace *p)
{
    return !p->is_long && p->lone_s > 0 && FAR_SLOWER * p->rate * pace_row_s(p) < 1;
}

/* How many times as many rows a long round has as a short one, in a trial: 16 that take as long as the same number
 * alone, 4 within most_pause_s, or 2. */
static double trial_times(const struct pace *p)
{
    if (is_far_slower(p))
        return 16;
    return p->is_long || 4 * p->usual_s < 1.2 * p->most_pause_s ? 4 : 2;
}

/* How many times as fast those have to be: as they are where half of the short round's time is that of its rows. */
static double worth(double times)
{
    return 0.95 * 2 * times / (times + 1);
}

size_t pace_rows(const struct pace *p)
{
    double rows = usual_rows(p);
    if (is_trial(p))
        rows = p->is_long ? p->usual_rows / trial_times(p) : p->usual_rows * trial_times(p);
    return (size_t)between(LEAST_ROWS, rows, (double)p->most_rows);
}

size_t pace_rows_of_prompts(const struct pace *p)
{
    double rows = p->lone_s > 0 && !is_bound(p) ? p->most_pause_s / pace_row_s(p) : 0;
    return (size_t)between((double)pace_rows(p), rows, (double)p->most_rows);
}

/* A trial is compared with the round in front of it and the one behind it. True: rounds are others from now on. */
static bool judge(struct pace *p, double rate)
{
    double usual = larger(p->rate, rate), times = trial_times(p);
    bool changes = p->is_long ? usual < worth(times) * p->trial_rate : p->trial_rate >= worth(times) * usual;
    if (changes) {
        p->rows = p->is_long ? p->rows / times : p->usual_rows * times;
        p->few_s = p->usual_s;
        p->is_long = !p->is_long;
    }
    int most = p->lone_s > 0 ? MOST_GAP : UNSURE_GAP;
    p->gap = changes || p->gap == 0 || is_far_slower(p) ? LEAST_GAP : p->gap < most ? 2 * p->gap : most;
    p->until_trial = p->gap;
    p->trial_rate = 0;
    return changes;
}

/* A trial of many rows says how fast a prompt alone would be at the depth that it is at. */
static void took_trial(struct pace *p, double rows, double rate, double seconds)
{
    if (!p->is_long && p->lone_s > 0)
        pace_took_lone(p, (size_t)rows, seconds);
    p->trial_rate = rate;
    p->few_s = p->is_long ? seconds : p->few_s;
}

static void took_usual(struct pace *p, double rows, double rate, double seconds)
{
    bool changed = p->trial_rate > 0 && judge(p, rate);
    double most = p->is_long ? larger(NEARLY * p->most_pause_s, HARDLY * p->few_s) : p->pause_s;
    p->rate = larger(rate, FADES * p->rate);
    p->usual_s = seconds;
    p->usual_rows = rows;
    p->until_trial -= p->until_trial > 0;
    if (!changed)
        p->rows = rows * between(0.5, most / seconds, 2);
}

/* A round with far fewer rows than it might have had says nothing unless it took too long. A trial has nearly all. */
void pace_took(struct pace *p, size_t rows, size_t prompt_rows, double seconds)
{
    double few = (double)prompt_rows, took = larger(seconds, 1e-9), rate = (double)rows / took;
    bool is_small = few < (is_trial(p) ? 0.8 : 0.5) * (double)pace_rows(p);
    if (prompt_rows < LEAST_ROWS || (is_small && seconds <= p->most_pause_s))
        return;
    if (is_small)
        p->rows = usual_rows(p) / 2;
    else if (is_trial(p))
        took_trial(p, (double)rows, rate, took);
    else
        took_usual(p, few, rate, took);
}

/* A slice of few rows is too much like a round to tell how fast a prompt alone is. Of one that was several steps, a
 * step's part counts. */
void pace_took_lone(struct pace *p, size_t rows, double seconds)
{
    if (2 * rows < p->most_rows)
        return;
    p->n_lone = rows < p->most_rows ? rows : p->most_rows;
    p->lone_s = seconds * (double)p->n_lone / (double)rows;
}
