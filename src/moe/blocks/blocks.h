/* The blocks a layer is made of. Each reads the normed rows b->h and leaves what is to be added to the residual stream
 * in b->y; it uses the buffers of the unit at work as it likes, and the layer's own part of each session's keys, values
 * and state. All rows go through a product at once; what depends on a sequence is done part by part. */
#ifndef PF_BLOCKS_H
#define PF_BLOCKS_H

#include "moe/session/step.h"

/* project.c: l's products and what adapters add to them; the same for rows of the embedding. */
pf_status pf_project(struct pf_step *t, const struct pf_linear *l, int n_l, const float *x, int rows);
pf_status pf_embed(struct pf_step *t, int rows, float *x);
/* project.c: h = the norm of rows of the residual stream; bias NULL: it adds none. */
pf_status pf_norm(struct pf_step *t, const float *x, const float *w, const float *bias, float eps, int rows,
                  float *h);

pf_status pf_attention_block(struct pf_step *t, int il, int rows);        /* attn.c */
pf_status pf_mla_block(struct pf_step *t, int il, int rows);              /* mla.c */
pf_status pf_compressed_block(struct pf_step *t, int il, int rows);       /* compressed.c */
pf_status pf_index_block(struct pf_step *t, int il, int rows);            /* indexer.c; part of the two above */
bool      pf_index_is_used(const struct pf_part *p);                         /* some row does not see all positions */
pf_status pf_ngram_block(struct pf_step *t, int il, int rows);            /* entering.c: x += embeddings of n-grams */
/* nextn.c: makes the input of the layer that guesses ahead out of the embedding b->x. */
pf_status pf_nextn_begin(struct pf_step *t, int rows);
/* per_layer.c: makes what layers add of the token out of the embedding b->x; adds layer il's to b->x. */
pf_status pf_per_layer_begin(struct pf_step *t, int rows);
pf_status pf_own_part_block(struct pf_step *t, int il, int rows);
pf_status pf_delta_block(struct pf_step *t, int il, int rows);            /* deltanet.c */
pf_status pf_mamba_block(struct pf_step *t, int il, int rows);            /* mamba.c */
pf_status pf_short_conv_block(struct pf_step *t, int il, int rows);       /* shortconv.c */
/* A layer's state after the first `rows` rows of the session's last step, from the inputs that are kept. */
pf_status pf_delta_again(struct pf_step *t, struct pf_session *s, int il, int rows);
pf_status pf_mamba_again(struct pf_step *t, struct pf_session *s, int il, int rows);
pf_status pf_short_conv_again(struct pf_step *t, struct pf_session *s, int il, int rows);
pf_status pf_compress_again(struct pf_step *t, struct pf_session *s, int il, int rows);     /* compressed.c */
pf_status pf_dense_block(struct pf_step *t, int il, int rows);            /* ffn.c */
pf_status pf_moe_block(struct pf_step *t, int il, int rows);

/* far.c: keys and values that lie in main memory. begin: what the CPU attends to in a step of few rows; is_shared:
 * whether it does in a layer with these keys and values. In a prompt, take: if layer il reads any by way of the stage,
 * *at_hand becomes the view by which the part stores its own and attends; give_back, behind attention: its own go to
 * main memory, and the next layer's begin to cross. drop: behind the last layer, waits for a copy that nobody took. */
pf_status pf_far_take(struct pf_step *t, int il, const struct pf_part *p, struct pf_kv_view *at_hand);
pf_status pf_far_give_back(struct pf_step *t, int il, const struct pf_part *p);
void      pf_far_drop(struct pf_step *t);
void      pf_far_begin(struct pf_step *t);
bool      pf_far_is_shared(const struct pf_step *t, const struct pf_part *p);

/* lent.c: keys and values of a layer of the CPU that visits the card at work. Bytes of the card's stage that layers
 * [first, end) take, one at a time; *lent: the part's, there, for this layer; what its rows wrote goes back. */
size_t    pf_lent_bytes(const struct pf_step *t, int first, int end);
pf_status pf_lent_take(struct pf_step *t, const struct pf_part *p, const struct pf_kv_view *kv,
                       struct pf_kv_view *lent);
pf_status pf_lent_give_back(struct pf_step *t, const struct pf_part *p, const struct pf_kv_view *kv,
                            const struct pf_kv_view *lent);

/* ffn.c: tells the store what layer il will probably want of the drive, if it wants to know; depth as for
 * pf_place_guess. Leaves b->x and b->h as they are. */
pf_status pf_moe_guess(struct pf_step *t, int il, int rows, int depth);

/* streams.c: h = the normed input of a block, of one stream x or of several, which leaves the weights to write them
 * with; x = its writing y back to several; each stream of x = h. Uses b->y. */
pf_status pf_block_input(struct pf_step *t, const struct pf_mix *mix, const float *norm, const float *bias, float *x,
                         int rows, float *weights, float *h);
pf_status pf_streams_write(struct pf_step *t, const struct pf_mix *mix, float *x, int rows, float *weights,
                           float *y);
pf_status pf_streams_begin(struct pf_step *t, const float *h, int rows, float *x);
pf_status pf_streams_sum(struct pf_step *t, const float *x, int rows, float *y, float *scratch);     /* y = their sum */

/* compressed.c: rotates the last part of every head of x; makes keys of blocks out of b->h, for layer il's attention or
 * its indexer, and keeps them. */
pf_status pf_rotate_tails(struct pf_step *t, float *x, const float *cs, int n_head, int hd, int rows);
pf_status pf_compress(struct pf_step *t, int il, const struct pf_compressor *c, int rows);

static inline const struct pf_backend_ops *ops_of(const struct pf_step *t)
{
    return t->unit->backend->ops;
}

#endif
