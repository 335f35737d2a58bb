/* What a run leaves behind besides its answer: the timeline. Shared by pfmoe-run and the bench.
 *
 *     pf_model_opts <- report_model_opts -> open the model -> report_begin -> run -> report_end -> close the model */
#ifndef PF_CLI_REPORT_H
#define PF_CLI_REPORT_H

#include "pfmoe.h"

struct report {
    const char *timeline;                /* file, or NULL */
};

void report_model_opts(const struct report *r, struct pf_model_opts *o);

/* Writes what was asked for. False: *why (never NULL) is one sentence; valid until the next call or the library's next
 * failure. */
bool report_end(const struct report *r, pf_model *m, const char **why);

#endif
