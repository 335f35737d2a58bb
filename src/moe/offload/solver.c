/* See solver.h. */
#include "moe/offload/solver.h"

enum { EXPLORE_EVERY = 48, CPU_FIRST = 4 };          /* deals between two trials; trials of the CPU alone at first */
static const double HOPE = 0.95;         /* a deal that was never tried is believed to take a little less than T */
static const double WORTH = 0.99;        /* a deal with transfers must beat the CPU alone by more than this */
static const double FEW_LATE = 0.05, LATE_COSTS = 0.25;      /* cost of copies that come too late, beyond a few */
static const double TOO_SLOW = 1.3;      /* a deal this much slower than the best is tried rarely or not at all */

void pf_price_learn(double *price, double bytes, double ns)
{
    const double WEIGHT = 1.0 / 16;
    double seen = bytes / (ns > 1 ? ns : 1) * 1e9;
    *price = *price > 0 ? *price + (seen - *price) * WEIGHT : seen;
}

double pf_solver_expect(const struct pf_prices *p, int n, struct pf_deal deal, uint64_t gate_up_bytes,
                        uint64_t down_bytes)
{
    double gate_up = (double)gate_up_bytes, down = (double)down_bytes;
    int w = deal.n_whole, d = deal.n_down;
    if (p->cpu_bytes_s <= 0 || p->pcie_bytes_s <= 0)
        return 0;
    double cpu = ((n - w) * gate_up + (n - w - d) * down) / p->cpu_bytes_s;
    double pcie = (w * (gate_up + down) + d * down) / (p->pcie_bytes_s * (p->n_buses > 1 ? p->n_buses : 1));
    return (cpu > pcie ? cpu : pcie) * 1e9;
}

static int n_copies(struct pf_deal d)
{
    return d.n_down + (d.in_place ? 0 : d.n_whole);
}

/* Whether the rules allow the deal. */
static bool allowed(const struct pf_solver_rules *r, int n, struct pf_deal d)
{
    if (d.n_whole < d.in_place || d.n_down < 0 || d.n_whole + d.n_down > n || n_copies(d) > r->max_transfers)
        return false;
    if ((d.n_whole > 0 && !(d.in_place ? r->in_place : r->whole)) || (d.n_down > 0 && !r->post_fetch))
        return false;
    if (r->cpu_limit < 0 || !(r->whole || r->in_place))
        return true;
    int whole = n > r->cpu_limit ? n - r->cpu_limit : 0;
    return d.n_whole == (d.in_place || whole < r->max_transfers ? whole : r->max_transfers);
}

static struct pf_solver_seen *seen_of(struct pf_solver *s, int n, struct pf_deal d)
{
    return &s->seen[n][d.in_place][d.n_whole][d.n_down];
}

/* Whether a deal may be made. T does not know reading in place, so such a deal must have been measured. */
static bool is_option(struct pf_solver *s, const struct pf_solver_rules *rules, int n, struct pf_deal d)
{
    return allowed(rules, n, d) && (!d.in_place || rules->measures || seen_of(s, n, d)->n > 0);
}

/* ns of a deal over an expert's bytes: measured, or believed. */
static double cost_of(struct pf_solver *s, int n, struct pf_deal d, uint64_t gate_up_bytes, uint64_t down_bytes)
{
    const struct pf_solver_seen *seen = seen_of(s, n, d);
    if (seen->n > 0)
        return seen->ns * (1 + (seen->late > FEW_LATE ? LATE_COSTS * (seen->late - FEW_LATE) : 0));
    const struct pf_deal none = { 0, 0, false };
    double bytes = (double)(gate_up_bytes + down_bytes),
           beside = seen_of(s, n, none)->ns - pf_solver_expect(&s->prices, n, none, gate_up_bytes, down_bytes) / bytes;
    return HOPE * pf_solver_expect(&s->prices, n, d, gate_up_bytes, down_bytes) / bytes + (beside > 0 ? beside : 0);
}

