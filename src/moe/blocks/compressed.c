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
#include "moe/blocks/blocks.h"

/* The rotary table of a layer: layers with keys of blocks have frequencies of their own. */
static const float *table_of(const struct pf_step *t, const struct pf_compressed *c)
{
    return c->blocks.ratio ? t->unit->buf.blocks.far : t->unit->buf.cs;
}

static const float *back_table_of(const struct pf_step *t, const struct pf_compressed *c)
{
    return c->blocks.ratio ? t->unit->buf.blocks.far_back : t->unit->buf.blocks.back;
}

pf_status pf_rotate_tails(struct pf_step *t, float *x, const float *cs, int n_head, int hd, int rows)
{
    int n_rot = t->m->compressed.n_rot;
    const struct pf_rope_op op = { x + hd - n_rot, cs, n_head, hd, n_rot / 2, t->m->arch->rope_neox };
    return ops_of(t)->rope(t->unit->backend, &op, 1, rows);
}

static bool is_of_indexer(const struct pf_layer *layer, const struct pf_compressor *c)
{
    return c == &layer->indexer.blocks;
}

/* Where a compressor's sums begin in the layer's state: the attention's come first. */
static size_t sums_at(const struct pf_layer *layer, const struct pf_compressor *c)
{
    return is_of_indexer(layer, c) ? layer->n_state - 3 * (size_t)(1 + c->overlaps) * (size_t)c->width : 0;
}

/* What a session keeps of a step with drafts: positions, then u and gate of the attention, then of the indexer. */
struct kept {
    float *pos, *u, *gate;
};

static struct kept kept_of(const struct pf_session *s, int il, const struct pf_compressor *c)
{
    const struct pf_layer *layer = &s->m->layers[il];
    size_t rows = (size_t)pf_logit_rows(&s->opts), first = (size_t)layer->compressed.blocks.u.n_out;
    float *pos = pf_state_inputs(s, il), *u = pos + rows * (PF_INPUT_POS + (is_of_indexer(layer, c) ? 2 * first : 0));
    return (struct kept){ pos, u, u + rows * (size_t)c->u.n_out };
}

static pf_status keep_inputs(struct pf_step *t, int il, const struct pf_compressor *c, const struct pf_part *p)
{
    const struct pf_buffers *b = &t->unit->buf;
    size_t first = (size_t)p->first, n = (size_t)c->u.n_out;
    if (!pf_state_keeps_inputs(p->s, p->rows))
        return PF_OK;
    struct kept to = kept_of(p->s, il, c);
    const struct pf_copy copies[] = {
        { (const float *)(b->pos + first), to.pos, 1, 1, 0, 0, 1, 1 },       /* bits are copied, whatever they mean */
        { b->packed + first * n, to.u, (int)n, 1, 0, 0, (int)n, (int)n },
        { b->gate_out + first * n, to.gate, (int)n, 1, 0, 0, (int)n, (int)n },
    };
    return ops_of(t)->copy(t->unit->backend, copies, 3, p->rows);
}

static pf_status sum_again(struct pf_step *t, struct pf_session *s, int il, const struct pf_compressor *c, int rows)
{
    struct kept k = kept_of(s, il, c);
    size_t at = sums_at(&t->m->layers[il], c);
    if (c->ratio == 0)
        return PF_OK;
    return ops_of(t)->compress(t->unit->backend, &(struct pf_compress_op){
        .u = k.u, .gate = k.gate, .ape = c->ape, .pos = (const int32_t *)k.pos,
        .before = pf_state_earlier(s, il) + at, .after = pf_state_now(s, il) + at, .out = t->unit->buf.v, .n = c->width,
        .ratio = c->ratio, .rows = rows, .n_out = pf_block_rows(c->ratio, rows), .overlaps = c->overlaps });
}

/* Keys of blocks that the rows filled are stored already; those of blocks that are not full any more are stored anew
 * when they are. */
