/* Watching where tokens go: what pf_trace_set asks for, and picks that come from a recorded
 * trace instead of the router.
 *
 * Every step leaves the picks and weights of all its layers in the session's buffers. Counting, recording and
 * showing them happens after a step that succeeded, from a copy. The other stages lie inside of route and experts:
 * while someone wants to see those, the CPU computes both, with a tap (backend.h), and the results go to the
 * backend. Bits do not change by it.
 *
 * Belongs to the model; everything here is for the thread that holds the step lock. */
#ifndef PF_WATCH_H
#define PF_WATCH_H

#include "moe/session/step.h"

/* Reads the trace whose picks are to be used, checks that it suits the bound model, and sets m->injected. */
pf_status pf_watch_inject(struct pf_model *m, const char *path);

/* Called for each step in this order: begin makes room for its rows, fill writes the injected picks to its inputs. */
pf_status pf_watch_begin(struct pf_step *t);
void      pf_watch_fill(const struct pf_step *t, const struct pf_inputs *in);
pf_status pf_watch_download(struct pf_step *t);               /* after the layers, before finish */
pf_status pf_watch_done(struct pf_step *t);                   /* after finish: count, record, show */

/* Whether anybody looks at steps. */
bool      pf_watch_any(const struct pf_model *m);

/* Whether route and experts go through pf_watch_experts; and that. e as for the experts, with picks
 * and weights to be made. */
bool      pf_watch_inside(const struct pf_model *m);
pf_status pf_watch_experts(struct pf_step *t, int il, const struct pf_experts_op *e);

void      pf_watch_close(struct pf_model *m);

#endif
