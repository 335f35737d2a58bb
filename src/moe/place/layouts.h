/* How fast several cards decode, by layout. Pure functions.
 *
 *     by layers     each card's layers one after the other; x passes from card to card
 *     by experts    all that is no expert on the first card, then experts on all at once; two exchanges a layer
 *     by rows       what is divided on all at once, what is not on each; four exchanges a layer, two a token
 *
 * A card's time is that of reading its weights, and what a layer takes beside that: kernels wait for each other,
 * however few rows each has, so that more cards save nothing of it. Experts in RAM are computed beside those of the
 * cards, and are the same in all layouts: their bytes take RAM's time, however many buses lead to it. */
#ifndef PF_LAYOUTS_H
#define PF_LAYOUTS_H

#include "moe/place/planning.h"

/* What decoding a token takes, in seconds, with the placing that the plan is of. speeds: the VRAM's for cards whose
 * memory's rate nobody knows. */
pf_status pf_layout_seconds(const struct pf_model *m, const struct pf_cards *cards, const struct pf_placing *what,
                            const struct pf_plan *plan, const struct pf_speeds *speeds, const struct pf_link *link,
                            double *seconds);

#endif
