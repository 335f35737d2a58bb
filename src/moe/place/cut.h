/* A model without experts that the device has no room for: the device computes the first layers and, if there is room,
 * the product with the output matrix; the CPU the embedding (a row of it: a matrix of the device's memory is worth more
 * to a layer) and the other layers, from the mapped file or from the store's slots.
 *
 *     CPU      embedding |                 | layers n .. end |            (or the output)
 *                        `-- x -->      -- x --'             `-- x -->
 *     device             | layers 0 .. n-1 |                 | output | logits
 *
 * Every layer's keys, values and state lie with the unit of the session that computes it. A session may leave fewer
 * layers to the device than there are weights for, if its context takes the room. Where a layer is computed changes no
 * bit. */
#ifndef PF_CUT_H
#define PF_CUT_H

#include "moe/place/planning.h"

/* Bytes that stay free on a full device: small vectors are copied there when they are first used. */
enum { PF_CUT_SPARE_BYTES = 2 << 20 };

/* Bytes: what the device needs in any case; the output matrix; all weights outside of layers; a layer with
 * its part of a session. */
struct pf_cut_sizes {
    uint64_t        fixed, output, outside;
    const uint64_t *layers;              /* [n_layers] */
    int             n_layers;
};
/* The part of a model that a device with so much room takes: the output first, then layer after layer. A pure function.
 * n_layers 0 and no output: it can take nothing. */
struct pf_cut pf_cut_make(const struct pf_cut_sizes *sizes, uint64_t room);

/* The cut for backend b, which has so much room, and for such sessions. streaming: never everything, even if it would
 * fit. *least is what the first layer would need. */
pf_status pf_cut_of(const struct pf_model *m, const pf_backend *b, const struct pf_session_opts *so, uint64_t room,
                    bool streaming, struct pf_cut *out, uint64_t *least);

/* Puts the device's part of the bound model there, as what->cut says, and sees to the CPU's. */
pf_status pf_cut_open(struct pf_placement **out, struct pf_model *m, pf_backend *device, const struct pf_placing *what,
                      const struct pf_residency_setup *setup);

#endif
