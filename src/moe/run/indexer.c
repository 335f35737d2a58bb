/* The indexer of sparse attention (DeepSeek-AI 2025, "DeepSeek-V3.2-Exp"; GLM-5; DeepSeek-V4): a small attention
 * without values that says which keys the large one looks at.
 *
 *     k = layer_norm(k h)                   one key a position, cached beside the latent; or, where the large attention
 *                                           looks at keys of blocks, one a block, made as those are: compressed.c
 *     score(k) = sum over heads of (w h) * max(q_head . k, 0)             q from the normed query latent
 *
 * The first part of every head of q and of k is rotated, of blocks the last. A positive factor common to all scores is
 * left out. While a row sees no more keys than may be chosen, it sees all. Layers without an indexer take what the one
 * before chose. */
#include "moe/run/blocks.h"

static const float key_eps = 1e-6f;

bool pf_index_is_used(const struct pf_session *s, int rows)
{
    const struct pf_index_sizes *z = &s->m->index;
    return z->max_chosen > 0 && (s->computed + rows) / z->ratio > z->max_chosen;
}

static pf_status keys_of_positions(struct pf_session *s, int il, int rows)
{
    const struct pf_backend_ops *ops = ops_of(s);
    pf_backend *be = s->unit->backend;
    const struct pf_indexer *x = &s->m->layers[il].indexer;
    const struct pf_index_sizes *z = &s->m->index;
    struct pf_buffers *b = &s->unit->buf;
    int n_pairs = s->m->rope.n_pairs;
    const struct pf_rope_op ropes[] = {
        { b->index_q, b->cs, z->n_head, z->width, n_pairs, s->m->arch->rope_neox },
        { b->index_k, b->cs, 1, z->width, n_pairs, s->m->arch->rope_neox },
    };
    PF_TRY(pf_project(s, &(struct pf_linear){ &x->k, b->index_k }, 1, b->h, rows));
    PF_TRY(ops->layer_norm(be, b->index_k, x->k_norm, x->k_norm_bias, key_eps, z->width, rows, b->index_k));
    PF_TRY(ops->rope(be, ropes, 2, rows));
    return ops->kv_store(be, &s->index_kv[il].view, b->index_k, NULL, b->pos, rows);
}

static pf_status keys_of_blocks(struct pf_session *s, int il, int rows)
{
    const struct pf_layer *layer = &s->m->layers[il];
    const struct pf_index_sizes *z = &s->m->index;
    size_t n_first = layer->n_state - 6 * (size_t)z->width;      /* the attention's blocks come first in the state */
    const float *before = pf_state_before(s, il);
    PF_TRY(pf_rotate_tails(s, s->unit->buf.index_q, s->unit->buf.blocks.far, z->n_head, z->width, rows));
    return pf_compress(s, &layer->indexer.blocks, before ? before + n_first : NULL, pf_state_after(s, il) + n_first,
                       &s->index_kv[il].view, rows);
}

/* Leaves the choice in b->chosen. b->h and b->q_latent are what the layer's queries and keys were made from. */
pf_status pf_index_block(struct pf_session *s, int il, int rows)
{
    const struct pf_indexer *x = &s->m->layers[il].indexer;
    const struct pf_index_sizes *z = &s->m->index;
    struct pf_buffers *b = &s->unit->buf;
    if (!x->q.data)
        return PF_OK;
    PF_TRY(pf_project(s, &(struct pf_linear){ &x->w, b->index_w }, 1, b->h, rows));
    PF_TRY(pf_project(s, &(struct pf_linear){ &x->q, b->index_q }, 1, b->q_latent, rows));
    PF_TRY(x->blocks.ratio ? keys_of_blocks(s, il, rows) : keys_of_positions(s, il, rows));
    if (!pf_index_is_used(s, rows))
        return PF_OK;
    return ops_of(s)->choose(s->unit->backend, &(struct pf_choose_op){
        .q = b->index_q, .w = b->index_w, .kv = &s->index_kv[il].view, .pos = b->pos, .rows = rows,
        .n_head = z->n_head, .max_chosen = z->max_chosen, .ratio = z->ratio, .chosen = b->chosen });
}
