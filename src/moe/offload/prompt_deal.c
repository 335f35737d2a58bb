/* See prompt_deal.h. */
#include "moe/offload/prompt_deal.h"

static const double WEIGHT = 1.0 / 8, LEAST_SHARE = 1.0 / 20, FADES = 0.999;

static int size_of(int rows)
{
    int i = 0;
    while (rows >> (i + 1) && i + 1 < PF_PROMPT_SIZES)
        i++;
    return i;
}

/* Of an expert's time on the bus and on the CPU, together, what the bus takes. */
static double share_of(double bus_bytes_s, double cpu_s, uint64_t expert_bytes)
{
    return (double)expert_bytes / (bus_bytes_s * cpu_s + (double)expert_bytes);
}

bool pf_prompt_pays(struct pf_prompt_prices *p, int rows, uint64_t expert_bytes)
{
    double *cpu_s = &p->cpu_s[size_of(rows)];
    if (*cpu_s <= 0 || p->bus_bytes_s <= 0 || share_of(p->bus_bytes_s, *cpu_s, expert_bytes) >= LEAST_SHARE)
        return true;
    *cpu_s *= FADES;
    return false;
}

int pf_prompt_share(const struct pf_prompt_prices *p, int rows, int n, uint64_t expert_bytes, uint64_t backlog)
{
    enum { TRIES = 4 };
    double cpu_s = p->cpu_s[size_of(rows)], all = n + (double)backlog / (double)expert_bytes;
    if (cpu_s <= 0 || p->bus_bytes_s <= 0)
        return n < TRIES ? n : TRIES;
    int k = (int)(all * share_of(p->bus_bytes_s, cpu_s, expert_bytes) + 0.5);
    return k < n ? k : n;
}

static void learn(double *price, double seen)
{
    *price = *price > 0 ? *price + (seen - *price) * WEIGHT : seen;
}

void pf_prompt_learn_cpu(struct pf_prompt_prices *p, int rows, int n, uint64_t ns)
{
    if (n > 0)
        learn(&p->cpu_s[size_of(rows)], (double)ns * 1e-9 / n);
}

void pf_prompt_learn_bus(struct pf_prompt_prices *p, uint64_t bytes, uint64_t ns)
{
    if (bytes > 0 && ns > 0)
        learn(&p->bus_bytes_s, (double)bytes / ((double)ns * 1e-9));
}
