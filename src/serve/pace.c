/* See pace.h. */
#include "serve/pace.h"

enum { LEAST_ROWS = 16, ALIKE_ROUNDS = 4, MEAN_OF = 8 };

static double larger(double a, double b)
{
    return a > b ? a : b;
}

static double smaller(double a, double b)
{
    return a < b ? a : b;
}

size_t pace_rows(const struct pace *p)
{
    double best = p->lone_s > 0 && p->most_pause_s > p->pause_s ? p->pause_s / pace_row_s(p) : 0;
    double rows = p->rows > 0 ? p->rows : best;
    return (size_t)smaller(larger(rows, LEAST_ROWS), (double)p->most_rows);
}

double pace_row_s(const struct pace *p)
{
    return p->lone_s > 0 ? p->lone_s / (double)p->n_lone : p->row_s;
}

/* A mean of the first few rounds', and of the latest then: each of both times may have been disturbed. */
static void learn_fixed(struct pace *p, double rows, double seconds)
{
    double n = (double)p->n_lone;
    if (p->n_alike > 0 && 2 * rows <= n) {
        double fixed = larger((seconds * n - p->lone_s * rows) / (n - rows), 0);
        p->n_fixed += p->n_fixed < MEAN_OF;
        p->fixed_s += (fixed - p->fixed_s) / p->n_fixed;
    }
    p->n_alike -= p->n_alike > 0;
    p->fixed_s = smaller(p->fixed_s, seconds);
}

/* Rows for a round like one that took so long, by pace.h's three rules. */
static double rows_like(const struct pace *p, double rows, double seconds)
{
    double fixed = p->fixed_s, row_s = larger((seconds - fixed) / rows, 1e-9);
    double within = (p->pause_s - fixed) / row_s;
    if (p->most_pause_s <= p->pause_s || p->lone_s <= 0)
        return within;
    double share_s = fixed / (double)p->most_rows, alone_s = share_s + row_s;        /* of a row, at this depth */
    double half = fixed / (alone_s + share_s), most = (p->most_pause_s - fixed) / row_s;
    return larger(within, most > LEAST_ROWS ? smaller(half, most) : p->pause_s / alone_s);
}

/* A round with far fewer rows than it might have had says nothing unless it took too long. */
void pace_took(struct pace *p, size_t rows, size_t prompt_rows, double seconds)
{
    double few = (double)prompt_rows, now = (double)pace_rows(p);
    if (prompt_rows < LEAST_ROWS)
        return;
    learn_fixed(p, (double)rows, seconds);
    if (2 * few < now && seconds <= p->most_pause_s)
        return;
    p->row_s = seconds / (double)rows;
    p->rows = larger(smaller(rows_like(p, (double)rows, seconds), 2 * few), few / 2);
}

/* A slice of few rows is too much like a round to tell a step's time from its rows'. Of one that was several steps, a
 * step's part counts. */
void pace_took_lone(struct pace *p, size_t rows, double seconds)
{
    if (2 * rows < p->most_rows)
        return;
    p->n_lone = rows < p->most_rows ? rows : p->most_rows;
    p->lone_s = seconds * (double)p->n_lone / (double)rows;
    p->n_alike = ALIKE_ROUNDS;
}
