/* See transit.h. */
#include "moe/place/transit.h"

#include "backend/share.h"

/* A prompt's slot takes one expert at least; half a layer, so many bytes, or such a part of the device's memory at
 * most. */
static const uint64_t SLOT_BYTES = 64 << 20, SLOT_SHARE = 64;

uint64_t pf_expert_room(const uint64_t bytes[3])
{
    return pf_share_room(bytes[0]) + pf_share_room(bytes[1]) + pf_share_room(bytes[2]);
}

uint64_t pf_transit_between(uint64_t bytes)
{
    return bytes / 64;
}

/* Room that a part may need in a slot. */
static uint64_t part_room(uint64_t bytes)
{
    return pf_share_room(bytes + pf_transit_between(bytes)) + 256;
}

uint64_t pf_transit_room(const uint64_t bytes[3])
{
    return part_room(bytes[0]) + part_room(bytes[1]) + part_room(bytes[2]);
}

/* Bytes of the largest gate, up and down of any expert. */
static void largest_parts(const struct pf_model *m, uint64_t bytes[3])
{
    bytes[0] = bytes[1] = bytes[2] = 0;
    for (int il = 0; il < m->n_layer; il++) {
        uint64_t here[3];
        if (!m->layers[il].is_moe)
            continue;
        pf_expert_bytes(m, il, here);
        for (int i = 0; i < 3; i++)
            bytes[i] = here[i] > bytes[i] ? here[i] : bytes[i];
    }
}

/* One slot is multiplied with while another is filled; more keep the bus busy. */
struct pf_transit pf_transit_of(const struct pf_model *m, const struct pf_postfetch_opts *o, uint64_t room)
{
    uint64_t bytes[3], asked = (uint64_t)o->scratchpad_mb * 1000000;
    int most = o->max_transfers < m->n_used ? o->max_transfers : m->n_used;
    largest_parts(m, bytes);
    uint64_t in_slot = pf_transit_room(bytes), half_layer = in_slot * (uint64_t)((m->n_expert + 1) / 2);
    uint64_t limit = room / SLOT_SHARE < SLOT_BYTES ? room / SLOT_SHARE : SLOT_BYTES;
    return (struct pf_transit){ .scratchpad_bytes = asked ? asked : pf_expert_room(bytes) * (uint64_t)most,
                                .slot_bytes = half_layer < limit ? half_layer : in_slot > limit ? in_slot : limit,
                                .n_slots = in_slot > limit ? 2 : PF_TRANSIT_SLOTS };
}

uint64_t pf_transit_bytes(const struct pf_transit *t, const struct pf_postfetch_opts *o)
{
    return o->force_cpu ? 0 : t->scratchpad_bytes + (uint64_t)t->n_slots * t->slot_bytes;
}
