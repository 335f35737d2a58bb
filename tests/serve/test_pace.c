/* How many rows prompts get in rounds of several (pace.h), on machines whose steps take a fixed time and some for each
 * row: rounds settle at what the bounds say, whatever is known when the first one comes. */
#include "check.h"
#include "serve/pace.h"

struct machine {
    const char *what;
    double step_s, row_s;
    size_t most_rows;
    double least_s, most_s;          /* of a round, once they have settled */
    double least_share;              /* of a prompt's speed alone */
};

static double step(const struct machine *m, size_t rows)
{
    return m->step_s + (double)rows * m->row_s;
}

/* Rounds beside one that answers, of which every seventh has few rows, since a prompt ends. */
static void run(const struct machine *m, struct pace *p, int n)
{
    for (int i = 0; i < n; i++) {
        size_t rows = i % 7 == 6 ? 20 : pace_rows(p);
        pace_took(p, rows + 1, rows, step(m, rows + 1));
    }
}

/* Of n rounds, as run has them but for prompts' ends. */
static double mean_share(const struct machine *m, struct pace p, int n)
{
    double rows = 0, seconds = 0;
    for (int i = 0; i < n; i++) {
        size_t r = pace_rows(&p);
        rows += (double)r;
        seconds += step(m, r + 1);
        pace_took(&p, r + 1, r, step(m, r + 1));
    }
    return rows / seconds / ((double)m->most_rows / step(m, m->most_rows));
}

static void check_settled(const struct machine *m, const struct pace *p, const char *when)
{
    size_t rows = pace_rows(p);
    double took = step(m, rows + 1), share = mean_share(m, *p, 20);
    CHECK(took >= m->least_s && took <= m->most_s && share >= m->least_share,
          "%s, %s: %zu rows take %.3f s, at %.2f of the speed alone", m->what, when, rows, took, share);
}

static const struct machine machines[] = {
    { "a GPU that holds all", 0.002, 50e-6, 2048, 0.095, 0.11, 0.9 },
    { "a CPU", 0.01, 3e-3, 512, 0.095, 0.11, 0.85 },
    { "a slow CPU, 16 rows at least", 0.1, 20e-3, 512, 0.4, 0.45, 0.7 },
    { "experts that cross PCIe", 0.25, 40e-6, 2048, 0.25, 0.41, 0.48 },
    { "a drive, where few rows take long", 1.5, 1e-4, 512, 1.5, 1.6, 0.05 },
};
enum { N_MACHINES = sizeof machines / sizeof *machines };

static struct pace pace_of(const struct machine *m)
{
    return (struct pace){ .pause_s = 0.1, .most_pause_s = 0.4, .most_rows = m->most_rows };
}

static void check_machine(const struct machine *m)
{
    struct pace p = pace_of(m);
    pace_took_lone(&p, m->most_rows, step(m, m->most_rows));
    pace_took_lone(&p, 8, step(m, 8));           /* a prompt's end, or a short one, says nothing of long ones */
    run(m, &p, 40);
    check_settled(m, &p, "a prompt was alone before");
    p = pace_of(m);
    run(m, &p, 40);
    pace_took_lone(&p, m->most_rows, step(m, m->most_rows));
    run(m, &p, 40);
    check_settled(m, &p, "one is alone later");
    pace_took_lone(&p, pace_rows(&p), step(m, pace_rows(&p)));       /* the rest of one that others disturbed */
    run(m, &p, 40);
    check_settled(m, &p, "one ended alone");
}

/* A bound that was given is kept, however slow the prompt gets, but for the 16 rows that there are at least. */
static void check_given(const struct machine *m)
{
    struct pace p = pace_of(m);
    p.most_pause_s = p.pause_s;
    pace_took_lone(&p, m->most_rows, step(m, m->most_rows));
    run(m, &p, 60);
    size_t rows = pace_rows(&p);
    CHECK(rows == 16 || step(m, rows + 1) < 1.1 * p.pause_s, "%s: %zu rows take %.3f s", m->what, rows,
          step(m, rows + 1));
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
