/* Compressed attention (DeepSeek-AI 2026, "DeepSeek-V4": CSA with blocks of 4 positions and an indexer, HCA with blocks
 * of 128). One key for all heads, which is its value too; it is kept for each position, seen in a window, and for each
 * block of positions, seen from where the block ends:
 *
 *     q   = rope(norm(q_b norm(q_a h)))  per head, the norm without weights        kv = rope(norm(kv h))
 *     key of a block = rope(norm(sum over its positions of softmax(gate h + ape) * u h))      at its first position
 *     o   = rope back(attention(q; window of kv, keys of blocks))                  one softmax over both
 *     y   = out_b [out_a of each group of heads]
 *
 * Only the last part of a head is rotated. As keys are values, too, the heads' output is rotated and has to be rotated
 * back. The sums of blocks that are not full yet are recurrent state: first of the layer's blocks, then of the
 * indexer's. */
#include "moe/run/blocks.h"

/* The rotary table of a layer: layers with keys of blocks have frequencies of their own. */
static const float *table_of(const struct pf_session *s, const struct pf_compressed *c)
{
    return c->blocks.ratio ? s->unit->buf.blocks.far : s->unit->buf.cs;
}

static const float *back_table_of(const struct pf_session *s, const struct pf_compressed *c)
{
    return c->blocks.ratio ? s->unit->buf.blocks.far_back : s->unit->buf.blocks.back;
}

pf_status pf_rotate_tails(struct pf_session *s, float *x, const float *cs, int n_head, int hd, int rows)
{
    int n_rot = s->m->compressed.n_rot;
    const struct pf_rope_op op = { x + hd - n_rot, cs, n_head, hd, n_rot / 2, s->m->arch->rope_neox };
    return ops_of(s)->rope(s->unit->backend, &op, 1, rows);
}

pf_status pf_compress(struct pf_session *s, const struct pf_compressor *c, const float *before, float *after,
                      const struct pf_kv_view *kv, int rows)
{
    const struct pf_backend_ops *ops = ops_of(s);
    pf_backend *be = s->unit->backend;
    struct pf_buffers *b = &s->unit->buf;
    int which = c->ratio == s->m->compressed.ratio[1], n = pf_block_rows(c->ratio, rows);
    const struct pf_linear from_h[] = { { &c->u, b->packed }, { &c->gate, b->gate_out } };
    PF_TRY(pf_project(s, from_h, 2, b->h, rows));
    PF_TRY(ops->compress(be, &(struct pf_compress_op){
        .u = b->packed, .gate = b->gate_out, .ape = c->ape, .pos = b->pos, .before = before, .after = after,
        .out = b->v, .n = c->width, .ratio = c->ratio, .rows = rows, .n_out = n, .overlaps = c->overlaps }));
    PF_TRY(ops->rms_norm(be, b->v, c->norm, s->m->eps, c->width, n, b->v));
    PF_TRY(pf_rotate_tails(s, b->v, b->blocks.cs[which], 1, c->width, n));
    return ops->kv_store(be, kv, b->v, NULL, b->blocks.number[which], n);
}

static pf_status queries(struct pf_session *s, const struct pf_compressed *c, const struct pf_attention *a, int rows)
{
    const struct pf_backend_ops *ops = ops_of(s);
    pf_backend *be = s->unit->backend;
    struct pf_buffers *b = &s->unit->buf;
    PF_TRY(pf_project(s, &(struct pf_linear){ &c->q_a, b->q_latent }, 1, b->h, rows));
    PF_TRY(ops->rms_norm(be, b->q_latent, c->q_norm, s->m->eps, c->q_a.n_out, rows, b->q_latent));
    PF_TRY(pf_project(s, &(struct pf_linear){ &c->q_b, b->q }, 1, b->q_latent, rows));
    PF_TRY(ops->rms_norm(be, b->q, NULL, s->m->eps, a->hd_k, rows * a->n_head, b->q));
    return pf_rotate_tails(s, b->q, table_of(s, c), a->n_head, a->hd_k, rows);
}

/* Computes the keys of the rows and stores them in the layer's ring. */
static pf_status keys(struct pf_session *s, int il, int rows)
{
    const struct pf_backend_ops *ops = ops_of(s);
    pf_backend *be = s->unit->backend;
    const struct pf_compressed *c = &s->m->layers[il].compressed;
    struct pf_buffers *b = &s->unit->buf;
    int hd = c->kv.n_out;
    PF_TRY(pf_project(s, &(struct pf_linear){ &c->kv, b->k }, 1, b->h, rows));
    PF_TRY(ops->rms_norm(be, b->k, c->kv_norm, s->m->eps, hd, rows, b->k));
    PF_TRY(pf_rotate_tails(s, b->k, table_of(s, c), 1, hd, rows));
    PF_TRY(ops->kv_store(be, &s->kv[il].view, b->k, NULL, b->pos, rows));
    if (!c->blocks.ratio)
        return PF_OK;
    return pf_compress(s, &c->blocks, pf_state_before(s, il), pf_state_after(s, il), &s->block_kv[il].view, rows);
}

pf_status pf_compressed_block(struct pf_session *s, int il, int rows)
{
    const struct pf_backend_ops *ops = ops_of(s);
    pf_backend *be = s->unit->backend;
    const struct pf_layer *layer = &s->m->layers[il];
    const struct pf_compressed *c = &layer->compressed;
    const struct pf_attention *a = &layer->attn;
    const struct pf_compressed_sizes *z = &s->m->compressed;
    struct pf_buffers *b = &s->unit->buf;

    PF_TRY(queries(s, c, a, rows));
    PF_TRY(keys(s, il, rows));
    if (layer->has_indexer)
        PF_TRY(pf_index_block(s, il, rows));
    PF_TRY(ops->attention(be, &(struct pf_attention_op){
        .q = b->q, .out = b->attn, .kv = &s->kv[il].view, .pos = b->pos, .n_positions = s->computed + rows,
        .rows = rows, .n_head = a->n_head, .window = a->window, .scale = a->scale, .sinks = a->sinks,
        .blocks = c->blocks.ratio ? &s->block_kv[il].view : NULL, .ratio = c->blocks.ratio,
        .chosen = layer->has_indexer && pf_index_is_used(s, rows) ? b->chosen : NULL,
        .max_chosen = s->m->index.max_chosen }));
    PF_TRY(pf_rotate_tails(s, b->attn, back_table_of(s, c), a->n_head, a->hd_v, rows));
    PF_TRY(ops->heads(be, &(struct pf_heads_op){
        .w = &c->out_a, .n_head = z->n_group, .n_out = z->n_group_out, .head_rows = z->n_group_out, .rows = rows,
        .x = b->attn, .x_stride = c->out_a.n_in, .y = b->packed, .y_stride = z->n_group_out }));
    return pf_project(s, &(struct pf_linear){ &a->out, b->y }, 1, b->packed, rows);
}
