/* The indexer of sparse attention (DeepSeek-AI 2025, "DeepSeek-V3.2-Exp"; GLM-5; DeepSeek-V4): a small attention
 * without values that says which keys the large one looks at.
 *
 *     k = layer_norm(k h)                   one key a position, cached beside the latent; or, where the large attention
 *                                           looks at keys of blocks, one a block, made as those are: compressed.c; or
 *                                           one a run of positions, made so of theirs: it chooses runs then
 *     score(k) = sum over heads of (w h) * max(q_head . k, 0)             q from the normed query latent
 *
 * Where the large attention is plain (Qwen 3.8), a key stands for a run of positions: k = rope(norm(mean of k h)), the
 * queries are q h normed per head, and w is 1; sums of runs that are not full yet are recurrent state.
 *
 * Or it has a query for each head of keys and values (MiniMax M3), keys rope(norm(k h)) and no w: each head chooses
 * runs of positions by the largest dot in them, and the last run is always chosen.
 *
 * The first part of every head of q and of k is rotated, of blocks the last. A positive factor common to all scores is
 * left out. While a row sees no more keys than may be chosen, it sees all. Layers without an indexer take what the one
 * before chose. */
#include "moe/blocks/blocks.h"

bool pf_index_is_used(const struct pf_part *p)
{
    const struct pf_index_sizes *z = &p->s->m->index;
    return z->max_chosen > 0 && (pf_part_end(p) / z->ratio + z->run - 1) / z->run > z->max_chosen;
}

/* Queries and keys of positions, as their norms left them, are rotated; the keys are kept. */
static pf_status keep_rotated(struct pf_step *t, int il, bool neox, int rows)
{
    const struct pf_backend_ops *ops = ops_of(t);
    pf_backend *be = t->unit->backend;
    const struct pf_index_sizes *z = &t->m->index;
    struct pf_buffers *b = &t->unit->buf;
    int n_pairs = t->m->rope.n_pairs;
    const struct pf_rope_op ropes[] = {
        { b->index_q, b->cs, z->n_head, z->width, n_pairs, neox },
        { b->index_k, b->cs, 1, z->width, n_pairs, neox },
    };
    PF_TRY(ops->rope(be, ropes, 2, rows));
    for (const struct pf_part *p = t->parts; p < t->parts + t->n_parts; p++)
        PF_TRY(ops->kv_store(be, &p->s->index_kv[il].view, b->index_k + (size_t)p->first * (size_t)z->width, NULL,
                             b->pos + p->first, p->rows));
    return PF_OK;
}

static pf_status keys_of_positions(struct pf_step *t, int il, int rows)
{
    const struct pf_indexer *x = &t->m->layers[il].indexer;
    const struct pf_index_sizes *z = &t->m->index;
    struct pf_buffers *b = &t->unit->buf;
    PF_TRY(pf_project(t, &(struct pf_linear){ &x->k, b->index_k }, 1, b->h, rows));
    PF_TRY(ops_of(t)->layer_norm(t->unit->backend, b->index_k, x->k_norm, x->k_norm_bias, z->eps, z->width, rows,
                                 b->index_k));
    return keep_rotated(t, il, t->m->arch->index_neox, rows);
}

static pf_status keys_of_blocks(struct pf_step *t, int il, int rows)
{
    const struct pf_layer *layer = &t->m->layers[il];
    const struct pf_index_sizes *z = &t->m->index;
    if (t->m->compressed.n_rot)
        PF_TRY(pf_rotate_tails(t, t->unit->buf.index_q, t->unit->buf.blocks.far, z->n_head, z->width, rows));
    return pf_compress(t, il, &layer->indexer.blocks, rows);
}

/* One part's keys of positions, in b->index_k, become means of runs of its session's. */
static pf_status means_of_part(struct pf_step *t, int il, const struct pf_part *p)
{
    const struct pf_backend_ops *ops = ops_of(t);
    pf_backend *be = t->unit->backend;
    const struct pf_layer *layer = &t->m->layers[il];
    const struct pf_index_sizes *z = &t->m->index;
    const struct pf_buffers *b = &t->unit->buf;
    int n = pf_block_rows(z->ratio, p->rows), n_pairs = t->m->far_rope.n_pairs;
    size_t first = (size_t)p->first, width = (size_t)z->width;
    float *out = b->v + first * width;
    const struct pf_rope_op rope = { out, b->blocks.cs[0] + first * 2 * (size_t)n_pairs, 1, z->width, n_pairs,
                                     t->m->arch->rope_neox };
    PF_TRY(ops->compress(be, &(struct pf_compress_op){
        .u = b->index_k + first * width, .pos = b->pos + first, .before = pf_state_before(p->s, il),
        .after = pf_state_after(p->s, il), .out = out, .n = z->width, .ratio = z->ratio, .rows = p->rows,
        .n_out = n }));
    PF_TRY(ops->rms_norm(be, out, layer->indexer.k_norm, t->m->eps, z->width, n, out));
    PF_TRY(ops->rope(be, &rope, 1, n));
    return ops->kv_store(be, &p->s->index_kv[il].view, out, NULL, b->blocks.number[0] + first, n);
}

