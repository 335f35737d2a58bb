/* See gate.h. */
#include "draft/gate.h"

#include <math.h>

static const double WORTH = 1.03;            /* a gain below this is noise */
static const double NEW_WORTH = 1.15;        /* where the price is a guess, unless drafts gain already */
static const double LOSS = 0.006;            /* of a session's time, that drafts may cost it */
static const double FIRST_LOSS = 1;          /* tokens' time, that the first trials may cost */
static const double MOST_CREDIT = 16;        /* tokens' time that gains are remembered for */
static const double SLOW = 1.5;              /* times its price: a first step that is slow */
enum { SURE = 3, WELL = 5, MOST_MEASURED = 8, OLD = 48, RETRY = 32, MOST_PATIENCE = 1024, MOST_IN_RED = 3 };

/* ---- Prices ------------------------------------------------------------------------------------------------------ */

/* A number of rows has its price now: what its first steps took besides, less than with any other. */
static void learn_start(struct pf_row_prices *p, double ns, double slowest)
{
    double more = slowest - ns;
    if (slowest < SLOW * ns)
        p->start_ns = 0;
    else
        p->start_ns = p->start_ns == 0 || more < p->start_ns ? more : p->start_ns;
}

void pf_prices_learn(struct pf_row_prices *p, int rows, double ns)
{
    if (rows < 1 || rows > PF_PRICE_ROWS)
        return;
    double before = p->of[rows].ns, most = 2 * before;
    bool is_old = p->n_learned - p->of[rows].at >= OLD;
    if (p->of[rows].n >= SURE) {
        p->of[rows].n += p->of[rows].n < MOST_MEASURED;
        p->of[rows].ns += ((ns < most ? ns : most) - before) / (is_old ? 4 : p->of[rows].n);
    } else {
        p->of[rows].ns = p->of[rows].n == 0 || ns < before ? ns : before;
        p->of[rows].slowest = ns > p->of[rows].slowest ? ns : p->of[rows].slowest;
        if (++p->of[rows].n == SURE)
            learn_start(p, p->of[rows].ns, p->of[rows].slowest);
    }
    p->of[rows].at = ++p->n_learned;
    p->least = p->least == 0 || rows < p->least ? rows : p->least;
    p->most = rows > p->most ? rows : p->most;
}

static bool is_known(const struct pf_row_prices *p, int rows)
{
    return p->of[rows].n >= SURE;
}

/* The next number of rows whose price is known, from `rows` on in that direction; 0: there is none. */
static int known_from(const struct pf_row_prices *p, int rows, int direction)
{
    rows = direction < 0 && rows > p->most ? p->most : rows;
    while (rows >= p->least && rows <= p->most && rows > 0 && !is_known(p, rows))
        rows += direction;
    return rows >= p->least && rows <= p->most ? rows : 0;
}

/* What so many rows read, where one reads 1: experts that several pick are read once, and picks fall at random. */
static double reads(const struct pf_row_prices *p, int rows)
{
    return p->share > 0 ? (1 - pow(1 - (double)p->share, rows)) / (double)p->share : rows;
}

/* The price of reading once more, where nothing larger is known. */
static double slope(const struct pf_row_prices *p, int below)
{
    const double ASSUMED = 0.25;
    int least = known_from(p, p->least, 1);
    double first = p->of[least].ns;
    if (below == least)
        return ASSUMED * first / reads(p, least);
    double s = (p->of[below].ns - first) / (reads(p, below) - reads(p, least));
    return s > 0 ? s : 0;
}

double pf_price_expected(const struct pf_row_prices *p, int rows)
{
    int least = known_from(p, p->least, 1);
    if (least == 0)
        return p->of[p->least].ns;
    int below = known_from(p, rows, -1), above = known_from(p, rows < least ? least : rows, 1);
    if (below == 0)
        return p->of[above].ns;
    double more = reads(p, rows) - reads(p, below);
    if (above == 0)
        return p->of[below].ns + more * slope(p, below);
    if (above == below)
        return p->of[below].ns;
    return p->of[below].ns + (p->of[above].ns - p->of[below].ns) * more / (reads(p, above) - reads(p, below));
}

/* What one or two steps took says something, within limits, but for the first ones of several rows: those load what all
 * others need. */
double pf_price_of(const struct pf_row_prices *p, int rows)
{
    double ns = pf_price_expected(p, rows);
    if (rows > PF_PRICE_ROWS || p->of[rows].n == 0 || is_known(p, rows) || known_from(p, p->most, -1) <= p->least)
        return ns;
    double took = p->of[rows].ns - p->start_ns;
    return took < ns ? ns : took < 2 * ns ? took : 2 * ns;
}

