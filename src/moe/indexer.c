/* The indexer of sparse latent attention (DeepSeek-AI 2025, "DeepSeek-V3.2-Exp"; GLM-5): a small attention without
 * values that says which positions the large one looks at.
 *
 *     k = layer_norm(k h)                   one key a position, cached beside the latent
 *     score(p) = sum over heads of (w h) * max(q_head . k(p), 0)          q from the normed query latent
 *
 * The first part of every head of q and of k is rotated. A positive factor common to all scores is left out. While a
 * row sees no more positions than may be chosen, it sees all. Layers without an indexer take what the one before
 * chose. */
#include "moe/blocks.h"

static const float key_eps = 1e-6f;

bool pf_index_is_used(const struct pf_session *s, int rows)
{
    const struct pf_index_sizes *z = &s->m->index;
    return z->max_chosen > 0 && (s->computed + rows) / z->ratio > z->max_chosen;
}

/* Leaves the choice in b->chosen. b->h and b->q_latent are what the layer's queries and keys were made from. */
pf_status pf_index_block(struct pf_session *s, int il, int rows)
{
    const struct pf_backend_ops *ops = ops_of(s);
    pf_backend *be = s->unit->backend;
    const struct pf_indexer *x = &s->m->layers[il].indexer;
    const struct pf_index_sizes *z = &s->m->index;
    struct pf_buffers *b = &s->unit->buf;
    int n_pairs = s->m->rope.n_pairs;
    const struct pf_linear from_h[] = { { &x->k, b->index_k }, { &x->w, b->index_w } };
    const struct pf_rope_op ropes[] = {
        { b->index_q, b->cs, z->n_head, z->width, n_pairs, s->m->arch->rope_neox },
        { b->index_k, b->cs, 1, z->width, n_pairs, s->m->arch->rope_neox },
    };
    if (!x->q.data)
        return PF_OK;
    PF_TRY(pf_project(s, from_h, 2, b->h, rows));
    PF_TRY(pf_project(s, &(struct pf_linear){ &x->q, b->index_q }, 1, b->q_latent, rows));
    PF_TRY(ops->layer_norm(be, b->index_k, x->k_norm, x->k_norm_bias, key_eps, z->width, rows, b->index_k));
    PF_TRY(ops->rope(be, ropes, 2, rows));
    PF_TRY(ops->kv_store(be, &s->index_kv[il].view, b->index_k, NULL, b->pos, rows));
    if (!pf_index_is_used(s, rows))
        return PF_OK;
    return ops->choose(be, &(struct pf_choose_op){
        .q = b->index_q, .w = b->index_w, .kv = &s->index_kv[il].view, .pos = b->pos, .rows = rows,
        .n_head = z->n_head, .max_chosen = z->max_chosen, .ratio = z->ratio, .chosen = b->chosen });
}
