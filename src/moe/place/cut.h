/* A model that its devices compute by layers.
 *
 * Several cards: each has some of the layers, with the keys, values and state of these; the first also embeds, the last
 * has the output matrix. The residual stream goes from card to card. They are dealt layers so that the same share of
 * each card's memory is taken. If they have no room for all of a model with experts, its layers are dealt all the same,
 * and each card shares the experts of its layers with the CPU (../offload/).
 *
 * A model without experts that the device has no room for: the device computes the first layers and, if there is room,
 * the product with the output matrix; the CPU the embedding (a row of it: a matrix of the device's memory is worth more
 * to a layer) and the other layers, from the mapped file or from the store's slots.
 *
 *     CPU      embedding |                 | layers n .. end |            (or the output)
 *                        `-- x -->      -- x --'             `-- x -->
 *     device             | layers 0 .. n-1 |                 | output | logits
 *
 * In prompts, layers of the CPU visit the device (visits.h).
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
    uint64_t        first;               /* of the weights outside, what the first of several cards has */
    uint64_t        visits;              /* what visits of the CPU's layers take of the last card; 0: none are wanted */
    const uint64_t *layers;              /* [n_layers] */
    int             n_layers;
};
/* The part of a model that a device with so much room takes: the output first, then layer after layer, beside what
 * visits of the others take where that is no large part. A pure function. n_layers 0 and no output: it can take
 * nothing. */
struct pf_cut pf_cut_make(const struct pf_cut_sizes *sizes, uint64_t room);

/* The part of a model that n cards with so much room each take together, layers dealt from the first card on. No more
 * cards than layers are used. Where the cards cannot take the whole model, each takes what it has room for. */
struct pf_cut pf_cut_deal(const struct pf_cut_sizes *sizes, const uint64_t *room, int n);

/* The layers of n processes, each of which has so much room to compute in: likewise, by what layers and short sessions
 * take, as if all had as much more as it needs. The first has what belongs to no layer. */
pf_status pf_cut_ranks(const struct pf_model *m, const uint64_t *room, int n, struct pf_cut *out);

/* The cut for such cards and such sessions. o->streaming: never everything, even if it would fit. *least is what the
 * first layer would need. */
pf_status pf_cut_of(const struct pf_model *m, const struct pf_cards *cards, const struct pf_session_opts *so,
                    const struct pf_model_opts *o, struct pf_cut *out, uint64_t *least);

/* Whether card k computes with a tensor of the model: one of its layers, or what the first or the last one needs
 * besides if the cut is whole. */
bool pf_cut_has(const struct pf_model *m, const struct pf_cut *cut, int k, const struct pf_tensor *t);

/* Puts the part of the bound model that devices compute on the cards that what->cut names, and sees to the CPU's. The
 * placement owns these cards. */
pf_status pf_cut_open(struct pf_placement **out, struct pf_model *m, const struct pf_cards *cards,
                      const struct pf_placing *what, const struct pf_residency_setup *setup);

#endif
