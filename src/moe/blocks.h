/* The blocks a layer is made of. Each reads the normed rows b->h and leaves what is to be added to the residual stream
 * in b->y; it uses the buffers of the unit at work as it likes, and the layer's own part of the session's state. */
#ifndef PF_BLOCKS_H
#define PF_BLOCKS_H

#include "moe/lora.h"

pf_status pf_attention_block(struct pf_session *s, int il, int rows);        /* attn.c */
pf_status pf_mla_block(struct pf_session *s, int il, int rows);              /* mla.c */
pf_status pf_index_block(struct pf_session *s, int il, int rows);            /* indexer.c; part of pf_mla_block */
bool      pf_index_is_used(const struct pf_session *s, int rows);            /* some row does not see all positions */
pf_status pf_delta_block(struct pf_session *s, int il, int rows);            /* deltanet.c */
pf_status pf_dense_block(struct pf_session *s, int il, int rows);            /* ffn.c */
pf_status pf_moe_block(struct pf_session *s, int il, int rows);

static inline const struct pf_backend_ops *ops_of(const struct pf_session *s)
{
    return s->unit->backend->ops;
}

#endif
