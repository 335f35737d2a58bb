/* Opening a model, whose parts are each a room's own: this is the one place that knows them all. */
#ifndef PF_OPEN_H
#define PF_OPEN_H

#include "moe/place/placement.h"

/* pf_model_open, with a setup for tests (NULL: none); not placed: for plans, the weights are bound and lie nowhere but
 * in the mapped file. */
pf_status pf_open_model(pf_model **out, const char *path, const struct pf_model_opts *opts,
                        const struct pf_residency_setup *setup, bool placed);

/* pf_model_plan, with a setup for tests (NULL: none). */
pf_status pf_open_plan(const char *path, const struct pf_model_opts *opts, const struct pf_session_opts *so,
                       const struct pf_residency_setup *setup, struct pf_plan *out);

/* info.c: m->name and m->arch_name; all of m->info, of a model that is bound or has a vocabulary only; what depends on
 * its placement. */
void      pf_info_names(struct pf_model *m);
pf_status pf_info_fill(struct pf_model *m);
void      pf_info_placed(struct pf_model *m);
/* Of m->info what the weights are: after the model was left with some of its layers. */
void      pf_info_weights(struct pf_model *m);

/* join.c. Of several processes: meets the others, checks that they have the same model, and leaves m, which is bound,
 * this one's layers. Then, however the rest of opening it went: whether it went well on all. */
pf_status pf_crew_open(struct pf_model *m, const struct pf_model_opts *o);
pf_status pf_crew_begin(struct pf_model *m, pf_status st);

#endif
