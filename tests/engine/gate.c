/* The gate of drafts on machines that are made up: it finds what pays, leaves what does not, and a text that misleads
 * costs no more than the account allows. */
#include "check.h"
#include "draft/drafter.h"
#include "draft/gate.h"

enum { MOST = 16, N = 2000 };

static unsigned state = 1;

static double any(void)
{
    state = state * 1664525u + 1013904223u;
    return (state >> 8) / 16777216.0;
}

/* Decodes N tokens whose drafts are right with chance p, and are said to be so with chance `claimed`; a step of n rows
 * takes 1 + slope * (n - 1), up to a tenth more or less. Returns its time over that without drafts. */
static double run(double p, double claimed, double slope)
{
    struct pf_row_prices prices = { .least = 0 };
    struct pf_draft_account a = { .n_refused = 0 };
    float chance[MOST];
    double time = 0;
    for (int i = 0; i < MOST; i++)
        chance[i] = (float)claimed;
    for (int done = 0; done < N;) {
        int k = pf_gate_choose(&prices, &a, 1, chance, MOST, 0), hits = 0;
        double ns = 1e6 * (1 + slope * k) * (0.9 + 0.2 * any()), alone = k ? pf_price_of(&prices, 1) : ns;
        CHECK(k >= 0 && k <= MOST);
        pf_prices_learn(&prices, 1 + k, ns);
        pf_account_step(&a, alone, 1, ns);
        while (hits < k && any() < p)
            hits++;
        for (int i = 0; i < hits; i++)
            pf_account_hit(&a);
        time += ns;
        done += 1 + hits;
    }
    return time / (1e6 * N);
}

static void test_gate(void)
{
    CHECK(run(0.95, 0.95, 0.1) < 0.3, "cheap rows: %.3f", run(0.95, 0.95, 0.1));
    CHECK(run(0.95, 0.95, 0.5) < 0.7, "dear rows: %.3f", run(0.95, 0.95, 0.5));
    CHECK(run(0.95, 0.95, 1.0) < 1.02, "rows that cost what a step costs: %.3f", run(0.95, 0.95, 1.0));
    CHECK(run(0.3, 0.3, 0.8) < 1.02, "%.3f", run(0.3, 0.3, 0.8));
    CHECK(run(0, 0.95, 0.3) < 1.02, "drafts that promise and are never right: %.3f", run(0, 0.95, 0.3));
    CHECK(run(0.05, 0.6, 0.1) < 1.02, "%.3f", run(0.05, 0.6, 0.1));
}

static void test_prices(void)
{
    struct pf_row_prices p = { .least = 0 };
    CHECK(pf_price_of(&p, 1) == 0);
    pf_prices_learn(&p, 1, 100);
    CHECK(pf_price_of(&p, 1) == 100 && pf_price_of(&p, 3) == 150, "%g", pf_price_of(&p, 3));
    pf_prices_learn(&p, 5, 300);
    CHECK(pf_price_of(&p, 3) == 200 && pf_price_of(&p, 9) == 500, "%g", pf_price_of(&p, 9));
    pf_prices_learn(&p, 5, 200);
    CHECK(pf_price_of(&p, 5) == 200, "the first step of a kind may be slow");
    pf_prices_learn(&p, PF_PRICE_ROWS + 1, 1);
    CHECK(p.most == 5);
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
    test_gate();
    test_lookup();
    return check_status();
}