static void look_for_best(struct pf_solver *s, int n)
{
    struct pf_solver_best *b = &s->best[n];
    b->is_known = s->prices.cpu_bytes_s > 0 && s->prices.pcie_bytes_s > 0;
    b->is_old = false;
    b->deal = (struct pf_deal){ 0, 0, false };
    b->cost = -1;
    for (int w = 0; w <= n; w++)
        for (int k = 0; k < 2 * (n - w + 1); k++) {
            struct pf_deal deal = { w, k / 2, k % 2 };
            if (!is_option(s, &b->rules, n, deal))
                continue;
            double c = cost_of(s, n, deal, b->gate_up_bytes, b->down_bytes);
            if (b->cost < 0 || c < b->cost * (b->deal.n_whole + b->deal.n_down == 0 ? WORTH : 1)) {
                b->deal = deal;
                b->cost = c;
            }
        }
}

void pf_solver_prepare(struct pf_solver *s)
{
    for (int n = 1; n <= PF_SOLVER_MOST; n++)
        if (s->best[n].is_known && s->best[n].is_old)
            look_for_best(s, n);
}

static bool same_rules(const struct pf_solver_rules *a, const struct pf_solver_rules *b)
{
    return a->post_fetch == b->post_fetch && a->whole == b->whole && a->in_place == b->in_place &&
           a->measures == b->measures && a->max_transfers == b->max_transfers && a->cpu_limit == b->cpu_limit;
}

/* Sizes matter only to deals that were never made; those of the layer for which it was looked for will do. */
static const struct pf_solver_best *best_of(struct pf_solver *s, const struct pf_solver_rules *rules, int n,
                                            uint64_t gate_up_bytes, uint64_t down_bytes)
{
    struct pf_solver_best *b = &s->best[n];
    if (!b->is_known || b->is_old || !same_rules(rules, &b->rules)) {
        b->rules = *rules;
        b->gate_up_bytes = gate_up_bytes;
        b->down_bytes = down_bytes;
        look_for_best(s, n);
    }
    return b;
}

/* A deal that differs from the best in one expert, or in how whole ones go: each in its turn. */
static struct pf_deal neighbour(uint64_t turn, struct pf_deal d)
{
    static const struct step { int whole, down; bool in_place; } steps[] = {
        { 0, 1, false }, { 0, -1, false }, { 1, 0, false },  { 1, 0, true },
        { -1, 0, false }, { 1, -1, false }, { 1, -1, true }, { -1, 1, false },
    };
    enum { N_STEPS = sizeof steps / sizeof *steps };
    if (turn % (N_STEPS + 1) == N_STEPS)
        return (struct pf_deal){ d.n_whole, d.n_down, !d.in_place };
    const struct step *step = &steps[turn % (N_STEPS + 1)];
    int n_whole = d.n_whole + step->whole;
    bool in_place = d.n_whole > 0 ? d.in_place : step->in_place;
    return (struct pf_deal){ n_whole, d.n_down + step->down, n_whole > 0 && in_place };
}

/* Steps of several rows miss more experts of a layer than there is a table for. They are dealt in PF_SOLVER_MOST lots
 * of n / PF_SOLVER_MOST experts each, and sizes and times are a lot's; so all such n share one table. Up to
 * PF_SOLVER_MOST experts are a lot each. */
struct lots {
    int      n;
    struct pf_solver_rules rules;
    uint64_t gate_up_bytes, down_bytes;
};

static struct lots lots_of(const struct pf_solver_rules *rules, int n, uint64_t gate_up_bytes, uint64_t down_bytes)
{
    struct lots l = { n, *rules, gate_up_bytes, down_bytes };
    if (n <= PF_SOLVER_MOST)
        return l;
    l.n = PF_SOLVER_MOST;
    l.rules.max_transfers = rules->max_transfers * PF_SOLVER_MOST / n;
    if (rules->cpu_limit >= 0)
        l.rules.cpu_limit = rules->cpu_limit * PF_SOLVER_MOST / n;
    l.gate_up_bytes = gate_up_bytes * (uint64_t)n / PF_SOLVER_MOST;
    l.down_bytes = down_bytes * (uint64_t)n / PF_SOLVER_MOST;
    return l;
}