pf_status pf_compress_again(struct pf_step *t, struct pf_session *s, int il, int rows)
{
    const struct pf_layer *layer = &t->m->layers[il];
    PF_TRY(sum_again(t, s, il, &layer->compressed.blocks, rows));
    return sum_again(t, s, il, &layer->indexer.blocks, rows);
}

/* One part's rows, of which u and gate are there, become blocks of its session. */
static pf_status compress_part(struct pf_step *t, int il, const struct pf_compressor *c, const struct pf_part *p)
{
    const struct pf_backend_ops *ops = ops_of(t);
    pf_backend *be = t->unit->backend;
    const struct pf_layer *layer = &t->m->layers[il];
    const struct pf_buffers *b = &t->unit->buf;
    const struct pf_kv_view *kv = is_of_indexer(layer, c) ? &p->s->index_kv[il].view : &p->s->block_kv[il].view;
    size_t first = (size_t)p->first, n_in = (size_t)c->u.n_out, table = 2 * (size_t)t->m->far_rope.n_pairs,
           at = sums_at(layer, c);
    int which = c->ratio == t->m->compressed.ratio[1], n = pf_block_rows(c->ratio, p->rows);
    const float *before = pf_state_before(p->s, il);
    float *out = b->v + first * (size_t)c->width;
    PF_TRY(ops->compress(be, &(struct pf_compress_op){
        .u = b->packed + first * n_in, .gate = b->gate_out + first * n_in, .ape = c->ape, .pos = b->pos + first,
        .before = before ? before + at : NULL, .after = pf_state_after(p->s, il) + at, .out = out, .n = c->width,
        .ratio = c->ratio, .rows = p->rows, .n_out = n, .overlaps = c->overlaps }));
    if (c->norm)
        PF_TRY(ops->rms_norm(be, out, c->norm, t->m->eps, c->width, n, out));
    if (t->m->compressed.n_rot)
        PF_TRY(pf_rotate_tails(t, out, b->blocks.cs[which] + first * table, 1, c->width, n));
    return ops->kv_store(be, kv, out, NULL, b->blocks.number[which] + first, n);
}

pf_status pf_compress(struct pf_step *t, int il, const struct pf_compressor *c, int rows)
{
    const struct pf_buffers *b = &t->unit->buf;
    const struct pf_linear from_h[] = { { &c->u, b->packed }, { &c->gate, b->gate_out } };
    const struct pf_indexer *x = &t->m->layers[il].indexer;
    PF_TRY(pf_project(t, from_h, 2, b->h, rows));
    if (c == &x->blocks && x->k_norm)
        PF_TRY(ops_of(t)->layer_norm(t->unit->backend, b->packed, x->k_norm, x->k_norm_bias, t->m->index.eps, c->width,
                                     rows, b->packed));
    for (int i = 0; i < t->n_parts; i++) {
        PF_TRY(keep_inputs(t, il, c, &t->parts[i]));
        PF_TRY(compress_part(t, il, c, &t->parts[i]));
    }
    return PF_OK;
}

static pf_status queries(struct pf_step *t, const struct pf_compressed *c, const struct pf_attention *a, int rows)
{
    const struct pf_backend_ops *ops = ops_of(t);
    pf_backend *be = t->unit->backend;
    struct pf_buffers *b = &t->unit->buf;
    PF_TRY(pf_project(t, &(struct pf_linear){ &c->q_a, b->q_latent }, 1, b->h, rows));
    PF_TRY(ops->rms_norm(be, b->q_latent, c->q_norm, t->m->eps, c->q_a.n_out, rows, b->q_latent));
    PF_TRY(pf_project(t, &(struct pf_linear){ &c->q_b, b->q }, 1, b->q_latent, rows));
    PF_TRY(ops->rms_norm(be, b->q, NULL, t->m->eps, a->hd_k, rows * a->n_head, b->q));
    return pf_rotate_tails(t, b->q, table_of(t, c), a->n_head, a->hd_k, rows);
}

