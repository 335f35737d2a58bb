/* Memory of a device for experts that pass through it: pure functions of the model.
 *
 *     scratchpad     what a decoding step copies for one layer, matrix behind matrix
 *     slots          a prompt's experts in groups: one slot is multiplied with while others are filled */
#ifndef PF_TRANSIT_H
#define PF_TRANSIT_H

#include "moe/model/model.h"

enum { PF_TRANSIT_SLOTS = 4 };

struct pf_transit {
    uint64_t scratchpad_bytes, slot_bytes;
    int      n_slots;
};

/* For a device that has so much room before anything is placed. */
struct pf_transit pf_transit_of(const struct pf_model *m, const struct pf_postfetch_opts *o, uint64_t room);
uint64_t pf_transit_bytes(const struct pf_transit *t, const struct pf_postfetch_opts *o);

/* Bytes that an expert of these sizes takes on the device: pf_expert_room with its matrices one behind the other;
 * pf_transit_room in a slot, where parts keep their distance in RAM up to pf_transit_between. */
uint64_t pf_expert_room(const uint64_t bytes[3]);
uint64_t pf_transit_room(const uint64_t bytes[3]);
uint64_t pf_transit_between(uint64_t bytes);

#endif