static pf_status keys_of_means(struct pf_step *t, int il, int rows)
{
    const struct pf_indexer *x = &t->m->layers[il].indexer;
    const struct pf_index_sizes *z = &t->m->index;
    struct pf_buffers *b = &t->unit->buf;
    const struct pf_rope_op rope = { b->index_q, b->cs, z->n_head, z->width, t->m->rope.n_pairs,
                                     t->m->arch->rope_neox };
    PF_TRY(ops_of(t)->rms_norm(t->unit->backend, b->index_q, x->q_norm, t->m->eps, z->width, rows * z->n_head,
                               b->index_q));
    PF_TRY(ops_of(t)->rope(t->unit->backend, &rope, 1, rows));
    PF_TRY(pf_project(t, &(struct pf_linear){ &x->k, b->index_k }, 1, b->h, rows));
    for (int i = 0; i < t->n_parts; i++)
        PF_TRY(means_of_part(t, il, &t->parts[i]));
    return PF_OK;
}

/* Queries and keys of positions where heads choose runs. */
static pf_status keys_for_runs(struct pf_step *t, int il, int rows)
{
    const struct pf_backend_ops *ops = ops_of(t);
    pf_backend *be = t->unit->backend;
    const struct pf_indexer *x = &t->m->layers[il].indexer;
    const struct pf_index_sizes *z = &t->m->index;
    struct pf_buffers *b = &t->unit->buf;
    PF_TRY(pf_project(t, &(struct pf_linear){ &x->k, b->index_k }, 1, b->h, rows));
    PF_TRY(ops->rms_norm(be, b->index_q, x->q_norm, t->m->eps, z->width, rows * z->n_head, b->index_q));
    PF_TRY(ops->rms_norm(be, b->index_k, x->k_norm, t->m->eps, z->width, rows, b->index_k));
    return keep_rotated(t, il, t->m->arch->rope_neox, rows);
}

/* One part's rows choose among its session's keys, if there are more than each may see. */
static pf_status choose(struct pf_step *t, int il, const struct pf_part *p)
{
    const struct pf_index_sizes *z = &t->m->index;
    const struct pf_buffers *b = &t->unit->buf;
    size_t first = (size_t)p->first, n_head = (size_t)z->n_head;
    if (!pf_index_is_used(p))
        return PF_OK;
    return ops_of(t)->choose(t->unit->backend, &(struct pf_choose_op){
        .q = b->index_q + first * n_head * (size_t)z->width,
        .w = t->m->layers[il].indexer.w.data ? b->index_w + first * n_head : NULL,
        .kv = &p->s->index_kv[il].view, .pos = b->pos + first, .rows = p->rows, .n_head = z->n_head,
        .max_chosen = z->max_chosen, .ratio = z->ratio, .run = t->m->arch->index_runs ? z->run : 0,
        .n_local = z->n_local,
        .chosen = b->chosen + first * (size_t)z->n_lists * (size_t)z->max_chosen });
}

/* Leaves the choice in b->chosen. b->h and b->q_latent are what the layer's queries and keys were made from. */
pf_status pf_index_block(struct pf_step *t, int il, int rows)
{
    const struct pf_indexer *x = &t->m->layers[il].indexer;
    struct pf_buffers *b = &t->unit->buf;
    bool means = t->m->arch->index_means, runs = t->m->arch->index_runs;
    if (!x->q.data)
        return PF_OK;
    if (x->w.data)
        PF_TRY(pf_project(t, &(struct pf_linear){ &x->w, b->index_w }, 1, b->h, rows));
    PF_TRY(pf_project(t, &(struct pf_linear){ &x->q, b->index_q }, 1, means || runs ? b->h : b->q_latent, rows));
    PF_TRY(means             ? keys_of_means(t, il, rows)
           : runs            ? keys_for_runs(t, il, rows)
           : x->blocks.ratio ? keys_of_blocks(t, il, rows)
                             : keys_of_positions(t, il, rows));
    for (int i = 0; i < t->n_parts; i++)
        PF_TRY(choose(t, il, &t->parts[i]));
    return PF_OK;
}
