/* Tensors to the weights in struct pf_model, a file of this room for each part of it, every shape checked. The
 * hyper-parameters, and m->layers with their sizes, are there.
 *
 *     bind.c -+-> bind_attention.c  attention of each kind, indexers
 *             +-> bind_state.c      delta nets, Mamba2, short convolutions
 *             +-> bind_experts.c    routers, experts, dense feed-forward     +--> tensors.c
 *             +-> bind_streams.c    residual streams, rows for each token */
#ifndef PF_BIND_H
#define PF_BIND_H

#include "moe/load/loader.h"

/* Binds every tensor of the layers that run. */
pf_status pf_bind_tensors(const struct pf_loader *l);

pf_status pf_bind_attention(const struct pf_loader *l, int il, struct pf_attention *a);
pf_status pf_bind_mla(const struct pf_loader *l, int il, struct pf_layer *layer);
pf_status pf_bind_compressed(const struct pf_loader *l, int il, struct pf_layer *layer);
/* An indexer of plain attention, with keys and norms of its own. */
pf_status pf_bind_key_indexer(const struct pf_loader *l, int il, struct pf_indexer *x);

pf_status pf_bind_delta(const struct pf_loader *l, int il, struct pf_delta_net *d);
pf_status pf_bind_mamba(const struct pf_loader *l, int il, struct pf_mamba *a);
pf_status pf_bind_short_conv(const struct pf_loader *l, int il, struct pf_short_conv *c);
/* The kernel of a convolution over n_conv channels: {taps, n_conv} -> [taps][n_conv]. */
pf_status pf_bind_conv(const struct pf_loader *l, int il, const char *suffix, int taps, int n_conv, const float **out);

pf_status pf_bind_dense(const struct pf_loader *l, int il, struct pf_dense_ffn *f);
pf_status pf_bind_moe(const struct pf_loader *l, int il, struct pf_moe *moe);
/* A dense feed-forward beside the experts, which are bound already. */
pf_status pf_bind_beside(const struct pf_loader *l, int il, struct pf_layer *layer);

/* Mixes of the residual streams at one place: the three tensors whose names begin with `prefix`, with so many weights
 * that come out in so many parts; or, gated, those of a pair of low rank. */
pf_status pf_bind_mix(const struct pf_loader *l, const char *prefix, int n_weights, int n_parts, struct pf_mix *mix);
pf_status pf_bind_gated_mix(const struct pf_loader *l, const char *prefix, enum pf_need inject, struct pf_mix *mix);
/* Both mixes of a layer. */
pf_status pf_bind_layer_gates(const struct pf_loader *l, int il, struct pf_layer *layer);
pf_status pf_bind_layer_mixes(const struct pf_loader *l, int il, struct pf_layer *layer);
/* Rows of a table for each token: the model's part, a layer's own, and the layer of n-grams. */
pf_status pf_bind_per_layer(const struct pf_loader *l);
pf_status pf_bind_own_part(const struct pf_loader *l, int il, struct pf_layer *layer);
pf_status pf_bind_ngrams(const struct pf_loader *l);

#endif
