/* Where a model's weights go: one decision, for opening and for the plan that is printed. It follows from the model,
 * the options, the device's room and the memory that may be taken, and from nothing else. */
#ifndef PF_PLANNING_H
#define PF_PLANNING_H

#include "moe/place/placement.h"
#include "tiers/plan.h"

/* The decision: what opening is to do. */
struct pf_placing {
    enum pf_plan_how how;
    struct pf_cut    cut;                /* for a model without experts that a device computes at least in part */
    bool             mapped;             /* the CPU's part stays mapped; false: it streams through slots */
    uint64_t         slot_bytes;         /* bytes of all slots */
    int              n_planned;          /* slabs that have a place in the slots */
    uint64_t         least_bytes;        /* device memory that the smallest part needs */
    uint64_t         context_bytes;      /* for sessions whose length nobody says */
};

/* cards: those there are; one of a room without a backend is only described, and has the CPU's sizes. Of several, the
 * answer's cut uses the first cut.n_more + 1. so NULL: the usual session, and experts are shared even where that has no
 * room, since a smaller one may come. A session whose length is not said has the least one for the question who
 * computes; then it is as long as what is left allows. */
pf_status pf_place_decide(const struct pf_model *m, const struct pf_cards *cards, const struct pf_model_opts *o,
                          const struct pf_session_opts *so, const struct pf_speeds *speeds, struct pf_placing *out,
                          struct pf_plan *plan);

/* The plan of a bound model as it is printed; places nothing. */
pf_status pf_place_plan(const struct pf_model *m, const struct pf_cards *cards, const struct pf_model_opts *o,
                        const struct pf_session_opts *so, struct pf_plan *out);

/* Opens the CPU's placement, as decided. */
pf_status pf_cpu_place_open(struct pf_placement **out, struct pf_model *m, const struct pf_placing *what,
                            const struct pf_residency_setup *setup);

#endif
