/* Keys to the sizes in struct pf_model, a file of this room for each part of it. model.c calls them in an order in
 * which each finds what it needs: mixers, then state and experts, then attention, then rotation.
 *
 *     model.c -+-> read_state.c      what each layer consists of, recurrent states
 *              +-> read_experts.c    experts, routing
 *              +-> read_attention.c  plain attention, windows -------+
 *              +-> read_latent.c     latent and compressed attention +--> read_indexer.c  the choice of positions
 *              +-> read_rope.c       rotation */
#ifndef PF_READ_H
#define PF_READ_H

#include "moe/load/loader.h"

/* m->layers is there, with nothing in it. */
pf_status pf_read_mixers(const struct pf_loader *l);
/* Delta nets that tensors tell, not keys. */
pf_status pf_read_delta(const struct pf_loader *l);

pf_status pf_read_experts(const struct pf_loader *l);
pf_status pf_read_routing(const struct pf_loader *l);
pf_status pf_read_limits(const struct pf_loader *l);
pf_status pf_read_layout(const struct pf_loader *l);

/* *out_hd_k: the size of a head of keys, which layers with a window may go without. */
pf_status pf_read_attention(const struct pf_loader *l, int n_block, int *out_hd_k);
pf_status pf_read_mla(const struct pf_loader *l);
pf_status pf_read_compressed(const struct pf_loader *l);
/* Queries that grow with their position in all layers, from a context of `every` on; a scale of 0 is none. */
pf_status pf_read_temper(const struct pf_loader *l, int every);

/* n_rot: how many dimensions of an indexer's keys rotate at most; ratio: positions of which a key is made. */
pf_status pf_read_index_sizes(const struct pf_loader *l, int n_rot, int ratio);
/* Indexers of latent attention. */
pf_status pf_read_indexer(const struct pf_loader *l);
/* Indexers of plain attention: by means of runs' keys, or by lists of runs. */
pf_status pf_read_index_means(const struct pf_loader *l, int hd_k);
pf_status pf_read_index_runs(const struct pf_loader *l, int hd_k);

pf_status pf_read_rope(struct pf_loader *l, int hd_k, struct pf_rope_params *out);

#endif
