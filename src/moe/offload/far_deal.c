/* See far_deal.h. */
#include "moe/offload/far_deal.h"

static int size_of(int rows)
{
    int i = 0;
    while (rows >> (i + 1) && i + 1 < PF_FAR_SIZES)
        i++;
    return i;
}

static double within(double x, double least, double most)
{
    return x < least ? least : x > most ? most : x;
}

int pf_far_deal(struct pf_far_deal *d, int rows, int n, int most)
{
    d->size = size_of(rows);
    d->n_host = 0;
    if (n < 1 || most < 1)
        return 0;
    double *share = &d->share[d->size], chunks = *share > 0 ? *share * (n + 1) : n / 2.0;
    chunks = within(chunks, 1, n < most ? n : most);
    *share = chunks / (n + 1);
    d->n_host = (int)(chunks + 0.5);
    d->n_device = n + 1 - d->n_host;
    return d->n_host;
}

void pf_far_learn(struct pf_far_deal *d, const struct pf_attended *took)
{
    double host = (double)took->host_ns, device = (double)took->device_ns;
    if (d->n_host > 0 && host > 0 && device > 0) {
        double chunks = (device - host) / (host / d->n_host + device / d->n_device);
        d->share[d->size] += 0.5 * chunks / (d->n_host + d->n_device);
        d->share[d->size] = within(d->share[d->size], 1e-6, 1);
    }
    d->n_host = 0;
}
