/* How many of a prompt's missed experts the CPU computes while the others cross the bus: the number with which the
 * later of the two is done first.
 *
 *     bus    | those that are on their way already | n - k of the missed ones |
 *     CPU    | k of the missed ones                                           |
 *
 * Both would end together at k = (backlog + n bytes) / (bus_bytes_s cpu_s + bytes), with cpu_s the time that an expert
 * of so many bytes takes the CPU, so it is that rounded down or up. cpu_s grows with the rows of the step, so it is
 * kept for each power of two of them. At first it is learned from a few experts a layer.
 *
 * Plain data; one thread at a time. */
#ifndef PF_PROMPT_DEAL_H
#define PF_PROMPT_DEAL_H

#include <stdbool.h>
#include <stdint.h>

enum {
    PF_PROMPT_SIZES = 16,                /* rows below 2^16 */
    PF_PROMPT_FIRST = 8                  /* so many times the CPU is asked in any case, and the least time counts:
                                            threads may have had to wake up */
};

struct pf_prompt_prices {
    double bus_bytes_s;                  /* 0: not known yet */
    double cpu_s[PF_PROMPT_SIZES];       /* of an expert in steps of 2^i rows and more; 0: not known yet */
    int    n_seen[PF_PROMPT_SIZES];      /* times that the CPU took, up to PF_PROMPT_FIRST */
};

/* The CPU's share of n experts, while so many bytes are on their way. */
int  pf_prompt_share(const struct pf_prompt_prices *p, int rows, int n, uint64_t expert_bytes, uint64_t backlog);

/* Whether its help saves a tenth of the time of n experts or more, or may do so. If it would not whatever n is, its
 * price falls a little with every question, so that it is tried again some time. */
bool pf_prompt_pays(struct pf_prompt_prices *p, int rows, int n, uint64_t expert_bytes);

/* The CPU took so long for n experts; so many bytes took the bus so long. A time of the CPU above its price counts
 * twice as much as one below: it may share its cores with others, and a layer waits for whoever is late. */
void pf_prompt_learn_cpu(struct pf_prompt_prices *p, int rows, int n, uint64_t ns);
void pf_prompt_learn_bus(struct pf_prompt_prices *p, uint64_t bytes, uint64_t ns);

#endif