/* a of `from` as a share of `to`, rounded. To more and back is where it was. */
static int share(int a, int from, int to)
{
    return (2 * a * to + from) / (2 * from);
}

/* A deal of so many lots as one of n experts, or the other way round. */
static struct pf_deal convert(struct pf_deal d, int from, int to)
{
    int n_whole = share(d.n_whole, from, to), n_down = share(d.n_down, from, to), rest = to - n_whole;
    return (struct pf_deal){ n_whole, n_down < rest ? n_down : rest, d.in_place };
}

/* Two roundings may have made one copy too many of it. */
static struct pf_deal of_experts(const struct pf_solver_rules *rules, struct pf_deal lots, int n_lots, int n)
{
    struct pf_deal d = convert(lots, n_lots, n);
    d.n_down -= n_copies(d) > rules->max_transfers;
    return d;
}

static struct pf_deal deal_lots(struct pf_solver *s, const struct pf_solver_rules *rules, int n, uint64_t gate_up_bytes,
                                uint64_t down_bytes)
{
    if (s->prices.cpu_bytes_s > 0 && s->prices.pcie_bytes_s <= 0) {
        struct pf_deal one = { 0, 1, false }, whole = { 1, 0, false };
        if (allowed(rules, n, one) || allowed(rules, n, whole))
            return allowed(rules, n, one) ? one : whole;
    }
    const struct pf_deal none = { 0, 0, false };
    const struct pf_solver_best *best = best_of(s, rules, n, gate_up_bytes, down_bytes);
    uint64_t turn = s->n_deals++ / EXPLORE_EVERY;
    if (seen_of(s, n, none)->n < CPU_FIRST && allowed(rules, n, none))
        return none;
    if (s->n_deals % EXPLORE_EVERY)
        return best->deal;
    /* In turn the CPU alone, by which all are judged, and a neighbour. */
    struct pf_deal other = turn % 2 ? none : neighbour(turn / 2, best->deal);
    if (!is_option(s, rules, n, other))
        return best->deal;
    bool is_slow = cost_of(s, n, other, gate_up_bytes, down_bytes) > TOO_SLOW * best->cost;
    return is_slow && turn % 16 >= 2 ? best->deal : other;
}

static struct pf_deal look_at_lots(struct pf_solver *s, const struct pf_solver_rules *rules, int n,
                                   uint64_t gate_up_bytes, uint64_t down_bytes, bool *known)
{
    enum { LOOKS = 4 };
    struct pf_deal none = { 0, 0, false };
    *known = true;                           /* stays so where no deal can be tried yet */
    if (s->prices.cpu_bytes_s <= 0 || s->prices.pcie_bytes_s <= 0 || seen_of(s, n, none)->n < CPU_FIRST)
        return deal_lots(s, rules, n, gate_up_bytes, down_bytes);
    const struct pf_solver_best *best = best_of(s, rules, n, gate_up_bytes, down_bytes);
    struct pf_deal look = best->deal;
    uint32_t least = LOOKS;
    for (int w = 0; w <= n; w++)
        for (int k = 0; k < 2 * (n - w + 1); k++) {
            struct pf_deal deal = { w, k / 2, k % 2 };
            if (!is_option(s, rules, n, deal) || seen_of(s, n, deal)->n >= least ||
                cost_of(s, n, deal, gate_up_bytes, down_bytes) > TOO_SLOW * best->cost)
                continue;
            look = deal;
            least = seen_of(s, n, deal)->n;
        }
    *known = least == LOOKS;
    return look;
}

struct pf_deal pf_solver_deal(struct pf_solver *s, const struct pf_solver_rules *rules, int n, uint64_t gate_up_bytes,
                              uint64_t down_bytes)
{
    struct lots l = lots_of(rules, n, gate_up_bytes, down_bytes);
    return of_experts(rules, deal_lots(s, &l.rules, l.n, l.gate_up_bytes, l.down_bytes), l.n, n);
}

