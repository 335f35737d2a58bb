/* See far_deal.h. */
#include "moe/offload/far_deal.h"

enum { WITHOUT = 64 };                       /* deals after which a CPU that has had no part gets one again */

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
static struct pf_far_share *share_of(struct pf_far_shares *s, int rows, int n)
{
    struct pf_far_share *shares = s->of[power_of(rows, PF_FAR_ROWS)];
    int at = power_of(n, PF_FAR_CHUNKS), known = at;
    while (known > 0 && !(shares[known].cpu > 0))
        known--;
    shares[at].cpu = shares[known].cpu > 0 ? shares[known].cpu : n / 2.0 / (n + 1);
    return &shares[at];
}

int pf_far_deal(struct pf_far_shares *s, int rows, int n, int most, struct pf_far_deal *out)
{
    *out = (struct pf_far_deal){ .n_host = 0 };
    if (n < 1 || most < 1)
        return 0;
    out->share = share_of(s, rows, n);
    out->most = n < most ? n : most;
    int n_host = (int)(within(out->share->cpu * (n + 1), 0, out->most) + 0.5);
    if (n_host == 0 && ++out->share->n_without < WITHOUT)
        return 0;
    out->share->n_without = 0;
    out->n_host = n_host > 0 ? n_host : 1;
    out->n_device = n + 1 - out->n_host;
    return out->n_host;
}

/* Together the deals move their share by half of what is missing. */
void pf_far_learn(struct pf_far_deal *d, const struct pf_attended *took, int n_deals)
{
    double host = (double)took->host_ns, device = (double)took->device_ns;
    if (d->n_host > 0 && host > 0 && device > 0) {
        double chunks = (device - host) / (host / d->n_host + device / d->n_device);
        if (chunks < 0 || d->n_host < d->most)       /* else it had all that it may */
            d->share->cpu = within(d->share->cpu + 0.5 / n_deals * chunks / (d->n_host + d->n_device), 1e-6, 1);
    }
    d->n_host = 0;
}
