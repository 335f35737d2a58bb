/* The float kernels: the same bits at every level, and close to what double says. */
#include <math.h>
#include <stdio.h>

#include "base/pf_math.h"

/* Largest error of exp in ulp of the result. */
static double exp_error(void)
{
    double worst = 0;
    for (uint32_t i = 0; i < 2000000; i++) {
        float x = -87.33654f + (float)i * (176.05936f / 2000000.0f);
        double want = exp((double)x);
        int e;
        frexp(want, &e);
        double err = fabs((double)pf_expf(x) - want) / ldexp(1.0, e - 24);
        worst = x < 88.72283f && err > worst ? err : worst;
    }
    return worst;
}

int main(void)
{
    double worst = exp_error();
    printf("exp: at most %.3f ulp\n", worst);
    return !(worst < 1.0 && pf_expf(-INFINITY) == 0.0f && pf_expf(INFINITY) == INFINITY && isnan(pf_expf(NAN)) &&
             pf_expf(0.0f) == 1.0f && pf_expf(-87.33655f) == 0.0f && pf_expf(88.73f) == INFINITY);
}
