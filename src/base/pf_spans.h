/* Who did what, and when: spans of time on tracks, in a ring that keeps the newest, written out for
 * chrome://tracing and Perfetto.
 *
 *     steps     |attention 0|experts 0        |attention 1| ...  what the thread that walks the layers is at
 *     CPU 0..n  |attention 0| |experts 0   |                     its share of each fork-join
 *     GPU, copies, cache fills, drive                            what was under way there, as far as the host hears
 *
 * Whoever works holds a pf_spans *, NULL when nobody wants to know: then each call is one comparison. pf_spans_add is
 * for any thread; enter, leave and what pf_spans_at says belong to the thread that walks the layers, and to the workers
 * of its fork-joins while these run. Names are static strings. Allocates only in open. */
#ifndef PF_SPANS_H
#define PF_SPANS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/pf_status.h"
#include "base/pf_time.h"

typedef struct pf_spans pf_spans;

enum { PF_TRACK_STEPS, PF_TRACK_GPU, PF_TRACK_COPIES, PF_TRACK_FILLS, PF_TRACK_DRIVE, PF_TRACK_CPU /* + thread */ };

struct pf_span {
    const char *name;
    int         track, layer, expert;    /* layer, expert -1: none */
    uint64_t    begin_ns, end_ns;        /* on the clock of pf_now_ns */
};

/* Keeps the newest n_spans. */
pf_status pf_spans_open(pf_spans **out, size_t n_spans);
void      pf_spans_close(pf_spans **s);              /* NULL-safe; clears *s */

void pf_spans_add(pf_spans *s, const struct pf_span *span);      /* NULL-safe, as are the following */

/* Adds a span of a queue that does one thing at a time. span goes from when the thing was queued to when it was seen to
 * be over; the thing took took_ns of that time (0: not known) and began no earlier than *over_ns, the end of the one
 * before. Sets *over_ns to its end; 0 at first. */
void pf_spans_add_queued(pf_spans *s, const struct pf_span *span, uint64_t took_ns, uint64_t *over_ns);

/* On the track of steps: ends what went on there and begins `name`; NULL: nothing. */
void pf_spans_enter(pf_spans *s, const char *name, int layer);
/* The present span of the track of steps, its end unset; name NULL: none. */
struct pf_span pf_spans_at(const pf_spans *s);

/* All spans there are as JSON. Spans that are added meanwhile may be left out. false: write failed. */
bool pf_spans_write(const pf_spans *s, pf_write_fn *write, void *ctx);

#endif
