/* A model all of whose weights lie on the device, and what is left of a placement when there is nothing to see to: the
 * file, mapped. */
#ifndef PF_ON_DEVICE_H
#define PF_ON_DEVICE_H

#include "moe/place/placement.h"

pf_status pf_on_device_open(struct pf_placement **out, struct pf_model *m, pf_backend *device);

/* The file as it is mapped: under a placement that leaves nothing to the CPU until its device is lost. */
pf_status pf_plain_open(struct pf_placement **out, struct pf_model *m);

/* Notes a step that the device computed alone. */
void pf_on_device_note(const struct pf_placement *p, uint64_t begun_ns);

/* `ended` of placements whose steps the device, or the cards, compute alone. */
void pf_on_device_ended(struct pf_placement *p, uint64_t begun_ns, bool well);

#endif
