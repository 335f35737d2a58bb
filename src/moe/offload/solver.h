/* Who computes the experts of a layer that lie in RAM: the CPU, the GPU after a copy, or both in turn.
 *
 *     whole on the CPU       nothing crosses                 CPU reads gate, up, down
 *     post-fetch             down crosses                    CPU reads gate, up meanwhile; the GPU multiplies by down
 *     whole by copy          gate, up, down cross            CPU does nothing
 *     in place               gate, up, down cross as read    CPU does nothing; the GPU's products read main memory
 *
 * With w experts by copy or in place and d by post-fetch out of n, the time until the last is done should be
 *
 *     T(w, d) = max(c / B_cpu, p / B_pcie)             B_pcie of all cards together
 *     c = (n - w) (gate + up) + (n - w - d) down       bytes the CPU reads
 *     p = w (gate + up + down) + d down                bytes that cross PCIe
 *
 * but CPU and PCIe draw on the same memory, and no formula says how they share it. So T, plus the rest of a layer's
 * time, is only the belief about a deal that was never made. A deal that was made is judged by the time from the
 * layer's picks to the next layer's, which includes what the GPU has to do afterwards. Every deal that promises to be
 * the best is tried, and from time to time a neighbour of the best, since machines change. All deals are looked at: n
 * is a few. Of two deals that take about as long the one with fewer late copies is better: late copies have used memory
 * and PCIe for nothing.
 *
 * A solver can begin with times that another one has learned (pf_learned): its first deals are then the best of those,
 * and new measurements still correct them.
 *
 * Plain data; one thread at a time. Deals follow from the solver's inputs alone. */
#ifndef PF_SOLVER_H
#define PF_SOLVER_H

#include <stdbool.h>
#include <stdint.h>

#include "pfmoe.h"

enum { PF_SOLVER_MOST = 16 };            /* experts that are dealt one by one; more: as so many lots of n / 16 each */

/* Bytes a second. 0: not known yet. */
struct pf_prices {
    double cpu_bytes_s, pcie_bytes_s;    /* of one bus */
    int    n_buses;                      /* of several cards, over which copies go in turn; 0: one */
};

struct pf_solver_rules {
    bool post_fetch, whole, in_place;    /* kinds of deals that are allowed */
    bool measures;                       /* deals in place that were never made may be tried */
    int  max_transfers;
    int  cpu_limit;                      /* experts whose gate and up the CPU takes; negative: as many as it pays */
};

struct pf_deal {
    int  n_whole, n_down;                /* the others are the CPU's */
    bool in_place;                       /* the whole ones are not copied */
};

/* Mean time of a deal of n experts over an expert's bytes, and the share of its copies that came too late. */
struct pf_solver_seen {
    double   ns, late;
    uint32_t n;                          /* times it was made; 0: never */
};

/* The best deal of n experts as it was when it was looked for, under these rules. */
struct pf_solver_best {
    bool                   is_known, is_old;     /* old: something was learned since */
    struct pf_solver_rules rules;
    uint64_t               gate_up_bytes, down_bytes;
    struct pf_deal         deal;
    double                 cost;
};

struct pf_solver {
    struct pf_prices      prices;
    struct pf_solver_best best[PF_SOLVER_MOST + 1];
    /* [n][in place][w][d] */
    struct pf_solver_seen seen[PF_SOLVER_MOST + 1][2][PF_SOLVER_MOST + 1][PF_SOLVER_MOST + 1];
    uint64_t              n_deals;
};

/* Moves a price (bytes a second) a little towards what was just seen; an unknown one all the way. */
void pf_price_learn(double *price, double bytes, double ns);

/* T(w, d) in ns; 0 if a price is unknown. */
double pf_solver_expect(const struct pf_prices *p, int n, struct pf_deal deal, uint64_t gate_up_bytes,
                        uint64_t down_bytes);

/* The deal to make for n experts of these sizes; as long as a price is unknown, one that teaches it. Quick if
 * pf_solver_prepare was called since the last pf_solver_learn: it computes the best deals anew, when there is time. */
void pf_solver_prepare(struct pf_solver *s);
struct pf_deal pf_solver_deal(struct pf_solver *s, const struct pf_solver_rules *rules, int n, uint64_t gate_up_bytes,
                              uint64_t down_bytes);

/* While measuring: the least-tried of the deals that may be nearly the best, in place of the best. *known: all such
 * were tried often enough, and this is the best. */
struct pf_deal pf_solver_look(struct pf_solver *s, const struct pf_solver_rules *rules, int n, uint64_t gate_up_bytes,
                              uint64_t down_bytes, bool *known);

/* The deal of n experts took so long, and n_late of its copies did not arrive in time. */
void pf_solver_learn(struct pf_solver *s, int n, struct pf_deal deal, uint64_t expert_bytes, double ns, int n_late);

void pf_solver_tell(const struct pf_solver *s, struct pf_learned *out);
void pf_solver_recall(struct pf_solver *s, const struct pf_learned *l);      /* replaces everything that was learned */

#endif
