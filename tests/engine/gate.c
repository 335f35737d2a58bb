/* The gate of drafts on machines that are made up: it finds what pays, leaves what does not, and a text that misleads
 * costs no more than the account allows. */
#include <math.h>

#include "check.h"
#include "draft/drafter.h"
#include "draft/gate.h"

enum { MOST = 16 };

static unsigned state = 1;

static double any(void)
{
    state = state * 1664525u + 1013904223u;
    return (state >> 8) / 16777216.0;
}

/* What a step of n rows takes, in milliseconds: 1 + slope * (n - 1), up to `noise` more or less; from `wide` rows on
 * twice as much. Where rows pick a share of experts, what they pick together counts instead of n. A machine that makes
 * graphs takes `plain` longer for the first step of a kind and `capture` for the second, and `load` for the first step
 * of several rows. */
struct machine {
    double slope, noise, plain, capture, load;
    int    wide;
    double share;
};

static double step_ns(const struct machine *m, int rows, int *seen)
{
    double more = m->share > 0 ? (1 - pow(1 - m->share, rows)) / m->share - 1 : rows - 1;
    double ms = (1 + m->slope * more) * (1 - m->noise + 2 * m->noise * any());
    int nth = seen[rows]++;
    bool loads = rows > 1 && seen[0]++ == 0;
    ms *= m->wide && rows >= m->wide ? 2 : 1;
    return 1e6 * (ms + (nth == 0 ? m->plain : nth == 1 ? m->capture : 0) + (loads ? m->load : 0));
}

/* Drafts that are right with chance p; the drafter says `claimed`, or, if that is 0, what it has seen. */
struct text {
    double p, claimed;
};

/* Decodes n tokens; returns the time over that without drafts on the same machine. */
static double run(const struct machine *m, const struct text *t, int n)
{
    struct pf_row_prices prices = { .share = (float)m->share };
    struct pf_draft_account a = { .n_refused = 0 };
    struct pf_odds odds = { 2, 0.5f };
    int seen[PF_PRICE_ROWS + 1] = { 0 }, alone_seen[PF_PRICE_ROWS + 1] = { 0 };
    float chance[MOST];
    double time = 0, alone_time = 0;
    for (int done = 0; done < n;) {
        for (int i = 0; i < MOST; i++)
            chance[i] = t->claimed > 0 ? (float)t->claimed : odds.hits / odds.tries;
        int k = pf_gate_choose(&prices, &a, 1, chance, MOST, 0), hits = 0;
        CHECK(k >= 0 && k <= MOST);
        double ns = step_ns(m, 1 + k, seen), alone = k ? pf_price_of(&prices, 1) : ns;
        pf_prices_learn(&prices, 1 + k, ns);
        pf_account_step(&a, alone, 1, ns, k ? pf_price_expected(&prices, 1 + k) : ns,
                        pf_prices_begin(&prices, 1 + k));
        bool right = true;
        for (int i = 0; i < (k ? k : 1) && right; i++) {
            right = any() < t->p;
            pf_odds_add(&odds, right);
            hits += right && k > 0;
        }
        for (int i = 0; i < hits; i++)
            pf_account_hit(&a);
        time += ns;
        done += 1 + hits;
    }
    for (int i = 0; i < n; i++)
        alone_time += step_ns(m, 1, alone_seen);
    return time / alone_time;
}

static double mean_run(const struct machine *m, const struct text *t, int n)
{
    enum { RUNS = 40 };
    double sum = 0;
    for (int i = 0; i < RUNS; i++)
        sum += run(m, t, n);
    return sum / RUNS;
}

static const struct machine cpu = { .slope = 0.5, .noise = 0.1 }, dear = { .slope = 1, .noise = 0.1 },
                            busy = { .slope = 0.3, .noise = 0.4 },
                            gpu = { 0.4, 0.02, 1, 2, 0, 9, 0 }, lazy = { 0.4, 0.02, 1, 2, 50, 9, 0 },
                            experts = { .slope = 0.9, .noise = 0.1, .share = 0.125 },
                            rare = { .slope = 0.8, .noise = 0.1, .share = 0.0625 };

/* Wherever drafts are wrong, or dear, or promise what they do not keep, decoding takes no more than a fiftieth longer
 * than without, and what one kind of step takes to begin; and not that where they never were right. */
static void test_losses(void)
{
    static const struct machine *machines[] = { &cpu, &dear, &busy, &gpu, &lazy };
    static const struct text texts[] = { { 0, 0 }, { 0.1, 0 }, { 0.3, 0 }, { 0, 0.95 }, { 0.05, 0.6 }, { 0.5, 0 } };
    for (size_t i = 0; i < sizeof machines / sizeof *machines; i++)
        for (size_t k = 0; k < sizeof texts / sizeof *texts; k++)
            for (int n = 256; n <= 2048; n *= 8) {
                const struct text *t = &texts[k];
                double start = machines[i]->plain + machines[i]->capture + machines[i]->load,
                       limit = 1.02 + (t->p + t->claimed > 0 ? start / n : 0), mean = mean_run(machines[i], t, n);
                CHECK(mean <= limit, "machine %d, right %.2f, said %.2f, %d tokens: %.3f", (int)i, t->p, t->claimed, n,
                      mean);
            }
}

