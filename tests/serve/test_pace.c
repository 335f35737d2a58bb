/* How many rows prompts get in rounds of several (pace.h), on machines whose steps take a fixed time and some for each
 * row: rounds settle at what the bounds say, whatever is known when the first one comes. */
#include <stdbool.h>
#include <string.h>

#include "check.h"
#include "serve/pace.h"

struct machine {
    const char *what;
    double step_s, row_s, deep_s;    /* deep_s: of a row, for each position in front of it */
    double named;                    /* 0, or rows that name 0.63 of the experts, which are what step_s is for */
    size_t most_rows;
    double least_s, most_s;          /* of a round, once they have settled */
    double least_share;              /* of a prompt's speed alone */
    bool   is_disturbed;
};

static double step(const struct machine *m, size_t rows, double depth)
{
    double unnamed = m->named > 0;
    for (size_t i = 0; i < rows; i++)
        unnamed *= m->named / (m->named + 1);
    return m->step_s * (1 - unnamed) + (double)rows * (m->row_s + depth * m->deep_s);
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
 * ends. The last n are looked at: *longest of them but for one, which may have been a trial, and the share of
 * the speed alone. */
static double run(const struct machine *m, struct pace *p, double depth, int n_all, int n, double *longest)
{
    double alone = 0, seconds = 0, second = 0;
    unsigned seed = 1;
    *longest = 0;
    for (int i = 0; i < n_all; i++) {
        size_t rows = i % 7 == 6 ? 20 : pace_rows(p), lone = 2 * pace_rows(p);
        double took = step(m, rows + 1, depth) * disturbed(m->is_disturbed, &seed);
        pace_took(p, rows + 1, rows, took);
        if (m->is_disturbed && i % 3 == 2)       /* nobody asks for a moment */
            pace_took_lone(p, lone, step(m, lone, depth) * disturbed(true, &seed));
        if (i >= n_all - n && i % 7 != 6) {
            second = took > *longest ? *longest : took > second ? took : second;
            *longest = took > *longest ? took : *longest;
            alone += (double)rows * step(m, m->most_rows, depth) / (double)m->most_rows;
            seconds += took;
        }
        depth += (double)rows;
    }
    CHECK(*longest <= 2 * m->most_s || *longest <= 0.5, "%s: a trial of %.3f s", m->what, *longest);
    *longest = second;
    return alone / seconds;
}

static void check_settled(const struct machine *m, struct pace *p, double depth, const char *when)
{
    double longest, share = run(m, p, depth, 40, 20, &longest);
    CHECK(longest >= m->least_s && longest <= m->most_s && share >= m->least_share,
          "%s, %s: rounds of %.3f s, at %.2f of the speed alone", m->what, when, longest, share);
}

static const struct machine machines[] = {
    { "a GPU that holds all", 0.002, 50e-6, 0, 0, 2048, 0.095, 0.11, 0.9, false },
    { "the same, behind more and more", 0.002, 50e-6, 4e-9, 0, 2048, 0.095, 0.12, 0.9, false },
    { "a CPU", 0.01, 3e-3, 0, 0, 512, 0.095, 0.11, 0.85, false },
    { "a slow CPU, 16 rows at least", 0.1, 20e-3, 0, 0, 512, 0.4, 0.45, 0.7, false },
    { "experts that cross PCIe", 0.25, 40e-6, 0, 0, 2048, 0.27, 0.41, 0.49, false },
    { "the same, behind more and more", 0.25, 40e-6, 3e-9, 0, 2048, 0.27, 0.41, 0.47, false },
    { "the same, disturbed, and alone at times", 0.25, 40e-6, 3e-9, 0, 2048, 0.27, 0.5, 0.4, true },
    { "a GPU that holds all, disturbed", 0.002, 50e-6, 4e-9, 0, 2048, 0.08, 0.14, 0.8, true },
    { "a drive, where few rows take long", 1.5, 1e-4, 0, 0, 512, 1.5, 1.6, 0.05, false },
    { "few rows name few experts", 0.25, 130e-6, 3e-9, 16, 2048, 0.27, 0.45, 0.44, false },
    { "few rows name few experts, disturbed", 0.25, 130e-6, 3e-9, 16, 2048, 0.27, 0.5, 0.33, true },
    { "and rows that name fewer experts", 0.25, 130e-6, 3e-9, 40, 2048, 0.27, 0.45, 0.44, false },
    { "and rows that name fewer experts, disturbed", 0.25, 130e-6, 3e-9, 40, 2048, 0.27, 0.5, 0.33, true },
    { "a GPU that holds all, where depth tells", 0.002, 70e-6, 3.2e-9, 0, 2048, 0.08, 0.13, 0.8, false },
    { "a GPU that holds all, where depth tells, disturbed", 0.002, 70e-6, 3.2e-9, 0, 2048, 0.08, 0.15, 0.7, true },
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

static void short_prompts(const struct machine *m, struct pace *p)
{
    for (int i = 0; i < 100; i++)
        pace_took(p, 21, 20, step(m, 21, 0));
}

/* Nor does it matter that none was alone, or that rounds were short prompts' only, of 20 rows. */
static void check_few(const struct machine *m)
{
    struct pace p = pace_of(m);
    double longest;
    run(m, &p, 0, 40, 1, &longest);
    check_settled(m, &p, 0, "none was alone");
    for (size_t rows = 16; rows <= 64; rows *= 2) {
        p = pace_of(m);
        p.rows = (double)rows;
        slice_alone(m, &p, 0);
        short_prompts(m, &p);
        check_settled(m, &p, 0, "short ones came before");
    }
}

/* A bound that was given is kept, however slow the prompt gets, but for the 16 rows that there are at least. */
static void check_given(const struct machine *m)
{
    struct pace p = pace_of(m);
    double longest;
    p.most_pause_s = p.pause_s;
    slice_alone(m, &p, 0);
    run(m, &p, 2048, 60, 20, &longest);
    CHECK(pace_rows_of_prompts(&p) == pace_rows(&p), "%s", m->what);
    CHECK(pace_rows(&p) == 16 || longest < (m->is_disturbed ? 1.4 : 1.2) * p.pause_s, "%s: %zu rows take %.3f s",
          m->what, pace_rows(&p), longest);
}

/* Where nobody is answered, as many rows as a prompt alone has in the time that a pause may take at most. */
static void check_prompts_alone(const struct machine *m)
{
    struct pace p = pace_of(m);
    CHECK(pace_rows_of_prompts(&p) == pace_rows(&p), "%s: before a prompt was alone", m->what);
    slice_alone(m, &p, 0);
    size_t few = pace_rows(&p), many = pace_rows_of_prompts(&p);
    double takes = (double)many * step(m, m->most_rows, 0) / (double)m->most_rows;
    CHECK(many == few || (many > few && takes <= p.most_pause_s), "%s: %zu rows, %zu beside", m->what, many, few);
    CHECK(many == m->most_rows || takes > 0.9 * p.most_pause_s || many < 2 * few, "%s: %zu rows", m->what, many);
}

/* A prompt of 30,000 and short requests of 16 tokens and 2 steps more, each 0.1 s after the last one's end. While none
 * is there slices are alone, which somebody who comes breaks off. */
struct beside {
    const struct machine *m;
    struct pace p;
    unsigned seed;
    size_t lone_rows;
    double now, next, depth;                     /* next: when a short request comes */
    double round_s, longest_s, sum_s;            /* the longest round; of short requests, the longest and all */
    int n;
};

static double timed(struct beside *b, size_t rows)
{
    return step(b->m, rows, b->depth) * disturbed(b->m->is_disturbed, &b->seed);
}

static void short_request(struct beside *b)
{
    for (int i = 0; i < 3; i++) {
        size_t rows = pace_rows(&b->p), own = i == 0 ? 16 : 1, longs = i == 0 ? rows - 16 : rows;
        double took = timed(b, own + longs);
        if (longs > 0)
            pace_took(&b->p, own + longs, rows, took);
        b->now += took;
        b->depth += (double)longs;
        b->round_s = took > b->round_s ? took : b->round_s;
    }
    double took = b->now - b->next;
    b->longest_s = took > b->longest_s ? took : b->longest_s;
    b->sum_s += took;
    b->n++;
    b->next = b->now + 0.1;
}

static void lone_slice(struct beside *b)
{
    double takes = timed(b, b->lone_rows), end = b->now + takes;
    if (end > b->next + b->p.pause_s) {
        b->now = b->next + 0.005;
        b->lone_rows = pace_rows(&b->p);
        return;
    }
    pace_took_lone(&b->p, b->lone_rows, takes);
    b->now = end;
    b->depth += (double)b->lone_rows;
    b->lone_rows = 2 * b->lone_rows < b->m->most_rows ? 2 * b->lone_rows : b->m->most_rows;
}

/* Returns how long the prompt takes. */
static double long_prompt(struct beside *b)
{
    double begin = b->now;
    b->next = b->now + 0.1;
    b->depth = b->round_s = b->longest_s = b->sum_s = b->n = 0;
    while (b->depth < 30000) {
        if (b->now >= b->next)
            short_request(b);
        else
            lone_slice(b);
    }
    return b->now - begin;
}

/* What prompts one after the other, the short requests beside them and the longest round, which may be a trial, may
 * take. */
struct limits {
    const char *what;
    double prompt_s, mean_s, longest_s, round_s;
};

static const struct limits limits[] = {
    { "few rows name few experts", 18.5, 1.25, 1.25, 0.42 },
    { "few rows name few experts, disturbed", 26, 1.25, 1.45, 0.52 },
    { "and rows that name fewer experts", 18.5, 1.25, 1.25, 0.42 },
    { "and rows that name fewer experts, disturbed", 26, 1.25, 1.45, 0.52 },
    { "a GPU that holds all, where depth tells", 4.4, 0.35, 0.5, 0.42 },
    { "a GPU that holds all, where depth tells, disturbed", 5.2, 0.37, 0.75, 0.52 },
};
enum { N_LIMITS = sizeof limits / sizeof *limits };

static void check_prompts(struct beside *b, const struct limits *l, const char *when, unsigned seed)
{
    for (int i = 0; i < 4; i++) {
        double took = long_prompt(b), mean = b->sum_s / b->n;
        CHECK(took <= l->prompt_s && mean <= l->mean_s && b->longest_s <= l->longest_s,
              "%s, %s, seed %u, prompt %d: %.1f s beside %d short ones of %.2f s, one of %.2f", l->what, when, seed, i,
              took, b->n, mean, b->longest_s);
        CHECK(b->round_s <= l->round_s, "%s, %s, seed %u, prompt %d: a round of %.3f s", l->what, when, seed,
              i, b->round_s);
    }
}

static void check_beside(const struct machine *m, const struct limits *l)
{
    for (unsigned seed = 1; seed <= 20; seed++) {
        struct beside b = { .m = m, .p = pace_of(m), .seed = seed, .lone_rows = m->most_rows };
        slice_alone(m, &b.p, 0);
        check_prompts(&b, l, "a prompt was alone before", seed);
        b.p = pace_of(m);
        short_prompts(m, &b.p);
        slice_alone(m, &b.p, 0);
        check_prompts(&b, l, "short ones came before", seed);
        b.p = pace_of(m);
        long_prompt(&b);
        check_prompts(&b, l, "none was alone", seed);
    }
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

/* Behind a very long context rows take so much longer than they did alone that this says nothing. */
static void check_deep(const struct machine *m)
{
    struct pace p = pace_of(m);
    double depth = 0, longest = 0;
    int n_long = 0;
    slice_alone(m, &p, 0);
    while (depth < 256000) {
        size_t rows = pace_rows(&p);
        double took = step(m, rows + 1, depth);
        pace_took(&p, rows + 1, rows, took);
        depth += (double)rows;
        longest = took > longest ? took : longest;
        n_long += took > 0.2;
    }
    CHECK(longest <= 0.5 && n_long <= 12, "%s: %d long rounds, one of %.2f s", m->what, n_long, longest);
}

int main(void)
{
    for (int i = 0; i < N_MACHINES; i++) {
        check_machine(&machines[i]);
        check_given(&machines[i]);
        check_prompts_alone(&machines[i]);
        for (int k = 0; k < N_LIMITS; k++)
            if (strcmp(limits[k].what, machines[i].what) == 0) {
                check_few(&machines[i]);
                check_beside(&machines[i], &limits[k]);
            }
        if (machines[i].step_s < 0.01 && !machines[i].is_disturbed)
            check_deep(&machines[i]);
    }
    check_ends();
    return check_status();
}
