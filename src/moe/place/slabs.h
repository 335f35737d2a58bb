/* The weights of a model that may stream, as tables for the store: routed experts, or the weights of the layers of a
 * model without experts.
 *
 *     layer, expert  --first_slab[layer] + expert-->  slab  --3 parts: gate, up, down-->  slot
 *     dense layer    --first_slab[layer]---------->   slab  --a part per matrix-------->  slot, weights[part]->data */
#ifndef PF_SLABS_H
#define PF_SLABS_H

#include "moe/model/model.h"
#include "tiers/store/store.h"

struct pf_slabs {
    struct pf_slab *slabs;
    struct pf_part *parts;
    int   n_slabs, n_parts;
    int  *first_slab;                    /* [n_layer]; -1: the layer is mapped */
    bool *streams;                       /* [n_tensors] */
    struct pf_weight **weights;          /* [n_parts] of a model without experts, else NULL */
    const uint8_t **mapped;              /* [n_parts] where the bytes of `weights` are mapped */
    int  *order;                         /* [n_slabs] the order in which to load them */
};

/* The part that is an expert's gate, up or down (0, 1, 2): without gates, two parts, of which the first is both of the
 * former. */
static inline int pf_slab_part(const struct pf_slab *k, int i)
{
    return k->first + (k->n == 2 ? i / 2 : i);
}

/* In a model without experts only layers from `first` on: a device has the layers before. */
pf_status pf_slabs_make(struct pf_slabs *s, const struct pf_model *m, int first);
void      pf_slabs_free(struct pf_slabs *s);

uint64_t  pf_slab_bytes(const struct pf_slabs *s, int slab);
uint64_t  pf_slabs_in(const struct pf_slabs *s, uint64_t bytes);    /* slabs of average size in so many bytes */

/* Asks the kernel to read the weights that do not stream, of layers from `first` on and of no layer: they are read once
 * and stay in the page cache, if it keeps them; and to read no more of a table than the rows that are looked up. */
void      pf_slabs_ask_rest(const struct pf_slabs *s, const struct pf_model *m, int first);

/* The tables as the store takes them; its other fields are zeros. */
void      pf_slabs_setup(const struct pf_slabs *s, const struct pf_model *m, struct pf_store_setup *out);

#endif