bool pf_prices_begin(const struct pf_row_prices *p, int rows)
{
    return rows <= PF_PRICE_ROWS && p->of[rows].n <= SURE;
}

/* ---- Choosing ---------------------------------------------------------------------------------------------------- */

static double allowed_ns(const struct pf_draft_account *a)
{
    return LOSS * a->total_ns + FIRST_LOSS * a->token_ns;
}

/* Numbers of drafts that are tried: a device keeps a graph for each, so there are not many. */
static int next_count(int k)
{
    return k < 3 ? k + 1 : k < 7 ? k + 2 : k < 15 ? k + 4 : k < 31 ? k + 8 : k + 16;
}

/* How many may be taken along at most: one, while no step with drafts has a price, and then up to four times the rows
 * that have one. */
static int most_drafts(const struct pf_row_prices *p, const struct pf_draft_account *a, int rows, int n)
{
    int known = known_from(p, p->most, -1), most = known > rows ? 4 * known - rows : 1;
    most = a->balance_ns < 0 && most > MOST_IN_RED ? MOST_IN_RED : most;
    most = most < PF_PRICE_ROWS - rows ? most : PF_PRICE_ROWS - rows;
    return most < n ? most : n;
}

/* The number of drafts that is worth most, if any is worth it; *any: there are some that may be tried. What a draft
 * takes is counted at `doubt` times its price. */
static int best_count(const struct pf_row_prices *p, const struct pf_draft_account *a, int rows, const float *chance,
                      int most, double draft_ns, double doubt, bool *any)
{
    double alone = pf_price_of(p, rows), chain = 1, expected = rows, best_value = 1;
    bool may_begin = a->start_ns <= allowed_ns(a) + a->balance_ns / 2,
         gains = a->balance_ns > MOST_CREDIT / 2 * a->token_ns;
    int best = 0, i = 0;
    *any = false;
    for (int k = 1; k <= most; k = next_count(k)) {
        bool is_new = p->of[rows + k].n == 0;
        for (; i < k; i++) {
            chain *= chance[i];
            expected += chain;
        }
        if (is_new && !may_begin)
            continue;
        double price = alone + doubt * (pf_price_of(p, rows + k) - alone + k * draft_ns);
        if (k > 1 && !is_known(p, rows + k) && price - alone > allowed_ns(a) + a->balance_ns)
            continue;                        /* all of them may be wrong, and nothing would be tried for long */
        double value = expected * alone / (rows * price) / (is_new && !gains ? NEW_WORTH : WORTH);
        *any = true;
        if (value > best_value) {
            best_value = value;
            best = k;
        }
    }
    return best;
}

int pf_gate_choose(const struct pf_row_prices *p, struct pf_draft_account *a, int rows, const float *chance, int n,
                   double draft_ns)
{
    bool any;
    if (rows > PF_PRICE_ROWS || p->of[rows].n < WELL || p->n_learned - p->of[rows].at >= OLD ||
        a->balance_ns + allowed_ns(a) <= 0)
        return 0;
    int most = most_drafts(p, a, rows, n), best = best_count(p, a, rows, chance, most, draft_ns, 1, &any);
    a->patience = best || a->patience == 0 ? RETRY : a->patience;
    a->n_refused = best ? 0 : a->n_refused + any;
    if (a->n_refused < a->patience)
        return best;
    a->n_refused = 0;                        /* prices may have changed: at times they are doubted */
    a->patience = a->patience < MOST_PATIENCE ? 2 * a->patience : a->patience;
    return best_count(p, a, rows, chance, most < MOST_IN_RED ? most : MOST_IN_RED, draft_ns, 0.5, &any);
}

/* ---- The account ------------------------------------------------------------------------------------------------- */

void pf_account_step(struct pf_draft_account *a, double alone_ns, int tokens, double ns, double price_ns, bool begins)
{
    double most = MOST_CREDIT * alone_ns / tokens, charged = ns < 2 * price_ns ? ns : 2 * price_ns;
    a->token_ns = alone_ns / tokens;
    a->total_ns += ns;
    a->start_ns += begins ? ns - charged : 0;
    a->balance_ns -= charged - alone_ns;
    if (a->balance_ns > most) {
        double rest = a->start_ns - (a->balance_ns - most);
        a->start_ns = rest > 0 ? rest : 0;
        a->balance_ns = most;
    }
}

void pf_account_hit(struct pf_draft_account *a)
{
    a->balance_ns += a->token_ns;
}
