/* How many rows prompts get in rounds of several (pace.h), on machines whose steps take a fixed time and some for each
 * row: rounds settle at what the bounds say, whatever is known when the first one comes. */
#include <stdbool.h>

#include "check.h"
#include "serve/pace.h"

struct machine {
    const char *what;
    double step_s, row_s, deep_s;    /* deep_s: of a row, for each position in front of it */
    size_t most_rows;
    double least_s, most_s;          /* of a round, once they have settled */
    double least_share;              /* of a prompt's speed alone */
    bool   is_disturbed;
};

static double step(const struct machine *m, size_t rows, double depth)
{
    return m->step_s + (double)rows * (m->row_s + depth * m->deep_s);
}

static void slice_alone(const struct machine *m, struct pace *p, double depth)
{
    pace_took_lone(p, m->most_rows, step(m, m->most_rows, depth));
}

/* What disturbs a machine: between 0.95 and 1.25 of a step's time. */
static double disturbed(bool is, unsigned *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return is ? 0.95 + 0.3 * (double)(*seed >> 8) / (1 << 24) : 1;
}

/* Rounds beside one that answers, through a prompt from a depth on; every seventh has few rows, since a shorter prompt
 * ends. The last n are looked at: *longest of them, and the share of the speed alone. */
static double run(const struct machine *m, struct pace *p, double depth, int n_all, int n, double *longest)
{
    double alone = 0, seconds = 0;
    unsigned seed = 1;
    *longest = 0;
    for (int i = 0; i < n_all; i++) {
        size_t rows = i % 7 == 6 ? 20 : pace_rows(p), lone = 2 * pace_rows(p);
        double took = step(m, rows + 1, depth) * disturbed(m->is_disturbed, &seed);
        pace_took(p, rows + 1, rows, took);
        if (m->is_disturbed && i % 3 == 2)       /* nobody asks for a moment */
            pace_took_lone(p, lone, step(m, lone, depth) * disturbed(true, &seed));
        if (i >= n_all - n && i % 7 != 6) {
            *longest = took > *longest ? took : *longest;
            alone += (double)rows * step(m, m->most_rows, depth) / (double)m->most_rows;
            seconds += took;
        }
        depth += (double)rows;
    }
    return alone / seconds;
}

static void check_settled(const struct machine *m, struct pace *p, double depth, const char *when)
{
    double longest, share = run(m, p, depth, 40, 20, &longest);
    CHECK(longest >= m->least_s && longest <= m->most_s && share >= m->least_share,
          "%s, %s: rounds of %.3f s, at %.2f of the speed alone", m->what, when, longest, share);
}

static const struct machine machines[] = {
    { "a GPU that holds all", 0.002, 50e-6, 0, 2048, 0.095, 0.11, 0.9, false },
    { "the same, behind more and more", 0.002, 50e-6, 4e-9, 2048, 0.095, 0.12, 0.9, false },
    { "a CPU", 0.01, 3e-3, 0, 512, 0.095, 0.11, 0.85, false },
    { "a slow CPU, 16 rows at least", 0.1, 20e-3, 0, 512, 0.4, 0.45, 0.7, false },
    { "experts that cross PCIe", 0.25, 40e-6, 0, 2048, 0.27, 0.41, 0.49, false },
    { "the same, behind more and more", 0.25, 40e-6, 3e-9, 2048, 0.27, 0.41, 0.47, false },
    { "the same, disturbed, and alone at times", 0.25, 40e-6, 3e-9, 2048, 0.27, 0.5, 0.4, true },
    { "a GPU that holds all, disturbed", 0.002, 50e-6, 4e-9, 2048, 0.08, 0.14, 0.8, true },
    { "a drive, where few rows take long", 1.5, 1e-4, 0, 512, 1.5, 1.6, 0.05, false },
};
enum { N_MACHINES = sizeof machines / sizeof *machines };

static struct pace pace_of(const struct machine *m)
{
    return (struct pace){ .pause_s = 0.1, .most_pause_s = 0.4, .most_rows = m->most_rows };
}

static void check_machine(const struct machine *m)
{
    struct pace p = pace_of(m);
    double longest;
    slice_alone(m, &p, 0);
    pace_took_lone(&p, 8, step(m, 8, 0));        /* a prompt's end, or a short one, says nothing of long ones */
    check_settled(m, &p, 2048, "a prompt was alone before");
    pace_took_lone(&p, pace_rows(&p), step(m, pace_rows(&p), 20000));    /* its rest, alone again */
    check_settled(m, &p, 0, "another one comes");
    p = pace_of(m);
    run(m, &p, 0, 40, 1, &longest);
    slice_alone(m, &p, 10000);
    check_settled(m, &p, 12000, "one is alone later");
    pace_took(&p, pace_rows(&p) + 1, pace_rows(&p), 3 * step(m, pace_rows(&p), 12000));
    check_settled(m, &p, 12000, "a round was disturbed");
}

/* A bound that was given is kept, however slow the prompt gets, but for the 16 rows that there are at least. */
static void check_given(const struct machine *m)
{
    struct pace p = pace_of(m);
    double longest;
    p.most_pause_s = p.pause_s;
    slice_alone(m, &p, 0);
    run(m, &p, 2048, 60, 20, &longest);
    CHECK(pace_rows(&p) == 16 || longest < (m->is_disturbed ? 1.4 : 1.2) * p.pause_s, "%s: %zu rows take %.3f s",
          m->what, pace_rows(&p), longest);
}

/* Sixteen rows at first, and never more than a step has. */
static void check_ends(void)
{
    struct pace p = { .pause_s = 0.1, .most_pause_s = 0.4, .most_rows = 512 };
    CHECK(pace_rows(&p) == 16 && pace_row_s(&p) <= 0, "at first %zu", pace_rows(&p));
    for (int i = 0; i < 20; i++)
        pace_took(&p, pace_rows(&p) + 1, pace_rows(&p), 1e-3);
    CHECK(pace_rows(&p) == 512, "with steps of a millisecond %zu", pace_rows(&p));
    CHECK(pace_row_s(&p) > 0 && pace_row_s(&p) < 1e-4, "a row takes %g", pace_row_s(&p));
}

int main(void)
{
    for (int i = 0; i < N_MACHINES; i++) {
        check_machine(&machines[i]);
        check_given(&machines[i]);
    }
    check_ends();
    return check_status();
}
