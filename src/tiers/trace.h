/* A routing trace: which experts each token used. One binary format, little-endian, without gaps:
 *
 *     "PFTRACE1"   u32 n_layers   u32 n_expert   u32 n_used   u32 zero           24 bytes
 *     token 0:  layer 0: n_used x (u16 expert, f32 weight);  layer 1: ...        6 * n_used * n_layers bytes
 *     token 1:  ...
 *
 * Layers are those that have experts, in their order. A last token that is cut off does not count. */
#ifndef PF_TRACE_H
#define PF_TRACE_H

#include <stdint.h>

#include "base/pf_status.h"

enum { PF_TRACE_HEADER_BYTES = 24, PF_TRACE_PICK_BYTES = 6 };

struct pf_trace {
    int       n_layers, n_expert, n_used;
    int64_t   n_tokens;
    uint16_t *experts;                   /* [n_tokens][n_layers][n_used] */
    float    *weights;                   /* [n_tokens][n_layers][n_used]; finite */
};

pf_status pf_trace_read(struct pf_trace *out, const char *path);
void      pf_trace_free(struct pf_trace *t);              /* *t may be all zeros */

/* Writing a trace (trace_write.c). A step goes layer by layer over all its rows, a trace token by token, so the writer
 * holds one batch until it is whole:
 *
 *     { put(layer 0), put(layer 1), ... -> append }*  -> close
 *
 * A step that failed is not appended; the next put begins anew. Whole tokens reach the file at each append. Allocates
 * only in open; one thread at a time. */
typedef struct pf_trace_writer pf_trace_writer;

struct pf_trace_shape {
    int n_layers, n_expert, n_used;      /* layers that have experts; their order in the trace is 0 .. n_layers - 1 */
    int max_rows;                        /* tokens of a batch at most */
};

/* Creates the file, or empties it. */
pf_status pf_trace_writer_open(pf_trace_writer **out, const char *path, const struct pf_trace_shape *shape);
/* picks, weights [rows][n_used]. */
void      pf_trace_writer_put(pf_trace_writer *w, int layer, int rows, const int32_t *picks, const float *weights);
/* Writes the tokens of a batch whose layers have all been put. After a failure the file ends with
 * the last whole token. */
pf_status pf_trace_writer_append(pf_trace_writer *w, int rows);
pf_status pf_trace_writer_close(pf_trace_writer **w);     /* NULL-safe; clears *w, also when it fails */

/* Uses and hits of a cache of n_slots experts under the policy; NULL: under Belady's rule, which evicts what is used
 * farthest in the future and cannot be beaten. n_used <= n_slots. */
struct pf_evict_ops;
pf_status pf_trace_hits(const struct pf_trace *t, int64_t n_slots, const struct pf_evict_ops *policy, uint64_t *n_uses,
                        uint64_t *n_hits);

#endif
