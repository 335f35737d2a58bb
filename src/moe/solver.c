/* See solver.h. */
#include "moe/solver.h"

void pf_price_learn(double *price, double bytes, double ns)
{
    const double WEIGHT = 1.0 / 16;
    double seen = bytes / (ns > 1 ? ns : 1) * 1e9;
    *price = *price > 0 ? *price + (seen - *price) * WEIGHT : seen;
}

static double max_of(double a, double b)
{
    return a > b ? a : b;
}

static double time_of(const struct pf_prices *p, int n, int w, int d, double gate_up, double down)
{
    double cpu = (n - w) * gate_up + (n - w - d) * down, pcie = w * (gate_up + down) + d * down;
    double seconds = max_of(cpu / p->cpu_bytes_s, pcie / p->pcie_bytes_s);
    if (cpu > 0 && pcie > 0)
        seconds = max_of(seconds, (cpu + pcie) / p->joint_bytes_s);
    return seconds * 1e9 + (w + d) * p->fixed_ns;
}

struct pf_deal pf_solve(const struct pf_prices *p, const struct pf_solver_rules *rules, int n, uint64_t gate_up_bytes,
                        uint64_t down_bytes)
{
    const double WORTH = 0.98;           /* what saves less than the prices' own error is not tried */
    double gate_up = (double)gate_up_bytes, down = (double)down_bytes;
    bool known = p->cpu_bytes_s > 0 && p->pcie_bytes_s > 0 && p->joint_bytes_s > 0;
    int most = n < rules->max_transfers ? n : rules->max_transfers;
    int w_first = 0, w_last = rules->whole ? most : 0;
    if (rules->whole && rules->cpu_limit >= 0) {
        w_first = n - rules->cpu_limit > 0 ? n - rules->cpu_limit : 0;
        w_first = w_last = w_first < most ? w_first : most;
    }
    struct pf_deal best = { .n_whole = w_first, .ns = known ? time_of(p, n, w_first, 0, gate_up, down) : 0 };
    if (!known)
        return best;
    double bar = best.ns * WORTH;
    for (int w = w_first; w <= w_last; w++)
        for (int d = 0; d <= (rules->post_fetch ? most - w : 0); d++) {
            double ns = time_of(p, n, w, d, gate_up, down);
            if (ns < best.ns && ns < bar)
                best = (struct pf_deal){ w, d, ns };
        }
    return best;
}
