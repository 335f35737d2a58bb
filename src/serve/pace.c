/* See pace.h. */
#include "serve/pace.h"

#include <stdbool.h>

enum { LEAST_ROWS = 16 };

/* As many as would take a pause if they took what they take in a prompt that is alone; 0: not known, or a pause's bound
 * is not to be passed. */
static double rows_at_best(const struct pace *p)
{
    return p->lone_row_s > 0 && p->most_pause_s > p->pause_s ? p->pause_s / p->lone_row_s : 0;
}

/* The fewest that a round may come down to whose rows take less than twice what they take alone: so few that they would
 * take twice as long if the round's time stayed what it is, within the wider bound. */
static double rows_at_half(const struct pace *p, size_t prompt_rows, double seconds)
{
    double half = seconds / (2 * p->lone_row_s), bound = (double)prompt_rows * p->most_pause_s / seconds;
    return half < bound ? half : bound;
}

size_t pace_rows(const struct pace *p)
{
    double rows = p->shared_rows > 0 ? p->shared_rows : rows_at_best(p), most = (double)p->most_rows;
    return rows < LEAST_ROWS ? LEAST_ROWS : rows > most ? (size_t)most : (size_t)rows;
}

/* A round with fewer rows than it might have had says nothing unless it took too long. */
void pace_took(struct pace *p, size_t rows, size_t prompt_rows, double seconds)
{
    double row_s = seconds / (double)rows;
    bool is_dear = p->lone_row_s > 0 && row_s > 2 * p->lone_row_s;
    double wanted = is_dear ? p->most_pause_s : p->pause_s, more = wanted / seconds;
    if (prompt_rows < LEAST_ROWS || (seconds <= wanted && prompt_rows < pace_rows(p)))
        return;
    double next = (double)prompt_rows * (more < 0.5 ? 0.5 : more), best = rows_at_best(p);
    double least = best <= 0 || is_dear ? best : rows_at_half(p, prompt_rows, seconds);
    p->row_s = row_s;
    p->shared_rows = next < least ? least : next;
}

/* A row of few takes longer: what is known of as many rows or more stays, unless these were faster. */
void pace_took_lone(struct pace *p, size_t rows, double seconds)
{
    double row_s = seconds / (double)rows;
    size_t n = rows < p->most_rows ? rows : p->most_rows;
    if (p->lone_row_s > 0 ? n < p->n_lone && row_s >= p->lone_row_s : 4 * n <= p->most_rows)
        return;
    p->lone_row_s = row_s;
    p->n_lone = n;
}

double pace_row_s(const struct pace *p)
{
    return p->lone_row_s > 0 ? p->lone_row_s : p->row_s;
}
