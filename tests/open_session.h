/* A session of so many positions, everything else as it is by default. */
#ifndef TEST_OPEN_SESSION_H
#define TEST_OPEN_SESSION_H

#include "check.h"
#include "pfmoe.h"

static pf_session *open_session(pf_model *m, int64_t n_ctx)
{
    pf_session *s = NULL;
    struct pf_session_opts so;
    pf_session_opts_init(&so);
    so.n_ctx = n_ctx;
    CHECK(pf_session_open(&s, m, &so) == PF_OK, "%s", pf_last_error());
    return s;
}

#endif
