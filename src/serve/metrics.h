/* Counts for /metrics and the page. Counted by any thread; read whenever. */
#ifndef PF_SERVE_METRICS_H
#define PF_SERVE_METRICS_H

#include <stdatomic.h>

#include "program/io/buf.h"
#include "pfmoe.h"

struct metrics {
    atomic_ullong requests, failed, cancelled;           /* generations that were queued, and how they ended early */
    atomic_ullong prompt_tokens, cached_tokens, answer_tokens;
    atomic_ullong prompt_us, answer_us;
    atomic_ullong broken_off;                            /* steps */
    atomic_ullong yielded;                               /* slots, to other clients */
    atomic_int    running, waiting;
};
extern struct metrics metrics;

/* Prometheus' text form. */
void metrics_print(const pf_model *m, struct buf *out);

#endif
