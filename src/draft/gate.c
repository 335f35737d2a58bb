/* See gate.h. */
#include "draft/gate.h"

static const double WORTH = 1.02;            /* a gain below this is noise */
static const double LOSS = 0.01;             /* of a session's time, that drafts may cost it */
static const double FIRST_LOSS = 0.5;        /* of a token's time, that the first trial may cost */
static const double MOST_CREDIT = 16;        /* tokens' time that gains are remembered for */
enum { RETRY = 32, MOST_IN_RED = 3 };

/* ---- Prices ------------------------------------------------------------------------------------------------------ */

/* The first steps of a kind may be slow for reasons of their own, as what is captured for a GPU; later ones vary. */
void pf_prices_learn(struct pf_row_prices *p, int rows, double ns)
{
    if (rows < 1 || rows > PF_PRICE_ROWS)
        return;
    double before = p->of[rows].ns, most = 2 * before;
    if (p->of[rows].n < 2) {
        p->of[rows].ns = p->of[rows].n == 0 || ns < before ? ns : before;
        p->of[rows].n++;
    } else {
        p->of[rows].ns += ((ns < most ? ns : most) - before) / 8;
    }
    p->least = p->least == 0 || rows < p->least ? rows : p->least;
    p->most = rows > p->most ? rows : p->most;
}

/* The price of one row more, where nothing larger was measured. */
static double slope(const struct pf_row_prices *p, int below)
{
    const double ASSUMED = 0.25;
    double first = p->of[p->least].ns;
    if (below == p->least)
        return ASSUMED * first / p->least;
    double s = (p->of[below].ns - first) / (below - p->least);
    return s > 0 ? s : 0;
}

double pf_price_of(const struct pf_row_prices *p, int rows)
{
    int below = rows, above = rows;
    if (p->most == 0)
        return 0;
    while (below >= p->least && p->of[below].n == 0)
        below--;
    while (above <= p->most && p->of[above].n == 0)
        above++;
    if (below < p->least)
        return p->of[p->least].ns;
    if (above > p->most)
        return p->of[below].ns + (rows - below) * slope(p, below);
    if (above == below)
        return p->of[below].ns;
    return p->of[below].ns + (p->of[above].ns - p->of[below].ns) * (rows - below) / (above - below);
}

/* ---- Choosing ---------------------------------------------------------------------------------------------------- */

static bool in_red(const struct pf_draft_account *a)
{
    return a->balance_ns + LOSS * a->total_ns + FIRST_LOSS * a->token_ns <= 0;
}

/* Numbers of drafts that are tried: a device keeps a graph for each, so there are not many. */
static int next_count(int k)
{
    return k < 3 ? k + 1 : k < 7 ? k + 2 : k < 15 ? k + 4 : k < 31 ? k + 8 : k + 16;
}

int pf_gate_choose(const struct pf_row_prices *p, struct pf_draft_account *a, int rows, const float *chance, int n,
                   double draft_ns)
{
    double alone = pf_price_of(p, rows), chain = 1, expected = rows, best_value = 0;
    int best = 0, i = 0, most = 2 * p->most + 1 - rows;
    if (alone <= 0 || in_red(a))
        return 0;
    most = a->balance_ns < 0 && most > MOST_IN_RED ? MOST_IN_RED : most;
    most = most < n ? most : n;
    most = most < PF_PRICE_ROWS - rows ? most : PF_PRICE_ROWS - rows;
    double doubt = a->n_refused >= RETRY ? 0.5 : 1;          /* prices may have changed: at times they are doubted */
    for (int k = 1; k <= most; k = next_count(k)) {
        for (; i < k; i++) {
            chain *= chance[i];
            expected += chain;
        }
        double price = alone + doubt * (pf_price_of(p, rows + k) - alone + k * draft_ns);
        double value = expected * alone / (rows * price);
        if (value > best_value) {
            best_value = value;
            best = k;
        }
    }
    bool pays = best_value >= WORTH;
    a->n_refused = pays ? 0 : a->n_refused + (best > 0);
    return pays ? best : 0;
}

/* ---- The account ------------------------------------------------------------------------------------------------- */

void pf_account_step(struct pf_draft_account *a, double alone_ns, int tokens, double ns)
{
    double most = MOST_CREDIT * alone_ns / tokens;
    a->token_ns = alone_ns / tokens;
    a->total_ns += ns;
    a->balance_ns -= ns - alone_ns;
    a->balance_ns = a->balance_ns > most ? most : a->balance_ns;
}

void pf_account_hit(struct pf_draft_account *a)
{
    a->balance_ns += a->token_ns;
}
