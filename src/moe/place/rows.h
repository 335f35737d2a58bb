/* Several cards compute every layer together, each with its share of the rows of matrices (backend/team.h):
 *
 *     card 0     embedding | rows 0 .. a of each matrix, heads 0 .. h with their keys and values | what is not divided
 *     card 1               | rows a .. b, heads h .. i                                           | what is not divided
 *     ..
 *
 * Divided are the matrices of dense feed-forward, of each expert, of attention's output and of the output; and
 * attention by whole KV heads with their queries, keys and values, if all layers with attention can be. Norms and
 * routers are not, nor a matrix that adapters change, or that has too few rows for all cards: every card has it and
 * computes with it, as it has all experts of a layer in which adapters change any. Shares are even, as far as each card
 * has room. If a card is lost, the CPU computes with the mapped file.
 *
 * The cards may be those of several processes, one each (backend/ranks.h): every process has this placement, with its
 * own card's part of it. Then a card that is lost is a process that is lost, and nobody takes its place. */
#ifndef PF_PLACE_ROWS_H
#define PF_PLACE_ROWS_H

#include "backend/ranks.h"
#include "moe/place/planning.h"

/* Why the model cannot be divided so, or NULL. */
const char *pf_rows_lack(const struct pf_model *m);

/* The cut by rows for such a session; out->by_rows false: there is no room for it, or the model cannot be divided. */
pf_status pf_rows_cut(const struct pf_model *m, const struct pf_cards *cards, const struct pf_session_opts *so,
                      struct pf_cut *out);

/* The cut for the GPUs of n processes, each with so much room. PF_EUNSUPPORTED: the model cannot be divided so;
 * PF_ENOMEM: there is too little room. */
pf_status pf_rows_cut_ranks(const struct pf_model *m, const uint64_t *room, int n, pf_ranks *ranks, struct pf_cut *out);

/* Bytes that a token reads of the matrices which are divided, on all cards together. */
pf_status pf_rows_token_bytes(const struct pf_model *m, const struct pf_cut *cut, uint64_t *bytes);

/* Of processes: bytes of keys and values of a session of which this one's part fills so many bytes. */
pf_status pf_rows_context_bytes(const struct pf_model *m, const struct pf_cut *cut, int rank, uint64_t left,
                                uint64_t *bytes);

/* Places the model as the cut says, on all cards of the cut, or, with ranks, on the one that is number `rank` of them.
 * After a failure the cards are open still, and may be closed in any order. */
pf_status pf_rows_open(struct pf_placement **out, struct pf_model *m, const struct pf_cards *cards,
                       const struct pf_cut *cut, pf_ranks *ranks, int rank);

#endif
