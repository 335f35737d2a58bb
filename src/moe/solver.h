/* Who computes the experts of a layer that lie in RAM: the CPU, the GPU after a copy, or both in turn.
 *
 *     whole on the CPU       nothing crosses                 CPU reads gate, up, down
 *     post-fetch             down crosses                    CPU reads gate, up meanwhile; the GPU does the down product
 *     whole by copy          gate, up, down cross            CPU does nothing
 *
 * With w experts by copy and d by post-fetch out of n, T is the time until the last of the three is done:
 *
 *     T(w, d) = max(c / B_cpu, p / B_pcie, (c + p) / B_joint) + (w + d) * fixed
 *     c = (n - w) (gate + up) + (n - w - d) down       bytes the CPU reads
 *     p = w (gate + up + down) + d down                bytes that cross PCIe
 *
 * B_joint is what the memory gives to both together. All (w, d) are tried: n is a few. A pure function; any thread. */
#ifndef PF_SOLVER_H
#define PF_SOLVER_H

#include <stdbool.h>
#include <stdint.h>

/* Bytes a second, and what beginning a transfer costs. 0: not known yet. */
struct pf_prices {
    double cpu_bytes_s, pcie_bytes_s, joint_bytes_s;
    double fixed_ns;
};

struct pf_solver_rules {
    bool post_fetch, whole;              /* which moves are allowed */
    int  max_transfers;
    int  cpu_limit;                      /* experts whose gate and up the CPU takes; negative: as many as it pays */
};

struct pf_deal {
    int    n_whole, n_down;              /* the others are the CPU's */
    double ns;                           /* expected */
};

/* Moves a price (bytes a second) a little towards what was just seen; an unknown one all the way. */
void pf_price_learn(double *price, double bytes, double ns);

/* For n experts of these sizes. Unknown prices: everything on the CPU, but for what the rules demand. */
struct pf_deal pf_solve(const struct pf_prices *prices, const struct pf_solver_rules *rules, int n, uint64_t gate_up_bytes,
                        uint64_t down_bytes);

#endif
