/* See prompt_deal.h. */
#include "moe/offload/prompt_deal.h"

#include "moe/offload/solver.h"

static const double LESS = 1.0 / 8, MORE = 1.0 / 4, MOST_SEEN = 1.5, MOST_LEFT = 0.9, FADES = 0.995;

static int size_of(int rows)
{
    int i = 0;
    while (rows >> (i + 1) && i + 1 < PF_PROMPT_SIZES)
        i++;
    return i;
}

/* Seconds until the later one is done, with k of n experts on the CPU. */
static double time_of(const struct pf_prompt_prices *p, double cpu_s, int n, int k, uint64_t expert_bytes,
                      uint64_t backlog)
{
    double bus = ((double)backlog + (double)(n - k) * (double)expert_bytes) / p->bus_bytes_s, cpu = k * cpu_s;
    return bus > cpu ? bus : cpu;
}

int pf_prompt_share(const struct pf_prompt_prices *p, int rows, int n, uint64_t expert_bytes, uint64_t backlog)
{
    enum { TRIES = 4 };
    double cpu_s = p->cpu_s[size_of(rows)], bytes = (double)expert_bytes;
    if (p->n_seen[size_of(rows)] < PF_PROMPT_FIRST || p->bus_bytes_s <= 0)
        return n < TRIES ? n : TRIES;
    double together = ((double)backlog + n * bytes) / (p->bus_bytes_s * cpu_s + bytes);
    if (together >= n)
        return n;
    int k = (int)together;
    bool more = time_of(p, cpu_s, n, k + 1, expert_bytes, backlog) < time_of(p, cpu_s, n, k, expert_bytes, backlog);
    return more ? k + 1 : k;
}

/* Whether the CPU's help saves enough of the time of n experts. */
static bool saves(const struct pf_prompt_prices *p, int rows, int n, uint64_t expert_bytes)
{
    double cpu_s = p->cpu_s[size_of(rows)];
    int k = pf_prompt_share(p, rows, n, expert_bytes, 0);
    return time_of(p, cpu_s, n, k, expert_bytes, 0) < MOST_LEFT * time_of(p, cpu_s, n, 0, expert_bytes, 0);
}

bool pf_prompt_pays(struct pf_prompt_prices *p, int rows, int n, uint64_t expert_bytes)
{
    enum { MANY = 1000 };
    double *cpu_s = &p->cpu_s[size_of(rows)];
    if (p->n_seen[size_of(rows)] < PF_PROMPT_FIRST || p->bus_bytes_s <= 0)
        return true;
    bool pays = saves(p, rows, n, expert_bytes);
    if (!pays && !saves(p, rows, MANY, expert_bytes))
        *cpu_s *= FADES;
    return pays;
}

/* Moves what an expert takes the CPU towards what was seen, which counts as no more than MOST_SEEN times the price. */
static void learn(double *price, double seen)
{
    if (seen > MOST_SEEN * *price)
        seen = MOST_SEEN * *price;
    *price += (seen - *price) * (seen < *price ? LESS : MORE);
}

void pf_prompt_learn_cpu(struct pf_prompt_prices *p, int rows, int n, uint64_t ns)
{
    int i = size_of(rows);
    double seen = (double)ns * 1e-9 / (n > 0 ? n : 1);
    if (n <= 0)
        return;
    if (p->n_seen[i] == PF_PROMPT_FIRST)
        learn(&p->cpu_s[i], seen);
    else if (p->n_seen[i]++ == 0 || seen < p->cpu_s[i])
        p->cpu_s[i] = seen;
}

void pf_prompt_learn_bus(struct pf_prompt_prices *p, uint64_t bytes, uint64_t ns)
{
    if (bytes > 0 && ns > 0)
        pf_price_learn(&p->bus_bytes_s, (double)bytes, (double)ns);
}
