/* Layers of the CPU visit a card in prompts. Their matrices cross the bus and pass through two rooms in the card's
 * memory, one for what mixes positions, one for the feed-forward; while the card computes with one, the other fills.
 *
 *     copies     |= mixer of n =|= feed-forward of n =|= mixer of n+1 =|= feed-forward of n+1 ..
 *     card                      | mixer of n |        | feed-forward of n |    | mixer of n+1 | ..
 *
 * For many rows that takes less time than the CPU's products. Keys and values stay the host's (blocks/lent.c), and so
 * does the residual stream as it was before the first visit: if anything fails, the CPU computes the layers as ever.
 * Who does changes no bit. Models of which any layer has something else than attention with keys and values of its own
 * and a dense feed-forward stay with the CPU.
 *
 * Everything belongs to the thread that holds the step lock, or that opens and closes, but pf_visits_bytes_sent. */
#ifndef PF_VISITS_H
#define PF_VISITS_H

#include "moe/layout/layout.h"

enum pf_visit_part { PF_VISIT_MIXER, PF_VISIT_FFN, PF_VISIT_PARTS };

struct pf_visits;

/* Bytes of a card's memory that visits take beside a session with options o (resolved). 0: no layer may visit, or the
 * session's steps are too short. */
uint64_t pf_visits_bytes(const struct pf_model *m, const struct pf_session_opts *o);
/* The part of them that a session takes: room for keys and values of one of the layers from `first` on. */
size_t   pf_visits_stage_bytes(const struct pf_model *m, const struct pf_session_opts *o, int first);

/* For layers from `first` on; matrices of earlier ones have been placed on the card. PF_ENOMEM: there is no room. */
pf_status pf_visits_open(struct pf_visits **out, const struct pf_model *m, pf_backend *card, int first);
void      pf_visits_close(struct pf_visits *v);      /* before the card is closed; NULL-safe */

/* Whether n layers go to the card in a step of so many rows. */
bool pf_visits_pay(struct pf_visits *v, int rows, int n_layers);

/* Copies come from memory that the card has pinned: these slots, or, if nobody has called this before the first layer
 * comes, the mapped file's pages. If they cannot be pinned, copies are slower. */
void pf_visits_pin(struct pf_visits *v, void *slots, size_t bytes);

/* A layer whose weights can be used on the host: begin .. copied. Between lend and take_back operations of the card
 * that are asked for find the matrices of that part of it. After a failure pf_visits_drop takes everything back, and
 * nothing is being copied any more. */
pf_status pf_visits_begin(struct pf_visits *v, int il);
pf_status pf_visits_lend(struct pf_visits *v, int il, enum pf_visit_part part);
pf_status pf_visits_take_back(struct pf_visits *v, int il, enum pf_visit_part part);
pf_status pf_visits_copied(struct pf_visits *v, int il);
void      pf_visits_drop(struct pf_visits *v);

/* Prices are learned from what n layers of so many rows took: on the card, and on the CPU. */
void pf_visits_learn(struct pf_visits *v, int rows, int n_layers, uint64_t ns);
void pf_visits_learn_cpu(struct pf_visits *v, int rows, int n_layers, uint64_t ns);
void pf_visits_end(struct pf_visits *v);             /* no layer visits the card from now on */
/* A session needs the card's memory: the visits' is given back, and they end. False: they had none any more. */
bool pf_visits_give_way(struct pf_visits *v);

/* Any thread: bytes that were copied to the card since the last reset. */
uint64_t pf_visits_bytes_sent(const struct pf_visits *v);
void     pf_visits_reset(struct pf_visits *v);

#endif