/* Computes the keys of the rows, and of the blocks that they fill, which are stored. */
static pf_status keys(struct pf_step *t, int il, int rows)
{
    const struct pf_backend_ops *ops = ops_of(t);
    pf_backend *be = t->unit->backend;
    const struct pf_compressed *c = &t->m->layers[il].compressed;
    struct pf_buffers *b = &t->unit->buf;
    int hd = c->kv.n_out;
    PF_TRY(pf_project(t, &(struct pf_linear){ &c->kv, b->k }, 1, b->h, rows));
    PF_TRY(ops->rms_norm(be, b->k, c->kv_norm, t->m->eps, hd, rows, b->k));
    PF_TRY(pf_rotate_tails(t, b->k, table_of(t, c), 1, hd, rows));
    return c->blocks.ratio ? pf_compress(t, il, &c->blocks, rows) : PF_OK;
}

/* One part's rows: their keys go to its session's ring, and they attend to these and to blocks. */
static pf_status attend(struct pf_step *t, int il, const struct pf_part *p)
{
    const struct pf_backend_ops *ops = ops_of(t);
    pf_backend *be = t->unit->backend;
    const struct pf_layer *layer = &t->m->layers[il];
    const struct pf_attention *a = &layer->attn;
    const struct pf_buffers *b = &t->unit->buf;
    int ratio = layer->compressed.blocks.ratio, max_chosen = t->m->index.max_chosen;
    size_t first = (size_t)p->first, n_q = (size_t)a->n_head * (size_t)a->hd_k;
    const int32_t *pos = b->pos + first;
    PF_TRY(ops->kv_store(be, &p->s->kv[il].view, b->k + first * (size_t)a->hd_k, NULL, pos, p->rows));
    return ops->attention(be, &(struct pf_attention_op){
        .q = b->q + first * n_q, .out = b->attn + first * n_q, .kv = &p->s->kv[il].view, .pos = pos,
        .n_positions = pf_part_end(p), .rows = p->rows, .n_head = a->n_head, .window = a->window, .scale = a->scale,
        .sinks = a->sinks, .blocks = ratio ? &p->s->block_kv[il].view : NULL, .ratio = ratio,
        .chosen = layer->has_indexer && pf_index_is_used(p) ? b->chosen + first * (size_t)max_chosen : NULL,
        .max_chosen = max_chosen, .n_lists = 1, .run = 1 });
}

pf_status pf_compressed_block(struct pf_step *t, int il, int rows)
{
    const struct pf_backend_ops *ops = ops_of(t);
    pf_backend *be = t->unit->backend;
    const struct pf_layer *layer = &t->m->layers[il];
    const struct pf_compressed *c = &layer->compressed;
    const struct pf_attention *a = &layer->attn;
    const struct pf_compressed_sizes *z = &t->m->compressed;
    struct pf_buffers *b = &t->unit->buf;

    PF_TRY(queries(t, c, a, rows));
    PF_TRY(keys(t, il, rows));
    if (layer->has_indexer)
        PF_TRY(pf_index_block(t, il, rows));
    for (int i = 0; i < t->n_parts; i++)
        PF_TRY(attend(t, il, &t->parts[i]));
    PF_TRY(pf_rotate_tails(t, b->attn, back_table_of(t, c), a->n_head, a->hd_v, rows));
    PF_TRY(ops->heads(be, &(struct pf_heads_op){
        .w = &c->out_a, .n_head = z->n_group, .n_out = z->n_group_out, .head_rows = z->n_group_out, .rows = rows,
        .x = b->attn, .x_stride = c->out_a.n_in, .y = b->packed, .y_stride = z->n_group_out }));
    return pf_project(t, &(struct pf_linear){ &a->out, b->y }, 1, b->packed, rows);
}
