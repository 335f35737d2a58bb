/* See far_deal.h. */
#include "moe/offload/far_deal.h"

enum { WITHOUT = 64 };                       /* steps after which a CPU that has had no part gets one again */

/* The largest i < n with 2^i <= x, x >= 1. */
static int power_of(int x, int n)
{
    int i = 0;
    while (x >> (i + 1) && i + 1 < n)
        i++;
    return i;
}

static double within(double x, double least, double most)
{
    return x < least ? least : x > most ? most : x;
}

/* The share of n chunks, begun with that of the longest context below. */
static double *share_of(struct pf_far_deal *d, int rows, int n)
{
    double *shares = d->share[power_of(rows, PF_FAR_ROWS)];
    int at = power_of(n, PF_FAR_CHUNKS), known = at;
    while (known > 0 && !(shares[known] > 0))
        known--;
    shares[at] = shares[known] > 0 ? shares[known] : n / 2.0 / (n + 1);
    return &shares[at];
}

int pf_far_deal(struct pf_far_deal *d, int rows, int n, int most)
{
    d->n_host = 0;
    if (n < 1 || most < 1)
        return 0;
    d->share_at = share_of(d, rows, n);
    d->most = n < most ? n : most;
    d->n_host = (int)(within(*d->share_at * (n + 1), 0, d->most) + 0.5);
    if (d->n_host == 0 && ++d->n_without < WITHOUT)
        return 0;
    d->n_without = 0;
    d->n_host = d->n_host > 0 ? d->n_host : 1;
    d->n_device = n + 1 - d->n_host;
    return d->n_host;
}

void pf_far_learn(struct pf_far_deal *d, const struct pf_attended *took)
{
    double host = (double)took->host_ns, device = (double)took->device_ns;
    if (d->n_host > 0 && host > 0 && device > 0) {
        double chunks = (device - host) / (host / d->n_host + device / d->n_device);
        if (chunks < 0 || d->n_host < d->most)       /* else it had all that it may */
            *d->share_at = within(*d->share_at + 0.5 * chunks / (d->n_host + d->n_device), 1e-6, 1);
    }
    d->n_host = 0;
}
