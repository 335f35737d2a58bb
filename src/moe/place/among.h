/* Several cards divide the experts of every layer; the first one has all else of the model, and all that a session
 * sees:
 *
 *     card 0     embedding, attention, routers, output; keys, values, state | experts 0 .. a of each layer
 *     card 1                                                                | experts a .. b of each layer
 *     ..
 *
 * A layer's picks are computed on all cards at once (backend/among.h). Experts are dealt evenly, as far as each card
 * has room. If a card is lost, the CPU computes with the mapped file. */
#ifndef PF_PLACE_AMONG_H
#define PF_PLACE_AMONG_H

#include "moe/place/planning.h"

/* How n_experts are dealt to n cards, the i-th of which has room for room[i]: the first expert of each. False: there is
 * no room for all, or a card would have none. */
bool pf_among_deal(int n_experts, const uint64_t *room, int n, int *first);

/* The cut by experts for such a session; out->by_experts false: there is no room for it, or nothing to divide. apart:
 * experts are in RAM, each card holds what it has room for and shares the others with the CPU (../offload/);
 * transit_bytes: what their copies take of a card. */
pf_status pf_among_cut(const struct pf_model *m, const struct pf_cards *cards, const struct pf_session_opts *so,
                       struct pf_cut *out);
pf_status pf_among_cut_apart(const struct pf_model *m, const struct pf_cards *cards, const struct pf_session_opts *so,
                             uint64_t transit_bytes, struct pf_cut *out);

/* Places the model as the cut says. After a failure the cards may be closed in any order. */
pf_status pf_among_open(struct pf_placement **out, struct pf_model *m, const struct pf_cards *cards,
                        const struct pf_cut *cut);

#endif
