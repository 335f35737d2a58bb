/* Work that may be long asks from time to time whether it is still wanted: see pf_cancel_fn in pfmoe.h. */
#ifndef PF_CANCEL_H
#define PF_CANCEL_H

#include "base/pf_status.h"

struct pf_cancel {
    pf_cancel_fn *fn;                /* NULL: nobody is asked */
    void         *ctx;
};

/* c may be NULL. */
static inline pf_status pf_cancel_check(const struct pf_cancel *c)
{
    if (c && c->fn && c->fn(c->ctx))
        PF_FAIL(PF_ECANCEL, "the work was cancelled");
    return PF_OK;
}

#endif