struct pf_deal pf_solver_look(struct pf_solver *s, const struct pf_solver_rules *rules, int n, uint64_t gate_up_bytes,
                              uint64_t down_bytes, bool *known)
{
    struct lots l = lots_of(rules, n, gate_up_bytes, down_bytes);
    return of_experts(rules, look_at_lots(s, &l.rules, l.n, l.gate_up_bytes, l.down_bytes, known), l.n, n);
}

void pf_solver_learn(struct pf_solver *s, int n, struct pf_deal deal, uint64_t expert_bytes, double ns, int n_late)
{
    const double LEAST_WEIGHT = 1.0 / 8, OUTLIER = 1.5;
    int copies = n_copies(deal);
    if (n > PF_SOLVER_MOST) {
        expert_bytes = expert_bytes * (uint64_t)n / PF_SOLVER_MOST;
        deal = convert(deal, n, PF_SOLVER_MOST);
        n = PF_SOLVER_MOST;
    }
    struct pf_solver_seen *seen = seen_of(s, n, deal);
    s->best[n].is_old = true;
    double weight = 1.0 / (double)++seen->n, took = ns / (double)expert_bytes;
    if (seen->n > 2 && took > OUTLIER * seen->ns)        /* somebody else had the processor */
        took = OUTLIER * seen->ns;
    weight = weight > LEAST_WEIGHT ? weight : LEAST_WEIGHT;
    seen->ns += (took - seen->ns) * weight;
    if (copies > 0)
        seen->late += ((double)n_late / copies - seen->late) * weight;
}

/* ---- What was learned earlier ------------------------------------------------------------------------------------ */

void pf_solver_tell(const struct pf_solver *s, struct pf_learned *out)
{
    *out = (struct pf_learned){ .cpu_bytes_s = s->prices.cpu_bytes_s, .pcie_bytes_s = s->prices.pcie_bytes_s };
    for (int n = 1; n <= PF_SOLVER_MOST; n++)
        for (int w = 0; w <= n; w++)
            for (int k = 0; k < 2 * (n - w + 1); k++) {
                const struct pf_solver_seen *seen = &s->seen[n][k % 2][w][k / 2];
                if (seen->n > 0 && out->n_deals < PF_MAX_LEARNED_DEALS)
                    out->deals[out->n_deals++] = (struct pf_learned_deal){ n, w, k / 2, k % 2, seen->n, seen->ns };
            }
}

static bool is_between(double x, double least, double most)
{
    return x >= least && x <= most;          /* a NaN is not */
}

/* Between what a floppy and what no memory gives. */
static double sane_price(double bytes_s)
{
    return is_between(bytes_s, 1e4, 1e15) ? bytes_s : 0;
}

static bool is_sane_deal(const struct pf_learned_deal *d)
{
    return d->n_experts >= 1 && d->n_experts <= PF_SOLVER_MOST && d->n_whole >= d->in_place && d->n_down >= 0 &&
           d->n_whole <= d->n_experts && d->n_down <= d->n_experts - d->n_whole && d->n_times > 0 &&
           is_between(d->ns_per_byte, 1e-6, 1e6);
}

void pf_solver_recall(struct pf_solver *s, const struct pf_learned *l)
{
    *s = (struct pf_solver){ .prices = { sane_price(l->cpu_bytes_s), sane_price(l->pcie_bytes_s),
                                         s->prices.n_buses } };
    for (int i = 0; i < l->n_deals && i < PF_MAX_LEARNED_DEALS; i++) {
        const struct pf_learned_deal *d = &l->deals[i];
        if (is_sane_deal(d))
            s->seen[d->n_experts][d->in_place][d->n_whole][d->n_down] =
                (struct pf_solver_seen){ d->ns_per_byte, 0, d->n_times < CPU_FIRST ? d->n_times : CPU_FIRST };
    }
}
