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
};

pf_status pf_trace_read(struct pf_trace *out, const char *path);
void      pf_trace_free(struct pf_trace *t);              /* also of all zeros */

/* Uses and hits of a cache of n_slots experts under the policy; NULL: under Belady's rule, which evicts what is used
 * farthest in the future and cannot be beaten. n_used <= n_slots. */
struct pf_evict_ops;
pf_status pf_trace_hits(const struct pf_trace *t, int64_t n_slots, const struct pf_evict_ops *policy, uint64_t *n_uses,
                        uint64_t *n_hits);

#endif
