/* A device that is not there: its own memory, copies that are late or fail, allocations that fail, a device that is
 * lost. For tests of everything that happens between a device and the host, on machines without one; it computes with
 * the CPU's kernels on one thread, and its speed means nothing.
 *
 * Everything happens on the calling thread and follows from the calls alone, so a test that fails fails again. */
#ifndef PF_SIM_H
#define PF_SIM_H

#include "backend/share.h"

/* The faults of a simulated device. Events are counted from 1; a number that is 0: never. */
struct pf_sim {
    uint64_t memory_bytes;           /* size of its memory; 0: 1 GiB */
    uint64_t fail_alloc;             /* this allocation finds no memory */
    uint64_t refuse_fetch;           /* this copy cannot be begun */
    uint64_t break_every;            /* every n-th copy fails under way */
    uint64_t late_every;             /* every n-th copy is IN_FLIGHT for the first late_for questions */
    uint64_t late_for;
    uint64_t lose_at;                /* at this operation the device is lost: it and all others fail */
    uint64_t again_every;            /* every n-th step that is like one before is only recorded: `end` sets *again */
    uint64_t fetch_ns;               /* how long a copy is said to have taken; 0: it is not said */
    bool     sees_host;              /* it can read the host's memory in place */
    uint64_t attend_floats;          /* of partials that the host may make of a layer's attention; 0: none */
    struct pf_attended attended;     /* what that is said to take */
    uint64_t n_attended;             /* layers of which the host has made some, counted for the test */
    bool     lose_in_serve;          /* lost while the host computes the experts of a layer, on a step of one row */
    uint64_t n_allocs, n_fetches, n_ops, n_pinned, n_steps;      /* counted for the test */
};

/* sim must outlive the backend. */
pf_status pf_backend_sim_open(pf_backend **out, struct pf_sim *sim);

#endif