/* Where drafts pay they are found to, and soon. */
static void test_gains(void)
{
    static const struct text good = { 0.95, 0 }, fair = { 0.8, 0 };
    static const struct {
        const struct machine *m;
        int                   n;
        double                good, fair;        /* limits */
    } cases[] = { { &cpu, 256, 0.74, 0.88 }, { &cpu, 2048, 0.7, 0.86 },   { &dear, 256, 1.02, 1.02 },
                  { &gpu, 256, 0.8, 0.92 },  { &gpu, 2048, 0.62, 0.79 }, { &lazy, 2048, 0.66, 0.82 } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double a = mean_run(cases[i].m, &good, cases[i].n), b = mean_run(cases[i].m, &fair, cases[i].n);
        CHECK(a <= cases[i].good && b <= cases[i].fair, "case %d: %.3f, %.3f", (int)i, a, b);
    }
}

/* Rows that share experts: a few gain nothing where many do, which prices of a few tell. */
static void test_experts(void)
{
    static const struct text good = { 0.95, 0 }, half = { 0.5, 0 };
    static const struct {
        const struct machine *m;
        int                   n;
        double                good;
    } cases[] = { { &experts, 256, 0.76 }, { &experts, 2048, 0.64 }, { &rare, 256, 0.9 } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double a = mean_run(cases[i].m, &good, cases[i].n), b = mean_run(cases[i].m, &half, cases[i].n);
        CHECK(a <= cases[i].good && b <= 1.02, "case %d: %.3f, %.3f", (int)i, a, b);
    }
}

static void learn(struct pf_row_prices *p, int rows, double ns, int times)
{
    for (int i = 0; i < times; i++)
        pf_prices_learn(p, rows, ns);
}

static void test_prices(void)
{
    struct pf_row_prices p = { .least = 0 };
    CHECK(pf_price_of(&p, 1) == 0);
    learn(&p, 1, 100, 3);
    CHECK(pf_price_of(&p, 1) == 100 && pf_price_of(&p, 3) == 150, "%g", pf_price_of(&p, 3));
    pf_prices_learn(&p, 5, 9000);
    CHECK(pf_price_of(&p, 5) == 200 && pf_prices_begin(&p, 5), "first steps may be slow: %g", pf_price_of(&p, 5));
    learn(&p, 5, 300, 2);
    CHECK(pf_price_of(&p, 3) == 200 && pf_price_of(&p, 9) == 500, "%g", pf_price_of(&p, 9));
    CHECK(p.start_ns == 8700, "%g", p.start_ns);
    pf_prices_learn(&p, 9, 50000);
    CHECK(pf_price_of(&p, 9) == 1000 && pf_price_expected(&p, 9) == 500 && pf_price_of(&p, 7) == 400,
          "one step may be slow for any reason: %g", pf_price_of(&p, 9));
    pf_prices_learn(&p, PF_PRICE_ROWS + 1, 1);
    CHECK(p.most == 9);
    struct pf_row_prices e = { .share = 0.125f };        /* of 8 experts 1: in 4 rows 3.3 of them */
    learn(&e, 1, 100, 3);
    learn(&e, 2, 187.5, 3);
    CHECK(fabs(pf_price_of(&e, 4) - 331) < 1 && fabs(pf_price_of(&e, 64) - 800) < 1, "%g, %g", pf_price_of(&e, 4),
          pf_price_of(&e, 64));
}

/* What is proposed, most tokens at most; how many. */
static int ask(struct pf_drafter *d, int32_t *out, float *chance, int most)
{
    int n = d->ops->expect(d, chance, most);
    return n ? d->ops->propose(d, out, n) : 0;
}

/* A text that repeats: the guess is what followed. */
static void test_lookup(void)
{
    enum { LENGTH = 40 };
    int32_t tok[4 * LENGTH] = { 0 }, out[MOST];
    float chance[MOST];
    struct pf_drafter *d;
    CHECK(pf_drafter_lookup(&d, tok, 4 * LENGTH) == PF_OK, "%s", pf_last_error());
    for (int i = 0; i < 3 * LENGTH; i++)
        tok[i] = i % LENGTH * 7;
    for (int i = 0; i < LENGTH; i++)
        d->ops->see(d, tok[i]);
    CHECK(ask(d, out, chance, MOST) == 0, "nothing repeats yet");
    for (int i = LENGTH; i < 2 * LENGTH + 10; i++)
        d->ops->see(d, tok[i]);
    CHECK(ask(d, out, chance, MOST) == MOST);
    for (int i = 0; i < MOST; i++)
        CHECK(out[i] == tok[2 * LENGTH + 10 + i] && chance[i] > 0.5f && chance[i] <= 1, "%d: %d", i, out[i]);
    d->ops->cut(d, LENGTH + 5);
    for (int i = LENGTH + 5; i < LENGTH + 8; i++)
        d->ops->see(d, tok[i]);
    CHECK(ask(d, out, chance, 2) == 2 && out[0] == tok[LENGTH + 8], "after going back");
    d->ops->cut(d, 0);
    for (int i = 0; i < 10; i++)
        d->ops->see(d, tok[i] = 3);
    CHECK(ask(d, out, chance, MOST) == MOST && out[MOST - 1] == 3, "what overlaps the end goes on");
    pf_drafter_close(d);
}

int main(void)
{
    test_prices();
    test_losses();
    test_gains();
    test_experts();
    test_lookup();
    return check_status();
}
